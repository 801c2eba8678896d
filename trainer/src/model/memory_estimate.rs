//! The main memory that a training process needs, told before any of it is allocated.

use super::HEAD_CHUNK;
use super::role::TensorSpec;
use super::shape::Shape;
use crate::settings::lora::LinearMap;
use crate::settings::{Engine, Offload, OptimizerKind, Precision, Recompute, TrainSettings};
use crate::shares::{BUFFERS, Shares};
use crate::tree;

const MIB: u64 = 1 << 20;
/// Bytes of one `f32`.
const F32: u64 = 4;
/// Bytes that libtorch and the program itself hold in main memory, with copies of parts of the factors during products. Measured.
const PROGRAM: u64 = 68 * MIB;
/// The same where numbers of 16 bits are multiplied, too.
const HALF: u64 = 6 * MIB;
/// The blocks in which two files of a checkpoint leave for the disk (`files/direct.rs`).
const CHECKPOINT: u64 = 8 * MIB;
/// Share of a step's temporary memory that lies unused in gaps. Measured.
const UNUSED: f64 = 0.01;

/// Where the memory of a training process goes at its peak, in bytes, without pages of files that the operating system may take
/// back: libtorch's code, the dataset. Within 5 % or 20 MiB of what was measured with AdamW, for processes of 250 MiB and more that
/// start afresh.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrainingMemory {
    /// `f32`, and in bf16 a rounded copy.
    pub weights: u64,
    pub gradients: u64,
    /// Bytes of the optimizer's state.
    pub optimizer: u64,
    /// Bytes that the forward pass keeps on the device for the backward pass.
    pub activations: u64,
    /// Further bytes while the output head, or one block's backward pass, is computed, the larger of the two; the latter with
    /// everything that is computed again for it.
    pub working: u64,
    /// The program, copies of matrices during products, what is exchanged with other processes, and unused gaps.
    pub program: u64,
}

impl TrainingMemory {
    pub fn estimate(shape: &Shape, settings: &TrainSettings) -> Self {
        let rows = (settings.micro_batch.sequences() * settings.block_size) as u64;
        let block = Block::new(shape, rows, settings.precision);
        let layers = shape.layers as u64;
        let kept = block.kept(settings.recompute);
        let again = block.all() - kept;
        // The stream that it reads, normalised too, and the gradient of that.
        let head = block.stream + 2 * block.width + head(shape, rows, settings);
        let rounded = if settings.precision == Precision::Fp32 { 0 } else { bytes(settings.precision) };
        // As a GPU has it: weights for products beside the masters, the moments in memory, and the embedding's gradient on its way
        // between the two.
        let apart = settings.engine == Engine::Libtorch && settings.offload != Offload::None;
        let model_in_files = settings.offload == Offload::Model && !apart;
        let (copies, on_its_way) = if apart {
            (weights_on_device(shape, settings) + streamed_from(shape, settings), (F32 + rounded) * largest(shape))
        } else {
            (rounded * shape.parameters(), 0)
        };
        let working = head.max(again + block.backward(settings)) + on_its_way;
        // Of what lies in files only the largest tensor is in memory, all of it when the embedding is updated.
        let resident = |in_files: bool, bytes: u64, whole: u64| if in_files { bytes * largest(shape) } else { whole };
        let trained = Trained::new(shape, settings);
        let of_leaves = Self::waiting_sums(settings, 1) * F32 * trained.numbers();
        let (in_files, remembered) = (settings.offload != Offload::None && !apart, trained.remembered(settings.optimizer));
        let mut memory = Self {
            weights: resident(model_in_files, F32, F32 * shape.parameters() + copies) + trained.beside_weights(),
            gradients: resident(model_in_files, F32, F32 * trained.numbers()).min(F32 * trained.numbers()) + of_leaves,
            optimizer: resident(in_files, 2 * F32, remembered).min(remembered),
            activations: layers * kept,
            working,
            program: if settings.precision == Precision::Fp32 { PROGRAM } else { PROGRAM + HALF },
        };
        memory.program += copies_for_products(shape, rows, settings);
        memory.program += CHECKPOINT + of_threads(shape, settings) + ((memory.activations + memory.working) as f64 * UNUSED) as u64;
        memory
    }

    pub fn total(&self) -> u64 {
        self.weights + self.gradients + self.optimizer + self.activations + self.working + self.program
    }

    /// The estimate for the memory that decides how many sequences go through the model at once, the GPU's or main memory: that of
    /// the one of so many processes which has most.
    pub fn of(shape: &Shape, settings: &TrainSettings, processes: usize, is_gpu: bool) -> Self {
        let one_leaf = TrainSettings { leaves: None, ..settings.clone() };
        let whole = if is_gpu { Self::on_device(shape, &one_leaf) } else { Self::estimate(shape, &one_leaf) };
        let shared = Trained::new(shape, settings);
        let of_leaves = Self::waiting_sums(settings, processes) * F32 * shared.numbers();
        let buffers = if processes > 1 { BUFFERS } else { 0 };
        let whole = Self { gradients: whole.gradients + of_leaves, program: whole.program + buffers, ..whole };
        if settings.zero_among(processes) == 0 {
            return whole;
        }
        let optimizer = whole.optimizer.min(shared.remembered_of_share(settings.optimizer, processes));
        let gradients = if settings.sheds_gradients(processes) {
            F32 * (shared.numbers() - in_blocks(shape) + in_blocks(shape) / shape.layers as u64 * shape.layers.min(2) as u64)
                + shared.most(settings.optimizer, processes, |_, part| F32 * part)
        } else {
            whole.gradients
        };
        Self { gradients, optimizer, ..whole }
    }

    /// Gradients beside those of the leaf that is computed: sums that wait for the next to join, in the one of so many processes
    /// that has most of them.
    pub fn waiting_sums(settings: &TrainSettings, processes: usize) -> u64 {
        let (leaves, processes) = (settings.leaves(), processes.max(1));
        let of_rank = |rank| tree::waiting(leaves * rank / processes..leaves * (rank + 1) / processes);
        (0..processes).map(of_rank).max().unwrap_or(0) as u64
    }

    /// [`TrainingMemory::estimate`] for the memory of a GPU. Added up from the tensors that `model/gpt2/mod.rs` and
    /// `model/gpt2/block.rs` make; it has not been compared with a GPU yet. CUDA itself takes some hundred MiB besides.
    pub fn on_device(shape: &Shape, settings: &TrainSettings) -> Self {
        let (rows, parameters) = ((settings.micro_batch.sequences() * settings.block_size) as u64, shape.parameters());
        let trained = Trained::new(shape, settings);
        let block = Block::new(shape, rows, settings.precision);
        let copy = if settings.precision == Precision::Fp32 { 0 } else { bytes(settings.precision) };
        let (weights, gradients, remembered) = if settings.offload == Offload::None {
            let weights = (F32 + copy) * parameters + trained.beside_weights();
            (weights, F32 * trained.numbers(), trained.remembered(settings.optimizer))
        } else {
            // One block's are on their way to main memory while the next's are computed.
            let of_two_blocks = bytes(settings.precision) * 2 * 12 * (shape.width * shape.width) as u64;
            (weights_on_device(shape, settings), F32 * largest(shape) + of_two_blocks, 0)
        };
        let kept = block.kept(settings.recompute);
        // Logits, and in `f32` their softmax, which turns into the gradient; in half precision that too.
        let logits = (bytes(settings.precision) + F32 + copy) * rows.min(HEAD_CHUNK as u64) * shape.vocabulary as u64;
        let again = block.all() - kept;
        let working = (again + block.backward(settings)).max(block.stream + 2 * block.width + logits);
        let gradients = gradients + Self::waiting_sums(settings, 1) * F32 * trained.numbers();
        Self { weights, gradients, optimizer: remembered, activations: shape.layers as u64 * kept, working, program: 0 }
    }

    /// Bytes of main memory that tensors of one of so many processes take while a GPU computes: masters, weights that are streamed,
    /// gradients and moments, and inputs of blocks, where they are not on it. The rest of each tensor's last page, and one block's
    /// products on their way, come on top.
    pub fn beside_device(shape: &Shape, settings: &TrainSettings, processes: usize) -> u64 {
        let remembered = || {
            let trained = Trained::new(shape, settings);
            if settings.zero_among(processes) == 0 {
                return trained.remembered(settings.optimizer);
            }
            trained.remembered_of_share(settings.optimizer, processes)
        };
        let model = if settings.offload == Offload::None {
            0
        } else {
            2 * F32 * shape.parameters() + streamed_from(shape, settings) + remembered()
        };
        let numbers = (shape.layers * shape.width * settings.micro_batch.sequences() * settings.block_size) as u64;
        if settings.recompute == Recompute::Host { model + F32 * numbers } else { model }
    }

    /// Each part with its name, and the total.
    pub fn parts(&self) -> [(&'static str, u64); 7] {
        [
            ("weights", self.weights),
            ("gradients", self.gradients),
            ("optimizer", self.optimizer),
            ("activations", self.activations),
            ("working", self.working),
            ("program", self.program),
            ("total", self.total()),
        ]
    }
}

/// Bytes of one block's activations, as `model/gpt2/block.rs` names them.
struct Block {
    /// One width of all rows in `f32`.
    stream: u64,
    /// One width of all rows in the dtype of the products.
    width: u64,
    log_sum_exp: u64,
}

impl Block {
    fn new(shape: &Shape, rows: u64, precision: Precision) -> Self {
        let elements = rows * shape.width as u64;
        Self { stream: F32 * elements, width: bytes(precision) * elements, log_sum_exp: F32 * rows * shape.heads as u64 }
    }

    /// The stream at two places; both norms, queries, keys and values, attention's output, and the hidden layer twice.
    fn all(&self) -> u64 {
        2 * self.stream + (2 + 3 + 1 + 8) * self.width + self.log_sum_exp
    }

    /// The stream, queries, keys and values, attention's output, and the hidden layer.
    fn products(&self) -> u64 {
        2 * self.stream + (3 + 1 + 4) * self.width + self.log_sum_exp
    }

    fn kept(&self, recompute: Recompute) -> u64 {
        match recompute {
            Recompute::None => self.all(),
            Recompute::Selective => self.products(),
            Recompute::Full => self.stream,
            Recompute::Host => 0,
        }
    }

    /// Gradients of the stream and of the hidden layer, that of the block's output where it is not the stream's itself, and what of
    /// the hidden layer is not dropped on its way through an adapter, with its gradient.
    fn backward(&self, settings: &TrainSettings) -> u64 {
        let is_apart = settings.precision != Precision::Fp32 || settings.dropout > 0.0 || settings.attention_dropout > 0.0;
        let adapter = settings.lora.as_ref().filter(|lora| lora.target_modules.contains(&LinearMap::NetworkOutput));
        let is_dropped = adapter.is_some_and(|lora| lora.dropout > 0.0);
        self.stream + (4 + u64::from(is_apart) + 8 * u64::from(is_dropped)) * self.width
    }
}

fn bytes(precision: Precision) -> u64 {
    match precision {
        Precision::Fp32 => F32,
        Precision::Bf16 | Precision::Fp16 => 2,
    }
}

/// One chunk of logits. Products that are not this crate's make it twice, in half precision parts of the embedding's gradient
/// besides, and oneDNN copies of both factors; by how much then was not measured.
fn head(shape: &Shape, rows: u64, settings: &TrainSettings) -> u64 {
    let logits = rows.min(HEAD_CHUNK as u64) * shape.vocabulary as u64;
    let bytes = bytes(settings.precision);
    if settings.engine == Engine::Own && products_are_own(settings.precision) {
        return bytes * logits;
    }
    if settings.precision == Precision::Fp32 {
        return 2 * bytes * logits;
    }
    2 * bytes * (logits + (shape.vocabulary * shape.width) as u64)
}

fn products_are_own(precision: Precision) -> bool {
    #[cfg(feature = "torch")]
    return super::layers::linear::is_multiplied(precision.kind());
    // An estimate is for a machine of which nothing is known.
    #[cfg(not(feature = "torch"))]
    return precision != Precision::Fp16;
}

/// Bytes of the copies in `f32` by which libtorch multiplies numbers of bf16 on some processors: of the hidden layer two, of its
/// matrix four. Measured with 512 to 3,072 rows and widths of 256 and 512, on an Intel Xeon with AVX-512 and VNNI.
fn copies_for_products(shape: &Shape, rows: u64, settings: &TrainSettings) -> u64 {
    let hidden = 4 * shape.width as u64;
    let is_copied = settings.engine == Engine::Libtorch && settings.precision == Precision::Bf16 && products_are_copied();
    if is_copied { F32 * hidden * (2 * rows + 4 * shape.width as u64) } else { 0 }
}

fn products_are_copied() -> bool {
    #[cfg(feature = "torch")]
    return crate::cpu::engine::copies_bf16();
    // An estimate is for a machine of which nothing is known.
    #[cfg(not(feature = "torch"))]
    return false;
}

/// Bytes of each thread while it computes the gradients of a head, as `layers/attention.rs` makes them.
fn of_threads(shape: &Shape, settings: &TrainSettings) -> u64 {
    let threads = settings.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let (length, channels) = (settings.block_size as u64, (shape.width / shape.heads) as u64);
    threads as u64 * F32 * length * (8 * channels + 128)
}

/// Bytes of the weights for products on a device that has no masters: all, or what is no block's and two blocks'.
fn weights_on_device(shape: &Shape, settings: &TrainSettings) -> u64 {
    let blocks = if settings.offload == Offload::Model { 2 } else { shape.layers };
    bytes(settings.precision) * (shape.parameters() - in_blocks(shape) + in_blocks(shape) / shape.layers as u64 * blocks as u64)
}

/// Bytes of the rounded weights in main memory that come to a device block by block. Where nothing is rounded the masters come.
fn streamed_from(shape: &Shape, settings: &TrainSettings) -> u64 {
    let are_rounded = settings.precision != Precision::Fp32 && settings.offload == Offload::Model;
    if are_rounded { bytes(settings.precision) * in_blocks(shape) } else { 0 }
}

/// Numbers in the tensors of all blocks.
fn in_blocks(shape: &Shape) -> u64 {
    shape.tensors().iter().filter(|tensor| tensor.role.is_in_block()).map(TensorSpec::numbers).sum()
}

/// Numbers in the largest tensor.
fn largest(shape: &Shape) -> u64 {
    shape.tensors().iter().map(TensorSpec::numbers).max().unwrap_or(0)
}

/// A tensor that the optimizer changes: its name and dimensions.
struct Trained {
    tensors: Vec<TensorSpec>,
    are_adapters: bool,
}

impl Trained {
    fn new(shape: &Shape, settings: &TrainSettings) -> Self {
        Self { tensors: shape.trained(settings.lora.as_deref()), are_adapters: settings.lora.is_some() }
    }

    fn numbers(&self) -> u64 {
        self.tensors.iter().map(TensorSpec::numbers).sum()
    }

    /// Bytes of those that are not weights of the model.
    fn beside_weights(&self) -> u64 {
        if self.are_adapters { F32 * self.numbers() } else { 0 }
    }

    /// Bytes that the optimizer remembers.
    fn remembered(&self, kind: OptimizerKind) -> u64 {
        self.tensors.iter().map(|tensor| remembered(kind, tensor, tensor.numbers())).sum()
    }

    /// The same of one of so many processes, the one which has most.
    fn remembered_of_share(&self, kind: OptimizerKind, processes: usize) -> u64 {
        self.most(kind, processes, |tensor, part| remembered(kind, tensor, part))
    }

    /// The most that one of so many processes has of what `of` says of its parts.
    fn most(&self, kind: OptimizerKind, processes: usize, of: impl Fn(&TensorSpec, u64) -> u64) -> u64 {
        let shares = Shares::new(processes, &self.tensors, kind);
        let of = |rank| shares.parts(rank).zip(&self.tensors).map(|(part, tensor)| of(tensor, part.len() as u64)).sum();
        (0..processes).map(of).max().unwrap_or(0)
    }
}

/// Bytes that the optimizer remembers of a part of a tensor, which is all or nothing where it looks at whole ones.
fn remembered(kind: OptimizerKind, tensor: &TensorSpec, part: u64) -> u64 {
    F32 * match kind {
        _ if part == 0 => 0,
        OptimizerKind::Muon if tensor.role.is_matrix() => part,
        OptimizerKind::Muon | OptimizerKind::Adamw => 2 * part,
        OptimizerKind::Adafactor => tensor.dimensions.iter().sum::<usize>() as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::shape::{MOST, MOST_LAYERS, MOST_TOKENS};
    use crate::settings::Variant;
    use crate::settings::micro_batch::MicroBatch;

    fn small() -> Shape {
        Shape {
            layers: 12,
            heads: 12,
            width: 768,
            context: 1024,
            vocabulary: 50_257,
            layer_norm_epsilon: 1e-5,
            variant: Variant::Gpt2,
        }
    }

    fn with(change: impl FnOnce(&mut TrainSettings)) -> TrainingMemory {
        let mut settings = TrainSettings { block_size: 256, micro_batch: MicroBatch::Sequences(8), ..TrainSettings::default() };
        change(&mut settings);
        TrainingMemory::estimate(&small(), &settings)
    }

    #[test]
    fn leaves_that_wait_have_gradients_of_their_own() {
        let of = |leaves| with(|settings| (settings.gradient_accumulation, settings.leaves) = (24, Some(leaves))).gradients;
        let waiting = [1, 2, 3, 4, 6, 8].map(|leaves| of(leaves) / (4 * small().parameters()) - 1);
        assert_eq!(waiting, [0, 1, 1, 2, 2, 3]);
        let shared = |processes| {
            let settings = TrainSettings { leaves: Some(12), gradient_accumulation: 12, ..TrainSettings::default() };
            let gradients = |processes| TrainingMemory::of(&small(), &settings, processes, false).gradients;
            (gradients(processes) - gradients(12)) / (4 * small().parameters())
        };
        // A process of four has leaves that join with those of others.
        assert_eq!([12, 6, 4, 3, 1].map(shared), [0, 1, 2, 2, 3]);
    }

    /// Eight processes have one micro-batch each. Under ZeRO-2 they have the gradients of two blocks at a time.
    #[test]
    fn each_of_several_has_a_share() {
        let of = |zero| {
            let (leaves, micro_batch) = (Some(8), MicroBatch::Sequences(1));
            let settings = TrainSettings { zero, leaves, micro_batch, gradient_accumulation: 8, ..TrainSettings::default() };
            TrainingMemory::of(&small(), &settings, 8, false)
        };
        let (whole, share) = (4 * small().parameters(), 4 * small().parameters() / 8);
        let near = |bytes: u64, expected: u64| assert!(bytes.abs_diff(expected) < expected / 20, "{bytes}, not {expected}");
        assert_eq!((of(0).optimizer, of(0).gradients, of(1).gradients), (2 * whole, whole, whole));
        near(of(1).optimizer, 2 * share);
        near(of(2).gradients, share + 4 * (51_281 * 768 + 2 * 12 * 768 * 768 + 28 * 768));
        assert_eq!(of(2).optimizer, of(1).optimizer);
    }

    #[test]
    fn processes_exchange_through_buffers() {
        let of = |processes, is_gpu| TrainingMemory::of(&small(), &TrainSettings::default(), processes, is_gpu).total();
        assert_eq!([false, true].map(|is_gpu| of(2, is_gpu) - of(1, is_gpu)), [64 * MIB; 2]);
    }

    #[test]
    fn adamw_in_fp32_takes_sixteen_bytes_a_weight() {
        let memory = with(|_| ());
        assert_eq!(memory.weights + memory.gradients + memory.optimizer, 16 * small().parameters());
        assert_eq!(memory.activations, 12 * 2048 * 4 * (16 * 768 + 12));
        assert_eq!(memory.parts()[6].1, memory.parts()[..6].iter().map(|(_, bytes)| bytes).sum::<u64>());
    }

    #[test]
    fn adapters_alone_have_gradients_and_moments() {
        let memory = with(|settings| settings.lora = Some(Box::default()));
        let adapters = 12 * 8 * (768 + 3 * 768);
        assert_eq!((memory.weights, memory.gradients), (4 * (small().parameters() + adapters), 4 * adapters));
        assert_eq!(memory.optimizer, 8 * adapters);
    }

    #[test]
    fn what_lies_in_files_takes_its_largest_tensor() {
        let largest = 4 * 50_257 * 768;
        let optimizer = with(|settings| settings.offload = Offload::Optimizer);
        assert_eq!((optimizer.weights, optimizer.optimizer), (4 * small().parameters(), 2 * largest));
        let model = with(|settings| settings.offload = Offload::Model);
        assert_eq!((model.weights, model.gradients, model.optimizer), (largest, largest, 2 * largest));
        assert_eq!(model.activations, with(|_| ()).activations);
    }

    /// GPT-2 XL in fp16, blocks of 1,024 and four at a time: the masters, gradients and moments of 16 bytes a weight are not on the
    /// GPU.
    #[test]
    fn a_gpu_holds_rounded_weights_and_two_blocks_gradients() {
        let shape = Shape { layers: 48, heads: 25, width: 1600, ..small() };
        let settings = TrainSettings {
            micro_batch: MicroBatch::Sequences(4),
            precision: Precision::Fp16,
            recompute: Recompute::Full,
            offload: Offload::Optimizer,
            ..TrainSettings::default()
        };
        let device = TrainingMemory::on_device(&shape, &settings);
        assert_eq!(device.weights, 2 * shape.parameters());
        assert!((4_900_000_000..5_600_000_000).contains(&device.total()), "{device:?}");
        assert_eq!(TrainingMemory::beside_device(&shape, &settings, 1), 16 * shape.parameters());
        let away = TrainSettings { recompute: Recompute::Host, ..settings.clone() };
        let inputs = 48 * 4 * 1024 * 1600 * 4;
        assert_eq!(TrainingMemory::beside_device(&shape, &away, 1), 16 * shape.parameters() + inputs);
        assert_eq!(TrainingMemory::on_device(&shape, &away).activations, 0);
        let streamed = TrainSettings { offload: Offload::Model, ..away };
        let (device, in_blocks) = (TrainingMemory::on_device(&shape, &streamed), 48 * (12 * 1600 * 1600 + 13 * 1600));
        assert_eq!(device.weights, 2 * (shape.parameters() - in_blocks + in_blocks / 24));
        assert!(device.total() < 2_000_000_000, "{device:?}");
        assert_eq!(TrainingMemory::beside_device(&shape, &streamed, 1), 16 * shape.parameters() + 2 * in_blocks + inputs);
        let whole = TrainingMemory::on_device(&shape, &TrainSettings { offload: Offload::None, ..settings });
        assert_eq!(whole.weights + whole.gradients + whole.optimizer, 18 * shape.parameters());
    }

    /// The largest that a job file or a model's own file may say: what each part needs, and all of them, is a number.
    #[test]
    fn the_largest_model_can_be_counted() {
        let shape = Shape { layers: MOST_LAYERS, heads: MOST, width: MOST, context: MOST, vocabulary: MOST_TOKENS, ..small() };
        let settings = TrainSettings { block_size: MOST, micro_batch: MicroBatch::Sequences(16), ..TrainSettings::default() };
        for precision in [Precision::Fp32, Precision::Bf16, Precision::Fp16] {
            let settings = TrainSettings { precision, lora: Some(Box::default()), ..settings.clone() };
            assert!(TrainingMemory::estimate(&shape, &settings).total() > 1 << 60);
            assert!(TrainingMemory::on_device(&shape, &settings).total() > 1 << 60);
        }
    }

    #[test]
    fn recomputation_keeps_fewer_widths() {
        let widths = [Recompute::None, Recompute::Selective, Recompute::Full, Recompute::Host]
            .map(|recompute| with(|settings| settings.recompute = recompute).activations / (12 * 2048 * 768 * 4));
        assert_eq!(widths, [16, 10, 1, 0]);
    }

    #[test]
    fn optimizers_that_remember_less_need_less() {
        let of = |kind| with(|settings| settings.optimizer = kind).optimizer;
        assert!(of(OptimizerKind::Adafactor) < of(OptimizerKind::Muon) / 100 && of(OptimizerKind::Muon) < of(OptimizerKind::Adamw));
    }
}
