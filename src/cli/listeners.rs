//! Who is told of jobs: the `[notify]` of the user's file.

use std::{io, process::Stdio, sync::Arc};

use async_trait::async_trait;
use reqwest::Url;
use serde_json::Value;
use tokio::{io::AsyncWriteExt as _, process};

use crate::{
    exit::{Exit, Failure},
    lifecycle::notify::Listener,
    settings::Notify,
    transit,
};

/// The listeners that the user names.
///
/// # Errors
/// [`Exit::Usage`] for an address that is no URL, or to which a message would travel in the clear.
pub fn of(notify: &Notify) -> Result<Vec<Arc<dyn Listener>>, Failure> {
    let mut listeners: Vec<Arc<dyn Listener>> = Vec::new();
    if let Some(text) = &notify.webhook {
        let wrong = || {
            Failure::new(Exit::Usage, "the webhook of [notify] is no address that begins with https://")
                .fix("correct it in the user's config.toml, or in FTCTL_NOTIFY_WEBHOOK")
        };
        listeners.push(Arc::new(Webhook(Url::parse(text).ok().filter(transit::is_private).ok_or_else(wrong)?)));
    }
    if let [program, arguments @ ..] = notify.command.as_slice() {
        listeners.push(Arc::new(Command { program: program.clone(), arguments: arguments.to_vec() }));
    }
    Ok(listeners)
}

/// Takes JSON by POST, as those of Slack, Teams and Discord do.
struct Webhook(Url);

#[async_trait]
impl Listener for Webhook {
    async fn hear(&self, message: &Value) -> Result<(), String> {
        let client = transit::client(&self.0).build().map_err(|error| transit::why(&error))?;
        let answer = client.post(self.0.clone()).json(message).send().await;
        let host = self.0.host_str().unwrap_or_default();
        match answer {
            Err(error) => Err(format!("the webhook at {host}: {}", transit::why(&error))),
            Ok(answer) if answer.status().is_success() => Ok(()),
            Ok(answer) => Err(format!("the webhook at {host} answered {}", answer.status().as_u16())),
        }
    }
}

/// Reads the message on stdin.
struct Command {
    program: String,
    arguments: Vec<String>,
}

#[async_trait]
impl Listener for Command {
    async fn hear(&self, message: &Value) -> Result<(), String> {
        let mut command = process::Command::new(&self.program);
        command.args(&self.arguments).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
        let failed = |error: io::Error| format!("{}: {error}", self.program);
        let mut child = command.spawn().map_err(failed)?;
        if let Some(mut stdin) = child.stdin.take() {
            // One that does not read may have no use for it.
            let _ = stdin.write_all(message.to_string().as_bytes()).await;
        }
        let status = child.wait().await.map_err(failed)?;
        if status.success() { Ok(()) } else { Err(format!("{} ended with {status}", self.program)) }
    }
}
