//! `recovery = "group"`: a regional managed instance group of one machine. The cloud itself replaces a preempted machine under the
//! same name, without ftctl; its agent begins the next attempt.
//!
//! The order is in the group's configuration, which every machine of the group is made with. A machine whose job is over deletes
//! the group, and itself with it; one that can never do its work tells the group to replace nothing and switches itself off, so
//! that its last words are kept (`templates/gce/startup.sh`). Should both fail, the machine is replaced until the time that its
//! template names.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::{
    super::whose::{Mark, namesake},
    Class, END, Gce, LOOK, ProviderError, Refusal, Resource, Result, body,
    client::{Call, last},
    equal,
    machine::{created, expires, is_of, said},
};
use crate::{
    catalogue::region,
    job::{
        id::{AttemptId, JobId},
        order::{RunOrder, TrainerImage},
        plan::Plan,
        units::Money,
    },
};

pub const GROUPS: &str = "instanceGroupManagers";
const TEMPLATES: &str = "global/instanceTemplates";
const YOUNG: Duration = Duration::from_secs(3_600);

/// The name of a job's group and of its template.
pub fn name(job: &JobId) -> String {
    format!("{job}-g")
}

/// The filter that finds them.
fn of(job: &JobId) -> String {
    equal("name", &name(job))
}

fn path(group: &Value) -> String {
    format!("regions/{}/{GROUPS}/{}", last(&group["region"]), last(&group["name"]))
}

fn of_job(labels: &Value) -> Option<JobId> {
    JobId::parse(labels[body::JOB].as_str()?)
}

/// The labels of its machines, and so its own.
fn labels(group: &Value) -> &Value {
    &group["allInstancesConfig"]["properties"]["labels"]
}

fn order(group: &Value) -> Option<RunOrder> {
    serde_json::from_str(metadata(group, body::ORDER)?).ok()
}

/// Whether a machine that is off, or gone, is replaced.
pub fn mends(group: &Value) -> bool {
    group["instanceLifecyclePolicy"]["defaultActionOnFailure"] != "DO_NOTHING"
}

/// The metadata of its machines beyond the template.
pub fn metadata<'g>(group: &'g Value, key: &str) -> Option<&'g str> {
    group["allInstancesConfig"]["properties"]["metadata"][key].as_str()
}

impl Gce {
    pub(super) async fn group(&self, job: &JobId) -> Result<Option<Value>, Refusal> {
        self.of_this(job, self.groups(&of(job)).await?).await
    }

    /// The job's group among the answers of a list.
    async fn of_this(&self, job: &JobId, groups: Vec<Value>) -> Result<Option<Value>, Refusal> {
        let (mark, name) = (self.mark().await?, name(job));
        Ok(groups.into_iter().find(|group| group["name"] == name.as_str() && is_of(labels(group), job, &mark)))
    }

    /// An account that may not list groups is shown none; to delete a group's machines it has to see the group.
    pub(super) async fn groups(&self, filter: &str) -> Result<Vec<Value>, Refusal> {
        match self.client.everywhere(GROUPS, filter).await {
            Err(refusal) if refusal.is_denied() => Ok(Vec::new()),
            found => found,
        }
    }

    /// Makes the template and the group, or finds them. There is no machine before there is an order for it.
    pub(super) async fn make_group(&self, attempt: &AttemptId, plan: &Plan, image: &TrainerImage) -> Result<()> {
        let wanted = super::wanted(plan)?;
        let (name, region) = (name(&attempt.job), region(&wanted.zones[0]));
        let url = self.client.url(&format!("regions/{region}/{GROUPS}/{name}"));
        let now = self.client.cloud_time().unwrap_or_else(|| self.clock.now());
        let mut properties = body::template(&self.client, attempt, wanted, image, plan.lifetime(), now, &url);
        body::sign(&mut properties, &self.mark().await?);
        let of_machines = properties["labels"].clone();
        if !self.insert(TEMPLATES, json!({ "name": name, "properties": properties })).await? {
            let found = self.templates(&of(&attempt.job)).await?;
            self.only_ours(&attempt.job, "an instance template", found.iter().map(|found| (found, template_labels(found)))).await?;
        }
        let zone = |zone: &String| json!({ "zone": self.client.url(&format!("zones/{zone}")) });
        let group = json!({
            "name": name,
            "baseInstanceName": attempt.job.as_str(),
            "targetSize": 0,
            "instanceTemplate": self.client.url(&format!("{TEMPLATES}/{name}")),
            "distributionPolicy": { "targetShape": "ANY", "zones": wanted.zones.iter().map(zone).collect::<Vec<_>>() },
            "updatePolicy": { "instanceRedistributionType": "NONE" },
            // A machine is taken away because its zone is short of them.
            "instanceLifecyclePolicy": {
                "defaultActionOnFailure": "REPAIR", "forceUpdateOnRepair": "YES", "onRepair": { "allowChangingZone": "YES" },
            },
            "allInstancesConfig": { "properties": { "labels": of_machines } },
        });
        if !self.insert(&format!("regions/{region}/{GROUPS}"), group).await? {
            let found = self.groups(&of(&attempt.job)).await?;
            self.only_ours(&attempt.job, "an instance group", found.iter().map(|found| (found, labels(found)))).await?;
        }
        Ok(())
    }

    /// `false` when there is one of that name already.
    async fn insert(&self, path: &str, body: Value) -> Result<bool> {
        match self.client.change(Call::change(Method::POST, path, Some(body))).await {
            Err(refusal) if refusal.status == Some(409) => Ok(false),
            done => Ok(done.map(|()| true)?),
        }
    }

    /// Refuses a group or template that has the job's name and not its labels.
    async fn only_ours<'v>(&self, job: &JobId, what: &str, found: impl Iterator<Item = (&'v Value, &'v Value)>) -> Result<()> {
        let (mark, name) = (self.mark().await?, name(job));
        let mut strangers = found.filter(|(found, labels)| found["name"] == name.as_str() && !is_of(labels, job, &mark));
        let refused = |(_, labels)| Err(namesake(&format!("{what} {name}"), &mark.belongs(said(labels, None))));
        strangers.next().map_or(Ok(()), refused)
    }

    /// Gives the machines that will be made what the agent is told, and has the first made.
    pub(super) async fn begin_group(&self, job: &JobId, told: &[(&str, String)]) -> Result<()> {
        loop {
            let gone = || ProviderError::new(Class::Network, format!("there is no group {} any more", name(job)));
            let group = self.of_this(job, self.client.everywhere(GROUPS, &of(job)).await?).await?.ok_or_else(gone)?;
            if metadata(&group, body::ORDER).is_some() {
                let resize = Call::change(Method::POST, format!("{}/resize", path(&group)), None).query("size", "1");
                return if group["targetSize"] == 0 { Ok(self.client.change(resize).await?) } else { Ok(()) };
            }
            let metadata: serde_json::Map<String, Value> =
                told.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
            let patch =
                json!({ "fingerprint": group["fingerprint"], "allInstancesConfig": { "properties": { "metadata": metadata } } });
            match self.client.change(Call::change(Method::PATCH, path(&group), Some(patch))).await {
                // Another client wrote meanwhile: another look tells what.
                Err(refusal) if refusal.status == Some(412) => {}
                done => done?,
            }
        }
    }

    /// Why the group has no machine now, if it says.
    pub(super) async fn want_of_machine(&self, group: &Value) -> Option<String> {
        let errors = self.client.call(Call::get(format!("{}/listErrors", path(group)))).await.unwrap_or_default();
        let newest = errors["items"].as_array()?.iter().max_by_key(|error| error["timestamp"].to_string())?;
        newest["error"]["message"].as_str().map(str::to_owned)
    }

    /// Deletes the group and its machines. Another deletion is waited for, above all that by the machine that has done its work.
    pub(super) async fn delete_group(&self, job: &JobId) -> Result<(), Refusal> {
        let begun = Instant::now();
        while let Some(group) = self.group(job).await? {
            match self.remove(path(&group)).await {
                Err(refusal) if !refusal.is_under_way() => return Err(refusal),
                _ if begun.elapsed() > END => return Err(Refusal::lost("delete the group", &"it is still there")),
                _ => sleep(LOOK).await,
            }
        }
        Ok(())
    }

    /// A template costs nothing, and counts against a quota: one that cannot be removed now is found by `prune`.
    pub(super) async fn delete_template(&self, job: &JobId) {
        let (Ok(mark), name) = (self.mark().await, name(job)) else { return };
        let found = self.templates(&of(job)).await.unwrap_or_default().into_iter();
        for template in found.filter(|found| found["name"] == name && is_of(template_labels(found), job, &mark)) {
            let _ = self.remove(template_path(&template)).await;
        }
    }

    /// Templates of jobs whose groups are no more. A young one may belong to a group that is about to be made.
    pub(super) async fn tidy_templates(&self, only_look: bool) -> Result<Vec<String>, Refusal> {
        let (mark, templates) = (self.mark().await?, self.templates("").await?);
        let now = self.client.cloud_time().unwrap_or_else(|| self.clock.now());
        let mut found = Vec::new();
        for template in templates {
            let labels = template_labels(&template);
            let meant = mark.owns(said(labels, None)) && created(&template) + YOUNG < now;
            let Some(job) = of_job(labels).filter(|_| meant) else { continue };
            if self.group(&job).await?.is_none() {
                found.push(format!("instance template {}", last(&template["name"])));
                if !only_look {
                    self.remove(template_path(&template)).await?;
                }
            }
        }
        Ok(found)
    }

    async fn templates(&self, filter: &str) -> Result<Vec<Value>, Refusal> {
        let mut found = Vec::new();
        let pages = self.client.pages(Call::get(TEMPLATES).filter(filter), |answer| {
            found.extend(answer["items"].as_array_mut().map(std::mem::take).unwrap_or_default());
            Ok(())
        });
        match pages.await {
            Err(refusal) if refusal.is_denied() => Ok(Vec::new()),
            done => done.map(|()| found),
        }
    }
}

fn template_labels(template: &Value) -> &Value {
    &template["properties"]["labels"]
}

fn template_path(template: &Value) -> String {
    format!("{TEMPLATES}/{}", last(&template["name"]))
}

/// A group costs nothing by itself, and makes what does.
pub fn resource(group: &Value, mark: &Mark<'_>) -> Option<Resource> {
    let (labels, order) = (labels(group), order(group));
    let job = of_job(labels)?;
    Some(Resource {
        name: group["name"].as_str()?.to_owned(),
        attempt: AttemptId::new(&job, labels[body::ATTEMPT].as_str().and_then(|number| number.parse().ok()).unwrap_or(0)),
        since: created(group),
        expires: expires(labels),
        price_per_hour: Money::ZERO,
        belongs: mark.belongs(said(labels, order.as_ref().map(|order| order.store.as_str()))),
    })
}
