//! Regular expressions of filters and expressions: PCRE with MongoDB's options.

use std::sync::Arc;

use pcre2::bytes::{Regex as Compiled, RegexBuilder};
use pinion_wire::Result;

use crate::error::{bad_value, error};
use crate::limits::MAX_REGEX_BYTES;
use crate::work;

/// A compiled regular expression with the text it was made from.
#[derive(Clone)]
pub(crate) struct Regex {
    pub pattern: Box<str>,
    pub options: Box<str>,
    compiled: Arc<Compiled>,
}

impl std::fmt::Debug for Regex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "/{}/{}", self.pattern, self.options)
    }
}

impl Regex {
    /// Compiles; the errors are those of the `$regex` filter.
    pub(crate) fn compile(pattern: &str, options: &str) -> Result<Regex> {
        if pattern.contains('\0') {
            return Err(bad_value(
                "Regular expression cannot contain an embedded null byte",
            ));
        }
        if options.contains('\0') {
            return Err(bad_value(
                "Regular expression options string cannot contain an embedded null byte",
            ));
        }
        if pattern.len() > MAX_REGEX_BYTES {
            return Err(error(
                51091,
                "Regular expression is invalid: regular expression is too large",
            ));
        }
        let mut builder = RegexBuilder::new();
        builder.utf(true).jit_if_available(true);
        for option in options.chars() {
            match option {
                'i' => builder.caseless(true),
                'm' => builder.multi_line(true),
                's' => builder.dotall(true),
                'x' => builder.extended(true),
                'u' => &mut builder,
                other => {
                    return Err(error(
                        51108,
                        format!("invalid flag in regex options: {other}"),
                    ));
                }
            };
        }
        let compiled = builder.build(pattern).map_err(|e| {
            let text = e.to_string();
            // The crate puts its name and the offset before PCRE's own words.
            let words = text
                .split_once(": ")
                .map_or(text.as_str(), |(_, rest)| rest);
            let words = words.split_once(": ").map_or(words, |(_, rest)| rest);
            error(51091, format!("Regular expression is invalid: {words}"))
        })?;
        Ok(Regex {
            pattern: pattern.into(),
            options: options.into(),
            compiled: Arc::new(compiled),
        })
    }

    /// Whether the text matches; a match that exceeds PCRE's own limits counts as none.
    pub(crate) fn is_match(&self, text: &str) -> bool {
        if spend_text(text).is_err() {
            return false;
        }
        self.compiled.is_match(text.as_bytes()).unwrap_or(false)
    }

    pub(crate) fn compiled(&self) -> &Compiled {
        &self.compiled
    }

    /// The literal that every match begins with, when the pattern is anchored at the start and case counts, and whether
    /// the literal is the whole pattern.
    pub(crate) fn literal_prefix(&self) -> Option<(String, bool)> {
        if self.options.contains(['i', 'm', 'x']) || self.pattern.contains('|') {
            return None;
        }
        let rest = self
            .pattern
            .strip_prefix('^')
            .or_else(|| self.pattern.strip_prefix("\\A"))?;
        let mut prefix = String::new();
        let mut chars = rest.chars().peekable();
        while let Some(c) = chars.next() {
            match c {
                '\\' => match chars.next() {
                    Some(escaped) if !escaped.is_ascii_alphanumeric() => prefix.push(escaped),
                    Some('Q') => return None,
                    _ => return Some((prefix, false)),
                },
                '*' | '?' | '{' => {
                    // The quantifier applies to the last character, which may be absent.
                    prefix.pop();
                    return Some((prefix, false));
                }
                '+' => return Some((prefix, false)),
                '.' | '[' | ']' | '(' | ')' | '$' | '^' | '}' => {
                    let rest_is_any = c == '.' && chars.clone().eq("*".chars());
                    return Some((prefix, rest_is_any && self.options.contains('s')));
                }
                c => prefix.push(c),
            }
        }
        Some((prefix, true))
    }
}

/// Accounts for searching a text: how long that takes depends on the expression, a few nanoseconds for each byte at best.
pub(crate) fn spend_text(text: &str) -> Result<()> {
    work::spend(SEARCHED_BYTE * text.len() as work::Units)
}

const SEARCHED_BYTE: work::Units = 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literal_prefixes() {
        fn check(pattern: &str, options: &str, expected: Option<(&str, bool)>) {
            let regex = Regex::compile(pattern, options).expect(pattern);
            assert_eq!(
                regex.literal_prefix(),
                expected.map(|(p, whole)| (p.to_string(), whole)),
                "{pattern}"
            );
        }
        check("^abc", "", Some(("abc", true)));
        check("^abc", "i", None);
        check("abc", "", None);
        check("^ab*c", "", Some(("a", false)));
        check("^ab+c", "", Some(("ab", false)));
        check("^a\\.b", "", Some(("a.b", true)));
        check("^a.b", "", Some(("a", false)));
        check("^a|b", "", None);
        check("^a\\d", "", Some(("a", false)));
        check("^a(b)", "", Some(("a", false)));
    }

    #[test]
    fn errors() {
        assert_eq!(Regex::compile("(", "").unwrap_err().code.0, 51091);
        assert_eq!(
            Regex::compile("(", "").unwrap_err().message,
            "Regular expression is invalid: missing closing parenthesis"
        );
        assert_eq!(Regex::compile("a", "z").unwrap_err().code.0, 51108);
    }
}
