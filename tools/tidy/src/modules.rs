//! The order of modules, for each crate whose `lib.rs` says that it has one: it lists them
//! in groups, and a module uses those of its own group, in no circle, and of the groups above. So a
//! part of the crate can be read, moved and compiled without the rest.

use std::collections::{BTreeMap, BTreeSet};

use crate::tree::File;

/// The line by which a `lib.rs` says so.
const MARK: &str =
    "// A module uses those of its own group, in no circle, and of the groups above.";

/// What each module uses of its crate, and where.
type Uses = BTreeMap<String, BTreeMap<String, String>>;

pub fn module_order(files: &[File]) -> Vec<String> {
    let ordered = files.iter().filter_map(|file| {
        let folder = file.path.strip_suffix("/src/lib.rs")?;
        file.lines()
            .any(|(_, line)| line == MARK)
            .then_some((folder, file))
    });
    ordered
        .flat_map(|(folder, root)| order_of(folder, root, files))
        .collect()
}

fn order_of(folder: &str, root: &File, files: &[File]) -> Vec<String> {
    let groups = groups(&root.text);
    let uses = uses(folder, files, &groups);
    let mut out = Vec::new();
    for (module, used) in &uses {
        for (other, path) in used {
            if groups[other] > groups[module] {
                out.push(format!(
                    "{path}: uses {other}, which stands below {module} in {}",
                    root.path
                ));
            }
        }
    }
    out.extend(
        circle(&uses)
            .map(|circle| format!("{folder}: modules use one another in a circle: {circle}")),
    );
    out
}

/// The modules with the number of their group: those of one group have no empty line between them.
fn groups(root: &str) -> BTreeMap<String, usize> {
    let mut groups = BTreeMap::new();
    let mut group = 0;
    for line in root.lines() {
        let declared = line.strip_prefix("pub ").unwrap_or(line);
        match declared
            .strip_prefix("mod ")
            .and_then(|rest| rest.strip_suffix(';'))
        {
            Some(name) => {
                groups.insert(name.to_owned(), group);
            }
            None => group += usize::from(line.is_empty()),
        }
    }
    groups
}

fn uses(folder: &str, files: &[File], groups: &BTreeMap<String, usize>) -> Uses {
    let mut uses = Uses::new();
    let source = format!("{folder}/src/");
    for file in files.iter().filter(|file| file.is_rust()) {
        let Some(path) = file.path.strip_prefix(&source) else {
            continue;
        };
        let module = path.split(['/', '.']).next().unwrap_or_default();
        if !groups.contains_key(module) {
            continue;
        }
        for other in named(&file.text) {
            if other != module && groups.contains_key(&other) {
                let used = uses.entry(module.to_owned()).or_default();
                used.entry(other).or_insert_with(|| file.path.clone());
            }
        }
    }
    uses
}

/// The modules of its crate that a file names, outside of comments and of its tests.
fn named(text: &str) -> BTreeSet<String> {
    let code = text
        .split("\n#[cfg(test)]\nmod tests {")
        .next()
        .unwrap_or_default();
    let code: Vec<&str> = code
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .collect();
    let code = code.join("\n");
    let mut found = BTreeSet::new();
    for rest in code.split("crate::").skip(1) {
        match rest.strip_prefix('{') {
            Some(list) => found.extend(heads(list)),
            None => found.extend(head(rest)),
        }
    }
    found
}

/// The name that a path begins with.
fn head(path: &str) -> Option<String> {
    let is_part =
        |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_';
    let name = path.split(|letter| !is_part(letter)).next()?;
    (!name.is_empty()).then(|| name.to_owned())
}

/// The names that the paths of a list begin with, which ends with its brace.
fn heads(list: &str) -> Vec<String> {
    let mut found = Vec::new();
    let (mut depth, mut begins) = (0, true);
    for (at, letter) in list.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => begins = true,
            letter if letter.is_whitespace() => {}
            _ if begins => {
                found.extend(head(&list[at..]));
                begins = false;
            }
            _ => {}
        }
    }
    found
}

/// A circle of modules that use one another, if there is one.
fn circle(uses: &Uses) -> Option<String> {
    fn visit<'u>(
        module: &'u str,
        uses: &'u Uses,
        path: &mut Vec<&'u str>,
        done: &mut BTreeSet<&'u str>,
    ) -> Option<String> {
        if let Some(at) = path.iter().position(|before| *before == module) {
            return Some([&path[at..], &[module]].concat().join(" -> "));
        }
        if !done.insert(module) {
            return None;
        }
        path.push(module);
        let mut used = uses.get(module).into_iter().flatten();
        let found = used.find_map(|(other, _)| visit(other, uses, path, done));
        path.pop();
        found
    }
    let mut done = BTreeSet::new();
    uses.keys()
        .find_map(|module| visit(module, uses, &mut Vec::new(), &mut done))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> File {
        File::new(format!("engine/exec/src/{path}"), text)
    }

    fn check(modules: &[(&str, &str)], expected: &[&str]) {
        let root =
            format!("//! Top.\n\n{MARK}\n\nmod a;\nmod b;\n\n// Above.\npub mod c;\nmod d;\n");
        let mut files = vec![file("lib.rs", &root)];
        files.extend(modules.iter().map(|(path, text)| file(path, text)));
        let found = module_order(&files);
        assert_eq!(found.len(), expected.len(), "{found:?}");
        for (found, expected) in found.iter().zip(expected) {
            assert!(found.contains(expected), "{found}");
        }
    }

    #[test]
    fn a_module_uses_what_stands_above_it() {
        check(
            &[("c.rs", "use crate::a::A;"), ("d/x.rs", "crate::c::f()")],
            &[],
        );
        check(&[("a.rs", "use crate::b::B;")], &[]);
        check(
            &[("b/mod.rs", "use crate::{x, c::{C, a}};")],
            &["uses c, which stands below b"],
        );
        check(
            &[("a.rs", "fn f() { crate::d::f() }")],
            &["uses d, which stands below a"],
        );
    }

    #[test]
    fn comments_and_tests_may_name_every_module() {
        let text = "// crate::c\nfn f() {}\n\n#[cfg(test)]\nmod tests {\n    use crate::d::D;\n}\n";
        check(&[("a.rs", text)], &[]);
    }

    #[test]
    fn a_group_has_no_circle() {
        let modules = [
            ("c.rs", "use crate::d::D;"),
            ("d.rs", "use crate::{a::A, c::C};"),
        ];
        check(&modules, &["c -> d -> c"]);
    }
}
