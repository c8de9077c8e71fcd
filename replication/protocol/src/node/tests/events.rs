//! The events of scripts.

use pinion_bson::{DocBuilder, RawDocumentBuf};
use pinion_clock::{Term, Timestamp};
use pinion_wire::idl::{WriteConcern, WriteConcernW};
use pinion_wire::{Error, ErrorCode, MemberState};

use super::config::{SET, config, config_id, entry, host, number, optime, set};
use super::script::{Player, STARTED_LONG_AGO_MS, Sent};
use crate::decision::LastVote;
use crate::message::{
    HeartbeatRequest, HeartbeatResponse, MemberPosition, OplogQueryMetadata, ReplSetMetadata,
    Request, StepDown, UpdatePosition, VoteRequest, VoteResponse,
};
use crate::node::{
    Command, CommandId, Fetched, Identity, Input, Leave, Node, Parameters, Persisted, Progress,
    SourceFailure,
};

/// The words of an event: what it is, of whom, and `name=value`.
struct Words<'w>(&'w [&'w str]);

impl<'w> Words<'w> {
    fn at(&self, index: usize) -> &'w str {
        self.0
            .get(index)
            .copied()
            .unwrap_or_else(|| panic!("{:?} lacks a word", self.0))
    }

    fn has(&self, word: &str) -> bool {
        self.0.contains(&word)
    }

    fn get(&self, name: &str) -> Option<&'w str> {
        self.pairs()
            .find(|(found, _)| *found == name)
            .map(|(_, value)| value)
    }

    fn pairs(&self) -> impl Iterator<Item = (&'w str, &'w str)> {
        self.0.iter().filter_map(|word| word.split_once('='))
    }

    fn number(&self, name: &str, default: i64) -> i64 {
        self.get(name).map_or(default, number)
    }

    fn progress(&self, index: usize) -> Progress {
        let written = entry(self.at(index));
        Progress {
            written,
            applied: self.get("applied").map_or(written, entry),
            durable: self.get("durable").map_or(written, entry),
        }
    }

    /// A configuration: its members at this word, and its settings.
    fn config(&self, members: &str, default: &str) -> crate::config::Config {
        let mut config = config(members, config_id(self.get("config").unwrap_or(default)));
        for (name, value) in self.pairs() {
            set(&mut config.settings, name, value);
        }
        config
    }
}

pub(super) fn happen(player: &mut Player, words: &[&str]) {
    let words = Words(words);
    match words.at(0) {
        "start" => start(player, &words),
        "wait" => {
            let due = player.node().next_deadline_ms().expect("something is due");
            let ms = due.saturating_sub(player.now.ms);
            player.pass(ms);
            player.say(&format!("after {ms}"));
            player.step(Input::Tick);
        }
        "reply" | "fail" | "vote" | "ok" => respond(player, &words),
        "stored" if player.votes.is_empty() => player.say("not asked"),
        "stored" => {
            let vote = player.votes.remove(0);
            player.step(Input::VoteStored(vote));
        }
        "located" | "config" if player.config.is_none() => player.say("not asked"),
        "config" => {
            player.config = None;
            player.step(Input::ConfigStored(match words.at(1) {
                "stored" => Ok(()),
                _ => Err(failure(ErrorCode::OPERATION_FAILED)),
            }));
        }
        "located" => {
            let config = player.config.take().expect("a configuration is there");
            let found = config.member_of(&host(words.at(1)));
            let missing = failure(ErrorCode::NODE_NOT_FOUND);
            player.step(Input::SelfLocated(found.map(|(at, _)| at).ok_or(missing)));
        }
        verb => match input(verb, &words) {
            Some(input) => player.step(input),
            None => {
                let command = command(player, verb, &words);
                player.commands += 1;
                let id = CommandId(player.commands);
                player.step(Input::Command { id, command });
            }
        },
    }
}

fn start(player: &mut Player, words: &Words<'_>) {
    let name = words.at(1);
    let config = words.get("of").map(|members| words.config(members, "1/1"));
    let self_index = config.as_ref().and_then(|config| {
        let found = config.member_of(&host(name));
        found.map(|(at, _)| at)
    });
    let at = words
        .get("at")
        .map_or(Progress::default(), |at| Progress::all_at(entry(at)));
    let vote = words.get("vote").map(config_id);
    let found = Persisted {
        config,
        self_index,
        last_vote: vote.map(|vote| LastVote {
            term: Term(vote.version),
            candidate_index: vote.term as usize,
        }),
        progress: at,
        min_valid: optime(words.get("min-valid").unwrap_or("-")),
        needs_initial_sync: words.has("empty"),
        rollback_id: 1,
    };
    let identity = Identity {
        set_name: SET.into(),
        host: host(name),
        seed: 1,
        parameters: Parameters {
            primary_silence_ms: words.number("silence", 0) as u32,
            ..Parameters::default()
        },
    };
    player.sent.clear();
    player.votes.clear();
    player.config = None;
    let mut node = Node::new(identity, found, player.now);
    if !words.has("just") {
        node.started_ms -= STARTED_LONG_AGO_MS;
    }
    player.node = Some(node);
    player.step(Input::Tick);
}

fn failure(code: ErrorCode) -> Error {
    Error::new(code, "as the script says")
}

fn input(verb: &str, words: &Words<'_>) -> Option<Input> {
    Some(match verb {
        "tick" => Input::Tick,
        "withdrawn" => Input::Withdrawn(CommandId(number(words.at(1)) as u64)),
        "initiated" => Input::Initiated(match words.at(1) {
            "failed" => Err(failure(ErrorCode::OPERATION_FAILED)),
            _ => Ok(words.progress(1)),
        }),
        "found" => Input::SelfFound {
            config: config_id(words.at(1)),
            index: number(words.at(2)) as usize,
        },
        "progress" => Input::Progress(words.progress(1)),
        "stopped" => Input::WritesStopped,
        "resumed" => Input::WritesResumed,
        "drained" => Input::Drained,
        "quiesce" => Input::Quiesce {
            until_ms: number(words.at(1)) as u64,
        },
        "began" => {
            let at = entry(words.at(1));
            let term = at.optime.term;
            Input::NewPrimaryWritten { term, at }
        }
        "fetched" => Input::Fetched(fetched(words)),
        "source-failed" => Input::SourceFailed {
            source: host(words.at(1)),
            failure: match words.at(2) {
                "unreachable" => SourceFailure::Unreachable,
                "no-oplog" => SourceFailure::NoOplog,
                "too-stale" => SourceFailure::TooStale,
                "behind" => SourceFailure::Behind,
                "stopped" => SourceFailure::Stopped,
                other => panic!("{other} is no failure"),
            },
        },
        "unreachable" => Input::Unreachable(host(words.at(1))),
        "parted" => Input::NoCommonEntry {
            source: host(words.at(1)),
        },
        "rolled-back" => Input::RolledBack(words.progress(1)),
        "rollback-failed" => Input::RollbackFailed,
        "sync-needed" => Input::SyncNeeded,
        "sync-done" => Input::SyncDone(words.progress(1)),
        _ => return None,
    })
}

fn fetched(words: &Words<'_>) -> Fetched {
    let last = optime(words.at(2));
    let committed = entry(words.get("committed").unwrap_or("-"));
    let index = |name: &str| words.get(name).map(|at| number(at) as usize);
    let term = words.number("term", last.term.0);
    Fetched {
        source: host(words.at(1)),
        source_rollback_id: 1,
        repl: ReplSetMetadata {
            term: Term(term),
            last_committed: committed,
            last_visible: last,
            config: config_id(words.get("config").unwrap_or("1/1")),
            replica_set_id: None,
            primary_index: index("primary"),
            sync_source_index: index("source"),
            is_primary: false,
        },
        query: OplogQueryMetadata {
            last_committed: committed,
            last_applied: words.get("applied").map_or(last, optime),
            rollback_id: words.number("rbid", 1) as i32,
            primary_index: index("primary"),
            sync_source_index: index("source"),
            sync_source: None,
        },
        entries: words.number("entries", 1) as u64,
        last_fetched: last,
    }
}

fn command(player: &mut Player, verb: &str, words: &Words<'_>) -> Command {
    match verb {
        "heartbeat" => Command::Heartbeat(HeartbeatRequest {
            set_name: words.get("set").unwrap_or(SET).into(),
            check_empty: words.has("empty?"),
            config: config_id(words.get("config").unwrap_or("1/1")),
            sender: Some(host(words.at(1))),
            sender_id: Some(member_id(player, words.at(1))),
            term: Term(words.number("term", 1)),
            primary_id: words.get("primary").map(number),
        }),
        "votes" => Command::Votes(VoteRequest {
            set_name: words.get("set").unwrap_or(SET).into(),
            dry_run: words.has("dry"),
            term: Term(words.number("term", 1)),
            candidate_index: member_id(player, words.at(1)) as usize,
            config: config_id(words.get("config").unwrap_or("1/1")),
            last_written: optime(words.get("at").unwrap_or("-")),
        }),
        "positions" => Command::Position(positions(player, words)),
        "initiate" => {
            let config = words.config(words.at(1), "1/0");
            let me = config.member_of(&host("a"));
            let self_index = me.expect("a is a member").0;
            Command::Initiate { config, self_index }
        }
        "reconfig" => {
            let config = words.config(words.at(1), "2/-1");
            let me = config.member_of(&host("a"));
            let missing = Error::new(ErrorCode::NODE_NOT_FOUND, "a is no member");
            Command::Reconfig {
                self_index: me.map(|(at, _)| at).ok_or(missing),
                config,
                force: words.has("force"),
            }
        }
        "stepdown" => Command::StepDown(StepDown {
            force: words.has("force"),
            period_secs: number(words.at(1)) as u64,
            catch_up_secs: number(words.at(2)) as u64,
        }),
        "leave" => Command::Leave(Leave {
            catch_up_ms: number(words.at(1)) as u64,
            force: words.has("force"),
        }),
        "stepup" => Command::StepUp {
            skip_dry_run: words.has("skip"),
        },
        "freeze" => Command::Freeze {
            secs: number(words.at(1)) as u64,
        },
        "maintenance" => Command::Maintenance {
            begins: words.at(1) == "begins",
        },
        "syncfrom" => Command::SyncFrom {
            host: host(words.at(1)),
        },
        "abort-catch-up" => Command::AbortPrimaryCatchUp,
        "concern" => Command::AwaitWriteConcern {
            ts: Timestamp::new(number(words.at(1)) as u32, 1),
            concern: concern(words),
        },
        other => panic!("{other} is no event"),
    }
}

fn concern(words: &Words<'_>) -> WriteConcern {
    let w = words.get("w").unwrap_or("1");
    WriteConcern {
        w: Some(match w.parse() {
            Ok(count) => WriteConcernW::Members(count),
            Err(_) if w == "majority" => WriteConcernW::Majority,
            Err(_) => WriteConcernW::Mode(w.into()),
        }),
        journal: words.get("j").map(|journal| journal == "yes"),
        timeout_ms: 0,
    }
}

fn member_id(player: &mut Player, name: &str) -> i64 {
    let config = player.node().config();
    let member = config.and_then(|config| config.member_of(&host(name)));
    member.map_or(99, |(_, member)| member.id)
}

fn positions(player: &mut Player, words: &Words<'_>) -> UpdatePosition {
    let version = words.number("version", 1);
    let mut positions = Vec::new();
    for (name, at) in words.pairs().filter(|(name, _)| *name != "version") {
        let (applied, durable) = at.split_once('/').unwrap_or((at, at));
        positions.push(MemberPosition {
            member_id: member_id(player, name),
            config_version: version,
            applied: entry(applied),
            durable: entry(durable),
            written: None,
        });
    }
    UpdatePosition {
        positions,
        metadata: None,
    }
}

/// Answers the last request of a kind to a member: earlier ones are not waited for any more.
fn respond(player: &mut Player, words: &Words<'_>) {
    let (verb, name) = (words.at(0), words.at(1));
    let fits = |sent: &Sent| {
        let kind = match verb {
            "reply" => matches!(sent.request, Request::Heartbeat(_)),
            "vote" => matches!(sent.request, Request::Votes(_)),
            "ok" => matches!(sent.request, Request::Position(_) | Request::StepUp { .. }),
            _ => true,
        };
        kind && sent.to == name
    };
    // Time may have passed in which it was to be asked.
    if !player.sent.iter().any(fits) {
        player.step(Input::Tick);
    }
    let Some(found) = player.sent.iter().rposition(fits) else {
        return player.say("not asked");
    };
    let sent = player.sent.remove(found);
    let reply = match verb {
        "reply" => Ok(heartbeat_reply(words)),
        "vote" => Ok(VoteResponse {
            term: Term(words.number("term", 1)),
            granted: words.has("yes"),
            reason: String::new(),
        }
        .to_bson()),
        "ok" => Ok(RawDocumentBuf::new()),
        _ => Err(Error::new(
            match words.has("other-config") {
                true => ErrorCode::INVALID_REPLICA_SET_CONFIG,
                false => ErrorCode::HOST_UNREACHABLE,
            },
            "unreachable",
        )),
    };
    let id = sent.id;
    player.step(Input::Response { id, reply });
}

fn heartbeat_reply(words: &Words<'_>) -> RawDocumentBuf {
    let term = words.number("term", 1);
    let at = entry(words.get("at").unwrap_or("-"));
    let state = MemberState::ALL
        .into_iter()
        .find(|state| state.name() == words.at(2));
    let id = config_id(words.get("config").unwrap_or("1/1"));
    let response = HeartbeatResponse {
        set_name: Some(words.get("set").unwrap_or(SET).into()),
        state: Some(state.expect("a state")),
        election_time: None,
        has_data: words.get("data").map(|has| has == "yes"),
        config_version: id.version,
        config_term: id.term,
        config: words.get("new").map(|members| config(members, id)),
        term: Term(term),
        primary_id: words.get("primary").map(number),
        sync_source: words.get("source").map(host),
        applied: at,
        durable: words.get("durable").map_or(at, entry),
        written: None,
        electable: words.get("electable").map(|is| is == "yes"),
        primary_silent_ms: words.get("silent").map(|ms| number(ms) as u64),
    };
    let mut out = DocBuilder::new();
    response.append_to(&mut out);
    if let Some(committed) = words.get("committed") {
        let metadata = ReplSetMetadata {
            term: Term(term),
            last_committed: entry(committed),
            last_visible: at.optime,
            config: id,
            replica_set_id: None,
            primary_index: None,
            sync_source_index: None,
            is_primary: false,
        };
        metadata.append_to(&mut out);
    }
    out.finish()
}
