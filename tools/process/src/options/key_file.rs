//! The key file by which the members of a set know each other, read before the runtime exists.

#![allow(clippy::disallowed_methods)] // On the main thread, before there are cores.

use std::fs::{File, metadata};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;

use pinion_auth::MemberKeys;
use pinion_service::members::MemberAuth;

use super::{OptionError, Reader};

/// Bytes of a key file: room for all keys that one may have, and for white space.
const MAX_BYTES: u64 = 64 << 10;

/// What group and others may do with it.
const OTHERS: u32 = 0o077;

/// What a key file is of use to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyFileUse {
    /// Members of a replica set, so it asks for `--replSet`.
    OfSet,
    /// A router, which is a member of its cluster.
    OfCluster,
}

/// The keys of `--keyFile`, and whether members without one may come in.
///
/// # Errors
/// One line: the file cannot be used, or is of no use.
pub fn member_auth(reader: &Reader, of: KeyFileUse) -> Result<Option<MemberAuth>, OptionError> {
    let is_transition = reader.switch("transitionToAuth");
    let Some(name) = reader.last("keyFile") else {
        let needless = [
            ("transitionToAuth", is_transition),
            ("clusterAuthMode", reader.last("clusterAuthMode").is_some()),
        ];
        return match needless.iter().find(|(_, given)| *given) {
            Some((name, _)) => Err(OptionError(format!("--{name} needs --keyFile"))),
            None => Ok(None),
        };
    };
    if of == KeyFileUse::OfSet && reader.last("replSet").is_none() {
        return Err(OptionError(
            "--keyFile needs --replSet: it is for the members of a set, and clients authenticate without it".into(),
        ));
    }
    let keys = read(&name).map_err(OptionError)?;
    Ok(Some(MemberAuth {
        keys,
        is_transition,
    }))
}

/// Reads a key file. Errors are reported in MongoDB's words.
fn read(name: &str) -> Result<MemberKeys, String> {
    let found = metadata(name).map_err(|error| format!("Error reading file {name}: {error}"))?;
    if found.permissions().mode() & OTHERS != 0 {
        return Err(format!("permissions on {name} are too open"));
    }
    let file = File::open(name).map_err(|error| format!("error opening file: {name}: {error}"))?;
    let mut text = String::new();
    let read = file.take(MAX_BYTES + 1).read_to_string(&mut text);
    read.map_err(|error| format!("error reading file: {name}: {error}"))?;
    if text.len() as u64 > MAX_BYTES {
        return Err(format!(
            "error reading file: {name}: a key file has at most {MAX_BYTES} bytes"
        ));
    }
    MemberKeys::parse(&text).map_err(|error| one_line(&error.of_file(name)))
}

fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, set_permissions, write};

    use super::*;

    #[test]
    fn a_file_is_the_owners_alone() {
        let path = std::env::temp_dir().join(format!("pinion-key-{}", std::process::id()));
        let name = path.to_str().unwrap();
        let missing = read(name).unwrap_err();
        assert!(missing.starts_with(&format!("Error reading file {name}: No such file")));
        write(&path, "  abcdef\nghijkl \n").unwrap();
        for (mode, is_open) in [
            (0o400, false),
            (0o600, false),
            (0o700, false),
            (0o640, true),
            (0o604, true),
            (0o610, true),
        ] {
            set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            match read(name) {
                Ok(keys) => assert!(!is_open && keys.all() == ["abcdefghijkl"], "{mode:o}"),
                Err(error) => assert!(
                    is_open && error == format!("permissions on {name} are too open"),
                    "{mode:o}: {error}"
                ),
            }
        }
        set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        write(&path, "abc").unwrap();
        let short = read(name).unwrap_err();
        assert_eq!(
            short,
            format!("security key in {name} has length 3, must be between 6 and 1024 chars")
        );
        write(&path, [b'a'; MAX_BYTES as usize + 1]).unwrap();
        assert!(read(name).unwrap_err().contains("at most 65536 bytes"));
        write(&path, b"abc\xff").unwrap();
        assert!(read(name).unwrap_err().contains("error reading file"));
        std::fs::remove_file(&path).unwrap();
    }
}
