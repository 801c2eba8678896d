//! Where a job runs, with nothing left open: one `match` per question.

use std::{
    ops::{Deref, DerefMut},
    time::Duration,
};

use serde::{Deserialize, Serialize};

use super::{
    docker::DockerPlan,
    gce::{GcePlan, Recovery},
    spec::ComputeSpec,
};

/// A kind of place where jobs run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    Local,
    Docker,
    Gce,
    Fake,
}

impl Backend {
    /// Each with its name, as `compute.backend` spells it.
    pub const ALL: [(&str, Self); 4] = [("local", Self::Local), ("docker", Self::Docker), ("gce", Self::Gce), ("fake", Self::Fake)];

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(known, _)| *known == name).map(|(_, backend)| *backend)
    }

    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].0
    }
}

/// A place where a job runs, and its machine there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Compute {
    Local,
    Docker(DockerPlan),
    Gce(Box<GcePlan>),
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
            Self::Fake => Backend::Fake.name(),
            Self::Unknown(name) => name,
        }
    }

    /// The container image that the job file names.
    pub fn image(&self) -> Option<&str> {
        match self {
            Self::Docker(docker) => docker.image.as_deref(),
            Self::Gce(gce) => gce.image.as_deref(),
            Self::Local | Self::Fake | Self::Unknown(_) => None,
        }
    }

    /// Whether the backend replaces a machine that was taken away, without ftctl.
    pub fn replaces_machines(&self) -> bool {
        match self {
            Self::Gce(gce) => gce.recovery == Recovery::Group,
            Self::Local | Self::Docker(_) | Self::Fake | Self::Unknown(_) => false,
        }
    }

    /// How long before the farewell that every machine has its programs hear that it will be taken away.
    pub fn notice(&self) -> Duration {
        match self {
            Self::Gce(gce) => gce.preemption_notice.map_or(Duration::ZERO, |notice| notice.0),
            Self::Local | Self::Docker(_) | Self::Fake | Self::Unknown(_) => Duration::ZERO,
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
}

/// The stored form. The order of its fields counts.
#[derive(Clone, Serialize, Deserialize)]
struct Stored {
    backend: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    docker: Option<DockerPlan>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    gce: Option<Box<GcePlan>>,
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
        let Stored { backend, mut docker, mut gce } = stored;
        let compute = match Backend::named(&backend) {
            Some(Backend::Local) => Compute::Local,
            Some(Backend::Docker) => Compute::Docker(docker.take().unwrap_or_default()),
            Some(Backend::Gce) => Compute::Gce(gce.take().ok_or("the plan describes no machine of Compute Engine")?),
            Some(Backend::Fake) => Compute::Fake,
            None => Compute::Unknown(backend),
        };
        Ok(Self { compute, besides: Besides { docker, gce } })
    }
}

impl From<Kept> for Stored {
    fn from(kept: Kept) -> Self {
        let Kept { compute, besides: Besides { docker, gce } } = kept;
        let backend = compute.backend().to_owned();
        match compute {
            Compute::Docker(docker) => Self { backend, docker: Some(docker), gce },
            Compute::Gce(gce) => Self { backend, docker, gce: Some(gce) },
            Compute::Local | Compute::Fake | Compute::Unknown(_) => Self { backend, docker, gce },
        }
    }
}

impl From<Kept> for ComputeSpec {
    /// The compute section in a user's spelling.
    fn from(kept: Kept) -> Self {
        let Stored { backend, docker, gce } = kept.into();
        Self {
            backend: Some(backend),
            docker: docker.map(Into::into).unwrap_or_default(),
            gce: gce.map(|gce| (*gce).into()).unwrap_or_default(),
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
        for (name, backend) in Backend::ALL {
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
        assert!(serde_json::from_value::<Kept>(json!({ "backend": "gce" })).is_err());
    }
}
