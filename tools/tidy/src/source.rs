//! Separates the code of a Rust or Python file from its comments; strings are dropped from both.

/// A file's code and comments. Both have as many lines as the file; what belongs to neither is
/// blank.
pub struct Source {
    /// The code: contents of strings and comments are spaces.
    pub code: String,
    /// The comments, with the docstrings of Python: everything else is spaces.
    pub comments: String,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Code,
    Comment,
    Text,
}

impl Source {
    /// Reads Rust source.
    pub fn of_rust(text: &str) -> Self {
        let mut scan = Scan::new(text);
        while let Some(byte) = scan.peek(0) {
            match byte {
                b'/' if scan.starts_with("//") => scan.take_line(),
                b'/' if scan.starts_with("/*") => scan.take_block_comment(),
                b'"' => scan.take_quoted(b'"', Kind::Text),
                b'r' if !scan.is_inside_name() && scan.raw_hashes().is_some() => {
                    scan.take_raw_string();
                }
                b'\'' if scan.is_char_literal() => scan.take_quoted(b'\'', Kind::Text),
                _ => scan.take(1, Kind::Code),
            }
        }
        scan.finish()
    }

    /// Reads Python source. A string in three quotes that begins a line is a docstring.
    pub fn of_python(text: &str) -> Self {
        let mut scan = Scan::new(text);
        while let Some(byte) = scan.peek(0) {
            match byte {
                b'#' => scan.take_line(),
                b'"' if scan.starts_with("\"\"\"") => scan.take_docstring("\"\"\""),
                b'\'' if scan.starts_with("'''") => scan.take_docstring("'''"),
                b'"' | b'\'' => scan.take_quoted(byte, Kind::Text),
                _ => scan.take(1, Kind::Code),
            }
        }
        scan.finish()
    }
}

struct Scan<'a> {
    text: &'a [u8],
    at: usize,
    code: Vec<u8>,
    comments: Vec<u8>,
}

impl<'a> Scan<'a> {
    fn new(text: &'a str) -> Self {
        Self {
            text: text.as_bytes(),
            at: 0,
            code: Vec::with_capacity(text.len()),
            comments: Vec::with_capacity(text.len()),
        }
    }

    fn finish(self) -> Source {
        // Quotes and slashes are one byte each, so every cut lies between characters.
        Source {
            code: String::from_utf8_lossy(&self.code).into_owned(),
            comments: String::from_utf8_lossy(&self.comments).into_owned(),
        }
    }

    fn peek(&self, ahead: usize) -> Option<u8> {
        self.text.get(self.at + ahead).copied()
    }

    fn starts_with(&self, what: &str) -> bool {
        self.text[self.at..].starts_with(what.as_bytes())
    }

    fn take(&mut self, bytes: usize, kind: Kind) {
        let end = (self.at + bytes).min(self.text.len());
        for &byte in &self.text[self.at..end] {
            let blank = if byte == b'\n' { byte } else { b' ' };
            let shown = |wanted| if kind == wanted { byte } else { blank };
            self.code.push(shown(Kind::Code));
            self.comments.push(shown(Kind::Comment));
        }
        self.at = end;
    }

    fn take_line(&mut self) {
        let rest = &self.text[self.at..];
        let length = rest.iter().position(|byte| *byte == b'\n');
        self.take(length.unwrap_or(rest.len()), Kind::Comment);
    }

    fn take_block_comment(&mut self) {
        let mut depth = 0;
        while self.peek(0).is_some() {
            if self.starts_with("/*") {
                depth += 1;
                self.take(2, Kind::Comment);
            } else if self.starts_with("*/") {
                depth -= 1;
                self.take(2, Kind::Comment);
                if depth == 0 {
                    return;
                }
            } else {
                self.take(1, Kind::Comment);
            }
        }
    }

    /// From an opening quote to the next one that no backslash escapes.
    fn take_quoted(&mut self, quote: u8, kind: Kind) {
        self.take(1, kind);
        while let Some(byte) = self.peek(0) {
            self.take(if byte == b'\\' { 2 } else { 1 }, kind);
            if byte == quote {
                return;
            }
        }
    }

    fn take_docstring(&mut self, quotes: &str) {
        let line_start = self.text[..self.at]
            .iter()
            .rposition(|byte| *byte == b'\n')
            .map_or(0, |newline| newline + 1);
        let is_first = self.text[line_start..self.at]
            .iter()
            .all(u8::is_ascii_whitespace);
        let kind = if is_first { Kind::Comment } else { Kind::Text };
        self.take(quotes.len(), kind);
        while self.peek(0).is_some() && !self.starts_with(quotes) {
            let escaped = self.peek(0) == Some(b'\\');
            self.take(if escaped { 2 } else { 1 }, kind);
        }
        self.take(quotes.len(), kind);
    }

    /// Whether the byte before this one belongs to the same name. `b` and `c` may precede a raw
    /// string.
    fn is_inside_name(&self) -> bool {
        let before = |ahead: usize| {
            self.at
                .checked_sub(ahead)
                .map_or(b' ', |index| self.text[index])
        };
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        is_name(before(1)) && (!matches!(before(1), b'b' | b'c') || is_name(before(2)))
    }

    /// How many `#` stand between an `r` and the quote of a raw string.
    fn raw_hashes(&self) -> Option<usize> {
        let rest = &self.text[self.at + 1..];
        let hashes = rest.iter().take_while(|byte| **byte == b'#').count();
        (rest.get(hashes) == Some(&b'"')).then_some(hashes)
    }

    fn take_raw_string(&mut self) {
        let hashes = self.raw_hashes().unwrap_or(0);
        let end = format!("\"{}", "#".repeat(hashes));
        self.take(hashes + 2, Kind::Text);
        while self.peek(0).is_some() && !self.starts_with(&end) {
            self.take(1, Kind::Text);
        }
        self.take(end.len(), Kind::Text);
    }

    /// A quote begins a character when it closes behind one; otherwise it begins a lifetime.
    fn is_char_literal(&self) -> bool {
        match self.peek(1) {
            Some(b'\\') => true,
            Some(first) => {
                let width = match first {
                    0xf0.. => 4,
                    0xe0.. => 3,
                    0xc0.. => 2,
                    _ => 1,
                };
                self.peek(1 + width) == Some(b'\'')
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn squeezed(text: &str) -> String {
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn rust_is_divided_into_code_and_comments() {
        for (text, code, comments) in [
            ("a(); // one\nb();", "a(); b();", "// one"),
            ("/* a /* b */ c */ d", "d", "/* a /* b */ c */"),
            (r#"f("x // y \" z") // w"#, "f( )", "// w"),
            ("f(r#\"a \" // b\"#, br\"c\")", "f( , b )", ""),
            ("'\"' 'a '\\'' b // 'c'", "'a b", "// 'c'"),
            ("for r in 'ä'..'z' {}", "for r in .. {}", ""),
        ] {
            let source = Source::of_rust(text);
            assert_eq!(squeezed(&source.code), code, "{text}");
            assert_eq!(squeezed(&source.comments), comments, "{text}");
            assert_eq!(source.code.len(), text.len());
        }
    }

    #[test]
    fn python_docstrings_are_comments() {
        let text =
            "def f():\n    \"\"\"One.\n    Two.\"\"\"\n    g('#', \"\"\"three\"\"\")  # four\n";
        let source = Source::of_python(text);
        assert_eq!(squeezed(&source.code), "def f(): g( , )");
        assert_eq!(squeezed(&source.comments), "\"\"\"One. Two.\"\"\" # four");
        assert_eq!(source.comments.lines().count(), text.lines().count());
    }
}
