//! OpenAI's routes.

pub mod answers;
pub mod async_tools;
pub mod chat;
pub mod chat_stream;
pub mod completion_stream;
pub mod completions;
mod echo;
mod forced;
pub mod grammar;
pub mod logprobs;
pub mod messages;
pub(in crate::http) mod parts;
pub mod sampling;
mod structural;
#[cfg(test)]
mod tests;
mod tools;
pub mod types;
