//! Which terminals may be wanted at the same place: at the beginning, or behind one that was read.

use super::terminals::{Piece, Plan};

/// Terminals, by number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Bits(Vec<u64>);

impl Bits {
    fn new(count: usize) -> Self {
        Self(vec![0; count.div_ceil(64)])
    }

    fn set(&mut self, bit: usize) {
        self.0[bit / 64] |= 1 << (bit % 64);
    }

    fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(word, more)| *word |= more);
    }

    pub(super) fn union(&self, other: &Self) -> Self {
        let mut both = self.clone();
        both.add(other);
        both
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(|&word| word == 0)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = usize> {
        let bits =
            |(at, &word): (usize, &u64)| (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| 64 * at + bit);
        self.0.iter().enumerate().flat_map(bits)
    }
}

/// What may be wanted where.
pub(super) struct Places {
    /// Behind each terminal.
    pub(super) follow: Vec<Bits>,
    /// At the beginning.
    pub(super) first: Bits,
}

/// A part of a grammar: whether it can be nothing, and the terminals that it begins and ends with.
#[derive(Debug, Clone, PartialEq)]
struct Ends {
    nullable: bool,
    first: Bits,
    last: Bits,
}

/// None when it takes too long.
pub(super) fn places(plan: &Plan, patience: &mut usize) -> Option<Places> {
    let count = plan.terminals.len();
    let rules = plan.rules.keys().next_back().map_or(0, |most| most + 1);
    let none = Ends { nullable: false, first: Bits::new(count), last: Bits::new(count) };
    let mut search =
        Search { none: none.clone(), rules: vec![none; rules], follow: vec![Bits::new(count); count], patience };
    loop {
        let mut changed = false;
        for (&rule, piece) in &plan.rules {
            let ends = search.ends(piece)?;
            changed |= ends != search.rules[rule];
            search.rules[rule] = ends;
        }
        if !changed {
            break;
        }
    }
    // All that was found on the way stands: it only grew.
    let first = search.ends(&plan.start)?.first;
    Some(Places { follow: search.follow, first })
}

struct Search<'a> {
    none: Ends,
    rules: Vec<Ends>,
    follow: Vec<Bits>,
    patience: &'a mut usize,
}

impl Search<'_> {
    fn ends(&mut self, piece: &Piece) -> Option<Ends> {
        *self.patience = self.patience.checked_sub(1 + self.none.first.0.len())?;
        Some(match piece {
            Piece::Terminal(terminal) => {
                let mut ends = self.none.clone();
                ends.first.set(*terminal);
                ends.last.set(*terminal);
                ends
            }
            Piece::Rule(rule) => self.rules[*rule].clone(),
            Piece::Sequence(parts) => {
                let mut ends = Ends { nullable: true, ..self.none.clone() };
                for part in parts {
                    let next = self.ends(part)?;
                    self.meet(&ends.last, &next.first)?;
                    if ends.nullable {
                        ends.first.add(&next.first);
                    }
                    ends.last = if next.nullable { ends.last.union(&next.last) } else { next.last };
                    ends.nullable &= next.nullable;
                }
                ends
            }
            Piece::Choice(parts) => {
                let mut ends = self.none.clone();
                for part in parts {
                    let one = self.ends(part)?;
                    ends.nullable |= one.nullable;
                    ends.first.add(&one.first);
                    ends.last.add(&one.last);
                }
                ends
            }
            Piece::Repeat(one, least, most) => {
                let mut ends = self.ends(one)?;
                if *most != Some(1) {
                    self.meet(&ends.last, &ends.first)?;
                }
                ends.nullable |= *least == 0;
                ends
            }
        })
    }

    /// What ends here is followed by what begins there.
    fn meet(&mut self, last: &Bits, first: &Bits) -> Option<()> {
        for terminal in last.iter() {
            *self.patience = self.patience.checked_sub(first.0.len())?;
            self.follow[terminal].add(first);
        }
        Some(())
    }
}
