//! A terminal, as `script` of util-linux makes one.

use std::process::{Command, Output, Stdio};

/// The variables of a command besides its own.
#[derive(Clone, Copy, PartialEq, Eq)]
#[allow(dead_code, reason = "each suite has one of them")]
pub enum Environment {
    Own,
    Inherited,
}

/// Runs a command there, and answers all that the terminal was told, as its standard output.
pub fn run_on_one(command: &Command, environment: Environment) -> Output {
    let words: Vec<String> =
        [command.get_program()].into_iter().chain(command.get_args()).map(|word| word.to_str().expect("text").to_owned()).collect();
    let mut terminal = Command::new("script");
    terminal.args(["--quiet", "--return", "--command", &words.join(" "), "/dev/null"]);
    terminal.current_dir(command.get_current_dir().expect("a directory")).stdin(Stdio::null());
    if environment == Environment::Own {
        terminal.env_clear();
    }
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => terminal.env(name, value),
            None => terminal.env_remove(name),
        };
    }
    // Where `CI` is set, as on a runner, ftctl takes no terminal for one.
    terminal.env("TERM", "xterm").env_remove("CI");
    terminal.output().expect("`script` of util-linux runs")
}

/// [`run_on_one`], however the command ends.
#[allow(dead_code, reason = "not every suite has it")]
pub fn said_on_one(command: &Command, environment: Environment) -> String {
    String::from_utf8(run_on_one(command, environment).stdout).expect("text")
}
