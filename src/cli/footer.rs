//! The line below everything else that a terminal shows while a job trains: step, loss, pace, time left and cost.

use std::{convert::Infallible, future::pending, sync::Arc, time::Duration};

use crate::{
    job::{
        id::JobId,
        order::GpuUse,
        report::{Footer, Report},
        state::State,
        units::Money,
    },
    lifecycle::{
        World,
        status::{self, JobStatus},
    },
    output::format,
};

/// How often a footer is renewed.
const LOOK: Duration = Duration::from_secs(2);

/// Takes the footer away when it is no longer renewed.
struct Footed(Arc<dyn Report>);

impl Drop for Footed {
    fn drop(&mut self) {
        self.0.footer(None);
    }
}

/// Says where a job stands again and again, where a terminal shows that.
pub async fn keep(world: &World, id: &JobId) -> Infallible {
    if !world.report.has_footer() {
        return pending().await;
    }
    let _footed = Footed(world.report.clone());
    loop {
        // What cannot be read now is read later; the driver of the job says what is wrong.
        if let Ok(status) = status::one(world.store.as_ref(), id, &mut |_| world.clock.now()).await {
            world.report.footer(reached(&status));
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// `None` while nothing is trained.
fn reached(status: &JobStatus) -> Option<Footer> {
    let (step, steps) = status.step.zip(status.steps).filter(|_| status.state == State::Running.label(None))?;
    let parts = [
        status.loss.map(|loss| format!("loss {loss:.3}")),
        status.tokens_per_second.map(|rate| format!("{} tokens/s", format::number(rate.round() as u64))),
        status
            .eta_seconds
            .and_then(|eta| Some(format!("{} left", format::duration(Duration::try_from_secs_f64(eta.round()).ok()?)))),
        gpu_use(&status.gpus),
        Some(status.cost).filter(|cost| *cost > Money::ZERO).map(|cost| cost.to_string()),
    ];
    let note = parts.into_iter().flatten().fold(String::new(), |note, part| note + "  " + &part);
    Some(Footer { step, steps, note })
}

/// How busy GPUs are, in the mean.
pub fn gpu_use(gpus: &[GpuUse]) -> Option<String> {
    let all: usize = gpus.iter().map(|gpu| usize::from(gpu.busy_percent)).sum();
    let mean = all.checked_div(gpus.len())?;
    Some(if gpus.len() == 1 { format!("GPU {mean} %") } else { format!("{} GPUs {mean} %", gpus.len()) })
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    #[test]
    fn a_footer_says_what_is_known_of_a_job_that_trains() {
        let status = |state: State| JobStatus {
            schema: status::STATUS_SCHEMA,
            id: JobId::derive("tiny", "1"),
            backend: String::new(),
            simulated: false,
            state: state.label(None).to_owned(),
            attempt: 1,
            nodes: None,
            planned_nodes: None,
            step: Some(120),
            steps: Some(1_000),
            loss: Some(3.2144),
            validation_loss: None,
            perplexity: None,
            tokens_per_second: Some(1_234.4),
            eta_seconds: Some(719.7),
            silent_since: None,
            gpus: vec![GpuUse { busy_percent: 97, memory_used_bytes: 1, memory_bytes: 2 }],
            cost: Money { micros: 20_000 },
            created: Timestamp::UNIX_EPOCH,
            waiting: None,
            next_try: None,
            reason: None,
        };
        let note = "  loss 3.214  1,234 tokens/s  12m 0s left  GPU 97 %  0.02 USD".to_owned();
        assert_eq!(reached(&status(State::Running)), Some(Footer { step: 120, steps: 1_000, note }));
        assert_eq!(reached(&status(State::Provisioning)), None);
        let begun =
            JobStatus { loss: None, tokens_per_second: None, eta_seconds: None, cost: Money::ZERO, ..status(State::Running) };
        let begun = JobStatus { gpus: Vec::new(), ..begun };
        assert_eq!(reached(&begun).map(|footer| footer.note), Some(String::new()));
        let gpu = |busy_percent| GpuUse { busy_percent, memory_used_bytes: 0, memory_bytes: 0 };
        assert_eq!(gpu_use(&[gpu(90), gpu(255), gpu(0)]).as_deref(), Some("3 GPUs 115 %"), "as they were told");
    }
}
