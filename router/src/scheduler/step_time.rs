//! How long a step takes: a model fitted while steps run, and the prompt chunk that it allows.
//!
//! A step costs something, each token in it, each pair of a prompt's token and a token that it attends to, each position of
//! context that is read, and each sequence. The five prices are found by recursive least squares with forgetting
//! (Haykin, *Adaptive Filter Theory*, ch. 10); a price that nothing is learned of is not forgotten without end. Steps far
//! longer than the target count less, and what is far off the mark counts as if it were less far: a hiccup of the machine
//! moves little, a machine that has changed moves all in a few dozen steps.
//!
//! A prediction is a mean, and a target is to be kept nearly always: what is held back is the error that all but few of the
//! last predictions stayed under, whatever the distribution of the errors.
//!
//! Before there is a model the first prompts beside streams begin small, and each step in time allows twice as much. A shard that
//! has measured steps before the first request comes gives a model to begin with.
//!
//! Without a target the model still says when a step will be over: until shortly before it, the next one need not be planned
//! (`Scheduler::busy_for`).

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::Micros;

const PRICES: usize = 5;
/// What makes each feature about one, for the sake of the numbers.
const SCALES: [f64; PRICES] = [1.0, 1e3, 1e6, 1e5, 1e2];
/// Weight that a step keeps with each one that follows.
const MEMORY: f64 = 0.99;
/// Variance of a price of which nothing is known; times are in milliseconds.
const UNKNOWN: f64 = 1e3;
/// First steps, which are not learned from: the machine is warming up.
const WARM_UP: u32 = 3;
/// Steps to learn from before the model is used, and those with prompts among them.
const MIN_STEPS: u32 = 32;
const MIN_PROMPT_STEPS: u32 = 8;
/// Errors beyond this many times the usual one are cut.
const USUAL: f64 = 4.0;
/// Errors that the margin goes by, of the last steps with streams and prompts.
const WINDOW: usize = 400;
/// One in so many of them may lie at it or above.
const RARE: usize = 200;
/// What counts as a long step where there is no target, in milliseconds.
const LONG: f64 = 100.0;
/// Usual errors by which a step may end before its time.
const EARLY: f64 = 3.0;
/// Steps before errors are those of the device and not of what the model has yet to learn.
const SETTLED: u32 = 128;

/// A step that was run to see how long it takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeasuredStep {
    /// Tokens of all its segments.
    pub tokens: u64,
    /// Pairs of a prompt's token and a token up to it.
    pub pairs: u64,
    /// Positions of context that are read.
    pub context: u64,
    /// Segments.
    pub sequences: u64,
    /// Those of them that go on from the token sampled last.
    pub streams: u64,
    /// How long it took.
    pub micros: Micros,
}

impl MeasuredStep {
    fn load(&self) -> Load {
        let Self { tokens, pairs, context, sequences, streams, .. } = *self;
        Load { tokens, pairs, context, sequences, streams: streams.min(sequences).min(tokens) }
    }
}

/// What a step does, as far as its time depends on it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Load {
    pub(super) tokens: u64,
    /// Pairs of a prompt's token in the step and a token up to it.
    pub(super) pairs: u64,
    /// Positions of context that are read, by streams and prompts.
    pub(super) context: u64,
    pub(super) sequences: u64,
    pub(super) streams: u64,
}

impl Load {
    pub(super) fn add_stream(&mut self, start: u32) {
        self.tokens += 1;
        self.context += u64::from(start) + 1;
        self.sequences += 1;
        self.streams += 1;
    }

    pub(super) fn add_prompt(&mut self, start: u32, length: u32) {
        let (start, length) = (u64::from(start), u64::from(length));
        self.tokens += length;
        self.pairs += length * start + length * (length + 1) / 2;
        self.context += start + length;
        self.sequences += 1;
    }

    pub(super) fn prompt_tokens(&self) -> u64 {
        self.tokens - self.streams
    }

    pub(super) fn has_prompts(&self) -> bool {
        self.sequences > self.streams
    }

    fn features(&self) -> [f64; PRICES] {
        let counts = [1, self.tokens, self.pairs, self.context, self.sequences];
        std::array::from_fn(|place| counts[place] as f64 / SCALES[place])
    }
}

/// The model. Times are in milliseconds inside.
#[derive(Debug)]
pub(super) struct StepTime {
    /// What no step should exceed; without a target, from where on steps count less.
    target: f64,
    prices: [f64; PRICES],
    /// Covariance of the prices, in units of the variance of a step's time.
    covariance: [[f64; PRICES]; PRICES],
    /// Usual size of an error.
    spread: f64,
    /// By how much the last steps with streams and prompts exceeded their prediction, the oldest first.
    excesses: VecDeque<f64>,
    /// What all but few of them stayed under.
    margin: f64,
    /// Most prompt tokens that a step has run in time.
    proven: u64,
    steps: u32,
    prompt_steps: u32,
}

impl StepTime {
    pub(super) fn new(target: Option<Micros>) -> Self {
        let mut covariance = [[0.0; PRICES]; PRICES];
        for (place, row) in covariance.iter_mut().enumerate() {
            row[place] = UNKNOWN;
        }
        let target = target.map_or(LONG, |target| target as f64 / 1e3);
        let (prices, excesses) = ([0.0; PRICES], VecDeque::with_capacity(WINDOW));
        Self { target, prices, covariance, spread: 0.0, excesses, margin: 0.0, proven: 0, steps: 0, prompt_steps: 0 }
    }

    /// Whether enough was seen to go by it.
    pub(super) fn is_fit(&self) -> bool {
        self.steps >= MIN_STEPS + WARM_UP && self.prompt_steps >= MIN_PROMPT_STEPS
    }

    /// Begins with what steps took that were run for it, if there are enough of both kinds. What is known from steps that were
    /// run for somebody is worth more, and stays.
    pub(super) fn expect(&mut self, measured: &[MeasuredStep]) {
        let prompts = measured.iter().filter(|step| step.load().has_prompts()).count();
        if self.steps > 0 || prompts < 2 || measured.len() < PRICES {
            return;
        }
        for step in measured {
            let time = step.micros as f64 / 1e3;
            let weight = self.weight(time);
            let features = step.load().features().map(|feature| feature * weight);
            let error = time * weight - dot(&self.prices, &features);
            self.correct(&features, error);
        }
        let missed = measured.iter().map(|step| (step.micros as f64 / 1e3 - self.predict(&step.load())).abs());
        self.spread = (missed.sum::<f64>() / measured.len() as f64).max(self.target * 1e-3);
        self.steps = MIN_STEPS + WARM_UP;
        self.prompt_steps = MIN_PROMPT_STEPS;
    }

    /// What matters is to be right about steps around the target.
    fn weight(&self, time: f64) -> f64 {
        (self.target / time.max(f64::MIN_POSITIVE)).min(1.0)
    }

    /// A step was measured.
    pub(super) fn learn(&mut self, load: &Load, elapsed: Micros) {
        self.steps = self.steps.saturating_add(1);
        if self.steps <= WARM_UP {
            return;
        }
        self.prompt_steps = self.prompt_steps.saturating_add(u32::from(load.has_prompts()));
        let time = elapsed as f64 / 1e3;
        if time <= self.target {
            self.proven = self.proven.max(load.prompt_tokens());
        }
        let expected = self.predict(load);
        if self.steps > SETTLED && self.is_fit() && load.has_prompts() && load.streams > 0 && expected <= self.target {
            self.hold_back(time - expected);
        }
        let weight = self.weight(time);
        let features = load.features().map(|feature| feature * weight);
        let mut error = time * weight - dot(&self.prices, &features);
        if self.is_fit() {
            error = error.clamp(-USUAL * self.spread, USUAL * self.spread);
        }
        let rate = (1.0 / f64::from(self.steps - WARM_UP)).max(1.0 - MEMORY);
        self.spread += rate * (error.abs() - self.spread);
        // With a spread of nothing nothing would ever be learned again.
        self.spread = self.spread.max(self.target * 1e-3);
        self.correct(&features, error);
    }

    /// Moves the margin to where few of the last errors lie above it. What no smaller chunk would have made up for does not
    /// count.
    fn hold_back(&mut self, excess: f64) {
        if excess > self.target / 2.0 {
            return;
        }
        if self.excesses.len() == WINDOW {
            self.excesses.pop_front();
        }
        self.excesses.push_back(excess);
        let mut sorted: Vec<f64> = self.excesses.iter().copied().collect();
        let rank = (sorted.len() / RARE).max(1);
        let (_, &mut margin, _) = sorted.select_nth_unstable_by(rank - 1, |one, other| other.total_cmp(one));
        self.margin = margin.max(0.0);
    }

    fn correct(&mut self, features: &[f64; PRICES], error: f64) {
        let forget: [f64; PRICES] =
            std::array::from_fn(|i| if self.covariance[i][i] < UNKNOWN { MEMORY.sqrt().recip() } else { 1.0 });
        for (i, row) in self.covariance.iter_mut().enumerate() {
            for (j, entry) in row.iter_mut().enumerate() {
                *entry *= forget[i] * forget[j];
            }
        }
        let direction: [f64; PRICES] = std::array::from_fn(|i| dot(&self.covariance[i], features));
        let certainty = 1.0 + dot(&direction, features);
        for i in 0..PRICES {
            self.prices[i] += direction[i] * error / certainty;
            for j in 0..PRICES {
                self.covariance[i][j] -= direction[i] * direction[j] / certainty;
            }
        }
        self.lift();
    }

    /// Nothing has a negative price. Where one comes out, the others make up for it as far as they are known to go together:
    /// the nearest prices by the covariance that have none there.
    fn lift(&mut self) {
        for _ in 0..2 * PRICES {
            let lowest = (0..PRICES).min_by(|&i, &j| self.prices[i].total_cmp(&self.prices[j]));
            let Some(i) = lowest.filter(|&i| self.prices[i] < 0.0 && self.covariance[i][i] > 0.0) else { return };
            let shift = self.prices[i] / self.covariance[i][i];
            for j in 0..PRICES {
                self.prices[j] -= self.covariance[j][i] * shift;
            }
            self.prices[i] = 0.0;
        }
    }

    /// How long a step takes, in milliseconds.
    fn predict(&self, load: &Load) -> f64 {
        dot(&self.prices.map(|price| price.max(0.0)), &load.features())
    }

    /// How long a step surely takes, as far as can be said.
    pub(super) fn at_least(&self, load: &Load) -> Option<Micros> {
        // Errors of steps beyond the target were counted as if those had been as short as it.
        let time = self.predict(load);
        let early = EARLY * self.spread * (time / self.target).max(1.0);
        self.is_fit().then(|| ((time - early).max(0.0) * 1e3) as Micros)
    }

    /// Tokens of a prompt, from position `start` on, that a step with this load can run besides without missing the target.
    pub(super) fn chunk(&self, load: &Load, start: u32) -> u32 {
        if !self.is_fit() {
            return (2 * self.proven).saturating_sub(load.prompt_tokens()).min(u64::from(u32::MAX)) as u32;
        }
        let start = u64::from(start);
        let with_one_more = Load { sequences: load.sequences + 1, context: load.context + start, ..*load };
        let left = self.target - self.margin.max(self.spread) - self.predict(&with_one_more);
        if left <= 0.0 {
            return 0;
        }
        let price = |place: usize| self.prices[place].max(0.0) / SCALES[place];
        // half * c^2 + linear * c = left
        let (half, linear) = (price(2) / 2.0, price(1) + price(2) * (start as f64 + 0.5) + price(3));
        let chunk = 2.0 * left / (linear + (linear * linear + 4.0 * half * left).sqrt());
        // Beyond the range it is cut to the largest: there is no limit then.
        chunk as u32
    }

    #[cfg(test)]
    pub(super) fn predicted(&self, load: &Load) -> f64 {
        self.predict(load) * 1e3
    }
}

fn dot(one: &[f64; PRICES], other: &[f64; PRICES]) -> f64 {
    one.iter().zip(other).map(|(one, other)| one * other).sum()
}
