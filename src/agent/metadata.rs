//! The cloud's own word, before the signal, that it will take the machine: Google's metadata server says it first.

use std::time::Duration;

use reqwest::{Client, Url};
use tokio::time::sleep;

/// An answer comes when the value changes, or after so many seconds.
const POLL: u64 = 60;
/// After an answer that did not come.
const PAUSE: Duration = Duration::from_secs(1);

/// Returns when the machine whose metadata server is at `server` (scheme and authority) is about to be taken away. What is wrong with
/// the server is tried again for ever: the signal still comes.
pub(super) async fn preempted(server: &str) {
    // The address is the machine's own: a proxy would ask about itself.
    let client = Client::builder().no_proxy().timeout(Duration::from_secs(POLL + 10)).build();
    let url = Url::parse(&format!("{server}/computeMetadata/v1/instance/preempted"));
    let (Ok(client), Ok(mut url)) = (client, url) else { return std::future::pending().await };
    loop {
        match ask(&client, &url).await {
            Ok((value, _)) if value == "TRUE" => return,
            // The next answer comes when this one is no longer true, and at once if that happened meanwhile.
            Ok((_, etag)) => url.set_query(Some(&format!("wait_for_change=true&timeout_sec={POLL}&last_etag={etag}"))),
            Err(_) => sleep(PAUSE).await,
        }
    }
}

/// The value and its version.
async fn ask(client: &Client, url: &Url) -> reqwest::Result<(String, String)> {
    let answer = client.get(url.clone()).header("Metadata-Flavor", "Google").send().await?.error_for_status()?;
    let etag = answer.headers().get("etag").and_then(|etag| etag.to_str().ok()).unwrap_or("0").to_owned();
    Ok((answer.text().await?.trim().to_owned(), etag))
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;

    #[tokio::test]
    async fn the_notice_is_heard_whenever_it_comes() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = format!("http://{}", listener.local_addr().unwrap());
        let answers = async {
            let mut questions = Vec::new();
            for answer in ["HTTP/1.1 503 \r\ncontent-length: 0\r\n\r\n", "FALSE", "FALSE", "TRUE"] {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut head = [0; 1_024];
                let read = stream.read(&mut head).await.unwrap();
                questions.push(String::from_utf8_lossy(&head[..read]).lines().next().unwrap_or_default().to_owned());
                let whole = if answer.starts_with("HTTP") {
                    answer.to_owned()
                } else {
                    format!(
                        "HTTP/1.1 200 \r\nconnection: close\r\netag: x{}\r\ncontent-length: {}\r\n\r\n{answer}",
                        questions.len(),
                        answer.len()
                    )
                };
                stream.write_all(whole.as_bytes()).await.unwrap();
            }
            questions
        };
        let (questions, ()) = tokio::join!(answers, preempted(&server));
        assert!(!questions[1].contains("wait_for_change") && questions[3].contains("wait_for_change=true"), "{questions:?}");
        assert!(questions[2].contains("last_etag=x2") && questions[3].contains("last_etag=x3"), "{questions:?}");
    }
}
