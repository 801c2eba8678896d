//! A job that is over goes on: the next attempt of the same job, from its last checkpoint.

use ft_trainer::{
    model::hugging_face::CONFIG_FILE,
    preflight,
    settings::{Engine, TrainSettings},
    state::Identity,
};
use serde_json::Value;

use super::{Result, World, journal::Journal, open, upload};
use crate::{
    exit::{Exit, Failure},
    job::{
        difference,
        event::{Event, EventKind},
        id::{MAX_ATTEMPTS, path},
        plan::{Plan, Price},
        record::Record,
        state::{Outcome, State},
        units::Span,
    },
    store::{checkpoint, dataset},
};

/// Hands the job over once more, with the plan that it has from now on. An invocation that was faster wins.
///
/// # Errors
/// [`Exit::Conflict`] for a job that is not over, or whose name another job has; [`Exit::Usage`] for settings that its checkpoint
/// does not fit; [`Exit::Refused`] when nothing is left of its time and money.
pub async fn resume(world: &World, before: &Record, plan: Plan) -> Result<Record> {
    may_go_on(world, before, &plan).await?;
    let (store, id) = (world.store.as_ref(), &before.id);
    open::take_name(store, id).await?;
    let is_own = world.adoption.is_own(before);
    let _alone = if is_own { Some(world.adoption.alone().await?) } else { None };
    let mut job = Journal::load(world, id).await?;
    if job.record != *before {
        return Err(Failure::new(Exit::Conflict, format!("the job {id} was changed meanwhile"))
            .fix(format!("`ftctl status {id}` shows what it does")));
    }
    if is_own {
        world.adoption.go_on(before, &plan)?;
    }
    store.delete(&path::cancel(id)).await?;
    let state = if has_material(world, before, &plan).await? { State::Imaging } else { State::Planned };
    let record = &mut job.record;
    (record.outcome, record.reason, record.exit) = (None, None, None);
    // They had as many machines and processes as the plan had.
    for attempt in &mut record.attempts {
        attempt.nodes.get_or_insert(before.plan.nodes);
        attempt.processes_per_node.get_or_insert(before.plan.processes_per_node());
    }
    (record.plan, record.submitted) = (plan, true);
    job.note(EventKind::Note { message: "the job goes on".to_owned() });
    job.enter(state).await?;
    Ok(job.record)
}

/// Whether the job went on with this plan before, and does so or has succeeded: the same command again follows it.
pub fn goes_on(before: &Record, plan: &Plan) -> bool {
    let is_end = |event: &&Event| event.kind == EventKind::Entered { state: State::Finished };
    let is_over = before.state.is_finished();
    let went_on = before.events.iter().filter(is_end).count() > usize::from(is_over);
    went_on && before.plan == *plan && (!is_over || before.outcome == Some(Outcome::Succeeded))
}

/// Everything that the machine would find out, while nothing costs money yet.
pub async fn may_go_on(world: &World, before: &Record, plan: &Plan) -> Result<()> {
    let id = &before.id;
    if before.removing {
        return Err(open::is_removed(id));
    }
    if !before.state.is_finished() {
        let message = format!("the job {id} is not over: it is {}", before.label());
        return Err(Failure::new(Exit::Conflict, message).fix(format!("follow it with `ftctl logs -f {id}`")));
    }
    if !world.adoption.may_drive(before) && !world.adoption.may_drive(&Record { plan: plan.clone(), ..before.clone() }) {
        let message = format!("the job {id} was not submitted on this machine");
        return Err(Failure::new(Exit::Conflict, message)
            .for_good()
            .fix("add --adopt: it shows what would be started, and asks first; or run it there"));
    }
    if before.attempt >= MAX_ATTEMPTS {
        return Err(Failure::new(Exit::Refused, format!("the job {id} has had {MAX_ATTEMPTS} attempts, the most that a job has")));
    }
    let step = checkpoint::latest(world.store.as_ref(), id).await?.map_or(0, |checkpoint| checkpoint.step);
    check_settings(before, plan, step)?;
    check_length(before, plan)?;
    check_time(world, before, plan)?;
    let tokens = check_stored(world, before, plan).await?;
    if step == 0 { Ok(()) } else { check_end(before, plan, tokens) }
}

/// Refuses what the trainer would refuse of the data in the store, such as a prompt that is too long now. Answers how many tokens
/// there are to train on, where that is known.
async fn check_stored(world: &World, before: &Record, plan: &Plan) -> Result<Option<u64>> {
    let Some(data) = before.dataset.clone() else { return Ok(None) };
    if !has_material(world, before, plan).await? {
        return Ok(None);
    }
    let trouble = |error| Failure::new(Exit::Failure, format!("cannot keep the shape of the weights for a moment: {error}"));
    let folder = tempfile::tempdir().map_err(trouble)?;
    let mut plan = plan.clone();
    if let Some(weights) = &before.initial_weights {
        let Some(shape) = dataset::small_file(world.store.as_ref(), weights, CONFIG_FILE).await? else { return Ok(None) };
        std::fs::write(folder.path().join(CONFIG_FILE), shape).map_err(trouble)?;
        plan.initial_weights = Some(folder.path().to_string_lossy().into_owned());
    }
    let (_, known) = upload::check_stored(world, &plan, data).await?;
    Ok(known.map(|known| known.data.train.tokens))
}

/// The learning rate can follow a longer schedule from any step on. A shorter one would have led elsewhere, so the trainer refuses
/// the checkpoint.
fn check_end(before: &Record, plan: &Plan, tokens: Option<u64>) -> Result<()> {
    let steps = |train: &TrainSettings| {
        let sampler = tokens.and_then(|tokens| preflight::sampler(tokens, train).ok());
        sampler.map(|sampler| preflight::steps(train, sampler.blocks())).or(train.steps)
    };
    let (Some(was), Some(now)) = (steps(&before.plan.train), steps(&plan.train)) else { return Ok(()) };
    if now > was || !changes_length(&before.plan.train, &plan.train) {
        return Ok(());
    }
    let message = format!("the job {} is a run of {was} steps: it can be made longer, and not end at step {now}", before.id);
    Err(Failure::new(Exit::Usage, message).fix(format!("leave its length as it is, or give train.steps above {was}")))
}

/// A job that succeeded has nothing to do, unless it is made longer.
fn check_length(before: &Record, plan: &Plan) -> Result<()> {
    if before.outcome != Some(Outcome::Succeeded) || changes_length(&before.plan.train, &plan.train) {
        return Ok(());
    }
    Err(Failure::new(Exit::Usage, format!("the job {} succeeded: there is nothing left to do", before.id))
        .fix("make it longer: --set train.steps=..., or --set train.epochs=..."))
}

fn changes_length(before: &TrainSettings, now: &TrainSettings) -> bool {
    (before.steps, before.epochs) != (now.steps, now.epochs)
}

/// A checkpoint belongs to the settings that decide a run's result.
fn check_settings(before: &Record, plan: &Plan, step: u64) -> Result<()> {
    let place = |plan: &Plan| [plan.name.clone(), plan.backend().to_owned(), plan.store.clone()];
    if place(plan) != place(&before.plan) {
        return Err(Failure::new(Exit::Usage, "a job that goes on keeps its name, its backend and its store")
            .fix("submit another job with `initial_weights` from `ftctl download`"));
    }
    if step == 0 {
        return Ok(());
    }
    let material = Plan {
        data: before.plan.data.clone(),
        initial_weights: before.plan.initial_weights.clone(),
        model: before.plan.model.clone(),
        ..plan.clone()
    };
    let mut wrong: Vec<String> = difference::of_plans(&material, plan).iter().map(ToString::to_string).collect();
    let identity = |plan: &Plan| Identity::new(String::new(), None, Value::Null, &plan.train);
    let is_longer = changes_length(&before.plan.train, &plan.train);
    wrong.extend(identity(plan)?.differences(&identity(&before.plan)?, is_longer));
    let step_key = "train.gradient_accumulation: ";
    if let Some(line) = wrong.iter_mut().find(|line| line.starts_with(step_key)) {
        *line = format!("{step_key}{} in the checkpoint, {} now", of_each(&before.plan), of_each(plan));
    }
    let [was, now] = [&before.plan.train, &plan.train].map(TrainSettings::leaves);
    if was != now {
        wrong.push(format!("train.leaves: {was} in the checkpoint, {now} now"));
    }
    wrong.extend(other_threads(&before.plan.train, &plan.train));
    let wrong: Vec<String> = wrong.iter().map(|line| parenthesized(line)).collect();
    if wrong.is_empty() {
        return Ok(());
    }
    Err(Failure::new(Exit::Usage, format!("{} cannot change in a resumed job", wrong.join(" and ")))
        .fix(format!("submit a new job with initial_weights = \"job:{}\"", before.id)))
}

/// The part of a step that each process does, as a job file says it.
fn of_each(plan: &Plan) -> String {
    let each = plan.train.gradient_accumulation / plan.processes.max(1);
    if plan.processes > 1 { format!("{each} for each of {} processes", plan.processes) } else { each.to_string() }
}

/// The number of threads that a run keeps with libtorch's kernels, whose last digits depend on it, if it is asked for another one.
fn other_threads(before: &TrainSettings, now: &TrainSettings) -> Option<String> {
    let asked = now.threads.filter(|_| now.engine == Engine::Libtorch && now.threads != before.threads)?;
    let was = before.threads.map_or("all cores".to_owned(), |threads| threads.to_string());
    Some(format!("train.threads: {was} in the checkpoint, {asked} now"))
}

/// A line that begins with a key, with the rest of it in parentheses.
fn parenthesized(line: &str) -> String {
    line.split_once(' ').map_or_else(|| line.to_owned(), |(key, rest)| format!("{} ({rest})", key.trim_end_matches(':')))
}

/// Earlier machines count: time and money are the job's, and so is its patience.
fn check_time(world: &World, before: &Record, plan: &Plan) -> Result<()> {
    let now = world.clock.now();
    let waited = before.waited(now);
    if !plan.patience().is_zero() && waited >= plan.patience() {
        let message = format!("{} has waited {} for machines, and may wait {} in all", before.id, Span(waited), plan.max_wait);
        return Err(Failure::new(Exit::Refused, message).fix("raise --max-wait: it counts all waits together"));
    }
    let lives = before.lives(now, |_| true);
    if plan.left(&lives, plan.nodes).is_some() {
        return Ok(());
    }
    let used = Span(lives.iter().map(|life| life.time).sum());
    let ceiling = plan.max_cost.map(|money| format!(" and a ceiling of {money:#}")).unwrap_or_default();
    let message =
        format!("the machines of {} have run for {used}: with a time to live of {}{ceiling} no time is left", before.id, plan.ttl);
    Err(Failure::new(Exit::Refused, message).fix("raise --ttl or --max-cost: both count all attempts together"))
}

/// The plan with today's price of its machine. Where a ceiling holds, its time is counted at one price, which must not fall below
/// what earlier machines cost: the job would cost more than its ceiling.
pub async fn priced(world: &World, before: &Record, plan: Plan) -> Result<Plan> {
    // Of as many machines.
    let (today, known) = (world.provider.price(&plan).await?, before.plan.at_nodes(plan.nodes));
    if plan.max_cost.is_none() || before.attempts.is_empty() || today.per_hour >= known.price_per_hour {
        return Ok(plan.priced(today)?);
    }
    if plan.compute != known.compute {
        let message = "a job with a ceiling on its cost cannot go on with a cheaper machine: the time of all attempts is counted at one price";
        return Err(Failure::new(Exit::Refused, message).fix("keep the machine, or leave the ceiling out: --set limits.max_cost="));
    }
    let (lasting, source) = (known.lasting_price_per_hour, known.price_source.clone());
    Ok(plan.priced(Price { per_hour: known.price_per_hour, lasting, source })?)
}

/// Whether the store still has what the job's machines read.
async fn has_material(world: &World, before: &Record, plan: &Plan) -> Result<bool> {
    let Some(data) = before.dataset.as_ref().filter(|_| plan.data == before.plan.data) else { return Ok(false) };
    if plan.initial_weights != before.plan.initial_weights || plan.initial_weights.is_some() != before.initial_weights.is_some() {
        return Ok(false);
    }
    for digest in std::iter::once(data).chain(&before.initial_weights) {
        if !dataset::exists(world.store.as_ref(), digest).await? {
            return Ok(false);
        }
    }
    Ok(true)
}
