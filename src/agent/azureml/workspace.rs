//! The address at which a workspace of Azure ML speaks MLflow's protocol.

use reqwest::Url;

use crate::{identity::Variables, transit};

/// The address of a simulated Azure ML.
const SIMULATED: &str = "FTCTL_ENDPOINT_AZUREML";

/// `azureml://` is the same service under the name that a workspace gives it. A simulated one speaks plain http.
pub fn plainly(address: &str, variables: Variables<'_>) -> String {
    let Some(rest) = address.strip_prefix("azureml://") else { return address.to_owned() };
    let host = rest.split('/').next().unwrap_or_default();
    let is_simulated = variables(SIMULATED).is_some_and(|url| url.strip_prefix("http://") == Some(host));
    format!("{}://{rest}", if is_simulated { "http" } else { "https" })
}

/// Whether this is the address of a workspace of Azure ML: its own hosts by https. A simulated one is on this machine. Other
/// hosts of the domain are users' own: a compute instance's notebooks are at `….instances.azureml.ms`.
pub fn is_of(url: &Url, variables: Variables<'_>) -> bool {
    let here = |url: &Url| url.host_str().is_some_and(transit::is_loopback);
    let simulated = || variables(SIMULATED).and_then(|url| Url::parse(&url).ok()).is_some_and(|url| here(&url));
    let of_service = url.host_str().is_some_and(|host| host.ends_with(".api.azureml.ms"));
    (url.scheme() == "https" && of_service) || (here(url) && simulated())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workspace_is_asked_by_https_and_a_simulated_one_at_its_own_address_alone() {
        let variables = |name: &str| (name == SIMULATED).then(|| "http://127.0.0.1:9".to_owned());
        let at = |address: &str| plainly(address, &variables);
        assert_eq!(at("azureml://eastus.api.azureml.ms/mlflow/v1.0/x"), "https://eastus.api.azureml.ms/mlflow/v1.0/x");
        assert_eq!(at("azureml://127.0.0.1:9/mlflow/v1.0/x"), "http://127.0.0.1:9/mlflow/v1.0/x");
        assert_eq!(at("azureml://127.0.0.1:99/mlflow"), "https://127.0.0.1:99/mlflow");
    }
}
