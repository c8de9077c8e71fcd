"""What exporters and agents read of locks, latencies, operators, plans, cursors and the oplog: each
number twice, around what moves it."""

import bson
import pymongo
import pytest
from pinion_node import PATIENCE_MS, Beside, Node, ReplicaSet, wait_until
from pymongo.errors import OperationFailure
from test_metrics import Moves, at
from test_stops import alone, initiate, wait_leads


@pytest.fixture(scope="module")
def single():
    with ReplicaSet(1) as members:
        yield members


@pytest.fixture
def primary(single):
    with single.client() as client:
        yield client


def logged(client):
    """How many documents the oplog has, and their bytes."""
    batches = list(client.local["oplog.rs"].find_raw_batches())
    return sum(len(bson.decode_all(batch)) for batch in batches), sum(map(len, batches))


def oplog_stats(client):
    stats = client.local.command("collStats", "oplog.rs")
    assert stats["avgObjSize"] == stats["size"] // stats["count"] and stats["capped"] is True
    return stats["count"], stats["size"]


def test_the_oplog_is_as_large_as_its_documents():
    with Node("--replSet", "rs0") as node:
        initiate(node)
        with node.client(directConnection=True) as client:
            def alike():
                return oplog_stats(client) == logged(client)
            wait_until(alike)
            count, size = oplog_stats(client)
            client.test.c.insert_many([{"_id": n, "x": "y" * 300} for n in range(500)])
            wait_until(alike)
            more, larger = oplog_stats(client)
            assert more - count >= 500 and 500 * 300 < larger - size < 500 * 1000
            (stats,) = client.local["oplog.rs"].aggregate([{"$collStats": {"storageStats": {}, "count": {}}}])
            assert stats["count"] == stats["storageStats"]["count"] >= more and stats["storageStats"]["size"] >= larger
        assert node.stop() == 0
        node.start()
        wait_leads(node)
        with node.client(directConnection=True) as client:
            # What was written before is estimated now.
            judged, judged_size = oplog_stats(client)
            count, size = logged(client)
            assert 0.8 * count <= judged <= 1.2 * count and 0.8 * size <= judged_size <= 1.2 * size


def test_locks_are_counted_where_there_are_gates():
    with Node() as node, node.client() as client:
        locks = client.admin.command("serverStatus")["locks"]
        assert set(locks) == {"Global", "Database", "Collection"}
        modes = {name: set(lock["acquireCount"]) for name, lock in locks.items()}
        assert modes == {"Global": {"w", "R"}, "Database": {"w", "W"}, "Collection": {"r", "w", "R", "W"}}
        assert all(set(lock[figure]) == modes[name] for name, lock in locks.items() for figure in ("acquireWaitCount", "timeAcquiringMicros"))
        moves = Moves(client, "locks.Collection.acquireCount.w", "locks.Global.acquireCount.w", "locks.Database.acquireCount.w")
        client.test.c.insert_one({"_id": 1})
        assert moves.have_moved()
        moves = Moves(client, "locks.Collection.acquireCount.r")
        assert client.test.c.find_one({"_id": 1})
        assert moves.have_moved()
        moves = Moves(client, "locks.Collection.acquireCount.R")
        client.test.c.create_index("a")
        assert moves.have_moved()
        moves = Moves(client, "locks.Database.acquireCount.W", "locks.Collection.acquireCount.W")
        client.drop_database("test")
        assert moves.have_moved()


def test_waits_for_the_lock_of_fsync_are_those_of_the_global_lock():
    with Node() as node, node.client() as client:
        client.test.c.insert_one({"_id": 1})
        moves = Moves(client, "locks.Global.acquireCount.R")
        waits = Moves(client, "locks.Global.acquireWaitCount.w", "locks.Global.timeAcquiringMicros.w", "locks.Collection.acquireWaitCount.w")
        client.admin.command("fsync", lock=True)
        assert moves.have_moved()

        def insert():
            with node.client() as other:
                other.test.c.insert_one({"_id": 2})
        writing = Beside(insert)

        def waiting():
            ops = client.admin.command("currentOp")["inprog"]
            return [op["locks"] for op in ops if op.get("waitingForLock")]
        wait_until(lambda: waiting() == [{"Global": "w"}])
        client.admin.command("fsyncUnlock")
        assert writing.ended().error is None
        count, micros, others = waits.by()
        assert count >= 1 and micros > 0 and others == 0


def test_waits_of_changes_are_counted(primary, single):
    primary.test.c.insert_one({"_id": 1})
    lock = lambda name, mode: [f"locks.{name}.{figure}.{mode}" for figure in ("acquireWaitCount", "timeAcquiringMicros")]

    def change():
        with single.client() as other:
            other.test.command({"collMod": "c", "validator": {}})

    def changes():
        ops = primary.admin.command("currentOp")["inprog"]
        return [op["waitingForLock"] for op in ops if "collMod" in op.get("command", {})]

    def waits():
        """A transaction stays behind the gate, one change waits for it, and another for that."""
        gate = [Moves(primary, *lock("Collection", mode)) for mode in "RW"]
        database = Moves(primary, *lock("Database", "w"))
        with primary.start_session() as session:
            session.start_transaction()
            primary.test.c.update_one({"_id": 1}, {"$inc": {"x": 1}}, session=session)
            changing = [Beside(change) for _ in range(2)]
            wait_until(lambda: len(changes()) == 2 and any(changes()))
            session.abort_transaction()
        assert not any(changed.ended().error for changed in changing)
        assert any(moves.have_moved() for moves in gate)
        # The other may have come only when the first was through.
        return database.have_moved()
    wait_until(waits)
    with primary.start_session() as session:
        session.start_transaction()
        primary.test.c.update_one({"_id": 1}, {"$inc": {"x": 1}}, session=session)
        locking = Moves(primary, *lock("Global", "R"))
        with pytest.raises(OperationFailure) as refused:
            primary.admin.command("fsync", lock=True, fsyncLockAcquisitionTimeoutMillis=100)
        assert refused.value.code == 24 and locking.have_moved()
        session.abort_transaction()


# The least latencies of the steps: powers of two, and halves between them from 2 ms to 2 s.
STEPS = {0} | {1 << power for power in range(1, 41)} | {3 << power for power in range(10, 20)}


def test_histograms_have_the_steps_that_are_expected(primary):
    collection = primary.test.timed

    def read():
        (stats,) = collection.aggregate([{"$collStats": {"latencyStats": {"histograms": True}}}])
        return stats["latencyStats"]

    def check(latency):
        assert {bucket["micros"] for bucket in latency["histogram"]} <= STEPS
        assert sum(bucket["count"] for bucket in latency["histogram"]) == latency["ops"]
        assert all(isinstance(bucket[name], bson.Int64) and bucket["count"] > 0 for bucket in latency["histogram"] for name in bucket)
        return latency["ops"]
    collection.insert_many([{"_id": n} for n in range(2000)])
    before = read()
    for limit in (1, 10, 2000):
        assert len(list(collection.find({"$expr": {"$gte": ["$_id", 0]}}, limit=limit, batch_size=3000))) == limit
    collection.update_many({}, {"$set": {"x": 1}})
    after = read()
    assert check(after["reads"]) >= check(before["reads"]) + 3
    assert check(after["writes"]) == check(before["writes"]) + 1
    status = lambda: primary.admin.command("serverStatus", opLatencies={"histograms": True})["opLatencies"]
    first = check(status()["reads"])
    collection.find_one({"_id": 1})
    assert check(status()["reads"]) > first
    assert "histogram" not in primary.admin.command("serverStatus")["opLatencies"]["reads"]


def test_conflicts_within_transactions_are_counted(primary):
    collection = primary.test.conflicts
    collection.insert_many([{"_id": 1}, {"_id": 2}])

    def conflict(write):
        moves = Moves(primary, "metrics.operation.writeConflicts")
        with primary.start_session() as first, primary.start_session() as second:
            first.start_transaction()
            second.start_transaction()
            write(first)
            with pytest.raises(OperationFailure) as refused:
                write(second)
            assert refused.value.code == 112
            first.commit_transaction()
        assert moves.by() == [1]
    conflict(lambda session: collection.update_one({"_id": 1}, {"$inc": {"x": 1}}, session=session))
    conflict(lambda session: collection.delete_one({"_id": 1}, session=session))
    conflict(lambda session: collection.insert_one({"_id": 3}, session=session))


def test_operators_of_clients_are_counted(primary):
    collection = primary.test.operators
    collection.insert_many([{"_id": n, "a": n} for n in range(5)])
    counters = "metrics.operatorCounters"

    def moved(paths, use):
        moves = Moves(primary, *(f"{counters}.{path}" for path in paths))
        use()
        return moves.by()
    assert moved(["match.$eq", "match.$gt"], lambda: list(collection.find({"a": 1, "_id": {"$gt": 0}}))) == [1, 1]
    # One that is the same but for its value is not parsed again.
    assert moved(["match.$eq"], lambda: [collection.find_one({"_id": n}) for n in range(3)]) == [3]
    assert moved(["match.$in"], lambda: collection.count_documents({"a": {"$in": [1]}})) == [1]
    assert moved(["match.$lt"], lambda: primary.test.command("count", "operators", query={"a": {"$lt": 1}})) == [1]
    assert moved(["match.$gte", "expressions.$add"], lambda: collection.update_one({"a": {"$gte": 1}}, [{"$set": {"b": {"$add": ["$a", 1]}}}])) == [1, 1]
    assert moved(["match.$exists"], lambda: collection.delete_one({"b": {"$exists": False}})) == [1]
    pipeline = [
        {"$match": {"$expr": {"$lte": ["$a", 3]}}},
        {"$setWindowFields": {"sortBy": {"a": 1}, "output": {"r": {"$rank": {}}}}},
        {"$group": {"_id": None, "n": {"$sum": {"$multiply": ["$a", 2]}}}},
    ]
    paths = ["match.$expr", "expressions.$lte", "expressions.$multiply", "groupAccumulators.$sum", "windowAccumulators.$rank", "windowAccumulators.$sum"]
    assert moved(paths, lambda: list(collection.aggregate(pipeline))) == [1, 1, 1, 1, 1, 0]

    def mistake():
        with pytest.raises(OperationFailure):
            list(collection.find({"a": {"$mod": [1, 0], "$nosuch": 1}}))
    assert moved(["match.$mod"], mistake) == [0]


def test_the_plan_cache_is_counted():
    with Node("--cpus", "1") as node, node.client() as client:
        collection = client.test.plans
        collection.insert_many([{"a": n % 10, "b": n % 7} for n in range(200)])
        for field in "ab":
            collection.create_index(field)
        query = "metrics.query"
        cache = lambda *names: Moves(client, *(f"{query}.planCache.classic.{name}" for name in names))
        sizes = Moves(client, f"{query}.planCacheTotalQueryShapes", f"{query}.planCacheTotalSizeEstimateBytes")

        def moved(filter, **options):
            used, skipped = cache("hits", "misses"), cache("skipped")
            list(collection.find(filter, **options))
            return used.by() if any(used.by()) else skipped.have_moved()
        both = {"a": 1, "b": 1}
        # It is used once a second trial has found the same.
        assert [moved(both), moved(both), moved(both)] == [[0, 1], [0, 1], [1, 0]]
        # Where there is one plan, or a hint, the cache is not looked into.
        assert moved({"a": 1}) is True and moved(both, hint="a_1") is True
        entries, size = sizes.by()
        assert entries == 1 and size > 0
        client.test.command("planCacheClear", "plans")
        assert sizes.by() == [0, 0]


def shown_cursors(client, cursor_id):
    ops = client.admin.aggregate([{"$currentOp": {"idleCursors": True}}])
    return [op for op in ops if op.get("cursor", {}).get("cursorId") == cursor_id]


def test_idle_cursors_are_described(primary):
    collection = primary.test.read
    collection.insert_many([{"_id": n, "a": 1} for n in range(100)])
    collection.create_index("a")
    cursor = collection.find({"a": 1}, batch_size=3, no_cursor_timeout=True)
    next(cursor)
    (first,) = shown_cursors(primary, cursor.cursor_id)
    assert first["type"] == "idleCursor" and first["ns"] == "test.read" and first["planSummary"] == "IXSCAN { a: 1 }"
    shown = first["cursor"]
    names = ["cursorId", "createdDate", "lastAccessDate", "nDocsReturned", "nBatchesReturned", "noCursorTimeout", "tailable", "awaitData", "originatingCommand"]
    assert list(shown) == names
    assert (shown["nDocsReturned"], shown["nBatchesReturned"]) == (3, 1) and shown["createdDate"] == shown["lastAccessDate"]
    assert (shown["noCursorTimeout"], shown["tailable"], shown["awaitData"]) == (True, False, False)
    assert shown["originatingCommand"]["find"] == "read"
    for _ in range(3):
        next(cursor)
    (second,) = shown_cursors(primary, cursor.cursor_id)
    assert (second["cursor"]["nDocsReturned"], second["cursor"]["nBatchesReturned"]) == (6, 2)
    assert second["cursor"]["createdDate"] == shown["createdDate"] <= second["cursor"]["lastAccessDate"]
    cursor.close()
    assert shown_cursors(primary, cursor.cursor_id) == []


def test_a_cursor_is_described_while_it_is_used(primary, single):
    primary.test.create_collection("tailed", capped=True, size=100_000)
    collection = primary.test.tailed
    collection.insert_one({"_id": 1})
    cursor = collection.find({}, cursor_type=pymongo.CursorType.TAILABLE_AWAIT).max_await_time_ms(PATIENCE_MS)
    assert next(cursor)["_id"] == 1
    waiting = Beside(lambda: next(cursor))

    def used():
        return [op for op in shown_cursors(primary, cursor.cursor_id) if op["type"] == "op"]
    wait_until(used)
    (op,) = used()
    shown = op["cursor"]
    assert op["op"] == "getmore" and op["planSummary"] == "COLLSCAN" and shown["operationUsingCursorId"] == op["opid"]
    assert (shown["nDocsReturned"], shown["nBatchesReturned"]) == (1, 1)
    assert (shown["noCursorTimeout"], shown["tailable"], shown["awaitData"]) == (False, True, True)
    assert shown["originatingCommand"]["find"] == "tailed" and shown["createdDate"] <= shown["lastAccessDate"]
    collection.insert_one({"_id": 2})
    assert waiting.ended().answer["_id"] == 2
    (idle,) = shown_cursors(primary, cursor.cursor_id)
    assert idle["type"] == "idleCursor" and (idle["cursor"]["nDocsReturned"], idle["cursor"]["nBatchesReturned"]) == (2, 2)
    assert "operationUsingCursorId" not in idle["cursor"]
    cursor.close()


def test_a_standalone_shows_the_oplog_of_the_member():
    with Node("--replSet", "rs0") as node:
        initiate(node)
        with node.client(directConnection=True) as client:
            client.test.c.insert_many([{"_id": n} for n in range(50)])
        assert node.stop() == 0

        def look(client):
            assert "oplog.rs" in client.local.list_collection_names()
            oplog = client.local["oplog.rs"]
            entries = list(oplog.find().sort("$natural", 1))
            assert [entry["o"]["_id"] for entry in entries if entry["ns"] == "test.c" and entry["op"] == "i"] == list(range(50))
            assert oplog.options()["capped"] is True
            before = logged(client)
            # What a standalone writes is no part of it.
            client.test.c.insert_many([{"_id": n} for n in range(50, 100)])
            assert logged(client) == before
            assert next(oplog.find().sort("$natural", -1).limit(1))["ts"] == entries[-1]["ts"]
            tail = oplog.find({"ts": {"$gte": entries[-1]["ts"]}}, cursor_type=pymongo.CursorType.TAILABLE_AWAIT).max_await_time_ms(100)
            assert next(tail)["ts"] == entries[-1]["ts"] and next(tail, None) is None
            count, size = oplog_stats(client)
            assert 0.8 * before[0] <= count <= 1.2 * before[0] and 0.8 * before[1] <= size <= 1.2 * before[1]
            assert client.local.command("count", "oplog.rs")["n"] == count
            for command, code in (({"insert": "oplog.rs", "documents": [{}]}, 73), ({"delete": "oplog.rs", "deletes": [{"q": {}, "limit": 0}]}, 73),
                                  ({"drop": "oplog.rs"}, 5255000), ({"createIndexes": "oplog.rs", "indexes": [{"key": {"a": 1}, "name": "a_1"}]}, 67)):
                with pytest.raises(OperationFailure) as refused:
                    reply = client.local.command(command)
                    raise OperationFailure("refused", reply["writeErrors"][0]["code"])
                assert refused.value.code == code, command
        alone(node, look)
        node.start()
        wait_leads(node)
        with node.client(directConnection=True) as client:
            assert client.test.c.count_documents({}) == 100
            ids = [entry["o"]["_id"] for entry in client.local["oplog.rs"].find({"ns": "test.c", "op": "i"})]
            assert sorted(ids) == list(range(50))


def test_a_standalone_that_forgets_its_set_shows_no_oplog():
    with Node("--replSet", "rs0") as node:
        initiate(node)
        assert node.stop() == 0

        def forget(client):
            client.drop_database("local")
            assert "oplog.rs" not in client.local.list_collection_names()
        alone(node, forget)
    with Node() as node, node.client() as client:
        assert "oplog.rs" not in client.local.list_collection_names()
        with pytest.raises(KeyError):
            at(client.local.command("collStats", "oplog.rs"), "capped")
