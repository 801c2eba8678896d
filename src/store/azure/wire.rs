//! The XML of the blob protocol.

use std::fmt::Write as _;

use jiff::Timestamp;
use serde::Deserialize;

/// One page of a listing.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Page {
    #[serde(rename = "Blobs", default)]
    blobs: Entries,
    /// Where the next page begins; empty on the last.
    #[serde(rename = "NextMarker", default)]
    pub next: String,
}

#[derive(Debug, Default, Deserialize)]
struct Entries {
    #[serde(rename = "$value", default)]
    entries: Vec<Entry>,
}

#[derive(Debug, Deserialize)]
pub(super) enum Entry {
    Blob {
        #[serde(rename = "Name")]
        name: String,
        #[serde(rename = "Properties")]
        properties: Properties,
    },
    /// With a delimiter: everything below a folder.
    BlobPrefix {
        #[serde(rename = "Name")]
        name: String,
    },
}

#[derive(Debug, Deserialize)]
pub(super) struct Properties {
    #[serde(rename = "Content-Length", default)]
    pub size: u64,
    #[serde(rename = "Last-Modified", default)]
    modified: String,
}

impl Properties {
    pub fn modified(&self) -> Timestamp {
        date(&self.modified)
    }
}

impl Page {
    pub fn parse(text: &str) -> Result<Self, String> {
        quick_xml::de::from_str(text).map_err(|error| format!("it sent a listing that cannot be read: {error}"))
    }

    pub fn entries(self) -> Vec<Entry> {
        self.blobs.entries
    }
}

/// A date as HTTP writes it; the epoch when it is none.
pub(super) fn date(text: &str) -> Timestamp {
    jiff::fmt::rfc2822::parse(text).map(|zoned| zoned.timestamp()).unwrap_or_default()
}

/// A block that was staged and not committed.
#[derive(Debug, Deserialize)]
pub(super) struct Block {
    #[serde(rename = "Name")]
    pub id: String,
}

/// The uncommitted blocks of a blob.
pub(super) fn uncommitted(text: &str) -> Result<Vec<Block>, String> {
    #[derive(Default, Deserialize)]
    struct Blocks {
        #[serde(rename = "Block", default)]
        blocks: Vec<Block>,
    }
    #[derive(Deserialize)]
    struct List {
        #[serde(rename = "UncommittedBlocks", default)]
        uncommitted: Blocks,
    }
    let list: List = quick_xml::de::from_str(text).map_err(|error| format!("it sent a block list that cannot be read: {error}"))?;
    Ok(list.uncommitted.blocks)
}

/// The body that commits these blocks.
pub(super) fn block_list(ids: &[String]) -> String {
    let mut text = String::from("<?xml version=\"1.0\" encoding=\"utf-8\"?><BlockList>");
    for id in ids {
        let _ = write!(text, "<Latest>{id}</Latest>");
    }
    text + "</BlockList>"
}

/// A key that signs in the name of an identity, for a while.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct DelegationKey {
    signed_oid: String,
    signed_tid: String,
    signed_start: String,
    signed_expiry: String,
    signed_service: String,
    signed_version: String,
    /// Base64.
    pub value: String,
}

impl DelegationKey {
    pub fn parse(text: &str) -> Result<Self, String> {
        quick_xml::de::from_str(text.trim_start_matches('\u{feff}')).map_err(|_| "it sent a key that cannot be read".to_owned())
    }

    /// What a signature says of its key, in the order in which it is signed.
    pub fn parameters(&self) -> [(&'static str, &str); 6] {
        [
            ("skoid", &self.signed_oid),
            ("sktid", &self.signed_tid),
            ("skt", &self.signed_start),
            ("ske", &self.signed_expiry),
            ("sks", &self.signed_service),
            ("skv", &self.signed_version),
        ]
    }
}

/// The body that asks for such a key.
pub(super) fn key_info(start: &str, expiry: &str) -> String {
    format!("<?xml version=\"1.0\" encoding=\"utf-8\"?><KeyInfo><Start>{start}</Start><Expiry>{expiry}</Expiry></KeyInfo>")
}

/// What an error's body says, in one line.
pub(super) fn message(text: &str) -> String {
    #[derive(Deserialize)]
    struct Error {
        #[serde(rename = "Message", default)]
        message: String,
    }
    let parsed = quick_xml::de::from_str::<Error>(text.trim_start_matches('\u{feff}'));
    parsed.map(|error| error.message.lines().next().unwrap_or_default().to_owned()).unwrap_or_default()
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
        let page = Page::parse(text).unwrap();
        assert_eq!(page.next, "more");
        let entries = page.entries();
        let Entry::Blob { name, properties } = &entries[1] else { panic!("{entries:?}") };
        assert_eq!((name.as_str(), properties.size), ("p/b&c", 7));
        assert_eq!(properties.modified().to_string(), "2026-11-20T18:00:00Z");
        assert!(matches!(&entries[2], Entry::BlobPrefix { name } if name == "p/d/"));
        let empty = Page::parse(r"<EnumerationResults><Blobs /><NextMarker /></EnumerationResults>").unwrap();
        assert!(empty.next.is_empty() && empty.entries().is_empty());
        Page::parse("<html>").unwrap_err();
    }

    #[test]
    fn block_lists_and_messages() {
        let text = "<BlockList><CommittedBlocks /><UncommittedBlocks><Block><Name>QQ==</Name><Size>5</Size></Block></UncommittedBlocks></BlockList>";
        let blocks = uncommitted(text).unwrap();
        assert_eq!(blocks.iter().map(|block| block.id.as_str()).collect::<Vec<_>>(), ["QQ=="]);
        assert!(uncommitted("<BlockList />").unwrap().is_empty());
        assert!(block_list(&["QQ==".to_owned()]).contains("<Latest>QQ==</Latest>"));
        assert_eq!(message("\u{feff}<Error><Code>X</Code><Message>It is late.\nRequestId:1</Message></Error>"), "It is late.");
        assert_eq!(message("gone"), "");
    }
}
