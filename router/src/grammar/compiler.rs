//! Compiling off the hot path: a few threads with deep stacks, one compilation a source, a deadline for those who wait.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use async_channel::{Receiver, Sender, TrySendError};
use tokio::sync::oneshot;

use super::cache::{Cache, Outcome};
use super::compiled::CompiledGrammar;
use super::error::GrammarError;
use super::limits::GrammarLimits;
use super::source::GrammarSource;
use super::vocabulary::Vocabulary;

/// `llguidance` reads grammars by recursion; the limits on bytes and depth keep it within this. Only what is used is paid.
const STACK: usize = 256 << 20;

type Key = blake3::Hash;

/// Compiles grammars and keeps them. Cheap to clone; the threads end with the last clone.
#[derive(Debug, Clone)]
pub struct Compiler {
    shared: Arc<Shared>,
    jobs: Sender<(Key, GrammarSource)>,
}

#[derive(Debug)]
struct Shared {
    vocabulary: Arc<Vocabulary>,
    limits: GrammarLimits,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    cache: Cache,
    /// Who waits for the sources that are being compiled.
    waiting: HashMap<Key, Vec<oneshot::Sender<Outcome>>>,
}

impl Compiler {
    /// Starts the threads.
    #[must_use]
    pub fn new(vocabulary: Arc<Vocabulary>, limits: GrammarLimits) -> Self {
        let (jobs, queue) = async_channel::bounded(limits.max_waiting_compiles.max(1));
        let state = State { cache: Cache::new(&limits), waiting: HashMap::new() };
        let shared = Arc::new(Shared { vocabulary, limits, state: Mutex::new(state) });
        for number in 0..shared.limits.compile_threads.max(1) {
            let (shared, queue) = (Arc::clone(&shared), queue.clone());
            let thread = thread::Builder::new().name(format!("grammar-{number}")).stack_size(STACK);
            if let Err(error) = thread.spawn(move || work(&shared, &queue)) {
                // With no thread at all the queue is closed, and every request is told so.
                tracing::error!(%error, "a grammar thread could not be started");
            }
        }
        Self { shared, jobs }
    }

    /// The grammar of a source: from the cache, from a compilation that is under way, or from one of its own.
    ///
    /// The deadline bounds the wait. A compilation that takes longer goes on until `llguidance`'s own limits end it, and
    /// whoever asks for the same source meanwhile joins it instead of starting another.
    ///
    /// # Errors
    /// All of [`GrammarError`]; `TooComplex` at the deadline.
    pub async fn compile(&self, source: GrammarSource) -> Outcome {
        source.check_size(&self.shared.limits)?;
        let outcome = match self.look_up(source)? {
            Found::Known(outcome) => return outcome,
            Found::Waiting(outcome) => outcome,
        };
        let patience = self.shared.limits.compile_timeout;
        match tokio::time::timeout(patience, outcome).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) => Err(stopped()),
            Err(_) => Err(GrammarError::slow(patience)),
        }
    }

    /// The model's tokens.
    #[must_use]
    pub fn vocabulary(&self) -> &Vocabulary {
        &self.shared.vocabulary
    }

    /// Grammars in the cache, and their bytes.
    #[must_use]
    pub fn cached(&self) -> (usize, usize) {
        self.shared.state().cache.size()
    }

    fn look_up(&self, source: GrammarSource) -> Result<Found, GrammarError> {
        let key = source.key();
        let (sender, outcome) = oneshot::channel();
        let mut state = self.shared.state();
        if let Some(known) = state.cache.get(&key) {
            return Ok(Found::Known(known));
        }
        if let Some(waiting) = state.waiting.get_mut(&key) {
            waiting.retain(|other| !other.is_closed());
            waiting.push(sender);
            return Ok(Found::Waiting(outcome));
        }
        self.jobs.try_send((key, source)).map_err(|error| match error {
            TrySendError::Full(_) => GrammarError::Overloaded,
            TrySendError::Closed(_) => stopped(),
        })?;
        state.waiting.insert(key, vec![sender]);
        Ok(Found::Waiting(outcome))
    }
}

enum Found {
    Known(Outcome),
    Waiting(oneshot::Receiver<Outcome>),
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing that panics runs under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn compile(&self, key: Key, source: &GrammarSource) {
        let abandoned = {
            let mut state = self.state();
            let nobody = state.waiting.get(&key).is_none_or(|waiting| waiting.iter().all(oneshot::Sender::is_closed));
            if nobody {
                state.waiting.remove(&key);
            }
            nobody
        };
        if abandoned {
            return;
        }
        let compile = || CompiledGrammar::compile(source, &self.vocabulary, &self.limits).map(Arc::new);
        let outcome = catch_unwind(AssertUnwindSafe(compile))
            .unwrap_or_else(|_| Err(GrammarError::Internal("its compiler failed".to_owned())));
        let waiting = {
            let mut state = self.state();
            state.cache.put(key, outcome.clone());
            state.waiting.remove(&key).unwrap_or_default()
        };
        for waiter in waiting {
            // It may have gone away meanwhile.
            let _ = waiter.send(outcome.clone());
        }
    }
}

fn work(shared: &Shared, queue: &Receiver<(Key, GrammarSource)>) {
    while let Ok((key, source)) = queue.recv_blocking() {
        shared.compile(key, &source);
    }
}

fn stopped() -> GrammarError {
    GrammarError::Internal("its compiler threads have stopped".to_owned())
}
