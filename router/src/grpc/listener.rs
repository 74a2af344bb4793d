//! gRPC's connections: HTTP/2, with TLS where HTTP has it, behind the same kind of door.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http2::Connection;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tower::{Service, service_fn};
use tower_http::timeout::TimeoutBody;

use super::health::{HealthService, PATHS, health_service};
use super::service::{Server, service};
use crate::http::tls::{Port, Tls};
use crate::http::{Answers, AppState, Door, http2};

/// The call whose requests may come one by one, with any time between them.
const STREAM: &str = "/inference.GRPCInferenceService/ModelStreamInfer";

/// Serves until `shutdown` ends, then lets what runs finish. Connections are tasks of the runtime: ending it stops them at once.
pub async fn serve(
    listener: TcpListener,
    tls: Option<Arc<Tls>>,
    state: AppState,
    shutdown: impl Future<Output = ()> + Send + 'static,
) {
    let door = Arc::new(Door::new(&state));
    let calls = Calls {
        most: state.settings.max_concurrent_requests,
        patience: state.patience.body,
        service: service(state.clone()),
        health: health_service(state),
    };
    door.serve(listener, tls, shutdown, calls).await;
}

/// What answers the calls of a connection.
#[derive(Clone)]
struct Calls {
    /// How many it may carry at once.
    most: usize,
    /// How long one may keep silent in the middle of its request.
    patience: Duration,
    service: Server,
    health: HealthService,
}

impl Answers for Calls {
    const PORT: Port = Port::Grpc;

    async fn answer<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(self, stream: S, door: &Door, _: bool) {
        let Some(stream) = door.begun(stream).await else { return };
        let Self { most, patience, service, health } = self;
        let service = service_fn(move |request: Request<Incoming>| {
            let (mut service, mut health) = (service.clone(), health.clone());
            async move {
                if request.uri().path() == STREAM {
                    return service.call(request).await;
                }
                let is_health = request.uri().path().starts_with(PATHS);
                let request = request.map(|body| Box::pin(TimeoutBody::new(patience, body)));
                if is_health { health.call(request).await } else { service.call(request).await }
            }
        });
        let serving =
            http2::builder(door, most).serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
        door.drive(serving, Connection::graceful_shutdown).await;
    }
}
