//! From settings to everything that a job's life touches.

use std::{env, path::PathBuf, sync::Arc};

use super::App;
use crate::{
    exit::{Exit, Failure},
    job::{id::JobId, plan::Plan, record::Record},
    lifecycle::{World, journal, plan},
    provider::registry::{self, Connected, Environment},
    store::{self, Store, lease::Holder},
};

impl App<'_> {
    /// The store that holds the jobs this invocation is about.
    pub fn store(&self) -> Result<Arc<dyn Store>, Failure> {
        Ok(store::open_with(self.settings.store()?, self.limits)?)
    }

    /// The world of a backend, with the store of the settings.
    pub fn world(&self, backend: &str) -> Result<World, Failure> {
        self.connect(backend, self.store()?)
    }

    /// The world that a plan asks for.
    pub fn world_of_plan(&self, plan: &Plan) -> Result<World, Failure> {
        self.connect(&plan.backend, store::open(&plan.store)?)
    }

    /// The job that the user means by an id or a name, as it stands, and its world.
    pub async fn job(&self, text: &str) -> Result<(World, Record), Failure> {
        let store = self.store()?;
        let id = plan::find(store.as_ref(), text).await?;
        let record = journal::read(store.as_ref(), &id).await?.0;
        Ok((self.connect(&record.plan.backend, store)?, record))
    }

    /// As [`App::job`], for what needs no provider.
    pub async fn stored_job(&self, text: &str) -> Result<(Arc<dyn Store>, JobId), Failure> {
        let store = self.store()?;
        let id = plan::find(store.as_ref(), text).await?;
        Ok((store, id))
    }

    fn connect(&self, backend: &str, store: Arc<dyn Store>) -> Result<World, Failure> {
        let environment = Environment {
            state: self.settings.directories.state()?.to_owned(),
            executable: executable()?,
            variables: env::vars_os().collect(),
            store,
        };
        let Connected { provider, store, clock } = registry::open(backend, &environment)?;
        let cache = self.settings.directories.cache()?.to_owned();
        let supervisor = Holder::this_process(0);
        Ok(World { store, provider, clock, report: self.output.report(), cache, supervisor })
    }
}

fn executable() -> Result<PathBuf, Failure> {
    env::current_exe().map_err(|error| Failure::new(Exit::Failure, format!("cannot find ftctl's own program file: {error}")))
}
