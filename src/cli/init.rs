//! `ftctl init`: a commented job file to start from.

use std::{
    fs::{self, File},
    io::{self, Read as _, Write as _},
    path::{Path, PathBuf},
};

use clap::Args;
use ft_trainer::files;
use serde_json::{Value, json};

use super::{App, completion, intent::Intent, replace::replace, schema};
use crate::{
    exit::{Exit, Failure},
    job::{
        compute::Backend,
        foreign::{self, azureml},
        hub::HubName,
        spec::JobSpec,
        wording::suggest,
    },
    lifecycle::hub,
    output::{Cell, Show, Table},
    provider::registry,
};

/// Write a commented job file
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  ftctl init --list\n  ftctl init quickstart\n  ftctl init --out jobs/first.toml\n  ftctl init --from-command 'python run_clm.py --train_file a.txt ...'\n  ftctl init --from-azureml job.yml"
)]
pub struct Init {
    /// The template
    #[arg(default_value = TEMPLATES[0].name, add = completion::templates())]
    template: String,
    /// Show the templates
    #[arg(long, conflicts_with_all = ["template", "backend", "out", "force"])]
    list: bool,
    /// Where the job runs
    #[arg(long, value_name = "NAME")]
    backend: Option<String>,
    /// The file to write; its schema is put beside it
    #[arg(long, value_name = "FILE", default_value = "job.toml")]
    out: PathBuf,
    /// Overwrite files
    #[arg(long)]
    force: bool,
    /// Translate this command line of run_clm.py, run_clm_no_trainer.py, run_language_modeling.py or fairseq-train
    #[arg(long, value_name = "COMMAND", conflicts_with_all = ["template", "list"])]
    from_command: Option<String>,
    /// Translate this command job of Azure ML (YAML of its CLI v2), whose command is one that --from-command knows
    #[arg(long, value_name = "FILE", conflicts_with_all = ["template", "list", "from_command"])]
    from_azureml: Option<PathBuf>,
}

struct Template {
    name: &'static str,
    about: &'static str,
    text: &'static str,
}

pub(super) fn templates() -> impl Iterator<Item = &'static str> {
    TEMPLATES.iter().map(|template| template.name)
}

const TEMPLATES: &[Template] = &[
    Template {
        name: "quickstart",
        about: "a small GPT-2 learns Rust from the sources of ftctl's own dependencies, on this machine",
        text: include_str!("../../templates/jobs/quickstart.toml"),
    },
    Template {
        name: "quickstart-docker",
        about: "the quickstart in a container of the Docker engine that `docker` itself would use",
        text: include_str!("../../templates/jobs/quickstart-docker.toml"),
    },
    Template {
        name: "gpt2-wikitext",
        about: "the published GPT-2 (124M) fine-tuned on WikiText-103, as ONNX Runtime's example does",
        text: include_str!("../../templates/jobs/gpt2-wikitext.toml"),
    },
    Template {
        name: "gpt2-wikitext-azureml",
        about: "the same on a spot machine of Azure ML, with a process on each of its eight V100",
        text: include_str!("../../templates/jobs/gpt2-wikitext-azureml.toml"),
    },
    Template {
        name: "gpt2-medium-fp32",
        about: "the published GPT-2 Medium (355M) fine-tuned on WikiText-103 in float32, four sequences at once",
        text: include_str!("../../templates/jobs/gpt2-medium-fp32.toml"),
    },
    Template {
        name: "gpt2-medium-azureml",
        about: "the same on two spot nodes of Azure ML with eight V100 each",
        text: include_str!("../../templates/jobs/gpt2-medium-azureml.toml"),
    },
    Template {
        name: "gpt2-small-openwebtext",
        about: "fairseq's transformer_lm_gpt (124M) pre-trained on OpenWebText's token files, by eight processes",
        text: include_str!("../../templates/jobs/gpt2-small-openwebtext.toml"),
    },
    Template {
        name: "gpt2-xl-v100",
        about: "the published GPT-2 XL (1.5B) fine-tuned on your text in fp16, on a spot V100 of Compute Engine",
        text: include_str!("../../templates/jobs/gpt2-xl-v100.toml"),
    },
];

/// The file that the first line of a written job file names.
const SCHEMA_FILE: &str = "job.schema.json";

impl Init {
    pub fn run(self, app: &mut App<'_>) -> Result<(), Failure> {
        if self.list {
            return app.output.show(&List);
        }
        if let Some(backend) = &self.backend {
            registry::known(backend)?;
        }
        let (name, text) = if let Some(command) = &self.from_command {
            ("translated", translated(app, &app.working_directory, |read| foreign::translate(command, read))?)
        } else if let Some(file) = &self.from_azureml {
            ("translated", self.job_of_azureml(app, file)?)
        } else {
            let template =
                TEMPLATES.iter().find(|template| template.name == self.template).ok_or_else(|| unknown(&self.template))?;
            (template.name, template.text.to_owned())
        };
        let path = app.working_directory.join(&self.out);
        let schema_path = path.with_file_name(SCHEMA_FILE);
        let with_schema = self.force || !schema_path.exists();
        if app.dry_run {
            let files = [Some(&path), Some(&schema_path).filter(|_| with_schema)];
            return app.output.show(&Intent(files.into_iter().flatten().map(|path| format!("write {}", path.display())).collect()));
        }
        let text = adapt(&text, self.backend.as_deref())?;
        write(&path, &text, self.force)?;
        app.trust_own(&path, &text);
        if with_schema {
            write(&schema_path, &schema::text(), true)?;
        }
        let verb = if runs_as_it_is(&text) { "run" } else { "plan" };
        app.output.report().line(&format!("next: ftctl {verb} {}", self.out.display()));
        app.output.show(&Written { template: name, path: self.out })
    }
}

impl Init {
    /// The job file for a command job of Azure ML. Its paths begin at its own folder, those of a job file at that of the job file.
    fn job_of_azureml(&self, app: &App<'_>, file: &Path) -> Result<String, Failure> {
        let (path, out) = (app.working_directory.join(file), app.working_directory.join(&self.out));
        let exit = if path.exists() { Exit::Usage } else { Exit::NotFound };
        let text = bounded(&path).map_err(|problem| Failure::new(exit, problem).fix("give the file of a command job"))?;
        let folder = path.parent().unwrap_or(&path);
        let way = if out.parent() == Some(folder) { Path::new("") } else { folder };
        translated(app, folder, |read| azureml::translate(&text, &file.display().to_string(), way, read))
    }
}

/// The job file that something of another program's stands for. The user is told what changes nothing here; what ftctl cannot
/// follow is an error. Files that it names are looked for in `folder`.
fn translated(
    app: &App<'_>,
    folder: &Path,
    translate: impl FnOnce(&dyn Fn(&str) -> Result<String, String>) -> Result<foreign::Translated, foreign::Refused>,
) -> Result<String, Failure> {
    let refused = |refused: foreign::Refused| Failure::new(Exit::Usage, refused.what).fix(refused.fix);
    let translated = translate(&|file| text_of(app, folder, file)).map_err(refused)?;
    JobSpec::parse(&translated.text, "the translated job")?;
    translated.notes.iter().for_each(|note| app.output.report().line(&format!("note: {note}")));
    Ok(translated.text)
}

/// The text of a file in `folder`; of a model of the hub, its configuration.
fn text_of(app: &App<'_>, folder: &Path, file: &str) -> Result<String, String> {
    let Some(name) = HubName::of_model(file.strip_suffix("/config.json").unwrap_or(file)) else {
        return bounded(&folder.join(file));
    };
    let name = name?;
    let config = app.block_on(async { hub::config(&app.hub()?, &name).await });
    config.map_err(|failure| failure.fix.map_or(failure.message.clone(), |fix| format!("{}; {fix}", failure.message)))
}

/// The text of a file that another user may have named: no pipe, no device, and nothing that fills memory.
fn bounded(path: &Path) -> Result<String, String> {
    let cannot = |error: io::Error| format!("cannot read {}: {error}", path.display());
    if !fs::metadata(path).map_err(cannot)?.is_file() {
        return Err(format!("{} is not a file", path.display()));
    }
    let mut content = Vec::new();
    File::open(path).and_then(|file| file.take(azureml::MOST as u64 + 1).read_to_end(&mut content)).map_err(cannot)?;
    if content.len() > azureml::MOST {
        return Err(format!("{} has more than {} bytes", path.display(), azureml::MOST));
    }
    files::text(content).map_err(|reason| format!("{}: {reason}", path.display()))
}

fn unknown(name: &str) -> Failure {
    let known: Vec<&str> = templates().collect();
    Failure::new(Exit::Usage, format!("there is no template `{name}`")).fix(suggest(name, &known, "templates"))
}

/// Whether a job reads no file of the user's, and is for a backend without an account.
fn runs_as_it_is(text: &str) -> bool {
    let Ok(spec) = JobSpec::parse(text, "the new job") else { return false };
    let backend = spec.compute.backend.as_deref().and_then(Backend::named);
    spec.data.is_some_and(|data| data.source.is_some()) && backend.is_none_or(|backend| !backend.needs_account())
}

/// Points the schema line at the file beside the new one, and writes what the chosen backend needs in the place of what the
/// template has; a translated file names none.
fn adapt(text: &str, backend: Option<&str>) -> Result<String, Failure> {
    let schema = |line: &str| if line.starts_with("#:schema ") { format!("#:schema ./{SCHEMA_FILE}") } else { line.to_owned() };
    let text: String = text.lines().map(|line| schema(line) + "\n").collect();
    let Some(backend) = backend else { return Ok(text) };
    if text.contains(&format!("backend = {}\n", toml::Value::from(backend))) {
        return Ok(text);
    }
    let beginning = registry::beginning(backend)?;
    // What the other backend's machines needed is not for these.
    let replaced = ["[compute]", "[compute.", "[image]"];
    let mut kept = String::new();
    let mut place = None;
    let mut skips = false;
    for line in text.lines() {
        if line.starts_with('[') {
            skips = replaced.iter().any(|table| line.starts_with(table));
        }
        match (skips, place) {
            (true, None) => place = Some(kept.len()),
            (true, Some(_)) => {}
            (false, _) => kept.extend([line, "\n"]),
        }
    }
    match place {
        Some(place) => kept.insert_str(place, &format!("{beginning}\n")),
        None => kept.extend(["\n", beginning]),
    }
    Ok(kept)
}

fn write(path: &Path, text: &str, overwrite: bool) -> Result<(), Failure> {
    let cannot = |error: io::Error| match error.kind() {
        io::ErrorKind::AlreadyExists => {
            Failure::new(Exit::Usage, format!("{} exists already", path.display())).fix("choose another with --out, or add --force")
        }
        io::ErrorKind::PermissionDenied => Failure::new(Exit::Denied, format!("cannot write {}: {error}", path.display())),
        _ => Failure::new(Exit::Failure, format!("cannot write {}: {error}", path.display())),
    };
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory).map_err(cannot)?;
    }
    if overwrite {
        return replace(path, text.as_bytes()).map_err(cannot);
    }
    File::create_new(path).and_then(|mut file| file.write_all(text.as_bytes())).map_err(cannot)
}

struct Written {
    template: &'static str,
    path: PathBuf,
}

impl Show for Written {
    fn schema(&self) -> &'static str {
        "ftctl.init/1"
    }

    fn json(&self) -> Value {
        json!({ "template": self.template, "path": self.path.display().to_string() })
    }

    fn text(&self) -> String {
        self.path.display().to_string()
    }

    fn names(&self) -> Vec<String> {
        vec![self.text()]
    }
}

struct List;

impl Show for List {
    fn schema(&self) -> &'static str {
        "ftctl.templates/1"
    }

    fn json(&self) -> Value {
        json!({ "templates": self.lines() })
    }

    fn lines(&self) -> Vec<Value> {
        TEMPLATES.iter().map(|template| json!({ "name": template.name, "about": template.about })).collect()
    }

    fn text(&self) -> String {
        let mut table = Table::new(&["TEMPLATE", "WHAT IT DOES"]);
        for template in TEMPLATES {
            table.row([Cell::text(template.name), Cell::text(template.about)]);
        }
        table.render()
    }

    fn names(&self) -> Vec<String> {
        TEMPLATES.iter().map(|template| template.name.to_owned()).collect()
    }
}
