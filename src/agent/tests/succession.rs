//! Machines that a backend makes by itself, with the order of the first.

use super::*;

/// The order is for `last` attempts, and this machine is a new one.
async fn made_anew(last: u32) -> Bench {
    let mut bench = bench("echo attempt $FTCTL_ATTEMPT").await;
    bench.order.last_attempt = Some(last);
    bench
}

impl Bench {
    async fn run_whole(&self) -> ExitRecord {
        super::super::run(&self.order, Seat::default(), &self.path("work"), &self.path("cache"), &Silent).await.unwrap()
    }

    async fn ended(&self, attempt: u32, reason: ExitReason) {
        let order = RunOrder { attempt, ..self.order.clone() };
        let elsewhere = Agent::new(Arc::clone(&self.store), &order, &self.path("elsewhere"), &Silent, Duration::MAX).unwrap();
        elsewhere.sign(End::new(reason, "so it ended")).await.unwrap();
    }

    /// A holder that no process of this machine can be.
    async fn vanished(&self, attempt: u32) {
        let holder = Holder { host: "elsewhere".to_owned(), ..Holder::this_process(attempt) };
        let taken = Lease::acquire(&self.store, path::attempt_lease(&self.order.job), holder, LEASE_TTL).await.unwrap();
        assert!(matches!(taken, Acquired::Held(_)));
    }
}

#[tokio::test]
async fn the_next_attempt_is_what_comes_after_those_that_were_taken_away() {
    let bench = made_anew(20).await;
    bench.ended(1, ExitReason::Preempted).await;
    bench.ended(2, ExitReason::LostLease).await;
    let record = bench.run_whole().await;
    assert_eq!((record.attempt, record.reason), (3, ExitReason::Succeeded), "{}", record.message);
    assert_eq!(bench.text(&path::log(&bench.order.job, 3)).await, "attempt 3\n");
    // Replaced once more, though all is done.
    assert_eq!(bench.run_whole().await, record);
}

#[tokio::test]
async fn a_machine_that_vanished_is_outlived_at_once_and_told_of() {
    let bench = made_anew(20).await;
    bench.vanished(1).await;
    let begun = Instant::now();
    let record = bench.run_whole().await;
    assert_eq!((record.attempt, record.reason), (2, ExitReason::Succeeded));
    assert!(begun.elapsed() < LEASE_TTL / 2, "no one holds the higher number");
    let first: ExitRecord = store::read_json(&*bench.store, &path::exit(&bench.order.job, 1)).await.unwrap().0;
    assert_eq!((first.reason, first.message.as_str()), (ExitReason::Preempted, "its machine is gone, and had no time to say so"));
}

#[tokio::test]
async fn the_last_attempt_has_no_successor_nor_has_one_that_failed() {
    let last = made_anew(2).await;
    last.ended(1, ExitReason::Preempted).await;
    last.ended(2, ExitReason::Preempted).await;
    assert_eq!(last.run_whole().await.attempt, 2);
    let vanished = made_anew(1).await;
    vanished.vanished(1).await;
    let record = vanished.run_whole().await;
    assert_eq!((record.attempt, record.reason), (1, ExitReason::Preempted), "it is not done again");
    let failed = made_anew(20).await;
    failed.ended(1, ExitReason::Failed).await;
    assert_eq!(failed.run_whole().await.reason, ExitReason::Failed);
    // Nor has an attempt of any other backend.
    let mut bench = made_anew(20).await;
    bench.order.last_attempt = None;
    bench.ended(1, ExitReason::Preempted).await;
    assert_eq!(bench.run_whole().await.attempt, 1);
}

#[tokio::test]
async fn a_machine_that_begins_again_goes_on_with_its_own_attempt() {
    let bench = made_anew(20).await;
    let agent = bench.agent();
    let mut holder = Holder::this_process(1);
    holder.nonce.clone_from(&agent.identity.as_ref().unwrap().name);
    Lease::acquire(&bench.store, path::attempt_lease(&bench.order.job), holder, LEASE_TTL).await.unwrap();
    drop(agent);
    assert_eq!(bench.run_whole().await.attempt, 1);
}
