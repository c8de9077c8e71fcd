"""What a node keeps from its clients, and what it does about those that speak something else or
take too much."""

import os
import re
import socket

import pymongo
import pytest
from pymongo.errors import OperationFailure

from pinion_node import BINARY, PATIENCE_SECS, Node, ReplicaSet, run, wait_until


def code_of(function):
    """The code that the server refuses with."""
    with pytest.raises(OperationFailure) as refused:
        function()
    return refused.value.code


def test_a_member_guards_what_its_set_rests_on():
    replica_set = ReplicaSet(members=1)
    with replica_set:
        client = replica_set.client()
        local, admin = client.local, client.admin
        client.test.x.insert_one({})
        entries = local["oplog.rs"].count_documents({"ns": "test.x"})
        local.zz.insert_one({})
        assert code_of(lambda: local["oplog.rs"].create_index("ns")) == 67
        assert code_of(lambda: local.command("drop", "oplog.rs")) == 5255000
        assert code_of(lambda: admin.command("renameCollection", "local.oplog.rs", to="local.o2")) == 20
        assert code_of(lambda: admin.command("renameCollection", "local.zz", to="local.oplog.rs", dropTarget=True)) == 20
        assert code_of(lambda: local.command("dropDatabase")) == 20
        assert code_of(lambda: local["replset.election"].delete_many({})) == 73
        assert code_of(lambda: admin["system.version"].delete_many({})) == 40670
        assert code_of(lambda: client.test["system.profile"].insert_one({})) == 73
        # A member's own collections beside that are the operator's.
        local.zz.create_index("a")
        local.zz.drop()
        assert local["oplog.rs"].count_documents({"ns": "test.x"}) == entries
        (node,) = replica_set.nodes
        assert node.stop() == 0
        node.start()
        replica_set.primary()
        client = replica_set.client()
        assert client.test.x.count_documents({}) == 1


def answer(node, request):
    """What the node says to some bytes before it closes."""
    with socket.create_connection(("127.0.0.1", node.port), timeout=PATIENCE_SECS) as connection:
        connection.sendall(request)
        said = b""
        while part := connection.recv(4096):
            said += part
    return said


def test_other_protocols_are_distinguished():
    with Node() as node:
        said = answer(node, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        head, text = said.split(b"\r\n\r\n", 1)
        assert head.startswith(b"HTTP/1.0 200 OK\r\n") and f"Content-Length: {len(text)}".encode() in head
        assert text == b"It looks like you are trying to access MongoDB over HTTP on the native driver port.\r\n"
        hello = bytes([0x16, 3, 1, 2, 0, 1, 0, 1, 0xFC, 3, 3]) + os.urandom(506)
        assert answer(node, hello) == b""

        def driver_knows_why():
            """It says so once it has tried to connect; before that it says that it has found no
            server yet."""
            client = pymongo.MongoClient(node.uri, tls=True, tlsAllowInvalidCertificates=True, serverSelectionTimeoutMS=1000)
            with client, pytest.raises(pymongo.errors.ServerSelectionTimeoutError) as caught:
                client.admin.command("ping")
            return re.search("(?i)ssl|tls|eof|reset|closed", str(caught.value))

        wait_until(driver_knows_why)
        assert node.client().admin.command("ping")["ok"] == 1
        errors = [message["attr"]["error"] for message in node.messages() if message["id"] == 22988]
        assert any("SSL handshake received but server is started without SSL support" in error for error in errors)
        assert any("Client sent an HTTP request" in error for error in errors)


LIMIT = 256


@pytest.fixture
def limited(tmp_path):
    """The server under a limit of open files."""
    script = tmp_path / "limited"
    script.write_text(f'#!/bin/sh\nulimit -n {LIMIT}\nexec "{os.path.abspath(BINARY)}" "$@"\n')
    script.chmod(0o755)
    return str(script)


def test_clients_leave_descriptors_to_the_node(limited):
    with Node("--cpus", "2", "--maxConns", "1000", binary=limited) as node:
        client = node.client()
        status = client.admin.command("serverStatus")["connections"]
        most = status["current"] + status["available"]
        assert 0 < most <= LIMIT * 4 // 5
        assert [message for message in node.messages() if message["id"] == 22941], "the option is cut, and the log says so"
        client.test.c.insert_many([{"_id": n} for n in range(1000)])
        taken = []
        try:
            for _ in range(LIMIT + 50):
                taken.append(socket.create_connection(("127.0.0.1", node.port), timeout=PATIENCE_SECS))
            # Files are opened by each of these.
            for n in range(3):
                client.test.c.insert_one({"after": n})
                assert client.admin.command("fsync")["ok"] == 1
            # Accepting rests where no descriptor is free, so the last are turned away a little
            # later.
            wait_until(lambda: client.admin.command("serverStatus")["connections"]["rejected"] >= LIMIT + 50 - most)
        finally:
            for connection in taken:
                connection.close()
        wait_until(lambda: client.admin.command("serverStatus")["connections"]["available"] > most // 2)
        assert client.test.c.count_documents({}) == 1003
        assert node.stop() == 0


@pytest.mark.parametrize("files,named", [
    ({"WiredTiger": "", "WiredTiger.wt": "", "storage.bson": "", "mongod.lock": "1"}, "WiredTiger"),
    ({"mongod.lock": "77\n"}, "mongod.lock"),
    ({"readme.txt": "mine"}, "readme.txt"),
])
def test_a_directory_of_others_is_refused_by_name(tmp_path, files, named):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    status, output = run("--dbpath", str(tmp_path), "--port", "0")
    assert status == 100 and len(output.splitlines()) == 1 and named in output, output
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(files)


def test_what_lies_in_directories_anyway_is_no_obstacle(tmp_path):
    data = tmp_path / "data"
    (data / "lost+found").mkdir(parents=True)
    (data / ".hidden").write_text("")
    log = data / "node.log"
    log.write_text("of a start before\n")
    options = ("--logpath", str(log), "--logappend", "--pidfilepath", str(data / "node.pid"))
    with Node(*options, directory=tmp_path, log_file=log) as node:
        assert node.client().admin.command("ping")["ok"] == 1


def test_configurations_that_no_member_here_can_have_are_refused():
    with Node("--replSet", "rs0") as node:
        client = node.client(directConnection=True)
        member = {"_id": 0, "host": f"127.0.0.1:{node.port}"}
        config = {"_id": "rs0", "members": [member]}
        initiate = client.admin.command
        assert code_of(lambda: initiate("replSetInitiate", {**config, "configsvr": True})) == 93
        bare = {"_id": 1, "host": "127.0.0.1:1", "priority": 0, "buildIndexes": False}
        assert code_of(lambda: initiate("replSetInitiate", {**config, "members": [member, bare]})) == 93
        assert initiate("replSetInitiate", config)["ok"] == 1
