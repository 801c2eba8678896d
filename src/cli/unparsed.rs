//! A command line that is not parsed: help and version, and what is wrong with any other, with what was probably meant.

use clap::{
    Command,
    error::{ContextKind, ContextValue, ErrorKind},
};

use super::schema::reference;
use crate::{
    exit::{Exit, Failure},
    job::{
        spec::JobSpec,
        wording::{near, nearest, suggest},
    },
    output::Output,
};

/// Help and version are data; anything else is a usage error.
pub fn answer(answer: &clap::Error, output: &mut Output) -> Result<(), Failure> {
    let text = answer.render().to_string();
    Err(match answer.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => return output.data(text.as_bytes()),
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => Failure::new(Exit::Usage, format!("a verb is missing\n\n{text}")),
        ErrorKind::MissingSubcommand => Failure::new(Exit::Usage, "a verb is missing").fix("`ftctl --help` shows them"),
        ErrorKind::InvalidSubcommand => unknown_verb(answer, &text),
        ErrorKind::UnknownArgument => unknown_flag(answer, &text),
        ErrorKind::InvalidValue => unknown_value(answer, &text),
        ErrorKind::ArgumentConflict => conflict(answer, &text),
        _ => usage_failure(&text),
    })
}

// clap's own measure of nearness misses letters that changed places, and finds words near that have a letter or two in common.

fn unknown_verb(answer: &clap::Error, text: &str) -> Failure {
    let Some(typed) = told(answer, ContextKind::InvalidSubcommand) else { return usage_failure(text) };
    let failure = Failure::new(Exit::Usage, format!("unknown verb `{typed}`"));
    if typed == "sweep" {
        return Failure::new(Exit::Usage, "`ftctl sweep` is called `ftctl prune` now").fix("ftctl prune, with the same flags");
    }
    let whole = super::command();
    let here = place(answer, &whole);
    let known = here.get_subcommands().filter(|verb| !verb.is_hide_set());
    let names: Vec<&str> = known.map(Command::get_name).collect();
    let meant = near(typed, &names);
    match meant.len() {
        0 if here.get_name() != whole.get_name() => failure.fix(format!("choose {}", names.join(" or "))),
        0 => failure.fix(suggest(typed, &names, "verbs")),
        _ => failure.fix(format!("did you mean `{}`?", meant.join("` or `"))),
    }
}

fn unknown_flag(answer: &clap::Error, text: &str) -> Failure {
    let failure = usage_failure(text);
    let typed = told(answer, ContextKind::InvalidArg).and_then(|typed| typed.strip_prefix("--"));
    let (Some(typed), None) = (typed, answer.get(ContextKind::SuggestedSubcommand)) else { return failure };
    let whole = super::command();
    let here = place(answer, &whole);
    let flags = here.get_arguments().chain(whole.get_arguments()).filter(|flag| !flag.is_hide_set());
    let flags: Vec<&str> = flags.filter_map(clap::Arg::get_long).collect();
    if GPU.contains(&typed) && flags.contains(&"set") {
        return failure.fix(BY_GPU);
    }
    let meant = nearest(typed, &flags).map(|flag| format!("--{flag}"));
    match meant.or_else(|| flags.contains(&"set").then(|| set(typed)).flatten()) {
        Some(meant) => failure.fix(format!("did you mean `{meant}`?")),
        None => Failure { fix: usage(text), ..failure },
    }
}

/// Flags of other programs that choose a machine by its GPU.
const GPU: [&str; 6] = ["gpu", "gpus", "gpu-type", "accelerator", "accelerators", "machine-type"];
const BY_GPU: &str = "Compute Engine has `--set compute.gce.accelerator=v100`, Azure ML `--set compute.azureml.size=SIZE`, docker \
                      `--set compute.docker.gpus=all`; `ftctl prices --gpu v100` shows the machines";

/// The `--set` for a key of a job file that was typed as a flag.
fn set(typed: &str) -> Option<String> {
    let keys = reference::keys(&JobSpec::schema());
    let names: Vec<&str> = keys.iter().map(|key| name(key)).collect();
    let meant = nearest(typed, &names)?;
    let key = keys.iter().find(|key| name(key) == meant)?;
    Some(format!("--set {key}=VALUE"))
}

/// A key without the tables in which it stands.
fn name(key: &str) -> &str {
    key.rsplit('.').next().unwrap_or(key)
}

fn unknown_value(answer: &clap::Error, text: &str) -> Failure {
    let failure = usage_failure(text);
    let (Some(typed), Some(ContextValue::Strings(known))) =
        (told(answer, ContextKind::InvalidValue), answer.get(ContextKind::ValidValue))
    else {
        return failure;
    };
    let known: Vec<&str> = known.iter().map(String::as_str).collect();
    let fix = nearest(typed, &known).map(|near| format!("did you mean `{near}`?"));
    Failure { fix: fix.or_else(|| usage(text)), ..failure }
}

/// clap's usage would have both of them.
fn conflict(answer: &clap::Error, text: &str) -> Failure {
    let typed = told(answer, ContextKind::InvalidArg).unwrap_or_default();
    let others: &[String] = match answer.get(ContextKind::PriorArg) {
        Some(ContextValue::String(one)) => std::slice::from_ref(one),
        Some(ContextValue::Strings(several)) => several,
        _ => return usage_failure(text),
    };
    let without = |arguments: &[String]| arguments.iter().map(|argument| bare(argument)).collect::<Vec<_>>().join(" and ");
    usage_failure(text).fix(match others {
        [other] if other == typed => format!("write {} once", bare(typed)),
        others => format!("leave out {}, or {}", bare(typed), without(others)),
    })
}

/// An argument without its values: `--rank` of `--rank <N|all>`, `JOB` of `[JOB]...`.
fn bare(argument: &str) -> String {
    let name = argument.split(' ').next().unwrap_or_default();
    if name.starts_with('-') { format!("`{name}`") } else { name.trim_matches(|char| "[]<>.".contains(char)).to_owned() }
}

fn told(answer: &clap::Error, kind: ContextKind) -> Option<&str> {
    let Some(ContextValue::String(text)) = answer.get(kind) else { return None };
    Some(text)
}

/// The verb whose usage clap tells: `Usage: ftctl devcloud <CLOUD>`.
fn place<'c>(answer: &clap::Error, whole: &'c Command) -> &'c Command {
    let usage = answer.get(ContextKind::Usage).map(ToString::to_string).unwrap_or_default();
    let mut here = whole;
    for word in usage.split_whitespace().skip(2) {
        let Some(below) = here.find_subcommand(word) else { break };
        here = below;
    }
    here
}

/// Rust's messages about numbers, and their meaning.
const OF_NUMBERS: [(&str, &str); 3] = [
    ("invalid digit found in string", "write a whole number"),
    ("number too large to fit in target type", "it is too large"),
    ("invalid float literal", "write a number"),
];

/// clap's paragraphs: what is wrong, then a tip, then the usage. The tip, or else the usage, is what to do next.
fn usage_failure(text: &str) -> Failure {
    let wrong = text.split_once("\n\n").map_or(text, |(wrong, _)| wrong);
    // No job, file or value of ftctl begins with a dash.
    let tip = line_after(text, "tip:").filter(|tip| !tip.starts_with("to pass '")).map(str::to_owned);
    let fix = tip.or_else(|| usage(text));
    let wrong = OF_NUMBERS.iter().fold(wrong.to_owned(), |wrong, (theirs, ours)| wrong.replace(theirs, ours));
    Failure { fix, ..Failure::new(Exit::Usage, wrong.trim_start_matches("error: ").trim_end()) }
}

fn usage(text: &str) -> Option<String> {
    line_after(text, "Usage:").map(|usage| format!("write it like: {usage}"))
}

fn line_after<'t>(text: &'t str, prefix: &str) -> Option<&'t str> {
    let (_, rest) = text.split_once("\n\n")?;
    rest.lines().find_map(|line| line.trim().strip_prefix(prefix)).map(str::trim)
}
