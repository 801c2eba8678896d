//! Who is told of jobs: the `[notify]` of the user's file.

use std::{io, process::Stdio, sync::Arc, time::Duration};

use async_trait::async_trait;
use reqwest::Url;
use serde_json::{Value, json};
use tokio::{io::AsyncWriteExt as _, process, time::timeout};

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

/// So long is waited for the host of a webhook by one who only looks.
const GLANCE: Duration = Duration::from_secs(5);

/// Why no message would reach the webhook, as far as that shows without one: its host is asked for `/`, whatever it answers.
pub async fn unreached(notify: &Notify) -> Option<String> {
    let mut root = Url::parse(notify.webhook.as_ref()?).ok()?;
    root.set_path("/");
    root.set_query(None);
    let host = root.host_str().unwrap_or_default().to_owned();
    let ask = async { transit::client(&root).build()?.head(root.clone()).send().await };
    let why = match timeout(GLANCE, ask).await {
        Ok(asked) => transit::why(&asked.err()?),
        Err(_) => format!("no answer within {} s", GLANCE.as_secs()),
    };
    Some(format!("the webhook at {host} cannot be reached: {why}"))
}

/// Takes JSON by POST, as those of Slack, Teams and Discord do.
struct Webhook(Url);

/// Hosts of the workflows that Teams makes for a channel.
const TEAMS: [&str; 2] = [".logic.azure.com", ".api.powerplatform.com"];
/// A listener that is busy is tried so often, with a pause between.
const TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_secs(2);

#[async_trait]
impl Listener for Webhook {
    async fn hear(&self, message: &Value) -> Result<(), String> {
        let client = transit::client(&self.0).build().map_err(|error| transit::why(&error))?;
        let host = self.0.host_str().unwrap_or_default();
        let card = TEAMS.iter().any(|end| host.ends_with(end)).then(|| as_card(message));
        for tries_left in (0..TRIES).rev() {
            let answer = client.post(self.0.clone()).json(card.as_ref().unwrap_or(message)).send().await;
            let status = answer.map_err(|error| format!("the webhook at {host}: {}", transit::why(&error)))?.status();
            match status.as_u16() {
                _ if status.is_success() => break,
                429 | 500.. if tries_left > 0 => tokio::time::sleep(PAUSE).await,
                code => return Err(format!("the webhook at {host} answered {code}")),
            }
        }
        Ok(())
    }
}

/// A message as Teams shows it: an Adaptive Card. Slack and Discord would refuse it for its attachment.
fn as_card(message: &Value) -> Value {
    let text = json!({ "type": "TextBlock", "wrap": true, "text": message["text"] });
    let card = json!({ "type": "AdaptiveCard", "version": "1.4", "body": [text] });
    let mut message = message.clone();
    message["type"] = json!("message");
    message["attachments"] = json!([{ "contentType": "application/vnd.microsoft.card.adaptive", "content": card }]);
    message
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::devcloud::http::{Reply, serve};

    #[tokio::test]
    async fn a_webhook_that_is_busy_is_tried_again_and_one_that_refuses_is_not() {
        for (statuses, told, tries) in [(&[429, 503, 200][..], true, 3), (&[500; 4], false, 3), (&[404; 4], false, 1)] {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let hook = Webhook(format!("http://{}/hook", listener.local_addr().unwrap()).parse().unwrap());
            let asked = Arc::new(AtomicUsize::new(0));
            let counted = Arc::clone(&asked);
            let serving = tokio::spawn(serve(listener, move |_| {
                let status = statuses[counted.fetch_add(1, Ordering::Relaxed)];
                async move { Some(Reply::json(status, &json!({}))) }
            }));
            assert_eq!(hook.hear(&json!({})).await.is_ok(), told, "{statuses:?}");
            assert_eq!(asked.load(Ordering::Relaxed), tries, "{statuses:?}");
            serving.abort();
        }
    }

    #[tokio::test]
    async fn a_webhook_out_of_reach_is_told_without_a_message_to_it() {
        let to = |address: std::net::SocketAddr| Notify {
            webhook: Some(format!("http://{address}/secret?sig=secret")),
            ..Notify::default()
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        // It takes the connection, and says nothing.
        let began = std::time::Instant::now();
        let why = unreached(&to(address)).await.unwrap();
        assert_eq!(why, "the webhook at 127.0.0.1 cannot be reached: no answer within 5 s");
        assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
        let asked = Arc::new(std::sync::Mutex::new(Vec::new()));
        let kept = Arc::clone(&asked);
        let serving = tokio::spawn(serve(listener, move |request| {
            let path = request.url.as_ref().map_or("", Url::path);
            kept.lock().unwrap().push(format!("{} {path}", request.method));
            async move { Some(Reply::json(404, &json!({}))) }
        }));
        assert_eq!(unreached(&to(address)).await, None, "any answer will do");
        assert_eq!(asked.lock().unwrap().last().map(String::as_str), Some("HEAD /"));
        serving.abort();
        let _ = serving.await;
        let why = unreached(&to(address)).await.unwrap();
        assert!(why.starts_with("the webhook at 127.0.0.1 cannot be reached: ") && !why.contains("secret"), "{why}");
        assert_eq!(unreached(&Notify::default()).await, None);
    }

    #[test]
    fn a_workflow_of_teams_gets_a_card() {
        let card = as_card(&json!({ "event": "ended", "text": "ftctl: a-bcdfgh succeeded" }));
        assert_eq!(card["attachments"][0]["content"]["body"][0]["text"], "ftctl: a-bcdfgh succeeded");
        assert_eq!((&card["type"], &card["event"]), (&json!("message"), &json!("ended")));
    }
}
