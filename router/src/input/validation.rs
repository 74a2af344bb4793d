//! Every rule about a request, for all dialects: a request that passes fits the model and the server's limits.

use std::sync::Arc;
use std::time::Instant;

use super::error::{InputError, invalid};
use super::infill::Infill;
use super::limits::Limits;
use super::model_text::ModelText;
use super::prompt::{tokens, untokenizable};
use super::request::{GenerationRequest, Parameters, Prompt, Reasoning, Truncate};
use super::sampling::{check_searched, sampling};
use super::token_rules::{check_min_tokens, rules, with_thinking};
use super::{Prepared, TokenSpan, WantedGrammar};
use crate::output::{TextParams, library_decode};
use crate::request::{BeamParams, ValidRequest};

/// Largest `top_logprobs`, by OpenAI's rule; shards have room for as many (`plan.py`).
pub const MAX_TOP_LOGPROBS: u32 = 20;

/// Longest stop sequence, in bytes.
pub const MAX_STOP_BYTES: usize = 1024;

/// Most stop token ids in one request.
pub const MAX_STOP_TOKENS: usize = 128;

/// Renders, tokenizes and checks a request that came in at `since`.
///
/// # Errors
/// `Validation` or `Template`; cheap rules come first, tokenizing last.
pub(super) fn prepare(
    model: &ModelText,
    limits: &Limits,
    request: GenerationRequest,
    since: Instant,
) -> Result<Prepared, InputError> {
    let GenerationRequest { prompt, mut parameters } = request;
    let sampling = sampling(&parameters)?;
    let beams = beams(&parameters)?;
    check_choices(&parameters, sampling.temperature > 0.0, limits)?;
    check_output(&parameters, limits)?;
    check_stop(&parameters, model, limits)?;
    check_truncate(&parameters, limits)?;
    check_grammar(&parameters)?;
    let rules = rules(&parameters, model, limits)?;

    let continues_text = !matches!(prompt, Prompt::Chat(_)) && model.decoder_start().is_none();
    let infills = matches!(prompt, Prompt::Infill { .. });
    let (tokens, prompt_text) = tokens(model, limits, prompt, &parameters)?;
    let input_length = tokens.len();
    let (tokens, source) = match model.decoder_start() {
        Some(start) => (start.to_vec(), Some(tokens.into())),
        None => (tokens, None),
    };
    let max_new_tokens = max_new_tokens(&parameters, input_length.max(tokens.len()), limits)?;
    check_min_tokens(&parameters, max_new_tokens)?;
    let rules = with_thinking(rules, &parameters, prompt_text.as_deref(), model)?;
    let grammar = wanted_grammar(&mut parameters, prompt_text.as_deref());
    let seed = (sampling.temperature > 0.0).then_some(sampling.seed);
    Ok(Prepared {
        text: TextParams {
            stop: parameters.stop.clone(),
            include_stop: parameters.include_stop,
            skip_special_tokens: !parameters.show_special_tokens,
            shown_tokens: Arc::clone(&parameters.shown_tokens),
            unsearched_tokens: parameters.min_new_tokens.map_or(0, |(_, count)| count),
            continues_text,
        },
        prompt_characters: prompt_text.as_ref().map_or(0, |text| text.chars().count()),
        prompt_text,
        input_length,
        seed,
        request: ValidRequest {
            prompt: tokens,
            source,
            sampling,
            rules,
            max_new_tokens,
            stop_tokens: stop_tokens(&parameters, grammar.is_some(), infills, model),
            top_n_tokens: parameters.top_n_tokens.or(parameters.top_logprobs.map(|(_, n)| n)).unwrap_or(0),
            prompt_top_n: parameters.prompt_logprobs.map(|(_, n)| n),
            unscored: parameters.unscored && !parameters.compares_answers(),
            // Compiled when all else is known to be right.
            grammar: None,
            beams,
        },
        grammar,
        validation_time: since.elapsed(),
    })
}

/// `n` and `best_of`. OpenAI's routes take a seed with them, and greedy answers that are all alike; native ones, like TGI,
/// do not.
fn check_choices(parameters: &Parameters, draws: bool, limits: &Limits) -> Result<(), InputError> {
    let most = if parameters.greedy_at_zero { limits.max_choices } else { limits.max_best_of };
    for (name, given) in [("n", parameters.n), ("best_of", parameters.best_of)] {
        match given {
            Some(0) => return Err(invalid(format!("`{name}` must be at least 1"))),
            Some(given) if given as usize > most => {
                return Err(invalid(format!("`{name}` must be <= {most}. Given: {given}")));
            }
            _ => {}
        }
    }
    let answers = parameters.n.unwrap_or(1);
    match parameters.best_of {
        Some(best_of) if best_of < answers => {
            Err(invalid(format!("`best_of` must be at least `n`, which is {answers}. Given: {best_of}")))
        }
        // The beams of a search are ranked by it, and its answers come at the end in any case.
        _ if parameters.beams.is_some() => Ok(()),
        Some(best_of) if best_of > answers && parameters.stream => {
            Err(invalid("`best_of` above `n` cannot be streamed: which answer is the best is known at the end"))
        }
        Some(best_of) if best_of > answers && !parameters.greedy_at_zero => check_drawn(parameters, draws),
        _ => Ok(()),
    }
}

/// The rules of a beam search, which draws nothing and reports no alternatives.
fn beams(parameters: &Parameters) -> Result<Option<BeamParams>, InputError> {
    let Some(search) = parameters.beams else { return Ok(None) };
    check_searched(parameters)?;
    let length_penalty = search.length_penalty.unwrap_or(1.0);
    if !length_penalty.is_finite() {
        return Err(invalid(format!("`length_penalty` must be a finite number. Given: {length_penalty}")));
    }
    if let Some((field, n)) = parameters.top_logprobs.filter(|(_, n)| *n > 0) {
        return Err(invalid(format!(
            "`{field}` must be 0 with `use_beam_search`: no alternatives are reported. Given: {n}"
        )));
    }
    let width = u32::try_from(parameters.sequences()).unwrap_or(u32::MAX);
    let returned = u32::try_from(parameters.answers()).unwrap_or(u32::MAX);
    Ok(Some(BeamParams { width, returned, length_penalty, early_stopping: search.early_stopping }))
}

fn check_drawn(parameters: &Parameters, draws: bool) -> Result<(), InputError> {
    if !draws {
        return Err(invalid("`best_of` > 1 needs sampling: set `do_sample`, or `temperature` and its kin"));
    }
    if parameters.seed.is_some() {
        return Err(invalid("`seed` must not be set when `best_of` > 1"));
    }
    Ok(())
}

fn check_output(parameters: &Parameters, limits: &Limits) -> Result<(), InputError> {
    if parameters.max_new_tokens == Some(0) {
        return Err(invalid("`max_new_tokens` must be strictly positive"));
    }
    // A prompt that is repeated comes with its `logprobs`; no other part of a stream has room for those of a prompt.
    if let Some((field, _)) = parameters.prompt_logprobs.filter(|(field, _)| parameters.stream && *field != "logprobs")
    {
        return Err(invalid(format!("`{field}` is not supported when streaming tokens")));
    }
    let asked = parameters.top_logprobs.into_iter().chain(parameters.prompt_logprobs);
    if let Some((field, n)) = asked.into_iter().find(|(_, n)| *n > MAX_TOP_LOGPROBS) {
        return Err(invalid(format!("`{field}` must be <= {MAX_TOP_LOGPROBS}. Given: {n}")));
    }
    match parameters.top_n_tokens {
        Some(n) if n > limits.max_top_n_tokens => {
            Err(invalid(format!("`top_n_tokens` must be <= {}. Given: {n}", limits.max_top_n_tokens)))
        }
        _ => Ok(()),
    }
}

fn check_stop(parameters: &Parameters, model: &ModelText, limits: &Limits) -> Result<(), InputError> {
    let given = parameters.stop.len();
    if given > limits.max_stop_sequences {
        let most = limits.max_stop_sequences;
        return Err(invalid(format!("`stop` supports up to {most} stop sequences. Given: {given}")));
    }
    if parameters.stop.iter().any(String::is_empty) {
        return Err(invalid("`stop` must not have an empty string"));
    }
    if let Some(stop) = parameters.stop.iter().find(|stop| stop.len() > MAX_STOP_BYTES) {
        let given = stop.len();
        return Err(invalid(format!("a string of `stop` may have {MAX_STOP_BYTES} bytes at most. Given: {given}")));
    }
    if parameters.stop_token_ids.len() > MAX_STOP_TOKENS {
        let given = parameters.stop_token_ids.len();
        return Err(invalid(format!("`stop_token_ids` may have {MAX_STOP_TOKENS} ids at most. Given: {given}")));
    }
    check_ids("stop_token_ids", &parameters.stop_token_ids, model)
}

pub(super) fn check_ids(name: &str, ids: &[u32], model: &ModelText) -> Result<(), InputError> {
    let size = model.vocab_size();
    match ids.iter().find(|&&id| id >= size) {
        Some(id) => Err(invalid(format!("`{name}` must have token ids below {size}. Given: {id}"))),
        None => Ok(()),
    }
}

fn check_grammar(parameters: &Parameters) -> Result<(), InputError> {
    if parameters.grammar.is_some() && parameters.beams.is_some() {
        let fields = parameters.grammar_fields.join("` or `");
        return Err(invalid(format!("`{fields}` cannot be kept to by a beam search; leave out one of the two")));
    }
    Ok(())
}

/// Takes the grammar out of the parameters, with the reasoning that the prompt leaves open.
fn wanted_grammar(parameters: &mut Parameters, prompt_text: Option<&str>) -> Option<WantedGrammar> {
    let source = parameters.grammar.take()?;
    let reasoning = parameters.reasoning.take();
    let prompt = prompt_text.unwrap_or_default();
    let thoughts = reasoning.and_then(|Reasoning { kind, inside }| kind.thoughts(prompt, inside));
    Some(WantedGrammar { source, thoughts, fields: std::mem::take(&mut parameters.grammar_fields) })
}

fn check_truncate(parameters: &Parameters, limits: &Limits) -> Result<(), InputError> {
    let most = limits.max_input_tokens;
    match parameters.truncate {
        Some(Truncate::To(name, length)) if length == 0 || length > most => {
            Err(invalid(format!("`{name}` must be strictly positive and at most {most}. Given: {length}")))
        }
        _ => Ok(()),
    }
}

fn max_new_tokens(parameters: &Parameters, input_length: usize, limits: &Limits) -> Result<u32, InputError> {
    let most = limits.max_total_tokens;
    let room = u32::try_from(most.saturating_sub(input_length)).unwrap_or(u32::MAX);
    let wanted = parameters.max_new_tokens.unwrap_or(room);
    if wanted == 0 {
        return Err(InputError::TooLong(format!(
            "`inputs` must have less than {most} tokens, so that one can be generated. Given: {input_length}"
        )));
    }
    if wanted > room && parameters.cut_to_fit && room > 0 {
        return Ok(room);
    }
    if wanted > room {
        return Err(InputError::TooLong(format!(
            "`inputs` tokens + `max_new_tokens` must be <= {most}. Given: {input_length} `inputs` tokens and {wanted} \
             `max_new_tokens`"
        )));
    }
    Ok(wanted)
}

/// The tokens that end the sequence: the client's and the model's, also those that end a gap where one is filled. A grammar that is
/// whole allows nothing but an end, so ends are heeded under one.
fn stop_tokens(parameters: &Parameters, guided: bool, infills: bool, model: &ModelText) -> Arc<[u32]> {
    let extra = &parameters.stop_token_ids;
    let of_gap = model.infill().filter(|_| infills).map_or(&[][..], Infill::ends);
    match (parameters.ignore_eos && !guided, extra.is_empty() && of_gap.is_empty()) {
        (false, true) => Arc::clone(model.eos_tokens()),
        (true, _) => extra.as_slice().into(),
        (false, false) => model.eos_tokens().iter().chain(of_gap).chain(extra).copied().collect(),
    }
}

/// The tokens of a text and where they are in it.
///
/// # Errors
/// `Validation`, when the text is empty or cannot be tokenized.
pub(super) fn tokenize(model: &ModelText, text: &str, add_special_tokens: bool) -> Result<Vec<TokenSpan>, InputError> {
    if text.is_empty() {
        return Err(invalid("`inputs` cannot be empty"));
    }
    let encoding = model.tokenizer().encode(text, add_special_tokens).map_err(|error| untokenizable(&error))?;
    let mut position = Position::default();
    let spans = encoding.get_ids().iter().zip(encoding.get_offsets()).map(|(&id, &(start, stop))| {
        let piece = text.get(start..stop).unwrap_or_default().to_owned();
        TokenSpan { id, text: piece, start: position.at(text, start), stop: position.at(text, stop) }
    });
    Ok(spans.collect())
}

/// The text of some tokens, as the tokenizer's own decoder has it.
///
/// # Errors
/// `Validation`, when one of them is not in the vocabulary.
pub(super) fn detokenize(model: &ModelText, mut ids: Vec<u32>, skip_special: bool) -> Result<String, InputError> {
    check_ids("tokens", &ids, model)?;
    ids.retain(|&id| !skip_special || !model.is_special(id));
    Ok(library_decode(model.tokenizer(), &ids))
}

/// Counts characters up to a byte. It goes on from where it was, in either direction: offsets mostly grow, and the
/// tokens of one character all start where the character does.
#[derive(Default)]
struct Position {
    byte: usize,
    character: usize,
}

impl Position {
    fn at(&mut self, text: &str, byte: usize) -> usize {
        let byte = byte.min(text.len());
        let characters =
            |from: usize, to: usize| text.as_bytes()[from..to].iter().filter(|b| *b & 0xC0 != 0x80).count();
        if byte < self.byte {
            self.character -= characters(byte, self.byte);
        } else {
            self.character += characters(self.byte, byte);
        }
        self.byte = byte;
        self.character
    }
}
