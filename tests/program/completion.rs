//! Completion by the shells themselves: what is on the line after a press of the tabulator.

use std::{
    io::{Read as _, Write as _},
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{Receiver, channel},
    thread,
    time::{Duration, Instant},
};

use crate::common::{Said, Sandbox};

/// A shell at a terminal, as a user has it before any settings of their own.
struct Shell {
    child: Child,
    keys: ChildStdin,
    shown: Receiver<Vec<u8>>,
    seen: String,
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Shell {
    /// `None`, with the reason printed, where it is not installed.
    fn start(sandbox: &Sandbox, name: &str, line: &str, begin: &str) -> Option<Self> {
        if !is_installed(name) {
            return None;
        }
        let mut terminal = Command::new("script");
        terminal.args(["--quiet", "--return", "--command", line, "/dev/null"]).envs(environment(sandbox));
        terminal.current_dir(sandbox.path("")).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = terminal.spawn().expect("`script` of util-linux runs");
        let (keys, mut screen) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        let (sender, shown) = channel();
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(length @ 1..) = screen.read(&mut buffer) {
                if sender.send(buffer[..length].to_vec()).is_err() {
                    break;
                }
            }
        });
        let mut shell = Self { child, keys, shown, seen: String::new() };
        shell.words(begin);
        Some(shell)
    }

    /// The words of a line, of which `\t` are presses of the tabulator.
    fn words(&mut self, line: &str) -> String {
        self.seen.clear();
        // The line is not run: its words are printed. What is typed has no `<END>` in it.
        let printed = if line.starts_with("ftctl") {
            format!("{line}\x01printf '<%s>' \x05 E''ND")
        } else {
            format!("{line}; printf '<%s>' E''ND")
        };
        self.keys.write_all(format!("{printed}\n").as_bytes()).expect("typed");
        let start = Instant::now();
        while !self.seen.contains("<END>") {
            let left = Duration::from_secs(60).checked_sub(start.elapsed()).unwrap_or_else(|| panic!("{line:?}: {}", self.seen));
            let more = self.shown.recv_timeout(left).unwrap_or_else(|_| panic!("{line:?}: {}", self.seen));
            self.seen += &String::from_utf8_lossy(&more);
        }
        let from = self.seen.rfind("<ftctl>").unwrap_or(0);
        self.seen[from..].split("<END>").next().unwrap_or_default().to_owned()
    }
}

fn is_installed(shell: &str) -> bool {
    let found = which::which(shell).is_ok();
    if !found {
        println!("skipped: {shell} is not installed");
    }
    found
}

fn environment(sandbox: &Sandbox) -> [(&'static str, String); 4] {
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_ftctl")).parent().expect("a folder").display().to_string();
    let path = format!("{program}:{}", std::env::var("PATH").unwrap_or_default());
    [("HOME", sandbox.home().display().to_string()), ("PATH", path), ("TERM", "dumb".to_owned()), ("FTCTL_COMPLETE", String::new())]
}

/// Files with names that a shell has to quote, of which one would be a command.
fn place() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.write("job.toml", "");
    sandbox.write("my job.toml", "");
    sandbox.write("x$(touch pwned).toml", "");
    std::fs::create_dir(sandbox.path("data dir")).expect("a directory");
    std::fs::write(sandbox.home().join("at home.toml"), "").expect("written");
    sandbox
}

/// The keys that are typed, and the words that they become.
fn cases(sandbox: &Sandbox) -> Vec<(&'static str, String)> {
    let home = sandbox.home();
    [
        // A word that is whole ends with a space, and a key with its value.
        ("ftctl rep\tx", "<report><x>".to_owned()),
        ("ftctl run job.toml --set train.determin\ttrue", "<run><job.toml><--set><train.deterministic=true>".to_owned()),
        ("ftctl run job.toml --set train.deterministic=t\tx", "<run><job.toml><--set><train.deterministic=true><x>".to_owned()),
        ("ftctl run job.toml --set=train.schedule=cos\tx", "<run><job.toml><--set=train.schedule=cosine><x>".to_owned()),
        ("ftctl run --backend=gc\tx", "<run><--backend=gce><x>".to_owned()),
        ("ftctl plan my\tx", "<plan><my job.toml><x>".to_owned()),
        ("ftctl plan my\\ \tx", "<plan><my job.toml><x>".to_owned()),
        ("ftctl plan x\tx", "<plan><x$(touch pwned).toml><x>".to_owned()),
        ("ftctl plan ~/at\tx", format!("<plan><{}/at home.toml><x>", home.display())),
        ("ftctl plan --set dataset=da\tx", "<plan><--set><dataset=data dir/x>".to_owned()),
    ]
    .into()
}

fn completes(name: &str, line: &str, begin: &str) {
    let sandbox = place();
    let Some(mut shell) = Shell::start(&sandbox, name, line, begin) else { return };
    for (typed, words) in cases(&sandbox) {
        assert_eq!(shell.words(typed), format!("<ftctl>{words}"), "{name}: {typed:?}: {}", shell.seen);
    }
    assert!(!sandbox.path("pwned").exists(), "a name is no command");
}

#[test]
fn bash_completes_words_that_it_takes_apart() {
    completes("bash", "bash --norc --noprofile -i", "source <(ftctl completion bash)");
}

#[test]
fn zsh_ends_a_key_without_a_space() {
    let begin = "unset zle_bracketed_paste; autoload -Uz compinit; compinit -u; source <(ftctl completion zsh)";
    completes("zsh", "zsh -f -i", begin);
}

/// It has a command that completes; whether a space follows is up to itself.
#[test]
fn fish_completes_the_same() {
    if !is_installed("fish") {
        return;
    }
    let sandbox = place();
    let completed = |typed: &str| -> Said {
        let mut fish = Command::new("fish");
        fish.args(["--no-config", "-c", "ftctl completion fish | source; complete -C $argv[1]", "--", typed]);
        Sandbox::said(fish.envs(environment(&sandbox)).current_dir(sandbox.path("")))
    };
    for (typed, whole) in [
        ("ftctl run job.toml --set train.determin", "train.deterministic="),
        ("ftctl run job.toml --set train.deterministic=t", "train.deterministic=true"),
        ("ftctl plan my", "my job.toml"),
        ("ftctl plan my\\ j", "my job.toml"),
        ("ftctl plan \"my", "my job.toml"),
        ("ftctl plan ~/at\\ ", "~/at home.toml"),
        ("ftctl plan --set dataset=da", "dataset=data dir/"),
    ] {
        let said = completed(typed);
        assert_eq!(said.stdout.trim_end(), whole, "{typed}: {}", said.stderr);
    }
}
