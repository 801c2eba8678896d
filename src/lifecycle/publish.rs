//! A job's entries in the catalogue of its service, for people who look there. None of them costs a job its success.

use super::{World, receipt, results};
use crate::{
    job::{id::AttemptId, record::Record},
    provider::{JobService, Publication},
};

/// Where the job's store is.
pub(super) async fn store(world: &World) {
    if let Some(service) = world.provider.service() {
        publish(world, service, &Publication::Store).await;
    }
}

/// The model of a job that has succeeded, whose machines are gone.
pub(super) async fn model(world: &World, record: &Record) {
    let Some(service) = world.provider.service() else { return };
    let receipt = receipt::receipt(record, world.clock.now());
    let perplexity = results::of(world.store.as_ref(), record).await.ok().and_then(|results| results.last_perplexity);
    let model = Publication::Model {
        attempt: AttemptId::new(&record.id, record.attempt),
        receipt: format!("{}, {} s of machines, attempts: {}", receipt.cost, receipt.machine_seconds, receipt.attempts.len()),
        perplexity: perplexity.map(|perplexity| format!("{perplexity:.3}")),
    };
    publish(world, service, &model).await;
}

async fn publish(world: &World, service: &dyn JobService, publication: &Publication) {
    match service.publish(publication).await {
        Ok(name) => world.report.line(&format!("registered as {name}")),
        Err(error) => world.report.warn(&format!("{}; the job goes on without this entry", error.message)),
    }
}
