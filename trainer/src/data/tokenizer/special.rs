//! Tokens that stand for something and not for their text: the end of a text, padding, the turns of a conversation.

use std::collections::BTreeMap;

use aho_corasick::{AhoCorasick, MatchKind};

/// More than any vocabulary adds.
pub const MOST: usize = 20_000;

/// A token that a tokenizer has besides those of its merges, with the rules of the `tokenizers` library for where it stands in
/// text.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "they are the library's")]
pub struct Special {
    pub id: u32,
    pub content: String,
    /// Whether it is left out where text is shown.
    pub special: bool,
    /// Whether it takes the white space before it, and after it.
    pub lstrip: bool,
    pub rstrip: bool,
    /// Whether it counts only where no word goes on.
    pub single_word: bool,
    /// Whether it is looked for after the others.
    pub normalized: bool,
}

impl Special {
    pub fn plain(id: u32, content: &str) -> Self {
        let content = content.to_owned();
        Self { id, content, special: true, lstrip: false, rstrip: false, single_word: false, normalized: false }
    }
}

/// A stretch of a text: ordinary, or a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment<'a> {
    pub text: &'a str,
    pub token: Option<u32>,
}

/// The special tokens of a tokenizer, to be looked for in text.
#[derive(Debug, Clone)]
pub struct Specials {
    tokens: Vec<Special>,
    end_of_text: u32,
    /// Those that are looked for first, and then: the automaton and which tokens it knows.
    passes: [(AhoCorasick, Vec<usize>); 2],
}

impl Specials {
    /// Sorted by id.
    pub fn new(mut tokens: Vec<Special>, end_of_text: u32) -> Result<Self, String> {
        if tokens.len() > MOST {
            return Err(format!("it has {} special tokens; {MOST} are the most", tokens.len()));
        }
        tokens.sort_by_key(|token| token.id);
        let pass = |normalized| {
            let of_pass =
                |(index, token): (usize, &Special)| (token.normalized == normalized && !token.content.is_empty()).then_some(index);
            let indices: Vec<usize> = tokens.iter().enumerate().filter_map(of_pass).collect();
            let patterns = indices.iter().map(|index| &tokens[*index].content);
            let automaton = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(patterns);
            automaton.map(|automaton| (automaton, indices)).map_err(|error| error.to_string())
        };
        let passes = [pass(false)?, pass(true)?];
        Ok(Self { tokens, end_of_text, passes })
    }

    pub fn tokens(&self) -> &[Special] {
        &self.tokens
    }

    pub fn end_of_text(&self) -> u32 {
        self.end_of_text
    }

    /// Cuts a text where special tokens stand in it, as the `tokenizers` library does.
    pub fn segments<'a>(&self, text: &'a str) -> Vec<Segment<'a>> {
        self.passes.iter().fold(vec![Segment { text, token: None }], |segments, pass| {
            let cut = |segment: Segment<'a>| if segment.token.is_some() { vec![segment] } else { self.cut(pass, segment.text) };
            if pass.1.is_empty() { segments } else { segments.into_iter().flat_map(cut).collect() }
        })
    }

    fn cut<'a>(&self, (automaton, indices): &(AhoCorasick, Vec<usize>), text: &'a str) -> Vec<Segment<'a>> {
        let (mut segments, mut done) = (Vec::new(), 0);
        for found in automaton.find_iter(text) {
            let token = &self.tokens[indices[found.pattern().as_usize()]];
            let (before, after) = (&text[..found.start()], &text[found.end()..]);
            let goes_on = before.chars().next_back().is_some_and(is_of_word) || after.chars().next().is_some_and(is_of_word);
            if token.single_word && goes_on || found.start() < done {
                continue;
            }
            let start = if token.lstrip { before.trim_end().len().max(done) } else { found.start() };
            let end = if token.rstrip { text.len() - after.trim_start().len() } else { found.end() };
            if done < start {
                segments.push(Segment { text: &text[done..start], token: None });
            }
            segments.push(Segment { text: &text[start..end], token: Some(token.id) });
            done = end;
        }
        if done < text.len() {
            segments.push(Segment { text: &text[done..], token: None });
        }
        segments
    }

    /// Adds how often each stands in a text.
    pub fn count(&self, text: &str, counts: &mut BTreeMap<String, u64>) {
        for (automaton, indices) in &self.passes {
            for found in automaton.find_iter(text) {
                let content = &self.tokens[indices[found.pattern().as_usize()]].content;
                match counts.get_mut(content) {
                    Some(count) => *count += 1,
                    None => drop(counts.insert(content.clone(), 1)),
                }
            }
        }
    }

    /// Bytes of the longest.
    pub fn longest(&self) -> usize {
        self.tokens.iter().map(|token| token.content.len()).max().unwrap_or(0)
    }

    /// Whether one of them may end at this place, or go on over it.
    pub fn touch(&self, text: &str, place: usize) -> bool {
        let longest = self.longest();
        let start = text.floor_char_boundary(place.saturating_sub(longest));
        let window = &text[start..text.ceil_char_boundary((place + longest).min(text.len()))];
        let overlaps = |(automaton, _): &(AhoCorasick, Vec<usize>)| {
            automaton.find_iter(window).any(|found| start + found.start() < place && place <= start + found.end())
        };
        self.passes.iter().any(overlaps)
    }
}

fn is_of_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}
