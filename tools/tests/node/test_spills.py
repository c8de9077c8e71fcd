"""Sorts, groups and their kin that outgrow their memory continue on disk, answer the same, and
leave nothing there."""

import pytest
from pymongo.errors import OperationFailure

from pinion_node import Node

DOCUMENTS = 20_000
LIMITS = {
    "internalQueryMaxBlockingSortMemoryUsageBytes": 300_000,
    "internalDocumentSourceGroupMaxMemoryBytes": 300_000,
    "internalQuerySlotBasedExecutionHashAggApproxMemoryUseInBytesBeforeSpill": 300_000,
    "internalDocumentSourceBucketAutoMaxMemoryBytes": 300_000,
    "internalDocumentSourceSetWindowFieldsMaxMemoryBytes": 3_000_000,
}
PIPELINES = {
    "sort": ([{"$sort": {"k": 1}}, {"$project": {"k": 1}}], {}),
    "sort behind a stage": ([{"$project": {"k": 1, "b": 1}}, {"$sort": {"k": -1}}, {"$skip": 5}, {"$limit": 19_000}, {"$project": {"k": 1}}], {}),
    "group": ([{"$group": {"_id": "$k", "s": {"$sum": "$v"}, "first": {"$first": "$_id"}, "n": {"$count": {}}}}], {}),
    "large groups": ([{"$group": {"_id": "$g", "all": {"$push": "$v"}, "set": {"$addToSet": "$k"}, "dev": {"$stdDevPop": "$v"}}}], {}),
    "buckets": ([{"$bucketAuto": {"groupBy": "$v", "buckets": 10, "output": {"k": {"$max": "$k"}}}}], {}),
    "windows": ([{"$setWindowFields": {"partitionBy": "$g", "sortBy": {"k": 1}, "output": {"s": {"$sum": "$v"}}}}, {"$project": {"s": 1}}], {}),
    "facets": ([{"$facet": {"a": [{"$sortByCount": "$k"}, {"$limit": 50}], "b": [{"$sort": {"v": 1}}, {"$limit": 15_000}, {"$count": "n"}]}}], {}),
    "words": ([{"$group": {"_id": "$t", "n": {"$sum": 1}}}], {"collation": {"locale": "en", "strength": 2}}),
}


@pytest.fixture(scope="module")
def node():
    with Node("--cpus", "2", "--partitions", "3") as node:
        node.client().test.c.insert_many({
            "_id": i, "k": i * 7919 % 15_013, "g": i % 3, "v": i / 7, "b": "x" * 200, "t": ("word" if i % 2 else "WORD") + str(i % 9000),
        } for i in range(DOCUMENTS))
        yield node


def set_parameters(node, parameters):
    node.client().admin.command({"setParameter": 1} | parameters)


@pytest.fixture
def little_memory(node):
    admin = node.client().admin
    before = {name: admin.command("getParameter", 1, **{name: 1})[name] for name in LIMITS}
    assert set(before.values()) == {100 * 1024 * 1024}
    yield lambda: set_parameters(node, LIMITS)
    set_parameters(node, before | {"allowDiskUseByDefault": True})


@pytest.mark.parametrize("name", PIPELINES)
def test_the_answer_is_that_of_much_memory(node, little_memory, name):
    pipeline, options = PIPELINES[name]
    c = node.client().test.c
    expected = list(c.aggregate(pipeline, **options))
    little_memory()
    spilled = sum(spills(node).values())
    assert list(c.aggregate(pipeline, **options)) == expected
    assert sum(spills(node).values()) > spilled
    with pytest.raises(OperationFailure) as failed:
        list(c.aggregate(pipeline, allowDiskUse=False, **options))
    assert failed.value.code == 292


def spills(node):
    query = node.client().admin.command("serverStatus")["metrics"]["query"]
    return {stage: query[stage]["spills"] for stage in ("sort", "group", "bucketAuto", "setWindowFields")}


def test_a_find_says_whether_it_may_use_the_disk(node, little_memory):
    little_memory()
    c = node.client().test.c
    everything = sorted(range(DOCUMENTS), key=lambda i: (i * 7919 % 15_013, i))
    assert [d["_id"] for d in c.find().sort("k", 1)] == everything
    with pytest.raises(OperationFailure) as failed:
        list(c.find().sort("k", 1).allow_disk_use(False))
    assert failed.value.code == 292
    set_parameters(node, {"allowDiskUseByDefault": False})
    with pytest.raises(OperationFailure) as failed:
        list(c.find().sort("k", 1))
    assert failed.value.code == 292
    assert [d["_id"] for d in c.find().sort("k", 1).allow_disk_use(True)] == everything
    stage = c.database.command("explain", {"find": "c", "sort": {"k": 1}, "allowDiskUse": True})["executionStats"]["executionStages"]
    while stage["stage"] != "SORT":
        stage = stage["inputStage"]
    assert stage["usedDisk"] and stage["spills"] > 1 and stage["spilledRecords"] == DOCUMENTS


def test_the_profiler_reports_it(node, little_memory):
    little_memory()
    db = node.client().test
    db.command("profile", 2)
    list(db.c.aggregate([{"$sort": {"k": 1}}, {"$limit": 10_000}], batchSize=100_000))
    list(db.c.find({"_id": 1}))
    db.command("profile", 0)
    reported = [entry.get("usedDisk", False) for entry in db["system.profile"].find({"ns": "test.c"}).sort("ts", 1)]
    assert reported == [True, False]


def test_the_memory_of_one_group_has_an_end(node):
    """What one accumulator holds cannot be spilled."""
    with pytest.raises(OperationFailure) as failed:
        list(node.client().test.c.aggregate([
            {"$limit": 600}, {"$project": {"b": {"$range": [0, 20_000]}}}, {"$group": {"_id": None, "all": {"$push": "$b"}}}]))
    assert failed.value.code == 146 and "$push used too much memory" in str(failed.value)


def test_nothing_is_left_after_a_crash():
    with Node("--cpus", "1") as node:
        set_parameters(node, LIMITS)
        c = node.client().test.c
        c.insert_many({"_id": i, "b": "x" * 1000} for i in range(5000))
        cursor = c.find(batch_size=10).sort("b", 1)
        next(cursor)
        assert node.client().admin.command("serverStatus")["pinion"]["operations"]["spilledBytes"] > 3_000_000
        left = node.directory / "data" / "_tmp"
        assert list(left.iterdir()) == []
        (left / "spill-0-7").write_bytes(b"left of an older life")
        node.kill()
        node.start()
        assert list(left.iterdir()) == []
        assert node.client().test.c.count_documents({}) == 5000
