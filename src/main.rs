use std::{ffi::OsString, process::ExitCode};

use ftctl::{cli, exit::Exit};

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let mut output = cli::first_output(&arguments);
    match cli::run(&arguments, &mut output) {
        Ok(()) => Exit::Done.into(),
        Err(failure) => output.fail(&failure).into(),
    }
}
