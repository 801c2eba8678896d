//! Parsers that the official crate lacks: listings with folders, and the bodies of errors.

use azure_core::{time::OffsetDateTime, xml};
use jiff::Timestamp;
use serde::Deserialize;

/// One page of what is directly below a folder.
#[derive(Debug, Deserialize)]
pub(super) struct Folder {
    #[serde(rename = "Blobs", default)]
    entries: Entries,
}

#[derive(Debug, Default, Deserialize)]
struct Entries {
    /// Blobs, and folders, which end with a slash.
    #[serde(rename = "$value", default)]
    entries: Vec<Entry>,
}

#[derive(Debug, Deserialize)]
struct Entry {
    #[serde(rename = "Name")]
    name: String,
}

impl Folder {
    pub fn names(self) -> impl Iterator<Item = String> {
        self.entries.entries.into_iter().map(|entry| entry.name)
    }
}

/// The epoch when there is none.
pub(super) fn timestamp(time: Option<OffsetDateTime>) -> Timestamp {
    time.and_then(|time| Timestamp::from_second(time.unix_timestamp()).ok()).unwrap_or_default()
}

/// The message of an error's body, in one line, with the detail of a failed sign-in: why, and until when it was good.
pub(super) fn message(body: &[u8]) -> String {
    #[derive(Deserialize)]
    struct Error {
        #[serde(rename = "Message", default)]
        message: String,
        #[serde(rename = "AuthenticationErrorDetail", default)]
        detail: String,
    }
    let Ok(Error { message, detail }) = xml::from_xml::<_, Error>(body) else { return String::new() };
    let first = |text: &str| text.lines().next().unwrap_or_default().trim().to_owned();
    // Some repeat the signature of the request.
    let parts = [first(&message), Some(first(&detail)).filter(|detail| !detail.contains("signature found")).unwrap_or_default()];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listings_may_mix_blobs_and_folders() {
        let text = r#"<?xml version="1.0" encoding="utf-8"?><EnumerationResults ServiceEndpoint="x" ContainerName="c"><Prefix>p</Prefix>
            <Blobs><BlobPrefix><Name>p/a/</Name></BlobPrefix>
            <Blob><Name>p/b&amp;c</Name><Properties><Last-Modified>Fri, 20 Nov 2026 18:00:00 GMT</Last-Modified><Etag>1</Etag>
            <Content-Length>7</Content-Length><Content-MD5 /></Properties></Blob>
            <BlobPrefix><Name>p/d/</Name></BlobPrefix></Blobs><NextMarker>more</NextMarker></EnumerationResults>"#;
        let names = |text: &str| xml::from_xml::<_, Folder>(text).map(|folder| folder.names().collect::<Vec<_>>());
        assert_eq!(names(text).unwrap(), ["p/a/", "p/b&c", "p/d/"]);
        assert!(names("<EnumerationResults><Blobs /><NextMarker /></EnumerationResults>").unwrap().is_empty());
        names("<html>").unwrap_err();
    }

    #[test]
    fn messages_are_their_first_line() {
        let text = "\u{feff}<Error><Code>X</Code><Message>It is late.\nRequestId:1</Message></Error>";
        assert_eq!(message(text.as_bytes()), "It is late.");
        assert_eq!(message(b"gone"), "");
        let detailed = |detail: &str| {
            message(
                format!("<Error><Message>No.</Message><AuthenticationErrorDetail>{detail}</AuthenticationErrorDetail></Error>")
                    .as_bytes(),
            )
        };
        assert_eq!(detailed("Signed expiry time [1] must be after [2]"), "No. Signed expiry time [1] must be after [2]");
        assert_eq!(detailed("The MAC signature found in the HTTP request 'x' is not the same"), "No.");
    }
}
