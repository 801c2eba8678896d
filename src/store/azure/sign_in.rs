//! Which credential is used: the first of [`WAYS`] for which the environment has what it needs.

use std::{
    collections::HashMap,
    ffi::{OsStr, OsString},
};

use super::{
    super::{Result, StoreError},
    ENDPOINT,
    entra::{self, TokenSource},
    shared_key::SharedKey,
};

/// What requests are signed with. Has no `Debug`, so that nothing secret can be printed by accident.
pub(super) enum Credential {
    Key(SharedKey),
    /// The parameters of a shared access signature, without the question mark.
    Sas(String),
    Token(TokenSource),
}

/// An environment variable; empty ones count as absent.
pub type Variables<'a> = &'a dyn Fn(&str) -> Option<String>;

/// One way to sign in, as `doctor` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Way {
    pub name: &'static str,
    /// The first that is ready is used.
    pub ready: bool,
    /// The variables, or the program, that make it ready.
    pub needs: &'static str,
}

type Open = fn(Variables<'_>, account: &str) -> Result<Credential>;

/// Ready when all variables are set; then tried with the function, whose error is the user's.
const WAYS: &[(&str, &[&str], &str, Open)] = &[
    ("connection string", &[CONNECTION_STRING], CONNECTION_STRING, from_connection_string),
    ("account key", &[KEY], KEY, from_key),
    ("shared access signature", &[SAS], SAS, from_sas),
    (
        "Entra: client secret",
        &["AZURE_TENANT_ID", "AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET"],
        "AZURE_TENANT_ID, AZURE_CLIENT_ID, AZURE_CLIENT_SECRET",
        entra::client_secret,
    ),
    (
        "Entra: workload identity",
        &["AZURE_TENANT_ID", "AZURE_CLIENT_ID", "AZURE_FEDERATED_TOKEN_FILE"],
        "AZURE_TENANT_ID, AZURE_CLIENT_ID, AZURE_FEDERATED_TOKEN_FILE",
        entra::workload_identity,
    ),
    (
        "Entra: GitHub's identity of this run",
        &["AZURE_TENANT_ID", "AZURE_CLIENT_ID", "ACTIONS_ID_TOKEN_REQUEST_URL", "ACTIONS_ID_TOKEN_REQUEST_TOKEN"],
        "AZURE_TENANT_ID, AZURE_CLIENT_ID and a workflow with `id-token: write`",
        entra::github,
    ),
    (
        "Entra: managed identity",
        &["FTCTL_AZURE_MANAGED_IDENTITY"],
        "FTCTL_AZURE_MANAGED_IDENTITY=system, or the client id of one",
        entra::managed_identity,
    ),
    ("Entra: az login", &[AZ], "the program az, logged in", entra::azure_cli),
];

pub(super) const CONNECTION_STRING: &str = "AZURE_STORAGE_CONNECTION_STRING";
pub(super) const KEY: &str = "AZURE_STORAGE_KEY";
/// Of a shared access signature, an agent's among them.
pub const SAS: &str = "AZURE_STORAGE_SAS_TOKEN";
/// With it the signature above is for the container of one job only, and this one for reading the store.
pub(super) const READ_SAS: &str = "FTCTL_STORE_READ_SAS";
/// What whoever has a signature need not have.
pub(super) const SECRETS: &[&str] = &[
    CONNECTION_STRING,
    KEY,
    "AZURE_CLIENT_SECRET",
    "AZURE_FEDERATED_TOKEN_FILE",
    "ACTIONS_ID_TOKEN_REQUEST_URL",
    "ACTIONS_ID_TOKEN_REQUEST_TOKEN",
];
/// What any of [`WAYS`] goes by, besides the path to `az`.
const INVOLVED: &[&str] = &[
    CONNECTION_STRING,
    KEY,
    SAS,
    ENDPOINT,
    "AZURE_STORAGE_ACCOUNT",
    "AZURE_TENANT_ID",
    "AZURE_CLIENT_ID",
    "AZURE_CLIENT_SECRET",
    "AZURE_FEDERATED_TOKEN_FILE",
    "AZURE_AUTHORITY_HOST",
    "AZURE_CONFIG_DIR",
    "ACTIONS_ID_TOKEN_REQUEST_URL",
    "ACTIONS_ID_TOKEN_REQUEST_TOKEN",
    "FTCTL_AZURE_MANAGED_IDENTITY",
    "IDENTITY_ENDPOINT",
    "IDENTITY_HEADER",
];

/// Whether a variable of this name has to do with how somebody signs in to a container.
pub fn is_involved(name: &OsStr) -> bool {
    INVOLVED.iter().any(|known| name == *known)
}

/// Not a variable: whether `az` is in the path.
const AZ: &str = "az";

fn is_ready(variables: Variables<'_>, needed: &[&str]) -> bool {
    needed.iter().all(|name| if *name == AZ { entra::has_azure_cli(variables) } else { variables(name).is_some() })
}

/// All ways, in the order in which they are tried.
pub fn ways(variables: Variables<'_>) -> Vec<Way> {
    let way = |(name, needed, needs, _): &(&'static str, &[&str], &'static str, Open)| Way {
        name,
        ready: is_ready(variables, needed),
        needs,
    };
    WAYS.iter().map(way).collect()
}

/// A token of Entra ID for another service of Azure than storage, by the first of the ways through Entra that is ready; `None` without
/// any. The error is for a person and has nothing secret.
pub fn entra_token(variables: Variables<'_>) -> impl Future<Output = Option<Result<String, String>>> + Send + use<> {
    let entra = |(name, needed, ..): &&(&str, &[&str], &str, Open)| name.starts_with("Entra") && is_ready(variables, needed);
    let opened = WAYS.iter().find(entra).map(|(.., open)| open(variables, ""));
    async move {
        Some(match opened? {
            Ok(Credential::Token(source)) => source.management().await,
            Ok(_) => Err("it gives no token".to_owned()),
            Err(error) => Err(error.to_string()),
        })
    }
}

/// What an agent on another machine can sign in with as well as whoever sits at this one: nothing that needs files or programs here.
const CARRIED: [&str; 9] = [
    CONNECTION_STRING,
    KEY,
    SAS,
    READ_SAS,
    ENDPOINT,
    "AZURE_TENANT_ID",
    "AZURE_CLIENT_ID",
    "AZURE_CLIENT_SECRET",
    "AZURE_AUTHORITY_HOST",
];

/// See [`CARRIED`]; nothing where no secret is among it.
pub fn carried(variables: &[(OsString, OsString)]) -> Vec<(String, String)> {
    let text = |(name, value): &(OsString, OsString)| Some((name.to_str()?.to_owned(), value.to_str()?.to_owned()));
    let found: Vec<_> =
        variables.iter().filter_map(text).filter(|(name, value)| CARRIED.contains(&name.as_str()) && !value.is_empty()).collect();
    let secret = |name: &str| [CONNECTION_STRING, KEY, SAS, "AZURE_CLIENT_SECRET"].contains(&name);
    if found.iter().any(|(name, _)| secret(name)) { found } else { Vec::new() }
}

pub(super) fn choose(variables: Variables<'_>, account: &str) -> Result<Credential> {
    match WAYS.iter().find(|(_, needed, ..)| is_ready(variables, needed)) {
        Some((.., open)) => open(variables, account),
        None => Err(StoreError::SignIn(format!(
            "there is no way to sign in to the account {account}; set AZURE_STORAGE_KEY or {SAS}, or log in with `az login`; `ftctl \
             doctor` shows all the ways"
        ))),
    }
}

/// Where the connection string says that the blobs are.
pub(super) fn endpoint(variables: Variables<'_>) -> Option<String> {
    parse_connection_string(&variables(CONNECTION_STRING)?).remove("blobendpoint")
}

fn unusable(what: &str, why: &str) -> StoreError {
    StoreError::SignIn(format!("{what} cannot be used: {why}"))
}

fn from_connection_string(variables: Variables<'_>, account: &str) -> Result<Credential> {
    let mut parts = parse_connection_string(&variables(CONNECTION_STRING).unwrap_or_default());
    if let Some(other) = parts.get("accountname").filter(|name| *name != account) {
        return Err(unusable(CONNECTION_STRING, &format!("it is for the account {other}, the store is in {account}")));
    }
    match (parts.remove("accountkey"), parts.remove("sharedaccesssignature")) {
        (Some(key), _) => key_of(account, &key, CONNECTION_STRING),
        (None, Some(signature)) => Ok(Credential::Sas(signature.trim_start_matches('?').to_owned())),
        (None, None) => Err(unusable(CONNECTION_STRING, "it has neither AccountKey nor SharedAccessSignature")),
    }
}

/// `Name=value;…`: names in lower case; values may hold `=`.
fn parse_connection_string(text: &str) -> HashMap<String, String> {
    let pairs = text.split(';').filter_map(|pair| pair.split_once('='));
    pairs.map(|(name, value)| (name.trim().to_lowercase(), value.trim().to_owned())).collect()
}

fn from_key(variables: Variables<'_>, account: &str) -> Result<Credential> {
    if let Some(other) = variables("AZURE_STORAGE_ACCOUNT").filter(|name| name != account) {
        let why = format!("AZURE_STORAGE_ACCOUNT says that it is for {other}, the store is in {account}");
        return Err(unusable(KEY, &why));
    }
    key_of(account, &variables(KEY).unwrap_or_default(), KEY)
}

fn key_of(account: &str, key: &str, origin: &str) -> Result<Credential> {
    SharedKey::new(account, key).map(Credential::Key).ok_or_else(|| unusable(origin, "its key is not base64"))
}

fn from_sas(variables: Variables<'_>, _: &str) -> Result<Credential> {
    signature_in(variables, SAS)
}

fn signature_in(variables: Variables<'_>, name: &str) -> Result<Credential> {
    let signature = variables(name).unwrap_or_default();
    let signature = signature.trim().trim_start_matches('?').to_owned();
    if signature.contains("sig=") { Ok(Credential::Sas(signature)) } else { Err(unusable(name, "it has no `sig=`")) }
}

/// What an agent reads the store with whose own signature is for its job's container.
pub(super) fn to_read(variables: Variables<'_>) -> Result<Option<Credential>> {
    variables(READ_SAS).map(|_| signature_in(variables, READ_SAS)).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of<'a>(pairs: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<String> + 'a {
        |name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
    }

    fn kind(pairs: &[(&str, &str)]) -> Result<&'static str> {
        Ok(match choose(&of(pairs), "acc")? {
            Credential::Key(_) => "key",
            Credential::Sas(_) => "sas",
            Credential::Token(_) => "token",
        })
    }

    #[test]
    fn the_first_way_that_is_ready_is_used() {
        let key = ("AZURE_STORAGE_KEY", "a2V5");
        let sas = (SAS, "?sv=1&sig=x");
        assert_eq!(kind(&[sas, key]).unwrap(), "key");
        assert_eq!(kind(&[sas]).unwrap(), "sas");
        assert_eq!(kind(&[(CONNECTION_STRING, "AccountName=acc;AccountKey=a2V5=="), sas]).err().map(|_| ()), Some(()));
        assert_eq!(kind(&[(CONNECTION_STRING, "AccountName=acc;AccountKey=a2V5"), sas]).unwrap(), "key");
        assert_eq!(kind(&[(CONNECTION_STRING, "BlobEndpoint=http://x;SharedAccessSignature=sv=1&sig=x")]).unwrap(), "sas");
        let ready: Vec<&str> = ways(&of(&[sas])).into_iter().filter(|way| way.ready).map(|way| way.name).collect();
        assert_eq!(ready, ["shared access signature"]);
    }

    #[test]
    fn what_cannot_be_used_says_why_and_never_what_is_secret() {
        for (pairs, why) in [
            (&[][..], "no way to sign in to the account acc"),
            (&[(CONNECTION_STRING, "AccountName=other;AccountKey=SECRET")], "for the account other"),
            (&[(CONNECTION_STRING, "AccountName=acc")], "neither AccountKey"),
            (&[("AZURE_STORAGE_KEY", "SECRET!")], "not base64"),
            (&[("AZURE_STORAGE_KEY", "SECRET"), ("AZURE_STORAGE_ACCOUNT", "other")], "for other"),
            (&[(SAS, "SECRET")], "no `sig=`"),
        ] {
            let error = kind(pairs).unwrap_err().to_string();
            assert!(error.contains(why) && !error.contains("SECRET"), "{error}");
        }
    }
}
