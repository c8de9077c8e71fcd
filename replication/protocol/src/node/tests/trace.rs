//! Effects as lines of a script.

use pinion_bson::{JsonMode, RawDocumentBuf, to_extended_json};
use pinion_clock::OpTime;
use pinion_wire::Result;

use crate::config::{Config, ConfigVersion, HostPort};
use crate::message::{HeartbeatResponse, Request, VoteResponse};
use crate::node::{Effect, Note};

pub(super) fn at(optime: OpTime) -> String {
    match optime.is_null() {
        true => "-".into(),
        false => format!("{}.{}", optime.term, optime.ts.secs()),
    }
}

fn id(config: ConfigVersion) -> String {
    format!("{}/{}", config.version, config.term)
}

fn or_none(value: Option<impl ToString>) -> String {
    value.map_or("-".into(), |value| value.to_string())
}

fn config(config: &Config) -> String {
    let members = config.members.iter().map(|member| {
        let new = if member.newly_added { ":new" } else { "" };
        format!("{}{new}", member.host.host)
    });
    let members: Vec<String> = members.collect();
    format!("{} {}", id(config.config_version()), members.join(","))
}

fn request(request: &Request) -> String {
    match request {
        Request::Heartbeat(request) => format!(
            "heartbeat term={} config={} primary={}{}",
            request.term,
            id(request.config),
            or_none(request.primary_id),
            if request.check_empty { " empty?" } else { "" },
        ),
        Request::Votes(request) => format!(
            "votes{} term={} at={} config={}",
            if request.dry_run { " dry" } else { "" },
            request.term,
            at(request.last_written),
            id(request.config),
        ),
        Request::Position(update) => {
            let positions = update.positions.iter().map(|position| {
                let (applied, durable) = (position.applied.optime, position.durable.optime);
                format!(" {}={}/{}", position.member_id, at(applied), at(durable))
            });
            format!("positions{}", positions.collect::<String>())
        }
        Request::StepUp { skip_dry_run } => format!("stepup skip={skip_dry_run}"),
    }
}

fn reply(result: &Result<RawDocumentBuf>) -> String {
    let document = match result {
        Err(error) => return format!("{}: {}", error.code_name(), error.message),
        Ok(document) if document.is_empty() => return "ok".into(),
        Ok(document) => document,
    };
    if let Ok(heartbeat) = HeartbeatResponse::parse(document) {
        return format!(
            "{} term={} config={} at={} durable={} primary={} source={} electable={}{}{}{}",
            heartbeat.state.map_or("-", |state| state.name()),
            heartbeat.term,
            id(heartbeat.config_id()),
            at(heartbeat.applied.optime),
            at(heartbeat.durable.optime),
            or_none(heartbeat.primary_id),
            or_none(heartbeat.sync_source.map(|host| host.host)),
            or_none(heartbeat.electable),
            heartbeat
                .primary_silent_ms
                .map_or("".into(), |ms| format!(" silent={ms}")),
            heartbeat
                .has_data
                .map_or("".into(), |has| format!(" data={has}")),
            heartbeat
                .config
                .map_or("".into(), |new| format!(" new={}", config(&new))),
        );
    }
    if let Ok(vote) = VoteResponse::parse(document) {
        let granted = if vote.granted { "yes" } else { "no" };
        return format!("{granted} term={} {}", vote.term, vote.reason)
            .trim_end()
            .into();
    }
    to_extended_json(document, JsonMode::Relaxed)
}

fn host(host: &HostPort) -> &str {
    &host.host
}

pub(super) fn effect(effect: &Effect) -> String {
    match effect {
        Effect::Send {
            to, request: sent, ..
        } => format!("send {} {}", host(to), request(sent)),
        Effect::Reply { id, result } => format!("reply {} {}", id.0, reply(result)),
        Effect::StoreVote(vote) => format!("store vote {}/{}", vote.term, vote.candidate_index),
        Effect::LocateSelf(new) => format!("locate {}", config(new)),
        Effect::StoreConfig(new) => format!("store config {}", config(new)),
        Effect::Initiate(new) => format!("initiate {}", config(new)),
        Effect::StateChanged(state) => format!("state {}", state.name()),
        Effect::ViewChanged { counter } => format!("view {counter}"),
        Effect::StopWrites => "stop writes".into(),
        Effect::ResumeWrites => "resume writes".into(),
        Effect::AllowWrites { term } => format!("allow writes of term {term}"),
        Effect::Drain => "drain".into(),
        Effect::WriteNewPrimary { term } => format!("write new primary of term {term}"),
        Effect::StartFetching { source, purpose } => {
            format!("fetch from {} {purpose:?}", host(source))
        }
        Effect::StopFetching => "stop fetching".into(),
        Effect::StartInitialSync => "initial sync".into(),
        Effect::StartRollback {
            source,
            rollback_id,
        } => format!("roll back with {} as {rollback_id}", host(source)),
        Effect::CommitPoint { committed, stable } => {
            format!("committed {} stable {}", at(committed.optime), at(*stable))
        }
        Effect::Note(noted) => format!("note {}", note(noted)),
    }
}

fn note(noted: &Note) -> String {
    match noted {
        Note::Election {
            reason,
            term,
            dry_run,
        } => format!("election {reason} term={term} dry={dry_run}"),
        Note::ElectionLost { term, reason } => format!("lost term={term}: {reason}"),
        Note::Elected { term } => format!("elected term={term}"),
        Note::SteppedDown { term, reason } => format!("stepped down term={term}: {reason}"),
        Note::Voted {
            term,
            candidate_index,
            refused,
        } => {
            let refused = refused.as_ref().map_or("", |_| " refused");
            format!("voted term={term} for {candidate_index}{refused}")
        }
        Note::CatchUp { outcome } => format!("catch-up {outcome}"),
        Note::MemberDown { host: member, why } => format!("{} is down: {why}", host(member)),
        Note::NewSyncSource { source, why } => {
            let source = source.as_ref().map_or("none", host);
            format!("source {source}: {why}")
        }
        Note::MemberState {
            host: member,
            state,
        } => {
            format!("{} is {}", host(member), state.name())
        }
        Note::NewConfig(config) => format!("config {}", config.version),
        Note::TooStale => "too stale".into(),
        Note::ConfigRefused { why } => format!("config refused: {why}"),
    }
}
