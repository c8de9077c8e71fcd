"""What a shard knows of its sharded collections: compared with what requests carry, learned of the
config servers, kept for secondaries and for the next start."""

import uuid

import pytest
from bson import Binary, MaxKey, MinKey, ObjectId, Timestamp
from pinion_node import STEADY, ReplicaSet, wait_until
from pymongo import ReadPreference
from pymongo.errors import OperationFailure

MAJORITY = {"w": "majority", "wtimeout": 60_000}
UNSHARDED = {"e": ObjectId("0" * 24), "t": Timestamp(0, 0), "v": Timestamp(0, 0)}
IGNORED = {"e": ObjectId("00000000ffffffffffffffff"), "t": Timestamp(0xFFFFFFFF, 0xFFFFFFFF), "v": Timestamp(0, 0)}
STALE_CONFIG = 13388


class Table:
    """A collection as the config servers have it: the test is its catalog."""

    def __init__(self, config, db):
        self.config = config.get_database("config")
        self.ns = f"{db}.c"
        self.uuid = Binary(uuid.uuid4().bytes, 4)
        self.epoch, self.time = ObjectId(), Timestamp(1_000, 1)

    def version(self, major, minor):
        return {"e": self.epoch, "t": self.time, "v": Timestamp(major, minor)}

    def chunk(self, low, high, shard, major, minor):
        return {
            "_id": ObjectId(), "uuid": self.uuid, "min": {"a": low}, "max": {"a": high}, "shard": shard,
            "lastmod": Timestamp(major, minor), "history": [{"validAfter": self.time, "shard": shard}],
        }

    def define(self, *chunks):
        self.config.chunks.insert_many(self.chunk(*chunk) for chunk in chunks)
        self.config.collections.insert_one({
            "_id": self.ns, "lastmodEpoch": self.epoch, "lastmod": self.epoch.generation_time, "timestamp": self.time,
            "uuid": self.uuid, "key": {"a": 1}, "unique": False, "noBalance": False,
        })

    def replace(self, low, *chunks):
        self.config.chunks.delete_one({"uuid": self.uuid, "min": {"a": low}})
        self.config.chunks.insert_many(self.chunk(*chunk) for chunk in chunks)

    def drop(self):
        self.config.collections.delete_one({"_id": self.ns})
        self.config.chunks.delete_many({"uuid": self.uuid})


class Cluster:
    """A config server and the shard `s1` with a secondary."""

    def __enter__(self):
        self.config_set = ReplicaSet(members=1, settings=STEADY, name="cfg", role="configsvr")
        self.shard_set = ReplicaSet(members=3, settings=STEADY, name="s1", role="shardsvr")
        self.config_set.__enter__()
        self.shard_set.__enter__()
        self.config = self.config_set.member(self.config_set.nodes[0])
        self.shard = self.shard_set.client()
        wait_until(lambda: self.config.config.version.find_one())
        command = {"_configsvrAddShard": self.shard_set.connection_string, "writeConcern": MAJORITY}
        self.config.admin.command(command)
        for node in self.shard_set.nodes:
            with self.shard_set.member(node, read_preference=ReadPreference.SECONDARY_PREFERRED) as member:
                wait_until(lambda member=member: member.admin.command("shardingState")["enabled"])
        return self

    def __exit__(self, kind, *_):
        self.shard.close()
        self.config.close()
        self.shard_set.__exit__(kind)
        self.config_set.__exit__(kind)


@pytest.fixture(scope="module")
def cluster():
    with Cluster() as running:
        yield running
        for node in [*running.shard_set.nodes, *running.config_set.nodes]:
            assert not [line for line in node.log if "panic" in line.lower()]


@pytest.fixture
def table(cluster):
    name = "d_" + uuid.uuid4().hex[:12]
    command = {"_configsvrCreateDatabase": name, "primaryShardId": "s1", "writeConcern": MAJORITY}
    cluster.config.admin.command(command)
    return Table(cluster.config, name)


def find(client, table, version):
    db, name = table.ns.split(".")
    reply = client[db].command({"find": name, "shardVersion": version, "readConcern": {"level": "local"}})
    return reply["cursor"]["firstBatch"]


def stale(client, table, version):
    """What the shard wants instead of a version, which it refuses."""
    with pytest.raises(OperationFailure) as caught:
        find(client, table, version)
    details = caught.value.details
    assert caught.value.code == STALE_CONFIG, details
    assert details["ns"] == table.ns and details["shardId"] == "s1"
    assert details["vReceived"] == version
    return details.get("vWanted")


def kept(client, table):
    """The entry that the set keeps, and its chunks."""
    entry = client.config["cache.collections"].find_one({"_id": table.ns})
    chunks = list(client.config[f"cache.chunks.{table.ns}"].find().sort("_id"))
    return entry, [(c["_id"]["a"], c["max"]["a"], c["shard"], c["lastmod"]) for c in chunks]


def test_versions_and_what_is_kept_of_them(cluster, table):
    shard = cluster.shard
    assert find(shard, table, UNSHARDED) == []
    assert stale(shard, table, table.version(1, 0)) == UNSHARDED
    assert kept(shard, table) == (None, [])

    table.define((MinKey(), 0, "s1", 1, 0), (0, MaxKey(), "s2", 1, 1))
    assert find(shard, table, table.version(1, 0)) == []
    entry, chunks = kept(shard, table)
    assert entry["refreshing"] is False and entry["lastRefreshedCollectionVersion"] == Timestamp(1, 1)
    assert (entry["uuid"], entry["epoch"], entry["timestamp"]) == (table.uuid, table.epoch, table.time)
    assert chunks == [(MinKey(), 0, "s1", Timestamp(1, 0)), (0, MaxKey(), "s2", Timestamp(1, 1))]
    assert stale(shard, table, UNSHARDED) == table.version(1, 0)
    assert find(shard, table, IGNORED) == []
    # Another minor version places data alike.
    assert find(shard, table, table.version(1, 9)) == []

    # A split and a move: what changed is read, and written in the place of what it overlaps.
    table.replace(MinKey(), (MinKey(), -5, "s1", 1, 2), (-5, -2, "s1", 1, 3), (-2, 0, "s1", 1, 4))
    table.replace(-2, (-2, 0, "s2", 2, 0))
    table.replace(-5, (-5, -2, "s1", 2, 1))
    assert stale(shard, table, table.version(3, 0)) == table.version(2, 1)
    assert kept(shard, table)[1] == [
        (MinKey(), -5, "s1", Timestamp(1, 2)), (-5, -2, "s1", Timestamp(2, 1)), (-2, 0, "s2", Timestamp(2, 0)),
        (0, MaxKey(), "s2", Timestamp(1, 1)),
    ]
    assert stale(shard, table, table.version(1, 0)) == table.version(2, 1)

    shown = shard.admin.command({"getShardVersion": table.ns, "fullMetadata": True})
    assert (shown["mine"], shown["global"], shown["inShardedMode"]) == (Timestamp(2, 1), Timestamp(2, 1), True)
    assert shown["metadata"]["collVersion"] == table.version(2, 1)
    assert shown["metadata"]["keyPattern"] == {"a": 1}
    assert shown["metadata"]["chunks"] == [[{"a": MinKey()}, {"a": -5}], [{"a": -5}, {"a": -2}]]
    assert shard.admin.command("shardingState")["versions"][table.ns] == Timestamp(2, 1)

    # A merge.
    table.config.chunks.delete_one({"uuid": table.uuid, "min": {"a": MinKey()}})
    table.replace(-5, (MinKey(), -2, "s1", 2, 2))
    shard.admin.command({"_flushRoutingTableCacheUpdates": table.ns, "writeConcern": {"w": 1}})
    assert kept(shard, table)[1] == [
        (MinKey(), -2, "s1", Timestamp(2, 2)), (-2, 0, "s2", Timestamp(2, 0)), (0, MaxKey(), "s2", Timestamp(1, 1)),
    ]

    # Dropped, and defined again.
    table.drop()
    old = table.version(2, 1)
    assert stale(shard, table, table.version(9, 1)) == UNSHARDED
    assert kept(shard, table) == (None, [])
    assert f"cache.chunks.{table.ns}" not in shard.config.list_collection_names()
    assert find(shard, table, UNSHARDED) == []
    assert shard.admin.command({"getShardVersion": table.ns})["global"] == "UNSHARDED"
    again = Table(cluster.config, table.ns.split(".")[0])
    again.time = Timestamp(2_000, 1)
    again.define((MinKey(), MaxKey(), "s1", 1, 0))
    assert find(shard, again, again.version(1, 0)) == []
    assert stale(shard, again, old) == again.version(1, 0)
    assert kept(shard, again)[1] == [(MinKey(), MaxKey(), "s1", Timestamp(1, 0))]


def test_secondaries_read_what_the_primary_keeps(cluster, table):
    with cluster.shard_set.member(cluster.shard_set.nodes[1], read_preference=ReadPreference.SECONDARY) as secondary:
        assert find(secondary, table, UNSHARDED) == []
        table.define((MinKey(), 0, "s1", 1, 0), (0, MaxKey(), "s2", 1, 1))
        # It has the primary learn it.
        assert find(secondary, table, table.version(1, 0)) == []
        assert kept(cluster.shard, table)[0]["refreshing"] is False
        assert stale(secondary, table, UNSHARDED) == table.version(1, 0)
        table.replace(0, (0, MaxKey(), "s1", 2, 0))
        assert find(cluster.shard, table, table.version(2, 0)) == []
        # What is applied from the log makes the entry stale.
        wait_until(lambda: secondary.admin.command({"getShardVersion": table.ns})["global"] in ["UNKNOWN", Timestamp(2, 0)])
        assert stale(secondary, table, table.version(1, 0)) == table.version(2, 0)
        assert find(secondary, table, table.version(2, 0)) == []
        table.drop()
        assert stale(cluster.shard, table, table.version(3, 0)) == UNSHARDED
        wait_until(lambda: secondary.admin.command({"getShardVersion": table.ns})["global"] == "UNSHARDED")
        assert find(secondary, table, UNSHARDED) == []


def test_a_table_of_many_replies(cluster, table):
    count = 20_000
    bounds = [MinKey(), *range(count - 1), MaxKey()]
    table.define(*((bounds[at], bounds[at + 1], f"s{at % 2 + 1}", 1, at) for at in range(count)))
    assert find(cluster.shard, table, table.version(1, count - 2)) == []
    entry, chunks = kept(cluster.shard, table)
    assert entry["lastRefreshedCollectionVersion"] == Timestamp(1, count - 1)
    assert [(low, high) for low, high, *_ in chunks] == list(zip(bounds, bounds[1:]))
    with cluster.shard_set.member(cluster.shard_set.nodes[2], read_preference=ReadPreference.SECONDARY) as secondary:
        assert stale(secondary, table, UNSHARDED) == table.version(1, count - 2)


def test_entries_are_stale_after_a_start_and_on_a_new_primary(cluster, table):
    unfinished = Table(cluster.config, table.ns.split(".")[0])
    unfinished.ns = table.ns + "_unfinished"
    table.define((MinKey(), 0, "s1", 1, 0), (0, MaxKey(), "s2", 1, 1))
    unfinished.define((MinKey(), 0, "s1", 1, 0), (0, MaxKey(), "s2", 1, 1))
    for one in (table, unfinished):
        cluster.shard.admin.command({"_flushRoutingTableCacheUpdates": one.ns, "writeConcern": MAJORITY})
    # A primary has ended between its writes.
    entries = cluster.shard.config["cache.collections"]
    entries.update_one({"_id": unfinished.ns}, {"$set": {"refreshing": True}})
    chunks = cluster.shard.config[f"cache.chunks.{unfinished.ns}"]
    chunks.delete_one({"_id": {"a": 0}})
    for node in cluster.shard_set.nodes:
        assert node.stop() == 0
    for node in cluster.shard_set.nodes:
        node.start()
    cluster.shard_set.primary()
    with cluster.shard_set.client() as client:
        known = lambda one: client.admin.command({"getShardVersion": one.ns})["global"]
        assert (known(table), known(unfinished)) == ("UNKNOWN", "UNKNOWN")
        # It was split meanwhile.
        table.replace(0, (0, 9, "s2", 1, 2), (9, MaxKey(), "s1", 2, 0))
        assert stale(client, table, UNSHARDED) == table.version(2, 0)
        assert len(kept(client, table)[1]) == 3
        assert find(client, unfinished, unfinished.version(1, 0)) == []
        entry, chunks = kept(client, unfinished)
        assert entry["refreshing"] is False and len(chunks) == 2


def test_a_new_primary_relies_on_nothing(cluster, table):
    table.define((MinKey(), 0, "s1", 1, 0), (0, MaxKey(), "s2", 1, 1))
    primary = cluster.shard_set.primary()
    successor = next(node for node in cluster.shard_set.nodes if node is not primary)
    known = lambda client: client.admin.command({"getShardVersion": table.ns})["global"]
    with cluster.shard_set.member(successor, read_preference=ReadPreference.PRIMARY_PREFERRED) as client:
        assert find(client, table, table.version(1, 0)) == []
        assert known(client) == Timestamp(1, 0)
        wait_until(lambda: cluster.shard_set.steps_up(successor))
        # It is stale before it may be relied on.
        wait_until(lambda: known(client) == "UNKNOWN")
        table.replace(0, (0, MaxKey(), "s1", 2, 0))
        assert stale(client, table, table.version(1, 0)) == table.version(2, 0)
        assert kept(client, table)[1][1] == (0, MaxKey(), "s1", Timestamp(2, 0))
