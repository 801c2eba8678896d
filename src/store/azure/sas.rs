//! Shared access signatures: what others get in the place of a sign-in, good for one container and for a while. They are made with
//! the account's key ("Create a service SAS") or, signed in with Entra ID, with a key that the service gives out for that ("Create
//! a user delegation SAS"), both from the reference of the blob service.

use azure_core::time::OffsetDateTime;
use azure_storage_blob::models::KeyInfo;
use jiff::{SignedDuration, Timestamp};
use reqwest::Url;

use super::{
    super::Result,
    client::{Client, nonsense},
    location::Location,
    shared_key::SharedKey,
    sign_in::Credential,
    wire::timestamp,
};

/// The version of the strings that are signed below; the service goes on accepting it.
const VERSION: &str = "2023-11-03";

/// A key that the service gives out lasts no longer.
const LONGEST_DELEGATION: SignedDuration = SignedDuration::from_hours(7 * 24 - 1);
/// The service's clock may be as much behind ours.
const SKEW: SignedDuration = SignedDuration::from_mins(15);

/// The permissions of a signature.
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
    /// The parameters of a URL, without the question mark. `delegation` is what a signature says of a key that is not the
    /// account's, in the order in which it is signed.
    pub fn sign(&self, key: &SharedKey, delegation: &[(&'static str, String)]) -> String {
        let expiry = date(self.expires);
        let resource = format!("/blob/{}/{}", self.account, self.container);
        let protocol = if self.https_only { "https" } else { "https,http" };
        let mut parameters = vec![("sv", VERSION), ("sr", "c"), ("sp", self.permissions), ("se", &expiry), ("spr", protocol)];
        // Permissions, start, expiry, resource.
        let mut signed = vec![self.permissions, "", &expiry, &resource];
        if delegation.is_empty() {
            // A stored policy.
            signed.push("");
        } else {
            signed.extend(delegation.iter().map(|(_, value)| value.as_str()));
            // Whom it is for, in two ways, and a correlation id.
            signed.extend([""; 3]);
            parameters.extend(delegation.iter().map(|(name, value)| (*name, value.as_str())));
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

/// Signs for others, until a fixed moment.
pub(super) struct Signer {
    key: SharedKey,
    delegation: Vec<(&'static str, String)>,
    expires: Timestamp,
}

impl Signer {
    /// A signature that is good for one container.
    pub fn sign(&self, container: &Client, permissions: &str) -> String {
        let https_only = container.is_encrypted();
        let Location { account, container, .. } = &container.location;
        Grant { account, container, permissions, expires: self.expires, https_only }.sign(&self.key, &self.delegation)
    }
}

impl Client {
    /// A signer until `expires`, with Entra ID for a week at most. `None` when nothing here can sign: a signature cannot, and an
    /// identity may lack the right to.
    pub async fn signer(&self, expires: Timestamp) -> Result<Option<Signer>> {
        match &self.transport.credential {
            Credential::Key(key) => Ok(Some(Signer { key: key.clone(), delegation: Vec::new(), expires })),
            Credential::Sas(_) => Ok(None),
            Credential::Token(_) => {
                let now = Timestamp::now();
                let expires = expires.min(now + LONGEST_DELEGATION);
                let delegated = self.delegation_key(now - SKEW, expires).await?;
                Ok(delegated.map(|(key, delegation)| Signer { key, delegation: delegation.into(), expires }))
            }
        }
    }

    /// A key that signs in the name of an identity, for a while, and its description. `None`: this identity may not.
    async fn delegation_key(&self, from: Timestamp, to: Timestamp) -> Result<Option<(SharedKey, [(&'static str, String); 6])>> {
        let account = &self.location.account;
        let time = |time: Timestamp| OffsetDateTime::from_unix_timestamp(time.as_second()).ok();
        let asked = async {
            let info = KeyInfo { start: time(from), expiry: time(to), ..KeyInfo::default() };
            self.service.get_user_delegation_key(info.try_into()?, None).await?.into_model()
        };
        match self.ask("ask for", account, asked).await? {
            Ok(key) => {
                let value = key.value.ok_or_else(|| nonsense("ask for", "a key", "it sent none".to_owned()))?;
                let text = Option::unwrap_or_default;
                let parameters = [
                    ("skoid", text(key.signed_oid)),
                    ("sktid", text(key.signed_tid)),
                    ("skt", date(timestamp(key.signed_start))),
                    ("ske", date(timestamp(key.signed_expiry))),
                    ("sks", text(key.signed_service)),
                    ("skv", text(key.signed_version)),
                ];
                Ok(Some((SharedKey::of(account, value), parameters)))
            }
            Err(refusal) if refusal.status == 403 => Ok(None),
            Err(refusal) => Err(self.refused("ask for", "a key to sign with", &refusal)),
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
        let delegation = [
            ("skoid", "11059fcc-5514-4800-b5f8-49808b9cfab6"),
            ("sktid", "ab1f708d-50f6-404c-a006-d71b2ac7a606"),
            ("skt", "2026-11-20T18:00:00Z"),
            ("ske", "2026-11-22T18:00:00Z"),
            ("sks", "b"),
            ("skv", "2023-11-03"),
        ]
        .map(|(name, value)| (name, value.to_owned()));
        let ours = [grant.sign(&key, &[]), grant.sign(&key, &delegation)];
        for (ours, official) in ours.iter().zip(official.lines()) {
            assert_eq!(sorted(ours), sorted(official));
        }
    }
}
