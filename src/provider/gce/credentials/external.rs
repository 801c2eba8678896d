//! External accounts (AIP-4117): an identity of a workflow, another cloud or a company becomes one of Google's.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use jiff::Timestamp;
use reqwest::Method;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{process::Command, time::timeout};

use super::{Place, SCOPE, TokenAnswer, answer, ask, aws, certificate, read, unusable};
use crate::provider::Result;

const ALLOW_PROGRAMS: &str = "GOOGLE_EXTERNAL_ACCOUNT_ALLOW_EXECUTABLES";
/// The variables that are read for what a file of credentials names.
pub const VARIABLES: [&str; 9] = [
    ALLOW_PROGRAMS,
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    certificate::LIST,
    "CLOUDSDK_CONFIG",
    "HOME",
];
/// A program's time limits in milliseconds: the default, and the most.
const PROGRAM_LIMITS: (u64, u64) = (30_000, 120_000);

#[derive(Deserialize)]
pub struct Account {
    pub audience: String,
    subject_token_type: String,
    token_url: String,
    credential_source: Source,
    service_account_impersonation_url: Option<String>,
    client_id: Option<String>,
    client_secret: Option<String>,
    workforce_pool_user_project: Option<String>,
}

/// Where the identity comes from: GitHub Actions writes a URL here.
#[derive(Deserialize)]
pub struct Source {
    environment_id: Option<String>,
    #[serde(flatten)]
    pub aws: aws::Addresses,
    executable: Option<Program>,
    file: Option<PathBuf>,
    certificate: Option<certificate::Source>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    format: Option<Format>,
}

#[derive(Deserialize)]
struct Format {
    #[serde(rename = "type")]
    kind: String,
    subject_token_field_name: Option<String>,
}

#[derive(Deserialize)]
struct Program {
    command: String,
    timeout_millis: Option<u64>,
    output_file: Option<PathBuf>,
}

impl Place<'_> {
    pub async fn federated(&self, account: &Account) -> Result<TokenAnswer> {
        let Some(source) = &account.credential_source.certificate else {
            return self.exchange(account, &self.subject_token(account).await?).await;
        };
        let own = self.certificate(source)?;
        Place { identity: Some(own.identity), ..*self }.exchange(account, &own.subject_token).await
    }

    async fn exchange(&self, account: &Account, subject_token: &str) -> Result<TokenAnswer> {
        let mut fields = vec![
            ("grant_type", "urn:ietf:params:oauth:grant-type:token-exchange"),
            ("audience", &account.audience),
            ("scope", SCOPE),
            ("requested_token_type", "urn:ietf:params:oauth:token-type:access_token"),
            ("subject_token_type", &account.subject_token_type),
            ("subject_token", subject_token),
        ];
        // A client of its own pays for its requests itself.
        let payer = account.workforce_pool_user_project.as_ref().filter(|_| account.client_id.is_none());
        let options = payer.map(|project| json!({ "userProject": project }).to_string());
        fields.extend(options.as_deref().map(|options| ("options", options)));
        let mut request = self.post(&account.token_url, &fields)?;
        if let Some(client) = &account.client_id {
            request = request.basic_auth(client, account.client_secret.as_ref());
        }
        let federated: TokenAnswer = ask(request).await?;
        match &account.service_account_impersonation_url {
            Some(url) => self.impersonate(url, &federated.access_token, &[]).await,
            None => Ok(federated),
        }
    }

    async fn subject_token(&self, account: &Account) -> Result<String> {
        let source = &account.credential_source;
        let text = match (&source.environment_id, &source.executable, &source.file, &source.aws.url) {
            (Some(id), ..) if id == "aws1" => return self.aws_identity(account).await,
            (Some(id), ..) => return Err(unusable(self.path, &format!("its credential_source is of an unknown kind, {id}"))),
            (_, Some(program), ..) => return self.told_by(program, account).await,
            (_, _, Some(file), _) => read(file)?,
            (_, _, _, Some(url)) => self.text(Method::GET, url, source.headers.iter()).await?,
            _ => {
                let why = "its credential_source has none of a certificate, a file, a url, a program and a cloud";
                return Err(unusable(self.path, why));
            }
        };
        let format = source.format.as_ref().filter(|format| format.kind == "json");
        let Some(field) = format.and_then(|format| format.subject_token_field_name.as_ref()) else {
            return Ok(text.trim().to_owned());
        };
        let value: Value = serde_json::from_str(&text).map_err(|error| unusable(self.path, &error.to_string()))?;
        let missing = || unusable(self.path, &format!("the identity provider's answer has no `{field}`"));
        value[field].as_str().map(str::to_owned).ok_or_else(missing)
    }

    /// Asks `url`, and takes the answer for text.
    pub async fn text(&self, method: Method, url: &str, headers: impl IntoIterator<Item = (&String, &String)>) -> Result<String> {
        let request = headers.into_iter().fold(self.request(method, url)?, |request, (name, value)| request.header(name, value));
        Ok(String::from_utf8_lossy(&answer(request).await?.bytes).into_owned())
    }

    /// Runs a program that the file names, if the user allows it: such a file may come from another person.
    async fn told_by(&self, program: &Program, account: &Account) -> Result<String> {
        if self.variables.get(ALLOW_PROGRAMS).is_none_or(|value| value != "1") {
            let why = unusable(self.path, &format!("it names a program that says who asks, `{}`", program.command));
            return Err(why.fix(format!("read it, and set {ALLOW_PROGRAMS}=1 if you trust it")));
        }
        let kept = program.output_file.as_deref().and_then(|path| identity(&read(path).ok()?).ok());
        match kept {
            Some(token) => Ok(token),
            None => identity(&self.output(program, account).await?).map_err(|why| unusable(self.path, &why)),
        }
    }

    async fn output(&self, program: &Program, account: &Account) -> Result<String> {
        let mut words = program.command.split_whitespace();
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words).stdin(Stdio::null()).kill_on_drop(true);
        command.env("GOOGLE_EXTERNAL_ACCOUNT_AUDIENCE", &account.audience).env("GOOGLE_EXTERNAL_ACCOUNT_INTERACTIVE", "0");
        command.env("GOOGLE_EXTERNAL_ACCOUNT_TOKEN_TYPE", &account.subject_token_type);
        command.env("GOOGLE_EXTERNAL_ACCOUNT_OUTPUT_FILE", program.output_file.as_deref().unwrap_or(Path::new("")));
        let failed = |why: &str| unusable(self.path, &format!("its program `{}` {why}", program.command));
        let limit = Duration::from_millis(program.timeout_millis.unwrap_or(PROGRAM_LIMITS.0).min(PROGRAM_LIMITS.1));
        let ended = timeout(limit, command.output()).await.map_err(|_| failed(&format!("says nothing within {limit:?}")))?;
        let ended = ended.map_err(|error| failed(&format!("cannot be run: {error}")))?;
        if ended.status.success() {
            return Ok(String::from_utf8_lossy(&ended.stdout).into_owned());
        }
        // Nothing that it printed is shown: it may hold secrets.
        Err(failed(&format!("failed: {}", ended.status)))
    }

    async fn aws_identity(&self, account: &Account) -> Result<String> {
        let addresses = &account.credential_source.aws;
        let caller = self.aws_caller(addresses).await?;
        caller.signed(addresses, &account.audience, Timestamp::now()).map_err(|why| unusable(self.path, &why))
    }
}

/// The token in a program's output.
fn identity(text: &str) -> Result<String, String> {
    let value: Value = serde_json::from_str(text).map_err(|error| format!("its program's answer is not JSON: {error}"))?;
    let word = |name: &str| value[name].as_str();
    if value["success"] != true {
        let (code, message) = (word("code").unwrap_or("no code"), word("message").unwrap_or("no reason given"));
        return Err(format!("its program refuses ({code}): {message}"));
    }
    if value["expiration_time"].as_i64().is_some_and(|until| until <= Timestamp::now().as_second()) {
        return Err("its program's token has expired".to_owned());
    }
    let field = if word("token_type").is_some_and(|kind| kind.ends_with(":saml2")) { "saml_response" } else { "id_token" };
    word(field).map(str::to_owned).ok_or_else(|| format!("its program's answer has no `{field}`"))
}
