//! The order in which the leaves of a sum join: neighbours pair up, and pairs of pairs, as far as there are some; what is left over
//! joins from the right. It depends on the number of leaves alone, so that the bits of the sum do not depend on who carries which.
//! (Two numbers have the same sum whichever comes first: only who meets whom matters.)

use std::borrow::Borrow;
use std::ops::Range;

/// Sums of neighbouring leaves, each of as many as join to one.
#[derive(Debug)]
pub struct Tree<T> {
    nodes: Vec<(Range<usize>, T)>,
}

impl<T> Default for Tree<T> {
    fn default() -> Self {
        Self { nodes: Vec::new() }
    }
}

impl<T> Tree<T> {
    /// Takes the sum of the next `leaves`, of which the tree has a node; it is copied only where it stays alone.
    pub fn push<S: ?Sized>(&mut self, leaves: Range<usize>, sum: &S, copy: impl FnOnce(&S) -> T, add: impl Fn(&mut T, &S))
    where
        T: Borrow<S>,
    {
        let Some((left, mut joined)) = self.sibling(&leaves) else { return self.nodes.push((leaves, copy(sum))) };
        add(&mut joined, sum);
        let leaves = self.join(left.start..leaves.end, &mut joined, |joined, sum| add(joined, sum.borrow()));
        self.nodes.push((leaves, joined));
    }

    /// Adds to the sum of the next `leaves` what it joins with, as far as the tree has it; says whose sum it is then.
    pub fn join(&mut self, leaves: Range<usize>, sum: &mut T, add: impl Fn(&mut T, &T)) -> Range<usize> {
        let mut joined = leaves;
        while let Some((left, other)) = self.sibling(&joined) {
            add(sum, &other);
            joined.start = left.start;
        }
        joined
    }

    /// Adds all that the tree has to the sum of the last leaves.
    pub fn finish(self, sum: &mut T, add: impl Fn(&mut T, &T)) {
        self.nodes.iter().rev().for_each(|(_, other)| add(sum, other));
    }

    /// The sum of all, after the last leaf; none of none.
    pub fn sum(mut self, add: impl Fn(&mut T, &T)) -> Option<T> {
        let (_, mut sum) = self.nodes.pop()?;
        self.finish(&mut sum, add);
        Some(sum)
    }

    /// The sums so far, which have no siblings yet.
    pub fn sums(&self) -> impl Iterator<Item = &T> {
        self.nodes.iter().map(|(_, sum)| sum)
    }

    fn sibling(&mut self, leaves: &Range<usize>) -> Option<(Range<usize>, T)> {
        self.nodes.pop_if(|(left, _)| left.len() == leaves.len() && left.start.is_multiple_of(2 * left.len()))
    }
}

/// The nodes that some neighbouring leaves join to.
pub fn nodes(leaves: Range<usize>) -> Vec<Range<usize>> {
    let mut tree = Tree::default();
    leaves.for_each(|leaf| tree.push(leaf..leaf + 1, &(), |()| (), |(), ()| ()));
    tree.nodes.into_iter().map(|(leaves, ())| leaves).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Spells out who meets whom.
    fn add(sum: &mut String, other: &str) {
        let first = |sum: &str| sum.trim_start_matches('(').to_owned();
        *sum = if first(sum) < first(other) { format!("({sum}{other})") } else { format!("({other}{sum})") };
    }

    /// The sum of all leaves, when `size` carriers join theirs first.
    fn order(leaves: usize, size: usize) -> String {
        let name = |leaf: usize| char::from(b'a' + leaf as u8).to_string();
        let mut whole = Tree::default();
        for rank in 0..size {
            let own = leaves * rank / size..leaves * (rank + 1) / size;
            let (mut tree, last) = (Tree::default(), own.end - 1);
            (own.start..last).for_each(|leaf| tree.push(leaf..leaf + 1, name(leaf).as_str(), str::to_owned, add));
            let mut sum = name(last);
            let joined = tree.join(last..last + 1, &mut sum, |sum, other| add(sum, other));
            let nodes = tree.nodes.into_iter().chain([(joined, sum)]);
            nodes.for_each(|(leaves, sum)| whole.push(leaves, sum.as_str(), str::to_owned, add));
        }
        whole.sum(|sum, other| add(sum, other)).unwrap()
    }

    #[test]
    fn neighbours_join_first() {
        let orders = [1, 2, 3, 4, 6, 7].map(|leaves| order(leaves, 1));
        assert_eq!(orders, ["a", "(ab)", "((ab)c)", "((ab)(cd))", "(((ab)(cd))(ef))", "(((ab)(cd))((ef)g))"]);
    }

    #[test]
    fn whoever_carries_them_leaves_join_in_one_order() {
        for leaves in 1..=17 {
            assert!((1..=leaves).all(|size| order(leaves, size) == order(leaves, 1)), "{leaves} leaves");
        }
    }

    #[test]
    fn some_leaves_are_as_few_nodes_as_can_be() {
        assert_eq!(nodes(1..8), [1..2, 2..4, 4..8]);
        assert_eq!(nodes(0..6), [0..4, 4..6]);
        assert!(nodes(3..3).is_empty());
    }
}
