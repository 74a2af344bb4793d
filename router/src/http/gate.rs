//! Who may come in: sequences and predicted tokens in the house against what fits and what may wait, in all and for each key.
//!
//! A sequence is expected to take its prompt (once for all choices of a request) and the part of its allowed output that
//! sequences have taken lately. What fits is the seats and the KV pool; only what is beyond them waits, and only that is
//! bounded here. So an idle server never refuses a burst that it can run at once.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::drain::{DrainRate, Yield};
use crate::metrics::RefusalCause;
use crate::scheduler::TenantId;
use crate::settings::Settings;

/// A call is refused, and how many seconds later trying again makes sense.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused {
    /// The limit that is reached.
    pub cause: RefusalCause,
    /// From 1 to 60, by how fast the house empties.
    pub retry_after: u32,
}

impl Refused {
    /// A refusal of which nothing is known but its cause.
    #[must_use]
    pub const fn at_once(cause: RefusalCause) -> Self {
        Self { cause, retry_after: 1 }
    }
}

#[derive(Debug, Clone, Copy)]
struct Limits {
    /// Sequences that run at once.
    seats: usize,
    queue_size: Option<usize>,
    queue_tokens: Option<u64>,
    /// Of every key that has no limits of its own.
    key: KeyLimits,
}

/// What one key may have in the house at once; `None` leaves it to the settings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KeyLimits {
    /// Sequences.
    pub requests: Option<usize>,
    /// Tokens that they are expected to take.
    pub tokens: Option<u64>,
}

/// Counts everyone in the house. Entries of tenants are there only as long as they have a sequence.
pub struct Gate {
    limits: Limits,
    house: Mutex<House>,
}

#[derive(Debug)]
struct House {
    all: Share,
    tenants: HashMap<TenantId, Share>,
    drain: DrainRate,
    expected: Yield,
}

/// Sequences that wait or run, and the tokens they are expected to take.
#[derive(Debug, Clone, Copy, Default)]
struct Share {
    sequences: usize,
    tokens: u64,
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").field("limits", &self.limits).finish_non_exhaustive()
    }
}

impl Gate {
    /// A gate to an empty house.
    #[must_use]
    pub fn new(settings: &Settings) -> Self {
        let seats = settings.max_batch_size.map_or(settings.max_concurrent_requests, |most| most as usize);
        let limits = Limits {
            seats,
            queue_size: settings.max_queue_size,
            queue_tokens: settings.max_queue_tokens,
            key: KeyLimits { requests: settings.max_requests_per_key, tokens: settings.max_tokens_per_key },
        };
        let house = House {
            all: Share::default(),
            tenants: HashMap::new(),
            drain: DrainRate::default(),
            expected: Yield::new(),
        };
        Self { limits, house: Mutex::new(house) }
    }

    /// Lets a call of so many sequences in; their tokens are not known yet.
    ///
    /// # Errors
    /// When it has too many in the house, or too many wait.
    pub fn enter(self: &Arc<Self>, tenant: TenantId, own: KeyLimits, sequences: usize) -> Result<Place, Refused> {
        let (mut house, limits) = (self.lock(), &self.limits);
        let most =
            KeyLimits { requests: own.requests.or(limits.key.requests), tokens: own.tokens.or(limits.key.tokens) };
        let present = house.tenants.get(&tenant).copied().unwrap_or_default().sequences;
        if let Some(over) = over(present, sequences, most.requests) {
            return Err(house.refuse_sequences(RefusalCause::KeyRequests, over));
        }
        let room = limits.queue_size.map(|size| size.saturating_add(limits.seats));
        if let Some(over) = over(house.all.sequences, sequences, room) {
            return Err(house.refuse_sequences(RefusalCause::QueueRequests, over));
        }
        house.add(tenant, Share { sequences, tokens: 0 });
        drop(house);
        Ok(Place { gate: Arc::clone(self), tenant, most_tokens: most.tokens, share: Share { sequences, tokens: 0 } })
    }

    /// What a call is told for which there is no permit.
    #[must_use]
    pub fn no_permit(&self, sequences: usize) -> Refused {
        let mut house = self.lock();
        let queued = (house.all.sequences + sequences).saturating_sub(self.limits.seats);
        house.refuse_sequences(RefusalCause::Concurrency, queued.max(sequences))
    }

    /// Sequences in the house: taken, and not yet answered to the last byte.
    #[must_use]
    pub fn present(&self) -> usize {
        self.lock().all.sequences
    }

    /// A sequence ended by itself.
    pub fn finished(&self, generated: u32, allowed: u32) {
        self.lock().expected.learn(generated, allowed);
    }

    fn lock(&self) -> MutexGuard<'_, House> {
        self.house.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How much too much a newcomer is; `None` when it fits.
fn over(present: usize, new: usize, most: Option<usize>) -> Option<usize> {
    let excess = present.saturating_add(new).saturating_sub(most?);
    (excess > 0).then_some(excess)
}

/// The same for tokens. Who would be alone always fits: waiting would change nothing.
fn over_tokens(present: u64, new: u64, most: Option<u64>) -> Option<u64> {
    let excess = present.saturating_add(new).saturating_sub(most?);
    (excess > 0 && present > 0).then_some(excess)
}

impl House {
    fn add(&mut self, tenant: TenantId, share: Share) {
        self.drain.tick(Instant::now(), true);
        self.all.add(share);
        self.tenants.entry(tenant).or_default().add(share);
    }

    fn remove(&mut self, tenant: TenantId, share: Share) {
        self.all.remove(share);
        if let Some(own) = self.tenants.get_mut(&tenant) {
            own.remove(share);
            if own.sequences == 0 {
                self.tenants.remove(&tenant);
            }
        }
        self.drain.tick(Instant::now(), self.all.sequences > 0);
        // Only who was let through to the engine says something about its pace.
        if share.tokens > 0 {
            self.drain.left(share.sequences, share.tokens);
        }
    }

    fn refuse_sequences(&mut self, cause: RefusalCause, excess: usize) -> Refused {
        self.drain.tick(Instant::now(), self.all.sequences > 0);
        Refused { cause, retry_after: self.drain.until_sequences(excess) }
    }

    fn refuse_tokens(&mut self, cause: RefusalCause, excess: u64) -> Refused {
        self.drain.tick(Instant::now(), self.all.sequences > 0);
        Refused { cause, retry_after: self.drain.until_tokens(excess) }
    }
}

impl Share {
    const fn add(&mut self, other: Self) {
        self.sequences += other.sequences;
        self.tokens += other.tokens;
    }

    const fn remove(&mut self, other: Self) {
        self.sequences = self.sequences.saturating_sub(other.sequences);
        self.tokens = self.tokens.saturating_sub(other.tokens);
    }
}

/// Some sequences' place in the house; dropping it gives it back.
#[derive(Debug)]
pub struct Place {
    gate: Arc<Gate>,
    tenant: TenantId,
    /// What its key may have in the house at once.
    most_tokens: Option<u64>,
    share: Share,
}

/// A prompt, how many sequences continue it, and how far each may go.
#[derive(Debug, Clone, Copy)]
pub struct Demand {
    /// Tokens of the prompt.
    pub prompt: u64,
    /// Sequences, at least one.
    pub sequences: usize,
    /// Tokens each may generate.
    pub allowed: u32,
}

impl Place {
    /// Takes a place for each sequence of a request out of this one, with the tokens that they are expected to take.
    /// `pool` is what fits the KV cache, once that is known.
    ///
    /// # Errors
    /// When its key has too many tokens in the house, or too many wait.
    pub fn book(&mut self, demand: Demand, pool: Option<u64>) -> Result<Vec<Self>, Refused> {
        let (mut house, limits) = (self.gate.lock(), &self.gate.limits);
        let each = house.expected.expected(demand.allowed);
        let wanted = demand.prompt.saturating_add(each.saturating_mul(demand.sequences as u64));
        let own = house.tenants.get(&self.tenant).copied().unwrap_or_default().tokens;
        if let Some(over) = over_tokens(own, wanted, self.most_tokens) {
            return Err(house.refuse_tokens(RefusalCause::KeyTokens, over));
        }
        let room = limits.queue_tokens.zip(pool).map(|(queue, pool)| queue.saturating_add(pool));
        if let Some(over) = over_tokens(house.all.tokens, wanted, room) {
            return Err(house.refuse_tokens(RefusalCause::QueueTokens, over));
        }
        let sequences = demand.sequences.min(self.share.sequences);
        self.share.sequences -= sequences;
        let places: Vec<Self> = (0..sequences)
            .map(|choice| {
                let tokens = if choice == 0 { demand.prompt.saturating_add(each) } else { each };
                house.add(self.tenant, Share { sequences: 0, tokens });
                let share = Share { sequences: 1, tokens };
                Self { gate: Arc::clone(&self.gate), tenant: self.tenant, most_tokens: self.most_tokens, share }
            })
            .collect();
        drop(house);
        Ok(places)
    }
}

impl Place {
    /// Takes back a place that came of `book`, without its tokens: who waits for something outside needs none.
    pub fn take_back(&mut self, mut other: Self) {
        let tokens = std::mem::take(&mut other.share.tokens);
        let sequences = std::mem::take(&mut other.share.sequences);
        self.share.sequences += sequences;
        self.gate.lock().remove(self.tenant, Share { sequences: 0, tokens });
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.gate.lock().remove(self.tenant, self.share);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn gate(limits: Limits) -> Arc<Gate> {
        let house = House {
            all: Share::default(),
            tenants: HashMap::new(),
            drain: DrainRate::default(),
            expected: Yield::new(),
        };
        Arc::new(Gate { limits, house: Mutex::new(house) })
    }

    const OPEN: Limits = Limits { seats: 2, queue_size: None, queue_tokens: None, key: ALL };
    const ALL: KeyLimits = KeyLimits { requests: None, tokens: None };

    fn demand(prompt: u64, sequences: usize, allowed: u32) -> Demand {
        Demand { prompt, sequences, allowed }
    }

    fn counts(gate: &Gate) -> (usize, u64, usize) {
        let house = gate.lock();
        (house.all.sequences, house.all.tokens, house.tenants.len())
    }

    #[test]
    fn what_runs_at_once_does_not_wait() {
        let gate = gate(Limits { queue_size: Some(1), ..OPEN });
        let inside: Vec<Place> = (0..3).map(|tenant| gate.enter(tenant, ALL, 1).unwrap()).collect();
        assert_eq!(gate.enter(9, ALL, 1).unwrap_err().cause, RefusalCause::QueueRequests);
        drop(inside);
        assert!(gate.enter(9, ALL, 3).is_ok());
        assert_eq!(gate.enter(9, ALL, 4).unwrap_err().cause, RefusalCause::QueueRequests);
    }

    #[test]
    fn each_key_has_its_own_limit() {
        let gate = gate(Limits { key: KeyLimits { requests: Some(2), tokens: Some(100) }, ..OPEN });
        let mut first = gate.enter(1, ALL, 2).unwrap();
        assert_eq!(gate.enter(1, ALL, 1).unwrap_err().cause, RefusalCause::KeyRequests);
        let mut other = gate.enter(2, ALL, 2).unwrap();
        let booked = first.book(demand(50, 1, 40), None).unwrap();
        assert_eq!(first.book(demand(20, 1, 1), None).unwrap_err().cause, RefusalCause::KeyTokens);
        // Alone, anything fits; the prompt counts once.
        assert_eq!(other.book(demand(500, 2, 40), None).unwrap().len(), 2);
        drop(booked);
        assert_eq!(first.book(demand(20, 1, 1), None).unwrap().len(), 1);
        let more = KeyLimits { requests: Some(3), tokens: Some(200) };
        let mut third = gate.enter(3, more, 3).unwrap();
        assert_eq!(gate.enter(3, more, 1).unwrap_err().cause, RefusalCause::KeyRequests);
        let booked = third.book(demand(50, 1, 100), None).unwrap();
        assert!(third.book(demand(50, 1, 1), None).is_err() && booked.len() == 1);
    }

    #[test]
    fn tokens_beyond_the_pool_wait() {
        let gate = gate(Limits { queue_tokens: Some(50), ..OPEN });
        let mut call = gate.enter(1, ALL, 3).unwrap();
        let running = call.book(demand(60, 1, 40), Some(100)).unwrap();
        assert_eq!(counts(&gate), (3, 100, 1));
        let waiting = call.book(demand(20, 1, 30), Some(100)).unwrap();
        assert_eq!(call.book(demand(1, 1, 1), Some(100)).unwrap_err().cause, RefusalCause::QueueTokens);
        drop((running, waiting, call));
        assert_eq!(counts(&gate), (0, 0, 0));
    }

    #[test]
    fn the_advice_grows_with_what_is_in_the_way() {
        let gate = gate(OPEN);
        assert_eq!(gate.no_permit(1), Refused::at_once(RefusalCause::Concurrency));
        let start = Instant::now();
        let mut house = gate.lock();
        house.all.sequences = 22;
        house.drain.tick(start, true);
        for second in 1..=20 {
            house.drain.tick(start + std::time::Duration::from_secs(second), true);
            house.drain.left(2, 100);
        }
        drop(house);
        let advice = gate.no_permit(1).retry_after;
        assert!((9..=12).contains(&advice), "{advice}");
    }

    #[test]
    fn less_is_expected_once_less_is_taken() {
        let gate = gate(OPEN);
        for _ in 0..200 {
            gate.finished(10, 100);
        }
        let mut call = gate.enter(1, ALL, 1).unwrap();
        let _booked = call.book(demand(0, 1, 1000), None).unwrap();
        let (_, tokens, _) = counts(&gate);
        assert!((100..=110).contains(&tokens), "{tokens}");
    }

    proptest! {
        /// Whoever comes and goes, in whatever order: the limits hold, and an empty house is empty.
        #[test]
        fn the_books_balance(
            steps in prop::collection::vec((0_u64..4, 1_usize..4, 0_u64..50, 1_u32..50, any::<bool>()), 0..60),
        ) {
            let limits = Limits { seats: 3, queue_size: Some(4), queue_tokens: Some(60), key: KeyLimits { requests: Some(4), tokens: Some(150) } };
            let gate = gate(limits);
            let (mut calls, mut places) = (Vec::new(), Vec::new());
            for (tenant, sequences, prompt, allowed, leaves) in steps {
                if leaves && !places.is_empty() {
                    places.swap_remove(prompt as usize % places.len());
                } else if let Ok(mut call) = gate.enter(tenant, ALL, sequences) {
                    if let Ok(booked) = call.book(demand(prompt, sequences, allowed), Some(100)) {
                        prop_assert_eq!(booked.len(), sequences);
                        places.extend(booked);
                    }
                    calls.push(call);
                    if leaves {
                        calls.clear();
                    }
                }
                let (sequences, tokens, _) = counts(&gate);
                prop_assert!(sequences <= 7);
                prop_assert_eq!(tokens, places.iter().map(|place: &Place| place.share.tokens).sum::<u64>());
            }
            drop((calls, places));
            prop_assert_eq!(counts(&gate), (0, 0, 0));
        }
    }
}
