use std::collections::BTreeMap;

use super::*;
use crate::data::shard::{Dataset, SplitDescription, Writer};

fn config(json: serde_json::Value) -> DataConfig {
    serde_json::from_value(json).unwrap()
}

/// A directory with text files.
fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, content) in files {
        std::fs::write(folder.path().join(name), content).unwrap();
    }
    folder
}

fn quietly(config: &DataConfig, out: &Path) -> Result<PreparedSummary, DataError> {
    prepare(config, None, out, &mut |_, _, _| ())
}

/// The documents of a split, decoded.
fn documents(dataset: &Dataset, split: Split) -> Vec<String> {
    let stream = dataset.split(split);
    let mut ids = vec![0; stream.len() as usize];
    stream.read(0, &mut ids).unwrap();
    let ids: Vec<u32> = ids.iter().map(|id| *id as u32).collect();
    let tokenizer = dataset.tokenizer().unwrap();
    let end = dataset.end_of_text();
    ids.split_inclusive(|id| *id == end).map(|document| tokenizer.decode(document.strip_suffix(&[end]).unwrap())).collect()
}

fn contents(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let read = |path: PathBuf| (path.file_name().unwrap().to_str().unwrap().to_owned(), std::fs::read(&path).unwrap());
    std::fs::read_dir(directory).unwrap().map(|entry| read(entry.unwrap().path())).collect()
}

#[test]
fn documents_come_back_from_the_shards() {
    let text = folder(&[("a.txt", "First text."), ("b.csv", "text\nsecond\nthird\n"), ("v.jsonl", "{\"text\": \"held out\"}\n")]);
    let path = |name: &str| text.path().join(name).display().to_string();
    let config = config(serde_json::json!({"train": [path("a.txt"), path("b.csv")], "validation": [path("v.jsonl")]}));
    let out = text.path().join("deep/out");
    let summary = quietly(&config, &out).unwrap();
    let dataset = Dataset::open(&out).unwrap();
    dataset.verify().unwrap();
    assert_eq!(documents(&dataset, Split::Train), ["First text.", "second", "third"]);
    assert_eq!(documents(&dataset, Split::Validation), ["held out"]);
    assert_eq!((dataset.vocabulary(), dataset.end_of_text(), dataset.digest()), (50_257, 50_256, summary.digest.as_str()));
    let train = &dataset.description().train;
    assert_eq!((train.documents, train.bytes, train.tokens), (3, 22, dataset.split(Split::Train).len()));
    assert_eq!(std::fs::read_dir(out.parent().unwrap()).unwrap().count(), 1, "nothing lies beside the dataset");
}

/// 300 files of a hundred lines each, in a directory.
fn many() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for file in 0..300 {
        let lines: Vec<String> = (0..100).map(|line| format!("line {line} of file {file}\n    and {}\n", line * file)).collect();
        std::fs::write(folder.path().join(format!("{file}.txt")), lines.concat()).unwrap();
    }
    folder
}

#[test]
fn the_same_text_gives_the_same_bytes_wherever_it_lies() {
    let (here, there) = (many(), many());
    let out = tempfile::tempdir().unwrap();
    let make = |text: &Path, name: &str| {
        let tokenizer = serde_json::json!({"kind": "train", "vocabulary": 400});
        let config = config(
            serde_json::json!({"train": [text], "validation_fraction": 0.1, "limit_bytes": 700_000, "tokenizer": tokenizer}),
        );
        quietly(&config, &out.path().join(name)).unwrap()
    };
    let (first, second) = (make(here.path(), "1"), make(there.path(), "2"));
    assert_eq!(first, second);
    assert!(contents(&out.path().join("1")) == contents(&out.path().join("2")));
    let Description { train, validation, vocabulary, .. } = first.description;
    assert_eq!(vocabulary, 400);
    assert!((600_000..=700_000).contains(&(train.bytes + validation.bytes)), "{train:?} {validation:?}");
    let share = validation.documents as f64 / (train.documents + validation.documents) as f64;
    assert!((share - 0.1).abs() < 0.005, "{share}");
}

#[test]
fn a_single_file_gives_its_end_to_the_validation_split() {
    let lines: Vec<String> = (0..5_000).map(|number| format!("line number {number}\n")).collect();
    let text = folder(&[("a.txt", &lines.concat())]);
    let out = text.path().join("out");
    quietly(&config(serde_json::json!({"train": [text.path().join("a.txt")], "validation_fraction": 0.2})), &out).unwrap();
    let dataset = Dataset::open(&out).unwrap();
    let (train, validation) = (documents(&dataset, Split::Train), documents(&dataset, Split::Validation));
    assert_eq!((train.len(), validation.len()), (1, 1));
    assert_eq!(format!("{}{}", train[0], validation[0]), lines.concat());
    assert!((validation[0].len() as f64 / lines.concat().len() as f64 - 0.2).abs() < 0.01);
}

#[test]
fn progress_rises_to_the_whole_in_each_stage() {
    let text = many();
    let tokenizer = serde_json::json!({"kind": "train", "vocabulary": 300});
    let config = config(serde_json::json!({"train": [text.path()], "tokenizer": tokenizer}));
    let mut seen: Vec<(Stage, u64, Option<u64>)> = Vec::new();
    let out = tempfile::tempdir().unwrap();
    prepare(&config, None, &out.path().join("out"), &mut |stage, done, total| seen.push((stage, done, total))).unwrap();
    let stages = [Stage::Reading, Stage::Counting, Stage::Learning, Stage::Tokenizing];
    assert!(seen.is_sorted_by_key(|(stage, done, _)| (stages.iter().position(|known| known == stage), *done)));
    for stage in stages {
        let last = seen.iter().rfind(|(seen, ..)| *seen == stage).unwrap();
        assert_eq!(Some(last.1), last.2, "{stage}");
    }
}

#[test]
fn files_have_one_column_of_text() {
    let text = folder(&[
        ("a.jsonl", "{\"text\": \"one\"}\n"),
        ("b.jsonl", "{\"id\": \"id-17\"}\n"),
        ("c.csv", "body\ntwo\n"),
        ("d.txt", "prose"),
        ("e.csv", "text\nthree\n"),
    ]);
    let path = |name: &str| text.path().join(name).display().to_string();
    let of = |train: &[&str], validation: &[&str], column: Option<&str>| {
        let [train, validation] = [train, validation].map(|names| names.iter().map(|name| path(name)).collect::<Vec<_>>());
        let config = config(serde_json::json!({"train": train, "validation": validation, "column": column}));
        let out = text.path().join("out");
        let made = quietly(&config, &out).map(|summary| summary.description.train.documents).map_err(|error| error.to_string());
        let _ = std::fs::remove_dir_all(out);
        made
    };
    let refused = of(&["a.jsonl", "b.jsonl"], &[], None).unwrap_err();
    let expected =
        format!("{} is in its column `id`, and that of {} in `text`. Give both one name", path("b.jsonl"), path("a.jsonl"));
    assert!(refused.contains(&expected), "{refused}");
    assert!(of(&["a.jsonl", "d.txt"], &["c.csv"], None).unwrap_err().contains("in its column `body`"));
    assert_eq!(of(&["a.jsonl", "d.txt", "e.csv"], &[], None), Ok(2), "and one held out");
    assert_eq!(of(&["c.csv"], &[], Some("body")), Ok(1));
}

#[test]
fn json_by_another_name_is_told() {
    let row = r#"{"text": "to be or not to be"}"#;
    for (name, text, is_told) in [
        ("rows.txt", format!("\u{feff}{row}\n\n{row}\n"), true),
        ("rows", format!("{row}\n{row}"), true),
        ("list.txt", format!("[\n  {row},\n  {row}]\n"), true),
        ("notebook.txt", "{\n \"cells\": [\n ],\n \"nbformat\": 4\n}\n".to_owned(), true),
        ("long.txt", format!("[{}{row}]", format!("{row},\n").repeat(200_000)), true),
        ("cut.txt", format!("[{row},"), false),
        ("numbers.txt", "[1, 2]\n".to_owned(), false),
        ("many.txt", format!("[{}1]", "1,".repeat(3_000_000)), false),
        ("rows.jsonl", format!("{row}\n{row}"), false),
        ("one.txt", format!("{row}\nto be"), false),
        ("code.txt", "{\n}\n{\n}\n".to_owned(), false),
    ] {
        let folder = folder(&[(name, &text)]);
        let config =
            config(serde_json::json!({"train": [folder.path().join(name)], "tokenizer": {"kind": "train", "vocabulary": 260}}));
        let made = prepare(&config, None, &folder.path().join("out"), &mut |_, _, _| {}).unwrap();
        let told = made.remarks.sentences().iter().any(|sentence| sentence.contains("is JSON, and was taken as plain text"));
        assert_eq!(told, is_told, "{name}: {:?}", made.remarks);
    }
}

#[test]
fn line_ends_of_windows_are_told() {
    for (name, text, is_told) in [
        ("a.txt", "to be\r\nor not to be\r\n", true),
        ("b.txt", "to be\nor not to be\r", false),
        ("c.jsonl", "{\"text\": \"to be or not to be\"}\r\n", false),
    ] {
        let folder = folder(&[(name, text)]);
        let config =
            config(serde_json::json!({"train": [folder.path().join(name)], "tokenizer": {"kind": "train", "vocabulary": 260}}));
        let made = prepare(&config, None, &folder.path().join("out"), &mut |_, _, _| {}).unwrap();
        let told = made.remarks.sentences().iter().any(|sentence| sentence.contains("end with CR and LF, as on Windows"));
        assert_eq!(told, is_told, "{name}: {:?}", made.remarks);
    }
}

#[test]
fn a_vocabulary_that_the_text_is_too_short_for_is_told() {
    let text = folder(&[("a.txt", "to be or not to be, that is the question")]);
    let prepared = |vocabulary: u32| {
        let tokenizer = serde_json::json!({"kind": "train", "vocabulary": vocabulary});
        let config = config(serde_json::json!({"train": [text.path().join("a.txt")], "tokenizer": tokenizer}));
        let (mut last, out) = (None, text.path().join(vocabulary.to_string()));
        let made = prepare(&config, None, &out, &mut |stage, done, total| {
            last = (stage == Stage::Learning).then_some((done, total)).or(last);
        });
        (made.unwrap(), last.unwrap())
    };
    let (made, (done, total)) = prepared(4096);
    let tokens = made.description.vocabulary;
    assert_eq!((done, total), (tokens as u64, Some(tokens as u64)), "the stage ends");
    let expected = format!("the vocabulary has {tokens} tokens, not 4096 as data.tokenizer.vocabulary says");
    assert!(tokens < 300 && made.remarks.sentences()[0].starts_with(&expected), "{:?}", made.remarks);
    assert_eq!(Remarks::read(&text.path().join("4096")), made.remarks, "told again of the same dataset");
    assert_eq!(prepared(tokens as u32).0.remarks, Remarks::default());
}

#[test]
fn an_interrupted_preparation_leaves_nothing() {
    let text = many();
    let out = tempfile::tempdir().unwrap();
    for stage in [Stage::Reading, Stage::Tokenizing] {
        let interrupted = std::panic::catch_unwind(|| {
            let config = config(serde_json::json!({"train": [text.path()]}));
            prepare(&config, None, &out.path().join("out"), &mut |now, _, _| assert!(now != stage, "interrupted"))
        });
        assert!(interrupted.is_err(), "{stage}");
        assert_eq!(std::fs::read_dir(out.path()).unwrap().count(), 0, "{stage}");
    }
}

#[test]
fn what_a_killed_preparation_left_goes_with_the_next() {
    let (text, place) = (many(), tempfile::tempdir().unwrap());
    let left = |name: &str| {
        let folder = place.path().join(format!("{TEMPORARY}{name}"));
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("train-00000.bin"), "tokens").unwrap();
        folder
    };
    let (killed, alive) = (left("killed"), left("alive"));
    let claim = File::open(&alive).unwrap();
    claim.lock().unwrap();
    let config = config(serde_json::json!({"train": [text.path()]}));
    prepare(&config, None, &place.path().join("out"), &mut |_, _, _| remove_abandoned(place.path())).unwrap();
    assert!(!killed.exists() && alive.exists());
    assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 2, "the living one and the dataset");
}

#[test]
fn impossible_requests_are_refused() {
    let text = folder(&[("a.txt", "text"), ("empty.txt", ""), ("e.csv", "text\n\n")]);
    let root = text.path().display();
    let cases = [
        (serde_json::json!({}), "[data] names no text: add train"),
        (serde_json::json!({"train": ["x"], "source": "cargo-dependencies"}), "[data] has either `train` or `source`, not both"),
        (serde_json::json!({"train": [format!("{root}/empty.txt")]}), "the dataset is empty: the training text contains no text"),
        (serde_json::json!({"train": [format!("{root}/e.csv")]}), "the dataset is empty: the training text contains no text"),
        (
            serde_json::json!({"train": [format!("{root}/a.txt")], "validation": [format!("{root}/empty.txt")]}),
            "the dataset is empty: the validation text contains no text",
        ),
        (
            serde_json::json!({"train": ["x"], "validation_fraction": 1.0}),
            "validation_fraction must be between 0 and 0.5, but is 1",
        ),
        (serde_json::json!({"train": ["x"], "tokenizer": {"kind": "train"}}), "kind = \"train\" needs the size of the vocabulary"),
        (
            serde_json::json!({"train": ["x"], "tokenizer": {"kind": "train", "vocabulary": 256}}),
            "the vocabulary has at least 257 tokens",
        ),
        (serde_json::json!({"train": ["x"], "tokenizer": {"vocabulary": 300}}), "GPT-2's own has 50,257 tokens"),
        (serde_json::json!({"train": ["no such file"]}), "no such file does not exist"),
    ];
    let out = text.path().join("out");
    for (json, expected) in cases {
        let error = quietly(&config(json.clone()), &out).expect_err(&json.to_string());
        assert!(error.to_string().contains(expected), "{error}");
        assert_eq!(error.class(), crate::data::error::Class::Input, "{error}");
        assert!(!out.exists());
    }
    let good = config(serde_json::json!({"train": [format!("{root}/a.txt")]}));
    let error = quietly(&good, text.path()).unwrap_err().to_string();
    assert!(error.contains("exists already; remove it or choose another"), "{error}");
    let error = quietly(&good, &text.path().join("a.txt/out")).unwrap_err().to_string();
    assert!(error.contains("cannot write") && error.contains("a.txt"), "{error}");
}

#[test]
fn the_key_follows_configuration_and_files() {
    let text = folder(&[("a.txt", "text"), ("b.txt", "text")]);
    let files = [text.path().join("a.txt"), text.path().join("b.txt")];
    let first = config(serde_json::json!({"train": ["a"]}));
    let second = config(serde_json::json!({"train": ["a"], "limit_bytes": 5}));
    let before = key(&first, &files).unwrap();
    assert_eq!(before, key(&first, &files).unwrap());
    assert_ne!(before, key(&second, &files).unwrap());
    assert_ne!(before, key(&first, &files[..1]).unwrap());
    std::fs::write(&files[0], "other text").unwrap();
    assert_ne!(before, key(&first, &files).unwrap());
    assert!(key(&first, &[text.path().join("gone")]).is_err());
}

/// A dataset of 50 tokens in shards of 7, as the trainer would map it.
fn sharded(directory: &Path, dtype: Dtype) -> (Dataset, Vec<u32>) {
    let tokens: Vec<u32> = (0..50).map(|token| token * 1_300 % 65_000).collect();
    let mut writer = Writer::new(directory, Split::Train, dtype, 7);
    writer.push(&tokens[..3]).unwrap();
    writer.push(&tokens[3..]).unwrap();
    let train = SplitDescription { tokens: 50, documents: 1, bytes: 0, shards: writer.finish().unwrap() };
    let tokenizer = TokenizerFiles { kind: TokenizerKind::Gpt2, files: Vec::new() };
    let schema = SCHEMA.to_owned();
    let description = Description {
        schema,
        tokenizer,
        vocabulary: 65_536,
        end_of_text: 0,
        dtype,
        train,
        validation: SplitDescription::default(),
    };
    write_description(directory, &description).unwrap();
    (Dataset::open(directory).unwrap(), tokens)
}

#[test]
fn reading_crosses_shard_borders() {
    for dtype in [Dtype::U16, Dtype::U32] {
        let directory = tempfile::tempdir().unwrap();
        let (dataset, tokens) = sharded(directory.path(), dtype);
        assert_eq!(dataset.description().train.shards.len(), 8);
        assert!(dataset.split(Split::Validation).is_empty());
        for (start, length) in (0..50).flat_map(|start| (0..=50 - start).map(move |length| (start, length))) {
            let mut out = vec![-1; length];
            dataset.split(Split::Train).read(start as u64, &mut out).unwrap();
            assert!(out.iter().zip(&tokens[start..]).all(|(read, written)| *read == i64::from(*written)), "{start}+{length}");
        }
    }
}

#[test]
fn a_token_beyond_the_vocabulary_is_damage() {
    let directory = tempfile::tempdir().unwrap();
    let (dataset, _) = sharded(directory.path(), Dtype::U32);
    drop(dataset);
    let path = directory.path().join("train-00002.tokens");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[64 + 3 * 4 + 2] = 1; // the fourth of this shard, 65,536 more than it was
    std::fs::write(&path, bytes).unwrap();
    let dataset = Dataset::open(directory.path()).unwrap();
    let read = |start, length| dataset.split(Split::Train).read(start, &mut vec![0; length]);
    read(0, 17).unwrap();
    read(18, 32).unwrap();
    let message = read(10, 20).unwrap_err().to_string();
    assert!(message.contains("train-00002.tokens is damaged: its token 3 is 87636, and the vocabulary has 65536"), "{message}");
}

#[test]
fn damage_is_found() {
    let directory = tempfile::tempdir().unwrap();
    let (dataset, _) = sharded(directory.path(), Dtype::U16);
    dataset.verify().unwrap();
    let path = directory.path().join("train-00002.tokens");
    let whole = std::fs::read(&path).unwrap();
    let damage = |at: usize, length: usize| {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, &bytes[..length]).unwrap();
        Dataset::open(directory.path()).and_then(|dataset| dataset.verify()).unwrap_err().to_string()
    };
    let cases = [
        (damage(70, whole.len()), "its SHA-256 is "),
        (damage(70, whole.len() - 1), "it has 77 bytes, dataset.json says 78"),
        (damage(0, whole.len()), "its header is not that of a token shard"),
        (damage(16, whole.len()), "its header is not that of a token shard"),
    ];
    for (message, expected) in cases {
        assert!(message.contains("train-00002.tokens is damaged: ") && message.contains(expected), "{message}");
    }
    std::fs::remove_file(&path).unwrap();
    let open = || Dataset::open(directory.path()).unwrap_err().to_string();
    assert!(open().contains("train-00002.tokens does not exist"), "{}", open());
    std::fs::write(directory.path().join(DESCRIPTION), "{\"schema\": \"ft.dataset/9\"}").unwrap();
    assert!(open().contains("its schema is `ft.dataset/9`, this program reads `ft.dataset/1`"), "{}", open());
    std::fs::remove_file(directory.path().join(DESCRIPTION)).unwrap();
    assert!(open().contains("is not a prepared dataset: it has no dataset.json; make one with"), "{}", open());
    let gone = Dataset::open(&directory.path().join("gone")).unwrap_err().to_string();
    assert!(gone.contains("is not a prepared dataset: it does not exist"), "{gone}");
}

/// Files of 16-bit tokens, after a header.
fn token_folder(header: &[u8], tokens: &[u16]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let tokens: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
    std::fs::write(folder.path().join("train.bin"), [header, &tokens].concat()).unwrap();
    folder
}

fn of_tokens(folder: &Path, format: &str) -> Result<PreparedSummary, DataError> {
    let path = folder.join("train.bin").display().to_string();
    quietly(&config(serde_json::json!({"format": format, "train": [path]})), &folder.join("out"))
}

#[test]
fn token_files_of_other_programs_are_taken_over() {
    let tokens = [15496, 995, 50256, 15496];
    let llm_c: Vec<u8> = [20_240_520_u32, 1, 4].into_iter().chain([0; 253]).flat_map(u32::to_le_bytes).collect();
    for (format, header) in [("nanogpt", &[][..]), ("llm-c", &llm_c)] {
        let folder = token_folder(header, &tokens);
        let summary = of_tokens(folder.path(), format).unwrap();
        let dataset = Dataset::open(&folder.path().join("out")).unwrap();
        let mut found = [0; 4];
        dataset.split(Split::Train).read(0, &mut found).unwrap();
        assert_eq!(found, tokens.map(i64::from), "{format}");
        let train = &summary.description.train;
        assert_eq!((train.tokens, train.documents, train.bytes), (4, 2, 16), "Hello world, Hello");
    }
}

#[test]
fn a_token_file_that_is_something_else_is_refused() {
    let refused = |format: &str, header: &[u8], tokens: &[u16]| {
        let folder = token_folder(header, tokens);
        of_tokens(folder.path(), format).unwrap_err().to_string()
    };
    let llm_c = |version: u32, tokens: u32| -> Vec<u8> {
        [20_240_520, version, tokens].into_iter().chain([0; 253]).flat_map(u32::to_le_bytes).collect()
    };
    for (message, expected) in [
        (refused("nanogpt", &[1], &[5]), "3 bytes of tokens of 2 bytes"),
        (refused("nanogpt", &[], &[5, 50_257]), "token 1: 50257 stands for none of GPT-2's tokens"),
        (refused("nanogpt", &[], &[]), "the training split"),
        (refused("llm-c", &[], &[5]), "the file is too short"),
        (refused("llm-c", &llm_c(7, 1), &[5]), "magic 20240520, version 7"),
        (refused("llm-c", &llm_c(1, 9), &[5]), "2 bytes of tokens of 2 bytes, the header says 9 tokens"),
        (refused("fairseq", &[], &[5]), "train.idx does not exist"),
    ] {
        assert!(message.contains(expected), "{message}");
    }
    let folder = token_folder(&[], &[5]);
    std::fs::write(folder.path().join("train.idx"), "MMIDIDX\0\0 and so on").unwrap();
    assert!(of_tokens(folder.path(), "fairseq").unwrap_err().to_string().contains("does not begin with MMIDIDX and version 1"));
}

/// Which is not the one that would be learnt on the text.
#[test]
fn text_becomes_tokens_of_a_tokenizer_that_is_there() {
    let folder = folder(&[("one.txt", &"to be or not to be ".repeat(40)), ("two.txt", &"a rose is a rose is a rose ".repeat(40))]);
    let path = |name: &str| folder.path().join(name).display().to_string();
    let learnt = |text: &str| serde_json::json!({"train": [path(text)], "tokenizer": {"kind": "train", "vocabulary": 280}});
    let tokenizer = |config: &DataConfig, name: &str| {
        quietly(config, &folder.path().join(name)).unwrap();
        Dataset::open(&folder.path().join(name)).unwrap().tokenizer().unwrap()
    };
    let one = tokenizer(&config(learnt("one.txt")), "one");
    assert!(one.difference(&tokenizer(&config(learnt("two.txt")), "two")).is_some());
    let given = config(serde_json::json!({"train": [path("two.txt")], "tokenizer": {"kind": "files", "directory": path("one")}}));
    assert_eq!(one.difference(&tokenizer(&given, "given")), None);
    let dataset = Dataset::open(&folder.path().join("given")).unwrap();
    assert!(documents(&dataset, Split::Train)[0].starts_with("a rose is a rose"));
    let key = || super::key(&given, &[folder.path().join("two.txt")]).unwrap();
    let before = key();
    let merges = folder.path().join("one/merges.txt");
    std::fs::write(&merges, std::fs::read_to_string(&merges).unwrap() + "\n").unwrap();
    assert_ne!(key(), before, "the tokenizer's files belong to the dataset's name");
}

fn stored(directory: &Path) -> (Vec<i64>, u64) {
    let dataset = Dataset::open(directory).unwrap();
    let stream = dataset.split(Split::Train);
    let mut tokens = vec![0; stream.len() as usize];
    stream.read(0, &mut tokens).unwrap();
    (tokens, dataset.description().train.documents)
}

/// The ends are those of transformers' tokenizer, with an end where the document ends.
#[test]
fn a_text_has_the_ends_that_are_written_in_it() {
    let folder = folder(&[("a.txt", "Hello<|endoftext|>World"), ("b.txt", "Hello<|endoftext|><|endoftext|>World<|endoftext|>")]);
    let prepared = |name: &str, more: serde_json::Value| {
        let mut json = serde_json::json!({"train": [folder.path().join(name)], "validation_fraction": 0});
        json.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let out = tempfile::tempdir().unwrap();
        let summary = quietly(&config(json), &out.path().join("out")).unwrap();
        assert_eq!(Remarks::read(&out.path().join("out")), summary.remarks);
        (stored(&out.path().join("out")), summary.remarks.sentences())
    };
    let (hello, world, end) = (15496, 10603, 50256);
    let split = || serde_json::json!({"end_of_text": "split"});
    assert_eq!(prepared("a.txt", split()), ((vec![hello, end, world, end], 2), vec![]));
    assert_eq!(prepared("b.txt", split()), ((vec![hello, end, end, world, end], 2), vec![]));
    let ((literal, documents), told) = prepared("a.txt", serde_json::json!({}));
    assert!(literal.len() == 10 && documents == 1 && literal[9] == end, "{literal:?}");
    assert!(
        told.len() == 1 && told[0].starts_with("the text has <|endoftext|> once, ") && told[0].contains("end_of_text = \"split\"")
    );
    assert_eq!(prepared("a.txt", serde_json::json!({"end_of_text": "literal"})), ((literal, 1), vec![]));
    assert!(prepared("b.txt", serde_json::json!({})).1[0].contains("<|endoftext|> 3 times"));
    let learnt = serde_json::json!({"end_of_text": "split", "tokenizer": {"kind": "train", "vocabulary": 300}});
    assert_eq!(prepared("a.txt", learnt).0.1, 2);
}

#[test]
fn documents_of_one_file_are_held_out_one_by_one() {
    let documents: Vec<String> = (0..100).map(|number| format!("document {number}")).collect();
    let folder = folder(&[("a.txt", &documents.join("<|endoftext|>"))]);
    let json = serde_json::json!({"train": [folder.path().join("a.txt")], "validation_fraction": 0.1, "end_of_text": "split"});
    quietly(&config(json), &folder.path().join("out")).unwrap();
    let dataset = Dataset::open(&folder.path().join("out")).unwrap();
    let [train, validation] = [Split::Train, Split::Validation].map(|split| self::documents(&dataset, split));
    assert_eq!((train.len(), validation.len()), (90, 10));
    assert!(documents.iter().all(|document| train.contains(document) || validation.contains(document)));
}

#[test]
fn special_tokens_of_a_tokenizer_that_is_there_are_made() {
    let folder = folder(&[("a.txt", "to be <pad> or not</s>that is"), ("t.txt", &"to be or not to be ".repeat(40))]);
    let path = |name: &str| folder.path().join(name).display().to_string();
    let learnt = serde_json::json!({"train": [path("t.txt")], "tokenizer": {"kind": "train", "vocabulary": 280}});
    let vocabulary = quietly(&config(learnt), &folder.path().join("t")).unwrap().description.vocabulary;
    std::fs::write(path("t/added_tokens.json"), format!("{{\"<pad>\": {vocabulary}, \"</s>\": {}}}", vocabulary + 1)).unwrap();
    std::fs::write(path("t/special_tokens_map.json"), "{\"eos_token\": \"</s>\"}").unwrap();
    std::fs::remove_file(path("t/tokenizer_config.json")).unwrap();
    let tokenizer = serde_json::json!({"kind": "files", "directory": path("t")});
    let json =
        serde_json::json!({"train": [path("a.txt")], "validation_fraction": 0, "tokenizer": tokenizer, "end_of_text": "split"});
    quietly(&config(json.clone()), &folder.path().join("out")).unwrap();
    let (tokens, documents) = stored(&folder.path().join("out"));
    let (pad, end) = (vocabulary as i64, vocabulary as i64 + 1);
    assert_eq!((documents, tokens.iter().filter(|token| **token == end).count()), (2, 2));
    assert!(tokens.contains(&pad) && tokens.last() == Some(&end), "{tokens:?}");
    let dataset = Dataset::open(&folder.path().join("out")).unwrap();
    assert_eq!(self::documents(&dataset, Split::Train), ["to be <pad> or not", "that is"]);
    let mut without = json;
    without.as_object_mut().unwrap().remove("end_of_text");
    let told = quietly(&config(without), &folder.path().join("literal")).unwrap().remarks.sentences();
    assert!(told.len() == 2 && told[0].contains("</s> once") && told[1].contains("<pad> once"), "{told:?}");
}

#[test]
fn rows_that_were_left_out_are_told() {
    let folder = folder(&[("a.jsonl", "{\"text\": \"a\"}\n{\"text\": \"\\ud800\"}\nno row\n{\"text\": \"b\"}\n")]);
    let json =
        |more: &str| serde_json::json!({"train": [folder.path().join("a.jsonl")], "validation_fraction": 0, "on_bad_row": more});
    let refused = quietly(&config(json("fail")), &folder.path().join("out")).unwrap_err().to_string();
    assert!(refused.contains("a.jsonl is malformed in line 2"), "{refused}");
    let summary = quietly(&config(json("skip")), &folder.path().join("out")).unwrap();
    assert_eq!((summary.remarks.rows_left_out, summary.description.train.documents), (2, 2));
    let told = summary.remarks.sentences();
    assert!(told[0].starts_with("2 rows were left out") && told[0].contains("a.jsonl is malformed in line 2"), "{told:?}");
}

#[test]
fn a_dataset_without_remarks_is_what_it_was() {
    let folder = folder(&[("a.txt", "text")]);
    let json = serde_json::json!({"train": [folder.path().join("a.txt")], "validation_fraction": 0});
    quietly(&config(json.clone()), &folder.path().join("out")).unwrap();
    assert!(!folder.path().join("out/remarks.json").exists());
    let written = serde_json::to_value(config(json)).unwrap();
    assert!(
        written.get("on_bad_row").is_none() && written.get("end_of_text").is_none(),
        "plans of before have their digest: {written}"
    );
}

#[test]
fn text_of_a_source_leaves_its_user_nothing_to_do() {
    let folder = folder(&[("a.rs", "fn a() {}\r\n// <|endoftext|>\r\n")]);
    let file = folder.path().join("a.rs");
    let told = |json, sources, out: &str| {
        prepare(&config(json), sources, &folder.path().join(out), &mut |_, _, _| ()).unwrap().remarks.sentences()
    };
    let source = serde_json::json!({"source": "cargo-dependencies", "validation_fraction": 0});
    assert_eq!(told(source, Some(vec![file.clone()]), "source"), [""; 0]);
    let own = serde_json::json!({"train": [file], "validation_fraction": 0});
    assert_eq!(told(own, None, "own").len(), 2, "line ends and a special token");
}

#[test]
fn a_description_among_the_data_is_told() {
    let folder = folder(&[("README.md", "About"), ("a.txt", "text")]);
    std::fs::create_dir(folder.path().join("b")).unwrap();
    std::fs::write(folder.path().join("b/readme.txt"), "c").unwrap();
    let told = |train: &[&str], out: &str| {
        let train: Vec<PathBuf> = train.iter().map(|name| folder.path().join(name)).collect();
        let json = serde_json::json!({"train": train, "validation_fraction": 0});
        quietly(&config(json), &folder.path().join(out)).unwrap().remarks.sentences()
    };
    let all = told(&[""], "all");
    assert!(all.len() == 1 && all[0].contains("README.md looks like a description of the data"), "{all:?}");
    assert_eq!(told(&["a.txt", "README.md"], "named"), [""; 0]);
    assert_eq!(told(&["b"], "only"), [""; 0], "those are the data");
    for (number, again) in ["a.txt", "b/../a.txt", "./a.txt"].into_iter().enumerate() {
        let twice = told(&["a.txt", again], &format!("twice-{number}"));
        assert!(twice.len() == 1 && twice[0].contains(&format!("{again} is named more than once, and read once")), "{twice:?}");
    }
}

#[test]
fn what_is_held_out_is_not_trained_on() {
    let folder = folder(&[("train.txt", "one two"), ("val.txt", "three")]);
    let prepared = |train: &[&str], validation: &str, out: &str| {
        let path = |name: &str| folder.path().join(name);
        let train: Vec<PathBuf> = train.iter().map(|name| path(name)).collect();
        let json = serde_json::json!({"train": train, "validation": [path(validation)]});
        let summary = quietly(&config(json), &path(out)).unwrap();
        (summary.description.train.bytes, summary.description.validation.bytes, summary.remarks.shared)
    };
    assert_eq!(prepared(&[""], "./val.txt", "a"), (7, 5, 0), "a directory brought it in");
    assert_eq!(prepared(&["*.txt"], "val.txt", "b"), (7, 5, 0));
    assert_eq!(prepared(&["train.txt", "val.txt"], "val.txt", "c"), (12, 5, 1), "both are named, so both are meant");
    assert_eq!(prepared(&["val.txt"], "val.txt", "d"), (5, 5, 1));
}

/// Numbers of 16 bits are tokens whatever they were meant to be.
#[test]
fn a_token_file_says_what_it_is() {
    let tokens = [15496_u16, 995, 50256, 15496, 11, 995, 0, 50256, 1, 2, 3, 4];
    let wide =
        |bytes: usize| tokens.iter().flat_map(move |token| u64::from(*token).to_le_bytes()[..bytes].to_vec()).collect::<Vec<u8>>();
    let refused = |format: &str, content: &[u8], beside: &[(&str, &str)]| {
        let folder = folder(beside);
        std::fs::write(folder.path().join("train.bin"), content).unwrap();
        of_tokens(folder.path(), format).unwrap_err().to_string()
    };
    let llama: Vec<u8> = [20_240_801_u32, 7, 1].into_iter().chain([0; 253]).flat_map(u32::to_le_bytes).chain([5, 0]).collect();
    for (message, expected) in [
        (refused("nanogpt", &wide(2), &[("meta.pkl", "")]), "meta.pkl, nanoGPT's vocabulary of single characters, lies beside it"),
        (refused("nanogpt", &wide(2), &[("tokenizer.model", "")]), "a vocabulary of SentencePiece"),
        (refused("llm-c", &wide(2), &[("vocab.txt", "")]), "a vocabulary of WordPiece"),
        (refused("nanogpt", &wide(2), &[("dict.txt", "5 1")]), "a dictionary of fairseq"),
        (refused("nanogpt", &wide(2), &[("train.idx", "MMIDIDX")]), "an index (.idx) lies beside it, as Megatron-LM and fairseq"),
        (refused("nanogpt", &wide(4), &[]), "its tokens have 32 or 64 bits, and nanoGPT's have 16"),
        (refused("nanogpt", &wide(8), &[]), "its tokens have 32 or 64 bits"),
        (refused("nanogpt", b"Once upon a time there was", &[]), "it is text and not tokens; leave data.format out"),
        (refused("nanogpt", b"\x93NUMPY\x01\0", &[]), "an array of numpy"),
        (refused("nanogpt", b"LITPKDS\0\x01\0\0\0", &[]), "a token file of lit-gpt"),
        (refused("nanogpt", b"PAR1\x15\x04\x15\x10\x15\x14\x4c\x15", &[]), "it is a parquet file and not tokens"),
        (refused("nanogpt", b"\x40\0\0\0\0\0\0\0{\"a\"", &[]), "a file of weights (safetensors)"),
        (refused("nanogpt", &wide(2), &[("spm.model", "")]), "a vocabulary of SentencePiece"),
        (refused("nanogpt", &wide(2), &[("tok4096.model", "")]), "tok4096.model, a vocabulary of SentencePiece"),
        (refused("nanogpt", &wide(2), &[("cl100k_base.tiktoken", "")]), "cl100k_base.tiktoken, a vocabulary of tiktoken"),
        (
            refused("nanogpt", &wide(2), &[("config.json", r#"{"vocab_size": 32000}"#)]),
            "config.json, a description of a vocabulary of 32000",
        ),
        (refused("nanogpt", &wide(2), &[("meta.json", r#"{"vocab_size": 65}"#)]), "a description of a vocabulary of 65"),
        (
            refused("nanogpt", &wide(2), &[("tokenizer_config.json", r#"{"tokenizer_class": "LlamaTokenizer"}"#)]),
            "tokenizer_config.json, the settings of a LlamaTokenizer",
        ),
        (refused("nanogpt", &llama.clone()[..4], &[]), "stands for none of GPT-2's tokens"),
        (refused("nanogpt", &[&20_240_520_u32.to_le_bytes()[..], &wide(2)].concat(), &[]), "say data.format = \"llm-c\""),
        (refused("llm-c", &llama, &[]), "these are Llama 3's"),
    ] {
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn tokens_of_the_vocabulary_beside_them_are_read_with_that() {
    let folder = token_folder(&[], &[256, 65, 66, 257, 10, 11, 12, 13]);
    let text = folder.path().join("t.txt");
    std::fs::write(&text, "to be or not to be ".repeat(40)).unwrap();
    let learnt = serde_json::json!({"train": [text], "tokenizer": {"kind": "train", "vocabulary": 270}});
    quietly(&config(learnt), &folder.path().join("t")).unwrap();
    let refused = || of_tokens(folder.path(), "nanogpt");
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(folder.path().join("t").join(name), folder.path().join(name)).unwrap();
    }
    let description = refused().unwrap().description;
    assert_eq!((description.tokenizer.kind, description.train.tokens), (TokenizerKind::Files, 8));
    assert!(description.vocabulary < 300);
    let own = Dataset::open(&folder.path().join("t")).unwrap().tokenizer().unwrap();
    assert_eq!(Dataset::open(&folder.path().join("out")).unwrap().tokenizer().unwrap().difference(&own), None);
    std::fs::remove_dir_all(folder.path().join("out")).unwrap();
    let beyond: Vec<u8> = [256_u16, 300].iter().flat_map(|token| token.to_le_bytes()).collect();
    std::fs::write(folder.path().join("train.bin"), beyond).unwrap();
    let message = refused().unwrap_err().to_string();
    assert!(message.contains("token 1: 300 stands for none of the tokens"), "{message}");
}

#[test]
fn a_dictionary_of_words_is_no_dictionary_of_numbers() {
    let folder = token_folder(&[], &[4, 5, 2]);
    let index: Vec<u8> =
        [&b"MMIDIDX\0\0"[..], &1_u64.to_le_bytes(), &[8], &1_u64.to_le_bytes(), &3_u32.to_le_bytes(), &0_u64.to_le_bytes()]
            .concat();
    std::fs::write(folder.path().join("train.idx"), index).unwrap();
    std::fs::write(folder.path().join("dict.txt"), "2019 7\nthe 5\n").unwrap();
    let message = of_tokens(folder.path(), "fairseq").unwrap_err().to_string();
    assert!(message.contains("dict.txt") && message.contains("its word `the` is not a number"), "{message}");
    std::fs::write(folder.path().join("dict.txt"), "11 7\n262 5\nmadeupword0000 0\n").unwrap();
    of_tokens(folder.path(), "fairseq").unwrap();
    assert_eq!(stored(&folder.path().join("out")).0, [11, 262, 50256]);
}
