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
    ] {
        assert!(page.contains(part), "{part} is not on the page");
    }
    assert_eq!(page.matches("<svg").count(), 4);
    assert_eq!(page.matches("<polyline").count(), 8);
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
