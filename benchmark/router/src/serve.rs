//! The real server, with a shard that computes nothing in a process of its own.

use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use rustix::fs::MemfdFlags;
use serde_json::json;
use textgen_router::server::Server;
use textgen_router::settings::Settings;

use crate::Outcome;
use crate::options::Options;

/// Serves until standard input ends. `--settings` is a file with the launcher's settings; `--shard-core` pins the shard.
///
/// # Errors
/// When the server or its shard do not start.
pub fn run(options: &Options) -> Outcome {
    let settings: Settings = serde_json::from_slice(&std::fs::read(options.required("settings")?)?)?;
    let began = Instant::now();
    let server = Server::start(settings)?;
    let started = began.elapsed();
    let (socket, theirs) = UnixStream::pair()?;
    let mut shard = spawn_shard(options, theirs.into())?;
    let memory = rustix::fs::memfd_create("none", MemfdFlags::CLOEXEC)?;
    let (hello, _lost) = server.attach(socket.into(), memory, PathBuf::from("/nowhere"))?;
    server.block_on(hello).ok_or("the engine ended")???;
    println!(
        "{}",
        json!({"address": server.address().map(|address| address.to_string()), "pid": std::process::id(), "start_seconds": started.as_secs_f64()})
    );
    // Whoever started this holds the other end.
    std::io::stdin().read_to_end(&mut Vec::new())?;
    server.stop();
    shard.wait()?;
    Ok(())
}

fn spawn_shard(options: &Options, socket: OwnedFd) -> Outcome<Child> {
    let this = std::env::current_exe()?;
    let mut command = match options.text("shard-core") {
        Some(core) => {
            let mut pinned = Command::new("taskset");
            pinned.arg("-c").arg(core).arg(this);
            pinned
        }
        None => Command::new(this),
    };
    command.arg("shard").stdin(Stdio::from(socket));
    for name in ["step-ms", "first-token", "vocabulary", "slots", "blocks"] {
        if let Some(value) = options.text(name) {
            command.arg(format!("--{name}")).arg(value);
        }
    }
    Ok(command.spawn()?)
}
