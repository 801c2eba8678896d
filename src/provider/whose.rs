//! Whose a machine is. Its labels say which user made it and which store has its job, so that equal names, filters and ids in a
//! cloud, or on an engine, that others use as well are no reason to touch anything.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Class, ProviderError};
use crate::{
    job::digest::Digest,
    store::{self, Store},
};

/// Hexadecimal digits of a digest in a label: clouds take at most 63 characters.
const LABEL: usize = 32;
/// Characters of a label that are enough to tell two apart by eye.
const SHOWN: usize = 8;

/// The party that asks.
#[derive(Clone)]
pub struct Party {
    /// The user's name.
    pub owner: String,
    /// Which has the jobs.
    pub store: Arc<dyn Store>,
    /// Machines of other stores are meant as well.
    pub everybody: bool,
}

impl Party {
    /// A user who means no machines but their own.
    pub fn new(owner: impl Into<String>, store: Arc<dyn Store>) -> Self {
        Self { owner: owner.into(), store, everybody: false }
    }

    /// The labels of this party's machines. Fails when the store cannot say which it is.
    pub async fn mark(&self) -> store::Result<Mark<'_>> {
        let owner = label(&Digest::of(self.owner.as_bytes()));
        Ok(Mark { party: self, owner, store: label(&self.store.identity().await?) })
    }
}

/// The labels of a party's machines: digests, which every cloud takes and which tell strangers nothing.
pub struct Mark<'p> {
    party: &'p Party,
    pub owner: String,
    pub store: String,
}

/// A machine's own word on its owner.
#[derive(Debug, Clone, Copy, Default)]
pub struct Said<'m> {
    /// A name or its label.
    pub owner: Option<&'m str>,
    /// A label.
    pub store: Option<&'m str>,
    /// The store as the agent's order names it.
    pub url: Option<&'m str>,
}

/// Whose a machine is, as far as it says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Belongs {
    pub whose: Whose,
    /// The user's name, or the beginning of its digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// The store that has its job: as its order names it, or the beginning of its digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<String>,
}

impl Belongs {
    /// Whether what is asked for a job by its id is meant for the machine.
    pub fn goes_with_its_job(&self) -> bool {
        self.whose != Whose::OtherStore
    }

    /// Why a verb that names no job leaves the machine alone; empty for our own.
    pub fn apart(&self) -> String {
        match self.whose {
            Whose::Ours => String::new(),
            Whose::OtherStore => format!("its job is in the store {}", self.store.as_deref().unwrap_or("of another user")),
            Whose::OtherOwner => format!("its owner is {}", self.owner.as_deref().unwrap_or("another user")),
            Whose::Unknown => "it does not say whose it is".to_owned(),
        }
    }
}

/// A machine from the point of view of a [`Party`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Whose {
    /// It belongs to this user and this store.
    Ours,
    /// It belongs to this store and another user.
    OtherOwner,
    OtherStore,
    /// It does not say: it was made by an older ftctl, or by hand. It goes with the job that it names.
    Unknown,
}

impl Mark<'_> {
    pub fn belongs(&self, said: Said<'_>) -> Belongs {
        let mine = |owner: &str| owner == self.owner || owner == self.party.owner;
        let url = self.party.store.url();
        let whose = match (said.store, said.owner) {
            (Some(store), _) if store != self.store => Whose::OtherStore,
            (Some(_), None) => Whose::Unknown,
            (None, _) if said.url != Some(url) => Whose::Unknown,
            (_, Some(owner)) if !mine(owner) => Whose::OtherOwner,
            _ => Whose::Ours,
        };
        let owner = said.owner.map(|owner| if mine(owner) { self.party.owner.clone() } else { shown(owner).to_owned() });
        let own_store = said.store.filter(|store| *store == self.store).map(|_| url);
        let store = said.url.or(own_store).or(said.store.map(shown)).map(str::to_owned);
        Belongs { whose, owner, store }
    }

    /// Whether what is done without a job's id is meant for it.
    pub fn owns(&self, said: Said<'_>) -> bool {
        self.party.everybody || self.belongs(said).whose == Whose::Ours
    }

    /// Whether what is asked for a job by its id is meant for this machine.
    pub fn reaches(&self, said: Said<'_>) -> bool {
        self.party.everybody || self.belongs(said).goes_with_its_job()
    }
}

fn label(digest: &Digest) -> String {
    digest.as_str()[..LABEL].to_owned()
}

/// Whether it is what [`Mark`] makes of a store, and no URL.
pub fn is_label(text: &str) -> bool {
    text.len() == LABEL && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn shown(text: &str) -> &str {
    if is_label(text) { &text[..SHOWN] } else { text }
}

/// The error where the store, and so the owner of the machines, is unknown.
#[allow(clippy::needless_pass_by_value)] // It takes the place of the error in `map_err`.
pub fn unknown_store(error: store::StoreError) -> ProviderError {
    ProviderError::new(Class::Internal, format!("cannot tell which store this is: {error}"))
}

/// Something that is not of this party's job has the name that its machine would get.
pub fn namesake(what: &str, belongs: &Belongs) -> ProviderError {
    let message = match (belongs.whose, &belongs.store) {
        (Whose::OtherStore, Some(store)) => format!("{what} is there already, and is of a job in another store ({store})"),
        _ => format!("{what} is there already, and is not of this job"),
    };
    ProviderError::new(Class::Conflict, message).fix("nothing was done to it; give this job another name")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::memory::MemoryStore;

    #[tokio::test]
    async fn a_machine_is_told_by_its_labels() {
        let (mine, other) = (Party::new("alice", Arc::new(MemoryStore::new())), Party::new("bob", Arc::new(MemoryStore::new())));
        let (mark, theirs) = (mine.mark().await.unwrap(), other.mark().await.unwrap());
        let said = |owner, store, url| Said { owner, store, url };
        let (my_owner, my_store) = (Some(mark.owner.as_str()), Some(mark.store.as_str()));
        let (bob, bobs) = (Some(theirs.owner.as_str()), Some(theirs.store.as_str()));
        for (said, whose, reached) in [
            (said(my_owner, my_store, None), Whose::Ours, true),
            // Where labels may be any text, it is the name.
            (said(Some("alice"), my_store, None), Whose::Ours, true),
            (said(bob, my_store, None), Whose::OtherOwner, true),
            (said(my_owner, bobs, None), Whose::OtherStore, false),
            // Whatever URL the order has: two computers may call two directories alike.
            (said(my_owner, bobs, Some("memory:")), Whose::OtherStore, false),
            // A machine of an older ftctl says nothing before its order, and then the URL.
            (said(None, None, None), Whose::Unknown, true),
            (said(None, None, Some("azure://other/box")), Whose::Unknown, true),
            (said(None, None, Some("memory:")), Whose::Ours, true),
            (said(Some("bob"), None, Some("memory:")), Whose::OtherOwner, true),
            // Half of a label pair is none.
            (said(None, my_store, None), Whose::Unknown, true),
        ] {
            assert_eq!((mark.belongs(said).whose, mark.reaches(said)), (whose, reached), "{said:?}");
        }
        let everybody = Party { everybody: true, ..mine.clone() };
        assert!(everybody.mark().await.unwrap().reaches(said(bob, bobs, None)));
        let shown = mark.belongs(said(bob, bobs, None));
        assert_eq!((shown.owner.as_deref(), shown.store.as_deref()), (Some(&theirs.owner[..8]), Some(&theirs.store[..8])));
        let shown = mark.belongs(said(my_owner, my_store, None));
        assert_eq!((shown.owner.as_deref(), shown.store.as_deref()), (Some("alice"), Some("memory:")));
    }

    #[test]
    fn what_is_labelled_tells_strangers_nothing() {
        let digest = Digest::of(b"alice");
        assert!(is_label(&label(&digest)) && !is_label("azure://account/container/00000000"));
    }
}
