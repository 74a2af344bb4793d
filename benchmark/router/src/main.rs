//! What a token costs in the router. `benchmark/router/run.py` runs these parts pinned to cores and compares them:
//!
//! - `serve`: the real server with a shard that computes nothing, in a process of its own (`shard`);
//! - `echo`: a bare SSE server that writes ready bytes, one write per token: the yardstick;
//! - `load`: a closed loop of streams against either, or against any other server that speaks the native route;
//! - `burst`: many connections at once; `encode`: the tokenizer alone; `soak`: everything that clients do, a million times;
//! - `masks`: what the masks of grammars cost.
//!
//! Each prints one JSON object per line on standard output.

#![allow(clippy::print_stdout, clippy::print_stderr)] // A program whose output is its result.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

mod answer;
mod burst;
mod echo;
mod encode;
mod load;
mod masks;
mod options;
mod process;
mod serve;
mod shard;
mod soak;

use std::error::Error;
use std::process::ExitCode;

use options::Options;

/// Any failure ends the program with its sentence.
type Outcome<T = ()> = Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Outcome {
    let (command, options) = Options::parse(std::env::args_os().skip(1))?;
    match command.as_str() {
        "serve" => serve::run(&options),
        "shard" => shard::run(&options),
        "echo" => echo::run(&options),
        "load" => load::run(&options),
        "burst" => burst::run(&options),
        "encode" => encode::run(&options),
        "soak" => soak::run(&options),
        "masks" => masks::run(&options),
        other => Err(format!("`{other}` is none of serve, shard, echo, load, burst, encode, soak, masks").into()),
    }
}
