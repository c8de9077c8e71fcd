"""Views over sharded collections, compared with the same views on collections that are not sharded;
pipelines that read metadata of documents, distances and times over several shards."""

import pymongo
import pytest
from bson import MaxKey, MinKey
from pinion_cluster import Cluster, fails, unharmed
from pinion_node import TEST_COMMANDS
from pymongo.collation import Collation
from pymongo.read_preferences import ReadPreference

GERMAN = {"locale": "de", "strength": 1}
DOCUMENTS = [
    {"_id": n, "k": n, "g": n % 5, "name": "aAbB"[n % 4], "l": [n % 3, {"x": n % 2}], "to": (n * 7) % 60}
    for n in range(60)
]
VIEWS = {
    "plain": ("c", []),
    "filtered": ("c", [{"$match": {"g": {"$lt": 3}}}]),
    "grouped": ("c", [{"$group": {"_id": "$g", "n": {"$sum": 1}, "all": {"$sum": "$k"}}}]),
    "over": ("filtered", [{"$project": {"g": 1, "k": 1, "l": 1, "name": 1}}, {"$match": {"k": {"$gte": 10}}}]),
    "joined": ("small", [{"$lookup": {"from": "c", "localField": "_id", "foreignField": "g", "as": "found"}},
                         {"$project": {"g": "$_id", "k": {"$size": "$found"}}}]),
    "joined_view": ("small", [{"$lookup": {"from": "over", "localField": "_id", "foreignField": "g", "as": "f"}},
                              {"$project": {"g": "$_id", "k": {"$size": "$f"}}}]),
    "united": ("small", [{"$unionWith": "filtered"}]),
}
READS = {
    "find": lambda c: sorted_ids(c.find()),
    "filter": lambda c: sorted_ids(c.find({"k": {"$gt": 3}})),
    "sort": lambda c: list(c.find({}, {"_id": 1, "k": 1}).sort([("k", -1), ("_id", 1)]).skip(2).limit(5)),
    "batches": lambda c: sorted_ids(c.find(batch_size=3)),
    "count": lambda c: c.database.command("count", c.name)["n"],
    "counted": lambda c: c.database.command("count", c.name, query={"k": {"$gt": 3}}, skip=1, limit=4)["n"],
    "documents": lambda c: c.count_documents({"g": 1}),
    "distinct": lambda c: c.distinct("g"),
    "paths": lambda c: c.distinct("l.x", {"k": {"$gt": 3}}),
    "group": lambda c: list(c.aggregate([{"$group": {"_id": "$g", "n": {"$sum": 1}}}, {"$sort": {"_id": 1}}])),
    "facet": lambda c: list(c.aggregate([{"$facet": {"n": [{"$count": "n"}], "k": [{"$match": {"k": 4}}]}}])),
    "lookup": lambda c: by_id(c.aggregate([
        {"$lookup": {"from": "over", "localField": "g", "foreignField": "g", "as": "f"}},
        {"$project": {"n": {"$size": "$f"}}}])),
    "inner": lambda c: by_id(c.aggregate([
        {"$lookup": {"from": "filtered", "let": {"g": "$g"}, "as": "f",
                     "pipeline": [{"$match": {"$expr": {"$eq": ["$g", "$$g"]}}}, {"$count": "n"}]}},
        {"$project": {"f": 1}}])),
    "union": lambda c: sorted_ids(c.aggregate([{"$unionWith": {"coll": "over", "pipeline": [{"$match": {"g": 2}}]}}])),
}


def sorted_ids(cursor):
    return sorted(document["_id"] for document in cursor)


def by_id(cursor):
    return sorted(cursor, key=lambda document: document["_id"])


@pytest.fixture(scope="module")
def cluster():
    with unharmed(Cluster(shards=2, options=TEST_COMMANDS)) as running:
        yield running


@pytest.fixture(scope="module")
def client(cluster):
    with cluster.client() as connected:
        yield connected


def split(client, ns, key, at):
    """Shards an empty collection: what is below `at` goes to s0, the rest to s1."""
    field = next(iter(key))
    client.admin.command("addShardToZone", "s0", zone="low")
    client.admin.command("addShardToZone", "s1", zone="high")
    for bounds, zone in (({"min": MinKey(), "max": at}, "low"), ({"min": at, "max": MaxKey()}, "high")):
        bounds = {name: {field: bound} for name, bound in bounds.items()}
        client.admin.command("updateZoneKeyRange", ns, zone=zone, **bounds)
    client.admin.command("shardCollection", ns, key=key)


@pytest.fixture(scope="module")
def dbs(cluster, client):
    """Two databases with the same views: in the first `c` is sharded."""
    for name in ("sharded", "whole"):
        cluster.make_database(name, 0, client)
    split(client, "sharded.c", {"k": 1}, 30)
    for db in (client.sharded, client.whole):
        db.c.insert_many(DOCUMENTS)
        db.small.insert_many([{"_id": n, "g": n, "k": n} for n in range(4)])
        for name, (on, pipeline) in VIEWS.items():
            db.create_collection(name, viewOn=on, pipeline=pipeline)
        db.create_collection("german", viewOn="c", pipeline=[{"$match": {"name": "a"}}], collation=GERMAN)
    return client.sharded, client.whole


@pytest.mark.parametrize("view", [*VIEWS, "small"])
def test_reads_of_views(dbs, view):
    sharded, whole = dbs
    for name, read in READS.items():
        assert read(sharded[view]) == read(whole[view]), (view, name)


def test_the_namespace_of_a_cursor_is_the_view(dbs):
    for command in ({"find": "filtered"}, {"aggregate": "filtered", "pipeline": [], "cursor": {}}):
        assert dbs[0].command(command)["cursor"]["ns"] == "sharded.filtered"
    batch = dbs[0].command("find", "filtered", singleBatch=True, batchSize=2)["cursor"]
    assert batch["id"] == 0 and len(batch["firstBatch"]) == 2


def test_graph_lookups_of_views(dbs):
    graph = {"from": "plain", "startWith": "$to", "connectFromField": "to", "connectToField": "k",
             "maxDepth": 2, "as": "way"}
    pipeline = [{"$match": {"k": {"$lt": 5}}}, {"$graphLookup": graph}, {"$project": {"n": {"$size": "$way"}}}]
    found = [by_id(db.over.aggregate(pipeline)) for db in dbs]
    assert found[0] == found[1]
    found = [by_id(db.small.aggregate(
        [{"$graphLookup": {**graph, "startWith": "$k"}}, {"$project": {"n": {"$size": "$way"}}}])) for db in dbs]
    assert found[0] == found[1] and found[0][1]["n"] == 3


def test_collations_of_views(dbs):
    for db in dbs:
        assert sorted({document["name"] for document in db.german.find()}) == ["A", "a"]
        assert db.german.count_documents({"name": "A"}) == 30
        assert len(db.german.distinct("name")) == 1
        assert db.german.find({}, collation=Collation(**GERMAN)).sort("name")[0]["name"] in "aA"
        for call in (
            lambda: list(db.german.find({}, collation=Collation("fr"))),
            lambda: list(db.filtered.find({}, collation=Collation("fr"))),
            lambda: db.command("count", "german", collation={"locale": "fr"}),
            lambda: db.command("distinct", "german", key="g", collation={"locale": "simple"}),
            lambda: list(db.filtered.aggregate([], collation=Collation("fr"))),
            lambda: list(db.c.aggregate([{"$unionWith": "german"}])),
            lambda: list(db.small.aggregate([{"$unionWith": "german"}])),
        ):
            fails(call, 167)


def test_what_views_refuse(dbs):
    for db in dbs:
        view = db.filtered
        fails(lambda: view.insert_one({"k": 1}), 166)
        fails(lambda: view.update_one({"k": 1}, {"$set": {"z": 1}}), 166)
        fails(lambda: view.delete_many({}), 166)
        fails(lambda: view.find_one_and_update({"k": 1}, {"$set": {"z": 1}}), 166)
        fails(lambda: db.command("findAndModify", "filtered", query={}, remove=True), 166)
        fails(lambda: view.create_index("g"), 166)
        fails(lambda: db.command("validate", "filtered"), 166)
        fails(lambda: list(view.aggregate([{"$collStats": {"count": {}}}])), 166)
        fails(lambda: list(view.find().sort("$natural", 1)), 168)
        fails(lambda: db.command("find", "filtered", returnKey=True), 168)
        fails(lambda: db.command("find", "filtered", showRecordId=True), 168)
        fails(lambda: list(view.aggregate([{"$indexStats": {}}])), 40602)
        fails(lambda: view.find_one({"$bad": 1}), 2)
    fails(lambda: dbs[0].client.admin.command("shardCollection", "sharded.filtered", key={"k": 1}), 166)


def test_circles_of_views(dbs):
    db = dbs[0]
    fails(lambda: db.command("collMod", "filtered", viewOn="over", pipeline=[]), 5)


def test_views_that_change(dbs):
    db = dbs[0]
    db.create_collection("changing", viewOn="small", pipeline=[])
    assert db.changing.count_documents({}) == 4
    db.command("collMod", "changing", viewOn="c", pipeline=[{"$match": {"g": 0}}])
    assert db.changing.count_documents({}) == 12
    db.drop_collection("changing")
    assert list(db.changing.find()) == []


def test_a_view_on_what_becomes_sharded(cluster, dbs):
    db = dbs[0]
    db.late.insert_many([{"_id": n, "k": n} for n in range(10)])
    db.late.create_index("k")
    db.create_collection("early", viewOn="late", pipeline=[{"$match": {"k": {"$gt": 4}}}])
    lookup = [{"$lookup": {"from": "early", "localField": "k", "foreignField": "k", "as": "f"}},
              {"$match": {"f": {"$ne": []}}}]
    assert db.early.count_documents({}) == 5 and len(list(db.late.aggregate(lookup))) == 5
    db.client.admin.command("shardCollection", "sharded.late", key={"k": 1})
    assert db.early.count_documents({}) == 5 and len(list(db.late.aggregate(lookup))) == 5
    db.drop_collection("late")
    assert db.early.count_documents({}) == 0
    db.drop_collection("early")


def test_explained_views(dbs):
    db = dbs[0]
    for command in (
        {"find": "filtered", "filter": {"k": 40}},
        {"count": "filtered", "query": {"k": 40}},
        {"distinct": "filtered", "key": "k", "query": {"k": 40}},
        {"aggregate": "filtered", "pipeline": [{"$match": {"k": 40}}], "cursor": {}},
    ):
        explained = db.command("explain", command, verbosity="queryPlanner")
        assert list(explained["shards"]) == ["s1"], command
    explained = db.command("aggregate", "over", pipeline=[], explain=True)
    assert sorted(explained["shards"]) == ["s0", "s1"]
    joined = db.command("explain", {"find": "joined"}, verbosity="queryPlanner")
    assert any("$lookup" in stage for stage in joined["splitPipeline"]["mergerPart"])


def test_writes_from_views(dbs):
    for db in dbs:
        list(db.filtered.aggregate([{"$project": {"k": 1}}, {"$out": "copy"}]))
        assert db.copy.count_documents({}) == 36
        list(db.grouped.aggregate([{"$merge": {"into": "copy", "whenMatched": "replace"}}]))
        assert db.copy.find_one({"_id": 4}) == {"_id": 4, "n": 12, "all": 378}
        db.drop_collection("copy")
    sharded = dbs[0]
    list(sharded.small.aggregate([{"$project": {"_id": {"$add": ["$_id", 100]}, "k": {"$add": ["$k", 100]}}},
                                  {"$merge": {"into": "c"}}]))
    assert sharded.plain.count_documents({"k": {"$gte": 100}}) == 4
    sharded.c.delete_many({"k": {"$gte": 100}})


def test_time_series_beside(dbs):
    for db in dbs:
        db.create_collection("series", timeseries={"timeField": "t", "metaField": "m"})
        times = [{"t": __import__("datetime").datetime(2024, 1, 1, hour), "m": hour % 3, "g": hour % 5} for hour in range(9)]
        db.series.insert_many(times)
        db.create_collection("of_series", viewOn="series", pipeline=[
            {"$lookup": {"from": "c", "localField": "g", "foreignField": "k", "as": "f"}},
            {"$project": {"n": {"$size": "$f"}, "m": 1}}])
        assert db.series.count_documents({"m": 1}) == 3
        assert [document["n"] for document in db.of_series.find({"m": 1})] == [1, 1, 1]


def test_views_in_transactions(dbs):
    sharded = dbs[0]
    with sharded.client.start_session() as session:
        for first in (True, False):
            with session.start_transaction():
                if not first:
                    sharded.small.insert_one({"_id": 50}, session=session)
                assert sharded.filtered.count_documents({}, session=session) == 36
                assert len(list(sharded.over.find({}, session=session))) == 30
                assert sharded.small.count_documents({}, session=session) == (4 if first else 5)
        assert sharded.small.delete_one({"_id": 50}).deleted_count == 1


def test_secondaries_read_views():
    with Cluster(shards=2, members=2) as cluster, cluster.client() as client:
        cluster.make_database("d", 0, client)
        split(client, "d.c", {"k": 1}, 5)
        client.d.c.with_options(write_concern=pymongo.WriteConcern(2)).insert_many(
            [{"_id": n, "k": n} for n in range(10)])
        client.d.create_collection("v", viewOn="c", pipeline=[{"$match": {"k": {"$lt": 8}}}],
                                   write_concern=pymongo.WriteConcern(2))
        view = client.d.get_collection("v", read_preference=ReadPreference.SECONDARY)
        with client.start_session(causal_consistency=True) as session:
            client.d.c.find_one({}, session=session)
            assert len(list(view.find({}, session=session))) == 8
        assert view.count_documents({"k": {"$gt": 3}}) == 4
        assert sorted(view.distinct("k")) == list(range(8))


@pytest.fixture(scope="module")
def places(client, cluster):
    """Documents with places and texts, on both shards."""
    cluster.make_database("geo", 0, client)
    split(client, "geo.p", {"k": 1}, 10)
    client.geo.p.create_index([("at", "2dsphere")])
    client.geo.p.create_index([("text", "text")])
    client.geo.p.insert_many([
        {"_id": n, "k": n, "at": {"type": "Point", "coordinates": [(n * 7) % 20, 0]},
         "text": "word " * (1 + (n * 3) % 20), "a": n % 3}
        for n in range(20)
    ])
    return client.geo.p


def origin():
    return {"type": "Point", "coordinates": [0, 0]}


BY_DISTANCE = sorted(range(20), key=lambda n: (n * 7) % 20)


def test_near(places):
    near = {"at": {"$nearSphere": {"$geometry": origin()}}}
    assert [found["_id"] for found in places.find(near)] == BY_DISTANCE
    assert [found["_id"] for found in places.find(near, batch_size=3).skip(2).limit(9)] == BY_DISTANCE[2:11]
    assert [found["_id"] for found in places.find({**near, "a": 1})] == [n for n in BY_DISTANCE if n % 3 == 1]
    assert [found["_id"] for found in places.find(near).sort("k", -1)] == list(range(19, -1, -1))
    found = places.find_one(near, {"k": 1})
    assert found == {"_id": 0, "k": 0}


def test_geo_near(places):
    near = {"$geoNear": {"near": origin(), "distanceField": "d", "query": {"a": {"$ne": 2}}}}
    wanted = [n for n in BY_DISTANCE if n % 3 != 2]
    assert [found["_id"] for found in places.aggregate([near])] == wanted
    assert [found["_id"] for found in places.aggregate([near, {"$limit": 4}])] == wanted[:4]
    assert [found["_id"] for found in places.aggregate([near, {"$skip": 2}, {"$limit": 4}])] == wanted[2:6]
    distances = [found["d"] for found in places.aggregate([near])]
    assert distances == sorted(distances) and distances[0] == 0
    shown = list(places.aggregate([near, {"$project": {"m": {"$meta": "geoNearDistance"}, "d": 1}}]))
    assert all(found["m"] == found["d"] for found in shown) and len(shown) == len(wanted)
    first = {"$group": {"_id": "$a", "first": {"$first": "$_id"}}}
    groups = {found["_id"]: found["first"] for found in places.aggregate([near, first])}
    assert groups == {0: 0, 1: next(n for n in wanted if n % 3 == 1)}


def test_geo_near_inside(places):
    near = {"$geoNear": {"near": origin(), "distanceField": "d"}}
    pipeline = [{"$match": {"_id": 3}}, {"$lookup": {"from": "p", "pipeline": [near, {"$limit": 3}], "as": "near"}}]
    found, = places.aggregate(pipeline)
    assert [one["_id"] for one in found["near"]] == BY_DISTANCE[:3]
    union = [{"$match": {"_id": 3}}, {"$unionWith": {"coll": "p", "pipeline": [near, {"$limit": 2}]}}]
    assert [one["_id"] for one in places.aggregate(union)] == [3, *BY_DISTANCE[:2]]


def test_scores(places):
    text = {"$text": {"$search": "word"}}
    score = {"$meta": "textScore"}
    direct = {found["_id"]: found["s"] for found in places.find(text, {"s": score})}
    assert len(direct) == 20
    ordered = sorted(direct.values(), reverse=True)
    match, by_score = {"$match": text}, {"$sort": {"s": score, "_id": 1}}
    found = list(places.aggregate([match, by_score, {"$project": {"s": score}}]))
    assert [one["s"] for one in found] == ordered
    found = list(places.aggregate([match, by_score, {"$limit": 3}, {"$addFields": {"s": score}}]))
    assert [one["s"] for one in found] == ordered[:3]
    groups = places.aggregate([match, {"$group": {"_id": "$a", "best": {"$max": score}}}])
    best = {a: max(s for n, s in direct.items() if n % 3 == a) for a in range(3)}
    assert {one["_id"]: one["best"] for one in groups} == best
    found = places.aggregate([match, {"$lookup": {"from": "p", "localField": "_id", "foreignField": "_id", "as": "l"}},
                              {"$project": {"s": score}}])
    assert {one["_id"]: one["s"] for one in found} == direct


def test_sort_keys(places):
    key = {"$meta": "sortKey"}
    found = list(places.aggregate([{"$sort": {"k": -1}}, {"$limit": 3}, {"$project": {"key": key}}]))
    assert [one["key"] for one in found] == [[19], [18], [17]]
    assert all(isinstance(one["r"], object) for one in places.aggregate(
        [{"$sort": {"k": 1}}, {"$group": {"_id": {"$meta": "recordId"}}}, {"$project": {"r": "$_id"}}]))


def test_one_time_for_all_shards(places):
    times = {found["now"] for found in places.find({}, {"now": "$$NOW"})}
    assert len(times) == 1
    found = places.aggregate([{"$project": {"now": "$$NOW"}}, {"$group": {"_id": "$now"}},
                              {"$project": {"same": {"$eq": ["$_id", "$$NOW"]}}}])
    assert [one["same"] for one in found] == [True]
    places.update_many({}, [{"$set": {"now": "$$NOW", "time": "$$CLUSTER_TIME"}}])
    assert len(places.distinct("now")) == 1 and len(places.distinct("time")) == 1
    fails(lambda: list(places.find({}, let={"NOW": 1})), 9)
