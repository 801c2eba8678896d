//! `ftctl prepare`: text becomes token shards.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum, builder::NonEmptyStringValueParser};
use ft_trainer::{
    data::prepare::PreparedSummary,
    settings::{DataConfig, DataFormat, EndOfText, OnBadRow, TextSource, TokenizerConfig, TokenizerKind, validate},
};
use serde_json::{Value, json};

use super::{App, intent::Intent};
use crate::{
    exit::{Exit, Failure},
    job::{
        hub::{OfHub, is_name, misnamed},
        spec::JobSpec,
    },
    lifecycle::{hub, upload},
    output::{Show, Table, format},
    provider::registry,
    settings,
};

/// Turn text into token shards, which `dataset = "DIR"` in a job file takes
///
/// txt files are one document each; rows of csv, json, jsonl and parquet files are documents. Files may be packed by gzip or
/// Zstandard.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ftctl prepare texts/*.txt --out prepared\n  ftctl prepare --job job.toml --out prepared")]
pub struct Arguments {
    /// Files, directories or glob patterns of text to train on
    #[arg(required_unless_present_any = ["job", "source"], value_parser = NonEmptyStringValueParser::new())]
    text: Vec<String>,
    /// The directory to write; must not exist
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Take the [data] table of this job file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["text", "source", "validation", "validation_fraction", "limit_bytes", "format", "column", "on_bad_row", "end_of_text", "tokenizer", "vocabulary", "tokenizer_from"])]
    job: Option<PathBuf>,
    /// Text that is on this machine already
    #[arg(long, conflicts_with = "text")]
    source: Option<Source>,
    /// Held-out text; may be repeated
    #[arg(long, value_name = "PATH")]
    validation: Vec<String>,
    /// Share of the documents that is held out when there is no --validation
    #[arg(long, value_name = "SHARE", default_value_t = 0.05)]
    validation_fraction: f64,
    /// Stop after this many bytes of text
    #[arg(long, value_name = "BYTES")]
    limit_bytes: Option<u64>,
    /// The program that wrote the files, if they hold tokens
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
    /// Column of csv, json, jsonl and parquet files [default: `text`, else the only one]
    #[arg(long)]
    column: Option<String>,
    /// Treatment of a row that cannot be used
    #[arg(long, value_enum, default_value = "fail")]
    on_bad_row: BadRow,
    /// How special tokens such as `<|endoftext|>` in the text are read [default: literal, and a warning]
    #[arg(long, value_enum)]
    end_of_text: Option<End>,
    /// GPT-2's own vocabulary, or one trained on the text
    #[arg(long, value_enum, default_value = "gpt2")]
    tokenizer: Tokenizer,
    /// Size of a trained vocabulary
    #[arg(long, value_name = "TOKENS")]
    vocabulary: Option<usize>,
    /// The vocabulary in this directory, such as that of the weights to train on
    #[arg(long, value_name = "DIR", conflicts_with_all = ["tokenizer", "vocabulary"])]
    tokenizer_from: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Source {
    /// The Rust sources of ftctl's own dependencies
    CargoDependencies,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Format {
    /// None: they hold text
    Text,
    /// nanoGPT
    Nanogpt,
    /// llm.c
    LlmC,
    /// fairseq-preprocess
    Fairseq,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum BadRow {
    /// The data is refused
    Fail,
    /// The row is left out, and counted
    Skip,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum End {
    /// The token; the document ends there
    Split,
    /// Ordinary characters
    Literal,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Tokenizer {
    /// 50,257 tokens
    Gpt2,
    /// A byte-level BPE of --vocabulary tokens
    Train,
}

impl Arguments {
    pub fn run(self, app: &mut App<'_>) -> Result<(), Failure> {
        let out = app.working_directory.join(&self.out);
        let config = match &self.job {
            Some(path) => of_job(path, &app.working_directory)?,
            None => self.config(&app.working_directory)?,
        };
        let cache = app.settings.directories.cache()?;
        if app.dry_run {
            let mut acts: Vec<String> = OfHub::of_text(&config).iter().map(|of_hub| format!("fetch {}", of_hub.text)).collect();
            if !acts.is_empty() {
                acts.push(format!("turn its text into tokens in {}", self.out.display()));
                return app.output.show(&Intent(acts));
            }
            let files = upload::inputs(&config, cache)?.files();
            let act = format!("turn the text of {} into tokens in {}", format::of(files.len() as u64, "file"), self.out.display());
            return app.output.show(&Intent(vec![act]));
        }
        let report = app.output.report();
        let config = app.block_on(async { hub::text_here(&app.hub()?, &config, report.as_ref()).await })?;
        let summary = upload::prepare(&config, cache, &out, report.as_ref())?;
        app.output.show(&Prepared { path: self.out, summary })
    }

    /// The flags as the [data] table that they stand for.
    fn config(&self, base: &Path) -> Result<DataConfig, Failure> {
        let below = |paths: &[String]| paths.iter().map(|path| below(base, path)).collect();
        let directory = self.tokenizer_from.as_ref().map(|directory| self::below(base, &directory.to_string_lossy()));
        let kind = match self.tokenizer {
            _ if directory.is_some() => TokenizerKind::Files,
            Tokenizer::Gpt2 => TokenizerKind::Gpt2,
            Tokenizer::Train => TokenizerKind::Train,
        };
        let config = DataConfig {
            train: below(&self.text),
            format: match self.format {
                Format::Text => DataFormat::Text,
                Format::Nanogpt => DataFormat::Nanogpt,
                Format::LlmC => DataFormat::LlmC,
                Format::Fairseq => DataFormat::Fairseq,
            },
            validation: below(&self.validation),
            source: self.source.map(|Source::CargoDependencies| TextSource::CargoDependencies),
            validation_fraction: self.validation_fraction,
            limit_bytes: self.limit_bytes,
            column: self.column.clone(),
            on_bad_row: match self.on_bad_row {
                BadRow::Fail => OnBadRow::Fail,
                BadRow::Skip => OnBadRow::Skip,
            },
            end_of_text: self.end_of_text.map(|end| match end {
                End::Split => EndOfText::Split,
                End::Literal => EndOfText::Literal,
            }),
            tokenizer: TokenizerConfig { kind, vocabulary: self.vocabulary, directory },
        };
        validate::all_hold(validate::data(&config)).map_err(|broken| Failure::new(Exit::Usage, broken.message))?;
        // In a job file the rules do it.
        let wrong = misnamed(&config).next().map(|(_, why)| Failure::new(Exit::Usage, why));
        wrong.map_or(Ok(config), Err)
    }
}

fn of_job(path: &Path, working_directory: &Path) -> Result<DataConfig, Failure> {
    let spec = JobSpec::read(&settings::open(path)?, registry::rules)?;
    let nothing = || Failure::new(Exit::Usage, format!("{} has no [data] table: its dataset is prepared already", path.display()));
    let mut config = spec.data.ok_or_else(nothing)?;
    let whole = working_directory.join(path);
    let base = whole.parent().unwrap_or(&whole);
    for path in config.paths_mut() {
        *path = below(base, path);
    }
    Ok(config)
}

/// A path that begins at `base`; a name of the hub stays.
fn below(base: &Path, path: &str) -> String {
    if is_name(path) { path.to_owned() } else { base.join(path).to_string_lossy().into_owned() }
}

struct Prepared {
    path: PathBuf,
    summary: PreparedSummary,
}

impl Show for Prepared {
    fn schema(&self) -> &'static str {
        "ftctl.prepare/1"
    }

    fn json(&self) -> Value {
        json!({
            "path": self.path.display().to_string(),
            "digest": self.summary.digest,
            "description": self.summary.description,
        })
    }

    fn text(&self) -> String {
        let description = &self.summary.description;
        let mut table = Table::default();
        table.pair("dataset", self.path.display().to_string());
        table.pair("digest", &self.summary.digest);
        table.pair("vocabulary", format::number(description.vocabulary as u64));
        table.pair("train", format!("{} tokens", format::number(description.train.tokens)));
        table.pair("validation", format!("{} tokens", format::number(description.validation.tokens)));
        table.render()
    }

    fn names(&self) -> Vec<String> {
        vec![self.path.display().to_string()]
    }
}
