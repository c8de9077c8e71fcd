//! Tests of the plans of queries with `$text`.

use pinion_bson::{RawDocumentBuf, rawdoc};

use super::{Hint, PlanRequest, plan};
use crate::expression::Variables;
use crate::index::IndexSpec;
use crate::matcher::Matcher;
use crate::projection::Projection;
use crate::sort::Direction;

/// A text index behind `p` and in front of `s`, and one on `n`.
fn indexes() -> Vec<IndexSpec> {
    let text = rawdoc! {
        "name": "text", "key": { "p": 1, "_fts": "text", "_ftsx": 1, "s": 1 },
        "weights": { "t": 1 }, "default_language": "english", "textIndexVersion": 3,
    };
    [
        rawdoc! { "name": "_id_", "key": { "_id": 1 } },
        text,
        rawdoc! { "name": "n_1", "key": { "n": 1 } },
    ]
    .iter()
    .map(|listed| IndexSpec::parse(listed).expect("an index"))
    .collect()
}

/// The stages of the plan, or the code of the error.
fn planned(
    filter: RawDocumentBuf,
    projection: Option<RawDocumentBuf>,
    hint: Option<Hint>,
) -> Result<String, i32> {
    let (indexes, variables) = (indexes(), Variables::default());
    let matcher = Matcher::parse_query(&filter, &variables).map_err(|error| error.code.0)?;
    let matcher = matcher.with_text_index(&indexes).expect("a text index");
    let projection = projection
        .map(|projection| Projection::parse_find(&projection, &variables).expect("a projection"));
    let request = PlanRequest {
        namespace: "db.c",
        matcher: &matcher,
        sort: None,
        projection: projection.as_ref(),
        hint: hint.as_ref(),
        key_bounds: None,
        reads_scores: false,
        return_key: false,
        shard_key: None,
        filter: None,
        indexes: &indexes,
    };
    let plan = plan(&request).map_err(|error| error.code.0)?;
    let mut stage = plan.explain(&request, None, None, None);
    let mut names = vec![stage.name];
    while !stage.inputs.is_empty() {
        stage = stage.inputs.remove(0);
        names.push(stage.name);
    }
    Ok(names.join(" "))
}

#[track_caller]
fn check(filter: RawDocumentBuf, expected: Result<&str, i32>) {
    let found = planned(filter.clone(), None, None);
    assert_eq!(
        found.as_deref().map_err(|code| *code),
        expected,
        "{filter:?}"
    );
}

fn with_text(search: &str, other: RawDocumentBuf) -> RawDocumentBuf {
    let mut filter = other;
    filter.append(pinion_bson::cstr!("$text"), rawdoc! { "$search": search });
    filter
}

#[test]
fn fields_in_front_of_the_terms_are_compared_for_equality() {
    let one = Ok("TEXT_MATCH FETCH IXSCAN");
    check(with_text("dog", rawdoc! { "p": 1 }), one);
    check(with_text("dog", rawdoc! { "p": null }), one);
    check(with_text("dog", rawdoc! { "p": { "$in": ["x"] } }), one);
    check(
        with_text("dogs cats", rawdoc! { "p": 1 }),
        Ok("TEXT_MATCH FETCH OR IXSCAN"),
    );
    check(with_text("the", rawdoc! { "p": 1 }), Ok("EOF"));
    check(
        with_text("dog", rawdoc! { "p": 1, "s": 3 }),
        Ok("FETCH TEXT_MATCH FETCH IXSCAN"),
    );
    for other in [
        rawdoc! {},
        rawdoc! { "s": 1 },
        rawdoc! { "p": { "$gt": 1 } },
        rawdoc! { "p": { "$in": [1, 2] } },
        rawdoc! { "p": { "$exists": true } },
    ] {
        check(with_text("dog", other), Err(291));
    }
}

#[test]
fn alternatives_all_have_indexes() {
    let text = || with_text("dog", rawdoc! { "p": 1 });
    check(
        rawdoc! { "$or": [text(), { "n": 1 }] },
        Ok("FETCH OR TEXT_MATCH FETCH IXSCAN"),
    );
    check(rawdoc! { "$or": [text(), { "m": 1 }] }, Err(291));
    check(
        rawdoc! { "$or": [with_text("dog", rawdoc! {}), { "n": 1 }] },
        Err(291),
    );
    check(rawdoc! { "$nor": [text()] }, Err(2));
    check(rawdoc! { "$or": [text(), text()] }, Err(2));
}

#[test]
fn hints_and_scores() {
    let filter = || with_text("dog", rawdoc! { "p": 1 });
    let by_name = |name: &str| Some(Hint::Name(name.into()));
    let check = |projection, hint, expected: Result<&str, i32>| {
        let found = planned(filter(), projection, hint);
        assert_eq!(found.as_deref().map_err(|code| *code), expected);
    };
    check(None, by_name("text"), Ok("TEXT_MATCH FETCH IXSCAN"));
    check(None, by_name("n_1"), Err(291));
    check(None, by_name("no_such"), Err(2));
    check(None, Some(Hint::Natural(Direction::Forward)), Err(2));
    let score = rawdoc! { "x": { "$meta": "textScore" } };
    check(Some(score), None, Ok("TEXT_MATCH TEXT_OR IXSCAN"));
}
