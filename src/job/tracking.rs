//! `[tracking]`: where a job sends its metrics.

use ft_trainer::settings::validate::{Rule, rule};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Where the job sends its metrics, besides its own log.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TrackingSpec {
    /// Address of an MLflow server, `https://…`, or of an Azure ML workspace, `azureml://…`, which the job's machine must reach;
    /// `none` sends nothing. Absent: none; on `azureml` the attempt's run in the studio.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mlflow: Option<String>,
}

const LONGEST: usize = 2_048;
/// In place of an address.
const NOBODY: &str = "none";

impl TrackingSpec {
    pub fn rule(&self) -> Rule {
        let holds = self.server().is_none_or(is_address);
        let message = "an MLflow server's address begins with https://, http:// or azureml://, and has no password, question mark or hash; a token comes from MLFLOW_TRACKING_TOKEN";
        rule("tracking.mlflow", holds, message)
    }

    /// The address that is named.
    pub fn server(&self) -> Option<&str> {
        self.mlflow.as_deref().filter(|address| *address != NOBODY)
    }

    pub fn is_none(&self) -> bool {
        self.mlflow.is_none()
    }
}

/// It is kept in the job's record, so it has no place for a secret.
fn is_address(text: &str) -> bool {
    let rest = ["https://", "http://", "azureml://"].iter().find_map(|scheme| text.strip_prefix(scheme));
    let host = rest.and_then(|rest| rest.split('/').next()).unwrap_or_default();
    let plain = |character: char| character.is_ascii_graphic() && !"@?#\\\"<>".contains(character);
    !host.is_empty() && text.len() <= LONGEST && text.chars().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_host_and_no_secret() {
        let holds = |address: &str| TrackingSpec { mlflow: Some(address.to_owned()) }.rule().holds;
        assert!(TrackingSpec::default().rule().holds);
        assert!(holds("none") && TrackingSpec { mlflow: Some("none".to_owned()) }.server().is_none());
        for address in ["https://mlflow.example.org", "http://127.0.0.1:5000/", "azureml://westeurope.api.azureml.ms/mlflow/v1.0/x"]
        {
            assert!(holds(address), "{address}");
        }
        for address in [
            "",
            "mlflow.example.org",
            "https://",
            "https:///x",
            "file:///tmp/x",
            "https://me:secret@example.org",
            "https://a/?token=x",
            "https://a#x",
            "https://a b",
        ] {
            assert!(!holds(address), "{address}");
        }
        assert!(!holds(&format!("https://a/{}", "x".repeat(LONGEST))));
    }
}
