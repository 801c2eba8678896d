//! A certificate of a workload (AIP-4117) says who asks: the server sees it when TLS begins, and its chain is the identity that
//! the token service exchanges. `gcloud iam workload-identity-pools create-cred-config --credential-cert-path` writes both files.

use std::{
    path::{Path, PathBuf},
    slice,
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use reqwest::Identity;
use rustls::{
    Error,
    crypto::aws_lc_rs::default_provider,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    sign::CertifiedKey,
};
use serde::Deserialize;
use serde_json::json;

use super::{Place, gcloud, text, unusable};
use crate::provider::{ProviderError, Result};

/// Leads to gcloud's list of certificates, for credentials that do not say where it is.
pub const LIST: &str = "GOOGLE_API_CERTIFICATE_CONFIG";
const WRITES: &str = "gcloud iam workload-identity-pools create-cred-config with --credential-cert-path";

#[derive(Deserialize)]
pub struct Source {
    #[serde(default)]
    use_default_certificate_config: bool,
    certificate_config_location: Option<PathBuf>,
    trust_chain_path: Option<PathBuf>,
}

/// gcloud's list of certificates: others in it lie in hardware, and are for users.
#[derive(Deserialize)]
struct List {
    cert_configs: Kinds,
}

#[derive(Deserialize)]
struct Kinds {
    workload: Workload,
}

#[derive(Deserialize)]
struct Workload {
    cert_path: PathBuf,
    key_path: PathBuf,
}

/// The certificate of who asks.
pub struct Own {
    pub identity: Identity,
    pub subject_token: String,
}

impl Place<'_> {
    pub fn certificate(&self, source: &Source) -> Result<Own> {
        let list = self.list(source)?;
        let Workload { cert_path, key_path } = self.workload(&list)?;
        let correct = |key: &str| format!("correct `{key}` in {}", list.display());
        let own = certificates(&cert_path).map_err(|why| self.wrong(&why, correct("cert_path")))?;
        let key = private_key(&key_path).map_err(|why| self.wrong(&why, correct("key_path")))?;
        let certified = CertifiedKey::from_der(own.clone(), key.clone_key(), &default_provider());
        certified.map_err(|error| {
            let (cert_path, key_path) = (cert_path.display(), key_path.display());
            let why = match error {
                Error::InconsistentKeys(_) => format!("the key in {key_path} does not belong to the certificate in {cert_path}"),
                _ => format!("the certificate in {cert_path} and the key in {key_path} cannot be used: {error}"),
            };
            self.wrong(&why, correct("key_path"))
        })?;
        let subject_token = self.chain(&own[0], source.trust_chain_path.as_deref())?;
        let identity = Identity::from_pem(pem(&own, &key).as_bytes()).map_err(|error| self.wrong(&error.to_string(), WRITES))?;
        Ok(Own { identity, subject_token })
    }

    fn list(&self, source: &Source) -> Result<PathBuf> {
        let variable = |name: &str| self.variables.get(name).cloned();
        let why = match (&source.certificate_config_location, source.use_default_certificate_config) {
            (Some(path), false) => return Ok(path.clone()),
            (None, true) => {
                let usual = || Some(gcloud(variable)?.join("certificate_config.json"));
                let found = variable(LIST).map(PathBuf::from).or_else(usual);
                let why = "its list of certificates is nowhere: there is no home directory";
                return found.ok_or_else(|| self.wrong(why, format!("name the list in {LIST}")));
            }
            (Some(_), true) => "it has both",
            (None, false) => "it has none",
        };
        let why = format!("of certificate_config_location and use_default_certificate_config it must have one, and {why}");
        Err(self.wrong(&why, format!("{WRITES} writes both files")))
    }

    fn workload(&self, list: &Path) -> Result<Workload> {
        let wrong = |why: &str| {
            let why = format!("its list of certificates, {}, cannot be used: {why}", list.display());
            self.wrong(&why, format!("{WRITES} writes it, and {LIST} can name another"))
        };
        let text = text(list).map_err(|why| wrong(&why))?;
        // The parser's own words quote the file.
        let no_list = |error: serde_json::Error| {
            let no_entry = "it has no `workload` in `cert_configs` with a `cert_path` and a `key_path`";
            wrong(if error.is_data() { no_entry } else { "it is not JSON" })
        };
        Ok(serde_json::from_str::<List>(&text).map_err(no_list)?.cert_configs.workload)
    }

    /// The certificates as the token service takes them: the one of who asks, then those that vouch for it.
    fn chain(&self, own: &CertificateDer<'_>, path: Option<&Path>) -> Result<String> {
        let correct = || format!("correct `trust_chain_path` in {}", self.path.display());
        let chain = path.map(certificates).transpose().map_err(|why| self.wrong(&why, correct()))?.unwrap_or_default();
        let further = chain.strip_prefix(slice::from_ref(own)).unwrap_or(&chain);
        if let Some(path) = path.filter(|_| further.contains(own)) {
            let why = format!("the certificate of who asks is among those that vouch for it in {}", path.display());
            return Err(self.wrong(&why, "let that file begin with it, or leave it out there"));
        }
        Ok(json!([own].into_iter().chain(further).map(|one| BASE64_STANDARD.encode(one)).collect::<Vec<_>>()).to_string())
    }

    fn wrong(&self, why: &str, fix: impl Into<String>) -> ProviderError {
        unusable(self.path, why).fix(fix)
    }
}

/// The errors have nothing of the file, which may be another than was meant.
fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let cannot = |why: &str| format!("no certificate can be read from {}: {why}", path.display());
    let text = text(path).map_err(|why| cannot(&why))?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text.as_bytes()).collect();
    found.ok().filter(|found| !found.is_empty()).ok_or_else(|| cannot("it has none in whole PEM form"))
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, String> {
    let cannot = |why: &str| format!("no private key can be read from {}: {why}", path.display());
    let text = text(path).map_err(|why| cannot(&why))?;
    PrivateKeyDer::from_pem_slice(text.as_bytes()).map_err(|_| cannot("it has none in PEM form without a passphrase"))
}

/// One certificate after another and one key, whatever else their files have.
fn pem(certificates: &[CertificateDer<'_>], key: &PrivateKeyDer<'_>) -> String {
    let section =
        |kind: &str, der: &[u8]| format!("-----BEGIN {kind}-----\n{}\n-----END {kind}-----\n", BASE64_STANDARD.encode(der));
    let kind = match key {
        PrivateKeyDer::Pkcs1(_) => "RSA PRIVATE KEY",
        PrivateKeyDer::Sec1(_) => "EC PRIVATE KEY",
        _ => "PRIVATE KEY",
    };
    let certificates: String = certificates.iter().map(|one| section("CERTIFICATE", one)).collect();
    certificates + &section(kind, key.secret_der())
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, fs};

    use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_RSA_SHA256};
    use serde_json::Value;
    use tempfile::TempDir;

    use super::*;
    use crate::provider::Class;

    /// A workload's certificate, its key and gcloud's list of them, and the certificate of another.
    struct Folder(TempDir);

    impl Folder {
        fn new() -> Self {
            let folder = Self(tempfile::tempdir().expect("a folder"));
            for name in ["own", "other"] {
                folder.write_pair(name, &KeyPair::generate().expect("a key"));
            }
            let workload = json!({ "cert_path": folder.path("own.pem"), "key_path": folder.path("own.key") });
            folder.write("list.json", &json!({ "version": 1, "cert_configs": { "workload": workload } }).to_string());
            folder
        }

        fn path(&self, name: &str) -> PathBuf {
            self.0.path().join(name)
        }

        fn write(&self, name: &str, text: &str) {
            fs::write(self.path(name), text).expect("written");
        }

        fn text(&self, name: &str) -> String {
            fs::read_to_string(self.path(name)).expect("a file")
        }

        fn write_pair(&self, name: &str, key: &KeyPair) {
            let certificate = CertificateParams::default().self_signed(key).expect("signed");
            self.write(&format!("{name}.pem"), &certificate.pem());
            self.write(&format!("{name}.key"), &key.serialize_pem());
        }

        fn of(&self, source: &Value) -> Result<Own> {
            let variables = BTreeMap::from([("HOME", self.path("home").display().to_string())]);
            let path = self.path("credentials.json");
            let place = Place { path: &path, variables: &variables, identity: None };
            place.certificate(&serde_json::from_value(source.clone()).expect("a source"))
        }

        /// By the list, with that chain.
        fn with_chain(&self, chain: &str) -> Result<Own> {
            self.write("chain.pem", chain);
            self.of(&json!({ "certificate_config_location": self.path("list.json"), "trust_chain_path": self.path("chain.pem") }))
        }

        fn listed(&self) -> Result<Own> {
            self.of(&json!({ "certificate_config_location": self.path("list.json") }))
        }
    }

    #[track_caller]
    fn fails(asked: Result<Own>, why: &str, fix: &str) {
        let error = asked.err().expect(why);
        let told = error.fix.clone().unwrap_or_default();
        assert!(error.class == Class::Denied && error.message.contains(why) && told.contains(fix), "{error}: {told}");
        assert!(error.message.contains("credentials.json") && !error.message.contains("very-secret"), "{error}");
    }

    fn in_base64(pem: &str) -> String {
        pem.lines().filter(|line| !line.starts_with("-----")).collect()
    }

    #[test]
    fn a_chain_begins_with_the_certificate_of_who_asks() {
        let folder = Folder::new();
        let (own, other) = (folder.text("own.pem"), folder.text("other.pem"));
        let both = json!([in_base64(&own), in_base64(&other)]).to_string();
        assert_eq!(folder.listed().expect("a certificate").subject_token, json!([in_base64(&own)]).to_string());
        for chain in [format!("{own}{other}"), format!("an authority's\n{other}")] {
            assert_eq!(folder.with_chain(&chain).expect("a chain").subject_token, both);
        }
        let fix = "let that file begin with it";
        for chain in [format!("{other}{own}"), format!("{own}{own}")] {
            fails(folder.with_chain(&chain), "is among those that vouch for it in", fix);
        }
        fails(folder.with_chain(&folder.text("own.key")), "chain.pem: it has none in whole PEM form", "`trust_chain_path`");
    }

    #[test]
    fn keys_are_taken_in_each_form_that_openssl_writes() {
        let folder = Folder::new();
        let taken = |form: &str| {
            let identity = folder.listed().expect(form).identity;
            reqwest::Client::builder().identity(identity).build().expect(form);
        };
        taken("PKCS#8");
        // A key of an older form lies within one of the newest, behind words about its kind.
        for (algorithm, form, at) in [(&PKCS_ECDSA_P256_SHA256, "EC", 29), (&PKCS_RSA_SHA256, "RSA", 26)] {
            let key = KeyPair::generate_for(algorithm).expect("a key");
            folder.write_pair("own", &key);
            let text = BASE64_STANDARD.encode(&key.serialize_der()[at..]);
            let text = format!("-----BEGIN {form} PRIVATE KEY-----\n{text}\n-----END {form} PRIVATE KEY-----\n");
            folder.write("own.key", &text);
            taken(form);
        }
    }

    #[test]
    fn each_file_that_does_not_help_is_named() {
        let folder = Folder::new();
        let list = folder.path("list.json");
        let one = "must have one, and it has";
        fails(folder.of(&json!({})), one, "create-cred-config");
        fails(folder.of(&json!({ "use_default_certificate_config": true, "certificate_config_location": list })), one, "both");
        let usual = folder.of(&json!({ "use_default_certificate_config": true }));
        fails(usual, "home/.config/gcloud/certificate_config.json, cannot be used: No such file", LIST);
        for (name, content, why, fix) in [
            ("own.key", folder.text("other.key"), "does not belong to the certificate in", "`key_path`"),
            ("own.key", "very-secret".to_owned(), "own.key: it has none in PEM form without a passphrase", "`key_path`"),
            ("own.pem", folder.text("own.key"), "own.pem: it has none in whole PEM form", "`cert_path`"),
            ("own.pem", format!("-----BEGIN CERTIFICATE-----\nvery-secret\n{}", folder.text("other.pem")), "in whole PEM form", ""),
            ("own.pem", " ".repeat(300_000), "own.pem: it has more than 262144 bytes", "`cert_path`"),
            ("list.json", json!({ "cert_configs": { "pkcs11": "very-secret" } }).to_string(), "has no `workload`", LIST),
            ("list.json", json!({ "cert_configs": "very-secret" }).to_string(), "has no `workload`", LIST),
            ("list.json", "very-secret".to_owned(), "list.json, cannot be used: it is not JSON", LIST),
        ] {
            let before = folder.text(name);
            folder.write(name, &content);
            fails(folder.listed(), why, fix);
            folder.write(name, &before);
        }
        folder.listed().expect("whole again");
        for (name, fix) in [("own.key", "`key_path`"), ("own.pem", "`cert_path`"), ("list.json", LIST)] {
            fs::remove_file(folder.path(name)).expect("removed");
            fails(folder.listed(), "No such file", fix);
        }
    }
}
