"""Uniqueness over several partitions: one winner for each value, and nothing left behind."""

import threading

import pymongo
import pytest

from pinion_node import Node, wait_until

CONNECTIONS = 64
VALUES = 30


def race(node, act):
    """Runs act(collection, number) on every connection at once and returns all results."""
    results, barrier = [[] for _ in range(CONNECTIONS)], threading.Barrier(CONNECTIONS)

    def work(number):
        with node.client(maxPoolSize=1) as client:
            client.admin.command("ping")
            barrier.wait(240)
            for value in range(VALUES):
                results[number].append(act(client.test.u, number, value))

    threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(480)
        assert not thread.is_alive()
    return results


def attempt(action):
    """None when it was done, else the duplicate key error's details."""
    try:
        action()
        return None
    except pymongo.errors.DuplicateKeyError as error:
        return error.details


def winners(results, value):
    return [number for number in range(CONNECTIONS) if results[number][value] is None]


def check_losers(results, value):
    for number in range(CONNECTIONS):
        details = results[number][value]
        if details is not None:
            assert details["code"] == 11000
            assert details["keyPattern"] == {"u": 1} and details["keyValue"] == {"u": value}, details


def test_one_insert_wins_for_each_value():
    with Node("--cpus", "2", "--partitions", "4") as node:
        collection = node.client().test.u
        collection.create_index("u", unique=True)
        results = race(node, lambda c, number, value: attempt(lambda: c.insert_one({"_id": number * 1000 + value, "u": value})))
        for value in range(VALUES):
            assert len(winners(results, value)) == 1
            check_losers(results, value)
        assert collection.count_documents({}) == VALUES
        no_intent_is_left(node, collection)


def test_one_update_wins_for_each_value():
    with Node("--cpus", "2", "--partitions", "4") as node:
        collection = node.client().test.u
        collection.create_index("u", unique=True)
        collection.insert_many({"_id": i, "u": -1 - i} for i in range(CONNECTIONS))
        results = race(node, lambda c, number, value: attempt(lambda: c.update_one({"_id": number}, {"$set": {"u": value}})))
        for value in range(VALUES):
            assert len(winners(results, value)) >= 1
            check_losers(results, value)
        found = [document["u"] for document in collection.find()]
        assert len(found) == CONNECTIONS and len(set(found)) == CONNECTIONS
        no_intent_is_left(node, collection)


def test_a_crash_leaves_no_intent():
    with Node("--cpus", "2", "--partitions", "4") as node:
        collection = node.client().test.u
        collection.create_index("u", unique=True)
        stop = threading.Event()

        def work(number):
            with node.client(maxPoolSize=1, retryWrites=False) as client:
                value = 0
                while not stop.is_set():
                    try:
                        client.test.u.insert_one({"_id": number * 10_000_000 + value, "u": value})
                    except pymongo.errors.DuplicateKeyError:
                        pass
                    except pymongo.errors.PyMongoError:
                        return
                    value += 1

        threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(16)]
        for thread in threads:
            thread.start()
        threads[0].join(1.5)
        node.kill()
        stop.set()
        # Their clients wait for the node when they are closed.
        node.start()
        for thread in threads:
            thread.join(120)
            assert not thread.is_alive()
        no_intent_is_left(node, node.client().test.u)


def no_intent_is_left(node, collection):
    """Every document and every value can still be written."""
    # Those of losers go soon after the reply.
    admin = node.client().admin
    wait_until(lambda: admin.command("serverStatus")["pinion"]["storage"]["intents"] == 0)
    keys = [document["_id"] for document in collection.find({}, {"_id": 1})]
    for i, key in enumerate(keys):
        collection.update_one({"_id": key}, {"$set": {"u": 1_000_000_000 + i}})
    assert collection.count_documents({"u": {"$gte": 1_000_000_000}}) == len(keys)


def test_the_first_of_an_unordered_batch_wins_each_value():
    """Also where many want the same, and where a document wants two values of which an earlier one
    has taken one."""
    with Node("--cpus", "2", "--partitions", "4") as node:
        db = node.client().test
        db.u.create_indexes([pymongo.IndexModel("a", unique=True), pymongo.IndexModel("b", unique=True)])
        db.u.insert_one({"_id": "before", "a": 3, "b": "before"})
        documents = [{"_id": i, "a": i // 10 % 40, "b": i * 7 % 400} for i in range(3_000)]
        taken, expected = {"a": {3}, "b": {"before"}}, []
        for document in documents:
            if all(document[field] not in taken[field] for field in taken):
                expected.append(document)
                for field in taken:
                    taken[field].add(document[field])
        reply = db.command("insert", "u", documents=documents, ordered=False)
        assert reply["n"] == len(expected)
        assert {error["index"] for error in reply["writeErrors"]} == set(range(3_000)) - {document["_id"] for document in expected}
        assert list(db.u.find({"_id": {"$type": "number"}}).sort("_id")) == expected


def test_very_many_errors_of_a_batch():
    """Each is reported, the first with their texts; the time does not grow with the square of how
    many want the same."""
    with Node("--cpus", "1") as node:
        db = node.client().test
        reply = db.command("insert", "u", documents=[{"_id": "x" * 250}] * 40_000, ordered=False)
        first = reply["n"], reply["writeErrors"]
        # All are taken now, the first as well.
        reply = db.command("insert", "u", documents=[{"_id": "x" * 250}] * 40_000, ordered=False)
        assert (reply["n"], len(reply["writeErrors"])) == (0, 40_000)
        n, errors = first
        assert (n, [error["index"] for error in errors]) == (1, list(range(1, 40_000)))
        assert all(error["code"] == 11000 and error["keyValue"] == {"_id": "x" * 250} for error in errors)
        reported = [error["errmsg"] for error in errors if error["errmsg"]]
        assert [error["errmsg"] for error in errors[:len(reported)]] == reported and reported[0].startswith("E11000 duplicate key error")
        assert 1024 * 1024 <= sum(map(len, reported)) <= 1024 * 1024 + len(reported[0])


def test_a_batch_of_which_all_want_one_value_of_a_second_index():
    """And each an _id of its own. Without the values of errors that would make the reply longer
    than a message may be."""
    with Node("--cpus", "2", "--partitions", "4") as node:
        collection = node.client().test.u
        collection.create_index("a", unique=True)
        value = "y" * 990
        with pytest.raises(pymongo.errors.BulkWriteError) as failed:
            collection.insert_many([{"_id": i, "a": value} for i in range(46_000)], ordered=False)
        errors = failed.value.details["writeErrors"]
        assert failed.value.details["nInserted"] == 1 and [error["index"] for error in errors] == list(range(1, 46_000))
        assert all(error["code"] == 11000 for error in errors)
        with_value = [error for error in errors if "keyValue" in error]
        assert with_value == errors[:len(with_value)] and 10_000 < len(with_value) < 17_000
        assert all(error["keyValue"] == {"a": value} and error["keyPattern"] == {"a": 1} for error in with_value)
        assert list(collection.find()) == [{"_id": 0, "a": value}]
