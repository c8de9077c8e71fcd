"""Fields of commands that MongoDB 7.0 reads otherwise than 4.4 did: by its IDL instead of by
hand."""

import re

from codec import Undefined

# Fields that 4.4 read by hand, with "*" for a place in a list. It gave a wrong type codes of the
# command's own (2, 9, 10065, 31160, ...) or took it as it was; 7.0 answers TypeMismatch (14), and
# 40414 where the field is required and absent.
HAND_READ = set("""
    find.filter find.sort find.projection find.hint find.skip find.limit find.batchSize find.singleBatch find.allowDiskUse find.noCursorTimeout
    find.tailable find.awaitData find.allowPartialResults find.collation find.min find.max find.returnKey find.showRecordId
    aggregate.bypassDocumentValidation aggregate.pipeline aggregate.cursor aggregate.cursor.batchSize aggregate.allowDiskUse aggregate.hint aggregate.collation
    count.query count.limit count.skip count.hint count.collation distinct.key distinct.query distinct.collation
    findAndModify.query findAndModify.sort findAndModify.update findAndModify.remove findAndModify.new findAndModify.fields findAndModify.upsert
    findAndModify.hint findAndModify.collation findAndModify.arrayFilters findAndModify.bypassDocumentValidation
    insert.documents insert.documents.* update.updates update.updates.* delete.deletes delete.deletes.*
    update.updates.*.arrayFilters update.updates.*.hint delete.deletes.*.hint
    getMore.getMore getMore.collection getMore.batchSize killCursors.cursors killCursors.cursors.* explain.verbosity explain.explain
    createIndexes.indexes createIndexes.indexes.* dropIndexes.index listIndexes.cursor listIndexes.cursor.batchSize
    listCollections.filter listCollections.nameOnly listCollections.authorizedCollections listCollections.cursor listCollections.cursor.batchSize
    renameCollection.renameCollection renameCollection.to
    create.pipeline dbStats.dbStats dbStats.scale dbStats.freeStorage collStats.scale dropDatabase.dropDatabase killOp.op killOp.killOp
    connectionStatus.showPrivileges fsync.async shutdown.force shutdown.timeoutSecs
    endSessions.endSessions refreshSessions.refreshSessions killSessions.killSessions
    endSessions.endSessions.* refreshSessions.refreshSessions.* killSessions.killSessions.*
    maxTimeMS readConcern readConcern.level writeConcern writeConcern.w writeConcern.j writeConcern.wtimeout
    $readPreference $readPreference.mode
""".split())
# Optional fields of those, and of the ones that 4.4 read by its first IDL: null is as if they were
# absent in 7.0.
NULL_IS_ABSENT = HAND_READ | set("lsid lsid.id txnNumber comment create.capped create.autoIndexId create.idIndex create.collation create.storageEngine create.validator create.indexOptionDefaults create.size create.max create.viewOn create.validationLevel create.validationAction".split())
# Arguments that every command takes.
GENERIC = {"lsid", "txnNumber", "maxTimeMS", "readConcern", "writeConcern", "$readPreference", "comment"}


def name_of(command):
    return next(iter(command))


def named_field(reply):
    """The field that an error of 7.0's IDL names: the command's, or one that every command
    takes."""
    found = re.search(r"(?:BSON field|for field|Field|Expected field) '?([\w$.]+?)'?(?:to be| is| should| value|$)", reply.get("errmsg", ""))
    return re.sub(r"\.\d+", ".*", found.group(1)) if found else ""


def inner(command):
    """The command that is explained, or the command itself."""
    nested = command["explain"] if name_of(command) == "explain" else None
    return nested if isinstance(nested, dict) and nested else command


def in_list(command, path, fields):
    """The path as a list of fields has it, or None; a path may lack the command's name, and explain
    names the inner command."""
    name = name_of(inner(command))
    head, _, tail = path.partition(".")
    own = [tail if tail.split(".")[0] in GENERIC else f"{name}.{tail}", f"explain.{tail}"] if head in (name, "explain") else []
    return next((candidate for candidate in [path, f"{name}.{path}", *own] if candidate in fields), None)


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


def values_of(command, field):
    """The values of a field of a list, whose first part may be the command's name."""
    found = []
    for one in (command, inner(command)):
        head, _, rest = field.partition(".")
        if rest and head == name_of(one):
            # `find.find` is the command's own field.
            found += values_at(one, rest) + values_at(one, field)
        elif head in GENERIC:
            found += values_at(one, field)
        if one is inner(command) and one is command:
            break
    return found


BSON_NAMES = {
    "float": "double", "str": "string", "SON": "object", "dict": "object", "list": "array", "Binary": "binData", "bytes": "binData", "Undefined": "undefined",
    "ObjectId": "objectId", "bool": "bool", "DatetimeMS": "date", "NoneType": "null", "Regex": "regex", "DBPointer": "dbPointer", "Symbol": "symbol",
    "int": "int", "Timestamp": "timestamp", "Int64": "long", "Decimal128": "decimal", "MinKey": "minKey", "MaxKey": "maxKey",
}


def bson_name(value):
    """The name of a value's BSON type."""
    if type(value).__name__ == "Code":
        return "javascript" if value.scope is None else "javascriptWithScope"
    if type(value).__name__ == "int" and not -(2**31) <= value < 2**31:
        return "long"
    return BSON_NAMES[type(value).__name__]


def truly_wrong(command, field, reply):
    """Whether the command's value there has the type that the error says it has, and not one that
    it says it wants."""
    found = re.search(r"wrong type '(\w+)', expected types? '\[?([\w, ]+)", reply["errmsg"])
    types = {bson_name(value) for value in values_of(command, field)}
    if found:
        return found.group(1) in types | ({"long"} if "int" in types else set()) and found.group(1) not in found.group(2).split(", ")
    return bool(types)


def read_by_idl(command, a, b):
    """Whether 7.0's IDL refuses a field for its type or its absence that 4.4 read by hand."""
    field = in_list(command, named_field(a), HAND_READ)
    if not field or a.get("code") not in (14, 40414):
        return False
    values = values_of(command, field)
    if a["code"] == 40414:
        return all(value is None or isinstance(value, Undefined) for value in values)
    return truly_wrong(command, field, a)


def last_name(field):
    parts = [part for part in field.split(".") if part != "*"]
    return parts[-1]


def names_field(field, reply):
    """Whether an error speaks of this field."""
    return re.search(rf"\b{re.escape(last_name(field).lstrip('$'))}\b", reply.get("errmsg", ""), re.IGNORECASE) is not None


def null_field(command, b):
    """A field that holds null or undefined and that 4.4's error speaks of."""
    for field in NULL_IS_ABSENT:
        if any(value is None or isinstance(value, Undefined) for value in values_of(command, field)) and names_field(field, b):
            return field
    return None


def is_name(value):
    return bson_name(value) == "string"
