//! Between gRPC's messages and the protocol's tensors.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::proto::infer_parameter::ParameterChoice;
use super::proto::model_infer_request::InferInputTensor;
use super::proto::model_infer_response::InferOutputTensor;
use super::proto::model_metadata_response::TensorMetadata;
use super::proto::{InferParameter, InferTensorContents, ModelInferRequest, ModelInferResponse, ModelMetadataResponse};
use crate::http::errors::ApiError;
use crate::http::inference::request::Inference;
use crate::http::inference::tensors::{Declared, Elements, Output, Tensor};
use crate::http::inference::{self, ModelMetadata, VERSION};

/// The last answer to a request of a stream.
const FINAL: &str = "triton_final_response";

/// How a request is to be answered.
#[derive(Debug, Clone)]
pub(super) struct Head {
    pub model_name: String,
    pub id: String,
    /// Whether elements are raw bytes, as they were in the request.
    pub raw: bool,
}

/// Takes a request apart.
pub(super) fn inference(request: ModelInferRequest) -> (Head, Result<Inference, ApiError>) {
    let ModelInferRequest { model_name, id, parameters, inputs, outputs, raw_input_contents: raw, .. } = request;
    let head = Head { model_name, id, raw: !raw.is_empty() };
    let outputs = outputs.into_iter().map(|output| output.name).collect();
    let inference =
        tensors(inputs, raw).map(|inputs| Inference { inputs, outputs, parameters: self::parameters(parameters) });
    (head, inference)
}

fn tensors(inputs: Vec<InferInputTensor>, raw: Vec<Vec<u8>>) -> Result<Vec<Tensor>, ApiError> {
    if raw.is_empty() {
        return inputs.into_iter().map(|input| tensor(input, None)).collect();
    }
    if raw.len() != inputs.len() {
        let sentence = format!(
            "`raw_input_contents` has {} entries for {} inputs; send one for each, in their order",
            raw.len(),
            inputs.len()
        );
        return Err(inference::invalid(&sentence));
    }
    inputs.into_iter().zip(raw).map(|(input, raw)| tensor(input, Some(raw))).collect()
}

fn tensor(input: InferInputTensor, raw: Option<Vec<u8>>) -> Result<Tensor, ApiError> {
    let InferInputTensor { name, datatype, shape, parameters, contents } = input;
    let declared = Declared { name: &name, datatype: &datatype, shape: &shape };
    if parameters.contains_key("shared_memory_region") {
        return Err(declared.refused("is in shared memory, which is not served; send its elements"));
    }
    match (raw, contents) {
        (Some(_), Some(_)) => Err(declared.refused("has both `contents` and raw bytes; send one of them")),
        (Some(raw), None) => declared.raw(&raw),
        (None, contents) => {
            let elements = elements(contents.unwrap_or_default());
            declared.elements(elements.ok_or_else(|| declared.refused("has text that is not UTF-8"))?)
        }
    }
}

/// The elements of all lists, of which one is to be filled; `None` where a text is none.
fn elements(contents: InferTensorContents) -> Option<Vec<Value>> {
    fn add<T: Into<Value>>(all: &mut Vec<Value>, list: Vec<T>) {
        all.extend(list.into_iter().map(Into::into));
    }
    let mut all = Vec::new();
    add(&mut all, contents.bool_contents);
    add(&mut all, contents.int_contents);
    add(&mut all, contents.int64_contents);
    add(&mut all, contents.uint_contents);
    add(&mut all, contents.uint64_contents);
    add(&mut all, contents.fp32_contents);
    add(&mut all, contents.fp64_contents);
    for bytes in contents.bytes_contents {
        all.push(String::from_utf8(bytes).ok()?.into());
    }
    Some(all)
}

fn parameters(given: HashMap<String, InferParameter>) -> Map<String, Value> {
    let value = |(name, parameter): (String, InferParameter)| {
        let value = match parameter.parameter_choice? {
            ParameterChoice::BoolParam(flag) => flag.into(),
            ParameterChoice::Int64Param(number) => number.into(),
            ParameterChoice::StringParam(text) => text.into(),
            ParameterChoice::DoubleParam(number) => number.into(),
            ParameterChoice::Uint64Param(number) => number.into(),
        };
        Some((name, value))
    };
    given.into_iter().filter_map(value).collect()
}

/// An answer with these tensors. `last` is said on streams: whether it is the request's last one.
pub(super) fn answer(head: &Head, outputs: Vec<Output>, last: Option<bool>) -> ModelInferResponse {
    let choice = |last| InferParameter { parameter_choice: Some(ParameterChoice::BoolParam(last)) };
    let mut answer = ModelInferResponse {
        model_name: head.model_name.clone(),
        model_version: VERSION.to_owned(),
        id: head.id.clone(),
        parameters: last.map(|last| (FINAL.to_owned(), choice(last))).into_iter().collect(),
        outputs: Vec::with_capacity(outputs.len()),
        raw_output_contents: Vec::new(),
    };
    for Output { out, shape, elements } in outputs {
        let mut contents = None;
        if head.raw {
            answer.raw_output_contents.push(elements.raw());
        } else {
            contents = Some(typed(elements));
        }
        answer.outputs.push(InferOutputTensor {
            name: out.name().to_owned(),
            datatype: out.datatype().name().to_owned(),
            shape: shape.into_iter().map(|dimension| i64::try_from(dimension).unwrap_or(i64::MAX)).collect(),
            parameters: HashMap::new(),
            contents,
        });
    }
    answer
}

fn typed(elements: Elements) -> InferTensorContents {
    let nothing = InferTensorContents::default();
    match elements {
        Elements::Texts(texts) => {
            let bytes_contents = texts.into_iter().map(String::into_bytes).collect();
            InferTensorContents { bytes_contents, ..nothing }
        }
        Elements::Counts(uint_contents) => InferTensorContents { uint_contents, ..nothing },
        Elements::Scores(fp32_contents) => InferTensorContents { fp32_contents, ..nothing },
    }
}

/// Facts of a model.
pub(super) fn metadata(facts: ModelMetadata) -> ModelMetadataResponse {
    let tensor = |tensor: inference::TensorMetadata| TensorMetadata {
        name: tensor.name.to_owned(),
        datatype: tensor.datatype.to_owned(),
        shape: tensor.shape.to_vec(),
    };
    ModelMetadataResponse {
        name: facts.name,
        versions: facts.versions.map(str::to_owned).to_vec(),
        platform: facts.platform.to_owned(),
        inputs: facts.inputs.into_iter().map(tensor).collect(),
        outputs: facts.outputs.into_iter().map(tensor).collect(),
    }
}
