//! What an administrator sets for splits, moves and merges: `config.settings`.

use pinion_bson::{DocBuilder, RawBson, RawDocument, RawDocumentBuf};
use pinion_wire::idl::{FieldReader, Path, missing_field};
use pinion_wire::{Error, Result};

use super::{append_value, other_fields};

pub const SETTINGS: &str = "config.settings";

/// What the balancer does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum BalancerMode {
    #[default]
    Full,
    AutoSplitOnly,
    Off,
}

const MODES: [(&str, BalancerMode); 3] = [
    ("full", BalancerMode::Full),
    ("autoSplitOnly", BalancerMode::AutoSplitOnly),
    ("off", BalancerMode::Off),
];

/// The time of day in which the balancer may move chunks, in minutes since midnight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ActiveWindow {
    pub start: u16,
    pub stop: u16,
}

impl ActiveWindow {
    /// Whether this minute of the day is in it; one that starts later than it stops is over
    /// midnight. Both ends belong to it.
    pub fn contains(self, minute: u16) -> bool {
        match self.start < self.stop {
            true => (self.start..=self.stop).contains(&minute),
            false => minute >= self.start || minute <= self.stop,
        }
    }

    fn parse(path: Path<'_>, document: &RawDocument) -> Result<ActiveWindow> {
        let reader = FieldReader::object(path, document)?;
        let minute = |name| {
            let text = reader.str(name)?;
            minute_of(text).ok_or_else(|| {
                Error::bad_value(format!(
                    "{} is \"hh:mm\", not \"{text}\"",
                    reader.path().field(name)
                ))
            })
        };
        let window = ActiveWindow {
            start: minute("start")?,
            stop: minute("stop")?,
        };
        if window.start == window.stop {
            return Err(Error::bad_value(
                "start and stop times must be different in the active window",
            ));
        }
        Ok(window)
    }

    fn append_to(self, out: &mut DocBuilder) {
        let text = |minute: u16| format!("{:02}:{:02}", minute / 60, minute % 60);
        out.start_document("activeWindow")
            .append("start", text(self.start).as_str())
            .append("stop", text(self.stop).as_str())
            .end();
    }
}

fn minute_of(text: &str) -> Option<u16> {
    let (hours, minutes) = text.split_once(':')?;
    let number = |digits: &str, below: u16| -> Option<u16> {
        let is_number =
            (1..=2).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit());
        let number = is_number.then(|| digits.parse().ok())??;
        (number < below).then_some(number)
    };
    Some(number(hours, 24)? * 60 + number(minutes, 60)?)
}

/// `{_id: "balancer", mode, stopped, activeWindow, ...}`.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct BalancerSettings {
    pub mode: BalancerMode,
    pub active_window: Option<ActiveWindow>,
    /// A boolean or a write concern: what a migration waits for between its batches.
    pub secondary_throttle: Option<RawBson>,
    /// Whether a migration waits until the donor has deleted the range.
    pub wait_for_delete: bool,
    /// Whether chunks are moved that exceed the size.
    pub attempt_to_balance_jumbo_chunks: bool,
    pub other: RawDocumentBuf,
}

const BALANCER_FIELDS: [&str; 7] = [
    "_id",
    "mode",
    "stopped",
    "activeWindow",
    "_secondaryThrottle",
    "_waitForDelete",
    "attemptToBalanceJumboChunks",
];

impl BalancerSettings {
    pub const ID: &str = "balancer";

    /// Whether chunks may be moved at this minute of the day.
    pub fn may_move(&self, minute: u16) -> bool {
        self.mode == BalancerMode::Full
            && self
                .active_window
                .is_none_or(|window| window.contains(minute))
    }

    /// `stopped`, by which older shells stop it, comes before `mode`.
    ///
    /// # Errors
    /// A field of a wrong type; `BadValue` for a mode or a time that is none.
    pub fn parse(document: &RawDocument) -> Result<BalancerSettings> {
        let reader = FieldReader::object(Path::root(SETTINGS), document)?;
        let is_stopped = reader.opt_safe_bool("stopped")?.unwrap_or(false);
        let mode = reader.opt_one_of("mode", &MODES)?.unwrap_or_default();
        let active_window = match reader.opt_doc("activeWindow")? {
            Some(window) => Some(ActiveWindow::parse(
                reader.path().field("activeWindow"),
                window,
            )?),
            None => None,
        };
        let secondary_throttle = match reader.value("_secondaryThrottle") {
            Some(pinion_bson::RawBsonRef::Document(concern)) => Some(concern.to_owned().into()),
            _ => reader
                .opt_safe_bool("_secondaryThrottle")?
                .map(RawBson::Boolean),
        };
        Ok(BalancerSettings {
            mode: if is_stopped { BalancerMode::Off } else { mode },
            active_window,
            secondary_throttle,
            wait_for_delete: reader.opt_safe_bool("_waitForDelete")?.unwrap_or(false),
            attempt_to_balance_jumbo_chunks: reader
                .opt_safe_bool("attemptToBalanceJumboChunks")?
                .unwrap_or(false),
            other: other_fields(document, &BALANCER_FIELDS),
        })
    }

    pub fn to_bson(&self) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        let mode = MODES.iter().find(|(_, mode)| *mode == self.mode);
        out.append("_id", Self::ID)
            .append("mode", mode.expect("each has a name").0)
            .append("stopped", self.mode == BalancerMode::Off);
        if let Some(window) = self.active_window {
            window.append_to(&mut out);
        }
        if let Some(throttle) = &self.secondary_throttle {
            append_value(&mut out, "_secondaryThrottle", throttle);
        }
        for (name, flag) in [
            ("_waitForDelete", self.wait_for_delete),
            (
                "attemptToBalanceJumboChunks",
                self.attempt_to_balance_jumbo_chunks,
            ),
        ] {
            if flag {
                out.append(name, true);
            }
        }
        out.append_all(&self.other);
        out.finish()
    }
}

/// `{_id: "chunksize", value}`, in megabytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkSizeSettings {
    pub max_chunk_size_bytes: u64,
}

const MEGABYTE: u64 = 1024 * 1024;

impl Default for ChunkSizeSettings {
    fn default() -> ChunkSizeSettings {
        ChunkSizeSettings {
            max_chunk_size_bytes: 128 * MEGABYTE,
        }
    }
}

impl ChunkSizeSettings {
    pub const ID: &str = "chunksize";

    /// # Errors
    /// `value` is missing, no number, or not between 1 and 1024 megabytes.
    pub fn parse(document: &RawDocument) -> Result<ChunkSizeSettings> {
        let reader = FieldReader::object(Path::root(SETTINGS), document)?;
        let megabytes = reader
            .opt_i64("value")?
            .ok_or_else(|| missing_field(reader.path().field("value")))?;
        match u64::try_from(megabytes) {
            Ok(value @ 1..=1024) => Ok(ChunkSizeSettings {
                max_chunk_size_bytes: value * MEGABYTE,
            }),
            _ => Err(Error::bad_value(format!(
                "{megabytes} is not a valid value for MaxChunkSize"
            ))),
        }
    }

    pub fn to_bson(&self) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        let megabytes = (self.max_chunk_size_bytes / MEGABYTE) as i64;
        out.append("_id", Self::ID).append("value", megabytes);
        out.finish()
    }
}

/// `{_id: "autosplit", enabled}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AutoSplitSettings {
    pub is_enabled: bool,
}

/// `{_id: "automerge", enabled}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AutoMergeSettings {
    pub is_enabled: bool,
}

/// On where nothing is set.
impl Default for AutoSplitSettings {
    fn default() -> AutoSplitSettings {
        AutoSplitSettings { is_enabled: true }
    }
}

/// On where nothing is set.
impl Default for AutoMergeSettings {
    fn default() -> AutoMergeSettings {
        AutoMergeSettings { is_enabled: true }
    }
}

impl AutoSplitSettings {
    pub const ID: &str = "autosplit";

    /// # Errors
    /// `enabled` is missing or no boolean.
    pub fn parse(document: &RawDocument) -> Result<AutoSplitSettings> {
        enabled(document).map(|is_enabled| AutoSplitSettings { is_enabled })
    }

    pub fn to_bson(&self) -> RawDocumentBuf {
        switch(Self::ID, self.is_enabled)
    }
}

impl AutoMergeSettings {
    pub const ID: &str = "automerge";

    /// # Errors
    /// `enabled` is missing or no boolean.
    pub fn parse(document: &RawDocument) -> Result<AutoMergeSettings> {
        enabled(document).map(|is_enabled| AutoMergeSettings { is_enabled })
    }

    pub fn to_bson(&self) -> RawDocumentBuf {
        switch(Self::ID, self.is_enabled)
    }
}

fn enabled(document: &RawDocument) -> Result<bool> {
    let reader = FieldReader::object(Path::root(SETTINGS), document)?;
    reader
        .opt_safe_bool("enabled")?
        .ok_or_else(|| missing_field(reader.path().field("enabled")))
}

fn switch(id: &str, is_enabled: bool) -> RawDocumentBuf {
    let mut out = DocBuilder::new();
    out.append("_id", id).append("enabled", is_enabled);
    out.finish()
}

#[cfg(test)]
mod tests {
    use pinion_bson::rawdoc;

    use super::super::testing::{check_kept, check_types};
    use super::*;

    #[test]
    fn the_balancer() {
        let full = rawdoc! {
            "_id": "balancer", "mode": "off", "stopped": true,
            "activeWindow": { "start": "23:00", "stop": "06:30" },
            "_secondaryThrottle": { "w": 2 }, "_waitForDelete": true,
            "attemptToBalanceJumboChunks": true, "activeWindowDOW": [1],
        };
        let parse = BalancerSettings::parse;
        let found = check_kept(&full, parse, BalancerSettings::to_bson);
        assert!(!found.may_move(0) && found.attempt_to_balance_jumbo_chunks);
        check_types(&full, &BALANCER_FIELDS[1..], parse, SETTINGS);
        let mode = |document: RawDocumentBuf| parse(&document).map(|found| found.mode);
        assert_eq!(mode(rawdoc! {}).ok(), Some(BalancerMode::Full));
        let stopped = rawdoc! { "mode": "full", "stopped": true };
        assert_eq!(mode(stopped).ok(), Some(BalancerMode::Off));
        let only = rawdoc! { "mode": "autoSplitOnly" };
        assert!(!parse(&only).expect("readable").may_move(1));
        assert_eq!(mode(rawdoc! { "mode": "x" }).expect_err("none").code.0, 2);
        let throttle = parse(&rawdoc! { "_secondaryThrottle": false }).expect("readable");
        assert_eq!(throttle.secondary_throttle, Some(RawBson::Boolean(false)));
    }

    #[test]
    fn windows() {
        let window = |start: &str, stop: &str| {
            let document = rawdoc! { "activeWindow": { "start": start, "stop": stop } };
            BalancerSettings::parse(&document).map(|found| found.active_window)
        };
        let check = |start, stop, inside: &[u16], outside: &[u16]| {
            let found = window(start, stop).expect("readable").expect("there");
            assert!(
                inside.iter().all(|minute| found.contains(*minute)),
                "{found:?}"
            );
            assert!(
                !outside.iter().any(|minute| found.contains(*minute)),
                "{found:?}"
            );
        };
        check("9:00", "17:30", &[540, 1000, 1050], &[0, 539, 1051]);
        check("23:00", "06:30", &[1380, 1439, 0, 390], &[391, 1379]);
        for (start, stop) in [
            ("24:00", "1:00"),
            ("1:60", "2:00"),
            ("x", "2:00"),
            ("+1:00", "2:00"),
            ("1:00", "1:00"),
            ("100:00", "2:00"),
        ] {
            assert_eq!(window(start, stop).expect_err(start).code.0, 2);
        }
    }

    #[test]
    fn sizes_and_switches() {
        let size = |value: i64| ChunkSizeSettings::parse(&rawdoc! { "value": value });
        let found = size(64).expect("a size");
        assert_eq!(found.max_chunk_size_bytes, 64 * 1024 * 1024);
        assert_eq!(
            found.to_bson(),
            rawdoc! { "_id": "chunksize", "value": 64i64 }
        );
        for value in [0, -1, 1025] {
            assert_eq!(size(value).expect_err("no size").code.0, 2);
        }
        let off = rawdoc! { "_id": "autosplit", "enabled": false };
        let split = AutoSplitSettings::parse(&off).expect("readable");
        assert_eq!(split.to_bson(), off);
        assert!(!split.is_enabled && AutoSplitSettings::default().is_enabled);
        let off = rawdoc! { "_id": "automerge", "enabled": false };
        let merge = AutoMergeSettings::parse(&off).expect("readable");
        assert_eq!(merge.to_bson(), off);
        assert!(!merge.is_enabled && AutoMergeSettings::default().is_enabled);
        assert!(AutoMergeSettings::parse(&rawdoc! {}).is_err());
    }
}
