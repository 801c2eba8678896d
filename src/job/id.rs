//! Names. Every name and label that a cloud, a store or a machine sees is derived here from the job id and nowhere else, so that
//! a retry, a second laptop and a clean-up without a record all find the same thing.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, de};
use sha2::{Digest, Sha256};

/// `<name>-<six characters>`: lower-case letters, digits and hyphens, at most 48 characters, so that it fits every cloud's rules.
///
/// Every path, label and name of a job is made from it, so nothing else ever becomes one: text from a store or a cloud is parsed
/// while it is deserialised.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct JobId(String);

impl TryFrom<String> for JobId {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Self::parse(&text).ok_or_else(|| format!("`{}` is not the id of a job", text.escape_debug()))
    }
}

impl From<JobId> for String {
    fn from(id: JobId) -> Self {
        id.0
    }
}

/// Longest job name: an id is seven characters longer, an attempt's machine name five more, and GCE allows 63.
pub const MAX_NAME: usize = 40;

impl JobId {
    /// The id of the job `name` for one `nonce`: the same pair gives the same id on every machine, which is what makes
    /// `--idempotency-key` work.
    pub fn derive(name: &str, nonce: &str) -> Self {
        let digest = Sha256::digest(format!("{name}\0{nonce}").as_bytes());
        let suffix: String = digest.iter().take(6).map(|byte| ALPHABET[usize::from(*byte) % ALPHABET.len()]).collect();
        Self(format!("{name}-{suffix}"))
    }

    /// Takes an id as typed or read; `None` when it cannot be one.
    pub fn parse(text: &str) -> Option<Self> {
        let (name, suffix) = text.rsplit_once('-')?;
        let valid = valid_name(name) && suffix.len() == 6 && suffix.chars().all(|c| ALPHABET.contains(&c));
        valid.then(|| Self(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The job's name without the suffix.
    pub fn name(&self) -> &str {
        self.0.rsplit_once('-').map_or(&self.0, |(name, _)| name)
    }

    /// The part that tells it from other jobs of the same name.
    pub fn suffix(&self) -> &str {
        self.0.rsplit_once('-').map_or("", |(_, suffix)| suffix)
    }

    /// The suffix as a number from 1 on, below 2^29: another for each. It is for services that number what they keep.
    pub fn number(&self) -> u32 {
        let digit = |c: char| ALPHABET.iter().zip(0..).find_map(|(known, digit)| (*known == c).then_some(digit)).unwrap_or(0);
        self.suffix().chars().fold(0, |number, c| number * LETTERS + digit(c)) + 1
    }
}

const LETTERS: u32 = 28;
/// No vowels, so no words; no characters that look alike.
const ALPHABET: [char; LETTERS as usize] = [
    'b', 'c', 'd', 'f', 'g', 'h', 'j', 'k', 'm', 'n', 'p', 'q', 'r', 's', 't', 'v', 'w', 'x', 'y', 'z', '2', '3', '4', '5', '6',
    '7', '8', '9',
];

/// Whether a job may be called this: starts with a letter, then lower-case letters, digits and single hyphens.
pub fn valid_name(name: &str) -> bool {
    name.len() <= MAX_NAME
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && !name.ends_with('-')
        && !name.contains("--")
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One attempt of a job: what a machine is named after.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AttemptId {
    pub job: JobId,
    /// Counts from 1 and only rises.
    #[serde(deserialize_with = "attempt_number")]
    pub attempt: u32,
}

/// Most attempts of a job. Readers look at every attempt up to a stored number, so a larger one would keep them counting.
pub const MAX_ATTEMPTS: u32 = 10_000;

/// Reads the number of an attempt; 0 stands for none yet.
pub fn attempt_number<'de, D: Deserializer<'de>>(from: D) -> Result<u32, D::Error> {
    let number = u32::deserialize(from)?;
    if number <= MAX_ATTEMPTS {
        return Ok(number);
    }
    Err(de::Error::custom(format!("attempt {number} is beyond the most that a job may have ({MAX_ATTEMPTS})")))
}

impl AttemptId {
    pub fn new(job: &JobId, attempt: u32) -> Self {
        Self { job: job.clone(), attempt }
    }

    /// The name of the machine, container or process group that runs this attempt.
    pub fn machine_name(&self) -> String {
        format!("{}-a{}", self.job, self.attempt)
    }

    /// The reverse of [`AttemptId::machine_name`].
    pub fn from_machine_name(name: &str) -> Option<Self> {
        let (job, attempt) = name.rsplit_once("-a")?;
        let attempt = attempt.parse().ok().filter(|number| *number <= MAX_ATTEMPTS)?;
        Some(Self { job: JobId::parse(job)?, attempt }).filter(|id| id.machine_name() == name)
    }
}

/// Paths inside the store.
pub mod path {
    use super::{super::digest::Digest, JobId};

    /// Everything ftctl keeps is below this, so that a container can be shared and the layout can change.
    pub const ROOT: &str = "ftctl/v1";

    /// Which job has a name at present.
    pub fn name(name: &str) -> String {
        format!("{ROOT}/names/{name}.json")
    }
    pub fn names() -> String {
        format!("{ROOT}/names")
    }
    pub fn jobs() -> String {
        format!("{ROOT}/jobs")
    }
    pub fn job(id: &JobId) -> String {
        format!("{ROOT}/jobs/{id}")
    }
    pub fn record(id: &JobId) -> String {
        format!("{ROOT}/jobs/{id}/record.json")
    }
    pub fn order(id: &JobId) -> String {
        format!("{ROOT}/jobs/{id}/order.json")
    }
    /// The names directly below [`job`] that a job's agent writes. The rest belongs to the job's supervisor.
    pub const OF_AGENT: [&str; 5] = ["attempt.lease", "attempts", "checkpoints", "contents", "artifacts"];
    /// Says that what the job's agent writes has a container of its own.
    pub fn container(id: &JobId) -> String {
        format!("{ROOT}/jobs/{id}/container.json")
    }
    /// The lease of the process that drives the job's life (a supervisor).
    pub fn supervisor_lease(id: &JobId) -> String {
        format!("{ROOT}/jobs/{id}/supervisor.lease")
    }
    /// The lease of the attempt that may commit checkpoints.
    pub fn attempt_lease(id: &JobId) -> String {
        format!("{ROOT}/jobs/{id}/attempt.lease")
    }
    pub fn cancel(id: &JobId) -> String {
        format!("{ROOT}/jobs/{id}/cancel.json")
    }
    pub fn attempts(id: &JobId) -> String {
        format!("{ROOT}/jobs/{id}/attempts")
    }
    pub fn attempt(id: &JobId, attempt: u32) -> String {
        format!("{}/{attempt}", attempts(id))
    }
    pub fn log(id: &JobId, attempt: u32) -> String {
        format!("{}/log", self::attempt(id, attempt))
    }
    /// The console output of the attempt's machine, kept when no agent could write a log.
    pub fn console(id: &JobId, attempt: u32) -> String {
        format!("{}/console.json", self::attempt(id, attempt))
    }
    pub fn progress(id: &JobId, attempt: u32) -> String {
        format!("{}/progress.jsonl", self::attempt(id, attempt))
    }
    pub fn heartbeat(id: &JobId, attempt: u32) -> String {
        format!("{}/heartbeat.json", self::attempt(id, attempt))
    }
    pub fn exit(id: &JobId, attempt: u32) -> String {
        format!("{}/exit.json", self::attempt(id, attempt))
    }
    /// Written before a drill takes an attempt's machine away. It means that ftctl did so, and not somebody who wants the end.
    pub fn drill(id: &JobId, attempt: u32) -> String {
        format!("{}/drill.json", self::attempt(id, attempt))
    }
    /// Where the ranks of an attempt's nodes meet.
    pub fn rendezvous(id: &JobId, attempt: u32) -> String {
        format!("{}/rendezvous.json", self::attempt(id, attempt))
    }
    fn node(id: &JobId, attempt: u32, node: usize) -> String {
        format!("{}/nodes/{node}", self::attempt(id, attempt))
    }
    /// The word of another node than the first.
    pub fn presence(id: &JobId, attempt: u32, node: usize) -> String {
        format!("{}/heartbeat.json", self::node(id, attempt, node))
    }
    /// The log of another rank than the first, below its node.
    pub fn rank_log(id: &JobId, attempt: u32, node: usize, rank: usize) -> String {
        format!("{}/rank-{rank}.log", self::node(id, attempt, node))
    }
    /// Machines of this job may still cost money.
    pub fn debt(id: &JobId) -> String {
        format!("{}/{id}.json", debts())
    }
    pub fn debts() -> String {
        format!("{ROOT}/debts")
    }
    pub fn checkpoints(id: &JobId) -> String {
        format!("{ROOT}/jobs/{id}/checkpoints")
    }
    /// Steps are padded so that names sort as numbers do.
    pub fn checkpoint(id: &JobId, step: u64) -> String {
        format!("{}/{step:010}", checkpoints(id))
    }
    pub fn artifacts(id: &JobId) -> String {
        format!("{ROOT}/jobs/{id}/artifacts")
    }
    pub fn datasets() -> String {
        format!("{ROOT}/datasets")
    }
    /// `digest` is that of the manifest.
    pub fn dataset_manifest(digest: &Digest) -> String {
        format!("{ROOT}/datasets/{digest}/manifest.json")
    }
    pub fn dataset_names() -> String {
        format!("{ROOT}/dataset-names")
    }
    /// Which dataset has a name at present.
    pub fn dataset_name(name: &str) -> String {
        format!("{ROOT}/dataset-names/{name}.json")
    }
    /// Where the bytes of datasets are. File contents are shared between datasets: a changed file re-sends itself only.
    pub fn contents() -> String {
        format!("{ROOT}/contents")
    }
    /// Where the bytes of a job's checkpoints are: shared between its checkpoints, gone with the job.
    pub fn job_contents(id: &JobId) -> String {
        format!("{}/contents", job(id))
    }
    /// The object below `contents` that holds the bytes with this digest.
    pub fn content(contents: &str, digest: &Digest) -> String {
        format!("{contents}/{}/{digest}", &digest.as_str()[..2])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_suffix_has_a_number_of_its_own() {
        let number = |suffix: &str| JobId::parse(&format!("job-{suffix}")).expect("an id").number();
        assert_eq!(["bbbbbb", "bbbbbc", "bbbbcb", "bb9999", "999999"].map(number), [1, 2, 29, 614_656, 481_890_304]);
    }
}
