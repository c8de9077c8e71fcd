"""A primary that is silent, with a set's default settings: another is elected soon, and the old one
does no harm when it wakes."""

import time

import pytest
from pinion_arrivals import Arrivals
from pinion_node import Beside, ReplicaSet, wait_until
from pymongo import ReadPreference, WriteConcern
from pymongo.errors import OperationFailure
from pymongo.read_concern import ReadConcern


def term(members, node):
    with members.member(node) as client:
        return client.admin.command("replSetGetStatus")["term"]


def knows_primary(members, node):
    with members.member(node) as client:
        return "primary" in client.admin.command("hello")


# What one waits at the most for a write: by the election timeout it would be ten seconds.
WITHOUT_SECS = 8


def test_another_takes_writes_and_the_old_one_acknowledges_nothing():
    with ReplicaSet(3, settings={}) as members, members.client() as client:
        numbers = client.test.get_collection("numbers", write_concern=WriteConcern("majority"))
        numbers.insert_one({"_id": 1, "n": 1})
        old = members.primary()
        rest = [node for node in members.nodes if node is not old]
        # Nothing is sent twice: what the old primary answers is what the caller sees.
        with members.member(old, retryWrites=False, retryReads=False) as direct, Arrivals(client) as arrivals:
            collection = direct.test.get_collection("numbers", write_concern=WriteConcern("majority"))
            linearizable = collection.with_options(read_concern=ReadConcern("linearizable"))
            # Connections that are there already.
            assert [linearizable.find_one({"_id": 1})["n"] for _ in range(2)] == [1, 1]
            wait_until(lambda: arrivals.acknowledged)
            old.suspend()
            stopped = time.monotonic()
            write = Beside(lambda: collection.insert_one({"_id": "too late"}))
            read = Beside(lambda: linearizable.find_one({"_id": 1}, max_time_ms=120_000))
            wait_until(lambda: arrivals.first_after(stopped))
            without = arrivals.first_after(stopped) - stopped
            print(f"without a write for {without:.2f} s")
            assert without < WITHOUT_SECS
            numbers.update_one({"_id": 1}, {"$set": {"n": 2}})
            new = next(node for node in rest if members.state(node) == 1)
            with members.member(new) as successor:
                metrics = successor.admin.command("replSetGetStatus")["electionCandidateMetrics"]
            assert metrics["lastElectionReason"] == "electionTimeout" and metrics["electionTimeoutMillis"] == 10_000
            old.resume()
            write.join(120)
            read.join(120)
            # It has a write of its own, at the most, which no majority has; and it finds no member
            # that confirms that it is primary.
            assert write.error is not None, write.answer
            assert read.error is not None, read.answer
            wait_until(lambda: members.state(old) in (1, 2))
        members.wait_alike()
        assert numbers.count_documents({"_id": "too late"}) == 0
        assert numbers.find_one({"_id": 1}) == {"_id": 1, "n": 2}
        wanted = {at for _, _, at in arrivals.acknowledged}
        found = client.test.get_collection("arrivals", read_preference=ReadPreference.PRIMARY).find()
        assert wanted <= {document["_id"] for document in found}


def test_one_that_has_just_started_lets_another_succeed():
    # A driver that has found a member down looks at it again after ten seconds, or when it misses a
    # primary: one that is silent it does not miss. If the member that has just started succeeded,
    # its clients would wait for so long.
    with ReplicaSet(3, settings={}) as members, members.client() as client, Arrivals(client) as arrivals:
        old, started, _ = members.nodes
        # The third has run for longer.
        time.sleep(10)
        wait_until(lambda: len(client.nodes) == 3 and arrivals.acknowledged)
        started.kill()
        wait_until(lambda: ("127.0.0.1", started.port) not in client.nodes)
        started.start()
        wait_until(lambda: members.state(started) == 2)
        # The primary has found it: of one that it never heard it cannot say that it is silent.
        wait_until(lambda: knows_primary(members, started))
        old.suspend()
        stopped = time.monotonic()
        wait_until(lambda: arrivals.first_after(stopped))
        without = arrivals.first_after(stopped) - stopped
        print(f"without a write for {without:.2f} s")
        assert without < WITHOUT_SECS
        old.resume()
        wait_until(lambda: members.state(old) in (1, 2))
        # By its priority it takes over later.
        wait_until(lambda: members.state(old) == 1)


def test_members_that_did_not_run_suspect_no_primary():
    with ReplicaSet(3, settings={}) as members:
        primary = members.primary()
        before = term(members, primary)
        others = [node for node in members.nodes if node is not primary]
        for _ in range(2):
            for node in others:
                node.suspend()
            time.sleep(3)
            for node in others:
                node.resume()
            time.sleep(2.5)
        assert members.primary() is primary
        assert [term(members, node) for node in members.nodes] == [before] * 3


def test_it_can_be_switched_off():
    # The limit that is set further down is reached long before this; under a timeout that is longer
    # than usual it is as much longer.
    settings = {"electionTimeoutMillis": 30_000, "heartbeatTimeoutSecs": 60}
    members = ReplicaSet(3, settings, options=("--setParameter", "primarySilenceLimitMillis=0"))
    with members:
        old = members.primary()
        rest = [node for node in members.nodes if node is not old]
        before = term(members, old)
        with members.member(rest[0]) as client:
            for refused in (-1, 1, 199):
                with pytest.raises(OperationFailure) as caught:
                    client.admin.command("setParameter", 1, primarySilenceLimitMillis=refused)
                assert caught.value.code == 2
            assert client.admin.command("getParameter", 1, primarySilenceLimitMillis=1)["primarySilenceLimitMillis"] == 0
        old.suspend()
        time.sleep(8)
        assert [term(members, node) for node in rest] == [before] * 2
        # It is looked at whenever it is set.
        for node in rest:
            with members.member(node) as client:
                assert client.admin.command("setParameter", 1, primarySilenceLimitMillis=1000)["was"] == 0
        wait_until(lambda: any(members.state(node) == 1 for node in rest), 15)
        old.resume()
        wait_until(lambda: members.state(old) in (1, 2))
