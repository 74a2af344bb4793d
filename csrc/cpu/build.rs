//! Compiles the kernels once for each instruction set of `targets`, and what they share once. `TEXTGEN_BUILD_ISAS` may name
//! those that are enough, as `make` does for a build that stays on this machine: each takes minutes of a core.

use std::path::{Path, PathBuf};
use std::{env, fs, thread};

#[allow(clippy::disallowed_methods)] // cargo tells a build script of its target by the environment
fn main() {
    println!("cargo::rerun-if-changed=src");
    println!("cargo::rerun-if-changed=include");
    println!("cargo::rerun-if-changed=targets");
    println!("cargo::rerun-if-env-changed=TEXTGEN_BUILD_ISAS");
    if is_linted() {
        return;
    }
    let arch = env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    let here = env::var("HOST") == env::var("TARGET");
    let enough = if here { env::var("TEXTGEN_BUILD_ISAS").unwrap_or_default() } else { String::new() };
    let wanted = |name: &str| {
        name == "portable" || enough.trim().is_empty() || enough.split_whitespace().any(|each| each == name)
    };
    let targets = fs::read_to_string("targets").unwrap_or_default();
    let targets: Vec<Vec<&str>> = targets
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|words| words.len() > 1 && words[0] == arch && wanted(words[1]))
        .collect();
    let kernels = sources("src/kernels");
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    thread::scope(|scope| {
        for words in &targets {
            scope.spawn(|| {
                let name = words[1];
                let mut build = compiler();
                // A folder of its own: cc names objects after their source, and the sets are compiled at once.
                build.files(&kernels).define("TG_ISA", name).out_dir(out.join(name));
                for flag in &words[2..] {
                    build.flag(flag);
                }
                build.compile(&format!("textgen_kernels_{name}"));
            });
        }
        scope.spawn(|| {
            let mut build = compiler();
            build.files(sources("src"));
            for words in &targets {
                build.define(&format!("TG_HAS_{}", words[1].to_uppercase()), None);
            }
            build.compile("textgen_cpu_shared");
        });
    });
}

/// Whether this is Clippy's run, which links nothing. Its build scripts are run apart from those of a build.
fn is_linted() -> bool {
    env::var_os("RUSTC_WORKSPACE_WRAPPER").is_some_and(|wrapper| Path::new(&wrapper).ends_with("clippy-driver"))
}

/// No exceptions, no run-time types and no global constructors: nothing of the C++ library is linked.
fn compiler() -> cc::Build {
    let mut build = cc::Build::new();
    build
        .cpp(true)
        .std("c++20")
        .cpp_link_stdlib(None)
        .include("include")
        .opt_level(3)
        .warnings(true)
        .extra_warnings(true);
    // No contraction: a quantized number is the same on every instruction set; where a fused product is meant, it is written.
    for flag in [
        "-fno-exceptions",
        "-fno-rtti",
        "-fno-threadsafe-statics",
        "-fvisibility=hidden",
        "-fno-math-errno",
        "-ffp-contract=off",
    ] {
        build.flag(flag);
    }
    build.flag_if_supported("-Wno-maybe-uninitialized"); // GCC warns of its own intrinsics
    build.debug(false);
    build
}

fn sources(folder: impl AsRef<Path>) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> =
        entries.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|end| end == "cpp")).collect();
    paths.sort();
    paths
}
