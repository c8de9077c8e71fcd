//! Where a process listens.

use std::fmt;

use crate::error::{Error, Result};

/// `host:port`; an IPv6 address stands in brackets.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostPort {
    pub host: String,
    pub port: u16,
}

const DEFAULT_PORT: u16 = 27017;

impl HostPort {
    pub fn new(host: impl Into<String>, port: u16) -> HostPort {
        HostPort {
            host: host.into(),
            port,
        }
    }

    /// Reads `host`, `host:port`, `[::1]` or `[::1]:port`.
    ///
    /// # Errors
    /// `FailedToParse`, as MongoDB's.
    pub fn parse(text: &str) -> Result<HostPort> {
        let bad = |what: &str| Error::failed_to_parse(format!("{what} in \"{text}\""));
        let (host, port) = if let Some(rest) = text.strip_prefix('[') {
            let (host, after) = rest
                .split_once(']')
                .ok_or_else(|| bad("Expected a closing ']' of an IPv6 address"))?;
            match after.strip_prefix(':') {
                Some(port) => (host, Some(port)),
                None if after.is_empty() => (host, None),
                None => return Err(bad("Extraneous characters after an IPv6 address")),
            }
        } else {
            match text.split_once(':') {
                Some((_, port)) if port.contains(':') => {
                    return Err(bad("More than one ':' detected"));
                }
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            }
        };
        if host.is_empty() {
            return Err(bad("Empty host component parsing HostAndPort"));
        }
        if host.contains('\0') {
            return Err(bad("NUL in the host component parsing HostAndPort"));
        }
        if host.starts_with('/') {
            return Err(bad(
                "A member cannot be reached by a socket of the file system",
            ));
        }
        let port = match port {
            None => DEFAULT_PORT,
            Some(port) => match port.parse::<u16>() {
                Ok(number) if number > 0 && port.bytes().all(|b| b.is_ascii_digit()) => number,
                _ => {
                    return Err(bad(&format!(
                        "Port number \"{port}\" out of range parsing HostAndPort"
                    )));
                }
            },
        };
        Ok(HostPort::new(host, port))
    }

    /// Whether it is this machine as seen from itself alone.
    pub fn is_localhost(&self) -> bool {
        matches!(self.host.as_str(), "localhost" | "::1") || self.host.starts_with("127.")
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms() {
        let check = |text: &str, expected: Option<(&str, u16, &str)>| {
            let parsed = HostPort::parse(text).ok();
            let found = parsed.as_ref().map(|host| (&*host.host, host.port));
            assert_eq!(found, expected.map(|(h, p, _)| (h, p)), "{text}");
            if let (Some(parsed), Some((_, _, shown))) = (parsed, expected) {
                assert_eq!(parsed.to_string(), shown);
            }
        };
        check("a", Some(("a", 27017, "a:27017")));
        check("A.b:1", Some(("A.b", 1, "A.b:1")));
        check("[::1]", Some(("::1", 27017, "[::1]:27017")));
        check("[fe80::1]:5", Some(("fe80::1", 5, "[fe80::1]:5")));
        for wrong in [
            "", ":1", "a:", "a:0", "a:+1", "a:65536", "a:b", "a:1:2", "[::1", "[::1]x", "/tmp/x",
            "a\0b:1",
        ] {
            check(wrong, None);
        }
    }

    #[test]
    fn this_machine() {
        let check = |text: &str, expected| {
            assert_eq!(
                HostPort::parse(text).unwrap().is_localhost(),
                expected,
                "{text}"
            );
        };
        check("localhost:1", true);
        check("127.0.0.1", true);
        check("127.9.9.9", true);
        check("[::1]", true);
        check("localhost.example", false);
        check("10.0.0.1", false);
    }
}
