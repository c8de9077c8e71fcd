"""Every argument of every command in every BSON type: which types MongoDB's definition of the
command takes, and what it answers to the others."""

import datetime
import struct

import bson
import pytest
from bson import Binary, Code, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from pinion_node import ReplicaSet
from pinion_wire import Undefined, Wire

INT64_MAX, INT64_MIN = Int64(2**63 - 1), Int64(-2**63)
VALUES = {
    "double": 1.0, "negative double": -1.0, "fraction": 1.5, "NaN": float("nan"), "infinity": float("inf"), "string": "x", "empty string": "",
    "object": {"x": 1}, "empty object": {}, "array": [1], "empty array": [], "binary": Binary(b"x"), "UUID": Binary(b"x" * 16, 4), "undefined": Undefined,
    "ObjectId": ObjectId("0" * 24), "true": True, "false": False, "date": datetime.datetime(2020, 1, 1), "null": None, "regex": Regex("x"),
    "code": Code("x"), "int": 1, "zero": 0, "negative int": -1, "timestamp": Timestamp(1, 1), "long": Int64(1), "huge": INT64_MAX,
    "negative long": INT64_MIN, "decimal": Decimal128("1"), "decimal fraction": Decimal128("1.5"), "decimal NaN": Decimal128("NaN"),
    "decimal infinity": Decimal128("Infinity"), "minKey": MinKey(), "maxKey": MaxKey(),
}
ABSENT = {"null", "undefined"}
STRINGS = {"string", "empty string"}
OBJECTS = {"object", "empty object"}
ARRAYS = {"array", "empty array"}
BOOLS = {"true", "false"}
INTS = {"int", "zero", "negative int"}
LONGS = {"long", "huge", "negative long"}
DOUBLES = {"double", "negative double", "fraction", "NaN", "infinity"}
NUMBERS = INTS | LONGS | DOUBLES | {"decimal", "decimal fraction", "decimal NaN", "decimal infinity"}
NEGATIVE = {"negative double", "negative int", "negative long"}
BROKEN = {"fraction", "NaN", "infinity", "decimal fraction", "decimal NaN", "decimal infinity"}


class Rule:
    """The values that an argument may have, the codes of what is refused, and the codes that a
    value which is taken may still meet."""

    def __init__(self, taken, code=14, refused=(), later=()):
        self.taken, self.code, self.refused, self.later = frozenset(taken), code, dict(refused), tuple(later)

    def __call__(self, *later):
        """The same, where the command may fail with these codes by what the value says."""
        return Rule(self.taken, self.code, self.refused, self.later + later)

    def but(self, values, code):
        """The same, where these values are refused with another code."""
        return Rule(self.taken - set(values), self.code, {**self.refused, **dict.fromkeys(values, code)}, self.later)

    def required(self):
        """The same, where nothing is missing: null is nothing."""
        return self.but(ABSENT, 40414)

    def expected(self, value):
        if value in self.taken:
            return ("ok", *self.later)
        return (self.refused.get(value, self.code),)


ANY = Rule(VALUES)
UNKNOWN = Rule((), 40415)
STRING = Rule(STRINGS | ABSENT)
OBJECT = Rule(OBJECTS | ABSENT)
OWNED = Rule(OBJECTS)
ARRAY = Rule(ARRAYS | ABSENT)
# Of elements that 1 is none of.
LIST = Rule({"empty array"} | ABSENT)
BOOL = Rule(BOOLS | ABSENT)
FLAG = Rule(BOOLS)
SAFE_BOOL = Rule(BOOLS | NUMBERS | ABSENT)
NUMBER = Rule(NUMBERS | ABSENT)
NOT_NEGATIVE = NUMBER.but(NEGATIVE, 2)
WHOLE = NUMBER.but(BROKEN, 9)
INT = Rule(INTS | ABSENT)
LONG = Rule(LONGS | ABSENT)
UUID = Rule({"UUID"} | ABSENT)
BINARY = Rule({"UUID", "binary"} | ABSENT)
TIMESTAMP = Rule({"timestamp"} | ABSENT)
HINT = Rule(STRINGS | OBJECTS, 9)
UPDATE = Rule(OBJECTS | {"empty array"}, 9, {"array": 14})
NAME = Rule({"string"}, 73)
NAME_OR_UUID = Rule({"string", "UUID"}, 73)
FULL_NAME = Rule({"string"}, 14, {"empty string": 73, "null": 40414, "undefined": 40414})
# Of documents, none of which is older than 1970.
EXPIRY = NUMBER.but(NEGATIVE | {"huge", "infinity", "decimal infinity"}, 72)
COLLATION = OBJECT(40415)
CURSOR = OBJECT(40415)


def unsupported(rule, *harmless):
    """What Pinion does not have is refused by its name, behind its type, but for values that ask
    for nothing."""
    return rule.but(rule.taken - ABSENT - set(harmless), 238)


WRITES = {"ordered": BOOL, "bypassDocumentValidation": SAFE_BOOL, "stmtId": NUMBER, "stmtIds": ARRAY, "encryptionInformation": unsupported(OBJECT)}
CONSTANTS = {"legacyRuntimeConstants": unsupported(OBJECT), "runtimeConstants": UNKNOWN}
METRICS = {"includeQueryStatsMetrics": unsupported(BOOL, "false")}
SHAPE = {"query": Rule(OBJECTS | ARRAYS, 2), **dict.fromkeys(("projection", "sort", "collation"), Rule(OBJECTS | ARRAYS, 2)(2, 15974, 40415))}
NS_INFO = [{"ns": "args.c"}]


def piped(stage):
    return {"aggregate": "c", "pipeline": [stage], "cursor": {}}


def bulk(op):
    return {"bulkWrite": 1, "ops": [op], "nsInfo": NS_INFO}


# What a node that is alone refuses, whatever it says.
REFUSED = {name: code for code, names in {
    20: ["fsyncUnlock"],
    76: ["replSetGetStatus", "replSetGetConfig", "replSetGetRBID", "replSetInitiate", "replSetReconfig", "replSetStepDown", "replSetStepUp", "replSetFreeze",
         "replSetMaintenance", "replSetSyncFrom", "replSetAbortPrimaryCatchUp", "appendOplogNote", "dbCheck"],
}.items() for name in names}

# Of elements that are names, which 1 is none of.
NAMES = LIST.but({"array"}, 2)
SOME_NAMES = NAMES.required().but({"empty array"}, 2)
PRIVILEGE = {"resource": {"db": "args", "collection": ""}, "actions": ["find"]}
# Of a user or role that is not there.
USER_CHANGES = {
    "pwd": STRING.but({"empty string"}, 2)(11), "customData": OBJECT(2, 11), "roles": NAMES(11), "digestPassword": BOOL(11),
    "mechanisms": LIST.but({"empty array"}, 2)(11), "authenticationRestrictions": LIST(11)}
ROLE_CHANGES = {"privileges": LIST(31), "roles": NAMES(2, 31), "authenticationRestrictions": LIST(31)}

SEARCHES = ["createSearchIndexes", "updateSearchIndex", "dropSearchIndex", "listSearchIndexes"]

# What is sent with an argument of each value in turn: the database, the command as it is without
# the argument, and its arguments. A function makes the command of a document inside it, whose
# fields the arguments are.
COMMANDS = {
    "find": ("args", {"find": "c"}, {
        "find": NAME_OR_UUID(26), "filter": OWNED, "projection": OWNED, "sort": OWNED, "hint": HINT(2), "collation": COLLATION, "skip": NOT_NEGATIVE,
        "limit": NOT_NEGATIVE, "batchSize": NOT_NEGATIVE, "singleBatch": FLAG, "allowDiskUse": FLAG, "min": OWNED(51173), "max": OWNED(51173),
        "returnKey": FLAG, "showRecordId": FLAG, "tailable": FLAG(2), "oplogReplay": FLAG, "noCursorTimeout": FLAG, "awaitData": FLAG(9),
        "allowPartialResults": FLAG, "mirrored": FLAG, "let": OBJECT, "term": LONG, "readOnce": FLAG, "options": UNKNOWN, "ntoreturn": UNKNOWN,
        "$_requestResumeToken": FLAG.but({"true"}, 2), "$_resumeAfter": OBJECT.but({"object"}, 2), "$_startAt": OBJECT.but({"object"}, 2), "collectionUUID": UUID(361),
        "querySettings": unsupported(OBJECT, "empty object"), **METRICS, **CONSTANTS}),
    "a find that is resumed": ("args", {"find": "c", "hint": {"$natural": 1}}, {
        "$_requestResumeToken": unsupported(FLAG, "false"), "sort": OWNED}),
    "a find after a token": ("args", {"find": "c", "hint": {"$natural": 1}, "$_requestResumeToken": True}, {
        **dict.fromkeys(("$_resumeAfter", "$_startAt"), OBJECT.but(OBJECT.taken, 238)), "hint": Rule((), 9, {**dict.fromkeys(STRINGS | OBJECTS, 2)}),
        "sort": OWNED.but({"object"}, 2).but({"empty object"}, 238)}),
    "getMore": ("args", {"getMore": Int64(1), "collection": "c"}, {
        "getMore": LONG.required()(43), "collection": Rule(STRINGS)(43, 73), "batchSize": NOT_NEGATIVE(43), "term": LONG(43),
        "includeQueryStatsMetrics": METRICS["includeQueryStatsMetrics"](43)}),
    "killCursors": ("args", {"killCursors": "c", "cursors": []}, {"killCursors": NAME, "cursors": LIST.required()}),
    "insert": ("args", {"insert": "c", "documents": [{"x": 1}]}, {
        "insert": NAME, "documents": LIST.required()(16), "collectionUUID": UUID(361), "bypassEmptyTsReplacement": SAFE_BOOL, **WRITES}),
    "update": ("args", {"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"a": 1}}}]}, {
        "update": NAME, "updates": LIST.required()(16), "let": OBJECT, "collectionUUID": UUID(361), "bypassEmptyTsReplacement": SAFE_BOOL,
        **WRITES, **CONSTANTS}),
    "a statement of update": ("args", lambda fields: {"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"a": 1}}, **fields}]}, {
        "q": OBJECT.required(), "u": UPDATE, "c": OBJECT(51198), "arrayFilters": LIST, "multi": BOOL, "upsert": BOOL, "collation": COLLATION,
        "hint": HINT(2), "sort": OBJECT, "upsertSupplied": unsupported(BOOL, "false"), "sampleId": unsupported(BINARY),
        "allowShardKeyUpdatesWithoutFullShardKeyInQuery": unsupported(BOOL, "false")}),
    "delete": ("args", {"delete": "c", "deletes": [{"q": {"_id": 77}, "limit": 1}]}, {
        "delete": NAME, "deletes": LIST.required()(16), "let": OBJECT, "collectionUUID": UUID(361), **WRITES, **CONSTANTS}),
    "a statement of delete": ("args", lambda fields: {"delete": "c", "deletes": [{"q": {"_id": 77}, "limit": 1, **fields}]}, {
        "q": OBJECT.required(), "limit": ANY(9), "collation": COLLATION, "hint": HINT(2), "sampleId": unsupported(BINARY)}),
    "findAndModify": ("args", {"findAndModify": "c", "query": {"_id": 77}, "update": {"$set": {"a": 1}}}, {
        "findAndModify": NAME, "query": OBJECT, "fields": OBJECT, "sort": OBJECT, "hint": HINT(2), "collation": COLLATION, "arrayFilters": LIST,
        "remove": SAFE_BOOL(9), "update": UPDATE, "upsert": SAFE_BOOL, "new": SAFE_BOOL, "stmtId": NUMBER, "let": OBJECT,
        "bypassDocumentValidation": SAFE_BOOL, "bypassEmptyTsReplacement": SAFE_BOOL, "encryptionInformation": unsupported(OBJECT), **CONSTANTS}),
    "bulkWrite": ("admin", bulk({"insert": 0, "document": {"x": 1}}), {
        "bulkWrite": ANY, "ops": LIST.required()(16), "nsInfo": LIST.required()(2), "ordered": BOOL, "errorsOnly": BOOL, "cursor": CURSOR,
        "bypassDocumentValidation": SAFE_BOOL, "let": OBJECT, "stmtId": NUMBER, "stmtIds": ARRAY, "bypassEmptyTsReplacement": SAFE_BOOL}),
    "an insert of bulkWrite": ("admin", lambda fields: bulk({"insert": 0, "document": {"x": 1}, **fields}), {
        "insert": NUMBER.required()(2), "document": OBJECT.required()}),
    "an update of bulkWrite": ("admin", lambda fields: bulk({"update": 0, "filter": {"_id": 77}, "updateMods": {"$set": {"a": 1}}, **fields}), {
        "update": NUMBER.required()(2), "filter": OBJECT.required(), "updateMods": UPDATE, "multi": BOOL, "upsert": BOOL, "arrayFilters": LIST,
        "hint": HINT(2), "collation": COLLATION, "constants": OBJECT(51198), "sort": OBJECT, "upsertSupplied": unsupported(BOOL, "false"),
        "sampleId": unsupported(BINARY)}),
    "a delete of bulkWrite": ("admin", lambda fields: bulk({"delete": 0, "filter": {"_id": 77}, **fields}), {
        "delete": NUMBER.required()(2), "filter": OBJECT.required(), "multi": BOOL, "hint": HINT(2), "collation": COLLATION,
        "sampleId": unsupported(BINARY)}),
    "nsInfo": ("admin", lambda fields: {**bulk({"insert": 0, "document": {"x": 1}}), "nsInfo": [{"ns": "args.c", **fields}]}, {
        "ns": FULL_NAME.but({"string"}, 73), "collectionUUID": UUID(361), "encryptionInformation": unsupported(OBJECT)}),
    "count": ("args", {"count": "c"}, {
        "count": NAME_OR_UUID(26), "query": OBJECT, "limit": WHOLE.but({"negative long"}, 2), "skip": NOT_NEGATIVE, "hint": HINT(2),
        "collation": COLLATION, "let": UNKNOWN, **METRICS}),
    "distinct": ("args", {"distinct": "c", "key": "x"}, {
        "distinct": NAME_OR_UUID(26), "key": Rule(STRINGS)(40352).required(), "query": OBJECT, "collation": COLLATION, "hint": HINT(2), **METRICS}),
    "aggregate": ("args", {"aggregate": "c", "pipeline": [], "cursor": {}}, {
        "aggregate": NAME.but(NUMBERS | {"UUID"}, 2).but({"double", "int", "long", "decimal"}, 73), "pipeline": Rule({"empty array"}),
        "cursor": OWNED(40415), "explain": FLAG, "allowDiskUse": FLAG, "bypassDocumentValidation": SAFE_BOOL, "collation": COLLATION, "hint": HINT(2),
        "let": OBJECT, "collectionUUID": UUID(361), "isMapReduceCommand": unsupported(BOOL, "false"), "needsMerge": unsupported(BOOL, "false"),
        "fromMongos": unsupported(BOOL, "false"), "exchange": unsupported(OBJECT, "empty object"), **METRICS, **CONSTANTS}),
    "a cursor": ("args", lambda fields: {"aggregate": "c", "pipeline": [], "cursor": fields}, {"batchSize": NOT_NEGATIVE}),
    "explain": ("args", {"explain": {"find": "c"}}, {"explain": OBJECT.required()(59), "verbosity": STRING.but(STRINGS, 2)}),
    "create": ("args", {"create": "made"}, {
        "create": NAME, "capped": SAFE_BOOL(72), "size": NUMBER(72), "max": NUMBER(72), "autoIndexId": SAFE_BOOL(50001), "idIndex": OBJECT(9, 197),
        "storageEngine": OBJECT(2), "validator": OBJECT, "validationLevel": STRING.but(STRINGS, 2), "validationAction": STRING.but(STRINGS, 2),
        "indexOptionDefaults": OBJECT(40415), "viewOn": STRING(2), "pipeline": LIST(72), "collation": OBJECT(40414, 40415), "temp": BOOL,
        "changeStreamPreAndPostImages": OBJECT(40414, 40415), "timeseries": OBJECT(40414, 40415), "expireAfterSeconds": NUMBER(72),
        "clusteredIndex": Rule(BOOLS | NUMBERS | OBJECTS)(40414, 40415, 5979703), "encryptedFields": OBJECT(40414, 40415),
        "recordIdsReplicated": unsupported(BOOL, "false")}),
    "timeseries": ("args", lambda fields: {"create": "made", "timeseries": {"timeField": "t", **fields}}, {
        "timeField": STRING.required(), "metaField": STRING, "granularity": STRING.but(STRINGS, 2), "bucketMaxSpanSeconds": NUMBER(2, 72),
        "bucketRoundingSeconds": NUMBER(2, 72)}),
    "clusteredIndex": ("args", lambda fields: {"create": "made", "clusteredIndex": {"key": {"_id": 1}, "unique": True, **fields}}, {
        "v": NUMBER(5979704), "key": OBJECT.required()(197), "name": STRING, "unique": SAFE_BOOL.required()(5979700)}),
    "a clustered collection": ("args", {"create": "made", "clusteredIndex": {"key": {"_id": 1}, "unique": True}}, {"expireAfterSeconds": EXPIRY}),
    "collMod of a clustered collection": ("args", {"collMod": "clustered"}, {
        "expireAfterSeconds": EXPIRY.but(STRINGS, 72)}),
    "changeStreamPreAndPostImages": ("args", lambda fields: {"create": "made", "changeStreamPreAndPostImages": fields}, {"enabled": BOOL.required()}),
    "a collation": ("args", lambda fields: {"find": "c", "collation": {"locale": "en", **fields}}, {
        "locale": STRING.required().but(STRINGS, 2), "caseLevel": BOOL, "caseFirst": STRING.but(STRINGS, 2), "strength": NUMBER(2),
        "numericOrdering": BOOL, "alternate": STRING.but(STRINGS, 2), "maxVariable": STRING.but(STRINGS, 2), "normalization": BOOL, "backwards": BOOL,
        "version": STRING.but(STRINGS, 161)}),
    "createIndexes": ("args", {"createIndexes": "made", "indexes": [{"key": {"a": 1}, "name": "a"}]}, {
        "createIndexes": NAME, "indexes": LIST.required()(2), "ignoreUnknownIndexOptions": SAFE_BOOL,
        "commitQuorum": Rule((), 9, dict.fromkeys({"string"} | NUMBERS, 2)).but(NEGATIVE | {"huge", "infinity", "decimal infinity", "empty string"}, 9)}),
    "an index": ("args", lambda fields: {"createIndexes": "made", "indexes": [{"key": {"a": 1}, "name": "a", **fields}]}, {
        "key": OWNED(67), "name": Rule(STRINGS)(67), "v": Rule(NUMBERS)(2, 67), "unique": Rule(BOOLS | NUMBERS), "sparse": Rule(BOOLS | NUMBERS),
        "hidden": FLAG, "expireAfterSeconds": ANY(67), "storageEngine": OWNED(2, 67), "default_language": Rule(STRINGS), "weights": Rule(STRINGS | OBJECTS | ARRAYS)(67),
        "language_override": Rule(STRINGS), "collation": OWNED(2, 40415), "partialFilterExpression": OWNED, "prepareUnique": Rule(BOOLS | NUMBERS),
        **dict.fromkeys(("textIndexVersion", "2dsphereIndexVersion", "bits", "min", "max", "coarsestIndexedLevel", "finestIndexedLevel"), Rule(NUMBERS)(67)),
        "nosuch": Rule((), 197)}),
    "an index of texts": ("args", lambda fields: {"createIndexes": "made", "indexes": [{"key": {"a": "text"}, "name": "a", **fields}]}, {
        "weights": OWNED.but(STRINGS | ARRAYS, 67), "default_language": Rule(STRINGS)(67), "language_override": Rule(STRINGS)(67), "textIndexVersion": Rule(NUMBERS)(67)}),
    "an index of points": ("args", lambda fields: {"createIndexes": "made", "indexes": [{"key": {"a": "2d"}, "name": "a", **fields}]}, {
        "bits": Rule(NUMBERS)(72), "min": Rule(NUMBERS)(72), "max": Rule(NUMBERS)(72)}),
    "dropIndexes": ("args", {"dropIndexes": "nosuch", "index": "a_1"}, {"dropIndexes": NAME(26, 27), "index": Rule(STRINGS | OBJECTS | {"empty array"})(26)}),
    "drop": ("args", {"drop": "nosuch"}, {"drop": NAME, "collectionUUID": UUID(361)}),
    "dropDatabase": ("args_nosuch", {"dropDatabase": 1}, {"dropDatabase": Rule(NUMBERS)(5255100).required()}),
    "collMod": ("args", {"collMod": "c"}, {
        "collMod": NAME(26), "index": OBJECT(72, 40415), "validator": OBJECT, "validationLevel": STRING.but(STRINGS, 2),
        "validationAction": STRING.but(STRINGS, 2), "viewOn": STRING(2, 72), "pipeline": LIST(72), "changeStreamPreAndPostImages": OBJECT(40414, 40415),
        "expireAfterSeconds": Rule(STRINGS | NUMBERS | ABSENT)(72), "timeseries": OBJECT(72, 40415), "cappedSize": NUMBER(2, 72), "cappedMax": NUMBER(2, 72),
        "dryRun": SAFE_BOOL(72), "usePowerOf2Sizes": UNKNOWN}),
    "an index of collMod": ("args", lambda fields: {"collMod": "c", "index": {"name": "a_1", **fields}}, {
        "name": STRING(72), "keyPattern": OBJECT(72), "expireAfterSeconds": NUMBER(72), "hidden": SAFE_BOOL(72), "prepareUnique": SAFE_BOOL(72)}),
    "renameCollection": ("admin", {"renameCollection": "args.nosuch", "to": "args.other"}, {
        "renameCollection": FULL_NAME.but({"string"}, 73), "to": FULL_NAME.but({"string"}, 73), "stayTemp": BOOL.but(BOOLS | ABSENT, 26),
        "dropTarget": Rule({"UUID"} | BOOLS, 14, {"binary": 207})(26, 361), "collectionUUID": UUID(26, 361)}),
    "convertToCapped": ("args", {"convertToCapped": "nosuch", "size": 1000}, {"convertToCapped": NAME(26), "size": ANY(2, 26, 72)}),
    "cloneCollectionAsCapped": ("args", {"cloneCollectionAsCapped": "nosuch", "toCollection": "other", "size": 1000}, {
        "cloneCollectionAsCapped": Rule(STRINGS)(26, 73), "toCollection": Rule(STRINGS)(26, 73), "size": ANY(2, 26, 72)}),
    "listCollections": ("args", {"listCollections": 1}, {
        "listCollections": ANY, "cursor": CURSOR, "filter": OBJECT, "nameOnly": BOOL, "authorizedCollections": BOOL}),
    "listDatabases": ("admin", {"listDatabases": 1}, {"listDatabases": ANY, "nameOnly": SAFE_BOOL, "filter": OBJECT, "authorizedDatabases": BOOL}),
    "listIndexes": ("args", {"listIndexes": "c"}, {
        "listIndexes": NAME_OR_UUID(26), "cursor": CURSOR, "includeBuildUUIDs": SAFE_BOOL, "includeIndexBuildInfo": SAFE_BOOL}),
    "validate": ("args", {"validate": "c"}, {"validate": NAME(26), "full": ANY, "metadata": ANY, "background": ANY, "checkBSONConformance": ANY}),
    "dbHash": ("args", {"dbHash": 1}, {"dbHash": ANY(73), "collections": ANY(2), "skipTempCollections": ANY, "$_internalReadAtClusterTime": unsupported(TIMESTAMP)}),
    "dbStats": ("args", {"dbStats": 1}, {"dbStats": ANY, "scale": NUMBER(2), "freeStorage": SAFE_BOOL}),
    "collStats": ("args", {"collStats": "c"}, {"collStats": NAME, "scale": NUMBER(2)}),
    "dataSize": ("args", {"dataSize": "args.c"}, {
        "dataSize": FULL_NAME.but({"string"}, 73), "keyPattern": OBJECT, "min": OBJECT(2), "max": OBJECT(2), "estimate": SAFE_BOOL, "maxSize": NUMBER,
        "maxObjects": NUMBER}),
    "compact": ("args", {"compact": "c"}, {"compact": NAME(26), "force": BOOL, "freeSpaceTargetMB": NUMBER(2), "dryRun": BOOL}),
    "autoCompact": ("admin", {"autoCompact": False}, {"freeSpaceTargetMB": NUMBER(2), "runOnce": BOOL}),
    "getParameter": ("admin", {"getParameter": 1, "logLevel": 1}, {"getParameter": ANY(40415), "logLevel": ANY}),
    "options of getParameter": ("admin", lambda fields: {"getParameter": fields, "logLevel": 1}, {
        "showDetails": SAFE_BOOL, "allParameters": SAFE_BOOL, "setAt": STRING.but(STRINGS, 2)}),
    "setParameter": ("admin", {"setParameter": 1, "logLevel": 0}, {
        "setParameter": ANY, "notablescan": ANY, "quiet": ANY, "ttlMonitorEnabled": ANY, "enableFlowControl": ANY,
        "cursorTimeoutMillis": Rule(BOOLS | NUMBERS, 2)(2), "ttlMonitorSleepSecs": Rule(BOOLS | NUMBERS, 2)(2), "numInitialSyncAttempts": Rule(BOOLS | NUMBERS, 2)(2),
        "temporarilyUnavailableMaxRetries": Rule(BOOLS | NUMBERS, 2)(2), "nosuch": Rule((), 72)}),
    "profile": ("args", {"profile": -1}, {"slowms": NUMBER, "sampleRate": NUMBER(2), "filter": Rule(OBJECTS | ABSENT, 2)}),
    "currentOp": ("admin", {"currentOp": 1}, {"currentOp": ANY, "$all": ANY, "$ownOps": ANY, "$truncateOps": ANY}),
    "$currentOp": ("admin", lambda fields: {"aggregate": 1, "pipeline": [{"$currentOp": fields}], "cursor": {}}, {
        "allUsers": FLAG, "localOps": FLAG, **dict.fromkeys(("idleConnections", "idleCursors", "idleSessions", "truncateOps", "targetAllNodes"), Rule(BOOLS, 9)(9))}),
    "$densify": ("args", lambda fields: piped({"$densify": {"field": "x", "range": {"step": 1, "bounds": "full"}, **fields}}), {
        "field": STRING.required()(40352), "partitionByFields": LIST, "range": OBJECT.required().but({"object"}, 40415).but({"empty object"}, 40414)}),
    "a range of $densify": ("args", lambda fields: piped({"$densify": {"field": "x", "range": {"step": 1, "bounds": "full", **fields}}}), {
        "step": Rule({"double", "fraction", "int", "long", "huge", "decimal", "decimal fraction"}, 5733401),
        "bounds": Rule((), 5733402, {**dict.fromkeys(STRINGS, 5946802), **dict.fromkeys(ARRAYS, 5733403)}), "unit": STRING.but(STRINGS, 9)}),
    "$fill": ("args", lambda fields: piped({"$fill": {"output": {"a": {"value": 1}}, **fields}}), {
        "partitionBy": Rule(STRINGS | OBJECTS), "partitionByFields": LIST, "sortBy": OBJECT, "output": OBJECT.required().but({"object"}, 14)}),
    "a field of $fill": ("args", lambda fields: piped({"$fill": {"output": {"a": {"value": 1, **fields}}}}), {
        "value": ANY, "method": STRING.but(STRINGS, 6050200)}),
    "a method of $fill": ("args", lambda fields: piped({"$fill": {"sortBy": {"x": 1}, "output": {"a": fields}}}), {
        "method": STRING.but(STRINGS, 6050202).but(ABSENT, 6050200)}),
    "$setWindowFields": ("args", lambda fields: piped({"$setWindowFields": {"output": {"n": {"$sum": 1}}, **fields}}), {
        "partitionBy": ANY.but(ARRAYS, 14), "sortBy": OBJECT, "output": OBJECT.required().but({"object"}, 9)}),
    "$bucketAuto": ("args", lambda fields: piped({"$bucketAuto": {"groupBy": "$x", "buckets": 1, **fields}}), {
        "groupBy": Rule((), 40239), "buckets": Rule({"double", "int", "long", "decimal"}, 40241).but(BROKEN | {"huge", "negative long"}, 40242).but(
            {"zero", "negative int", "negative double"}, 40243), "granularity": Rule((), 40261).but(STRINGS, 40257),
        "output": Rule({"empty object"}, 40244).but({"object"}, 40234)}),
    "$sample": ("args", lambda fields: piped({"$sample": {"size": 1, **fields}}), {
        "size": Rule(NUMBERS, 28746).but(NEGATIVE | {"zero", "NaN", "decimal NaN"}, 28747)}),
    "$facet": ("args", lambda fields: piped({"$facet": fields}), {
        "a": Rule({"empty array"}, 40170).but({"array"}, 40171), "": Rule((), 15998), "$a": Rule((), 16410), "a.b": Rule((), 16412), "a.": Rule((), 16412)}),
    "$unwind": ("args", lambda fields: piped({"$unwind": {"path": "$x", **fields}}), {
        "path": Rule((), 28808).but({"string"}, 28818).but({"empty string"}, 28812), "preserveNullAndEmptyArrays": Rule(BOOLS, 28809),
        "includeArrayIndex": Rule({"string"}, 28810)}),
    "killOp": ("admin", {"killOp": 1, "op": 999_999}, {"killOp": ANY, "op": Rule(NUMBERS)(2, 26823)}),
    **{name: ("args", {name: []}, {name: LIST.required()}) for name in ("killSessions", "killAllSessions", "killAllSessionsByPattern", "endSessions", "refreshSessions")},
    "startSession": ("args", {"startSession": 1}, {"startSession": ANY}),
    "commitTransaction": ("admin", {"commitTransaction": 1}, {
        "commitTransaction": ANY.but(VALUES, 125), "commitTimestamp": TIMESTAMP.but({"timestamp"} | ABSENT, 125), "recoveryToken": OBJECT.but(OBJECTS | ABSENT, 125)}),
    "abortTransaction": ("admin", {"abortTransaction": 1}, {
        "abortTransaction": ANY.but(VALUES, 125), "recoveryToken": OBJECT.but(OBJECTS | ABSENT, 125)}),
    "hello": ("args", {"hello": 1}, {
        "hello": ANY, "topologyVersion": OBJECT(31368), "maxAwaitTimeMS": NOT_NEGATIVE(31372), "saslSupportedMechs": Rule(STRINGS | OBJECTS)(2),
        "compression": LIST, "speculativeAuthenticate": OBJECT, "internalClient": OBJECT, "helloOk": SAFE_BOOL, "loadBalanced": SAFE_BOOL,
        "forShell": SAFE_BOOL, "hangUpOnStepDown": SAFE_BOOL, "hostInfo": STRING}),
    **{name: ("admin", {name: 1}, {name: ANY}) for name in (
        "ping", "buildInfo", "hostInfo", "whatsmyuri", "lockInfo", "top", "getCmdLineOpts", "connPoolStats", "listCommands", "features", "getDiagnosticData")},
    "serverStatus": ("admin", {"serverStatus": 1}, {"serverStatus": ANY, "metrics": ANY, "none": ANY}),
    "connectionStatus": ("args", {"connectionStatus": 1}, {"connectionStatus": ANY, "showPrivileges": SAFE_BOOL}),
    "getLog": ("admin", {"getLog": "global"}, {"getLog": Rule(STRINGS)(96).required()}),
    "fsync": ("admin", {"fsync": 1}, {"fsync": ANY, "lock": SAFE_BOOL, "fsyncLockAcquisitionTimeoutMillis": INT}),
    "planCacheSetFilter": ("args", {"planCacheSetFilter": "c", "query": {"x": 1}, "indexes": [{"x": 1}]}, {
        "planCacheSetFilter": NAME(2), "indexes": Rule(OBJECTS | ARRAYS, 2)(2), **SHAPE}),
    "planCacheClear": ("args", {"planCacheClear": "c"}, {"planCacheClear": NAME, **SHAPE}),
    "planCacheClearFilters": ("args", {"planCacheClearFilters": "c"}, {"planCacheClearFilters": NAME, **SHAPE}),
    "planCacheListFilters": ("args", {"planCacheListFilters": "c"}, {"planCacheListFilters": NAME}),
    "setQuerySettings": ("admin", {"setQuerySettings": {"find": "c", "$db": "args"}, "settings": {"reject": False}}, {
        "setQuerySettings": Rule(STRINGS | OBJECTS)(2, 40414), "settings": OBJECT.required()(40415, 8727502)}),
    "setFeatureCompatibilityVersion": ("admin", {"setFeatureCompatibilityVersion": "8.0", "confirm": True}, {
        "setFeatureCompatibilityVersion": STRING.required().but(STRINGS, 4926900), "fromConfigServer": BOOL, "changeTimestamp": TIMESTAMP,
        "phase": STRING.but(STRINGS, 2)}),
    "setUserWriteBlockMode": ("admin", {"setUserWriteBlockMode": 1, "global": False}, {
        "setUserWriteBlockMode": ANY(20), "global": BOOL.required()(20)}),
    "getClusterParameter": ("admin", {"getClusterParameter": "*"}, {"getClusterParameter": Rule(STRINGS | {"empty array"})(2, 4)}),
    "setClusterParameter": ("admin", {"setClusterParameter": {"nosuch": 1}}, {"setClusterParameter": OBJECT.required().but(OBJECTS, 4)}),
    "validateDBMetadata": ("admin", {"validateDBMetadata": 1, "apiParameters": {"version": "1"}}, {
        "validateDBMetadata": ANY, "apiParameters": OBJECT.required()(40414, 40415), "db": STRING(73), "collection": STRING(73)}),
    "reIndex": ("args", {"reIndex": "nosuch"}, {"reIndex": NAME(26)}),
    "filemd5": ("args", {"filemd5": 1}, {"filemd5": ANY, "root": STRING(73), "partialOk": SAFE_BOOL(238), "md5state": unsupported(BINARY)}),
    "usersInfo": ("args", {"usersInfo": 1}, {"usersInfo": ANY(2), "showCredentials": SAFE_BOOL, "showPrivileges": SAFE_BOOL(20), "filter": OBJECT}),
    "dropConnections": ("admin", {"dropConnections": 1, "hostAndPort": []}, {"dropConnections": ANY, "hostAndPort": LIST.required()}),
    "applyOps": ("admin", {"applyOps": []}, {"applyOps": Rule({"empty array"}), "alwaysUpsert": FLAG(6711601)}),
    "logRotate": ("admin", {"logRotate": 1}, {"logRotate": Rule(NUMBERS | STRINGS).but(STRINGS, 4)}),
    # It would end the node if all of it were known.
    "shutdown": ("admin", {"shutdown": 1, "nosuch": 1}, {
        "shutdown": Rule((), 40415), "force": SAFE_BOOL.but(SAFE_BOOL.taken, 40415), "timeoutSecs": NUMBER.but(NUMBER.taken, 40415).but(NEGATIVE, 2)}),
    "isMaster": ("args", {"isMaster": 1}, {"isMaster": ANY, "topologyVersion": OBJECT(31368), "maxAwaitTimeMS": NOT_NEGATIVE(31372)}),
    "logout": ("args", {"logout": 1}, {"logout": ANY}),
    "authenticate": ("$external", {"authenticate": 1, "mechanism": "MONGODB-X509"}, {
        "authenticate": Rule((), 334), "mechanism": STRING.required().but(STRINGS, 334)}),
    "saslStart": ("admin", {"saslStart": 1, "mechanism": "SCRAM-SHA-256", "payload": Binary(b"n,,n=x,r=abc")}, {
        "saslStart": Rule((), 18), "mechanism": STRING.required().but(STRINGS, 334), "payload": Rule((), 14, dict.fromkeys(STRINGS | {"binary", "UUID"}, 18)),
        "options": OBJECT.but(OBJECT.taken, 18)}),
    "saslContinue": ("admin", {"saslContinue": 1, "conversationId": 1, "payload": Binary(b"x")}, {
        "saslContinue": Rule((), 17), "conversationId": NUMBER.required().but(NUMBERS, 17),
        "payload": Rule((), 14, dict.fromkeys(STRINGS | {"binary", "UUID"}, 17))}),
    "mapReduce": ("args", {"mapReduce": "c", "map": Code("x"), "reduce": Code("x"), "out": "z"}, {
        "mapReduce": NAME.but({"string"}, 31264), **dict.fromkeys(("map", "reduce"), Rule((), 2, dict.fromkeys(STRINGS | {"code"}, 31264))),
        "out": Rule((), 2, dict.fromkeys(STRINGS | OBJECTS, 31264)), "finalize": Rule((), 2, dict.fromkeys(STRINGS | {"code", "null"}, 31264)),
        **dict.fromkeys(("query", "sort", "scope", "collation"), OBJECT.but(OBJECT.taken, 31264)), "limit": NUMBER.but(NUMBER.taken, 31264),
        **dict.fromkeys(("verbose", "bypassDocumentValidation"), SAFE_BOOL.but(SAFE_BOOL.taken, 31264)), "jsMode": Rule((), 31264)}),
    "prepareTransaction": ("admin", {"prepareTransaction": 1}, {"prepareTransaction": Rule((), 125)}),
    "setIndexCommitQuorum": ("args", {"setIndexCommitQuorum": "c", "indexNames": [], "commitQuorum": 1}, {
        "setIndexCommitQuorum": NAME.but({"string"}, 20), "indexNames": LIST.required().but({"empty array"}, 20),
        "commitQuorum": Rule((), 9, dict.fromkeys({"string"} | NUMBERS, 20)).but(NEGATIVE | {"huge", "infinity", "decimal infinity", "empty string"}, 9)}),
    **{name: ("admin", {name: Binary(b"x" * 16, 4), "hostAndPort": "x:1"}, {
        name: UUID.required().but({"UUID"}, 76), "hostAndPort": STRING.required().but(STRINGS, 76)}) for name in ("voteCommitIndexBuild", "voteAbortIndexBuild")},
    "removeQuerySettings": ("admin", {"removeQuerySettings": {"find": "c", "$db": "args"}}, {
        "removeQuerySettings": Rule((), 14, {**dict.fromkeys(STRINGS, 2), **dict.fromkeys(OBJECTS, 40414)})}),
    "getDefaultRWConcern": ("admin", {"getDefaultRWConcern": 1}, {"getDefaultRWConcern": Rule((), 51300), "inMemory": BOOL.but(BOOL.taken, 51300)}),
    "setDefaultRWConcern": ("admin", {"setDefaultRWConcern": 1}, {
        "setDefaultRWConcern": Rule((), 51300), **dict.fromkeys(("defaultReadConcern", "defaultWriteConcern"), OBJECT.but(OBJECT.taken, 51300))}),
    "rolesInfo": ("args", {"rolesInfo": 1}, {
        "rolesInfo": Rule(STRINGS | NUMBERS | {"empty array"}, 2), "showAuthenticationRestrictions": SAFE_BOOL, "showBuiltinRoles": SAFE_BOOL}),
    **{name: ("args", {name: 1}, {name: ANY}) for name in ("dropAllUsersFromDatabase", "dropAllRolesFromDatabase")},
    "invalidateUserCache": ("admin", {"invalidateUserCache": 1}, {"invalidateUserCache": ANY}),
    "createUser": ("args", {"createUser": "u", "pwd": "p", "roles": []}, {
        "createUser": STRING.required().but({"empty string"}, 12)(51003), "pwd": STRING.but(ABSENT | {"empty string"}, 2)(51003),
        "roles": NAMES.required()(51003), "customData": OBJECT(51003), "digestPassword": BOOL(2, 51003), "mechanisms": LIST.but({"empty array"}, 2)(51003),
        "authenticationRestrictions": LIST(51003)}),
    "updateUser": ("args", {"updateUser": "nosuch", "customData": {}}, {"updateUser": STRING.required()(11), **USER_CHANGES}),
    "dropUser": ("args", {"dropUser": "nosuch"}, {"dropUser": STRING.required()(11)}),
    **{name: ("args", {name: "nosuch", "roles": ["read"]}, {name: STRING.required()(11), "roles": SOME_NAMES(11)})
       for name in ("grantRolesToUser", "revokeRolesFromUser")},
    "createRole": ("args", {"createRole": "r", "privileges": [], "roles": []}, {
        "createRole": STRING.required().but({"empty string"}, 2)(51002), "privileges": LIST.required()(51002), "roles": NAMES.required()(51002),
        "authenticationRestrictions": LIST(51002)}),
    "updateRole": ("args", {"updateRole": "nosuch", "roles": []}, {"updateRole": STRING.required()(31), **ROLE_CHANGES}),
    "dropRole": ("args", {"dropRole": "nosuch"}, {"dropRole": STRING.required()(31)}),
    **{name: ("args", {name: "nosuch", "roles": ["read"]}, {name: STRING.required()(31), "roles": SOME_NAMES(31)})
       for name in ("grantRolesToRole", "revokeRolesFromRole")},
    **{name: ("args", {name: "nosuch", "privileges": [PRIVILEGE]}, {
        name: STRING.required()(31), "privileges": LIST.required().but({"empty array"}, 2)(31)})
       for name in ("grantPrivilegesToRole", "revokePrivilegesFromRole")},
    **{name: ("args", {name: "c"}, {name: NAME.but({"string"}, 31082)}) for name in SEARCHES},
    **{name: ("args", {name: "c", tokens: {}}, {
        name: NAME.but({"string"}, 26), tokens: OBJECT.required().but(OBJECTS, code),
        "encryptionInformation": OBJECT.but(OBJECT.taken, code)}) for name, tokens, code in (
            ("compactStructuredEncryptionData", "compactionTokens", 6346807), ("cleanupStructuredEncryptionData", "cleanupTokens", 7618804))},
    "_replCatalogRows": ("admin", {"_replCatalogRows": 1}, {"_replCatalogRows": ANY}),
    **{name: ("admin", {name: 1}, {name: Rule((), code)}) for name, code in REFUSED.items()},
    "what every command has": ("args", {"find": "c"}, {
        "comment": ANY, "help": ANY, "maxTimeMS": WHOLE.but(NEGATIVE | {"huge"}, 2)(50), "maxTimeMSOpOnly": WHOLE.but(NEGATIVE | {"huge"}, 2)(50),
        "readConcern": OBJECT(40415), "writeConcern": OBJECT(72, 40415), "lsid": OBJECT(40414, 40415), "txnNumber": LONG(72), "autocommit": BOOL(72),
        "startTransaction": BOOL(72), "startOrContinueTransaction": BOOL(72), "$readPreference": OBJECT(40414), "$clusterTime": OBJECT(40414),
        "apiVersion": STRING(322), "apiStrict": BOOL(4886600), "apiDeprecationErrors": BOOL(4886600), "rawData": BOOL, "$client": OBJECT, "$audit": OBJECT,
        "$configTime": TIMESTAMP, "$topologyTime": TIMESTAMP, "clientOperationKey": UUID, "mayBypassWriteBlocking": BOOL,
        "allowImplicitCollectionCreation": BOOL, "coordinator": BOOL,
        "databaseVersion": OBJECT.but(OBJECTS, 40414),
        "shardVersion": OBJECT.but(OBJECTS, 40414).but(ARRAYS, 2)}),
    "readConcern": ("args", lambda fields: {"find": "c", "readConcern": fields}, {
        "level": STRING.but(STRINGS, 2), "afterClusterTime": Rule((), 14, {"timestamp": 20}), "atClusterTime": Rule((), 14, {"timestamp": 72}),
        "afterOpTime": OBJECT(40414), "provenance": STRING.but(STRINGS, 2), "allowTransactionTableSnapshot": unsupported(BOOL, "false"),
        "waitLastStableRecoveryTimestamp": unsupported(BOOL, "false")}),
    "writeConcern": ("args", lambda fields: {"insert": "c", "documents": [{"x": 1}], "writeConcern": fields}, {
        "w": ANY(2, 9), "j": SAFE_BOOL, "wtimeout": ANY(9), "provenance": STRING.but(STRINGS, 2)}),
    "$readPreference": ("args", lambda fields: {"find": "c", "$readPreference": {"mode": "nearest", **fields}}, {
        "mode": STRING.required().but(STRINGS, 2), "tags": LIST, "maxStalenessSeconds": NUMBER(2, 160), "hedge": OBJECT}),
    "lsid": ("args", lambda fields: {"find": "c", "lsid": {"id": Binary(b"y" * 16, 4), **fields}}, {
        "id": UUID.required(), "uid": BINARY(12), "txnNumber": LONG(72), "txnUUID": UUID(72)}),
}
# What a command left behind that the next one would meet.
UNDO = {
    "fsync": [("admin", {"fsyncUnlock": 1})], "profile": [("args", {"profile": 0, "slowms": 100, "sampleRate": 1.0, "filter": "unset"})],
    "setParameter": [("admin", {
        "setParameter": 1, "notablescan": False, "quiet": False, "ttlMonitorEnabled": True, "enableFlowControl": True, "cursorTimeoutMillis": 600_000,
        "ttlMonitorSleepSecs": 60, "numInitialSyncAttempts": 10, "temporarilyUnavailableMaxRetries": 10})],
    "planCacheSetFilter": [("args", {"planCacheClearFilters": "c"})],
    "createUser": [("args", {"dropAllUsersFromDatabase": 1})], "createRole": [("args", {"dropAllRolesFromDatabase": 1})],
    "an index of collMod": [("args", {"collMod": "c", "index": {"name": "a_1", "hidden": False, "prepareUnique": False}})],
}
# They make a collection where they succeed.
MAKES = {"a clustered collection", "create", "timeseries", "clusteredIndex", "changeStreamPreAndPostImages", "createIndexes", "an index", "an index of texts", "an index of points"}


@pytest.fixture(scope="module")
def wire(node):
    with Wire(node.port) as connected:
        connected.command("args", {"insert": "c", "documents": [{"_id": 1, "x": 1}]})
        connected.command("args", {"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a_1"}]})
        connected.command("args", {"create": "clustered", "clusteredIndex": {"key": {"_id": 1}, "unique": True}})
        yield connected


def code_of(reply):
    """The code of what failed: the command, its first statement, or nothing."""
    failed = [reply, *reply.get("writeErrors", ())]
    if isinstance(reply.get("cursor"), dict):
        failed += [entry for entry in reply["cursor"].get("firstBatch", ()) if entry.get("ok") == 0]
    return next((entry["code"] for entry in failed if entry.get("code") and entry is not reply or entry.get("ok") == 0), "ok")


def differences(wire, name, database, command, arguments):
    """What is answered to each value of each argument where it is not what the rule says."""
    for argument, rule in arguments.items():
        for kind, value in VALUES.items():
            body = command({argument: value}) if callable(command) else {**command, argument: value}
            reply = wire.command(database, body)
            if code_of(reply) not in rule.expected(kind):
                yield f"{argument}: {kind} -> {code_of(reply)} {reply.get('errmsg', '')!r}, not {rule.expected(kind)}"
            if name in MAKES and reply["ok"]:
                wire.command("args", {"drop": "made"})
            if reply.get("lockCount"):
                wire.command("admin", {"fsyncUnlock": 1})


@pytest.mark.parametrize("name", COMMANDS)
def test_types_of_arguments(wire, name):
    database, command, arguments = COMMANDS[name]
    try:
        assert not list(differences(wire, name, database, command, arguments))
    finally:
        for database, undo in UNDO.get(name, ()):
            wire.command(database, undo)


# These pass over what they do not know, as in MongoDB.
LENIENT = {
    "convertToCapped", "cloneCollectionAsCapped", "validate", "dbHash", "getParameter", "setParameter", "currentOp", "killSessions", "killAllSessions", "startSession",
    "hello", "whatsmyuri", "connPoolStats", "listCommands", "serverStatus", "planCacheSetFilter", "planCacheClear", "planCacheClearFilters", "planCacheListFilters",
    "getClusterParameter", "setClusterParameter", "applyOps", "isMaster", "authenticate",
}


OF_UNKNOWN = {
    "an index": 197, "an index of texts": 197, "an index of points": 197, "$currentOp": 9, "$bucketAuto": 40245, "$sample": 28748, "$facet": 40170, "$unwind": 28811}


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in LENIENT | REFUSED.keys()])
def test_unknown_and_repeated_arguments(wire, name):
    database, command, _ = COMMANDS[name]
    body = command({"nosuch": 1}) if callable(command) else {**command, "nosuch": 1}
    expected = {**OF_UNKNOWN, **dict.fromkeys(SEARCHES, 31082)}.get(name, 40415)
    if name == "$readPreference":
        expected = "ok"
    assert code_of(wire.command(database, body)) == expected
    if not callable(command):
        repeated = bson.encode(command)[4:-1] + bson.encode({"comment": 1})[4:-1] * 2 + b"\0"
        assert code_of(wire.command(database, struct.pack("<i", len(repeated) + 4) + repeated)) == 40413


def test_expiry_of_clustered_collections_reaches_to_1970(wire):
    now = int(datetime.datetime.now().timestamp())
    for secs, code in [(0, "ok"), (now - 1000, "ok"), (now + 1000, 72), (2**33, 72), (2**53, 72), (-1, 72)]:
        assert code_of(wire.command("args", {"collMod": "clustered", "expireAfterSeconds": Int64(secs)})) == code, secs
        for option in ({"clusteredIndex": {"key": {"_id": 1}, "unique": True}}, {"timeseries": {"timeField": "t"}}):
            assert code_of(wire.command("args", {"create": "made", "expireAfterSeconds": float(secs), **option})) == code, (secs, option)
            wire.command("args", {"drop": "made"})
    assert code_of(wire.command("args", {"collMod": "clustered", "expireAfterSeconds": "off"})) == "ok"


LONG_NAME = "n" * 300


@pytest.mark.parametrize("command,expected", [
    ({"find": "NAME"}, {"$x": 73, "a$b": 73}), ({"count": "NAME"}, {"$x": 73, "a$b": 73}), ({"distinct": "NAME", "key": "x"}, {"$x": 73, "a$b": 73}),
    ({"aggregate": "NAME", "pipeline": [], "cursor": {}}, {"$cmd.aggregate": 73}), ({"getMore": Int64(5), "collection": "NAME"}, 43), ({"killCursors": "NAME", "cursors": []}, {}),
    ({"drop": "NAME"}, {}), ({"dropIndexes": "NAME", "index": "*"}, 26), ({"collMod": "NAME"}, 26), ({"validate": "NAME"}, 26), ({"collStats": "NAME"}, {}),
    ({"convertToCapped": "NAME", "size": 4096}, 26), ({"compact": "NAME"}, 26), ({"planCacheClear": "NAME"}, {}), ({"planCacheListFilters": "NAME"}, {}),
    ({"dataSize": "args.NAME"}, {}), ({"reIndex": "NAME"}, 26), ({"explain": {"find": "NAME"}}, {"$x": 73, "a$b": 73}),
    *((write, dict.fromkeys(("$x", "a$b", LONG_NAME), 73)) for write in (
        {"insert": "NAME", "documents": [{}]}, {"update": "NAME", "updates": [{"q": {}, "u": {"$set": {"a": 1}}}]}, {"delete": "NAME", "deletes": [{"q": {}, "limit": 0}]},
        {"findAndModify": "NAME", "remove": True}, {"create": "NAME"}, {"createIndexes": "NAME", "indexes": [{"key": {"a": 1}, "name": "a"}]},
        {"cloneCollectionAsCapped": "c", "toCollection": "NAME", "size": 4096})),
], ids=lambda value: next(iter(value), None) if isinstance(value, dict) else "")
def test_names_of_collections(wire, command, expected):
    def named(value, name):
        if isinstance(value, dict):
            return {key: named(inner, name) for key, inner in value.items()}
        return value.replace("NAME", name) if isinstance(value, str) else value

    for name in ("$x", "a$b", LONG_NAME, "a..b", "x."):
        wanted = expected.get(name, "ok") if isinstance(expected, dict) else expected
        reply = wire.command("args", named(command, name))
        assert code_of(reply) == wanted, (name[:10], reply)
        if "$" not in name and name != LONG_NAME:
            wire.command("args", {"drop": name})
    for name in ("", ".x", "a\0b"):
        assert code_of(wire.command("args", named(command, name))) == 73, name


VOTE = {
    "setName": "other", "dryRun": True, "term": Int64(1), "candidateIndex": Int64(0), "configVersion": Int64(1), "configTerm": Int64(1),
    "lastAppliedOpTime": {"ts": Timestamp(1, 1), "t": Int64(1)}}
TERM = NUMBER.required().but({"infinity", "huge", "negative long", "decimal infinity"}, 2)
# As a boolean is read where no definition says what null is.
GIVEN_BOOL = Rule(BOOLS | NUMBERS)
# What members of a set have, and what they answer to otherwise, as a primary that is alone.
OF_MEMBERS = {
    "createIndexes": ("args", {"createIndexes": "made", "indexes": [{"key": {"a": 1}, "name": "a"}]}, {
        "commitQuorum": Rule({"string", "empty string"} | NUMBERS, 9)(9, 79, 278)}),
    "setDefaultRWConcern": ("admin", {"setDefaultRWConcern": 1, "defaultReadConcern": {"level": "local"}}, {
        "setDefaultRWConcern": ANY, "defaultReadConcern": OBJECT(2, 40415), "defaultWriteConcern": OBJECT(40415)}),
    "getDefaultRWConcern": ("admin", {"getDefaultRWConcern": 1}, {"getDefaultRWConcern": ANY, "inMemory": BOOL}),
    "appendOplogNote": ("admin", {"appendOplogNote": 1, "data": {"a": 1}}, {"data": OWNED, "maxClusterTime": Rule({"timestamp"})(209)}),
    # Each that is taken would be run.
    "dbCheck": ("args", {"dbCheck": "nosuch"}, {
        "dbCheck": Rule({"string"} | NUMBERS, 14, {"empty string": 73})(26), "validateMode": STRING(2, 26), "secondaryIndex": STRING(26, 72),
        "skipLookupForExtraKeys": SAFE_BOOL(26, 72), "bsonValidateMode": STRING(2, 26), "start": OBJECT(26, 72), "end": OBJECT(26, 72), "minKey": ANY(26),
        "maxKey": ANY(26), "maxCount": NUMBER(26, 2), "maxSize": NUMBER(26, 2), "maxDocsPerBatch": NUMBER(26, 2),
        "maxBatchTimeMillis": NUMBER(26, 2), "snapshotRead": SAFE_BOOL(26, 6769501), "batchWriteConcern": OBJECT(26, 40415)}),
    "replSetGetStatus": ("admin", {"replSetGetStatus": 1}, {"replSetGetStatus": ANY, "initialSync": GIVEN_BOOL, "forShell": ANY}),
    "replSetGetConfig": ("admin", {"replSetGetConfig": 1}, {"replSetGetConfig": ANY, "commitmentStatus": GIVEN_BOOL}),
    "replSetGetRBID": ("admin", {"replSetGetRBID": 1}, {"replSetGetRBID": ANY}),
    "replSetInitiate": ("admin", {"replSetInitiate": 1}, {"replSetInitiate": Rule((), 23)}),
    "replSetFreeze": ("admin", {"replSetFreeze": 1}, {"replSetFreeze": NUMBER.required().but(NEGATIVE, 2)(95)}),
    "replSetSyncFrom": ("admin", {"replSetSyncFrom": "x:1"}, {"replSetSyncFrom": STRING.required()(9, 95)}),
    "replSetReconfig": ("admin", {"replSetReconfig": {}}, {"replSetReconfig": OBJECT.required().but(OBJECTS, 40414), "force": Rule((), 40414)}),
    "replSetResizeOplog": ("admin", {"replSetResizeOplog": 1}, {"size": NUMBER(2), "minRetentionHours": NUMBER(2)}),
    "replSetStepDown": ("admin", {"replSetStepDown": 1, "secondaryCatchUpPeriodSecs": 0}, {"replSetStepDown": Rule((), 262, dict.fromkeys(NEGATIVE, 2))}),
    # It would wait as long as it says if all of it were known.
    "the wait of replSetStepDown": ("admin", {"replSetStepDown": 1, "nosuch": 1}, {
        "secondaryCatchUpPeriodSecs": NUMBER.but(ABSENT, 14).but(NUMBERS, 40415).but(NEGATIVE | BROKEN, 2)}),
    "replSetStepUp": ("admin", {"replSetStepUp": 1}, {"replSetStepUp": ANY, "skipDryRun": GIVEN_BOOL}),
    "replSetMaintenance": ("admin", {"replSetMaintenance": True}, {"replSetMaintenance": Rule((), 95)}),
    "replSetAbortPrimaryCatchUp": ("admin", {"replSetAbortPrimaryCatchUp": 1}, {"replSetAbortPrimaryCatchUp": Rule((), 20)}),
    "replSetHeartbeat": ("admin", {"replSetHeartbeat": "other", "configVersion": Int64(1), "term": Int64(1)}, {
        "replSetHeartbeat": STRING.required().but(STRINGS, 108), **dict.fromkeys(("configTerm", "fromId", "primaryId"), NUMBER.but(NUMBER.taken, 108)),
        "configVersion": NUMBER.required().but(NUMBERS, 108), "term": TERM.but(TERM.taken, 108), "from": STRING.but(STRING.taken, 108),
        "checkEmpty": SAFE_BOOL.but(SAFE_BOOL.taken, 108)}),
    "replSetRequestVotes": ("admin", {"replSetRequestVotes": 1, **VOTE}, {
        "replSetRequestVotes": ANY, "setName": STRING.required(),
        "candidateIndex": NUMBER.required().but(NEGATIVE | {"infinity", "huge", "decimal infinity"}, 2), "configVersion": NUMBER.required(),
        "configTerm": NUMBER, "lastWrittenOpTime": OBJECT.but(OBJECTS, 40414)}),
    "replSetUpdatePosition": ("admin", {"replSetUpdatePosition": 1, "optimes": []}, {"replSetUpdatePosition": ANY, "optimes": LIST.required()}),
    "$changeStream": ("args", lambda fields: piped({"$changeStream": fields}), {
        **dict.fromkeys(("resumeAfter", "startAfter"), OBJECT.but(OBJECTS, 40647)), "startAtOperationTime": TIMESTAMP(286),
        **dict.fromkeys(("fullDocument", "fullDocumentBeforeChange"), STRING.but(STRINGS, 2)), "allChangesForCluster": FLAG.but({"true"}, 72),
        "showExpandedEvents": FLAG, **dict.fromkeys(("showMigrationEvents", "showSystemEvents", "matchCollectionUUIDForUpdateLookup"), unsupported(BOOL, "false")),
        "supportedEvents": unsupported(ARRAY, "empty array"), "nosuch": UNKNOWN}),
    "_isSelf": ("admin", {"_isSelf": 1}, {"_isSelf": ANY}),
    "_replFreezeCheckpoint": ("admin", {"_replFreezeCheckpoint": 1}, {"copier": STRING.required()}),
    "_replReadCheckpoint": ("admin", {"_replReadCheckpoint": 1, "number": Int64(99)}, {
        "number": LONG.required()(43), "partition": NUMBER(2, 43), "offset": LONG(2, 43)}),
    "_replReleaseCheckpoint": ("admin", {"_replReleaseCheckpoint": 1}, {"number": LONG.required()}),
}


# Other nodes refuse these before they read them. test_cluster_roles.py sends them to config
# servers and shards.
OF_CLUSTERS = {"_addShard", "_cloneCollectionOptionsFromPrimaryShard", "_shardsvrShardCollection", "setShardVersion", "unsetSharding",
               "_configsvrAddShard", "_configsvrAddShardToZone", "_configsvrBalancerCollectionStatus",
               "_configsvrBalancerStart", "_configsvrBalancerStatus", "_configsvrBalancerStop", "_configsvrClearJumboFlag",
               "_configsvrCollMod", "_configsvrCommitChunkSplit", "_configsvrCommitChunksMerge", "_configsvrCommitCreateCollection",
               "_configsvrCommitDropCollection", "_configsvrCommitMergeAllChunksOnShard", "_configsvrCommitMovePrimary",
               "_configsvrCommitRefineCollectionShardKey", "_configsvrConfigureCollectionBalancing", "_configsvrCreateDatabase",
               "_configsvrDropDatabase", "_configsvrRemoveShardFromZone", "_configsvrRenameCollectionMetadata",
               "_configsvrSetAllowMigrations", "_configsvrSetClusterParameter", "_configsvrSetUserWriteBlockMode",
               "_configsvrUpdateZoneKeyRange", "_flushDatabaseCacheUpdates", "_flushRoutingTableCacheUpdates",
               "_shardsvrCheckMetadataConsistency", "_shardsvrCheckMetadataConsistencyParticipant", "_shardsvrCloneCatalogData",
               "_shardsvrCollMod", "_shardsvrCollModParticipant", "_shardsvrConvertToCapped", "_shardsvrCreateCollection",
               "_shardsvrCreateCollectionParticipant", "_shardsvrDropCollection", "_shardsvrDropCollectionParticipant",
               "_shardsvrDropDatabase", "_shardsvrDropDatabaseParticipant", "_shardsvrDropIndexes",
               "_shardsvrDropIndexesParticipant", "_shardsvrMergeAllChunksOnShard", "_shardsvrMergeChunks",
               "_shardsvrMovePrimary", "_shardsvrMovePrimaryAbort", "_shardsvrParticipantBlock",
               "_shardsvrRefineCollectionShardKey", "_shardsvrRenameCollection", "_shardsvrRenameCollectionParticipant",
               "_shardsvrSetAllowMigrations", "_shardsvrSetClusterParameter", "_shardsvrSetUserWriteBlockMode",
               "checkShardingIndex", "getDatabaseVersion", "getShardVersion", "internalRenameIfOptionsAndIndexesMatch", "shardingState", "splitChunk", "splitVector"}


def commands_without_rows(wire, *tables):
    rows = {next(iter(command({}) if callable(command) else command)) for table in tables for _, command, _ in table.values()}
    return wire.command("admin", {"listCommands": 1})["commands"].keys() - rows - OF_CLUSTERS


def test_every_command_has_a_row(wire):
    assert not commands_without_rows(wire, COMMANDS)


def test_arguments_of_members():
    with ReplicaSet(1) as members, Wire(members.nodes[0].port) as wire:
        members.primary()
        assert not commands_without_rows(wire, COMMANDS, OF_MEMBERS)
        found = [f"{name}.{line}" for name, case in OF_MEMBERS.items() for line in differences(wire, name, *case)]
        assert not found
