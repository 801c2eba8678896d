//! The only list of providers.

use std::{ffi::OsString, path::PathBuf, sync::Arc};

use super::{
    Class, Provider, ProviderError, Result,
    local::{self, Local},
};
use crate::{
    job::clock::{Clock, SystemClock},
    store::Store,
};

/// Every name that [`open`] knows, as `compute.backend` spells it.
pub const NAMES: [&str; 1] = ["local"];

/// What a provider may need to know about the place where ftctl runs.
#[derive(Clone)]
pub struct Environment {
    /// `$XDG_STATE_HOME/ftctl`.
    pub state: PathBuf,
    /// ftctl itself.
    pub executable: PathBuf,
    /// The environment that agents on this machine get.
    pub variables: Vec<(OsString, OsString)>,
    /// The job's store.
    pub store: Arc<dyn Store>,
}

/// A provider, with the store and the clock to use beside it: a rehearsal has its own time, and watches the calls to both.
#[derive(Clone)]
pub struct Connected {
    pub provider: Arc<dyn Provider>,
    pub store: Arc<dyn Store>,
    pub clock: Arc<dyn Clock>,
}

/// Opens a provider by name. Touches nothing. Fails as [`Class::Invalid`] for a name that is not in [`NAMES`].
pub fn open(name: &str, environment: &Environment) -> Result<Connected> {
    match name {
        "local" => Ok(open_local(environment)),
        _ => Err(unknown(name)),
    }
}

fn open_local(environment: &Environment) -> Connected {
    let Environment { state, executable, variables, store } = environment.clone();
    let clock = Arc::new(SystemClock);
    let settings = local::Settings { state, executable, variables, notice: local::PREEMPTION_NOTICE, clock: clock.clone() };
    Connected { provider: Arc::new(Local::new(settings)), store, clock }
}

fn unknown(name: &str) -> ProviderError {
    ProviderError::new(Class::Invalid, format!("there is no backend `{name}`")).fix(format!("choose one of: {}", NAMES.join(", ")))
}
