//! Processes that are threads of this one: for tests of what several compute.

use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};

use super::{Link, World};
use crate::error::Failure;

/// One's channels to and from each, itself included. When one ends, however it does, the others are told by their channels.
#[derive(Debug)]
struct Channels {
    to: Vec<Sender<Vec<u8>>>,
    from: Mutex<Vec<Receiver<Vec<u8>>>>,
}

impl World {
    /// The worlds of `size` threads, each to be moved into its own.
    pub fn of_threads(size: usize) -> Vec<Self> {
        let world = |(rank, (link, aside))| Self { rank, size, beside: size, local: rank, link: Some(link), aside: Some(aside) };
        Channels::of_threads(size).zip(Channels::of_threads(size)).enumerate().map(world).collect()
    }
}

impl Channels {
    fn of_threads(size: usize) -> impl Iterator<Item = Arc<dyn Link>> {
        let (mut to, mut from): (Vec<Vec<_>>, Vec<Vec<_>>) = (0..size).map(|_| (Vec::new(), Vec::new())).unzip();
        for (sender, receiver) in (0..size).flat_map(|sender| (0..size).map(move |receiver| (sender, receiver))) {
            let (way_in, way_out) = mpsc::channel();
            to[sender].push(way_in);
            from[receiver].push(way_out);
        }
        let link = |(to, from)| -> Arc<dyn Link> { Arc::new(Self { to, from: Mutex::new(from) }) };
        to.into_iter().zip(from).map(link)
    }
}

impl Link for Channels {
    fn exchange(&self, mut sent: &[u8], to_each: &[usize], mut arrived: &mut [u8], from_each: &[usize]) -> Result<(), Failure> {
        let gone = || Failure::Lost("another process of the run has ended".to_owned());
        for (to, count) in self.to.iter().zip(to_each) {
            let part = sent.split_off(..*count).unwrap_or_default().to_vec();
            to.send(part).map_err(|_| gone())?;
        }
        for (from, count) in self.from.lock().unwrap_or_else(PoisonError::into_inner).iter().zip(from_each) {
            let part = from.recv().map_err(|_| gone())?;
            arrived.split_off_mut(..*count).unwrap_or_default().copy_from_slice(&part);
        }
        Ok(())
    }
}
