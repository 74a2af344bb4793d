//! The collector's end of a message: one connection, one call, by gRPC or by HTTP.

use std::sync::Arc;

use axum::http::uri::{PathAndQuery, Scheme};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Request, Uri, header};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use prost::Message;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tonic::metadata::MetadataMap;

use super::TracesError;
use crate::settings::OtlpProtocol;

const ENDPOINT: &str = "--otlp-endpoint";
const HEADERS: &str = "--otlp-headers";
/// What OTLP calls its one method of traces.
const METHOD: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
/// Where a collector takes traces by HTTP.
const PATH: &str = "/v1/traces";
/// More than this is no answer of a collector.
const MAX_ANSWER: usize = 64 << 10;

pub(super) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// One that can be reached.
pub(super) struct Collector {
    /// Scheme, host and port.
    origin: Uri,
    host: String,
    port: u16,
    /// Where the scheme is `https`.
    tls: Option<(TlsConnector, ServerName<'static>)>,
    protocol: OtlpProtocol,
    path: PathAndQuery,
    headers: HeaderMap,
}

impl Collector {
    /// The collector at an address such as `http://host:4317`; `headers` are `name=value,name=value`.
    pub(super) fn at(endpoint: &str, protocol: OtlpProtocol, headers: &str) -> Result<Self, TracesError> {
        let wrong = |reason: String| TracesError { flag: ENDPOINT, reason: format!("`{endpoint}` {reason}") };
        let whole = if endpoint.contains("://") { endpoint.to_owned() } else { format!("http://{endpoint}") };
        let uri: Uri = whole.parse().map_err(|error| wrong(format!("is no address ({error})")))?;
        let secure = match uri.scheme() {
            Some(scheme) if *scheme == Scheme::HTTP => false,
            Some(scheme) if *scheme == Scheme::HTTPS => true,
            _ => return Err(wrong("must begin with http:// or https://".to_owned())),
        };
        let (Some(host), Some(authority)) = (uri.host(), uri.authority()) else {
            return Err(wrong("names no host; write it as http://HOST:PORT".to_owned()));
        };
        let usual = match (protocol, secure) {
            (_, true) => 443,
            (OtlpProtocol::Grpc, false) => 4317,
            (OtlpProtocol::Http, false) => 4318,
        };
        let given = uri.path().trim_end_matches('/');
        let path = match protocol {
            OtlpProtocol::Grpc => METHOD.to_owned(),
            OtlpProtocol::Http if given.ends_with(PATH) => given.to_owned(),
            OtlpProtocol::Http => format!("{given}{PATH}"),
        };
        let scheme = if secure { "https" } else { "http" };
        let unusable = |error: axum::http::uri::InvalidUri| wrong(format!("cannot be used ({error})"));
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        Ok(Self {
            origin: format!("{scheme}://{authority}").parse().map_err(unusable)?,
            port: uri.port_u16().unwrap_or(usual),
            tls: if secure { Some(trusting(&host, protocol).map_err(wrong)?) } else { None },
            host,
            protocol,
            path: path.parse().map_err(unusable)?,
            headers: read_headers(headers)?,
        })
    }

    /// Hands spans over; gives how many of them were not taken.
    pub(super) async fn export(&self, spans: ExportTraceServiceRequest) -> Result<u64, Failure> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        stream.set_nodelay(true)?;
        let answer = match &self.tls {
            None => self.call(stream, spans).await?,
            Some((connector, name)) => self.call(connector.connect(name.clone(), stream).await?, spans).await?,
        };
        Ok(answer.partial_success.map_or(0, |partial| u64::try_from(partial.rejected_spans).unwrap_or(0)))
    }

    async fn call<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        &self,
        stream: S,
        spans: ExportTraceServiceRequest,
    ) -> Result<ExportTraceServiceResponse, Failure> {
        match self.protocol {
            OtlpProtocol::Grpc => self.by_grpc(stream, spans).await,
            OtlpProtocol::Http => self.by_http(stream, spans).await,
        }
    }

    async fn by_grpc<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        &self,
        stream: S,
        spans: ExportTraceServiceRequest,
    ) -> Result<ExportTraceServiceResponse, Failure> {
        let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
        let exchange = async {
            let service = tower::service_fn(|request: Request<tonic::body::Body>| {
                let mut sender = sender.clone();
                async move { sender.send_request(request).await }
            });
            let mut client = tonic::client::Grpc::with_origin(service, self.origin.clone());
            client.ready().await?;
            let mut request = tonic::Request::new(spans);
            *request.metadata_mut() = MetadataMap::from_headers(self.headers.clone());
            let codec = tonic_prost::ProstCodec::default();
            let answer = client.unary(request, self.path.clone(), codec).await?;
            Ok(answer.into_inner())
        };
        beside(exchange, connection).await
    }

    async fn by_http<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        &self,
        stream: S,
        spans: ExportTraceServiceRequest,
    ) -> Result<ExportTraceServiceResponse, Failure> {
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        let exchange = async {
            let mut request = Request::post(self.path.as_str()).body(Full::<Bytes>::from(spans.encode_to_vec()))?;
            *request.headers_mut() = self.headers.clone();
            let host = self.origin.authority().map_or("", |authority| authority.as_str());
            request.headers_mut().insert(header::HOST, HeaderValue::from_str(host)?);
            let kind = HeaderValue::from_static("application/x-protobuf");
            request.headers_mut().insert(header::CONTENT_TYPE, kind);
            let response = sender.send_request(request).await?;
            if !response.status().is_success() {
                return Err(Failure::from(format!("it answers {}", response.status())));
            }
            let body = Limited::new(response.into_body(), MAX_ANSWER).collect().await?;
            Ok(ExportTraceServiceResponse::decode(body.to_bytes())?)
        };
        beside(exchange, connection).await
    }
}

/// Polls a connection beside what is exchanged over it: it ends with the exchange.
async fn beside<T>(
    exchange: impl Future<Output = Result<T, Failure>>,
    connection: impl Future<Output = hyper::Result<()>>,
) -> Result<T, Failure> {
    let mut exchange = std::pin::pin!(exchange);
    tokio::select! {
        answer = &mut exchange => answer,
        // It may end as soon as the last byte is read; the exchange then has everything it needs.
        _ = connection => exchange.await,
    }
}

/// TLS with who the system trusts.
fn trusting(host: &str, protocol: OtlpProtocol) -> Result<(TlsConnector, ServerName<'static>), String> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        return Err(
            "cannot be trusted: this system has no certificates of authorities; install ca-certificates".to_owned()
        );
    }
    let versions = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    let mut config = versions.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = match protocol {
        OtlpProtocol::Grpc => vec![b"h2".to_vec()],
        OtlpProtocol::Http => vec![b"http/1.1".to_vec()],
    };
    let name =
        ServerName::try_from(host.to_owned()).map_err(|_| "names no host that a certificate could".to_owned())?;
    Ok((TlsConnector::from(Arc::new(config)), name))
}

/// Reads `name=value,name=value`, without a word of it in an error: a value may be a key.
fn read_headers(text: &str) -> Result<HeaderMap, TracesError> {
    let mut headers = HeaderMap::new();
    for (number, pair) in text.split(',').filter(|pair| !pair.trim().is_empty()).enumerate() {
        let read = pair.split_once('=').and_then(|(name, value)| {
            let name = HeaderName::from_bytes(name.trim().as_bytes()).ok()?;
            let mut value = HeaderValue::from_str(value.trim()).ok()?;
            value.set_sensitive(true);
            Some((name, value))
        });
        let Some((name, value)) = read else {
            let reason = format!("part {} is no `name=value`; write name=value,name=value", number + 1);
            return Err(TracesError { flag: HEADERS, reason });
        };
        headers.append(name, value);
    }
    Ok(headers)
}
