"""What routers count of transactions: `transactions` of serverStatus."""

import uuid

import pytest
from bson import Binary, Int64
from bson.binary import UUID_SUBTYPE
from pinion_cluster import fails
from pinion_node import Beside, FailPoint, wait_until
from pinion_wire import Wire
from pymongo.errors import DuplicateKeyError
from test_sharded import split_in_zones

COMMITS = ["noShards", "singleShard", "singleWriteShard", "readOnly", "twoPhaseCommit", "recoverWithToken"]
GAUGES = ["currentOpen", "currentActive", "currentInactive"]


@pytest.fixture
def client(cluster):
    with cluster.client() as connected:
        yield connected


@pytest.fixture
def ranged(cluster, client):
    """A collection with half of its documents on each shard."""
    client.drop_database("d")
    cluster.make_database("d", 0, client)
    split_in_zones(client, "d.r", {"k": 1}, 100)
    client.d.r.insert_many([{"_id": n, "k": n} for n in range(200)])
    client.d.r.count_documents({})
    return client.d.r


class Counts:
    """What a router counts: all of it is compared, as it has changed since the last comparison."""

    def __init__(self, client):
        self.client = client
        self.known = self.now()

    def now(self):
        shown = self.client.admin.command("serverStatus")["transactions"]
        causes, commits = shown.pop("abortCause"), shown.pop("commitTypes")
        assert list(commits) == COMMITS
        assert shown["currentOpen"] == shown["currentActive"] + shown["currentInactive"]
        for name, counts in commits.items():
            assert list(counts) == ["initiated", "successful", "successfulDurationMicros"]
            assert (counts.pop("successfulDurationMicros") > 0) == (counts["successful"] > 0 and name != "noShards")
            shown |= {f"{name}.{field}": count for field, count in counts.items()}
        return shown | {f"abortCause.{name}": count for name, count in causes.items()}

    def changed(self):
        changes = {name: count - self.known.get(name, 0) for name, count in self.now().items()}
        return {name: change for name, change in changes.items() if change}

    def check(self, **expected):
        """A transaction goes back to the core of its session after the reply to its statement."""
        expected = {name.replace("__", "."): count for name, count in expected.items()}
        try:
            wait_until(lambda: self.changed() == expected, 10)
        except Exception:
            assert self.changed() == expected
            raise
        self.known = self.now()


@pytest.fixture
def counts(client, ranged):
    counts = Counts(client)
    yield counts
    assert all(counts.now()[name] == 0 for name in GAUGES)


def test_commits(client, ranged, counts):
    with client.start_session() as session:
        with session.start_transaction():
            ranged.insert_one({"_id": 500, "k": 500}, session=session)
            counts.check(currentOpen=1, currentInactive=1, totalStarted=1, totalContactedParticipants=1, totalRequestsTargeted=1)
        over = {"currentOpen": -1, "currentInactive": -1}
        counts.check(
            **over, totalCommitted=1, totalParticipantsAtCommit=1, totalRequestsTargeted=1,
            singleShard__initiated=1, singleShard__successful=1,
        )
        with session.start_transaction():
            assert ranged.count_documents({}, session=session) == 201
            ranged.update_one({"k": 120}, {"$set": {"x": 1}}, session=session)
            counts.check(currentOpen=1, currentInactive=1, totalStarted=1, totalContactedParticipants=2, totalRequestsTargeted=3)
        counts.check(
            **over, totalCommitted=1, totalParticipantsAtCommit=2, totalRequestsTargeted=2,
            singleWriteShard__initiated=1, singleWriteShard__successful=1,
        )
        with session.start_transaction():
            assert ranged.count_documents({}, session=session) == 201
        counts.check(
            totalStarted=1, totalContactedParticipants=2, totalCommitted=1, totalParticipantsAtCommit=2,
            totalRequestsTargeted=4, readOnly__initiated=1, readOnly__successful=1,
        )
        # A commit that is sent again is that commit.
        session.commit_transaction()
        counts.check(totalRequestsTargeted=1)


def test_aborts(cluster, client, ranged, counts):
    with client.start_session() as session:
        session.start_transaction()
        ranged.insert_one({"k": 1}, session=session)
        session.abort_transaction()
        counts.check(
            totalStarted=1, totalContactedParticipants=1, totalRequestsTargeted=2, totalAborted=1, abortCause__abort=1,
        )
        session.start_transaction()
        with pytest.raises(DuplicateKeyError):
            ranged.insert_one({"_id": 1, "k": 1}, session=session)
        # The abort is sent to the shard that has failed, too.
        failed = {"totalStarted": 1, "totalContactedParticipants": 1, "totalAborted": 1}
        counts.check(**failed, totalRequestsTargeted=2, abortCause__DuplicateKey=1)
        session.abort_transaction()
        counts.check(totalRequestsTargeted=1)
        # What a shard has aborted, as it does with a transaction that takes too long.
        for is_commit in (False, True):
            session.start_transaction()
            ranged.insert_one({"k": 170}, session=session)
            with cluster.shards[1].client() as direct:
                direct.admin.command("killAllSessions", [])
            if is_commit:
                fails(session.commit_transaction, 251)
            else:
                fails(lambda: ranged.find_one({"k": 150}, session=session), 251)
                session.abort_transaction()
            wait_until(lambda: not set(GAUGES) & set(counts.changed()))
        changed = counts.changed()
        assert changed["totalStarted"] == changed["totalAborted"] == changed["abortCause.NoSuchTransaction"] == 2
        assert changed["singleShard.initiated"] == changed["totalParticipantsAtCommit"] == 1
        assert not {"totalCommitted", "singleShard.successful", *GAUGES} & set(changed), changed


def lsid():
    return {"id": Binary(uuid.uuid4().bytes, UUID_SUBTYPE)}


def insert(session, number):
    return {
        "insert": "r", "documents": [{"k": 300}], "lsid": session, "txnNumber": Int64(number),
        "startTransaction": True, "autocommit": False,
    }


def test_transactions_without_an_end(cluster, counts):
    opened = {"totalStarted": 1, "totalContactedParticipants": 1, "totalRequestsTargeted": 1}
    session = lsid()
    with Wire(cluster.routers[0].port) as client:
        assert client.command("d", insert(session, 1))["n"] == 1
        counts.check(**opened, currentOpen=1, currentInactive=1)
        # The next one takes its place; what has become of it is not known.
        assert client.command("d", insert(session, 2))["n"] == 1
        counts.check(**opened)
    # A client that is gone leaves it open, until its session ends.
    counts.check()
    with Wire(cluster.routers[0].port) as client:
        assert client.command("admin", {"endSessions": [session]})["ok"] == 1.0
        counts.check(currentOpen=-1, currentInactive=-1)
        session = lsid()
        assert client.command("d", insert(session, 1))["n"] == 1
        counts.check(**opened, currentOpen=1, currentInactive=1)
        assert client.command("admin", {"killSessions": [session]})["ok"] == 1.0
        counts.check(currentOpen=-1, currentInactive=-1)


def test_a_statement_that_runs(cluster, client, ranged, counts):
    with cluster.shards[0].client() as direct, client.start_session() as session:
        session.start_transaction()
        point = FailPoint(
            direct, "failCommand", {"times": 1}, failCommands=["find"], blockConnection=True, blockTimeMS=1500,
            failInternalCommands=True,
        )
        reading = Beside(lambda: ranged.find_one({"k": 1}, session=session))
        counts.check(currentOpen=1, currentActive=1, totalStarted=1, totalContactedParticipants=1, totalRequestsTargeted=1)
        reading.join()
        assert reading.answer["_id"] == 1, reading.error
        point.off()
        counts.check(currentActive=-1, currentInactive=1)
        session.abort_transaction()
        counts.check(currentOpen=-1, currentInactive=-1, totalRequestsTargeted=1, totalAborted=1, abortCause__abort=1)


def test_commits_at_another_router(cluster, client, ranged, counts):
    session = lsid()
    commit = {"commitTransaction": 1, "lsid": session, "txnNumber": Int64(1), "autocommit": False}
    with Wire(cluster.routers[1].port) as other, Wire(cluster.routers[0].port) as first:
        token = other.command("d", insert(session, 1))["recoveryToken"]
        assert other.command("admin", {**commit, "recoveryToken": token})["ok"] == 1.0
        # Which shards took part is not known here.
        assert first.command("admin", {**commit, "recoveryToken": token})["ok"] == 1.0
        recovered = {"totalStarted": 1, "totalRequestsTargeted": 2, "recoverWithToken__initiated": 1}
        counts.check(**recovered, totalCommitted=1, recoverWithToken__successful=1)
        commit["txnNumber"] = Int64(2)
        token = other.command("d", insert(session, 2))["recoveryToken"]
        assert first.command("admin", {**commit, "recoveryToken": token})["code"] == 251
        counts.check(**recovered, totalAborted=1, abortCause__NoSuchTransaction=1)
        assert other.command("admin", {**commit, "recoveryToken": token})["code"] == 251
