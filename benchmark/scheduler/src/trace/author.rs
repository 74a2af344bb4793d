//! Writes prompts and answers of random tokens and lengths, and says when they come.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Exp1, LogNormal, Zipf};
use textgen_router::scheduler::{Micros, Token};

use super::SECOND;

/// Token ids, as in the model of the profile.
const VOCAB: Token = 128_256;

/// Lengths with a median, spread by `sigma` (of the logarithm), within limits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lengths {
    pub(super) median: f64,
    pub(super) sigma: f64,
    pub(super) least: u32,
    pub(super) most: u32,
}

impl Lengths {
    pub(super) const fn new(median: f64, sigma: f64, least: u32, most: u32) -> Self {
        Self { median, sigma, least, most }
    }
}

/// A source of chance for one trace.
#[derive(Debug)]
pub(super) struct Author(ChaCha8Rng);

impl Author {
    pub(super) fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    pub(super) fn text(&mut self, length: u32) -> Vec<Token> {
        (0..length).map(|_| self.0.random_range(0..VOCAB)).collect()
    }

    pub(super) fn length(&mut self, lengths: Lengths) -> u32 {
        // A sigma that is finite and not negative is all that the distribution asks for.
        let drawn =
            LogNormal::new(lengths.median.ln(), lengths.sigma).map_or(lengths.median, |law| law.sample(&mut self.0));
        (drawn as u32).clamp(lengths.least, lengths.most)
    }

    pub(super) fn text_of(&mut self, lengths: Lengths) -> Vec<Token> {
        let length = self.length(lengths);
        self.text(length)
    }

    /// A span with the given mean, as between the events of a Poisson process.
    pub(super) fn pause(&mut self, mean: Micros) -> Micros {
        let drawn: f64 = Exp1.sample(&mut self.0);
        (drawn * mean as f64) as Micros
    }

    /// The span until the next of `rate` events per second.
    pub(super) fn gap(&mut self, rate: f64) -> Micros {
        self.pause((SECOND as f64 / rate) as Micros)
    }

    /// One of `count`, the first ones far more often (Zipf's law).
    pub(super) fn popular(&mut self, count: usize) -> usize {
        let drawn = Zipf::new(count as f64, 1.0).map_or(1.0, |law| law.sample(&mut self.0));
        (drawn as usize).clamp(1, count) - 1
    }

    pub(super) fn below(&mut self, bound: u32) -> u32 {
        self.0.random_range(0..bound)
    }

    pub(super) fn chance(&mut self, probability: f64) -> bool {
        self.0.random_bool(probability)
    }
}
