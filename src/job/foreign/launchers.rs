//! Programs that start a program, or one process for each device, and their flags: a job gets as many machines and processes.

use super::{Flag, Job, Meaning::*, OWN_PROCESSES, Read, Setting::Word as W, ZERO, words};
use crate::job::environment;

/// `deepspeed`, `torchrun`, `python -m torch.distributed.launch`, `accelerate launch`, `mpirun`, and `python` itself.
pub(super) const FLAGS: &[&[Flag]] = &[&[
    Flag { names: &["num_gpus", "nproc_per_node", "npernode", "N"], meaning: Special(|job, value| job.processes.per_node(value)) },
    Flag { names: &["num_processes", "n", "np", "c"], meaning: Special(|job, value| job.processes.together(value)) },
    Flag { names: &["num_nodes", "nnodes", "num_machines"], meaning: Special(|job, value| job.processes.nodes(value)) },
    Flag { names: &["hostfile", "machinefile"], meaning: Special(hosts) },
    Flag { names: &["host", "H"], meaning: Special(|job, hosts| job.processes.on_hosts(hosts)) },
    Flag {
        names: &["autotuning"],
        meaning: Refused("it would choose other batches; train.micro_batch = \"auto\" takes as many sequences at once as fit"),
    },
    Flag { names: &["include", "i"], meaning: Special(|job, devices| job.processes.including(devices)) },
    Flag {
        names: &["num_cores"],
        meaning: Refused("it is a number of TPUs, and none are rented here; give --num_gpus to `deepspeed`"),
    },
    Flag { names: &["exclude", "e"], meaning: Refused("name what is used, with --include") },
    Flag { names: &["m", "module", "no_python", "u", "B"], meaning: Switch("the trainer starts itself") },
    Flag { names: &["x"], meaning: Nothing("compute.environment has the variables that a job hands on") },
    Flag {
        names: &[
            "master_port",
            "master_addr",
            "launcher",
            "launcher_args",
            "ssh_port",
            "node_rank",
            "machine_rank",
            "main_process_port",
            "main_process_ip",
            "rdzv_backend",
            "rdzv_endpoint",
            "rdzv_id",
            "rdzv_conf",
            "max_restarts",
            "monitor_interval",
            "role",
            "local_addr",
            "mca",
            "bind_to",
            "map_by",
            "rank_by",
            "prefix",
            "wdir",
        ],
        meaning: Nothing(OWN_PROCESSES),
    },
    Flag {
        names: &["config_file"],
        meaning: Refused(
            "it can change processes, number format, batch and clipping; leave it out, and give what it says as flags (--num_processes, --num_machines, \
             --mixed_precision)",
        ),
    },
    Flag {
        names: &[
            "standalone",
            "use_env",
            "no_local_rank",
            "no_ssh",
            "no_ssh_check",
            "allow_run_as_root",
            "report_bindings",
            "oversubscribe",
            "display_map",
            "tag_output",
            "bind_cores_to_rank",
            "use_deepspeed",
            "multi_gpu",
            "force_multi",
            "q",
            "quiet",
            "v",
            "verbose",
        ],
        meaning: Switch(OWN_PROCESSES),
    },
    Flag {
        names: &["tee", "redirects", "r", "log_dir", "enable_each_rank_log", "output_filename", "save_pid"],
        meaning: Nothing("`ftctl logs` has what the trainer says"),
    },
    Flag {
        names: &["mixed_precision"],
        meaning: Choice(&[("no", &[]), ("fp16", &[("train.precision", W("fp16"))]), ("bf16", &[("train.precision", W("bf16"))])]),
    },
]];

/// Programs that start the trainer, by their usual name and others. [`FLAGS`] has their flags.
const LAUNCHERS: [(&str, &[&str]); 5] = [
    ("deepspeed", &["ds", "deepspeed.launcher.runner", "deepspeed.launcher.launch"]),
    ("torchrun", &["torch.distributed.run", "torch.distributed.launch"]),
    ("accelerate", &["accelerate-launch", "accelerate.commands.launch", "accelerate.commands.accelerate_cli"]),
    ("mpirun", &["mpiexec", "orterun", "prterun"]),
    ("horovodrun", &[]),
];
pub(super) const PYTHON: &str = "python";

/// The usual name of the launcher that a word starts. Implementations of MPI add their own: `mpiexec.hydra`.
pub(super) fn named(word: &str) -> Option<&'static str> {
    let file = words::file_name(word);
    if file.strip_prefix(PYTHON).is_some_and(|version| version.chars().all(|letter| letter == '.' || letter.is_ascii_digit())) {
        return Some(PYTHON);
    }
    let of_mpi = || file.split_once('.').map(|(name, _)| name).filter(|name| ["mpirun", "mpiexec"].contains(name));
    let known = |name: &str| LAUNCHERS.iter().find(|(usual, others)| *usual == name || others.contains(&name));
    known(file).or_else(|| known(of_mpi()?)).map(|(usual, _)| *usual)
}

/// Whether no value follows this flag.
pub(super) fn is_switch(flag: &str) -> bool {
    let plain = flag.trim_start_matches('-').replace('-', "_");
    words::find(FLAGS, &plain, flag.starts_with("--")).is_some_and(|flag| flag.meaning.is_switch())
}

/// Nodes or processes of one, at most.
const MOST: u32 = 1_000;

/// The machines and processes that a command line starts, as far as it says so.
#[derive(Default)]
pub(super) struct Processes {
    nodes: Option<u32>,
    per_node: Option<u32>,
    together: Option<u32>,
    /// The machines that are named, each with the processes on it where that is said.
    hosts: Vec<Option<u32>>,
    /// The file that names them.
    hostfile: Option<String>,
    /// The program starts one on each GPU that it finds.
    are_of_gpus: bool,
    /// The GPUs that it is shown.
    visible: Option<u32>,
}

impl Processes {
    /// `2:4`, as torchrun takes it, is a number that may change.
    pub fn nodes(&mut self, value: &str) -> Result<(), String> {
        if let Some((least, most)) = value.split_once(':').filter(|(least, most)| least != most) {
            return Err(format!("a job has as many nodes as it begins with; give {least} or {most}"));
        }
        self.nodes = Some(count(value.split(':').next().unwrap_or(value))?);
        Ok(())
    }

    pub fn per_node(&mut self, value: &str) -> Result<(), String> {
        if ["auto", "gpu", "cpu"].contains(&value) {
            return Err(format!("give the number of processes that `{value}` stands for"));
        }
        self.per_node = Some(count(value)?);
        Ok(())
    }

    /// On all nodes.
    pub fn together(&mut self, value: &str) -> Result<(), String> {
        self.together = Some(count(value)?);
        Ok(())
    }

    /// `first:8,second:8`, as MPI takes it.
    fn on_hosts(&mut self, hosts: &str) -> Result<(), String> {
        let slots = |host: &str| host.split_once(':').map(|(_, slots)| count(slots)).transpose();
        self.hosts = hosts.split(',').map(slots).collect::<Result<_, _>>()?;
        Ok(())
    }

    /// `first@second:0,2`, as DeepSpeed takes it.
    fn including(&mut self, devices: &str) -> Result<(), String> {
        let slots =
            |host: &str| host.split_once(':').map(|(_, devices)| count(&devices.split(',').count().to_string())).transpose();
        self.hosts = devices.split('@').map(slots).collect::<Result<_, _>>()?;
        Ok(())
    }

    /// A machine a line, with `slots=8` where it says how many processes it takes.
    fn read(&mut self, text: &str) -> Result<(), String> {
        let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim()).filter(|line| !line.is_empty());
        let slots = |line: &str| line.split_whitespace().find_map(|word| word.strip_prefix("slots=")).map(count).transpose();
        self.hosts = lines.map(slots).collect::<Result<_, _>>()?;
        Ok(())
    }

    /// The file that names the machines says nothing more.
    fn are_known(&self) -> bool {
        self.together == Some(1) || (self.nodes.is_some() && self.per_node.or(self.together).is_some())
    }

    /// Whether the command names their number.
    fn are_said(&self) -> bool {
        self.per_node.is_some() || self.together.is_some() || !self.hosts.is_empty()
    }

    /// All machines have as many processes, which is what a job can be told.
    fn settle(&mut self) -> Result<(), String> {
        let named = u32::try_from(self.hosts.len()).ok().filter(|hosts| *hosts > 0);
        let nodes = self.nodes.or(named).unwrap_or(1);
        let used = &self.hosts[..self.hosts.len().min(nodes as usize)];
        let slots = used.first().copied().flatten();
        if self.per_node.is_none() && used.iter().any(|other| *other != slots) {
            return Err("its machines have different numbers of processes, and a job has one number for all".to_owned());
        }
        let slots = self.per_node.or(slots);
        let (nodes, per_node) = match (self.together, slots.filter(|_| self.nodes.is_none())) {
            (None, _) => (nodes, slots.unwrap_or(1)),
            // MPI fills one machine after the other.
            (Some(together), Some(slots)) if together <= slots => (1, together),
            (Some(together), Some(slots)) if together.is_multiple_of(slots) => (together / slots, slots),
            (Some(together), _) if together.is_multiple_of(nodes) => (nodes, together / nodes),
            (Some(together), _) => return Err(format!("{together} processes cannot be shared evenly among {nodes} nodes")),
        };
        (self.nodes, self.per_node) = (Some(nodes), Some(per_node));
        Ok(())
    }

    /// On all nodes, after [`settle`].
    pub fn all(&self) -> u32 {
        self.nodes.unwrap_or(1).saturating_mul(self.per_node.unwrap_or(1))
    }
}

#[allow(clippy::unnecessary_wraps, reason = "it stands in the table of flags")]
fn hosts(job: &mut Job, file: &str) -> Result<(), String> {
    job.processes.hostfile = Some(file.to_owned());
    Ok(())
}

fn count(value: &str) -> Result<u32, String> {
    let found = value.parse().ok().filter(|count| (1..=MOST).contains(count));
    found.ok_or_else(|| format!("`{}` is not a number from 1 to {MOST}", value.escape_debug().take(60).collect::<String>()))
}

const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// The variables before a command, as `NAME=value`. Those of a job are for the trainer alone, so most have no meaning here.
pub(super) fn variables(job: &mut Job, words: &[String]) {
    let variable = |word| str::split_once(word, '=').filter(|(name, _)| environment::is_name(name));
    let given = words.iter().map(String::as_str).filter_map(variable);
    let (visible, others): (Vec<_>, Vec<_>) = given.partition(|(name, _)| *name == VISIBLE);
    // CUDA sees none from the first that is no device: a number, or an id.
    let is_device = |id: &&str| ["GPU-", "MIG-"].iter().any(|kind| id.trim().starts_with(kind)) || id.trim().parse::<u32>().is_ok();
    let devices = visible.last().map(|(_, value)| value.split(',').take_while(is_device).count());
    if devices == Some(0) {
        job.set("train.device", "cpu");
        job.note(
            VISIBLE,
            "it shows no GPU, so the program trains on the processor, as train.device = \"cpu\" does; take that out for a GPU",
        );
    }
    job.processes.visible = devices.and_then(|devices| u32::try_from(devices).ok()).filter(|devices| (1..=MOST).contains(devices));
    if !others.is_empty() {
        let names: Vec<&str> = others.iter().map(|(name, _)| *name).collect();
        job.note(&names.join(", "), "left out; set compute.environment for what the trainer needs of them");
    }
}

/// Launchers that start one process unless told otherwise, however many GPUs there are, and a program that starts none besides
/// itself. `run_clm.py` without a launcher uses all, by DataParallel.
const STARTS_ONE: [&str; 3] = ["torchrun", "mpirun", "run_clm_no_trainer.py"];

/// The usual names of launchers and programs.
fn names(words: &[String]) -> impl Iterator<Item = &str> {
    words.iter().map(|word| named(word).unwrap_or_else(|| words::file_name(word)))
}

/// Sets as many processes as there are GPUs to be seen, where the command starts one on each.
fn settle_visible(job: &mut Job, words: &[String]) {
    let Some(visible) = job.processes.visible else { return };
    let starts_one = names(words).all(|name| name != "accelerate") && names(words).any(|name| STARTS_ONE.contains(&name));
    if job.processes.are_said() || starts_one {
        job.note(VISIBLE, "the plan chooses the machine and its GPUs");
    } else {
        job.processes.per_node = Some(visible);
        job.note(VISIBLE, "a process for each of these GPUs; the plan chooses the machine");
    }
}

/// Programs that start a process on each GPU that they find, unless told otherwise.
const ALL_GPUS: [&str; 3] = ["deepspeed", "fairseq-train", "fairseq-hydra-train"];

/// Reads the file that names the machines, and sets what is known then. `words`: as far as the program's name.
pub(super) fn settle(job: &mut Job, words: &[String], read: Read<'_>) {
    if let Some(file) = job.processes.hostfile.take() {
        match read(&file).and_then(|text| job.processes.read(&text)) {
            Err(problem) if !job.processes.are_known() => job.problems.push(format!("--hostfile: {problem}")),
            _ => {}
        }
    }
    settle_visible(job, words);
    let said = job.processes.are_said();
    let program = names(words).find(|name| ALL_GPUS.contains(name));
    if let Some(program) = program.filter(|_| !said) {
        job.processes.are_of_gpus = true;
        job.note(
            program,
            "it uses every GPU that it finds; here as many as the plan names, unless compute.processes_per_node says how many",
        );
    }
    if let Err(problem) = job.processes.settle() {
        job.problems.push(format!("the command's processes: {problem}"));
    }
    for (key, number, is_needed) in [(NODES, job.processes.nodes, false), (PER_NODE, job.processes.per_node, said)] {
        if let Some(number) = number.filter(|number| *number > 1 || is_needed) {
            job.set(key, i64::from(number));
        }
    }
}

/// A program that starts a process on each GPU divides a fixed batch among them. The parts of the batch, where both are known, say
/// how many GPUs were meant. Otherwise one process has all of it: the step is that of any number.
pub(super) fn settle_gpus(job: &mut Job, batch: f64, parts: [Option<f64>; 2]) {
    if !job.processes.are_of_gpus {
        return;
    }
    let number = match parts {
        [Some(micro_batch), Some(accumulation)] => {
            batch / (micro_batch * accumulation * f64::from(job.processes.nodes.unwrap_or(1)))
        }
        _ => 1.0,
    };
    // Parts that do not make the batch are refused with it.
    if number.fract() != 0.0 || !(1.0..=f64::from(MOST)).contains(&number) {
        return;
    }
    job.processes.are_of_gpus = false;
    job.processes.per_node = Some(number as u32);
    job.set(PER_NODE, number as i64);
    let why = format!("{PER_NODE} is {number}, so that a step has {batch} sequences; --num_gpus would say how many GPUs there are");
    job.note("ds_config train_batch_size", &why);
}

/// One process has all shards. How many there are that have a GPU each, the plan knows.
pub(super) fn settle_shards(job: &mut Job) {
    if job.processes.are_of_gpus && job.values.contains_key(ZERO) {
        job.note(ZERO, "the shards are those of as many processes as the plan's machine has GPUs; of one it has no effect");
    } else if job.processes.all() == 1 && job.values.remove(ZERO).is_some() {
        job.note(ZERO, "there is one process, which has all shards");
    }
}

const NODES: &str = "compute.nodes";
const PER_NODE: &str = "compute.processes_per_node";
