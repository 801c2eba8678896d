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

/// The message of an error's body, in one line.
pub(super) fn message(body: &[u8]) -> String {
    #[derive(Deserialize)]
    struct Error {
        #[serde(rename = "Message", default)]
        message: String,
    }
    xml::from_xml::<_, Error>(body).map(|error| error.message.lines().next().unwrap_or_default().to_owned()).unwrap_or_default()
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
    }
}
