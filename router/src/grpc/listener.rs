//! gRPC's connections: HTTP/2 without TLS, behind the same kind of door as HTTP's.

use std::future::Future;
use std::io::{self, Cursor};
use std::sync::Arc;
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::OwnedSemaphorePermit;
use tower::{Service, service_fn};
use tower_http::timeout::TimeoutBody;

use super::health::{HealthService, PATHS, health_service};
use super::service::{Server, service};
use crate::http::{AppState, Door};

/// What an HTTP/2 connection begins with.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Most bytes of a call's headers.
const MAX_HEAD: u32 = 64 << 10;
/// The call whose requests may come one by one, with any time between them.
const STREAM: &str = "/inference.GRPCInferenceService/ModelStreamInfer";

/// Serves until `shutdown` ends, then lets what runs finish. Connections are tasks of the runtime: ending it stops them at once.
pub async fn serve(listener: TcpListener, state: AppState, shutdown: impl Future<Output = ()> + Send + 'static) {
    let door = Arc::new(Door::new(&state));
    let calls = u32::try_from(state.settings.max_concurrent_requests.max(1)).unwrap_or(u32::MAX);
    let patience = state.patience.body;
    let services = (service(state.clone()), health_service(state));
    let connection = |stream, place| connection(stream, Arc::clone(&door), place, services.clone(), calls, patience);
    door.serve(listener, shutdown, connection).await;
}

/// One connection. `calls`: how many it may carry at once; `patience`: how long one may keep silent in the middle of its request.
async fn connection(
    stream: TcpStream,
    door: Arc<Door>,
    place: OwnedSemaphorePermit,
    (service, health): (Server, HealthService),
    calls: u32,
    patience: Duration,
) {
    let Ok(Ok(stream)) = tokio::time::timeout(door.head_timeout, begun(stream)).await else { return };
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
    let serving = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .keep_alive_interval(door.head_timeout)
        .keep_alive_timeout(door.head_timeout)
        .max_concurrent_streams(calls)
        .max_header_list_size(MAX_HEAD)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
    door.drive(serving, http2::Connection::graceful_shutdown).await;
    drop(place);
}

/// The connection, once it has begun as HTTP/2 does: the library would wait for that for ever.
async fn begun(stream: TcpStream) -> io::Result<impl AsyncRead + AsyncWrite + Unpin> {
    let (mut read, write) = stream.into_split();
    let mut preface = [0; PREFACE.len()];
    read.read_exact(&mut preface).await?;
    if &preface != PREFACE {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok(tokio::io::join(Cursor::new(preface).chain(read), write))
}
