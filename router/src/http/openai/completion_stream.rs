//! Streamed completions: one or several for each of one prompt or several.

use std::borrow::Cow;
use std::sync::Arc;

use super::answers::{CompletionChunk, CompletionChunkChoice, Head, StopReason, Usage};
use super::echo;
use super::logprobs::CompletionLogprobs;
use super::types::Wanted;
use crate::http::errors::Dialect;
use crate::http::generation::{Facts, FinishReason, Step};
use crate::http::sse::{DONE, Events, Translate};
use crate::input::ModelText;

pub(super) struct CompletionStream {
    head: Head,
    model: Arc<ModelText>,
    wanted: Wanted,
    choices: Vec<ChoiceState>,
}

#[derive(Default)]
struct ChoiceState {
    /// The first one of its prompt: the prompt is counted and scored with it.
    leader: usize,
    leads: bool,
    /// The prompt, until it is out.
    echo: Option<Arc<str>>,
    /// The prompt's tokens, until they are out, and those of the text that are not out yet; where they are asked for.
    prompt_token_ids: Option<Vec<u32>>,
    token_ids: Vec<u32>,
    /// The prompt's log-probabilities, once they are known, where the text begins with them; of a leader.
    scores: Option<CompletionLogprobs>,
    /// The tokens that they are of, until then.
    scored: Vec<u32>,
    /// They are not out yet.
    owes_scores: bool,
    /// Text and end that wait for them.
    held: String,
    held_end: Option<FinishReason>,
    prompt_tokens: usize,
    cached_tokens: usize,
    completion_tokens: usize,
    /// Characters that are out.
    offset: usize,
    /// Entries of tokens whose text is not out yet.
    logprobs: CompletionLogprobs,
}

impl ChoiceState {
    const fn usage(&self) -> Usage {
        Usage::new(self.prompt_tokens, self.cached_tokens, self.completion_tokens)
    }
}

impl CompletionStream {
    pub(super) fn new<'a>(
        head: Head,
        facts: impl Iterator<Item = &'a Facts>,
        wanted: Wanted,
        model: &Arc<ModelText>,
    ) -> Self {
        let mut choices: Vec<ChoiceState> = Vec::new();
        for facts in facts {
            let leads = facts.choice == 0;
            let owes_scores = wanted.echo && wanted.logprobs.is_some();
            choices.push(ChoiceState {
                leader: if leads { choices.len() } else { choices.last().map_or(0, |before| before.leader) },
                leads,
                echo: wanted.echo.then(|| echo::prompt_text(facts, wanted, model)),
                prompt_token_ids: wanted.extras.token_ids.then(|| facts.prompt_tokens.clone()),
                owes_scores,
                scored: if owes_scores && leads { facts.prompt_tokens.clone() } else { Vec::new() },
                prompt_tokens: facts.once(facts.input_length),
                ..ChoiceState::default()
            });
        }
        Self { head, model: Arc::clone(model), wanted, choices }
    }

    fn chunk<'a>(&'a self, choices: &'a [CompletionChunkChoice<'a>], usage: Option<Usage>) -> CompletionChunk<'a> {
        CompletionChunk {
            id: &self.head.id,
            object: "text_completion",
            created: self.head.created,
            model: &self.head.model,
            system_fingerprint: &self.head.system_fingerprint,
            choices,
            usage,
        }
    }

    /// Takes a token in; what goes out with it, if something does.
    fn take<'a>(&mut self, index: usize, step: &'a Step) -> Option<(CompletionChunkChoice<'a>, Option<Usage>)> {
        let (wanted, model) = (self.wanted, Arc::clone(&self.model));
        let choice = self.choices.get_mut(index)?;
        if choice.leads {
            choice.cached_tokens = step.cached_tokens as usize;
        }
        let echo = choice.echo.take();
        choice.offset += echo.as_ref().map_or(0, |prompt| prompt.chars().count());
        let new = if wanted.of_prompt { "" } else { step.text.as_str() };
        let text = match echo {
            Some(prompt) => Cow::Owned(format!("{prompt}{new}")),
            None => Cow::Borrowed(new),
        };
        if !wanted.of_prompt {
            choice.completion_tokens += 1;
            if wanted.logprobs.is_some() {
                choice.logprobs.push(step, choice.offset, &model);
            }
            if wanted.extras.token_ids {
                choice.token_ids.push(step.token.id);
            }
            choice.offset += new.chars().count();
        }
        let finish = if wanted.of_prompt { Some(FinishReason::Length) } else { step.finish };
        self.send(index, text, finish)
    }

    /// What goes out of a choice, with all that waited. The prompt's log-probabilities come with the first choice of the
    /// prompt, and the others wait for them.
    fn send<'a>(
        &mut self,
        index: usize,
        text: Cow<'a, str>,
        finish: Option<FinishReason>,
    ) -> Option<(CompletionChunkChoice<'a>, Option<Usage>)> {
        let wanted = self.wanted;
        let leader = self.choices.get(index)?.leader;
        let scores = if self.choices[index].owes_scores { self.choices.get(leader)?.scores.clone() } else { None };
        let choice = self.choices.get_mut(index)?;
        if choice.owes_scores && scores.is_none() {
            choice.held.push_str(&text);
            choice.held_end = choice.held_end.or(finish);
            return None;
        }
        let finish = finish.or(choice.held_end.take());
        let text = if choice.held.is_empty() { text } else { Cow::Owned(std::mem::take(&mut choice.held) + &text) };
        if text.is_empty() && finish.is_none() {
            return None;
        }
        if let Some(scores) = scores {
            choice.logprobs.prepend(scores);
            choice.owes_scores = false;
        }
        let chunk = CompletionChunkChoice {
            index,
            text,
            logprobs: wanted.logprobs.map(|_| std::mem::take(&mut choice.logprobs)),
            finish_reason: finish.map(StopReason::from),
            prompt_token_ids: choice.prompt_token_ids.take(),
            token_ids: wanted.extras.token_ids.then(|| std::mem::take(&mut choice.token_ids)),
        };
        let counted = wanted.usage.every || (finish.is_some() && !wanted.usage.last);
        Some((chunk, counted.then(|| choice.usage())))
    }

    /// Keeps what was said of a prompt that the texts begin with; it comes with the first step of the leader. True when others
    /// may have waited for it.
    fn keep_scores(&mut self, index: usize, step: &Step) -> bool {
        let (wanted, model) = (self.wanted, &self.model);
        let Some(choice) = self.choices.get_mut(index).filter(|choice| choice.leads && choice.owes_scores) else {
            return false;
        };
        if choice.scores.is_some() {
            return false;
        }
        let (prompt, alternatives) = (std::mem::take(&mut choice.scored), wanted.logprobs.unwrap_or(0));
        choice.scores = Some(echo::logprobs(&prompt, &step.prompt_scores, alternatives, wanted, model));
        true
    }
}

impl Translate for CompletionStream {
    const DIALECT: Dialect = Dialect::OpenAi;

    fn step(&mut self, index: usize, step: Step, events: &mut Events) {
        let known = self.keep_scores(index, &step);
        if let Some((choice, usage)) = self.take(index, &step) {
            events.push(&self.chunk(&[choice], usage));
        }
        let waits =
            |choice: &ChoiceState| choice.leader == index && (!choice.held.is_empty() || choice.held_end.is_some());
        let waiting = (0..self.choices.len()).filter(|&other| known && waits(&self.choices[other])).collect::<Vec<_>>();
        for other in waiting {
            if let Some((choice, usage)) = self.send(other, Cow::Borrowed(""), None) {
                events.push(&self.chunk(&[choice], usage));
            }
        }
    }

    fn end(&mut self, events: &mut Events) {
        if self.wanted.usage.last {
            let sum = |of: fn(&ChoiceState) -> usize| self.choices.iter().map(of).sum();
            let (prompt, cached) = (sum(|choice| choice.prompt_tokens), sum(|choice| choice.cached_tokens));
            let usage = Usage::new(prompt, cached, sum(|choice| choice.completion_tokens));
            events.push(&self.chunk(&[], Some(usage)));
        }
        events.push_raw(DONE);
    }
}
