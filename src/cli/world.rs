//! From settings to everything that a job's life touches.

use std::{
    env,
    path::PathBuf,
    sync::{Arc, Once},
};

use super::{App, Place, listeners};
use crate::{
    exit::{Exit, Failure},
    hub::Hub,
    job::{clock::Clock, id::JobId, plan::Plan, record::Record},
    lifecycle::{World, adoption::Adoption, down, journal, open},
    provider::{
        clock::SystemClock,
        registry::{self, Connected, Environment},
    },
    settings::{Origin, Setting, trust::Claims},
    store::{self, Store, StoreError, WordOf, lease::Holder, memory::MemoryStore},
};

impl App<'_> {
    /// The store that holds the jobs this invocation is about, opened once: the user is asked to sign in once.
    pub fn store(&self) -> Result<Arc<dyn Store>, Failure> {
        if let Some(store) = self.opened.get() {
            return Ok(Arc::clone(store));
        }
        let whose = if self.settings.is_store_of_project() { WordOf::Another } else { WordOf::User };
        let place = self.settings.store()?;
        let store = store::open_with(place, self.limits, whose).map_err(|error| match error {
            StoreError::Io { .. } => Failure::from(error).fix("name another place with --store or FTCTL_STORE, or XDG_STATE_HOME"),
            error => error.into(),
        })?;
        Ok(Arc::clone(self.opened.get_or_init(|| store)))
    }

    /// A store that was named and never written to: more likely a mistake than a place without jobs.
    pub fn store_to_be_made(&self) -> Option<Failure> {
        let Setting { value: Some(store), origin } = &self.settings.store else { return None };
        let is_named = *origin != Origin::Default && store::is_yet_to_be_made(store);
        is_named.then(|| {
            Failure::new(Exit::NotFound, format!("there is no store {store} (from {origin})"))
                .fix("correct the path; the first `ftctl submit`, `run` or `upload` makes a new one")
        })
    }

    /// The world of a backend, with the store of the settings.
    pub fn world(&self, backend: &str) -> Result<World, Failure> {
        self.world_of(backend, false)
    }

    /// [`App::world`]; with `everybody` it includes machines of other users and stores.
    pub fn world_of(&self, backend: &str, everybody: bool) -> Result<World, Failure> {
        self.connect(backend, None, self.store()?, everybody)
    }

    /// The backend of the settings; and, where the command line names none, those that cost money and have unfinished jobs of this
    /// store.
    pub async fn worlds(&self, place: &Place) -> Result<Vec<World>, Failure> {
        let mut worlds = vec![self.world(&self.settings.backend.value)?];
        if place.backend.is_none() {
            for name in down::backends(self.store()?.as_ref()).await?.iter().filter(|name| **name != self.settings.backend.value) {
                worlds.extend(Some(self.world(name)?).filter(|world| world.provider.capabilities().bills));
            }
        }
        Ok(worlds)
    }

    /// The clock that jobs of a backend live by; that of the wall where this machine cannot open the backend.
    pub fn clock(&self, backend: &str) -> Arc<dyn Clock> {
        self.world(backend).map_or_else(|_| Arc::new(SystemClock) as _, |world| world.clock)
    }

    /// The world that a plan of a new job asks for. Somebody who is to be told of it and cannot be is refused here: for a job that
    /// exists it is a warning, since it must be possible to end one.
    pub fn world_of_plan(&self, plan: &Plan) -> Result<World, Failure> {
        listeners::of(&self.settings.notify.value)?;
        let store = if plan.store == self.settings.store()? { self.store()? } else { store::open(&plan.store)? };
        self.connect(plan.backend(), Some(plan), store, false)
    }

    /// [`App::world_of_plan`] for a command that only looks: a store without a sign-in here is left alone, and why is answered.
    pub fn world_to_look(&self, plan: &Plan) -> Result<(World, Option<String>), Failure> {
        match self.world_of_plan(plan) {
            Err(failure) if failure.exit == Exit::Denied => {
                let world = self.connect(plan.backend(), Some(plan), Arc::new(MemoryStore::new()), false)?;
                Ok((world, Some(failure.message)))
            }
            world => world.map(|world| (world, None)),
        }
    }

    /// The job that the user means by an id or a name, as it stands, and its world.
    pub async fn job(&self, text: &str) -> Result<(World, Record), Failure> {
        let store = self.store()?;
        let id = open::find(store.as_ref(), text).await?;
        let record = journal::read(store.as_ref(), &id).await?.0;
        Ok((self.world_of_record(&record.plan)?, record))
    }

    /// The world of a job of this store, whichever store its record names.
    pub fn world_of_record(&self, plan: &Plan) -> Result<World, Failure> {
        self.connect(plan.backend(), Some(plan), self.store()?, false)
    }

    /// [`App::job`] for a command that needs no provider.
    pub async fn stored_job(&self, text: &str) -> Result<(Arc<dyn Store>, JobId), Failure> {
        let store = self.store()?;
        let id = open::find(store.as_ref(), text).await?;
        Ok((store, id))
    }

    /// The hub that the user's environment names.
    pub fn hub(&self) -> Result<Hub, Failure> {
        Ok(Hub::of_environment(self.settings.directories.cache()?))
    }

    fn connect(&self, backend: &str, plan: Option<&Plan>, store: Arc<dyn Store>, everybody: bool) -> Result<World, Failure> {
        let environment = Environment {
            state: self.settings.directories.state()?.to_owned(),
            executable: executable()?,
            cache: self.settings.directories.cache()?.to_owned(),
            variables: env::vars_os().collect(),
            store,
            everybody,
            compute: plan.map(|plan| (*plan.compute).clone()),
        };
        let adoption = Adoption::new(&environment.state, self.settings.adopts(environment.store.url()));
        if let Some((file, places)) = registry::claimed(backend, &environment)? {
            self.admit(&Claims { file, places })?;
        }
        let Connected { provider, store, clock } = registry::open(backend, &environment)?;
        let (cache, hub) = (environment.cache, self.hub()?);
        let supervisor = Holder::this_process(0);
        let listeners = listeners::of(&self.settings.notify.value).unwrap_or_else(|failure| {
            // A command may open several worlds.
            static WARNED: Once = Once::new();
            let why = [Some(failure.message), failure.fix].into_iter().flatten().collect::<Vec<_>>().join("; ");
            WARNED.call_once(|| self.output.report().warn(&format!("nobody is told of what happens: {why}")));
            Vec::new()
        });
        Ok(World { store, provider, clock, report: self.output.report(), cache, hub, everybody, supervisor, adoption, listeners })
    }
}

pub(super) fn executable() -> Result<PathBuf, Failure> {
    env::current_exe().map_err(|error| Failure::new(Exit::Failure, format!("cannot find ftctl's own program file: {error}")))
}
