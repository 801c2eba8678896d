use std::{os::unix::process::ExitStatusExt, process::Stdio};

use ft_trainer::progress::{Event, Line};
use serde_json::json;
use tokio::process::Command;

use super::*;
use crate::{
    job::{
        compute::Compute,
        order::{CANCEL_SCHEMA, ExitReason, ExitRecord, Heartbeat, Phase},
    },
    provider::conformance::{self, World, attempt, order, plan},
    store::{Condition, directory::DirectoryStore, memory::MemoryStore, read_json, write_json},
};

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);

/// A cloud of its own, its store, and any number of clients.
struct Rehearsal {
    directory: tempfile::TempDir,
    store: Arc<dyn Store>,
}

impl Rehearsal {
    /// A job takes an hour here unless the script says otherwise: 36 s a step.
    fn of(script: &serde_json::Value) -> Self {
        let mut script = script.clone();
        script.as_object_mut().expect("a script").entry("job").or_insert(json!({ "staging": "1m", "duration": "1h" }));
        let directory = tempfile::tempdir().expect("directory");
        fs::write(directory.path().join("script.json"), script.to_string()).expect("script");
        Self { directory, store: Arc::new(MemoryStore::new()) }
    }

    fn fake(&self) -> Arc<Fake> {
        Arc::new(Fake::open(self.directory.path(), Party::new("me", self.store.clone())).expect("open"))
    }

    async fn pass(&self, duration: Duration) {
        self.fake().clock().sleep(duration).await;
    }

    async fn started(&self, attempt: &AttemptId) {
        self.fake().provision(attempt, &plan(), &TrainerImage::None).await.expect("provision");
        self.fake().launch(&order(attempt)).await.expect("launch");
    }

    fn effects(&self, kind: EffectKind, attempt: &AttemptId) -> usize {
        let effects = self.fake().load().expect("cloud").effects;
        effects.iter().filter(|effect| effect.kind == kind && effect.machine == attempt.machine_name()).count()
    }

    async fn exit(&self, attempt: &AttemptId) -> Option<ExitRecord> {
        find_json(self.store.as_ref(), &path::exit(&attempt.job, attempt.attempt)).await.expect("exit").map(|(exit, _)| exit)
    }

    async fn reason(&self, attempt: &AttemptId) -> Option<ExitReason> {
        self.exit(attempt).await.map(|exit| exit.reason)
    }

    async fn text(&self, path: &str) -> String {
        String::from_utf8(self.store.get(path).await.expect(path).bytes.to_vec()).expect("text")
    }

    async fn steps(&self, attempt: &AttemptId) -> Vec<u64> {
        let progress = self.text(&path::progress(&attempt.job, attempt.attempt)).await;
        let lines = progress.lines().map(|line| serde_json::from_str::<Line>(line).expect("a progress line"));
        lines.filter_map(|line| if let Event::Step { step, .. } = line.event { Some(step) } else { None }).collect()
    }

    async fn checkpoints(&self, attempt: &AttemptId) -> Vec<u64> {
        checkpoint::list(self.store.as_ref(), &attempt.job).await.expect("checkpoints")
    }
}

#[async_trait]
impl World for Rehearsal {
    fn compute(&self) -> Compute {
        Compute::Fake
    }

    fn client(&self) -> Arc<dyn Provider> {
        self.fake()
    }

    fn elsewhere(&self, everybody: bool) -> Arc<dyn Provider> {
        let party = Party { everybody, ..Party::new("me", Arc::new(MemoryStore::new())) };
        Arc::new(Fake::open(self.directory.path(), party).expect("open"))
    }

    async fn finish(&self, _: &AttemptId) {
        self.pass(2 * HOUR).await;
    }

    fn starts(&self, attempt: &AttemptId) -> usize {
        self.effects(EffectKind::AgentStarted, attempt)
    }
}

fn dead(why: &str) -> Sighting {
    Sighting::Dead { why: why.to_owned() }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_only_waits_does_not_take_a_whole_processor() {
    let rehearsal = Rehearsal::of(&json!({}));
    let (fake, began) = (rehearsal.fake(), tokio::time::Instant::now());
    let clock = fake.clock();
    for _ in 0..IDLE {
        clock.sleep(MINUTE).await;
    }
    assert_eq!(began.elapsed(), Duration::ZERO, "hours pass at once");
    for _ in 0..10 {
        clock.sleep(MINUTE).await;
    }
    assert!(began.elapsed() >= 10 * PAUSE, "somebody else is waited for: {:?}", began.elapsed());
    fake.list().await.expect("a list");
    let began = tokio::time::Instant::now();
    clock.sleep(MINUTE).await;
    assert_eq!(began.elapsed(), Duration::ZERO, "it does something again");
}

#[tokio::test]
async fn passes_the_suite() {
    conformance::machines(&Rehearsal::of(&json!({}))).await;
}

/// The runtime has no timer: whatever waited for real time would panic.
#[test]
fn a_hundred_years_pass_without_waiting() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("runtime");
    let rehearsal = Rehearsal::of(&json!({ "faults": [{ "call": "list", "kind": "slow", "delay": "2d", "times": 9 }] }));
    let clock = rehearsal.fake().clock();
    let before = clock.now();
    runtime.block_on(clock.sleep(100 * 365 * 24 * HOUR));
    runtime.block_on(rehearsal.fake().list()).expect("slow, but right");
    assert_eq!(rehearsal.fake().clock().now(), before + 100 * 365 * 24 * HOUR + 48 * HOUR, "and every client agrees");
}

#[tokio::test]
async fn a_job_leaves_in_the_store_what_a_real_one_does() {
    let (rehearsal, attempt) = (Rehearsal::of(&json!({})), attempt("succeeds"));
    rehearsal.started(&attempt).await;
    let beat = path::heartbeat(&attempt.job, 1);
    let (staging, _): (Heartbeat, _) = read_json(rehearsal.store.as_ref(), &beat).await.expect("heartbeat");
    rehearsal.pass(31 * MINUTE).await;
    let (training, _): (Heartbeat, _) = read_json(rehearsal.store.as_ref(), &beat).await.expect("heartbeat");
    assert_eq!((staging.phase, training.phase), (Phase::Staging, Phase::Training));
    assert!(training.beat > staging.beat);
    assert_eq!(rehearsal.steps(&attempt).await, [10, 20, 30, 40, 50]);
    assert_eq!(rehearsal.checkpoints(&attempt).await, [20, 40]);
    assert_eq!(rehearsal.exit(&attempt).await, None);

    rehearsal.pass(HOUR).await;
    assert_eq!(rehearsal.fake().observe(&attempt).await, Ok(dead("its work is done")));
    let exit = rehearsal.exit(&attempt).await.expect("exit record");
    assert_eq!((exit.reason, exit.code), (ExitReason::Succeeded, Some(0)));
    assert_eq!(exit.finished, exit.started + 61 * MINUTE);
    assert_eq!(rehearsal.checkpoints(&attempt).await, [20, 40, 60, 80, 100]);
    let to = tempfile::tempdir().expect("directory");
    let report = crate::job::report::Silent;
    checkpoint::fetch(&rehearsal.store, &attempt.job, 100, &to.path().join("last"), &report).await.expect("a whole checkpoint");
}

#[tokio::test]
async fn what_is_told_does_not_depend_on_when_anybody_looks() {
    let script = json!({ "preemptions": [{ "attempt": 1, "after": "50m", "notice": true }] });
    let (patient, nervous, attempt) = (Rehearsal::of(&script), Rehearsal::of(&script), attempt("told"));
    for rehearsal in [&patient, &nervous] {
        rehearsal.started(&attempt).await;
    }
    patient.pass(HOUR).await;
    let (mut log, mut progress) = (String::new(), String::new());
    for _ in 0..60 {
        nervous.pass(MINUTE).await;
        for (path, told) in [(path::log(&attempt.job, 1), &mut log), (path::progress(&attempt.job, 1), &mut progress)] {
            let now = nervous.store.head(&path).await.expect("head").map_or(0, |meta| meta.size);
            let text = if now > 0 { nervous.text(&path).await } else { String::new() };
            assert!(text.starts_with(told.as_str()), "only ever appended to");
            *told = text;
        }
    }
    assert_eq!(log, patient.text(&path::log(&attempt.job, 1)).await);
    assert_eq!(progress, patient.text(&path::progress(&attempt.job, 1)).await);
    assert_eq!(nervous.exit(&attempt).await, patient.exit(&attempt).await);
}

#[tokio::test]
async fn the_trouble_of_a_job_is_not_that_of_another() {
    let folder = tempfile::tempdir().expect("directory");
    let (store, jobs) = (folder.path().join("store"), folder.path().join("store/ftctl/v1/jobs"));
    fs::create_dir_all(store.join(".ftctl")).expect("directory");
    fs::write(store.join(".ftctl/id"), "1d".repeat(32)).expect("id");
    let store = Arc::new(DirectoryStore::open(&store).expect("store"));
    let rehearsal = Rehearsal { store, ..Rehearsal::of(&json!({})) };
    let [broken, healthy] = [attempt("broken"), attempt("healthy")];
    for attempt in [&broken, &healthy] {
        rehearsal.started(attempt).await;
    }
    fs::remove_dir_all(jobs.join(broken.job.as_str())).expect("removed");
    std::os::unix::fs::symlink(folder.path(), jobs.join(broken.job.as_str())).expect("a link");
    rehearsal.pass(2 * HOUR).await;
    assert_eq!(rehearsal.reason(&healthy).await, Some(ExitReason::Succeeded));
    assert!(matches!(rehearsal.fake().observe(&healthy).await, Ok(Sighting::Dead { .. })));

    let away = || StoreError::Unreadable("nothing".to_owned());
    let mut answers = Answers::default();
    assert_eq!(answers.take::<()>(Err(away())), None);
    assert!(answers.some_came().is_err(), "the store is away");
}

#[tokio::test]
async fn the_next_attempt_resumes_from_the_last_checkpoint() {
    let rehearsal = Rehearsal::of(&json!({ "preemptions": [{ "attempt": 1, "after": "30m" }] }));
    let first = attempt("resumes");
    let second = AttemptId::new(&first.job, 2);
    rehearsal.started(&first).await;
    rehearsal.pass(40 * MINUTE).await;
    assert_eq!(rehearsal.fake().observe(&first).await, Ok(dead("preempted")));
    assert_eq!(rehearsal.reason(&first).await, None, "it had no time for a word");
    assert_eq!(rehearsal.checkpoints(&first).await, [20, 40]);
    rehearsal.started(&second).await;
    rehearsal.pass(2 * HOUR).await;
    assert_eq!(rehearsal.steps(&second).await, [50, 60, 70, 80, 90, 100]);
    let exit = rehearsal.exit(&second).await.expect("exit record");
    assert_eq!(exit.finished, exit.started + 37 * MINUTE, "one minute of staging and 60 of 100 steps");
}

#[tokio::test]
async fn preemption_with_notice_saves_the_work() {
    let rehearsal = Rehearsal::of(&json!({ "preemptions": [{ "attempt": 1, "after": "30m", "notice": true, "vanishes": true }] }));
    let attempt = attempt("notice");
    rehearsal.started(&attempt).await;
    rehearsal.pass(HOUR).await;
    assert_eq!(rehearsal.fake().observe(&attempt).await, Ok(Sighting::Gone));
    assert_eq!(rehearsal.fake().list().await, Ok(vec![]));
    assert_eq!(rehearsal.reason(&attempt).await, Some(ExitReason::Preempted));
    assert_eq!(rehearsal.checkpoints(&attempt).await, [20, 40, 48]);
}

#[tokio::test]
async fn preemption_may_come_before_the_agent() {
    let rehearsal = Rehearsal::of(
        &json!({ "preemptions": [{ "attempt": 1, "after": "0s" }, { "attempt": 2, "after": "0s", "vanishes": true }] }),
    );
    let (first, fake) = (attempt("early"), rehearsal.fake());
    let second = AttemptId::new(&first.job, 2);
    fake.provision(&first, &plan(), &TrainerImage::None).await.expect("provision");
    assert_eq!(fake.observe(&first).await, Ok(dead("preempted")));
    fake.launch(&order(&first)).await.expect("left as it is");
    fake.provision(&second, &plan(), &TrainerImage::None).await.expect("provision");
    assert_eq!(fake.launch(&order(&second)).await.expect_err("there is nothing").class, Class::Network);
    assert_eq!(fake.observe(&second).await, Ok(Sighting::Gone));
    assert_eq!((rehearsal.starts(&first), rehearsal.starts(&second)), (0, 0));
}

#[tokio::test]
async fn refusals_last_as_long_as_the_script_says() {
    for (kind, class) in
        [("stock_out", Class::Capacity), ("quota", Class::Quota), ("denied", Class::Denied), ("broken", Class::Internal)]
    {
        let fault = json!({ "call": "provision", "attempt": 1, "kind": kind, "times": 2, "retry_after": "90s" });
        let (rehearsal, attempt) = (Rehearsal::of(&json!({ "faults": [fault] })), attempt("refused"));
        for _ in 0..2 {
            let error = rehearsal.fake().provision(&attempt, &plan(), &TrainerImage::None).await.expect_err(kind);
            assert_eq!(error.class, class);
            assert_eq!(error.retry_after, Some(Duration::from_secs(90)));
            assert_eq!(rehearsal.fake().observe(&attempt).await, Ok(Sighting::Gone));
        }
        rehearsal.fake().provision(&attempt, &plan(), &TrainerImage::None).await.expect("the third time");
    }
}

#[tokio::test]
async fn a_fault_can_be_meant_for_one_attempt() {
    let rehearsal = Rehearsal::of(&json!({ "faults": [{ "call": "provision", "attempt": 2, "kind": "stock_out" }] }));
    let first = attempt("second-only");
    rehearsal.fake().provision(&first, &plan(), &TrainerImage::None).await.expect("not this one");
    rehearsal.fake().provision(&AttemptId::new(&first.job, 2), &plan(), &TrainerImage::None).await.expect_err("this one");
}

#[tokio::test]
async fn a_lost_answer_happened_and_a_lost_request_did_not() {
    for (kind, made) in [("lost_answer", 1), ("unreachable", 0)] {
        let faults = ["provision", "launch", "destroy"].map(|call| json!({ "call": call, "kind": kind }));
        let (rehearsal, attempt) = (Rehearsal::of(&json!({ "faults": faults })), attempt("lost"));
        let fake = rehearsal.fake();
        let lost = |error: ProviderError| assert_eq!(error.class, Class::Network);

        lost(fake.provision(&attempt, &plan(), &TrainerImage::None).await.expect_err(kind));
        assert_eq!(rehearsal.effects(EffectKind::MachineCreated, &attempt), made);
        fake.provision(&attempt, &plan(), &TrainerImage::None).await.expect("again");
        assert_eq!(rehearsal.effects(EffectKind::MachineCreated, &attempt), 1);

        lost(fake.launch(&order(&attempt)).await.expect_err(kind));
        assert_eq!(rehearsal.starts(&attempt), made);
        fake.launch(&order(&attempt)).await.expect("again");
        assert_eq!(rehearsal.starts(&attempt), 1);

        lost(fake.destroy(&attempt.job).await.expect_err(kind));
        assert_eq!(rehearsal.effects(EffectKind::MachineDestroyed, &attempt), made);
        fake.destroy(&attempt.job).await.expect("again");
        assert_eq!(fake.list().await, Ok(vec![]));
    }
}

#[tokio::test]
async fn a_failing_destroy_leaves_what_it_should_have_removed() {
    let rehearsal = Rehearsal::of(&json!({ "faults": [{ "call": "destroy", "kind": "broken", "times": 2 }] }));
    let attempt = attempt("stays");
    rehearsal.started(&attempt).await;
    for _ in 0..2 {
        rehearsal.fake().destroy(&attempt.job).await.expect_err("broken");
        assert_eq!(rehearsal.fake().list().await.expect("list").len(), 1);
    }
    rehearsal.fake().destroy(&attempt.job).await.expect("the third time");
    assert_eq!(rehearsal.fake().list().await, Ok(vec![]));
}

#[tokio::test]
async fn a_machine_out_of_sight_goes_on_working() {
    let rehearsal = Rehearsal::of(&json!({ "out_of_sight": [{ "attempt": 1, "after": "10m", "lasting": "5m" }] }));
    let attempt = attempt("hidden");
    rehearsal.started(&attempt).await;
    let alive = Ok(Sighting::Alive { agent: true });
    assert_eq!(rehearsal.fake().observe(&attempt).await, alive);
    rehearsal.pass(12 * MINUTE).await;
    let error = rehearsal.fake().observe(&attempt).await.expect_err("hidden");
    assert_eq!(error.class, Class::Network);
    let before = rehearsal.steps(&attempt).await.len();
    rehearsal.pass(3 * MINUTE + HOUR / 2).await;
    assert_eq!(rehearsal.fake().observe(&attempt).await, alive);
    assert!(rehearsal.steps(&attempt).await.len() > before);
}

#[tokio::test]
async fn a_job_ends_as_it_was_told_to() {
    let failing = Rehearsal::of(&json!({ "job": { "duration": "10m", "fails": "the loss is not a number at step 100" } }));
    let attempt = attempt("ends");
    failing.started(&attempt).await;
    failing.pass(HOUR).await;
    let exit = failing.exit(&attempt).await.expect("exit record");
    assert_eq!((exit.reason, exit.code), (ExitReason::Failed, Some(1)));
    assert_eq!(exit.message, "the loss is not a number at step 100");

    let late = Rehearsal::of(&json!({}));
    let deadline = late.fake().clock().now() + 30 * MINUTE;
    late.fake().provision(&attempt, &plan(), &TrainerImage::None).await.expect("provision");
    late.fake().launch(&RunOrder { deadline: Some(deadline), ..order(&attempt) }).await.expect("launch");
    late.pass(HOUR).await;
    let exit = late.exit(&attempt).await.expect("exit record");
    assert_eq!((exit.reason, exit.finished), (ExitReason::Deadline, deadline));

    let cancelled = Rehearsal::of(&json!({}));
    cancelled.started(&attempt).await;
    cancelled.pass(30 * MINUTE).await;
    let time = cancelled.fake().clock().now();
    let wish = CancelRequest { schema: CANCEL_SCHEMA.to_owned(), time, grace_seconds: 30 };
    write_json(cancelled.store.as_ref(), &path::cancel(&attempt.job), &wish, Condition::Always).await.expect("cancel");
    assert_eq!(cancelled.fake().observe(&attempt).await, Ok(dead("cancelled")));
    assert_eq!(cancelled.reason(&attempt).await, Some(ExitReason::Cancelled));
    assert_eq!(cancelled.checkpoints(&attempt).await, [20, 40, 48], "checkpoint first");
}

#[tokio::test]
async fn the_kill_switch_needs_no_client() {
    let rehearsal = Rehearsal::of(&json!({ "job": { "staging": "1m", "duration": "60d" } }));
    let attempt = attempt("expires");
    rehearsal.started(&attempt).await;
    rehearsal.pass(25 * HOUR).await;
    assert_eq!(rehearsal.fake().observe(&attempt).await, Ok(Sighting::Gone));
    assert_eq!(rehearsal.fake().list().await, Ok(vec![]));
    assert_eq!(rehearsal.reason(&attempt).await, None);
}

#[tokio::test]
async fn an_older_attempt_stops_when_a_newer_one_starts() {
    let rehearsal = Rehearsal::of(&json!({}));
    let first = attempt("replaced");
    rehearsal.started(&first).await;
    rehearsal.started(&AttemptId::new(&first.job, 2)).await;
    assert_eq!(rehearsal.reason(&first).await, Some(ExitReason::LostLease));
}

#[tokio::test]
async fn a_script_of_this_version_loads_and_a_wrong_one_says_where() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let directory = tempfile::tempdir().expect("directory");
    let script = |text: &str| {
        fs::write(directory.path().join("script.json"), text).expect("script");
        Fake::open(directory.path(), Party::new("me", store.clone())).map(|fake| fake.script.clone())
    };
    let everything = include_str!("script-1.json");
    let read = script(everything).expect("version 1");
    assert_eq!(serde_json::to_value(&read).ok(), serde_json::from_str(everything).ok(), "every key is in it");
    for (text, part) in [
        ("{\n  \"pries_per_hour\": \"1USD\"\n}", "unknown field `pries_per_hour`, expected"),
        ("{\n  \"job\": { \"duration\": \"soon\" }\n}", "line 2"),
        ("{ \"schema\": \"ftctl.fake-script/2\" }", "`ftctl.fake-script/2`, this version reads `ftctl.fake-script/1`"),
    ] {
        let error = script(text).expect_err("wrong");
        assert_eq!(error.class, Class::Invalid);
        assert!(error.message.contains(part) && error.message.contains("script.json"), "{error}");
    }
}

/// A life in small, as often as it takes.
async fn life(state: &Path) {
    let store: Arc<dyn Store> = Arc::new(DirectoryStore::open(&state.join("store")).expect("store"));
    let fake = Arc::new(Fake::open(&state.join("fake"), Party::new("me", store)).expect("fake"));
    let (attempt, store) = (attempt("crashes"), fake.client_store());
    fake.provision(&attempt, &plan(), &TrainerImage::None).await.expect("provision");
    store.put("order", "order".into(), Condition::Always).await.expect("put");
    fake.launch(&order(&attempt)).await.expect("launch");
    fake.clock().sleep(2 * HOUR).await;
    assert!(store.get(&path::exit(&attempt.job, 1)).await.is_ok());
    fake.destroy(&attempt.job).await.expect("destroy");
}

/// Not a test of its own: the client that [`a_client_can_be_killed_around_every_call`] kills.
#[tokio::test]
#[ignore = "started by the test that kills it"]
async fn client() {
    life(Path::new(&std::env::var_os("FTCTL_TEST_CLIENT").expect("a state directory"))).await;
}

async fn run_client(state: &Path, crash_at: Option<CrashAt>) -> std::process::ExitStatus {
    let script = Script { crash_at, ..Script::default() };
    fs::create_dir_all(state.join("fake")).expect("directory");
    // A job's record is written before its machine is made, and with it the store's id.
    fs::create_dir_all(state.join("store/.ftctl")).expect("directory");
    fs::write(state.join("store/.ftctl/id"), "1d".repeat(32)).expect("id");
    fs::write(state.join("fake/script.json"), serde_json::to_vec(&script).expect("json")).expect("script");
    let mut client = Command::new(std::env::current_exe().expect("this program"));
    client.args(["--ignored", "--exact", "provider::fake::tests::client"]).env("FTCTL_TEST_CLIENT", state);
    client.stdout(Stdio::null()).stderr(Stdio::null()).status().await.expect("client")
}

fn calls(state: &Path) -> Vec<CallLine> {
    let lines = fs::read_to_string(state.join("fake/calls.jsonl")).expect("calls");
    lines.lines().map(|line| serde_json::from_str(line).expect("a call")).collect()
}

#[tokio::test]
async fn a_client_can_be_killed_around_every_call() {
    let undisturbed = tempfile::tempdir().expect("directory");
    assert!(run_client(undisturbed.path(), None).await.success());
    let calls_made = calls(undisturbed.path());
    let names: Vec<_> = calls_made.iter().map(|call| call.name.as_str()).collect();
    assert_eq!(names, ["provision", "put", "launch", "get", "destroy"]);

    let mut instants: Vec<_> = calls_made.iter().flat_map(|made| [(made.call, When::Before), (made.call, When::After)]).collect();
    // After the last answer this life is complete; going on would begin another.
    instants.pop();
    for (call, when) in instants {
        let state = tempfile::tempdir().expect("directory");
        let status = run_client(state.path(), Some(CrashAt { call, when })).await;
        assert_eq!(status.signal(), Some(9), "call {call} {when:?}");
        assert_eq!(calls(state.path()).last().expect("a call").call, call);
        assert!(run_client(state.path(), None).await.success(), "call {call} {when:?}");
        let cloud = Fake::open(&state.path().join("fake"), Party::new("me", Arc::new(MemoryStore::new())))
            .and_then(|fake| fake.load())
            .expect("cloud");
        assert!(cloud.machines.is_empty());
        let kinds: Vec<_> = cloud.effects.iter().map(|effect| effect.kind).collect();
        let once = [EffectKind::MachineCreated, EffectKind::AgentStarted, EffectKind::MachineDestroyed];
        assert_eq!(kinds, once, "call {call} {when:?}");
    }
}
