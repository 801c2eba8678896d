//! The memory of a job's machine.

/// Memory in bytes, and its owner, as in "a custom-12-79872 has".
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Memory {
    pub bytes: u64,
    pub whose: String,
}

/// The memory of a machine. `None` is not known before it runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Size {
    pub has_gpu: bool,
    pub memory: Option<Memory>,
    /// The memory of one GPU.
    pub gpu_memory: Option<Memory>,
    /// The key of the job file that gives it more main memory.
    pub memory_key: &'static str,
}

impl Size {
    /// The machine on which ftctl runs, with `free` bytes.
    pub fn here(free: u64) -> Self {
        Self { memory: Some(Memory { bytes: free, whose: "this machine has free".to_owned() }), ..Self::default() }
    }
}
