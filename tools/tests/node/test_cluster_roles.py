"""Nodes of a sharded cluster: config servers and shards, as routers and each other meet them."""

import uuid

import pytest
from bson import Binary, ObjectId, Timestamp
from pinion_node import CURRENT_CONFIG_NOT_COMMITTED_YET, PATIENCE_MS, STEADY, Node, ReplicaSet, run, wait_until
from pinion_wire import Wire
from pymongo import ReadPreference
from pymongo.errors import NotPrimaryError, OperationFailure

MAJORITY = {"w": "majority", "wtimeout": PATIENCE_MS}
UNSHARDED = {"e": ObjectId("0" * 24), "t": Timestamp(0, 0), "v": Timestamp(0, 0)}
IGNORED = {"e": ObjectId("00000000ffffffffffffffff"), "t": Timestamp(0xFFFFFFFF, 0xFFFFFFFF), "v": Timestamp(0, 0)}


def one(name, role):
    return ReplicaSet(members=1, settings=STEADY, name=name, role=role)


def fails(database, command, code, text=""):
    with pytest.raises(OperationFailure) as caught:
        database.command(command)
    assert caught.value.code == code, caught.value.details
    assert text in caught.value.details["errmsg"], caught.value.details
    return caught.value.details


class Cluster:
    """A config server and two sets that are to be its shards."""

    def __init__(self):
        self.sets = [one("cfg", "configsvr"), one("s1", "shardsvr"), one("s2", "shardsvr")]
        self.clients = []

    def __enter__(self):
        for members in self.sets:
            members.__enter__()
            self.clients.append(members.member(members.nodes[0]))
        self.config, self.first, self.second = self.clients
        return self

    def __exit__(self, kind, *_):
        for client in self.clients:
            client.close()
        for members in self.sets:
            members.__exit__(kind)

    def add(self, members, **more):
        command = {"_configsvrAddShard": members.connection_string, **more, "writeConcern": MAJORITY}
        return self.config.admin.command(command)

    def create(self, name, **more):
        command = {"_configsvrCreateDatabase": name, **more, "writeConcern": MAJORITY}
        return self.config.admin.command(command)

    def shard(self, name):
        return self.first if name == "s1" else self.second


@pytest.fixture(scope="module")
def cluster():
    """A cluster of two shards, `s1` and `s2`."""
    with Cluster() as running:
        wait_until(lambda: running.config.config.version.find_one())
        for members in running.sets[1:]:
            running.add(members)
        yield running
        for members in running.sets:
            for node in members.nodes:
                assert not [line for line in node.log if "panic" in line.lower()]


@pytest.fixture
def database(cluster, request):
    """A database on `s1`, as its shard has it, and its version."""
    name = "d_" + uuid.uuid4().hex[:12]
    made = cluster.create(name, primaryShardId="s1")
    return cluster.first[name], made["databaseVersion"]


@pytest.mark.parametrize("options, text", [
    (["--configsvr"], "Cannot start a configsvr as a standalone server"),
    (["--shardsvr"], "Cannot start a shardsvr as a standalone server"),
    (["--replSet", "a", "--shardsvr", "--configsvr"], "cannot be used together"),
    (["--configdb", "c/a:1"], "it is an option of routers"),
])
def test_mistakes_in_options(options, text):
    status, output = run(*options)
    assert status != 0 and text in output, output


def test_a_config_set_needs_configsvr_in_its_configuration():
    with Node("--replSet", "cfg", "--configsvr", "--cpus", "2") as node, node.client(directConnection=True) as client:
        member = {"_id": 0, "host": f"127.0.0.1:{node.port}"}
        plain = {"_id": "cfg", "members": [member]}
        fails(client.admin, {"replSetInitiate": plain}, 93, "must have configsvr:true in their config")
        arbiter = {"_id": 1, "host": "127.0.0.1:1", "arbiterOnly": True}
        with_arbiter = {"_id": "cfg", "configsvr": True, "members": [member, arbiter]}
        fails(client.admin, {"replSetInitiate": with_arbiter}, 93, "Arbiters are not allowed")
        # Made up by the node itself, it has what it must.
        client.admin.command("replSetInitiate")
        config = client.admin.command("replSetGetConfig")["config"]
        assert config["configsvr"] is True
        wait_until(lambda: client.admin.command("hello")["isWritablePrimary"])
        changed = {**config, "version": config["version"] + 1}
        del changed["configsvr"]

        def is_refused():
            try:
                client.admin.command("replSetReconfig", changed)
            except OperationFailure as error:
                # Until the first configuration is committed, it is refused for that.
                assert error.code == CURRENT_CONFIG_NOT_COMMITTED_YET or "must have configsvr:true" in error.details["errmsg"]
                return error.code == 2
            return pytest.fail("a config set without configsvr")

        wait_until(is_refused)
        parsed = client.admin.command("getCmdLineOpts")["parsed"]
        assert parsed["sharding"] == {"clusterRole": "configsvr"}


@pytest.mark.parametrize("options", [[], ["--shardsvr"]])
def test_no_other_set_takes_configsvr(options):
    with Node("--replSet", "rs0", "--cpus", "2", *options) as node, node.client(directConnection=True) as client:
        config = {"_id": "rs0", "configsvr": True, "members": [{"_id": 0, "host": f"127.0.0.1:{node.port}"}]}
        fails(client.admin, {"replSetInitiate": config}, 93, "must be started with the --configsvr flag")


def test_hello_of_a_config_server(cluster):
    hello = cluster.config.admin.command("hello")
    assert hello["configsvr"] == 2 and hello["setName"] == "cfg"
    assert "configsvr" not in cluster.first.admin.command("hello")


def test_the_catalog_of_a_new_cluster(cluster):
    config = cluster.config.config
    assert config.version.find_one()["_id"] == 1
    indexes = {
        (name, tuple(index["key"]), index.get("unique", False))
        for name in ["chunks", "shards", "tags", "locks", "lockpings"]
        for index in config[name].list_indexes() if index["name"] != "_id_"
    }
    assert indexes == {
        ("chunks", ("uuid", "min"), True), ("chunks", ("uuid", "shard", "min"), True), ("chunks", ("uuid", "lastmod"), True),
        ("shards", ("host",), True), ("tags", ("ns", "min"), True), ("tags", ("ns", "tag"), False),
        ("locks", ("ts",), False), ("locks", ("state", "process"), False), ("lockpings", ("ping",), False),
    }
    assert config["changelog"].options()["capped"] is True


def test_config_servers_have_no_databases_of_clients(cluster):
    name = "d_" + uuid.uuid4().hex[:12]
    db = cluster.config[name]
    fails(db, {"create": "c"}, 14037, "--configsvr")
    fails(db, {"createIndexes": "c", "indexes": [{"key": {"x": 1}, "name": "x_1"}]}, 14037)
    with pytest.raises(OperationFailure) as caught:
        db.c.insert_one({})
    assert caught.value.code == 14037
    assert name not in cluster.config.list_database_names()
    cluster.config.config["settings_of_clients"].insert_one({})


def test_documents_that_are_no_shards_stop_nothing(cluster):
    shards = cluster.config.config.shards
    shards.insert_many([{"_id": "without_set", "host": "127.0.0.1:2", "state": 1}, {"_id": "without_host", "state": 1}])
    try:
        name = "d_" + uuid.uuid4().hex[:12]
        assert cluster.create(name)["primaryShard"] in ["s1", "s2"]
        fails(cluster.config.admin, {"_configsvrAddShard": "x/127.0.0.1:1", "writeConcern": MAJORITY}, 96)
        assert cluster.add(cluster.sets[1])["shardAdded"] == "s1"
    finally:
        shards.delete_many({"_id": {"$in": ["without_set", "without_host"]}})


def test_a_shard_without_identity_is_a_plain_set():
    with one("s1", "shardsvr") as members, members.client() as client:
        client.test.c.insert_one({"_id": 1})
        assert client.test.c.find_one() == {"_id": 1}
        state = client.admin.command("shardingState")
        assert state["enabled"] is False
        version = {"uuid": Binary(b"1" * 16, 4), "timestamp": Timestamp(1, 1), "lastMod": 1}
        fails(client.test, {"find": "c", "databaseVersion": version}, 203, "shardIdentity")
        fails(client.test, {"find": "c", "shardVersion": UNSHARDED}, 203)
        fails(client.admin, {"getDatabaseVersion": "test"}, 203)
        fails(client.admin, {"_configsvrCreateDatabase": "d", "writeConcern": MAJORITY}, 20, "config servers")
        assert any("no shardIdentity document" in line for line in members.nodes[0].log)


def test_a_plain_set_and_a_standalone_are_no_shards(client):
    fails(client.admin, {"_addShard": 1, "shardIdentity": {}}, 50876, "without --shardsvr")
    fails(client.admin, {"_configsvrAddShard": "a/b:1", "writeConcern": {"w": 1}}, 20, "config servers")
    assert client.admin.command("shardingState")["enabled"] is False
    assert "$configTime" not in client.admin.command("ping")


def identity_of(**more):
    return {
        "shardName": "s1", "clusterId": ObjectId(), "configsvrConnectionString": "cfg/127.0.0.1:1", **more,
    }


def test_rules_of_the_identity():
    with one("s1", "shardsvr") as members, members.client() as client:
        add = lambda identity: {"_addShard": 1, "shardIdentity": identity, "writeConcern": MAJORITY}
        fails(client.admin, add({"shardName": "s1"}), 40414)
        fails(client.admin, add(identity_of(configsvrConnectionString="127.0.0.1:1")), 2)
        identity = identity_of()
        client.admin.command(add(identity))
        client.admin.command(add(identity))
        state = client.admin.command("shardingState")
        assert (state["enabled"], state["shardName"], state["clusterId"]) == (True, "s1", identity["clusterId"])
        fails(client.admin, add({**identity, "shardName": "s2"}), 40371)
        fails(client.admin, add({**identity, "clusterId": ObjectId()}), 40372)
        fails(client.admin, add({**identity, "configsvrConnectionString": "x/127.0.0.1:1"}), 40374)
        version = client.admin["system.version"]
        with pytest.raises(OperationFailure) as caught:
            version.delete_one({"_id": "shardIdentity"})
        assert caught.value.code == 40070
        with pytest.raises(OperationFailure) as caught:
            version.update_one({"_id": "shardIdentity"}, {"$set": {"shardName": "s2"}})
        assert caught.value.code == 40371
        # Config servers may move.
        moved = "cfg/127.0.0.1:1,127.0.0.1:2"
        version.update_one({"_id": "shardIdentity"}, {"$set": {"configsvrConnectionString": moved}})
        wait_until(lambda: client.admin.command("shardingState")["configServer"] == moved)
        # It is found at the next start.
        node = members.nodes[0]
        assert node.stop() == 0
        node.start()
        members.primary()
        state = client.admin.command("shardingState")
        assert (state["shardName"], state["configServer"]) == ("s1", moved)


def test_an_identity_that_is_inserted_takes_effect_on_every_member():
    with ReplicaSet(members=3, settings=STEADY, name="s1", role="shardsvr") as members, members.client() as client:
        client.admin["system.version"].insert_one({"_id": "shardIdentity", **identity_of()})
        for node in members.nodes:
            with members.member(node) as member:
                wait_until(lambda member=member: member.admin.command("shardingState")["enabled"])


def test_an_identity_that_is_rolled_back_is_none():
    with ReplicaSet(members=3, settings=STEADY, name="s1", role="shardsvr") as members:
        with members.client(w=3) as client:
            client.test.c.insert_one({"_id": 1})
        old, rest = members.nodes[0], members.nodes[1:]
        for node in rest:
            node.kill()
        is_shard = lambda client: client.admin.command("shardingState")["enabled"]
        with members.member(old, w=1, journal=True, retryWrites=False) as client:
            client.admin["system.version"].insert_one({"_id": "shardIdentity", **identity_of()})
            wait_until(lambda: is_shard(client))
        old.kill()
        for node in rest:
            node.start()
        wait_until(lambda: members.steps_up(rest[0]))
        with members.member(rest[0], w=2) as client:
            client.test.c.insert_one({"_id": 2})
        old.start()
        with members.member(old) as client:
            wait_until(lambda: members.state(old) in (1, 2) and not is_shard(client))
        other = identity_of(shardName="s8")
        with members.member(rest[0]) as client:
            client.admin.command({"_addShard": 1, "shardIdentity": other, "writeConcern": MAJORITY})
        with members.member(old) as client:
            wait_until(lambda: client.admin.command("shardingState").get("shardName") == "s8")
        assert not [line for line in old.log if "panic" in line.lower()]


def test_added_shards(cluster):
    shards = {shard["_id"]: shard for shard in cluster.config.config.shards.find()}
    assert set(shards) == {"s1", "s2"}
    assert shards["s1"]["host"] == cluster.sets[1].connection_string and shards["s1"]["state"] == 1
    assert shards["s1"]["topologyTime"] < shards["s2"]["topologyTime"]
    state = cluster.first.admin.command("shardingState")
    assert state["clusterId"] == cluster.config.config.version.find_one()["clusterId"]
    assert state["configServer"] == cluster.sets[0].connection_string
    # Sent again it says so again.
    assert cluster.add(cluster.sets[1])["shardAdded"] == "s1"
    assert cluster.config.config.changelog.count_documents({"what": "addShard"}) == 2


def test_what_is_not_added(cluster):
    admin = cluster.config.admin

    def refused(text, code, part, **more):
        fails(admin, {"_configsvrAddShard": text, **more, "writeConcern": MAJORITY}, code, part)

    refused(cluster.sets[1].connection_string, 20, "already exists", name="other")
    refused(cluster.sets[0].connection_string, 96, "config server")
    refused("x/127.0.0.1:1", 96, "failed to run command hello")
    fails(admin, {"_configsvrAddShard": "x/127.0.0.1:1"}, 72, "must be called with majority writeConcern")
    with one("s3", None) as plain:
        refused(plain.connection_string, 50876, "without --shardsvr")
        refused(plain.connection_string.replace("s3/", "s4/"), 96, "does not match the actual set name s3")


def test_a_set_with_data_is_added_with_its_databases(cluster):
    with one("s9", "shardsvr") as members, members.client() as client:
        name = "d_" + uuid.uuid4().hex[:12]
        client[name].c.insert_one({"_id": 1})
        assert cluster.add(members, name="nine")["shardAdded"] == "nine"
        try:
            found = cluster.config.config.databases.find_one({"_id": name})
            assert found["primary"] == "nine" and found["version"]["lastMod"] == 1
            reply = client[name].command({"find": "c", "databaseVersion": found["version"]})
            assert reply["cursor"]["firstBatch"] == [{"_id": 1}]
        finally:
            # There is no removal of shards: the others' tests have two.
            cluster.config.config.shards.delete_one({"_id": "nine"})
            cluster.config.config.databases.delete_many({"primary": "nine"})


def test_a_database_gets_the_smallest_shard(cluster):
    names = ["d_" + uuid.uuid4().hex[:12] for _ in range(3)]
    cluster.second["local_data"].c.insert_many({"pad": "x" * 100_000} for _ in range(20))
    made = cluster.create(names[0])
    assert made["primaryShard"] == "s1" and made["databaseVersion"]["lastMod"] == 1
    assert cluster.create(names[0])["databaseVersion"] == made["databaseVersion"]
    assert cluster.create(names[1], primaryShardId="s2")["primaryShard"] == "s2"
    found = cluster.config.config.databases.find_one({"_id": names[0]})
    assert (found["primary"], found["version"]) == ("s1", made["databaseVersion"])
    admin = cluster.config.admin

    def refused(name, code, text="", **more):
        fails(admin, {"_configsvrCreateDatabase": name, **more, "writeConcern": MAJORITY}, code, text)

    refused(names[0].upper(), 13297)
    refused(names[0], 48, primaryShardId="s2")
    refused(names[2], 70, primaryShardId="none")
    refused("admin", 72)
    fails(admin, {"_configsvrCreateDatabase": names[2], "writeConcern": {"w": 1}}, 72, "got { w: 1 }")
    cluster.second.drop_database("local_data")


def commands(version, more=None):
    """One of each kind of command, for the collection `c` with the index `x_1`."""
    v = {"databaseVersion": version, **(more or {})}
    return [
        {"find": "c", **v},
        {"find": "c", "filter": {"_id": 1}, "limit": 1, "singleBatch": True, **v},
        {"aggregate": "c", "pipeline": [{"$match": {"x": 1}}], "cursor": {}, **v},
        {"count": "c", **v},
        {"distinct": "c", "key": "x", **v},
        {"insert": "c", "documents": [{"x": 1}], **v},
        {"update": "c", "updates": [{"q": {"x": 1}, "u": {"$set": {"y": 1}}}], **v},
        {"delete": "c", "deletes": [{"q": {"x": 77}, "limit": 1}], **v},
        {"findAndModify": "c", "query": {"x": 1}, "update": {"$set": {"y": 2}}, **v},
        {"explain": {"find": "c"}, **v},
        {"createIndexes": "c", "indexes": [{"key": {"x": 1}, "name": "x_1"}], **v},
        {"listIndexes": "c", **v},
        {"collMod": "c", "index": {"name": "x_1", "hidden": False}, **v},
        {"listCollections": 1, **v},
        {"dropIndexes": "c", "index": "x_1", **v},
        {"create": "made", **v},
        {"drop": "made", **v},
    ]


def test_versions_of_a_database(cluster, database):
    db, version = database
    db.c.insert_one({"_id": 1, "x": 1})
    older = {**version, "lastMod": 0}
    newer = {**version, "lastMod": 2}
    another = {**version, "uuid": Binary(b"2" * 16, 4), "timestamp": Timestamp(1, 1)}
    for command in commands(version):
        db.command(command)
    for wrong in [older, newer, another]:
        for command in commands(wrong):
            details = fails(db, command, 249)
            assert details["db"] == db.name and details["vReceived"] == wrong, command
            assert details["vWanted"] == version, command
    # Without a version, the client speaks to the shard itself.
    assert db.c.count_documents({}) == 2
    assert "made" not in db.list_collection_names()
    for command in commands(version, {"shardVersion": UNSHARDED})[:9] + commands(version, {"shardVersion": IGNORED})[:9]:
        db.command(command)
    placed = {"e": ObjectId(), "t": Timestamp(5, 1), "v": Timestamp(1, 0)}
    for command in commands(version, {"shardVersion": placed})[:9]:
        details = fails(db, command, 13388)
        assert (details["ns"], details["shardId"]) == (f"{db.name}.c", "s1")
        assert details["vWanted"] == UNSHARDED and details["vReceived"] == placed


def test_versions_in_a_bulk_write(cluster, database):
    db, version = database
    bulk = lambda version: {
        "bulkWrite": 1,
        "ops": [{"insert": 0, "document": {"_id": 1}}, {"update": 0, "filter": {"_id": 1}, "updateMods": {"$set": {"a": 1}}}],
        "nsInfo": [{"ns": f"{db.name}.c", "databaseVersion": version, "shardVersion": UNSHARDED}],
    }
    details = fails(cluster.first.admin, bulk({**version, "lastMod": 3}), 249)
    assert details["vWanted"] == version
    assert db.c.count_documents({}) == 0
    reply = cluster.first.admin.command(bulk(version))
    assert (reply["nInserted"], reply["nMatched"], reply["nErrors"]) == (1, 1, 0)


def test_a_database_that_is_on_another_shard(cluster, database):
    db, version = database
    elsewhere = cluster.second[db.name]
    details = fails(elsewhere, {"find": "c", "databaseVersion": version}, 249)
    assert "vWanted" not in details
    unknown = {"uuid": Binary(b"3" * 16, 4), "timestamp": Timestamp(5, 1), "lastMod": 1}
    details = fails(cluster.first["none_such"], {"find": "c", "databaseVersion": unknown}, 249)
    assert "vWanted" not in details
    # Those of a node's own have no version.
    cluster.first.admin.command({"find": "system.version", "databaseVersion": unknown})


def test_what_a_shard_keeps_of_a_database(cluster, database):
    db, version = database
    admin = cluster.first.admin
    assert admin.command({"getDatabaseVersion": db.name})["dbVersion"] == {}
    admin.command({"_flushDatabaseCacheUpdates": db.name})
    assert admin.command({"getDatabaseVersion": db.name})["dbVersion"] == version
    cached = cluster.first.config["cache.databases"].find_one({"_id": db.name})
    assert (cached["primary"], cached["version"]) == ("s1", version)


def test_a_database_is_dropped_by_its_shard(cluster, database):
    db, version = database
    db.command({"insert": "c", "documents": [{"_id": 1}], "databaseVersion": version})
    fails(db, {"_shardsvrDropDatabase": 1}, 20, "database version")
    fails(db, {"_shardsvrDropDatabase": 1, "databaseVersion": {**version, "lastMod": 9}}, 249)
    db.command({"_shardsvrDropDatabase": 1, "databaseVersion": version, "writeConcern": MAJORITY})
    assert db.name not in cluster.first.list_database_names()
    assert cluster.config.config.databases.find_one({"_id": db.name}) is None
    details = fails(db, {"insert": "c", "documents": [{"_id": 1}], "databaseVersion": version}, 249)
    assert "vWanted" not in details
    again = cluster.create(db.name, primaryShardId="s1")["databaseVersion"]
    assert again["timestamp"] > version["timestamp"] and again["uuid"] != version["uuid"]
    db.command({"insert": "c", "documents": [{"_id": 1}], "databaseVersion": again})
    assert db.c.count_documents({}) == 1


def test_a_dropped_database_stays_closed_until_the_config_servers_have_answered(cluster, database):
    db, version = database
    insert = {"insert": "c", "documents": [{}], "databaseVersion": version, "maxTimeMS": 500}
    db.command({**insert, "maxTimeMS": PATIENCE_MS})
    config = cluster.sets[0]
    config.nodes[0].kill()
    try:
        fails(db, {"_shardsvrDropDatabase": 1, "databaseVersion": version, "maxTimeMS": 2000}, 50)
        fails(db, insert, 50)
    finally:
        config.nodes[0].start()
        config.primary()
    # It comes to its end although its client has given up.
    wait_until(lambda: cluster.config.config.databases.find_one({"_id": db.name}) is None)
    fails(db, {**insert, "maxTimeMS": PATIENCE_MS}, 249)
    assert db.name not in cluster.first.list_database_names()


def test_a_removal_that_is_sent_again_has_taken_place(cluster, database):
    db, version = database
    admin = cluster.config.admin
    remove = {"_configsvrDropDatabase": db.name, "version": version, "writeConcern": MAJORITY}
    admin.command(remove)
    admin.command(remove)
    again = cluster.create(db.name, primaryShardId="s1")["databaseVersion"]
    # A late one does not concern what was made since.
    admin.command(remove)
    assert cluster.config.config.databases.find_one({"_id": db.name})["version"] == again


def test_times_are_for_nodes_alone(cluster):
    for members, client in zip(cluster.sets, cluster.clients):
        reply = client.admin.command("ping")
        assert "$clusterTime" in reply and "$configTime" not in reply and "$topologyTime" not in reply
        connection = Wire(members.nodes[0].port)
        connection.command("admin", {"hello": 1, "internalClient": {"minWireVersion": 0, "maxWireVersion": 25}})
        reply = connection.command("admin", {"ping": 1})
        time = reply["$clusterTime"]["clusterTime"]
        assert time >= reply["$configTime"] >= reply["$topologyTime"] > Timestamp(0, 0)
        # What a node is sent of them it keeps; none is ahead of the one that it follows.
        later = {"clusterTime": Timestamp(time.time, time.inc + 50), "signature": {"hash": b"\0" * 20, "keyId": 0}}
        config = Timestamp(time.time, time.inc + 40)
        connection.command("admin", {"ping": 1, "$clusterTime": later, "$configTime": config})
        reply = connection.command("admin", {"ping": 1})
        assert reply["$configTime"] >= config
        ahead = Timestamp(time.time + 1000, 1)
        reply = connection.command("admin", {"ping": 1, "$configTime": ahead})
        assert reply["ok"] == 0 and reply["code"] == 40482
        # A client has no say in it.
        client.admin.command({"ping": 1, "$configTime": ahead})
        connection.socket.close()


def test_a_shard_that_starts_again_knows_its_cluster(cluster, database):
    db, version = database
    db.command({"insert": "c", "documents": [{"_id": 1}], "databaseVersion": version})
    members = cluster.sets[1]
    node = members.nodes[0]
    node.kill()
    node.start()
    members.primary()
    reply = db.command({"find": "c", "databaseVersion": version})
    assert reply["cursor"]["firstBatch"] == [{"_id": 1}]
    kept = cluster.first.local["replset.vectorClock"].find_one()
    assert kept["configTime"] >= kept["topologyTime"] > Timestamp(0, 0)


def test_a_config_set_of_three_has_its_catalog_after_an_election():
    with ReplicaSet(members=3, settings=STEADY, name="cfg", role="configsvr") as members, members.client() as client:
        wait_until(lambda: client.config.version.find_one())
        identity = client.config.version.find_one()
        second = members.nodes[1]
        wait_until(lambda: members.steps_up(second))
        with members.member(second) as primary:
            create = {"_configsvrCreateDatabase": "d", "writeConcern": MAJORITY}
            fails(primary.admin, create, 70, "No non-draining shard found")
            assert list(primary.config.version.find()) == [identity]
        with members.member(members.nodes[2]) as secondary:
            with pytest.raises(NotPrimaryError):
                secondary.admin.command(create)


def test_secondaries_of_a_shard_read_what_the_primary_has_learned(cluster):
    with ReplicaSet(members=3, settings=STEADY, name="s7", role="shardsvr") as members, members.client() as client:
        cluster.add(members, name="seven")
        try:
            name = "d_" + uuid.uuid4().hex[:12]
            version = cluster.create(name, primaryShardId="seven")["databaseVersion"]
            insert = {"insert": "c", "documents": [{"_id": 1}], "databaseVersion": version, "writeConcern": MAJORITY}
            client[name].command(insert)
            read = {"find": "c", "databaseVersion": version}
            for node in members.secondaries():
                with members.member(node) as member:
                    # A majority has its identity, which this one may not be of yet.
                    wait_until(lambda member=member: member.admin.command("shardingState")["enabled"])
                    found = member[name].command(read, read_preference=ReadPreference.SECONDARY_PREFERRED)
                    assert found["cursor"]["firstBatch"] == [{"_id": 1}]
            # A new primary asks the config servers for what the one before has left.
            next_primary = members.secondaries()[0]
            wait_until(lambda: members.steps_up(next_primary))
            with members.member(next_primary) as primary:
                wait_until(lambda: primary.admin.command({"getDatabaseVersion": name})["dbVersion"] == {})
                assert primary[name].command(read)["cursor"]["firstBatch"] == [{"_id": 1}]
                primary[name].command({"_shardsvrDropDatabase": 1, "databaseVersion": version, "writeConcern": MAJORITY})
            for node in members.secondaries():
                with members.member(node) as member:
                    def is_stale(member=member):
                        try:
                            member[name].command(read, read_preference=ReadPreference.SECONDARY_PREFERRED)
                        except OperationFailure as error:
                            return error.code == 249
                        return False
                    wait_until(is_stale)
        finally:
            cluster.config.config.shards.delete_one({"_id": "seven"})
            cluster.config.config.databases.delete_many({"primary": "seven"})


def test_with_a_key_file_the_keys_of_times_are_the_config_servers(tmp_path):
    key = "secret" * 10
    path = tmp_path / "key"
    path.write_text(key)
    path.chmod(0o400)
    options = ("--keyFile", str(path))
    with ReplicaSet(1, STEADY, options, "cfg", "configsvr") as config, ReplicaSet(1, STEADY, options, "s1", "shardsvr") as shard:
        as_member = {"username": "__system", "password": key, "authSource": "local", "authMechanism": "SCRAM-SHA-256"}
        command = {"_configsvrAddShard": shard.connection_string, "writeConcern": MAJORITY}
        with config.client() as client:
            fails(client.admin, command, 13, "not authorized")
        with config.client(**as_member) as client:
            wait_until(lambda: client.config.version.find_one())
            client.admin.command(command)
            wait_until(lambda: client.admin["system.keys"].count_documents({}) >= 2)
            keys = {key["_id"] for key in client.admin["system.keys"].find()}
        with shard.client() as client:
            own = {key["_id"] for key in client.admin["system.keys"].find()}
        # The driver would put times of its own into commands.
        with Wire(shard.nodes[0].port) as of_shard, Wire(config.nodes[0].port) as of_config:
            def signed(connection):
                return connection.command("admin", {"ping": 1}).get("$clusterTime")

            wait_until(lambda: signed(of_shard) and signed(of_shard)["signature"]["keyId"] in keys - own)
            # Each side believes what the other has signed.
            assert of_config.command("admin", {"ping": 1, "$clusterTime": signed(of_shard)})["ok"] == 1
            theirs = signed(of_config)
            assert of_shard.command("admin", {"ping": 1, "$clusterTime": theirs})["ok"] == 1
            # And neither what a client has made up.
            later = {**theirs, "clusterTime": Timestamp(theirs["clusterTime"].time + 100, 1)}
            for connection in [of_shard, of_config]:
                reply = connection.command("admin", {"ping": 1, "$clusterTime": later})
                assert reply["ok"] == 0 and reply["codeName"] == "TimeProofMismatch"
