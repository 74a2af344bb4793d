//! API keys: who may call at all, and how much each may have in the house. What is kept of a key is a hash; keys are compared in
//! constant time, and read again when their file changes.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

use axum::extract::{MatchedPath, Request, State};
use axum::http::HeaderMap;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use blake3::Hash;
use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::clouds::asks_health;
use super::errors::ApiError;
use super::gate::KeyLimits;
use super::stamp::Stamp;
use super::standing::{Inside, api_key};
use super::state::AppState;
use crate::metrics::NO_KEY;
use crate::secret::Secret;
use crate::settings::Settings;

/// The name of the key of `--api-key`, and of all keys of a file that have none.
const GIVEN: &str = "api-key";
const UNNAMED: &str = "unnamed";
/// Longest name of a key, in characters.
const MAX_NAME: usize = 64;
/// Largest file of keys, in bytes.
const MAX_FILE: u64 = 4 << 20;

/// Why keys cannot be used; its text names the file and the place.
#[derive(Debug, thiserror::Error)]
#[error("--api-key-file {}: {reason}", .path.display())]
pub struct KeyFileError {
    path: PathBuf,
    reason: String,
}

/// The keys that open the server.
pub struct KeyRing {
    /// New in each process: what is kept of a key is of no use elsewhere.
    secret: [u8; 32],
    given: Option<Entry>,
    file: Option<KeyFile>,
}

struct KeyFile {
    path: PathBuf,
    read: RwLock<Held>,
}

/// What the file held when it was read last.
struct Held {
    stamp: Stamp,
    entries: Arc<[Entry]>,
}

struct Entry {
    hash: Hash,
    admitted: Admitted,
}

/// What is known of one who was let in.
#[derive(Debug, Clone)]
pub struct Admitted {
    /// What it may have at once.
    pub limits: KeyLimits,
    /// What its key is called, in metrics and by people; never the key.
    pub name: Arc<str>,
}

impl Admitted {
    fn called(name: &str, limits: KeyLimits) -> Self {
        Self { limits, name: name.into() }
    }
}

impl Default for Admitted {
    /// One whom nobody asks for a key.
    fn default() -> Self {
        static ANYBODY: LazyLock<Arc<str>> = LazyLock::new(|| NO_KEY.into());
        Self { limits: KeyLimits::default(), name: Arc::clone(&ANYBODY) }
    }
}

/// The file, as people write it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    keys: Vec<Written>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    /// Whose it is, for people and metrics.
    name: Option<String>,
    key: Option<Secret>,
    sha256: Option<String>,
    max_requests: Option<usize>,
    max_tokens: Option<u64>,
}

/// Shows nothing of the keys.
impl fmt::Debug for KeyRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyRing").field("needed", &self.needed()).finish_non_exhaustive()
    }
}

impl KeyRing {
    /// The keys that the settings name.
    ///
    /// # Errors
    /// When the file cannot be read, or is not what it should be.
    pub fn of(settings: &Settings) -> Result<Self, KeyFileError> {
        let secret = rand::random();
        let given = settings.api_key.as_ref().map(|key| Entry {
            hash: hashed(&secret, &Sha256::digest(key.reveal().as_bytes()).into()),
            admitted: Admitted::called(GIVEN, KeyLimits::default()),
        });
        let read = |path: &PathBuf| {
            let read = read(path, &secret).map_err(|reason| KeyFileError { path: path.clone(), reason })?;
            Ok(KeyFile { path: path.clone(), read: RwLock::new(read) })
        };
        let file = settings.api_key_file.as_ref().map(read).transpose()?;
        Ok(Self { secret, given, file })
    }

    /// Whether calls need a key.
    #[must_use]
    pub const fn needed(&self) -> bool {
        self.given.is_some() || self.file.is_some()
    }

    /// What is known of the sender of these headers; nothing where no key is needed.
    ///
    /// # Errors
    /// `Unauthorized` when a key is needed and this is none.
    pub fn admit(&self, headers: &HeaderMap) -> Result<Admitted, ApiError> {
        if !self.needed() {
            return Ok(Admitted::default());
        }
        let key = api_key(headers).ok_or(ApiError::Unauthorized)?;
        let hash = hashed(&self.secret, &Sha256::digest(key).into());
        let entries = self.file.as_ref().map(|file| Arc::clone(&file.lock().entries));
        // Every entry is looked at, and `Hash` takes the same time to compare whatever it finds.
        let all = self.given.iter().chain(entries.iter().flat_map(|entries| entries.iter()));
        let found = all.fold(None, |found, entry| if entry.hash == hash { Some(&entry.admitted) } else { found });
        found.cloned().ok_or(ApiError::Unauthorized)
    }

    /// Reads the file again if it has changed. One that cannot be used changes nothing: the log says why.
    pub fn refresh(&self) {
        let Some(file) = &self.file else { return };
        if Stamp::now(&file.path) == file.lock().stamp {
            return;
        }
        match read(&file.path, &self.secret) {
            Ok(read) => {
                tracing::info!(path = %file.path.display(), keys = read.entries.len(), "read the API keys again");
                *file.read.write().unwrap_or_else(PoisonError::into_inner) = read;
            }
            Err(reason) => {
                // Said once for each state of the file.
                let now = Stamp::now(&file.path);
                let mut kept = file.read.write().unwrap_or_else(PoisonError::into_inner);
                if kept.stamp != now {
                    kept.stamp = now;
                    tracing::error!(path = %file.path.display(), reason, "the API keys stay as they were");
                }
            }
        }
    }
}

impl KeyFile {
    fn lock(&self) -> std::sync::RwLockReadGuard<'_, Held> {
        self.read.read().unwrap_or_else(PoisonError::into_inner)
    }
}

fn hashed(secret: &[u8; 32], digest: &[u8; 32]) -> Hash {
    blake3::keyed_hash(secret, digest)
}

/// The keys of a file; otherwise what is wrong with it, without a word of its content.
fn read(path: &Path, secret: &[u8; 32]) -> Result<Held, String> {
    let mut file = File::open(path).map_err(|error| error.to_string())?;
    let stamp = Stamp::of(&file.metadata().map_err(|error| error.to_string())?);
    let mut text = String::new();
    (&mut file).take(MAX_FILE + 1).read_to_string(&mut text).map_err(|error| error.to_string())?;
    if text.len() as u64 > MAX_FILE {
        return Err(format!("the file is larger than {MAX_FILE} bytes"));
    }
    let document: Document = serde_json::from_str(&text).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        format!(
            "line {line}, column {column}: not what is expected, which is {{\"keys\": [{{\"name\": …, \"key\": … or \
             \"sha256\": …, \"max_requests\": …, \"max_tokens\": …}}, …]}}"
        )
    })?;
    if document.keys.is_empty() {
        return Err("it names no key, so nobody could call; add one".to_owned());
    }
    let entries: Result<Vec<Entry>, String> = document
        .keys
        .iter()
        .enumerate()
        .map(|(index, key)| key.entry(secret).map_err(|why| format!("key {index}: {why}")))
        .collect();
    Ok(Held { stamp, entries: entries?.into() })
}

impl Written {
    fn entry(&self, secret: &[u8; 32]) -> Result<Entry, &'static str> {
        let digest: [u8; 32] = match (&self.key, &self.sha256) {
            (Some(key), None) if key.reveal().trim() != key.reveal() || key.reveal().is_empty() => {
                return Err("`key` must not be empty, nor begin or end with a space");
            }
            (Some(key), None) => Sha256::digest(key.reveal().as_bytes()).into(),
            (None, Some(hex)) => {
                from_hex(hex).ok_or("`sha256` must be the 64 hexadecimal digits that sha256sum prints")?
            }
            _ => return Err("give either `key` or `sha256`"),
        };
        if self.max_requests == Some(0) || self.max_tokens == Some(0) {
            return Err("`max_requests` and `max_tokens` must be at least 1");
        }
        let name = self.name.as_deref().unwrap_or(UNNAMED);
        if name.is_empty() || name.chars().count() > MAX_NAME {
            return Err("`name` must have from 1 to 64 characters");
        }
        let limits = KeyLimits { requests: self.max_requests, tokens: self.max_tokens };
        Ok(Entry { hash: hashed(secret, &digest), admitted: Admitted::called(name, limits) })
    }
}

fn from_hex(text: &str) -> Option<[u8; 32]> {
    let text = text.as_bytes();
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let mut digest = [0; 32];
    if text.len() != 2 * digest.len() {
        return None;
    }
    for (byte, pair) in digest.iter_mut().zip(text.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(digest)
}

/// Whether a request asks what everybody may ask: by a path of the server's, or by one that a cloud was told.
fn is_open(settings: &Settings, request: &Request) -> bool {
    let renamed = || request.extensions().get::<MatchedPath>().is_none() && asks_health(settings, request);
    matches!(request.uri().path(), "/health" | "/ping" | "/ready" | "/v2/health/live" | "/v2/health/ready") || renamed()
}

/// Lets those in who have a key. Whether the server lives may be asked by all: what watches it has none.
pub async fn required(State(state): State<AppState>, mut request: Request, next: Next) -> Response {
    if is_open(&state.settings, &request) || request.extensions().get::<Inside>().is_some() {
        return next.run(request).await;
    }
    match state.ring.admit(request.headers()) {
        Ok(admitted) => {
            request.extensions_mut().insert(admitted);
            next.run(request).await
        }
        Err(error) => error.into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: [u8; 32] = [7; 32];

    fn written(json: &str) -> Result<Vec<KeyLimits>, String> {
        let document: Document = serde_json::from_str(json).map_err(|error| error.to_string())?;
        document.keys.iter().map(|key| Ok(key.entry(&SECRET)?.admitted.limits)).collect()
    }

    #[test]
    fn a_key_is_given_by_itself_or_by_its_hash() {
        let parse = |json: &str| {
            let document: Document = serde_json::from_str(json).unwrap();
            document.keys[0].entry(&SECRET).unwrap().hash
        };
        // printf %s abc | sha256sum
        let digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let plain = parse(r#"{"keys": [{"key": "abc"}]}"#);
        assert_eq!(plain, parse(&format!(r#"{{"keys": [{{"sha256": "{digest}"}}]}}"#)));
        assert_eq!(plain, parse(&format!(r#"{{"keys": [{{"sha256": "{}"}}]}}"#, digest.to_uppercase())));
        assert_ne!(plain, parse(r#"{"keys": [{"key": "abd"}]}"#));
    }

    #[test]
    fn what_is_no_key_is_refused() {
        for (json, part) in [
            (r#"{"keys": [{"name": "a"}]}"#, "either"),
            (r#"{"keys": [{"key": "a", "sha256": "b"}]}"#, "either"),
            (r#"{"keys": [{"key": ""}]}"#, "empty"),
            (r#"{"keys": [{"key": " a"}]}"#, "space"),
            (r#"{"keys": [{"sha256": "12"}]}"#, "64 hexadecimal"),
            (r#"{"keys": [{"key": "a", "max_requests": 0}]}"#, "at least 1"),
            (r#"{"keys": [{"key": "a", "name": ""}]}"#, "1 to 64"),
            (r#"{"keys": [{"key": "a", "limit": 1}]}"#, "unknown field"),
            (r#"{"key": "a"}"#, "unknown field"),
        ] {
            let error = written(json).unwrap_err();
            assert!(error.contains(part), "{json}: {error}");
        }
        let limits = KeyLimits { requests: Some(3), tokens: Some(40) };
        assert_eq!(written(r#"{"keys": [{"key": "a", "max_requests": 3, "max_tokens": 40}]}"#), Ok(vec![limits]));
    }
}
