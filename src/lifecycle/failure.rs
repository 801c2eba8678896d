//! What errors of the lower layers mean to the user: their exit codes.

use std::io::ErrorKind;

use ft_trainer::data::{DataError, error::Class as DataClass};

use crate::{
    docker::{
        self, EngineError,
        credentials::{CredentialsError, registry},
        registry::Class,
    },
    exit::{Exit, Failure},
    image::ImageError,
    provider::{self, LeftBehind, ProviderError},
    store::StoreError,
};

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        let exit = match &error {
            StoreError::NotFound { .. } => Exit::NotFound,
            StoreError::Conflict { .. } | StoreError::WrongOffset { .. } => Exit::Conflict,
            StoreError::Damaged { .. } | StoreError::Unreadable(_) => Exit::Integrity,
            StoreError::Denied { .. } | StoreError::SignIn(_) => Exit::Denied,
            StoreError::Io { source, .. } if is_network(source.kind()) => Exit::Network,
            StoreError::Io { .. } | StoreError::OtherFormat(_) => Exit::Failure,
            StoreError::Invalid(_) => Exit::Usage,
        };
        Failure::new(exit, error.to_string())
    }
}

/// A far store that could not be reached, or not long enough.
fn is_network(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::HostUnreachable | ErrorKind::ConnectionReset | ErrorKind::TimedOut)
}

impl From<ProviderError> for Failure {
    fn from(error: ProviderError) -> Self {
        let exit = match (error.class, &error.left_behind) {
            (_, LeftBehind::Orphans(_)) => Exit::MayBill,
            (provider::Class::Capacity | provider::Class::Quota, _) => Exit::Capacity,
            (provider::Class::Denied, _) => Exit::Denied,
            (provider::Class::Network, _) => Exit::Network,
            (provider::Class::Conflict, _) => Exit::Conflict,
            (provider::Class::Invalid, _) => Exit::Usage,
            (provider::Class::Internal, _) => Exit::Failure,
        };
        let message = match error.left_behind {
            LeftBehind::Orphans(names) => format!("{}; left behind: {}", error.message, names.join(", ")),
            _ => error.message,
        };
        Failure { exit, message, fix: error.fix }
    }
}

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
        let (exit, fix) = match &error {
            ImageError::Invalid(_) => (Exit::Usage, None),
            ImageError::Line { .. } => (Exit::Network, None),
            error if docker::is_full_disk(&error.to_string()) => (Exit::Network, Some(docker::FULL_DISK.to_owned())),
            ImageError::Registry { class, repository, .. } => match class {
                Class::Denied => {
                    (Exit::Denied, Some(format!("docker login {}, as somebody who may push there", registry(repository))))
                }
                Class::NotFound => (Exit::NotFound, Some("create the repository, or correct its name".to_owned())),
                Class::Network => {
                    (Exit::Network, Some("try again when the registry answers; what it has is not sent again".to_owned()))
                }
                Class::Broken => {
                    (Exit::Network, Some("look into the registry's log, where its disk may be full; then try again".to_owned()))
                }
                Class::Other => (Exit::Failure, None),
            },
            ImageError::Source { class: Class::Denied, image, .. } => {
                (Exit::Denied, Some(format!("docker login {}, as somebody who may fetch from there", registry(image))))
            }
            ImageError::Source { class: Class::Network, .. } => (Exit::Network, None),
            ImageError::Source { .. } => (Exit::Usage, Some("correct the name of the image".to_owned())),
            _ => (Exit::Failure, None),
        };
        Failure { fix, ..Failure::new(exit, error.to_string()) }
    }
}

impl From<DataError> for Failure {
    fn from(error: DataError) -> Self {
        let exit = match error.class() {
            _ if matches!(error, DataError::Missing { .. } | DataError::NoMatch { .. }) => Exit::NotFound,
            DataClass::Input => Exit::Usage,
            DataClass::Integrity => Exit::Integrity,
            DataClass::System => Exit::Failure,
        };
        Failure::new(exit, error.to_string())
    }
}
