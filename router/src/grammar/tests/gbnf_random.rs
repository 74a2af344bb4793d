//! Random grammars in GBNF, and an independent reading of them: what one derives the other takes, and nothing else.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{Rng, SeedableRng};

use super::gbnf::{source, takes};
use super::walk::walk;
use super::{TINY, compile};

const GRAMMARS: u64 = 150;
const TEXTS: usize = 12;
/// Characters of a text at most.
const LONGEST: usize = 14;
const ALPHABET: [char; 6] = ['a', 'b', 'c', '-', '"', 'é'];

#[derive(Debug, Clone)]
enum Shape {
    Text(Vec<char>),
    Class(Vec<char>, bool),
    Sequence(Vec<Shape>),
    Choice(Vec<Shape>),
    Repeat(Box<Shape>, usize, Option<usize>),
    Rule(usize),
}

/// Rules; the first is where a text begins.
struct Grammar(Vec<Shape>);

fn characters(random: &mut StdRng, most: usize) -> Vec<char> {
    (0..random.random_range(1..=most)).filter_map(|_| ALPHABET.choose(random).copied()).collect()
}

fn shape(random: &mut StdRng, rules: usize, depth: usize) -> Shape {
    let leaf = depth == 0 || random.random_bool(0.3);
    match random.random_range(if leaf { 0..4 } else { 4..8 }) {
        0 | 1 => Shape::Text(characters(random, 3)),
        2 => Shape::Class(characters(random, 3), random.random_bool(0.2)),
        3 => Shape::Rule(random.random_range(0..rules)),
        4 | 5 => Shape::Sequence((0..random.random_range(2..4)).map(|_| shape(random, rules, depth - 1)).collect()),
        6 => Shape::Choice((0..random.random_range(2..4)).map(|_| shape(random, rules, depth - 1)).collect()),
        _ => {
            let least = random.random_range(0..3);
            let most = if random.random_bool(0.5) { None } else { Some((least + random.random_range(0..3)).max(1)) };
            Shape::Repeat(Box::new(shape(random, rules, depth - 1)), least, most)
        }
    }
}

impl Grammar {
    fn draw(random: &mut StdRng) -> Self {
        let count = random.random_range(1..5);
        let rules = (0..count).map(|_| {
            // Each rule has a way out, so that each has a text.
            let way_out = Shape::Text(characters(random, 2));
            Shape::Choice(vec![shape(random, count, 3), way_out])
        });
        Self(rules.collect())
    }

    fn write(&self, random: &mut StdRng) -> String {
        let mut text = String::new();
        for (number, rule) in self.0.iter().enumerate() {
            let _ = write!(text, "{} ::= ", name(number));
            write(rule, random, &mut text);
            text.push_str(if random.random_bool(0.2) { " # a remark\n" } else { "\n" });
        }
        text
    }

    /// A text of a shape, none when the draws lead too far.
    fn derive(&self, shape: &Shape, random: &mut StdRng, depth: usize) -> Option<String> {
        let depth = depth.checked_sub(1)?;
        match shape {
            Shape::Text(characters) => Some(characters.iter().collect()),
            Shape::Class(..) => {
                let fitting: Vec<char> = ALPHABET.into_iter().filter(|&one| fits(shape, one)).collect();
                fitting.choose(random).map(char::to_string)
            }
            Shape::Sequence(parts) => parts.iter().map(|part| self.derive(part, random, depth)).collect(),
            Shape::Choice(parts) => self.derive(parts.choose(random)?, random, depth),
            Shape::Repeat(one, least, most) => {
                let most = most.unwrap_or(least + 3);
                (0..random.random_range(*least..=most)).map(|_| self.derive(one, random, depth)).collect()
            }
            Shape::Rule(rule) => self.derive(&self.0[*rule], random, depth),
        }
    }

    /// Whether a text is one of the grammar's: where each rule can end from each place, until nothing is added any more.
    fn has(&self, text: &str) -> bool {
        let text: Vec<char> = text.chars().collect();
        let mut ends = vec![vec![BTreeSet::new(); text.len() + 1]; self.0.len()];
        loop {
            let mut grew = false;
            for (number, rule) in self.0.iter().enumerate() {
                for at in 0..=text.len() {
                    let found = reach(rule, at, &text, &ends);
                    grew |= found.len() > ends[number][at].len();
                    ends[number][at] = found;
                }
            }
            if !grew {
                return ends[0][0].contains(&text.len());
            }
        }
    }
}

fn name(number: usize) -> String {
    if number == 0 { "root".to_owned() } else { format!("rule-{number}") }
}

fn write(shape: &Shape, random: &mut StdRng, text: &mut String) {
    let join = |parts: &[Shape], between: &str, random: &mut StdRng, text: &mut String| {
        text.push('(');
        for (at, part) in parts.iter().enumerate() {
            text.push_str(if at == 0 { "" } else { between });
            write(part, random, text);
            text.push_str(if random.random_bool(0.1) { "\n  " } else { "" });
        }
        text.push(')');
    };
    match shape {
        Shape::Text(characters) => {
            text.push('"');
            characters.iter().for_each(|&one| escaped(one, random, text));
            text.push('"');
        }
        Shape::Class(characters, negated) => {
            text.push_str(if *negated { "[^" } else { "[" });
            characters.iter().for_each(|&one| escaped(one, random, text));
            text.push(']');
        }
        Shape::Sequence(parts) => join(parts, " ", random, text),
        Shape::Choice(parts) => join(parts, " | ", random, text),
        Shape::Rule(rule) => text.push_str(&name(*rule)),
        Shape::Repeat(one, least, most) => {
            text.push('(');
            write(one, random, text);
            text.push(')');
            match (least, most) {
                (0, None) => text.push('*'),
                (1, None) => text.push('+'),
                (0, Some(1)) => text.push('?'),
                (least, None) => drop(write!(text, "{{{least},}}")),
                (least, Some(most)) => drop(write!(text, "{{{least}, {most}}}")),
            }
        }
    }
}

fn escaped(character: char, random: &mut StdRng, text: &mut String) {
    match character {
        '"' | '-' => drop(write!(text, "\\{character}")),
        other if random.random_bool(0.2) => drop(write!(text, "\\u{:04x}", u32::from(other))),
        other => text.push(other),
    }
}

fn fits(class: &Shape, character: char) -> bool {
    matches!(class, Shape::Class(characters, negated) if characters.contains(&character) != *negated)
}

fn reach(shape: &Shape, at: usize, text: &[char], ends: &[Vec<BTreeSet<usize>>]) -> BTreeSet<usize> {
    let from = |places: &BTreeSet<usize>, part: &Shape| {
        places.iter().flat_map(|&place| reach(part, place, text, ends)).collect::<BTreeSet<usize>>()
    };
    match shape {
        Shape::Text(characters) => {
            text[at..].starts_with(characters).then_some(at + characters.len()).into_iter().collect()
        }
        Shape::Class(..) => text.get(at).filter(|&&one| fits(shape, one)).map(|_| at + 1).into_iter().collect(),
        Shape::Sequence(parts) => parts.iter().fold(BTreeSet::from([at]), |places, part| from(&places, part)),
        Shape::Choice(parts) => parts.iter().flat_map(|part| reach(part, at, text, ends)).collect(),
        Shape::Rule(rule) => ends[*rule][at].clone(),
        Shape::Repeat(one, least, most) => {
            let mut places = BTreeSet::from([at]);
            let mut found = BTreeSet::new();
            // More often than there are characters it changes nothing.
            for count in 0..=most.unwrap_or(least + text.len() + 1) {
                if count >= *least {
                    found.extend(&places);
                }
                places = from(&places, one);
            }
            found
        }
    }
}

/// A text with a character more, less or changed.
fn mutated(text: &str, random: &mut StdRng) -> String {
    let mut characters: Vec<char> = text.chars().collect();
    let at = random.random_range(0..=characters.len());
    let other = *ALPHABET.choose(random).unwrap();
    match (random.random_range(0..3), at < characters.len()) {
        (0, true) => drop(characters.remove(at)),
        (1, true) => characters[at] = other,
        _ => characters.insert(at, other),
    }
    characters.into_iter().collect()
}

#[test]
fn texts_of_random_grammars_are_taken_and_no_others() {
    let (mut taken, mut refused) = (0, 0);
    for seed in 0..GRAMMARS {
        let mut random = StdRng::seed_from_u64(seed);
        let grammar = Grammar::draw(&mut random);
        let written = grammar.write(&mut random);
        let compiled =
            compile(&source(&written), &TINY).unwrap_or_else(|error| panic!("seed {seed}: {error}\n{written}"));
        for _ in 0..TEXTS {
            let Some(text) = grammar.derive(&grammar.0[0], &mut random, 12) else { continue };
            if text.chars().count() > LONGEST {
                continue;
            }
            assert!(grammar.has(&text), "seed {seed}: {text:?} was derived\n{written}");
            assert!(takes(&compiled, &text), "seed {seed}: {text:?} is not taken\n{written}");
            let other = mutated(&text, &mut random);
            let fits = grammar.has(&other);
            assert_eq!(takes(&compiled, &other), fits, "seed {seed}: {other:?}\n{written}");
            taken += 1 + usize::from(fits);
            refused += usize::from(!fits);
        }
    }
    println!("{taken} taken, {refused} refused");
    assert!(taken > 500 && refused > 200, "{taken} and {refused}");
}

/// What a model writes under the grammar, in tokens of several characters.
#[test]
fn what_is_written_under_random_grammars_is_theirs() {
    let mut finished = 0;
    for seed in 0..GRAMMARS {
        let mut random = StdRng::seed_from_u64(seed);
        let grammar = Grammar::draw(&mut random);
        let written = grammar.write(&mut random);
        let compiled = compile(&source(&written), &TINY).unwrap();
        let texts = (0..4).filter_map(|walk_seed| walk(compiled.matcher(), &TINY, walk_seed));
        for text in texts.map(|bytes| String::from_utf8(bytes).unwrap()) {
            if text.chars().count() <= 4 * LONGEST {
                assert!(grammar.has(&text), "seed {seed}: {text:?}\n{written}");
                finished += 1;
            }
        }
    }
    assert!(finished > 200, "{finished}");
}
