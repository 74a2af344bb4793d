//! Grammar masks in the shared memory: which tokens a sequence may draw next. A mask is not known when its step is sent, so the
//! router writes it while the forward pass runs and stamps it; the shard waits for the stamp before it samples.
//!
//! Python's half is `python/textgen/shard/masks.py`, the contract `docs/protocol.md`, and `tests/protocol/masks.json` holds
//! slots that both must agree on.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use memmap2::{MmapOptions, MmapRaw};

use super::protocol::{ProtocolError, Region};

/// Steps' worth of slots: two steps are in flight, so a slot is read before its next turn.
const PARTS: u64 = 4;
/// Bytes before a mask's bits: stamp, kind, the rest unused.
const HEADER: usize = 64;
/// The bits say which tokens are allowed.
const KIND_BITS: u64 = 0;
/// No bits: the shard samples freely, and the router does not use what it draws.
const KIND_ANY: u64 = 1;
/// The bits are tokens that are allowed, and others may be too: the shard asks for the rest where it needs it.
const KIND_PART: u64 = 2;

// Bits travel as the memory of u32 words.
const _: () = assert!(cfg!(target_endian = "little"), "masks are written as little-endian words");

/// The region `masks`. Clones share it; tickets may be filled on any thread.
#[derive(Debug, Clone)]
pub struct MaskBoard(Arc<Board>);

#[derive(Debug)]
struct Board {
    map: MmapRaw,
    /// `u32` words of a mask.
    words: usize,
    /// Bytes from one slot to the next.
    stride: usize,
    /// Whether a ticket for the slot is out. A slot has one writer at a time, however late that one is.
    taken: Vec<AtomicBool>,
}

impl MaskBoard {
    /// Maps the region for writing, alone: nothing else of the memory is the router's to write.
    ///
    /// # Errors
    /// When the region does not lie inside the file of `size` bytes, is not made of slots for this vocabulary, or cannot
    /// be mapped.
    pub(super) fn map(file: &File, region: &Region, size: u64, vocab_size: u32) -> Result<Self, ProtocolError> {
        let invalid = |what: String| ProtocolError::Invalid(what);
        let words = (vocab_size as usize).div_ceil(32);
        let stride = HEADER + (4 * words).next_multiple_of(64);
        let length = usize::try_from(region.length).unwrap_or(usize::MAX);
        let inside = region.offset.checked_add(region.length).is_some_and(|end| end <= size);
        if !inside || length == 0 || length % stride != 0 || !region.offset.is_multiple_of(8) {
            let sentence = format!("the region `masks` of {length} bytes is not made of slots of {stride} bytes");
            return Err(invalid(sentence));
        }
        let map = MmapOptions::new().offset(region.offset).len(length).map_raw(file);
        let map = map.map_err(|error| invalid(format!("the region `masks` cannot be mapped: {error}")))?;
        let taken = (0..length / stride).map(|_| AtomicBool::new(false)).collect();
        Ok(Self(Arc::new(Board { map, words, stride, taken })))
    }

    /// Slots of one step: as many sequences under a grammar can be in it.
    #[must_use]
    pub fn slots_per_step(&self) -> usize {
        self.0.taken.len() / PARTS as usize
    }

    /// A slot for a mask of this step; `None` when all of the step's are taken.
    #[must_use]
    pub fn ticket(&self, step: u64) -> Option<MaskTicket> {
        let count = self.slots_per_step();
        let first = usize::try_from(step % PARTS).unwrap_or(0) * count;
        let mut slots = first..first + count;
        let free = |slot: &usize| {
            let taken = self.0.taken.get(*slot);
            taken.is_some_and(|taken| !taken.swap(true, Ordering::Acquire))
        };
        slots.find(free).map(|slot| MaskTicket { board: Arc::clone(&self.0), slot, step, kind: KIND_ANY })
    }
}

/// The right to write one mask. Dropped without being published, it lets the shard sample freely: whoever drops it does not
/// want the result, and nobody must wait for it.
#[derive(Debug)]
pub struct MaskTicket {
    board: Arc<Board>,
    slot: usize,
    step: u64,
    kind: u64,
}

impl MaskTicket {
    /// The slot's number, as the step's column `masks` names it.
    #[must_use]
    #[allow(clippy::cast_possible_truncation)] // A region of 2^32 slots would be over 2^38 bytes.
    pub const fn slot(&self) -> u32 {
        self.slot as u32
    }

    /// The mask's words, a bit per token; what they hold is old.
    pub fn words(&mut self) -> &mut [u32] {
        let start = self.board.map.as_mut_ptr().wrapping_add(self.slot * self.board.stride + HEADER);
        // SAFETY: the slot lies inside the mapping (its number is below the count that the mapping's length was divided
        // into), whose start and stride are multiples of 8. This ticket is the slot's only one, so no other reference to it
        // exists in this process; the shard reads it only between its stamp for a step and that step's Done.
        unsafe { std::slice::from_raw_parts_mut(start.cast::<u32>(), self.board.words) }
    }

    /// The mask is written: the shard may sample.
    pub fn publish(mut self) {
        self.kind = KIND_BITS;
    }

    /// A part of the mask is written: the shard may sample from it, or asks for all of it, which is published then. Nothing may
    /// be written before that.
    pub fn publish_part(&mut self) {
        self.stamp(KIND_PART);
    }

    fn stamp(&self, of: u64) {
        let header = self.board.map.as_mut_ptr().wrapping_add(self.slot * self.board.stride).cast::<AtomicU64>();
        // SAFETY: as for the words, for the first two words of the slot's header, which are only ever used as atomics here.
        let (stamp, kind) = unsafe { (&*header, &*header.wrapping_add(1)) };
        // Who has read a part waits for another kind.
        kind.store(of, Ordering::Release);
        stamp.store(self.step.wrapping_add(1), Ordering::Release);
    }
}

impl Drop for MaskTicket {
    fn drop(&mut self) {
        self.stamp(self.kind);
        if let Some(taken) = self.board.taken.get(self.slot) {
            taken.store(false, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use rustix::fs::MemfdFlags;
    use serde::Deserialize;

    use super::*;

    #[derive(Deserialize)]
    struct Golden {
        vocab_size: u32,
        max_slots: usize,
        count: usize,
        stride: usize,
        step: u64,
        allowed: Option<Vec<usize>>,
        hex: String,
    }

    fn board(offset: u64, length: u64, vocab_size: u32) -> Result<(File, MaskBoard), ProtocolError> {
        let file = File::from(rustix::fs::memfd_create("masks", MemfdFlags::ALLOW_SEALING).unwrap());
        file.set_len(offset + length).unwrap();
        let region = Region { name: "masks".to_owned(), offset, length };
        let board = MaskBoard::map(&file, &region, offset + length, vocab_size)?;
        Ok((file, board))
    }

    fn read(file: &File, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        file.read_exact_at(&mut bytes, offset).unwrap();
        bytes
    }

    #[test]
    fn slots_are_the_golden_ones() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/protocol/masks.json");
        let cases: Vec<Golden> = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        assert!(cases.len() >= 5);
        for case in cases {
            let (file, board) = board(192, (case.count * case.stride) as u64, case.vocab_size).unwrap();
            assert_eq!(board.slots_per_step(), case.max_slots);
            let mut ticket = board.ticket(case.step).unwrap();
            let slot = u64::from(ticket.slot());
            assert_eq!(slot, case.step % 4 * case.max_slots as u64);
            let place = 192 + slot * case.stride as u64;
            assert_eq!(read(&file, place, 8), [0; 8], "nothing is stamped before it is written");
            match case.allowed {
                None => drop(ticket),
                Some(allowed) => {
                    allowed.iter().for_each(|token| ticket.words()[token / 32] |= 1 << (token % 32));
                    ticket.publish();
                }
            }
            let written: String = read(&file, place, case.stride).iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(written, case.hex);
        }
    }

    #[test]
    fn a_part_is_followed_by_the_whole_in_its_slot() {
        let (file, board) = board(0, 4 * 2 * 128, 500).unwrap();
        let mut ticket = board.ticket(1).unwrap();
        let place = u64::from(ticket.slot()) * 128;
        ticket.words().fill(1);
        ticket.publish_part();
        assert_eq!(
            (read(&file, place, 9)[..].to_vec(), read(&file, place + 64, 1)),
            (vec![2, 0, 0, 0, 0, 0, 0, 0, 2], vec![1])
        );
        let other = board.ticket(1).unwrap();
        assert_ne!(other.slot(), ticket.slot(), "it is still this one's");
        ticket.words().fill(3);
        ticket.publish();
        assert_eq!(
            (read(&file, place, 9)[..].to_vec(), read(&file, place + 64, 1)),
            (vec![2, 0, 0, 0, 0, 0, 0, 0, 0], vec![3])
        );
    }

    #[test]
    fn a_slot_has_one_writer() {
        let (_file, board) = board(0, 4 * 2 * 128, 500).unwrap();
        let late = board.ticket(1).unwrap();
        let other = board.ticket(1).unwrap();
        assert_ne!(late.slot(), other.slot());
        assert!(board.ticket(1).is_none());
        assert!(board.ticket(2).is_some(), "another step has slots of its own");
        other.publish();
        // Four steps later the same places are due, and the late writer still holds one of them.
        let next = board.ticket(5).unwrap();
        assert_ne!(next.slot(), late.slot());
        assert!(board.ticket(5).is_none());
        drop(late);
        assert!(board.ticket(5).is_some());
    }

    #[test]
    fn a_region_of_another_shape_is_refused() {
        for (offset, length, vocab_size) in [(0, 0, 500), (0, 1000, 500), (0, 1024, 100_000), (4, 1024, 500)] {
            let error = board(offset, length, vocab_size).unwrap_err();
            assert!(error.to_string().contains("`masks`"), "{error}");
        }
        let file = File::from(rustix::fs::memfd_create("masks", MemfdFlags::ALLOW_SEALING).unwrap());
        for offset in [1, u64::MAX] {
            let region = Region { name: "masks".to_owned(), offset, length: 1024 };
            assert!(MaskBoard::map(&file, &region, 1024, 500).is_err());
        }
    }

    #[test]
    fn threads_write_side_by_side() {
        let (file, board) = board(0, 4 * 64 * 128, 500).unwrap();
        // All at once: a slot that is given back could be taken again.
        let tickets: Vec<MaskTicket> = (0..64).map(|_| board.ticket(3).unwrap()).collect();
        std::thread::scope(|scope| {
            for (mut ticket, number) in tickets.into_iter().zip(0_u32..) {
                scope.spawn(move || {
                    ticket.words().fill(number);
                    ticket.publish();
                });
            }
        });
        let region = read(&file, 3 * 64 * 128, 64 * 128);
        let mut seen: Vec<u32> = region
            .chunks(128)
            .map(|slot| {
                let words: Vec<u32> =
                    slot[64..124].chunks(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect();
                assert!(slot[0] == 4 && words.iter().all(|word| *word == words[0]));
                words[0]
            })
            .collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..64).collect::<Vec<_>>());
    }
}
