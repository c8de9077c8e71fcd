"""`$out` where a router writes: time series and collections on another shard than the source, or
out of a sharded source; what they replace, what is refused, and that failures leave nothing."""

import datetime

import pytest
from bson import Int64
from pinion_cluster import fails
from pinion_node import Beside, FailPoint, wait_until
from pymongo.errors import OperationFailure

BAD_VALUE = 2
ILLEGAL_OPERATION = 20
COMMAND_FAILED = 125
ON_VIEW = 166
STALE_DATABASE = 249
CAPPED = 17152
OUT_OF_SHARDED = 28769
NO_SERIES = 7_268_700
OTHER_SERIES = 7_406_103

COUNT = 2500
START = datetime.datetime(2026, 1, 1)
MINUTE = datetime.timedelta(minutes=1)
SERIES = {"timeField": "t", "metaField": "m"}
RESOLVED = {**SERIES, "granularity": "seconds", "bucketMaxSpanSeconds": 3600}
RENAME = "internalRenameIfOptionsAndIndexesMatch"
# What no shard can compute.
BROKEN = {"$project": {"t": 1, "x": {"$divide": ["$v", 0]}}}


@pytest.fixture
def client(cluster):
    with cluster.client() as connected:
        yield connected


@pytest.fixture
def db(cluster, client):
    """A database on the first shard, beside `e` on the second one, both empty."""
    for at, name in enumerate("de"):
        client.drop_database(name)
        cluster.make_database(name, at, client)
    return client.d


@pytest.fixture
def target(db):
    return db.client.e


@pytest.fixture(params=["unsharded", "sharded"])
def source(request, db):
    if request.param == "sharded":
        db.client.admin.command("shardCollection", "d.c", key={"v": "hashed"})
    db.c.insert_many([{"_id": n, "t": START + n * MINUTE, "m": {"s": n % 8}, "v": n} for n in range(COUNT)])
    return db.c


@pytest.fixture
def plain(db):
    db.c.insert_many([{"_id": n, "t": START + n * MINUTE, "v": n} for n in range(10)])
    return db.c


def out(name, series=SERIES, db="e"):
    return {"$out": {"db": db, "coll": name, **({} if series is None else {"timeseries": series})}}


def options(target, name):
    listed, = target.list_collections(filter={"name": name})
    return listed["type"], listed["options"]


def names(cluster):
    """The collections of each shard, by database."""
    found = []
    for shard in cluster.shards:
        with shard.client() as direct:
            found.append({db: sorted(direct[db].list_collection_names()) for db in "de"})
    return found


def on_second(cluster, *expected):
    """Waits until the second shard has these collections of `e`, and the first one has none."""
    wait_until(lambda: [found["e"] for found in names(cluster)] == [[], sorted(expected)], 30)


def content(collection):
    return sorted(document["_id"] for document in collection.find())


def test_a_new_series(cluster, source, target):
    assert list(source.aggregate([{"$match": {"v": {"$gte": 100}}}, out("s")])) == []
    assert options(target, "s") == ("timeseries", {"timeseries": RESOLVED})
    assert content(target.s) == list(range(100, COUNT))
    assert target.s.find_one({"_id": 777}) == source.find_one({"_id": 777})
    assert [index["name"] for index in target.s.list_indexes()] == ["m_1_t_1"]
    on_second(cluster, "s", "system.buckets.s", "system.views")
    # Its writes and definitions are those of any series.
    target.s.insert_one({"_id": 5, "t": START, "m": {"s": 1}})
    assert target.s.count_documents({"m.s": 1, "t": START}) == 1
    target.s.drop()
    on_second(cluster, "system.views")


@pytest.mark.parametrize("named", [True, False])
def test_a_series_is_replaced(cluster, source, target, named):
    series = {"timeField": "t", "granularity": "minutes"}
    created = {"timeseries": series, "expireAfterSeconds": 10**8, "collation": {"locale": "de"}}
    target.create_collection("s", **created)
    target.s.create_index({"v": 1, "t": -1}, name="by_v", hidden=True)
    target.s.create_index("word", collation={"locale": "simple"})
    target.s.insert_one({"_id": "old", "t": START})
    before = options(target, "s"), list(target.s.list_indexes())
    with cluster.client(1) as other:
        assert other.e.s.count_documents({}) == 1
        source.aggregate([{"$match": {"v": {"$lt": 1500}}}, out("s", series if named else None)])
        assert content(other.e.s) == content(target.s) == list(range(1500))
    assert (options(target, "s"), list(target.s.list_indexes())) == before
    on_second(cluster, "s", "system.buckets.s", "system.views")
    # And again, by what is there now.
    source.aggregate([{"$match": {"v": 7}}, out("s", series if named else None)])
    assert content(target.s) == [7]


def test_collections_are_replaced(cluster, source, target):
    target.create_collection("p", validator={"v": {"$gte": 0}}, collation={"locale": "de"})
    target.p.create_index("v", unique=True)
    target.p.create_index("w", collation={"locale": "simple"})
    before = options(target, "p"), list(target.p.list_indexes())
    source.aggregate([out("p", None)])
    assert content(target.p) == list(range(COUNT))
    assert (options(target, "p"), list(target.p.list_indexes())) == before
    fails(lambda: source.aggregate([{"$set": {"v": -1}}, out("p", None)]), 121)
    fails(lambda: source.aggregate([{"$set": {"v": 1}}, out("p", None)]), 11000)
    assert content(target.p) == list(range(COUNT))
    on_second(cluster, "p")


def test_what_cannot_be_replaced(cluster, source, target):
    target.create_collection("s", timeseries=SERIES)
    target.s.insert_one({"_id": "old", "t": START})
    target.create_collection("p")
    target.create_collection("capped", capped=True, size=4096)
    target.create_collection("view", viewOn="p", pipeline=[])
    # Before anything is read.
    check = lambda name, series, code: fails(lambda: source.aggregate([BROKEN, out(name, series)]), code)
    text = check("s", {"timeField": "t", "granularity": "hours"}, OTHER_SERIES)
    assert text == (
        "Time-series options inputted must match the existing time-series collection. "
        'Received: { timeField: "t", granularity: "hours", bucketMaxSpanSeconds: 2592000 } '
        'Found: { timeField: "t", metaField: "m", granularity: "seconds", bucketMaxSpanSeconds: 3600 }'
    )
    check("s", {"timeField": "t"}, OTHER_SERIES)
    check("s", {"timeField": "t", "metaField": "n"}, OTHER_SERIES)
    for name in ("p", "capped", "view"):
        text = check(name, SERIES, NO_SERIES)
        assert text == "Cannot create a time-series collection from a non time-series collection."
    check("capped", None, CAPPED)
    check("view", None, ON_VIEW)
    check("s", SERIES, BAD_VALUE)
    check("new", SERIES, BAD_VALUE)
    assert content(target.s) == ["old"]
    on_second(cluster, "capped", "p", "s", "system.buckets.s", "system.views", "view")


OPTIONS = [
    {}, {"metaField": "m"}, {"timeField": None}, {"timeField": 5}, {"timeField": "a.b"}, {"timeField": "t\0"},
    {**SERIES, "metaField": "t"}, {**SERIES, "metaField": "_id"}, {**SERIES, "metaField": ["m"]}, {**SERIES, "nosuch": 1},
    {**SERIES, "granularity": "second"}, {**SERIES, "granularity": 1}, {**SERIES, "bucketMaxSpanSeconds": 60},
    {**SERIES, "bucketRoundingSeconds": 60}, {**SERIES, "bucketMaxSpanSeconds": 60, "bucketRoundingSeconds": 61},
    {**SERIES, "bucketMaxSpanSeconds": 0, "bucketRoundingSeconds": 0}, {**SERIES, "bucketMaxSpanSeconds": "60"},
    {**SERIES, "granularity": "hours", "bucketMaxSpanSeconds": 60}, {**SERIES, "bucketMaxSpanSeconds": Int64(2**40)},
]


@pytest.mark.parametrize("series", OPTIONS, ids=range(len(OPTIONS)))
def test_options_that_no_series_has(cluster, db, plain, series):
    """The router says what a shard says, whatever else is wrong."""

    def refused(aggregate, into):
        with pytest.raises(OperationFailure) as caught:
            aggregate([out("s", series, into)])
        return caught.value.code, caught.value.details["errmsg"].replace("e.s:", "d.s:")

    db.client.e.create_collection("s")
    by_router = refused(lambda stages: plain.aggregate([BROKEN, *stages]), "e")
    assert by_router == refused(plain.aggregate, "d")
    documents = lambda stages: db.aggregate([{"$documents": [{"t": START}]}, *stages])
    assert by_router == refused(documents, "e")
    explained = {"pipeline": [out("s", series)], "cursor": {}}
    fails(lambda: db.command("explain", {"aggregate": "c", **explained}), by_router[0])
    on_second(cluster, "s")


def test_other_sources(cluster, db, plain, target):
    list(db.aggregate([{"$documents": [{"_id": n, "t": START} for n in range(3)]}, out("s")]))
    assert content(target.s) == [0, 1, 2]
    db.create_collection("view", viewOn="c", pipeline=[{"$match": {"v": {"$lt": 5}}}])
    db.view.aggregate([out("s")])
    assert content(target.s) == [0, 1, 2, 3, 4]
    # A series of the source's database, out of what it was.
    db.create_collection("own", timeseries=SERIES)
    db.own.insert_many([{"_id": n, "t": START} for n in (7, 8)])
    db.own.aggregate([out("s")])
    target.s.aggregate([{"$set": {"again": True}}, out("own", SERIES, "d")])
    assert content(db.own) == content(target.s) == [7, 8] and db.own.count_documents({"again": True}) == 2
    # Nothing is a series too, and null asks for none.
    plain.aggregate([{"$match": {"v": -1}}, out("empty")])
    assert options(target, "empty")[0] == "timeseries" and content(target.empty) == []
    plain.aggregate([{"$out": {"db": "e", "coll": "null", "timeseries": None}}])
    assert options(target, "null") == ("collection", {}) and len(content(target["null"])) == 10
    db.command("explain", {"aggregate": "c", "pipeline": [out("explained")], "cursor": {}})
    on_second(cluster, "empty", "null", "s", *(f"system.buckets.{name}" for name in ("empty", "s")), "system.views")


def test_failures_leave_nothing(cluster, source, target):
    target.create_collection("s", timeseries=SERIES)
    target.s.create_index("v")
    target.s.insert_one({"_id": "old", "t": START})
    late = {"$cond": [{"$lt": ["$v", COUNT - 300]}, "$t", "no time"]}
    ordered = [{"$sort": {"v": 1}}, {"$set": {"t": late}}]
    for name in ("s", "new"):
        text = fails(lambda: source.aggregate([*ordered, out(name)]), BAD_VALUE)
        assert "'t' must be present and contain a valid BSON UTC datetime value" in text
    # A shard fails behind its first documents, and the time is up.
    broken = {"$set": {"x": {"$divide": [1, {"$subtract": ["$v", COUNT - 10]}]}}}
    for name in ("s", "new"):
        fails(lambda: source.aggregate([{"$sort": {"v": 1}}, broken, out(name)]), BAD_VALUE)
    with cluster.shards[1].client() as direct:
        point = FailPoint(direct, "failCommand", failCommands=["insert"], failInternalCommands=True,
                          blockConnection=True, blockTimeMS=2000)
        fails(lambda: source.aggregate([out("s")], maxTimeMS=1000), 50)
        point.off()
    assert content(target.s) == ["old"] and "v_1" in target.s.index_information()
    on_second(cluster, "s", "system.buckets.s", "system.views")


CHANGES = [
    ("s", "options", lambda db: db.command("collMod", "s", expireAfterSeconds=10**9)),
    ("s", "options", lambda db: db.s.drop()),
    ("s", "indexes", lambda db: db.s.create_index("w")),
    ("s", "indexes", lambda db: db.s.drop_index("v_1")),
    ("p", "options", lambda db: db.command("collMod", "p", validator={"v": 1})),
    ("p", "indexes", lambda db: db.p.create_index("w")),
    ("p", "indexes", lambda db: db.p.drop()),
    ("new", "indexes", lambda db: db.create_collection("new")),
    ("new", "options", lambda db: db.create_collection("new", timeseries=SERIES)),
]


@pytest.mark.parametrize(("name", "what", "change"), CHANGES, ids=range(len(CHANGES)))
def test_a_target_that_changes(cluster, plain, target, name, what, change):
    target.create_collection("s", timeseries=SERIES)
    target.s.create_index("v")
    target.p.insert_one({"_id": "old"})
    with cluster.shards[1].client() as direct:
        point = FailPoint(direct, "failCommand", failCommands=[RENAME], failInternalCommands=True,
                          blockConnection=True, blockTimeMS=2000)
        running = Beside(lambda: plain.aggregate([out(name, SERIES if name == "s" else None)]))
        point.wait()
        change(target)
        point.off()
    error = running.ended().error
    assert error is not None and error.code == COMMAND_FAILED, error
    text = error.details["errmsg"]
    expected = {
        "options": f"collection options of target collection e.{name} changed during processing. Original options: ",
        "indexes": f"indexes of target collection e.{name} changed during processing.",
    }
    assert text.startswith(expected[what]), text
    assert not [document for document in target[name].find() if "v" in document]
    wait_until(lambda: not [found for found in target.list_collection_names() if "tmp." in found], 30)


def test_a_primary_that_ends(cluster, plain, target):
    target.create_collection("s", timeseries=SERIES)
    target.s.insert_one({"_id": "old", "t": START})
    primary = cluster.shards[1].nodes[0]
    for name in ("s", "p"):
        with cluster.shards[1].client() as direct:
            point = FailPoint(direct, "failCommand", failCommands=[RENAME], failInternalCommands=True,
                              blockConnection=True, blockTimeMS=30_000)
            running = Beside(lambda: plain.aggregate([out(name, SERIES if name == "s" else None)]))
            point.wait()
            primary.kill()
        primary.start()
        assert running.ended().error is not None
        wait_until(lambda: cluster.shards[1].primary() is primary)
        assert content(target.s) == ["old"]
        on_second(cluster, "s", "system.buckets.s", "system.views")
    plain.aggregate([out("s")])
    assert content(target.s) == list(range(10))


def test_a_target_that_becomes_sharded(cluster, plain, target):
    with cluster.shards[1].client() as direct, cluster.client(1) as other:
        point = FailPoint(direct, "failCommand", failCommands=[RENAME], failInternalCommands=True,
                          blockConnection=True, blockTimeMS=3000)
        running = Beside(lambda: plain.aggregate([out("new")]))
        point.wait()
        other.admin.command("shardCollection", "e.new", key={"m": 1}, timeseries=SERIES)
        point.off()
    assert running.ended().error.code == OUT_OF_SHARDED
    fails(lambda: plain.aggregate([out("new")]), OUT_OF_SHARDED)
    assert target.new.count_documents({}) == 0
    target.new.drop()


def test_the_command_of_the_shard(cluster, target):
    """A collection takes the place of another one where that is what was listed."""
    target.a.insert_one({"_id": 1})
    target.create_collection("b", validator={"x": 1})
    target.b.create_index("x")
    found = options(target, "b")[1]
    indexes = list(target.b.list_indexes())
    version = target.client.config.databases.find_one({"_id": "e"})["version"]
    with cluster.shards[1].client() as direct:

        def rename(**fields):
            command = {RENAME: 1, "from": "e.a", "to": "e.b", "collectionOptions": found, "indexes": indexes,
                       "databaseVersion": version, **fields}
            return direct.admin.command({name: value for name, value in command.items() if value is not None})

        fails(lambda: rename(collectionOptions={}), COMMAND_FAILED)
        fails(lambda: rename(indexes=indexes[:1]), COMMAND_FAILED)
        fails(lambda: rename(collectionOptions=None), 40414)
        fails(lambda: rename(indexes=None), 40414)
        fails(lambda: rename(indexes=[1]), 14)
        fails(lambda: rename(nosuch=1), 40415)
        fails(lambda: rename(databaseVersion=None), ILLEGAL_OPERATION)
        fails(lambda: rename(to="e.a"), ILLEGAL_OPERATION)
        fails(lambda: rename(to="d.b"), ILLEGAL_OPERATION)
        fails(lambda: rename(databaseVersion={**version, "lastMod": version["lastMod"] + 1}), STALE_DATABASE)
        fails(lambda: rename(**{"from": "e.none"}), 26)
        fails(lambda: direct.e.command(RENAME, 1), 13)
        assert content(target.b) == [] and content(target.a) == [1]
        again = {"uuid": "of another one", **found}
        assert rename(indexes=indexes[::-1], collectionOptions=again)["ok"] == 1
    fails(lambda: target.client.admin.command(RENAME, 1), 59)
    assert content(target.b) == [1]
    assert target.list_collection_names() == ["b"] and options(target, "b") == ("collection", {})
