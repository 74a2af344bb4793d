//! TLS of both ports: one certificate, which follows its files, and handshakes that cost others nothing.

mod certificate;
mod handshakes;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
pub use tokio_rustls::server::TlsStream;

use self::certificate::Certificate;
pub use self::certificate::TlsError;
use self::handshakes::Handshakes;
use crate::settings::Settings;

/// HTTP/2, as a handshake names it.
pub const H2: &[u8] = b"h2";
const HTTP_1_1: &[u8] = b"http/1.1";

/// What a client reads that speaks plain HTTP where TLS is spoken. Whatever version it spoke, it says this to people.
const PLAIN: &[u8] = b"HTTP/1.1 400 Bad Request\r\n\
    content-type: application/json\r\n\
    content-length: 94\r\n\
    connection: close\r\n\r\n\
    {\"error\":\"this port speaks TLS: call it by https:// instead of http://\",\"error_type\":\"no_tls\"}";
/// Bytes of such a client's request that are read before its connection is closed.
const MOST_READ: usize = 64 << 10;

/// What a connection is to carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Port {
    /// HTTP/2 or HTTP/1.1, as the client likes.
    Http,
    /// HTTP/2 alone.
    Grpc,
}

/// TLS of one server.
pub struct Tls {
    certificate: Arc<Certificate>,
    http: TlsAcceptor,
    grpc: TlsAcceptor,
    handshakes: Handshakes,
    timeout: Duration,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

impl Tls {
    /// TLS as the settings ask for it; `None` when they do not.
    ///
    /// # Errors
    /// When certificate and key are of no use, or do not belong together.
    pub fn of(settings: &Settings) -> Result<Option<Self>, TlsError> {
        let (Some(cert), Some(key)) = (&settings.tls_cert, &settings.tls_key) else { return Ok(None) };
        let certificate = Arc::new(Certificate::read(cert, key)?);
        let acceptor = |protocols: &[&[u8]]| {
            let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
            let versions = builder.with_safe_default_protocol_versions();
            let versions = versions.map_err(|error| TlsError::of_certificate(cert, error.to_string()))?;
            let mut config = versions.with_no_client_auth().with_cert_resolver(certificate.clone());
            config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
            Ok(TlsAcceptor::from(Arc::new(config)))
        };
        Ok(Some(Self {
            http: acceptor(&[H2, HTTP_1_1])?,
            grpc: acceptor(&[H2])?,
            certificate,
            // Handshakes alone never take all places of a port.
            handshakes: Handshakes::new(settings.max_tls_handshakes.min(settings.max_connections / 2)),
            timeout: Duration::from_secs(u64::from(settings.tls_handshake_timeout)),
        }))
    }

    /// Reads certificate and key again if they have changed. What cannot be used changes nothing: the log says why.
    pub fn refresh(&self) {
        self.certificate.refresh();
    }

    /// The connection once its handshake is over; `None` when it does not come to that, and is closed. The handshake counts
    /// among the others from this call on.
    pub fn accept(&self, stream: TcpStream, port: Port) -> impl Future<Output = Option<TlsStream<TcpStream>>> + use<> {
        let acceptor = match port {
            Port::Http => self.http.clone(),
            Port::Grpc => self.grpc.clone(),
        };
        let handshake = self.handshakes.run(tokio::time::timeout(self.timeout, shake(stream, acceptor)));
        async {
            let failure = match handshake.await {
                Some(Ok(Ok(stream))) => return stream,
                Some(Ok(Err(error))) => error.to_string(),
                Some(Err(_)) => "it took too long".to_owned(),
                None => "it gave way to a newer one".to_owned(),
            };
            tracing::debug!(failure, "a TLS handshake failed");
            None
        }
    }
}

async fn shake(stream: TcpStream, acceptor: TlsAcceptor) -> io::Result<Option<TlsStream<TcpStream>>> {
    let mut first = [0];
    stream.peek(&mut first).await?;
    // A method of HTTP is in capital letters; no record of TLS begins with one.
    if first[0].is_ascii_uppercase() {
        refuse(stream).await?;
        return Ok(None);
    }
    acceptor.accept(stream).await.map(Some)
}

/// Says that TLS is spoken here, to one who does not.
async fn refuse(mut stream: TcpStream) -> io::Result<()> {
    stream.write_all(PLAIN).await?;
    stream.shutdown().await?;
    // A connection that is closed with something unread is reset, and the answer with it.
    let (mut read, mut buffer) = (0, [0; 1 << 10]);
    while read < MOST_READ {
        match stream.read(&mut buffer).await? {
            0 => break,
            more => read += more,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_refusal_is_as_long_as_it_says() {
        let text = std::str::from_utf8(PLAIN).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("content-length: {}\r\n", body.len())), "{}", body.len());
        serde_json::from_str::<serde_json::Value>(body).unwrap();
    }
}
