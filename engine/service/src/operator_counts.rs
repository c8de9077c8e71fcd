//! How often clients used each operator: `metrics.operatorCounters` of `serverStatus`.

use std::cell::RefCell;
use std::rc::Rc;

use pinion_bson::DocBuilder;
use pinion_query::{OperatorKind, OperatorUses, counted};
use pinion_wire::{OpContext, Result};

use crate::compute::compute;

/// The counts of one core.
#[derive(Debug, Default)]
pub struct OperatorCounts(RefCell<OperatorUses>);

/// What this core has counted of operators.
pub fn operator_counts() -> Rc<OperatorCounts> {
    pinion_runtime::core_local()
}

impl OperatorCounts {
    fn add(&self, uses: &OperatorUses) {
        if !uses.is_empty() {
            self.0.borrow_mut().add(uses);
        }
    }

    /// The present counts.
    pub fn values(&self) -> OperatorUses {
        self.0.borrow().clone()
    }
}

/// [`compute`] for what parses a part of a client's command, whose operators it counts.
pub async fn compute_counted<T: Send>(
    ctx: &OpContext,
    mut parse: impl FnMut() -> Result<T> + Send,
) -> Result<T> {
    let parse = || {
        let (parsed, uses) = counted(&mut parse);
        parsed.map(|parsed| (parsed, uses))
    };
    let (parsed, uses) = compute(ctx, parse).await?;
    operator_counts().add(&uses);
    Ok(parsed)
}

/// Appends the counts of all operators that there are.
pub fn append(out: &mut DocBuilder, counts: &OperatorUses) {
    out.start_document("operatorCounters");
    for kind in OperatorKind::ALL {
        out.start_document(match kind {
            OperatorKind::Expression => "expressions",
            OperatorKind::GroupAccumulator => "groupAccumulators",
            OperatorKind::Match => "match",
            OperatorKind::WindowFunction => "windowAccumulators",
        });
        let mut names: Vec<&str> = kind.names().collect();
        names.sort_unstable();
        for name in names {
            out.append(name, counts.of(kind, name) as i64);
        }
        out.end();
    }
    out.end();
}

#[cfg(test)]
mod tests {
    use pinion_bson::rawdoc;
    use pinion_query::Matcher;

    use super::*;

    #[test]
    fn all_operators_are_shown_and_those_used_have_counts() {
        let counts = OperatorCounts::default();
        let filter = rawdoc! { "a": { "$gt": 1 }, "b": { "$gt": 2 } };
        for _ in 0..2 {
            let (parsed, uses) = counted(|| Matcher::parse(&filter));
            assert!(parsed.is_ok());
            counts.add(&uses);
        }
        let mut out = DocBuilder::new();
        append(&mut out, &counts.values());
        let out = out.finish();
        let shown = out.get_document("operatorCounters").unwrap();
        let matched = shown.get_document("match").unwrap();
        assert_eq!(matched.get_i64("$gt").unwrap(), 4);
        assert_eq!(matched.get_i64("$lt").unwrap(), 0);
        let groups = shown.get_document("groupAccumulators").unwrap();
        assert_eq!(groups.get_i64("$sum").unwrap(), 0);
        assert!(
            shown
                .get_document("expressions")
                .unwrap()
                .get_i64("$add")
                .is_ok()
        );
        assert!(
            shown
                .get_document("windowAccumulators")
                .unwrap()
                .get_i64("$rank")
                .is_ok()
        );
    }
}
