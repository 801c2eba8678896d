//! Whether the files that a job was submitted with, of which its plan has the paths, still have the same bytes.

use std::path::Path;

use ft_trainer::settings::DataConfig;

use super::{Result, World, hub, upload};
use crate::{
    job::{
        digest::Digest,
        hub::is_name,
        plan::{DataPlan, Plan},
        record::Record,
    },
    store::{Source, StoreError, dataset},
};

/// The settings of `plan`, which is that of the job, that stand for another content by now, each with what is another. Of data that
/// is gone, this is said.
pub(super) async fn changed(world: &World, record: &Record, plan: &Plan) -> Result<Vec<String>> {
    let mut changed = Vec::new();
    if let Some(sent) = &record.dataset {
        changed.extend(data(world, record, plan, sent).await?);
    }
    if let (Some(sent), Some(weights)) = (&record.initial_weights, plan.initial_weights.as_deref().filter(|path| !is_name(path))) {
        let directory = Path::new(weights);
        if directory.exists() {
            let files = upload::needed(directory)?;
            let what = files_of(world, sent, Source::Files { directory, files: &files }).await?;
            changed.extend(what.map(|what| format!("initial_weights: {what}")));
        } else {
            gone(world, record, weights);
        }
    }
    Ok(changed)
}

async fn data(world: &World, record: &Record, plan: &Plan, sent: &Digest) -> Result<Option<String>> {
    match &plan.data {
        DataPlan::Directory(directory) if !Path::new(directory).exists() => gone(world, record, directory),
        DataPlan::Directory(directory) => {
            let what = files_of(world, sent, Source::Tree(Path::new(directory))).await?;
            return Ok(what.map(|what| format!("dataset: {what}")));
        }
        DataPlan::Named(name) => match dataset::named(world.store.as_ref(), name).await {
            Err(StoreError::NotFound { .. }) => gone(world, record, name),
            now => {
                let now = now?;
                return Ok((now != *sent).then(|| format!("dataset: {name} was {}, now {}", short(sent), short(&now))));
            }
        },
        DataPlan::Text(config) => return text(world, record, plan, config, sent).await,
        DataPlan::Digest(_) => {}
    }
    Ok(None)
}

/// Text by its tokens: they are in the cache of the machine that submitted the job, and are made again elsewhere.
async fn text(world: &World, record: &Record, plan: &Plan, config: &DataConfig, sent: &Digest) -> Result<Option<String>> {
    let paths: Vec<&String> = config.train.iter().chain(&config.validation).filter(|path| !is_name(path)).collect();
    // The hub's is known by its commit, and that of cargo's dependencies by the version of ftctl.
    let Some(first) = paths.first() else { return Ok(None) };
    let DataPlan::Text(here) = hub::here(&world.hub, plan, world.report.as_ref()).await?.data else { return Ok(None) };
    let found = upload::inputs(&here, &world.cache);
    if found.is_err() && paths.iter().all(|path| !Path::new(path).exists()) {
        gone(world, record, first);
        return Ok(None);
    }
    let files = found?.files();
    if files_of(world, sent, Source::Tree(&upload::prepared(world, here).await?)).await?.is_none() {
        return Ok(None);
    }
    let newest = files.iter().max_by_key(|path| path.metadata().and_then(|metadata| metadata.modified()).ok());
    let newest = newest.map(|path| format!("; the newest of its files is {}", path.display())).unwrap_or_default();
    Ok(Some(format!("data: the text gives other tokens{newest}")))
}

/// The first of these files that is not as it was sent.
async fn files_of(world: &World, sent: &Digest, source: Source<'_>) -> Result<Option<String>> {
    let (now, files) = dataset::here(source, world.report.as_ref()).await?;
    if now == *sent {
        return Ok(None);
    }
    let path = |name: &str| format!("{}", source.path().join(name).display());
    let before = match dataset::manifest(world.store.as_ref(), sent).await {
        Err(StoreError::NotFound { .. }) => return Ok(Some(format!("the files of {} changed", source.path().display()))),
        manifest => manifest?.files,
    };
    let new = files.iter().find(|file| !before.contains(file)).map(|file| {
        let was_there = before.iter().any(|old| old.path == file.path);
        format!("{} {}", path(&file.path), if was_there { "changed" } else { "is new" })
    });
    let lost = || before.iter().find(|old| files.iter().all(|file| file.path != old.path));
    Ok(new.or_else(|| lost().map(|old| format!("{} is gone", path(&old.path)))))
}

fn short(digest: &Digest) -> &str {
    &digest.as_str()[..12]
}

fn gone(world: &World, record: &Record, what: &str) {
    let id = &record.id;
    world.report.warn(&format!("{what} is not there any more, so it was not compared with what the job {id} was given"));
}
