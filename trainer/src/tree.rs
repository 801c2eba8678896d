//! The order in which the leaves of a sum join: neighbours pair up, and pairs of pairs, as far as there are some; what is left over
//! joins from the right. It depends on the number of leaves alone, so that the bits of the sum do not depend on who carries which.
//! (Two numbers have the same sum whichever comes first: only who meets whom matters.)

use std::borrow::Borrow;
use std::iter;
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
        self.join(left.start..leaves.end, joined, |mut left, right| {
            add(&mut left, right.borrow());
            left
        });
    }

    /// [`Tree::push`] of a sum that is the tree's from now on.
    pub fn join(&mut self, leaves: Range<usize>, mut sum: T, add: impl Fn(T, T) -> T) {
        let mut joined = leaves;
        while let Some((left, other)) = self.sibling(&joined) {
            sum = add(other, sum);
            joined.start = left.start;
        }
        self.nodes.push((joined, sum));
    }

    /// Takes out what the sum of the next `leaves` joins with, one after the other.
    pub fn siblings(&mut self, mut leaves: Range<usize>) -> Vec<T> {
        let next = || {
            let (left, sum) = self.sibling(&leaves)?;
            leaves.start = left.start;
            Some(sum)
        };
        iter::from_fn(next).collect()
    }

    /// The sum of all, after the last leaf; none of none.
    pub fn sum(self, add: impl Fn(T, T) -> T) -> Option<T> {
        self.into_sums().rev().reduce(|sum, other| add(other, sum))
    }

    /// The sums so far, which have no siblings yet.
    pub fn into_sums(self) -> impl DoubleEndedIterator<Item = T> {
        self.nodes.into_iter().map(|(_, sum)| sum)
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

/// How many sums wait for a sibling at most, while some neighbouring leaves are computed one after the other.
pub fn waiting(leaves: Range<usize>) -> usize {
    let mut tree = Tree::default();
    let wait_for = |leaf| {
        let count = tree.nodes.len();
        tree.push(leaf..leaf + 1, &(), |()| (), |(), ()| ());
        count
    };
    leaves.map(wait_for).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Spells out who meets whom.
    fn add(sum: &mut String, other: &str) {
        let first = |sum: &str| sum.trim_start_matches('(').to_owned();
        *sum = if first(sum) < first(other) { format!("({sum}{other})") } else { format!("({other}{sum})") };
    }

    #[expect(clippy::needless_pass_by_value, reason = "a tree takes its sums by value")]
    fn added(mut left: String, right: String) -> String {
        add(&mut left, &right);
        left
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
            tree.siblings(last..last + 1).iter().for_each(|other| add(&mut sum, other));
            let sums = tree.into_sums().chain([sum]);
            nodes(own).into_iter().zip(sums).for_each(|(leaves, sum)| whole.join(leaves, sum, added));
        }
        whole.sum(added).unwrap()
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

    #[test]
    fn fewer_sums_wait_in_a_whole_subtree_than_in_as_many_other_leaves() {
        assert_eq!([0..1, 0..2, 0..3, 0..4, 0..8].map(waiting), [0, 1, 1, 2, 3]);
        assert_eq!([3..6, 1..4, 4..8, 3..3].map(waiting), [2, 2, 2, 0]);
    }
}
