//! Which files are a split of a dataset: what its README says (`configs:`), or else the folders and names of its files, by the
//! rules of Hugging Face's `datasets`.

use std::collections::{BTreeMap, HashMap, HashSet};

use glob::Pattern;

use super::{
    Class, HubError, Result,
    listing::{Listed, Listing},
};
use crate::job::{
    hub::{HubName, Part, Repository},
    wording::nearest,
    yaml::{self, Node, Value},
};

pub(super) const README: &str = "README.md";
/// The configuration of a dataset that names none.
const DEFAULT: &str = "default";
/// Ends of the names of files that are read.
const EXTENSIONS: [&str; 6] = ["parquet", "jsonl", "json", "csv", "tsv", "txt"];
const PACKED: [&str; 2] = ["gz", "zst"];
/// Files beside the data that end like data.
const NO_DATA: [&str; 4] = ["dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json"];
/// Words for a split in the names of folders and files.
const WORDS: [(&str, &[&str]); 3] = [
    ("train", &["train", "training"]),
    ("validation", &["validation", "valid", "dev", "val"]),
    ("test", &["test", "testing", "eval", "evaluation"]),
];
const LONGEST_PATTERN: usize = 256;
/// Patterns of a split, of which each is held against every file.
const MOST_PATTERNS: usize = 32;

/// A configuration's splits and the patterns of their files.
type Splits = Vec<(String, Vec<String>)>;

/// The files of a configuration, as a README tells of them.
#[derive(Clone)]
enum Files {
    Named(Splits),
    /// Those below this folder, which ends with a slash: their names tell the splits.
    Below(String),
}

/// A configuration's splits and their files.
type Found<'l> = Vec<(String, Vec<&'l Listed>)>;

/// The files of a split, in their order.
pub(super) fn split(name: &HubName, listing: &Listing, readme: &str) -> Result<Vec<Listed>> {
    let has_rows = |file: &Listed| data_extension(&file.path).is_some() && !NO_DATA.iter().any(|other| file.path.ends_with(other));
    let program = listing.iter().find(|file| matches!(file.path.rsplit_once('.'), Some((name, "py")) if !name.contains('/')));
    if let Some(program) = program.filter(|_| !listing.iter().any(has_rows)) {
        return Err(made_by(&name.repository, &program.path));
    }
    let part = name.part.as_ref().ok_or_else(|| HubError::new(Class::Invalid, format!("{name} names no split of a dataset")))?;
    let configs = told(readme)
        .map_err(|why| HubError::new(Class::Invalid, format!("the README of {} cannot be read: {why}", name.repository)))?;
    let files = if let Some(configs) = configs {
        match config(name, part, configs)? {
            Files::Named(splits) => matching(listing, &wanted(name, part, splits)?)?,
            Files::Below(folder) => wanted(name, part, by_name(listing, &folder))?,
        }
    } else {
        let configs = converted(listing).unwrap_or_else(|| vec![(DEFAULT.to_owned(), by_name(listing, ""))]);
        wanted(name, part, config(name, part, configs)?)?
    };
    if let Some(other) = files.iter().find(|file| data_extension(&file.path).is_none()) {
        let message = format!("{name} is in {}, which is not read here", other.path);
        return Err(HubError::new(Class::Invalid, message)
            .fix(format!("read are {}, packed by gzip or Zstandard or as they are", EXTENSIONS.join(", "))));
    }
    if files.is_empty() {
        return Err(HubError::new(Class::NotFound, format!("{name} has no files in the repository")));
    }
    Ok(files.into_iter().cloned().collect())
}

/// The refusal of a dataset that has a program, and no rows.
pub(super) fn made_by(repository: &Repository, program: &str) -> HubError {
    let message =
        format!("{repository} has no rows in files: its {program} makes them, and no program of a repository is ever run");
    HubError::new(Class::NotFound, message)
        .fix("name another dataset with the same text; or make the files where you trust it, and name them in data.train")
}

/// The files, or their patterns, of the split that is meant.
fn wanted<T>(name: &HubName, part: &Part, mut splits: Vec<(String, T)>) -> Result<T> {
    if let Some(found) = splits.iter().position(|(split, _)| *split == part.split) {
        return Ok(splits.swap_remove(found).1);
    }
    let names: Vec<&str> = splits.iter().map(|(split, _)| split.as_str()).collect();
    let message = format!("{} has no split `{}`", of(name, part), part.split);
    Err(HubError::new(Class::NotFound, message).fix(offer(&part.split, &names, "splits")))
}

fn of(name: &HubName, part: &Part) -> String {
    match &part.config {
        Some(config) => format!("the configuration `{config}` of {}", name.repository),
        None => name.repository.to_string(),
    }
}

/// The nearest of the names, or some of them.
fn offer(typed: &str, names: &[&str], what: &str) -> String {
    nearest(typed, names).map_or_else(|| format!("{what}: {}", some(names)), |near| format!("did you mean `{near}`?"))
}

/// A dataset may have hundreds.
fn some(names: &[&str]) -> String {
    names[..names.len().min(20)].join(", ")
}

/// The configuration that is meant: the one that is named, or the only one, or the usual one.
fn config<T>(name: &HubName, part: &Part, mut configs: Vec<(String, T)>) -> Result<T> {
    let names: Vec<String> = configs.iter().map(|(name, _)| name.clone()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let found = match &part.config {
        Some(config) => configs.iter().position(|(name, _)| name == config),
        None if configs.len() == 1 => Some(0),
        None => configs.iter().position(|(name, _)| name == DEFAULT),
    };
    let missing =
        || match &part.config {
            Some(config) => HubError::new(Class::NotFound, format!("{} has no configuration `{config}`", name.repository))
                .fix(offer(config, &names, "configurations")),
            None => HubError::new(Class::Invalid, format!("{} has several configurations", name.repository)).fix(format!(
                "name one, hf:{}/CONFIGURATION/{}: {}",
                name.repository,
                part.split,
                some(&names)
            )),
        };
    found.map(|found| configs.swap_remove(found).1).ok_or_else(missing)
}

/// The configurations that a README's front matter tells of; `None` where it tells of no files.
fn told(readme: &str) -> std::result::Result<Option<Vec<(String, Files)>>, String> {
    let Some(front) = front_matter(readme) else { return Ok(None) };
    let root = yaml::read(front).map_err(|(line, what)| format!("line {}: {what}", line + 1))?;
    let Some(Value::List(configs)) = get(&root, "configs") else { return Ok(None) };
    let mut found = Vec::new();
    for config in configs {
        let folder = text(config, "data_dir").map(|folder| format!("{}/", folder.trim_end_matches('/'))).unwrap_or_default();
        let files = match get(config, "data_files") {
            Some(files) => Files::Named(splits(files, &folder)?),
            None if !folder.is_empty() => Files::Below(folder),
            // The files alone tell.
            None => return Ok(None),
        };
        let name = text(config, "config_name").unwrap_or(DEFAULT);
        // The one that is meant without a name is found under the usual one.
        let is_usual = text(config, "default") == Some("true") && name != DEFAULT;
        found.extend(is_usual.then(|| (DEFAULT.to_owned(), files.clone())));
        found.push((name.to_owned(), files));
    }
    Ok(Some(found).filter(|found| !found.is_empty()))
}

/// The YAML between the first line of a README and the next `---`.
fn front_matter(readme: &str) -> Option<&str> {
    let rest = readme.trim_start_matches('\u{feff}').strip_prefix("---")?.strip_prefix(['\r', '\n'])?;
    rest.split_once("\n---").map(|(front, _)| front)
}

/// Reads `data_files`: one or more patterns for the training split, or splits with patterns of their own.
fn splits(files: &Value, folder: &str) -> std::result::Result<Splits, String> {
    let mut found: Splits = Vec::new();
    let items = match files {
        Value::List(items) => items.iter().map(|item| &item.value).collect(),
        one => vec![one],
    };
    for item in items {
        let (split, paths) = match item {
            Value::Table(table) => {
                let Some(Value::Text(split)) = table.get("split").map(|split| &split.value) else {
                    return Err("a split has no name".to_owned());
                };
                (split.as_str(), table.get("path").map(|path| texts(&path.value)).unwrap_or_default())
            }
            other => ("train", texts(other)),
        };
        let paths = paths.into_iter().map(|path| format!("{folder}{path}"));
        match found.iter_mut().find(|(known, _)| known == split) {
            Some((_, known)) => known.extend(paths),
            None => found.push((split.to_owned(), paths.collect())),
        }
    }
    Ok(found)
}

fn texts(value: &Value) -> Vec<String> {
    match value {
        Value::Text(text) => vec![text.clone()],
        Value::List(list) => list.iter().flat_map(|node| texts(&node.value)).collect(),
        _ => Vec::new(),
    }
}

fn get<'n>(node: &'n Node, key: &str) -> Option<&'n Value> {
    match &node.value {
        Value::Table(table) => table.get(key).map(|node| &node.value),
        _ => None,
    }
}

fn text<'n>(node: &'n Node, key: &str) -> Option<&'n str> {
    match get(node, key) {
        Some(Value::Text(text)) => Some(text),
        _ => None,
    }
}

/// The files of patterns, in the order of both, each once.
fn matching<'l>(listing: &'l Listing, patterns: &[String]) -> Result<Vec<&'l Listed>> {
    let is_pattern = |text: &&String| text.contains(['*', '?', '[']);
    if patterns.iter().filter(is_pattern).count() > MOST_PATTERNS {
        return Err(HubError::new(
            Class::Invalid,
            format!("the README names the files of a split by more than {MOST_PATTERNS} patterns"),
        ));
    }
    let (mut found, mut known): (Vec<&Listed>, HashSet<&str>) = (Vec::new(), HashSet::new());
    let by_path: HashMap<&str, &Listed> = listing.iter().map(|file| (file.path.as_str(), file)).collect();
    for pattern in patterns {
        let path = pattern.trim_start_matches("./");
        let mut files: Vec<&Listed> = if is_pattern(&pattern) {
            let folders = folders(path).map_err(|why| {
                HubError::new(Class::Invalid, format!("the README names files by `{}`: {why}", pattern.escape_debug()))
            })?;
            listing.iter().filter(|file| fits(&folders, &file.path)).collect()
        } else {
            by_path.get(path).copied().into_iter().collect()
        };
        files.retain(|file| known.insert(&file.path));
        files.sort_by(|left, right| left.path.cmp(&right.path));
        found.extend(files);
    }
    Ok(found)
}

/// A pattern, folder by folder; `None` stands for any number of folders. For a whole path `glob` would try every way to divide each
/// folder's name among its stars.
fn folders(pattern: &str) -> std::result::Result<Vec<Option<Pattern>>, String> {
    if pattern.len() > LONGEST_PATTERN {
        return Err("the pattern is too long".to_owned());
    }
    let folder = |part: &str| if part == "**" { Ok(None) } else { Pattern::new(part).map(Some).map_err(|error| error.to_string()) };
    pattern.split('/').map(folder).collect()
}

fn fits(pattern: &[Option<Pattern>], path: &str) -> bool {
    let path: Vec<&str> = path.split('/').collect();
    // Whether the parts of the pattern so far fit so many folders.
    let mut fitting = vec![false; path.len() + 1];
    fitting[0] = true;
    for (number, part) in pattern.iter().enumerate() {
        let first = fitting.iter().position(|fits| *fits).unwrap_or(path.len() + 1);
        let mut next = vec![false; path.len() + 1];
        match part {
            Some(part) => (first..path.len()).for_each(|at| next[at + 1] = fitting[at] && part.matches(path[at])),
            // At the end it stands for a file at least.
            None => next.iter_mut().skip(first + usize::from(number + 1 == pattern.len())).for_each(|fits| *fits = true),
        }
        fitting = next;
    }
    fitting[path.len()]
}

/// The hub's own copy as parquet files: `CONFIGURATION/SPLIT/0000.parquet`. Of a dataset that is too large it has the beginning
/// alone, in `partial-SPLIT`, which is not taken for the whole.
fn converted(listing: &Listing) -> Option<Vec<(String, Found<'_>)>> {
    let mut configs: BTreeMap<&str, BTreeMap<&str, Vec<&Listed>>> = BTreeMap::new();
    for file in data_files(listing) {
        let [config, split, name] = file.path.split('/').collect::<Vec<_>>()[..] else { return None };
        let number = name.strip_suffix(".parquet")?;
        if number.len() != 4 || !number.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        configs.entry(config).or_default().entry(split).or_default().push(file);
    }
    let mut found = Vec::new();
    for (config, splits) in configs {
        found.push((config.to_owned(), splits.into_iter().map(|(split, files)| (split.to_owned(), files)).collect()));
    }
    (!found.is_empty()).then_some(found)
}

/// The splits below a folder that the names of folders tell of, or else those of files; without either, all is for training. Files
/// of another kind than most are no data.
fn by_name<'l>(listing: &'l Listing, below: &str) -> Found<'l> {
    let all: Vec<&Listed> = data_files(listing).into_iter().filter(|file| file.path.starts_with(below)).collect();
    let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
    all.iter().filter_map(|file| data_extension(&file.path)).for_each(|kind| *kinds.entry(kind).or_default() += 1);
    let most = kinds.into_iter().max_by_key(|(_, files)| *files).map(|(kind, _)| kind);
    let files: Vec<&Listed> = all.into_iter().filter(|file| data_extension(&file.path) == most).collect();
    let told = |tell: &dyn Fn(&str) -> Option<String>| {
        let mut found: Found<'_> = Vec::new();
        for file in &files {
            let Some(split) = tell(&file.path[below.len()..]) else { continue };
            match found.iter_mut().find(|(known, _)| *known == split) {
                Some((_, files)) => files.push(file),
                None => found.push((split, vec![file])),
            }
        }
        Some(found).filter(|found| !found.is_empty())
    };
    let folder = |path: &str| path.rsplit_once('/').and_then(|(folder, _)| folder.split('/').find_map(word));
    let own = |path: &str| word(path.rsplit('/').next()?);
    told(&sharded).or_else(|| told(&folder)).or_else(|| told(&own)).unwrap_or_else(|| vec![("train".to_owned(), files.clone())])
}

/// `data/SPLIT-00000-of-00002.parquet`, as `push_to_hub` writes it.
fn sharded(path: &str) -> Option<String> {
    let (split, number) = path.strip_prefix("data/")?.split_once('-')?;
    let (shard, of) = number.split_once("-of-")?;
    let is_number = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    (is_number(shard) && of.get(..5).is_some_and(is_number) && !split.contains('/')).then(|| split.to_owned())
}

/// The split that a name tells of: `train.jsonl`, `my-dev_1`.
fn word(name: &str) -> Option<String> {
    let words: Vec<&str> = name.split(|c: char| matches!(c, '-' | '.' | '_' | ' ') || c.is_ascii_digit()).collect();
    let known = |(_, known): &&(&str, &[&str])| words.iter().any(|word| known.contains(word));
    WORDS.iter().find(known).map(|(split, _)| (*split).to_owned())
}

/// The files that may be data, sorted.
fn data_files(listing: &Listing) -> Vec<&Listed> {
    let is_shown = |path: &str| path.split('/').all(|part| !part.starts_with(['.', '_']));
    let is_data = |path: &str| data_extension(path).is_some() && !NO_DATA.contains(&path.rsplit('/').next().unwrap_or(path));
    let mut files: Vec<&Listed> = listing.iter().filter(|file| is_shown(&file.path) && is_data(&file.path)).collect();
    files.sort_by(|left, right| left.path.cmp(&right.path));
    files
}

/// The extension that tells the kind of a file. `None`: the file is not read.
fn data_extension(path: &str) -> Option<&str> {
    let (rest, last) = path.rsplit_once('.')?;
    let end = if PACKED.contains(&last) { rest.rsplit_once('.')?.1 } else { last };
    EXTENSIONS.contains(&end).then_some(end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{hub::listing::Proof, job::hub::Commit};

    fn listing(paths: &[&str]) -> Listing {
        let proof = || Proof::Git(Commit::parse(&"0".repeat(40)).unwrap());
        Listing::new(paths.iter().map(|path| Listed { path: (*path).to_owned(), bytes: 1, proof: proof() }).collect()).unwrap()
    }

    /// The files of a name, or why there are none.
    fn files(name: &str, paths: &[&str], readme: &str) -> std::result::Result<Vec<String>, String> {
        let name = HubName::of_data(&format!("hf:a/b/{name}")).unwrap().unwrap();
        let told = |error: HubError| format!("{}; {}", error.message, error.fix.unwrap_or_default());
        split(&name, &listing(paths), readme).map(|files| files.into_iter().map(|file| file.path).collect()).map_err(told)
    }

    const WIKITEXT: &str = "---\nannotations_creators:\n- no-annotation\ndataset_info:\n- config_name: raw\n  features:\n  - name: text\n    dtype: string\n\
        configs:\n- config_name: raw\n  data_files:\n  - split: test\n    path: raw/test-*\n  - split: train\n    path: raw/train-*\n\
        - config_name: v1\n  data_files:\n  - split: train\n    path:\n    - v1/b.jsonl\n    - \"v1/a*\"\n---\n# WikiText\n---\n";

    #[test]
    fn a_readme_tells_of_configurations_and_splits() {
        let paths = [
            "raw/test-0.parquet",
            "raw/train-1.parquet",
            "raw/train-0.parquet",
            "raw/x/train-2.parquet",
            "v1/a.jsonl",
            "v1/b.jsonl",
        ];
        let found = |name: &str| files(name, &paths, WIKITEXT);
        assert_eq!(found("raw/train").unwrap(), ["raw/train-0.parquet", "raw/train-1.parquet"], "a star stays in its folder");
        assert_eq!(found("v1/train").unwrap(), ["v1/b.jsonl", "v1/a.jsonl"], "in the order of the patterns");
        for (name, told) in [
            ("raw/validation", "the configuration `raw` of a/b has no split `validation`; splits: "),
            ("rav/train", "a/b has no configuration `rav`; did you mean `raw`?"),
            ("train", "a/b has several configurations; name one, hf:a/b/CONFIGURATION/train: raw, v1"),
        ] {
            let why = found(name).unwrap_err();
            assert!(why.starts_with(told), "{name} gave {why}");
        }
        let with = |config: &str| format!("---\nconfigs:\n- config_name: x\n{config}\n---\n");
        let all = ["en/a.txt", "de/a.txt", "x.tar"];
        for (config, expected) in [
            ("  data_files: \"**/*.txt\"", Ok(vec!["de/a.txt", "en/a.txt"])),
            ("  data_dir: en\n  data_files: \"*\"", Ok(vec!["en/a.txt"])),
            ("  default: true\n  data_files: [de/a.txt]\n- config_name: y\n  data_files: en/a.txt", Ok(vec!["de/a.txt"])),
            ("  data_dir: en\n- config_name: y\n  data_dir: de/\n  default: true", Ok(vec!["de/a.txt"])),
            ("  data_dir: e", Err("hf:a/b/train has no files in the repository")),
            ("  data_files: x.tar", Err("hf:a/b/train is in x.tar, which is not read here; read are parquet, jsonl")),
            ("  data_files: \"none*\"", Err("hf:a/b/train has no files in the repository")),
            ("  data_files: \"en/**\"", Ok(vec!["en/a.txt"])),
            ("  data_files: \"**\"", Err("is in x.tar, which is not read here")),
            ("  data_files: \"./**/e?/[a-b].txt\"", Ok(vec!["en/a.txt"])),
            ("  data_files: \"en/a.txt/**\"", Err("hf:a/b/train has no files in the repository")),
            ("  data_files: \"a**\"", Err("the README names files by `a**`: ")),
            ("  data_files: &a [x]", Err("hf:a/b/train has no files in the repository")),
            ("  data_files: *a", Err("the README of a/b cannot be read: line 4: this is not YAML")),
        ] {
            match (files("train", &all, &with(config)), expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{config}"),
                (Err(why), Err(part)) => assert!(why.contains(part), "{config} gave {why}"),
                (found, _) => panic!("{config} gave {found:?}"),
            }
        }
    }

    /// A README is a stranger's. Matched as a whole, the first of these patterns would take hours.
    #[test]
    fn no_pattern_holds_anybody_up() {
        let path = format!("{}/{}.txt", "a".repeat(200), "a".repeat(200));
        let paths: Vec<String> = (0..2_000).map(|number| path.replace(".txt", &format!("{number}.txt"))).collect();
        let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
        for pattern in ["*a*a*a*a*a*a*a*a*b", "**/*a*a*a*a*a*a*/**/*a*a*a*a*a*b"] {
            let why = files("train", &paths, &format!("---\nconfigs:\n- data_files: \"{pattern}\"\n---\n")).unwrap_err();
            assert!(why.contains("has no files"), "{why}");
        }
        let many = format!("---\nconfigs:\n- data_files: [{}]\n---\n", "\"*\", ".repeat(MOST_PATTERNS + 1));
        let why = files("train", &paths, &many).unwrap_err();
        assert!(why.contains("more than 32 patterns"), "{why}");
    }

    #[test]
    fn names_of_folders_and_files_tell_of_splits() {
        let rows: [(&str, &[&str], &[&str]); 9] = [
            (
                "train",
                &["data/train-00000-of-00001-ab.parquet", "data/mine-00000-of-00001.parquet", "x.json"],
                &["data/train-00000-of-00001-ab.parquet"],
            ),
            (
                "mine",
                &["data/train-00000-of-00001.parquet", "data/mine-00000-of-00001.parquet"],
                &["data/mine-00000-of-00001.parquet"],
            ),
            ("validation", &["train.jsonl", "my_dev_1.jsonl", "dataset_infos.json", "README.md"], &["my_dev_1.jsonl"]),
            ("test", &["a/training/x.csv", "a/eval/test.csv", "trainer.csv"], &["a/eval/test.csv"]),
            ("train", &["b.txt.gz", "a.txt.zst", ".hidden/c.txt", "_x/d.txt"], &["a.txt.zst", "b.txt.gz"]),
            ("default/train", &["a.txt"], &["a.txt"]),
            (
                "plain/train",
                &["plain/train/0001.parquet", "plain/train/0000.parquet", "other/train/0000.parquet"],
                &["plain/train/0000.parquet", "plain/train/0001.parquet"],
            ),
            ("train", &["default/train/0000.parquet", "b/train/0000.parquet"], &["default/train/0000.parquet"]),
            ("train", &["trainer.txt", "restful.txt"], &["restful.txt", "trainer.txt"]),
        ];
        for (name, paths, expected) in rows {
            assert_eq!(
                files(name, paths, "# No front matter"),
                Ok(expected.iter().map(|path| (*path).to_owned()).collect()),
                "{name} {paths:?}"
            );
        }
        let wrong: [(&str, &[&str], &str); 3] = [
            ("train", &["c/partial-train/0000.parquet"], "a/b has no split `train`; splits: partial-train"),
            ("x/train", &["a.txt"], "a/b has no configuration `x`; configurations: default"),
            ("train", &["a.tar", "b.arrow"], "hf:a/b/train has no files"),
        ];
        for (name, paths, told) in wrong {
            let why = files(name, paths, "").unwrap_err();
            assert!(why.contains(told), "{name} gave {why}");
        }
    }
}
