//! Regular expressions: read once before `llguidance` sees them, so that what it cannot enforce has a name.

use std::convert::Infallible;
use std::ops::Range;

use regex_syntax::ParserBuilder;
use regex_syntax::ast::parse::Parser;
use regex_syntax::ast::{Ast, GroupKind, Visitor, visit};
use regex_syntax::hir::Look;

use super::error::GrammarError;
use super::limits::GrammarLimits;

/// A regular expression that the whole answer must match, without the anchors that say so. Rust's syntax; classes mean what
/// Rust and Python agree on.
///
/// # Errors
/// `Invalid` when it does not parse, `Unsupported` for what is not regular (look-around, back references) or looks beyond
/// the answer (anchors and word boundaries inside).
pub(super) fn whole(pattern: &str, limits: &GrammarLimits) -> Result<String, GrammarError> {
    let inner = without_anchors(pattern);
    check(inner, limits)?;
    Ok(ungrouped(&agreed(inner, true)))
}

/// A regular expression that some part of a string must match, with its anchors. Classes mean what ECMAScript and Python agree
/// on: digits and words are ASCII's in `llguidance` already.
///
/// # Errors
/// As [`whole`].
pub(super) fn part(pattern: &str, limits: &GrammarLimits) -> Result<String, GrammarError> {
    check(without_anchors(pattern), limits)?;
    Ok(ungrouped(&agreed(pattern, false)))
}

/// The pattern with each class that dialects read differently narrowed to what they have in common: U+0085 is a space to some,
/// U+FEFF to others, a combining accent is part of a word here and not there, and the digits of other scripts are none to many.
fn agreed(pattern: &str, words: bool) -> String {
    let mut narrowed = String::with_capacity(pattern.len());
    let mut characters = pattern.chars();
    while let Some(character) = characters.next() {
        if character != '\\' {
            narrowed.push(character);
            continue;
        }
        match characters.next() {
            Some('s') => narrowed.push_str(r"[\t-\r ]"),
            Some('S') => narrowed.push_str(r"[^\s\x{FEFF}\x1C-\x1F]"),
            Some('d') if words => narrowed.push_str("[0-9]"),
            // Letters that are known for long: what came later is none to an older reader.
            Some('w') if words => narrowed.push_str(r"[[\p{L}\p{Nd}_]&&\p{age:12.0}]"),
            Some('W') if words => narrowed.push_str(r"[^\w\p{N}]"),
            escaped => {
                narrowed.push('\\');
                narrowed.extend(escaped);
            }
        }
    }
    narrowed
}

/// The pattern with groups that capture nothing: nobody asks what they captured, alternatives within alternatives are then
/// read as one list (`llguidance` fails on some that are not, such as `\w|(\w|\p{L}|ab)`), and none has a name, of which
/// `stop` means something to it.
fn ungrouped(pattern: &str) -> String {
    let Ok(parsed) = Parser::new().parse(pattern) else { return pattern.to_owned() };
    let Ok(openings) = visit(&parsed, Openings::default());
    let mut written = String::with_capacity(pattern.len() + 2 * openings.len());
    let mut rest = 0;
    for opening in openings {
        written.push_str(&pattern[rest..opening.start]);
        written.push_str("(?:");
        rest = opening.end;
    }
    written.push_str(&pattern[rest..]);
    written
}

/// Where groups that capture are opened, from the bracket to what follows a name, in the order of the text.
#[derive(Default)]
struct Openings(Vec<Range<usize>>);

impl Visitor for Openings {
    type Output = Vec<Range<usize>>;
    type Err = Infallible;

    fn finish(self) -> Result<Self::Output, Infallible> {
        Ok(self.0)
    }

    fn visit_pre(&mut self, part: &Ast) -> Result<(), Infallible> {
        if let Ast::Group(group) = part {
            let start = group.span.start.offset;
            match &group.kind {
                GroupKind::CaptureIndex(_) => self.0.push(start..start + 1),
                GroupKind::CaptureName { name, .. } => self.0.push(start..name.span.end.offset + 1),
                GroupKind::NonCapturing(_) => {}
            }
        }
        Ok(())
    }
}

fn check(pattern: &str, limits: &GrammarLimits) -> Result<(), GrammarError> {
    if let Some(name) = not_regular(pattern) {
        return Err(GrammarError::Unsupported(format!(
            "{name} in a regular expression cannot be enforced; rewrite it"
        )));
    }
    let depth = u32::try_from(limits.max_depth).unwrap_or(u32::MAX);
    let parsed = ParserBuilder::new().nest_limit(depth).build().parse(pattern).map_err(|error| match &error {
        regex_syntax::Error::Parse(inner)
            if matches!(inner.kind(), regex_syntax::ast::ErrorKind::NestLimitExceeded(_)) =>
        {
            GrammarError::TooComplex(format!("a regular expression nests deeper than {depth}; flatten it"))
        }
        _ => GrammarError::Invalid(format!("a regular expression does not parse: {}", reason(&error))),
    })?;
    if parsed.properties().minimum_len().is_some_and(|length| length > limits.max_forced) {
        let most = limits.max_forced;
        let sentence = format!("a regular expression asks for more than {most} bytes at least; repeat less often");
        return Err(GrammarError::TooComplex(sentence));
    }
    match parsed.properties().look_set().iter().next() {
        None => Ok(()),
        Some(look) => {
            let name = look_name(look);
            Err(GrammarError::Unsupported(format!("{name} inside a regular expression cannot be enforced; rewrite it")))
        }
    }
}

/// `^` at the beginning and `$` at the end say what holds anyway.
fn without_anchors(pattern: &str) -> &str {
    let pattern = pattern.strip_prefix('^').unwrap_or(pattern);
    let Some(inner) = pattern.strip_suffix('$') else { return pattern };
    let escapes = inner.bytes().rev().take_while(|&byte| byte == b'\\').count();
    if escapes % 2 == 0 { inner } else { pattern }
}

/// Constructs that other engines know and no automaton can follow.
fn not_regular(pattern: &str) -> Option<&'static str> {
    let mut rest = pattern;
    while let Some(at) = rest.find(['\\', '(']) {
        let tail = &rest[at..];
        let skipped = if let Some(escaped) = tail.strip_prefix('\\') {
            match escaped.chars().next() {
                Some('1'..='9' | 'k') => return Some("a back reference"),
                Some(character) => 1 + character.len_utf8(),
                None => 1,
            }
        } else {
            for (open, name) in
                [("(?=", "a look-ahead"), ("(?!", "a look-ahead"), ("(?<=", "a look-behind"), ("(?<!", "a look-behind")]
            {
                if tail.starts_with(open) {
                    return Some(name);
                }
            }
            1
        };
        rest = &tail[skipped..];
    }
    None
}

fn look_name(look: Look) -> &'static str {
    match look {
        Look::Start | Look::StartLF | Look::StartCRLF => "an anchor for the beginning",
        Look::End | Look::EndLF | Look::EndCRLF => "an anchor for the end",
        _ => "a word boundary",
    }
}

/// The sentence of an error, without the drawing around it.
fn reason(error: &regex_syntax::Error) -> String {
    match error {
        regex_syntax::Error::Parse(error) => error.kind().to_string(),
        regex_syntax::Error::Translate(error) => error.kind().to_string(),
        _ => "it is not valid".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_capture_nothing() {
        for (given, written) in [
            ("a", "a"),
            ("(a|(b))c", "(?:a|(?:b))c"),
            ("(?i:x)(?P<stop>é)(?<n>y)(?:z)", "(?i:x)(?:é)(?:y)(?:z)"),
            (r"[(](\()[]((]\(", r"[(](?:\()[]((]\("),
            ("(?x)(a) # (b\n(c)", "(?x)(?:a) # (b\n(?:c)"),
        ] {
            assert_eq!(ungrouped(given), written);
            regex_syntax::parse(written).unwrap();
        }
    }
}
