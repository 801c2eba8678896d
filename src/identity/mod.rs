//! The ways of signing in to a cloud's services, for stores, registries and providers alike.

mod azureml;
pub mod entra;

#[doc(hidden)]
pub use azureml::understood as read_token;

/// An environment variable; empty ones count as absent.
pub type Variables<'a> = &'a dyn Fn(&str) -> Option<String>;
