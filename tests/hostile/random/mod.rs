//! Random hostile stores: a valid store of ten jobs, a few random changes by a writer who means harm, and every verb on it. Nothing
//! outside may change, nothing may leak, nothing may hang or take the machine down, and every failure is a code of the table with a
//! sentence.
//!
//! A few stores and verbs by default; `FT_HOSTILE=5000` plays so many with every verb, `FT_HOSTILE_AZURITE=200` in a blob
//! container, `FT_HOSTILE_DEVCLOUD=200` with machines on the simulated Compute Engine. `FT_HOSTILE_SEED=N` begins with the seed N.

mod mutation;
mod remote;
mod scene;
mod stub;
mod verbs;
mod watch;

use std::{collections::BTreeMap, thread};

use fastrand::Rng;

use self::{mutation::Mutation, scene::Scene, verbs::Verb};

/// Scenes that share the rounds.
const WORKERS: u64 = 2;
/// Verbs of a round in a run of the usual length.
const FEW_VERBS: usize = 6;
/// Harm after which a round ends: where everything waits for ever, so would the observer.
const ENOUGH: usize = 3;

/// A defect and its place: one line of the report for each kind.
struct Broken {
    /// Equal for the same defect.
    kind: String,
    seed: u64,
    story: String,
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().expect("a number"))
}

#[test]
fn random_hostile_stores_change_nothing_outside() {
    play(number("FT_HOSTILE"), 40, WORKERS, Scene::in_directory);
}

#[test]
#[ignore = "needs Azurite: tests/run installs it"]
fn azurite_random_hostile_stores_change_nothing_outside() {
    play(number("FT_HOSTILE_AZURITE"), 3, 1, Scene::on_azurite);
}

#[test]
fn random_hostile_stores_end_no_machine_of_another_on_devcloud() {
    play(number("FT_HOSTILE_DEVCLOUD"), 4, 1, Scene::on_devcloud);
}

/// Plays as many rounds as were asked for, or a few that are short.
fn play(asked: Option<u64>, few: u64, workers: u64, scene: fn() -> Scene) {
    let first = number("FT_HOSTILE_SEED").unwrap_or(0);
    let last = first + asked.unwrap_or(few);
    let most = if asked.is_some() { usize::MAX } else { FEW_VERBS };
    let work = move |worker| {
        let scene = scene();
        (first + worker..last).step_by(workers as usize).flat_map(|seed| round(&scene, seed, most)).collect::<Vec<_>>()
    };
    let workers: Vec<_> = (0..workers).map(|worker| thread::spawn(move || work(worker))).collect();
    let broken: Vec<Broken> = workers.into_iter().flat_map(|worker| worker.join().expect("a worker")).collect();
    assert!(broken.is_empty(), "harm was done {} times by {} stores\n{}", broken.len(), last - first, report(broken));
}

/// Changes the store as the seed says and runs verbs on it; after one that did harm on the same store again, made afresh.
fn round(scene: &Scene, seed: u64, most: usize) -> Vec<Broken> {
    let (mut dice, mutations) = harmful(scene, seed);
    let touched: Vec<usize> = mutations.iter().flat_map(|mutation| mutation.jobs.clone()).collect();
    let mut verbs = verbs::all(&mut dice, scene, &touched);
    verbs.truncate(most);
    let mut broken = Vec::new();
    for verb in verbs {
        let Some(harm) = harm(scene, &verb, &touched) else { continue };
        let changes: String = mutations.iter().flat_map(|mutation| ["\n    ", mutation.what.as_str()]).collect();
        let story = format!("ftctl {}{changes}\n    {}", verb.arguments.join(" "), harm.story);
        println!("seed {seed}: {}: {}\n  {story}", verb.name(), harm.kind);
        broken.push(Broken { kind: format!("{}: {}", verb.name(), harm.kind), seed, story });
        if broken.len() == ENOUGH {
            break;
        }
        harmful(scene, seed);
    }
    scene.end_what_runs();
    broken
}

/// The seed's store, and the seed's other decisions.
fn harmful(scene: &Scene, seed: u64) -> (Rng, Vec<Mutation>) {
    let mut dice = Rng::with_seed(seed);
    scene.restore();
    if dice.bool() {
        scene.become_a_colleague();
    }
    let mutations = (0..dice.usize(1..=5)).map(|_| mutation::random(&mut dice, scene)).collect();
    scene.publish();
    (dice, mutations)
}

/// Runs one verb. `None` when it did no harm.
fn harm(scene: &Scene, verb: &Verb, touched: &[usize]) -> Option<watch::Harm> {
    let before = scene.look();
    let ran = watch::run(verb.command(scene));
    let after = scene.look();
    ran.harm(verb)
        .or_else(|| before.harm(&after))
        .or_else(|| scene.machines_lost(&before, &after, verb, touched))
        .or_else(|| scene.leak(&before, &after))
}

/// The defects, the most frequent first, each with an example.
fn report(broken: Vec<Broken>) -> String {
    let mut kinds: BTreeMap<String, Vec<Broken>> = BTreeMap::new();
    for one in broken {
        kinds.entry(one.kind.clone()).or_default().push(one);
    }
    let mut kinds: Vec<_> = kinds.into_iter().collect();
    kinds.sort_by_key(|(_, examples)| std::cmp::Reverse(examples.len()));
    let line = |(kind, examples): &(String, Vec<Broken>)| {
        let Broken { seed, story, .. } = &examples[0];
        format!("{}x {kind}\n  seed {seed}: {story}\n", examples.len())
    };
    kinds.iter().map(line).collect()
}
