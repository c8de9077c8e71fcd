"""Documents that expire, as applications use it: sessions, caches, logs."""

import datetime
import time

import pytest
from bson import Int64
from pinion_node import Node, wait_until
from pymongo.errors import OperationFailure

OFTEN = ("--setParameter", "ttlMonitorSleepSecs=1")


def ago(secs):
    return datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=secs)


@pytest.fixture(params=["1", "2"])
def node(request):
    with Node("--cpus", request.param, *OFTEN) as node:
        yield node


def ids(collection):
    return sorted(document["_id"] for document in collection.find())


def code_of(act, *arguments, **options):
    with pytest.raises(OperationFailure) as raised:
        act(*arguments, **options)
    return raised.value.code


def test_sessions_expire(node):
    client = node.client()
    sessions = client.web.sessions
    sessions.create_index("expires", expireAfterSeconds=0)
    sessions.insert_many([{"_id": 1, "expires": ago(10)}, {"_id": 2, "expires": ago(-1)}, {"_id": 3, "expires": ago(-1000)},
                          {"_id": 4, "expires": None}, {"_id": 5}, {"_id": 6, "expires": [ago(-1000), ago(1)]}])
    wait_until(lambda: ids(sessions) == [3, 4, 5])

    def is_counted():
        # At the end of a pass.
        status = client.admin.command("serverStatus")["metrics"]["ttl"]
        return status["deletedDocuments"] == 3 and status["passes"] >= 1 and status["subPasses"] >= 1
    wait_until(is_counted)


def test_the_index_is_listed_changed_and_made(node):
    logs = node.client().app.logs
    logs.create_index("at", expireAfterSeconds=3600, name="ttl")
    listed = {index["name"]: index for index in logs.list_indexes()}
    assert listed["ttl"]["expireAfterSeconds"] == 3600
    logs.create_index("at", expireAfterSeconds=3600, name="ttl")
    assert code_of(logs.create_index, "at", expireAfterSeconds=60, name="ttl") == 85
    assert code_of(logs.create_index, "at", expireAfterSeconds=60, name="other") == 85
    assert code_of(logs.create_index, [("at", 1), ("n", 1)], expireAfterSeconds=60) == 67
    assert code_of(logs.create_index, "_id", expireAfterSeconds=60) == 197
    for wrong in (-1, 2**31, float("nan"), "60"):
        assert code_of(logs.create_index, "b", expireAfterSeconds=wrong) == 67
    logs.insert_many([{"_id": 1, "at": ago(1000)}, {"_id": 2, "at": ago(10)}])
    reply = logs.database.command("collMod", "logs", index={"keyPattern": {"at": 1}, "expireAfterSeconds": 900})
    assert (reply["expireAfterSeconds_old"], reply["expireAfterSeconds_new"]) == (3600, 900)
    wait_until(lambda: ids(logs) == [2])
    logs.create_index("n", name="plain")
    reply = logs.database.command("collMod", "logs", index={"name": "plain", "expireAfterSeconds": Int64(5)})
    assert reply["expireAfterSeconds_new"] == 5 and "expireAfterSeconds_old" not in reply
    logs.insert_one({"_id": 3, "n": ago(6)})
    wait_until(lambda: ids(logs) == [2])


def test_a_clustered_collection_expires(node):
    database = node.client().app
    database.create_collection("events", clusteredIndex={"key": {"_id": 1}, "unique": True}, expireAfterSeconds=900)
    kept = ago(10)
    database.events.insert_many([{"_id": ago(1000)}, {"_id": kept}])
    wait_until(lambda: database.events.count_documents({}) == 1)


def test_parameters(node):
    admin = node.client().admin
    assert admin.command("getParameter", 1, ttlMonitorSleepSecs=1)["ttlMonitorSleepSecs"] == 1
    defaults = {"ttlMonitorEnabled": True, "ttlMonitorBatchDeletes": True, "ttlMonitorSubPassTargetSecs": 60,
                "ttlIndexDeleteTargetTimeMS": 1000, "ttlIndexDeleteTargetDocs": 50000}
    for name, value in defaults.items():
        assert admin.command("getParameter", 1, **{name: 1})[name] == value
    for name, wrong in [("ttlMonitorSleepSecs", 0), ("ttlMonitorSubPassTargetSecs", 0), ("ttlIndexDeleteTargetDocs", -1)]:
        assert code_of(admin.command, "setParameter", 1, **{name: wrong}) == 2
    admin.command("setParameter", 1, ttlMonitorEnabled=False)
    cache = admin.client.app.cache
    cache.create_index("at", expireAfterSeconds=0)
    cache.insert_one({"_id": 1, "at": ago(10)})
    time.sleep(2.5)
    assert ids(cache) == [1]
    admin.command("setParameter", 1, ttlMonitorEnabled=True)
    wait_until(lambda: ids(cache) == [])


def test_many_expire_while_others_work_and_the_node_stops(node):
    collection = node.client().app.c
    collection.create_index("at", expireAfterSeconds=0)
    old = ago(10)
    for start in range(0, 20000, 5000):
        collection.insert_many([{"_id": i, "at": old} for i in range(start, start + 5000)])
    # The fixture stops the node in the middle, which must not take long or fail.
    wait_until(lambda: collection.estimated_document_count() < 20000)
