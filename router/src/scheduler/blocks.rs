//! The pool of KV blocks: a count of references per block and a stack of free ones.

use super::BlockId;

/// Hands out blocks and takes them back, each operation in constant time.
///
/// A block is free when nothing refers to it. Sequences that share a block hold one reference each, and the block returns to
/// the pool with the last of them. The most recently freed block is handed out first: its memory is the warmest.
#[derive(Debug)]
pub struct BlockPool {
    total: u32,
    /// References per block, for every block that was ever handed out. Blocks beyond are untouched, and free.
    references: Vec<u32>,
    /// Blocks that were handed out once and are free again.
    returned: Vec<BlockId>,
}

impl BlockPool {
    /// A pool of the blocks `0..total`, all free.
    pub fn new(total: u32) -> Self {
        Self { total, references: Vec::new(), returned: Vec::new() }
    }

    /// Blocks of the pool, free or not.
    pub fn total(&self) -> u32 {
        self.total
    }

    /// Blocks that nothing refers to.
    pub fn free(&self) -> u32 {
        self.total - self.used()
    }

    /// Blocks that something refers to.
    pub fn used(&self) -> u32 {
        (self.references.len() - self.returned.len()) as u32
    }

    /// Blocks that were ever handed out: the first so many.
    pub fn handed_out(&self) -> u32 {
        self.references.len() as u32
    }

    /// How many hold this block.
    pub fn references(&self, block: BlockId) -> u32 {
        self.references.get(block as usize).copied().unwrap_or(0)
    }

    /// A free block with one reference, or `None` when all are in use.
    pub fn allocate(&mut self) -> Option<BlockId> {
        if let Some(block) = self.returned.pop() {
            self.references[block as usize] = 1;
            return Some(block);
        }
        let block = self.references.len() as BlockId;
        if block == self.total {
            return None;
        }
        self.references.push(1);
        Some(block)
    }

    /// One more reference to a block in use. Returns false, and does nothing, for a free block: its content is nobody's.
    pub fn share(&mut self, block: BlockId) -> bool {
        match self.references.get_mut(block as usize) {
            Some(count) if *count > 0 => {
                *count += 1;
                true
            }
            _ => false,
        }
    }

    /// One reference less. Returns true when that was the last one and the block is free again.
    pub fn release(&mut self, block: BlockId) -> bool {
        let Some(count) = self.references.get_mut(block as usize).filter(|count| **count > 0) else {
            debug_assert!(false, "block {block} was released and is free");
            return false;
        };
        *count -= 1;
        if *count > 0 {
            return false;
        }
        self.returned.push(block);
        true
    }

    /// Checks that the free stack holds exactly the blocks without references, each once.
    pub fn check_integrity(&self) -> Result<(), String> {
        if self.references.len() > self.total as usize {
            return Err(format!("{} blocks were handed out of {}", self.references.len(), self.total));
        }
        let mut listed = vec![false; self.references.len()];
        for &block in &self.returned {
            match listed.get_mut(block as usize) {
                None => {
                    return Err(format!("block {block} is listed as free and was never handed out"));
                }
                Some(seen) if *seen => {
                    return Err(format!("block {block} is listed as free twice"));
                }
                Some(seen) => *seen = true,
            }
        }
        for (block, (&count, &free)) in self.references.iter().zip(&listed).enumerate() {
            if (count == 0) != free {
                return Err(format!("block {block} has {count} references; listed as free: {free}"));
            }
        }
        Ok(())
    }
}
