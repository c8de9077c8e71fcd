"""Exhaust cursors: after one getMore the batches come without being asked for."""

import pymongo
from pymongo.cursor import CursorType


def test_batches_come_unasked(collection, node):
    collection.insert_many({"_id": i} for i in range(1_000))
    received = lambda: collection.database.command("serverStatus")["network"]["bytesIn"]
    with pymongo.MongoClient(node.uri, maxPoolSize=1) as other:
        exhausted = other[collection.database.name][collection.name]
        before = received()
        found = list(exhausted.find(cursor_type=CursorType.EXHAUST, batch_size=2, sort=[("_id", 1)]))
        assert [document["_id"] for document in found] == list(range(1_000))
        # 500 requests would be more than that; what monitors the server asks now and then.
        assert received() - before < 30_000
        assert other.admin.command("ping")["ok"] == 1


def test_a_client_that_leaves_ends_the_stream(collection, node):
    collection.insert_many({"_id": i, "s": "x" * 1_000} for i in range(5_000))
    for _ in range(20):
        with pymongo.MongoClient(node.uri) as other:
            cursor = other[collection.database.name][collection.name].find(cursor_type=CursorType.EXHAUST, batch_size=10)
            for _ in range(25):
                next(cursor)
            cursor.close()
    assert collection.count_documents({}) == 5_000
