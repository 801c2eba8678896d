//! The container image: made by an engine from the embedded sources, and named by the digest of everything that goes into it.

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    process::Stdio,
};

use bollard::{body_try_stream, errors::Error};
use futures_util::stream;
use hyper::{Request, header::CONTENT_TYPE};
use reqwest::Url;
use sha2::{Digest, Sha256};
use tokio::process::Command;

use super::{ImageError, Result, context::Context, io_error, libtorch, sources, steps::Steps};
use crate::{
    docker::{self, Engine, credentials::Credentials, registry},
    job::{
        image::{ImageSpec, LibtorchVariant},
        report::Report,
    },
};

/// Where the image has the agent; its entrypoint is `ftctl agent`.
pub const AGENT: &str = "/opt/ftctl/bin/ftctl";
/// Where the image has the trainer.
pub const TRAINER: &str = "/opt/ftctl/bin/ft-trainer";
/// The image's name; its tag is the digest.
pub const REPOSITORY: &str = "ftctl";

/// By digest: a tag may be moved to another image.
const BASE: &str = "docker.io/library/debian:bookworm-slim@sha256:3783cc01769c7b2b1b83a5c5ad96c815348e28ed7da68e2e3687004faa906251";
const BUILDER: &str =
    "docker.io/library/rust:1.95-bookworm@sha256:6258907abe69656e41cd992e0b705cdcfabcbbe3db374f92ed2d47121282d4a1";
const DOCKERFILE: &str = "docker/Dockerfile";

/// An image that an engine has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// `ftctl:DIGEST`
    pub reference: String,
    /// Hexadecimal SHA-256 of the sources and the arguments.
    pub digest: String,
    /// The engine's own name for it: `sha256:…`.
    pub id: String,
}

/// Everything that decides what the image will be.
pub struct Recipe {
    context: Context,
    arguments: BTreeMap<&'static str, String>,
    network: Option<String>,
    pub digest: String,
}

impl Recipe {
    /// Collects what goes into the image.
    pub async fn new(spec: &ImageSpec) -> Result<Self> {
        let mut context = Context::default();
        let certificates = certificates(spec.ca_bundle.as_deref().map(Path::new))?;
        if let Some(folder) = &spec.prebuilt {
            add_programs(&mut context, Path::new(folder), spec.variant.unwrap_or_default(), &certificates).await?;
        } else {
            add_sources(&mut context)?;
            // The classic builder also runs stages that are not asked for.
            context.add("prebuilt/none", &[][..]);
            context.add("certificates/more.pem", certificates);
        }
        embedded(DOCKERFILE)?;
        for (name, bytes) in sources::all().iter().filter(|(name, _)| name.starts_with("docker/")) {
            context.add(name, bytes.as_slice());
        }
        let arguments = arguments(spec)?;
        let mut hash = Sha256::new();
        for (name, value) in &arguments {
            hash.update(format!("{name}={value}\0"));
        }
        context.hash(&mut hash)?;
        Ok(Self { context, arguments, network: spec.network.clone(), digest: hex::encode(hash.finalize()) })
    }

    /// The images that it begins with.
    fn beginnings(&self) -> impl Iterator<Item = &String> {
        ["BASE", "BUILDER"].iter().filter_map(|name| self.arguments.get(name))
    }

    pub fn reference(&self) -> String {
        format!("{REPOSITORY}:{}", self.digest)
    }
}

/// The image that the engine has under this name, if any.
pub async fn present(engine: &Engine, reference: &str) -> Result<Option<String>> {
    match engine.docker.inspect_image(reference).await {
        Ok(image) => Ok(image.id),
        Err(Error::DockerResponseServerError { status_code: 404, .. }) => Ok(None),
        Err(error) => Err(ImageError::of_engine(&engine.endpoint, &format!("look for {reference}"), &error)),
    }
}

/// Finds the image for this version of ftctl and these wishes, or builds it. The same wishes twice are no work the second time.
pub async fn ensure(engine: &Engine, spec: &ImageSpec, cache: &Path, report: &dyn Report) -> Result<Image> {
    make(engine, Recipe::new(spec).await?, cache, report).await
}

/// [`ensure`] with a recipe that was made before.
pub async fn make(engine: &Engine, recipe: Recipe, cache: &Path, report: &dyn Report) -> Result<Image> {
    let (reference, digest) = (recipe.reference(), recipe.digest.clone());
    if let Some(id) = present(engine, &reference).await? {
        report.detail(&format!("{} has {reference} already", engine.endpoint));
        return Ok(Image { reference, digest, id });
    }
    build(engine, recipe, cache, report).await?;
    let id = present(engine, &reference).await?.ok_or_else(|| ImageError::Refused {
        endpoint: engine.endpoint.clone(),
        action: format!("have {reference}"),
        why: "it built the image and lost it".to_owned(),
    })?;
    Ok(Image { reference, digest, id })
}

async fn build(engine: &Engine, recipe: Recipe, cache: &Path, report: &dyn Report) -> Result<()> {
    // As docker's own command line understands it. Engines without BuildKit are older than the oldest that can be used.
    let classic = env::var("DOCKER_BUILDKIT").is_ok_and(|wish| wish == "0");
    if classic && recipe.arguments["BINARIES"] == "prebuilt" {
        return Err(ImageError::Invalid("`prebuilt` needs BuildKit, and DOCKER_BUILDKIT=0 forbids it".to_owned()));
    }
    let log = cache.join("image").join(format!("{}.log", &recipe.digest[..16]));
    let folder = log.parent().unwrap_or(cache);
    fs::create_dir_all(folder).map_err(io_error("create", folder))?;
    fetch_private(engine, &recipe, report).await?;
    let mut steps = Steps::new(&log, report)?;
    report.line(&format!("building {} at {}", recipe.reference(), engine.endpoint));
    for image in recipe.beginnings().filter(|image| !image.contains("@sha256:")) {
        report.warn(&format!(
            "{image} is named by a tag, which may be another image tomorrow; NAME@sha256:DIGEST is always the same"
        ));
    }
    let failed = |error: &Error| ImageError::of_engine(&engine.endpoint, "build the image", error);
    let request = Request::post(query(&recipe, classic, &engine.proxies()))
        .header(CONTENT_TYPE, "application/x-tar")
        .body(body_try_stream(stream::iter(recipe.context.tar())))
        .map_err(|error| failed(&error.into()))?;
    let mut answer = engine.stream(request).await.map_err(|error| failed(&error))?;
    while let Some(said) = answer.next().await.map_err(|error| failed(&error))? {
        steps.take(&said)?;
    }
    Ok(())
}

/// The builder has no credentials: a base image behind a password must be there before. It fetches public images itself.
async fn fetch_private(engine: &Engine, recipe: &Recipe, report: &dyn Report) -> Result<()> {
    let variable = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
    for image in recipe.beginnings() {
        let credentials = registry::credentials(image, &variable, std::future::ready(None)).await;
        let failed = |class, why| ImageError::Source { image: image.clone(), class, why };
        if matches!(credentials, Credentials::Anonymous | Credentials::Unasked(_)) || present(engine, image).await?.is_some() {
            continue;
        }
        report.line(&format!("fetching {image}"));
        let fetched = engine.fetch(image, &credentials).await;
        fetched.map_err(|error| failed(registry::class(&error.to_string()), docker::words(&error)))?;
    }
    Ok(())
}

/// The request's path: the things to build and how, less the context.
fn query(recipe: &Recipe, classic: bool, configured: &[(String, String)]) -> String {
    let proxies = ["http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"];
    let proxies = proxies.into_iter().filter_map(|name| Some((name, env::var(name).ok()?)));
    let configured = configured.iter().map(|(name, value)| (name.as_str(), value.clone()));
    // Builders know these arguments and keep them out of the image, so they are no part of the digest.
    let arguments: BTreeMap<&str, String> = recipe.arguments.clone().into_iter().chain(configured).chain(proxies).collect();
    let arguments = serde_json::json!(arguments).to_string();
    let mut query = Url::parse("http://docker/build").expect("a constant");
    query
        .query_pairs_mut()
        .append_pair("version", if classic { "1" } else { "2" })
        .append_pair("dockerfile", DOCKERFILE)
        .append_pair("t", &recipe.reference())
        .append_pair("buildargs", &arguments)
        .append_pair("networkmode", recipe.network.as_deref().unwrap_or_default())
        .append_pair("rm", "1")
        .append_pair("forcerm", "1");
    query.to_string()
}

fn arguments(spec: &ImageSpec) -> Result<BTreeMap<&'static str, String>> {
    let variant = spec.variant.unwrap_or_default();
    let text = |typed: &Option<String>, default: &str| typed.clone().unwrap_or_else(|| default.to_owned());
    let torch_index = match spec.torch_index.as_deref() {
        Some("pypi") if variant == LibtorchVariant::Cu126 => {
            return Err(ImageError::Invalid(
                "the Python package index has no torch for cu126; remove torch_index = \"pypi\", or name an index that has it"
                    .to_owned(),
            ));
        }
        Some("pypi") => String::new(),
        Some(index) => index.to_owned(),
        None => format!("https://download.pytorch.org/whl/{}", variant.name()),
    };
    let mut arguments = BTreeMap::from([
        ("BASE", text(&spec.base, BASE)),
        ("BINARIES", if spec.prebuilt.is_some() { "prebuilt" } else { "compiled" }.to_owned()),
        ("VARIANT", variant.name().to_owned()),
        ("REVISION", sources::digest()),
        ("LIBTORCH_VERSION", libtorch::VERSION.to_owned()),
        ("CUDA", variant.cuda().unwrap_or("none").to_owned()),
    ]);
    if spec.prebuilt.is_none() {
        arguments.extend([
            ("BUILDER", text(&spec.builder, BUILDER)),
            ("PIP_INDEX", text(&spec.pip_index, "")),
            ("TORCH_INDEX", torch_index),
            ("CARGO_INDEX", text(&spec.cargo_index, "")),
        ]);
    }
    Ok(arguments)
}

/// The user's certificates, or nothing.
fn certificates(bundle: Option<&Path>) -> Result<Vec<u8>> {
    let Some(path) = bundle else { return Ok(Vec::new()) };
    let bytes =
        fs::read(path).map_err(|error| ImageError::Invalid(format!("cannot read ca_bundle {}: {error}", path.display())))?;
    if String::from_utf8_lossy(&bytes).contains("-----BEGIN CERTIFICATE-----") {
        return Ok(bytes);
    }
    Err(ImageError::Invalid(format!("ca_bundle {} has no certificate in it (PEM)", path.display())))
}

fn embedded(name: &str) -> Result<&'static [u8]> {
    let found = sources::all().iter().find(|(known, _)| known == name).map(|(_, bytes)| bytes.as_slice());
    found.ok_or_else(|| {
        ImageError::Unusable("this ftctl is the agent of an image and carries no sources; build with an installed one".to_owned())
    })
}

/// The sources below `source/`; below `dependencies/` their manifests with nothing to compile, so that what the sources depend on
/// is a step of its own, which their changes leave alone.
fn add_sources(context: &mut Context) -> Result<()> {
    embedded("Cargo.toml")?;
    for (name, bytes) in sources::all() {
        context.add(format!("source/{name}"), bytes.as_slice());
        if name.ends_with("Cargo.toml") || name == "Cargo.lock" {
            context.add(format!("dependencies/{name}"), bytes.as_slice());
        }
    }
    for program in ["build.rs", "src/main.rs", "trainer/build.rs", "trainer/src/main.rs"] {
        context.add(format!("dependencies/{program}"), &b"fn main() {}\n"[..]);
    }
    for library in ["src/lib.rs", "trainer/src/lib.rs"] {
        context.add(format!("dependencies/{library}"), &[][..]);
    }
    for (name, _) in sources::all().iter().filter(|(name, _)| name.starts_with("trainer/benches/")) {
        context.add(format!("dependencies/{name}"), &b"fn main() {}\n"[..]);
    }
    Ok(())
}

/// The programs of `folder`, and what the trainer loads.
async fn add_programs(context: &mut Context, folder: &Path, variant: LibtorchVariant, more: &[u8]) -> Result<()> {
    for name in ["ftctl", "ft-trainer"] {
        let program = folder.join(name);
        if !program.is_file() {
            return Err(ImageError::Invalid(format!("there is no {name} in the prebuilt programs {}", folder.display())));
        }
        context.add_file(format!("prebuilt/bin/{name}"), program);
    }
    for library in libraries(&folder.join("ft-trainer"), variant).await? {
        let name = library.file_name().unwrap_or_default().to_string_lossy().into_owned();
        context.add_file(format!("prebuilt/lib/{name}"), library);
    }
    context.add("prebuilt/home/.ftctl", &[][..]);
    context.add("prebuilt/certs/ca-certificates.crt", [roots()?.as_slice(), more].concat());
    Ok(())
}

async fn libraries(program: &Path, variant: LibtorchVariant) -> Result<Vec<PathBuf>> {
    let script = String::from_utf8_lossy(embedded("docker/libraries.sh")?);
    let mut command = Command::new("sh");
    command
        .args(["-c", &script, "libraries.sh"])
        .arg(program)
        .arg(variant.cuda().unwrap_or("none"))
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let purpose = "see which libraries the trainer loads";
    let answer = command.output().await.map_err(|source| ImageError::Missing { program: "sh", purpose, source })?;
    if !answer.status.success() {
        return Err(ImageError::Unusable(format!("cannot {purpose}: {}", String::from_utf8_lossy(&answer.stderr).trim())));
    }
    Ok(String::from_utf8_lossy(&answer.stdout).lines().map(PathBuf::from).collect())
}

/// The certificates that this machine trusts.
fn roots() -> Result<Vec<u8>> {
    let known = ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"].map(PathBuf::from);
    let path = env::var_os("SSL_CERT_FILE").map(PathBuf::from).into_iter().chain(known).find(|path| path.is_file());
    let path = path.ok_or_else(|| {
        ImageError::Unusable("this machine has no file with the certificates it trusts; name one with SSL_CERT_FILE".to_owned())
    })?;
    fs::read(&path).map_err(io_error("read", &path))
}
