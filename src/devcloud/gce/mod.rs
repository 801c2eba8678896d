//! A simulated Compute Engine. Its answers are those that Google's own command line was seen to get; it refuses what that refuses.
//! Each virtual machine is a session of processes that runs the real startup script against a metadata server of its own.
//!
//! Its clients are only those that know the token of [`Devcloud::client_environment`]; each machine has secrets of its own
//! ([`super::key`]). Below `/devcloud/` are the levers that no real cloud has, for the same clients:
//!
//! | request | does |
//! |---|---|
//! | `GET /devcloud/bill` | what every machine has cost until now |
//! | `GET /devcloud/calls` | every call so far, and how it was answered |
//! | `PUT /devcloud/script` | what shall go wrong from now on: see [`script`] |
//! | `POST /devcloud/skip?seconds=N` | moves simulated time ahead |
//! | `POST /devcloud/preempt?instance=NAME` | takes a machine away |

mod advice;
mod api;
mod cloud;
mod filter;
mod groups;
mod instance;
mod metadata;
mod prices;
mod script;
mod serial;
#[cfg(test)]
mod tests;
mod vm;

use std::{
    collections::BTreeMap,
    ffi::OsString,
    io,
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use serde_json::{Value, json};
use tokio::net::TcpListener;

use self::{api::Refusal, cloud::Cloud, vm::Host};
use super::{
    Call, TICK,
    clock::{self, Clock},
    deliver,
    faults::{self, FaultKind},
    http::{self, Reply},
    key::Key,
};

pub use script::{SCRIPT_SCHEMA, Script};

/// An operation is waited for so long before the answer says that it still runs.
const LONGEST_WAIT: Duration = Duration::from_secs(120);

pub struct Options {
    pub listen: SocketAddr,
    pub project: String,
    /// Simulated seconds in one on the wall.
    pub speed: f64,
    /// Where machines have their disks.
    pub state: PathBuf,
    pub script: Script,
    /// ftctl itself: the program in the containers that machines run.
    pub executable: PathBuf,
    /// The environment of a machine's processes.
    pub variables: Vec<(OsString, OsString)>,
    /// Whether machines start containers on this computer's engine, through its command line, instead of the agent as a process.
    pub engine: bool,
}

/// The sender of a request.
enum Caller {
    /// The user who started this, and everybody who got the token from them.
    Client,
    /// A machine, with the rights of its service account.
    Machine,
}

pub struct Devcloud {
    cloud: Mutex<Cloud>,
    clock: Mutex<Clock>,
    calls: Mutex<Vec<Call>>,
    host: Host,
    key: Key,
    address: SocketAddr,
}

impl Devcloud {
    /// Begins to answer, in tasks of the current runtime; [`Devcloud::shut_down`] ends what runs.
    pub async fn start(options: Options) -> io::Result<Arc<Self>> {
        let key = Key::new()?;
        let listener = TcpListener::bind(options.listen).await?;
        let address = listener.local_addr()?;
        let clock = Clock::new(options.speed);
        let cloud = Cloud::new(&options.project, &format!("http://{address}"), options.script, clock.now(), options.speed);
        let host = Host::new(options.state, options.executable, options.variables, options.engine);
        let (cloud, clock) = (Mutex::new(cloud), Mutex::new(clock));
        let devcloud = Arc::new(Self { cloud, clock, calls: Mutex::default(), host, key, address });
        let (server, ticker) = (devcloud.clone(), devcloud.clone());
        tokio::spawn(http::serve(listener, move |request| {
            let devcloud = server.clone();
            async move { devcloud.answer(request).await }
        }));
        tokio::spawn(async move {
            loop {
                drop(ticker.at_present());
                ticker.act();
                tokio::time::sleep(TICK).await;
            }
        });
        Ok(devcloud)
    }

    /// Variables by name, which make a program its client.
    pub fn client_environment(&self, project: &str) -> BTreeMap<&'static str, String> {
        let service = format!("http://{}", self.address);
        BTreeMap::from([
            ("CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE", format!("{service}/compute/v1/")),
            ("FTCTL_ENDPOINT_GCE", service),
            ("GOOGLE_CLOUD_PROJECT", project.to_owned()),
            ("CLOUDSDK_CORE_PROJECT", project.to_owned()),
            ("CLOUDSDK_AUTH_ACCESS_TOKEN", self.key.of_clients()),
        ])
    }

    /// Simulated time.
    pub fn now(&self) -> jiff::Timestamp {
        self.at_present().now
    }

    /// Moves it ahead.
    pub fn skip(&self, by: Duration) {
        self.clock.lock().unwrap_or_else(PoisonError::into_inner).skip(by);
        drop(self.at_present());
    }

    /// Takes every machine's power, for good.
    pub fn shut_down(&self) {
        self.host.power_off_all();
    }

    /// The cloud, as it is now.
    fn at_present(&self) -> MutexGuard<'_, Cloud> {
        let now = self.clock.lock().unwrap_or_else(PoisonError::into_inner).now();
        let mut cloud = self.cloud.lock().unwrap_or_else(PoisonError::into_inner);
        cloud.advance(now);
        cloud
    }

    /// Does to processes what has happened to their machines.
    fn act(self: &Arc<Self>) {
        let acts = std::mem::take(&mut self.at_present().acts);
        for act in acts {
            self.host.perform(self, act);
        }
    }

    async fn answer(self: Arc<Self>, heard: http::Request) -> Option<Reply> {
        let path = heard.path().to_owned();
        let mut reply = match (self.admit(&heard), path.strip_prefix("/devcloud/")) {
            (Err(refusal), _) => Some(reply(&Err(refusal))),
            (Ok(Caller::Client), Some(lever)) => Some(self.pull(lever, &heard)),
            (Ok(_), _) => self.serve(&path, &heard).await,
        };
        let now = self.at_present().now;
        if let Some(reply) = &mut reply {
            reply.headers.push(("date", clock::http_date(now)));
        }
        self.act();
        reply
    }

    /// Identifies the sender.
    fn admit(&self, heard: &http::Request) -> Result<Caller, Refusal> {
        let token = heard.header("authorization").and_then(|value| value.strip_prefix("Bearer ")).filter(|token| !token.is_empty());
        let token = token.ok_or_else(|| Refusal::new(401, "required", "Login Required."))?;
        if token == self.key.of_clients() {
            return Ok(Caller::Client);
        }
        let is_machine = self.at_present().instances.keys().any(|place| token == self.key.of_service_account(place));
        if is_machine { Ok(Caller::Machine) } else { Err(fault_of(401)) }
    }

    async fn serve(&self, path: &str, heard: &http::Request) -> Option<Reply> {
        let refuse = |status, reason, message: &str| Some(reply(&Err(Refusal::new(status, reason, message))));
        // The billing catalogue has a host of its own in the real cloud.
        let below = path.strip_prefix("/compute/v1/projects/").map(|below| below.split('/').skip(1).collect());
        let products = || path.starts_with("/v1/services/").then(|| path.split('/').skip(1).collect());
        let Some(segments): Option<Vec<&str>> = below.or_else(products) else {
            return refuse(404, "notFound", &format!("There is no {path} here."));
        };
        let request = api::Request {
            method: heard.method.clone(),
            query: heard.queries(),
            body: serde_json::from_slice(&heard.body).unwrap_or_default(),
        };
        let Some((call, handler, [zone, name])) = api::route(&request.method, &segments) else {
            return refuse(404, "notFound", &format!("There is no {} {path} here.", request.method));
        };
        let place = (zone.to_owned(), name.to_owned());
        let fault = {
            let mut cloud = self.at_present();
            let mut met = std::mem::take(&mut cloud.faults_met);
            let fault = faults::meet(&cloud.script.faults, &mut met, call, zone).cloned();
            cloud.faults_met = met;
            fault
        };
        let kind = fault.as_ref().map(|fault| fault.kind);
        let answered = match kind {
            Some(FaultKind::Hang) => None,
            Some(FaultKind::Status(status)) => {
                let words = fault.as_ref().and_then(|fault| fault.words.as_ref());
                Some(Err(words.map_or_else(|| fault_of(status), |(reason, message)| Refusal::new(status, reason, message))))
            }
            _ => Some(self.perform(call, handler, &request, &place).await),
        };
        let lost = matches!(kind, Some(FaultKind::LostAnswer | FaultKind::DoneHang));
        let status = answered.as_ref().filter(|_| !lost).map_or(0, |answer| match answer {
            Ok(_) => 200,
            Err(refusal) => refusal.status,
        });
        let line =
            Call { method: call, zone: place.0, name: place.1, query: request.query, body: request.body, status, wrong: None };
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).push(line);
        let mut reply = answered.map(|answer| reply(&answer));
        let pause = fault.and_then(|fault| fault.retry_after);
        if let Some((reply, pause)) = reply.as_mut().zip(pause) {
            reply.headers.push(("retry-after", pause.0.as_secs().to_string()));
        }
        deliver(kind, reply).await
    }

    async fn perform(&self, call: &str, handler: api::Handler, request: &api::Request, place: &cloud::Place) -> api::Answer {
        let begun = tokio::time::Instant::now();
        let deaf = self.at_present().script.ignores_filters;
        let request = &if deaf { request.unfiltered() } else { request.clone() };
        loop {
            let answer = handler(&mut self.at_present(), request, place);
            let waits = call.ends_with("Operations.wait") && answer.as_ref().is_ok_and(|operation| operation["status"] != "DONE");
            if !waits || begun.elapsed() > LONGEST_WAIT {
                return answer;
            }
            tokio::time::sleep(TICK).await;
        }
    }

    fn pull(&self, lever: &str, heard: &http::Request) -> Reply {
        let done = |value: Value| Reply::json(200, &value);
        let wrong = |why: String| Reply::json(400, &json!({ "error": why }));
        match (heard.method.as_str(), lever) {
            ("GET", "bill") => done(self.bill()),
            ("GET", "calls") => done(json!(*self.calls.lock().unwrap_or_else(PoisonError::into_inner))),
            ("PUT", "script") => match serde_json::from_slice(&heard.body) {
                Ok(script) => {
                    let mut cloud = self.at_present();
                    (cloud.script, cloud.faults_met) = (script, faults::Met::new());
                    done(json!({}))
                }
                Err(error) => wrong(error.to_string()),
            },
            ("POST", "skip") => match heard.query("seconds").and_then(|seconds| seconds.parse().ok()) {
                Some(seconds) => {
                    self.skip(Duration::from_secs(seconds));
                    done(json!({}))
                }
                None => wrong("seconds=N is missing".to_owned()),
            },
            ("POST", "preempt") => {
                let name = heard.query("instance").unwrap_or_default();
                let mut cloud = self.at_present();
                let place = cloud.instances.keys().find(|(_, known)| *known == name).cloned();
                match place {
                    Some(place) => {
                        cloud.preempt(&place);
                        done(json!({}))
                    }
                    None => wrong(format!("there is no instance `{name}`")),
                }
            }
            _ => Reply::json(404, &json!({ "error": format!("there is no lever {lever}") })),
        }
    }

    fn bill(&self) -> Value {
        let receipts = self.at_present().bill();
        let total = receipts.iter().map(|receipt| receipt.cost.micros).sum();
        json!({ "schema": "ftctl.devcloud-bill/1", "machines": receipts, "total": crate::job::units::Money { micros: total } })
    }
}

/// The answer of a service in trouble.
fn fault_of(status: u16) -> Refusal {
    match status {
        401 => Refusal::new(401, "authError", "Invalid Credentials"),
        403 => Refusal::new(403, "forbidden", "Required permission is missing."),
        429 => Refusal::new(429, "rateLimitExceeded", "Rate Limit Exceeded"),
        503 => Refusal::new(503, "backendError", "Backend Error"),
        _ => Refusal::new(status, "internalError", "Internal Error"),
    }
}

fn reply(answer: &api::Answer) -> Reply {
    match answer {
        Ok(value) => Reply::json(200, value),
        Err(refusal) => Reply::json(refusal.status, &refusal.body()),
    }
}

/// The quotas that a region shows.
#[cfg(test)]
pub fn metrics() -> std::collections::BTreeSet<String> {
    Cloud::metrics()
}
