//! The exit codes of the lower layers' errors.

use std::io::ErrorKind;

use ft_trainer::data::{DataError, error::Class as DataClass};

use crate::{
    exit::{Exit, Failure},
    hub::{self, HubError},
    provider::{self, ProviderError},
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
        let exit = match error.class {
            provider::Class::Capacity | provider::Class::Quota => Exit::Capacity,
            provider::Class::Denied => Exit::Denied,
            provider::Class::Network => Exit::Network,
            provider::Class::Conflict => Exit::Conflict,
            provider::Class::Invalid => Exit::Usage,
            provider::Class::Internal => Exit::Failure,
        };
        Failure { fix: error.fix, ..Failure::new(exit, error.message) }
    }
}

impl From<HubError> for Failure {
    fn from(error: HubError) -> Self {
        let exit = match error.class {
            hub::Class::Denied => Exit::Denied,
            hub::Class::NotFound => Exit::NotFound,
            hub::Class::Network => Exit::Network,
            hub::Class::Integrity => Exit::Integrity,
            hub::Class::Invalid => Exit::Usage,
            hub::Class::Disk => Exit::Failure,
        };
        Failure { fix: error.fix, ..Failure::new(exit, error.message) }
    }
}

impl From<ft_trainer::error::Failure> for Failure {
    fn from(error: ft_trainer::error::Failure) -> Self {
        let exit = match error {
            ft_trainer::error::Failure::Input(_) => Exit::Usage,
            ft_trainer::error::Failure::Integrity(_) => Exit::Integrity,
            ft_trainer::error::Failure::Lost(_) | ft_trainer::error::Failure::Other(_) => Exit::Failure,
        };
        Failure::new(exit, error.to_string())
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
