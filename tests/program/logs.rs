//! `ftctl logs` shows every byte once: while the writer is killed and begun again, soon after each is written, and without reading
//! any twice.

use std::{
    env, fs,
    fs::{File, OpenOptions},
    io::{BufRead as _, BufReader, Read as _, Write as _},
    process::{Child, Command, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use crate::common::Sandbox;
use ftctl::{
    job::{
        id::{JobId, path},
        record::{Attempt, Record},
        state::{Outcome, State},
        units::Money,
    },
    lifecycle::journal,
    store::{
        self, Condition, Store,
        lease::{Acquired, Contender, Holder},
        log,
    },
};
use jiff::Timestamp;
use serde_json::{Value, json};

/// A job that runs, as far as the store tells, with this test as its supervisor and the writer of its logs.
struct Job {
    sandbox: Sandbox,
    store: Arc<dyn Store>,
    id: JobId,
}

fn wait<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(work)
}

impl Job {
    fn running(attempt: u32) -> Self {
        let sandbox = Sandbox::new();
        sandbox.write("job.toml", "name = \"talks\"\n[data]\ntrain = [\"job.toml\"]\n");
        let plan = serde_json::from_str(&sandbox.run(&["plan", "job.toml", "-o", "json"]).stdout).expect("a plan");
        let store = store::open(sandbox.state().join("store").to_str().expect("UTF-8")).expect("a store");
        let id = JobId::derive("talks", "once");
        let mut record = Record::new(id.clone(), plan, Timestamp::now());
        (record.state, record.attempt, record.submitted) = (State::Running, attempt, true);
        record.attempts = (1..=attempt).map(begun).collect();
        let bytes = serde_json::to_vec(&record).expect("JSON");
        wait(store.put(&path::record(&id), bytes.into(), Condition::IfAbsent)).expect("a record");
        let job = Self { sandbox, store, id };
        job.supervise();
        job
    }

    /// Holds the supervisor's lease as a higher attempt would: no ftctl takes it, however long this lasts.
    fn supervise(&self) {
        let holder = Holder::this_process(1);
        let ttl = Duration::from_secs(3_600);
        let mut contender = Contender::new(self.store.clone(), path::supervisor_lease(&self.id), holder, ttl);
        assert!(matches!(wait(contender.acquire()), Ok(Acquired::Held(_))));
    }

    fn write(&self, attempt: u32, text: &str) {
        let path = path::log(&self.id, attempt);
        let offset = wait(log::length(self.store.as_ref(), &path)).expect("a length");
        wait(self.store.append(&path, offset, text.to_owned().into())).expect("appended");
    }

    fn finish(&self) {
        self.change(|record| (record.state, record.outcome) = (State::Finished, Some(Outcome::Succeeded)));
    }

    fn change(&self, change: impl FnOnce(&mut Record)) {
        let (mut record, etag) = wait(journal::read(self.store.as_ref(), &self.id)).expect("the record");
        change(&mut record);
        let bytes = serde_json::to_vec(&record).expect("JSON");
        wait(self.store.put(&path::record(&self.id), bytes.into(), Condition::IfMatch(etag))).expect("the end");
    }

    fn follow(&self) -> Child {
        let mut command = self.sandbox.command(&["logs", "-f", self.id.as_str()]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("ftctl runs")
    }

    fn logs(&self, options: &[&str]) -> crate::common::Said {
        self.sandbox.run(&[&["logs", self.id.as_str()], options].concat())
    }
}

fn begun(attempt: u32) -> Attempt {
    let (started, price_per_hour) = (Timestamp::now(), Money::ZERO);
    Attempt { started: Some(started), ..Attempt::new(attempt, 0, price_per_hour) }
}

/// In front of every line, as the trainer writes it; not shown unless asked for.
const STAMP: &str = "2026-11-20T14:03:22.512Z ";
/// Bytes of a line in the log; the text that is shown is shorter by the stamp.
const LINE: usize = 64;

/// Line `number` of a log whose every byte is known from its place.
fn line(number: usize) -> String {
    let text = format!("{STAMP}step {number:>9} loss {:.6}", 10.0 / (1.0 + number as f64));
    format!("{text:.<63}\n")
}

/// A million lines in CI, 2^24 with `FT_BIG=1`: 61 MiB and 1 GiB.
fn lines() -> usize {
    if env::var_os("FT_BIG").is_some() { 1 << 24 } else { 1_000_003 }
}

/// The writer's process: goes on with its spool where its predecessor was killed, and ships it, up to `limit`; then waits for its
/// end.
#[test]
#[ignore = "started by the test that kills it"]
fn writer() {
    let variable = |name: &str| env::var(name).expect("set by the test");
    let store = store::open(&variable("FTCTL_TEST_STORE")).expect("a store");
    let (path, limit) = (variable("FTCTL_TEST_LOG"), variable("FTCTL_TEST_LIMIT").parse::<usize>().expect("a number"));
    let name = variable("FTCTL_TEST_SPOOL");
    let mut spool = OpenOptions::new().create(true).append(true).open(&name).expect("a spool");
    let mut written = spool.metadata().expect("a length").len() as usize;
    let mut shipped = 0;
    loop {
        let end = (written + 100_000).min(limit);
        let bytes: String = (written / LINE..end.div_ceil(LINE)).map(line).collect();
        let first = written - written % LINE;
        spool.write_all(&bytes.as_bytes()[written - first..end - first]).expect("spooled");
        written = end;
        shipped = wait(log::append_all(store.as_ref(), &path, name.as_ref(), shipped)).expect("shipped");
        if written == limit {
            thread::sleep(Duration::from_secs(3_600));
        }
    }
}

/// Starts the writer again and again and kills it on its way, until the whole log is in the store.
fn write_all(job: &Job, total: usize) -> usize {
    const KILLS: usize = 12;
    let path = path::log(&job.id, 1);
    for kill in 1..=KILLS {
        // A little past the point where it is killed, in whole or broken lines as it comes; the last one reaches the end.
        let goal = total * kill / KILLS;
        let limit = if kill == KILLS { total } else { (goal + goal % 1_000_003).min(total) };
        let mut writer = Command::new(env::current_exe().expect("this program"))
            .args(["--exact", "logs::writer", "--ignored"])
            .env("FTCTL_TEST_STORE", job.store.url())
            .env("FTCTL_TEST_LOG", &path)
            .env("FTCTL_TEST_SPOOL", job.sandbox.path("spool"))
            .env("FTCTL_TEST_LIMIT", limit.to_string())
            .stdout(Stdio::null())
            .spawn()
            .expect("the writer");
        while (wait(log::length(job.store.as_ref(), &path)).expect("a length") as usize) < goal {
            assert!(writer.try_wait().expect("the writer").is_none(), "the writer gave up");
            thread::sleep(Duration::from_millis(1));
        }
        writer.kill().expect("killed");
        writer.wait().expect("gone");
    }
    KILLS
}

/// Bytes that a process has read so far, from files and everything else: proc_pid_io(5).
fn bytes_read(pid: u32) -> u64 {
    let io = fs::read_to_string(format!("/proc/{pid}/io")).expect("the kernel counts");
    io.lines().find_map(|line| line.strip_prefix("rchar: ")?.parse().ok()).expect("rchar")
}

#[test]
fn a_million_lines_arrive_once_while_their_writer_is_killed() {
    let job = Job::running(1);
    let total = lines() * LINE;
    let mut ftctl = job.follow();
    let stdout = ftctl.stdout.take().expect("piped");
    let pid = ftctl.id();
    let reader = thread::spawn(move || {
        let mut shown = BufReader::new(stdout);
        let mut found = String::new();
        for number in 0..lines() {
            found.clear();
            shown.read_line(&mut found).expect("a line");
            assert!(found == line(number)[STAMP.len()..], "line {number} is {found:?}");
        }
        (bytes_read(pid), shown)
    });
    let kills = write_all(&job, total);
    let (read, mut rest) = reader.join().expect("every line is right");
    job.finish();
    let mut after = Vec::new();
    rest.read_to_end(&mut after).expect("the end");
    assert!(after.is_empty(), "{} bytes too many", after.len());
    assert!(ftctl.wait().expect("ftctl").success());
    // Beside the log: the program's libraries, and every half second the record and the lease; less than any one read of the log.
    let (total, aside) = (total as u64, read - total as u64);
    println!("{} lines, {total} bytes, writer killed {kills} times; {aside} bytes read beside the log", lines());
    assert!(aside < 1 << 20, "{read} bytes read for {total} bytes of log");
}

#[test]
fn a_line_is_shown_soon() {
    let job = Job::running(1);
    let mut ftctl = job.follow();
    let mut shown = BufReader::new(ftctl.stdout.take().expect("piped")).lines();
    let mut taken = Vec::new();
    for number in 0..10 {
        job.write(1, &line(number));
        let written = Instant::now();
        assert_eq!(shown.next().expect("a line").expect("read"), line(number)[STAMP.len()..].trim_end());
        taken.push(written.elapsed());
        // Not in step with the reader's looks.
        thread::sleep(Duration::from_millis(37 * number as u64));
    }
    taken.sort();
    println!("lines are shown so long after they were written: {taken:?}");
    // A machine that is busy may stand still for one of them.
    assert!(taken[taken.len() / 2] < Duration::from_secs(2), "{taken:?}");
    job.finish();
    assert!(shown.next().is_none());
    assert!(ftctl.wait().expect("ftctl").success());
}

#[test]
fn parts_of_a_log_can_be_chosen() {
    let job = Job::running(2);
    let now = Timestamp::now();
    let at = |hours: i64| format!("{:.3}", now - Duration::from_secs(3_600 * hours as u64));
    job.write(1, &format!("{} first\n{} second\n  more of it\n", at(9), at(8)));
    job.write(2, &format!("{} third\n{} fourth\nend", at(3), at(1)));
    job.finish();
    let cases: [(&[&str], &str); 9] = [
        (&[], "first\nsecond\n  more of it\nthird\nfourth\nend"),
        (&["--attempt", "1"], "first\nsecond\n  more of it\n"),
        (&["--attempt", "2", "-f"], "third\nfourth\nend"),
        (&["--tail", "2"], "fourth\nend"),
        (&["--tail", "1", "--attempt", "1"], "  more of it\n"),
        (&["--tail", "0"], ""),
        (&["--tail", "99"], "third\nfourth\nend"),
        (&["--since", "2h"], "fourth\nend"),
        (&["--since", "8h30m", "--attempt", "1"], "second\n  more of it\n"),
    ];
    for (options, text) in cases {
        let said = job.logs(options);
        assert_eq!((said.code, said.stdout.as_str()), (Some(0), text), "{options:?}: {}", said.stderr);
    }
    let said = job.logs(&["--attempt", "1", "--timestamps", "--tail", "2"]);
    assert_eq!(said.stdout, format!("{} second\n  more of it\n", at(8)));
    let said = job.logs(&["--attempt", "3"]);
    assert_eq!(said.code, Some(3));
    assert!(said.stderr.contains("has no attempt 3; its last is 2"), "{}", said.stderr);
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let job = Job::running(1);
    let text: String = (0..10_000).map(line).collect();
    job.write(1, &text);
    for follow in [true, false] {
        let mut ftctl = if follow {
            job.follow()
        } else {
            let mut command = job.sandbox.command(&["logs", job.id.as_str()]);
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("ftctl runs")
        };
        let mut first = String::new();
        BufReader::new(ftctl.stdout.take().expect("piped")).read_line(&mut first).expect("a line");
        assert_eq!(first, line(0)[STAMP.len()..]);
        let mut stderr = String::new();
        ftctl.stderr.take().expect("piped").read_to_string(&mut stderr).expect("read");
        assert_eq!((ftctl.wait().expect("ftctl").code(), stderr.as_str()), (Some(0), ""), "follow: {follow}");
    }
}

#[test]
fn the_log_of_a_finished_job_is_the_log_that_was_written() {
    let job = Job::running(1);
    // Longer than one read of the store, with a line across its end.
    let text: String = (0..40_000).map(line).collect();
    job.write(1, &text);
    job.finish();
    assert!(job.logs(&["--timestamps"]).stdout == text);
    let mut file = File::open(job.sandbox.state().join("store").join(path::log(&job.id, 1))).expect("a plain file");
    let mut stored = String::new();
    file.read_to_string(&mut stored).expect("text");
    assert!(stored == text);
}

#[test]
fn lines_are_json_for_programs() {
    let job = Job::running(2);
    job.write(1, &format!("{STAMP}one \u{1b}[31m\"quoted\"\nplain\n"));
    job.write(2, &format!("{STAMP}two\n{STAMP}without an end"));
    let time = STAMP.trim_end();
    let expected = [
        json!({ "schema": "ftctl.log/1", "attempt": 1, "time": time, "text": "one \u{1b}[31m\"quoted\"" }),
        json!({ "schema": "ftctl.log/1", "attempt": 1, "text": "plain" }),
        json!({ "schema": "ftctl.log/1", "attempt": 2, "time": time, "text": "two" }),
        json!({ "schema": "ftctl.log/1", "attempt": 2, "time": time, "text": "without an end" }),
    ];
    let parse = |text: &str| serde_json::from_str::<Value>(text).expect("JSON");
    let lines = |said: &crate::common::Said| said.stdout.lines().map(parse).collect::<Vec<_>>();
    assert_eq!(lines(&job.logs(&["-o", "jsonl"])), expected);
    assert_eq!(lines(&job.logs(&["-o", "jsonl", "--attempt", "1"])), expected[..2]);
    assert_eq!(lines(&job.logs(&["-o", "jsonl", "--tail", "1"])), expected[3..]);
    let all = parse(&job.logs(&["-o", "json"]).stdout);
    let texts: Vec<&Value> = all["lines"].as_array().expect("a list").iter().map(|line| &line["text"]).collect();
    assert_eq!(texts, expected.iter().map(|line| &line["text"]).collect::<Vec<_>>());
    let missing = parse(&job.logs(&["-o", "json", "--attempt", "3"]).stdout);
    assert!(missing["lines"] == json!([]) && missing["error"]["code"] == 3, "{missing}");
    // Followed, every line comes as soon as it is whole, and the value is one at the end.
    let mut command = job.sandbox.command(&["logs", "-f", job.id.as_str(), "-o", "jsonl"]);
    let mut ftctl = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("ftctl runs");
    let mut shown = BufReader::new(ftctl.stdout.take().expect("piped"));
    let mut next = || {
        let mut line = String::new();
        shown.read_line(&mut line).expect("a line");
        parse(&line)
    };
    assert_eq!([next(), next(), next()], expected[..3]);
    job.write(2, "\n");
    assert_eq!(next(), expected[3]);
    job.finish();
    assert!(ftctl.wait().expect("ftctl").success());
}

#[test]
fn each_attempt_has_its_own_ranks() {
    let job = Job::running(2);
    for (node, rank) in [(0, 1), (1, 2), (1, 3)] {
        let text = format!("rank {rank}\n");
        wait(job.store.append(&path::rank_log(&job.id, 1, node, rank), 0, text.into())).expect("appended");
    }
    job.write(2, "alone\n");
    job.finish();
    // The first attempt had two nodes with two processes each, and the job went on with one process.
    job.change(|record| {
        (record.attempts[0].nodes, record.attempts[0].processes_per_node) = (Some(2), Some(2));
    });
    let shown = |options: &[&str]| {
        let said = job.logs(options);
        assert_eq!(said.code, Some(0), "{}", said.stderr);
        said.stdout
    };
    assert_eq!(shown(&["--rank", "all"]), "[1] rank 1\n[2] rank 2\n[3] rank 3\n[0] alone\n");
    assert_eq!(shown(&["--rank", "3"]), "rank 3\n");
    assert_eq!(shown(&["--rank", "2", "--attempt", "1"]), "rank 2\n");
    for (options, whose) in [
        (&["--rank", "1", "--attempt", "2"][..], format!("attempt 2 of the job {} has no rank 1: it has 1", job.id)),
        (&["--rank", "4"], format!("the job {} has no rank 4: it has 4", job.id)),
    ] {
        let said = job.logs(options);
        assert_eq!(said.code, Some(3), "{}", said.stderr);
        assert!(said.stderr.contains(&whose), "{}", said.stderr);
    }
    // A record is not trusted, and that of a job that is over is held to few rules.
    job.change(|record| record.plan.processes = usize::MAX / 2);
    assert_eq!(shown(&["--rank", "3", "--attempt", "1"]), "rank 3\n");
}
