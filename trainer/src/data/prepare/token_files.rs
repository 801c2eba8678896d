//! Text that another program has turned into GPT-2's tokens already: the token files of nanoGPT, llm.c and fairseq.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use super::{Inputs, Progress, Stage};
use crate::data::DataError;
use crate::data::shard::{Dtype, SHARD_TOKENS, Split, SplitDescription, Writer, map};
use crate::data::tokenizer::Tokenizer;
use crate::files::read_at_most;
use crate::settings::DataFormat;

/// Bytes read at a time; a multiple of every token's size.
const BLOCK: usize = 1 << 20;
/// llm.c's header: 256 numbers of 32 bits, of which the first three are magic, version and the number of tokens.
const LLM_C_HEADER: u64 = 1024;
const LLM_C_MAGIC: u32 = 20_240_520;
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
pub fn beside(path: &Path) -> [PathBuf; 2] {
    [path.with_extension("idx"), path.with_file_name("dict.txt")]
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
        match format {
            DataFormat::LlmC => plain.with_llm_c_header(),
            DataFormat::Fairseq => plain.with_fairseq_index(tokenizer),
            DataFormat::Text | DataFormat::Nanogpt => Ok(plain),
        }
    }

    fn with_llm_c_header(self) -> Result<Self, DataError> {
        let mut header = [0; 12];
        self.file()?.read_exact(&mut header).map_err(|_| self.malformed("its header", "the file is too short for one"))?;
        let [magic, version, tokens] = [0, 4, 8].map(|at| u32::from_le_bytes([0, 1, 2, 3].map(|byte| header[at + byte])));
        if (magic, version) != (LLM_C_MAGIC, 1) {
            let reason = format!("magic {magic}, version {version}; a file of GPT-2's tokens has {LLM_C_MAGIC} and 1");
            return Err(self.malformed("its header", &reason));
        }
        Ok(Self { start: LLM_C_HEADER, tokens: Some(u64::from(tokens)), ..self })
    }

    /// `train.bin` has `train.idx` and `dict.txt` beside it.
    fn with_fairseq_index(self, tokenizer: &Tokenizer) -> Result<Self, DataError> {
        let [index, dictionary] = beside(&self.path);
        let index = Self { path: index, start: 0, width: 1, tokens: None, translation: None };
        // 12 bytes a line: for a large text more than belongs into memory.
        let (width, tokens) = fairseq_index(&map(&index.path)?).map_err(|reason| index.malformed("its structure", &reason))?;
        let text = read_at_most(&dictionary, LONGEST_DICTIONARY).map_err(|error| DataError::reading(&dictionary, error))?;
        let text = String::from_utf8_lossy(&text);
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
        token
            .filter(|token| (*token as usize) < tokenizer.vocabulary())
            .ok_or_else(|| self.malformed(&format!("token {position}"), &format!("{number} stands for none of GPT-2's tokens")))
    }

    fn malformed(&self, place: &str, reason: &str) -> DataError {
        DataError::Malformed { path: self.path.clone(), place: place.to_owned(), reason: reason.to_owned() }
    }
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
        Some(4) => 4,
        Some(5) => 8,
        code => return Err(format!("the dtype code {code:?} is not one of whole numbers")),
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
