//! The names of the hub in a plan, and where their files lie on this machine. A plan is pinned to commits before it is submitted.
//! It is looked at with as few bytes as will do, and its files are fetched in the first stage.

use std::{
    collections::BTreeSet,
    fs::File,
    io::Write as _,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use ft_trainer::{
    data::tokenizer::Tokenizer,
    files,
    model::{hugging_face::CONFIG_FILE, weights::model_files},
    settings::DataConfig,
};
use tempfile::TempDir;

use super::Result;
use crate::{
    exit::{Exit, Failure},
    hub::{Hub, Listed, Listing},
    job::{
        hub::{Commit, HubName, OfHub, Pins, Use},
        plan::Plan,
        report::{Report, Silent},
    },
};

/// Bytes of a configuration, a tokenizer or an index: what a trainer reads of one.
const SMALL: u64 = 64 << 20;
/// Most bytes of text that `plan` fetches to know its tokens.
const LITTLE_TEXT: u64 = 4 << 20;
/// Bytes of a safetensors file that hold its header; those of GPT-2 have 15 thousand.
const HEADER: u64 = 256 << 10;
const LONGEST_HEADER: u64 = 16 << 20;

/// The plan with the commits that its names of the hub stand for; those that it knows stay.
pub async fn pinned(hub: &Hub, plan: Plan) -> Result<Plan> {
    let (plan, unknown) = pinned_so_far(hub, plan).await;
    unknown.into_iter().next().map_or(Ok(plan), |(_, failure)| Err(failure))
}

/// [`pinned`] as far as the hub tells; and what keeps it from being complete. A hub that cannot be asked for one is not asked for
/// the others: each would be waited for.
pub async fn pinned_so_far(hub: &Hub, plan: Plan) -> (Plan, Vec<(&'static str, Failure)>) {
    let (mut pins, mut unknown, mut asked) = (Pins::new(), Vec::new(), BTreeSet::new());
    let mut is_away = false;
    for of_hub in plan.of_hub() {
        let key = of_hub.name.key();
        if !asked.insert(key.clone()) {
            continue;
        }
        let found = match plan.hub.get(&key) {
            Some(commit) => Ok(commit.clone()),
            None if is_away => Err(Failure::new(
                Exit::Network,
                format!("{} was not looked up, because the hub had not answered before", of_hub.text),
            )),
            None => hub.pin(&of_hub.name).await.map_err(Failure::from),
        };
        match found {
            Ok(commit) => _ = pins.insert(key, commit),
            Err(failure) => {
                is_away |= matches!(failure.exit, Exit::Network | Exit::Usage);
                unknown.push((of_hub.noun(), failure));
            }
        }
    }
    (Plan { hub: pins, ..plan }, unknown)
}

/// The plan with what it names of the hub fetched, and its paths in the place of the names.
pub async fn here(hub: &Hub, plan: &Plan, report: &dyn Report) -> Result<Plan> {
    let mut places = Vec::new();
    for of_hub in plan.of_hub() {
        let paths = fetched(hub, &commit_of(plan, &of_hub)?, &of_hub, report).await?;
        places.push((of_hub, paths));
    }
    Ok(plan.located(&places))
}

/// [`here`] for text that no job is of: names mean what they mean now.
pub async fn text_here(hub: &Hub, config: &DataConfig, report: &dyn Report) -> Result<DataConfig> {
    let mut places = Vec::new();
    for of_hub in OfHub::of_text(config) {
        let paths = fetched(hub, &hub.pin(&of_hub.name).await?, &of_hub, report).await?;
        places.push((of_hub, paths));
    }
    let mut config = config.clone();
    OfHub::locate(&mut config, &places);
    Ok(config)
}

async fn fetched(hub: &Hub, commit: &Commit, of_hub: &OfHub, report: &dyn Report) -> Result<Vec<String>> {
    let found = Found::of(hub, commit, of_hub).await?;
    let folder = hub.fetch(&of_hub.name, commit, &found.files, report).await?;
    hub.keep(&of_hub.name, commit)?;
    found.paths(of_hub, &folder)
}

/// Fetches weights with their tokenizer: `hf:OWNER/NAME[@REVISION]`.
pub async fn model(hub: &Hub, name: &HubName, report: &dyn Report) -> Result<PathBuf> {
    let commit = hub.pin(name).await?;
    let listing = hub.list(name, &commit).await?;
    let files = Outline::of(hub, name, &commit, &listing).await?.files;
    let folder = hub.fetch(name, &commit, &files, report).await?;
    hub.keep(name, &commit)?;
    Ok(folder)
}

/// The `config.json` of a model, as text.
pub async fn config(hub: &Hub, name: &HubName) -> Result<String> {
    let commit = hub.pin(name).await?;
    let listing = hub.list(name, &commit).await?;
    let none = || Failure::new(Exit::NotFound, format!("{name} has no {CONFIG_FILE}"));
    let file = listing.find(CONFIG_FILE).filter(|file| file.bytes <= SMALL).ok_or_else(none)?;
    let path = hub.fetch(name, &commit, std::slice::from_ref(file), &Silent).await?.join(CONFIG_FILE);
    let text = files::read_text(&path, SMALL).map_err(|error| trouble("read", &path, &error))?;
    files::text(text).map_err(|reason| Failure::new(Exit::Usage, format!("{CONFIG_FILE} of {name}: {reason}")))
}

/// A plan as far as this machine can see it.
pub struct Looked {
    /// Has paths in the place of the names of what is here, or as good as here.
    pub plan: Plan,
    /// The files that are still to be fetched, and their bytes.
    pub files: usize,
    pub bytes: u64,
    pub failures: Vec<(&'static str, Failure)>,
    /// Weights of which only headers are here.
    outlines: Vec<(TempDir, String)>,
}

impl Looked {
    /// A failure in which what is looked at has its own name.
    pub fn named(&self, mut failure: Failure) -> Failure {
        for (folder, name) in &self.outlines {
            failure.message = failure.message.replace(&*folder.path().to_string_lossy(), name);
        }
        failure
    }
}

/// Looks at what a plan has pinned of the hub, without fetching what takes long: of weights the headers, of text the sizes.
pub async fn look(hub: &Hub, plan: &Plan) -> Looked {
    let mut looked = Looked { plan: plan.clone(), files: 0, bytes: 0, failures: Vec::new(), outlines: Vec::new() };
    let mut places = Vec::new();
    for of_hub in plan.of_hub().into_iter().filter(|of_hub| plan.hub.contains_key(&of_hub.name.key())) {
        match look_at(hub, plan, &of_hub, &mut looked).await {
            Ok(Some(paths)) => places.push((of_hub, paths)),
            Ok(None) => {}
            Err(failure) => looked.failures.push((of_hub.noun(), failure)),
        }
    }
    looked.plan = plan.located(&places);
    looked
}

/// Where it is, if it is here or as good as here.
async fn look_at(hub: &Hub, plan: &Plan, of_hub: &OfHub, looked: &mut Looked) -> Result<Option<Vec<String>>> {
    let OfHub { used, name, .. } = of_hub;
    let found = Found::of(hub, &commit_of(plan, of_hub)?, of_hub).await?;
    let missing = hub.missing(name, &found.commit, &found.files)?;
    if missing == 0 || (*used == Use::Text && missing <= LITTLE_TEXT) {
        let folder = hub.fetch(name, &found.commit, &found.files, &Silent).await?;
        return found.paths(of_hub, &folder).map(Some);
    }
    looked.files += found.files.len();
    looked.bytes += missing;
    let Some(outline) = found.outline else { return Ok(None) };
    // The header of a pickle is at its end, and is looked at when it is here.
    if !outline.has_headers(hub, name, &found.commit, &found.files).await? {
        return Ok(None);
    }
    let path = unicode(outline.folder.path())?;
    looked.outlines.push((outline.folder, of_hub.text.clone()));
    Ok(Some(vec![path]))
}

fn commit_of(plan: &Plan, of_hub: &OfHub) -> Result<Commit> {
    let unpinned = || Failure::new(Exit::Integrity, format!("the plan does not say which commit {} stands for", of_hub.text));
    plan.hub.get(&of_hub.name.key()).cloned().ok_or_else(unpinned)
}

/// The files that a name of the hub stands for.
struct Found {
    commit: Commit,
    files: Vec<Listed>,
    outline: Option<Outline>,
}

impl Found {
    async fn of(hub: &Hub, commit: &Commit, of_hub: &OfHub) -> Result<Self> {
        let OfHub { used, name, .. } = of_hub;
        let listing = hub.list(name, commit).await?;
        let (files, outline) = match used {
            Use::Text => (hub.split(name, commit, &listing).await?, None),
            Use::Tokenizer => (tokenizer(name, &listing)?, None),
            Use::Weights => {
                let outline = Outline::of(hub, name, commit, &listing).await?;
                (outline.files.clone(), Some(outline))
            }
        };
        Ok(Self { commit: commit.clone(), files, outline })
    }

    fn paths(&self, of_hub: &OfHub, folder: &Path) -> Result<Vec<String>> {
        match of_hub.used {
            Use::Text => self.files.iter().map(|file| unicode(&folder.join(&file.path))).collect(),
            Use::Weights | Use::Tokenizer => Ok(vec![unicode(folder)?]),
        }
    }
}

fn is_of_tokenizer(file: &Listed) -> bool {
    let mut names = Tokenizer::READ.into_iter().chain(Tokenizer::OTHERS.map(|(name, _)| name));
    names.any(|name| name == file.path) && file.bytes <= SMALL
}

fn tokenizer(name: &HubName, listing: &Listing) -> Result<Vec<Listed>> {
    let files: Vec<Listed> = listing.iter().filter(|file| is_of_tokenizer(file)).cloned().collect();
    // A model's configuration is read with a tokenizer, and is none.
    let is_absent = files.iter().all(|file| file.path == CONFIG_FILE);
    if is_absent { Err(Failure::new(Exit::NotFound, format!("{name} has no tokenizer"))) } else { Ok(files) }
}

/// A model's small files, and beside them its weights as files of zeros of the right size: what of them a trainer reads, and what
/// it refuses of their headers, is decided by the trainer's own code.
struct Outline {
    folder: TempDir,
    files: Vec<Listed>,
}

impl Outline {
    async fn of(hub: &Hub, name: &HubName, commit: &Commit, listing: &Listing) -> Result<Self> {
        let is_small = |file: &Listed| {
            is_of_tokenizer(file)
                || (file.bytes <= SMALL
                    && ([CONFIG_FILE, model_files::ADAPTERS].contains(&&*file.path) || is_beside(&file.path, ".index.json")))
        };
        let small: Vec<Listed> = listing.iter().filter(|file| is_small(file)).cloned().collect();
        let fetched = hub.fetch(name, commit, &small, &Silent).await?;
        let folder = tempfile::tempdir().map_err(|error| trouble("make", Path::new("a directory"), &error))?;
        let at = |file: &Listed| folder.path().join(&file.path);
        for file in &small {
            symlink(fetched.join(&file.path), at(file)).map_err(|error| trouble("make", &at(file), &error))?;
        }
        for file in listing.iter().filter(|file| is_weights(&file.path)) {
            let made = File::create(at(file)).and_then(|zeros| zeros.set_len(file.bytes));
            made.map_err(|error| trouble("make", &at(file), &error))?;
        }
        // A hint at what a repository has instead of a model goes by the names of its files.
        for file in listing.iter().filter(|file| is_beside(&file.path, "") && !at(file).is_symlink() && !at(file).exists()) {
            File::create(at(file)).map_err(|error| trouble("make", &at(file), &error))?;
        }
        let refused = |why: String| Failure::new(Exit::Usage, why.replace(&*folder.path().to_string_lossy(), &name.to_string()));
        let needed = model_files::needed(folder.path()).map_err(|error| refused(error.to_string()))?;
        let find = |path: &PathBuf| {
            let file = path.file_name().unwrap_or_default().to_string_lossy();
            let missing = || Failure::new(Exit::NotFound, format!("{name} has no {file}, which a run reads"));
            listing.find(&file).cloned().ok_or_else(missing)
        };
        let files = needed.iter().map(find).collect::<Result<_>>()?;
        Ok(Self { folder, files })
    }

    /// Puts the headers of weights into their places; `false` for weights without.
    async fn has_headers(&self, hub: &Hub, name: &HubName, commit: &Commit, files: &[Listed]) -> Result<bool> {
        let weights: Vec<&Listed> = files.iter().filter(|file| is_weights(&file.path)).collect();
        if weights.iter().any(|file| !is_beside(&file.path, ".safetensors")) {
            return Ok(false);
        }
        for file in weights {
            let mut bytes = hub.beginning(name, commit, file, HEADER).await?;
            let length = bytes.first_chunk().map_or(0, |length| u64::from_le_bytes(*length)).saturating_add(8);
            if length > bytes.len() as u64 && length <= LONGEST_HEADER.min(file.bytes) {
                bytes = hub.beginning(name, commit, file, length).await?;
            }
            let path = self.folder.path().join(&file.path);
            let written = File::options().write(true).open(&path).and_then(|mut zeros| zeros.write_all(&bytes));
            written.map_err(|error| trouble("write", &path, &error))?;
        }
        Ok(true)
    }
}

fn is_weights(path: &str) -> bool {
    is_beside(path, ".safetensors") || is_beside(path, ".bin")
}

/// Whether a file of the first folder ends so.
fn is_beside(path: &str, end: &str) -> bool {
    path.ends_with(end) && !path.contains('/')
}

fn unicode(path: &Path) -> Result<String> {
    let text = path.to_str().map(str::to_owned);
    text.ok_or_else(|| {
        Failure::new(Exit::Failure, format!("the path {} is not valid UTF-8", path.display()))
            .fix("name another folder in HF_HUB_CACHE")
    })
}

fn trouble(act: &str, path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(Exit::Failure, format!("cannot {act} {}: {error}", path.display()))
}
