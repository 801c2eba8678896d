//! The services that sign a user in, as far as a client sees them: the token endpoint of Entra ID, GitHub's, and that of a managed
//! identity. Over TLS with certificates of the test's own, made here. Beside it the emulator that looks at the tokens.

// Each test program uses its own part of this.
#![allow(dead_code)]

use std::{
    ffi::OsStr,
    fs,
    io::{self, BufRead as _, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    thread,
    time::{SystemTime, UNIX_EPOCH},
};

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::{
    ServerConfig, ServerConnection, StreamOwned,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};
use serde_json::{Value, json};

use super::{azurite::Azurite, secrets::MARK};

const TENANT: &str = "ab1f708d-50f6-404c-a006-d71b2ac7a606";
const CLIENT: &str = "11059fcc-5514-4800-b5f8-49808b9cfab6";
/// How long tokens are good for, in seconds: as the client is told, and really.
#[derive(Debug, Clone, Copy)]
pub struct Life {
    pub told: u64,
    pub real: u64,
}

pub const HOUR: Life = Life { told: 3_600, real: 3_600 };

pub struct Entra {
    directory: tempfile::TempDir,
    port: u16,
    /// The requests, in order.
    asked: Arc<Mutex<Vec<String>>>,
}

/// A way to sign in: its name in `doctor`, the request for it, and its environment.
pub struct Kind {
    pub name: &'static str,
    pub asked: &'static str,
    pub variables: Vec<(&'static str, String)>,
}

impl Entra {
    pub fn start(life: Life) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        make_certificates(directory.path());
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let entra = Self { directory, port, asked: Arc::default() };
        entra.make_az(life);
        fs::write(entra.file("assertion"), format!("{MARK}-federated")).expect("written");
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let certificates =
            CertificateDer::pem_file_iter(entra.file("cert.pem")).expect("PEM").collect::<Result<_, _>>().expect("PEM");
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("protocols")
            .with_no_client_auth()
            .with_single_cert(certificates, PrivateKeyDer::from_pem_file(entra.file("key.pem")).expect("PEM"))
            .expect("a certificate");
        let (config, asked) = (Arc::new(config), Arc::clone(&entra.asked));
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (config, asked) = (Arc::clone(&config), Arc::clone(&asked));
                // A connection that ends in an error has ended.
                thread::spawn(move || drop(serve(client, config, &asked, life)));
            }
        });
        entra
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The emulator, which takes nothing but https and looks at audience, issuer and times of tokens.
    pub fn azurite(&self) -> Azurite {
        let (cert, key) = (self.file("cert.pem"), self.file("key.pem"));
        let arguments: [&OsStr; 6] =
            ["--oauth".as_ref(), "basic".as_ref(), "--cert".as_ref(), cert.as_ref(), "--key".as_ref(), key.as_ref()];
        Azurite::start("https", &arguments)
    }

    /// Since the last call.
    pub fn take_asked(&self) -> Vec<String> {
        std::mem::take(&mut self.asked.lock().expect("not poisoned"))
    }

    pub fn kinds(&self) -> Vec<Kind> {
        let here = format!("https://127.0.0.1:{}", self.port);
        let entra = [
            ("SSL_CERT_FILE", self.file("ca.pem").display().to_string()),
            ("AZURE_AUTHORITY_HOST", here.clone()),
            ("AZURE_TENANT_ID", TENANT.to_owned()),
            ("AZURE_CLIENT_ID", CLIENT.to_owned()),
        ];
        let kind = |name, asked, further: &[(&'static str, String)]| Kind {
            name,
            asked,
            variables: entra.iter().chain(further).cloned().collect(),
        };
        vec![
            kind("Entra: client secret", "secret", &[("AZURE_CLIENT_SECRET", format!("{MARK}-secret"))]),
            kind(
                "Entra: workload identity",
                "federated",
                &[("AZURE_FEDERATED_TOKEN_FILE", self.file("assertion").display().to_string())],
            ),
            kind(
                "Entra: GitHub's identity of this run",
                "github",
                &[
                    ("ACTIONS_ID_TOKEN_REQUEST_URL", format!("{here}/github?api-version=1")),
                    ("ACTIONS_ID_TOKEN_REQUEST_TOKEN", format!("{MARK}-request")),
                ],
            ),
            kind(
                "Entra: managed identity",
                "managed",
                &[
                    ("FTCTL_AZURE_MANAGED_IDENTITY", "system".to_owned()),
                    ("IDENTITY_ENDPOINT", format!("{here}/managed")),
                    ("IDENTITY_HEADER", format!("{MARK}-header")),
                ],
            ),
            kind("Entra: user of this Azure ML job", "user of a job", &[("OBO_ENDPOINT", format!("{here}/OBO/token"))]),
            kind(
                "Entra: managed identity of this Azure ML job",
                "identity of a job",
                &[("MSI_ENDPOINT", format!("{here}/MSI/auth")), ("MSI_SECRET", format!("{MARK}-of-the-job"))],
            ),
            kind("Entra: az login", "az", &[("PATH", format!("{}:/usr/bin:/bin", self.file("bin").display()))]),
        ]
    }

    /// The program `az`, logged in.
    fn make_az(&self, life: Life) {
        let bin = self.file("bin");
        fs::create_dir(&bin).expect("a directory");
        let answer = json!({ "accessToken": token(life.real), "expires_on": now() + life.told, "tokenType": "Bearer" });
        fs::write(bin.join("az"), format!("#!/bin/sh\necho '{answer}'\n")).expect("written");
        fs::set_permissions(bin.join("az"), fs::Permissions::from_mode(0o755)).expect("executable");
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs()
}

/// A token as Entra makes them, but for the signature: the emulator does not check it.
fn token(good_for: u64) -> String {
    let (now, encode) = (now(), |value: &[u8]| BASE64_URL_SAFE_NO_PAD.encode(value));
    let claims = json!({
        "aud": "https://storage.azure.com", "iss": format!("https://sts.windows.net/{TENANT}/"), "iat": now - 60, "nbf": now - 60,
        "exp": now + good_for, "oid": CLIENT, "tid": TENANT,
    });
    let header = encode(br#"{"alg":"RS256","typ":"JWT"}"#);
    format!("{header}.{}.{}", encode(claims.to_string().as_bytes()), encode(MARK.as_bytes()))
}

/// The signature of every token, as it looks in one.
pub fn token_mark() -> String {
    BASE64_URL_SAFE_NO_PAD.encode(MARK)
}

fn serve(client: TcpStream, config: Arc<ServerConfig>, asked: &Mutex<Vec<String>>, tokens: Life) -> io::Result<()> {
    let connection = ServerConnection::new(config).map_err(io::Error::other)?;
    let mut stream = BufReader::new(StreamOwned::new(connection, client));
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        stream.read_line(&mut line)?;
        if line.trim().is_empty() {
            break;
        }
        if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or_default();
        }
        head += &line;
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    let (kind, status, answer) = answer(&head, &String::from_utf8_lossy(&body), tokens);
    asked.lock().expect("not poisoned").push(kind.to_owned());
    let answer = answer.to_string();
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        answer.len()
    );
    stream.get_mut().write_all((head + &answer).as_bytes())?;
    stream.get_mut().flush()
}

fn answer(head: &str, body: &str, life: Life) -> (&'static str, &'static str, Value) {
    let has = |part: &str| head.contains(part);
    let proves = |secret: &str| body.contains(&format!("{MARK}-{secret}"));
    let granted = json!({ "token_type": "Bearer", "expires_in": life.told, "access_token": token(life.real) });
    if has("GET /github?api-version=1&audience=api://AzureADTokenExchange ") && has(&format!("{MARK}-request")) {
        return ("asked GitHub", "200 OK", json!({ "value": format!("{MARK}-github") }));
    }
    if has("GET /managed?") && has(&format!("{MARK}-header")) {
        let answer = json!({ "access_token": token(life.real), "expires_on": (now() + life.told).to_string(), "resource": "https://storage.azure.com", "token_type": "Bearer" });
        return ("managed", "200 OK", answer);
    }
    let given = json!({ "access_token": token(life.real), "expires_on": now() + life.told });
    if has("GET /MSI/auth?api-version=2017-09-01&resource=https%3A%2F%2Fstorage.azure.com ") && has(&format!("{MARK}-of-the-job")) {
        return ("identity of a job", "200 OK", given);
    }
    if has("GET /OBO/token?resource=https%3A%2F%2Fstorage.azure.com ") {
        return ("user of a job", "200 OK", given);
    }
    if has(&format!("POST /{TENANT}/oauth2/v2.0/token ")) {
        for kind in ["secret", "federated", "github"] {
            if proves(kind) {
                return (kind, "200 OK", granted);
            }
        }
    }
    (
        "refused",
        "401 Unauthorized",
        json!({ "error": "invalid_client", "error_description": "AADSTS7000215: Invalid client secret provided." }),
    )
}

/// A throw-away authority, and what it vouches for: 127.0.0.1.
pub fn make_certificates(directory: &Path) {
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.distinguished_name.push(DnType::CommonName, "test authority");
    let authority_key = KeyPair::generate().expect("a key");
    let root = authority.self_signed(&authority_key).expect("signed");
    let key = KeyPair::generate().expect("a key");
    let leaf = CertificateParams::new(["127.0.0.1".to_owned()]).expect("an address");
    let leaf = leaf.signed_by(&key, &Issuer::new(authority, authority_key)).expect("signed");
    for (name, text) in [("ca.pem", root.pem()), ("cert.pem", leaf.pem()), ("key.pem", key.serialize_pem())] {
        fs::write(directory.join(name), text).expect("written");
    }
}
