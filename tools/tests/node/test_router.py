"""A router in front of two shards: unsharded databases behave as on one set."""

import datetime
import signal
import threading
import time
import uuid

import pymongo
import pytest
from bson import Binary, Int64
from bson.binary import UUID_SUBTYPE
from pinion_cluster import NOT_READY, Cluster, Router, fails
from pinion_node import PATIENCE_MS, ReplicaSet, wait_until
from pinion_wire import Wire
from pymongo import InsertOne, UpdateOne
from pymongo.errors import AutoReconnect, BulkWriteError, OperationFailure, PyMongoError


@pytest.fixture
def client(cluster):
    with cluster.client() as connected:
        yield connected


@pytest.fixture
def two(cluster, client):
    """A database on each shard, empty."""
    for at in (0, 1):
        client.drop_database(f"d{at}")
        cluster.make_database(f"d{at}", at, client)
    return client.d0, client.d1


def test_hello(client):
    for name, role in (("hello", "isWritablePrimary"), ("isMaster", "ismaster")):
        hello = client.admin.command(name)
        assert hello[role] is True and hello["msg"] == "isdbgrid"
        assert "setName" not in hello and "hosts" not in hello and "secondary" not in hello
        assert hello["logicalSessionTimeoutMinutes"] == 30
    assert client.admin.command("isdbgrid")["isdbgrid"] == 1
    assert client.is_mongos


def test_replies_are_for_clients(two):
    reply = two[0].command("insert", "c", documents=[{"_id": 1}])
    assert reply["n"] == 1 and reply["ok"] == 1.0
    hidden = {"$configTime", "$topologyTime", "opTime", "electionId", "databaseVersion", "shardVersion"}
    assert not hidden & set(reply), reply
    reply = two[0].command("find", "c")
    assert not hidden & set(reply) and {"operationTime", "$clusterTime"} <= set(reply)


def test_databases_are_where_they_belong(cluster, two):
    for at, db in enumerate(two):
        db.c.insert_many([{"_id": n, "at": at} for n in range(10)])
    for at, members in enumerate(cluster.shards):
        with members.client() as shard:
            assert {f"d{at}"} == {name for name in shard.list_database_names() if name.startswith("d")}
            assert shard[f"d{at}"].c.count_documents({}) == 10
    with cluster.client(1) as other:
        assert other.d0.c.find_one({"_id": 3}) == {"_id": 3, "at": 0}
        assert other.d1.c.find_one({"_id": 3}) == {"_id": 3, "at": 1}


def test_databases_are_listed_with_their_shards(two):
    for db in two:
        db.c.insert_one({})
    listed = {entry["name"]: entry for entry in two[0].client.list_databases()}
    assert set(listed["d0"]["shards"]) == {"s0"} and set(listed["d1"]["shards"]) == {"s1"}
    assert listed["config"]["shards"].keys() == {"config"}
    names = two[0].client.admin.command("listDatabases", nameOnly=True)["databases"]
    assert {"name": "d0"} in names


def test_a_write_makes_its_database(client):
    client.drop_database("made")
    assert "made" not in client.list_database_names()
    assert client.made.c.count_documents({}) == 0
    assert client.made.c.delete_many({}).deleted_count == 0
    client.made.c.insert_one({})
    entry = client.config.databases.find_one({"_id": "made"})
    assert entry["primary"] in ("s0", "s1") and entry["version"]["lastMod"] == 1
    fails(lambda: client.Made.c.insert_one({}), 13297)


def test_cursors(two):
    two[0].c.insert_many([{"_id": n} for n in range(1000)])
    assert [document["_id"] for document in two[0].c.find(batch_size=100).sort("_id", -1)] == list(reversed(range(1000)))
    assert len(list(two[0].c.aggregate([{"$match": {}}], batchSize=7))) == 1000
    assert len(list(two[0].c.find(batch_size=3).limit(10))) == 10
    cursor = two[0].c.find(batch_size=10)
    next(cursor)
    killed = two[0].command("killCursors", "c", cursors=[cursor.cursor_id])
    assert killed["cursorsKilled"] == [cursor.cursor_id]
    with pytest.raises(OperationFailure) as caught:
        list(cursor)
    assert caught.value.code == 43


def test_a_cursor_is_of_its_router_and_its_session(cluster, two):
    two[0].c.insert_many([{"_id": n} for n in range(100)])
    reply = two[0].command("find", "c", batchSize=2)
    cursor = reply["cursor"]["id"]
    with cluster.client(1) as other:
        fails(lambda: other.d0.command("getMore", cursor, collection="c"), 43)
    fails(lambda: two[0].command("getMore", cursor, collection="other"), 13)


def test_a_killed_cursor_is_closed_at_the_shard(cluster, two):
    two[0].c.insert_many([{"_id": n} for n in range(100)])

    def open_at_shard():
        with cluster.shards[0].client() as shard:
            return shard.admin.command("serverStatus")["metrics"]["cursor"]["open"]["total"]

    before = open_at_shard()
    cursor = two[0].c.find(batch_size=2)
    next(cursor)
    assert open_at_shard() == before + 1
    cursor.close()
    wait_until(lambda: open_at_shard() == before)


def test_a_large_batch_of_documents(two):
    documents = [{"_id": n, "x": "x" * 100_000} for n in range(300)]
    two[1].c.insert_many(documents)
    assert two[1].c.count_documents({}) == 300
    assert sum(len(document["x"]) for document in two[1].c.find()) == 30_000_000


def test_errors_are_the_shards(two):
    two[0].c.create_index("a", unique=True)
    two[0].c.insert_one({"a": 1})
    with pytest.raises(pymongo.errors.DuplicateKeyError) as caught:
        two[0].c.insert_one({"a": 1})
    assert caught.value.details["keyPattern"] == {"a": 1}
    with pytest.raises(BulkWriteError) as caught:
        two[0].c.insert_many([{"a": 2}, {"a": 1}, {"a": 3}], ordered=False)
    assert [error["index"] for error in caught.value.details["writeErrors"]] == [1]
    assert two[0].c.count_documents({}) == 3
    fails(lambda: two[0].command("find", "c", filter={"$bad": 1}), 2)
    fails(lambda: two[0].client.nowhere.command("find", "c", filter={"$bad": 1}), 2)
    fails(lambda: two[0].command("nosuch"), 59)
    fails(lambda: two[0].client.local.c.find_one(), 20)


def test_definitions(two):
    db = two[1]
    db.create_collection("c", capped=True, size=4096)
    assert db.c.options()["capped"]
    db.v.drop()
    db.create_collection("v", viewOn="d", pipeline=[{"$match": {"a": 1}}])
    db.d.insert_many([{"a": 1}, {"a": 2}])
    assert db.v.count_documents({}) == 1
    db.d.create_index([("a", 1)])
    assert set(db.d.index_information()) == {"_id_", "a_1"}
    db.d.rename("e")
    assert set(db.list_collection_names()) == {"c", "v", "e", "system.views"}
    db.e.drop_index("a_1")
    assert db.command("collMod", "e", validator={"a": 1})["ok"] == 1.0
    stats = db.command("collStats", "e")
    assert stats["primary"] == "s1" and stats["sharded"] is False and stats["count"] == 2
    assert db.command("validate", "e")["valid"]
    db.e.drop()
    assert "e" not in db.list_collection_names()
    fails(lambda: db.client.admin.command("renameCollection", "d1.c", to="d0.c"), 125)


def test_a_database_that_is_dropped_has_no_place(cluster, two):
    two[0].c.insert_one({"_id": 1})
    before = two[0].client.config.databases.find_one({"_id": "d0"})
    with cluster.client(1) as other:
        assert other.d0.c.count_documents({}) == 1
        two[0].client.drop_database("d0")
        assert two[0].client.config.databases.find_one({"_id": "d0"}) is None
        # The other router has to find out: on the other shard, in another life of the database.
        cluster.make_database("d0", 1, two[0].client)
        two[0].c.insert_one({"_id": 2})
        assert [document["_id"] for document in other.d0.c.find()] == [2]
        other.d0.c.insert_one({"_id": 3})
        assert other.d0.c.insert_many([{"_id": n} for n in range(4, 8)]).acknowledged
    with cluster.shards[1].client() as shard:
        assert shard.d0.c.count_documents({}) == 6
    with cluster.shards[0].client() as shard:
        assert "d0" not in shard.list_database_names()
    after = two[0].client.config.databases.find_one({"_id": "d0"})
    assert after["version"]["uuid"] != before["version"]["uuid"]
    assert after["version"]["timestamp"] > before["version"]["timestamp"]


def test_bulk_writes_over_databases(two):
    client = two[0].client
    ops = [
        {"insert": 0, "document": {"_id": 1}}, {"insert": 1, "document": {"_id": 1}},
        {"insert": 0, "document": {"_id": 1}}, {"insert": 1, "document": {"_id": 2}},
    ]
    spaces = [{"ns": "d0.c"}, {"ns": "d1.c"}]
    reply = client.admin.command("bulkWrite", 1, ops=ops, nsInfo=spaces, ordered=False)
    assert (reply["nInserted"], reply["nErrors"]) == (3, 1)
    assert [(result["idx"], result["ok"]) for result in reply["cursor"]["firstBatch"]] == [(0, 1), (1, 1), (2, 0), (3, 1)]
    for db in two:
        db.c.drop()
    reply = client.admin.command("bulkWrite", 1, ops=ops, nsInfo=spaces)
    assert (reply["nInserted"], reply["nErrors"]) == (2, 1)
    assert [result["idx"] for result in reply["cursor"]["firstBatch"]] == [0, 1, 2]


def test_retried_writes_are_done_once(cluster, two):
    two[0].c.insert_one({"_id": 0, "n": 0})
    lsid = {"id": Binary(uuid.uuid4().bytes, UUID_SUBTYPE)}
    update = {"q": {"_id": 0}, "u": {"$inc": {"n": 1}}}
    command = {"update": "c", "updates": [update, update], "lsid": lsid, "txnNumber": Int64(7)}
    for at in (0, 1, 0):
        with Wire(cluster.routers[at].port) as router:
            reply = router.command("d0", command)
        assert reply["n"] == 2, reply
    assert reply["retriedStmtIds"] == [0, 1]
    assert two[0].c.find_one()["n"] == 2


def test_transactions(two):
    client = two[0].client
    for db in two:
        db.c.insert_one({"_id": 0})
    with client.start_session() as session:
        with session.start_transaction():
            two[0].c.insert_one({"_id": 1}, session=session)
            assert two[1].c.find_one({"_id": 0}, session=session)
            assert two[0].c.count_documents({}, session=session) == 2
            assert two[0].c.count_documents({}) == 1
        assert two[0].c.count_documents({}) == 2
        session.start_transaction()
        two[0].c.insert_one({"_id": 2}, session=session)
        session.abort_transaction()
        assert two[0].c.count_documents({}) == 2
        # A snapshot is one time at both shards.
        with session.start_transaction(read_concern=pymongo.read_concern.ReadConcern("snapshot")):
            assert two[0].c.count_documents({}, session=session) == 2
            two[1].c.insert_one({"_id": 9})
            assert two[1].c.find_one({"_id": 9}, session=session) is None
        session.start_transaction()
        two[0].c.insert_one({"_id": 3}, session=session)
        message = fails(lambda: two[1].c.insert_one({"_id": 3}, session=session), 115)
        assert "several shards" in message
        with pytest.raises(PyMongoError):
            session.commit_transaction()
    assert two[0].c.find_one({"_id": 3}) is None and two[1].c.find_one({"_id": 3}) is None


def test_a_commit_is_found_by_another_router(cluster, two):
    with two[0].client.start_session() as session:
        session.start_transaction()
        reply = two[0].command("insert", "c", documents=[{"_id": 1}], session=session)
        assert reply["recoveryToken"] == {"recoveryShardId": "s0"}
        lsid, number = session.session_id, session._server_session.transaction_id
        session.commit_transaction()
    # A driver puts a session of its own into each command.
    with Wire(cluster.routers[1].port) as other:
        commit = {"commitTransaction": 1, "lsid": lsid, "txnNumber": Int64(number), "autocommit": False}
        # Without the token it may have been committed: a driver must not run it again.
        reply_without = other.command("admin", commit)
        assert reply_without["code"] == 50940 and "errorLabels" not in reply_without
        assert other.command("admin", {**commit, "recoveryToken": reply["recoveryToken"]})["ok"] == 1.0


def test_a_commit_at_another_router_ends_what_is_open(cluster, two):
    with two[0].client.start_session() as session, Wire(cluster.routers[1].port) as other:
        session.start_transaction()
        reply = two[0].command("insert", "c", documents=[{"_id": 2}], session=session)
        commit = {
            "commitTransaction": 1, "lsid": session.session_id, "txnNumber": Int64(session._server_session.transaction_id),
            "autocommit": False, "recoveryToken": reply["recoveryToken"],
        }
        refused = other.command("admin", commit)
        assert refused["code"] == 251 and refused["errorLabels"] == ["TransientTransactionError"], refused
        assert two[0].c.find_one({"_id": 2}) is None
        fails(session.commit_transaction, 251)


def test_change_streams(two):
    with two[0].watch() as stream:
        two[0].c.insert_one({"_id": 1})
        assert next(stream)["documentKey"] == {"_id": 1}
        token = stream.resume_token
    two[0].c.insert_one({"_id": 2})
    with two[0].c.watch(resume_after=token) as stream:
        assert next(stream)["documentKey"] == {"_id": 2}
        assert stream.try_next() is None
    with two[0].client.watch() as stream:
        for at, db in enumerate(two):
            db.c.insert_one({"_id": f"of {at}"})
        assert [next(stream)["documentKey"] for _ in two] == [{"_id": "of 0"}, {"_id": "of 1"}]


def test_tailable_cursors(two):
    two[0].create_collection("capped", capped=True, size=100_000)
    two[0].capped.insert_one({"_id": 0})
    cursor = two[0].capped.find(cursor_type=pymongo.CursorType.TAILABLE_AWAIT).max_await_time_ms(PATIENCE_MS)
    assert next(cursor)["_id"] == 0
    writer = threading.Timer(0.2, lambda: two[0].capped.insert_one({"_id": 1}))
    writer.start()
    began = time.monotonic()
    assert next(cursor)["_id"] == 1
    assert time.monotonic() - began < PATIENCE_MS / 1000
    writer.join()


def test_shards_are_listed(cluster, client):
    shards = client.admin.command("listShards")["shards"]
    assert {shard["_id"]: shard["host"] for shard in shards} == {f"s{at}": cluster.shards[at].connection_string for at in (0, 1)}
    found = client.admin.command("getShardMap")
    assert found["map"] == {"config": cluster.config.connection_string, "s0": cluster.shards[0].connection_string, "s1": cluster.shards[1].connection_string}
    assert set(found["hosts"].values()) == {"config", "s0", "s1"}
    sets = client.admin.command("connPoolStats")["replicaSets"]
    assert {"cfg", "s0", "s1"} <= set(sets) and sets["s0"]["hosts"][0]["ismaster"]
    assert client.admin.command("flushRouterConfig")["flushed"]


def test_adding_shards_again(cluster, client):
    again = client.admin.command("addShard", cluster.shards[0].connection_string)
    assert again["shardAdded"] == "s0"
    fails(lambda: client.admin.command("addShard", cluster.config.connection_string), 96)
    fails(lambda: client.admin.command("addShard", cluster.shards[0].connection_string, name="another"), 20)
    with ReplicaSet(1, name="other", role="shardsvr") as members:
        with members.client() as direct:
            direct.d0.c.insert_one({})
        client.d0.c.insert_one({})
        message = fails(lambda: client.admin.command("addShard", members.connection_string), 96)
        assert "d0" in message
        with members.client() as direct:
            direct.drop_database("d0")
            direct.fresh.c.insert_one({"_id": 5})
        assert client.admin.command("addShard", members.connection_string, name="third")["shardAdded"] == "third"
        assert client.fresh.c.find_one() == {"_id": 5}
        assert client.config.databases.find_one({"_id": "fresh"})["primary"] == "third"
        # As it cannot be removed again, the tests behind this one keep away from it.
        client.config.shards.delete_one({"_id": "third"})
        client.config.databases.delete_many({"primary": "third"})
        client.admin.command("flushRouterConfig")
        for at in range(len(cluster.routers)):
            with cluster.client(at) as router:
                assert len(router.admin.command("listShards")["shards"]) == 2


def test_operations_of_shards(two):
    listed = two[0].client.admin.command("currentOp")["inprog"]
    assert {op["shard"] for op in listed} == {"s0", "s1"}
    assert all(op["opid"].startswith(op["shard"] + ":") for op in listed if "opid" in op)
    two[0].c.insert_many([{"_id": n} for n in range(10)])
    two[0].client.admin.command("killOp", 1, op="s0:123456")
    fails(lambda: two[0].client.admin.command("killOp", 1, op="s0"), 2)
    assert two[0].client.admin.aggregate([{"$currentOp": {}}]).alive is not None


def test_status(client):
    status = client.admin.command("serverStatus")
    assert status["process"] == "mongos" and "storageEngine" not in status and "repl" not in status
    assert status["connections"]["current"] >= 1 and status["opcounters"]["command"] >= 1
    assert status["metrics"]["commands"]["serverStatus"]["total"] >= 1
    assert status["mem"]["bits"] == 64 and status["mem"]["supported"] is True
    assert 1 <= status["mem"]["resident"] <= status["mem"]["virtual"]
    assert status["extra_info"]["user_time_us"] > 0
    assert status["transactions"]["totalStarted"] >= 0
    left_out = client.admin.command("serverStatus", transactions=0)
    assert "transactions" not in left_out
    assert status["sharding"]["configsvrConnectionString"].startswith("cfg/")
    assert client.admin.command("getCmdLineOpts")["parsed"]["sharding"]["configDB"].startswith("cfg/")
    assert client.admin.command("buildInfo")["ok"] == 1.0
    assert "aggregate" in client.admin.command("listCommands")["commands"]
    assert client.admin.command("getParameter", 1, cursorTimeoutMillis=1)["cursorTimeoutMillis"] == 600_000
    fails(lambda: client.test.command("profile", 1), 2)
    assert client.test.command("profile", 0)["was"] == 0
    fails(lambda: client.admin.command("replSetGetStatus"), 59)


def test_connections_are_in_pools(two):
    """One for each core, with the hosts that it has connections to."""
    two[0].c.insert_one({})
    stats = two[0].client.admin.command("connPoolStats")
    pools, hosts = stats["pools"], stats["hosts"]
    assert pools and set(pools) <= {f"NetworkInterfaceTL-TaskExecutorPool-{core}" for core in range(2)}
    names = ["InUse", "Available", "Created", "Refreshing"]
    lower = lambda name: name[0].lower() + name[1:]
    for pool in pools.values():
        assert list(pool)[:4] == [f"pool{name}" for name in names]
        of_hosts = [counts for host, counts in pool.items() if ":" in host]
        assert of_hosts and all(list(counts) == [lower(name) for name in names] for counts in of_hosts)
        assert all(pool[f"pool{name}"] == sum(counts[lower(name)] for counts in of_hosts) for name in names)
    for name in names:
        assert stats[f"total{name}"] == sum(pool[f"pool{name}"] for pool in pools.values())
        for host, counts in hosts.items():
            assert counts[lower(name)] == sum(pool.get(host, {}).get(lower(name), 0) for pool in pools.values())
    assert stats["totalCreated"] >= 2


def test_times_are_limited(two):
    two[0].c.insert_many([{"_id": n} for n in range(10)])
    two[0].client.admin.command("configureFailPoint", "maxTimeAlwaysTimeOut", mode="alwaysOn")
    try:
        fails(lambda: two[0].command("find", "c", maxTimeMS=1000), 50)
    finally:
        two[0].client.admin.command("configureFailPoint", "maxTimeAlwaysTimeOut", mode="off")


def test_causal_sessions_cross_shards(two):
    with two[0].client.start_session(causal_consistency=True) as session:
        two[0].c.insert_one({"_id": 1}, session=session)
        assert session.operation_time is not None
        assert two[1].c.find_one({"_id": 1}, session=session) is None
        assert two[0].c.find_one({"_id": 1}, session=session) == {"_id": 1}


def test_a_shards_primary_changes():
    with Cluster(shards=1, members=3, settings={"electionTimeoutMillis": 4000}) as running:
        with running.client(retryWrites=True) as client:
            client.d.c.insert_one({"_id": 0})
            before = running.shards[0].primary()
            before.kill()
            client.d.c.insert_one({"_id": 1})
            assert client.d.c.count_documents({}) == 2
            before.start()
            # Secondaries answer who asks them.
            nearest = client.d.c.with_options(read_preference=pymongo.ReadPreference.SECONDARY)
            wait_until(lambda: nearest.count_documents({}) == 2)


def test_a_router_sends_its_clients_away(cluster, two):
    router = Router(cluster.config.connection_string)
    with router:
        with router.client() as client:
            wait_until(lambda: can(lambda: client.d0.c.insert_one({})))
            router.process.send_signal(signal.SIGTERM)
            assert router.process.wait(PATIENCE_MS / 1000) == 0
            with pytest.raises(AutoReconnect):
                pymongo.MongoClient(router.uri, serverSelectionTimeoutMS=200).admin.command("ping")


def can(call):
    try:
        call()
    except OperationFailure as error:
        assert error.code in NOT_READY, error.details
        return False
    return True


def test_known_placement_needs_no_config_servers():
    with Cluster(shards=1) as running:
        with running.client() as client:
            client.d.c.insert_one({"_id": 0, "at": datetime.datetime(2020, 1, 1)})
            running.config.nodes[0].suspend()
            try:
                client.d.c.insert_one({"_id": 1})
                assert client.d.c.bulk_write([InsertOne({"_id": 2}), UpdateOne({"_id": 1}, {"$set": {"a": 1}})]).modified_count == 1
                assert client.d.c.count_documents({}) == 3
            finally:
                running.config.nodes[0].resume()
            client.other.c.insert_one({})
