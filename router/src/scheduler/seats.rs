//! The seats: which slots are taken, by whom, and how they are ranked.

use super::Slot;
use super::sequence::{Index, Rank};

/// Slots of the shard and the running sequences. The most recently freed slot is taken first.
#[derive(Debug)]
pub(super) struct Seats {
    total: u32,
    /// Occupant of every slot that was ever taken.
    occupants: Vec<Option<Index>>,
    /// Slots that were taken once and are free again.
    vacated: Vec<Slot>,
    /// Slots whose sequence left since the last plan; the shard does not know yet.
    released: Vec<Slot>,
    /// Running sequences by rank.
    order: Vec<(Rank, Index)>,
}

impl Seats {
    pub(super) fn new(total: u32) -> Self {
        Self { total, occupants: Vec::new(), vacated: Vec::new(), released: Vec::new(), order: Vec::new() }
    }

    pub(super) fn total(&self) -> u32 {
        self.total
    }

    pub(super) fn len(&self) -> usize {
        self.order.len()
    }

    /// The running sequence with the given place by rank, counted from 0.
    pub(super) fn at(&self, place: usize) -> Option<Index> {
        self.order.get(place).map(|&(_, index)| index)
    }

    /// The running sequence that gives way first.
    pub(super) fn latest(&self) -> Option<Index> {
        self.order.last().map(|&(_, index)| index)
    }

    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = Index> + '_ {
        self.order.iter().map(|&(_, index)| index)
    }

    pub(super) fn occupant(&self, slot: Slot) -> Option<Index> {
        self.occupants.get(slot as usize).copied().flatten()
    }

    pub(super) fn is_full(&self) -> bool {
        self.order.len() >= self.total as usize
    }

    /// Seats a sequence; `None` when every slot is taken.
    pub(super) fn take(&mut self, rank: Rank, index: Index) -> Option<Slot> {
        let slot = match self.vacated.pop() {
            Some(slot) => slot,
            None if self.occupants.len() < self.total as usize => {
                self.occupants.push(None);
                (self.occupants.len() - 1) as Slot
            }
            None => return None,
        };
        self.occupants[slot as usize] = Some(index);
        let place = self.order.partition_point(|&(other, _)| other < rank);
        self.order.insert(place, (rank, index));
        Some(slot)
    }

    /// Frees a slot. The shard is told with the next plan.
    pub(super) fn leave(&mut self, slot: Slot, rank: Rank) {
        self.occupants[slot as usize] = None;
        self.vacated.push(slot);
        self.released.push(slot);
        if let Ok(place) = self.order.binary_search_by_key(&rank, |&(other, _)| other) {
            self.order.remove(place);
        }
    }

    /// Moves to `freed` the slots that were left since the last plan and are still free: seating resets a slot by itself.
    pub(super) fn announce(&mut self, freed: &mut Vec<Slot>) {
        let occupants = &self.occupants;
        freed.extend(self.released.drain(..).filter(|&slot| occupants[slot as usize].is_none()));
    }

    /// Forgets what the shard was to be told: there is a new one.
    pub(super) fn forget_released(&mut self) {
        self.released.clear();
    }

    /// Checks that each slot is taken or listed as free, and that the order is one of strictly rising ranks.
    pub(super) fn check_integrity(&self) -> Result<(), String> {
        let taken = self.occupants.iter().flatten().count();
        if taken != self.order.len() || taken + self.vacated.len() != self.occupants.len() {
            return Err(format!(
                "{} slots: {taken} taken, {} free, {} running",
                self.occupants.len(),
                self.vacated.len(),
                self.order.len()
            ));
        }
        if self.occupants.len() > self.total as usize {
            return Err(format!("{} slots were handed out of {}", self.occupants.len(), self.total));
        }
        let mut listed = vec![false; self.occupants.len()];
        for &slot in &self.vacated {
            if self.occupant(slot).is_some() || std::mem::replace(&mut listed[slot as usize], true) {
                return Err(format!("slot {slot} is listed as free and is taken or listed twice"));
            }
        }
        if !self.order.is_sorted_by(|earlier, later| earlier.0 < later.0) {
            return Err("the running sequences are out of order".to_owned());
        }
        Ok(())
    }
}
