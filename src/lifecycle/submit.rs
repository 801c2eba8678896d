//! The order is written and the agent started.

use std::time::Duration;

use bytes::Bytes;

use super::{Next, Result, STAGES, World, image, journal::Journal, publish};
use crate::{
    exit::{Exit, Failure},
    job::{
        clock::after,
        id::{AttemptId, path},
        order::{ORDER_SCHEMA, RunOrder, TrainerImage},
        plan::Plan,
        record::Record,
        state::State,
    },
    provider::{Class, Sighting},
    store::Condition,
};

pub(super) async fn step(world: &World, job: &mut Journal) -> Result<Next> {
    // Following what `up` made ready does not start it. It may have been submitted since the record was read: a conflict is looked
    // at again.
    if !job.record.submitted {
        let id = &job.record.id;
        return Err(Failure::new(Exit::Conflict, format!("the job {id} is ready, and was not submitted"))
            .fix(format!("`ftctl submit` with its file starts it, `ftctl down {id}` undoes it")));
    }
    if job.record.attempt == 1 {
        world.report.stage(4, STAGES, "Submitting");
    }
    let attempt = AttemptId::new(&job.record.id, job.record.attempt);
    // A machine that was taken away before its agent lived is an attempt that ended, not one to start.
    if !matches!(world.provider.observe(&attempt).await?, Sighting::Alive { .. } | Sighting::Queued { .. }) {
        job.enter(State::Running).await?;
        return Ok(Next::Now);
    }
    let order = order(world, &job.record, image::of(world, &job.record).await?)?;
    let bytes = serde_json::to_vec_pretty(&order).map_err(|error| Failure::new(Exit::Failure, error.to_string()))?;
    world.store.put(&path::order(&job.record.id), Bytes::from(bytes), Condition::Always).await?;
    match world.provider.launch(&order).await {
        Ok(()) => {}
        // Whether it started is seen by looking.
        Err(error) if error.class == Class::Network => return Ok(Next::After(job.record.plan.retry.pause(1))),
        Err(error) => return Err(error.into()),
    }
    job.enter(State::Running).await?;
    if job.record.attempt == 1 {
        world.report.stage(5, STAGES, "Running");
        publish::store(world).await;
    }
    Ok(Next::Now)
}

fn order(world: &World, record: &Record, trainer: TrainerImage) -> Result<RunOrder> {
    let missing = |what| Failure::new(Exit::Failure, format!("the record of job {} names no {what}", record.id));
    let now = world.clock.now();
    let (left, shared) = (record.left(now), record.plan.on(record.nodes()));
    let of_plan = |time: fn(&Plan) -> Duration| left.as_ref().map_or(Duration::ZERO, time);
    let lifetime = of_plan(Plan::lifetime);
    // In a queue it is not known when the machine's time begins: at the latest when the job has waited for as long as it may. The
    // kill switch of machines that the backend makes by itself does not wait.
    let patience = if record.plan.replaces_machines() { Duration::ZERO } else { record.plan.patience() };
    let latest = || after(now, lifetime.saturating_add(patience.saturating_sub(record.waited(now))));
    let deadline = record.attempts.last().and_then(|attempt| attempt.deadline).unwrap_or_else(latest);
    Ok(RunOrder {
        schema: ORDER_SCHEMA.to_owned(),
        job: record.id.clone(),
        attempt: record.attempt,
        store: world.store.url().to_owned(),
        dataset: record.dataset.clone().ok_or_else(|| missing("dataset"))?,
        initial_weights: record.initial_weights.clone(),
        trainer,
        environment: record.plan.environment.clone(),
        model: record.plan.model.clone(),
        train: record.plan.train.clone(),
        processes: shared.processes,
        nodes: shared.nodes,
        sample: record.plan.sample.clone(),
        deadline: Some(deadline),
        lifetime_seconds: Some(of_plan(Plan::work).as_secs()),
        grace_seconds: record.plan.farewell().as_secs(),
        tracking: record.plan.tracking.clone(),
        last_attempt: record.plan.replaces_machines().then(|| record.last_attempt()),
    })
}
