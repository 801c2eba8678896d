//! The store of a URL: one container, and beside it one for each job, which the job's agent writes to. An intruder on a machine has
//! a signature for the job's container and one to read the store's own with, so that it changes no name, record, debt, dataset or
//! other job. It reads those whose names it knows, but not what other jobs have in their containers (`docs/decisions/0006`).
//!
//! A job's container is derived from the store's address and the job's id, and is made by the first write into it. Jobs of before,
//! whose data lies in the one container, go on there, and so does every job where the sign-in may not make containers. Which of the
//! two holds for a job is seen from answers that are needed anyway, and remembered.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    future::Future,
    ops::Range,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use async_trait::async_trait;
use bytes::Bytes;
use jiff::Timestamp;
use sha2::{Digest as _, Sha256};

use super::{
    super::{Condition, ETag, EXPOSURE, Meta, Object, Result, Store, StoreError, write_json},
    AzureStore, ENDPOINT, Location,
    sign_in::{self, Credential},
    transport::Transport,
};
use crate::{
    identity::entra,
    job::{
        digest::Digest,
        finding::Finding,
        id::{JobId, path},
    },
};

/// Read, add, create, write, delete and list, in the order that the service wants.
const AGENT_MAY: &str = "racwdl";

/// Permissions in the store: to read a dataset and the wish to cancel. They hold for the records of other jobs, too.
const AGENT_MAY_IN_STORE: &str = "r";

pub struct Containers {
    main: Arc<AzureStore>,
    /// Carries the requests to the jobs' containers.
    transport: Arc<Transport>,
    /// The signatures are those of an agent, whose job has a container.
    of_agent: bool,
    /// The sign-in is known to reach the one container and no other.
    narrow: AtomicBool,
    parts: Mutex<HashMap<JobId, Arc<Part>>>,
}

/// The container that the agent of one job writes to.
struct Part {
    own: Arc<AzureStore>,
    /// Where it is, once an answer has shown it: there, or in the main container.
    home: OnceLock<Arc<AzureStore>>,
}

/// On which side of the border a path, or what is below it, lies.
enum Place {
    Main,
    Part(JobId),
    /// All of a job.
    Job(JobId),
    /// The objects above all jobs.
    Above,
}

impl Place {
    fn of(path: &str) -> Self {
        let jobs = path::jobs();
        if path.is_empty() || path == jobs || jobs.strip_prefix(path).is_some_and(|rest| rest.starts_with('/')) {
            return Self::Above;
        }
        let Some(below) = path.strip_prefix(&jobs).and_then(|rest| rest.strip_prefix('/')) else { return Self::Main };
        let (id, inner) = below.split_once('/').unwrap_or((below, ""));
        match JobId::parse(id) {
            Some(job) if inner.is_empty() => Self::Job(job),
            Some(job) if is_of_agent(inner) => Self::Part(job),
            _ => Self::Main,
        }
    }
}

/// The job whose agent writes the object `path`.
fn part_of(path: &str) -> Option<JobId> {
    if let Place::Part(job) = Place::of(path) { Some(job) } else { None }
}

/// The job that has a path.
fn job_of(path: &str) -> Option<JobId> {
    let below = path.strip_prefix(&path::jobs())?.strip_prefix('/')?;
    JobId::parse(below.split('/').next()?)
}

/// Whether a path is among what the agent of this job writes.
#[cfg(test)]
pub(super) fn is_part_of(path: &str, job: &JobId) -> bool {
    part_of(path).as_ref() == Some(job)
}

fn is_of_agent(inner: &str) -> bool {
    inner.split('/').next().is_some_and(|first| path::OF_AGENT.contains(&first))
}

/// The address of a job's container: of 63 characters at most, and another one for each store of the account.
pub(super) fn container_of(store: &Location, job: &JobId) -> Location {
    let digest = hex::encode(&Sha256::digest(format!("{}/{}", store.container, store.blob("")))[..6]);
    let mut own = store.clone();
    own.container = format!("ft-{digest}-{job}");
    own
}

/// Whether requests to other containers than one could be answered.
fn reaches_others(credential: &Credential) -> bool {
    let Credential::Sas(signature) = credential else { return true };
    // An account's signature says of what: services, containers, objects.
    signature.split('&').filter_map(|part| part.strip_prefix("srt=")).any(|kinds| kinds.contains('c'))
}

/// Nothing there is an answer like others.
fn found<T>(answer: Result<T>) -> Result<Option<T>> {
    match answer {
        Err(StoreError::NotFound { .. }) => Ok(None),
        answer => answer.map(Some),
    }
}

fn unless_empty<T>(all: Vec<T>) -> Option<Vec<T>> {
    Some(all).filter(|all| !all.is_empty())
}

impl Containers {
    pub(super) fn new(main: AzureStore) -> Self {
        let transport = Arc::clone(&main.client.transport);
        let narrow = AtomicBool::new(!reaches_others(&transport.credential));
        Self { main: Arc::new(main), transport, of_agent: false, narrow, parts: Mutex::default() }
    }

    /// For the agent of a job that has a container: `main` may be read, and `own` is for that container.
    pub(super) fn of_agent(main: AzureStore, own: Arc<Transport>) -> Self {
        Self { transport: own, of_agent: true, narrow: AtomicBool::new(false), ..Self::new(main) }
    }

    #[cfg(test)]
    pub(super) fn main(&self) -> &AzureStore {
        &self.main
    }

    /// One for each signature.
    #[cfg(test)]
    pub(super) fn transports(&self) -> [&Arc<Transport>; 2] {
        [&self.main.client.transport, &self.transport]
    }

    fn part(&self, job: &JobId) -> Result<Arc<Part>> {
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(part) = parts.get(job) {
            return Ok(Arc::clone(part));
        }
        let location = container_of(&self.main.client.location, job);
        let own = Arc::new(self.main.beside(location, Arc::clone(&self.transport))?);
        let home = if self.of_agent { OnceLock::from(Arc::clone(&own)) } else { OnceLock::new() };
        Ok(Arc::clone(parts.entry(job.clone()).or_insert(Arc::new(Part { own, home }))))
    }

    fn is_narrow(&self) -> bool {
        self.narrow.load(Ordering::Relaxed)
    }

    /// The result of `look` in a job's own container; `None` where it cannot have one.
    async fn own<T, F: Future<Output = Result<T>>>(&self, job: &JobId, look: impl Fn(Arc<AzureStore>) -> F) -> Result<Option<T>> {
        let part = self.part(job)?;
        let in_main = part.home.get().is_some_and(|home| Arc::ptr_eq(home, &self.main));
        if in_main || self.is_narrow() {
            return Ok(None);
        }
        match look(Arc::clone(&part.own)).await {
            // Rights over the one container alone, as far as is known; where it has none over that one either, the next answer says
            // so.
            Err(StoreError::Denied { .. }) if !self.of_agent && !part.own.client.has_seen_it() => {
                self.narrow.store(true, Ordering::Relaxed);
                Ok(None)
            }
            found => found.map(Some),
        }
    }

    /// The result of `look` among the objects that a job's agent wrote, wherever they are.
    async fn find<T, F: Future<Output = Result<Option<T>>>>(
        &self,
        job: &JobId,
        look: impl Fn(Arc<AzureStore>) -> F,
    ) -> Result<Option<T>> {
        let part = self.part(job)?;
        if let Some(home) = part.home.get() {
            return look(Arc::clone(home)).await;
        }
        if let Some(found) = self.own(job, &look).await?
            && part.own.client.has_seen_it()
        {
            let _ = part.home.set(Arc::clone(&part.own));
            return Ok(found);
        }
        let found = look(Arc::clone(&self.main)).await?;
        if found.is_some() {
            let _ = part.home.set(Arc::clone(&self.main));
        } else if self.is_narrow() {
            self.has_own(job).await?;
        }
        Ok(found)
    }

    /// Where writes of a job's agent go.
    async fn home(&self, job: &JobId) -> Result<Arc<AzureStore>> {
        let part = self.part(job)?;
        if part.home.get().is_none() {
            let home = if self.has_own(job).await? || self.make_own(job, &part).await? { &part.own } else { &self.main };
            let _ = part.home.set(Arc::clone(home));
        }
        Ok(Arc::clone(part.home.get().unwrap_or(&self.main)))
    }

    /// Whether the store says that the job has a container. Fails where that is out of this sign-in's reach: the job would look as
    /// if its agent had never written a byte.
    async fn has_own(&self, job: &JobId) -> Result<bool> {
        let noted = self.main.head(&path::container(job)).await?.is_some();
        if noted && self.is_narrow() { Err(self.out_of_reach(job)) } else { Ok(noted) }
    }

    /// Makes the container of a job that has none and has not begun in the main one. `false`: it goes on there, or begins there
    /// because this sign-in may not make containers.
    async fn make_own(&self, job: &JobId, part: &Part) -> Result<bool> {
        if self.is_narrow() || self.main.children(&path::job(job)).await?.iter().any(|name| is_of_agent(name)) {
            return Ok(false);
        }
        if let Err(refusal) = part.own.client.create().await? {
            self.narrow.fetch_or(refusal.is_denied(), Ordering::Relaxed);
            let refused = || part.own.client.refused("create", &part.own.client.location.container, &refusal);
            return if refusal.is_denied() { Ok(false) } else { Err(refused()) };
        }
        // For users who cannot look for the container itself. The name is for people, and never read.
        let noted = serde_json::json!({ "schema": "ftctl.container/1", "container": part.own.client.location.container });
        match write_json(&*self.main, &path::container(job), &noted, Condition::IfAbsent).await {
            Ok(_) | Err(StoreError::Conflict { .. }) => Ok(true),
            Err(error) => Err(error),
        }
    }

    fn out_of_reach(&self, job: &JobId) -> StoreError {
        let location = &self.main.client.location;
        let own = container_of(location, job).container;
        let why = format!(
            "the job's output is in the container {own}, and this sign-in has access to {} only; sign in with the \
             account's key, or with an identity that has rights over the account {}",
            location.container, location.account
        );
        StoreError::Denied { action: "look at", path: path::job(job), why }
    }

    async fn erase(&self, job: &JobId, paths: &[String]) -> Result<()> {
        let erased = self.find(job, |store| async move { store.delete_all(paths).await.map(|()| None::<()>) });
        erased.await.map(drop)
    }
}

#[async_trait]
impl Store for Containers {
    fn url(&self) -> &str {
        self.main.url()
    }

    fn jobs(&self) -> usize {
        self.main.jobs()
    }

    async fn agent_environment(&self, job: &JobId, expires: Timestamp) -> Result<Vec<(&'static str, Option<String>)>> {
        let home = self.home(job).await?;
        let main = &self.main.client;
        // An agent's order is no word of the user's.
        let mut variables = vec![(ENDPOINT, Some(main.location.endpoint.to_string()))];
        let (writes, reads) = match (&main.transport.credential, main.signer(expires).await?) {
            // A signature signs nothing: a machine elsewhere has it as it is, or has nothing to sign in with.
            (Credential::Sas(own), _) => (own.clone(), None),
            (_, None) => return Ok(variables),
            (_, Some(signer)) => {
                let reads = (!Arc::ptr_eq(&home, &self.main)).then(|| signer.sign(main, AGENT_MAY_IN_STORE));
                (signer.sign(&home.client, AGENT_MAY), reads)
            }
        };
        variables.extend(sign_in::SECRETS.iter().chain(&entra::SECRETS).map(|secret| (*secret, None)));
        variables.push((sign_in::SAS, Some(writes)));
        variables.push((sign_in::READ_SAS, reads));
        Ok(variables)
    }

    fn exposure(&self) -> Option<Finding> {
        let Location { account, container, .. } = &self.main.client.location;
        let (what, fix) = match &self.main.client.transport.credential {
            Credential::Key(_) => return None,
            Credential::Sas(_) => (
                format!(
                    "an attacker on a machine could do all that this signature allows to the whole container {container}: to other \
                     jobs, names and datasets, too"
                ),
                "sign in with the account's key, or with an identity that may create containers: each job then has one of its own",
            ),
            Credential::Token(_) => (
                format!(
                    "an attacker on a machine can change that job's data only, if this identity may create containers in the \
                     account {account} and sign for them; otherwise the attacker can change the whole container {container}"
                ),
                "give the identity the roles Storage Blob Data Contributor and Storage Blob Delegator on the account",
            ),
        };
        Some(Finding::notice(EXPOSURE, what, fix))
    }

    async fn identity(&self) -> Result<Digest> {
        self.main.identity().await
    }

    async fn get_limited(&self, path: &str, most: u64) -> Result<Object> {
        let Some(job) = part_of(path) else { return self.main.get_limited(path, most).await };
        let object = self.find(&job, |store| async move { found(store.get_limited(path, most).await) }).await?;
        object.ok_or_else(|| self.main.not_found(path))
    }

    async fn get_range(&self, path: &str, range: Range<u64>) -> Result<Bytes> {
        let Some(job) = part_of(path) else { return self.main.get_range(path, range).await };
        let Range { start, end } = range;
        let bytes = self.find(&job, |store| async move { found(store.get_range(path, start..end).await) }).await?;
        bytes.ok_or_else(|| self.main.not_found(path))
    }

    async fn head(&self, path: &str) -> Result<Option<Meta>> {
        let Some(job) = part_of(path) else { return self.main.head(path).await };
        self.find(&job, |store| async move { store.head(path).await }).await
    }

    async fn put(&self, path: &str, bytes: Bytes, condition: Condition) -> Result<ETag> {
        let Some(job) = part_of(path) else { return self.main.put(path, bytes, condition).await };
        self.home(&job).await?.put(path, bytes, condition).await
    }

    async fn append(&self, path: &str, offset: u64, bytes: Bytes) -> Result<u64> {
        let Some(job) = part_of(path) else { return self.main.append(path, offset, bytes).await };
        self.home(&job).await?.append(path, offset, bytes).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Meta>> {
        let above = match Place::of(prefix) {
            Place::Main => return self.main.list(prefix).await,
            Place::Part(job) => {
                let all = self.find(&job, |store| async move { Ok(unless_empty(store.list(prefix).await?)) }).await?;
                return Ok(all.unwrap_or_default());
            }
            Place::Job(job) => Some(job),
            Place::Above => None,
        };
        let mut all = self.main.list(prefix).await?;
        let jobs: BTreeSet<JobId> = all.iter().filter_map(|meta| job_of(&meta.path)).chain(above).collect();
        for job in jobs {
            match self.own(&job, |store| async move { store.list(prefix).await }).await? {
                Some(own) => all.extend(own),
                None if self.is_narrow() && all.iter().any(|meta| meta.path == path::container(&job)) => {
                    return Err(self.out_of_reach(&job));
                }
                None => {}
            }
        }
        all.sort_unstable_by(|a, b| a.path.cmp(&b.path));
        Ok(all)
    }

    async fn list_some(&self, prefix: &str) -> Result<Option<Vec<Meta>>> {
        match Place::of(prefix) {
            Place::Main => self.main.list_some(prefix).await,
            Place::Part(job) => {
                let some = self.find(&job, |store| async move {
                    Ok(match store.list_some(prefix).await? {
                        Some(all) => unless_empty(all).map(Some),
                        None => Some(None),
                    })
                });
                Ok(some.await?.unwrap_or_else(|| Some(Vec::new())))
            }
            Place::Job(_) | Place::Above => Ok(None),
        }
    }

    /// A job is found by what the main container holds of it.
    async fn children(&self, prefix: &str) -> Result<Vec<String>> {
        let job = match Place::of(prefix) {
            Place::Main | Place::Above => return self.main.children(prefix).await,
            Place::Part(job) => {
                let names = self.find(&job, |store| async move { Ok(unless_empty(store.children(prefix).await?)) }).await?;
                return Ok(names.unwrap_or_default());
            }
            Place::Job(job) => job,
        };
        let mut names = self.main.children(prefix).await?;
        names.extend(self.own(&job, |store| async move { store.children(prefix).await }).await?.unwrap_or_default());
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }

    async fn delete(&self, path: &str) -> Result<()> {
        let Some(job) = part_of(path) else { return self.main.delete(path).await };
        self.erase(&job, &[path.to_owned()]).await
    }

    async fn delete_all(&self, paths: &[String]) -> Result<()> {
        let mut sides: BTreeMap<Option<JobId>, Vec<String>> = BTreeMap::new();
        for path in paths {
            sides.entry(part_of(path)).or_default().push(path.clone());
        }
        for (job, paths) in sides {
            match job {
                Some(job) => self.erase(&job, &paths).await?,
                None => self.main.delete_all(&paths).await?,
            }
        }
        Ok(())
    }

    /// Its container goes first: as long as the main one has something of it, an interrupted deletion can find it again.
    async fn delete_job(&self, job: &JobId) -> Result<()> {
        self.own(job, |store| async move { store.client.remove().await }).await?;
        if self.is_narrow() {
            self.has_own(job).await?;
        }
        self.parts.lock().unwrap_or_else(PoisonError::into_inner).remove(job);
        self.main.delete_job(job).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_agent_writes_is_on_its_side_and_nothing_else_is() {
        let job = JobId::derive("a", "1");
        let place = |path: &str| match Place::of(path) {
            Place::Main => "main",
            Place::Part(of) if of == job => "part",
            Place::Job(of) if of == job => "job",
            Place::Above => "above",
            Place::Part(_) | Place::Job(_) => "another",
        };
        for path in ["", "ftctl", "ftctl/v1", "ftctl/v1/jobs"] {
            assert_eq!(place(path), "above", "{path}");
        }
        assert_eq!(place(&path::job(&job)), "job");
        let (step, digest) = (path::checkpoint(&job, 7), crate::job::digest::Digest::of(b"x"));
        for path in [
            path::log(&job, 1),
            path::exit(&job, 1),
            path::heartbeat(&job, 1),
            path::attempt_lease(&job),
            format!("{step}/manifest.json"),
            path::checkpoints(&job),
            path::artifacts(&job),
            path::content(&path::job_contents(&job), &digest),
        ] {
            assert_eq!(place(&path), "part", "{path}");
        }
        for path in [
            path::record(&job),
            path::order(&job),
            path::cancel(&job),
            path::container(&job),
            path::supervisor_lease(&job),
            path::debt(&job),
            path::content(&path::contents(), &digest),
            "ftctl/v1/jobs/no id/attempts/1/log".to_owned(),
            "ftctl/v1/jobs-not/x".to_owned(),
            "ftctl/v".to_owned(),
        ] {
            assert_eq!(place(&path), "main", "{path}");
        }
    }

    #[test]
    fn a_container_has_a_valid_name_of_its_own() {
        let longest = JobId::derive(&"a".repeat(crate::job::id::MAX_NAME), "1");
        let name = |url: &str, job: &JobId| container_of(&Location::parse(url, None).unwrap(), job).container;
        let own = name("azure://acc/box/team", &longest);
        assert!(own.len() == 63 && own.ends_with(longest.as_str()) && !own.contains("--"), "{own}");
        assert_eq!(own, name("https://acc.blob.core.windows.net/box/team/", &longest));
        for other in ["azure://acc/box", "azure://acc/box/team2", "azure://acc/boxteam"] {
            assert_ne!(own, name(other, &longest), "{other}");
        }
    }

    #[test]
    fn a_signature_says_whether_it_is_for_one_container() {
        for (signature, others) in [("sv=1&sr=c&sig=x", false), ("sv=1&ss=b&srt=sco&sig=x", true), ("sv=1&ss=b&srt=o&sig=x", false)]
        {
            assert_eq!(reaches_others(&Credential::Sas(signature.to_owned())), others, "{signature}");
        }
    }
}
