//! The yardstick: a server that does nothing but what any server must, one write of ready bytes per token and stream.

use std::convert::Infallible;
use std::io::Read;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::serve::ListenerExt;
use axum::{Json, Router};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_stream::wrappers::WatchStream;
use tokio_stream::{Stream, StreamExt};

use crate::Outcome;
use crate::options::Options;

/// As long as the router's own event of an ordinary token.
const EVENT: &[u8] =
    b"data: {\"index\":64,\"token\":{\"id\":1234,\"text\":\" word\",\"logprob\":-1.2345678,\"special\":false},\
\"generated_text\":null,\"details\":null}\n\n";

#[derive(Deserialize)]
struct Request {
    #[allow(dead_code)] // Read as every server must, and then not needed.
    inputs: String,
    parameters: Parameters,
}

#[derive(Deserialize)]
struct Parameters {
    max_new_tokens: usize,
}

/// Serves until standard input ends. With `--step-ms`, each stream gets a token whenever a common clock ticks; else as fast as
/// it can be written.
///
/// # Errors
/// When no port is free.
pub fn run(options: &Options) -> Outcome {
    let step = options.seconds("step-ms", 0.0)? / 1000;
    let threads = options.number("threads", 1)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()?;
    let (tick, ticks) = watch::channel(0_u64);
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"))?;
    println!("{}", json!({"address": listener.local_addr()?.to_string(), "pid": std::process::id()}));
    if !step.is_zero() {
        runtime.spawn(clock(step, tick));
    }
    let state = (!step.is_zero()).then_some(ticks);
    let app = Router::new().route("/generate_stream", post(stream)).with_state(state);
    runtime.spawn(async move {
        let listener = listener.tap_io(|connection| {
            if let Err(error) = connection.set_nodelay(true) {
                eprintln!("a connection keeps its delay: {error}");
            }
        });
        axum::serve(listener, app).await
    });
    std::io::stdin().read_to_end(&mut Vec::new())?;
    runtime.shutdown_background();
    Ok(())
}

async fn clock(step: Duration, tick: watch::Sender<u64>) {
    let mut interval = tokio::time::interval(step);
    loop {
        interval.tick().await;
        tick.send_modify(|step| *step += 1);
    }
}

async fn stream(State(ticks): State<Option<watch::Receiver<u64>>>, Json(request): Json<Request>) -> Response {
    let tokens = request.parameters.max_new_tokens;
    let event = |()| Ok::<_, Infallible>(Bytes::from_static(EVENT));
    let body = match ticks {
        None => Body::from_stream(Turns { left: tokens, ready: false }.map(event)),
        Some(ticks) => Body::from_stream(WatchStream::from_changes(ticks).take(tokens).map(|_| ()).map(event)),
    };
    ([(header::CONTENT_TYPE, "text/event-stream")], body).into_response()
}

/// Ready every other time it is asked: what was ready is written before it is asked again.
struct Turns {
    left: usize,
    ready: bool,
}

impl Stream for Turns {
    type Item = ();

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<()>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        self.ready = !self.ready;
        if self.ready {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.left -= 1;
        Poll::Ready(Some(()))
    }
}
