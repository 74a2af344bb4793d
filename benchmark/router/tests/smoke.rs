//! The parts work together: load and burst against the echo. Nothing is timed.

#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

const BINARY: &str = env!("CARGO_BIN_EXE_router-bench");

/// Ends the server when the test does.
struct Echo {
    child: Child,
    facts: Value,
}

impl Echo {
    fn start(options: &[&str]) -> Self {
        let mut command = Command::new(BINARY);
        let command = command.arg("echo").args(options).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Self { child, facts: serde_json::from_str(&line).unwrap() }
    }

    fn measure(&self, command: &str, options: &[&str]) -> Value {
        let pid = self.facts["pid"].to_string();
        let address = self.facts["address"].as_str().unwrap();
        let mut load = Command::new(BINARY);
        let output = load.args([command, "--address", address, "--pid", &pid]).args(options).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

#[test]
fn a_load_counts_what_the_echo_writes() {
    for step in ["0", "1"] {
        let echo = Echo::start(&["--step-ms", step]);
        let seen =
            echo.measure("load", &["--connections", "3", "--tokens", "5", "--warm-up", "0.1", "--window", "0.4"]);
        let number = |name: &str| seen[name].as_f64().unwrap();
        assert!(number("requests") > 0.0 && number("cpu_us_per_token") > 0.0, "{seen}");
        // Requests that lie across an end of the window make the only difference.
        assert!((number("tokens") - 5.0 * number("requests")).abs() <= 2.0 * 3.0 * 5.0, "{seen}");
    }
}

#[test]
fn a_burst_is_answered_whole() {
    let seen = Echo::start(&[]).measure("burst", &["--connections", "20", "--tokens", "4"]);
    assert_eq!((&seen["statuses"]["200"], &seen["tokens"]), (&Value::from(20), &Value::from(80)), "{seen}");
}
