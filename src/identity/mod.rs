//! The ways of signing in to a cloud's services, for stores, registries and providers alike.

mod azureml;
pub mod entra;

/// An environment variable; empty ones count as absent.
pub type Variables<'a> = &'a dyn Fn(&str) -> Option<String>;
