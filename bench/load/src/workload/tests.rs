//! The distributions against their theory, and values against themselves.

use super::distribution::{Distribution, Zipfian, fnv_hash};
use super::random::Random;
use super::{Chooser, Document, Kind, Properties, Shared, Spec, check_value, value};

const DRAWS: u64 = 400_000;

/// Draws, counts, and compares with the expected shares by a chi-square test at about one in
/// 10,000; the seed is fixed, so it fails always or never.
fn check(mut distribution: Distribution, newest: u64, expected: &[f64]) {
    let mut random = Random::new(42);
    let mut counts = vec![0_u64; expected.len()];
    for _ in 0..DRAWS {
        counts[distribution.next(&mut random, newest) as usize] += 1;
    }
    check_counts(&counts, expected);
}

fn check_counts(counts: &[u64], expected: &[f64]) {
    assert!((expected.iter().sum::<f64>() - 1.0).abs() < 1e-6);
    let draws: u64 = counts.iter().sum();
    let (mut chi_square, mut cells) = (0.0, 0.0);
    let (mut rest_count, mut rest_share) = (0, 0.0);
    let mut add = |count: u64, share: f64| {
        let mean = share * draws as f64;
        chi_square += (count as f64 - mean).powi(2) / mean;
        cells += 1.0;
    };
    for (&count, &share) in counts.iter().zip(expected) {
        if share * draws as f64 >= 10.0 {
            add(count, share);
        } else {
            rest_count += count;
            rest_share += share;
        }
    }
    if rest_share > 0.0 {
        add(rest_count, rest_share);
    }
    // Wilson and Hilferty: the cube root of chi-square over its degrees of freedom is nearly
    // normal.
    let free: f64 = cells - 1.0;
    assert!(free >= 1.0, "a test with one cell tests nothing");
    let limit = free * (1.0 - 2.0 / (9.0 * free) + 3.72 * (2.0 / (9.0 * free)).sqrt()).powi(3);
    assert!(
        chi_square < limit,
        "chi-square is {chi_square}, which is beyond {limit} with {free} degrees of freedom"
    );
}

/// The shares that the generator of Gray et al. gives: the formula inverted. It is not quite the
/// Zipfian law itself.
fn gray(items: u64) -> Vec<f64> {
    gray_grown(items, items)
}

/// The same where the items were fewer when the generator was made: YCSB's eta goes by those.
fn gray_grown(items: u64, first_items: u64) -> Vec<f64> {
    let theta = 0.99;
    let zeta = |n: u64| (1..=n).map(|i| (i as f64).powf(-theta)).sum::<f64>();
    let zeta_n = zeta(items);
    let eta = (1.0 - (2.0 / first_items as f64).powf(1.0 - theta)) / (1.0 - zeta(2) / zeta_n);
    let first = 1.0 / zeta_n;
    let second = (1.0 + 0.5_f64.powf(theta)) / zeta_n;
    // The point at which the formula gives rank r: n (eta u - eta + 1)^alpha = r.
    let point = |rank: f64| 1.0 - (1.0 - (rank / items as f64).powf(1.0 - theta)) / eta;
    (0..items)
        .map(|rank| {
            let from = point(rank as f64).max(second);
            let to = if rank + 1 == items {
                1.0
            } else {
                point((rank + 1) as f64).max(second)
            };
            let fixed = match rank {
                0 => first,
                1 => second - first,
                _ => 0.0,
            };
            fixed + to - from
        })
        .collect()
}

#[test]
fn uniform_keys_are_equally_likely() {
    check(
        Distribution::Uniform {
            from: 0,
            items: 1000,
        },
        0,
        &[0.001; 1000],
    );
}

#[test]
fn zipfian_ranks_follow_their_formula_and_nearly_the_law() {
    let expected = gray(1000);
    check(
        Distribution::Zipfian {
            ranks: Zipfian::new(1000),
            from: 0,
        },
        0,
        &expected,
    );
    let zeta: f64 = (1..=1000).map(|i| f64::from(i).powf(-0.99)).sum();
    for rank in [1_usize, 2, 10, 100, 1000] {
        let law = (rank as f64).powf(-0.99) / zeta;
        assert!(
            (expected[rank - 1] / law - 1.0).abs() < 0.25,
            "rank {rank}: {} and {law}",
            expected[rank - 1]
        );
    }
}

#[test]
fn a_grown_zipfian_keeps_the_eta_of_its_beginning() {
    let mut grown = Zipfian::new(900);
    grown.grow(950);
    grown.grow(1000);
    check(
        Distribution::Zipfian {
            ranks: grown,
            from: 0,
        },
        0,
        &gray_grown(1000, 900),
    );
    // What YCSB's third rank loses; without growth nothing is lost.
    assert!(gray_grown(1000, 900)[2] < 0.8 * gray(1000)[2]);
    assert_eq!(gray_grown(1000, 1000), gray(1000));
}

#[test]
fn latest_prefers_the_newest() {
    let mut expected = vec![0.0];
    expected.extend(gray(999).into_iter().rev());
    check(Distribution::Latest(Zipfian::new(999)), 999, &expected);
}

#[test]
fn scrambled_ranks_fall_where_the_hash_says() {
    // The 2,000,000 hottest of 10,000,000,001 ranks one by one; the rest is spread evenly by the
    // hash.
    let (items, zeta, theta) = (100_u64, 26.469_028_201_783_02, 0.99);
    let all = 10_000_000_001_f64;
    let zeta2 = 1.0 + 0.5_f64.powf(theta);
    let eta = (1.0 - (2.0 / all).powf(1.0 - theta)) / (1.0 - zeta2 / zeta);
    let second = zeta2 / zeta;
    let point = |rank: f64| (1.0 - (1.0 - (rank / all).powf(1.0 - theta)) / eta).max(second);
    let mut expected = vec![0.0; items as usize];
    expected[(fnv_hash(0) % items) as usize] += 1.0 / zeta;
    expected[(fnv_hash(1) % items) as usize] += second - 1.0 / zeta;
    let known = 2_000_000_u64;
    for rank in 0..known {
        expected[(fnv_hash(rank) % items) as usize] +=
            point((rank + 1) as f64) - point(rank as f64);
    }
    let rest = 1.0 - point(known as f64);
    expected
        .iter_mut()
        .for_each(|share| *share += rest / items as f64);
    check(Distribution::scrambled(0, items), 0, &expected);
}

#[test]
fn a_hotspot_gets_its_share() {
    let mut expected = vec![0.8 / 200.0; 200];
    expected.extend([0.2 / 800.0; 800]);
    check(Distribution::hotspot(0, 1000, 0.2, 0.8), 0, &expected);
}

#[test]
fn exponential_keys_thin_out_towards_the_oldest() {
    let gamma = -(0.05_f64.ln()) / 500.0;
    let whole = 1.0 - (-gamma * 999.0).exp();
    let mut expected: Vec<f64> = (0..1000)
        .map(|age| ((-gamma * f64::from(age)).exp() - (-gamma * f64::from(age + 1)).exp()) / whole)
        .collect();
    // Ages above the newest key's number are drawn again; age 999 is only the one point.
    expected[999] = 0.0;
    expected.reverse();
    let mut distribution = Distribution::exponential(95.0, 500.0);
    let mut random = Random::new(7);
    let mut counts = vec![0; 1000];
    for _ in 0..DRAWS {
        counts[distribution.next(&mut random, 999) as usize] += 1;
    }
    check_counts(&counts[1..], &expected[1..]);
}

#[test]
fn the_hash_is_the_one_of_ycsb() {
    // Java: Utils.fnvhash64(0), (1), (1000).
    check_key(0, false, "user6284781860667377211");
    check_key(1, false, "user8517097267634966620");
    check_key(12, true, "user12");
}

fn check_key(key: u64, ordered: bool, expected: &str) {
    let document = Document {
        fields: 1,
        field_bytes: 1,
        ordered,
        zero_padding: 1,
        indexed: false,
        timed: false,
    };
    let mut name = Vec::new();
    document.key_name(key, &mut name);
    assert_eq!(String::from_utf8(name).unwrap(), expected);
}

#[test]
fn values_are_printable_and_can_be_computed_again() {
    let (mut one, mut other, mut scratch) = (Vec::new(), Vec::new(), Vec::new());
    for bytes in [1, 7, 11, 12, 100, 1000] {
        for version in [0, 1, u64::MAX, 0x1234_5678_9abc_def0] {
            one.clear();
            value(77, 3, version, bytes, &mut one);
            assert_eq!(one.len(), bytes);
            assert!(
                one.iter().all(|b| (b'#'..=b'~').contains(b) && *b != b'\\'),
                "{one:?}"
            );
            assert!(check_value(77, 3, &one, &mut scratch));
            if bytes < 100 {
                continue;
            }
            assert!(
                !check_value(78, 3, &one, &mut scratch),
                "another key's value"
            );
            assert!(
                !check_value(77, 4, &one, &mut scratch),
                "another field's value"
            );
            for place in 0..bytes {
                other.clone_from(&one);
                other[place] = if other[place] == b'A' { b'B' } else { b'A' };
                assert!(
                    !check_value(77, 3, &other, &mut scratch),
                    "byte {place} changed"
                );
            }
        }
    }
}

#[test]
fn the_characters_of_values_are_equally_likely() {
    let mut text = Vec::new();
    value(1, 0, 9, 640_011, &mut text);
    let mut counts = vec![0; 64];
    for byte in &text[11..] {
        counts[usize::from(if *byte == b'~' { b'\\' } else { *byte } - b'#')] += 1;
    }
    check_counts(&counts, &[1.0 / 64.0; 64]);
}

#[test]
fn property_files_are_read_as_ycsb_reads_them() {
    let mut properties = Properties::default();
    let file = std::env::temp_dir().join(format!("pinion-bench-{}.properties", std::process::id()));
    std::fs::write(
        &file,
        "# a comment\nrecordcount=1000\n readproportion = 0.5\nrequestdistribution: latest\n",
    )
    .unwrap();
    properties.add(file.to_str().unwrap()).unwrap();
    std::fs::remove_file(&file).unwrap();
    properties.add("updateproportion=0").unwrap();
    properties.add("insertproportion=0.5").unwrap();
    properties.add("measurementtype=hdrhistogram").unwrap();
    let spec = Spec::new(None, &properties).unwrap();
    assert_eq!(spec.records, 1000);
    assert_eq!(spec.distribution, "latest");
    assert_eq!(spec.mix, [(Kind::Read, 0.5), (Kind::Insert, 0.5)]);
    assert_eq!(spec.unknown_properties(), ["measurementtype"]);
    assert_eq!((spec.document.fields, spec.document.field_bytes), (10, 100));
}

#[test]
fn what_cannot_be_done_is_refused() {
    let refused = |name: Option<&str>, pairs: &[&str], why: &str| {
        let mut properties = Properties::default();
        for pair in pairs {
            properties.add(pair).unwrap();
        }
        let error = Spec::new(name, &properties).unwrap_err();
        assert!(error.contains(why), "{error}");
    };
    refused(Some("g"), &[], "no workload is called 'g'");
    refused(
        Some("a"),
        &["requestdistribution=normal"],
        "requestdistribution",
    );
    refused(Some("a"), &["recordcount=many"], "recordcount");
    refused(Some("a"), &["recordcount=0"], "recordcount");
    refused(
        Some("a"),
        &["fieldlengthdistribution=uniform"],
        "fieldlengthdistribution",
    );
    refused(Some("e"), &["maxscanlength=0"], "maxscanlength");
    refused(Some("read"), &["readproportion=0"], "no operation");
    refused(Some("large"), &["fieldlength=20000000"], "15 MiB");
    refused(Some("read"), &["ttlseconds=5"], "expired");
}

#[test]
fn a_transaction_updates_two_documents() {
    for order in ["random", "keys"] {
        for records in ["2", "3", "1000"] {
            let mut properties = Properties::default();
            properties.set("recordcount", records);
            properties.set("requestdistribution", "zipfian");
            properties.set("transactionorder", order);
            let spec = std::sync::Arc::new(Spec::new(Some("transactions"), &properties).unwrap());
            let shared = std::sync::Arc::new(Shared::new(&spec, spec.insert_count));
            let mut chooser = Chooser::new(std::sync::Arc::clone(&spec), shared, 7).unwrap();
            let mut descending = 0;
            for _ in 0..1000 {
                let request = chooser.next().unwrap();
                assert_ne!(request.key, request.other);
                assert!(request.key.max(request.other) <= spec.records);
                descending += usize::from(request.key > request.other);
                assert_eq!(request.stages(), 3);
            }
            assert_eq!(descending == 0, order == "keys", "{order} {records}");
        }
    }
}
