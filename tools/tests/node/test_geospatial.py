"""Geospatial queries with and without indexes, of a node whose collections lie on several
partitions."""

import random

import pymongo
import pytest
from pinion_node import Node


@pytest.fixture(scope="module")
def db():
    with Node() as node:
        yield pymongo.MongoClient(node.uri).geo


def point(generator):
    return {
        "type": "Point",
        "coordinates": [generator.uniform(-180, 180), generator.uniform(-85, 85)],
    }


def square(generator):
    x, y, size = generator.uniform(-170, 160), generator.uniform(-70, 60), generator.uniform(1, 10)
    corners = [[x, y], [x + size, y], [x + size, y + size], [x, y + size], [x, y]]
    return {"type": "Polygon", "coordinates": [corners]}


@pytest.fixture(scope="module")
def collection(db):
    generator = random.Random(1)
    documents = [
        {
            "_id": i,
            "at": point(generator) if i % 3 else square(generator),
            "flat": [generator.uniform(-180, 180), generator.uniform(-90, 90)],
            "kind": i % 5,
        }
        for i in range(2000)
    ]
    db.places.insert_many(documents)
    db.places.create_index([("at", "2dsphere"), ("kind", 1)])
    db.places.create_index([("flat", "2d")])
    return db.places


def ids(cursor):
    return sorted(document["_id"] for document in cursor)


def stages(plan):
    while plan:
        yield plan["stage"]
        plan = plan.get("inputStage")


def test_an_index_finds_what_a_scan_finds(collection):
    generator = random.Random(2)
    for _ in range(30):
        circle = [[generator.uniform(-100, 100), generator.uniform(-40, 40)], generator.uniform(1, 30)]
        sphere = [circle[0], circle[1] * 0.0174532925]
        for query in (
            {"at": {"$geoWithin": {"$centerSphere": sphere}}},
            {"at": {"$geoIntersects": {"$geometry": square(generator)}}},
            {"at": {"$geoIntersects": {"$geometry": square(generator)}}, "kind": 2},
            {"flat": {"$geoWithin": {"$center": circle}}},
        ):
            with_index = collection.find(query)
            assert "IXSCAN" in stages(with_index.explain()["queryPlanner"]["winningPlan"])
            assert ids(with_index) == ids(collection.find(query).hint([("$natural", 1)]))


def test_near_gives_documents_by_their_distance(collection):
    generator = random.Random(3)
    for limit in (0, 1, 10):
        center = [generator.uniform(-180, 180), generator.uniform(-80, 80)]
        near = {"$geometry": {"type": "Point", "coordinates": center}}
        found = [d["_id"] for d in collection.find({"at": {"$near": near}}).limit(limit)]
        assert len(found) == (limit or 2000) and len(set(found)) == len(found)
        # Nothing nearer is left out: the circle through the last has all before it.
        flat = [d["flat"] for d in collection.find({"flat": {"$near": center}}).limit(limit)]
        distances = [(x - center[0]) ** 2 + (y - center[1]) ** 2 for x, y in flat]
        assert distances == sorted(distances)
        within = {"$center": [center, distances[-1] ** 0.5 * (1 + 1e-12)]}
        assert collection.count_documents({"flat": {"$geoWithin": within}}) == len(flat)


def test_near_continues_over_batches_and_stops_at_a_distance(collection):
    near = {"$geometry": {"type": "Point", "coordinates": [0, 0]}, "$maxDistance": 5e6}
    query = {"at": {"$near": near}, "kind": 1}
    at_once = [d["_id"] for d in collection.find(query)]
    in_batches = [d["_id"] for d in collection.find(query).batch_size(3)]
    assert at_once == in_batches and 0 < len(at_once) < 400
    sphere = {"$centerSphere": [[0, 0], 5e6 / 6378100]}
    points = {"at": {"$geoWithin": sphere}, "at.type": "Point", "kind": 1}
    assert ids(collection.find(points)) == sorted(i for i in at_once if i % 3)


def test_near_by_an_index_that_begins_with_another_field(db):
    generator = random.Random(4)
    db.leading.insert_many({"_id": i, "kind": i % 7, "at": point(generator)} for i in range(700))
    db.leading.create_index([("kind", 1), ("at", "2dsphere")])
    near = {"$near": {"$geometry": {"type": "Point", "coordinates": [30, 40]}}}
    with pytest.raises(pymongo.errors.OperationFailure, match="unable to find index") as failed:
        list(db.leading.find({"at": near}))
    assert failed.value.code == 291
    everything = [d["_id"] for d in db.leading.find({"kind": {"$gte": 0}, "at": near})]
    assert sorted(everything) == list(range(700))
    for kinds in ({"$in": [1, 4]}, {"$gt": 4}, 3):
        found = [d["_id"] for d in db.leading.find({"kind": kinds, "at": near})]
        kept = ids(db.leading.find({"kind": kinds}))
        assert found == [i for i in everything if i in kept]


def test_writes_find_their_documents_by_distance(db):
    db.near.insert_many({"_id": i, "at": [i, 0]} for i in range(50))
    db.near.create_index([("at", "2d")])
    db.near.update_one({"at": {"$near": [20.2, 0]}}, {"$set": {"nearest": True}})
    assert [d["_id"] for d in db.near.find({"nearest": True})] == [20]
    assert db.near.find_one_and_delete({"at": {"$near": [31.4, 0]}})["_id"] == 31
    removed = db.near.delete_many({"at": {"$near": [0, 0], "$maxDistance": 9}})
    assert removed.deleted_count == 10


def test_geo_near_adds_distances(collection):
    stage = {
        "near": {"type": "Point", "coordinates": [10, 20]},
        "key": "at",
        "distanceField": "found.distance",
        "includeLocs": "found.at",
        "distanceMultiplier": 0.001,
        "query": {"kind": {"$lt": 3}},
        "maxDistance": 4e6,
    }
    found = list(collection.aggregate([{"$geoNear": stage}]))
    distances = [d["found"]["distance"] for d in found]
    assert distances == sorted(distances) and 0 < distances[-1] <= 4000
    assert all(d["found"]["at"] == d["at"] and d["kind"] < 3 for d in found)
    near = {"$near": {"$geometry": stage["near"], "$maxDistance": 4e6}}
    expected = [d["_id"] for d in collection.find({"at": near, "kind": {"$lt": 3}})]
    assert [d["_id"] for d in found] == expected
    limited = collection.aggregate([{"$geoNear": stage}, {"$limit": 5}, {"$project": {"_id": 1}}])
    assert [d["_id"] for d in limited] == expected[:5]
    # The only index of the plane is preferred where no key is named.
    flat = collection.aggregate([{"$geoNear": {"near": [0, 0], "distanceField": "d"}}, {"$limit": 1}])
    nearest = flat.next()
    assert nearest["d"] == pytest.approx((nearest["flat"][0] ** 2 + nearest["flat"][1] ** 2) ** 0.5)


def test_what_is_no_geometry_is_not_stored(db):
    db.checked.create_index([("at", "2dsphere")])
    db.checked.insert_many([{"_id": 1}, {"_id": 2, "at": None}, {"_id": 3, "at": [1, 2]}])
    crossing = [[[0, 0], [2, 2], [2, 0], [0, 2], [0, 0]]]
    for value in ("x", [200, 0], {"type": "Polygon", "coordinates": crossing}):
        with pytest.raises(pymongo.errors.WriteError, match="Can't extract geo keys") as failed:
            db.checked.insert_one({"at": value})
        assert failed.value.code == 16755
    assert ids(db.checked.find().hint([("at", "2dsphere")])) == [3]
