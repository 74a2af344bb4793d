//! The deadline of a call: `grpc-timeout`, by gRPC's own rules.

use std::time::{Duration, Instant};

use axum::http::HeaderMap;

const HEADER: &str = "grpc-timeout";
/// Most digits that the header may have.
const DIGITS: usize = 8;

/// When a call is given up, if it says so. As other servers do, a header that cannot be read is passed over.
pub(super) fn deadline(headers: &HeaderMap) -> Option<Instant> {
    Instant::now().checked_add(timeout(headers.get(HEADER)?.to_str().ok()?)?)
}

/// Reads a number and its unit, as in `100m`.
fn timeout(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > DIGITS || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(number * 3600),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_unit() {
        for (text, seconds) in [("2H", 7200.0), ("3M", 180.0), ("4S", 4.0), ("5m", 5e-3), ("6u", 6e-6), ("7n", 7e-9)] {
            assert_eq!(timeout(text), Some(Duration::from_secs_f64(seconds)), "{text}");
        }
        for text in ["", "S", "1", "1s", "-1S", "1.5S", "123456789S", "1é", "+1S"] {
            assert_eq!(timeout(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_header_breaks_the_reader(text: String, number in 0_u64..100_000_000) {
            let _ = timeout(&text);
            prop_assert_eq!(timeout(&format!("{number}m")), Some(Duration::from_millis(number)));
        }
    }
}
