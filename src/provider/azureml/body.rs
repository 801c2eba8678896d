//! The bodies of requests that make something.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use reqwest::Url;
use serde_json::{Value, json};

use super::super::{Class, ProviderError, whose::Mark};
use crate::{
    job::{
        azureml::{AzuremlPlan, IDLE, Identity, Placement},
        digest::Digest,
        id::AttemptId,
        wording::shell_word,
    },
    store::azure,
};

/// Present on everything of ours.
pub const OURS: &str = "ftctl";
/// A job of ours has this tag, whatever its attempt is. On a cluster it is the job that it was made for first.
pub const JOB: &str = "ftctl-job";
pub const ATTEMPT: &str = "ftctl-attempt";
/// Seconds since 1970, at the latest.
pub const EXPIRES: &str = "ftctl-expires";
/// Digests of the owner, and of the store that has the job.
pub const OWNER: &str = "ftctl-owner";
pub const STORE: &str = "ftctl-store";

/// The environment whose versions are images.
pub const ENVIRONMENT: &str = "ftctl";
/// Several processes of a node exchange gradients through it; the service's own is 2g.
const SHARED_MEMORY: &str = "8g";

/// The name of ftctl's own cluster for a plan: the same for all jobs of an owner and a store that need the same.
pub fn cluster_name(plan: &AzuremlPlan, mark: &Mark<'_>) -> String {
    let AzuremlPlan { size, identity, public_address, .. } = plan;
    let needs = [size, plan.priority(), &identity.to_string(), &public_address.to_string(), &mark.owner, &mark.store].join("\0");
    // The last word of a cluster's name may be no number.
    format!("ftctl-c{}", &Digest::of(needs.as_bytes()).as_str()[..15])
}

/// A cluster with at most `most` nodes.
pub fn cluster(plan: &AzuremlPlan, region: &str, most: u32, attempt: &AttemptId, mark: &Mark<'_>) -> Value {
    let identity = match &plan.identity {
        Identity::Assigned(id) => json!({ "type": "UserAssigned", "userAssignedIdentities": { id.as_str(): {} } }),
        // The cluster pulls the image with it, whatever identity the job has.
        Identity::Managed | Identity::User | Identity::None => json!({ "type": "SystemAssigned" }),
    };
    json!({
        "location": region,
        "identity": identity,
        "tags": tags(attempt, mark),
        "properties": {
            "computeType": "AmlCompute",
            "disableLocalAuth": true,
            "properties": {
                "vmSize": plan.size,
                "vmPriority": plan.priority(),
                "scaleSettings": { "minNodeCount": 0, "maxNodeCount": most, "nodeIdleTimeBeforeScaleDown": seconds(IDLE) },
                "remoteLoginPortPublicAccess": "Disabled",
                "enableNodePublicIp": plan.public_address,
                "osType": "Linux",
            },
        },
    })
}

/// The version of the environment that an image is: another for each registry that has it. `None` for one that is not given by its
/// digest.
pub fn version(image: &str) -> Option<String> {
    image.rsplit_once("@sha256:").and_then(|(_, digest)| Digest::parse(digest))?;
    Some(Digest::of(image.as_bytes()).as_str()[..32].to_owned())
}

/// A version of an environment.
pub fn environment(image: &str) -> Value {
    json!({ "properties": { "image": image } })
}

/// An attempt, as a command job is told about it.
pub struct Command<'c> {
    pub attempt: &'c AttemptId,
    pub plan: &'c AzuremlPlan,
    /// The address of the store, as the agent is told it.
    pub store: &'c str,
    /// The digest of what the order in the store asks for.
    pub asked: Digest,
    /// Resource ids; a serverless job has no cluster.
    pub environment: String,
    pub cluster: Option<String>,
    /// Everybody in the workspace can read them, for ever.
    pub variables: BTreeMap<String, String>,
    /// How long it may work.
    pub time: Duration,
    /// When it is over at the latest.
    pub expires: Timestamp,
    pub nodes: u32,
}

impl Command<'_> {
    /// The command job: an agent on each of its nodes, which starts the node's own processes.
    pub fn body(&self, mark: &Mark<'_>) -> Value {
        let Self { attempt, plan, .. } = self;
        let number = attempt.attempt.to_string();
        let of_job = ["--job", attempt.job.as_str(), "--attempt", &number, "--asked", self.asked.as_str()];
        let words = [&["ftctl", "agent"], &of_job[..], &["--store", self.store]].concat();
        let command: Vec<String> = words.iter().map(|word| shell_word(word)).collect();
        let mut tags = tags(attempt, mark);
        tags[EXPIRES] = json!(self.expires.as_second().to_string());
        let mut properties = json!({
            "jobType": "Command",
            "displayName": attempt.machine_name(),
            "experimentName": attempt.job.name(),
            "command": command.join(" "),
            "environmentId": self.environment,
            "environmentVariables": self.variables,
            "distribution": { "distributionType": "PyTorch", "processCountPerInstance": 1 },
            "limits": { "jobLimitsType": "Command", "timeout": seconds(self.time) },
            "resources": { "instanceCount": self.nodes, "shmSize": SHARED_MEMORY },
            "tags": tags,
        });
        if let Some(cluster) = &self.cluster {
            properties["computeId"] = json!(cluster);
        }
        if plan.compute == Placement::Serverless {
            properties["resources"]["instanceType"] = json!(plan.size);
            properties["queueSettings"] = json!({ "jobTier": plan.job_tier() });
        }
        if let Some(identity) = identity(&plan.identity) {
            properties["identity"] = identity;
        }
        json!({ "properties": properties })
    }
}

fn identity(identity: &Identity) -> Option<Value> {
    match identity {
        Identity::Managed => Some(json!({ "identityType": "Managed" })),
        Identity::Assigned(id) => Some(json!({ "identityType": "Managed", "resourceId": id })),
        Identity::User => Some(json!({ "identityType": "UserIdentity" })),
        Identity::None => None,
    }
}

/// The variables of a job, among those that its store gives an agent. Where the job signs in, none of them is secret.
pub fn variables(given: Vec<(&'static str, Option<String>)>, identity: &Identity) -> BTreeMap<String, String> {
    let may_be_read = |name: &str| *identity == Identity::None || name == azure::ENDPOINT;
    let variables = given.into_iter().filter(|(name, _)| may_be_read(name));
    variables.filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}

/// Refuses to begin a job without an identity whose agent would have no signature for its store, or one that ends before the job:
/// it would train, and could send nothing of it.
pub fn admit_signature(signature: Option<&str>, until: Timestamp) -> Result<(), ProviderError> {
    let denied = |message: &str, fix: &str| Err(ProviderError::new(Class::Denied, message).fix(fix));
    let Some(signature) = signature else {
        return denied(
            "with identity = \"none\" the job's agent needs a signature for the store, and this sign-in cannot make one",
            "give your sign-in the role Storage Blob Delegator on the store's account, or the job an identity: compute.azureml.identity",
        );
    };
    let signed = Url::parse(&format!("https://store?{signature}")).ok();
    let end = signed.and_then(|url| url.query_pairs().find(|(name, _)| name == "se")?.1.parse::<Timestamp>().ok());
    let Some(end) = end.filter(|end| *end < until) else { return Ok(()) };
    let message = format!("the signature of the job's agent for the store ends at {end:.0}, and the job may last until {until:.0}");
    denied(&message, "lower limits.ttl or limits.max_wait, or give the job an identity: compute.azureml.identity")
}

/// A body as people may see it: a variable of a job can hold a signature.
pub fn shown(body: &Value) -> Value {
    let mut shown = body.clone();
    let variables = shown.pointer_mut("/properties/environmentVariables").and_then(Value::as_object_mut);
    variables.into_iter().flat_map(|variables| variables.values_mut()).for_each(|value| *value = json!("…"));
    shown
}

pub fn tags(attempt: &AttemptId, mark: &Mark<'_>) -> Value {
    json!({
        OURS: "1",
        OWNER: mark.owner,
        STORE: mark.store,
        JOB: attempt.job.as_str(),
        ATTEMPT: attempt.attempt.to_string(),
    })
}

/// A duration of ISO 8601.
fn seconds(time: Duration) -> String {
    format!("PT{}S", time.as_secs())
}

/// The reverse of [`seconds`], for any whole number of seconds, minutes or hours.
pub fn read_seconds(text: &str) -> Option<Duration> {
    let span: jiff::Span = text.parse().ok()?;
    let total = span.total((jiff::Unit::Second, jiff::SpanRelativeTo::days_are_24_hours())).ok()?;
    Duration::try_from_secs_f64(total).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_without_an_identity_has_a_signature_for_its_whole_time() {
        let until = "2026-11-28T12:00:00Z".parse().unwrap();
        let refused = |signature: Option<&str>| admit_signature(signature, until).err().map(|error| (error.class, error.message));
        assert_eq!(refused(Some("sv=1&se=2026-11-28T12%3A00%3A00Z&sig=x")), None);
        let (class, message) = refused(Some("sv=1&se=2026-11-28T11%3A59%3A59Z&sig=x")).unwrap();
        assert!(
            class == Class::Denied && message.contains("ends at 2026-11-28T11:59:59Z") && !message.contains("sig="),
            "{message}"
        );
        assert!(refused(None).unwrap().1.contains("cannot make one"));
    }
}
