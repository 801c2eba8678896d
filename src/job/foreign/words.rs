//! From a command line to flags and their values.

use serde_json::Value;

use super::{Act, Flag, Job, Meaning};
use crate::job::wording::{self, near, or_without};

/// Splits as a POSIX shell does: quotes, backslashes, line ends that are escaped, comments. Text that only a shell could expand is
/// refused.
pub(super) fn split(command: &str) -> Result<Vec<String>, String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    // Lines of a file that was written on Windows end with both.
    let command = command.replace("\r\n", "\n");
    // Manuals put a prompt before it.
    let command = command.trim_start().strip_prefix("$ ").unwrap_or(&command);
    let mut characters = command.chars();
    let mut begins = true;
    while let Some(character) = characters.next() {
        // A cell of a notebook has marks before a line for the shell: `%%time`, `!python`.
        let is_mark = begins && ['!', '%'].contains(&character);
        begins = quote.is_none() && (character == '\n' || (begins && (is_mark || character.is_whitespace())));
        match (character, quote) {
            _ if is_mark => {}
            ('\'' | '"', None) => {
                quote = Some(character);
                word.get_or_insert_default();
            }
            (_, Some(open)) if character == open => quote = None,
            ('\\', None | Some('"')) => match characters.next() {
                Some('\n') | None => {}
                Some(other) => {
                    // Between quotes it is itself before an ordinary letter: "C:\texts".
                    let is_kept = quote.is_some() && !['$', '`', '"', '\\'].contains(&other);
                    word.get_or_insert_default().extend(is_kept.then_some('\\').into_iter().chain([other]));
                }
            },
            ('$' | '`', None | Some('"')) => return Err(format!("the command has a `{character}`; write out what it stands for")),
            ('“' | '”' | '„' | '‘' | '–' | '—', None) if word.is_none() => {
                return Err(format!(
                    "the command has a `{character}`, as text processors write it; type \", ' and -- as a shell knows them"
                ));
            }
            ('~', None) if word.is_none() => return Err("the command has a `~`; write out what it stands for".to_owned()),
            ('#', None) if word.is_none() => while characters.next().is_some_and(|character| character != '\n') {},
            ('|' | ';' | '&' | '<' | '>', None) => return Err(format!("`{character}` is the shell's; give one command alone")),
            (_, None) if character.is_whitespace() => words.extend(word.take()),
            _ => word.get_or_insert_default().push(character),
        }
    }
    if quote.is_some() {
        return Err("a quotation mark of the command is never closed".to_owned());
    }
    words.extend(word);
    Ok(words)
}

/// The name of the file that a word starts, on any system.
pub(super) fn file_name(word: &str) -> &str {
    let file = word.rsplit(['/', '\\']).next().unwrap_or_default();
    file.strip_suffix(".exe").or_else(|| file.strip_suffix(".EXE")).unwrap_or(file)
}

/// The command on one line, without what signs in somewhere: a job file is shown to others.
pub(super) fn without_secrets(command: &str) -> String {
    let (mut shown, mut is_next, mut quote) = (Vec::new(), false, None);
    for word in command.split_whitespace() {
        if let Some(open) = quote {
            quote = quote.filter(|_| !word.ends_with(open));
            continue;
        }
        let (name, value) = word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
        let hidden = if is_next && word != "\\" && !word.starts_with('-') { Some(word) } else { value.filter(|_| is_secret(name)) };
        let Some(hidden) = hidden else {
            is_next = (is_next && word == "\\") || (word.starts_with('-') && value.is_none() && is_secret(name));
            shown.push(word.to_owned());
            continue;
        };
        shown.push(format!("{}…", &word[..word.len() - hidden.len()]));
        quote = hidden.chars().next().filter(|first| ['\'', '"'].contains(first) && !hidden[1..].ends_with(*first));
        is_next = false;
    }
    shown.join(" ")
}

/// Whether a flag or a variable of this name has such a value.
fn is_secret(name: &str) -> bool {
    let name = name.trim_start_matches('-').replace('-', "_").to_ascii_lowercase();
    ["token", "password", "secret", "_key"].iter().any(|end| name.ends_with(end))
}

/// The flag of this name; where a program `abbreviates`, also the only one that begins so.
pub(super) fn find<'f>(tables: &[&'f [Flag]], plain: &str, abbreviates: bool) -> Option<&'f Flag> {
    let flags = || tables.iter().copied().flatten();
    let begins = |flag: &&Flag| flag.names.iter().any(|name| name.starts_with(plain));
    let only = || {
        let mut near = flags().filter(begins);
        near.next().filter(|_| near.next().is_none())
    };
    flags().find(|flag| flag.names.contains(&plain)).or_else(|| only().filter(|_| abbreviates))
}

/// Applies each flag to the job; failures join the job's problems.
pub(super) fn apply(job: &mut Job, words: &[String], tables: &[&[Flag]], abbreviates: bool, positional: Option<Act>) {
    let mut rest = words.iter();
    while let Some(word) = rest.next() {
        let Some(typed) = flag_name(word) else {
            let applied = positional.map_or_else(|| Err("a word that belongs to no flag".to_owned()), |act| act(job, word));
            applied.unwrap_or_else(|problem| job.problems.push(format!("{word}: {problem}")));
            continue;
        };
        let (name, attached) = typed.split_once('=').map_or((typed, None), |(name, value)| (name, Some(value)));
        let plain = name.replace('-', "_");
        let next = rest.clone().next().filter(|next| flag_name(next).is_none());
        let find = |plain: &str| find(tables, plain, abbreviates && word.starts_with("--"));
        // transformers has a flag without a value to turn off what is on unless told otherwise.
        let turned = || plain.strip_prefix("no_").and_then(find).filter(|flag| flag.meaning.is_switch());
        if let (None, Some(flag)) = (find(&plain), turned()) {
            flag.meaning.turned_off().unwrap_or_else(|problem| job.problems.push(format!("--{name}: {problem}")));
            continue;
        }
        let Some(flag) = find(&plain) else {
            unknown(job, word, &plain, tables);
            if attached.is_none() && next.is_some() {
                rest.next(); // Its value, in all likelihood.
            }
            continue;
        };
        let value = attached.map(str::to_owned).or_else(|| next.cloned());
        let is_switch = flag.meaning.is_switch();
        let truth = value.as_deref().and_then(truth);
        // A switch of fairseq has no value: what follows it stands for itself.
        let is_of_it = !is_switch || truth.is_some() || positional.is_none();
        if attached.is_none() && value.is_some() && is_of_it {
            rest.next();
        }
        let name = format!("--{name}");
        let applied = match value {
            Some(value) if is_switch && is_of_it => match truth {
                Some(true) => job.apply(&name, &flag.meaning, ""),
                Some(false) => flag.meaning.turned_off(),
                None => Err(format!("`{value}` is neither true nor false")),
            },
            _ if is_switch => job.apply(&name, &flag.meaning, ""),
            Some(value) => job.apply(&name, &flag.meaning, &value),
            None => Err("it needs a value".to_owned()),
        };
        applied.unwrap_or_else(|problem| job.problems.push(format!("{name}: {problem}")));
        // Some take a list, of which nothing is used here.
        if positional.is_none() && matches!(flag.meaning, Meaning::Nothing(_)) {
            while rest.clone().next().is_some_and(|next| flag_name(next).is_none()) {
                rest.next();
            }
        }
    }
}

/// Flags whose value may be a table.
const OF_TABLES: [&str; 2] = ["deepspeed", "lr_scheduler_kwargs"];

/// The flags that stand in a table, each with its value. What is not one text, number or truth, is one only of a flag that is left
/// out.
pub(super) fn of_table(job: &mut Job, table: &serde_json::Map<String, Value>, tables: &[&[Flag]]) -> Vec<String> {
    let mut words = Vec::new();
    for (name, value) in table.iter().filter(|(_, value)| !value.is_null()) {
        let plain = name.replace('-', "_");
        let (fits, wanted) = match find(tables, &plain, false).map(|flag| &flag.meaning) {
            None | Some(Meaning::Nothing(_) | Meaning::Refused(_)) => (true, ""),
            Some(Meaning::Text(_) | Meaning::Path(_)) => (value.is_string(), "one text"),
            Some(_) if OF_TABLES.contains(&plain.as_str()) => (!value.is_array(), "one text or object"),
            Some(_) => (!value.is_array() && !value.is_object(), "one text, number or truth"),
        };
        if fits {
            words.push(format!("--{name}={}", wording::value(value)));
        } else {
            job.problems.push(format!("--{name}: {value} stands where {wanted} belongs"));
        }
    }
    words
}

/// The value of a flag, wherever it stands.
pub(super) fn value_of(words: &[String], name: &str) -> Option<String> {
    words.iter().enumerate().find_map(|(place, word)| match flag_name(word)?.split_once('=') {
        Some((found, value)) if found == name => Some(value.to_owned()),
        None if flag_name(word)? == name => words.get(place + 1).cloned(),
        _ => None,
    })
}

/// Truth as `string_to_bool` of transformers' `hf_argparser.py` reads it.
fn truth(word: &str) -> Option<bool> {
    match word.to_ascii_lowercase().as_str() {
        "yes" | "true" | "t" | "y" | "1" => Some(true),
        "no" | "false" | "f" | "n" | "0" => Some(false),
        _ => None,
    }
}

/// The word without its dashes; a negative number is no flag.
fn flag_name(word: &str) -> Option<&str> {
    let name = word.strip_prefix("--").or_else(|| word.strip_prefix('-'))?;
    name.starts_with(|first: char| first.is_ascii_alphabetic()).then_some(name)
}

/// Whether the word is the flag `name`, with or without a value.
pub(super) fn is_flag(word: &str, name: &str) -> bool {
    flag_name(word).is_some_and(|found| found.split('=').next().unwrap_or_default().replace('-', "_") == name)
}

fn unknown(job: &mut Job, word: &str, plain: &str, tables: &[&[Flag]]) {
    let known: Vec<&str> = tables.iter().copied().flatten().flat_map(|flag| flag.names).copied().collect();
    // Not every program knows both ways of writing it.
    let name = word.trim_start_matches('-').split('=').next().unwrap_or_default();
    let written = |near: &&str| format!("--{}", if name.contains('-') { near.replace('_', "-") } else { (*near).to_owned() });
    let near: Vec<String> = near(plain, &known).iter().map(written).collect();
    job.problems.push(format!("{word}: ftctl does not know this flag; {}", or_without(&near)));
}
