//! A role of Amazon's cloud as an identity: a signed request to Amazon for the caller's identity, which Google sends on.

use hmac::{Hmac, KeyInit, Mac};
use jiff::Timestamp;
use reqwest::{Method, Url};
use serde::Deserialize;
use serde_json::json;
use sha2::{Digest as _, Sha256};

use super::{Place, form, unusable};
use crate::provider::Result;

const QUESTION: &str = "https://sts.{region}.amazonaws.com?Action=GetCallerIdentity&Version=2011-06-15";
const SESSION: &str = "x-aws-ec2-metadata-token";
/// The life of a session with the metadata server, which is asked three questions.
const SESSION_SECONDS: &str = "300";

/// Where a machine of Amazon's says what it is.
#[derive(Deserialize)]
pub struct Addresses {
    region_url: Option<String>,
    /// The URL of its roles; for another kind of source, of the identity itself.
    pub url: Option<String>,
    imdsv2_session_token_url: Option<String>,
    regional_cred_verification_url: Option<String>,
}

/// The caller at Amazon: its region and its keys.
pub struct Caller {
    pub region: String,
    pub keys: Keys,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Keys {
    pub access_key_id: String,
    pub secret_access_key: String,
    pub token: Option<String>,
}

impl Place<'_> {
    /// By the environment, or by the machine's own metadata server.
    pub async fn aws_caller(&self, addresses: &Addresses) -> Result<Caller> {
        let set = |name: &str| self.variables.get(name).cloned();
        let region = set("AWS_REGION").or_else(|| set("AWS_DEFAULT_REGION"));
        let keys = set("AWS_ACCESS_KEY_ID").zip(set("AWS_SECRET_ACCESS_KEY"));
        let session = match &addresses.imdsv2_session_token_url {
            Some(url) if region.is_none() || keys.is_none() => {
                let life = (format!("{SESSION}-ttl-seconds"), SESSION_SECONDS.to_owned());
                Some((SESSION.to_owned(), self.text(Method::PUT, url, [(&life.0, &life.1)]).await?))
            }
            _ => None,
        };
        let region = match region {
            Some(region) => region,
            None => region_of(&self.metadata(addresses.region_url.as_ref(), "", session.as_ref()).await?).to_owned(),
        };
        if let Some((access_key_id, secret_access_key)) = keys {
            return Ok(Caller { region, keys: Keys { access_key_id, secret_access_key, token: set("AWS_SESSION_TOKEN") } });
        }
        let role = self.metadata(addresses.url.as_ref(), "", session.as_ref()).await?;
        let keys = self.metadata(addresses.url.as_ref(), &format!("/{role}"), session.as_ref()).await?;
        let keys = serde_json::from_str(&keys).map_err(|error| unusable(self.path, &format!("the keys of {role}: {error}")))?;
        Ok(Caller { region, keys })
    }

    async fn metadata(&self, url: Option<&String>, below: &str, session: Option<&(String, String)>) -> Result<String> {
        let nowhere =
            || unusable(self.path, "neither it nor the environment says who asks Amazon: set AWS_REGION and AWS_ACCESS_KEY_ID");
        let url = format!("{}{below}", url.ok_or_else(nowhere)?.trim_end_matches('/'));
        let text = self.text(Method::GET, &url, session.map(|(name, value)| (name, value))).await?;
        Ok(text.trim().to_owned())
    }
}

/// The region of a zone: `us-east-1` of `us-east-1d`.
fn region_of(zone: &str) -> &str {
    zone.strip_suffix(|last: char| last.is_ascii_alphabetic())
        .filter(|region| region.ends_with(|c: char| c.is_ascii_digit()))
        .unwrap_or(zone)
}

impl Caller {
    /// The signed question, as the subject token that Google takes: Signature Version 4 of an empty POST.
    pub fn signed(&self, addresses: &Addresses, audience: &str, now: Timestamp) -> Result<String, String> {
        let template = addresses.regional_cred_verification_url.as_deref().unwrap_or(QUESTION);
        let url = Url::parse(&template.replace("{region}", &self.region)).map_err(|error| format!("Amazon's address: {error}"))?;
        let (day, time) = (now.strftime("%Y%m%d").to_string(), now.strftime("%Y%m%dT%H%M%SZ").to_string());
        let host = url.host_str().unwrap_or_default();
        // In the order of their names, as they are signed.
        let mut headers = vec![("host", host), ("x-amz-date", &time)];
        headers.extend(self.keys.token.as_deref().map(|token| ("x-amz-security-token", token)));
        headers.push(("x-goog-cloud-target-resource", audience));
        let mut query: Vec<_> = url.query_pairs().collect();
        query.sort();
        let names = headers.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(";");
        let lines = headers.iter().map(|(name, value)| format!("{name}:{}", value.trim())).collect::<Vec<_>>().join("\n");
        let request = format!("POST\n{}\n{}\n{lines}\n\n{names}\n{}", url.path(), form(query), digest(""));
        let scope = format!("{day}/{}/sts/aws4_request", self.region);
        let first = format!("AWS4{}", self.keys.secret_access_key).into_bytes();
        let key = [&day, self.region.as_str(), "sts", "aws4_request"].iter().fold(first, |key, word| mac(&key, word));
        let signature = hex::encode(mac(&key, &format!("AWS4-HMAC-SHA256\n{time}\n{scope}\n{}", digest(&request))));
        let id = &self.keys.access_key_id;
        let word = format!("AWS4-HMAC-SHA256 Credential={id}/{scope}, SignedHeaders={names}, Signature={signature}");
        headers.push(("Authorization", &word));
        let headers: Vec<_> = headers.iter().map(|(key, value)| json!({ "key": key, "value": value })).collect();
        let question = json!({ "url": url.as_str(), "method": "POST", "headers": headers, "body": "" }).to_string();
        Ok(form([(question, "")]).trim_end_matches('=').to_owned())
    }
}

fn digest(text: &str) -> String {
    hex::encode(Sha256::digest(text))
}

fn mac(key: &[u8], text: &str) -> Vec<u8> {
    // A key may have any length.
    let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap_or_else(|_| unreachable!());
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().to_vec()
}
