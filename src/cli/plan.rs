//! `ftctl plan`: the acts and the cost of a job, and everything that is in its way. Changes nothing.

mod memory;

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Args;
use ft_trainer::{data::prepare::Remarks, model::Shape};
use serde_json::{Map, Value, json};
use tokio::time::timeout;

use self::memory::Memory;
use super::{App, JobFile, model};
use crate::{
    exit::{Exit, Failure},
    job::{
        finding::{Finding, Health},
        model::JobModel,
        plan::{DataPlan, PLAN_SCHEMA, Plan},
        units::{Money, Span},
    },
    lifecycle::{
        World,
        doctor::{self, Material},
        hub, image,
        outlook::Outlook,
        upload::{self, Uncounted},
    },
    output::{Show, Table, format},
    provider::registry,
};

/// Show what a job would do, where, how long it would take, and what it costs at worst
///
/// For a job that cannot run yet it ends with exit code 2, and the plan on stdout says what is missing.
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
        planned.tell(app)
    }

    /// Prices and limits are known without a sign-in; whether there is room, only with one.
    async fn planned(&self, app: &App<'_>) -> Result<Planned, Failure> {
        let plan = self.file.plan(app)?;
        let of_job = plan.initial_weights.clone().filter(|weights| JobModel::of_weights(weights).is_some());
        let plan = model::located(app, plan).await?;
        let (world, no_store) = app.world_to_look(&plan)?;
        let price = world.provider.price(&plan).await?;
        let mut planned = Planned { of_job, ..Planned::of(plan.priced(price)?, &world, no_store).await };
        match world.provider.answers().await {
            Ok(()) => planned.room = world.provider.room(&planned.plan).await,
            Err(error) => planned.warnings.push(format!("{}; so room, GPUs and image were not checked", error.message)),
        }
        Ok(planned)
    }
}

/// A plan, what is known of the job, and what is in its way.
pub struct Planned {
    plan: Plan,
    outlook: Outlook,
    /// The things that must be there before the job can run.
    missing: Vec<Finding>,
    /// The trainer's refusals, told before it starts.
    refused: Vec<Finding>,
    /// Facts that the user should know, and may let be.
    warnings: Vec<String>,
    /// Whether the backend has room for it, where it was asked.
    room: Vec<Finding>,
    /// The initial weights as they are uploaded.
    weights: Option<Transfer>,
    /// The job that has them, where they are named so.
    of_job: Option<String>,
    /// The files that are fetched of the hub before.
    fetched: Option<Transfer>,
    /// The damage that an intruder on the machine could do beyond its job.
    exposure: Option<Finding>,
}

impl Planned {
    /// The view of a job that would run in `world`; its backend was not asked for room. `no_store`: why its store cannot be asked.
    pub async fn of(plan: Plan, world: &World, no_store: Option<String>) -> Self {
        let (plan, unpinned) = hub::pinned_so_far(&world.hub, plan).await;
        let mut looked = hub::look(&world.hub, &plan).await;
        let Material { mut looked_at, known } = material(&looked.plan, world, no_store.is_none()).await;
        looked_at.extend(std::mem::take(&mut looked.failures).into_iter().map(|(what, failure)| (what, Err(failure))));
        let (mut missing, mut refused, mut warnings) = (Vec::new(), Vec::new(), Vec::from_iter(no_store));
        let store = world.provider.admit_store(&plan.store).map_err(Failure::from);
        let exposure = doctor::exposure(world, plan.backend()).filter(|_| store.is_ok());
        for (what, found) in [("store", store), ("image", image::check(world, &plan))] {
            missing.extend(found.err().map(|failure| doctor::refused(what, failure)));
        }
        missing.extend(doctor::lacks_gpu(&plan));
        missing.extend(unpinned.into_iter().map(|(what, failure)| doctor::refused(what, failure)));
        for (what, failure) in looked_at.into_iter().filter_map(|(what, found)| Some((what, looked.named(found.err()?)))) {
            match failure.exit {
                Exit::NotFound => missing.push(doctor::refused(what, failure)),
                Exit::Network | Exit::Denied => warnings.push(format!("{}; so nothing was checked of the {what}", failure.message)),
                _ => refused.push(doctor::refused(what, failure)),
            }
        }
        let (data, remarks) = known.map(|known| (known.data, known.remarks)).unzip();
        let outlook = Outlook::of(world, &looked.plan, data).await;
        warnings.extend(remarks.iter().flat_map(Remarks::sentences));
        warnings.extend(outlook.shape.as_ref().and_then(|shape| {
            Memory::of(&plan, shape).lack(&plan).or_else(|| {
                let lack = Memory::of_fewer(&plan, shape)?.lack(&plan)?;
                Some(format!("with fewer nodes (retry.shrink) {lack}"))
            })
        }));
        warnings.extend(too_long(&plan, &outlook));
        warnings.extend(has_no_patience(&plan));
        let weights = looked.plan.initial_weights.as_ref().and_then(|directory| Transfer::of(Path::new(directory)));
        let fetched = (looked.files > 0).then_some(Transfer { files: looked.files, bytes: looked.bytes });
        Self { outlook, fetched, missing, refused, warnings, room: Vec::new(), weights, of_job: None, exposure, plan }
    }

    /// Prints it, with its warnings on stderr. Fails as [`Exit::Usage`] for a job that cannot run yet, and as [`Exit::Capacity`]
    /// where there is no room for it.
    pub fn tell(&self, app: &mut App<'_>) -> Result<(), Failure> {
        let report = app.output.report();
        self.warnings.iter().for_each(|warning| report.warn(warning));
        app.output.conclude(self, self.verdict())
    }

    fn verdict(&self) -> Result<(), Failure> {
        let told = |finding: &Finding| format!("{}: {}", finding.what, finding.message);
        let (missing, fix) = match &self.missing[..] {
            [] => (None, self.refused.iter().find_map(|finding| finding.fix.clone())),
            [one] => (Some(told(one)), one.fix.clone()),
            several => (
                Some(format!("{} things are missing", several.len())),
                Some("the lines with `fix:` in the plan say what to do".to_owned()),
            ),
        };
        let in_the_way: Vec<String> = self.refused.iter().map(told).chain(missing).collect();
        if !in_the_way.is_empty() {
            let failure = Failure::new(Exit::Usage, format!("the job cannot run yet: {}", in_the_way.join("; ")));
            return Err(Failure { fix, ..failure });
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

    /// All that is a number; what is not known is absent.
    fn numbers(&self) -> Map<String, Value> {
        let Self { plan, outlook, .. } = self;
        let memory = outlook.shape.as_ref().map(|shape| Memory::of(plan, shape).needed);
        let of_fewer = outlook.shape.as_ref().and_then(|shape| Memory::of_fewer(plan, shape)).map(|memory| memory.needed[0]);
        let data = outlook.data.as_ref();
        let steps = if outlook.estimates_steps(plan) { "estimated_steps" } else { "steps" };
        let epochs = if outlook.text.is_some() { "estimated_epochs" } else { "epochs" };
        let numbers = [
            ("tokens", json!(data.map(|data| data.train.tokens))),
            ("estimated_tokens", json!(outlook.text.as_ref().map(Uncounted::tokens))),
            ("documents", json!(data.map(|data| data.train.documents))),
            ("validation_tokens", json!(data.map(|data| data.validation.tokens))),
            ("parameters", json!(outlook.shape.as_ref().map(Shape::parameters))),
            (steps, json!(outlook.steps)),
            ("tokens_per_step", json!(plan.train.tokens_per_step())),
            (epochs, json!(outlook.epochs)),
            ("memory_bytes", json!(memory.map(|[computes, _]| computes))),
            ("memory_bytes_on_fewer_nodes", json!(of_fewer)),
            ("main_memory_bytes_besides", json!(memory.map(|[_, besides]| besides))),
            ("price_per_hour_usd", json!(plan.price_per_hour.dollars())),
            ("worst_case_hours", json!(hours(plan.lifetime()))),
            ("worst_case_usd", json!(plan.worst_case.dollars())),
        ];
        numbers.into_iter().filter(|(_, number)| !number.is_null()).map(|(name, number)| (name.to_owned(), number)).collect()
    }

    /// Time and money that training takes, or why they are not known.
    fn expected(&self) -> Value {
        let Self { plan, outlook, .. } = self;
        match (&outlook.pace, outlook.time(plan), outlook.cost(plan)) {
            (Ok(pace), Some(time), Some(cost)) => json!({
                "hours": hours(time),
                "cost_usd": cost.dollars(),
                "tokens_per_second": pace.tokens_per_second,
                "measured": pace.is_measured,
                "estimated_steps": outlook.estimates_steps(plan),
                "source": pace.source,
            }),
            (Ok(_), ..) => json!({ "unknown": NO_STEPS }),
            (Err(why), ..) => json!({ "unknown": why }),
        }
    }
}

/// So long is waited for a store's word on a dataset.
const PATIENCE: Duration = Duration::from_secs(3);

/// The material of the job, here and, if it may be asked, in its store.
async fn material(plan: &Plan, world: &World, asks_store: bool) -> Material {
    let Material { mut looked_at, mut known } = doctor::material(plan, &world.cache);
    if asks_store {
        let late =
            |_| Failure::new(Exit::Network, format!("the store {} did not answer within {} s", plan.store, PATIENCE.as_secs()));
        match timeout(PATIENCE, doctor::stored(world, plan)).await.map_err(late).flatten() {
            Ok(stored) => known = known.or(stored),
            Err(failure) => looked_at.push(("data", Err(failure))),
        }
    }
    Material { looked_at, known }
}

const NO_STEPS: &str = "the number of steps is not known before the text is prepared";

fn hours(time: Duration) -> f64 {
    time.as_secs_f64() / 3_600.0
}

/// A job whose machines end before it.
fn too_long(plan: &Plan, outlook: &Outlook) -> Option<String> {
    let time = outlook.time(plan).filter(|time| *time > plan.work())?;
    let (time, most) = (format::duration(time), format::duration(plan.work()));
    let key = if plan.lifetime() < plan.ttl.0 { "max_cost" } else { "ttl" };
    let source = &outlook.pace.as_ref().ok()?.source;
    Some(format!("training takes about {time} ({source}), longer than the {most} that limits.{key} allows"))
}

/// A job that would end before it begins.
pub(super) fn has_no_patience(plan: &Plan) -> Option<String> {
    let ends = plan.compute.queues() && plan.patience().is_zero();
    ends.then(|| {
        format!(
            "every job on {} waits in its queue for a node, and this one may not wait: it would end with exit code {}; \
             add \"capacity\" to retry.on",
            plan.backend(),
            Exit::Capacity as u8
        )
    })
}

/// Files on their way to the store, or from the hub.
struct Transfer {
    files: usize,
    bytes: u64,
}

impl Transfer {
    /// The files of a model that are needed; `None` where they cannot be told.
    fn of(directory: &Path) -> Option<Self> {
        let files = upload::needed(directory).ok()?;
        let bytes = files.iter().map(|file| file.metadata().map(|metadata| metadata.len())).sum::<std::io::Result<u64>>().ok()?;
        Some(Self { files: files.len(), bytes })
    }
}

impl Show for Planned {
    fn schema(&self) -> &'static str {
        PLAN_SCHEMA
    }

    fn json(&self) -> Value {
        let mut value = json!(self.plan);
        value["numbers"] = self.numbers().into();
        value["expected"] = self.expected();
        value["missing"] = json!(self.missing.iter().chain(&self.refused).collect::<Vec<_>>());
        value["warnings"] = json!(self.warnings);
        if !self.room.is_empty() {
            value["room"] = json!(self.room);
        }
        for (key, transfer) in [("weights_upload", &self.weights), ("hub_download", &self.fetched)] {
            if let Some(Transfer { files, bytes }) = transfer {
                value[key] = json!({ "files": files, "bytes": bytes });
            }
        }
        if let Some(exposure) = &self.exposure {
            value["exposure"] = json!(exposure);
        }
        value
    }

    fn text(&self) -> String {
        let Self { plan, room, outlook, exposure, .. } = self;
        let mut table = Table::default();
        table.pair("job", &plan.name);
        table.pair("backend", plan.backend());
        for (name, value) in registry::rows(plan) {
            table.pair(name, value);
        }
        if let Some(image) = plan.image() {
            table.pair("image", image);
        }
        table.pair("store", &plan.store);
        table.pair("data", data(plan, outlook));
        if let Some(weights) = &plan.initial_weights {
            let size = self.weights.as_ref().map(|Transfer { files, bytes }| {
                format!(" ({} in {} to upload)", format::bytes(*bytes), format::of(*files as u64, "file"))
            });
            table.pair("starts from", format!("{}{}", self.of_job.as_ref().unwrap_or(weights), size.unwrap_or_default()));
        }
        if let Some(Transfer { files, bytes }) = &self.fetched {
            let what = format!("{} in {}, when the job begins", format::bytes(*bytes), format::of(*files as u64, "file"));
            table.pair("to fetch", what);
        }
        if let Some(shape) = &outlook.shape {
            table.pair("model", format!("{} parameters", format::number(shape.parameters())));
        }
        if plan.processes > 1 {
            table.pair("processes", processes(plan));
        }
        table.pair("training", training(plan, outlook));
        if let Some(shape) = &outlook.shape {
            table.pair("memory", Memory::of(plan, shape).text(plan));
            if let Some(memory) = Memory::of_fewer(plan, shape) {
                table.pair("on fewer nodes", memory.text_of_fewer(plan));
            }
        }
        if let Some(address) = plan.tracking.server() {
            table.pair("tracking", address);
        }
        table.pair("attempts", format!("at most {}", plan.retry.attempts));
        table.pair("time to live", life(plan));
        // Only what costs money is ever out of stock, or in a queue.
        if plan.price_per_hour > Money::ZERO {
            table.pair("longest wait", plan.max_wait.to_string());
        }
        table.pair("price", price(plan));
        table.pair("expected", expected(plan, outlook));
        table.pair("worst case", worst_case(plan));
        for finding in room.iter().chain(exposure) {
            table.pair(finding.what, &finding.message);
        }
        for finding in &self.missing {
            let fix = finding.fix.as_ref().map(|fix| format!("\nfix: {fix}")).unwrap_or_default();
            table.pair("missing", format!("{}: {}{fix}", finding.what, finding.message));
        }
        table.render()
    }

    fn names(&self) -> Vec<String> {
        vec![self.plan.name.clone()]
    }
}

fn data(plan: &Plan, outlook: &Outlook) -> String {
    let from = match &plan.data {
        DataPlan::Digest(digest) => format!("dataset {digest}"),
        DataPlan::Named(name) => format!("dataset {name} of the store"),
        DataPlan::Directory(directory) => format!("prepared, in {directory}"),
        DataPlan::Text(config) => match config.source {
            Some(source) => format!("text from {}", json!(source).as_str().unwrap_or_default()),
            None => format!("text from {}", config.train.join(", ")),
        },
    };
    let estimate = |text: &Uncounted| {
        let tokens = format::of(text.tokens(), "token");
        format!(": about {tokens} (estimated from its {}, at {} bytes a token)", format::bytes(text.bytes), upload::BYTES_A_TOKEN)
    };
    let Some(data) = &outlook.data else { return from + &outlook.text.as_ref().map(estimate).unwrap_or_default() };
    let (tokens, documents) = (format::of(data.train.tokens, "token"), format::of(data.train.documents, "document"));
    let validation = match data.validation.tokens {
        0 => "none".to_owned(),
        tokens => format::number(tokens),
    };
    format!("{from}: {tokens} in {documents}, and {validation} for validation")
}

fn training(plan: &Plan, outlook: &Outlook) -> String {
    let shared = if plan.processes > 1 { format!(", each by {} processes", plan.processes) } else { String::new() };
    let tokens = plan.train.tokens_per_step();
    let about = |is_estimate| if is_estimate { "about " } else { "" };
    match (outlook.steps, outlook.epochs) {
        (Some(steps), Some(epochs)) => {
            let (of_steps, of_epochs) = (about(outlook.estimates_steps(plan)), about(outlook.text.is_some() && epochs >= 0.01));
            format!("{of_steps}{steps} steps of {tokens} tokens{shared}: {of_epochs}{}", passes(epochs))
        }
        (Some(steps), None) => format!("{steps} steps of {tokens} tokens{shared}"),
        (None, _) => format!("{}, in steps of {tokens} tokens{shared}", passes(plan.train.epochs.unwrap_or(1.0))),
    }
}

/// Who shares a step, and what each does of it.
fn processes(plan: &Plan) -> String {
    let nodes = if plan.nodes > 1 { format!("{} nodes × ", plan.nodes) } else { String::new() };
    let (sequences, leaves) = (plan.train.sequences_per_step(), plan.train.leaves());
    let each = plan.train.gradient_accumulation / plan.processes;
    let each = format!("train.gradient_accumulation = {each} is what one of them does");
    let on_node = plan.processes_per_node();
    let of_gpus = if plan.compute.gpus() == u32::try_from(on_node).ok() { ", one for each GPU" } else { "" };
    let depends = "; with train.reduction = \"fast\" the last digits of the results depend on the number of processes";
    let depends = if plan.train.depends_on_processes(plan.processes) { depends } else { "" };
    format!("{nodes}{on_node}{of_gpus}: {sequences} sequences a step, in {leaves} groups (train.leaves); {each}{depends}")
}

fn passes(epochs: f64) -> String {
    if epochs < 0.01 {
        return "less than 0.01 epochs".to_owned();
    }
    let number = if epochs < 1.0 { format!("{epochs:.2}") } else { format!("{epochs:.1}") };
    let number = number.trim_end_matches('0').trim_end_matches('.');
    format!("{number} epoch{}", if number == "1" { "" } else { "s" })
}

/// How long its machines live, all together.
fn life(plan: &Plan) -> String {
    let (ttl, life) = (plan.ttl, Span(plan.lifetime()));
    match plan.max_cost {
        Some(most) if life < ttl => format!("{life}: what {most:#} pays for (limits.ttl is {ttl})"),
        _ => ttl.to_string(),
    }
}

fn expected(plan: &Plan, outlook: &Outlook) -> String {
    let pace = match &outlook.pace {
        Ok(pace) => pace,
        Err(why) => return format!("not known: {why}"),
    };
    let (Some(time), Some(cost)) = (outlook.time(plan), outlook.cost(plan)) else { return format!("not known: {NO_STEPS}") };
    let cost = if cost == Money::ZERO { String::new() } else { format!(" and {cost}") };
    let (time, rate) = (format::duration(time), format::number(pace.tokens_per_second.round() as u64));
    let steps = if outlook.estimates_steps(plan) { " for the steps that the text is estimated to have" } else { "" };
    format!("about {time} of training{cost}{steps}, at {rate} tokens/s ({})", pace.source)
}

fn price(plan: &Plan) -> String {
    let lasting = registry::lasting_price(plan).map(|price| format!("; on demand: {price} an hour")).unwrap_or_default();
    let source = plan.price_source.as_ref().map(|source| format!(" ({source})")).unwrap_or_default();
    format!("{} an hour{lasting}{source}", plan.price_per_hour)
}

fn worst_case(plan: &Plan) -> String {
    if plan.worst_case == Money::ZERO { "nothing: this backend does not bill".to_owned() } else { plan.worst_case.to_string() }
}
