//! The model that a job trained, as a directory on this machine.

use std::{ffi::OsString, path::PathBuf};

use ft_trainer::{model::hugging_face::CONFIG_FILE, state::OF_RESUMING};

use super::{App, intent::Intent};
use crate::{
    exit::{Exit, Failure},
    job::{
        hub::HubName,
        id::JobId,
        model::JobModel,
        plan::{Plan, PlanError},
    },
    lifecycle::{hub, open},
    store::{
        Store, StoreError,
        checkpoint::{self, CheckpointManifest},
    },
};

/// The directory of a model that the trainer is about to read: one of this machine, or a checkpoint of a job (`NAME[@STEP]`, also
/// with `job:` before it), or of the hub (`hf:OWNER/NAME`). A missing one is an error before anything is installed for it.
pub fn directory(app: &App<'_>, text: &str) -> Result<OsString, Failure> {
    if let Some(name) = HubName::of_model(text) {
        let name = name.map_err(|why| Failure::new(Exit::Usage, why))?;
        let report = app.output.report();
        return Ok(app.block_on(async { hub::model(&app.hub()?, &name, report.as_ref()).await })?.into_os_string());
    }
    let path = app.working_directory.join(text);
    if path.is_dir() {
        return Ok(path.into_os_string());
    }
    // The store may be one that the project names.
    app.admit(&app.settings.project)?;
    let missing = || {
        Failure::new(Exit::NotFound, format!("there is no directory {}, and no job `{text}`", path.display()))
            .fix("name a directory, a job (`ftctl status --all` lists them), or one of its checkpoints: NAME@STEP")
    };
    let named = JobModel::of_weights(text).unwrap_or_else(|| text.parse());
    match app.block_on(fetched(app, &named.map_err(|_| missing())?)) {
        Err(failure) if failure.exit == Exit::NotFound && failure.message.starts_with("there is no job") => Err(missing()),
        fetched => Ok(fetched?.into_os_string()),
    }
}

/// The acts of a command that loads a model.
pub fn intent(model: &str, act: &str) -> Intent {
    Intent(vec![format!("{act} the model {model}, after fetching and building what is missing")])
}

/// Puts the directory in the place of a job that `initial_weights` names, and notes which commits names of the hub stand for.
pub async fn resolve(app: &App<'_>, plan: Plan) -> Result<Plan, Failure> {
    located(app, hub::pinned(&app.hub()?, plan).await?).await
}

/// [`resolve`] without the hub.
pub async fn located(app: &App<'_>, plan: Plan) -> Result<Plan, Failure> {
    let Some(named) = plan.initial_weights.as_deref().and_then(JobModel::of_weights) else { return Ok(plan) };
    let directory = fetched(app, &named.map_err(|why| Failure::new(Exit::Usage, why))?).await?;
    let path = directory.into_os_string().into_string().map_err(|path| Failure::from(PlanError::NotUnicode(path.into())))?;
    Ok(Plan { initial_weights: Some(path), ..plan })
}

/// Fetches it into the cache, once.
async fn fetched(app: &App<'_>, model: &JobModel) -> Result<PathBuf, Failure> {
    let store = app.store()?;
    let id = open::find(store.as_ref(), &model.job).await?;
    let manifest = manifest(store.as_ref(), &id, model.step).await?;
    if !manifest.files.iter().any(|file| file.path == CONFIG_FILE) {
        let message = format!("the checkpoint of step {} of the job {id} holds no model", manifest.step);
        return Err(Failure::new(Exit::Usage, message).fix("a rehearsal on the backend `fake` trains nothing; name another job"));
    }
    let to = app.settings.directories.cache()?.join("models").join(format!("{id}-{}", manifest.digest()));
    // What only a run that resumes reads is two thirds of a checkpoint.
    let mut model = manifest;
    model.files.retain(|file| !OF_RESUMING.contains(&file.path.as_str()));
    checkpoint::fetch_files(&store, &id, model, &to, app.output.report().as_ref()).await?;
    Ok(to)
}

/// The checkpoint of a step, or the newest.
pub async fn manifest(store: &dyn Store, id: &JobId, step: Option<u64>) -> Result<CheckpointManifest, Failure> {
    let Some(step) = step else {
        let none = || Failure::new(Exit::NotFound, format!("the job {id} has no checkpoint yet"));
        return checkpoint::latest(store, id).await?.ok_or_else(none);
    };
    match checkpoint::manifest(store, id, step).await {
        Err(StoreError::NotFound { .. }) => {
            let steps: Vec<String> = checkpoint::list(store, id).await?.iter().map(u64::to_string).collect();
            let fix = if steps.is_empty() { "it has none yet".to_owned() } else { format!("it has those of {}", steps.join(", ")) };
            Err(Failure::new(Exit::NotFound, format!("the job {id} has no checkpoint of step {step}")).fix(fix))
        }
        found => Ok(found?),
    }
}
