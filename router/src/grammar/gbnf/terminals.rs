//! Which parts of a grammar of characters may be terminals of one that reads the longest text.
//!
//! Every part without recursion is a regular expression, and is tried as one terminal. Then each pair of terminals that may
//! be wanted at the same place is looked at: where one could read on behind the other's end into what the grammar wants next
//! (`[a-z]* "b"`), the one that reads on is taken apart, and all is tried again. At the end of that road are single
//! characters, of which none reads on.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::follow::{self, Bits, Places};
use super::overlap::Automaton;
use super::rules::{Expr, Rules};
use super::set::Set;

/// Size of one terminal at most.
const LARGEST: usize = 4096;
/// Size of all rules that are written into terminals.
const LARGEST_SUM: usize = 100_000;
/// Terminals that are looked at at most.
const MOST: usize = 512;
/// Pairs of characters looked at, and steps taken, before the search is given up.
const PATIENCE: usize = 500_000;

/// A grammar of terminals.
#[derive(Debug)]
pub(super) struct Plan {
    /// What they match. None of them needs to match the empty text.
    pub(super) terminals: Vec<Expr>,
    pub(super) start: Piece,
    /// The rules that are left, by their numbers.
    pub(super) rules: BTreeMap<usize, Piece>,
}

/// A part of a rule.
#[derive(Debug)]
pub(super) enum Piece {
    Terminal(usize),
    Sequence(Vec<Piece>),
    Choice(Vec<Piece>),
    Repeat(Box<Piece>, u32, Option<u32>),
    Rule(usize),
}

/// The best plan that was found.
pub(super) fn plan(rules: &Rules) -> Plan {
    let regular = Regular::of(rules);
    let mut apart = HashSet::new();
    let size: usize = rules.bodies.iter().map(Expr::size).sum();
    let mut patience = PATIENCE;
    loop {
        patience = patience.saturating_sub(size);
        let plan = Planner::new(rules, Some((&regular, &apart))).plan();
        match runners(&plan, &mut patience) {
            Some(found) if found.is_empty() => return plan,
            Some(found) => apart.extend(found),
            None => return Planner::new(rules, None).plan(),
        }
    }
}

/// The terminals that read on where they should not; none when that takes too long to find.
fn runners(plan: &Plan, patience: &mut usize) -> Option<HashSet<Expr>> {
    if plan.terminals.len() > MOST {
        return None;
    }
    let Places { mut follow, first } = follow::places(plan, patience)?;
    let mut automata: Vec<Option<Automaton>> = plan.terminals.iter().map(|_| None).collect();
    let mut found = HashSet::new();
    loop {
        let places: Vec<Bits> = follow.iter().chain([&first]).cloned().collect();
        let mut after: Vec<Option<Set>> = vec![None; plan.terminals.len()];
        let mut seen = HashSet::new();
        let mut grew = false;
        for place in places {
            let wanted: Vec<usize> = place.iter().collect();
            for (ends, on) in wanted.iter().flat_map(|&one| wanted.iter().map(move |&other| (one, other))) {
                if !seen.insert((ends, on)) || follow[ends].is_empty() {
                    continue;
                }
                if after[ends].is_none() {
                    after[ends] = Some(characters(plan, &mut automata, &follow[ends], patience)?);
                }
                prepare(plan, &mut automata, ends, patience)?;
                prepare(plan, &mut automata, on, patience)?;
                let (Some(one), Some(other), Some(after)) = (&automata[ends], &automata[on], &after[ends]) else {
                    return None;
                };
                let overlap = one.overlap(other, after, patience)?;
                if overlap.reads_on {
                    found.insert(plan.terminals[on].clone());
                }
                // A text that both match ends both, and what is wanted then is what may follow either.
                if overlap.same && follow[ends] != follow[on] {
                    let both = follow[ends].union(&follow[on]);
                    follow[ends] = both.clone();
                    follow[on] = both;
                    grew = true;
                }
            }
        }
        if !grew {
            return Some(found);
        }
    }
}

fn prepare(plan: &Plan, automata: &mut [Option<Automaton>], at: usize, patience: &mut usize) -> Option<()> {
    if automata[at].is_none() {
        automata[at] = Some(Automaton::of(&plan.terminals[at], patience)?);
    }
    Some(())
}

/// The characters that terminals begin with.
fn characters(plan: &Plan, automata: &mut [Option<Automaton>], terminals: &Bits, patience: &mut usize) -> Option<Set> {
    for at in terminals.iter() {
        prepare(plan, automata, at, patience)?;
    }
    let sets = terminals.iter().filter_map(|at| automata[at].as_ref()).flat_map(Automaton::first);
    let all: Vec<&Set> = sets.collect();
    *patience = patience.checked_sub(all.len())?;
    Some(Set::union(all))
}

/// The rules without recursion, written out: those that are.
struct Regular(Vec<Option<Expr>>);

impl Regular {
    fn of(rules: &Rules) -> Self {
        let count = rules.bodies.len();
        let mut search = Search { rules, begun: vec![false; count], found: Self(vec![None; count]), sum: 0 };
        (0..count).for_each(|rule| search.rule(rule));
        search.found
    }

    /// The expression without rules, if it has one and is not too large.
    fn written(&self, expr: &Expr) -> Option<Expr> {
        let all = |parts: &[Expr]| parts.iter().map(|part| self.written(part)).collect::<Option<Vec<_>>>();
        let written = match expr {
            Expr::Set(_) | Expr::Text(_) => expr.clone(),
            Expr::Sequence(parts) => Expr::sequence(all(parts)?),
            Expr::Choice(parts) => Expr::Choice(all(parts)?),
            Expr::Repeat(one, least, most) => Expr::Repeat(Box::new(self.written(one)?), *least, *most),
            Expr::Rule(rule) => self.0[*rule].clone()?,
        };
        (written.size() <= LARGEST).then_some(written)
    }
}

struct Search<'a> {
    rules: &'a Rules,
    begun: Vec<bool>,
    found: Regular,
    sum: usize,
}

impl Search<'_> {
    /// Looks at the rules that it refers to first. One that comes back to itself finds nothing of itself, and is none.
    fn rule(&mut self, rule: usize) {
        if std::mem::replace(&mut self.begun[rule], true) {
            return;
        }
        let body = &self.rules.bodies[rule];
        let mut references = Vec::new();
        body.references(&mut references);
        references.into_iter().for_each(|reference| self.rule(reference));
        let written = self.found.written(body);
        self.sum += written.as_ref().map_or(0, Expr::size);
        self.found.0[rule] = written.filter(|_| self.sum <= LARGEST_SUM);
    }
}

struct Planner<'a> {
    rules: &'a Rules,
    /// Regular rules, and the terminals that are taken apart; without them every character is a terminal.
    merged: Option<(&'a Regular, &'a HashSet<Expr>)>,
    numbers: HashMap<Expr, usize>,
    waiting: Vec<usize>,
    plan: Plan,
}

impl<'a> Planner<'a> {
    fn new(rules: &'a Rules, merged: Option<(&'a Regular, &'a HashSet<Expr>)>) -> Self {
        let plan = Plan { terminals: Vec::new(), start: Piece::Sequence(Vec::new()), rules: BTreeMap::new() };
        Self { rules, merged, numbers: HashMap::new(), waiting: Vec::new(), plan }
    }

    fn plan(mut self) -> Plan {
        self.plan.start = self.piece(&Expr::Rule(self.rules.root));
        while let Some(rule) = self.waiting.pop() {
            if !self.plan.rules.contains_key(&rule) {
                let piece = self.piece(&self.rules.bodies[rule]);
                self.plan.rules.insert(rule, piece);
            }
        }
        self.plan
    }

    fn piece(&mut self, expr: &Expr) -> Piece {
        if let Some(terminal) = self.merged(expr) {
            return terminal;
        }
        match expr {
            Expr::Set(_) => self.terminal(expr.clone()),
            Expr::Text(text) => {
                Piece::Sequence(text.chars().map(|one| self.terminal(Expr::Set(Set::one(one)))).collect())
            }
            Expr::Sequence(parts) => self.sequence(parts),
            Expr::Choice(parts) => Piece::Choice(parts.iter().map(|part| self.piece(part)).collect()),
            Expr::Repeat(one, least, most) => Piece::Repeat(Box::new(self.piece(one)), *least, *most),
            Expr::Rule(rule) => {
                self.waiting.push(*rule);
                Piece::Rule(*rule)
            }
        }
    }

    /// A sequence whose neighbours without recursion are together, unless that is all of it.
    fn sequence(&mut self, parts: &[Expr]) -> Piece {
        let regular = self.merged.map(|(regular, _)| regular);
        let parts: Vec<(bool, &Expr)> =
            parts.iter().map(|part| (regular.is_some_and(|regular| regular.written(part).is_some()), part)).collect();
        let alone = parts.iter().all(|(regular, _)| *regular);
        let mut pieces = Vec::new();
        for run in parts.chunk_by(|one, next| one.0 && next.0 && !alone) {
            let run = run.iter().map(|(_, part)| (*part).clone()).collect();
            pieces.push(self.piece(&Expr::sequence(run)));
        }
        Piece::Sequence(pieces)
    }

    /// The expression as one terminal, if it can be.
    fn merged(&mut self, expr: &Expr) -> Option<Piece> {
        let (regular, apart) = self.merged?;
        let written = regular.written(expr)?;
        if written == Expr::nothing() {
            return Some(Piece::Sequence(Vec::new()));
        }
        let optional = written.is_nullable();
        let core = match written {
            Expr::Repeat(one, 0, most) if !one.is_nullable() => match most {
                Some(1) => *one,
                most => Expr::Repeat(one, 1, most),
            },
            other => other,
        };
        if apart.contains(&core) && !matches!(core, Expr::Set(_)) {
            return None;
        }
        let terminal = self.terminal(core);
        Some(if optional { Piece::Repeat(Box::new(terminal), 0, Some(1)) } else { terminal })
    }

    fn terminal(&mut self, expr: Expr) -> Piece {
        let next = self.plan.terminals.len();
        let number = *self.numbers.entry(expr).or_insert_with_key(|expr| {
            self.plan.terminals.push(expr.clone());
            next
        });
        Piece::Terminal(number)
    }
}
