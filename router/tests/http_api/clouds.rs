//! SageMaker's and Vertex AI's routes: bodies of other routes.

use serde_json::{Value, json};
use textgen_router::http::Patience;
use textgen_router::settings::Settings;
use textgen_router::shard::handle::{EngineError, Event};

use crate::server::{Server, settings, started};

#[tokio::test]
async fn an_invocation_is_answered_as_its_body_is_elsewhere() {
    let server = Server::saying("hey");
    let generate =
        json!({"inputs": "hi ", "parameters": {"max_new_tokens": 9, "seed": 18_446_744_073_709_551_615_u64}});
    let chat = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9});
    let completion = json!({"prompt": "hi", "max_tokens": 9});
    let timeless = |mut answer: Value| {
        if answer.is_object() {
            answer["id"].take();
            answer["created"].take();
        }
        answer
    };
    for (path, body) in [("/", generate), ("/v1/chat/completions", chat), ("/v1/completions", completion)] {
        let there = server.post(path, body.clone()).await;
        let here = server.post("/invocations", body.clone()).await;
        assert_eq!((here.status.as_u16(), timeless(here.json())), (200, timeless(there.json())));
        assert_eq!(here.header("x-generated-tokens"), "4");
        let mut streamed = body;
        streamed["stream"] = json!(true);
        let there = server.post(path, streamed.clone()).await.events().len();
        assert_eq!(server.post("/invocations", streamed).await.events().len(), there);
    }
}

#[tokio::test]
async fn its_errors_are_those_of_its_body() {
    let server = Server::saying("hey");
    let path = "/invocations";
    server.post(path, json!({"inputs": "hi", "parameters": {"temperature": -1}})).await.native_error(422, "validation");
    server.post(path, json!({"inputs": 3})).await.native_error(422, "validation");
    let chat = json!({"messages": [{"role": "user", "content": "hi"}], "temperature": -1});
    server.post(path, chat).await.openai_error(422, "validation");
    let error = server.post(path, json!({"prompt": "hi", "temperature": "hot"})).await.openai_error(422, "validation");
    assert!(error.contains("temperature"), "{error}");
    for body in [json!({}), json!([1]), json!({"input": "hi"})] {
        assert!(server.post(path, body).await.native_error(422, "validation").contains("`messages`"));
    }
    let mut server = Server::new();
    server.script(vec![started(), Event::Failed(EngineError::Shard("no memory".to_owned()))]);
    let streamed = json!({"prompt": "hi", "stream": true});
    server.post(path, streamed).await.openai_error(424, "generation");
}

#[tokio::test]
async fn instances_are_answered_in_their_order() {
    let settings = Settings { tool_call_parser: Some("hermes".to_owned()), ..settings() };
    let mut server = Server::with(settings, Patience::default());
    server.script(crate::server::say("hey"));
    let chat = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, "stream": true});
    let instances = json!([{"inputs": "hi", "parameters": {"max_new_tokens": 1}}, chat, {"inputs": "hi"}]);
    let answer = server.post("/vertex", json!({"instances": instances, "parameters": {}})).await;
    assert_eq!(answer.json(), json!({"predictions": ["h", "he", "hey"]}));
    let several =
        json!({"instances": [{"inputs": "hi", "parameters": {"best_of": 2, "do_sample": true}}, {"inputs": "hi"}]});
    assert_eq!(server.post("/vertex", several).await.json(), json!({"predictions": ["hey", "hey"]}));
    assert_eq!(server.state.permits.available_permits(), 4);
    for (body, place) in [
        (json!({"instances": []}), "no instance"),
        (json!({"instances": [1, 2, 3, 4]}), "more than the 3 allowed"),
        (json!({"instances": [{}]}), "inputs"),
        (json!({"instances": [{"inputs": "hi", "parameters": {"temperature": 0}}]}), "`temperature`"),
        (json!({}), "instances"),
    ] {
        let error = server.post("/vertex", body).await.native_error(422, "validation");
        assert!(error.contains(place), "{error}");
    }
    assert_eq!(server.state.permits.available_permits(), 4);
}
