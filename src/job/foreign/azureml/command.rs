//! A job's command: what the job fills in, and the one of its commands that trains.

use super::{At, Input, Translation, shown};
use crate::job::{
    foreign::{PROGRAMS, unknown_program, words},
    wording::suggest,
};

/// Bytes of a command after everything is filled in.
const LONGEST: usize = 64 << 10;
/// Around a name whose path takes its place when the words are known, so that the path stays one word. No keyboard has them.
const MARKS: [char; 2] = ['\u{e000}', '\u{e001}'];
/// Words that only a shell obeys.
const OF_THE_SHELL: [&str; 10] = ["for", "while", "until", "if", "case", "select", "do", "then", "{", "("];

impl Translation {
    /// The words of the command that trains. Of the others the user is told.
    pub(super) fn words(&mut self, at: &At<'_>, text: &str) -> Result<Vec<String>, String> {
        let filled = self.filled(text)?;
        let mut found = Vec::new();
        for part in parts(&filled) {
            let first = part.split_whitespace().next().unwrap_or_default();
            if OF_THE_SHELL.contains(&first) {
                return Err(format!("`{first}` is the shell's; give one command alone"));
            }
            let trains = match words::split(part) {
                Ok(words) if is_known(&words) => Some(words),
                Err(problem) if PROGRAMS.iter().flat_map(|program| program.names).any(|name| part.contains(name)) => {
                    return Err(problem);
                }
                _ => None,
            };
            match trains {
                Some(words) => found.push(words),
                None => self.note(at, &format!("`{}` is left out: only the trainer runs", shown(&self.with_paths(part)))),
            }
        }
        match found.len() {
            0 => {
                let unknown = unknown_program(&[]);
                Err(format!("{}; {}", unknown.what, unknown.fix))
            }
            1 => Ok(found.remove(0).iter().map(|word| self.with_paths(word)).collect()),
            many => Err(format!("it starts {many} programs that are known here; translate each by `ftctl init --from-command`")),
        }
    }

    /// The text with what stands for `${{inputs.NAME}}` and `${{outputs.NAME}}`. A literal may have more of the shell in it, as
    /// there.
    fn filled(&mut self, text: &str) -> Result<String, String> {
        let text = text.replace("\r\n", "\n");
        let (mut filled, mut rest) = (String::new(), text.as_str());
        while let Some((before, after)) = rest.split_once("${{") {
            let (name, after) = after.split_once("}}").ok_or("a `${{` is never closed")?;
            filled.extend([before, &self.stand_in(name.trim())?]);
            rest = after;
            if filled.len() > LONGEST {
                break;
            }
        }
        filled.push_str(rest);
        if filled.len() > LONGEST { Err(format!("it has more than {LONGEST} bytes with everything filled in")) } else { Ok(filled) }
    }

    fn stand_in(&mut self, expression: &str) -> Result<String, String> {
        let marked = |path: &str| format!("{}{path}{}", MARKS[0], MARKS[1]);
        match expression.split_once('.') {
            Some(("inputs", name)) if self.inputs.contains_key(name) => {
                self.used.insert(name.to_owned());
                Ok(match &self.inputs[name] {
                    Input::Literal(text) => text.clone(),
                    Input::Path(_) => marked(expression),
                })
            }
            Some(("outputs", name)) if self.outputs.contains(name) => Ok(marked(expression)),
            Some((kind @ ("inputs" | "outputs"), name)) => {
                let known: Vec<&str> = if kind == "inputs" {
                    self.inputs.keys().map(String::as_str).collect()
                } else {
                    self.outputs.iter().map(String::as_str).collect()
                };
                Err(format!("`{kind}` have no `{}`; {}", shown(name), suggest(&shown(name), &known, kind)))
            }
            _ => Err(format!("`${{{{{}}}}}` is neither one of inputs nor of outputs", shown(expression))),
        }
    }

    /// A word with every path in its place.
    fn with_paths(&self, word: &str) -> String {
        let mut whole = String::new();
        for part in word.split_inclusive(MARKS) {
            let path =
                part.strip_suffix(MARKS[1]).map(|name| match name.strip_prefix("inputs.").and_then(|name| self.inputs.get(name)) {
                    Some(Input::Path(path)) => path.clone(),
                    _ => name.replace('.', "/"),
                });
            whole.push_str(&path.unwrap_or_else(|| part.trim_end_matches(MARKS).to_owned()));
        }
        whole
    }
}

fn is_known(words: &[String]) -> bool {
    (0..words.len()).any(|place| PROGRAMS.iter().any(|program| program.is_started_by(words, place)))
}

/// The commands of a script, as far as `;`, `&&` and the ends of lines part them.
fn parts(script: &str) -> Vec<&str> {
    let (mut parts, mut begin, mut quote, mut before) = (Vec::new(), 0, None, ' ');
    let (mut escaped, mut comment) = (false, false);
    for (at, character) in script.char_indices() {
        let ends = match (character, quote) {
            ('\n', None) if !escaped => true,
            _ if escaped || comment => false,
            (_, Some(open)) if character == open => {
                quote = None;
                false
            }
            ('\'' | '"', None) => {
                quote = Some(character);
                false
            }
            (';', None) => true,
            ('&', None) => script[at..].starts_with("&&"),
            _ => false,
        };
        comment = !ends && (comment || (character == '#' && quote.is_none() && before.is_whitespace() && !escaped));
        escaped = !escaped && character == '\\' && !comment && quote != Some('\'');
        before = character;
        if ends && at >= begin {
            parts.push(&script[begin..at]);
            begin = at + if character == '&' { 2 } else { 1 };
        }
    }
    parts.push(&script[begin.min(script.len())..]);
    parts.into_iter().map(str::trim).filter(|part| !part.is_empty() && !is_comment(part)).collect()
}

fn is_comment(part: &str) -> bool {
    part.starts_with('#') && !part.contains('\n')
}
