//! The server parameters of replication: names, defaults and bounds are MongoDB's.

use pinion_bson::{DocBuilder, RawBsonRef};
use pinion_service::parameters::{Row, Setting, flag, unreadable, whole};
use pinion_wire::idl::{ReadPreferenceMode, f64_lossy};
use pinion_wire::{Error, Result};

use super::{parameters, setting};
use crate::limits::SESSION_REFRESH_INTERVAL;

/// Their values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReplicationParameters {
    pub allow_multiple_arbiters: bool,
    pub create_rollback_data_files: bool,
    pub election_handoff: bool,
    pub flow_control: bool,
    pub override_chaining: bool,
    pub flow_control_decay: f64,
    pub flow_control_fudge: f64,
    pub flow_control_max_samples: i32,
    pub flow_control_min_tickets: i32,
    pub flow_control_sample_period: i32,
    pub flow_control_target_lag_secs: i32,
    /// The part of the target from which on writes take tickets.
    pub flow_control_threshold: f64,
    pub flow_control_adder: i32,
    pub flow_control_multiplier: f64,
    pub flow_control_warn_secs: i32,
    pub initial_sync_method: InitialSyncMethod,
    pub initial_sync_read_preference: Option<ReadPreferenceMode>,
    pub initial_sync_retry_secs: i32,
    pub session_refresh_ms: i32,
    pub max_sync_source_lag_secs: i32,
    pub snapshot_history_secs: i32,
    pub initial_sync_attempts: i32,
    pub initial_sync_fetcher_restarts: i32,
    pub steady_fetcher_restarts: i32,
    pub fetcher_uses_exhaust: bool,
    pub initial_find_secs: i32,
    pub periodic_noop_secs: i32,
    /// How long a majority has no contact with the primary before another is elected; 0 for as long
    /// as the election timeout.
    pub primary_silence_ms: i32,
    pub takeover_freshness_secs: i32,
    pub election_offset_fraction: f64,
    pub rollback_limit_secs: i32,
    /// How long a member that a signal ends has for it before its connections are closed.
    pub shutdown_timeout_ms: i32,
    pub write_periodic_noops: bool,
}

/// How a new member gets its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InitialSyncMethod {
    /// Collection by collection, document by document.
    Logical,
    /// The files of a checkpoint, where the source can give them.
    FileCopyBased,
}

impl InitialSyncMethod {
    const ALL: [InitialSyncMethod; 2] =
        [InitialSyncMethod::Logical, InitialSyncMethod::FileCopyBased];

    /// Its name, which is MongoDB's.
    pub fn name(self) -> &'static str {
        match self {
            InitialSyncMethod::Logical => "logical",
            InitialSyncMethod::FileCopyBased => "fileCopyBased",
        }
    }
}

impl Default for ReplicationParameters {
    fn default() -> ReplicationParameters {
        ReplicationParameters {
            allow_multiple_arbiters: false,
            create_rollback_data_files: true,
            election_handoff: true,
            flow_control: true,
            override_chaining: false,
            flow_control_decay: 0.5,
            flow_control_fudge: 0.95,
            flow_control_max_samples: 1_000_000,
            flow_control_min_tickets: 100,
            flow_control_sample_period: 1000,
            flow_control_target_lag_secs: 10,
            flow_control_threshold: 0.5,
            flow_control_adder: 1000,
            flow_control_multiplier: 1.05,
            flow_control_warn_secs: 10,
            initial_sync_method: InitialSyncMethod::Logical,
            initial_sync_read_preference: None,
            initial_sync_retry_secs: 24 * 60 * 60,
            session_refresh_ms: SESSION_REFRESH_INTERVAL.as_millis() as i32,
            max_sync_source_lag_secs: 30,
            snapshot_history_secs: 300,
            initial_sync_attempts: 10,
            initial_sync_fetcher_restarts: 10,
            steady_fetcher_restarts: 1,
            fetcher_uses_exhaust: true,
            initial_find_secs: 60,
            periodic_noop_secs: 10,
            primary_silence_ms: 1500,
            takeover_freshness_secs: 2,
            election_offset_fraction: 0.15,
            rollback_limit_secs: 24 * 60 * 60,
            shutdown_timeout_ms: 15_000,
            write_periodic_noops: true,
        }
    }
}

type Place<T> = fn(&mut ReplicationParameters) -> &mut T;

/// What a number may be.
#[derive(Clone, Copy)]
enum Bound<T> {
    Above(T),
    AtLeast(T),
    Below(T),
    AtMost(T),
    /// 0 switches something off.
    ZeroOrAtLeast(T),
}

/// Where a parameter's value is, and what it may be.
#[derive(Clone, Copy)]
enum Kind {
    Flag(Place<bool>),
    Whole(Place<i32>, Bound<i32>),
    Fraction(Place<f64>, &'static [Bound<f64>]),
    /// A mode of a read preference; none where the text is empty.
    Preference(Place<Option<ReadPreferenceMode>>),
    Method(Place<InitialSyncMethod>),
}

struct Parameter {
    name: &'static str,
    /// Whether it may be set while the node runs. At its start each may be set.
    at_runtime: bool,
    kind: Kind,
}

const fn runtime(name: &'static str, kind: Kind) -> Parameter {
    Parameter {
        name,
        at_runtime: true,
        kind,
    }
}

const fn startup(name: &'static str, kind: Kind) -> Parameter {
    Parameter {
        name,
        at_runtime: false,
        kind,
    }
}

const TABLE: [Parameter; 33] = {
    use Bound::{Above, AtLeast, AtMost, Below, ZeroOrAtLeast};
    use Kind::{Flag, Fraction, Method, Preference, Whole};
    [
        startup(
            "allowMultipleArbiters",
            Flag(|p| &mut p.allow_multiple_arbiters),
        ),
        runtime(
            "createRollbackDataFiles",
            Flag(|p| &mut p.create_rollback_data_files),
        ),
        runtime("enableElectionHandoff", Flag(|p| &mut p.election_handoff)),
        runtime("enableFlowControl", Flag(|p| &mut p.flow_control)),
        startup(
            "enableOverrideClusterChainingSetting",
            Flag(|p| &mut p.override_chaining),
        ),
        runtime(
            "flowControlDecayConstant",
            Fraction(|p| &mut p.flow_control_decay, &[Below(1.0), Above(0.0)]),
        ),
        runtime(
            "flowControlFudgeFactor",
            Fraction(|p| &mut p.flow_control_fudge, &[Above(0.0), AtMost(1.0)]),
        ),
        startup(
            "flowControlMaxSamples",
            Whole(|p| &mut p.flow_control_max_samples, Above(0)),
        ),
        runtime(
            "flowControlMinTicketsPerSecond",
            Whole(|p| &mut p.flow_control_min_tickets, AtLeast(0)),
        ),
        runtime(
            "flowControlSamplePeriod",
            Whole(|p| &mut p.flow_control_sample_period, Above(0)),
        ),
        runtime(
            "flowControlTargetLagSeconds",
            Whole(|p| &mut p.flow_control_target_lag_secs, Above(0)),
        ),
        runtime(
            "flowControlThresholdLagPercentage",
            Fraction(
                |p| &mut p.flow_control_threshold,
                &[AtMost(1.0), AtLeast(0.0)],
            ),
        ),
        runtime(
            "flowControlTicketAdderConstant",
            Whole(|p| &mut p.flow_control_adder, Above(0)),
        ),
        runtime(
            "flowControlTicketMultiplierConstant",
            Fraction(|p| &mut p.flow_control_multiplier, &[Above(1.0)]),
        ),
        runtime(
            "flowControlWarnThresholdSeconds",
            Whole(|p| &mut p.flow_control_warn_secs, AtLeast(0)),
        ),
        startup("initialSyncMethod", Method(|p| &mut p.initial_sync_method)),
        startup(
            "initialSyncSourceReadPreference",
            Preference(|p| &mut p.initial_sync_read_preference),
        ),
        runtime(
            "initialSyncTransientErrorRetryPeriodSeconds",
            Whole(|p| &mut p.initial_sync_retry_secs, AtLeast(0)),
        ),
        startup(
            "logicalSessionRefreshMillis",
            Whole(|p| &mut p.session_refresh_ms, Above(0)),
        ),
        startup(
            "maxSyncSourceLagSecs",
            Whole(|p| &mut p.max_sync_source_lag_secs, Above(0)),
        ),
        runtime(
            "minSnapshotHistoryWindowInSeconds",
            Whole(|p| &mut p.snapshot_history_secs, AtLeast(0)),
        ),
        runtime(
            "numInitialSyncAttempts",
            Whole(|p| &mut p.initial_sync_attempts, Above(0)),
        ),
        runtime(
            "oplogFetcherInitialSyncMaxFetcherRestarts",
            Whole(|p| &mut p.initial_sync_fetcher_restarts, AtLeast(0)),
        ),
        runtime(
            "oplogFetcherSteadyStateMaxFetcherRestarts",
            Whole(|p| &mut p.steady_fetcher_restarts, AtLeast(0)),
        ),
        startup(
            "oplogFetcherUsesExhaust",
            Flag(|p| &mut p.fetcher_uses_exhaust),
        ),
        runtime(
            "oplogInitialFindMaxSeconds",
            Whole(|p| &mut p.initial_find_secs, Above(0)),
        ),
        startup(
            "periodicNoopIntervalSecs",
            Whole(|p| &mut p.periodic_noop_secs, Above(0)),
        ),
        runtime(
            "primarySilenceLimitMillis",
            Whole(|p| &mut p.primary_silence_ms, ZeroOrAtLeast(200)),
        ),
        runtime(
            "priorityTakeoverFreshnessWindowSeconds",
            Whole(|p| &mut p.takeover_freshness_secs, AtLeast(0)),
        ),
        runtime(
            "replElectionTimeoutOffsetLimitFraction",
            Fraction(
                |p| &mut p.election_offset_fraction,
                &[Above(0.01), AtMost(1.0)],
            ),
        ),
        runtime(
            "rollbackTimeLimitSecs",
            Whole(|p| &mut p.rollback_limit_secs, Above(0)),
        ),
        runtime(
            "shutdownTimeoutMillisForSignaledShutdown",
            Whole(|p| &mut p.shutdown_timeout_ms, AtLeast(0)),
        ),
        runtime("writePeriodicNoops", Flag(|p| &mut p.write_periodic_noops)),
    ]
};

/// Their rows, in the order of the names.
pub(super) const ROWS: [Row; TABLE.len()] = {
    let mut rows = [Row::always("", append, parse); TABLE.len()];
    let mut at = 0;
    while at < rows.len() {
        let parameter = &TABLE[at];
        if !parameter.at_runtime {
            rows[at] = Row::startup("", append, parse);
        }
        rows[at].name = parameter.name;
        rows[at].takes_fraction = matches!(parameter.kind, Kind::Fraction(..));
        at += 1;
    }
    rows
};

fn append(parameter: &str, name: &str, out: &mut DocBuilder) {
    let is_known = parameters()
        .borrow()
        .replication
        .append_as(parameter, name, out);
    assert!(is_known, "a parameter of replication");
}

fn parse(name: &str, value: RawBsonRef<'_>) -> Result<Setting> {
    let parsed = ReplicationSetting::parse(name, value).expect("a parameter of replication");
    let value = parsed?;
    Ok(setting(move |parameters| parameters.replication.set(value)))
}

/// A checked value of one of them.
#[derive(Clone, Copy, Debug)]
pub struct ReplicationSetting {
    at: usize,
    value: Value,
}

#[derive(Clone, Copy, Debug)]
enum Value {
    Flag(bool),
    Whole(i32),
    Fraction(f64),
    Preference(Option<ReadPreferenceMode>),
    Method(InitialSyncMethod),
}

fn find(name: &str) -> Option<usize> {
    TABLE.iter().position(|known| known.name == name)
}

impl ReplicationParameters {
    /// Appends a parameter's value under a name; false if it is not one of these.
    fn append_as(mut self, parameter: &str, name: &str, out: &mut DocBuilder) -> bool {
        let Some(at) = find(parameter) else {
            return false;
        };
        match TABLE[at].kind {
            Kind::Flag(place) => out.append(name, *place(&mut self)),
            Kind::Whole(place, _) => out.append(name, *place(&mut self)),
            Kind::Fraction(place, _) => out.append(name, *place(&mut self)),
            Kind::Preference(place) => {
                out.append(name, place(&mut self).map_or("", ReadPreferenceMode::name))
            }
            Kind::Method(place) => out.append(name, place(&mut self).name()),
        };
        true
    }

    fn set(&mut self, setting: ReplicationSetting) {
        match (TABLE[setting.at].kind, setting.value) {
            (Kind::Flag(place), Value::Flag(value)) => *place(self) = value,
            (Kind::Whole(place, _), Value::Whole(value)) => *place(self) = value,
            (Kind::Fraction(place, _), Value::Fraction(value)) => *place(self) = value,
            (Kind::Preference(place), Value::Preference(value)) => *place(self) = value,
            (Kind::Method(place), Value::Method(value)) => *place(self) = value,
            _ => unreachable!("a setting has the kind of its parameter"),
        }
    }
}

impl ReplicationSetting {
    /// Checks a value for a parameter; `None` if it is not one of these.
    fn parse(name: &str, value: RawBsonRef<'_>) -> Option<Result<ReplicationSetting>> {
        let at = find(name)?;
        let checked = check(name, &TABLE[at].kind, value);
        Some(checked.map(|value| ReplicationSetting { at, value }))
    }
}

fn check(name: &str, kind: &Kind, value: RawBsonRef<'_>) -> Result<Value> {
    let unreadable = || unreadable(name, value);
    Ok(match kind {
        Kind::Flag(_) => Value::Flag(flag(value)),
        Kind::Whole(_, bound) => {
            let number = i32::try_from(whole(name, value)?).map_err(|_| unreadable())?;
            bound.check(name, number)?;
            Value::Whole(number)
        }
        Kind::Fraction(_, bounds) => {
            let number = f64_lossy(value).filter(|number| number.is_finite());
            let number = number.ok_or_else(unreadable)?;
            for bound in *bounds {
                bound.check(name, number)?;
            }
            Value::Fraction(number)
        }
        Kind::Preference(_) => match value {
            RawBsonRef::String("") => Value::Preference(None),
            RawBsonRef::String(text) => {
                let mode = ReadPreferenceMode::named(text);
                Value::Preference(Some(mode.ok_or_else(unreadable)?))
            }
            _ => return Err(unreadable()),
        },
        Kind::Method(_) => {
            let named = |method: &InitialSyncMethod| matches!(value, RawBsonRef::String(text) if text == method.name());
            let method = InitialSyncMethod::ALL.into_iter().find(named);
            Value::Method(method.ok_or_else(unreadable)?)
        }
    })
}

impl<T: Copy + Default + PartialOrd + std::fmt::Display> Bound<T> {
    fn check(self, name: &str, number: T) -> Result<()> {
        let (holds, relation, bound) = match self {
            Bound::Above(bound) => (number > bound, "greater than", bound),
            Bound::AtLeast(bound) => (number >= bound, "greater than or equal to", bound),
            Bound::Below(bound) => (number < bound, "less than", bound),
            Bound::AtMost(bound) => (number <= bound, "less than or equal to", bound),
            Bound::ZeroOrAtLeast(bound) => (
                number == T::default() || number >= bound,
                "0 or greater than or equal to",
                bound,
            ),
        };
        match holds {
            true => Ok(()),
            false => Err(Error::bad_value(format!(
                "Invalid value for parameter {name}: {number} is not {relation} {bound}"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use pinion_bson::{RawBson, RawDocumentBuf};

    use super::*;

    fn shown(parameters: ReplicationParameters, name: &str) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        assert!(parameters.append_as(name, "value", &mut out), "{name}");
        out.finish()
    }

    /// What is shown of a parameter after it was set to a value; `None` if the value is refused.
    #[track_caller]
    fn check(name: &str, value: impl Into<RawBson>, expected: Option<RawBson>) {
        let value = value.into();
        let setting = ReplicationSetting::parse(name, value.as_raw_bson_ref());
        let setting = setting.expect("a parameter of replication");
        let found = setting.ok().map(|setting| {
            let mut parameters = ReplicationParameters::default();
            parameters.set(setting);
            let shown = shown(parameters, name);
            RawBson::from(shown.get("value").expect("readable").expect("appended"))
        });
        assert_eq!(found, expected, "{name} {value:?}");
    }

    #[test]
    fn names_are_sorted_and_every_one_is_shown() {
        let names = ROWS.map(|row| row.name);
        assert!(names.is_sorted());
        for name in names {
            shown(ReplicationParameters::default(), name);
        }
    }

    #[test]
    fn values() {
        let kept = |value: RawBson| Some(value);
        check("enableFlowControl", false, kept(RawBson::Boolean(false)));
        check("enableFlowControl", 0, kept(RawBson::Boolean(false)));
        check("enableFlowControl", "no", kept(RawBson::Boolean(true)));
        check("flowControlTargetLagSeconds", 1.9, kept(RawBson::Int32(1)));
        check("flowControlTargetLagSeconds", 1, kept(RawBson::Int32(1)));
        check("flowControlTargetLagSeconds", 0, None);
        check("flowControlTargetLagSeconds", 1i64 << 31, None);
        check("flowControlTargetLagSeconds", "5", None);
        check(
            "flowControlThresholdLagPercentage",
            0.0,
            kept(RawBson::Double(0.0)),
        );
        check("flowControlThresholdLagPercentage", 1.01, None);
        check("flowControlThresholdLagPercentage", -0.01, None);
        check("flowControlDecayConstant", 1.0, None);
        check("flowControlDecayConstant", 0.0, None);
        check("flowControlFudgeFactor", 1, kept(RawBson::Double(1.0)));
        check("flowControlFudgeFactor", 0.0, None);
        check("flowControlMinTicketsPerSecond", 0, kept(RawBson::Int32(0)));
        check("flowControlMinTicketsPerSecond", -1, None);
        check("flowControlTicketMultiplierConstant", 1.0, None);
        check("flowControlTicketMultiplierConstant", f64::NAN, None);
        check("flowControlTicketMultiplierConstant", f64::INFINITY, None);
        check(
            "flowControlWarnThresholdSeconds",
            0,
            kept(RawBson::Int32(0)),
        );
        check("flowControlSamplePeriod", 0, None);
        check("replElectionTimeoutOffsetLimitFraction", 0.01, None);
        check(
            "replElectionTimeoutOffsetLimitFraction",
            0.5,
            kept(RawBson::Double(0.5)),
        );
        check(
            "initialSyncSourceReadPreference",
            "nearest",
            kept(RawBson::String("nearest".into())),
        );
        check(
            "initialSyncSourceReadPreference",
            "",
            kept(RawBson::String("".into())),
        );
        check("initialSyncSourceReadPreference", "closest", None);
        check("initialSyncSourceReadPreference", 1, None);
        for method in ["logical", "fileCopyBased"] {
            check(
                "initialSyncMethod",
                method,
                kept(RawBson::String(method.into())),
            );
        }
        check("initialSyncMethod", "physical", None);
        check("initialSyncMethod", "", None);
        check("initialSyncMethod", 1, None);
        check("numInitialSyncAttempts", 0, None);
        check("primarySilenceLimitMillis", 0, kept(RawBson::Int32(0)));
        check("primarySilenceLimitMillis", 200, kept(RawBson::Int32(200)));
        for refused in [-1, 1, 199] {
            check("primarySilenceLimitMillis", refused, None);
        }
        check(
            "oplogFetcherSteadyStateMaxFetcherRestarts",
            0,
            kept(RawBson::Int32(0)),
        );
        check("oplogFetcherSteadyStateMaxFetcherRestarts", -1, None);
    }

    #[test]
    fn a_refusal_names_the_bound() {
        let setting =
            ReplicationSetting::parse("flowControlDecayConstant", RawBsonRef::Double(1.5));
        let error = setting.expect("a parameter").expect_err("it is too large");
        let expected =
            "Invalid value for parameter flowControlDecayConstant: 1.5 is not less than 1";
        assert_eq!((error.code.0, error.message.as_str()), (2, expected));
    }
}
