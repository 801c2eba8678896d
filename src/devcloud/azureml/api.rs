//! The requests that are understood, as the service's own description names them.

#![allow(clippy::unnecessary_wraps)] // Some answers are never errors, and all are asked for alike.

use std::{collections::BTreeMap, time::Duration};

use jiff::{SpanRelativeTo, Timestamp, tz::TimeZone};
use serde_json::{Map, Value, json};

use super::{
    super::http::{self, Reply},
    assets,
    cluster::{Cluster, LOW_PRIORITY, Limits, Provisioning},
    history,
    job::{self, Job},
    prices, rules,
    script::QuotaRefusal,
    service::{Kept, Service, error},
    sizes::{SIZES, Size},
    storage, tracking,
};

/// Entries of a list that come at once.
const PAGE: usize = 10;
const PROVIDER: &str = "Microsoft.MachineLearningServices";

/// A request, taken apart.
#[derive(Debug, Clone, Default)]
pub struct Request {
    pub method: String,
    pub path: String,
    pub query: BTreeMap<String, String>,
    /// The header of this name.
    pub range: Option<String>,
    pub body: Value,
    /// The body as it came, where it is a file.
    pub raw: Vec<u8>,
    /// Who asks, where that matters to the answer.
    pub token: String,
}

impl Request {
    pub fn new(heard: &http::Request) -> Self {
        let is_file = heard.path().starts_with(storage::ROOT);
        Self {
            method: heard.method.clone(),
            path: heard.path().to_owned(),
            query: heard.queries(),
            range: heard.header("x-ms-range").or(heard.header("range")).map(str::to_owned),
            body: if is_file { Value::Null } else { serde_json::from_slice(&heard.body).unwrap_or_default() },
            token: heard.header("authorization").and_then(|value| value.strip_prefix("Bearer ")).unwrap_or_default().to_owned(),
            raw: if is_file { heard.body.clone() } else { Vec::new() },
        }
    }

    /// The rule that it breaks. Only Resource Manager has a description.
    pub fn described(&self) -> Result<(), String> {
        if !self.path.starts_with("/subscriptions/") {
            return Ok(());
        }
        rules::described(&self.method, &self.path, &self.query, &self.body)
    }
}

/// An answer that is an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub status: u16,
    pub code: String,
    pub message: String,
}

impl Refusal {
    pub fn new(status: u16, code: &str, message: impl Into<String>) -> Self {
        Self { status, code: code.to_owned(), message: message.into() }
    }

    /// The request is not as it is described.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(400, "UserError", message)
    }

    fn absent(what: &str) -> Self {
        Self::new(404, "ResourceNotFound", format!("The Resource '{what}' was not found."))
    }

    fn no_run(name: &str) -> Self {
        Self::new(404, "UserError", format!("Run {name} not found"))
    }

    pub fn reply(&self) -> Reply {
        Reply::json(self.status, &json!({ "error": error(&self.code, &self.message) }))
    }
}

pub type Answer = Result<Reply, Refusal>;
/// Answers for the names in the path.
pub type Handler = fn(&mut Service, &Request, [&str; 2]) -> Answer;

/// Which call a path means, who answers it, and the names in it.
pub struct Route<'p> {
    pub call: &'static str,
    pub handler: Handler,
    pub names: [&'p str; 2],
}

/// A resource's path below its workspace, or another one in whole.
pub fn route<'p>(method: &str, path: &[&'p str]) -> Option<Route<'p>> {
    let (call, handler, names): (_, Handler, _) = match (method, path) {
        ("GET", ["discovery"]) => ("Discovery_Get", history::discovery, ["", ""]),
        ("GET", ["api", "retail", "prices"]) => ("Prices_List", prices::list, ["", ""]),
        ("PUT", ["_storage", container, ..]) => ("Storage_Put", storage::put, [*container, ""]),
        ("GET", ["_storage", storage::ACCOUNT, storage::ARTIFACTS]) => ("Storage_List", storage::list_logs, ["", ""]),
        ("GET", ["_storage", storage::ACCOUNT, storage::ARTIFACTS, "ExperimentRun", run, ..]) => {
            ("Storage_Get", storage::get_log, [*run, ""])
        }
        ("HEAD", ["_storage", container, ..]) => ("Storage_Head", storage::head, [*container, ""]),
        ("GET", ["codes", name, "versions"]) => ("CodeVersions_List", storage::list_code, [*name, ""]),
        ("GET", ["codes", name, "versions", version]) => ("CodeVersions_Get", storage::get_code, [*name, *version]),
        ("PUT", ["codes", name, "versions", version]) => ("CodeVersions_CreateOrUpdate", storage::put_code, [*name, *version]),
        ("POST", ["codes", name, "versions", version, "startPendingUpload"]) => {
            ("CodeVersions_CreateOrGetStartPendingUpload", storage::begin, [*name, *version])
        }
        ("GET", ["_blob", name, ..]) => ("Logs_Get", history::log, [*name, ""]),
        ("POST", ["history", "rundata"]) => ("RunHistory_GetRunData", history::run_data, ["", ""]),
        ("GET", ["history", "runs", name, "details"]) => ("RunHistory_GetDetails", history::details, [*name, ""]),
        ("GET", ["locations", place, "computeOperationsStatus", id]) => ("Operations_Get", operation, [*place, *id]),
        ("GET", ["locations", place, "usages"]) => ("Usages_List", usages, [*place, ""]),
        ("GET", ["locations", place, "vmSizes"]) => ("VirtualMachineSizes_List", sizes, [*place, ""]),
        ("GET", ["locations", place, "quotas"]) => ("Quotas_List", quotas, [*place, ""]),
        ("GET", []) => ("Workspaces_Get", workspace, ["", ""]),
        ("GET", ["computes"]) => ("Compute_List", clusters, ["", ""]),
        ("GET", ["computes", name]) => ("Compute_Get", cluster, [*name, ""]),
        ("PUT", ["computes", name]) => ("Compute_CreateOrUpdate", put_cluster, [*name, ""]),
        ("PATCH", ["computes", name]) => ("Compute_Update", scale, [*name, ""]),
        ("DELETE", ["computes", name]) => ("Compute_Delete", delete_cluster, [*name, ""]),
        ("POST", ["computes", name, "listNodes"]) => ("Compute_ListNodes", nodes, [*name, ""]),
        ("GET", ["jobs"]) => ("Jobs_List", jobs, ["", ""]),
        ("GET", ["jobs", name]) => ("Jobs_Get", get_job, [*name, ""]),
        ("PUT", ["jobs", name]) => ("Jobs_CreateOrUpdate", put_job, [*name, ""]),
        ("DELETE", ["jobs", name]) => ("Jobs_Delete", delete_job, [*name, ""]),
        ("POST", ["jobs", name, "cancel"]) => ("Jobs_Cancel", cancel, [*name, ""]),
        ("GET", ["data", name, "versions", version]) => ("DataVersions_Get", assets::get_data, [*name, *version]),
        ("PUT", ["data", name, "versions", version]) => ("DataVersions_CreateOrUpdate", assets::put_data, [*name, *version]),
        ("GET", ["models", name, "versions", version]) => ("ModelVersions_Get", assets::get_model, [*name, *version]),
        ("PUT", ["models", name, "versions", version]) => ("ModelVersions_CreateOrUpdate", assets::put_model, [*name, *version]),
        (_, path) if path.starts_with(&tracking::ROOT) => {
            let (call, handler) = tracking::route(method, &path[tracking::ROOT.len()..])?;
            (call, handler, ["", ""])
        }
        ("GET", ["datastores"]) => ("Datastores_List", list_kept, ["datastores", ""]),
        ("GET", ["datastores", name]) => ("Datastores_Get", get_kept, ["datastores", *name]),
        ("PUT", ["datastores", name]) => ("Datastores_CreateOrUpdate", put_kept, ["datastores", *name]),
        ("GET", ["environments", name, "versions", version]) => ("EnvironmentVersions_Get", get_environment, [*name, *version]),
        ("PUT", ["environments", name, "versions", version]) => {
            ("EnvironmentVersions_CreateOrUpdate", put_environment, [*name, *version])
        }
        _ => return None,
    };
    Some(Route { call, handler, names })
}

/// The part of a path that [`route`] knows, if it belongs to this workspace.
pub fn below<'p>(service: &Service, path: &'p str) -> Result<Vec<&'p str>, Refusal> {
    let split = |path: &'p str| path.split('/').filter(|part| !part.is_empty()).collect::<Vec<_>>();
    let parts = split(path);
    // Services of a workspace, beside Resource Manager.
    let beside = parts.first().filter(|first| ["history", "mlflow"].contains(first) && parts.get(1) == Some(&"v1.0")).copied();
    let arm: Vec<&str> = parts.iter().skip(if beside.is_some() { 2 } else { 0 }).copied().collect();
    let here = &service.workspace;
    match arm.as_slice() {
        ["subscriptions", subscription, ..] if !subscription.eq_ignore_ascii_case(&here.subscription) => {
            Err(Refusal::new(404, "SubscriptionNotFound", format!("The subscription '{subscription}' could not be found.")))
        }
        ["subscriptions", _, "providers", PROVIDER, rest @ ..] => Ok(rest.to_vec()),
        ["subscriptions", _, "resourceGroups" | "resourcegroups", group, "providers", PROVIDER, "workspaces", name, rest @ ..] => {
            let known = group.eq_ignore_ascii_case(&here.group) && name.eq_ignore_ascii_case(&here.name);
            if !known || service.script.workspace_deleted {
                let what = format!("{PROVIDER}/workspaces/{name}' under resource group '{group}");
                return Err(Refusal::absent(&what));
            }
            Ok(beside.into_iter().chain(rest.iter().copied()).collect())
        }
        _ => Ok(parts),
    }
}

/// Answers, after a look at the request as a whole.
pub fn perform(service: &mut Service, route: &Route<'_>, request: &Request) -> Reply {
    if let Err(why) = request.described() {
        return Refusal::invalid(why).reply();
    }
    (route.handler)(service, request, route.names).unwrap_or_else(|refusal| refusal.reply())
}

pub fn time(time: Timestamp) -> String {
    time.to_zoned(TimeZone::UTC).strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string()
}

/// A duration of ISO 8601.
pub fn duration(text: &str) -> Option<Duration> {
    let span: jiff::Span = text.parse().ok()?;
    Duration::try_from(span.to_duration(SpanRelativeTo::days_are_24_hours()).ok()?).ok()
}

pub fn system_data(created: Timestamp) -> Value {
    let at = time(created);
    json!({
        "createdAt": at, "createdBy": "u", "createdByType": "User", "lastModifiedAt": at, "lastModifiedBy": "u", "lastModifiedByType": "User",
    })
}

pub fn done(body: &Value) -> Answer {
    Ok(Reply::json(200, body))
}

fn workspace(service: &mut Service, _: &Request, _: [&str; 2]) -> Answer {
    let here = &service.workspace;
    let of = |provider: &str, name: &str| format!("/subscriptions/s/resourceGroups/rg/providers/{provider}/{name}");
    done(&json!({
        "id": here.id(), "name": here.name, "type": format!("{PROVIDER}/workspaces"), "location": here.location,
        "properties": {
            "workspaceId": "00000000-0000-0000-0000-0000000000aa", "friendlyName": "w", "provisioningState": "Succeeded",
            "discoveryUrl": format!("{}/discovery", service.address),
            "storageAccount": of("Microsoft.Storage", "storageAccounts/devstoreaccount1"),
            "keyVault": of("Microsoft.Keyvault", "vaults/kv"),
            "containerRegistry": of("Microsoft.ContainerRegistry", "registries/acr1"),
            "applicationInsights": of("microsoft.insights", "components/ai"),
            "mlFlowTrackingUri": service.tracking(), "publicNetworkAccess": "Enabled", "hbiWorkspace": false,
            "tenantId": super::tokens::TENANT,
        },
        "systemData": system_data(service.now),
        "identity": { "type": "SystemAssigned", "principalId": "p", "tenantId": "t" },
        "sku": { "name": "Basic", "tier": "Basic" },
    }))
}

fn show(service: &Service, cluster: &Cluster) -> Value {
    let id = format!("{}/computes/{}", service.workspace.id(), cluster.name);
    cluster.show(&id, &service.workspace.location, service.target(cluster))
}

/// Where the end of an operation is seen; the real address is about 3.5 kB long.
fn status_link(service: &Service, operation: &str) -> String {
    let signature = "A".repeat(2_900);
    let place = service.workspace.place();
    format!(
        "{}{place}/computeOperationsStatus/{operation}?api-version=2025-12-01&service=new&t=17951777353111356&c=MII{signature}&h=h",
        service.address
    )
}

fn find_cluster<'s>(service: &'s mut Service, name: &str) -> Result<&'s mut Cluster, Refusal> {
    let found = service.clusters.get_mut(name).filter(|cluster| !cluster.serverless);
    found.ok_or_else(|| Refusal::absent(&format!("/computes/{name}")))
}

fn put_cluster(service: &mut Service, request: &Request, [name, _]: [&str; 2]) -> Answer {
    rules::name("compute", name).map_err(Refusal::invalid)?;
    if request.body["properties"]["computeType"] != "AmlCompute" {
        return Err(Refusal::invalid("Only the compute type AmlCompute is simulated."));
    }
    let mut cluster = Cluster::new(name, request.body.clone(), service.now)?;
    if service.clusters.get(name).is_some_and(|known| known.provisioning == Provisioning::Deleting) {
        return Err(Refusal::new(409, "Conflict", format!("The compute '{name}' is being deleted.")));
    }
    let refusal = service.refusal(&cluster, cluster.limits.min.max(1));
    let wanted = service.script.quota_refusal;
    if let Some(error) = refusal.as_ref().filter(|_| wanted == QuotaRefusal::Request) {
        let text = |key: &str| error[key].as_str().unwrap_or_default();
        return Err(Refusal::new(400, text("code"), text("message")));
    }
    let (operation, _) = service.begin(refusal.filter(|_| wanted == QuotaRefusal::Operation));
    let link = status_link(service, &operation);
    let status = match service.clusters.get_mut(name) {
        Some(known) if known.size != cluster.size || known.low_priority != cluster.low_priority => {
            return Err(Refusal::invalid(format!("The VM size and priority of the compute '{name}' cannot be changed.")));
        }
        Some(known) => {
            let before = (std::mem::replace(&mut known.body, cluster.body), std::mem::replace(&mut known.limits, cluster.limits));
            known.operation = operation;
            if known.provisioning == Provisioning::Succeeded {
                (known.provisioning, known.before) = (Provisioning::Updating, Some(before));
            } else if known.provisioning == Provisioning::Failed {
                known.provisioning = Provisioning::Creating;
            }
            200
        }
        None => {
            cluster.operation = operation;
            service.clusters.insert(name.to_owned(), cluster);
            201
        }
    };
    let mut reply = Reply::json(status, &show(service, &service.clusters[name]));
    reply.headers.push(("azure-asyncoperation", link));
    Ok(reply)
}

fn cluster(service: &mut Service, _: &Request, [name, _]: [&str; 2]) -> Answer {
    find_cluster(service, name)?;
    done(&show(service, &service.clusters[name]))
}

fn scale(service: &mut Service, request: &Request, [name, _]: [&str; 2]) -> Answer {
    let settings = &request.body["properties"]["properties"]["scaleSettings"];
    let limits = Limits::read(settings).ok_or_else(|| Refusal::invalid("The scale settings are not a range."))?;
    let cluster = find_cluster(service, name)?;
    cluster.limits = limits;
    cluster.body["properties"]["properties"]["scaleSettings"] = settings.clone();
    done(&show(service, &service.clusters[name]))
}

fn delete_cluster(service: &mut Service, request: &Request, [name, _]: [&str; 2]) -> Answer {
    let cluster = find_cluster(service, name)?;
    if request.query.get("underlyingResourceAction").is_none_or(|action| action != "Delete") {
        return Err(Refusal::invalid("underlyingResourceAction=Delete is required."));
    }
    if cluster.provisioning != Provisioning::Deleting {
        service.delete_cluster(name);
    }
    let link = status_link(service, &service.clusters[name].operation);
    Ok(Reply { status: 202, headers: vec![("azure-asyncoperation", link.clone()), ("location", link)], body: Vec::new() })
}

fn nodes(service: &mut Service, _: &Request, [name, _]: [&str; 2]) -> Answer {
    done(&find_cluster(service, name)?.show_nodes())
}

fn clusters(service: &mut Service, request: &Request, _: [&str; 2]) -> Answer {
    let shown = service.clusters.values().filter(|cluster| !cluster.serverless).map(|cluster| show(service, cluster)).collect();
    done(&page(service, request, shown))
}

/// The entries that come at once, and where the others are.
pub fn page(service: &Service, request: &Request, all: Vec<Value>) -> Value {
    let from: usize = request.query.get("$skip").and_then(|skip| skip.parse().ok()).unwrap_or(0);
    let more = from + PAGE < all.len();
    let value: Vec<Value> = all.into_iter().skip(from).take(PAGE).collect();
    let mut shown = json!({ "value": value });
    let link = reqwest::Url::parse(&format!("{}{}", service.address, request.path));
    if let Some(mut link) = link.ok().filter(|_| more) {
        let kept = request.query.iter().filter(|(name, _)| *name != "$skip");
        link.query_pairs_mut().extend_pairs(kept).append_pair("$skip", &(from + PAGE).to_string());
        shown["nextLink"] = json!(link.as_str());
    }
    shown
}

fn operation(service: &mut Service, _: &Request, [_, id]: [&str; 2]) -> Answer {
    let operation = service.operations.get(id).ok_or_else(|| Refusal::absent(&format!("/computeOperationsStatus/{id}")))?;
    if operation.done > service.now || service.script.endless_operations {
        return done(&json!({ "status": "InProgress" }));
    }
    match &operation.error {
        Some(error) => done(&json!({ "status": "Failed", "error": error })),
        None => done(&json!({ "status": "Succeeded", "percentComplete": 100.0 })),
    }
}

fn find_job<'s>(service: &'s Service, name: &str) -> Result<&'s Job, Refusal> {
    service.jobs.get(name).ok_or_else(|| Refusal::no_run(name))
}

fn show_job(service: &Service, job: &Job) -> Value {
    job.show(&format!("{}/jobs/{}", service.workspace.id(), job.name), &service.tracking())
}

fn get_job(service: &mut Service, _: &Request, [name, _]: [&str; 2]) -> Answer {
    done(&show_job(service, find_job(service, name)?))
}

fn put_job(service: &mut Service, request: &Request, [name, _]: [&str; 2]) -> Answer {
    rules::name("job", name).map_err(Refusal::invalid)?;
    let body = request.body["properties"].as_object().cloned().unwrap_or_default();
    if let Some(known) = service.jobs.get_mut(name) {
        if !job::is_same(&known.body, &body) {
            let why = "A job with this name already exists. If you are trying to submit a new job, use a different name. If you are trying \
                       to update an existing job, only description, displayName, tags, and isArchived can be updated.";
            return Err(Refusal::invalid(why));
        }
        known.body.extend(body.into_iter().filter(|(name, _)| Job::is_open(name)));
        return done(&show_job(service, &service.jobs[name]));
    }
    if body.get("jobType").is_none_or(|kind| kind != "Command") {
        return Err(Refusal::invalid("Only jobs of the type Command are simulated."));
    }
    let environment = body.get("environmentId").and_then(Value::as_str).unwrap_or_default();
    let known =
        environment.strip_prefix(&service.workspace.id()).is_some_and(|id| service.kept.contains_key(id.trim_start_matches('/')));
    if !known {
        return Err(Refusal::invalid(format!("The environment {environment} was not found.")));
    }
    let compute = compute_of(service, name, &body)?;
    let job = Job::new(name, body, compute.name.clone(), service.now)?;
    if job.instances > compute.limits.max {
        let (wanted, most) = (job.instances, compute.limits.max);
        return Err(Refusal::invalid(format!("The job asks for {wanted} nodes, and the compute has at most {most}.")));
    }
    if compute.serverless {
        service.clusters.insert(compute.name.clone(), compute);
    }
    service.jobs.insert(name.to_owned(), job);
    Ok(Reply::json(201, &show_job(service, &service.jobs[name])))
}

/// The cluster that a new job names, or one for it alone.
fn compute_of(service: &Service, name: &str, body: &Map<String, Value>) -> Result<Cluster, Refusal> {
    let field = |name: &str| body.get(name).unwrap_or(&Value::Null);
    let (resources, id) = (field("resources"), field("computeId").as_str());
    let Some(id) = id.filter(|id| !id.eq_ignore_ascii_case("serverless")) else {
        let priority = if field("queueSettings")["jobTier"] == "Spot" { "LowPriority" } else { "Dedicated" };
        let count = resources["instanceCount"].as_u64().unwrap_or(1);
        let size = resources["instanceType"].as_str().unwrap_or(SIZES[0].name);
        let scale = json!({ "minNodeCount": 0, "maxNodeCount": count, "nodeIdleTimeBeforeScaleDown": "PT0S" });
        let wanted = json!({ "properties": { "properties": { "vmSize": size, "vmPriority": priority, "scaleSettings": scale } } });
        let mut cluster = Cluster::new(&format!("serverless-{name}"), wanted, service.now)?;
        (cluster.serverless, cluster.provisioning) = (true, Provisioning::Succeeded);
        return match service.refusal(&cluster, cluster.limits.max) {
            Some(error) => Err(Refusal::invalid(error["message"].as_str().unwrap_or_default())),
            None => Ok(cluster),
        };
    };
    let ours = id.strip_prefix(&service.workspace.id()).and_then(|id| job::named(id, "computes"));
    let known = ours.and_then(|name| service.clusters.get(name)).filter(|cluster| !cluster.serverless);
    let usable = known.filter(|cluster| !matches!(cluster.provisioning, Provisioning::Deleting | Provisioning::Failed));
    let usable = usable.ok_or_else(|| Refusal::invalid(format!("The compute target {id} was not found, or cannot be used.")))?;
    let mut same = Cluster::new(&usable.name, usable.body.clone(), usable.created)?;
    same.limits = usable.limits;
    Ok(same)
}

fn cancel(service: &mut Service, _: &Request, [name, _]: [&str; 2]) -> Answer {
    find_job(service, name)?;
    service.cancel_by_client(name);
    Ok(Reply { status: 200, headers: Vec::new(), body: Vec::new() })
}

fn delete_job(service: &mut Service, _: &Request, [name, _]: [&str; 2]) -> Answer {
    find_job(service, name)?;
    service.delete_job(name);
    let (operation, _) = service.begin(None);
    let location = ("location", status_link(service, &operation));
    Ok(Reply { status: 202, headers: vec![location], body: Vec::new() })
}

/// The newest first.
fn jobs(service: &mut Service, request: &Request, _: [&str; 2]) -> Answer {
    let asked = |name: &str| request.query.get(name).map(String::as_str);
    let fits = |job: &&Job| {
        let archived = job.field("isArchived") == true;
        let viewed = match asked("listViewType") {
            Some("All") => true,
            Some("ArchivedOnly") => archived,
            _ => !archived,
        };
        let has = |pairs: &Value, wanted: &str| match wanted.split_once('=') {
            Some((name, value)) => pairs[name] == value,
            None => pairs.get(wanted).is_some(),
        };
        let tagged = asked("tag").is_none_or(|tag| has(job.field("tags"), tag));
        let described = asked("properties").is_none_or(|all| all.split(',').all(|one| has(job.field("properties"), one)));
        viewed && tagged && described && asked("jobType").is_none_or(|kind| job.field("jobType") == kind)
    };
    let mut found: Vec<&Job> = service.jobs.values().filter(fits).collect();
    found.sort_by_key(|job| std::cmp::Reverse(job.created));
    let shown = found.into_iter().map(|job| show_job(service, job)).collect();
    done(&page(service, request, shown))
}

pub fn show_kept(service: &Service, end: &str, kept: &Kept) -> Value {
    let name = end.rsplit('/').next().unwrap_or_default();
    let kind = end.split('/').step_by(2).collect::<Vec<_>>().join("/");
    let mut shown = kept.body.clone();
    (shown["id"], shown["name"]) = (json!(format!("{}/{end}", service.workspace.id())), json!(name));
    shown["type"] = json!(format!("{PROVIDER}/workspaces/{kind}"));
    shown["systemData"] = system_data(kept.created);
    if kind.starts_with("environments") {
        shown["properties"]["provisioningState"] = json!("Succeeded");
    }
    shown
}

pub fn keep(service: &mut Service, end: String, body: &Value) -> Answer {
    let kept = Kept { body: body.clone(), created: service.kept.get(&end).map_or(service.now, |kept| kept.created) };
    let shown = show_kept(service, &end, &kept);
    let status = if service.kept.insert(end, kept).is_some() { 200 } else { 201 };
    Ok(Reply::json(status, &shown))
}

pub fn get(service: &Service, end: &str) -> Answer {
    let kept = service.kept.get(end).ok_or_else(|| Refusal::absent(&format!("/{end}")))?;
    done(&show_kept(service, end, kept))
}

fn get_kept(service: &mut Service, _: &Request, [kind, name]: [&str; 2]) -> Answer {
    get(service, &format!("{kind}/{name}"))
}

/// Secrets of a datastore never come back.
fn put_kept(service: &mut Service, request: &Request, [kind, name]: [&str; 2]) -> Answer {
    rules::name("name", name).map_err(Refusal::invalid)?;
    let mut body = request.body.clone();
    if let Some(credentials) = body["properties"]["credentials"].as_object_mut() {
        credentials.remove("secrets");
    }
    keep(service, format!("{kind}/{name}"), &body)
}

fn list_kept(service: &mut Service, request: &Request, [kind, _]: [&str; 2]) -> Answer {
    let here = format!("{kind}/");
    let only = request.query.get("isDefault").map(|wanted| wanted.eq_ignore_ascii_case("true"));
    let fits = |kept: &Kept| only.is_none_or(|only| (kept.body["properties"]["isDefault"] == true) == only);
    let found = service.kept.iter().filter(|(end, kept)| end.starts_with(&here) && fits(kept));
    let shown = found.map(|(end, kept)| show_kept(service, end, kept)).collect();
    done(&page(service, request, shown))
}

fn get_environment(service: &mut Service, _: &Request, [name, version]: [&str; 2]) -> Answer {
    get(service, &format!("environments/{name}/versions/{version}"))
}

/// A version is what it is: another image needs another version.
fn put_environment(service: &mut Service, request: &Request, [name, version]: [&str; 2]) -> Answer {
    rules::name("name", name).and_then(|()| rules::name("version", version)).map_err(Refusal::invalid)?;
    let end = format!("environments/{name}/versions/{version}");
    let image = |body: &Value| body["properties"]["image"].clone();
    if image(&request.body).is_null() && request.body["properties"]["build"].is_null() {
        return Err(Refusal::invalid("An environment needs an image or a build."));
    }
    if service.kept.get(&end).is_some_and(|kept| image(&kept.body) != image(&request.body)) {
        return Err(Refusal::new(409, "UserError", format!("The environment {name}:{version} exists with other contents.")));
    }
    keep(service, end, &request.body)
}

fn count(id: &str, kind: &str, (value, label): (&str, &str), limit: u32) -> Value {
    json!({
        "id": id, "type": format!("{PROVIDER}/{kind}"), "limit": limit, "unit": "Count",
        "name": { "value": value, "localizedValue": label },
    })
}

/// Every family's quota once, with the name that people read.
fn families() -> BTreeMap<&'static str, String> {
    SIZES.iter().map(|size| (size.family, size.label())).collect()
}

fn known_place(service: &Service, place: &str) -> Result<(), Refusal> {
    if place.eq_ignore_ascii_case(&service.workspace.location) {
        return Ok(());
    }
    Err(Refusal::new(400, "LocationNotAvailableForResourceType", format!("The location '{place}' is not simulated.")))
}

fn usages(service: &mut Service, _: &Request, [place, _]: [&str; 2]) -> Answer {
    known_place(service, place)?;
    let families = families();
    let mut quotas: Vec<(&str, &str, &str)> =
        families.iter().map(|(family, label)| ("vmFamily/dedicatedCores/usages", *family, label.as_str())).collect();
    quotas.insert(0, ("lowPriorityCores/usages", LOW_PRIORITY, "Total Cluster LowPriority Regional vCPUs"));
    let shown = quotas.into_iter().map(|(kind, quota, label)| {
        let (used, limit) = service.usage(quota);
        let id = format!("/subscriptions/{}/usages/{quota}", service.workspace.subscription);
        let mut shown = count(&id, kind, (quota, label), limit);
        shown["currentValue"] = json!(used);
        shown
    });
    done(&json!({ "value": shown.collect::<Vec<_>>() }))
}

fn quotas(service: &mut Service, _: &Request, [place, _]: [&str; 2]) -> Answer {
    known_place(service, place)?;
    let shown = families().into_iter().map(|(family, label)| {
        let id = format!("/subscriptions/{}/quotas/{family}", service.workspace.subscription);
        count(&id, "vmFamily/quotas", (family, &label), service.usage(family).1)
    });
    done(&json!({ "value": shown.collect::<Vec<_>>() }))
}

fn sizes(service: &mut Service, _: &Request, [place, _]: [&str; 2]) -> Answer {
    known_place(service, place)?;
    let today = time(service.now);
    let price = |size: &Size, low_priority: bool| {
        let price = size.price_per_hour(low_priority, service.script.price_factor)?;
        let tier = if low_priority { "LowPriority" } else { "Standard" };
        Some(json!({ "retailPrice": price.micros as f64 / 1e6, "osType": "Linux", "vmTier": tier }))
    };
    let living = SIZES.iter().filter(|size| size.retired.is_none_or(|day| today.as_str() < day));
    let shown = living.map(|size| {
        let values: Vec<Value> = [false, true].into_iter().filter_map(|low_priority| price(size, low_priority)).collect();
        json!({
            "name": size.name, "family": size.family, "vCPUs": size.cpus, "gpus": size.gpus, "memoryGB": size.memory_gb,
            "osVhdSizeMB": 1_047_552, "maxResourceVolumeMB": 1_048_576, "premiumIO": true,
            "lowPriorityCapable": size.price_per_hour(true, 1.0).is_some(), "supportedComputeTypes": ["AmlCompute", "ComputeInstance"],
            "estimatedVMPrices": { "billingCurrency": "USD", "unitOfMeasure": "OneHour", "values": values },
        })
    });
    done(&json!({ "value": shown.collect::<Vec<_>>() }))
}
