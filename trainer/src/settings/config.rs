//! The trainer's configuration: what one training run is, as data.
//!
//! The same types are the `[model]`, `[train]` and `[sample]` tables of a job file, so that a setting is documented,
//! checked and completed in one place. Every type refuses unknown keys. The file is long because each key says what it means.

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::length::Length;
use super::lora::Lora;
use super::micro_batch::MicroBatch;
use crate::data::tokenizer::Tokenizer;

/// Everything `ft-trainer train` needs. Relative paths are relative to the process's working directory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainConfig {
    /// A prepared dataset: `dataset.json`, token shards and the tokenizer's files.
    pub data: PathBuf,
    /// Where checkpoints, the step log and the progress lines go. A run found there is resumed.
    pub output: PathBuf,
    /// A Hugging Face directory to start from; absent: random initial weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initial_weights: Option<PathBuf>,
    /// No more sequences at once than this, whatever `train.micro_batch` says; a step stays what it is. For a run that ran out of
    /// memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub micro_batch_limit: Option<usize>,
    #[serde(default)]
    pub model: ModelConfig,
    #[serde(default)]
    pub train: TrainSettings,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sample: Option<SampleConfig>,
}

/// The published GPT-2 sizes (Radford et al. 2019, table 2; the released parameter counts).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Preset {
    /// 12 layers, 12 heads, width 768: 124,439,808 parameters.
    #[serde(rename = "gpt2")]
    Gpt2,
    /// 24 layers, 16 heads, width 1024: 354,823,168 parameters.
    #[serde(rename = "gpt2-medium")]
    Gpt2Medium,
    /// 36 layers, 20 heads, width 1280: 774,030,080 parameters.
    #[serde(rename = "gpt2-large")]
    Gpt2Large,
    /// 48 layers, 25 heads, width 1600: 1,557,611,200 parameters.
    #[serde(rename = "gpt2-xl")]
    Gpt2Xl,
}

/// Which transformer of GPT-2's kind the model is. They have the same blocks: a layer norm before each half, attention, and a
/// network of four times the width.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Variant {
    /// The published model: learnt positions, GELU in its tanh form, initial weights N(0, 0.02²).
    #[default]
    Gpt2,
    /// fairseq's `transformer_lm_gpt`: sinusoidal positions, embeddings times √width, GELU by the error function, fairseq's initial
    /// weights. Its files are those of transformers' XGLM, which is this model.
    Fairseq,
}

/// The shape of the model. A preset gives the numbers; single numbers override it. When the run starts from existing weights,
/// their `config.json` gives the shape, and a number that contradicts it is refused.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ModelConfig {
    /// A published size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preset: Option<Preset>,
    /// Which transformer of GPT-2's kind; absent: GPT-2 as published.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub variant: Option<Variant>,
    /// Number of transformer blocks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layers: Option<usize>,
    /// Attention heads per block; divides the width.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heads: Option<usize>,
    /// Width of the residual stream (`n_embd`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub width: Option<usize>,
    /// Number of positions the model knows (`n_positions`); at least `train.block_size`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<usize>,
}

/// How the learning rate moves between warm-up and the last step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Schedule {
    /// Stays at the peak.
    Constant,
    /// Falls linearly to `min_learning_rate`.
    Linear,
    /// Falls along half a cosine to `min_learning_rate`.
    #[default]
    Cosine,
    /// Falls as `(1 − progress)^power` to `min_learning_rate`.
    Polynomial,
    /// Warm-up, stable, decay: the peak until `decay_steps` before the end, then linear to `min_learning_rate`.
    Wsd,
    /// DeepSpeed's WarmupLR: the warm-up rises with the logarithm of the step, then the peak to the end. The first two updates have
    /// the learning rate that the warm-up begins with.
    WarmupLr,
    /// The same with `warmup_type="linear"`.
    WarmupLrLinear,
}

/// How gradients become new weights.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OptimizerKind {
    /// Two moments per weight (Loshchilov & Hutter 2019), as `torch.optim.AdamW`.
    #[default]
    Adamw,
    /// Next to no memory (Shazeer & Stern 2018), as `transformers`' Adafactor under a schedule.
    Adafactor,
    /// Muon (Jordan et al. 2024) for the matrices inside the blocks, AdamW for the rest; as `torch.optim.Muon` with updates of the
    /// size of AdamW's, so that AdamW's learning rate and weight decay fit. On a CPU with AVX-512 and without bf16 the
    /// last digits depend on the number of threads.
    Muon,
}

/// Which weights decay.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum WeightDecayOn {
    /// Matrices and embeddings; biases and layer norms are left alone.
    #[default]
    Matrices,
    /// Everything.
    All,
}

/// Response to a loss or a gradient that is infinite or not a number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum NonFinite {
    /// The run ends and says so.
    #[default]
    Stop,
    /// The step changes no weight; the run ends after 20 of them in a row.
    Skip,
}

/// A program whose quirks are kept, to compare runs with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Compat {
    /// `run_language_modeling.py` of May 2020: AdamW's epsilon is added before the bias correction, and weight decay spares only
    /// what is called `bias`, so that GPT-2's layer norms decay.
    #[serde(rename = "transformers-2020")]
    Transformers2020,
    /// fairseq's Adam: epsilon is added before the bias correction. The log has losses in base 2, as fairseq's log has; files have
    /// them in nats.
    Fairseq,
}

/// Number format of the matrix products. Weights, gradients, the optimizer's memory and checkpoints are always `f32`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// 24 bits of mantissa.
    #[default]
    Fp32,
    /// 8 bits of mantissa and the range of `f32`: no loss scaling. Layer norms, softmax, loss and the stream between the blocks
    /// stay `f32`.
    Bf16,
    /// 11 bits of mantissa and a narrow range, for processors without bf16. The loss is scaled dynamically; the rest is as with
    /// bf16.
    Fp16,
}

/// How the loss is scaled in fp16, so that small gradients do not vanish; the defaults are DeepSpeed's. With a hysteresis of 1 and
/// an interval of 2000 it is apex's; a scale that never changes has `initial`, `minimum` and `maximum` alike.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LossScaling {
    /// The first scale.
    pub initial: f64,
    /// Steps in a row without overflow after which the scale is raised.
    pub growth_interval: u64,
    /// Factor by which the scale is raised and lowered.
    pub factor: f64,
    /// Overflows before the scale is lowered. The count starts again when the scale is raised.
    pub hysteresis: u64,
    /// The smallest scale.
    pub minimum: f64,
    /// The largest scale.
    pub maximum: f64,
}

impl Default for LossScaling {
    fn default() -> Self {
        Self { initial: 65_536.0, growth_interval: 1000, factor: 2.0, hysteresis: 2, minimum: 1.0, maximum: 16_777_216.0 }
    }
}

#[cfg(feature = "torch")]
impl Precision {
    /// The dtype of the products.
    pub fn kind(self) -> tch::Kind {
        match self {
            Self::Fp32 => tch::Kind::Float,
            Self::Bf16 => tch::Kind::BFloat16,
            Self::Fp16 => tch::Kind::Half,
        }
    }
}

/// Parts of a block that the backward pass computes again instead of keeping them from the forward pass. This takes less memory and
/// more time, and gives the same bits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Recompute {
    /// Nothing.
    #[default]
    None,
    /// Layer norms and GELU: two fifths less memory for activations, about 2 % more time.
    Selective,
    /// All of a block but its input: a sixteenth of the memory for activations, about a quarter more time.
    Full,
    /// Like `full`, and the inputs of the blocks wait for the backward pass outside the device's memory: a GPU's in main memory,
    /// the CPU's in files beside the checkpoints. Only one block's activations stay in memory.
    Host,
}

/// Data that grows with the model and lies in files beside the checkpoints. The files are mapped into memory and let go of after
/// each use, so that main memory holds only the data in use. The bits are the same. The loss of speed depends on the disk and on
/// the memory that is free to cache the files. On a GPU, and with libtorch's kernels, `optimizer` keeps fp32 weights, gradients and
/// the optimizer's state in main memory, where the weights are updated: the GPU has rounded weights, activations and the gradients
/// of two blocks. With `model` the rounded weights of the blocks are in main memory too, and the GPU has those of two blocks at a
/// time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Offload {
    /// Nothing.
    #[default]
    None,
    /// The optimizer's state: with AdamW, 8 of 16 bytes per weight. On a GPU also the fp32 weights and their gradients.
    Optimizer,
    /// The optimizer's state, the weights and the gradients. The device's memory then holds the activations and what one block (two
    /// on a GPU) or the embedding needs.
    Model,
}

/// Where a run computes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DeviceChoice {
    /// On the first GPU that libtorch can use, else on the CPU; the run says which, and why.
    #[default]
    Auto,
    Cpu,
    /// On the first GPU; without one the run fails at once.
    Cuda,
}

/// Whose kernels compute on the CPU. A GPU has libtorch's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// ftctl's own kernels where they exist, libtorch's elsewhere.
    #[default]
    Own,
    /// Only libtorch's kernels, with the code that also runs on a GPU: for comparison, not for speed.
    Libtorch,
}

/// Who decides the order in which the gradients of several processes are added.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Reduction {
    /// The tree of the leaves: any number of processes trains to the same bits.
    #[default]
    Exact,
    /// The library that connects the processes: the last digits of the results depend on their number.
    Fast,
}

/// How the run trains. Counts are in optimizer steps unless said otherwise. Warm-up, decay and the `*_every` keys may also be a
/// text: `"1 epoch"`, `"0.5 epochs"`, or `"3%"` of the run's steps.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[expect(clippy::struct_excessive_bools, reason = "switches that are set one by one")]
pub struct TrainSettings {
    /// Seeds initial weights and the order of the data.
    pub seed: u64,
    /// Number of optimizer steps; exactly one of `steps` and `epochs` may be given (neither: one epoch).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<u64>,
    /// Passes over the training split.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epochs: Option<f64>,
    /// Tokens per sequence.
    pub block_size: usize,
    /// Each token attends only to its own document, and positions start at 0 in each document. An end-of-text token is the first
    /// token of the document after it. Sequences are still packed: one stream, cut every `block_size` tokens.
    pub document_mask: bool,
    /// Sequences per forward pass; `auto`: as many as fit into the memory of the device that trains. A run can resume with another
    /// micro-batch if the sequences per step stay the same.
    pub micro_batch: MicroBatch,
    /// Micro-batches per optimizer step; with `micro_batch = "auto"`, sequences per optimizer step.
    pub gradient_accumulation: usize,
    /// Number of groups of micro-batches in a step. Their gradients are always added in the same order. Any number of processes up
    /// to this one gives the same bits; absent: as many as processes begin the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leaves: Option<usize>,
    /// ZeRO stage, as in DeepSpeed. 1: each process keeps a share of the optimizer's state. 2: also of the gradients, if a process
    /// has one micro-batch in a step. Results and checkpoints are the same as with 0, so a run can resume with another stage.
    /// Absent: 0.
    #[serde(skip_serializing_if = "is_zero")]
    pub zero: u8,
    /// The order in which the gradients of several processes are added; absent: `exact`. A run can resume with another.
    #[serde(skip_serializing_if = "is_exact")]
    pub reduction: Reduction,
    /// The device that trains. A run can resume on another device.
    pub device: DeviceChoice,
    /// The kernels for training on the CPU.
    pub engine: Engine,
    /// On a GPU, matrix products in `fp32` may round their inputs to 10 bits of mantissa (TF32), which is faster.
    pub tf32: bool,
    /// On a GPU, use only deterministic kernels, some of which are slower. On the CPU all kernels are deterministic.
    pub deterministic: bool,
    /// Number format of the matrix products.
    pub precision: Precision,
    /// How the loss is scaled in fp16.
    pub loss_scaling: LossScaling,
    /// Parts of a block that the backward pass recomputes to save memory.
    pub recompute: Recompute,
    /// Data kept outside the memory of the device that trains: for the CPU in files, for a GPU in main memory.
    pub offload: Offload,
    /// Trains low-rank adapters (LoRA) instead of the weights.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lora: Option<Box<Lora>>,
    /// Peak learning rate.
    pub learning_rate: f64,
    /// Learning rate at the end of the schedule.
    pub min_learning_rate: f64,
    /// Shape of the learning rate after warm-up.
    pub schedule: Schedule,
    /// Exponent of the polynomial schedule.
    pub power: f64,
    /// Steps over which the learning rate rises, linearly unless the schedule says otherwise. Steps that change no weight do not
    /// count.
    pub warmup_steps: Length,
    /// Learning rate at the start of the warm-up.
    pub warmup_learning_rate: f64,
    /// Length of the decay of the `wsd` schedule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decay_steps: Option<Length>,
    /// How gradients become new weights.
    pub optimizer: OptimizerKind,
    /// AdamW's decay rates of the first and second moments.
    pub betas: [f64; 2],
    /// AdamW's epsilon.
    pub epsilon: f64,
    /// Muon's momentum.
    pub momentum: f64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
    /// Which weights decay.
    pub weight_decay_on: WeightDecayOn,
    /// Quirks of another program, to compare runs with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compat: Option<Compat>,
    /// Dropout rate on the embeddings and on the output of each half of a block. GPT-2 was trained with 0.1.
    pub dropout: f64,
    /// Dropout rate on the attention weights. GPT-2 was trained with 0.1. On a GPU the mask also depends on the micro-batch.
    pub attention_dropout: f64,
    /// Largest global gradient norm; 0 turns clipping off.
    pub clip_norm: f64,
    /// Response to a loss or a gradient that is infinite or not a number.
    pub non_finite: NonFinite,
    /// A step changes no weight if its loss or gradient norm is more than this many standard deviations above the last 128 steps; 0
    /// turns this off.
    pub skip_spikes: f64,
    /// The run stops after this many evaluations without a better validation loss. It ends with the weights of the best evaluation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub early_stopping_patience: Option<u64>,
    /// The run ends with the weights of its best evaluation, even if it is not stopped early.
    pub keep_best: bool,
    /// Steps between evaluations on the validation split; 0: only before the first and after the last step.
    pub eval_every: Length,
    /// Sequences per evaluation; absent: the whole validation split.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eval_sequences: Option<usize>,
    /// Steps between checkpoints; 0: only after the last step.
    pub checkpoint_every: Length,
    /// Checkpoints kept, newest first; at least 1.
    pub keep_checkpoints: usize,
    /// Steps between progress lines.
    pub log_every: Length,
    /// Writes `trace.json` beside the checkpoints: what each step spent its time on, for chrome://tracing and Perfetto.
    pub profile: bool,
    /// Threads of the CPU kernels in each process; absent: all cores, shared by the processes of a machine. They change no result,
    /// except with `engine = "libtorch"`, where they can change the last bits of a sum: then a run keeps the number that it began
    /// with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<usize>,
}

impl TrainSettings {
    /// Sequences of one optimizer step.
    pub fn sequences_per_step(&self) -> u64 {
        (self.micro_batch.sequences() * self.gradient_accumulation) as u64
    }

    /// Leaves of one optimizer step, where one process begins.
    pub fn leaves(&self) -> usize {
        self.leaves.unwrap_or(1).max(1)
    }

    /// ZeRO's stage among so many processes: one shares nothing.
    pub fn zero_among(&self, processes: usize) -> u8 {
        if processes > 1 { self.zero } else { 0 }
    }

    /// Whether the results depend on how many processes there are, of so many.
    pub fn depends_on_processes(&self, processes: usize) -> bool {
        processes > 1 && self.reduction == Reduction::Fast
    }

    /// Whether gradients are given away block by block, before the next block's are computed: those of one micro-batch. Those of
    /// adapters are few, and where gradients are away from the device they take none of its memory.
    pub fn sheds_gradients(&self, processes: usize) -> bool {
        let is_one = self.gradient_accumulation == self.leaves() && self.leaves() == processes;
        self.zero_among(processes) == 2 && is_one && self.lora.is_none() && self.offload == Offload::None
    }

    /// Tokens of one optimizer step.
    pub fn tokens_per_step(&self) -> u64 {
        self.sequences_per_step() * self.block_size as u64
    }

    /// Whether the run ends with the weights of its best evaluation.
    pub fn keeps_best(&self) -> bool {
        self.keep_best || self.early_stopping_patience.is_some()
    }
}

impl Default for TrainSettings {
    fn default() -> Self {
        Self {
            seed: 42,
            steps: None,
            epochs: None,
            block_size: 1024,
            document_mask: false,
            micro_batch: MicroBatch::Sequences(1),
            gradient_accumulation: 1,
            leaves: None,
            zero: 0,
            reduction: Reduction::Exact,
            device: DeviceChoice::Auto,
            engine: Engine::Own,
            tf32: false,
            deterministic: false,
            precision: Precision::Fp32,
            loss_scaling: LossScaling::default(),
            recompute: Recompute::None,
            offload: Offload::None,
            lora: None,
            learning_rate: 5e-5,
            min_learning_rate: 0.0,
            schedule: Schedule::Cosine,
            power: 1.0,
            warmup_steps: Length::NONE,
            warmup_learning_rate: 0.0,
            optimizer: OptimizerKind::Adamw,
            decay_steps: None,
            betas: [0.9, 0.999],
            epsilon: 1e-8,
            momentum: 0.95,
            weight_decay: 0.01,
            weight_decay_on: WeightDecayOn::Matrices,
            compat: None,
            dropout: 0.0,
            attention_dropout: 0.0,
            clip_norm: 1.0,
            non_finite: NonFinite::Stop,
            skip_spikes: 0.0,
            early_stopping_patience: None,
            keep_best: false,
            eval_every: Length::NONE,
            eval_sequences: None,
            checkpoint_every: Length::NONE,
            keep_checkpoints: 2,
            log_every: Length::Steps(10),
            profile: false,
            threads: None,
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands on references")]
fn is_zero(number: &u8) -> bool {
    *number == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands on references")]
fn is_false(value: &bool) -> bool {
    !value
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands on references")]
fn is_exact(reduction: &Reduction) -> bool {
    *reduction == Reduction::Exact
}

/// Text generated by the trained model at the end of the run (`sample.txt`), so that a reader can judge it at a glance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SampleConfig {
    /// The text that the model continues.
    pub prompt: String,
    /// Tokens to generate.
    #[serde(default = "default_sample_tokens")]
    pub tokens: usize,
    /// 0 is greedy.
    #[serde(default = "default_temperature")]
    pub temperature: f64,
    /// Keep the k likeliest tokens; 0 keeps all.
    #[serde(default)]
    pub top_k: usize,
    /// Keep the smallest set of tokens whose probability reaches this; 1 keeps all.
    #[serde(default = "default_top_p")]
    pub top_p: f64,
    /// Also write a text at each evaluation, into the log, the progress and TensorBoard's files; `ftctl show` has the last ones.
    /// Training waits for it, and is the same with it and without. Absent: false.
    #[serde(default, skip_serializing_if = "is_false")]
    pub every_evaluation: bool,
}

fn default_sample_tokens() -> usize {
    120
}
fn default_temperature() -> f64 {
    0.8
}
fn default_top_p() -> f64 {
    0.95
}

/// Where the text comes from and how it becomes tokens: the `[data]` table of a job file and the arguments of `ftctl prepare`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DataConfig {
    /// Files, directories or glob patterns of txt, csv, tsv, json, jsonl or parquet files (other extensions are read as
    /// text), packed by gzip or Zstandard or as they are. One text file is one document; one row of the others is one
    /// document. In a job file also `hf:OWNER/NAME[/CONFIGURATION]/SPLIT[@REVISION]`: rows of a dataset of the hub.
    #[serde(default)]
    pub train: Vec<String>,
    /// Format of the files. No validation text can be held out from token files, so name `validation` as well.
    #[serde(default)]
    pub format: DataFormat,
    /// Held-out text. Absent: `validation_fraction` of the training documents, chosen by the digest of their text.
    #[serde(default)]
    pub validation: Vec<String>,
    /// A named source of text that is already on the machine instead of `train`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<TextSource>,
    /// Share of documents held out when `validation` is empty.
    #[serde(default = "default_validation_fraction")]
    pub validation_fraction: f64,
    /// Stop reading after this many bytes of text (whole documents).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_bytes: Option<u64>,
    /// Column of csv, json, jsonl and parquet files; absent: `text`, else the only column.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub column: Option<String>,
    /// Treatment of a row that cannot be used: it is malformed, or its text is missing, not UTF-8 or too long; absent: `fail`.
    #[serde(default, skip_serializing_if = "OnBadRow::is_default")]
    pub on_bad_row: OnBadRow,
    /// Treatment of the tokenizer's special tokens where they stand in the text. The end of text is `<|endoftext|>` unless the
    /// tokenizer names it otherwise. Absent: as "literal", and a warning says how often they stand in the text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_of_text: Option<EndOfText>,
    #[serde(default)]
    pub tokenizer: TokenizerConfig,
}

fn default_validation_fraction() -> f64 {
    0.05
}

impl DataConfig {
    /// Where files are: those that are relative begin where the job file is.
    pub fn paths_mut(&mut self) -> impl Iterator<Item = &mut String> {
        self.train.iter_mut().chain(&mut self.validation).chain(&mut self.tokenizer.directory)
    }
}

/// Treatment of a row of text that cannot be used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OnBadRow {
    /// The data is refused.
    #[default]
    Fail,
    /// The row is left out, and the number of such rows is reported. A file without a good row is refused.
    Skip,
}

impl OnBadRow {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands on references")]
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Treatment of special tokens that stand in the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum EndOfText {
    /// The token, as transformers does: the document ends there.
    Split,
    /// Tokens of ordinary text.
    Literal,
}

/// Format of the files under `[data]`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DataFormat {
    /// Text: txt, csv, jsonl, parquet.
    #[default]
    Text,
    /// nanoGPT's `train.bin`: GPT-2's tokens as 16-bit numbers.
    Nanogpt,
    /// llm.c's token files: a header, then GPT-2's tokens as 16-bit numbers.
    LlmC,
    /// Output of `fairseq-preprocess --only-source --dataset-impl mmap` for GPT-2's tokens: `train.bin`, with `train.idx` and
    /// `dict.txt` beside it. The end of a line becomes an end of text.
    Fairseq,
}

/// Text found on the machine, so that a first run downloads nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum TextSource {
    /// The Rust sources of ftctl's own locked dependencies, as cargo unpacked them to build ftctl.
    CargoDependencies,
}

/// How text becomes tokens.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenizerConfig {
    #[serde(default)]
    pub kind: TokenizerKind,
    /// Size of a vocabulary trained on the text (with the 256 bytes and end-of-text); only with `kind = "train"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vocabulary: Option<usize>,
    /// Directory with the tokenizer's `tokenizer.json`, or `vocab.json` and `merges.txt`, such as that of the weights to
    /// start from; only with `kind = "files"`. A special token that only its configuration names is made where the model's
    /// `config.json` beside it has a row for it. In a job file also `hf:OWNER/NAME[@REVISION]`: that of a model of the hub.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<String>,
}

impl TokenizerConfig {
    /// The files of a tokenizer that is there.
    pub fn files(&self) -> impl Iterator<Item = PathBuf> {
        self.directory.iter().flat_map(|directory| Tokenizer::files(Path::new(directory)))
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum TokenizerKind {
    /// GPT-2's byte-level BPE, 50,257 tokens.
    #[default]
    Gpt2,
    /// A byte-level BPE trained on the training text.
    Train,
    /// The byte-level BPE in `directory`. Weights that were trained with a tokenizer must be fine-tuned with the same one.
    Files,
}
