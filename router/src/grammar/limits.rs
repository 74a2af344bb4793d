//! Every bound of structured output, in one place.

use std::time::Duration;

use llguidance::api::ParserLimits;

use crate::settings::Settings;

/// What a grammar may cost. Sources over a limit are refused with the limit's name and value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrammarLimits {
    /// Bytes of a source, as it is written.
    pub max_bytes: usize,
    /// How deeply schemas, groups and brackets may nest.
    pub max_depth: usize,
    /// Strings of a choice, and structures of a structural tag.
    pub max_choices: usize,
    /// Rules of a grammar in GBNF.
    pub max_rules: usize,
    /// How often a grammar in GBNF may repeat a part, repeats within repeats multiplied.
    pub max_repeats: u32,
    /// Product of the different `multipleOf`s of a schema, decimal points left out: an automaton counts up to it.
    pub max_multiple: u64,
    /// Symbols of a compiled grammar.
    pub max_grammar_size: usize,
    /// Work that building the automaton of a grammar may take, in `llguidance`'s units (about 50 thousand a millisecond).
    pub compile_fuel: u64,
    /// Work that one mask may take in the automaton, in `llguidance`'s units (about 14 thousand a millisecond).
    pub mask_fuel: u64,
    /// Work that one mask may take in the parser, in items (about 20 thousand a millisecond).
    pub mask_items: usize,
    /// Bytes of the shortest text that a regular expression may ask for, or characters that a grammar in GBNF may: a run that is forced becomes a state a byte.
    pub max_forced: usize,
    /// States that the automaton of a grammar may grow to (about 2 kB each, and 40 kB for deeply repeated patterns).
    pub max_states: usize,
    /// How long a request waits for its grammar.
    pub compile_timeout: Duration,
    /// Threads that compile.
    pub compile_threads: usize,
    /// Grammars that may wait for one of them; one more is `Overloaded`.
    pub max_waiting_compiles: usize,
    /// Grammars kept for later requests.
    pub cache_entries: usize,
    /// Bytes of the grammars kept for later requests.
    pub cache_bytes: usize,
}

impl Default for GrammarLimits {
    fn default() -> Self {
        Self {
            max_bytes: 256 << 10,
            max_depth: 64,
            max_choices: 4096,
            max_rules: 4096,
            max_repeats: 1 << 16,
            max_multiple: 10_000,
            max_grammar_size: 200_000,
            compile_fuel: 1_000_000,
            mask_fuel: 200_000,
            mask_items: 50_000,
            max_forced: 16 << 10,
            max_states: 20_000,
            compile_timeout: Duration::from_secs(1),
            compile_threads: 2,
            max_waiting_compiles: 128,
            cache_entries: 256,
            cache_bytes: 256 << 20,
        }
    }
}

impl From<&Settings> for GrammarLimits {
    fn from(settings: &Settings) -> Self {
        Self {
            max_bytes: settings.grammar_max_bytes,
            compile_timeout: Duration::from_millis(u64::from(settings.grammar_compile_timeout_ms)),
            cache_bytes: settings.grammar_cache_mb.saturating_mul(1 << 20),
            // A request in the house waits here at most once.
            max_waiting_compiles: settings.max_concurrent_requests.max(1),
            ..Self::default()
        }
    }
}

impl GrammarLimits {
    /// The part that `llguidance` itself watches.
    pub(super) fn parser(&self) -> ParserLimits {
        ParserLimits {
            max_grammar_size: self.max_grammar_size,
            initial_lexer_fuel: self.compile_fuel,
            step_lexer_fuel: self.mask_fuel,
            step_max_items: self.mask_items,
            max_lexer_states: self.max_states,
            // It would run large automata over all tokens at once, for seconds; the masks do the same as they need it.
            precompute_large_lexemes: false,
            // Its errors would quote the grammar and the answer so far, which belong into no log.
            verbose_errors: false,
            ..ParserLimits::default()
        }
    }
}
