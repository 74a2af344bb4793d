//! The protocol's golden bytes, which the Python codec has written: the Rust codec must read each of them, and write those that a
//! router sends to the byte.

#![allow(clippy::unwrap_used, clippy::expect_used, missing_debug_implementations)]

use proptest::prelude::*;
use serde::Deserialize;
use serde_json::{Value, json};
use textgen_router::shard::protocol::{Frame, HEADER, ProtocolError, VERSION};

#[derive(Deserialize)]
struct Vector {
    name: String,
    kind: u8,
    hex: String,
    value: Value,
}

impl Vector {
    fn bytes(&self) -> Vec<u8> {
        let digits = self.hex.as_bytes().chunks(2);
        digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
    }
}

fn vectors() -> Vec<Vector> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/protocol/vectors.json");
    let vectors: Vec<Vector> = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    assert!(vectors.len() >= 10);
    vectors
}

/// A frame in the vectors' own words.
fn describe(frame: &Frame) -> Value {
    match frame {
        Frame::Hello(hello) => {
            let mut value = serde_json::to_value(hello).unwrap();
            let phases = hello.phases.iter().map(|(name, seconds)| json!({"name": name, "seconds": seconds}));
            value["phases"] = phases.collect();
            value
        }
        Frame::Admit(admit) => {
            let mut value = serde_json::to_value(admit).unwrap();
            value["history"] = json!(admit.history.0);
            if let Some(rules) = &admit.rules {
                value["rules"] = json!({
                    "bias_ids": rules.bias_ids.0, "biases": rules.biases.0, "allowed": rules.allowed.0,
                    "banned": rules.banned.0, "min_tokens": rules.min_tokens, "endings": rules.endings.0,
                    "thinking": rules.thinking.as_ref().map(|thinking| {
                        let (openings, closings) = (&thinking.openings.0, &thinking.closings.0);
                        json!({"budget": thinking.budget, "openings": openings, "end": thinking.end.0, "closings": closings})
                    }),
                    "watermark": rules.watermark.map(|(gamma, delta)| json!({"gamma": gamma, "delta": delta})),
                });
            }
            value
        }
        Frame::Step(step) => json!({
            "step": step.step, "segments": step.segments.0, "tokens": step.tokens.0, "blocks": step.blocks.0,
            "copies": step.copies.0, "freed": step.freed.0, "masks": step.masks.0,
        }),
        Frame::Done(done) => json!({
            "step": done.step, "slots": done.slots.0, "counts": done.counts.0, "tokens": done.tokens.0,
            "logprobs": done.logprobs.0, "times": done.times,
            "wide": done.wide.map(|(offset, length)| json!({"offset": offset, "length": length})),
        }),
        Frame::Failed(failed) => json!({
            "step": failed.step, "slots": failed.slots.0, "kind": failed.kind, "message": failed.message,
        }),
        Frame::Stop => json!({}),
        Frame::Ask(ask) => json!({"step": ask.step, "masks": ask.masks.0}),
    }
}

#[test]
fn every_vector_is_read() {
    for vector in vectors() {
        let bytes = vector.bytes();
        assert_eq!(
            u32::from_le_bytes(bytes[..4].try_into().unwrap()) as usize,
            bytes.len() - HEADER,
            "{}",
            vector.name
        );
        assert_eq!(bytes[4], vector.kind, "{}", vector.name);
        let frame = Frame::decode(vector.kind, &bytes[HEADER..]).unwrap();
        assert_eq!(frame.kind(), vector.kind);
        assert_eq!(describe(&frame), vector.value, "{}", vector.name);
    }
}

#[test]
fn what_a_router_sends_is_written_to_the_byte() {
    let of_router = |name: &str| name.ends_with("_rust") || name.starts_with("step") || name == "stop";
    let mut written = 0;
    for vector in vectors().into_iter().filter(|vector| of_router(&vector.name)) {
        let frame = Frame::decode(vector.kind, &vector.bytes()[HEADER..]).unwrap();
        let mut bytes = Vec::new();
        frame.encode(&mut bytes).unwrap();
        assert_eq!(bytes, vector.bytes(), "{}", vector.name);
        written += 1;
    }
    assert!(written >= 5);
}

#[test]
fn a_hello_of_another_version_is_known_by_its_number_whatever_follows() {
    let other = VERSION as u8 + 1;
    for payload in [&[0x91, other][..], &[0x93, other, 0xc0, 0xa1, b'x'], &[0x92, 0xcd, 0x00, other, 0xc0]] {
        let error = Frame::decode(1, payload).unwrap_err();
        assert!(matches!(error, ProtocolError::Version(version) if version == VERSION + 1), "{error}");
    }
    for payload in [&[0x90_u8][..], &[0xc0], &[0x91, 0xc0], &[0x91, VERSION as u8], &[0x93, other]] {
        assert!(matches!(Frame::decode(1, payload), Err(ProtocolError::Decode { .. })), "{payload:?}");
    }
}

proptest! {
    #[test]
    fn garbage_is_an_error_and_nothing_worse(kind in 0_u8..9, payload in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = Frame::decode(kind, &payload);
    }

    #[test]
    fn a_cut_or_changed_vector_is_no_panic(index in 0_usize..10, at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let vector = &vectors()[index];
        let mut bytes = vector.bytes();
        let at = HEADER + at.index(bytes.len() - HEADER);
        let _ = Frame::decode(vector.kind, &bytes[HEADER..at]);
        bytes[at] = byte;
        let _ = Frame::decode(vector.kind, &bytes[HEADER..]);
    }
}
