//! The service: every call ends in what HTTP's routes of the same protocol do.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::State;
use axum::http::HeaderMap;
use futures::stream::{self, BoxStream, StreamExt};
use tonic::{Request, Response, Status, Streaming};

use super::convert::{self, Head};
use super::deadline::deadline;
use super::proto::grpc_inference_service_server::{GrpcInferenceService, GrpcInferenceServiceServer};
use super::proto::{
    ModelInferRequest, ModelInferResponse, ModelMetadataRequest, ModelMetadataResponse, ModelReadyRequest,
    ModelReadyResponse, ModelStreamInferResponse, ServerLiveRequest, ServerLiveResponse, ServerMetadataRequest,
    ServerMetadataResponse, ServerReadyRequest, ServerReadyResponse,
};
use super::status::status;
use crate::http::AppState;
use crate::http::errors::{ApiError, Dialect};
use crate::http::generation::Running;
use crate::http::inference::answer::{self, Opened, Pieces};
use crate::http::inference::request::Asked;
use crate::http::inference::{EXTENSIONS, ModelMetadata, SERVER, check_model};
use crate::http::keys::Admitted;
use crate::http::ops;
use crate::http::standing::Caller;
use crate::traces::Trace;

/// The service as a tower service.
pub type Server = GrpcInferenceServiceServer<InferenceService>;

/// The service over the stations of a server.
#[must_use]
pub fn service(state: AppState) -> Server {
    let limit = state.settings.payload_limit;
    Server::new(InferenceService { state }).max_decoding_message_size(limit)
}

/// The protocol's calls.
#[derive(Debug, Clone)]
pub struct InferenceService {
    state: AppState,
}

type Answer<T> = Result<Response<T>, Status>;
type Answers = BoxStream<'static, Result<ModelStreamInferResponse, Status>>;

#[tonic::async_trait]
impl GrpcInferenceService for InferenceService {
    async fn server_live(&self, _: Request<ServerLiveRequest>) -> Answer<ServerLiveResponse> {
        let live = ops::health(State(self.state.clone())).await.is_ok();
        self.told("ServerLive", Ok(ServerLiveResponse { live }))
    }

    async fn server_ready(&self, _: Request<ServerReadyRequest>) -> Answer<ServerReadyResponse> {
        let ready = self.ready().await;
        self.told("ServerReady", Ok(ServerReadyResponse { ready }))
    }

    async fn model_ready(&self, request: Request<ModelReadyRequest>) -> Answer<ModelReadyResponse> {
        let admitted = self.admit(&request);
        let ModelReadyRequest { name, version } = request.into_inner();
        let known = admitted.and_then(|_| check_model(&self.state, &name, Some(&version)));
        let ready = self.ready().await;
        self.told("ModelReady", known.map(|()| ModelReadyResponse { ready }))
    }

    async fn server_metadata(&self, request: Request<ServerMetadataRequest>) -> Answer<ServerMetadataResponse> {
        let admitted = self.admit(&request);
        let facts = ServerMetadataResponse {
            name: SERVER.to_owned(),
            version: self.state.settings.version.clone(),
            extensions: EXTENSIONS.map(str::to_owned).to_vec(),
        };
        self.told("ServerMetadata", admitted.map(|_| facts))
    }

    async fn model_metadata(&self, request: Request<ModelMetadataRequest>) -> Answer<ModelMetadataResponse> {
        let admitted = self.admit(&request);
        let ModelMetadataRequest { name, version } = request.into_inner();
        let known = admitted.and_then(|_| check_model(&self.state, &name, Some(&version)));
        self.told("ModelMetadata", known.map(|()| convert::metadata(ModelMetadata::of(name))))
    }

    async fn model_infer(&self, request: Request<ModelInferRequest>) -> Answer<ModelInferResponse> {
        let headers = request.metadata().as_ref().clone();
        let until = deadline(&headers);
        let infer = async {
            let caller = self.caller(&headers)?.no_later_than(until).traced(self.trace("ModelInfer", &headers));
            let (head, asked) = self.asked(request.into_inner());
            let opened = answer::open(&self.state, caller, asked?.and_then(Asked::whole), false).await?;
            let (_, outputs) = answer::whole(&self.state, opened).await?;
            Ok(convert::answer(&head, outputs, None))
        };
        self.told("ModelInfer", infer.await)
    }

    type ModelStreamInferStream = Answers;

    async fn model_stream_infer(&self, request: Request<Streaming<ModelInferRequest>>) -> Answer<Answers> {
        let headers = request.metadata().as_ref().clone();
        let until = deadline(&headers);
        // What is wrong with the headers is wrong with every request.
        if let Err(error) = self.caller(&headers) {
            return self.told("ModelStreamInfer", Err(error));
        }
        let service = self.clone();
        // As many at once as the house may hold: more would only be refused.
        let most = self.state.settings.max_concurrent_requests.max(1);
        let answers = request.into_inner().flat_map_unordered(most, move |request| match request {
            Ok(request) => service.clone().answers(request, headers.clone(), until),
            Err(status) => stream::once(async { Err(status) }).boxed(),
        });
        self.told("ModelStreamInfer", Ok(answers.boxed()))
    }
}

impl InferenceService {
    /// What is known of who calls.
    fn admit<T>(&self, request: &Request<T>) -> Result<Admitted, ApiError> {
        self.state.ring.admit(request.metadata().as_ref())
    }

    fn caller(&self, headers: &HeaderMap) -> Result<Caller, ApiError> {
        let admitted = self.state.ring.admit(headers)?;
        Ok(Caller::of(headers, &self.state)?.known_as(admitted))
    }

    fn trace(&self, call: &str, headers: &HeaderMap) -> Option<Arc<Trace>> {
        self.state
            .traces
            .as_ref()
            .map(|traces| traces.begin(&format!("inference.GRPCInferenceService/{call}"), headers))
    }

    async fn ready(&self) -> bool {
        ops::ready(State(self.state.clone())).await.is_ok()
    }

    /// Counts an answer, as HTTP's are.
    fn told<T>(&self, call: &str, answer: Result<T, ApiError>) -> Answer<T> {
        let code = answer.as_ref().err().map_or(200, |error| error.status(Dialect::Inference).as_u16());
        self.state.metrics.http.answered(&format!("/inference.GRPCInferenceService/{call}"), code);
        answer.map(Response::new).map_err(|error| {
            if error.is_fault() {
                tracing::warn!(call, %error, "failed");
            } else {
                tracing::debug!(call, %error, "refused");
            }
            status(&error)
        })
    }

    /// What a request asks for: outside what keeps it from being one, inside what is wrong with it.
    fn asked(&self, request: ModelInferRequest) -> (Head, Result<Result<Asked, ApiError>, ApiError>) {
        let known = check_model(&self.state, &request.model_name, Some(&request.model_version));
        let (head, inference) = convert::inference(request);
        let asked = known.map(|()| {
            inference.and_then(|inference| Asked::read(inference, self.state.settings.max_client_batch_size))
        });
        (head, asked)
    }

    /// The answers to one request of a stream.
    fn answers(self, request: ModelInferRequest, headers: HeaderMap, until: Option<Instant>) -> Answers {
        let (head, asked) = self.asked(request);
        let opening = {
            let head = head.clone();
            async move {
                match self.begin(&head, asked, &headers, until).await {
                    Ok(answers) => answers,
                    Err(error) => stream::once(async move { Ok(failed(&head, &error)) }).boxed(),
                }
            }
        };
        stream::once(opening).flatten().boxed()
    }

    async fn begin(
        &self,
        head: &Head,
        asked: Result<Result<Asked, ApiError>, ApiError>,
        headers: &HeaderMap,
        until: Option<Instant>,
    ) -> Result<Answers, ApiError> {
        let caller = self.caller(headers)?.no_later_than(until).traced(self.trace("ModelStreamInfer", headers));
        let asked = asked?;
        let streamed = asked.as_ref().is_ok_and(|asked| asked.stream == Some(true));
        let empty_final = asked.as_ref().is_ok_and(|asked| asked.empty_final);
        let opened = answer::open(&self.state, caller, asked, streamed).await?;
        if streamed {
            return pieces(head, opened, empty_final);
        }
        let (_, outputs) = answer::whole(&self.state, opened).await?;
        let answer = convert::answer(head, outputs, Some(!empty_final));
        let end = empty_final.then(|| end(head));
        Ok(stream::iter([answer].into_iter().chain(end)).map(|answer| Ok(wrapped(answer))).boxed())
    }
}

/// An answer for each token. `empty_final`: whether one without a token says that it was the last, instead of the last itself.
fn pieces(head: &Head, opened: Opened, empty_final: bool) -> Result<Answers, ApiError> {
    let Opened { mut runs, form } = opened;
    let run = runs.pop().ok_or(ApiError::Incomplete)?;
    let telling = (head.clone(), Pieces::new(form, &run), run);
    Ok(stream::unfold(Some(telling), move |telling| next(telling, empty_final)).boxed())
}

type Telling = (Head, Pieces, Running);

async fn next(
    telling: Option<Telling>,
    empty_final: bool,
) -> Option<(Result<ModelStreamInferResponse, Status>, Option<Telling>)> {
    let (head, mut pieces, mut run) = telling?;
    match run.next().await {
        Some(Ok(step)) => {
            let last = !empty_final && step.finish.is_some();
            let answer = convert::answer(&head, pieces.next(step), Some(last));
            Some((Ok(wrapped(answer)), Some((head, pieces, run))))
        }
        Some(Err(error)) => Some((Ok(failed(&head, &error)), None)),
        None => empty_final.then(|| (Ok(wrapped(end(&head))), None)),
    }
}

/// The answer without a tensor that says that no other follows.
fn end(head: &Head) -> ModelInferResponse {
    convert::answer(head, Vec::new(), Some(true))
}

fn wrapped(answer: ModelInferResponse) -> ModelStreamInferResponse {
    ModelStreamInferResponse { error_message: String::new(), infer_response: Some(answer) }
}

/// The last answer to a request that fails: the stream goes on with the others.
fn failed(head: &Head, error: &ApiError) -> ModelStreamInferResponse {
    if error.is_fault() {
        tracing::warn!(%error, "a request of a stream failed");
    }
    let infer_response = Some(end(head));
    ModelStreamInferResponse { error_message: error.to_string(), infer_response }
}
