//! The metadata server of one machine, and the power switch that its tools press.

use std::{sync::Arc, time::Duration};

use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::{net::TcpListener, time::Instant};

use super::{
    super::http::{self, Reply, Request},
    Devcloud, TICK,
    clock::http_date,
    cloud::Place,
    instance::Instance,
    script::TroubleKind,
};

const ROOT: &str = "/computeMetadata/v1/";

/// Serves one machine for as long as the task lives.
pub async fn serve(devcloud: Arc<Devcloud>, place: Place, listener: TcpListener) {
    let handle = move |mut request: Request| {
        let (devcloud, place) = (devcloud.clone(), place.clone());
        async move {
            if !request.enter(&devcloud.key.of_metadata(&place)) {
                return Some(absent());
            }
            let silent = |instance: &Instance| instance.troubles.contains(&TroubleKind::MetadataSilent);
            if request.path().starts_with(ROOT) && devcloud.at_present().instances.get(&place).is_some_and(silent) {
                std::future::pending::<()>().await;
            }
            Some(answer(&devcloud, &place, &request).await)
        }
    };
    http::serve(listener, handle).await;
}

async fn answer(devcloud: &Arc<Devcloud>, place: &Place, request: &Request) -> Reply {
    if request.method == "POST" && request.path() == "/devcloud/power-off" {
        devcloud.at_present().halted(place);
        devcloud.act();
        return Reply::new(200, "text/plain", "");
    }
    if request.header("metadata-flavor") != Some("Google") {
        return Reply::new(403, "text/html", "Missing Metadata-Flavor:Google header.");
    }
    let Some(path) = request.path().strip_prefix(ROOT) else { return absent() };
    if let (Some(name), "PUT") = (path.strip_prefix("instance/guest-attributes/"), request.method.as_str()) {
        return put_guest_attribute(devcloud, place, name, &request.body);
    }
    get(devcloud, place, path, request).await
}

/// With `wait_for_change` the answer comes when the value is another one than `last_etag` says, or than it was, or when
/// `timeout_sec` is over.
async fn get(devcloud: &Devcloud, place: &Place, path: &str, request: &Request) -> Reply {
    let begun = Instant::now();
    let waits = request.query("wait_for_change").as_deref() == Some("true");
    let limit = request.query("timeout_sec").and_then(|seconds| seconds.parse().ok()).map_or(Duration::MAX, Duration::from_secs);
    let mut known = request.query("last_etag").filter(|etag| etag != "0");
    let token = devcloud.key.of_service_account(place);
    loop {
        let Some(value) = devcloud.at_present().instances.get(place).and_then(|instance| value(instance, path, &token)) else {
            return absent();
        };
        let etag = hex::encode(&Sha256::digest(value.as_bytes())[..8]);
        let before = known.get_or_insert_with(|| etag.clone());
        if !waits || *before != etag || begun.elapsed() >= limit {
            let mut reply = Reply::new(200, "application/text", value);
            let date = http_date(devcloud.at_present().now);
            reply.headers.extend([("etag", etag), ("metadata-flavor", "Google".to_owned()), ("date", date)]);
            return reply;
        }
        tokio::time::sleep(TICK).await;
    }
}

fn value(instance: &Instance, path: &str, token: &str) -> Option<String> {
    if let Some(key) = path.strip_prefix("instance/attributes/") {
        return if key.is_empty() {
            Some(instance.metadata.keys().flat_map(|key| [key, "\n"]).collect())
        } else {
            instance.metadata.get(key).cloned()
        };
    }
    Some(match path {
        "instance/name" => instance.name.clone(),
        "instance/id" => instance.id.to_string(),
        "instance/zone" => format!("projects/1/zones/{}", instance.zone),
        "instance/preempted" => if instance.preempted { "TRUE" } else { "FALSE" }.to_owned(),
        "instance/service-accounts/default/email" => instance.service_account()["email"].as_str()?.to_owned(),
        "instance/service-accounts/default/token" => {
            instance.service_account()["email"].as_str()?;
            json!({ "access_token": token, "expires_in": 3_599, "token_type": "Bearer" }).to_string()
        }
        "instance/maintenance-event" => "NONE".to_owned(),
        _ => return None,
    })
}

/// Only for machines that allow it.
fn put_guest_attribute(devcloud: &Devcloud, place: &Place, name: &str, value: &[u8]) -> Reply {
    let mut cloud = devcloud.at_present();
    let Some(instance) = cloud.instances.get_mut(place) else { return absent() };
    let allowed = instance.metadata.get("enable-guest-attributes").is_some_and(|value| value.eq_ignore_ascii_case("true"));
    match name.split_once('/') {
        Some((namespace, key)) if allowed => {
            let value = String::from_utf8_lossy(value).into_owned();
            instance.guest_attributes.insert((namespace.to_owned(), key.to_owned()), value);
            Reply::new(200, "text/plain", "")
        }
        _ => Reply::new(403, "text/html", "Guest attributes endpoint access is disabled."),
    }
}

fn absent() -> Reply {
    Reply::new(404, "text/html", "Not Found")
}
