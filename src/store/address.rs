//! Mistakes in the name of a store: text that is pasted from elsewhere. No part of it that may be a secret is repeated.

use super::azure;

/// Parts of a connection string, in small letters.
const CONNECTION: [&str; 4] = ["accountkey=", "sharedaccesssignature=", "defaultendpointsprotocol=", "usedevelopmentstorage="];

/// The mistake in a text that names no directory and no kind of store, and what to write.
pub(super) fn mistaken(text: &str) -> Option<String> {
    let small = text.to_ascii_lowercase();
    let host = small.split('/').next().unwrap_or_default();
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
    if text == "~" || text.starts_with("~/") || text.contains("/~/") {
        return Some("the store begins with `~`, which only a shell expands; write out the directory".to_owned());
    }
    if let Some(place) = azure::of_data_lake(text) {
        return Some(format!("the store `{text}` is named in Spark's way; write it as {place}"));
    }
    if let Some((scheme, rest)) = text.split_once("://") {
        // Before an `@` a password may stand, and after a question mark too.
        let place = rest.split('?').next().unwrap_or_default();
        let place = place.rsplit_once('@').map_or_else(|| place.to_owned(), |(_, place)| format!("…@{place}"));
        let known = scheme.to_ascii_lowercase();
        if known != scheme && ["azure", "https", "http", "file"].contains(&known.as_str()) {
            return Some(format!("the store `{scheme}://{place}`: write `{known}` in small letters"));
        }
        return Some(format!("unknown kind of store `{scheme}://{place}`; give a directory, or a file:/// or azure:// URL"));
    }
    if host.contains(".blob.core.") || host.contains(".dfs.core.") {
        return Some(format!("the store is at {host}, and its address lacks `https://` at its beginning"));
    }
    text.is_empty().then(|| "unknown kind of store ``; give a directory, or a file:/// or azure:// URL".to_owned())
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
            ("/home/me/~/store", "only a shell expands"),
            ("", "give a directory"),
        ];
        for (text, part) in cases {
            let why = mistaken(text).unwrap_or_default();
            assert!(why.contains(part) && !why.contains("SECRET"), "{text}: {why}");
        }
        for directory in ["store", "./a.blob/b", "/data/my store", "C:\\store", "~store", "a=b;c"] {
            assert_eq!(mistaken(directory), None, "{directory}");
        }
    }
}
