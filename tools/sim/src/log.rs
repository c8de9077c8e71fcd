//! The log of simulated nodes: each seed keeps its last warnings, which say why a node has stopped;
//! all lines are printed on request.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt::{Debug, Write as _};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Warnings that a seed keeps.
const KEPT: usize = 8;

thread_local! {
    /// A simulation is one thread.
    static WARNINGS: RefCell<VecDeque<String>> = const { RefCell::new(VecDeque::new()) };
}

struct Log {
    level: Level,
    prints: bool,
}

/// Collects the log of all simulations of this process; `prints` it with everything below a
/// warning.
pub fn install(prints: bool) {
    let level = if prints { Level::DEBUG } else { Level::WARN };
    let installed = tracing::subscriber::set_global_default(Log { level, prints });
    installed.expect("the log is installed once");
}

/// The last warnings of this thread's simulation, which are forgotten then.
pub fn take_warnings() -> Vec<String> {
    WARNINGS.with_borrow_mut(|warnings| warnings.drain(..).collect())
}

/// A problem with the last warnings of this thread's simulation, which are forgotten then.
pub fn with_warnings(problem: Option<String>) -> Option<String> {
    let warnings = take_warnings();
    problem.map(|problem| match warnings.is_empty() {
        true => problem,
        false => format!("{problem}\n  {}", warnings.join("\n  ")),
    })
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.level
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        let Some(node) = pinion_runtime::sim::node_name() else {
            return;
        };
        let at = pinion_runtime::now().as_nanos() / 1_000;
        let text = format!("{at:>10} {node}: {}{}", line.message, line.fields);
        if self.prints {
            eprintln!("{text}");
        }
        if *event.metadata().level() <= Level::WARN {
            WARNINGS.with_borrow_mut(|warnings| {
                warnings.push_back(text);
                if warnings.len() > KEPT {
                    warnings.pop_front();
                }
            });
        }
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            "id" => {}
            name => {
                let _ = write!(self.fields, " {name}={value:?}");
            }
        }
    }
}
