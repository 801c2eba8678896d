//! What a provider says when something goes wrong, and above all: what it left behind.

use std::time::Duration;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ProviderError {
    pub class: Class,
    /// What happened, to what, and why.
    pub message: String,
    /// What the user can do next.
    pub fix: Option<String>,
    pub left_behind: LeftBehind,
    /// The service asked for a pause.
    pub retry_after: Option<Duration>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// No machine to be had here now.
    Capacity,
    /// The account may not have more.
    Quota,
    /// Not signed in, or not allowed.
    Denied,
    /// The answer was lost or slow; the call may or may not have happened.
    Network,
    /// Somebody else's resource has the name.
    Conflict,
    /// The request can never work.
    Invalid,
    /// Anything else.
    Internal,
}

impl Class {
    pub fn label(self) -> &'static str {
        match self {
            Class::Capacity => "capacity",
            Class::Quota => "quota",
            Class::Denied => "denied",
            Class::Network => "network",
            Class::Conflict => "conflict",
            Class::Invalid => "invalid",
            Class::Internal => "internal",
        }
    }
}

/// What may still exist, and cost, after the failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeftBehind {
    Nothing,
    /// Something that `destroy` removes.
    Removable,
    Unknown,
    /// Named things that `destroy` cannot remove.
    Orphans(Vec<String>),
}

impl ProviderError {
    /// The store gave nothing with which an agent could use it.
    #[allow(clippy::needless_pass_by_value)] // It takes the place of the error in `map_err`.
    pub fn unsigned(error: impl std::fmt::Display) -> Self {
        Self::new(Class::Network, format!("no signature for the agent: {error}"))
    }

    pub fn new(class: Class, message: impl Into<String>) -> Self {
        Self { class, message: message.into(), fix: None, left_behind: LeftBehind::Nothing, retry_after: None }
    }

    #[must_use]
    pub fn fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = Some(fix.into());
        self
    }

    #[must_use]
    pub fn leaving(mut self, left_behind: LeftBehind) -> Self {
        self.left_behind = left_behind;
        self
    }
}

/// The last line that is not the continuation of another.
pub fn last_statement(text: &str) -> Option<&str> {
    let line = text.lines().rfind(|line| !line.trim().is_empty() && !line.starts_with(char::is_whitespace))?;
    Some(line.trim_end().trim_start_matches("error: "))
}
