//! Command jobs of Azure ML, as its CLI reads them (v2, YAML), as job files: every key has a line in a table that says what it
//! means here, and the job's command goes the way of every command. The file is another's: nothing in it is run or fetched.

mod command;
mod keys;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use super::{Job, Program, Read, Refused, Translated, printable, suggest};
use crate::job::{
    compute::Backend,
    yaml::{self, Node, Value},
};
use keys::{KEYS, Meaning};

pub use crate::job::yaml::MOST;

/// Where a key stands.
struct At<'a> {
    /// Its dotted name.
    path: &'a str,
    line: usize,
}

impl At<'_> {
    fn tells(&self, what: &str) -> (usize, String) {
        (self.line, printable::line(&format!("line {}, {}: {what}", self.line, self.path)).into_owned())
    }
}

/// An input, which the command may name in place of a value.
enum Input {
    /// Put into the command as it is.
    Literal(String),
    /// A file or directory, which stays one word.
    Path(String),
}

#[derive(Default)]
struct Translation {
    job: Job,
    /// Notes for the user, and what cannot be translated, each with its line.
    notes: Vec<(usize, String)>,
    problems: Vec<(usize, String)>,
    /// From the folder of the job file to that of the translated one.
    folder: PathBuf,
    /// The folder of the job's own code, from the translated file's.
    code: String,
    command: Option<(usize, String)>,
    inputs: BTreeMap<String, Input>,
    outputs: BTreeSet<String>,
    used: BTreeSet<String>,
    /// The machine that ftctl runs on, in place of one of the cloud.
    here: bool,
}

/// Translates a command job. `file` is its name in messages, `folder` the way from the job file's folder to its own, and `read`
/// gives the text of a file that it names, from its own folder.
pub fn translate(text: &str, file: &str, folder: &Path, read: Read<'_>) -> Result<Translated, Refused> {
    let wrong = |line: usize, what: &str| Refused {
        what: format!("{file}:{line}: {}", printable::line(what)),
        fix: "give a command job as `az ml job create --file` takes it".to_owned(),
    };
    let root = yaml::read(text).map_err(|(line, what)| wrong(line, &what))?;
    let Value::Table(table) = root.value else { return Err(wrong(root.line, "a job is a table of keys")) };
    let mut translation = Translation { folder: folder.to_owned(), ..Translation::default() };
    translation.walk("", &table);
    translation.machine();
    let program = translation.trainer(read);
    translation.finish(file, program)
}

impl Translation {
    fn note(&mut self, at: &At<'_>, what: &str) {
        self.notes.push(at.tells(what));
    }

    /// Does what each key means; `parent` is the table's dotted name.
    fn walk(&mut self, parent: &str, table: &BTreeMap<String, Node>) {
        for (name, node) in table {
            let path = if parent.is_empty() { name.clone() } else { format!("{parent}.{name}") };
            let at = At { path: &path, line: node.line };
            let key = KEYS.iter().find(|(names, _)| names.contains(&path.as_str()));
            let done = match (key, &node.value) {
                (Some((_, Meaning::Nothing(reason))), _) => {
                    self.note(&at, reason);
                    Ok(())
                }
                (Some((_, Meaning::Refused(reason))), _) => Err((*reason).to_owned()),
                (Some((_, Meaning::Special(act))), _) => act(self, &at, node),
                (None, value) if !below(&path).is_empty() => match value {
                    Value::Table(inner) => {
                        self.walk(&path, inner);
                        Ok(())
                    }
                    Value::Nothing => Ok(()),
                    _ => Err("a table belongs here".to_owned()),
                },
                (None, _) => Err(format!("ftctl does not know this key; {}", suggest(name, &below(parent), "keys here"))),
            };
            if let Err(problem) = done {
                self.problems.push(at.tells(&problem));
            }
        }
    }

    fn has(&self, key: &str) -> bool {
        self.job.values.contains_key(key)
    }

    /// The keys for the machine, some of which decide about others.
    fn machine(&mut self) {
        if self.here {
            self.job.remove_table(keys::SECTION);
            self.job.set("compute.backend", Backend::Local.name());
            return;
        }
        self.job.set("compute.backend", Backend::Azureml.name());
        if self.has(keys::CLUSTER) {
            return;
        }
        self.job.set("compute.azureml.compute", "serverless");
        if !self.has(keys::SPOT) {
            self.job.set(keys::SPOT, false);
            let cheaper = "without queue_settings.job_tier the service's machines are not taken away; with compute.azureml.spot = true they \
                           may be, for a fifth of the price, and a job goes on from its last checkpoint";
            self.notes.push((0, format!("queue_settings: {cheaper}")));
        }
        if !self.has(keys::SIZE) {
            let what = "without an instance_type the service chooses, and a job takes the cheapest machine with a T4";
            self.notes.push((0, format!("resources: {what}")));
        }
    }

    /// Takes over the command.
    fn trainer(&mut self, read: Read<'_>) -> Option<&'static Program> {
        let Some((line, text)) = self.command.take() else {
            self.problems.push((0, "command: a command job has one".to_owned()));
            return None;
        };
        let at = At { path: "command", line };
        let code = self.code.clone();
        let near = |file: &str| read(file).or_else(|_| read(&Path::new(&code).join(file).to_string_lossy()));
        let taken = self.words(&at, &text).and_then(|words| self.job.take(&words, &near).map_err(|refused| refused.what));
        self.problems.extend(self.job.problems.drain(..).map(|problem| at.tells(&problem)));
        self.unused();
        taken.map_err(|problem| self.problems.push(at.tells(&problem))).ok()
    }

    /// Tells which inputs no command has.
    fn unused(&mut self) {
        let unused: Vec<&String> = self.inputs.keys().filter(|name| !self.used.contains(*name)).collect();
        let notes: Vec<_> =
            unused.iter().map(|name| (0, format!("inputs.{}: the command does not name it", printable::line(name)))).collect();
        self.notes.extend(notes);
    }

    fn finish(mut self, file: &str, program: Option<&Program>) -> Result<Translated, Refused> {
        if !self.has(keys::TTL) {
            let what = "without a timeout a job of Azure ML may run for ever; here it ends after limits.ttl, 24h unless you set it";
            self.notes.push((0, format!("limits: {what}")));
        }
        self.problems.sort();
        self.notes.sort();
        let mut job = self.job;
        job.notes.splice(0..0, self.notes.into_iter().map(|(_, note)| note));
        job.problems.extend(self.problems.into_iter().map(|(_, problem)| problem));
        match program {
            Some(program) => job.finish(file, file, program),
            None => Err(job.refused(file)),
        }
    }
}

/// The keys right below a table.
fn below(parent: &str) -> Vec<&'static str> {
    let inside = |path: &'static str| if parent.is_empty() { Some(path) } else { path.strip_prefix(parent)?.strip_prefix('.') };
    let first = |path: &'static str| path.split('.').next().unwrap_or(path);
    let names: BTreeSet<&str> = KEYS.iter().flat_map(|(names, _)| *names).filter_map(|path| inside(path)).map(first).collect();
    names.into_iter().collect()
}

/// The beginning of a text of any length, for a message.
fn shown(text: &str) -> String {
    text.escape_debug().take(60).collect()
}

#[cfg(test)]
mod tests;
