//! Programs that start another program once, such as `sudo -E`, `nice -n 4` and `docker run`. Their flags look like those of a
//! launcher and say nothing about processes, so each is left out with its flags, wherever it stands.

use super::{Job, launchers, words};
use Flags::{Alone, Valued};

struct Wrapper {
    /// With spaces between them, as below.
    names: &'static str,
    /// How many words without dashes stand between its name and the program: in `docker run IMAGE` two.
    operands: usize,
    flags: Flags,
}

/// Names of flags, without dashes, with spaces between them. One letter is a short flag, which may be joined with others.
enum Flags {
    /// The word after each of these is its value; all others stand alone.
    Valued(&'static str),
    /// These stand alone; the word after each other one is its value.
    Alone(&'static str),
}

const SUDO: &str = "u user g group h host p prompt C close-from r role t type T command-timeout U other-user D chdir R chroot a \
     auth-type c login-class G supp-group";
const NUMACTL: &str = "i interleave w weighted-interleave p preferred P preferred-many m membind N cpunodebind C physcpubind S \
     shm f file o offset L length M shmmode I shmid";
const CONDA: &str = "n name p prefix cwd a attach e env r root-prefix rc-file";
const UV: &str = "extra no-extra group no-group only-group env-file w with with-editable with-requirements from i index \
     index-url default-index extra-index-url f find-links P upgrade-package p python package project directory config-file C \
     config-setting config-settings-package link-mode resolution prerelease fork-strategy exclude-newer exclude-newer-package \
     refresh-package reinstall-package no-build-package no-binary-package no-build-isolation-package no-sources-package \
     keyring-provider index-strategy cache-dir color python-platform python-preference allow-insecure-host spec pip-args c \
     constraints b build-constraints overrides";
const PROJECTS: &str = "C directory P project p e env environment manifest-path python pypi-mirror";
const DOCKER: &str = "rm i interactive t tty d detach P publish-all q quiet privileged init read-only sig-proxy no-healthcheck \
     oom-kill-disable disable-content-trust use-api-socket D debug replace rmi no-hosts tls-verify http-proxy passwd \
     unsetenv-all l latest";
const SINGULARITY: &str = "nv nvccli rocm no-nv no-rocm e cleanenv c contain C containall f fakeroot w writable writable-tmpfs \
     u userns p pid i ipc n net no-home no-init no-eval no-privs keep-privs no-umask no-https nohttps compat unsquash underlay \
     sharens uts allow-setuid disable-cache d debug q quiet s silent v verbose";
const SYSTEMD_RUN: &str = "p property u unit E setenv M machine H host C capsule slice description uid gid nice \
     working-directory service-type background job-mode";

#[rustfmt::skip] // One line each.
const WRAPPERS: &[Wrapper] = &[
    // What follows `-S` is the program already.
    Wrapper { names: "env", operands: 0, flags: Valued("u unset C chdir a argv0") },
    Wrapper { names: "sudo doas runuser", operands: 0, flags: Valued(SUDO) },
    Wrapper { names: "nohup setsid unbuffer command catchsegv", operands: 0, flags: Valued("") },
    Wrapper { names: "exec", operands: 0, flags: Valued("a") },
    Wrapper { names: "nice", operands: 0, flags: Valued("n adjustment") },
    Wrapper { names: "ionice", operands: 0, flags: Valued("c class n classdata") },
    Wrapper { names: "time", operands: 0, flags: Valued("f format o output") },
    Wrapper { names: "timeout", operands: 1, flags: Valued("k kill-after s signal") },
    Wrapper { names: "stdbuf", operands: 0, flags: Valued("i input o output e error") },
    Wrapper { names: "taskset", operands: 1, flags: Valued("") },
    Wrapper { names: "chrt", operands: 1, flags: Valued("T sched-runtime P sched-period D sched-deadline") },
    Wrapper { names: "flock", operands: 1, flags: Valued("w timeout wait E conflict-exit-code") },
    Wrapper { names: "caffeinate", operands: 0, flags: Valued("t w") },
    Wrapper { names: "numactl", operands: 0, flags: Valued(NUMACTL) },
    Wrapper { names: "systemd-run", operands: 0, flags: Valued(SYSTEMD_RUN) },
    Wrapper { names: "conda mamba micromamba", operands: 1, flags: Valued(CONDA) },
    Wrapper { names: "uv pipx", operands: 1, flags: Valued(UV) },
    Wrapper { names: "uvx", operands: 0, flags: Valued(UV) },
    Wrapper { names: "poetry pipenv hatch pdm rye pixi pyenv", operands: 1, flags: Valued(PROJECTS) },
    Wrapper { names: "docker podman nerdctl nvidia-docker", operands: 2, flags: Alone(DOCKER) },
    Wrapper { names: "singularity apptainer", operands: 2, flags: Alone(SINGULARITY) },
    Wrapper { names: "nsys", operands: 1, flags: Alone("h help v version") },
];

impl Wrapper {
    fn named(word: &str) -> Option<&'static Self> {
        let name = words::file_name(word);
        WRAPPERS.iter().find(|wrapper| wrapper.names.split(' ').any(|other| other == name))
    }

    /// Whether the word after this flag is its value.
    fn has_value(&self, flag: &str) -> bool {
        let is_valued = |name: &str| match self.flags {
            Valued(names) => names.split(' ').any(|valued| valued == name),
            Alone(names) => names.split(' ').all(|alone| alone != name),
        };
        if let Some(name) = flag.strip_prefix("--") {
            return !name.is_empty() && !name.contains('=') && is_valued(name);
        }
        // Of joined letters the first that has a value takes what is left of the word.
        let mut letters = flag.trim_start_matches('-').chars();
        letters.find(|letter| is_valued(letter.encode_utf8(&mut [0; 4]))).is_some() && letters.next().is_none()
    }

    /// The place of the program that it starts, where it stands at the first of the words.
    fn end(&self, words: &[String]) -> usize {
        let (mut place, mut operands) = (1, self.operands);
        while let Some(word) = words.get(place) {
            if word.starts_with('-') {
                place += 1 + usize::from(self.has_value(word));
            } else if operands > 0 {
                (place, operands) = (place + 1, operands - 1);
            } else {
                break;
            }
        }
        place.min(words.len())
    }
}

/// Programs of clusters, which start what follows them as often as flags of their own say.
const OF_CLUSTERS: [&str; 12] =
    ["srun", "sbatch", "salloc", "jsrun", "aprun", "bsub", "qsub", "ibrun", "prun", "flux", "yhrun", "ccc_mprun"];

/// Names of flags that say how often a program is started, or on how many devices.
const COUNTS: &str = "n N np nproc nprocs nproc_per_node npernode ppn ntasks num_proc num_processes processes num_gpus ngpus \
     gpus nnodes num_nodes num_machines devices";

const INSTEAD: &str = "torchrun --nnodes 2 --nproc_per_node 8 says how many machines and processes there are";

/// The program that the words at hand belong to.
enum Of<'w> {
    /// None yet: here one begins.
    Start,
    Launcher,
    /// One of this name, which may or may not say how many processes there are.
    Unknown(&'w str),
}

/// The words before the first launcher, and the launchers with their own flags alone.
pub(super) fn parted<'w>(job: &mut Job, words: &'w [String]) -> (&'w [String], Vec<String>) {
    let (mut place, mut start, mut launched, mut of) = (0, words.len(), Vec::new(), Of::Start);
    while let Some(word) = words.get(place) {
        let is_launcher = launchers::named(word).is_some();
        let before = place.checked_sub(1).map(|place| words[place].as_str()).filter(|_| !matches!(of, Of::Start));
        let may_be_value = before.is_some_and(|before| may_have_value(before, &of));
        if let Some(wrapper) = Wrapper::named(word).filter(|_| !may_be_value) {
            place += wrapper.end(&words[place..]);
            leave_out(job, word);
            of = Of::Start;
            continue;
        }
        of = match of {
            Of::Launcher => Of::Launcher,
            _ if is_launcher => {
                if let (Of::Unknown(name), Some(before)) = (&of, before.filter(|_| may_be_value)) {
                    ambiguous(job, name, before, word);
                }
                start = start.min(place);
                Of::Launcher
            }
            Of::Start if word.contains('=') => Of::Start,
            Of::Start => {
                leave_out(job, word);
                Of::Unknown(word)
            }
            Of::Unknown(name) => {
                refuse_count(job, name, word);
                Of::Unknown(name)
            }
        };
        if matches!(of, Of::Launcher) {
            launched.push(word.clone());
        }
        place += 1;
    }
    (&words[..start], launched)
}

/// Whether the word after this one may be its value.
fn may_have_value(word: &str, of: &Of<'_>) -> bool {
    let is_bare = word.starts_with('-') && word != "--" && !word.contains('=');
    is_bare && !(matches!(of, Of::Launcher) && launchers::is_switch(word))
}

/// Tells that a program is left out, or why that would change the number of processes.
fn leave_out(job: &mut Job, word: &str) {
    let name = words::file_name(word);
    if OF_CLUSTERS.contains(&name) {
        job.problems.push(format!("{name}: a job has machines of its own; leave it out: {INSTEAD}"));
    } else if word.contains(char::is_whitespace) {
        job.problems.push(format!("`{word}`: it is one word, in quotation marks; write the command without them"));
    } else if name != "env" {
        job.note(word, "left out, with its flags: a job has a machine of its own, and the trainer starts itself there");
    }
}

/// A flag of a program that is not known, before a word that may be its value or a launcher. Nothing is the value of a flag and
/// called `python`.
fn ambiguous(job: &mut Job, name: &str, flag: &str, word: &str) {
    if launchers::named(word) != Some(launchers::PYTHON) && !OF_CLUSTERS.contains(&words::file_name(name)) {
        let problem =
            format!("ftctl does not know {name}, and cannot tell whether {word} is the value of {flag} or starts the program");
        job.problems.push(format!("{flag} {word}: {problem}; leave out {name}, with its flags"));
    }
}

fn refuse_count(job: &mut Job, name: &str, word: &str) {
    let Some(flag) = word.strip_prefix('-') else { return };
    let flag = flag.trim_start_matches('-').split('=').next().unwrap_or_default().replace('-', "_");
    let flag = flag.trim_end_matches(|letter: char| letter.is_ascii_digit());
    let is_count = COUNTS.split(' ').any(|count| count == flag);
    if is_count && !OF_CLUSTERS.contains(&words::file_name(name)) {
        let problem = format!("ftctl does not know {name}, which may start as many processes as this says");
        job.problems.push(format!("{word}: {problem}; leave {name} out, with its flags: {INSTEAD}"));
    }
}
