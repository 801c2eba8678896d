//! Reads the tokenizer of a Hugging Face directory: `tokenizer.json`, or `vocab.json` and `merges.txt` without one, with the tokens
//! that were added to it and the name of its end of text, wherever a version of the libraries has written them.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use rustc_hash::FxHashMap;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::files::{CONFIG, MERGES, TOKENIZER, VOCABULARY, characters};
use super::named::{named, naming_files};
use super::special::{MOST, Special, Specials};
use super::{END_OF_TEXT, Tokenizer};
use crate::data::DataError;
use crate::files::{is_lfs_pointer, read_text};

const ADDED: &str = "added_tokens.json";
pub const NAMES_OF_SPECIALS: &str = "special_tokens_map.json";
/// The model's configuration, which has the number of the end of text.
const MODEL: &str = "config.json";
/// Everything that is read of a tokenizer. Each may be missing.
pub const READ: [&str; 7] = [TOKENIZER, VOCABULARY, MERGES, CONFIG, ADDED, NAMES_OF_SPECIALS, MODEL];
/// Files of tokenizers of other kinds. What transformers makes a `tokenizer.json` of is of the same kind then, and refused, too.
pub const OTHERS: [(&str, &str); 9] = [
    ("tokenizer.model", SENTENCEPIECE),
    ("spiece.model", SENTENCEPIECE),
    ("sentencepiece.bpe.model", SENTENCEPIECE),
    ("source.spm", SENTENCEPIECE),
    ("vocab.txt", "a vocabulary of WordPiece"),
    ("tekken.json", "a vocabulary of tekken"),
    ("tiktoken.model", TIKTOKEN),
    ("vocab.tiktoken", TIKTOKEN),
    ("qwen.tiktoken", TIKTOKEN),
];
const SENTENCEPIECE: &str = "a vocabulary of SentencePiece";
const TIKTOKEN: &str = "a vocabulary of tiktoken";
/// Bytes of the longest file that is read: GPT-2's have one million, those of a million tokens some thirty.
const LONGEST: u64 = 64 << 20;
/// The class of transformers whose vocabulary looks like GPT-2's, and which splits a text into other words before.
const OTHER_RULES: &str = "Qwen2";
/// The end of a token that ends a word, as CLIP's and the first GPT's, or that does not, as CTRL's.
const WORD_MARKS: [&str; 2] = ["</w>", "@@"];
/// The end of text of tokenizers that do not name theirs.
const OTHER_END: &str = "</s>";

/// `tokenizer.json`, as far as it decides how text becomes tokens.
#[derive(Deserialize)]
struct Library {
    normalizer: Option<Step>,
    pre_tokenizer: Option<Step>,
    model: Model,
}

/// The same without the model, which may be one of another kind.
#[derive(Deserialize)]
struct LibraryHead {
    #[serde(default)]
    added_tokens: Vec<Added>,
    model: Step,
}

/// A step of the library's, by its kind.
#[derive(Deserialize)]
struct Step {
    #[serde(rename = "type")]
    kind: Option<String>,
    add_prefix_space: Option<bool>,
    use_regex: Option<bool>,
    #[serde(default)]
    pretokenizers: Vec<Step>,
    #[serde(default)]
    normalizers: Vec<Step>,
}

#[derive(Deserialize)]
struct Model {
    dropout: Option<f64>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    byte_fallback: Option<bool>,
    ignore_merges: Option<bool>,
    vocab: FxHashMap<String, usize>,
    merges: Vec<Pair>,
}

/// Old versions of the library write a pair as a line.
#[derive(Deserialize)]
#[serde(untagged)]
enum Pair {
    Line(String),
    Two(String, String),
}

/// A token that was added.
#[derive(Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "they are the library's")]
struct Added {
    id: Option<u32>,
    content: String,
    #[serde(default)]
    special: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    normalized: bool,
}

impl Added {
    fn with_id(self, id: u32) -> Special {
        let Self { id: _, content, special, lstrip, rstrip, single_word, normalized } = self;
        Special { id, content, special, lstrip, rstrip, single_word, normalized }
    }
}

/// A token by its name, with or without its rules, which may be anything.
#[derive(Deserialize)]
#[serde(untagged)]
pub enum Name {
    Plain(String),
    Rules {
        content: String,
        #[serde(flatten)]
        rules: Map<String, Value>,
    },
}

impl Name {
    fn text(&self) -> &str {
        let (Self::Plain(text) | Self::Rules { content: text, .. }) = self;
        text
    }

    /// A special token whose number is not known yet.
    pub fn into_token(self) -> Special {
        match self {
            Self::Plain(content) => Special::plain(0, &content),
            Self::Rules { content, rules } => {
                let has = |rule: &str| rules.get(rule) == Some(&Value::Bool(true));
                let [lstrip, rstrip, single_word, normalized] = ["lstrip", "rstrip", "single_word", "normalized"].map(has);
                Special { lstrip, rstrip, single_word, normalized, ..Special::plain(0, &content) }
            }
        }
    }
}

/// `tokenizer_config.json` and `special_tokens_map.json`.
#[derive(Default, Deserialize)]
struct Config {
    eos_token: Option<Name>,
    tokenizer_class: Option<String>,
    add_prefix_space: Option<bool>,
    #[serde(default)]
    added_tokens_decoder: FxHashMap<u32, Added>,
}

#[derive(Default, Deserialize)]
struct ModelConfig {
    eos_token_id: Option<Value>,
    vocab_size: Option<Value>,
}

/// Numbers of tokens by name, and the pairs that become one where the same file has them.
struct Base {
    path: PathBuf,
    ids: FxHashMap<String, usize>,
    pairs: Option<Vec<(u32, u32)>>,
}

impl Tokenizer {
    /// The files of the tokenizer in a directory; where there is none, the one that is missed.
    pub fn files(directory: &Path) -> Vec<PathBuf> {
        let mut found: Vec<PathBuf> = READ.iter().map(|name| directory.join(name)).filter(|path| path.exists()).collect();
        if !has_own(directory) {
            found.push(other(directory).map_or_else(|| directory.join(VOCABULARY), |(path, _)| path));
        }
        found
    }

    /// Whether a directory has a tokenizer, readable or not.
    pub fn lies_in(directory: &Path) -> bool {
        has_own(directory) || other(directory).is_some()
    }

    /// Reads the tokenizer of a directory, ours or one that `transformers` wrote.
    pub fn load(directory: &Path) -> Result<Self, DataError> {
        if !has_own(directory)
            && let Some((path, what)) = other(directory)
        {
            return Err(DataError::OtherTokenizer { path, what });
        }
        let has = |name| directory.join(name).exists();
        // The libraries take no other file where this one is, and it alone has the rules for text.
        let base = if has(TOKENIZER) { library_base(&directory.join(TOKENIZER))? } else { old_base(directory)? };
        let added = added(directory, &base.ids)?;
        let refuse = |reason| DataError::Tokenizer { path: base.path.clone(), reason };
        let tokens = tokens(&base, &added).map_err(refuse)?;
        let pairs = match &base.pairs {
            Some(pairs) => pairs.clone(),
            None => read_merges(&directory.join(MERGES), &base.ids)?,
        };
        let end = end_of_text(directory, &tokens, &added)?;
        let end = end.ok_or_else(|| {
            refuse(format!("it has no token {END_OF_TEXT}, and nothing names another that ends a text (eos_token in {CONFIG})"))
        })?;
        let extras: Vec<u32> = added.iter().filter(|token| !base.ids.contains_key(&token.content)).map(|token| token.id).collect();
        let mut specials = added;
        if specials.iter().all(|token| token.id != end) {
            specials.push(Special::plain(end, &String::from_utf8_lossy(&tokens[end as usize])));
        }
        let specials = Specials::new(specials, end).map_err(refuse)?;
        Self::assemble(tokens, pairs, &extras, specials).map_err(|reason| DataError::Tokenizer { path: base.path, reason })
    }
}

/// Whether a directory has a tokenizer of the kind that is read.
fn has_own(directory: &Path) -> bool {
    [TOKENIZER, VOCABULARY].iter().any(|name| directory.join(name).exists())
}

/// A directory's tokenizer of another kind.
fn other(directory: &Path) -> Option<(PathBuf, &'static str)> {
    OTHERS.iter().map(|(name, what)| (directory.join(name), *what)).find(|(path, _)| path.is_file())
}

/// The bytes of all tokens by number.
fn tokens(base: &Base, added: &[Special]) -> Result<Vec<Vec<u8>>, String> {
    let values: FxHashMap<char, u8> = characters().into_iter().zip(0..=u8::MAX).collect();
    let bytes = |name: &str| name.chars().map(|c| values.get(&c).copied()).collect::<Option<Vec<u8>>>();
    let by_id: FxHashMap<usize, &Special> = added.iter().map(|token| (token.id as usize, token)).collect();
    let count = base.ids.len() + added.iter().filter(|token| !base.ids.contains_key(&token.content)).count();
    let mut tokens: Vec<Option<Vec<u8>>> = vec![None; count];
    for (name, id) in &base.ids {
        let slot =
            tokens.get_mut(*id).ok_or_else(|| format!("the id of `{name}` is {id}, but it has {} tokens", base.ids.len()))?;
        *slot = Some(match by_id.get(id) {
            Some(token) if token.content == *name => name.clone().into_bytes(),
            Some(token) => return Err(format!("its token {id} is `{name}`, and among the added ones `{}`", token.content)),
            None => bytes(name).ok_or_else(|| format!("`{name}` is not in byte-level form"))?,
        });
    }
    for token in added {
        let slot = tokens.get_mut(token.id as usize);
        let slot = slot
            .ok_or_else(|| format!("the id of the added token `{}` is {}, but it has {count} tokens", token.content, token.id))?;
        slot.get_or_insert_with(|| token.content.clone().into_bytes());
    }
    let missing = |id| format!("no token has the id {id}");
    tokens.into_iter().enumerate().map(|(id, token)| token.ok_or_else(|| missing(id))).collect()
}

/// The tokens that were added, of every file that has or names them.
fn added(directory: &Path, base: &FxHashMap<String, usize>) -> Result<Vec<Special>, DataError> {
    let library = optional::<LibraryHead>(&directory.join(TOKENIZER))?.map(|library| library.added_tokens);
    let config = optional::<Config>(&directory.join(CONFIG))?.unwrap_or_default().added_tokens_decoder;
    let config = config.into_iter().map(|(id, token)| Added { id: Some(id), ..token });
    let old = optional::<FxHashMap<String, u32>>(&directory.join(ADDED))?.unwrap_or_default();
    let mut found: FxHashMap<u32, Special> = FxHashMap::default();
    let old = old.into_iter().map(|(content, id)| Special { special: false, ..Special::plain(id, &content) });
    let new = library.into_iter().flatten().chain(config).filter_map(|token| token.id.map(|id| token.with_id(id)));
    for token in new.chain(old) {
        let kept = found.entry(token.id).or_insert_with(|| token.clone());
        if kept.content != token.content {
            let reason =
                format!("its added token {} is `{}` in one file and `{}` in another", token.id, kept.content, token.content);
            return Err(DataError::Tokenizer { path: directory.to_owned(), reason });
        }
    }
    if found.len() > MOST {
        let reason = format!("{} tokens were added to it; {MOST} are the most", found.len());
        return Err(DataError::Tokenizer { path: directory.to_owned(), reason });
    }
    let mut found: Vec<Special> = found.into_values().collect();
    // Weights without a row for it could not take the data, so a new one needs a model's configuration that has one.
    let rows = optional::<ModelConfig>(&directory.join(MODEL)).ok().flatten().and_then(|model| model.vocab_size?.as_u64());
    let mut next = (base.len() + found.iter().filter(|token| !base.contains_key(&token.content)).count()) as u32;
    for token in named(directory)? {
        if found.len() >= MOST || found.iter().any(|known| known.content == token.content) {
            continue;
        }
        match base.get(&token.content).map(|id| *id as u32) {
            // Other characters stand for a byte, and not for themselves.
            Some(id) if token.content.is_ascii() => found.push(Special { id, ..token }),
            None if u64::from(next) < rows.unwrap_or(0) => {
                found.push(Special { id: next, ..token });
                next += 1;
            }
            _ => {}
        }
    }
    found.sort_by_key(|token| token.id);
    Ok(found)
}

/// The token that the files name, or the one that is called as usual, or the only one that is special.
fn end_of_text(directory: &Path, tokens: &[Vec<u8>], added: &[Special]) -> Result<Option<u32>, DataError> {
    let id_of = |name: &str| {
        let added = added.iter().find(|token| token.content == name).map(|token| token.id);
        added.or_else(|| tokens.iter().position(|token| token == name.as_bytes()).map(|id| id as u32))
    };
    let files = naming_files(directory)?;
    for file in files.iter().chain(&[CONFIG, NAMES_OF_SPECIALS]) {
        let path = directory.join(file);
        let config: Config = optional(&path)?.unwrap_or_default();
        if config.add_prefix_space == Some(true) {
            let reason = "add_prefix_space = true puts a blank before every text, and here text is taken as it is".to_owned();
            return Err(DataError::Tokenizer { path, reason });
        }
        if let Some(name) = &config.eos_token {
            let reason = || format!("it names the end of text `{}`, which is none of its tokens", name.text());
            return id_of(name.text()).map(Some).ok_or_else(|| DataError::Tokenizer { path, reason: reason() });
        }
    }
    if let Some(id) = id_of(END_OF_TEXT) {
        return Ok(Some(id));
    }
    let of_model = optional::<ModelConfig>(&directory.join(MODEL))?.and_then(|config| config.eos_token_id?.as_u64());
    let of_model = of_model.filter(|id| (*id as usize) < tokens.len()).map(|id| id as u32);
    let mut special = added.iter().filter(|token| token.special).map(|token| token.id);
    let only = special.next().filter(|_| special.next().is_none());
    Ok(of_model.or_else(|| id_of(OTHER_END)).or(only))
}

/// The vocabulary of a directory without `tokenizer.json`, whose rules only names tell.
fn old_base(directory: &Path) -> Result<Base, DataError> {
    let path = directory.join(VOCABULARY);
    let ids: FxHashMap<String, usize> = required(&path)?;
    let refuse = |what: String| DataError::Tokenizer {
        path: path.clone(),
        reason: format!("{what}, and only byte-level BPE, as GPT-2 has it, is read"),
    };
    let config: Config = optional(&directory.join(CONFIG))?.unwrap_or_default();
    if let Some(class) = config.tokenizer_class.filter(|class| class.starts_with(OTHER_RULES)) {
        return Err(refuse(format!("{CONFIG} says that it is of {class}, which splits text in another way")));
    }
    // GPT-2 has no token of letters and other signs together. (Its sign for a blank, as in `Ġ@@`, is a letter to Unicode.)
    let marked = ids.keys().filter(|name| {
        let mut word = WORD_MARKS.iter().filter_map(|mark| name.strip_suffix(mark));
        word.any(|word| word.chars().next_back().is_some_and(|letter| letter.is_ascii_alphabetic()))
    });
    match marked.min() {
        Some(name) => Err(refuse(format!("its token `{name}` marks where a word ends"))),
        None => Ok(Base { path, ids, pairs: None }),
    }
}

/// The vocabulary of a `tokenizer.json` that does what GPT-2's does.
fn library_base(path: &Path) -> Result<Base, DataError> {
    let refuse = |reason: String| DataError::Tokenizer { path: path.to_owned(), reason };
    let head: LibraryHead = required(path)?;
    let kind = head.model.kind.as_deref().unwrap_or("BPE");
    if kind != "BPE" {
        return Err(refuse(format!("its model is {kind}, and only byte-level BPE, as GPT-2 has it, is read")));
    }
    let Library { normalizer, pre_tokenizer, model, .. } = required(path)?;
    if let Some(reason) = other_than_gpt2(normalizer.as_ref(), pre_tokenizer.as_ref(), &model) {
        return Err(refuse(format!("{reason}, and only byte-level BPE, as GPT-2 has it, is read")));
    }
    let id_of = |name: &str| model.vocab.get(name).and_then(|id| u32::try_from(*id).ok());
    let pair = |(number, pair): (usize, &Pair)| {
        let (left, right) = match pair {
            Pair::Line(line) => line.split_once(' ').unwrap_or((line, "")),
            Pair::Two(left, right) => (left.as_str(), right.as_str()),
        };
        let no_pair = || refuse(format!("merge {number}: `{left}` and `{right}` are not a pair of tokens"));
        id_of(left).zip(id_of(right)).ok_or_else(no_pair)
    };
    let pairs = model.merges.iter().enumerate().map(pair).collect::<Result<_, _>>()?;
    Ok(Base { path: path.to_owned(), ids: model.vocab, pairs: Some(pairs) })
}

/// The first thing that it does to text and GPT-2's does not.
fn other_than_gpt2(normalizer: Option<&Step>, pre_tokenizer: Option<&Step>, model: &Model) -> Option<String> {
    let named = |step: &Step| step.kind.clone().unwrap_or_else(|| "unknown".to_owned());
    if let Some(step) = normalizer.filter(|step| step.kind.as_deref() != Some("Sequence") || !step.normalizers.is_empty()) {
        return Some(format!("its normalizer is {}", named(step)));
    }
    let step = match pre_tokenizer {
        Some(Step { kind: Some(kind), pretokenizers, .. }) if kind == "Sequence" && pretokenizers.len() == 1 => {
            pretokenizers.first()
        }
        step => step,
    };
    match step {
        Some(step) if step.kind.as_deref() == Some("ByteLevel") && step.use_regex != Some(false) => {
            // The library's default is a blank.
            if step.add_prefix_space != Some(false) {
                return Some("its pre-tokenizer puts a blank before every text".to_owned());
            }
        }
        Some(step) => return Some(format!("its pre-tokenizer is {}", named(step))),
        None => return Some("it has no pre-tokenizer".to_owned()),
    }
    let is_some = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
    let switches = [
        ("dropout", model.dropout.is_some_and(|rate| rate != 0.0)),
        ("continuing_subword_prefix", is_some(&model.continuing_subword_prefix)),
        ("end_of_word_suffix", is_some(&model.end_of_word_suffix)),
        ("byte_fallback", model.byte_fallback == Some(true)),
        ("ignore_merges", model.ignore_merges == Some(true)),
    ];
    switches.iter().find(|(_, is_on)| *is_on).map(|(name, _)| format!("its model has {name}"))
}

/// A JSON file that must be there.
fn required<T: DeserializeOwned>(path: &Path) -> Result<T, DataError> {
    let text = content(path).map_err(|error| DataError::reading(path, error))?;
    if is_lfs_pointer(&text) {
        return Err(DataError::Pointer { path: path.to_owned() });
    }
    serde_json::from_slice(&text).map_err(|error| DataError::Tokenizer { path: path.to_owned(), reason: error.to_string() })
}

pub fn optional<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, DataError> {
    if path.exists() { required(path).map(Some) } else { Ok(None) }
}

fn content(path: &Path) -> std::io::Result<Vec<u8>> {
    let found = read_text(path, LONGEST);
    found.map_err(|error| if error.kind() == ErrorKind::IsADirectory { ErrorKind::NotFound.into() } else { error })
}

/// The pairs of ids that `merges.txt` joins, in its order.
fn read_merges(path: &Path, ids: &FxHashMap<String, usize>) -> Result<Vec<(u32, u32)>, DataError> {
    let text = content(path).map_err(|error| DataError::reading(path, error))?;
    if is_lfs_pointer(&text) {
        return Err(DataError::Pointer { path: path.to_owned() });
    }
    let no_text = |_| DataError::Tokenizer { path: path.to_owned(), reason: "it is not UTF-8 text".to_owned() };
    let text = String::from_utf8(text).map_err(no_text)?;
    let id_of = |name: &str| ids.get(name).and_then(|id| u32::try_from(*id).ok());
    let merge = |(number, line): (usize, &str)| {
        let pair = line.split_once(' ').and_then(|(left, right)| Some((id_of(left)?, id_of(right)?)));
        let reason = || format!("line {}: `{line}` is not a pair of tokens", number + 1);
        pair.ok_or_else(|| DataError::Tokenizer { path: path.to_owned(), reason: reason() })
    };
    // A merge line may itself begin with `#`; only the first line is a comment.
    let comment = |(number, line): &(usize, &str)| !(line.is_empty() || *number == 0 && line.starts_with("#version"));
    text.lines().enumerate().filter(comment).map(merge).collect()
}
