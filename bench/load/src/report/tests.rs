//! The page of made-up results.

use serde_json::json;

use super::page::html;
use crate::run::FORMAT;

fn result(valid: bool) -> serde_json::Value {
    json!({
        "format": FORMAT, "workload": "a", "server": "x <y>", "command": "pinion-bench run -P 'a&b'", "loop": "open",
        "valid": valid, "invalid": if valid { vec![] } else { vec!["the generator fell behind"] },
        "per_sec": if valid { 1000.0 } else { 500.0 }, "latency": {"p50_us": 100.0, "p99_us": 900.0},
        "latency_curve_us": [[0.0, 50.0], [0.5, 100.0], [0.99, 900.0], [0.999, 2000.0], [1.0, 2500.0]],
        "series": [{"at_secs": 0.0, "per_sec": 990.0, "p99_us": 800.0, "max_us": 900.0},
                   {"at_secs": 1.0, "per_sec": 1010.0, "p99_us": 950.0, "max_us": 2500.0}],
        "elapsed_secs": 2.0, "events": [{"what": "checkpoint", "at_secs": 0.8, "took_ms": 300.0, "written_bytes": 209_715_200.0},
                                       {"what": "late", "at_secs": 9.0}],
        "machine": {"processor": "a <processor>"}, "properties": {"recordcount": "1000"},
    })
}

#[test]
fn a_page_has_all_runs_and_needs_nothing_else() {
    let page = html(&[
        ("first".into(), result(true)),
        ("second".into(), result(false)),
    ]);
    for part in [
        "x &lt;y&gt;",
        "-P 'a&amp;b'",
        "a &lt;processor&gt;",
        "500 (0.50x)",
        "INVALID: the generator fell behind",
        "checkpoint at 0.8 s, took 300 ms, 200 MiB written",
    ] {
        assert!(page.contains(part), "{part} is not on the page");
    }
    assert_eq!(page.matches("<svg").count(), 4);
    assert_eq!(page.matches("<polyline").count(), 8);
    // Both runs' checkpoints in the three charts over time; what came after the end is not shown.
    assert_eq!(page.matches("<rect").count(), 6);
    assert!(
        !page.contains("http") && !page.contains("NaN") && !page.contains("inf"),
        "{page}"
    );
}

#[test]
fn an_empty_result_makes_a_page_too() {
    let page = html(&[("empty".into(), json!({ "format": FORMAT }))]);
    assert!(
        page.contains("invalid") && !page.contains("NaN") && !page.contains("inf,"),
        "{page}"
    );
}

#[test]
fn a_comparison_has_its_targets_figures_and_runs() {
    let spread = json!({"median": 2.5, "min": 2.0, "max": 3.0});
    let page = super::peers::html(&json!({
        "command": "pinion-bench peers", "records": 1000, "rounds": 3, "duration_secs": 5.0,
        "targets": [{"what": "point read", "ratio": spread, "bound": 3.0, "at_most": false, "by_cpu": true, "verdict": "NOT REACHED"}],
        "figures": [{"case": "read", "server": "redis", "per_sec": spread, "limit": "client", "ratio": spread, "ratio_by_cpu": true}],
        "servers": [{"server": "redis", "version": "7 <x>", "command": ["redis-server", "--port"], "survives_default": "a kill"}],
        "last_round": [{"case": "read", "server": "redis", "result": result(true)}],
    }));
    for part in [
        "<td>2.5 (2-3)</td><td>at least 3</td>",
        "NOT REACHED by CPU for each operation",
        "2.5 (2-3) of CPU",
        "7 &lt;x&gt;",
        "redis-server --port",
        "default: a kill",
        "read redis",
    ] {
        assert!(page.contains(part), "{part} is not on the page");
    }
    assert!(!page.contains("http") && !page.contains("NaN"), "{page}");
}

#[test]
fn a_comparison_of_engines_has_its_phases_engines_and_what_is_missing() {
    let spread = |median: f64| json!({"median": median, "least": 1.0, "greatest": 4.0});
    let page = super::page_of(&[("engine".into(), json!({
        "format": super::engines::FORMAT, "command": ["pinion-bench-engine", "run", "--phases", "insert"],
        "engines": [{"engine": "pinion", "version": "Pinion <x>", "about": "rings flushed every 100 ms"}],
        "not_measured": [{"engine": "lmdb", "why": "not built"}], "machine": {"processors": 2},
        "phases": [{"phase": "insert", "what": "500000 inserts", "engines": [{
            "engine": "pinion", "rate": spread(2000.0), "acknowledged_rate": spread(3000.0), "cpu_us_per_operation": spread(11.2),
            "write_amplification": {"median": null}, "ratio": {"rate": spread(1.9)},
            "rounds": [{"space_bytes": 1_048_576, "resident_bytes": 1}, {"space_bytes": 3_145_728, "resident_bytes": 2_097_152}],
        }]}],
    }))])
    .expect("it is a comparison of engines");
    for part in [
        "run --phases insert",
        "<h2>insert</h2><p>500000 inserts</p>",
        "<td>pinion</td><td>2000 (1-4)</td><td>3000</td><td>1.9 (1-4)</td><td>11.2</td><td></td><td>3</td><td>2</td>",
        "Pinion &lt;x&gt;",
        "lmdb was not measured: not built",
        "<td>processors</td><td>2</td>",
    ] {
        assert!(page.contains(part), "{part} is not on the page: {page}");
    }
}

#[test]
fn comparisons_share_no_page_and_other_files_are_no_results() {
    let of = |format: &str| (format.to_owned(), json!({ "format": format }));
    for (results, why) in [
        (
            vec![of(super::engines::FORMAT), of(FORMAT)],
            "it makes a page of its own",
        ),
        (
            vec![of(crate::peers::FORMAT), of(crate::peers::FORMAT)],
            "it makes a page of its own",
        ),
        (vec![of("other")], "other is no result of pinion-bench run"),
    ] {
        let error = super::page_of(&results).expect_err("no page");
        assert!(error.contains(why), "{error}");
    }
}
