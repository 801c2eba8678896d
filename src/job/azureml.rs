//! A job's requirements of Azure ML.

use std::{fmt, str::FromStr, time::Duration};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The machine on Azure ML, and the workspace that has it; what is absent is as the cheapest machine with an accelerator.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AzuremlSpec {
    /// Id of the subscription; absent: `AZUREML_ARM_SUBSCRIPTION`, a `config.json` here or above, or what `az` uses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subscription: Option<Subscription>,
    /// Resource group of the workspace; absent: as for `subscription`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_group: Option<ResourceGroup>,
    /// Name of the workspace; absent: as for `subscription`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workspace: Option<Workspace>,
    /// Where the job's node comes from; absent: `cluster`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compute: Option<Placement>,
    /// A cluster of the workspace, which is used as it is; absent: one of ftctl's own, which is made and removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<Cluster>,
    /// Name of the machine's size, such as `Standard_ND40rs_v2`; absent: the cheapest that has the accelerators.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<String>,
    /// `t4`, `v100`, `a100`, `a100-80gb` or `h100`; absent: that of `size`, or `t4`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accelerator: Option<String>,
    /// How many of them; absent: those of `size`, or 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accelerators: Option<u32>,
    /// Whether the machine may be preempted, at a fifth of the price ("low priority"); absent: true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spot: Option<bool>,
    /// Priority of a serverless job that is not spot; absent: `standard`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tier: Option<Tier>,
    /// Container image with ftctl and its trainer, by its digest in a registry that the machine may read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// How the job signs in to its store: `managed`, the cluster's own identity; `user`, yours; `none`, with a signature that
    /// everybody in the workspace can read; or the resource id of a user-assigned identity. Absent: `managed`, and `user` where
    /// there is no cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub identity: Option<Identity>,
    /// Whether a node of ftctl's own cluster has a public address; absent: false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub public_address: Option<bool>,
}

/// Where the job's node comes from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Placement {
    /// A cluster of the workspace.
    #[default]
    Cluster,
    /// The service finds one.
    Serverless,
}

/// Priority of a serverless job that is not spot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Tier {
    /// Low.
    Basic,
    /// Normal.
    Standard,
    /// High.
    Premium,
}

/// [`AzuremlSpec`] with every default filled in. Without a workspace, the environment of the user says which.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AzuremlPlan {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subscription: Option<Subscription>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_group: Option<ResourceGroup>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<Workspace>,
    pub compute: Placement,
    /// Absent: one of ftctl's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<Cluster>,
    pub size: String,
    pub accelerator: String,
    pub accelerators: u32,
    pub spot: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier: Option<Tier>,
    pub image: Option<String>,
    pub identity: Identity,
    pub public_address: bool,
}

/// A node without a job leaves ftctl's own cluster after so long. It is paid for until then.
pub const IDLE: Duration = Duration::from_secs(120);
/// The time reckoned for a node's start, which is paid for: it boots, and pulls the image. The service has no limit for it.
pub const START: Duration = Duration::from_secs(600);
/// Likewise for the farewell of its programs, and for its leaving.
const LEAVING: Duration = Duration::from_secs(90);

impl AzuremlPlan {
    /// How long a node is paid for before its job's programs begin, and after they end.
    pub fn besides(&self) -> [Duration; 2] {
        let idle = if self.compute == Placement::Cluster { IDLE } else { Duration::ZERO };
        [START, idle + LEAVING]
    }
}

impl From<AzuremlPlan> for AzuremlSpec {
    /// The section in a user's spelling.
    fn from(plan: AzuremlPlan) -> Self {
        Self {
            subscription: plan.subscription,
            resource_group: plan.resource_group,
            workspace: plan.workspace,
            compute: Some(plan.compute),
            cluster: plan.cluster,
            size: Some(plan.size),
            accelerator: Some(plan.accelerator),
            accelerators: Some(plan.accelerators),
            spot: Some(plan.spot),
            tier: plan.tier,
            image: plan.image,
            identity: Some(plan.identity),
            public_address: Some(plan.public_address),
        }
    }
}

/// A name that goes into an address, and is held to Azure's own rules before.
macro_rules! name {
    ($kind:ident, $what:literal, $holds:expr) => {
        // Without a doc comment, which would be the key's meaning in the schema.
        #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        #[serde(try_from = "String", into = "String")]
        #[schemars(with = "String")]
        pub struct $kind(String);

        impl $kind {
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $kind {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                let holds: fn(&str) -> bool = $holds;
                if holds(text) { Ok(Self(text.to_owned())) } else { Err(format!("`{}` is no {}", text.escape_debug(), $what)) }
            }
        }

        impl fmt::Display for $kind {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

name!(
    Subscription,
    "id of a subscription: that is like 00000000-0000-0000-0000-000000000000, as `az account show` tells it",
    is_guid
);
name!(
    ResourceGroup,
    "name of a resource group: letters, digits and any of -_.(), at most 90, no point at the end",
    is_resource_group
);
name!(
    Workspace,
    "name of a workspace: 3 to 33 letters, digits, hyphens and underscores, the first a letter or a digit",
    is_workspace
);
name!(Cluster, "name of a cluster: 3 to 24 letters, digits and hyphens, the first a letter, the last no hyphen", is_cluster);
name!(
    IdentityId,
    "resource id of a user-assigned identity: \
     /subscriptions/ID/resourceGroups/GROUP/providers/Microsoft.ManagedIdentity/userAssignedIdentities/NAME",
    is_identity
);

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
}

fn starts_plainly(text: &str) -> bool {
    text.bytes().next().is_some_and(is_plain)
}

fn is_guid(text: &str) -> bool {
    let groups: Vec<usize> = text.split('-').map(str::len).collect();
    groups == [8, 4, 4, 4, 12] && text.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-')
}

fn is_resource_group(text: &str) -> bool {
    let count = text.chars().count();
    (1..=90).contains(&count) && !text.ends_with('.') && text.chars().all(|c| c.is_alphanumeric() || "-_.()".contains(c))
}

fn is_workspace(text: &str) -> bool {
    (3..=33).contains(&text.len()) && starts_plainly(text) && text.bytes().all(|b| is_plain(b) || b == b'-' || b == b'_')
}

fn is_cluster(text: &str) -> bool {
    let outer = text.starts_with(|c: char| c.is_ascii_alphabetic()) && !text.ends_with('-');
    (3..=24).contains(&text.len()) && outer && text.bytes().all(|b| is_plain(b) || b == b'-')
}

fn is_identity(text: &str) -> bool {
    let parts: Vec<&str> = text.split('/').collect();
    let ["", subscriptions, subscription, groups, group, providers, provider, kind, name] = parts[..] else { return false };
    let fixed = [
        (subscriptions, "subscriptions"),
        (groups, "resourceGroups"),
        (providers, "providers"),
        (provider, "Microsoft.ManagedIdentity"),
        (kind, "userAssignedIdentities"),
    ];
    let is_name =
        (3..=128).contains(&name.len()) && starts_plainly(name) && name.bytes().all(|b| is_plain(b) || b == b'-' || b == b'_');
    fixed.iter().all(|(typed, word)| typed.eq_ignore_ascii_case(word))
        && is_guid(subscription)
        && is_resource_group(group)
        && is_name
}

/// How the job signs in to its store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub enum Identity {
    /// The cluster's own.
    Managed,
    /// That of the user who submits the job.
    User,
    /// Not at all: with a signature that ends with the job.
    None,
    /// A user-assigned one.
    Assigned(IdentityId),
}

impl FromStr for Identity {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "managed" => Ok(Self::Managed),
            "user" => Ok(Self::User),
            "none" => Ok(Self::None),
            id => id.parse().map(Self::Assigned).map_err(|why| format!("{why}; or write managed, user or none")),
        }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Managed => f.write_str("managed"),
            Self::User => f.write_str("user"),
            Self::None => f.write_str("none"),
            Self::Assigned(id) => id.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_held_to_the_rules_of_azure() {
        let guid = "00000000-0000-0000-0000-000000000001";
        let takes = |kind: &str, text: &str| match kind {
            "subscription" => text.parse::<Subscription>().is_ok(),
            "group" => text.parse::<ResourceGroup>().is_ok(),
            "workspace" => text.parse::<Workspace>().is_ok(),
            _ => text.parse::<Cluster>().is_ok(),
        };
        let (long, longer) = ("a".repeat(33), "a".repeat(34));
        for (kind, text) in [
            ("subscription", guid),
            ("group", "rg-1_(x).y"),
            ("group", "größe"),
            ("workspace", "ws1"),
            ("workspace", long.as_str()),
            ("cluster", "gpu"),
            ("cluster", "ftctl-0123456789abcdef01"),
        ] {
            assert!(takes(kind, text), "{kind} {text}");
        }
        for (kind, text) in [
            ("subscription", ""),
            ("subscription", "me"),
            ("subscription", "00000000-0000-0000-0000-00000000000/"),
            ("subscription", "00000000-0000-0000-000-0000000000001"),
            ("group", ""),
            ("group", ".."),
            ("group", "a/b"),
            ("group", "a?b"),
            ("group", "a%2fb"),
            ("workspace", "ws"),
            ("workspace", "-ws"),
            ("workspace", "a/../b"),
            ("workspace", longer.as_str()),
            ("cluster", "1gpu"),
            ("cluster", "gpu-"),
            ("cluster", "g_pu"),
            ("cluster", longer.as_str()),
        ] {
            assert!(!takes(kind, text), "{kind} {text}");
        }
    }

    #[test]
    fn an_identity_is_a_word_or_a_resource_id() {
        let id = "/subscriptions/00000000-0000-0000-0000-000000000001/resourceGroups/rg/providers/Microsoft.ManagedIdentity/userAssignedIdentities/me-1";
        for text in ["managed", "user", "none", id] {
            assert_eq!(text.parse::<Identity>().map(|identity| identity.to_string()), Ok(text.to_owned()));
        }
        for wrong in ["", "system", &id[1..], &id.replace("/rg/", "/../"), &id.replace("me-1", "a/b"), &format!("{id}?x")] {
            assert!(wrong.parse::<Identity>().is_err(), "{wrong}");
        }
    }
}
