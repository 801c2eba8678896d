//! A command on a job's machine, and the streams that join it to a terminal here.

use std::{pin::Pin, process::Command};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::BoxStream;
use tokio::io::AsyncWrite;

use super::Result;

pub enum Session {
    /// A program on this machine that is the session: it has its caller's standard streams, and ends with its exit code.
    Program(Command),
    Remote(Remote),
}

/// A command that runs already, elsewhere.
pub struct Remote {
    /// Closing it is the end of the command's standard input.
    pub input: Pin<Box<dyn AsyncWrite + Send>>,
    /// Ends with the command.
    pub output: BoxStream<'static, Result<Piece>>,
    pub control: Box<dyn Control>,
}

/// A piece of a command's output.
pub enum Piece {
    Output(Bytes),
    Errors(Bytes),
}

#[async_trait]
pub trait Control: Send + Sync {
    /// Resizes the terminal, when the command has one.
    async fn resize(&self, columns: u16, rows: u16) -> Result<()>;

    /// The exit code of the command, which has ended.
    async fn exit_code(&self) -> Result<u8>;
}
