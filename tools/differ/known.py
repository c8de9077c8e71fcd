"""Differences that are meant, each with its reason. Every entry is a fact about MongoDB 7.0 or
about Pinion's design."""

import decimal
import math
import re
from collections import Counter

from bson import MaxKey, MinKey
from bson.decimal128 import Decimal128

import explained
from codec import Symbol, Undefined
from known_fields import (bson_name, is_name, name_of, named_field, names_field, null_field, read_by_idl, values_at, values_of)
from made import without_made

# Codes whose message MongoDB has not changed between 4.4 and 7.0.
SAME_MESSAGE = {11000}
# How many kinds of difference are kept for each rule.
EXAMPLES = 200
# Codes that had no name in 4.4.
NAMED_SINCE = {40414: "IDLFailedToParse", 40415: "IDLUnknownField"}
READS = {"find", "count", "distinct", "aggregate", "listIndexes", "listCollections", "explain", "dbStats", "collStats", "validate"}
# Commands that in 4.4 passed over fields they did not know, or gave them codes of their own.
UNKNOWN_BY_HAND = {
    "find": {9}, "aggregate": {2, 9}, "findAndModify": {51177}, "explain": {0, 9}, "getCmdLineOpts": {0}, "whatsmyuri": {0},
    "hostInfo": {0}, "getParameter": {0}, "connectionStatus": {0}, "getLog": {0}, "buildInfo": {0}, "isMaster": {0}, "ping": {0}, "listCommands": {0},
    "currentOp": {0}, "killOp": {0}, "fsync": {0}, "shutdown": {0}, "collStats": {0}, "dbStats": {0}, "drop": {0, 26},
    "dropDatabase": {0}, "dropIndexes": {0, 26, 27}, "listIndexes": {0, 2, 26}, "listCollections": {0, 2}, "listDatabases": {0}, "renameCollection": {0, 26},
    "killCursors": {0, 9}, "getMore": {9}, "endSessions": {0}, "killSessions": {0}, "refreshSessions": {0}, "startSession": {0}, "serverStatus": {0}, "dataSize": {0},
    "createIndexes": {0, 2, 9},
}
# Commands whose first value says nothing.
FIRST_IS_NO_NAME = set("isMaster ismaster hello ping buildInfo buildinfo hostInfo connectionStatus whatsmyuri getParameter setParameter getCmdLineOpts getLog "
                       "listCommands serverStatus listDatabases listCollections currentOp killOp fsync startSession dbStats dropDatabase shutdown".split())
# What Pinion refuses with NotImplemented (238) or NotSupported (115), as its message names it.
NOT_THERE_YET = set("""
    create.capped create.size create.max create.autoIndexId create.viewOn create.pipeline create.validator create.validationLevel create.validationAction
    create.storageEngine create.indexOptionDefaults create.collation
    find.collation aggregate.collation count.collation distinct.collation findAndModify.collation
    update.updates.collation delete.deletes.collation
    expireAfterSeconds partialFilterExpression collation hidden storageEngine hashed
""".split())
# What 4.4 answers without a code, and the code that 7.0 has for it.
WITHOUT_CODE = {
    "no option found to get": 72, "no option found to set": 72, "attempted to set unrecognized parameter": 72, "no RamLog named": 96, "scale has to be": 2,
}


def message_counts(error):
    """Whether the text of this error must be equal too."""
    return error.get("code") in SAME_MESSAGE


def code_name(error):
    """The name of an error's code as 7.0 has it."""
    return NAMED_SINCE.get(error.get("code"), error.get("codeName"))


def code(reply):
    """The code of a refused command, 0 of one that was carried out."""
    return 0 if reply.get("ok") else reply.get("code", -1)


def unknown_by_hand(command, a, b):
    return code(a) == 40415 and code(b) in UNKNOWN_BY_HAND.get(name_of(command), ()) and names_own_field(command, a)


def names_own_field(command, reply):
    """Whether an error names a field that the command has."""
    return bool(values_of(command, named_field(reply)))


def not_there_yet(command, a, b):
    errors = [a] if code(a) else a.get("writeErrors", [])
    return any(error.get("code") in (115, 238) and names_missing_feature(error["errmsg"]) for error in errors)


def names_missing_feature(text):
    named = re.search(r"(?:BSON field|index option|index type|aggregation stage|accumulator) '?([\w$.]+)", text)
    return named is not None and (re.sub(r"\.\d+", "", named.group(1)) in NOT_THERE_YET or "aggregation stage" in text)


def without_code(command, a, b):
    return not b.get("ok") and "code" not in b and any(b["errmsg"].startswith(text) and code(a) == expected for text, expected in WITHOUT_CODE.items())


def error_codes(reply):
    return [(error["index"], error["code"]) for error in reply.get("writeErrors", [])]


def contains(value, wanted):
    """Whether anything in a command satisfies `wanted(key, value)`."""
    if isinstance(value, dict):
        return any(wanted(key, inner) or contains(inner, wanted) for key, inner in value.items())
    if isinstance(value, list):
        return any(contains(inner, wanted) for inner in value)
    return False


def key_is(*names):
    return lambda key, _: key in names


RANGES = ("$gt", "$gte", "$lt", "$lte")


def names_null(_, value):
    """Whether this part of a filter is null, or a list with it."""
    return value is None or isinstance(value, list) and None in value


FILTERS = ("filter", "query", "q", "$match", "$pull", "arrayFilters", "$lookup", "$graphLookup")


def filters_null(key, value):
    """Whether this part of a command is a filter with null in it, or a join, in which a missing
    value is null."""
    return key in FILTERS and (key.endswith("ookup") or contains(value, names_null))


def holds_undefined(value):
    """Whether undefined is anywhere in a value."""
    if isinstance(value, dict):
        return any(holds_undefined(inner) for inner in value.values())
    return any(holds_undefined(inner) for inner in value) if isinstance(value, list) else isinstance(value, Undefined)


RARE_TYPES = {"regex": 11, "dbPointer": 12, "javascript": 13, "javascriptWithScope": 15}


def is_rare_range(key, value):
    """Whether this part of a filter is a range of a type that Pinion has no bounds for."""
    if key == "$type":
        return any(kind in value if isinstance(value, list) else kind == value for kind in (*RARE_TYPES, *RARE_TYPES.values()))
    return key in (*RANGES, "$ne", "$not", "$nin") and (bson_name(value) in RARE_TYPES or contains(value, is_rare_range)
                                                        or isinstance(value, list) and any(bson_name(item) in RARE_TYPES for item in value))


def paths_where(value, wanted):
    """The fields in a filter, at any depth, below which something satisfies
    `wanted(key, value)`."""
    found = set()
    if isinstance(value, dict):
        for key, inner in value.items():
            if not key.startswith("$") and isinstance(inner, dict) and contains(inner, wanted):
                found.add(key)
            found |= paths_where(inner, wanted)
    elif isinstance(value, list):
        for inner in value:
            found |= paths_where(inner, wanted)
    return found


def holds_number(value, wanted):
    """Whether a number anywhere in a value satisfies `wanted`."""
    if isinstance(value, dict):
        return any(holds_number(inner, wanted) for inner in value.values())
    if isinstance(value, list):
        return any(holds_number(inner, wanted) for inner in value)
    if bson_name(value) == "decimal":
        return wanted(float(str(value)))
    return bson_name(value) in ("int", "long", "double") and wanted(float(value))


def all_errors(a, b):
    """The codes of both replies' errors in pairs, where they have errors at the same places."""
    ours, theirs = dict(error_codes(a)), dict(error_codes(b))
    if not a.get("ok") and not b.get("ok"):
        return [(code(a), code(b))]
    return [(ours.get(i, 0), theirs.get(i, 0)) for i in sorted({*ours, *theirs})]


def duplicate_patterns(reply):
    return [error.get("keyPattern") for error in [reply, *reply.get("writeErrors", [])]]


def id_array_code(command, a, b):
    """A list of write errors that are equal when 53 and 2 count as the same."""
    ours, theirs = error_codes(a), error_codes(b)
    return ours != theirs and [(i, 2 if c == 53 else c) for i, c in ours] == theirs


def calls_multikey_early(command, a, b, before):
    """Whether only Pinion calls an index multikey, after writes some of which failed."""
    return name_of(command) == "explain" and code(a) == code(b) == 0 and before.failed and explained.multikey_too_soon(a, b)


def distinct_by_keys(command, a, b, before):
    """Whether only null, undefined and what nested arrays hold differ, where an index over the key
    is."""
    if name_of(command) != "distinct" or code(a) or code(b):
        return False
    over_key = any(command["key"] in spec["key"] for spec in before.indexes())
    return over_key and present(a["values"]) == present(b["values"])


def present(values):
    """The values without null and undefined, and the items of arrays, as a sorted text each.
    Numbers that are equal are one value, and the order of the scan decides which of them stands for
    all."""
    out = set()
    for value in values:
        if isinstance(value, list):
            out |= set(present(value))
        elif value is not None and not isinstance(value, Undefined):
            out.add(repr(exact_number(without_made(value))))
    return sorted(out)


def exact_number(value):
    """A finite number whatever its type and sign of zero; any other value as it is."""
    if isinstance(value, bool):
        return value
    exact = value.to_decimal() if isinstance(value, Decimal128) else value
    finite = exact.is_finite() if isinstance(exact, decimal.Decimal) else isinstance(exact, (int, float)) and math.isfinite(exact)
    # No number has more digits than the least double.
    return decimal.Context(prec=1100).create_decimal(exact).normalize(decimal.Context(prec=1100)) + 0 if finite else value


def matched(reply):
    """How many documents a reply reports, -1 for an error."""
    reported = reply.get("lastErrorObject", reply)
    return -1 if code(reply) else reported["n"] if "n" in reported else len(reply.get("cursor", {}).get("documents", []))


def infinite(command, field):
    """Whether a field holds what no 64-bit integer is: 4.4 read it as the least one, 7.0 clamps
    it."""
    return any(holds_number(value, lambda n: not abs(n) < 2.0**63) for value in values_of(command, field))


def specs(command):
    found = command.get("indexes")
    return [spec for spec in found if isinstance(spec, dict)] if isinstance(found, list) else []


def both_equal(specifications):
    """Whether two of some index specifications have the same key."""
    keys = [repr(spec.get("key")) for spec in specifications]
    return len(set(keys)) < len(keys)


def write_concern_unread(command, a, b):
    """4.4 refused a write concern on a read before it looked at it; 7.0 looks first."""
    return "writeConcern" in command and code(b) == 72 and "does not support writeConcern" in b["errmsg"] and (
        a.get("errmsg", "").startswith(("w has to be", "wtimeout must be", "tagged write concern", "w: 0")) or "writeConcern" in named_field(a).split("."))


def unknown_first(command, a, b):
    """One server reports an unknown field, the other of one of a wrong type or a missing one."""
    return (code(a) == 40415) != (code(b) == 40415) and {code(a), code(b)} < {9, 14, 40414, 40415} and names_own_field(command, a if code(a) == 40415 else b)


def reason(command, a, b, before):
    """Why this difference between a (Pinion) and b (MongoDB 4.4) is meant, or None."""
    for why, applies in RULES:
        if applies(command, a, b):
            return why
    for why, applies in RULES_OF_WHAT_WAS:
        if applies(command, a, b, before):
            return why
    return None


class Met:
    """How often each rule explained a difference, with examples that differ in what they show."""

    def __init__(self):
        self.counts = Counter()
        self.shown = {}

    def met(self, why, command, a, b):
        self.counts[why] += 1
        kept = self.shown.setdefault(why, {})
        kind = (name_of(command), code(a), code(b), str(all_errors(a, b)), named_field(a))
        if len(kept) < EXAMPLES:
            kept.setdefault(kind, (command, a, b))

    def report(self):
        return [f"meant: {count:6d}  {why}" for why, count in sorted(self.counts.items())]

    def examples(self):
        for why, kept in sorted(self.shown.items()):
            yield f"=== {self.counts[why]} {why}"
            for command, a, b in kept.values():
                yield f"{command!r}\n    Pinion:  {a!r}\n    MongoDB: {b!r}"


def diverged(command, a, b):
    """Whether the data may differ from here on, because one server carried out what the other
    refused."""
    if name_of(command) in READS:
        return False
    if name_of(command) in ("getMore", "killCursors"):
        # An error may have taken the cursor with it.
        return True
    return not (code(a) and code(b))


RULES = [
    ("since 8.2 the reply of `dropDatabase` does not name the database",
     lambda c, a, b: name_of(c) == "dropDatabase" and code(a) == code(b) == 0 and "dropped" not in a and "dropped" in b),
    ("7.0 reads this field by IDL: a wrong type is TypeMismatch, a missing field 40414; 4.4 read it by hand", read_by_idl),
    ("7.0 takes null for absent in this field; 4.4 refused it",
     lambda c, a, b: code(b) in (2, 9, 14, 72, 31160, 31174, 31175, 10065, 40414) and code(a) not in (14, 40414, 40415) and null_field(c, b) is not None),
    ("7.0 refuses fields it does not know with 40415; 4.4 did not, or with a code of the command's own", unknown_by_hand),
    ("Pinion refuses by name what it does not have yet", not_there_yet),
    ("errors without a code in 4.4 have one in 7.0", without_code),
    ("`hello` came after this build of 4.4", lambda c, a, b: name_of(c) == "hello" and code(b) == 59),
    ("an `_id` that is an array or regex is InvalidIdField (53) in 7.0, BadValue in 4.4", id_array_code),
    ("a collection name of a wrong type is InvalidNamespace (73) in 7.0", lambda c, a, b: code(a) == 73 and code(b) in (2, 9, 14)
     and "has invalid type" in a["errmsg"] and not is_name(c[name_of(c)])),
    ("`create` of a collection that is there already succeeds in 7.0 when the options are the same",
     lambda c, a, b: name_of(c) == "create" and code(a) == 0 and code(b) == 48 and not set(c) - {"create", "writeConcern", "comment"}),
    ("`drop` of a collection that is not there succeeds in 7.0", lambda c, a, b: name_of(c) == "drop" and code(a) == 0 and code(b) == 26),
    ("`killCursors` without cursors succeeds in 7.0", lambda c, a, b: name_of(c) == "killCursors" and code(a) == 0 and code(b) == 2 and c.get("cursors") == []),
    ("`getMore` with a batch size of 0 has no limit in 7.0", lambda c, a, b: name_of(c) == "getMore" and code(b) == 2 and c.get("batchSize") == 0
     and "must be positive" in b["errmsg"]),
    ("`getMore` clamps an infinite batch size in 7.0; 4.4 made it negative", lambda c, a, b: name_of(c) == "getMore" and infinite(c, "getMore.batchSize")
     and "must be positive, but received: -9223372036854775808" in b.get("errmsg", "")),
    ("`getMore` of the cursor 0 finds none in 7.0; 4.4 refused the number", lambda c, a, b: name_of(c) == "getMore" and code(a) == 43 and "must be non-zero" in b.get("errmsg", "")),
    ("`find` clamps infinite and too great numbers to 64 bits in 7.0; 4.4 made them negative", lambda c, a, b: "non-negative, but received: -9223372036854775808"
     in b.get("errmsg", "") and any(infinite(c, field) and names_field(field, b) for field in ("find.limit", "find.skip", "find.batchSize"))),
    ("the `cursor` of a command clamps an infinite batch size in 7.0; 4.4 made it negative",
     lambda c, a, b: "cursor.batchSize must not be negative" in b.get("errmsg", "") and infinite(c, f"{name_of(c)}.cursor.batchSize") and code(a) == 0),
    ("`count` clamps its skip to a whole number of 64 bits in 7.0; 4.4 wanted one", lambda c, a, b: name_of(c) == "count" and code(b) == 9 and "skip: " in b["errmsg"]
     and (code(a) == 0 or "'skip' value must be >= 0" in a["errmsg"])),
    ("`$mod` takes 64-bit divisors in 7.0; 4.4 cut them to 32 bits",
     lambda c, a, b: contains(c, lambda key, value: key == "$mod" and holds_number(value, lambda n: abs(n) >= 2.0**31)) and "divisor cannot be 0" in repr(b)),
    ("`$mod` passes over numbers beyond 64 bits in 7.0; 4.4 cut them down", lambda c, a, b: contains(c, key_is("$mod")) and 0 <= matched(a) < matched(b)),
    ("7.0 refuses regex options it does not know (51108)", lambda c, a, b: contains(c, lambda key, value: key == "$options" and value not in ("", "i", "m", "s", "x", "im"))
     and "51108" in repr(a)),
    ("4.4 took the first value of every command for a name", lambda c, a, b: code(b) == 73 and "embedded null" in b["errmsg"] and name_of(c) in FIRST_IS_NO_NAME),
    ("`dropDatabase` of anything but 1 is 5255100 in 7.0", lambda c, a, b: name_of(c) == "dropDatabase" and code(a) in (5255100, 14) and code(b) == 20),
    ("a symbol was as good as a string for a collection's name in 4.4", lambda c, a, b: isinstance(c[name_of(c)], Symbol) and code(a) == 73),
    ("readConcern is read by IDL in 7.0: an unknown field is 40415", lambda c, a, b: code(a) == 40415 and code(b) == 72 and named_field(a).startswith("readConcern.")),
    ("writeConcern is read by IDL in 7.0: an unknown field is 40415", lambda c, a, b: code(a) == 40415 and code(b) in (9, 72) and named_field(a).startswith("writeConcern.")),
    ("a write concern mode without a name is refused in 7.0", lambda c, a, b: values_at(c, "writeConcern.w")[:1] in (["", ], [None], [Undefined()]) and code(a) == 2),
    ("a write concern's `w` that is NaN is refused in 8.0; 4.4 took it for 0", lambda c, a, b: code(a) == 9 and "w has to be a non-negative number" in a["errmsg"]
     and any(value != value for value in values_at(c, "writeConcern.w"))),
    ("wtimeout must fit 32 bits in 7.0", lambda c, a, b: "wtimeout" in repr(a) and code(a) == 9 and code(b) == 0),
    ("a write concern is read before all else in 7.0; 4.4 refused it unread on a command that only reads", write_concern_unread),
    ("a filter that nothing can match is planned as EOF in 7.0", lambda c, a, b: name_of(c) == "explain" and code(a) == code(b) == 0
     and "('$alwaysFalse', 1)" in repr(explained.planner_of(b)) and explained.is_empty(a)),
    ("null is not undefined since 8.0: bounds of null do not hold it, those of its negation do",
     lambda c, a, b: name_of(c) == "explain" and code(a) == code(b) == 0 and contains(c, names_null) and explained.differ_in_bounds_alone(a, b, explained.without_undefined)),
    ("bounds of what is less or greater than an array begin with its first item in Pinion, by which arrays are stored",
     lambda c, a, b: name_of(c) == "explain" and code(a) == code(b) == 0
     and explained.differ_in_bounds_alone(a, b, explained.outside(paths_where(c, lambda key, value: key in RANGES and isinstance(value, list))))),
    ("ranges of code, regexes and DBPointers are whole indexes in Pinion",
     lambda c, a, b: name_of(c) == "explain" and code(a) == code(b) == 0 and explained.differ_in_bounds_alone(a, b, explained.outside(paths_where(c, is_rare_range)))),
    ("an equality on `_id` is all that Pinion's bounds hold; MongoDB intersects it with what else is said of `_id`",
     lambda c, a, b: name_of(c) == "explain" and code(a) == code(b) == 0 and explained.reads_point_or_nothing(a, b)),
    ("an explained read that fails fails the command in Pinion; MongoDB tells inside the answer why a sort failed",
     lambda c, a, b: name_of(c) == "explain" and code(b) == 0 and code(a) == 2 and explained.statistics_of(b).get("errorCode") == 2
     and "cannot sort with keys that are parallel arrays" in a["errmsg"]),
    ("an empty write concern is none in 8.0; 4.4 refused it", lambda c, a, b: c.get("writeConcern") == {} and code(a) == 0 and "write concern object cannot be empty" in b.get("errmsg", "")),
    ("an operand of `$setEquals` that is no array is 5887502 in 8.2", lambda c, a, b: code(a) == 5887502 and code(b) == 17044),
    ("an unknown verbosity is BadValue in 7.0", lambda c, a, b: name_of(c) == "explain" and code(a) == 2 and code(b) == 9 and "verbosity" in a["errmsg"]),
    ("two equal indexes in one command are IndexAlreadyExists in 7.0",
     lambda c, a, b: name_of(c) == "createIndexes" and code(a) == 68 and code(b) == 96 and both_equal(specs(c))),
    ("`unique` and `sparse` are part of what an index is since 5.0: another one of the same name is 86, not 85",
     lambda c, a, b: name_of(c) == "createIndexes" and code(a) == 86 and code(b) == 85 and "same name but different options" in b["errmsg"]),
    ("an index option that is no bool is refused in 7.0", lambda c, a, b: name_of(c) == "createIndexes" and code(a) == 14 and code(b) != 14
     and "not convertible to bool" in a["errmsg"]),
    ("an option that is false is as if it were not there in Pinion; 4.4 took it for another index",
     lambda c, a, b: name_of(c) == "createIndexes" and code(a) in (0, 68, 11000) and code(b) == 85 and ": false" in b["errmsg"]),
    ("an option that is 1 is as true in Pinion; 4.4 took it for another index",
     lambda c, a, b: name_of(c) == "createIndexes" and code(a) in (0, 68) and code(b) == 85 and re.search("(sparse|unique): 1[,. ]", b["errmsg"])),
    ("the `w` of a write concern may be an object of tags since 5.0", lambda c, a, b: code(a) == 0 and code(b) == 9 and "w has to be a number or a string" in b["errmsg"]
     and any(isinstance(value, dict) for value in values_at(c, "writeConcern.w"))),
    ("4.4 looked at the directions of a sort before the projection",
     lambda c, a, b: name_of(c) == "find" and "projection" in c and code(b) == 15975 and code(a) not in (0, 15975)),
    ("4.4 fails on negated comparisons with arrays where an index is", lambda c, a, b: "Indexed negation of array inequality" in repr(b)),
    ("an expression of constants is looked at when a projection is read; 4.4 did so when the first document came",
     lambda c, a, b: code(a) == 28724 and (code(b) or not matched(b)) and name_of(c) in ("find", "findAndModify")),
    ("a scale may have 64 bits in 7.0", lambda c, a, b: name_of(c) in ("collStats", "dbStats") and holds_number(c.get("scale"), lambda n: not abs(n) < 2.0**31)
     and code(a) == 0 and "code" not in b),
    ("`autoIndexId: null` is as if it were not there in 7.0", lambda c, a, b: name_of(c) == "create" and "autoIndexId" in c and code(b) == 50001),
    ("`let` came with 5.0", lambda c, a, b: "let" in c and code(b) in (9, 40415, 51177) and re.search(r"\blet\b", b["errmsg"]) is not None),
    ("of a mistake in a statement and one beside it the order of the fields decides in MongoDB; Pinion tells of the latter first",
     lambda c, a, b: name_of(c) in ("update", "delete") and {code(a), code(b)} <= {9, 14, 40414, 40415} and code(a) != code(b) and named_field(a).split(".")[-1] in set(c) - {"updates", "deletes"}),
    ("of an unknown field and another mistake in one command the order of the fields decides in MongoDB; Pinion tells of the unknown field last", unknown_first),
    ("a rename to the same name is IllegalOperation in 7.0",
     lambda c, a, b: name_of(c) == "renameCollection" and code(a) == 20 and code(b) in (26, 48) and c["renameCollection"] == c.get("to")),
    ("`renameCollection` may name the target by its UUID in 7.0", lambda c, a, b: name_of(c) == "renameCollection" and code(a) == 26 and code(b) == 14
     and bson_name(c.get("dropTarget")) == "binData"),
    ("a `dropTarget` of null is refused since it may be a UUID", lambda c, a, b: name_of(c) == "renameCollection" and code(a) == 14 and code(b) != 14
     and c.get("dropTarget", 0) is None),
    ("a namespace that cannot be: InvalidNamespace in 7.0, IllegalOperation in 4.4",
     lambda c, a, b: name_of(c) == "renameCollection" and code(a) == 73 and code(b) == 20),
    ("a comment may have any type since 4.4's release", lambda c, a, b: code(b) == 14 and ".comment'" in b["errmsg"] and "comment" in c and code(a) != 14),
    ("`commitQuorum` is read with the command in 7.0: what it cannot be is FailedToParse, on a standalone too",
     lambda c, a, b: name_of(c) == "createIndexes" and code(a) == 9 and code(b) == 2 and "Standalones can't specify commitQuorum" in b["errmsg"]
     and a["errmsg"].startswith("commitQuorum has to be")),
    ("maxTimeMS of a wrong kind is TypeMismatch or FailedToParse in 7.0, BadValue in 4.4",
     lambda c, a, b: code(a) in (9, 14) and code(b) == 2 and "maxTimeMS" in b["errmsg"] and "maxTimeMS" in a["errmsg"]),
    ("7.0 names unknown values of readConcern.level BadValue, 4.4 FailedToParse",
     lambda c, a, b: code(a) == 2 and code(b) == 9 and "readConcern.level" in a["errmsg"]),
    ("`aggregate` of what is neither a name nor 1 has other codes in 7.0",
     lambda c, a, b: name_of(c) == "aggregate" and not is_name(c["aggregate"]) and code(a) in (2, 9, 73) and code(b) in (9, 14, 73)),
    ("`connectionStatus` tells the server's uuid since 8.0", lambda c, a, b: name_of(c) == "connectionStatus" and code(a) == code(b) == 0
     and {key: value for key, value in a.items() if key != "uuid"} == b),
    ("a collation is read by IDL in 7.0, before the statements: an unknown field is 40415, a missing locale 40414",
     lambda c, a, b: code(a) in (40414, 40415) and "collation." in named_field(a) and {2, 4} & {code(b), *(error for _, error in error_codes(b))}),
    ("a pipeline without what it is a view on is refused in 7.0, an empty one too", lambda c, a, b: name_of(c) == "create" and code(a) == 72 and code(b) == 0
     and c.get("pipeline") == [] and "requires 'viewOn'" in a["errmsg"]),
    ("an index option that is no object is TypeMismatch in 7.0",
     lambda c, a, b: name_of(c) == "createIndexes" and code(a) == 14 and code(b) == 67 and "options must be a document" in b["errmsg"]),
    ("an `expireAfterSeconds` that is NaN is refused in 7.0", lambda c, a, b: name_of(c) == "createIndexes" and code(a) == 67 and code(b) == 0
     and any(spec.get("expireAfterSeconds") != spec.get("expireAfterSeconds") for spec in specs(c))),
    ("an `expireAfterSeconds` may have 32 bits in 7.0; in 4.4 it did not go back before 1970", lambda c, a, b: name_of(c) == "createIndexes" and code(a) == 0
     and code(b) == 67 and "acceptable range, try a lower number" in b["errmsg"] and all(spec.get("expireAfterSeconds", 0) < 1 << 31 for spec in specs(c))),
    ("a `size` or `max` that is NaN is zero in 7.0, and so none", lambda c, a, b: name_of(c) == "create" and code(a) == 0 and code(b) == 72
     and any(c.get(name) != c.get(name) for name in ("size", "max"))),
    ("`create` reads its enumerations by IDL in 7.0; 4.4 took an empty text for none", lambda c, a, b: name_of(c) == "create" and code(a) == 2 and code(b) == 0
     and "Enumeration value ''" in a["errmsg"]),
    ("`$limit` and `$skip` take whole numbers only in 7.0, with the codes 5107201 and 5107200; 4.4 cut off fractions",
     lambda c, a, b: code(a) in (5107200, 5107201) and code(b) in (0, 15956, 15957, 15958, 15972)),
    ("a field name may begin with a dollar sign since 5.0, so 4.4 refused what 7.0 goes on with",
     lambda c, a, b: "prefixed field" in repr(b) and "is not valid for storage" in repr(b)),
    ("`$pull` takes a condition that begins with `$eq` in 8.0; 4.4 took it for a field",
     lambda c, a, b: contains(c, lambda key, value: key == "$pull" and contains(value, key_is("$eq"))) and "unknown top level operator: $eq" in repr(b)),
    ("a parameter's value of a wrong type is refused in 7.0", lambda c, a, b: name_of(c) == "setParameter" and code(a) == 2 and code(b) == 0),
    ("which of several duplicates an index build meets first is a matter of natural order",
     lambda c, a, b: name_of(c) == "createIndexes" and code(a) == code(b) == 11000 and a.get("keyPattern") == b.get("keyPattern")),
]
# Those that ask what was before: `before.indexes()` lists the indexes of the collection,
# `before.failed` has the failed writes, `before.commands` are those that were sent.
RULES_OF_WHAT_WAS = [
    ("`$mod` passes over numbers beyond 64 bits in 7.0; 4.4 cut them down, and what it chose so it changed or gave",
     lambda c, a, b, before: contains(c, key_is("$mod")) and holds_number([c, *before.commands], lambda n: not abs(n) < 2.0**63)),
    ("a database is gone in Pinion with its last collection; MongoDB knows it for as long as it has it open",
     lambda c, a, b, before: any(name_of(sent) in ("drop", "renameCollection") for sent in before.commands)
     and name_of(c) == "explain" and code(a) == 26 and "does not exist" in a["errmsg"] and code(b) == 0),
    ("4.4 tells of a duplicate in a collection that was renamed under its old name",
     lambda c, a, b, before: any(name_of(sent) == "renameCollection" for sent in before.commands) and "E11000" in repr(b)
     and all_errors(a, b) and all(x == y for x, y in all_errors(a, b)) and duplicate_patterns(a) == duplicate_patterns(b)),
    ("4.4 finds no value at a place in an array where it reads an index over it", lambda c, a, b, before: name_of(c) == "distinct" and code(a) == code(b) == 0
     and re.search(r"\.\d", c["key"]) and any(c["key"] in spec["key"] for spec in before.indexes()) and set(present(b["values"])) < set(present(a["values"]))),
    ("a decimal beyond 64 bits has no bits to test; 4.4 cut it down",
     lambda c, a, b, before: contains(c, key_is("$bitsAllSet", "$bitsAnySet", "$bitsAllClear", "$bitsAnyClear"))
     and re.search("9223372036854775808|Infinity", repr((a, b, before.commands)))),
    ("null is not undefined since 8.0: equality with null, and what it negates, finds others where undefined is stored",
     lambda c, a, b, before: contains(c, filters_null) and holds_undefined([*before.commands, c])),
    ("Pinion calls an index multikey before the write that makes it so, which may fail then", calls_multikey_early),
    ("MongoDB's `distinct` reads an index's keys where it can, and they hold null for a missing field, undefined for an empty array, the items of nested arrays, and of equal numbers the first in the index's order",
     distinct_by_keys),
    ("4.4 reads a sparse index for what compares with null, MinKey or MaxKey so that a missing field does too, and misses the documents without the field",
     lambda c, a, b, before: contains(c, lambda key, value: key in ("$lte", "$gte") and value is None or key in ("$gt", "$gte") and isinstance(value, MinKey)
                                            or key in ("$lt", "$lte") and isinstance(value, MaxKey))
     and (matched(a) > matched(b) >= 0 or name_of(c) == "findAndModify" and matched(a) == 1)
     and any(spec.get("sparse") for spec in before.indexes())),
]
