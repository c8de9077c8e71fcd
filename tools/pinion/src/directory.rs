//! What a data directory may hold that has no data of Pinion's yet: nothing that is anybody else's.

#![allow(clippy::disallowed_methods)] // Before the runtime exists, on the main thread.

use std::path::{Path, PathBuf};
use std::{fs, io};

/// Files that a mongod keeps in its data directory.
const MONGOD: [&str; 6] = [
    "WiredTiger",
    "WiredTiger.wt",
    "WiredTiger.turtle",
    "WiredTiger.lock",
    "storage.bson",
    "_mdb_catalog.wt",
];
/// The file that mongod locks. It is empty while no mongod runs and none has died.
const MONGOD_LOCK: &str = "mongod.lock";
/// What makes a directory one of Pinion's.
const SUPERBLOCK: &str = "superblock";
/// What a start leaves that is ended before it has made the superblock; storage says what it thinks
/// of rings.
const UNFINISHED: [&str; 4] = ["superblock.new", "manifest-", "partition-", "ring-"];
/// Names in a line that says what is in the way.
const NAMES_SHOWN: usize = 3;

/// Refuses a directory in which others' files lie and none of Pinion's. It changes nothing there.
/// `named` are the files that the options name, which may be inside; rotated logs have longer
/// names.
///
/// # Errors
/// One line that says what lies there; or that the directory cannot be read.
pub fn check(dir: &Path, named: &[&Path]) -> Result<(), String> {
    let names = match entries(dir) {
        Ok(names) => names,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => {
            return Err(format!(
                "the data directory {} cannot be read: {error}",
                dir.display()
            ));
        }
    };
    if names.iter().any(|name| name == SUPERBLOCK) {
        return Ok(());
    }
    let of_mongod = names.iter().find(|name| is_of_mongod(dir, name));
    if let Some(name) = of_mongod {
        return Err(format!(
            "{} holds the data of a mongod ({name}), which Pinion cannot read: choose another directory (--dbpath), and copy \
             the data with mongodump and mongorestore",
            dir.display()
        ));
    }
    let own: Vec<String> = named
        .iter()
        .filter_map(|path| name_inside(dir, path))
        .collect();
    let foreign: Vec<&String> = names
        .iter()
        .filter(|name| !may_be_there(name) && !own.iter().any(|own| is_named(name, own)))
        .collect();
    if foreign.is_empty() {
        return Ok(());
    }
    let shown: Vec<&str> = foreign
        .iter()
        .take(NAMES_SHOWN)
        .map(|name| name.as_str())
        .collect();
    let more = match foreign.len().saturating_sub(NAMES_SHOWN) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Err(format!(
        "{} holds no data of Pinion's, and other files ({}{more}): choose an empty directory (--dbpath)",
        dir.display(),
        shown.join(", ")
    ))
}

fn entries(dir: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir)? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

fn is_of_mongod(dir: &Path, name: &str) -> bool {
    let is_locked = || fs::metadata(dir.join(name)).is_ok_and(|file| file.len() > 0);
    let is_tree =
        || name.ends_with(".wt") && (name.starts_with("collection-") || name.starts_with("index-"));
    MONGOD.contains(&name) || is_tree() || (name == MONGOD_LOCK && is_locked())
}

/// What file systems and other programs leave in directories that are empty to their users.
fn may_be_there(name: &str) -> bool {
    name.starts_with('.')
        || matches!(name, "lost+found" | "_tmp" | "rollback" | MONGOD_LOCK)
        || UNFINISHED
            .iter()
            .any(|unfinished| name.starts_with(unfinished))
}

/// Whether a file is one that the options name, or an older one of it: a log that was rotated has a
/// time behind its name.
fn is_named(name: &str, own: &str) -> bool {
    let rest = name.strip_prefix(own);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// The name in the directory of a file that lies in it, or of the directory in it where it does.
fn name_inside(dir: &Path, path: &Path) -> Option<String> {
    let absolute = |path: &Path| -> Option<PathBuf> { fs::canonicalize(path).ok() };
    let dir = absolute(dir)?;
    // The file need not be there yet.
    let parent = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    let parent = absolute(parent.unwrap_or(Path::new(".")))?;
    let inside = parent.join(path.file_name()?);
    let inside = inside.strip_prefix(&dir).ok()?;
    let first = inside.components().next()?;
    Some(first.as_os_str().to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is said of a directory with these files: nothing, or a line with this part.
    #[track_caller]
    fn check_files(files: &[(&str, &str)], expected: Option<&str>) {
        let dir = std::env::temp_dir().join(format!("pinion-directory-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).expect("made");
        for (name, text) in files {
            fs::write(dir.join(name), text).expect("written");
        }
        let log = dir.join("node.log");
        let found = check(&dir, &[&log]);
        let left = entries(&dir).expect("read");
        fs::remove_dir_all(&dir).expect("removed");
        assert_eq!(left.len(), files.len(), "nothing is made there");
        match (found, expected) {
            (Ok(()), None) => {}
            (Err(line), Some(part)) => assert!(line.contains(part), "{line}"),
            (found, _) => panic!("{files:?}: {found:?}"),
        }
    }

    #[test]
    fn directories_of_others_are_refused_by_name() {
        check_files(&[], None);
        check_files(&[("lost+found", ""), (".hidden", ""), ("_tmp", "")], None);
        check_files(&[("node.log", ""), ("node.log.2026-01-01", "")], None);
        check_files(&[("node.logs", "")], Some("other files (node.logs)"));
        check_files(&[("mongod.lock", "")], None);
        check_files(&[("mongod.lock", "77")], Some("mongod (mongod.lock)"));
        check_files(
            &[("WiredTiger", ""), ("storage.bson", "")],
            Some("mongod (WiredTiger)"),
        );
        check_files(
            &[("collection-0-1.wt", "")],
            Some("mongod (collection-0-1.wt)"),
        );
        check_files(&[("readme.txt", "")], Some("other files (readme.txt)"));
        let many = [("a", ""), ("b", ""), ("c", ""), ("d", ""), ("e", "")];
        check_files(&many, Some("(a, b, c and 2 more)"));
        check_files(&[("superblock.new", ""), ("partition-00", "")], None);
        check_files(&[("superblock", ""), ("WiredTiger", "")], None);
    }

    #[test]
    fn a_directory_that_is_missing_is_made_later() {
        let missing = std::env::temp_dir().join("pinion-directory-missing");
        assert_eq!(check(&missing, &[]), Ok(()));
    }
}
