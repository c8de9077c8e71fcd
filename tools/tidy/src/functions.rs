//! Finds the functions of Rust source, without those of tests.

use crate::tree::File;

/// A function's first line and how many it has, to the closing brace.
pub struct Function {
    pub line: usize,
    pub lines: usize,
}

/// A function, or a test module, from its first byte to its last.
struct Item {
    start: usize,
    end: usize,
}

/// The code of a file without its test modules; nothing for a file of tests.
pub fn code_without_tests(file: &File) -> String {
    let Some(source) = &file.source else {
        return String::new();
    };
    if !file.is_rust() || is_test_file(&file.path) {
        return String::new();
    }
    let code = &source.code;
    let mut out = String::with_capacity(code.len());
    let mut kept = 0;
    for (start, _) in code.match_indices("#[cfg(test)]") {
        if start < kept {
            continue;
        }
        out.push_str(&code[kept..start]);
        kept = body(code, start).map_or(start, |item| item.end);
        // The lines below keep their numbers.
        let newlines = code[start..kept].matches('\n').count();
        out.extend(std::iter::repeat_n('\n', newlines));
    }
    out.push_str(&code[kept..]);
    out
}

/// The functions in a text that `code_without_tests` made.
pub fn functions(code: &str) -> Vec<Function> {
    let mut out = Vec::new();
    for (start, _) in code.match_indices("fn ") {
        let is_word = code[..start]
            .bytes()
            .next_back()
            .is_none_or(|byte| !byte.is_ascii_alphanumeric() && byte != b'_');
        if let Some(item) = body(code, start).filter(|_| is_word) {
            out.push(Function {
                line: code[..item.start].matches('\n').count() + 1,
                lines: code[item.start..item.end].matches('\n').count() + 1,
            });
        }
    }
    out
}

/// Places where code asserts: the macros, and `expect` on what must be there.
pub fn assertions(code: &str) -> usize {
    ["assert!(", "assert_eq!(", "assert_ne!(", ".expect("]
        .iter()
        .map(|call| code.matches(call).count())
        .sum()
}

/// From `start` to the end of the braces that follow; `None` for an item without any.
fn body(code: &str, start: usize) -> Option<Item> {
    let mut brackets = 0_usize;
    let mut braces = 0_usize;
    for (index, byte) in code[start..].bytes().enumerate() {
        match byte {
            b'(' | b'[' => brackets += 1,
            b')' | b']' => brackets = brackets.saturating_sub(1),
            b'{' => braces += 1,
            b';' if brackets == 0 && braces == 0 => return None,
            b'}' => {
                braces = braces.saturating_sub(1);
                if braces == 0 {
                    let end = start + index + 1;
                    return Some(Item { start, end });
                }
            }
            _ => {}
        }
    }
    None
}

fn is_test_file(path: &str) -> bool {
    path.split('/').any(|part| {
        let name = part.strip_suffix(".rs").unwrap_or(part);
        name == "tests"
            || name == "testing"
            || name.starts_with("tests_")
            || name.ends_with("_tests")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<(usize, usize)> {
        functions(&code_without_tests(&File::new(path, text)))
            .iter()
            .map(|function| (function.line, function.lines))
            .collect()
    }

    #[test]
    fn functions_are_measured_to_their_closing_brace() {
        let text = "trait T {\n    fn a(&self, x: [u8; 2]);\n}\nfn b() -> u8 {\n    // }\n    '}' as u8\n}\nconst F: fn() = c;\n";
        assert_eq!(found("a/src/b.rs", text), [(4, 4)]);
        assert_eq!(
            found("a/src/b.rs", "fn a() {\n  fn b() {\n}\n}"),
            [(1, 4), (2, 2)]
        );
    }

    #[test]
    fn tests_are_left_out() {
        let text = "#[cfg(test)]\nmod tests {\n    fn a() {}\n}\nfn b() {}\n#[cfg(test)]\nmod c;\nfn d() {}\n";
        assert_eq!(found("a/src/b.rs", text), [(5, 1), (8, 1)]);
        assert_eq!(found("a/src/model_tests.rs", "fn a() {}"), []);
        assert_eq!(found("a/tests/b.rs", "fn a() {}"), []);
    }

    #[test]
    fn all_kinds_of_assertions_count() {
        let code = "assert!(a); debug_assert_eq!(b, c); const { assert!(d) }; e.expect( );";
        assert_eq!(assertions(code), 4);
    }
}
