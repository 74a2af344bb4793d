//! Requests to a server without a network.

use axum::body::Body;
use axum::http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::BodyExt;
use serde_json::Value;
use tower::ServiceExt;

use crate::server::Server;

/// A whole answer.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: String,
}

impl Server {
    pub async fn post(&self, path: &str, body: Value) -> Answer {
        self.send(json_request(path, &body)).await
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send(Request::get(path).body(Body::empty()).unwrap()).await
    }

    pub async fn send(&self, request: Request<Body>) -> Answer {
        let response = self.app.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Answer { status: parts.status, headers: parts.headers, body: String::from_utf8(body.into()).unwrap() }
    }
}

pub fn json_request(path: &str, body: &Value) -> Request<Body> {
    Request::builder()
        .method(Method::POST)
        .uri(path)
        .header("content-type", "application/json")
        .body(Body::from(body.to_string()))
        .unwrap()
}

/// The same with headers of its own.
pub fn with_headers(mut request: Request<Body>, headers: &[(&'static str, &str)]) -> Request<Body> {
    for (name, value) in headers {
        request.headers_mut().insert(*name, value.parse().unwrap());
    }
    request
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    /// The JSON of each event; `[DONE]` becomes a string.
    pub fn events(&self) -> Vec<Value> {
        assert_eq!(self.headers["content-type"], "text/event-stream");
        let blocks = self.body.strip_suffix("\n\n").unwrap().split("\n\n");
        let data = blocks.map(|block| block.strip_prefix("data: ").unwrap());
        data.map(|data| serde_json::from_str(data).unwrap_or_else(|_| Value::from(data))).collect()
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).unwrap_or_else(|| panic!("no {name}")).to_str().unwrap()
    }

    pub fn number(&self, name: &str) -> f64 {
        self.header(name).parse().unwrap()
    }

    /// Checks a native error; gives its text.
    pub fn native_error(&self, status: u16, error_type: &str) -> String {
        let body = self.json();
        assert_eq!((self.status.as_u16(), body["error_type"].as_str().unwrap()), (status, error_type), "{}", self.body);
        assert_eq!(self.header("content-type"), "application/json");
        body["error"].as_str().unwrap().to_owned()
    }

    /// Checks an OpenAI error; gives its text.
    pub fn openai_error(&self, status: u16, code: &str) -> String {
        let body = self.json();
        assert_eq!((self.status.as_u16(), body["error"]["code"].as_str().unwrap()), (status, code), "{}", self.body);
        assert_eq!(body["error_type"], code);
        assert_eq!(body["error"]["http_status_code"], status);
        body["error"]["message"].as_str().unwrap().to_owned()
    }
}
