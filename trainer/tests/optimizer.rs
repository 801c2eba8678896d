//! AdamW's one pass over memory against the same rule in libtorch's operations in double precision, and the properties that resume
//! relies on.
#![cfg(feature = "torch")]
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;

use ft_trainer::model::{Parameters, Shape};
use ft_trainer::optimizer::{Optimizer, StateError, norm};
use ft_trainer::settings::Variant;
use ft_trainer::settings::{Compat, OptimizerKind, TrainSettings, WeightDecayOn};
use ft_trainer::world::{Shards, World};
use tch::{Device, Kind, Tensor};

/// Large enough that every thread gets several chunks, and not a multiple of anything.
fn shape() -> Shape {
    Shape { layers: 1, heads: 1, width: 65, context: 31, vocabulary: 1201, layer_norm_epsilon: 1e-5, variant: Variant::Gpt2 }
}

const KINDS: [OptimizerKind; 3] = [OptimizerKind::Adamw, OptimizerKind::Adafactor, OptimizerKind::Muon];

fn settings() -> TrainSettings {
    TrainSettings { betas: [0.9, 0.95], weight_decay: 0.1, ..TrainSettings::default() }
}

fn optimizer(parameters: &Parameters, optimizer: OptimizerKind) -> Optimizer {
    Optimizer::new(parameters, &TrainSettings { optimizer, ..settings() })
}

fn load(optimizer: &mut Optimizer, saved: &HashMap<String, Tensor>, updates: u64) -> Result<(), StateError> {
    optimizer.load_state(&World::alone(), |name| Ok(saved.get(name).map(Tensor::shallow_clone)), updates)
}

fn state(optimizer: &Optimizer) -> HashMap<String, Tensor> {
    optimizer.remembered().into_iter().map(|remembered| (remembered.name, remembered.own.copy())).collect()
}

/// Steps `from..to` on gradients that depend on the step alone.
fn train(parameters: &mut Parameters, optimizer: &mut Optimizer, steps: std::ops::Range<u64>) {
    let kind = parameters.iter().next().unwrap().tensor.kind();
    for step in steps {
        let gradients = Parameters::random(&shape(), 100 + step).to(Device::Cpu, kind);
        optimizer.step(parameters, &Shards::of(&gradients), [1e-2 / (1.0 + step as f64), 0.7], &mut |_, _| ());
    }
}

fn relative_error(found: &Parameters, expected: &Parameters) -> f64 {
    let error = |(found, expected): (&tch::Tensor, &tch::Tensor)| {
        ((found.to_kind(Kind::Double) - expected).norm() / expected.norm()).double_value(&[])
    };
    found.iter().zip(expected).map(|(found, expected)| error((&found.tensor, &expected.tensor))).fold(0.0, f64::max)
}

fn equal(left: &Parameters, right: &Parameters) -> bool {
    left.iter().zip(right).all(|(left, right)| left.tensor.equal(&right.tensor))
}

#[test]
fn one_pass_equals_the_rule_in_double_precision() {
    let mut single = Parameters::random(&shape(), 1);
    let mut double = single.to(Device::Cpu, Kind::Double);
    let (mut fast, mut reference) = (optimizer(&single, OptimizerKind::Adamw), optimizer(&double, OptimizerKind::Adamw));
    train(&mut single, &mut fast, 0..50);
    train(&mut double, &mut reference, 0..50);
    let error = relative_error(&single, &double);
    assert!(error < 1e-6, "relative error {error:.1e} after 50 steps");
    assert!(relative_error(&Parameters::random(&shape(), 1), &double) > 0.1, "50 steps must move the weights");
}

#[test]
fn bits_do_not_depend_on_the_number_of_threads() {
    // libtorch shares out what is larger than 32,768 numbers: GPT-2's vocabulary is.
    let shape = Shape { vocabulary: 50_257, ..shape() };
    let run = |kind, threads| {
        tch::set_num_threads(threads);
        let mut parameters = Parameters::random(&shape, 1);
        let mut optimizer = optimizer(&parameters, kind);
        for step in 0..5 {
            let gradients = Shards::of(&Parameters::random(&shape, 100 + step));
            optimizer.step(&mut parameters, &gradients, [1e-2, 0.7], &mut |_, _| ());
        }
        let norm = norm(&parameters);
        (parameters, norm)
    };
    // Muon's products are libtorch's, as torch's own Muon has them: on some processors their bits depend on the threads.
    for kind in [OptimizerKind::Adamw, OptimizerKind::Adafactor] {
        let (one, three) = (run(kind, 1), run(kind, 3));
        assert!(equal(&one.0, &three.0), "{kind:?}");
        assert_eq!(one.1.to_bits(), three.1.to_bits());
    }
}

#[test]
fn a_restored_state_continues_bit_for_bit() {
    for kind in KINDS {
        let mut undisturbed = Parameters::random(&shape(), 1);
        let mut optimizer_1 = optimizer(&undisturbed, kind);
        train(&mut undisturbed, &mut optimizer_1, 0..3);
        let mut resumed = undisturbed.to(Device::Cpu, Kind::Double).to(Device::Cpu, Kind::Float);
        let saved = state(&optimizer_1);
        let mut optimizer_2 = optimizer(&resumed, kind);
        load(&mut optimizer_2, &saved, optimizer_1.updates()).unwrap();
        train(&mut undisturbed, &mut optimizer_1, 3..6);
        train(&mut resumed, &mut optimizer_2, 3..6);
        assert!(equal(&undisturbed, &resumed), "{kind:?}");
    }
}

#[test]
fn a_foreign_state_is_refused_by_name() {
    for (kind, name) in
        KINDS.into_iter().zip(["exp_avg.transformer.wte.weight", "exp_avg_sq_row.transformer.wte.weight", "exp_avg."])
    {
        let parameters = Parameters::random(&shape(), 1);
        let saved = state(&optimizer(&parameters, kind));
        let mut incomplete = saved.iter().map(|(name, tensor)| (name.clone(), tensor.copy())).collect::<HashMap<_, _>>();
        let lost = saved.keys().max().unwrap();
        incomplete.remove(lost);
        assert!(load(&mut optimizer(&parameters, kind), &incomplete, 1).unwrap_err().to_string().contains(lost));
        let other = Parameters::random(&Shape { vocabulary: 7, ..shape() }, 1);
        assert!(load(&mut optimizer(&other, kind), &saved, 1).unwrap_err().to_string().contains(name));
    }
}

/// The names of the tensors that decay: a step on ones without gradients shrinks it.
fn decaying(settings: &TrainSettings) -> Vec<String> {
    let mut parameters = Parameters::random(&shape(), 1);
    for parameter in &mut parameters {
        let _ = parameter.tensor.fill_(1.0);
    }
    let gradients = parameters.zeros_like();
    Optimizer::new(&parameters, settings).step(&mut parameters, &Shards::of(&gradients), [0.5, 1.0], &mut |_, _| ());
    let mean = |tensor: &tch::Tensor| tensor.mean(Kind::Double).double_value(&[]);
    for parameter in &parameters {
        let mean = mean(&parameter.tensor);
        assert!((mean - 0.95).abs() < 1e-6 || (mean - 1.0).abs() < 1e-6, "{} is now {mean}", parameter.name);
    }
    parameters.iter().filter(|parameter| mean(&parameter.tensor) < 0.97).map(|parameter| parameter.name.clone()).collect()
}

#[test]
fn decay_follows_its_rule() {
    for optimizer in KINDS {
        let matrices = decaying(&TrainSettings { optimizer, ..settings() });
        assert_eq!(matrices.len(), 6, "{matrices:?}");
        assert!(matrices.iter().all(|name| name.ends_with("weight") && !name.contains("ln_")), "{matrices:?}");
    }
    assert_eq!(decaying(&TrainSettings { weight_decay_on: WeightDecayOn::All, ..settings() }).len(), 16);
    let by_name = decaying(&TrainSettings { compat: Some(Compat::Transformers2020), ..settings() });
    assert!(by_name.len() == 9 && by_name.iter().all(|name| name.ends_with("weight")), "{by_name:?}");
}

#[test]
fn groups_say_what_happens_to_whom() {
    let parameters = Parameters::random(&shape(), 1);
    let said = |kind| optimizer(&parameters, kind).groups().iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(
        said(OptimizerKind::Muon),
        [
            "AdamW, weight decay 0.1: 2 tensors, 80,080 parameters",
            "AdamW, weight decay 0: 10 tensors, 975 parameters",
            "Muon, weight decay 0.1: 4 tensors, 50,700 parameters",
        ]
    );
    assert_eq!(said(OptimizerKind::Adafactor)[0], "Adafactor, weight decay 0.1: 6 tensors, 130,780 parameters");
}

#[test]
fn global_norm_is_the_norm_of_everything() {
    let gradients = Parameters::random(&shape(), 9);
    let squares =
        |entry: &ft_trainer::model::Parameter| entry.tensor.to_kind(Kind::Double).square().sum(Kind::Double).double_value(&[]);
    let expected = gradients.iter().map(squares).sum::<f64>().sqrt();
    assert!((norm(&gradients) / expected - 1.0).abs() < 1e-12);
}
