//! The exit codes of `ftctl`: the only place that knows the numbers.

use std::process::ExitCode;

/// The process's exit codes. The numbers are a promise to scripts and never change their meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Done and verified.
    Done = 0,
    /// A failure not listed below.
    Failure = 1,
    /// Wrong usage or an invalid file.
    Usage = 2,
    /// No such job, dataset, checkpoint or file.
    NotFound = 3,
    /// Not authenticated, or not allowed.
    Denied = 4,
    /// Quota or stock-out; worth another try later.
    Capacity = 5,
    /// Preempted, and the retries are spent.
    Preempted = 6,
    /// A cloud or network error that a retry may cure.
    Network = 7,
    /// Something may still be billing.
    MayBill = 8,
    /// Bytes are not what their digest says.
    Integrity = 9,
    /// A deadline or `--timeout` was reached.
    Deadline = 10,
    /// Refused by the budget or the time-to-live policy.
    Refused = 11,
    /// A lease is held elsewhere, a name is taken, a plan is stale.
    Conflict = 12,
    /// The job itself failed.
    JobFailed = 20,
    /// The job was cancelled.
    JobCancelled = 21,
    /// Asked to end, by SIGHUP: its terminal is gone.
    HungUp = 129,
    /// Interrupted by the user.
    Interrupted = 130,
    /// Asked to end, by SIGTERM: a pipeline was cancelled.
    Terminated = 143,
}

impl Exit {
    const ALL: [Exit; 18] = [
        Exit::Done,
        Exit::Failure,
        Exit::Usage,
        Exit::NotFound,
        Exit::Denied,
        Exit::Capacity,
        Exit::Preempted,
        Exit::Network,
        Exit::MayBill,
        Exit::Integrity,
        Exit::Deadline,
        Exit::Refused,
        Exit::Conflict,
        Exit::JobFailed,
        Exit::JobCancelled,
        Exit::HungUp,
        Exit::Interrupted,
        Exit::Terminated,
    ];

    /// The class as JSON errors name it.
    pub fn class(self) -> &'static str {
        match self {
            Exit::Done => "done",
            Exit::Failure => "failure",
            Exit::Usage => "usage",
            Exit::NotFound => "not_found",
            Exit::Denied => "denied",
            Exit::Capacity => "capacity",
            Exit::Preempted => "preempted",
            Exit::Network => "network",
            Exit::MayBill => "may_bill",
            Exit::Integrity => "integrity",
            Exit::Deadline => "deadline",
            Exit::Refused => "refused",
            Exit::Conflict => "conflict",
            Exit::JobFailed => "job_failed",
            Exit::JobCancelled => "job_cancelled",
            Exit::HungUp => "hung_up",
            Exit::Interrupted => "interrupted",
            Exit::Terminated => "terminated",
        }
    }

    /// The code behind a number that was kept or came from another program; `None` for numbers that no code has.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|exit| *exit as u8 == code)
    }

    /// Whether what has this code may succeed later without a change.
    fn retryable(self) -> bool {
        matches!(self, Exit::Capacity | Exit::Network | Exit::Preempted | Exit::Conflict)
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit as u8)
    }
}

/// An error on its way to the user: what happened, to what, why, and what to do next.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    pub exit: Exit,
    pub message: String,
    /// The next command or change; shown on a line of its own.
    pub fix: Option<String>,
    /// Time does not cure it, though it cures others with this code.
    pub lasting: bool,
}

impl Failure {
    pub fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, message: message.into(), fix: None, lasting: false }
    }

    /// Marks one that time does not cure, though it cures others with this code.
    #[must_use]
    pub fn for_good(mut self) -> Self {
        self.lasting = true;
        self
    }

    /// Whether the same command may succeed later without a change.
    pub fn retryable(&self) -> bool {
        self.exit.retryable() && !self.lasting
    }

    #[must_use]
    pub fn fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = Some(fix.into());
        self
    }
}
