"""Internal transactions on real sets: a retryable write that servers execute for a client happens
once, whichever member leads by then, and whichever server sends it again.
"""

import threading
import uuid

import pytest
from bson import Binary, Int64
from pinion_elections import elected
from pinion_node import PATIENCE_SECS, STEADY, Node, ReplicaSet, wait_until
from pymongo.errors import PyMongoError
from test_key_file import key_file
from test_prepared import FILES, own_sessions, fails


class Write:
    """A retryable write of a client, and the internal transactions that execute it."""

    def __init__(self, number=1, session=None):
        self.session, self.number = session or {"id": Binary(uuid.uuid4().bytes, 4)}, Int64(number)

    def child(self):
        """The session of another transaction that executes it."""
        return {**self.session, "txnNumber": self.number, "txnUUID": Binary(uuid.uuid4().bytes, 4)}

    def itself(self, client, command, database="test"):
        with own_sessions(client):
            return client[database].command({**command, "lsid": self.session, "txnNumber": self.number})


def inside(client, child, command, database="test", **more):
    fields = {"lsid": child, "txnNumber": Int64(0), "autocommit": False, **more}
    with own_sessions(client):
        return client[database].command({**command, **fields})


def begin(client, child, command):
    return inside(client, child, command, startTransaction=True)


def commit(client, child, concern="majority", **more):
    return inside(client, child, {"commitTransaction": 1, "writeConcern": {"w": concern}, **more}, "admin")


def prepare(client, child):
    command = {"prepareTransaction": 1, "writeConcern": {"w": "majority"}}
    return inside(client, child, command, "admin")["prepareTimestamp"]


def increment(ids, stmt_ids):
    updates = [{"q": {"_id": i}, "u": {"$inc": {"n": 1}}} for i in ids]
    return {"update": "c", "updates": updates, "stmtIds": stmt_ids}


def modify(i, stmt_id):
    return {"findAndModify": "c", "query": {"_id": i}, "update": {"$inc": {"n": 1}}, "new": True, "stmtId": stmt_id}


def numbers(client):
    return {document["_id"]: document["n"] for document in client.test.c.find()}


def fill(members):
    with members.client(w="majority") as client:
        client.test.c.insert_many([{"_id": i, "n": 0} for i in range(6)])


@pytest.fixture
def three():
    with ReplicaSet(3, STEADY) as members:
        fill(members)
        yield members


def test_the_log_and_the_record_show_it():
    with ReplicaSet(1) as members:
        fill(members)
        with members.member(members.nodes[0]) as client:
            write = Write(7)
            child = write.child()
            begin(client, child, increment([0, 1], [4, 5]))
            inside(client, child, modify(2, 6))
            inside(client, child, increment([3], [-1]))
            commit(client, child)
            entry = client.local["oplog.rs"].find_one({"lsid.txnUUID": child["txnUUID"]})
            operations = entry["o"]["applyOps"]
            assert [operation.get("stmtId") for operation in operations] == [4, 5, 6, None]
            assert [operation.get("needsRetryImage") for operation in operations] == [None, None, "postImage", None]
            assert list(entry["lsid"]) == ["id", "uid", "txnNumber", "txnUUID"] and entry["txnNumber"] == 0
            record = client.config.transactions.find_one({"_id.txnUUID": child["txnUUID"]})
            parent = {"id": write.session["id"], "uid": entry["lsid"]["uid"]}
            assert (record["parentLsid"], record["state"], record["txnNum"]) == (parent, "committed", 0)
            assert record["lastWriteOpTime"]["ts"] == entry["ts"] and record["_id"] == entry["lsid"]
            assert client.config.transactions.count_documents({"_id": parent}) == 0
            image = client.config.image_collection.find_one({"_id": entry["lsid"]})
            assert image["image"] == {"_id": 2, "n": 1} and image["ts"] == entry["ts"]
            reply = write.itself(client, {**increment([0, 1], [4, 5])})
            assert reply["retriedStmtIds"] == [4, 5] and numbers(client)[0] == 1
            # A stream shows it as what its clients have done.
            with client.test.c.watch(start_at_operation_time=entry["ts"]) as stream:
                events = [stream.next() for _ in range(4)]
            assert {event["txnNumber"] for event in events} == {0}


@pytest.mark.parametrize("is_prepared", [False, True])
def test_the_next_primary_answers_for_it(three, is_prepared):
    write, first = Write(3), three.nodes[0]
    child = write.child()
    with three.member(first) as client:
        begin(client, child, increment([0, 1], [0, 1]))
        reply = inside(client, child, modify(2, 2))
        at = prepare(client, child) if is_prepared else None
        if not is_prepared:
            commit(client, child)
    first.kill()
    with three.member(elected(three)) as client:
        client.test.other.insert_one({})
        if is_prepared:
            fails(50, write.itself, client, {**modify(2, 2), "maxTimeMS": 200})
            commit(client, child, commitTimestamp=at)
        assert commit(client, child, **({"commitTimestamp": at} if is_prepared else {}))["ok"] == 1
        assert write.itself(client, increment([0, 1], [0, 1]))["retriedStmtIds"] == [0, 1]
        again = write.child()
        retried = begin(client, again, modify(2, 2))
        assert (retried["retriedStmtId"], retried["value"]) == (2, reply["value"])
        commit(client, again)
        fails(225, Write(2, write.session).itself, client, increment([0], [0]))
        assert [numbers(client)[i] for i in range(3)] == [1, 1, 1]
    first.start()
    wait_until(lambda: three.state(first) in (1, 2))
    three.wait_alike()
    wait_until(lambda: three.hashes(first, "config") == three.hashes(three.primary(), "config"))


@pytest.mark.parametrize("options", [(), FILES])
def test_a_new_member_knows_of_it(options):
    with ReplicaSet(1, STEADY, options[:2]) as members:
        fill(members)
        done, waiting = Write(1), Write(2)
        with members.member(members.nodes[0]) as client:
            child, prepared = done.child(), waiting.child()
            begin(client, child, increment([0, 1], [0, 1]))
            commit(client, child)
            begin(client, prepared, increment([2], [0]))
            at = prepare(client, prepared)
        added = Node("--replSet", "rs0", "--cpus", "2", *options)
        added.start()
        members.reconfigure(lambda config: config["members"].append({"_id": 1, "host": f"127.0.0.1:{added.port}", "priority": 5}))
        members.nodes.append(added)
        wait_until(lambda: members.state(added) == 2)
        wait_until(lambda: members.steps_up(added))
        with members.member(added) as client:
            client.test.other.insert_one({})
            assert done.itself(client, increment([0, 1], [0, 1]))["retriedStmtIds"] == [0, 1]
            commit(client, prepared, commitTimestamp=at)
            assert waiting.itself(client, increment([2], [0]))["retriedStmtIds"] == [0]
            assert [numbers(client)[i] for i in range(3)] == [1, 1, 1]


def test_clients_have_none(tmp_path):
    """Where members know each other by a key, no other client executes a client's write for it."""
    with ReplicaSet(1, options=("--keyFile", key_file(tmp_path / "key", "afirstkey"))) as members, members.client() as client:
        write = Write()
        error = fails(72, begin, client, write.child(), increment([0], [0]))
        assert "only allowed for internal clients" in str(error)


def test_it_happens_once_while_primaries_die(three):
    """Each worker has one write executed by one transaction after the other, and by itself, until
    it is sure of it."""
    stop, errors, counted = threading.Event(), [], [0] * 4

    def attempt(client, write, turn, worker):
        command = increment([worker], [0])
        if turn % 3 == 2:
            write.itself(client, {**command, "writeConcern": {"w": "majority"}})
            return
        child = write.child()
        begin(client, child, command)
        if turn % 3 == 1:
            commit(client, child, commitTimestamp=prepare(client, child))
        else:
            commit(client, child)

    def work(worker):
        write, turn = Write(), worker
        try:
            while not stop.is_set():
                while True:
                    turn += 1
                    try:
                        with three.client(retryWrites=False, socketTimeoutMS=20_000) as client:
                            attempt(client, write, turn, worker)
                        break
                    except PyMongoError:
                        # What is prepared and has lost its client has to be ended by somebody.
                        end_all()
                counted[worker] += 1
                write = Write(counted[worker] + 1, write.session)
        except BaseException as error:
            errors.append(error)

    def end_all():
        """Aborts what is prepared, as a coordinator would whose clients are gone."""
        try:
            with three.client(retryWrites=False, socketTimeoutMS=20_000) as client:
                for record in client.config.transactions.find({"state": "prepared"}):
                    inside(client, record["_id"], {"abortTransaction": 1}, "admin")
        except PyMongoError:
            pass

    workers = [threading.Thread(target=work, args=(worker,)) for worker in range(len(counted))]
    for worker in workers:
        worker.start()
    for _ in range(2):
        stop.wait(3)
        primary = three.primary()
        primary.kill()
        elected(three)
        primary.start()
        wait_until(lambda primary=primary: three.state(primary) in (1, 2))
    stop.set()
    for worker in workers:
        worker.join(PATIENCE_SECS)
        assert not worker.is_alive()
    assert not errors and all(counted), (errors, counted)
    three.wait_alike()
    with three.client() as client:
        assert [numbers(client)[i] for i in range(len(counted))] == counted
