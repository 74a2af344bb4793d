//! What masks cost. Not a test: `cargo test --release --lib grammar::tests::measure -- --ignored --nocapture` prints it.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::Value;

use super::walk::allowed;
use super::{DEMO, compile, vocabulary};
use crate::grammar::{GrammarSource, Vocabulary};
use crate::input::ModelText;

/// The built-in vocabulary, or that of the model in the folder `TEXTGEN_MEASURE_MODEL`.
#[allow(clippy::disallowed_methods)] // No setting: it says what to measure.
fn measured() -> Arc<Vocabulary> {
    match std::env::var("TEXTGEN_MEASURE_MODEL") {
        Ok(folder) => vocabulary(&ModelText::load(Path::new(&folder)).unwrap()),
        Err(_) => Arc::clone(&DEMO),
    }
}

#[test]
#[ignore = "prints measurements"]
fn mask_cost() {
    let vocabulary = measured();
    let schemas: Vec<Value> = serde_json::from_str(include_str!("schemas.json")).unwrap();
    let (mut masks, mut advances, mut compiles) = (Vec::new(), Vec::new(), Vec::new());
    for schema in schemas {
        let started = Instant::now();
        let grammar = compile(&GrammarSource::JsonSchema(schema), &vocabulary).unwrap();
        compiles.push(started.elapsed());
        for seed in 0..4 {
            let mut random = StdRng::seed_from_u64(seed);
            let mut matcher = grammar.matcher();
            let mut mask = vec![0; vocabulary.mask_words()];
            for _ in 0..80 {
                let started = Instant::now();
                matcher.fill_mask(&mut mask).unwrap();
                masks.push(started.elapsed());
                let tokens = allowed(&mask);
                let token = tokens[random.random_range(0..tokens.len())];
                let started = Instant::now();
                matcher.advance(token).unwrap();
                advances.push(started.elapsed());
                if matcher.must_stop() {
                    break;
                }
            }
        }
    }
    println!("{} rows of logits", vocabulary.mask_words() * 32);
    for (what, times) in [("compile", &mut compiles), ("mask", &mut masks), ("advance", &mut advances)] {
        times.sort();
        let at = |share: usize| times[(times.len() - 1) * share / 1000];
        let mean = times.iter().sum::<Duration>() / u32::try_from(times.len()).unwrap();
        println!(
            "{what}: {} times, mean {mean:?}, p50 {:?}, p99 {:?}, max {:?}",
            times.len(),
            at(500),
            at(990),
            at(1000)
        );
    }
}
