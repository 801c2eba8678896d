//! The life of a job. [`step`] is the one match on its state: every arm does one idempotent thing, saves the new state and answers
//! whether to go on now, later or not at all. One file per stage, in the order of the life.
//!
//! Data and image come before the machine: a machine that waits for an upload costs money, an upload that waits for a machine does
//! not.

pub mod collect;
pub mod image;
pub mod journal;
pub mod open;
pub mod provision;
pub mod submit;
pub mod supervise;
pub mod teardown;
pub mod upload;

pub mod adoption;
mod attempt;
mod by_itself;
pub mod cancel;
pub mod console;
mod content;
pub mod curves;
pub mod debt;
mod decide;
pub mod doctor;
pub mod down;
pub mod drill;
pub mod drive;
pub mod explain;
mod failure;
pub mod hub;
pub mod lines;
pub mod logs;
pub mod notify;
pub mod observe;
pub mod outlook;
pub mod pace;
pub mod pay;
pub mod prune;
mod publish;
pub mod ranks;
pub mod receipt;
pub mod remove;
pub mod results;
pub mod resume;
pub mod session;
mod shrink;
pub mod status;
mod vigil;
mod watch;

pub use crate::provider::{Resource, Whose};

use std::{path::PathBuf, sync::Arc, time::Duration};

use crate::{
    exit::{Exit, Failure},
    hub::Hub,
    job::{clock::Clock, record::Record, report::Report, state::State},
    provider::{Capabilities, Provider},
    store::{Store, lease::Holder},
};

use adoption::Adoption;
use journal::Journal;
use notify::Listener;
use vigil::Vigil;

pub type Result<T, E = Failure> = std::result::Result<T, E>;

/// Everything outside that a job's life touches.
#[derive(Clone)]
pub struct World {
    pub store: Arc<dyn Store>,
    pub provider: Arc<dyn Provider>,
    pub clock: Arc<dyn Clock>,
    pub report: Arc<dyn Report>,
    /// Safe to delete: libtorch, built trainers, prepared datasets.
    pub cache: PathBuf,
    /// Where names of weights and text lead.
    pub hub: Hub,
    /// Machines of others are meant as well.
    pub everybody: bool,
    /// The driver: the same all through one invocation, so that its roll-back need not wait for the lease of the work that it
    /// interrupted.
    pub supervisor: Holder,
    /// Which jobs this invocation may drive.
    pub adoption: Adoption,
    /// Who is told of them.
    pub listeners: Vec<Arc<dyn Listener>>,
}

impl World {
    /// Whether what names no job is meant for this machine.
    pub fn owns(&self, resource: &Resource) -> bool {
        self.everybody || resource.belongs.whose == Whose::Ours
    }

    /// Whether what is asked for its job by the id is meant for this machine.
    pub fn reaches(&self, resource: &Resource) -> bool {
        self.everybody || resource.belongs.goes_with_its_job()
    }

    /// Refuses a job whose machines are in another account than the one that is named here, where they seem to be gone.
    pub fn admits(&self, record: &Record) -> Result<()> {
        let Capabilities { simulated: is_simulated, bills, .. } = self.provider.capabilities();
        let id = &record.id;
        if record.simulated && !is_simulated && bills {
            let message = format!("{id} is a job of a simulated cloud, and here the real one is named");
            let fix = format!("source the variables of that devcloud, or, if it has ended: `ftctl down {id} --cloud-is-gone`");
            return Err(Failure::new(Exit::Usage, message).fix(fix));
        }
        // Records of before do not say which they are of.
        if !record.simulated && is_simulated && record.account.is_some() {
            let message = format!("the machines of {id} are in a real cloud, and here a simulated one is named");
            let fix = "unset the variables of the devcloud (FTCTL_ENDPOINT_*), or use another shell";
            return Err(Failure::new(Exit::Usage, message).fix(fix));
        }
        let (Some(of_job), Some((here, how))) = (&record.account, self.provider.name()) else { return Ok(()) };
        if of_job.eq_ignore_ascii_case(&here) {
            return Ok(());
        }
        let message = format!("the machines of {id} are in {of_job}, and here {here} is named");
        Err(Failure::new(Exit::Usage, message).fix(how))
    }

    /// Reports a machine that names no job, and leaves it alone.
    fn leave_alone(&self, resource: &Resource) {
        let why = resource.belongs.apart();
        self.report.line(&format!("{} is left alone until its time is over: {why}", resource.name));
    }
}

/// When to look at the job again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    Now,
    After(Duration),
    Done,
}

/// Stages as the user counts them.
const STAGES: usize = 7;

/// Moves the job by one step. `vigil` is what this invocation knows of the running attempt.
pub async fn step(world: &World, job: &mut Journal, vigil: &mut Vigil) -> Result<Next> {
    if supervise::ended_before_launch(world, job).await? {
        return Ok(Next::Now);
    }
    match job.record.state {
        State::Planned => upload::begin(world, job).await,
        State::Uploading => upload::step(world, job).await,
        State::Imaging => image::step(world, job).await,
        State::Provisioning => provision::step(world, job).await,
        State::Submitting => submit::step(world, job).await,
        State::Running => supervise::step(world, job, vigil).await,
        State::Collecting => collect::step(world, job).await,
        State::TearingDown => teardown::step(world, job).await,
        State::Finished => Ok(Next::Done),
    }
}
