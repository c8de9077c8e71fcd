//! `profile`: what the profiler writes, and what counts as slow.

use pinion_bson::{DocBuilder, JsonMode, RawBsonRef, RawDocument, to_extended_json_limited};
use pinion_exec::limits::PROFILED_COMMAND_BYTES;
use pinion_exec::profile::make_collection;
use pinion_query::Matcher;
use pinion_service::compute::compute;
use pinion_service::parameters::server_counters;
use pinion_service::profile_settings::{Level, Profile, profiles};
use pinion_wire::idl::{CommandReader, Types, f64_lossy, missing_field};
use pinion_wire::{Error, Invocation, Reply, Result};

/// What a `profile` changes; what it does not name stays.
#[derive(Clone, Debug)]
struct Change {
    /// None only asks: then the filter stays too.
    level: Option<Level>,
    slow_ms: Option<i32>,
    sample_rate: Option<f64>,
    /// `Some(None)` takes a filter away.
    filter: Option<Option<Matcher>>,
}

/// `profile`.
pub(crate) async fn profile(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let number = level(&reader)?;
    let slow_ms = reader.opt_i32("slowms")?;
    let sample_rate = reader.opt_f64("sampleRate")?;
    let filter = filter(&reader)?;
    reader.finish()?;
    check_sample_rate(sample_rate)?;
    let level = Level::of(number);
    let change = Change {
        level,
        slow_ms,
        sample_rate,
        filter: match filter {
            Some(filter) if level.is_some() => Some(filter.parse(&cmd).await?),
            _ => None,
        },
    };
    let db = cmd.db();
    let was = settings(db);
    if level.is_some_and(|level| level != Level::Off) {
        make_collection(db).await?;
    }
    apply_everywhere(db.to_owned(), change).await;
    if number != -1 {
        let is = settings(db);
        tracing::info!(target: "COMMAND", id = 48_742u64, from = was.text(), to = is.text(), db, "Profiler settings changed");
    }
    let mut out = Reply::new();
    out.append("was", was.profile.level.number())
        .append("slowms", was.slow_ms)
        .append("sampleRate", was.sample_rate);
    if let Some(filter) = &was.profile.filter {
        out.append("filter", &*filter.parsed_query());
        out.append(
            "note",
            "When a filter expression is set, slowms and sampleRate are not used for profiling and slow-query log \
             lines.",
        );
    }
    Ok(out)
}

/// What holds for a database.
struct Settings {
    profile: Profile,
    slow_ms: i32,
    sample_rate: f64,
}

fn settings(db: &str) -> Settings {
    let profiles = profiles();
    let profiles = profiles.borrow();
    Settings {
        profile: profiles.of(db).clone(),
        slow_ms: profiles.slow_ms(),
        sample_rate: profiles.sample_rate(),
    }
}

impl Settings {
    /// As the log has them.
    fn text(&self) -> String {
        let mut out = DocBuilder::new();
        out.append("level", self.profile.level.number())
            .append("slowms", self.slow_ms)
            .append("sampleRate", self.sample_rate);
        if let Some(filter) = &self.profile.filter {
            out.append("filter", &*filter.parsed_query());
        }
        to_extended_json_limited(&out.finish(), JsonMode::Relaxed, PROFILED_COMMAND_BYTES)
    }
}

fn level(reader: &CommandReader<'_>) -> Result<i64> {
    match reader.value("profile") {
        None | Some(RawBsonRef::Null | RawBsonRef::Undefined) => {
            Err(missing_field(reader.path().field("profile")))
        }
        Some(value) => match f64_lossy(value) {
            Some(number) => Ok(number as i64),
            None => Err(reader.wrong_type("profile", value, Types::NUMBER)),
        },
    }
}

fn check_sample_rate(rate: Option<f64>) -> Result<()> {
    match rate {
        Some(rate) if !(0.0..=1.0).contains(&rate) => Err(Error::bad_value(
            "'sampleRate' must be between 0.0 and 1.0 inclusive",
        )),
        _ => Ok(()),
    }
}

/// A filter as it is given.
enum Given<'d> {
    Unset,
    Filter(&'d RawDocument),
}

impl Given<'_> {
    async fn parse(&self, cmd: &Invocation) -> Result<Option<Matcher>> {
        match self {
            Given::Unset => Ok(None),
            Given::Filter(filter) => {
                let matcher = compute(&cmd.ctx, || Matcher::parse(filter)).await?;
                Ok(Some(matcher))
            }
        }
    }
}

fn filter<'d>(reader: &CommandReader<'d>) -> Result<Option<Given<'d>>> {
    match reader.value("filter") {
        None | Some(RawBsonRef::Null | RawBsonRef::Undefined) => Ok(None),
        Some(RawBsonRef::String("unset")) => Ok(Some(Given::Unset)),
        Some(RawBsonRef::Document(filter)) => Ok(Some(Given::Filter(filter))),
        Some(_) => Err(Error::bad_value(
            "Expected an object, or the string 'unset'.",
        )),
    }
}

async fn apply_everywhere(db: String, change: Change) {
    pinion_runtime::on_all_cores(move |_| {
        let (db, change) = (db.clone(), change.clone());
        async move { apply(&db, change) }
    })
    .await;
}

fn apply(db: &str, change: Change) {
    let profiles = profiles();
    let mut profiles = profiles.borrow_mut();
    if let Some(slow_ms) = change.slow_ms {
        profiles.slow_ms_given = Some(slow_ms);
        // A negative threshold logs everything.
        server_counters().slow_ms.set(slow_ms.max(0) as u64);
    }
    if let Some(rate) = change.sample_rate {
        profiles.set_sample_rate(rate);
    }
    if change.level.is_some() || change.filter.is_some() {
        let present = profiles.of(db).clone();
        let profile = Profile {
            level: change.level.unwrap_or(present.level),
            filter: change.filter.unwrap_or(present.filter),
        };
        profiles.set(db, profile);
    }
}
