//! Exit codes and fixes for errors of the container engine and of images, in the verbs that build and push.

use crate::{
    docker::{EngineError, credentials::CredentialsError, registry::Class},
    exit::{Exit, Failure},
    image::ImageError,
    provider::ProviderError,
};

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        let exit = match error {
            EngineError::Setting { .. } => Exit::Usage,
            EngineError::Absent { .. } => Exit::Network,
            EngineError::Denied { .. } => Exit::Denied,
            EngineError::TooOld { .. } => Exit::Failure,
        };
        Failure::new(exit, error.to_string()).fix(error.fix())
    }
}

impl From<CredentialsError> for Failure {
    fn from(error: CredentialsError) -> Self {
        let fix = format!("correct {}, or `docker login {}` again", error.origin, error.registry);
        Failure::new(Exit::Denied, error.to_string()).fix(fix)
    }
}

impl From<ImageError> for Failure {
    fn from(error: ImageError) -> Self {
        let exit = matches!(error, ImageError::Registry { class: Class::NotFound, .. }).then_some(Exit::NotFound);
        let failure = Failure::from(ProviderError::from(error));
        Failure { exit: exit.unwrap_or(failure.exit), ..failure }
    }
}
