//! Where random inputs come from: other ones in each run, the same ones where `TEXTGEN_TEST_SEED` is set.

use rand::SeedableRng;
use rand::rngs::StdRng;

/// Its seed is printed, so that a failing test says how to fail again.
#[allow(clippy::disallowed_methods, reason = "not a setting of the server")]
pub fn fresh_rng() -> StdRng {
    let given = std::env::var("TEXTGEN_TEST_SEED").ok();
    let seed = given.map_or_else(rand::random, |seed| seed.parse().expect("a whole number"));
    eprintln!("TEXTGEN_TEST_SEED={seed}");
    StdRng::seed_from_u64(seed)
}
