//! Tokens by the key that they were asked with.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use metrics::{Counter, Key, KeyName, Label, Recorder};
use metrics_exporter_prometheus::PrometheusRecorder;

use super::METADATA;

/// What calls without a key are counted under.
pub const NO_KEY: &str = "none";
const TOKENS: &str = "textgen_tokens_total";

/// Tokens by key. There are as many series as keys have names, and those are the operator's.
#[derive(Clone)]
pub struct TokenMetrics {
    recorder: Arc<PrometheusRecorder>,
    known: Arc<RwLock<BTreeMap<Box<str>, KeyTokens>>>,
}

/// Tokens of one key.
#[derive(Debug, Clone)]
pub struct KeyTokens {
    /// Of prompts that were taken.
    pub prompt: Counter,
    /// Of answers, those that were cut short too.
    pub generated: Counter,
}

impl fmt::Debug for TokenMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenMetrics").finish_non_exhaustive()
    }
}

impl TokenMetrics {
    pub(super) fn register(recorder: Arc<PrometheusRecorder>) -> Self {
        let help = "Tokens of prompts that were taken and of answers, by the name of the API key.";
        recorder.describe_counter(KeyName::from(TOKENS), None, help.into());
        let metrics = Self { recorder, known: Arc::default() };
        let _ = metrics.of(NO_KEY); // shown at zero from the start
        metrics
    }

    /// Those of the key with this name.
    #[must_use]
    pub fn of(&self, name: &str) -> KeyTokens {
        if let Some(tokens) = self.known.read().unwrap_or_else(PoisonError::into_inner).get(name) {
            return tokens.clone();
        }
        let counter = |kind: &'static str| {
            let labels = vec![Label::new("key", name.to_owned()), Label::new("kind", kind)];
            self.recorder.register_counter(&Key::from_parts(TOKENS, labels), &METADATA)
        };
        let tokens = KeyTokens { prompt: counter("prompt"), generated: counter("generated") };
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        known.insert(name.into(), tokens.clone());
        tokens
    }
}
