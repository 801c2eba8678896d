//! A simulated Azure Machine Learning. Its answers are those that Microsoft's own client library was seen to get; it refuses what
//! the service's description does not allow. Each rank of a job is a session of processes that runs the job's command beside the
//! identity and metadata endpoints that a real node has.
//!
//! Its clients sign in by App Service's protocol for managed identities, with the header's value of
//! [`Devcloud::client_environment`]. Below `/devcloud/` are the levers that no real service has, for who sends that value as bearer
//! token, or a token that was issued for it:
//!
//! | request | does |
//! |---|---|
//! | `GET /devcloud/bill` | what every node has cost until now |
//! | `GET /devcloud/calls` | every call so far, and how it was answered |
//! | `PUT /devcloud/script` | what shall go wrong from now on: see [`script`] |
//! | `POST /devcloud/skip?seconds=N` | moves simulated time ahead |
//! | `POST /devcloud/preempt?job=NAME` | takes the job's first node away; with `node=I` another one, with `withdrawn=SECONDS` not after all, with `restarts=true` the service starts the run again |

mod api;
mod assets;
mod cluster;
mod history;
mod job;
mod metadata;
mod node;
mod prices;
mod rules;
mod script;
mod service;
mod sizes;
mod storage;
#[cfg(test)]
mod tests;
mod tokens;
mod tracking;

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

use self::{
    api::Refusal,
    node::Host,
    service::{Here, Service},
};
use super::{
    Call, TICK,
    clock::{self, Clock},
    deliver,
    faults::{self, FaultKind},
    http::{self, Reply},
    key::Key,
    tls::Tls,
};
use crate::job::units::Money;

#[cfg(test)]
pub use rules::described;
pub use script::{SCRIPT_SCHEMA, Script};
pub use service::Workspace;

/// Where most systems have the certificates that they trust.
const SYSTEMS: &str = "/etc/ssl/certs/ca-certificates.crt";

pub struct Options {
    pub listen: SocketAddr,
    pub workspace: Workspace,
    /// Simulated seconds in one on the wall.
    pub speed: f64,
    /// Where jobs have their directories.
    pub state: PathBuf,
    pub script: Script,
    /// ftctl itself: the program in every image.
    pub executable: PathBuf,
    /// The environment of a job's processes.
    pub variables: Vec<(OsString, OsString)>,
    /// Whether they are in containers on this computer's engine, of their image, which its command line pulls.
    pub engine: bool,
    /// Whether it is asked by https, with a certificate that it makes.
    pub tls: bool,
}

pub struct Devcloud {
    service: Mutex<Service>,
    clock: Mutex<Clock>,
    calls: Mutex<Vec<Call>>,
    host: Host,
    /// Scheme and authority.
    address: String,
    /// A sender that knows it is a client.
    secret: String,
}

impl Devcloud {
    /// Begins to answer, in tasks of the current runtime; [`Devcloud::shut_down`] ends what runs.
    pub async fn start(options: Options) -> io::Result<Arc<Self>> {
        let key = Key::new()?;
        let listener = TcpListener::bind(options.listen).await?;
        let (address, secret, clock) = (listener.local_addr()?, key.of_clients(), Clock::new(options.speed));
        let tls = options.tls.then(Tls::new).transpose()?;
        let certificate = tls.as_ref().map(|tls| trust(&tls.authority, &options)).transpose()?;
        let address = format!("{}://{address}", if options.tls { "https" } else { "http" });
        let here = Here { workspace: options.workspace, address: address.clone(), key, state: options.state, certificate };
        let service = Service::new(here, options.script, clock.now(), options.speed);
        let host = Host::new(options.executable, options.variables, options.engine);
        let (service, clock) = (Mutex::new(service), Mutex::new(clock));
        let devcloud = Arc::new(Self { service, clock, calls: Mutex::default(), host, address, secret });
        let (server, ticker) = (devcloud.clone(), devcloud.clone());
        tokio::spawn(http::serve_over(tls.map(|tls| tls.acceptor), listener, move |request| {
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
    pub fn client_environment(&self) -> BTreeMap<&'static str, String> {
        let (here, service) = (&self.address, self.at_present());
        let (workspace, certificate) = (service.workspace.clone(), service.trusted());
        let environment = BTreeMap::from([
            ("FTCTL_ENDPOINT_AZUREML", here.clone()),
            ("FTCTL_ENDPOINT_AZURE_PRICES", here.clone()),
            ("AZUREML_ARM_SUBSCRIPTION", workspace.subscription),
            ("AZUREML_ARM_RESOURCEGROUP", workspace.group),
            ("AZUREML_ARM_WORKSPACE_NAME", workspace.name),
            ("FTCTL_AZURE_MANAGED_IDENTITY", "system".to_owned()),
            ("IDENTITY_ENDPOINT", format!("{here}/identity")),
            ("IDENTITY_HEADER", self.secret.clone()),
        ]);
        environment.into_iter().chain(certificate).collect()
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

    /// The rule of the service's description that each request breaks which breaks one.
    #[cfg(test)]
    pub fn wrong(&self) -> Vec<String> {
        let calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        calls.iter().filter_map(|call| call.wrong.clone()).collect()
    }

    /// Ends every process, for good.
    pub fn shut_down(&self) {
        self.host.cut_all();
    }

    /// The service, as it is now.
    fn at_present(&self) -> MutexGuard<'_, Service> {
        let now = self.clock.lock().unwrap_or_else(PoisonError::into_inner).now();
        let mut service = self.service.lock().unwrap_or_else(PoisonError::into_inner);
        service.advance(now);
        service
    }

    /// Does to processes what has happened to their jobs.
    fn act(self: &Arc<Self>) {
        let acts = std::mem::take(&mut self.at_present().acts);
        for act in acts {
            self.host.perform(self, act);
        }
    }

    async fn answer(self: Arc<Self>, heard: http::Request) -> Option<Reply> {
        let path = heard.path().to_owned();
        let mut reply = match (self.admit(&heard), path.strip_prefix("/devcloud/")) {
            (Err(refusal), _) => {
                let mut reply = refusal.reply();
                reply.headers.push(("www-authenticate", "Bearer error=\"invalid_token\"".to_owned()));
                Some(reply)
            }
            (Ok(()), Some(lever)) => Some(self.pull(lever, &heard)),
            (Ok(()), _) => self.serve(&path, &heard).await,
        };
        let now = self.at_present().now;
        if let Some(reply) = &mut reply {
            reply.headers.push(("date", clock::http_date(now)));
        }
        self.act();
        reply
    }

    /// Whether the sender may ask for this.
    fn admit(&self, heard: &http::Request) -> Result<(), Refusal> {
        // Addresses without a sign-in: some have a secret of their own.
        let open = ["/identity", "/discovery", "/api/retail/prices", "/_blob/", "/_storage/"];
        if open.iter().any(|path| heard.path().starts_with(path)) {
            return Ok(());
        }
        let refuse = |code: &str, why: &str| Refusal::new(401, code, why);
        let token = heard.header("authorization").and_then(|value| value.strip_prefix("Bearer ")).unwrap_or_default();
        if heard.path().starts_with("/devcloud/") && token == self.secret {
            return Ok(());
        }
        tokens::check(&self.at_present().key, token, tokens::SERVICES).map_err(|wrong| match wrong {
            tokens::Wrong::Expired => refuse("ExpiredAuthenticationToken", "The access token expiry is in the past."),
            tokens::Wrong::Invalid if token.is_empty() => {
                refuse("AuthenticationFailed", "Authentication failed. The 'Authorization' header is missing.")
            }
            tokens::Wrong::Invalid => refuse("InvalidAuthenticationToken", "The access token is invalid."),
        })
    }

    async fn serve(&self, path: &str, heard: &http::Request) -> Option<Reply> {
        let below =
            api::below(&self.at_present(), path).map(|parts| parts.iter().map(|part| (*part).to_owned()).collect::<Vec<_>>());
        let parts = match &below {
            Ok(parts) => parts.iter().map(String::as_str).collect::<Vec<_>>(),
            Err(refusal) => return Some(refusal.reply()),
        };
        let (method, request) = (heard.method.as_str(), api::Request::new(heard));
        if (method, parts.as_slice()) == ("GET", &["identity"]) {
            return self.meet("Identity_GetToken", ["", ""], &request, || self.sign_in(heard)).await;
        }
        let Some(route) = api::route(method, &parts) else {
            let absent = || Refusal::new(404, "InvalidResourceType", format!("There is no {method} {path} here.")).reply();
            return self.meet("Unknown", ["", ""], &request, absent).await;
        };
        self.meet(route.call, route.names, &request, || api::perform(&mut self.at_present(), &route, &request)).await
    }

    /// Answers a call, unless the script has another thing in store for it.
    async fn meet(
        &self,
        call: &'static str,
        names: [&str; 2],
        request: &api::Request,
        perform: impl FnOnce() -> Reply,
    ) -> Option<Reply> {
        let fault = {
            let mut service = self.at_present();
            let mut met = std::mem::take(&mut service.faults_met);
            let fault = faults::meet(&service.script.faults, &mut met, call, "").cloned();
            service.faults_met = met;
            fault
        };
        let kind = fault.as_ref().map(|fault| fault.kind);
        let mut reply = match kind {
            Some(FaultKind::Hang) => None,
            Some(FaultKind::Status(status)) => {
                let words = fault.as_ref().and_then(|fault| fault.words.as_ref());
                Some(words.map_or_else(|| fault_of(status), |(code, why)| Refusal::new(status, code, why)).reply())
            }
            _ => Some(perform()),
        };
        let lost = matches!(kind, Some(FaultKind::LostAnswer | FaultKind::DoneHang));
        let status = reply.as_ref().filter(|_| !lost).map_or(0, |reply| reply.status);
        let name = names.join("/").trim_matches('/').to_owned();
        let line = Call {
            method: call,
            zone: String::new(),
            name,
            query: request.query.clone(),
            body: request.body.clone(),
            status,
            wrong: request.described().err(),
        };
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).push(line);
        if let Some((reply, pause)) = reply.as_mut().zip(fault.and_then(|fault| fault.retry_after)) {
            reply.headers.push(("retry-after", pause.0.as_secs().to_string()));
        }
        deliver(kind, reply).await
    }

    /// App Service's protocol for managed identities.
    fn sign_in(&self, heard: &http::Request) -> Reply {
        let wrong = |status: u16, why: &str| Reply::json(status, &json!({ "statusCode": status, "message": why }));
        if heard.header("x-identity-header") != Some(self.secret.as_str()) {
            return wrong(401, "The header X-IDENTITY-HEADER is wrong.");
        }
        let (Some(resource), Some("2019-08-01")) = (heard.query("resource"), heard.query("api-version").as_deref()) else {
            return wrong(400, "The resource, or the api-version 2019-08-01, is missing.");
        };
        let service = self.at_present();
        let (token, ends) = tokens::issue(&service.key, &resource, "client", service.script.token_life.0);
        Reply::json(
            200,
            &json!({
                "access_token": token, "expires_on": ends.to_string(), "resource": resource, "token_type": "Bearer",
                "client_id": "00000000-0000-0000-0000-0000000000dd",
            }),
        )
    }

    fn pull(&self, lever: &str, heard: &http::Request) -> Reply {
        let done = |value: Value| Reply::json(200, &value);
        let wrong = |why: String| Reply::json(400, &json!({ "error": why }));
        match (heard.method.as_str(), lever) {
            ("GET", "bill") => done(self.bill()),
            ("GET", "calls") => done(json!(*self.calls.lock().unwrap_or_else(PoisonError::into_inner))),
            ("PUT", "script") => match serde_json::from_slice(&heard.body) {
                Ok(script) => {
                    let mut service = self.at_present();
                    (service.script, service.faults_met) = (script, faults::Met::new());
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
                let job = heard.query("job").unwrap_or_default();
                let number = |name: &str| heard.query(name).and_then(|number| number.parse().ok());
                let node = number("node").and_then(|node| usize::try_from(node).ok()).unwrap_or(0);
                let withdrawn = number("withdrawn").map(Duration::from_secs);
                let restarts = heard.query("restarts").as_deref() == Some("true");
                if self.at_present().preempt(&job, node, withdrawn, restarts) {
                    return done(json!({}));
                }
                wrong(format!("the job `{job}` has no low-priority node {node} that is not being taken away already"))
            }
            _ => Reply::json(404, &json!({ "error": format!("there is no lever {lever}") })),
        }
    }

    fn bill(&self) -> Value {
        let receipts = self.at_present().bill();
        let total: Money = receipts.iter().map(|receipt| receipt.cost).sum();
        json!({ "schema": "ftctl.devcloud-bill/1", "machines": receipts, "total": total })
    }
}

/// The file with the certificates that a client of this service trusts: its own, and those of other services, which a client of one
/// file would not trust any more.
fn trust(authority: &str, options: &Options) -> io::Result<PathBuf> {
    let known = options.variables.iter().find(|(name, _)| name == "SSL_CERT_FILE").map(|(_, path)| PathBuf::from(path));
    let others = std::fs::read(known.unwrap_or_else(|| SYSTEMS.into())).unwrap_or_default();
    let path = options.state.join("certificates.pem");
    std::fs::write(&path, [authority.as_bytes(), &others].concat())?;
    Ok(path)
}

/// The answer of a service in trouble.
fn fault_of(status: u16) -> Refusal {
    let (code, why) = match status {
        401 => ("InvalidAuthenticationToken", "The access token is invalid."),
        403 => ("AuthorizationFailed", "The client does not have authorization to perform this action."),
        429 => ("TooManyRequests", "The request is being throttled as the limit has been reached."),
        503 => ("ServiceUnavailable", "The service is unavailable now, please retry the request."),
        _ => ("InternalServerError", "Received an internal server error while processing the request."),
    };
    Refusal::new(status, code, why)
}
