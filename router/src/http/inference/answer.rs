//! From a request of the Open Inference Protocol to the tensors of its answer, whole or in pieces: what REST and gRPC share.

use axum::http::HeaderMap;
use futures::future::try_join_all;

use super::invalid;
use super::request::Asked;
use super::tensors::{Datatype, Elements, Output};
use crate::http::errors::ApiError;
use crate::http::generation::{Admission, Completed, FinishReason, Running, Step};
use crate::http::headers;
use crate::http::openai::completions::best_of_each_prompt;
use crate::http::standing::Caller;
use crate::http::state::AppState;

/// A tensor that an answer may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Out {
    /// The text.
    Text,
    /// `stop` or `length`; empty on a stream until the end.
    FinishReason,
    /// Tokens of the prompt.
    InputTokens,
    /// Tokens generated; on a stream those of this piece.
    OutputTokens,
    /// The sum of the tokens' log-probabilities; on a stream those so far.
    CumulativeLogprob,
}

impl Out {
    /// All of them, in the order in which they are answered.
    pub const ALL: [Self; 5] =
        [Self::Text, Self::FinishReason, Self::InputTokens, Self::OutputTokens, Self::CumulativeLogprob];

    /// Its name, which is Triton's.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Text => "text_output",
            Self::FinishReason => "finish_reason",
            Self::InputTokens => "num_input_tokens",
            Self::OutputTokens => "num_output_tokens",
            Self::CumulativeLogprob => "cumulative_logprob",
        }
    }

    /// The type of its elements.
    #[must_use]
    pub const fn datatype(self) -> Datatype {
        match self {
            Self::Text | Self::FinishReason => Datatype::Bytes,
            Self::InputTokens | Self::OutputTokens => Datatype::Uint32,
            Self::CumulativeLogprob => Datatype::Fp32,
        }
    }

    /// The output of this name.
    ///
    /// # Errors
    /// `Validation` when there is none.
    pub fn named(name: &str) -> Result<Self, ApiError> {
        Self::ALL.into_iter().find(|out| out.name() == name).ok_or_else(|| {
            let (name, known): (String, _) = (name.chars().take(64).collect(), Self::ALL.map(Self::name).join("`, `"));
            invalid(&format!("no output has the name `{name}`; the model has `{known}`"))
        })
    }

    /// Whether it is answered when nothing is said of it: texts of a stream are small and many.
    const fn by_default(self, streamed: bool) -> bool {
        match self {
            Self::Text => true,
            Self::FinishReason | Self::InputTokens | Self::OutputTokens => !streamed,
            Self::CumulativeLogprob => false,
        }
    }
}

/// What an answer looks like.
#[derive(Debug, Clone)]
pub struct Form {
    outputs: Vec<Out>,
    full_text: bool,
    /// Sequences that follow one another for each prompt, and how many of them are answered.
    reported: usize,
    answers: usize,
    rank: usize,
    /// Whether nothing was said of the outputs: then the last piece of a stream says why it is the last.
    unasked: bool,
}

/// A request that was let in.
#[derive(Debug)]
pub struct Opened {
    /// Its sequences.
    pub runs: Vec<Running>,
    /// What its answer looks like.
    pub form: Form,
}

/// Takes a request in. A streamed one has one sequence.
///
/// # Errors
/// What was wrong with it, or why it is not taken.
pub async fn open(
    state: &AppState,
    caller: Caller,
    asked: Result<Asked, ApiError>,
    streamed: bool,
) -> Result<Opened, ApiError> {
    let sequences = asked.as_ref().map_or(1, |asked| asked.sequences(state.settings.max_choices));
    let until = asked.as_ref().ok().and_then(|asked| std::time::Instant::now().checked_add(asked.timeout?));
    let mut admission = Admission::enter(state, caller.no_later_than(until), sequences).await?;
    let checked = asked.and_then(|asked| checked(asked, streamed));
    let Asked { mut completion, full_text, outputs, flags, rank, .. } =
        checked.map_err(|error| admission.refuse(error))?;
    completion.stream = Some(streamed);
    let each = completion.sequences(state.settings.max_choices);
    let flag = |out: Out| flags.iter().find(|(flagged, _)| *flagged == out).map(|(_, wanted)| *wanted);
    let unasked = outputs.is_empty() && flag(Out::FinishReason).is_none();
    let chosen = Out::ALL.into_iter().filter(|out| flag(*out).unwrap_or(out.by_default(streamed)));
    let form = Form {
        outputs: if outputs.is_empty() { chosen.collect() } else { outputs },
        // As in Triton: whole texts begin with the prompt unless it is to be left out.
        full_text: full_text.unwrap_or(!streamed),
        reported: completion.reported(each),
        answers: completion.answers(),
        rank,
        unasked,
    };
    let requests = completion.into_generations(state.settings.max_client_batch_size);
    let mut runs = Vec::new();
    for request in requests.map_err(|error| admission.refuse(error))? {
        runs.extend(admission.start(request).await?);
    }
    Ok(Opened { runs, form })
}

/// A stream tells one text, without the prompt.
fn checked(asked: Asked, streamed: bool) -> Result<Asked, ApiError> {
    if !streamed {
        return Ok(asked);
    }
    let several = asked.completion.prompt.len() > 1 || asked.completion.n.unwrap_or(1) > 1;
    if several || asked.completion.best_of.unwrap_or(1) > 1 {
        return Err(invalid("a stream holds one text; send the prompts one by one, without `n` and `best_of`"));
    }
    if asked.full_text == Some(true) {
        return Err(invalid(
            "a stream cannot begin with the prompt; send `exclude_input_in_output` as true, or not at all",
        ));
    }
    Ok(asked)
}

/// The tensors of a whole answer, and the headers that tell what it cost.
///
/// # Errors
/// That of the first sequence that fails.
pub async fn whole(state: &AppState, opened: Opened) -> Result<(HeaderMap, Vec<Output>), ApiError> {
    let Opened { runs, form } = opened;
    let completed = try_join_all(runs.into_iter().map(Running::complete)).await?;
    let mut headers = HeaderMap::new();
    headers::describe_all(&mut headers, &state.settings, &completed);
    let chosen = best_of_each_prompt(completed, form.reported, form.answers);
    Ok((headers, form.outputs.iter().map(|out| form.output(*out, &chosen)).collect()))
}

impl Form {
    fn output(&self, out: Out, chosen: &[Completed]) -> Output {
        let elements = match out {
            Out::Text => Elements::Texts(chosen.iter().map(|one| self.text(one)).collect()),
            Out::FinishReason => Elements::Texts(chosen.iter().map(|one| reason(Some(one.finish))).collect()),
            Out::InputTokens => Elements::Counts(chosen.iter().map(|one| count(one.facts.input_length)).collect()),
            Out::OutputTokens => Elements::Counts(chosen.iter().map(|one| count(one.steps.len())).collect()),
            Out::CumulativeLogprob => {
                let sum = |one: &Completed| one.steps.iter().map(|step| step.token.logprob).sum();
                Elements::Scores(chosen.iter().map(sum).collect())
            }
        };
        // A batch of prompts has a row for each; otherwise it is one list.
        let shape = match self.rank {
            2 => vec![chosen.len() / self.answers.max(1), self.answers],
            _ => vec![chosen.len()],
        };
        Output { out, shape, elements }
    }

    fn text(&self, completed: &Completed) -> String {
        match &completed.facts.prompt_text {
            Some(prompt) if self.full_text => format!("{prompt}{}", completed.text),
            _ => completed.text.clone(),
        }
    }
}

/// Makes the tensors of a stream's pieces.
#[derive(Debug)]
pub struct Pieces {
    form: Form,
    input_length: usize,
    logprob: f32,
}

impl Pieces {
    /// Of this sequence.
    #[must_use]
    pub fn new(form: Form, running: &Running) -> Self {
        Self { form, input_length: running.facts().input_length, logprob: 0.0 }
    }

    /// The tensors of one token.
    pub fn next(&mut self, step: Step) -> Vec<Output> {
        self.logprob += step.token.logprob;
        let mut text = Some(step.text);
        let last = (self.form.unasked && step.finish.is_some()).then_some(Out::FinishReason);
        let outputs = self.form.outputs.iter().copied().chain(last);
        let output = |out: Out| {
            let elements = match out {
                Out::Text => Elements::Texts(text.take().into_iter().collect()),
                Out::FinishReason => Elements::Texts(vec![reason(step.finish)]),
                Out::InputTokens => Elements::Counts(vec![count(self.input_length)]),
                Out::OutputTokens => Elements::Counts(vec![1]),
                Out::CumulativeLogprob => Elements::Scores(vec![self.logprob]),
            };
            Output { out, shape: vec![1; self.form.rank.max(1)], elements }
        };
        outputs.map(output).collect()
    }
}

fn reason(finish: Option<FinishReason>) -> String {
    match finish {
        None => String::new(),
        Some(FinishReason::Length) => "length".to_owned(),
        Some(FinishReason::EosToken | FinishReason::StopSequence) => "stop".to_owned(),
    }
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
