//! `lockInfo`: the gates of namespaces that operations are behind, or wait for.

use std::collections::BTreeMap;

use pinion_bson::DocBuilder;
use pinion_catalog::{GateMode, core_catalog};
use pinion_wire::{Invocation, Reply, Result};

/// The uses of the gates of one namespace, on all cores.
#[derive(Default)]
struct Uses {
    readers: usize,
    writers: usize,
    waiting_readers: usize,
    waiting_writers: usize,
    closed: Option<GateMode>,
}

/// `lockInfo`.
pub(crate) async fn lock_info(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    reader.ignore(&["lockInfo"]);
    reader.finish()?;
    let mut all: BTreeMap<String, Uses> = BTreeMap::new();
    let parts = pinion_runtime::on_all_cores(|_| async { core_catalog().gates().in_use() }).await;
    for gate in parts.into_iter().flatten() {
        let uses = all.entry(gate.ns.as_str().to_owned()).or_default();
        uses.readers += gate.readers;
        uses.writers += gate.writers;
        uses.waiting_readers += gate.waiting_readers;
        uses.waiting_writers += gate.waiting_writers;
        if gate.mode != GateMode::Open {
            uses.closed = uses.closed.max(Some(gate.mode));
        }
    }
    let mut out = Reply::new();
    out.start_array("lockInfo");
    for (ns, uses) in &all {
        append_uses(&mut out, ns, uses);
    }
    out.end();
    Ok(out)
}

/// In MongoDB's words for the modes: a gate that is closed against writers is a shared lock, one
/// that is closed against everyone an exclusive one.
fn append_uses(out: &mut DocBuilder, ns: &str, uses: &Uses) {
    let (closed, closing) = match uses.closed {
        Some(GateMode::Closed) => (("X", 1), 0),
        // It waits for transactions, and readers pass by.
        Some(GateMode::NoStaying) => (("X", 0), 1),
        Some(_) => (("S", 1), 0),
        None => (("X", 0), 0),
    };
    out.push_document()
        .append("resourceId", format!("{{Collection, {ns}}}").as_str());
    for (name, holders) in [
        (
            "granted",
            vec![("IS", uses.readers), ("IX", uses.writers), closed],
        ),
        (
            "pending",
            vec![
                ("IS", uses.waiting_readers),
                ("IX", uses.waiting_writers),
                ("X", closing),
            ],
        ),
    ] {
        out.start_array(name);
        for (mode, count) in holders.into_iter().filter(|(_, count)| *count > 0) {
            out.push_document()
                .append("mode", mode)
                .append("count", count as i64)
                .end();
        }
        out.end();
    }
    out.end();
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinion_bson::rawdoc;

    #[test]
    fn gates_are_shown_as_locks() {
        let uses = Uses {
            readers: 2,
            waiting_writers: 1,
            closed: Some(GateMode::NoWrites),
            ..Uses::default()
        };
        let mut out = DocBuilder::new();
        out.start_array("lockInfo");
        append_uses(&mut out, "d.c", &uses);
        out.end();
        let expected = rawdoc! { "lockInfo": [{
            "resourceId": "{Collection, d.c}",
            "granted": [{ "mode": "IS", "count": 2i64 }, { "mode": "S", "count": 1i64 }],
            "pending": [{ "mode": "IX", "count": 1i64 }],
        }] };
        assert_eq!(out.finish(), expected);
    }
}
