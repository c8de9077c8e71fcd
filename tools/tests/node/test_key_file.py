"""Key files: members authenticate to each other, clients do not, and keys are changed without an
end of service."""

import json

import pytest
from bson import Timestamp
from pinion_elections import elected
from pinion_node import PATIENCE_MS, STEADY, Node, ReplicaSet, run, wait_until
from pymongo import ReadPreference, WriteConcern
from pymongo.errors import OperationFailure
from pymongo.read_concern import ReadConcern

OLD, NEW = "oldkey" * 20, "newkey" * 20


def key_file(path, *keys):
    """Writes a key file, as one key or as a list."""
    path.write_text(keys[0] if len(keys) == 1 else "".join(f"- {key}\n" for key in keys))
    path.chmod(0o400)
    return str(path)


def fails(database, command, code):
    with pytest.raises(OperationFailure) as caught:
        database.command(command)
    assert caught.value.code == code, caught.value.details
    return caught.value.details["errmsg"]


def with_options(node, *options):
    """Starts a member again, with other options behind those that every member has."""
    assert node.stop() == 0
    node.options = node.options[:4] + list(options)
    node.start()


def write(members, document):
    """A write that is acknowledged by a majority. Retried where the primary has changed
    meanwhile."""
    with members.client(w="majority", wtimeoutMS=PATIENCE_MS) as client:
        client.test.c.insert_one(document)


def restart_one_by_one(members, *options):
    """What an operator does to give every member other options: the primary last, and the set
    serves meanwhile."""
    primary = members.primary()
    for at, node in enumerate([*members.secondaries(), primary]):
        with_options(node, *options)
        wait_until(lambda node=node: members.state(node) in (1, 2))
        members.primary()
        write(members, {"options": list(options), "at": at})


def peers_of(members, node):
    """What a member knows of each other one: its state, and whether it could authenticate."""
    with members.member(node) as client:
        status = client.admin.command("replSetGetStatus")
    return {member["name"]: member for member in status["members"] if not member.get("self")}


def is_timed(members, node):
    """Whether a member reports the cluster time to its clients."""
    with members.member(node) as client:
        return "$clusterTime" in client.admin.command("ping")


def name(node):
    return f"127.0.0.1:{node.port}"


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    path = tmp_path_factory.mktemp("key") / "key"
    with ReplicaSet(3, STEADY, ("--keyFile", key_file(path, OLD))) as members:
        # As in MongoDB, replies carry no times before a majority has the keys that these are signed
        # with.
        for node in members.nodes:
            wait_until(lambda node=node: is_timed(members, node))
        yield members


def test_files_that_are_refused(tmp_path):
    path = tmp_path / "key"
    data = ("--dbpath", str(tmp_path / "data"), "--replSet", "rs0", "--keyFile", str(path))

    def refused(line, *options):
        assert run(*data, *options) == (2, line)

    refused(f"Error reading file {path}: No such file or directory (os error 2)")
    path.write_text("abcdefgh")
    path.chmod(0o440)
    refused(f"permissions on {path} are too open")
    path.chmod(0o600)
    path.write_text("abc")
    refused(f"security key in {path} has length 3, must be between 6 and 1024 chars")
    path.write_text("abc!defgh")
    refused(f"invalid char in key file {path}: !")
    path.write_text("abcdefgh")
    refused("--clusterAuthMode x509 is not supported: members know each other by a key file alone", "--clusterAuthMode", "x509")
    assert run("--keyFile", str(path))[1].startswith("--keyFile needs --replSet")


def test_the_start_says_what_a_key_file_is_for(three):
    def warnings(node):
        with node.client(directConnection=True) as client:
            return " ".join(json.loads(line)["msg"] for line in client.admin.command("getLog", "startupWarnings")["log"])

    assert "Access control is not enabled" in warnings(three.nodes[0])
    with three.member(three.nodes[0]) as client:
        parsed = client.admin.command("getCmdLineOpts")["parsed"]
        assert parsed["security"]["keyFile"] == three.nodes[0].options[-1]
    with Node("--replSet", "rs0") as node:
        assert "there is no --keyFile" in warnings(node)


def test_clients_work_and_members_commands_are_not_theirs(three):
    with three.client(w="majority") as client:
        client.test.c.insert_many([{"_id": i} for i in range(100)])
        secondary = client.test.c.with_options(read_preference=ReadPreference.SECONDARY, read_concern=ReadConcern("majority"))
        with client.start_session(causal_consistency=True) as session:
            client.test.c.insert_one({"_id": "last"}, session=session)
            assert secondary.count_documents({}, session=session) == 101
    for node in three.nodes:
        with three.member(node) as client:
            heartbeat = {"replSetHeartbeat": "rs0", "configVersion": 1, "from": "127.0.0.1:1", "fromId": 1, "term": 1}
            said = fails(client.admin, heartbeat, 13)
            assert said.startswith('not authorized on admin to execute command { replSetHeartbeat: "rs0", configVersion: 1'), said
            vote = {"replSetRequestVotes": 1, "setName": "rs0", "dryRun": False, "term": 1000, "candidateIndex": 1, "configVersion": 1}
            fails(client.admin, vote, 13)
            fails(client.admin, {"replSetUpdatePosition": 1, "optimes": []}, 13)
            fails(client.admin, "replSetGetRBID", 13)
            fails(client.admin, "_replCatalogRows", 13)
            assert client.admin.command("replSetGetStatus")["term"] < 1000
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-1"):
            with three.member(node, username="root", password="secret", authMechanism=mechanism) as client:
                assert fails(client.admin, "ping", 18) == "Authentication failed."
    assert any(m["msg"].startswith("Successfully authenticated") for m in three.nodes[0].messages())


def test_a_tool_with_the_key_is_a_member(three):
    options = {"username": "__system", "authSource": "local", "authMechanism": "SCRAM-SHA-256"}
    with three.member(three.nodes[0], password=OLD, **options) as client:
        assert "rbid" in client.admin.command("replSetGetRBID")
        known = client.admin.command("connectionStatus")["authInfo"]
        assert known["authenticatedUsers"] == [{"user": "__system", "db": "local"}]
    with three.member(three.nodes[0], password=NEW, **options) as client:
        fails(client.admin, "ping", 18)


def test_times_are_signed_and_forged_ones_refused(three):
    with three.client(w="majority") as client:
        reported = client.test.command("ping")["$clusterTime"]
        assert reported["signature"]["keyId"] != 0 and len(reported["signature"]["hash"]) == 20
        keys = list(client.admin["system.keys"].find().sort("_id"))
        assert [key["purpose"] for key in keys] == ["HMAC", "HMAC"]
        assert keys[0]["_id"] == reported["signature"]["keyId"]
    for node in three.nodes:
        with three.member(node) as client:
            def ping(signature):
                time = Timestamp(reported["clusterTime"].time + 1000, 1)
                with client.start_session() as session:
                    session.advance_cluster_time({"clusterTime": time, "signature": signature})
                    client.test.command("ping", session=session)

            wait_until(lambda: client.test.command("ping").get("$clusterTime", {}).get("signature", {}).get("keyId") == keys[0]["_id"])
            with pytest.raises(OperationFailure, match="Proof does not match") as caught:
                ping(reported["signature"])
            assert caught.value.code == 204
            with pytest.raises(OperationFailure, match="No keys found for HMAC") as caught:
                ping({"hash": bytes(20), "keyId": 0})
            assert caught.value.code == 211
            assert client.test.command("ping")["ok"] == 1


def test_a_member_with_another_key_stays_out(tmp_path):
    right, wrong = key_file(tmp_path / "right", OLD), key_file(tmp_path / "wrong", NEW)
    with ReplicaSet(2, STEADY, ("--keyFile", right)) as members, Node("--replSet", "rs0", "--keyFile", wrong) as stranger, \
            Node("--replSet", "rs0") as keyless:
        for at, node in enumerate((stranger, keyless), 2):
            members.reconfigure(lambda config, at=at, node=node: config["members"].append(
                {"_id": at, "host": name(node), "priority": 0, "votes": 0}
            ))

        def is_out(node):
            seen = [peers_of(members, member)[name(node)] for member in members.nodes]
            return all(peer.get("authenticated") is False and peer["health"] == 0 and peer["lastHeartbeatMessage"] == "Authentication failed."
                       for peer in seen)

        for node in (stranger, keyless):
            wait_until(lambda node=node: is_out(node))
            # It never gets to know the set.
            assert members.state(node) == 0
        write(members, {"_id": 1})
        for node in members.nodes:
            knows = lambda node=node: all(peers_of(members, node)[name(other)]["health"] == 1 for other in members.nodes if other is not node)
            wait_until(knows)


def test_keys_are_changed_while_the_set_serves(tmp_path):
    path = tmp_path / "key"
    with ReplicaSet(3, STEADY, ("--keyFile", key_file(path, OLD))) as members:
        write(members, {"_id": "first"})
        for at, keys in enumerate([(OLD, NEW), (NEW,)]):
            restart_one_by_one(members, "--keyFile", key_file(tmp_path / f"key{at}", *keys))
        members.wait_alike()
        with members.client() as client:
            assert client.test.c.count_documents({}) == 7
        # A new member copies the data with the new key.
        added = members.add("--keyFile", str(tmp_path / "key1"))
        wait_until(lambda: members.state(added) == 2)
        members.wait_alike()


def test_a_set_is_given_a_key_while_it_serves(tmp_path):
    path = key_file(tmp_path / "key", OLD)
    with ReplicaSet(3, STEADY) as members:
        write(members, {"_id": "first"})
        restart_one_by_one(members, "--keyFile", path, "--transitionToAuth")
        restart_one_by_one(members, "--keyFile", path)
        members.wait_alike()
        with members.member(members.primary()) as client:
            fails(client.admin, "replSetGetRBID", 13)


def test_another_member_takes_over(three):
    """Last, since it takes a member from the set."""
    write(three, {"_id": "before"})
    primary = three.primary()
    primary.kill()
    elected(three)
    write(three, {"_id": "after"})
    primary.start()
    wait_until(lambda: three.state(primary) in (1, 2))
    three.wait_alike()
    with three.client() as client:
        majority = client.test.c.with_options(write_concern=WriteConcern(3))
        majority.insert_one({"_id": "all"})
        assert client.test.c.find_one({"_id": "after"})
