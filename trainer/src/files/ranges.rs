//! Which node of several sends which bytes of a checkpoint's files.

use std::ops::Range;

/// Bytes of a chunk, which is sent as one object. A node's range is made of whole chunks.
pub const CHUNK: u64 = 4 << 20;

/// The range of a file of `bytes` bytes that a node sends. The ranges of all nodes follow each other and cover the file. A file of
/// one chunk belongs to node 0.
pub fn of_node(node: usize, nodes: usize, bytes: u64) -> Range<u64> {
    let chunks = bytes.div_ceil(CHUNK);
    let border = |node: usize| ((chunks * node as u64).div_ceil(nodes as u64) * CHUNK).min(bytes);
    border(node)..border(node + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_have_whole_chunks_and_together_all_bytes() {
        for bytes in [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 7 * CHUNK + 5, 1 << 44] {
            for nodes in [1, 2, 3, 16] {
                let ranges: Vec<_> = (0..nodes).map(|node| of_node(node, nodes, bytes)).collect();
                assert_eq!((ranges[0].start, ranges[nodes - 1].end), (0, bytes));
                let meet = |at: u64, next: u64| at == next && (at.is_multiple_of(CHUNK) || at == bytes);
                assert!(ranges.windows(2).all(|two| meet(two[0].end, two[1].start)), "{ranges:?}");
                let longest = bytes.div_ceil(CHUNK).div_ceil(nodes as u64) * CHUNK;
                assert!(ranges.iter().all(|range| range.end - range.start <= longest), "{ranges:?}");
            }
        }
    }
}
