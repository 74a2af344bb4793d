//! A plan in Lark.

use std::fmt::Write as _;

use super::rules::Expr;
use super::terminals::{Piece, Plan};

/// The plan as `llguidance` reads it.
pub(super) fn lark(plan: &Plan) -> String {
    let mut text = "start: ".to_owned();
    piece(&plan.start, &mut text);
    text.push('\n');
    for (number, body) in &plan.rules {
        let _ = write!(text, "r{number}: ");
        piece(body, &mut text);
        text.push('\n');
    }
    for (number, terminal) in plan.terminals.iter().enumerate() {
        let mut regex = String::new();
        write_regex(terminal, &mut regex);
        // A terminal that matches the empty text would be no terminal; where that is wanted, the rule says so.
        let but_empty = if terminal.is_nullable() { " & /(?s:.+)/" } else { "" };
        let _ = writeln!(text, "T{number}: /{}/{but_empty}", llguidance::regex_to_lark(&regex, ""));
    }
    text
}

fn piece(part: &Piece, text: &mut String) {
    match part {
        Piece::Terminal(number) => drop(write!(text, "T{number}")),
        Piece::Rule(number) => drop(write!(text, "r{number}")),
        Piece::Sequence(parts) if parts.is_empty() => text.push_str("\"\""),
        Piece::Sequence(parts) => group(parts, " ", text),
        Piece::Choice(parts) => group(parts, " | ", text),
        Piece::Repeat(one, least, most) => {
            text.push('(');
            piece(one, text);
            text.push(')');
            times(*least, *most, text);
        }
    }
}

fn group(parts: &[Piece], between: &str, text: &mut String) {
    text.push('(');
    for (at, part) in parts.iter().enumerate() {
        text.push_str(if at == 0 { "" } else { between });
        piece(part, text);
    }
    text.push(')');
}

/// A regular expression, in groups wherever one could be needed.
fn write_regex(expr: &Expr, regex: &mut String) {
    match expr {
        Expr::Set(set) => set.write(regex),
        Expr::Text(text) => regex.push_str(&regex_syntax::escape(text)),
        Expr::Sequence(parts) => parts.iter().for_each(|part| write_regex(part, regex)),
        Expr::Choice(parts) => {
            for (at, part) in parts.iter().enumerate() {
                regex.push_str(if at == 0 { "(?:" } else { "|" });
                write_regex(part, regex);
            }
            regex.push(')');
        }
        Expr::Repeat(one, least, most) => {
            regex.push_str("(?:");
            write_regex(one, regex);
            regex.push(')');
            times(*least, *most, regex);
        }
        // Terminals are written without rules.
        Expr::Rule(_) => {}
    }
}

fn times(least: u32, most: Option<u32>, text: &mut String) {
    match (least, most) {
        (0, None) => text.push('*'),
        (1, None) => text.push('+'),
        (0, Some(1)) => text.push('?'),
        (least, None) => drop(write!(text, "{{{least},}}")),
        (least, Some(most)) => drop(write!(text, "{{{least},{most}}}")),
    }
}
