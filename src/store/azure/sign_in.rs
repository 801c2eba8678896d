//! Which credential is used: the first of [`WAYS`], or else of Entra's, for which the environment has what it needs.

use std::{
    collections::HashMap,
    ffi::{OsStr, OsString},
};

use super::{
    super::{Result, StoreError},
    ENDPOINT,
    shared_key::SharedKey,
};
use crate::{
    identity::{
        Variables,
        entra::{self, TokenSource},
    },
    job::finding::Finding,
};

/// The credential that signs requests. It has no `Debug`, so that nothing secret can be printed by accident.
pub(super) enum Credential {
    Key(SharedKey),
    /// The parameters of a shared access signature, without the question mark.
    Sas(String),
    Token(TokenSource),
}

type Open = fn(Variables<'_>, account: &str) -> Result<Credential>;

/// Each with the variable that makes it ready.
const WAYS: [(&str, &str, Open); 3] = [
    ("connection string", CONNECTION_STRING, from_connection_string),
    ("account key", KEY, from_key),
    ("shared access signature", SAS, from_sas),
];

pub(super) const CONNECTION_STRING: &str = "AZURE_STORAGE_CONNECTION_STRING";
pub(super) const KEY: &str = "AZURE_STORAGE_KEY";
/// Variable with a shared access signature, an agent's among them.
pub const SAS: &str = "AZURE_STORAGE_SAS_TOKEN";
/// With it the signature above is for the container of one job only, and this one for reading the store.
pub(super) const READ_SAS: &str = "FTCTL_STORE_READ_SAS";
/// Variables that an agent with a signature need not have, besides [`entra::SECRETS`].
pub(super) const SECRETS: [&str; 2] = [CONNECTION_STRING, KEY];
/// Variables that [`WAYS`] go by.
const INVOLVED: [&str; 5] = [CONNECTION_STRING, KEY, SAS, ENDPOINT, "AZURE_STORAGE_ACCOUNT"];

/// Whether a variable of this name has to do with how somebody signs in to a container.
pub fn is_involved(name: &OsStr) -> bool {
    INVOLVED.iter().chain(&entra::INVOLVED).any(|known| name == *known)
}

/// Which way of signing in to a container is used, and the order in which they are tried.
pub fn sign_in(variables: Variables<'_>) -> Finding {
    let own = WAYS.iter().map(|(name, variable, _)| (*name, *variable, variables(variable).is_some()));
    let ways: Vec<_> = own.chain(entra::WAYS.iter().map(|way| (way.name, way.needs, way.is_ready(variables)))).collect();
    let order = ways.iter().map(|(name, ..)| *name).collect::<Vec<_>>().join(", ");
    match ways.iter().find(|(.., ready)| *ready) {
        Some((name, needs, _)) => Finding::good("sign-in", format!("{name} (from {needs}); the first that is ready of: {order}")),
        None => Finding::bad(
            "sign-in",
            format!("none is ready of: {order}"),
            "set AZURE_STORAGE_KEY, AZURE_STORAGE_SAS_TOKEN or AZURE_STORAGE_CONNECTION_STRING, or run `az login`",
        ),
    }
}

/// Variables that an agent on another machine can sign in with as well as a user at this one: they need no files or programs here.
const CARRIED: [&str; 5] = [CONNECTION_STRING, KEY, SAS, READ_SAS, ENDPOINT];

/// See [`CARRIED`]; nothing where no secret is among it.
pub fn carried(variables: &[(OsString, OsString)]) -> Vec<(String, String)> {
    let text = |(name, value): &(OsString, OsString)| Some((name.to_str()?.to_owned(), value.to_str()?.to_owned()));
    let is_carried = |name: &str| CARRIED.contains(&name) || entra::CARRIED.contains(&name);
    let found: Vec<_> = variables.iter().filter_map(text).filter(|(name, value)| is_carried(name) && !value.is_empty()).collect();
    let secret = |name: &str| [CONNECTION_STRING, KEY, SAS, "AZURE_CLIENT_SECRET"].contains(&name);
    if found.iter().any(|(name, _)| secret(name)) { found } else { Vec::new() }
}

pub(super) fn choose(variables: Variables<'_>, account: &str) -> Result<Credential> {
    if let Some((.., open)) = WAYS.iter().find(|(_, variable, _)| variables(variable).is_some()) {
        return open(variables, account);
    }
    let Some(way) = entra::WAYS.iter().find(|way| way.is_ready(variables)) else {
        return Err(StoreError::SignIn(format!(
            "there is no way to sign in to the account {account}; set AZURE_STORAGE_KEY or {SAS}, or log in with `az login`; `ftctl \
             doctor` shows all the ways"
        )));
    };
    way.open(variables, entra::STORAGE).map(Credential::Token).map_err(StoreError::SignIn)
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

/// The credential to read the store with, for an agent whose own signature is for its job's container.
pub(super) fn to_read(variables: Variables<'_>) -> Result<Option<Credential>> {
    variables(READ_SAS).map(|_| signature_in(variables, READ_SAS)).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::finding::Health;

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
        let found = sign_in(&of(&[sas]));
        assert!(found.message.starts_with("shared access signature (from AZURE_STORAGE_SAS_TOKEN); "), "{}", found.message);
        assert_eq!(sign_in(&of(&[])).health, Health::Bad);
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
