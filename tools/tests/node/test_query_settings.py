"""Query settings: the indexes that commands of a shape may use, and commands that are rejected."""

import pytest
from pinion_node import Node
from pymongo.errors import OperationFailure


@pytest.fixture
def client(node):
    client = node.client()
    client.drop_database("settings")
    collection = client.settings.c
    collection.insert_many([{"_id": n, "a": n % 10, "b": n % 7} for n in range(200)])
    collection.create_index("a")
    collection.create_index("b")
    yield client
    for entry in entries(client):
        client.admin.command({"removeQuerySettings": entry["queryShapeHash"]})


def entries(client, **spec):
    return list(client.admin.aggregate([{"$querySettings": spec}]))


def set_settings(client, query, settings):
    return client.admin.command({"setQuerySettings": query, "settings": settings})


def find(**fields):
    return {"find": "c", **fields, "$db": "settings"}


def hints(*allowed, coll="c"):
    return {"indexHints": [{"ns": {"db": "settings", "coll": coll}, "allowedIndexes": list(allowed)}]}


def used(client, command):
    """The index that the plan of a command reads, or None for the collection itself."""
    command = {name: value for name, value in command.items() if name != "$db"}
    stage = client.settings.command({"explain": command, "verbosity": "queryPlanner"})["queryPlanner"]["winningPlan"]
    while "inputStage" in stage:
        stage = stage["inputStage"]
    return stage.get("indexName")


def fails(call, code):
    with pytest.raises(OperationFailure) as raised:
        call()
    assert raised.value.code == code, raised.value


def test_commands_of_a_shape_use_the_allowed_indexes(client):
    query = find(filter={"a": 1, "b": 1})
    reply = set_settings(client, query, hints("b_1"))
    assert reply["representativeQuery"] == query and len(reply["queryShapeHash"]) == 64
    assert used(client, find(filter={"a": 5, "b": 6})) == "b_1"
    # The command's own hint is passed over.
    assert used(client, find(filter={"a": 5, "b": 6}, hint="a_1")) == "b_1"
    set_settings(client, reply["queryShapeHash"], hints({"a": 1}))
    assert used(client, find(filter={"a": 5, "b": 6})) == "a_1"
    set_settings(client, query, hints({"$natural": 1}))
    assert used(client, find(filter={"a": 5, "b": 6})) is None
    # Other shapes are planned as ever.
    assert used(client, find(filter={"a": 5})) == "a_1"
    rows = list(client.settings.c.find({"a": 1, "b": 1}))
    assert sorted(row["_id"] for row in rows) == [n for n in range(200) if n % 10 == 1 and n % 7 == 1]


def test_hints_of_pipelines_reach_the_collections_that_they_join(client):
    client.settings.other.insert_many([{"_id": n, "k": n} for n in range(10)])
    client.settings.other.create_index("k")
    pipeline = [{"$match": {"a": 1}}, {"$lookup": {"from": "other", "localField": "b", "foreignField": "k", "as": "j"}}]
    before = list(client.settings.c.aggregate(pipeline))
    accesses = lambda: next(i["accesses"]["ops"] for i in client.settings.other.aggregate([{"$indexStats": {}}]) if i["name"] == "k_1")
    used_before = accesses()
    assert used_before > 0
    query = {"aggregate": "c", "pipeline": pipeline, "$db": "settings"}
    set_settings(client, query, hints({"$natural": 1}, coll="other"))
    assert list(client.settings.c.aggregate(pipeline)) == before
    assert accesses() == used_before


def test_rejected_commands(client):
    query = find(filter={"a": {"$gt": 1}})
    reply = set_settings(client, query, {"reject": True, "comment": "too slow"})
    fails(lambda: list(client.settings.c.find({"a": {"$gt": 7}})), 411)
    assert client.settings.c.count_documents({"a": {"$gt": 7}}) == 40
    assert len(list(client.settings.c.find({"a": {"$gte": 7}}))) == 60
    distinct = {"distinct": "c", "key": "a", "$db": "settings"}
    set_settings(client, distinct, {"reject": True})
    fails(lambda: client.settings.c.distinct("a"), 411)
    status = client.admin.command("serverStatus")["querySettings"]
    assert (status["count"], status["rejectCount"]) == (2, 2)
    # With the framework left there still are settings.
    set_settings(client, reply["queryShapeHash"], {"reject": False, "queryFramework": "classic"})
    assert len(list(client.settings.c.find({"a": {"$gt": 7}}))) == 40
    fails(lambda: set_settings(client, find(filter={"x": 1}), {"reject": False}), 7746604)


def test_settings_are_listed_and_removed(client):
    query = find(filter={"a": 1})
    set_settings(client, query, {"reject": True})
    (entry,) = entries(client, showDebugQueryShape=True)
    assert entry["representativeQuery"] == query and entry["settings"] == {"reject": True}
    assert entry["debugQueryShape"]["filter"] == {"a": {"$eq": "?number"}}
    client.admin.command({"removeQuerySettings": query})
    assert entries(client) == []
    fails(lambda: client.admin.command({"removeQuerySettings": query}), 7746701)


def test_what_can_have_no_settings(client):
    reject = {"reject": True}
    fails(lambda: set_settings(client, find(filter={"_id": 1}), reject), 7746606)
    fails(lambda: set_settings(client, {"find": "c", "$db": "local"}, reject), 8584900)
    fails(lambda: set_settings(client, {"find": "system.views", "$db": "settings"}, reject), 8584901)
    fails(lambda: set_settings(client, {"count": "c", "$db": "settings"}, reject), 7746402)
    fails(lambda: set_settings(client, {"find": "c"}, reject), 40414)
    fails(lambda: set_settings(client, find(nosuch=1), reject), 40415)
    fails(lambda: set_settings(client, "0" * 64, reject), 7746401)
    fails(lambda: set_settings(client, "abc", reject), 2)
    fails(lambda: set_settings(client, 5, reject), 14)
    fails(lambda: set_settings(client, find(), {}), 8727502)
    fails(lambda: client.settings.command({"setQuerySettings": find(), "settings": reject}), 13)


def test_settings_outlive_the_node():
    with Node() as node:
        set_settings(node.client(), find(filter={"a": 1}), {"reject": True})
        node.stop()
        node.start()
        fails(lambda: list(node.client().settings.c.find({"a": 2})), 411)
