//! How fast the house empties while it is busy: what `Retry-After` is made of.

use std::time::Instant;

/// Seconds of busy time over which the rate is taken; older ones fade.
const WINDOW: f64 = 10.0;
/// Busy time, in seconds, after which nothing having left means that nothing leaves.
const ENOUGH: f64 = 1.0;
/// Bounds of the advice, in seconds.
const ADVICE: (f64, f64) = (1.0, 60.0);

/// Sequences and tokens that left, and the busy time in which they did, both fading with `WINDOW`.
#[derive(Debug, Default)]
pub(super) struct DrainRate {
    sequences: f64,
    tokens: f64,
    busy: f64,
    /// Since when the house is busy and not yet counted.
    since: Option<Instant>,
}

impl DrainRate {
    /// Counts the time up to `now`. `occupied`: whether the house is, from now on.
    pub(super) fn tick(&mut self, now: Instant, occupied: bool) {
        if let Some(since) = self.since {
            let fade = (-now.saturating_duration_since(since).as_secs_f64() / WINDOW).exp();
            self.sequences *= fade;
            self.tokens *= fade;
            self.busy = self.busy * fade + WINDOW * (1.0 - fade);
        }
        self.since = occupied.then_some(now);
    }

    /// So much has left.
    pub(super) fn left(&mut self, sequences: usize, tokens: u64) {
        self.sequences += sequences as f64;
        self.tokens += tokens as f64;
    }

    /// Whole seconds until so many sequences will have left.
    pub(super) fn until_sequences(&self, count: usize) -> u32 {
        self.until(count as f64, self.sequences)
    }

    /// Whole seconds until so many tokens will have left.
    pub(super) fn until_tokens(&self, count: u64) -> u32 {
        self.until(count as f64, self.tokens)
    }

    fn until(&self, wanted: f64, left: f64) -> u32 {
        let (least, most) = ADVICE;
        let seconds = match (left > 0.0, self.busy >= ENOUGH) {
            (true, _) => wanted * self.busy / left,
            (false, true) => most,
            (false, false) => least,
        };
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Clamped to what fits.
        let whole = seconds.ceil().clamp(least, most) as u32;
        whole
    }
}

/// The running mean of what sequences generate over what they were allowed to.
#[derive(Debug)]
pub(super) struct Yield(f64);

impl Yield {
    /// Weight of the newest sequence.
    const WEIGHT: f64 = 0.05;

    /// Before anything is known, everyone is expected to take all.
    pub(super) const fn new() -> Self {
        Self(1.0)
    }

    pub(super) fn learn(&mut self, generated: u32, allowed: u32) {
        let share = f64::from(generated) / f64::from(allowed.max(1));
        self.0 += (share.min(1.0) - self.0) * Self::WEIGHT;
    }

    /// Tokens that a sequence is expected to generate, at least one.
    pub(super) fn expected(&self, allowed: u32) -> u64 {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // At most `allowed`.
        let tokens = (f64::from(allowed) * self.0).ceil() as u64;
        tokens.max(1)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    /// An instant so many seconds after another.
    fn after(start: Instant, seconds: f64) -> Instant {
        start + Duration::from_secs_f64(seconds)
    }

    /// A house that is busy for so many seconds, from which one sequence of 100 tokens leaves every `gap` seconds.
    fn steady(gap: f64, count: u32) -> DrainRate {
        let (start, mut rate) = (Instant::now(), DrainRate::default());
        rate.tick(start, true);
        for number in 1..=count {
            rate.tick(after(start, gap * f64::from(number)), true);
            rate.left(1, 100);
        }
        rate
    }

    #[test]
    fn a_steady_rate_is_found() {
        let rate = steady(0.5, 200);
        assert_eq!(rate.until_sequences(1), 1);
        assert!((9..=11).contains(&rate.until_sequences(20)), "{rate:?}");
        assert!((9..=11).contains(&rate.until_tokens(2_000)), "{rate:?}");
        assert_eq!(rate.until_sequences(1_000_000), 60);
    }

    #[test]
    fn idle_time_does_not_count() {
        let (start, mut rate) = (Instant::now(), steady(0.5, 200));
        rate.tick(after(start, 101.0), false);
        let before = rate.until_sequences(20);
        rate.tick(after(start, 10_000.0), true);
        assert_eq!(rate.until_sequences(20), before);
    }

    #[test]
    fn what_stands_still_is_said() {
        let (start, mut rate) = (Instant::now(), DrainRate::default());
        assert_eq!(rate.until_sequences(5), 1);
        rate.tick(start, true);
        rate.tick(after(start, 30.0), true);
        assert_eq!(rate.until_sequences(5), 60);
    }

    proptest! {
        #[test]
        fn advice_is_from_1_to_60_whatever_happens(
            events in prop::collection::vec((0.0..1e6_f64, any::<bool>(), 0_usize..1_000_000, any::<u32>()), 0..40),
            wanted: u32,
        ) {
            let (start, mut rate) = (Instant::now(), DrainRate::default());
            for (seconds, occupied, sequences, tokens) in events {
                rate.tick(after(start, seconds), occupied);
                rate.left(sequences, u64::from(tokens));
                prop_assert!((1..=60).contains(&rate.until_sequences(wanted as usize)));
                prop_assert!((1..=60).contains(&rate.until_tokens(u64::from(wanted))));
            }
        }

        #[test]
        fn nobody_is_expected_to_take_more_than_allowed(
            seen in prop::collection::vec((any::<u32>(), any::<u32>()), 0..50), allowed in 1_u32..,
        ) {
            let mut mean = Yield::new();
            prop_assert_eq!(mean.expected(allowed), u64::from(allowed));
            for (generated, of) in seen {
                mean.learn(generated, of);
                prop_assert!((1..=u64::from(allowed)).contains(&mean.expected(allowed)));
            }
        }
    }
}
