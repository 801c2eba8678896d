//! The only list of providers.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
    sync::Arc,
};

use ft_trainer::settings::{
    TrainSettings,
    micro_batch::available_memory,
    validate::{Rule, all_hold},
};

#[cfg(target_os = "linux")]
use super::local::{self, Local};
use super::{
    AgentEnvironment, Class, FAREWELL, Provider, ProviderError, Result, Size,
    azureml::{self, Azureml},
    clock::SystemClock,
    docker::{self, Docker},
    fake::Fake,
    gce::{self, Gce},
    offer::Offer,
    rights::Rights,
    whose::Party,
};
use crate::{
    catalogue::gpus::gpus,
    job::{
        azureml::AzuremlPlan,
        clock::{Clock, after},
        compute::{Backend, Compute},
        docker::Gpus,
        environment::{Program, passes},
        plan::Plan,
        spec::ComputeSpec,
        units::Money,
        wording,
    },
    store::{Store, azure},
};

/// Every name that [`open`] knows, as `compute.backend` spells it.
pub fn names() -> [&'static str; 5] {
    Backend::NAMES
}

/// `[compute]` of a new job file for a backend, with what a user decides there.
pub fn beginning(name: &str) -> Result<&'static str> {
    Ok(match named(name)? {
        Backend::Local => include_str!("../../templates/backends/local.toml"),
        Backend::Docker => include_str!("../../templates/backends/docker.toml"),
        Backend::Gce => include_str!("../../templates/backends/gce.toml"),
        Backend::Azureml => include_str!("../../templates/backends/azureml.toml"),
        Backend::Fake => include_str!("../../templates/backends/fake.toml"),
    })
}

/// Facts about the place where ftctl runs that a provider may need.
#[derive(Clone)]
pub struct Environment {
    /// `$XDG_STATE_HOME/ftctl`.
    pub state: PathBuf,
    /// ftctl itself.
    pub executable: PathBuf,
    /// The environment of this process.
    pub variables: Vec<(OsString, OsString)>,
    /// `$XDG_CACHE_HOME/ftctl`.
    pub cache: PathBuf,
    /// The job's store.
    pub store: Arc<dyn Store>,
    /// Machines of other stores are meant as well.
    pub everybody: bool,
    /// Where the job runs that is meant, if one is: its own word on the account counts.
    pub compute: Option<Compute>,
}

impl Environment {
    fn party(&self) -> Party {
        Party { owner: owner(self), store: self.store.clone(), everybody: self.everybody }
    }

    fn azureml(&self) -> Option<&AzuremlPlan> {
        if let Some(Compute::Azureml(plan)) = &self.compute { Some(plan) } else { None }
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

/// Opens a provider by name. Nothing is created at the provider. Fails as [`Class::Invalid`] for a name that is not in [`names`].
pub fn open(name: &str, environment: &Environment) -> Result<Connected> {
    match named(name)? {
        #[cfg(target_os = "linux")]
        Backend::Local => Ok(open_local(environment)),
        #[cfg(not(target_os = "linux"))]
        Backend::Local => {
            let message = "the backend local works on Linux alone";
            Err(ProviderError::new(Class::Invalid, message).fix("use --backend docker, gce or azureml"))
        }
        Backend::Docker => Ok(open_docker(environment)),
        Backend::Gce => open_gce(environment),
        Backend::Azureml => open_azureml(environment),
        Backend::Fake => open_fake(environment),
    }
}

/// A file in the user's folders that says which account is meant where nothing else does, and its values. Another person may have
/// put it there.
pub fn claimed(name: &str, environment: &Environment) -> Result<Option<(PathBuf, BTreeMap<String, String>)>> {
    match named(name)? {
        Backend::Azureml => {
            let here = std::env::current_dir().unwrap_or_default();
            azureml::claimed(environment.azureml(), &|name| environment.variable(name), &here)
        }
        Backend::Local | Backend::Docker | Backend::Gce | Backend::Fake => Ok(None),
    }
}

/// The values in a file of this kind, by their keys in a job file.
pub fn places_of_account(file: &Path) -> Result<BTreeMap<String, String>> {
    azureml::places_of(file)
}

#[cfg(target_os = "linux")]
fn open_local(environment: &Environment) -> Connected {
    let variables = agent_environment(environment);
    let Environment { state, executable, store, cache, .. } = environment.clone();
    let (party, clock) = (environment.party(), Arc::new(SystemClock));
    let (notice, now) = (local::PREEMPTION_NOTICE, clock.clone());
    let settings = local::Settings { state, party, executable, variables, notice, clock: now, cache };
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
        cache: environment.cache.clone(),
    };
    Connected { provider: Arc::new(Docker::new(settings)), store, clock }
}

/// The user's name, by which their machines are told from others' on the same engine, or in the same project.
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

fn open_azureml(environment: &Environment) -> Result<Connected> {
    let store = environment.store.clone();
    let clock = Arc::new(SystemClock);
    let prices = Some(environment.state.join("prices-azureml.json"));
    let here = std::env::current_dir().unwrap_or_default();
    let variables = |name: &str| environment.variable(name);
    let provider = Azureml::open(&variables, &here, environment.azureml(), environment.party(), clock.clone(), prices)?;
    Ok(Connected { provider: Arc::new(provider), store, clock })
}

/// The part of this process's environment that an agent gets, and a signature for its store. Where nothing can be signed for a blob
/// container, the agent signs in as this process does.
fn agent_environment(environment: &Environment) -> AgentEnvironment {
    let environment = environment.clone();
    Arc::new(move |job, until| {
        let Environment { variables, store, .. } = environment.clone();
        Box::pin(async move {
            let given = store.agent_environment(&job, after(until, FAREWELL)).await.map_err(ProviderError::unsigned)?;
            Ok(agents(variables, given, store.url()))
        })
    })
}

/// The part of `variables` that an agent gets, besides those that the store at `url` has `given` it.
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
    named(name).map(drop)
}

fn named(name: &str) -> Result<Backend> {
    let unknown = || ProviderError::new(Class::Invalid, format!("there is no backend `{name}`"));
    Backend::named(name).ok_or_else(|| unknown().fix(wording::suggest(name, &names(), "backends")))
}

/// Where a job runs that is for the backend `name`, with every default of that filled in.
pub fn compute(name: &str, spec: &ComputeSpec) -> Result<Compute> {
    Ok(match named(name)? {
        Backend::Local => Compute::Local,
        Backend::Docker => Compute::Docker(spec.docker.clone().into()),
        Backend::Gce => Compute::Gce(Box::new(spec.gce.clone().into())),
        Backend::Azureml => Compute::Azureml(Box::new(spec.azureml.clone().into())),
        Backend::Fake => Compute::Fake,
    })
}

/// Rules for a job file that only the backends know.
pub fn rules(spec: &ComputeSpec) -> Vec<Rule> {
    gce::rules(&spec.gce).into_iter().chain(azureml::rules(&spec.azureml)).collect()
}

/// The rules of a job file, held against a plan that comes from a store. The error says which is broken.
pub fn check(plan: &Plan) -> Result<(), String> {
    known(plan.backend()).map_err(|error| error.message)?;
    let machine = plan.compute.gce().map(gce::rules_of_plan).unwrap_or_default();
    plan.check(rules).and_then(|()| all_hold(machine)).map_err(|broken| broken.to_string())
}

/// Price of an hour of the same machine without preemption; `None` where there is none, and where there is no such machine.
pub fn lasting_price(plan: &Plan) -> Option<Money> {
    // Plans of older versions do not have it.
    let listed = || match &*plan.compute {
        Compute::Gce(gce) => gce::lasting_price(gce),
        Compute::Azureml(azureml) => azureml::lasting_price(azureml),
        Compute::Local | Compute::Docker(_) | Compute::Fake | Compute::Unknown(_) => None,
    };
    plan.lasting_price_per_hour.or_else(listed)
}

/// The memory that a job has to train in, as far as it is known before its machine runs.
pub fn size(compute: &Compute) -> Size {
    match compute {
        Compute::Local => Size::here(available_memory()),
        Compute::Docker(docker) => Size { has_gpu: docker.gpus != Gpus::None, ..Size::default() },
        Compute::Gce(gce) => gce::size(gce),
        Compute::Azureml(azureml) => azureml::size(azureml),
        Compute::Fake | Compute::Unknown(_) => Size::default(),
    }
}

/// The machines with GPUs that a backend sells.
pub fn offers(name: &str) -> Result<Vec<Offer>> {
    Ok(match named(name)? {
        Backend::Gce => gce::offers(),
        Backend::Azureml => azureml::offers(),
        Backend::Local | Backend::Docker | Backend::Fake => Vec::new(),
    })
}

/// Whether two jobs have machines of one kind, as far as speed goes. Those of a backend that does not bill are where ftctl runs.
pub fn are_alike(one: &Compute, other: &Compute) -> bool {
    match (one, other) {
        (Compute::Local, Compute::Local) => true,
        (Compute::Docker(one), Compute::Docker(other)) => one.gpus == other.gpus,
        (Compute::Gce(one), Compute::Gce(other)) => {
            (one.machine_type(), &one.accelerator, one.accelerators)
                == (other.machine_type(), &other.accelerator, other.accelerators)
        }
        (Compute::Azureml(one), Compute::Azureml(other)) => one.size == other.size,
        _ => false,
    }
}

/// FLOP per second that training on the machine's GPU is reckoned with, and how that was found; `None` where nothing is known of
/// the GPU, or of its rate in the job's number format.
pub fn reckoned_rate(compute: &Compute, train: &TrainSettings) -> Option<(f64, String)> {
    let card = match compute {
        Compute::Gce(gce) => &gce.accelerator,
        Compute::Azureml(azureml) => &azureml.accelerator,
        Compute::Local | Compute::Docker(_) | Compute::Fake | Compute::Unknown(_) => return None,
    };
    let (peak, share) = (gpus().peak(card, train)?, gpus().share);
    let how = format!("{:.0} % of the {} TFLOP/s in the data sheet of a {card}", share * 100.0, peak / 1e12);
    Some((peak * share, how))
}

/// The machine as `ftctl plan` shows it: a name and a value for each line.
pub fn rows(plan: &Plan) -> Vec<(&'static str, String)> {
    let (mut rows, accelerators) = match &*plan.compute {
        Compute::Gce(gce) => (gce::rows(gce), gce.accelerators),
        Compute::Azureml(azureml) => (azureml::rows(azureml), azureml.accelerators),
        Compute::Local | Compute::Docker(_) | Compute::Fake | Compute::Unknown(_) => (Vec::new(), 0),
    };
    let each = plan.processes / plan.nodes.max(1);
    if let Some(idle) = (accelerators as usize).checked_sub(each).filter(|idle| *idle > 0) {
        rows.push(("idle", format!("{idle} of {accelerators} GPUs: compute.processes_per_node = {each}")));
    }
    rows
}

/// All that a plan lets its machine reach.
pub fn rights(compute: &Compute) -> Rights {
    match compute {
        Compute::Docker(docker) => docker::rights(docker),
        Compute::Gce(gce) => gce::rights(gce),
        Compute::Azureml(azureml) => azureml::rights(azureml),
        Compute::Local | Compute::Fake | Compute::Unknown(_) => Rights::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        catalogue,
        job::{
            azureml::AzuremlPlan,
            gce::{GcePlan, GceSpec},
        },
        provider::conformance,
        store::memory::MemoryStore,
    };

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
        // Where nothing can be signed, the agent signs in as its user.
        let shared = ["AZURE_STORAGE_KEY", "AZURE_STORAGE_SAS_TOKEN", "FTCTL_ENDPOINT_BLOB", "HOME", "PATH", "https_proxy"];
        assert_eq!(names(&[endpoint], far), shared);
    }

    #[test]
    fn a_plan_is_judged_by_the_rules_of_its_backend() {
        let on = |wanted: GcePlan| check(&Plan { compute: Compute::Gce(Box::new(wanted)).into(), ..conformance::plan() });
        assert_eq!(on(GcePlan::default()), Ok(()));
        let refused = |change: fn(&mut GcePlan)| {
            let mut wanted = GcePlan::default();
            change(&mut wanted);
            on(wanted).expect_err("a broken rule")
        };
        for (change, message) in [
            (
                (|plan| plan.image = Some("registry/evil:latest".to_owned())) as fn(&mut GcePlan),
                "compute.gce.image: image is given by its digest",
            ),
            (|plan| plan.machine_type = Some("n1-ultramem-160".to_owned()), "compute.gce.machine_type: no job file"),
            (|plan| plan.disk_gb = u32::MAX, "compute.gce.disk_gb: the boot disk"),
        ] {
            let refused = refused(change);
            assert!(refused.starts_with(message), "{refused}");
        }
        let on_azureml = |change: fn(&mut AzuremlPlan)| {
            let mut wanted = AzuremlPlan::default();
            change(&mut wanted);
            check(&Plan { compute: Compute::Azureml(Box::new(wanted)).into(), ..conformance::plan() })
        };
        assert_eq!(on_azureml(|_| ()), Ok(()));
        for (change, message) in [
            (
                (|plan| plan.image = Some("registry/evil:latest".to_owned())) as fn(&mut AzuremlPlan),
                "compute.azureml.image: image is",
            ),
            (|plan| plan.size = "Standard_NC6s_v3".to_owned(), "compute.azureml.size: Azure retired"),
            (|plan| plan.accelerators = 8, "compute.azureml.accelerators: Standard_NC4as_T4_v3 has 1 t4, not 8"),
        ] {
            let refused = on_azureml(change).expect_err("a broken rule");
            assert!(refused.starts_with(message), "{refused}");
        }
        let moon = Plan { compute: Compute::Unknown("moon".to_owned()).into(), ..conformance::plan() };
        assert_eq!(check(&moon), Err("there is no backend `moon`".to_owned()));
    }

    #[test]
    fn every_machine_of_the_catalogue_is_one_of_a_job_file() {
        for (accelerator, card) in &catalogue::gce().accelerators {
            let added = card.limits.keys().filter_map(|count| count.parse().ok());
            let counts: Vec<u32> = card.machines.values().map(|machine| machine.accelerators).chain(added).collect();
            for count in counts {
                let spec = GceSpec { accelerator: Some(accelerator.clone()), accelerators: Some(count), ..GceSpec::default() };
                let planned = Plan { compute: Compute::Gce(Box::new(spec.into())).into(), ..conformance::plan() };
                assert_eq!(check(&planned), Ok(()), "{count} {accelerator}");
            }
        }
    }

    #[test]
    fn every_name_opens_and_any_other_is_refused_with_a_hint() {
        let state = tempfile::tempdir().expect("directory");
        let environment = Environment {
            state: state.path().to_owned(),
            executable: "ftctl".into(),
            cache: state.path().to_owned(),
            variables: ["GOOGLE_CLOUD_PROJECT", "CLOUDSDK_AUTH_ACCESS_TOKEN"].map(|name| (name.into(), "x".into())).to_vec(),
            store: Arc::new(MemoryStore::new()),
            everybody: false,
            compute: None,
        };
        for name in names() {
            assert!(open(name, &environment).is_ok(), "{name}");
        }
        let hint = |name: &str| open(name, &environment).err().and_then(|error| error.fix).expect("a hint");
        assert_eq!(hint("lcoal"), "did you mean `local`?");
        assert_eq!(hint("zzz"), "backends: local, docker, gce, azureml, fake");
    }
}
