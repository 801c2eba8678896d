//! An attempt on several nodes, with an agent on each. The agent of node 0 holds the attempt's lease, says where the ranks meet
//! when all nodes are ready, and listens whether they live. The others start their ranks, say how those ended, and end with the
//! attempt.
//!
//! All of it goes through the store, where others may write, too: an address must be an address, and a word counts
//! only while it changes. Agents know each other by names that no earlier life of a node has.

mod first;
mod other;
mod roll;

use std::{fs::File, net::IpAddr, path::PathBuf, time::Duration};

use serde::de::DeserializeOwned;

pub(super) use self::roll::Roll;
use super::{Agent, variable};
use crate::{
    job::{
        meeting::{self, LARGEST},
        order::RunOrder,
    },
    store::{Result, StoreError},
};

/// How long nodes wait for each other: the image and the data come to each by itself.
const GATHERING: Duration = Duration::from_secs(15 * 60);
/// A node whose word has not changed for so long is lost.
const SILENCE: Duration = Duration::from_secs(60);
/// In which the agents of other nodes say how their ranks ended.
const HEARD: Duration = Duration::from_secs(10);

/// In a job of Azure ML, which node this is, and the address of the first.
const NODE: &str = "NODE_RANK";
const ADDRESS: &str = "MASTER_ADDR";

/// An agent's place among those of its attempt.
#[derive(Debug, Clone, Default)]
pub struct Seat {
    node: usize,
    /// Where ranks of other nodes reach those of this one; absent: the address that this machine has towards others.
    address: Option<IpAddr>,
    /// Where all nodes are on one machine, the folder with the locks of the others: see [`meeting::lock`].
    locks: Option<PathBuf>,
}

impl Seat {
    /// Takes the arguments, or else the machine's environment. The error is for a person.
    pub fn find(order: &RunOrder, node: Option<usize>, address: Option<IpAddr>, locks: Option<PathBuf>) -> Result<Self, String> {
        if order.nodes == 1 {
            return Ok(Self::default());
        }
        let node = node.or_else(|| variable(NODE)?.parse().ok());
        let node =
            node.ok_or_else(|| format!("the order is for {} nodes, and nothing says which this is: give --node", order.nodes))?;
        if node >= order.nodes {
            return Err(format!("node {node} is not one of the order's {} nodes, which count from 0", order.nodes));
        }
        Ok(Self { node, address: address.or_else(|| reached_at(&variable(ADDRESS)?)), locks })
    }

    pub fn leads(&self) -> bool {
        self.node == 0
    }

    pub fn node(&self) -> usize {
        self.node
    }

    /// Whether the process of another node's agent is known to be gone.
    fn is_gone(&self, node: usize) -> bool {
        let lock = self.locks.as_ref().and_then(|folder| File::open(meeting::lock(folder, node)).ok());
        lock.is_some_and(|lock| lock.try_lock_shared().is_ok())
    }
}

/// The address that an environment gives, unless only the machine itself reaches it: Debian gives a machine's own name 127.0.1.1.
fn reached_at(text: &str) -> Option<IpAddr> {
    text.parse().ok().filter(|address: &IpAddr| !address.is_loopback() && !address.is_unspecified())
}

impl Agent<'_> {
    /// Reads what another agent has written, or another writer. None where it is absent, or nothing of its kind.
    async fn small<T: DeserializeOwned>(&self, path: &str) -> Result<Option<T>> {
        match self.store.get_limited(path, LARGEST).await {
            Ok(object) => Ok(serde_json::from_slice(&object.bytes).ok()),
            Err(StoreError::NotFound { .. } | StoreError::Unreadable(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_of_several_machines_never_meet_at_an_address_of_one() {
        for of_one in ["127.0.1.1", "127.0.0.1", "::1", "0.0.0.0", "localhost", "node-0", ""] {
            assert_eq!(reached_at(of_one), None, "{of_one:?}");
        }
        assert_eq!(["10.0.0.4", "fd00::4"].map(|address| reached_at(address).unwrap().to_string()), ["10.0.0.4", "fd00::4"]);
    }
}
