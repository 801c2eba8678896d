//! Signatures made with an account's key, of single requests: "Authorize with Shared Key" in the reference of the blob service.

use azure_core::http::Request;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::transport::header;

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
        Some(Self::of(account, key))
    }

    pub fn of(account: &str, key: Vec<u8>) -> Self {
        Self { account: account.to_owned(), key }
    }

    pub fn sign(&self, text: &str) -> String {
        // A key may have any length.
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.key).unwrap_or_else(|_| unreachable!());
        mac.update(text.as_bytes());
        BASE64_STANDARD.encode(mac.finalize().into_bytes())
    }

    /// The value of `Authorization` for a request that is complete but for it.
    pub fn authorization(&self, request: &Request) -> String {
        format!("SharedKey {}:{}", self.account, self.sign(&self.string_to_sign(request)))
    }

    fn string_to_sign(&self, request: &Request) -> String {
        let (method, url, headers) = (request.method(), request.url(), request.headers());
        let [md5, kind, if_match, if_none_match, range] = ["content-md5", "content-type", "if-match", "if-none-match", "range"]
            .map(|name| header(headers, name).unwrap_or_default());
        let length = request.body().len().filter(|length| *length > 0).map(|length| length.to_string()).unwrap_or_default();
        // Verb, encoding, language, length, MD5, type, date, if-modified-since, if-match, if-none-match, if-unmodified-since,
        // range.
        let fixed = format!("{method}\n\n\n{length}\n{md5}\n{kind}\n\n\n{if_match}\n{if_none_match}\n\n{range}\n");
        let mut own: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
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
    use azure_core::http::Method;

    use super::*;

    #[test]
    fn the_string_to_sign_is_the_references() {
        let key = SharedKey::new("acc", "a2V5").unwrap();
        let url = "https://acc.blob.core.windows.net/box/a%20b?comp=block&blockid=QQ%3D%3D".parse().unwrap();
        let mut request = Request::new(url, Method::Put);
        for (name, value) in [
            ("x-ms-version", "2023-11-03"),
            ("x-ms-date", "Fri, 20 Nov 2026 18:00:00 GMT"),
            ("content-md5", "bWQ1"),
            ("if-none-match", "*"),
            ("range", "bytes=0-1"),
        ] {
            request.insert_header(name, value);
        }
        request.set_body("12345");
        assert_eq!(
            key.string_to_sign(&request),
            "PUT\n\n\n5\nbWQ1\n\n\n\n\n*\n\nbytes=0-1\nx-ms-date:Fri, 20 Nov 2026 18:00:00 GMT\nx-ms-version:2023-11-03\n\
             /acc/box/a%20b\nblockid:QQ==\ncomp:block"
        );
        request.set_body("");
        assert!(key.string_to_sign(&request).starts_with("PUT\n\n\n\nbWQ1"), "nothing is written as nothing");
        assert!(SharedKey::new("acc", "not base64!").is_none() && SharedKey::new("acc", "").is_none());
    }
}
