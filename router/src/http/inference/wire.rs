//! Bodies of the protocol's REST form, and its extension that puts raw tensors behind the JSON.

use axum::body::Bytes;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::invalid;
use super::request::Inference;
use super::tensors::{Declared, Output, Tensor};
use crate::http::errors::ApiError;
use crate::http::extract;

/// Bytes of JSON before raw tensors, in requests and answers.
pub const HEADER_LENGTH: HeaderName = HeaderName::from_static("inference-header-content-length");
/// A tensor's parameter: its raw bytes behind the JSON.
const BINARY_SIZE: &str = "binary_data_size";
/// An output's parameter: whether it is to be raw.
const BINARY: &str = "binary_data";
/// The request's parameter: whether all outputs are to be raw.
const BINARY_OUTPUT: &str = "binary_data_output";

/// Body of `POST /v2/models/{model}/infer`.
#[derive(Debug, Clone, Deserialize, ToSchema)]
pub struct InferRequest {
    /// Names the request in the answer.
    pub id: Option<String>,
    /// Settings by name, and `binary_data_output`: whether raw outputs follow the JSON.
    #[schema(value_type = Option<Object>)]
    pub parameters: Option<Map<String, Value>>,
    /// The tensors: `text_input` with the prompts, and others that say how to continue them.
    pub inputs: Vec<InputTensor>,
    /// The tensors to answer; without them text, reason and counts.
    pub outputs: Option<Vec<RequestedOutput>>,
}

/// A tensor.
#[derive(Debug, Clone, Deserialize, ToSchema)]
pub struct InputTensor {
    /// Its name.
    #[schema(example = "text_input")]
    pub name: String,
    /// The type of its elements.
    #[schema(example = "BYTES")]
    pub datatype: String,
    /// Its dimensions.
    #[schema(example = json!([1]))]
    pub shape: Vec<i64>,
    /// `binary_data_size` says how many raw bytes behind the JSON are its elements.
    #[schema(value_type = Option<Object>)]
    pub parameters: Option<Map<String, Value>>,
    /// Its elements, unless they are raw.
    #[schema(value_type = Option<Vec<Value>>, example = json!(["What is a paged KV cache?"]))]
    pub data: Option<Value>,
}

/// A tensor to answer.
#[derive(Debug, Clone, Deserialize, ToSchema)]
pub struct RequestedOutput {
    /// Its name.
    #[schema(example = "text_output")]
    pub name: String,
    /// `binary_data` says whether it is to be raw.
    #[schema(value_type = Option<Object>)]
    pub parameters: Option<Map<String, Value>>,
}

/// Answer of `POST /v2/models/{model}/infer`.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct InferResponse {
    /// The model as it was asked for.
    pub model_name: String,
    /// Its version.
    pub model_version: &'static str,
    /// The request's.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub id: Option<String>,
    /// The tensors.
    pub outputs: Vec<OutputTensor>,
}

/// A tensor of the answer.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct OutputTensor {
    /// Its name.
    pub name: &'static str,
    /// The type of its elements.
    pub datatype: &'static str,
    /// Its dimensions.
    pub shape: Vec<usize>,
    /// Of a raw one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub parameters: Option<OutputParameters>,
    /// Its elements, unless they are raw.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub data: Option<Vec<Value>>,
}

/// Where a raw tensor is.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct OutputParameters {
    /// Its bytes behind the JSON, after those of the raw tensors before it.
    pub binary_data_size: usize,
}

/// Which outputs are to be raw.
#[derive(Debug, Clone, Default)]
pub struct Raw {
    all: bool,
    some: Vec<(String, bool)>,
}

impl Raw {
    fn holds(&self, name: &str) -> bool {
        self.some.iter().find(|(given, _)| given == name).map_or(self.all, |(_, raw)| *raw)
    }
}

/// A request that was read.
#[derive(Debug)]
pub struct Received {
    /// Its name.
    pub id: Option<String>,
    /// What it is.
    pub inference: Inference,
    /// How it is to be answered.
    pub raw: Raw,
}

/// Reads a body: JSON, behind which raw tensors may follow.
///
/// # Errors
/// `BadJson`, `BadFields`, and `Validation` for tensors that are not as they are declared.
pub fn read(headers: &HeaderMap, body: &Bytes) -> Result<Received, ApiError> {
    let coded = headers.get(header::CONTENT_ENCODING).filter(|coding| *coding != "identity");
    if coded.is_some() {
        return Err(invalid("compressed bodies are not served; send the request without `content-encoding`"));
    }
    let (json, mut rest) = split(headers, body)?;
    let InferRequest { id, parameters, inputs, outputs } = extract::read(json)?;
    let mut parameters = parameters.unwrap_or_default();
    let mut raw = Raw { all: flag(parameters.remove(BINARY_OUTPUT).as_ref(), BINARY_OUTPUT)?, some: Vec::new() };
    let inputs = inputs.into_iter().map(|input| tensor(input, &mut rest)).collect::<Result<_, _>>()?;
    if !rest.is_empty() {
        let sentence = format!("{} bytes behind the JSON belong to no tensor; see `{BINARY_SIZE}`", rest.len());
        return Err(invalid(&sentence));
    }
    let mut names = Vec::new();
    for RequestedOutput { name, parameters } in outputs.unwrap_or_default() {
        let mut parameters = parameters.unwrap_or_default();
        if let Some(unknown) =
            ["classification", "shared_memory_region"].iter().find(|key| parameters.contains_key(**key))
        {
            return Err(invalid(&format!("`{unknown}` of an output is not served; leave it out")));
        }
        if let Some(given) = parameters.remove(BINARY) {
            raw.some.push((name.clone(), flag(Some(&given), BINARY)?));
        }
        names.push(name);
    }
    Ok(Received { id, inference: Inference { inputs, outputs: names, parameters }, raw })
}

/// The JSON of a body and the raw bytes behind it.
fn split<'a>(headers: &HeaderMap, body: &'a Bytes) -> Result<(&'a [u8], &'a [u8]), ApiError> {
    let Some(length) = headers.get(HEADER_LENGTH) else { return Ok((body, &[])) };
    let length = length.to_str().ok().and_then(|length| length.trim().parse().ok());
    length.and_then(|length| body.split_at_checked(length)).ok_or_else(|| {
        let given = body.len();
        invalid(&format!(
            "the header `inference-header-content-length` must be a number of at most {given}, the bytes sent"
        ))
    })
}

/// A tensor, whose raw elements are taken from the front of `rest`.
fn tensor(input: InputTensor, rest: &mut &[u8]) -> Result<Tensor, ApiError> {
    let InputTensor { name, datatype, shape, parameters, data } = input;
    let declared = Declared { name: &name, datatype: &datatype, shape: &shape };
    let parameters = parameters.unwrap_or_default();
    if parameters.contains_key("shared_memory_region") {
        return Err(declared.refused("is in shared memory, which is not served; send its elements"));
    }
    match (parameters.get(BINARY_SIZE), data) {
        (Some(_), Some(_)) => Err(declared.refused("has both `data` and raw bytes; send one of them")),
        (None, None) => Err(declared.refused("has no elements; send them as `data`")),
        (None, Some(data)) => declared.json(data),
        (Some(size), None) => {
            let size = size.as_u64().and_then(|size| usize::try_from(size).ok());
            let split = size.and_then(|size| rest.split_at_checked(size));
            let (bytes, behind) =
                split.ok_or_else(|| declared.refused("has a `binary_data_size` that is more than the bytes sent"))?;
            *rest = behind;
            declared.raw(bytes)
        }
    }
}

fn flag(value: Option<&Value>, name: &str) -> Result<bool, ApiError> {
    match value {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(flag)) => Ok(*flag),
        Some(_) => Err(invalid(&format!("`{name}` must be true or false"))),
    }
}

/// The answer with these tensors: JSON, behind which the raw ones follow.
///
/// # Errors
/// `Internal`, should the answer have no JSON.
pub fn respond(
    model_name: String,
    id: Option<String>,
    outputs: Vec<Output>,
    raw: &Raw,
    mut headers: HeaderMap,
) -> Result<Response, ApiError> {
    let mut behind = Vec::new();
    let mut any = false;
    let mut tensor = |output: Output| {
        let Output { out, shape, elements } = output;
        let name = out.name();
        let datatype = elements.datatype().name();
        if !raw.holds(name) {
            return OutputTensor { name, datatype, shape, parameters: None, data: Some(elements.values()) };
        }
        any = true;
        let bytes = elements.raw();
        behind.extend_from_slice(&bytes);
        let parameters = Some(OutputParameters { binary_data_size: bytes.len() });
        OutputTensor { name, datatype, shape, parameters, data: None }
    };
    let outputs = outputs.into_iter().map(&mut tensor).collect();
    let answer = InferResponse { model_name, model_version: super::VERSION, id, outputs };
    let mut body = serde_json::to_vec(&answer).map_err(|error| ApiError::Internal(error.to_string()))?;
    let kind = if any { "application/octet-stream" } else { "application/json" };
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    if any {
        headers.insert(HEADER_LENGTH, HeaderValue::from(body.len()));
        body.append(&mut behind);
    }
    Ok((headers, body).into_response())
}
