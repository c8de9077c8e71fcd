//! The parameters of authentication: the mechanisms of users, and what new passwords cost.

use pinion_auth::{Hash, ITERATIONS, MAX_ITERATIONS, MIN_STORED_ITERATIONS, SHA1_ITERATIONS};
use pinion_bson::RawBsonRef;
use pinion_wire::{Error, Result};

use super::row::Row;
use super::rows::{parameters, setting};
use super::values::within;

/// The mechanisms by which users may authenticate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mechanisms {
    pub sha1: bool,
    pub sha256: bool,
}

impl Default for Mechanisms {
    fn default() -> Mechanisms {
        Mechanisms {
            sha1: true,
            sha256: true,
        }
    }
}

impl Mechanisms {
    pub fn has(self, hash: Hash) -> bool {
        match hash {
            Hash::Sha1 => self.sha1,
            Hash::Sha256 => self.sha256,
        }
    }

    /// Those that are enabled.
    pub fn enabled(self) -> impl Iterator<Item = Hash> {
        let all = [Hash::Sha1, Hash::Sha256];
        all.into_iter().filter(move |hash| self.has(*hash))
    }
}

/// Iterations of credentials that are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScramIterations {
    sha1: u32,
    sha256: u32,
}

impl Default for ScramIterations {
    fn default() -> ScramIterations {
        ScramIterations {
            sha1: SHA1_ITERATIONS,
            sha256: ITERATIONS,
        }
    }
}

impl ScramIterations {
    pub fn of(self, hash: Hash) -> u32 {
        match hash {
            Hash::Sha1 => self.sha1,
            Hash::Sha256 => self.sha256,
        }
    }
}

pub(super) const ROWS: [Row; 3] = [
    Row::startup(
        "authenticationMechanisms",
        |_, name, out| {
            out.start_array(name);
            for hash in parameters().borrow().mechanisms.enabled() {
                out.push(hash.mechanism());
            }
            out.end();
        },
        |name, value| {
            let mechanisms = parse_mechanisms(name, value)?;
            Ok(setting(move |p| p.mechanisms = mechanisms))
        },
    ),
    Row::always(
        "scramIterationCount",
        |_, name, out| {
            let iterations = parameters().borrow().scram_iterations.sha1;
            out.append(name, iterations as i32);
        },
        |name, value| {
            let iterations = iterations(name, value)?;
            Ok(setting(move |p| p.scram_iterations.sha1 = iterations))
        },
    ),
    Row::always(
        "scramSHA256IterationCount",
        |_, name, out| {
            let iterations = parameters().borrow().scram_iterations.sha256;
            out.append(name, iterations as i32);
        },
        |name, value| {
            let iterations = iterations(name, value)?;
            Ok(setting(move |p| p.scram_iterations.sha256 = iterations))
        },
    ),
];

fn iterations(name: &str, value: RawBsonRef<'_>) -> Result<u32> {
    let least = i64::from(MIN_STORED_ITERATIONS);
    within(name, value, least, i64::from(MAX_ITERATIONS)).map(|count| count as u32)
}

/// A list of names: as an array, or as a text with commas between them.
fn parse_mechanisms(name: &str, value: RawBsonRef<'_>) -> Result<Mechanisms> {
    let refused = |what: &str| {
        Error::bad_value(format!(
            "Invalid value for parameter {name}: {what} is no mechanism that this server has"
        ))
    };
    let names: Vec<&str> = match value {
        RawBsonRef::String(text) => text.split(',').map(str::trim).collect(),
        RawBsonRef::Array(array) => pinion_bson::values(array)
            .map(|value| match value {
                RawBsonRef::String(text) => Ok(text),
                other => Err(refused(&pinion_query::value_text(other))),
            })
            .collect::<Result<_>>()?,
        other => return Err(super::values::unreadable(name, other)),
    };
    let mut mechanisms = Mechanisms {
        sha1: false,
        sha256: false,
    };
    for name in names.into_iter().filter(|name| !name.is_empty()) {
        match name {
            "SCRAM-SHA-1" => mechanisms.sha1 = true,
            "SCRAM-SHA-256" => mechanisms.sha256 = true,
            other => return Err(refused(other)),
        }
    }
    Ok(mechanisms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mechanisms_are_listed() {
        let check = |text: &str, expected: Option<&[&str]>| {
            let parsed = parse_mechanisms("authenticationMechanisms", RawBsonRef::String(text));
            let names = parsed.ok().map(|mechanisms| {
                let names = mechanisms.enabled().map(Hash::mechanism);
                names.collect::<Vec<_>>()
            });
            assert_eq!(names.as_deref(), expected, "{text}");
        };
        check("SCRAM-SHA-256", Some(&["SCRAM-SHA-256"]));
        check(
            "SCRAM-SHA-256, SCRAM-SHA-1",
            Some(&["SCRAM-SHA-1", "SCRAM-SHA-256"]),
        );
        check("", Some(&[]));
        check("PLAIN", None);
        check("SCRAM-SHA-1,MONGODB-X509", None);
        assert!(iterations("scramIterationCount", RawBsonRef::Int32(4999)).is_err());
        assert_eq!(iterations("p", RawBsonRef::Int32(5000)).ok(), Some(5000));
    }
}
