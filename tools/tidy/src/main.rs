//! Checks the tree: crate order, what a router links, names of glommio, purpose lines, words,
//! leftovers, lengths, dead files, commands in documents.

#![allow(clippy::disallowed_methods)] // A tool that reads the tree; it never runs inside a node.

mod check;
mod functions;
mod links;
mod modules;
mod ratchet;
mod source;
mod tree;
mod words;

use std::process::ExitCode;

fn main() -> ExitCode {
    let root = match std::env::args().nth(1) {
        Some(path) => path.into(),
        None => std::path::PathBuf::from("."),
    };
    let files = match tree::read(&root) {
        Ok(files) => files,
        Err(error) => {
            eprintln!("tidy: {}: {error}", root.display());
            return ExitCode::FAILURE;
        }
    };
    let mut checks = 0;
    let mut problems = Vec::new();
    for (name, check) in check::CHECKS {
        let found = check(&files);
        println!("{name}: {}", if found.is_empty() { "ok" } else { "FAILED" });
        checks += usize::from(found.is_empty());
        problems.extend(found);
    }
    for problem in &problems {
        println!("  {problem}");
    }
    let failed = check::CHECKS.len() - checks;
    println!("{checks} passed, {failed} failed");
    if problems.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
