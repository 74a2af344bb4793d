//! The shard's ops app, which answers on a Unix socket of its own.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::sync::watch;

/// A scrape waits no longer for the shard.
const WAIT: Duration = Duration::from_secs(1);
/// More than this is no page of metrics.
const MAX_BYTES: usize = 1 << 20;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Reads the shard's own metrics. The path changes with each shard; `None` is no shard.
#[derive(Debug, Clone)]
pub struct ShardOps {
    socket: watch::Receiver<Option<PathBuf>>,
}

impl ShardOps {
    /// Follows the path of the shard's socket.
    #[must_use]
    pub const fn new(socket: watch::Receiver<Option<PathBuf>>) -> Self {
        Self { socket }
    }

    /// The shard's metrics in Prometheus' text format; `None` when it cannot be asked, which is no reason to fail.
    pub async fn metrics(&self) -> Option<String> {
        let path = self.socket.borrow().clone()?;
        match tokio::time::timeout(WAIT, fetch(&path, "/metrics")).await {
            Ok(Ok(page)) => Some(page),
            Ok(Err(error)) => {
                tracing::debug!(%error, "the shard's metrics could not be read");
                None
            }
            Err(_) => {
                tracing::debug!("the shard's metrics did not arrive in time");
                None
            }
        }
    }
}

async fn fetch(socket: &Path, path: &str) -> Result<String, Failure> {
    let stream = TokioIo::new(UnixStream::connect(socket).await?);
    let (mut sender, connection) = http1::handshake(stream).await?;
    // Polled beside the request, not spawned: the connection ends with this future.
    let exchange = async {
        let request = hyper::Request::get(path)
            .header("host", "shard")
            .header("connection", "close")
            .body(Empty::<Bytes>::new())?;
        let response = sender.send_request(request).await?;
        if response.status() != hyper::StatusCode::OK {
            return Err(Failure::from(format!("status {}", response.status())));
        }
        let body = Limited::new(response.into_body(), MAX_BYTES).collect().await?;
        Ok(String::from_utf8(body.to_bytes().into())?)
    };
    tokio::pin!(exchange);
    tokio::select! {
        page = &mut exchange => page,
        // The connection may end as soon as the last byte is read; the exchange then has everything it needs.
        _ = connection => exchange.await,
    }
}
