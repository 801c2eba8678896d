//! The verbs that a user runs on a store.

use std::{fs, process::Command};

use fastrand::Rng;

use super::scene::{NAMES, Scene};

/// How much a verb may end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// No machine of an untouched job.
    Nothing,
    /// Machines of the jobs that it names, or that the store says it names.
    Jobs,
}

pub struct Verb {
    pub arguments: Vec<String>,
    pub reach: Reach,
    /// Its output is bytes of the store: a log.
    pub raw: bool,
}

/// `JOB` is a job, `OUT` a directory of which nothing is there, `ORDER` an order from the store.
const READING: &[&str] = &[
    "status",
    "status --all",
    "status --refresh",
    "status JOB",
    "doctor",
    "doctor --job job.toml",
    "plan job.toml",
    "plan named.toml",
    "bill",
    "bill JOB",
    "bill --since 7d",
    "logs JOB",
    "logs JOB --tail 5",
    "logs JOB --since 1h",
    "logs JOB --attempt 1",
    "explain JOB",
    "report JOB",
    "report JOB --out out.html",
    "show JOB",
    "compare JOB JOB",
    "download JOB --to OUT",
    "download JOB --to OUT --checkpoint 5",
    "download JOB --to OUT --dry-run",
    "config show --origin",
    "prune --dry-run",
    "prune --data --dry-run",
    "down --all --dry-run",
    "down JOB --dry-run",
    "upload data --name texts --verify",
    "submit named.toml",
    "submit job.toml",
    "exec JOB true",
    "agent --order ORDER --work OUT",
    "prune -y",
    "prune --data -y",
    "prune --expired -y",
];

const ENDING: &[&str] = &[
    "drill preempt JOB -y",
    "logs -f JOB",
    "wait JOB --timeout 1s",
    "resume JOB",
    "resume JOB --set train.steps=20 -y",
    "cancel JOB",
    "down JOB -y",
    "rm JOB -y",
    "submit taken.toml --wait",
    "down --all -y",
];

/// All of them in some order, those that end jobs last.
pub fn all(dice: &mut Rng, scene: &Scene, touched: &[usize]) -> Vec<Verb> {
    let mut verbs = Vec::new();
    for (texts, reach) in [(READING, Reach::Nothing), (ENDING, Reach::Jobs)] {
        let mut texts = texts.to_vec();
        dice.shuffle(&mut texts);
        // `down --all` leaves nothing to do for the others.
        texts.sort_by_key(|text| *text == "down --all -y");
        verbs.extend(texts.into_iter().map(|text| verb(dice, scene, touched, text, reach)));
    }
    if dice.bool() {
        // A short round shall meet the others as well.
        dice.shuffle(&mut verbs);
    }
    verbs
}

fn verb(dice: &mut Rng, scene: &Scene, touched: &[usize], text: &str, reach: Reach) -> Verb {
    let job =
        if touched.is_empty() || dice.u8(..4) == 0 { dice.usize(..NAMES.len()) } else { touched[dice.usize(..touched.len())] };
    let name = if dice.bool() { NAMES[job].to_owned() } else { scene.jobs[job].clone() };
    let order = scene.store().join(format!("ftctl/v1/jobs/{}/order.json", scene.jobs[job]));
    let word = |word: &str| match word {
        "JOB" => name.clone(),
        "OUT" => "out".to_owned(),
        "ORDER" => order.display().to_string(),
        word => word.to_owned(),
    };
    let mut arguments: Vec<String> = text.split(' ').map(word).collect();
    let format = ["table", "table", "json", "jsonl", "name"][dice.usize(..5)];
    arguments.extend(["-o".to_owned(), format.to_owned()]);
    Verb { arguments, reach, raw: text.starts_with("logs") }
}

impl Verb {
    /// Without what is random in it.
    pub fn name(&self) -> String {
        let words = self.arguments.iter().take_while(|word| *word != "-o");
        words
            .filter(|word| !word.contains(['/', '.']))
            .map(|word| NAMES.iter().find(|name| word.starts_with(**name)).map_or(word.as_str(), |_| "JOB"))
            .collect::<Vec<_>>()
            .join(" ")
    }

    pub fn command(&self, scene: &Scene) -> Command {
        let _ = fs::remove_dir_all(scene.work().join("out"));
        let arguments: Vec<&str> = self.arguments.iter().map(String::as_str).collect();
        scene.command(&arguments)
    }
}
