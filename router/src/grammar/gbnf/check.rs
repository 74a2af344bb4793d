//! What a grammar of characters must hold to, before anything is made of it.

use std::collections::VecDeque;

use super::super::error::GrammarError;
use super::super::limits::GrammarLimits;
use super::rules::{Expr, Rules};

/// Lengths are counted up to here.
const LONG: u64 = 1 << 40;
/// Parts of rules looked at while their shortest texts are found.
const MOST_WORK: usize = 4_000_000;

/// # Errors
/// `Invalid` for a rule that never ends; `TooComplex` for repeats that multiply over a limit.
pub(super) fn check(rules: &Rules, limits: &GrammarLimits) -> Result<(), GrammarError> {
    let mut repeats = Repeats { rules, known: vec![Known::Not; rules.bodies.len()] };
    let (product, most) = (repeats.of_rule(rules.root), u64::from(limits.max_repeats));
    if product > most {
        return Err(GrammarError::TooComplex(format!(
            "a grammar's repeats within repeats multiply to more than {most}; repeat less often"
        )));
    }
    let lengths = shortest(rules)?;
    let reached = |rule: &usize| matches!(repeats.known[*rule], Known::Is(_));
    if let Some(endless) = (0..lengths.len()).filter(reached).find(|&rule| lengths[rule].is_none()) {
        let name = &rules.names[endless];
        return Err(GrammarError::Invalid(format!(
            "the rule `{name}` of the grammar refers to itself and never ends; give it an alternative without itself"
        )));
    }
    let most = limits.max_forced;
    if lengths[rules.root].is_some_and(|length| length > most as u64) {
        let sentence = format!("a grammar asks for more than {most} characters at least; repeat less often");
        return Err(GrammarError::TooComplex(sentence));
    }
    Ok(())
}

#[derive(Debug, Clone, Copy)]
enum Known {
    Not,
    /// It is being looked at. Recursion has no bound that a product could tell, so it counts once.
    Soon,
    Is(u64),
}

/// How far repeats within repeats multiply.
struct Repeats<'a> {
    rules: &'a Rules,
    known: Vec<Known>,
}

impl Repeats<'_> {
    fn of_rule(&mut self, rule: usize) -> u64 {
        match self.known[rule] {
            Known::Is(product) => product,
            Known::Soon => 1,
            Known::Not => {
                self.known[rule] = Known::Soon;
                let rules = self.rules;
                let product = self.of(&rules.bodies[rule]);
                self.known[rule] = Known::Is(product);
                product
            }
        }
    }

    fn of(&mut self, expr: &Expr) -> u64 {
        let inner = match expr {
            Expr::Rule(rule) => self.of_rule(*rule),
            other => other.children().iter().map(|child| self.of(child)).max().unwrap_or(1),
        };
        match expr {
            Expr::Repeat(_, least, most) => inner.saturating_mul(u64::from(most.unwrap_or(*least).max(1))),
            _ => inner,
        }
    }
}

/// Characters of each rule's shortest text; none for a rule that has no text at all. A rule is looked at again when one that
/// it refers to is found shorter.
fn shortest(rules: &Rules) -> Result<Vec<Option<u64>>, GrammarError> {
    let count = rules.bodies.len();
    let mut users = vec![Vec::new(); count];
    for (user, body) in rules.bodies.iter().enumerate() {
        let mut used = Vec::new();
        body.references(&mut used);
        used.sort_unstable();
        used.dedup();
        used.into_iter().for_each(|rule| users[rule].push(user));
    }
    let mut lengths = vec![None; count];
    let (mut queue, mut queued): (VecDeque<usize>, _) = ((0..count).collect(), vec![true; count]);
    let mut work = 0;
    while let Some(rule) = queue.pop_front() {
        queued[rule] = false;
        let length = length(&rules.bodies[rule], &lengths, &mut work);
        if work > MOST_WORK {
            let sentence = "a grammar's rules refer to each other in too many ways; use fewer rules";
            return Err(GrammarError::TooComplex(sentence.to_owned()));
        }
        // A length is only ever found, or found shorter.
        if length == lengths[rule] {
            continue;
        }
        lengths[rule] = length;
        for &user in &users[rule] {
            if !std::mem::replace(&mut queued[user], true) {
                queue.push_back(user);
            }
        }
    }
    Ok(lengths)
}

fn length(expr: &Expr, lengths: &[Option<u64>], work: &mut usize) -> Option<u64> {
    *work += 1;
    let mut of = |child: &Expr| length(child, lengths, work);
    match expr {
        Expr::Set(_) => Some(1),
        Expr::Text(text) => Some(text.chars().count() as u64),
        Expr::Sequence(parts) => parts.iter().try_fold(0, |sum: u64, part| Some((sum + of(part)?).min(LONG))),
        Expr::Choice(parts) => parts.iter().filter_map(of).min(),
        Expr::Repeat(_, 0, _) => Some(0),
        Expr::Repeat(one, least, _) => of(one).map(|length| length.saturating_mul(u64::from(*least)).min(LONG)),
        Expr::Rule(rule) => lengths[*rule],
    }
}
