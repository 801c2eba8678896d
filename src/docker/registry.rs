//! Engines' exchanges with registries, for a user of this machine: credentials, and the registries' answers.

use std::future::Future;

use bollard::{body_full, errors::Error};
use bytes::Bytes;
use hyper::{Request, header::HeaderName, http::request::Builder};
use reqwest::Url;

use super::{
    Engine, Lines,
    credentials::{self, Credentials, CredentialsError},
    exchange,
};

const AUTHENTICATION: HeaderName = HeaderName::from_static("x-registry-auth");

/// Why a registry does not take an image or give one, or does not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    Denied,
    NotFound,
    /// It may be there again later.
    Network,
    /// It answers that something is wrong with itself; the engine has tried again already.
    Broken,
    Other,
}

/// A registry's answers in prose: engines pass its words on, not its codes.
const SIGNS: &[(Class, &[&str])] = &[
    (Class::Broken, &["http status: 5"]),
    (Class::Denied, &["unauthorized", "denied", "no basic auth credentials", "authentication required", "http status: 403"]),
    (Class::NotFound, &["name unknown", "name_unknown", "manifest unknown", "not found"]),
    (
        Class::Network,
        &[
            "connection refused",
            "connection reset",
            "broken pipe",
            "eof",
            "timeout",
            "deadline exceeded",
            "no such host",
            "no route to host",
            "use of closed network connection",
        ],
    ),
];

pub fn class(words: &str) -> Class {
    let words = words.to_lowercase();
    let found = SIGNS.iter().find(|(_, signs)| signs.iter().any(|sign| words.contains(sign)));
    found.map_or(Class::Other, |(class, _)| *class)
}

/// The credentials of this machine at the registry of `image`: docker's, or else those of the user who is signed in to its cloud.
/// `entra` is a token of Entra ID, asked for only where it is needed. Those that are there and cannot be read are enough for a
/// public image, as they are for docker: a refusal then says why.
pub async fn credentials(
    image: &str,
    variables: &(dyn Fn(&str) -> Option<String> + Sync),
    entra: impl Future<Output = Option<Result<String, String>>> + Send,
) -> Credentials {
    to_push(image, variables, entra).await.unwrap_or_else(|error| Credentials::Unasked(error.to_string()))
}

/// [`credentials`] for an image that is going to be built, and then pushed: a registry takes it from a user alone.
pub async fn to_push(
    image: &str,
    variables: &(dyn Fn(&str) -> Option<String> + Sync),
    entra: impl Future<Output = Option<Result<String, String>>> + Send,
) -> Result<Credentials, CredentialsError> {
    let files = credentials::files(variables, std::env::home_dir().as_deref());
    let registry = credentials::registry(image);
    match credentials::find(&files, image).await? {
        nobody @ (Credentials::Anonymous | Credentials::Unasked(_)) if exchange::is_azure(registry) => match entra.await {
            Some(token) => exchange::azure(registry, token).await,
            None => Ok(nobody),
        },
        nobody @ (Credentials::Anonymous | Credentials::Unasked(_)) if exchange::is_google(registry) => {
            Ok(exchange::google(variables, registry).await?.unwrap_or(nobody))
        }
        found => Ok(found),
    }
}

impl Engine {
    /// Sends a request about `image` that the engine answers with its registry's help.
    pub async fn ask_registry(&self, request: Builder, image: &str, credentials: &Credentials) -> Result<Lines, Error> {
        let header = credentials.header(credentials::registry(image));
        self.stream(request.header(AUTHENTICATION, header).body(body_full(Bytes::new()))?).await
    }

    /// Has the engine fetch an image.
    pub async fn fetch(&self, image: &str, credentials: &Credentials) -> Result<(), Error> {
        let url = Url::parse_with_params("http://docker/images/create", [("fromImage", tagged(image))]).expect("a constant");
        self.ask_registry(Request::post(url.as_str()), image, credentials).await?.finish().await
    }
}

/// A name alone would mean every tag of it.
fn tagged(image: &str) -> String {
    let last = image.rsplit('/').next().unwrap_or(image);
    if last.contains([':', '@']) { image.to_owned() } else { format!("{image}:latest") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_engines_are_sorted() {
        // Docker Engine 20.10 and docker-registry 2.8.
        for (words, expected) in [
            ("unauthorized: authentication required", Class::Denied),
            ("no basic auth credentials", Class::Denied),
            ("denied: requested access to the resource is denied", Class::Denied),
            ("Head \"http://127.0.0.1:5/v2/x/blobs/y\": dial tcp 127.0.0.1:5: connect: connection refused", Class::Network),
            ("Put \"http://127.0.0.1:5/v2/x\": EOF", Class::Network),
            ("received unexpected HTTP status: 500 Internal Server Error", Class::Broken),
            ("name unknown: repository name not known to registry", Class::NotFound),
            ("write /var/lib/docker: no space left on device", Class::Other),
        ] {
            assert_eq!(class(words), expected, "{words}");
        }
    }
}
