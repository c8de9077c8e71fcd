//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, value_parser};
use pinion_clock::Timestamp;

/// What was asked for.
#[derive(Clone, Debug)]
pub struct Options {
    pub dbpath: PathBuf,
    pub json: bool,
    pub command: Command,
}

#[derive(Clone, Debug)]
pub enum Command {
    Superblock,
    Ring(RingFilter),
    Tree { partition: Option<u16> },
    Verify { extents: bool },
}

/// Which entries of the rings are printed.
#[derive(Clone, Debug, Default)]
pub struct RingFilter {
    pub summary: bool,
    /// The ring of what is not replicated.
    pub own: bool,
    pub canonical: bool,
    pub ring: Option<u16>,
    pub from: Option<Timestamp>,
    pub to: Option<Timestamp>,
    pub namespace: Option<String>,
    pub limit: Option<u64>,
}

fn switch(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name)
        .long(name)
        .action(ArgAction::SetTrue)
        .help(help)
}

fn command() -> clap::Command {
    let dbpath = Arg::new("dbpath")
        .long("dbpath")
        .value_name("DIR")
        .required(true)
        .value_parser(value_parser!(PathBuf))
        .help("Data directory; it is locked meanwhile, and never written");
    let json = switch("json", "Print JSON");
    let number = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).help(help)
    };
    let sub = |name: &'static str, about: &'static str| {
        clap::Command::new(name)
            .about(about)
            .arg(dbpath.clone())
            .arg(json.clone())
    };
    clap::Command::new("pinion-admin")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Inspects a data directory that no node has open. Nothing is written.")
        .after_help("Exit status: 0 nothing is wrong, 1 damage was found, 2 bad options, 3 the directory cannot be inspected.")
        .subcommand_required(true)
        .subcommand(sub(
            "superblock",
            "Prints the four superblocks and the manifest of the newest",
        ))
        .subcommand(
            sub(
                "ring",
                "Prints the entries of the rings, one line of extended JSON each, in timestamp order",
            )
            .arg(switch("summary", "Print rings, segments and frames instead of entries"))
            .arg(
                switch("own", "Print the writes that are not replicated, from their own ring, in their order")
                    .conflicts_with_all(["ring", "from", "to", "ns"]),
            )
            .arg(switch("canonical", "Print canonical extended JSON"))
            .arg(number("ring", "N", "Only this ring").value_parser(value_parser!(u16)))
            .arg(number("from", "TS", "Only entries at or above this timestamp: SECS or SECS:INC").value_parser(lowest))
            .arg(number("to", "TS", "Only entries at or below this timestamp: SECS or SECS:INC").value_parser(highest))
            .arg(number("ns", "NAMESPACE", "Only entries of this namespace or with an operation on it"))
            .arg(number("limit", "N", "At most so many entries").value_parser(value_parser!(u64))),
        )
        .subcommand(
            sub("tree", "Prints statistics of the trees of collections and indexes, and of the page files")
                .arg(number("partition", "N", "Only this partition").value_parser(value_parser!(u16))),
        )
        .subcommand(
            sub("verify", "Verifies every checksum, and that files agree with each other")
                .arg(switch("extents", "With --json: also where the pages in use lie")),
        )
}

/// Reads the command line.
pub fn parse(arguments: impl Iterator<Item = OsString>) -> Result<Options, clap::Error> {
    let matches = command().try_get_matches_from(arguments)?;
    let (name, matches) = matches.subcommand().expect("clap requires one");
    let command = match name {
        "superblock" => Command::Superblock,
        "ring" => Command::Ring(ring_filter(matches)),
        "tree" => Command::Tree {
            partition: matches.get_one("partition").copied(),
        },
        _ => Command::Verify {
            extents: matches.get_flag("extents"),
        },
    };
    Ok(Options {
        dbpath: matches
            .get_one::<PathBuf>("dbpath")
            .cloned()
            .unwrap_or_default(),
        json: matches.get_flag("json"),
        command,
    })
}

fn ring_filter(matches: &ArgMatches) -> RingFilter {
    RingFilter {
        summary: matches.get_flag("summary"),
        own: matches.get_flag("own"),
        canonical: matches.get_flag("canonical"),
        ring: matches.get_one("ring").copied(),
        from: matches.get_one("from").copied(),
        to: matches.get_one("to").copied(),
        namespace: matches.get_one("ns").cloned(),
        limit: matches.get_one("limit").copied(),
    }
}

/// `SECS`, `SECS:INC` or `Timestamp(SECS, INC)`; the increment that is missing is for the caller to
/// choose.
fn timestamp(text: &str, increment: u32) -> Result<Timestamp, String> {
    let inner = text
        .strip_prefix("Timestamp(")
        .and_then(|rest| rest.strip_suffix(')'))
        .unwrap_or(text);
    let wrong = || format!("{text:?} is no timestamp: write SECS or SECS:INC");
    let number = |part: &str| part.trim().parse::<u32>().map_err(|_| wrong());
    match inner.split_once([':', ',']) {
        None => Ok(Timestamp::new(number(inner)?, increment)),
        Some((secs, inc)) => Ok(Timestamp::new(number(secs)?, number(inc)?)),
    }
}

fn lowest(text: &str) -> Result<Timestamp, String> {
    timestamp(text, 0)
}

fn highest(text: &str) -> Result<Timestamp, String> {
    timestamp(text, u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps() {
        let check = |text: &str, expected: Option<Timestamp>| {
            assert_eq!(lowest(text).ok(), expected, "{text}");
        };
        check("5", Some(Timestamp::new(5, 0)));
        check("5:7", Some(Timestamp::new(5, 7)));
        check("Timestamp(5, 7)", Some(Timestamp::new(5, 7)));
        check("5,7", Some(Timestamp::new(5, 7)));
        check("", None);
        check("5:", None);
        check("99999999999", None);
        assert_eq!(highest("5"), Ok(Timestamp::new(5, u32::MAX)));
    }

    #[test]
    fn the_command_line_is_sound() {
        command().debug_assert();
        let parsed = |line: &str| parse(line.split(' ').map(OsString::from));
        let options = parsed("pinion-admin ring --dbpath d --ring 1 --from 5 --limit 3").unwrap();
        assert!(
            matches!(options.command, Command::Ring(RingFilter { ring: Some(1), limit: Some(3), from: Some(from), .. })
            if from == Timestamp::new(5, 0))
        );
        assert!(parsed("pinion-admin verify").is_err());
        assert!(parsed("pinion-admin").is_err());
    }
}
