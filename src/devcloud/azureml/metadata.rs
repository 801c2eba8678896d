//! The answers of a node to the processes on it: tokens of the job's identity, and the events that are scheduled for the node.

use std::{collections::BTreeMap, io, sync::Arc, time::Duration};

use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::{
    super::{
        clock::{after, http_date},
        http::{self, Reply, Request},
    },
    Devcloud,
    script::TroubleKind,
    service::{Service, error},
    tokens,
};

/// The client id of every identity that is assigned to a cluster.
pub const CLIENT: &str = "00000000-0000-0000-0000-0000000000cc";
const EVENTS: &str = "/metadata/scheduledevents";

/// A node while a job is on it.
#[derive(Clone)]
pub struct Node {
    pub job: String,
    pub name: String,
    /// The job's `identityType`.
    pub identity: String,
}

impl Node {
    fn secret(&self, devcloud: &Devcloud) -> String {
        devcloud.at_present().key.of_metadata(&(self.job.clone(), self.name.clone()))
    }

    /// The variables that tell its processes where to ask.
    pub fn variables(&self, devcloud: &Devcloud, listener: &TcpListener) -> io::Result<BTreeMap<&'static str, String>> {
        let (here, secret) = (format!("http://{}", listener.local_addr()?), self.secret(devcloud));
        let mut variables = BTreeMap::from([("FTCTL_ENDPOINT_IMDS", here.clone())]);
        match self.identity.as_str() {
            "Managed" => variables.extend([
                ("MSI_ENDPOINT", format!("{here}/MSI/auth")),
                ("MSI_SECRET", secret),
                ("DEFAULT_IDENTITY_CLIENT_ID", CLIENT.to_owned()),
            ]),
            // The real one has no secret, and can be reached from its node alone; ours from this whole computer.
            "UserIdentity" => variables.extend([("OBO_ENDPOINT", format!("{here}/{secret}/OBO/token"))]),
            _ => {}
        }
        Ok(variables)
    }
}

/// Serves one node for as long as the task lives.
pub async fn serve(devcloud: Arc<Devcloud>, node: Node, listener: TcpListener) {
    let handle = move |request: Request| {
        let (devcloud, node) = (devcloud.clone(), node.clone());
        async move {
            let silent = devcloud.at_present().script.has(&node.job, TroubleKind::MetadataSilent);
            if silent && request.path().starts_with(EVENTS) {
                std::future::pending::<()>().await;
            }
            Some(answer(&devcloud, &node, request))
        }
    };
    http::serve(listener, handle).await;
}

fn answer(devcloud: &Devcloud, node: &Node, mut request: Request) -> Reply {
    let wrong = |status: u16, code: &str, why: &str| Reply::json(status, &json!({ "error": error(code, why) }));
    let secret = node.secret(devcloud);
    let entered = request.enter(&secret);
    match (request.method.as_str(), request.path()) {
        ("GET", EVENTS) if request.header("metadata") != Some("true") && request.header("metadata") != Some("True") => {
            wrong(400, "BadRequest", "The header Metadata: true is required.")
        }
        ("GET", EVENTS) if request.query("api-version").is_none() => wrong(400, "BadRequest", "The api-version is required."),
        ("GET", EVENTS) => Reply::json(200, &events(&devcloud.at_present(), node)),
        ("GET", "/MSI/auth") if node.identity == "Managed" && request.header("secret") == Some(secret.as_str()) => {
            token(&devcloud.at_present(), node, &request)
        }
        ("GET", "/OBO/token") if node.identity == "UserIdentity" && entered => token(&devcloud.at_present(), node, &request),
        ("GET", "/MSI/auth" | "/OBO/token") => wrong(401, "Unauthorized", "The secret is wrong, or the job has no such identity."),
        _ => wrong(404, "NotFound", "There is no such path here."),
    }
}

/// A token of the cluster's identity, or of the user for whom the job runs.
fn token(service: &Service, node: &Node, request: &Request) -> Reply {
    let wrong = |why: &str| Reply::json(400, &json!({ "statusCode": 400, "message": why }));
    let managed = node.identity == "Managed";
    let Some(resource) = request.query("resource").filter(|resource| !resource.is_empty()) else {
        return wrong("The resource is required.");
    };
    if managed && request.query("api-version").as_deref() != Some("2017-09-01") {
        return wrong("The api-version is not known.");
    }
    let stranger = request.query("clientid").is_some_and(|client| client != CLIENT);
    if managed && (stranger || !has_identity(service, node)) || service.script.has(&node.job, TroubleKind::NoIdentity) {
        return wrong("No Managed Identity found for specified ClientId/ResourceId.");
    }
    let identity = if managed { CLIENT } else { "u" };
    let (token, ends) = tokens::issue(&service.key, &resource, identity, service.script.token_life.0);
    Reply::json(
        200,
        &json!({ "access_token": token, "expires_on": ends, "resource": resource, "token_type": "Bearer", "client_id": CLIENT }),
    )
}

/// A cluster has the identities that it was made with.
fn has_identity(service: &Service, node: &Node) -> bool {
    let cluster = service.jobs.get(&node.job).and_then(|job| service.clusters.get(&job.cluster));
    cluster.is_some_and(|cluster| {
        let kind = &cluster.body["identity"]["type"];
        cluster.serverless || !(kind.is_null() || kind == "None")
    })
}

/// Times are those of the wall, where the processes live.
fn events(service: &Service, node: &Node) -> Value {
    let cluster = service.jobs.get(&node.job).and_then(|job| service.clusters.get(&job.cluster));
    let notice = cluster.and_then(|cluster| cluster.nodes.get(&node.name)).and_then(|node| node.notice.as_ref());
    let event = |notice: &super::cluster::Notice| {
        let left = Duration::try_from(notice.not_before.duration_since(service.now)).unwrap_or_default();
        let not_before = after(Timestamp::now(), left.div_f64(service.speed));
        json!({
            "EventId": notice.id, "EventType": "Preempt", "ResourceType": "VirtualMachine", "Resources": [node.name],
            "EventStatus": "Scheduled", "NotBefore": http_date(not_before), "Description": "", "EventSource": "Platform",
            "DurationInSeconds": -1,
        })
    };
    json!({ "DocumentIncarnation": service.events, "Events": notice.map(event).into_iter().collect::<Vec<_>>() })
}
