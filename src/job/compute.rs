//! Where a job runs, with nothing left open: one `match` per question.

use std::{
    ops::{Deref, DerefMut},
    time::Duration,
};

use serde::{Deserialize, Serialize};

use super::{
    azureml::AzuremlPlan,
    docker::{DockerPlan, Gpus},
    gce::{GcePlan, Recovery},
    spec::ComputeSpec,
};

/// The backends whose attempts can have several machines, for people.
pub const WITH_NODES: &str = "azureml (local and docker rehearse it)";

/// A kind of place where jobs run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    Local,
    Docker,
    Gce,
    Azureml,
    Fake,
}

impl Backend {
    /// The names as `compute.backend` spells them, in the order of [`Backend::ALL`].
    pub const NAMES: [&str; 5] = ["local", "docker", "gce", "azureml", "fake"];
    pub const ALL: [Self; 5] = [Self::Local, Self::Docker, Self::Gce, Self::Azureml, Self::Fake];

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|backend| backend.name() == name)
    }

    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }

    /// Whether its machine is this one.
    pub fn is_here(self) -> bool {
        self == Self::Local
    }

    /// Whether its machines are a cloud's, which knows its users.
    pub fn needs_account(self) -> bool {
        matches!(self, Self::Gce | Self::Azureml)
    }

    /// Keys of its table below `[compute]` that decide whose code a machine runs, where, and with which rights.
    pub fn keys_of_trust(self) -> &'static [&'static str] {
        match self {
            Self::Local | Self::Fake => &[],
            Self::Docker => &["image", "mounts", "user", "network"],
            Self::Gce => &["image", "image_family", "image_project", "boot_image", "service_account"],
            Self::Azureml => &["image", "subscription", "resource_group", "workspace", "cluster", "identity"],
        }
    }
}

/// A place where a job runs, and its machine there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Compute {
    Local,
    Docker(DockerPlan),
    Gce(Box<GcePlan>),
    Azureml(Box<AzuremlPlan>),
    Fake,
    /// A backend of another version of ftctl. Nothing runs there, but the record of a job that is over can be read.
    Unknown(String),
}

impl Compute {
    /// The backend's name.
    pub fn backend(&self) -> &str {
        match self {
            Self::Local => Backend::Local.name(),
            Self::Docker(_) => Backend::Docker.name(),
            Self::Gce(_) => Backend::Gce.name(),
            Self::Azureml(_) => Backend::Azureml.name(),
            Self::Fake => Backend::Fake.name(),
            Self::Unknown(name) => name,
        }
    }

    /// The container image that the job file names.
    pub fn image(&self) -> Option<&str> {
        match self {
            Self::Docker(docker) => docker.image.as_deref(),
            Self::Gce(gce) => gce.image.as_deref(),
            Self::Azureml(azureml) => azureml.image.as_deref(),
            Self::Local | Self::Fake | Self::Unknown(_) => None,
        }
    }

    /// Whether a trainer reads the data, and not only a story of one.
    pub fn trains(&self) -> bool {
        !matches!(self, Self::Fake)
    }

    /// Whether the backend replaces a machine that was taken away, without ftctl.
    pub fn replaces_machines(&self) -> bool {
        match self {
            Self::Gce(gce) => gce.recovery == Recovery::Group,
            Self::Local | Self::Docker(_) | Self::Azureml(_) | Self::Fake | Self::Unknown(_) => false,
        }
    }

    /// Whether it is this machine itself.
    pub fn is_here(&self) -> bool {
        matches!(self, Self::Local)
    }

    /// Whether a service has every attempt wait in its queue, however short.
    pub fn queues(&self) -> bool {
        matches!(self, Self::Azureml(_))
    }

    /// Whether an attempt can have several machines: [`WITH_NODES`].
    pub fn takes_nodes(&self) -> bool {
        matches!(self, Self::Local | Self::Docker(_) | Self::Azureml(_))
    }

    /// How many GPUs its machine has, where that is known.
    pub fn gpus(&self) -> Option<u32> {
        match self {
            Self::Docker(docker) => match docker.gpus {
                Gpus::None => Some(0),
                Gpus::Count(count) => Some(count),
                Gpus::All => None,
            },
            Self::Gce(gce) => Some(gce.accelerators),
            Self::Azureml(azureml) => Some(azureml.accelerators),
            Self::Local | Self::Fake | Self::Unknown(_) => None,
        }
    }

    /// How long a machine is paid for before its programs begin, and after they end, where that is not in its own hands.
    pub fn besides(&self) -> [Duration; 2] {
        match self {
            Self::Azureml(azureml) => azureml.besides(),
            Self::Local | Self::Docker(_) | Self::Gce(_) | Self::Fake | Self::Unknown(_) => [Duration::ZERO; 2],
        }
    }

    /// How long before the farewell that every machine has its programs hear that it will be taken away.
    pub fn notice(&self) -> Duration {
        match self {
            Self::Gce(gce) => gce.preemption_notice.map_or(Duration::ZERO, |notice| notice.0),
            Self::Local | Self::Docker(_) | Self::Azureml(_) | Self::Fake | Self::Unknown(_) => Duration::ZERO,
        }
    }
}

/// A [`Compute`] as plans keep it. Plans of before keep what their job file said of other backends, and write it back: a plan's
/// digest tells whose its job is, and must not change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Stored", into = "Stored")]
pub struct Kept {
    compute: Compute,
    /// Without the section that `compute` has.
    besides: Besides,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Besides {
    docker: Option<DockerPlan>,
    gce: Option<Box<GcePlan>>,
    azureml: Option<Box<AzuremlPlan>>,
}

/// The stored form. The order of its fields counts.
#[derive(Clone, Serialize, Deserialize)]
struct Stored {
    backend: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    docker: Option<DockerPlan>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    gce: Option<Box<GcePlan>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    azureml: Option<Box<AzuremlPlan>>,
}

impl Kept {
    /// The section of Compute Engine, also in a plan of before that runs elsewhere.
    pub fn gce(&self) -> Option<&GcePlan> {
        if let Compute::Gce(gce) = &self.compute { Some(gce) } else { self.besides.gce.as_deref() }
    }
}

impl From<Compute> for Kept {
    fn from(compute: Compute) -> Self {
        Self { compute, besides: Besides::default() }
    }
}

impl TryFrom<Stored> for Kept {
    type Error = &'static str;

    fn try_from(stored: Stored) -> Result<Self, Self::Error> {
        let Stored { backend, mut docker, mut gce, mut azureml } = stored;
        let compute = match Backend::named(&backend) {
            Some(Backend::Local) => Compute::Local,
            Some(Backend::Docker) => Compute::Docker(docker.take().unwrap_or_default()),
            Some(Backend::Gce) => Compute::Gce(gce.take().ok_or("the plan describes no machine of Compute Engine")?),
            Some(Backend::Azureml) => Compute::Azureml(azureml.take().ok_or("the plan describes no machine of Azure ML")?),
            Some(Backend::Fake) => Compute::Fake,
            None => Compute::Unknown(backend),
        };
        Ok(Self { compute, besides: Besides { docker, gce, azureml } })
    }
}

impl From<Kept> for Stored {
    fn from(kept: Kept) -> Self {
        let Kept { compute, besides: Besides { docker, gce, azureml } } = kept;
        let stored = Self { backend: compute.backend().to_owned(), docker, gce, azureml };
        match compute {
            Compute::Docker(docker) => Self { docker: Some(docker), ..stored },
            Compute::Gce(gce) => Self { gce: Some(gce), ..stored },
            Compute::Azureml(azureml) => Self { azureml: Some(azureml), ..stored },
            Compute::Local | Compute::Fake | Compute::Unknown(_) => stored,
        }
    }
}

impl From<Kept> for ComputeSpec {
    /// The compute section in a user's spelling.
    fn from(kept: Kept) -> Self {
        let Stored { backend, docker, gce, azureml } = kept.into();
        Self {
            backend: Some(backend),
            docker: docker.map(Into::into).unwrap_or_default(),
            gce: gce.map(|gce| (*gce).into()).unwrap_or_default(),
            azureml: azureml.map(|azureml| (*azureml).into()).unwrap_or_default(),
            ..Self::default()
        }
    }
}

impl Deref for Kept {
    type Target = Compute;

    fn deref(&self) -> &Compute {
        &self.compute
    }
}

impl DerefMut for Kept {
    fn deref_mut(&mut self) -> &mut Compute {
        &mut self.compute
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn each_backend_has_its_name() {
        for (name, backend) in Backend::NAMES.into_iter().zip(Backend::ALL) {
            assert_eq!((Backend::named(name), backend.name()), (Some(backend), name));
        }
        assert_eq!(Backend::named("moon"), None);
    }

    #[test]
    fn a_new_plan_has_the_section_of_its_backend_and_one_of_before_keeps_all() {
        let stored = |compute: Compute| json!(Kept::from(compute));
        assert_eq!(stored(Compute::Local), json!({ "backend": "local" }));
        assert_eq!(stored(Compute::Docker(DockerPlan::default())).as_object().map(serde_json::Map::len), Some(2));
        let both = json!({ "backend": "local", "docker": DockerPlan::default(), "gce": GcePlan::default() });
        for backend in ["local", "docker", "gce", "fake", "moon"] {
            let before = Value::Object(
                both.as_object().cloned().into_iter().flatten().chain([("backend".into(), json!(backend))]).collect(),
            );
            let kept: Kept = serde_json::from_value(before.clone()).unwrap();
            assert_eq!((kept.backend(), json!(kept)), (backend, before));
        }
        let azureml = || Compute::Azureml(Box::default());
        assert_eq!(stored(azureml()).as_object().map(serde_json::Map::len), Some(2));
        assert_eq!(serde_json::from_value::<Kept>(stored(azureml())).map(|kept| kept.compute).ok(), Some(azureml()));
        for backend in ["gce", "azureml"] {
            assert!(serde_json::from_value::<Kept>(json!({ "backend": backend })).is_err());
        }
    }
}
