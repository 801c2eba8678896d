//! The only list of providers.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;

use super::{
    AgentEnvironment, Class, Provider, ProviderError, Result,
    docker::{self, Docker},
    fake::Fake,
    gce::Gce,
    local::{self, Local},
    whose::Party,
};
use crate::{
    job::{
        clock::{Clock, SystemClock},
        environment::{Program, passes},
        wording,
    },
    store::{Store, azure},
};

/// Every name that [`open`] knows, as `compute.backend` spells it.
pub const NAMES: [&str; 4] = ["local", "docker", "gce", "fake"];

/// What a provider may need to know about the place where ftctl runs.
#[derive(Clone)]
pub struct Environment {
    /// `$XDG_STATE_HOME/ftctl`.
    pub state: PathBuf,
    /// ftctl itself.
    pub executable: PathBuf,
    /// The environment of this process.
    pub variables: Vec<(OsString, OsString)>,
    /// An agent may need the store for so long.
    pub agent_life: Duration,
    /// The job's store.
    pub store: Arc<dyn Store>,
    /// Machines of other stores are meant as well.
    pub everybody: bool,
}

impl Environment {
    fn party(&self) -> Party {
        Party { owner: owner(self), store: self.store.clone(), everybody: self.everybody }
    }

    /// Empty ones count as absent.
    fn variable(&self, wanted: &str) -> Option<String> {
        let (_, value) = self.variables.iter().find(|(name, value)| name == wanted && !value.is_empty())?;
        value.clone().into_string().ok()
    }
}

/// A provider, with the store and the clock to use beside it: a rehearsal has its own time, and watches the calls to both.
#[derive(Clone)]
pub struct Connected {
    pub provider: Arc<dyn Provider>,
    pub store: Arc<dyn Store>,
    pub clock: Arc<dyn Clock>,
}

/// Opens a provider by name. Nothing is created at the provider. Fails as [`Class::Invalid`] for a name that is not in [`NAMES`].
pub fn open(name: &str, environment: &Environment) -> Result<Connected> {
    match name {
        "local" => Ok(open_local(environment)),
        "docker" => Ok(open_docker(environment)),
        "gce" => open_gce(environment),
        "fake" => open_fake(environment),
        _ => Err(unknown(name)),
    }
}

fn open_local(environment: &Environment) -> Connected {
    let variables = agent_environment(environment);
    let Environment { state, executable, store, .. } = environment.clone();
    let (party, clock) = (environment.party(), Arc::new(SystemClock));
    let settings = local::Settings { state, party, executable, variables, notice: local::PREEMPTION_NOTICE, clock: clock.clone() };
    Connected { provider: Arc::new(Local::new(settings)), store, clock }
}

fn open_docker(environment: &Environment) -> Connected {
    let store = environment.store.clone();
    let clock = Arc::new(SystemClock);
    let settings = docker::Settings {
        party: environment.party(),
        address: azure::address(store.url(), &|name| environment.variable(name)).unwrap_or_default(),
        store: store.url().to_owned(),
        variables: agent_environment(environment),
        notice: docker::PREEMPTION_NOTICE,
        clock: clock.clone(),
    };
    Connected { provider: Arc::new(Docker::new(settings)), store, clock }
}

/// The user's name, by which what is theirs is told from what others have on the same engine, or in the same project.
fn owner(environment: &Environment) -> String {
    let name = environment.variable("USER").or_else(|| environment.variable("LOGNAME"));
    name.unwrap_or_else(|| format!("uid-{}", rustix::process::getuid().as_raw()))
}

fn open_gce(environment: &Environment) -> Result<Connected> {
    let store = environment.store.clone();
    let clock = Arc::new(SystemClock);
    let prices = Some(environment.state.join("prices.json"));
    let provider = Gce::open(&|name| environment.variable(name), environment.party(), clock.clone(), prices)?;
    Ok(Connected { provider: Arc::new(provider), store, clock })
}

/// What of this process's environment an agent has, and a signature for its store. Where nothing can be signed for a blob container, the agent
/// signs in as this process does.
fn agent_environment(environment: &Environment) -> AgentEnvironment {
    let environment = environment.clone();
    Arc::new(move |job| {
        let Environment { variables, store, agent_life, .. } = environment.clone();
        Box::pin(async move {
            let expires = Timestamp::now().checked_add(agent_life).unwrap_or(Timestamp::MAX);
            let given = store.agent_environment(&job, expires).await.map_err(ProviderError::unsigned)?;
            Ok(agents(variables, given, store.url()))
        })
    })
}

/// What an agent has of `variables`, besides what the store at `url` has `given` it.
fn agents(
    variables: Vec<(OsString, OsString)>,
    given: Vec<(&'static str, Option<String>)>,
    url: &str,
) -> Vec<(OsString, OsString)> {
    let shares_sign_in = azure::is_container(url) && !given.iter().any(|(name, _)| *name == azure::SIGNATURE);
    let has = |name: &OsStr| passes(Program::Agent, name) || (shares_sign_in && azure::is_involved(name));
    let mut agents: BTreeMap<OsString, OsString> = variables.into_iter().filter(|(name, _)| has(name)).collect();
    agents.extend(given.into_iter().filter_map(|(name, value)| Some((name.into(), value?.into()))));
    agents.into_iter().collect()
}

fn open_fake(environment: &Environment) -> Result<Connected> {
    let fake = Arc::new(Fake::open(&environment.state.join("fake"), environment.party())?);
    Ok(Connected { store: fake.client_store(), clock: fake.clock(), provider: fake })
}

/// Refuses a name that [`open`] would refuse.
pub fn known(name: &str) -> Result<()> {
    if NAMES.contains(&name) { Ok(()) } else { Err(unknown(name)) }
}

fn unknown(name: &str) -> ProviderError {
    ProviderError::new(Class::Invalid, format!("there is no backend `{name}`")).fix(wording::suggest(name, &NAMES, "backends"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::memory::MemoryStore;

    #[test]
    fn an_agent_has_what_is_on_the_list_and_of_secrets_what_its_store_needs() {
        let own = ["PATH", "HOME", "https_proxy", "SECRET_IN_SHELL", "FTCTL_STORE", "AZURE_STORAGE_KEY", "AZURE_STORAGE_SAS_TOKEN"];
        let names = |given: &[&'static str], url| {
            let given = given.iter().map(|name| (*name, Some("y".to_owned()))).collect();
            let agents = agents(own.map(|name| (name.into(), "x".into())).to_vec(), given, url);
            agents.into_iter().map(|(name, _)| name.into_string().expect("text")).collect::<Vec<_>>()
        };
        assert_eq!(names(&[], "/store"), ["HOME", "PATH", "https_proxy"]);
        let (far, endpoint) = ("azure://account/container", "FTCTL_ENDPOINT_BLOB");
        let signed = ["AZURE_STORAGE_SAS_TOKEN", "FTCTL_ENDPOINT_BLOB", "HOME", "PATH", "https_proxy"];
        assert_eq!(names(&[azure::SIGNATURE, endpoint], far), signed);
        // Where nothing can be signed, the agent is who its user is.
        let shared = ["AZURE_STORAGE_KEY", "AZURE_STORAGE_SAS_TOKEN", "FTCTL_ENDPOINT_BLOB", "HOME", "PATH", "https_proxy"];
        assert_eq!(names(&[endpoint], far), shared);
    }

    #[test]
    fn every_name_opens_and_any_other_is_refused_with_a_hint() {
        let state = tempfile::tempdir().expect("directory");
        let environment = Environment {
            state: state.path().to_owned(),
            executable: "ftctl".into(),
            variables: ["GOOGLE_CLOUD_PROJECT", "CLOUDSDK_AUTH_ACCESS_TOKEN"].map(|name| (name.into(), "x".into())).to_vec(),
            agent_life: Duration::ZERO,
            store: Arc::new(MemoryStore::new()),
            everybody: false,
        };
        for name in NAMES {
            assert!(open(name, &environment).is_ok(), "{name}");
        }
        let hint = |name: &str| open(name, &environment).err().and_then(|error| error.fix).expect("a hint");
        assert_eq!(hint("lcoal"), "did you mean `local`?");
        assert_eq!(hint("zzz"), "backends: local, docker, gce, fake");
    }
}
