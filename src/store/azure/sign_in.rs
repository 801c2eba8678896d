//! Which credential is used: the first of [`WAYS`], or else of Entra's, for which the environment has what it needs.

use std::{
    collections::HashMap,
    ffi::{OsStr, OsString},
};

use reqwest::Url;

use super::{
    super::{Result, StoreError},
    ENDPOINT,
    location::{account_at, account_of},
    shared_key::SharedKey,
};
use crate::{
    identity::{
        Variables,
        entra::{self, TokenSource},
    },
    job::finding::Finding,
    transit,
};

/// The credential that signs requests. It has no `Debug`, so that nothing secret can be printed by accident.
pub(super) enum Credential {
    Key(SharedKey),
    /// The parameters of a shared access signature, without the question mark.
    Sas(String),
    Token(TokenSource),
}

/// The account of the storage emulator, and its key: both are in Microsoft's documentation, and every emulator has them.
const EMULATOR: &str = "devstoreaccount1";
const EMULATOR_KEY: &str = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

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

/// Whether a variable of this name has to do with signing in to a container.
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

/// Where the user says that the blobs are, by a variable of its own or in the connection string.
pub(super) fn endpoint(variables: Variables<'_>) -> Result<Option<String>> {
    match variables(ENDPOINT) {
        Some(text) if is_service(&text) => Ok(Some(text)),
        Some(_) => Err(StoreError::Invalid(format!("{ENDPOINT} cannot be used: it is {NO_SERVICE}"))),
        None => Ok(connection_string(variables)?.remove("blobendpoint")),
    }
}

const NO_SERVICE: &str = "not https to a host, as in https://ACCOUNT.blob.core.windows.net, and not http to an emulator on this \
                          machine, as in http://127.0.0.1:10000/ACCOUNT";

fn is_service(text: &str) -> bool {
    let Ok(url) = Url::parse(text) else { return false };
    let has_more = url.query().or(url.fragment()).or(url.password()).is_some() || !url.username().is_empty();
    transit::is_private(&url) && !has_more && url.host_str().is_some_and(|host| host.split('.').all(|label| !label.is_empty()))
}

/// The value of a variable, without white space and quotes around it: it was copied from a portal, a script or JSON.
fn pasted(variables: Variables<'_>, name: &str) -> String {
    let text = variables(name).unwrap_or_default();
    let text = text.trim();
    let inside = |quote| text.strip_prefix(quote)?.strip_suffix(quote);
    inside('"').or_else(|| inside('\'')).unwrap_or(text).trim().to_owned()
}

fn unusable(what: &str, why: &str) -> StoreError {
    StoreError::SignIn(format!("{what} cannot be used: {why}"))
}

fn from_connection_string(variables: Variables<'_>, account: &str) -> Result<Credential> {
    let mut parts = connection_string(variables)?;
    let of_endpoint = || parts.get("blobendpoint").and_then(|endpoint| account_at(endpoint));
    if let Some(other) = parts.get("accountname").cloned().or_else(of_endpoint).filter(|name| name != account) {
        return Err(unusable(CONNECTION_STRING, &format!("it is for the account {other}, the store is in {account}")));
    }
    match (parts.remove("accountkey"), parts.remove("sharedaccesssignature")) {
        (Some(key), _) => key_of(account, &key, CONNECTION_STRING),
        (None, Some(signature)) => signature_from(&signature, account).map_err(|why| unusable(CONNECTION_STRING, &why)),
        (None, None) => Err(unusable(CONNECTION_STRING, "it has neither AccountKey nor SharedAccessSignature")),
    }
}

fn connection_string(variables: Variables<'_>) -> Result<HashMap<String, String>> {
    parse_connection_string(&pasted(variables, CONNECTION_STRING)).map_err(|why| unusable(CONNECTION_STRING, &why))
}

/// Parts of a connection string that say something when they are there.
const PARTS: [&str; 6] =
    ["AccountName", "AccountKey", "SharedAccessSignature", "BlobEndpoint", "EndpointSuffix", "DefaultEndpointsProtocol"];

/// `Name=value;…`: names in lower case; values may hold `=`. What it says in a short form is written out: the emulator on this
/// machine, and the cloud that `EndpointSuffix` names. The error repeats no value.
fn parse_connection_string(text: &str) -> std::result::Result<HashMap<String, String>, String> {
    let pairs = text.split(';').filter_map(|pair| pair.split_once('='));
    let mut parts: HashMap<_, _> = pairs.map(|(name, value)| (name.trim().to_lowercase(), value.trim().to_owned())).collect();
    if let Some(part) = PARTS.iter().find(|part| parts.get(&part.to_lowercase()).is_some_and(String::is_empty)) {
        return Err(format!("its {part} is empty"));
    }
    let mut origin = "BlobEndpoint";
    if parts.get("usedevelopmentstorage").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
        origin = "DevelopmentStorageProxyUri";
        // A port there is passed over, as by Azure's own libraries.
        let host = parts.remove("developmentstorageproxyuri").unwrap_or_else(|| "http://127.0.0.1".to_owned());
        let host = host.trim_end_matches('/');
        let host = host.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok()).map_or(host, |(host, _)| host);
        let endpoint = format!("{host}:10000/{EMULATOR}");
        let known = [("accountname", EMULATOR.to_owned()), ("accountkey", EMULATOR_KEY.to_owned()), ("blobendpoint", endpoint)];
        parts.extend(known.map(|(name, value)| (name.to_owned(), value)));
    }
    if let (Some(account), Some(suffix), None) = (parts.get("accountname"), parts.get("endpointsuffix"), parts.get("blobendpoint"))
    {
        let endpoint = in_cloud(account, suffix, parts.get("defaultendpointsprotocol").map_or("https", String::as_str))?;
        parts.insert("blobendpoint".to_owned(), endpoint);
    }
    match parts.get("blobendpoint") {
        Some(endpoint) if !is_service(endpoint) => Err(format!("its {origin} is {NO_SERVICE}")),
        _ => Ok(parts),
    }
}

/// The address of an account's blobs at the cloud that `EndpointSuffix` names.
fn in_cloud(account: &str, suffix: &str, protocol: &str) -> std::result::Result<String, String> {
    let is_name = |label: &str| !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    if !protocol.eq_ignore_ascii_case("https") {
        return Err("its DefaultEndpointsProtocol is not https".to_owned());
    }
    if !is_name(account) {
        return Err("its AccountName is not the name of an account".to_owned());
    }
    if !suffix.split('.').all(is_name) {
        return Err("its EndpointSuffix does not end the names of hosts, as core.windows.net does".to_owned());
    }
    Ok(format!("https://{account}.blob.{suffix}"))
}

fn from_key(variables: Variables<'_>, account: &str) -> Result<Credential> {
    if let Some(other) = variables("AZURE_STORAGE_ACCOUNT").filter(|name| name != account) {
        let why = format!("AZURE_STORAGE_ACCOUNT says that it is for {other}, the store is in {account}");
        return Err(unusable(KEY, &why));
    }
    key_of(account, &pasted(variables, KEY), KEY)
}

fn key_of(account: &str, key: &str, origin: &str) -> Result<Credential> {
    SharedKey::new(account, key).map(Credential::Key).ok_or_else(|| unusable(origin, "its key is not base64"))
}

fn from_sas(variables: Variables<'_>, account: &str) -> Result<Credential> {
    signature_in(variables, SAS, account)
}

fn signature_in(variables: Variables<'_>, name: &str, account: &str) -> Result<Credential> {
    signature_from(&pasted(variables, name), account).map_err(|why| unusable(name, &why))
}

/// A signature as portals, scripts and mails give it: a whole URL, with the question mark or without, with `&` as XML and JSON
/// write it, broken over lines, or with a plus sign that a URL would not have.
fn signature_from(text: &str, account: &str) -> std::result::Result<Credential, String> {
    let (address, query) = text.split_once('?').unwrap_or(("", text));
    let other = Url::parse(address).ok().and_then(|url| account_of(&url)).filter(|other| other != account);
    if let Some(other) = other {
        return Err(format!("it is for the account {other}, the store is in {account}"));
    }
    let query: String = query.replace("&amp;", "&").replace("\\u0026", "&").split(['\r', '\n']).map(str::trim).collect();
    // A space is a plus sign that was decoded: neither can be in a signature otherwise.
    let query = query.replace(['+', ' '], "%2B");
    if query.contains("sig=") { Ok(Credential::Sas(query)) } else { Err("it has no `sig=`".to_owned()) }
}

/// The credential to read the store with, for an agent whose own signature is for its job's container.
pub(super) fn to_read(variables: Variables<'_>, account: &str) -> Result<Option<Credential>> {
    variables(READ_SAS).map(|_| signature_in(variables, READ_SAS, account)).transpose()
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
        assert_eq!(kind(&[(CONNECTION_STRING, "BlobEndpoint=https://x;SharedAccessSignature=sv=1&sig=x")]).unwrap(), "sas");
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
            (&[(SAS, "https://other.blob.core.windows.net/box?sv=1&sig=SECRET")], "for the account other"),
            (&[(SAS, "http://127.0.0.1:10000/other/box?sv=1&sig=SECRET")], "for the account other"),
        ] {
            let error = kind(pairs).unwrap_err().to_string();
            assert!(error.contains(why) && !error.contains("SECRET"), "{error}");
        }
    }

    #[test]
    fn a_signature_is_read_as_people_paste_it() {
        let wanted = "sv=2023-11-03&sp=rl&sig=a%2Bb%2Fc%3D";
        for text in [
            wanted,
            "?sv=2023-11-03&sp=rl&sig=a%2Bb%2Fc%3D",
            "  \"sv=2023-11-03&sp=rl&sig=a%2Bb%2Fc%3D\"\n",
            "'?sv=2023-11-03&sp=rl&sig=a%2Bb%2Fc%3D'",
            "sv=2023-11-03&sp=rl&sig=a+b%2Fc%3D",
            "sv=2023-11-03&sp=rl&sig=a b%2Fc%3D",
            "sv=2023-11-03&amp;sp=rl&amp;sig=a%2Bb%2Fc%3D",
            "sv=2023-11-03\\u0026sp=rl\\u0026sig=a%2Bb%2Fc%3D",
            "sv=2023-11-03&sp=rl&\r\n  sig=a%2Bb%2Fc%3D",
            "https://acc.blob.core.windows.net/box?sv=2023-11-03&sp=rl&sig=a%2Bb%2Fc%3D",
            "https://acc.blob.core.windows.net:443/?sv=2023-11-03&sp=rl&sig=a%2Bb%2Fc%3D",
            "http://127.0.0.1:10000/acc/box?sv=2023-11-03&sp=rl&sig=a%2Bb%2Fc%3D",
        ] {
            let Ok(Credential::Sas(read)) = choose(&of(&[(SAS, text)]), "acc") else { panic!("{text}") };
            assert_eq!(read, wanted, "{text}");
        }
        let string = "BlobEndpoint=https://acc.blob.core.windows.net/;SharedAccessSignature=?sv=2023-11-03&sp=rl&sig=a+b%2Fc%3D";
        let Ok(Credential::Sas(read)) = choose(&of(&[(CONNECTION_STRING, string)]), "acc") else { panic!("{string}") };
        assert_eq!(read, wanted);
    }

    #[test]
    fn connection_strings_say_where_the_blobs_are() {
        for (text, at) in [
            ("UseDevelopmentStorage=true", Some("http://127.0.0.1:10000/devstoreaccount1")),
            ("'UseDevelopmentStorage=true;'", Some("http://127.0.0.1:10000/devstoreaccount1")),
            (
                "UseDevelopmentStorage=true;DevelopmentStorageProxyUri=http://localhost/",
                Some("http://localhost:10000/devstoreaccount1"),
            ),
            (
                "UseDevelopmentStorage=true;DevelopmentStorageProxyUri=http://127.0.0.2:9",
                Some("http://127.0.0.2:10000/devstoreaccount1"),
            ),
            (
                "DefaultEndpointsProtocol=https;AccountName=acc;AccountKey=a2V5;EndpointSuffix=core.chinacloudapi.cn",
                Some("https://acc.blob.core.chinacloudapi.cn"),
            ),
            (
                "AccountName=acc;AccountKey=a2V5;EndpointSuffix=core.usgovcloudapi.net",
                Some("https://acc.blob.core.usgovcloudapi.net"),
            ),
            ("\"AccountName=acc;AccountKey=a2V5;BlobEndpoint=https://x.y;EndpointSuffix=core.windows.net\"", Some("https://x.y")),
            ("AccountName=acc;AccountKey=a2V5", None),
        ] {
            assert_eq!(endpoint(&of(&[(CONNECTION_STRING, text)])).unwrap().as_deref(), at, "{text}");
        }
        let emulator = [(CONNECTION_STRING, "UseDevelopmentStorage=true")];
        assert!(matches!(choose(&of(&emulator), EMULATOR), Ok(Credential::Key(_))));
        assert!(choose(&of(&emulator), "acc").is_err_and(|error| error.to_string().contains("for the account devstoreaccount1")));
        let other = [(CONNECTION_STRING, "BlobEndpoint=https://other.blob.core.windows.net/;SharedAccessSignature=sv=1&sig=x")];
        assert!(choose(&of(&other), "acc").is_err_and(|error| error.to_string().contains("for the account other")));
    }

    #[test]
    fn a_mistake_in_the_place_of_the_blobs_names_the_variable_and_the_part() {
        for (rest, part) in [
            ("DefaultEndpointsProtocol=http;EndpointSuffix=core.windows.net", "DefaultEndpointsProtocol is not https"),
            ("DefaultEndpointsProtocol=ftp;EndpointSuffix=core.windows.net", "DefaultEndpointsProtocol is not https"),
            ("EndpointSuffix=.core.chinacloudapi.cn", "EndpointSuffix does not"),
            ("EndpointSuffix=https://core.windows.net/", "EndpointSuffix does not"),
            ("EndpointSuffix=core.windows.net/", "EndpointSuffix does not"),
            ("EndpointSuffix=core.windows.net@any.host", "EndpointSuffix does not"),
            ("EndpointSuffix=", "EndpointSuffix is empty"),
            ("BlobEndpoint=", "BlobEndpoint is empty"),
            ("BlobEndpoint=127.0.0.1:1/acc", "BlobEndpoint is not https"),
            ("BlobEndpoint=acc.blob.core.windows.net", "BlobEndpoint is not https"),
            ("BlobEndpoint=acc.blob.core.windows.net:443", "BlobEndpoint is not https"),
            ("BlobEndpoint=http://acc.blob.core.windows.net", "BlobEndpoint is not https"),
            ("BlobEndpoint=https://acc.blob..core.windows.net", "BlobEndpoint is not https"),
            ("BlobEndpoint=https://acc.blob.core.windows.net/?sig=SECRET", "BlobEndpoint is not https"),
            ("BlobEndpoint=https://me:SECRET@acc.blob.core.windows.net", "BlobEndpoint is not https"),
            ("UseDevelopmentStorage=true;DevelopmentStorageProxyUri=localhost", "DevelopmentStorageProxyUri is not https"),
        ] {
            let text = format!("AccountName=acc;AccountKey=a2V5;{rest}");
            let error = endpoint(&of(&[(CONNECTION_STRING, &text)])).unwrap_err().to_string();
            assert!(error.contains(CONNECTION_STRING) && error.contains(part) && !error.contains("SECRET"), "{text}: {error}");
        }
        let error = endpoint(&of(&[(CONNECTION_STRING, "AccountName=a/b;EndpointSuffix=core.windows.net")])).unwrap_err();
        assert!(error.to_string().contains("its AccountName is not the name"), "{error}");
        let error = endpoint(&of(&[(ENDPOINT, "127.0.0.1:10000/acc")])).unwrap_err();
        assert!(error.to_string().starts_with("FTCTL_ENDPOINT_BLOB cannot be used: it is not https"), "{error}");
    }
}
