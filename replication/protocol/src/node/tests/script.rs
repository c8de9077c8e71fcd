//! The language of scripts, and how they are played.
//!
//! A line that begins with `>` is an event, maybe after `+ms` of time; what the member does follows
//! it, indented. Times of timers are shown by `wait`, which goes to the next one. With
//! `PINION_UPDATE=1` the scripts are rewritten.

use std::fmt::Write as _;

use super::{events, trace};
use crate::config::Config;
use crate::decision::LastVote;
use crate::message::Request;
use crate::node::{Effect, Input, Node, Note, Now, RequestId};

/// For so long a member has run when its script begins, unless it says that it has `just` started.
pub(super) const STARTED_LONG_AGO_MS: u64 = 60_000;

/// A member that plays a script.
pub(super) struct Player {
    pub(super) node: Option<Node>,
    pub(super) now: Now,
    pub(super) sent: Vec<Sent>,
    pub(super) commands: u64,
    pub(super) votes: Vec<LastVote>,
    pub(super) config: Option<Config>,
    out: String,
}

/// A request that the script has not answered yet.
pub(super) struct Sent {
    pub(super) id: RequestId,
    pub(super) to: String,
    pub(super) request: Request,
}

impl Player {
    fn new() -> Player {
        Player {
            node: None,
            now: Now {
                ms: STARTED_LONG_AGO_MS + 1_000,
                wall_ms: 1_700_000_000_000,
            },
            sent: Vec::new(),
            commands: 0,
            votes: Vec::new(),
            config: None,
            out: String::new(),
        }
    }

    pub(super) fn node(&mut self) -> &mut Node {
        self.node.as_mut().expect("a script begins with start")
    }

    pub(super) fn pass(&mut self, ms: u64) {
        self.now.ms += ms;
        self.now.wall_ms += ms as i64;
    }

    pub(super) fn say(&mut self, line: &str) {
        writeln!(self.out, "  {line}").expect("a text takes more");
    }

    pub(super) fn step(&mut self, input: Input) {
        let now = self.now;
        for effect in self.node().step(now, input) {
            // What only goes into the log, and follows from what is said.
            if let Effect::Note(Note::MemberState { .. } | Note::NewConfig(_)) = effect {
                continue;
            }
            self.say(&trace::effect(&effect));
            match effect {
                Effect::Send {
                    id, to, request, ..
                } => self.sent.push(Sent {
                    id,
                    to: to.host,
                    request,
                }),
                Effect::StoreVote(vote) => self.votes.push(vote),
                Effect::StoreConfig(config) | Effect::LocateSelf(config) => {
                    self.config = Some(config);
                }
                _ => {}
            }
        }
    }

    fn event(&mut self, line: &str) {
        let mut words: Vec<&str> = line.split_whitespace().collect();
        if let Some(ms) = words[0].strip_prefix('+') {
            self.pass(ms.parse().expect("milliseconds"));
            words.remove(0);
        }
        events::happen(self, &words);
    }
}

/// What was played so far shows why an assertion failed.
impl Drop for Player {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.out);
        }
    }
}

fn play(script: &str) -> String {
    let mut player = Player::new();
    for line in script.lines() {
        if let Some(event) = line.strip_prefix('>') {
            writeln!(player.out, "{line}").expect("a text takes more");
            player.event(event);
        } else if !line.starts_with("  ") {
            writeln!(player.out, "{line}").expect("a text takes more");
        }
    }
    std::mem::take(&mut player.out)
}

#[allow(clippy::disallowed_methods)] // A test that reads, and on request rewrites, its own data.
pub(super) fn play_all() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/node");
    let update = std::env::var_os("PINION_UPDATE").is_some();
    let mut played = 0;
    let mut wrong = String::new();
    for file in std::fs::read_dir(folder).expect("the scripts are there") {
        let path = file.expect("a script is there").path();
        let script = std::fs::read_to_string(&path).expect("a script is a text");
        let trace = play(&script);
        played += 1;
        if update {
            std::fs::write(&path, trace).expect("a script can be written");
        } else if trace != script {
            let mut lines = script.lines().zip(trace.lines()).enumerate();
            let first = lines.find(|(_, (expected, found))| expected != found);
            writeln!(wrong, "{}: {first:?}", path.display()).expect("a text takes more");
        }
    }
    assert!(played > 0, "there are scripts");
    assert!(wrong.is_empty(), "{wrong}");
}
