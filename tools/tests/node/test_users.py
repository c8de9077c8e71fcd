"""Users and roles: how clients log in, on a standalone and on every member of a set, the commands
that make and show users, and what open connections take over of changes."""

import base64
import hashlib
import hmac
import json
import os

import pytest
from bson import Binary
from pinion_cluster import Cluster
from pinion_elections import elected
from pinion_node import PATIENCE_MS, STEADY, Node, ReplicaSet, wait_until
from pinion_wire import Wire
from pymongo import InsertOne
from pymongo.errors import NotPrimaryError, OperationFailure

BOTH = ["SCRAM-SHA-1", "SCRAM-SHA-256"]
FAILED = (18, "Authentication failed.")


def fails(database, command, code, message=None):
    with pytest.raises(OperationFailure) as caught:
        database.command(command)
    assert caught.value.code == code, caught.value.details
    if message is not None:
        assert caught.value.details["errmsg"] == message


def user_of(client):
    """As whom a client's connection is logged in, and with which roles."""
    status = client.admin.command("connectionStatus")["authInfo"]
    name = [f"{user['user']}@{user['db']}" for user in status["authenticatedUsers"]]
    return name, [f"{role['role']}@{role['db']}" for role in status["authenticatedUserRoles"]]


def login(node, user, password, source, **options):
    """A client of one node that is logged in, with one connection."""
    return node.client(directConnection=True, username=user, password=password, authSource=source, maxPoolSize=1, **options)


def logs_in(node, user, password, source, **options):
    with login(node, user, password, source, **options) as client:
        try:
            return user_of(client)[0] == [f"{user}@{source}"]
        except OperationFailure as error:
            assert (error.code, error.details["errmsg"]) == FAILED, error.details
            return False


def hashed(mechanism):
    return "sha1" if mechanism == "SCRAM-SHA-1" else "sha256"


class Scram:
    """The client's side of SCRAM, step by step."""

    def __init__(self, user, password, mechanism="SCRAM-SHA-256"):
        self.mechanism, self.hash = mechanism, hashed(mechanism)
        digest = hashlib.md5(f"{user}:mongo:{password}".encode()).hexdigest()
        self.password = (digest if self.hash == "sha1" else password).encode()
        self.bare = f"n={user},r={base64.b64encode(os.urandom(18)).decode()}"

    def start(self, **fields):
        return {"saslStart": 1, "mechanism": self.mechanism, "payload": Binary(f"n,,{self.bare}".encode()), **fields}

    def proof(self, challenge):
        """The second message to a server that answered so to the first one."""
        challenge = challenge.decode()
        fields = dict(part.split("=", 1) for part in challenge.split(","))
        salted = hashlib.pbkdf2_hmac(self.hash, self.password, base64.b64decode(fields["s"]), int(fields["i"]))

        def mac(key, text):
            return hmac.new(key, text, self.hash).digest()

        key = mac(salted, b"Client Key")
        without = f"c=biws,r={fields['r']}"
        signature = mac(hashlib.new(self.hash, key).digest(), f"{self.bare},{challenge},{without}".encode())
        proof = base64.b64encode(bytes(a ^ b for a, b in zip(key, signature))).decode()
        return Binary(f"{without},p={proof}".encode())

    def run(self, wire, database, **options):
        """The reply that ends it."""
        reply = wire.command(database, self.start(options=options))
        if not reply["ok"]:
            return reply
        following = {"saslContinue": 1, "conversationId": reply["conversationId"]}
        reply = wire.command(database, {**following, "payload": self.proof(reply["payload"])})
        if reply["ok"] and not reply["done"]:
            reply = wire.command(database, {**following, "payload": Binary(b"")})
        return reply


def code_of(reply):
    return (reply.get("code"), reply.get("errmsg"))


@pytest.fixture
def client(node):
    """A client without a user, on a node without users and roles."""
    with node.client() as connected:
        for database in ("test", "other", "admin"):
            connected[database].command("dropAllUsersFromDatabase")
            connected[database].command("dropAllRolesFromDatabase")
        yield connected


def test_clients_log_in_by_both_mechanisms(node, client):
    client.test.command("createUser", "u", pwd="secret", roles=["readWrite"])
    for mechanism in (*BOTH, "DEFAULT"):
        assert logs_in(node, "u", "secret", "test", authMechanism=mechanism)
        assert not logs_in(node, "u", "wrong", "test", authMechanism=mechanism)
        assert not logs_in(node, "nobody", "secret", "test", authMechanism=mechanism)
        # A user is of one database.
        assert not logs_in(node, "u", "secret", "admin", authMechanism=mechanism)
    with login(node, "u", "secret", "test") as logged_in:
        assert user_of(logged_in) == (["u@test"], ["readWrite@test"])
        logged_in.test.c.insert_one({"x": 1})
        status = logged_in.admin.command("connectionStatus", showPrivileges=True)["authInfo"]
        resources = [one["resource"] for one in status["authenticatedUserPrivileges"]]
        assert {"db": "test", "collection": ""} in resources
        running = logged_in.admin.command("currentOp")["inprog"]
        assert any(op.get("effectiveUsers") == [{"user": "u", "db": "test"}] for op in running)
    counts = client.admin.command("serverStatus")["security"]["authentication"]["mechanisms"]
    for mechanism in BOTH:
        of_all = counts[mechanism]["authenticate"]
        assert of_all["received"] > of_all["successful"] > 0
        assert counts[mechanism]["speculativeAuthenticate"]["successful"] > 0
        assert counts[mechanism]["clusterAuthenticate"] == {"received": 0, "successful": 0}


def test_mechanisms_of_a_user(node, client):
    for mechanism in BOTH:
        client.test.command("createUser", mechanism, pwd="p", roles=[], mechanisms=[mechanism])
        said = client.admin.command("hello", saslSupportedMechs=f"test.{mechanism}")
        assert said["saslSupportedMechs"] == [mechanism]
        for other in BOTH:
            assert logs_in(node, mechanism, "p", "test", authMechanism=other) == (other == mechanism)
    assert "saslSupportedMechs" not in client.admin.command("hello", saslSupportedMechs="test.nobody")
    client.test.command("createUser", "u", pwd="p", roles=[])
    assert client.admin.command("hello", saslSupportedMechs="test.u")["saslSupportedMechs"] == BOTH
    client.test.command("updateUser", "u", mechanisms=["SCRAM-SHA-256"])
    assert client.admin.command("hello", saslSupportedMechs="test.u")["saslSupportedMechs"] == BOTH[1:]
    subset = "mechanisms field must be a subset of previously set mechanisms"
    fails(client.test, {"updateUser": "u", "mechanisms": BOTH}, 2, subset)
    fails(client.test, {"createUser": "v", "pwd": "p", "roles": [], "mechanisms": []}, 2, "mechanisms field must not be empty")
    fails(client.test, {"createUser": "v", "pwd": "p", "roles": [], "mechanisms": ["PLAIN"]}, 2, "Unknown auth mechanism 'PLAIN'")
    undigested = "Use of SCRAM-SHA-256 requires undigested passwords"
    fails(client.test, {"createUser": "v", "pwd": "p", "roles": [], "digestPassword": False}, 2, undigested)
    digest = hashlib.md5(b"v:mongo:p").hexdigest()
    client.test.command("createUser", "v", pwd=digest, roles=[], digestPassword=False, mechanisms=["SCRAM-SHA-1"])
    assert logs_in(node, "v", "p", "test", authMechanism="SCRAM-SHA-1")


def test_mechanisms_that_there_are_not(node):
    with Wire(node.port) as wire:
        for mechanism in ("PLAIN", "MONGODB-X509", "MONGODB-OIDC", "GSSAPI", "MONGODB-AWS"):
            refused = (334, f"Received authentication for mechanism {mechanism} which is not enabled")
            assert code_of(wire.command("$external", {"saslStart": 1, "mechanism": mechanism, "payload": Binary(b"x")})) == refused
            assert code_of(wire.command("$external", {"authenticate": 1, "mechanism": mechanism})) == refused


def test_unknown_users_get_the_answers_of_known_ones(node, client):
    client.test.command("createUser", "u", pwd="p", roles=[])
    with Wire(node.port) as wire:
        answers = {}
        for mechanism in BOTH:
            for user in ("u", "nobody", "nobody", "another"):
                reply = wire.command("test", Scram(user, "p", mechanism).start())
                assert reply["ok"] and not reply["done"], reply
                fields = dict(part.split("=", 1) for part in reply["payload"].decode().split(","))
                answers.setdefault((mechanism, user), set()).add((fields["s"], fields["i"]))
            salts = [answers[mechanism, user] for user in ("u", "nobody", "another")]
            # Of one user they are always the same.
            assert all(len(one) == 1 for one in salts) and len(set.union(*salts)) == 3
            assert len({iterations for one in salts for _, iterations in one}) == 1
            assert code_of(Scram("nobody", "p", mechanism).run(wire, "test")) == FAILED
            assert code_of(Scram("u", "wrong", mechanism).run(wire, "test")) == FAILED
            assert Scram("u", "p", mechanism).run(wire, "test", skipEmptyExchange=True)["done"]


def test_a_connection_is_of_one_user(node, client):
    for database, user in (("test", "u"), ("test", "v"), ("other", "u")):
        client[database].command("createUser", user, pwd="p", roles=[])
    with Wire(node.port) as wire:
        def users():
            return wire.command("admin", {"connectionStatus": 1})["authInfo"]["authenticatedUsers"]

        for skips in (True, False):
            assert Scram("u", "p").run(wire, "test", skipEmptyExchange=skips)["done"]
            assert users() == [{"user": "u", "db": "test"}]
        assert Scram("v", "p").run(wire, "test")["code"] == 5626702
        reply = Scram("u", "p").run(wire, "other")
        assert code_of(reply) == (5626701, "Each client connection may only be authenticated once. Previously authenticated as: u@test")
        assert users() == [{"user": "u", "db": "test"}]
        assert wire.command("other", {"logout": 1})["ok"] and users()
        assert wire.command("test", {"logout": 1})["ok"] and not users()
        assert Scram("u", "p").run(wire, "other")["done"]
        assert users() == [{"user": "u", "db": "other"}]
        # A failed attempt leaves the connection as it was.
        assert code_of(Scram("u", "wrong").run(wire, "other")) == FAILED
        assert users() == [{"user": "u", "db": "other"}]


def test_speculative_authentication(node, client):
    client.test.command("createUser", "u", pwd="p", roles=[])
    with Wire(node.port) as wire:
        scram = Scram("u", "p")
        start = {**scram.start(), "db": "test", "options": {"skipEmptyExchange": True}}
        said = wire.command("admin", {"hello": 1, "saslSupportedMechs": "test.u", "speculativeAuthenticate": start})
        assert said["saslSupportedMechs"] == BOTH
        reply = wire.command("test", {"saslContinue": 1, "conversationId": 1, "payload": scram.proof(said["speculativeAuthenticate"]["payload"])})
        assert reply["done"]
        assert wire.command("admin", {"connectionStatus": 1})["authInfo"]["authenticatedUsers"] == [{"user": "u", "db": "test"}]
        # What cannot succeed has no part in the answer.
        start = {"saslStart": 1, "mechanism": "PLAIN", "payload": Binary(b"x"), "db": "test"}
        assert "speculativeAuthenticate" not in wire.command("admin", {"hello": 1, "speculativeAuthenticate": start})


def test_making_and_changing_users(node, client):
    for command, code, message in [
        ({"createUser": "u", "roles": []}, 2,
         "Must provide a 'pwd' field for all user documents, except those with '$external' as the user's source db"),
        ({"createUser": "u", "pwd": "", "roles": []}, 2, "Password cannot be empty"),
        ({"createUser": "", "pwd": "p", "roles": []}, 12, "User document needs 'user' field to be non-empty"),
        ({"createUser": "u", "pwd": "p", "roles": ["nosuch"]}, 31, "Could not find role: nosuch@test"),
        ({"createUser": "u", "pwd": "p"}, 40414, None),
        ({"updateUser": "u", "pwd": "p"}, 11, "User u@test not found"),
        ({"updateUser": "u"}, 2, "Must specify at least one field to update in updateUser"),
        ({"dropUser": "u"}, 11, "User 'u@test' not found"),
        ({"grantRolesToUser": "u", "roles": ["read"]}, 11, 'Could not find user "u" for db "test"'),
        ({"grantRolesToUser": "u", "roles": []}, 2, 'grantRolesToUser command requires a non-empty "roles" array'),
    ]:
        fails(client.test, command, code, message)
    fails(client.local, {"createUser": "u", "pwd": "p", "roles": []}, 2, "Cannot create users in the local database")
    client.test.command("createUser", "u", pwd="p", roles=["read"], customData={"team": 1}, writeConcern={"w": 1})
    fails(client.test, {"createUser": "u", "pwd": "p", "roles": []}, 51003, 'User "u@test" already exists')
    stored = client.admin["system.users"].find_one({"_id": "test.u"})
    assert list(stored) == ["_id", "userId", "user", "db", "credentials", "customData", "roles"]
    assert stored["userId"].subtype == 4 and stored["roles"] == [{"role": "read", "db": "test"}]
    assert {name: of["iterationCount"] for name, of in stored["credentials"].items()} == dict(zip(BOTH, (10000, 15000)))
    assert client.admin["system.version"].find_one({"_id": "authSchema"})["currentVersion"] == 5
    index = client.admin["system.users"].index_information()["user_1_db_1"]
    assert index["unique"] and index["key"] == [("user", 1), ("db", 1)]
    client.test.command("grantRolesToUser", "u", roles=["readWrite", "read", {"role": "read", "db": "other"}])
    client.test.command("revokeRolesFromUser", "u", roles=["readWrite"])
    client.test.command("updateUser", "u", pwd="q", customData={"team": 2})
    changed = client.admin["system.users"].find_one({"_id": "test.u"})
    assert changed["userId"] == stored["userId"] and changed["customData"] == {"team": 2}
    assert changed["roles"] == [{"role": "read", "db": "test"}, {"role": "read", "db": "other"}]
    assert not logs_in(node, "u", "p", "test") and logs_in(node, "u", "q", "test")
    client.admin.command("setParameter", scramIterationCount=5000, scramSHA256IterationCount=6000)
    fails(client.admin, {"setParameter": 1, "scramIterationCount": 4999}, 2)
    client.test.command("updateUser", "u", pwd="r")
    changed = client.admin["system.users"].find_one({"_id": "test.u"})["credentials"]
    assert [changed[name]["iterationCount"] for name in BOTH] == [5000, 6000]
    client.admin.command("setParameter", scramIterationCount=10000, scramSHA256IterationCount=15000)
    assert logs_in(node, "u", "r", "test")
    client["$external"].command("createUser", "CN=x", roles=[])
    fails(client["$external"], {"createUser": "CN=y", "pwd": "p", "roles": []}, 2, "Cannot set the password for users defined on the '$external' database")
    assert client["$external"].command("usersInfo", "CN=x")["users"][0]["mechanisms"] == ["external"]
    client["$external"].command("dropUser", "CN=x")
    client.test.command("createUser", "v", pwd="p", roles=[])
    client.other.command("createUser", "v", pwd="p", roles=[])
    assert client.test.command("dropAllUsersFromDatabase")["n"] == 2
    assert logs_in(node, "v", "p", "other") and not logs_in(node, "v", "p", "test")


def test_what_is_shown_of_users(client):
    client.test.command("createUser", "b", pwd="p", roles=["read"], customData={"x": 1}, mechanisms=["SCRAM-SHA-256"])
    client.test.command("createUser", "a", pwd="p", roles=[], authenticationRestrictions=[{"clientSource": ["127.0.0.1"]}])
    client.other.command("createUser", "a", pwd="p", roles=[])

    def info(what, **options):
        return client.test.command("usersInfo", what, **options)["users"]

    def names(what, **options):
        return [user["_id"] for user in info(what, **options)]

    assert names(1) == ["test.a", "test.b"]
    assert names({"forAllDBs": True}) == ["other.a", "test.a", "test.b"]
    assert names("b") == ["test.b"] and names({"user": "a", "db": "other"}) == ["other.a"]
    assert names(["b", {"user": "a", "db": "other"}, "nobody", "b"]) == ["other.a", "test.b"]
    assert names("nobody") == []
    assert names(1, filter={"roles.role": "read"}) == ["test.b"]
    shown, = info("b")
    assert list(shown) == ["_id", "userId", "user", "db", "customData", "roles", "mechanisms"]
    assert shown["mechanisms"] == ["SCRAM-SHA-256"] and shown["customData"] == {"x": 1}
    assert "customData" not in info("b", showCustomData=False)[0]
    assert set(info("b", showCredentials=True)[0]["credentials"]) == {"SCRAM-SHA-256"}
    shown, = info("b", showPrivileges=True)
    assert shown["inheritedRoles"] == [{"role": "read", "db": "test"}]
    assert {"db": "test", "collection": ""} in [one["resource"] for one in shown["inheritedPrivileges"]]
    assert shown["inheritedAuthenticationRestrictions"] == [] and "authenticationRestrictions" not in shown
    shown, = info("a", showAuthenticationRestrictions=True)
    assert shown["authenticationRestrictions"] == [{"clientSource": ["127.0.0.1"]}]
    exact = "Privilege or restriction details require exact-match usersInfo queries"
    for what in (1, {"forAllDBs": True}):
        fails(client.test, {"usersInfo": what, "showPrivileges": True}, 20, exact)
    fails(client.test, {"usersInfo": {"user": "a"}}, 2)
    fails(client.test, {"usersInfo": {}}, 2)


READ_OTHER = {"resource": {"db": "other", "collection": ""}, "actions": ["find"]}
WRITE_TEST = {"resource": {"db": "test", "collection": "c"}, "actions": ["insert", "remove"]}


def test_making_and_changing_roles(client):
    for command, code, message in [
        ({"createRole": "", "privileges": [], "roles": []}, 2, "Role name must be non-empty"),
        ({"createRole": "read", "privileges": [], "roles": []}, 2, "Cannot create roles with the same name as a built-in role"),
        ({"createRole": "r", "privileges": [READ_OTHER], "roles": []}, 49, None),
        ({"createRole": "r", "privileges": [], "roles": [{"role": "read", "db": "other"}]}, 49, None),
        ({"createRole": "r", "privileges": [], "roles": ["nosuch"]}, 31, "Could not find role: nosuch@test"),
        ({"createRole": "r", "privileges": [{**WRITE_TEST, "actions": ["fly"]}], "roles": []}, 2, "Unrecognized action privilege strings: fly"),
        ({"createRole": "r", "roles": []}, 40414, None),
        ({"updateRole": "r", "roles": []}, 31, "Could not find role: r@test"),
        ({"updateRole": "read", "roles": []}, 49, "read@test is a built-in role and cannot be modified"),
        ({"updateRole": "r"}, 2, "Must specify at least one field to update in updateRole"),
        ({"dropRole": "r"}, 31, "Could not find role: r@test"),
        ({"dropRole": "readWrite"}, 49, "readWrite@test is a built-in role and cannot be modified"),
        ({"grantPrivilegesToRole": "r", "privileges": []}, 2, 'grantPrivilegesToRole command requires a non-empty "privileges" array'),
    ]:
        fails(client.test, command, code, message)
    for database in ("local", "$external"):
        fails(client[database], {"createRole": "r", "privileges": [], "roles": []}, 2)
    client.test.command("createRole", "inner", privileges=[WRITE_TEST], roles=[])
    client.test.command("createRole", "outer", privileges=[], roles=["inner"])
    fails(client.test, {"createRole": "outer", "privileges": [], "roles": []}, 51002, 'Role "outer@test" already exists')
    cycle = "Granting outer@test to inner@test would introduce a cycle in the role graph."
    fails(client.test, {"grantRolesToRole": "inner", "roles": ["outer"]}, 49, cycle)
    fails(client.test, {"updateRole": "inner", "roles": ["outer"]}, 49, cycle)
    fails(client.test, {"grantRolesToRole": "inner", "roles": ["inner"]}, 49)
    client.test.command("grantRolesToRole", "outer", roles=["read", "inner"])
    client.test.command("grantPrivilegesToRole", "inner", privileges=[{**WRITE_TEST, "actions": ["find"]}])
    client.test.command("revokePrivilegesFromRole", "inner", privileges=[{**WRITE_TEST, "actions": ["remove"]}])
    stored = client.admin["system.roles"].find_one({"_id": "test.inner"})
    assert list(stored) == ["_id", "role", "db", "privileges", "roles"]
    assert stored["privileges"] == [{**WRITE_TEST, "actions": ["find", "insert"]}]
    assert client.admin["system.roles"].index_information()["role_1_db_1"]["unique"]
    client.test.command("createUser", "u", pwd="p", roles=["outer", "inner", "read"])
    client.test.command("dropRole", "inner")
    roles = [{"role": "outer", "db": "test"}, {"role": "read", "db": "test"}]
    assert client.test.command("usersInfo", "u")["users"][0]["roles"] == roles
    assert client.test.command("rolesInfo", "outer")["roles"][0]["roles"] == roles[1:]
    client.test.command("updateRole", "outer", roles=[], privileges=[WRITE_TEST])
    client.test.command("revokeRolesFromRole", "outer", roles=["read"])
    client.admin.command("createRole", "of all", privileges=[READ_OTHER], roles=[{"role": "outer", "db": "test"}])
    assert client.test.command("dropAllRolesFromDatabase")["n"] == 1
    assert client.admin.command("rolesInfo", "of all")["roles"][0]["roles"] == []
    assert client.test.command("usersInfo", "u")["users"][0]["roles"] == roles[1:]


def test_what_is_shown_of_roles(client):
    client.test.command("createRole", "inner", privileges=[WRITE_TEST], roles=[])
    restrictions = [{"serverAddress": ["127.0.0.1"]}]
    client.test.command("createRole", "outer", privileges=[], roles=["inner"], authenticationRestrictions=restrictions)

    def info(what, **options):
        return client.test.command("rolesInfo", what, **options)["roles"]

    assert [role["role"] for role in info(1)] == ["inner", "outer"]
    with_built_in = [role["role"] for role in info(1, showBuiltinRoles=True)]
    assert with_built_in[-2:] == ["inner", "outer"] and "readWrite" in with_built_in
    assert [role["role"] for role in info(["outer", "nosuch", {"role": "root", "db": "admin"}])] == ["outer", "root"]
    shown, = info("outer")
    inner = {"role": "inner", "db": "test"}
    assert shown == {"_id": "test.outer", "role": "outer", "db": "test", "roles": [inner], "inheritedRoles": [inner], "isBuiltin": False}
    shown, = info("outer", showPrivileges=True, showAuthenticationRestrictions=True)
    assert shown["privileges"] == [] and shown["inheritedPrivileges"] == [WRITE_TEST]
    assert shown["authenticationRestrictions"] == restrictions and shown["inheritedAuthenticationRestrictions"] == [restrictions]
    shown, = info("read", showPrivileges=True)
    assert shown["isBuiltin"] and shown["roles"] == [] and shown["privileges"] == shown["inheritedPrivileges"] != []
    fragment = client.test.command("rolesInfo", ["outer"], showPrivileges="asUserFragment")["userFragment"]
    assert fragment["roles"] == [{"role": "outer", "db": "test"}] and inner in fragment["inheritedRoles"]
    assert fragment["inheritedPrivileges"] == [WRITE_TEST]
    fails(client.test, {"rolesInfo": 1, "showPrivileges": "asUserFragment"}, 2)
    fails(client.test, {"rolesInfo": "nosuch", "showPrivileges": "asUserFragment"}, 31)


def test_open_connections_take_changes_over(node, client):
    client.test.command("createRole", "r", privileges=[WRITE_TEST], roles=[])
    client.test.command("createUser", "u", pwd="p", roles=["r"])
    with login(node, "u", "p", "test") as logged_in:
        assert user_of(logged_in) == (["u@test"], ["r@test"])
        client.test.command("grantRolesToRole", "r", roles=["read"])
        assert user_of(logged_in) == (["u@test"], ["r@test", "read@test"])
        # Whatever writes the documents.
        client.admin["system.users"].update_one({"_id": "test.u"}, {"$set": {"roles": [{"role": "readWrite", "db": "test"}]}})
        assert user_of(logged_in)[1] == ["readWrite@test"]
        client.test.command("updateUser", "u", pwd="q")
        assert user_of(logged_in)[0] == ["u@test"]
        client.test.command("dropUser", "u")
        assert user_of(logged_in) == ([], [])
        # Another one of the same name is another one.
        client.test.command("createUser", "u", pwd="p", roles=[])
        assert user_of(logged_in) == ([], [])
    with login(node, "u", "p", "test") as logged_in:
        assert user_of(logged_in)[0] == ["u@test"]
        client.test.command("updateUser", "u", authenticationRestrictions=[{"clientSource": ["10.0.0.0/8"]}])
        assert user_of(logged_in)[0] == []
    assert client.admin.command("invalidateUserCache")["ok"]


def test_restrictions_hold_at_a_login(node, client):
    def logs(restrictions):
        client.test.command("updateUser", "u", authenticationRestrictions=restrictions)
        return logs_in(node, "u", "p", "test")

    client.test.command("createUser", "u", pwd="p", roles=[])
    assert logs([{"clientSource": ["127.0.0.1"], "serverAddress": ["127.0.0.0/8"]}])
    assert not logs([{"clientSource": ["10.0.0.1"]}])
    assert logs([{"clientSource": ["10.0.0.1"]}, {"clientSource": ["127.0.0.0/8"]}])
    assert not logs([{"serverAddress": ["10.0.0.1"]}])
    assert logs([])
    client.test.command("createRole", "r", privileges=[], roles=[], authenticationRestrictions=[{"clientSource": ["10.0.0.1"]}])
    client.test.command("grantRolesToUser", "u", roles=["r"])
    assert not logs_in(node, "u", "p", "test")
    client.test.command("updateRole", "r", authenticationRestrictions=[])
    assert logs_in(node, "u", "p", "test")
    fails(client.test, {"updateUser": "u", "authenticationRestrictions": [{}]}, 162)
    fails(client.test, {"updateUser": "u", "authenticationRestrictions": [{"clientSource": ["x"]}]}, 12)


def test_passwords_are_shown_nowhere(node, client):
    client.test.c.insert_one({})
    client.admin.command("setParameter", logComponentVerbosity={"command": {"verbosity": 1}})
    client.test.command("profile", 2, slowms=-1)
    client.test.command("createUser", "u", pwd="password-1", roles=[])
    client.test.command("updateUser", "u", pwd="password-2")
    fails(client.test, {"createUser": "u", "pwd": "password-3", "roles": []}, 51003)
    fails(client.test, {"createUser": "w", "pwd": "password-4", "roles": 1}, 14)
    assert logs_in(node, "u", "password-2", "test")
    client.test.command("profile", 0, slowms=100)
    client.admin.command("setParameter", logComponentVerbosity={"command": {"verbosity": -1}})
    profiled = client.test["system.profile"].find({"command.createUser": "u"}).to_list()
    assert profiled and all(entry["command"]["pwd"] == "xxx" for entry in profiled)
    log = "".join(node.log)
    assert '"pwd":"xxx"' in log and "password-" not in log
    assert "password-" not in str(client.test["system.profile"].find().to_list())
    lines = [json.loads(line) for line in node.log if '"id":5286306,' in line]
    assert any(line["attr"].get("user") == "u" and line["attr"]["db"] == "test" for line in lines), lines[-3:]
    with login(node, "u", "password-2", "test") as logged_in:
        client.test.command("profile", 2)
        logged_in.test.c.find_one({"x": "profiled"})
        client.test.command("profile", 0)
    entry = client.test["system.profile"].find_one({"command.filter.x": "profiled"})
    assert entry["user"] == "u@test" and entry["allUsers"] == [{"user": "u", "db": "test"}]
    client.test.drop_collection("system.profile")


# As MongoDB 8 stored it, of the password "pencil".
def stored_by_mongodb():
    def of(mechanism, password, iterations, salt_bytes):
        name, salt = hashed(mechanism), bytes(range(salt_bytes))
        salted = hashlib.pbkdf2_hmac(name, password, salt, iterations)

        def key(label):
            return hmac.new(salted, label, name).digest()

        texts = [base64.b64encode(value).decode() for value in (salt, hashlib.new(name, key(b"Client Key")).digest(), key(b"Server Key"))]
        return {"iterationCount": iterations, **dict(zip(("salt", "storedKey", "serverKey"), texts))}

    digest = hashlib.md5(b"restored:mongo:pencil").hexdigest().encode()
    return {
        "_id": "test.restored", "userId": Binary(b"0123456789abcdef", 4), "user": "restored", "db": "test",
        "credentials": {"SCRAM-SHA-1": of(BOTH[0], digest, 10000, 16), "SCRAM-SHA-256": of(BOTH[1], b"pencil", 15000, 28)},
        "roles": [{"role": "mine", "db": "test"}],
    }


def test_restored_users_log_in():
    with Node("--cpus", "2") as fresh, fresh.client() as client:
        role = {"_id": "test.mine", "role": "mine", "db": "test", "privileges": [WRITE_TEST], "roles": [{"role": "read", "db": "test"}]}
        client.admin["system.roles"].insert_one(role)
        client.admin["system.users"].insert_many([stored_by_mongodb(), {"_id": "test.broken", "user": "broken", "db": "test"}])
        assert client.admin["system.users"].index_information()["user_1_db_1"]["unique"]
        for mechanism in BOTH:
            assert logs_in(fresh, "restored", "pencil", "test", authMechanism=mechanism)
            assert not logs_in(fresh, "broken", "pencil", "test", authMechanism=mechanism)
        with login(fresh, "restored", "pencil", "test") as logged_in:
            assert user_of(logged_in)[1] == ["mine@test", "read@test"]
            client.admin["system.roles"].delete_one({"_id": "test.mine"})
            assert user_of(logged_in)[1] == []
            client.bulk_write([InsertOne(role, namespace="admin.system.roles")])
            assert user_of(logged_in)[1] == ["mine@test", "read@test"]


def test_users_stay_when_a_node_starts_again(tmp_path):
    with Node("--cpus", "2", directory=tmp_path) as one:
        with one.client() as client:
            client.test.command("createUser", "u", pwd="p", roles=["read"])
            client.test.command("createUser", "dropped", pwd="p", roles=[])
            client.test.command("dropUser", "dropped")
        one.kill()
        one.start()
        assert logs_in(one, "u", "p", "test") and not logs_in(one, "dropped", "p", "test")
        assert one.stop() == 0
        one.options += ["--setParameter", "authenticationMechanisms=SCRAM-SHA-256"]
        one.start()
        with one.client() as client:
            assert client.admin.command("hello", saslSupportedMechs="test.u")["saslSupportedMechs"] == BOTH[1:]
            client.test.command("createUser", "v", pwd="p", roles=[])
            assert client.test.command("usersInfo", "v")["users"][0]["mechanisms"] == BOTH[1:]
            assert client.admin.command("getParameter", authenticationMechanisms=1)["authenticationMechanisms"] == BOTH[1:]
        assert logs_in(one, "u", "p", "test", authMechanism="SCRAM-SHA-256")
        with login(one, "u", "p", "test", authMechanism="SCRAM-SHA-1") as client:
            fails(client.admin, "ping", 334)


@pytest.fixture(scope="module")
def three():
    with ReplicaSet(3, STEADY) as members:
        yield members


def test_every_member_knows_the_users(three):
    with three.client() as client:
        concern = {"w": 3, "wtimeout": PATIENCE_MS}
        client.test.command("createRole", "r", privileges=[WRITE_TEST], roles=["read"], writeConcern=concern)
        client.test.command("createUser", "u", pwd="p", roles=["r"], writeConcern=concern)
        for node in three.nodes:
            for mechanism in BOTH:
                assert logs_in(node, "u", "p", "test", authMechanism=mechanism)
            assert not logs_in(node, "u", "q", "test")
        opened = [login(node, "u", "p", "test") for node in three.nodes]
        assert all(user_of(one) == (["u@test"], ["r@test", "read@test"]) for one in opened)
        # What a member applies, its open connections take over.
        client.test.command("revokeRolesFromRole", "r", roles=["read"], writeConcern=concern)
        for one in opened:
            wait_until(lambda one=one: user_of(one)[1] == ["r@test"])
        client.test.command("dropRole", "r", writeConcern=concern)
        for one in opened:
            wait_until(lambda one=one: user_of(one)[1] == [])
        client.test.command("updateUser", "u", pwd="q", writeConcern=concern)
        for node in three.nodes:
            wait_until(lambda node=node: logs_in(node, "u", "q", "test"))
        client.test.command("dropUser", "u", writeConcern=concern)
        for one in opened:
            wait_until(lambda one=one: user_of(one)[0] == [])
            one.close()
        for node in three.nodes:
            assert not logs_in(node, "u", "q", "test")
            with three.member(node) as member:
                assert member.admin["system.users"].find_one({"_id": "test.u"}) is None


def test_users_are_written_on_a_primary(three):
    with three.member(three.secondaries()[0]) as client, pytest.raises(NotPrimaryError) as caught:
        client.test.command("createUser", "u", pwd="p", roles=[])
    assert caught.value.details["code"] == 10107


def test_a_new_primary_and_a_new_member_know_the_users(three):
    concern = {"w": "majority", "wtimeout": PATIENCE_MS}
    with three.client() as client:
        client.test.command("createUser", "before", pwd="p", roles=["read"], writeConcern=concern)
    before = three.primary()
    with three.member(before) as client:
        client.admin.command("replSetStepDown", 60, secondaryCatchUpPeriodSecs=30, force=True)
    wait_until(lambda: not three.leads(before))
    after = elected(three)
    with three.member(after) as client:
        client.test.command("createUser", "after", pwd="p", roles=["read"], writeConcern={"w": 3, "wtimeout": PATIENCE_MS})
    for node in three.nodes:
        for user in ("before", "after"):
            assert logs_in(node, user, "p", "test")
    added = three.add()
    wait_until(lambda: three.state(added) == 2)
    for user in ("before", "after"):
        wait_until(lambda user=user: logs_in(added, user, "p", "test"))
    with three.member(added) as client:
        assert client.admin["system.users"].index_information()["user_1_db_1"]["unique"]


def test_a_router_sends_the_commands_to_the_config_servers():
    with Cluster(shards=1) as cluster, cluster.routers[0].client() as router:
        router.test.command("createRole", "r", privileges=[WRITE_TEST], roles=[])
        router.test.command("createUser", "u", pwd="p", roles=["r"])
        fails(router.test, {"createUser": "u", "pwd": "p", "roles": []}, 51003)
        assert [user["_id"] for user in router.test.command("usersInfo", 1)["users"]] == ["test.u"]
        assert router.test.command("rolesInfo", "r", showPrivileges=True)["roles"][0]["privileges"] == [WRITE_TEST]
        assert router.admin.command("invalidateUserCache")["ok"]
        config = cluster.config.primary()
        assert logs_in(config, "u", "p", "test")
        # A router has no directory of users yet.
        assert not logs_in(cluster.routers[0], "u", "p", "test")
        with cluster.shards[0].member(cluster.shards[0].primary()) as shard:
            assert shard.test.command("usersInfo", 1)["users"] == []
        router.test.command("dropUser", "u")
        assert router.test.command("usersInfo", 1)["users"] == []
