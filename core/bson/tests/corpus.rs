//! The BSON corpus of the drivers' specifications: what it calls valid validates and prints as it
//! says, what it calls an error is refused. Runs where `PINION_BSON_CORPUS` names a folder with its
//! files (`tools/bson-corpus` fetches them).

use pinion_bson::{JsonMode, to_extended_json, validate};
use serde_json::Value;

#[derive(Default)]
struct Totals {
    files: u32,
    valid: u32,
    refused: u32,
    printed: u32,
}

#[test]
fn corpus() {
    let Some(folder) = std::env::var_os("PINION_BSON_CORPUS") else {
        println!("skipped: PINION_BSON_CORPUS is not set");
        return;
    };
    let mut totals = Totals::default();
    let mut failures = Vec::new();
    #[allow(
        clippy::disallowed_methods,
        reason = "a test reads its data outside a node"
    )]
    for entry in std::fs::read_dir(folder).expect("the corpus folder") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|e| e == "json") {
            let text = std::fs::read(&path).expect("a corpus file");
            let file: Value = serde_json::from_slice(&text).expect("JSON");
            totals.files += 1;
            check_file(&file, &mut totals, &mut failures);
        }
    }
    let Totals {
        files,
        valid,
        refused,
        printed,
    } = totals;
    println!(
        "corpus: {files} files, {valid} valid, {refused} refused, {printed} printed as extended JSON"
    );
    assert!(
        failures.is_empty(),
        "{} failures:\n{}",
        failures.len(),
        failures.join("\n")
    );
    assert!(
        files > 20 && valid > 300 && refused > 50 && printed > 300,
        "the corpus was not read"
    );
}

fn check_file(file: &Value, totals: &mut Totals, failures: &mut Vec<String>) {
    let cases = |name: &str| file[name].as_array().cloned().unwrap_or_default();
    for case in cases("valid") {
        let mut fail = |what: &str| {
            failures.push(format!(
                "{} / {}: {what}",
                file["description"], case["description"]
            ))
        };
        for kind in ["canonical_bson", "degenerate_bson"] {
            let Some(bytes) = case[kind].as_str().map(unhex) else {
                continue;
            };
            match validate(&bytes) {
                Ok(_) => totals.valid += 1,
                Err(error) => fail(&format!("{kind}: {error}")),
            }
        }
        let bytes = unhex(case["canonical_bson"].as_str().expect("every case has it"));
        let Ok(document) = validate(&bytes) else {
            continue;
        };
        for (key, mode) in [
            ("canonical_extjson", JsonMode::Canonical),
            ("relaxed_extjson", JsonMode::Relaxed),
        ] {
            let Some(expected) = case[key].as_str() else {
                continue;
            };
            let printed = to_extended_json(document, mode);
            let (Ok(expected), Ok(read)) = (
                serde_json::from_str::<Value>(expected),
                serde_json::from_str::<Value>(&printed),
            ) else {
                fail(&format!("{key}: {printed} is not JSON"));
                continue;
            };
            if normalized(expected.clone()) == normalized(read) {
                totals.printed += 1;
            } else {
                fail(&format!("{key}: {printed} instead of {expected}"));
            }
        }
    }
    for case in cases("decodeErrors") {
        let bytes = unhex(case["bson"].as_str().expect("every case has it"));
        if validate(&bytes).is_err() {
            totals.refused += 1;
        } else {
            failures.push(format!(
                "{} / {}: accepted",
                file["description"], case["description"]
            ));
        }
    }
}

/// Doubles may be written in several ways.
fn normalized(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            if let Some(double) = fields.get("$numberDouble").and_then(Value::as_str) {
                let double: f64 = double.parse().expect("a double");
                return Value::String(format!("double {double:?}"));
            }
            Value::Object(
                fields
                    .into_iter()
                    .map(|(name, value)| (name, normalized(value)))
                    .collect(),
            )
        }
        Value::Array(values) => Value::Array(values.into_iter().map(normalized).collect()),
        Value::Number(number) => Value::String(format!("{:?}", number.as_f64())),
        other => other,
    }
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len())
        .step_by(2)
        .map(|i| u8::from_str_radix(&text[i..i + 2], 16).expect("hexadecimal"))
        .collect()
}
