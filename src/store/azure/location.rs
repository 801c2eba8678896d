//! Which container a URL means, and how its blobs are addressed.

use reqwest::Url;

use super::super::{Result, StoreError};
use crate::transit;

/// How the names of the hosts end at which the clouds of Azure have blobs, also by private links and by zones of names.
const HOSTS: [&str; 4] =
    [".blob.core.windows.net", ".blob.core.usgovcloudapi.net", ".blob.core.chinacloudapi.cn", ".blob.storage.azure.net"];

/// One container of one account, and the part of it that is the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Location {
    pub account: String,
    pub container: String,
    /// Up to and without the container: `https://account.blob.core.windows.net`, `http://127.0.0.1:10000/account`.
    pub endpoint: Url,
    /// Before every blob name; empty, or ends with `/`.
    prefix: String,
}

impl Location {
    /// `azure://ACCOUNT/CONTAINER[/PREFIX]`, `https://ACCOUNT.blob.HOST/CONTAINER[/PREFIX]`, or, for emulators,
    /// `http://HOST:PORT/ACCOUNT/CONTAINER[/PREFIX]`. `endpoint` replaces the first form's `https://ACCOUNT.blob.core.windows.net`.
    pub fn parse(text: &str, endpoint: Option<&str>) -> Result<Self> {
        // The text after a question mark or a `#` may be a signature: it is not repeated.
        let shown = text.split(['?', '#']).next().unwrap_or_default();
        let wrong = |why: &str| StoreError::Invalid(format!("the store `{shown}` names no blob container: {why}"));
        let url = Url::parse(text).map_err(|error| wrong(&error.to_string()))?;
        if url.query().is_some() || !url.username().is_empty() || url.password().is_some() {
            return Err(wrong(
                "it carries a signature or a password, which would be kept in records; set AZURE_STORAGE_SAS_TOKEN instead",
            ));
        }
        if url.fragment().is_some() {
            return Err(wrong("a `#` follows, which ends an address; take it out"));
        }
        let host = url.host_str().unwrap_or_default();
        let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
        let mut parts = url.path_segments().into_iter().flatten().filter(|part| !part.is_empty()).map(str::to_owned);
        let (account, endpoint) = match url.scheme() {
            "azure" => {
                (format!("{host}{port}"), endpoint.map_or_else(|| format!("https://{host}.blob.core.windows.net"), str::to_owned))
            }
            scheme if is_emulator(&url) => {
                let account = parts.next().ok_or_else(|| wrong("write it as http://IP:PORT/ACCOUNT/CONTAINER"))?;
                (account.clone(), format!("{scheme}://{host}{port}/{account}"))
            }
            scheme => (first_label(host), format!("{scheme}://{host}{port}")),
        };
        let endpoint = Url::parse(endpoint.trim_end_matches('/')).map_err(|error| wrong(&format!("its endpoint: {error}")))?;
        if !transit::is_private(&endpoint) {
            return Err(wrong("it is not https; only an emulator on this machine may be without, at 127.0.0.1 or localhost"));
        }
        let container = parts.next().ok_or_else(|| wrong("the container is missing; write it as azure://ACCOUNT/CONTAINER"))?;
        if host.contains(".dfs.") {
            let blobs = host.replacen(".dfs.", ".blob.", 1);
            return Err(wrong(&format!("it is the account's address for Data Lake; write https://{blobs}/{container}")));
        }
        let is_name = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        if url.scheme() == "azure" && (account.is_empty() || !account.bytes().all(is_name)) {
            return Err(wrong(&format!("no account is called `{account}`: their names have lower-case letters and digits")));
        }
        if !container.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'$')) {
            return Err(wrong(&format!(
                "no container is called `{container}`: their names have lower-case letters, digits and hyphens"
            )));
        }
        let prefix: String = parts.map(|part| part + "/").collect();
        Ok(Self { account, container, endpoint, prefix })
    }

    /// Refuses a location that is neither at one of [`HOSTS`] nor at the `endpoint` that the user named: the owner of that host
    /// would be sent the sign-in.
    pub fn admit(&self, text: &str, endpoint: Option<&str>) -> Result<()> {
        let host = self.endpoint.host_str().unwrap_or_default();
        let of_azure = self.endpoint.port().is_none() && HOSTS.iter().any(|end| host.ends_with(end));
        let of_user = endpoint.and_then(|url| Url::parse(url).ok()).is_some_and(|url| url.origin() == self.endpoint.origin());
        if of_azure || of_user {
            return Ok(());
        }
        Err(StoreError::Invalid(format!(
            "the store {text} is at {host}, which is not a host of Azure's, and only a file names it, so nothing is sent there; if it is right, name it \
             with --store, FTCTL_STORE or your own config.toml"
        )))
    }

    /// The name of the object `path` in the container.
    pub fn blob(&self, path: &str) -> String {
        format!("{}{path}", self.prefix)
    }

    /// The object's path, from its name.
    pub fn path<'n>(&self, blob: &'n str) -> Option<&'n str> {
        blob.strip_prefix(self.prefix.as_str())
    }

    /// The address of the account's blob service.
    pub fn service(&self) -> Url {
        let mut url = self.endpoint.clone();
        // An http URL always has segments; the service's ends with a slash, also behind an emulator's account.
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().push("");
        }
        url
    }

    /// The address of a blob, or of the container.
    pub fn url(&self, blob: Option<&str>) -> Url {
        let mut url = self.endpoint.clone();
        // An http URL always has segments.
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().push(&self.container).extend(blob.into_iter().flat_map(|blob| blob.split('/')));
        }
        url
    }
}

/// The account that an address with a signature is for.
pub(super) fn account_of(url: &Url) -> Option<String> {
    if is_emulator(url) {
        return url.path_segments()?.find(|part| !part.is_empty()).map(str::to_owned);
    }
    url.host_str().map(first_label)
}

/// The account of an endpoint, where the name of Azure's host says it.
pub(super) fn account_at(endpoint: &str) -> Option<String> {
    let url = Url::parse(endpoint).ok()?;
    url.host_str().filter(|host| HOSTS.iter().any(|end| host.ends_with(end))).map(first_label)
}

fn first_label(host: &str) -> String {
    host.split('.').next().unwrap_or_default().to_owned()
}

/// Whether a host carries the account's name in the path: a literal address, this machine, a service's name in a network of
/// containers, or a port of its own.
fn is_emulator(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let named = host.contains('.') && url.port().is_none();
    transit::literal(host).is_some() || !(named || HOSTS.iter().any(|end| host.ends_with(end)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_containers() {
        let cases = [
            ("azure://acc/box", None, "acc", "https://acc.blob.core.windows.net/box/a%20b/c"),
            ("azure://acc/box/team/x/", None, "acc", "https://acc.blob.core.windows.net/box/team/x/a%20b/c"),
            ("azure://acc/box", Some("http://127.0.0.1:10000/acc/"), "acc", "http://127.0.0.1:10000/acc/box/a%20b/c"),
            ("https://acc.blob.core.usgovcloudapi.net/box", None, "acc", "https://acc.blob.core.usgovcloudapi.net/box/a%20b/c"),
            ("https://acc.blob.core.windows.net:8443/box", None, "acc", "https://acc.blob.core.windows.net:8443/box/a%20b/c"),
            ("https://azurite:10443/acc/box", None, "acc", "https://azurite:10443/acc/box/a%20b/c"),
            ("https://azurite/acc/box", None, "acc", "https://azurite/acc/box/a%20b/c"),
            ("https://emulator.team.example:10443/acc/box", None, "acc", "https://emulator.team.example:10443/acc/box/a%20b/c"),
            ("https://blobs.team.example/box", None, "blobs", "https://blobs.team.example/box/a%20b/c"),
            ("https://[::1]:10443/acc/box", None, "acc", "https://[::1]:10443/acc/box/a%20b/c"),
            (
                "http://127.0.0.1:7/devstoreaccount1/box/p",
                None,
                "devstoreaccount1",
                "http://127.0.0.1:7/devstoreaccount1/box/p/a%20b/c",
            ),
        ];
        for (text, endpoint, account, address) in cases {
            let location = Location::parse(text, endpoint).unwrap();
            assert_eq!(location.account, account, "{text}");
            let blob = location.blob("a b/c");
            assert_eq!(location.url(Some(&blob)).as_str(), address, "{text}");
            assert_eq!(location.path(&blob), Some("a b/c"));
        }
    }

    #[test]
    fn the_word_of_a_file_is_good_for_hosts_of_azure() {
        let admitted = |text: &str, endpoint| Location::parse(text, endpoint).unwrap().admit(text, endpoint);
        for text in [
            "azure://acc/box",
            "https://acc.blob.core.windows.net/box",
            "https://ACC.privatelink.blob.core.windows.net/box",
            "https://acc.blob.core.usgovcloudapi.net/box",
            "https://acc.blob.core.chinacloudapi.cn/box",
            "https://acc.z07.blob.storage.azure.net/box",
        ] {
            admitted(text, None).unwrap();
        }
        for text in [
            "https://any.host/box",
            "https://blob.core.windows.net.any.host/box",
            "https://acc-blob.core.windows.net/box",
            "https://acc.blob.core.windows.net.any.host/box",
            "https://203.0.113.9/acc/box",
            "http://127.0.0.1:18299/acc/box",
            "http://localhost/acc/box",
        ] {
            for endpoint in [None, Some("https://other.host"), Some("http://127.0.0.1:18298/acc")] {
                let error = admitted(text, endpoint).unwrap_err().to_string();
                assert!(error.contains(text) && error.contains("--store"), "{error}");
            }
        }
        admitted("azure://acc/box", Some("http://127.0.0.1:18298/acc")).unwrap();
        admitted("http://127.0.0.1:18299/acc/box", Some("http://127.0.0.1:18299/acc")).unwrap();
        admitted("https://any.host/box", Some("https://any.host")).unwrap();
    }

    #[test]
    fn what_is_no_container_is_refused_and_secrets_are_not_repeated() {
        for (text, why) in [
            ("azure://acc", "container is missing"),
            ("azure://Acc_1/box", "no account is called `Acc_1`: their names have lower-case letters and digits"),
            ("azure://acc:443/box", "no account is called `acc:443`"),
            ("azure:///box", "no account is called ``"),
            ("azure://acc/Box", "no container is called `Box`: their names have lower-case letters, digits and hyphens"),
            ("https://acc.blob.core.windows.net/my_box", "no container is called `my_box`"),
            ("https://acc.dfs.core.windows.net/box", "for Data Lake; write https://acc.blob.core.windows.net/box"),
            ("http://acc.blob.core.windows.net/box", "not https"),
            ("http://127.0.0.1:1", "ACCOUNT/CONTAINER"),
            ("http://203.0.113.9/acc/box", "not https"),
            ("http://169.254.169.254/acc/box", "not https"),
            ("http://localhost.example.org/box", "not https"),
            ("https://acc.blob.core.windows.net/box?sv=2020&sig=SECRET", "AZURE_STORAGE_SAS_TOKEN"),
            ("azure://acc/box/team#1SECRET", "a `#` follows"),
            ("https://me:SECRET@acc.blob.core.windows.net/box", "AZURE_STORAGE_SAS_TOKEN"),
        ] {
            let error = Location::parse(text, None).unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
            assert!(text.contains('@') || !error.contains("SECRET"), "{error}");
        }
    }
}
