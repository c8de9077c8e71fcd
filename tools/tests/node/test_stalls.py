"""Commands over values near 16 MiB and over millions of matches hold no core: other clients
continue, and the log reports no stall."""

import contextlib
import threading
import time

import pytest
from pymongo.errors import ExecutionTimeout, OperationFailure

from pinion_node import Node
from pinion_stalls import Stall, is_stall
from still_processors import StillProcessors

MIB = 1024 * 1024
# Beside others memory is slower; each of these commands has held a core for longer, some for
# seconds. What the kernel took of it does not count: a machine that others share finds memory
# late for the thread that touches it first.
HELD_LIMIT_MS = 100
LARGE = "ab" * (8 * MIB - 8192)
# "^(a+)+$" tries as many ways as it may, and finds none that matches.
BACKTRACKING = "a" * 30 + "b"


@pytest.fixture(scope="module")
def node():
    with Node("--cpus", "2", "--partitions", "2") as node:
        client = node.client()
        client.test.one.insert_one({"_id": 1})
        client.test.large.insert_many({"_id": i, "text": LARGE, "list": list(range(50))} for i in range(2))
        client.test.lists.insert_one({"_id": 1, "list": list(range(300_000))})
        client.test.backtracking.insert_one({"_id": 1, "text": BACKTRACKING})
        client.test.filled.insert_one({"_id": 1, "list": []})
        client.test.fields.insert_one({f"old{i}": i for i in range(20_000)} | {"_id": 1})
        client.test.wide.insert_one({"_id": 1} | {f"f{i}": i for i in range(20_000)})
        yield node


@contextlib.contextmanager
def no_core_held(node):
    """Meanwhile no task holds a core for long."""
    before = len(node.log)
    with StillProcessors() as processors:
        yield
        # What it has printed is read by a thread of this process.
        node.client().admin.command("ping")
    # Another process beside this one makes all memory slower, but nothing takes ten times as long.
    reported = [Stall(line, processors) for line in list(node.log)[before:] if is_stall(line)]
    assert not [stall for stall in reported if stall.own_ms >= HELD_LIMIT_MS]


def evaluate(expression, collection="one"):
    return lambda db: list(db[collection].aggregate([{"$project": {"_id": 0, "r": expression}}]))


def failing(code, call):
    def run(db):
        with pytest.raises(OperationFailure) as failed:
            call(db)
        assert failed.value.code == code
    return run


def write_and_read_large(db):
    """A document near 16 MiB on each way through the node."""
    db.written.insert_one({"_id": 1, "text": LARGE})
    assert db.written.update_one({"_id": 1}, {"$set": {"n": 1}}).modified_count == 1
    assert db.written.replace_one({"_id": 1}, {"other": LARGE}).modified_count == 1
    assert db.written.find_one({"_id": 1}) == {"_id": 1, "other": LARGE}
    assert db.written.find_one({}) == {"_id": 1, "other": LARGE}
    assert db.written.find_one_and_update({}, {"$set": {"n": 2}})["other"] == LARGE
    assert db.written.update_one({"_id": 2}, {"$set": {"text": LARGE}}, upsert=True).upserted_id == 2
    assert db.written.distinct("other") == [LARGE]
    assert db.written.delete_many({}).deleted_count == 2


def length(expression):
    return {"$strLenBytes": expression}


# What each does has taken a core 15 to 300 ms.
COMMANDS = {
    "a constant": evaluate(length(LARGE)),
    "parts of a constant": evaluate({"$substrBytes": [LARGE, 5, 15 * MIB]}),
    "a text that grows too long": failing(16493, evaluate({"$let": {"vars": {"t": LARGE[: 9 * MIB]}, "in": {"$concat": ["$$t", "$$t"]}}})),
    "many small texts": evaluate(length({"$concat": ["x"] * 200_000})),
    "matches of nothing": evaluate(length({"$replaceAll": {"input": "a" * (4 * MIB), "find": "", "replacement": "b"}})),
    "matches of a character": evaluate(length({"$replaceAll": {"input": LARGE, "find": "a", "replacement": ""}})),
    "a regular expression": evaluate({"$regexMatch": {"input": LARGE, "regex": "a+c"}}),
    "all matches": evaluate({"$size": {"$regexFindAll": {"input": "a" * 40_000, "regex": "a"}}}),
    "a number that is none": failing(241, evaluate({"$toLong": LARGE})),
    "a decimal that is none": failing(241, evaluate({"$toDecimal": LARGE})),
    "a stored text": evaluate(length({"$toUpper": "$text"}), "large"),
    "a stored text that is looked through": lambda db: list(db.large.find({"text": {"$regex": "b+c"}})),
    "a projection of a stored text": lambda db: list(db.large.find({}, {"r": {"$toLower": "$text"}})),
    "a pipeline with a long list": evaluate({"$reduce": {"input": "$list", "initialValue": 0, "in": {"$add": ["$$value", "$$this"]}}}, "lists"),
    "an array in memory": evaluate({"$size": {"$setUnion": [{"$range": [0, 300_000]}, {"$range": [5, 300_005]}]}}),
    "a list that is unwound": lambda db: list(db.lists.aggregate([{"$unwind": "$list"}, {"$group": {"_id": None, "n": {"$sum": "$list"}}}])),
    "a large text in many documents": lambda db: list(db.large.aggregate([{"$unwind": "$list"}, {"$count": "n"}])),
    "an update by a pipeline": lambda db: db.large.update_many({}, [{"$set": {"n": length({"$toLower": "$text"})}}]),
    "a message of many values": lambda db: db.command("aggregate", 1, pipeline=[{"$documents": [{"a": [None] * 1_500_000}]}, {"$count": "n"}], cursor={}),
    "facets": lambda db: list(db.large.aggregate([{"$facet": {"a": [{"$project": {"n": length("$text")}}], "b": [{"$unwind": "$list"}, {"$count": "n"}]}}])),
    "a document near 16 MiB": write_and_read_large,
    "a search that backtracks": lambda db: list(db.backtracking.find({"text": {"$regex": "^(a+)+$"}})),
    "matches that backtrack": failing(51156, evaluate({"$regexFindAll": {"input": BACKTRACKING, "regex": "^(a+)+$"}})),
    "an update that is explained": lambda db: db.command("explain", {"update": "backtracking", "updates": [
        {"q": {}, "u": [{"$set": {"n": {"$regexMatch": {"input": "$text", "regex": "^(a+)+$"}}}}]}]}, verbosity="executionStats"),
    "distinct values": lambda db: db.lists.distinct("list"),
    "an upsert of a list": lambda db: db.one.update_one({"_id": 2, "list": list(range(300_000))}, {"$set": {"n": 1}}, upsert=True),
    "an array that is filled up": lambda db: db.filled.update_one({"_id": 1}, {"$set": {"list.1490000": 1}}),
    "a document of other fields": lambda db: db.fields.replace_one({}, {f"new{i}": i for i in range(20_000)}),
    "a projection of many fields": lambda db: list(db.wide.aggregate([{"$unset": [f"f{i}" for i in range(20_000)]}])),
    "many computed fields": lambda db: list(db.wide.aggregate([{"$addFields": {f"f{i}": "$_id" for i in range(20_000)}}])),
    "a group of many fields": lambda db: list(db.wide.aggregate([{"$group": {"_id": None} | {f"f{i}": {"$sum": f"$f{i}"} for i in range(5_000)}}])),
    "a filter of many fields": lambda db: list(db.wide.find({f"f{i}": i for i in range(5_000)})),
    "many fields that are set": lambda db: db.wide.update_one({}, {"$set": {f"f{i}": i for i in range(20_000)}}),
    "many values in a filter": lambda db: list(db.one.find({"a": {"$nin": list(range(100_000))}})),
    "fields of an array": evaluate({"$arrayToObject": {"$map": {"input": {"$range": [0, 20_000]}, "in": [{"$toString": "$$this"}, 1]}}}),
    "a document of many objects": lambda db: list(db.one.aggregate([{"$project": {"i": {"$range": [0, 20_000]}}}, {"$unwind": "$i"}, {
        "$group": {"_id": None, "o": {"$mergeObjects": {"$arrayToObject": [[[{"$toString": "$i"}, 1]]]}}}}])),
    "a command of many fields": failing(40415, lambda db: db.command("find", "one", **{f"f{i}": i for i in range(200_000)})),
    "a statement of many fields": failing(40415, lambda db: db.command("update", "one", updates=[
        {"q": {}, "u": {"$set": {"a": 1}}} | {f"f{i}": i for i in range(200_000)}])),
    "many indexes at once": failing(67, lambda db: db.command("createIndexes", "one", indexes=[
        {"key": {f"a{i}": 1}, "name": f"a{i}"} for i in range(5_000)])),
    "a difference of sets": evaluate({"$size": {"$setDifference": [{"$range": [0, 50_000]}, [-1]]}}),
    "an object of many fields": lambda db: list(db.one.aggregate([{"$project": {"r": {"o": {f"f{i}": "$_id" for i in range(20_000)}}}}])),
    "an upsert of many fields": lambda db: db.one.update_one({"_id": 3} | {f"f{i}": i for i in range(20_000)}, {"$set": {"n": 1}}, upsert=True),
    "many values added to a set": lambda db: db.lists.update_one({}, {"$addToSet": {"list": {"$each": list(range(295_000, 305_000))}}}),
    "windows over all documents": lambda db: list(db.lists.aggregate([{"$unwind": "$list"}, {"$limit": 5_000}, {
        "$setWindowFields": {"sortBy": {"list": 1}, "output": {"all": {"$push": "$list"}}}}, {"$project": {"n": {"$size": "$all"}}}])),
    "moving windows": lambda db: list(db.lists.aggregate([{"$unwind": "$list"}, {"$limit": 5_000}, {"$setWindowFields": {
        "sortBy": {"list": 1}, "output": {"s": {"$addToSet": "$list", "window": {"documents": [-2_000, 0]}}}}}, {"$project": {"n": {"$size": "$s"}}}])),
    "what follows a sort": lambda db: list(db.lists.aggregate([
        {"$unwind": "$list"}, {"$limit": 5_000}, {"$sort": {"list": -1}}, {"$project": {"n": {"$size": {"$range": ["$list", 10_000]}}}}])),
    "a large group of sorted values": lambda db: list(db.lists.aggregate([{"$unwind": "$list"}, {
        "$group": {"_id": None, "t": {"$topN": {"n": 100_000, "sortBy": {"list": -1}, "output": "$list"}}}}, {"$project": {"n": {"$size": "$t"}}}])),
    "a variable of the command": lambda db: db.command("aggregate", "one", pipeline=[{"$project": {"n": length("$$t")}}], let={"t": LARGE}, cursor={}),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_no_core_is_held(node, name):
    with no_core_held(node):
        COMMANDS[name](node.client().test)


@pytest.mark.parametrize("compressor", ["zlib", "snappy", "zstd"])
def test_large_compressed_messages_hold_no_core(node, compressor):
    try:
        client = node.client(compressors=compressor)
        documents = [{"t": LARGE[: 8 * MIB]}] * 2
        with no_core_held(node):
            reply = client.test.command("aggregate", 1, pipeline=[{"$documents": documents[:1]}], cursor={})
    except Exception as missing:  # The driver may lack the library.
        if "compress" in str(missing).lower() or "module" in str(missing).lower():
            pytest.skip(str(missing))
        raise
    assert len(reply["cursor"]["firstBatch"]) == 1


# Hours of work: a range of ranges of ranges.
BIG = {"$range": [0, 100_000]}
ENDLESS = {"$size": {"$map": {"input": BIG, "in": {"$size": {"$map": {"input": BIG, "in": {"$size": BIG}}}}}}}


@pytest.mark.parametrize("command", [
    {"update": "one", "updates": [{"q": {}, "u": [{"$set": {"r": ENDLESS}}]}]},
    {"update": "one", "updates": [{"q": {"_id": "new"}, "u": [{"$set": {"r": ENDLESS}}], "upsert": True}, {"q": {}, "u": {"$set": {"after": 1}}}], "ordered": False},
    {"delete": "one", "deletes": [{"q": {"$expr": {"$eq": [ENDLESS, 1]}}, "limit": 0}, {"q": {}, "limit": 0}], "ordered": False},
    {"findAndModify": "one", "query": {}, "update": [{"$set": {"r": ENDLESS}}]},
])
def test_an_interrupted_write_fails_as_a_whole(node, command):
    """It is no error of one statement, after which others come: nothing more is done."""
    db = node.client().test
    with pytest.raises(ExecutionTimeout):
        db.command(command | {"maxTimeMS": 300})
    assert db.one.find_one({"_id": 1}) == {"_id": 1} and not db.one.find_one({"_id": "new"})


def test_an_interrupted_insert_fails_as_a_whole(node):
    """Wherever the interruption comes, also while the index becomes multikey for the first
    document."""
    db = node.client().test
    documents = [{"_id": 1, "list": list(range(300_000))}, {"_id": 2}]
    interrupted = 0
    for millis in range(10, 250, 10):
        db.indexed.create_index("list")
        try:
            assert db.command("insert", "indexed", documents=documents, ordered=False, maxTimeMS=millis)["n"] == 2
        except ExecutionTimeout:
            interrupted += 1
            assert not db.indexed.find_one({"_id": 2})
        db.indexed.drop()
    assert interrupted > 0


def test_an_interrupted_wait_for_the_journal_is_reported_beside_the_write(node):
    """The write has taken place: only what it was asked to wait for has not."""
    documents = node.client().test.journaled
    began = time.monotonic()
    documents.insert_one({"_id": -1, "text": LARGE})
    # The time that it has comes ever closer to what the write alone takes, whatever that is on this
    # machine.
    waits, millis = 0, round(1000 * (time.monotonic() - began))
    for at in range(1000):
        try:
            reply = documents.database.command(
                "insert", "journaled", documents=[{"_id": at, "text": LARGE}], writeConcern={"j": True}, maxTimeMS=millis)
        except ExecutionTimeout:
            assert not documents.find_one({"_id": at})
            millis += 1 + millis // 20
            continue
        assert documents.find_one({"_id": at})["text"] == LARGE
        reported = reply.pop("writeConcernError", None)
        assert reply == {"n": 1, "ok": 1.0}
        if not reported:
            millis = max(1, millis - 1 - millis // 20)
        else:
            waits += 1
            concern = {"w": 1, "j": True, "wtimeout": 0, "provenance": "clientSupplied"}
            assert reported == {"code": 50, "codeName": "MaxTimeMSExpired", "errmsg": "operation exceeded time limit",
                            "errInfo": {"writeConcern": concern}}
            if waits > 2:
                break
        documents.delete_many({})
    assert waits > 0


def test_an_endless_evaluation_lets_others_work_and_ends_when_interrupted(node):
    """It would hold its core, and its connection's others with it."""
    with pytest.raises(ExecutionTimeout):
        node.client(socketTimeoutMS=120_000).test.command("aggregate", "one", pipeline=[{"$project": {"r": ENDLESS}}], cursor={}, maxTimeMS=1500)

    ended = []

    def run():
        try:
            node.client().test.command("aggregate", "one", pipeline=[{"$project": {"r": ENDLESS}}], cursor={}, comment="endless")
        except OperationFailure as error:
            ended.append(error.code)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    client = node.client(socketTimeoutMS=120_000)
    found = []
    while len(found) < 4:
        found = [op for op in client.admin.command("currentOp")["inprog"] if op.get("command", {}).get("comment") == "endless"]
        time.sleep(0.01)
    assert client.test.one.find_one({"_id": 1}) == {"_id": 1}
    # What is offloaded as well, and is known to end, waits for none of them: large messages,
    # documents, pages.
    client.test.written.insert_one({"_id": 1, "text": LARGE})
    client.admin.command("fsync")
    assert client.test.written.find_one({"_id": 1})["text"] == LARGE
    client.test.written.drop()
    for op in found:
        client.admin.command("killOp", op=op["opid"])
    for thread in threads:
        thread.join(120)
    assert ended == [11601] * 4
