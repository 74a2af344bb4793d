//! What every route has in common, and the bounds that the server's settings give to fields: both are added to the document
//! in one place, so that no route can forget them.

use serde_json::{Map, Value, json};

use crate::http::{layers, standing};
use crate::input::{MAX_STOP_BYTES, MAX_STOP_TOKENS, MAX_TOP_LOGPROBS};
use crate::settings::Settings;

/// The status that only routes have which generate: they take deadlines.
const LATE: &str = "504";

/// Adds what the routes do not say themselves.
pub(super) fn complete(document: &mut Value, settings: &Settings) {
    if let Some(components) = document["components"].as_object_mut() {
        components.insert("headers".to_owned(), headers());
        components.insert("parameters".to_owned(), parameters());
        components.insert("securitySchemes".to_owned(), security_schemes());
    }
    for schema in members(&mut document["components"]["schemas"]) {
        allow_missing(schema);
    }
    for operation in members(&mut document["paths"]).flat_map(members) {
        describe(operation);
    }
    for (schema, pointer, keyword, bound) in bounds(settings) {
        // A test sends what lies just past each bound: one that leads nowhere fails it.
        if let Some(field) = document.pointer_mut(&format!("/components/schemas/{schema}{pointer}")) {
            field[keyword] = bound.into();
        }
    }
}

fn members(value: &mut Value) -> impl Iterator<Item = &mut Value> {
    value.as_object_mut().into_iter().flat_map(Map::values_mut)
}

/// What is flattened into an object and may be missing is no null there: the object simply lacks it.
fn allow_missing(schema: &mut Value) {
    for part in schema.get_mut("allOf").and_then(Value::as_array_mut).into_iter().flatten() {
        let Some(Value::Array(mut ways)) = part.get("oneOf").cloned() else { continue };
        if let Some(null) = ways.iter_mut().find(|way| way["type"] == "null") {
            *null = json!({});
            *part = json!({"anyOf": ways});
        }
    }
}

fn describe(operation: &mut Value) {
    let generates = operation["responses"].get(LATE).is_some();
    let mut taken = vec!["RequestId"];
    if generates {
        taken.extend(["Timeout", "Priority"]);
        // None is asked for, so the first way in is none.
        operation["security"] = json!([{}, {"bearer": []}, {"key": []}]);
    }
    let taken = taken.iter().map(|name| reference("parameters", name));
    match operation.get_mut("parameters").and_then(Value::as_array_mut) {
        Some(own) => own.extend(taken),
        None => operation["parameters"] = taken.collect(),
    }
    let Some(responses) = operation["responses"].as_object_mut() else { return };
    for (status, response) in responses {
        if let Some(stream) = response.pointer_mut("/content/text~1event-stream") {
            let event = stream["schema"].take();
            stream["schema"] = server_sent(&event);
        }
        response["headers"][layers::REQUEST_ID.as_str()] = reference("headers", "RequestId");
        match status.as_str() {
            "429" | "503" => response["headers"]["retry-after"] = reference("headers", "RetryAfter"),
            "200" if generates => {
                for (name, _) in COSTS {
                    response["headers"][name] = reference("headers", name);
                }
            }
            _ => {}
        }
    }
}

/// An event of a stream. `[DONE]`, with which some streams end, is no JSON.
fn server_sent(event: &Value) -> Value {
    let data = json!({"type": "string", "contentMediaType": "application/json", "contentSchema": event});
    json!({
        "type": "object",
        "description": "A server-sent event",
        "required": ["data"],
        "properties": {"data": data},
    })
}

fn reference(kind: &str, name: &str) -> Value {
    json!({"$ref": format!("#/components/{kind}/{name}")})
}

/// What a call cost. Streams have the first two: the others are known when it is over.
const COSTS: [(&str, &str); 10] = [
    ("x-compute-type", "The device"),
    ("x-compute-characters", "Characters of the prompt"),
    ("x-compute-time", "Seconds from arrival to the last token; of one prompt only"),
    ("x-total-time", "Milliseconds from arrival to the last token"),
    ("x-validation-time", "Milliseconds of them for template, tokens and rules"),
    ("x-queue-time", "Milliseconds of them until the first step"),
    ("x-inference-time", "Milliseconds of them from the first step to the last token"),
    ("x-time-per-token", "Milliseconds for a token on average"),
    ("x-prompt-tokens", "Tokens of the prompt"),
    ("x-generated-tokens", "Tokens generated"),
];

fn headers() -> Value {
    let mut headers = json!({
        "RequestId": {
            "description": "Names the request: the client's own id where it sent one, else a new one",
            "required": true,
            "schema": {"type": "string", "minLength": 1, "maxLength": 128},
        },
        "RetryAfter": {
            "description": "Seconds after which to try again",
            "required": true,
            "schema": {"type": "integer", "minimum": 1},
        },
    });
    for (name, description) in COSTS {
        let schema = match name {
            "x-compute-type" => json!({"type": "string"}),
            "x-compute-time" => json!({"type": "number", "minimum": 0}),
            _ => json!({"type": "integer", "minimum": 0}),
        };
        headers[name] = json!({"description": description, "schema": schema});
    }
    headers
}

fn parameters() -> Value {
    json!({
        "RequestId": {
            "name": layers::REQUEST_ID.as_str(),
            "in": "header",
            "description": "Names the request in the answer and in logs; an id that others could not read is replaced",
            "schema": {"type": "string"},
        },
        "Timeout": {
            "name": standing::TIMEOUT.as_str(),
            "in": "header",
            "description": "When the request is given up, whether it waits or runs: seconds (`30`, `1.5`) or milliseconds (`250ms`)",
            "schema": {"type": "string"},
            "example": "30",
        },
        "Priority": {
            "name": standing::PRIORITY.as_str(),
            "in": "header",
            "description": "Class of urgency; the later one of this and the body's `priority` counts",
            "schema": {"type": "integer", "minimum": 0, "maximum": standing::LAST_PRIORITY},
        },
    })
}

fn security_schemes() -> Value {
    let description = "No key is asked for, but each has its own fair share, limits and cached prefixes";
    json!({
        "bearer": {"type": "http", "scheme": "bearer", "description": description},
        "key": {"type": "apiKey", "in": "header", "name": standing::API_KEY.as_str(), "description": description},
    })
}

/// Bounds that are settings, or that several fields share: schema, place in it, keyword, bound.
pub(super) fn bounds(settings: &Settings) -> Vec<(&'static str, String, &'static str, usize)> {
    let of = |field: &str| format!("/properties/{field}");
    let last = settings.max_total_tokens.saturating_sub(1);
    let mut bounds = vec![
        ("GenerateParameters", of("best_of"), "maximum", settings.max_best_of),
        ("GenerateParameters", of("top_n_tokens"), "maximum", settings.max_top_n_tokens as usize),
        ("GenerateParameters", of("max_new_tokens"), "maximum", last),
        ("GenerateParameters", of("truncate"), "maximum", settings.max_input_tokens),
        ("GenerateParameters", of("stop_token_ids"), "maxItems", MAX_STOP_TOKENS),
        ("ChatRequest", of("max_completion_tokens"), "maximum", last),
        ("ChatRequest", of("top_logprobs"), "maximum", MAX_TOP_LOGPROBS as usize),
        ("CompletionRequest", of("logprobs"), "maximum", MAX_TOP_LOGPROBS as usize),
        ("GenerateRequest", of("inputs"), "minLength", 1),
        ("CompatGenerateRequest", of("inputs"), "minLength", 1),
        ("ChatRequest", of("messages"), "minItems", 1),
        ("StopStrings", "/oneOf/1".to_owned(), "maxItems", settings.max_stop_sequences),
    ];
    for place in ["/oneOf/0", "/oneOf/1/items"] {
        bounds.push(("StopStrings", place.to_owned(), "minLength", 1));
        bounds.push(("StopStrings", place.to_owned(), "maxLength", MAX_STOP_BYTES));
    }
    for schema in ["ChatRequest", "CompletionRequest"] {
        bounds.push((schema, of("max_tokens"), "maximum", last));
        bounds.push((schema, of("n"), "maximum", settings.max_choices));
        bounds.push((schema, of("best_of"), "maximum", settings.max_choices));
        bounds.push((schema, of("stop_token_ids"), "maxItems", MAX_STOP_TOKENS));
    }
    for schema in ["GenerateParameters", "ChatRequest", "CompletionRequest"] {
        bounds.push((schema, of("cache_salt"), "minLength", 1));
    }
    bounds
}
