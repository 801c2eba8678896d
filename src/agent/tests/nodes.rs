//! An attempt on two nodes of two ranks each.

use super::{
    super::nodes::{Roll, Seat},
    *,
};
use crate::job::meeting::Presence;

/// Less than it takes when nodes wait for each other's ranks one after another, and enough for a slow machine.
const GATHERED: Duration = Duration::from_secs(60);

/// A function of the stand-in: `meet` waits for all four ranks, as those of a real trainer do before the first step.
const MEET: &str = r#"meet() {
    met="$(dirname "$PWD")/../met-$TORCHELASTIC_RESTART_COUNT"
    mkdir -p "$met"; touch "$met/$RANK"
    until [ "$(ls "$met" | wc -l)" = 4 ]; do sleep 0.02; done
}
"#;

/// Each rank runs `script`.
async fn gang(script: &str) -> Bench {
    let mut bench = bench(&format!("{MEET}{script}")).await;
    (bench.order.nodes, bench.order.processes) = (2, 4);
    (bench.order.train.gradient_accumulation, bench.order.train.leaves) = (4, Some(4));
    bench
}

impl Bench {
    fn agent_of(&self, node: usize) -> Agent<'_> {
        let work = if node == 0 { self.path("work") } else { self.path("elsewhere") };
        let mut agent = Agent::new(Arc::clone(&self.store), &self.order, &work, &Silent, Duration::MAX).unwrap();
        agent.seat = Seat::find(&self.order, Some(node), Some("127.0.0.1".parse().unwrap()), None).unwrap();
        agent
    }

    async fn run_gang(&self) -> ExitRecord {
        let (agents, cache) = ([0, 1].map(|node| self.agent_of(node)), self.path("cache"));
        let [first, other] = &agents;
        let (record, followed) = tokio::join!(
            Box::pin(first.run(&cache, std::future::pending())),
            Box::pin(other.follow(&cache, std::future::pending()))
        );
        let record = record.unwrap();
        assert_eq!(followed.unwrap(), record, "all nodes end as the first says");
        record
    }

    async fn rank_log(&self, rank: usize) -> String {
        self.text(&path::rank_log(&self.order.job, 1, rank / 2, rank)).await
    }
}

#[tokio::test]
async fn each_rank_knows_its_place_and_what_it_says_reaches_the_store() {
    let says = "$RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE on node $GROUP_RANK, with ${MASTER_ADDR}";
    let leaves = r#"here="$(dirname "$PWD")/.."
ls -l "/proc/$$/fd/${FTCTL_LISTENER:-none}" > "$here/left-$RANK" 2>&1 || true
echo "$MASTER_PORT" > "$here/.port-$RANK"
mv "$here/.port-$RANK" "$here/port-$RANK"
until [ "$RANK" != 0 ] || [ -e "$here/looked" ]; do sleep 0.02; done"#;
    // Steps rise: one that comes after a later one is not looked for.
    let rises = "until [ $RANK != 1 ] || [ -e output/checkpoints/step-0000000005 ]; do sleep 0.02; done";
    let script = format!("echo {says}\n{leaves}\n{rises}\ncheckpoint $((5 + RANK)); meet; exit 0");
    let bench = gang(&script).await;
    let look = async {
        until(async || bench.path("port-0").exists()).await;
        let port = fs::read_to_string(bench.path("port-0")).unwrap().trim().parse().unwrap();
        let taken = std::net::TcpListener::bind(("127.0.0.1", port));
        assert_eq!(taken.unwrap_err().kind(), io::ErrorKind::AddrInUse, "the first rank has it");
        fs::write(bench.path("looked"), "").unwrap();
    };
    let (record, ()) = tokio::join!(bench.run_gang(), look);
    let left = |rank| fs::read_to_string(bench.path(&format!("left-{rank}"))).unwrap();
    assert!(left(0).contains("socket:") && (1..4).all(|rank| left(rank).contains("fd/none")), "{}", left(0));
    assert_eq!((record.reason, record.message.as_str()), (ExitReason::Succeeded, "trained to the end"));
    assert_eq!(bench.log().await, "0 of 4, 0 of 2 on node 0, with 127.0.0.1\n");
    assert_eq!(bench.rank_log(1).await, "1 of 4, 1 of 2 on node 0, with 127.0.0.1\n");
    assert_eq!(bench.rank_log(3).await, "3 of 4, 1 of 2 on node 1, with 127.0.0.1\n");
    assert_eq!(bench.steps().await, [5, 6], "what a rank of another node leaves is its own affair");
    let ports: Vec<String> = (0..4).map(|rank| fs::read_to_string(bench.path(&format!("port-{rank}"))).unwrap()).collect();
    assert!(ports.iter().all(|port| *port == ports[0]), "{ports:?}");
}

/// The first rank makes its checkpoint when the other node's range of it is in the store.
#[tokio::test]
async fn each_agent_sends_what_its_ranks_have_of_a_checkpoint() {
    const MIB: usize = 1 << 20;
    let bytes: Vec<u8> = (0..9 * MIB).map(|at| (at / MIB) as u8).collect();
    let last = path::content(&path::job_contents(&JobId::derive("test", "1")), &Digest::of(&bytes[8 * MIB..]));
    let script = format!(
        r#"here="$(dirname "$PWD")/.."; ranges=output/.ranges/step-0000000005; [ "$FTCTL_RANGES" = 1 ]
if [ $RANK = 2 ]; then
    mkdir -p $ranges.partial; truncate -s 9M $ranges.partial/weights
    dd if="$here/weights" of=$ranges.partial/weights bs=1M skip=8 seek=8 conv=notrunc status=none
    mv $ranges.partial $ranges
fi
meet
if [ $RANK = 0 ]; then
    until [ -e "$here/store/{last}" ]; do sleep 0.02; done
    mkdir -p output/checkpoints/.making; cp "$here/weights" output/checkpoints/.making
    mv output/checkpoints/.making output/checkpoints/step-0000000005
fi
exit 0"#
    );
    let bench = gang(&script).await;
    fs::write(bench.path("weights"), &bytes).unwrap();
    let record = tokio::time::timeout(GATHERED, bench.run_gang()).await.expect("the other node's range comes");
    assert_eq!(record.reason, ExitReason::Succeeded, "{}", record.message);
    let to = bench.path("to");
    checkpoint::fetch(&bench.store, &bench.order.job, 5, &to, &Silent).await.unwrap();
    assert!(fs::read(to.join("weights")).unwrap() == bytes);
}

#[tokio::test]
async fn the_rank_that_failed_is_named_with_its_node() {
    let bench = gang("[ $RANK = 3 ] && { echo error: no room; exit 1; }; sleep 0.1; exit 75").await;
    let record = bench.run_gang().await;
    assert_eq!((record.reason, record.code), (ExitReason::Failed, Some(1)), "{}", record.message);
    assert_eq!(record.message, "rank 3 on node 1 failed: no room");
}

/// The trainers cannot tell each other yet: those that wait are ended on all nodes, and do not count as the reason.
#[tokio::test]
async fn those_that_wait_for_a_rank_that_failed_before_all_had_met_are_ended() {
    let arrive = r#"here="$(dirname "$PWD")/.."; touch "$here/started-$RANK"
all() { [ -e "$here/started-0" ] && [ -e "$here/started-1" ] && [ -e "$here/started-2" ] && [ -e "$here/started-3" ]; }
until all; do sleep 0.02; done
"#;
    for (rank, ends, reason, message) in [
        (0, "echo error: no library; exit 1", ExitReason::Failed, "rank 0 on node 0 failed: no library"),
        (3, "echo error: no room; exit 1", ExitReason::Failed, "rank 3 on node 1 failed: no room"),
        (2, "kill -KILL $$", ExitReason::Preempted, "signal 9"),
    ] {
        let bench = gang(&format!("{arrive}[ $RANK = {rank} ] && {{ {ends}; }}; wait_for_ever")).await;
        let begun = Instant::now();
        let record = bench.run_gang().await;
        assert_eq!(record.reason, reason, "{}", record.message);
        assert!(record.message.contains(message), "{}", record.message);
        assert!(begun.elapsed() < GATHERED, "{rank}: {:?}", begun.elapsed());
        let (word, _): (Presence, _) = store::read_json(&*bench.store, &path::presence(&bench.order.job, 1, 1)).await.unwrap();
        assert!(word.word.is_over && word.word.end.is_some(), "{word:?}");
    }
}

#[tokio::test]
async fn a_notice_to_another_node_is_told_by_the_first() {
    let saves = r#"here="$(dirname "$PWD")/.."; trap 'touch "$here/saved-$RANK"' URG; meet; touch "$here/ready-$RANK"
until [ -e "$here/go" ]; do sleep 0.02; done; checkpoint $((5 + RANK)); exit 0"#;
    let (bench, imds) = (gang(saves).await, Imds::start().await);
    let trouble = async || {
        let beat = find_json::<Heartbeat>(&*bench.store, &path::heartbeat(&bench.order.job, 1)).await.unwrap();
        beat.and_then(|(beat, _)| beat.trouble)
    };
    let ([first, mut other], cache) = ([0, 1].map(|node| bench.agent_of(node)), bench.path("cache"));
    other.notices = Some(imds.source());
    let script = async {
        until(async || bench.path("ready-2").exists()).await;
        imds.announce(&[("A", "Preempt", "node_7")]);
        until(async || trouble().await.is_some()).await;
        let told = trouble().await.unwrap();
        assert!(told.starts_with("node 1 will be preempted at 2026-11-26T18:29:47Z"), "{told}");
        until(async || bench.path("saved-2").exists()).await;
        imds.announce(&[]);
        until(async || trouble().await.is_none()).await;
        fs::write(bench.path("go"), "").unwrap();
    };
    let (record, followed, ()) = tokio::join!(
        Box::pin(first.run(&cache, std::future::pending())),
        Box::pin(other.follow(&cache, std::future::pending())),
        script
    );
    assert_eq!((record.unwrap().reason, followed.unwrap().reason), (ExitReason::Succeeded, ExitReason::Succeeded));
    assert!(bench.rank_log(2).await.contains("ftctl: this machine will be preempted"));
    let log = bench.log().await;
    assert!(
        log.contains("ftctl: node 1 will be preempted") && log.contains("the cloud has withdrawn the notice: all nodes stay"),
        "{log}"
    );
}

#[tokio::test]
async fn a_rank_that_was_killed_on_another_node_is_a_preemption() {
    let bench = gang("[ $RANK = 2 ] && kill -KILL $$; sleep 0.1; exit 75").await;
    let record = bench.run_gang().await;
    assert_eq!((record.reason, record.signal), (ExitReason::Preempted, Some(9)), "{}", record.message);
}

#[tokio::test]
async fn all_ranks_begin_again_when_one_has_no_memory() {
    let script = r#"[ $RANK = 0 ] && begin
meet
[ $RANK = 3 ] && [ "$take" -gt 3 ] && exit 71
[ "$take" -gt 3 ] && exit 75
exit 0"#;
    let bench = gang(&format!("{NEEDS_MEMORY}{script}")).await;
    let record = bench.run_gang().await;
    assert_eq!(record.reason, ExitReason::Succeeded, "{}", record.message);
    assert_eq!(
        (bench.log().await, bench.rank_log(3).await),
        ("from  with 6\nfrom  with 3\n".into(), "from  with 6\nfrom  with 3\n".into())
    );
}

#[tokio::test]
async fn a_node_that_cannot_bring_the_data_is_the_end_of_all() {
    let bench = gang("exit 0").await;
    // Where this node's folder should be.
    fs::write(bench.path("elsewhere"), "").unwrap();
    let (first, cache) = (bench.agent_of(0), bench.path("cache"));
    let other = bench.agent_of(1);
    let (record, _) =
        tokio::join!(Box::pin(first.run(&cache, std::future::pending())), Box::pin(other.follow(&cache, std::future::pending())));
    let record = record.unwrap();
    assert_eq!(record.reason, ExitReason::Failed);
    assert!(record.message.starts_with("rank 2 on node 1 failed: ") && record.message.contains("elsewhere"), "{}", record.message);
}

#[tokio::test(start_paused = true)]
async fn nodes_wait_for_each_other_for_a_while() {
    let bench = gang("exit 0").await;
    // What an earlier life has left is no node.
    let presence = serde_json::json!({
        "schema": "ftctl.presence/1", "attempt": 1, "agent": "a", "beat": 1, "time": "2026-01-01T00:00:00Z", "is_ready": true, "generation": 0,
    });
    write_json(&*bench.store, &path::presence(&bench.order.job, 1, 1), &presence, Condition::Always).await.unwrap();
    let record = bench.agent_of(0).run(&bench.path("cache"), std::future::pending()).await.unwrap();
    assert_eq!((record.reason, record.message.as_str()), (ExitReason::Preempted, "node 1 of 2 was not ready within 15 minutes"));

    // Whose process is gone is not waited for, and whose process is there is.
    for (is_held, why) in
        [(true, "node 1 of 2 was not ready within 15 minutes"), (false, "the agent of node 1 ended before the nodes had met")]
    {
        let bench = gang("exit 0").await;
        let lock = fs::File::create(bench.path("node-1.lock")).unwrap();
        let held = is_held.then(|| lock.lock().map(|()| lock));
        let mut agent = bench.agent_of(0);
        agent.seat = Seat::find(&bench.order, Some(0), None, Some(bench.path(""))).unwrap();
        let record = agent.run(&bench.path("cache"), std::future::pending()).await.unwrap();
        assert_eq!((record.reason, record.message.as_str()), (ExitReason::Preempted, why));
        drop(held);
    }

    let bench = gang("exit 0").await;
    let (agent, cache) = (bench.agent_of(0), bench.path("cache"));
    let run = agent.run(&cache, std::future::pending());
    assert!(tokio::time::timeout(Duration::from_secs(10 * 60), run).await.is_err());
    let beat: (Heartbeat, _) = find_json(&*bench.store, &path::heartbeat(&bench.order.job, 1)).await.unwrap().unwrap();
    assert_eq!(beat.0.trouble.as_deref(), Some("waits for node 1 of 2 to be ready, for 15 minutes at most"));

    let bench = gang("exit 0").await;
    let record = bench.agent_of(1).follow(&bench.path("cache"), std::future::pending()).await.unwrap();
    assert_eq!((record.reason, record.message.as_str()), (ExitReason::Preempted, "node 0 has been silent for 900 s"));
    assert_eq!(bench.agent().first_look().await.unwrap(), None, "that is for the first node to write");
}

/// Some signs of life, and no more: its machine is gone.
#[tokio::test(start_paused = true)]
async fn a_first_node_that_falls_silent_ends_the_attempt_in_a_minute() {
    let bench = gang("exit 0").await;
    let beats = async {
        for beat in [1, 2, 3] {
            let beat = serde_json::json!(
                { "schema": "ftctl.heartbeat/1", "beat": beat, "time": "2026-01-01T00:00:00Z", "phase": "training" }
            );
            write_json(&*bench.store, &path::heartbeat(&bench.order.job, 1), &beat, Condition::Always).await.unwrap();
            // Both were stopped for a while, as by a suspended machine.
            tokio::time::advance(Duration::from_secs(2 * 60)).await;
            sleep(Duration::from_secs(10)).await;
        }
        tokio::time::Instant::now()
    };
    let (agent, cache) = (bench.agent_of(1), bench.path("cache"));
    let (last, record) = tokio::join!(beats, agent.follow(&cache, std::future::pending()));
    let record = record.unwrap();
    assert_eq!((record.reason, record.message.as_str()), (ExitReason::Preempted, "node 0 has been silent for 60 s"));
    assert!((40..65).contains(&last.elapsed().as_secs()), "{:?} after its last word", last.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_store_that_answers_late_makes_no_node_silent() {
    let (bench, minutes) = (gang("exit 0").await, Duration::from_secs(2 * 60));
    let beat = serde_json::json!({ "schema": "ftctl.heartbeat/1", "beat": 1, "time": "2026-01-01T00:00:00Z", "phase": "training" });
    write_json(&*bench.store, &path::heartbeat(&bench.order.job, 1), &beat, Condition::Always).await.unwrap();
    *bench.faulty.delay.lock().unwrap() = minutes;
    let (first, other) = (bench.agent_of(0), bench.agent_of(1));
    let mut roll = Roll::of(2);
    roll.call(&first, LOOK_EVERY).await.unwrap();
    assert_eq!(roll.silent(), None, "its word may be on its way");
    let cache = bench.path("cache");
    let ended = tokio::time::timeout(Duration::from_secs(3_600), other.follow(&cache, std::future::pending())).await;
    assert!(ended.is_err(), "node 0 was looked for a few times only: {ended:?}");

    *bench.faulty.delay.lock().unwrap() = Duration::ZERO;
    tokio::time::advance(minutes).await;
    roll.call(&first, LOOK_EVERY).await.unwrap();
    assert_eq!(roll.silent(), None, "this agent may have been stopped for so long, and the others with it");
    roll.call(&first, minutes).await.unwrap();
    assert_eq!(roll.silent(), Some(1));
}

#[tokio::test]
async fn a_node_of_an_attempt_that_lost_the_job_stops() {
    let bench = gang("wait_for_ever").await;
    let holder = Holder { nonce: "next".to_owned(), ..Holder::this_process(2) };
    let taken = Lease::acquire(&bench.store, path::attempt_lease(&bench.order.job), holder, LEASE_TTL).await.unwrap();
    assert!(matches!(taken, Acquired::Held(_)));
    let record = bench.agent_of(1).follow(&bench.path("cache"), std::future::pending()).await.unwrap();
    assert_eq!(record.reason, ExitReason::LostLease);
}

#[tokio::test]
async fn a_rendezvous_that_is_no_address_calls_nobody() {
    let bench = gang("echo called; exit 0").await;
    let forged = serde_json::json!({
        "schema": "ftctl.rendezvous/1", "attempt": 1, "generation": 1, "address": "evil.example.org", "port": 1, "agents": ["x"],
    });
    write_json(&*bench.store, &path::rendezvous(&bench.order.job, 1), &forged, Condition::Always).await.unwrap();
    let (agent, cache) = (bench.agent_of(1), bench.path("cache"));
    let ready = async {
        let path = path::presence(&bench.order.job, 1, 1);
        until(async || {
            find_json::<serde_json::Value>(&*bench.store, &path).await.unwrap().is_some_and(|(word, _)| word["is_ready"] == true)
        })
        .await;
        sleep(4 * SHIP_EVERY).await;
    };
    tokio::select! {
        record = agent.follow(&cache, std::future::pending()) => panic!("it waits: {record:?}"),
        () = ready => {}
    }
    assert!(!Folder::new(&bench.path("elsewhere"), 1).log_of(2).exists());
}

#[test]
fn a_seat_is_one_of_the_orders() {
    let mut order: RunOrder = serde_json::from_str(include_str!("../../job/fixtures/order.json")).unwrap();
    assert_eq!(Seat::find(&order, Some(7), None, None).unwrap().node(), 0, "the only one");
    order.nodes = 2;
    assert_eq!(Seat::find(&order, Some(1), None, None).unwrap().node(), 1);
    assert!(Seat::find(&order, Some(2), None, None).is_err_and(|why| why.contains("2 nodes, which count from 0")));
    assert!(Seat::find(&order, None, None, None).is_err_and(|why| why.contains("--node")));
}
