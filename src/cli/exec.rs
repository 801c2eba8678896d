//! `ftctl exec` and `ftctl ssh`: a command, or a shell, on the machine where a job runs.

use std::{
    io::{self, IsTerminal as _, Read as _},
    os::fd::AsFd as _,
    process::Command,
};

use clap::Args;
use futures_util::StreamExt as _;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::{
    io::AsyncWriteExt as _,
    signal::unix::{SignalKind, signal},
    sync::mpsc,
};

use super::{App, completion};
use crate::{
    exit::{Exit, Failure},
    lifecycle::session::{self, Control, Piece, Remote, Session},
    output::Output,
};

/// Run a command on the machine of a running job, beside its trainer
///
/// Standard streams are passed on, and so is the command's exit code. The command gets a terminal when ftctl has one. On Compute
/// Engine it runs on the machine itself, beside the trainer's container, through `gcloud compute ssh`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ftctl exec quickstart -- nvidia-smi\n  ftctl exec quickstart -- ls -l work\n\n\
    The exit code is the command's own, or ftctl's when the command could not be run.")]
pub struct Exec {
    /// Id or name of the job
    #[arg(add = completion::jobs())]
    job: String,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// Open a shell on the machine of a running job
///
/// On Compute Engine it runs `gcloud compute ssh` with OS Login. There, `sudo docker exec -it ftctl bash` opens a shell in the
/// trainer's container.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  ftctl ssh quickstart")]
pub struct Ssh {
    /// Id or name of the job
    #[arg(add = completion::jobs())]
    job: String,
}

impl Exec {
    pub fn run(self, app: &mut App<'_>) -> Result<(), Failure> {
        run(app, &self.job, &self.command)
    }
}

impl Ssh {
    pub fn run(self, app: &mut App<'_>) -> Result<(), Failure> {
        let shell = ["sh", "-c", "command -v bash >/dev/null && exec bash; exec sh"];
        run(app, &self.job, &shell.map(str::to_owned))
    }
}

fn run(app: &mut App<'_>, job: &str, command: &[String]) -> Result<(), Failure> {
    let (world, record) = app.block_on(app.job(job))?;
    if app.dry_run {
        let act = format!("run {} on {}", command.join(" "), session::intended(&world, &record)?.machine_name());
        return app.output.show(&super::intent::Intent(vec![act]));
    }
    let terminal = io::stdin().is_terminal() && app.output.is_terminal();
    let output = &mut *app.output;
    app.passed_on = super::block_on(async {
        match session::open(&world, &record, command, terminal).await? {
            Session::Program(program) => wait_for(program).await,
            Session::Remote(remote) => join(remote, terminal, output).await,
        }
    })?;
    Ok(())
}

async fn wait_for(program: Command) -> Result<u8, Failure> {
    let name = program.get_program().to_string_lossy().into_owned();
    let status = tokio::process::Command::from(program).status().await;
    let status = status.map_err(|error| Failure::new(Exit::Failure, format!("cannot run {name}: {error}")))?;
    Ok(shell_code(status))
}

/// The exit code by the rule of shells: a signal is 128 and its number.
fn shell_code(status: std::process::ExitStatus) -> u8 {
    use std::os::unix::process::ExitStatusExt as _;
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX)
}

/// Passes the streams on until the command ends.
async fn join(remote: Remote, terminal: bool, output: &mut Output) -> Result<u8, Failure> {
    let Remote { mut input, output: mut pieces, control } = remote;
    let _raw = if terminal { Some(Raw::enter()?) } else { None };
    let mut typed = typed();
    let typing = tokio::spawn(async move {
        while let Some(bytes) = typed.recv().await {
            if input.write_all(&bytes).await.is_err() || input.flush().await.is_err() {
                // A command that has ended, or closed its input, reads no more.
                return;
            }
        }
        let _ = input.shutdown().await;
    });
    let passing = async {
        while let Some(piece) = pieces.next().await {
            match piece? {
                Piece::Output(bytes) => output.raw(&bytes)?,
                Piece::Errors(bytes) => output.errors(&bytes),
            }
        }
        Ok(())
    };
    let passed: Result<(), Failure> = tokio::select! {
        passed = passing => passed,
        failed = follow_size(control.as_ref()), if terminal => failed,
    };
    typing.abort();
    passed?;
    Ok(control.exit_code().await?)
}

/// Standard input, read by a thread that a keyboard may hold for ever, so it is never waited for.
fn typed() -> mpsc::Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel(16);
    std::thread::spawn(move || {
        let mut buffer = [0; 16 << 10];
        while let Ok(length @ 1..) = io::stdin().read(&mut buffer) {
            if sender.blocking_send(buffer[..length].to_vec()).is_err() {
                break;
            }
        }
    });
    receiver
}

/// The far terminal is as large as this one, always.
async fn follow_size(control: &dyn Control) -> Result<(), Failure> {
    let cannot = |error: io::Error| Failure::new(Exit::Failure, format!("cannot look at the terminal: {error}"));
    let mut changes = signal(SignalKind::window_change()).map_err(cannot)?;
    loop {
        let size = tcgetwinsize(io::stdin().as_fd()).map_err(|error| cannot(error.into()))?;
        // The command may have ended meanwhile, which its output tells.
        let _ = control.resize(size.ws_col, size.ws_row).await;
        if changes.recv().await.is_none() {
            std::future::pending::<()>().await;
        }
    }
}

/// The terminal hands every key on, until this is dropped.
struct Raw(Termios);

impl Raw {
    fn enter() -> Result<Self, Failure> {
        let cannot = |error: rustix::io::Errno| Failure::new(Exit::Failure, format!("cannot set the terminal up: {error}"));
        let input = io::stdin();
        let before = tcgetattr(input.as_fd()).map_err(cannot)?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(input.as_fd(), OptionalActions::Now, &raw).map_err(cannot)?;
        Ok(Self(before))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing.
        let _ = tcsetattr(io::stdin().as_fd(), OptionalActions::Now, &self.0);
    }
}
