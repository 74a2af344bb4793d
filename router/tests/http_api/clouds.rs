//! SageMaker's and Vertex AI's routes: bodies of other routes.

use serde_json::{Value, json};
use textgen_router::http::Patience;
use textgen_router::secret::Secret;
use textgen_router::settings::Settings;
use textgen_router::shard::handle::{EngineError, Event};

use crate::client::{Answer, json_request, with_headers};
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

fn told_to_call(predict: &str, health: &str) -> Server {
    let (predict, health) = (Some(predict.to_owned()), Some(health.to_owned()));
    let api_key = Some(Secret::from("sesame"));
    let settings = Settings { vertex_predict_route: predict, vertex_health_route: health, api_key, ..settings() };
    let mut server = Server::with(settings, Patience::default());
    server.script(crate::server::say("hey"));
    server
}

async fn predict(server: &Server, path: &str, key: &str, instances: Value) -> Answer {
    let request = json_request(path, &json!({"instances": instances}));
    server.send(with_headers(request, &[("x-api-key", key)])).await
}

#[tokio::test]
async fn vertex_calls_the_paths_it_was_told() {
    let path = "/v1/endpoints/7/deployedModels/9";
    let server = told_to_call(&format!("{path}:predict"), path);
    let hi = json!([{"inputs": "hi"}]);
    let answer = predict(&server, &format!("{path}:predict"), "sesame", hi.clone()).await;
    assert_eq!((answer.status.as_u16(), answer.json()), (200, json!({"predictions": ["hey"]})));
    assert_eq!(predict(&server, &format!("{path}:predict"), "guessed", hi.clone()).await.status, 401);
    predict(&server, &format!("{path}:predict"), "sesame", json!([])).await.native_error(422, "validation");
    // Who asks whether the server lives has no key; whoever wants more needs one.
    assert_eq!(server.get(path).await.status, 200);
    assert_eq!(predict(&server, path, "guessed", hi.clone()).await.status, 401);
    assert_eq!(predict(&server, path, "sesame", hi).await.status, 405);
    assert_eq!(server.get(&format!("{path}:predict")).await.status, 401);
    let page = server.state.metrics.render();
    assert!(page.contains("textgen_http_requests_total{route=\"/vertex\",status=\"200\"} 1"), "{page}");
}

#[tokio::test]
async fn one_path_may_be_called_for_both_and_routes_of_the_server_keep_their_meaning() {
    let server = told_to_call("/both", "/both");
    assert_eq!(server.get("/both").await.status, 200);
    assert_eq!(predict(&server, "/both", "sesame", json!([{"inputs": "hi"}])).await.json()["predictions"][0], "hey");
    // Nobody reads the metrics without a key because a cloud was told to ask there.
    let server = told_to_call("/generate", "/metrics");
    assert_eq!(server.get("/metrics").await.status, 401);
    let answer =
        server.send(with_headers(json_request("/generate", &json!({"inputs": "hi"})), &[("x-api-key", "sesame")]));
    assert_eq!(answer.await.json()["generated_text"], "hey");
}
