//! The agent with a stand-in for the trainer: a shell script that writes what a trainer writes, where it writes it.
//!
//! One file for tests that share this stand-in; succession has its own.

mod nodes;
mod succession;

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::PermissionsExt,
    process::{Command, Stdio},
    sync::{Mutex, atomic::Ordering},
};

use ft_trainer::settings::{ModelConfig, TrainConfig, TrainSettings};

use super::{azureml::notices::tests::Imds, *};
use crate::{
    job::{
        digest::Digest,
        id::{AttemptId, JobId},
        order::{self, CANCEL_SCHEMA, ORDER_SCHEMA, TrainerImage},
        report::{Silent, Unit},
        tracking::TrackingSpec,
    },
    store::{azurite, directory::DirectoryStore, faulty::FaultyStore, lease::process_lives, log::length, memory::MemoryStore},
};

/// Functions of the stand-in: `checkpoint STEP` and `newest` as the trainer's directories are, `wait_for_ever` until a signal.
const PRELUDE: &str = r#"#!/bin/sh
set -e
checkpoint() {
    new=output/checkpoints/.unfinished-$1
    mkdir -p "$new"
    echo "weights $1" > "$new/model.safetensors"
    echo '{}' > "$new/manifest.json"
    mv "$new" "output/checkpoints/$(printf 'step-%010d' "$1")"
    echo "{\"checkpoint\":$1}" >> output/progress.jsonl
}
newest() { ls output/checkpoints | sed -n 's/^step-0*//p' | tail -n 1; }
wait_for_ever() { while :; do sleep 0.05; done; }
"#;

pub(super) struct Bench {
    directory: tempfile::TempDir,
    faulty: Arc<FaultyStore>,
    pub store: Arc<dyn Store>,
    pub order: RunOrder,
}

/// A report that keeps its lines and warnings.
#[derive(Default)]
pub(super) struct Said(Mutex<Vec<String>>);

impl Said {
    pub fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

impl Report for Said {
    fn stage(&self, _: usize, _: usize, _: &str) {}
    fn line(&self, text: &str) {
        self.0.lock().unwrap().push(text.to_owned());
    }
    fn warn(&self, text: &str) {
        self.line(text);
    }
    fn progress(&self, _: &str, _: u64, _: Option<u64>, _: Unit) {}
}

/// A job with a dataset in the store, whose trainer is `script`.
pub(super) async fn bench(script: &str) -> Bench {
    let directory = tempfile::tempdir().unwrap();
    let store = DirectoryStore::open(&directory.path().join("store")).unwrap();
    bench_with(script, directory, Arc::new(store)).await
}

pub(super) async fn bench_with(script: &str, directory: tempfile::TempDir, store: Arc<dyn Store>) -> Bench {
    let root = directory.path();
    let faulty = FaultyStore::new(store);
    let store: Arc<dyn Store> = Arc::clone(&faulty) as _;
    fs::create_dir(root.join("data")).unwrap();
    fs::write(root.join("data/dataset.json"), "{}").unwrap();
    let dataset = dataset::upload(&store, &root.join("data"), &Silent).await.unwrap().digest;
    let order = RunOrder {
        schema: ORDER_SCHEMA.to_owned(),
        job: JobId::derive("test", "1"),
        attempt: 1,
        store: store.url().to_owned(),
        dataset,
        initial_weights: None,
        environment: BTreeMap::new(),
        trainer: TrainerImage::Program { digest: Digest::of(b"trainer") },
        model: ModelConfig::default(),
        train: TrainSettings { keep_checkpoints: 2, ..TrainSettings::default() },
        processes: 1,
        nodes: 1,
        sample: None,
        deadline: None,
        lifetime_seconds: None,
        grace_seconds: 60,
        last_attempt: None,
        tracking: TrackingSpec::default(),
    };
    let bench = Bench { directory, faulty, store, order };
    bench.write_trainer(script);
    bench
}

impl Bench {
    /// Another process writes the file: this one may be forking, and a program that is open for writing cannot be started.
    fn write_trainer(&self, script: &str) {
        let path = self.trainer();
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let text = self.path("trainer.txt");
        fs::write(&text, format!("{PRELUDE}{script}")).unwrap();
        fs::set_permissions(&text, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(Command::new("cp").arg(text).arg(path).status().unwrap().success());
    }
    /// Where the agent finds it: in its own cache, by its digest.
    fn trainer(&self) -> PathBuf {
        order::program(&self.path("cache"), &Digest::of(b"trainer"))
    }
    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
    fn folder(&self) -> Folder {
        Folder::new(&self.path("work"), self.order.attempt)
    }
    fn agent(&self) -> Agent<'_> {
        Agent::new(Arc::clone(&self.store), &self.order, &self.path("work"), &Silent, Duration::MAX).unwrap()
    }
    pub fn agent_with<'a>(&'a self, report: &'a dyn Report) -> Agent<'a> {
        Agent::new(Arc::clone(&self.store), &self.order, &self.path("work"), report, Duration::MAX).unwrap()
    }
    pub async fn run(&self) -> ExitRecord {
        self.agent().run(&self.path("cache"), std::future::pending()).await.unwrap()
    }
    /// Runs the attempt while `other` does something to it.
    async fn run_beside(&self, other: impl Future<Output = ()>) -> ExitRecord {
        tokio::join!(self.run(), other).0
    }
    async fn text(&self, path: &str) -> String {
        String::from_utf8(self.store.get(path).await.unwrap().bytes.to_vec()).unwrap()
    }
    async fn log(&self) -> String {
        self.text(&path::log(&self.order.job, self.order.attempt)).await
    }
    /// Returns when the store's log has the line.
    async fn said(&self, line: &str) {
        let path = path::log(&self.order.job, self.order.attempt);
        until(async || length(&*self.store, &path).await.unwrap_or(0) > 0 && self.log().await.lines().any(|said| said == line))
            .await;
    }
    async fn steps(&self) -> Vec<u64> {
        checkpoint::list(&*self.store, &self.order.job).await.unwrap()
    }
    async fn cancel(&self, grace_seconds: u64) {
        let request = CancelRequest { schema: CANCEL_SCHEMA.to_owned(), time: Timestamp::now(), grace_seconds };
        write_json(&*self.store, &path::cancel(&self.order.job), &request, Condition::Always).await.unwrap();
    }
}

async fn until(mut holds: impl AsyncFnMut() -> bool) {
    while !holds().await {
        sleep(Duration::from_millis(5)).await;
    }
}

const EVERYTHING: &str = r#"echo "$1 $FTCTL_JOB_ID $FTCTL_ATTEMPT $RANK $WORLD_SIZE $LOCAL_RANK $MASTER_ADDR ${FTCTL_DEADLINE-none}"
echo "to stderr" >&2
for step in 1 2 3; do checkpoint $step; done
echo '{"perplexity_after":7}' > output/summary.json
mkdir output/events && echo an event > output/events/1
touch output/.lock
printf 'no newline at the end'"#;

/// A service starts the attempt again, on a machine that has nothing of it.
#[tokio::test]
async fn an_attempt_that_begins_again_elsewhere_goes_on_with_its_log() {
    let bench = bench(r#"echo "second life"; mkdir -p output; echo '{"n":2}' >> output/progress.jsonl; exit 0"#).await;
    let (log, progress) = (path::log(&bench.order.job, 1), path::progress(&bench.order.job, 1));
    // The first one was cut off in the middle of a line.
    bench.store.append(&log, 0, "first life\nand its la".into()).await.unwrap();
    bench.store.append(&progress, 0, "{\"n\":1}\n".into()).await.unwrap();
    assert_eq!(bench.run().await.reason, ExitReason::Succeeded);
    let said = bench.log().await;
    assert!(said.starts_with("first life\nand its la\n") && said.ends_with("second life\n"), "{said:?}");
    assert_eq!(bench.text(&progress).await, "{\"n\":1}\n{\"n\":2}\n");
}

#[tokio::test]
async fn everything_reaches_the_store() {
    reaches_the_store(bench(EVERYTHING).await).await;
}

#[tokio::test]
async fn a_trainer_has_of_its_agents_environment_what_is_on_the_list() {
    let mut bench = bench("env").await;
    bench.order.environment = BTreeMap::from([("NCCL_DEBUG".to_owned(), "INFO".to_owned())]);
    assert_eq!(bench.run().await.reason, ExitReason::Succeeded);
    let log = bench.log().await;
    // Cargo gives this process variables that are on no list.
    assert!(std::env::var_os("CARGO_MANIFEST_DIR").is_some() && !log.contains("CARGO_"), "{log}");
    for line in ["NCCL_DEBUG=INFO", "RANK=0", &format!("PATH={}", std::env::var("PATH").unwrap())] {
        assert!(log.lines().any(|said| said == line), "{line}: {log}");
    }
}

#[tokio::test]
async fn an_order_cannot_give_the_trainer_what_a_job_file_cannot() {
    let mut bench = bench("env").await;
    bench.order.environment = BTreeMap::from([("LD_PRELOAD".to_owned(), "/tmp/x.so".to_owned())]);
    let record = bench.run().await;
    assert_eq!(record.reason, ExitReason::Failed);
    assert!(record.message.contains("LD_PRELOAD cannot be set by a job"), "{}", record.message);
}

#[tokio::test]
async fn what_keeps_the_agent_waiting_is_told_with_its_heartbeat() {
    let bench = bench(&format!("sleep 4\n{EVERYTHING}")).await;
    let job = &bench.order.job;
    let trouble = async || {
        let beat: Option<(Heartbeat, _)> = find_json(&*bench.store, &path::heartbeat(job, 1)).await.unwrap();
        beat.and_then(|(beat, _)| beat.trouble)
    };
    *bench.faulty.unreachable.lock().unwrap() = path::checkpoints(job);
    let record = bench.run_beside(async {
        until(async || trouble().await.is_some()).await;
        let told = trouble().await.unwrap();
        assert!(told.starts_with("could not fetch the newest checkpoint: ") && told.ends_with("; trying again"), "{told}");
        bench.faulty.unreachable.lock().unwrap().clear();
        until(async || trouble().await.is_none()).await;
    });
    assert_eq!(record.await.reason, ExitReason::Succeeded);
    assert_eq!(bench.steps().await, [2, 3]);
}

#[tokio::test]
async fn what_the_gpus_do_is_told_with_the_heartbeat_while_the_trainer_runs() {
    let bench = bench("until test -e go; do sleep 0.05; done").await;
    let driver = bench.path("nvidia-smi");
    // Not executed as it was written: this process may be forking while it has the file open.
    fs::write(bench.path("driver"), "#!/bin/sh\necho \"$1\" > \"$0.asked\"\necho '97, 12000, 16384'\necho '3, 1, 16384'\n")
        .unwrap();
    fs::set_permissions(bench.path("driver"), fs::Permissions::from_mode(0o755)).unwrap();
    assert!(Command::new("cp").arg(bench.path("driver")).arg(&driver).status().unwrap().success());
    let mut agent = bench.agent();
    agent.gpus.program = driver.into();
    let heartbeat = async || -> Option<Heartbeat> {
        find_json(&*bench.store, &path::heartbeat(&bench.order.job, 1)).await.unwrap().map(|(beat, _)| beat)
    };
    let watched = async {
        until(async || heartbeat().await.is_some_and(|beat| !beat.gpus.is_empty())).await;
        let gpus = heartbeat().await.unwrap().gpus;
        assert_eq!(gpus.iter().map(|gpu| gpu.busy_percent).collect::<Vec<_>>(), [97, 3]);
        assert_eq!(gpus[0].memory_used_bytes, 12_000 << 20);
        fs::write(bench.folder().path().join("go"), "").unwrap();
    };
    let cache = bench.path("cache");
    let (record, ()) = tokio::join!(agent.run(&cache, std::future::pending()), watched);
    assert_eq!(record.unwrap().reason, ExitReason::Succeeded);
    assert!(fs::read_to_string(bench.path("nvidia-smi.asked")).unwrap().starts_with("--query-gpu=utilization.gpu"));
    // A heartbeat of before has none.
    let before = r#"{"schema":"ftctl.heartbeat/1","beat":3,"time":"2026-01-01T00:00:00Z","phase":"training"}"#;
    assert_eq!(serde_json::from_str::<Heartbeat>(before).unwrap().gpus, []);
}

#[tokio::test]
#[ignore = "needs Azurite: tests/run installs it"]
async fn azurite_receives_everything() {
    let azurite = azurite::start();
    let key = |name: &str| (name == "AZURE_STORAGE_KEY").then(|| azurite::KEY.to_owned());
    let store = store::azure::open(&azurite.container(), &key, store::Limits::default(), store::WordOf::User).unwrap();
    reaches_the_store(bench_with(EVERYTHING, tempfile::tempdir().unwrap(), Arc::new(store)).await).await;
}

async fn reaches_the_store(bench: Bench) {
    let record = bench.run().await;
    assert_eq!((record.reason, record.code, record.attempt), (ExitReason::Succeeded, Some(0), 1), "{}", record.message);
    let job = &bench.order.job;
    assert_eq!(bench.log().await, format!("train {job} 1 0 1 0 127.0.0.1 none\nto stderr\nno newline at the end"));
    assert_eq!(bench.text(&path::progress(job, 1)).await, "{\"checkpoint\":1}\n{\"checkpoint\":2}\n{\"checkpoint\":3}\n");
    assert_eq!(bench.steps().await, [2, 3], "as many as the order wants kept");
    store::artifacts::fetch(&bench.store, job, &bench.path("results"), &Silent).await.unwrap();
    let results = bench.path("results/artifacts");
    assert_eq!(fs::read_to_string(results.join("summary.json")).unwrap(), "{\"perplexity_after\":7}\n");
    assert_eq!(fs::read_to_string(results.join("events/1")).unwrap(), "an event\n");
    assert_eq!(fs::read_dir(&results).unwrap().count(), 2, "progress and checkpoints have their own place");
    let (beat, _): (Heartbeat, _) = store::read_json(&*bench.store, &path::heartbeat(job, 1)).await.unwrap();
    assert_eq!(beat.schema, HEARTBEAT_SCHEMA);
    let config: TrainConfig = serde_json::from_slice(&fs::read(bench.folder().config()).unwrap()).unwrap();
    assert_eq!(config.data, bench.path("cache/datasets").join(bench.order.dataset.as_str()));
    assert!(config.data.join("dataset.json").exists());
    // The attempt is over: the same order again only tells how it ended.
    bench.write_trainer("exit 1");
    assert_eq!(bench.run().await, record);
}

#[tokio::test]
async fn the_next_attempt_continues_from_the_newest_checkpoint() {
    let mut bench = bench("checkpoint 5; checkpoint 10; kill -9 $$").await;
    let record = bench.run().await;
    assert_eq!((record.reason, record.signal), (ExitReason::Preempted, Some(9)), "{}", record.message);
    // Another machine: nothing but the store.
    fs::remove_dir_all(bench.path("work")).unwrap();
    fs::remove_dir_all(bench.path("cache")).unwrap();
    bench.order.attempt = 2;
    bench.write_trainer("echo from $(newest); cat output/checkpoints/step-0000000010/*; checkpoint 15");
    assert_eq!(bench.run().await.reason, ExitReason::Succeeded);
    assert_eq!(bench.log().await, "from 10\n{}\nweights 10\n");
    assert_eq!(bench.steps().await, [10, 15]);
}

#[tokio::test]
async fn damage_beside_a_checkpoint_stops_no_other() {
    let mut bench = bench("").await;
    bench.order.train.keep_checkpoints = 1;
    let manifest = bench.path("store").join(path::checkpoint(&bench.order.job, 5)).join("manifest.json");
    let damaged = format!("until [ -s {0} ]; do sleep 0.01; done; echo '{{' > {0}", manifest.display());
    bench.write_trainer(&format!("checkpoint 5; {damaged}; checkpoint 10; sleep 0.3; checkpoint 15"));
    let record = bench.run().await;
    assert_eq!(record.reason, ExitReason::Succeeded, "{}", record.message);
    assert!(bench.steps().await.ends_with(&[10, 15]), "{:?}", bench.steps().await);
}

#[tokio::test]
async fn success_needs_the_last_checkpoint_in_the_store() {
    let bench = bench("checkpoint 5; mkdir output/checkpoints/step-0000000010").await;
    let record = bench.run().await;
    assert_eq!((record.reason, bench.steps().await), (ExitReason::Failed, vec![5]), "{}", record.message);
    assert!(record.message.starts_with("the checkpoint of step 10 is not in the store: "), "{}", record.message);
}

/// A trainer of six sequences a step, of which two at a time fit; a checkpoint before memory runs out is not lost.
const NEEDS_MEMORY: &str = r#"most=$(sed -n 's/.*"micro_batch_limit": \([0-9]*\).*/\1/p' "$2")
take=6
while [ "$take" -gt "${most:-6}" ] || [ $((6 % take)) -ne 0 ]; do take=$((take - 1)); done
echo "from $(newest) with $take"
begin() {
    printf '{"v":1,"time":0,"event":"start","step":0,"steps":9,"parameters":1,"tokens_per_step":6,"flops_per_token":1,"device":"CPU",' >> output/progress.jsonl
    printf '"micro_batch":%s}\n' "$take" >> output/progress.jsonl
}
"#;

#[tokio::test]
async fn a_trainer_without_memory_begins_again_with_fewer_sequences_at_a_time() {
    let ends = r#"begin; checkpoint $((10 - take))
[ "$take" -gt 3 ] && exit 71
[ "$take" -gt 2 ] && { echo "memory allocation of 64 bytes failed" >&2; kill -ABRT $$; }
exit 0"#;
    let bench = bench(&format!("{NEEDS_MEMORY}{ends}")).await;
    let record = bench.run().await;
    assert_eq!((record.reason, record.code), (ExitReason::Succeeded, Some(0)), "{}", record.message);
    let expected = "from  with 6\nfrom 4 with 3\nmemory allocation of 64 bytes failed\nfrom 7 with 2\n";
    assert_eq!((bench.log().await.as_str(), bench.steps().await), (expected, vec![7, 8]));
}

#[tokio::test]
async fn without_memory_for_one_sequence_the_attempt_fails_and_says_so() {
    for (ends, message) in [("begin; exit 71", "one sequence at a time"), ("exit 71", "before the training began")] {
        let record = bench(&format!("{NEEDS_MEMORY}{ends}")).await.run().await;
        assert_eq!((record.reason, record.code), (ExitReason::Failed, Some(71)), "{}", record.message);
        assert!(record.message.starts_with("out of memory") && record.message.contains(message), "{}", record.message);
    }
}

#[tokio::test]
async fn several_processes_share_a_job_and_the_first_of_them_speaks() {
    let mut bench = bench("echo rank $RANK of $WORLD_SIZE; [ $RANK = 0 ] && checkpoint 5; exit 0").await;
    (bench.order.processes, bench.order.train.gradient_accumulation, bench.order.train.leaves) = (3, 3, Some(3));
    assert_eq!(bench.run().await.reason, ExitReason::Succeeded);
    assert_eq!((bench.log().await.as_str(), bench.steps().await), ("rank 0 of 3\n", vec![5]));
    assert_eq!(fs::read_to_string(bench.folder().log_of(2)).unwrap(), "rank 2 of 3\n");
}

/// One that sees the end of another by itself, and one that waits for it.
#[tokio::test]
async fn the_process_that_failed_is_the_reason_for_the_end_of_all() {
    for others in ["sleep 0.1; exit 75", "wait_for_ever"] {
        let mut bench = bench(&format!("[ $RANK = 2 ] && {{ echo error: no room; exit 1; }}; {others}")).await;
        (bench.order.processes, bench.order.train.gradient_accumulation, bench.order.train.leaves) = (3, 3, Some(3));
        let record = bench.run().await;
        assert_eq!((record.reason, record.code), (ExitReason::Failed, Some(1)), "{}", record.message);
        assert_eq!(record.message, "rank 2: no room");
    }
}

/// Those that have to be ended say nothing of why, and all of them have the same time for it.
#[tokio::test]
async fn the_process_that_was_killed_is_the_reason_for_the_end_of_those_that_wait() {
    let mut bench = bench("[ $RANK = 5 ] && kill -KILL $$; wait_for_ever").await;
    (bench.order.processes, bench.order.train.gradient_accumulation, bench.order.train.leaves) = (12, 12, Some(12));
    let begun = Instant::now();
    let record = bench.run().await;
    assert_eq!((record.reason, record.signal), (ExitReason::Preempted, Some(9)), "{}", record.message);
    assert!(record.message.starts_with("rank 5: "), "{}", record.message);
    assert!(begun.elapsed() < 9 * trainer::SOON, "one after another they would take longer: {:?}", begun.elapsed());
}

#[tokio::test]
async fn a_process_that_has_lost_another_says_which() {
    let mut bench = bench("[ $RANK = 0 ] && { echo error: rank 1 has been silent for a minute; exit 75; }; wait_for_ever").await;
    (bench.order.processes, bench.order.train.gradient_accumulation, bench.order.train.leaves) = (2, 2, Some(2));
    let record = bench.run().await;
    assert_eq!((record.reason, record.message.as_str()), (ExitReason::Preempted, "rank 1 has been silent for a minute"));
}

#[tokio::test]
async fn a_killed_process_is_a_preemption() {
    let mut bench = bench("[ $RANK = 1 ] && kill -KILL $$; sleep 0.1; exit 75").await;
    (bench.order.processes, bench.order.train.gradient_accumulation, bench.order.train.leaves) = (2, 2, Some(2));
    let record = bench.run().await;
    assert_eq!((record.reason, record.signal), (ExitReason::Preempted, Some(9)), "{}", record.message);
}

const STOPS_POLITELY: &str = "trap 'checkpoint 7; exit 75' TERM; echo ready; wait_for_ever";

#[tokio::test]
async fn a_cancelled_trainer_writes_a_checkpoint_first() {
    let bench = bench(STOPS_POLITELY).await;
    let record = bench
        .run_beside(async {
            bench.said("ready").await;
            bench.cancel(60).await;
        })
        .await;
    assert_eq!((record.reason, record.code), (ExitReason::Cancelled, Some(75)), "{}", record.message);
    assert_eq!(bench.steps().await, [7]);
}

#[tokio::test]
async fn a_trainer_that_does_not_listen_is_killed() {
    let bench = bench("trap '' TERM; echo ready; wait_for_ever").await;
    let record = bench
        .run_beside(async {
            bench.said("ready").await;
            bench.cancel(60).await;
            // Asked again with more urgency.
            bench.cancel(0).await;
        })
        .await;
    assert_eq!((record.reason, record.signal), (ExitReason::Cancelled, Some(9)), "{}", record.message);
}

#[tokio::test]
async fn a_preemption_notice_is_passed_on() {
    let bench = bench(STOPS_POLITELY).await;
    let record = bench.agent().run(&bench.path("cache"), bench.said("ready")).await.unwrap();
    assert_eq!((record.reason, record.code), (ExitReason::Preempted, Some(75)), "{}", record.message);
    assert_eq!(bench.steps().await, [7]);
}

#[tokio::test]
async fn the_deadline_stops_the_attempt_whatever_it_is_doing() {
    let mut bench = bench(STOPS_POLITELY).await;
    bench.order.deadline = Some(Timestamp::now() + jiff::SignedDuration::from_millis(300));
    assert_eq!(bench.run().await.reason, ExitReason::Deadline);
    // Also before there is a trainer: here the data cannot be reached.
    *bench.faulty.unreachable.lock().unwrap() = path::datasets();
    bench.order.attempt = 2;
    let record = bench.run().await;
    assert_eq!((record.reason, record.code), (ExitReason::Deadline, None), "{}", record.message);
    assert!(record.message.contains("before the training began"), "{}", record.message);
}

#[tokio::test]
async fn an_agent_that_is_started_again_has_what_is_left_of_the_attempts_time() {
    let mut bench = bench(STOPS_POLITELY).await;
    bench.order.lifetime_seconds = Some(60);
    let (job, started) = (&bench.order.job, Timestamp::now() - jiff::SignedDuration::from_secs(59));
    let (schema, time, phase) = (HEARTBEAT_SCHEMA.to_owned(), Timestamp::now(), Phase::Training);
    let heartbeat = Heartbeat { schema, beat: 7, time, started: Some(started), phase, trouble: None, gpus: Vec::new() };
    write_json(&*bench.store, &path::heartbeat(job, 1), &heartbeat, Condition::Always).await.unwrap();
    assert_eq!(bench.run().await.reason, ExitReason::Deadline);
    let (kept, _) = find_json::<Heartbeat>(&*bench.store, &path::heartbeat(job, 1)).await.unwrap().unwrap();
    assert_eq!(kept.started, Some(started), "for the one after it");
}

#[tokio::test]
async fn who_loses_the_lease_stops_and_writes_nothing_more() {
    let bench = bench("echo ready; wait_for_ever").await;
    let record = bench
        .run_beside(async {
            bench.said("ready").await;
            let path = path::attempt_lease(&bench.order.job);
            let taken = Lease::acquire(&bench.store, path, Holder::this_process(2), LEASE_TTL).await.unwrap();
            assert!(matches!(taken, Acquired::Held(_)));
            fs::create_dir(bench.folder().checkpoint(9)).unwrap();
        })
        .await;
    assert_eq!(record.reason, ExitReason::LostLease, "{}", record.message);
    assert_eq!(bench.steps().await, Vec::<u64>::new());
    // An agent that comes too late does not even begin.
    fs::remove_dir_all(bench.path("work")).unwrap();
    bench.store.delete(&path::exit(&bench.order.job, 1)).await.unwrap();
    assert_eq!(bench.run().await.reason, ExitReason::LostLease);
    assert!(!bench.folder().log().exists());
}

/// A holder of this attempt, on a machine that this one cannot look into.
async fn held_elsewhere(bench: &Bench, nonce: &str) {
    let holder = Holder { host: "elsewhere".to_owned(), nonce: nonce.to_owned(), ..Holder::this_process(1) };
    let path = path::attempt_lease(&bench.order.job);
    assert!(matches!(Lease::acquire(&bench.store, path, holder, LEASE_TTL).await.unwrap(), Acquired::Held(_)));
}

#[tokio::test]
async fn an_agent_that_comes_back_after_a_restart_is_the_holder_that_it_was() {
    let bench = bench("echo again").await;
    let before = bench.folder().identity().unwrap().unwrap();
    assert!(bench.folder().identity().unwrap().is_none(), "for one process at a time");
    held_elsewhere(&bench, &before.name).await;
    drop(before);
    assert_eq!(bench.run().await.reason, ExitReason::Succeeded);
    assert_eq!(bench.log().await, "again\n");
}

#[tokio::test(start_paused = true)]
async fn a_vanished_holder_of_the_same_attempt_is_outlasted_and_a_living_one_is_not() {
    let bench = bench_with("", tempfile::tempdir().unwrap(), Arc::new(MemoryStore::new())).await;
    held_elsewhere(&bench, "other").await;
    let beats = async {
        for beat in 0.. {
            let time = Timestamp::UNIX_EPOCH;
            let (schema, phase) = (HEARTBEAT_SCHEMA.to_owned(), Phase::Training);
            let heartbeat = Heartbeat { schema, beat, time, started: None, phase, trouble: None, gpus: Vec::new() };
            let path = path::heartbeat(&bench.order.job, 1);
            write_json(&*bench.store, &path, &heartbeat, Condition::Always).await.unwrap();
            sleep(LEASE_TTL / 2).await;
        }
    };
    let agent = bench.agent();
    tokio::select! {
        taken = agent.take_lease() => assert!(matches!(taken.unwrap(), Acquired::HeldBy(_))),
        () = beats => unreachable!("it beats for ever"),
    }
    let begun = Instant::now();
    assert!(matches!(agent.take_lease().await.unwrap(), Acquired::Held(_)));
    assert!((LEASE_TTL * 3 / 4..=LEASE_TTL).contains(&begun.elapsed()));
}

#[tokio::test]
async fn a_store_that_is_down_only_delays() {
    let bench = bench("echo ready; while [ ! -e go ]; do sleep 0.02; done; checkpoint 3; echo done; echo over > over").await;
    let record = bench
        .run_beside(async {
            bench.said("ready").await;
            bench.faulty.down.store(true, Ordering::SeqCst);
            fs::write(bench.folder().path().join("go"), "").unwrap();
            until(async || bench.folder().path().join("over").exists()).await;
            bench.faulty.down.store(false, Ordering::SeqCst);
        })
        .await;
    assert_eq!(record.reason, ExitReason::Succeeded, "{}", record.message);
    assert_eq!(bench.log().await, "ready\ndone\n");
    assert_eq!(bench.steps().await, [3]);
}

#[tokio::test]
async fn failures_say_why() {
    let mut bench = bench("echo 'step 1'; echo 'error: the loss is not a number' >&2; exit 1").await;
    let record = bench.run().await;
    assert_eq!((record.reason, record.code), (ExitReason::Failed, Some(1)));
    assert_eq!(record.message, "the loss is not a number");
    fs::remove_file(bench.trainer()).unwrap();
    bench.order.attempt = 2;
    let record = bench.run().await;
    assert_eq!(record.reason, ExitReason::Failed);
    assert!(record.message.contains("cannot start the trainer"), "{}", record.message);
    bench.order.attempt = 3;
    bench.order.dataset = Digest::of(b"nothing");
    let record = bench.run().await;
    assert_eq!(record.reason, ExitReason::Failed);
    assert!(record.message.contains("is not in the store"), "{}", record.message);
}

/// This test program again, as an agent that can be killed.
fn agent_process(bench: &Bench) -> std::process::Child {
    fs::write(bench.path("order.json"), serde_json::to_vec(&bench.order).unwrap()).unwrap();
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "agent::tests::agent_process_body", "--ignored", "--nocapture"])
        .env("FTCTL_TEST_DIRECTORY", bench.directory.path())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
#[ignore = "the other process of the tests that kill an agent"]
fn agent_process_body() {
    let directory =
        PathBuf::from(std::env::var_os("FTCTL_TEST_DIRECTORY").expect("this is the other process of a test, not a test"));
    let order: RunOrder = serde_json::from_slice(&fs::read(directory.join("order.json")).unwrap()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(run(&order, Seat::default(), &directory.join("work"), &directory.join("cache"), &Silent)).unwrap();
}

const SAYS_ITS_NUMBER: &str = "echo $$ > pid; checkpoint 4; echo ready; trap 'checkpoint 7; exit 75' TERM; wait_for_ever";

/// Kills an agent at work, in such a way that it left something unsent.
async fn kill_agent(bench: &Bench) {
    let mut agent = agent_process(bench);
    bench.said("ready").await;
    let pid: u32 = fs::read_to_string(bench.folder().path().join("pid")).unwrap().trim().parse().unwrap();
    let started = crate::store::lease::process_start(pid).unwrap();
    agent.kill().unwrap();
    agent.wait().unwrap();
    until(async || !process_lives(pid, started)).await;
    // The output of a trainer in its last quarter of a second, whatever the agent saw of it.
    let mut log = fs::OpenOptions::new().append(true).open(bench.folder().log()).unwrap();
    std::io::Write::write_all(&mut log, b"last words\n").unwrap();
    fs::create_dir(bench.folder().checkpoint(6)).unwrap();
    fs::write(bench.folder().checkpoint(6).join("model.safetensors"), "weights 6\n").unwrap();
}

#[tokio::test]
async fn the_next_agent_sends_what_a_killed_one_left() {
    let mut bench = bench(SAYS_ITS_NUMBER).await;
    kill_agent(&bench).await;
    bench.order.attempt = 2;
    bench.write_trainer("echo from $(newest)");
    assert_eq!(bench.run().await.reason, ExitReason::Succeeded);
    assert_eq!(bench.log().await, "from 6\n");
    assert_eq!(bench.steps().await, [4, 6]);
    assert_eq!(bench.text(&path::log(&bench.order.job, 1)).await, "ready\nlast words\n");
    assert!(!Folder::new(&bench.path("work"), 1).path().exists());
}

#[tokio::test]
async fn the_next_agent_waits_for_what_a_killed_trainer_left_running() {
    let mut bench = bench(&format!("(sleep 0.7; mkdir output/late; echo a late word) & {SAYS_ITS_NUMBER}")).await;
    kill_agent(&bench).await;
    bench.order.attempt = 2;
    bench.write_trainer("true");
    assert_eq!(bench.run().await.reason, ExitReason::Succeeded);
    assert_eq!(bench.text(&path::log(&bench.order.job, 1)).await, "ready\nlast words\na late word\n");
    assert!(!Folder::new(&bench.path("work"), 1).path().exists());
}

#[tokio::test]
async fn a_drain_sends_what_a_killed_agent_left() {
    let bench = bench(SAYS_ITS_NUMBER).await;
    kill_agent(&bench).await;
    for _ in 0..2 {
        drain(&bench.order, &bench.path("work"), &Silent).await.unwrap();
        assert_eq!(bench.log().await, "ready\nlast words\n");
        assert_eq!(bench.steps().await, [4, 6]);
    }
    // After a later attempt has begun only the lines are sent.
    let path = path::attempt_lease(&bench.order.job);
    drop(Lease::acquire(&bench.store, path, Holder::this_process(2), LEASE_TTL).await.unwrap());
    fs::create_dir(bench.folder().checkpoint(8)).unwrap();
    fs::write(bench.folder().log(), "ready\nlast words\nmore\n").unwrap();
    drain(&bench.order, &bench.path("work"), &Silent).await.unwrap();
    assert_eq!(bench.log().await, "ready\nlast words\nmore\n");
    assert_eq!(bench.steps().await, [4, 6]);
}

#[tokio::test]
async fn sigterm_is_a_preemption_notice() {
    let bench = bench(SAYS_ITS_NUMBER).await;
    let mut agent = agent_process(&bench);
    bench.said("ready").await;
    let pid = rustix::process::Pid::from_raw(i32::try_from(agent.id()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(agent.wait().unwrap().success());
    let (record, _): (ExitRecord, _) = store::read_json(&*bench.store, &path::exit(&bench.order.job, 1)).await.unwrap();
    assert_eq!((record.reason, record.code), (ExitReason::Preempted, Some(75)), "{}", record.message);
    assert_eq!(bench.steps().await, [4, 7]);
}

#[tokio::test]
async fn however_often_the_agent_is_killed_no_line_is_lost_or_repeated() {
    // However fast the machine is, the last steps are the last attempt's: which checkpoints stay is certain only without a kill.
    let mut bench = bench(
        r#"from=$(newest); step=${from:-0}
while [ "$step" -lt 60 ]; do
    [ "$step" -lt 50 ] || [ -e ../../last ] || wait_for_ever
    step=$((step + 1)); echo "step $step"
    [ $((step % 4)) -ne 0 ] || checkpoint $step
    sleep 0.01
done"#,
    )
    .await;
    let mut attempts = Vec::new();
    for patience in [0, 20, 60, 120, 250, 400, 500] {
        let mut agent = agent_process(&bench);
        until(async || bench.folder().log().exists() || agent.try_wait().unwrap().is_some()).await;
        sleep(Duration::from_millis(patience)).await;
        agent.kill().unwrap();
        agent.wait().unwrap();
        attempts.push(bench.order.attempt);
        bench.order.attempt += 1;
    }
    fs::write(bench.path("last"), "").unwrap();
    let record = bench.run().await;
    assert_eq!(record.reason, ExitReason::Succeeded, "{}", record.message);
    let (mut resumed_from, mut done) = (0, 0);
    for attempt in attempts.into_iter().chain([bench.order.attempt]) {
        let path = path::log(&bench.order.job, attempt);
        let lines = if bench.store.head(&path).await.unwrap().is_some() { bench.text(&path).await } else { String::new() };
        let step = |line: &str| line.strip_prefix("step ").and_then(|step| step.parse().ok());
        let steps: Option<Vec<u64>> = lines.lines().map(step).collect();
        let steps = steps.unwrap_or_else(|| panic!("attempt {attempt} said:\n{lines}"));
        if let (Some(&first), Some(&last)) = (steps.first(), steps.last()) {
            assert_eq!(steps, (first..=last).collect::<Vec<_>>(), "attempt {attempt}");
            assert!(first > resumed_from && first <= done + 1, "attempt {attempt} begins at {first}, after {done}");
            (resumed_from, done) = (first - 1, last);
        }
    }
    assert_eq!(done, 60);
    assert_eq!(bench.steps().await, [56, 60]);
}

#[tokio::test]
async fn an_order_is_found_in_the_store_by_its_attempt() {
    let mut bench = bench("echo trained").await;
    let url = bench.store.url().to_owned();
    // Whatever its store is called elsewhere, the agent uses the one that it was told.
    bench.order.store = "azure://elsewhere/container".to_owned();
    bench.order.attempt = 2;
    write_json(&*bench.store, &path::order(&bench.order.job), &bench.order, Condition::Always).await.unwrap();
    let read_as = async |attempt: u32, asked: Option<&Digest>| {
        from_store(&url, &AttemptId::new(&bench.order.job, attempt), asked, &Silent).await
    };
    let read = async |attempt: u32| read_as(attempt, None).await;
    let asked = order::asked(&serde_json::to_value(&bench.order).unwrap());
    assert!(read_as(2, Some(&asked)).await.is_ok());
    let refused = read_as(2, Some(&Digest::of(b"another's"))).await;
    assert!(matches!(refused, Err(StoreError::Unreadable(why)) if why.contains("is not what the job's submitter ordered")));
    assert_eq!(read(2).await.unwrap(), RunOrder { store: url.clone(), ..bench.order.clone() });
    assert!(matches!(read(1).await, Err(StoreError::Conflict { .. })));
    let broken = RunOrder { train: TrainSettings { block_size: 0, ..TrainSettings::default() }, ..bench.order.clone() };
    write_json(&*bench.store, &path::order(&bench.order.job), &broken, Condition::Always).await.unwrap();
    assert!(matches!(read(2).await, Err(StoreError::Unreadable(why)) if why.contains("train.block_size")));
}

/// A trainer that saves when it is asked to, and is over when there is a file `go`.
const SAVES: &str = r"step=0; trap 'step=$((step + 1)); checkpoint $step; echo saved $step' URG
echo ready; while [ ! -e go ]; do sleep 0.02; done";

#[tokio::test]
async fn a_notice_of_the_cloud_saves_and_ends_nothing() {
    let (bench, imds) = (bench(SAVES).await, Imds::start().await);
    let beat = async || find_json::<Heartbeat>(&*bench.store, &path::heartbeat(&bench.order.job, 1)).await.unwrap();
    let trouble = async || beat().await.and_then(|(beat, _)| beat.trouble);
    let (mut agent, cache) = (bench.agent(), bench.path("cache"));
    agent.notices = Some(imds.source());
    let script = async {
        bench.said("ready").await;
        imds.announce(&[("A", "Preempt", "node_7")]);
        bench.said("saved 1").await;
        until(async || trouble().await.is_some()).await;
        let told = trouble().await.unwrap();
        assert!(told.starts_with("will be preempted at 2026-11-26T18:29:47Z"), "{told}");
        imds.announce(&[]);
        bench.said("ftctl: the cloud has withdrawn the notice: this machine stays").await;
        until(async || trouble().await.is_none()).await;
        assert_eq!(bench.steps().await, [1], "it was saved once, and is in the store");
        imds.announce(&[("B", "Preempt", "node_7")]);
        bench.said("saved 2").await;
        assert_eq!(beat().await.unwrap().0.phase, Phase::Training);
        fs::write(bench.folder().path().join("go"), "").unwrap();
    };
    let (record, ()) = tokio::join!(agent.run(&cache, std::future::pending()), script);
    let record = record.unwrap();
    assert_eq!((record.reason, record.code), (ExitReason::Succeeded, Some(0)), "{}", record.message);
    assert_eq!(bench.steps().await, [1, 2]);
}

#[tokio::test]
async fn a_machine_that_dies_after_its_notice_is_followed_from_what_was_saved() {
    let (mut bench, imds) = (bench(SAVES).await, Imds::start().await);
    let (mut agent, cache) = (bench.agent(), bench.path("cache"));
    agent.notices = Some(imds.source());
    let death = async {
        bench.said("ready").await;
        imds.announce(&[("A", "Preempt", "node_7")]);
        until(async || bench.steps().await == [1]).await;
    };
    tokio::select! {
        ended = agent.run(&cache, std::future::pending()) => panic!("{ended:?}"),
        () = death => {}
    }
    drop(agent);
    assert!(bench.store.head(&path::exit(&bench.order.job, 1)).await.unwrap().is_none(), "it has not said that it ends");
    bench.order.attempt = 2;
    fs::remove_dir_all(bench.path("work")).unwrap();
    bench.write_trainer("echo from $(newest)");
    assert_eq!(bench.run().await.reason, ExitReason::Succeeded);
    assert_eq!(bench.log().await, "from 1\n");
}

#[tokio::test]
async fn a_trainer_that_does_not_know_the_wish_to_save_goes_on() {
    let (bench, imds) = (bench("echo ready; while [ ! -e go ]; do sleep 0.02; done").await, Imds::start().await);
    let (mut agent, cache) = (bench.agent(), bench.path("cache"));
    agent.notices = Some(imds.source());
    let script = async {
        bench.said("ready").await;
        imds.announce(&[("A", "Preempt", "node_7")]);
        until(async || bench.log().await.contains("ftctl: this machine will be preempted")).await;
        fs::write(bench.folder().path().join("go"), "").unwrap();
    };
    let (record, ()) = tokio::join!(agent.run(&cache, std::future::pending()), script);
    assert_eq!(record.unwrap().reason, ExitReason::Succeeded);
}
