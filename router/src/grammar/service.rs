//! The grammars of a server: its model's tokens are read in the background while it starts, and every request with a grammar
//! comes here.

use std::sync::Arc;
use std::thread;

use tokio::sync::watch;

use super::compiler::Compiler;
use super::error::GrammarError;
use super::guide::Guide;
use super::limits::GrammarLimits;
use super::source::GrammarSource;
use super::thinking::{Marker, Thoughts};
use super::vocabulary::Vocabulary;
use crate::input::ModelText;

/// Makes guides of what clients want their answers to look like. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Grammars(watch::Receiver<State>);

#[derive(Debug, Clone)]
enum State {
    /// The model's tokens are being read.
    Reading,
    Ready(Compiler),
    Refused(GrammarError),
}

impl Grammars {
    /// Every grammar is refused.
    #[must_use]
    pub fn disabled() -> Self {
        Self(watch::channel(State::Refused(GrammarError::Disabled)).1)
    }

    /// Reads the model's tokens on a thread of its own; requests that come before it is done wait.
    #[must_use]
    pub fn of(model: Arc<ModelText>, limits: GrammarLimits) -> Self {
        let (told, state) = watch::channel(State::Reading);
        let read = move || {
            let state = match Vocabulary::new(&model, &limits) {
                Ok(vocabulary) => State::Ready(Compiler::new(Arc::new(vocabulary), limits)),
                Err(error) => State::Refused(error),
            };
            told.send_replace(state);
        };
        if let Err(error) = thread::Builder::new().name("vocabulary".to_owned()).spawn(read) {
            // The sender is gone with the closure, so every request is told that there are no grammars.
            tracing::error!(%error, "the thread that reads the vocabulary could not be started");
        }
        Self(state)
    }

    /// The guide of a source, compiled or known already. With `thoughts` the answer may think first.
    ///
    /// # Errors
    /// All of [`GrammarError`].
    pub async fn guide(&self, source: GrammarSource, thoughts: Option<&Thoughts>) -> Result<Guide, GrammarError> {
        let compiler = self.compiler().await?;
        let grammar = compiler.compile(source).await?;
        let marker = thoughts.and_then(|thoughts| Marker::of(thoughts, compiler.vocabulary()));
        Ok(Guide::new(grammar, marker))
    }

    async fn compiler(&self) -> Result<Compiler, GrammarError> {
        let mut state = self.0.clone();
        match state.wait_for(|state| !matches!(state, State::Reading)).await.as_deref() {
            Ok(State::Ready(compiler)) => Ok(compiler.clone()),
            Ok(State::Refused(error)) => Err(error.clone()),
            Ok(State::Reading) | Err(_) => {
                Err(GrammarError::Internal("the model's tokens could not be read".to_owned()))
            }
        }
    }
}
