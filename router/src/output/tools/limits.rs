//! What a parser may hold.

/// Most bytes of text that may wait for what follows them.
const MOST_HELD: usize = 64 * 1024;

/// Most bytes of a tool's name or of a key.
const MOST_NAME: usize = 256;

/// Most lists and objects within each other in arguments that are not written as JSON.
const MOST_DEPTH: usize = 64;

/// Bounds of one parser. What goes beyond them is text, not a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ToolLimits {
    /// Bytes of text that may wait for what follows them.
    pub held: usize,
    /// Bytes of a tool's name or of a key.
    pub name: usize,
    /// Lists and objects within each other in arguments that are not written as JSON. JSON is passed on at any depth.
    pub depth: usize,
}

impl Default for ToolLimits {
    fn default() -> Self {
        Self { held: MOST_HELD, name: MOST_NAME, depth: MOST_DEPTH }
    }
}
