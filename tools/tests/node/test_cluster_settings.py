"""Settings of a cluster: writes of users are blocked, cluster parameters, query settings and the
feature compatibility version reach every shard."""

import pytest
from bson import Timestamp
from pinion_cluster import fails
from pinion_node import STEADY, TEST_COMMANDS, Beside, ReplicaSet, wait_until

BLOCKED = 371
CONFLICT = 117
ALL = {"_id": "", "blockNewUserShardedDDL": True, "blockUserWrites": True}
MAJORITY = {"w": "majority"}


@pytest.fixture
def client(cluster):
    with cluster.client() as connected:
        block(connected, False)
        connected.drop_database("d")
        cluster.make_database("d", 0, connected)
        connected.admin.command("shardCollection", "d.c", key={"_id": "hashed"})
        connected.d.c.insert_many([{"_id": n} for n in range(20)])
        yield connected
        block(connected, False)


@pytest.fixture
def shards(cluster):
    """Clients of the primaries of the shards."""
    clients = [shard.member(shard.nodes[0]) for shard in cluster.shards]
    yield clients
    for connected in clients:
        connected.close()


@pytest.fixture
def config(cluster):
    with cluster.config.member(cluster.config.nodes[0]) as connected:
        yield connected


def block(client, blocks, **more):
    return client.admin.command({"setUserWriteBlockMode": 1, "global": blocks, **more})


def mode(client):
    return client.admin.command("serverStatus")["repl"]["userWriteBlockMode"]


def stored(client):
    return list(client.config.user_writes_critical_sections.find())


def changes(client):
    return list(client.config.sharding_configsvr_coordinators.find())


def refused(call):
    assert "User writes blocked" in fails(call, BLOCKED)


def parameter(client, name):
    [found] = client.admin.command({"getClusterParameter": name})["clusterParameters"]
    return found


def set_parameter(client, name, **value):
    return client.admin.command({"setClusterParameter": {name: value}})


class TestWritesOfUsers:
    def test_they_are_blocked_on_all_shards(self, cluster, client, shards, config):
        client.d.plain.insert_one({"_id": 1})
        block(client, True)
        assert [mode(shard) for shard in shards] == [2, 2]
        assert [stored(node) for node in (*shards, config)] == [[ALL]] * 3
        assert changes(config) == []
        with cluster.client(1) as other:
            for at_router in (client, other):
                db = at_router.d
                # Several shards refuse it.
                fails(lambda db=db: db.c.update_many({}, {"$set": {"x": 1}}), BLOCKED)
                refused(lambda db=db: db.c.insert_one({"_id": 100}))
                refused(lambda db=db: db.plain.insert_one({"_id": 100}))
                refused(lambda db=db: db.c.delete_one({"_id": 3}))
                refused(lambda db=db: db.c.find_one_and_update({"_id": 3}, {"$set": {"x": 1}}))
                refused(lambda db=db: list(db.plain.aggregate([{"$merge": "c"}])))
                refused(lambda db=db: db.create_collection("e"))
                refused(lambda db=db: db.c.create_index("x"))
                refused(lambda db=db: db.c.drop())
                refused(lambda db=db: db.plain.drop())
                refused(lambda db=db: db.command({"dropDatabase": 1}))
                refused(lambda a=at_router: a.admin.command("shardCollection", "d.e", key={"_id": 1}))
                assert db.c.count_documents({}) == 20
        # Settings of the cluster are none of users.
        client.admin.command("addShardToZone", "s0", zone="z")
        client.admin.command("removeShardFromZone", "s0", zone="z")
        client.config.settings.update_one({"_id": "chunksize"}, {"$set": {"value": 64}}, upsert=True)
        client.config.settings.delete_one({"_id": "chunksize"})
        block(client, True)
        block(client, False)
        assert [mode(shard) for shard in shards] == [1, 1]
        assert [stored(node) for node in (*shards, config)] == [[]] * 3
        client.d.c.update_many({}, {"$set": {"x": 1}})
        client.d.c.drop()

    def test_definitions_end_first(self, client, shards):
        with shards[0].start_session() as session:
            session.start_transaction()
            shards[0].d.c.find_one(session=session)
            dropping = Beside(lambda: client.d.c.drop())
            wait_until(lambda: shards[0].config.system.sharding_ddl_coordinators.find_one() is not None)
            blocking = Beside(lambda: block(client, True))
            wait_until(lambda: stored(shards[0]) != [])
            [of_shard] = stored(shards[0])
            assert of_shard == ALL | {"blockUserWrites": False}
            # No other starts, and writes are not blocked yet.
            refused(lambda: client.admin.command("shardCollection", "d.e", key={"_id": 1}))
            client.d.plain.insert_one({})
            # The opposite is not made at the same time.
            fails(lambda: block(client, False), CONFLICT)
            assert blocking.is_alive() and dropping.is_alive()
            session.abort_transaction()
        assert dropping.ended().error is None and blocking.ended().error is None
        assert "c" not in client.d.list_collection_names()

    def test_late_messages_are_refused(self, shards):
        for phase in ("prepare", "complete"):
            late = {"_shardsvrSetUserWriteBlockMode": 1, "global": True, "phase": phase, "writeConcern": MAJORITY}
            fails(lambda late=late: shards[0].admin.command(late), CONFLICT)
        again = {"_shardsvrSetUserWriteBlockMode": 1, "global": False, "phase": "complete", "writeConcern": MAJORITY}
        assert shards[0].admin.command(again)["ok"] == 1
        fails(lambda: shards[0].admin.command({**again, "phase": "other"}), 2)
        assert [mode(shard) for shard in shards] == [1, 1]

    def test_it_is_set_through_a_router(self, client, shards, config):
        for node in (*shards, config):
            fails(lambda node=node: block(node, True), 20)
        fails(lambda: client.admin.command("setUserWriteBlockMode", 1), 40414)
        command = {"_configsvrSetUserWriteBlockMode": 1, "global": True}
        fails(lambda: config.admin.command(command), 72)
        fails(lambda: shards[0].admin.command({**command, "writeConcern": MAJORITY}), 20)

    def test_a_new_primary_continues(self, cluster, client, shards, config):
        change = {"_id": {"coordinatorType": "setUserWriteBlockMode"}, "block": True, "phase": "prepare"}
        config.config.sharding_configsvr_coordinators.insert_one(change)
        node = cluster.config.nodes[0]
        node.stop()
        node.start()
        cluster.config.primary()
        wait_until(lambda: changes(config) == [])
        assert [mode(shard) for shard in shards] == [2, 2]
        assert [stored(node) for node in (*shards, config)] == [[ALL]] * 3
        refused(lambda: client.d.c.insert_one({}))

    def test_a_shard_that_is_away_is_waited_for(self, cluster, client, shards):
        node = cluster.shards[1].nodes[0]
        node.kill()
        blocking = Beside(lambda: block(client, True))
        wait_until(lambda: stored(shards[0]) != [])
        assert blocking.is_alive() and mode(shards[0]) == 1
        node.start()
        cluster.shards[1].primary()
        assert blocking.ended().error is None
        assert [mode(shard) for shard in shards] == [2, 2]


class TestParameters:
    def test_they_reach_all_nodes(self, cluster, client, shards, config):
        set_parameter(client, "defaultMaxTimeMS", readOperations=20_000)
        with cluster.client(1) as other:
            nodes = (client, other, config, *shards)
            found = [parameter(node, "defaultMaxTimeMS") for node in nodes]
        assert found == [found[0]] * 5 and found[0]["readOperations"] == 20_000
        assert found[0]["clusterParameterTime"] > Timestamp(1, 1)
        assert changes(config) == []
        set_parameter(client, "defaultMaxTimeMS", readOperations=0)
        later = [parameter(shard, "defaultMaxTimeMS") for shard in shards]
        assert later[0]["clusterParameterTime"] > found[0]["clusterParameterTime"]
        # One that is late changes nothing.
        late = {"defaultMaxTimeMS": {"readOperations": 1}}
        time = found[0]["clusterParameterTime"]
        shards[0].admin.command({"_shardsvrSetClusterParameter": late, "clusterParameterTime": time, "writeConcern": MAJORITY})
        assert [parameter(shard, "defaultMaxTimeMS") for shard in shards] == later

    def test_what_is_refused(self, client, shards, config):
        fails(lambda: set_parameter(client, "absent", x=1), 4)
        fails(lambda: client.admin.command({"setClusterParameter": {}}), 4)
        fails(lambda: set_parameter(client, "defaultMaxTimeMS", readOperations=-1), 2)
        for node in (config, *shards):
            fails(lambda node=node: set_parameter(node, "defaultMaxTimeMS", readOperations=1), 238)
        fails(lambda: client.admin.command({"getClusterParameter": "absent"}), 4)

    def test_the_time_of_reads(self, client, shards):
        set_parameter(client, "defaultMaxTimeMS", readOperations=100)
        try:
            for shard in shards:
                shard.admin.command({
                    "configureFailPoint": "failCommand", "mode": "alwaysOn",
                    "data": {"failCommands": ["find"], "blockConnection": True, "blockTimeMS": 400, "failInternalCommands": True},
                })
            fails(lambda: client.d.c.find_one({"_id": 1}), 50)
            assert client.d.c.find_one({"_id": 1}, max_time_ms=10_000) == {"_id": 1}
        finally:
            for shard in shards:
                shard.admin.command({"configureFailPoint": "failCommand", "mode": "off"})
            set_parameter(client, "defaultMaxTimeMS", readOperations=0)
        assert client.d.c.find_one({"_id": 1}) == {"_id": 1}

    def test_query_settings(self, client, shards):
        query = {"find": "c", "filter": {"x": 1}, "$db": "d"}
        client.admin.command({"setQuerySettings": query, "settings": {"reject": True}})
        fails(lambda: list(client.d.c.find({"x": 5})), 411)
        assert list(client.d.c.find({"y": 5})) == []
        client.admin.command({"removeQuerySettings": query})
        assert list(client.d.c.find({"x": 5})) == []
        for shard in shards:
            assert shard.admin.command("serverStatus")["querySettings"]["count"] == 0


class TestFeatureVersion:
    @staticmethod
    def commands(shard):
        """How often the shard was sent a version."""
        commands = shard.admin.command("serverStatus")["metrics"]["commands"]
        return commands["setFeatureCompatibilityVersion"]["total"]

    def test_all_shards_go_through_its_phases(self, client, shards, config):
        set_version = {"setFeatureCompatibilityVersion": "8.0"}
        fails(lambda: client.admin.command(set_version), 7369100)
        fails(lambda: client.admin.command({"setFeatureCompatibilityVersion": "7.0", "confirm": True}), 4926900)
        fails(lambda: client.admin.command({**set_version, "confirm": True, "phase": "start"}), 5563600)
        fails(lambda: shards[0].admin.command({**set_version, "confirm": True, "phase": "other"}), 2)
        before = [self.commands(shard) for shard in shards]
        for _ in range(2):
            assert client.admin.command({**set_version, "confirm": True})["ok"] == 1
        assert [self.commands(shard) for shard in shards] == [count + 6 for count in before]
        for node in (config, *shards):
            version = node.admin.command({"getParameter": 1, "featureCompatibilityVersion": 1})
            assert version["featureCompatibilityVersion"]["version"] == "8.0"


def test_a_shard_that_is_added_gets_the_settings(cluster, client):
    set_parameter(client, "pauseMigrationsDuringMultiUpdates", enabled=True)
    block(client, True)
    with ReplicaSet(1, STEADY, TEST_COMMANDS, name="s9", role="shardsvr") as added, added.client() as of_shard:
        of_shard.admin.own.insert_one({"_id": 1})
        client.admin.command("addShard", added.connection_string)
        assert mode(of_shard) == 2 and stored(of_shard) == [ALL]
        assert parameter(of_shard, "pauseMigrationsDuringMultiUpdates")["enabled"] is True
        block(client, False)
        assert mode(of_shard) == 1 and stored(of_shard) == []
        set_parameter(client, "pauseMigrationsDuringMultiUpdates", enabled=False)
        assert parameter(of_shard, "pauseMigrationsDuringMultiUpdates")["enabled"] is False
        # The cluster is of two shards again, as far as the other tests are concerned.
        with cluster.config.member(cluster.config.nodes[0]) as config:
            config.config.shards.delete_one({"_id": "s9"})
