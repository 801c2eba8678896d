use std::any::Any;
use std::process::ExitCode;

use clap::Parser;
use ft_trainer::cli::{self, Cli};
use ft_trainer::error::{OUT_OF_MEMORY, tells_of_no_memory};
use ft_trainer::process;

fn main() -> ExitCode {
    process::keep_memory();
    std::panic::set_hook(Box::new(|panic| {
        eprintln!("error: {}", cli::sentence(panic.payload_as_str().unwrap_or("unknown cause")));
    }));
    let command = Cli::parse();
    process::settle_environment();
    match std::panic::catch_unwind(|| cli::run(&command)) {
        Ok(Ok(code)) => ExitCode::from(code),
        Ok(Err(failure)) => {
            eprintln!("error: {failure}");
            ExitCode::from(failure.code())
        }
        Err(panic) if panic_message(&*panic).is_some_and(tells_of_no_memory) => ExitCode::from(OUT_OF_MEMORY),
        Err(_) => ExitCode::FAILURE,
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> Option<&str> {
    panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied())
}
