"""Transactions through PyMongo: on a set of one, and what a set of three keeps of them when its
primary is gone."""

import threading
import time

import bson
import pymongo
import pytest
from pinion_bank import Bank
from pinion_elections import elected
from pinion_node import PATIENCE_SECS, STEADY, Node, ReplicaSet, wait_until
from pymongo import ReadPreference, WriteConcern
from pymongo.errors import AutoReconnect, BulkWriteError, ConnectionFailure, DuplicateKeyError, OperationFailure
from pymongo.read_concern import ReadConcern

MAJORITY = WriteConcern("majority")


@pytest.fixture(scope="module")
def alone():
    with ReplicaSet(1) as members:
        yield members


@pytest.fixture(scope="module")
def three():
    with ReplicaSet(3, STEADY) as members:
        yield members


def fails(code, run, *args, **options):
    with pytest.raises(OperationFailure) as caught:
        run(*args, **options)
    assert caught.value.code == code, caught.value.details
    return caught.value


def test_a_standalone_has_no_transactions():
    with Node() as node, node.client() as client, client.start_session() as session:
        session.start_transaction()
        fails(20, client.test.c.insert_one, {}, session=session)


def test_a_transaction_over_a_direct_connection(alone):
    # As mongosh connects: the driver then sends the read preference primaryPreferred with each
    # statement.
    with alone.member(alone.nodes[0]) as client, client.start_session() as session:
        client.test.direct.drop()
        with session.start_transaction():
            client.test.direct.insert_one({"_id": 1}, session=session)
            preferred = {"find": "direct", "$readPreference": {"mode": "primaryPreferred"}}
            assert client.test.command(preferred, session=session)["cursor"]["firstBatch"] == [{"_id": 1}]
        assert client.test.direct.find_one() == {"_id": 1}
        session.start_transaction()
        fails(72, client.test.command, {"find": "direct", "$readPreference": {"mode": "secondary"}}, session=session)


def test_the_replies_of_a_bulk_write_that_outgrow_a_batch(alone):
    with alone.client() as client, client.start_session() as session:
        client.test.bulk.drop()
        client.test.create_collection("bulk")
        names = [letter * 8_000_000 for letter in "abc"]
        updates = [pymongo.UpdateOne({"_id": name}, {"$set": {"x": 1}}, upsert=True, namespace="test.bulk") for name in names]
        with session.start_transaction():
            done = client.bulk_write(updates, session=session, verbose_results=True)
            assert [done.update_results[at].upserted_id[0] for at in range(3)] == ["a", "b", "c"]
        assert client.test.bulk.count_documents({}) == 3
        session.start_transaction()
        client.test.bulk.find_one({"x": 1}, {"_id": 0}, session=session)
        fails(263, client.admin.command, {"getMore": bson.Int64(1), "collection": "other"}, session=session)
        client.test.bulk.drop()


def test_a_transaction_reads_what_it_writes_and_others_do_not(alone):
    with alone.client() as client, client.start_session() as session:
        one, other = client.test.own, client.test.other
        one.drop(), other.drop()
        one.create_index("a")
        other.insert_one({"_id": 0})
        with session.start_transaction():
            one.insert_many([{"_id": i, "a": i % 3} for i in range(300)], session=session)
            one.update_many({"a": 1}, {"$set": {"b": 1}}, session=session)
            one.delete_many({"a": 2}, session=session)
            other.replace_one({"_id": 0}, {"x": 1}, session=session)
            assert one.count_documents({}, session=session) == 200
            assert one.count_documents({"a": 1, "b": 1}, session=session) == 100
            assert len(list(one.find({}, batch_size=7, session=session))) == 200
            joined = [{"$match": {"_id": 0}}, {"$lookup": {"from": "other", "localField": "_id", "foreignField": "_id", "as": "o"}}]
            assert list(one.aggregate(joined, session=session))[0]["o"] == [{"_id": 0, "x": 1}]
            assert one.count_documents({}) == 0 and other.find_one() == {"_id": 0}
        assert one.count_documents({}) == 200 and other.find_one() == {"_id": 0, "x": 1}
        entry = client.local["oplog.rs"].find_one({"o.applyOps": {"$exists": True}, "txnNumber": {"$exists": True}}, sort=[("$natural", -1)])
        assert entry["op"] == "c" and entry["ns"] == "admin.$cmd" and entry["prevOpTime"]["t"] == -1
        assert len(entry["o"]["applyOps"]) == 300 + 100 + 100 + 1
        assert {op["op"] for op in entry["o"]["applyOps"]} == {"i", "u", "d"}
        assert client.test.command("validate", "own", full=True)["valid"]


def test_of_two_that_change_one_document_the_first_wins(alone):
    with alone.client() as client, client.start_session() as first, client.start_session() as second:
        things = client.test.things
        things.drop()
        things.insert_one({"_id": 1, "n": 0})
        first.start_transaction()
        second.start_transaction()
        things.update_one({"_id": 1}, {"$inc": {"n": 1}}, session=first)
        error = fails(112, things.update_one, {"_id": 1}, {"$inc": {"n": 1}}, session=second)
        assert error.has_error_label("TransientTransactionError")
        error = fails(251, things.find_one, session=second)
        assert error.has_error_label("TransientTransactionError")
        first.commit_transaction()
        assert things.find_one() == {"_id": 1, "n": 1}


def test_a_duplicate_key_aborts(alone):
    with alone.client() as client, client.start_session() as session:
        things = client.test.unique
        things.drop()
        things.create_index("u", unique=True)
        things.insert_one({"_id": 1, "u": 1})
        session.start_transaction()
        things.insert_one({"_id": 2, "u": 2}, session=session)
        with pytest.raises(DuplicateKeyError):
            things.insert_one({"_id": 3, "u": 1}, session=session)
        fails(251, things.insert_one, {"_id": 4}, session=session)
        session.abort_transaction()
        session.start_transaction()
        # What it has deleted itself is free again for it.
        things.delete_one({"_id": 1}, session=session)
        things.insert_one({"_id": 5, "u": 1}, session=session)
        with pytest.raises((DuplicateKeyError, BulkWriteError)):
            things.insert_many([{"_id": 6, "u": 6}, {"_id": 7, "u": 1}], session=session)
        session.abort_transaction()
        assert list(things.find()) == [{"_id": 1, "u": 1}]


def test_a_snapshot_is_one_for_all_partitions(alone):
    """Money moves between accounts all the time; no transaction sees more or less of it than there
    is."""
    with alone.client() as client:
        accounts = client.test.accounts
        accounts.drop()
        accounts.insert_many([{"_id": i, "n": 100} for i in range(20)])
        stop = threading.Event()
        moved = [0] * 3

        def move(worker):
            with client.start_session() as session:
                at = worker
                while not stop.is_set():
                    def transfer(session, at=at):
                        accounts.update_one({"_id": at % 20}, {"$inc": {"n": -1}}, session=session)
                        accounts.update_one({"_id": (at * 7 + 3) % 20}, {"$inc": {"n": 1}}, session=session)

                    session.with_transaction(transfer)
                    moved[worker] += 1
                    at += 3

        workers = [threading.Thread(target=move, args=(worker,), daemon=True) for worker in range(3)]
        for worker in workers:
            worker.start()
        began, reads = time.monotonic(), 0
        with client.start_session() as session:
            # On a slow machine it takes longer until enough has happened.
            while time.monotonic() < began + 5 or reads <= 10 or not all(moved):
                assert time.monotonic() < began + 2 * PATIENCE_SECS, (moved, reads)
                with session.start_transaction(read_concern=ReadConcern("snapshot")):
                    total = sum(account["n"] for account in accounts.find({}, batch_size=3, session=session))
                    again = list(accounts.aggregate([{"$group": {"_id": None, "n": {"$sum": "$n"}}}], session=session))
                assert total == 2000 and again[0]["n"] == 2000
                reads += 1
        stop.set()
        for worker in workers:
            worker.join()
        assert sum(account["n"] for account in accounts.find()) == 2000


def test_with_transaction_is_tried_again_after_a_conflict(alone):
    with alone.client() as client:
        counter = client.test.counter
        counter.drop()
        counter.insert_one({"_id": 1, "n": 0})

        def add():
            with client.start_session() as session:
                for _ in range(20):
                    def once(session):
                        n = counter.find_one({"_id": 1}, session=session)["n"]
                        counter.update_one({"_id": 1}, {"$set": {"n": n + 1}}, session=session)

                    session.with_transaction(once)

        workers = [threading.Thread(target=add, daemon=True) for _ in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert counter.find_one()["n"] == 80


def test_transactions_that_are_too_old_are_aborted(alone):
    with alone.client() as client, client.start_session() as session:
        things = client.test.old
        things.drop()
        things.insert_one({"_id": 1})
        session.start_transaction()
        things.update_one({"_id": 1}, {"$set": {"a": 1}}, session=session)
        idle = list(client.admin.aggregate([{"$currentOp": {}}, {"$match": {"type": "idleSession"}}]))
        assert idle[0]["transaction"]["parameters"]["autocommit"] is False
        session.abort_transaction()
        before = client.admin.command("setParameter", transactionLifetimeLimitSeconds=2)["was"]
        assert before == 60
        try:
            session.start_transaction()
            things.update_one({"_id": 1}, {"$set": {"a": 1}}, session=session)
            things.update_one({"_id": 1}, {"$set": {"b": 1}})
            assert things.find_one() == {"_id": 1, "b": 1}
            error = fails(251, session.commit_transaction)
            assert error.has_error_label("TransientTransactionError")
        finally:
            client.admin.command("setParameter", transactionLifetimeLimitSeconds=60)
        status = client.admin.command("serverStatus")["transactions"]
        assert status["currentOpen"] == 0 and status["totalAborted"] > 0


def test_a_drop_waits_for_a_transaction(alone):
    with alone.client() as client, client.start_session() as session:
        things = client.test.dropped
        things.drop()
        things.insert_one({"_id": 1})
        session.start_transaction()
        things.insert_one({"_id": 2}, session=session)
        dropped = []
        dropping = threading.Thread(target=lambda: dropped.append(things.drop()))
        dropping.start()
        wait_until(lambda: list(client.admin.aggregate([{"$currentOp": {}}, {"$match": {"command.drop": "dropped"}}])))
        time.sleep(0.3)
        assert not dropped
        things.insert_one({"_id": 3}, session=session)
        session.commit_transaction()
        dropping.join(PATIENCE_SECS)
        assert dropped and things.count_documents({}) == 0


def test_a_large_transaction(three):
    """Sixty megabytes do not fit into one entry of the oplog, nor beside others into a log; members
    have all of it or nothing."""
    with three.client() as client, client.start_session() as session:
        things = client.test.get_collection("large", write_concern=MAJORITY)
        things.insert_one({"_id": -1})
        seen = set()
        stop = threading.Event()

        def watch(node):
            with three.member(node) as member:
                collection = member.test.get_collection("large", read_preference=ReadPreference.SECONDARY_PREFERRED)
                while not stop.is_set():
                    seen.add(len(list(collection.find({"_id": {"$gte": 0}}, {"_id": 1}))))

        watchers = [threading.Thread(target=watch, args=(node,), daemon=True) for node in three.secondaries()]
        for watcher in watchers:
            watcher.start()
        session.start_transaction(write_concern=MAJORITY)
        for i in range(60):
            things.insert_one({"_id": i, "x": "x" * 1024 * 1024}, session=session)
        session.commit_transaction()
        assert things.count_documents({}) == 61
        three.wait_alike()
        stop.set()
        for watcher in watchers:
            watcher.join()
        assert seen <= {0, 60} and 60 in seen, seen
        found = list(client.local["oplog.rs"].find({"o.applyOps.ns": "test.large"}, {"o.partialTxn": 1, "o.count": 1, "prevOpTime": 1}).sort("$natural", 1))
        assert [entry["o"].get("partialTxn") for entry in found] == [True, True, True, None]
        assert found[-1]["o"]["count"] == 60
    for node in three.secondaries():
        node.kill()
        node.start()
        wait_until(lambda node=node: three.state(node) in (1, 2))
    three.wait_alike()


def test_collections_and_indexes_are_made_with_their_transaction(three):
    with three.client() as client, client.start_session() as session:
        database = client.get_database("made", write_concern=MAJORITY)
        client.drop_database("made")
        with session.start_transaction(write_concern=MAJORITY):
            database.create_collection("explicit", session=session, collation={"locale": "de", "strength": 1})
            database.explicit.create_index("a", unique=True, session=session)
            database.explicit.insert_many([{"_id": i, "a": [i, str(i)]} for i in range(50)], session=session)
            database.implicit.insert_one({"_id": 1}, session=session)
            assert database.explicit.count_documents({"a": "7"}, session=session, hint="a_1") == 1
            assert database.list_collection_names() == []
        with client.start_session() as other:
            other.start_transaction()
            database.gone.insert_one({}, session=other)
            other.abort_transaction()
        expected = {"explicit", "implicit"}
        assert set(database.list_collection_names()) == expected
        entry = client.local["oplog.rs"].find_one({"o.applyOps.o.create": "explicit"})
        reported = [(op["op"], *list(op["o"])[:1]) for op in entry["o"]["applyOps"] if op["op"] == "c"]
        assert reported == [("c", "create"), ("c", "createIndexes"), ("c", "create")]
    for node in three.secondaries():
        node.kill()
        node.start()
        # The primary keeps its majority, so there is no election meanwhile.
        wait_until(lambda node=node: three.state(node) == 2)
    three.wait_alike("made")
    for node in three.nodes:
        with three.member(node) as client:
            assert set(client.made.list_collection_names()) == expected
            assert client.made.explicit.index_information()["a_1"]["unique"]
            assert client.made.command("validate", "explicit", full=True)["valid"]
            reading = client.made.get_collection("explicit", read_preference=ReadPreference.SECONDARY_PREFERRED)
            assert reading.count_documents({"a": "7"}, hint="a_1") == 1


def test_what_is_committed_survives_the_primary(three):
    """The primary is killed while clients run transactions: each is there as a whole or not at all,
    and what was acknowledged is."""
    with three.client(retryWrites=True) as client:
        left, right = (client.test.get_collection(name, write_concern=MAJORITY) for name in ("left", "right"))
        left.insert_one({"_id": "first"})
        right.insert_one({"_id": "first"})
        stop = threading.Event()
        acknowledged = [[], [], []]

        def run(worker):
            number = 0
            while not stop.is_set():
                number += 1
                key = f"{worker}-{number}"
                try:
                    with client.start_session() as session:
                        def both(session):
                            left.insert_one({"_id": key}, session=session)
                            right.insert_many([{"_id": f"{key}-{i}", "of": key} for i in range(3)], session=session)

                        session.with_transaction(both, write_concern=MAJORITY)
                    acknowledged[worker].append(key)
                except (AutoReconnect, ConnectionFailure, OperationFailure):
                    pass

        workers = [threading.Thread(target=run, args=(worker,), daemon=True) for worker in range(3)]
        for worker in workers:
            worker.start()
        for _ in range(2):
            time.sleep(2)
            before = [len(keys) for keys in acknowledged]
            primary = three.primary()
            primary.kill()
            elected(three)
            primary.start()
            wait_until(lambda before=before: all(len(keys) > n for keys, n in zip(acknowledged, before)))
        stop.set()
        for worker in workers:
            worker.join()
        three.wait_alike()
        there = {document["_id"] for document in left.find()} - {"first"}
        for keys in acknowledged:
            assert keys and set(keys) <= there
        counted = {group["_id"]: group["n"] for group in right.aggregate([{"$match": {"of": {"$exists": True}}}, {"$group": {"_id": "$of", "n": {"$sum": 1}}}])}
        assert counted == dict.fromkeys(there, 3)


def test_a_step_down_aborts(three):
    with three.client(retryWrites=False) as client, client.start_session() as session:
        things = client.test.stepped
        things.insert_one({"_id": 1})
        primary = three.primary()
        session.start_transaction()
        things.insert_one({"_id": 2}, session=session)
        with three.member(primary) as member:
            member.admin.command("replSetStepDown", 40, secondaryCatchUpPeriodSecs=30)
        with pytest.raises((OperationFailure, pymongo.errors.PyMongoError)) as caught:
            session.commit_transaction()
        assert not isinstance(caught.value, OperationFailure) or caught.value.code in (251, 10107, 11602, 189), caught.value
        elected(three)
        assert client.test.stepped.with_options(write_concern=MAJORITY).count_documents({}) == 1


def test_money_is_neither_made_nor_lost(three):
    """Transactions move it while primaries are killed and step down; every snapshot has all of
    it."""
    bank = Bank(three)
    enough = 5
    with bank:
        for fault in ("kill", "step-down", "kill"):
            time.sleep(3)
            before = [len(teller.acknowledged) for teller in bank.tellers]
            primary = three.primary()
            if fault == "kill":
                primary.kill()
                elected(three)
                primary.start()
            else:
                with three.member(primary) as member:
                    member.admin.command("replSetStepDown", 40, secondaryCatchUpPeriodSecs=30)
                elected(three)
            wait_until(lambda before=before: all(len(teller.acknowledged) > n for teller, n in zip(bank.tellers, before)))
        wait_until(lambda: all(auditor.counted > enough for auditor in bank.auditors))
    assert bank.verdict() == []
