"""What members of a set can be and what an operator does with them: arbiters, delayed and hidden
members, tags, maintenance, settings that are applied, idle and lagging primaries."""

import shutil
import threading
import time

import pymongo
import pytest
from pinion_node import STEADY, Node, ReplicaSet, wait_until
from pymongo import ReadPreference, WriteConcern
from pymongo.errors import NotPrimaryError, OperationFailure
from pymongo.read_preferences import Nearest, Secondary

# What an idle primary writes comes fast, and lag is noticed soon.
HASTY = ["--setParameter", "periodicNoopIntervalSecs=1"]


def fails(database, command, code):
    with pytest.raises((OperationFailure, NotPrimaryError)) as caught:
        database.command(command)
    assert caught.value.details["code"] == code, caught.value.details
    return caught.value.details["errmsg"]


def status(members, node):
    """What the primary reports of a member."""
    with members.member(members.primary()) as client:
        found = client.admin.command("replSetGetStatus")["members"]
    return next(member for member in found if member["name"] == f"127.0.0.1:{node.port}")


@pytest.fixture(scope="module")
def three():
    with ReplicaSet(3, STEADY, options=HASTY) as members:
        yield members


def newest(client):
    return next(client.local["oplog.rs"].find().sort("$natural", -1).limit(1))


def test_an_idle_primary_writes_what_changes_nothing(three):
    with three.member(three.primary()) as client:
        client.test.noops.insert_one({"_id": 1})
        wait_until(lambda: newest(client)["o"] == {"msg": "periodic noop"})
        first = newest(client)
        assert first["op"] == "n" and first["ns"] == "" and first["v"] == 2
        wait_until(lambda: newest(client)["ts"] > first["ts"])
        # The others have it, and it is committed.
        def committed():
            return client.admin.command("replSetGetStatus")["optimes"]["lastCommittedOpTime"]["ts"]
        wait_until(lambda: committed() > first["ts"])
        client.admin.command("setParameter", 1, writePeriodicNoops=False)

        def has_stopped():
            last = newest(client)["ts"]
            time.sleep(2.5)
            return newest(client)["ts"] == last
        wait_until(has_stopped)
        last = newest(client)["ts"]
        client.admin.command("setParameter", 1, writePeriodicNoops=True)
        wait_until(lambda: newest(client)["ts"] > last)
        fails(client.admin, {"setParameter": 1, "periodicNoopIntervalSecs": 2}, 20)
        assert client.admin.command("getParameter", 1, periodicNoopIntervalSecs=1)["periodicNoopIntervalSecs"] == 1


def test_settings_take_effect_where_they_are_applied(three):
    secondary = three.secondaries()[0]
    with three.client() as client, three.member(secondary) as member:
        def reported(name):
            (found,) = member.admin.command("getClusterParameter", name)["clusterParameters"]
            return found

        client.admin.command({"setClusterParameter": {"defaultMaxTimeMS": {"readOperations": 500_000}}})
        wait_until(lambda: reported("defaultMaxTimeMS")["readOperations"] == 500_000)
        assert reported("defaultMaxTimeMS") == client.admin.command("getClusterParameter", "defaultMaxTimeMS")["clusterParameters"][0]
        client.admin.command({"setClusterParameter": {"changeStreams": {"expireAfterSeconds": 7}}})
        wait_until(lambda: reported("changeStreams")["expireAfterSeconds"] == 7)
        assert reported("defaultMaxTimeMS")["readOperations"] == 500_000
        client.admin.command({"setClusterParameter": {"defaultMaxTimeMS": {"readOperations": 0}}})
        wait_until(lambda: reported("defaultMaxTimeMS")["readOperations"] == 0)

        client.test.settled.insert_one({"_id": 1, "a": 1})
        query = {"find": "settled", "filter": {"a": 1}, "$db": "test"}
        rejected = client.admin.command({"setQuerySettings": query, "settings": {"reject": True}})
        find = {"find": "settled", "filter": {"a": 1}}
        reading = member.get_database("test", read_preference=ReadPreference.SECONDARY_PREFERRED)

        def is_rejected():
            try:
                reading.command(find)
                return False
            except OperationFailure:
                return True

        wait_until(is_rejected)
        client.admin.command({"removeQuerySettings": rejected["queryShapeHash"]})
        wait_until(lambda: not is_rejected())

        client.admin.command("setDefaultRWConcern", defaultReadConcern={"level": "majority"})
        in_memory = {"getDefaultRWConcern": 1, "inMemory": True}
        wait_until(lambda: member.admin.command(in_memory).get("defaultReadConcern") == {"level": "majority"})
        client.admin.command("setDefaultRWConcern", defaultReadConcern={})
        wait_until(lambda: member.admin.command(in_memory)["defaultReadConcern"] == {"level": "local"})

        # How a database is profiled goes with it, everywhere.
        client.profiled.c.insert_one({"_id": 1})
        wait_until(lambda: "profiled" in member.list_database_names())
        member.profiled.command("profile", 2)
        client.drop_database("profiled")
        wait_until(lambda: member.profiled.command("profile", -1)["was"] == 0)


def test_what_a_member_reports_of_its_replication(three):
    primary, secondary = three.primary(), three.secondaries()[0]
    with three.member(primary) as client, three.member(secondary) as member:
        client.test.reported.with_options(write_concern=WriteConcern(3)).insert_many({"_id": i} for i in range(100))
        # They are acknowledged when they are logged.
        wait_until(lambda: member.admin.command("serverStatus")["metrics"]["repl"]["apply"]["ops"] >= 100)
        of_primary, of_member = client.admin.command("serverStatus", oplog=1), member.admin.command("serverStatus", oplog=1)
        assert of_member["metrics"]["repl"]["network"]["ops"] >= 100
        assert of_member["metrics"]["repl"]["network"]["getmores"]["num"] > 0
        assert of_member["metrics"]["repl"]["initialSync"] == {"completed": 1, "failedAttempts": 0, "failures": 0}
        assert of_member["metrics"]["repl"]["syncSource"]["numSelections"] >= 1
        assert of_primary["metrics"]["repl"]["initialSync"]["completed"] == 0
        for found in (of_primary, of_member):
            assert found["oplog"]["earliestOptime"] < found["oplog"]["latestOptime"] and found["repl"]["rbid"] == 1
        assert "oplog" not in client.admin.command("serverStatus")
        flow = of_primary["flowControl"]
        assert flow["enabled"] and not flow["isLagged"] and flow["targetRateLimit"] == 1_000_000_000
        assert set(flow) == {
            "enabled", "targetRateLimit", "timeAcquiringMicros", "locksPerKiloOp", "sustainerRate", "isLagged", "isLaggedCount",
            "isLaggedTimeMicros",
        }
    with Node() as alone:
        found = alone.client().admin.command("serverStatus", oplog=1)
        assert "flowControl" not in found and "repl" not in found and "oplog" not in found
        assert found["metrics"]["repl"]["apply"]["ops"] == 0


def test_writes_of_a_primary_are_slowed_down_while_the_others_lag():
    options = [*HASTY, "--setParameter", "flowControlTargetLagSeconds=2", "--setParameter", "flowControlSamplePeriod=100"]
    # No member takes the primary for gone while the others stand still.
    with ReplicaSet(3, {"electionTimeoutMillis": 600_000}, options=options) as members:
        primary, *others = members.nodes
        with members.member(primary, w=1) as client:
            collection = client.test.flow

            def flow():
                return client.admin.command("serverStatus")["flowControl"]

            def insert(secs):
                end, count = time.monotonic() + secs, 0
                while time.monotonic() < end:
                    collection.insert_one({"n": count})
                    count += 1
                return count / secs

            insert(2)
            wait_until(lambda: not flow()["isLagged"])
            lagged_before = flow()["isLaggedCount"]
            for node in others:
                node.suspend()
            writer_ends = threading.Event()

            def write():
                with members.member(primary, w=1) as other:
                    while not writer_ends.is_set():
                        other.test.flow.insert_many([{"n": -1}] * 1, ordered=True)

            threads = [threading.Thread(target=write, daemon=True) for _ in range(4)]
            for thread in threads:
                thread.start()
            try:
                wait_until(lambda: flow()["isLagged"] and flow()["targetRateLimit"] == 100)
                time.sleep(1.5)
                assert insert(2) < 110
                found = flow()
                assert found["isLaggedCount"] == lagged_before + 1 and found["timeAcquiringMicros"] > 0 and found["locksPerKiloOp"] > 0

                def waits():
                    operations = client.admin.command("currentOp")["inprog"]
                    return {(op["op"], op["ns"]) for op in operations if op.get("waitingForFlowControl")}

                wait_until(lambda: ("insert", "test.flow") in waits())

                def proceed():
                    with members.member(primary, w=1) as other:
                        for at in range(400):
                            other.test.flow.find_one()
                            other.local.own.insert_one({"_id": at})

                # Reads and what is not replicated continue: of tickets they would have to wait for
                # nearly each.
                running = threading.Thread(target=proceed)
                running.start()
                while running.is_alive():
                    assert not waits() & {("query", "test.flow"), ("insert", "local.own")}
                assert client.local.own.count_documents({}) == 400
                # A write that waits can be interrupted.
                with pytest.raises(pymongo.errors.PyMongoError):
                    for _ in range(1000):
                        client.test.command({"insert": "flow", "documents": [{}], "maxTimeMS": 1})
                # Off is off at once.
                client.admin.command("setParameter", 1, enableFlowControl=False)
                wait_until(lambda: flow()["targetRateLimit"] == 1_000_000_000)
                wait_until(lambda: not waits())
                client.admin.command("setParameter", 1, enableFlowControl=True)
                wait_until(lambda: flow()["isLagged"])
            finally:
                writer_ends.set()
                for node in others:
                    node.resume()
                for thread in threads:
                    thread.join()
            wait_until(lambda: not flow()["isLagged"])
            wait_until(lambda: flow()["targetRateLimit"] > 10_000)
            assert flow()["isLaggedTimeMicros"] > 0
        members.wait_alike()


def test_parameters_of_replication(three):
    with three.member(three.primary()) as client:
        everything = client.admin.command("getParameter", "*")
        for name in ("numInitialSyncAttempts", "maxSyncSourceLagSecs", "flowControlDecayConstant", "writePeriodicNoops"):
            assert name in everything
        details = client.admin.command("getParameter", {"showDetails": True}, maxSyncSourceLagSecs=1)["maxSyncSourceLagSecs"]
        assert details == {"value": 30, "settableAtRuntime": False, "settableAtStartup": True}
        assert client.admin.command("setParameter", 1, flowControlDecayConstant=0.25)["was"] == 0.5
        message = fails(client.admin, {"setParameter": 1, "flowControlDecayConstant": 1.5}, 2)
        assert message == "Invalid value for parameter flowControlDecayConstant: 1.5 is not less than 1"
        client.admin.command("setParameter", 1, flowControlDecayConstant=0.5)
    with Node("--replSet", "rs0", "--setParameter", "flowControlThresholdLagPercentage=0.75",
              "--setParameter", "initialSyncSourceReadPreference=secondaryPreferred") as node:
        client = node.client(directConnection=True)
        found = client.admin.command("getParameter", 1, flowControlThresholdLagPercentage=1, initialSyncSourceReadPreference=1)
        assert found["flowControlThresholdLagPercentage"] == 0.75
        assert found["initialSyncSourceReadPreference"] == "secondaryPreferred"


def test_a_delayed_and_a_hidden_member():
    with ReplicaSet(3, STEADY) as members:
        primary, hidden, delayed = members.nodes

        def change(config):
            config["members"][1].update(priority=0, hidden=True)
            config["members"][2].update(priority=0, hidden=True, secondaryDelaySecs=3600)

        members.reconfigure(change)
        with members.client() as client, members.member(hidden) as of_hidden, members.member(delayed) as of_delayed:
            def delay(secs):
                members.reconfigure(lambda config: config["members"][2].update(secondaryDelaySecs=secs))
                wait_until(lambda: of_delayed.admin.command("hello").get("secondaryDelaySecs") == secs)

            wait_until(lambda: of_delayed.admin.command("hello").get("secondaryDelaySecs") == 3600)
            hello = client.admin.command("hello")
            assert hello["hosts"] == [f"127.0.0.1:{primary.port}"] and "passives" not in hello
            wait_until(lambda: of_hidden.admin.command("hello").get("hidden") is True)
            client.test.delayed.with_options(write_concern=WriteConcern("majority")).insert_one({"_id": 1})
            reading = of_delayed.get_database("test", read_preference=ReadPreference.SECONDARY_PREFERRED)
            of_hidden = of_hidden.get_database("test", read_preference=ReadPreference.SECONDARY_PREFERRED)
            wait_until(of_hidden.delayed.find_one)
            assert reading.delayed.find_one() is None
            with pytest.raises(pymongo.errors.WriteConcernError):
                client.test.delayed.with_options(write_concern=WriteConcern(3, wtimeout=500)).insert_one({"_id": 2})
            delay(4)
            began = time.monotonic()
            client.test.delayed.insert_one({"_id": 3})
            wait_until(lambda: reading.delayed.count_documents({}) == 3)
            assert time.monotonic() - began > 3
            # What waits is taken over at once when there is no delay any more.
            delay(3600)
            client.test.delayed.insert_one({"_id": 4})
            with pytest.raises(pymongo.errors.WriteConcernError):
                client.test.delayed.with_options(write_concern=WriteConcern(3, wtimeout=1500)).insert_one({"_id": 5})
            assert reading.delayed.count_documents({}) == 3
            members.reconfigure(lambda config: config["members"][2].update(secondaryDelaySecs=0))
            client.test.delayed.with_options(write_concern=WriteConcern(3, wtimeout=120_000)).insert_one({"_id": 6})
            wait_until(lambda: reading.delayed.count_documents({}) == 6)
        members.wait_alike()


def test_tags_choose_members_to_read_and_to_wait_for():
    with ReplicaSet(3, STEADY) as members:
        def change(config):
            config["members"][0]["tags"] = {"dc": "east", "use": "any"}
            config["members"][1]["tags"] = {"dc": "west", "use": "reports"}
            config["members"][2]["tags"] = {"dc": "south", "use": "any"}
            config["settings"]["getLastErrorModes"] = {"twoSites": {"dc": 2}, "allSites": {"dc": 3}, "both": {"dc": 2, "use": 2}}

        members.reconfigure(change)
        with members.client() as client:
            collection = client.test.tagged
            for mode in ("twoSites", "allSites", "both"):
                collection.with_options(write_concern=WriteConcern(mode, wtimeout=120_000)).insert_one({"mode": mode})
            with pytest.raises(pymongo.errors.WriteConcernError) as caught:
                collection.with_options(write_concern=WriteConcern("elsewhere")).insert_one({})
            assert caught.value.code == 79
            reports = collection.with_options(read_preference=Secondary(tag_sets=[{"use": "reports"}]))
            # What is acknowledged need not be applied by then: it may find nothing.
            cursor = reports.find()
            next(cursor, None)
            assert cursor.address[1] == members.nodes[1].port
            nearest = collection.with_options(read_preference=Nearest(tag_sets=[{"dc": "nowhere"}, {"dc": "south"}]))
            cursor = nearest.find()
            next(cursor, None)
            assert cursor.address[1] == members.nodes[2].port
            members.nodes[2].suspend()
            try:
                with pytest.raises(pymongo.errors.WriteConcernError) as caught:
                    collection.with_options(write_concern=WriteConcern("allSites", wtimeout=500)).insert_one({})
                assert caught.value.code == 64
                collection.with_options(write_concern=WriteConcern("twoSites", wtimeout=120_000)).insert_one({})
            finally:
                members.nodes[2].resume()


def test_an_arbiter():
    arbiter = Node("--replSet", "rs0", "--cpus", "2")
    with ReplicaSet(2, STEADY) as members:
        arbiter.start()
        try:
            host = f"127.0.0.1:{arbiter.port}"

            def add(config):
                config["members"].append({"_id": 2, "host": host, "arbiterOnly": True, "priority": 0})

            # Commands that name no write concern would wait for fewer members all of a sudden.
            with pytest.raises(OperationFailure) as caught:
                members.reconfigure(add)
            assert caught.value.code == 103 and "implicit default write concern" in str(caught.value)
            with members.client() as client:
                client.admin.command("setDefaultRWConcern", defaultWriteConcern={"w": 1})
            members.reconfigure(add)
            with members.member(arbiter) as client:
                wait_until(lambda: client.admin.command("hello").get("arbiterOnly"))
                wait_until(lambda: client.admin.command("replSetGetStatus")["myState"] == 7)
                fails(client.test, {"find": "c"}, 13436)
                fails(client.test, {"insert": "c", "documents": [{}]}, 10107)
            with members.client() as client:
                assert client.admin.command("hello")["arbiters"] == [host]
                client.test.c.with_options(write_concern=WriteConcern(2)).insert_one({"_id": 1})
                with pytest.raises(pymongo.errors.WriteConcernError) as caught:
                    client.test.c.with_options(write_concern=WriteConcern(3, wtimeout=500)).insert_one({"_id": 2})
                assert caught.value.code == 100
                # A second arbiter needs a parameter.
                with pytest.raises(OperationFailure) as caught:
                    members.reconfigure(lambda config: config["members"].append(
                        {"_id": 3, "host": "127.0.0.1:1", "arbiterOnly": True, "priority": 0}))
                assert caught.value.code == 93 and "allowMultipleArbiters" in str(caught.value)
            # It votes: the one member that is left is elected by the two of them.
            members.nodes[0].kill()
            wait_until(lambda: members.steps_up(members.nodes[1]))
            with members.client() as client:
                client.test.c.with_options(write_concern=WriteConcern(1)).insert_one({"_id": 3})
            members.nodes[0].start()
            wait_until(lambda: members.state(members.nodes[0]) in (1, 2))
            members.wait_alike()
        finally:
            arbiter.__exit__()


def test_maintenance_and_freezing(three):
    secondary = three.secondaries()[0]
    with three.member(secondary) as member, three.member(three.primary()) as primary:
        fails(primary.admin, {"replSetMaintenance": True}, 95)
        member.admin.command("replSetMaintenance", True)
        member.admin.command("replSetMaintenance", True)
        assert member.admin.command("replSetGetStatus")["myState"] == 3
        hello = member.admin.command("hello")
        assert not hello["secondary"] and not hello["isWritablePrimary"]
        fails(member.get_database("test", read_preference=ReadPreference.SECONDARY_PREFERRED), {"find": "c"}, 13436)
        wait_until(lambda: status(three, secondary)["stateStr"] == "RECOVERING")
        # It continues to replicate.
        primary.test.kept.with_options(write_concern=WriteConcern(3, wtimeout=120_000)).insert_one({})
        member.admin.command("replSetMaintenance", False)
        assert member.admin.command("replSetGetStatus")["myState"] == 3
        member.admin.command("replSetMaintenance", False)
        assert member.admin.command("replSetGetStatus")["myState"] == 2
        fails(member.admin, {"replSetMaintenance": False}, 96)
        fails(primary.admin, {"replSetFreeze": 10}, 95)
        assert "info" not in member.admin.command("replSetFreeze", 10)
        assert member.admin.command("replSetFreeze", 0)["info"] == "unfreezing"


def test_a_member_that_lost_its_data_copies_them_again():
    with ReplicaSet(3, STEADY) as members:
        with members.client(w=3) as client:
            client.test.c.insert_many({"_id": i, "text": "x" * 100} for i in range(3000))
        lost = members.nodes[2]
        lost.stop()
        shutil.rmtree(lost.directory / "data")
        with members.client(w="majority") as client:
            client.test.c.update_many({"_id": {"$lt": 100}}, {"$set": {"changed": True}})
        lost.start()
        wait_until(lambda: members.state(lost) == 2)
        members.wait_alike()
        with members.member(lost) as client:
            assert client.admin.command("serverStatus")["metrics"]["repl"]["initialSync"]["completed"] == 1


def test_a_member_syncs_from_the_source_it_is_given(three):
    first, second = three.secondaries()
    # No member is asked to sync from one that syncs from itself.
    with three.member(second) as member:
        primary = f"127.0.0.1:{three.primary().port}"
        member.admin.command("replSetSyncFrom", primary)
        wait_until(lambda: member.admin.command("replSetGetStatus")["syncSourceHost"] == primary)
    with three.member(first) as member:
        answer = member.admin.command("replSetSyncFrom", f"127.0.0.1:{second.port}")
        assert answer["syncFromRequested"] == f"127.0.0.1:{second.port}"
        wait_until(lambda: member.admin.command("replSetGetStatus")["syncSourceHost"] == f"127.0.0.1:{second.port}")
        fails(member.admin, {"replSetSyncFrom": f"127.0.0.1:{first.port}"}, 72)
        fails(member.admin, {"replSetSyncFrom": "127.0.0.1:1"}, 74)
    with three.member(three.primary()) as client:
        client.test.chained.with_options(write_concern=WriteConcern(3, wtimeout=120_000)).insert_one({})
