//! Certificate and key of the server, read again when their files change, as whoever renews them writes them.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{Error as PemError, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::{ClientHello, ResolvesServerCert};
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::{Error as RustlsError, InconsistentKeys};

use crate::http::stamp::Stamp;

const CERT: &str = "--tls-cert";
const KEY: &str = "--tls-key";
/// Largest file of certificates or of a key, in bytes.
const MAX_FILE: u64 = 1 << 20;

/// Why TLS cannot be spoken; its text names the flag and the file.
#[derive(Debug, thiserror::Error)]
#[error("{flag} {}: {reason}", .path.display())]
pub struct TlsError {
    flag: &'static str,
    path: PathBuf,
    reason: String,
}

impl TlsError {
    pub(super) fn of_certificate(path: &Path, reason: impl Into<String>) -> Self {
        Self { flag: CERT, path: path.to_owned(), reason: reason.into() }
    }

    fn of_key(path: &Path, reason: impl Into<String>) -> Self {
        Self { flag: KEY, path: path.to_owned(), reason: reason.into() }
    }
}

/// What clients are shown.
pub(super) struct Certificate {
    cert: PathBuf,
    key: PathBuf,
    shown: RwLock<Shown>,
}

struct Shown {
    /// Of both files when they were read last.
    stamps: [Stamp; 2],
    key: Arc<CertifiedKey>,
}

/// Shows nothing of the key.
impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificate").field("cert", &self.cert).finish_non_exhaustive()
    }
}

impl Certificate {
    /// The pair in two files of PEM.
    pub(super) fn read(cert: &Path, key: &Path) -> Result<Self, TlsError> {
        let shown = RwLock::new(read(cert, key)?);
        Ok(Self { cert: cert.to_owned(), key: key.to_owned(), shown })
    }

    /// Reads the pair again if a file has changed. The old one stays as long as the new one is of no use, which it also is
    /// between the writing of one file and that of the other.
    pub(super) fn refresh(&self) {
        let now = [Stamp::now(&self.cert), Stamp::now(&self.key)];
        if now == self.shown.read().unwrap_or_else(PoisonError::into_inner).stamps {
            return;
        }
        match read(&self.cert, &self.key) {
            Ok(shown) => {
                tracing::info!(path = %self.cert.display(), "read the TLS certificate again");
                *self.shown.write().unwrap_or_else(PoisonError::into_inner) = shown;
            }
            Err(error) => {
                tracing::error!(%error, "the TLS certificate stays as it was");
                // Said once for each state of the files.
                self.shown.write().unwrap_or_else(PoisonError::into_inner).stamps = now;
            }
        }
    }
}

impl ResolvesServerCert for Certificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.shown.read().unwrap_or_else(PoisonError::into_inner).key))
    }
}

fn read(cert: &Path, key: &Path) -> Result<Shown, TlsError> {
    let (cert_stamp, cert_pem) = content(cert).map_err(|reason| TlsError::of_certificate(cert, reason))?;
    let (key_stamp, key_pem) = content(key).map_err(|reason| TlsError::of_key(key, reason))?;
    let chain: Result<Vec<_>, PemError> = CertificateDer::pem_slice_iter(&cert_pem).collect();
    let chain = chain.map_err(|error| TlsError::of_certificate(cert, format!("this is no PEM: {error}")))?;
    if chain.is_empty() {
        let reason = "no certificate is in it; give a PEM file with the server's, and behind it those of its issuers";
        return Err(TlsError::of_certificate(cert, reason));
    }
    let private = PrivateKeyDer::from_pem_slice(&key_pem).map_err(|error| TlsError::of_key(key, no_key(&error)))?;
    let pair = CertifiedKey::from_der(chain, private, &ring::default_provider()).map_err(|error| match error {
        RustlsError::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
            let reason =
                format!("it is not the key of the certificate in {}; give two that belong together", cert.display());
            TlsError::of_key(key, reason)
        }
        RustlsError::InvalidCertificate(error) => {
            TlsError::of_certificate(cert, format!("the first certificate in it cannot be read ({error:?})"))
        }
        error => TlsError::of_key(
            key,
            format!("this kind of key is not supported ({error}); give one of RSA, ECDSA (P-256, P-384) or Ed25519"),
        ),
    })?;
    Ok(Shown { stamps: [cert_stamp, key_stamp], key: Arc::new(pair) })
}

fn no_key(error: &PemError) -> String {
    match error {
        PemError::NoItemsFound => {
            "no private key is in it that can be read; give a PEM file with one that needs no password".to_owned()
        }
        error => format!("this is no PEM: {error}"),
    }
}

fn content(path: &Path) -> Result<(Stamp, Vec<u8>), String> {
    let mut file = File::open(path).map_err(|error| error.to_string())?;
    let stamp = Stamp::of(&file.metadata().map_err(|error| error.to_string())?);
    let mut bytes = Vec::new();
    (&mut file).take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(format!("the file is larger than {MAX_FILE} bytes"));
    }
    Ok((stamp, bytes))
}
