//! Where a JSON object or array ends.

/// Follows brackets and strings. It does not check the JSON: what a model wrote is passed on as it is.
#[derive(Debug, Default)]
pub(in super::super::super) struct Span {
    depth: usize,
    in_string: bool,
    escaped: bool,
}

impl Span {
    /// Whether the next character stands in no bracket and no string.
    pub(in super::super::super) fn is_outside(&self) -> bool {
        self.depth == 0 && !self.in_string
    }

    /// Takes the next character, the first being the opening one; whether it is the last.
    pub(in super::super::super) fn step(&mut self, c: char) -> bool {
        if self.in_string {
            match c {
                _ if self.escaped => self.escaped = false,
                '\\' => self.escaped = true,
                '"' => self.in_string = false,
                _ => {}
            }
        } else {
            match c {
                '"' => self.in_string = true,
                '{' | '[' => self.depth += 1,
                '}' | ']' => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
        }
        self.is_outside()
    }
}
