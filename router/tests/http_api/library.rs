//! Calls from the process itself: the same answers as over HTTP, waiting where a client is refused, and no request without an end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};
use textgen_router::http::Patience;
use textgen_router::http::library::{Calls, Library, Reply, Task};
use textgen_router::settings::Settings;
use textgen_router::shard::handle::{Event, Finish};
use tokio::runtime::{Builder, Handle};

use crate::model::{BOS, tokens};
use crate::server::{Server, prompt, settings, started, token};

const PATIENCE: Duration = Duration::from_secs(60);

fn calls(server: &Server) -> Arc<Calls> {
    Arc::new(Library::new(server.state.clone()).calls(Handle::current()))
}

fn body(value: &Value) -> Vec<u8> {
    value.to_string().into_bytes()
}

/// Replies until these requests are done, joined as a caller joins them.
async fn ended(calls: &Arc<Calls>, count: usize) -> BTreeMap<u64, Vec<Reply>> {
    let mut found: BTreeMap<u64, Vec<Reply>> = BTreeMap::new();
    while found.values().flatten().filter(|reply| reply.done).count() < count {
        let caller = Arc::clone(calls);
        for (tag, reply) in tokio::task::spawn_blocking(move || caller.take(PATIENCE)).await.unwrap() {
            let tells = reply.fault.is_some() || reply.response.is_some() || !reply.parts.is_empty();
            assert!(tells || !reply.done, "an end comes with the last of an answer");
            found.entry(tag).or_default().push(reply);
        }
    }
    found
}

/// The one request's replies.
async fn end_of(calls: &Arc<Calls>) -> Vec<Reply> {
    ended(calls, 1).await.into_values().next().unwrap()
}

fn text(replies: &[Reply], answer: usize) -> String {
    replies.iter().filter_map(|reply| reply.parts.get(&answer)).map(|part| part.text.as_str()).collect()
}

fn ids(replies: &[Reply], answer: usize) -> Vec<u32> {
    replies.iter().filter_map(|reply| reply.parts.get(&answer)).flat_map(|part| part.token_ids.clone()).collect()
}

#[tokio::test]
async fn a_prompt_is_answered_with_all_that_is_known_of_its_tokens() {
    let mut server = Server::new();
    let events = [started(), prompt(&[-0.5]), token(72), token(105)];
    server.script(events.to_vec());
    let calls = calls(&server);
    let asked =
        json!({"prompt": [BOS, 65], "max_tokens": 2, "logprobs": 2, "prompt_logprobs": 2, "return_token_ids": true});
    calls.begin(7, Task::Complete, body(&asked));
    let mut found = ended(&calls, 1).await;
    let replies = found.remove(&7).unwrap();
    assert!(found.is_empty());
    assert_eq!(text(&replies, 0), "Hi");
    assert_eq!(ids(&replies, 0), [72, 105]);
    let (given, part) = (replies[0].prompt.as_ref().unwrap(), &replies[0].parts[&0]);
    assert_eq!((given.token_ids.as_slice(), given.text.as_ref()), ([BOS, 65].as_slice(), None));
    assert!(given.scores[0].is_none());
    assert_eq!(given.scores[1].as_ref().map(|score| (score.id, score.rank)), Some((65, Some(2))));
    assert_eq!(
        part.scores.iter().map(|score| (score.id, score.rank)).collect::<Vec<_>>(),
        [(72, Some(1)), (105, Some(1))]
    );
    assert_eq!(part.scores[0].top, [(72, "H".to_owned(), -0.5), (73, "I".to_owned(), -1.5)]);
    assert_eq!((part.finish, part.stop_text.as_ref(), part.stop_token), (Some("length"), None, None));
    assert!((part.logprob + 1.0).abs() < 1e-6);
    assert!(replies.iter().all(|reply| reply.fault.is_none()));
}

#[tokio::test]
async fn what_ended_a_text_is_told() {
    let server = Server::saying("one two");
    for (more, finish, string, id) in [
        (json!({"stop": [" tw"]}), "stop", Some(" tw"), None),
        (json!({"stop_token_ids": [b't']}), "stop", None, Some(u32::from(b't'))),
        (json!({}), "stop", None, None),
        (json!({"max_tokens": 3}), "length", None, None),
    ] {
        let mut asked = json!({"prompt": "x", "max_tokens": 20});
        asked.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let calls = calls(&server);
        calls.begin(0, Task::Complete, body(&asked));
        let replies = end_of(&calls).await;
        let part = replies.iter().rev().find_map(|reply| reply.parts.get(&0)).unwrap();
        assert_eq!((part.finish, part.stop_text.as_deref(), part.stop_token), (Some(finish), string, id), "{more}");
    }
}

#[tokio::test]
async fn a_conversation_is_answered_with_text_and_message() {
    let server = Server::saying("Hello");
    let calls = calls(&server);
    let asked = json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 20, "return_token_ids": true});
    calls.begin(0, Task::Chat, body(&asked));
    let replies = end_of(&calls).await;
    assert_eq!(text(&replies, 0), "Hello");
    assert_eq!(replies[0].prompt.as_ref().unwrap().text.as_deref(), Some("[user]Hi[assistant]"));
    let message: Value = serde_json::from_str(replies[0].parts[&0].message.as_ref().unwrap()).unwrap();
    assert_eq!(message, json!({"role": "assistant", "content": "Hello"}));
}

#[tokio::test]
async fn a_stream_that_nobody_reads_is_joined_and_never_cut_off() {
    let mut server = Server::new();
    let many = 3 * settings().stream_buffer;
    let calls = calls(&server);
    let asked =
        json!({"prompt": "x", "max_tokens": many, "stream": true, "n": 2, "logprobs": 0, "return_token_ids": true});
    calls.begin(3, Task::Complete, body(&asked));
    let submission = server.submitted().await;
    for events in std::iter::once(&submission.events).chain(&submission.forks) {
        events.send(started()).await.unwrap();
        for number in 1..=many {
            let Event::Token { token, .. } = token(b'a'.into()) else { unreachable!() };
            let finish = (number == many).then_some(Finish::Length);
            events.send(Event::Token { token, finish }).await.unwrap();
        }
    }
    let replies = end_of(&calls).await;
    for answer in 0..2 {
        assert_eq!(text(&replies, answer), "a".repeat(many));
        assert_eq!(ids(&replies, answer).len(), many);
    }
    assert_eq!(replies[0].prompt.as_ref().unwrap().token_ids, [BOS, u32::from(b'x')]);
}

#[tokio::test]
async fn what_finds_no_room_waits_for_it_on_every_way_in() {
    let mut server = Server::new();
    let most = settings().max_concurrent_requests;
    let calls = calls(&server);
    let (prompt, talk) = (json!({"prompt": "x", "max_tokens": 1}), json!([{"role": "user", "content": "x"}]));
    let talk = json!({"messages": talk, "max_tokens": 1});
    for tag in (0..3 * most as u64).step_by(3) {
        calls.begin(tag, Task::Complete, body(&prompt));
        calls.begin(tag + 1, Task::Chat, body(&talk));
        calls.begin(tag + 2, Task::Route("/v1/completions"), body(&prompt));
    }
    for _ in 0..3 * most {
        let submission = server.submitted().await;
        submission.events.send(started()).await.unwrap();
        let Event::Token { token, .. } = token(b'a'.into()) else { unreachable!() };
        submission.events.send(Event::Token { token, finish: Some(Finish::Length) }).await.unwrap();
    }
    let replies = ended(&calls, 3 * most).await;
    for (tag, replies) in replies {
        assert!(replies.iter().all(|reply| reply.fault.is_none()), "{tag}: {replies:?}");
        let status = replies.iter().find_map(|reply| reply.response.as_ref()).map(|answer| answer.status);
        assert_eq!(status, (tag % 3 == 2).then_some(200));
    }
    assert_eq!(server.state.permits.available_permits(), most);
}

#[tokio::test]
async fn more_sequences_than_there_is_ever_room_for_are_refused() {
    let server = Server::with(Settings { max_concurrent_requests: 1, ..settings() }, Patience::default());
    let calls = calls(&server);
    calls.begin(0, Task::Complete, body(&json!({"prompt": "x", "n": 2})));
    let replies = end_of(&calls).await;
    assert_eq!(replies[0].fault.as_ref().map(|fault| fault.status), Some(429));
}

#[tokio::test]
async fn dropping_the_caller_cancels_what_runs() {
    let mut server = Server::new();
    let calls = calls(&server);
    calls.begin(0, Task::Complete, body(&json!({"prompt": "x"})));
    calls.begin(1, Task::Route("/v1/completions"), body(&json!({"prompt": "x", "stream": true})));
    let (one, other) = (server.submitted().await, server.submitted().await);
    drop(calls);
    one.events.closed().await;
    other.events.closed().await;
}

#[tokio::test]
async fn faults_say_what_an_http_client_would_read() {
    let server = Server::saying("x");
    let calls = calls(&server);
    for (tag, (task, asked)) in (0..).zip([
        (Task::Complete, b"{".to_vec()),
        (Task::Complete, body(&json!({"prompt": "x", "temperature": -1.0}))),
        (Task::Complete, body(&json!({"prompt": ["x", "y"]}))),
        (Task::Complete, body(&json!({"prompt": "x", "max_tokens": "many"}))),
        (Task::Chat, body(&json!({"messages": 3}))),
    ]) {
        calls.begin(tag, task, asked);
    }
    let replies = ended(&calls, 5).await;
    let told = |tag: u64| replies[&tag].iter().find_map(|reply| reply.fault.as_ref()).unwrap();
    assert_eq!((0..5).map(|tag| told(tag).status).collect::<Vec<_>>(), [400, 422, 422, 422, 422]);
    assert!(told(1).message.contains("`temperature`"), "{:?}", told(1));
    assert!(told(3).message.contains("max_tokens"), "{:?}", told(3));
    assert_eq!(told(2).kind, "batch size exceeded");
    for (path, status) in [("/v1/completions", 422), ("/nowhere", 404), ("no path", 404)] {
        calls.begin(9, Task::Route(path), body(&json!({})));
        let replies = end_of(&calls).await;
        let answered = replies.iter().find_map(|reply| reply.response.as_ref()).map(|answer| answer.status);
        let fault = replies.iter().find_map(|reply| reply.fault.as_ref()).map(|fault| fault.status);
        assert_eq!(answered.or(fault), Some(status), "{path}");
    }
}

#[test]
fn a_server_that_ends_leaves_no_request_without_an_end() {
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let mut server = runtime.block_on(async { Server::new() });
    let calls = Library::new(server.state.clone()).calls(runtime.handle().clone());
    calls.begin(0, Task::Complete, body(&json!({"prompt": "x"})));
    let submission = runtime.block_on(server.submitted());
    runtime.shutdown_background();
    calls.begin(1, Task::Complete, body(&json!({"prompt": "x"})));
    let mut kinds = BTreeMap::new();
    while kinds.len() < 2 {
        let replies = calls.take(PATIENCE);
        assert!(!replies.is_empty());
        kinds.extend(replies.into_iter().map(|(tag, reply)| (tag, reply.fault.unwrap().kind)));
    }
    assert_eq!(kinds.into_values().collect::<Vec<_>>(), ["draining", "draining"]);
    assert!(submission.events.is_closed());
}

#[tokio::test]
async fn the_bell_rings_while_there_is_mail() {
    let server = Server::saying(&String::from_utf8(vec![b'a'; tokens("abc").len()]).unwrap());
    let calls = calls(&server);
    let rings = |calls: &Calls, wait: i64| {
        let bell = calls.mailbox().bell().unwrap();
        let mut watched = [PollFd::new(&bell, PollFlags::IN)];
        let patience = Timespec { tv_sec: wait, tv_nsec: 0 };
        poll(&mut watched, Some(&patience)).unwrap() == 1
    };
    assert!(!rings(&calls, 0));
    calls.begin(0, Task::Complete, body(&json!({"prompt": "x"})));
    let caller = Arc::clone(&calls);
    assert!(tokio::task::spawn_blocking(move || rings(&caller, 60)).await.unwrap());
    end_of(&calls).await;
    assert!(!rings(&calls, 0));
}
