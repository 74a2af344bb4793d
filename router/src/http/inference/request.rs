//! What a request of the Open Inference Protocol asks for: tensors and parameters, by the names of Triton's backends for
//! vLLM and TensorRT-LLM, become a completion.

use std::time::Duration;

use serde_json::{Map, Value};

use super::answer::Out;
use super::invalid;
use super::tensors::{Datatype, Tensor};
use crate::http::errors::ApiError;
use crate::http::extract::{self, parsed};
use crate::http::openai::types::{CompletionRequest, Prompts};

/// The tensor with the prompts.
pub const TEXT_INPUT: &str = "text_input";
/// The tensors that are no settings of the sampling, and their types.
pub const INPUTS: [(&str, Datatype); 8] = [
    (TEXT_INPUT, Datatype::Bytes),
    (STREAM, Datatype::Bool),
    (SAMPLING, Datatype::Bytes),
    (EXCLUDE_INPUT, Datatype::Bool),
    ("return_finish_reason", Datatype::Bool),
    ("return_cumulative_logprob", Datatype::Bool),
    ("return_num_input_tokens", Datatype::Bool),
    ("return_num_output_tokens", Datatype::Bool),
];
const STREAM: &str = "stream";
const SAMPLING: &str = "sampling_parameters";
const EXCLUDE_INPUT: &str = "exclude_input_in_output";
/// Asks for a last answer of a stream that holds nothing.
const EMPTY_FINAL: &str = "triton_enable_empty_final_response";
/// Microseconds for the request.
const TIMEOUT: &str = "timeout";
/// Width of a beam search; 1 is none.
const BEAM_WIDTH: &str = "beam_width";

/// Settings of the sampling that may be tensors of their own, as TensorRT-LLM's clients send them.
const OPTIONS: [&str; 24] = [
    "max_tokens",
    "min_tokens",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "length_penalty",
    "early_stopping",
    "seed",
    "stop",
    "bad_words",
    "stop_token_ids",
    "allowed_token_ids",
    "ignore_eos",
    "skip_special_tokens",
    "n",
    "best_of",
    "do_sample",
    "truncate_prompt_tokens",
    BEAM_WIDTH,
];
/// Of these the ones that hold several values.
const LISTS: [&str; 4] = ["stop", "bad_words", "stop_token_ids", "allowed_token_ids"];
/// Other names of settings: this server's native ones and TensorRT-LLM's.
const ALIASES: [(&str, &str); 11] = [
    ("max_new_tokens", "max_tokens"),
    ("min_new_tokens", "min_tokens"),
    ("min_length", "min_tokens"),
    ("stop_words", "stop"),
    ("stop_sequences", "stop"),
    ("random_seed", "seed"),
    ("runtime_top_k", "top_k"),
    ("runtime_top_p", "top_p"),
    ("truncate", "truncate_prompt_tokens"),
    ("num_return_sequences", "n"),
    ("len_penalty", "length_penalty"),
];
/// Settings that are texts. Others may be written as text too: parameters hold no lists and objects, and Triton's own
/// example writes numbers so.
const TEXTS: [&str; 7] =
    ["stop", "bad_words", "cache_salt", "guided_regex", "guided_grammar", "guided_whitespace_pattern", "adapter_id"];
/// Fields of a completion that are no settings of the sampling, or would change what is answered.
const OTHERS: [&str; 9] = [
    "prompt",
    "stream",
    "stream_options",
    "echo",
    "suffix",
    "model",
    "logprobs",
    "prompt_logprobs",
    "return_token_ids",
];

/// A request as it arrived, by whichever way.
#[derive(Debug, Clone, Default)]
pub struct Inference {
    /// Its tensors.
    pub inputs: Vec<Tensor>,
    /// The tensors that the answer is to hold; none leaves it to the server.
    pub outputs: Vec<String>,
    /// What else it says.
    pub parameters: Map<String, Value>,
}

/// What it asks for.
#[derive(Debug, Clone)]
pub struct Asked {
    /// The prompts and the settings.
    pub completion: CompletionRequest,
    /// Whether to stream, where it says.
    pub stream: Option<bool>,
    /// Whether the text begins with the prompt, where it says.
    pub full_text: Option<bool>,
    /// The tensors that the answer is to hold.
    pub outputs: Vec<Out>,
    /// Those that are asked for, or not, by a tensor of their own.
    pub flags: Vec<(Out, bool)>,
    /// Dimensions of the prompts, and so of the answers.
    pub rank: usize,
    /// How long it may take.
    pub timeout: Option<Duration>,
    /// Whether a stream ends with an answer that holds nothing.
    pub empty_final: bool,
}

impl Asked {
    /// Reads a request of at most so many prompts.
    ///
    /// # Errors
    /// `Validation` and `BadFields`, for the first thing that is wrong.
    pub fn read(inference: Inference, max_prompts: usize) -> Result<Self, ApiError> {
        let mut outputs = Vec::new();
        for name in &inference.outputs {
            let out = Out::named(name)?;
            if !outputs.contains(&out) {
                outputs.push(out);
            }
        }
        let mut given = Given::new(inference)?;
        let (texts, rank) = given.texts(max_prompts)?;
        let stream = given.flag(STREAM)?;
        let excluded = given.flag(EXCLUDE_INPUT)?;
        let empty_final = given.flag(EMPTY_FINAL)?.unwrap_or_default();
        let mut flags = Vec::new();
        for out in Out::ALL.into_iter().filter(|out| *out != Out::Text) {
            if let Some(wanted) = given.flag(&format!("return_{}", out.name()))? {
                flags.push((out, wanted));
            }
        }
        let timeout = given.timeout()?;
        let mut options = given.options()?;
        let full_text = options.remove("return_full_text").and_then(|full| full.as_bool());
        let completion = completion(options, texts)?;
        let full_text = excluded.map(|excluded| !excluded).or(full_text);
        Ok(Self { completion, stream, full_text, outputs, flags, rank, timeout, empty_final })
    }

    /// The same, where nothing can be streamed.
    ///
    /// # Errors
    /// `Validation` when it is to be.
    pub fn whole(self) -> Result<Self, ApiError> {
        if self.stream == Some(true) {
            return Err(invalid(
                "this call answers once; for a stream use `generate_stream` or, over gRPC, `ModelStreamInfer`",
            ));
        }
        Ok(self)
    }

    /// Sequences to generate, as far as they are allowed: what a call takes before it is checked.
    #[must_use]
    pub fn sequences(&self, max_choices: usize) -> usize {
        self.completion.prompt.len() * self.completion.sequences(max_choices)
    }
}

fn completion(mut options: Map<String, Value>, texts: Vec<String>) -> Result<CompletionRequest, ApiError> {
    for other in OTHERS {
        options.remove(other);
    }
    if options.remove("do_sample") == Some(Value::Bool(false)) {
        options.insert("temperature".to_owned(), 0.into());
    }
    // The prompts need not be written as JSON to be read again.
    options.insert("prompt".to_owned(), "".into());
    let completion = parsed::<CompletionRequest>(&Value::Object(options))?;
    Ok(CompletionRequest { prompt: Prompts::Texts(texts), sums_logprobs: true, ..completion })
}

/// What is left to be read of a request.
struct Given {
    tensors: Vec<Tensor>,
    parameters: Map<String, Value>,
}

impl Given {
    fn new(inference: Inference) -> Result<Self, ApiError> {
        let Inference { inputs: tensors, parameters, .. } = inference;
        for (place, tensor) in tensors.iter().enumerate() {
            if !INPUTS.iter().any(|(name, _)| *name == tensor.name) && !OPTIONS.contains(&canonical(&tensor.name)) {
                let name: String = tensor.name.chars().take(64).collect();
                let known: Vec<&str> = INPUTS.iter().map(|(name, _)| *name).chain(OPTIONS).collect();
                let known = known.join("`, `");
                return Err(invalid(&format!("no input has the name `{name}`; the model takes `{known}`")));
            }
            if tensors.iter().take(place).any(|other| canonical(&other.name) == canonical(&tensor.name)) {
                return Err(invalid(&format!("input `{}` is there twice; send it once", tensor.name)));
            }
        }
        Ok(Self { tensors, parameters })
    }

    fn take(&mut self, name: &str) -> Option<Tensor> {
        let place = self.tensors.iter().position(|tensor| tensor.name == name)?;
        Some(self.tensors.swap_remove(place))
    }

    /// The prompts and the number of their dimensions.
    fn texts(&mut self, most: usize) -> Result<(Vec<String>, usize), ApiError> {
        let Some(Tensor { rank, elements, .. }) = self.take(TEXT_INPUT) else {
            return Err(invalid(&format!("`{TEXT_INPUT}` is missing; send the prompt in it")));
        };
        if rank > 2 {
            return Err(invalid(&format!("`{TEXT_INPUT}` has more than two dimensions; send the shape [n] or [n, 1]")));
        }
        let given = elements.len();
        if given == 0 || given > most {
            let sentence = format!("`{TEXT_INPUT}` holds {given} prompts; send from 1 to {most} at once");
            return Err(invalid(&sentence));
        }
        let text = |element| match element {
            Value::String(text) => Ok(text),
            _ => Err(invalid(&format!("`{TEXT_INPUT}` must hold text: send it as BYTES"))),
        };
        Ok((elements.into_iter().map(text).collect::<Result<_, _>>()?, rank))
    }

    /// A switch: a tensor of one element, or a parameter.
    fn flag(&mut self, name: &str) -> Result<Option<bool>, ApiError> {
        let parameter = self.parameters.remove(name);
        let value = match self.take(name) {
            Some(tensor) => Some(single(name, tensor.elements)?),
            None => parameter,
        };
        match value.map(|value| coerced(name, value)) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(flag)),
            Some(_) => Err(invalid(&format!("`{name}` must be true or false"))),
        }
    }

    fn timeout(&mut self) -> Result<Option<Duration>, ApiError> {
        match self.parameters.remove(TIMEOUT).map(|value| coerced(TIMEOUT, value)) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => match value.as_u64() {
                Some(0) => Ok(None),
                Some(microseconds) => Ok(Some(Duration::from_micros(microseconds))),
                None => Err(invalid("`timeout` must be a whole number of microseconds")),
            },
        }
    }

    /// The settings of the sampling: parameters, then tensors of their own, then the JSON in one tensor, the later ones
    /// before the earlier ones.
    fn options(mut self) -> Result<Map<String, Value>, ApiError> {
        let mut options = Map::new();
        let sampling = self.take(SAMPLING);
        let parameter = self.parameters.remove(SAMPLING);
        add(&mut options, std::mem::take(&mut self.parameters));
        for Tensor { name, elements, .. } in self.tensors {
            let value =
                if LISTS.contains(&canonical(&name)) { Value::Array(elements) } else { single(&name, elements)? };
            add(&mut options, std::iter::once((name, value)));
        }
        let sampling = match sampling {
            Some(tensor) => Some(single(SAMPLING, tensor.elements)?),
            None => parameter,
        };
        match sampling {
            None | Some(Value::Null) => {}
            Some(Value::Object(given)) => add(&mut options, given),
            Some(Value::String(text)) if text.trim().is_empty() => {}
            Some(Value::String(text)) => match extract::read::<Map<String, Value>>(text.as_bytes()) {
                Ok(given) => add(&mut options, given),
                Err(ApiError::BadJson(reason) | ApiError::BadFields(reason)) => {
                    return Err(invalid(&format!("`{SAMPLING}` must be a JSON object, as text: {reason}")));
                }
                Err(error) => return Err(error),
            },
            Some(_) => return Err(invalid(&format!("`{SAMPLING}` must be a JSON object, as text"))),
        }
        Ok(options)
    }
}

/// Adds settings under their own names; empty ones ask for nothing.
fn add(options: &mut Map<String, Value>, given: impl IntoIterator<Item = (String, Value)>) {
    for (name, value) in given {
        let name = canonical(&name);
        let value = match (name, coerced(name, value)) {
            (_, Value::Null) => continue,
            (_, Value::String(text)) if text.is_empty() => continue,
            ("bad_words", Value::String(text)) => Value::from(vec![text]),
            (_, Value::Array(list)) => {
                let filled: Vec<Value> = list.into_iter().filter(|value| *value != "").collect();
                if filled.is_empty() {
                    continue;
                }
                Value::Array(filled)
            }
            (_, value) => value,
        };
        if name != BEAM_WIDTH {
            options.insert(name.to_owned(), value);
        } else if value != 1 {
            options.insert("use_beam_search".to_owned(), true.into());
            options.insert("best_of".to_owned(), value);
        }
    }
}

fn canonical(name: &str) -> &str {
    ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, name)| name)
}

/// What a text stands for, where the setting is none.
fn coerced(name: &str, value: Value) -> Value {
    let Value::String(text) = value else { return value };
    if TEXTS.contains(&name) {
        return Value::String(text);
    }
    match text.trim() {
        "True" => Value::Bool(true),
        "False" => Value::Bool(false),
        word => match serde_json::from_str(word) {
            Ok(Value::String(_)) | Err(_) => Value::String(text),
            Ok(value) => value,
        },
    }
}

/// The one value of a tensor. One for each prompt will do, when they are the same.
fn single(name: &str, elements: Vec<Value>) -> Result<Value, ApiError> {
    let mut elements = elements.into_iter();
    match elements.next() {
        Some(first) if elements.all(|other| other == first) => Ok(first),
        _ => Err(invalid(&format!("`{name}` must hold one value; send prompts that differ in it one by one"))),
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
