//! Opens a job, or finds it: which one an invocation works on. One name belongs to one job at a time.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::{
    Result, World, content,
    drive::{Until, drive},
    journal,
    journal::Journal,
    watch::Watch,
};
use crate::{
    exit::{Exit, Failure},
    job::{
        difference,
        id::{JobId, path},
        plan::Plan,
        record::Record,
    },
    store::{Condition, ETag, Store, find_json, write_json},
};

const NAME_SCHEMA: &str = "ftctl.name/1";

/// How often a job that waits for its name looks whether it is free.
const QUEUE: Duration = Duration::from_secs(2);
/// In which another ftctl that has reserved a name writes the record of its job, unless it was killed.
const RESERVED: Duration = Duration::from_secs(5);

/// `names/<name>.json`: the newest job of that name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct NameEntry {
    schema: String,
    id: JobId,
}

/// The entry of a name, which is of a job of that name.
async fn entry(store: &dyn Store, name: &str) -> Result<Option<(NameEntry, ETag)>> {
    let path = path::name(name);
    let Some((entry, etag)) = find_json::<NameEntry>(store, &path).await? else { return Ok(None) };
    if entry.id.name() == name && entry.schema == NAME_SCHEMA {
        return Ok(Some((entry, etag)));
    }
    let message = format!("{path} is damaged: it names the job {}", entry.id);
    Err(Failure::new(Exit::Integrity, message)
        .fix("remove it from the store: the job can be named by its id, which `ftctl status --all` shows"))
}

/// The job of this plan: the one that `up` left waiting, or the one of this idempotency key, or a new one. The name is reserved
/// before the record is written, so a crash in between leaves a name that the next invocation takes over, never two jobs. Of two
/// invocations at once, each of which means a job of its own, one has the name.
///
/// # Errors
/// [`Exit::Conflict`] when an unfinished job has the name.
pub async fn open(world: &World, plan: Plan, key: Option<&str>, submit: bool) -> Result<Journal> {
    match Box::pin(try_to_open(world, plan.clone(), key, submit)).await {
        // Another invocation was faster: its record may be this very job.
        Err(failure) if failure.exit == Exit::Conflict => Box::pin(try_to_open(world, plan, key, submit)).await,
        opened => opened,
    }
}

async fn try_to_open(world: &World, plan: Plan, key: Option<&str>, submit: bool) -> Result<Journal> {
    let store = world.store.as_ref();
    let fresh = match key {
        Some(key) => of_key(store, &plan.name, key).await?,
        None => JobId::derive(&plan.name, &nonce()),
    };
    // Its name may belong to a later job by now, which keeps it.
    if key.is_some() && store.head(&path::record(&fresh)).await?.is_some() {
        return resume(world, &fresh, &plan, key, submit).await;
    }
    let (id, condition) = match entry(store, &plan.name).await? {
        None => (fresh, Condition::IfAbsent),
        Some((entry, etag)) => match journal::read(store, &entry.id).await {
            Err(failure) if failure.exit == Exit::NotFound && entry.id == fresh => {
                return create(world, fresh, plan, key, submit).await;
            }
            Err(failure) if failure.exit == Exit::NotFound => {
                if has_changed(store, &entry).await? {
                    return Box::pin(try_to_open(world, plan, key, submit)).await;
                }
                (fresh, Condition::IfMatch(etag))
            }
            Err(failure) => return Err(failure),
            Ok((record, _)) if !record.state.is_finished() || has_key(&record, key) => {
                return resume(world, &entry.id, &plan, key, submit).await;
            }
            Ok(_) => (fresh, Condition::IfMatch(etag)),
        },
    };
    let entry = NameEntry { schema: NAME_SCHEMA.to_owned(), id: id.clone() };
    write_json(store, &path::name(&plan.name), &entry, condition).await?;
    create(world, id, plan, key, submit).await
}

/// The id that a key stands for. The store is part of it: the same key in another store, as the numbers of builds are, is another
/// job, and no machine is taken for that of both. An older ftctl left the store out: a job that it made so keeps its id.
async fn of_key(store: &dyn Store, name: &str, key: &str) -> Result<JobId> {
    let older = JobId::derive(name, &format!("key {key}"));
    match journal::read(store, &older).await {
        Ok((record, _)) if has_key(&record, Some(key)) => Ok(older),
        Err(failure) if failure.exit != Exit::NotFound => Err(failure),
        _ => Ok(JobId::derive(name, &format!("key {key}\0store {}", store.identity().await?))),
    }
}

fn has_key(record: &Record, key: Option<&str>) -> bool {
    key.is_some() && record.idempotency_key.as_deref() == key
}

async fn create(world: &World, id: JobId, plan: Plan, key: Option<&str>, submit: bool) -> Result<Journal> {
    world.adoption.prove(&id, &plan, None)?;
    let mut record = Record::new(id, plan.clone(), world.clock.now());
    (record.submitted, record.idempotency_key) = (submit, key.map(str::to_owned));
    record.simulated = world.provider.capabilities().simulated;
    record.account = world.provider.name().map(|(name, _)| name);
    let job = Journal::create(world, record).await?;
    // One that took long to come so far may have been taken for killed.
    if entry(world.store.as_ref(), &plan.name).await?.is_none_or(|(entry, _)| entry.id != job.record.id) {
        world.store.delete(&path::record(&job.record.id)).await?;
        return Err(Failure::new(Exit::Conflict, format!("another ftctl took the name `{}` meanwhile", plan.name)));
    }
    go_on(world, job, &plan, key, submit).await
}

/// Waits for the record of a name that another ftctl has reserved. `false` when none comes: that one was killed.
async fn has_changed(store: &dyn Store, reserved: &NameEntry) -> Result<bool> {
    let since = Instant::now();
    while since.elapsed() < RESERVED {
        if store.head(&path::record(&reserved.id)).await?.is_some()
            || entry(store, reserved.id.name()).await?.is_none_or(|(entry, _)| entry != *reserved)
        {
            return Ok(true);
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    Ok(false)
}

/// Goes on with a job that exists: after `up`, or with the same idempotency key.
async fn resume(world: &World, id: &JobId, plan: &Plan, key: Option<&str>, submit: bool) -> Result<Journal> {
    let job = Journal::load(world, id).await?;
    if job.record.submitted && !has_key(&job.record, key) {
        let message = format!("the name `{}` belongs to the job {id}, which is not finished", plan.name);
        return Err(Failure::new(Exit::Conflict, message)
            .fix(format!("follow it with `ftctl logs -f {id}`, end it with `ftctl cancel {id}`, or give this job another name")));
    }
    go_on(world, job, plan, key, submit).await
}

/// Returns when no unfinished job has the name, but for the job of the key: `--queue`. Says what it waits for, and drives it where
/// it may: its own driver may be gone. `world_of` opens the world of the job that has the name.
pub async fn wait_for_name(world: &World, name: &str, key: Option<&str>, world_of: impl Fn(&Plan) -> Result<World>) -> Result<()> {
    let (mut told, mut watch) = (None, Watch::default());
    while let Some(record) = in_the_way(world.store.as_ref(), name, key).await? {
        if told.as_ref() != Some(&record.id) {
            world.report.line(&format!("waiting for the job {} of this name to end", record.id));
            (told, watch) = (Some(record.id.clone()), Watch::default());
        }
        match world_of(&record.plan) {
            Ok(its) if its.adoption.may_drive(&record) && its.admits(&record).is_ok() => {
                // One that is removed is no longer in the way.
                if let Err(failure) = drive(&its, &record.id, Until::Finished).await
                    && failure.exit != Exit::NotFound
                {
                    return Err(failure);
                }
            }
            _ => {
                watch.look(world, &record).await;
                world.clock.sleep(QUEUE).await;
            }
        }
    }
    Ok(())
}

/// The unfinished job that has the name.
async fn in_the_way(store: &dyn Store, name: &str, key: Option<&str>) -> Result<Option<Record>> {
    let Some((entry, _)) = entry(store, name).await? else { return Ok(None) };
    match journal::read(store, &entry.id).await {
        Ok((record, _)) => {
            Ok(Some(record).filter(|record| !record.state.is_finished() && record.submitted && !has_key(record, key)))
        }
        Err(failure) if failure.exit == Exit::NotFound => Ok(None),
        Err(failure) => Err(failure),
    }
}

/// With the plan that the user gave, and with the same files behind its paths; with nothing else.
async fn go_on(world: &World, mut job: Journal, plan: &Plan, key: Option<&str>, submit: bool) -> Result<Journal> {
    let id = &job.record.id;
    // The names of the hub mean what they meant then.
    let plan = &Plan { hub: job.record.plan.meant_before(plan), ..plan.clone() };
    if job.record.plan != *plan {
        let differences = difference::sentence(&difference::of_plans(&job.record.plan, plan));
        return Err(is_another(&job.record, key, &format!("was planned with other settings: {differences}")));
    }
    let changed = content::changed(world, &job.record, plan).await?;
    if !changed.is_empty() {
        return Err(is_another(&job.record, key, &format!("was given other data: {}", changed.join("; "))));
    }
    if key.is_some() && job.record.state.is_finished() {
        let label = job.record.state.label(job.record.outcome);
        world.report.line(&format!("the job of this key, {id}, is over: {label}; another --idempotency-key starts another job"));
    }
    hand_over(&mut job, key, submit).await?;
    Ok(job)
}

/// The refusal of a command that means another job than the one that its key or its name has.
fn is_another(record: &Record, key: Option<&str>, how: &str) -> Failure {
    let id = &record.id;
    let other = match (key.is_some(), record.state.is_finished()) {
        (true, true) => "take another --idempotency-key".to_owned(),
        (true, false) => {
            format!("take another --idempotency-key, and another name while it goes on, or end that job with `ftctl down {id}`")
        }
        (false, _) => format!("end that job with `ftctl down {id}`"),
    };
    Failure::new(Exit::Conflict, format!("the job {id} {how}")).for_good().fix(other)
}

async fn hand_over(job: &mut Journal, key: Option<&str>, submit: bool) -> Result<()> {
    if submit && !job.record.submitted {
        (job.record.submitted, job.record.idempotency_key) = (true, key.map(str::to_owned));
        job.save().await?;
    }
    Ok(())
}

/// Different for every job ever: the time and the process.
fn nonce() -> String {
    format!("{:?} {}", std::time::SystemTime::now(), std::process::id())
}

/// Gives a job that goes on its name, which a later job may have had.
///
/// # Errors
/// [`Exit::Conflict`] when an unfinished job has it.
pub async fn take_name(store: &dyn Store, id: &JobId) -> Result<()> {
    let condition = match entry(store, id.name()).await? {
        None => Condition::IfAbsent,
        Some((entry, _)) if entry.id == *id => return Ok(()),
        Some((entry, etag)) => match journal::read(store, &entry.id).await {
            Ok((record, _)) if !record.state.is_finished() => {
                let message = format!("the name `{}` belongs to the job {} now, which is not finished", id.name(), entry.id);
                return Err(Failure::new(Exit::Conflict, message).fix(format!("wait for its end: ftctl wait {}", entry.id)));
            }
            Err(failure) if failure.exit != Exit::NotFound => return Err(failure),
            _ => Condition::IfMatch(etag),
        },
    };
    let entry = NameEntry { schema: NAME_SCHEMA.to_owned(), id: id.clone() };
    write_json(store, &path::name(id.name()), &entry, condition).await?;
    // A removal that began meanwhile may have looked at the name before.
    match journal::read(store, id).await {
        Ok((record, _)) if !record.removing => Ok(()),
        Err(failure) if failure.exit != Exit::NotFound => Err(failure),
        _ => release(store, id).await.and(Err(is_removed(id))),
    }
}

/// The refusal to go on with a job that goes, or is gone.
pub(super) fn is_removed(id: &JobId) -> Failure {
    Failure::new(Exit::Conflict, format!("the job {id} is being removed: parts of it may be gone"))
        .for_good()
        .fix(format!("remove the rest: ftctl rm {id}"))
}

/// Takes its name from a job, unless a later job has it. The newest of the others that had it has it again.
pub async fn release(store: &dyn Store, id: &JobId) -> Result<()> {
    let path = path::name(id.name());
    let Some((_, etag)) = entry(store, id.name()).await?.filter(|(entry, _)| entry.id == *id) else { return Ok(()) };
    let mut newest = None;
    for other in store.children(&path::jobs()).await?.iter().filter_map(|name| JobId::parse(name)) {
        if other.name() != id.name() || other == *id {
            continue;
        }
        match journal::read(store, &other).await {
            Ok((record, _)) => newest = newest.max(Some((record.created, other))),
            // A damaged one is found by its id.
            Err(failure) if matches!(failure.exit, Exit::NotFound | Exit::Integrity) => {}
            Err(failure) => return Err(failure),
        }
    }
    match newest {
        None => Ok(store.delete(&path).await?),
        Some((_, id)) => {
            let entry = NameEntry { schema: NAME_SCHEMA.to_owned(), id };
            Ok(write_json(store, &path, &entry, Condition::IfMatch(etag)).await.map(drop)?)
        }
    }
}

/// The job that a user means by an id or by a name.
pub async fn find(store: &dyn Store, text: &str) -> Result<JobId> {
    if let Some(id) = JobId::parse(text)
        && store.head(&path::record(&id)).await?.is_some()
    {
        return Ok(id);
    }
    let entry = if crate::job::id::valid_name(text) { entry(store, text).await? } else { None };
    entry.map(|(entry, _)| entry.id).ok_or_else(|| {
        Failure::new(Exit::NotFound, format!("there is no job `{text}` in the store {}", store.url()))
            .fix("`ftctl status --all` lists the jobs of this store")
    })
}
