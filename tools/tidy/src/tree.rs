//! Reads the files that belong to the project.

use std::io;
use std::path::Path;
use std::process::Command;

/// One text file of the tree.
pub struct File {
    /// Path below the root, with `/`.
    pub path: String,
    /// The whole text.
    pub text: String,
}

impl File {
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
            files.push(File {
                path: path.to_string(),
                text,
            });
        }
    }
    if files.is_empty() {
        return Err(io::Error::other("no files found"));
    }
    Ok(files)
}
