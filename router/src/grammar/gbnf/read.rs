//! Reading GBNF.

use std::collections::HashMap;

use super::super::error::GrammarError;
use super::super::limits::GrammarLimits;
use super::rules::{Expr, Rules};
use super::set::Set;

/// Marks like `*` behind one part.
const MOST_MARKS: usize = 4;

/// What a text says.
///
/// # Errors
/// `Invalid`, `Unsupported` and `TooComplex`, with the line.
pub(super) fn read(text: &str, limits: &GrammarLimits) -> Result<Rules, GrammarError> {
    let mut reader = Reader { text, at: 0, depth: 0, limits, numbers: HashMap::new(), rules: Vec::new() };
    reader.blanks();
    while reader.at < text.len() {
        reader.rule()?;
    }
    let Some(&root) = reader.numbers.get("root") else {
        return Err(GrammarError::Invalid(
            "a GBNF grammar begins with the rule `root`, which is missing; give its first rule that name".to_owned(),
        ));
    };
    let mut rules = Rules { names: Vec::new(), bodies: Vec::new(), root };
    for rule in reader.rules {
        let Some(body) = rule.body else {
            let (name, line) = (shortened(rule.name), line(text, rule.at));
            return Err(GrammarError::Invalid(format!(
                "line {line} of the grammar refers to the rule `{name}`, which is not defined; add `{name} ::= ...`"
            )));
        };
        rules.names.push(shortened(rule.name));
        rules.bodies.push(body);
    }
    Ok(rules)
}

pub(super) const fn is_name(character: char) -> bool {
    character.is_ascii_alphanumeric() || matches!(character, '-' | '_')
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
    limits: &'a GrammarLimits,
    numbers: HashMap<&'a str, usize>,
    rules: Vec<Named<'a>>,
}

/// A rule, and where it is named first.
struct Named<'a> {
    name: &'a str,
    at: usize,
    body: Option<Expr>,
}

impl<'a> Reader<'a> {
    fn rule(&mut self) -> Result<(), GrammarError> {
        let Some(name) = self.defined() else {
            return Err(self.wrong("a rule is expected, as `name ::= ...`"));
        };
        let number = self.number(name)?;
        self.at += name.len();
        self.blanks();
        self.at += "::=".len();
        if self.rules[number].body.is_some() {
            let name = shortened(name);
            return Err(self.wrong(&format!("the rule `{name}` is defined twice; join its alternatives with `|`")));
        }
        let body = self.alternatives()?;
        self.rules[number].body = Some(body);
        match self.peek() {
            Some(')') => Err(self.wrong("a `)` closes nothing; remove it")),
            _ => Ok(()),
        }
    }

    fn alternatives(&mut self) -> Result<Expr, GrammarError> {
        let mut alternatives = Vec::new();
        loop {
            alternatives.push(self.sequence()?);
            if self.peek() != Some('|') {
                return Ok(Expr::choice(alternatives));
            }
            self.at += 1;
        }
    }

    fn sequence(&mut self) -> Result<Expr, GrammarError> {
        let mut parts = Vec::new();
        loop {
            self.blanks();
            match self.peek() {
                None | Some('|' | ')') => return Ok(Expr::sequence(parts)),
                Some(_) if self.defined().is_some() => return Ok(Expr::sequence(parts)),
                Some(_) => {
                    let part = self.atom()?;
                    parts.push(self.repeats(part)?);
                }
            }
        }
    }

    fn repeats(&mut self, mut part: Expr) -> Result<Expr, GrammarError> {
        for _ in 0..MOST_MARKS {
            let Some((least, most)) = self.times()? else { return Ok(part) };
            part = repeated(part, least, most);
        }
        match self.times()? {
            None => Ok(part),
            Some(_) => Err(self.wrong(&format!("a part is repeated by more than {MOST_MARKS} marks; one is enough"))),
        }
    }

    fn atom(&mut self) -> Result<Expr, GrammarError> {
        match self.peek() {
            Some('"') => self.quoted(),
            Some('[') => self.class(),
            Some('.') => {
                self.at += 1;
                Ok(Expr::Set(Set::any()))
            }
            Some('(') => self.group(),
            Some('<' | '!') => {
                Err(self.refused("a token of the model's (`<...>`)", "write its text between double quotes"))
            }
            Some('*' | '+' | '?' | '{') => Err(self.wrong("there is nothing before it to repeat; remove it")),
            Some('\'') => Err(self.wrong("a string stands between double quotes; write it so")),
            Some(first) if is_name(first) => {
                let name = self.name();
                let number = self.number(name)?;
                self.at += name.len();
                Ok(Expr::Rule(number))
            }
            Some(other) => Err(self.wrong(&format!("`{}` is not expected; remove it", other.escape_debug()))),
            None => Err(self.wrong("something is missing at the end")),
        }
    }

    fn group(&mut self) -> Result<Expr, GrammarError> {
        self.depth += 1;
        let limit = self.limits.max_depth;
        if self.depth > limit {
            return Err(GrammarError::TooComplex(format!("a grammar's brackets nest deeper than {limit}; flatten it")));
        }
        let line = self.line();
        self.at += 1;
        if self.text[self.at..].starts_with('=') {
            return Err(self.refused("a look-ahead (`(=...)`)", "remove it"));
        }
        let inner = self.alternatives()?;
        if self.peek() != Some(')') {
            return Err(invalid(line, "a `(` is not closed; add a `)`"));
        }
        self.at += 1;
        self.depth -= 1;
        Ok(inner)
    }

    fn quoted(&mut self) -> Result<Expr, GrammarError> {
        let line = self.line();
        self.at += 1;
        let mut text = String::new();
        loop {
            match self.peek() {
                None => return Err(invalid(line, "a string is not closed; end it with `\"`")),
                Some('"') => {
                    self.at += 1;
                    return Ok(Expr::text(text));
                }
                Some(_) => text.push(self.character()?),
            }
        }
    }

    fn class(&mut self) -> Result<Expr, GrammarError> {
        let line = self.line();
        self.at += 1;
        let negated = self.eat('^');
        let mut ranges = Vec::new();
        loop {
            match self.peek() {
                None => return Err(invalid(line, "a class of characters is not closed; end it with `]`")),
                Some(']') => break,
                Some(_) => {}
            }
            let first = self.character()?;
            let rest = &self.text[self.at..];
            let last = if rest.starts_with('-') && !rest.starts_with("-]") {
                self.at += 1;
                self.character()?
            } else {
                first
            };
            if first > last {
                return Err(self.wrong("a range of characters ends before it begins; swap its ends"));
            }
            ranges.push((first, last));
        }
        self.at += 1;
        let set = Set::new(ranges);
        let set = if negated { set.negated() } else { set };
        if set.is_empty() {
            return Err(invalid(line, "a class of characters has none; put some into it"));
        }
        Ok(Expr::Set(set))
    }

    /// A character of a string or class, written out or escaped.
    fn character(&mut self) -> Result<char, GrammarError> {
        let character = self.next()?;
        if character != '\\' {
            return Ok(character);
        }
        let escaped = self.next()?;
        let digits = match escaped {
            'n' => return Ok('\n'),
            'r' => return Ok('\r'),
            't' => return Ok('\t'),
            'x' => 2,
            'u' => 4,
            'U' => 8,
            mark if mark.is_ascii_punctuation() => return Ok(mark),
            other => {
                let other = other.escape_debug();
                let known = "write the character itself, or one of `\\n \\r \\t \\\\ \\\" \\xHH \\uHHHH \\UHHHHHHHH`";
                return Err(self.wrong(&format!("the escape `\\{other}` is unknown; {known}")));
            }
        };
        let number =
            self.text.get(self.at..self.at + digits).filter(|text| text.bytes().all(|b| b.is_ascii_hexdigit()));
        let character = number.and_then(|number| u32::from_str_radix(number, 16).ok()).and_then(char::from_u32);
        self.at += digits;
        character.ok_or_else(|| {
            self.at -= digits;
            self.wrong(&format!(
                "`\\{escaped}` is followed by the {digits} hexadecimal digits of a character; add them"
            ))
        })
    }

    /// How often the part before may come, where that is said.
    fn times(&mut self) -> Result<Option<(u32, Option<u32>)>, GrammarError> {
        self.blanks();
        let times = match self.peek() {
            Some('*') => (0, None),
            Some('+') => (1, None),
            Some('?') => (0, Some(1)),
            Some('{') => return self.counted().map(Some),
            _ => return Ok(None),
        };
        self.at += 1;
        Ok(Some(times))
    }

    fn counted(&mut self) -> Result<(u32, Option<u32>), GrammarError> {
        self.at += 1;
        let least = self.count()?;
        let most = if self.eat(',') { self.count()? } else { least };
        let bounds = match (least, most) {
            (None, None) => None,
            (least, Some(most)) if least.unwrap_or(0) > most => None,
            (least, most) => Some((least.unwrap_or(0), most)),
        };
        if !self.eat('}') {
            return Err(self.wrong("a repeat is written `{m}`, `{m,}` or `{m,n}`; write it so"));
        }
        bounds.ok_or_else(|| self.wrong("a repeat needs a number, and a second one that is not smaller; mend it"))
    }

    fn count(&mut self) -> Result<Option<u32>, GrammarError> {
        self.blanks();
        let rest = &self.text[self.at..];
        let digits = &rest[..rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len())];
        if digits.is_empty() {
            return Ok(None);
        }
        let most = self.limits.max_repeats;
        let number = digits.parse().ok().filter(|&number: &u32| number <= most);
        let Some(number) = number else {
            let line = self.line();
            return Err(GrammarError::TooComplex(format!(
                "line {line} of the grammar repeats a part more than {most} times; repeat it less often"
            )));
        };
        self.at += digits.len();
        self.blanks();
        Ok(Some(number))
    }

    fn number(&mut self, name: &'a str) -> Result<usize, GrammarError> {
        if let Some(&number) = self.numbers.get(name) {
            return Ok(number);
        }
        let (number, most) = (self.rules.len(), self.limits.max_rules);
        if number >= most {
            return Err(GrammarError::TooComplex(format!("a grammar has more than {most} rules; use fewer")));
        }
        self.rules.push(Named { name, at: self.at, body: None });
        self.numbers.insert(name, number);
        Ok(number)
    }

    /// The name of the rule that is defined here.
    fn defined(&self) -> Option<&'a str> {
        let name = self.name();
        let rest = self.text[self.at + name.len()..].trim_start_matches([' ', '\t']);
        (!name.is_empty() && rest.starts_with("::=")).then_some(name)
    }

    fn name(&self) -> &'a str {
        let rest = &self.text[self.at..];
        &rest[..rest.find(|character| !is_name(character)).unwrap_or(rest.len())]
    }

    /// Passes over white space and comments.
    fn blanks(&mut self) {
        loop {
            let rest = self.text[self.at..].trim_start();
            self.at = self.text.len() - rest.len();
            if !rest.starts_with('#') {
                return;
            }
            self.at += rest.find('\n').unwrap_or(rest.len());
        }
    }

    fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    fn next(&mut self) -> Result<char, GrammarError> {
        let character = self.peek().ok_or_else(|| self.wrong("the grammar ends in the middle of a string or class"))?;
        self.at += character.len_utf8();
        Ok(character)
    }

    fn eat(&mut self, wanted: char) -> bool {
        let eats = self.peek() == Some(wanted);
        self.at += if eats { wanted.len_utf8() } else { 0 };
        eats
    }

    fn line(&self) -> usize {
        line(self.text, self.at)
    }

    fn wrong(&self, reason: &str) -> GrammarError {
        invalid(self.line(), reason)
    }

    fn refused(&self, what: &str, remedy: &str) -> GrammarError {
        let line = self.line();
        GrammarError::Unsupported(format!("{what} on line {line} of a GBNF grammar is not supported; {remedy}"))
    }
}

fn line(text: &str, at: usize) -> usize {
    1 + text[..at].matches('\n').count()
}

fn repeated(part: Expr, least: u32, most: Option<u32>) -> Expr {
    match (least, most) {
        (_, Some(0)) => Expr::nothing(),
        (1, Some(1)) => part,
        _ if part == Expr::nothing() => part,
        _ => Expr::Repeat(Box::new(part), least, most),
    }
}

fn invalid(line: usize, reason: &str) -> GrammarError {
    GrammarError::Invalid(format!("line {line} of the grammar is wrong: {reason}"))
}

fn shortened(name: &str) -> String {
    const LONGEST: usize = 80;
    // Names are ASCII.
    if name.len() <= LONGEST { name.to_owned() } else { format!("{}…", &name[..LONGEST]) }
}
