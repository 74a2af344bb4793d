//! `grpc.health.v1`: whether requests are taken, asked once or watched.

use futures::stream::{self, BoxStream, StreamExt};
use tokio::sync::watch;
use tonic::{Request, Response, Status};

use super::health_proto::health_check_response::ServingStatus;
use super::health_proto::health_server::{Health, HealthServer};
use super::health_proto::{HealthCheckRequest, HealthCheckResponse};
use crate::http::AppState;
use crate::shard::handle::EngineStatus;

/// What the paths of its calls begin with.
pub(super) const PATHS: &str = "/grpc.health.v1.Health/";
/// What can be asked for: the server as a whole, and its services.
const SERVICES: [&str; 3] = ["", "inference.GRPCInferenceService", "grpc.health.v1.Health"];
/// Most bytes of a request, which holds a name.
const MAX_REQUEST: usize = 4 << 10;

/// The service of health as a tower service.
pub type HealthService = HealthServer<ServerHealth>;

/// The service over the stations of a server.
#[must_use]
pub fn health_service(state: AppState) -> HealthService {
    HealthService::new(ServerHealth { state }).max_decoding_message_size(MAX_REQUEST)
}

/// The health of a server, which is that of all its services.
#[derive(Debug, Clone)]
pub struct ServerHealth {
    state: AppState,
}

#[tonic::async_trait]
impl Health for ServerHealth {
    async fn check(&self, request: Request<HealthCheckRequest>) -> Result<Response<HealthCheckResponse>, Status> {
        let known = is_known(&request.into_inner().service);
        self.state.metrics.http.answered("/grpc.health.v1.Health/Check", if known { 200 } else { 404 });
        if !known {
            return Err(Status::not_found("there is no such service here; leave the name out to ask for the server"));
        }
        Ok(Response::new(told(serving(self.state.engine.status()))))
    }

    type WatchStream = BoxStream<'static, Result<HealthCheckResponse, Status>>;

    /// Ends when the server goes away, which it would otherwise hold up.
    async fn watch(&self, request: Request<HealthCheckRequest>) -> Result<Response<Self::WatchStream>, Status> {
        self.state.metrics.http.answered("/grpc.health.v1.Health/Watch", 200);
        let known = is_known(&request.into_inner().service);
        let first = Some(Watching { status: self.state.engine.watch(), told: None });
        let changes = stream::unfold(first, move |watching| async move { next(watching?, known).await });
        Ok(Response::new(changes.map(Ok).boxed()))
    }
}

struct Watching {
    status: watch::Receiver<EngineStatus>,
    told: Option<ServingStatus>,
}

/// Waits for a status that is another than what was told; with the last one nothing is watched any more.
async fn next(mut watching: Watching, known: bool) -> Option<(HealthCheckResponse, Option<Watching>)> {
    loop {
        let status = *watching.status.borrow_and_update();
        let now = if known { serving(status) } else { ServingStatus::ServiceUnknown };
        let goes = matches!(status, EngineStatus::Draining | EngineStatus::Stopped);
        if watching.told != Some(now) {
            watching.told = Some(now);
            return Some((told(now), (!goes).then_some(watching)));
        }
        if goes || watching.status.changed().await.is_err() {
            return None;
        }
    }
}

fn is_known(service: &str) -> bool {
    SERVICES.contains(&service)
}

const fn serving(status: EngineStatus) -> ServingStatus {
    match status {
        EngineStatus::Ready => ServingStatus::Serving,
        _ => ServingStatus::NotServing,
    }
}

fn told(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}
