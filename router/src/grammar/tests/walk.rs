//! A model that draws among the allowed tokens, and ends when it has written enough.

use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::{DEMO, compile};
use crate::grammar::{GrammarSource, Matcher, Vocabulary};

/// Tokens after which a walk looks for its end.
const ENOUGH: usize = 60;
/// Tokens after which it is given up.
const TOO_MANY: usize = 1500;

/// Allowed tokens of a mask.
pub(super) fn allowed(mask: &[u32]) -> Vec<u32> {
    let bits = mask.iter().zip(0_u32..);
    bits.flat_map(|(word, at)| (0..32).filter(move |bit| word >> bit & 1 == 1).map(move |bit| 32 * at + bit)).collect()
}

/// The bytes that a random walk wrote, special tokens by their names, or `None` when it did not come to an end. Checks at every step what masks promise.
pub(crate) fn walk(mut matcher: Matcher, vocabulary: &Arc<Vocabulary>, seed: u64) -> Option<Vec<u8>> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut mask = vec![u32::MAX; vocabulary.mask_words()];
    let mut part = mask.clone();
    let mut text = Vec::new();
    for step in 0..TOO_MANY {
        // Before the whole, which must not be taken from it.
        let partly = matcher.fill_part(&mut part).unwrap_or_else(|error| panic!("seed {seed}: {error} after {text:?}"));
        matcher.fill_mask(&mut mask).unwrap_or_else(|error| panic!("seed {seed}: {error} after {text:?}"));
        assert!(partly || part == mask, "seed {seed}: what is no part is the whole");
        assert!(part.iter().zip(&mask).all(|(part, mask)| part & !mask == 0), "seed {seed}: a part is of the mask");
        let tokens = allowed(&mask);
        let ends = tokens.iter().any(|&token| vocabulary.is_eos(token));
        assert_eq!(ends, matcher.is_accepting(), "seed {seed}: an end is allowed exactly when the answer is whole");
        if matcher.must_stop() {
            assert!(tokens.iter().all(|&token| vocabulary.is_eos(token)), "seed {seed}");
        }
        let token = if ends && (step >= ENOUGH || random.random_range(0..4) == 0) {
            *tokens.iter().find(|&&token| vocabulary.is_eos(token)).unwrap()
        } else if step >= ENOUGH && random.random_range(0..8) != 0 {
            *tokens.iter().min_by_key(|&&token| eagerness(vocabulary.bytes_of(token))).unwrap()
        } else {
            tokens[random.random_range(0..tokens.len())]
        };
        matcher.advance(token).unwrap_or_else(|error| panic!("seed {seed}: {error} after {text:?}"));
        if vocabulary.is_eos(token) {
            assert!(matcher.must_stop() && matcher.advance(token).is_err(), "nothing follows an end");
            return Some(text);
        }
        text.extend_from_slice(vocabulary.name_of(token));
    }
    None
}

/// What brings an answer to its end soonest comes first.
fn eagerness(bytes: &[u8]) -> usize {
    let order: [&[u8]; 9] = [b"\"", b"'", b"<", b"}", b"]", b":", b",", b"0", b"e"];
    order.iter().position(|closer| *closer == bytes).unwrap_or(order.len())
}

#[test]
fn inside_a_string_a_part_of_the_mask_is_known() {
    let grammar = compile(&GrammarSource::Regex(r#""[^"\\\x00-\x1f\x7f]{1,500}""#.to_owned()), &DEMO).unwrap();
    let (mut matcher, quote) = (grammar.matcher(), DEMO.named("\"").unwrap());
    let (mut part, mut whole) = (vec![0; DEMO.mask_words()], vec![0; DEMO.mask_words()]);
    assert!(!matcher.fill_part(&mut part).unwrap(), "it has not begun");
    matcher.advance(quote).unwrap();
    matcher.advance(DEMO.named("a").unwrap()).unwrap();
    assert!(matcher.fill_part(&mut part).unwrap());
    matcher.fill_mask(&mut whole).unwrap();
    let (part, whole) = (allowed(&part), allowed(&whole));
    assert!(part.iter().all(|token| whole.contains(token)) && part.len() > 1000, "{} of {}", part.len(), whole.len());
    assert!(whole.contains(&quote) && !part.contains(&quote));
    let mut fork = matcher.fork();
    fork.advance(quote).unwrap();
    let mut end = vec![0; DEMO.mask_words()];
    assert!(!fork.fill_part(&mut end).unwrap() && allowed(&end).iter().all(|&token| DEMO.is_eos(token)), "it is over");
}
