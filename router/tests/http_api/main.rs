//! The HTTP station against an engine that follows a script.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stderr)]

mod agreement;
mod anthropic;
mod async_tools;
mod beams;
mod chat;
mod choices;
mod client;
mod clouds;
mod completions;
mod connections;
mod errors;
mod grpc;
mod inference;
mod keys;
mod library;
mod limits;
mod live;
mod metrics;
mod model;
mod native;
mod ollama;
mod openapi;
mod ops;
mod responses;
#[path = "../support/seed.rs"]
mod seed;
mod server;
mod standing;
mod streams;
mod tls;
mod tools;
mod traces;
