//! A text that is in everything that an expression matches: it is looked for before PCRE is asked.

use memchr::memmem::Finder;

/// Escapes that stand for a kind of character or for a place, with nothing behind their letter.
const SIMPLE_ESCAPES: &str = "dDwWsSbBhHvVRAzZGnrtf";

/// The longest such text of a pattern.
pub(super) struct Required {
    finder: Finder<'static>,
    /// Nothing else is required.
    is_all: bool,
}

impl Required {
    /// What is known of a search: whether the text matches; `None` where PCRE has to say it.
    pub(super) fn decides(&self, text: &str) -> Option<bool> {
        let is_there = self.finder.find(text.as_bytes()).is_some();
        (!is_there || self.is_all).then_some(is_there)
    }
}

/// Finds what a pattern requires; `None` where that is nothing, or where it would take more of
/// PCRE's syntax to know.
pub(super) fn required(pattern: &str, options: &str) -> Option<Required> {
    if options.contains(['i', 'x']) || pattern.contains('|') {
        return None;
    }
    let (mut runs, mut run) = (Vec::new(), String::new());
    let mut chars = pattern.chars();
    let mut is_all = true;
    while let Some(c) = chars.next() {
        let ends = match c {
            '\\' => match chars.next() {
                Some(escaped) if escaped.is_ascii_punctuation() => {
                    run.push(escaped);
                    continue;
                }
                Some('E' | 'Q') => {
                    // A quantifier behind these applies to what is in front of them.
                    run.pop();
                    true
                }
                Some(escaped) => !SIMPLE_ESCAPES.contains(escaped),
                None => true,
            },
            // The quantifier applies to the last character, which may be absent.
            '*' | '?' | '{' => {
                run.pop();
                c == '{'
            }
            '+' | '.' | '^' | '$' => false,
            // What is in groups and classes may be absent, or other text.
            '[' => true,
            '(' => {
                if is_comment(chars.as_str()) {
                    run.pop();
                }
                true
            }
            c => {
                run.push(c);
                continue;
            }
        };
        is_all = false;
        runs.push(std::mem::take(&mut run));
        if ends {
            break;
        }
    }
    runs.push(run);
    let longest = runs.into_iter().max_by_key(String::len)?;
    (!longest.is_empty()).then(|| Required {
        finder: Finder::new(longest.as_bytes()).into_owned(),
        is_all,
    })
}

/// Whether what follows a parenthesis makes it a comment: a quantifier behind it applies to what is
/// in front of it.
pub(super) fn is_comment(rest: &str) -> bool {
    rest.starts_with("?#")
}

#[cfg(test)]
mod tests {
    use super::super::Regex;
    use super::required;

    #[test]
    fn what_is_required() {
        fn check(pattern: &str, options: &str, expected: &str) {
            let found = required(pattern, options);
            let found = found
                .as_ref()
                .map_or(&b""[..], |required| required.finder.needle());
            assert_eq!(String::from_utf8_lossy(found), expected, "{pattern}");
        }
        check("oscar.*papa", "", "oscar");
        check("^abc", "m", "abc");
        check("ab*cde", "", "cde");
        check("äöü?x", "s", "äö");
        check("abc+?d", "", "abc");
        check("a\\.b\\d+xyz", "", "xyz");
        check("abc{2}defgh", "", "ab");
        check("ab(cdef)?", "", "ab");
        check("ab[cdef]ghijk", "", "ab");
        check("ab\\x41cdef", "", "ab");
        check("\\Qabc\\E", "", "");
        check("abc\\E*", "", "ab");
        check("abc(?#none)*", "", "ab");
        check("abc(d)", "", "abc");
        check("abc|d", "", "");
        check("abc", "i", "");
        check("(?i)abc", "", "");
        check(".*", "", "");
    }

    /// Whatever a pattern is made of, it never matches a text that lacks what it requires.
    #[test]
    fn all_that_matches_has_it() {
        const PIECES: [&str; 32] = [
            "a", "b", "ab", "a*", "b?", "a+", "a+?", "b{0,2}", "{", "}", "]", ".", "^", "$", "\\.",
            "\\d", "\\b", "[ab]", "(a)?", "(?:b|a)", "(?i)", "\\x61", "a++", "é", "é?", "\\1",
            "a{,3}", "-", "\\E", "\\Q\\E", "(?#c)", "*",
        ];
        const TEXTS: [&str; 9] = ["a", "b", "ab", "aab", "é", ".", "{", "-", "1"];
        let mut seed = 1_u64;
        let mut draw = |below: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) as usize % below
        };
        let mut required_ones = 0;
        for _ in 0..20_000 {
            let pattern: String = (0..1 + draw(5))
                .map(|_| PIECES[draw(PIECES.len())])
                .collect();
            let text: String = (0..draw(6)).map(|_| TEXTS[draw(TEXTS.len())]).collect();
            let Ok(regex) = Regex::compile(&pattern, "") else {
                continue;
            };
            required_ones += usize::from(regex.compiled.required.is_some());
            let matches = regex.compiled.quick.is_match(text.as_bytes());
            let matches = matches.expect("few ways");
            assert_eq!(regex.is_match(&text), matches, "/{pattern}/ on {text:?}");
        }
        assert!(required_ones > 5_000, "{required_ones}");
    }
}
