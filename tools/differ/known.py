"""Differences that are meant, each with its reason. Every entry is a fact about MongoDB 7.0 or about Pinion's design."""

import re

import explained
from codec import Symbol, Undefined

# Codes whose message MongoDB has not changed between 4.4 and 7.0.
SAME_MESSAGE = {11000}
# Codes that had no name in 4.4.
NAMED_SINCE = {40414: "IDLFailedToParse", 40415: "IDLUnknownField"}
READS = {"find", "count", "distinct", "aggregate", "listIndexes", "listCollections", "explain", "dbStats", "collStats", "validate"}

# Fields that 4.4 read by hand and 7.0 reads by its IDL, with "*" for a place in a list. 4.4 gave a wrong type codes of
# the command's own (2, 9, 10065, 31160, ...) or took it as it was; 7.0 answers TypeMismatch (14), takes null as a field
# that is not there (40414 where it is required), and any number for a bool.
HAND_READ = set("""
    find.filter find.sort find.projection find.hint find.skip find.limit find.batchSize find.singleBatch find.allowDiskUse find.noCursorTimeout
    find.tailable find.awaitData find.allowPartialResults find.collation find.min find.max find.returnKey find.showRecordId
    aggregate.pipeline aggregate.cursor aggregate.cursor.batchSize aggregate.explain aggregate.allowDiskUse aggregate.hint aggregate.collation
    aggregate.bypassDocumentValidation
    count.query count.limit count.skip count.hint count.collation distinct.key distinct.query distinct.collation
    findAndModify.query findAndModify.sort findAndModify.update findAndModify.remove findAndModify.new findAndModify.fields findAndModify.upsert
    findAndModify.hint findAndModify.collation findAndModify.arrayFilters findAndModify.bypassDocumentValidation
    insert.documents insert.ordered insert.bypassDocumentValidation update.updates update.ordered update.bypassDocumentValidation
    delete.deletes delete.ordered update.updates.*.arrayFilters update.updates.*.multi update.updates.*.upsert update.updates.*.hint delete.deletes.*.hint
    delete.deletes.*.limit insert.documents.* update.updates.* delete.deletes.*
    update.updates.*.collation update.updates.*.c delete.deletes.*.collation
    getMore.getMore getMore.collection getMore.batchSize killCursors.cursors killCursors.cursors.* explain.verbosity explain.explain
    createIndexes.indexes createIndexes.indexes.* dropIndexes.index listIndexes.cursor listIndexes.cursor.batchSize
    listCollections.filter listCollections.nameOnly listCollections.authorizedCollections listCollections.cursor listCollections.cursor.batchSize
    listDatabases.filter listDatabases.nameOnly listDatabases.authorizedDatabases
    renameCollection.renameCollection renameCollection.to renameCollection.dropTarget renameCollection.stayTemp
    dbStats.dbStats dbStats.scale dbStats.freeStorage collStats.scale dropDatabase.dropDatabase validate.full killOp.op killOp.killOp
    connectionStatus.showPrivileges fsync.async shutdown.force shutdown.timeoutSecs create.capped create.autoIndexId
    explain.limit create.idIndex create.collation create.validationAction create.validationLevel create.validator create.storageEngine create.indexOptionDefaults
    create.viewOn create.pipeline create.size create.max
    endSessions.endSessions refreshSessions.refreshSessions killSessions.killSessions
    endSessions.endSessions.* refreshSessions.refreshSessions.* killSessions.killSessions.*
    lsid lsid.id txnNumber maxTimeMS readConcern readConcern.level writeConcern writeConcern.w writeConcern.j writeConcern.wtimeout
    $readPreference $readPreference.mode comment
""".split())
# Commands that in 4.4 passed over fields they did not know, or gave them codes of their own.
UNKNOWN_BY_HAND = {
    "find": {9}, "aggregate": {2, 9}, "findAndModify": {51177}, "explain": {0, 9}, "getCmdLineOpts": {0}, "whatsmyuri": {0}, "refreshSessions": {0},
    "hostInfo": {0}, "getParameter": {0}, "connectionStatus": {0}, "getLog": {0}, "buildInfo": {0}, "isMaster": {0}, "ping": {0}, "listCommands": {0},
    "currentOp": {0}, "killOp": {0}, "fsync": {0}, "shutdown": {0}, "validate": {0}, "collStats": {0}, "dbStats": {0}, "drop": {0, 26},
    "dropDatabase": {0}, "dropIndexes": {0, 27}, "listIndexes": {0, 2}, "listCollections": {0, 2}, "listDatabases": {0}, "renameCollection": {0, 26},
    "killCursors": {0, 9}, "getMore": {9}, "endSessions": {0}, "killSessions": {0}, "startSession": {0}, "serverStatus": {0}, "dataSize": {0},
    "createIndexes": {0, 2, 9, 14, 40415},
}


# Commands whose first value says nothing.
FIRST_IS_NO_NAME = set("isMaster ismaster hello ping buildInfo buildinfo hostInfo connectionStatus whatsmyuri getParameter setParameter getCmdLineOpts getLog "
                       "listCommands serverStatus listDatabases listCollections currentOp killOp fsync startSession dbStats dropDatabase shutdown".split())


def message_counts(error):
    """Whether the text of this error must be equal too."""
    return error.get("code") in SAME_MESSAGE


def code_name(error):
    """The name of an error's code as 7.0 has it."""
    return NAMED_SINCE.get(error.get("code"), error.get("codeName"))


def name_of(command):
    return next(iter(command))


def code(reply):
    """The code of a refused command, 0 of one that was carried out."""
    return 0 if reply.get("ok") else reply.get("code", -1)


def named_field(reply):
    """The field that an error of 7.0's IDL names: the command's, or one that every command takes."""
    found = re.search(r"(?:BSON field|for field|Field|Expected field) '?([\w$.]+?)'?(?:to be| is| should| value|$)", reply.get("errmsg", ""))
    return re.sub(r"\.\d+", ".*", found.group(1)) if found else ""


def hand_read(command, path):
    """Whether 4.4 read this field by hand; a path may lack the command's name, and explain names the inner command."""
    name = name_of(command["explain"]) if name_of(command) == "explain" and isinstance(command["explain"], dict) and command["explain"] else name_of(command)
    return path in HAND_READ or f"{name}.{path}" in HAND_READ or path.split(".")[0] in (name, "explain") and path.split(".", 1)[-1] in HAND_READ


def read_by_idl(command, a, b):
    return code(a) in (14, 40414) and hand_read(command, named_field(a))


def values_at(command, path):
    """The values in a command at a path whose places in lists are "*"."""
    at = [command]
    for part in path.split("."):
        following = []
        for value in at:
            if part == "*" and isinstance(value, list):
                following += value
            elif isinstance(value, dict) and part in value:
                following.append(value[part])
        at = following
    return at


def loose_fields(command):
    """The hand-read fields that hold null, undefined or a number, which 7.0 takes for absent or for a bool."""
    commands = [command]
    if name_of(command) == "explain" and isinstance(command["explain"], dict) and command["explain"]:
        commands.append(command["explain"])
    found = set()
    for one in commands:
        for path in HAND_READ:
            head, _, rest = path.partition(".")
            for value in values_at(one, rest if head == name_of(one) and rest else path):
                if value is None or isinstance(value, Undefined) or is_number(value):
                    found.add(path)
    return found


def is_number(value):
    return type(value).__name__ in ("int", "Int64", "float", "Decimal128")


def taken_by_idl(command, a, b):
    return code(b) in (2, 9, 14, 72, 31160, 31174, 31175, 10065, 40414) and code(a) != code(b) and bool(loose_fields(command))


def unknown_by_hand(command, a, b):
    return code(a) == 40415 and code(b) in UNKNOWN_BY_HAND.get(name_of(command), ())


def error_codes(reply):
    return [(error["index"], error["code"]) for error in reply.get("writeErrors", [])]


def contains(value, wanted):
    """Whether anything in a command satisfies `wanted(key, value)`."""
    if isinstance(value, dict):
        return any(wanted(key, inner) or contains(inner, wanted) for key, inner in value.items())
    if isinstance(value, list):
        return any(contains(inner, wanted) for inner in value)
    return False


def holds_type(command, *types):
    return contains(command, lambda _, value: isinstance(value, types) or isinstance(value, list) and any(isinstance(item, types) for item in value))


def key_is(*names):
    return lambda key, _: key in names


def all_errors(a, b):
    """The codes of both replies' errors in pairs, where they have errors at the same places."""
    ours, theirs = dict(error_codes(a)), dict(error_codes(b))
    if not a.get("ok") and not b.get("ok"):
        return [(code(a), code(b))]
    return [(ours.get(i, 0), theirs.get(i, 0)) for i in sorted({*ours, *theirs})]


def only(*pairs):
    """Whether the errors that differ are all among these pairs of codes (0 for none)."""
    return lambda a, b: any(x != y for x, y in all_errors(a, b)) and all(x == y or (x, y) in pairs for x, y in all_errors(a, b))


def duplicate_patterns(reply):
    return [error.get("keyPattern") for error in [reply, *reply.get("writeErrors", [])]]


def explain_of_update(command, a, b):
    inner = command.get("explain")
    return name_of(command) == "explain" and isinstance(inner, dict) and next(iter(inner), "") in ("update", "findAndModify") and code(a) == 0


def id_array_code(command, a, b):
    """A list of write errors that are equal when 53 and 2 count as the same."""
    ours, theirs = error_codes(a), error_codes(b)
    return ours != theirs and [(i, 2 if c == 53 else c) for i, c in ours] == theirs


def distinct_null(command, a, b):
    if name_of(command) != "distinct" or code(a) or code(b):
        return False
    return present(a["values"]) == present(b["values"])


def present(values):
    """The values without null and undefined, and the items of arrays, as a sorted text each."""
    out = set()
    for value in values:
        if isinstance(value, list):
            out |= set(present(value))
        elif value is not None and not isinstance(value, Undefined):
            out.add(repr(value))
    return sorted(out)


def matched(reply):
    """How many documents a reply tells of, -1 for an error."""
    return -1 if code(reply) else reply["n"] if "n" in reply else len(reply.get("cursor", {}).get("documents", []))


def unsupported(command, a, b):
    return code(a) == 238 or code(a) == 115 or any(error["code"] in (115, 238) for error in a.get("writeErrors", []))


def reason(command, a, b):
    """Why this difference between a (Pinion) and b (MongoDB 4.4) is meant, or None."""
    for why, applies in RULES:
        if applies(command, a, b):
            return why
    return None


def diverged(command, a, b):
    """Whether the data may differ from here on, because one server carried out what the other refused."""
    if name_of(command) in READS:
        return False
    if name_of(command) in ("getMore", "killCursors"):
        # An error may have taken the cursor with it.
        return True
    return not (code(a) and code(b))


RULES = [
    ("7.0 reads this field by IDL: a wrong type is TypeMismatch, a missing field 40414; 4.4 read it by hand", read_by_idl),
    ("7.0 takes null as absent and a number as bool in this field; 4.4 refused it", taken_by_idl),
    ("7.0 refuses fields it does not know with 40415; 4.4 did not, or with a code of the command's own", unknown_by_hand),
    ("Pinion refuses by name what it does not have yet", unsupported),
    ("`hello` came after this build of 4.4", lambda c, a, b: name_of(c) == "hello" and code(b) == 59),
    ("errors without a code in 4.4 have one in 7.0", lambda c, a, b: not a.get("ok") and not b.get("ok") and "code" not in b),
    ("an `_id` that is an array or regex is InvalidIdField (53) in 7.0, BadValue in 4.4", id_array_code),
    ("a collection name of a wrong type is InvalidNamespace (73) in 7.0", lambda c, a, b: code(a) == 73 and code(b) in (2, 9, 14)
     and "has invalid type" in a["errmsg"]),
    ("`create` of a collection that is there already succeeds in 7.0 when the options are the same",
     lambda c, a, b: name_of(c) == "create" and code(a) == 0 and code(b) == 48),
    ("`drop` of a collection that is not there succeeds in 7.0", lambda c, a, b: name_of(c) == "drop" and code(a) == 0 and code(b) == 26),
    ("`killCursors` without cursors succeeds in 7.0", lambda c, a, b: name_of(c) == "killCursors" and code(a) == 0 and code(b) == 2 and c.get("cursors") == []),
    ("`getMore` with a batch size of 0 has no limit in 7.0", lambda c, a, b: name_of(c) == "getMore" and code(a) == 0 and code(b) == 2 and c.get("batchSize") == 0),
    ("`$mod` takes 64-bit divisors in 7.0; 4.4 cut them to 32 bits",
     lambda c, a, b: contains(c, key_is("$mod")) and "divisor cannot be 0" in repr(b)),
    ("7.0 refuses regex options it does not know (51108)", lambda c, a, b: contains(c, key_is("$options")) and ("51108" in repr(a))),
    ("an operator without fields changes nothing since 5.0; 4.4 refused it",
     lambda c, a, b: "is empty. You must specify a field like so" in repr(b) and only((0, 9))(a, b)),
    ("4.4 took the first value of every command for a name", lambda c, a, b: code(b) == 73 and "embedded null" in b["errmsg"] and name_of(c) in FIRST_IS_NO_NAME),
    ("`dropDatabase` of anything but 1 is 5255100 in 7.0", lambda c, a, b: name_of(c) == "dropDatabase" and code(a) in (5255100, 14) and code(b) == 20),
    ("a symbol was as good as a string for a collection's name in 4.4", lambda c, a, b: holds_type(c, Symbol) and code(a) == 73),
    ("readConcern is read by IDL in 7.0: an unknown field is 40415", lambda c, a, b: "readConcern" in c and code(a) == 40415 and code(b) == 72),
    ("a write concern mode without a name is refused in 7.0", lambda c, a, b: values_at(c, "writeConcern.w")[:1] in (["", ], [None], [Undefined()]) and code(a) == 2),
    ("wtimeout must fit 32 bits in 7.0", lambda c, a, b: "wtimeout" in repr(a) and code(a) == 9 and code(b) == 0),
    ("`renameCollection` may name the target by its UUID in 7.0", lambda c, a, b: name_of(c) == "renameCollection" and code(a) == 26 and code(b) == 14
     and "dropTarget" in b["errmsg"]),
    ("a filter that nothing can match is planned as EOF in 7.0", lambda c, a, b: name_of(c) == "explain" and code(a) == code(b) == 0
     and "('$alwaysFalse', 1)" in repr(explained.planner_of(b))),
    ("an unknown verbosity is BadValue in 7.0", lambda c, a, b: name_of(c) == "explain" and code(a) == 2 and code(b) == 9 and "verbosity" in a["errmsg"]),
    ("two equal indexes in one command are IndexAlreadyExists in 7.0", lambda c, a, b: name_of(c) == "createIndexes" and code(a) == 68 and code(b) == 96),
    ("a document that two unique indexes refuse: Pinion asks the owners of the keys at once, and one of them is first",
     lambda c, a, b: repr(a).count("E11000") > 0 and duplicate_patterns(a) != duplicate_patterns(b) and all_errors(a, b) and all(x == y for x, y in all_errors(a, b))),
    ("`findAndModify` of a collection that is not there: MongoDB does not look at `fields`",
     lambda c, a, b: name_of(c) == "findAndModify" and "fields" in c and code(b) == 0 and b.get("value") is None and b["lastErrorObject"]["n"] == 0),
    ("bounds that hold null hold undefined too in Pinion, for an empty array is stored so, bounds of arrays begin with their first item, and types that are rare have no bounds",
     lambda c, a, b: name_of(c) == "explain" and code(a) == code(b) == 0 and explained.differ_in_bounds_alone(a, b)
     and ("null" in explained.bounds(a) + explained.bounds(b) or contains(c, lambda key, value: key == "$type" or key in ("$gt", "$gte", "$lt", "$lte") and isinstance(value, list)))),
    ("4.4 looked at the directions of a sort before the projection", lambda c, a, b: name_of(c) == "find" and "projection" in c and code(a) and code(b) == 15975),
    ("4.4 fails on negated comparisons with arrays where an index is", lambda c, a, b: "Indexed negation of array inequality" in repr(b)),
    ("a decimal beyond 64 bits has no bits to test; 4.4 cut it down", lambda c, a, b: contains(c, key_is("$bitsAllSet", "$bitsAnySet", "$bitsAllClear", "$bitsAnyClear"))
     and "9223372036854775808" in repr(b) + repr(a)),
    ("which of the documents of an unordered insert that want one unique value gets it is not told", lambda c, a, b: name_of(c) == "insert"
     and c.get("ordered") is False and a.get("n") == b.get("n") and {code for _, code in error_codes(a)} == {code for _, code in error_codes(b)} == {11000}),
    ("which of several duplicates an index build meets first is a matter of natural order",
     lambda c, a, b: name_of(c) == "createIndexes" and code(a) == code(b) == 11000),
    ("an expression of constants is looked at when a projection is read; 4.4 did so when the first document came",
     lambda c, a, b: code(a) == 28724 and code(b) in (0, 2) and name_of(c) in ("find", "findAndModify")),
    ("of two mistakes in an index specification one is told", lambda c, a, b: name_of(c) == "createIndexes" and code(a) and code(b) and code(a) != code(b)
     and {code(a), code(b)} <= {2, 14, 67, 197}),
    ("a scale may have 64 bits in 7.0", lambda c, a, b: name_of(c) in ("collStats", "dbStats") and "scale" in c and code(a) == 0 and "code" not in b),
    ("MongoDB knows the names of all stages before it reads any; Pinion reads them one by one", lambda c, a, b: name_of(c) == "aggregate" and code(a) and code(b) == 40324),
    ("Pinion takes an empty collation for none", lambda c, a, b: name_of(c) == "create" and code(a) == 0 and c.get("collation") == {}),
    ("`autoIndexId: null` is as if it were not there in 7.0", lambda c, a, b: name_of(c) == "create" and "autoIndexId" in c and code(b) == 50001),
    ("an option that is false is as if it were not there in Pinion; 4.4 took it for another index",
     lambda c, a, b: name_of(c) == "createIndexes" and code(a) == 0 and code(b) == 85 and ": false" in b["errmsg"]),
    ("`$mod` passes over numbers beyond 64 bits in 7.0; 4.4 cut them down", lambda c, a, b: contains(c, key_is("$mod")) and 0 <= matched(a) < matched(b)),
    ("4.4 reads a sparse index for what is at most or at least null, and misses the documents without the field",
     lambda c, a, b: contains(c, lambda key, value: key in ("$lte", "$gte") and value is None) and matched(a) > matched(b) >= 0),
    ("`let` came with 5.0", lambda c, a, b: "let" in c and code(b) in (9, 40415, 51177)),
    ("of an unknown field and another mistake in one command the order of the fields decides in MongoDB; Pinion tells of the unknown field last",
     lambda c, a, b: code(a) and code(b) and {code(a), code(b)} <= {9, 14, 40414, 40415}),
    ("a rename to the same name is IllegalOperation in 7.0", lambda c, a, b: name_of(c) == "renameCollection" and code(a) == 20 and code(b) in (26, 48)),
    ("a comment may have any type since 4.4's release", lambda c, a, b: code(b) == 14 and ".comment'" in b["errmsg"] and "comment" in c),
    ("maxTimeMS of a wrong kind is TypeMismatch or FailedToParse in 7.0, BadValue in 4.4",
     lambda c, a, b: code(a) in (9, 14) and code(b) == 2 and "maxTimeMS" in b["errmsg"]),
    ("MongoDB's `distinct` reads an index's keys where it can, and they hold null for a missing field, undefined for an empty array, and the items of nested arrays", distinct_null),
    ("a write concern is read before all else in 7.0; 4.4 refused it unread on a command without writes, and its types by hand",
     lambda c, a, b: "writeConcern" in c and (code(b) in (9, 72) and code(a) in (0, 9, 14, 40415) or code(a) == 9 and code(b) == 0)),
    ("7.0 names unknown values of readConcern.level BadValue, 4.4 FailedToParse",
     lambda c, a, b: code(a) == 2 and code(b) == 9 and "readConcern.level" in a["errmsg"]),
    ("an index option that is no bool is refused in 7.0", lambda c, a, b: name_of(c) == "createIndexes" and code(a) == 14
     and "not convertible to bool" in a["errmsg"]),
    ("`aggregate` of what is neither a name nor 1 has other codes in 7.0",
     lambda c, a, b: name_of(c) == "aggregate" and not isinstance(c["aggregate"], str) and code(a) and code(b)),
    ("`$limit` and `$skip` take whole numbers only in 7.0, with the codes 5107201 and 5107200; 4.4 cut off fractions",
     lambda c, a, b: code(a) in (5107200, 5107201) and code(b) in (0, 15956, 15957, 15958, 15972)),
    ("a field name may begin with a dollar sign since 5.0, so 4.4 refused what 7.0 goes on with",
     lambda c, a, b: "prefixed field" in repr(b) and "is not valid for storage" in repr(b)),
    ("`$pull` takes a condition that begins with `$eq` in 8.0; 4.4 took it for a field", lambda c, a, b: contains(c, key_is("$pull"))
     and contains(c, key_is("$eq")) and "unknown top level operator: $eq" in repr(b)),
    ("MongoDB carries out the update that it explains, with its errors; Pinion plans it", lambda c, a, b: explain_of_update(c, a, b) and code(b)),
    ("a parameter's value of a wrong type is refused in 7.0", lambda c, a, b: name_of(c) == "setParameter" and code(a) == 2 and code(b) == 0),
    ("a session without its id: 7.0 misses the id, 4.4 told of the unknown field first", lambda c, a, b: code(a) == 40414 and code(b) == 40415
     and name_of(c) in ("endSessions", "refreshSessions", "killSessions")),
    ("a namespace that cannot be: InvalidNamespace in 7.0, IllegalOperation in 4.4",
     lambda c, a, b: name_of(c) == "renameCollection" and code(a) == 73 and code(b) in (20, 73)),
]
