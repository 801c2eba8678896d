//! The certificate of a workload says to Google who asks. Its key says nothing to anybody.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, BufReader, Read as _, Write as _},
    net::{Shutdown, TcpStream},
    path::Path,
    sync::{Arc, Mutex},
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use rcgen::{CertificateParams, KeyPair};
use reqwest::Url;
use rustls::{
    RootCertStore, ServerConfig, ServerConnection, StreamOwned,
    crypto::aws_lc_rs::default_provider,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    server::WebPkiClientVerifier,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    common::{Said, Sandbox, entra::make_certificates, proxy, secrets::MARK},
    listener::{Listener, moved_to, write},
};

const FEDERATED: &str = "federated";

/// A token service that takes connections from those alone whom an authority vouches for, the authorities of both sides, and a
/// workload.
struct World {
    service: Listener,
    servers: TempDir,
    workloads: TempDir,
    sandbox: Sandbox,
}

impl World {
    /// `moved` is the answer to a path of that name.
    fn new(moved: String) -> Self {
        let (servers, workloads) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        make_certificates(servers.path());
        make_certificates(workloads.path());
        let config = config(servers.path(), workloads.path());
        let service = Listener::serve(move |client, heard| serve(client, heard, &config, &moved));
        Self { service, servers, workloads, sandbox: Sandbox::new() }
    }

    fn url(&self, path: &str) -> String {
        format!("https://127.0.0.1:{}{path}", self.service.port)
    }

    /// The credentials as gcloud writes them.
    fn credentials(&self, source: &Value) -> Value {
        json!({
            "universe_domain": "googleapis.com", "type": "external_account",
            "audience": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/q",
            "subject_token_type": "urn:ietf:params:oauth:token-type:mtls", "token_url": self.url("/v1/token"),
            "credential_source": source, "service_account_impersonation_url": self.url("/impersonate"),
        })
    }

    /// Signs in, and asks Google's cloud for something.
    fn said(&self, credentials: &Value, cloud: &Listener, variables: &[(&str, String)]) -> Said {
        let mut command = self.sandbox.command(&["bill", "--backend", "gce"]);
        let file = write(&self.sandbox.home(), "credentials.json", &credentials.to_string());
        command.env("GOOGLE_APPLICATION_CREDENTIALS", file).env("GOOGLE_CLOUD_PROJECT", "mine");
        command.env("SSL_CERT_FILE", self.servers.path().join("ca.pem"));
        command.env("FTCTL_ENDPOINT_GCE", format!("http://127.0.0.1:{}", cloud.port));
        Sandbox::said(command.envs(variables.iter().map(|(name, value)| (name, value))))
    }
}

fn config(servers: &Path, workloads: &Path) -> Arc<ServerConfig> {
    let provider = Arc::new(default_provider());
    let mut known = RootCertStore::empty();
    known.add(certificate(&workloads.join("ca.pem"))).unwrap();
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(known), Arc::clone(&provider)).build().unwrap();
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let key = PrivateKeyDer::from_pem_file(servers.join("key.pem")).unwrap();
    let own = vec![certificate(&servers.join("cert.pem"))];
    Arc::new(config.with_client_cert_verifier(verifier).with_single_cert(own, key).unwrap())
}

fn certificate(path: &Path) -> CertificateDer<'static> {
    CertificateDer::from_pem_file(path).unwrap()
}

/// Remembers what it is asked, and the certificates of who asks.
fn serve(client: TcpStream, heard: &Mutex<Vec<String>>, config: &Arc<ServerConfig>, moved: &str) -> io::Result<()> {
    let mut line = BufReader::new(StreamOwned::new(ServerConnection::new(Arc::clone(config)).map_err(io::Error::other)?, client));
    loop {
        let request = match proxy::read(&mut line, false) {
            Ok(Some(request)) => request,
            Ok(None) => return Ok(()),
            // A line that is closed before it was read to its end takes the reason away from the other side.
            Err(_) => {
                let mut client = line.into_inner().sock;
                client.shutdown(Shutdown::Write)?;
                return client.read_to_end(&mut Vec::new()).map(drop);
            }
        };
        let shown = line.get_ref().conn.peer_certificates().unwrap_or_default();
        let shown: Vec<_> = shown.iter().map(|one| BASE64_STANDARD.encode(one)).collect();
        let text = [&request.head, &request.body].map(|part| String::from_utf8_lossy(part).into_owned());
        heard.lock().unwrap().push(format!("{}\r\n{}", shown.join(" "), text.concat()));
        let answer = match text[0].split(' ').nth(1) {
            Some("/v1/token") => json!({ "access_token": FEDERATED, "expires_in": 3_600 }),
            Some("/impersonate") => json!({ "accessToken": MARK, "expireTime": "2999-01-01T00:00:00Z" }),
            _ => {
                line.get_mut().write_all(moved.as_bytes())?;
                continue;
            }
        };
        let answer = answer.to_string();
        write!(line.get_mut(), "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{answer}", answer.len())?;
        line.get_mut().flush()?;
    }
}

/// A request as the service remembers it: certificates, head, body.
fn parts(request: &str) -> (&str, &str, &str) {
    let (shown, request) = request.split_once("\r\n").unwrap();
    let (head, body) = request.split_once("\r\n\r\n").unwrap();
    (shown, head, body)
}

/// gcloud's list of certificates, in `folder` with the one of a workload.
fn list(folder: &Path, to: &Path, name: &str) -> String {
    let workload = json!({ "cert_path": folder.join("cert.pem"), "key_path": folder.join("key.pem") });
    write(to, name, &json!({ "version": 1, "cert_configs": { "workload": workload } }).to_string())
}

/// The certificate is shown, and the form has what AIP-4117 says, and no more.
#[track_caller]
fn assert_exchanges(request: &str, own: &str, token: &Value, audience: &str) {
    let (shown, head, body) = parts(request);
    assert!(shown == own && head.starts_with("POST /v1/token HTTP/1.1\r\n"), "{request}");
    assert!(head.contains("content-type: application/x-www-form-urlencoded"), "{head}");
    let form = Url::parse(&format!("http://form?{body}")).unwrap();
    let mut form: BTreeMap<_, _> = form.query_pairs().into_owned().collect();
    assert_eq!(serde_json::from_str::<Value>(&form.remove("subject_token").unwrap()).unwrap(), *token);
    let expected = [
        ("audience", audience),
        ("grant_type", "urn:ietf:params:oauth:grant-type:token-exchange"),
        ("requested_token_type", "urn:ietf:params:oauth:token-type:access_token"),
        ("scope", "https://www.googleapis.com/auth/cloud-platform"),
        ("subject_token_type", "urn:ietf:params:oauth:token-type:mtls"),
    ];
    assert_eq!(form, expected.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
}

fn empty_cloud() -> Listener {
    Listener::start("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
}

#[test]
fn a_workload_shows_its_certificate_and_keeps_its_key() {
    let (cloud, proxy) = (empty_cloud(), Listener::start("HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n"));
    let world = World::new(String::new());
    let folder = world.workloads.path();
    let named = list(folder, folder, "list.json");
    for place in [".config/gcloud", "elsewhere"] {
        fs::create_dir_all(world.sandbox.home().join(place)).unwrap();
        list(folder, &world.sandbox.home().join(place), "certificate_config.json");
    }
    let [own, authority] = ["cert.pem", "ca.pem"].map(|name| BASE64_STANDARD.encode(certificate(&folder.join(name))));
    let usual = json!({ "certificate": { "use_default_certificate_config": true } });
    let chained = json!({ "certificate": { "certificate_config_location": named, "trust_chain_path": folder.join("ca.pem") } });
    for (source, variable, token) in [
        (&chained, None, json!([own, authority])),
        (&usual, None, json!([own])),
        (&usual, Some(("CLOUDSDK_CONFIG", world.sandbox.home().join("elsewhere").display().to_string())), json!([own])),
        (&usual, Some(("GOOGLE_API_CERTIFICATE_CONFIG", named.clone())), json!([own])),
    ] {
        let credentials = world.credentials(source);
        let mut variables = vec![("HTTPS_PROXY", format!("http://127.0.0.1:{}", proxy.port))];
        variables.extend(variable);
        let said = world.said(&credentials, &cloud, &variables);
        assert_eq!(said.code, Some(0), "{}", said.stderr);
        let asked: Vec<String> = world.service.take_heard().into_iter().filter(|request| !request.is_empty()).collect();
        let [exchange, impersonation] = &asked[..] else { panic!("{asked:?}") };
        assert_exchanges(exchange, &own, &token, credentials["audience"].as_str().unwrap());
        let (shown, head, _) = parts(impersonation);
        assert!(shown == own && head.contains(&format!("authorization: Bearer {FEDERATED}")), "{impersonation}");
        assert!(cloud.take_heard().iter().any(|request| request.contains(&format!("Bearer {MARK}"))));
    }
    proxy.assert_heard_nothing("a proxy");
}

#[test]
fn a_certificate_that_a_service_does_not_take_is_told() {
    let (cloud, world) = (empty_cloud(), World::new(String::new()));
    // Another authority with the name of the one that is known, and a certificate for which no one vouches.
    let [namesake, own] = [(), ()].map(|()| tempfile::tempdir().unwrap());
    make_certificates(namesake.path());
    let key = KeyPair::generate().unwrap();
    write(own.path(), "cert.pem", &CertificateParams::default().self_signed(&key).unwrap().pem());
    write(own.path(), "key.pem", &key.serialize_pem());
    let listed = |folder: &TempDir| list(folder.path(), folder.path(), "list.json");
    let no_certificate = write(own.path(), "identity", "an identity");
    for (source, why) in [
        (json!({ "certificate": { "certificate_config_location": listed(&namesake) } }), "DecryptError"),
        (json!({ "certificate": { "certificate_config_location": listed(&own) } }), "UnknownCA"),
        (json!({ "file": no_certificate }), "CertificateRequired"),
    ] {
        let said = world.said(&world.credentials(&source), &cloud, &[]);
        assert_eq!(said.code, Some(4), "{}", said.stderr);
        for part in ["takes no connection with the certificate", why, "the provider of the identity pool trusts"] {
            assert!(said.stderr.contains(part), "{part}: {}", said.stderr);
        }
        assert!(world.service.take_heard().iter().all(String::is_empty), "the service heard who asks");
    }
    cloud.assert_heard_nothing("the cloud");
}

#[test]
fn a_workload_follows_no_service_elsewhere() {
    let (cloud, stranger) = (empty_cloud(), empty_cloud());
    let world = World::new(moved_to(stranger.port));
    let named = list(world.workloads.path(), world.workloads.path(), "list.json");
    let source = json!({ "certificate": { "certificate_config_location": named } });
    for url in ["token_url", "service_account_impersonation_url"] {
        let mut credentials = world.credentials(&source);
        credentials[url] = json!(world.url("/moved"));
        let said = world.said(&credentials, &cloud, &[]);
        assert!(said.code == Some(4) && said.stderr.contains("(307)"), "{:?} {}", said.code, said.stderr);
        assert!(world.service.take_heard().iter().any(|request| request.contains("POST /moved")), "{}", said.stderr);
    }
    stranger.assert_heard_nothing("a host that a token service points at");
    cloud.assert_heard_nothing("the cloud");
}
