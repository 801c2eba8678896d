//! Signatures made with an account's key, of single requests: "Authorize with Shared Key" in the reference of the blob service.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use hmac::{Hmac, KeyInit, Mac};
use reqwest::{
    Method, Url,
    header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName, IF_MATCH, IF_NONE_MATCH},
};
use sha2::Sha256;

/// An account and its key. Has no `Debug`, so that the key cannot be printed by accident.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct SharedKey {
    pub account: String,
    key: Vec<u8>,
}

impl SharedKey {
    /// `None` when `key` is not what the portal shows.
    pub fn new(account: &str, key: &str) -> Option<Self> {
        let key = BASE64_STANDARD.decode(key.trim()).ok().filter(|key| !key.is_empty())?;
        Some(Self { account: account.to_owned(), key })
    }

    pub fn sign(&self, text: &str) -> String {
        // A key may have any length.
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.key).unwrap_or_else(|_| unreachable!());
        mac.update(text.as_bytes());
        BASE64_STANDARD.encode(mac.finalize().into_bytes())
    }

    /// The value of `Authorization` for a request that is complete but for it.
    pub fn authorization(&self, method: &Method, url: &Url, headers: &HeaderMap) -> String {
        format!("SharedKey {}:{}", self.account, self.sign(&self.string_to_sign(method, url, headers)))
    }

    fn string_to_sign(&self, method: &Method, url: &Url, headers: &HeaderMap) -> String {
        let value = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let length = Some(value(CONTENT_LENGTH)).filter(|length| *length != "0").unwrap_or_default();
        let md5 = value(HeaderName::from_static("content-md5"));
        let (kind, if_match, if_none_match) = (value(CONTENT_TYPE), value(IF_MATCH), value(IF_NONE_MATCH));
        // Verb, encoding, language, length, MD5, type, date, if-modified-since, if-match, if-none-match, if-unmodified-since, range.
        let fixed = format!("{method}\n\n\n{length}\n{md5}\n{kind}\n\n\n{if_match}\n{if_none_match}\n\n\n");
        let mut own: Vec<(&str, &str)> =
            headers.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap_or_default())).collect();
        own.retain(|(name, _)| name.starts_with("x-ms-"));
        own.sort_unstable();
        let own = own.into_iter().fold(String::new(), |text, (name, value)| text + name + ":" + value + "\n");
        let mut query: Vec<(String, String)> =
            url.query_pairs().map(|(name, value)| (name.to_lowercase(), value.into_owned())).collect();
        query.sort_unstable();
        let query = query.into_iter().fold(String::new(), |text, (name, value)| text + "\n" + &name + ":" + &value);
        format!("{fixed}{own}/{}{}{query}", self.account, url.path())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_string_to_sign_is_the_references() {
        let key = SharedKey::new("acc", "a2V5").unwrap();
        let url = Url::parse("https://acc.blob.core.windows.net/box/a%20b?comp=block&blockid=QQ%3D%3D").unwrap();
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("x-ms-version", "2023-11-03"),
            ("x-ms-date", "Fri, 20 Nov 2026 18:00:00 GMT"),
            ("content-length", "5"),
            ("content-md5", "bWQ1"),
            ("if-none-match", "*"),
        ] {
            headers.insert(name, value.parse().unwrap());
        }
        assert_eq!(
            key.string_to_sign(&Method::PUT, &url, &headers),
            "PUT\n\n\n5\nbWQ1\n\n\n\n\n*\n\n\nx-ms-date:Fri, 20 Nov 2026 18:00:00 GMT\nx-ms-version:2023-11-03\n\
             /acc/box/a%20b\nblockid:QQ==\ncomp:block"
        );
        headers.insert("content-length", "0".parse().unwrap());
        assert!(key.string_to_sign(&Method::PUT, &url, &headers).starts_with("PUT\n\n\n\nbWQ1"), "nothing is written as nothing");
        assert!(SharedKey::new("acc", "not base64!").is_none() && SharedKey::new("acc", "").is_none());
    }
}
