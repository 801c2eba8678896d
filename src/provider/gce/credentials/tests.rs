//! Each kind of credentials against a service that checks what it is given.

use std::sync::{Arc, Mutex};

use aws_lc_rs::{
    encoding::{AsDer, Pkcs8V1Der},
    rsa,
    signature::{self, KeyPair as _},
};
use base64::{
    Engine as _,
    prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD},
};
use google_cloud_auth::credentials::external_account;
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
                "/for_ever" => (200, json!({ "access_token": "lasting", "expires_in": u64::MAX })),
                "/endless" => return Some(Reply { status: 200, headers: Vec::new(), body: vec![b' '; LARGEST + 1] }),
                "/strange" => (200, json!({ "access_token": "very-secret", "expires_in": "very-secret" })),
                "/page" => return Some(Reply { status: 200, headers: Vec::new(), body: "<p>very-secret</p>".into() }),
                "/aws/session" | "/aws/zone" | "/aws/roles" => {
                    let text = match path.as_str() {
                        "/aws/session" => "session",
                        "/aws/zone" => "us-east-1d",
                        _ => "trainer",
                    };
                    return Some(Reply { status: 200, headers: Vec::new(), body: text.into() });
                }
                "/aws/roles/trainer" => {
                    (200, json!({ "AccessKeyId": "AKID", "SecretAccessKey": "very-secret", "Token": "of a role" }))
                }
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

/// A service account's key file, and the key that its signatures are checked with.
fn service_account(token_uri: &str) -> (Value, Vec<u8>) {
    let pair = rsa::KeyPair::generate(rsa::KeySize::Rsa2048).expect("a key");
    let der = AsDer::<Pkcs8V1Der<'_>>::as_der(&pair).expect("bytes");
    let pem = format!("-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n", BASE64_STANDARD.encode(der.as_ref()));
    let file = json!({
        "type": "service_account", "project_id": "theirs", "client_email": "me@example", "private_key": pem, "private_key_id": "k1", "token_uri": token_uri,
    });
    (file, pair.public_key().as_ref().to_vec())
}

#[tokio::test]
async fn a_service_account_signs_its_word() {
    let (address, heard) = service().await;
    let (account, public) = service_account(&format!("http://{address}/token"));
    let file = written(&account);
    let credentials = of_file(file.path());
    assert_eq!(credentials.project().as_deref(), Some("theirs"));
    let word = token(&credentials).await.expect("a token");
    assert_eq!(token(&credentials).await.expect("kept"), word);
    credentials.forget().await;
    token(&credentials).await.expect("another");
    assert!(heard.lock().expect("whole").is_empty(), "its word is a token: no one is asked for one");
    let (text, signed) = word.rsplit_once('.').expect("a signature");
    let decoded = |part: &str| BASE64_URL_SAFE_NO_PAD.decode(part).expect("base64");
    let public = signature::UnparsedPublicKey::new(&signature::RSA_PKCS1_2048_8192_SHA256, public);
    public.verify(text.as_bytes(), &decoded(signed)).expect("the key's own signature");
    let parts: Vec<Value> = text.split('.').map(|part| serde_json::from_slice(&decoded(part)).expect("JSON")).collect();
    assert_eq!((&parts[0]["alg"], &parts[0]["kid"]), (&json!("RS256"), &json!("k1")));
    assert_eq!(
        (&parts[1]["iss"], &parts[1]["sub"], &parts[1]["scope"]),
        (&json!("me@example"), &json!("me@example"), &json!(SCOPE))
    );
    let (from, until) = (parts[1]["iat"].as_i64().expect("a time"), parts[1]["exp"].as_i64().expect("a time"));
    let now = Timestamp::now().as_second();
    assert!(from <= now && (now + 3_500..=now + 3_700).contains(&until), "{from} to {until}, now {now}");

    let mut broken = account;
    broken["private_key"] = json!("-----BEGIN PRIVATE KEY-----\nvery-secret\n-----END PRIVATE KEY-----\n");
    let error = token(&of_file(written(&broken).path())).await.expect_err("no key");
    assert!(error.class == Class::Denied && !error.message.contains("very-secret"), "{error}");
}

#[tokio::test]
async fn a_companys_own_user_is_signed_in() {
    let (address, heard) = service().await;
    let file = written(&json!({
        "type": "external_account_authorized_user", "audience": "//iam.googleapis.com/locations/global/workforcePools/p/providers/q",
        "client_id": "id", "client_secret": "s", "refresh_token": "r+1", "token_url": format!("http://{address}/oauthtoken"),
        "token_info_url": "https://sts.googleapis.com/v1/introspect", "revoke_url": "https://sts.googleapis.com/v1/revoke", "quota_project_id": "mine",
    }));
    let credentials = of_file(file.path());
    assert_eq!(token(&credentials).await.expect("a token"), "from /oauthtoken");
    assert_eq!(credentials.project().as_deref(), Some("mine"));
    let basic = format!("Basic {}", BASE64_STANDARD.encode("id:s"));
    let asked = ("/oauthtoken".to_owned(), Some(basic), "grant_type=refresh_token&refresh_token=r%2B1".to_owned());
    assert_eq!(*heard.lock().expect("whole"), [asked]);
}

#[tokio::test]
async fn another_account_is_impersonated_with_what_a_file_has() {
    let (address, heard) = service().await;
    let (account, _) = service_account("https://oauth2.googleapis.com/token");
    let login = json!({
        "type": "authorized_user", "client_id": "id", "client_secret": "s", "refresh_token": "r", "token_uri": format!("http://{address}/token"),
    });
    for source in [login, account] {
        let file = written(&json!({
            "type": "impersonated_service_account", "source_credentials": source, "delegates": ["between"],
            "service_account_impersonation_url": format!("http://{address}/impersonate"),
        }));
        assert_eq!(token(&of_file(file.path())).await.expect("a token"), "impersonated");
    }
    let heard = heard.lock().expect("whole").clone();
    let paths: Vec<&str> = heard.iter().map(|(path, ..)| path.as_str()).collect();
    assert_eq!(paths, ["/token", "/impersonate", "/impersonate"]);
    assert_eq!(heard[1].1.as_deref(), Some("Bearer from /token"));
    let asked: Value = serde_json::from_str(&heard[1].2).expect("JSON");
    assert_eq!(asked, json!({ "scope": [SCOPE], "lifetime": "3600s", "delegates": ["between"] }));
    assert!(heard[2].1.as_ref().is_some_and(|word| word.split('.').count() == 3), "the account's own word");
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
    // Longer than any clock counts, and than any token lasts.
    let file = login("for_ever");
    let lasting = of_file(file.path());
    assert_eq!(token(&lasting).await.expect("a token"), "lasting");
    let until = lasting.token.lock().await.as_ref().expect("kept").1;
    assert!(until < Instant::now() + Duration::from_secs(LONGEST_LIFE));
    for (path, class, part) in [
        ("refused", Class::Denied, "expired or revoked"),
        ("down", Class::Network, "(503)"),
        ("endless", Class::Network, "more than 262144 bytes"),
        // A client that follows sends the refresh token and the secret again.
        ("moved", Class::Denied, "(307)"),
        ("strange?sig=secret", Class::Denied, "to POST 127.0.0.1/strange (200): it has no token of the expected form"),
        ("page", Class::Denied, "to POST 127.0.0.1/page (200): it is not JSON"),
    ] {
        let error = token(&of_file(login(path).path())).await.expect_err(path);
        assert!(error.class == class && error.message.contains(part) && !error.message.contains("secret"), "{error}");
    }
    assert!(heard.lock().expect("whole").iter().all(|(path, ..)| path != "/elsewhere"));
}

#[tokio::test]
async fn a_file_that_holds_no_sign_in_is_named() {
    let wide: Vec<u8> = "{}".encode_utf16().flat_map(u16::to_le_bytes).collect();
    let large = vec![b' '; LARGEST + 1];
    for (content, expected) in [
        (&b"{\"installed\": {\"client_id\": \"x\", \"client_secret\": \"y\"}}"[..], "it is an OAuth client"),
        (b"\xef\xbb\xbf{\"web\": {\"client_id\": \"x\"}}", "it is an OAuth client"),
        (b"{\"project_id\": \"x\"}", "missing field `type`"),
        (
            b"{\"type\": \"service_account\", \"client_email\": \"a@b\", \"private_key_id\": \"1\", \"project_id\": \"p\", \
              \"private_key\": \"-----BEGIN PRIVATE KEY-----\\nxx\\n-----END PRIVATE KEY-----\\n\"}",
            "its key cannot sign: ",
        ),
        (&wide, "it is UTF-16LE text; `iconv"),
        (&large, "it has more than 262144 bytes"),
    ] {
        let file = tempfile::NamedTempFile::new().expect("a file");
        fs::write(file.path(), content).expect("written");
        let error = token(&of_file(file.path())).await.expect_err("no sign-in");
        assert!(error.class == Class::Denied && error.message.contains(expected), "{error}");
    }
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
        assert_eq!(Credentials::find(&|_| None).err().expect("no one").class, Class::Denied);
    }
}

/// An external account whose identity comes from `source`.
fn account(address: &str, source: &Value) -> Value {
    json!({
        "type": "external_account", "audience": "//iam.googleapis.com/pool", "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "token_url": format!("http://{address}/sts"), "credential_source": source,
    })
}

/// The requests since the last call: their paths, and the fields of the last form.
fn take_asked(heard: &Heard) -> (Vec<String>, BTreeMap<String, String>) {
    let asked = std::mem::take(&mut *heard.lock().expect("whole"));
    let form = Url::parse(&format!("http://form?{}", asked.last().expect("a request").2)).expect("a form");
    (asked.into_iter().map(|(path, ..)| path).collect(), form.query_pairs().into_owned().collect())
}

#[tokio::test]
async fn a_program_says_who_asks_only_where_it_is_allowed() {
    let (address, heard) = service().await;
    let folder = tempfile::tempdir().expect("a folder");
    let answer = folder.path().join("answer.json");
    let file = written(&account(&address, &json!({ "executable": { "command": format!("cat {}", answer.display()) } })));
    let path = file.path().display().to_string();
    let of = |allowed: &'static str| {
        let path = path.clone();
        Credentials::find(&move |name| match name {
            "GOOGLE_APPLICATION_CREDENTIALS" => Some(path.clone()),
            "GOOGLE_EXTERNAL_ACCOUNT_ALLOW_EXECUTABLES" => Some(allowed.to_owned()),
            _ => None,
        })
        .expect("a file")
    };
    let good =
        json!({ "version": 1, "success": true, "token_type": "urn:ietf:params:oauth:token-type:jwt", "id_token": "identity" });
    fs::write(&answer, good.to_string()).expect("written");
    for allowed in ["0", "true", "yes"] {
        let error = token(&of(allowed)).await.expect_err(allowed);
        assert!(
            error.class == Class::Denied && error.fix.is_some_and(|fix| fix.contains("ALLOW_EXECUTABLES=1")),
            "{}",
            error.message
        );
    }
    assert_eq!(token(&of("1")).await.expect("a token"), "from /sts");
    assert_eq!(take_asked(&heard).1["subject_token"], "identity");
    let saml = json!({ "success": true, "token_type": "urn:ietf:params:oauth:token-type:saml2", "saml_response": "<saml>" });
    fs::write(&answer, saml.to_string()).expect("written");
    token(&of("1")).await.expect("a token");
    assert_eq!(take_asked(&heard).1["subject_token"], "<saml>");
    for (answer_of_program, part) in [
        (json!({ "success": false, "code": "401", "message": "signed out" }).to_string(), "refuses (401): signed out"),
        (json!({ "success": true, "id_token": "old", "expiration_time": 1 }).to_string(), "has expired"),
        (json!({ "success": true }).to_string(), "no `id_token`"),
        ("very-secret".to_owned(), "is not JSON"),
    ] {
        fs::write(&answer, answer_of_program).expect("written");
        let error = token(&of("1")).await.expect_err(part);
        assert!(error.message.contains(part) && !error.message.contains("very-secret"), "{error}");
    }
    fs::remove_file(&answer).expect("removed");
    assert!(token(&of("1")).await.expect_err("it fails").message.contains("exit status: 1"));
}

/// The requests of Google's own library are made here, too.
#[tokio::test]
async fn external_accounts_ask_as_googles_library_does() {
    let (address, heard) = service().await;
    let subject = written(&json!({ "word": "identity" }));
    let url = |path: &str| format!("http://{address}/{path}");
    let in_json = json!({ "file": subject.path(), "format": { "type": "json", "subject_token_field_name": "word" } });
    let amazon = json!({
        "environment_id": "aws1", "region_url": url("aws/zone"), "url": url("aws/roles"), "imdsv2_session_token_url": url("aws/session"),
        "regional_cred_verification_url": "https://sts.{region}.amazonaws.com?Action=GetCallerIdentity&Version=2011-06-15",
    });
    let mut workforce = account(&address, &in_json);
    workforce["audience"] = json!("//iam.googleapis.com/locations/global/workforcePools/pool/providers/p");
    workforce["workforce_pool_user_project"] = json!("payer");
    for file in [account(&address, &in_json), workforce, account(&address, &amazon)] {
        token(&of_file(written(&file).path())).await.expect("a token");
        let (paths, ours) = take_asked(&heard);
        // The service's answer lacks fields that the library insists on; it has been asked by then.
        let theirs = external_account::Builder::new(file.clone()).build_access_token_credentials().expect("understood");
        theirs.access_token().await.expect_err("an answer that is too short");
        let (their_paths, mut theirs) = take_asked(&heard);
        if file["credential_source"] == amazon {
            theirs.insert("subject_token".to_owned(), at_the_time_of(&theirs["subject_token"], &ours["subject_token"]));
        }
        assert_eq!((paths, ours), (their_paths, theirs));
    }
}

/// Amazon's question of theirs, signed here at the time of ours.
fn at_the_time_of(theirs: &str, ours: &str) -> String {
    let decoded = |token: &str| -> Value {
        let (_, text) =
            Url::parse(&format!("http://form?x={token}")).expect("a form").query_pairs().into_owned().next().expect("a value");
        serde_json::from_str(&text).expect("JSON")
    };
    let time = |question: &Value| {
        let text = question["headers"][1]["value"].as_str().expect("a time").to_owned();
        jiff::civil::DateTime::strptime("%Y%m%dT%H%M%SZ", text)
            .expect("a time")
            .to_zoned(jiff::tz::TimeZone::UTC)
            .expect("UTC")
            .timestamp()
    };
    let keys = aws::Keys { access_key_id: "AKID".into(), secret_access_key: "very-secret".into(), token: Some("of a role".into()) };
    let caller = aws::Caller { region: "us-east-1".into(), keys };
    let addresses = serde_json::from_value(json!({})).expect("the usual ones");
    let signed = |time| caller.signed(&addresses, "//iam.googleapis.com/pool", time).expect("signed");
    assert_eq!(decoded(&signed(time(&decoded(theirs)))), decoded(theirs));
    signed(time(&decoded(ours)))
}
