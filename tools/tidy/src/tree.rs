//! Reads the files that belong to the project.

use std::io;
use std::path::Path;
use std::process::Command;

use crate::source::Source;

/// One text file of the tree.
pub struct File {
    /// Path below the root, with `/`.
    pub path: String,
    /// The whole text.
    pub text: String,
    /// Code and comments, of Rust and Python.
    pub source: Option<Source>,
}

impl File {
    /// A file with its source divided.
    pub fn new(path: impl Into<String>, text: impl Into<String>) -> Self {
        let (path, text) = (path.into(), text.into());
        let source = match path.rsplit_once('.') {
            Some((_, "rs")) => Some(Source::of_rust(&text)),
            Some((_, "py")) => Some(Source::of_python(&text)),
            _ => None,
        };
        Self { path, text, source }
    }

    /// Whether this is a document in Markdown.
    pub fn is_document(&self) -> bool {
        self.path.ends_with(".md")
    }

    /// The crate that the file belongs to, otherwise the folder: `engine/exec`, `docs`, `.` for the
    /// top level.
    pub fn folder(&self) -> &str {
        let Some((first, rest)) = self.path.split_once('/') else {
            return ".";
        };
        match rest.split_once('/') {
            Some((second, _)) => &self.path[..first.len() + 1 + second.len()],
            None => first,
        }
    }

    /// Whether this is Rust source.
    pub fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// Numbered lines from 1.
    pub fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(i, line)| (i + 1, line))
    }
}

/// Every text file that git tracks or would track.
pub fn read(root: &Path) -> io::Result<Vec<File>> {
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()?;
    if !output.status.success() {
        return Err(io::Error::other(
            "git ls-files failed: run it in a checkout",
        ));
    }
    let mut files = Vec::new();
    for path in String::from_utf8_lossy(&output.stdout).lines() {
        let Ok(bytes) = std::fs::read(root.join(path)) else {
            continue;
        };
        if let Ok(text) = String::from_utf8(bytes) {
            files.push(File::new(path, text));
        }
    }
    if files.is_empty() {
        return Err(io::Error::other("no files found"));
    }
    Ok(files)
}
