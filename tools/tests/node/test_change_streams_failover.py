"""Change streams of a set whose members die and give way, and of a node that has very many of
them."""

import itertools
import threading
import time

import pymongo
import pytest
from pinion_node import PATIENCE_SECS, ReplicaSet, wait_until
from pymongo.errors import PyMongoError
from pymongo.read_preferences import ReadPreference


@pytest.fixture(scope="module")
def three():
    with ReplicaSet(3) as members:
        yield members


class Writer:
    """Writes numbers with w: majority, again where an answer did not come, until it is stopped."""

    def __init__(self, members):
        self.client = members.client(w="majority", retryWrites=True, wTimeoutMS=20_000)
        self.acknowledged = []
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        collection = self.client.test.chased
        for number in itertools.count():
            if self.stopping.is_set():
                return
            while True:
                try:
                    # The same document again is no second event.
                    collection.update_one({"_id": number}, {"$setOnInsert": {"n": number}}, upsert=True)
                    break
                except PyMongoError:
                    time.sleep(0.1)
            self.acknowledged.append(number)

    def stop(self):
        self.stopping.set()
        self.thread.join()
        self.client.close()


class Reader:
    """Reads a stream by its own resume tokens: a new cursor, perhaps of another member, wherever
    one breaks."""

    def __init__(self, members, preference):
        # So long it asks a member that is gone.
        self.client = members.client(read_preference=preference, retryReads=False, serverSelectionTimeoutMS=30_000)
        self.collection = self.client.test.chased
        self.stream = self.collection.watch(max_await_time_ms=300)
        self.numbers, self.tokens, self.times, self.errors = [], [], [], []
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        token = self.stream.resume_token
        while not self.stopping.is_set():
            try:
                with self.collection.watch(resume_after=token, max_await_time_ms=300) as stream:
                    while not self.stopping.is_set():
                        event = stream.try_next()
                        if event is not None:
                            self.numbers.append(event["documentKey"]["_id"])
                            self.tokens.append(event["_id"])
                            self.times.append(event["clusterTime"])
                        token = stream.resume_token
            except PyMongoError as error:
                details = getattr(error, "details", None) or {}
                if "NonResumableChangeStreamError" in details.get("errorLabels", ()):
                    self.errors.append(error)
                    return
                time.sleep(0.1)

    def stop(self):
        self.stopping.set()
        self.thread.join()
        self.client.close()


def test_every_event_comes_once_and_in_order_whichever_member_dies(three):
    readers = [Reader(three, ReadPreference.PRIMARY), Reader(three, ReadPreference.SECONDARY_PREFERRED)]
    writer = Writer(three)
    try:
        def written(more):
            goal = len(writer.acknowledged) + more
            wait_until(lambda: len(writer.acknowledged) >= goal)

        written(30)
        primary = three.primary()
        primary.kill()
        written(30)
        primary.start()
        wait_until(lambda: three.state(primary) in (1, 2))
        written(30)
        with three.member(three.primary()) as client:
            try:
                client.admin.command("replSetStepDown", 10, force=True)
            except pymongo.errors.AutoReconnect:
                pass
        written(30)
        secondary = three.secondaries()[0]
        secondary.kill()
        written(10)
        secondary.start()
        wait_until(lambda: three.state(secondary) in (1, 2))
        # One that is cut off as primary comes back and takes back what only it has.
        primary = three.primary()
        primary.suspend()
        try:
            written(20)
        finally:
            primary.resume()
        written(20)
    finally:
        writer.stop()
    count = len(writer.acknowledged)
    assert count >= 170
    try:
        for reader in readers:
            wait_until(lambda reader=reader: reader.errors or len(reader.numbers) >= count)
    finally:
        for reader in readers:
            reader.stop()
    for reader in readers:
        assert not reader.errors, reader.errors
        assert reader.numbers == list(range(count))
        data = [token["_data"] for token in reader.tokens]
        assert data == sorted(data)
    assert readers[0].tokens == readers[1].tokens
    # A stream that starts anywhere in it by now, on any member, sees the rest of it.
    tokens, times = readers[0].tokens, readers[0].times
    for node in three.nodes:
        collection = three.member(node).test.get_collection("chased", read_preference=ReadPreference.SECONDARY_PREFERRED)
        for options, first in (({"start_at_operation_time": times[0]}, 0), ({"resume_after": tokens[99]}, 100), ({"start_after": tokens[-10]}, count - 9)):
            with collection.watch(max_await_time_ms=300, **options) as stream:
                seen = []
                wait_until(lambda stream=stream, seen=seen: seen.append(stream.try_next()) or len([e for e in seen if e]) >= count - first)
            assert [event["_id"] for event in seen if event] == tokens[first:]


def test_a_thousand_streams_on_one_node():
    streams, names = 1000, 10
    with ReplicaSet(1) as members:
        client = members.client()
        database = client.test
        for name in range(names):
            database.create_collection(f"c{name}")
        opened = []
        for nth in range(streams):
            # All but a few wait for what comes; these are of everything in the database.
            target = 1 if nth % 100 == 99 else f"c{nth % names}"
            reply = database.command({"aggregate": target, "pipeline": [{"$changeStream": {}}], "cursor": {"batchSize": 0}})
            ns = reply["cursor"]["ns"].split(".", 1)[1]
            opened.append((reply["cursor"]["id"], ns, None if target == 1 else nth % names))

        def more(cursor, ns):
            reply = database.command({"getMore": cursor, "collection": ns, "maxTimeMS": 1})
            return [event["documentKey"]["_id"] for event in reply["cursor"]["nextBatch"]]

        def several(cursor, ns, count):
            found, started = [], time.monotonic()
            while len(found) < count:
                found += more(cursor, ns)
                assert time.monotonic() < started + PATIENCE_SECS, found
            return found

        for cursor, ns, _ in opened:
            assert more(cursor, ns) == []
        for round_ in range(3):
            for name in range(names):
                database[f"c{name}"].insert_one({"_id": round_ * names + name})
        for cursor, ns, name in opened:
            expected = [number for number in range(3 * names) if name is None or number % names == name]
            assert several(cursor, ns, len(expected)) == expected
        # Those that are not asked for do not keep what comes: they read it when they are asked.
        for number in range(100, 1500):
            database.c0.insert_one({"_id": number, "x": "y" * 500})
        cursor, ns, _ = opened[0]
        assert several(cursor, ns, 1400) == list(range(100, 1500))
        database.command({"killCursors": "c0", "cursors": [cursor for cursor, _, _ in opened]})
