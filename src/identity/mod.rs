//! Who ftctl is to a cloud's services: the ways of signing in, for stores, registries and providers alike.

pub mod entra;

/// An environment variable; empty ones count as absent.
pub type Variables<'a> = &'a dyn Fn(&str) -> Option<String>;
