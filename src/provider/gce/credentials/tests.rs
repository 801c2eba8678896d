//! Each kind of credentials against a service that checks what it is given.

use std::sync::{Arc, Mutex};

use aws_lc_rs::{
    encoding::{AsDer, Pkcs8V1Der},
    signature::KeyPair as _,
};
use tokio::net::TcpListener;

use super::*;
use crate::devcloud::http::{Reply, Request, serve};

type Heard = Arc<Mutex<Vec<(String, Option<String>, String)>>>;

/// Google's sign-in, GitHub's, and a metadata server: address, and what they were asked.
async fn service() -> (String, Heard) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    let heard = Heard::default();
    let told = heard.clone();
    let handle = move |request: Request| {
        let told = told.clone();
        async move {
            let path = request.path().to_owned();
            let authorization = request.header("authorization").map(str::to_owned);
            told.lock().expect("whole").push((path.clone(), authorization, String::from_utf8_lossy(&request.body).into_owned()));
            let (status, body) = match path.as_str() {
                "/github" if request.header("authorization") == Some("Bearer runner") => (200, json!({ "value": "identity" })),
                "/impersonate" => (200, json!({ "accessToken": "impersonated", "expireTime": "2999-01-01T00:00:00Z" })),
                "/refused" => (400, json!({ "error": "invalid_grant", "error_description": "Token has been expired or revoked." })),
                "/moved" => {
                    let headers = vec![("location", "/elsewhere".to_owned())];
                    return Some(Reply { status: 307, headers, body: Vec::new() });
                }
                "/down" => (503, json!({})),
                _ => (200, json!({ "access_token": format!("from {path}"), "expires_in": 3_600 })),
            };
            Some(Reply::json(status, &body))
        }
    };
    tokio::spawn(serve(listener, handle));
    (address, heard)
}

fn of_file(file: &Path) -> Credentials {
    let variables = |name: &str| (name == "GOOGLE_APPLICATION_CREDENTIALS").then(|| file.display().to_string());
    Credentials::find(&variables).expect("a file")
}

async fn token(credentials: &Credentials) -> Result<String> {
    credentials.token().await
}

fn written(value: &Value) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().expect("a file");
    fs::write(file.path(), value.to_string()).expect("written");
    file
}

#[tokio::test]
async fn a_service_account_signs_its_word() {
    let (address, heard) = service().await;
    let pair = rsa::KeyPair::generate(rsa::KeySize::Rsa2048).expect("a key");
    let der = AsDer::<Pkcs8V1Der<'_>>::as_der(&pair).expect("bytes");
    let pem = format!("-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n", BASE64_STANDARD.encode(der.as_ref()));
    let uri = format!("http://{address}/token");
    let file = written(&json!({
        "type": "service_account", "project_id": "theirs", "client_email": "me@example", "private_key": pem, "private_key_id": "k1", "token_uri": uri,
    }));
    let credentials = of_file(file.path());
    assert_eq!(credentials.project().as_deref(), Some("theirs"));
    assert_eq!(token(&credentials).await.expect("a token"), "from /token");
    assert_eq!(token(&credentials).await.expect("kept"), "from /token");
    credentials.forget().await;
    assert_eq!(token(&credentials).await.expect("anew"), "from /token");
    let heard = heard.lock().expect("whole").clone();
    assert_eq!(heard.len(), 2, "a token is kept, and fetched anew when it was refused");
    let form = reqwest::Url::parse(&format!("http://form?{}", heard[0].2)).expect("a form");
    let (_, assertion) = form.query_pairs().find(|(key, _)| key == "assertion").expect("an assertion");
    let (text, signed) = assertion.rsplit_once('.').expect("a signature");
    let signed = BASE64_URL_SAFE_NO_PAD.decode(signed).expect("base64");
    let public = signature::UnparsedPublicKey::new(&signature::RSA_PKCS1_2048_8192_SHA256, pair.public_key().as_ref());
    public.verify(text.as_bytes(), &signed).expect("the key's own signature");
    let claims: Value =
        serde_json::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(text.split('.').nth(1).expect("claims")).expect("base64"))
            .expect("JSON");
    assert_eq!((&claims["iss"], &claims["aud"], &claims["scope"]), (&json!("me@example"), &json!(uri), &json!(SCOPE)));
}

#[tokio::test]
async fn a_login_is_renewed_and_a_refusal_is_told_without_secrets() {
    let (address, heard) = service().await;
    let login = |path: &str| {
        let uri = format!("http://{address}/{path}");
        written(&json!({
            "type": "authorized_user", "client_id": "id", "client_secret": "very-secret", "refresh_token": "refresh", "token_uri": uri, "quota_project_id": "mine",
        }))
    };
    let file = login("token");
    assert_eq!(of_file(file.path()).project().as_deref(), Some("mine"));
    assert_eq!(token(&of_file(file.path())).await.expect("a token"), "from /token");
    assert!(heard.lock().expect("whole")[0].2.contains("grant_type=refresh_token"));
    for (path, class, part) in [
        ("refused", Class::Denied, "expired or revoked"),
        ("down", Class::Network, "(503)"),
        // A client that follows sends the refresh token and the secret again.
        ("moved", Class::Denied, "(307)"),
    ] {
        let error = token(&of_file(login(path).path())).await.expect_err(path);
        assert!(error.class == class && error.message.contains(part) && !error.message.contains("secret"), "{error}");
    }
    assert!(heard.lock().expect("whole").iter().all(|(path, ..)| path != "/elsewhere"));
}

#[tokio::test]
async fn what_a_file_names_by_plain_http_is_not_asked() {
    let url = "http://203.0.113.9/token";
    let login =
        json!({ "type": "authorized_user", "client_id": "id", "client_secret": "s", "refresh_token": "r", "token_uri": url });
    let account = |token_url: &str, source: Value| {
        json!({
            "type": "external_account", "audience": "a", "subject_token_type": "t", "token_url": token_url, "credential_source": source,
        })
    };
    let subject = written(&json!("x"));
    let of_file_source = json!({ "file": subject.path() });
    for file in [login, account(url, of_file_source), account("https://sts.googleapis.com/v1/token", json!({ "url": url }))] {
        let file = written(&file);
        let error = token(&of_file(file.path())).await.expect_err("http");
        assert!(error.class == Class::Denied && error.message.contains("203.0.113.9 without https"), "{error}");
    }
}

#[tokio::test]
async fn an_identity_of_a_workflow_becomes_one_of_google() {
    let (address, heard) = service().await;
    let account = |source: Value, impersonation: Option<&str>| {
        let mut file = json!({
            "type": "external_account", "audience": "//iam.googleapis.com/pool", "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
            "token_url": format!("http://{address}/sts"), "credential_source": source,
        });
        if let Some(path) = impersonation {
            file["service_account_impersonation_url"] = json!(format!("http://{address}/{path}"));
        }
        written(&file)
    };
    let github = json!({
        "url": format!("http://{address}/github"), "headers": { "Authorization": "Bearer runner" },
        "format": { "type": "json", "subject_token_field_name": "value" },
    });
    let file = account(github, Some("impersonate"));
    assert_eq!(token(&of_file(file.path())).await.expect("a token"), "impersonated");
    let heard_so_far = heard.lock().expect("whole").clone();
    assert!(heard_so_far[1].2.contains("subject_token=identity"), "{heard_so_far:?}");
    assert_eq!(heard_so_far[2].1.as_deref(), Some("Bearer from /sts"));

    let subject = written(&json!("x"));
    let file = account(json!({ "file": subject.path() }), None);
    assert_eq!(token(&of_file(file.path())).await.expect("a token"), "from /sts");
    let file = account(json!({}), None);
    assert_eq!(token(&of_file(file.path())).await.expect_err("neither").class, Class::Denied);
}

#[tokio::test]
async fn a_machine_of_google_is_asked_itself_and_a_given_token_comes_first() {
    let (address, _) = service().await;
    let metadata = |name: &str| (name == "GCE_METADATA_HOST").then(|| address.clone());
    let credentials = Credentials::find(&metadata).expect("a machine");
    assert!(token(&credentials).await.expect("a token").contains("service-accounts/default/token"));
    let given = |name: &str| ["CLOUDSDK_AUTH_ACCESS_TOKEN", "GCE_METADATA_HOST"].contains(&name).then(|| "given".to_owned());
    assert_eq!(token(&Credentials::find(&given).expect("a token")).await.expect("a token"), "given");
    if !on_google() {
        assert_eq!(Credentials::find(&|_| None).err().expect("nobody").class, Class::Denied);
    }
}
