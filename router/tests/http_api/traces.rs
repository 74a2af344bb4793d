//! Traces: what a collector is told of a call, by either protocol, and that one which is away costs nothing but its spans.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use axum::http::{HeaderMap, HeaderValue};
use bytes::{Buf, Bytes};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, Span};
use prost::Message;
use serde_json::json;
use textgen_router::http::Patience;
use textgen_router::metrics::Metrics;
use textgen_router::secret::Secret;
use textgen_router::settings::{OtlpProtocol, Settings};
use textgen_router::traces::Traces;
use tokio::net::TcpListener;
use tokio::runtime::Handle;

use crate::client::{Answer, json_request, with_headers};
use crate::server::{Server, say, settings};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

/// What a collector was sent, as it came.
#[derive(Default)]
struct Received {
    resources: Vec<ResourceSpans>,
    headers: Vec<HeaderMap>,
    bytes: Vec<u8>,
}

impl Received {
    fn spans(&self) -> Vec<Span> {
        let scopes = self.resources.iter().flat_map(|resource| &resource.scope_spans);
        scopes.flat_map(|scope| scope.spans.clone()).collect()
    }
}

/// A collector of one protocol.
struct Collector {
    endpoint: String,
    received: Arc<Mutex<Received>>,
}

impl Collector {
    async fn new(protocol: OtlpProtocol) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let received = Arc::<Mutex<Received>>::default();
        let all = Arc::clone(&received);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let received = Arc::clone(&all);
                let service = service_fn(move |request| take(Arc::clone(&received), request, protocol));
                tokio::spawn(async move {
                    let stream = TokioIo::new(stream);
                    // What the client sees of an end is its own affair.
                    let _ = match protocol {
                        OtlpProtocol::Grpc => {
                            http2::Builder::new(TokioExecutor::new()).serve_connection(stream, service).await
                        }
                        OtlpProtocol::Http => http1::Builder::new().serve_connection(stream, service).await,
                    };
                });
            }
        });
        Self { endpoint, received }
    }

    fn settings(&self, protocol: OtlpProtocol) -> Settings {
        Settings { otlp_endpoint: Some(self.endpoint.clone()), otlp_protocol: protocol, ..settings() }
    }
}

/// Takes one message.
async fn take(
    received: Arc<Mutex<Received>>,
    request: Request<Incoming>,
    protocol: OtlpProtocol,
) -> Result<Response<BoxBody<Bytes, Infallible>>, hyper::Error> {
    let (head, body) = request.into_parts();
    let mut message = body.collect().await?.to_bytes();
    let (path, kind) = match protocol {
        OtlpProtocol::Grpc => {
            // Whether it is compressed, and its length.
            message.advance(5);
            ("/opentelemetry.proto.collector.trace.v1.TraceService/Export", "application/grpc")
        }
        OtlpProtocol::Http => ("/v1/traces", "application/x-protobuf"),
    };
    assert_eq!((head.uri.path(), head.headers["content-type"].to_str().unwrap()), (path, kind));
    let mut received = received.lock().unwrap();
    received.bytes.extend_from_slice(&message);
    received.headers.push(head.headers);
    received.resources.extend(ExportTraceServiceRequest::decode(message).unwrap().resource_spans);
    let response = Response::builder().header("content-type", kind);
    let body = match protocol {
        OtlpProtocol::Grpc => {
            let status = HeaderMap::from_iter([("grpc-status".parse().unwrap(), HeaderValue::from_static("0"))]);
            Full::from(&[0; 5][..]).with_trailers(async { Some(Ok(status)) }).boxed()
        }
        OtlpProtocol::Http => Empty::new().boxed(),
    };
    Ok(response.body(body).unwrap())
}

fn serving(settings: Settings) -> Server {
    let mut server = Server::with(settings, Patience::default());
    server.script(say("an answer nobody else sees"));
    server
}

/// A call with this context, its answer read to the end.
async fn ask(server: &Server, path: &str, traceparent: Option<&str>) -> Answer {
    let body = json!({"inputs": "a prompt nobody else sees", "parameters": {"max_new_tokens": 8}});
    let headers: Vec<_> = traceparent.map(|context| ("traceparent", context)).into_iter().collect();
    server.send(with_headers(json_request(path, &body), &headers)).await
}

async fn close(server: &Server) {
    server.state.traces.as_ref().unwrap().close().await;
}

/// The value of an attribute, as text.
fn attribute(span: &Span, key: &str) -> Option<String> {
    let found = span.attributes.iter().find(|attribute| attribute.key == key)?;
    match found.value.clone()?.value? {
        Value::StringValue(text) => Some(text),
        Value::IntValue(number) => Some(number.to_string()),
        other => panic!("{key} is {other:?}"),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test]
async fn a_call_is_a_span_and_each_of_its_stages_one_inside_it() {
    for protocol in [OtlpProtocol::Grpc, OtlpProtocol::Http] {
        for (path, streamed) in [("/generate", false), ("/generate_stream", true)] {
            let collector = Collector::new(protocol).await;
            let headers = Some(Secret::from("x-collector-key=hush, x-other = 2"));
            let server = serving(Settings { otlp_headers: headers, ..collector.settings(protocol) });
            let answer = ask(&server, path, Some(&format!("00-{TRACE}-{PARENT}-01"))).await;
            assert_eq!(answer.status, 200);
            assert_eq!(answer.headers.contains_key("content-length"), !streamed);
            close(&server).await;
            let page = server.get("/metrics").await.body;

            let received = collector.received.lock().unwrap();
            let spans = received.spans();
            let root = spans.iter().find(|span| span.name == format!("POST {path}")).unwrap();
            assert_eq!((hex(&root.trace_id), hex(&root.parent_span_id)), (TRACE.to_owned(), PARENT.to_owned()));
            assert_eq!(answer.header("traceparent"), format!("00-{TRACE}-{}-01", hex(&root.span_id)));
            for (key, value) in [
                ("http.route", path),
                ("http.request.method", "POST"),
                ("http.response.status_code", "200"),
                ("gen_ai.request.model", "test/bytes"),
                ("gen_ai.usage.input_tokens", "26"),
                ("gen_ai.usage.output_tokens", "8"),
            ] {
                assert_eq!(attribute(root, key).as_deref(), Some(value), "{key}");
            }
            let stages: HashMap<&str, &Span> = spans.iter().map(|span| (span.name.as_str(), span)).collect();
            assert_eq!(stages.len(), 6, "{stages:?}");
            let mut before = 0;
            for name in ["tokenize", "queue", "prefill", "decode", "send"] {
                let stage = stages[name];
                assert_eq!((&stage.trace_id, &stage.parent_span_id), (&root.trace_id, &root.span_id), "{name}");
                assert!(stage.start_time_unix_nano <= stage.end_time_unix_nano, "{stage:?}");
                // The script says how long it waited, which need not be true; the others follow each other.
                if name != "queue" {
                    assert!(stage.start_time_unix_nano >= before, "{stages:?}");
                    before = stage.end_time_unix_nano;
                }
                assert!(stage.end_time_unix_nano <= root.end_time_unix_nano);
            }
            let resource = received.resources[0].resource.as_ref().unwrap();
            let service = resource.attributes.iter().find(|attribute| attribute.key == "service.name").unwrap();
            assert_eq!(service.value.clone().unwrap().value, Some(Value::StringValue("tested".to_owned())));
            assert_eq!(
                (&received.headers[0]["x-collector-key"], &received.headers[0]["x-other"]),
                (&HeaderValue::from_static("hush"), &HeaderValue::from_static("2"))
            );
            assert!(!received.bytes.windows(11).any(|part| part == b"nobody else"), "what was written is told");
            assert!(page.contains("textgen_trace_spans_total{fate=\"sent\"} 6"), "{page}");
        }
    }
}

#[tokio::test]
async fn a_call_without_a_context_begins_one_and_an_unwanted_one_is_not_told() {
    let collector = Collector::new(OtlpProtocol::Http).await;
    let server = serving(collector.settings(OtlpProtocol::Http));
    let unwanted = ask(&server, "/generate", Some(&format!("00-{TRACE}-{PARENT}-00"))).await;
    assert!(unwanted.header("traceparent").starts_with(&format!("00-{TRACE}-")));
    assert!(unwanted.header("traceparent").ends_with("-00"));
    let mut wanted = Vec::new();
    for broken in [None, Some("00-nonsense"), Some("")] {
        let context = ask(&server, "/generate", broken).await.header("traceparent").to_owned();
        assert!(context.ends_with("-01"), "{context}");
        wanted.push(context.split('-').nth(1).unwrap().to_owned());
    }
    for quiet in ["/health", "/ready", "/metrics"] {
        assert!(!server.get(quiet).await.headers.contains_key("traceparent"));
    }
    close(&server).await;
    let spans = collector.received.lock().unwrap().spans();
    let mut told: Vec<String> = spans.iter().map(|span| hex(&span.trace_id)).collect();
    told.dedup();
    assert_eq!(told, wanted);
}

#[tokio::test]
async fn a_failure_is_told_by_its_kind() {
    let collector = Collector::new(OtlpProtocol::Http).await;
    let server = serving(collector.settings(OtlpProtocol::Http));
    server.post("/generate", json!({"inputs": "a", "parameters": {"temperature": -1}})).await;
    close(&server).await;
    let spans = collector.received.lock().unwrap().spans();
    let root = spans.iter().find(|span| span.name == "POST /generate").unwrap();
    assert_eq!(attribute(root, "error.type").as_deref(), Some("validation"));
    assert_eq!(attribute(root, "http.response.status_code").as_deref(), Some("422"));
}

#[tokio::test]
async fn grpc_goes_on_the_callers_trace_too() {
    use textgen_router::grpc::proto::model_infer_request::InferInputTensor;
    use textgen_router::grpc::proto::{InferTensorContents, ModelInferRequest};

    let collector = Collector::new(OtlpProtocol::Grpc).await;
    let server = serving(collector.settings(OtlpProtocol::Grpc));
    let contents = InferTensorContents { bytes_contents: vec![b"hi".to_vec()], ..Default::default() };
    let input = InferInputTensor {
        name: "text_input".to_owned(),
        datatype: "BYTES".to_owned(),
        shape: vec![1],
        parameters: HashMap::new(),
        contents: Some(contents),
    };
    let call = ModelInferRequest { model_name: "bytes".to_owned(), inputs: vec![input], ..Default::default() };
    let mut request = tonic::Request::new(call);
    request.metadata_mut().insert("traceparent", format!("00-{TRACE}-{PARENT}-01").parse().unwrap());
    server.grpc().model_infer(request).await.unwrap();
    close(&server).await;
    let spans = collector.received.lock().unwrap().spans();
    assert!(spans.iter().all(|span| hex(&span.trace_id) == TRACE));
    let names: Vec<&str> = spans.iter().map(|span| span.name.as_str()).collect();
    assert!(names.contains(&"inference.GRPCInferenceService/ModelInfer") && names.contains(&"decode"), "{names:?}");
}

#[tokio::test]
async fn a_collector_that_is_away_costs_its_spans_and_nothing_else() {
    // One that nobody listens at, and one that takes what comes and never answers.
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    for (endpoint, size) in [(gone, 256), (silent.local_addr().unwrap(), 2)] {
        let endpoint = Some(endpoint.to_string());
        let server = serving(Settings { otlp_endpoint: endpoint, otlp_queue_size: size, ..settings() });
        for _ in 0..3 {
            assert_eq!(ask(&server, "/generate_stream", None).await.status, 200);
        }
        if size > 2 {
            close(&server).await;
        }
        let page = server.get("/metrics").await.body;
        let lost = page.lines().find_map(|line| line.strip_prefix("textgen_trace_spans_total{fate=\"lost\"} "));
        assert!(lost.unwrap().parse::<u32>().unwrap() > 0, "{page}");
        assert!(page.contains("textgen_trace_spans_total{fate=\"sent\"} 0"));
    }
}

#[tokio::test]
async fn an_address_or_headers_that_cannot_be_used_are_named() {
    let error = |endpoint: &str, headers: &str| {
        let settings = Settings {
            otlp_endpoint: Some(endpoint.to_owned()),
            otlp_headers: Some(Secret::from(headers)),
            ..settings()
        };
        let metrics = Metrics::new(&settings).unwrap();
        Traces::start(&settings, &metrics, &Handle::current()).map(|_| ()).map_err(|error| error.to_string())
    };
    assert_eq!(error("collector:4317", ""), Ok(()));
    assert_eq!(error("http://[::1]:4318/prefix", "a=b=c,,d=e"), Ok(()));
    for endpoint in ["ftp://host", "http://", "a b", ""] {
        let refused = error(endpoint, "").unwrap_err();
        assert!(refused.starts_with("--otlp-endpoint: "), "{refused}");
    }
    for headers in ["hush", "a=b,hush", "a b=hush", "a=\u{7f}hush"] {
        let refused = error("collector:4317", headers).unwrap_err();
        assert!(refused.starts_with("--otlp-headers: part ") && !refused.contains("hush"), "{refused}");
    }
}
