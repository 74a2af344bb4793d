//! The compiler's threads, deadline and cache.

use std::sync::Arc;
use std::time::Duration;

use super::DEMO;
use crate::grammar::{Compiler, GrammarError, GrammarLimits, GrammarSource};

fn compiler(change: impl FnOnce(&mut GrammarLimits)) -> Compiler {
    let mut limits = GrammarLimits { compile_timeout: Duration::from_secs(60), ..GrammarLimits::default() };
    change(&mut limits);
    Compiler::new(Arc::clone(&DEMO), limits)
}

fn word(number: usize) -> GrammarSource {
    GrammarSource::Regex(format!("word {number}"))
}

#[tokio::test]
async fn a_source_is_compiled_once() {
    let compiler = compiler(|_| {});
    let (first, second) = tokio::join!(compiler.compile(word(1)), compiler.compile(word(1)));
    let third = compiler.compile(word(1)).await.unwrap();
    assert!(Arc::ptr_eq(&first.unwrap(), &second.unwrap()) && compiler.cached().0 == 1);
    let fourth = compiler.compile(word(2)).await.unwrap();
    assert!(!Arc::ptr_eq(&third, &fourth));
}

#[tokio::test]
async fn a_refusal_is_kept_too() {
    let compiler = compiler(|_| {});
    let source = GrammarSource::Regex("a(".to_owned());
    let error = compiler.compile(source.clone()).await.unwrap_err();
    assert_eq!(compiler.cached().0, 1);
    assert_eq!(compiler.compile(source).await.unwrap_err(), error);
}

#[tokio::test]
async fn the_least_recently_used_goes_first() {
    let compiler = compiler(|limits| limits.cache_entries = 2);
    let first = compiler.compile(word(1)).await.unwrap();
    let second = compiler.compile(word(2)).await.unwrap();
    compiler.compile(word(1)).await.unwrap();
    compiler.compile(word(3)).await.unwrap();
    assert_eq!(compiler.cached().0, 2);
    assert!(Arc::ptr_eq(&first, &compiler.compile(word(1)).await.unwrap()));
    assert!(!Arc::ptr_eq(&second, &compiler.compile(word(2)).await.unwrap()));
}

#[tokio::test]
async fn the_cache_is_bounded_in_bytes() {
    let compiler = compiler(|limits| limits.cache_bytes = 1);
    compiler.compile(word(1)).await.unwrap();
    assert_eq!(compiler.cached(), (0, 0));
}

#[tokio::test]
async fn nobody_waits_beyond_the_deadline() {
    let compiler = compiler(|limits| (limits.compile_threads, limits.compile_timeout) = (1, Duration::ZERO));
    // The one thread is busy with this for hundreds of milliseconds.
    let rules: Vec<String> = (0..15_000).map(|number| format!("\"w{number}\"")).collect();
    let slow = GrammarSource::Lark(format!("start: {}", rules.join(" | ")));
    let (_, outcome) = tokio::join!(compiler.compile(slow), compiler.compile(word(1)));
    let error = outcome.unwrap_err();
    assert!(matches!(error, GrammarError::TooComplex(_)), "{error:?}");
}

#[tokio::test]
async fn too_many_waiting_are_turned_away() {
    let compiler = compiler(|limits| (limits.compile_threads, limits.max_waiting_compiles) = (1, 1));
    let all = (0..200).map(|number| compiler.compile(word(number)));
    let outcomes = futures::future::join_all(all).await;
    // All 200 ask before the one thread can have answered so many.
    assert!(outcomes.iter().any(|outcome| matches!(outcome, Err(GrammarError::Overloaded))));
    assert!(outcomes.iter().any(Result::is_ok));
    // Nothing of it is left behind: the same sources are compiled later.
    assert!(compiler.compile(word(199)).await.is_ok());
}

#[tokio::test]
async fn sizes_are_limited() {
    let compiler = compiler(|limits| (limits.max_bytes, limits.max_choices, limits.max_depth) = (100, 3, 4));
    let long = GrammarSource::Regex("a".repeat(101));
    let many = GrammarSource::Choice(["a", "b", "c", "d"].map(str::to_owned).to_vec());
    let deep =
        GrammarSource::JsonSchema(serde_json::json!({"items": {"items": {"items": {"items": {"items": true}}}}}));
    let groups = GrammarSource::Regex("((((((a))))))".to_owned());
    let brackets = GrammarSource::Lark("start: (((((\"a\")))))".to_owned());
    for (source, number) in [(long, "100"), (many, "3"), (deep, "4"), (groups, "4"), (brackets, "4")] {
        let error = compiler.compile(source).await.unwrap_err();
        assert!(matches!(error, GrammarError::TooComplex(_)) && error.to_string().contains(number), "{error:?}");
    }
}
