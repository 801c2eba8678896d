//! The output for people and programs. Data goes to stdout, messages go to stderr; no other module prints.

use std::{
    env,
    ffi::OsStr,
    fmt::Display,
    io::{self, IsTerminal as _, Write as _},
    sync::Arc,
};

use serde_json::{Value, json};

use crate::{
    exit::{Exit, Failure},
    job::{
        printable,
        report::{Format, Report, Verbosity},
    },
};

mod bars;
mod clean;
pub mod format;
mod list;
pub mod page;
mod stderr;
mod table;
mod talk;

pub use self::{
    list::List,
    table::{Cell, Table},
};

/// Version of the JSON that describes an error.
const ERROR_SCHEMA: &str = "ftctl.error/1";

/// A value that is printed in every format.
pub trait Show {
    /// Name and version of the JSON, such as `ftctl.jobs/1`.
    fn schema(&self) -> &'static str;
    /// An object; the schema is added to it.
    fn json(&self) -> Value;
    /// For people, without a newline at the end.
    fn text(&self) -> String;
    /// For `-o name`: one name a line.
    fn names(&self) -> Vec<String>;
    /// For `-o jsonl`: a list gives one object for each of its items.
    fn lines(&self) -> Vec<Value> {
        vec![self.json()]
    }
}

/// Both streams, and how they are used.
pub struct Output {
    format: Format,
    talk: Arc<talk::Talk>,
    /// Whether stdout has its one JSON value.
    printed: bool,
    /// Bytes on their way to a terminal.
    stream: clean::Stream,
}

impl Output {
    pub fn new(format: Format, verbosity: Verbosity) -> Self {
        Self {
            format,
            talk: Arc::new(talk::Talk::new(verbosity, Style::of_stderr())),
            printed: false,
            stream: clean::Stream::default(),
        }
    }

    pub fn format(&self) -> Format {
        self.format
    }

    /// Where long work says how it goes.
    pub fn report(&self) -> Arc<dyn Report> {
        self.talk.clone()
    }

    /// Prints a value in the chosen format.
    pub fn show(&mut self, value: &dyn Show) -> Result<(), Failure> {
        let text = self.text_of(value);
        self.raw(text.as_bytes())
    }

    /// [`Output::show`] while this thread does other things.
    pub async fn show_apart(&mut self, value: &dyn Show) -> Result<(), Failure> {
        let text = self.text_of(value);
        self.raw_apart(text.into_bytes()).await.map_err(|error| stdout_failed(&error))
    }

    /// A value in the chosen format.
    pub fn text_of(&self, value: &dyn Show) -> String {
        match self.format {
            Format::Table => with_newline(printable::text(&value.text()).into_owned()),
            Format::Json => pretty(&stamped(value.schema(), value.json())),
            Format::Jsonl => clean::json(lines(value.lines().into_iter().map(|line| stamped(value.schema(), line)))),
            Format::Name => lines(value.names().iter().map(|name| printable::line(name))),
        }
    }

    /// Prints a value again, while a user watches it: on a terminal in place of the last one.
    pub fn show_again(&mut self, value: &dyn Show, watched: bool) -> Result<(), Failure> {
        if watched && self.format == Format::Table && io::stdout().is_terminal() {
            self.raw(b"\x1b[H\x1b[2J")?;
        }
        self.show(value)
    }

    /// Prints the last value of a verb, whose verdict may still be a failure. JSON stays one value: it has both. The verdict counts
    /// even if the value has no reader.
    pub fn conclude(&mut self, value: &dyn Show, verdict: Result<(), Failure>) -> Result<(), Failure> {
        let shown = match (&verdict, self.format) {
            (Err(failure), Format::Json) => {
                let mut both = stamped(value.schema(), value.json());
                both["error"] = error_json(failure)["error"].take();
                self.raw(pretty(&both).as_bytes())
            }
            _ => self.show(value),
        };
        verdict.and(shown)
    }

    /// Prints log lines, generated text, a schema, a completion script: as they are, but without orders to a terminal.
    pub fn data(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        if self.is_terminal() {
            let text = self.stream.clean(bytes);
            self.raw(text.as_bytes())
        } else {
            self.raw(bytes)
        }
    }

    /// [`Output::data`] while this thread does other things: the reader may stand still (`ftctl logs -f JOB | less`).
    pub async fn write_apart(&mut self, bytes: Vec<u8>) -> io::Result<()> {
        let bytes = if self.is_terminal() { self.stream.clean(&bytes).into_bytes() } else { bytes };
        self.raw_apart(bytes).await
    }

    /// Prints bytes as they are, also on a terminal: output made for one, and that of a command that the user had ftctl run.
    pub fn raw(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.printed = true;
        write(&self.talk, bytes).map_err(|error| stdout_failed(&error))
    }

    async fn raw_apart(&mut self, bytes: Vec<u8>) -> io::Result<()> {
        self.printed = true;
        let talk = Arc::clone(&self.talk);
        let written = tokio::task::spawn_blocking(move || write(&talk, &bytes));
        written.await.unwrap_or_else(|panic| Err(panic.into()))
    }

    /// Bytes for stderr as they are: those of a command that the user had ftctl run.
    pub fn errors(&self, bytes: &[u8]) {
        // As with all messages, there may be no reader.
        let _ = self.talk.suspend(|| io::stderr().write_all(bytes));
    }

    /// Returns when stderr has everything that was said, before the program ends.
    pub fn settle(&self) {
        self.talk.end();
    }

    pub fn is_terminal(&self) -> bool {
        io::stdout().is_terminal()
    }

    /// Asks before something is destroyed. `yes` answers for the user, and is needed without a terminal.
    pub fn confirm(&self, question: &str, yes: bool) -> Result<(), Failure> {
        if yes {
            return Ok(());
        }
        if !(io::stdin().is_terminal() && io::stderr().is_terminal()) {
            return Err(Failure::new(Exit::Usage, format!("{question} There is no terminal to ask on")).fix("add -y to say yes"));
        }
        self.errors(format!("{} [y/N] ", printable::text(question)).as_bytes());
        let mut answer = String::new();
        let read = io::stdin().read_line(&mut answer);
        match read {
            Ok(_) if matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes") => Ok(()),
            _ => Err(Failure::new(Exit::Interrupted, "nothing was changed")),
        }
    }

    /// Tells the user why the program ends and gives the code it ends with. A failure with [`Exit::Done`] is silent: it is how a
    /// reader that closed the pipe (`ftctl logs | head`) ends the program.
    pub fn fail(&self, failure: &Failure) -> Exit {
        if failure.exit == Exit::Done {
            return Exit::Done;
        }
        let as_json = matches!(self.format, Format::Json | Format::Jsonl) && !self.printed;
        if as_json {
            let value = stamped(ERROR_SCHEMA, error_json(failure));
            let text = if self.format == Format::Json { pretty(&value) } else { clean::json(lines([value])) };
            // There is no way left to report that stdout cannot take it.
            let _ = io::stdout().lock().write_all(text.as_bytes());
        } else {
            self.talk.last_words(failure);
        }
        failure.exit
    }
}

fn write(talk: &talk::Talk, bytes: &[u8]) -> io::Result<()> {
    let print = || {
        let mut stdout = io::stdout().lock();
        stdout.write_all(bytes)?;
        stdout.flush()
    };
    // Bars make room on a terminal alone, and wait for nothing else.
    if io::stdout().is_terminal() { talk.suspend(print) } else { talk.after_all(print) }
}

/// A closed pipe ends the program quietly; anything else is told.
fn stdout_failed(error: &io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::new(Exit::Done, ""),
        _ => Failure::new(Exit::Failure, format!("cannot write to stdout: {error}")),
    }
}

fn error_json(failure: &Failure) -> Value {
    json!({ "error": {
        "code": failure.exit as u8,
        "class": failure.exit.class(),
        "message": failure.message,
        "fix": failure.fix,
        "retryable": failure.retryable(),
    }})
}

/// The schema comes first, so that a reader of the first line knows what it has.
fn stamped(schema: &str, value: Value) -> Value {
    let mut object = serde_json::Map::new();
    object.insert("schema".to_owned(), schema.into());
    match value {
        Value::Object(fields) => object.extend(fields.into_iter().filter(|(key, _)| key != "schema")),
        other => drop(object.insert("value".to_owned(), other)),
    }
    Value::Object(object)
}

fn pretty(value: &Value) -> String {
    clean::json(format!("{value:#}\n"))
}

fn lines<T: Display>(items: impl IntoIterator<Item = T>) -> String {
    items.into_iter().fold(String::new(), |text, item| text + &item.to_string() + "\n")
}

fn with_newline(mut text: String) -> String {
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    text
}

/// How stderr may look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Style {
    /// Bars that redraw themselves.
    pub live: bool,
    pub colour: bool,
}

impl Style {
    fn of_stderr() -> Self {
        Self::decide(
            io::stderr().is_terminal(),
            |name| env::var_os(name).is_some_and(|value| !value.is_empty() && value != "false"),
            env::var_os("TERM").as_deref(),
        )
    }

    /// `NO_COLOR` takes the colour away; `TERM=dumb` and `CI` also the bars.
    fn decide(terminal: bool, set: impl Fn(&str) -> bool, term: Option<&OsStr>) -> Self {
        let live = terminal && term != Some(OsStr::new("dumb")) && !set("CI");
        Self { live, colour: live && !set("NO_COLOR") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_is_the_first_key_and_wins() {
        assert_eq!(stamped("a/1", json!({"x": 1, "schema": "old"})).to_string(), r#"{"schema":"a/1","x":1}"#);
    }

    #[test]
    fn a_closed_pipe_is_no_failure_and_a_full_disk_is() {
        assert_eq!(stdout_failed(&io::ErrorKind::BrokenPipe.into()).exit, Exit::Done);
        assert_eq!(stdout_failed(&io::ErrorKind::StorageFull.into()).exit, Exit::Failure);
    }

    #[test]
    fn colour_and_bars_obey_the_environment() {
        let decide =
            |terminal, set: &[&str], term: &str| Style::decide(terminal, |name| set.contains(&name), Some(OsStr::new(term)));
        assert_eq!(decide(true, &[], "xterm"), Style { live: true, colour: true });
        assert_eq!(decide(true, &["NO_COLOR"], "xterm"), Style { live: true, colour: false });
        for (terminal, set, term) in [(false, &[][..], "xterm"), (true, &["CI"][..], "xterm"), (true, &[][..], "dumb")] {
            assert_eq!(decide(terminal, set, term), Style { live: false, colour: false });
        }
    }
}
