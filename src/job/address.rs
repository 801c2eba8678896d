//! Mistakes in the name of a store: text that is pasted from elsewhere. No part of it that may be a secret is repeated.

use std::net::Ipv4Addr;

/// The store that is gone with the process.
pub const MEMORY: &str = "memory:";

/// Parts of a connection string, in small letters.
const CONNECTION: [&str; 4] = ["accountkey=", "sharedaccesssignature=", "defaultendpointsprotocol=", "usedevelopmentstorage="];

/// Kinds of stores by URL.
const SCHEMES: [&str; 4] = ["azure", "https", "http", "file"];

/// Parts of the names of hosts at which Azure has blobs.
const HOSTS: [&str; 4] = [".blob.core.", ".dfs.core.", ".blob.storage.", ".core.windows."];

const UNKNOWN: &str = "unknown kind of store";
const INSTEAD: &str = "give a directory, or a file:/// or azure:// URL";

/// Whether a text is the path of a directory, so that a relative one begins somewhere.
pub fn is_directory(text: &str) -> bool {
    text != MEMORY && mistaken(text).is_none()
}

/// The mistake in a text that names no directory and no kind of store, and what to write.
pub fn mistaken(text: &str) -> Option<String> {
    let small = text.to_ascii_lowercase();
    if CONNECTION.iter().any(|part| small.contains(part)) {
        let instead = "set AZURE_STORAGE_CONNECTION_STRING to it, and name the store as azure://ACCOUNT/CONTAINER";
        return Some(format!("the store is a connection string, which would be kept in records; {instead}"));
    }
    if small.starts_with("sig=") || ["?sig=", "&sig=", ";sig="].iter().any(|part| small.contains(part)) {
        let instead =
            "set AZURE_STORAGE_SAS_TOKEN to what follows the question mark, and name the store as azure://ACCOUNT/CONTAINER";
        return Some(format!("the store carries a signature, which would be kept in records; {instead}"));
    }
    if let Some(mark) = [text.chars().next(), text.chars().last()].into_iter().flatten().find(|char| " \t\n\"'".contains(*char)) {
        let what = if mark.is_whitespace() { "a blank" } else { "a quotation mark" };
        return Some(format!("the store begins or ends with {what}; remove it"));
    }
    if text == "~" || text.starts_with("~/") || text.starts_with('$') {
        return Some(format!("the store begins with `{}`, which only a shell expands; write out the directory", &text[..1]));
    }
    match text.split_once("://") {
        Some((scheme, rest)) => Some(of_another_kind(scheme, rest)),
        None if text.is_empty() => Some(format!("{UNKNOWN} ``; {INSTEAD}")),
        None => without_scheme(&small),
    }
}

/// The mistake in the URL of a store that no directory is.
fn of_another_kind(scheme: &str, rest: &str) -> String {
    // Before an `@` a password may stand, and after a question mark too.
    let rest = rest.split('?').next().unwrap_or_default();
    if let Some(place) = of_data_lake(scheme, rest) {
        return format!("the store `{scheme}://{rest}` is named in Spark's way; write it as {place}");
    }
    let place = rest.rsplit_once('@').map_or_else(|| rest.to_owned(), |(_, place)| format!("…@{place}"));
    let known = scheme.to_ascii_lowercase();
    if known != scheme && SCHEMES.contains(&known.as_str()) {
        return format!("the store `{scheme}://{place}`: write `{known}` in small letters");
    }
    format!("{UNKNOWN} `{scheme}://{place}`; {INSTEAD}")
}

/// The container that a URL of Spark's drivers means, as it is written here: `abfss://CONTAINER@ACCOUNT.dfs.HOST/PREFIX`, and the
/// same of `wasbs` with `blob`.
fn of_data_lake(scheme: &str, rest: &str) -> Option<String> {
    let (container, rest) = rest.split_once('@').filter(|_| ["abfs", "abfss", "wasb", "wasbs"].contains(&scheme))?;
    let (host, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    let host = host.replacen(".dfs.", ".blob.", 1);
    let kind = if host.contains('.') { "https" } else { "azure" };
    Some(format!("{kind}://{host}/{container}/{prefix}").trim_end_matches('/').to_owned())
}

/// The mistake in an address, in small letters, that has lost its beginning or a part of that. Joined to a directory it would be a
/// path like any other.
fn without_scheme(small: &str) -> Option<String> {
    let begins = ["//", "\\\\"].iter().find_map(|slashes| small.strip_prefix(slashes)).unwrap_or(small);
    let first = begins.split(['/', '\\', '?', '#', '%']).next().unwrap_or_default();
    let place = first.rsplit('@').next().unwrap_or_default();
    let (host, port) = place.split_once(':').unwrap_or((place, ""));
    let is_host = host == "localhost" || host.parse::<Ipv4Addr>().is_ok() || HOSTS.iter().any(|part| host.contains(part));
    let of_that_name = "put ./ before it if it is a directory";
    if is_host || port.parse::<u16>().is_ok() {
        let lacks = if host == "localhost" || host.starts_with("127.") { "http" } else { "https" };
        return Some(format!("the store is at {host}, and its address lacks `{lacks}://` at its beginning; {of_that_name}"));
    }
    let broken =
        |scheme: &&str| small.strip_prefix(*scheme).is_some_and(|rest| ["//", "%3a"].iter().any(|mark| rest.starts_with(mark)));
    let scheme = first.split_once(':').map(|(scheme, _)| scheme).or_else(|| SCHEMES.into_iter().find(broken))?;
    Some(format!("{UNKNOWN} `{scheme}:`, without `//`; {INSTEAD}, and {of_that_name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_pasted_is_refused_without_its_secret() {
        let cases = [
            ("DefaultEndpointsProtocol=https;AccountName=acc;AccountKey=SECRET==", "AZURE_STORAGE_CONNECTION_STRING"),
            (
                "BlobEndpoint=https://acc.blob.core.windows.net;SharedAccessSignature=sv=1&sig=SECRET",
                "AZURE_STORAGE_CONNECTION_STRING",
            ),
            ("/home/me/DefaultEndpointsProtocol=https;AccountKey=SECRET", "AZURE_STORAGE_CONNECTION_STRING"),
            ("DefaultEndpointsProtocol=https;AccountName=acc", "AZURE_STORAGE_CONNECTION_STRING"),
            ("UseDevelopmentStorage=true", "AZURE_STORAGE_CONNECTION_STRING"),
            ("\"https://acc.blob.core.windows.net/box?sv=1&sig=SECRET\"", "AZURE_STORAGE_SAS_TOKEN"),
            ("HTTPS://acc.blob.core.windows.net/box?sig=SECRET", "AZURE_STORAGE_SAS_TOKEN"),
            ("abfss://box@acc.dfs.core.windows.net/team?sig=SECRET", "AZURE_STORAGE_SAS_TOKEN"),
            ("acc.blob.core.windows.net/box?sv=1&sig=SECRET", "AZURE_STORAGE_SAS_TOKEN"),
            ("acc.blob.core.windows.net/box", "`https://`"),
            ("HTTPS://acc.blob.core.windows.net/box", "write `https` in small letters"),
            (" azure://acc/box", "a blank; remove it"),
            ("'azure://acc/box'", "a quotation mark; remove it"),
            ("s3://KEY:SECRET@bucket", "unknown kind of store `s3://…@bucket`"),
            ("gs://bucket?token=SECRET", "unknown kind of store `gs://bucket`"),
            ("~/store", "only a shell expands"),
            ("$HOME/store", "begins with `$`, which only a shell expands"),
            ("", "give a directory"),
            ("ACC.blob.core.windows.net/box", "at acc.blob.core.windows.net, and its address lacks `https://`"),
            ("acc.dfs.core.windows.net", "`https://`"),
            ("acc.z7.blob.storage.azure.net/box", "`https://`"),
            ("//acc.blob.core.windows.net/box", "`https://`"),
            ("\\\\acc.file.core.windows.net\\share", "`https://`"),
            ("acc.blob.core.windows.net:443/box", "at acc.blob.core.windows.net, and"),
            ("acc.blob.core.windows.net?token=SECRET", "at acc.blob.core.windows.net, and"),
            ("me:SECRET@acc.blob.core.windows.net/box", "at acc.blob.core.windows.net, and"),
            ("127.0.0.1:10000/acc/box", "at 127.0.0.1, and its address lacks `http://`"),
            ("localhost/acc/box", "lacks `http://`"),
            ("azurite:10000/acc/box", "at azurite, and its address lacks `https://`"),
            ("azure:acc/box", "unknown kind of store `azure:`, without `//`"),
            ("azure:/acc/box", "`azure:`, without `//`"),
            ("az:acc/box", "`az:`"),
            ("https:/acc.blob.core.windows.net/box", "`https:`"),
            ("https:\\\\acc.blob.core.windows.net\\box", "`https:`"),
            ("https//acc.blob.core.windows.net/box", "`https:`"),
            ("https%3A%2F%2Facc.blob.core.windows.net%2Fbox%3Ftoken%3DSECRET", "`https:`"),
            ("file:/tmp/x", "`file:`, without `//`; give a directory, or a file:/// or azure:// URL, and put ./ before it"),
            ("memory:x", "`memory:`"),
            ("me:SECRET@box/x", "`me:`"),
            ("[::1]:10000/acc/box", "unknown kind of store"),
            ("C:\\store", "`c:`"),
            ("abfss://box@acc.dfs.core.windows.net/team/", "write it as https://acc.blob.core.windows.net/box/team"),
            ("abfss://box@acc.dfs.core.windows.net/team?token=SECRET", "write it as https://acc.blob.core.windows.net/box/team"),
            ("abfs://box@acc", "write it as azure://acc/box"),
        ];
        for (text, part) in cases {
            let why = mistaken(text).unwrap_or_default();
            assert!(why.contains(part) && !why.contains("SECRET"), "{text}: {why}");
        }
        for directory in [
            "store",
            "./a.blob/b",
            "/data/my store",
            "~store",
            "a=b;c",
            "./a:b",
            "../azure:acc",
            "a/b:c",
            "/data/a:1",
            "./acc.blob.core.windows.net/box",
            "/home/acc.blob.core.windows.net/box",
            "https/x",
            "v1.2.3/x",
            "run@2026-11-30T02",
        ] {
            assert!(is_directory(directory), "{directory}: {:?}", mistaken(directory));
        }
        for other in [MEMORY, "azure://acc/box", "file:///tmp/x"] {
            assert!(!is_directory(other), "{other}");
        }
    }
}
