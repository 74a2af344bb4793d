//! The CPU kernels of `csrc/cpu`, whose interface is `include/textgen_cpu.h`.

use std::ffi::{CStr, c_char, c_void};
use std::ptr::NonNull;

/// `tg_api` of the header.
#[repr(C)]
struct Api {
    abi: u32,
}

unsafe extern "C" {
    fn tg_cpu_api(isa: *const c_char) -> *const Api;
    fn tg_cpu_isas() -> *const c_char;
    fn tg_cpu_reserve(bytes: i64);
    fn tg_cpu_room(bytes: i64) -> *mut c_void;
    fn tg_cpu_leave(room: *mut c_void, bytes: i64);
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

/// Zeros at a multiple of 64, out of what was reserved if so many bytes are left of it, until it is dropped.
#[derive(Debug)]
pub struct Room {
    begin: NonNull<c_void>,
    bytes: i64,
}

// SAFETY: nothing but the drop touches the memory here, and that may be done by any thread.
unsafe impl Send for Room {}
// SAFETY: as above; what is shared is an address.
unsafe impl Sync for Room {}

impl Room {
    /// `None` for no bytes, and where there is no memory.
    pub fn new(bytes: u64) -> Option<Self> {
        let bytes = i64::try_from(bytes).ok()?;
        // SAFETY: it may be called at any time, by any thread.
        NonNull::new(unsafe { tg_cpu_room(bytes) }).map(|begin| Self { begin, bytes })
    }

    /// Where it begins.
    pub fn address(&self) -> usize {
        self.begin.as_ptr() as usize
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        // SAFETY: the room came from `tg_cpu_room` with these bytes, and this is its end.
        unsafe { tg_cpu_leave(self.begin.as_ptr(), self.bytes) };
    }
}

/// What [`Following::run`] came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Followed {
    /// All log-probabilities are finite.
    Well,
    /// Not all are; the tokens were not kept.
    Unsound,
    /// It did not run.
    Not,
}

/// `plan_follow` of the header.
type Follow = unsafe extern "C" fn(*const c_void, *const [i32; 2], i64, i32) -> i32;

/// A step that can be run again, `tg_following` of the header.
#[derive(Debug)]
pub struct Following {
    follow: Follow,
    following: *const c_void,
    tokens: *const i64,
    logprobs: *const f32,
    count: usize,
}

// SAFETY: its parts have no thread, and it cannot be copied.
unsafe impl Send for Following {}

impl Following {
    /// `None` where an address is 0.
    ///
    /// # Safety
    /// `follow` is the address of a table's `plan_follow`, `following` that of a `tg_following` of `count` tokens, and `tokens` and
    /// `logprobs` are where it finds them. All live as long as this does, and nobody else uses them meanwhile.
    pub unsafe fn new(follow: usize, following: usize, tokens: usize, logprobs: usize, count: usize) -> Option<Self> {
        if [follow, following, tokens, logprobs].contains(&0) {
            return None;
        }
        Some(Self {
            // SAFETY: the caller says that it is the address of such a function.
            follow: unsafe { std::mem::transmute::<usize, Follow>(follow) },
            following: following as *const c_void,
            tokens: tokens as *const i64,
            logprobs: logprobs as *const f32,
            count,
        })
    }

    /// Runs the step that comes, and keeps the tokens that it finds. begun: sequences whose token is the first of a block, and
    /// its page.
    pub fn run(&mut self, begun: &[[i32; 2]]) -> Followed {
        // SAFETY: see `new`; the pairs are as many as it is told.
        match unsafe { (self.follow)(self.following, begun.as_ptr(), begun.len() as i64, 1) } {
            0 => Followed::Well,
            1 => Followed::Unsound,
            _ => Followed::Not,
        }
    }

    /// The tokens that the last run has found, and their log-probabilities.
    pub fn found(&self) -> (&[i64], &[f32]) {
        // SAFETY: see `new`; nothing writes there but a run, for which this is borrowed.
        unsafe {
            (std::slice::from_raw_parts(self.tokens, self.count), std::slice::from_raw_parts(self.logprobs, self.count))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_room_is_zeros_and_large_ones_begin_at_a_page() {
        for bytes in [1_u64, 100, 5 << 20] {
            let room = Room::new(bytes).unwrap();
            assert_eq!(room.address() % 64, 0);
            // SAFETY: the room has so many bytes, and nobody else knows it.
            let zeros = unsafe { std::slice::from_raw_parts(room.address() as *const u8, bytes as usize) };
            assert!(zeros.iter().all(|byte| *byte == 0));
        }
        assert!(Room::new(0).is_none());
        assert!(Room::new(u64::MAX).is_none());
    }

    #[test]
    fn every_machine_has_the_portable_kernels_and_a_best() {
        assert!(isas().contains(&"portable"));
        assert!(api(Some(c"portable")).is_some());
        assert!(api(None).is_some());
        assert!(api(Some(c"abacus")).is_none());
    }
}
