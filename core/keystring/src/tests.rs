//! Whole keys against the comparison of values: order, round trip, and robustness.

use core::cmp;
use std::sync::Arc;

use pinion_bson::testing::{self, Rng};
use pinion_bson::{
    ElementType, Number, RawBson, RawBsonRef, RawDocument, compare_values, elements, raw_elements,
    rawbson, rawdoc,
};
use pinion_collation::{Collation, Options, Strength};

use crate::*;

/// How many generated cases a test looks at: `PINION_VALUES_ROUNDS`, or enough for every day.
fn rounds() -> u64 {
    std::env::var("PINION_VALUES_ROUNDS")
        .ok()
        .and_then(|r| r.parse().ok())
        .unwrap_or(50_000)
}

fn key_of(value: &RawBson, ordering: Ordering) -> KeyString {
    Builder::new(ordering)
        .append(value.as_raw_bson_ref())
        .finish()
}

fn descending() -> Ordering {
    Ordering::from_bits(1)
}

/// Equality of bytes but for what no key keeps: payload and sign of NaN, and coefficients beyond 34
/// digits.
fn same(a: RawBsonRef<'_>, b: RawBsonRef<'_>) -> bool {
    match (a, b) {
        (RawBsonRef::Double(x), RawBsonRef::Double(y)) => {
            x.to_bits() == y.to_bits() || x.is_nan() && y.is_nan()
        }
        (RawBsonRef::Decimal128(x), RawBsonRef::Decimal128(y)) => {
            x == y || Number::Decimal(x).is_nan() && Number::Decimal(y).is_nan()
        }
        (RawBsonRef::Document(x), RawBsonRef::Document(y)) => same_fields(x, y),
        (RawBsonRef::Array(x), RawBsonRef::Array(y)) => {
            same_fields(pinion_bson::document_of(x), pinion_bson::document_of(y))
        }
        (RawBsonRef::JavaScriptCodeWithScope(x), RawBsonRef::JavaScriptCodeWithScope(y)) => {
            x.code == y.code && same_fields(x.scope, y.scope)
        }
        (a, b) => a == b,
    }
}

fn same_fields(a: &RawDocument, b: &RawDocument) -> bool {
    raw_elements(a).count() == raw_elements(b).count()
        && elements(a)
            .zip(elements(b))
            .all(|((n, x), (m, y))| n == m && same(x, y))
}

fn check_round_trip(value: &RawBson, ordering: Ordering) {
    let key = key_of(value, ordering);
    let stored = TypeBits::from_bytes(&key.type_bits.as_bytes()).expect("stored type bits");
    for bits in [&key.type_bits, &stored] {
        let decoded = decode(&key.bytes, ordering, bits)
            .unwrap_or_else(|e| panic!("{e}: {value:?} {:02x?}", key.bytes));
        let mut values = elements(&decoded);
        let (name, read) = values.next().expect("one component");
        assert!(name.is_empty() && values.next().is_none());
        assert!(
            same(read, value.as_raw_bson_ref()),
            "{value:?} came back as {read:?}"
        );
    }
    let len = component_len(&key.bytes, ordering.is_descending(0)).expect("a component");
    assert_eq!(len + 1, key.bytes.len(), "{value:?}");
}

fn check_order(a: &RawBson, b: &RawBson) {
    let expected = compare_values(a.as_raw_bson_ref(), b.as_raw_bson_ref());
    let ascending = Ordering::ascending();
    let (x, y) = (key_of(a, ascending), key_of(b, ascending));
    assert_eq!(
        x.bytes.cmp(&y.bytes),
        expected,
        "{a:?} {b:?}\n{:02x?}\n{:02x?}",
        x.bytes,
        y.bytes
    );
    let (x, y) = (key_of(a, descending()), key_of(b, descending()));
    assert_eq!(
        x.bytes.cmp(&y.bytes),
        expected.reverse(),
        "descending: {a:?} {b:?}"
    );
}

#[test]
fn order_is_that_of_the_values() {
    let mut rng = Rng::new(11);
    for _ in 0..rounds() {
        let (a, b) = testing::pair(&mut rng);
        check_order(&a, &b);
    }
}

#[test]
fn round_trip_is_the_identity() {
    let mut rng = Rng::new(12);
    for round in 0..rounds() {
        let value = testing::value(&mut rng);
        check_round_trip(&value, Ordering::from_bits(round as u32 & 1));
    }
}

#[test]
fn compound_keys_order_by_component_and_direction() {
    let mut rng = Rng::new(13);
    for _ in 0..rounds() / 4 {
        let ordering = Ordering::from_bits(rng.next_u64() as u32 & 7);
        let pairs: Vec<_> = (0..3).map(|_| testing::pair(&mut rng)).collect();
        // Equal first components let the later ones decide.
        let equal = rng.below(3) as usize;
        let (mut x, mut y) = (Builder::new(ordering), Builder::new(ordering));
        let mut expected = cmp::Ordering::Equal;
        for (i, (a, b)) in pairs.iter().enumerate() {
            let (a, b) = (
                a.as_raw_bson_ref(),
                if i < equal {
                    a.as_raw_bson_ref()
                } else {
                    b.as_raw_bson_ref()
                },
            );
            x.append(a);
            y.append(b);
            let order = compare_values(a, b);
            expected = expected.then(if ordering.is_descending(i as u32) {
                order.reverse()
            } else {
                order
            });
        }
        let (x, y) = (x.finish(), y.finish());
        assert_eq!(x.bytes.cmp(&y.bytes), expected, "{ordering:?} {pairs:?}");
        let (values, used) =
            decode_prefix(&x.bytes, 3, ordering, &x.type_bits).expect("three components");
        assert_eq!(used + 1, x.bytes.len());
        for ((_, read), (written, _)) in elements(&values).zip(&pairs) {
            assert!(same(read, written.as_raw_bson_ref()));
        }
        assert_eq!(prefix_len(&x.bytes, 3, ordering), Ok(used));
    }
}

#[test]
fn index_entries_split_and_share_prefixes_exactly_when_equal() {
    let mut rng = Rng::new(14);
    for _ in 0..rounds() / 4 {
        let ordering = Ordering::from_bits(rng.next_u64() as u32 & 3);
        let (a, b) = (testing::pair(&mut rng), testing::pair(&mut rng));
        let (id, other_id) = testing::pair(&mut rng);
        let first = [a.0.as_raw_bson_ref(), b.0.as_raw_bson_ref()];
        let second = [
            a.1.as_raw_bson_ref(),
            if rng.below(2) == 0 {
                first[1]
            } else {
                b.1.as_raw_bson_ref()
            },
        ];
        let x = encode_index_entry(&first, ordering, id.as_raw_bson_ref());
        let y = encode_index_entry(&second, ordering, other_id.as_raw_bson_ref());

        let equal = first
            .iter()
            .zip(&second)
            .all(|(a, b)| compare_values(*a, *b).is_eq());
        let shares = |x: &IndexEntry, y: &IndexEntry| y.key.starts_with(&x.key[..x.prefix_len]);
        assert_eq!(shares(&x, &y), equal, "{first:?} {second:?}");
        assert_eq!(shares(&y, &x), equal, "{first:?} {second:?}");

        assert_eq!(split_index_entry(&x.key, 2, ordering), Ok(x.prefix_len));
        assert_eq!(x.key[x.prefix_len..], encode_id(id.as_raw_bson_ref())[..]);
        let (fields, read_id) =
            decode_index_entry(&x.key, &x.type_bits, 2, ordering).expect("an entry");
        for ((_, read), written) in elements(&fields).zip(first) {
            assert!(same(read, written));
        }
        for (field, (_, expected)) in (0..2).zip(elements(&fields)) {
            let (bits, strings) = (&x.type_bits, |_| Strings::Plain);
            let alone =
                decode_index_field(&x.key, bits, field, ordering, strings).expect("a field");
            let mut alone = elements(&alone);
            let (name, read) = alone.next().expect("a value");
            assert!(name.is_empty() && same(read, expected) && alone.next().is_none());
        }
        let (_, read_id) = elements(&read_id).next().expect("an _id");
        assert!(same(read_id, id.as_raw_bson_ref()));

        let mut builder = Builder::new(ordering);
        builder.append(first[0]).append(first[1]).end();
        let (id_key, id_bits) = encode_id_with_types(id.as_raw_bson_ref());
        assert_eq!(
            join_index_entry(builder.bytes(), builder.type_bits(), &id_key, &id_bits),
            x
        );
    }
}

/// Keys under a collation sort as it compares the values, at any depth, and equal keys are those of
/// equal values.
#[test]
fn keys_sort_as_values_compare_in_a_collation() {
    let mut rng = Rng::new(16);
    let collations: Vec<Arc<Collation>> = [("en", 1), ("en", 3), ("fr_CA", 2), ("de", 5)]
        .map(|(locale, strength)| {
            let options = Options {
                locale,
                strength: Strength::from_number(strength),
                ..Options::default()
            };
            Arc::new(Collation::new(&options).expect("a collation"))
        })
        .into();
    let cased = |value: &RawBson, upper: bool| match value {
        RawBson::String(text) if upper => RawBson::String(text.to_uppercase()),
        other => other.clone(),
    };
    for round in 0..rounds() / 4 {
        let collation = &collations[round as usize % collations.len()];
        let (a, b) = testing::pair(&mut rng);
        let (a, b) = (cased(&a, false), cased(&b, rng.below(2) == 0));
        let (a, b) = (a.as_raw_bson_ref(), b.as_raw_bson_ref());
        let order = pinion_bson::compare_values_by(&**collation, a, b);
        let key = |value, bits| {
            let ordering = Ordering::from_bits(bits);
            let mut builder = Builder::with_collation(ordering, Some(collation.clone()));
            builder.append(value).finish().bytes
        };
        assert_eq!(key(a, 0).cmp(&key(b, 0)), order, "{a:?} {b:?}");
        assert_eq!(key(a, 1).cmp(&key(b, 1)), order.reverse(), "{a:?} {b:?}");
        let id = encode_id_in(Some(collation), a);
        assert_eq!(id == encode_id_in(Some(collation), b), order.is_eq());
        let ordering = Ordering::from_bits(round as u32 & 1);
        let entry =
            encode_index_entry_in(&[a], ordering, |_| Strings::Collated(collation), b, None);
        assert_eq!(
            split_index_entry(&entry.key, 1, ordering),
            Ok(entry.prefix_len)
        );
        let fields = decode_index_fields(&entry.key, &entry.type_bits, 1, ordering, |_| {
            Strings::SortKeys
        })
        .expect("an entry");
        // What is decoded stands for the same key.
        let decoded = elements(&fields).next().expect("a field").1;
        let mut again = Builder::new(ordering);
        again.append_as(decoded, Strings::SortKeys).end();
        assert_eq!(again.bytes(), &entry.key[..entry.prefix_len], "{a:?}");
        if let (RawBsonRef::String(text), Some((_, RawBsonRef::String(found)))) =
            (a, elements(&fields).next())
        {
            let mut key = Vec::new();
            collation.sort_key(text.as_bytes(), &mut key);
            let digits: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(found, format!("0x{digits}"));
        }
    }
}

#[test]
fn discriminators_bound_all_keys_with_a_prefix() {
    let mut rng = Rng::new(15);
    for _ in 0..rounds() / 20 {
        let ordering = Ordering::from_bits(rng.next_u64() as u32 & 3);
        let (value, next, id) = (
            testing::value(&mut rng),
            testing::value(&mut rng),
            testing::value(&mut rng),
        );
        let value = value.as_raw_bson_ref();
        let entry = encode_index_entry(
            &[value, next.as_raw_bson_ref()],
            ordering,
            id.as_raw_bson_ref(),
        );
        let bound = |d| {
            Builder::new(ordering)
                .append(value)
                .append_discriminator(d)
                .finish()
                .bytes
        };
        assert!(bound(Discriminator::ExclusiveBefore).as_slice() < entry.key.as_slice());
        assert!(bound(Discriminator::Inclusive).as_slice() < entry.key.as_slice());
        assert!(bound(Discriminator::ExclusiveAfter).as_slice() > entry.key.as_slice());
    }
}

#[test]
fn malformed_keys_are_errors() {
    let mut rng = Rng::new(16);
    let mut accepted = 0;
    for round in 0..rounds() {
        let ordering = Ordering::from_bits(rng.next_u64() as u32 & 1);
        let mut key = key_of(&testing::value(&mut rng), ordering);
        let bits = match rng.below(3) {
            0 => TypeBits::new(),
            1 => key.type_bits.clone(),
            _ => {
                let bytes: Vec<u8> = (0..rng.below(6)).map(|_| rng.next_u64() as u8).collect();
                TypeBits::from_prefix(&bytes)
                    .map(|(bits, _)| bits)
                    .unwrap_or_default()
            }
        };
        for _ in 0..rng.below(4) {
            let at = rng.below(key.bytes.len() as u64) as usize;
            match rng.below(3) {
                0 => key.bytes[at] = rng.next_u64() as u8,
                1 => {
                    key.bytes[at] =
                        rng.pick(&[0, 1, 4, 30, 31, 40, 42, 50, 51, 60, 70, 80, 170, 255])
                }
                _ => key.bytes.truncate(at.max(1)),
            }
        }
        if let Ok(document) = decode(&key.bytes, ordering, &bits) {
            accepted += 1;
            assert!(
                pinion_bson::validate(document.as_bytes()).is_ok(),
                "round {round}: {:02x?}",
                key.bytes
            );
        }
        let _ = decode_index_entry(&key.bytes, &[], 1, ordering);
        let _ = split_index_entry(&key.bytes, 2, ordering);
        let _ = RecordId::long_at_end(&key.bytes);
        let _ = RecordId::binary_at_end(&key.bytes);
    }
    assert!(accepted > rounds() / 10, "{accepted}");
}

#[test]
fn bytes_of_known_values() {
    let check = |value: RawBson, expected: &[u8], bits: &[u8]| {
        let key = key_of(&value, Ordering::ascending());
        assert_eq!(key.bytes, [expected, &[4]].concat(), "{value:?}");
        assert_eq!(key.type_bits.as_bytes().as_slice(), bits, "{value:?}");
    };
    let decimal = |text: &str| RawBson::Decimal128(text.parse().expect("a decimal"));
    check(rawbson!(0), &[41], &[]);
    check(rawbson!(0i64), &[41], &[0b10]);
    check(rawbson!(-0.0), &[41], &[0b11]);
    check(rawbson!(1), &[43, 2], &[]);
    check(rawbson!(1.0), &[43, 2], &[0b01]);
    check(rawbson!(-1), &[39, 0xfd], &[]);
    check(rawbson!(127), &[43, 254], &[]);
    check(rawbson!(128), &[44, 1, 0], &[]);
    check(rawbson!(1.5), &[43, 3, 0x80, 0, 0, 0, 0, 0, 0], &[0b01]);
    check(
        rawbson!(i64::MAX),
        &[50, 255, 255, 255, 255, 255, 255, 255, 254],
        &[0b10],
    );
    check(
        rawbson!(i64::MIN),
        &[31, 0xf8, 0x3f, 255, 255, 255, 255, 255, 255],
        &[0b10],
    );
    check(
        rawbson!(f64::INFINITY),
        &[51, 255, 255, 255, 255, 255, 255, 255, 255],
        &[0b01],
    );
    check(rawbson!(f64::NAN), &[30], &[0b01]);
    check(rawbson!(0.5), &[42, 0xff, 0x80, 0, 0, 0, 0, 0, 0], &[0b01]);
    check(decimal("1"), &[43, 2], &[0b0000_0111]);
    check(rawbson!("a\0b"), &[60, b'a', 0, 255, b'b', 0], &[]);
    check(RawBson::Symbol("a".into()), &[60, b'a', 0], &[1]);
    check(
        rawbson!({ "a": 1, "b": [true] }),
        &[70, 30, b'a', 0, 43, 2, 80, b'b', 0, 80, 111, 0, 0],
        &[],
    );
    check(RawBson::Null, &[20], &[]);
    check(rawbson!(false), &[110], &[]);
}

#[test]
fn deep_documents_and_their_limit() {
    let nested = |depth: usize| {
        let mut document = rawdoc! { "x": 1.5 };
        for _ in 1..depth {
            document = rawdoc! { "a": document };
        }
        RawBson::Document(document)
    };
    check_round_trip(&nested(pinion_bson::MAX_DEPTH), Ordering::ascending());
    let key = key_of(&nested(1000), Ordering::ascending());
    assert!(decode(&key.bytes, Ordering::ascending(), &key.type_bits).is_err());
    assert!(component_len(&key.bytes, false).is_err());
    assert_eq!(nested(1).element_type(), ElementType::EmbeddedDocument);
}
