//! `GET /docs`: Swagger UI over the OpenAPI document, with no file from outside.

use axum::http::{HeaderName, HeaderValue, Uri, header};
use axum::response::{IntoResponse, Response};

use super::errors::{ApiError, ErrorResponse};

/// The page may load and ask this server only.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
/// A new version of the server may have others.
const CACHED: &str = "public, max-age=3600";

/// A file of the page: its name, type, whether it is a gzip file, and its bytes.
struct File {
    name: &'static str,
    kind: &'static str,
    zipped: bool,
    bytes: &'static [u8],
}

const FILES: [File; 4] = [
    File {
        name: "swagger-ui.css",
        kind: "text/css; charset=utf-8",
        zipped: true,
        bytes: include_bytes!(concat!(env!("OUT_DIR"), "/swagger-ui.css")),
    },
    File {
        name: "swagger-ui-bundle.js",
        kind: "text/javascript; charset=utf-8",
        zipped: true,
        bytes: include_bytes!(concat!(env!("OUT_DIR"), "/swagger-ui-bundle.js")),
    },
    File {
        name: "favicon.png",
        kind: "image/png",
        zipped: false,
        bytes: include_bytes!(concat!(env!("OUT_DIR"), "/favicon-32x32.png")),
    },
    File {
        name: "start.js",
        kind: "text/javascript; charset=utf-8",
        zipped: false,
        bytes: include_bytes!("docs/start.js"),
    },
];

/// A page that shows this document and tries the routes out.
#[utoipa::path(get, path = "/docs", tag = "Operations", responses(
    (status = 200, description = "Swagger UI", body = String, content_type = "text/html"),
))]
pub async fn page() -> Response {
    answer("text/html; charset=utf-8", false, include_bytes!("docs/index.html"))
}

/// What the page at `/docs` loads. Scripts and styles are kept compressed, and sent so.
///
/// # Errors
/// `NotFound` when there is no such file.
#[utoipa::path(get, path = "/docs/{file}", tag = "Operations",
    params(("file" = String, Path, description = "Name of the file", example = "start.js")),
    responses(
        (status = 200, description = "The file", content(
            (String = "text/css"), (String = "text/javascript"), (String = "image/png"),
        )),
        (status = 404, description = "There is no such file", body = ErrorResponse),
    ),
)]
pub async fn file(uri: Uri) -> Result<Response, ApiError> {
    let name = uri.path().trim_start_matches("/docs/");
    match FILES.iter().find(|file| file.name == name) {
        Some(file) => Ok(answer(file.kind, file.zipped, file.bytes)),
        None => Err(ApiError::NotFound(format!("GET {}", uri.path()))),
    }
}

fn answer(kind: &'static str, zipped: bool, bytes: &'static [u8]) -> Response {
    let mut response = bytes.into_response();
    let headers = response.headers_mut();
    let mut set = |name: HeaderName, value| headers.insert(name, HeaderValue::from_static(value));
    set(header::CONTENT_TYPE, kind);
    set(header::CACHE_CONTROL, CACHED);
    set(header::CONTENT_SECURITY_POLICY, POLICY);
    set(header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    if zipped {
        set(header::CONTENT_ENCODING, "gzip");
    }
    response
}
