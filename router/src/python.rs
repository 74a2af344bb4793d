//! What Python may call. Thin: every method releases the interpreter and calls [`Server`].

use std::ffi::CString;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyMemoryError, PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::writer::BoxMakeWriter;

use crate::http::library::{self, Reply, Task};
use crate::server::{Server, StartError};
use crate::settings::Settings;
use crate::shard::columns::unpack;
use crate::shard::engine::{Greeting, Lost, NoHello};
use crate::shard::handle::EngineStatus;
use crate::shard::protocol::Hello;
use crate::shard::steady;

/// A call that waits looks this often whether a signal came, since only the interpreter can say so.
const ATTENTION: Duration = Duration::from_millis(100);

/// A server in this process. See `_router.pyi`.
#[pyclass(module = "textgen._router", frozen)]
#[derive(Debug)]
struct Router {
    server: Server,
    hello: Mutex<Option<Greeting>>,
    lost: Mutex<Option<Lost>>,
}

#[pymethods]
impl Router {
    #[new]
    fn new(py: Python<'_>, settings: &str) -> PyResult<Self> {
        let settings: Settings = serde_json::from_str(settings)
            .map_err(|error| PyValueError::new_err(format!("the router's settings cannot be read: {error}")))?;
        let server = py.detach(|| Server::start(settings)).map_err(start_error)?;
        Ok(Self { server, hello: Mutex::new(None), lost: Mutex::new(None) })
    }

    #[getter]
    fn address(&self) -> Option<String> {
        self.server.address().map(|address| address.to_string())
    }

    fn calls(&self) -> PyResult<Calls> {
        let calls = self.server.calls().ok_or_else(|| PyRuntimeError::new_err("the server has ended"))?;
        Ok(Calls { calls })
    }

    fn attach_shard(&self, py: Python<'_>, socket_fd: RawFd, memory_fd: RawFd, ops_socket: PathBuf) -> PyResult<()> {
        let (socket, memory) = (duplicate(socket_fd)?, duplicate(memory_fd)?);
        let (hello, lost) =
            py.detach(|| self.server.attach(socket, memory, ops_socket)).map_err(PyRuntimeError::new_err)?;
        *self.hello.lock().unwrap_or_else(PoisonError::into_inner) = Some(hello);
        *self.lost.lock().unwrap_or_else(PoisonError::into_inner) = Some(lost);
        Ok(())
    }

    fn wait_ready(&self, py: Python<'_>, timeout: f64) -> PyResult<Option<String>> {
        let timeout = seconds(timeout)?;
        let hello = self.hello.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut hello) = hello else { return Err(PyRuntimeError::new_err("no shard is attached")) };
        let waited = py.detach(|| {
            self.server.block_on(async move {
                let greeted = tokio::time::timeout(timeout, &mut hello).await;
                (greeted, hello)
            })
        });
        match waited {
            None | Some((Ok(Err(_)), _)) => Err(PyRuntimeError::new_err("the engine ended before the shard was ready")),
            Some((Ok(Ok(Err(NoHello::Lost(reason)))), _)) => Err(PyRuntimeError::new_err(reason)),
            Some((Ok(Ok(Err(NoHello::Refused(reason)))), _)) => Err(PyValueError::new_err(reason)),
            Some((Ok(Ok(Ok(facts))), _)) => Ok(Some(facts_json(&facts))),
            Some((Err(_), hello)) => {
                *self.hello.lock().unwrap_or_else(PoisonError::into_inner) = Some(hello);
                Ok(None)
            }
        }
    }

    fn wait_lost(&self, py: Python<'_>, timeout: f64) -> PyResult<bool> {
        let timeout = seconds(timeout)?;
        let Some(mut lost) = self.lost.lock().unwrap_or_else(PoisonError::into_inner).take() else { return Ok(true) };
        let waited = py.detach(|| {
            self.server.block_on(async move { (tokio::time::timeout(timeout, &mut lost).await.is_ok(), lost) })
        });
        let Some((is_lost, lost)) = waited else { return Ok(true) };
        *self.lost.lock().unwrap_or_else(PoisonError::into_inner) = Some(lost).filter(|_| !is_lost);
        Ok(is_lost)
    }

    fn status(&self) -> &'static str {
        match self.server.status() {
            EngineStatus::Starting => "starting",
            EngineStatus::Ready => "ready",
            EngineStatus::Recovering => "recovering",
            EngineStatus::Draining => "draining",
            EngineStatus::Stopped => "stopped",
        }
    }

    fn in_flight(&self) -> usize {
        self.server.in_flight()
    }

    fn ready(&self, total: f64, parts: Vec<(String, f64)>) {
        self.server.ready(total, parts);
    }

    fn drain(&self, py: Python<'_>, timeout: f64) -> PyResult<bool> {
        let timeout = seconds(timeout)?;
        Ok(py.detach(|| self.server.drain(timeout)))
    }

    fn stop(&self, py: Python<'_>) {
        py.detach(|| self.server.stop());
    }
}

fn seconds(timeout: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(timeout)
        .map_err(|_| PyValueError::new_err(format!("a timeout of {timeout} seconds cannot be waited for")))
}

fn duplicate(descriptor: RawFd) -> PyResult<OwnedFd> {
    if descriptor < 0 {
        return Err(PyValueError::new_err(format!("{descriptor} is no file descriptor")));
    }
    // SAFETY: the caller holds the descriptor open during this call, and only a duplicate outlives it; a number that is not
    // open makes the duplication fail.
    let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor) };
    Ok(borrowed.try_clone_to_owned()?)
}

fn facts_json(hello: &Hello) -> String {
    serde_json::json!({
        "version": hello.version,
        "rank": hello.rank,
        "world_size": hello.world_size,
        "model": hello.model,
        "kv": hello.kv,
        "limits": hello.limits,
        "phases": hello.phases,
    })
    .to_string()
}

fn start_error(error: StartError) -> PyErr {
    match error {
        StartError::Invalid(sentence) => PyValueError::new_err(sentence),
        StartError::Io { ref source, .. } => match source.raw_os_error() {
            Some(number) => PyOSError::new_err((number, error.to_string())),
            None => PyOSError::new_err(error.to_string()),
        },
    }
}

/// Requests of this process. See `_router.pyi`.
#[pyclass(module = "textgen._router", frozen)]
#[derive(Debug)]
struct Calls {
    calls: library::Calls,
}

#[pymethods]
impl Calls {
    fn complete(&self, tag: u64, body: Vec<u8>) {
        self.calls.begin(tag, Task::Complete, body);
    }

    fn chat(&self, tag: u64, body: Vec<u8>) {
        self.calls.begin(tag, Task::Chat, body);
    }

    fn post(&self, tag: u64, path: &str, body: Vec<u8>) {
        self.calls.begin(tag, Task::Route(path), body);
    }

    fn take<'py>(&self, py: Python<'py>, timeout: f64) -> PyResult<Vec<(u64, Bound<'py, PyBytes>)>> {
        let until = Instant::now().checked_add(seconds(timeout)?);
        let replies = loop {
            let left = until.map_or(ATTENTION, |until| until.saturating_duration_since(Instant::now()));
            let replies = py.detach(|| self.calls.take(left.min(ATTENTION)));
            if !replies.is_empty() || left <= ATTENTION {
                break replies;
            }
            py.check_signals()?;
        };
        let bytes = |(tag, reply): (u64, Reply)| {
            let packed = rmp_serde::to_vec(&reply).map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
            Ok((tag, PyBytes::new(py, &packed)))
        };
        replies.into_iter().map(bytes).collect()
    }

    fn fileno(&self) -> PyResult<RawFd> {
        Ok(self.calls.mailbox().bell()?.as_raw_fd())
    }

    fn cancel(&self, py: Python<'_>) {
        py.detach(|| self.calls.cancel());
    }
}

/// Sends the router's log lines to standard output or standard error, as text or as one JSON object a line.
#[pyfunction]
#[pyo3(signature = (json, level, stderr=false))]
fn init_logging(json: bool, level: &str, stderr: bool) -> PyResult<()> {
    let out = if stderr { BoxMakeWriter::new(std::io::stderr) } else { BoxMakeWriter::new(std::io::stdout) };
    let filter = EnvFilter::try_new(level)
        .map_err(|error| PyValueError::new_err(format!("log level `{level}` cannot be used: {error}")))?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false).with_writer(out);
    let set = if json { builder.json().flatten_event(true).try_init() } else { builder.compact().try_init() };
    set.map_err(|error| PyRuntimeError::new_err(error.to_string()))
}

/// The address of `tg_api` of `csrc/cpu/include/textgen_cpu.h`. See `_router.pyi`.
#[pyfunction]
#[pyo3(signature = (isa=None))]
fn cpu_api(isa: Option<&str>) -> PyResult<usize> {
    let name = isa.map(CString::new).transpose()?;
    textgen_cpu::api(name.as_deref()).ok_or_else(|| {
        let has = textgen_cpu::isas().join(", ");
        PyValueError::new_err(format!(
            "this machine cannot run the kernels `{}`; it can run {has}",
            isa.unwrap_or_default()
        ))
    })
}

/// Makes memory for weights in the background. See `_router.pyi`.
#[pyfunction]
fn reserve_weights(bytes: u64) {
    textgen_cpu::reserve(bytes);
}

/// Memory out of the reserve. See `_router.pyi`.
#[pyclass(frozen)]
struct Room(textgen_cpu::Room);

#[pymethods]
impl Room {
    #[new]
    fn new(bytes: u64) -> PyResult<Self> {
        textgen_cpu::Room::new(bytes)
            .map(Self)
            .ok_or_else(|| PyMemoryError::new_err(format!("no memory for {bytes} bytes")))
    }

    #[getter]
    fn address(&self) -> usize {
        self.0.address()
    }
}

/// Answers steps that are as the one before. See `_router.pyi`.
#[pyclass(module = "textgen._router", frozen)]
#[derive(Debug)]
struct Follower(steady::Follower);

/// What [`Follower::answer`] gives: what is left, how many steps were answered, whether the first of what is left has to be
/// worked out, and which sequences began which page.
type Answered<'py> = (Bound<'py, PyBytes>, usize, bool, Vec<(i32, i32)>);

#[pymethods]
impl Follower {
    #[new]
    fn new(link: RawFd, bell: RawFd) -> PyResult<Self> {
        Ok(Self(steady::Follower::new(duplicate(link)?.into(), duplicate(bell)?)))
    }

    #[getter]
    fn busy_since(&self) -> Option<f64> {
        self.0.busy_since().map(|since| since as f64 * 1e-9)
    }

    fn take_times(&self) -> Vec<(usize, u64, u64, u64)> {
        let times = self.0.take_times().into_iter();
        times.map(|(count, times)| (count, times.queue_ns, times.forward_ns, times.sample_ns)).collect()
    }

    fn answer<'py>(
        &self,
        py: Python<'py>,
        pending: Vec<u8>,
        addresses: (usize, usize, usize, usize),
        segments: &[u8],
        most: usize,
        pages: (u32, u32),
    ) -> PyResult<Answered<'py>> {
        let wrong = || PyValueError::new_err("these are no segments of steps that follow one another");
        let segments = unpack::<u32>(segments).ok_or_else(wrong)?;
        let (follow, following, tokens, logprobs) = addresses;
        let last = steady::Last::new(segments, pages).ok_or_else(wrong)?;
        // SAFETY: the caller has them of `ops/cpu/model.py` and holds what they belong to; it waits for this call.
        let batch = unsafe { textgen_cpu::Following::new(follow, following, tokens, logprobs, last.count()) };
        let mut batch = Planned(batch.ok_or_else(wrong)?);
        let answered = py.detach(|| self.0.answer(pending, last, most, &mut batch));
        let begun = answered.begun.iter().map(|&[sequence, page]| (sequence, page)).collect();
        Ok((PyBytes::new(py, &answered.rest), answered.steps, answered.unsound, begun))
    }
}

/// A batch of the CPU's kernels.
struct Planned(textgen_cpu::Following);

impl steady::Batch for Planned {
    fn run(&mut self, begun: &[[i32; 2]]) -> steady::Ran {
        match self.0.run(begun) {
            textgen_cpu::Followed::Well => steady::Ran::Well,
            textgen_cpu::Followed::Unsound => steady::Ran::Unsound,
            textgen_cpu::Followed::Not => steady::Ran::Not,
        }
    }

    fn found(&self) -> (&[i64], &[f32]) {
        self.0.found()
    }
}

#[pymodule]
fn _router(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Router>()?;
    module.add_class::<Calls>()?;
    module.add_class::<Follower>()?;
    module.add_class::<Room>()?;
    module.add_function(wrap_pyfunction!(init_logging, module)?)?;
    module.add_function(wrap_pyfunction!(cpu_api, module)?)?;
    module.add_function(wrap_pyfunction!(reserve_weights, module)?)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))
}
