"""Parameters and options that change what a node does: each with its effect, from the start and at
run time."""

import time

import pymongo
import pytest
from pinion_log import lines
from pinion_node import Node


def set_parameter(client, **parameters):
    return client.admin.command("setParameter", 1, **parameters)


def test_log_level_shows_more_and_less():
    with Node() as node:
        client = node.client()

        def failing_command_is_logged():
            before = len(lines(node, msg="Command failed"))
            with pytest.raises(pymongo.errors.OperationFailure):
                client.test.command("dropIndexes", "nosuch", index="*")
            return len(lines(node, msg="Command failed")) > before

        assert client.admin.command("getParameter", 1, logLevel=1)["logLevel"] == 0
        assert not failing_command_is_logged()
        assert set_parameter(client, logLevel=1)["was"] == 0
        assert failing_command_is_logged()
        assert client.admin.command("getParameter", 1, logLevel=1)["logLevel"] == 1
        assert set_parameter(client, logLevel=0)["was"] == 1
        assert not failing_command_is_logged()


def test_verbose_is_the_log_level_of_the_start():
    for options in (["-v"], ["--setParameter", "logLevel=1"]):
        with Node(*options) as node:
            client = node.client()
            assert client.admin.command("getParameter", 1, logLevel=1)["logLevel"] == 1
            with pytest.raises(pymongo.errors.OperationFailure):
                client.test.command("dropIndexes", "nosuch", index="*")
            assert lines(node, msg="Command failed")


def test_quiet_leaves_connections_out_of_the_log():
    with Node() as node:
        client = node.client()
        client.admin.command("ping")
        assert lines(node, msg="Connection accepted")
        set_parameter(client, quiet=True)
        before = len(lines(node, msg="Connection accepted"))
        with node.client() as other:
            other.admin.command("ping")
        assert len(lines(node, msg="Connection accepted")) == before
    for options in (["--quiet"], ["--setParameter", "quiet=true"]):
        with Node(*options) as node:
            client = node.client()
            assert client.admin.command("getParameter", 1, quiet=1)["quiet"] is True
            assert not lines(node, msg="Connection accepted")


def test_no_table_scan():
    with Node() as node:
        client = node.client()
        collection = client.test.c
        collection.insert_many({"_id": i, "a": i, "b": i} for i in range(10))
        collection.create_index("a")
        set_parameter(client, notablescan=True)
        for refused in (lambda: list(collection.find({"b": 3})), lambda: collection.update_one({"b": 3}, {"$set": {"c": 1}}),
                        lambda: collection.count_documents({"b": 3}), lambda: collection.distinct("a", {"b": 3})):
            with pytest.raises(pymongo.errors.OperationFailure, match="notablescan") as error:
                refused()
            assert error.value.code == 291
        assert len(list(collection.find())) == 10 and collection.find_one({"a": 3})["b"] == 3 and collection.find_one({"_id": 4})["a"] == 4
        set_parameter(client, notablescan=False)
        assert collection.find_one({"b": 3})["a"] == 3


def test_slow_commands_are_logged_from_the_threshold_on():
    with Node("--slowms", "1000000") as node:
        client = node.client()
        client.test.c.insert_many({"_id": i} for i in range(1_000))
        assert not lines(node, msg="Slow query")
        assert client.admin.command("profile", 0, slowms=0)["slowms"] == 1_000_000
        client.test.c.find_one({"_id": 5})
        slow = lines(node, msg="Slow query")
        assert any(message["attr"]["command"].get("find") == "c" for message in slow)
        assert client.admin.command("profile", -1)["slowms"] == 0
        client.test.c.create_index("a")
        list(client.test.c.find({"a": {"$gte": 0}}))
        list(client.test.c.find({"b": None}).limit(7))
        reported = {message["attr"]["planSummary"]: message["attr"] for message in lines(node, msg="Slow query") if "planSummary" in message["attr"]}
        assert set(reported) >= {"IDHACK", "IXSCAN { a: 1 }", "COLLSCAN"}
        assert reported["IDHACK"]["docsExamined"] == reported["IDHACK"]["nreturned"] == 1 and reported["IDHACK"]["ns"] == "test.c"
        assert reported["COLLSCAN"]["locks"] == {"Collection": {"acquireCount": {"r": 1}}} and len(reported["COLLSCAN"]["queryHash"]) == 8
        assert reported["IXSCAN { a: 1 }"]["keysExamined"] == 0 and reported["COLLSCAN"]["nreturned"] == 7
        assert reported["COLLSCAN"]["docsExamined"] >= 7 and reported["COLLSCAN"]["reslen"] > 7 * 14


def test_waiting_for_data_is_no_time_of_a_command():
    with Node("--slowms", "4000") as node:
        client = node.client()
        database = client.test
        database.create_collection("c", capped=True, size=100_000)
        database.c.insert_one({"_id": 1})
        database.command("profile", 2, slowms=4_000)
        cursor = database.command("find", "c", tailable=True, awaitData=True)["cursor"]["id"]
        began = time.monotonic()
        assert not database.command("getMore", cursor, collection="c", maxTimeMS=6_000)["cursor"]["nextBatch"]
        assert time.monotonic() - began > 5.9
        assert not [line for line in lines(node, msg="Slow query") if "getMore" in line["attr"]["command"]]
        assert database.system.profile.find_one({"op": "getmore"})["millis"] < 4_000
        top = client.admin.command("top")["totals"]["test.c"]
        assert top["getmore"]["count"] == 1 and top["getmore"]["time"] < 4_000_000


def test_the_journal_interval_is_reported():
    with Node("--journalCommitInterval", "37") as node:
        assert node.client().admin.command("getParameter", 1, journalCommitInterval=1)["journalCommitInterval"] == 37


def test_mongod_conf_spellings(tmp_path):
    path = tmp_path / "mongod.conf"
    path.write_text(
        "systemLog:\n  destination: file\n  logAppend: true\n  timeStampFormat: iso8601-utc\n"
        f"  path: {tmp_path}/log\n"
        "storage:\n  journal:\n    enabled: true\n    commitIntervalMs: 20\n  engine: wiredTiger\n  directoryPerDB: false\n"
        "net:\n  bindIp: 127.0.0.1\n  unixDomainSocket:\n    enabled: false\n  tls:\n    mode: disabled\n"
        "processManagement:\n  timeZoneInfo: /usr/share/zoneinfo\n"
        "operationProfiling:\n  mode: off\n  slowOpThresholdMs: 250\n"
        "security:\n  authorization: disabled\n"
        "setParameter:\n  logLevel: 1\n"
    )
    with Node("--config", str(path), "--logpath", "/dev/stdout") as node:
        client = node.client()
        assert client.admin.command("profile", -1)["slowms"] == 250
        found = client.admin.command("getParameter", 1, logLevel=1, journalCommitInterval=1)
        assert (found["logLevel"], found["journalCommitInterval"]) == (1, 20)
