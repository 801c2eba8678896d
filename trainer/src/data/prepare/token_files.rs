//! Text that another program has turned into GPT-2's tokens already: the token files of nanoGPT, llm.c and fairseq.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufReader, Read};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use super::{Inputs, Progress, Stage};
use crate::data::DataError;
use crate::data::shard::{Dtype, SHARD_TOKENS, Split, SplitDescription, Writer, map};
use crate::data::text::refuse_other_content;
use crate::data::tokenizer::Tokenizer;
use crate::files::{read_at_most, read_text};
use crate::model::PUBLISHED_VOCABULARY;
use crate::settings::{DataFormat, TokenizerKind};

/// Bytes read at a time; a multiple of every token's size.
const BLOCK: usize = 1 << 20;
/// llm.c's header: 256 numbers of 32 bits, of which the first three are magic, version and the number of tokens.
const LLM_C_HEADER: u64 = 1024;
const LLM_C_MAGIC: u32 = 20_240_520;
const LLAMA_MAGIC: u32 = 20_240_801;
/// Bytes that show what a file is, and the fewest of them that do.
const BEGINNING: u64 = 4096;
const LEAST: usize = 16;
/// fairseq's index: magic, version 1, a code of the dtype, the number of lines; then a size of 32 and a position of 64 bits for
/// each.
const FAIRSEQ_MAGIC: &[u8; 9] = b"MMIDIDX\0\0";
const FAIRSEQ_HEADER: usize = 26;
/// `<s>`, `<pad>`, `</s>` and `<unk>` come before the words of fairseq's dictionary.
const FAIRSEQ_END_OF_LINE: usize = 2;
const FAIRSEQ_SPECIALS: usize = 4;
/// Bytes; that of GPT-2's tokens has less than one million.
const LONGEST_DICTIONARY: u64 = 16 << 20;

/// Gets GPT-2's tokens and the bytes that they have in the file.
type Visit<'a> = dyn FnMut(&[u32], usize) -> Result<(), DataError> + 'a;

/// One token file.
struct TokenFile {
    path: PathBuf,
    /// Where the tokens begin, and how many bytes each takes.
    start: u64,
    width: usize,
    /// How many tokens the file says it has.
    tokens: Option<u64>,
    /// GPT-2's token for each of the file's; `None`: they are the same.
    translation: Option<Vec<Option<u32>>>,
}

/// The files that fairseq needs beside a token file: the index and the dictionary.
fn beside(path: &Path) -> [PathBuf; 2] {
    [path.with_extension("idx"), path.with_file_name("dict.txt")]
}

/// The files that are read beside a token file.
pub fn read_beside(format: DataFormat, path: &Path) -> Vec<PathBuf> {
    match (format, path.parent()) {
        (DataFormat::Fairseq, _) => beside(path).into(),
        (DataFormat::Nanogpt | DataFormat::LlmC, Some(parent)) if Tokenizer::lies_in(parent) => Tokenizer::files(parent),
        _ => Vec::new(),
    }
}

/// Further files beside a token file that have another vocabulary than GPT-2's.
const OTHER_VOCABULARIES: [(&str, &str); 6] = [
    ("meta.pkl", "nanoGPT's vocabulary of single characters"),
    ("dict.txt", "a dictionary of fairseq (data.format = \"fairseq\" reads what lies beside one)"),
    ("spm.model", "a vocabulary of SentencePiece"),
    ("tokenizer.pkl", "a vocabulary of tiktoken or nanochat"),
    ("stoi.pkl", "a vocabulary of a notebook"),
    ("vocab.pkl", "a vocabulary of a notebook"),
];
/// Ends of the names of such files, which have names of their own: `tok4096.model` of llama2.c, `cl100k_base.tiktoken`.
const OTHER_ENDS: [(&str, &str); 3] = [
    (".model", "a vocabulary of SentencePiece"),
    (".tiktoken", "a vocabulary of tiktoken"),
    (".spm", "a vocabulary of SentencePiece"),
];
/// Descriptions that tell the size of a vocabulary, where no tokenizer lies beside them.
const DESCRIPTIONS: [&str; 3] = ["config.json", "tokenizer_config.json", "meta.json"];
/// Bytes of the longest description, and sizes of vocabularies that begin with GPT-2's tokens.
const LONGEST_DESCRIPTION: u64 = 1 << 20;
const SIZES: RangeInclusive<u64> = PUBLISHED_VOCABULARY as u64..=51_200;
/// A folder of text has some files; one of a corpus may have more, of which the first ones tell.
const MOST_BESIDE: usize = 10_000;

/// The file in a folder that has another vocabulary than GPT-2's, and what it is.
fn other_vocabulary(folder: &Path) -> Option<(String, String)> {
    let mut named = Tokenizer::OTHERS.iter().chain(&OTHER_VOCABULARIES);
    if let Some((name, what)) = named.find(|(name, _)| folder.join(name).exists()) {
        return Some(((*name).to_owned(), (*what).to_owned()));
    }
    let mut there: Vec<String> =
        folder.read_dir().ok()?.flatten().take(MOST_BESIDE).filter_map(|entry| entry.file_name().into_string().ok()).collect();
    there.sort();
    let by_end = |name: &String| OTHER_ENDS.iter().find(|(end, _)| name.ends_with(end)).map(|(_, what)| (*what).to_owned());
    if let Some(found) = there.iter().find_map(|name| Some((name.clone(), by_end(name)?))) {
        return Some(found);
    }
    if Tokenizer::lies_in(folder) {
        return None;
    }
    DESCRIPTIONS.into_iter().find_map(|name| {
        let text = read_at_most(&folder.join(name), LONGEST_DESCRIPTION).ok()?;
        let told: serde_json::Value = serde_json::from_slice(&text).ok()?;
        if let Some(size) = told["vocab_size"].as_u64().filter(|size| !SIZES.contains(size)) {
            return Some((name.to_owned(), format!("a description of a vocabulary of {size}")));
        }
        let class = told["tokenizer_class"].as_str().filter(|class| !class.starts_with("GPT2"))?;
        Some((name.to_owned(), format!("the settings of a {}", class.escape_debug())))
    })
}

/// The tokenizer that made the tokens: the one beside them, else GPT-2's.
pub fn vocabulary(format: DataFormat, inputs: &Inputs) -> Result<(TokenizerKind, Tokenizer), DataError> {
    if format == DataFormat::Fairseq {
        return Ok((TokenizerKind::Gpt2, Tokenizer::gpt2()?));
    }
    let mut found: Option<Tokenizer> = None;
    let files = inputs.files();
    let folders: BTreeSet<&Path> = files.iter().filter_map(|path| path.parent()).collect();
    for folder in folders {
        let of_folder = || files.iter().filter(|path| path.parent() == Some(folder));
        if let Some(path) = of_folder().find(|path| path.with_extension("idx").exists()) {
            let reason = "an index (.idx) lies beside it, as Megatron-LM and fairseq write one; its vocabulary is not known; \
                          name the text itself, or set data.format = \"fairseq\" if dict.txt lies there too";
            return Err(DataError::Malformed { path: path.clone(), place: "its vocabulary".to_owned(), reason: reason.to_owned() });
        }
        if let Some((name, what)) = other_vocabulary(folder) {
            let reason =
                format!("{name}, {what}, lies beside it: its numbers are not those of GPT-2's tokens; name the text itself");
            let path = of_folder().next().cloned().unwrap_or_default();
            return Err(DataError::Malformed { path, place: "its vocabulary".to_owned(), reason });
        }
        if !Tokenizer::lies_in(folder) {
            continue;
        }
        let tokenizer = Tokenizer::load(folder)?;
        if found.as_ref().is_some_and(|found| found.difference(&tokenizer).is_some()) {
            let reason = "another token file has another vocabulary beside it; name files of one".to_owned();
            return Err(DataError::Malformed { path: folder.to_owned(), place: "its vocabulary".to_owned(), reason });
        }
        found = Some(tokenizer);
    }
    let published = Tokenizer::gpt2()?;
    match found {
        Some(tokenizer) if tokenizer.difference(&published).is_some() => Ok((TokenizerKind::Files, tokenizer)),
        _ => Ok((TokenizerKind::Gpt2, published)),
    }
}

/// Writes the shards of both splits.
pub fn write(
    directory: &Path,
    format: DataFormat,
    tokenizer: &Tokenizer,
    inputs: &Inputs,
    progress: &mut Progress<'_>,
) -> Result<(SplitDescription, SplitDescription), DataError> {
    let total = inputs.files().iter().filter_map(|path| path.metadata().ok()).map(|metadata| metadata.len()).sum();
    let mut done = 0;
    let mut report = |bytes: usize| {
        done += bytes as u64;
        progress(Stage::Reading, done, Some(total));
    };
    let mut split = |split, files: &[PathBuf]| {
        let mut output = Output::new(directory, split, tokenizer);
        for path in files {
            TokenFile::open(format, path, tokenizer)?.read(tokenizer, &mut |tokens, bytes| {
                report(bytes);
                output.push(tokens)
            })?;
        }
        output.finish()
    };
    Ok((split(Split::Train, &inputs.train)?, split(Split::Validation, &inputs.validation)?))
}

/// The shards of one split as they grow.
struct Output<'a> {
    tokenizer: &'a Tokenizer,
    shards: Writer,
    description: SplitDescription,
    /// Whether the last document has no end yet.
    open: bool,
}

impl<'a> Output<'a> {
    fn new(directory: &Path, split: Split, tokenizer: &'a Tokenizer) -> Self {
        let shards = Writer::new(directory, split, Dtype::for_vocabulary(tokenizer.vocabulary()), SHARD_TOKENS);
        Self { tokenizer, shards, description: SplitDescription::default(), open: false }
    }

    fn push(&mut self, tokens: &[u32]) -> Result<(), DataError> {
        let end = self.tokenizer.end_of_text();
        self.description.tokens += tokens.len() as u64;
        self.description.documents += tokens.iter().filter(|token| **token == end).count() as u64;
        self.description.bytes += tokens.iter().map(|token| self.tokenizer.bytes_of(*token).len() as u64).sum::<u64>();
        self.open = tokens.last().map_or(self.open, |token| *token != end);
        self.shards.push(tokens)
    }

    fn finish(mut self) -> Result<SplitDescription, DataError> {
        self.description.documents += u64::from(self.open);
        Ok(SplitDescription { shards: self.shards.finish()?, ..self.description })
    }
}

impl TokenFile {
    fn open(format: DataFormat, path: &Path, tokenizer: &Tokenizer) -> Result<Self, DataError> {
        let plain = Self { path: path.to_owned(), start: 0, width: 2, tokens: None, translation: None };
        plain.check_beginning(format)?;
        match format {
            DataFormat::LlmC => plain.with_llm_c_header(),
            DataFormat::Fairseq => plain.with_fairseq_index(tokenizer),
            DataFormat::Text | DataFormat::Nanogpt => Ok(plain),
        }
    }

    /// Refuses what is something else than numbers of 16 bits: numbers of that kind are tokens whatever they were meant to be.
    fn check_beginning(&self, format: DataFormat) -> Result<(), DataError> {
        let mut beginning = Vec::new();
        let reading = |error| DataError::reading(&self.path, error);
        self.file()?.take(BEGINNING).read_to_end(&mut beginning).map_err(reading)?;
        if !(format == DataFormat::LlmC && beginning.starts_with(&LLM_C_MAGIC.to_le_bytes())) {
            refuse_other_content(&self.path, &beginning)?;
        }
        if beginning.starts_with(b"PAR1") {
            return Err(self.malformed("its content", "it is a parquet file and not tokens; leave data.format out"));
        }
        if format != DataFormat::Nanogpt || beginning.len() < LEAST {
            return Ok(());
        }
        if is_text(&beginning) {
            return Err(self.malformed("its content", "it is text and not tokens; leave data.format out"));
        }
        let (numbers, _) = beginning.as_chunks::<4>();
        if numbers.iter().all(|number| number[2..] == [0, 0]) {
            let reason =
                "every second number is 0, so its tokens have 32 or 64 bits, and nanoGPT's have 16; write them as numpy.uint16";
            return Err(self.malformed("its numbers", reason));
        }
        Ok(())
    }

    fn with_llm_c_header(self) -> Result<Self, DataError> {
        let mut header = [0; 12];
        self.file()?.read_exact(&mut header).map_err(|_| self.malformed("its header", "the file is too short for one"))?;
        let [magic, version, tokens] = [0, 4, 8].map(|at| u32::from_le_bytes([0, 1, 2, 3].map(|byte| header[at + byte])));
        if (magic, version) != (LLM_C_MAGIC, 1) {
            let other = if magic == LLAMA_MAGIC { ": these are Llama 3's" } else { "" };
            let reason = format!("magic {magic}, version {version}; a file of GPT-2's tokens has {LLM_C_MAGIC} and 1{other}");
            return Err(self.malformed("its header", &reason));
        }
        Ok(Self { start: LLM_C_HEADER, tokens: Some(u64::from(tokens)), ..self })
    }

    /// `train.bin` has `train.idx` and `dict.txt` beside it.
    fn with_fairseq_index(self, tokenizer: &Tokenizer) -> Result<Self, DataError> {
        if self.path.extension().is_none_or(|kind| kind != "bin") {
            return Err(self.malformed(
                "its name",
                "a token file of fairseq is called DIR/train.bin; name the file, and no other of its folder",
            ));
        }
        let [index, dictionary] = beside(&self.path);
        let index = Self { path: index, start: 0, width: 1, tokens: None, translation: None };
        // 12 bytes a line: for a large text more than belongs into memory.
        let (width, tokens) = fairseq_index(&map(&index.path)?).map_err(|reason| index.malformed("its structure", &reason))?;
        let text = read_text(&dictionary, LONGEST_DICTIONARY).map_err(|error| DataError::reading(&dictionary, error))?;
        let text = String::from_utf8_lossy(&text);
        if let Some(word) = text.lines().filter_map(|line| line.split(' ').next()).find(|word| !is_of_gpt2(word)) {
            let reason = format!(
                "its word `{word}` is not a number: the text was not turned into GPT-2's tokens before; name the text itself"
            );
            return Err(DataError::Malformed { path: dictionary, place: "its words".to_owned(), reason });
        }
        Ok(Self { width, tokens: Some(tokens), translation: Some(fairseq_translation(&text, tokenizer)), ..self })
    }

    fn file(&self) -> Result<File, DataError> {
        File::open(&self.path).map_err(|error| DataError::reading(&self.path, error))
    }

    /// Hands on the tokens in blocks.
    fn read(&self, tokenizer: &Tokenizer, visit: &mut Visit<'_>) -> Result<(), DataError> {
        let reading = |error| DataError::reading(&self.path, error);
        let length = self.path.metadata().map_err(reading)?.len().saturating_sub(self.start);
        let count = length / self.width as u64;
        if !length.is_multiple_of(self.width as u64) || self.tokens.is_some_and(|tokens| tokens != count) {
            let said = self.tokens.map_or(String::new(), |tokens| format!(", the header says {tokens} tokens"));
            return Err(self.malformed("its length", &format!("{length} bytes of tokens of {} bytes{said}", self.width)));
        }
        let mut file = BufReader::with_capacity(BLOCK, self.file()?);
        std::io::copy(&mut file.by_ref().take(self.start), &mut std::io::sink()).map_err(reading)?;
        let (mut block, mut tokens, mut position) = (Vec::new(), Vec::new(), 0);
        while file.by_ref().take(BLOCK as u64).read_to_end(&mut block).map_err(reading)? > 0 {
            for raw in block.chunks(self.width) {
                tokens.push(self.token(raw, position, tokenizer)?);
                position += 1;
            }
            visit(&tokens, block.len())?;
            block.clear();
            tokens.clear();
        }
        Ok(())
    }

    fn token(&self, raw: &[u8], position: u64, tokenizer: &Tokenizer) -> Result<u32, DataError> {
        let number = raw.iter().rev().fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
        let token = match &self.translation {
            None => u32::try_from(number).ok(),
            Some(translation) => usize::try_from(number).ok().and_then(|number| *translation.get(number)?),
        };
        token.filter(|token| (*token as usize) < tokenizer.vocabulary()).ok_or_else(|| {
            let whose = if tokenizer.vocabulary() == PUBLISHED_VOCABULARY {
                "GPT-2's tokens"
            } else {
                "the tokens of the tokenizer beside it"
            };
            self.malformed(&format!("token {position}"), &format!("{number} stands for none of {whose}"))
        })
    }

    fn malformed(&self, place: &str, reason: &str) -> DataError {
        DataError::Malformed { path: self.path.clone(), place: place.to_owned(), reason: reason.to_owned() }
    }
}

/// Letters, marks and line ends, and nothing else.
fn is_text(beginning: &[u8]) -> bool {
    let text = match std::str::from_utf8(beginning) {
        Ok(text) => text,
        // The last character may go on.
        Err(error) if error.error_len().is_none() => std::str::from_utf8(&beginning[..error.valid_up_to()]).unwrap_or_default(),
        Err(_) => return false,
    };
    text.chars().all(|c| !c.is_control() || c.is_ascii_whitespace())
}

/// Whether fairseq's dictionary has such a word where the words are GPT-2's tokens: numbers, what fills it up, and marks.
fn is_of_gpt2(word: &str) -> bool {
    let is_mark = word.starts_with("madeupword") || word.starts_with('<') && word.ends_with('>');
    is_mark || word.is_empty() || word.bytes().all(|byte| byte.is_ascii_digit())
}

/// The bytes of a token and the number of tokens.
fn fairseq_index(content: &[u8]) -> Result<(usize, u64), String> {
    let long = |at: usize| content.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map(u64::from_le_bytes);
    if !content.starts_with(FAIRSEQ_MAGIC) || long(9) != Some(1) {
        return Err("it does not begin with MMIDIDX and version 1".to_owned());
    }
    let width = match content.get(17) {
        Some(1) => 1,
        Some(3 | 8) => 2,
        Some(4 | 9) => 4,
        Some(5 | 10) => 8,
        Some(code) => return Err(format!("the dtype code {code} is not one of whole numbers")),
        None => return Err("it ends too early".to_owned()),
    };
    let lines = long(18).and_then(|lines| usize::try_from(lines).ok()).ok_or("it ends too early")?;
    let (sizes, positions) = content[FAIRSEQ_HEADER..].split_at_checked(lines.saturating_mul(4)).ok_or("it ends too early")?;
    if positions.len() != lines * 8 {
        return Err(format!("it has {} bytes of positions for {lines} lines", positions.len()));
    }
    let mut tokens = 0_u64;
    for (size, position) in sizes.as_chunks().0.iter().zip(positions.as_chunks().0) {
        if Some(u64::from_le_bytes(*position)) != tokens.checked_mul(width as u64) {
            return Err("its lines do not follow one another".to_owned());
        }
        tokens = tokens.checked_add(u64::from(u32::from_le_bytes(*size))).ok_or("it has more tokens than can be counted")?;
    }
    Ok((width, tokens))
}

/// fairseq gives its words numbers of its own, by frequency; here a word is a token of GPT-2 in decimal, and the end of a line an
/// end of text.
fn fairseq_translation(dictionary: &str, tokenizer: &Tokenizer) -> Vec<Option<u32>> {
    let mut translation = vec![None; FAIRSEQ_SPECIALS];
    translation[FAIRSEQ_END_OF_LINE] = Some(tokenizer.end_of_text());
    translation.extend(dictionary.lines().map(|line| line.split(' ').next().and_then(|word| word.parse().ok())));
    translation
}
