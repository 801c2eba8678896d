//! The way of an image into a registry.

use std::{collections::HashMap, time::Duration};

use bollard::{
    errors::Error,
    query_parameters::{RemoveImageOptions, TagImageOptions},
};
use hyper::Request;
use reqwest::Url;
use serde_json::Value;

use super::{ImageError, Result, container};
use crate::{
    docker::{
        Engine,
        credentials::{self, Credentials},
        registry::{Class, class},
    },
    job::report::{Report, Unit},
};

/// Pauses before another try when the registry cannot be reached. The engine itself has then tried each layer six times.
const PAUSES: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(8)];

/// Where an image goes, and who sends it.
pub struct Target<'t> {
    /// `host/path`
    pub repository: &'t str,
    pub tag: &'t str,
    pub credentials: Credentials,
}

/// The digest under which the registry has this tag already; `None` when it has not, or does not say.
pub async fn present(engine: &Engine, target: &Target<'_>) -> Result<Option<String>> {
    let path = format!("/distribution/{}:{}/json", target.repository, target.tag);
    match engine.ask_registry(Request::get(url(&path, None)?), target.repository, &target.credentials).await {
        Ok(mut lines) => {
            let said = lines.next().await.ok().flatten();
            Ok(said.and_then(|said| said["Descriptor"]["digest"].as_str().map(str::to_owned)))
        }
        // A wrong password is better told now than after the image was built.
        Err(Error::DockerResponseServerError { message, .. }) if class(&message) == Class::Denied => Err(refused(target, &message)),
        Err(Error::DockerResponseServerError { .. }) => Ok(None),
        Err(error) => Err(ImageError::of_engine(&engine.endpoint, "ask the registry", &error)),
    }
}

/// Sends the image that the engine knows as `local` and tells its digest. A tag that was made for it here does not outlive a
/// failure.
pub async fn push(engine: &Engine, local: &str, target: &Target<'_>, report: &dyn Report) -> Result<String> {
    let name = format!("{}:{}", target.repository, target.tag);
    let known = container::present(engine, &name).await?.is_some();
    let options = TagImageOptions { repo: Some(target.repository.to_owned()), tag: Some(target.tag.to_owned()) };
    let tagged = engine.docker.tag_image(local, Some(options)).await;
    tagged.map_err(|error| ImageError::of_engine(&engine.endpoint, &format!("name the image {name}"), &error))?;
    let pushed = patiently(engine, target, report).await;
    if pushed.is_err() && !known {
        let options = RemoveImageOptions { noprune: true, ..Default::default() };
        if let Err(error) = engine.docker.remove_image(&name, Some(options), None).await {
            report.warn(&format!("cannot remove the tag {name} at {}: {error}", engine.endpoint));
        }
    }
    pushed
}

async fn patiently(engine: &Engine, target: &Target<'_>, report: &dyn Report) -> Result<String> {
    let mut pauses = PAUSES.into_iter();
    loop {
        match once(engine, target, report).await {
            Err(error) if error.is_network() => {
                let Some(pause) = pauses.next() else { return Err(error) };
                report.warn(&format!("{error}; trying again in {} s", pause.as_secs()));
                tokio::time::sleep(pause).await;
            }
            other => return other,
        }
    }
}

async fn once(engine: &Engine, target: &Target<'_>, report: &dyn Report) -> Result<String> {
    let path = format!("/images/{}/push", target.repository);
    let failed = |error: &Error| match error {
        Error::DockerResponseServerError { message, .. } => refused(target, message),
        error => ImageError::of_engine(&engine.endpoint, "push the image", error),
    };
    let request = Request::post(url(&path, Some(target.tag))?);
    let answer = engine.ask_registry(request, target.repository, &target.credentials).await;
    let mut lines = answer.map_err(|error| failed(&error))?;
    let mut digest = None;
    let mut layers = HashMap::new();
    while let Some(said) = lines.next().await.map_err(|error| failed(&error))? {
        if let Some(why) = said["errorDetail"]["message"].as_str() {
            return Err(refused(target, why));
        }
        layer(&said, &mut layers, report);
        digest = said["aux"]["Digest"].as_str().map(str::to_owned).or(digest);
    }
    digest.ok_or_else(|| refused(target, "the engine ended the push without a digest"))
}

/// Shows how far a layer has come. `layers` holds their sizes while they are on their way.
fn layer(said: &Value, layers: &mut HashMap<String, u64>, report: &dyn Report) {
    let (Some(id), Some(status)) = (said["id"].as_str(), said["status"].as_str()) else { return };
    let what = format!("layer {id}");
    match (status, said["progressDetail"]["current"].as_u64()) {
        ("Pushing", Some(current)) => {
            // The engine measures a layer by its files and sends it with their headers: a little more.
            let total = said["progressDetail"]["total"].as_u64().unwrap_or_default().max(current + 1);
            layers.insert(id.to_owned(), total);
            report.progress(&what, current, Some(total), Unit::Bytes);
        }
        ("Pushed", _) => match layers.remove(id) {
            Some(total) => report.progress(&what, total, Some(total), Unit::Bytes),
            None => report.detail(&format!("{what} is sent")),
        },
        ("Layer already exists", _) => report.detail(&format!("{what} is there already")),
        (status, _) if status.starts_with("Retrying") => report.detail(&format!("{what}: {status}")),
        _ => {}
    }
}

fn refused(target: &Target<'_>, why: &str) -> ImageError {
    let class = class(why);
    let why = if class == Class::Denied { target.credentials.explain(why) } else { why.to_owned() };
    ImageError::Registry { repository: target.repository.to_owned(), class, why }
}

/// Checks what the user typed: a host, a colon and a port, then words of lower-case letters and digits with `.`, `_`, `-` between
/// them.
pub fn check_repository(repository: &str) -> Result<()> {
    let host = credentials::registry(repository);
    let path = repository.strip_prefix(host).map_or(repository, |rest| rest.trim_start_matches('/'));
    let word = |word: &str| {
        let alphanumeric = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        word.chars().all(|c| alphanumeric(c) || "._-".contains(c)) && word.starts_with(alphanumeric) && word.ends_with(alphanumeric)
    };
    if !path.is_empty() && path.split('/').all(word) {
        return Ok(());
    }
    Err(ImageError::Invalid(format!(
        "{repository:?} is not a repository: write it like registry.example.org/team/ftctl, in lower case and without a tag"
    )))
}

fn url(path: &str, tag: Option<&str>) -> Result<String> {
    let mut url = Url::parse("http://docker")
        .and_then(|base| base.join(path))
        .map_err(|error| ImageError::Invalid(format!("{path:?}: {error}")))?;
    if let Some(tag) = tag {
        url.query_pairs_mut().append_pair("tag", tag);
    }
    Ok(url.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repositories() {
        for good in ["localhost/x", "127.0.0.1:5000/a-b/c.d", "team/ftctl", "ftctl", "acme.azurecr.io/ftctl"] {
            check_repository(good).unwrap();
        }
        for bad in
            ["", "r.example.org/", "r.example.org/Team", "r.example.org/x:tag", "r.example.org/a//b", "r.example.org/../x", "a b"]
        {
            assert!(check_repository(bad).unwrap_err().to_string().contains("is not a repository"), "{bad}");
        }
    }
}
