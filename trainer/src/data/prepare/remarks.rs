//! Facts that a reader should know of a text beside its numbers.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::data::DataError;
use crate::files::read_at_most;

/// Beside `dataset.json`, which stays what it is: its digest names the dataset.
const FILE: &str = "remarks.json";
const LONGEST: u64 = 1 << 20;

/// The findings of preparing a text. As a rule there are none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Remarks {
    /// Rows of which nothing could be made, and what is wrong with the first.
    pub rows_left_out: u64,
    pub first_row: Option<String>,
    /// Rows of csv with fewer fields than the header, and a text.
    #[serde(skip_serializing_if = "is_zero")]
    pub short_rows: u64,
    /// Rows whose text is null, which are no documents.
    #[serde(skip_serializing_if = "is_zero")]
    pub nulls: u64,
    /// The first text file that is JSON, which became text with its braces and names.
    #[serde(alias = "json_lines", skip_serializing_if = "Option::is_none")]
    pub json: Option<String>,
    /// The first file that tells of the data, by its name, and became text as the others did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub about: Option<String>,
    /// The first text file whose lines end with CR and LF.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub carriage_returns: Option<String>,
    /// How often the text has what a special token is called, which became ordinary characters.
    pub literal: BTreeMap<String, u64>,
    /// The first name that stands more than once among the training text, which is read once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repeated: Option<String>,
    /// Training files that are validation files, too.
    #[serde(skip_serializing_if = "is_zero")]
    pub shared: u64,
    /// Bytes of text that the tokenizer has no token for, which left nothing.
    #[serde(skip_serializing_if = "is_zero")]
    pub bytes_without_token: u64,
    /// Tokens that transformers puts before and after each text with this tokenizer.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub around_texts: Vec<String>,
    /// A vocabulary that the text was too short for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vocabulary: Option<Vocabulary>,
}

/// Tokens that were learnt, and those that were asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vocabulary {
    pub tokens: usize,
    pub wanted: usize,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands it over so")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl Remarks {
    /// Those of a dataset that was prepared before.
    pub fn read(directory: &Path) -> Self {
        let text = read_at_most(&directory.join(FILE), LONGEST).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }

    pub(super) fn write(&self, directory: &Path) -> Result<(), DataError> {
        if *self == Self::default() {
            return Ok(());
        }
        let path = directory.join(FILE);
        std::fs::write(&path, format!("{:#}\n", serde_json::json!(self))).map_err(DataError::writing(&path))
    }

    /// The remarks as sentences.
    pub fn sentences(&self) -> Vec<String> {
        let rows = (self.rows_left_out > 0).then(|| {
            let first = self.first_row.as_deref().unwrap_or("it cannot be read");
            let (rows, were) = if self.rows_left_out == 1 { ("row", "was") } else { ("rows", "were") };
            format!("{} {rows} {were} left out, as data.on_bad_row = \"skip\" says; the first: {first}", self.rows_left_out)
        });
        let short = (self.short_rows > 0).then(|| {
            let (rows, have, were) = if self.short_rows == 1 { ("row", "has", "was") } else { ("rows", "have", "were") };
            format!("{} {rows} of csv {have} fewer fields than the header, and {were} taken: the text is there", self.short_rows)
        });
        let nulls = (self.nulls > 0).then(|| {
            let (rows, have) = if self.nulls == 1 { ("row", "has") } else { ("rows", "have") };
            format!("{} {rows} {have} null for a text, and became no document; data.column names another column", self.nulls)
        });
        let json = self.json.as_ref().map(|file| {
            format!(
                "{file} is JSON, and was taken as plain text, with its braces and names. Rename it to .jsonl (one object a line) or .json \
                 (a list of objects), and each object becomes a document. For a notebook, extract the text first, as with jupyter nbconvert"
            )
        });
        let about = self.about.as_ref().map(|file| {
            format!(
                "{file} looks like a description of the data, and became text like the other files. To leave it out, name the others, \
                 by a pattern such as DIRECTORY/*.jsonl"
            )
        });
        let repeated = self.repeated.as_ref().map(|name| {
            format!("{name} is named more than once, and read once. To train on it more often than on the rest, name copies of it")
        });
        let carriage_returns = self.carriage_returns.as_ref().map(|file| {
            format!(
                "the lines of {file} end with CR and LF, as on Windows. Both stay in the text, where run_clm.py has LF alone; `dos2unix` \
                 converts the file"
            )
        });
        let literal = self.literal.iter().map(|(token, count)| {
            let times = if *count == 1 { "once".to_owned() } else { format!("{count} times") };
            format!(
                "the text has {token} {times}, read as ordinary characters. Set data.end_of_text = \"split\" to read it as the token, \
                 as transformers does, or \"literal\" to leave it and this warning out"
            )
        });
        let shared = (self.shared > 0).then(|| {
            let files = if self.shared == 1 { "1 file is".to_owned() } else { format!("{} files are", self.shared) };
            format!("{files} trained on and held out, too: the validation loss says nothing about text that the model has not seen")
        });
        let lost = (self.bytes_without_token > 0).then(|| {
            format!(
                "the tokenizer has no token for {} bytes of the text, which were left out, as in transformers; one that is trained with \
                 initial_alphabet=ByteLevel.alphabet() has a token for each byte",
                self.bytes_without_token
            )
        });
        let around_texts = (!self.around_texts.is_empty()).then(|| {
            format!(
                "with this tokenizer transformers puts {} around each text; here each document is followed by the end of text, and \
                 nothing else is added",
                self.around_texts.join(" and ")
            )
        });
        let vocabulary = self.vocabulary.map(|Vocabulary { tokens, wanted }| {
            format!(
                "the vocabulary has {tokens} tokens, not {wanted} as data.tokenizer.vocabulary says: the text repeats nothing more that \
                 would make one"
            )
        });
        rows.into_iter()
            .chain(short)
            .chain(nulls)
            .chain(json)
            .chain(about)
            .chain(repeated)
            .chain(carriage_returns)
            .chain(literal)
            .chain(shared)
            .chain(lost)
            .chain(around_texts)
            .chain(vocabulary)
            .collect()
    }
}
