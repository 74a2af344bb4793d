//! Whether one terminal reads on where another ends.

use std::collections::{HashSet, VecDeque};

use super::rules::Expr;
use super::set::Set;

/// A terminal as the places of its characters (Glushkov's automaton). A part that is repeated so and so often counts as
/// repeated without end, so the automaton takes all texts of the terminal and sometimes more.
#[derive(Debug, Default)]
pub(super) struct Automaton {
    characters: Vec<Set>,
    first: Vec<usize>,
    next: Vec<Vec<usize>>,
    last: Vec<bool>,
}

/// How two terminals that are wanted at the same place get on.
#[derive(Debug, Default)]
pub(super) struct Overlap {
    /// Behind a text of the one, the other reads a character that may come next.
    pub(super) reads_on: bool,
    /// Some text is one of both.
    pub(super) same: bool,
}

/// A part of an automaton.
struct Part {
    nullable: bool,
    first: Vec<usize>,
    last: Vec<usize>,
}

impl Automaton {
    /// None when it takes too long.
    pub(super) fn of(terminal: &Expr, patience: &mut usize) -> Option<Self> {
        let mut automaton = Self::default();
        let whole = automaton.add(terminal, patience)?;
        automaton.first = whole.first;
        automaton.last = vec![false; automaton.characters.len()];
        whole.last.into_iter().for_each(|place| automaton.last[place] = true);
        for next in &mut automaton.next {
            next.sort_unstable();
            next.dedup();
        }
        Some(automaton)
    }

    /// The characters that it begins with.
    pub(super) fn first(&self) -> impl Iterator<Item = &Set> {
        self.first.iter().map(|&place| &self.characters[place])
    }

    fn add(&mut self, expr: &Expr, patience: &mut usize) -> Option<Part> {
        Some(match expr {
            Expr::Set(set) => self.place(set.clone()),
            Expr::Text(text) => {
                let mut whole = Part { nullable: true, first: Vec::new(), last: Vec::new() };
                for one in text.chars() {
                    let next = self.place(Set::one(one));
                    whole = self.joined(whole, next, patience)?;
                }
                whole
            }
            Expr::Sequence(parts) => {
                let mut whole = Part { nullable: true, first: Vec::new(), last: Vec::new() };
                for part in parts {
                    let next = self.add(part, patience)?;
                    whole = self.joined(whole, next, patience)?;
                }
                whole
            }
            Expr::Choice(parts) => {
                let mut whole = Part { nullable: false, first: Vec::new(), last: Vec::new() };
                for part in parts {
                    let one = self.add(part, patience)?;
                    whole.nullable |= one.nullable;
                    whole.first.extend(one.first);
                    whole.last.extend(one.last);
                }
                whole
            }
            Expr::Repeat(one, least, most) => {
                let mut part = self.add(one, patience)?;
                if *most != Some(1) {
                    self.link(&part.last, &part.first, patience)?;
                }
                part.nullable |= *least == 0;
                part
            }
            // Terminals are written without rules.
            Expr::Rule(_) => return None,
        })
    }

    fn place(&mut self, set: Set) -> Part {
        let place = self.characters.len();
        self.characters.push(set);
        self.next.push(Vec::new());
        Part { nullable: false, first: vec![place], last: vec![place] }
    }

    fn joined(&mut self, mut one: Part, mut other: Part, patience: &mut usize) -> Option<Part> {
        self.link(&one.last, &other.first, patience)?;
        if one.nullable {
            one.first.extend(other.first);
        }
        if other.nullable {
            other.last.extend(one.last);
        }
        Some(Part { nullable: one.nullable && other.nullable, first: one.first, last: other.last })
    }

    fn link(&mut self, from: &[usize], to: &[usize], patience: &mut usize) -> Option<()> {
        *patience = patience.checked_sub(from.len() * to.len())?;
        for &place in from {
            self.next[place].extend(to);
        }
        Some(())
    }

    /// How `other` gets on with this one, behind which a character of `after` may come. Follows both along all texts that they share a
    /// beginning of. None when it takes too long.
    pub(super) fn overlap(&self, other: &Self, after: &Set, patience: &mut usize) -> Option<Overlap> {
        let mut overlap = Overlap::default();
        let mut seen = HashSet::new();
        let mut waiting = VecDeque::new();
        let mut go = |from: &[usize], to: &[usize], waiting: &mut VecDeque<_>| {
            *patience = patience.checked_sub(1 + from.len() * to.len())?;
            for (&one, &two) in from.iter().flat_map(|one| to.iter().map(move |two| (one, two))) {
                if self.characters[one].meets(&other.characters[two]) && seen.insert((one, two)) {
                    waiting.push_back((one, two));
                }
            }
            Some(())
        };
        go(&self.first, &other.first, &mut waiting)?;
        while let Some((one, two)) = waiting.pop_front() {
            if self.last[one] {
                overlap.same |= other.last[two];
                overlap.reads_on |= other.next[two].iter().any(|&next| after.meets(&other.characters[next]));
            }
            go(&self.next[one], &other.next[two], &mut waiting)?;
        }
        Some(overlap)
    }
}
