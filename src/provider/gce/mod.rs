//! Provider `gce`: a machine of Google's Compute Engine for each attempt.
//!
//! The cloud is the only memory: a machine is found by its name, a job's machines by their label, in whatever zone they are. The
//! kill switch is the cloud's (`maxRunDuration`, DELETE), so nothing outlives the job's money when everybody else is gone. The
//! agent is started by the machine itself, by `templates/gce/startup.sh`: it waits for the order, which [`Provider::launch`] puts
//! into the machine's metadata against the fingerprint of what is there, so that exactly one launcher wins. The secret beside it is
//! taken away when the agent was heard of. With `recovery = "group"` a job's machine is that of a group: [`group`].
//!
//! | killed | is found later as |
//! |---|---|
//! | before the insert was heard | no machine of that name: made |
//! | after that | a machine of that name: taken as it is. Two clients at once may meet different stock-outs and make one each: both keep the older |
//! | before the order was in the metadata | a machine that waits, ten minutes at most, and then switches itself off; or none any more, and the operations tell that there was one |

mod advice;
mod answer;
mod body;
mod boot;
mod client;
mod credentials;
mod group;
mod history;
mod machine;
mod offer;
mod possible;
mod prices;
mod quota;
mod refusal;
mod ssh;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use async_trait::async_trait;
use jiff::Timestamp;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

#[doc(hidden)]
pub use self::answer::read as read_answer;
pub use self::offer::{lasting_price, offers, rights, rows, rules, rules_of_plan, size};
use self::{
    client::{Call, Client, last},
    credentials::Credentials,
    machine::{created, is_grouped, is_of, is_on, metadata, said},
    prices::Kept,
    refusal::Refusal,
};
use super::{
    Account, Capabilities, Class, Console, FAREWELL, Provider, ProviderError, Resource, Result, Session, Sighting, Signs,
    line::{self, http_date},
    named_image,
    whose::{Mark, Party, namesake, unknown_store},
};
use crate::{
    catalogue::region,
    job::{
        clock::{Clock, after},
        compute::Compute,
        finding::Finding,
        gce::{GcePlan, Recovery},
        id::{AttemptId, JobId},
        order::{RunOrder, TrainerImage},
        plan::{Plan, Price},
        report::Report,
    },
    store::Store,
};

const PUBLIC: &str = "https://compute.googleapis.com";
const PUBLIC_BILLING: &str = "https://cloudbilling.googleapis.com";
/// How often a machine is looked at whose end is waited for, and how long.
const LOOK: Duration = Duration::from_millis(500);
const END: Duration = Duration::from_secs(300);
/// The startup script gives a sign of life every ten seconds: this much silence is reported.
const SILENCE: Duration = Duration::from_secs(45);
/// A machine that is taken away is paid for until its notice is over, the longest of which is this.
const NOTICE: Duration = Duration::from_secs(120);
/// By the cloud's clock: a machine whose startup script does not run, and one that once lived.
const NEVER_BEGUN: Duration = Duration::from_secs(5 * 60);
const HANGS: Duration = Duration::from_secs(10 * 60);

pub struct Gce {
    client: Client,
    store: Arc<dyn Store>,
    party: Party,
    clock: Arc<dyn Clock>,
    prices: Kept,
    /// Where programs are.
    path: String,
}

impl Gce {
    /// `variables` is the caller's environment; `prices` is the file that keeps today's prices of machines. The cloud is not asked
    /// for anything, so list prices are known without a sign-in.
    pub fn open(
        variables: credentials::Variables<'_>,
        party: Party,
        clock: Arc<dyn Clock>,
        prices: Option<PathBuf>,
    ) -> Result<Self> {
        let named = ["GOOGLE_CLOUD_PROJECT", "CLOUDSDK_CORE_PROJECT"].iter().find_map(|name| variables(name));
        let found = Credentials::find(variables).and_then(|credentials| {
            let project = named.clone().or_else(|| credentials.project()).ok_or_else(|| {
                ProviderError::new(Class::Invalid, "no project of Google Cloud is named").fix("export GOOGLE_CLOUD_PROJECT=...")
            })?;
            Ok((credentials, project))
        });
        let (credentials, project) = found.unwrap_or_else(|error| (Credentials::absent(error), named.unwrap_or_default()));
        let endpoint = |name| variables(name).map(|url| url.trim_end_matches('/').to_owned());
        let compute = endpoint("FTCTL_ENDPOINT_GCE");
        // A user of another Compute Engine must not ask the public catalogue with its token.
        let billing = endpoint("FTCTL_ENDPOINT_BILLING").or_else(|| compute.clone()).unwrap_or_else(|| PUBLIC_BILLING.to_owned());
        let compute = compute.unwrap_or_else(|| PUBLIC.to_owned());
        let client = Client::new(compute, billing, project, credentials)?;
        let path = variables("PATH").unwrap_or_default();
        let store = party.store.clone();
        Ok(Self { client, store, party, clock, prices: Kept(prices), path })
    }

    /// A machine by its name, in whatever zone it is; the oldest, should there be two.
    async fn find(&self, attempt: &AttemptId) -> Result<Option<Value>, Refusal> {
        Ok(self.named(attempt).await?.into_iter().next())
    }

    async fn named(&self, attempt: &AttemptId) -> Result<Vec<Value>, Refusal> {
        // A group's machine has a name of its own, and is that of every attempt.
        let mut found = self.of_job(&attempt.job).await?;
        found.retain(|machine| machine["name"] == attempt.machine_name() || is_grouped(machine));
        found.sort_by_cached_key(|machine| (created(machine), machine["id"].to_string()));
        Ok(found)
    }

    /// The job's machines, less those of an equal job in another store.
    async fn of_job(&self, job: &JobId) -> Result<Vec<Value>, Refusal> {
        let mark = self.mark().await?;
        let mut found = self.client.everywhere("instances", &equal(&format!("labels.{}", body::JOB), job.as_str())).await?;
        found.retain(|machine| is_of(&machine["labels"], job, &mark));
        Ok(found)
    }

    async fn mark(&self) -> Result<Mark<'_>, Refusal> {
        self.party.mark().await.map_err(|error| Refusal::lost("tell whose machines are meant", &unknown_store(error)))
    }

    /// Whether the attempt's machine is there. Something else that only has its name, in whatever zone, is a conflict.
    async fn is_there(&self, attempt: &AttemptId) -> Result<bool> {
        let (mark, name) = (self.mark().await?, attempt.machine_name());
        let mut found = self.client.everywhere("instances", &equal("name", &name)).await?;
        found.retain(|machine| machine["name"] == name.as_str());
        let ours = |machine: &Value| is_of(&machine["labels"], &attempt.job, &mark);
        match found.iter().find(|machine| !ours(machine)) {
            Some(stranger) if !found.iter().any(ours) => {
                let what = format!("a machine {name} in {}", last(&stranger["zone"]));
                Err(namesake(&what, &mark.belongs(said(&stranger["labels"], None))))
            }
            _ => Ok(!found.is_empty()),
        }
    }

    /// Tries the zones in order, each once. Answers what was refused.
    async fn make(&self, attempt: &AttemptId, plan: &Plan, image: &TrainerImage) -> Result<Vec<String>> {
        let mark = self.mark().await?;
        let mut refused: Vec<(String, Refusal)> = Vec::new();
        let wanted = wanted(plan)?;
        let ranked = if wanted.rank_zones { Some(advice::ranked(&self.client, wanted).await.0) } else { None };
        for zone in ranked.as_ref().unwrap_or(&wanted.zones) {
            let exhausted = |(before, refusal): &(String, Refusal)| refusal.is_quota() && region(before) == region(zone);
            if refused.iter().any(exhausted) {
                continue;
            }
            let life = plan.lifetime();
            let mut body = body::instance(&self.client, attempt, wanted, image, zone, life, self.clock.now());
            body::sign(&mut body, &mark);
            let insert = Call::change(Method::POST, format!("zones/{zone}/instances"), Some(body));
            match self.client.change(insert).await {
                Ok(()) => {
                    self.keep_the_oldest(attempt).await?;
                    return Ok(told(&refused));
                }
                // Another client was faster, or this one before its answer was lost.
                Err(refusal) if refusal.status == Some(409) => {
                    if self.is_there(attempt).await? {
                        self.keep_the_oldest(attempt).await?;
                        return Ok(told(&refused));
                    }
                    let why = format!("{}, and it does not exist", refusal.message.trim_end_matches('.'));
                    return Err(ProviderError::new(Class::Network, why));
                }
                Err(refusal) if refusal.is_global_quota() => return Err(refusal.into()),
                Err(refusal) if refusal.is_stock_out() || refusal.is_quota() || refusal.is_elsewhere() => {
                    refused.push((zone.clone(), refusal));
                }
                Err(refusal) => return Err(ProviderError::from(refusal)),
            }
        }
        Err(nowhere(&refused))
    }

    /// Two clients that made a machine each, in different zones, agree on which one stays.
    async fn keep_the_oldest(&self, attempt: &AttemptId) -> Result<(), Refusal> {
        for superfluous in self.named(attempt).await?.iter().skip(1) {
            self.delete(superfluous).await?;
        }
        Ok(())
    }

    async fn delete(&self, machine: &Value) -> Result<(), Refusal> {
        self.remove(format!("zones/{}/instances/{}", last(&machine["zone"]), last(&machine["name"]))).await
    }

    async fn remove(&self, path: String) -> Result<(), Refusal> {
        match self.client.change(Call::change(Method::DELETE, path, None)).await {
            Err(refusal) if refusal.is_absent() => Ok(()),
            done => done,
        }
    }

    /// The group that will replace the job's machine, where there is one.
    async fn mending(&self, job: &JobId) -> Result<Option<Value>, Refusal> {
        Ok(self.group(job).await?.filter(group::mends))
    }

    /// Why a machine is switched off.
    async fn last_words(&self, machine: &Value) -> Result<Sighting, Refusal> {
        if self.preemptions().await?.iter().any(|operation| operation["targetId"] == machine["id"]) {
            return Ok(Sighting::Dead { why: "preempted".to_owned() });
        }
        let console = self.serial_port(machine, 0).await?.unwrap_or_default();
        let said = console.text.lines().filter_map(|line| line.split_once("ftctl: ").map(|(_, said)| said.trim())).next_back();
        Ok(match said.map(|said| (said, said.strip_prefix("FAILED: "))) {
            Some((_, Some(why))) => Sighting::Unfit { why: why.to_owned() },
            Some((said, None)) => Sighting::Dead { why: said.to_owned() },
            None => Sighting::Dead { why: "the machine is switched off".to_owned() },
        })
    }

    /// Whether the startup script has spoken: where guest attributes are forbidden, only its console tells.
    async fn has_begun(&self, machine: &Value) -> Result<bool, Refusal> {
        Ok(self.serial_port(machine, 0).await?.is_some_and(|console| console.text.contains("ftctl: ")))
    }

    /// `None` when the machine has gone meanwhile.
    async fn serial_port(&self, machine: &Value, start: u64) -> Result<Option<Console>, Refusal> {
        let path = format!("zones/{}/instances/{}/serialPort", last(&machine["zone"]), last(&machine["name"]));
        let call = Call::get(path).query("port", "1").query("start", start.to_string());
        let serial = match self.client.call(call).await {
            Err(refusal) if refusal.is_absent() => return Ok(None),
            serial => serial?,
        };
        Ok(Some(machine::console(&serial, start)))
    }

    /// The startup script's messages, in its namespace.
    async fn guest_attributes(&self, machine: &Value) -> Result<BTreeMap<String, String>, Refusal> {
        let path = format!("zones/{}/instances/{}/getGuestAttributes", last(&machine["zone"]), last(&machine["name"]));
        let told = match self.client.call(Call::get(path).query("queryPath", "ftctl/")).await {
            Err(refusal) if refusal.is_absent() => return Ok(BTreeMap::new()),
            told => told?,
        };
        let items = told["queryValue"]["items"].as_array().cloned().unwrap_or_default();
        let pair = |item: &Value| Some((item["key"].as_str()?.to_owned(), item["value"].as_str()?.trim().to_owned()));
        Ok(items.iter().filter_map(pair).collect())
    }

    /// The metadata that carries the agent's order.
    async fn orders(&self, order: &RunOrder) -> Result<[(&'static str, String); 2]> {
        let expires = after(order.deadline.unwrap_or(self.clock.now()), FAREWELL);
        let variables = self.store.agent_environment(&order.job, expires).await.map_err(ProviderError::unsigned)?;
        let variables = variables.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?.into())));
        let environment = Value::Object(variables.collect()).to_string();
        let text = serde_json::to_string(order).map_err(|error| ProviderError::new(Class::Internal, error.to_string()))?;
        Ok([(body::ENVIRONMENT, environment), (body::ORDER, text)])
    }
}

#[async_trait]
impl Account for Gce {
    fn name(&self) -> Option<(String, &'static str)> {
        let project = Some(&self.client.project).filter(|project| !project.is_empty());
        project.map(|project| (format!("the project {project}"), "set GOOGLE_CLOUD_PROJECT"))
    }

    async fn check(&self) -> Vec<Finding> {
        quota::check(&self.client).await
    }

    async fn answers(&self) -> Result<()> {
        self.client.signed_in().await
    }

    async fn room(&self, plan: &Plan) -> Vec<Finding> {
        let Ok(wanted) = wanted(plan) else { return Vec::new() };
        let mut findings = quota::room(&self.client, wanted).await;
        findings.push(boot::check(&self.client, wanted).await);
        if wanted.rank_zones {
            findings.push(advice::ranked(&self.client, wanted).await.1);
        }
        findings
    }

    async fn price(&self, plan: &Plan) -> Result<Price> {
        let wanted = wanted(plan)?;
        possible::check(plan, wanted)?;
        Ok(self.prices.price(&self.client, wanted, self.clock.now()).await)
    }

    async fn tidy(&self, only_look: bool) -> Result<Vec<String>> {
        Ok(self.tidy_templates(only_look).await?)
    }
}

#[async_trait]
impl Provider for Gce {
    fn capabilities(&self) -> Capabilities {
        Capabilities { bills: true, signs: true, simulated: line::is_near(self.client.endpoint()), commands: true }
    }

    fn admit_image(&self, plan: &Plan) -> Result<()> {
        named_image(plan).map(drop)
    }

    fn admit_store(&self, store: &str) -> Result<()> {
        line::admit_store("a machine of Compute Engine", &self.client.endpoint, store)
    }

    async fn image(&self, plan: &Plan, _: Option<&TrainerImage>, _: &dyn Report) -> Result<TrainerImage> {
        Ok(TrainerImage::Image { reference: named_image(plan)?.to_owned() })
    }

    async fn provision(&self, attempt: &AttemptId, plan: &Plan, image: &TrainerImage) -> Result<Vec<String>> {
        let grouped = wanted(plan)?.recovery == Recovery::Group;
        // A group's machine has a name that the cloud gives it. Another may have lived without an observer, because its answer was
        // lost, or ftctl ended: it has cost its time, so the attempt is over, and the next has what is left.
        let was_made = if grouped {
            self.find(attempt).await?.is_some()
        } else {
            self.is_there(attempt).await? || self.has_lived(attempt).await?
        };
        if was_made {
            return Ok(Vec::new());
        }
        if grouped {
            return self.make_group(attempt, plan, image).await.map(|()| Vec::new());
        }
        self.make(attempt, plan, image).await
    }

    async fn launch(&self, order: &RunOrder) -> Result<()> {
        let attempt = AttemptId::new(&order.job, order.attempt);
        let gone = || ProviderError::new(Class::Network, format!("there is no machine {} any more", attempt.machine_name()));
        if order.last_attempt.is_some() {
            return self.begin_group(&order.job, &self.orders(order).await?).await;
        }
        loop {
            let machine = self.find(&attempt).await?.ok_or_else(gone)?;
            if !is_on(&machine) || metadata(&machine, body::ORDER).is_some() {
                return Ok(());
            }
            let mut items = machine["metadata"]["items"].as_array().cloned().unwrap_or_default();
            items.extend(self.orders(order).await?.map(|(key, value)| json!({ "key": key, "value": value })));
            match self.client.set_metadata(&machine, &items).await {
                // Another client wrote meanwhile: another look tells what.
                Err(refusal) if refusal.status == Some(412) => {}
                Err(refusal) if refusal.is_absent() => return Err(gone()),
                done => return Ok(done?),
            }
        }
    }

    async fn heard(&self, attempt: &AttemptId) -> Result<()> {
        loop {
            // A group makes its next machine with the same.
            let machine = self.find(attempt).await?.filter(|machine| !is_grouped(machine));
            let Some(machine) = machine.filter(|machine| metadata(machine, body::ENVIRONMENT).is_some()) else { return Ok(()) };
            let mut items = machine["metadata"]["items"].as_array().cloned().unwrap_or_default();
            items.retain(|item| item["key"] != body::ENVIRONMENT);
            match self.client.set_metadata(&machine, &items).await {
                Err(refusal) if refusal.status == Some(412) => {}
                Err(refusal) if refusal.is_absent() => return Ok(()),
                done => return Ok(done?),
            }
        }
    }

    async fn observe(&self, attempt: &AttemptId) -> Result<Sighting> {
        let machine = self.find(attempt).await?;
        if let Some(machine) = machine.as_ref().filter(|machine| is_on(machine)) {
            return Ok(Sighting::Alive { agent: metadata(machine, body::ORDER).is_some() });
        }
        if let Some(group) = self.mending(&attempt.job).await? {
            if group::metadata(&group, body::ORDER).is_none() {
                return Ok(Sighting::Alive { agent: false });
            }
            // A machine is being made, unless the group says why there is none.
            let want = self.want_of_machine(&group).await;
            let since = machine::created(&group);
            return Ok(want.map_or(Sighting::Alive { agent: true }, |why| Sighting::Queued { since, why }));
        }
        Ok(match machine {
            Some(machine) => self.last_words(&machine).await?,
            None if self.was_preempted(attempt).await? => Sighting::Dead { why: "preempted".to_owned() },
            None => Sighting::Gone,
        })
    }

    async fn began(&self, attempt: &AttemptId) -> Result<Option<Timestamp>> {
        Ok(self.beginning_of(attempt).await?)
    }

    async fn ended(&self, attempt: &AttemptId) -> Result<Option<Timestamp>> {
        if let Some(machine) = self.find(attempt).await? {
            return Ok(machine::stopped(&machine));
        }
        Ok(self.end_of(attempt).await?)
    }

    async fn signs(&self, attempt: &AttemptId) -> Result<Signs> {
        let Some(machine) = self.find(attempt).await?.filter(is_on) else {
            return Ok(match self.mending(&attempt.job).await? {
                Some(group) => {
                    let why = self.want_of_machine(&group).await.map(|why| format!(": {why}")).unwrap_or_default();
                    Signs::Busy { at: format!("waiting for its group to make it{why}") }
                }
                None => Signs::Absent,
            });
        };
        let told = self.guest_attributes(&machine).await?;
        if let Some(why) = told.get("failure") {
            return Ok(Signs::Unfit { why: why.clone() });
        }
        let started = || machine["lastStartTimestamp"].as_str()?.parse().ok();
        let beat = told.get("beat").and_then(|date| http_date(date));
        let (Some(heard), Some(now)) = (beat.or_else(started), self.client.cloud_time()) else {
            return Ok(Signs::Busy { at: "starting".to_owned() });
        };
        let lasting = Duration::try_from(now.duration_since(heard)).unwrap_or_default();
        if lasting > SILENCE && beat.is_none() && self.has_begun(&machine).await? {
            return Ok(Signs::Busy { at: "running its startup script, which may not set guest attributes".to_owned() });
        }
        if lasting > SILENCE {
            return Ok(silent(&attempt.machine_name(), lasting, beat.is_some()));
        }
        Ok(Signs::Busy { at: told.get("phase").cloned().unwrap_or_else(|| "booting".to_owned()) })
    }

    async fn console(&self, attempt: &AttemptId, start: u64) -> Result<Option<Console>> {
        match self.find(attempt).await? {
            Some(machine) => Ok(self.serial_port(&machine, start).await?),
            None => Ok(None),
        }
    }

    async fn preempt(&self, attempt: &AttemptId) -> Result<()> {
        let name = attempt.machine_name();
        let absent = || ProviderError::new(Class::Invalid, format!("there is no machine {name} to preempt"));
        let machine = self.find(attempt).await?.ok_or_else(absent)?;
        let path = format!("zones/{}/instances/{}/simulateMaintenanceEvent", last(&machine["zone"]), last(&machine["name"]));
        self.client.change(Call::change(Method::POST, path, None)).await?;
        let begun = Instant::now();
        let is_left = |now: &Value| now["id"] == machine["id"] && now["status"] != "TERMINATED";
        while self.find(attempt).await?.is_some_and(|now| is_left(&now)) {
            if begun.elapsed() > END {
                return Err(ProviderError::new(
                    Class::Network,
                    format!("{name} is still there {} s after its preemption", END.as_secs()),
                ));
            }
            sleep(LOOK).await;
        }
        Ok(())
    }

    async fn destroy(&self, job: &JobId) -> Result<()> {
        let begun = Instant::now();
        // First, or it would replace them.
        self.delete_group(job).await.map_err(|refusal| owing(refusal, &[group::name(job)]))?;
        loop {
            let machines = self.of_job(job).await.map_err(|refusal| owing(refusal, &[]))?;
            if machines.is_empty() {
                self.delete_template(job).await;
                return Ok(());
            }
            // A group that may not be seen would replace them.
            if machines.iter().any(is_grouped) {
                self.client.everywhere(group::GROUPS, "").await.map_err(|refusal| owing(refusal, &[group::name(job)]))?;
            }
            let names: Vec<String> = machines.iter().map(|machine| last(&machine["name"]).to_owned()).collect();
            if begun.elapsed() > END {
                let message = format!("deleted, and still there after {} s: {}", END.as_secs(), names.join(", "));
                return Err(ProviderError::new(Class::Network, message));
            }
            for machine in &machines {
                self.delete(machine).await.map_err(|refusal| owing(refusal, &names))?;
            }
        }
    }

    async fn list(&self) -> Result<Vec<Resource>> {
        let machines = self.client.everywhere("instances", &format!("labels.{}:*", body::JOB)).await?;
        let (mark, prices) = (self.mark().await?, self.prices.list(&self.client));
        let shown = |machine| machine::resource(machine, &mark, prices.as_ref());
        let mut found: Vec<Resource> = machines.iter().filter_map(shown).collect();
        found.extend(self.groups("").await?.iter().filter_map(|group| group::resource(group, &mark)));
        found.sort_by(|a, b| a.attempt.cmp(&b.attempt));
        Ok(found)
    }

    /// That of its last answer.
    async fn now(&self) -> Option<Timestamp> {
        self.client.cloud_time()
    }

    async fn session(&self, attempt: &AttemptId, command: &[String], terminal: bool) -> Result<Session> {
        let gcloud =
            which::which_in_global("gcloud", Some(&self.path)).ok().and_then(|mut found| found.next()).ok_or_else(|| {
                ProviderError::new(Class::Invalid, "machines of Compute Engine are reached with gcloud, and there is none in PATH")
                    .fix("install it: https://cloud.google.com/sdk/docs/install; then `gcloud auth login`")
            })?;
        let absent = || ProviderError::new(Class::Invalid, format!("there is no machine {} that runs", attempt.machine_name()));
        let machine = self.find(attempt).await?.filter(|machine| machine["status"] == "RUNNING").ok_or_else(absent)?;
        Ok(Session::Program(ssh::session(gcloud, &self.client.project, &machine, command, terminal)))
    }
}

fn wanted(plan: &Plan) -> Result<&GcePlan> {
    if let Compute::Gce(gce) = &*plan.compute { Ok(gce) } else { Err(ProviderError::misplaced(plan)) }
}

/// A machine that gave no sign of life for `lasting`; `ever`: it gave one before.
fn silent(machine: &str, lasting: Duration, ever: bool) -> Signs {
    let seconds = lasting.as_secs();
    if ever {
        let what = format!("{machine} has power and has given no sign of life for {seconds} s");
        return if lasting > HANGS { Signs::Hangs { what } } else { Signs::Silent { what } };
    }
    let what = format!("{machine} has power for {seconds} s, and its startup script has given no sign of life");
    if lasting > NEVER_BEGUN {
        return Signs::Unfit { why: format!("{what}: does its boot image run startup scripts?") };
    }
    Signs::Silent { what }
}

/// The filter for resources that have this value in a field.
fn equal(field: &str, value: &str) -> String {
    format!("{field} = {}", json!(value))
}

/// A deletion that was refused leaves what it was about.
fn owing(refusal: Refusal, names: &[String]) -> ProviderError {
    let error = ProviderError::from(refusal);
    let message = format!(
        "cannot delete {}: {}",
        if names.is_empty() { "the job's machines".to_owned() } else { names.join(", ") },
        error.message
    );
    ProviderError { message, ..error }
}

/// No zone had a machine: each with its reason.
fn nowhere(refused: &[(String, Refusal)]) -> ProviderError {
    let may_have_one: Vec<&Refusal> =
        refused.iter().map(|(_, refusal)| refusal).filter(|refusal| !refusal.is_elsewhere()).collect();
    let class = match may_have_one.as_slice() {
        [] => Class::Invalid,
        refusals if refusals.iter().all(|refusal| refusal.is_quota()) => Class::Quota,
        _ => Class::Capacity,
    };
    let error = ProviderError::new(class, format!("no zone has such a machine now: {}", told(refused).join("; ")));
    match class {
        Class::Invalid => error.fix("name zones that have it in compute.gce.zones"),
        Class::Quota => error.fix("ask for more at https://console.cloud.google.com/iam-admin/quotas"),
        _ => error.fix("wait, or name more zones in compute.gce.zones"),
    }
}

fn told(refused: &[(String, Refusal)]) -> Vec<String> {
    refused.iter().map(|(zone, refusal)| format!("{zone}: {}", decoded(refusal))).collect()
}

fn decoded(refusal: &Refusal) -> &str {
    if refusal.is_stock_out() { "out of stock" } else { refusal.message.trim_end_matches('.') }
}
