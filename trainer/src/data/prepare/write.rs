//! Encoding on all cores and writing in order.

use std::path::Path;

use super::{BATCH, SHARE};
use crate::data::DataError;
use crate::data::shard::{Dtype, FileDigest, Split, SplitDescription, Writer, file_digest};
use crate::data::tokenizer::{Segment, Tokenizer, parts};

/// Collects text into batches, encodes each on all cores, and writes its tokens in order.
pub struct TokenWriter<'a> {
    tokenizer: &'a Tokenizer,
    /// Whether special tokens are looked for in the text.
    splits: bool,
    train: SplitWriter,
    validation: SplitWriter,
    batch: Vec<Text>,
    waiting: usize,
    done: u64,
    /// Bytes of text that have no token.
    lost: u64,
    report: &'a mut dyn FnMut(u64),
}

struct SplitWriter {
    shards: Writer,
    description: SplitDescription,
    /// Whether the open document has a token.
    is_open: bool,
}

/// Text that waits to be encoded.
struct Text {
    split: Split,
    content: String,
    /// Whether a document ends here.
    last: bool,
}

impl<'a> TokenWriter<'a> {
    /// `report` gets the bytes of text written so far. `splits`: special tokens that stand in the text become themselves.
    pub fn new(
        directory: &Path,
        (tokenizer, splits): (&'a Tokenizer, bool),
        dtype: Dtype,
        shard_tokens: u64,
        report: &'a mut dyn FnMut(u64),
    ) -> Self {
        let split = |split| SplitWriter {
            shards: Writer::new(directory, split, dtype, shard_tokens),
            description: SplitDescription::default(),
            is_open: false,
        };
        let (train, validation) = (split(Split::Train), split(Split::Validation));
        Self { tokenizer, splits, train, validation, batch: Vec::new(), waiting: 0, done: 0, lost: 0, report }
    }

    pub fn push(&mut self, split: Split, text: &str, last: bool) -> Result<(), DataError> {
        self.batch.push(Text { split, content: text.to_owned(), last });
        self.waiting += text.len();
        if self.waiting < BATCH { Ok(()) } else { self.flush() }
    }

    /// Writes what waits; describes the training and the validation split, and counts the bytes without a token.
    pub fn finish(mut self) -> Result<(SplitDescription, SplitDescription, u64), DataError> {
        self.flush()?;
        Ok((self.train.finish()?, self.validation.finish()?, self.lost))
    }

    fn flush(&mut self) -> Result<(), DataError> {
        let batch = std::mem::take(&mut self.batch);
        let segments: Vec<Vec<Segment<'_>>> = batch.iter().map(|text| self.segments(&text.content)).collect();
        let ordinary = |segment: &&Segment<'_>| segment.token.is_none();
        let shares: Vec<&str> = segments.iter().flatten().filter(ordinary).flat_map(|segment| parts(segment.text, SHARE)).collect();
        self.lost += shares.iter().map(|share| self.tokenizer.without_token(share)).sum::<u64>();
        let mut encoded = shares.iter().zip(self.tokenizer.encode_batch(&shares));
        for (text, segments) in batch.iter().zip(&segments) {
            let writer = match text.split {
                Split::Train => &mut self.train,
                Split::Validation => &mut self.validation,
            };
            for segment in segments {
                if let Some(token) = segment.token {
                    writer.push(&[token])?;
                    continue;
                }
                let mut missing = segment.text.len();
                while missing > 0
                    && let Some((share, tokens)) = encoded.next()
                {
                    writer.push(&tokens)?;
                    missing -= share.len();
                }
            }
            writer.description.bytes += text.content.len() as u64;
            if text.last {
                writer.end(self.tokenizer.end_of_text())?;
            }
        }
        self.done += std::mem::take(&mut self.waiting) as u64;
        (self.report)(self.done);
        Ok(())
    }

    fn segments<'t>(&self, text: &'t str) -> Vec<Segment<'t>> {
        if self.splits { self.tokenizer.specials().segments(text) } else { vec![Segment { text, token: None }] }
    }
}

impl SplitWriter {
    fn push(&mut self, tokens: &[u32]) -> Result<(), DataError> {
        self.description.tokens += tokens.len() as u64;
        self.is_open |= !tokens.is_empty();
        self.shards.push(tokens)
    }

    /// Ends a document, which may be none between two ends of text.
    fn end(&mut self, end_of_text: u32) -> Result<(), DataError> {
        self.description.documents += u64::from(std::mem::take(&mut self.is_open));
        self.description.tokens += 1;
        self.shards.push(&[end_of_text])
    }

    fn finish(self) -> Result<SplitDescription, DataError> {
        Ok(SplitDescription { shards: self.shards.finish()?, ..self.description })
    }
}

/// Names and digests of files in a directory.
pub fn digests(directory: &Path, names: &[&str]) -> Result<Vec<FileDigest>, DataError> {
    let digest = |name: &&str| {
        let path = directory.join(name);
        let sha256 = file_digest(&path).map_err(|error| DataError::reading(&path, error))?;
        Ok(FileDigest { file: (*name).to_owned(), sha256 })
    };
    names.iter().map(digest).collect()
}
