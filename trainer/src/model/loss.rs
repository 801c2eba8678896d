//! A loss with the weight of what it is the sum of, so that batches of any size add up.

use std::iter::Sum;
use std::ops::Add;

/// The sum of the losses of some targets.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Loss {
    /// In nats.
    pub sum: f64,
    /// Targets that were counted.
    pub weight: f64,
}

impl Loss {
    /// Nats for each target. Not a number where none was counted.
    pub fn mean(self) -> f64 {
        self.sum / self.weight
    }
}

impl Add for Loss {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { sum: self.sum + other.sum, weight: self.weight + other.weight }
    }
}

/// In order, from nothing on.
impl Sum for Loss {
    fn sum<I: Iterator<Item = Self>>(losses: I) -> Self {
        losses.fold(Self::default(), Self::add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Batches of 2 and 6 counted targets, the rest padding: the mean of their means would be 2.5.
    #[test]
    fn every_target_counts_the_same_whatever_batch_it_is_in() {
        let losses = [Loss { sum: 2.0, weight: 2.0 }, Loss { sum: 24.0, weight: 6.0 }];
        let whole: Loss = losses.into_iter().sum();
        assert_eq!(whole, Loss { sum: 26.0, weight: 8.0 });
        assert!((whole.mean() - 3.25).abs() < 1e-15);
        assert!(Loss::default().mean().is_nan());
    }
}
