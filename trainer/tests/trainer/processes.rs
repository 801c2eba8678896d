//! Processes that share a run over Gloo, started as by a shell loop. They leave the bytes of one process, also after a kill.

use std::fs;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::ops::Range;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio, exit};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use ft_trainer::error::STOPPED;
use ft_trainer::files::ranges::of_node;
use ft_trainer::random::uniform;
use ft_trainer::world::{Aside, World};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Signal, getpid, kill_process};

use crate::fixture::{Fixture, stderr};
use crate::parallel::{FOUR, SHARED, Way, assert_same, elsewhere, grid, is_empty, wants_grid};
use crate::resume::unfinished;

/// In which all have ended after one has: one that was killed before it had met the others is waited for, a minute.
const SOME_TIME: Duration = Duration::from_secs(90);
/// The same where all had met.
const AT_ONCE: Duration = Duration::from_secs(5);

/// Starts the processes of a run, each with values of its own beside those of all.
fn start(fixture: &Fixture, output: &str, size: usize, values: &[&str], own: impl Fn(usize) -> Vec<String>) -> Vec<Child> {
    start_on(fixture, output, size, values, own, |_| Vec::new())
}

/// Like [`start`], each with some more variables.
fn start_on(
    fixture: &Fixture,
    output: &str,
    size: usize,
    values: &[&str],
    own: impl Fn(usize) -> Vec<String>,
    variables: impl Fn(usize) -> Vec<(&'static str, String)>,
) -> Vec<Child> {
    let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
    let values: Vec<&str> = SHARED.iter().chain(values).copied().collect();
    let config = fixture.config(output);
    let start = |rank: usize| {
        let own = own(rank);
        let values = values.iter().copied().chain(own.iter().map(String::as_str)).collect::<Vec<_>>();
        let mut command: Command = fixture.train(&config, &values);
        command.envs(variables(rank));
        let (rank, size, port) = (rank.to_string(), size.to_string(), port.to_string());
        command.envs([("RANK", rank), ("WORLD_SIZE", size), ("MASTER_ADDR", "127.0.0.1".to_owned()), ("MASTER_PORT", port)]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    (0..size).map(start).collect()
}

/// Like [`start`], but the first listens with a socket that it is left.
fn start_at(fixture: &Fixture, output: &str, size: usize, listener: &TcpListener) -> Vec<Child> {
    let (socket, port) = (listener.as_raw_fd(), listener.local_addr().unwrap().port());
    let config = fixture.config(output);
    let start = |rank: usize| {
        let mut command: Command = fixture.train(&config, &[&SHARED[..], &[FOUR]].concat());
        command.envs(
            [("RANK", rank), ("WORLD_SIZE", size), ("MASTER_PORT", port.into())].map(|(name, value)| (name, value.to_string())),
        );
        command.env("MASTER_ADDR", "127.0.0.1").stdout(Stdio::piped()).stderr(Stdio::piped());
        if rank == 0 {
            command.env("FTCTL_LISTENER", socket.to_string());
            // SAFETY: one system call, which takes no lock and allocates nothing.
            unsafe { command.pre_exec(move || Ok(fcntl_setfd(BorrowedFd::borrow_raw(socket), FdFlags::empty())?)) };
        }
        command.spawn().unwrap()
    };
    // The others are there first, and wait.
    let mut processes: Vec<Child> = (0..size).rev().map(start).collect();
    processes.reverse();
    processes
}

fn outputs(processes: Vec<Child>) -> Vec<Output> {
    processes.into_iter().map(|process| process.wait_with_output().unwrap()).collect()
}

fn trained(fixture: &Fixture, output: &str, size: usize, values: &[&str]) -> PathBuf {
    trained_with(fixture, output, size, values, |_| Vec::new())
}

fn trained_with(fixture: &Fixture, output: &str, size: usize, values: &[&str], own: impl Fn(usize) -> Vec<String>) -> PathBuf {
    for (rank, output) in outputs(start(fixture, output, size, values, own)).iter().enumerate() {
        assert!(output.status.success(), "rank {rank}: {}\n{}", output.status, stderr(output));
        assert_eq!(output.stdout.is_empty(), rank > 0, "only the leader speaks");
    }
    fixture.path(output)
}

/// Waits until all have ended, in time after one has; their codes.
fn codes(processes: &mut [Child], time: Duration) -> Vec<Option<i32>> {
    let begun = Instant::now();
    while processes.iter_mut().all(|process| process.try_wait().unwrap().is_none()) {
        assert!(begun.elapsed() < SOME_TIME, "none ends");
        sleep(Duration::from_millis(10));
    }
    let started = Instant::now();
    let mut code = |process: &mut Child| loop {
        if let Some(status) = process.try_wait().unwrap() {
            return status.code();
        }
        assert!(started.elapsed() < time, "a process goes on without another");
        sleep(Duration::from_millis(10));
    };
    processes.iter_mut().map(&mut code).collect()
}

#[test]
fn any_number_trains_to_the_bytes_of_one() {
    let fixture = Fixture::new();
    let one_each = [FOUR, "train.gradient_accumulation=4", "train.precision=bf16", "train.dropout=0.1", "train.document_mask=true"];
    let ways: [Way<'_>; 3] = [
        (&[&[FOUR]], &[(2, 0), (3, 1)]),
        (&[&one_each], &[(4, 2), (3, 0)]),
        // Sums of Gloo's own between two, whose order is one.
        (&[&["train.leaves=2", "train.reduction=fast"]], &[(2, 0)]),
    ];
    let mut ways: Vec<_> = ways.map(|(values, processes)| (values.concat(), processes.to_vec())).into();
    if wants_grid() {
        // A sample of it, which has each kind, number format and optimizer.
        ways.extend(grid().into_iter().step_by(5).map(|values| (values, vec![(2, 1), (3, 0), (8, 2)])));
    }
    for (number, (values, processes)) in ways.into_iter().enumerate() {
        let expected = trained(&fixture, &format!("{number}-alone"), 1, &values);
        for (size, zero) in processes {
            let zero = format!("train.zero={zero}");
            println!("{size} processes, {zero}: {values:?}");
            assert_same(&expected, &trained(&fixture, &format!("{number}-{size}"), size, &[&values[..], &[&zero]].concat()));
        }
    }
}

/// Not a test of its own: a rank of [`threads_that_wait_for_each_others_ranks_end_at_once`].
#[test]
#[ignore = "started by the test that starts three of them"]
fn rank_of_two_threads() {
    let world = World::from_environment().unwrap();
    let [early, late] = match world.rank() {
        0 => [Aside::Tensors, Aside::Between],
        1 => [Aside::Between, Aside::Tensors],
        _ => {
            sleep(Duration::from_secs(1));
            kill_process(getpid(), Signal::KILL).unwrap();
            unreachable!("it was killed");
        }
    };
    let outcome = thread::scope(|threads| {
        let early = threads.spawn(|| world.aside(early).any(false));
        sleep(Duration::from_secs(2));
        let late = world.aside(late).any(false);
        early.join().unwrap().and(late)
    });
    exit(world.part(outcome).unwrap_err().code().into());
}

/// One dies. An exchange of each of the others fails at its beginning, and the one that it has begun before waits for the other.
#[test]
fn threads_that_wait_for_each_others_ranks_end_at_once() {
    let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port().to_string();
    let start = |rank: usize| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--ignored", "--exact", "processes::rank_of_two_threads"]).stdout(Stdio::null()).stderr(Stdio::null());
        command.envs([("RANK", rank.to_string()), ("WORLD_SIZE", "3".to_owned()), ("MASTER_PORT", port.clone())]);
        command.env("MASTER_ADDR", "127.0.0.1").spawn().unwrap()
    };
    let mut ranks: Vec<Child> = (0..3).map(start).collect();
    assert_eq!(codes(&mut ranks, Duration::from_secs(20)), [Some(STOPPED.into()), Some(STOPPED.into()), None]);
}

/// Each has a directory of its own, as on machines of their own, and the leader alone has the first weights.
#[test]
fn they_share_nothing_but_the_network() {
    let fixture = Fixture::new();
    let first = trained(&fixture, "first", 1, &[FOUR, "train.steps=2"]).join("checkpoints/step-0000000002");
    let longer = [["train.zero=1", "train.steps=2"], ["train.zero=2", "train.steps=4"]];
    let own = |rank: usize| match rank {
        0 => vec![format!("initial_weights={}", first.display())],
        _ => vec![format!("output={}", fixture.path(&elsewhere(rank)).display())],
    };
    for (values, [one, several]) in longer.iter().zip([[1, 3], [1, 2]]) {
        let values = [&[FOUR, "train.seed=7", "train.schedule=constant"], &values[..]].concat();
        let expected = trained_with(&fixture, "alone", one, &values, own);
        assert_same(&expected, &trained_with(&fixture, "apart", several, &values, own));
        assert!((1..several).all(|rank| is_empty(&fixture.path(&elsewhere(rank)))), "the leader alone writes");
    }
}

/// Two nodes of two processes, whose agents send: those of the first leave all of a checkpoint, the others the ranges of theirs.
#[test]
fn another_node_leaves_the_ranges_that_its_agent_sends() {
    const LARGE: [&str; 5] = ["model.width=512", "train.steps=2", "train.checkpoint_every=2", "train.eval_every=2", "train.zero=1"];
    let (fixture, values) = (Fixture::new(), [&[FOUR], &LARGE[..]].concat());
    let expected = trained(&fixture, "alone", 1, &values);
    let own = |rank: usize| {
        if rank < 2 { Vec::new() } else { vec![format!("output={}", fixture.path("elsewhere").display())] }
    };
    let node = |rank: usize| {
        let place = [("LOCAL_WORLD_SIZE", 2), ("LOCAL_RANK", rank % 2), ("GROUP_RANK", rank / 2), ("FTCTL_RANGES", 1)];
        place.map(|(name, value)| (name, value.to_string())).to_vec()
    };
    for output in outputs(start_on(&fixture, "together", 4, &values, own, node)) {
        assert!(output.status.success(), "{}", stderr(&output));
    }
    assert_same(&expected, &fixture.path("together"));
    let (whole, ranges) = (fixture.path("together/checkpoints"), fixture.path("elsewhere/.ranges"));
    let step = |directory: &Path| fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).max().unwrap();
    assert_eq!(fs::read_dir(step(&ranges)).unwrap().count(), 2);
    for name in ["model.safetensors", "optimizer.safetensors"] {
        let [whole, ranges] = [&whole, &ranges].map(|directory| fs::read(step(directory).join(name)).unwrap());
        let Range { start, end } = of_node(1, 2, whole.len() as u64);
        let (start, end) = (start as usize, end as usize);
        assert!(end - start >= 4 << 20 && ranges.len() == whole.len(), "{name}: {start}..{end} of {}", whole.len());
        assert!(ranges[start..end] == whole[start..end], "{name}");
        assert!(ranges[..start].iter().all(|byte| *byte == 0), "{name}: the first node's");
    }
}

#[test]
fn the_first_listens_with_the_socket_that_it_is_left() {
    let fixture = Fixture::new();
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let processes = start_at(&fixture, "left", 2, &listener);
    let taken = TcpListener::bind(listener.local_addr().unwrap());
    assert_eq!(taken.unwrap_err().kind(), ErrorKind::AddrInUse, "no other takes it meanwhile");
    drop(listener);
    for output in outputs(processes) {
        assert!(output.status.success(), "{}", stderr(&output));
    }
    let mut misled = fixture.train(&fixture.config("misled"), &SHARED);
    misled.envs([
        ("RANK", "0"),
        ("WORLD_SIZE", "2"),
        ("MASTER_ADDR", "127.0.0.1"),
        ("MASTER_PORT", "1"),
        ("FTCTL_LISTENER", "999"),
    ]);
    let output = misled.output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("FTCTL_LISTENER = 999 is no socket that listens at port 1: Bad file descriptor"),
        "{}",
        stderr(&output)
    );
}

/// One is killed, or all, at any instant of a step, of an exchange or of a checkpoint: `FT_KILLS` says how often.
#[test]
fn the_others_end_after_a_kill_and_any_number_goes_on() {
    const WAYS: [(usize, &str); 4] = [(4, "train.zero=2"), (2, "train.zero=1"), (3, "train.zero=0"), (1, "train.zero=0")];
    let kills = std::env::var("FT_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(3);
    let fixture = Fixture::new();
    let long = [FOUR, &format!("train.steps={}", 8 * kills), "train.checkpoint_every=3"];
    let expected = trained(&fixture, "undisturbed", 2, &long);
    let lines = || fs::metadata(fixture.path("killed").join("progress.jsonl")).map_or(0, |file| file.len());
    let mut died = 0;
    for (kill, (size, zero)) in WAYS.into_iter().cycle().take(kills).enumerate() {
        let before = lines();
        let mut processes = start(&fixture, "killed", size, &[&long[..], &[zero]].concat(), |_| Vec::new());
        while lines() == before && processes[0].try_wait().unwrap().is_none() {
            sleep(Duration::from_millis(1));
        }
        sleep(Duration::from_secs_f64(0.3 * uniform(&[kill as u64, 0])));
        let victim = (uniform(&[kill as u64, 1]) * (size + 1) as f64) as usize;
        for (_, process) in processes.iter_mut().enumerate().filter(|(rank, _)| *rank == victim || victim == size) {
            process.kill().unwrap();
        }
        let ended = codes(&mut processes, SOME_TIME);
        assert!(ended.iter().all(|code| [None, Some(75), Some(0)].contains(code)), "{ended:?} after a kill");
        died += usize::from(ended.contains(&None));
    }
    assert!(2 * died >= kills, "{died} of {kills} kills came before the end");
    assert_same(&expected, &trained(&fixture, "killed", 1, &long));
}

/// Each of two is killed while a checkpoint is written, of which both have a part. A kill that comes after the manifest does not
/// count.
#[test]
fn a_kill_inside_a_checkpoint_of_two_changes_no_byte() {
    let fixture = Fixture::new();
    let long = [FOUR, "train.steps=60", "train.eval_every=60", "train.checkpoint_every=1", "train.zero=1"];
    let expected = trained(&fixture, "undisturbed", 1, &long);
    let output = fixture.path("killed");
    let steps = || fs::metadata(output.join("progress.jsonl")).map_or(0, |file| file.len());
    let is_writing = || unfinished(&output).is_some_and(|directory| !directory.join("manifest.json").exists());
    let lands = |victim: usize| {
        let (before, mut processes) = (steps(), start(&fixture, "killed", 2, &long, |_| Vec::new()));
        while steps() == before || !is_writing() {
            assert!(processes[0].try_wait().unwrap().is_none(), "the run has ended");
            sleep(Duration::from_micros(200));
        }
        processes[victim].kill().unwrap();
        let landed = is_writing();
        let ended = codes(&mut processes, AT_ONCE);
        assert_eq!((ended[victim], ended[1 - victim]), (None, Some(75)));
        landed
    };
    for victim in [1, 0] {
        assert!((0..10).any(|_| lands(victim)), "no kill of rank {victim} came in time");
    }
    assert_same(&expected, &trained(&fixture, "killed", 1, &long));
}

#[test]
fn the_first_failure_is_told_with_its_rank() {
    let fixture = Fixture::new();
    let own = |rank| if rank == 1 { vec!["data=nowhere".to_owned()] } else { Vec::new() };
    let mut processes = start(&fixture, "failing", 3, &[FOUR], own);
    assert_eq!(codes(&mut processes, AT_ONCE), [Some(75), Some(2), Some(75)]);
    let messages: Vec<String> = outputs(processes).iter().map(stderr).collect();
    assert!(messages[1].starts_with("error: nowhere is not a prepared dataset"), "{messages:?}");
    for other in [&messages[0], &messages[2]] {
        assert!(other.contains("error: rank 1 failed: nowhere is not a prepared dataset"), "{messages:?}");
    }
}

/// One hears the wish, and all stop after the same step.
#[test]
fn a_wish_that_one_hears_stops_all() {
    let fixture = Fixture::new();
    let endless = [FOUR, "train.steps=400"];
    let mut processes = start(&fixture, "stopped", 2, &endless, |_| Vec::new());
    let log = fixture.path("stopped").join("steps.jsonl");
    while !fs::read_to_string(&log).is_ok_and(|log| log.contains("learning_rate")) {
        sleep(Duration::from_millis(5));
    }
    signal(&processes[1], "-TERM");
    assert_eq!(codes(&mut processes, SOME_TIME), [Some(75), Some(75)]);
    let ended = outputs(processes);
    let said = String::from_utf8_lossy(&ended[0].stdout).into_owned();
    assert!(said.contains("stopped on request; checkpoint step-0"), "{said}{}", stderr(&ended[0]));
    assert!(ended.iter().all(|output| output.stderr.is_empty()), "{ended:?}");
}

/// A machine may be taken away soon: one hears of it, and all write one checkpoint together and go on.
#[test]
fn a_notice_that_one_hears_is_one_checkpoint_of_all() {
    let fixture = Fixture::new();
    let rare = [FOUR, "train.steps=60", "train.checkpoint_every=60", "train.eval_every=60"];
    let expected = trained(&fixture, "undisturbed", 1, &rare);
    let mut processes = start(&fixture, "warned", 2, &[&rare[..], &["train.zero=1"]].concat(), |_| Vec::new());
    let log = fixture.path("warned").join("steps.jsonl");
    while !fs::read_to_string(&log).is_ok_and(|log| log.contains("learning_rate")) {
        sleep(Duration::from_millis(5));
    }
    signal(&processes[1], "-URG");
    assert_eq!(codes(&mut processes, SOME_TIME), [Some(0), Some(0)]);
    let said = String::from_utf8_lossy(&outputs(processes)[0].stdout).into_owned();
    assert_eq!(said.matches("\ncheckpoint step-").count(), 2, "{said}");
    assert_same(&expected, &fixture.path("warned"));
}

#[test]
fn processes_with_other_settings_are_refused() {
    let fixture = Fixture::new();
    let mut processes = start(&fixture, "mixed", 2, &[FOUR], |rank| vec![format!("train.seed={rank}")]);
    let ended = codes(&mut processes, SOME_TIME);
    assert!(ended.contains(&Some(2)) && ended.iter().all(|code| [Some(2), Some(75)].contains(code)), "{ended:?}");
    let said = outputs(processes).iter().map(stderr).collect::<String>();
    assert!(said.contains("rank 1 has other settings or other data than rank 0"), "{said}");
    assert!(!Path::new(&fixture.path("mixed")).join("steps.jsonl").exists());
}

fn signal(process: &Child, signal: &str) {
    let pid = process.id().to_string();
    assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
}
