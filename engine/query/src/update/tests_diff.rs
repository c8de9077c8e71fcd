//! The log's form of an update turns the old document into the new one, whatever the update, and
//! names what it names.

use pinion_bson::{
    DocBuilder, RawArrayBuf, RawBson, RawBsonRef, RawDocument, RawDocumentBuf, rawdoc,
};

use super::{Update, UpdateContext, apply_diff, diff};
use crate::expression::Variables;
use crate::text::document_text;

fn context(position: Option<u32>) -> UpdateContext {
    UpdateContext {
        now_ms: 1000,
        timestamp: pinion_bson::Timestamp {
            time: 1,
            increment: 1,
        },
        insert: false,
        position,
    }
}

#[track_caller]
fn check_operators(old: RawDocumentBuf, update: RawDocumentBuf, expected: RawDocumentBuf) {
    let parsed = Update::parse(RawBsonRef::Document(&update)).expect("an update");
    let new = parsed.apply(&old, &context(None)).expect("applies");
    let new = new.expect("changes");
    let o = parsed.diff(&old, &new).expect("a diff");
    assert_eq!(
        o,
        rawdoc! { "$v": 2, "diff": expected },
        "{old:?} by {update:?}"
    );
    assert_eq!(apply_diff(&old, &o).expect("applies"), new);
    assert_eq!(apply_diff(&new, &o).expect("applies twice"), new);
    // As older programs have it.
    let nested = rawdoc! { "$v": 2, "diff": o };
    assert_eq!(apply_diff(&old, &nested).expect("applies"), new);
}

#[test]
fn what_operators_name_is_in_their_diff() {
    let check = check_operators;
    check(
        rawdoc! { "_id": 1, "a": 1 },
        rawdoc! { "$inc": { "a": 1 } },
        rawdoc! { "u": { "a": 2 } },
    );
    check(
        rawdoc! { "_id": 1, "a": { "b": 1 } },
        rawdoc! { "$set": { "a.b": 2, "a.c": 3 } },
        rawdoc! { "sa": { "u": { "b": 2 }, "i": { "c": 3 } } },
    );
    check(
        rawdoc! { "_id": 1, "a": { "b": 1, "c": 2 } },
        rawdoc! { "$set": { "a": { "b": 1, "c": 3 } } },
        rawdoc! { "u": { "a": { "b": 1, "c": 3 } } },
    );
    check(
        rawdoc! { "_id": 1 },
        rawdoc! { "$set": { "a.b.c": 1 } },
        rawdoc! { "i": { "a": { "b": { "c": 1 } } } },
    );
    check(
        rawdoc! { "_id": 1, "a": { "b": 1 }, "c": 2 },
        rawdoc! { "$unset": { "a.b": 1, "c": 1 } },
        rawdoc! { "d": { "c": false }, "sa": { "d": { "b": false } } },
    );
    check(
        rawdoc! { "_id": 1, "a": 5, "n": { "x": 1 } },
        rawdoc! { "$rename": { "a": "n.a" } },
        rawdoc! { "d": { "a": false }, "sn": { "i": { "a": 5 } } },
    );
}

#[test]
fn what_operators_do_to_arrays_is_in_their_diff() {
    let check = check_operators;
    let list = || rawdoc! { "_id": 1, "l": [1, 2, 3] };
    check(
        list(),
        rawdoc! { "$push": { "l": 4 } },
        rawdoc! { "sl": { "a": true, "u3": 4 } },
    );
    check(
        list(),
        rawdoc! { "$push": { "l": { "$each": [null, null] } } },
        rawdoc! { "sl": { "a": true, "u3": null, "u4": null } },
    );
    // What does more than append is logged as the whole array, though it may have come out as if it
    // had appended.
    check(
        list(),
        rawdoc! { "$push": { "l": { "$each": [4], "$sort": 1 } } },
        rawdoc! { "u": { "l": [1, 2, 3, 4] } },
    );
    check(
        list(),
        rawdoc! { "$push": { "l": { "$each": [4], "$position": 0 } } },
        rawdoc! { "u": { "l": [4, 1, 2, 3] } },
    );
    check(
        list(),
        rawdoc! { "$addToSet": { "l": 4 } },
        rawdoc! { "u": { "l": [1, 2, 3, 4] } },
    );
    check(
        list(),
        rawdoc! { "$pull": { "l": 2 } },
        rawdoc! { "u": { "l": [1, 3] } },
    );
    check(
        list(),
        rawdoc! { "$pop": { "l": 1 } },
        rawdoc! { "u": { "l": [1, 2] } },
    );
    check(
        list(),
        rawdoc! { "$unset": { "l.1": 1 } },
        rawdoc! { "sl": { "a": true, "u1": null } },
    );
    // The nulls in front of what is put behind the end are not named.
    check(
        list(),
        rawdoc! { "$set": { "l.5": 6 } },
        rawdoc! { "sl": { "a": true, "u5": 6 } },
    );
    check(
        list(),
        rawdoc! { "$set": { "l.5": 6, "l.3": null } },
        rawdoc! { "sl": { "a": true, "u3": null, "u5": 6 } },
    );
    check(
        rawdoc! { "_id": 1, "l": [{ "n": 1, "m": 1 }, { "n": 1 }] },
        rawdoc! { "$set": { "l.$[].n": 2 }, "$unset": { "l.$[].m": 1 } },
        rawdoc! { "sl": { "a": true, "s0": { "d": { "m": false }, "u": { "n": 2 } }, "s1": { "u": { "n": 2 } } } },
    );
    check(
        rawdoc! { "_id": 1, "l": [[1, 2], [3]] },
        rawdoc! { "$push": { "l.0": 5 }, "$set": { "l.1.0": 4 } },
        rawdoc! { "sl": { "a": true, "s0": { "a": true, "u2": 5 }, "s1": { "a": true, "u0": 4 } } },
    );
}

#[test]
fn fields_of_one_name_are_logged_whole() {
    let twice = || {
        let mut out = DocBuilder::new();
        out.append("_id", 1).append("a", 1).append("a", 2);
        out
    };
    let old = twice().finish();
    let update = |update: RawDocumentBuf| {
        let parsed = Update::parse(RawBsonRef::Document(&update)).expect("an update");
        let new = parsed.apply(&old, &context(None)).expect("applies");
        let new = new.expect("changes");
        let o = parsed.diff(&old, &new);
        if let Some(o) = &o {
            assert_eq!(apply_diff(&old, o).expect("applies"), new);
        }
        o
    };
    assert_eq!(update(rawdoc! { "$set": { "a": 5 } }), None);
    assert_eq!(update(rawdoc! { "$unset": { "a": 1 } }), None);
    let beside = update(rawdoc! { "$set": { "b": 5 } });
    assert_eq!(
        beside,
        Some(rawdoc! { "$v": 2, "diff": { "i": { "b": 5 } } })
    );
    let mut last = twice();
    last.append("a", 3);
    let last = last.finish();
    assert_eq!(diff(&old, &last), None);
    assert_eq!(diff(&last, &old), None);
}

#[test]
fn long_arrays_are_changed_at_their_end() {
    let len = crate::limits::MAX_ARRAY_PADDING + 10;
    let mut items = RawArrayBuf::new();
    for _ in 0..len {
        items.push(RawBson::Null);
    }
    let old = rawdoc! { "l": items };
    let changed = |name: String| {
        let mut out = DocBuilder::new();
        out.append("a", true).append(&name, 1);
        out.finish()
    };
    let o = rawdoc! { "$v": 2, "diff": { "sl": changed(format!("u{}", len - 1)) } };
    let new = apply_diff(&old, &o).expect("it is in the array");
    assert_eq!(new.as_bytes().len(), old.as_bytes().len() + 4);
    let beyond = rawdoc! { "$v": 2, "diff": { "sm": changed(format!("u{len}")) } };
    let error = apply_diff(&rawdoc! { "m": [] }, &beyond).expect_err("too far away");
    assert_eq!(error.code.0, 4770500);
}

/// Small numbers that depend on a seed alone.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) % n
    }

    fn one<'a, T: ?Sized>(&mut self, of: &[&'a T]) -> &'a T {
        of[self.below(of.len() as u64) as usize]
    }

    fn name(&mut self) -> &'static str {
        self.one(&["a", "b", "c", "0", "1", "u", "d", "i", "s", "sa", "l", "$v"])
    }

    fn value(&mut self, depth: u64) -> RawBson {
        match self.below(if depth == 0 { 5 } else { 9 }) {
            0 => RawBson::Null,
            1 => RawBson::Int32(self.below(4) as i32),
            2 => RawBson::Double(self.below(4) as f64),
            3 => RawBson::String("x".repeat(self.below(30) as usize)),
            4 => RawBson::Boolean(self.below(2) == 0),
            5 | 6 => RawBson::Document(self.document(depth - 1)),
            _ => {
                let mut items = RawArrayBuf::new();
                for _ in 0..self.below(5) {
                    items.push(self.value(depth - 1));
                }
                RawBson::Array(items)
            }
        }
    }

    fn document(&mut self, depth: u64) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        let mut names: Vec<&str> = Vec::new();
        for _ in 0..self.below(6) {
            let name = self.name();
            // Now and then a name comes twice.
            if !names.contains(&name) || self.below(30) == 0 {
                names.push(name);
                out.append(name, self.value(depth).as_raw_bson_ref());
            }
        }
        out.finish()
    }

    fn path(&mut self) -> String {
        let mut path = self
            .one(&["a", "b", "c", "l", "s", "sa", "d", "0"])
            .to_owned();
        for _ in 0..self.below(4) {
            path.push('.');
            path.push_str(self.one(&["a", "b", "l", "0", "1", "2", "4", "u", "$[]", "$[x]", "$"]));
        }
        path
    }

    fn operand(&mut self, operator: &str) -> RawBson {
        match operator {
            "$inc" | "$mul" => RawBson::Int32(self.below(3) as i32),
            "$bit" => RawBson::Document(rawdoc! { "or": self.below(4) as i32 }),
            "$currentDate" => RawBson::Boolean(true),
            "$rename" => RawBson::String(self.one(&["a", "b.a", "c.b", "q"]).to_owned()),
            "$pop" => RawBson::Int32(if self.below(2) == 0 { 1 } else { -1 }),
            "$pullAll" => {
                let mut items = RawArrayBuf::new();
                items.push(self.value(0));
                RawBson::Array(items)
            }
            "$push" if self.below(2) == 0 => {
                let mut each = RawArrayBuf::new();
                for _ in 0..self.below(3) {
                    each.push(self.value(1));
                }
                let mut out = DocBuilder::new();
                out.append_raw("$each", RawBson::Array(each).as_raw_bson_ref());
                for modifier in ["$slice", "$position", "$sort"] {
                    if self.below(3) == 0 {
                        out.append(modifier, if self.below(2) == 0 { 1 } else { -1 });
                    }
                }
                RawBson::Document(out.finish())
            }
            _ => self.value(2),
        }
    }

    /// An update of one or several operators, on one or several paths each.
    fn update(&mut self) -> RawDocumentBuf {
        const OPERATORS: [&str; 14] = [
            "$set",
            "$unset",
            "$inc",
            "$mul",
            "$min",
            "$max",
            "$rename",
            "$push",
            "$addToSet",
            "$pop",
            "$pull",
            "$pullAll",
            "$bit",
            "$currentDate",
        ];
        let mut out = DocBuilder::new();
        let first = self.below(OPERATORS.len() as u64) as usize;
        for nth in 0..=self.below(3) as usize {
            let operator = OPERATORS[(first + nth * 5) % OPERATORS.len()];
            let mut fields = DocBuilder::new();
            for _ in 0..=self.below(2) {
                let (path, operand) = (self.path(), self.operand(operator));
                fields.append_raw(&path, operand.as_raw_bson_ref());
            }
            out.append(operator, &*fields.finish());
        }
        out.finish()
    }
}

/// A document of random fields under an `_id`.
fn document(dice: &mut Dice) -> RawDocumentBuf {
    let mut out = DocBuilder::new();
    out.append("_id", 1);
    out.append_all(&dice.document(3));
    out.finish()
}

/// A document with a long field in it, beside which any difference is small.
fn long_document(dice: &mut Dice) -> RawDocumentBuf {
    let mut out = DocBuilder::new();
    let (front, back) = (dice.document(3), dice.document(3));
    out.append_all(&front)
        .append("long", "x".repeat(4000).as_str());
    for (name, value) in pinion_bson::elements(&back) {
        if pinion_bson::get(&front, name).is_none() || dice.below(20) == 0 {
            out.append_raw(name, value);
        }
    }
    out.finish()
}

/// Whether a diff leads into a field.
fn is_nested(o: &RawDocument) -> bool {
    let sections = o.get_document("diff").expect("a diff");
    pinion_bson::elements(sections).any(|(name, _)| name.starts_with('s'))
}

#[track_caller]
fn check_diff(old: &RawDocument, new: &RawDocument, o: Option<&RawDocument>, what: &str) -> bool {
    let Some(o) = o else {
        return false;
    };
    assert_eq!(
        &*apply_diff(old, o).expect("applies"),
        new,
        "{old:?} {what}: {o:?}"
    );
    true
}

#[test]
fn any_two_documents_have_a_difference() {
    let mut found = 0;
    for seed in 0..20_000 {
        let mut dice = Dice(seed);
        let (old, new) = (long_document(&mut dice), long_document(&mut dice));
        found += u32::from(check_diff(&old, &new, diff(&old, &new).as_deref(), "to"));
    }
    assert!(found > 1000, "{found} differences");
}

#[test]
fn nothing_that_an_update_changes_is_lost() {
    let (mut changed, mut found, mut nested) = (0, 0, 0);
    let mut filters = RawArrayBuf::new();
    filters.push(RawBson::Document(rawdoc! { "x": { "$ne": 2 } }));
    for seed in 0..60_000 {
        let mut dice = Dice(seed);
        let old = document(&mut dice);
        let update = dice.update();
        let needed = |update: &RawDocument| {
            let uses = document_text(update).contains("$[x]");
            uses.then_some(&*filters)
        };
        let parsed = RawBsonRef::Document(&update);
        // Many contradict themselves, or do not fit the document.
        let Ok(parsed) = Update::parse_with(parsed, needed(&update), &Variables::default()) else {
            continue;
        };
        let context = context(Some(dice.below(3) as u32));
        let Ok(Some(new)) = parsed.apply(&old, &context) else {
            continue;
        };
        changed += 1;
        let what = format!("by {update:?}");
        let o = parsed.diff(&old, &new);
        found += u32::from(check_diff(&old, &new, o.as_deref(), &what));
        nested += u32::from(o.as_deref().is_some_and(is_nested));
        // Of another update the paths lead elsewhere: all that changed is there nevertheless.
        let other = dice.update();
        let parsed = RawBsonRef::Document(&other);
        if let Ok(other) = Update::parse_with(parsed, needed(&other), &Variables::default()) {
            let another = document(&mut dice);
            let o = other.diff(&old, &another);
            check_diff(&old, &another, o.as_deref(), "by paths of something else");
        }
    }
    assert!(changed > 5000, "{changed} changed");
    assert!(found * 10 > changed * 9, "{found} found of {changed}");
    assert!(nested > 500, "{nested} nested");
}
