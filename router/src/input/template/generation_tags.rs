//! `{% generation %}` marks what an assistant wrote, for training. Serving needs the text alone.

/// Replaces the tags by ones that always render what they enclose, so that white space is trimmed the same way.
pub(super) fn open(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        out.push_str(before);
        let Some(end) = tag.find("%}") else {
            rest = tag;
            break;
        };
        let (tag, after) = tag.split_at(end + 2);
        out.push_str(&replaced(tag).unwrap_or_else(|| tag.to_owned()));
        rest = after;
    }
    out.push_str(rest);
    out
}

fn replaced(tag: &str) -> Option<String> {
    let inner = tag.strip_prefix("{%")?.strip_suffix("%}")?;
    let word = inner.trim_start_matches(['-', '+']).trim_end_matches(['-', '+']).trim();
    let statement = match word {
        "generation" => "if true",
        "endgeneration" => "endif",
        _ => return None,
    };
    Some(format!("{{%{}%}}", inner.replacen(word, statement, 1)))
}
