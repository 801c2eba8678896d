//! One AdamW step over about fifty million weights, and a copy of as many numbers: what `benches/adamw.py` puts beside its peers.
//!
//! Usage: adamw THREADS STEPS; prints one JSON object with the medians.

use std::time::Instant;

use ft_trainer::model::{Parameters, Shape};
use ft_trainer::optimizer::Optimizer;
use ft_trainer::settings::{TrainSettings, Variant};
use ft_trainer::world::Shards;

fn main() {
    let numbers: Vec<usize> = std::env::args().skip(1).filter_map(|argument| argument.parse().ok()).collect();
    let [threads, steps] = numbers[..] else { return }; // `cargo bench` and `cargo test` pass nothing
    tch::set_num_threads(threads as i32);
    let shape = Shape {
        layers: 3,
        heads: 12,
        width: 768,
        context: 1024,
        vocabulary: 36_000,
        layer_norm_epsilon: 1e-5,
        variant: Variant::Gpt2,
    };
    let mut parameters = Parameters::random(&shape, 1);
    let gradients = Parameters::random(&shape, 2);
    let mut optimizer = Optimizer::new(&parameters, &TrainSettings::default());
    let step = median(steps, || optimizer.step(&mut parameters, &Shards::of(&gradients), [1e-4, 1.0], &mut |_, _| ()));
    let elements = shape.parameters() as usize;
    let (from, mut to) = (vec![1.0_f32; elements], vec![0.0_f32; elements]);
    let copy = median(steps, || copy(&from, &mut to, threads));
    println!("{}", serde_json::json!({"elements": elements, "step_seconds": step, "copy_seconds": copy}));
}

/// Seconds of the median call, after two that do not count.
fn median(calls: usize, mut call: impl FnMut()) -> f64 {
    let seconds = |()| {
        let started = Instant::now();
        call();
        started.elapsed().as_secs_f64()
    };
    let mut measured: Vec<f64> = std::iter::repeat_n((), calls + 2).map(seconds).skip(2).collect();
    measured.sort_by(f64::total_cmp);
    measured[measured.len() / 2]
}

fn copy(from: &[f32], to: &mut [f32], threads: usize) {
    let share = from.len().div_ceil(threads);
    std::thread::scope(|scope| {
        for (to, from) in to.chunks_mut(share).zip(from.chunks(share)) {
            scope.spawn(|| to.copy_from_slice(from));
        }
    });
}
