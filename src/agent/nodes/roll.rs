//! The other nodes, as the agent of node 0 knows them: their words, and for how long each has been the same.

use std::time::Duration;

use super::{Agent, SILENCE};
use crate::{
    job::meeting::{Presence, RankEnd},
    store::Result,
};

/// The other nodes, from 1 on.
pub(in crate::agent) struct Roll(Vec<Seen>);

struct Seen {
    /// The last word, and whether there was a look at all.
    presence: Option<Presence>,
    was_looked_for: bool,
    /// It has changed, so it is not what an earlier life left.
    is_alive: bool,
    /// For how long this agent has waited in vain for another word. A time in which it was stopped itself is none.
    silence: Duration,
}

impl Roll {
    pub fn of(nodes: usize) -> Self {
        let seen = || Seen { presence: None, was_looked_for: false, is_alive: false, silence: Duration::ZERO };
        Self((1..nodes).map(|_| seen()).collect())
    }

    /// Looks what the nodes say, after a wait that was meant to be so long. While the store does not answer, none is silent: a
    /// store that tries again by itself answers late, and what the others write meanwhile may arrive later still.
    pub async fn call(&mut self, agent: &Agent<'_>, waited: Duration) -> Result<()> {
        for (node, seen) in (1..).zip(&mut self.0) {
            match agent.presence(node).await {
                Ok(presence) => seen.take(presence, waited),
                Err(error) => {
                    self.0.iter_mut().for_each(|seen| seen.silence = Duration::ZERO);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Why a node cannot come.
    pub fn refusal(&self) -> Option<&RankEnd> {
        self.alive().filter(|presence| !presence.word.is_ready).find_map(|presence| presence.word.end.as_ref())
    }

    /// The agents' names, if all wait for this generation.
    pub fn ready(&self, generation: u32) -> Option<Vec<String>> {
        self.0.iter().map(|seen| seen.awaits(generation).map(|presence| presence.agent.clone())).collect()
    }

    /// A node that does not wait for this generation.
    pub fn missing(&self, generation: u32) -> usize {
        1 + self.0.iter().position(|seen| seen.awaits(generation).is_none()).unwrap_or(0)
    }

    /// A node without a sign of life.
    pub fn silent(&self) -> Option<usize> {
        self.0.iter().position(Seen::is_silent).map(|index| 1 + index)
    }

    /// A node that gave signs of life once, and gives none any more.
    pub fn lost(&self) -> Option<usize> {
        self.0.iter().position(|seen| seen.is_alive && seen.is_silent()).map(|index| 1 + index)
    }

    /// The cloud's notice to the machine of another node, while it stands.
    pub fn notice(&self) -> Option<String> {
        (1..).zip(&self.0).find_map(|(node, seen)| Some(format!("node {node} {}", seen.alive()?.notice.as_ref()?)))
    }

    /// Whether a rank of another node has failed in this generation.
    pub fn fails(&self, generation: u32) -> bool {
        let mut words = self.alive().map(|presence| &presence.word).filter(|word| word.generation == generation);
        words.any(|word| word.is_over || word.end.as_ref().is_some_and(|end| end.code != Some(0)))
    }

    /// How the ranks of nodes ended in this generation, in the order of the nodes.
    pub fn ends(&self, generation: u32) -> Vec<RankEnd> {
        self.0.iter().filter_map(|seen| seen.ended(generation).cloned()).collect()
    }

    pub fn have_ended(&self, generation: u32) -> bool {
        self.0.iter().all(|seen| seen.ended(generation).is_some())
    }

    /// A node that does not say how its ranks ended.
    pub fn missing_end(&self, generation: u32) -> usize {
        1 + self.0.iter().position(|seen| seen.ended(generation).is_none()).unwrap_or(0)
    }

    fn alive(&self) -> impl Iterator<Item = &Presence> {
        self.0.iter().filter_map(Seen::alive)
    }
}

impl Seen {
    fn take(&mut self, presence: Option<Presence>, waited: Duration) {
        self.silence += waited;
        if presence.is_some() && presence != self.presence {
            self.is_alive |= self.was_looked_for;
            (self.presence, self.silence) = (presence, Duration::ZERO);
        }
        self.was_looked_for = true;
    }

    fn is_silent(&self) -> bool {
        self.silence > SILENCE
    }

    fn alive(&self) -> Option<&Presence> {
        self.presence.as_ref().filter(|_| self.is_alive)
    }

    fn awaits(&self, generation: u32) -> Option<&Presence> {
        let is_back = |presence: &&Presence| presence.word.generation == 0 || presence.word.end.is_some();
        self.alive().filter(|presence| presence.word.is_ready && presence.word.generation < generation).filter(is_back)
    }

    fn ended(&self, generation: u32) -> Option<&RankEnd> {
        self.alive().filter(|presence| presence.word.generation == generation)?.word.end.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::job::meeting::{PRESENCE_SCHEMA, Word};

    fn presence(beat: u64, word: &Word) -> Presence {
        let (schema, agent) = (PRESENCE_SCHEMA.to_owned(), "a".to_owned());
        Presence { schema, attempt: 1, agent, beat, time: Timestamp::UNIX_EPOCH, notice: None, word: word.clone() }
    }

    #[test]
    fn a_word_counts_when_it_changes() {
        let ready = Word { is_ready: true, ..Word::default() };
        let (mut roll, second) = (Roll::of(2), Duration::from_secs(1));
        roll.0[0].take(Some(presence(7, &ready)), SILENCE);
        roll.0[0].take(Some(presence(7, &ready)), second);
        assert_eq!((roll.ready(1), roll.missing(1)), (None, 1), "an earlier life may have left it");
        roll.0[0].take(Some(presence(8, &ready)), SILENCE + second);
        assert_eq!(roll.ready(1), Some(vec!["a".to_owned()]));
        roll.0[0].take(Some(presence(8, &ready)), SILENCE);
        assert_eq!(roll.silent(), None);
        roll.0[0].take(Some(presence(8, &ready)), second);
        assert_eq!([roll.silent(), roll.lost()], [Some(1); 2]);
        let mut unheard = Roll::of(2);
        unheard.0[0].take(None, SILENCE + second);
        assert_eq!([unheard.silent(), unheard.lost()], [Some(1), None], "its image may still be on its way");
        let mut late = Roll::of(2);
        late.0[0].take(None, second);
        late.0[0].take(Some(presence(0, &ready)), second);
        assert!(late.ready(1).is_some(), "it was not there before");
    }

    #[test]
    fn a_node_waits_for_the_generation_after_the_one_that_it_has_ended() {
        let end = RankEnd { rank: 1, code: Some(71), signal: None, words: String::new(), out_of_memory: true };
        let mut roll = Roll::of(2);
        let mut say = |beat, word: Word| {
            roll.0[0].take(Some(presence(beat, &word)), SILENCE);
            (roll.ready(2).is_some(), [roll.fails(1), roll.have_ended(1)], roll.refusal().is_some())
        };
        assert_eq!(say(0, Word::default()), (false, [false; 2], false));
        assert_eq!(say(1, Word { end: Some(end.clone()), ..Word::default() }), (false, [false; 2], true));
        let at_work = Word { is_ready: true, generation: 1, is_over: false, end: None };
        assert_eq!(say(2, at_work.clone()), (false, [false; 2], false));
        assert_eq!(say(3, Word { is_over: true, ..at_work.clone() }), (false, [true, false], false));
        assert_eq!(say(4, Word { end: Some(end.clone()), ..at_work.clone() }), (true, [true, true], false));
        assert_eq!(say(5, Word { end: Some(RankEnd { code: Some(0), ..end }), ..at_work }), (true, [false, true], false));
        assert!(Roll::of(1).ready(1).is_some_and(|agents| agents.is_empty()) && Roll::of(1).silent().is_none());
    }
}
