//! Options that every server has: addresses, the log, the process.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, ToSocketAddrs};

use pinion_bson::{Bson, Document, RawDocumentBuf};

use super::{OptionError, OptionValue, Reader};
use crate::log::Rotation;

/// mongod's default of `net.maxIncomingConnections` on Linux is bound by the open-file limit; this
/// is our own.
pub const DEFAULT_MAX_CONNECTIONS: usize = 65_536;

/// How much is logged, from 0 to 5.
///
/// # Errors
/// One line that names option and value.
pub fn verbosity(reader: &Reader) -> Result<u8, OptionError> {
    match reader.last("verbose") {
        // mongod's -vvv: clap hands the rest of the letters over as the value.
        Some(value) if value.chars().all(|c| c == 'v') && !value.is_empty() => {
            Ok((value.len() + 1).min(5) as u8)
        }
        Some(_) => Ok(reader.int("verbose", 0, 5)?.unwrap_or(0) as u8),
        None => Ok(0),
    }
}

/// Whether another process runs the server. What has no terminal logs to a file.
///
/// # Errors
/// There is no `--logpath`.
pub fn fork(reader: &Reader) -> Result<bool, OptionError> {
    match (reader.switch("fork"), reader.last("logpath")) {
        (true, None) => Err(OptionError(
            "BadValue: --fork has to be used with --logpath or --syslog, and there is no --syslog"
                .into(),
        )),
        (fork, _) => Ok(fork),
    }
}

/// How a new log is started.
///
/// # Errors
/// One line that names option and value.
pub fn log_rotate(reader: &Reader) -> Result<Rotation, OptionError> {
    match reader.last("logRotate").as_deref() {
        None | Some("rename") => Ok(Rotation::Rename),
        Some("reopen") if !reader.switch("logappend") => Err(OptionError(
            "--logRotate reopen needs --logappend: otherwise the log would be moved aside at the next start".into(),
        )),
        Some("reopen") => Ok(Rotation::Reopen),
        Some(other) => Err(OptionError(format!(
            "Invalid value '{other}' for --logRotate: expected rename or reopen"
        ))),
    }
}

/// The addresses to listen on, in the order given.
///
/// # Errors
/// One line that names the address.
pub fn bind_addresses(reader: &Reader) -> Result<Vec<IpAddr>, OptionError> {
    let ipv6 = reader.switch("ipv6");
    if reader.switch("bind_ip_all") {
        let any = if ipv6 {
            Ipv6Addr::UNSPECIFIED.into()
        } else {
            Ipv4Addr::UNSPECIFIED.into()
        };
        return Ok(vec![any]);
    }
    let names = reader.last("bind_ip").unwrap_or_else(|| "localhost".into());
    let mut out: Vec<IpAddr> = Vec::new();
    for name in names.split(',').map(str::trim) {
        let found: Vec<IpAddr> = match name {
            "" => return Err(OptionError("--bind_ip has an empty address".into())),
            "*" if ipv6 => vec![Ipv6Addr::UNSPECIFIED.into()],
            "*" => vec![Ipv4Addr::UNSPECIFIED.into()],
            "localhost" if ipv6 => vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()],
            "localhost" => vec![Ipv4Addr::LOCALHOST.into()],
            _ => match name.parse::<IpAddr>() {
                Ok(address) => vec![address],
                Err(_) => resolve(name, ipv6)?,
            },
        };
        if found.iter().any(IpAddr::is_ipv6) && !ipv6 {
            return Err(OptionError(format!(
                "--bind_ip {name} is an IPv6 address: give --ipv6 too"
            )));
        }
        for address in found {
            if !out.contains(&address) {
                out.push(address);
            }
        }
    }
    Ok(out)
}

/// Host names are resolved once, before the runtime starts, because resolving blocks.
fn resolve(name: &str, ipv6: bool) -> Result<Vec<IpAddr>, OptionError> {
    let found: Vec<IpAddr> = (name, 0u16)
        .to_socket_addrs()
        .map_err(|error| OptionError(format!("--bind_ip {name} cannot be resolved: {error}")))?
        .map(|address| address.ip())
        .filter(|address| ipv6 || address.is_ipv4())
        .collect();
    if found.is_empty() {
        return Err(OptionError(format!(
            "--bind_ip {name} has no address of an enabled family"
        )));
    }
    Ok(found)
}

/// The options as nested documents, in the configuration file's shape: for getCmdLineOpts.
pub fn nested(parsed: &[(String, OptionValue)]) -> RawDocumentBuf {
    let mut root = Document::new();
    for (path, given) in parsed {
        let value = match given {
            OptionValue::Switch(value) => Bson::Boolean(*value),
            OptionValue::Int(value) => {
                i32::try_from(*value).map_or(Bson::Int64(*value), Bson::Int32)
            }
            OptionValue::Double(value) => Bson::Double(*value),
            OptionValue::Text(value) => Bson::String(value.clone()),
        };
        insert(&mut root, path, value);
    }
    RawDocumentBuf::try_from(&root).unwrap_or_default()
}

fn insert(into: &mut Document, path: &str, value: Bson) {
    let Some((first, rest)) = path.split_once('.') else {
        into.insert(path, value);
        return;
    };
    if !matches!(into.get(first), Some(Bson::Document(_))) {
        into.insert(first, Document::new());
    }
    if let Some(Bson::Document(inner)) = into.get_mut(first) {
        insert(inner, rest, value);
    }
}
