//! Many connections at once, one request each: who is served, who is refused, and how.

use std::collections::BTreeMap;
use std::time::Instant;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::answer::Answer;
use crate::load::Request;
use crate::options::Options;
use crate::{Outcome, process};

/// Prints how many answers had which status, how many refusals named a time to come back, and what the server's memory became.
///
/// # Errors
/// When a connection fails or an answer breaks off.
pub fn run(options: &Options) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(measure(options))
}

async fn measure(options: &Options) -> Outcome {
    let address = options.required("address")?.to_owned();
    let pid: u32 = options.required("pid")?.parse()?;
    let tokens = options.number("tokens", 64)?;
    let began = Instant::now();
    let mut calls = JoinSet::new();
    for _ in 0..options.number("connections", 2000)? {
        let address = address.clone();
        calls.spawn(async move { call(&address, tokens).await.map_err(|error| error.to_string()) });
    }
    let (mut statuses, mut come_back, mut events) = (BTreeMap::<String, u64>::new(), 0_u64, 0_u64);
    while let Some(answer) = calls.join_next().await {
        let answer = answer??;
        *statuses.entry(answer.status.unwrap_or(0).to_string()).or_default() += 1;
        if answer.status == Some(200) {
            events += answer.events();
        }
        come_back += u64::from(answer.retry_after);
    }
    println!(
        "{}",
        json!({
            "statuses": statuses,
            "with_retry_after": come_back,
            "tokens": events,
            "seconds": began.elapsed().as_secs_f64(),
            "resident_kib": process::resident_kib(pid)?,
        })
    );
    Ok(())
}

async fn call(address: &str, tokens: u64) -> Result<Answer, Box<dyn std::error::Error + Send + Sync>> {
    let mut connection = TcpStream::connect(address).await?;
    connection.write_all(&Request::stream("hello there", tokens).bytes).await?;
    let mut answer = Answer::default();
    let mut buffer = vec![0; 4 << 10];
    while !answer.done() {
        let read = connection.read(&mut buffer).await?;
        if read == 0 {
            return Err("an answer broke off".into());
        }
        answer.feed(&buffer[..read]).map_err(|error| error.to_string())?;
    }
    Ok(answer)
}
