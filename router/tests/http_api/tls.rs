//! TLS of a real listener: both protocols, certificates that change, clients that stall or speak something else.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use textgen_router::grpc;
use textgen_router::grpc::proto::ServerReadyRequest;
use textgen_router::grpc::proto::grpc_inference_service_client::GrpcInferenceServiceClient;
use textgen_router::http::tls::Tls;
use textgen_router::http::{Patience, serve};
use textgen_router::settings::Settings;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::grpc::Wire;
use crate::server::{Server, say, settings};

/// A certificate of its own, trusted by who is told so, and its key.
struct Pair {
    cert: String,
    key: String,
}

impl Pair {
    fn new() -> Self {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        Self { cert: made.cert.pem(), key: made.signing_key.serialize_pem() }
    }
}

/// Two files of PEM, gone with the test.
struct Files {
    folder: PathBuf,
}

impl Files {
    fn new(pair: &Pair) -> Self {
        static LAST: AtomicUsize = AtomicUsize::new(0);
        let number = LAST.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("textgen-tls-{}-{number}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let files = Self { folder };
        files.write("cert", &pair.cert);
        files.write("key", &pair.key);
        files
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name).with_extension("pem")
    }

    /// As a careful program writes: another file in its place.
    fn write(&self, name: &str, content: &str) {
        let fresh = self.folder.join("fresh");
        std::fs::write(&fresh, content).unwrap();
        std::fs::rename(fresh, self.path(name)).unwrap();
    }

    fn settings(&self) -> Settings {
        Settings { tls_cert: Some(self.path("cert")), tls_key: Some(self.path("key")), ..settings() }
    }

    /// What is said of the files as they are.
    fn error(&self) -> String {
        Tls::of(&self.settings()).unwrap_err().to_string()
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

struct Live {
    address: SocketAddr,
    tls: Arc<Tls>,
    shutdown: oneshot::Sender<()>,
    served: JoinHandle<()>,
}

impl Live {
    async fn new(settings: Settings) -> Self {
        Self::on(settings, false).await
    }

    /// A listener for HTTP, or for gRPC.
    async fn on(settings: Settings, grpc: bool) -> Self {
        let tls = Arc::new(Tls::of(&settings).unwrap().unwrap());
        let mut server = Server::with(settings, Patience::default());
        server.script(say("hello"));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (shutdown, stopped) = oneshot::channel::<()>();
        let stop = async move {
            // A sender that is gone stops the server as well.
            let _ = stopped.await;
        };
        let own = Some(Arc::clone(&tls));
        let served = tokio::spawn(async move {
            if grpc {
                grpc::serve(listener, own, server.state, stop).await;
            } else {
                serve(listener, own, server.state, stop).await.unwrap();
            }
        });
        Self { address, tls, shutdown, served }
    }

    async fn tcp(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// A client that trusts this certificate alone and offers these protocols.
    async fn client(&self, trusted: &Pair, protocols: &[&str]) -> std::io::Result<TlsStream<TcpStream>> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(trusted.cert.as_bytes()).unwrap()).unwrap();
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let versions = builder.with_safe_default_protocol_versions().unwrap();
        let mut config = versions.with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        let name = ServerName::try_from("localhost").unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, self.tcp().await).await
    }

    /// Whether a client that trusts only this certificate is content.
    async fn shows(&self, pair: &Pair) -> bool {
        self.client(pair, &["http/1.1"]).await.is_ok()
    }
}

fn generate(authority: &str) -> Request<Full<Bytes>> {
    let body = json!({"inputs": "hi", "stream": true}).to_string();
    let request = Request::post(format!("{authority}/generate_stream")).header("host", "localhost");
    request.header("content-type", "application/json").body(Full::from(body)).unwrap()
}

#[tokio::test]
async fn a_client_gets_the_protocol_that_it_asks_for() {
    let pair = Pair::new();
    let files = Files::new(&pair);
    let live = Live::new(files.settings()).await;
    let mut answers = Vec::new();
    for protocols in [&["h2", "http/1.1"][..], &["http/1.1"], &[]] {
        let stream = live.client(&pair, protocols).await.unwrap();
        let chosen = stream.get_ref().1.alpn_protocol().map(<[u8]>::to_vec);
        assert_eq!(chosen.as_deref(), protocols.first().map(|protocol| protocol.as_bytes()));
        let stream = TokioIo::new(stream);
        let response = if chosen.as_deref() == Some(b"h2") {
            let (mut sender, connection) = http2::handshake(TokioExecutor::new(), stream).await.unwrap();
            tokio::spawn(connection);
            sender.send_request(generate("https://localhost")).await.unwrap()
        } else {
            let (mut sender, connection) = http1::handshake(stream).await.unwrap();
            tokio::spawn(connection);
            sender.send_request(generate("")).await.unwrap()
        };
        assert_eq!(response.status(), 200);
        answers.push(response.into_body().collect().await.unwrap().to_bytes());
    }
    assert!(String::from_utf8_lossy(&answers[0]).contains("\"generated_text\":\"hello\""), "{answers:?}");
    assert!(answers.iter().all(|answer| answer == &answers[0]));
}

#[tokio::test]
async fn plain_http_is_refused_in_words_it_understands() {
    let files = Files::new(&Pair::new());
    let live = Live::new(files.settings()).await;
    let mut connection = live.tcp().await;
    connection.write_all(b"POST /generate HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}").await.unwrap();
    let mut answer = String::new();
    // Ends by an end, not by a reset.
    connection.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 400 "), "{answer}");
    let body: Value = serde_json::from_str(body).unwrap();
    assert!(body["error"].as_str().unwrap().contains("https://"), "{answer}");
}

#[tokio::test]
async fn who_does_not_end_a_handshake_holds_nobody_up() {
    let pair = Pair::new();
    let files = Files::new(&pair);
    let live = Live::new(Settings { max_tls_handshakes: 2, ..files.settings() }).await;
    // The first says nothing; the others begin as a client of TLS does, and stop.
    let mut stalled = Vec::new();
    for begun in [&b""[..], b"\x16", b"\x16\x03\x01\x02\x00\x01"] {
        let mut connection = live.tcp().await;
        connection.write_all(begun).await.unwrap();
        stalled.push(connection);
    }
    for _ in 0..3 {
        assert!(live.shows(&pair).await);
    }
    // The oldest gave way long before their time was over.
    for mut connection in stalled.drain(..2) {
        assert_eq!(connection.read(&mut [0; 16]).await.unwrap_or(0), 0);
    }
    live.shutdown.send(()).unwrap();
    live.served.await.unwrap();
}

#[tokio::test]
async fn a_handshake_has_its_time() {
    let files = Files::new(&Pair::new());
    let live = Live::new(Settings { tls_handshake_timeout: 1, ..files.settings() }).await;
    assert_eq!(live.tcp().await.read(&mut [0; 16]).await.unwrap_or(0), 0);
}

#[tokio::test]
async fn shutdown_waits_for_no_handshake() {
    let files = Files::new(&Pair::new());
    let live = Live::new(Settings { tls_handshake_timeout: 86_400, ..files.settings() }).await;
    let mut stalled = live.tcp().await;
    stalled.write_all(b"\x16\x03").await.unwrap();
    live.shutdown.send(()).unwrap();
    live.served.await.unwrap();
    assert_eq!(stalled.read(&mut [0; 16]).await.unwrap_or(0), 0);
}

#[tokio::test]
async fn a_certificate_that_changes_is_followed_and_half_a_change_is_not() {
    let (old, new) = (Pair::new(), Pair::new());
    let files = Files::new(&old);
    let live = Live::new(files.settings()).await;
    assert!(live.shows(&old).await && !live.shows(&new).await);
    files.write("cert", &new.cert);
    live.tls.refresh();
    assert!(live.shows(&old).await && !live.shows(&new).await);
    files.write("key", &new.key);
    live.tls.refresh();
    assert!(live.shows(&new).await && !live.shows(&old).await);
    std::fs::remove_file(files.path("key")).unwrap();
    live.tls.refresh();
    assert!(live.shows(&new).await);
    files.write("cert", &old.cert);
    files.write("key", &old.key);
    live.tls.refresh();
    assert!(live.shows(&old).await);
}

#[tokio::test]
async fn grpc_shows_the_same_certificate_and_speaks_http2_alone() {
    let pair = Pair::new();
    let files = Files::new(&pair);
    let live = Live::on(files.settings(), true).await;
    assert!(live.client(&pair, &["http/1.1"]).await.is_err());
    let stream = live.client(&pair, &["h2"]).await.unwrap();
    let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let mut client = GrpcInferenceServiceClient::with_origin(Wire(sender), "https://localhost".parse().unwrap());
    assert!(client.server_ready(ServerReadyRequest {}).await.unwrap().into_inner().ready);
}

#[test]
fn files_that_are_of_no_use_are_named_and_what_to_do_is_said() {
    let (pair, other) = (Pair::new(), Pair::new());
    let files = Files::new(&pair);
    files.write("key", &other.key);
    let mismatch = files.error();
    assert!(mismatch.starts_with("--tls-key ") && mismatch.contains("cert.pem; give two that belong"), "{mismatch}");
    files.write("key", &pair.cert);
    assert!(files.error().contains("no private key is in it"), "{}", files.error());
    files.write("key", "-----BEGIN PRIVATE KEY-----\n!!\n-----END PRIVATE KEY-----\n");
    assert!(files.error().starts_with("--tls-key "), "{}", files.error());
    files.write("key", &pair.key);
    files.write("cert", &pair.key);
    assert!(files.error().contains("no certificate is in it"), "{}", files.error());
    files.write("cert", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    assert!(files.error().starts_with("--tls-cert "), "{}", files.error());
    std::fs::remove_file(files.path("cert")).unwrap();
    let missing = files.error();
    assert!(missing.starts_with("--tls-cert ") && missing.contains("cert.pem"), "{missing}");
    assert!(!missing.contains("PRIVATE"));
    assert!(Tls::of(&settings()).unwrap().is_none());
}
