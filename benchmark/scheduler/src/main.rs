//! Runs all experiments and writes their numbers as JSON: `scheduler-bench FILE`. `run.py` makes tables and plots of them.
//! `scheduler-bench FILE WORD` runs only the traces on one replica that have the word in their name, and for `windows` the
//! layouts of layers.

#![allow(clippy::print_stderr, reason = "progress goes to the terminal")]

use std::error::Error;
use std::fs;
use std::time::Instant;

use scheduler_bench::device::LLAMA_8B_H100;
use scheduler_bench::experiments::{
    BLOCK_SIZE, Contender, EVERYBODY, Experiment, SWEEP, cluster, cluster_trace, compare, sweep, targets, traces,
};
use scheduler_bench::scale;
use scheduler_bench::windows::windows;
use serde_json::json;

const REPLICAS: usize = 256;

fn told(started: Instant, experiment: Experiment) -> Experiment {
    let Experiment { trace, seed, requests, .. } = &experiment;
    eprintln!("{:>6.1} s: {trace}, {requests} requests, seed {seed}", started.elapsed().as_secs_f64());
    experiment
}

fn single(started: Instant, wanted: impl Fn(&str) -> bool) -> Vec<Experiment> {
    let traces = traces().into_iter().filter(|(trace, _)| wanted(&trace.name));
    traces.map(|(trace, rate)| told(started, compare(&trace, &EVERYBODY, rate))).collect()
}

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("usage: scheduler-bench FILE")?;
    let started = Instant::now();
    if let Some(word) = std::env::args().nth(2) {
        let single: Vec<Experiment> = single(started, |trace| trace.contains(&word));
        let windows: Vec<Experiment> = if word == "windows" { windows() } else { Vec::new() };
        fs::write(path, serde_json::to_string(&json!({ "single": single, "windows": windows }))?)?;
        return Ok(());
    }
    // First, while the process is small: this is the part that is measured.
    let queued = [scale::queued(1_000_000, 1), scale::queued(1_000_000, 100)];
    let plannings = scale::plannings();
    eprintln!("{:>6.1} s: planning measured", started.elapsed().as_secs_f64());
    let single = single(started, |_| true);
    let contenders = [Contender::Target, Contender::Fixed(2_048), Contender::Fixed(8_192), Contender::Vllm(8_192)];
    let sweeps: Vec<Experiment> =
        SWEEP.iter().map(|&rate| told(started, compare(&sweep(rate), &contenders, Some(rate)))).collect();
    let targets = told(started, targets());
    // Each replica has as much to do as one alone would have; only the time is short.
    let rate = REPLICAS as f64;
    let cluster = told(started, cluster(&cluster_trace(12 * REPLICAS, rate), REPLICAS, rate));
    let windows: Vec<Experiment> = windows().into_iter().map(|experiment| told(started, experiment)).collect();
    let profile = json!({
        "model": LLAMA_8B_H100.model.name,
        "device": LLAMA_8B_H100.device.name,
        "blocks": LLAMA_8B_H100.blocks(BLOCK_SIZE),
    });
    let all = json!({
        "profile": profile, "single": single, "sweep": sweeps, "targets": targets, "cluster": cluster, "windows": windows,
        "planning": plannings, "queued": queued,
    });
    fs::write(path, serde_json::to_string(&all)?)?;
    Ok(())
}
