//! Takes Swagger UI's files out of the archive that the crate `utoipa-swagger-ui-vendored` holds, for `http::docs`. The
//! archive has them deflated, which is what is inside a gzip file: they are wrapped, never decompressed. And writes the
//! messages and the service of gRPC for `grpc`, with a compiler of Protocol Buffers that is a library.

use std::error::Error;
use std::path::Path;
use std::{env, fs};

use utoipa_swagger_ui_vendored::SWAGGER_UI_VENDORED as ARCHIVE;

/// The messages and the services of gRPC.
const PROTOS: [&str; 2] = ["proto/open_inference.proto", "proto/health.proto"];
/// The files that the page needs.
const FILES: [&str; 3] = ["swagger-ui.css", "swagger-ui-bundle.js", "favicon-32x32.png"];
/// Begins an entry of the archive's directory.
const ENTRY: &[u8] = b"PK\x01\x02";
/// Begins the end of the directory, which says where it starts.
const END: &[u8] = b"PK\x05\x06";
/// The method of an entry that is not compressed, and of one that is deflated.
const STORED: usize = 0;
const DEFLATED: usize = 8;
/// A gzip file without name or time.
const GZIP_HEAD: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    PROTOS.iter().for_each(|proto| println!("cargo::rerun-if-changed={proto}"));
    tonic_prost_build::configure().build_transport(false).compile_fds(protox::compile(PROTOS, ["proto"])?)?;
    let folder = env::var_os("OUT_DIR").ok_or("cargo names no OUT_DIR")?;
    for name in FILES {
        let content = find(&format!("/dist/{name}")).ok_or_else(|| format!("Swagger UI's archive has no {name}"))?;
        fs::write(Path::new(&folder).join(name), content)?;
    }
    Ok(())
}

/// The file whose path ends so, but for its first folder: as it is where it is stored, else as a gzip file.
fn find(suffix: &str) -> Option<Vec<u8>> {
    let end = ARCHIVE.windows(END.len()).rposition(|window| window == END)?;
    let mut at = number(end + 16, 4)?;
    while ARCHIVE.get(at..at + ENTRY.len())? == ENTRY {
        let (name, extra, comment) = (number(at + 28, 2)?, number(at + 30, 2)?, number(at + 32, 2)?);
        let path = std::str::from_utf8(ARCHIVE.get(at + 46..at + 46 + name)?).ok()?;
        if path.find('/').is_some_and(|slash| &path[slash..] == suffix) {
            return content(at);
        }
        at += 46 + name + extra + comment;
    }
    None
}

/// What the entry of the directory at `at` stands for.
fn content(at: usize) -> Option<Vec<u8>> {
    let local = number(at + 42, 4)?;
    let begin = local + 30 + number(local + 26, 2)? + number(local + 28, 2)?;
    let data = ARCHIVE.get(begin..begin + number(at + 20, 4)?)?;
    let (checksum, length) = (ARCHIVE.get(at + 16..at + 20)?, ARCHIVE.get(at + 24..at + 28)?);
    match number(at + 10, 2)? {
        STORED => Some(data.to_vec()),
        DEFLATED => Some([&GZIP_HEAD, data, checksum, length].concat()),
        _ => None,
    }
}

/// A little-endian number.
fn number(at: usize, bytes: usize) -> Option<usize> {
    let digits = ARCHIVE.get(at..at + bytes)?;
    Some(digits.iter().rev().fold(0, |number, &byte| number << 8 | usize::from(byte)))
}
