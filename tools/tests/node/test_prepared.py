"""Prepared transactions on real sets: what becomes of them when processes die, and what waits for
them meanwhile.

Drivers do not prepare, so the commands come with sessions of their own making.
"""

import contextlib
import threading
import time
import uuid

import pymongo
import pytest
from bson import Binary, Int64, Timestamp
from pinion_elections import elected, takes_over
from pinion_node import PATIENCE_SECS, STEADY, Node, ReplicaSet, wait_until
from pymongo import ReadPreference
from pymongo.errors import NotPrimaryError, OperationFailure, PyMongoError
from pymongo.read_concern import ReadConcern

FILES = ("--partitions", "3", "--setParameter", "initialSyncMethod=fileCopyBased")


@contextlib.contextmanager
def own_sessions(client):
    """The driver puts no session of its own into commands."""

    @contextlib.contextmanager
    def none(*_, **__):
        yield None

    client._tmp_session = none
    try:
        yield client
    finally:
        del client._tmp_session


TEST_COMMANDS = ("--setParameter", "enableTestCommands=1")


def inserted(base):
    """The first `_id` of the documents that a transaction inserts which changes those from `base`
    on."""
    return 1000 + 10 * base


class Prepared:
    """A transaction of a session that is sent with every command."""

    def __init__(self, number=1, lsid=None):
        self.lsid = lsid or {"id": Binary(uuid.uuid4().bytes, 4)}
        self.number, self.has_started, self.at = number, False, None

    def command(self, client, command, database="test"):
        command = {**command, "lsid": self.lsid, "txnNumber": Int64(self.number), "autocommit": False}
        if not self.has_started:
            command["startTransaction"] = True
            self.has_started = True
        with own_sessions(client):
            return client[database].command(command)

    def write(self, client, base, collection="c"):
        """Inserts, changes and deletes; the collection has documents from `base` on."""
        self.command(client, {"insert": collection, "documents": [{"_id": inserted(base) + i, "n": i} for i in range(20)]})
        change = {"q": {"_id": {"$gte": base, "$lt": base + 5}}, "u": {"$inc": {"n": 1000}}, "multi": True}
        self.command(client, {"update": collection, "updates": [change]})
        self.command(client, {"delete": collection, "deletes": [{"q": {"_id": base + 9}, "limit": 1}]})

    def prepare(self, client, concern="majority"):
        command = {"prepareTransaction": 1, "writeConcern": {"w": concern}}
        self.at = self.command(client, command, "admin")["prepareTimestamp"]
        return self.at

    def commit(self, client, at=None, concern="majority"):
        command = {"commitTransaction": 1, "commitTimestamp": at or self.at, "writeConcern": {"w": concern}}
        return self.command(client, command, "admin")

    def abort(self, client):
        return self.command(client, {"abortTransaction": 1, "writeConcern": {"w": "majority"}}, "admin")


def fails(code, run, *args, **options):
    with pytest.raises((OperationFailure, NotPrimaryError)) as caught:
        run(*args, **options)
    assert caught.value.details["code"] == code, caught.value.details
    return caught.value


def fill(client, collection="c"):
    things = client.test[collection]
    things.create_index("n")
    things.create_index("u", unique=True, sparse=True)
    things.insert_many([{"_id": i, "n": i, "u": i} for i in range(40)])


def before(base=0):
    return [(i, i) for i in range(base, base + 10)]


def after(base=0):
    changed = [(i, i + 1000 if i < base + 5 else i) for i in range(base, base + 9)]
    return changed + [(inserted(base) + i, i) for i in range(20)]


def found(client, base=0, collection="c", **options):
    things = client.get_database("test", read_preference=ReadPreference.SECONDARY_PREFERRED)[collection]
    query = {"$or": [{"_id": {"$gte": base, "$lt": base + 10}}, {"_id": {"$gte": inserted(base), "$lt": inserted(base) + 20}}]}
    return sorted((document["_id"], document["n"]) for document in things.find(query, **options))


def running(client, query):
    return list(client.admin.aggregate([{"$currentOp": {}}, {"$match": query}]))


def open_prepared(client):
    return client.admin.command("serverStatus")["transactions"]["currentPrepared"]


def check(members, expected, base=0):
    """Every member has the documents, and everything that is derived from them."""
    for node in members.nodes:
        wait_until(lambda node=node: members.state(node) in (1, 2))
        with members.member(node) as client:
            wait_until(lambda client=client: found(client, base) == expected)
            wait_until(lambda client=client: open_prepared(client) == 0)
    members.wait_alike()
    for node in members.nodes:
        with members.member(node) as client:
            test = client.get_database("test", read_preference=ReadPreference.SECONDARY_PREFERRED)
            assert test.command("validate", "c", full=True)["valid"]


@pytest.fixture(scope="module")
def alone():
    with ReplicaSet(1) as members:
        with members.client() as client:
            fill(client)
        yield members


def test_a_prepared_transaction_from_its_begin_to_its_end(alone):
    with alone.member(alone.nodes[0]) as client:
        transaction = Prepared()
        transaction.write(client, 0)
        reply = transaction.command(client, {"prepareTransaction": 1, "writeConcern": {"w": "majority"}}, "admin")
        transaction.at = reply["prepareTimestamp"]
        assert reply["affectedNamespaces"] == ["test.c"]
        assert found(client) == before()
        entry = client.local["oplog.rs"].find_one({"ts": transaction.at})
        assert entry["o"]["prepare"] is True and len(entry["o"]["applyOps"]) == 26
        assert entry["prevOpTime"]["ts"] == Timestamp(0, 0) and entry["txnNumber"] == 1
        record = client.config.transactions.find_one({"_id.id": transaction.lsid["id"]})
        assert (record["state"], record["startOpTime"]["ts"]) == ("prepared", transaction.at)
        shown = list(client.admin.aggregate([{"$currentOp": {"idleSessions": True}}, {"$match": {"transaction.timePreparedMicros": {"$gt": 0}}}]))
        assert len(shown) == 1 and shown[0]["transaction"]["parameters"]["txnNumber"] == 1
        fails(267, transaction.command, client, {"find": "c"})
        fails(72, transaction.command, client, {"commitTransaction": 1}, "admin")
        fails(72, transaction.commit, client, Timestamp(transaction.at.time - 1, 1))
        transaction.commit(client)
        transaction.commit(client)
        assert found(client) == after()
        ended = client.local["oplog.rs"].find_one({"o.commitTransaction": 1, "lsid.id": transaction.lsid["id"]})
        assert ended["o"]["commitTimestamp"] == transaction.at < ended["ts"]
        assert ended["prevOpTime"]["ts"] == transaction.at
        # At the time of the commit it is there, though that was reported later.
        at = {"level": "snapshot", "atClusterTime": transaction.at}
        reply = client.test.command({"count": "c", "query": {"_id": {"$gte": inserted(0), "$lt": inserted(0) + 20}}} | {"readConcern": {"level": "local"}})
        assert reply["n"] == 20
        reply = client.test.command({"find": "c", "filter": {"_id": 9}, "readConcern": at})
        assert reply["cursor"]["firstBatch"] == []
        counted = client.admin.command("serverStatus")["transactions"]
        assert counted["totalPrepared"] >= 1 and counted["totalPreparedThenCommitted"] >= 1
        assert client.test.command("validate", "c", full=True)["valid"]


def test_readers_and_writers_wait(alone):
    with alone.member(alone.nodes[0]) as client:
        transaction = Prepared()
        transaction.write(client, 10)
        transaction.prepare(client)
        assert found(client, 10) == before(10)
        for level in ("local", "available", "majority"):
            one = client.test.get_collection("c", read_concern=ReadConcern(level)).find_one({"_id": 10})
            assert one["n"] == 10
        query = {"find": "c", "filter": {"_id": 10}, "maxTimeMS": 100}
        for concern in (
            {"level": "snapshot"}, {"level": "linearizable"}, {"afterClusterTime": transaction.at},
            {"level": "majority", "afterClusterTime": transaction.at},
        ):
            fails(50, client.test.command, {**query, "readConcern": concern})
        fails(50, client.test.command, {"update": "c", "updates": [{"q": {"_id": 10}, "u": {"$inc": {"n": 1}}}], "maxTimeMS": 100})
        fails(50, client.test.command, {"insert": "c", "documents": [{"_id": inserted(10)}], "maxTimeMS": 100})
        with client.start_session() as session:
            session.start_transaction()
            fails(112, client.test.c.insert_one, {"_id": inserted(10) + 1}, session=session)
        # One that waits can be killed.
        killed = []

        def read():
            with alone.member(alone.nodes[0]) as other:
                killed.append(fails(11601, other.test.command, {"find": "c", "filter": {"_id": 10}, "readConcern": {"level": "snapshot"}, "comment": "waits"}))

        reader = threading.Thread(target=read)
        reader.start()
        wait_until(lambda: running(client, {"command.comment": "waits"}))
        client.admin.command("killOp", op=running(client, {"command.comment": "waits"})[0]["opid"])
        reader.join(PATIENCE_SECS)
        assert killed
        seen = []

        def wait_for_it():
            with alone.member(alone.nodes[0]) as other:
                concern = {"level": "snapshot"}
                find = {"find": "c", "filter": {"_id": 10}, "readConcern": concern, "comment": "waits on"}
                seen.append(other.test.command(find)["cursor"]["firstBatch"])

        reader = threading.Thread(target=wait_for_it)
        reader.start()
        wait_until(lambda: running(client, {"command.comment": "waits on"}))
        time.sleep(0.5)
        assert not seen
        transaction.abort(client)
        reader.join(PATIENCE_SECS)
        assert seen[0][0]["n"] == 10 and found(client, 10) == before(10)
        fails(251, transaction.abort, client)
        fails(251, transaction.commit, client)


def test_neither_age_nor_the_end_of_its_session_takes_it(alone):
    with alone.member(alone.nodes[0]) as client:
        # It begins with so short a life, and is prepared before that is over: on a slow machine
        # perhaps not at once.
        client.admin.command("setParameter", 1, transactionLifetimeLimitSeconds=3)
        tries = []

        def is_prepared():
            tries.append(Prepared())
            try:
                tries[-1].write(client, 20)
                return tries[-1].prepare(client)
            except OperationFailure as error:
                assert error.code in (251, 290), error
                return None

        wait_until(is_prepared)
        transaction, other, aged = tries[-1], Prepared(), Prepared()
        other.command(client, {"insert": "c", "documents": [{"_id": "other"}]})
        client.admin.command("killAllSessions", [])
        client.admin.command("endSessions", [transaction.lsid])
        fails(251, other.command, client, {"find": "c"})
        # Another that is younger and is not prepared comes to its end by its age.
        aborted = client.admin.command("serverStatus")["transactions"]["totalAborted"]
        aged.command(client, {"insert": "c", "documents": [{"_id": "aged"}]})
        wait_until(lambda: client.admin.command("serverStatus")["transactions"]["totalAborted"] > aborted)
        fails(251, aged.command, client, {"find": "c"})
        assert open_prepared(client) == 1
        client.admin.command("setParameter", 1, transactionLifetimeLimitSeconds=60)
        # What the session does next waits.
        later = Prepared(2, transaction.lsid)
        done = []

        def proceed():
            with alone.member(alone.nodes[0]) as connection:
                later.command(connection, {"insert": "c", "documents": [{"_id": "later"}], "comment": "continues"})
                done.append(True)

        thread = threading.Thread(target=proceed)
        thread.start()
        wait_until(lambda: running(client, {"command.comment": "continues"}))
        time.sleep(0.5)
        assert not done
        transaction.commit(client)
        thread.join(PATIENCE_SECS)
        assert done and found(client, 20) == after(20)
        later.abort(client)


def test_change_streams_show_it_with_its_commit(alone):
    with alone.member(alone.nodes[0]) as client:
        client.test.create_collection("s")
        with client.test.s.watch() as stream:
            transaction, aborted = Prepared(), Prepared()
            transaction.command(client, {"insert": "s", "documents": [{"_id": 1}, {"_id": 2}]})
            transaction.prepare(client)
            aborted.command(client, {"insert": "s", "documents": [{"_id": 3}]})
            aborted.prepare(client)
            client.test.s.insert_one({"_id": 4})
            assert stream.next()["documentKey"] == {"_id": 4}
            aborted.abort(client)
            transaction.commit(client)
            client.test.s.insert_one({"_id": 5})
            events = [stream.next() for _ in range(3)]
        assert [event["documentKey"]["_id"] for event in events] == [1, 2, 5]
        ended = client.local["oplog.rs"].find_one({"o.commitTransaction": 1, "lsid.id": transaction.lsid["id"]})
        assert {event["clusterTime"] for event in events[:2]} == {ended["ts"]}
        assert all(event["txnNumber"] == 1 for event in events[:2])


def later(run):
    """Runs something beside, and gives a list that its result, or its error, is put into."""
    done = []

    def beside():
        try:
            done.append(run())
        except PyMongoError as error:
            done.append(error)

    thread = threading.Thread(target=beside)
    thread.start()
    return done, thread


def test_changes_of_the_catalog_wait(alone):
    with alone.member(alone.nodes[0]) as client, alone.member(alone.nodes[0]) as other:
        client.test.d.insert_many([{"_id": i, "n": i} for i in range(10)])
        for change in ({"createIndexes": "d", "indexes": [{"key": {"n": 1}, "name": "n"}]}, {"drop": "d"}):
            transaction = Prepared()
            transaction.command(client, {"insert": "d", "documents": [{"_id": str(change)}]})
            transaction.prepare(client)
            done, thread = later(lambda change=change: other.test.command({**change, "comment": "changes"}))
            wait_until(lambda: running(client, {"command.comment": "changes"}))
            time.sleep(0.5)
            assert not done
            transaction.commit(client)
            thread.join(PATIENCE_SECS)
            assert done[0]["ok"] == 1, done
        assert "d" not in client.test.list_collection_names()


@pytest.mark.parametrize("commits", [True, False])
def test_a_restart_in_between(commits):
    with ReplicaSet(1) as members:
        node = members.nodes[0]
        with members.client() as client:
            fill(client)
        transaction, late = Prepared(), Prepared()
        with members.member(node) as client:
            transaction.write(client, 0)
            transaction.prepare(client)
            client.admin.command("fsync")
            late.write(client, 20)
            late.prepare(client)
            client.test.other.insert_one({"_id": 1})
        # A kill, a kill behind a checkpoint, and a clean end.
        for how in (node.kill, node.kill, node.stop):
            how()
            node.start()
            members.primary()
            with members.member(node) as client:
                assert open_prepared(client) == 2
                assert found(client) == before() and found(client, 20) == before(20)
                # There is a snapshot to read from then on.
                client.test.other.insert_one({})
                fails(50, client.test.command, {"find": "c", "readConcern": {"level": "snapshot"}, "maxTimeMS": 100})
                client.admin.command("fsync")
        with members.member(node) as client:
            at = max(transaction.at, late.at)
            late.commit(client, at)
            transaction.commit(client, at) if commits else transaction.abort(client)
            expected = after() if commits else before()
            assert found(client) == expected and found(client, 20) == after(20)
        node.kill()
        node.start()
        members.primary()
        with members.member(node) as client:
            assert open_prepared(client) == 0
            assert found(client) == expected and found(client, 20) == after(20)
            late.commit(client, at)
            assert client.test.command("validate", "c", full=True)["valid"]
            client.test.drop_collection("c")


@pytest.fixture
def three():
    with ReplicaSet(3, STEADY) as members:
        with members.client(w=3) as client:
            fill(client)
        yield members


@pytest.mark.parametrize("commits", [True, False])
def test_the_next_primary_ends_it(three, commits):
    transaction = Prepared()
    first = three.nodes[0]
    with three.member(first) as client:
        transaction.write(client, 0)
        transaction.prepare(client)
    for node in three.nodes:
        with three.member(node) as client:
            wait_until(lambda client=client: open_prepared(client) == 1)
            assert found(client) == before()
    first.kill()
    second = elected(three)
    with three.member(second) as client:
        assert open_prepared(client) == 1 and found(client) == before()
        fails(267, transaction.command, client, {"find": "c"})
        fails(50, client.test.command, {"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"n": 1}}}], "maxTimeMS": 100})
        assert transaction.prepare(client) == transaction.at
        client.test.other.insert_one({})
        transaction.commit(client) if commits else transaction.abort(client)
        assert found(client) == (after() if commits else before())
    first.start()
    check(three, after() if commits else before())


def test_a_step_down_keeps_it(three):
    transaction, open_one = Prepared(), Prepared()
    with three.member(three.nodes[0]) as client:
        transaction.write(client, 0)
        transaction.prepare(client)
        open_one.command(client, {"insert": "c", "documents": [{"_id": "open"}]})
    with three.member(three.nodes[0]) as client, three.member(three.nodes[0]) as other:
        dropped, thread = later(lambda: other.test.command({"drop": "c", "comment": "drops"}))
        wait_until(lambda: running(client, {"command.comment": "drops"}))
        client.admin.command("replSetStepDown", 600, secondaryCatchUpPeriodSecs=60)
        assert open_prepared(client) == 1
        thread.join(PATIENCE_SECS)
        assert dropped[0].details["code"] == 11602, dropped
        fails(10107, transaction.commit, client)
    second = elected(three)
    assert second is not three.nodes[0]
    with three.member(second) as client:
        transaction.commit(client)
    check(three, after())
    with three.client() as client:
        client.test.drop_collection("c")


def test_what_only_the_old_primary_had_is_rolled_back(three):
    """Of three transactions the old primary has prepared one alone, committed another, and aborted
    the last."""
    old, rest = three.nodes[0], three.nodes[1:]
    lost, committed, aborted = Prepared(), Prepared(), Prepared()
    with three.member(old) as client:
        for transaction, base in ((committed, 10), (aborted, 20)):
            transaction.write(client, base)
            transaction.prepare(client)
    for node in rest:
        node.kill()
    with three.member(old, retryWrites=False) as client:
        lost.write(client, 0)
        lost.command(client, {"prepareTransaction": 1, "writeConcern": {"w": 1, "j": True}}, "admin")
        committed.commit(client, concern=1)
        aborted.command(client, {"abortTransaction": 1, "writeConcern": {"w": 1, "j": True}}, "admin")
        assert found(client, 10) == after(10)
    old.kill()
    for node in rest:
        node.start()
    wait_until(lambda: takes_over(three, rest[0]))
    with three.member(rest[0], w=2) as client:
        client.test.c.insert_one({"_id": "kept"})
    old.start()
    wait_until(lambda: three.state(old) in (1, 2))
    def is_back():
        """Whether it has rolled back: it reads nothing meanwhile."""
        try:
            return found(client, 10) == before(10)
        except NotPrimaryError:
            return False

    with three.member(old) as client:
        wait_until(is_back)
        assert open_prepared(client) == 2 and found(client) == before() and found(client, 20) == before(20)
    with three.member(three.primary()) as client:
        fails(251, lost.commit, client, committed.at)
        committed.commit(client)
        aborted.commit(client)
    check(three, after(10), 10)
    check(three, after(20), 20)
    check(three, before(), 0)


@pytest.mark.parametrize("options", [(), FILES])
def test_a_new_member_gets_what_is_prepared(options):
    with ReplicaSet(1, STEADY, options=(*options[:2], *TEST_COMMANDS)) as members:
        kept, ended, aborted, during = Prepared(), Prepared(), Prepared(), Prepared()
        with members.client() as client:
            fill(client)
        with members.member(members.nodes[0]) as client:
            for transaction, base in ((kept, 0), (ended, 10), (aborted, 20)):
                transaction.write(client, base)
                transaction.prepare(client)
            client.test.other.insert_many([{"_id": i, "x": "y" * 1000} for i in range(5000)])
            client.admin.command("fsync")
            client.test.other.insert_many([{} for i in range(100)])
            data = {"failCommands": ["find", "_replReadCheckpoint"], "failInternalCommands": True, "blockConnection": True, "blockTimeMS": 300}
            client.admin.command({"configureFailPoint": "failCommand", "mode": {"times": 20}, "data": data})
        added = Node("--replSet", "rs0", "--cpus", "2", *options)
        added.start()
        with members.member(members.nodes[0]) as client:
            config = client.admin.command("replSetGetConfig")["config"]
            config["version"] += 1
            config["members"].append({"_id": 1, "host": f"127.0.0.1:{added.port}", "priority": 0, "votes": 0})
            client.admin.command("replSetReconfig", config)
            members.nodes.append(added)
            ended.commit(client, concern=1)
            aborted.command(client, {"abortTransaction": 1, "writeConcern": {"w": 1}}, "admin")
            during.write(client, 20)
            during.prepare(client, 1)
        wait_until(lambda: members.state(added) == 2)
        with members.member(added) as client:
            wait_until(lambda: open_prepared(client) == 2)
            assert found(client) == before()
            wait_until(lambda: found(client, 10) == after(10))
        added.kill()
        added.start()
        wait_until(lambda: members.state(added) == 2)
        with members.member(added) as client:
            wait_until(lambda: open_prepared(client) == 2)
        with members.member(members.nodes[0]) as client:
            kept.commit(client, concern=2)
            during.commit(client, concern=2)
        check(members, after(10), 10)
        check(members, after(20), 20)
        check(members, after(), 0)


def test_one_that_takes_several_entries(three):
    transaction = Prepared()
    with three.member(three.nodes[0]) as client:
        for i in range(200, 220):
            transaction.command(client, {"insert": "c", "documents": [{"_id": i, "x": "x" * (1 << 20)}]})
        transaction.prepare(client)
        parts = list(client.local["oplog.rs"].find({"lsid.id": transaction.lsid["id"]}, {"o.applyOps": 0}))
        assert [part["o"] for part in parts] == [{"partialTxn": True}, {"prepare": True, "count": 20}]
        record = client.config.transactions.find_one({"_id.id": transaction.lsid["id"]})
        assert record["startOpTime"]["ts"] == parts[0]["ts"] and record["lastWriteOpTime"]["ts"] == parts[1]["ts"]
    three.nodes[0].kill()
    with three.member(elected(three)) as client:
        assert client.test.c.count_documents({"_id": {"$gte": 200, "$lt": 220}}) == 0
        # By then it knows that a majority has what it was prepared by.
        client.test.other.insert_one({})
        transaction.commit(client)
        assert client.test.c.count_documents({"_id": {"$gte": 200, "$lt": 220}}) == 20
    three.nodes[0].start()
    check(three, before())


def test_many_at_once_while_primaries_die(three):
    """Each worker prepares and ends one transaction after the other, whichever member is primary;
    each is there as a whole or not at all."""
    stop, expected, lock = threading.Event(), {}, threading.Lock()
    errors = []

    def ended(transaction, commits):
        """Ends a transaction, as often as it takes. One that a majority never had may be lost."""
        while True:
            try:
                with three.client(retryWrites=False, socketTimeoutMS=30_000) as client:
                    transaction.commit(client) if commits else transaction.abort(client)
                    return commits
            except OperationFailure as error:
                if error.code == 251:
                    return False
            except pymongo.errors.PyMongoError:
                pass
            time.sleep(0.2)

    def work(worker):
        round_ = 0
        try:
            while not stop.is_set():
                round_ += 1
                transaction, base = Prepared(), 10_000 * (worker + 1) + 10 * round_
                try:
                    with three.client(retryWrites=False, socketTimeoutMS=30_000) as client:
                        transaction.command(client, {"insert": "many", "documents": [{"_id": base + i} for i in range(5)]})
                        transaction.prepare(client)
                except pymongo.errors.PyMongoError:
                    # Whatever became of it, it is not committed.
                    with lock:
                        expected[base] = False
                    if transaction.at is None:
                        ended(transaction, False)
                    continue
                commits = round_ % 4 != 0
                done = ended(transaction, commits)
                assert done == commits, (base, done)
                with lock:
                    expected[base] = commits
        except BaseException as error:
            errors.append(error)

    with three.client() as client:
        client.test.create_collection("many")
    workers = [threading.Thread(target=work, args=(worker,), daemon=True) for worker in range(6)]
    for worker in workers:
        worker.start()
    for _ in range(3):
        # Some end in between.
        before_it = sum(list(expected.values()))
        wait_until(lambda before_it=before_it: sum(list(expected.values())) > before_it + 4 or errors)
        primary = three.primary()
        primary.kill()
        elected(three)
        primary.start()
        wait_until(lambda primary=primary: three.state(primary) in (1, 2))
    stop.set()
    for worker in workers:
        worker.join(PATIENCE_SECS)
    assert not errors and sum(expected.values()) > 10, (errors, expected)
    for node in three.nodes:
        with three.member(node) as client:
            wait_until(lambda client=client: open_prepared(client) == 0)
    three.wait_alike()
    with three.client() as client:
        ids = {document["_id"] for document in client.test.many.find()}
    for base, commits in expected.items():
        assert {base + i for i in range(5)} & ids == ({base + i for i in range(5)} if commits else set()), base
