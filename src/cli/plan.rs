//! `ftctl plan`: the acts and the cost of a job. Changes nothing.

use std::{
    fs,
    path::{Path, PathBuf},
};

use clap::Args;
use ft_trainer::{
    data::tokenizer::Tokenizer,
    model::{PUBLISHED_VOCABULARY, Shape, TrainingMemory},
    settings::{DeviceChoice, Engine, Offload, Recompute, TrainSettings, micro_batch::MicroBatch},
};
use serde_json::{Value, json};

use super::{App, JobFile};
use crate::{
    exit::{Exit, Failure},
    job::{
        finding::{Finding, Health},
        plan::{DataPlan, Plan},
        units::Money,
    },
    lifecycle::{World, doctor, image, upload},
    output::{Show, Table, format},
    provider::registry,
};

/// Show what a job would do, where, and what it costs at worst
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ftctl plan job.toml\n  ftctl plan job.toml --set train.steps=500 -o json")]
pub struct Arguments {
    #[command(flatten)]
    pub file: JobFile,
    /// Also write the plan to a file, as JSON
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

impl Arguments {
    pub fn run(self, app: &mut App<'_>) -> Result<(), Failure> {
        let planned = app.block_on(self.planned(app))?;
        if let Some(path) = self.out.as_ref().filter(|_| !app.dry_run) {
            let cannot = |error| Failure::new(Exit::Failure, format!("cannot write {}: {error}", path.display()));
            fs::write(path, format!("{:#}\n", json!(planned.plan))).map_err(cannot)?;
        }
        let verdict = planned.verdict();
        app.output.conclude(&planned, verdict)
    }

    /// Prices and limits are known without a sign-in; whether there is room, only with one.
    async fn planned(&self, app: &App<'_>) -> Result<Planned, Failure> {
        let plan = self.file.plan(app)?;
        let world = app.world_to_look(&plan)?;
        let price = world.provider.price(&plan).await?;
        let plan = plan.priced(price)?;
        if let Err(Failure { message, .. }) = image::check(&world, &plan) {
            world.report.warn(&format!("{message}, so it cannot run yet; `ftctl push` sends an image to a registry"));
        }
        let mut refused = Vec::new();
        for (what, found) in doctor::material(&plan, app.settings.directories.cache()?) {
            let Err(failure) = found else { continue };
            if failure.exit != Exit::NotFound {
                refused.push(format!("{what}: {}", failure.message));
                continue;
            }
            let fix = failure.fix.map(|fix| format!(" ({fix})")).unwrap_or_default();
            world.report.warn(&format!("{what}: {}: fix this before running{fix}", failure.message));
        }
        if let Some(lack) = Memory::of(&plan).and_then(|memory| memory.lack(&plan)) {
            world.report.warn(&lack);
        }
        let room = match world.provider.answers().await {
            Ok(()) => world.provider.room(&plan).await,
            Err(error) => {
                world.report.warn(&format!("{}; so room, GPUs and image were not checked", error.message));
                Vec::new()
            }
        };
        Ok(Planned { room, refused, ..Planned::of(plan, &world) })
    }
}

/// A plan, and whether its backend has room for it, where that was asked.
pub struct Planned {
    plan: Plan,
    room: Vec<Finding>,
    /// What the trainer would refuse.
    refused: Vec<String>,
    /// The initial weights as they are uploaded.
    weights: Option<Upload>,
    /// The damage that an intruder on the machine could do beyond its job.
    exposure: Option<Finding>,
}

impl Planned {
    /// The view of a job that would run in `world`; its backend was not asked for room.
    pub fn of(plan: Plan, world: &World) -> Self {
        let weights = plan.initial_weights.as_ref().and_then(|directory| Upload::of(Path::new(directory)));
        Self { plan, room: Vec::new(), refused: Vec::new(), weights, exposure: world.store.exposure() }
    }

    fn verdict(&self) -> Result<(), Failure> {
        if !self.refused.is_empty() {
            return Err(Failure::new(Exit::Usage, self.refused.join("; ")));
        }
        let bad: Vec<&Finding> = self.room.iter().filter(|finding| finding.health == Health::Bad).collect();
        let Some(first) = bad.first() else { return Ok(()) };
        let messages: Vec<&str> = bad.iter().map(|finding| finding.message.as_str()).collect();
        let (exit, what) = match bad.iter().find(|finding| finding.what != "quota") {
            Some(_) => (Exit::Usage, "this machine is not possible"),
            None => (Exit::Capacity, "there is no room for this machine"),
        };
        let failure = Failure::new(exit, format!("{what}: {}", messages.join("; ")));
        Err(Failure { fix: first.fix.clone(), ..failure })
    }
}

/// Files on their way to the store.
struct Upload {
    files: usize,
    bytes: u64,
}

impl Upload {
    /// The files of a model that are needed; `None` where they cannot be told.
    fn of(directory: &Path) -> Option<Self> {
        let files = upload::needed(directory).ok()?;
        let bytes = files.iter().map(|file| file.metadata().map(|metadata| metadata.len())).sum::<std::io::Result<u64>>().ok()?;
        Some(Self { files: files.len(), bytes })
    }
}

impl Show for Planned {
    fn schema(&self) -> &'static str {
        crate::job::plan::PLAN_SCHEMA
    }

    fn json(&self) -> Value {
        let mut value = json!(self.plan);
        if !self.room.is_empty() {
            value["room"] = json!(self.room);
        }
        if let Some(Upload { files, bytes }) = &self.weights {
            value["weights_upload"] = json!({ "files": files, "bytes": bytes });
        }
        if let Some(exposure) = &self.exposure {
            value["exposure"] = json!(exposure);
        }
        value
    }

    fn text(&self) -> String {
        let Self { plan, room, weights: upload, exposure, .. } = self;
        let mut table = Table::default();
        table.pair("job", &plan.name);
        table.pair("backend", plan.backend());
        for (name, value) in registry::rows(&plan.compute) {
            table.pair(name, value);
        }
        if let Some(image) = plan.image() {
            table.pair("image", image);
        }
        table.pair("store", &plan.store);
        table.pair("data", data(&plan.data));
        if let Some(weights) = &plan.initial_weights {
            let size = upload.as_ref().map(|Upload { files, bytes }| {
                format!(" ({} in {} to upload)", format::bytes(*bytes), format::of(*files as u64, "file"))
            });
            table.pair("starts from", format!("{weights}{}", size.unwrap_or_default()));
        }
        table.pair("training", training(plan));
        if let Some(memory) = Memory::of(plan) {
            table.pair("memory", memory.text(plan));
        }
        if let Some(address) = plan.tracking.server() {
            table.pair("tracking", address);
        }
        table.pair("attempts", format!("at most {}", plan.retry.attempts));
        table.pair("time to live", plan.ttl.to_string());
        // Only what costs money is ever out of stock, or in a queue.
        if plan.price_per_hour > Money::ZERO {
            table.pair("longest wait", plan.max_wait.to_string());
        }
        table.pair("price", price(plan));
        table.pair("worst case", worst_case(plan));
        for finding in room.iter().chain(exposure) {
            table.pair(finding.what, &finding.message);
        }
        table.render()
    }

    fn names(&self) -> Vec<String> {
        vec![self.plan.name.clone()]
    }
}

fn data(data: &DataPlan) -> String {
    match data {
        DataPlan::Digest(digest) => format!("dataset {digest}"),
        DataPlan::Named(name) => format!("dataset {name} of the store"),
        DataPlan::Directory(directory) => format!("prepared, in {directory}"),
        DataPlan::Text(config) => match config.source {
            Some(source) => format!("text from {}", json!(source).as_str().unwrap_or_default()),
            None => format!("text from {}", config.train.join(", ")),
        },
    }
}

fn training(plan: &Plan) -> String {
    let train = &plan.train;
    let length = match (train.steps, train.epochs) {
        (Some(steps), _) => format!("{steps} steps"),
        (None, None | Some(1.0)) => "1 epoch".to_owned(),
        (None, Some(epochs)) => format!("{epochs} epochs"),
    };
    let shared = if plan.processes > 1 { format!(", each by {} processes", plan.processes) } else { String::new() };
    format!("{length} of {} tokens{shared}", train.tokens_per_step())
}

/// The memory that training needs at its peak, in bytes.
struct Memory {
    on_gpu: bool,
    /// Bytes needed in the memory that computes, and in main memory beside a GPU: as the plan says, and with one sequence at a
    /// time.
    needed: [u64; 2],
    least: [u64; 2],
}

impl Memory {
    /// `None` where the model or its vocabulary is not known before the data is prepared.
    fn of(plan: &Plan) -> Option<Self> {
        let shape = match (&plan.initial_weights, &plan.data) {
            (Some(directory), _) => Shape::read(Path::new(directory)).ok()?,
            (None, DataPlan::Text(data)) => {
                let vocabulary = match &data.tokenizer.directory {
                    Some(directory) => Tokenizer::load(Path::new(directory)).ok()?.vocabulary(),
                    None => data.tokenizer.vocabulary.unwrap_or(PUBLISHED_VOCABULARY),
                };
                Shape::resolve(&plan.model, vocabulary, plan.train.block_size).ok()?
            }
            _ => return None,
        };
        let on_gpu = match plan.train.device {
            DeviceChoice::Cpu => false,
            DeviceChoice::Cuda => true,
            DeviceChoice::Auto => registry::size(&plan.compute).has_gpu,
        };
        let of = |train: &TrainSettings| {
            let beside = if on_gpu { TrainingMemory::beside_device(&shape, train) } else { 0 };
            [TrainingMemory::of(&shape, train, on_gpu).total() * plan.processes as u64, beside]
        };
        let each = TrainSettings { leaves: Some(plan.train.leaves().div_ceil(plan.processes)), ..plan.train.clone() };
        let one = TrainSettings { micro_batch: MicroBatch::Sequences(1), ..each.clone() };
        Some(Self { on_gpu, needed: of(&each), least: of(&one) })
    }

    fn text(&self, plan: &Plan) -> String {
        let of_what = if self.on_gpu { " of the GPU" } else { "" };
        let [needed, beside] = self.needed.map(|bytes| bytes >> 20);
        let beside = if beside > 0 { format!(", and {beside} MiB of main memory besides") } else { String::new() };
        let more = if plan.train.micro_batch == MicroBatch::Auto { ", more where there is more" } else { "" };
        format!("about {needed} MiB{of_what}{more}{beside}")
    }

    /// The memory that is too small for even one sequence at a time. With more of them, a run that runs out of memory goes on with
    /// fewer.
    fn lack(&self, plan: &Plan) -> Option<String> {
        let (size, [computes, beside]) = (registry::size(&plan.compute), self.least);
        let (memory, more_memory) = (size.memory?, format!("more {}", size.memory_key));
        let savings = savings(&plan.train, self.on_gpu).join(", ");
        let (needed, there, helps) = match (self.on_gpu, size.gpu_memory) {
            (false, _) => (computes, memory, savings),
            (true, Some(_)) if beside > memory.bytes => (beside, memory, more_memory),
            (true, Some(of_gpu)) => (computes, of_gpu, savings),
            (true, None) => return None,
        };
        (needed > there.bytes).then(|| {
            let [needed, bytes] = [needed, there.bytes].map(|bytes| bytes >> 20);
            format!(
                "it needs about {needed} MiB of memory even for one sequence at a time, and {} {bytes} MiB; what helps: {helps}",
                there.whose
            )
        })
    }
}

/// The settings that would make the computing memory smaller.
fn savings(train: &TrainSettings, on_gpu: bool) -> Vec<&'static str> {
    // With libtorch's kernels on the CPU nothing lies in files: offloaded tensors are there twice.
    let may_offload = on_gpu || train.engine != Engine::Libtorch;
    let settings = [
        (matches!(train.recompute, Recompute::None | Recompute::Selective), "train.recompute = \"full\""),
        (train.recompute == Recompute::Full, "train.recompute = \"host\""),
        (may_offload && train.offload == Offload::None, "train.offload = \"optimizer\""),
        (may_offload && train.offload != Offload::Model, "train.offload = \"model\""),
        (true, "a smaller train.block_size"),
        (true, "a larger machine"),
    ];
    settings.into_iter().filter_map(|(helps, what)| helps.then_some(what)).collect()
}

fn price(plan: &Plan) -> String {
    let lasting = registry::lasting_price(plan).map(|price| format!("; on demand: {price}")).unwrap_or_default();
    let source = plan.price_source.as_ref().map(|source| format!(" ({source})")).unwrap_or_default();
    format!("{} an hour{lasting}{source}", plan.price_per_hour)
}

fn worst_case(plan: &Plan) -> String {
    if plan.worst_case == Money::ZERO { "nothing: this backend does not bill".to_owned() } else { plan.worst_case.to_string() }
}
