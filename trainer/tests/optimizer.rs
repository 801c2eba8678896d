//! AdamW's one pass over memory against the same rule in libtorch's operations in double precision, and what resume relies on.
#![cfg(feature = "torch")]
#![allow(clippy::unwrap_used)]

use ft_trainer::model::{Parameters, Shape};
use ft_trainer::optimizer::{AdamW, global_norm};
use tch::{Device, Kind};

const BETAS: [f64; 2] = [0.9, 0.95];

/// Large enough that every thread gets several chunks, and not a multiple of anything.
fn shape() -> Shape {
    Shape { layers: 1, heads: 1, width: 65, context: 31, vocabulary: 1201, layer_norm_epsilon: 1e-5 }
}

fn optimizer(parameters: &Parameters) -> AdamW {
    AdamW::new(parameters, BETAS, 1e-8, 0.1)
}

/// Steps `from..to` on gradients that depend on the step alone.
fn train(parameters: &mut Parameters, optimizer: &mut AdamW, steps: std::ops::Range<u64>) {
    let kind = parameters.iter().next().unwrap().tensor.kind();
    for step in steps {
        let gradients = Parameters::random(&shape(), 100 + step).to(Device::Cpu, kind);
        optimizer.step(parameters, &gradients, 1e-2 / (1.0 + step as f64), 0.7);
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
    let (mut fast, mut reference) = (optimizer(&single), optimizer(&double));
    train(&mut single, &mut fast, 0..50);
    train(&mut double, &mut reference, 0..50);
    let error = relative_error(&single, &double);
    assert!(error < 1e-6, "relative error {error:.1e} after 50 steps");
    assert!(relative_error(&Parameters::random(&shape(), 1), &double) > 0.1, "50 steps must move the weights");
}

#[test]
fn bits_do_not_depend_on_the_number_of_threads() {
    let run = |threads| {
        tch::set_num_threads(threads);
        let mut parameters = Parameters::random(&shape(), 1);
        let mut optimizer = optimizer(&parameters);
        train(&mut parameters, &mut optimizer, 0..5);
        let norm = global_norm(&parameters);
        (parameters, norm)
    };
    let (one, three) = (run(1), run(3));
    assert!(equal(&one.0, &three.0));
    assert_eq!(one.1.to_bits(), three.1.to_bits());
}

#[test]
fn a_restored_state_continues_bit_for_bit() {
    let mut undisturbed = Parameters::random(&shape(), 1);
    let mut optimizer_1 = optimizer(&undisturbed);
    train(&mut undisturbed, &mut optimizer_1, 0..3);
    let mut resumed = undisturbed.to(Device::Cpu, Kind::Double).to(Device::Cpu, Kind::Float);
    let saved: Vec<_> = optimizer_1.state().map(|(name, tensor)| (name, tensor.copy())).collect();
    let mut optimizer_2 = optimizer(&resumed);
    optimizer_2.load_state(saved, optimizer_1.step_count()).unwrap();
    train(&mut undisturbed, &mut optimizer_1, 3..6);
    train(&mut resumed, &mut optimizer_2, 3..6);
    assert!(equal(&undisturbed, &resumed));
}

#[test]
fn a_foreign_state_is_refused_by_name() {
    let parameters = Parameters::random(&shape(), 1);
    let saved = || optimizer(&parameters).state().map(|(name, tensor)| (name, tensor.copy())).collect::<Vec<_>>();
    let mut incomplete = saved();
    let (lost, _) = incomplete.pop().unwrap();
    assert!(optimizer(&parameters).load_state(incomplete, 1).unwrap_err().to_string().contains(&lost));
    let other = Parameters::random(&Shape { vocabulary: 7, ..shape() }, 1);
    assert!(optimizer(&other).load_state(saved(), 1).unwrap_err().to_string().contains("exp_avg.transformer.wte.weight"));
}

#[test]
fn decay_spares_biases_and_layer_norms() {
    let mut parameters = Parameters::random(&shape(), 1);
    for parameter in &mut parameters {
        let _ = parameter.tensor.fill_(1.0);
    }
    let gradients = parameters.zeros_like();
    optimizer(&parameters).step(&mut parameters, &gradients, 0.5, 1.0);
    for parameter in &parameters {
        let expected = if parameter.tensor.dim() == 2 { 0.95 } else { 1.0 };
        let error = (parameter.tensor.mean(Kind::Double).double_value(&[]) - expected).abs();
        assert!(error < 1e-6, "{} is off by {error}", parameter.name);
    }
}

#[test]
fn global_norm_is_the_norm_of_everything() {
    let gradients = Parameters::random(&shape(), 9);
    let squares =
        |entry: &ft_trainer::model::Parameter| entry.tensor.to_kind(Kind::Double).square().sum(Kind::Double).double_value(&[]);
    let expected = gradients.iter().map(squares).sum::<f64>().sqrt();
    assert!((global_norm(&gradients) / expected - 1.0).abs() < 1e-12);
}
