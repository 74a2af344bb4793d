//! Lark grammars of clients: what would change more than the shape of the answer is refused before it is compiled.

use super::error::GrammarError;
use super::limits::GrammarLimits;

/// Attributes of rules that are about sampling, or about text that is taken back.
const REFUSED: [&str; 4] = ["temperature", "stop", "lazy", "max_tokens"];

/// Checks brackets and attributes; the compiler reads the rest.
///
/// # Errors
/// `TooComplex` when brackets nest too deeply for a recursive reader, `Unsupported` for what is refused by name.
pub(super) fn check(text: &str, limits: &GrammarLimits) -> Result<(), GrammarError> {
    let mut depth = 0_usize;
    for piece in Pieces(text) {
        match piece {
            Piece::Open => depth += 1,
            Piece::Close => depth = depth.saturating_sub(1),
            Piece::Name(name, assigned) if assigned && REFUSED.contains(&name) => {
                return Err(refused(&format!("the attribute `{name}`")));
            }
            Piece::Directive("%llguidance") => return Err(refused("`%llguidance`")),
            Piece::String("x-guidance") => return Err(refused("`x-guidance`")),
            Piece::Name(..) | Piece::Directive(_) | Piece::String(_) => {}
        }
        if depth > limits.max_depth {
            let limit = limits.max_depth;
            return Err(GrammarError::TooComplex(format!("a grammar's brackets nest deeper than {limit}; flatten it")));
        }
    }
    Ok(())
}

fn refused(what: &str) -> GrammarError {
    GrammarError::Unsupported(format!("{what} of a Lark grammar is not supported; remove it"))
}

enum Piece<'a> {
    Open,
    Close,
    /// A name, and whether `=` follows.
    Name(&'a str, bool),
    Directive(&'a str),
    String(&'a str),
}

/// The pieces of a grammar that matter here; comments and regular expressions are passed over.
struct Pieces<'a>(&'a str);

impl<'a> Iterator for Pieces<'a> {
    type Item = Piece<'a>;

    fn next(&mut self) -> Option<Piece<'a>> {
        loop {
            let first = self.0.chars().next()?;
            match first {
                '(' | '[' | '{' => return Some(self.single(Piece::Open)),
                ')' | ']' | '}' => return Some(self.single(Piece::Close)),
                '"' => return Some(Piece::String(self.quoted('"'))),
                '/' if !self.0.starts_with("//") => {
                    self.quoted('/');
                }
                '/' | '#' => {
                    self.take(|character| character != '\n');
                }
                '%' => {
                    self.0 = &self.0[1..];
                    let name = self.take(is_name);
                    if name == "llguidance" {
                        return Some(Piece::Directive("%llguidance"));
                    }
                }
                _ if is_name(first) => {
                    let name = self.take(is_name);
                    return Some(Piece::Name(name, self.0.trim_start().starts_with('=')));
                }
                _ => self.0 = &self.0[first.len_utf8()..],
            }
        }
    }
}

impl<'a> Pieces<'a> {
    fn single(&mut self, piece: Piece<'a>) -> Piece<'a> {
        self.0 = &self.0[1..];
        piece
    }

    fn take(&mut self, belongs: impl Fn(char) -> bool) -> &'a str {
        let end = self.0.find(|character| !belongs(character)).unwrap_or(self.0.len());
        let (taken, rest) = self.0.split_at(end);
        self.0 = rest;
        taken
    }

    /// What stands between a quote and the next that is not escaped; a line's end ends it too.
    fn quoted(&mut self, quote: char) -> &'a str {
        let body = &self.0[1..];
        let mut escaped = false;
        let end = body.find(|character| {
            let ends = (character == quote && !escaped) || character == '\n';
            escaped = character == '\\' && !escaped;
            ends
        });
        let end = end.unwrap_or(body.len());
        self.0 = body.get(end + 1..).unwrap_or_default();
        &body[..end]
    }
}

fn is_name(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}
