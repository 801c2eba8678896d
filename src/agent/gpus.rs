//! How busy the GPUs of the agent's machine are. The driver's own program says it, which is there wherever the driver is, in
//! containers too: its library would be one more program in the agent's process, for a number every ten seconds.

use std::{ffi::OsString, io::ErrorKind, process::Stdio, time::Duration};

use tokio::{
    process::Command,
    sync::watch,
    time::{sleep, timeout},
};

use crate::job::order::{GpuUse, Phase};

const QUERY: [&str; 2] = ["--query-gpu=utilization.gpu,memory.used,memory.total", "--format=csv,noheader,nounits"];
const EVERY: Duration = Duration::from_secs(10);
/// It answers within a second while a trainer keeps the driver awake.
const PATIENCE: Duration = Duration::from_secs(5);
const MIB: u64 = 1 << 20;

pub(super) struct Gpus {
    pub program: OsString,
    told: watch::Sender<Vec<GpuUse>>,
}

impl Gpus {
    pub fn new() -> Self {
        Self { program: "nvidia-smi".into(), told: watch::Sender::new(Vec::new()) }
    }

    /// The use of the GPUs by the last answer; empty where it is not known.
    pub fn newest(&self) -> Vec<GpuUse> {
        self.told.borrow().clone()
    }

    /// Asks again and again while the trainer runs. Ends where there is no driver.
    pub async fn watch(&self, mut phase: watch::Receiver<Phase>) {
        while phase.wait_for(|phase| *phase == Phase::Training).await.is_ok() {
            match self.ask().await {
                Ok(gpus) => self.told.send_replace(gpus),
                Err(error) if error.kind() == ErrorKind::NotFound => return,
                Err(_) => self.told.send_replace(Vec::new()),
            };
            sleep(EVERY).await;
        }
    }

    async fn ask(&self) -> std::io::Result<Vec<GpuUse>> {
        let mut command = Command::new(&self.program);
        command.args(QUERY).stdin(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
        let output = timeout(PATIENCE, command.output()).await??;
        Ok(read(&String::from_utf8_lossy(&output.stdout)))
    }
}

/// A line for each GPU: percent, MiB, MiB. A GPU of which one of them is not known is left out, as each slice of a divided one is.
fn read(text: &str) -> Vec<GpuUse> {
    let gpu = |line: &str| {
        let mut numbers = line.split(',').map(|number| number.trim().parse::<u64>().ok());
        let [busy, used, all] = std::array::from_fn(|_| numbers.next().flatten());
        let bytes = |mebibytes: Option<u64>| mebibytes?.checked_mul(MIB);
        Some(GpuUse { busy_percent: busy?.try_into().ok()?, memory_used_bytes: bytes(used)?, memory_bytes: bytes(all)? })
    };
    text.lines().filter_map(gpu).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_driver_prints_is_read() {
        let gpu = |busy_percent, used, all| GpuUse { busy_percent, memory_used_bytes: used * MIB, memory_bytes: all * MIB };
        let cases = [
            ("97, 12345, 16384\n0, 3, 81559\n", vec![gpu(97, 12_345, 16_384), gpu(0, 3, 81_559)]),
            // A divided one, and one whose memory is the machine's.
            ("[N/A], 12, 40536\n[Not Supported], [N/A], [N/A]\n", vec![]),
            ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n", vec![]),
            ("300, 1, 1\n-1, 1, 1\n5, 99999999999999999999, 1\n5, 18446744073709551615, 1\n5, 1\n", vec![]),
            ("", vec![]),
        ];
        for (text, expected) in cases {
            assert_eq!(read(text), expected, "{text}");
        }
    }
}
