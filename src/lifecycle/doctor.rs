//! The obstacles to a job on this machine, each with the command that removes it. Leaves nothing behind.

use std::{
    fs,
    io::{self, ErrorKind, Write as _},
    path::Path,
    time::Duration,
};

use ft_trainer::settings::DeviceChoice;
use tokio::time::timeout;

use super::{
    Result, World,
    upload::{self, Known},
};
use crate::{
    exit::{Exit, Failure},
    job::{
        compute::Backend,
        finding::{Finding, Health},
        hub::is_name,
        id::path,
        plan::{DataPlan, Plan},
    },
    provider::ProviderError,
    store,
};

pub const DOCTOR_SCHEMA: &str = "ftctl.doctor/1";

/// So long is waited for a store, which knows best when it gives up.
const PATIENCE: Duration = Duration::from_secs(40);

/// Looks at what ftctl needs on this machine wherever jobs run.
pub fn examine(state: &Path, cache: &Path) -> Vec<Finding> {
    vec![writable("state directory", state), writable("cache directory", cache)]
}

/// Looks at what the job reads on this machine: its text or dataset, and the weights it starts from. Objects of a store are not
/// looked at.
pub fn examine_material(plan: &Plan, cache: &Path) -> Vec<Finding> {
    let finding =
        |(what, found): (_, Result<()>)| found.map_or_else(|failure| refused(what, failure), |()| Finding::good(what, "there"));
    material(plan, cache).looked_at.into_iter().map(finding).collect()
}

/// The data and weights that a job reads on this machine.
pub struct Material {
    /// Each thing, and what a job would end with because of it.
    pub looked_at: Vec<(&'static str, Result<()>)>,
    /// The facts about the text, if they are known.
    pub known: Option<Known>,
}

/// Looks at what the job reads on this machine, as far as that takes a moment.
pub fn material(plan: &Plan, cache: &Path) -> Material {
    let is_left = |path: &Option<String>| path.as_deref().is_some_and(is_name);
    let weights = upload::check_weights(plan);
    let data = match &plan.data {
        // Text cannot be held against weights and tokenizers of the hub that are not here yet.
        DataPlan::Text(config) if is_left(&plan.initial_weights) || is_left(&config.tokenizer.directory) => None,
        // Text of the hub that is not here yet.
        DataPlan::Text(config) if config.train.iter().chain(&config.validation).any(|text| is_name(text)) => {
            upload::check_tokenizer(plan, config).err().map(Err)
        }
        DataPlan::Text(config) if config.source.is_some() => Some(upload::check_source(plan, config, cache)),
        // What is wrong with the weights is not told again of the data.
        DataPlan::Directory(directory) if weights.is_err() => Some(upload::there(Path::new(directory)).map(|()| None)),
        DataPlan::Text(config) if weights.is_err() => Some(upload::inputs(config, cache).map(|_| None)),
        DataPlan::Directory(directory) => Some(upload::check_dataset(plan, Path::new(directory))),
        DataPlan::Text(config) => Some(upload::check_text(plan, config, cache)),
        DataPlan::Digest(_) | DataPlan::Named(_) => None,
    };
    let (data, known) = match data {
        Some(Ok(known)) => (Some(Ok(())), known),
        Some(Err(failure)) => (Some(Err(failure)), None),
        None => (None, None),
    };
    let weights = (plan.initial_weights.is_some() && !is_left(&plan.initial_weights)).then_some(weights);
    let looked_at = [("data", data), ("initial weights", weights)];
    Material { looked_at: looked_at.into_iter().filter_map(|(what, found)| Some((what, found?))).collect(), known }
}

/// The facts about the dataset of the store that a job names; none for other data. Fails as the job would.
pub async fn stored(world: &World, plan: &Plan) -> Result<Option<Known>> {
    let digest = match &plan.data {
        DataPlan::Named(name) => upload::named(world, name).await?,
        DataPlan::Digest(digest) => upload::existing(world, digest.clone()).await?,
        DataPlan::Directory(_) | DataPlan::Text(_) => return Ok(None),
    };
    Ok(upload::check_stored(world, plan, digest).await?.1)
}

/// Names a backend and its store, looks whether files can be made in one that is a directory, and asks it for an object.
pub async fn backend_and_store(world: &World, backend: &str) -> Finding {
    let (what, url) = ("backend and store", world.store.url());
    match store::directory(url).map(|directory| writable(what, &directory)) {
        Some(bad) if bad.health == Health::Bad => bad,
        _ => match answers(world).await {
            Ok(()) => match world.provider.admit_store(url) {
                Ok(()) => Finding::good(what, format!("{backend}, {url}")),
                Err(error) => refused(what, ProviderError { message: format!("{backend}: {}", error.message), ..error }.into()),
            },
            Err(failure) if failure.exit == Exit::Network => {
                refused(what, failure.fix("correct the store's address, or start what should answer there"))
            }
            Err(failure) => refused(what, failure),
        },
    }
}

/// Asks the store about an object that need not be there.
async fn answers(world: &World) -> Result<()> {
    let object = path::name("doctor");
    let asked = timeout(PATIENCE, world.store.head(&object));
    let late = |_| Failure::new(Exit::Network, format!("the store did not answer within {} s", PATIENCE.as_secs()));
    Ok(asked.await.map_err(late)?.map(drop)?)
}

/// The damage that an intruder on a machine could do to the store. Jobs of this machine have the rights of its user anyway.
pub fn exposure(world: &World, backend: &str) -> Option<Finding> {
    let is_there = Backend::named(backend).is_none_or(|backend| !backend.is_here());
    world.store.exposure().filter(|_| is_there && world.provider.admit_store(world.store.url()).is_ok())
}

/// A job that trains on a GPU of this machine, where there is none.
pub fn lacks_gpu(plan: &Plan) -> Option<Finding> {
    let needs = plan.compute.is_here() && plan.train.device == DeviceChoice::Cuda;
    (needs && !has_gpu(Path::new("/dev"))).then(|| {
        let message = "train.device = \"cuda\", and this machine has no GPU";
        Finding::bad("device", message, "set train.device = \"auto\", or name a backend with GPUs")
    })
}

/// Whether NVIDIA's driver has made a device for a GPU: on Linux one for each, below Windows one for all.
fn has_gpu(devices: &Path) -> bool {
    let is_gpu = |name: &str| {
        name == "dxg" || name.strip_prefix("nvidia").is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit()))
    };
    fs::read_dir(devices).is_ok_and(|entries| entries.flatten().any(|entry| entry.file_name().to_str().is_some_and(is_gpu)))
}

/// A failure as what it would be for a job.
pub fn refused(what: &'static str, failure: Failure) -> Finding {
    Finding { health: Health::Bad, what, message: failure.message, fix: failure.fix }
}

/// Whether files can be made in a directory, or in the nearest one above that exists.
fn writable(what: &'static str, directory: &Path) -> Finding {
    let is_there = |path: &&Path| path.symlink_metadata().is_ok();
    let existing = directory.ancestors().find(is_there).unwrap_or(Path::new("/"));
    let Err(error) = make_a_file(existing) else { return Finding::good(what, directory.display().to_string()) };
    let fix = match error.kind() {
        ErrorKind::PermissionDenied => format!("chmod u+rwx {}", existing.display()),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "free some space there, or name another directory".to_owned(),
        _ => format!("name another directory than {}", directory.display()),
    };
    Finding::bad(what, format!("cannot write in {}: {error}", existing.display()), fix)
}

/// Makes a file and removes it: permissions tell nothing of read-only file systems and full disks, and to root nothing at all.
fn make_a_file(directory: &Path) -> io::Result<()> {
    let file = directory.join(format!(".ftctl-doctor.{}", std::process::id()));
    let mut made = fs::File::create_new(&file)?;
    let written = made.write_all(b"x");
    fs::remove_file(&file).and(written)
}

#[cfg(test)]
mod tests {
    use ft_trainer::{
        model::Shape,
        settings::{DataConfig, ModelConfig, Variant},
    };

    use super::*;
    use crate::{job::id::JobId, lifecycle::journal};

    #[test]
    fn weights_of_six_gigabytes_are_checked_by_their_header() {
        let directory = tempfile::tempdir().expect("a directory");
        let bytes = write_gpt2_xl(directory.path());
        assert!(bytes > 6_000_000_000, "{bytes}");
        let id = JobId::parse("fuzzed-bcdfgh").expect("an id");
        let record = journal::decode(&id, include_bytes!("../../fuzz/corpus/record/finished")).expect("a record");
        let weights = directory.path().to_str().map(str::to_owned);
        let plan = Plan { initial_weights: weights, model: ModelConfig::default(), ..record.plan };
        // Read and mapped bytes, of all that this process does meanwhile.
        let before = bytes_seen();
        upload::check_weights(&plan).expect("they fit");
        let seen = bytes_seen() - before;
        assert!(seen < bytes / 3, "{seen} of {bytes} bytes");
        std::fs::write(directory.path().join("config.json"), shape(1_601).config_json(None).to_string()).expect("written");
        upload::check_weights(&plan).expect_err("another width");
    }

    #[test]
    fn a_gpu_has_a_device_with_a_number() {
        let devices = tempfile::tempdir().expect("a directory");
        for (name, is_gpu) in [("nvidiactl", false), ("nvidia-uvm", false), ("nvidia3", true)] {
            std::fs::write(devices.path().join(name), "").expect("written");
            assert_eq!(has_gpu(devices.path()), is_gpu, "{name}");
        }
    }

    fn shape(width: usize) -> Shape {
        let (layer_norm_epsilon, variant) = (1e-5, Variant::Gpt2);
        Shape { layers: 48, heads: 1, width, context: 1_024, vocabulary: 50_257, layer_norm_epsilon, variant }
    }

    /// The weights are a hole behind their header. Answers their bytes.
    fn write_gpt2_xl(directory: &Path) -> u64 {
        let (mut header, mut end) = (serde_json::Map::new(), 0);
        for spec in shape(1_600).tensors() {
            let first = end;
            end += 4 * spec.numbers();
            header.insert(spec.name, serde_json::json!({ "dtype": "F32", "shape": spec.dimensions, "data_offsets": [first, end] }));
        }
        let header = serde_json::Value::from(header).to_string();
        std::fs::write(directory.join("config.json"), shape(1_600).config_json(None).to_string()).expect("written");
        let path = directory.join("model.safetensors");
        std::fs::write(&path, [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat()).expect("written");
        let file = std::fs::File::options().write(true).open(path).expect("there");
        file.set_len(8 + header.len() as u64 + end).expect("a hole");
        end
    }

    /// Without reading what was prepared again.
    #[test]
    fn text_of_a_source_is_known_where_it_was_prepared() {
        let cache = tempfile::tempdir().expect("a directory");
        let id = JobId::parse("fuzzed-bcdfgh").expect("an id");
        let record = journal::decode(&id, include_bytes!("../../fuzz/corpus/record/finished")).expect("a record");
        let config = |value: serde_json::Value| serde_json::from_value::<DataConfig>(value).expect("a table");
        let source = config(serde_json::json!({ "source": "cargo-dependencies" }));
        let train = serde_json::json!({ "steps": 1, "block_size": 8, "micro_batch": 1 });
        let train = serde_json::from_value(train).expect("settings");
        let plan = Plan { data: DataPlan::Text(source.clone()), initial_weights: None, train, ..record.plan };
        assert!(material(&plan, cache.path()).known.is_none());
        let place = upload::prepared_at(&source, &upload::inputs(&source, cache.path()).expect("sources"), cache.path());
        let text = cache.path().join("a.txt");
        std::fs::write(&text, "to be or not to be ".repeat(20)).expect("written");
        let other = config(serde_json::json!({ "train": [text] }));
        let made = ft_trainer::data::prepare::prepare(&other, None, &place.expect("a name"), &mut |_, _, _| ()).expect("prepared");
        assert_eq!(material(&plan, cache.path()).known.expect("known").data, made.description);
    }

    fn bytes_seen() -> u64 {
        let read = |path, name, unit| {
            let text: String = std::fs::read_to_string(path).expect("readable");
            let line = text.lines().find_map(|line| line.strip_prefix(name)).expect(name);
            line.split_whitespace().next().and_then(|number| number.parse::<u64>().ok()).expect("a number") * unit
        };
        read("/proc/self/io", "rchar:", 1) + read("/proc/self/status", "VmHWM:", 1 << 10)
    }

    #[test]
    fn a_directory_that_does_not_exist_is_judged_by_the_one_above() {
        let directory = tempfile::tempdir().expect("a directory");
        assert_eq!(writable("x", &directory.path().join("a/b")).health, Health::Good);
        std::fs::write(directory.path().join("file"), "").expect("written");
        assert_eq!(writable("x", &directory.path().join("file/b")).health, Health::Bad, "a file is no directory");
        std::os::unix::fs::symlink(directory.path().join("gone"), directory.path().join("link")).expect("linked");
        assert_eq!(writable("x", &directory.path().join("link/b")).health, Health::Bad, "a link to nothing is none, either");
        assert_eq!(fs::read_dir(directory.path()).expect("there").count(), 2, "nothing is left behind");
    }

    /// Its permissions let root write in it.
    #[test]
    fn a_directory_in_which_nothing_can_be_made_is_not_ok() {
        assert_eq!(writable("x", Path::new("/proc/ftctl")).health, Health::Bad);
    }
}
