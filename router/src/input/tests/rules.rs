use std::collections::BTreeMap;
use std::time::Instant;

use proptest::prelude::*;
use proptest::test_runner::Config;

use super::*;
use crate::input::error::InputError;
use crate::input::test_models::{fallback_decoder, metaspace_decoder, pieces};
use crate::input::validation::{prepare, tokenize};
use crate::input::{GenerationRequest, Parameters, Prepared, Prompt, Truncate};

fn text(text: &str) -> Prompt {
    Prompt::Text { text: text.to_owned(), add_special_tokens: true }
}

fn check(model: &ModelText, prompt: Prompt, parameters: Parameters) -> Result<Prepared, InputError> {
    prepare(model, &limits(), GenerationRequest { prompt, parameters }, Instant::now())
}

fn with(set: impl FnOnce(&mut Parameters)) -> Parameters {
    let mut parameters = Parameters::default();
    set(&mut parameters);
    parameters
}

fn bias(entries: &[(&str, f32)]) -> BTreeMap<String, f32> {
    entries.iter().map(|&(token, bias)| (token.to_owned(), bias)).collect()
}

type Set = fn(&mut Parameters);

#[test]
fn every_rule_has_its_sentence() {
    let model = model();
    let rules: &[(&str, Set)] = &[
        ("`temperature` must be strictly positive", |p| p.temperature = Some(0.0)),
        ("`temperature` must be strictly positive", |p| p.temperature = Some(-1.0)),
        ("`temperature` must be strictly positive", |p| p.temperature = Some(f32::NAN)),
        ("`temperature` must be strictly positive", |p| p.temperature = Some(f32::INFINITY)),
        ("`temperature` must be 0 (greedy) or more", |p| (p.temperature, p.greedy_at_zero) = (Some(-0.1), true)),
        ("`repetition_penalty` must be strictly positive", |p| p.repetition_penalty = Some(0.0)),
        ("`frequency_penalty` must be between -2.0 and 2.0", |p| p.frequency_penalty = Some(2.1)),
        ("`presence_penalty` must be between -2.0 and 2.0", |p| p.presence_penalty = Some(-2.1)),
        ("`top_k` must be strictly positive", |p| p.top_k = Some(0)),
        ("`top_k` must be strictly positive", |p| p.top_k = Some(-1)),
        ("`top_p` must be > 0.0 and <= 1.0", |p| p.top_p = Some(0.0)),
        ("`top_p` must be > 0.0 and <= 1.0", |p| p.top_p = Some(1.1)),
        ("`typical_p` must be > 0.0 and <= 1.0", |p| p.typical_p = Some(-0.5)),
        ("`min_p` must be between 0.0 and 1.0", |p| p.min_p = Some(1.5)),
        ("`max_new_tokens` must be strictly positive", |p| p.max_new_tokens = Some(0)),
        ("must be <= 30. Given: 2 `inputs` tokens and 29", |p| p.max_new_tokens = Some(29)),
        ("must be <= 30", |p| p.max_new_tokens = Some(u32::MAX)),
        ("up to 4 stop sequences. Given: 5", |p| p.stop = vec!["a".to_owned(); 5]),
        ("must not have an empty string", |p| p.stop = vec![String::new()]),
        ("1024 bytes at most. Given: 1025", |p| p.stop = vec!["a".repeat(1025)]),
        ("token ids below 300. Given: 300", |p| p.stop_token_ids = vec![1, 300]),
        ("128 ids at most. Given: 129", |p| p.stop_token_ids = vec![1; 129]),
        ("`truncate` must be strictly positive and at most 20. Given: 0", |p| {
            p.truncate = Some(Truncate::To("truncate", 0));
        }),
        ("`truncate` must be strictly positive and at most 20. Given: 21", |p| {
            p.truncate = Some(Truncate::To("truncate", 21));
        }),
        ("`best_of` must be at least 1", |p| p.best_of = Some(0)),
        ("`n` must be at least 1", |p| p.n = Some(0)),
        ("`best_of` must be <= 4. Given: 5", |p| p.best_of = Some(5)),
        ("`n` must be <= 4. Given: 4000000000", |p| p.n = Some(4_000_000_000)),
        ("`n` must be <= 8. Given: 9", |p| (p.n, p.greedy_at_zero) = (Some(9), true)),
        ("`best_of` > 1 needs sampling", |p| p.best_of = Some(2)),
        ("`seed` must not be set when `best_of` > 1", |p| {
            (p.best_of, p.do_sample, p.seed) = (Some(2), Some(true), Some(1));
        }),
        ("`best_of` above `n` cannot be streamed", |p| {
            (p.best_of, p.do_sample, p.stream) = (Some(2), Some(true), true);
        }),
        ("`best_of` must be at least `n`, which is 3. Given: 2", |p| (p.best_of, p.n) = (Some(2), Some(3))),
        ("key of `logit_bias` must be a token id below 300. Given: `300`", |p| p.logit_bias = bias(&[("300", 1.0)])),
        ("key of `logit_bias` must be a token id below 300. Given: `the`", |p| p.logit_bias = bias(&[("the", 1.0)])),
        ("key of `logit_bias` must be a token id below 300. Given: `-1`", |p| p.logit_bias = bias(&[("-1", 1.0)])),
        ("`logit_bias` must be between -100 and 100. Given: 100.5", |p| p.logit_bias = bias(&[("1", 100.5)])),
        ("`logit_bias` must be between -100 and 100. Given: inf", |p| p.logit_bias = bias(&[("1", f32::INFINITY)])),
        ("`logit_bias` may have 3 tokens at most. Given: 4", |p| {
            p.logit_bias = bias(&[("1", 0.0), ("2", 0.0), ("3", 0.0), ("4", 0.0)]);
        }),
        ("`logit_bias` names token 1 more than once", |p| p.logit_bias = bias(&[("1", 0.0), ("01", 1.0)])),
        ("`allowed_token_ids` must not be empty", |p| p.allowed_token_ids = Some(Vec::new())),
        ("`allowed_token_ids` must have token ids below 300. Given: 300", |p| {
            p.allowed_token_ids = Some(vec![1, 300]);
        }),
        ("`allowed_token_ids` may have 300 ids at most. Given: 301", |p| p.allowed_token_ids = Some(vec![1; 301])),
        ("`bad_words` may have 3 strings at most. Given: 4", |p| p.bad_words = vec!["a".to_owned(); 4]),
        ("`bad_words` must not have an empty string", |p| p.bad_words = vec![String::new()]),
        ("`bad_words` may have 1024 bytes at most. Given: 1025", |p| p.bad_words = vec!["a".repeat(1025)]),
        ("`bad_words` may have 1024 tokens at most, with and without a space before. Given: 1201", |p| {
            p.bad_words = vec!["ab".repeat(300)];
        }),
        ("`min_tokens` must be at most `max_new_tokens`, which is 5. Given: 6", |p| {
            (p.min_new_tokens, p.max_new_tokens) = (Some(("min_tokens", 6)), Some(5));
        }),
        ("`min_new_tokens` must be at most `max_new_tokens`, which is 28. Given: 29", |p| {
            p.min_new_tokens = Some(("min_new_tokens", 29));
        }),
        ("`echo` is not supported when streaming", |p| (p.prompt_logprobs, p.stream) = (Some(("echo", 0)), true)),
        ("`prompt_logprobs` must be <= 20. Given: 21", |p| p.prompt_logprobs = Some(("prompt_logprobs", 21))),
        ("`top_n_tokens` must be <= 5. Given: 6", |p| p.top_n_tokens = Some(6)),
    ];
    for (expected, set) in rules {
        let error = sentence(check(&model, text("hello"), with(*set)));
        assert!(error.starts_with("Input validation error: ") && error.contains(expected), "{expected}: {error}");
    }
}

#[test]
fn neutral_and_extreme_values_pass() {
    let model = model();
    let allowed: &[Set] = &[
        |p| p.top_p = Some(1.0),
        |p| p.typical_p = Some(1.0),
        |p| (p.frequency_penalty, p.presence_penalty) = (Some(-2.0), Some(2.0)),
        |p| p.min_p = Some(1.0),
        |p| p.best_of = Some(1),
        |p| p.prompt_logprobs = Some(("prompt_logprobs", 20)),
        |p| p.truncate = Some(Truncate::ToFit),
        |p| p.top_n_tokens = Some(5),
        |p| p.stop = vec!["a".repeat(1024); 4],
        |p| p.max_new_tokens = Some(28),
        |p| p.truncate = Some(Truncate::To("truncate", 20)),
        |p| p.top_k = Some(i32::MAX),
    ];
    for set in allowed {
        check(&model, text("hello"), with(*set)).unwrap();
    }
}

#[test]
fn draws_when_asked_to() {
    let model = model();
    let native: &[(bool, Set)] = &[
        (false, |_| {}),
        (false, |p| p.do_sample = Some(false)),
        (false, |p| (p.top_p, p.typical_p, p.min_p, p.temperature) = (Some(1.0), Some(1.0), Some(0.0), Some(1.0))),
        (false, |p| p.repetition_penalty = Some(1.2)),
        (true, |p| p.do_sample = Some(true)),
        (true, |p| p.temperature = Some(0.5)),
        (true, |p| (p.temperature, p.do_sample) = (Some(0.5), Some(false))),
        (true, |p| p.top_k = Some(1)),
        (true, |p| p.top_p = Some(0.9)),
        (true, |p| p.typical_p = Some(0.9)),
        (true, |p| p.min_p = Some(0.1)),
    ];
    let openai: &[(bool, Set)] = &[
        (true, |_| {}),
        (true, |p| p.temperature = Some(1.0)),
        (false, |p| p.temperature = Some(0.0)),
        (false, |p| (p.temperature, p.top_p) = (Some(0.0), Some(0.5))),
        (false, |p| p.do_sample = Some(false)),
    ];
    for (dialect, cases) in [(false, native), (true, openai)] {
        for (index, (draws, set)) in cases.iter().enumerate() {
            let mut parameters = with(*set);
            parameters.greedy_at_zero = dialect;
            parameters.seed = Some(7);
            let prepared = check(&model, text("hello"), parameters).unwrap();
            let sampling = prepared.request.sampling;
            assert_eq!(sampling.temperature > 0.0, *draws, "OpenAI {dialect}, case {index}");
            assert_eq!(prepared.seed, draws.then_some(7), "OpenAI {dialect}, case {index}");
        }
    }
}

#[test]
fn seeds_are_drawn_and_told() {
    let model = model();
    let seed = || {
        let prepared = check(&model, text("hello"), with(|p| p.do_sample = Some(true))).unwrap();
        assert_eq!(prepared.seed, Some(prepared.request.sampling.seed));
        prepared.seed.unwrap()
    };
    assert_ne!(seed(), seed());
}

#[test]
fn penalties_hold_for_greedy_requests_too() {
    let parameters = with(|p| (p.repetition_penalty, p.frequency_penalty) = (Some(1.5), Some(0.5)));
    let sampling = check(&model(), text("hello"), parameters).unwrap().request.sampling;
    assert_eq!((sampling.temperature, sampling.repetition_penalty, sampling.frequency_penalty), (0.0, 1.5, 0.5));
}

#[test]
fn prompts_fit_the_limits() {
    let model = model();
    // Each x is a token, and `<s>` is another.
    let longest = check(&model, text(&"x".repeat(19)), Parameters::default()).unwrap();
    assert_eq!((longest.input_length, longest.request.max_new_tokens), (20, 10));
    let error = sentence(check(&model, text(&"x".repeat(20)), Parameters::default()));
    assert!(error.contains("`inputs` must have less than 20 tokens. Given: 21"), "{error}");
    // No token is longer than `hello` (5 bytes) or `</s>`, so this is refused without being tokenized.
    let error = sentence(check(&model, text(&"hello".repeat(21)), Parameters::default()));
    assert!(error.contains("Given: at least 21"), "{error}");
    check(&model, text(&"hello".repeat(19)), Parameters::default()).unwrap();
    let cut =
        check(&model, text(&("hello".repeat(500) + "abc")), with(|p| p.truncate = Some(Truncate::To("truncate", 3))))
            .unwrap();
    assert_eq!(cut.request.prompt, [b'a', b'b', b'c'].map(u32::from), "the last tokens are kept");
    assert_eq!((cut.input_length, cut.request.max_new_tokens), (3, 27));
    let fitted = check(&model, text(&"x".repeat(500)), with(|p| p.truncate = Some(Truncate::ToFit))).unwrap();
    assert_eq!(fitted.request.prompt, [u32::from(b'x'); 20]);
    for (asked, kept, left) in [(None, 20, 10), (Some(15), 15, 15), (Some(1000), 1, 29)] {
        let to_answer = |p: &mut Parameters| {
            (p.truncate, p.max_new_tokens, p.cut_to_fit) = (Some(Truncate::ToAnswer), asked, true);
        };
        let answered = check(&model, text(&"x".repeat(500)), with(to_answer)).unwrap();
        assert_eq!((answered.input_length, answered.request.max_new_tokens), (kept, left), "{asked:?}");
    }
    for empty in [text(""), Prompt::Tokens(Vec::new())] {
        let error = sentence(check(&model, empty, Parameters::default()));
        assert!(error.contains("`inputs` cannot be empty"), "{error}");
    }
}

#[test]
fn an_encoder_reads_the_prompt() {
    let config =
        json!({"is_encoder_decoder": true, "decoder_start_token_id": 5, "forced_bos_token_id": 6, "vocab_size": 300});
    let model = ModelText::load(folder().with("config.json", &config).path()).unwrap();
    let prepared = check(&model, text("abc"), with(|p| p.truncate = Some(Truncate::To("truncate", 2)))).unwrap();
    assert_eq!(prepared.request.source.as_deref(), Some(&[b'b', b'c'].map(u32::from)[..]));
    assert_eq!((prepared.request.prompt, prepared.input_length), (vec![5, 6], 2));
    assert_eq!(prepared.request.max_new_tokens, 28, "of 30 tokens together");
    assert!(!prepared.text.continues_text);
    let short = check(&model, Prompt::Tokens(vec![9]), Parameters::default()).unwrap();
    assert_eq!(short.request.max_new_tokens, 28, "the decoder's start takes more room than the input");
    let error = sentence(check(&model, text(&"x".repeat(20)), Parameters::default()));
    assert!(error.contains("`inputs` must have less than 20 tokens. Given: 21"), "{error}");
}

#[test]
fn token_prompts_are_taken_as_they_are() {
    let model = model();
    let prepared = check(&model, Prompt::Tokens(vec![299, 1, 2]), Parameters::default()).unwrap();
    assert_eq!(prepared.request.prompt, [299, 1, 2]);
    assert_eq!((prepared.prompt_text, prepared.prompt_characters), (None, 0));
    let error = sentence(check(&model, Prompt::Tokens(vec![1, 300]), Parameters::default()));
    assert!(error.contains("`prompt` must have token ids below 300. Given: 300"), "{error}");
    let error = sentence(check(&model, Prompt::Tokens(vec![1; 21]), Parameters::default()));
    assert!(error.contains("Given: 21"), "{error}");
}

#[test]
fn a_tokenizer_larger_than_the_model_is_noticed() {
    let model = ModelText::load(folder().with("config.json", &json!({"vocab_size": 100})).path()).unwrap();
    let error = sentence(check(&model, text("x"), Parameters::default()));
    assert!(error.contains("token ids below 100"), "{error}");
}

#[test]
fn stop_tokens_are_the_models_and_the_clients() {
    let model = model();
    let stop = |set: Set| check(&model, text("x"), with(set)).unwrap().request.stop_tokens;
    assert!(Arc::ptr_eq(&stop(|_| {}), model.eos_tokens()));
    assert_eq!(stop(|p| p.stop_token_ids = vec![5])[..], [267, 5]);
    assert_eq!(stop(|p| (p.stop_token_ids, p.ignore_eos) = (vec![5], true))[..], [5]);
    assert!(stop(|p| p.ignore_eos = true).is_empty());
}

#[test]
fn requests_without_rules_have_none() {
    let model = model();
    let neutral: &[Set] = &[|_| {}, |p| p.min_new_tokens = Some(("min_tokens", 0))];
    for set in neutral {
        assert_eq!(check(&model, text("x"), with(*set)).unwrap().request.rules, None);
    }
}

#[test]
fn rules_are_made_of_tokens() {
    let model = model();
    let rules = |set: Set| check(&model, text("x"), with(set)).unwrap().request.rules.unwrap();
    assert_eq!(rules(|p| p.logit_bias = bias(&[("12", -1.5), ("7", 100.0)])).bias, [(7, 100.0), (12, -1.5)]);
    let allowed = rules(|p| p.allowed_token_ids = Some(vec![0, 33, 299, 33])).allowed.clone();
    assert_eq!(allowed, [1, 2, 0, 0, 0, 0, 0, 0, 0, 1 << 11]);
    // `hello` is one token; with a space before it there are two, and ` wo` is one.
    let space = u32::from(b' ');
    assert_eq!(rules(|p| p.bad_words = vec!["hello".to_owned()]).banned, [vec![259], vec![space, 259]]);
    let banned = rules(|p| p.bad_words = vec![" wo".to_owned(), "wo".to_owned()]).banned.clone();
    assert_eq!(banned, [vec![u32::from(b'w'), u32::from(b'o')], vec![261]], "a space at the front changes nothing");
    assert_eq!(rules(|p| p.bad_words = vec![" ".to_owned()]).banned, [vec![space], vec![space, space]]);
    let prepared = check(&model, text("x"), with(|p| p.min_new_tokens = Some(("min_tokens", 4)))).unwrap();
    assert_eq!((prepared.request.rules.unwrap().min_tokens, prepared.text.unsearched_tokens), (4, 4));
    assert_eq!(rules(|p| p.watermark = true).watermark, Some(limits().watermark));
}

#[test]
fn pieces_are_banned_as_they_stand_inside_of_a_text() {
    for decoder in [fallback_decoder(), metaspace_decoder()] {
        let folder = Folder::new().with("tokenizer.json", &pieces(&decoder)).with("tokenizer_config.json", &json!({}));
        let model = ModelText::load(folder.path()).unwrap();
        let id = |piece: &str| model.tokenizer().token_to_id(piece).unwrap();
        let parameters = with(|p| p.bad_words = vec!["hello".to_owned(), "a".to_owned()]);
        let rules = check(&model, text("x"), parameters).unwrap().request.rules.unwrap();
        let expected = ["hello", "▁hello", "a", "▁a"].map(|piece| vec![id(piece)]);
        assert_eq!(rules.banned, expected);
    }
}

/// A tokenizer with more special tokens, whose ids follow the others'.
fn with_marks(mut tokenizer: Value, marks: &[&str]) -> ModelText {
    let vocabulary = tokenizer["model"]["vocab"].as_array().map_or(268, Vec::len);
    for (place, mark) in marks.iter().enumerate() {
        let token = json!({"id": vocabulary + place, "content": mark, "single_word": false, "lstrip": false,
                           "rstrip": false, "normalized": false, "special": true});
        tokenizer["added_tokens"].as_array_mut().unwrap().push(token);
    }
    let folder = Folder::new().with("tokenizer.json", &tokenizer).with("tokenizer_config.json", &json!({}));
    ModelText::load(folder.path()).unwrap()
}

fn infilled(model: &ModelText, prefix: &str, suffix: &str) -> Prepared {
    let (prefix, suffix) = (prefix.to_owned(), suffix.to_owned());
    check(model, Prompt::Infill { prefix, suffix }, Parameters::default()).unwrap()
}

#[test]
fn a_gap_is_shown_as_each_family_was_taught() {
    let letters = |text: &str| text.bytes().map(u32::from).collect::<Vec<_>>();
    let (bos, eos, first) = (266, 267, 268);
    for marks in [
        ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>"],
        ["<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<file_sep>"],
        ["<fim-prefix>", "<fim-suffix>", "<fim-middle>", "<|endoftext|>"],
        ["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>", "<|EOT|>"],
    ] {
        let model = with_marks(byte_level(), &marks);
        let prepared = infilled(&model, "ab", "c");
        let expected = [&[bos, first][..], &letters("ab"), &[first + 1], &letters("c"), &[first + 2]].concat();
        assert_eq!(prepared.request.prompt, expected, "{marks:?}");
        assert!(prepared.request.stop_tokens.contains(&(first + 3)), "{marks:?}");
        assert!(!check(&model, text("ab"), Parameters::default()).unwrap().request.stop_tokens.contains(&(first + 3)));
        assert_eq!(infilled(&model, "", "").request.prompt, [bos, first, first + 1, first + 2]);
        assert_eq!(prepared.prompt_characters, 3);
    }
    let codestral = with_marks(byte_level(), &["[SUFFIX]", "[PREFIX]"]);
    let prepared = infilled(&codestral, "ab", "c");
    assert_eq!(prepared.request.prompt, [&[bos, first][..], &letters("c"), &[first + 1], &letters("ab")].concat());
    assert!(!prepared.request.stop_tokens.contains(&eos), "no file says that this model has an end");
}

#[test]
fn a_text_behind_a_gap_has_no_space_before_it() {
    let model = with_marks(pieces(&metaspace_decoder()), &["▁<PRE>", "▁<SUF>", "▁<MID>", "▁<EOT>"]);
    let id = |piece: &str| model.tokenizer().token_to_id(piece).unwrap();
    let prepared = infilled(&model, "hello", "world");
    let around = ["▁<PRE>", "▁hello", "▁<SUF>", "wor", "ld", "▁<MID>"].map(id);
    assert_eq!(prepared.request.prompt, around);
    assert!(prepared.request.stop_tokens.contains(&id("▁<EOT>")));
}

#[test]
fn a_gap_needs_a_model_that_knows_gaps_and_room() {
    let gap = |size: usize| Prompt::Infill { prefix: "x".repeat(size), suffix: "y".to_owned() };
    let error = sentence(check(&model(), gap(1), Parameters::default()));
    assert!(error.contains("`suffix` needs a model that was trained to fill in the middle"), "{error}");
    let model = with_marks(byte_level(), &["[SUFFIX]", "[PREFIX]"]);
    for size in [17, 100_000] {
        let error = sentence(check(&model, gap(size), Parameters::default()));
        assert!(error.contains("must have less than 20 tokens"), "{error}");
    }
    check(&model, gap(16), Parameters::default()).unwrap();
}

#[test]
fn answers_know_their_prompt() {
    let parameters = with(|p| (p.stop, p.include_stop, p.top_n_tokens) = (vec!["b".to_owned()], true, Some(2)));
    let prepared = check(&model(), text("né"), parameters).unwrap();
    assert_eq!((prepared.prompt_text.as_deref(), prepared.prompt_characters), (Some("né"), 2));
    assert_eq!(prepared.text.stop, ["b"]);
    assert!(prepared.text.include_stop && prepared.text.skip_special_tokens && prepared.text.continues_text);
    assert_eq!(prepared.request.top_n_tokens, 2);
}

#[test]
fn no_number_gets_through_that_is_none() {
    let model = model();
    let config = Config { cases: 2000, failure_persistence: None, ..Config::default() };
    let number = || prop::option::of(prop_oneof![any::<u32>().prop_map(f32::from_bits), -3.0f32..3.0]);
    proptest!(config, |(numbers in prop::array::uniform7(number()), k in any::<Option<i32>>(), openai in any::<bool>())| {
        let [temperature, repetition_penalty, frequency_penalty, presence_penalty, top_p, min_p, typical_p] = numbers;
        let parameters = Parameters {
            temperature, repetition_penalty, frequency_penalty, presence_penalty, top_p, min_p, typical_p,
            top_k: k, greedy_at_zero: openai, ..Parameters::default()
        };
        match check(&model, text("x"), parameters) {
            Err(error) => prop_assert!(matches!(error, InputError::Validation(_) | InputError::TooLong(_))),
            Ok(prepared) => {
                let s = prepared.request.sampling;
                prop_assert!(s.temperature == 0.0 || (1e-4..=f32::MAX).contains(&s.temperature));
                prop_assert!(s.repetition_penalty > 0.0 && s.repetition_penalty.is_finite());
                prop_assert!([s.frequency_penalty, s.presence_penalty].iter().all(|p| (-2.0..=2.0).contains(p)));
                prop_assert!([s.top_p, s.typical_p].iter().all(|p| *p > 0.0 && *p <= 1.0));
                prop_assert!((0.0..=1.0).contains(&s.min_p));
            }
        }
    });
}

#[test]
fn spans_are_where_the_library_says() {
    let model = model();
    let config = Config { cases: 500, failure_persistence: None, ..Config::default() };
    proptest!(config, |(text in "[hélo w🌍]{1,30}", special in any::<bool>())| {
        let spans = tokenize(&model, &text, special).unwrap();
        let encoding = model.tokenizer().encode_char_offsets(text.as_str(), special).unwrap();
        prop_assert_eq!(spans.len(), encoding.len());
        for (span, (id, offsets)) in spans.iter().zip(encoding.get_ids().iter().zip(encoding.get_offsets())) {
            prop_assert_eq!((span.id, (span.start, span.stop)), (*id, *offsets));
            let expected: String = text.chars().skip(span.start).take(span.stop - span.start).collect();
            prop_assert_eq!(&span.text, &expected);
        }
    });
}
