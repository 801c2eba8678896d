//! The command line: one small file per verb. A verb parses its arguments, calls one function and hands a value to `output`.

use std::{
    cell::Cell,
    env,
    ffi::OsString,
    future::Future,
    path::PathBuf,
    process::ExitCode,
    sync::{Arc, OnceLock},
};

use clap::{Args, FromArgMatches as _, Parser, Subcommand, ValueEnum, builder::FalseyValueParser};

use crate::{
    exit::{Exit, Failure},
    job::{
        document::DocumentError,
        image::ImageSpec,
        plan::PlanError,
        report::{Format, Verbosity},
        units::{Money, Span},
    },
    output::Output,
    settings::{self, Layer, OpenError, Settings, SettingsError, Surroundings},
    store::{Limits, Store},
    transit,
};

mod adopt;
mod agent;
mod bill;
mod build;
mod cancel;
mod completion;
mod config;
mod debts;
mod devcloud;
mod doctor;
mod down;
mod download;
mod drill;
mod eval;
mod exec;
mod explain;
mod failure;
mod follow;
mod footer;
mod generate;
mod init;
mod intent;
mod job_file;
mod line;
mod listeners;
mod logs;
mod machines;
mod man;
mod model;
mod plan;
mod prepare;
mod prices;
mod prune;
mod push;
mod replace;
mod report;
mod resume;
mod rm;
mod run;
mod schema;
mod show;
mod status;
mod submit;
mod trainer;
mod trust;
mod unparsed;
mod up;
mod upload;
mod version;
mod wait;
mod world;

pub use job_file::JobFile;

/// From one job file to a fine-tuned language model on a rented GPU, and nothing left running.
#[derive(Debug, Parser)]
#[command(name = "ftctl", version, propagate_version = false)]
#[command(max_term_width = 100, subcommand_value_name = "VERB", subcommand_help_heading = "Verbs")]
#[command(after_help = HELP)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    verb: Verb,
}

const HELP: &str = "Start with `ftctl init`, then `ftctl run job.toml`. `ftctl VERB --help` shows examples.

Exit codes: 0 done, 1 failure, 2 wrong usage, 3 not found, 4 denied, 5 no capacity, 6 preempted,
7 network, 8 may still be billing, 9 damaged bytes, 10 deadline, 11 refused by the budget,
12 conflict, 20 job failed, 21 job cancelled, 129 terminal gone (SIGHUP), 130 interrupted,
143 ended by SIGTERM";

/// The options of every verb.
#[allow(clippy::struct_excessive_bools)] // Switches of their own, not the states of one thing.
#[derive(Debug, Args)]
#[command(next_help_heading = "Global options")]
struct Global {
    /// How data is printed on stdout
    #[arg(short, long, global = true, value_name = "FORMAT", value_enum)]
    output: Option<FormatArg>,
    /// Only warnings and errors on stderr
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    quiet: bool,
    /// Also say what was decided and why
    #[arg(short, long, global = true)]
    verbose: bool,
    /// Log every request to a blob container or a cloud on stderr, without secrets
    #[arg(long, global = true, conflicts_with = "quiet")]
    debug_http: bool,
    /// Answer yes to every question
    #[arg(short, long, global = true)]
    yes: bool,
    /// Change nothing; show what would be done
    #[arg(long, global = true)]
    dry_run: bool,
    /// Container or directory that holds the jobs [default: the embedded store]
    #[arg(long, global = true, value_name = "URL|DIR")]
    store: Option<String>,
    /// Profile of the user's config.toml
    #[arg(long, global = true, value_name = "NAME")]
    profile: Option<String>,
    /// Trust ./ftctl.toml and the job file for this one command; see `ftctl trust`
    #[arg(long, global = true, env = "FTCTL_TRUST_PROJECT", hide_env_values = true, value_parser = FalseyValueParser::new())]
    trust_project: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum FormatArg {
    /// For people
    Table,
    /// Exactly one JSON value, on error too
    Json,
    /// One JSON value a line
    Jsonl,
    /// Names only, one a line
    Name,
}

impl From<FormatArg> for Format {
    fn from(format: FormatArg) -> Self {
        match format {
            FormatArg::Table => Format::Table,
            FormatArg::Json => Format::Json,
            FormatArg::Jsonl => Format::Jsonl,
            FormatArg::Name => Format::Name,
        }
    }
}

/// The verbs, in the order in which a user meets them.
#[derive(Debug, Subcommand)]
enum Verb {
    Init(init::Init),
    Doctor(doctor::Arguments),
    Plan(plan::Arguments),
    Prices(prices::Arguments),
    Run(run::Arguments),
    Up(up::Arguments),
    Submit(submit::Arguments),
    Status(status::Arguments),
    Logs(logs::Arguments),
    Wait(wait::Arguments),
    Explain(explain::Arguments),
    Exec(exec::Exec),
    Ssh(exec::Ssh),
    Report(report::Arguments),
    Show(show::Show),
    Compare(show::Compare),
    Cancel(cancel::Arguments),
    Resume(resume::Arguments),
    Download(download::Arguments),
    Down(down::Arguments),
    Prune(prune::Arguments),
    Rm(rm::Arguments),
    Bill(bill::Arguments),
    Prepare(prepare::Arguments),
    Upload(upload::Arguments),
    Build(build::Arguments),
    Push(push::Arguments),
    Generate(generate::Arguments),
    Eval(eval::Arguments),
    Drill(drill::Arguments),
    Devcloud(devcloud::Arguments),
    Config(config::Config),
    Trust(trust::Arguments),
    Schema(schema::Schema),
    Completion(completion::Completion),
    Man(man::Manual),
    Version(version::Version),
    #[command(hide = true)]
    Agent(agent::Agent),
}

/// Where a job runs: stands above the job file.
#[derive(Debug, Clone, Default, Args)]
pub struct Place {
    /// Where the job runs
    #[arg(long, value_name = "NAME", add = completion::backends())]
    pub backend: Option<String>,
}

/// The limits of a job. They stand above the job file's.
#[derive(Debug, Clone, Default, Args)]
pub struct Budget {
    /// Time to live of the job's machines, all attempts together: 90s, 45m, 2h, 1d12h
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true)]
    pub ttl: Option<Span>,
    /// Most the job may cost: 12USD
    #[arg(long, value_name = "MONEY", allow_hyphen_values = true)]
    pub max_cost: Option<Money>,
    /// Longest time to wait for machines, all attempts together; waiting costs nothing [default: the job's, else 24h]
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true)]
    pub max_wait: Option<Span>,
}

/// The context of a verb.
pub struct App<'o> {
    pub settings: Settings,
    pub output: &'o mut Output,
    /// `-y` was given.
    pub yes: bool,
    /// A verb that changes something shows what it would do instead.
    pub dry_run: bool,
    /// Relative paths on the command line begin here.
    pub working_directory: PathBuf,
    /// The user trusts this project, this time.
    trusts_project: bool,
    /// They were asked, and did not want to.
    declined: Cell<bool>,
    /// Limits of the connection to a remote store.
    pub limits: Limits,
    /// The exit code of a command that was run for the user.
    pub passed_on: u8,
    opened: OnceLock<Arc<dyn Store>>,
}

impl App<'_> {
    /// Runs a verb that waits for things.
    pub fn block_on<T>(&self, work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        block_on(work)
    }
}

/// Runs a verb that waits for things. Verbs that don't never pay for a runtime. Work that still runs on other threads then (an
/// interrupted preparation of text) ends with the process.
fn block_on<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime =
        runtime.map_err(|error| Failure::new(Exit::Failure, format!("cannot start the asynchronous runtime: {error}")))?;
    let done = runtime.block_on(work);
    runtime.shutdown_background();
    done
}

/// Stdout and stderr before anything is known but the raw arguments, so that even a usage error comes in the right format.
pub fn first_output(arguments: &[OsString]) -> Output {
    let from_environment = || env::var("FTCTL_OUTPUT").ok().and_then(|value| FormatArg::from_str(&value, false).ok());
    let format = format_of(arguments).or_else(from_environment).map_or(Format::Table, Format::from);
    Output::new(format, Verbosity::Normal)
}

/// Runs the program. `--help` and `--version` are answered before any file is touched. The exit code is 0, or that of a command
/// which the user had ftctl run.
pub fn run(arguments: &[OsString], output: &mut Output) -> Result<ExitCode, Failure> {
    if let Some(answer) = completion::answer(arguments) {
        return output.data(&answer?).map(|()| Exit::Done.into());
    }
    let cli = match command().try_get_matches_from(arguments).and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(answer) => return unparsed::answer(&answer, output).map(|()| Exit::Done.into()),
    };
    let working_directory = env::current_dir().map_err(|error| {
        Failure::new(Exit::Failure, format!("the working directory is gone: {error}")).fix("cd to one that exists")
    })?;
    let around = Surroundings {
        variable: &|name| env::var_os(name).filter(|value| !value.is_empty()),
        home: env::home_dir(),
        working_directory: working_directory.clone(),
    };
    let settings = Settings::load(flags(&cli), &around)?;
    *output = Output::new(settings.output.value, settings.log.value);
    if cli.global.debug_http {
        transit::tell_requests(output.report());
    }
    if !matches!(cli.verb, Verb::Agent(_)) {
        transit::tell_waits(output.report());
    }
    let mut app = App {
        settings,
        output,
        yes: cli.global.yes,
        dry_run: cli.global.dry_run,
        working_directory,
        trusts_project: cli.global.trust_project,
        declined: Cell::new(false),
        limits: Limits::default(),
        passed_on: 0,
        opened: OnceLock::new(),
    };
    if cli.verb.goes_by_project() {
        app.admit(&app.settings.project)?;
    }
    if let Some(failure) = app.store_to_be_made() {
        match cli.verb {
            // Machines that cost money are found and ended without a store.
            Verb::Bill(_) | Verb::Down(_) | Verb::Prune(_) => app.output.report().warn(&failure.message),
            _ if cli.verb.only_reads_jobs() => return Err(failure),
            _ => {}
        }
    }
    let looks = cli.verb.looks_at_jobs();
    let done = cli.verb.run(&mut app);
    if looks {
        app.settle_debts(&done);
    }
    done?;
    Ok(app.passed_on.into())
}

impl Verb {
    fn run(self, app: &mut App<'_>) -> Result<(), Failure> {
        match self {
            Verb::Init(verb) => verb.run(app),
            Verb::Doctor(verb) => verb.run(app),
            Verb::Plan(verb) => verb.run(app),
            Verb::Prices(verb) => verb.run(app),
            Verb::Run(verb) => verb.run(app),
            Verb::Up(verb) => verb.run(app),
            Verb::Submit(verb) => verb.run(app),
            Verb::Status(verb) => verb.run(app),
            Verb::Logs(verb) => verb.run(app),
            Verb::Wait(verb) => verb.run(app),
            Verb::Explain(verb) => verb.run(app),
            Verb::Exec(verb) => verb.run(app),
            Verb::Ssh(verb) => verb.run(app),
            Verb::Report(verb) => verb.run(app),
            Verb::Show(verb) => verb.run(app),
            Verb::Compare(verb) => verb.run(app),
            Verb::Cancel(verb) => verb.run(app),
            Verb::Resume(verb) => verb.run(app),
            Verb::Download(verb) => verb.run(app),
            Verb::Down(verb) => verb.run(app),
            Verb::Prune(verb) => verb.run(app),
            Verb::Rm(verb) => verb.run(app),
            Verb::Bill(verb) => verb.run(app),
            Verb::Prepare(verb) => verb.run(app),
            Verb::Upload(verb) => verb.run(app),
            Verb::Build(verb) => verb.run(app),
            Verb::Push(verb) => verb.run(app),
            Verb::Generate(verb) => verb.run(app),
            Verb::Eval(verb) => verb.run(app),
            Verb::Drill(verb) => verb.run(app),
            Verb::Devcloud(verb) => verb.run(app),
            Verb::Config(verb) => verb.run(app),
            Verb::Trust(verb) => verb.run(app),
            Verb::Completion(verb) => verb.run(app),
            Verb::Man(verb) => verb.run(app),
            Verb::Schema(arguments) => arguments.run(app),
            Verb::Version(_) => version::run(app),
            Verb::Agent(verb) => verb.run(app),
        }
    }
}

/// The whole command line, for parsing and for completion scripts.
fn command() -> clap::Command {
    <Cli as clap::CommandFactory>::command()
}

/// The command line as the strongest layer of settings.
fn flags(cli: &Cli) -> Layer {
    let (place, budget) = cli.verb.placement();
    let (place, budget) = (place.cloned().unwrap_or_default(), budget.cloned().unwrap_or_default());
    Layer {
        profile: cli.global.profile.clone(),
        backend: place.backend,
        image: cli.verb.image(),
        store: cli.global.store.clone(),
        ttl: budget.ttl,
        max_cost: budget.max_cost,
        max_wait: budget.max_wait,
        output: cli.global.output.map(Format::from),
        log: match (cli.global.quiet, cli.global.verbose) {
            (true, _) => Some(Verbosity::Quiet),
            (_, true) => Some(Verbosity::Verbose),
            _ => None,
        },
    }
}

impl Verb {
    /// The flags that say how an image is made.
    fn image(&self) -> ImageSpec {
        match self {
            Verb::Build(build::Arguments { which, .. }) | Verb::Push(push::Arguments { which, .. }) => (&which.image).into(),
            _ => ImageSpec::default(),
        }
    }

    /// Whether the verb is about jobs or the store that holds them: then it also says which of them may still cost money.
    fn looks_at_jobs(&self) -> bool {
        use Verb::{
            Bill, Cancel, Compare, Doctor, Down, Download, Drill, Exec, Explain, Logs, Plan, Prune, Report, Resume, Rm, Run, Show,
            Ssh, Status, Submit, Up, Upload, Wait,
        };
        matches!(
            self,
            Bill(_)
                | Cancel(_)
                | Compare(_)
                | Doctor(_)
                | Down(_)
                | Download(_)
                | Drill(_)
                | Exec(_)
                | Explain(_)
                | Logs(_)
                | Plan(_)
                | Prune(_)
                | Report(_)
                | Resume(_)
                | Rm(_)
                | Run(_)
                | Show(_)
                | Ssh(_)
                | Status(_)
                | Submit(_)
                | Up(_)
                | Upload(_)
                | Wait(_)
        )
    }

    /// Whether the verb opens the store or the backend, or builds: not on the word of a project that is not trusted.
    fn goes_by_project(&self) -> bool {
        use Verb::{Agent, Completion, Config, Devcloud, Eval, Generate, Init, Man, Prepare, Prices, Schema, Trust, Version};
        let never = matches!(
            self,
            Agent(_)
                | Completion(_)
                | Config(_)
                | Devcloud(_)
                | Eval(_)
                | Generate(_)
                | Init(_)
                | Man(_)
                | Prepare(_)
                | Prices(_)
                | Schema(_)
                | Trust(_)
                | Version(_)
        );
        !never
    }

    /// Whether the verb is of no use without a store that was written to.
    fn only_reads_jobs(&self) -> bool {
        use Verb::{Cancel, Compare, Download, Drill, Exec, Explain, Logs, Report, Resume, Rm, Show, Ssh, Status, Wait};
        matches!(
            self,
            Cancel(_)
                | Compare(_)
                | Download(_)
                | Drill(_)
                | Exec(_)
                | Explain(_)
                | Logs(_)
                | Report(_)
                | Resume(_)
                | Rm(_)
                | Show(_)
                | Ssh(_)
                | Status(_)
                | Wait(_)
        )
    }

    /// The flags that are settings.
    fn placement(&self) -> (Option<&Place>, Option<&Budget>) {
        match self {
            Verb::Plan(plan::Arguments { file, .. })
            | Verb::Run(run::Arguments { file, .. })
            | Verb::Up(up::Arguments { file, .. })
            | Verb::Submit(submit::Arguments { file, .. }) => (Some(&file.place), Some(&file.budget)),
            Verb::Doctor(doctor::Arguments { place, .. })
            | Verb::Down(down::Arguments { place, .. })
            | Verb::Prune(prune::Arguments { place, .. })
            | Verb::Bill(bill::Arguments { place, .. })
            | Verb::Push(push::Arguments { place, .. }) => (Some(place), None),
            _ => (None, None),
        }
    }
}

/// `-o json`, `-ojson`, `-o=json`, `--output json`, `--output=json`; before clap has accepted anything.
fn format_of(arguments: &[OsString]) -> Option<FormatArg> {
    let words: Vec<&str> = arguments.iter().skip(1).filter_map(|word| word.to_str()).take_while(|word| *word != "--").collect();
    let value = words.iter().enumerate().find_map(|(i, word)| match *word {
        "-o" | "--output" => words.get(i + 1).copied(),
        word => word.strip_prefix("--output=").or_else(|| word.strip_prefix("-o=")).or_else(|| word.strip_prefix("-o")),
    })?;
    FormatArg::from_str(value, false).ok()
}

impl From<DocumentError> for Failure {
    fn from(error: DocumentError) -> Self {
        let failure = Failure::new(Exit::Usage, error.to_string());
        Failure { fix: error.hint, ..failure }
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Invalid(error) => error.into(),
            OpenError::Missing(ref path) => {
                let fix = match settings::meant(path) {
                    Some(near) => format!("did you mean {}?", near.display()),
                    None => format!("`ftctl init --out {}` writes one to start from", path.display()),
                };
                Failure::new(Exit::NotFound, error.to_string()).fix(fix)
            }
            _ => Failure::new(Exit::Usage, error.to_string()),
        }
    }
}

impl From<SettingsError> for Failure {
    fn from(error: SettingsError) -> Self {
        let message = error.to_string();
        match error {
            SettingsError::File(error) => error.into(),
            SettingsError::Variable { hint, .. } => Failure { fix: hint, ..Failure::new(Exit::Usage, message) },
            SettingsError::NoProfile { hint, .. } => Failure::new(Exit::Usage, message).fix(hint),
            SettingsError::NoHome { variable, .. } => {
                Failure::new(Exit::Usage, message).fix(format!("set {variable} to an absolute path, or name a store with --store"))
            }
        }
    }
}

impl From<PlanError> for Failure {
    fn from(error: PlanError) -> Self {
        let exit = match error {
            PlanError::OverBudget { .. } => Exit::Refused,
            PlanError::NotUnicode(_)
            | PlanError::NoData
            | PlanError::TooFewGpus { .. }
            | PlanError::TooFewLeaves { .. }
            | PlanError::OneMachine { .. }
            | PlanError::OneToShrink
            | PlanError::NoTime => Exit::Usage,
        };
        let fix = (error == PlanError::NoTime).then(|| "`ftctl config show --origin` says where it was set".to_owned());
        Failure { fix, ..Failure::new(exit, error.to_string()) }
    }
}
