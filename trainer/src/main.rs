use std::process::ExitCode;

use clap::Parser;
use ft_trainer::cli::{self, Cli};
use ft_trainer::process;

fn main() -> ExitCode {
    process::keep_memory();
    std::panic::set_hook(Box::new(|panic| {
        eprintln!("error: {}", cli::first_line(panic.payload_as_str().unwrap_or("unknown cause")));
    }));
    let command = Cli::parse();
    process::wait_asleep();
    match std::panic::catch_unwind(|| cli::run(&command)) {
        Ok(Ok(code)) => ExitCode::from(code),
        Ok(Err(failure)) => {
            eprintln!("error: {failure}");
            ExitCode::from(failure.code())
        }
        Err(_) => ExitCode::FAILURE,
    }
}
