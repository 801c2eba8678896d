//! The model that another job trained, by its name.

use std::str::FromStr;

use super::id::{JobId, valid_name};

/// `NAME[@STEP]`: a checkpoint of a job of the same store, the newest without a step. `NAME` may be an id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobModel {
    pub job: String,
    pub step: Option<u64>,
}

/// The beginning of such a model's name where a path may stand too.
pub const PREFIX: &str = "job:";

impl JobModel {
    /// The model that `initial_weights` names; `None` for a path.
    pub fn of_weights(text: &str) -> Option<Result<Self, String>> {
        text.strip_prefix(PREFIX).map(str::parse)
    }
}

impl FromStr for JobModel {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (job, step) = text.split_once('@').map_or((text, None), |(job, step)| (job, Some(step)));
        if !valid_name(job) && JobId::parse(job).is_none() {
            return Err(format!("`{job}` is no name of a job"));
        }
        let step = step.map(|step| {
            step.parse().map_err(|_| format!("`{step}` is no step: write NAME@300, or NAME for the newest checkpoint"))
        });
        Ok(Self { job: job.to_owned(), step: step.transpose()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_a_job_and_perhaps_a_step() {
        let named = |job: &str, step| JobModel { job: job.to_owned(), step };
        assert_eq!(JobModel::of_weights("job:mine@300"), Some(Ok(named("mine", Some(300)))));
        assert_eq!(JobModel::of_weights("job:mine-bcdfgh"), Some(Ok(named("mine-bcdfgh", None))));
        assert_eq!(JobModel::of_weights("./job:mine"), None);
        for wrong in ["job:", "job:../x", "job:Mine", "job:mine@", "job:mine@last", "job:mine@-1"] {
            assert!(JobModel::of_weights(wrong).is_some_and(|read| read.is_err()), "{wrong}");
        }
    }
}
