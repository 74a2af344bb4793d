//! A toy model whose logits are a hash of all tokens so far, and a beam search over it in so many words: all sequences, all
//! tokens, nothing shared. `tests/beams/make_vectors.py` has the same toy.

use super::model_shard::{context, extend};
use super::*;

/// Token ids of the toy are below this.
pub(super) const VOCABULARY: Token = 40;
/// The score of what is not there.
const NOTHING: f32 = -1.0e9;

/// How likely each token is after a context, stop tokens more than others.
#[derive(Debug, Clone)]
pub(super) struct Toy {
    pub(super) stop_tokens: Arc<[Token]>,
    pub(super) stop_bias: f32,
}

impl Toy {
    /// Log-probabilities of all tokens after a context.
    pub(super) fn logprobs(&self, context: u64) -> Vec<f32> {
        let logit = |token: Token| {
            let hash = (extend(context, token) >> 40) as f32 / 4_194_304.0;
            hash + if self.stop_tokens.contains(&token) { self.stop_bias } else { 0.0 }
        };
        let logits: Vec<f32> = (0..VOCABULARY).map(logit).collect();
        let most = logits.iter().copied().fold(f32::MIN, f32::max);
        let sum: f64 = logits.iter().map(|&logit| f64::from(logit - most).exp()).sum();
        logits.into_iter().map(|logit| (f64::from(logit - most) - sum.ln()) as f32).collect()
    }

    /// What a shard reports after a context: the most likely tokens, the best first.
    pub(super) fn top(&self, context: u64, count: usize) -> Vec<(Token, f32)> {
        let mut top: Vec<(Token, f32)> = (0..).zip(self.logprobs(context)).collect();
        top.sort_by(|one, other| other.1.total_cmp(&one.1).then(one.0.cmp(&other.0)));
        top.truncate(count);
        top
    }
}

/// An answer to expect: its tokens and its score.
pub(super) type Answer = (Vec<Token>, f32);

/// What a search ends with, computed with fixed places that are filled from the start, as Transformers does.
pub(super) fn answers(new: &NewBeams, toy: &Toy, seed: u64) -> Vec<Answer> {
    let (width, prompt) = (new.width as usize, &new.sequence.tokens);
    let max_new = new.sequence.max_len as usize - prompt.len();
    let over = |score: f32, length: usize| score / (length as f64).powf(f64::from(new.length_penalty)) as f32;
    let mut running = vec![(vec![], NOTHING); width];
    running[0].1 = 0.0;
    let mut kept: Vec<(Answer, bool)> = vec![((vec![], NOTHING), false); width];
    for length in 1..=max_new {
        let mut all: Vec<Answer> = Vec::new();
        for (tokens, score) in &running {
            let logprobs = toy.logprobs(context(seed, &[prompt.as_slice(), tokens].concat()));
            all.extend(
                (0..).zip(logprobs).map(|(token, logprob)| ([tokens.as_slice(), &[token]].concat(), score + logprob)),
            );
        }
        all.sort_by(|one, other| other.1.total_cmp(&one.1));
        all.truncate(new.candidates());
        let ends =
            |tokens: &[Token]| length == max_new || tokens.last().is_some_and(|token| new.stop_tokens.contains(token));
        for (tokens, score) in all.iter().take(width).filter(|(tokens, _)| ends(tokens)) {
            kept.push(((tokens.clone(), over(*score, length)), true));
        }
        kept.sort_by(|one, other| other.0.1.total_cmp(&one.0.1));
        kept.truncate(width);
        running = all.into_iter().filter(|(tokens, _)| !ends(tokens)).take(width).collect();
        let full = kept.iter().all(|(_, there)| *there);
        let at_length =
            if new.early_stopping == EarlyStopping::Never && new.length_penalty > 0.0 { max_new } else { length };
        let hopeless = full && running.first().is_none_or(|best| over(best.1, at_length) <= kept[width - 1].0.1);
        if running.is_empty() || hopeless || (full && new.early_stopping == EarlyStopping::WhenFull) {
            break;
        }
    }
    kept.into_iter().take(new.returned as usize).map(|(answer, _)| answer).collect()
}

/// Whether these are the answers: the same tokens, with the same scores.
pub(super) fn assert_answers(found: &[Hypothesis], expected: &[Answer], what: &str) {
    let tokens = |answers: &[Answer]| answers.iter().map(|(tokens, _)| tokens.clone()).collect::<Vec<_>>();
    let found: Vec<Answer> = found.iter().map(|one| (one.tokens.clone(), one.score)).collect();
    assert_eq!(tokens(&found), tokens(expected), "{what}");
    for ((_, found), (_, expected)) in found.iter().zip(expected) {
        assert!((found - expected).abs() < 1e-5 * expected.abs().max(1.0), "{found}, not {expected}: {what}");
    }
}
