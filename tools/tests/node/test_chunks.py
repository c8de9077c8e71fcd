"""Chunks of sharded collections: split, merged, and how the balancer is set."""

import pymongo
import pytest
from bson import Int64, MaxKey, MinKey, Timestamp
from pinion_cluster import Cluster, fails
from pymongo.errors import WriteError


@pytest.fixture
def client(cluster):
    with cluster.client() as connected:
        yield connected


@pytest.fixture
def admin(cluster, client):
    """The commands of a router, with a database on the first shard that is empty."""
    client.drop_database("d")
    cluster.make_database("d", 0, client)
    return client.admin


def shard(admin, ns="d.c", key=None, **options):
    admin.command("shardCollection", ns, key=key or {"k": 1}, **options)
    return ns


def entry_of(admin, ns):
    return admin.client.config.collections.find_one({"_id": ns})


def chunks_of(admin, ns):
    return list(admin.client.config.chunks.find({"uuid": entry_of(admin, ns)["uuid"]}).sort("min", 1))


def bounds_of(admin, ns):
    """The lower bounds of all chunks but the first."""
    chunks = chunks_of(admin, ns)
    for one, following in zip(chunks, chunks[1:]):
        assert one["max"] == following["min"]
    return [chunk["min"]["k"] for chunk in chunks[1:]]


def filled(admin, count=100, size=10, ns="d.c"):
    """A collection in one chunk."""
    shard(admin, ns)
    name = ns.split(".", 1)[1]
    admin.client.d[name].insert_many([{"_id": n, "k": n, "x": "x" * size} for n in range(count)])
    return ns


def zoned(admin, ns="d.c"):
    """A collection with three chunks: below 0 and from 100 on s0, between on s1."""
    admin.command("addShardToZone", "s0", zone="low")
    admin.command("addShardToZone", "s1", zone="high")
    admin.command("updateZoneKeyRange", ns, min={"k": MinKey()}, max={"k": 0}, zone="low")
    admin.command("updateZoneKeyRange", ns, min={"k": 0}, max={"k": 100}, zone="high")
    admin.command("updateZoneKeyRange", ns, min={"k": 100}, max={"k": MaxKey()}, zone="low")
    shard(admin, ns)
    assert [chunk["shard"] for chunk in chunks_of(admin, ns)] == ["s0", "s1", "s0"]
    return ns


def test_split_at_a_key(admin):
    ns = filled(admin)
    admin.command("split", ns, middle={"k": 30})
    below, above = chunks_of(admin, ns)
    assert (below["max"], above["min"], above["max"]) == ({"k": 30}, {"k": 30}, {"k": MaxKey()})
    assert (below["lastmod"], above["lastmod"]) == (Timestamp(1, 1), Timestamp(1, 2))
    assert below["history"] == above["history"] and below["onCurrentShardSince"] == above["onCurrentShardSince"]
    admin.command("split", ns, middle={"k": 60.5})
    assert bounds_of(admin, ns) == [30, 60.5]
    assert admin.client.d.c.count_documents({}) == 100
    noted = admin.client.config.changelog.find_one({"what": "split", "ns": ns, "details.left.max": {"k": 30}})
    assert noted["details"]["before"] == {"min": {"k": MinKey()}, "max": {"k": MaxKey()}}
    assert noted["details"]["right"]["min"] == {"k": 30}


def test_split_in_the_middle(admin):
    ns = filled(admin)
    admin.command("split", ns, find={"k": 3})
    assert bounds_of(admin, ns) == [50]
    admin.command("split", ns, bounds=[{"k": 50}, {"k": MaxKey()}])
    assert bounds_of(admin, ns) == [50, 75]
    admin.command("split", ns, find={"k": 3, "other": {"$gt": 5}})
    assert bounds_of(admin, ns) == [25, 50, 75]


def test_splits_of_hashed_and_compound_keys(admin):
    shard(admin, "d.h", {"k": "hashed"})
    for chunk in chunks_of(admin, "d.h"):
        fails(lambda: admin.command("split", "d.h", bounds=[chunk["min"], chunk["max"]]), 87)
    admin.client.d.h.insert_many([{"k": n} for n in range(500)])
    before = chunks_of(admin, "d.h")
    admin.command("split", "d.h", find={"k": 1})
    assert len(chunks_of(admin, "d.h")) == len(before) + 1
    admin.command("split", "d.h", middle={"k": Int64(7)})
    assert len(chunks_of(admin, "d.h")) == len(before) + 2
    fails(lambda: admin.command("split", "d.h", middle={"k": "text"}), 2)
    assert admin.client.d.h.count_documents({}) == 500
    shard(admin, "d.two", {"k": 1, "l": 1})
    admin.client.d.two.insert_many([{"k": n % 4, "l": n} for n in range(40)])
    admin.command("split", "d.two", find={"k": 1, "l": 1})
    assert chunks_of(admin, "d.two")[1]["min"] == {"k": 2, "l": 2}
    fails(lambda: admin.command("split", "d.two", find={"l": 1}), 61)
    shard(admin, "d.ids", {"_id": 1})
    admin.client.d.ids.insert_many([{"_id": f"{n:03}"} for n in range(10)])
    admin.command("split", "d.ids", find={"_id": "001"})
    assert chunks_of(admin, "d.ids")[1]["min"] == {"_id": "005"}


def test_splits_that_are_refused(admin):
    ns = filled(admin)
    admin.command("split", ns, middle={"k": 50})
    both = [{"k": 50}, {"k": MaxKey()}]
    check = lambda code, **options: fails(lambda: admin.command("split", ns, **options), code)
    assert "need to specify" in check(72)
    assert "bounds and find" in check(72, find={"k": 1}, bounds=both)
    assert "find and middle" in check(72, find={"k": 1}, middle={"k": 1})
    assert "bounds and middle" in check(72, middle={"k": 1}, bounds=both)
    assert "upper bound" in check(72, bounds=[{"k": 50}])
    assert "is a boundary key of existing chunk" in check(2, middle={"k": 50})
    assert "is not valid for shard key pattern" in check(2, middle={"x": 50})
    assert "no chunk found" in check(2, bounds=[{"k": 49}, {"k": MaxKey()}])
    assert "are not valid" in check(2, bounds=[{"x": 49}, {"x": MaxKey()}])
    assert "no shard key found" in check(61, find={"x": 1})
    check(14, find=1)
    check(2, middle={"k": [1]})
    check(40415, middle={"k": 7}, unheard=1)
    fails(lambda: admin.command("split", "d.unsharded", middle={"k": 1}), 118)
    fails(lambda: admin.client.d.command("split", ns, middle={"k": 1}), 13)
    shard(admin, "d.same")
    admin.client.d.same.insert_many([{"k": 7, "n": n} for n in range(9)])
    assert "indivisible" in fails(lambda: admin.command("split", "d.same", find={"k": 7}), 87)


def test_a_split_makes_no_router_stale(admin, other):
    ns = filled(admin)
    find = lambda: sorted(document["k"] for document in other.d.c.find({"k": {"$gte": 0}}))
    assert find() == list(range(100))
    version = lambda router: router.admin.command("getShardVersion", ns)["version"]
    assert version(other) == Timestamp(1, 0)
    for point in range(10, 90, 10):
        admin.command("split", ns, middle={"k": point})
        # A request that a shard refuses has the router read the table again.
        other.d.c.update_one({"k": point}, {"$set": {"y": 1}})
        assert find() == list(range(100))
    assert version(admin.client) == Timestamp(1, 16)
    assert version(other) == Timestamp(1, 0)
    # It splits all the same, by what it then learns.
    other.admin.command("split", ns, middle={"k": 5})
    assert version(other) == Timestamp(1, 18)
    assert bounds_of(admin, ns) == [5, *range(10, 90, 10)]


def test_many_points_are_committed_in_turn(cluster, admin):
    ns = filled(admin, count=10)
    entry = entry_of(admin, ns)
    points = [{"k": n} for n in range(20_000)]
    split = {
        "splitChunk": ns, "from": "s0", "keyPattern": {"k": 1}, "epoch": entry["lastmodEpoch"],
        "min": {"k": MinKey()}, "max": {"k": MaxKey()}, "splitKeys": points,
    }
    with cluster.shards[0].client() as direct:
        direct.admin.command(split)
        # Sent again it is a success.
        direct.admin.command({**split, "splitKeys": points[-5:], "min": {"k": 19_994}})
    assert admin.client.config.chunks.count_documents({"uuid": entry["uuid"]}) == 20_001
    assert bounds_of(admin, ns) == list(range(20_000))
    assert admin.client.d.c.count_documents({}) == 10
    assert admin.client.config.changelog.count_documents({"what": "multi-split", "ns": ns}) >= 100
    merge = lambda low, high: admin.command("mergeChunks", ns, bounds=[{"k": low}, {"k": high}])
    merge(0, 9_000)
    merge(9_000, 18_000)
    assert bounds_of(admin, ns) == [0, 9_000, *range(18_000, 20_000)]


def test_merge(admin):
    ns = filled(admin)
    for point in (20, 40, 60):
        admin.command("split", ns, middle={"k": point})
    admin.command("mergeChunks", ns, bounds=[{"k": 20}, {"k": 60}])
    assert bounds_of(admin, ns) == [20, 60]
    merged = chunks_of(admin, ns)[1]
    assert merged["lastmod"] == Timestamp(1, 7) and merged["history"][0]["shard"] == "s0"
    # One chunk is merged already.
    admin.command("mergeChunks", ns, bounds=[{"k": 20}, {"k": 60}])
    assert admin.client.d.c.count_documents({}) == 100
    assert admin.client.config.changelog.find_one({"what": "merge", "ns": ns})["details"]["owningShard"] == "s0"


def test_merges_that_are_refused(admin):
    ns = zoned(admin)
    check = lambda code, bounds: fails(lambda: admin.command("mergeChunks", ns, bounds=bounds), code)
    whole = [{"k": MinKey()}, {"k": MaxKey()}]
    check(20, whole)
    check(20, [{"k": MinKey()}, {"k": 50}])
    check(20, [{"k": 1}, {"k": MaxKey()}])
    assert "no bounds" in check(2, [])
    check(72, [{"k": 1}])
    check(72, [*whole, {"k": 1}])
    check(2, [{}, {"k": 1}])
    check(2, [{"x": 1}, {"x": 2}])
    fails(lambda: admin.command("mergeChunks", "d.unsharded", bounds=whole), 118)


def test_merge_all(cluster, admin):
    ns = zoned(admin)
    for point in (-20, -10, 30, 60, 110, 120):
        admin.command("split", ns, middle={"k": point})
    admin.command("mergeAllChunksOnShard", ns, shard="s0")
    assert bounds_of(admin, ns) == [0, 30, 60, 100]
    admin.command("split", ns, middle={"k": 40})
    admin.command("mergeAllChunksOnShard", ns, shard="s1", maxNumberOfChunksToMerge=3)
    assert bounds_of(admin, ns) == [0, 60, 100]
    admin.command("mergeAllChunksOnShard", ns, shard="s1")
    assert bounds_of(admin, ns) == [0, 100]
    admin.command("mergeAllChunksOnShard", ns, shard="s1")
    # What may not move is left as it is, and zones are not joined.
    admin.command("split", ns, middle={"k": 50})
    admin.client.config.chunks.update_one({"uuid": entry_of(admin, ns)["uuid"], "min": {"k": 50}}, {"$set": {"jumbo": True}})
    admin.command("mergeAllChunksOnShard", ns, shard="s1")
    assert bounds_of(admin, ns) == [0, 50, 100]
    fails(lambda: admin.command("mergeAllChunksOnShard", ns, shard="s9"), 70)
    fails(lambda: admin.command("mergeAllChunksOnShard", "d.unsharded", shard="s0"), 118)


def test_jumbo_flags(admin):
    ns = filled(admin)
    admin.command("split", ns, middle={"k": 50})
    mark = lambda: admin.client.config.chunks.update_one({"uuid": entry_of(admin, ns)["uuid"], "min": {"k": 50}}, {"$set": {"jumbo": True}})
    is_marked = lambda: "jumbo" in chunks_of(admin, ns)[1]
    for place in ({"find": {"k": 70}}, {"bounds": [{"k": 50}, {"k": MaxKey()}]}):
        mark()
        assert is_marked()
        admin.command("clearJumboFlag", ns, **place)
        assert not is_marked()
        admin.command("clearJumboFlag", ns, **place)
    assert chunks_of(admin, ns)[1]["lastmod"] == Timestamp(3, 0)
    assert admin.client.d.c.count_documents({}) == 100
    fails(lambda: admin.command("clearJumboFlag", ns), 72)
    fails(lambda: admin.command("clearJumboFlag", ns, bounds=[{"k": 1}, {"k": 2}]), 2)
    fails(lambda: admin.command("clearJumboFlag", "d.unsharded", find={"k": 1}), 118)


def test_split_vector(cluster, admin):
    ns = filled(admin, count=200, size=1000)
    with cluster.shards[0].client() as direct:
        vector = lambda **options: [key["k"] for key in direct.admin.command("splitVector", ns, **{"keyPattern": {"k": 1}, **options})["splitKeys"]]
        size = direct.d.command("collStats", "c")
        average = size["size"] // size["count"]
        half = 50 * average // 2
        # The first key is no point.
        assert vector(maxChunkSizeBytes=50 * average)[:3] == [25, 50, 75]
        assert len(vector(maxChunkSizeBytes=50 * average, maxSplitPoints=2)) == 2
        assert vector(maxChunkSizeBytes=50 * average, maxChunkObjects=10)[:2] == [10, 20]
        assert vector(maxChunkSizeBytes=half, min={"k": 100}, max={"k": 130}) == [112, 124]
        assert vector(maxChunkSize=1) == []
        assert vector(force=True) == [100]
        assert vector(force=True, min={"k": 100}, max={"k": 120}) == [110]
        assert vector(force=True, min={"k": 100}, max={"k": 101}) == []
        fails(lambda: vector(), 72)
        fails(lambda: vector(maxChunkSize=0), 72)
        fails(lambda: vector(keyPattern={"other": 1}, force=True), 27)
        fails(lambda: vector(keyPattern={}, force=True), 2)
        fails(lambda: vector(force=True, min={"k": 1}), 2)
        fails(lambda: direct.admin.command("splitVector", "d.none", keyPattern={"k": 1}, force=True), 26)
        assert direct.admin.command("checkShardingIndex", ns, keyPattern={"k": 1})["ok"] == 1
        assert direct.admin.command("checkShardingIndex", ns, keyPattern={"_id": 1})["idskip"] is True
        fails(lambda: direct.admin.command("checkShardingIndex", ns, keyPattern={"x": 1}), 27)
        # An index with more fields serves too.
        direct.d.c.create_index([("x", 1), ("k", -1)])
        assert direct.admin.command("splitVector", ns, keyPattern={"x": 1}, force=True)["splitKeys"] == []
    assert fails(lambda: admin.command("splitVector", ns, keyPattern={"k": 1}, force=True), 20)
    admin.client.d.plain.insert_many([{"k": n} for n in range(10)])
    admin.client.d.plain.create_index("k")
    reply = admin.client.d.command("splitVector", "d.plain", keyPattern={"k": 1}, force=True)
    assert reply["splitKeys"] == [{"k": 5}]


def test_requests_that_come_late(cluster, admin):
    ns = filled(admin)
    entry = entry_of(admin, ns)
    commit = {
        "_configsvrCommitChunkSplit": ns, "collEpoch": entry["lastmodEpoch"], "min": {"k": MinKey()}, "max": {"k": MaxKey()},
        "splitPoints": [{"k": 5}], "shard": "s0", "writeConcern": {"w": "majority"},
    }
    merge = {
        "_configsvrCommitChunksMerge": ns, "shard": "s0", "collUUID": entry["uuid"],
        "chunkRange": {"min": {"k": MinKey()}, "max": {"k": MaxKey()}}, "writeConcern": {"w": "majority"},
    }
    with cluster.config.client() as config, cluster.shards[0].client() as direct:
        version = config.admin.command(commit)["collectionVersion"]["v"]
        assert version == Timestamp(1, 2)
        # Sent again: a success that changes nothing.
        assert config.admin.command(commit)["collectionVersion"]["v"] == version
        assert bounds_of(admin, ns) == [5]
        assert config.admin.command(merge)["shardVersion"]["v"] == Timestamp(1, 3)
        assert config.admin.command(merge)["shardVersion"]["v"] == Timestamp(1, 3)
        assert bounds_of(admin, ns) == []
        fails(lambda: config.admin.command({**commit, "writeConcern": {"w": 1}}), 72)
        fails(lambda: config.admin.command({**commit, "shard": "s1"}), 105)
        fails(lambda: config.admin.command({**commit, "splitPoints": [{"k": n} for n in range(8193)]}), 72)
        split = {
            "splitChunk": ns, "keyPattern": {"k": 1}, "epoch": entry["lastmodEpoch"], "min": {"k": MinKey()}, "max": {"k": MaxKey()},
            "splitKeys": [{"k": 5}],
        }
        fails(lambda: direct.admin.command({**split, "splitKeys": []}), 72)
        admin.client.d.c.drop()
        fails(lambda: config.admin.command(commit), 150)
        shard(admin, ns)
        fails(lambda: config.admin.command(commit), 150)
        fails(lambda: config.admin.command(merge), 207)
        fails(lambda: direct.admin.command(split), 150)
        assert bounds_of(admin, ns) == []


def test_a_router_that_slept(admin, other):
    ns = filled(admin)
    assert other.d.c.count_documents({}) == 100
    admin.command("split", ns, middle={"k": 50})
    admin.client.d.c.drop()
    filled(admin)
    other.admin.command("split", ns, middle={"k": 40})
    assert bounds_of(admin, ns) == [40]
    admin.client.d.c.drop()
    fails(lambda: other.admin.command("split", ns, middle={"k": 30}), 118)


def test_versions_that_a_router_goes_by(admin):
    ns = filled(admin)
    admin.command("split", ns, middle={"k": 50})
    reply = admin.command("getShardVersion", ns)
    entry = entry_of(admin, ns)
    assert reply["version"] == Timestamp(1, 2)
    assert (reply["versionEpoch"], reply["versionTimestamp"]) == (entry["lastmodEpoch"], entry["timestamp"])
    chunks = admin.command("getShardVersion", ns, fullMetadata=True)["chunks"]
    assert chunks == [[{"k": MinKey()}, {"k": 50}], [{"k": 50}, {"k": MaxKey()}]]
    fails(lambda: admin.command("getShardVersion", "d.unsharded"), 118)


def test_the_balancer_is_switched(admin):
    settings = admin.client.config.settings
    status = admin.command("balancerStatus")
    assert (status["mode"], status["inBalancerRound"], status["numBalancerRounds"]) == ("full", False, 0)
    assert status["term"] >= 1
    admin.command("balancerStop")
    assert settings.find_one({"_id": "balancer"}) == {"_id": "balancer", "mode": "off", "stopped": True}
    assert admin.command("balancerStatus")["mode"] == "off"
    admin.command("balancerStart", maxTimeMS=60_000)
    assert settings.find_one({"_id": "balancer"}) == {"_id": "balancer", "mode": "full", "stopped": False}
    assert admin.command("balancerStatus")["mode"] == "full"
    fails(lambda: admin.client.d.command("balancerStop"), 13)


def test_settings(admin):
    """What shells write, and what no setting is."""
    settings = admin.client.config.settings
    put = lambda name, **fields: settings.update_one({"_id": name}, {"$set": fields}, upsert=True)
    put("chunksize", value=64)
    put("balancer", activeWindow={"start": "23:00", "stop": "6:00"}, _secondaryThrottle=True, _waitForDelete=False)
    put("balancer", _secondaryThrottle={"w": 2})
    put("autosplit", enabled=False)
    put("automerge", enabled=True)
    refused = lambda name, **fields: pytest.raises(WriteError, put, name, **fields).value.code == 121
    assert refused("chunksize", value=0)
    assert refused("chunksize", value=1025)
    assert refused("chunksize", value="x")
    assert refused("chunksize", other=1)
    assert refused("balancer", mode="sometimes")
    assert refused("balancer", stopped="yes")
    assert refused("balancer", activeWindow={"start": "23:00"})
    assert refused("automerge", enabled=1)
    assert refused("unheard", value=1)
    admin.command("setDefaultRWConcern", 1, defaultReadConcern={"level": "majority"})
    admin.command("setDefaultRWConcern", 1, defaultReadConcern={"level": "local"})
    settings.delete_many({"_id": {"$in": ["chunksize", "autosplit", "automerge"]}})
    settings.update_one({"_id": "balancer"}, {"$unset": {"activeWindow": 1, "_secondaryThrottle": 1, "_waitForDelete": 1}})


def test_how_a_collection_is_balanced(admin):
    ns = filled(admin)
    configure = lambda **options: admin.command("configureCollectionBalancing", ns, **options)
    configure(chunkSize=8, enableAutoMerger=False, noBalance=True)
    entry = entry_of(admin, ns)
    assert (entry["maxChunkSizeBytes"], entry["enableAutoMerge"], entry["noBalance"]) == (8 << 20, False, True)
    assert admin.command("balancerCollectionStatus", ns)["chunkSize"] == 8
    configure(chunkSize=0, enableBalancing=True)
    entry = entry_of(admin, ns)
    assert "maxChunkSizeBytes" not in entry and entry["noBalance"] is False
    assert admin.command("balancerCollectionStatus", ns)["chunkSize"] == 128
    # It is what a table is read of, too.
    assert admin.client.d.c.count_documents({}) == 100
    check = lambda code, **options: fails(lambda: configure(**options), code)
    check(72)
    check(72, chunkSize=1025)
    check(72, chunkSize=-1)
    check(115, defragmentCollection=True)
    fails(lambda: admin.command("configureCollectionBalancing", "d.unsharded", chunkSize=1), 118)


def test_whether_a_collection_is_balanced(admin):
    ns = shard(admin)
    status = lambda: admin.command("balancerCollectionStatus", ns)
    assert status()["balancerCompliant"] is True and "firstComplianceViolation" not in status()
    admin.command("addShardToZone", "s1", zone="other")
    admin.command("updateZoneKeyRange", ns, min={"k": 0}, max={"k": 10}, zone="other")
    assert (status()["balancerCompliant"], status()["firstComplianceViolation"]) == (False, "zoneViolation")
    for point in (0, 10):
        admin.command("split", ns, middle={"k": point})
    assert status()["firstComplianceViolation"] == "zoneViolation"
    admin.command("updateZoneKeyRange", ns, min={"k": 0}, max={"k": 10}, zone=None)
    assert status()["balancerCompliant"] is True
    admin.command("configureCollectionBalancing", ns, chunkSize=1)
    text = "x" * 1_000_000
    admin.client.d.c.insert_many([{"k": n, "t": text} for n in range(-4, 0)])
    assert status()["firstComplianceViolation"] == "chunksImbalance"
    admin.client.config.shards.update_one({"_id": "s0"}, {"$set": {"draining": True}})
    assert status()["firstComplianceViolation"] == "draining"
    admin.client.config.shards.update_one({"_id": "s0"}, {"$unset": {"draining": 1}})
    fails(lambda: admin.command("balancerCollectionStatus", "d.unsharded"), 118)


def test_splits_and_writes_together(cluster, admin, other):
    """Splits at one router while another one writes: nothing is refused or lost."""
    ns = shard(admin)
    split_points = iter(range(100, 2000, 100))
    for at in range(0, 2000, 50):
        other.d.c.insert_many([{"k": k} for k in range(at, at + 50)])
        if at % 100 == 0 and (point := next(split_points, None)):
            admin.command("split", ns, middle={"k": point})
    assert other.d.c.count_documents({}) == 2000
    assert sorted(document["k"] for document in admin.client.d.c.find()) == list(range(2000))
    admin.command("mergeChunks", ns, bounds=[{"k": MinKey()}, {"k": MaxKey()}])
    assert bounds_of(admin, ns) == []
    assert other.d.c.count_documents({"k": {"$gte": 500, "$lt": 700}}) == 200


def test_a_split_through_failovers():
    with Cluster(shards=1, members=3, settings={"electionTimeoutMillis": 4000}) as small, small.client() as client:
        small.make_database("d", 0, client)
        ns = shard(client.admin)
        client.d.c.insert_many([{"k": n} for n in range(100)])
        # A third time the first would have to lead again, which it may not for a while.
        for point in (10, 20):
            client.admin.command("split", ns, middle={"k": point})
            members = small.shards[0]
            members.primary().client().admin.command("replSetStepDown", 5, secondaryCatchUpPeriodSecs=4)
            members.primary()
        client.admin.command("split", ns, middle={"k": 40})
        assert bounds_of(client.admin, ns) == [10, 20, 40]
        assert client.d.c.count_documents({}) == 100
        secondaries = client.get_database("d", read_preference=pymongo.ReadPreference.SECONDARY)
        assert len(list(secondaries.c.find({"k": {"$gte": 15}}))) == 85


def test_the_catalog_of_the_cluster(admin, client):
    """What `$listClusterCatalog` says of collections, sharded and not."""
    client.drop_database("other")
    admin.command("enableSharding", "other", primaryShard="s1")
    client.other.plain.insert_one({})
    shard(admin, "d.ranged")
    shard(admin, "d.hashed", {"k": "hashed"})
    client.d.plain.insert_one({})
    client.d.create_collection("series", timeseries={"timeField": "t", "metaField": "m"})
    shard(admin, "d.series", {"m": "hashed"})
    admin.command("configureCollectionBalancing", "d.hashed", chunkSize=6, enableAutoMerger=False)
    everything = {"shards": True, "tracked": True, "balancingConfiguration": True}

    def listed(database, spec=everything, *stages):
        found = database.aggregate([{"$listClusterCatalog": spec}, *stages])
        return {document["ns"]: document for document in found}

    of_database = listed(client.d)
    assert {"d.ranged", "d.hashed", "d.plain", "d.series"} <= set(of_database)
    hashed = of_database["d.hashed"]
    assert hashed["sharded"] is True and hashed["tracked"] is True and hashed["type"] == "collection"
    assert hashed["shardKey"] == {"k": "hashed"} and sorted(hashed["shards"]) == ["s0", "s1"]
    assert hashed["balancingEnabled"] is True and hashed["autoMergingEnabled"] is False and hashed["chunkSize"] == 6
    assert hashed["balancingEnabledReason"] == {"enableBalancing": True, "allowMigrations": True}
    assert of_database["d.ranged"]["shards"] == ["s0"] and of_database["d.ranged"]["chunkSize"] == 128
    assert of_database["d.series"]["sharded"] is True and sorted(of_database["d.series"]["shards"]) == ["s0", "s1"]
    plain = of_database["d.plain"]
    assert plain["sharded"] is False and plain["shards"] == ["s0"] and "shardKey" not in plain

    of_all = listed(client.admin)
    assert of_all["other.plain"]["shards"] == ["s1"] and of_all["d.hashed"] == hashed
    assert of_all["config.collections"]["shards"] == ["config"]
    assert not [name for name in of_all if name.startswith("local.")]
    # Once, although both shards have it.
    names = [document["ns"] for document in client.admin.aggregate([{"$listClusterCatalog": {}}])]
    assert len(names) == len(set(names)), names
    assert "shards" not in listed(client.d, {})["d.hashed"]
    sharded = client.d.aggregate([{"$listClusterCatalog": {}}, {"$match": {"sharded": True}}, {"$count": "n"}])
    assert list(sharded)[0]["n"] >= 3
    client.drop_database("other")
    assert list(client.nowhere.aggregate([{"$listClusterCatalog": {}}])) == []
