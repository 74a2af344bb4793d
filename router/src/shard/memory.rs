//! The shared memory: a sealed memfd whose size and regions are checked before and at each read.

use std::fs::File;
use std::os::fd::OwnedFd;

use memmap2::{Mmap, MmapOptions};
use rustix::fs::SealFlags;

use super::columns::{Cell, unpack};
use super::masks::MaskBoard;
use super::protocol::{ProtocolError, Region};

/// The shared memory: what the shard writes is mapped read-only, what the router writes by [`SharedMemory::masks`].
#[derive(Debug)]
pub struct SharedMemory {
    file: File,
    map: Option<Mmap>,
    logprobs: std::ops::Range<usize>,
    masks: Option<Region>,
}

impl SharedMemory {
    /// Maps the memory that `regions` describe.
    ///
    /// # Errors
    /// When the file can still shrink, a region lies outside of it, or it cannot be mapped.
    pub fn map(file: OwnedFd, regions: &[Region]) -> Result<Self, ProtocolError> {
        let invalid = |what: String| ProtocolError::Invalid(what);
        let file = File::from(file);
        let size = file.metadata().map_err(|error| invalid(format!("the shared memory has no size: {error}")))?.len();
        if size == 0 && regions.is_empty() {
            return Ok(Self { file, map: None, logprobs: 0..0, masks: None });
        }
        let seals = rustix::fs::fcntl_get_seals(&file)
            .map_err(|error| invalid(format!("the shared memory has no seals: {error}")))?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(invalid("the shared memory must be sealed against shrinking".to_owned()));
        }
        let (mut logprobs, mut masks) = (0..0, None);
        for region in regions {
            let range = inside(region.offset, region.length, size)
                .ok_or_else(|| invalid(format!("region `{}` lies outside the shared memory", region.name)))?;
            match region.name.as_str() {
                "logprobs" => logprobs = range,
                "masks" => masks = Some(region.clone()),
                _ => {}
            }
        }
        // SAFETY: the file is a memfd sealed against shrinking, so the mapping stays backed for its whole life. The shard
        // writes a part only while no frame that names it is being read (docs/protocol.md, shared memory).
        let map = unsafe { MmapOptions::new().map(&file) };
        let map = map.map_err(|error| invalid(format!("the shared memory cannot be mapped: {error}")))?;
        Ok(Self { file, map: Some(map), logprobs, masks })
    }

    /// The region `masks`, mapped for writing; `None` for a shard that takes none.
    ///
    /// # Errors
    /// When it is not made of slots for this vocabulary, or cannot be mapped.
    pub fn masks(&self, vocab_size: u32) -> Result<Option<MaskBoard>, ProtocolError> {
        let size = self.map.as_ref().map_or(0, |map| map.len() as u64);
        self.masks.as_ref().map(|region| MaskBoard::map(&self.file, region, size, vocab_size)).transpose()
    }

    /// Copies the cells of a byte range that must lie in the region `logprobs`.
    ///
    /// # Errors
    /// When it does not.
    pub fn wide(&self, offset: u64, length: u64) -> Result<Wide, ProtocolError> {
        let map = self.map.as_deref().unwrap_or_default();
        let bytes = inside(offset, length, map.len() as u64)
            .filter(|range| range.start >= self.logprobs.start && range.end <= self.logprobs.end)
            .and_then(|range| map.get(range))
            .ok_or_else(|| ProtocolError::Invalid("a step's wide results lie outside their region".to_owned()))?;
        Ok(Wide { bytes: bytes.to_vec(), at: 0 })
    }
}

fn inside(offset: u64, length: u64, size: u64) -> Option<std::ops::Range<usize>> {
    let end = offset.checked_add(length).filter(|&end| end <= size)?;
    Some(usize::try_from(offset).ok()?..usize::try_from(end).ok()?)
}

/// A step's wide results, read front to back.
#[derive(Debug, Default)]
pub struct Wide {
    bytes: Vec<u8>,
    at: usize,
}

impl Wide {
    /// The next `count` cells.
    ///
    /// # Errors
    /// When fewer are left.
    pub fn take<T: Cell>(&mut self, count: usize) -> Result<Vec<T>, ProtocolError> {
        let end = count.checked_mul(T::SIZE).and_then(|bytes| self.at.checked_add(bytes));
        let cells = end.and_then(|end| self.bytes.get(self.at..end)).and_then(unpack);
        self.at = end.unwrap_or(self.at);
        cells.ok_or_else(|| ProtocolError::Invalid("a step's wide results are too short".to_owned()))
    }
}
