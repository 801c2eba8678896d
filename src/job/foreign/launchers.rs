//! Programs that start a program, or one process for each device, and their flags.

use super::{Flag, Job, Meaning::*, ONE_DEVICE, ONE_PROCESS, Setting::Word as W};

/// `deepspeed`, `torchrun`, `python -m torch.distributed.launch`, `accelerate launch`, `mpirun`, and `python` itself.
pub(super) const FLAGS: &[&[Flag]] = &[&[
    Flag {
        names: &["num_gpus", "nproc_per_node", "num_processes", "n", "np", "c", "num_nodes", "nnodes", "num_machines", "npernode"],
        meaning: Must(1.0, ONE_DEVICE),
    },
    Flag {
        names: &["autotuning"],
        meaning: Refused("it would choose other batches; train.micro_batch = \"auto\" takes as many sequences at once as fit"),
    },
    Flag { names: &["multi_gpu", "force_multi"], meaning: NoSwitch(ONE_DEVICE) },
    Flag { names: &["include", "i"], meaning: Special(include) },
    Flag { names: &["m", "module", "no_python", "u", "B"], meaning: Switch("the trainer starts itself") },
    Flag { names: &["x"], meaning: Nothing("there is one process, and no variable is handed on to it") },
    Flag {
        names: &[
            "master_port",
            "master_addr",
            "exclude",
            "e",
            "hostfile",
            "machinefile",
            "host",
            "H",
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
            "config_file",
        ],
        meaning: Nothing(ONE_PROCESS),
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
            "q",
            "quiet",
            "v",
            "verbose",
        ],
        meaning: Switch(ONE_PROCESS),
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

/// `localhost:0`: one device of one machine.
fn include(job: &mut Job, devices: &str) -> Result<(), String> {
    if devices.contains([',', '@']) {
        return Err(ONE_DEVICE.to_owned());
    }
    job.note("--include", ONE_PROCESS);
    Ok(())
}
