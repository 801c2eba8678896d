//! Continues prompts with a model, several at once, with the keys and values of earlier positions kept.
//!
//! One prompt alone would read every weight of the model once for each token, and nothing but memory would be busy. So the next
//! tokens are guessed (speculative decoding, Leviathan et al. 2023): one pass over the weights then tells the logits after each
//! guess, and the guesses up to the first wrong one are kept. The guesses come from a copy of the model with weights of 8 bits
//! ([`Draft`]). Without one they come from the text itself: the tokens that followed the newest ones before ("prompt lookup"). The
//! text is the one that would be written without guessing: to the bit where a product's result does not depend on how many rows it
//! has (`f32` with AVX2 or AVX-512, widths of whole registers), and otherwise as equal as that of a prompt in a batch.

pub mod sampling;

use serde::Serialize;
use tch::{Kind, Tensor};

use crate::cpu::parallel;
use crate::cpu::slices::floats;
use crate::error::Failure;
use crate::model::{Draft, Gpt2, KvCache};
use crate::preflight::check_prompt;
use crate::random::uniform;
use sampling::Sampling;

/// Guesses in one pass at most. They cost nothing when they stand in the text: with the newest token as many rows as
/// [`crate::model`]'s products for few rows compute at once. Of a draft's, each costs a quarter of a token, and so many are checked
/// in nearly the time of one.
const LOOKED_UP: usize = 11;
const DRAFTED: usize = 5;
/// Tokens from which on a draft is made: it takes the time of some ten.
const WORTH_A_DRAFT: usize = 32;
/// How many of the newest tokens are looked for in the text, one after the other.
const MATCHED: [usize; 3] = [3, 2, 1];

/// The request to generate text.
#[derive(Debug, Clone, Copy)]
pub struct Request {
    /// Tokens to add to each prompt at most.
    pub tokens: usize,
    pub sampling: Sampling,
    /// The same seed gives the same text: the draw for a token depends on the seed, the prompt's number and the token's position.
    pub seed: u64,
    /// Tokens that there are: a model may have rows for more, which stand for nothing.
    pub vocabulary: usize,
    /// The token that ends a text, and pads.
    pub end_of_text: u32,
    /// Whether a quarter of the weights' memory more may be taken for a [`Draft`].
    pub draft: bool,
}

/// Why a continuation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Finish {
    /// The model ended the text.
    EndOfText,
    /// The text has the length that was asked for.
    Length,
    /// The model knows no further positions. In a batch the longest prompt decides for all.
    Context,
}

/// One continuation, without its prompt and without the end-of-text token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Continuation {
    pub tokens: Vec<u32>,
    pub finish: Finish,
}

/// Continues every prompt. Shorter prompts are padded on the left; padding is neither attended to nor counted in the positions, so
/// a prompt continues in a batch as it would alone. `model`'s context is the limit: a prompt that fills it is refused, a text that
/// reaches it ends there with [`Finish::Context`].
pub fn generate(model: &Gpt2, prompts: &[Vec<u32>], request: &Request) -> Result<Vec<Continuation>, Failure> {
    prompts.iter().try_for_each(|prompt| check_prompt(prompt, model.shape()))?;
    let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
    let room = model.shape().context - longest;
    let steps = request.tokens.min(room);
    let rows = match prompts {
        [prompt] => vec![alone(model, prompt, steps, request)?],
        _ => together(model, prompts, longest, steps, request)?,
    };
    let limit = if room < request.tokens { Finish::Context } else { Finish::Length };
    Ok(rows.into_iter().map(|row| row.finish(limit)).collect())
}

fn together(model: &Gpt2, prompts: &[Vec<u32>], longest: usize, steps: usize, request: &Request) -> Result<Vec<Row>, Failure> {
    let padding: Vec<usize> = prompts.iter().map(|prompt| longest - prompt.len()).collect();
    let mut rows: Vec<Row> = (0..prompts.len() as u64).map(Row::new).collect();
    let mut cache = model.cache(prompts.len(), longest + steps).map_err(Failure::other)?;
    let mut input = padded(prompts, longest, request.end_of_text);
    for _ in 0..steps {
        let logits = model.next_logits(&input, &mut cache, &padding).map_err(Failure::other)?;
        let (logits, vocabulary) = in_main_memory(&logits);
        let mut next = vec![0; rows.len()];
        let work = rows.iter_mut().zip(floats(&logits).chunks(vocabulary)).zip(&mut next);
        parallel::run(work.collect(), |((row, logits), next)| *next = i64::from(row.extend(logits, request)));
        if rows.iter().all(|row| row.ended) {
            break;
        }
        input = Tensor::from_slice(&next).view([-1, 1]);
    }
    Ok(rows)
}

fn alone(model: &Gpt2, prompt: &[u32], steps: usize, request: &Request) -> Result<Row, Failure> {
    let mut row = Row::new(0);
    let mut cache = model.cache(1, prompt.len() + steps).map_err(Failure::other)?;
    let mut text = prompt.to_vec();
    let draft = if request.draft && steps >= WORTH_A_DRAFT { model.draft() } else { None };
    let (mut unread, mut reach) = (prompt.len(), LOOKED_UP);
    while row.tokens.len() < steps && !row.ended {
        let left = steps - row.tokens.len() - 1;
        let guesses = match &draft {
            _ if unread > 1 => Vec::new(), // The prompt is not in the cache yet.
            Some(draft) => drafted(draft, &text, &mut cache, &row, left.min(DRAFTED), request),
            None => looked_up(&text, left.min(reach)),
        };
        let input = [&text[text.len() - unread..], &guesses[..]].concat();
        let input = Tensor::from_slice(&input.into_iter().map(i64::from).collect::<Vec<_>>()).view([1, -1]);
        let logits = model.last_logits(&input, guesses.len() + 1, &mut cache, &[0]).map_err(Failure::other)?;
        let mut right = 0;
        let (logits, vocabulary) = in_main_memory(&logits);
        for logits in floats(&logits).chunks(vocabulary) {
            let token = row.extend(logits, request);
            text.push(token);
            if row.ended || guesses.get(right) != Some(&token) {
                break;
            }
            right += 1;
        }
        cache.forget(guesses.len() - right);
        // Where guesses go wrong, fewer of them are worth their computation.
        reach = if right < guesses.len() { right + 1 } else { LOOKED_UP.min(2 * reach) };
        unread = 1;
    }
    Ok(row)
}

/// The draft's next tokens, with the draws that the model will have.
fn drafted(draft: &Draft<'_>, text: &[u32], cache: &mut KvCache, row: &Row, most: usize, request: &Request) -> Vec<u32> {
    let mut newest = text[text.len() - 1];
    let guess = |ahead| {
        newest = row.choose(&draft.logits(newest, cache, ahead), ahead, request);
        newest
    };
    (0..most).map(guess).collect()
}

/// The tokens that followed when the newest ones stood in the text before, and then again from their beginning, `most` tokens in
/// all. It takes the last place where most of them stood.
fn looked_up(text: &[u32], most: usize) -> Vec<u32> {
    let followed = |length: usize| {
        let newest = text.get(text.len().checked_sub(length)?..)?;
        let place = text[..text.len() - 1].windows(length).rposition(|tokens| tokens == newest)?;
        Some(text[place + length..].iter().copied().cycle().take(most).collect())
    };
    MATCHED.into_iter().find_map(followed).unwrap_or_default()
}

/// A continuation in the making.
struct Row {
    number: u64,
    tokens: Vec<u32>,
    ended: bool,
}

impl Row {
    fn new(number: u64) -> Self {
        Self { number, tokens: Vec::new(), ended: false }
    }

    /// Adds the next token and returns what the model reads next; a row that has ended reads padding, which is ignored.
    fn extend(&mut self, logits: &[f32], request: &Request) -> u32 {
        if self.ended {
            return request.end_of_text;
        }
        let token = self.choose(logits, 0, request);
        self.ended = token == request.end_of_text;
        if !self.ended {
            self.tokens.push(token);
        }
        token
    }

    /// The `ahead`-th token after those that there are.
    fn choose(&self, logits: &[f32], ahead: usize, request: &Request) -> u32 {
        let logits = &logits[..request.vocabulary.min(logits.len())];
        request.sampling.choose(logits, uniform(&[request.seed, self.number, (self.tokens.len() + ahead) as u64]))
    }

    fn finish(self, limit: Finish) -> Continuation {
        Continuation { tokens: self.tokens, finish: if self.ended { Finish::EndOfText } else { limit } }
    }
}

/// `[batch, longest]` `i64`.
fn padded(prompts: &[Vec<u32>], longest: usize, padding: u32) -> Tensor {
    let row = |prompt: &Vec<u32>| {
        let mut row = vec![i64::from(padding); longest - prompt.len()];
        row.extend(prompt.iter().copied().map(i64::from));
        row
    };
    Tensor::from_slice(&prompts.iter().flat_map(row).collect::<Vec<i64>>()).view([-1, longest as i64])
}

/// Logits in `f32`, a row of as many as the vocabulary has after the other, and that number.
fn in_main_memory(logits: &Tensor) -> (Tensor, usize) {
    let vocabulary = logits.size().last().map_or(0, |size| *size as usize);
    (logits.to_kind(Kind::Float).to_device(tch::Device::Cpu).contiguous(), vocabulary)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guesses_what_followed_the_longest_match() {
        assert_eq!(looked_up(&[1, 2, 3, 9, 8, 7, 2, 3, 5, 1, 2, 3], 2), [9, 8]);
        assert_eq!(looked_up(&[1, 2, 3, 4, 3], 4), [4, 3, 4, 3]);
        assert_eq!(looked_up(&[5, 5], 3), [5, 5, 5]);
        assert_eq!(looked_up(&[1, 2, 3], 4), [0_u32; 0]);
        assert_eq!(looked_up(&[1], 4), [0_u32; 0]);
    }
}
