//! A finding about a condition of a job: good, worth knowing, or in its way, with a fix.

use serde::Serialize;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Health {
    Good,
    /// Works, with something the user should know.
    Notice,
    /// A job would fail.
    Bad,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub health: Health,
    pub what: &'static str,
    pub message: String,
    /// The user's next step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

impl Finding {
    pub fn good(what: &'static str, message: impl Into<String>) -> Self {
        Self { health: Health::Good, what, message: message.into(), fix: None }
    }

    pub fn notice(what: &'static str, message: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { health: Health::Notice, what, message: message.into(), fix: Some(fix.into()) }
    }

    pub fn bad(what: &'static str, message: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { health: Health::Bad, what, message: message.into(), fix: Some(fix.into()) }
    }
}
