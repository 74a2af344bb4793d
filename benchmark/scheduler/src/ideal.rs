//! What an unbounded cache would leave to compute, token for token.

use std::collections::HashSet;

use crate::trace::Trace;

/// Tokens of prompts that must be computed when everything that was ever run can be found again: of each prompt what no earlier
/// request has begun with, and at least its last token, from which the answer is sampled. The last token of an answer is never
/// run. Earlier is meant in the order of the trace.
#[must_use]
pub fn least_prompt_tokens(trace: &Trace) -> u64 {
    let mut seen: HashSet<u128> = HashSet::new();
    let mut computed = 0;
    for request in &trace.requests {
        let length = request.prompt.len();
        let mut state = 0;
        let mut known = true;
        let run = request.prompt.iter().chain(&request.output[..request.output.len() - 1]);
        for (place, &token) in run.enumerate() {
            state = extend(state, token);
            known = !seen.insert(state) && known;
            if place < length && (!known || place + 1 == length) {
                computed += 1;
            }
        }
    }
    computed
}

/// A hash of all tokens so far, wide enough that no two of the texts here meet.
fn extend(state: u128, token: u32) -> u128 {
    let mixed = (state ^ (u128::from(token) + 1)).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
    mixed ^ (mixed >> 64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{Class, Request, Starts, multi_turn};

    fn request(prompt: &[u32], output: &[u32]) -> Request {
        let (prompt, output) = (prompt.to_vec(), output.to_vec());
        Request { starts: Starts::At(0), class: Class::Chat, tenant: 0, prompt, output, max_new: 9 }
    }

    #[test]
    fn what_was_run_is_not_run_again() {
        let requests = vec![
            request(&[1, 2, 3], &[4, 5]),
            request(&[1, 2, 3], &[4]),
            request(&[1, 2, 3, 4, 9], &[4]),
            request(&[1, 2, 3, 4, 5, 6], &[4]),
            request(&[2, 3], &[4]),
        ];
        let trace = Trace { name: String::new(), seed: 0, requests };
        // All; the last token; the 9; the 5, which was sampled and never run, and the 6; all.
        assert_eq!(least_prompt_tokens(&trace), 3 + 1 + 1 + 2 + 2);
    }

    /// Against the plain way: the longest beginning shared with any that came before.
    #[test]
    fn it_is_what_comparing_each_with_all_gives() {
        let trace = multi_turn(11, 12, 2.0);
        let mut sum = 0;
        let mut run: Vec<Vec<u32>> = Vec::new();
        for request in &trace.requests {
            let shared =
                |other: &Vec<u32>| request.prompt.iter().zip(other).take_while(|(one, other)| one == other).count();
            let found = run.iter().map(shared).max().unwrap_or(0);
            sum += (request.prompt.len() - found).max(1) as u64;
            run.push([request.prompt.as_slice(), &request.output[..request.output.len() - 1]].concat());
        }
        assert_eq!(least_prompt_tokens(&trace), sum);
    }
}
