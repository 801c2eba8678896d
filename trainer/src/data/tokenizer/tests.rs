use super::*;

/// Text that a pre-tokenizer or a byte-level vocabulary is likely to get wrong.
fn adversarial() -> Vec<String> {
    let every_character: String = (char::MIN..=char::MAX).filter(|c| *c != '\0').collect();
    let spaced: String = (char::MIN..=char::MAX).step_by(7).flat_map(|c| ['a', c, ' ', c, c]).collect();
    let mut texts = vec![every_character, spaced];
    texts.extend([" ", "\n", "\t", "a", "1", "!", "'", "\u{85}", "\u{a0}", "é", "漢", "👩‍👩‍👧‍👦"].map(|unit| unit.repeat(3_000)));
    texts.extend(
        [
            "",
            "\r\n\r\n \r\n\t\u{85}\u{2028}\u{2029}\u{3000}x",
            "I'll we've don't it's 'S 'LL ' 's ''ve I'M x'd'",
            "<|endoftext|> is not special <|endoftext|>",
            "e\u{301}\u{302} \u{200d} \u{feff} \u{fe0f}a",
            "१२३ ½ ⅷ ² x²y",
            "漢字とかな交じり文。  日本語　テスト",
            "   leading, trailing   ",
        ]
        .map(str::to_owned),
    );
    texts
}

/// Real text: the sources of the packages this crate was built from.
fn sources(bytes: usize) -> String {
    let manifest = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    let files = crate::data::text::cargo_dependencies(&manifest).expect("cargo built this test");
    let mut text = String::new();
    for file in files.iter().step_by(7) {
        text.push_str(&std::fs::read_to_string(file).unwrap_or_default());
        if text.len() > bytes {
            break;
        }
    }
    text
}

#[test]
fn gpt2_encodes_as_tiktoken_does() {
    let ours = Tokenizer::gpt2().unwrap();
    assert_eq!((ours.vocabulary(), ours.end_of_text()), (50_257, 50_256));
    let oracle = tiktoken_rs::r50k_base().unwrap();
    for text in adversarial() {
        let start: String = text.chars().take(30).collect();
        assert!(ours.encode(&text) == oracle.encode_ordinary(&text), "{start:?}");
    }
    let real = sources(1_500_000);
    assert!(real.len() > 1_000_000);
    assert!(ours.encode(&real) == oracle.encode_ordinary(&real));
}

#[test]
fn every_gpt2_token_is_what_its_own_text_becomes() {
    let ours = Tokenizer::gpt2().unwrap();
    let mut merger = Merger::default();
    for (token, id) in ours.tokens[..50_256].iter().zip(0..) {
        let mut ids = Vec::new();
        merger.run(&ours.merges, token.iter().map(|byte| ours.bytes[*byte as usize]), &mut ids);
        assert_eq!(ids, [id], "{token:?}");
    }
    assert_eq!(ours.pairs.len(), 50_000);
}

fn learnt(text: &str, vocabulary: usize) -> Tokenizer {
    let mut counts = PieceCounts::default();
    counts.add(&parts(text, 10_000).collect::<Vec<_>>());
    Tokenizer::learn(&counts, vocabulary, &mut |_| ()).unwrap()
}

#[test]
fn decoding_gives_the_text_back() {
    let trained = learnt(&sources(200_000), 700);
    assert_eq!((trained.vocabulary(), trained.end_of_text()), (700, 699));
    for tokenizer in [trained, Tokenizer::gpt2().unwrap()] {
        for text in adversarial() {
            assert!(tokenizer.decode(&tokenizer.encode(&text)) == text);
        }
    }
}

#[test]
fn random_text_survives_a_round_trip() {
    let tokenizer = learnt("the theme of these other things", 270);
    let mut state = 7_u64;
    for _ in 0..2_000 {
        let text: String = (0..20)
            .filter_map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let limit = [0x80, 0x800, 0x1_0000, 0x11_0000][(state >> 62) as usize];
                char::from_u32((state >> 33) as u32 % limit)
            })
            .collect();
        assert_eq!(tokenizer.decode(&tokenizer.encode(&text)), text);
    }
}

#[test]
fn saved_files_load_as_the_same_tokenizer() {
    let directory = tempfile::tempdir().unwrap();
    for tokenizer in [learnt("it is what it is, isn't it? \u{a0}é\t\n", 300), Tokenizer::gpt2().unwrap()] {
        tokenizer.save(directory.path()).unwrap();
        let loaded = Tokenizer::load(directory.path()).unwrap();
        assert!(loaded.tokens == tokenizer.tokens && loaded.pairs == tokenizer.pairs);
        assert_eq!((loaded.end_of_text, loaded.bytes), (tokenizer.end_of_text, tokenizer.bytes));
        for name in Tokenizer::FILES {
            assert!(directory.path().join(name).is_file(), "{name}");
        }
    }
}

#[test]
fn damaged_files_say_what_is_wrong() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let load = || Tokenizer::load(directory.path()).unwrap_err().to_string();
    assert!(load().contains("vocab.json does not exist"), "{}", load());
    learnt("aa aa aa", 258).save(directory.path()).unwrap();
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        std::fs::remove_file(path(name)).unwrap();
    }
    std::fs::write(path("merges.txt"), "#version: 0.2\na zz\n").unwrap();
    assert!(load().contains("merges.txt is not a usable tokenizer file: line 2: `a zz` is not a pair of tokens"), "{}", load());
    std::fs::write(path("vocab.json"), "{\"a\": 7}").unwrap();
    assert!(load().contains("the id of `a` is 7, but it has 1 tokens"), "{}", load());
    std::fs::write(path("vocab.json"), "{\"a\": 0}").unwrap();
    std::fs::write(path("merges.txt"), "").unwrap();
    assert!(load().contains("it has no token <|endoftext|>"), "{}", load());
}

#[test]
fn a_long_run_takes_linear_time_and_decodes() {
    let tokenizer = learnt("aaaa aaaa bb", 262);
    let text = "a".repeat(5 << 19);
    let ids = tokenizer.encode(&text);
    assert!(ids.len() <= text.len() / 4 + 5 && tokenizer.decode(&ids) == text);
}

#[test]
fn a_vocabulary_smaller_than_the_bytes_is_refused() {
    let error = Tokenizer::learn(&PieceCounts::default(), 256, &mut |_| ()).unwrap_err().to_string();
    assert!(error.contains("at least 257 tokens (the 256 bytes and"), "{error}");
}

#[test]
fn ids_outside_the_vocabulary_decode_as_the_replacement_character() {
    let tokenizer = learnt("", 300);
    assert_eq!(tokenizer.vocabulary(), 257);
    assert_eq!(tokenizer.decode(&[1, 999, 256]), "\"\u{fffd}<|endoftext|>");
}

#[test]
fn a_prompt_has_the_tokens_that_are_named_in_it() {
    let tokenizer = Tokenizer::gpt2().unwrap();
    assert_eq!(tokenizer.encode_prompt("Hello<|endoftext|>World"), [15_496, 50_256, 10_603]);
    assert_eq!([tokenizer.encode_prompt("<|endoftext|>"), tokenizer.encode_prompt("")], [[50_256], [50_256]]);
    assert_eq!(tokenizer.encode("<|endoftext|>").len(), 7, "a text is not read so unless it is asked for");
}
