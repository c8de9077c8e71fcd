"""Uniqueness over several partitions: one winner for each value, and nothing left behind."""

import threading

import pymongo

from pinion_node import Node

CONNECTIONS = 64
VALUES = 30


def race(node, act):
    """Runs act(collection, number) on every connection at once and returns all results."""
    results, barrier = [[] for _ in range(CONNECTIONS)], threading.Barrier(CONNECTIONS)

    def work(number):
        with node.client(maxPoolSize=1) as client:
            client.admin.command("ping")
            barrier.wait(60)
            for value in range(VALUES):
                results[number].append(act(client.test.u, number, value))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
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

        threads = [threading.Thread(target=work, args=(i,)) for i in range(16)]
        for thread in threads:
            thread.start()
        threads[0].join(1.5)
        node.kill()
        stop.set()
        for thread in threads:
            thread.join(60)
        node.start()
        no_intent_is_left(node, node.client().test.u)


def no_intent_is_left(node, collection):
    """Every document and every value can still be written."""
    status = node.client().admin.command("serverStatus")["pinion"]["storage"]
    assert status["intents"] == 0, status
    keys = [document["_id"] for document in collection.find({}, {"_id": 1})]
    for i, key in enumerate(keys):
        collection.update_one({"_id": key}, {"$set": {"u": 1_000_000_000 + i}})
    assert collection.count_documents({"u": {"$gte": 1_000_000_000}}) == len(keys)
