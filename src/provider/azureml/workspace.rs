//! Which workspace is meant: the job's own word first, then the habits of Azure's SDK and command line.
//!
//! A file in the project's folder is another person's word. Whatever one says is held to Azure's rules for names before it goes
//! into an address, and a token goes to Azure alone, whatever it says.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Read as _,
    path::{Path, PathBuf},
};

use ft_trainer::files;
use serde_json::Value;

use super::super::{Class, ProviderError, Result};
use crate::{
    identity::Variables,
    job::azureml::{AzuremlPlan, ResourceGroup, Subscription, Workspace},
};

/// The resource provider of everything in a workspace.
pub const NAMESPACE: &str = "Microsoft.MachineLearningServices";
/// No file of settings is larger.
const LARGEST_FILE: u64 = 1 << 20;

/// Names by their keys in a job file.
type Places = BTreeMap<String, String>;

/// A workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub subscription: Subscription,
    pub resource_group: ResourceGroup,
    pub workspace: Workspace,
    /// Who named it.
    pub origin: String,
}

impl Place {
    /// The parts of its address below the service.
    pub fn segments(&self) -> [&str; 8] {
        let (subscription, group) = (self.subscription.as_str(), self.resource_group.as_str());
        ["subscriptions", subscription, "resourceGroups", group, "providers", NAMESPACE, "workspaces", self.workspace.as_str()]
    }

    /// Its resource id.
    pub fn id(&self) -> String {
        format!("/{}", self.segments().join("/"))
    }

    /// Fails as [`Class::Invalid`] when a plan means another.
    pub fn admits(&self, plan: &AzuremlPlan) -> Result<()> {
        let differs = |said: Option<&str>, own: &str| said.is_some_and(|said| !said.eq_ignore_ascii_case(own));
        let other = differs(plan.subscription.as_ref().map(Subscription::as_str), self.subscription.as_str())
            || differs(plan.resource_group.as_ref().map(ResourceGroup::as_str), self.resource_group.as_str())
            || differs(plan.workspace.as_ref().map(Workspace::as_str), self.workspace.as_str());
        if !other {
            return Ok(());
        }
        Err(ProviderError::new(
            Class::Invalid,
            format!("the job is for another workspace than {} ({})", self.workspace, self.origin),
        ))
    }
}

/// The host of Azure's registry with this resource id; `None` where the id can be none of a registry.
pub fn registry(id: &str) -> Option<String> {
    let (kind, name) = id.rsplit_once('/')?;
    let is_registry = kind.to_ascii_lowercase().ends_with("/microsoft.containerregistry/registries");
    let is_name = !name.is_empty() && name.len() <= 50 && name.bytes().all(|byte| byte.is_ascii_alphanumeric());
    (is_registry && is_name).then(|| format!("{}.azurecr.io", name.to_ascii_lowercase()))
}

/// The names that one source gives.
#[derive(Debug, Default)]
struct Said {
    subscription: Option<String>,
    resource_group: Option<String>,
    workspace: Option<String>,
    origin: String,
}

impl Said {
    fn places(&self) -> Places {
        let names =
            [("subscription", &self.subscription), ("resource_group", &self.resource_group), ("workspace", &self.workspace)];
        names.into_iter().filter_map(|(key, name)| Some((format!("compute.azureml.{key}"), name.clone()?))).collect()
    }
}

/// The workspace of a job, or of the environment where there is none. `here` is the working directory. Fails as [`Class::Invalid`]
/// when none is named, or what is named can be none.
pub fn find(plan: Option<&AzuremlPlan>, variables: Variables<'_>, here: &Path) -> Result<Place> {
    let mut sources = vec![of_plan(plan), of_variables(variables)];
    if !is_whole(&sources) {
        sources.extend(of_project(here)?.map(|(_, said)| said));
        sources.extend(of_az(variables)?);
    }
    Ok(Place {
        subscription: first(&sources, |said| &said.subscription, "subscription")?,
        resource_group: first(&sources, |said| &said.resource_group, "resource group")?,
        workspace: first(&sources, |said| &said.workspace, "workspace")?,
        origin: sources.iter().find(|said| said.workspace.is_some()).map_or_else(String::new, |said| said.origin.clone()),
    })
}

/// A file in or above the working directory, and the names that it would decide here. Another person may have put it there.
pub fn claimed(plan: Option<&AzuremlPlan>, variables: Variables<'_>, here: &Path) -> Result<Option<(PathBuf, Places)>> {
    let own = [of_plan(plan), of_variables(variables)];
    if is_whole(&own) {
        return Ok(None);
    }
    let Some((path, said)) = of_project(here)? else { return Ok(None) };
    let known: BTreeSet<String> = own.iter().flat_map(|said| said.places().into_keys()).collect();
    let places = said.places().into_iter().filter(|(key, _)| !known.contains(key)).collect();
    Ok(Some((path, places)))
}

/// The names in a workspace's `config.json`, as those of a job file are called.
pub fn places_of(path: &Path) -> Result<Places> {
    Ok(of_file(path, true)?.map(|said| said.places()).unwrap_or_default())
}

fn is_whole(sources: &[Said]) -> bool {
    let any = |of: fn(&Said) -> &Option<String>| sources.iter().any(|said| of(said).is_some());
    any(|said| &said.subscription) && any(|said| &said.resource_group) && any(|said| &said.workspace)
}

/// The name by the first source that has it, held to the rules for it.
fn first<T: std::str::FromStr<Err = String>>(sources: &[Said], of: fn(&Said) -> &Option<String>, what: &str) -> Result<T> {
    let absent = || {
        ProviderError::new(Class::Invalid, format!("no {what} of Azure ML is named")).fix(
            "name subscription, resource_group and workspace in [compute.azureml], or export AZUREML_ARM_SUBSCRIPTION, \
             AZUREML_ARM_RESOURCEGROUP and AZUREML_ARM_WORKSPACE_NAME, or download the workspace's config.json",
        )
    };
    let (said, text) = sources.iter().find_map(|said| Some((said, of(said).as_ref()?))).ok_or_else(absent)?;
    text.parse().map_err(|why| ProviderError::new(Class::Invalid, format!("{}: {why}", said.origin)))
}

fn of_plan(plan: Option<&AzuremlPlan>) -> Said {
    Said {
        subscription: plan.and_then(|plan| Some(plan.subscription.as_ref()?.to_string())),
        resource_group: plan.and_then(|plan| Some(plan.resource_group.as_ref()?.to_string())),
        workspace: plan.and_then(|plan| Some(plan.workspace.as_ref()?.to_string())),
        origin: "the job file".to_owned(),
    }
}

fn of_variables(variables: Variables<'_>) -> Said {
    Said {
        subscription: variables("AZUREML_ARM_SUBSCRIPTION"),
        resource_group: variables("AZUREML_ARM_RESOURCEGROUP"),
        workspace: variables("AZUREML_ARM_WORKSPACE_NAME"),
        origin: "environment AZUREML_ARM_*".to_owned(),
    }
}

/// The nearest `config.json` of a workspace, here or above. A model has a file of that name, too, which is passed by.
fn of_project(here: &Path) -> Result<Option<(PathBuf, Said)>> {
    for folder in here.ancestors() {
        for name in [".azureml/config.json", "config.json"] {
            let path = folder.join(name);
            if let Some(said) = of_file(&path, name.starts_with('.'))? {
                return Ok(Some((path, said)));
            }
        }
    }
    Ok(None)
}

/// The names in a `config.json`, if it is a workspace's; `surely`: it can be nothing else.
fn of_file(path: &Path, surely: bool) -> Result<Option<Said>> {
    let Some(text) = read(path)? else { return Ok(None) };
    let parsed: Value = match serde_json::from_slice(&text) {
        Ok(parsed) => parsed,
        Err(error) if surely => return Err(malformed(path, &error.to_string())),
        Err(_) => return Ok(None),
    };
    let named = |key: &str| parsed.get(key).map(|value| value.as_str().unwrap_or_default().to_owned());
    let said = Said {
        subscription: named("subscription_id"),
        resource_group: named("resource_group"),
        workspace: named("workspace_name"),
        origin: path.display().to_string(),
    };
    Ok(Some(said).filter(|said| said.workspace.is_some()))
}

/// The names that `az account set` and `az configure` have left.
fn of_az(variables: Variables<'_>) -> Result<Vec<Said>> {
    let home = || variables("HOME").map(|home| PathBuf::from(home).join(".azure"));
    let Some(folder) = variables("AZURE_CONFIG_DIR").map(PathBuf::from).or_else(home) else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    let path = folder.join("config");
    if let Some(text) = read(&path)? {
        let text = String::from_utf8(text).map_err(|_| malformed(&path, "it is not text"))?;
        let origin = path.display().to_string();
        found.push(Said {
            resource_group: default(&text, "group"),
            workspace: default(&text, "workspace"),
            origin,
            ..Said::default()
        });
    }
    let path = folder.join("azureProfile.json");
    if let Some(text) = read(&path)? {
        // It begins with a byte order mark.
        let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&text);
        let profile: Value = serde_json::from_slice(text).map_err(|error| malformed(&path, &error.to_string()))?;
        let chosen = profile["subscriptions"].as_array().into_iter().flatten().find(|one| one["isDefault"] == true);
        let subscription = chosen.and_then(|one| one["id"].as_str()).map(str::to_owned);
        found.push(Said { subscription, origin: path.display().to_string(), ..Said::default() });
    }
    Ok(found)
}

/// A value in the section `defaults` of a file like those of `configparser`.
fn default(text: &str, key: &str) -> Option<String> {
    let mut section = "";
    for line in text.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            section = name;
        } else if let Some((_, value)) = line.split_once('=').filter(|(name, _)| section == "defaults" && name.trim() == key) {
            return Some(value.trim().to_owned()).filter(|value| !value.is_empty());
        }
    }
    None
}

/// `None` where there is no such file.
fn read(path: &Path) -> Result<Option<Vec<u8>>> {
    let Ok(file) = files::open(path) else { return Ok(None) };
    let mut text = Vec::new();
    file.take(LARGEST_FILE + 1).read_to_end(&mut text).map_err(|error| malformed(path, &error.to_string()))?;
    if text.len() as u64 > LARGEST_FILE {
        return Err(malformed(path, "it is larger than 1 MiB"));
    }
    Ok(Some(text))
}

fn malformed(path: &Path, why: &str) -> ProviderError {
    ProviderError::new(Class::Invalid, format!("{} cannot be read: {why}", path.display())).fix("correct the file, or remove it")
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, fs};

    use super::*;
    use crate::job::azureml::AzuremlSpec;

    const ONE: &str = "00000000-0000-0000-0000-000000000001";
    const TWO: &str = "00000000-0000-0000-0000-000000000002";

    /// A home and a project in it, with these files.
    fn found(files: &[(&str, &str)], variables: &[(&str, &str)], plan: Option<&AzuremlPlan>) -> Result<Place> {
        let home = tempfile::tempdir().expect("a directory");
        for (path, text) in files {
            let path = home.path().join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            fs::write(path, text).expect("written");
        }
        let here = home.path().join("work/project");
        fs::create_dir_all(&here).expect("made");
        let mut known: BTreeMap<&str, String> = variables.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        known.insert("HOME", home.path().to_str().expect("text").to_owned());
        find(plan, &|name| known.get(name).cloned(), &here)
    }

    fn config(subscription: &str, group: &str, workspace: &str) -> String {
        format!(r#"{{"subscription_id": "{subscription}", "resource_group": "{group}", "workspace_name": "{workspace}"}}"#)
    }

    #[test]
    fn the_nearer_word_counts() {
        let (above, hidden) = (config(ONE, "rg1", "above"), config(TWO, "rg2", "hidden"));
        let model = r#"{"architectures": ["GPT2LMHeadModel"]}"#;
        let az = "[core]\ngroup = no\n[defaults]\ngroup = rg3\nworkspace = byaz\n";
        let profile = format!("\u{feff}{{\"subscriptions\": [{{\"id\": \"{ONE}\"}}, {{\"id\": \"{TWO}\", \"isDefault\": true}}]}}");
        let az = [(".azure/config", az), (".azure/azureProfile.json", profile.as_str())];
        let names = |place: Result<Place>| place.map(|place| place.id()).map_err(|error| error.message);
        let id = |subscription: &str, group: &str, workspace: &str| {
            Ok(format!(
                "/subscriptions/{subscription}/resourceGroups/{group}/providers/Microsoft.MachineLearningServices/workspaces/{workspace}"
            ))
        };
        assert_eq!(names(found(&az, &[], None)), id(TWO, "rg3", "byaz"));
        let files = [&az[..], &[("work/config.json", above.as_str()), ("work/project/config.json", model)]].concat();
        assert_eq!(names(found(&files, &[], None)), id(ONE, "rg1", "above"), "that of a model is none");
        let files = [&files[..], &[("work/project/.azureml/config.json", hidden.as_str())]].concat();
        assert_eq!(names(found(&files, &[], None)), id(TWO, "rg2", "hidden"));
        let variables = [("AZUREML_ARM_WORKSPACE_NAME", "byvariable")];
        assert_eq!(names(found(&files, &variables, None)), id(TWO, "rg2", "byvariable"));
        let plan: AzuremlPlan = AzuremlSpec { workspace: "byjob".parse().ok(), ..AzuremlSpec::default() }.into();
        assert_eq!(names(found(&files, &variables, Some(&plan))), id(TWO, "rg2", "byjob"));
    }

    #[test]
    fn what_can_be_no_name_is_refused_and_says_who_said_it() {
        let refused = |files: &[(&str, &str)]| found(files, &[], None).expect_err("refused").message;
        assert_eq!(refused(&[]), "no subscription of Azure ML is named");
        for (text, part) in [
            (config("../..", "rg", "ws1"), "no id of a subscription"),
            (config(ONE, "rg/../other", "ws1"), "no name of a resource group"),
            (config(ONE, "rg", "ws1?api-version=1"), "no name of a workspace"),
            (
                format!(r#"{{"subscription_id": "{ONE}", "resource_group": 7, "workspace_name": "ws1"}}"#),
                "no name of a resource group",
            ),
        ] {
            let message = refused(&[("work/project/config.json", &text)]);
            assert!(message.contains(part) && message.contains("config.json: "), "{message}");
        }
        assert!(refused(&[("work/.azureml/config.json", "{")]).contains("config.json cannot be read"));
        let huge = " ".repeat((1 << 20) + 1);
        assert!(refused(&[("config.json", &huge)]).contains("larger than 1 MiB"));
    }

    #[test]
    fn a_registry_is_known_by_its_resource_id() {
        let of = |end: &str| registry(&format!("/subscriptions/{ONE}/resourceGroups/rg/providers/{end}"));
        assert_eq!(of("Microsoft.ContainerRegistry/registries/Acr1").as_deref(), Some("acr1.azurecr.io"));
        for end in [
            "Microsoft.ContainerRegistry/registries/",
            "Microsoft.ContainerRegistry/registries/a.evil#",
            "Microsoft.Storage/x/acr1",
        ] {
            assert_eq!(of(end), None, "{end}");
        }
        assert_eq!(registry("acr1"), None);
    }

    #[test]
    fn a_plan_of_another_workspace_is_refused() {
        let place = found(&[("config.json", &config(ONE, "rg", "ws1"))], &[], None).expect("a place");
        let plan = |workspace: &str| AzuremlSpec { workspace: workspace.parse().ok(), ..AzuremlSpec::default() }.into();
        assert_eq!(place.admits(&AzuremlPlan::default()), Ok(()));
        assert_eq!(place.admits(&plan("WS1")), Ok(()));
        assert!(place.admits(&plan("ws2")).is_err());
    }
}
