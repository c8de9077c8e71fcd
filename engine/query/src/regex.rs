//! Regular expressions of filters and expressions: PCRE with MongoDB's options.
//!
//! How long a match takes is not known before: PCRE may try very many ways even with a short text.
//! So an expression is first tried with a low limit of ways. What exceeds it is accounted for as
//! the most that PCRE's own limit allows, which no core has a budget for, and is tried with that
//! limit where it holds up no other task.

mod required;

use std::sync::{Arc, OnceLock};

use pcre2::bytes::{Regex as Compiled, RegexBuilder};
use pinion_wire::{Error, Result};

use crate::error::{bad_value, error};
use crate::limits::MAX_REGEX_BYTES;
use crate::work;
use required::Required;

/// A compiled regular expression with the text it was made from.
#[derive(Clone)]
pub(crate) struct Regex {
    pub pattern: Box<str>,
    pub options: Box<str>,
    compiled: Arc<Searches>,
    /// What a match is accounted for beside its text.
    cost: work::Units,
}

/// How a text is searched: for what every match contains, then by PCRE with two limits.
struct Searches {
    /// A text that every match contains, if one is known.
    required: Option<Required>,
    quick: Compiled,
    /// With PCRE's own limit; made when it is needed first.
    full: OnceLock<Compiled>,
}

/// Why a search came to no result.
pub(crate) enum Failure {
    Match(pcre2::Error),
    Other(Error),
}

impl From<pcre2::Error> for Failure {
    fn from(error: pcre2::Error) -> Failure {
        Failure::Match(error)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Other(error)
    }
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
        if let Some(other) = options.chars().find(|option| !"imsxu".contains(*option)) {
            return Err(error(
                51108,
                format!("invalid flag in regex options: {other}"),
            ));
        }
        let limited = format!("(*LIMIT_MATCH={QUICK_MATCHES}){pattern}");
        let quick = builder(options).build(&limited).map_err(|e| {
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
            compiled: Arc::new(Searches {
                required: required::required(pattern, options),
                quick,
                full: OnceLock::new(),
            }),
            cost: if may_backtrack(pattern) {
                BACKTRACKING
            } else {
                0
            },
        })
    }

    /// Whether the text matches; a match that exceeds PCRE's own limits counts as none.
    pub(crate) fn is_match(&self, text: &str) -> bool {
        if spend_text(text).is_err() {
            return false;
        }
        let required = self.compiled.required.as_ref();
        if let Some(is_match) = required.and_then(|required| required.decides(text)) {
            return is_match;
        }
        self.search(|compiled| Ok(compiled.is_match(text.as_bytes())?))
            .unwrap_or(false)
    }

    /// Calls `f`, which searches a text that is accounted for: once more with PCRE's own limit if
    /// the first one does not suffice.
    pub(crate) fn search<T>(
        &self,
        mut f: impl FnMut(&Compiled) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        work::spend(self.cost)?;
        let Searches { quick, full, .. } = &*self.compiled;
        match f(quick) {
            Err(Failure::Match(error)) if error.code() == MATCH_LIMIT_ERROR => {}
            decided => return decided,
        }
        work::spend(LIMIT_WORK)?;
        let full = match full.get() {
            Some(full) => full,
            None => {
                let made = builder(&self.options).build(&self.pattern)?;
                full.get_or_init(|| made)
            }
        };
        f(full)
    }

    /// The literal that every match begins with, when the pattern is anchored at the start and case
    /// counts, and whether the literal is the whole pattern.
    pub(crate) fn literal_prefix(&self) -> Option<(String, bool)> {
        if self.options.contains(['i', 'm', 'x']) || self.pattern.contains('|') {
            return None;
        }
        let rest = self
            .pattern
            .strip_prefix('^')
            .or_else(|| self.pattern.strip_prefix("\\A"))?;
        let mut prefix = String::new();
        let mut chars = rest.chars();
        while let Some(c) = chars.next() {
            match c {
                '\\' => match chars.next() {
                    Some(escaped) if !escaped.is_ascii_alphanumeric() => prefix.push(escaped),
                    Some('Q') => return None,
                    // A quantifier behind it applies to the last character.
                    Some('E') => {
                        prefix.pop();
                        return Some((prefix, false));
                    }
                    _ => return Some((prefix, false)),
                },
                '*' | '?' | '{' => {
                    // The quantifier applies to the last character, which may be absent.
                    prefix.pop();
                    return Some((prefix, false));
                }
                '(' if required::is_comment(chars.as_str()) => {
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

fn builder(options: &str) -> RegexBuilder {
    let mut builder = RegexBuilder::new();
    builder
        .utf(true)
        .jit_if_available(true)
        .caseless(options.contains('i'))
        .multi_line(options.contains('m'))
        .dotall(options.contains('s'))
        .extended(options.contains('x'));
    builder
}

/// Whether a match may be tried in far more ways than the text is long: that takes something
/// optional or repeated, and another choice in it or beside it.
fn may_backtrack(pattern: &str) -> bool {
    let number_of = |among: &[u8]| pattern.bytes().filter(|b| among.contains(b)).count();
    number_of(b"*+{?") >= 1 && number_of(b"*+{?|") >= 2
}

/// Accounts for searching a text: how long that takes depends on the expression, a few nanoseconds
/// for each byte at best.
pub(crate) fn spend_text(text: &str) -> Result<()> {
    work::spend(SEARCHED_BYTE * text.len() as work::Units)
}

const SEARCHED_BYTE: work::Units = 10;
/// The limit of ways that a match is tried with first: some ten microseconds.
const QUICK_MATCHES: u32 = 5_000;
/// What a match may take within [`QUICK_MATCHES`] with an expression that backtracks.
const BACKTRACKING: work::Units = 20_000;
/// What a match may take within PCRE's own limit of ten million.
const LIMIT_WORK: work::Units = 100_000_000;
/// `PCRE2_ERROR_MATCHLIMIT`.
const MATCH_LIMIT_ERROR: i32 = -47;

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
        check("^ab(?#c)*", "", Some(("a", false)));
        check("^ab\\E*", "", Some(("a", false)));
    }

    #[test]
    fn what_backtracks_needs_more_than_a_core_gives() {
        const CORE: work::Units = 4_000_000;
        let within = |pattern, text: &str| {
            let regex = Regex::compile(pattern, "").expect(pattern);
            work::within(CORE, || Ok(regex.is_match(text)))
        };
        let long = "a".repeat(30);
        // Many ways, and none of them ends in a match; with a limit of PCRE's own the answer is
        // that there is none.
        assert!(within("^(a+)+$", &format!("{long}b")).is_none());
        assert!(
            !Regex::compile("^(a+)+$", "")
                .expect("valid")
                .is_match(&format!("{long}b"))
        );
        assert!(matches!(within("^(a+)+$", &long), Some(Ok(true))));
        // Short texts, each of them in as many ways as the first limit allows.
        for pattern in ["^(a+)+$", "^(a|a)*$", "^a?a?a?a?a?a?aaaaaa$"] {
            let regex = Regex::compile(pattern, "").expect(pattern);
            let text = format!("{}b", "a".repeat(11));
            let many = || Ok((0..300).any(|_| regex.is_match(&text)));
            assert!(work::within(CORE, many).is_none(), "{pattern}");
        }
        // A match that lies beyond the first limit is found with the second one.
        let text = format!("{}b", "a".repeat(15));
        let regex = Regex::compile("^(a+)+(b|c)(?<=b)$", "").expect("valid");
        assert!(regex.is_match(&text));
        // What only is long is not tried in many ways.
        for pattern in ["needle", "^a.*b$", "a[^z]*y", "(foo|bar)+"] {
            let text = "a".repeat(100_000);
            assert!(
                matches!(within(pattern, &text), Some(Ok(false))),
                "{pattern}"
            );
        }
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
