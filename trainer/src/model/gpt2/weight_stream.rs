//! The weights of two blocks on the device, where those of the others wait in main memory: while one block computes, the next
//! arrives.

use std::cell::Cell;

use tch::{Device, Tensor};

use crate::aten;
use crate::model::weights::parameters::{BlockTensors, Parameters};

/// Passes go from the first block to the last, or back. Block `n` has its place with the blocks two before and after it.
pub(crate) struct WeightStream {
    device: Device,
    layers: usize,
    places: [BlockTensors; 2],
    /// The block that has arrived in each place, or is on its way.
    held: Cell<[Option<usize>; 2]>,
    /// The block that was computed with last.
    last: Cell<usize>,
}

impl WeightStream {
    /// Places on `device` for the blocks of `home`, which are alike.
    pub fn new(home: &Parameters, layers: usize, device: Device) -> Self {
        let place = || home.block(0).map(&|weight| Tensor::empty(weight.size(), (weight.kind(), device)));
        Self { device, layers, places: [place(), place()], held: Cell::default(), last: Cell::default() }
    }

    /// The weights of a block on the device, until another is asked for. Sends the next one on its way. After a whole pass none is:
    /// it turns to one that is there.
    pub fn block(&self, home: &Parameters, layer: usize) -> BlockTensors {
        self.send(home, layer);
        aten::await_arrival(self.device);
        let next = self.next(layer);
        if next != layer {
            self.send(home, next);
        }
        self.last.set(layer);
        self.places[layer % 2].map(&Tensor::shallow_clone)
    }

    /// The weights have changed where they come from.
    pub fn forget(&self) {
        self.held.take();
    }

    /// Goes on as it went, and turns at the ends.
    fn next(&self, layer: usize) -> usize {
        let forward = layer == 0 || layer > self.last.get();
        if forward && layer + 1 < self.layers { layer + 1 } else { layer.saturating_sub(1) }
    }

    /// The place's former weights are not needed any more: the kernels that compute with them were launched before, and the copy
    /// waits for it on the device.
    fn send(&self, home: &Parameters, layer: usize) {
        let mut held = self.held.get();
        if held[layer % 2].replace(layer) == Some(layer) {
            return;
        }
        let (places, weights) = (self.places[layer % 2].tensors(), home.block(layer));
        places.into_iter().zip(weights.tensors()).for_each(|(place, weight)| aten::send_out(place, weight));
        self.held.set(held);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::shape::Shape;
    use crate::settings::Variant;

    fn weights(layers: usize, seed: u64) -> Parameters {
        let epsilon = 1e-5;
        let shape =
            Shape { layers, heads: 1, width: 8, context: 4, vocabulary: 5, layer_norm_epsilon: epsilon, variant: Variant::Gpt2 };
        Parameters::random(&shape, seed)
    }

    fn arrives(stream: &WeightStream, home: &Parameters, layer: usize) {
        let (found, expected) = (stream.block(home, layer), home.block(layer));
        for (found, expected) in found.tensors().into_iter().zip(expected.tensors()) {
            assert!(found.equal(expected) && found.data_ptr() != expected.data_ptr(), "block {layer}");
        }
    }

    #[test]
    fn every_block_arrives_in_passes_of_any_kind_and_after_a_change() {
        for layers in [1, 2, 3, 6] {
            let stream = WeightStream::new(&weights(layers, 0), layers, Device::Cpu);
            for seed in 1..3 {
                let home = weights(layers, seed);
                stream.forget();
                let there_and_back = (0..layers).chain((0..layers).rev());
                there_and_back.chain(0..layers).chain(0..layers).for_each(|layer| arrives(&stream, &home, layer));
            }
        }
    }

    #[test]
    fn the_next_block_is_on_its_way_before_it_is_asked_for() {
        let (home, stream) = (weights(4, 0), WeightStream::new(&weights(4, 0), 4, Device::Cpu));
        for (layer, next) in [(0, 1), (1, 2), (2, 3), (3, 2), (3, 2), (2, 1), (1, 0), (0, 1), (1, 2)] {
            arrives(&stream, &home, layer);
            assert_eq!(stream.held.get()[next % 2], Some(next), "after block {layer}");
        }
    }
}
