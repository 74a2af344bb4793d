//! Which replica a request goes to.

use std::collections::HashMap;

use crate::trace::Request;

/// A router of replicas. It knows what it has sent where and what has ended.
pub trait Balance {
    /// The replica for a request that has just come.
    fn pick(&mut self, id: usize, request: &Request) -> usize;

    /// A request has ended.
    fn ended(&mut self, id: usize, replica: usize);
}

/// There is one.
#[derive(Debug, Clone, Copy)]
pub struct Single;

impl Balance for Single {
    fn pick(&mut self, _id: usize, _request: &Request) -> usize {
        0
    }

    fn ended(&mut self, _id: usize, _replica: usize) {}
}

/// One after the other.
#[derive(Debug)]
pub struct RoundRobin {
    replicas: usize,
    next: usize,
}

impl RoundRobin {
    /// Over so many replicas.
    #[must_use]
    pub fn new(replicas: usize) -> Self {
        Self { replicas, next: 0 }
    }
}

impl Balance for RoundRobin {
    fn pick(&mut self, _id: usize, _request: &Request) -> usize {
        let picked = self.next;
        self.next = (self.next + 1) % self.replicas;
        picked
    }

    fn ended(&mut self, _id: usize, _replica: usize) {}
}

/// The replica with the fewest prompt tokens in requests that have not ended; the first of several.
#[derive(Debug)]
pub struct LeastTokens {
    tokens: Vec<u64>,
    sent: HashMap<usize, u64>,
}

impl LeastTokens {
    /// Over so many replicas.
    #[must_use]
    pub fn new(replicas: usize) -> Self {
        Self { tokens: vec![0; replicas], sent: HashMap::new() }
    }

    fn send(&mut self, id: usize, replica: usize, tokens: u64) {
        self.tokens[replica] += tokens;
        self.sent.insert(id, tokens);
    }
}

impl Balance for LeastTokens {
    fn pick(&mut self, id: usize, request: &Request) -> usize {
        let picked = (0..self.tokens.len()).min_by_key(|&place| self.tokens[place]).unwrap_or(0);
        self.send(id, picked, request.prompt.len() as u64);
        picked
    }

    fn ended(&mut self, id: usize, replica: usize) {
        self.tokens[replica] -= self.sent.remove(&id).unwrap_or(0);
    }
}

/// Where the prompt begins like one that was sent there, unless that replica is busier by more tokens than it would save.
#[derive(Debug)]
pub struct PrefixAffinity {
    least: LeastTokens,
    /// The replicas that a beginning of a prompt was sent to, by its hash.
    seen: HashMap<u64, Vec<u32>>,
}

impl PrefixAffinity {
    /// Tokens per hash.
    const STRIDE: usize = 64;

    /// Over so many replicas.
    #[must_use]
    pub fn new(replicas: usize) -> Self {
        Self { least: LeastTokens::new(replicas), seen: HashMap::new() }
    }

    fn beginnings(request: &Request) -> Vec<u64> {
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        let strides = request.prompt.chunks_exact(Self::STRIDE).map(|stride| {
            for &token in stride {
                hash = (hash ^ u64::from(token)).wrapping_mul(0x0100_0000_01b3).rotate_left(23);
            }
            hash
        });
        strides.collect()
    }
}

impl Balance for PrefixAffinity {
    fn pick(&mut self, id: usize, request: &Request) -> usize {
        let beginnings = Self::beginnings(request);
        let mut saved = HashMap::new();
        for (hash, reach) in beginnings.iter().zip(1_u64..) {
            let Some(replicas) = self.seen.get(hash) else { break };
            saved.extend(replicas.iter().map(|&replica| (replica as usize, reach * Self::STRIDE as u64)));
        }
        let price = |place: usize| self.least.tokens[place] as i64 - saved.get(&place).map_or(0, |&saved| saved as i64);
        let picked = (0..self.least.tokens.len()).min_by_key(|&place| price(place)).unwrap_or(0);
        let new = request.prompt.len() as u64 - saved.get(&picked).copied().unwrap_or(0);
        self.least.send(id, picked, new);
        for hash in beginnings {
            let replicas = self.seen.entry(hash).or_default();
            if !replicas.contains(&(picked as u32)) {
                replicas.push(picked as u32);
            }
        }
        picked
    }

    fn ended(&mut self, id: usize, replica: usize) {
        self.least.ended(id, replica);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{Class, Starts};

    fn request(begin: u32, length: u32) -> Request {
        let prompt = (begin..begin + length).collect();
        Request { starts: Starts::At(0), class: Class::Chat, tenant: 0, prompt, output: vec![0], max_new: 1 }
    }

    #[test]
    fn the_least_busy_is_next() {
        let mut least = LeastTokens::new(2);
        assert_eq!(least.pick(0, &request(0, 100)), 0);
        assert_eq!(least.pick(1, &request(0, 10)), 1);
        assert_eq!(least.pick(2, &request(0, 10)), 1);
        least.ended(0, 0);
        assert_eq!(least.pick(3, &request(0, 10)), 0);
    }

    #[test]
    fn a_prefix_draws_until_it_is_too_busy_there() {
        let mut affinity = PrefixAffinity::new(2);
        assert_eq!(affinity.pick(0, &request(0, 640)), 0);
        assert_eq!(affinity.pick(1, &request(5_000, 6_400)), 1);
        // All of it was seen on the busier one, which is behind by more than is saved.
        assert_eq!(affinity.pick(2, &request(5_000, 640)), 0);
        affinity.ended(1, 1);
        assert_eq!(affinity.pick(3, &request(5_000, 6_400)), 1);
    }

    #[test]
    fn all_take_turns() {
        let mut robin = RoundRobin::new(3);
        assert_eq!([0, 1, 2, 3].map(|id| robin.pick(id, &request(0, 1))), [0, 1, 2, 0]);
    }
}
