//! The parser that the variable `FT_PARSER` names, with bytes that libFuzzer makes up. `fuzz/run` begins here.

#![no_main]

#[path = "../../tests/hostile/parsers.rs"]
mod parsers;

use std::sync::LazyLock;

static PARSER: LazyLock<fn(&[u8])> = LazyLock::new(|| {
    let wanted = std::env::var("FT_PARSER").expect("FT_PARSER names a folder of fuzz/corpus");
    let found = parsers::PARSERS.iter().find(|(name, _)| *name == wanted);
    found.unwrap_or_else(|| panic!("there is no parser {wanted}")).1
});

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| PARSER(bytes));
