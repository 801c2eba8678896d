//! A job's entries for the workspace's own pages and notebooks: where its store is, and its finished model.

use serde_json::{Value, json};

use super::{
    super::{Class, ProviderError, whose::Mark},
    Azureml, Refusal, body,
    client::Call,
};
use crate::{
    job::{digest::Digest, id::AttemptId},
    store::azure::Named,
};

const RECEIPT: &str = "ftctl-receipt";
const PERPLEXITY: &str = "ftctl-perplexity";
/// Where the agent leaves the model, below its job's artifacts.
const MODEL: &str = "outputs/model";

impl Azureml {
    /// The store's container as a datastore without a key: who looks into it does so with an identity of their own.
    pub(super) async fn publish_store(&self, mark: &Mark<'_>) -> Result<String, Refusal> {
        let absent = || ProviderError::new(Class::Invalid, "the store is no blob container");
        let place = self.container.as_ref().ok_or_else(absent)?;
        let name = datastore_name(place);
        let segments = ["datastores", &name];
        let body = datastore(place, mark);
        let is_it =
            |known: &Value| ["accountName", "containerName"].iter().all(|key| known["properties"][key] == body["properties"][key]);
        match self.client.find(&segments).await? {
            Some(known) if is_it(&known) => {}
            Some(_) => return Err(taken(&format!("datastore {name}")).into()),
            None => {
                let mut url = self.client.url(&segments)?;
                // The service would look whether its own identity may read the container.
                url.query_pairs_mut().append_pair("skipValidation", "true");
                self.client.change(Call::put(url, body)).await?;
            }
        }
        Ok(format!("datastore {name}"))
    }

    /// A version of the model that has the job's name. The service takes nothing but a number.
    pub(super) async fn publish_model(&self, attempt: &AttemptId, tags: &Value) -> Result<String, Refusal> {
        let (name, version) = (attempt.job.name(), attempt.job.number().to_string());
        let segments = ["models", name, "versions", &version];
        let body = model(attempt, tags);
        match self.client.find(&segments).await? {
            Some(known) if known["properties"]["modelUri"] == body["properties"]["modelUri"] => {}
            Some(_) => return Err(taken(&format!("model {name}:{version}")).into()),
            None => self.client.change(Call::put(self.client.url(&segments)?, body)).await?,
        }
        Ok(format!("model {name}:{version}"))
    }
}

fn taken(what: &str) -> ProviderError {
    ProviderError::new(Class::Conflict, format!("the {what} of the workspace is something else"))
        .fix("archive it in the studio, or find out who made it")
}

/// The same for every job of a store. Names have letters, digits and underscores.
fn datastore_name(place: &Named) -> String {
    let address = format!("{}{}", place.service, place.container);
    format!("ftctl_{}", &Digest::of(address.as_bytes()).as_str()[..12])
}

fn datastore(place: &Named, mark: &Mark<'_>) -> Value {
    let host = place.service.host_str().unwrap_or_default();
    let port = place.service.port().map(|port| format!(":{port}")).unwrap_or_default();
    let endpoint = host.strip_prefix(&format!("{}.blob.", place.account)).unwrap_or(host);
    json!({
        "properties": {
            "datastoreType": "AzureBlob",
            "description": format!("Store of ftctl: {}/{}", place.account, place.container),
            "accountName": place.account,
            "containerName": place.container,
            "endpoint": format!("{endpoint}{port}"),
            "protocol": place.service.scheme(),
            "credentials": { "credentialsType": "None" },
            "tags": { body::OURS: "1", body::OWNER: mark.owner, body::STORE: mark.store },
        },
    })
}

fn model(attempt: &AttemptId, tags: &Value) -> Value {
    json!({
        "properties": {
            "description": format!("Trained by the job {} of ftctl", attempt.job),
            "modelType": "custom_model",
            "modelUri": format!("azureml://jobs/{}/outputs/artifacts/paths/{MODEL}/", attempt.machine_name()),
            "tags": tags,
        },
    })
}

/// The tags of a finished model.
pub(super) fn tags(attempt: &AttemptId, receipt: &str, perplexity: Option<&str>, mark: &Mark<'_>) -> Value {
    let mut tags = body::tags(attempt, mark);
    tags[RECEIPT] = json!(receipt);
    if let Some(perplexity) = perplexity {
        tags[PERPLEXITY] = json!(perplexity);
    }
    tags
}
