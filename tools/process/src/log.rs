//! The log: `tracing` events as JSON lines in MongoDB's format, to standard output or a file, and
//! to getLog.
//!
//! An event's target is the component (`NETWORK`, `STORAGE`, ...), its message `msg`; the fields
//! `id`, `ctx` and `tags` have their places, every other field goes to `attr`. Lines are written by
//! a thread of their own, so a slow reader of standard output cannot hold a core; when it is too
//! slow lines are dropped and counted.

// Serves every core of a real process; the simulator does not use it.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use std::fmt::{self, Write as _};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::verbosity;

/// Lines that wait for the writer at most; more are dropped.
const QUEUE_LINES: usize = 8_192;

/// The tag of what getLog: "startupWarnings" returns.
pub const STARTUP_WARNINGS: &str = "startupWarnings";

/// Where lines go besides the file: getLog's memory. The flag says that the line has the tag
/// `startupWarnings`.
pub type Sink = Box<dyn Fn(&str, bool) + Send + Sync>;

/// What happens to the log file when a new one is started: mongod's `--logRotate`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rotation {
    /// The node moves the file aside.
    #[default]
    Rename,
    /// Somebody else has moved it; the node opens its path again.
    Reopen,
}

/// How often a log is tried to be moved aside where another has its name already.
const MOVE_ATTEMPTS: usize = 10;

/// What the writer thread is asked to do.
enum Message {
    Line(String),
    Rotate(SyncSender<io::Result<()>>),
    End,
}

/// The way to the writer thread, for callers that ask it to rotate.
static WRITER: OnceLock<SyncSender<Message>> = OnceLock::new();

/// Begins a new log file, behind every line logged so far. A log on standard output continues as it
/// is. The outcome comes on the channel; none comes when the writer is too far behind.
pub fn rotate() -> Receiver<io::Result<()>> {
    let (outcome, receiver) = sync_channel(1);
    tracing::info!(target: "CONTROL", id = 23_166u64, "Log rotation initiated");
    if let Some(writer) = WRITER.get() {
        let _ = writer.try_send(Message::Rotate(outcome));
    }
    receiver
}

/// What SIGUSR1 asks for.
pub fn rotate_on_signal() {
    match rotate().recv() {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            tracing::error!(target: "CONTROL", id = 23_168u64, error = %error, "Log rotation failed");
        }
        Err(_) => {
            tracing::error!(target: "CONTROL", id = 23_168u64, error = "the log's writer is behind", "Log rotation failed");
        }
    }
}

/// Hands every event to the writer thread.
pub struct Log {
    lines: SyncSender<Message>,
    dropped: AtomicU64,
    sink: Sink,
}

/// Ends the writer thread after everything logged so far has been written.
pub struct LogWriter {
    lines: SyncSender<Message>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// Installs the log for this process. `sink` receives each line.
///
/// Errors: the file cannot be opened or moved aside.
pub fn install(
    path: Option<&Path>,
    append: bool,
    rotation: Rotation,
    level: u8,
    sink: Sink,
) -> io::Result<LogWriter> {
    let output = match path {
        None => Output::Standard,
        Some(path) => Output::File {
            file: open(path, append)?,
            path: path.to_owned(),
            rotation,
        },
    };
    let (lines, receiver) = sync_channel(QUEUE_LINES);
    let thread = std::thread::Builder::new()
        .name("log".into())
        .spawn(move || write_lines(receiver, output))?;
    let log = Log {
        lines: lines.clone(),
        dropped: AtomicU64::new(0),
        sink,
    };
    verbosity::set(0, i32::from(level));
    WRITER.get_or_init(|| lines.clone());
    tracing::subscriber::set_global_default(log)
        .map_err(|_| io::Error::other("a log is installed already"))?;
    Ok(LogWriter {
        lines,
        thread: Some(thread),
    })
}

/// mongod moves an existing log aside unless it appends.
fn open(path: &Path, append: bool) -> io::Result<File> {
    if !append {
        move_aside(path)?;
    }
    OpenOptions::new().create(true).append(true).open(path)
}

/// Renames a log to its path with the time behind it, as mongod does; its milliseconds keep those
/// of one second apart, and of two in one millisecond the later waits. What is no file, a terminal
/// or a device, stays.
fn move_aside(path: &Path) -> io::Result<()> {
    if !path.is_file() {
        return Ok(());
    }
    for _ in 0..MOVE_ATTEMPTS {
        let time = date(now_us() / 1_000).replace(':', "-");
        let mut aside = path.as_os_str().to_owned();
        aside.push(format!(".{}", time.trim_end_matches("+00-00")));
        if !Path::new(&aside).exists() {
            return std::fs::rename(path, aside);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// Where the writer thread writes.
enum Output {
    Standard,
    File {
        file: File,
        path: PathBuf,
        rotation: Rotation,
    },
}

impl Output {
    fn write(&mut self, line: &str) {
        let bytes = line.as_bytes();
        // A log that cannot be written (a closed pipe, a full disk) must not stop the node.
        let _ = match self {
            Output::Standard => {
                let mut out = io::stdout();
                out.write_all(bytes).and_then(|()| out.flush())
            }
            Output::File { file, .. } => file.write_all(bytes),
        };
    }

    fn rotate(&mut self) -> io::Result<()> {
        if let Output::File {
            file,
            path,
            rotation,
        } = self
        {
            *file = open(path, *rotation == Rotation::Reopen)?;
        }
        Ok(())
    }
}

fn write_lines(receiver: Receiver<Message>, mut output: Output) {
    loop {
        match receiver.recv() {
            Ok(Message::Line(line)) => output.write(&line),
            Ok(Message::Rotate(outcome)) => {
                let _ = outcome.send(output.rotate());
            }
            Ok(Message::End) | Err(_) => return,
        }
    }
}

impl Drop for LogWriter {
    fn drop(&mut self) {
        let _ = self.lines.send(Message::End);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        verbosity::is_enabled(metadata.target(), *metadata.level())
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let is_startup_warning = fields.tags.as_deref() == Some(STARTUP_WARNINGS);
        let line = format(event.metadata(), fields, now_us() / 1_000);
        (self.sink)(line.trim_end(), is_startup_warning);
        if self.lines.try_send(Message::Line(line)).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        } else if self.dropped.load(Ordering::Relaxed) > 0 {
            let count = self.dropped.swap(0, Ordering::Relaxed);
            tracing::warn!(target: "CONTROL", id = 7_000_001u64, count, "Log lines were dropped because the log was read too slowly");
        }
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// The fields of an event, sorted into their places.
#[derive(Default)]
struct Fields {
    message: String,
    id: u64,
    context: Option<String>,
    attr: String,
    tags: Option<String>,
    /// The process ends because of it.
    is_fatal: bool,
}

impl Fields {
    fn attr(&mut self, name: &str, json: impl fmt::Display) {
        if !self.attr.is_empty() {
            self.attr.push(',');
        }
        let _ = write!(self.attr, "{}:{json}", Quoted(name));
    }
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => self.message = value.into(),
            "ctx" => self.context = Some(value.into()),
            "tags" => self.tags = Some(value.into()),
            "severity" => self.is_fatal = value == "F",
            name => self.attr(name, Quoted(value)),
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        match field.name() {
            "id" => self.id = value,
            name => self.attr(name, value),
        }
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        match field.name() {
            "id" => self.id = value as u64,
            name => self.attr(name, value),
        }
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.attr(field.name(), value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        if value.is_finite() {
            self.attr(field.name(), value);
        } else {
            self.attr(field.name(), Quoted(&value.to_string()));
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = format!("{value:?}");
        match field.name() {
            "message" => self.message = text,
            "ctx" => self.context = Some(text),
            // A field whose text is a JSON object (a document) stays one.
            name if text.starts_with('{') && text.ends_with('}') => self.attr(name, text),
            name => self.attr(name, Quoted(&text)),
        }
    }
}

fn format(metadata: &Metadata<'_>, fields: Fields, now_ms: i64) -> String {
    let severity = match *metadata.level() {
        // What ends the process says so.
        Level::ERROR if fields.is_fatal => "F",
        Level::ERROR => "E",
        Level::WARN => "W",
        Level::INFO => "I",
        Level::DEBUG => "D1",
        Level::TRACE => "D3",
    };
    let context = fields.context.unwrap_or_else(|| {
        std::thread::current()
            .name()
            .unwrap_or("thread")
            .to_string()
    });
    let mut line = format!(
        "{{\"t\":{{\"$date\":\"{}\"}},\"s\":{:<5}\"c\":{:<11}\"id\":{},\"ctx\":{},\"msg\":{}",
        date(now_ms),
        format!("\"{severity}\","),
        format!("\"{}\",", component(metadata.target())),
        fields.id,
        Quoted(&context),
        Quoted(&fields.message),
    );
    if !fields.attr.is_empty() {
        let _ = write!(line, ",\"attr\":{{{}}}", fields.attr);
    }
    if let Some(tag) = &fields.tags {
        let _ = write!(line, ",\"tags\":[{}]", Quoted(tag));
    }
    line.push_str("}\n");
    line
}

/// Events of libraries carry their module path as target; MongoDB's name for "no component" is `-`.
fn component(target: &str) -> &str {
    if target.bytes().all(|b| b.is_ascii_uppercase() || b == b'_') {
        target
    } else {
        "-"
    }
}

/// A string as JSON.
struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        for c in self.0.chars() {
            match c {
                '"' => f.write_str("\\\"")?,
                '\\' => f.write_str("\\\\")?,
                '\n' => f.write_str("\\n")?,
                '\r' => f.write_str("\\r")?,
                '\t' => f.write_str("\\t")?,
                c if (c as u32) < 0x20 => write!(f, "\\u{:04x}", c as u32)?,
                c => f.write_char(c)?,
            }
        }
        f.write_char('"')
    }
}

fn now_us() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| d.as_micros() as i64)
}

/// ISO 8601 in UTC with milliseconds, as MongoDB writes it: `2026-11-21T10:14:45.000+00:00`.
fn date(ms: i64) -> String {
    let (days, rest) = (ms.div_euclid(86_400_000), ms.rem_euclid(86_400_000));
    // Days to a civil date, counted from 0000-03-01 so that a leap day ends its year.
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let day_of_era = z.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_index = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_index + 2) / 5 + 1;
    let month = if month_index < 10 {
        month_index + 3
    } else {
        month_index - 9
    };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{:03}+00:00",
        rest / 3_600_000,
        rest / 60_000 % 60,
        rest / 1_000 % 60,
        rest % 1_000
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[test]
    fn dates() {
        for (ms, expected) in [
            (0, "1970-01-01T00:00:00.000+00:00"),
            (951_782_400_000, "2000-02-29T00:00:00.000+00:00"),
            (1_795_255_199_999, "2026-11-21T09:59:59.999+00:00"),
        ] {
            assert_eq!(date(ms), expected);
        }
    }

    #[test]
    fn logs_moved_aside_in_one_millisecond_have_names_of_their_own() {
        let folder = std::env::temp_dir().join(format!("pinion-log-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let path = folder.join("log");
        for nth in 0..20 {
            std::fs::write(&path, nth.to_string()).expect("written");
            move_aside(&path).expect("moved");
        }
        let mut kept: Vec<u32> = std::fs::read_dir(&folder)
            .expect("the folder")
            .map(|entry| {
                let text = std::fs::read_to_string(entry.expect("an entry").path()).expect("a log");
                text.parse().expect("its number")
            })
            .collect();
        kept.sort_unstable();
        std::fs::remove_dir_all(&folder).expect("removed");
        assert!(kept.into_iter().eq(0..20));
    }

    #[test]
    fn an_event_is_a_line_in_mongodb_format() {
        let seen: Arc<Mutex<Vec<(String, bool)>>> = Arc::default();
        let (lines, receiver) = sync_channel(8);
        let into = seen.clone();
        let sink: Sink = Box::new(move |line, startup_warning| {
            into.lock().unwrap().push((line.into(), startup_warning))
        });
        let log = Log {
            lines,
            dropped: AtomicU64::new(0),
            sink,
        };
        tracing::subscriber::with_default(log, || {
            tracing::info!(target: "NETWORK", id = 23_016u64, ctx = "listener", port = 27_017u64, "Waiting for connections");
            tracing::warn!(target: "CONTROL", id = 1u64, ctx = "a\"b", "two\nlines");
            tracing::warn!(target: "CONTROL", id = 2u64, ctx = "c", tags = STARTUP_WARNINGS, n = 1, "take care");
            tracing::debug!(target: "NETWORK", "not shown");
        });
        let seen = seen.lock().unwrap();
        assert_eq!(seen.len(), 3);
        let (line, startup_warning) = &seen[0];
        assert!(
            !startup_warning && line.contains("\"s\":\"I\", \"c\":\"NETWORK\", "),
            "{line}"
        );
        assert!(line.ends_with("\"id\":23016,\"ctx\":\"listener\",\"msg\":\"Waiting for connections\",\"attr\":{\"port\":27017}}"), "{line}");
        assert!(
            !seen[1].1
                && seen[1]
                    .0
                    .contains("\"ctx\":\"a\\\"b\",\"msg\":\"two\\nlines\"}")
        );
        let (line, startup_warning) = &seen[2];
        assert!(
            *startup_warning
                && line.ends_with(
                    "\"msg\":\"take care\",\"attr\":{\"n\":1},\"tags\":[\"startupWarnings\"]}"
                ),
            "{line}"
        );
        let Ok(Message::Line(first)) = receiver.try_recv() else {
            panic!("the writer was sent no line");
        };
        assert!(first.ends_with("}\n"));
    }
}
