//! The permission to drive a job. Anybody who may write to the store can write a record there. So the acts that a record asks of
//! this machine (a program or a container to start, mounts, files to send) are done only for a job that was submitted here, or that
//! its user has adopted. A record that has come less far than it had is another user's, too: it would spend again what is spent.

use std::{
    fs::{self, DirBuilder, File},
    io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::Result;
use crate::{
    exit::{Exit, Failure},
    job::{digest::Digest, id::JobId, order::TrainerImage, plan::Plan, record::Record},
    provider::disk::write_json,
};

const PROOF_SCHEMA: &str = "ftctl.submitted/1";

/// `submitted/<id>` in the state directory: the job was submitted here, with this plan.
#[derive(Debug, Serialize, Deserialize)]
struct Proof {
    schema: String,
    plan: Digest,
    /// The plan that its record has until it is written with `plan`, to go on. A kill between the two takes nothing away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    before: Option<Digest>,
    /// The image that this machine made to run it, where that takes an engine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    trainer: Option<TrainerImage>,
    /// Absent in proofs of before.
    #[serde(default)]
    reached: Reached,
}

impl Proof {
    /// Why the record is not of the job that was submitted.
    fn changed(&self, record: &Record) -> Option<&'static str> {
        let plan = record.plan.digest();
        if record.state.is_finished() && self.before.as_ref() == Some(&plan) {
            return None;
        }
        if self.plan != plan {
            return Some("its plan is not the one that was submitted here");
        }
        (!self.reached.is_kept_by(record)).then_some("its record says less was done than this machine saw")
    }
}

/// How far the job had come when this machine last wrote its record.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Reached {
    attempt: u32,
    /// Seconds of the machines that are gone, each counted by itself.
    seconds: u64,
    /// Its end was decided.
    is_over: bool,
}

impl Reached {
    fn of(record: &Record) -> Self {
        let gone = record.lives(Timestamp::UNIX_EPOCH, |attempt| attempt.ended.is_some());
        let seconds = gone.iter().map(|life| life.time.as_secs().saturating_mul(life.nodes as u64)).fold(0, u64::saturating_add);
        Self { attempt: record.attempt, seconds, is_over: record.outcome.is_some() }
    }

    /// A tear-down that fails takes the end of an attempt back, so of a job that is over nothing is asked.
    fn is_kept_by(&self, record: &Record) -> bool {
        let now = Self::of(record);
        now.is_over || (!self.is_over && now.attempt >= self.attempt && now.seconds >= self.seconds)
    }
}

/// Tells the jobs that this invocation may drive from others.
#[derive(Debug, Clone)]
pub struct Adoption {
    proofs: PathBuf,
    /// The user drives whatever is in this store.
    everything: bool,
    /// The job that the user was shown and took over.
    shown: Option<(JobId, Digest)>,
}

impl Adoption {
    /// The adoption of the user whose proofs are in the state directory `state`; with `everything` it drives any job of the store.
    pub fn new(state: &Path, everything: bool) -> Self {
        Self { proofs: state.join("submitted"), everything, shown: None }
    }

    /// Writes down that the job is submitted here. Before its record is written: a crash in between leaves a proof of nothing.
    pub fn prove(&self, id: &JobId, plan: &Plan, trainer: Option<&TrainerImage>) -> Result<()> {
        let plan = plan.digest();
        let reached = self.kept(id).filter(|proof| proof.plan == plan).map(|proof| proof.reached).unwrap_or_default();
        self.write(id, &Proof { schema: PROOF_SCHEMA.to_owned(), plan, before: None, trainer: trainer.cloned(), reached })
    }

    /// Keeps other commands of this machine from [`Adoption::go_on`] until dropped: the one that wrote the proof writes the record.
    pub async fn alone(&self) -> Result<File> {
        let path = self.proofs.join(".lock");
        let lock = move || File::create(path).and_then(|file| file.lock().map(|()| file));
        let locked = tokio::task::spawn_blocking(lock).await.unwrap_or_else(|panic| Err(io::Error::other(panic)));
        locked.map_err(|error| self.unwritable(&error))
    }

    /// Writes down that its user lets a job that is over go on, with this plan.
    pub fn go_on(&self, before: &Record, plan: &Plan) -> Result<()> {
        let reached = Reached { is_over: false, ..Reached::of(before) };
        let [plan, was] = [plan, &before.plan].map(Plan::digest);
        let trainer = self.made(before);
        self.write(&before.id, &Proof { schema: PROOF_SCHEMA.to_owned(), plan, before: Some(was), trainer, reached })
    }

    /// Takes down how far the job has come, where it was submitted here: `is_new` of one whose first record was just written,
    /// whatever another job of that id had come to. An older proof holds as well, so a disk that is full stops nothing.
    pub fn note(&self, record: &Record, is_new: bool) {
        let Some(proof) = self.kept(&record.id).filter(|proof| proof.plan == record.plan.digest()) else { return };
        let reached = Reached::of(record);
        let is_news = proof.reached != reached || proof.before.is_some();
        if is_news && (is_new || proof.reached.is_kept_by(record)) {
            let _ = self.write(&record.id, &Proof { reached, before: None, ..proof });
        }
    }

    fn write(&self, id: &JobId, proof: &Proof) -> Result<()> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&self.proofs);
        made.and_then(|()| write_json(&self.proofs.join(id.as_str()), proof)).map_err(|error| self.unwritable(&error))
    }

    fn unwritable(&self, error: &io::Error) -> Failure {
        let message = format!("cannot write down in {} that the job is submitted here: {error}", self.proofs.display());
        Failure::new(Exit::Failure, message).fix("make the state directory writable, or name another one in XDG_STATE_HOME")
    }

    /// Forgets a job that is being removed from its store. Before its record goes: another job of this id may come after that.
    pub fn forget(&self, id: &JobId) -> Result<()> {
        match fs::remove_file(self.proofs.join(id.as_str())) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                let message = format!("cannot remove what {} says of the job {id}: {error}", self.proofs.display());
                Err(Failure::new(Exit::Failure, message).fix("make the state directory writable, and repeat the command"))
            }
            _ => Ok(()),
        }
    }

    /// Whether the job was submitted here, with the plan that its record has now, and has come as far as it had.
    pub fn is_own(&self, record: &Record) -> bool {
        self.proof(record).is_some()
    }

    /// The change that somebody has made to a job that was submitted here.
    pub fn changed(&self, record: &Record) -> Option<&'static str> {
        self.kept(&record.id)?.changed(record)
    }

    /// The image that this machine made before to run the job: anybody could have written the one in the record.
    pub fn made(&self, record: &Record) -> Option<TrainerImage> {
        self.proof(record)?.trainer
    }

    fn proof(&self, record: &Record) -> Option<Proof> {
        self.kept(&record.id).filter(|proof| proof.changed(record).is_none())
    }

    fn kept(&self, id: &JobId) -> Option<Proof> {
        let bytes = fs::read(self.proofs.join(id.as_str())).ok()?;
        serde_json::from_slice(&bytes).ok().filter(|proof: &Proof| proof.schema == PROOF_SCHEMA)
    }

    /// Whether this invocation may carry the job on.
    pub fn may_drive(&self, record: &Record) -> bool {
        let is_shown = || self.shown.as_ref().is_some_and(|(id, plan)| *id == record.id && *plan == record.plan.digest());
        self.everything || is_shown() || self.is_own(record)
    }

    /// The user saw what the job asks for, and takes it over. Another plan under the same id is not what they saw.
    pub fn adopt(&mut self, record: &Record) {
        self.shown = Some((record.id.clone(), record.plan.digest()));
    }

    /// Refuses a file of another user's machine: the file under the same name here is another one. [`Exit::Conflict`], which ends
    /// no job.
    pub fn may_read(&self, record: &Record, path: &str) -> Result<()> {
        if self.is_own(record) {
            return Ok(());
        }
        let id = &record.id;
        let message = format!("the job {id} needs {path}, which is read only on the machine that submitted the job");
        Err(Failure::new(Exit::Conflict, message).for_good().fix(format!("run `ftctl logs -f {id}` on that machine")))
    }
}

#[cfg(test)]
mod tests {
    use std::{os::unix::fs::PermissionsExt as _, time::Duration};

    use jiff::Timestamp;

    use super::*;
    use crate::{
        job::{
            compute::Compute,
            docker::DockerPlan,
            record::Attempt,
            state::{Outcome, State},
            units::{Money, Span},
        },
        provider::conformance,
    };

    fn record(nonce: &str) -> Record {
        Record::new(JobId::derive("tiny", nonce), conformance::plan(), Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn a_job_is_ours_as_long_as_its_plan_is_the_one_that_was_submitted() {
        let state = tempfile::tempdir().unwrap();
        let adoption = Adoption::new(state.path(), false);
        let mut record = record("1");
        assert!(!adoption.may_drive(&record));
        adoption.prove(&record.id, &record.plan, None).unwrap();
        assert!(adoption.is_own(&record) && adoption.may_drive(&record));
        let image = TrainerImage::Image { reference: "sha256:00".to_owned() };
        adoption.prove(&record.id, &record.plan, Some(&image)).unwrap();
        record.trainer = Some(TrainerImage::Image { reference: "evil/image".to_owned() });
        assert_eq!(adoption.made(&record), Some(image));
        let mounts = vec!["/:/host".to_owned()];
        *record.plan.compute = Compute::Docker(DockerPlan { mounts, ..DockerPlan::default() });
        assert!(!adoption.may_drive(&record), "with another plan it is another user's");
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let proofs = state.path().join("submitted");
        assert_eq!((mode(&proofs), mode(&proofs.join(record.id.as_str()))), (0o700, 0o600));
    }

    #[test]
    fn a_record_that_has_come_less_far_than_it_had_is_somebody_elses() {
        let state = tempfile::tempdir().unwrap();
        let adoption = Adoption::new(state.path(), false);
        let fresh = record("1");
        adoption.prove(&fresh.id, &fresh.plan, None).unwrap();
        adoption.note(&fresh, true);
        let at = |second| Some(Timestamp::from_second(second).unwrap());
        let mut spent = Record { attempt: 2, ..fresh.clone() };
        spent.attempts = (1..=2).map(|number| Attempt { started: at(100), ..Attempt::new(number, 0, Money::ZERO) }).collect();
        spent.attempts[0].ended = at(400);
        adoption.note(&spent, false);
        assert!(adoption.may_drive(&spent));
        assert!(!adoption.may_drive(&fresh), "its first attempt is over");
        let mut less = spent.clone();
        less.attempts[0].ended = at(399);
        assert!(!adoption.may_drive(&less));
        adoption.note(&less, false);
        assert!(!adoption.may_drive(&less), "what it says is not believed");
        // A second submission with the same key changes nothing.
        adoption.prove(&fresh.id, &fresh.plan, None).unwrap();
        assert!(adoption.may_drive(&spent) && !adoption.may_drive(&fresh));

        let over = Record { outcome: Some(Outcome::Failed), ..spent.clone() };
        adoption.note(&over, false);
        assert!(adoption.is_own(&over) && !adoption.is_own(&spent), "it does not go on by itself");
        let undone = Record { attempts: fresh.attempts.clone(), ..over.clone() };
        assert!(adoption.is_own(&undone), "a tear-down that failed");
        adoption.go_on(&over, &over.plan).unwrap();
        assert!(adoption.may_drive(&spent) && !adoption.may_drive(&fresh));
        adoption.note(&fresh, true);
        assert!(adoption.may_drive(&fresh), "another job of this id");
    }

    #[test]
    fn until_its_record_is_written_a_job_that_goes_on_is_ours_with_either_plan() {
        let state = tempfile::tempdir().unwrap();
        let adoption = Adoption::new(state.path(), false);
        let before = Record { state: State::Finished, outcome: Some(Outcome::Failed), ..record("1") };
        adoption.prove(&before.id, &before.plan, None).unwrap();
        let mut now = Record { state: State::Imaging, outcome: None, ..before.clone() };
        now.plan.max_wait = Span(Duration::from_secs(7));
        adoption.go_on(&before, &now.plan).unwrap();
        assert!(adoption.is_own(&before) && adoption.is_own(&now));
        let undone = Record { state: State::Imaging, outcome: None, ..before.clone() };
        assert!(!adoption.may_drive(&undone), "the former plan commands nothing");
        adoption.note(&now, false);
        assert!(adoption.is_own(&now) && !adoption.is_own(&before));
    }

    #[test]
    fn what_was_adopted_is_what_was_shown() {
        let state = tempfile::tempdir().unwrap();
        let (mut adoption, mut shown) = (Adoption::new(state.path(), false), record("1"));
        adoption.adopt(&shown);
        assert!(adoption.may_drive(&shown) && !adoption.may_drive(&record("2")));
        let refused = adoption.may_read(&shown, "/home/other/data").unwrap_err();
        assert_eq!(refused.exit, Exit::Conflict);
        assert!(refused.message.contains("/home/other/data"), "{}", refused.message);
        *shown.plan.compute = Compute::Docker(DockerPlan::default());
        assert!(!adoption.may_drive(&shown));
        assert!(Adoption::new(state.path(), true).may_drive(&shown), "whoever drives everything drives that");
    }

    #[test]
    fn a_proof_that_cannot_be_read_proves_nothing() {
        let state = tempfile::tempdir().unwrap();
        let (adoption, record) = (Adoption::new(state.path(), false), record("1"));
        adoption.prove(&record.id, &record.plan, None).unwrap();
        fs::write(state.path().join("submitted").join(record.id.as_str()), "{").unwrap();
        assert!(!adoption.is_own(&record));
    }
}
