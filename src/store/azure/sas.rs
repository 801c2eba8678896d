//! Shared access signatures: what others get in the place of a sign-in, good for one container and for a while. They are made with the
//! account's key ("Create a service SAS") or, signed in with Entra ID, with a key that the service gives out for that ("Create a user
//! delegation SAS"), both from the reference of the blob service.

use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};
use reqwest::{Method, Url};

use super::{
    super::Result,
    client::{Client, Request, nonsense},
    shared_key::SharedKey,
    sign_in::Credential,
    sums::md5,
    wire::{self, DelegationKey},
};

/// The version of the strings that are signed below; the service goes on accepting it.
const VERSION: &str = "2023-11-03";

/// A key that the service gives out lasts no longer.
const LONGEST_DELEGATION: SignedDuration = SignedDuration::from_hours(7 * 24 - 1);
/// The service's clock may be as much behind ours.
const SKEW: SignedDuration = SignedDuration::from_mins(15);

/// What a signature is good for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Grant<'a> {
    pub account: &'a str,
    pub container: &'a str,
    /// Letters in the service's order: `racwdl…`.
    pub permissions: &'a str,
    pub expires: Timestamp,
    pub https_only: bool,
}

impl Grant<'_> {
    /// The parameters of a URL, without the question mark.
    pub fn sign(&self, key: &SharedKey, delegation: Option<&DelegationKey>) -> String {
        let expiry = date(self.expires);
        let resource = format!("/blob/{}/{}", self.account, self.container);
        let protocol = if self.https_only { "https" } else { "https,http" };
        let mut parameters = vec![("sv", VERSION), ("sr", "c"), ("sp", self.permissions), ("se", &expiry), ("spr", protocol)];
        // Permissions, start, expiry, resource.
        let mut signed = vec![self.permissions, "", &expiry, &resource];
        match delegation {
            // A stored policy.
            None => signed.push(""),
            Some(delegation) => {
                let own = delegation.parameters();
                signed.extend(own.map(|(_, value)| value));
                // Whom it is for, in two ways, and a correlation id.
                signed.extend([""; 3]);
                parameters.extend(own);
            }
        }
        // Address, protocol, version, kind, snapshot, encryption scope, five headers.
        signed.extend(["", protocol, VERSION, "c"]);
        signed.extend([""; 7]);
        let signature = key.sign(&signed.join("\n"));
        parameters.push(("sig", &signature));
        let mut url = Url::parse("http://x").unwrap_or_else(|_| unreachable!());
        url.query_pairs_mut().extend_pairs(parameters);
        url.query().unwrap_or_default().to_owned()
    }
}

fn date(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

impl Client {
    /// For others, good for this container until `expires`, with Entra ID at most for a week. `None` when there is nothing that could
    /// sign: a signature cannot, and an identity may lack the right to.
    pub async fn signature(&self, permissions: &str, expires: Timestamp) -> Result<Option<String>> {
        let (account, container) = (&*self.location.account, &*self.location.container);
        let grant = Grant { account, container, permissions, expires, https_only: self.is_encrypted() };
        match &self.credential {
            Credential::Key(key) => Ok(Some(grant.sign(key, None))),
            Credential::Sas(_) => Ok(None),
            Credential::Token(_) => {
                let now = Timestamp::now();
                let grant = Grant { expires: expires.min(now + LONGEST_DELEGATION), ..grant };
                let Some(delegation) = self.delegation_key(now - SKEW, grant.expires).await? else { return Ok(None) };
                let key = SharedKey::new(account, &delegation.value)
                    .ok_or_else(|| nonsense("ask for", "a key", "the key is not base64".to_owned()))?;
                Ok(Some(grant.sign(&key, Some(&delegation))))
            }
        }
    }

    /// "Get User Delegation Key". `None`: this identity may not.
    async fn delegation_key(&self, from: Timestamp, to: Timestamp) -> Result<Option<DelegationKey>> {
        let body = Bytes::from(wire::key_info(&date(from), &date(to)));
        let sum = md5(&body).await;
        let request = Request::service(Method::POST).query("comp", "userdelegationkey").body(body, sum);
        let reply = self.send("ask for", &request).await?;
        match reply.status {
            403 => Ok(None),
            _ if reply.is_success() => {
                let key = reply.text().and_then(DelegationKey::parse).map_err(|why| nonsense("ask for", "a key", why))?;
                Ok(Some(key))
            }
            _ => Err(self.refused("ask for", "a key to sign with", &reply)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    const ORACLE: &str = r#"
import datetime, sys
from azure.storage.blob import ContainerSasPermissions, UserDelegationKey, generate_container_sas
assert __import__("azure.storage.blob._shared.constants", fromlist=["x"]).X_MS_VERSION == "2023-11-03"
expiry = datetime.datetime(2026, 11, 22, 18, 0, 0)
common = dict(account_name="acc", container_name="box", permission="racwdl", expiry=expiry, protocol="https")
key = UserDelegationKey()
key.signed_oid, key.signed_tid = "11059fcc-5514-4800-b5f8-49808b9cfab6", "ab1f708d-50f6-404c-a006-d71b2ac7a606"
key.signed_start, key.signed_expiry = "2026-11-20T18:00:00Z", "2026-11-22T18:00:00Z"
key.signed_service, key.signed_version, key.value = "b", "2023-11-03", "a2V5"
print(generate_container_sas(account_key="a2V5", **common))
print(generate_container_sas(user_delegation_key=key, **common))
"#;

    /// Parameters have no order.
    fn sorted(query: &str) -> Vec<(String, String)> {
        let url = Url::parse(&format!("http://x?{query}")).unwrap();
        let mut pairs: Vec<_> = url.query_pairs().into_owned().collect();
        pairs.sort();
        pairs
    }

    #[test]
    #[ignore = "needs azure-storage-blob for Python: tests/run installs it"]
    fn azurite_apart_the_official_library_signs_the_same() {
        let library =
            std::env::var_os("FT_AZURE_SDK").expect("FT_AZURE_SDK names the folder of azure-storage-blob: tests/run sets it");
        let said = Command::new("python3").args(["-c", ORACLE]).env("PYTHONPATH", library).output().unwrap();
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
        let official = String::from_utf8(said.stdout).unwrap();
        let grant = Grant {
            account: "acc",
            container: "box",
            permissions: "racwdl",
            expires: "2026-11-22T18:00:00Z".parse().unwrap(),
            https_only: true,
        };
        let key = SharedKey::new("acc", "a2V5").unwrap();
        let text = "<UserDelegationKey><SignedOid>11059fcc-5514-4800-b5f8-49808b9cfab6</SignedOid>\
            <SignedTid>ab1f708d-50f6-404c-a006-d71b2ac7a606</SignedTid><SignedStart>2026-11-20T18:00:00Z</SignedStart>\
            <SignedExpiry>2026-11-22T18:00:00Z</SignedExpiry><SignedService>b</SignedService>\
            <SignedVersion>2023-11-03</SignedVersion><Value>a2V5</Value></UserDelegationKey>";
        let delegation = DelegationKey::parse(text).unwrap();
        let ours = [grant.sign(&key, None), grant.sign(&key, Some(&delegation))];
        for (ours, official) in ours.iter().zip(official.lines()) {
            assert_eq!(sorted(ours), sorted(official));
        }
    }
}
