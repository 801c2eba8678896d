//! Which variables of an environment go on to a job's agent and to its trainer: an allow-list, as data. `docs/environment.md` is
//! the same for people.

use std::{collections::BTreeMap, ffi::OsStr};

/// A program that is started for a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    Agent,
    Trainer,
}

use Program::{Agent, Trainer};

/// The variables of each program. A `*` at the end stands for the rest of a name.
const PASSED: &[(&[Program], &[&str])] = &[
    (&[Agent, Trainer], &["PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_*", "TZ", "TMPDIR", "XDG_*"]),
    (&[Agent, Trainer], &["LD_LIBRARY_PATH", "LD_PRELOAD", "LIBTORCH", "RUST_LOG", "RUST_BACKTRACE"]),
    (&[Agent, Trainer], &["CUDA_*", "CUBLAS_*", "CUDNN_*", "NVIDIA_*", "NCCL_*", "TORCH_*", "PYTORCH_*"]),
    (&[Agent, Trainer], &["OMP_*", "GOMP_*", "KMP_*", "MKL_*", "MALLOC_*"]),
    // The way to the store. A proxy's address may have a password in it, and the trainer makes no requests.
    (&[Agent], &["HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "no_proxy", "all_proxy"]),
    (&[Agent], &["SSL_CERT_FILE", "SSL_CERT_DIR"]),
    (&[Agent], &["MLFLOW_TRACKING_TOKEN"]),
    (&[Trainer], &[MARK]),
];

/// By which the processes of a machine are found on the backend `local`: it names the machine's directory.
pub const MARK: &str = "FTCTL_MACHINE";

/// Whether `program` has the variable `name` of the environment in which it is started.
pub fn passes(program: Program, name: &OsStr) -> bool {
    let Some(name) = name.to_str() else { return false };
    PASSED.iter().any(|(programs, names)| programs.contains(&program) && is_among(name, names))
}

/// Variables that a job file cannot set: those that the loader and the shell obey, those that the agent sets itself, and sign-ins,
/// which have no place in a job's record.
const RESERVED: &[&str] = &[
    "PATH",
    "HOME",
    "LD_*",
    "FTCTL_*",
    "AZURE_*",
    "ACTIONS_*",
    "GOOGLE_*",
    "CLOUDSDK_*",
    "AWS_*",
    "IDENTITY_*",
    "MLFLOW_TRACKING_*",
    "MSI_*",
    "OBO_*",
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "TORCHELASTIC_*",
    "MASTER_ADDR",
    "MASTER_PORT",
];

/// Variables that a job file sets, and bytes of each value, at most.
const MOST: usize = 64;
const LONGEST: usize = 4_096;

/// Why these variables cannot be set for a trainer; `None` where they can.
pub fn refusal(variables: &BTreeMap<String, String>) -> Option<String> {
    let many = || format!("a job sets at most {MOST} variables, not {}", variables.len());
    let wrong = || variables.iter().find_map(|(name, value)| wrong(name, value));
    if variables.len() > MOST { Some(many()) } else { wrong() }
}

fn wrong(name: &str, value: &str) -> Option<String> {
    if !is_name(name) {
        let shown: String = name.escape_debug().take(40).collect();
        return Some(format!(
            "`{shown}` is not the name of a variable: names have letters, digits and underscores, and do not begin with a digit"
        ));
    }
    if is_among(name, RESERVED) {
        return Some(format!(
            "{name} cannot be set by a job: the trainer has it from ftctl or from its machine, or it is a sign-in, which has no place in a job"
        ));
    }
    if value.len() > LONGEST {
        return Some(format!("the value of {name} has {} bytes, and may have {LONGEST}", value.len()));
    }
    value.contains(char::is_control).then(|| format!("the value of {name} has a line break or another control character in it"))
}

/// Whether a variable can be called so.
pub fn is_name(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    !name.is_empty() && name.bytes().all(fits) && !name.starts_with(|first: char| first.is_ascii_digit())
}

fn is_among(name: &str, known: &[&str]) -> bool {
    known.iter().any(|known| known.strip_suffix('*').map_or(name == *known, |start| name.starts_with(start)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trainer_has_no_secret_and_an_agent_the_way_to_the_store() {
        let secrets = [
            "AZURE_STORAGE_KEY",
            "AWS_SECRET_ACCESS_KEY",
            "GITHUB_TOKEN",
            "SECRET_IN_SHELL",
            "MSI_SECRET",
            "OBO_ENDPOINT",
            "FTCTL_STORE",
            "PATHS",
            "XPATH",
            "path",
        ];
        for name in secrets {
            assert!(!passes(Agent, OsStr::new(name)) && !passes(Trainer, OsStr::new(name)), "{name}");
        }
        for name in
            ["PATH", "HOME", "LC_ALL", "XDG_CACHE_HOME", "NCCL_DEBUG", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "LD_LIBRARY_PATH"]
        {
            assert!(passes(Agent, OsStr::new(name)) && passes(Trainer, OsStr::new(name)), "{name}");
        }
        for (name, agent, trainer) in [("https_proxy", true, false), ("SSL_CERT_FILE", true, false), (MARK, false, true)] {
            assert_eq!((passes(Agent, OsStr::new(name)), passes(Trainer, OsStr::new(name))), (agent, trainer), "{name}");
        }
    }

    #[test]
    fn the_page_for_people_names_everything() {
        let page = include_str!("../../docs/environment.md");
        let names = PASSED.iter().flat_map(|(_, names)| *names).chain(RESERVED);
        let missing: Vec<_> = names.filter(|name| !page.contains(&format!("`{name}`"))).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }

    #[test]
    fn a_job_sets_names_that_are_names_to_values_of_one_line() {
        let refused = |name: &str, value: &str| refusal(&BTreeMap::from([(name.to_owned(), value.to_owned())]));
        for (name, value) in [("NCCL_DEBUG", "INFO"), ("_x9", ""), ("OMP_NUM_THREADS", "8")] {
            assert_eq!(refused(name, value), None, "{name}");
        }
        for (name, value, part) in [
            ("", "x", "not the name of a variable"),
            ("9A", "x", "do not begin with a digit"),
            ("A=B", "x", "`A=B` is not the name"),
            ("A\u{1b}[2J", "x", "`A\\u{1b}[2J` is not the name"),
            ("LD_PRELOAD", "/tmp/x.so", "cannot be set by a job"),
            ("AZURE_STORAGE_KEY", "x", "it is a sign-in"),
            ("FTCTL_MACHINE", "x", "cannot be set by a job"),
            ("RANK", "1", "cannot be set by a job"),
            ("A", "one\ntwo", "a line break"),
            ("A", "\0", "control character"),
            ("A", &"x".repeat(5_000), "has 5000 bytes"),
        ] {
            let message = refused(name, value).expect(name);
            assert!(message.contains(part), "{message}");
        }
        let many: BTreeMap<String, String> = (0..65).map(|number| (format!("V{number}"), String::new())).collect();
        assert_eq!(refusal(&many).as_deref(), Some("a job sets at most 64 variables, not 65"));
    }
}
