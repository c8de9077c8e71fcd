"""Names of databases and collections: every command that takes one, on every kind of name, by the
rules of what the command does with it."""

import pytest
from bson import Binary, Int64
from pinion_wire import Wire

LONG = "n" * 300
# What is no name at all, wherever it stands.
NO_NAMES = [".", ".x", "a\0b"]
# What may be looked for, and never be made or written to.
DOLLARS = ["$", "$x", "a$b", "a$", "$cmd"]
# Names of the system that it does not have.
SYSTEM = ["system.foo", "system.", "system.indexes", "system.namespaces"]
PLAIN = ["a..b", "x.", "a b", "a/b", "a\\b", 'a"b', "é", "system", "systemx.a"]
NO_DATABASES = ["", ".", "$", "$x", "a$b", "a/b", "a\\b", 'a"b', "a b", "a\0b", "d" * 64, "é" * 32]
DATABASES = ["d" * 63, "é" * 31, "a*b", "a:b", "a<b", "a|b", "a?b", "-"]
FULL = "ns.NAME"


def piped(*stages):
    return {"aggregate": "c", "pipeline": list(stages), "cursor": {}}


def bulk(op):
    return {"bulkWrite": 1, "ops": [op], "nsInfo": [{"ns": FULL}]}


UPDATE = {"q": {}, "u": {"$set": {"a": 1}}}
INDEX = [{"key": {"a": 1}, "name": "a_1"}]
# Each class of commands: for each kind of name what is answered. What is no name is refused with 73
# by all of them.
LOOKED_FOR = {"dollars": "ok", "pseudo": "ok", "long": "ok", "system": "ok", "plain": "ok"}
READ = {**LOOKED_FOR, "dollars": 73}
GONE = dict.fromkeys(LOOKED_FOR, 26)
WRITTEN = {**dict.fromkeys(LOOKED_FOR, 73), "plain": "ok"}
WRITTEN_BY_OUT = {**dict.fromkeys(LOOKED_FOR, 20), "plain": "ok", "system": 17385}
WRITTEN_BY_MERGE = {**WRITTEN, "system": 31319}
COMMANDS = [
    (READ, "ns", {"find": "NAME"}), (READ, "ns", {"count": "NAME"}), (READ, "ns", {"distinct": "NAME", "key": "x"}), (READ, "ns", {"explain": {"find": "NAME"}}),
    (READ, "ns", {"explain": {"count": "NAME"}}), ({**GONE, "dollars": 73}, "ns", {"listIndexes": "NAME"}),
    (LOOKED_FOR, "ns", {"aggregate": "NAME", "pipeline": [], "cursor": {}}), (LOOKED_FOR, "ns", {"drop": "NAME"}), (LOOKED_FOR, "ns", {"collStats": "NAME"}),
    (LOOKED_FOR, "ns", {"dataSize": FULL}), (LOOKED_FOR, "ns", {"killCursors": "NAME", "cursors": []}), (LOOKED_FOR, "ns", {"planCacheClear": "NAME"}),
    (LOOKED_FOR, "ns", {"planCacheListFilters": "NAME"}), (LOOKED_FOR, "ns", {"planCacheClearFilters": "NAME"}),
    (LOOKED_FOR, "ns", piped({"$lookup": {"from": "NAME", "as": "x", "pipeline": []}})), (LOOKED_FOR, "ns", piped({"$unionWith": "NAME"})),
    (LOOKED_FOR, "ns", piped({"$unionWith": {"coll": "NAME", "pipeline": []}})),
    (LOOKED_FOR, "ns", piped({"$facet": {"a": [{"$lookup": {"from": "NAME", "as": "x", "pipeline": []}}]}})),
    (LOOKED_FOR, "ns", piped({"$graphLookup": {"from": "NAME", "startWith": "$a", "connectFromField": "a", "connectToField": "b", "as": "x"}})),
    (LOOKED_FOR, "ns", {"validateDBMetadata": 1, "apiParameters": {"version": "1"}, "collection": "NAME"}),
    (dict.fromkeys(LOOKED_FOR, 43), "ns", {"getMore": Int64(5), "collection": "NAME"}),
    (GONE, "ns", {"collMod": "NAME"}), (GONE, "ns", {"dropIndexes": "NAME", "index": "*"}), (GONE, "ns", {"validate": "NAME"}), (GONE, "ns", {"compact": "NAME"}),
    (GONE, "ns", {"reIndex": "NAME"}), (GONE, "ns", {"compactStructuredEncryptionData": "NAME", "compactionTokens": {}}),
    *((WRITTEN, "ns", command) for command in (
        {"insert": "NAME", "documents": [{}]}, {"update": "NAME", "updates": [UPDATE]}, {"update": "NAME", "updates": [{**UPDATE, "upsert": True}]},
        {"delete": "NAME", "deletes": [{"q": {}, "limit": 0}]}, {"findAndModify": "NAME", "query": {}, "remove": True},
        {"findAndModify": "NAME", "query": {}, "update": {"a": 1}, "upsert": True}, {"create": "NAME"}, {"create": "NAME", "viewOn": "c", "pipeline": []},
        {"createIndexes": "NAME", "indexes": INDEX}, {"cloneCollectionAsCapped": "c", "toCollection": "NAME", "size": 4096})),
    *((WRITTEN, "admin", command) for command in (
        bulk({"insert": 0, "document": {}}), bulk({"update": 0, "filter": {}, "updateMods": {"$set": {"a": 1}}}), bulk({"delete": 0, "filter": {}}),
        {"renameCollection": "ns.c", "to": FULL}, {"applyOps": [{"op": "c", "ns": "ns.$cmd", "o": {"create": "NAME"}}]})),
    (WRITTEN_BY_OUT, "ns", piped({"$out": "NAME"})),
    (WRITTEN_BY_OUT, "ns", piped({"$out": {"db": "ns", "coll": "NAME"}})),
    (WRITTEN_BY_MERGE, "ns", piped({"$merge": "NAME"})),
    ({**WRITTEN_BY_MERGE, "empty": 5786800}, "ns", piped({"$merge": {"into": {"db": "ns", "coll": "NAME"}}})),
]
# Those that name their database, and whether they would make something in it.
OF_DATABASES = [
    (True, "NAME", {"insert": "c", "documents": [{}]}), (True, "NAME", {"create": "c"}), (True, "NAME", {"createIndexes": "c", "indexes": INDEX}),
    (True, "NAME", {"update": "c", "updates": [{**UPDATE, "upsert": True}]}), (True, "admin", {"renameCollection": "ns.c", "to": "NAME.c"}),
    (True, "ns", piped({"$out": {"db": "NAME", "coll": "c"}})), (True, "ns", piped({"$merge": {"into": {"db": "NAME", "coll": "c"}}})),
    (True, "admin", {**bulk({"insert": 0, "document": {}}), "nsInfo": [{"ns": "NAME.c"}]}),
    (False, "NAME", {"find": "c"}), (False, "NAME", {"count": "c"}), (False, "NAME", {"ping": 1}), (False, "NAME", {"listCollections": 1}),
    (False, "NAME", {"dbStats": 1}), (False, "NAME", {"dropDatabase": 1}), (False, "NAME", {"aggregate": 1, "pipeline": [{"$documents": []}], "cursor": {}}),
    (False, "ns", {"dataSize": "NAME.c"}), (False, "ns", {"validateDBMetadata": 1, "apiParameters": {"version": "1"}, "db": "NAME"}),
]


def named(value, name):
    """The command with a name in it."""
    if isinstance(value, dict):
        return {key: named(inner, name) for key, inner in value.items()}
    if isinstance(value, list):
        return [named(inner, name) for inner in value]
    return value.replace("NAME", name) if isinstance(value, str) else value


def code_of(reply):
    """The code of what failed: the command, its first statement or operation, or nothing."""
    batch = reply["cursor"].get("firstBatch", ()) if isinstance(reply.get("cursor"), dict) else ()
    failed = [reply, *reply.get("writeErrors", ()), *(entry for entry in batch if entry.get("ok") == 0)]
    return next((entry["code"] for entry in failed if "code" in entry), "ok")


@pytest.fixture(scope="module")
def wire(node):
    with Wire(node.port) as connected:
        yield connected


@pytest.fixture(autouse=True)
def source(wire):
    """A collection to copy from; afterwards the database has what a name has made."""
    wire.command("ns", {"insert": "c", "documents": [{"_id": 1}]})
    yield
    wire.command("ns", {"dropDatabase": 1})


def titles(cases):
    """The name of each command, or that of its stage."""
    return [next(iter(command["pipeline"][0] if command.get("pipeline") else command)) for _, _, command in cases]


@pytest.mark.parametrize("expected,database,command", COMMANDS, ids=titles(COMMANDS))
def test_names_of_collections(wire, expected, database, command):
    kinds = {"empty": [""], "none": NO_NAMES, "dollars": DOLLARS, "pseudo": ["$cmd.x"], "long": [LONG], "system": SYSTEM, "plain": PLAIN}
    wrong = []
    for kind, names in kinds.items():
        for name in names:
            reply = wire.command(database, named(command, name))
            if code_of(reply) != {"empty": 73, "none": 73, **expected}[kind]:
                wrong.append((name[:10], code_of(reply), reply.get("errmsg")))
            wire.command("ns", {"drop": name})
            wire.command("ns", {"insert": "c", "documents": [{"_id": 1}]})
    assert not wrong


@pytest.mark.parametrize("makes,database,command", OF_DATABASES, ids=titles(OF_DATABASES))
def test_names_of_databases(wire, makes, database, command):
    wrong = []
    for names, expected in [(NO_DATABASES, 73), (DATABASES, "ok"), (["$external"], 73 if makes else "ok")]:
        for name in names:
            if "into" in command.get("pipeline", [{}])[0].get("$merge", {}) and name == "":
                # The database of the command.
                continue
            reply = wire.command(named(database, name), named(command, name))
            if code_of(reply) != expected:
                wrong.append((name[:10], code_of(reply), reply.get("errmsg")))
            if expected == "ok":
                wire.command(name, {"dropDatabase": 1})
            wire.command("ns", {"insert": "c", "documents": [{"_id": 1}]})
    assert not wrong


def test_operations_of_bulk_write_fail_by_their_names(wire):
    ops = [{"insert": 0, "document": {}}, {"update": 1, "filter": {}, "updateMods": {"$set": {"a": 1}}}, {"delete": 2, "filter": {}}, {"insert": 3, "document": {}}]
    bad = [{"ns": "ns.system.foo"}, {"ns": "ns.$x"}, {"ns": f"ns.{LONG}"}, {"ns": "ns.c"}]
    reply = wire.command("admin", {"bulkWrite": 1, "ops": ops, "nsInfo": bad, "ordered": False})
    batch = reply["cursor"]["firstBatch"]
    assert (reply["ok"], reply["nErrors"], reply["nInserted"]) == (1, 3, 1)
    assert [(entry["ok"], entry["idx"], entry.get("code"), entry["n"]) for entry in batch] == [(0, 0, 73, 0), (0, 1, 73, 0), (0, 2, 73, 0), (1, 3, None, 1)]
    ordered = wire.command("admin", {"bulkWrite": 1, "ops": ops, "nsInfo": bad})
    assert (ordered["nErrors"], len(ordered["cursor"]["firstBatch"])) == (1, 1)


def test_a_collection_is_named_by_its_uuid_or_a_string(wire):
    unknown, short = Binary(b"x" * 16, 4), Binary(b"x" * 4, 4)
    for command in ({"find": None}, {"count": None}, {"distinct": None, "key": "x"}, {"listIndexes": None}):
        for value, code in [(unknown, 26), (short, 207), (Binary(b"x" * 16), 73), (1, 73), (None, 73), ({}, 73)]:
            assert code_of(wire.command("ns", {**command, next(iter(command)): value})) == code, (command, value)
