//! Responses that can be asked for again: in memory, for a time, up to a number of bytes, each key's apart.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::settings::Settings;

/// What a response takes beside its texts, about: its places in the maps.
const OVERHEAD: u64 = 512;

/// Whose a response is: the hash of an API key, or everyone's who sends none.
pub type Owner = Option<[u8; 32]>;

/// A response as it is kept, each part as JSON.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// The response itself.
    pub response: Bytes,
    /// The items that were sent with it.
    pub input: Bytes,
    /// The items before the next answer to it: of the responses before, of its own input, and its output.
    pub context: Bytes,
}

impl Kept {
    fn size(&self, id: &str) -> u64 {
        let texts = self.response.len() + self.input.len() + self.context.len() + 2 * id.len();
        texts as u64 + OVERHEAD
    }
}

/// All that is kept.
#[derive(Debug)]
pub struct ResponseStore {
    most: u64,
    time: Duration,
    shelves: Mutex<Shelves>,
}

#[derive(Debug, Default)]
struct Shelves {
    size: u64,
    of: HashMap<Owner, Shelf>,
}

/// What is kept for one owner.
#[derive(Debug, Default)]
struct Shelf {
    size: u64,
    kept: HashMap<String, (Arc<Kept>, Instant)>,
    /// Ids, oldest first; some may be deleted already.
    order: VecDeque<(String, Instant)>,
}

impl ResponseStore {
    /// An empty store with the server's limits.
    #[must_use]
    pub fn new(settings: &Settings) -> Self {
        let time = Duration::from_secs(settings.response_store_time.into());
        Self { most: settings.response_store_bytes, time, shelves: Mutex::default() }
    }

    /// Whether anything can be kept.
    #[must_use]
    pub const fn is_on(&self) -> bool {
        self.most > 0
    }

    /// Keeps a response, for which the oldest of who has the most may have to go. One that is too large is not kept.
    pub fn keep(&self, owner: Owner, id: String, kept: Kept) {
        self.keep_at(Instant::now(), owner, id, kept);
    }

    fn keep_at(&self, now: Instant, owner: Owner, id: String, kept: Kept) {
        let size = kept.size(&id);
        if size > self.most {
            return;
        }
        let mut shelves = self.lock();
        shelves.forget_before(now.checked_sub(self.time));
        shelves.size += size;
        let shelf = shelves.of.entry(owner).or_default();
        shelf.size += size;
        shelf.order.push_back((id.clone(), now));
        shelf.kept.insert(id, (Arc::new(kept), now));
        while shelves.size > self.most && shelves.forget_one() {}
    }

    /// What is kept of a response.
    #[must_use]
    pub fn get(&self, owner: Owner, id: &str) -> Option<Arc<Kept>> {
        self.get_at(Instant::now(), owner, id)
    }

    fn get_at(&self, now: Instant, owner: Owner, id: &str) -> Option<Arc<Kept>> {
        let mut shelves = self.lock();
        shelves.forget_before(now.checked_sub(self.time));
        shelves.of.get(&owner)?.kept.get(id).map(|(kept, _)| Arc::clone(kept))
    }

    /// Lets a response go; whether there was one.
    pub fn delete(&self, owner: Owner, id: &str) -> bool {
        let mut shelves = self.lock();
        shelves.forget_before(Instant::now().checked_sub(self.time));
        let Some(shelf) = shelves.of.get_mut(&owner) else { return false };
        let size = shelf.remove(id);
        shelf.order.retain(|(other, _)| other != id);
        shelves.freed(owner, size);
        size > 0
    }

    fn lock(&self) -> MutexGuard<'_, Shelves> {
        self.shelves.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shelves {
    /// Lets go of what was kept before a moment.
    fn forget_before(&mut self, moment: Option<Instant>) {
        let Some(moment) = moment else { return };
        let mut freed = 0;
        self.of.retain(|_, shelf| {
            while shelf.order.front().is_some_and(|(_, since)| *since <= moment) {
                freed += shelf.remove_oldest();
            }
            !shelf.kept.is_empty()
        });
        self.size -= freed;
    }

    /// Lets go of the oldest one of who has the most; whether there was one.
    fn forget_one(&mut self) -> bool {
        let Some((owner, shelf)) = self.of.iter_mut().max_by_key(|(_, shelf)| shelf.size) else { return false };
        let (owner, size) = (*owner, shelf.remove_oldest());
        self.freed(owner, size);
        size > 0
    }

    fn freed(&mut self, owner: Owner, size: u64) {
        self.size -= size;
        if self.of.get(&owner).is_some_and(|shelf| shelf.kept.is_empty()) {
            self.of.remove(&owner);
        }
    }
}

impl Shelf {
    fn remove_oldest(&mut self) -> u64 {
        self.order.pop_front().map_or(0, |(id, _)| self.remove(&id))
    }

    /// Bytes that are free with it.
    fn remove(&mut self, id: &str) -> u64 {
        let size = self.kept.remove(id).map_or(0, |(kept, _)| kept.size(id));
        self.size -= size;
        size
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn store(most: u64, time: u64) -> ResponseStore {
        ResponseStore { most, time: Duration::from_secs(time), shelves: Mutex::default() }
    }

    fn kept(size: usize) -> Kept {
        Kept { response: Bytes::from(vec![b'x'; size]), input: Bytes::new(), context: Bytes::new() }
    }

    const ONE: Owner = Some([1; 32]);

    #[test]
    fn one_key_never_sees_anothers() {
        let store = store(10_000, 60);
        store.keep(ONE, "a".to_owned(), kept(1));
        assert!(store.get(ONE, "a").is_some());
        assert!(store.get(None, "a").is_none() && store.get(Some([2; 32]), "a").is_none());
        assert!(!store.delete(None, "a") && store.delete(ONE, "a") && !store.delete(ONE, "a"));
        assert!(store.get(ONE, "a").is_none());
    }

    #[test]
    fn who_keeps_the_most_gives_up_first() {
        let store = store(10 * 1000, 60);
        store.keep(None, "mine".to_owned(), kept(100));
        for number in 0..50 {
            store.keep(ONE, number.to_string(), kept(100));
        }
        assert!(store.get(None, "mine").is_some());
        assert!(store.get(ONE, "0").is_none() && store.get(ONE, "49").is_some());
        store.keep(None, "huge".to_owned(), kept(10_000));
        assert!(store.get(None, "huge").is_none() && store.get(None, "mine").is_some());
    }

    #[test]
    fn time_passes() {
        let (store, start) = (store(10_000, 60), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        store.keep_at(start, ONE, "a".to_owned(), kept(1));
        store.keep_at(after(30), None, "b".to_owned(), kept(1));
        assert!(store.get_at(after(59), ONE, "a").is_some());
        assert!(store.get_at(after(60), ONE, "a").is_none() && store.get_at(after(60), None, "b").is_some());
        assert!(store.get_at(after(90), None, "b").is_none());
        assert!(store.lock().of.is_empty() && store.lock().size == 0);
    }

    proptest! {
        /// Whatever is kept and deleted: no more than allowed, and the books are right.
        #[test]
        fn the_limit_holds(
            steps in prop::collection::vec((0_u8..3, 0_u8..12, 0_usize..3000, any::<bool>()), 0..80),
        ) {
            let store = store(6_000, 60);
            for (owner, id, size, deletes) in steps {
                let (owner, id) = (Some([owner; 32]), format!("r{id}"));
                // Ids are not given twice.
                if deletes || store.get(owner, &id).is_some() {
                    store.delete(owner, &id);
                } else {
                    store.keep(owner, id, kept(size));
                }
                let shelves = store.lock();
                prop_assert!(shelves.size <= 6_000);
                prop_assert_eq!(shelves.size, shelves.of.values().map(|shelf| shelf.size).sum::<u64>());
                for shelf in shelves.of.values() {
                    let size: u64 = shelf.kept.iter().map(|(id, (kept, _))| kept.size(id)).sum();
                    prop_assert_eq!(shelf.size, size);
                    prop_assert_eq!(shelf.kept.len(), shelf.order.len());
                    prop_assert!(!shelf.kept.is_empty());
                }
            }
        }
    }
}
