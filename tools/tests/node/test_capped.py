"""Capped collections as drivers use them: logs with bounds, tailed by readers that wait."""

import threading
import time

import pytest
from bson import Int64
from pinion_node import PATIENCE_MS, Beside, Node, wait_until
from pymongo import CursorType
from pymongo.errors import CollectionInvalid, OperationFailure


@pytest.fixture(params=["1", "2"])
def node(request):
    with Node("--cpus", request.param) as node:
        yield node


def ids(cursor):
    return [document["_id"] for document in cursor]


def code_of(act, *arguments, **options):
    with pytest.raises(OperationFailure) as raised:
        act(*arguments, **options)
    return raised.value.code


def test_bounds_and_order(node):
    database = node.client().app
    log = database.create_collection("log", capped=True, size=1 << 20, max=3)
    log.insert_many([{"_id": name} for name in ("d", "a", "c", "b")])
    assert ids(log.find()) == ["a", "c", "b"] and ids(log.find(sort=[("$natural", -1)])) == ["b", "c", "a"]
    log.update_one({"_id": "c"}, {"$set": {"text": "longer than before"}})
    assert ids(log.find()) == ["a", "c", "b"] and log.find_one({"_id": "c"})["text"]
    assert log.options() == {"capped": True, "size": 1 << 20, "max": 3}
    assert list(log.index_information()) == ["_id_"]
    stats = database.command("collStats", "log")
    assert (stats["capped"], stats["max"], stats["maxSize"], stats["count"], stats["nindexes"]) == (True, 3, 1 << 20, 3, 1)
    log.create_index("text")
    assert code_of(log.create_index, "at", expireAfterSeconds=5) == 67
    assert database.command("dropIndexes", "log", index="*")["nIndexesWas"] == 2
    assert database.validate_collection("log", full=True)["valid"]
    with pytest.raises(CollectionInvalid):
        database.create_collection("log", capped=True, size=4096)
    assert code_of(database.command, "create", "log", capped=True, size=4096) == 48
    assert code_of(database.command, "aggregate", "log", pipeline=[{"$out": "log"}], cursor={}) == 17152
    plan = database.command("explain", {"find": "log", "filter": {"_id": "a"}})["queryPlanner"]["winningPlan"]
    assert "EXPRESS" in plan["stage"] or plan["stage"] in ("IDHACK", "FETCH")


def test_what_is_kept_survives_a_crash(node):
    database = node.client().app
    database.create_collection("log", capped=True, size=1 << 20, max=50)
    database.log.create_index("n")
    for start in range(0, 400, 40):
        database.log.insert_many([{"_id": i, "n": i % 7} for i in range(start, start + 40)])
    database.command("insert", "log", documents=[{"_id": 400, "n": 1}], writeConcern={"w": 1, "j": True})
    node.kill()
    node.start()
    log = node.client().app.log
    assert ids(log.find()) == list(range(351, 401))
    assert log.database.validate_collection("log", full=True)["valid"]
    log.insert_one({"_id": 401, "n": 1})
    assert ids(log.find()) == list(range(352, 402))


def test_a_reader_tails_what_is_written(node):
    database = node.client().app
    log = database.create_collection("log", capped=True, size=1 << 20)
    log.insert_one({"_id": 0})
    seen = []

    def tail():
        cursor = node.client().app.log.find(cursor_type=CursorType.TAILABLE_AWAIT).max_await_time_ms(200)
        while cursor.alive and len(seen) < 101:
            for document in cursor:
                seen.append(document["_id"])

    reader = Beside(tail)
    for i in range(1, 101):
        log.insert_one({"_id": i})
    assert reader.ended().error is None
    assert seen == list(range(101))


def test_getmore_waits_only_where_data_is_awaited(node):
    database = node.client().app
    log = database.create_collection("log", capped=True, size=1 << 20)
    assert database.command({"find": "log", "tailable": True})["cursor"]["id"] == 0
    log.insert_one({"_id": 1})

    def tail(**options):
        cursor = database.command({"find": "log", "tailable": True, **options})["cursor"]
        assert cursor["firstBatch"] == [{"_id": 1}]
        return Int64(cursor["id"])

    def more(cursor, **options):
        began = time.monotonic()
        reply = database.command({"getMore": cursor, "collection": "log", **options})["cursor"]
        assert reply["nextBatch"] == [] and reply["id"] == cursor
        return time.monotonic() - began

    def shortest(cursor, **options):
        """Of several times, since one may be long for other reasons."""
        return min(more(cursor, **options) for _ in range(5))

    assert shortest(tail()) < 0.5
    assert more(tail(awaitData=True)) > 0.9
    assert 0.2 < shortest(tail(awaitData=True), maxTimeMS=300) < 0.9
    assert code_of(more, tail(), maxTimeMS=300) == 2
    for wrong, code in [({"sort": {"a": 1}}, 2), ({"singleBatch": True}, 2)]:
        assert code_of(database.command, {"find": "log", "tailable": True, **wrong}) == code
    assert code_of(database.command, {"find": "log", "awaitData": True}) == 9
    database.plain.insert_one({})
    assert code_of(database.command, {"find": "plain", "tailable": True}) == 2
    cursor, other = tail(awaitData=True), node.client()
    waiting = Beside(lambda: database.command({"getMore": cursor, "collection": "log", "maxTimeMS": PATIENCE_MS}))
    # By another client: it would take the session that the driver has made the cursor in.
    wait_until(lambda: any("getMore" in op["command"] for op in other.admin.command("currentOp")["inprog"]))
    other.app.drop_collection("log")
    assert waiting.ended().error.code == 175


def test_conversion_while_others_write(node):
    client = node.client()
    events = client.app.events
    events.insert_many([{"_id": i, "text": "x" * 50} for i in range(2000)])
    events.create_index("text")
    stop, written = threading.Event(), []

    def write():
        other = node.client().app.events
        while not stop.is_set():
            written.append(other.insert_one({}).inserted_id)

    writer = threading.Thread(target=write)
    writer.start()
    wait_until(lambda: len(written) > 10)
    client.app.command("convertToCapped", "events", size=1 << 24)
    enough = len(written) + 10
    wait_until(lambda: len(written) > enough)
    stop.set()
    writer.join()
    found = ids(events.find())
    assert set(found) == set(range(2000)) | set(written), "nothing was lost"
    assert found[-1] == written[-1] and list(events.index_information()) == ["_id_"]
    client.app.command("cloneCollectionAsCapped", "events", toCollection="few", size=4096)
    few = ids(client.app.few.find())
    assert few == found[-len(few):] and client.app.few.options()["capped"]
    assert code_of(client.app.command, "convertToCapped", "events", size=0) == 72
