//! Forced tokens, forks, and tokens that are taken back.

use std::sync::Arc;

use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::json;

use super::walk::allowed;
use super::{DEMO, PIECES, TINY, compile};
use crate::grammar::{GrammarSource, MatchError, Matcher, Vocabulary};

fn long_keys() -> GrammarSource {
    let names = ["the_first_long_name", "another quite long name", "größe in metres"];
    let properties: serde_json::Map<_, _> =
        names.iter().map(|name| ((*name).to_owned(), json!({"enum": ["alpha", "beta"]}))).collect();
    GrammarSource::JsonSchema(
        json!({"type": "object", "properties": properties, "required": names, "additionalProperties": false}),
    )
}

fn bytes(tokens: &[u32], vocabulary: &Vocabulary) -> Vec<u8> {
    tokens.iter().flat_map(|&token| vocabulary.bytes_of(token)).copied().collect()
}

/// Everything that a matcher shows.
fn seen(matcher: &mut Matcher, vocabulary: &Arc<Vocabulary>) -> (Vec<u32>, bool, bool, Vec<u32>) {
    let mut mask = vec![0; vocabulary.mask_words()];
    matcher.fill_mask(&mut mask).unwrap();
    (mask, matcher.is_accepting(), matcher.must_stop(), matcher.forced())
}

#[test]
fn forced_tokens_follow_the_mask_and_shorten_the_walk() {
    for vocabulary in [&*DEMO, &*TINY, &*PIECES] {
        let grammar = compile(&long_keys(), vocabulary).unwrap();
        let mut matcher = grammar.matcher();
        let mut random = StdRng::seed_from_u64(5);
        let (mut sampled, mut jumped, mut text) = (0, 0, Vec::new());
        let mut mask = vec![0; vocabulary.mask_words()];
        while !matcher.must_stop() {
            let forced = matcher.forced();
            for &token in &forced {
                matcher.fill_mask(&mut mask).unwrap();
                assert!(allowed(&mask).contains(&token), "a forced token is allowed");
                matcher.advance(token).unwrap();
            }
            jumped += forced.len();
            text.extend(bytes(&forced, vocabulary));
            if matcher.must_stop() {
                break;
            }
            matcher.fill_mask(&mut mask).unwrap();
            // Whitespace would be allowed as well; a walk without it is the shortest.
            let tokens: Vec<u32> = allowed(&mask);
            let dense = |token: &&u32| !vocabulary.bytes_of(**token).iter().any(u8::is_ascii_whitespace);
            let dense: Vec<&u32> = tokens.iter().filter(dense).collect();
            let token = if dense.is_empty() { tokens[0] } else { *dense[random.random_range(0..dense.len())] };
            text.extend_from_slice(vocabulary.bytes_of(token));
            matcher.advance(token).unwrap();
            sampled += 1;
        }
        let value: serde_json::Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(value.as_object().unwrap().len(), 3);
        assert!(jumped > sampled, "{jumped} forced, {sampled} sampled");
    }
}

#[test]
fn forced_text_is_spelled_as_the_tokenizer_spells_it() {
    let text = "The answer is yes.";
    let grammar = compile(&GrammarSource::Choice(vec![text.to_owned() + "!", text.to_owned() + "?"]), &DEMO).unwrap();
    let mut matcher = grammar.matcher();
    let forced = matcher.forced();
    let spelled = DEMO.factory().tok_env().tokenize(text);
    assert!(forced.len() >= 3 && spelled.starts_with(&forced), "{forced:?} of {spelled:?}");
    // What could be one token with the text behind it is left to the model.
    assert!(text.as_bytes().starts_with(&bytes(&forced, &DEMO)));
}

#[test]
fn forced_text_without_end_is_cut() {
    let grammar = compile(&GrammarSource::Regex("a{16000}".to_owned()), &DEMO).unwrap();
    let mut matcher = grammar.matcher();
    let mut length = 0;
    while length < 6000 {
        let forced = matcher.forced();
        let text = bytes(&forced, &DEMO);
        assert!(!forced.is_empty() && text.len() <= 2048 && text.iter().all(|&byte| byte == b'a'));
        length += text.len();
        forced.iter().for_each(|&token| matcher.advance(token).unwrap());
    }
}

#[test]
fn a_token_that_is_not_allowed_changes_nothing() {
    let grammar = compile(&long_keys(), &DEMO).unwrap();
    let mut matcher = grammar.matcher();
    let before = seen(&mut matcher, &DEMO);
    for token in [0, 1, 2, 2047, 9_999_999, u32::MAX] {
        assert_eq!(matcher.advance(token), Err(MatchError::Rejected(token)));
        assert_eq!(seen(&mut matcher, &DEMO), before);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn what_is_taken_back_was_never_there(seed in any::<u64>(), keep in 0_usize..20, drop in 0_usize..12) {
        let mut random = StdRng::seed_from_u64(seed);
        let grammar = compile(&long_keys(), &TINY).unwrap();
        let mut matcher = grammar.matcher();
        let mut step = |matcher: &mut Matcher| {
            let mut mask = vec![0; TINY.mask_words()];
            matcher.fill_mask(&mut mask).unwrap();
            let tokens = allowed(&mask);
            matcher.advance(tokens[random.random_range(0..tokens.len())]).is_ok()
        };
        (0..keep).for_each(|_| { step(&mut matcher); });
        let before = seen(&mut matcher, &TINY);
        let mut other = matcher.fork();
        let taken = (0..drop).filter(|_| step(&mut matcher)).count();
        // The fork has not moved, and moves alone.
        prop_assert_eq!(&seen(&mut other, &TINY), &before);
        matcher.rollback(taken).unwrap();
        prop_assert_eq!(&seen(&mut matcher, &TINY), &before);
        prop_assert!(matcher.rollback(1000).is_err());
        prop_assert_eq!(&seen(&mut matcher, &TINY), &before);
    }
}
