use std::{ffi::OsString, process::ExitCode};

use ftctl::cli;

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let mut output = cli::first_output(&arguments);
    let code = match cli::run(&arguments, &mut output) {
        Ok(code) => code,
        Err(failure) => output.fail(&failure).into(),
    };
    output.settle();
    code
}
