//! The seam between the life of a job and the place where it runs.
//!
//! A provider answers four questions: how does an attempt get a machine, how does the agent get started there, is it alive, and how
//! is it destroyed. Logs, checkpoints, recovery and collection go through the store and are the same everywhere. Differences
//! between providers are data ([`Capabilities`]), never a test for a provider's name.

use std::{collections::BTreeMap, ffi::OsString, future::Future, pin::Pin, sync::Arc, time::Duration};

use async_trait::async_trait;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::job::{
    finding::Finding,
    id::{AttemptId, JobId},
    order::{RunOrder, TrainerImage},
    plan::{Plan, Price},
    report::Report,
    units::Money,
};

pub mod azureml;
pub mod clock;
#[cfg(test)]
pub mod conformance;
pub mod disk;
pub mod docker;
pub mod error;
pub mod fake;
pub mod gce;
pub mod line;
// By the handles that Linux gives for processes.
#[cfg(target_os = "linux")]
pub mod local;
pub mod offer;
pub mod registry;
pub mod rights;
pub mod session;
pub mod size;
pub mod whose;

pub use error::{Class, ProviderError};
pub use session::Session;
pub use size::Size;
pub use whose::{Belongs, Whose};

/// An agent may need its store for so long after its deadline: it still sends what it has.
pub const FAREWELL: Duration = Duration::from_secs(3_600);

pub type Result<T, E = ProviderError> = std::result::Result<T, E>;

/// The environment of a job's agents on this machine, which may need their store until the given time. Asked for when one is
/// started: it may take a request to make it.
pub type AgentEnvironment =
    Arc<dyn Fn(JobId, Timestamp) -> Pin<Box<dyn Future<Output = Result<Vec<(OsString, OsString)>>> + Send>> + Send + Sync>;

/// A provider's abilities and needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "facts that have nothing to do with each other")]
pub struct Capabilities {
    /// Its machines cost money.
    pub bills: bool,
    /// Its machines show signs of life that do not come through the store: [`Provider::signs`].
    pub signs: bool,
    /// It is a cloud to rehearse with, on this machine: nothing of it costs money.
    pub simulated: bool,
    /// Its machines run commands: [`Provider::session`].
    pub commands: bool,
}

/// An entry for a service's catalogue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Publication {
    /// Where the job's store is.
    Store,
    /// The model that the attempt has left with the backend.
    Model {
        attempt: AttemptId,
        /// Time and money, for a person.
        receipt: String,
        /// On the validation split, where it was measured.
        perplexity: Option<String>,
    },
}

/// Output of a machine of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// Which of the attempt's nodes; `None`: the backend itself, where it was to blame for the attempt's end.
    pub node: Option<u32>,
    /// Text, without bytes that are none.
    pub text: String,
}

/// How much of each node's output was read.
pub type Cursor = BTreeMap<Option<u32>, u64>;

/// Something that is built on this machine before an attempt can begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Build<'p> {
    /// Its name, such as "the trainer".
    pub what: &'static str,
    /// A path that the plan names and the build reads.
    pub reads: Option<&'p str>,
}

/// One thing of ours that exists at the provider.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resource {
    /// The resource's name, as the provider gives it.
    pub name: String,
    pub attempt: AttemptId,
    pub since: Timestamp,
    /// When the provider destroys it by itself.
    pub expires: Option<Timestamp>,
    pub price_per_hour: Money,
    #[serde(flatten)]
    pub belongs: Belongs,
}

/// The visible state of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sighting {
    /// A service has taken the attempt, and no machine works for it yet. It costs nothing until [`Provider::list`] shows it with a
    /// price; `since` is by the service's clock.
    Queued { since: Timestamp, why: String },
    /// The machine exists; `agent` says whether its agent was started (a crash may fall between the two).
    Alive { agent: bool },
    /// Proof of death: it existed and is over, with the provider's word for why.
    Dead { why: String },
    /// Proof of death, and another machine of the same plan would die the same way: an image that cannot be pulled, no driver.
    Unfit { why: String },
    /// By a service's word it was cancelled there, or will be: by ftctl, or by somebody who wants the job's end.
    Cancelled { why: String },
    /// Nothing of that name exists, and the provider can tell.
    Gone,
}

/// A machine's own signs of life, for when its agent is not heard of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Signs {
    /// It works at that.
    Busy { at: String },
    /// It has power, and has given no sign of life for longer than it should. That alone decides nothing.
    Silent { what: String },
    /// It has given none for so long that it will give none any more; another machine may.
    Hangs { what: String },
    /// It can never run the agent, nor can another like it.
    Unfit { why: String },
    /// There is no such machine, or none with power.
    Absent,
}

/// A piece of a machine's console output.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Console {
    pub text: String,
    /// Position of its first byte. It is greater than the requested one when the bytes between are lost.
    pub start: u64,
    /// Where the next piece begins.
    pub next: u64,
    /// The mark in every line of the processes that ftctl started there; the other lines are the system's. `None`: all lines are
    /// worth reading.
    pub own: Option<String>,
}

impl Console {
    /// The piece that begins at `start` of a text that is short enough to be there as a whole.
    fn of(whole: &str, start: u64) -> Self {
        let next = whole.len() as u64;
        let text = usize::try_from(start).ok().and_then(|start| whole.get(start..)).unwrap_or_default().to_owned();
        Self { text, start: start.min(next), next, own: None }
    }
}

/// Questions about an account, whatever jobs it has.
#[async_trait]
pub trait Account: Send + Sync {
    /// Asks this backend for all that a job needs of it. Changes nothing and never fails.
    async fn check(&self) -> Vec<Finding> {
        Vec::new()
    }

    /// Which of several accounts is meant here, and how another is named. None where the backend has but one, or none is named.
    fn name(&self) -> Option<(String, &'static str)> {
        None
    }

    /// Fails when the backend cannot be asked now. Called before the first thing is written or sent for a job.
    async fn answers(&self) -> Result<()> {
        Ok(())
    }

    /// Asks the backend whether it has room for this plan's machine, and the image to boot from. Changes nothing and never fails.
    async fn room(&self, _plan: &Plan) -> Vec<Finding> {
        Vec::new()
    }

    /// The price of one hour of this plan's machine: asked once for a job, which keeps the answer. Changes nothing. Fails as
    /// [`Class::Invalid`] for a plan that can never run here.
    async fn price(&self, plan: &Plan) -> Result<Price>;

    /// The host of the account's own image registry; `None` where it has none.
    async fn registry(&self) -> Result<Option<String>> {
        Ok(None)
    }

    /// Removes what of ours belongs to no job, unless `only_look`, and names it.
    async fn tidy(&self, _only_look: bool) -> Result<Vec<String>> {
        Ok(Vec::new())
    }
}

/// Questions about attempts. Every method may be called again after a crash at any instant and must then find, not repeat, what was
/// done: names are derived from the attempt, so there is nothing to remember.
///
/// A machine is an attempt's by what it says itself, never by its name alone. One whose job is in another store is as if it were
/// not there, but for [`Provider::provision`], which refuses, and [`Provider::list`], which shows it.
#[async_trait]
pub trait Provider: Account {
    fn capabilities(&self) -> Capabilities;

    /// Where an attempt is a job of somebody else's service, rather than a machine.
    fn service(&self) -> Option<&dyn JobService> {
        None
    }

    /// Says what [`Provider::image`] builds here for this plan; `None` where nothing is built.
    fn build<'p>(&self, _plan: &'p Plan) -> Option<Build<'p>> {
        None
    }

    /// Fails as [`Class::Invalid`] for a plan that names no image where it must. Makes no request.
    fn admit_image(&self, _plan: &Plan) -> Result<()> {
        Ok(())
    }

    /// Fails as [`Class::Invalid`] for the address of a store that its machines cannot reach. Makes no request.
    fn admit_store(&self, _store: &str) -> Result<()> {
        Ok(())
    }

    /// Finds or builds what runs this plan's attempts. `before` is what this machine built for the job earlier.
    async fn image(&self, plan: &Plan, before: Option<&TrainerImage>, report: &dyn Report) -> Result<TrainerImage>;

    /// Creates the machine of this attempt, or finds it, or has a service queue it ([`Sighting::Queued`]). An existing one is not
    /// changed. It ends by itself when the lifetime of `plan` is over, counted from when it exists. `image` is what
    /// [`Provider::image`] answered. Answers what was refused on the way, in words. Fails as [`Class::Conflict`] when something
    /// that is not of this job has the name.
    async fn provision(&self, attempt: &AttemptId, plan: &Plan, image: &TrainerImage) -> Result<Vec<String>>;

    /// Starts the agent on the machine with this order, or finds it started; at most once for an attempt, so a machine that is over
    /// is left as it is, and [`Provider::observe`] tells. Fails as [`Class::Network`] when there is no such machine any more.
    async fn launch(&self, order: &RunOrder) -> Result<()>;

    async fn observe(&self, attempt: &AttemptId) -> Result<Sighting>;

    /// Since when an attempt had its machine that [`Provider::list`] shows no more; `None` where it had none, or where that is not
    /// known.
    async fn began(&self, _attempt: &AttemptId) -> Result<Option<Timestamp>> {
        Ok(None)
    }

    /// When the machine of an attempt that is over lost its power, at the latest, by the provider's clock; `None` where that is not
    /// known.
    async fn ended(&self, _attempt: &AttemptId) -> Result<Option<Timestamp>> {
        Ok(None)
    }

    /// The agent of this attempt was heard of, so it has what it needs: secrets that lie where others may read them go from there.
    /// Each invocation says so once.
    async fn heard(&self, _attempt: &AttemptId) -> Result<()> {
        Ok(())
    }

    /// A machine's signs of life besides its power. Only where [`Capabilities::signs`].
    async fn signs(&self, _attempt: &AttemptId) -> Result<Signs> {
        Ok(Signs::Absent)
    }

    /// The machine's console output from position `start` on, from before its agent lived and beside it. `None` where machines have
    /// no console, or this one is gone.
    async fn console(&self, _attempt: &AttemptId, _start: u64) -> Result<Option<Console>> {
        Ok(None)
    }

    /// Takes the machine away as the cloud would (a drill): no farewell for the agent beyond what a preemption gives.
    async fn preempt(&self, attempt: &AttemptId) -> Result<()>;

    /// Destroys everything of this job. Works with half-made things, with nothing, and twice. Output that the agent has not sent
    /// yet is sent first where the machine allows it. Returns when [`Provider::list`] no longer shows the job.
    async fn destroy(&self, job: &JobId) -> Result<()>;

    /// Everything of ours that exists, by the provider's own word, and others' resources where they can be told apart.
    async fn list(&self) -> Result<Vec<Resource>>;

    /// The time by the clock of [`Resource::expires`]; `None` where it is unknown.
    async fn now(&self) -> Option<Timestamp>;

    /// Starts a command beside the agent of this attempt, with a terminal or without; it ends with the machine at the latest. Fails
    /// as [`Class::Invalid`] when there is no such machine, or none that runs.
    async fn session(&self, attempt: &AttemptId, _command: &[String], _terminal: bool) -> Result<Session> {
        Err(no_commands(attempt))
    }
}

/// Why a command cannot run where [`Capabilities::commands`] is false.
pub fn no_commands(attempt: &AttemptId) -> ProviderError {
    ProviderError::new(Class::Invalid, format!("this backend runs no commands on {}", attempt.machine_name()))
        .fix("local, docker and gce do")
}

/// Questions to a service that queues attempts, keeps what they write, and has a catalogue in which its users look.
#[async_trait]
pub trait JobService: Send + Sync {
    /// The output of this node, or of each node of the attempt, since `cursor`, by the service's own account. It is of every
    /// machine that was the node, in their order, and a megabyte of each at most. Empty where nothing is there yet.
    async fn output(&self, attempt: &AttemptId, node: Option<u32>, cursor: &mut Cursor) -> Result<Vec<Output>>;

    /// Enters something in the catalogue, or finds it there, and answers its name.
    async fn publish(&self, publication: &Publication) -> Result<String>;

    /// Lets the service finish with an attempt that has done its work: it may still keep its outputs. Returns when it has, and
    /// after some minutes at the latest.
    async fn settle(&self, attempt: &AttemptId) -> Result<()>;

    /// Ends what is left of the job's attempts before the next. Unlike [`Provider::destroy`] it may leave what the next has a use
    /// for, where that ends by itself.
    async fn clear(&self, job: &JobId) -> Result<()>;
}

/// The container image of a plan whose machines start one. Fails as [`Class::Invalid`] where it names none.
pub fn named_image(plan: &Plan) -> Result<&str> {
    plan.image().ok_or_else(no_image)
}

fn no_image() -> ProviderError {
    ProviderError::new(Class::Invalid, "the job names no container image")
        .fix("run `ftctl push REGISTRY/ftctl --job FILE`, and put the name that it prints into image")
}
