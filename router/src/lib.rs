//! The Textgen router: everything that is text, policy or state. See `docs/architecture.md`.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, clippy::print_stderr))]

pub mod grammar;
pub mod grpc;
pub mod http;
pub mod input;
pub mod metrics;
pub mod output;
#[cfg(feature = "python")]
mod python;
pub mod request;
pub mod scheduler;
pub mod secret;
pub mod server;
pub mod settings;
pub mod shard;
pub mod traces;
