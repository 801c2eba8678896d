//! The command line of `ft-trainer`.

mod oracle;

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use clap::{Args, Parser, Subcommand, ValueEnum};
use serde::Serialize;
use serde_json::json;
use tch::Kind;

use crate::data::shard::{Dataset, Split};
use crate::data::tokenizer::Tokenizer;
use crate::device;
use crate::error::{Failure, STOPPED, tells_of_no_memory};
use crate::generation::sampling::Sampling;
use crate::generation::{self, Request};
use crate::journal::{FLOPS_FORMULA, grouped, say, stamp_lines};
use crate::model::{Gpt2, Model, PUBLISHED_VOCABULARY, Parameters, Shape, TrainingMemory};
use crate::preflight::check_dataset;
use crate::process;
use crate::run::checkpoint;
use crate::run::evaluation::{self, Reading};
use crate::run::train::{Outcome, Wishes, train};
use crate::schedule::learning_rate;
use crate::settings::file;
use crate::settings::micro_batch::MicroBatch;
use crate::settings::{DeviceChoice, Engine, ModelConfig, Precision, Preset, TrainSettings};
use crate::world::World;

/// Trains GPT-2 from token shards; continues text; measures perplexity.
///
/// Exit codes: 0 done; 1 failed; 2 wrong input; 9 stored bytes are damaged; 71 out of memory; 75 stopped on request after writing a
/// checkpoint, or because another process of the run is gone: run it again.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Train, or resume: the same command again continues from the newest checkpoint in the output directory.
    ///
    /// SIGTERM and Ctrl-C stop it after a checkpoint; with SIGURG it writes a checkpoint and goes on.
    ///
    /// Several processes share a run where torchrun, or another program with its variables (RANK, WORLD_SIZE, MASTER_ADDR,
    /// MASTER_PORT), starts them. Any number of them, up to train.leaves, trains to the same bytes.
    Train(TrainArguments),
    /// Print loss and perplexity on a prepared dataset as JSON.
    Eval(EvalArguments),
    /// Continue prompts.
    Generate(GenerateArguments),
    /// Print parameters, FLOPs per token and a memory estimate.
    Inspect(InspectArguments),
    /// Write logits, loss and every gradient of one batch, for comparison with other implementations.
    Grads(GradsArguments),
    /// Write the weights after optimizer steps on given gradients, for comparison with other implementations.
    Updates(UpdatesArguments),
    /// Print the learning rate of every step of a configuration, one JSON object a line.
    Schedule(ScheduleArguments),
}

#[derive(Debug, Args)]
struct TrainArguments {
    /// Configuration, TOML or JSON.
    config: PathBuf,
    /// Override one value, for example `train.steps=100`. The value is TOML; what is not is taken as text.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    overrides: Vec<String>,
    /// Write trace.json into the output directory, as train.profile = true does: what each step spent its time on.
    #[arg(long)]
    profile: bool,
    /// Begin each message with the time.
    #[arg(long)]
    timestamps: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum SplitName {
    Train,
    Validation,
}

#[derive(Debug, Args)]
struct EvalArguments {
    /// A checkpoint, or any Hugging Face directory of a GPT-2.
    #[arg(long)]
    model: PathBuf,
    /// A prepared dataset.
    #[arg(long)]
    data: PathBuf,
    #[arg(long, value_enum, default_value = "validation")]
    split: SplitName,
    /// Tokens per block, and the stride; by default the model's context.
    #[arg(long)]
    block_size: Option<usize>,
    /// Sequences per forward pass.
    #[arg(long, default_value_t = 4, value_parser = at_least_one)]
    batch: usize,
    /// Read only this many blocks.
    #[arg(long, value_parser = at_least_one)]
    sequences: Option<usize>,
    /// Where to compute: auto, cpu or cuda.
    #[arg(long, default_value = "auto", value_parser = named::<DeviceChoice>)]
    device: DeviceChoice,
}

#[derive(Debug, Args)]
struct GenerateArguments {
    /// A checkpoint, or a Hugging Face directory of a GPT-2 with its tokenizer.
    #[arg(long)]
    model: PathBuf,
    /// Text to continue; may be given several times, which makes a batch.
    #[arg(long, required = true)]
    prompt: Vec<String>,
    /// Tokens to add at most. A text ends earlier at the end-of-text token or where the model's context ends.
    #[arg(long, default_value_t = 100)]
    tokens: usize,
    /// 0 is greedy.
    #[arg(long, default_value_t = 0.8, value_parser = not_negative)]
    temperature: f64,
    /// Keep the k likeliest tokens; 0 keeps all.
    #[arg(long, default_value_t = 0)]
    top_k: usize,
    /// Keep the smallest set of tokens whose probability reaches this; 1 keeps all.
    #[arg(long, default_value_t = 0.95, value_parser = probability)]
    top_p: f64,
    /// The same seed gives the same text.
    #[arg(long, default_value_t = 42)]
    seed: u64,
    /// Print one JSON value, with the token ids.
    #[arg(long)]
    json: bool,
    /// Where to compute: auto, cpu or cuda.
    #[arg(long, default_value = "auto", value_parser = named::<DeviceChoice>)]
    device: DeviceChoice,
}

#[derive(Debug, Args)]
struct InspectArguments {
    /// A Hugging Face directory, or the configuration of a run.
    #[arg(required_unless_present = "preset")]
    target: Option<PathBuf>,
    /// Override one value of the configuration, as `train` does.
    #[arg(long = "set", value_name = "KEY=VALUE", requires = "target")]
    overrides: Vec<String>,
    /// A published size instead: gpt2, gpt2-medium, gpt2-large, gpt2-xl.
    #[arg(long, conflicts_with = "target", value_parser = preset)]
    preset: Option<Preset>,
    /// Tokens per sequence; by default the configuration's, else the context.
    #[arg(long, value_parser = at_least_one)]
    block_size: Option<usize>,
    /// Sequences per forward pass; by default the configuration's, else 1.
    #[arg(long, value_parser = at_least_one)]
    micro_batch: Option<usize>,
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct GradsArguments {
    /// A Hugging Face directory of a GPT-2.
    #[arg(long)]
    model: PathBuf,
    /// A directory of peft's with low-rank adapters for it; the gradients are theirs.
    #[arg(long)]
    adapter: Option<PathBuf>,
    /// JSON array of arrays of token ids, all of one length.
    #[arg(long)]
    tokens: PathBuf,
    /// The safetensors file to write.
    #[arg(long)]
    out: PathBuf,
    /// Compute in float64.
    #[arg(long)]
    double: bool,
    /// Compute matrix products in bf16, as `train.precision = "bf16"` does.
    #[arg(long, conflicts_with = "double")]
    bf16: bool,
    /// Compute matrix products in fp16, as `train.precision = "fp16"` does, with the loss scaled by 65536; gradients are unscaled.
    #[arg(long, conflicts_with_all = ["double", "bf16"])]
    fp16: bool,
    /// Keep attention inside documents, each of which this token begins, as `train.document_mask` does.
    #[arg(long, value_name = "TOKEN")]
    document_mask: Option<u32>,
    /// Where to compute: auto, cpu or cuda.
    #[arg(long, default_value = "cpu", value_parser = named::<DeviceChoice>)]
    device: DeviceChoice,
    /// Whose kernels compute on the CPU: own or libtorch.
    #[arg(long, default_value = "own", value_parser = named::<Engine>)]
    engine: Engine,
}

#[derive(Debug, Args)]
struct UpdatesArguments {
    /// A Hugging Face directory of a GPT-2: the weights to begin with.
    #[arg(long)]
    model: PathBuf,
    /// A directory of 0.safetensors, 1.safetensors and so on: each a gradient for every parameter, under its name.
    #[arg(long)]
    gradients: PathBuf,
    /// Configuration whose `[train]` table says how, TOML or JSON.
    #[arg(long)]
    config: PathBuf,
    /// The safetensors file to write.
    #[arg(long)]
    out: PathBuf,
}

#[derive(Debug, Args)]
struct ScheduleArguments {
    /// Configuration with `train.steps`, TOML or JSON.
    config: PathBuf,
    /// Override one value, for example `train.schedule=linear`.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    overrides: Vec<String>,
}

/// Runs one command; the number is the exit code.
pub fn run(cli: &Cli) -> Result<u8, Failure> {
    match &cli.command {
        Command::Train(arguments) => return run_training(arguments),
        Command::Eval(arguments) => evaluate(arguments)?,
        Command::Generate(arguments) => generate(arguments)?,
        Command::Inspect(arguments) => inspect(arguments)?,
        Command::Grads(arguments) => {
            let kind = if arguments.double { Kind::Double } else { Kind::Float };
            let precision = match (arguments.bf16, arguments.fp16) {
                (true, _) => Precision::Bf16,
                (_, true) => Precision::Fp16,
                _ => Precision::Fp32,
            };
            let GradsArguments { model, adapter, tokens, out, document_mask, device, engine, .. } = arguments;
            let computer = (device::choose(*device)?.device, *engine);
            oracle::grads((model, adapter.as_deref()), tokens, out, (kind, precision), *document_mask, computer)
                .map_err(Failure::input)?;
        }
        Command::Updates(arguments) => {
            let settings = file::read(&arguments.config, &[])?.train;
            oracle::updates(&arguments.model, &arguments.gradients, &settings, &arguments.out).map_err(Failure::input)?;
        }
        Command::Schedule(arguments) => print_schedule(arguments)?,
    }
    Ok(0)
}

fn run_training(arguments: &TrainArguments) -> Result<u8, Failure> {
    let mut config = file::read(&arguments.config, &arguments.overrides)?;
    config.train.profile |= arguments.profile;
    device::set_environment(&config.train);
    process::handle_signals();
    if arguments.timestamps {
        stamp_lines();
    }
    let (world, wishes) = (World::from_environment()?, Wishes { stop: &process::STOP, save: &process::SAVE });
    let Outcome::Stopped { step } = train(&config, &world, wishes)? else { return Ok(0) };
    if world.leads() {
        let name = checkpoint::name(step);
        say(&format!("stopped on request; checkpoint {name} is complete: a run into the same output directory resumes from it"));
    }
    Ok(STOPPED)
}

fn print_schedule(arguments: &ScheduleArguments) -> Result<(), Failure> {
    let settings = file::read(&arguments.config, &arguments.overrides)?.train;
    let steps = settings.steps.ok_or_else(|| Failure::input("the length of the schedule is not known; add --set train.steps=N"))?;
    let line = |step| format!("{}\n", json!({"step": step + 1, "learning_rate": learning_rate(&settings, step, steps)}));
    print(&(0..steps).map(line).collect::<String>())
}

fn evaluate(arguments: &EvalArguments) -> Result<(), Failure> {
    let device = device::choose(arguments.device)?.device;
    let (shape, parameters) = load(&arguments.model)?;
    let dataset = Dataset::open(&arguments.data)?;
    let block_size = arguments.block_size.unwrap_or(shape.context);
    shape.agrees_with(&ModelConfig::default(), dataset.vocabulary(), block_size).map_err(Failure::input)?;
    check_dataset(&arguments.model, &dataset)?;
    let split = match arguments.split {
        SplitName::Train => Split::Train,
        SplitName::Validation => Split::Validation,
    };
    let model = Model::Gpt2(Gpt2::new(shape, &parameters, device));
    let reading = Reading { block_size, batch: arguments.batch, limit: arguments.sequences };
    let evaluation = evaluation::evaluate(&model, &World::alone(), dataset.split(split), reading, |_, _| true)?;
    let nothing = || Failure::input(format!("the {} split of {} has no token to predict", split.name(), arguments.data.display()));
    let mut value = json!({"schema": "ft.eval/1", "split": split, "block_size": block_size});
    merge(&mut value, &evaluation.ok_or_else(nothing)?);
    print(&format!("{value}\n"))
}

/// One continued prompt, as `generate --json` prints it.
#[derive(Debug, Serialize)]
struct Sample<'a> {
    prompt: &'a str,
    /// The prompt and its continuation.
    text: String,
    prompt_tokens: Vec<u32>,
    tokens: Vec<u32>,
    finish: generation::Finish,
}

fn generate(arguments: &GenerateArguments) -> Result<(), Failure> {
    let device = device::choose(arguments.device)?.device;
    let (shape, parameters) = load(&arguments.model)?;
    let tokenizer = Tokenizer::load(&arguments.model)?;
    let model = Gpt2::new(shape, &parameters, device);
    let sampling = Sampling { temperature: arguments.temperature, top_k: arguments.top_k, top_p: arguments.top_p };
    let request = Request {
        tokens: arguments.tokens,
        sampling,
        seed: arguments.seed,
        vocabulary: tokenizer.vocabulary(),
        end_of_text: tokenizer.end_of_text(),
        draft: true,
    };
    let prompts: Vec<Vec<u32>> = arguments.prompt.iter().map(|prompt| tokenizer.encode_prompt(prompt)).collect();
    let continuations = generation::generate(&model, &prompts, &request)?;
    let samples = arguments.prompt.iter().zip(prompts).zip(continuations).map(|((prompt, prompt_tokens), continuation)| Sample {
        prompt,
        text: format!("{prompt}{}", tokenizer.decode(&continuation.tokens)),
        prompt_tokens,
        tokens: continuation.tokens,
        finish: continuation.finish,
    });
    let samples: Vec<Sample<'_>> = samples.collect();
    if arguments.json {
        return print(&format!("{}\n", json!({"schema": "ft.generate/1", "seed": arguments.seed, "samples": samples})));
    }
    if samples.iter().any(|sample| sample.finish == generation::Finish::Context) {
        eprintln!("note: the text ends where the model's context of {} tokens ends", shape.context);
    }
    samples.iter().try_for_each(|sample| print(&format!("{}\n", sample.text)))
}

fn inspect(arguments: &InspectArguments) -> Result<(), Failure> {
    let (shape, mut settings) = inspected(arguments)?;
    settings.block_size = arguments.block_size.unwrap_or(settings.block_size);
    settings.micro_batch = arguments.micro_batch.map_or(settings.micro_batch, MicroBatch::Sequences);
    let (block_size, micro_batch) = (settings.block_size, settings.micro_batch.sequences());
    shape.agrees_with(&ModelConfig::default(), shape.vocabulary, block_size).map_err(Failure::input)?;
    let (parameters, flops) = (shape.parameters(), shape.flops_per_token(block_size, settings.lora.as_deref()));
    let on_gpu = device::is_gpu(settings.device);
    let parts = TrainingMemory::of(&shape, &settings, 1, on_gpu).parts();
    let beside = if on_gpu { TrainingMemory::beside_device(&shape, &settings, 1) } else { 0 };
    if arguments.json {
        let memory: serde_json::Map<String, serde_json::Value> =
            parts.map(|(name, bytes)| (name.to_owned(), bytes.into())).into_iter().collect();
        let value = json!({
            "schema": "ft.inspect/1", "layers": shape.layers, "heads": shape.heads, "width": shape.width, "context": shape.context,
            "vocabulary": shape.vocabulary, "parameters": parameters, "block_size": block_size, "micro_batch": micro_batch,
            "flops_per_token": flops, "flops_formula": FLOPS_FORMULA, "training_memory_bytes": memory,
            "training_memory_of": if on_gpu { "gpu" } else { "main memory" }, "main_memory_beside_gpu_bytes": beside,
        });
        return print(&format!("{value}\n"));
    }
    let mut text = format!(
        "{} layers x {} wide, {} heads, context {}, vocabulary {}\n{} parameters\n{:.1} MFLOP per trained token, F = {FLOPS_FORMULA} at T = {block_size}\n\
         {} at {micro_batch} x {block_size} tokens, estimated:\n",
        shape.layers,
        shape.width,
        shape.heads,
        shape.context,
        grouped(shape.vocabulary as u64),
        grouped(parameters),
        flops / 1e6,
        if on_gpu { "training memory of the GPU" } else { "training memory" }
    );
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    for (name, bytes) in parts {
        let _ = writeln!(text, "  {name:<12}{:>12.1} MiB", mib(bytes));
    }
    if beside > 0 {
        let _ = writeln!(text, "main memory besides: {:.1} MiB", mib(beside));
    }
    print(&text)
}

/// The shape of what is to be inspected, and how it would be trained.
fn inspected(arguments: &InspectArguments) -> Result<(Shape, TrainSettings), Failure> {
    let plain = |shape: Shape| (shape, TrainSettings { block_size: shape.context, ..TrainSettings::default() });
    let Some(target) = &arguments.target else {
        let config = ModelConfig { preset: arguments.preset, ..ModelConfig::default() };
        return Ok(plain(Shape::resolve(&config, PUBLISHED_VOCABULARY, 2).map_err(Failure::input)?));
    };
    if target.is_dir() {
        return Ok(plain(Shape::read(target).map_err(Failure::input)?));
    }
    let config = file::read(target, &arguments.overrides)?;
    let block_size = config.train.block_size;
    let shape = match &config.initial_weights {
        Some(directory) => Shape::read(directory).map_err(Failure::input)?,
        None => Shape::resolve(&config.model, Dataset::open(&config.data)?.vocabulary(), block_size).map_err(Failure::input)?,
    };
    Ok((shape, config.train))
}

fn load(model: &Path) -> Result<(Shape, Parameters), Failure> {
    Parameters::load(model).map_err(Failure::input)
}

/// Adds the fields of `fields` to the object `value`.
fn merge(value: &mut serde_json::Value, fields: &impl Serialize) {
    if let (Some(object), Ok(serde_json::Value::Object(fields))) = (value.as_object_mut(), serde_json::to_value(fields)) {
        object.extend(fields);
    }
}

/// Writes data to stdout; a reader who has seen enough (`head`) is no failure.
fn print(text: &str) -> Result<(), Failure> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure::other(format!("cannot write to stdout: {error}"))),
        _ => Ok(()),
    }
}

/// The subject of a panic: libtorch's messages go on with a C++ stack trace, and describe missing memory in words for its
/// developers.
pub fn sentence(message: &str) -> &str {
    if tells_of_no_memory(message) {
        return "out of memory; lower train.micro_batch, set train.recompute = \"full\" or \"host\", or train.offload, or take a machine with more memory";
    }
    message.lines().next().unwrap_or_default()
}

fn at_least_one(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|&number| number > 0).ok_or_else(|| "expected a whole number of at least 1".to_owned())
}

fn not_negative(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|number: &f64| *number >= 0.0 && number.is_finite())
        .ok_or_else(|| "expected a number that is not negative".to_owned())
}

fn probability(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|number| *number > 0.0 && *number <= 1.0)
        .ok_or_else(|| "expected a number above 0 and at most 1".to_owned())
}

/// A value as a configuration names it.
fn named<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_json::from_value(text.into()).map_err(|error| error.to_string())
}

fn preset(text: &str) -> Result<Preset, String> {
    serde_json::from_value(text.into()).map_err(|_| "expected gpt2, gpt2-medium, gpt2-large or gpt2-xl".to_owned())
}
