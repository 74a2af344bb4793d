//! The Textgen router: everything that is text, policy or state. See `docs/architecture.md`.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, clippy::print_stderr))]

/// The router makes and drops many small things, and prompts and answers some large ones: a tokenizer takes a quarter less
/// time with this allocator than with the system's, which gives memory back to the kernel after each long prompt.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

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
