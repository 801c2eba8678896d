//! The role that a job's nodes lack where they may not pull its image, and the command that gives it to them.

use serde_json::Value;

use super::{Azureml, Refusal, body};
use crate::identity::entra::is_object_id;

/// Parts of the words in which the service says so.
const DENIED: [&str; 3] = ["`acrpull`", "acr refresh token", "aka.ms/acr/authorization"];

/// Whether nodes could not begin with a job since the registry of its image denied them that.
pub fn cannot_pull(why: &str) -> bool {
    let why = why.to_ascii_lowercase();
    DENIED.iter().any(|words| why.contains(words))
}

impl Azureml {
    /// The reason why such a job failed, with what its user can do about it.
    pub(super) async fn with_role_to_pull(&self, found: &Value, why: &str) -> String {
        // Words without advice are better than none.
        let Some(registry) = self.registry_of(found).await.ok().flatten() else { return why.to_owned() };
        let cluster = self.cluster_of(found).await.ok().flatten().unwrap_or_default();
        let who = principal(&cluster["identity"]).unwrap_or("OBJECT_ID");
        let why = why.trim_end_matches('.');
        format!(
            "{why}; the identity of the job's nodes needs the role AcrPull on the registry {registry}: \
             `az role assignment create --assignee {who} --role AcrPull --scope \"$(az acr show --name {registry} --query id --output tsv)\"`"
        )
    }

    /// The name of the registry in Azure that has a job's image; `None` for another's.
    async fn registry_of(&self, found: &Value) -> Result<Option<String>, Refusal> {
        let environment = found["properties"]["environmentId"].as_str().unwrap_or_default();
        let is_name = |name: &&str| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric());
        let Some(version) = environment.rsplit('/').next().filter(is_name) else { return Ok(None) };
        let environment = self.client.find(&["environments", body::ENVIRONMENT, "versions", version]).await?.unwrap_or_default();
        let host = environment["properties"]["image"].as_str().and_then(|image| image.split('/').next());
        Ok(host.and_then(|host| host.strip_suffix(".azurecr.io")).filter(is_name).map(str::to_owned))
    }
}

/// The object id of an identity of a cluster.
fn principal(identity: &Value) -> Option<&str> {
    let assigned = identity["userAssignedIdentities"].as_object().and_then(|assigned| assigned.values().next());
    let id = identity["principalId"].as_str().or_else(|| assigned?["principalId"].as_str())?;
    Some(id).filter(|id| is_object_id(id))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_registry_that_denies_is_known_by_the_services_words() {
        for (why, denied) in [
            (
                "Failed to pull Docker image acr1.azurecr.io/azureml/x. This error may occur because the compute could not authenticate \
                 with the Docker registry to pull the image. If using ACR please ensure the ACR has Admin user enabled or a Managed \
                 Identity with `AcrPull` access to the ACR is assigned to the compute.",
                true,
            ),
            ("AcrRefreshTokenRetrievalError: Unable to retrieve ACR refresh token using Compute Identity 1", true),
            ("FailedPullingImage: Unable to pull docker image: unauthorized, visit https://aka.ms/acr/authorization", true),
            ("Failed to pull Docker image: manifest unknown", false),
        ] {
            assert_eq!(cannot_pull(why), denied, "{why}");
        }
    }

    #[test]
    fn a_clusters_identity_has_an_object_id_or_none_that_could_be_typed() {
        let id = "00000000-0000-0000-0000-0000000000cc";
        let assigned = json!({ "type": "UserAssigned", "userAssignedIdentities": { "/subscriptions/x": { "principalId": id } } });
        assert_eq!(principal(&assigned), Some(id));
        assert_eq!(principal(&json!({ "type": "SystemAssigned", "principalId": id })), Some(id));
        let hostile = json!({ "principalId": "$(rm -rf ~)00000000000000000000000000" });
        assert_eq!((principal(&Value::Null), principal(&hostile)), (None, None));
    }
}
