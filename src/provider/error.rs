//! The error of a provider.

use std::time::Duration;

use crate::{
    docker::{self, credentials::registry, registry::Class as Answer},
    image::{ImageError, libtorch},
    job::plan::Plan,
};

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ProviderError {
    pub class: Class,
    /// The event, its object and its cause.
    pub message: String,
    /// The user's next step.
    pub fix: Option<String>,
    /// The service asked for a pause.
    pub retry_after: Option<Duration>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// No machine is available here now.
    Capacity,
    /// The account may not have more.
    Quota,
    /// Not signed in, or not allowed.
    Denied,
    /// The answer was lost or slow; the call may or may not have happened.
    Network,
    /// A resource that is not ours has the name.
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

impl ProviderError {
    /// The store gave nothing with which an agent could use it.
    #[allow(clippy::needless_pass_by_value)] // It takes the place of the error in `map_err`.
    pub fn unsigned(error: impl std::fmt::Display) -> Self {
        Self::new(Class::Network, format!("no signature for the agent: {error}"))
    }

    /// The plan is of another backend.
    pub fn misplaced(plan: &Plan) -> Self {
        Self::new(Class::Invalid, format!("the plan is for the backend {}", plan.backend()))
    }

    pub fn new(class: Class, message: impl Into<String>) -> Self {
        Self { class, message: message.into(), fix: None, retry_after: None }
    }

    #[must_use]
    pub fn fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = Some(fix.into());
        self
    }
}

impl From<ImageError> for ProviderError {
    fn from(error: ImageError) -> Self {
        let message = error.to_string();
        let (class, fix) = match &error {
            ImageError::Invalid(_) => (Class::Invalid, None),
            ImageError::NoTool { .. } => {
                let fix = "install Rust from rustup.rs and a C++ compiler; `ftctl doctor` shows what is missing";
                (Class::Internal, Some(fix.to_owned()))
            }
            ImageError::NoInstaller { fix, .. } => {
                (Class::Internal, Some(format!("{fix}; or name a libtorch {} of your own in LIBTORCH", libtorch::VERSION)))
            }
            ImageError::Line { .. } => (Class::Network, None),
            _ if docker::is_full_disk(&message) => (Class::Network, Some(docker::FULL_DISK.to_owned())),
            ImageError::Registry { class, repository, .. } => match class {
                Answer::Denied => {
                    (Class::Denied, Some(format!("docker login {}, as a user who may push there", registry(repository))))
                }
                Answer::NotFound => (Class::Invalid, Some("create the repository, or correct its name".to_owned())),
                Answer::Network => {
                    (Class::Network, Some("try again when the registry answers; what it has is not sent again".to_owned()))
                }
                Answer::Broken => {
                    (Class::Network, Some("look into the registry's log, where its disk may be full; then try again".to_owned()))
                }
                Answer::Other => (Class::Internal, None),
            },
            ImageError::Source { class: Answer::Denied, image, .. } => {
                (Class::Denied, Some(format!("docker login {}, as a user who may fetch from there", registry(image))))
            }
            ImageError::Source { class: Answer::Network, .. } => (Class::Network, None),
            ImageError::Source { .. } => (Class::Invalid, Some("correct the name of the image".to_owned())),
            _ => (Class::Internal, None),
        };
        Self { fix, ..Self::new(class, message) }
    }
}

/// The last line that is not the continuation of another.
pub fn last_statement(text: &str) -> Option<&str> {
    let line = text.lines().rfind(|line| !line.trim().is_empty() && !line.starts_with(char::is_whitespace))?;
    Some(line.trim_end().trim_start_matches("error: "))
}
