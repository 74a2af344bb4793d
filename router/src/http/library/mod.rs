//! Calls from this process, without a socket: OpenAI's bodies in, tokens and texts out, or the answers of any route. They go
//! the way of all others; but where a client is refused for want of room, they wait for it.

mod mailbox;
mod reply;

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, header};
use futures::future::{FutureExt, try_join_all};
use http_body_util::BodyExt;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use tokio::runtime::Handle;
use tokio::task::JoinSet;

pub use self::mailbox::Mailbox;
pub use self::reply::{Fault, Part, PromptPart, Reply, RouteAnswer, Scored};
use super::errors::ApiError;
use super::extract::read;
use super::generation::{Admission, Completed, Running, best, share_prompt_scores};
use super::layers::REQUEST_ID;
use super::openai::answers::AnswerMessage;
use super::openai::chat::{self, Conversation};
use super::openai::types::{ChatRequest, CompletionRequest};
use super::standing::{Caller, Inside};
use super::state::AppState;

/// The way in, for this process.
#[derive(Debug, Clone)]
pub struct Library {
    state: AppState,
    routes: Router,
}

impl Library {
    /// The same stations that HTTP uses.
    #[must_use]
    pub fn new(state: AppState) -> Self {
        Self { routes: super::app(state.clone()), state }
    }

    /// A caller, whose requests run on `runtime`.
    #[must_use]
    pub fn calls(&self, runtime: Handle) -> Calls {
        let (library, mailbox) = (self.clone(), Arc::default());
        Calls { library, runtime, mailbox, running: Mutex::new(JoinSet::new()) }
    }

    /// Continues a prompt. The body is that of `/v1/completions`, of one prompt.
    async fn complete(&self, body: &[u8], letter: &Letter) -> Result<(), ApiError> {
        let body = CompletionRequest { sums_logprobs: true, ..read(body)? };
        let (answers, logprobs, streamed) = (body.answers(), body.logprobs.is_some(), body.streamed());
        let wanted = Wanted { answers, logprobs, streamed, message: false };
        let sequences = body.sequences(self.state.settings.max_choices);
        let mut admission = Admission::enter(&self.state, Caller::inside(), sequences).await?;
        let requests = body.into_generations(1).map_err(|error| admission.refuse(error))?;
        let mut runs = Vec::new();
        for request in requests {
            runs = admission.start(request).await?;
        }
        self.answer(Conversation { form: None, runs }, &wanted, letter).await
    }

    /// Continues a conversation. The body is that of `/v1/chat/completions`.
    async fn chat(&self, body: &[u8], letter: &Letter) -> Result<(), ApiError> {
        let body = ChatRequest { sums_logprobs: true, ..read(body)? };
        let (answers, logprobs, streamed) = (body.answers(), body.wants_logprobs(), body.streamed());
        let wanted = Wanted { answers, logprobs, streamed, message: true };
        let conversation = chat::open(&self.state, Caller::inside(), Ok(body)).await?;
        self.answer(conversation, &wanted, letter).await
    }

    async fn answer(&self, talk: Conversation, wanted: &Wanted, letter: &Letter) -> Result<(), ApiError> {
        if wanted.streamed {
            return self.stream(talk.runs, wanted, letter).await;
        }
        let mut all = try_join_all(talk.runs.into_iter().map(Running::complete)).await?;
        share_prompt_scores(&mut all);
        let prompt = all.first().map(|one| PromptPart::whole(one, &self.state.model));
        let cached_tokens = all.first().map_or(0, |one| one.cached_tokens);
        let part = |completed: &Completed| {
            let message = wanted.message.then(|| match talk.form.as_ref() {
                Some(form) => form.message(completed).0,
                None => AnswerMessage::text(completed.text.clone()),
            });
            let message = message.map(|message| serde_json::to_string(&message));
            let message = message.transpose().map_err(|error| ApiError::Internal(error.to_string()))?;
            Ok(Part { message, ..Part::whole(completed, wanted.logprobs, &self.state.model) })
        };
        let parts: Result<Vec<Part>, ApiError> = best(all, wanted.answers).0.iter().map(part).collect();
        let parts = parts?.into_iter().enumerate().collect();
        letter.post(true, |reply| {
            reply.prompt = prompt;
            reply.cached_tokens = cached_tokens;
            reply.parts = parts;
        });
        Ok(())
    }

    async fn stream(&self, runs: Vec<Running>, wanted: &Wanted, letter: &Letter) -> Result<(), ApiError> {
        if let Some(first) = runs.first() {
            letter.post(false, |reply| reply.prompt = Some(PromptPart::of(first.facts())));
        }
        let open = AtomicUsize::new(runs.len());
        let tell = async |(number, mut run): (usize, Running)| {
            while let Some(step) = run.next().await {
                let step = step?;
                // The last token of all comes with the end: none is told that there is more and then finds nothing.
                let last = step.finish.is_some() && open.fetch_sub(1, Ordering::Relaxed) == 1;
                letter.post(last, |reply| {
                    reply.cached_tokens = step.cached_tokens;
                    let part = reply.parts.entry(number).or_default();
                    part.add(&step, wanted.logprobs, &self.state.model);
                    part.moments = step.finish.and_then(|_| run.times().moments);
                });
            }
            Ok(())
        };
        try_join_all(runs.into_iter().enumerate().map(tell)).await.map(drop)
    }

    /// What a route answers to a body.
    async fn route(&self, path: &str, body: Vec<u8>, letter: &Letter) -> Result<(), ApiError> {
        let request = Request::post(path).header(header::CONTENT_TYPE, "application/json").extension(Inside);
        let request = request.body(Body::from(body)).map_err(|_| ApiError::NotFound(format!("POST {path}")))?;
        let service = TowerToHyperService::new(self.routes.clone());
        let answer = match service.call(request).await {
            Ok(answer) => answer,
            Err(never) => match never {},
        };
        let status = answer.status().as_u16();
        let id = answer.headers().get(REQUEST_ID).and_then(|id| id.to_str().ok()).unwrap_or_default().to_owned();
        let body = answer.into_body().collect().await.map_err(|error| ApiError::Internal(error.to_string()))?;
        let body = String::from_utf8(body.to_bytes().into()).map_err(|error| ApiError::Internal(error.to_string()))?;
        letter.post(true, |reply| reply.response = Some(RouteAnswer { status, request_id: id, body }));
        Ok(())
    }
}

/// What an answer is to hold.
struct Wanted {
    answers: usize,
    logprobs: bool,
    streamed: bool,
    /// A message beside the text.
    message: bool,
}

/// What a request is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Task<'a> {
    /// The body is that of `/v1/completions`, of one prompt.
    Complete,
    /// The body is that of `/v1/chat/completions`.
    Chat,
    /// The body is for the route at this path.
    Route(&'a str),
}

/// Requests of one caller. Dropping it cancels those that run.
#[derive(Debug)]
pub struct Calls {
    library: Library,
    runtime: Handle,
    mailbox: Arc<Mailbox>,
    running: Mutex<JoinSet<()>>,
}

impl Calls {
    /// Begins a request; its replies carry the number. Every request has a last reply, with `done`.
    pub fn begin(&self, tag: u64, task: Task<'_>, body: Vec<u8>) {
        let letter = Letter { mailbox: Arc::clone(&self.mailbox), tag, ended: AtomicBool::new(false) };
        let library = self.library.clone();
        let path = if let Task::Route(path) = task { Some(path.to_owned()) } else { None };
        let chats = task == Task::Chat;
        let work = async move {
            let work = async {
                match path {
                    Some(path) => library.route(&path, body, &letter).await,
                    None if chats => library.chat(&body, &letter).await,
                    None => library.complete(&body, &letter).await,
                }
            };
            let fault = AssertUnwindSafe(work).catch_unwind().await;
            letter.end(
                &fault.unwrap_or_else(|_| Err(ApiError::Internal("a call panicked; the log says where".to_owned()))),
            );
        };
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        while running.try_join_next().is_some() {}
        running.spawn_on(work, &self.runtime);
    }

    /// What came since it was asked for last; waits up to `patience` for the first.
    #[must_use]
    pub fn take(&self, patience: Duration) -> Vec<(u64, Reply)> {
        self.mailbox.take(patience)
    }

    /// Where the replies arrive.
    #[must_use]
    pub fn mailbox(&self) -> &Mailbox {
        &self.mailbox
    }

    /// Cancels what runs.
    pub fn cancel(&self) {
        self.running.lock().unwrap_or_else(PoisonError::into_inner).abort_all();
    }
}

/// The way back of one request: whatever becomes of it, its caller hears of the end, once.
struct Letter {
    mailbox: Arc<Mailbox>,
    tag: u64,
    ended: AtomicBool,
}

impl Letter {
    /// Adds to what is known; `done` says that nothing follows.
    fn post(&self, done: bool, change: impl FnOnce(&mut Reply)) {
        if done {
            self.ended.store(true, Ordering::Relaxed);
        }
        self.mailbox.post(self.tag, |reply| {
            change(reply);
            reply.done = done;
        });
    }

    fn end(&self, outcome: &Result<(), ApiError>) {
        if !self.ended.load(Ordering::Relaxed) {
            self.post(true, |reply| reply.fault = outcome.as_ref().err().map(Fault::from));
        }
    }
}

impl Drop for Letter {
    fn drop(&mut self) {
        self.end(&Err(ApiError::Draining));
    }
}
