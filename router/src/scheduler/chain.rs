//! Names for prefixes: a chain of cryptographic hashes, one per full block, each made from the one before.

use std::fmt;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};

use super::Token;

const BYTES: usize = 32;

/// Whose cached prefixes a sequence may reuse, and others reuse of it: those with an equal key. It stands for everything
/// besides the tokens that the content of a block depends on or that must be kept apart: tenant or salt, adapter, images.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct CacheKey([u8; BYTES]);

impl CacheKey {
    /// The key made of all parts in their order; no two lists of parts share one.
    #[must_use]
    pub fn of(parts: &[&[u8]]) -> Self {
        let mut hasher = blake3::Hasher::new();
        for part in parts {
            hasher.update(&(part.len() as u64).to_le_bytes()).update(part);
        }
        Self(*hasher.finalize().as_bytes())
    }

    /// The key of what is kept apart by one more thing.
    #[must_use]
    pub fn with(&self, part: &[u8]) -> Self {
        Self::of(&[&self.0, part])
    }
}

/// A key tells nothing of what it was made of.
impl fmt::Debug for CacheKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "CacheKey({:02x}{:02x}..)", self.0[0], self.0[1])
    }
}

/// Stands for a cache key and all tokens from the start of a sequence to the end of one of its blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Digest([u8; BYTES]);

impl Hash for Digest {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let [a, b, c, d, e, f, g, h, ..] = self.0;
        state.write_u64(u64::from_le_bytes([a, b, c, d, e, f, g, h]));
    }
}

/// Takes a digest as it is: it is a hash already, and nobody outside can aim at one.
#[derive(Debug, Default)]
pub(super) struct DigestHasher(u64);

impl Hasher for DigestHasher {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(byte);
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Makes chains. Its secret is its own: digests differ from process to process.
#[derive(Debug)]
pub(super) struct ChainHasher {
    secret: [u8; BYTES],
    /// Bytes of a digest that are kept: all of them, except in tests of collisions.
    kept: usize,
    /// Memory for use again.
    bytes: Vec<u8>,
}

impl ChainHasher {
    pub(super) fn new() -> Self {
        let random = RandomState::new();
        let mut secret = [0; BYTES];
        for (place, chunk) in secret.chunks_mut(8).enumerate() {
            chunk.copy_from_slice(&random.hash_one(place).to_le_bytes());
        }
        Self { secret, kept: BYTES, bytes: Vec::new() }
    }

    /// Digests of which so few bytes are kept that they collide.
    #[cfg(test)]
    pub(super) fn colliding(kept: usize) -> Self {
        Self { kept, ..Self::new() }
    }

    /// Extends the chain to all full blocks of `tokens`. One keyed compression per 64 bytes: the digest before is the key.
    pub(super) fn extend(&mut self, chain: &mut Vec<Digest>, key: &CacheKey, tokens: &[Token], block_size: usize) {
        let full = tokens.len() / block_size;
        if chain.len() >= full {
            return;
        }
        let mut digest =
            chain.last().map_or_else(|| *blake3::keyed_hash(&self.secret, &key.0).as_bytes(), |last| last.0);
        chain.reserve(full - chain.len());
        self.bytes.resize(block_size * size_of::<Token>(), 0);
        for block in tokens[chain.len() * block_size..full * block_size].chunks_exact(block_size) {
            for (place, token) in self.bytes.chunks_exact_mut(size_of::<Token>()).zip(block) {
                place.copy_from_slice(&token.to_le_bytes());
            }
            digest = *blake3::keyed_hash(&digest, &self.bytes).as_bytes();
            digest[self.kept..].fill(0);
            chain.push(Digest(digest));
        }
    }
}
