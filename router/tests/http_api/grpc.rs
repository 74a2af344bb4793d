//! The Open Inference Protocol over gRPC: the service itself, and over a connection.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use textgen_router::grpc::health_proto::HealthCheckRequest;
use textgen_router::grpc::health_proto::health_check_response::ServingStatus;
use textgen_router::grpc::health_proto::health_client::HealthClient;
use textgen_router::grpc::proto::grpc_inference_service_client::GrpcInferenceServiceClient;
use textgen_router::grpc::proto::infer_parameter::ParameterChoice;
use textgen_router::grpc::proto::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};
use textgen_router::grpc::proto::{
    InferParameter, InferTensorContents, ModelInferRequest, ModelInferResponse, ModelMetadataRequest,
    ModelReadyRequest, ModelStreamInferResponse, ServerLiveRequest, ServerMetadataRequest, ServerReadyRequest,
};
use textgen_router::grpc::{self, Server as Service, service};
use textgen_router::http::Patience;
use textgen_router::settings::Settings;
use textgen_router::shard::handle::{EngineError, EngineStatus, Event};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tonic::{Code, Request};

use crate::server::{Server, say, settings, started, token};

impl Server {
    /// A client of the service, without a network.
    pub fn grpc(&self) -> GrpcInferenceServiceClient<Service> {
        GrpcInferenceServiceClient::new(service(self.state.clone()))
    }
}

fn input(name: &str, datatype: &str, contents: InferTensorContents) -> InferInputTensor {
    let (name, datatype) = (name.to_owned(), datatype.to_owned());
    InferInputTensor { name, datatype, shape: vec![1], parameters: HashMap::new(), contents: Some(contents) }
}

fn flag(on: bool) -> InferParameter {
    InferParameter { parameter_choice: Some(ParameterChoice::BoolParam(on)) }
}

/// A request for the text after this one.
fn request(id: &str, text: &str) -> ModelInferRequest {
    let bytes_contents = vec![text.as_bytes().to_vec()];
    ModelInferRequest {
        model_name: "bytes".to_owned(),
        id: id.to_owned(),
        inputs: vec![input("text_input", "BYTES", InferTensorContents { bytes_contents, ..Default::default() })],
        ..Default::default()
    }
}

/// The same, streamed.
fn streamed(id: &str, text: &str) -> ModelInferRequest {
    let mut request = request(id, text);
    let contents = InferTensorContents { bool_contents: vec![true], ..Default::default() };
    request.inputs.push(input("stream", "BOOL", contents));
    request
}

/// The texts of an answer.
fn texts(answer: &ModelInferResponse) -> Vec<String> {
    let contents = answer.outputs.first().and_then(|output| output.contents.clone()).unwrap_or_default();
    contents.bytes_contents.into_iter().map(|text| String::from_utf8(text).unwrap()).collect()
}

fn is_last(answer: &ModelInferResponse) -> bool {
    answer.parameters["triton_final_response"].parameter_choice == Some(ParameterChoice::BoolParam(true))
}

#[tokio::test]
async fn facts_and_health_are_those_of_http() {
    let server = Server::new();
    let mut client = server.grpc();
    let facts = client.server_metadata(ServerMetadataRequest {}).await.unwrap().into_inner();
    assert_eq!((facts.name.as_str(), facts.version.as_str()), ("textgen", "1.2.3"));
    let asked = ModelMetadataRequest { name: "test/bytes".to_owned(), version: "1".to_owned() };
    let facts = client.model_metadata(asked).await.unwrap().into_inner();
    assert_eq!((facts.name.as_str(), facts.inputs[0].name.as_str()), ("test/bytes", "text_input"));
    assert_eq!(facts.outputs[0].datatype, "BYTES");
    for (status, live, ready) in [(EngineStatus::Starting, false, false), (EngineStatus::Recovering, true, false)] {
        server.status.send_replace(status);
        assert_eq!(client.server_live(ServerLiveRequest {}).await.unwrap().into_inner().live, live);
        assert_eq!(client.server_ready(ServerReadyRequest {}).await.unwrap().into_inner().ready, ready);
    }
    server.status.send_replace(EngineStatus::Ready);
    let asked = ModelReadyRequest { name: "bytes".to_owned(), version: String::new() };
    assert!(client.model_ready(asked).await.unwrap().into_inner().ready);
    let asked = ModelReadyRequest { name: "other".to_owned(), version: String::new() };
    assert_eq!(client.model_ready(asked).await.unwrap_err().code(), Code::NotFound);
    let page = server.get("/metrics").await.body;
    let route = "route=\"/inference.GRPCInferenceService/ModelReady\"";
    assert!(page.contains(&format!("textgen_http_requests_total{{{route},status=\"404\"}} 1")), "{page}");
}

#[tokio::test]
async fn a_text_is_continued_in_typed_lists() {
    let server = Server::saying("hey");
    let mut asked = request("7", "hi ");
    asked.inputs.push(input(
        "max_tokens",
        "INT32",
        InferTensorContents { int_contents: vec![2], ..Default::default() },
    ));
    asked.parameters.insert("return_cumulative_logprob".to_owned(), flag(true));
    let answer = server.grpc().model_infer(asked).await.unwrap().into_inner();
    assert_eq!((answer.model_name.as_str(), answer.model_version.as_str(), answer.id.as_str()), ("bytes", "1", "7"));
    assert_eq!(texts(&answer), ["hi he"]);
    let contents = |place: usize| answer.outputs[place].contents.clone().unwrap();
    assert_eq!(contents(1).bytes_contents, [b"length"]);
    assert_eq!((contents(2).uint_contents, contents(3).uint_contents), (vec![4], vec![2]));
    assert_eq!(contents(4).fp32_contents, [-1.0]);
    assert!(answer.raw_output_contents.is_empty() && answer.parameters.is_empty());
}

#[tokio::test]
async fn raw_bytes_are_answered_with_raw_bytes() {
    let server = Server::saying("hey");
    let mut asked = request("", "");
    asked.inputs[0].contents = None;
    asked.raw_input_contents = vec![b"\x03\0\0\0hi ".to_vec()];
    asked.outputs.push(InferRequestedOutputTensor { name: "text_output".to_owned(), parameters: HashMap::new() });
    let answer = server.grpc().model_infer(asked.clone()).await.unwrap().into_inner();
    assert_eq!(answer.raw_output_contents, [b"\x06\0\0\0hi hey"]);
    assert!(answer.outputs[0].contents.is_none());
    asked.raw_input_contents.push(Vec::new());
    let error = server.grpc().model_infer(asked).await.unwrap_err();
    assert_eq!((error.code(), error.message().contains("2 entries for 1 inputs")), (Code::InvalidArgument, true));
}

#[tokio::test]
async fn errors_have_the_codes_of_grpc() {
    let mut server = Server::with(Settings { max_concurrent_requests: 1, ..settings() }, Patience::default());
    let refused = async |client: &mut GrpcInferenceServiceClient<Service>, asked: ModelInferRequest| {
        let error = client.model_infer(asked).await.unwrap_err();
        (error.code(), error.metadata().contains_key("retry-after"))
    };
    let mut client = server.grpc();
    let other = ModelInferRequest { model_name: "other".to_owned(), ..request("", "hi") };
    assert_eq!(refused(&mut client, other).await, (Code::NotFound, false));
    assert_eq!(refused(&mut client, streamed("", "hi")).await, (Code::InvalidArgument, false));
    assert_eq!(
        refused(&mut client, ModelInferRequest { inputs: Vec::new(), ..request("", "") }).await,
        (Code::InvalidArgument, false)
    );
    let mut bad = request("", "hi");
    bad.inputs[0].contents.as_mut().unwrap().bytes_contents = vec![vec![0xff]];
    assert_eq!(refused(&mut client, bad).await, (Code::InvalidArgument, false));
    // Longer than the payload limit, a message is not read at all.
    let large = client.model_infer(request("", &"x".repeat(5000))).await.unwrap_err();
    assert!([Code::ResourceExhausted, Code::OutOfRange].contains(&large.code()), "{large:?}");

    for (failure, code) in [
        (EngineError::Timeout, Code::DeadlineExceeded),
        (EngineError::Shard("broken".to_owned()), Code::Internal),
        (EngineError::Draining, Code::Unavailable),
    ] {
        let (mut one, mut two) = (server.grpc(), server.grpc());
        let call = tokio::spawn(async move { one.model_infer(request("", "hi")).await });
        let submission = server.submitted().await;
        assert_eq!(refused(&mut two, request("", "hi")).await, (Code::ResourceExhausted, true));
        submission.events.send(Event::Failed(failure)).await.unwrap();
        assert_eq!(call.await.unwrap().unwrap_err().code(), code);
    }
    server.status.send_replace(EngineStatus::Starting);
    assert_eq!(refused(&mut client, request("", "hi")).await, (Code::Unavailable, true));
}

#[tokio::test]
async fn metadata_and_the_deadline_make_a_standing() {
    let mut server = Server::new();
    let standing = async |server: &mut Server, headers: &[(&'static str, &'static str)]| {
        let mut asked = Request::new(request("", "hi"));
        for (name, value) in headers {
            asked.metadata_mut().insert(*name, value.parse().unwrap());
        }
        let mut client = server.grpc();
        let call = tokio::spawn(async move { client.model_infer(asked).await });
        let submission = server.submitted().await;
        drop(submission.events);
        call.await.unwrap().unwrap_err();
        submission.standing
    };
    let anonymous = standing(&mut server, &[]).await;
    assert_eq!((anonymous.tenant, anonymous.priority, anonymous.deadline), (0, 0, None));
    let known = standing(&mut server, &[("authorization", "Bearer a"), ("x-request-priority", "2")]).await;
    assert_ne!(known.tenant, 0);
    assert_eq!(known.priority, 2);
    for header in ["grpc-timeout", "x-request-timeout"] {
        assert!(
            standing(&mut server, &[(header, if header == "grpc-timeout" { "1H" } else { "60" })])
                .await
                .deadline
                .is_some()
        );
    }
    let mut asked = Request::new(request("", "hi"));
    asked.metadata_mut().insert("x-request-priority", "9".parse().unwrap());
    assert_eq!(server.grpc().model_infer(asked).await.unwrap_err().code(), Code::InvalidArgument);
}

/// All answers to these requests.
async fn answers(server: &Server, requests: Vec<ModelInferRequest>) -> Vec<ModelStreamInferResponse> {
    let mut stream = server.grpc().model_stream_infer(futures::stream::iter(requests)).await.unwrap().into_inner();
    let mut all = Vec::new();
    while let Some(answer) = stream.message().await.unwrap() {
        all.push(answer);
    }
    all
}

#[tokio::test]
async fn a_stream_answers_each_request_on_its_own() {
    let server = Server::saying("hey");
    let other = ModelInferRequest { model_name: "other".to_owned(), ..request("c", "hi") };
    let mut empty = streamed("d", "hi");
    empty.parameters.insert("triton_enable_empty_final_response".to_owned(), flag(true));
    let told = answers(&server, vec![streamed("a", "hi"), request("b", "hi"), other, empty]).await;
    let of = |id: &str| -> Vec<&ModelStreamInferResponse> {
        told.iter().filter(|answer| answer.infer_response.as_ref().unwrap().id == id).collect()
    };
    let said = |id: &str| -> Vec<(Vec<String>, bool)> {
        let answers = of(id).into_iter().map(|answer| answer.infer_response.as_ref().unwrap());
        answers.map(|answer| (texts(answer), is_last(answer))).collect()
    };
    let piece = |text: &str, last: bool| (vec![text.to_owned()], last);
    assert_eq!(said("a"), [piece("h", false), piece("e", false), piece("y", false), piece("", true)]);
    assert_eq!(said("b"), [piece("hihey", true)]);
    assert_eq!(said("c"), [(vec![], true)]);
    assert!(of("c")[0].error_message.contains("`other` is not served here"));
    let ends = [piece("h", false), piece("e", false), piece("y", false), piece("", false), (vec![], true)];
    assert_eq!(said("d"), ends);
    assert!(told.iter().all(|answer| answer.error_message.is_empty() != of("c").contains(&answer)));
}

/// A connection as the service that a client calls.
#[derive(Clone)]
pub struct Wire(pub SendRequest<tonic::body::Body>);

impl tower::Service<axum::http::Request<tonic::body::Body>> for Wire {
    type Response = axum::http::Response<Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, hyper::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: axum::http::Request<tonic::body::Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}

/// A question for the health of a service.
fn asked(service: &str) -> HealthCheckRequest {
    HealthCheckRequest { service: service.to_owned() }
}

#[tokio::test]
async fn health_is_asked_and_watched() {
    let server = Server::new();
    let mut client = HealthClient::new(grpc::health_service(server.state.clone()));
    for (state, expected) in [
        (EngineStatus::Starting, ServingStatus::NotServing),
        (EngineStatus::Recovering, ServingStatus::NotServing),
        (EngineStatus::Ready, ServingStatus::Serving),
    ] {
        server.status.send_replace(state);
        for service in ["", "inference.GRPCInferenceService"] {
            assert_eq!(client.check(asked(service)).await.unwrap().into_inner().status(), expected, "{state:?}");
        }
    }
    assert_eq!(client.check(asked("other")).await.unwrap_err().code(), Code::NotFound);
    let mut changes = client.watch(asked("")).await.unwrap().into_inner();
    let mut unknown = client.watch(asked("other")).await.unwrap().into_inner();
    assert_eq!(changes.message().await.unwrap().unwrap().status(), ServingStatus::Serving);
    assert_eq!(unknown.message().await.unwrap().unwrap().status(), ServingStatus::ServiceUnknown);
    server.status.send_replace(EngineStatus::Recovering);
    assert_eq!(changes.message().await.unwrap().unwrap().status(), ServingStatus::NotServing);
    server.status.send_replace(EngineStatus::Ready);
    assert_eq!(changes.message().await.unwrap().unwrap().status(), ServingStatus::Serving);
    server.status.send_replace(EngineStatus::Draining);
    assert_eq!(changes.message().await.unwrap().unwrap().status(), ServingStatus::NotServing);
    assert!(changes.message().await.unwrap().is_none() && unknown.message().await.unwrap().is_none());
}

#[tokio::test]
async fn a_connection_has_both_services_and_a_watcher_does_not_hold_up_the_end() {
    let live = Live::new(settings()).await;
    let stream = TokioIo::new(TcpStream::connect(live.address).await.unwrap());
    let (sender, connection) = http2::handshake(TokioExecutor::new(), stream).await.unwrap();
    tokio::spawn(connection);
    let origin: axum::http::Uri = format!("http://{}", live.address).parse().unwrap();
    let mut health = HealthClient::with_origin(Wire(sender.clone()), origin.clone());
    let mut inference = GrpcInferenceServiceClient::with_origin(Wire(sender), origin);
    assert!(inference.server_ready(ServerReadyRequest {}).await.unwrap().into_inner().ready);
    let mut changes = health.watch(asked("")).await.unwrap().into_inner();
    assert_eq!(changes.message().await.unwrap().unwrap().status(), ServingStatus::Serving);
    live.server.status.send_replace(EngineStatus::Draining);
    live.shutdown.send(()).unwrap();
    live.served.await.unwrap();
}

/// A real listener.
struct Live {
    server: Server,
    address: std::net::SocketAddr,
    shutdown: oneshot::Sender<()>,
    served: tokio::task::JoinHandle<()>,
}

impl Live {
    async fn new(settings: Settings) -> Self {
        let server = Server::with(settings, Patience::default());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (shutdown, stopped) = oneshot::channel::<()>();
        let stop = async move {
            // A sender that is gone stops the server as well.
            let _ = stopped.await;
        };
        let served = tokio::spawn(grpc::serve(listener, None, server.state.clone(), stop));
        Self { server, address, shutdown, served }
    }

    async fn client(&self) -> GrpcInferenceServiceClient<Wire> {
        let stream = TokioIo::new(TcpStream::connect(self.address).await.unwrap());
        let (sender, connection) = http2::handshake(TokioExecutor::new(), stream).await.unwrap();
        tokio::spawn(connection);
        let origin = format!("http://{}", self.address).parse().unwrap();
        GrpcInferenceServiceClient::with_origin(Wire(sender), origin)
    }
}

#[tokio::test]
async fn a_client_that_goes_cancels_what_it_asked_for() {
    let mut live = Live::new(settings()).await;
    let mut client = live.client().await;
    let call = tokio::spawn(async move { client.model_infer(request("", "hi")).await });
    let submission = live.server.submitted().await;
    call.abort();
    submission.events.closed().await;

    let mut client = live.client().await;
    let requests = futures::stream::iter([streamed("a", "hi")]);
    let opening = tokio::spawn(async move { client.model_stream_infer(requests).await });
    let submission = live.server.submitted().await;
    submission.events.send(started()).await.unwrap();
    submission.events.send(token(97)).await.unwrap();
    let mut answers = opening.await.unwrap().unwrap().into_inner();
    assert_eq!(texts(&answers.message().await.unwrap().unwrap().infer_response.unwrap()), ["a"]);
    drop(answers);
    submission.events.closed().await;
}

#[tokio::test]
async fn shutdown_lets_running_calls_finish() {
    let mut live = Live::new(settings()).await;
    let mut client = live.client().await;
    let call = tokio::spawn(async move { client.model_infer(request("", "hi")).await });
    let submission = live.server.submitted().await;
    live.shutdown.send(()).unwrap();
    for event in say("ab").into_iter().take(2) {
        submission.events.send(event).await.unwrap();
    }
    let end = match token(98) {
        Event::Token { token, .. } => {
            Event::Token { token, finish: Some(textgen_router::shard::handle::Finish::Length) }
        }
        other => other,
    };
    submission.events.send(end).await.unwrap();
    assert_eq!(texts(&call.await.unwrap().unwrap().into_inner()), ["hiab"]);
    live.served.await.unwrap();
    assert!(TcpStream::connect(live.address).await.is_err());
}

#[tokio::test]
async fn what_does_not_begin_as_http2_is_closed() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    let live = Live::new(Settings { header_timeout: 1, ..settings() }).await;
    for begun in [&b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"[..], b"PRI * HTTP/2.0\r\n"] {
        let mut connection = TcpStream::connect(live.address).await.unwrap();
        connection.write_all(begun).await.unwrap();
        // It ends, by what it said or by saying nothing more; a test that waits for ever would be stopped from outside.
        let ended = tokio::time::timeout(Duration::from_secs(60), connection.read_to_end(&mut Vec::new())).await;
        ended.expect("the connection stays open").ok();
    }
}
