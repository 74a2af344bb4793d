//! Streamed and whole answers agree, whatever the bytes and wherever the stop string falls.

use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use serde_json::{Value, json};

use crate::model::EOS;
use crate::seed::fresh_rng;
use crate::server::{Server, started, token};

/// Bytes of whole, broken and cut-off characters.
fn bytes(random: &mut StdRng) -> Vec<u8> {
    let pieces: [&[u8]; 8] =
        [b"a", b"b", b"ab", "é".as_bytes(), "漢".as_bytes(), "🙂".as_bytes(), &[0xE6, 0xBC], &[0xFF]];
    let count = random.random_range(0..20);
    (0..count).flat_map(|_| pieces.choose(random).copied().unwrap_or_default().to_vec()).collect()
}

fn joined(events: &[Value], pointer: &str) -> String {
    events.iter().filter_map(|event| event.pointer(pointer)?.as_str()).collect()
}

#[tokio::test]
async fn streams_and_whole_answers_agree() {
    let mut random = fresh_rng();
    for _ in 0..60 {
        let bytes = bytes(&mut random);
        let stop: Vec<&str> = ["ab", "éa", "🙂", "ba漢"].into_iter().filter(|_| random.random_bool(0.3)).collect();
        let mut server = Server::new();
        let ids = bytes.iter().map(|byte| u32::from(*byte)).chain([EOS]);
        server.script(std::iter::once(started()).chain(ids.map(token)).collect());

        let native = json!({"inputs": "hi", "parameters": {"stop": stop}});
        let whole = server.post("/generate", native.clone()).await.json();
        let events = server.post("/generate_stream", native).await.events();
        let last = &events[events.len() - 1]["generated_text"];
        assert_eq!(&whole["generated_text"], last, "{bytes:?} {stop:?}");

        let mut body = json!({"stop": stop, "prompt": "hi", "messages": [{"role": "user", "content": "hi"}]});
        let chat = server.post("/v1/chat/completions", body.clone()).await.json();
        let completion = server.post("/v1/completions", body.clone()).await.json();
        body["stream"] = json!(true);
        let chunks = server.post("/v1/chat/completions", body.clone()).await.events();
        let content = &chat["choices"][0]["message"]["content"];
        assert_eq!(content, &joined(&chunks, "/choices/0/delta/content"), "{bytes:?} {stop:?}");
        let chunks = server.post("/v1/completions", body).await.events();
        assert_eq!(completion["choices"][0]["text"], joined(&chunks, "/choices/0/text"), "{bytes:?} {stop:?}");
        assert_eq!(&completion["choices"][0]["text"], content);

        // What stays on native routes is the stop string, and nothing after it.
        let (native, hidden) = (last.as_str().unwrap(), content.as_str().unwrap());
        let rest = native.strip_prefix(hidden).unwrap();
        assert!(rest.is_empty() || stop.contains(&rest), "{bytes:?} {stop:?}");
    }
}
