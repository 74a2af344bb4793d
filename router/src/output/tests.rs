use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::Config;
use serde_json::{Value, json};

use super::joining::Joining;
use super::stop::StopFinder;
use super::utf8::REPLACEMENT;
use super::{TextParams, TextStream};
use crate::input::ModelText;
use crate::input::test_models::{Folder, byte_level, fallback_decoder, metaspace_decoder, pieces};

/// First byte token of `pieces`.
const FIRST_BYTE: u32 = 3;
/// First piece of `pieces`.
const FIRST_PIECE: u32 = FIRST_BYTE + 256;

fn config(cases: u32) -> Config {
    Config { cases, failure_persistence: None, ..Config::default() }
}

fn model(tokenizer: &Value) -> Arc<ModelText> {
    let folder = Folder::new().with("tokenizer.json", tokenizer);
    Arc::new(ModelText::load(folder.path()).unwrap())
}

fn library(decoder: &Value) -> Arc<ModelText> {
    let model = model(&pieces(decoder));
    assert_eq!(model.joining(), &Joining::Library);
    model
}

fn params() -> TextParams {
    TextParams::default()
}

/// All pieces, each whole text so far checked to be what a client would have.
fn stream(model: &Arc<ModelText>, ids: &[u32], params: TextParams) -> String {
    let mut stream = TextStream::new(Arc::clone(model), params);
    let mut text = String::new();
    for &id in ids {
        let piece = stream.push(id);
        text.push_str(&piece.text);
        if piece.stopped {
            assert_eq!(stream.push(id).text, "", "nothing comes after a stop string");
            assert_eq!(stream.finish(), "");
            return text;
        }
    }
    text + &stream.finish()
}

fn decode(model: &ModelText, ids: &[u32]) -> String {
    model.tokenizer().decode(ids, true).unwrap()
}

fn ids(model: &ModelText) -> impl Strategy<Value = Vec<u32>> + use<> {
    // A few ids beyond the vocabulary: the embedding of a model may be larger.
    prop::collection::vec(0..model.vocab_size() + 3, 0..40)
}

#[test]
fn byte_level_streams_what_the_tokenizer_decodes() {
    let model = model(&byte_level());
    assert_eq!(model.joining(), &Joining::Bytes);
    proptest!(config(2000), |(ids in ids(&model))| {
        prop_assert_eq!(stream(&model, &ids, params()), decode(&model, &ids));
        let all = TextParams { skip_special_tokens: false, ..params() };
        prop_assert_eq!(stream(&model, &ids, all), model.tokenizer().decode(&ids, false).unwrap());
    });
}

#[test]
fn byte_level_gives_text_back_wherever_it_is_cut() {
    let model = model(&byte_level());
    proptest!(config(500), |(text in "\\PC{0,20}|[héllo wörld🌍]{0,20}")| {
        // One token a byte, so every character is cut everywhere.
        let ids: Vec<u32> = text.bytes().map(u32::from).collect();
        let mut stream = TextStream::new(Arc::clone(&model), params());
        let mut seen = String::new();
        for (index, id) in ids.iter().enumerate() {
            seen.push_str(&stream.push(*id).text);
            let whole = (0..=index + 1).rev().find(|end| text.is_char_boundary(*end)).unwrap();
            prop_assert_eq!(&seen, &text[..whole], "a character is shown as soon as it is whole, never before");
        }
        prop_assert_eq!(stream.finish(), "");
    });
}

#[test]
fn an_incomplete_character_is_one_replacement() {
    let model = model(&byte_level());
    let ids = [b'a', 0xF0, 0x9F, 0x8C].map(u32::from);
    assert_eq!(stream(&model, &ids, params()), "a\u{FFFD}");
    let ids = [0xF0, 0x9F, b'a', 0x8C, 0xFF].map(u32::from);
    assert_eq!(stream(&model, &ids, params()), "\u{FFFD}a\u{FFFD}\u{FFFD}");
}

/// Tokens of a SentencePiece model in which every run of bytes is good or bad as a whole.
fn clean_runs() -> impl Strategy<Value = Vec<u32>> {
    let byte = |byte: u8| FIRST_BYTE + u32::from(byte);
    let piece = || (0u32..14).prop_map(|piece| vec![FIRST_PIECE + piece]);
    let spelled = any::<char>().prop_map(move |c| c.to_string().bytes().map(byte).collect::<Vec<_>>());
    let bad = (prop::collection::vec(0x80u8..0xC0, 1..4), 0u32..14).prop_map(move |(bytes, next)| {
        let mut ids: Vec<u32> = bytes.into_iter().map(byte).collect();
        ids.insert(0, FIRST_PIECE + next);
        ids.push(FIRST_PIECE + next);
        ids
    });
    let special = (0u32..3).prop_map(|id| vec![id]);
    prop::collection::vec(prop_oneof![4 => piece(), 3 => spelled, 1 => bad, 1 => special], 0..12)
        .prop_map(|segments| segments.concat())
}

#[test]
fn pieces_stream_what_the_tokenizer_decodes() {
    let model = model(&pieces(&fallback_decoder()));
    assert!(matches!(model.joining(), Joining::Pieces(_)));
    // A special token between good and bad bytes would join them into one run.
    let joined = |ids: &[u32]| ids.iter().filter(|id| **id >= FIRST_BYTE).copied().collect::<Vec<_>>();
    proptest!(config(1000), |(ids in clean_runs())| {
        prop_assert_eq!(stream(&model, &ids, params()), decode(&model, &joined(&ids)));
    });
}

#[test]
fn bad_bytes_after_good_ones_do_not_take_them_back() {
    let model = model(&pieces(&fallback_decoder()));
    proptest!(config(1000), |(bytes in prop::collection::vec(prop_oneof![any::<u8>(), Just(0xE6), Just(0x97), Just(0xA5)], 0..12))| {
        let mut expected = String::new();
        for chunk in bytes.utf8_chunks() {
            expected.push_str(chunk.valid());
            expected.extend(chunk.invalid().iter().map(|_| REPLACEMENT));
        }
        let ids: Vec<u32> = bytes.iter().map(|byte| FIRST_BYTE + u32::from(*byte)).collect();
        let keep = TextParams { continues_text: true, ..params() };
        prop_assert_eq!(stream(&model, &ids, keep), expected);
    });
}

#[test]
fn metaspace_streams_what_the_tokenizer_decodes() {
    let model = model(&pieces(&metaspace_decoder()));
    assert!(matches!(model.joining(), Joining::Pieces(_)));
    proptest!(config(1000), |(ids in prop::collection::vec(prop_oneof![0..3u32, FIRST_PIECE..FIRST_PIECE + 14], 0..12))| {
        prop_assert_eq!(stream(&model, &ids, params()), decode(&model, &ids));
    });
}

#[test]
fn a_continuation_keeps_its_space() {
    for decoder in [fallback_decoder(), metaspace_decoder()] {
        let model = model(&pieces(&decoder));
        let ids = [FIRST_PIECE + 2, FIRST_PIECE + 1]; // ▁world ▁hello
        assert_eq!(stream(&model, &ids, params()), "world hello");
        let continues = TextParams { continues_text: true, ..params() };
        assert_eq!(stream(&model, &ids, continues), " world hello");
    }
}

#[test]
fn other_decoders_stream_what_the_library_decodes() {
    let odd = json!({"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}]});
    let regex = json!({"type": "Replace", "pattern": {"Regex": "▁+"}, "content": " "});
    let suffix = json!({"type": "BPEDecoder", "suffix": "!"});
    for decoder in [Value::Null, odd, regex, suffix] {
        let model = library(&decoder);
        proptest!(config(300), |(ids in ids(&model))| {
            prop_assert_eq!(stream(&model, &ids, params()), decode(&model, &ids));
        });
    }
}

#[test]
fn the_library_waits_for_whole_characters() {
    let decoder = json!({"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}]});
    let model = library(&decoder);
    let mut stream = TextStream::new(Arc::clone(&model), params());
    let pieces: Vec<String> =
        "a日🌍".bytes().map(|byte| stream.push(FIRST_BYTE + u32::from(byte)).text).filter(|t| !t.is_empty()).collect();
    assert_eq!(pieces.concat() + &stream.finish(), "a日🌍");
    assert_eq!(pieces, ["a", "日", "🌍"]);
}

#[test]
fn a_decoder_that_panics_gives_no_text() {
    // This decoder counts back from the end of an empty token.
    let model = library(&json!({"type": "Strip", "content": "a", "start": 1, "stop": 9}));
    let mut stream = TextStream::new(Arc::clone(&model), params());
    assert_eq!(stream.push(FIRST_PIECE + 6).text + &stream.finish(), "");
}

/// What a client must get: the text up to the stop string that ends first, of two that end together the longer.
fn reference(text: &str, stop: &[String], include: bool) -> (String, bool) {
    for end in (1..=text.len()).filter(|end| text.is_char_boundary(*end)) {
        let found = stop.iter().filter(|s| text[..end].ends_with(*s)).map(String::len).max();
        if let Some(length) = found {
            return (text[..if include { end } else { end - length }].to_owned(), true);
        }
    }
    (text.to_owned(), false)
}

#[test]
fn stop_strings_are_found_for_every_way_to_cut_a_text() {
    let word = |most| prop::collection::vec(prop::sample::select(vec!['a', 'b', 'é']), 1..=most);
    let word = move |most| word(most).prop_map(|letters| letters.into_iter().collect::<String>());
    proptest!(config(1500), |(text in word(9), stop in prop::collection::vec(word(4), 1..4), include in any::<bool>())| {
        let expected = reference(&text, &stop, include);
        let letters: Vec<char> = text.chars().collect();
        for cuts in 0u32..1 << (letters.len() - 1) {
            let mut finder = StopFinder::new(stop.clone(), include);
            let (mut shown, mut taken, mut piece, mut stopped) = (String::new(), String::new(), String::new(), false);
            for (index, letter) in letters.iter().enumerate() {
                piece.push(*letter);
                if index + 1 < letters.len() && cuts >> index & 1 == 0 {
                    continue;
                }
                taken.push_str(&piece);
                let released = finder.push(std::mem::take(&mut piece));
                shown.push_str(&released.text);
                stopped = released.stopped;
                if stopped {
                    break;
                }
                let held = taken.strip_prefix(&shown).expect("what is shown is the text so far");
                prop_assert!(held.is_empty() || (!include && stop.iter().any(|s| s.starts_with(held))), "held {held:?}");
            }
            if !stopped {
                shown.push_str(&finder.finish());
            }
            prop_assert_eq!((&shown, stopped), (&expected.0, expected.1), "cuts {:b}", cuts);
        }
    });
}

#[test]
fn stop_strings_are_found_across_tokens() {
    let model = model(&byte_level());
    let ids = model.tokenizer().encode("hello world", false).unwrap().get_ids().to_vec();
    assert_eq!(ids.len(), 5, "hello, two letters of world in one token, three alone");
    let stop = |stop: &[&str], include_stop| {
        let params = TextParams { stop: stop.iter().map(ToString::to_string).collect(), include_stop, ..params() };
        stream(&model, &ids, params)
    };
    assert_eq!(stop(&["lo w"], false), "hel");
    assert_eq!(stop(&["lo w"], true), "hello w");
    assert_eq!(stop(&["ell"], false), "h");
    assert_eq!(stop(&["ell"], true), "hell");
    assert_eq!(stop(&["world!", "xyz"], false), "hello world");
    assert_eq!(stop(&["world", "wo"], false), "hello ");
    assert_eq!(stop(&["hello"], false), "");
}

#[test]
fn a_stop_string_may_hold_back_for_long() {
    let model = model(&byte_level());
    let stop = "ab".repeat(500) + "c";
    let text = "ab".repeat(700) + "x";
    let ids: Vec<u32> = text.bytes().map(u32::from).collect();
    let params = TextParams { stop: vec![stop.clone()], ..params() };
    assert_eq!(stream(&model, &ids, params.clone()), text);
    let ids: Vec<u32> = ("ab".repeat(200) + &stop + "more").bytes().map(u32::from).collect();
    assert_eq!(stream(&model, &ids, params), "ab".repeat(200));
}
