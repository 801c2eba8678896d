//! A command in a container that runs.

use async_trait::async_trait;
use bollard::{
    Docker,
    container::LogOutput,
    exec::{ResizeExecOptions, StartExecOptions, StartExecResults},
    models::ExecConfig,
};
use futures_util::StreamExt as _;

use super::error::failed;
use crate::provider::{
    Class, ProviderError, Result, Session,
    session::{Control, Piece, Remote},
};

pub async fn open(docker: &Docker, name: &str, command: &[String], terminal: bool) -> Result<Session> {
    let act = format!("run a command in the container {name}");
    let config = ExecConfig {
        attach_stdin: Some(true),
        attach_stdout: Some(true),
        attach_stderr: Some(true),
        tty: Some(terminal),
        cmd: Some(command.to_vec()),
        ..ExecConfig::default()
    };
    let made = docker.create_exec(name, config).await.map_err(|error| {
        let failed = failed(&act, &error);
        match failed.class {
            Class::Conflict | Class::Invalid => failed.fix("`ftctl status` shows which jobs run"),
            _ => failed,
        }
    })?;
    let options = StartExecOptions { tty: terminal, ..StartExecOptions::default() };
    match docker.start_exec(&made.id, Some(options)).await.map_err(|error| failed(&act, &error))? {
        StartExecResults::Attached { output, input } => {
            let output = output.map(move |piece| piece.map(sort).map_err(|error| failed(&act, &error))).boxed();
            let control = Box::new(Exec { docker: docker.clone(), id: made.id });
            Ok(Session::Remote(Remote { input, output, control }))
        }
        StartExecResults::Detached => {
            Err(ProviderError::new(Class::Internal, format!("cannot {act}: the engine does not attach to it")))
        }
    }
}

fn sort(piece: LogOutput) -> Piece {
    match piece {
        LogOutput::StdErr { message } => Piece::Errors(message),
        LogOutput::StdOut { message } | LogOutput::StdIn { message } | LogOutput::Console { message } => Piece::Output(message),
    }
}

struct Exec {
    docker: Docker,
    id: String,
}

#[async_trait]
impl Control for Exec {
    async fn resize(&self, columns: u16, rows: u16) -> Result<()> {
        let size = ResizeExecOptions { height: rows, width: columns };
        self.docker.resize_exec(&self.id, size).await.map_err(|error| failed("tell the terminal's size", &error))
    }

    async fn exit_code(&self) -> Result<u8> {
        const ASK: &str = "ask for the command's exit code";
        let found = self.docker.inspect_exec(&self.id).await.map_err(|error| failed(ASK, &error))?;
        let code = found.exit_code.and_then(|code| u8::try_from(code).ok());
        code.ok_or_else(|| ProviderError::new(Class::Network, format!("cannot {ASK}: the engine does not know it")))
    }
}
