//! The search itself: which continuations live on, which are kept as finished, and when no better one can come.
//!
//! It does what Transformers' `generate(num_beams=…, do_sample=False)` does, step by step: of all continuations of all beams
//! the best few are looked at, enough for `width` of them to go on whatever ends. Those that end and are among the first
//! `width` compete for the finished places by `sum of log-probabilities / tokens ^ length_penalty`.

use std::cmp::Ordering;
use std::sync::Arc;

use super::super::Token;
use super::{EarlyStopping, FinishedBy, Hypothesis};

/// What is looked for; fixed for life.
#[derive(Debug, Clone)]
pub(super) struct Rules {
    pub(super) width: usize,
    pub(super) returned: usize,
    pub(super) length_penalty: f32,
    pub(super) early_stopping: EarlyStopping,
    pub(super) stop_tokens: Arc<[Token]>,
    /// Tokens that may be generated.
    pub(super) max_new: usize,
}

impl Rules {
    /// Continuations that are looked at in a step.
    pub(super) fn candidates(&self) -> usize {
        candidates(self.width, self.stop_tokens.len())
    }
}

/// Continuations that a step looks at: even if each beam ends in every way that there is, `width` of them go on.
pub(super) fn candidates(width: usize, stop_tokens: usize) -> usize {
    width.saturating_mul((1 + stop_tokens).max(2))
}

/// A beam that goes on.
#[derive(Debug, Clone, Default)]
pub(super) struct Beam {
    /// Generated so far.
    pub(super) tokens: Vec<Token>,
    logprobs: Vec<f32>,
    /// Sum of the log-probabilities.
    score: f32,
}

/// How a beam goes on: which of the beams before it continues, with its new last token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Branch {
    pub(super) parent: usize,
    pub(super) token: Token,
}

/// One continuation of one beam.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    branch: Branch,
    logprob: f32,
    /// Of the beam with it.
    score: f32,
    ends: Option<FinishedBy>,
}

/// A search in the middle of its life.
#[derive(Debug)]
pub(super) struct Search {
    pub(super) rules: Rules,
    /// Those that go on, the best first; at first one without tokens.
    pub(super) beams: Vec<Beam>,
    /// The best that have ended, at most `width`, the best first.
    finished: Vec<Hypothesis>,
}

impl Search {
    pub(super) fn new(rules: Rules) -> Self {
        Self { rules, beams: vec![Beam::default()], finished: Vec::new() }
    }

    /// Tokens that every beam has generated.
    pub(super) fn generated(&self) -> usize {
        self.beams.first().map_or(0, |beam| beam.tokens.len())
    }

    /// Takes the most likely next tokens of each beam, with their log-probabilities. `None` when the search is over;
    /// otherwise the beams are those that go on, and it is told where each of them comes from.
    pub(super) fn advance<'a>(&mut self, tops: impl Iterator<Item = &'a [(Token, f32)]>) -> Option<Vec<Branch>> {
        let candidates = self.best_candidates(tops);
        let ended = |candidate: &&Candidate| candidate.ends.is_some();
        for candidate in candidates.iter().take(self.rules.width).filter(ended) {
            self.keep(candidate);
        }
        let running: Vec<Candidate> =
            candidates.into_iter().filter(|candidate| candidate.ends.is_none()).take(self.rules.width).collect();
        let best = running.first()?.score;
        let full = self.finished.len() == self.rules.width;
        if full && (self.rules.early_stopping == EarlyStopping::WhenFull || !self.can_improve(best)) {
            return None;
        }
        self.beams = running.iter().map(|candidate| self.extended(candidate)).collect();
        Some(running.iter().map(|candidate| candidate.branch).collect())
    }

    /// The answers, the best first, when the search is over.
    pub(super) fn take_hypotheses(&mut self) -> Vec<Hypothesis> {
        self.finished.truncate(self.rules.returned);
        std::mem::take(&mut self.finished)
    }

    fn best_candidates<'a>(&self, tops: impl Iterator<Item = &'a [(Token, f32)]>) -> Vec<Candidate> {
        let length = self.generated() + 1;
        let candidate = |parent: usize, token: Token, logprob: f32| {
            let ends = if self.rules.stop_tokens.contains(&token) {
                Some(FinishedBy::StopToken)
            } else {
                (length >= self.rules.max_new).then_some(FinishedBy::Length)
            };
            Candidate { branch: Branch { parent, token }, logprob, score: self.beams[parent].score + logprob, ends }
        };
        let mut candidates: Vec<Candidate> = (0..self.beams.len())
            .zip(tops)
            .flat_map(|(parent, top)| top.iter().map(move |&(token, logprob)| (parent, token, logprob)))
            .map(|(parent, token, logprob)| candidate(parent, token, logprob))
            .collect();
        candidates.sort_by(|one, other| {
            let place = |candidate: &Candidate| (candidate.branch.parent, candidate.branch.token);
            descending(one.score, other.score).then(place(one).cmp(&place(other)))
        });
        candidates.truncate(self.rules.candidates());
        candidates
    }

    fn extended(&self, candidate: &Candidate) -> Beam {
        let mut beam = self.beams[candidate.branch.parent].clone();
        beam.tokens.push(candidate.branch.token);
        beam.logprobs.push(candidate.logprob);
        Beam { score: candidate.score, ..beam }
    }

    /// Gives one that has ended its place among the best, if it has one. Of equals the earlier is better.
    fn keep(&mut self, candidate: &Candidate) {
        let Some(finished_by) = candidate.ends else { return };
        let Beam { tokens, logprobs, score } = self.extended(candidate);
        let score = self.normalized(score, tokens.len());
        let place = self.finished.partition_point(|kept| descending(kept.score, score) != Ordering::Greater);
        self.finished.insert(place, Hypothesis { tokens, logprobs, score, finished_by });
        self.finished.truncate(self.rules.width);
    }

    fn normalized(&self, score: f32, length: usize) -> f32 {
        score / (length as f64).powf(f64::from(self.rules.length_penalty)) as f32
    }

    /// Whether the best that goes on could still end better than the worst that is kept, by the guess that the rules allow.
    fn can_improve(&self, best: f32) -> bool {
        let longest = self.rules.early_stopping == EarlyStopping::Never && self.rules.length_penalty > 0.0;
        let length = if longest { self.rules.max_new } else { self.generated() + 1 };
        self.finished.last().is_none_or(|worst| self.normalized(best, length) > worst.score)
    }
}

/// The larger first; it is total, so that nothing a shard reports can upset the order.
fn descending(one: f32, other: f32) -> Ordering {
    other.total_cmp(&one)
}
