"""Every command with each of its fields of every wrong type, with a field left out, and with an
unknown one.

The list is made once and in order; program n takes the entries that fall to it, so a campaign sends
them all.
"""

import copy

from bson import Binary, Code, Decimal128, Int64, MaxKey, MinKey, Regex, Timestamp
from bson.datetime_ms import DatetimeMS
from bson.son import SON

from codec import Symbol, Undefined
from values import OIDS

EVERY_TYPE = [1.5, "x", SON(), SON([("x", 1)]), [], [1], Binary(b"x", 0), Undefined(), OIDS[1], True, False, DatetimeMS(5), None, Regex("x"), Code("x"),
              Symbol("x"), Code("x", {}), 1, -1, Timestamp(1, 1), Int64(1), Decimal128("1"), MinKey(), MaxKey(),
              float("nan"), float("inf"), 2**31 - 1, Int64(2**40), "", "a\0b"]

# Fields in which an empty document leaves the choice among documents to natural order.
NATURAL_ORDER = {"updates.0.q", "deletes.0.q", "findAndModify.sort", "find.sort", "sort", "query"}
SESSION = SON([("id", Binary(bytes(range(16)), 4))])
GENERIC = ["lsid", "lsid.id", "txnNumber", "maxTimeMS", "readConcern", "readConcern.level", "writeConcern", "writeConcern.w", "writeConcern.j",
           "writeConcern.wtimeout", "$readPreference", "$readPreference.mode", "comment"]


def admin(*fields):
    return SON([*fields, ("$db", "admin")])


# A command as it should be, and the other fields that it has.
COMMANDS = [
    (SON([("find", "c"), ("filter", SON()), ("sort", SON([("_id", 1)]))]),
     [ "projection", "hint", "skip", "limit", "batchSize", "singleBatch", "allowDiskUse", "noCursorTimeout", "tailable", "awaitData",
      "allowPartialResults", "collation", "min", "max", "returnKey", "showRecordId", *GENERIC]),
    (SON([("getMore", Int64(99)), ("collection", "c")]), ["batchSize"]),
    (SON([("killCursors", "c"), ("cursors", [Int64(99)])]), ["cursors.0"]),
    (SON([("insert", "c"), ("documents", [SON([("_id", 0)])])]), ["documents.0", "ordered", "bypassDocumentValidation", *GENERIC]),
    (SON([("update", "c"), ("updates", [SON([("q", SON([("_id", 99)])), ("u", SON([("$set", SON([("a", 1)]))]))])])]),
     ["updates.0", "updates.0.q", "updates.0.u", "updates.0.multi", "updates.0.upsert", "updates.0.hint", "updates.0.collation", "updates.0.arrayFilters",
      "updates.0.c", "updates.0.foo", "ordered", "bypassDocumentValidation", *GENERIC]),
    (SON([("delete", "c"), ("deletes", [SON([("q", SON([("_id", 99)])), ("limit", 1)])])]),
     ["deletes.0", "deletes.0.q", "deletes.0.limit", "deletes.0.hint", "deletes.0.collation", "deletes.0.foo", "ordered", *GENERIC]),
    (SON([("findAndModify", "c"), ("query", SON([("_id", 99)])), ("sort", SON([("_id", 1)])), ("update", SON([("$set", SON([("a", 1)]))]))]),
     ["remove", "new", "fields", "upsert", "hint", "collation", "arrayFilters", "bypassDocumentValidation", *GENERIC]),
    (SON([("count", "c"), ("query", SON())]), ["limit", "skip", "hint", "collation", *GENERIC]),
    (SON([("distinct", "c"), ("key", "a")]), ["query", "collation", *GENERIC]),
    (SON([("aggregate", "c"), ("pipeline", []), ("cursor", SON())]),
     ["pipeline.0", "cursor.batchSize", "cursor.foo", "explain", "allowDiskUse", "hint", "collation", "bypassDocumentValidation", *GENERIC]),
    (SON([("aggregate", "c"), ("pipeline", [SON([("$match", SON())])]), ("cursor", SON())]), ["pipeline.0.$match"]),
    (SON([("aggregate", "c"), ("pipeline", [SON([("$project", SON([("a", 1)]))])]), ("cursor", SON())]), ["pipeline.0.$project"]),
    (SON([("aggregate", "c"), ("pipeline", [SON([("$sort", SON([("a", 1)]))])]), ("cursor", SON())]), ["pipeline.0.$sort", "pipeline.0.$sort.a"]),
    (SON([("aggregate", "c"), ("pipeline", [SON([("$skip", 1)])]), ("cursor", SON())]), ["pipeline.0.$skip"]),
    (SON([("aggregate", "c"), ("pipeline", [SON([("$limit", 100)])]), ("cursor", SON())]), ["pipeline.0.$limit"]),
    (SON([("aggregate", "c"), ("pipeline", [SON([("$count", "n")])]), ("cursor", SON())]), ["pipeline.0.$count"]),
    (SON([("aggregate", "c"), ("pipeline", [SON([("$group", SON([("_id", None)]))])]), ("cursor", SON())]),
     ["pipeline.0.$group", "pipeline.0.$group._id", "pipeline.0.$group.a"]),
    (SON([("explain", SON([("find", "c")]))]), ["verbosity", "explain.filter", "explain.foo"]),
    (SON([("create", "spoiled")]), ["capped", "size", "max", "autoIndexId", "idIndex", "collation", "validator", "validationLevel", "validationAction",
                                    "storageEngine", "indexOptionDefaults", "viewOn", "pipeline", "writeConcern"]),
    (SON([("drop", "spoiled")]), ["writeConcern"]),
    (SON([("dropDatabase", 1), ("$db", "differ_spoiled")]), ["writeConcern"]),
    (SON([("createIndexes", "spoiled"), ("indexes", [SON([("key", SON([("a", 1)])), ("name", "a_1")])])]),
     ["indexes.0", "indexes.0.key", "indexes.0.key.a", "indexes.0.name", "indexes.0.unique", "indexes.0.sparse", "indexes.0.background", "indexes.0.v",
      "indexes.0.expireAfterSeconds", "indexes.0.partialFilterExpression", "indexes.0.collation", "indexes.0.hidden", "indexes.0.storageEngine",
      "indexes.0.foo", "commitQuorum", "writeConcern"]),
    (SON([("dropIndexes", "c"), ("index", "nosuch")]), ["writeConcern"]),
    (SON([("listIndexes", "c")]), ["cursor", "cursor.batchSize", "cursor.foo"]),
    (SON([("listCollections", 1)]), ["filter", "nameOnly", "authorizedCollections", "cursor", "cursor.batchSize"]),
    (admin(("listDatabases", 1), ("filter", SON([("name", "differ")]))), ["nameOnly", "authorizedDatabases"]),
    (admin(("renameCollection", "differ.nosuch"), ("to", "differ.nosuch2")), ["dropTarget", "stayTemp"]),
    (SON([("dbStats", 1)]), ["scale", "freeStorage"]),
    (SON([("collStats", "c")]), ["scale"]),
    (SON([("validate", "c")]), ["full"]),
    (SON([("isMaster", 1)]), []),
    (SON([("ping", 1)]), ["comment"]),
    (SON([("buildInfo", 1)]), []),
    (SON([("hostInfo", 1)]), []),
    (SON([("connectionStatus", 1)]), ["showPrivileges"]),
    (SON([("whatsmyuri", 1)]), []),
    (admin(("getParameter", 1), ("quiet", 1)), ["quiet"]),
    (admin(("setParameter", 1), ("quiet", False)), ["quiet"]),
    (admin(("getCmdLineOpts", 1)), []),
    (admin(("getLog", "global")), []),
    (SON([("listCommands", 1)]), []),
    (SON([("serverStatus", 1)]), ["network"]),
    (admin(("currentOp", 1)), ["$all", "$ownOps"]),
    (admin(("killOp", 1), ("op", 99_999_999)), []),
    (admin(("fsync", 1)), ["async"]),
    (SON([("startSession", 1)]), []),
    (SON([("endSessions", [SESSION])]), ["endSessions.0", "endSessions.0.id", "endSessions.0.foo"]),
    (SON([("refreshSessions", [SESSION])]), ["refreshSessions.0", "refreshSessions.0.id", "refreshSessions.0.foo"]),
    (SON([("killSessions", [SESSION])]), ["killSessions.0", "killSessions.0.id", "killSessions.0.foo"]),
    # Sent to a database other than admin: neither server may end.
    (SON([("shutdown", 1)]), ["force", "timeoutSecs"]),
]


def replaced(command, path, value):
    """The command with the field at a path set; parts that are missing are made."""
    command = copy.deepcopy(command)
    *heads, last = path.split(".")
    at = command
    for head in heads:
        if isinstance(at, list):
            at = at[int(head)]
        else:
            if not isinstance(at.get(head), (dict, list)):
                at[head] = SON()
            at = at[head]
    if isinstance(at, list):
        index = int(last)
        at[index : index + 1] = [value]
    else:
        at[last] = value
    return command


def all_spoiled():
    """(what, command) for every spoiled command."""
    out = []
    for command, more in COMMANDS:
        name = next(iter(command))
        fields = [field for field in command if field != "$db"]
        for path in [*fields, *more]:
            for value in EVERY_TYPE:
                if value == SON() and path in NATURAL_ORDER:
                    continue
                out.append((f"wrong {name}.{path}", replaced(command, path, value)))
        for field in fields[1:]:
            out.append((f"missing {name}.{field}", SON((key, value) for key, value in command.items() if key != field)))
        for field in ("foo", "Filter", "limits"):
            out.append((f"unknown {name}", SON([*command.items(), (field, 1)])))
    return out


SPOILED = all_spoiled()
# The few that leave a field out or add one come in every program.
FIELDS_ALONE = [entry for entry in SPOILED if not entry[0].startswith("wrong")]
# Neighbours in the list are alike: a step that shares no factor with its length spreads them over
# the programs.
STEP = 7919
PER_PROGRAM = 2
# A run of this number of programs in a row has sent them all.
PROGRAMS_FOR_ALL = -(-len(SPOILED) // PER_PROGRAM)


def of_program(seed):
    """The spoiled commands of one program."""
    return [SPOILED[(seed * PER_PROGRAM + i) * STEP % len(SPOILED)] for i in range(PER_PROGRAM)] + [FIELDS_ALONE[seed % len(FIELDS_ALONE)]]


assert len(SPOILED) % STEP, "some entries would never be sent"
