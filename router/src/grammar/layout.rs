//! Answers put together from parts in a fixed order: calls of tools in a model's own form, free text with structured parts in
//! it, and whatever else a dialect composes.

use std::fmt::Write as _;

use serde_json::{Map, Value};

use super::error::GrammarError;
use super::limits::GrammarLimits;
use super::vocabulary::Vocabulary;
use super::{pattern, schema};

/// A shape made of shapes. In literal text, the whole name of a special token stands for that token.
#[derive(Debug, Clone, PartialEq)]
pub enum Layout {
    /// This text, which may be empty.
    Text(String),
    /// JSON of this schema.
    Json {
        /// The schema.
        schema: Value,
        /// What may stand between two parts of it, where that is not the usual white space.
        spacing: Option<String>,
    },
    /// Text that this regular expression matches from end to end.
    Regex(String),
    /// Text up to `end` and `end` itself; before it, what is left of `end` without white space around it does not stand.
    Until {
        /// Regular expressions that all match the text; of none, any text is right.
        rules: Vec<String>,
        /// What ends it.
        end: String,
    },
    /// One after the other.
    Sequence(Vec<Layout>),
    /// One of them.
    Choice(Vec<Layout>),
    /// It, or nothing.
    Optional(Box<Layout>),
    /// It once or more often.
    Several {
        /// What is repeated.
        one: Box<Layout>,
        /// Text between two.
        between: String,
    },
    /// One of these texts, none of them empty.
    OneOf(Vec<String>),
    /// These in their order, those that are not required or not.
    Fields {
        /// Whether it is required, and what it is.
        fields: Vec<(bool, Layout)>,
        /// Text between two.
        between: String,
    },
    /// Free text of at least one character.
    Free {
        /// What it does not hold.
        avoided: Vec<String>,
        /// Characters that it does not begin with, white space before them left out.
        not_first: String,
    },
    /// Free text in which triggers open parts.
    Tagged(Tagged),
}

/// Free text with structured parts in it. As soon as a trigger has been written, one of the parts that begin with it must
/// follow; after its end the text is free again.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Tagged {
    /// How each part begins, and what follows.
    pub parts: Vec<(String, Layout)>,
    /// What opens them. The name of a special token stands for that token.
    pub triggers: Vec<String>,
    /// What the free text does not hold, beside the triggers.
    pub avoided: Vec<String>,
    /// Characters that no free text begins with, white space before them left out.
    pub not_first: String,
    /// Whether there must be a part.
    pub at_least_one: bool,
    /// Whether the first part is the last thing.
    pub only_first: bool,
}

impl Layout {
    /// JSON of a schema, with the usual white space.
    #[must_use]
    pub fn json(schema: Value) -> Self {
        Self::Json { schema, spacing: None }
    }

    /// A literal text.
    #[must_use]
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    /// Bytes of what is written in it.
    pub(super) fn bytes(&self, length: &impl Fn(&Value) -> usize) -> usize {
        let all = |layouts: &[Self]| layouts.iter().map(|layout| layout.bytes(length)).sum();
        match self {
            Self::Text(text) | Self::Regex(text) => text.len(),
            Self::Json { schema, spacing } => length(schema) + spacing.as_ref().map_or(0, String::len),
            Self::Until { rules, end } => rules.iter().map(String::len).sum::<usize>() + end.len(),
            Self::Sequence(layouts) | Self::Choice(layouts) => all(layouts),
            Self::Optional(one) => one.bytes(length),
            Self::Several { one, between } => one.bytes(length) + between.len(),
            Self::OneOf(texts) => texts.iter().map(String::len).sum(),
            Self::Fields { fields, between } => {
                fields.iter().map(|(_, field)| field.bytes(length)).sum::<usize>() + between.len()
            }
            Self::Free { avoided, .. } => avoided.iter().map(String::len).sum(),
            Self::Tagged(tagged) => {
                let parts = tagged.parts.iter().map(|(begin, part)| begin.len() + part.bytes(length));
                let texts = tagged.triggers.iter().chain(&tagged.avoided).map(String::len);
                parts.chain(texts).sum()
            }
        }
    }

    /// The most alternatives at one place.
    pub(super) fn choices(&self) -> usize {
        let inner = |layouts: &[Self]| layouts.iter().map(Self::choices).max().unwrap_or(0);
        match self {
            Self::Text(_) | Self::Json { .. } | Self::Regex(_) | Self::Until { .. } => 0,
            Self::OneOf(texts) | Self::Free { avoided: texts, .. } => texts.len(),
            Self::Fields { fields, .. } => {
                fields.iter().map(|(_, field)| field.choices()).fold(fields.len(), usize::max)
            }
            Self::Sequence(layouts) => inner(layouts),
            Self::Choice(layouts) => layouts.len().max(inner(layouts)),
            Self::Optional(one) | Self::Several { one, .. } => one.choices(),
            Self::Tagged(tagged) => {
                let parts = tagged.parts.iter().map(|(_, part)| part.choices());
                parts.chain([tagged.parts.len(), tagged.triggers.len(), tagged.avoided.len()]).max().unwrap_or(0)
            }
        }
    }

    /// The layout as a Lark grammar.
    ///
    /// # Errors
    /// Those of the schemas and regular expressions in it; `Invalid` for free text whose triggers contradict each other;
    /// `TooComplex` when it nests too deeply.
    pub(super) fn lower(&self, vocabulary: &Vocabulary, limits: &GrammarLimits) -> Result<String, GrammarError> {
        let mut writer = Writer { vocabulary, limits, rules: String::new(), names: 0, depth: 0 };
        let start = writer.expression(self)?;
        Ok(format!("start: {start}\n{}", writer.rules))
    }
}

struct Writer<'a> {
    vocabulary: &'a Vocabulary,
    limits: &'a GrammarLimits,
    rules: String,
    names: usize,
    depth: usize,
}

impl Writer<'_> {
    /// A layout where a rule has it.
    fn expression(&mut self, layout: &Layout) -> Result<String, GrammarError> {
        let limit = self.limits.max_depth;
        if self.depth >= limit {
            return Err(GrammarError::TooComplex(format!(
                "the parts of an answer nest deeper than {limit}; flatten them"
            )));
        }
        self.depth += 1;
        let expression = match layout {
            Layout::Text(text) => literal(text, self.vocabulary),
            Layout::Json { schema, spacing } => self.json(schema, spacing.as_deref())?,
            Layout::Regex(regex) => {
                let regex = pattern::whole(regex, self.limits)?;
                if regex.is_empty() { "\"\"".to_owned() } else { self.named("TEXT", &format!("/{}/", slashed(&regex))) }
            }
            Layout::Until { rules, end } => self.until(rules, end)?,
            Layout::Sequence(layouts) => self.all(layouts)?.join(" "),
            Layout::Choice(layouts) if layouts.is_empty() => {
                return Err(GrammarError::Invalid("an answer needs something to choose from".to_owned()));
            }
            Layout::Choice(layouts) => format!("({})", self.all(layouts)?.join(" | ")),
            Layout::Optional(one) => format!("({})?", self.expression(one)?),
            Layout::Several { one, between } => {
                let one = self.expression(one)?;
                let one = self.named("one", &one);
                format!("{one} ({} {one})*", literal(between, self.vocabulary))
            }
            Layout::OneOf(texts) => self.named("TEXT", &format!("/{}/", slashed(&alternatives(texts)?))),
            Layout::Fields { fields, between } => self.fields(fields, between)?,
            Layout::Free { avoided, not_first } => {
                let free = self.free(&self.avoided(avoided.iter()), not_first);
                self.named("FREE", &free)
            }
            Layout::Tagged(tagged) => self.tagged(tagged)?,
        };
        self.depth -= 1;
        Ok(expression)
    }

    fn all(&mut self, layouts: &[Layout]) -> Result<Vec<String>, GrammarError> {
        layouts.iter().map(|layout| self.expression(layout)).collect()
    }

    /// A rule, or a terminal when the name is in capitals; its name.
    fn named(&mut self, kind: &str, body: &str) -> String {
        let name = format!("{kind}_{}", self.names);
        self.names += 1;
        let _ = writeln!(self.rules, "{name}: {body}");
        name
    }

    fn json(&self, schema: &Value, spacing: Option<&str>) -> Result<String, GrammarError> {
        let spacing = spacing.map(|spacing| pattern::whole(spacing, self.limits)).transpose()?;
        let schema = match schema {
            Value::Bool(true) => Value::Object(Map::new()),
            other => other.clone(),
        };
        Ok(format!("%json {}", schema::lower_spaced(&schema, spacing, self.limits)?))
    }

    fn until(&mut self, rules: &[String], end: &str) -> Result<String, GrammarError> {
        let rules = rules.iter().map(|rule| pattern::whole(rule, self.limits)).collect::<Result<Vec<_>, _>>()?;
        // Free text has no special tokens, so one that begins the end needs no avoiding.
        let plain = plain_length(end, self.vocabulary);
        let (near, far) = end.split_at(plain);
        if near.trim().is_empty() {
            let text = conjunction(rules.iter().map(|rule| format!("(?:{rule})")), "(?s:.+)");
            return Ok(format!("{}? {}", self.named("TEXT", &text), literal(end, self.vocabulary)));
        }
        let (ending, core) = (regex_syntax::escape(near), regex_syntax::escape(near.trim()));
        let text = conjunction(rules.iter().map(|rule| format!("(?:{rule}){ending}")), &format!("(?s:.*){ending}"));
        let before = slashed(&format!("(?s:.*){core}(?s:.*){ending}"));
        let text = self.named("TEXT", &format!("{text} & ~/{before}/"));
        Ok(format!("{text} {}", literal(far, self.vocabulary)))
    }

    /// A rule for each field: what may stand behind it, and, as long as none was written, what may come first.
    fn fields(&mut self, fields: &[(bool, Layout)], between: &str) -> Result<String, GrammarError> {
        let between = literal(between, self.vocabulary);
        let (mut first, mut behind) = (quoted(""), quoted(""));
        for (required, field) in fields.iter().rev() {
            let field = self.expression(field)?;
            let field = self.named("field", &field);
            let either = if *required { String::new() } else { format!(" | {first}") };
            first = self.named("first", &format!("{field} {behind}{either}"));
            let often = if *required { "" } else { "?" };
            behind = self.named("behind", &format!("({between} {field}){often} {behind}"));
        }
        Ok(first)
    }

    /// Texts that free text does not hold, as one regular expression. Special tokens are no text, so it needs to avoid only
    /// what is.
    fn avoided<'a>(&self, texts: impl Iterator<Item = &'a String>) -> String {
        let written = texts.filter(|text| self.vocabulary.special(text).is_none());
        written.map(|text| regex_syntax::escape(text)).collect::<Vec<_>>().join("|")
    }

    fn free(&self, avoided: &str, not_first: &str) -> String {
        let mut free = "/(?s:.+)/".to_owned();
        if !avoided.is_empty() {
            let _ = write!(free, " & ~/(?s:.*)({})(?s:.*)/", slashed(avoided));
        }
        free + &beginning(not_first)
    }

    fn tagged(&mut self, tagged: &Tagged) -> Result<String, GrammarError> {
        tagged.check()?;
        let avoided = self.avoided(tagged.triggers.iter().chain(&tagged.avoided));
        let first = beginning(&tagged.not_first);
        let free = self.free(&avoided, &tagged.not_first);
        let free = self.named("FREE", &free);
        let mut openings = Vec::new();
        for trigger in &tagged.triggers {
            let opening = if let Some(token) = self.vocabulary.special(trigger) {
                format!("{free}? <[{token}]>")
            } else {
                // Text that ends with the trigger, and holds none before: it can end in one place only.
                let (trigger, avoided) = (slashed(&regex_syntax::escape(trigger)), slashed(&avoided));
                let body = format!("/(?s:.*){trigger}/ & ~/(?s:.*)({avoided})(?s:.+)/{first}");
                self.named("OPEN", &body)
            };
            let mut bodies = Vec::new();
            for (begin, part) in &tagged.parts {
                let Some(rest) = begin.strip_prefix(trigger.as_str()) else { continue };
                bodies.push(format!("{} {}", literal(rest, self.vocabulary), self.expression(part)?));
            }
            openings.push(format!("{opening} ({})", bodies.join(" | ")));
        }
        let part = self.named("part", &openings.join(" | "));
        Ok(match (tagged.at_least_one, tagged.only_first) {
            (true, true) => part,
            (false, true) => format!("({part} | {free}?)"),
            (true, false) => format!("{part}+ {free}?"),
            (false, false) => format!("{part}* {free}?"),
        })
    }
}

impl Tagged {
    fn check(&self) -> Result<(), GrammarError> {
        let invalid = |sentence: String| Err(GrammarError::Invalid(sentence));
        if self.parts.is_empty() || self.triggers.iter().any(String::is_empty) {
            return invalid("a structural tag needs structures, and triggers that are not empty".to_owned());
        }
        let overlap = |a: &String, b: &String| a.starts_with(b.as_str()) || b.starts_with(a.as_str());
        for (index, trigger) in self.triggers.iter().enumerate() {
            if self.triggers[index + 1..].iter().any(|other| overlap(trigger, other)) {
                return invalid(format!(
                    "the trigger `{trigger}` begins another one or is begun by it; keep the shorter"
                ));
            }
            if !self.parts.iter().any(|(begin, _)| begin.starts_with(trigger.as_str())) {
                return invalid(format!("the trigger `{trigger}` begins no structure; remove it"));
            }
        }
        let opened = |begin: &str| self.triggers.iter().any(|trigger| begin.starts_with(trigger.as_str()));
        if let Some((begin, _)) = self.parts.iter().find(|(begin, _)| !opened(begin)) {
            return invalid(format!("no trigger begins the structure `{begin}`; add one"));
        }
        Ok(())
    }
}

/// What keeps a text from beginning with some characters, white space before them left out.
fn beginning(not_first: &str) -> String {
    match not_first {
        "" => String::new(),
        first => format!(" & ~/[ \\t\\r\\n]*[{}](?s:.*)/", slashed(&regex_syntax::escape(first))),
    }
}

/// One automaton for all choices: it knows that one of them begins another, and the mask costs the same for two and two
/// thousand.
pub(super) fn alternatives(choices: &[String]) -> Result<String, GrammarError> {
    if choices.is_empty() || choices.iter().any(String::is_empty) {
        return Err(GrammarError::Invalid("a choice must be a list of strings that are not empty".to_owned()));
    }
    let choices: Vec<String> = choices.iter().map(|choice| regex_syntax::escape(choice)).collect();
    Ok(format!("(?:{})", choices.join("|")))
}

/// A terminal that all regular expressions match; `any` where there are none.
fn conjunction(regexes: impl Iterator<Item = String>, any: &str) -> String {
    let regexes: Vec<String> = regexes.map(|regex| format!("/{}/", slashed(&regex))).collect();
    if regexes.is_empty() { format!("/{}/", slashed(any)) } else { regexes.join(" & ") }
}

/// A text in Lark: special tokens by id, tokens that end sequences left out, the rest quoted.
fn literal(text: &str, vocabulary: &Vocabulary) -> String {
    let mut pieces = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (plain, behind) = rest.split_at(plain_length(rest, vocabulary));
        if !plain.is_empty() {
            pieces.push(quoted(plain));
        }
        rest = behind;
        if let Some((name, token)) = special_at(rest, vocabulary) {
            // An end needs no writing: where nothing else can follow, the answer ends.
            if !vocabulary.is_eos(token) {
                pieces.push(format!("<[{token}]>"));
            }
            rest = &rest[name.len()..];
        }
    }
    if pieces.is_empty() { quoted("") } else { pieces.join(" ") }
}

/// Bytes of a text before the first name of a special token.
fn plain_length(text: &str, vocabulary: &Vocabulary) -> usize {
    let mut places = text.match_indices(['<', '[']).map(|(place, _)| place);
    places.find(|&place| special_at(&text[place..], vocabulary).is_some()).unwrap_or(text.len())
}

/// The special token whose name begins a text. Only a whole name in its brackets counts.
fn special_at<'a>(text: &'a str, vocabulary: &Vocabulary) -> Option<(&'a str, u32)> {
    let closer = match text.as_bytes().first()? {
        b'<' => '>',
        b'[' => ']',
        _ => return None,
    };
    let name = &text[..=text.find(closer)?];
    vocabulary.special(name).map(|token| (name, token))
}

/// A quoted string, which Lark reads as JSON does; DEL is the one character that it wants escaped and JSON does not.
fn quoted(text: &str) -> String {
    Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

/// A regular expression between slashes.
fn slashed(regex: &str) -> String {
    llguidance::regex_to_lark(regex, "")
}
