//! Answers of a service beyond machines: a job's output, its place in the catalogue, and its own end.

use async_trait::async_trait;
use tokio::time::{Instant, sleep};

use super::{Azureml, assets, console, job, live};
use crate::{
    job::id::{AttemptId, JobId},
    provider::{Cursor, JobService, Output, Publication, Result},
};

#[async_trait]
impl JobService for Azureml {
    async fn output(&self, attempt: &AttemptId, node: Option<u32>, cursor: &mut Cursor) -> Result<Vec<Output>> {
        if self.find(attempt).await?.is_none() {
            return Ok(Vec::new());
        }
        let details = self.history(&attempt.machine_name()).await?;
        Ok(console::each(&self.client, &details, node, cursor).await?)
    }

    async fn publish(&self, publication: &Publication) -> Result<String> {
        let mark = self.mark().await?;
        Ok(match publication {
            Publication::Store => self.publish_store(&mark).await?,
            Publication::Model { attempt, receipt, perplexity } => {
                let tags = assets::tags(attempt, receipt, perplexity.as_deref(), &mark);
                self.publish_model(attempt, &tags).await?
            }
        })
    }

    /// A job that is cancelled before it is over is a cancelled one in the studio, and may lack its outputs.
    async fn settle(&self, attempt: &AttemptId) -> Result<()> {
        let begun = Instant::now();
        while begun.elapsed() < self.client.pace.end && self.find(attempt).await?.as_ref().is_some_and(job::is_live) {
            sleep(self.client.pace.look).await;
        }
        Ok(())
    }

    /// The cluster stays: the next attempt is on it, and its identity may have been given rights. Nodes without a job leave.
    async fn clear(&self, job: &JobId) -> Result<()> {
        let live = live(&self.of(job, &self.mark().await?).await?);
        self.end(live).await
    }
}
