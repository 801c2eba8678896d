//! Tokenizers as the libraries write them.

use std::path::Path;

use serde_json::{Value, json};

use super::*;

/// A tokenizer of some forty merges, saved.
fn saved() -> (tempfile::TempDir, Tokenizer) {
    let directory = tempfile::tempdir().unwrap();
    let mut counts = PieceCounts::default();
    counts.add(&["the theme of these other things, and the others of them"]);
    let tokenizer = Tokenizer::learn(&counts, 262, &mut |_| ()).unwrap();
    tokenizer.save(directory.path()).unwrap();
    (directory, tokenizer)
}

fn remove(directory: &Path, names: &[&str]) {
    for name in names {
        std::fs::remove_file(directory.join(name)).unwrap();
    }
}

#[allow(clippy::needless_pass_by_value, reason = "a table's values are written where they are put")]
fn put(directory: &Path, name: &str, content: impl ToString) {
    std::fs::write(directory.join(name), content.to_string()).unwrap();
}

fn json_of(directory: &Path, name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(directory.join(name)).unwrap()).unwrap()
}

fn load(directory: &Path) -> Result<Tokenizer, String> {
    Tokenizer::load(directory).map_err(|error| error.to_string())
}

const OLD: [&str; 3] = ["vocab.json", "merges.txt", "tokenizer_config.json"];

#[test]
fn one_file_alone_is_a_tokenizer() {
    let (directory, tokenizer) = saved();
    let directory = directory.path();
    remove(directory, &OLD);
    let loaded = load(directory).unwrap();
    assert_eq!(loaded.difference(&tokenizer), None);
    assert_eq!((loaded.pairs, loaded.end_of_text), (tokenizer.pairs.clone(), tokenizer.end_of_text));
    assert_eq!(Tokenizer::files(directory), [directory.join("tokenizer.json")]);
    // As the library wrote it until 2024.
    let mut library = json_of(directory, "tokenizer.json");
    let lines: Vec<String> = library["model"]["merges"]
        .as_array()
        .unwrap()
        .iter()
        .map(|pair| format!("{} {}", pair[0], pair[1]).replace('"', ""))
        .collect();
    library["model"]["merges"] = json!(lines);
    put(directory, "tokenizer.json", &library);
    assert_eq!(load(directory).unwrap().pairs, tokenizer.pairs);
}

#[test]
fn what_is_not_gpt2s_is_named() {
    let (directory, _) = saved();
    let directory = directory.path();
    let whole = json_of(directory, "tokenizer.json");
    let cases: [(&str, Value, &str); 11] = [
        ("/model/type", json!("Unigram"), "its model is Unigram"),
        ("/model/dropout", json!(0.1), "its model has dropout"),
        ("/model/byte_fallback", json!(true), "its model has byte_fallback"),
        ("/model/end_of_word_suffix", json!("</w>"), "its model has end_of_word_suffix"),
        ("/normalizer", json!({"type": "NFC"}), "its normalizer is NFC"),
        ("/pre_tokenizer", json!({"type": "Metaspace"}), "its pre-tokenizer is Metaspace"),
        ("/pre_tokenizer", json!({"type": "Split", "pattern": {"Regex": "."}}), "its pre-tokenizer is Split"),
        ("/pre_tokenizer", Value::Null, "it has no pre-tokenizer"),
        ("/pre_tokenizer/use_regex", json!(false), "its pre-tokenizer is ByteLevel"),
        ("/pre_tokenizer/add_prefix_space", json!(true), "puts a blank before every text"),
        ("/model/merges", json!(["a zz"]), "merge 0: `a` and `zz` are not a pair of tokens"),
    ];
    // Beside the files of GPT-2's release, which have no rules, and alone.
    for also in [&[][..], &OLD] {
        remove(directory, also);
        for (pointer, value, expected) in &cases {
            let mut changed = whole.clone();
            *changed.pointer_mut(pointer).unwrap() = value.clone();
            put(directory, "tokenizer.json", changed);
            let message = load(directory).unwrap_err();
            assert!(message.contains(expected) && message.contains("tokenizer.json"), "{message}");
        }
        put(directory, "tokenizer.json", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n");
        assert!(load(directory).unwrap_err().contains("is a pointer of git-lfs"));
    }
}

/// A vocabulary that the `tokenizers` library learns has the bytes of its text alone, unless it is told otherwise.
#[test]
fn bytes_without_a_token_leave_nothing_as_in_transformers() {
    let (directory, _) = saved();
    let directory = directory.path();
    let mut changed = json_of(directory, "tokenizer.json");
    changed["model"]["vocab"] = json!({"<|endoftext|>": 0, "t": 1, "h": 2, "e": 3, "Ġ": 4, "th": 5});
    changed["model"]["merges"] = json!(["t h"]);
    changed["added_tokens"][0]["id"] = json!(0);
    remove(directory, &OLD);
    put(directory, "tokenizer.json", changed);
    let tokenizer = load(directory).unwrap();
    let again = tempfile::tempdir().unwrap();
    tokenizer.save(again.path()).unwrap();
    for tokenizer in [tokenizer, load(again.path()).unwrap()] {
        assert_eq!(tokenizer.encode("thé tüh\0e"), [5, 4, 5, 3], "what is left is joined");
        assert_eq!((tokenizer.without_token("thé tüh\0e"), tokenizer.without_token("the")), (5, 0));
        assert_eq!(tokenizer.decode(&tokenizer.encode("thé the")), "th the");
    }
}

/// Without `tokenizer.json` nothing says the rules but the names.
#[test]
fn a_vocabulary_that_only_looks_like_gpt2s_is_named() {
    let (directory, tokenizer) = saved();
    let directory = directory.path();
    remove(directory, &["tokenizer.json"]);
    let whole = json_of(directory, "vocab.json");
    for name in ["the</w>", "th@@"] {
        let mut vocabulary = whole.clone();
        let id = vocabulary.as_object_mut().unwrap().remove("the").unwrap();
        vocabulary[name] = id;
        put(directory, "vocab.json", vocabulary);
        let message = load(directory).unwrap_err();
        assert!(message.contains(&format!("`{name}` marks where a word ends")), "{message}");
    }
    put(directory, "vocab.json", whole);
    let mut config = json_of(directory, "tokenizer_config.json");
    config["tokenizer_class"] = json!("Qwen2Tokenizer");
    put(directory, "tokenizer_config.json", &config);
    let message = load(directory).unwrap_err();
    assert!(message.contains("of Qwen2Tokenizer, which splits text in another way"), "{message}");
    config["tokenizer_class"] = json!("RobertaTokenizer");
    put(directory, "tokenizer_config.json", config);
    assert_eq!(load(directory).unwrap().difference(&tokenizer), None);
}

/// Its files are older than `tokenizer.json`.
#[test]
fn gpt2s_own_two_files_are_read() {
    let directory = tempfile::tempdir().unwrap();
    let gpt2 = Tokenizer::gpt2().unwrap();
    gpt2.save(directory.path()).unwrap();
    for entry in std::fs::read_dir(directory.path()).unwrap() {
        let path = entry.unwrap().path();
        if !["vocab.json", "merges.txt"].map(|name| directory.path().join(name)).contains(&path) {
            std::fs::remove_file(path).unwrap();
        }
    }
    assert_eq!(load(directory.path()).unwrap().difference(&gpt2), None);
}

/// Editors on Windows put a byte-order mark before a text; some write two bytes for each character.
#[test]
fn a_text_with_a_mark_is_the_text() {
    let (directory, tokenizer) = saved();
    let directory = directory.path();
    let rewrite = |name: &str, change: &dyn Fn(String) -> Vec<u8>| {
        let text = std::fs::read_to_string(directory.join(name)).unwrap();
        std::fs::write(directory.join(name), change(text)).unwrap();
    };
    put(directory, "added_tokens.json", json!({}));
    put(directory, "special_tokens_map.json", json!({"eos_token": "<|endoftext|>"}));
    put(directory, "config.json", json!({"vocab_size": 262}));
    for name in Tokenizer::READ {
        rewrite(name, &|text| format!("\u{feff}{text}").into_bytes());
        assert_eq!(load(directory).unwrap().difference(&tokenizer), None, "{name}");
    }
    remove(directory, &["tokenizer.json"]);
    assert_eq!(load(directory).unwrap().difference(&tokenizer), None, "of the two files");
    tokenizer.save(directory).unwrap();
    let ways = [("\u{feff}", u16::to_le_bytes as fn(u16) -> [u8; 2], "UTF-16"), ("", u16::to_be_bytes, "UTF-16BE")];
    for (mark, bytes, name) in ways {
        rewrite("tokenizer.json", &|text| {
            format!("{mark}{text}").trim_start_matches("\u{feff}\u{feff}").encode_utf16().flat_map(bytes).collect()
        });
        let message = load(directory).unwrap_err();
        let expected = format!("tokenizer.json: it is {name} text; `iconv -f {name} -t UTF-8` converts it");
        assert!(message.ends_with(&expected), "{message}");
        tokenizer.save(directory).unwrap();
    }
}

#[test]
fn a_tokenizer_of_another_kind_is_named() {
    for (name, what) in Tokenizer::OTHERS {
        let folder = tempfile::tempdir().unwrap();
        put(folder.path(), name, "x");
        assert!(Tokenizer::lies_in(folder.path()) && Tokenizer::files(folder.path()) == [folder.path().join(name)], "{name}");
        let message = load(folder.path()).unwrap_err();
        assert!(message.contains(&format!("{name} is {what}, and only byte-level BPE")), "{message}");
        let (directory, _) = saved();
        put(directory.path(), name, "x");
        assert!(load(directory.path()).is_ok(), "{name} beside one that is read");
    }
}

/// Each file that a version of transformers writes them into.
#[test]
fn added_tokens_have_their_numbers() {
    let next = 262;
    let forms = [
        ("added_tokens.json", json!({"<pad>": next, "<end of it>": next + 1})),
        (
            "tokenizer_config.json",
            json!({"added_tokens_decoder": {"262": {"content": "<pad>", "special": true, "lstrip": false},
                "263": {"content": "<end of it>", "special": true}}}),
        ),
    ];
    for (file, content) in forms {
        let (directory, plain) = saved();
        put(directory.path(), file, content);
        let loaded = load(directory.path()).unwrap();
        assert_eq!((loaded.vocabulary(), loaded.end_of_text()), (264, plain.end_of_text()), "{file}");
        assert_eq!(loaded.decode(&[262, 263]), "<pad><end of it>");
        let again = tempfile::tempdir().unwrap();
        loaded.save(again.path()).unwrap();
        assert_eq!(load(again.path()).unwrap().specials().tokens(), loaded.specials().tokens(), "saved and read again");
        assert_eq!(plain.contradiction(&loaded).unwrap().0, 262, "the data has more than the weights");
        assert_eq!(loaded.contradiction(&plain), None, "the weights have more than the data");
    }
    let (directory, _) = saved();
    put(directory.path(), "added_tokens.json", json!({"<pad>": 300}));
    assert!(load(directory.path()).unwrap_err().contains("the id of the added token `<pad>` is 300, but it has 263 tokens"));
    put(directory.path(), "added_tokens.json", json!({"<pad>": 261}));
    assert!(
        load(directory.path()).unwrap_err().contains("its added token 261 is `<|endoftext|>` in one file and `<pad>` in another")
    );
}

/// The numbers that transformers 5.17 gives them: `trainer/tests/oracle/special_tokens.py` asks it.
#[test]
fn tokens_that_only_a_configuration_names_are_made() {
    let (directory, plain) = saved();
    let directory = directory.path();
    let mut config = json_of(directory, "tokenizer_config.json");
    for (key, value) in [
        ("pad_token", json!({"content": "<pad>", "lstrip": true, "normalized": false})),
        ("bos_token", json!("<other>")),
        ("unk_token", json!("the")),
        ("mask_token", json!(7)),
        ("additional_special_tokens", json!(["<a>", null, "<pad>"])),
        ("extra_special_tokens", json!({"image_token": "<image>"})),
    ] {
        config[key] = value;
    }
    put(directory, "tokenizer_config.json", &config);
    put(directory, "special_tokens_map.json", json!({"sep_token": "<sep>", "bos_token": "<s>"}));
    let names = |tokenizer: &Tokenizer| {
        tokenizer.specials().tokens().iter().map(|token| (token.id, token.content.clone())).collect::<Vec<_>>()
    };
    let expect = |expected: &[(u32, &str)]| {
        let expected: Vec<_> = expected.iter().map(|(id, name)| (*id, (*name).to_owned())).collect();
        assert_eq!(names(&load(directory).unwrap()), expected);
    };
    let the = (plain.encode("the")[0], "the");
    expect(&[the, (261, "<|endoftext|>")]);
    put(directory, "config.json", json!({"vocab_size": 300}));
    expect(&[the, (261, "<|endoftext|>"), (262, "<s>"), (263, "<sep>"), (264, "<pad>"), (265, "<image>")]);
    let loaded = load(directory).unwrap();
    assert!(loaded.specials().tokens()[4].lstrip && loaded.vocabulary() == 266);
    put(directory, "config.json", json!({"vocab_size": 264}));
    assert_eq!(load(directory).unwrap().vocabulary(), 264, "the model has no row for the others");
    for unreadable in ["[]", "{\"vocab_size\": \"many\"}", "no JSON"] {
        put(directory, "config.json", unreadable);
        assert_eq!(load(directory).unwrap().vocabulary(), 262, "{unreadable}");
    }
    put(directory, "config.json", json!({"vocab_size": 300}));
    config["added_tokens_decoder"] = json!({"261": {"content": "<|endoftext|>", "special": true}});
    put(directory, "tokenizer_config.json", &config);
    expect(&[the, (261, "<|endoftext|>"), (262, "<other>"), (263, "<pad>"), (264, "<image>")]);
    for byte in ["§", "Ġ", "é"] {
        config["pad_token"] = json!(byte);
        put(directory, "tokenizer_config.json", &config);
        assert!(names(&load(directory).unwrap()).iter().all(|(_, name)| name != byte), "it stands for a byte");
    }
}

#[test]
fn tokens_around_each_text_are_found() {
    let (directory, _) = saved();
    let directory = directory.path();
    let around = || Tokenizer::around_each_text(directory).unwrap();
    assert!(around().is_empty());
    let mut library = json_of(directory, "tokenizer.json");
    let template = json!({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "</s>", "type_id": 0}}]});
    for step in [
        template.clone(),
        json!({"type": "Sequence", "processors": [{"type": "ByteLevel"}, template]}),
        json!({"type": "RobertaProcessing", "cls": ["<s>", 0], "sep": ["</s>", 2]}),
    ] {
        library["post_processor"] = step;
        put(directory, "tokenizer.json", &library);
        assert_eq!(around(), ["<s>", "</s>"]);
    }
    remove(directory, &["tokenizer.json"]);
    put(directory, "tokenizer_config.json", json!({"add_bos_token": true, "bos_token": "<s>"}));
    assert_eq!(around(), ["<s>"]);
    put(directory, "tokenizer_config.json", json!({"add_bos_token": false}));
    assert!(around().is_empty());
}

#[test]
fn a_text_may_end_under_another_name() {
    let (directory, _) = saved();
    let directory = directory.path();
    let renamed = std::fs::read_to_string(directory.join("tokenizer.json")).unwrap().replace("<|endoftext|>", "</s>");
    remove(directory, &OLD);
    put(directory, "tokenizer.json", &renamed);
    assert_eq!(load(directory).unwrap().end_of_text(), 261, "the only one is called as usual");
    put(directory, "tokenizer.json", renamed.replace("</s>", "<eos>"));
    assert_eq!(load(directory).unwrap().end_of_text(), 261, "the only special one");
    put(directory, "added_tokens.json", json!({"<pad>": 262}));
    for (file, content) in [
        ("special_tokens_map.json", json!({"eos_token": "<pad>"})),
        ("tokenizer_config.json", json!({"eos_token": {"content": "<eos>", "lstrip": false}})),
    ] {
        put(directory, file, content);
    }
    assert_eq!(load(directory).unwrap().end_of_text(), 262, "the list of names says it first, as in transformers");
    remove(directory, &["tokenizer_config.json"]);
    let loaded = load(directory).unwrap();
    assert_eq!(loaded.end_of_text(), 262);
    let again = tempfile::tempdir().unwrap();
    loaded.save(again.path()).unwrap();
    assert_eq!(load(again.path()).unwrap().end_of_text(), 262, "saved and read again");
    put(directory, "special_tokens_map.json", json!({"eos_token": "<new>"}));
    assert!(load(directory).unwrap_err().contains("it names the end of text `<new>`, which is none of its tokens"));
    put(directory, "config.json", json!({"vocab_size": 264}));
    assert_eq!(load(directory).unwrap().end_of_text(), 263, "made, as transformers does");
    put(directory, "special_tokens_map.json", json!({}));
    put(directory, "config.json", json!({"eos_token_id": 262}));
    assert_eq!(load(directory).unwrap().end_of_text(), 262, "the model's configuration has its number");
}

/// The tokens that the `tokenizers` library makes of such texts: `trainer/tests/oracle/special_tokens.py` asks it.
#[test]
fn special_tokens_stand_where_the_library_finds_them() {
    let token = |id, content: &str| Special::plain(id, content);
    let tokens = vec![
        token(0, "<end>"),
        Special { lstrip: true, ..token(1, "<mask>") },
        Special { rstrip: true, ..token(2, "<r>") },
        Special { single_word: true, ..token(3, "word") },
        token(4, "<end>er"),
        Special { normalized: true, ..token(5, "late") },
    ];
    let specials = Specials::new(tokens, 0).unwrap();
    let cut = |text| specials.segments(text).iter().map(|segment| (segment.text, segment.token)).collect::<Vec<_>>();
    assert_eq!(cut("a<end>b"), [("a", None), ("<end>", Some(0)), ("b", None)]);
    assert_eq!(cut("<end><end>"), [("<end>", Some(0)), ("<end>", Some(0))]);
    assert_eq!(cut("<end>er"), [("<end>er", Some(4))], "the longest");
    assert_eq!(cut("a \n<mask> b"), [("a", None), (" \n<mask>", Some(1)), (" b", None)]);
    assert_eq!(cut("<r>  <mask>"), [("<r>  ", Some(2)), ("<mask>", Some(1))], "what was taken is taken");
    assert_eq!(cut("words word, a word"), [("words ", None), ("word", Some(3)), (", a ", None), ("word", Some(3))]);
    assert_eq!(cut("later"), [("late", Some(5)), ("r", None)]);
    assert_eq!(cut(""), []);
}
