//! Preparation: text → tokenizer → token shards, in bounded memory, with the same bytes for the same input.
//!
//! The text is read three times at most: to check it and choose the documents, to learn the vocabulary if one is wanted, and
//! to write tokens. The result appears under its name only when it is complete.

mod choose;
mod remarks;
mod token_files;
mod write;

use std::fmt;
use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use rustc_hash::FxHashSet;
use sha2::{Digest, Sha256};

use self::choose::{Course, Fate, choose, survey};
pub use self::remarks::{Remarks, Vocabulary};
use super::DataError;
use super::shard::{DESCRIPTION, Description, Dtype, SCHEMA, SHARD_TOKENS, Split, SplitDescription, TokenizerFiles, hex};
use super::text;
use super::text::Reading;
use super::tokenizer::{PieceCounts, Specials, Tokenizer, parts, usual_specials};
use crate::settings::validate;
use crate::settings::{DataConfig, DataFormat, EndOfText, TokenizerKind};

/// Texts are collected up to this many bytes before the cores share them.
const BATCH: usize = 8 << 20;
/// A core's share of a batch.
const SHARE: usize = 128 << 10;
/// Changes whenever the same text would give other bytes.
const REVISION: &str = "ft.prepare/3";

/// The stage of a preparation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Reading and checking the text, in bytes.
    Reading,
    /// Counting its pieces for the vocabulary, in bytes.
    Counting,
    /// Learning the vocabulary, in tokens.
    Learning,
    /// Writing token shards, in bytes of text.
    Tokenizing,
}

impl Stage {
    /// Whether `done` and `total` are bytes (else tokens of the vocabulary).
    pub fn in_bytes(self) -> bool {
        self != Self::Learning
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reading => "Reading the text",
            Self::Counting => "Counting words",
            Self::Learning => "Learning the vocabulary",
            Self::Tokenizing => "Tokenizing",
        })
    }
}

/// Gets the stage, how much of it is done, and the whole where it is known.
pub type Progress<'a> = dyn FnMut(Stage, u64, Option<u64>) + 'a;

/// A finished dataset.
#[derive(Debug, Clone, PartialEq)]
pub struct PreparedSummary {
    /// SHA-256 of `dataset.json`: the dataset's identity.
    pub digest: String,
    pub description: Description,
    /// Facts that a reader should know of the text.
    pub remarks: Remarks,
}

/// The files that a configuration names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inputs {
    pub train: Vec<PathBuf>,
    pub validation: Vec<PathBuf>,
}

impl Inputs {
    /// Finds the files; `cargo_sources` are those of [`text::cargo_dependencies`], for a configuration with that source.
    pub fn find(config: &DataConfig, cargo_sources: Option<Vec<PathBuf>>) -> Result<Self, DataError> {
        let train = if config.source.is_some() { cargo_sources.unwrap_or_default() } else { text::find(&config.train)? };
        let mut inputs = Self { train, validation: text::find(&config.validation)? };
        let is_named = |file: &Path| config.train.iter().any(|name| Path::new(name) == file);
        let kept: Vec<PathBuf> = inputs.for_training(is_named).cloned().collect();
        if !kept.is_empty() {
            inputs.train = kept;
        }
        Ok(inputs)
    }

    /// The training files without those that are held out, however their paths are written; what `stays` is kept.
    fn for_training(&self, stays: impl Fn(&Path) -> bool) -> impl Iterator<Item = &PathBuf> {
        let whole = |file: &PathBuf| file.canonicalize().unwrap_or_else(|_| file.clone());
        let held_out: FxHashSet<PathBuf> = self.validation.iter().map(whole).collect();
        let is_held_out = move |file: &PathBuf| !held_out.is_empty() && held_out.contains(&whole(file));
        self.train.iter().filter(move |file| stays(file) || !is_held_out(file))
    }

    /// The number of training files that are held out, too: their loss says nothing about other text.
    fn shared(&self) -> usize {
        self.train.len() - self.for_training(|_| false).count()
    }

    /// All files, training text first.
    pub fn files(&self) -> Vec<PathBuf> {
        [self.train.as_slice(), &self.validation].concat()
    }
}

/// A name for the dataset that `prepare` would make, without reading the text: a digest of the configuration and of each
/// file's path, the tokenizer's too, size and time of change. For a cache of prepared datasets.
pub fn key(config: &DataConfig, files: &[PathBuf]) -> Result<String, DataError> {
    let mut digest = Sha256::new();
    digest.update(format!("{REVISION}\n{}\n", serde_json::json!(config)));
    let beside = files.iter().flat_map(|path| token_files::read_beside(config.format, path));
    for path in files.iter().cloned().chain(beside).chain(config.tokenizer.files()) {
        let metadata = path.metadata().map_err(|error| DataError::reading(&path, error))?;
        let changed = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
        digest.update(format!("{}\0{}\0{}\n", path.display(), metadata.len(), changed.as_nanos()));
    }
    Ok(hex(&digest.finalize()))
}

/// Makes a dataset at `out`, which must not exist. An interrupted preparation leaves nothing there; the remains of a killed one in
/// the folder of `out` are removed.
pub fn prepare(
    config: &DataConfig,
    cargo_sources: Option<Vec<PathBuf>>,
    out: &Path,
    progress: &mut Progress<'_>,
) -> Result<PreparedSummary, DataError> {
    validate::all_hold(validate::data(config)).map_err(|broken| DataError::Setting(broken.to_string()))?;
    if out.exists() {
        return Err(DataError::OutputExists { path: out.to_owned() });
    }
    let mut told = None;
    let progress = &mut |stage, done, total| {
        // The end of the last file is the end of all.
        if told.replace((stage, done, total)) != Some((stage, done, total)) {
            progress(stage, done, total);
        }
    };
    let inputs = Inputs::find(config, cargo_sources)?;
    let temporary = temporary_beside(out)?;
    let directory = temporary.directory.path();
    let (description, remarks) = match config.format {
        DataFormat::Text => write_text(directory, config, &inputs, progress)?,
        format => (write_tokens(directory, format, &inputs, progress)?, Remarks::default()),
    };
    let digest = write_description(directory, &description)?;
    remarks.write(directory)?;
    publish(temporary, out)?;
    Ok(PreparedSummary { digest, description, remarks })
}

/// The documents of the inputs and the fate of each.
struct Selection<'a> {
    reading: Reading<'a>,
    inputs: &'a Inputs,
    train: Vec<Fate>,
    validation: Vec<Fate>,
    /// Bytes of the chosen text.
    bytes: u64,
}

impl<'a> Selection<'a> {
    fn make(
        config: &'a DataConfig,
        inputs: &'a Inputs,
        specials: &'a Specials,
        remarks: &mut Remarks,
        progress: &mut Progress<'_>,
    ) -> Result<Self, DataError> {
        let split = (config.end_of_text == Some(EndOfText::Split)).then_some(specials);
        let reading = Reading { column: config.column.as_deref(), on_bad_row: config.on_bad_row, split };
        // Who has said what they are is not told again. The text of a source is not the user's to change.
        let is_own = config.source.is_none();
        let counted = (is_own && config.end_of_text.is_none()).then_some(specials);
        let total = inputs.files().iter().filter_map(|path| path.metadata().ok()).map(|metadata| metadata.len()).sum();
        let mut course = Course::default();
        let mut survey = |files: &[PathBuf]| {
            survey(files, &reading, counted, remarks, &mut course, &mut |done| progress(Stage::Reading, done, Some(total)))
        };
        let (train, validation) = (survey(&inputs.train)?, survey(&inputs.validation)?);
        remarks.carriage_returns.take_if(|_| !is_own);
        let empty = |what: &str| DataError::Empty { what: what.to_owned() };
        if train.iter().all(|document| document.bytes == 0) {
            return Err(empty("the training text"));
        }
        if validation.iter().all(|document| document.bytes == 0) && !inputs.validation.is_empty() {
            return Err(empty("the validation text"));
        }
        let fraction = if inputs.validation.is_empty() { config.validation_fraction } else { 0.0 };
        let fates = choose(&train, config.limit_bytes, fraction);
        let kept = train.iter().zip(&fates).filter(|(_, fate)| **fate != Fate::Skip).map(|(document, _)| document.bytes);
        let bytes = kept.chain(validation.iter().map(|document| document.bytes)).sum();
        Ok(Self { reading, inputs, train: fates, validation: vec![Fate::Validation; validation.len()], bytes })
    }

    /// Hands on the chosen text in order: its split, a part, and whether a document ends there.
    fn visit(&self, visit: &mut dyn FnMut(Split, &str, bool) -> Result<(), DataError>) -> Result<(), DataError> {
        choose::visit(&self.inputs.train, &self.reading, &self.train, visit)?;
        choose::visit(&self.inputs.validation, &self.reading, &self.validation, visit)
    }
}

/// The tokenizer that is there before any text is read.
fn known_tokenizer(config: &DataConfig) -> Result<Option<Tokenizer>, DataError> {
    match (&config.tokenizer.directory, config.tokenizer.vocabulary) {
        (Some(directory), _) => Tokenizer::load(Path::new(directory)).map(Some),
        (None, Some(_)) => Ok(None),
        (None, None) => Tokenizer::gpt2().map(Some),
    }
}

/// A tokenizer of at most `vocabulary` tokens.
fn learnt_tokenizer(vocabulary: usize, selection: &Selection<'_>, progress: &mut Progress<'_>) -> Result<Tokenizer, DataError> {
    let mut counts = PieceCounts::default();
    let mut batch = Vec::new();
    let (mut waiting, mut done) = (0, 0);
    selection.visit(&mut |split, text, _| {
        if split == Split::Train {
            waiting += text.len();
            batch.push(text.to_owned());
        }
        done += text.len() as u64;
        if waiting >= BATCH {
            count(&mut counts, &std::mem::take(&mut batch));
            waiting = 0;
            progress(Stage::Counting, done, Some(selection.bytes));
        }
        Ok(())
    })?;
    count(&mut counts, &batch);
    progress(Stage::Counting, done, Some(selection.bytes));
    let learnt = Tokenizer::learn(&counts, vocabulary, &mut |done| progress(Stage::Learning, done, Some(vocabulary as u64)))?;
    // A text that repeats too little ends the stage early.
    let tokens = learnt.vocabulary() as u64;
    progress(Stage::Learning, tokens, Some(tokens));
    Ok(learnt)
}

fn count(counts: &mut PieceCounts, texts: &[String]) {
    counts.add(&texts.iter().flat_map(|text| parts(text, SHARE)).collect::<Vec<_>>());
}

fn write_text(
    directory: &Path,
    config: &DataConfig,
    inputs: &Inputs,
    progress: &mut Progress<'_>,
) -> Result<(Description, Remarks), DataError> {
    let known = known_tokenizer(config)?;
    // A vocabulary that is learnt has the usual end of text, under a number that is not known yet.
    let usual = usual_specials(0).map_err(DataError::Setting)?;
    let specials = known.as_ref().map_or(&usual, Tokenizer::specials);
    let directory_of_tokenizer = config.tokenizer.directory.as_deref().map(Path::new);
    let around_texts = directory_of_tokenizer.map_or_else(|| Ok(Vec::new()), Tokenizer::around_each_text)?;
    let about = text::about_the_data(&inputs.train, &config.train).map(|file| file.display().to_string());
    let shared = inputs.shared() as u64;
    let repeated = text::repeated(&config.train).cloned();
    let mut remarks = Remarks { about, repeated, shared, around_texts, ..Remarks::default() };
    let selection = Selection::make(config, inputs, specials, &mut remarks, progress)?;
    let learnt = match (&known, config.tokenizer.vocabulary) {
        (None, Some(vocabulary)) => {
            let learnt = learnt_tokenizer(vocabulary, &selection, progress)?;
            let tokens = learnt.vocabulary();
            remarks.vocabulary = (tokens < vocabulary).then_some(Vocabulary { tokens, wanted: vocabulary });
            Some(learnt)
        }
        _ => None,
    };
    // One of the two is there.
    let Some(tokenizer) = known.as_ref().or(learnt.as_ref()) else { unreachable!("a tokenizer is known or learnt") };
    let dtype = Dtype::for_vocabulary(tokenizer.vocabulary());
    let mut report = |done| progress(Stage::Tokenizing, done, Some(selection.bytes));
    let coding = (tokenizer, selection.reading.split.is_some());
    let mut tokens = write::TokenWriter::new(directory, coding, dtype, SHARD_TOKENS, &mut report);
    selection.visit(&mut |split, text, last| tokens.push(split, text, last))?;
    let (train, validation, lost) = tokens.finish()?;
    remarks.bytes_without_token = lost;
    Ok((describe(directory, config.tokenizer.kind, tokenizer, (train, validation))?, remarks))
}

fn write_tokens(
    directory: &Path,
    format: DataFormat,
    inputs: &Inputs,
    progress: &mut Progress<'_>,
) -> Result<Description, DataError> {
    let (kind, tokenizer) = token_files::vocabulary(format, inputs)?;
    let splits = token_files::write(directory, format, &tokenizer, inputs, progress)?;
    if splits.0.tokens == 0 {
        return Err(DataError::Empty { what: "the training split".to_owned() });
    }
    describe(directory, kind, &tokenizer, splits)
}

/// Puts the tokenizer beside the shards and describes all of it.
fn describe(
    directory: &Path,
    kind: TokenizerKind,
    tokenizer: &Tokenizer,
    (train, validation): (SplitDescription, SplitDescription),
) -> Result<Description, DataError> {
    tokenizer.save(directory)?;
    Ok(Description {
        schema: SCHEMA.to_owned(),
        tokenizer: TokenizerFiles { kind, files: write::digests(directory, &Tokenizer::FILES)? },
        vocabulary: tokenizer.vocabulary(),
        end_of_text: tokenizer.end_of_text(),
        dtype: Dtype::for_vocabulary(tokenizer.vocabulary()),
        train,
        validation,
    })
}

/// Writes `dataset.json`; returns its digest.
fn write_description(directory: &Path, description: &Description) -> Result<String, DataError> {
    let path = directory.join(DESCRIPTION);
    let text = format!("{:#}\n", serde_json::json!(description));
    std::fs::write(&path, &text).map_err(DataError::writing(&path))?;
    Ok(hex(&Sha256::digest(&text)))
}

/// Beginning of the names of datasets that are not complete yet.
const TEMPORARY: &str = ".ftctl-prepare-";

/// A directory that is removed unless it is published, at once or, when this program is killed, by the next preparation.
struct Temporary {
    directory: tempfile::TempDir,
    /// Locked.
    _claim: File,
}

/// A directory on the same file system.
fn temporary_beside(out: &Path) -> Result<Temporary, DataError> {
    let parent = match out.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    std::fs::create_dir_all(parent).map_err(DataError::writing(parent))?;
    remove_abandoned(parent);
    // Readable by whom the umask allows, as an ordinary directory.
    let mode = std::fs::Permissions::from_mode(0o777);
    let make = || tempfile::Builder::new().prefix(TEMPORARY).permissions(mode.clone()).tempdir_in(parent);
    loop {
        let directory = make().map_err(DataError::writing(parent))?;
        let claim = File::open(directory.path());
        // Where there are no locks, files that look abandoned are not removed.
        let _ = claim.as_ref().map(File::lock);
        // Until it was locked it looked abandoned, and another process may have removed it.
        if directory.path().exists() {
            return Ok(Temporary { directory, _claim: claim.map_err(DataError::writing(parent))? });
        }
    }
}

/// Removes what killed preparations left in a folder: those alive hold a lock.
fn remove_abandoned(parent: &Path) {
    let Ok(entries) = std::fs::read_dir(parent) else { return };
    for entry in entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with(TEMPORARY)) {
        if let Ok(folder) = File::open(entry.path())
            && folder.try_lock().is_ok()
        {
            // Best effort: it cannot be taken for a dataset.
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// Makes the files durable and gives the directory its name, at once.
fn publish(Temporary { directory, _claim }: Temporary, out: &Path) -> Result<(), DataError> {
    let sync = |path: &Path| File::open(path)?.sync_all();
    for name in Tokenizer::FILES.iter().chain([&DESCRIPTION, &"."]) {
        sync(&directory.path().join(name)).map_err(DataError::writing(directory.path()))?;
    }
    // Fails when another process has published here meanwhile; the temporary directory is then removed.
    std::fs::rename(directory.path(), out).map_err(|source| match source.kind() {
        std::io::ErrorKind::DirectoryNotEmpty | std::io::ErrorKind::AlreadyExists => {
            DataError::OutputExists { path: out.to_owned() }
        }
        _ => DataError::Write { path: out.to_owned(), source },
    })?;
    // The name no longer exists, so there is nothing to remove.
    let _ = directory.keep();
    Ok(())
}

#[cfg(test)]
mod tests;
