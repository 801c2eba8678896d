//! Values that have the right type and still make no sense.

use ft_trainer::validate::{self, Rule, at_least, rule};

use super::{
    docker::{DockerSpec, is_mount, is_user},
    document::{DocumentError, Located},
    environment, gce,
    id::{MAX_ATTEMPTS, MAX_NAME, valid_name},
    spec::JobSpec,
};

/// The first broken rule in the order of the file.
pub(super) fn check(spec: &JobSpec, typed: &Located<'_>) -> Result<(), DocumentError> {
    let data = spec.data.iter().flat_map(validate::data);
    let model = validate::model(&spec.model, spec.initial_weights.is_some(), &spec.train);
    let trainer = data.chain(model).chain(validate::train(&spec.train)).chain(spec.sample.iter().flat_map(validate::sample));
    let places = container(&spec.compute.docker).into_iter().chain(gce::rules(&spec.compute.gce)).chain(variables(spec));
    let rules = job(spec).into_iter().chain(places).chain(trainer).chain(retry_and_limits(spec));
    let broken = rules.filter(|rule| !rule.holds).map(|rule| typed.error(rule.key, rule.message));
    broken.min_by_key(|error| (error.line, error.column)).map_or(Ok(()), Err)
}

fn job(spec: &JobSpec) -> Vec<Rule> {
    let name = format!(
        "`{}` is no job name: it starts with a letter and has lower-case letters, digits and single hyphens, at most {MAX_NAME}",
        spec.name
    );
    let both = "a job has either `data` (text to prepare) or `dataset` (prepared already), not both";
    let empty = |text: &Option<String>| text.as_deref() != Some("");
    vec![
        rule("name", valid_name(&spec.name), name),
        rule("dataset", !(spec.data.is_some() && spec.dataset.is_some()), both),
        rule("", spec.data.is_some() || spec.dataset.is_some(), "the job has nothing to train on: add [data] or dataset = \"...\""),
        rule("dataset", empty(&spec.dataset), "dataset is empty; give a digest or a directory, or leave it out"),
        rule("dataset", dataset_name(spec.dataset.as_deref()).is_none_or(valid_name), "what follows the @ is no name of a dataset"),
        rule("store", empty(&spec.store), "store is empty; give a URL or a directory, or leave it out"),
        rule("initial_weights", empty(&spec.initial_weights), "initial_weights is empty; give a directory, or leave it out"),
        rule("compute.backend", empty(&spec.compute.backend), "compute.backend is empty; name one, or leave it out"),
    ]
}

fn container(docker: &DockerSpec) -> Vec<Rule> {
    let filled = |text: &Option<String>| text.as_deref() != Some("");
    let mounts = docker.mounts.iter().all(|mount| is_mount(mount));
    let user = docker.user.as_deref().is_none_or(is_user);
    vec![
        rule("compute.docker.image", filled(&docker.image), "image is empty; name one, or leave it out"),
        rule("compute.docker.network", filled(&docker.network), "network is empty; name one, or leave it out"),
        rule("compute.docker.mounts", mounts, "a mount is written /there:/in/the/container, with :ro behind it for reading only"),
        rule("compute.docker.user", user, "a user is written UID:GID, in numbers"),
    ]
}

fn variables(spec: &JobSpec) -> Option<Rule> {
    environment::refusal(&spec.compute.environment).map(|why| rule("compute.environment", false, why))
}

/// `@NAME`: a dataset of the store by its name.
fn dataset_name(dataset: Option<&str>) -> Option<&str> {
    dataset?.strip_prefix('@')
}

fn retry_and_limits(spec: &JobSpec) -> Vec<Rule> {
    let zero = |span: Option<super::units::Span>| span.is_some_and(|span| span.0.is_zero());
    vec![
        at_least("retry.attempts", spec.retry.attempts, 1),
        rule(
            "retry.attempts",
            spec.retry.attempts.is_none_or(|attempts| attempts <= MAX_ATTEMPTS),
            format!("a job has at most {MAX_ATTEMPTS} attempts"),
        ),
        rule("limits.ttl", !zero(spec.limits.ttl), "a time to live of 0s leaves no time to train"),
    ]
}
