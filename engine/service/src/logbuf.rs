//! The last log lines of a node, for `getLog`. The log layer of the binary pushes what it writes.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use crate::limits::{LOG_LINE_BYTES, LOG_LINES};

/// A core's share of the log.
#[derive(Default)]
struct LogBuf {
    inner: RefCell<Inner>,
}

#[derive(Default)]
struct Inner {
    lines: VecDeque<(i64, String)>,
    total: u64,
    startup_warnings: Vec<String>,
}

fn buffer() -> Rc<LogBuf> {
    if let Some(buffer) = pinion_runtime::try_core_local::<LogBuf>() {
        return buffer;
    }
    let buffer = Rc::new(LogBuf::default());
    pinion_runtime::set_core_local(buffer.clone());
    buffer
}

fn cut(line: &str) -> String {
    let mut end = line.len().min(LOG_LINE_BYTES);
    while !line.is_char_boundary(end) {
        end -= 1;
    }
    line[..end].to_owned()
}

/// Keeps a line that was just written to the log by this core.
pub fn push(line: &str) {
    let buffer = buffer();
    // The log layer may be called while a line is being pushed; that line is then only in the log
    // itself.
    let Ok(mut inner) = buffer.inner.try_borrow_mut() else {
        return;
    };
    if inner.lines.len() == LOG_LINES {
        inner.lines.pop_front();
    }
    inner
        .lines
        .push_back((pinion_runtime::wall_ms(), cut(line)));
    inner.total += 1;
}

/// Keeps a line for `getLog: "startupWarnings"`. Called on core 0 while the node starts.
pub fn push_startup_warning(line: &str) {
    let buffer = buffer();
    buffer.inner.borrow_mut().startup_warnings.push(cut(line));
}

/// The kept lines of every core in order of time, and how many lines were ever written.
pub async fn lines() -> (Vec<String>, u64) {
    let parts = pinion_runtime::on_all_cores(|_| async {
        let buffer = buffer();
        let inner = buffer.inner.borrow();
        (inner.lines.iter().cloned().collect::<Vec<_>>(), inner.total)
    })
    .await;
    let total = parts.iter().map(|(_, total)| total).sum();
    let mut lines: Vec<(i64, String)> = parts.into_iter().flat_map(|(lines, _)| lines).collect();
    lines.sort_by_key(|(at, _)| *at);
    let skip = lines.len().saturating_sub(LOG_LINES);
    (
        lines.into_iter().skip(skip).map(|(_, line)| line).collect(),
        total,
    )
}

/// The warnings of the start.
pub async fn startup_warnings() -> Vec<String> {
    pinion_runtime::submit_to(
        pinion_runtime::CoreId(0),
        pinion_runtime::Queue::Foreground,
        || async { buffer().inner.borrow().startup_warnings.clone() },
    )
    .await
}
