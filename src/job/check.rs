//! Values that have the right type and still make no sense.

use ft_trainer::settings::{
    TrainSettings,
    validate::{self, Broken, Rule, all_hold, at_least, rule},
};

use super::{
    docker::{DockerSpec, is_mount, is_user},
    document::{DocumentError, Located},
    environment,
    hub::{self, HubName},
    id::{MAX_ATTEMPTS, MAX_NAME, valid_name},
    model::JobModel,
    plan::{DataPlan, Plan, RetryPlan},
    processes,
    spec::{ComputeSpec, JobSpec, LimitsSpec, RetrySpec},
};

/// The backends' own rules for `[compute]`: which machines there are is theirs to know.
pub type Rules = fn(&ComputeSpec) -> Vec<Rule>;

/// The first broken rule in the order of the file.
pub(super) fn check(spec: &JobSpec, typed: &Located<'_>, of_backends: Rules) -> Result<(), DocumentError> {
    let broken = rules(spec, of_backends).filter(|rule| !rule.holds).map(|rule| typed.error(rule.key, rule.message));
    broken.min_by_key(|error| (error.line, error.column)).map_or(Ok(()), Err)
}

/// Holds a plan that another user wrote down to the rules of a job file.
pub(super) fn plan(plan: &Plan, of_backends: Rules) -> Result<(), Broken> {
    all_hold(rules(&typed(plan), of_backends).chain(processes::rules(plan.processes, plan.nodes, &plan.train)))
}

fn rules(spec: &JobSpec, of_backends: Rules) -> impl Iterator<Item = Rule> {
    let data = spec.data.iter().flat_map(validate::data);
    let nodes = spec.compute.nodes.unwrap_or(1);
    let count = spec.compute.processes_per_node.unwrap_or(1).saturating_mul(nodes.max(1));
    let train = processes::shared(&spec.train, count.max(1));
    // The rules for what all do are those of their processes.
    let own = TrainSettings { leaves: spec.train.leaves.filter(|_| count <= 1), ..spec.train.clone() };
    let model = validate::model(&spec.model, spec.initial_weights.is_some(), &train);
    let trainer = data
        .chain(processes::rules(count, nodes, &train))
        .chain(model)
        .chain(validate::train(&own))
        .chain(spec.sample.iter().flat_map(validate::sample));
    let places = container(&spec.compute.docker)
        .into_iter()
        .chain(of_backends(&spec.compute))
        .chain(variables(spec))
        .chain([spec.tracking.rule()]);
    job(spec).into_iter().chain(of_hub(spec)).chain(places).chain(trainer).chain(retry_and_limits(spec))
}

/// The job file that a plan is of, with nothing left to a default.
pub(super) fn typed(plan: &Plan) -> JobSpec {
    let plan = plan.clone();
    let (data, dataset) = match plan.data {
        DataPlan::Text(data) => (Some(data), None),
        DataPlan::Directory(directory) => (None, Some(directory)),
        DataPlan::Digest(digest) => (None, Some(digest.into())),
        DataPlan::Named(name) => (None, Some(format!("@{name}"))),
    };
    let RetryPlan { on, attempts, backoff, max_backoff, shrink } = plan.retry;
    JobSpec {
        name: plan.name,
        compute: ComputeSpec { environment: plan.environment, ..plan.compute.into() },
        image: plan.image,
        store: Some(plan.store),
        data,
        dataset,
        initial_weights: plan.initial_weights,
        model: plan.model,
        train: plan.train,
        sample: plan.sample,
        retry: RetrySpec {
            on: Some(on),
            attempts: Some(attempts),
            backoff: Some(backoff),
            max_backoff: Some(max_backoff),
            shrink: shrink.then_some(true),
        },
        limits: LimitsSpec { ttl: Some(plan.ttl), max_cost: plan.max_cost, max_wait: Some(plan.max_wait) },
        tracking: plan.tracking,
    }
}

fn job(spec: &JobSpec) -> Vec<Rule> {
    let name = format!(
        "`{}` is not a job name: it starts with a letter and has lower-case letters, digits and single hyphens, at most {MAX_NAME}",
        spec.name
    );
    let both = "a job has either `data` (text to prepare) or `dataset` (prepared already), not both";
    let empty = |text: &Option<String>| text.as_deref() != Some("");
    let of_job = spec.initial_weights.as_deref().and_then(JobModel::of_weights).and_then(Result::err);
    vec![
        rule("name", valid_name(&spec.name), name),
        rule("dataset", !(spec.data.is_some() && spec.dataset.is_some()), both),
        rule("", spec.data.is_some() || spec.dataset.is_some(), "the job has nothing to train on: add [data] or dataset = \"...\""),
        rule("dataset", empty(&spec.dataset), "dataset is empty; give a digest or a directory, or leave it out"),
        rule(
            "dataset",
            dataset_name(spec.dataset.as_deref()).is_none_or(valid_name),
            "what follows the @ is not the name of a dataset",
        ),
        rule("store", empty(&spec.store), "store is empty; give a URL or a directory, or leave it out"),
        rule("initial_weights", empty(&spec.initial_weights), "initial_weights is empty; give a directory, or leave it out"),
        rule("initial_weights", of_job.is_none(), of_job.unwrap_or_default()),
        is_path("initial_weights", spec.initial_weights.as_deref()),
        is_path("dataset", spec.dataset.as_deref()),
        rule("dataset", !spec.dataset.as_deref().is_some_and(hub::is_name), "what the hub has is text: name it in data.train"),
        rule("compute.backend", empty(&spec.compute.backend), "compute.backend is empty; name one, or leave it out"),
    ]
}

fn is_path(key: &'static str, text: Option<&str>) -> Rule {
    let why = text.and_then(validate::no_path);
    rule(key, why.is_none(), why.unwrap_or_default())
}

/// Names of the hub are names.
fn of_hub(spec: &JobSpec) -> Vec<Rule> {
    let weights = spec.initial_weights.iter().filter_map(|text| Some(("initial_weights", HubName::of_model(text)?.err()?)));
    weights.chain(spec.data.iter().flat_map(hub::misnamed)).map(|(key, why)| rule(key, false, why)).collect()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        job::{compute::Compute, docker::DockerPlan},
        provider::conformance,
    };

    #[test]
    fn a_plan_is_judged_as_the_job_file_that_it_is_of() {
        let docker = || Plan { compute: Compute::Docker(DockerSpec::default().into()).into(), ..conformance::plan() };
        assert_eq!(plan(&docker(), |_| Vec::new()), Ok(()));
        let refused = |change: fn(&mut Plan)| {
            let mut changed = docker();
            change(&mut changed);
            plan(&changed, |_| Vec::new()).expect_err("a broken rule").to_string()
        };
        let container = |change: fn(&mut DockerPlan)| {
            let mut wanted = DockerPlan::default();
            change(&mut wanted);
            let changed = Plan { compute: Compute::Docker(wanted).into(), ..conformance::plan() };
            plan(&changed, |_| Vec::new()).expect_err("a broken rule").to_string()
        };
        for (refused, message) in [
            (container(|plan| plan.mounts = vec!["etc:/etc".to_owned()]), "compute.docker.mounts: a mount is written"),
            (container(|plan| plan.user = Some("root".to_owned())), "compute.docker.user: a user is written"),
            (container(|plan| plan.network = String::new()), "compute.docker.network: network is empty"),
            (refused(|plan| plan.data = DataPlan::Named("../x".to_owned())), "dataset: what follows the @"),
            (refused(|plan| plan.model.layers = Some(usize::MAX)), "model.layers: "),
            (refused(|plan| plan.train.block_size = 0), "train.block_size: "),
            (refused(|plan| plan.retry.attempts = 0), "retry.attempts: "),
            (refused(|plan| plan.ttl.0 = std::time::Duration::ZERO), "limits.ttl: "),
            (refused(|plan| plan.tracking.mlflow = Some("file:///etc".to_owned())), "tracking.mlflow: an MLflow server's"),
            (refused(|plan| plan.name = "Tiny".to_owned()), "name: "),
        ] {
            assert!(refused.starts_with(message), "{refused}");
        }
    }
}
