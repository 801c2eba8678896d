//! `kill -9` at random instants: of the trainer, of the agent, of both, of ftctl. The job must end with the bytes of an undisturbed
//! job. `FT_KILLS=50 tests/run` takes fifty instants each.

use std::{env, thread, time::Duration};

use crate::sandbox::{Sandbox, kill};

const STEPS: u64 = 60;

pub fn kills() -> u64 {
    env::var("FT_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(3)
}

/// Instants spread over the life of the job, different for each victim, the same in every run of the tests.
pub fn instant(round: u64, salt: u64) -> Duration {
    let mut x = (round + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ salt.wrapping_mul(0xD1B5_4A32_D192_ED03);
    x ^= x >> 31;
    x = x.wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x ^= x >> 29;
    Duration::from_millis(x % 2_500)
}

/// The undisturbed job's results.
fn reference(sandbox: &Sandbox) -> Vec<(String, Vec<u8>)> {
    let job = sandbox.job("undisturbed", STEPS);
    let id = sandbox.submit(&job);
    sandbox.ok(&["logs", "-f", &id]);
    sandbox.results(&id)
}

/// Kills what `victims` finds at a random instant of each of many jobs, with one supervisor following all the time.
fn survives(salt: u64, victims: impl Fn(&Sandbox) -> Vec<u32>) {
    let sandbox = Sandbox::new();
    let expected = reference(&sandbox);
    for round in 0..kills() {
        let id = sandbox.submit(&sandbox.job(&format!("round-{round}"), STEPS));
        let mut follower = sandbox.spawn(&["logs", "-f", &id]);
        thread::sleep(instant(round, salt));
        victims(&sandbox).into_iter().for_each(kill);
        assert!(follower.wait().expect("the follower").success(), "round {round}: {}", sandbox.ok(&["explain", &id]));
        assert_eq!(sandbox.json(&["status", &id])["state"], "succeeded", "round {round}");
        same(&expected, &sandbox.results(&id), round);
        continuous(&sandbox, &id, STEPS);
    }
}

fn same(expected: &[(String, Vec<u8>)], found: &[(String, Vec<u8>)], round: u64) {
    for ((name, expected), (_, found)) in expected.iter().zip(found) {
        assert!(expected == found, "round {round}: {name} differs from the undisturbed job's");
    }
}

/// The logs of all attempts together show every step, and within an attempt none twice.
pub fn continuous(sandbox: &Sandbox, id: &str, steps: u64) {
    let attempts = sandbox.json(&["status", id])["attempt"].as_u64().expect("an attempt");
    let mut seen = vec![false; steps as usize + 1];
    for attempt in 1..=attempts {
        let log = sandbox.ok(&["logs", id, "--attempt", &attempt.to_string()]);
        let steps: Vec<usize> = log.lines().filter_map(step_of).collect();
        assert!(steps.windows(2).all(|pair| pair[1] == pair[0] + 1), "attempt {attempt} of {id}: {steps:?}");
        for step in steps {
            seen[step] = true;
        }
    }
    assert!(seen[1..].iter().all(|seen| *seen), "{id} shows a gap: {seen:?}");
}

/// `step 12/60  loss …`
fn step_of(line: &str) -> Option<usize> {
    line.strip_prefix("step ")?.split('/').next()?.trim().parse().ok()
}

#[test]
#[ignore = "needs the trainer: tests/run builds it"]
fn a_job_survives_the_death_of_its_trainer() {
    survives(1, |sandbox| sandbox.processes("ft-trainer train"));
}

#[test]
#[ignore = "needs the trainer: tests/run builds it"]
fn a_job_survives_the_death_of_its_agent() {
    survives(2, |sandbox| sandbox.processes("ftctl agent"));
}

#[test]
#[ignore = "needs the trainer: tests/run builds it"]
fn a_job_survives_the_death_of_agent_and_trainer() {
    survives(3, |sandbox| [sandbox.processes("ftctl agent"), sandbox.processes("ft-trainer train")].concat());
}

#[test]
#[ignore = "needs the trainer: tests/run builds it"]
fn a_job_survives_the_death_of_ftctl() {
    let sandbox = Sandbox::new();
    let expected = reference(&sandbox);
    for round in 0..kills() {
        let name = format!("round-{round}");
        let job = sandbox.job(&name, STEPS);
        let arguments = ["submit", job.to_str().unwrap(), "--wait", "--idempotency-key", "one"];
        let mut ftctl = sandbox.spawn(&arguments);
        thread::sleep(instant(round, 4));
        kill(ftctl.id());
        ftctl.wait().expect("ftctl");
        let id = sandbox.ok(&arguments).trim().to_owned();
        assert_eq!(
            sandbox.json(&["status", &id])["attempt"],
            1,
            "round {round}: the death of ftctl must cost no attempt: {}",
            sandbox.ok(&["explain", &id])
        );
        same(&expected, &sandbox.results(&id), round);
        continuous(&sandbox, &id, STEPS);
    }
}
