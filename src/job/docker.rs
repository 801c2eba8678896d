//! How a job runs as a container: `[compute.docker]` as typed, and what it means.

use std::{collections::BTreeMap, fmt, str::FromStr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::units::Bytes;

/// How the job's container is made (backend `docker`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DockerSpec {
    /// Image with ftctl and ft-trainer in it, instead of the one that ftctl builds. `NAME@sha256:...` always means the same bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// `all`, `none`, or how many; absent: `none`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpus: Option<Gpus>,
    /// Size of /dev/shm, which several GPUs exchange gradients through; absent: 1GiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shared_memory: Option<Bytes>,
    /// Limits by their names, such as `memlock` or `nofile`; -1 is no limit.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub ulimits: BTreeMap<String, i64>,
    /// Directories of the engine's machine to mount, as `/there:/in/the/container`; append `:ro` for a read-only mount.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<String>,
    /// `UID:GID` of the container's processes; absent: the owner of the store's directory, or with a blob container an unprivileged
    /// user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// `bridge`, `host`, `none`, or a network of the engine; absent: `bridge`. Only `host` reaches a store on the machine's own
    /// loopback.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
}

/// The same with nothing left open.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DockerPlan {
    /// `None`: the one that ftctl builds.
    pub image: Option<String>,
    pub gpus: Gpus,
    pub shared_memory: Bytes,
    pub ulimits: BTreeMap<String, i64>,
    pub mounts: Vec<String>,
    pub user: Option<String>,
    pub network: String,
}

impl Default for DockerPlan {
    fn default() -> Self {
        DockerSpec::default().into()
    }
}

impl From<DockerSpec> for DockerPlan {
    fn from(spec: DockerSpec) -> Self {
        Self {
            image: spec.image,
            gpus: spec.gpus.unwrap_or(Gpus::None),
            shared_memory: spec.shared_memory.unwrap_or(Bytes(1 << 30)),
            ulimits: spec.ulimits,
            mounts: spec.mounts,
            user: spec.user,
            network: spec.network.unwrap_or_else(|| "bridge".to_owned()),
        }
    }
}

impl From<DockerPlan> for DockerSpec {
    /// The section in a user's spelling.
    fn from(plan: DockerPlan) -> Self {
        Self {
            image: plan.image,
            gpus: Some(plan.gpus),
            shared_memory: Some(plan.shared_memory),
            ulimits: plan.ulimits,
            mounts: plan.mounts,
            user: plan.user,
            network: Some(plan.network),
        }
    }
}

/// Whether a mount is one: two absolute paths, and `ro` or `rw` behind them.
pub fn is_mount(text: &str) -> bool {
    let parts: Vec<&str> = text.split(':').collect();
    let absolute = |path: &&str| path.starts_with('/');
    matches!(parts.as_slice(), [there, here] | [there, here, "ro" | "rw"] if absolute(there) && absolute(here))
}

/// Whether a user is given by numbers, which mean the same in every image.
pub fn is_user(text: &str) -> bool {
    numbers(text).is_some()
}

/// User and group of `UID:GID`.
pub fn numbers(text: &str) -> Option<(u32, u32)> {
    let (user, group) = text.split_once(':')?;
    Some((user.parse().ok()?, group.parse().ok()?))
}

/// `all`, `none`, or how many.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub enum Gpus {
    None,
    All,
    Count(u32),
}

impl FromStr for Gpus {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.parse()) {
            ("all", _) => Ok(Self::All),
            ("none", _) | (_, Ok(0)) => Ok(Self::None),
            (_, Ok(count)) => Ok(Self::Count(count)),
            _ => Err(format!("`{text}` is not a number of GPUs; write all, none, or a number in quotes")),
        }
    }
}

impl fmt::Display for Gpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::All => f.write_str("all"),
            Self::Count(count) => count.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_typed_survives_and_nonsense_is_refused() {
        for (text, gpus) in [("all", Gpus::All), ("none", Gpus::None), ("2", Gpus::Count(2))] {
            assert_eq!((text.parse(), gpus.to_string().as_str()), (Ok(gpus), text));
        }
        assert_eq!("0".parse(), Ok(Gpus::None));
        assert!("-1".parse::<Gpus>().is_err() && "some".parse::<Gpus>().is_err());
        assert!(is_mount("/a:/b") && is_mount("/a:/b:ro"));
        assert!(["/a", "a:/b", "/a:b", "/a:/b:x", "/a:/b:ro:z"].iter().all(|text| !is_mount(text)));
        assert_eq!(numbers("1000:10"), Some((1_000, 10)));
        assert!(["1000", "me:10", "-1:0", "1:2:3"].iter().all(|text| !is_user(text)));
    }
}
