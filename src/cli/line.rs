//! How much of the line to a far store a verb may use.

use clap::Args;

use crate::store::Limits;

#[derive(Debug, Clone, Default, Args)]
pub struct Line {
    /// Concurrent requests to a blob container [default: 48]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=512))]
    jobs: Option<u16>,
    /// Bandwidth limit to and from a blob container, in megabits per second on average
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    cap_mbps: Option<u32>,
}

impl Line {
    pub fn limits(&self) -> Limits {
        let usual = Limits::default();
        Limits {
            jobs: self.jobs.map_or(usual.jobs, usize::from),
            bytes_per_second: self.cap_mbps.map(|megabits| u64::from(megabits) * 125_000),
        }
    }
}
