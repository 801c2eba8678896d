//! Everything that can be wrong with data, each with its own message: what happened, in which file, and what to do.

use std::path::{Path, PathBuf};

use crate::error::Failure;

/// The one who has to act.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// The user's files or settings: exit code 2.
    Input,
    /// Stored data that is not what was written: exit code 9.
    Integrity,
    /// The machine: a disk, a permission of the output, a missing program.
    System,
}

#[derive(Debug, thiserror::Error)]
pub enum DataError {
    #[error("{path} does not exist; correct the path")]
    Missing { path: PathBuf },
    #[error("{path} is a link to {}, which does not exist; correct the link or remove it", .target.display())]
    Dangling { path: PathBuf, target: PathBuf },
    #[error("cannot read {path}: {source}{}", advice(.source))]
    Unreadable { path: PathBuf, source: std::io::Error },
    #[error("the pattern `{pattern}` matches no file; correct it")]
    NoMatch { pattern: String },
    #[error("the pattern `{pattern}` is not valid: {reason}")]
    BadPattern { pattern: String, reason: String },
    #[error("the directory {path} contains no file (hidden files are skipped); put text into it or name another one")]
    EmptyDirectory { path: PathBuf },
    #[error("{path} is neither a file nor a directory; name a regular file")]
    NotAFile { path: PathBuf },
    #[error("the dataset is empty: {what} contains no text; add text, or check `column`")]
    Empty { what: String },
    #[error("{path} is not UTF-8 text: invalid byte at offset {offset}; convert it (iconv -f ENCODING -t UTF-8) or leave it out")]
    InvalidUtf8 { path: PathBuf, offset: u64 },
    #[error("{path} has an invalid UTF-8 byte in {place}; convert it (iconv -f ENCODING -t UTF-8) or remove the row")]
    InvalidUtf8Row { path: PathBuf, place: String },
    #[error(
        "{path} has a NUL byte at offset {offset}: it is {0} (iconv -f {0} -t UTF-8 converts it), or not text (leave it out, or remove such bytes with tr -d '\\000')",
        if offset.is_multiple_of(2) { "UTF-16BE" } else { "UTF-16LE" }
    )]
    NulByte { path: PathBuf, offset: u64 },
    #[error("{path} has a NUL byte in {place}; remove the byte or the row")]
    NulByteRow { path: PathBuf, place: String },
    #[error("{path} has no column `{column}`; its columns are: {}. Set `column` to one of them", list(.columns))]
    UnknownColumn { path: PathBuf, column: String, columns: Vec<String> },
    #[error("{path} has no column `text` and more than one to choose from: {}. Set `column` to one of them, or leave that file out", list(.columns))]
    AmbiguousColumn { path: PathBuf, columns: Vec<String> },
    #[error("{path} has no column `{column}` in {place}; that row has: {}. Correct the row or set `column`", list(.columns))]
    MissingColumn { path: PathBuf, column: String, place: String, columns: Vec<String> },
    #[error(
        "the column `{column}` of {path} was taken for the text, because the first row has no other, and a later one has: {}. Set `column` to one of them",
        list(.columns)
    )]
    ColumnsDiffer { path: PathBuf, column: String, columns: Vec<String> },
    #[error(
        "the text of {path} is in its column `{other}`, and that of {first} in `{column}`. Give both one name, or leave one out"
    )]
    FilesDiffer { path: PathBuf, other: String, first: PathBuf, column: String },
    #[error("{left_out} of the {rows} rows of {path} cannot be used, and `on_bad_row = \"skip\"` is for a few. The first: {first}")]
    MostRowsBad { path: PathBuf, left_out: u64, rows: u64, first: String },
    #[error(
        "column `{column}` of {path} is not text in {place}; choose a column of strings, or write the turns of a conversation as one string"
    )]
    NotText { path: PathBuf, column: String, place: String },
    #[error(
        "the rows of {path} are a list in `{column}` of one object; take them out of it: jq -c '.[\"{column}\"][]' {path} > rows.jsonl"
    )]
    WrappedRows { path: PathBuf, column: String },
    #[error("{path} is malformed in {place}: {reason}; correct it or leave the file out")]
    Malformed { path: PathBuf, place: String, reason: String },
    #[error("{0}. `on_bad_row = \"skip\"` leaves such rows out")]
    BadRow(Box<DataError>),
    #[error("{path} holds no text to read as it is: it is {what}; {fix}")]
    OtherContent { path: PathBuf, what: String, fix: &'static str },
    #[error("{path} is not UTF-8 text: it is {encoding} text; convert it (iconv -f {encoding} -t UTF-8)")]
    Wide { path: PathBuf, encoding: &'static str },
    #[error("{path} is a pointer of git-lfs, and not the file that it stands for; `git lfs pull` in its repository fetches that")]
    Pointer { path: PathBuf },
    #[error("{path} changed while it was being read; run again when nothing writes to it")]
    Changed { path: PathBuf },
    /// A setting that no dataset can have.
    #[error("{0}")]
    Setting(String),
    #[error("{path} is not a prepared dataset: {reason}; make one with `ftctl prepare`")]
    NotADataset { path: PathBuf, reason: String },
    #[error("{path} is damaged: {reason}; prepare the dataset again")]
    Damaged { path: PathBuf, reason: String },
    #[error("{path} is not a usable tokenizer file: {reason}")]
    Tokenizer { path: PathBuf, reason: String },
    #[error(
        "{path} is {what}, and only byte-level BPE in `tokenizer.json`, or `vocab.json` and `merges.txt`, is read. \
         Weights that were trained with it cannot be trained further here; for a model from scratch leave data.tokenizer out \
         (GPT-2's vocabulary is built in), or set data.tokenizer.vocabulary to learn one from the text"
    )]
    OtherTokenizer { path: PathBuf, what: &'static str },
    #[error(
        "GPT-2's vocabulary inside the program has the SHA-256 {found}, not the published {expected}; rebuild from a clean checkout"
    )]
    Vocabulary { found: String, expected: &'static str },
    #[error("{path} exists already; remove it or choose another output directory")]
    OutputExists { path: PathBuf },
    #[error("cannot write {path}: {source}; check free space and permission")]
    Write { path: PathBuf, source: std::io::Error },
    #[error(
        "`cargo metadata` could not list the dependencies: {reason}; build ftctl with cargo once, or name text files in data.train"
    )]
    Cargo { reason: String },
    #[error("cargo is not in PATH; install Rust, or name text files in data.train")]
    NoCargo,
}

impl DataError {
    /// The one who has to act, for the exit code.
    pub fn class(&self) -> Class {
        match self {
            Self::Damaged { .. } | Self::Vocabulary { .. } => Class::Integrity,
            Self::Write { .. } | Self::Cargo { .. } | Self::NoCargo => Class::System,
            _ => Class::Input,
        }
    }

    /// An I/O error on an input file, told apart by its cause.
    pub(crate) fn reading(path: &Path, source: std::io::Error) -> Self {
        let path = path.to_owned();
        match source.kind() {
            std::io::ErrorKind::NotFound => Self::Missing { path },
            _ => Self::Unreadable { path, source },
        }
    }

    pub(crate) fn writing(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Write { path, source }
    }
}

impl From<DataError> for Failure {
    fn from(error: DataError) -> Self {
        match error.class() {
            Class::Input => Self::Input(error.to_string()),
            Class::Integrity => Self::Integrity(error.to_string()),
            Class::System => Self::Other(error.to_string()),
        }
    }
}

/// The user's next step. An error inside a file says its own.
fn advice(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::InvalidData => "",
        std::io::ErrorKind::PermissionDenied => "; give yourself read permission or choose another file",
        std::io::ErrorKind::NotADirectory | std::io::ErrorKind::InvalidFilename => "; correct the path",
        _ => "; choose another file",
    }
}

fn list(columns: &[String]) -> String {
    // A terminal would obey what else a file has there.
    columns.iter().map(|column| format!("`{}`", column.replace(char::is_control, "\u{fffd}"))).collect::<Vec<_>>().join(", ")
}
