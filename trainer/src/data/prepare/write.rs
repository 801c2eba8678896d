//! Encoding on all cores and writing in order.

use std::path::Path;

use super::{BATCH, SHARE};
use crate::data::DataError;
use crate::data::shard::{Dtype, FileDigest, Split, SplitDescription, Writer, file_digest};
use crate::data::tokenizer::{Tokenizer, parts};

/// Collects text into batches, encodes each on all cores, and writes its tokens in order.
pub struct TokenWriter<'a> {
    tokenizer: &'a Tokenizer,
    train: SplitWriter,
    validation: SplitWriter,
    batch: Vec<Text>,
    waiting: usize,
    done: u64,
    report: &'a mut dyn FnMut(u64),
}

struct SplitWriter {
    shards: Writer,
    description: SplitDescription,
}

/// Text that waits to be encoded.
struct Text {
    split: Split,
    content: String,
    /// Whether a document ends here.
    last: bool,
}

impl<'a> TokenWriter<'a> {
    /// `report` gets the bytes of text written so far.
    pub fn new(
        directory: &Path,
        tokenizer: &'a Tokenizer,
        dtype: Dtype,
        shard_tokens: u64,
        report: &'a mut dyn FnMut(u64),
    ) -> Self {
        let split = |split| SplitWriter {
            shards: Writer::new(directory, split, dtype, shard_tokens),
            description: SplitDescription::default(),
        };
        let (train, validation) = (split(Split::Train), split(Split::Validation));
        Self { tokenizer, train, validation, batch: Vec::new(), waiting: 0, done: 0, report }
    }

    pub fn push(&mut self, split: Split, text: &str, last: bool) -> Result<(), DataError> {
        self.batch.push(Text { split, content: text.to_owned(), last });
        self.waiting += text.len();
        if self.waiting < BATCH { Ok(()) } else { self.flush() }
    }

    /// Writes what waits; describes the training and the validation split.
    pub fn finish(mut self) -> Result<(SplitDescription, SplitDescription), DataError> {
        self.flush()?;
        Ok((self.train.finish()?, self.validation.finish()?))
    }

    fn flush(&mut self) -> Result<(), DataError> {
        let batch = std::mem::take(&mut self.batch);
        let shares: Vec<&str> = batch.iter().flat_map(|text| parts(&text.content, SHARE)).collect();
        let mut encoded = shares.iter().zip(self.tokenizer.encode_batch(&shares));
        for text in &batch {
            let writer = match text.split {
                Split::Train => &mut self.train,
                Split::Validation => &mut self.validation,
            };
            let mut missing = text.content.len();
            while missing > 0
                && let Some((share, tokens)) = encoded.next()
            {
                writer.push(&tokens)?;
                missing -= share.len();
            }
            writer.description.bytes += text.content.len() as u64;
            if text.last {
                writer.push(&[self.tokenizer.end_of_text()])?;
                writer.description.documents += 1;
            }
        }
        self.done += std::mem::take(&mut self.waiting) as u64;
        (self.report)(self.done);
        Ok(())
    }
}

impl SplitWriter {
    fn push(&mut self, tokens: &[u32]) -> Result<(), DataError> {
        self.description.tokens += tokens.len() as u64;
        self.shards.push(tokens)
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
