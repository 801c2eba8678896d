//! The body of the one request that costs money.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    super::whose::Mark,
    client::{Client, last},
};
use crate::{
    catalogue::region,
    job::{gce::GcePlan, id::AttemptId, order::TrainerImage},
};

/// The machine's startup script.
const STARTUP: &str = include_str!("../../../templates/gce/startup.sh");

/// Whatever its attempt is, a machine of ours has this label; its value is the job.
pub const JOB: &str = "ftctl-job";
pub const ATTEMPT: &str = "ftctl-attempt";
/// Seconds of life, and the end of it in seconds since 1970: the cloud's own clock tells when they began.
pub const LIFETIME: &str = "ftctl-lifetime";
pub const EXPIRES: &str = "ftctl-expires";
/// Digests of the machine's owner, and of the store that has its job.
pub const OWNER: &str = "ftctl-owner";
pub const STORE: &str = "ftctl-store";
/// Present on machines that a group makes.
pub const RECOVERY: &str = "ftctl-recovery";
/// Metadata key: the URL of that group.
const GROUP: &str = "ftctl-group";
/// Metadata key: present when the agent was told to start.
pub const ORDER: &str = "ftctl-order";
/// Metadata key: the agent's credentials for its store, as one JSON object; there until the agent was heard of.
pub const ENVIRONMENT: &str = "ftctl-environment";

/// Compute Engine ends a machine within half a minute of its time, and never sooner than half a minute after its start.
pub const SLACK: Duration = Duration::from_secs(30);

/// All that an account whose roles say what it may is bound to.
const EVERYTHING: &str = "https://www.googleapis.com/auth/cloud-platform";
/// The scope that Artifact Registry and the registry before it ask of a client that pulls.
const READ_IMAGES: &str = "https://www.googleapis.com/auth/devstorage.read_only";

/// The body that `gcloud compute instances create` sends for this machine, less the rights that it has there, with our labels, our
/// startup script, and the cloud's own kill switch after `life`.
pub fn instance(
    client: &Client,
    attempt: &AttemptId,
    plan: &GcePlan,
    image: &TrainerImage,
    zone: &str,
    life: Duration,
    now: Timestamp,
) -> Value {
    let image = if let TrainerImage::Image { reference } = image { reference } else { "" };
    let expires = now.checked_add(life).unwrap_or(Timestamp::MAX).as_second();
    let source = format!("{}/compute/v1/projects/{}", client.endpoint, plan.boot_source());
    let mut body = json!({
        "name": attempt.machine_name(),
        "canIpForward": false,
        "deletionProtection": false,
        "machineType": client.url(&format!("zones/{zone}/machineTypes/{}", plan.machine_type())),
        "disks": [{
            "autoDelete": true,
            "boot": true,
            "mode": "READ_WRITE",
            "type": "PERSISTENT",
            "initializeParams": { "diskSizeGb": plan.disk_gb.to_string(), "sourceImage": source },
        }],
        "networkInterfaces": [interface(client, plan, zone)],
        "scheduling": scheduling(plan, life),
        "labels": {
            JOB: attempt.job.as_str(),
            ATTEMPT: attempt.attempt.to_string(),
            LIFETIME: life.as_secs().to_string(),
            EXPIRES: expires.to_string(),
        },
        "metadata": { "items": [
            { "key": "install-nvidia-driver", "value": "True" },
            { "key": "enable-guest-attributes", "value": "TRUE" },
            { "key": "enable-oslogin", "value": "TRUE" },
            { "key": "ftctl-cards", "value": plan.accelerators.to_string() },
            { "key": "ftctl-image", "value": image },
            { "key": "startup-script", "value": STARTUP },
        ] },
    });
    if let Some(account) = service_account(plan, image) {
        body["serviceAccounts"] = json!([account]);
    }
    add_accelerators(&mut body, client, plan, zone);
    body
}

/// The interface to a network of the project, or of the one that shares its networks with it. A subnetwork names its own network.
fn interface(client: &Client, plan: &GcePlan, zone: &str) -> Value {
    let project = plan.host_project.as_ref().map(|project| format!("{}/compute/v1/projects/{project}", client.endpoint));
    let url = |path: String| project.as_ref().map_or_else(|| client.url(&path), |project| format!("{project}/{path}"));
    let mut interface = match &plan.subnetwork {
        Some(name) => json!({ "subnetwork": url(format!("regions/{}/subnetworks/{name}", region(zone))) }),
        None => json!({ "network": url(format!("global/networks/{}", plan.network)) }),
    };
    if plan.external_address {
        interface["accessConfigs"] = json!([{ "name": "external-nat", "type": "ONE_TO_ONE_NAT" }]);
    }
    interface
}

/// Says whose the machine is, or the machines of a template are.
pub fn sign(body: &mut Value, mark: &Mark<'_>) {
    (body["labels"][OWNER], body["labels"][STORE]) = (json!(mark.owner), json!(mark.store));
}

/// The template of a group's machines: the body of an insert without what belongs to one machine. All of them end at the same time,
/// however often one is replaced, and after it none can be made. So a group has the ceiling that one machine has.
pub fn template(
    client: &Client,
    attempt: &AttemptId,
    plan: &GcePlan,
    image: &TrainerImage,
    life: Duration,
    now: Timestamp,
    group: &str,
) -> Value {
    let mut properties = instance(client, attempt, plan, image, &plan.zones[0], life, now);
    for resource in ["name", "deletionProtection"] {
        properties.as_object_mut().map(|properties| properties.remove(resource));
    }
    // A template is of no zone: kinds go by their names.
    let kind = |link: &Value| json!(last(link));
    properties["machineType"] = kind(&properties["machineType"]);
    for card in properties.get_mut("guestAccelerators").and_then(Value::as_array_mut).into_iter().flatten() {
        card["acceleratorType"] = kind(&card["acceleratorType"]);
    }
    let disk = &mut properties["disks"][0]["initializeParams"];
    if disk["diskType"].is_string() {
        disk["diskType"] = kind(&disk["diskType"]);
    }
    properties["labels"][RECOVERY] = json!("group");
    if let Some(items) = properties["metadata"]["items"].as_array_mut() {
        items.push(json!({ "key": GROUP, "value": group }));
    }
    let ends = now.checked_add(life.saturating_sub(SLACK).max(SLACK)).unwrap_or(Timestamp::MAX);
    let scheduling = properties["scheduling"].as_object_mut();
    scheduling.map(|scheduling| scheduling.remove("maxRunDuration"));
    properties["scheduling"]["terminationTime"] = json!(format!("{ends:.0}"));
    properties
}

/// The one that the job names. Without that none, unless the image is in Google's registry: then the project's own account, for
/// reading images.
fn service_account(plan: &GcePlan, image: &str) -> Option<Value> {
    match &plan.service_account {
        Some(email) => Some(json!({ "email": email, "scopes": [EVERYTHING] })),
        None => is_googles(image).then(|| json!({ "email": "default", "scopes": [READ_IMAGES] })),
    }
}

/// Whether the image is in a registry of Google Cloud; the startup script asks the same before it signs in.
fn is_googles(image: &str) -> bool {
    let registry = image.split_once('/').map_or("", |(registry, _)| registry);
    registry == "gcr.io" || [".gcr.io", "-docker.pkg.dev"].iter().any(|end| registry.ends_with(end))
}

/// Adds them to a custom machine. One that comes with them is content with neither the disk nor, some, the network card that others
/// get.
fn add_accelerators(body: &mut Value, client: &Client, plan: &GcePlan, zone: &str) {
    let Some(card) = plan.card() else { return };
    if plan.machine_type.is_none() {
        body["guestAccelerators"] = json!([{
            "acceleratorCount": plan.accelerators,
            "acceleratorType": client.url(&format!("zones/{zone}/acceleratorTypes/{}", card.kind)),
        }]);
        return;
    }
    let disk = client.url(&format!("zones/{zone}/diskTypes/{}", plan.machine().disk_type()));
    body["disks"][0]["initializeParams"]["diskType"] = json!(disk);
    if let Some(network_card) = &card.network_card {
        body["networkInterfaces"][0]["nicType"] = json!(network_card);
    }
}

fn scheduling(plan: &GcePlan, life: Duration) -> Value {
    let mut scheduling = json!({ "automaticRestart": false, "onHostMaintenance": "TERMINATE" });
    if plan.legacy_preemptible {
        scheduling["preemptible"] = json!(true);
        return scheduling;
    }
    scheduling["provisioningModel"] = json!(if plan.spot { "SPOT" } else { "STANDARD" });
    if let Some(notice) = plan.preemption_notice {
        scheduling["preemptionNoticeDuration"] = json!({ "seconds": notice.0.as_secs().to_string() });
    }
    scheduling["instanceTerminationAction"] = json!("DELETE");
    scheduling["maxRunDuration"] = json!({ "seconds": life.saturating_sub(SLACK).max(SLACK).as_secs().to_string() });
    scheduling
}
