//! Requests of `ft-trainer` to the operating system before it begins.

use std::os::unix::process::CommandExt;
use std::sync::atomic::{AtomicBool, Ordering};

#[cfg(target_os = "linux")]
use crate::aten;
use crate::openmp;

/// Set by SIGTERM and SIGINT: finish the current step, write a checkpoint, exit.
pub static STOP: AtomicBool = AtomicBool::new(false);
/// Set by SIGURG: finish the current step, write a checkpoint, go on. A process that is not ready for this signal does not die of
/// it.
pub static SAVE: AtomicBool = AtomicBool::new(false);

/// Lets large tensors lie in the arena, and keeps freed memory instead of giving it back. Every step allocates the same buffers of
/// some megabytes; with glibc's defaults each of them is mapped, page-faulted, zeroed and unmapped each time, which costs more than
/// some of the arithmetic in between.
pub fn keep_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: `mallopt` only sets numbers of the allocator; no other thread runs yet.
    unsafe {
        // glibc before 2.35 refuses more than 32 MiB.
        if libc::mallopt(libc::M_MMAP_THRESHOLD, i32::MAX) == 0 {
            libc::mallopt(libc::M_MMAP_THRESHOLD, 32 << 20);
        }
        libc::mallopt(libc::M_TRIM_THRESHOLD, i32::MAX);
    }
    #[cfg(target_os = "linux")]
    aten::use_arena();
}

/// Starts the program again with the environment that [`openmp::policy`] asks for, unless it has it.
pub fn settle_environment() {
    let (Some((name, value)), Ok(program)) = (openmp::policy(), std::env::current_exe()) else { return };
    // Returns only when it fails, and then all costs what it costs by default.
    let _ = std::process::Command::new(program).args(std::env::args_os().skip(1)).env(name, value).exec();
}

/// Lets a file-size limit be an error with a message instead of a silent death, and SIGTERM, Ctrl-C or SIGURG a wish. SIGTERM may
/// come twice, from a supervisor and from a stop of the whole process group, and stays a wish; a second Ctrl-C ends the process.
pub fn handle_signals() {
    // SAFETY: the handler only stores to an atomic, which is async-signal-safe; the structure is fully initialised.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        let (stop, save): (extern "C" fn(libc::c_int), extern "C" fn(libc::c_int)) = (request_stop, request_save);
        for (signal, flags, handler) in [
            (libc::SIGTERM, libc::SA_RESTART, stop),
            (libc::SIGINT, libc::SA_RESTART | libc::SA_RESETHAND, stop),
            (libc::SIGURG, libc::SA_RESTART, save),
        ] {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as usize;
            action.sa_flags = flags;
            libc::sigaction(signal, &raw const action, std::ptr::null_mut());
        }
    }
}

/// Bytes of main memory that the process has had at most, where the operating system says so, less the pages of files that it has
/// now: the system keeps as much of libtorch's code in memory as it sees fit, 70 MB on one day and 130 MB on another, and takes it
/// back without asking. Tensors in files count, as far as they were in memory at once: none is when this is asked.
pub fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let bytes = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix(" kB")?.parse().ok().map(|kibibytes: u64| kibibytes << 10)
    };
    Some(bytes("VmHWM:")?.saturating_sub(bytes("RssFile:")?))
}

extern "C" fn request_stop(_signal: libc::c_int) {
    STOP.store(true, Ordering::Relaxed);
}

extern "C" fn request_save(_signal: libc::c_int) {
    SAVE.store(true, Ordering::Relaxed);
}
