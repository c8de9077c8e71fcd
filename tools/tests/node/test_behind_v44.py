"""A shard behind routers and config servers of MongoDB 4.4, whose parts the test plays: the catalog
is a set that has what 4.4's config servers write, and requests are those of 4.4's routers.
tools/tests/mixed runs the real ones where they are."""

import datetime
import uuid

import pytest
from bson import Binary, Int64, ObjectId, Timestamp
from bson.max_key import MaxKey
from bson.min_key import MinKey

from pinion_node import ReplicaSet, wait_until
from pinion_wire import Wire

MAJORITY = {"w": "majority", "wtimeout": 30_000}
NONE, UNSHARDED = ObjectId("0" * 24), Timestamp(0, 0)
IGNORED = [Timestamp(0, 0), ObjectId("00000000ffffffffffffffff")]
NOW = datetime.datetime(2031, 5, 6, tzinfo=datetime.timezone.utc).replace(tzinfo=None)
CONSTANTS = {"localNow": NOW, "clusterTime": Timestamp(7, 1)}


class Router:
    """A connection of one of 4.4's routers, with what each of its requests has."""

    def __init__(self, port):
        self.wire = Wire(port)
        self.hello = self.wire.command("admin", {
            "isMaster": 1, "internalClient": {"minWireVersion": 9, "maxWireVersion": 9}, "hostInfo": "router:27017",
            "client": {"driver": {"name": "NetworkInterfaceTL", "version": "4.4.0"}, "os": {"type": "Linux"}}})

    def run(self, db, command, **more):
        fields = {**command, **more, "readConcern": {"provenance": "implicitDefault"}, "$client": {
            "driver": {"name": "PyMongo", "version": "3.11"}, "os": {"type": "Linux"}, "mongos": {"host": "r:27017", "client": "c:1", "version": "4.4.0"}}}
        return self.wire.command(db, fields)

    def succeeds(self, db, command, **more):
        reply = self.run(db, command, **more)
        assert reply["ok"] == 1 and "writeErrors" not in reply, reply
        return reply

    def fails(self, db, command, code, **more):
        reply = self.run(db, command, **more)
        assert reply["ok"] == 0 and reply["code"] == code, reply
        return reply

    def all(self, db, command, **more):
        """All documents of a cursor."""
        cursor = self.succeeds(db, command, **more)["cursor"]
        found = cursor["firstBatch"]
        name = cursor["ns"].split(".", 1)[1]
        while cursor["id"]:
            cursor = self.succeeds(db, {"getMore": Int64(cursor["id"]), "collection": name})["cursor"]
            found += cursor["nextBatch"]
        return found


class V44:
    """A set that has the catalog, and two shards, each with a connection of a router."""

    def __enter__(self):
        self.config = ReplicaSet(1, name="cfg")
        self.shards = [ReplicaSet(1, options=("--clusterVersion", "4.4"), name=f"s{at}", role="shardsvr") for at in range(2)]
        self.cluster = ObjectId()
        for members in (self.config, *self.shards):
            members.__enter__()
        self.catalog = self.config.client(uuidRepresentation="standard").config
        self.routers = [Router(shard.nodes[0].port) for shard in self.shards]
        for shard, router in zip(self.shards, self.routers):
            router.succeeds("admin", {"_addShard": 1, "shardIdentity": {
                "shardName": shard.name, "clusterId": self.cluster, "configsvrConnectionString": self.config.connection_string,
            }, "writeConcern": MAJORITY})
            router.succeeds("admin", {"setFeatureCompatibilityVersion": "4.4", "writeConcern": MAJORITY})
            self.catalog.shards.insert_one({"_id": shard.name, "host": shard.connection_string, "state": 1})
        self.versions = {}
        return self

    def __exit__(self, kind, *_):
        for members in (*self.shards, self.config):
            members.__exit__(kind)

    def make_database(self, name, shard=0):
        """As the config servers make one."""
        version = {"uuid": uuid.uuid4(), "lastMod": 1}
        self.catalog.databases.insert_one({"_id": name, "primary": f"s{shard}", "partitioned": True, "version": version})
        self.versions[name] = {"uuid": bson_uuid(version["uuid"]), "lastMod": 1}
        return {"databaseVersion": self.versions[name], "shardVersion": [UNSHARDED, NONE]}

    def shard(self, ns, key, **more):
        """Has the primary shard `s0` of its database shard a collection; returns its epoch."""
        made = self.routers[0].succeeds("admin", {
            "_shardsvrShardCollection": ns, "key": key, "unique": False, "numInitialChunks": Int64(more.pop("chunks", 0)),
            "collation": {}, "getUUIDfromPrimaryShard": True, **more, "writeConcern": MAJORITY})
        assert made["collectionsharded"] == ns
        return self.catalog.collections.find_one({"_id": ns})["lastmodEpoch"]

    def versions_of(self, ns):
        """`shardVersion` for each shard, by the chunks that it has."""
        found = {}
        for chunk in self.catalog.chunks.find({"ns": ns}):
            before = found.get(chunk["shard"], [Timestamp(0, 0), chunk["lastmodEpoch"]])
            found[chunk["shard"]] = max(before, [chunk["lastmod"], chunk["lastmodEpoch"]], key=lambda version: version[0])
        return [{"shardVersion": found[shard]} for shard in ("s0", "s1") if shard in found]


def bson_uuid(value):
    return Binary.from_uuid(value)


@pytest.fixture(scope="module")
def cluster():
    with V44() as running:
        yield running
        for members in (running.config, *running.shards):
            assert all(node.alive() for node in members.nodes)


@pytest.fixture
def db(request):
    return request.node.name.translate(str.maketrans("[] ", "___"))[:40]


def test_a_shard_is_added(cluster):
    for shard, router in zip(cluster.shards, cluster.routers):
        assert router.hello["maxWireVersion"] == 9 and router.hello["setName"] == shard.name and "msg" not in router.hello
        assert router.fails("admin", {"setFeatureCompatibilityVersion": "4.2"}, 7369100)
        state = router.succeeds("admin", {"shardingState": 1})
        assert (state["enabled"], state["shardName"], state["clusterId"]) == (True, shard.name, cluster.cluster)


def test_databases(cluster, db):
    first, second = cluster.routers
    whole = cluster.make_database(db)
    first.succeeds(db, {"insert": "c", "documents": [{"_id": 1}], "allowImplicitCollectionCreation": True}, **whole)
    assert first.all(db, {"find": "c"}, **whole) == [{"_id": 1}]
    newer = {"databaseVersion": {**whole["databaseVersion"], "lastMod": 2}, "shardVersion": [UNSHARDED, NONE]}
    reply = first.fails(db, {"find": "c"}, 249, **newer)
    assert reply["vReceived"] == newer["databaseVersion"] and reply["vWanted"] == whole["databaseVersion"] and reply["db"] == db
    # The other shard knows that it is not its own, and asks for nothing.
    assert "vWanted" not in second.fails(db, {"find": "c"}, 249, **whole)
    assert first.succeeds("admin", {"getDatabaseVersion": db})["dbVersion"] == whole["databaseVersion"]
    first.succeeds("admin", {"_flushDatabaseCacheUpdates": db})


def test_a_collection_is_sharded(cluster, db):
    whole = cluster.make_database(db)
    ns = f"{db}.c"
    cluster.routers[0].succeeds(db, {"create": "c", "collation": {"locale": "de"}}, **{"databaseVersion": whole["databaseVersion"]})
    epoch = cluster.shard(ns, {"k": "hashed"}, chunks=4)
    entry = cluster.catalog.collections.find_one({"_id": ns})
    assert entry.pop("lastmod") and entry.pop("uuid")
    assert entry == {
        "_id": ns, "lastmodEpoch": epoch, "key": {"k": "hashed"}, "unique": False, "noBalance": False, "dropped": False,
        "distributionMode": "sharded", "defaultCollation": entry["defaultCollation"]}
    chunks = list(cluster.catalog.chunks.find({"ns": ns}).sort("lastmod"))
    assert [set(chunk) for chunk in chunks] == [{"_id", "ns", "min", "max", "shard", "lastmod", "lastmodEpoch", "history"}] * 4
    assert [chunk["lastmod"] for chunk in chunks] == [Timestamp(1, at) for at in range(4)]
    assert {chunk["shard"] for chunk in chunks} == {"s0", "s1"} and {chunk["lastmodEpoch"] for chunk in chunks} == {epoch}
    assert chunks[0]["min"] == {"k": MinKey()} and chunks[-1]["max"] == {"k": MaxKey()}
    uuids = set()
    for shard in cluster.shards:
        with shard.client(uuidRepresentation="standard") as client:
            [listed] = client[db].list_collections(filter={"name": "c"})
            assert listed["options"]["collation"]["locale"] == "de"
            uuids.add(listed["info"]["uuid"])
            assert "k_hashed" in client[db].c.index_information()
    assert len(uuids) == 1
    # Asked for again it is there; by another key it is refused.
    assert cluster.shard(ns, {"k": "hashed"}, chunks=4) == epoch
    cluster.routers[0].fails("admin", {"_shardsvrShardCollection": ns, "key": {"x": 1}, "unique": False, "writeConcern": MAJORITY}, 23)


def test_versions_of_collections(cluster, db):
    cluster.make_database(db)
    ns = f"{db}.c"
    epoch = cluster.shard(ns, {"_id": "hashed"}, chunks=4)
    versions = cluster.versions_of(ns)
    for router, version in zip(cluster.routers, versions):
        router.succeeds(db, {"insert": "c", "documents": [{"_id": at} for at in range(100)], "allowImplicitCollectionCreation": False}, **version)
    # Each shard was sent all of them, and shows what it owns.
    found = [router.all(db, {"find": "c"}, **version) for router, version in zip(cluster.routers, versions)]
    assert sorted(document["_id"] for part in found for document in part) == list(range(100))
    assert all(part for part in found)
    older = {"shardVersion": [Timestamp(1, 9), ObjectId()]}
    router, mine = cluster.routers[0], versions[0]["shardVersion"]
    reply = router.fails(db, {"find": "c"}, 13388, **older)
    assert (reply["ns"], reply["vReceived"], reply["vReceivedEpoch"]) == (ns, older["shardVersion"][0], older["shardVersion"][1])
    assert (reply["vWanted"], reply["vWantedEpoch"], reply["shardId"]) == (*mine, "s0")
    for sent in ([UNSHARDED, NONE], [Timestamp(2, 0), epoch]):
        assert router.fails(db, {"count": "c"}, 13388, shardVersion=sent)["vWanted"] == mine[0]
    # The flag behind the epoch is of later versions of 4.4.
    assert router.succeeds(db, {"count": "c"}, shardVersion=[*IGNORED, True])["n"] == 100
    reply = router.run(db, {"insert": "c", "documents": [{"_id": "a"}, {"_id": "b"}], "ordered": False}, **older)
    assert reply["ok"] == 1 and reply["n"] == 0 and len(reply["writeErrors"]) == 2, reply
    for at, error in enumerate(reply["writeErrors"]):
        assert (error["index"], error["code"]) == (at, 63)
        assert error["errInfo"] == {
            "ns": ns, "vReceived": older["shardVersion"][0], "vReceivedEpoch": older["shardVersion"][1],
            "vWanted": mine[0], "vWantedEpoch": mine[1], "shardId": "s0"}
    shown = router.succeeds("admin", {"getShardVersion": ns, "fullMetadata": True})
    assert shown["mine"] == mine[0] and shown["metadata"]["shardVersion"] == mine
    assert router.succeeds("admin", {"shardingState": 1})["versions"][ns] == mine[0]


def set_version(ns, version, epoch, **more):
    return {
        "setShardVersion": ns, "init": False, "forceRefresh": True, "authoritative": True, "configdb": "cfg/x:1", "shard": "s0",
        "shardHost": "s0/x:1", "version": version, "versionEpoch": epoch, "noConnectionVersioning": True, **more}


def test_a_collection_is_dropped(cluster, db):
    whole = cluster.make_database(db)
    ns = f"{db}.c"
    epoch = cluster.shard(ns, {"_id": 1})
    router = cluster.routers[0]
    version = cluster.versions_of(ns)[0]["shardVersion"]
    router.succeeds("admin", set_version(ns, *version, authoritative=False))
    reply = router.fails("admin", set_version(ns, UNSHARDED, NONE, authoritative=False), 8)
    assert reply["need_authoritative"] and reply["globalVersion"] == version[0] and reply["ns"] == ns
    assert router.fails("admin", set_version(ns, Timestamp(0, 1), epoch), 8)["reloadConfig"]
    # As the config servers drop it.
    for shard in cluster.routers:
        reply = shard.run(db, {"drop": "c", "writeConcern": MAJORITY})
        assert reply["ok"] == 1 or reply["code"] == 26, reply
    cluster.catalog.chunks.delete_many({"ns": ns})
    cluster.catalog.collections.replace_one({"_id": ns}, {
        "_id": ns, "lastmodEpoch": NONE, "lastmod": datetime.datetime.now(), "dropped": True})
    for at, shard in enumerate(cluster.routers):
        shard.succeeds("admin", set_version(ns, UNSHARDED, NONE, shard=f"s{at}"))
        shard.succeeds("admin", {"unsetSharding": 1})
    router.succeeds(db, {"insert": "c", "documents": [{"_id": 5}]}, **whole)
    assert router.all(db, {"find": "c"}, **whole) == [{"_id": 5}]
    # And sharded again, with the document that it has.
    again = cluster.shard(ns, {"_id": 1})
    assert again != epoch
    assert router.all(db, {"find": "c"}, **cluster.versions_of(ns)[0]) == [{"_id": 5}]
    assert router.fails("admin", set_version(ns, *version, shard="s1"), 2)


def test_zones_and_ranges(cluster, db):
    cluster.make_database(db)
    ns = f"{db}.c"
    cluster.catalog.shards.update_one({"_id": "s0"}, {"$set": {"tags": ["west"]}})
    cluster.catalog.shards.update_one({"_id": "s1"}, {"$set": {"tags": ["east"]}})
    for zone, low, high in (("west", 0, 10), ("east", 10, 20)):
        cluster.catalog.tags.insert_one({"_id": {"ns": ns, "min": {"k": low}}, "ns": ns, "min": {"k": low}, "max": {"k": high}, "tag": zone})
    cluster.shard(ns, {"k": 1})
    owners = {chunk["min"]["k"]: chunk["shard"] for chunk in cluster.catalog.chunks.find({"ns": ns, "min.k": {"$in": [0, 10]}})}
    assert owners == {0: "s0", 10: "s1"}
    cluster.catalog.shards.update_many({}, {"$unset": {"tags": 1}})


def test_the_time_of_the_config_servers_is_read(cluster, db):
    """A request says how much of the config servers its router has read; the shard reads nothing
    older."""
    cluster.make_database(db)
    time = cluster.config.client().admin.command("ping")["$clusterTime"]
    state = {"opTime": {"ts": time["clusterTime"], "t": Int64(1)}}
    reply = cluster.routers[0].run(db, {"ping": 1, "$clusterTime": time, "$configServerState": state})
    assert reply["ok"] == 1 and reply["$configServerState"]["opTime"] == state["opTime"], reply
    assert "$configTime" not in reply
    # Its two clocks are not read at once.
    later = {"opTime": {"ts": Timestamp(time["clusterTime"].time, time["clusterTime"].inc + 1), "t": Int64(2)}}
    assert cluster.routers[0].run(db, {"ping": 1, "$clusterTime": time, "$configServerState": later})["ok"] == 1
    ns = f"{db}.c"
    cluster.shard(ns, {"_id": 1})
    assert cluster.routers[0].fails("admin", {"ping": 1, "$configServerState": 1}, 14)


def test_chunks_that_are_left_are_not_passed_over(cluster, db):
    whole = cluster.make_database(db)
    ns, left = f"{db}.c", ObjectId()
    cluster.catalog.chunks.insert_one({
        "_id": ObjectId(), "ns": ns, "lastmodEpoch": left, "lastmod": Timestamp(1, 0), "min": {"_id": MinKey()}, "max": {"_id": MaxKey()},
        "shard": "s0", "history": []})
    shard = {"_shardsvrShardCollection": ns, "key": {"_id": 1}, "unique": False, "writeConcern": MAJORITY}
    assert "manually delete" in cluster.routers[0].fails("admin", shard, 51)["errmsg"]
    # The collection is as it was.
    cluster.routers[0].succeeds(db, {"insert": "c", "documents": [{"_id": 1}]}, **whole)
    cluster.catalog.chunks.delete_many({"ns": ns})
    cluster.routers[0].succeeds("admin", shard)


def test_transactions(cluster, db):
    whole = cluster.make_database(db)
    router = cluster.routers[0]
    router.succeeds(db, {"insert": "c", "documents": [{"_id": 1}]}, **whole)
    session = {"lsid": {"id": bson_uuid(uuid.uuid4()), "uid": b"\0" * 32}, "txnNumber": Int64(1), "autocommit": False}
    found = router.run(db, {"find": "c"}, **whole, **session, startTransaction=True, coordinator=True)
    assert found["ok"] == 1 and found["readOnly"] is True, found
    written = router.run(db, {"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"x": 1}}}]}, **whole, **session)
    assert written["ok"] == 1 and written["nModified"] == 1 and written["readOnly"] is False, written
    committed = router.wire.command("admin", {"commitTransaction": 1, **session, "writeConcern": MAJORITY})
    assert committed["ok"] == 1, committed
    assert router.all(db, {"find": "c"}, **whole) == [{"_id": 1, "x": 1}]


def test_what_is_of_other_clusters_is_refused(cluster, db):
    whole = cluster.make_database(db)
    version = {"databaseVersion": whole["databaseVersion"]}
    for command in ({"_shardsvrDropCollection": "c"}, {"_shardsvrMovePrimary": 1, "to": "s1"}, {"_shardsvrDropDatabase": 1}):
        message = cluster.routers[0].fails(db, {**command, "writeConcern": MAJORITY}, 115, **version)["errmsg"]
        assert next(iter(command)) in message and "4.4" in message
    with ReplicaSet(1, name="own", role="shardsvr") as own, own.client() as client:
        client.admin.command({"_addShard": 1, "shardIdentity": {
            "shardName": "own", "clusterId": ObjectId(), "configsvrConnectionString": "cfg/127.0.0.1:1"}, "writeConcern": MAJORITY})
        with Wire(own.nodes[0].port) as wire:
            for command in (set_version("a.b", UNSHARDED, NONE), {"_shardsvrShardCollection": "a.b", "key": {"x": 1}}):
                reply = wire.command("admin", command)
                assert reply["code"] == 115 and "--clusterVersion 4.4" in reply["errmsg"], reply


def test_sessions_are_sharded(cluster):
    """The config servers shard it when the first shard is there."""
    epoch = cluster.shard("config.system.sessions", {"_id": 1})
    chunks = list(cluster.catalog.chunks.find({"ns": "config.system.sessions"}))
    assert len(chunks) == 1 and chunks[0]["lastmodEpoch"] == epoch
    cluster.routers[0].succeeds("config", {"insert": "system.sessions", "documents": [
        {"_id": {"id": bson_uuid(uuid.uuid4()), "uid": b"\0" * 32}, "lastUse": datetime.datetime.now()}]},
        shardVersion=[Timestamp(1, 0), epoch])


def test_a_new_primary_resumes(cluster, db):
    """What the shard knows is on its disk: a request with a version is served after a restart."""
    cluster.make_database(db)
    ns = f"{db}.c"
    cluster.shard(ns, {"_id": "hashed"}, chunks=4)
    version = cluster.versions_of(ns)[1]
    cluster.routers[1].succeeds(db, {"insert": "c", "documents": [{"_id": at} for at in range(50)]}, **version)
    before = cluster.routers[1].all(db, {"find": "c"}, **version)
    node = cluster.shards[1].nodes[0]
    node.kill()
    node.start()
    cluster.shards[1].primary()
    cluster.routers[1] = Router(node.port)
    wait_until(lambda: cluster.routers[1].run(db, {"ping": 1})["ok"] == 1)
    assert cluster.routers[1].all(db, {"find": "c"}, **version) == before


PART = {"cursor": {"batchSize": 0}, "fromMongos": True, "needsMerge": True, "use44SortKeys": True, "useNewUpsert": True, "runtimeConstants": CONSTANTS}


@pytest.fixture(scope="module")
def part(cluster):
    """A collection on one shard, and what its router sends with each command."""
    whole = cluster.make_database("parts")
    cluster.routers[0].succeeds("parts", {"insert": "c", "documents": [
        {"_id": at, "n": at, "x": at / 4, "g": at % 2} for at in range(10)]}, **whole)
    return lambda command, **more: cluster.routers[0].all("parts", command, **whole, **more)


def aggregated(part, *stages, **more):
    return part({"aggregate": "c", "pipeline": list(stages), **PART, **more})


def test_parts_of_groups(part):
    group = {"$group": {"_id": "$g", "s": {"$sum": "$n"}, "a": {"$avg": "$x"}, "p": {"$stdDevPop": "$n"}, "c": {"$sum": 1},
                        "low": {"$min": "$n"}, "first": {"$first": "$n"}, "all": {"$push": "$n"}}}
    found = {document["_id"]: document for document in aggregated(part, {"$sort": {"n": 1}}, group)}
    assert found[0] == {
        "_id": 0, "s": 20, "a": {"subTotal": 5.0, "count": 5, "subTotalError": 0.0}, "p": {"m2": 40.0, "mean": 4.0, "count": 5},
        "c": 5, "low": 0, "first": 0, "all": [0, 2, 4, 6, 8]}
    # The same without a merge is the result itself.
    whole = {name: value for name, value in PART.items() if name not in ("needsMerge",)}
    [even] = [d for d in part({"aggregate": "c", "pipeline": [group], **whole}) if d["_id"] == 0]
    assert even["a"] == 1.0 and even["s"] == 20


def test_sort_keys(part):
    assert [d["$sortKey"] for d in aggregated(part, {"$sort": {"g": 1, "n": -1}}, {"$limit": Int64(3)})] == [[0, 8], [0, 6], [0, 4]]
    found = part({"find": "c", "sort": {"n": -1}, "limit": Int64(2), "projection": {"n": 1, "$sortKey": {"$meta": "sortKey"}},
                  "_use44SortKeys": True, "runtimeConstants": CONSTANTS, "singleBatch": False})
    assert found == [{"_id": 9, "n": 9, "$sortKey": [9]}, {"_id": 8, "n": 8, "$sortKey": [8]}]
    drawn = aggregated(part, {"$sample": {"size": Int64(4)}})
    assert len(drawn) == 4 and all("$randVal" in document for document in drawn)


def test_the_time_of_an_operation_is_the_routers(cluster, part):
    assert aggregated(part, {"$limit": Int64(1)}, {"$project": {"_id": 0, "now": "$$NOW", "time": "$$CLUSTER_TIME"}}) == [
        {"now": NOW, "time": Timestamp(7, 1)}]
    later = {"$expr": {"$eq": ["$$NOW", NOW]}}
    assert len(part({"find": "c", "filter": later, "runtimeConstants": CONSTANTS})) == 10
    whole = {"databaseVersion": cluster.versions["parts"], "shardVersion": [UNSHARDED, NONE]}
    router = cluster.routers[0]
    router.succeeds("parts", {"update": "c", "updates": [{"q": {"_id": 0}, "u": [{"$set": {"at": "$$NOW"}}]}], "runtimeConstants": CONSTANTS}, **whole)
    assert part({"find": "c", "filter": {"_id": 0}})[0]["at"] == NOW
    changed = router.succeeds("parts", {
        "findAndModify": "c", "query": {"_id": 1}, "update": [{"$set": {"at": "$$NOW"}}], "new": True, "runtimeConstants": CONSTANTS}, **whole)
    assert changed["value"]["at"] == NOW
    # A shard of Pinion's own clusters does not know them, and neither does a client of this one.
    router.fails("parts", {"find": "c", "runtimeConstants": {"localNow": 1}}, 14, **whole)


def test_changes_have_sort_keys(cluster, db):
    whole = cluster.make_database(db)
    router = cluster.routers[0]
    router.succeeds(db, {"create": "c"}, databaseVersion=whole["databaseVersion"])
    opened = router.succeeds(db, {"aggregate": "c", "pipeline": [{"$changeStream": {}}], **PART}, **whole)["cursor"]
    assert opened["firstBatch"] == [] and opened["id"]
    router.succeeds(db, {"insert": "c", "documents": [{"_id": at} for at in range(3)]}, **whole)
    events = []
    while len(events) < 3:
        cursor = router.succeeds(db, {"getMore": Int64(opened["id"]), "collection": "c"})["cursor"]
        events += cursor["nextBatch"]
    assert [event["documentKey"]["_id"] for event in events] == [0, 1, 2]
    assert all(event["$sortKey"] == [event["_id"]] for event in events)
    tokens = [event["_id"]["_data"] for event in events]
    assert tokens == sorted(tokens) and cursor["postBatchResumeToken"]["_data"] >= tokens[-1]
    resumed = router.succeeds(db, {"aggregate": "c", "pipeline": [{"$changeStream": {"resumeAfter": events[0]["_id"]}}], **PART}, **whole)["cursor"]
    # The event of the token comes first, by which its router knows that it is still there.
    rest = resumed["firstBatch"]
    while len(rest) < 3:
        rest += router.succeeds(db, {"getMore": Int64(resumed["id"]), "collection": "c"})["cursor"]["nextBatch"]
    assert [event["_id"]["_data"] for event in rest] == tokens
    assert [event["documentKey"]["_id"] for event in rest[1:]] == [1, 2]


def test_what_a_shard_does_not_merge(cluster, part):
    whole = {"databaseVersion": cluster.versions["parts"], "shardVersion": [UNSHARDED, NONE]}
    router = cluster.routers[0]
    message = router.fails("parts", {"aggregate": "c", "pipeline": [{"$mergeCursors": {"remotes": []}}], **PART}, 40324, **whole)["errmsg"]
    assert "$mergeCursors" in message
    exchange = {"policy": "keyRange", "consumers": 1}
    assert "exchange" in router.fails("parts", {"aggregate": "c", "pipeline": [], **PART, "exchange": exchange}, 238, **whole)["errmsg"]
