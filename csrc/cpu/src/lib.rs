//! The CPU kernels of `csrc/cpu`, whose interface is `include/textgen_cpu.h`.

use std::ffi::{CStr, c_char};

/// `tg_api` of the header.
#[repr(C)]
struct Api {
    abi: u32,
}

unsafe extern "C" {
    fn tg_cpu_api(isa: *const c_char) -> *const Api;
    fn tg_cpu_isas() -> *const c_char;
    fn tg_cpu_reserve(bytes: i64);
}

/// The address of the table of functions for an instruction set, or for this machine's best; `None` when it has no such set.
pub fn api(isa: Option<&CStr>) -> Option<usize> {
    // SAFETY: the argument is null or a string that ends; the table is never freed.
    let table = unsafe { tg_cpu_api(isa.map_or(std::ptr::null(), CStr::as_ptr)) };
    (!table.is_null()).then_some(table as usize)
}

/// The instruction sets that [`api`] takes on this machine, best first.
pub fn isas() -> Vec<&'static str> {
    // SAFETY: a string that is never freed.
    let names = unsafe { CStr::from_ptr(tg_cpu_isas()) };
    names.to_str().unwrap_or_default().split(',').filter(|name| !name.is_empty()).collect()
}

/// Makes about so many bytes of memory in the background, for weights that will be created; 0 gives back what they did not
/// take.
pub fn reserve(bytes: u64) {
    // SAFETY: it may be called at any time, by any thread.
    unsafe { tg_cpu_reserve(i64::try_from(bytes).unwrap_or(0)) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_machine_has_the_portable_kernels_and_a_best() {
        assert!(isas().contains(&"portable"));
        assert!(api(Some(c"portable")).is_some());
        assert!(api(None).is_some());
        assert!(api(Some(c"abacus")).is_none());
    }
}
