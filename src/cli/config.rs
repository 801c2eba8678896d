//! `ftctl config`: the settings in force, and the files that they come from.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::App;
use crate::{
    exit::Failure,
    output::{Cell, Show, Table},
    settings::{Adopt, Notify, Origin, Settings, trust::Claims},
};

/// Show the settings in force
///
/// flag > environment > job file > ./ftctl.toml > profile > user's config.toml > default
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ftctl config show --origin\n  FTCTL_TTL=2h ftctl config show -o json")]
pub struct Config {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Print every setting
    Show {
        /// Also say where each value comes from
        #[arg(long)]
        origin: bool,
    },
    /// Print the files that settings are read from, strongest first
    Path,
}

impl Config {
    pub fn run(self, app: &mut App<'_>) -> Result<(), Failure> {
        match self.action {
            Action::Show { origin } => {
                let Claims { file, places } = &app.settings.project;
                let waits = if app.trusts(&app.settings.project) { Vec::new() } else { places.keys().cloned().collect() };
                app.output.show(&InForce { rows: rows(&app.settings), origin, waits, file: file.clone() })
            }
            Action::Path => app.output.show(&Files(app.settings.files.clone())),
        }
    }
}

struct Row {
    key: String,
    value: Option<String>,
    origin: Origin,
}

fn rows(settings: &Settings) -> Vec<Row> {
    let row = |key: &str, value, origin: &Origin| Row { key: key.to_owned(), value, origin: origin.clone() };
    let word = |value: Value| value.as_str().map(str::to_owned);
    let image = settings.image.iter().map(|(key, setting)| {
        let value = word(setting.value.clone()).unwrap_or_else(|| setting.value.to_string());
        row(&format!("image.{key}"), Some(value), &setting.origin)
    });
    let rows = vec![
        row("profile", settings.profile.value.clone(), &settings.profile.origin),
        row("backend", Some(settings.backend.value.clone()), &settings.backend.origin),
        row("store", settings.store.value.clone(), &settings.store.origin),
        row("ttl", Some(settings.ttl.value.to_string()), &settings.ttl.origin),
        row("max_cost", settings.max_cost.value.map(String::from), &settings.max_cost.origin),
        row("max_wait", Some(settings.max_wait.value.to_string()), &settings.max_wait.origin),
        row("adopt", settings.adopt.value.as_ref().map(Adopt::to_string), &settings.adopt.origin),
        row("notify", told(&settings.notify.value), &settings.notify.origin),
        row("output", word(json!(settings.output.value)), &settings.output.origin),
        row("log", word(json!(settings.log.value)), &settings.log.origin),
    ];
    rows.into_iter().chain(image).collect()
}

/// The address is a secret where it is one of Slack or Discord.
fn told(notify: &Notify) -> Option<String> {
    let webhook = notify.webhook.as_ref().map(|_| "a webhook".to_owned());
    let both: Vec<String> = webhook.into_iter().chain(notify.command.first().cloned()).collect();
    (!both.is_empty()).then(|| both.join(", "))
}

struct InForce {
    rows: Vec<Row>,
    origin: bool,
    /// Settings of the project's file that count only when the user trusts it.
    waits: Vec<String>,
    file: PathBuf,
}

impl Show for InForce {
    fn schema(&self) -> &'static str {
        "ftctl.config/1"
    }

    fn json(&self) -> Value {
        let value = |row: &Row| if self.origin { json!({ "value": row.value, "origin": row.origin }) } else { json!(row.value) };
        let waits = (!self.waits.is_empty()).then(|| ("not_trusted".to_owned(), json!(self.waits)));
        Value::Object(self.rows.iter().map(|row| (row.key.clone(), value(row))).chain(waits).collect())
    }

    fn text(&self) -> String {
        let mut table = Table::new(if self.origin { &["SETTING", "VALUE", "ORIGIN"] } else { &["SETTING", "VALUE"] });
        for row in &self.rows {
            let origin = self.origin.then(|| Cell::text(row.origin.to_string()));
            table.row([Cell::text(&row.key), Cell::text(row.value.as_deref().unwrap_or("-"))].into_iter().chain(origin));
        }
        let shown = table.render();
        if self.waits.is_empty() {
            return shown;
        }
        format!(
            "{}\nnot trusted yet, from {}: {}; `ftctl trust` trusts it",
            shown.trim_end(),
            self.file.display(),
            self.waits.join(", ")
        )
    }

    fn names(&self) -> Vec<String> {
        self.rows.iter().map(|row| row.key.clone()).collect()
    }
}

struct Files(Vec<PathBuf>);

impl Show for Files {
    fn schema(&self) -> &'static str {
        "ftctl.config-path/1"
    }

    fn json(&self) -> Value {
        let files = self.0.iter().map(|path| json!({ "path": path.display().to_string(), "exists": path.exists() }));
        json!({ "files": files.collect::<Vec<_>>() })
    }

    fn text(&self) -> String {
        self.names().join("\n")
    }

    fn names(&self) -> Vec<String> {
        self.0.iter().map(|path| path.display().to_string()).collect()
    }
}
