//! The text of a key file: one key, or a YAML list of several while keys are changed.

use std::fmt;

use yaml_rust2::parser::{Event, EventReceiver, Parser};

/// The characters of a key, white space not counted.
pub const MIN_KEY_CHARS: usize = 6;
pub const MAX_KEY_CHARS: usize = 1024;
/// Keys of one file. Two are enough to change one; every one more makes each failed attempt dearer.
pub const MAX_KEYS: usize = 4;

/// The keys by which members of a set know each other. They never show in logs.
#[derive(Clone, PartialEq, Eq)]
pub struct MemberKeys {
    keys: Vec<String>,
}

impl fmt::Debug for MemberKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MemberKeys(..)")
    }
}

/// What is wrong with the text of a key file, in MongoDB's words; the file's name is to be put in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyFileError {
    /// It is neither a text nor a list of texts.
    NotKeys(String),
    /// A character that base64 does not have.
    BadChar(char),
    BadLength(usize),
    TooMany(usize),
}

impl KeyFileError {
    /// The error's line, for a file of this name.
    pub fn of_file(&self, name: &str) -> String {
        match self {
            Self::NotKeys(why) => format!("error reading security key file {name}: {why}"),
            Self::BadChar(char) => format!("invalid char in key file {name}: {char}"),
            Self::BadLength(length) => format!(
                "security key in {name} has length {length}, must be between {MIN_KEY_CHARS} and {MAX_KEY_CHARS} chars"
            ),
            Self::TooMany(count) => format!(
                "Only {MAX_KEYS} keys are supported in the security key file, {count} are specified in {name}"
            ),
        }
    }
}

impl MemberKeys {
    /// Reads the text of a key file: a key, or a YAML list of keys.
    ///
    /// # Errors
    /// It holds no key, or something that is none.
    pub fn parse(text: &str) -> Result<MemberKeys, KeyFileError> {
        let mut found = KeyFileEvents::default();
        let mut parser = Parser::new_from_str(text);
        let parsed = parser.load(&mut found, true);
        parsed.map_err(|error| KeyFileError::NotKeys(error.to_string()))?;
        if found.is_other || found.keys.is_empty() {
            let expected = "expected a key, or a list of keys";
            return Err(KeyFileError::NotKeys(expected.into()));
        }
        if found.keys.len() > MAX_KEYS {
            return Err(KeyFileError::TooMany(found.keys.len()));
        }
        let keys: Result<Vec<String>, KeyFileError> =
            found.keys.iter().map(|key| stripped(key)).collect();
        Ok(MemberKeys { keys: keys? })
    }

    /// All of them, which are accepted of others. The first is the one to show them.
    pub fn all(&self) -> &[String] {
        &self.keys
    }
}

/// A key without white space, checked.
fn stripped(text: &str) -> Result<String, KeyFileError> {
    let key: String = text.chars().filter(|char| !char.is_whitespace()).collect();
    let is_base64 = |char: char| char.is_ascii_alphanumeric() || "+/=".contains(char);
    if let Some(char) = key.chars().find(|char| !is_base64(*char)) {
        return Err(KeyFileError::BadChar(char));
    }
    match key.len() {
        MIN_KEY_CHARS..=MAX_KEY_CHARS => Ok(key),
        length => Err(KeyFileError::BadLength(length)),
    }
}

/// What the YAML parser comes upon. Its events have the texts as they were written: a key of digits
/// is no number.
#[derive(Default)]
struct KeyFileEvents {
    keys: Vec<String>,
    is_in_list: bool,
    is_other: bool,
}

impl EventReceiver for KeyFileEvents {
    fn on_event(&mut self, event: Event) {
        match event {
            Event::Scalar(text, ..) if self.is_in_list || self.keys.is_empty() => {
                self.keys.push(text);
            }
            Event::SequenceStart(..) if !self.is_in_list && self.keys.is_empty() => {
                self.is_in_list = true;
            }
            Event::Scalar(..)
            | Event::SequenceStart(..)
            | Event::MappingStart(..)
            | Event::Alias(..) => self.is_other = true,
            Event::SequenceEnd => self.is_in_list = false,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Result<&[&str], &str>) {
        let keys = MemberKeys::parse(text);
        let seen = keys.map(|keys| keys.keys);
        match expected {
            Ok(keys) => assert_eq!(seen.unwrap(), keys, "{text}"),
            Err(line) => {
                let error = seen.expect_err(text).of_file("f");
                assert!(error.contains(line), "{text}: {error}");
            }
        }
    }

    #[test]
    fn files() {
        check("abcdef", Ok(&["abcdef"]));
        // As `openssl rand -base64 756` writes it.
        check("abc+/\n012\nxyz==\n", Ok(&["abc+/012xyz=="]));
        check("\n  abc\tdef  \r\n ghi\n", Ok(&["abcdefghi"]));
        check("0123456", Ok(&["0123456"]));
        check("\"abcdef\"", Ok(&["abcdef"]));
        check("- first1\n- second\n", Ok(&["first1", "second"]));
        check("[first1, 000000]", Ok(&["first1", "000000"]));
        check(
            "- |\n  first\n  line2\n- \"second\"\n",
            Ok(&["firstline2", "second"]),
        );
        check(&"a".repeat(1024), Ok(&[&"a".repeat(1024)]));
    }

    #[test]
    fn files_without_keys() {
        check("", Err("expected a key"));
        check("# abcdef\n", Err("expected a key"));
        check("[]", Err("expected a key"));
        check("key: abcdef\n", Err("expected a key"));
        check("- - abcdef\n", Err("expected a key"));
        check("- key: abcdef\n", Err("expected a key"));
        check("\"abcdef", Err("error reading security key file f: "));
        check("abc_def", Err("invalid char in key file f: _"));
        check("abcdéf", Err("invalid char in key file f: é"));
        let length = |n: usize| {
            format!("security key in f has length {n}, must be between 6 and 1024 chars")
        };
        check("abc\nde", Err(&length(5)));
        check("- abcdef\n- ab\n", Err(&length(2)));
        check(&"a".repeat(1025), Err(&length(1025)));
        check(
            "- aaaaaa\n- bbbbbb\n- cccccc\n- dddddd\n- eeeeee\n",
            Err("Only 4 keys"),
        );
    }

    #[test]
    fn keys_do_not_show() {
        let keys = MemberKeys::parse("secret1").unwrap();
        assert_eq!(format!("{keys:?}"), "MemberKeys(..)");
    }
}
