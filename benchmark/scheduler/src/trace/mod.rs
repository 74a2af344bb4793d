//! What is asked of a server, and when: every trace is a function of its seed.

mod author;
mod kinds;

pub use kinds::{bursts, chats, day, flood, long_among_chats, multi_turn, shared_prefixes, short_many};
use textgen_router::scheduler::{Micros, TenantId, Token};

/// A second of the virtual clock.
pub const SECOND: Micros = 1_000_000;

/// When a request comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Starts {
    /// At this instant.
    At(Micros),
    /// So long after an earlier request has ended.
    After {
        /// Its place in the trace.
        request: usize,
        /// The pause between.
        pause: Micros,
    },
}

/// What a request is to its user; limits differ by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Somebody waits for the answer.
    Chat,
    /// Somebody waits for the answer to a prompt of many thousands of tokens.
    Long,
    /// Nobody waits.
    Batch,
}

/// One request, and what the model will answer.
#[derive(Debug, Clone)]
pub struct Request {
    /// When it comes.
    pub starts: Starts,
    /// What it is.
    pub class: Class,
    /// Whose it is.
    pub tenant: TenantId,
    /// Its prompt.
    pub prompt: Vec<Token>,
    /// What the model says; after the last token it is over. No policy may look at it before it is sampled.
    pub output: Vec<Token>,
    /// What the client allows: never less than it gets.
    pub max_new: u32,
}

impl Request {
    /// Tokens of the prompt.
    #[must_use]
    pub fn prompt_len(&self) -> u32 {
        self.prompt.len() as u32
    }

    /// Tokens of the answer.
    #[must_use]
    pub fn output_len(&self) -> u32 {
        self.output.len() as u32
    }

    /// The token at a position, of the prompt or the answer.
    #[must_use]
    pub fn token(&self, position: usize) -> Token {
        self.prompt.get(position).or_else(|| self.output.get(position - self.prompt.len())).copied().unwrap_or_default()
    }
}

/// A list of requests, in the order in which they come or could come first.
#[derive(Debug, Clone)]
pub struct Trace {
    /// For tables.
    pub name: String,
    /// What it was made from.
    pub seed: u64,
    /// What is asked.
    pub requests: Vec<Request>,
}

impl Trace {
    /// Tokens of all prompts.
    #[must_use]
    pub fn prompt_tokens(&self) -> u64 {
        self.requests.iter().map(|request| u64::from(request.prompt_len())).sum()
    }

    /// Tokens of all answers.
    #[must_use]
    pub fn output_tokens(&self) -> u64 {
        self.requests.iter().map(|request| u64::from(request.output_len())).sum()
    }

    /// The same requests, all there from the start: what the server does when it is never idle.
    #[must_use]
    pub fn at_once(&self) -> Self {
        let requests = self.requests.iter().cloned().map(|request| Request { starts: Starts::At(0), ..request });
        Self { name: format!("{}, all at once", self.name), seed: self.seed, requests: requests.collect() }
    }

    /// The same requests by one tenant.
    #[must_use]
    pub fn of_one_tenant(&self) -> Self {
        let requests = self.requests.iter().cloned().map(|request| Request { tenant: 0, ..request });
        Self { name: self.name.clone(), seed: self.seed, requests: requests.collect() }
    }
}
