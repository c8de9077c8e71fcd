"""How members end and start again: during builds of indexes, under writes, one after another, and
as standalones meanwhile."""

import contextlib
import threading

import pymongo
import pytest
from pinion_elections import elected
from pinion_node import PATIENCE_MS, PATIENCE_SECS, STEADY, Node, ReplicaSet, wait_until

DOCUMENTS = 6000
FIELDS = {f"f{at}": at for at in range(40)}


def initiate(node):
    """Makes a set of this node alone, and waits until it takes writes."""
    with node.client(directConnection=True) as client:
        client.admin.command("replSetInitiate", {"_id": "rs0", "members": [{"_id": 0, "host": f"127.0.0.1:{node.port}"}]})
    wait_leads(node)


def leads(node):
    with node.client(directConnection=True) as client:
        return client.admin.command("hello").get("isWritablePrimary", False)


def wait_leads(node):
    wait_until(lambda: leads(node))


def begin_build(node):
    """Begins a build of a wildcard index in a thread, and waits until the collection lists it."""
    def build():
        with contextlib.suppress(pymongo.errors.PyMongoError), node.client(directConnection=True) as client:
            client.test.command({"createIndexes": "b", "indexes": [{"key": {"$**": 1}, "name": "w"}]})

    threading.Thread(target=build, daemon=True).start()
    with node.client(directConnection=True) as client:
        listed = {"listIndexes": "b", "includeIndexBuildInfo": True}
        wait_until(lambda: any("indexBuildInfo" in index for index in client.test.command(listed)["cursor"]["firstBatch"]))


def is_built(node):
    with node.client(directConnection=True) as client:
        try:
            return client.test.b.count_documents({"f3": 3}, hint="w") == DOCUMENTS
        except pymongo.errors.OperationFailure:
            return False


@pytest.mark.parametrize("end", [Node.stop, Node.kill])
def test_a_set_of_one_starts_again_with_an_unfinished_build(end):
    with Node("--replSet", "rs0", "--cpus", "2") as node:
        initiate(node)
        with node.client(directConnection=True) as client:
            client.test.b.insert_many([{"_id": at, **FIELDS} for at in range(DOCUMENTS)])
            begin_build(node)
        end(node)
        node.start()
        wait_leads(node)
        with node.client(directConnection=True) as client:
            client.test.c.insert_one({})
            # A build that had just started may be lost by a crash.
            if end is Node.stop or "w" in client.test.b.index_information():
                wait_until(lambda: is_built(node))


def alone(node, work):
    """Opens a stopped member as a standalone, has `work` done with a client of it, and stops it
    again."""
    options = node.options
    node.options = [option for option in options if option not in ("--replSet", "rs0")]
    node.start()
    with node.client() as client:
        warnings = client.admin.command({"getLog": "startupWarnings"})["log"]
        assert any("started without --replSet" in line for line in warnings), warnings
        work(client)
    assert node.stop() == 0
    node.options = options


def test_a_set_of_one_is_written_to_as_a_standalone():
    with Node("--replSet", "rs0", "--cpus", "2") as node:
        initiate(node)
        with node.client(directConnection=True) as client:
            client.test.x.insert_many([{"_id": at} for at in range(100)])
            rollback_id = client.admin.command("replSetGetRBID")["rbid"]
        assert node.stop() == 0

        def write(client):
            client.test.y.insert_one({"_id": "alone"})
            client.test.x.update_one({"_id": 5}, {"$set": {"alone": True}})
            client.test.x.create_index("alone")

        alone(node, write)
        # Killed as a standalone, and once more in between.
        options, node.options = node.options, [option for option in node.options if option not in ("--replSet", "rs0")]
        node.start()
        with node.client() as client:
            client.test.y.with_options(write_concern=pymongo.WriteConcern(w=1, j=True)).insert_one({"_id": "killed"})
        node.kill()
        node.options = options
        node.start()
        wait_leads(node)
        for again in range(2):
            with node.client(directConnection=True) as client:
                # The member itself has not crashed until it is killed here.
                assert client.admin.command("replSetGetRBID")["rbid"] == rollback_id + again
                client.test.x.insert_one({"_id": f"again {again}"})
                assert client.test.x.count_documents({}) == 101 + again
                assert client.test.x.count_documents({"alone": True}, hint="alone_1") == 1
                assert {found["_id"] for found in client.test.y.find()} == {"alone", "killed"}
                logged = client.local["oplog.rs"].find({"ns": {"$in": ["test.x", "test.y"]}})
                assert not [entry for entry in logged if "alone" in str(entry["o"])]
            node.kill()
            node.start()
            wait_leads(node)


def test_an_index_is_built_on_each_member_as_a_standalone():
    """MongoDB's rolling build: each member in turn runs without its set, which is written to
    meanwhile."""
    with ReplicaSet(settings=STEADY) as members:
        with members.client() as client:
            client.test.c.insert_many([{"_id": at, "a": at % 7} for at in range(500)])
            members.wait_alike()
            expired = client.test.old
            expired.create_index("at", expireAfterSeconds=1)
        written = 500
        for node in reversed(members.nodes):
            with members.member(node) as client:
                if client.admin.command("hello")["isWritablePrimary"]:
                    client.admin.command({"replSetStepDown": 600, "secondaryCatchUpPeriodSecs": 60})
                    elected(members)
            assert node.stop() == 0

            def build(client):
                nonlocal written
                client.test.c.create_index("a")
                client.test.c.insert_one({"_id": f"alone {written}"})
                with members_but(members, node) as others:
                    others.test.c.insert_many([{"_id": written + at, "a": at % 7} for at in range(50)])
                    others.test.command({"collMod": "c", "changeStreamPreAndPostImages": {"enabled": written % 100 == 0}})
                written += 50
                client.test.c.delete_one({"_id": f"alone {written - 50}"})

            alone(node, build)
            before = len(node.log)
            node.start()
            wait_until(lambda node=node: members.state(node) in (1, 2))
            assert not [line for line in node.log[before:] if "initial sync" in line]
        with members.client() as client:
            client.test.c.insert_one({"_id": "last", "a": 3})
        members.wait_alike()
        for node in members.nodes:
            with members.member(node) as client:
                found = client.get_database("test", read_preference=pymongo.ReadPreference.SECONDARY_PREFERRED)
                assert found.c.count_documents({"a": 3}, hint="a_1") == found.c.count_documents({"a": 3}, hint="_id_") > 90
                listed = found.command("listCollections", filter={"name": "c"})["cursor"]["firstBatch"]
                assert listed[0]["options"]["changeStreamPreAndPostImages"] == {"enabled": True}
                assert found.command("validate", "c")["valid"]


@contextlib.contextmanager
def members_but(members, absent):
    """A client of the set without this member."""
    hosts = ",".join(f"127.0.0.1:{node.port}" for node in members.nodes if node is not absent)
    with pymongo.MongoClient(f"mongodb://{hosts}/?replicaSet=rs0", serverSelectionTimeoutMS=PATIENCE_MS) as client:
        yield client


class HelloWatch(pymongo.monitoring.ServerHeartbeatListener):
    """A driver's monitor, which the node sends each change of the topology without being asked
    again; keeps the error that ends it. One that asks for each change may ask when the node has
    ended: what is not waited for does not keep it."""

    def __init__(self, node):
        self.version = self.error = None
        self.streams, self.ended = threading.Event(), threading.Event()
        self.client = node.client(directConnection=True, event_listeners=[self])
        self.client.admin.command("ping")
        assert self.streams.wait(PATIENCE_SECS)

    def started(self, event):
        if event.awaited:
            self.streams.set()

    def succeeded(self, event):
        if not self.ended.is_set():
            self.version = event.reply.topology_version

    def failed(self, event):
        if not self.ended.is_set():
            # One that sends clients away comes with a reply; a connection that breaks has none.
            details = getattr(event.reply, "details", None)
            self.error = details if isinstance(details, dict) else {"codeName": str(event.reply)}
            self.ended.set()


def test_a_primary_that_is_stopped_hands_over_and_loses_nothing():
    # No member would be elected without an order.
    with ReplicaSet(settings=STEADY) as members:
        for _ in range(2):
            primary = members.primary()
            with members.client(retryWrites=False, w=1) as client:
                acknowledged = []
                stopping = threading.Event()

                def write(client=client, acknowledged=acknowledged, stopping=stopping):
                    while not stopping.is_set():
                        with contextlib.suppress(pymongo.errors.PyMongoError):
                            acknowledged.append(client.test.w.insert_one({}).inserted_id)

                writer = threading.Thread(target=write, daemon=True)
                writer.start()
                wait_until(lambda acknowledged=acknowledged: len(acknowledged) > 200)
                watch = HelloWatch(primary)
                assert primary.stop() == 0
                assert watch.ended.wait(PATIENCE_SECS)
                assert watch.error["codeName"] == "ShutdownInProgress", watch.error
                assert watch.error["remainingQuiesceTimeMillis"] > 0
                assert watch.error["topologyVersion"]["counter"] > watch.version["counter"]
                messages = [line["msg"] for line in primary.messages()]
                for message in ["Stepping down the ReplicationCoordinator for shutdown", "Entering quiesce mode for shutdown"]:
                    assert message in messages
                members.primary(PATIENCE_SECS / 2)
                primary.start()
                wait_until(lambda primary=primary: members.state(primary) == 2)
                stopping.set()
                writer.join()
                members.wait_alike()
                found = {document["_id"] for document in client.test.w.find({}, {"_id": 1})}
                assert not set(acknowledged) - found


def test_shutdown_of_a_primary_without_followers():
    with ReplicaSet(settings=STEADY) as members:
        primary = members.nodes[0]
        for node in members.secondaries():
            node.kill()
        with members.member(primary) as client:
            client.test.c.with_options(write_concern=pymongo.WriteConcern(w=1)).insert_one({})
            with pytest.raises(pymongo.errors.OperationFailure) as refused:
                client.admin.command({"shutdown": 1, "timeoutSecs": 1})
            assert refused.value.code == 262 and "No electable secondaries caught up as of" in str(refused.value)
            assert primary.alive() and client.admin.command("ping")["ok"] == 1
        # A client that is closed when its node is gone waits for it, so this one is not.
        with contextlib.suppress(pymongo.errors.AutoReconnect):
            members.member(primary).admin.command({"shutdown": 1, "timeoutSecs": 1, "force": True})
        assert primary.process.wait(120) == 0


def test_a_node_that_is_alone_ends_at_once():
    with Node("--replSet", "rs0", "--cpus", "2") as node:
        initiate(node)
        watch = HelloWatch(node)
        assert node.stop() == 0
        assert watch.ended.wait(PATIENCE_SECS)
        # Of the quiesce period, which it would otherwise wait, the log says that there was none.
        assert not any("quiesce" in line["msg"] for line in node.messages())


def test_the_rollback_id_counts_no_restart():
    with Node("--replSet", "rs0", "--cpus", "2") as node:
        initiate(node)

        def rollback_id():
            with node.client(directConnection=True) as client:
                return client.admin.command("replSetGetRBID")["rbid"]

        first = rollback_id()
        for _ in range(2):
            assert node.stop() == 0
            node.start()
            wait_leads(node)
            assert rollback_id() == first
        node.kill()
        node.start()
        wait_leads(node)
        # What was not durable is gone, and a member that copies may have seen it.
        assert rollback_id() == first + 1


def test_lines_of_the_log_and_wall_times():
    with ReplicaSet(settings=STEADY) as members:
        primary = members.primary()
        with members.client() as client:
            client.test.c.insert_one({})
            members.reconfigure(lambda config: config["settings"].update(catchUpTakeoverDelayMillis=31_000))

            def wall_is_that_of_the_entry():
                newest = client.local["oplog.rs"].find().sort("$natural", -1).limit(1)[0]
                write = client.admin.command("hello")["lastWrite"]
                return write["opTime"]["ts"] == newest["ts"] and write["lastWriteDate"] == newest["wall"]

            wait_until(wall_is_that_of_the_entry)

            def status_has_it_too():
                newest = client.local["oplog.rs"].find().sort("$natural", -1).limit(1)[0]
                return client.admin.command("replSetGetStatus")["optimes"]["lastAppliedWallTime"] == newest["wall"]

            wait_until(status_has_it_too)
        # The log is written by a thread of its own.
        wait_until(lambda: any(line["id"] == 21392 and "31000" in str(line) for line in primary.messages()))
        lines = {line["id"]: line for line in primary.messages()}
        assert lines[21331]["msg"] == "Transition to primary complete; database writes are now permitted"
        assert lines[21358]["attr"]["newState"] == "PRIMARY"
        assert lines[21215]["attr"]["newState"] == "SECONDARY"
        assert lines[21392]["attr"]["config"]["settings"]["catchUpTakeoverDelayMillis"] == 31_000
        assert 21356 in lines and 21352 in lines


def test_a_change_of_the_configuration_obeys_its_time():
    with ReplicaSet(settings=STEADY) as members:
        primary, others = members.primary(), members.secondaries()
        # The one before it has come to its end.
        members.reconfigure(lambda config: None)
        with members.member(primary) as client:
            config = client.admin.command("replSetGetConfig")["config"]
            config["version"] += 1
            for node in others:
                node.suspend()
            try:
                with pytest.raises(pymongo.errors.OperationFailure) as late:
                    client.admin.command("replSetReconfig", config, maxTimeMS=300)
                assert late.value.code == 50
            finally:
                for node in others:
                    node.resume()
