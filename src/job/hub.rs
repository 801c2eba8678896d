//! Weights and text by the names that they have on Hugging Face's hub. The parts of a name become parts of addresses and of paths,
//! so each is checked as it is read.

use std::{collections::BTreeMap, fmt, str::FromStr};

use ft_trainer::settings::DataConfig;
use serde::{Deserialize, Serialize};

/// The beginning of such a name where a path may stand too.
pub const PREFIX: &str = "hf:";

/// The revision of a name that gives none.
const USUAL: &str = "main";
/// Characters of a part.
const LONGEST: usize = 96;

/// The content of a repository. The hub has a space of names for each kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Models,
    Datasets,
}

impl Kind {
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Models => "models",
            Kind::Datasets => "datasets",
        }
    }
}

/// `OWNER/NAME`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repository {
    pub kind: Kind,
    pub owner: String,
    pub name: String,
}

impl Repository {
    /// The repository of this name; a published GPT-2, and what was distilled of it, need no owner.
    pub fn parse(kind: Kind, text: &str) -> Result<Self, String> {
        let distilled = (text == "distilgpt2").then_some("distilbert/distilgpt2");
        let known = (kind == Kind::Models).then(|| published(text).or(distilled)).flatten();
        let Some((owner, name)) = known.unwrap_or(text).split_once('/') else {
            return Err(format!("`{}` is no name of the hub: it is written OWNER/NAME, as on its page", text.escape_debug()));
        };
        for part in [owner, name] {
            if !is_part(part) || part.contains("--") || part.ends_with(['-', '.']) || part.starts_with('-') {
                return Err(format!("`{}` is no name of the hub", part.escape_debug()));
            }
        }
        Ok(Self { kind, owner: owner.to_owned(), name: name.to_owned() })
    }
}

impl fmt::Display for Repository {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.owner, self.name)
    }
}

/// The repository of a published size of GPT-2, by the name that it had before its owner was part of it.
pub fn published(name: &str) -> Option<&'static str> {
    const SIZES: [&str; 4] =
        ["openai-community/gpt2", "openai-community/gpt2-medium", "openai-community/gpt2-large", "openai-community/gpt2-xl"];
    SIZES.into_iter().find(|size| *size == name || size.split_once('/').is_some_and(|(_, short)| short == name))
}

/// Letters, digits, `.`, `_` and `-`; not `..`, nor hidden.
fn is_part(text: &str) -> bool {
    let plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'));
    plain && !text.is_empty() && text.len() <= LONGEST && !text.starts_with('.') && !text.contains("..")
}

/// A branch, a tag, `refs/pr/1`, or a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Revision(String);

impl Revision {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The commit that it already is.
    pub fn commit(&self) -> Option<Commit> {
        Commit::parse(&self.0)
    }

    /// Where the hub keeps a dataset's rows as parquet files, also where the repository has a program alone.
    pub fn of_parquet() -> Self {
        Self("refs/convert/parquet".to_owned())
    }
}

impl FromStr for Revision {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.split('/').all(is_part) && text.len() <= 2 * LONGEST {
            return Ok(Self(text.to_owned()));
        }
        Err(format!("`{}` is no revision: give a branch, a tag or a commit", text.escape_debug()))
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A commit of a repository: what it holds never changes. Comes from the hub, and from records of a store.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Commit(String);

impl Commit {
    pub fn parse(text: &str) -> Option<Self> {
        let valid = text.len() == 40 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        valid.then(|| Self(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Commit {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Self::parse(&text).ok_or_else(|| format!("`{}` is not a commit: it has 40 hexadecimal digits", text.escape_debug()))
    }
}

impl From<Commit> for String {
    fn from(commit: Commit) -> Self {
        commit.0
    }
}

/// Rows of a dataset: a split of one of its configurations, or of its only one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    pub config: Option<String>,
    pub split: String,
}

/// Weights, a tokenizer or text of the hub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubName {
    pub repository: Repository,
    /// Only a dataset has one.
    pub part: Option<Part>,
    pub revision: Revision,
}

impl HubName {
    /// `hf:OWNER/NAME[@REVISION]`: weights or a tokenizer; `None` for a path. The kind may stand in front, as in the hub's
    /// addresses.
    pub fn of_model(text: &str) -> Option<Result<Self, String>> {
        let read = |text: &str| {
            let (name, revision) = split_revision(text.strip_prefix("models/").unwrap_or(text))?;
            Ok(Self { repository: Repository::parse(Kind::Models, name)?, part: None, revision })
        };
        text.strip_prefix(PREFIX).map(read)
    }

    /// `hf:OWNER/NAME[/CONFIGURATION]/SPLIT[@REVISION]`: text; `None` for a path.
    pub fn of_data(text: &str) -> Option<Result<Self, String>> {
        let read = |text: &str| {
            let (name, revision) = split_revision(text.strip_prefix("datasets/").unwrap_or(text))?;
            let parts: Vec<&str> = name.split('/').collect();
            let (owner, repository, config, split) = match parts[..] {
                [owner, repository, config, split] => (owner, repository, Some(config), split),
                [owner, repository, split] => (owner, repository, None, split),
                _ => {
                    let name = name.escape_debug();
                    return Err(format!(
                        "`{name}` names no text of the hub: write OWNER/NAME/SPLIT, or OWNER/NAME/CONFIGURATION/SPLIT"
                    ));
                }
            };
            if let Some(wrong) = config.iter().chain([&split]).find(|part| !is_part(part)) {
                return Err(format!("`{}` is no configuration or split of a dataset", wrong.escape_debug()));
            }
            let part = Some(Part { config: config.map(str::to_owned), split: split.to_owned() });
            Ok(Self { repository: Repository::parse(Kind::Datasets, &format!("{owner}/{repository}"))?, part, revision })
        };
        text.strip_prefix(PREFIX).map(read)
    }

    /// The key of its commit in a plan.
    pub fn key(&self) -> String {
        format!("{}/{}@{}", self.repository.kind.as_str(), self.repository, self.revision)
    }
}

impl fmt::Display for HubName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", self.repository)?;
        if let Some(Part { config, split }) = &self.part {
            config.iter().chain([split]).try_for_each(|part| write!(f, "/{part}"))?;
        }
        if self.revision.as_str() == USUAL { Ok(()) } else { write!(f, "@{}", self.revision) }
    }
}

fn split_revision(text: &str) -> Result<(&str, Revision), String> {
    let (name, revision) = text.split_once('@').unwrap_or((text, USUAL));
    Ok((name, revision.parse()?))
}

/// Whether a text names something of the hub, rightly or not.
pub fn is_name(text: &str) -> bool {
    text.starts_with(PREFIX)
}

/// The keys of a `[data]` table in which a name of the hub is wrong, and why.
pub fn misnamed(data: &DataConfig) -> impl Iterator<Item = (&'static str, String)> {
    let tokenizer = data.tokenizer.directory.iter().filter_map(|text| HubName::of_model(text)?.err());
    let lists = [("data.train", &data.train), ("data.validation", &data.validation)];
    let rows =
        lists.into_iter().flat_map(|(key, list)| list.iter().filter_map(move |text| Some((key, HubName::of_data(text)?.err()?))));
    tokenizer.map(|why| ("data.tokenizer.directory", why)).chain(rows)
}

/// The commits that names of the hub stand for, by [`HubName::key`].
pub type Pins = BTreeMap<String, Commit>;

/// The purpose of a name of the hub.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    Weights,
    Tokenizer,
    Text,
}

/// A name of the hub in a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OfHub {
    pub used: Use,
    /// The name as the plan spells it.
    pub text: String,
    pub name: HubName,
}

/// A name of the hub, and the paths of what it stands for.
pub type Located = (OfHub, Vec<String>);

impl OfHub {
    /// The names of the hub for text and its tokenizer, each once. `check` refuses a wrong name.
    pub fn of_text(config: &DataConfig) -> Vec<Self> {
        let rows = config.train.iter().chain(&config.validation);
        let rows = rows.filter_map(|text| Some(Self { used: Use::Text, text: text.clone(), name: HubName::of_data(text)?.ok()? }));
        let tokenizer = config.tokenizer.directory.iter().filter_map(|text| Self::model(Use::Tokenizer, text));
        let mut found: Vec<Self> = Vec::new();
        for of_hub in tokenizer.chain(rows) {
            if !found.contains(&of_hub) {
                found.push(of_hub);
            }
        }
        found
    }

    pub(super) fn model(used: Use, text: &str) -> Option<Self> {
        Some(Self { used, text: text.to_owned(), name: HubName::of_model(text)?.ok()? })
    }

    /// The word for it in a finding.
    pub fn noun(&self) -> &'static str {
        if self.used == Use::Weights { "initial weights" } else { "data" }
    }

    /// Puts paths in the place of names.
    pub fn locate(config: &mut DataConfig, places: &[Located]) {
        locate_one(Use::Tokenizer, &mut config.tokenizer.directory, places);
        for list in [&mut config.train, &mut config.validation] {
            let found = |text: String| paths_of(Use::Text, &text, places).map_or_else(|| vec![text], <[String]>::to_vec);
            *list = list.drain(..).flat_map(found).collect();
        }
    }
}

pub(super) fn locate_one(used: Use, text: &mut Option<String>, places: &[Located]) {
    if let Some([path]) = text.as_deref().and_then(|text| paths_of(used, text, places)) {
        *text = Some(path.clone());
    }
}

fn paths_of<'p>(used: Use, text: &str, places: &'p [Located]) -> Option<&'p [String]> {
    places.iter().find(|(known, _)| known.used == used && known.text == text).map(|(_, paths)| paths.as_slice())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_told() {
        let model = |text: &str| HubName::of_model(text).unwrap().unwrap();
        let data = |text: &str| HubName::of_data(text).unwrap().unwrap();
        assert_eq!(model("hf:gpt2").to_string(), "hf:openai-community/gpt2");
        assert_eq!(model("hf:gpt2-xl@v1.0").key(), "models/openai-community/gpt2-xl@v1.0");
        assert_eq!(model("hf:a/b@refs/pr/1").revision.as_str(), "refs/pr/1");
        assert_eq!(model("hf:a/b@main").to_string(), "hf:a/b");
        assert_eq!(model("hf:models/a/b@v1").to_string(), "hf:a/b@v1");
        assert_eq!(data("hf:datasets/a/b/c/train").to_string(), "hf:a/b/c/train");
        let text = "hf:Salesforce/wikitext/wikitext-103-raw-v1/train@refs/convert/parquet";
        let named = data(text);
        assert_eq!(named.to_string(), text);
        assert_eq!(named.key(), "datasets/Salesforce/wikitext@refs/convert/parquet");
        assert_eq!(named.part, Some(Part { config: Some("wikitext-103-raw-v1".to_owned()), split: "train".to_owned() }));
        assert_eq!(data("hf:a/b/train").part, Some(Part { config: None, split: "train".to_owned() }));
        assert_eq!((HubName::of_model("./hf:gpt2"), HubName::of_data("data/hf:x")), (None, None));
    }

    #[test]
    fn what_would_leave_its_place_is_no_name() {
        for wrong in [
            "",
            "mine",
            "a/b/c",
            "../b",
            "a/..",
            "a/.git",
            "a//b",
            "a/b--c",
            "-a/b",
            "a/b.",
            "a/b c",
            "a/b?x",
            "a/b#x",
            "a/b%2e",
            "a/b\\c",
            "a/b\n",
            "é/b",
            "a/b@",
            "a/b@../x",
            "a/b@x/../y",
            "a/b@/x",
            "a/b@x y",
            "a/b@x@y",
            "http://x/y",
        ] {
            let read = HubName::of_model(&format!("hf:{wrong}")).unwrap();
            assert!(read.is_err(), "{wrong:?} gave {read:?}");
        }
        let long = "x".repeat(97);
        for wrong in
            ["a/b", "a", "a/b/c/d/e", "a/b/../train", "a/b/c/..", "a/b//train", "a/b/tr ain", "gpt2/train", &format!("a/b/{long}")]
        {
            let read = HubName::of_data(&format!("hf:{wrong}")).unwrap();
            assert!(read.is_err(), "{wrong:?} gave {read:?}");
        }
    }

    #[test]
    fn a_commit_is_forty_digits() {
        let right = "0123456789".repeat(4);
        assert!(Commit::parse(&right).is_some());
        for wrong in ["main", &right[1..], &right.replace('0', "G"), "../../../../../../../../../../../../../x"] {
            assert!(serde_json::from_value::<Commit>(wrong.into()).is_err(), "{wrong}");
        }
    }
}
