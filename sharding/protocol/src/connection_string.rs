//! How a replica set is written where it is stored: `set/host:port,host:port`.

use std::collections::BTreeSet;
use std::fmt;

use pinion_wire::{Error, HostPort, Result};

use crate::limits::MAX_SET_HOSTS;

/// The name of a replica set and some of its hosts, in the order in which they were given. Without
/// a name it is one host that is no member of a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionString {
    pub set: String,
    pub hosts: Vec<HostPort>,
}

impl ConnectionString {
    pub fn new(set: impl Into<String>, hosts: Vec<HostPort>) -> ConnectionString {
        ConnectionString {
            set: set.into(),
            hosts,
        }
    }

    /// Reads `set/host:port,host:port`, or a single host without a set.
    ///
    /// # Errors
    /// `FailedToParse`, as MongoDB's.
    pub fn parse(text: &str) -> Result<ConnectionString> {
        let (set, list) = match text.split_once('/') {
            Some((set, list)) => (set, list),
            None => ("", text),
        };
        let invalid = |what: &str| Error::failed_to_parse(format!("{what} : {text}"));
        if list.contains('/') || (set.is_empty() && text.starts_with('/')) {
            return Err(invalid("invalid connection string"));
        }
        let mut hosts: Vec<HostPort> = Vec::new();
        for part in list.split(',') {
            if part.is_empty() {
                return Err(invalid("invalid hostname in connection string"));
            }
            let host = HostPort::parse(part)?;
            if hosts.contains(&host) {
                return Err(invalid("duplicate host in connection string"));
            }
            if hosts.len() == MAX_SET_HOSTS {
                return Err(invalid("too many hosts in connection string"));
            }
            hosts.push(host);
        }
        if set.is_empty() && hosts.len() > 1 {
            return Err(invalid(
                "a connection string of more than one host must name a replica set",
            ));
        }
        Ok(ConnectionString::new(set, hosts))
    }

    /// Whether it names the same set and the same hosts, in whatever order.
    pub fn is_same(&self, other: &ConnectionString) -> bool {
        let hosts = |of: &ConnectionString| of.hosts.iter().cloned().collect::<BTreeSet<_>>();
        self.set == other.set && hosts(self) == hosts(other)
    }
}

impl fmt::Display for ConnectionString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.set.is_empty() {
            write!(f, "{}/", self.set)?;
        }
        for (at, host) in self.hosts.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            write!(f, "{comma}{host}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms() {
        let check = |text: &str, expected: Option<(&str, usize, &str)>| {
            let parsed = ConnectionString::parse(text);
            let found = parsed.as_ref().map(|s| (&*s.set, s.hosts.len()));
            assert_eq!(found.ok(), expected.map(|(set, n, _)| (set, n)), "{text}");
            match (parsed, expected) {
                (Ok(parsed), Some((_, _, shown))) => assert_eq!(parsed.to_string(), shown),
                (Err(error), _) => assert_eq!(error.code.0, 9, "{text}"),
                (Ok(_), None) => unreachable!("compared above"),
            }
        };
        check("rs/a:1,b:2", Some(("rs", 2, "rs/a:1,b:2")));
        check("rs/b,a", Some(("rs", 2, "rs/b:27017,a:27017")));
        check("rs/[::1]:5", Some(("rs", 1, "rs/[::1]:5")));
        check("a:1", Some(("", 1, "a:1")));
        for wrong in [
            "",
            "rs/",
            "/a:1",
            "a:1,b:2",
            "rs/a:1,,b:2",
            "rs/a:1,",
            "rs/a/b",
            "rs/a:0",
            "rs/a,a",
        ] {
            check(wrong, None);
        }
    }

    #[test]
    fn comparison() {
        let check = |a: &str, b: &str, expected| {
            let parse = |text| ConnectionString::parse(text).expect("it is well formed");
            assert_eq!(parse(a).is_same(&parse(b)), expected, "{a} {b}");
        };
        check("rs/a,b", "rs/b,a", true);
        check("rs/a,b", "rs/a", false);
        check("rs/a,b", "rs/a,c", false);
        check("rs/a", "sr/a", false);
    }
}
