//! The checks. Each takes all files and returns what it objects to, one line each.

use std::collections::BTreeSet;

use crate::links::router_links;
use crate::modules::module_order;
use crate::ratchet;
use crate::tree::File;

type Check = fn(&[File]) -> Vec<String>;

/// Every check with its name.
pub const CHECKS: &[(&str, Check)] = &[
    ("top level", top_level),
    ("crate order", crate_order),
    ("what a router links", router_links),
    ("module order", module_order),
    ("only core/runtime names glommio and io_uring", glommio),
    ("thread locals and mutable statics", thread_locals),
    ("purpose lines", purpose_lines),
    ("file length", file_length),
    ("leftovers", leftovers),
    ("banned words", banned_words),
    ("dead files", dead_files),
    ("lints are inherited", lints_inherited),
    ("documented commands", documented_commands),
    ("words", ratchet::words),
    ("comment width", ratchet::comment_width),
    ("function length", ratchet::function_length),
    ("assertions", ratchet::assertion_density),
];

/// The longest file in lines.
const MAX_LINES: usize = 1_000;

/// What may stand at the top level.
const TOP_LEVEL: &[&str] = &[
    ".ci",
    ".gitattributes",
    ".gitignore",
    "ARCHITECTURE.md",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "README.md",
    "bench",
    "clippy.toml",
    "core",
    "docs",
    "engine",
    "replication",
    "sharding",
    "tools",
];

/// A crate may use only crates before it in this list.
const CRATE_ORDER: &[&str] = &[
    "core/bson",
    "core/collation",
    "core/keystring",
    "core/clock",
    "core/auth",
    "core/metrics",
    "core/wire",
    "core/runtime",
    "core/server",
    "engine/storage",
    "engine/query",
    "engine/command",
    "engine/service",
    "engine/merge",
    "engine/catalog",
    "engine/exec",
    "engine/access",
    "engine/apply",
    "engine/administration",
    "engine/instance",
    "replication/protocol",
    "replication/node",
    "sharding/protocol",
    "sharding/router",
    "sharding/node",
    "tools/process",
    "tools/pinion",
    "tools/router",
    "tools/admin",
    "tools/sim",
];

/// Crates that must not know others that stand before them, beyond the order itself.
const FORBIDDEN: &[(&str, &[&str])] = &[
    ("core/bson", &["pinion-runtime"]),
    ("core/collation", &["pinion-runtime"]),
    ("core/keystring", &["pinion-runtime"]),
    ("core/clock", &["pinion-runtime", "pinion-bson"]),
    ("core/auth", &["pinion-runtime"]),
    ("core/metrics", &["pinion-runtime"]),
    ("core/wire", &["pinion-runtime"]),
    (
        "core/runtime",
        &[
            "pinion-bson",
            "pinion-wire",
            "pinion-clock",
            "pinion-keystring",
        ],
    ),
    (
        "engine/storage",
        &["pinion-bson", "pinion-wire", "pinion-server"],
    ),
    (
        "engine/query",
        &["pinion-runtime", "pinion-storage", "pinion-server"],
    ),
    // A router has the rows of commands, and neither storage nor a catalog.
    (
        "engine/command",
        &["pinion-runtime", "pinion-storage", "pinion-server"],
    ),
    ("engine/service", &["pinion-storage", "pinion-server"]),
    ("engine/merge", &["pinion-storage", "pinion-server"]),
    ("engine/catalog", &["pinion-server"]),
    ("engine/exec", &["pinion-server"]),
    ("engine/access", &["pinion-server"]),
    ("engine/apply", &["pinion-server"]),
    ("engine/administration", &["pinion-server", "pinion-apply"]),
    ("engine/instance", &["pinion-server"]),
    (
        "replication/protocol",
        &["pinion-runtime", "pinion-storage", "pinion-server"],
    ),
    (
        "sharding/protocol",
        &["pinion-runtime", "pinion-storage", "pinion-server"],
    ),
    (
        "sharding/router",
        &[
            "pinion-storage",
            "pinion-catalog",
            "pinion-exec",
            "pinion-replication-protocol",
            "pinion-replication-node",
        ],
    ),
    (
        "tools/router",
        &[
            "pinion-storage",
            "pinion-catalog",
            "pinion-exec",
            "pinion-replication-node",
            "pinion-sharding-node",
        ],
    ),
];

/// Words and what to write instead.
const BANNED: &[(&str, &str)] = &[
    ("blacklist", "deny list"),
    ("whitelist", "allow list"),
    ("slave", "secondary"),
    (concat!("XX", "X"), "a sentence that says what is wrong"),
    ("HACK", "a sentence that says why"),
];

const LEFTOVERS: &[&str] = &[
    concat!("todo", "!("),
    concat!("unimplemented", "!("),
    concat!("dbg", "!("),
    concat!("FIX", "ME"),
    "TODO",
];

/// Crates that only core/runtime may name.
const RUNTIME_ONLY: &[&str] = &["glommio", "io_uring"];

/// This file names what it looks for.
const SELF: &str = "tools/tidy/src/check.rs";

fn top_level(files: &[File]) -> Vec<String> {
    let names: BTreeSet<&str> = files
        .iter()
        .filter_map(|file| file.path.split('/').next())
        .collect();
    names
        .into_iter()
        .filter(|name| !TOP_LEVEL.contains(name))
        .map(|name| format!("{name}: does not belong at the top level"))
        .collect()
}

pub(crate) fn manifest_folder(file: &File) -> Option<&str> {
    file.path.strip_suffix("/Cargo.toml")
}

fn package_name(folder: &str) -> String {
    match folder {
        "tools/pinion" => "pinion".into(),
        // Replication and sharding each have a protocol and a node.
        _ if folder.starts_with("replication/") || folder.starts_with("sharding/") => {
            format!("pinion-{}", folder.replace('/', "-"))
        }
        _ => format!("pinion-{}", folder.rsplit('/').next().unwrap_or(folder)),
    }
}

/// The crates that a manifest's package depends on, also while it is built, for whatever target
/// (those that its tests use may stand anywhere).
pub(crate) fn dependencies(file: &File) -> Vec<&str> {
    let mut out = Vec::new();
    let mut inside = false;
    for line in file.text.lines() {
        if let Some(section) = line.strip_prefix('[') {
            let section = section.trim_end_matches(']');
            let (of, one) = match section.rsplit_once("dependencies") {
                Some((of, one)) => (of, one.strip_prefix('.')),
                None => {
                    inside = false;
                    continue;
                }
            };
            let counts = of.is_empty() || of.ends_with('.') || of.ends_with("build-");
            inside = counts && one.is_none() && section.ends_with("dependencies");
            out.extend(one.filter(|_| counts));
        } else if inside
            && let Some(name) = line.split(['.', '=', ' ']).next()
            && !name.is_empty()
        {
            out.push(name);
        }
    }
    out
}

fn crate_order(files: &[File]) -> Vec<String> {
    let mut out = Vec::new();
    for file in files {
        let Some(folder) = manifest_folder(file) else {
            continue;
        };
        let Some(place) = CRATE_ORDER.iter().position(|name| *name == folder) else {
            continue;
        };
        let forbidden = FORBIDDEN
            .iter()
            .find(|(name, _)| *name == folder)
            .map_or(&[][..], |(_, not)| not);
        for name in dependencies(file) {
            let above = CRATE_ORDER
                .iter()
                .position(|folder| package_name(folder) == name);
            if above.is_some_and(|above| above >= place) || forbidden.contains(&name) {
                out.push(format!("{}: may not use {name}", file.path));
            }
        }
    }
    out
}

fn glommio(files: &[File]) -> Vec<String> {
    let allowed = |path: &str| path.starts_with("core/runtime/") || path.starts_with("bench/");
    let paths: Vec<String> = RUNTIME_ONLY
        .iter()
        .map(|name| format!("{name}::"))
        .collect();
    let names = |line: &str| paths.iter().any(|path| line.contains(path));
    offending_lines(
        files,
        |file| file.is_rust() && !allowed(&file.path),
        names,
        "only core/runtime may name it",
    )
}

fn thread_locals(files: &[File]) -> Vec<String> {
    let server = |path: &str| {
        (path.starts_with("core/") && !path.starts_with("core/runtime/"))
            || path.starts_with("engine/")
            || path.starts_with("replication/")
            || path.starts_with("sharding/")
    };
    let bad =
        |line: &str| line.contains("thread_local!") || line.trim_start().starts_with("static mut ");
    offending_lines(
        files,
        // The budget of one synchronous call, on a core or on a compute thread: it ends before
        // another begins.
        |file| file.is_rust() && server(&file.path) && file.path != "engine/query/src/work.rs",
        bad,
        "use core-local state of pinion_runtime",
    )
}

fn purpose_lines(files: &[File]) -> Vec<String> {
    files
        .iter()
        .filter(|file| file.is_rust() && file.path != "build.rs")
        .filter(|file| !file.text.starts_with("//! "))
        .map(|file| {
            format!(
                "{}: the first line must say what the file is for (//! ...)",
                file.path
            )
        })
        .collect()
}

fn file_length(files: &[File]) -> Vec<String> {
    files
        .iter()
        .filter(|file| file.is_rust() || file.path.ends_with(".py"))
        .filter(|file| file.text.lines().count() > MAX_LINES)
        .map(|file| {
            format!(
                "{}: {} lines are probably two files",
                file.path,
                file.text.lines().count()
            )
        })
        .collect()
}

fn leftovers(files: &[File]) -> Vec<String> {
    let source = |file: &File| (file.is_rust() || file.path.ends_with(".py")) && file.path != SELF;
    let mut out = offending_lines(
        files,
        source,
        |line| LEFTOVERS.iter().any(|word| line.contains(word)),
        "a leftover",
    );
    let ignored = |line: &str| line.trim() == concat!("#[ignore", "]");
    out.extend(offending_lines(
        files,
        source,
        ignored,
        "an ignored test needs its reason",
    ));
    out
}

fn banned_words(files: &[File]) -> Vec<String> {
    let mut out = Vec::new();
    for (word, instead) in BANNED {
        let text = |file: &File| {
            file.text.contains(word)
                && file.path != SELF
                && !file.path.ends_with("Cargo.lock")
                && !file.path.starts_with("LICENSE")
        };
        let has = |line: &str| {
            line.split(|c: char| !c.is_alphanumeric())
                .any(|part| part == *word)
        };
        out.extend(offending_lines(
            files,
            text,
            has,
            &format!("write \"{instead}\""),
        ));
    }
    out
}

fn offending_lines(
    files: &[File],
    wanted: impl Fn(&File) -> bool,
    bad: impl Fn(&str) -> bool,
    why: &str,
) -> Vec<String> {
    let mut out = Vec::new();
    for file in files.iter().filter(|file| wanted(file)) {
        for (number, line) in file.lines() {
            if bad(line) {
                out.push(format!("{}:{number}: {}: {why}", file.path, line.trim()));
            }
        }
    }
    out
}

/// A Rust file that no `mod` line names is not compiled.
fn dead_files(files: &[File]) -> Vec<String> {
    let mut out = Vec::new();
    for file in files
        .iter()
        .filter(|file| file.is_rust() && file.path.contains("/src/"))
    {
        let name = file.path.rsplit('/').next().unwrap_or_default();
        let folder = file
            .path
            .strip_suffix(name)
            .unwrap_or_default()
            .trim_end_matches('/');
        if matches!(name, "main.rs" | "lib.rs") || folder.ends_with("/src/bin") {
            continue;
        }
        // The module's name, and the folder of the file that must declare it.
        let (module, parent) = match name {
            "mod.rs" => {
                let (parent, module) = folder.rsplit_once('/').unwrap_or(("", folder));
                (module, parent)
            }
            _ => (name.trim_end_matches(".rs"), folder),
        };
        let has_line = |candidate: &File| {
            candidate.lines().any(|(_, line)| {
                let line = line.trim_start();
                let line = line.strip_prefix("pub").map_or(line, |rest| {
                    rest.trim_start_matches(|c| c != ' ').trim_start()
                });
                line == format!("mod {module};")
            })
        };
        let is_near = |candidate: &File| {
            let dir = candidate.path.rsplit_once('/').map_or("", |(dir, _)| dir);
            dir == parent || format!("{parent}.rs") == candidate.path
        };
        let names_path = |candidate: &File| {
            let attribute = format!("#[path = \"{name}\"]");
            candidate.text.contains(&attribute)
        };
        let rust = || files.iter().filter(|candidate| candidate.is_rust());
        // Few files are declared from afar, and only those are worth a search in all texts.
        let is_declared = rust().any(|candidate| is_near(candidate) && has_line(candidate))
            || rust().any(|candidate| names_path(candidate) && has_line(candidate));
        if !is_declared {
            out.push(format!("{}: no module declares it", file.path));
        }
    }
    out
}

fn lints_inherited(files: &[File]) -> Vec<String> {
    files
        .iter()
        .filter(|file| manifest_folder(file).is_some_and(|folder| !folder.is_empty()))
        .filter(|file| !file.text.contains("[workspace]"))
        .filter(|file| !file.text.contains("[lints]\nworkspace = true"))
        .map(|file| format!("{}: [lints] workspace = true is missing", file.path))
        .collect()
}

/// A cargo command in a document must find what it names. Without `-p` cargo looks for a binary
/// among the default members only.
fn documented_commands(files: &[File]) -> Vec<String> {
    let manifests = || {
        files
            .iter()
            .filter(|file| file.path.ends_with("Cargo.toml"))
            // A workspace of its own is found from its own folder only.
            .filter(|file| !file.text.contains("[workspace]"))
    };
    let named = |file: &File| {
        let line = file.text.lines().find(|line| line.starts_with("name = "))?;
        Some(line.split('"').nth(1)?.to_owned())
    };
    let packages: BTreeSet<String> = manifests().filter_map(named).collect();
    let workspace = files.iter().find(|file| file.path == "Cargo.toml");
    let members = workspace
        .and_then(|file| {
            file.text
                .lines()
                .find(|line| line.starts_with("default-members"))
        })
        .unwrap_or_default();
    let is_default = |folder: &str| members.split('"').any(|member| member == folder);
    let defaults: BTreeSet<String> = manifests()
        .filter(|file| manifest_folder(file).is_some_and(is_default))
        .filter_map(named)
        .collect();
    let bad = |line: &str| {
        let Some((_, command)) = line.split_once("cargo ") else {
            return false;
        };
        // Behind ` -- ` come the program's own options.
        let command = command.split(" -- ").next().unwrap_or_default();
        let words: Vec<&str> = command
            .split_whitespace()
            .map(|word| word.trim_end_matches(|c: char| !c.is_alphanumeric()))
            .collect();
        let has_package = words.contains(&"-p");
        words.windows(2).any(|pair| match pair[0] {
            "-p" => !packages.contains(pair[1]),
            "--bin" => !has_package && !defaults.contains(pair[1]),
            _ => false,
        })
    };
    let wanted = |file: &File| !file.path.ends_with(".lock") && file.path != SELF;
    offending_lines(files, wanted, bad, "cargo finds no such package or binary")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(check: Check, files: &[(&str, &str)], expected: &[&str]) {
        let files: Vec<File> = files
            .iter()
            .map(|(path, text)| File::new(*path, *text))
            .collect();
        let found = check(&files);
        assert_eq!(found.len(), expected.len(), "{found:?}");
        for (found, expected) in found.iter().zip(expected) {
            assert!(
                found.contains(expected),
                "{found} does not contain {expected}"
            );
        }
    }

    #[test]
    fn a_crate_may_not_use_one_below_it() {
        let manifest = "[dependencies]\npinion-storage.workspace = true\nbytes.workspace = true\n";
        check(
            crate_order,
            &[("core/wire/Cargo.toml", manifest)],
            &["may not use pinion-storage"],
        );
        check(crate_order, &[("engine/exec/Cargo.toml", manifest)], &[]);
        let manifest = "[dependencies]\npinion-bson.workspace = true\n";
        check(
            crate_order,
            &[("engine/storage/Cargo.toml", manifest)],
            &["may not use pinion-bson"],
        );
    }

    #[test]
    fn leftovers_and_names_are_found() {
        check(
            leftovers,
            &[(
                "a/src/b.rs",
                concat!("fn f() { todo", "!() }\n#[ignore", "]\n"),
            )],
            &["todo!", "reason"],
        );
        check(
            glommio,
            &[(
                "engine/a/src/b.rs",
                &format!("use {}::X;\n", RUNTIME_ONLY[0]),
            )],
            &["only core/runtime"],
        );
        check(
            glommio,
            &[(
                "core/runtime/src/b.rs",
                &format!("use {}::X;\n", RUNTIME_ONLY[0]),
            )],
            &[],
        );
        check(
            purpose_lines,
            &[("a/src/b.rs", "fn f() {}\n")],
            &["first line"],
        );
        check(banned_words, &[("a.md", "a whitelist\n")], &["allow list"]);
        check(top_level, &[("stuff/x", ""), ("core/x", "")], &["stuff"]);
    }

    #[test]
    fn a_documented_command_names_what_cargo_finds() {
        let tree = |line| {
            [
                (
                    "Cargo.toml",
                    "[workspace]\ndefault-members = [\"tools/a\"]\n",
                ),
                ("tools/a/Cargo.toml", "[package]\nname = \"a\"\n"),
                ("bench/b/Cargo.toml", "[package]\nname = \"b\"\n"),
                (
                    "bench/o/Cargo.toml",
                    "[workspace]\n[package]\nname = \"own\"\n",
                ),
                ("README.md", line),
            ]
        };
        for right in [
            "(`cargo build --release --bin a`).",
            "cargo build -p a -p b",
            "`cargo run -p b --bin c`",
            "cargo test -p b -- -p 80",
        ] {
            check(documented_commands, &tree(right), &[]);
        }
        for wrong in [
            "cargo build --bin b",
            "cargo build --bin a --bin b",
            "`cargo test -p c`",
            "cargo build -p own",
        ] {
            check(documented_commands, &tree(wrong), &["README.md:1"]);
        }
    }

    #[test]
    fn a_file_that_no_module_declares_is_dead() {
        let lib = ("a/src/lib.rs", "mod b;\npub(crate) mod c;\n");
        check(
            dead_files,
            &[lib, ("a/src/b.rs", ""), ("a/src/c/mod.rs", "")],
            &[],
        );
        check(
            dead_files,
            &[lib, ("a/src/d.rs", "")],
            &["a/src/d.rs: no module"],
        );
    }
}
