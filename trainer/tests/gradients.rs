//! The hand-written backward pass against two second opinions: libtorch's autograd over the same model written the plain way,
//! and finite differences of the loss.
#![cfg(feature = "torch")]
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;

use ft_trainer::model::{Adapters, Batch, Dropout, Gpt2, IGNORED, Parameters, Setup, Shape};
use ft_trainer::random::{bits, mix};
use ft_trainer::settings::lora::{LinearMap, Lora};
use ft_trainer::settings::{Engine, Offload, Precision, Recompute, Variant};
use tch::{Device, Kind, Tensor};

fn tiny() -> Shape {
    Shape { layers: 2, heads: 2, width: 16, context: 12, vocabulary: 37, layer_norm_epsilon: 1e-5, variant: Variant::Gpt2 }
}

/// Weights with every bias and gain away from its initial value, so that no gradient is zero by symmetry.
fn weights(shape: &Shape, kind: Kind) -> Parameters {
    let mut parameters = Parameters::random(shape, 11).to(Device::Cpu, kind);
    let noise = Parameters::random(shape, 12);
    tch::manual_seed(3);
    // fairseq's initial weights are as large as is good.
    let larger = if shape.variant == Variant::Gpt2 { 4.0 } else { 0.1 };
    for (parameter, noise) in parameters.iter_mut().zip(&noise) {
        let shift = if noise.decays() {
            noise.tensor.shallow_clone() * (16.0 / shape.width as f64).sqrt() * larger
        } else {
            noise.tensor.randn_like() * 0.1
        };
        parameter.tensor += shift.to_kind(kind);
    }
    parameters
}

fn batch(shape: &Shape, rows: i64, length: i64) -> (Tensor, Tensor) {
    tch::manual_seed(5);
    let tokens = Tensor::randint(shape.vocabulary as i64, [rows, length + 1], (Kind::Int64, Device::Cpu));
    let targets = tokens.narrow(1, 1, length).copy();
    let _ = targets.narrow(1, 0, 2).select(0, 0).fill_(IGNORED);
    (tokens.narrow(1, 0, length), targets)
}

fn read(inputs: &Tensor, targets: &Tensor) -> Batch {
    Batch::new(inputs.shallow_clone(), targets.shallow_clone())
}

fn set_up(shape: &Shape, parameters: &Parameters, setup: &Setup<'_>) -> Gpt2 {
    Gpt2::for_training(*shape, parameters, Device::Cpu, setup).unwrap()
}

fn with_precision(shape: &Shape, parameters: &Parameters, precision: Precision) -> Gpt2 {
    set_up(shape, parameters, &Setup { precision, ..Setup::default() })
}

/// GPT-2 as a reader of the paper would write it, for autograd: scores materialised, loss over all logits at once.
struct Twin<'a> {
    shape: &'a Shape,
    weights: HashMap<String, Tensor>,
    /// And the number in the run of the first sequence.
    dropout: Option<(Dropout, u64)>,
    lora: Option<Lora>,
}

/// Where dropout falls, by number.
const EMBEDDING: u64 = 0;
const ATTENTION_WEIGHTS: u64 = 1;
const ATTENTION_OUTPUT: u64 = 2;
const NETWORK: u64 = 3;
/// And from what adapters read: here begin those of the maps in the order of the forward pass.
const ADAPTERS: u64 = 4;

impl<'a> Twin<'a> {
    fn new(shape: &'a Shape, parameters: &Parameters) -> Self {
        let mut twin = Self { shape, weights: HashMap::new(), dropout: None, lora: None };
        twin.add(parameters);
        twin
    }

    fn add(&mut self, parameters: &Parameters) {
        let leaf = |tensor: &Tensor| tensor.to_kind(Kind::Double).detach().copy().set_requires_grad(true);
        self.weights.extend(parameters.iter().map(|entry| (entry.name.clone(), leaf(&entry.tensor))));
    }

    fn get(&self, name: &str) -> &Tensor {
        &self.weights[&format!("transformer.{name}")]
    }

    fn linear(&self, x: &Tensor, name: &str) -> Tensor {
        let y = x.matmul(self.get(&format!("{name}.weight"))) + self.get(&format!("{name}.bias"));
        let adapter = |which: &str| self.weights.get(&format!("base_model.model.transformer.{name}.{which}.weight"));
        let (Some(lora), Some(a), Some(b)) = (&self.lora, adapter("lora_A"), adapter("lora_B")) else { return y };
        let layer: usize = name.split('.').nth(1).unwrap().parse().unwrap();
        let site = LinearMap::ALL.iter().position(|map| name.ends_with(map.name())).unwrap() as u64;
        y + self.drop(x.shallow_clone(), layer, ADAPTERS + site).matmul(&a.tr()).matmul(&b.tr()) * lora.scale()
    }

    fn norm(&self, x: &Tensor, name: &str) -> Tensor {
        let (weight, bias) = (self.get(&format!("{name}.weight")), self.get(&format!("{name}.bias")));
        x.layer_norm([self.shape.width as i64], Some(weight), Some(bias), self.shape.layer_norm_epsilon, false)
    }

    /// `x [B, …, T, columns]` times a mask: one number after another, as the generator is described.
    fn drop(&self, x: Tensor, layer: usize, site: u64) -> Tensor {
        let Some((dropout, first)) = self.dropout else { return x };
        let rate = match site {
            ATTENTION_WEIGHTS => dropout.attention,
            ..ADAPTERS => dropout.residual,
            _ => dropout.adapter,
        };
        let dimensions = x.size();
        let (columns, length) = (dimensions[dimensions.len() - 1] as u64, dimensions[dimensions.len() - 2] as u64);
        let heads = if dimensions.len() == 4 { dimensions[1] as u64 } else { 1 };
        let factor = |n: u64| {
            let (column, row) = (n % columns, n / columns);
            let (position, head, sequence) = (row % length, row / length % heads, first + row / length / heads);
            let key = bits(&[dropout.seed, sequence, layer as u64, site, head, position]);
            let word = mix(key.wrapping_add(column.wrapping_mul(0x9E37_79B9_7F4A_7C15)));
            if f64::from((word >> 32) as u32) < (rate * 2.0_f64.powi(32)).floor() {
                0.0
            } else {
                f64::from((1.0 / (1.0 - rate)) as f32)
            }
        };
        let mask: Vec<f64> = (0..x.numel() as u64).map(factor).collect();
        x * Tensor::from_slice(&mask).view(dimensions.as_slice())
    }

    fn is_gpt2(&self) -> bool {
        self.shape.variant == Variant::Gpt2
    }

    /// Token and position embeddings, `[B, T, D]`.
    fn embedded(&self, inputs: &Tensor) -> Tensor {
        let (rows, length) = (inputs.size()[0], inputs.size()[1]);
        let tokens = self.get("wte.weight").index_select(0, &inputs.reshape([-1])).view([rows, length, -1]);
        if self.is_gpt2() {
            return tokens + self.get("wpe.weight").narrow(0, 0, length);
        }
        let half = self.shape.width as f64 / 2.0;
        let angle = |position: i64, n: usize| {
            let frequency = (-(10_000.0_f64).ln() / (half - 1.0) * (n as f64 % half)).exp();
            let angle = (position + 2) as f64 * frequency;
            if (n as f64) < half { angle.sin() } else { angle.cos() }
        };
        let table: Vec<f64> = (0..length).flat_map(|position| (0..self.shape.width).map(move |n| angle(position, n))).collect();
        tokens * (self.shape.width as f64).sqrt() + Tensor::from_slice(&table).view([length, -1])
    }

    fn attention(&self, x: &Tensor, layer: usize, name: &str) -> Tensor {
        let (batch, length, width) = x.size3().unwrap();
        let heads = self.shape.heads as i64;
        let split = |part: Tensor| part.view([batch, length, heads, width / heads]).transpose(1, 2);
        let mut parts = self.linear(x, &format!("{name}.c_attn")).split(width, 2).into_iter().map(split);
        let (q, k, v) = (parts.next().unwrap(), parts.next().unwrap(), parts.next().unwrap());
        let scores = q.matmul(&k.transpose(2, 3)) / ((width / heads) as f64).sqrt();
        let future = Tensor::ones([length, length], (Kind::Bool, Device::Cpu)).triu(1);
        let weights = scores.masked_fill(&future, f64::NEG_INFINITY).softmax(-1, None);
        let heads = self.drop(weights, layer, ATTENTION_WEIGHTS).matmul(&v);
        self.linear(&heads.transpose(1, 2).reshape([batch, length, width]), &format!("{name}.c_proj"))
    }

    fn logits(&self, inputs: &Tensor) -> Tensor {
        let mut x = self.drop(self.embedded(inputs), 0, EMBEDDING);
        let gelu = if self.is_gpt2() { "tanh" } else { "none" };
        for layer in 0..self.shape.layers {
            let attention = self.attention(&self.norm(&x, &format!("h.{layer}.ln_1")), layer, &format!("h.{layer}.attn"));
            x = &x + self.drop(attention, layer, ATTENTION_OUTPUT);
            let hidden = self.linear(&self.norm(&x, &format!("h.{layer}.ln_2")), &format!("h.{layer}.mlp.c_fc"));
            x = &x + self.drop(self.linear(&hidden.gelu(gelu), &format!("h.{layer}.mlp.c_proj")), layer, NETWORK);
        }
        self.norm(&x, "ln_f").matmul(&self.get("wte.weight").tr())
    }

    /// Sum over the counted targets.
    fn loss(&self, inputs: &Tensor, targets: &Tensor) -> Tensor {
        let logits = self.logits(inputs).view([-1, self.shape.vocabulary as i64]);
        logits.cross_entropy_loss::<Tensor>(&targets.reshape([-1]), None, tch::Reduction::Sum, IGNORED, 0.0)
    }
}

fn relative_error(found: &Tensor, expected: &Tensor) -> f64 {
    let [found, expected] = [found, expected].map(|tensor| tensor.to_kind(Kind::Double));
    ((found - &expected).norm() / expected.norm()).double_value(&[])
}

/// Both models over two micro-batches, so that accumulation is covered too; the worst relative error of any gradient.
fn worst_gradient(shape: &Shape, kind: Kind, rows: i64, length: i64) -> (String, f64) {
    worst_gradient_with(shape, kind, rows, length, Dropout { seed: 0, residual: 0.0, attention: 0.0, adapter: 0.0 })
}

fn worst_gradient_with(shape: &Shape, kind: Kind, rows: i64, length: i64, dropout: Dropout) -> (String, f64) {
    let worst = [Engine::Own, Engine::Libtorch].map(|engine| worst_gradient_of(engine, shape, kind, rows, length, dropout));
    worst.into_iter().max_by(|left, right| left.1.total_cmp(&right.1)).unwrap()
}

fn worst_gradient_of(engine: Engine, shape: &Shape, kind: Kind, rows: i64, length: i64, dropout: Dropout) -> (String, f64) {
    let parameters = weights(shape, kind);
    let mut twin = Twin::new(shape, &parameters.to(Device::Cpu, Kind::Double));
    let mut model = set_up(shape, &parameters, &Setup { engine, dropout, ..Setup::default() });
    let (inputs, targets) = batch(shape, rows, length);
    for part in [0, 1] {
        let (inputs, targets) = (inputs.narrow(0, part, rows - 1), targets.narrow(0, part, rows - 1));
        let first = 40 + part as u64;
        twin.dropout = (dropout.residual > 0.0 || dropout.attention > 0.0).then_some((dropout, first));
        let loss = model.accumulate(&read(&inputs, &targets).at(first), 0.25).sum;
        let expected = twin.loss(&inputs, &targets);
        assert!((loss / expected.double_value(&[]) - 1.0).abs() < 1e-6, "loss {loss}, autograd {expected:?}");
        (expected * 0.25).backward();
    }
    let errors = model
        .gradients()
        .iter()
        .map(|entry| (entry.name.clone(), relative_error(&entry.tensor, &twin.weights[&entry.name].grad())));
    errors.max_by(|left, right| left.1.total_cmp(&right.1)).unwrap()
}

#[test]
fn equals_autograd_in_double_precision() {
    let (name, error) = worst_gradient(&tiny(), Kind::Double, 3, 12);
    assert!(error < 1e-12, "{name}: relative error {error:.1e}");
}

#[test]
fn equals_autograd_in_single_precision() {
    for (width, heads, vocabulary, length) in
        [(16, 2, 37, 12), (50, 5, 90, 21), (48, 3, 1013, 33), (400, 4, 70, 17), (64, 1, 515, 64)]
    {
        let shape = Shape { layers: 3, heads, width, context: 64, vocabulary, layer_norm_epsilon: 1e-5, variant: Variant::Gpt2 };
        let (name, error) = worst_gradient(&shape, Kind::Float, 4, length);
        assert!(error < 2e-6, "{name} at width {width}: relative error {error:.1e}");
    }
}

#[test]
fn fairseqs_variant_equals_autograd() {
    let shape = Shape { variant: Variant::Fairseq, ..tiny() };
    // The sines are rounded to f32, as fairseq rounds them.
    let (name, error) = worst_gradient(&shape, Kind::Double, 3, 12);
    assert!(error < 1e-6, "{name}: relative error {error:.1e}");
    for (width, heads, vocabulary, length) in [(16, 2, 37, 12), (50, 5, 90, 21), (48, 3, 1013, 33)] {
        let shape = Shape { layers: 3, heads, width, context: 64, vocabulary, ..shape };
        let (name, error) = worst_gradient(&shape, Kind::Float, 4, length);
        assert!(error < 2e-6, "{name} at width {width}: relative error {error:.1e}");
    }
}

/// The same masks in both, drawn again in the twin from the description of the generator.
#[test]
fn dropout_equals_autograd_under_the_same_masks() {
    for (residual, attention) in [(0.1, 0.0), (0.0, 0.25), (0.2, 0.1)] {
        let dropout = Dropout { seed: 9, residual, attention, adapter: 0.0 };
        for variant in [Variant::Gpt2, Variant::Fairseq] {
            let shape = Shape { layers: 2, heads: 3, width: 48, context: 80, vocabulary: 97, layer_norm_epsilon: 1e-5, variant };
            let (name, error) = worst_gradient_with(&shape, Kind::Float, 3, 77, dropout);
            assert!(error < 3e-6, "{name}: relative error {error:.1e}");
        }
        let (name, error) = worst_gradient_with(&tiny(), Kind::Double, 3, 12, dropout);
        assert!(error < 1e-12, "{name}: relative error {error:.1e}");
    }
}

/// The mask is a function of the sequence's number in the run: two micro-batches of one sequence are one of two.
#[test]
fn dropout_does_not_depend_on_the_micro_batch() {
    let (shape, dropout) = (tiny(), Dropout { seed: 9, residual: 0.2, attention: 0.2, adapter: 0.0 });
    let parameters = weights(&shape, Kind::Double);
    let (inputs, targets) = batch(&shape, 2, 12);
    let gradients = |parts: i64| {
        let mut model = set_up(&shape, &parameters, &Setup { dropout, ..Setup::default() });
        for (part, (inputs, targets)) in inputs.chunk(parts, 0).iter().zip(targets.chunk(parts, 0)).enumerate() {
            model.accumulate(&read(inputs, &targets).at(6 + part as u64), 1.0);
        }
        model
    };
    for (whole, parts) in gradients(1).gradients().iter().zip(gradients(2).gradients()) {
        assert!(relative_error(&parts.tensor, &whole.tensor) < 1e-12, "{} differs", whole.name);
    }
}

/// Adapters whose B is no longer zero, on some maps and on all, without and with dropout; the weights get no gradients.
#[test]
fn adapters_equal_autograd() {
    let shape =
        Shape { layers: 2, heads: 3, width: 48, context: 80, vocabulary: 97, layer_norm_epsilon: 1e-5, variant: Variant::Gpt2 };
    let (inputs, targets) = batch(&shape, 3, 77);
    let maps = [vec![LinearMap::Attention], vec![LinearMap::NetworkOutput, LinearMap::AttentionOutput], LinearMap::ALL.to_vec()];
    for (target_modules, rate) in maps.into_iter().flat_map(|maps| [(maps.clone(), 0.0), (maps, 0.2)]) {
        let lora = Lora { rank: 3, alpha: 7.0, dropout: rate, target_modules };
        let mut adapters = Adapters::random(&lora, &shape, 4);
        for parameter in adapters.parameters_mut() {
            parameter.tensor += parameter.tensor.randn_like() * 0.1;
        }
        let dropout = Dropout { seed: 9, residual: 0.0, attention: 0.0, adapter: rate };
        for (engine, kind, bar) in
            [(Engine::Own, Kind::Double, 1e-12), (Engine::Own, Kind::Float, 2e-6), (Engine::Libtorch, Kind::Float, 2e-6)]
        {
            let parameters = weights(&shape, kind);
            let mut twin = Twin::new(&shape, &parameters);
            twin.add(adapters.parameters());
            (twin.lora, twin.dropout) = (Some(lora.clone()), Some((dropout, 40)));
            let setup = Setup { engine, dropout, adapters: Some(&adapters), ..Setup::default() };
            let mut model = set_up(&shape, &parameters, &setup);
            model.accumulate(&read(&inputs, &targets).at(40), 0.25);
            (twin.loss(&inputs, &targets) * 0.25).backward();
            assert_eq!(model.gradients().iter().count(), lora.tensors(&shape).len());
            for entry in model.gradients() {
                let error = relative_error(&entry.tensor, &twin.weights[&entry.name].grad());
                assert!(error < bar, "{} in {kind:?}, {lora:?}: relative error {error:.1e}", entry.name);
            }
        }
    }
}

/// More rows than one chunk of the output head, the last chunk not full, and one chunk wholly ignored.
#[test]
fn equals_autograd_across_head_chunks() {
    let shape =
        Shape { layers: 1, heads: 2, width: 8, context: 500, vocabulary: 19, layer_norm_epsilon: 1e-5, variant: Variant::Gpt2 };
    let (name, error) = worst_gradient(&shape, Kind::Double, 4, 467);
    assert!(error < 1e-11, "{name}: relative error {error:.1e}");
}

#[test]
fn equals_finite_differences() {
    let shape = tiny();
    let (inputs, targets) = batch(&shape, 2, 7);
    let parameters = weights(&shape, Kind::Double);
    let mut model = Gpt2::new(shape, &parameters, Device::Cpu);
    model.accumulate(&read(&inputs, &targets), 1.0);
    for (index, entry) in parameters.iter().enumerate() {
        let gradient = model.gradients().iter().nth(index).unwrap().tensor.copy();
        let direction = entry.tensor.randn_like();
        let loss_at = |distance: f64| {
            let mut moved = parameters.to(Device::Cpu, Kind::Float).to(Device::Cpu, Kind::Double);
            for (moved, original) in moved.iter_mut().zip(&parameters) {
                moved.tensor.copy_(&original.tensor);
            }
            moved.iter_mut().nth(index).unwrap().tensor += &direction * distance;
            Gpt2::new(shape, &moved, Device::Cpu).loss(&read(&inputs, &targets)).sum
        };
        let step = 1e-4;
        let slope = (8.0 * (loss_at(step) - loss_at(-step)) - (loss_at(2.0 * step) - loss_at(-2.0 * step))) / (12.0 * step);
        let expected = (gradient * &direction).sum(Kind::Double).double_value(&[]);
        assert!((slope - expected).abs() <= 1e-7 * expected.abs().max(1e-2), "{}: {slope} against {expected}", entry.name);
    }
}

#[test]
fn loss_and_logits_agree_with_autograd_twin() {
    let shape = tiny();
    let parameters = weights(&shape, Kind::Double);
    let (inputs, targets) = batch(&shape, 3, 12);
    let twin = Twin::new(&shape, &parameters);
    let model = Gpt2::new(shape, &parameters, Device::Cpu);
    assert!(relative_error(&model.logits(&inputs), &twin.logits(&inputs)) < 1e-12);
    let loss = model.loss(&read(&inputs, &targets));
    assert_eq!(loss.weight as i64, 3 * 12 - 2);
    assert!((loss.sum - twin.loss(&inputs, &targets).double_value(&[])).abs() < 1e-9);
}

#[test]
fn gradients_are_the_same_bits_with_any_number_of_threads() {
    let shape =
        Shape { layers: 2, heads: 4, width: 64, context: 96, vocabulary: 1301, layer_norm_epsilon: 1e-5, variant: Variant::Gpt2 };
    let parameters = weights(&shape, Kind::Float);
    let (inputs, targets) = batch(&shape, 6, 96);
    let run = |threads| {
        tch::set_num_threads(threads);
        let mut model = Gpt2::new(shape, &parameters, Device::Cpu);
        model.accumulate(&read(&inputs, &targets), 0.5);
        model
    };
    let first = run(1);
    for threads in [1, 2, 3] {
        for (left, right) in first.gradients().iter().zip(run(threads).gradients()) {
            assert!(left.tensor.equal(&right.tensor), "{} differs with {threads} threads", left.name);
        }
    }
}

/// Against float64: rounding to 8 bits, once per product, and nothing worse. More tokens than attention takes at once.
#[test]
fn bf16_is_close_and_the_weights_stay_fp32() {
    let shape =
        Shape { layers: 2, heads: 4, width: 64, context: 96, vocabulary: 301, layer_norm_epsilon: 1e-5, variant: Variant::Gpt2 };
    let parameters = weights(&shape, Kind::Float);
    let (inputs, targets) = batch(&shape, 3, 96);
    let gradients = |parameters: &Parameters, precision| {
        let mut model = with_precision(&shape, parameters, precision);
        model.accumulate(&read(&inputs, &targets), 1.0);
        model
    };
    let exact = gradients(&parameters.to(Device::Cpu, Kind::Double), Precision::Fp32);
    let rounded = gradients(&parameters, Precision::Bf16);
    for (entry, expected) in rounded.gradients().iter().zip(exact.gradients()) {
        let error = relative_error(&entry.tensor, &expected.tensor);
        assert!((1e-5..3e-2).contains(&error), "{}: relative error {error:.1e}", entry.name);
        assert_eq!(entry.tensor.kind(), Kind::Float);
    }
    assert!(rounded.parameters().iter().zip(&parameters).all(|(kept, given)| kept.tensor.equal(&given.tensor)));
}

/// With libtorch's kernels, as on a GPU: what is computed again, and where gradients and masters lie, changes no bit, also of a sum
/// over micro-batches and after an update.
#[test]
fn recomputation_and_masters_in_main_memory_change_no_bit() {
    let shape = Shape { layers: 3, heads: 4, width: 64, context: 64, vocabulary: 301, ..tiny() };
    let parameters = weights(&shape, Kind::Float);
    let (inputs, targets) = batch(&shape, 4, 64);
    let trained = |precision, recompute, away| {
        let weights = parameters.to(Device::Cpu, Kind::Double).to(Device::Cpu, Kind::Float);
        let setup = Setup { engine: Engine::Libtorch, precision, away, recompute, rows: 3 * 64, ..Setup::default() };
        let mut model = set_up(&shape, &weights, &setup);
        for _ in 0..2 {
            model.zero_gradients();
            for (inputs, targets) in inputs.chunk(2, 0).iter().zip(targets.chunk(2, 0)) {
                model.accumulate(&read(inputs, &targets), 0.01);
            }
            model.update(|weights, gradients, changed| {
                for (index, (weight, gradient)) in weights.iter_mut().zip(gradients).enumerate() {
                    weight.tensor -= &gradient.tensor * 0.1;
                    changed(index, &weight.tensor);
                }
            });
        }
        model
    };
    for precision in [Precision::Fp32, Precision::Bf16, Precision::Fp16] {
        let plain = trained(precision, Recompute::None, Offload::None);
        let ways = [
            (Recompute::Selective, Offload::None),
            (Recompute::Full, Offload::None),
            (Recompute::None, Offload::Optimizer),
            (Recompute::Full, Offload::Optimizer),
            (Recompute::Host, Offload::Optimizer),
            (Recompute::None, Offload::Model),
            (Recompute::Host, Offload::Model),
        ];
        for (recompute, away) in ways {
            let other = trained(precision, recompute, away);
            let pairs = plain.gradients().iter().zip(other.gradients()).chain(plain.parameters().iter().zip(other.parameters()));
            for (expected, found) in pairs {
                assert!(expected.tensor.equal(&found.tensor), "{precision:?} {recompute:?} {away:?}: {} differs", expected.name);
            }
            let batch = read(&inputs, &targets);
            assert_eq!(plain.loss(&batch), other.loss(&batch));
        }
    }
}

/// An optimizer's change reaches the rounded copies that products are made with.
#[test]
fn bf16_follows_its_weights() {
    let shape = tiny();
    let parameters = weights(&shape, Kind::Float);
    let (inputs, targets) = batch(&shape, 3, 12);
    let larger = |weights: &mut Parameters| weights.iter_mut().for_each(|entry| entry.tensor = &entry.tensor * 1.5);
    let mut model = with_precision(&shape, &parameters, Precision::Bf16);
    model.update(|weights, _, changed| {
        larger(weights);
        weights.iter().enumerate().for_each(|(index, entry)| changed(index, &entry.tensor));
    });
    let mut changed = parameters;
    larger(&mut changed);
    let batch = read(&inputs, &targets);
    assert_eq!(model.loss(&batch), with_precision(&shape, &changed, Precision::Bf16).loss(&batch));
}

/// The cache, in pieces of any size and under left padding, against one pass over each row alone.
#[test]
fn cached_logits_equal_a_full_pass() {
    let shape = tiny();
    let model = Gpt2::new(shape, &weights(&shape, Kind::Double), Device::Cpu);
    let (tokens, _) = batch(&shape, 3, 11);
    let padding = [0_usize, 4, 1];
    let mut cache = model.cache(3, 11).unwrap();
    let mut seen = 0;
    for new in [5, 1, 1, 3, 1] {
        let logits = model.next_logits(&tokens.narrow(1, seen, new), &mut cache, &padding).unwrap();
        seen += new;
        for (row, padding) in padding.iter().enumerate() {
            let alone = tokens.narrow(0, row as i64, 1).narrow(1, *padding as i64, seen - *padding as i64);
            let expected = model.logits(&alone).select(1, -1);
            let error = relative_error(&logits.narrow(0, row as i64, 1), &expected);
            assert!(error < 1e-12, "row {row} after {seen} tokens: {error:.1e}");
        }
    }
    assert!(model.next_logits(&tokens.narrow(1, 0, 1), &mut cache, &padding).is_err(), "the cache is full");
    assert!(model.cache(1, shape.context + 1).is_err());
}

/// With attention inside documents, two documents in one sequence are two sequences, in every kernel.
#[test]
fn documents_of_one_sequence_are_sequences_of_their_own() {
    for (kind, tolerance) in [(Kind::Float, 2e-6), (Kind::Double, 1e-12)] {
        for variant in [Variant::Gpt2, Variant::Fairseq] {
            let shape = Shape { variant, context: 200, ..tiny() };
            let parameters = weights(&shape, kind);
            let (mut inputs, targets) = batch(&shape, 2, 160);
            let begins = 36;
            let _ = inputs.masked_fill_(&inputs.eq(begins), 0);
            let _ = inputs.narrow(1, 80, 1).fill_(begins);
            let setup = Setup { begins_document: Some(begins as u32), ..Setup::default() };
            let mut packed = set_up(&shape, &parameters, &setup);
            let mut apart = Gpt2::new(shape, &parameters, Device::Cpu);
            let loss = packed.accumulate(&read(&inputs, &targets), 0.1).sum;
            let expected = apart.accumulate(&read(&inputs.reshape([4, 80]), &targets.reshape([4, 80])), 0.1).sum;
            assert!((loss / expected - 1.0).abs() < tolerance, "{kind:?} {variant:?}: loss {loss}, not {expected}");
            assert!((packed.loss(&read(&inputs, &targets)).sum / expected - 1.0).abs() < tolerance);
            for (found, expected) in packed.gradients().iter().zip(apart.gradients()) {
                let error = (&found.tensor - &expected.tensor).norm().double_value(&[]) / expected.tensor.norm().double_value(&[]);
                assert!(error < tolerance * 10.0, "{kind:?} {variant:?}: gradient of {}: {error:e}", found.name);
            }
        }
    }
}
