//! A real listener: connections, hang-ups and shutdown.

use serde_json::{Value, json};
use textgen_router::http::serve;
use textgen_router::shard::handle::Event;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::server::{Server, say, started, token};

struct Live {
    server: Server,
    address: std::net::SocketAddr,
    shutdown: oneshot::Sender<()>,
    served: JoinHandle<std::io::Result<()>>,
}

impl Live {
    async fn new() -> Self {
        let server = Server::new();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (shutdown, stopped) = oneshot::channel::<()>();
        let stop = async move {
            // A sender that is gone stops the server as well.
            let _ = stopped.await;
        };
        let served = tokio::spawn(serve(listener, None, server.state.clone(), stop));
        Self { server, address, shutdown, served }
    }

    async fn post(&self, path: &str, body: &Value) -> BufReader<TcpStream> {
        let mut connection = TcpStream::connect(self.address).await.unwrap();
        let body = body.to_string();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        connection.write_all((head + &body).as_bytes()).await.unwrap();
        BufReader::new(connection)
    }
}

/// Reads up to a line that contains a text; gives everything read.
async fn read_until(connection: &mut BufReader<TcpStream>, text: &str) -> String {
    let mut all = String::new();
    while !all.contains(text) {
        assert_ne!(connection.read_line(&mut all).await.unwrap(), 0, "ended before `{text}`: {all}");
    }
    all
}

#[tokio::test]
async fn closing_a_stream_cancels_it() {
    let mut live = Live::new().await;
    let mut connection = live.post("/generate_stream", &json!({"inputs": "hi"})).await;
    let submission = live.server.submitted().await;
    submission.events.send(started()).await.unwrap();
    submission.events.send(token(97)).await.unwrap();
    read_until(&mut connection, "\"index\":1").await;
    drop(connection);
    submission.events.closed().await;
}

#[tokio::test]
async fn closing_a_plain_request_cancels_it() {
    let mut live = Live::new().await;
    let connection = live.post("/generate", &json!({"inputs": "hi"})).await;
    let submission = live.server.submitted().await;
    drop(connection);
    submission.events.closed().await;
}

#[tokio::test]
async fn shutdown_lets_running_streams_finish() {
    let mut live = Live::new().await;
    let mut connection = live.post("/v1/completions", &json!({"prompt": "hi", "stream": true})).await;
    let submission = live.server.submitted().await;
    let mut events = say("ab").into_iter();
    for event in events.by_ref().take(2) {
        submission.events.send(event).await.unwrap();
    }
    read_until(&mut connection, "\"text\":\"a\"").await;
    live.shutdown.send(()).unwrap();
    for event in events {
        let event = match event {
            Event::Token { token, .. } if token.id == crate::model::EOS => {
                Event::Token { token, finish: Some(textgen_router::shard::handle::Finish::StopToken) }
            }
            other => other,
        };
        submission.events.send(event).await.unwrap();
    }
    let mut rest = String::new();
    connection.read_to_string(&mut rest).await.unwrap();
    assert!(rest.contains("\"text\":\"b\"") && rest.contains("data: [DONE]"), "{rest}");
    live.served.await.unwrap().unwrap();
    assert!(TcpStream::connect(live.address).await.is_err());
}

#[tokio::test]
async fn a_stream_arrives_whole_over_a_connection() {
    let mut live = Live::new().await;
    live.server.script(say(&"x".repeat(30)));
    let mut connection = live.post("/generate_stream", &json!({"inputs": "hi"})).await;
    let all = read_until(&mut connection, "\"index\":31").await;
    assert!(all.starts_with("HTTP/1.1 200 OK\r\n"), "{all}");
    assert_eq!(all.matches("data: ").count(), 31);
    // The connection lives on and serves the next request.
    let next = "GET /health HTTP/1.1\r\nhost: test\r\n\r\n";
    connection.write_all(next.as_bytes()).await.unwrap();
    read_until(&mut connection, "HTTP/1.1 200 OK").await;
}
