//! Suites of checks that every provider passes: [`machines`], of which [`services`] is a part.

pub mod histories;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use ft_trainer::settings::{ModelConfig, TrainSettings};
use tokio::time::{Instant, sleep};

use super::{Class, Provider, Resource, Sighting, Whose};
use crate::job::{
    compute::Compute,
    digest::Digest,
    id::{AttemptId, JobId},
    image::ImageSpec,
    order::{ORDER_SCHEMA, RunOrder, TrainerImage},
    plan::{DEFAULT_MAX_WAIT, DataPlan, PLAN_SCHEMA, Plan, RetryPlan},
    tracking::TrackingSpec,
    units::{Money, Span},
};

/// How long a service may take to give an attempt its turn, and how often that is looked at.
const TURN: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(20);

/// The place under test: how agents end there and what can be known of them is its own affair.
#[async_trait]
pub trait World: Send + Sync {
    /// A client of its own for the same place, as a second laptop would have it.
    fn client(&self) -> Arc<dyn Provider>;

    /// A client whose jobs are in another store; with `everybody` it means the machines of others as well.
    fn elsewhere(&self, everybody: bool) -> Arc<dyn Provider>;

    /// Lets the agent of this attempt finish its work, and returns when nothing of it runs any more.
    async fn finish(&self, attempt: &AttemptId);

    /// Where its plans run.
    fn compute(&self) -> Compute;

    fn plan(&self) -> Plan {
        Plan { compute: self.compute().into(), ..plan() }
    }

    /// The image that its machines start.
    fn image(&self) -> TrainerImage {
        TrainerImage::None
    }

    /// A machine that was taken away is gone, and the provider can still say why: a cloud with a log of its own.
    fn remembers(&self) -> bool {
        false
    }

    /// A job service: an attempt may wait in its queue, and one that is over stays in its history.
    fn is_service(&self) -> bool {
        false
    }

    /// How many agents were ever started for this attempt; asked before its machine is destroyed.
    fn starts(&self, attempt: &AttemptId) -> usize;
}

pub fn plan() -> Plan {
    let span = |seconds| Span(Duration::from_secs(seconds));
    Plan {
        schema: PLAN_SCHEMA.to_owned(),
        name: "tiny".to_owned(),
        compute: Compute::Fake.into(),
        environment: BTreeMap::new(),
        image: ImageSpec::default(),
        store: "memory".to_owned(),
        data: DataPlan::Digest(Digest::of(b"data")),
        initial_weights: None,
        hub: BTreeMap::default(),
        model: ModelConfig::default(),
        train: TrainSettings { steps: Some(100), checkpoint_every: 20.into(), ..TrainSettings::default() },
        processes: 1,
        nodes: 1,
        sample: None,
        retry: RetryPlan { on: Vec::new(), attempts: 1, backoff: span(1), max_backoff: span(1), shrink: false },
        ttl: span(24 * 3_600),
        max_cost: None,
        max_wait: DEFAULT_MAX_WAIT,
        price_per_hour: Money::ZERO,
        lasting_price_per_hour: None,
        price_source: None,
        tracking: TrackingSpec::default(),
        worst_case: Money::ZERO,
    }
}

pub fn order(attempt: &AttemptId) -> RunOrder {
    let plan = plan();
    RunOrder {
        schema: ORDER_SCHEMA.to_owned(),
        job: attempt.job.clone(),
        attempt: attempt.attempt,
        store: plan.store,
        dataset: Digest::of(b"data"),
        initial_weights: None,
        trainer: TrainerImage::None,
        environment: BTreeMap::new(),
        model: plan.model,
        train: plan.train,
        processes: plan.processes,
        nodes: plan.nodes,
        sample: None,
        deadline: None,
        lifetime_seconds: None,
        grace_seconds: 30,
        last_attempt: None,
        tracking: plan.tracking,
    }
}

/// First attempt of a job of its own.
pub fn attempt(name: &str) -> AttemptId {
    AttemptId::new(&JobId::derive(name, "conformance"), 1)
}

/// Checks that also hold for a job service, which finds machines by itself once it is given an agent to run. A panic names what is
/// wrong.
pub async fn services(world: &dyn World) {
    nothing_is_gone(world).await;
    launch_starts_one_agent(world).await;
    concurrent_launches_start_one_agent(world).await;
    an_agent_that_ends_is_dead(world).await;
    preemption_is_death(world).await;
    attempts_stand_side_by_side(world).await;
    destroy_leaves_other_jobs_alone(world).await;
    jobs_of_another_store_are_left_alone(world).await;
    assert_eq!(names(world).await, [""; 0], "every check cleans up after itself");
}

/// Checks that hold for machines alone, and then the others: each machine is made before its agent is started, has its attempt's
/// name, and is listed until it is destroyed.
pub async fn machines(world: &dyn World) {
    provision_makes_one_machine(world).await;
    concurrent_clients_share_one_machine(world).await;
    launch_needs_a_machine(world).await;
    dead_is_not_gone(world).await;
    preemption_comes_before_the_agent(world).await;
    another_store_has_no_machine_of_that_name(world).await;
    services(world).await;
}

async fn names(world: &dyn World) -> Vec<String> {
    listed(&*world.client()).await.into_iter().map(|resource| resource.name).collect()
}

/// The resources of this store: an engine has those of others, too.
async fn listed(client: &dyn Provider) -> Vec<Resource> {
    let mut all = client.list().await.expect("list");
    all.retain(|resource| resource.belongs.whose != Whose::OtherStore);
    all
}

async fn see(world: &dyn World, attempt: &AttemptId) -> Sighting {
    world.client().observe(attempt).await.expect("observe")
}

async fn started(world: &dyn World, name: &str) -> AttemptId {
    let attempt = attempt(name);
    world.client().provision(&attempt, &world.plan(), &world.image()).await.expect("provision");
    world.client().launch(&order(&attempt)).await.expect("launch");
    begins(world, &attempt).await;
    attempt
}

/// Its agent is started: at once on a machine, and by a service when the attempt's turn has come.
async fn begins(world: &dyn World, attempt: &AttemptId) {
    let begun = Instant::now();
    while let Sighting::Queued { why, .. } = see(world, attempt).await {
        assert!(world.is_service() && !why.is_empty(), "a machine waits in no queue: {why}");
        assert!(begun.elapsed() < TURN, "{} waits for its turn: {why}", attempt.machine_name());
        sleep(LOOK).await;
    }
    assert_eq!(see(world, attempt).await, Sighting::Alive { agent: true });
}

async fn destroyed(world: &dyn World, attempt: &AttemptId) {
    world.client().destroy(&attempt.job).await.expect("destroy");
    let after = see(world, attempt).await;
    assert!(after == Sighting::Gone || (world.remembers() && is_over(&after)), "{after:?}");
    assert!(!names(world).await.contains(&attempt.machine_name()), "destroyed, so not listed");
}

/// A service remembers an attempt that it was asked to end as a cancelled one.
fn is_over(sighting: &Sighting) -> bool {
    matches!(sighting, Sighting::Dead { why } | Sighting::Cancelled { why } if !why.is_empty())
}

fn assert_over(sighting: &Sighting) {
    assert!(is_over(sighting), "over, with a reason, not {sighting:?}");
}

async fn nothing_is_gone(world: &dyn World) {
    let attempt = attempt("nothing");
    assert_eq!(names(world).await, [""; 0]);
    destroyed(world, &attempt).await;
    world.client().preempt(&attempt).await.expect_err("nothing can be taken away");
}

async fn provision_makes_one_machine(world: &dyn World) {
    let (attempt, client) = (attempt("provision"), world.client());
    client.provision(&attempt, &world.plan(), &world.image()).await.expect("first");
    assert_eq!(see(world, &attempt).await, Sighting::Alive { agent: false });
    let first = listed(&*client).await;
    world.client().provision(&attempt, &world.plan(), &world.image()).await.expect("again");
    assert_eq!(listed(&*client).await, first, "an existing machine is not changed");
    assert_eq!(first.len(), 1);
    assert_eq!((first[0].name.clone(), &first[0].attempt), (attempt.machine_name(), &attempt), "names derive from ids");
    assert_eq!(first[0].expires, first[0].since.checked_add(world.plan().ttl.0).ok(), "the kill switch is set from the start");
    assert_eq!(first[0].belongs.whose, Whose::Ours);
    assert!(client.now().await.is_some_and(|now| now >= first[0].since), "by the clock of its times");
    assert_eq!(client.price(&world.plan()).await.expect("price").per_hour, first[0].price_per_hour);
    destroyed(world, &attempt).await;
    destroyed(world, &attempt).await;
}

async fn concurrent_clients_share_one_machine(world: &dyn World) {
    let attempt = attempt("two-clients");
    let (one, two, plan, image) = (world.client(), world.client(), world.plan(), world.image());
    let (first, second) = tokio::join!(one.provision(&attempt, &plan, &image), two.provision(&attempt, &plan, &image));
    first.expect("one");
    second.expect("the other");
    assert_eq!(names(world).await, [attempt.machine_name()]);
    destroyed(world, &attempt).await;
}

async fn launch_starts_one_agent(world: &dyn World) {
    let attempt = started(world, "launch").await;
    world.client().launch(&order(&attempt)).await.expect("again");
    world.finish(&attempt).await;
    world.client().launch(&order(&attempt)).await.expect("after its end");
    assert_eq!(world.starts(&attempt), 1);
    assert_over(&see(world, &attempt).await);
    destroyed(world, &attempt).await;
}

async fn concurrent_launches_start_one_agent(world: &dyn World) {
    let attempt = attempt("two-launches");
    world.client().provision(&attempt, &world.plan(), &world.image()).await.expect("provision");
    let (one, two, order) = (world.client(), world.client(), order(&attempt));
    let (first, second) = tokio::join!(one.launch(&order), two.launch(&order));
    first.expect("one");
    second.expect("the other");
    world.finish(&attempt).await;
    assert_eq!(world.starts(&attempt), 1);
    destroyed(world, &attempt).await;
}

async fn launch_needs_a_machine(world: &dyn World) {
    let error = world.client().launch(&order(&attempt("no-machine"))).await.expect_err("there is no machine");
    assert_eq!(error.class, Class::Network, "looking again shows that it is gone: {error}");
    assert_eq!(names(world).await, [""; 0], "and none is made");
}

async fn an_agent_that_ends_is_dead(world: &dyn World) {
    let attempt = started(world, "finishes").await;
    world.finish(&attempt).await;
    assert_over(&see(world, &attempt).await);
    destroyed(world, &attempt).await;
}

async fn dead_is_not_gone(world: &dyn World) {
    let attempt = started(world, "listed").await;
    world.finish(&attempt).await;
    assert_over(&see(world, &attempt).await);
    assert_eq!(names(world).await, [attempt.machine_name()], "dead is not gone");
    destroyed(world, &attempt).await;
}

async fn preemption_is_death(world: &dyn World) {
    let attempt = started(world, "preempted").await;
    world.client().preempt(&attempt).await.expect("preempt");
    assert_over(&see(world, &attempt).await);
    destroyed(world, &attempt).await;
}

async fn preemption_comes_before_the_agent(world: &dyn World) {
    let attempt = attempt("early");
    world.client().provision(&attempt, &world.plan(), &world.image()).await.expect("provision");
    world.client().preempt(&attempt).await.expect("preempt");
    assert_over(&see(world, &attempt).await);
    world.client().provision(&attempt, &world.plan(), &world.image()).await.expect("nothing to do");
    assert_over(&see(world, &attempt).await);
    let launched = world.client().launch(&order(&attempt)).await.map_err(|error| error.class);
    assert_eq!(launched, if world.remembers() { Err(Class::Network) } else { Ok(()) }, "left as it is");
    assert_over(&see(world, &attempt).await);
    assert_eq!(world.starts(&attempt), 0);
    destroyed(world, &attempt).await;
}

async fn attempts_stand_side_by_side(world: &dyn World) {
    let first = started(world, "twice").await;
    world.client().preempt(&first).await.expect("preempt");
    let second = AttemptId::new(&first.job, 2);
    world.client().provision(&second, &world.plan(), &world.image()).await.expect("provision");
    world.client().launch(&order(&second)).await.expect("launch");
    assert_over(&see(world, &first).await);
    begins(world, &second).await;
    let there: Vec<_> = [&first, &second].into_iter().filter(|attempt| !world.remembers() || attempt.attempt == 2).collect();
    assert_eq!(names(world).await, there.iter().map(|attempt| attempt.machine_name()).collect::<Vec<_>>());
    destroyed(world, &first).await;
    let after = see(world, &second).await;
    assert!(after == Sighting::Gone || (world.is_service() && is_over(&after)), "destroy takes every attempt");
}

async fn destroy_leaves_other_jobs_alone(world: &dyn World) {
    let (one, other) = (started(world, "same").await, started(world, "same-but-longer").await);
    destroyed(world, &one).await;
    assert_eq!(see(world, &other).await, Sighting::Alive { agent: true });
    destroyed(world, &other).await;
}

async fn another_store_has_no_machine_of_that_name(world: &dyn World) {
    let (attempt, other) = (started(world, "not-theirs").await, world.elsewhere(false));
    let error = other.provision(&attempt, &world.plan(), &world.image()).await.expect_err("it is another's");
    assert_eq!(error.class, Class::Conflict, "{error}");
    let launched = other.launch(&order(&attempt)).await.map_err(|error| error.class);
    assert_eq!(launched, Err(Class::Network), "as if there were none");
    world.finish(&attempt).await;
    destroyed(world, &attempt).await;
}

/// Equal names in two stores: a record that was copied, a debt that was made up.
async fn jobs_of_another_store_are_left_alone(world: &dyn World) {
    let (attempt, other) = (started(world, "of-another-store").await, world.elsewhere(false));
    assert_eq!(other.observe(&attempt).await, Ok(Sighting::Gone));
    other.preempt(&attempt).await.expect_err("it is another's");
    other.session(&attempt, &["true".to_owned()], false).await.map(drop).expect_err("it is another's");
    other.destroy(&attempt.job).await.expect("there is nothing of its own");
    assert_eq!(see(world, &attempt).await, Sighting::Alive { agent: true });
    let seen = other.list().await.expect("list");
    let seen = seen.iter().find(|resource| resource.attempt == attempt).expect("shown");
    assert_eq!(seen.belongs.whose, Whose::OtherStore);
    world.finish(&attempt).await;
    assert_eq!(world.starts(&attempt), 1);
    world.elsewhere(true).destroy(&attempt.job).await.expect("who means everybody's machines gets them");
    destroyed(world, &attempt).await;
}
