//! gRPC's connections: HTTP/2, with TLS where HTTP has it, behind the same kind of door.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::future::Either;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http2::Connection;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::OwnedSemaphorePermit;
use tower::{Service, service_fn};
use tower_http::timeout::TimeoutBody;

use super::health::{HealthService, PATHS, health_service};
use super::service::{Server, service};
use crate::http::tls::{Port, Tls, TlsStream};
use crate::http::{AppState, Door, http2};

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
    let connection = |stream, place| {
        let (door, calls) = (Arc::clone(&door), calls.clone());
        match &tls {
            None => Either::Left(plain(stream, door, place, calls)),
            // Boxed: a connection without TLS shall not be as large as one with it.
            Some(tls) => Either::Right(Box::pin(secured(tls.accept(stream, Port::Grpc), door, place, calls))),
        }
    };
    door.serve(listener, shutdown, connection).await;
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

/// One connection without TLS.
async fn plain(stream: TcpStream, door: Arc<Door>, place: OwnedSemaphorePermit, calls: Calls) {
    answer(stream, &door, calls).await;
    drop(place);
}

/// One connection with TLS.
async fn secured(
    handshake: impl Future<Output = Option<TlsStream<TcpStream>>>,
    door: Arc<Door>,
    place: OwnedSemaphorePermit,
    calls: Calls,
) {
    if let Some(Some(stream)) = door.while_open(handshake).await {
        answer(stream, &door, calls).await;
    }
    drop(place);
}

async fn answer<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(stream: S, door: &Door, calls: Calls) {
    let Some(stream) = door.begun(stream).await else { return };
    let Calls { most, patience, service, health } = calls;
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
    let serving = http2::builder(door, most).serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
    door.drive(serving, Connection::graceful_shutdown).await;
}
