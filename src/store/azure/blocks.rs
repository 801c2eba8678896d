//! Large objects go in blocks, several at a time, and are there when the list of the blocks is committed. (Files do not: they come
//! in chunks that are one request each.)
//!
//! A block's id is its number and the MD5 of its bytes. The staged blocks of an interrupted write are therefore recognised and not
//! sent again.

use std::{collections::HashSet, sync::Arc};

use azure_core::http::{RequestContent, XmlFormat};
use azure_storage_blob::models::{
    BlockBlobClientCommitBlockListOptions, BlockBlobClientCommitBlockListResultHeaders as _, BlockBlobClientStageBlockOptions,
    BlockListType, BlockLookupList,
};
use bytes::Bytes;

use super::{
    super::{Condition, ETag, Result, content::concurrently},
    AzureStore,
    client::{Client, nonsense},
    md5,
};

/// Bytes of a block, and of the largest object that is written in one request.
pub(super) const BLOCK: usize = 4 << 20;
/// Most blocks of one blob.
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
        let list = BlockLookupList { latest: Some(ids.await?), ..BlockLookupList::default() };
        let list = RequestContent::<BlockLookupList, XmlFormat>::try_from(list)
            .map_err(|error| nonsense("write", path, error.to_string()))?;
        let sum = md5(&list.body().into()).await;
        let blob = self.client.blob(path).block_blob_client();
        self.commit(path, condition, |terms| {
            let options = BlockBlobClientCommitBlockListOptions {
                if_match: terms.if_match,
                if_none_match: terms.if_none_match,
                metadata: terms.metadata,
                transactional_content_md5: Some(sum.to_vec()),
                ..BlockBlobClientCommitBlockListOptions::default()
            };
            let (blob, list) = (&blob, list.clone());
            async move { blob.commit_block_list(list, Some(options)).await?.etag() }
        })
        .await
    }

    /// The blocks that an earlier write left.
    pub(super) async fn staged(&self, path: &str) -> Result<HashSet<Vec<u8>>> {
        let blob = self.client.blob(path).block_blob_client();
        let asked = async { blob.get_block_list(BlockListType::Uncommitted, None).await?.into_model() };
        match self.client.ask("read", path, asked).await? {
            Ok(list) => Ok(list.uncommitted_blocks.into_iter().flatten().filter_map(|block| block.name).collect()),
            Err(refusal) if refusal.status == 404 => Ok(HashSet::new()),
            Err(refusal) => Err(self.client.refused("read", path, &refusal)),
        }
    }
}

/// Stages a block, unless it is there, and gives its id.
pub(super) async fn send_block(
    client: &Client,
    path: &str,
    number: usize,
    bytes: Bytes,
    staged: &HashSet<Vec<u8>>,
) -> Result<Vec<u8>> {
    let sum = md5(&bytes).await;
    let id = [&(number as u32).to_be_bytes()[..], &sum].concat();
    if staged.contains(&id) {
        return Ok(id);
    }
    let blob = client.blob(path).block_blob_client();
    let options = BlockBlobClientStageBlockOptions {
        transactional_content_md5: Some(sum.to_vec()),
        ..BlockBlobClientStageBlockOptions::default()
    };
    let asked = || blob.stage_block(&id, bytes.len() as u64, bytes.clone().into(), Some(options.clone()));
    match client.write("write", path, asked).await? {
        Ok(_) => Ok(id),
        Err(refusal) => Err(client.refused("write", path, &refusal)),
    }
}
