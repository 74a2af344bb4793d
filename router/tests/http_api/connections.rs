//! Connections of a real listener: their options, their bounds.

use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, RawFd};
use std::time::Duration;

use rustix::net::sockopt::{tcp_nodelay, tcp_user_timeout};
use textgen_router::http::{Patience, serve};
use textgen_router::settings::Settings;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::server::{Server, say, settings};

struct Live {
    address: SocketAddr,
    shutdown: oneshot::Sender<()>,
    served: JoinHandle<std::io::Result<()>>,
}

impl Live {
    async fn new(settings: Settings) -> Self {
        let mut server = Server::with(settings, Patience::default());
        server.script(say("a"));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (shutdown, stopped) = oneshot::channel::<()>();
        let stop = async move {
            // A sender that is gone stops the server as well.
            let _ = stopped.await;
        };
        Self { address, shutdown, served: tokio::spawn(serve(listener, None, server.state, stop)) }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }
}

const HEALTH: &[u8] = b"GET /health HTTP/1.1\r\nhost: test\r\n\r\n";

async fn ask(connection: &mut TcpStream, request: &[u8]) -> String {
    connection.write_all(request).await.unwrap();
    let mut buffer = [0; 4096];
    let read = connection.read(&mut buffer).await.unwrap();
    String::from_utf8_lossy(&buffer[..read]).into_owned()
}

/// The other end of a connection, which this process holds as well.
fn other_end(of: &TcpStream) -> RawFd {
    let mine = of.local_addr().unwrap();
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap();
    let mut numbers = descriptors.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse::<RawFd>().ok());
    let is_it = |&number: &RawFd| {
        // SAFETY: a number that was closed meanwhile only makes the question fail.
        let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
        rustix::net::getpeername(descriptor).ok().flatten().and_then(|peer| SocketAddr::try_from(peer).ok())
            == Some(mine)
    };
    numbers.find(is_it).unwrap()
}

#[tokio::test]
async fn a_connection_waits_for_no_acknowledgement_and_for_no_stalled_reader() {
    let live = Live::new(settings()).await;
    let mut connection = live.connect().await;
    assert!(ask(&mut connection, HEALTH).await.starts_with("HTTP/1.1 200 OK\r\n"));
    // SAFETY: the connection was answered just now, so its other end is open.
    let accepted = unsafe { BorrowedFd::borrow_raw(other_end(&connection)) };
    assert!(tcp_nodelay(accepted).unwrap());
    assert_eq!(tcp_user_timeout(accepted).unwrap(), 30_000);
}

#[tokio::test]
async fn an_idle_connection_is_closed_and_its_place_is_given_on() {
    let live = Live::new(Settings { max_connections: 1, header_timeout: 1, ..settings() }).await;
    let mut idle = live.connect().await;
    let mut slow = live.connect().await;
    // The second one waits for the place of the first, whose head never comes.
    assert!(ask(&mut slow, HEALTH).await.starts_with("HTTP/1.1 200 OK\r\n"));
    assert_eq!(idle.read(&mut [0; 16]).await.unwrap_or(0), 0);
}

#[tokio::test]
async fn a_head_beyond_all_bounds_is_refused() {
    let live = Live::new(settings()).await;
    let mut connection = live.connect().await;
    let head = format!("GET /health HTTP/1.1\r\nhost: test\r\nx-long: {}\r\n\r\n", "x".repeat(256 << 10));
    // The server ends the connection while the head is still on its way: the client may see that before the answer.
    let mut answer = Vec::new();
    if connection.write_all(head.as_bytes()).await.is_ok() {
        let _ = connection.read_to_end(&mut answer).await;
    }
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 431 "), "{}", String::from_utf8_lossy(&answer));
    assert!(ask(&mut live.connect().await, HEALTH).await.starts_with("HTTP/1.1 200 OK\r\n"));
}

#[tokio::test]
async fn shutdown_ends_idle_connections_and_returns() {
    let live = Live::new(settings()).await;
    let mut connection = live.connect().await;
    assert!(ask(&mut connection, HEALTH).await.starts_with("HTTP/1.1 200 OK\r\n"));
    live.shutdown.send(()).unwrap();
    tokio::time::timeout(Duration::from_secs(30), live.served).await.unwrap().unwrap().unwrap();
    assert_eq!(connection.read(&mut [0; 16]).await.unwrap_or(0), 0);
    assert!(TcpStream::connect(live.address).await.is_err());
}
