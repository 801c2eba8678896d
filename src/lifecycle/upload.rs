//! Text becomes tokens, and tokens go to the store. What the trainer would refuse of them is refused before a machine is asked for.

use std::path::{Path, PathBuf};

use ft_trainer::{
    data::{
        DataError,
        prepare::{self, Inputs, PreparedSummary, Remarks},
        shard::{DESCRIPTION, Dataset, Description, parse_description},
        text,
        tokenizer::Tokenizer,
    },
    model::weights::model_files,
    preflight::{self, Asked},
    settings::{DataConfig, DataFormat, TextSource, TokenizerKind},
};

use super::{Next, Result, STAGES, World, hub, journal::Journal};
use crate::{
    exit::{Exit, Failure},
    image::sources,
    job::{
        digest::Digest,
        hub::is_name,
        plan::{DataPlan, Plan},
        report::{Report, Unit},
        state::State,
    },
    store::{Source, StoreError, dataset, refuse_private},
};

/// Bytes of text that become tokens in a moment.
const LITTLE_TEXT: u64 = 4 << 20;
/// Bytes of a token where nothing was counted: GPT-2's vocabulary has some four of English, others fewer.
pub const BYTES_A_TOKEN: u64 = 4;

pub(super) async fn begin(_: &World, job: &mut Journal) -> Result<Next> {
    job.enter(State::Uploading).await?;
    Ok(Next::Now)
}

pub(super) async fn step(world: &World, job: &mut Journal) -> Result<Next> {
    world.report.stage(1, STAGES, "Preparing and uploading the data");
    let plan = hub::here(&world.hub, &job.record.plan, world.report.as_ref()).await?;
    check_weights(&plan)?;
    job.record.dataset = Some(match plan.data.clone() {
        DataPlan::Digest(digest) => check_stored(world, &plan, existing(world, digest).await?).await?.0,
        DataPlan::Named(name) => check_stored(world, &plan, named(world, &name).await?).await?.0,
        DataPlan::Directory(directory) => send_dataset(world, &plan, Path::new(&directory)).await?,
        DataPlan::Text(config) => {
            check_tokenizer(&plan, &config)?;
            send_dataset(world, &plan, &prepared(world, config).await?).await?
        }
    });
    if let Some(directory) = &plan.initial_weights {
        let directory = Path::new(directory);
        let files = needed(directory)?;
        // In the hub's cache, which is the user's own, every file is a link.
        if !job.record.plan.initial_weights.as_deref().is_some_and(is_name) {
            files.iter().try_for_each(|file| refuse_private(directory, file))?;
        }
        job.record.initial_weights = Some(send(world, Source::Files { directory, files: &files }).await?);
    }
    job.enter(State::Imaging).await?;
    Ok(Next::Now)
}

/// A path that the upload reads on this machine. What a job names of the hub is fetched for a user who adopts it.
pub(super) fn local_path(plan: &Plan) -> Option<&str> {
    let data = match &plan.data {
        DataPlan::Directory(directory) => Some(directory.as_str()),
        DataPlan::Text(config) if config.source.is_some() => Some("the text"),
        DataPlan::Text(config) => {
            let paths = config.train.iter().chain(&config.validation).chain(&config.tokenizer.directory);
            paths.map(String::as_str).find(|path| !is_name(path))
        }
        DataPlan::Digest(_) | DataPlan::Named(_) => None,
    };
    data.or(plan.initial_weights.as_deref().filter(|weights| !is_name(weights)))
}

pub(super) async fn existing(world: &World, digest: Digest) -> Result<Digest> {
    if dataset::exists(world.store.as_ref(), &digest).await? {
        return Ok(digest);
    }
    Err(Failure::new(Exit::NotFound, format!("there is no dataset {digest} in the store {}", world.store.url()))
        .fix("`ftctl upload PATH` puts one there and prints its digest"))
}

/// The job keeps the digest: a later meaning of the name does not matter to it.
pub(super) async fn named(world: &World, name: &str) -> Result<Digest> {
    match dataset::named(world.store.as_ref(), name).await {
        Err(StoreError::NotFound { .. }) => {
            Err(Failure::new(Exit::NotFound, format!("there is no dataset named {name} in the store {}", world.store.url()))
                .fix(format!("ftctl upload PATH --name {name}")))
        }
        found => existing(world, found?).await,
    }
}

/// Refuses a path of the job file at which nothing is.
pub(super) fn there(path: &Path) -> Result<()> {
    if path.exists() {
        return Ok(());
    }
    Err(Failure::new(Exit::NotFound, format!("there is no {}", path.display()))
        .fix("correct the path; a relative path in a job file starts at the file's directory"))
}

/// Refuses a directory for the tokenizer that has none, or one of which a file is missing.
fn tokenizer_is_there(config: &DataConfig) -> Result<()> {
    if let Some(directory) = config.tokenizer.directory.as_deref().map(Path::new).filter(|directory| directory.is_dir())
        && !Tokenizer::lies_in(directory)
    {
        let what =
            format!("there is no tokenizer in {}: neither tokenizer.json, nor vocab.json with merges.txt", directory.display());
        let fix = if directory.join("encoder.json").exists() {
            "encoder.json and vocab.bpe are the same under OpenAI's names: copy them to vocab.json and merges.txt"
        } else {
            "name a directory with one, or hf:OWNER/NAME, that of a model of the hub"
        };
        return Err(Failure::new(Exit::Usage, what).fix(fix));
    }
    config.tokenizer.files().try_for_each(|file| there(&file))
}

/// The plan's demands on a trainer.
pub(super) fn asked(plan: &Plan) -> Asked<'_> {
    let Plan { model, train, sample, .. } = plan;
    Asked { model, train, initial_weights: plan.initial_weights.as_deref().map(Path::new), sample: sample.as_ref() }
}

/// Refuses initial weights that the trainer would refuse.
pub(super) fn check_weights(plan: &Plan) -> Result<()> {
    if let Some(directory) = &plan.initial_weights {
        if is_name(directory) {
            return Ok(());
        }
        let path = Path::new(directory);
        there(path).map_err(|failure| failure.fix("correct the path; weights of the hub are named hf:OWNER/NAME"))?;
        if !path.is_dir() {
            return Err(Failure::new(
                Exit::Usage,
                format!("{directory} is a file; name the directory with it and its config.json"),
            ));
        }
    }
    Ok(asked(plan).check_weights()?)
}

/// Refuses a tokenizer whose tokens are not those of the weights, and a prompt that is too long with it, as far as that is known
/// before any text is read.
pub(super) fn check_tokenizer(plan: &Plan, config: &DataConfig) -> Result<()> {
    tokenizer_is_there(config)?;
    match (&config.tokenizer.directory, config.format, config.tokenizer.vocabulary) {
        (Some(directory), ..) => asked(plan).check_tokenizer(&Tokenizer::load(Path::new(directory))?)?,
        (None, DataFormat::Text, None) if plan.initial_weights.is_some() || plan.sample.is_some() => {
            asked(plan).check_published_tokenizer()?;
        }
        _ => {}
    }
    Ok(())
}

/// The facts about text that are known before it is sent.
#[derive(Debug)]
pub struct Known {
    pub data: Description,
    pub remarks: Remarks,
}

/// Refuses a prepared dataset that the trainer would refuse. A rehearsal takes any files for one: then nothing is known.
pub(super) fn check_dataset(plan: &Plan, directory: &Path) -> Result<Option<Known>> {
    there(directory)?;
    if !plan.compute.trains() && !directory.join(DESCRIPTION).exists() {
        return Ok(None);
    }
    let dataset = Dataset::open(directory)?;
    asked(plan).check_data(dataset.description())?;
    asked(plan).check_sample(&dataset)?;
    if let Some(weights) = &plan.initial_weights {
        preflight::check_dataset(Path::new(weights), &dataset)?;
    }
    Ok(Some(Known { data: dataset.description().clone(), remarks: Remarks::read(directory) }))
}

/// Refuses a dataset of the store that the trainer would refuse, by its description.
pub(super) async fn check_stored(world: &World, plan: &Plan, digest: Digest) -> Result<(Digest, Option<Known>)> {
    if !plan.compute.trains() {
        return Ok((digest, None));
    }
    let Some(text) = dataset::small_file(world.store.as_ref(), &digest, DESCRIPTION).await? else { return Ok((digest, None)) };
    let data = parse_description(Path::new(digest.as_str()), &text)?;
    asked(plan).check_data(&data)?;
    if plan.sample.is_some()
        && let Some(tokenizer) = stored_tokenizer(world, &digest, &data).await?
    {
        asked(plan).check_prompt(&tokenizer)?;
    }
    Ok((digest, Some(Known { data, remarks: Remarks::default() })))
}

/// The tokenizer of a dataset in the store, unless its files are large.
async fn stored_tokenizer(world: &World, digest: &Digest, data: &Description) -> Result<Option<Tokenizer>> {
    if data.tokenizer.kind == TokenizerKind::Gpt2 {
        return Ok(Some(Tokenizer::gpt2()?));
    }
    let trouble = |error| Failure::new(Exit::Failure, format!("cannot keep the tokenizer of {digest} for a moment: {error}"));
    let folder = tempfile::tempdir().map_err(trouble)?;
    for name in Tokenizer::FILES.into_iter().filter(|name| data.tokenizer.files.iter().any(|file| file.file == *name)) {
        let Some(bytes) = dataset::small_file(world.store.as_ref(), digest, name).await? else { return Ok(None) };
        std::fs::write(folder.path().join(name), bytes).map_err(trouble)?;
    }
    Ok(Some(Tokenizer::load(folder.path())?))
}

/// The files of a model directory that are uploaded.
pub fn needed(directory: &Path) -> Result<Vec<PathBuf>> {
    model_files::needed(directory).map_err(|error| Failure::new(Exit::Usage, error.to_string()))
}

/// Refuses text of which the trainer would refuse the tokens: those of the cache, or made for this where there is little of it. Of
/// much text that was not prepared before nothing is known.
pub(super) fn check_text(plan: &Plan, config: &DataConfig, cache: &Path) -> Result<Option<Known>> {
    check_tokenizer(plan, config)?;
    let inputs = inputs(config, cache)?;
    let directory = prepared_at(config, &inputs, cache)?;
    if directory.is_dir() {
        return check_dataset(plan, &directory);
    }
    if bytes(&inputs.files()) > LITTLE_TEXT {
        return Ok(None);
    }
    let folder = tempfile::tempdir().map_err(|error| Failure::new(Exit::Failure, format!("cannot make a directory: {error}")))?;
    let out = folder.path().join("prepared");
    prepare::prepare(config, None, &out, &mut |_, _, _| ())?;
    check_dataset(plan, &out)
}

/// Refuses text of a source of which the trainer would refuse the tokens, where they are in the cache and the source is on this
/// machine; of another nothing is known. Without cargo there is no such text.
pub(super) fn check_source(plan: &Plan, config: &DataConfig, cache: &Path) -> Result<Option<Known>> {
    check_tokenizer(plan, config)?;
    if which::which(text::cargo_program()).is_err() {
        return Err(DataError::NoCargo.into());
    }
    if !cache.join("prepared").is_dir() {
        return Ok(None);
    }
    let Ok(sources) = cargo_sources(cache, text::cargo_dependencies_here) else { return Ok(None) };
    let directory = prepared_at(config, &Inputs::find(config, Some(sources))?, cache)?;
    if directory.is_dir() { check_dataset(plan, &directory) } else { Ok(None) }
}

/// Text whose tokens are not counted yet.
#[derive(Debug, Clone, Copy)]
pub struct Uncounted {
    pub bytes: u64,
    /// Those of the training split.
    for_training: u64,
}

impl Uncounted {
    /// How much text there is, as far as that is told without reading it.
    pub fn of(config: &DataConfig, cache: &Path) -> Option<Self> {
        let limit = config.limit_bytes.unwrap_or(u64::MAX);
        let (all, train) = if config.source.is_some() {
            (config.limit_bytes?, config.limit_bytes?)
        } else {
            let inputs = inputs(config, cache).ok()?;
            let is_packed = |path: &PathBuf| path.extension().is_some_and(|kind| PACKED.iter().any(|name| kind == *name));
            let is_told = config.format == DataFormat::Text && !inputs.files().iter().any(is_packed);
            is_told.then(|| (bytes(&inputs.files()), bytes(&inputs.train)))?
        };
        let kept = if config.validation.is_empty() { 1.0 - config.validation_fraction } else { 1.0 };
        Some(Self { bytes: all.min(limit), for_training: (train.min(limit) as f64 * kept) as u64 })
    }

    /// An estimate.
    pub fn tokens(&self) -> u64 {
        self.bytes / BYTES_A_TOKEN
    }

    /// An estimate.
    pub fn training_tokens(&self) -> u64 {
        self.for_training / BYTES_A_TOKEN
    }
}

/// Files that do not tell how much text they have.
const PACKED: [&str; 3] = ["gz", "zst", "parquet"];

fn bytes(files: &[PathBuf]) -> u64 {
    files.iter().filter_map(|path| path.metadata().ok()).map(|metadata| metadata.len()).sum()
}

async fn send_dataset(world: &World, plan: &Plan, directory: &Path) -> Result<Digest> {
    check_dataset(plan, directory)?;
    send(world, directory.into()).await
}

async fn send(world: &World, source: Source<'_>) -> Result<Digest> {
    let uploaded = dataset::upload(&world.store, source, world.report.as_ref()).await?;
    let files = if uploaded.files == 1 { "file" } else { "files" };
    world.report.line(&format!(
        "dataset {}: {} {files}, {} of {} bytes sent",
        &uploaded.digest.as_str()[..12],
        uploaded.files,
        uploaded.sent_bytes,
        uploaded.bytes
    ));
    Ok(uploaded.digest)
}

/// The dataset of this text: from the cache when the same files were prepared in the same way before.
pub(super) async fn prepared(world: &World, config: DataConfig) -> Result<PathBuf> {
    let (cache, report) = (world.cache.clone(), world.report.clone());
    // Reading and tokenising takes seconds to hours of all cores: the lease is renewed meanwhile on this thread.
    let work = move || prepare_cached(&config, &cache, report.as_ref());
    tokio::task::spawn_blocking(work).await.map_err(|panic| Failure::new(Exit::Failure, panic.to_string()))?
}

fn prepare_cached(config: &DataConfig, cache: &Path, report: &dyn Report) -> Result<PathBuf> {
    let inputs = inputs(config, cache)?;
    let directory = prepared_at(config, &inputs, cache)?;
    if directory.is_dir() {
        report.line("the text was prepared before; taking the tokens from the cache");
        tell(&Remarks::read(&directory), report);
        return Ok(directory);
    }
    let home = cache.join("prepared");
    std::fs::create_dir_all(&home).map_err(|error| {
        Failure::new(Exit::Failure, format!("cannot make {}: {error}", home.display()))
            .fix("make the cache directory writable, or name another one in XDG_CACHE_HOME")
    })?;
    match prepare(config, cache, &directory, report) {
        // Another ftctl prepared the same text meanwhile: the same bytes are there.
        Err(_) if directory.is_dir() => Ok(directory),
        prepared => prepared.map(|_| directory),
    }
}

/// Where the dataset of this text is, if it was prepared before.
pub(super) fn prepared_at(config: &DataConfig, inputs: &Inputs, cache: &Path) -> Result<PathBuf> {
    Ok(cache.join("prepared").join(prepare::key(config, &inputs.files())?))
}

/// The files of text that a configuration names.
pub fn inputs(config: &DataConfig, cache: &Path) -> Result<Inputs> {
    Ok(Inputs::find(config, sources_of(config, cache)?)?)
}

/// Makes the dataset of this text at `out`, which must not exist.
pub fn prepare(config: &DataConfig, cache: &Path, out: &Path, report: &dyn Report) -> Result<PreparedSummary> {
    let sources = sources_of(config, cache)?;
    let summary = prepare::prepare(config, sources, out, &mut |stage, done, total| {
        let unit = if stage.in_bytes() { Unit::Bytes } else { Unit::Items };
        report.progress(&stage.to_string(), done, total, unit);
    })?;
    tell(&summary.remarks, report);
    Ok(summary)
}

fn tell(remarks: &Remarks, report: &dyn Report) {
    remarks.sentences().iter().for_each(|sentence| report.warn(sentence));
}

/// Before any text is read: a tokenizer that is not there is known at once.
fn sources_of(config: &DataConfig, cache: &Path) -> Result<Option<Vec<PathBuf>>> {
    tokenizer_is_there(config)?;
    match config.source {
        Some(TextSource::CargoDependencies) => cargo_sources(cache, text::cargo_dependencies).map(Some),
        None => Ok(None),
    }
}

/// The packages are those of the embedded lock file, wherever ftctl was built.
fn cargo_sources(cache: &Path, list: fn(&Path) -> std::result::Result<Vec<PathBuf>, DataError>) -> Result<Vec<PathBuf>> {
    let workspace = cache.join("trainer/source");
    std::fs::create_dir_all(&workspace)
        .map_err(|error| Failure::new(Exit::Failure, format!("cannot make {}: {error}", workspace.display())))?;
    sources::unpack(&workspace)?;
    Ok(list(&workspace.join("Cargo.toml"))?)
}
