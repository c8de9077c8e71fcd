//! The options one by one, the locales, and that keys and comparisons agree.

use std::cmp::Ordering;

use super::locales::LOCALES;
use super::*;
use pinion_bson::{RawBson, rawbson};

fn collation(options: Options<'_>) -> Collation {
    Collation::new(&options).expect("a collation")
}

/// Strings stand in this order, `=` before those that equal the one before.
fn check(options: Options<'_>, expected: &[&str]) {
    let collation = collation(options);
    for (at, a) in expected.iter().enumerate() {
        let mut order = Ordering::Equal;
        for (distance, b) in expected[at..].iter().enumerate() {
            if distance > 0 && !b.starts_with('=') {
                order = Ordering::Less;
            }
            let (a, b) = (a.trim_start_matches('='), b.trim_start_matches('='));
            assert_eq!(
                collation.compare(a, b),
                order,
                "{a:?} and {b:?}: {options:?}"
            );
            assert_eq!(collation.compare(b, a), order.reverse(), "{b:?} and {a:?}");
            assert_eq!(
                key(&collation, a).cmp(&key(&collation, b)),
                order,
                "keys of {a:?} and {b:?}"
            );
        }
    }
}

fn key(collation: &Collation, text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    collation.sort_key(text.as_bytes(), &mut out);
    out
}

fn of(locale: &str) -> Options<'_> {
    Options {
        locale,
        ..Options::default()
    }
}

fn strength(strength: Strength) -> Options<'static> {
    Options {
        strength: Some(strength),
        ..of("en")
    }
}

#[test]
fn strengths_distinguish_what_they_should() {
    check(
        strength(Strength::Primary),
        &["a", "=A", "=á", "=Á", "b", "=B"],
    );
    check(strength(Strength::Secondary), &["a", "=A", "á", "=Á", "b"]);
    check(
        strength(Strength::Tertiary),
        &["a", "A", "á", "Á", "b", "B"],
    );
    check(
        strength(Strength::Tertiary),
        &["abc", "=a\u{200b}bc", "=a\0bc"],
    );
    check(strength(Strength::Identical), &["abc", "a\u{200b}bc"]);
    check(strength(Strength::Identical), &["é", "=e\u{301}"]);
    check(strength(Strength::Primary), &["", "a"]);
}

#[test]
fn case_level_distinguishes_cases_without_accents() {
    let options = Options {
        case_level: Some(true),
        ..strength(Strength::Primary)
    };
    check(options, &["a", "=á", "A", "=Á", "b"]);
    let options = Options {
        case_level: Some(true),
        ..strength(Strength::Secondary)
    };
    check(options, &["a", "A", "á", "Á", "b"]);
}

#[test]
fn either_case_comes_first() {
    let first = |case_first| Options {
        case_first: Some(case_first),
        ..of("en")
    };
    check(first(CaseFirst::Upper), &["A", "a", "Á", "á", "B", "b"]);
    check(first(CaseFirst::Lower), &["a", "A", "á", "Á", "b", "B"]);
    check(of("da"), &["A", "a", "B", "b"]);
    let off = Options {
        case_first: Some(CaseFirst::Off),
        ..of("da")
    };
    check(off, &["a", "A", "b", "B"]);
}

#[test]
fn digits_compare_as_numbers_on_demand() {
    check(of("en"), &["a1", "a10", "a2"]);
    let numeric = Options {
        numeric_ordering: Some(true),
        ..of("en")
    };
    check(
        numeric,
        &[
            "-1", "-2", "1", "=01", "2", "10", "a1", "a2", "=a02", "a10", "a10b",
        ],
    );
}

#[test]
fn accents_compare_from_the_end_on_demand() {
    check(of("fr"), &["cote", "coté", "côte", "côté"]);
    check(of("fr_CA"), &["cote", "côte", "coté", "côté"]);
    let backwards = |locale, backwards| Options {
        backwards: Some(backwards),
        ..of(locale)
    };
    check(backwards("fr", true), &["cote", "côte", "coté", "côté"]);
    check(backwards("fr_CA", false), &["cote", "coté", "côte", "côté"]);
    check(backwards("en", true), &["cote", "côte", "coté", "côté"]);
    assert_eq!(
        Collation::new(&Options {
            strength: Some(Strength::Primary),
            ..backwards("fr", true)
        }),
        Err(Invalid::Backwards)
    );
}

#[test]
fn punctuation_is_passed_over_on_demand() {
    check(of("en"), &["a b", "a-b", "ab", "abc"]);
    let shifted = |max_variable, strength| Options {
        alternate: Some(Alternate::Shifted),
        max_variable: Some(max_variable),
        strength: Some(strength),
        ..of("en")
    };
    let punct = shifted(MaxVariable::Punct, Strength::Tertiary);
    check(punct, &["a b", "=a-b", "=ab", "abc"]);
    let punct = shifted(MaxVariable::Punct, Strength::Quaternary);
    check(punct, &["a b", "a_b", "a-b", "ab", "abc"]);
    let space = shifted(MaxVariable::Space, Strength::Tertiary);
    check(space, &["a-b", "a b", "=ab", "abc"]);
    check(of("th"), &["a b", "=a-b", "=ab"]);
}

#[test]
fn languages_have_orders_of_their_own() {
    check(of("de"), &["ad", "äd", "ae", "af", "Strasse", "Straße"]);
    check(of("de@collation=phonebook"), &["ad", "ae", "äd", "af"]);
    check(of("sv"), &["z", "å", "ä", "ö"]);
    check(of("nb"), &["z", "æ", "ø", "å"]);
    check(of("nn"), &["z", "æ", "ø", "å"]);
    check(of("da"), &["z", "æ", "ø", "å"]);
    check(of("es"), &["n", "ñ", "o"]);
    check(of("es"), &["ch", "cz", "d"]);
    check(of("es@collation=traditional"), &["cz", "ch", "d"]);
    check(of("cs"), &["h", "ch", "i"]);
    check(of("hu"), &["cz", "cs", "d"]);
    check(of("pl"), &["l", "ł", "m"]);
    check(of("tr"), &["ı", "i", "j"]);
    check(of("lt"), &["i", "y", "j"]);
    check(of("et"), &["s", "z", "t"]);
    check(of("en"), &["a", "z", "я"]);
    check(of("ru"), &["я", "a"]);
    check(of("zh"), &["啊", "北", "中"]);
    check(of("zh_Hant"), &["一", "中", "灣"]);
    check(of("ja"), &["あ", "=ア", "い", "亜"]);
    check(of("ko"), &["가", "伽", "나"]);
    check(of("en_US_POSIX"), &["A", "B", "a", "b"]);
}

#[test]
fn every_locale_has_tables_or_is_refused() {
    assert!(LOCALES.is_sorted_by(|a, b| a.name < b.name));
    let (mut known, mut refused) = (0, 0);
    for locale in LOCALES {
        match Collation::new(&of(locale.name)) {
            Ok(collation) => {
                known += 1;
                assert_eq!(collation.settings().locale, locale.name);
                assert!(collation.compare("a", "b").is_lt(), "{}", locale.name);
            }
            Err(invalid) => {
                refused += 1;
                assert_eq!(invalid, Invalid::VariantUnsupported, "{}", locale.name);
            }
        }
    }
    assert_eq!((known, refused), (124, 28));
}

#[test]
fn unknown_locales_are_refused_with_what_was_meant() {
    let check = |locale: &str, meant: Option<&'static str>| {
        let invalid = Collation::new(&of(locale)).expect_err(locale);
        assert_eq!(invalid, Invalid::Locale { meant });
    };
    check("zzz", None);
    check("", None);
    check("invalid locale!", None);
    check("EN", Some("en"));
    check("en-US", Some("en_US"));
    check("en_us_posix", Some("en_US_POSIX"));
    check("en_GB", Some("en"));
    check("fi_FI", Some("fi"));
    check("sr_latn_RS", Some("sr_Latn"));
    check("de@collation=unknown", Some("de"));
    check("de_CH@collation=phonebook", Some("de@collation=phonebook"));
    check("é_éééé", None);
}

#[test]
fn settings_are_complete() {
    let expected = pinion_bson::rawdoc! {
        "locale": "en", "caseLevel": false, "caseFirst": "off", "strength": 3, "numericOrdering": false,
        "alternate": "non-ignorable", "maxVariable": "punct", "normalization": false, "backwards": false,
        "version": "57.1"
    };
    assert_eq!(collation(of("en")).document(), expected);
    let check = |locale: &str, name: &str, value: RawBson| {
        let document = collation(of(locale)).document();
        assert_eq!(
            pinion_bson::get(&document, name),
            Some(value.as_raw_bson_ref())
        );
    };
    check("fr_CA", "backwards", true.into());
    check("th", "alternate", "shifted".into());
    check("vi", "normalization", true.into());
    check("mt", "caseFirst", "upper".into());
    assert_eq!(collation(of("en")), collation(strength(Strength::Tertiary)));
    assert_ne!(collation(of("en")), collation(of("en_US")));
}

#[test]
fn case_first_needs_a_level_of_cases() {
    let options = |level| Options {
        case_first: Some(CaseFirst::Upper),
        case_level: Some(level),
        ..strength(Strength::Secondary)
    };
    assert_eq!(Collation::new(&options(false)), Err(Invalid::CaseFirst));
    check(options(true), &["A", "a", "á"]);
}

#[test]
fn strings_inside_of_values_are_collated() {
    let collation = collation(strength(Strength::Primary));
    let check = |a: RawBson, b: RawBson, expected: Ordering| {
        let (a, b) = (a.as_raw_bson_ref(), b.as_raw_bson_ref());
        assert_eq!(compare_values(Some(&collation), a, b), expected);
        assert_eq!(compare_values(Some(&collation), b, a), expected.reverse());
        assert_eq!(values_equal(Some(&collation), a, b), expected.is_eq());
    };
    check(
        rawbson!(["a", { "x": ["É"] }]),
        rawbson!(["A", { "x": ["e"] }]),
        Ordering::Equal,
    );
    check(
        rawbson!({ "x": "a" }),
        rawbson!({ "X": "a" }),
        Ordering::Greater,
    );
    check(
        rawbson!({ "x": "B" }),
        rawbson!({ "x": "a" }),
        Ordering::Greater,
    );
    check(rawbson!(1), rawbson!("a"), Ordering::Less);
    let symbol = |text: &str| RawBson::Symbol(text.into());
    check(symbol("a"), symbol("A"), Ordering::Greater);
}

/// Keys are stored, so a change of the tables that changes keys is a change of format. Where this
/// test fails after ICU4X was updated, [`TABLES`] must change with it, and what was stored with
/// other tables must be found at start.
#[test]
fn stored_keys_do_not_change() {
    let hex = |options: Options<'_>, text: &str| {
        let key = key(&collation(options), text);
        key.iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>()
    };
    for (options, text, expected) in [
        (
            of("en"),
            "Hello, World 42",
            "3933414147060457474d4131041a16011301dcc0dc0b",
        ),
        (strength(Strength::Primary), "Straße", "4f514d2b4f4f33"),
        (of("fr_CA"), "côté", "2f4751330188448e06010a"),
        (of("zh"), "中文", "9c4c8a6701060106"),
        (of("ja"), "カタカナ", "5f1226123001080108"),
    ] {
        assert_eq!(hex(options, text), expected, "{text:?} {options:?}");
    }
    for (locale, expected) in [
        ("en", 0x23df_dcd2_d80d_6c2f),
        ("zh", 0x11f5_3262_2934_0212),
        ("th", 0xcec7_4c4f_88d2_fb86),
        ("hu", 0xba12_b698_c73d_efbb),
    ] {
        assert_eq!(digest(locale), expected, "{locale}");
    }
}

/// FNV-1a over the keys of all characters of the basic plane.
fn digest(locale: &str) -> u64 {
    let collation = collation(of(locale));
    let mut digest = 0xcbf2_9ce4_8422_2325_u64;
    for character in '\0'..='\u{ffff}' {
        for byte in key(&collation, &character.to_string()) {
            digest = (digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    digest
}

/// Random strings of characters that collations treat in all their ways.
#[test]
fn keys_order_as_comparisons_do() {
    const CHARACTERS: &[&str] = &[
        "a",
        "A",
        "b",
        "B",
        "z",
        "Z",
        "á",
        "Á",
        "a\u{301}",
        "ä",
        "ß",
        "ss",
        "æ",
        "ø",
        "å",
        "ñ",
        "ch",
        "c",
        "h",
        "i",
        "ı",
        "İ",
        "0",
        "1",
        "9",
        "10",
        "٣",
        " ",
        "-",
        "_",
        ".",
        "'",
        "\u{200b}",
        "\0",
        "\u{fffe}",
        "$",
        "€",
        "я",
        "Я",
        "ё",
        "中",
        "一",
        "灣",
        "あ",
        "ア",
        "ー",
        "가",
        "각",
        "\u{1100}",
        "\u{1161}",
        "ก",
        "เ",
        "\u{e48}",
        "\u{345}",
        "\u{327}",
        "ﬁ",
        "😀",
        "\u{10ffff}",
        "\u{e000}",
    ];
    let mut all = Vec::new();
    for locale in [
        "en",
        "fr_CA",
        "da",
        "th",
        "zh",
        "ja",
        "ko",
        "cs",
        "vi",
        "lt",
        "en_US_POSIX",
    ] {
        for number in 1..=5 {
            for shape in 0..8 {
                let options = Options {
                    strength: Strength::from_number(number),
                    case_level: Some(shape & 1 != 0),
                    case_first: (shape & 2 != 0).then_some(CaseFirst::Upper),
                    numeric_ordering: Some(shape & 4 != 0),
                    alternate: (shape == 5).then_some(Alternate::Shifted),
                    backwards: (shape == 6).then_some(true),
                    ..of(locale)
                };
                all.extend(Collation::new(&options).ok());
            }
        }
    }
    assert!(all.len() > 300, "{}", all.len());
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    for _ in 0..20_000 {
        let collation = &all[random(all.len())];
        let mut word = || {
            (0..random(6))
                .map(|_| CHARACTERS[random(CHARACTERS.len())])
                .collect::<String>()
        };
        let (a, b) = (word(), word());
        assert_eq!(
            key(collation, &a).cmp(&key(collation, &b)),
            collation.compare(&a, &b),
            "{a:?} and {b:?}: {collation:?}"
        );
    }
}

#[test]
fn collations_are_shared_between_cores() {
    fn check<T: Send + Sync>() {}
    check::<Collation>();
}
