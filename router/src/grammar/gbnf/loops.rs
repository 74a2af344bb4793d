//! Rules that refer to themselves at one end only, as loops.

use super::rules::{Expr, Rules};

/// Alternatives that one rule is taken apart into at most.
const MOST: usize = 256;
/// Size of a rule that is taken apart at most: what stands beside the recursion is written down for each alternative.
const LARGEST: usize = 1000;

/// Which end of a rule refers to itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Left,
    Right,
}

/// Writes `list ::= item "," list | item` as `list ::= (item ",")* item`, and the same for the other end. The texts are the
/// same, and a loop can be a terminal, while each level of a recursion is an item of the parser's.
pub(super) fn unroll(rules: &mut Rules) {
    for rule in 0..rules.bodies.len() {
        let body = &rules.bodies[rule];
        if body.size() > LARGEST || !body.refers_to(rule) {
            continue;
        }
        let looped = [End::Right, End::Left].into_iter().find_map(|end| looped(body, rule, end));
        if let Some(looped) = looped {
            rules.bodies[rule] = looped;
        }
    }
}

fn looped(body: &Expr, rule: usize, end: End) -> Option<Expr> {
    let alternatives = alternatives(body, rule, end)?;
    let (again, last): (Vec<_>, Vec<_>) = alternatives.into_iter().partition(|(_, recurs)| *recurs);
    let choice = |parts: Vec<(Vec<Expr>, bool)>| {
        Expr::choice(parts.into_iter().map(|(parts, _)| Expr::sequence(parts)).collect())
    };
    if again.is_empty() || last.is_empty() {
        return None;
    }
    let again = Expr::Repeat(Box::new(choice(again)), 0, None);
    let last = choice(last);
    Some(Expr::sequence(if end == End::Right { vec![again, last] } else { vec![last, again] }))
}

/// The alternatives of an expression, each as what stands beside the rule at the end and whether it stands there. None when it
/// stands anywhere else.
fn alternatives(expr: &Expr, rule: usize, end: End) -> Option<Vec<(Vec<Expr>, bool)>> {
    if !expr.refers_to(rule) {
        return Some(vec![(vec![expr.clone()], false)]);
    }
    let found = match expr {
        Expr::Rule(_) => vec![(Vec::new(), true)],
        Expr::Choice(parts) => {
            let mut all = Vec::new();
            for part in parts {
                all.extend(alternatives(part, rule, end)?);
                if all.len() > MOST {
                    return None;
                }
            }
            all
        }
        Expr::Sequence(parts) => {
            let (one, others) = match end {
                End::Right => parts.split_last()?,
                End::Left => parts.split_first()?,
            };
            if others.iter().any(|other| other.refers_to(rule)) {
                return None;
            }
            let beside = |(parts, recurs): (Vec<Expr>, bool)| {
                let all = match end {
                    End::Right => [others, &parts].concat(),
                    End::Left => [&parts, others].concat(),
                };
                (all, recurs)
            };
            alternatives(one, rule, end)?.into_iter().map(beside).collect()
        }
        Expr::Repeat(one, 0, Some(1)) => {
            let mut all = alternatives(one, rule, end)?;
            all.push((Vec::new(), false));
            all
        }
        Expr::Repeat(..) | Expr::Set(_) | Expr::Text(_) => return None,
    };
    Some(found)
}
