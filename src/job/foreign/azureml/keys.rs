//! The keys of a command job, and what each means here.

use std::{
    collections::BTreeMap,
    path::{Component, PathBuf},
};

use super::{At, Input, Translation, shown};
use crate::job::{
    azureml::{Cluster, IdentityId},
    compute::Backend,
    environment,
    foreign::{NAME, NAMED_BY_JOB, OWN_PROCESSES},
    id::{MAX_NAME, valid_name},
    units::Span,
    wording::suggest,
    yaml::{Node, Value},
};

type Act = fn(&mut Translation, &At<'_>, &Node) -> Result<(), String>;

/// The meaning of a key here.
pub(super) enum Meaning {
    /// Changes nothing here, for the reason, and neither does what is below it.
    Nothing(&'static str),
    /// Not available here, for the reason.
    Refused(&'static str),
    /// For what no table can say.
    Special(Act),
}

use Meaning::{Nothing, Refused, Special};

pub(super) const SECTION: &str = "compute.azureml.";
pub(super) const CLUSTER: &str = "compute.azureml.cluster";
pub(super) const SIZE: &str = "compute.azureml.size";
pub(super) const SPOT: &str = "compute.azureml.spot";
pub(super) const TIER: &str = "compute.azureml.tier";
pub(super) const TTL: &str = "limits.ttl";
const IDENTITY: &str = "compute.azureml.identity";

const OF_THE_SERVICE: &str = "it is the service's own word about a job that ran";

/// Dotted names. A table that is not named here has its keys looked up one by one.
pub(super) const KEYS: &[(&[&str], Meaning)] = &[
    (&["$schema"], Special(schema)),
    (&["type"], Special(kind)),
    (&["name", "display_name", "experiment_name"], Special(name)),
    (&["description"], Nothing("a job file has no key for it; write a comment")),
    (&["tags", "properties"], Nothing("a job's tags are those by which ftctl finds it again")),
    (&["command"], Special(command)),
    (&["code"], Special(code)),
    (
        &["environment"],
        Nothing(
            "the job runs in an image that has ftctl and its trainer: write the name that `ftctl push` prints into compute.azureml.image",
        ),
    ),
    (&["environment_variables"], Special(variables)),
    (&["inputs"], Special(inputs)),
    (&["outputs"], Special(outputs)),
    (&["compute"], Special(compute)),
    (&["resources.instance_type"], Special(size)),
    (&["resources.instance_count"], Special(nodes)),
    (&["resources.shm_size"], Nothing("ftctl gives its containers 8g, which the trainer needs")),
    (&["resources.docker_args", "docker_args"], Nothing("ftctl says how its container is started")),
    (&["resources.locations"], Nothing("a job runs in the region of its workspace")),
    (&["resources.max_instance_count"], Nothing("a job has as many nodes as it begins with")),
    (&["resources.properties"], Nothing("ftctl asks the service for nothing of the kind")),
    (&["distribution.type"], Special(distribution)),
    (&["distribution.process_count_per_instance"], Special(processes)),
    (&["distribution.worker_count", "distribution.parameter_server_count"], Refused(NO_TENSORFLOW)),
    (&["limits.timeout"], Special(timeout)),
    (&["identity"], Special(identity)),
    (&["queue_settings.job_tier"], Special(tier)),
    (&["queue_settings.priority"], Nothing("a job asks for the service's usual priority")),
    (
        &["services"],
        Nothing("nothing listens on the machine; `ftctl status -w`, `ftctl logs -f` and the files for TensorBoard show the run"),
    ),
    (&["notification_setting"], Nothing("ftctl sends no mail; `ftctl status -w` ends when the job does")),
    (&["component", "jobs", "trial", "search_space"], Refused("only a command job is translated, one at a time")),
    (&["id", "status", "creation_context", "parameters", "log_files", "parent_job_name", "resourceGroup"], Nothing(OF_THE_SERVICE)),
];

const NO_TENSORFLOW: &str = "only processes of PyTorch and of MPI are known here";

/// Inputs of a job, at most.
const MOST_INPUTS: usize = 100;

fn text(node: &Node) -> Result<&str, String> {
    match &node.value {
        Value::Text(text) => Ok(text),
        Value::Nothing => Err("it has no value".to_owned()),
        Value::List(_) | Value::Table(_) => Err("a text or a number belongs here".to_owned()),
    }
}

fn table(node: &Node) -> Result<&BTreeMap<String, Node>, String> {
    if let Value::Table(table) = &node.value { Ok(table) } else { Err("a table belongs here".to_owned()) }
}

fn nodes(translation: &mut Translation, _: &At<'_>, node: &Node) -> Result<(), String> {
    translation.job.processes.nodes(text(node)?)
}

fn processes(translation: &mut Translation, _: &At<'_>, node: &Node) -> Result<(), String> {
    translation.job.processes.per_node(text(node)?)
}

/// One of these words, in any case of letters.
fn word(node: &Node, known: &[&'static str]) -> Result<&'static str, String> {
    let typed = text(node)?;
    let found = known.iter().find(|word| word.eq_ignore_ascii_case(typed)).copied();
    found.ok_or_else(|| format!("`{}` does not exist here; {}", shown(typed), suggest(&shown(typed), known, "values")))
}

fn schema(_: &mut Translation, _: &At<'_>, node: &Node) -> Result<(), String> {
    let is_command = text(node)?.to_ascii_lowercase().contains("commandjob");
    is_command.then_some(()).ok_or_else(|| "only a command job is translated, and this is the schema of something else".to_owned())
}

fn kind(_: &mut Translation, _: &At<'_>, node: &Node) -> Result<(), String> {
    word(node, &["command"]).map(|_| ())
}

/// Keys come in the order of the alphabet: the display name goes before the experiment's, and that before the job's own.
fn name(translation: &mut Translation, at: &At<'_>, node: &Node) -> Result<(), String> {
    let typed = text(node)?;
    if let Some(taken) = translation.job.values.get(NAME) {
        let what = format!("the job's name is {taken} already, and that of its experiment is the same");
        translation.note(at, &what);
        return Ok(());
    }
    let mut name = String::new();
    for part in typed.split(|c: char| !c.is_ascii_alphanumeric()).filter(|part| !part.is_empty()) {
        let dash = if name.is_empty() { "" } else { "-" };
        name.extend([dash, &part.to_ascii_lowercase()]);
    }
    name.truncate(MAX_NAME);
    let name = name.trim_start_matches(|c: char| c == '-' || c.is_ascii_digit()).trim_end_matches('-');
    if valid_name(name) {
        translation.job.set(NAME, name);
        translation.note(at, &format!("the job's name is `{name}`, and that of its experiment is the same"));
    } else {
        translation.note(at, "no job can have the name; write another into the job file");
    }
    Ok(())
}

fn command(translation: &mut Translation, at: &At<'_>, node: &Node) -> Result<(), String> {
    translation.command = Some((at.line, text(node)?.to_owned()));
    Ok(())
}

fn code(translation: &mut Translation, at: &At<'_>, node: &Node) -> Result<(), String> {
    text(node)?.clone_into(&mut translation.code);
    translation.note(
        at,
        "the trainer brings its own code, and nothing of this folder is sent; paths in the command are taken from the job file's folder",
    );
    Ok(())
}

/// A job can do without each of them.
fn variables(translation: &mut Translation, at: &At<'_>, node: &Node) -> Result<(), String> {
    if matches!(node.value, Value::Nothing) {
        return Ok(());
    }
    for (name, node) in table(node)? {
        let path = format!("{}.{name}", at.path);
        let at = At { path: &path, line: node.line };
        let value = match &node.value {
            Value::Nothing => "",
            _ => text(node)?,
        };
        match environment::refusal(&BTreeMap::from([(name.clone(), value.to_owned())])) {
            Some(reason) => translation.note(&at, &format!("it is left out: {reason}")),
            None => translation.job.set(&format!("compute.environment.{name}"), value),
        }
    }
    translation.note(at, "they are kept with the job, and everybody in the workspace can read them: no place for secrets");
    Ok(())
}

fn inputs(translation: &mut Translation, outer: &At<'_>, node: &Node) -> Result<(), String> {
    if matches!(node.value, Value::Nothing) {
        return Ok(());
    }
    let inputs = table(node)?;
    if inputs.len() > MOST_INPUTS {
        return Err(format!("{MOST_INPUTS} are the most that are read, not {}", inputs.len()));
    }
    for (name, node) in inputs {
        let path = format!("{}.{name}", outer.path);
        let at = At { path: &path, line: node.line };
        if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
            return Err(format!("`{}` is not the name of an input: names have letters, digits and underscores", shown(name)));
        }
        match &node.value {
            Value::Table(keys) => {
                if let Err(problem) = data(translation, &at, name, keys) {
                    let problem = format!("{name}{problem}");
                    translation.problems.push(outer.tells(&problem));
                    // The command may name it all the same.
                    translation.inputs.insert(name.clone(), Input::Path(name.clone()));
                }
            }
            _ => drop(translation.inputs.insert(name.clone(), Input::Literal(text(node)?.to_owned()))),
        }
    }
    Ok(())
}

const TYPES: &[&str] = &["uri_file", "uri_folder", "custom_model", "mlflow_model"];
const MODES: &[&str] = &["ro_mount", "rw_mount", "download", "direct"];

/// An input that is a file or a directory.
fn data(translation: &mut Translation, at: &At<'_>, name: &str, keys: &BTreeMap<String, Node>) -> Result<(), String> {
    let about = |key: &str, problem: String| format!(".{key}: {problem}");
    if let Some(value) = keys.get("default") {
        let value = text(value).map_err(|problem| about("default", problem))?;
        return Err(format!(
            ": a table with a default is an input of a component; a job gives the value alone: `{name}: {}`",
            shown(value)
        ));
    }
    if let Some(unknown) = keys.keys().find(|key| !["type", "path", "mode"].contains(&key.as_str())) {
        return Err(about(
            unknown,
            format!("ftctl does not know this key; {}", suggest(unknown, &["type", "path", "mode"], "keys here")),
        ));
    }
    let kind = keys.get("type").map_or(Ok("uri_folder"), |node| word(node, TYPES)).map_err(|problem| about("type", problem))?;
    if let Some(mode) = keys.get("mode") {
        word(mode, MODES).map_err(|problem| about("mode", problem))?;
        translation.note(at, "the mode is always the same: data is prepared here, and is on the machine's disk before training");
    }
    let path = keys.get("path").ok_or_else(|| about("path", "it is missing".to_owned()))?;
    let path = text(path).map_err(|problem| about("path", problem))?;
    if path.is_empty() {
        return Err(about("path", "it is empty; `./` is the folder of this file".to_owned()));
    }
    let local = if is_here(path) {
        translation.local(path)
    } else {
        let file = path.rsplit(['/', ':']).next().filter(|file| kind == "uri_file" && !["", ".", ".."].contains(file));
        let local = file.unwrap_or(name).to_owned();
        let what = format!(
            "{} is not fetched: a job reads text and weights where ftctl runs; put it beside the job file as {}",
            shown(path),
            shown(&local)
        );
        translation.note(at, &what);
        local
    };
    translation.inputs.insert(name.to_owned(), Input::Path(local));
    Ok(())
}

impl Translation {
    /// A path of this machine, from the folder of the job file. That folder itself is no empty text: a command may add `/a.txt`.
    fn local(&self, path: &str) -> String {
        let parts = self.folder.join(path);
        let parts: PathBuf = parts.components().filter(|part| *part != Component::CurDir).collect();
        if parts.as_os_str().is_empty() { ".".to_owned() } else { parts.to_string_lossy().into_owned() }
    }
}

/// Whether a path is one of this machine's, and no name of something in a cloud.
fn is_here(path: &str) -> bool {
    !path.contains("://") && !path.starts_with("azureml:")
}

fn outputs(translation: &mut Translation, at: &At<'_>, node: &Node) -> Result<(), String> {
    if !matches!(node.value, Value::Nothing) {
        translation.outputs.extend(table(node)?.keys().cloned());
        translation.note(at, NAMED_BY_JOB);
    }
    Ok(())
}

fn compute(translation: &mut Translation, at: &At<'_>, node: &Node) -> Result<(), String> {
    let typed = text(node)?;
    match typed.strip_prefix("azureml:").unwrap_or(typed) {
        "serverless" => {}
        // The service has the same word for it.
        name if Backend::named(name).is_some_and(Backend::is_here) => {
            translation.here = true;
            translation.note(at, "the job runs on this machine; what the file says of machines is left out");
        }
        name => {
            let cluster: Cluster = name.parse().map_err(|_| format!("`{}` is not the name of a cluster", shown(name)))?;
            translation.job.set(CLUSTER, cluster.as_str());
            translation.note(
                at,
                "the cluster is used as it is; write the size of its nodes into compute.azureml.size, and compute.azureml.spot = false if \
                 they are dedicated",
            );
        }
    }
    Ok(())
}

fn size(translation: &mut Translation, _: &At<'_>, node: &Node) -> Result<(), String> {
    translation.job.set(SIZE, text(node)?);
    Ok(())
}

fn distribution(translation: &mut Translation, at: &At<'_>, node: &Node) -> Result<(), String> {
    word(node, &["pytorch", "mpi"]).map_err(|problem| format!("{problem}; {NO_TENSORFLOW}"))?;
    translation.note(at, OWN_PROCESSES);
    Ok(())
}

/// In seconds. It counts a run there, and all machines of a job here.
fn timeout(translation: &mut Translation, at: &At<'_>, node: &Node) -> Result<(), String> {
    let typed = text(node)?;
    let seconds: u64 = typed
        .parse()
        .ok()
        .filter(|seconds| *seconds > 0)
        .ok_or_else(|| format!("`{}` is not a number of seconds", shown(typed)))?;
    let span: Span = format!("{seconds}s").parse()?;
    translation.job.set(TTL, span.to_string());
    translation.note(at, &format!("limits.ttl is {span}, and counts the machines of all attempts together"));
    Ok(())
}

fn identity(translation: &mut Translation, at: &At<'_>, node: &Node) -> Result<(), String> {
    if matches!(node.value, Value::Nothing) {
        return Ok(());
    }
    let keys = table(node)?;
    let known = ["type", "client_id", "object_id", "principal_id", "msi_resource_id", "resource_id"];
    if let Some(unknown) = keys.keys().find(|key| !known.contains(&key.as_str())) {
        return Err(format!("{unknown}: ftctl does not know this key; {}", suggest(unknown, &known, "keys here")));
    }
    let kind = keys.get("type").ok_or("type: it is missing")?;
    match word(kind, &["managed", "managed_identity", "user", "user_identity", "aml_token"])? {
        "user" | "user_identity" => translation.job.set(IDENTITY, "user"),
        "aml_token" => translation
            .note(at, "the workspace's token opens no store; the job has the identity that compute.azureml.identity says"),
        _ => managed(translation, at, keys)?,
    }
    Ok(())
}

/// The identity of a cluster, or one of the user's own making.
fn managed(translation: &mut Translation, at: &At<'_>, keys: &BTreeMap<String, Node>) -> Result<(), String> {
    if let Some(id) = keys.get("msi_resource_id").or(keys.get("resource_id")) {
        let id: IdentityId = text(id)?.parse()?;
        translation.job.set(IDENTITY, id.as_str());
    } else if keys.len() > 1 {
        translation.note(at, "an identity is known by its resource id: write it into compute.azureml.identity");
    } else if translation.has(CLUSTER) {
        translation.job.set(IDENTITY, "managed");
    } else {
        translation.note(at, "without a cluster there is no identity of one: the job signs in as you, unless compute.azureml.identity is a resource id");
    }
    Ok(())
}

fn tier(translation: &mut Translation, at: &At<'_>, node: &Node) -> Result<(), String> {
    if matches!(node.value, Value::Nothing) {
        return Ok(());
    }
    let tier = word(node, &["spot", "basic", "standard", "premium", "null"])?;
    match tier {
        "null" => {}
        _ if translation.has(CLUSTER) => translation.note(at, "a cluster's nodes have the priority of their cluster"),
        "spot" => translation.job.set(SPOT, true),
        _ => {
            translation.job.set(SPOT, false);
            translation.job.set(TIER, tier);
        }
    }
    Ok(())
}
