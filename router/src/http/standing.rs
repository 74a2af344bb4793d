//! Who calls, how urgent a call is and how long it may take: from headers and body to a request's standing.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};

use super::errors::ApiError;
use super::gate::KeyLimits;
use super::keys::Admitted;
use super::state::AppState;
use crate::input::Parameters;
use crate::request::Standing;
use crate::scheduler::{CacheKey, Priority, TenantId};
use crate::traces::Trace;

/// An API key, for clients that do not send `authorization`.
pub const API_KEY: HeaderName = HeaderName::from_static("x-api-key");
/// A class of urgency, for proxies that know more than the client.
pub const PRIORITY: HeaderName = HeaderName::from_static("x-request-priority");
/// How long the call may take, waiting included.
pub const TIMEOUT: HeaderName = HeaderName::from_static("x-request-timeout");

/// The last class. The first is everybody's, so a client can only step back.
pub const LAST_PRIORITY: Priority = 3;
/// Longest `cache_salt`, in bytes.
const MAX_SALT: usize = 256;
/// Longest time a client may ask for, in seconds.
const MAX_TIMEOUT: f64 = 86_400.0;

/// Turns API keys into what may be kept of them. The secret is new in each process and never leaves it.
pub struct KeyHasher([u8; 32]);

impl KeyHasher {
    /// A hasher with a new secret.
    #[must_use]
    pub fn new() -> Self {
        Self(rand::random())
    }

    fn hash(&self, key: &[u8]) -> [u8; 32] {
        *blake3::keyed_hash(&self.0, key).as_bytes()
    }
}

impl Default for KeyHasher {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for KeyHasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyHasher").finish_non_exhaustive()
    }
}

/// What the headers say of a call.
#[derive(Clone)]
pub struct Caller {
    /// The hash of its API key; `None` is anonymous.
    key: Option<[u8; 32]>,
    admitted: Admitted,
    trace: Option<Arc<Trace>>,
    priority: Priority,
    deadline: Option<Instant>,
    waits: bool,
}

/// Marks a request that this process makes of itself; no client can.
#[derive(Debug, Clone, Copy)]
pub struct Inside;

/// Not even a hash of the key is shown.
impl fmt::Debug for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Caller").field("priority", &self.priority).finish_non_exhaustive()
    }
}

impl FromRequestParts<AppState> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, ApiError> {
        let admitted = parts.extensions.get::<Admitted>().cloned().unwrap_or_default();
        let waits = parts.extensions.get::<Inside>().is_some();
        let trace = parts.extensions.get::<Arc<Trace>>().cloned();
        Ok(Self { waits, admitted, trace, ..Self::of(&parts.headers, state)? })
    }
}

impl Caller {
    /// Who calls by these headers.
    ///
    /// # Errors
    /// `Validation` when the time or the class that they ask for is none.
    pub fn of(headers: &HeaderMap, state: &AppState) -> Result<Self, ApiError> {
        let asked = headers.get(TIMEOUT).map(|value| timeout(value.as_bytes())).transpose()?;
        // Without a wish of its own, a call may take what any may.
        let most = state.settings.max_request_timeout.and_then(|most| Duration::try_from_secs_f64(most).ok());
        let patience = asked.map_or(most, |asked| Some(most.map_or(asked, |most| most.min(asked))));
        Ok(Self {
            key: api_key(headers).map(|key| state.keys.hash(key)),
            admitted: Admitted::default(),
            trace: None,
            priority: headers.get(PRIORITY).map_or(Ok(0), |value| header_priority(value.as_bytes()))?,
            deadline: patience.and_then(|patience| Instant::now().checked_add(patience)),
            waits: false,
        })
    }

    /// This process itself, which is in no hurry and has no key.
    #[must_use]
    pub fn inside() -> Self {
        Self { key: None, admitted: Admitted::default(), trace: None, priority: 0, deadline: None, waits: true }
    }

    /// Whether it would rather wait for room than be refused.
    #[must_use]
    pub const fn waits(&self) -> bool {
        self.waits
    }

    /// When the call is given up.
    #[must_use]
    pub const fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// The same caller, who gives the call up at this time at the latest.
    #[must_use]
    pub fn no_later_than(self, time: Option<Instant>) -> Self {
        Self { deadline: self.deadline.into_iter().chain(time).min(), ..self }
    }

    /// Who is to get a fair share; 0 is everyone without a key.
    #[must_use]
    pub fn tenant(&self) -> TenantId {
        self.key.map_or(0, |[a, b, c, d, e, f, g, h, ..]| TenantId::from_le_bytes([a, b, c, d, e, f, g, h]))
    }

    /// What its key may have in the house at once, where that is not what all keys may.
    #[must_use]
    pub const fn limits(&self) -> KeyLimits {
        self.admitted.limits
    }

    /// What its key is called in metrics.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.admitted.name
    }

    /// Where what becomes of the call is written down.
    #[must_use]
    pub fn trace(&self) -> Option<Arc<Trace>> {
        self.trace.clone()
    }

    /// The same caller, of whose call this is the trace.
    #[must_use]
    pub fn traced(self, trace: Option<Arc<Trace>>) -> Self {
        Self { trace, ..self }
    }

    /// The same caller, of whom so much is known.
    #[must_use]
    pub fn known_as(self, admitted: Admitted) -> Self {
        Self { admitted, ..self }
    }

    /// Whose what is kept for later is; `None` is everyone without a key.
    #[must_use]
    pub const fn owner(&self) -> Option<[u8; 32]> {
        self.key
    }

    /// What comes of some work before the call is given up.
    ///
    /// # Errors
    /// Those of the work; `Timeout` when it is not done in time, and dropped.
    pub async fn in_time<T>(&self, work: impl Future<Output = Result<T, ApiError>>) -> Result<T, ApiError> {
        let Some(deadline) = self.deadline else { return work.await };
        tokio::time::timeout_at(deadline.into(), work).await.unwrap_or(Err(ApiError::Timeout))
    }

    /// The standing of one of the call's requests.
    ///
    /// # Errors
    /// `Validation` when `priority` or `cache_salt` is out of range.
    pub fn standing(&self, parameters: &Parameters) -> Result<Standing, ApiError> {
        let asked = parameters.priority.map_or(Ok(0), |priority| class("`priority`", priority))?;
        let salt = parameters.cache_salt.as_deref();
        if salt.is_some_and(|salt| salt.is_empty() || salt.len() > MAX_SALT) {
            return Err(invalid(&format!("`cache_salt` must have from 1 to {MAX_SALT} bytes")));
        }
        let key = self.key.as_ref().map_or(&[][..], <[u8; 32]>::as_slice);
        Ok(Standing {
            tenant: self.tenant(),
            cache_key: CacheKey::of(&[key, salt.unwrap_or_default().as_bytes()]),
            priority: asked.max(self.priority),
            deadline: self.deadline,
        })
    }
}

/// The key of a call: what follows `Bearer`, or another scheme as a whole, or `x-api-key`.
pub(super) fn api_key(headers: &HeaderMap) -> Option<&[u8]> {
    let given = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
    let bearer = given.map(|value| match value.split_at_checked(7) {
        Some((scheme, key)) if scheme.eq_ignore_ascii_case(b"bearer ") => key.trim_ascii(),
        _ => value,
    });
    bearer.or_else(|| headers.get(API_KEY).map(HeaderValue::as_bytes)).filter(|key| !key.is_empty())
}

fn invalid(sentence: &str) -> ApiError {
    ApiError::Validation(format!("Input validation error: {sentence}"))
}

fn header_priority(value: &[u8]) -> Result<Priority, ApiError> {
    let number = std::str::from_utf8(value).ok().and_then(|text| text.trim().parse().ok());
    // What is no number is out of every range.
    class("the header `x-request-priority`", number.unwrap_or(-1))
}

fn class(name: &str, priority: i64) -> Result<Priority, ApiError> {
    let class = Priority::try_from(priority).ok().filter(|class| *class <= LAST_PRIORITY);
    class.ok_or_else(|| {
        invalid(&format!("{name} must be a whole number from 0 (first, and the default) to {LAST_PRIORITY} (last)"))
    })
}

/// Reads `30`, `1.5`, `1.5s` or `250ms`.
fn timeout(value: &[u8]) -> Result<Duration, ApiError> {
    let refused = || {
        let most = MAX_TIMEOUT;
        invalid(&format!(
            "the header `x-request-timeout` must be seconds above 0 and at most {most}, such as `30`, or milliseconds, \
             such as `250ms`"
        ))
    };
    let text = std::str::from_utf8(value).map_err(|_| refused())?.trim();
    let (number, unit) = match (text.strip_suffix("ms"), text.strip_suffix('s')) {
        (Some(number), _) => (number, 1e-3),
        (None, Some(number)) => (number, 1.0),
        (None, None) => (text, 1.0),
    };
    // The parser knows signs, exponents and `inf`; the header does not.
    if !number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        return Err(refused());
    }
    let seconds = number.parse::<f64>().map_err(|_| refused())? * unit;
    let fits = seconds > 0.0 && seconds <= MAX_TIMEOUT;
    fits.then(|| Duration::from_secs_f64(seconds)).filter(|time| !time.is_zero()).ok_or_else(refused)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[tokio::test]
    async fn what_outlasts_the_deadline_is_given_up() {
        let caller = |deadline| Caller {
            key: None,
            admitted: Admitted::default(),
            trace: None,
            priority: 0,
            deadline,
            waits: false,
        };
        let past = caller(Some(Instant::now()));
        let held = std::sync::Arc::new(());
        let holder = std::sync::Arc::clone(&held);
        let endless = async move {
            let _holder = holder;
            std::future::pending::<Result<(), ApiError>>().await
        };
        assert_eq!(past.in_time(endless).await, Err(ApiError::Timeout));
        assert_eq!(std::sync::Arc::strong_count(&held), 1, "the work is dropped");
        for caller in [caller(None), caller(Instant::now().checked_add(Duration::from_secs(3600)))] {
            assert_eq!(caller.in_time(async { Ok(1) }).await, Ok(1));
            assert_eq!(caller.in_time(async { Err::<(), _>(ApiError::Draining) }).await, Err(ApiError::Draining));
        }
    }

    #[test]
    fn timeouts() {
        for (text, milliseconds) in [("30", 30_000), ("1.5", 1_500), ("2s", 2_000), ("250ms", 250), (" 1 ", 1_000)] {
            assert_eq!(timeout(text.as_bytes()), Ok(Duration::from_millis(milliseconds)), "{text}");
        }
        for text in ["", "0", "0ms", "-1", "+1", "1e3", "inf", "nan", "ms", "s", ".", "1.2.3", "86401", "1m", "1 s x"] {
            assert!(timeout(text.as_bytes()).is_err(), "{text}");
        }
        assert!(timeout(&[0xFF]).is_err());
    }

    #[test]
    fn keys() {
        let key = |pairs: &[(HeaderName, &'static str)]| {
            let headers: HeaderMap = pairs.iter().map(|(name, value)| (name.clone(), value.parse().unwrap())).collect();
            api_key(&headers).map(<[u8]>::to_vec)
        };
        let authorization = header::AUTHORIZATION;
        assert_eq!(key(&[(authorization.clone(), "Bearer a b")]).as_deref(), Some(&b"a b"[..]));
        assert_eq!(key(&[(authorization.clone(), "bearer  x ")]).as_deref(), Some(&b"x"[..]));
        assert_eq!(key(&[(authorization.clone(), "Basic x")]).as_deref(), Some(&b"Basic x"[..]));
        assert_eq!(key(&[(API_KEY, "y"), (authorization.clone(), "Bearer x")]).as_deref(), Some(&b"x"[..]));
        assert_eq!(key(&[(API_KEY, "y")]).as_deref(), Some(&b"y"[..]));
        assert_eq!(key(&[(authorization, "")]), None);
        assert_eq!(key(&[]), None);
    }

    #[test]
    fn a_key_and_a_salt_keep_prefixes_apart() {
        let hasher = KeyHasher::new();
        let standing = |key: Option<&[u8]>, salt: Option<&str>| {
            let key = key.map(|key| hasher.hash(key));
            let caller =
                Caller { key, admitted: Admitted::default(), trace: None, priority: 0, deadline: None, waits: false };
            let parameters = Parameters { cache_salt: salt.map(str::to_owned), ..Parameters::default() };
            caller.standing(&parameters).unwrap()
        };
        let all = [(None, None), (None, Some("s")), (Some(&b"k"[..]), None), (Some(&b"k"[..]), Some("s"))];
        for (place, (key, salt)) in all.into_iter().enumerate() {
            assert_eq!(standing(key, salt), standing(key, salt));
            for (other, otherwise) in &all[..place] {
                assert_ne!(standing(key, salt).cache_key, standing(*other, *otherwise).cache_key);
            }
        }
        assert_eq!(standing(Some(b"k"), None).tenant, standing(Some(b"k"), Some("s")).tenant);
        assert_eq!(standing(None, None).tenant, 0);
        assert_ne!(standing(Some(b"k"), None).tenant, standing(Some(b"l"), None).tenant);
        assert_ne!(KeyHasher::new().hash(b"k"), hasher.hash(b"k"));
    }

    proptest! {
        #[test]
        fn no_header_breaks_the_parsers(value: Vec<u8>, priority: i64) {
            if let Ok(time) = timeout(&value) {
                prop_assert!(time > Duration::ZERO && time <= Duration::from_secs(86_400));
            }
            if let Ok(class) = header_priority(&value) {
                prop_assert!(class <= LAST_PRIORITY);
            }
            prop_assert_eq!(class("it", priority).is_ok(), (0..=i64::from(LAST_PRIORITY)).contains(&priority));
        }

        #[test]
        fn milliseconds_are_taken_as_they_are(given in 1_u64..86_400_000) {
            prop_assert_eq!(timeout(format!("{given}ms").as_bytes()).unwrap().as_millis(), u128::from(given));
        }
    }
}
