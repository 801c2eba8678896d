//! Large objects go in blocks, several at a time, and are there when the list of the blocks is committed. (Files do not: they come in
//! chunks that are one request each.)
//!
//! A block's id is its number and the MD5 of its bytes. What an interrupted write staged is therefore recognised block by block and
//! not sent again.

use std::{collections::HashSet, sync::Arc};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use reqwest::Method;

use super::{
    super::{Condition, ETag, Result, content::concurrently},
    AzureStore, Client, Request, md5, nonsense, wire,
};

/// Bytes of a block, and of the largest object that is written in one request.
pub(super) const BLOCK: usize = 4 << 20;
/// The service takes so many blocks of one blob.
const MOST_BLOCKS: usize = 50_000;

impl AzureStore {
    pub(super) async fn put_blocks(&self, path: &str, bytes: Bytes, condition: &Condition) -> Result<ETag> {
        let size = BLOCK.max(bytes.len().div_ceil(MOST_BLOCKS));
        let staged = Arc::new(self.staged(path).await?);
        let ids = concurrently(self.limits.jobs, (0..bytes.len().div_ceil(size)).collect(), |number| {
            let block = bytes.slice(number * size..bytes.len().min((number + 1) * size));
            let (client, path, staged) = (Arc::clone(&self.client), path.to_owned(), Arc::clone(&staged));
            async move { send_block(&client, &path, number, block, &staged).await }
        });
        let list = Bytes::from(wire::block_list(&ids.await?));
        let sum = md5(&list).await;
        self.commit(path, Request::new(Method::PUT, path).query("comp", "blocklist").body(list, sum), condition).await
    }

    /// The blocks that an earlier write left.
    pub(super) async fn staged(&self, path: &str) -> Result<HashSet<String>> {
        let request = Request::new(Method::GET, path).query("comp", "blocklist").query("blocklisttype", "uncommitted");
        let reply = self.client.send("read", &request).await?;
        if reply.status == 404 {
            return Ok(HashSet::new());
        }
        if !reply.is_success() {
            return Err(self.client.refused("read", path, &reply));
        }
        let blocks = reply.text().and_then(wire::uncommitted).map_err(|why| nonsense("read", path, why))?;
        Ok(blocks.into_iter().map(|block| block.id).collect())
    }
}

/// Stages a block, unless it is there, and gives its id.
pub(super) async fn send_block(
    client: &Client,
    path: &str,
    number: usize,
    bytes: Bytes,
    staged: &HashSet<String>,
) -> Result<String> {
    let sum = md5(&bytes).await;
    let id = BASE64_STANDARD.encode([&(number as u32).to_be_bytes()[..], &sum].concat());
    if staged.contains(&id) {
        return Ok(id);
    }
    let request = Request::new(Method::PUT, path).query("comp", "block").query("blockid", &id).body(bytes, sum);
    let reply = super::write(client, "write", request).await?;
    if reply.is_success() { Ok(id) } else { Err(client.refused("write", path, &reply)) }
}
