//! One running server: HTTP on its own threads, the engine on another, and the handle that its owner keeps.

use std::future::Future;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};

use crate::grpc;
use crate::http::keys::KeyRing;
use crate::http::library::{Calls, Library};
use crate::http::tls::Tls;
use crate::http::{self, AppState, ShardOps};
use crate::input::{Limits, ModelText, Preparer};
use crate::metrics::Metrics;
use crate::metrics::observer::MetricsObserver;
use crate::output::Parsers;
use crate::settings::Settings;
use crate::shard::engine::{Attachment, Control, Engine, EngineConfig, Greeting, Lost};
use crate::shard::handle::{EngineHandle, EngineStatus};
use crate::traces::Traces;

/// Orders that may wait for the engine: an owner gives few, one after the other.
const CONTROL_BUFFER: usize = 8;
/// How long answers may take to get out when the server stops.
const FAREWELL: Duration = Duration::from_secs(2);

/// Why a server could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The model's text files or the settings are of no use.
    #[error("{0}")]
    Invalid(String),
    /// The address cannot be listened on, or the system gives no threads.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// What the system said.
        source: io::Error,
    },
}

/// A server that listens, or that only this process calls. It ends when it is stopped or dropped.
#[derive(Debug)]
pub struct Server {
    address: Option<SocketAddr>,
    library: Library,
    state: AppState,
    control: mpsc::Sender<Control>,
    status: watch::Receiver<EngineStatus>,
    shard_ops: watch::Sender<Option<PathBuf>>,
    stop_http: watch::Sender<bool>,
    threads: Mutex<Option<Threads>>,
}

#[derive(Debug)]
struct Threads {
    http: Runtime,
    serving: tokio::task::JoinHandle<()>,
    engine: JoinHandle<()>,
}

impl Server {
    /// Loads the model's text side, listens if it is told where, and serves: 503 until a shard is attached.
    ///
    /// # Errors
    /// `Invalid` or `Io`, each one sentence.
    pub fn start(settings: Settings) -> Result<Self, StartError> {
        let invalid = |error: &dyn std::fmt::Display| StartError::Invalid(error.to_string());
        let settings = Arc::new(settings);
        let model = Arc::new(ModelText::load(&settings.model_dir).map_err(|error| invalid(&error))?);
        let parsers = parsers(&settings, &model).map_err(|error| invalid(&error))?;
        let metrics = Metrics::new(&settings).map_err(|error| invalid(&error))?;
        let ring = KeyRing::of(&settings).map_err(|error| invalid(&error))?;
        let tls = Tls::of(&settings).map_err(|error| invalid(&error))?.map(Arc::new);
        let runtime = Builder::new_multi_thread()
            .worker_threads(settings.http_threads.max(1))
            .thread_name("http")
            .enable_all()
            .build()
            .map_err(|source| StartError::Io { what: "the HTTP threads cannot be started".to_owned(), source })?;
        let traces = Traces::start(&settings, &metrics, runtime.handle()).map_err(|error| invalid(&error))?;
        let hostname = settings.hostname.as_deref();
        let listener = hostname.map(|hostname| runtime.block_on(listen(hostname, settings.port))).transpose()?;
        let address = listener.as_ref().map(TcpListener::local_addr).transpose();
        let address =
            address.map_err(|source| StartError::Io { what: "the socket has no address".to_owned(), source })?;

        let grpc = hostname.zip(settings.grpc_port);
        let grpc = grpc.map(|(hostname, port)| runtime.block_on(listen(hostname, port))).transpose()?;
        let grpc_address = grpc.as_ref().and_then(|listener| listener.local_addr().ok());

        let (control, commands) = mpsc::channel(CONTROL_BUFFER);
        let (published, status) = watch::channel(EngineStatus::Starting);
        let (handle, inbox) =
            EngineHandle::new(settings.max_concurrent_requests.max(1), status.clone(), settings.stream_buffer);
        let observer = Box::new(MetricsObserver::new(metrics.engine.clone()));
        let engine = Engine::new(engine_config(&settings), inbox, commands, published, observer);
        let engine = spawn_engine(engine)?;

        runtime.spawn(handle.bell().attend());

        let preparer = Preparer::new(Arc::clone(&model), Limits::from(&*settings));
        let (shard_ops, ops_path) = watch::channel(None);
        let shard = ShardOps::new(ops_path);
        let state = AppState::new(settings, preparer, model, parsers, handle, metrics, shard, ring, traces);
        let (stop_http, stopped) = watch::channel(false);
        let serving = match listener {
            Some(listener) => runtime.spawn(serve(listener, grpc, tls.clone(), state.clone(), stopped)),
            None => runtime.spawn(wait(state.clone(), stopped)),
        };
        let threads = Mutex::new(Some(Threads { http: runtime, serving, engine }));
        if let Some(address) = address {
            tracing::info!(%address, tls = tls.is_some(), "listening");
        }
        if let Some(grpc_address) = grpc_address {
            tracing::info!(%grpc_address, tls = tls.is_some(), "gRPC");
        }
        Ok(Self {
            address,
            library: Library::new(state.clone()),
            state,
            control,
            status,
            shard_ops,
            stop_http,
            threads,
        })
    }

    /// Where the server listens, if it does.
    #[must_use]
    pub const fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// A way for requests of this process; `None` when the server has ended.
    #[must_use]
    pub fn calls(&self) -> Option<Calls> {
        self.lock().as_ref().map(|threads| self.library.calls(threads.http.handle().clone()))
    }

    /// Gives the engine a shard; what comes back receives the shard's first words, and is told when the engine has lost it.
    ///
    /// # Errors
    /// When the engine has ended.
    pub fn attach(
        &self,
        socket: OwnedFd,
        memory: OwnedFd,
        ops_socket: PathBuf,
    ) -> Result<(Greeting, Lost), &'static str> {
        let (greeted, hello) = oneshot::channel();
        let (held, lost) = oneshot::channel();
        self.shard_ops.send_replace(Some(ops_socket));
        let attachment = Control::Attach(Attachment { socket, memory, greeted, held });
        self.control.blocking_send(attachment).map_err(|_| "the engine has ended")?;
        Ok((hello, lost))
    }

    /// The engine's state.
    #[must_use]
    pub fn status(&self) -> EngineStatus {
        *self.status.borrow()
    }

    /// Sequences accepted and not yet answered to the last byte.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        // Not by the permits: a drain takes those that are free.
        self.state.gate.present()
    }

    /// The owner says that the server serves, so many seconds after the process began, and where the time went.
    pub fn ready(&self, seconds: f64, parts: Vec<(String, f64)>) {
        self.state.metrics.lifecycle.ready(seconds, parts);
    }

    fn permits(&self) -> usize {
        self.state.settings.max_concurrent_requests.min(Semaphore::MAX_PERMITS)
    }

    /// Refuses what is new and waits until all that runs has ended, or `timeout` is over. True when all has ended.
    #[must_use]
    pub fn drain(&self, timeout: Duration) -> bool {
        if self.control.blocking_send(Control::Drain).is_err() {
            return true;
        }
        let (permits, mut status) = (Arc::clone(&self.state.permits), self.status.clone());
        let all = u32::try_from(self.permits()).unwrap_or(u32::MAX);
        // Every sequence in the house holds a permit until its answer is sent, so all of them together mean an empty house.
        let empty = async move {
            // From the first permit taken here on others find none: they have to be told why, not that there are too many.
            let told = |status: &EngineStatus| matches!(status, EngineStatus::Draining | EngineStatus::Stopped);
            let _ = tokio::time::timeout(FAREWELL, status.wait_for(told)).await;
            tokio::time::timeout(timeout, permits.acquire_many_owned(all)).await.is_ok()
        };
        self.block_on(empty).unwrap_or(true)
    }

    /// Waits for a future on the server's threads; `None` when they have ended.
    pub fn block_on<F>(&self, future: F) -> Option<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let handle = self.lock().as_ref().map(|threads| threads.http.handle().clone())?;
        let mut status = self.status.clone();
        handle.block_on(async move {
            tokio::select! {
                output = future => Some(output),
                _ = status.wait_for(|status| *status == EngineStatus::Stopped) => None,
            }
        })
    }

    /// Ends at once: requests that run fail, connections close, threads end. Calling it again does nothing.
    pub fn stop(&self) {
        let Some(Threads { http, serving, engine }) = self.lock().take() else { return };
        // The engine may be gone already; both ends are told all the same.
        let _ = self.control.try_send(Control::Stop);
        self.stop_http.send_replace(true);
        if engine.join().is_err() {
            tracing::error!("the engine ended by a panic");
        }
        // Answers that are on their way, and the errors of requests that were cut short, still get out.
        if http.block_on(async { tokio::time::timeout(FAREWELL, serving).await }).is_err() {
            tracing::warn!("connections were still open when the server stopped");
        }
        if let Some(traces) = &self.state.traces {
            // What the collector does not take in this time is lost with it.
            let _ = http.block_on(async { tokio::time::timeout(FAREWELL, traces.close()).await });
        }
        http.shutdown_background();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Threads>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The parsers that the settings name, or that the chat template shows.
fn parsers(settings: &Settings, model: &ModelText) -> Result<Parsers, String> {
    let (tools, reasoning) = (settings.tool_call_parser.as_deref(), settings.reasoning_parser.as_deref());
    let parsers = Parsers::choose(tools, reasoning, model)?;
    let calls = parsers.tools.as_ref().map(|parser| parser.kind);
    let thoughts = parsers.reasoning.as_ref().map(|parser| &parser.kind);
    tracing::info!(?calls, ?thoughts, "parsers of chat answers");
    Ok(parsers)
}

fn engine_config(settings: &Settings) -> EngineConfig {
    EngineConfig {
        max_step_tokens: settings.max_batch_prefill_tokens,
        max_running_tokens: settings.max_batch_total_tokens,
        max_sequences: settings.max_batch_size,
        target_itl: settings.target_itl_ms.map(|target| Duration::from_millis(u64::from(target))),
        max_prefill_per_stream: settings.max_prefill_per_stream.filter(|&each| each > 0),
        prefix_caching: settings.prefix_caching,
        ageing: Duration::try_from_secs_f64(settings.priority_ageing).ok().filter(|every| !every.is_zero()),
        max_passes: settings.max_passes,
        longest_prefix_first: settings.longest_prefix_first,
        max_shard_failures: settings.max_shard_failures,
        step_timeout: Duration::try_from_secs_f64(settings.shard_step_timeout).ok().filter(|limit| !limit.is_zero()),
    }
}

/// The engine has a thread and a runtime of its own: nothing that HTTP does can delay a step.
fn spawn_engine(engine: Engine) -> Result<JoinHandle<()>, StartError> {
    let failed = |source| StartError::Io { what: "the engine's thread cannot be started".to_owned(), source };
    let runtime = Builder::new_current_thread().enable_all().build().map_err(failed)?;
    std::thread::Builder::new().name("engine".to_owned()).spawn(move || runtime.block_on(engine.run())).map_err(failed)
}

async fn listen(hostname: &str, port: u16) -> Result<TcpListener, StartError> {
    let failed = |source| StartError::Io { what: format!("cannot listen on {hostname}:{port}"), source };
    let mut addresses = (hostname, port).to_socket_addrs().map_err(failed)?;
    let address = addresses.next().ok_or_else(|| failed(io::ErrorKind::AddrNotAvailable.into()))?;
    TcpListener::bind(address).await.map_err(failed)
}

async fn serve(
    listener: TcpListener,
    grpc: Option<TcpListener>,
    tls: Option<Arc<Tls>>,
    state: AppState,
    stopped: watch::Receiver<bool>,
) {
    let calls = async {
        if let Some(listener) = grpc {
            grpc::serve(listener, tls.clone(), state.clone(), told(stopped.clone())).await;
        }
    };
    let (served, ()) = tokio::join!(http::serve(listener, tls.clone(), state.clone(), told(stopped.clone())), calls);
    if let Err(error) = served {
        tracing::error!(%error, "HTTP ended");
    }
}

/// What there is to do without a listener.
async fn wait(state: AppState, stopped: watch::Receiver<bool>) {
    tokio::select! {
        () = told(stopped) => {}
        () = http::upkeep(state, None) => {}
    }
}

async fn told(mut stopped: watch::Receiver<bool>) {
    // An error means that the server is gone, which is a reason to stop as well.
    let _ = stopped.wait_for(|stop| *stop).await;
}
