//! Azure ML, where it runs the agent as a job of its own: it has a run of the attempt, and collects what lies in a folder.

pub mod notices;
pub mod workspace;

use std::{fs, io, path::Path, time::Duration};

use tokio::{task::spawn_blocking, time::timeout};

use super::Agent;
use crate::{
    identity::Variables,
    job::id::{AttemptId, JobId},
};

/// The name of the run, set in every job.
pub(super) const IN_JOB: &str = "AZUREML_RUN_ID";

/// Beside the command of a job: the service keeps what is written there.
const OUTPUTS: &str = "outputs";
/// Where the model lies in it.
const MODEL: &str = "model";
/// A checkpoint's file that only a resumed training needs.
const OPTIMIZER: &str = "optimizer.safetensors";
/// Longest time for leaving a model.
const COPYING: Duration = Duration::from_secs(600);

/// The service's run of this job, if the agent is the command of one. An agent beside others in another's run has none.
pub(super) fn own_run(job: &JobId, variables: Variables<'_>) -> Option<String> {
    variables(IN_JOB).filter(|run| AttemptId::from_machine_name(run).is_some_and(|attempt| attempt.job == *job))
}

/// Whether a service runs this process as a job of its own.
pub fn is_of_service(job: &JobId) -> bool {
    own_run(job, &|name| std::env::var(name).ok()).is_some()
}

impl Agent<'_> {
    /// Leaves the finished model with the service, as files that others can load. It costs the job nothing if that fails.
    pub(super) async fn leave_model(&self, variables: Variables<'_>) {
        if own_run(&self.order.job, variables).is_none() {
            return;
        }
        let Some(place) = self.work.parent().map(|beside| beside.join(OUTPUTS).join(MODEL)) else { return };
        let folder = self.folder.clone();
        let copied = spawn_blocking(move || match folder.newest_checkpoint()? {
            Some(checkpoint) => copy_model(&checkpoint, &place),
            None => Ok(()),
        });
        let why = match timeout(COPYING, copied).await {
            Ok(Ok(Ok(()))) => return,
            Ok(Ok(Err(error))) => error.to_string(),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("it takes more than {} s", COPYING.as_secs()),
        };
        self.report.warn(&format!("the model could not be left with Azure ML: {why}; it is in the store"));
    }
}

/// The files of a checkpoint that a model needs.
fn copy_model(checkpoint: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(checkpoint)? {
        let entry = entry?;
        if entry.file_type()?.is_file() && entry.file_name() != OPTIMIZER {
            fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_the_jobs_own_by_its_name() {
        let job = JobId::derive("job", "nonce");
        let own = |run: &str| own_run(&job, &|name: &str| (name == IN_JOB).then(|| run.to_owned()));
        let name = AttemptId::new(&job, 3).machine_name();
        assert_eq!(own(&name), Some(name));
        assert_eq!(own(&AttemptId::new(&JobId::derive("job", "other"), 3).machine_name()), None);
        assert_eq!((own("careful_peach_1"), own_run(&job, &|_| None)), (None, None));
    }

    #[test]
    fn a_model_is_a_checkpoint_without_its_optimizer() {
        let directory = tempfile::tempdir().unwrap();
        let (checkpoint, to) = (directory.path().join("step"), directory.path().join("outputs/model"));
        fs::create_dir(&checkpoint).unwrap();
        for name in ["model.safetensors", "config.json", OPTIMIZER] {
            fs::write(checkpoint.join(name), name).unwrap();
        }
        // Again, after a restart of the run.
        for _ in 0..2 {
            copy_model(&checkpoint, &to).unwrap();
        }
        assert_eq!(fs::read_dir(&to).unwrap().count(), 2);
        assert_eq!(fs::read_to_string(to.join("model.safetensors")).unwrap(), "model.safetensors");
    }
}
