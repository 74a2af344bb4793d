//! The block pool against a plain map of counts.

use std::collections::HashMap;

use proptest::prelude::*;

use super::super::blocks::BlockPool;
use super::BlockId;

#[test]
fn a_block_is_free_when_its_last_holder_lets_go() {
    let mut pool = BlockPool::new(2);
    let block = pool.allocate().unwrap();
    assert!(pool.share(block));
    assert_eq!(pool.references(block), 2);
    assert!(!pool.release(block));
    assert_eq!((pool.used(), pool.free()), (1, 1));
    assert!(pool.release(block));
    assert_eq!((pool.used(), pool.free(), pool.references(block)), (0, 2, 0));
    assert!(!pool.share(block), "a free block was shared");
    assert!(!pool.share(7), "a block that does not exist was shared");
    assert_eq!(pool.allocate(), Some(block), "the block freed last is handed out first");
}

#[test]
fn an_empty_pool_says_so() {
    let mut pool = BlockPool::new(3);
    let blocks: Vec<BlockId> = std::iter::from_fn(|| pool.allocate()).collect();
    assert_eq!(blocks, [0, 1, 2]);
    assert_eq!(pool.allocate(), None);
    assert!(pool.release(1));
    assert_eq!(pool.allocate(), Some(1));
    pool.check_integrity().unwrap();
}

proptest! {
    #[test]
    fn the_pool_counts_like_a_map(total in 1..12_u32, events in prop::collection::vec((0..3_u8, any::<usize>()), 0..200)) {
        let mut pool = BlockPool::new(total);
        let mut counts: HashMap<BlockId, u32> = HashMap::new();
        for (kind, pick) in events {
            let mut held: Vec<BlockId> = counts.keys().copied().collect();
            held.sort_unstable();
            let chosen = (!held.is_empty()).then(|| held[pick % held.len()]);
            match (kind, chosen) {
                (0, _) => match pool.allocate() {
                    Some(block) => prop_assert_eq!(counts.insert(block, 1), None),
                    None => prop_assert_eq!(counts.len(), total as usize),
                },
                (1, Some(block)) => {
                    prop_assert!(pool.share(block));
                    *counts.entry(block).or_default() += 1;
                }
                (_, Some(block)) => {
                    let count = counts.get_mut(&block).unwrap();
                    *count -= 1;
                    prop_assert_eq!(pool.release(block), *count == 0);
                    counts.retain(|_, count| *count > 0);
                }
                _ => {}
            }
            pool.check_integrity().unwrap();
            prop_assert_eq!(pool.used() as usize, counts.len());
            prop_assert_eq!(pool.free() + pool.used(), total);
            for block in 0..total {
                prop_assert_eq!(pool.references(block), counts.get(&block).copied().unwrap_or(0));
            }
        }
    }
}
