//! A job's artifacts beside its checkpoints (summary, sample, step log): contents by digest, and a manifest that is written last by
//! the holder of the attempt's lease. The newest attempt's artifacts stand for the job.

use std::{path::Path, sync::Arc};

use serde::{Deserialize, Serialize};

use super::{Condition, FileEntry, Result, Store, check_format, content, fetch, find_json, lease::Lease, write_json};
use crate::job::{
    id::{JobId, attempt_number, path},
    report::{Report, Silent},
};

pub const ARTIFACTS_SCHEMA: &str = "ftctl.artifacts/2";
/// The one before this one had no chunks.
const READABLE: &[&str] = &["ftctl.artifacts/1", ARTIFACTS_SCHEMA];

/// `artifacts/manifest.json` of a job. Files are sorted by path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArtifactsManifest {
    pub schema: String,
    /// The attempt that left them.
    #[serde(deserialize_with = "attempt_number")]
    pub attempt: u32,
    pub files: Vec<FileEntry>,
}

fn manifest_path(job: &JobId) -> String {
    format!("{}/manifest.json", path::artifacts(job))
}

/// Makes the directory `local` the artefacts of the job. The lease is the fence, as for a checkpoint.
pub async fn commit(store: &Arc<dyn Store>, job: &JobId, lease: &mut Lease, attempt: u32, local: &Path) -> Result<()> {
    let sent = content::send(store, &path::job_contents(job), local.into(), false, &Silent).await?;
    lease.renew().await?;
    let manifest = ArtifactsManifest { schema: ARTIFACTS_SCHEMA.to_owned(), attempt, files: sent.files };
    write_json(store.as_ref(), &manifest_path(job), &manifest, Condition::Always).await.map(drop)
}

/// The files that the job left, which can be put into a folder; none before its first attempt ended.
pub async fn files(store: &dyn Store, job: &JobId) -> Result<Vec<FileEntry>> {
    let files = stored(store, job).await?;
    content::check(&files)?;
    Ok(files)
}

/// [`files`] for a caller that only asks which contents are named.
pub(super) async fn stored(store: &dyn Store, job: &JobId) -> Result<Vec<FileEntry>> {
    let name = manifest_path(job);
    let Some((manifest, _)) = find_json::<ArtifactsManifest>(store, &name).await? else { return Ok(Vec::new()) };
    check_format(&name, &manifest.schema, READABLE)?;
    Ok(manifest.files)
}

/// The files as they lie below a directory that has other things as well: in a folder of their own.
pub fn in_their_folder(files: &[FileEntry]) -> Vec<FileEntry> {
    files.iter().map(|file| FileEntry { path: format!("artifacts/{}", file.path), ..file.clone() }).collect()
}

/// Puts the artefacts into their folder below `to`, every byte verified; answers which. The folder is no link that another left.
pub async fn fetch(store: &Arc<dyn Store>, job: &JobId, to: &Path, report: &dyn Report) -> Result<Vec<FileEntry>> {
    let files = files(store.as_ref(), job).await?;
    if !files.is_empty() {
        let files = in_their_folder(&files);
        fetch::fetch(store, &path::job_contents(job), &files, &fetch::Target::make(to).await?, report).await?;
    }
    Ok(files)
}
