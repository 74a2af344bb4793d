//! The tokenizer library alone: the least that a prompt costs.

use std::time::{Duration, Instant};

use serde_json::json;
use tokenizers::Tokenizer;

use crate::options::Options;
use crate::{Outcome, process};

/// Encodes `--prompt-file` with `--tokenizer` for `--window` seconds and prints what one time takes.
///
/// # Errors
/// When a file cannot be read.
pub fn run(options: &Options) -> Outcome {
    let tokenizer = Tokenizer::from_file(options.required("tokenizer")?).map_err(|error| error.to_string())?;
    tokenizers::utils::parallelism::set_parallelism(false);
    let prompt = std::fs::read_to_string(options.required("prompt-file")?)?;
    let window = options.seconds("window", 2.0)?;
    let mut tokens = encode(&tokenizer, &prompt)?;
    let (began, cpu) = (Instant::now(), process::cpu_time(std::process::id())?);
    let mut times = 0_u32;
    while began.elapsed() < window.max(Duration::from_millis(1)) {
        tokens = encode(&tokenizer, &prompt)?;
        times += 1;
    }
    let cpu = process::cpu_time(std::process::id())?.saturating_sub(cpu);
    println!("{}", json!({"tokens": tokens, "cpu_us_per_request": cpu.as_secs_f64() * 1e6 / f64::from(times)}));
    Ok(())
}

fn encode(tokenizer: &Tokenizer, prompt: &str) -> Outcome<usize> {
    Ok(tokenizer.encode(prompt, true).map_err(|error| error.to_string())?.len())
}
