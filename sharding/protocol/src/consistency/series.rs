//! Time series on one shard: buckets, and what shows the measurements in them.

use pinion_bson::{RawDocument, RawDocumentBuf};
use pinion_query::{buckets_of, series_of};

use super::collections::{ShardFacts, may_be_anywhere};
use super::facts::CollectionOnShard;
use super::inconsistency::Inconsistencies;

/// Finds buckets without their series, and series without their buckets.
pub(super) fn check_series(shard: &ShardFacts, found: &mut Inconsistencies) {
    for buckets in &shard.collections {
        let Some(series) = series_of(&buckets.ns) else {
            continue;
        };
        if may_be_anywhere(series.collection()) {
            continue;
        }
        let ns = buckets.ns.as_str();
        let missing = |what: &str| format!("{ns} is a bucket collection but is missing {what}");
        if pinion_bson::get(&buckets.options, "timeseries").is_none() {
            let issue = missing("the timeseries options");
            malformed(found, shard, ns, &issue, &buckets.options);
        } else if !is_shown(buckets) {
            let issue = missing("a valid view backing it");
            let none = RawDocumentBuf::new();
            let options = buckets.series.as_ref().unwrap_or(&none);
            malformed(found, shard, ns, &issue, options);
        }
    }
    for series in &shard.bare_series {
        let Ok(buckets) = buckets_of(&series.ns) else {
            continue;
        };
        let issue = format!("{} is a time series but is missing {buckets}", series.ns);
        malformed(found, shard, buckets.as_str(), &issue, &series.options);
    }
}

/// Whether what has the name of the series is a view on these buckets, of the same form.
fn is_shown(buckets: &CollectionOnShard) -> bool {
    let Some(series) = &buckets.series else {
        return false;
    };
    let on = pinion_bson::get(series, "viewOn").and_then(|on| on.as_str());
    let shown = pinion_bson::get(series, "timeseries");
    let stored = pinion_bson::get(&buckets.options, "timeseries");
    on == Some(buckets.ns.collection()) && shown == stored
}

fn malformed(
    found: &mut Inconsistencies,
    shard: &ShardFacts,
    buckets: &str,
    issue: &str,
    options: &RawDocument,
) {
    found.add(
        "MalformedTimeseriesBucketsCollection",
        "Found a collection of buckets that is missing, or not in the form of a time series",
        buckets,
        |out| {
            out.append("shard", shard.shard.as_str())
                .append("issue", issue)
                .append("options", options);
        },
    );
}
