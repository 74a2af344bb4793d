//! What every handler shares.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::Semaphore;

use super::gate::Gate;
use super::keys::KeyRing;
use super::ollama::models::ModelFiles;
use super::openai::async_tools::board::Boards;
use super::responses::store::ResponseStore;
use super::shard_ops::ShardOps;
use super::standing::KeyHasher;
use crate::grammar::{GrammarLimits, Grammars};
use crate::input::{ModelText, Preparer};
use crate::metrics::Metrics;
use crate::output::Parsers;
use crate::settings::Settings;
use crate::shard::handle::EngineHandle;
use crate::traces::Traces;

/// What every handler shares. Cheap to clone.
#[derive(Debug, Clone)]
pub struct AppState(Arc<Shared>);

/// The inside of [`AppState`].
pub struct Shared {
    /// Limits and facts of the server.
    pub settings: Arc<Settings>,
    /// Validates.
    pub preparer: Preparer,
    /// Names tokens.
    pub model: Arc<ModelText>,
    /// Take answers apart.
    pub parsers: Parsers,
    /// What answers can be held to.
    pub grammars: Grammars,
    /// Generates.
    pub engine: EngineHandle,
    /// Counts.
    pub metrics: Metrics,
    /// The shard's own metrics.
    pub shard_ops: ShardOps,
    /// A permit for each sequence in the house.
    pub permits: Arc<Semaphore>,
    /// Who waits and runs, and what that may be.
    pub gate: Arc<Gate>,
    /// The keys that calls need, where they need one.
    pub ring: KeyRing,
    /// Where traces of requests go, where anywhere.
    pub traces: Option<Traces>,
    /// Makes tenants of API keys.
    pub keys: KeyHasher,
    /// How long clients may be kept waiting at the edges.
    pub patience: Patience,
    /// Responses that can be asked for again.
    pub responses: ResponseStore,
    /// Answers that take results of calls.
    pub boards: Arc<Boards>,
    /// What is known of the model's files, once somebody asked.
    pub files: OnceLock<ModelFiles>,
}

/// How long clients may be kept waiting at the edges.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// A stream opens after this even when its first token is not there: until then its errors have a status.
    pub first_token: Duration,
    /// A silent stream says that it lives, this often.
    pub keep_alive: Duration,
    /// A request body arrives within this.
    pub body: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            first_token: Duration::from_secs(10),
            keep_alive: Duration::from_secs(15),
            body: Duration::from_secs(60),
        }
    }
}

impl AppState {
    /// Joins the stations of one server.
    #[must_use]
    #[allow(clippy::too_many_arguments)] // Each is a station of its own.
    pub fn new(
        settings: Arc<Settings>,
        preparer: Preparer,
        model: Arc<ModelText>,
        parsers: Parsers,
        engine: EngineHandle,
        metrics: Metrics,
        shard_ops: ShardOps,
        ring: KeyRing,
        traces: Option<Traces>,
    ) -> Self {
        let patience = Patience::default();
        Self::with_patience(settings, preparer, model, parsers, engine, metrics, shard_ops, ring, traces, patience)
    }

    /// The same, with other waiting times.
    #[must_use]
    #[allow(clippy::too_many_arguments)] // Each is a station of its own.
    pub fn with_patience(
        settings: Arc<Settings>,
        preparer: Preparer,
        model: Arc<ModelText>,
        parsers: Parsers,
        engine: EngineHandle,
        metrics: Metrics,
        shard_ops: ShardOps,
        ring: KeyRing,
        traces: Option<Traces>,
        patience: Patience,
    ) -> Self {
        let permits = settings.max_concurrent_requests.min(Semaphore::MAX_PERMITS);
        let permits = Arc::new(Semaphore::new(permits));
        let gate = Arc::new(Gate::new(&settings));
        let grammars = if settings.disable_grammar_support {
            Grammars::disabled()
        } else {
            Grammars::of(Arc::clone(&model), GrammarLimits::from(&*settings))
        };
        let keys = KeyHasher::new();
        let responses = ResponseStore::new(&settings);
        Self(Arc::new(Shared {
            settings,
            preparer,
            model,
            parsers,
            grammars,
            engine,
            metrics,
            shard_ops,
            permits,
            gate,
            ring,
            traces,
            keys,
            patience,
            responses,
            boards: Arc::default(),
            files: OnceLock::new(),
        }))
    }
}

impl Deref for AppState {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("settings", &self.settings).finish_non_exhaustive()
    }
}
