//! What a process has used, as the kernel counts it.

use std::fs;
use std::time::Duration;

use crate::Outcome;

/// CPU time of all threads that a process has now, to the nanosecond. Threads that have ended are not in it: a server's do not
/// end while it is measured.
///
/// # Errors
/// When there is no such process.
pub fn cpu_time(pid: u32) -> Outcome<Duration> {
    let mut nanoseconds = 0;
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        let statistics = fs::read_to_string(thread?.path().join("schedstat"))?;
        let running = statistics.split_whitespace().next().ok_or("an empty schedstat")?;
        nanoseconds += running.parse::<u64>()?;
    }
    Ok(Duration::from_nanos(nanoseconds))
}

/// Resident memory of a process, in KiB.
///
/// # Errors
/// When there is no such process.
pub fn resident_kib(pid: u32) -> Outcome<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("a process without memory")?;
    Ok(line.split_whitespace().next().ok_or("an empty VmRSS")?.parse()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_used_something() {
        // Hidden from the optimiser, which else leaves out a buffer that nobody reads.
        let kept = std::hint::black_box(vec![1_u8; 4_000_000]);
        // Threads of other tests end meanwhile and take their time with them: only that there is some is certain.
        assert!(cpu_time(std::process::id()).unwrap() > Duration::ZERO);
        assert!(resident_kib(std::process::id()).unwrap() > kept.len() as u64 / 1024);
        assert!(cpu_time(u32::MAX).is_err());
    }
}
