//! What masks of grammars cost: walks through schemas, drawn once and then followed token by token.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use serde_json::{Value, json};
use textgen_router::grammar::{CompiledGrammar, Compiler, GrammarLimits, GrammarSource, Layout, Vocabulary};
use textgen_router::input::ModelText;

use crate::Outcome;
use crate::options::Options;

/// Tokens after which a walk ends.
const LONGEST: usize = 200;

/// Follows `--walks` walks through each of `--schemas` with the tokens of `--model`. Prints for each schema how long it took to
/// compile, the walks, and the nanoseconds of each mask and each token taken.
///
/// # Errors
/// When a file cannot be read or a schema cannot be compiled.
pub fn run(options: &Options) -> Outcome {
    let schemas: Vec<Value> = serde_json::from_str(&std::fs::read_to_string(options.required("schemas")?)?)?;
    let walks: u64 = options.number("walks", 4)?;
    let limits = GrammarLimits { cache_entries: 0, ..GrammarLimits::default() };
    let vocabulary = Arc::new(Vocabulary::new(&ModelText::load(Path::new(options.required("model")?))?, &limits)?);
    let compiler = Compiler::new(Arc::clone(&vocabulary), limits);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    for schema in schemas {
        // Walks have no white space, which every engine allows to be left out.
        let compact = Layout::Json { schema: schema.clone(), spacing: Some(String::new()) };
        let compact = runtime.block_on(compiler.compile(GrammarSource::Layout(compact)))?;
        let drawn: Vec<Vec<u32>> = (1..=walks).map(|seed| draw(&compact, &vocabulary, seed)).collect::<Outcome<_>>()?;
        let began = Instant::now();
        let grammar = runtime.block_on(compiler.compile(GrammarSource::JsonSchema(schema)))?;
        let compiled = began.elapsed();
        let (mut masks, mut takes) = (Vec::new(), Vec::new());
        for walk in &drawn {
            follow(&grammar, &vocabulary, walk, &mut masks, &mut takes)?;
        }
        let line =
            json!({"compile_ns": compiled.as_nanos() as u64, "walks": drawn, "mask_ns": masks, "take_ns": takes});
        println!("{line}");
    }
    Ok(())
}

/// A walk among the tokens that are allowed, all of them equally likely.
fn draw(grammar: &CompiledGrammar, vocabulary: &Vocabulary, seed: u64) -> Outcome<Vec<u32>> {
    let mut matcher = grammar.matcher();
    let mut mask = vec![0; vocabulary.mask_words()];
    let (mut state, mut walk) = (seed, Vec::new());
    while walk.len() < LONGEST && !matcher.must_stop() {
        matcher.fill_mask(&mut mask)?;
        let count: u32 = mask.iter().map(|word| word.count_ones()).sum();
        // A linear congruential generator (Knuth's MMIX constants) is random enough to pick a token.
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let Some(token) = set_bit(&mask, (state >> 33) as u32 % count.max(1)) else { break };
        matcher.advance(token)?;
        if matcher.must_stop() {
            break;
        }
        walk.push(token);
    }
    Ok(walk)
}

fn set_bit(mask: &[u32], number: u32) -> Option<u32> {
    let bits = mask.iter().zip(0_u32..);
    let mut bits =
        bits.flat_map(|(word, at)| (0..32).filter(move |bit| word >> bit & 1 == 1).map(move |bit| 32 * at + bit));
    bits.nth(number as usize)
}

fn follow(
    grammar: &CompiledGrammar,
    vocabulary: &Vocabulary,
    walk: &[u32],
    masks: &mut Vec<u64>,
    takes: &mut Vec<u64>,
) -> Outcome {
    let mut matcher = grammar.matcher();
    let mut mask = vec![0; vocabulary.mask_words()];
    for &token in walk {
        let began = Instant::now();
        matcher.fill_mask(&mut mask)?;
        masks.push(began.elapsed().as_nanos() as u64);
        let began = Instant::now();
        matcher.advance(token)?;
        takes.push(began.elapsed().as_nanos() as u64);
    }
    Ok(())
}
