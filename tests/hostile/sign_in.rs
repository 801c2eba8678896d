//! Sign-ins go where they belong: findings S7, S8, S21 (metadata), S22.

use std::process::Command;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::json;

use crate::{
    common::{
        Said, Sandbox,
        entra::{Entra, HOUR, make_certificates, token_mark},
        secrets::MARK,
    },
    listener::{self, Listener, NO_CONTAINER, moved_to},
};

/// A way to sign in to a blob container: its environment, and the mark of a request with it.
struct Way {
    variables: Vec<(&'static str, String)>,
    secret: String,
}

/// The token of `az login`, a signature, and a key.
fn ways(entra: &Entra) -> Vec<Way> {
    let az = entra.kinds().pop().unwrap();
    assert_eq!(az.asked, "az");
    let signature = format!("sv=2023-11-03&sr=c&sp=racwdl&sig={MARK}");
    vec![
        Way { variables: az.variables, secret: token_mark() },
        Way { variables: vec![("AZURE_STORAGE_SAS_TOKEN", signature)], secret: format!("sig={MARK}") },
        Way { variables: vec![("AZURE_STORAGE_KEY", BASE64_STANDARD.encode(MARK))], secret: "SharedKey victimaccount:".to_owned() },
    ]
}

fn with(sandbox: &Sandbox, variables: &[(&'static str, String)], arguments: &[&str]) -> Command {
    let mut command = sandbox.command(arguments);
    command.envs(variables.iter().map(|(name, value)| (name, value)));
    command
}

fn heard_the_secret(listener: &Listener, way: &Way) -> bool {
    listener.take_heard().iter().any(|request| request.contains(&way.secret))
}

fn assert_refused(said: &Said, what: &str, why: &str) {
    assert!(said.code == Some(2) && said.stderr.contains(why), "{what}: {:?} {}", said.code, said.stderr);
}

/// S7, as it was tried.
#[test]
fn a_store_that_a_project_names_gets_no_sign_in() {
    let entra = Entra::start(HOUR);
    for way in ways(&entra) {
        let stranger = Listener::start(NO_CONTAINER);
        let sandbox = Sandbox::new();
        let store = format!("http://127.0.0.1:{}/victimaccount/box", stranger.port);
        sandbox.write("ftctl.toml", format!("store = \"{store}\"\n"));
        for verb in ["status", "doctor", "bill", "prune"] {
            let said = Sandbox::said(with(&sandbox, &way.variables, &[verb]).env_remove("FTCTL_TRUST_PROJECT"));
            assert_refused(&said, verb, &store);
        }
        // Not even to a user who trusts the project, in whatever way: it is no host of Azure's.
        let said = Sandbox::said(&mut with(&sandbox, &way.variables, &["status"]));
        assert_refused(&said, "trusted once", "not a host of Azure's");
        sandbox.ok_trust(&[]);
        let said = Sandbox::said(with(&sandbox, &way.variables, &["status"]).env_remove("FTCTL_TRUST_PROJECT"));
        assert_refused(&said, "trusted", "not a host of Azure's");
        stranger.assert_heard_nothing("a store of the project");
        // The user's own word, in each of the places that are theirs.
        let theirs = [("FTCTL_STORE", store.clone())];
        let mut by_flag = with(&sandbox, &way.variables, &["status", "--store", &store]);
        let mut by_variable = with(&sandbox, &way.variables, &["status"]);
        by_variable.envs(theirs);
        let mut by_endpoint = with(&sandbox, &way.variables, &["status"]);
        by_endpoint.env("FTCTL_ENDPOINT_BLOB", format!("http://127.0.0.1:{}/victimaccount", stranger.port));
        for command in [&mut by_flag, &mut by_variable, &mut by_endpoint] {
            let said = Sandbox::said(command.env_remove("FTCTL_TRUST_PROJECT"));
            assert!(said.code == Some(0) && heard_the_secret(&stranger, &way), "{command:?}: {}", said.stderr);
        }
        std::fs::create_dir_all(sandbox.home().join(".config/ftctl")).unwrap();
        std::fs::write(sandbox.home().join(".config/ftctl/config.toml"), format!("store = \"{store}\"\n")).unwrap();
        let said = Sandbox::said(with(&sandbox, &way.variables, &["status"]).env_remove("FTCTL_TRUST_PROJECT"));
        assert!(said.code == Some(0) && heard_the_secret(&stranger, &way), "{}", said.stderr);
    }
}

#[test]
fn a_store_that_a_job_file_names_gets_no_sign_in() {
    let signature = [("AZURE_STORAGE_SAS_TOKEN", format!("sig={MARK}"))];
    let stranger = Listener::start(NO_CONTAINER);
    let sandbox = Sandbox::new();
    sandbox.write_rehearsal("stolen");
    let address = format!("127.0.0.1:{}/victimaccount/box", stranger.port);
    for store in [format!("http://{address}"), format!("https://{address}")] {
        let job = std::fs::read_to_string(sandbox.path("job.toml")).unwrap();
        sandbox.write("theirs.toml", format!("store = \"{store}\"\n{job}"));
        for arguments in [&["plan", "theirs.toml"][..], &["submit", "theirs.toml", "--dry-run"], &["run", "theirs.toml", "-y"]] {
            let said = Sandbox::said(&mut with(&sandbox, &signature, arguments));
            assert_refused(&said, "trusted", "not a host of Azure's");
            let mut command = with(&sandbox, &signature, &[arguments, &["--backend", "fake"]].concat());
            command.env_remove("FTCTL_TRUST_PROJECT").env("FTCTL_BACKEND", "fake");
            assert_refused(&Sandbox::said(&mut command), "not trusted", "theirs.toml");
        }
        let said = Sandbox::said(&mut with(&sandbox, &signature, &["doctor", "--job", "theirs.toml"]));
        assert_eq!(said.code, Some(1), "{}", said.stdout);
    }
    stranger.assert_heard_nothing("a store of a job file");
}

/// S8.
#[test]
fn nothing_secret_goes_anywhere_else_by_plain_http() {
    let sandbox = Sandbox::new();
    let signed_in = [
        ("AZURE_STORAGE_SAS_TOKEN", format!("sig={MARK}")),
        ("CLOUDSDK_AUTH_ACCESS_TOKEN", MARK.to_owned()),
        ("GOOGLE_CLOUD_PROJECT", "victim".to_owned()),
    ];
    for host in ["203.0.113.9", "[2001:db8::1]", "0.0.0.0", "10.1.2.3"] {
        let said = Sandbox::said(&mut with(&sandbox, &signed_in, &["status", "--store", &format!("http://{host}/acc/box")]));
        assert_refused(&said, host, "not https");
        let mut command = with(&sandbox, &signed_in, &["status", "--store", "azure://acc/box"]);
        assert_refused(&Sandbox::said(command.env("FTCTL_ENDPOINT_BLOB", format!("http://{host}/acc"))), host, "not https");
        for endpoint in ["FTCTL_ENDPOINT_GCE", "FTCTL_ENDPOINT_BILLING"] {
            let mut command = with(&sandbox, &signed_in, &["bill", "--backend", "gce"]);
            assert_refused(&Sandbox::said(command.env(endpoint, format!("http://{host}"))), host, "not https");
        }
    }
}

/// S22 at Google: the token service, and Compute Engine itself.
#[test]
fn whoever_google_seems_to_point_at_gets_nothing() {
    let stranger = Listener::start("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}");
    let pointing = Listener::start(moved_to(stranger.port));
    let sandbox = Sandbox::new();
    let here = format!("http://127.0.0.1:{}", pointing.port);
    let login = json!({
        "type": "authorized_user", "client_id": "me", "client_secret": MARK, "refresh_token": MARK, "token_uri": format!("{here}/token"),
    });
    let file = listener::write(&sandbox.home(), "login.json", &login.to_string());
    let credentials = [("GOOGLE_APPLICATION_CREDENTIALS", file), ("CLOUDSDK_AUTH_ACCESS_TOKEN", MARK.to_owned())];
    for (credential, code) in credentials.into_iter().zip([4, 1]) {
        let mut command = with(&sandbox, &[credential], &["bill", "--backend", "gce"]);
        command.env("GOOGLE_CLOUD_PROJECT", "victim").env("FTCTL_ENDPOINT_GCE", &here);
        let said = Sandbox::said(&mut command);
        assert_eq!(said.code, Some(code), "{}", said.stderr);
        assert!(pointing.take_heard().iter().any(|request| request.contains(MARK)), "it was asked: {}", said.stderr);
    }
    stranger.assert_heard_nothing("a host that Google seems to point at");
}

/// Likewise for the kinds of credentials that become others on the way.
#[test]
fn no_identity_for_google_follows_a_redirect() {
    let stranger = Listener::start("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}");
    let pointing = Listener::start(moved_to(stranger.port));
    let token = json!({ "access_token": MARK, "expires_in": 3_600 }).to_string();
    let signing_in = Listener::start(format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{token}", token.len()));
    let sandbox = Sandbox::new();
    let (here, honest) = (format!("http://127.0.0.1:{}", pointing.port), format!("http://127.0.0.1:{}", signing_in.port));
    let identity = listener::write(&sandbox.home(), "identity", MARK);
    let login = json!({
        "type": "authorized_user", "client_id": "me", "client_secret": "s", "refresh_token": "r", "token_uri": format!("{honest}/token"),
    });
    let account = |token_url: String, source: serde_json::Value| json!({ "type": "external_account", "audience": "a", "subject_token_type": "t", "token_url": token_url, "credential_source": source });
    let mut impersonating = account(format!("{honest}/sts"), json!({ "file": identity }));
    impersonating["service_account_impersonation_url"] = json!(format!("{here}/impersonate"));
    for file in [
        account(format!("{here}/sts"), json!({ "file": identity })),
        account(format!("{honest}/sts"), json!({ "url": here, "headers": { "Authorization": MARK } })),
        impersonating,
        json!({ "type": "impersonated_service_account", "service_account_impersonation_url": here, "source_credentials": login }),
    ] {
        let path = listener::write(&sandbox.home(), "credentials.json", &file.to_string());
        let mut command = with(&sandbox, &[("GOOGLE_APPLICATION_CREDENTIALS", path)], &["bill", "--backend", "gce"]);
        let said = Sandbox::said(command.env("GOOGLE_CLOUD_PROJECT", "victim").env("FTCTL_ENDPOINT_GCE", &honest));
        assert!(said.code == Some(4) && !said.stderr.contains(MARK), "{file}: {:?} {}", said.code, said.stderr);
        assert!(pointing.take_heard().iter().any(|request| request.contains(MARK)), "it was asked: {}", said.stderr);
        stranger.assert_heard_nothing("a host that a token service points at");
    }
}

/// A file of credentials may come from another person, as a configuration of a company does.
#[test]
fn a_file_of_credentials_runs_no_program_unless_the_user_allows_it() {
    let sandbox = Sandbox::new();
    let ran = sandbox.path("ran");
    let source = json!({ "executable": { "command": format!("touch {}", ran.display()) } });
    let file = json!({
        "type": "external_account", "audience": "a", "subject_token_type": "t", "token_url": "https://sts.googleapis.com/v1/token",
        "credential_source": source,
    });
    let path = listener::write(&sandbox.home(), "credentials.json", &file.to_string());
    for (allowed, runs) in [(None, false), (Some("true"), false), (Some("1"), true)] {
        let mut command = with(&sandbox, &[("GOOGLE_APPLICATION_CREDENTIALS", path.clone())], &["bill", "--backend", "gce"]);
        command.env("GOOGLE_CLOUD_PROJECT", "victim");
        command.envs(allowed.map(|value| ("GOOGLE_EXTERNAL_ACCOUNT_ALLOW_EXECUTABLES", value)));
        let said = Sandbox::said(&mut command);
        assert_eq!((said.code, ran.exists()), (Some(4), runs), "{allowed:?}: {}", said.stderr);
    }
}

/// S22 at Microsoft and GitHub.
#[test]
fn whoever_entra_seems_to_point_at_gets_nothing() {
    let certificates = tempfile::tempdir().unwrap();
    make_certificates(certificates.path());
    let stranger = Listener::start("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}");
    let pointing = Listener::start_tls(moved_to(stranger.port), certificates.path());
    let here = format!("https://127.0.0.1:{}", pointing.port);
    let sandbox = Sandbox::new();
    let secret = vec![("AZURE_CLIENT_SECRET", MARK.to_owned())];
    let github = vec![
        ("ACTIONS_ID_TOKEN_REQUEST_URL", format!("{here}/github?api-version=1")),
        ("ACTIONS_ID_TOKEN_REQUEST_TOKEN", MARK.to_owned()),
    ];
    let managed = vec![
        ("FTCTL_AZURE_MANAGED_IDENTITY", "system".to_owned()),
        ("IDENTITY_ENDPOINT", format!("{here}/managed")),
        ("IDENTITY_HEADER", MARK.to_owned()),
    ];
    for variables in [secret, github, managed] {
        let mut command = with(&sandbox, &variables, &["status", "--store", "azure://acc/box"]);
        command.env("SSL_CERT_FILE", certificates.path().join("ca.pem")).env("AZURE_AUTHORITY_HOST", &here);
        command.env("AZURE_TENANT_ID", "ab1f708d-50f6-404c-a006-d71b2ac7a606").env("AZURE_CLIENT_ID", "me");
        let said = Sandbox::said(&mut command);
        assert!(said.code == Some(4) && !said.stderr.contains(MARK), "{:?} {}", said.code, said.stderr);
        assert!(pointing.take_heard().iter().any(|request| request.contains(MARK)), "it was asked: {}", said.stderr);
    }
    stranger.assert_heard_nothing("a host that Entra seems to point at");
}

/// S21: the word of a machine's own host stays there, and so do requests to a service on this machine.
#[test]
fn a_proxy_sees_no_token_of_this_machines_own_services() {
    let proxy = Listener::start("HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n");
    let token = json!({ "access_token": MARK, "expires_in": 3_600 }).to_string();
    let metadata = Listener::start(format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{token}", token.len()));
    let cloud = Listener::start("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}");
    let blobs = Listener::start(NO_CONTAINER);
    let sandbox = Sandbox::new();
    let behind = ["HTTP_PROXY", "http_proxy", "ALL_PROXY"].map(|name| (name, format!("http://127.0.0.1:{}", proxy.port)));
    let mut command = with(&sandbox, &behind, &["bill", "--backend", "gce"]);
    command.env("GCE_METADATA_HOST", format!("127.0.0.1:{}", metadata.port)).env("GOOGLE_CLOUD_PROJECT", "victim");
    let said = Sandbox::said(command.env("FTCTL_ENDPOINT_GCE", format!("http://127.0.0.1:{}", cloud.port)));
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    assert!(metadata.take_heard().iter().any(|request| request.contains("service-accounts/default/token")));
    assert!(cloud.take_heard().iter().any(|request| request.contains(MARK)));
    let store = format!("http://127.0.0.1:{}/acc/box", blobs.port);
    let mut command = with(&sandbox, &behind, &["status", "--store", &store]);
    let said = Sandbox::said(command.env("AZURE_STORAGE_SAS_TOKEN", format!("sig={MARK}")));
    assert!(said.code == Some(0) && blobs.take_heard().iter().any(|request| request.contains(MARK)), "{}", said.stderr);
    proxy.assert_heard_nothing("a proxy");
}
