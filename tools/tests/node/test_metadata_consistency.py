"""`checkMetadataConsistency`: a catalog and shards that were damaged, one thing at a time."""

import datetime
import threading
import uuid

import bson
import pytest
from bson import MaxKey, MinKey, ObjectId, Timestamp
from pinion_cluster import Cluster, fails, unharmed
from pinion_node import TEST_COMMANDS


@pytest.fixture(scope="module")
def cluster():
    with unharmed(Cluster(shards=2, routers=1, options=TEST_COMMANDS)) as running:
        yield running


@pytest.fixture
def client(cluster):
    with cluster.client() as connected:
        connected.drop_database("d")
        cluster.make_database("d", 0, connected)
        yield connected
        connected.drop_database("d")
        assert kinds(check(connected.admin)) == []


@pytest.fixture
def catalog(cluster):
    """The catalog as the config servers have it."""
    with cluster.config.client() as connected:
        yield connected.config


@pytest.fixture
def ns(client):
    """A collection with three chunks: below 0 and from 100 on s0, between on s1."""
    ns = "d.c"
    for name, zone in (("s0", "low"), ("s1", "high")):
        client.admin.command("addShardToZone", name, zone=zone)
    for low, high, zone in ((MinKey(), 0, "low"), (0, 100, "high"), (100, MaxKey(), "low")):
        client.admin.command("updateZoneKeyRange", ns, min={"k": low}, max={"k": high}, zone=zone)
    client.admin.command("shardCollection", ns, key={"k": 1})
    client.d.c.insert_many([{"k": n} for n in range(-50, 150)])
    assert found(client) == []
    return ns


def check(db, what=1, **options):
    """All inconsistencies, as a cursor gives them."""
    return list(db.cursor_command("checkMetadataConsistency", what, **options))


def kinds(documents):
    return sorted(document["type"] for document in documents)


def found(client, **options):
    return kinds(check(client.d, **options))


def details(client, kind, **options):
    document, = [document for document in check(client.d, **options) if document["type"] == kind]
    assert document["description"]
    assert set(document) == {"type", "description", "details"}
    return document["details"]


def uuid_of(catalog, ns):
    return catalog.collections.find_one({"_id": ns})["uuid"]


class Changed:
    """A document that is another one for a while."""

    def __init__(self, collection, document, *changes):
        self.collection, self.document, self.changes = collection, document, changes

    def __enter__(self):
        self.collection.delete_one({"_id": self.document["_id"]})
        for change in self.changes:
            self.collection.insert_one({**self.document, **change})

    def __exit__(self, *_):
        for change in self.changes:
            self.collection.delete_one({"_id": change.get("_id", self.document["_id"])})
        self.collection.insert_one(self.document)


@pytest.fixture
def middle(catalog, ns):
    """The chunk of s1."""
    return catalog.chunks.find_one({"uuid": uuid_of(catalog, ns), "min": {"k": 0}})


def test_nothing(client, ns):
    reply = client.d.command("checkMetadataConsistency", 1)
    assert reply["cursor"] == {"firstBatch": [], "id": 0, "ns": "d.$cmd.aggregate"}
    assert client.admin.command("checkMetadataConsistency", 1)["cursor"]["ns"] == "admin.$cmd.aggregate"
    assert client.d.command("checkMetadataConsistency", "c")["cursor"]["ns"] == "d.c"
    assert client.none.command("checkMetadataConsistency", 1)["cursor"]["firstBatch"] == []
    assert client.config.command("checkMetadataConsistency", 1)["cursor"]["firstBatch"] == []
    fails(lambda: client.d.command("checkMetadataConsistency", 1, unheard=1), 40415)
    fails(lambda: client.d.command("checkMetadataConsistency", 1, checkIndexes="x"), 14)


def test_gaps(client, catalog, ns, middle):
    with Changed(catalog.chunks, middle, {"max": {"k": 90}}):
        gap = details(client, "RoutingTableRangeGap")
        assert gap["namespace"] == ns and gap["collectionUUID"] == middle["uuid"]
        assert gap["chunkA"]["max"] == {"k": 90} and gap["chunkB"]["min"] == {"k": 100}
        assert found(client) == ["RoutingTableRangeGap"]
        # The collection alone, another one, and all of the cluster.
        assert kinds(check(client.d, "c")) == ["RoutingTableRangeGap"]
        assert check(client.d, "other") == []
        assert kinds(check(client.admin)) == ["RoutingTableRangeGap"]


def test_overlaps(client, catalog, ns, middle):
    with Changed(catalog.chunks, middle, {"max": {"k": 110}}):
        overlap = details(client, "RoutingTableRangeOverlap")
        assert overlap["chunkA"]["max"] == {"k": 110} and overlap["chunkB"]["min"] == {"k": 100}


def test_ends(client, catalog, ns):
    first = catalog.chunks.find_one({"uuid": uuid_of(catalog, ns), "min": {"k": MinKey()}})
    with Changed(catalog.chunks, first, {"min": {"k": -99}}):
        ends = details(client, "RoutingTableMissingMinKey")
        assert (ends["minKeyObj"], ends["globalMin"]) == ({"k": -99}, {"k": MinKey()})
    last = catalog.chunks.find_one({"uuid": uuid_of(catalog, ns), "max": {"k": MaxKey()}})
    with Changed(catalog.chunks, last, {"max": {"k": 999}}):
        ends = details(client, "RoutingTableMissingMaxKey")
        assert (ends["maxKeyObj"], ends["globalMax"]) == ({"k": 999}, {"k": MaxKey()})


def test_no_chunks(client, catalog, ns):
    chunks = list(catalog.chunks.find({"uuid": uuid_of(catalog, ns)}))
    catalog.chunks.delete_many({"uuid": uuid_of(catalog, ns)})
    try:
        assert details(client, "MissingRoutingTable") == {"namespace": ns, "collectionUUID": chunks[0]["uuid"]}
    finally:
        catalog.chunks.insert_many(chunks)


def test_wrong_keys(client, catalog, ns, middle):
    with Changed(catalog.chunks, middle, {"min": {"other": 0}}):
        corrupted = details(client, "CorruptedChunkShardKey")
        assert corrupted["chunk"]["_id"] == middle["_id"] and corrupted["shardKeyPattern"] == {"k": 1}


def test_owners(client, catalog, ns, middle):
    with Changed(catalog.chunks, middle, {"shard": "s9"}):
        assert details(client, "RoutingTableUnknownShard")["chunk"]["shard"] == "s9"
    with Changed(catalog.chunks, middle, {"history": []}):
        assert "empty" in details(client, "CorruptedChunkHistory")["errMsg"]
    with Changed(catalog.chunks, middle, {"onCurrentShardSince": Timestamp(1, 1)}):
        assert found(client) == ["CorruptedChunkHistory"]


def test_zones(client, catalog, ns):
    zone = catalog.tags.find_one({"ns": ns, "min": {"k": 0}})
    with Changed(catalog.tags, zone, {"max": {"k": 101}}):
        overlap = details(client, "ZonesRangeOverlap")
        assert overlap["zoneA"]["tag"] == "high" and overlap["zoneB"]["tag"] == "low"
    with Changed(catalog.tags, zone, {"min": {"x": 0}}):
        assert "CorruptedZoneShardKey" in found(client)


def test_orphaned_chunks(client, catalog, ns, middle):
    stranger = {**middle, "_id": ObjectId(), "uuid": bson.Binary(uuid.uuid4().bytes, 4)}
    catalog.chunks.insert_one(stranger)
    try:
        document, = check(client.admin)
        assert document["type"] == "ChunksWithoutCollection"
        assert document["details"]["collectionUUID"] == stranger["uuid"] and document["details"]["numChunks"] == 1
        # It is of no database.
        assert found(client) == []
    finally:
        catalog.chunks.delete_one({"_id": stranger["_id"]})


def test_databases(client, catalog, ns):
    entry = catalog.databases.find_one({"_id": "d"})
    catalog.databases.delete_one({"_id": "d"})
    try:
        document, = check(client.admin)
        assert document["type"] == "HiddenShardedCollection" and document["details"]["namespace"] == ns
    finally:
        catalog.databases.insert_one(entry)
    catalog.databases.insert_one({**entry, "_id": "lost", "primary": "s9"})
    try:
        document, = check(client.admin)
        assert document["type"] == "DatabaseUnknownShard" and document["details"]["primary"] == "s9"
    finally:
        catalog.databases.delete_one({"_id": "lost"})
    client.admin.command("flushRouterConfig")


def test_misplaced_collections(cluster, client):
    with cluster.shards[1].client() as direct:
        direct.d.stray.insert_one({})
        misplaced = details(client, "MisplacedCollection")
        assert (misplaced["namespace"], misplaced["shard"]) == ("d.stray", "s1")
        assert isinstance(misplaced["localUUID"], (bson.Binary, uuid.UUID))
        direct.d.stray.drop()
    with cluster.shards[0].client() as direct:
        direct.d.settled.insert_one({})
        assert found(client) == []


def test_missing_and_other_collections(cluster, client, catalog, ns):
    known = uuid_of(catalog, ns)
    with cluster.shards[1].client() as direct:
        direct.d.c.drop()
        missing = details(client, "MissingLocalCollection")
        assert missing == {"namespace": ns, "collectionUUID": known, "shard": "s1"}
        direct.d.create_collection("c")
        mismatch = details(client, "CollectionUUIDMismatch")
        assert (mismatch["namespace"], mismatch["shard"], mismatch["UUID"]) == (ns, "s1", known)
        assert mismatch["localUUID"] != known


def test_options(cluster, client, ns):
    with cluster.shards[1].client() as direct:
        direct.d.command("collMod", "c", validator={"x": {"$exists": False}})
        options = details(client, "CollectionOptionsMismatch")["options"]
        assert sorted(part["shards"] for part in options) == [["s0"], ["s1"]]
        direct.d.command("collMod", "c", validator={})


@pytest.fixture
def series(client):
    """A time series whose sources are on both shards, by the name of its buckets."""
    of = {"timeField": "t", "metaField": "m", "granularity": "seconds"}
    client.admin.command("shardCollection", "d.s", key={"m": "hashed"}, timeseries=of)
    begin = datetime.datetime(2026, 1, 1)
    client.d.s.insert_many([{"t": begin, "m": source} for source in range(40)])
    assert found(client) == []
    return "d.system.buckets.s"


def test_options_of_a_series(cluster, client, catalog, series):
    """A shard that makes longer buckets than the catalog says, and the command that mends it."""
    known = catalog.collections.find_one({"_id": series})["timeseriesFields"]
    with cluster.shards[1].client() as direct:
        direct.d.command("collMod", "s", timeseries={"granularity": "minutes"})
    longer = {**known, "granularity": "minutes", "bucketMaxSpanSeconds": 86_400}
    mismatch = "CollectionOptionsMismatch"
    found_twice = [one["details"] for one in check(client.d, "s")]
    assert found(client) == kinds(check(client.d, "s")) == [mismatch, mismatch]
    assert all(details["namespace"] == series for details in found_twice)
    parts = [one["options"] for one in found_twice]
    of_catalog, = [of for of in parts if of[1]["shards"] == ["config"]]
    assert of_catalog == [
        {"options": {"timeseriesFields": longer}, "shards": ["s1"]},
        {"options": {"timeseriesFields": known}, "shards": ["config"]},
    ]
    client.d.command("collMod", "s", timeseries={"granularity": "minutes"})
    assert found(client) == []
    assert catalog.collections.find_one({"_id": series})["timeseriesFields"] == longer
    # The other way round.
    entry = catalog.collections.find_one({"_id": series})
    with Changed(catalog.collections, entry, {"timeseriesFields": known}):
        assert found(client) == [mismatch, mismatch]
    assert found(client) == []


def test_a_series_that_a_shard_lacks(cluster, client, catalog, series):
    known = uuid_of(catalog, series)
    with cluster.shards[1].client() as direct:
        direct.d.s.drop()
        missing = details(client, "MissingLocalCollection")
        assert missing == {"namespace": series, "collectionUUID": known, "shard": "s1"}
        # Something else has its name.
        direct.d.create_collection("s")
        assert found(client) == ["MisplacedCollection", "MissingLocalCollection"]
        direct.d.s.drop()
        # Another series has.
        direct.d.create_collection("s", timeseries={"timeField": "x"})
        assert "CollectionUUIDMismatch" in found(client)
        direct.d.s.drop()


def test_unsharded_series(cluster, client):
    client.d.create_collection("u", timeseries={"timeField": "t"})
    assert found(client) == []
    with cluster.shards[1].client() as direct:
        direct.d.create_collection("stray", timeseries={"timeField": "t"})
        misplaced = details(client, "MisplacedCollection")
        assert misplaced["namespace"] == "d.system.buckets.stray" and misplaced["shard"] == "s1"
        direct.d.stray.drop()


def test_indexes(cluster, client, catalog, ns):
    client.d.c.create_index("x")
    with cluster.shards[1].client() as direct:
        direct.d.c.drop_index("x_1")
        assert found(client) == []
        info = details(client, "InconsistentIndex", checkIndexes=True)["info"]
        assert info == {"indexName": "x_1", "missingFromShards": ["s1"], "inconsistentProperties": []}
        direct.d.c.create_index("x", sparse=True)
        info = details(client, "InconsistentIndex", checkIndexes=True)["info"]
        assert info["missingFromShards"] == [] and info["inconsistentProperties"] == [{"k": "sparse", "v": True}]
        direct.d.c.drop_index("x_1")
        direct.d.c.create_index("x")
        assert found(client, checkIndexes=True) == []
        # The index itself cannot be dropped.
        known = uuid_of(catalog, ns)
        direct.d.c.drop()
        make = {"_shardsvrCreateCollectionParticipant": "c", "collectionUUID": known, "options": {}, "indexes": []}
        direct.d.command({**make, "writeConcern": {"w": "majority"}})
        missing = details(client, "MissingShardKeyIndex")
        assert missing == {"namespace": ns, "shard": "s1", "shardKey": {"k": 1}}


def test_batches(cluster, client):
    with cluster.shards[1].client() as direct:
        for name in "abcdef":
            direct.d.create_collection(name)
        reply = client.d.command("checkMetadataConsistency", 1, cursor={"batchSize": 2})
        cursor = reply["cursor"]
        assert len(cursor["firstBatch"]) == 2 and cursor["id"] != 0
        more = client.d.command("getMore", cursor["id"], collection="$cmd.aggregate")["cursor"]
        assert len(more["nextBatch"]) == 4 and more["id"] == 0
        assert {document["details"]["namespace"] for document in cursor["firstBatch"] + more["nextBatch"]} == {f"d.{name}" for name in "abcdef"}
        direct.drop_database("d")


def test_beside_definitions(cluster, client):
    """What definitions are about to change is not reported."""
    ended = threading.Event()

    def define():
        with cluster.client() as own:
            for number in range(12):
                ns = f"d.n{number % 3}"
                own.admin.command("shardCollection", ns, key={"k": "hashed"})
                own.d[f"n{number % 3}"].insert_one({"k": number})
                own.d[f"n{number % 3}"].create_index("x")
                own.d[f"n{number % 3}"].drop()
        ended.set()

    thread = threading.Thread(target=define)
    thread.start()
    looks = 0
    while not ended.is_set():
        assert check(client.d, checkIndexes=True) == [], looks
        assert check(client.admin) == []
        looks += 1
    thread.join()
    assert looks > 1
