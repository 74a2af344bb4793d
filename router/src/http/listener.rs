//! Connections: accepted, tuned, bounded, and let go of one by one when the server stops.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use futures::future::Either;
use hyper::server::conn::{http1, http2 as h2};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustix::net::sockopt::set_tcp_user_timeout;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use super::http2::{self, Begun};
use super::state::AppState;
use super::tls::{H2, Port, Tls, TlsStream};

/// Samples of histograms are folded, and the files of keys and certificates looked at, this often.
const UPKEEP: Duration = Duration::from_secs(1);
/// Rest after an accept that failed: the cause (no descriptors, no memory) is rarely gone at once.
const ACCEPT_REST: Duration = Duration::from_millis(100);
/// Bytes of a request's head after which no more of it is read, and the answer is 431. What the last read brings is still
/// taken, which at most doubles them.
const MAX_HEAD: usize = 64 << 10;

/// Serves until `shutdown` ends, then lets what runs finish. Connections are tasks of the runtime: ending it stops them at once.
///
/// # Errors
/// None today: an accept that fails is tried again.
pub async fn serve(
    listener: TcpListener,
    tls: Option<Arc<Tls>>,
    state: AppState,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let upkeep = upkeep(state.clone(), tls.clone());
    let door = Arc::new(Door::new(&state));
    let calls = state.settings.max_concurrent_requests;
    let serving = door.serve(listener, tls, shutdown, App { router: super::app(state), calls });
    tokio::select! {
        () = serving => {}
        () = upkeep => {}
    }
    Ok(())
}

/// Keeps metrics small, and keys and certificates up to date, for ever.
pub async fn upkeep(state: AppState, tls: Option<Arc<Tls>>) {
    let mut ticks = tokio::time::interval(UPKEEP);
    loop {
        ticks.tick().await;
        state.metrics.run_upkeep();
        state.ring.refresh();
        if let Some(tls) = &tls {
            tls.refresh();
        }
    }
}

/// What answers the calls of a port's connections.
pub trait Answers: Clone + Send + Sync + 'static {
    /// The port, which TLS knows.
    const PORT: Port;

    /// Answers a connection from its first request to its last; `h2`: TLS has settled on HTTP/2.
    fn answer<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        self,
        stream: S,
        door: &Door,
        h2: bool,
    ) -> impl Future<Output = ()> + Send;
}

/// What all connections of a listener share.
#[derive(Debug)]
pub struct Door {
    /// A permit for each connection: there are never more, and all of them together mean that none is left.
    places: Arc<Semaphore>,
    most: u32,
    /// Within this, a connection says what it wants, or shows that it lives.
    pub head_timeout: Duration,
    /// Milliseconds that a client may leave what was sent to it untaken.
    patience: u32,
    closing: AtomicBool,
    closed: Notify,
}

impl Door {
    /// A door for as many connections as the settings allow.
    #[must_use]
    pub fn new(state: &AppState) -> Self {
        let settings = &state.settings;
        let most = settings.max_connections.clamp(1, Semaphore::MAX_PERMITS);
        Self {
            places: Arc::new(Semaphore::new(most)),
            most: u32::try_from(most).unwrap_or(u32::MAX),
            head_timeout: Duration::from_secs(u64::from(settings.header_timeout)),
            patience: settings.slow_reader_timeout.saturating_mul(1000),
            closing: AtomicBool::new(false),
            closed: Notify::new(),
        }
    }

    /// Serves until `shutdown` ends, then lets what runs finish.
    pub async fn serve(
        self: &Arc<Self>,
        listener: TcpListener,
        tls: Option<Arc<Tls>>,
        shutdown: impl Future<Output = ()>,
        answers: impl Answers,
    ) {
        tokio::select! {
            biased;
            () = shutdown => {}
            () = self.accept(&listener, tls.as_deref(), answers) => {}
        }
        drop(listener);
        self.close().await;
    }

    /// Drives a connection to its end, of which it is told by `end` when the door closes.
    pub async fn drive<C: Future<Output = hyper::Result<()>>>(&self, serving: C, end: fn(Pin<&mut C>)) {
        let mut serving = pin!(serving);
        let mut closed = pin!(self.closed.notified());
        let (mut listens, mut ending) = (false, false);
        let served = poll_fn(|context| {
            // Polled once to be woken by it; after that a flag is cheaper to look at with every token.
            if !listens {
                listens = true;
                // What it says, the flag says as well.
                let _ = closed.as_mut().poll(context);
            }
            if !ending && self.closing.load(Ordering::Acquire) {
                ending = true;
                end(serving.as_mut());
            }
            serving.as_mut().poll(context)
        })
        .await;
        if let Err(error) = served {
            tracing::debug!(%error, "a connection ended");
        }
    }

    /// A connection of HTTP/2 that has begun in time.
    pub async fn begun<S: AsyncRead + AsyncWrite + Unpin>(&self, stream: S) -> Option<Begun<S>> {
        let begun = tokio::time::timeout(self.head_timeout, http2::begun(stream));
        self.while_open(begun).await?.ok()?.ok()
    }

    /// What comes of the beginning of a connection; `None` when the door closes before it is over.
    pub async fn while_open<T>(&self, beginning: impl Future<Output = T>) -> Option<T> {
        let mut closed = pin!(self.closed.notified());
        closed.as_mut().enable();
        if self.closing.load(Ordering::Acquire) {
            return None;
        }
        tokio::select! {
            biased;
            begun = beginning => Some(begun),
            () = closed => None,
        }
    }

    /// Tells every connection to end after the answer it is at, and waits until all have.
    async fn close(&self) {
        self.closing.store(true, Ordering::Release);
        self.closed.notify_waiters();
        // The semaphore is never closed.
        let _ = self.places.acquire_many(self.most).await;
    }

    /// Accepts for ever. When every place is taken, new connections wait where the kernel queues them.
    async fn accept<A: Answers>(self: &Arc<Self>, listener: &TcpListener, tls: Option<&Tls>, answers: A) {
        loop {
            let Ok(place) = Arc::clone(&self.places).acquire_owned().await else { return };
            match listener.accept().await {
                Ok((stream, _)) => {
                    if let Err(error) = tune(&stream, self.patience) {
                        tracing::debug!(%error, "a connection does not take its options");
                    }
                    let (door, answers) = (Arc::clone(self), answers.clone());
                    tokio::spawn(match tls {
                        None => Either::Left(plain(stream, door, place, answers)),
                        // Boxed: a connection without TLS shall not be as large as one with it.
                        Some(tls) => {
                            Either::Right(Box::pin(secured(tls.accept(stream, A::PORT), door, place, answers)))
                        }
                    });
                }
                // The client has gone already.
                Err(error) if is_clients(&error) => {}
                Err(error) => {
                    tracing::error!(%error, "no connection can be accepted; trying again");
                    tokio::time::sleep(ACCEPT_REST).await;
                }
            }
        }
    }
}

fn is_clients(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// `patience`: milliseconds that a client may leave what was sent to it untaken.
fn tune(connection: &TcpStream, patience: u32) -> io::Result<()> {
    // Without it, small writes on a reused connection wait for the client's acknowledgement: 40 ms each.
    connection.set_nodelay(true)?;
    // A reader that stalls blocks its task in a write: only the kernel can see that, and end the connection.
    Ok(set_tcp_user_timeout(connection, patience)?)
}

/// One connection without TLS.
async fn plain(stream: TcpStream, door: Arc<Door>, place: OwnedSemaphorePermit, answers: impl Answers) {
    answers.answer(stream, &door, false).await;
    drop(place);
}

/// One connection with TLS.
async fn secured(
    handshake: impl Future<Output = Option<TlsStream<TcpStream>>>,
    door: Arc<Door>,
    place: OwnedSemaphorePermit,
    answers: impl Answers,
) {
    if let Some(Some(stream)) = door.while_open(handshake).await {
        let h2 = stream.get_ref().1.alpn_protocol() == Some(H2);
        answers.answer(stream, &door, h2).await;
    }
    drop(place);
}

/// All routes, of which one connection of HTTP/2 may have so many calls at once.
#[derive(Clone)]
struct App {
    router: Router,
    calls: usize,
}

impl Answers for App {
    const PORT: Port = Port::Http;

    async fn answer<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(self, stream: S, door: &Door, h2: bool) {
        if h2 {
            // Boxed: HTTP/2 is the larger of the two, and the rarer.
            Box::pin(serve_http2(stream, door, self.router, self.calls)).await;
        } else {
            serve_http1(stream, door, self.router).await;
        }
    }
}

async fn serve_http1<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(stream: S, door: &Door, app: Router) {
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(door.head_timeout)
        .max_buf_size(MAX_HEAD)
        // A token's frame is small: to copy it beside its chunk's length costs less than a write of three pieces.
        .writev(false)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(app));
    door.drive(serving, http1::Connection::graceful_shutdown).await;
}

async fn serve_http2<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    door: &Door,
    app: Router,
    calls: usize,
) {
    let Some(stream) = door.begun(stream).await else { return };
    let serving = http2::builder(door, calls).serve_connection(TokioIo::new(stream), TowerToHyperService::new(app));
    door.drive(serving, h2::Connection::graceful_shutdown).await;
}
