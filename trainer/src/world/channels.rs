//! Processes that are threads of this one: for tests of what several compute.

use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};

use bytemuck::{cast_slice, cast_slice_mut};

use super::{Link, World};
use crate::cpu::simd::add_all;
use crate::error::Failure;

/// One's channels to and from each. When one ends, however it does, the others are told by their channels.
#[derive(Debug)]
struct Channels {
    to: Vec<Sender<Vec<u8>>>,
    from: Mutex<Vec<Receiver<Vec<u8>>>>,
}

impl World {
    /// The worlds of `size` threads, each to be moved into its own.
    pub fn of_threads(size: usize) -> Vec<Self> {
        let mut ways = [(); 4].map(|()| Channels::of_threads(size));
        let world = |rank| {
            let [link, aside @ ..] = ways.each_mut().map(Iterator::next);
            Self { rank, size, beside: size, local: rank, node: None, link, aside }
        };
        (0..size).map(world).collect()
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
    /// In the order of the ranks.
    fn sum(&self, numbers: &mut [f32]) -> Result<(), Failure> {
        let (size, own) = (self.to.len(), numbers.to_vec());
        let mut arrived = vec![own.clone(); size];
        let sent: Vec<(usize, &[u8])> = (0..size).map(|rank| (rank, cast_slice(&own))).collect();
        let mut places: Vec<(usize, &mut [u8])> = arrived.iter_mut().map(|part| cast_slice_mut(part)).enumerate().collect();
        self.exchange(&sent, &mut places)?;
        numbers.fill(0.0);
        for part in &arrived {
            add_all(part, numbers);
        }
        Ok(())
    }

    fn exchange(&self, sent: &[(usize, &[u8])], arrived: &mut [(usize, &mut [u8])]) -> Result<(), Failure> {
        let gone = || Failure::Lost("another process of the run has ended".to_owned());
        for (rank, part) in sent {
            self.to[*rank].send(part.to_vec()).map_err(|_| gone())?;
        }
        let from = self.from.lock().unwrap_or_else(PoisonError::into_inner);
        for (rank, place) in arrived {
            place.copy_from_slice(&from[*rank].recv().map_err(|_| gone())?);
        }
        Ok(())
    }
}
