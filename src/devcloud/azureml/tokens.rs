//! Tokens as Entra issues them: JSON web tokens, which only this service accepts.

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::super::key::Key;

/// The audience of tokens for Azure ML's own services.
pub const ML: &str = "https://ml.azure.com";
pub const TENANT: &str = "00000000-0000-0000-0000-0000000000bb";

/// A token for `resource` that ends after `life`, of this identity.
pub fn issue(key: &Key, resource: &str, identity: &str, life: std::time::Duration) -> (String, i64) {
    let now = Timestamp::now().as_second();
    let ends = now + i64::try_from(life.as_secs()).unwrap_or(i64::MAX / 2);
    let encode = |value: &Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
    let head = json!({ "typ": "JWT", "alg": "RS256", "kid": "devcloud" });
    let claims = json!({
        "aud": resource, "iss": format!("https://sts.windows.net/{TENANT}/"), "iat": now, "nbf": now, "exp": ends, "oid": identity,
        "sub": identity, "tid": TENANT, "idtyp": "app", "ver": "1.0",
    });
    let words = format!("{}.{}", encode(&head), encode(&claims));
    let signature = BASE64_URL_SAFE_NO_PAD.encode(key.signature(&words));
    (format!("{words}.{signature}"), ends)
}

#[derive(Debug, PartialEq, Eq)]
pub enum Wrong {
    Expired,
    /// It is not ours, or for another service.
    Invalid,
}

/// The services that this one takes tokens for: the management of resources and Azure ML, and for files storage.
pub const SERVICES: &[&str] = &["https://management.", "https://ml.azure."];
pub const STORAGE: &[&str] = &["https://storage."];

/// Whether it was issued here, for one of these services.
pub fn check(key: &Key, token: &str, services: &[&str]) -> Result<(), Wrong> {
    let (words, signature) = token.rsplit_once('.').ok_or(Wrong::Invalid)?;
    if BASE64_URL_SAFE_NO_PAD.encode(key.signature(words)) != signature {
        return Err(Wrong::Invalid);
    }
    let claims = words.split('.').nth(1).and_then(|claims| BASE64_URL_SAFE_NO_PAD.decode(claims).ok()).unwrap_or_default();
    let claims: Value = serde_json::from_slice(&claims).map_err(|_| Wrong::Invalid)?;
    let audience = claims["aud"].as_str().unwrap_or_default();
    if !services.iter().any(|ours| audience.starts_with(ours)) {
        return Err(Wrong::Invalid);
    }
    if claims["exp"].as_i64().is_none_or(|ends| ends <= Timestamp::now().as_second()) {
        return Err(Wrong::Expired);
    }
    Ok(())
}
