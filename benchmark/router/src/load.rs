//! A closed loop: each connection sends its next request when the last one has ended. Raw sockets, one thread.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::LocalSet;

use crate::answer::Answer;
use crate::options::Options;
use crate::{Outcome, process};

/// What a client asks for, again and again.
pub struct Request {
    /// The whole request, head and body.
    pub bytes: Vec<u8>,
    /// Events that its answer must have.
    pub events: u64,
}

impl Request {
    /// A request on the native streaming route.
    pub fn stream(prompt: &str, tokens: u64) -> Self {
        let parameters = json!({"max_new_tokens": tokens, "ignore_eos": true});
        Self { bytes: post("/generate_stream", &json!({"inputs": prompt, "parameters": parameters})), events: tokens }
    }

    /// A request on OpenAI's chat route. Its events are a role, a text for each token that completes a character, a
    /// finish and the end: only the lower bound is known.
    pub fn chat(prompt: &str, tokens: u64) -> Self {
        let messages = json!([{"role": "user", "content": prompt}]);
        let body =
            json!({"messages": messages, "max_tokens": tokens, "ignore_eos": true, "stream": true, "model": "m"});
        Self { bytes: post("/v1/chat/completions", &body), events: 0 }
    }
}

/// A POST with a JSON body.
pub fn post(path: &str, body: &Value) -> Vec<u8> {
    let body = body.to_string();
    format!(
        "POST {path} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// Counted over the window.
#[derive(Default)]
struct Tally {
    tokens: u64,
    requests: u64,
    first_token: Vec<u32>,
    gaps: Vec<u32>,
    /// Seconds between first and last token, and the gaps in them, of whole answers.
    spans: (f64, u64),
    failure: Option<String>,
}

/// Runs the load and prints what it saw, in microseconds of CPU time of process `--pid` and milliseconds of waiting.
///
/// # Errors
/// When an answer is not what was asked for.
pub fn run(options: &Options) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, measure(options))
}

async fn measure(options: &Options) -> Outcome {
    let address = options.required("address")?.to_owned();
    let pid: u32 = options.required("pid")?.parse()?;
    let connections = options.number("connections", 32_usize)?;
    let tokens = options.number("tokens", 128)?;
    let prompt = match options.text("prompt-file") {
        Some(path) => std::fs::read_to_string(path)?,
        None => "What is a paged KV cache, and who needs one?".to_owned(),
    };
    let request = match options.text("route") {
        Some("chat") => Request::chat(&prompt, tokens),
        _ => Request::stream(&prompt, tokens),
    };
    let request = Rc::new(request);
    let tally = Rc::new(RefCell::new(Tally::default()));
    for _ in 0..connections {
        let (address, request, tally) = (address.clone(), Rc::clone(&request), Rc::clone(&tally));
        tokio::task::spawn_local(async move {
            if let Err(error) = repeat(&address, &request, &tally, tokens).await {
                tally.borrow_mut().failure.get_or_insert(error.to_string());
            }
        });
    }
    tokio::time::sleep(options.seconds("warm-up", 1.0)?).await;
    let (began, cpu) = (Instant::now(), process::cpu_time(pid)?);
    let failure = tally.borrow_mut().failure.take();
    tally.replace(Tally { failure, ..Tally::default() });
    tokio::time::sleep(options.seconds("window", 3.0)?).await;
    let (took, cpu) = (began.elapsed(), process::cpu_time(pid)?.saturating_sub(cpu));
    let seen = tally.take();
    match seen.failure {
        Some(failure) => Err(failure.into()),
        None => {
            println!("{}", summary(seen, took, cpu, process::resident_kib(pid)?));
            Ok(())
        }
    }
}

async fn repeat(address: &str, request: &Request, tally: &RefCell<Tally>, tokens: u64) -> Outcome {
    let mut connection = TcpStream::connect(address).await?;
    connection.set_nodelay(true)?;
    let mut buffer = vec![0; 16 << 10];
    loop {
        let sent = Instant::now();
        connection.write_all(&request.bytes).await?;
        let mut answer = Answer::default();
        let (mut first, mut last) = (sent, sent);
        while !answer.done() {
            let read = connection.read(&mut buffer).await?;
            if read == 0 {
                return Err("the server closed a connection".into());
            }
            let before = answer.events();
            answer.feed(&buffer[..read])?;
            let new = answer.events() - before;
            if new == 0 {
                continue;
            }
            let now = Instant::now();
            let mut tally = tally.borrow_mut();
            tally.tokens += new;
            if before == 0 {
                first = now;
                tally.first_token.push(micros(now - sent));
            } else {
                tally.gaps.push(micros(now - last));
            }
            let together = usize::try_from(new - 1).unwrap_or(usize::MAX);
            tally.gaps.extend(std::iter::repeat_n(0, together));
            last = now;
        }
        let expected = request.events;
        if answer.status != Some(200) || (expected > 0 && answer.events() != expected) {
            return Err(format!("status {:?} with {} of {tokens} events", answer.status, answer.events()).into());
        }
        let mut tally = tally.borrow_mut();
        tally.requests += 1;
        tally.spans.0 += (last - first).as_secs_f64();
        tally.spans.1 += answer.events() - 1;
    }
}

fn micros(time: Duration) -> u32 {
    u32::try_from(time.as_micros()).unwrap_or(u32::MAX)
}

fn summary(seen: Tally, took: Duration, cpu: Duration, resident_kib: u64) -> Value {
    let seconds = took.as_secs_f64();
    let cpu_micros = cpu.as_secs_f64() * 1e6;
    json!({
        "seconds": seconds,
        "tokens": seen.tokens,
        "requests": seen.requests,
        "tokens_per_second": seen.tokens as f64 / seconds,
        "requests_per_second": seen.requests as f64 / seconds,
        "cpu_share": cpu.as_secs_f64() / seconds,
        "cpu_us_per_token": cpu_micros / seen.tokens as f64,
        "cpu_us_per_request": cpu_micros / seen.requests as f64,
        "first_token_ms": percentiles(seen.first_token),
        "gap_ms": percentiles(seen.gaps),
        "mean_gap_ms": seen.spans.0 * 1e3 / seen.spans.1 as f64,
        "resident_kib": resident_kib,
    })
}

fn percentiles(mut micros: Vec<u32>) -> Value {
    micros.sort_unstable();
    let at = |share: f64| micros.get((micros.len() as f64 * share) as usize).map(|&value| f64::from(value) / 1e3);
    json!({"p50": at(0.5), "p99": at(0.99)})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_sorted_values() {
        let values: Vec<u32> = (0..1000).rev().collect();
        assert_eq!(percentiles(values), json!({"p50": 0.5, "p99": 0.99}));
        assert_eq!(percentiles(Vec::new()), json!({"p50": null, "p99": null}));
    }
}
