"""Debezium's MongoDB connector: a snapshot, then every change in order, across restarts, kills and
a change of the primary."""

import contextlib
import json
import pathlib
import queue
import subprocess
import tempfile
import threading
import time

import bson
import pymongo
from bson import json_util

SNAPSHOT_ORDERS = 300
# Written while the consumer is killed, and while the primary is.
STREAMED = 400
PARTS = 2500
# For the first event, with the start of a Java machine on a busy processor.
EVENT_SECS = 120
# So long nothing more may come.
QUIET_SECS = 3
# A document near to the largest: its event carries it twice.
LARGE_BYTES = 6 << 20


class Event:
    """What a line of the consumer says."""

    def __init__(self, line):
        topic, key, value = line.rstrip("\n").split("\t", 2)
        self.topic = topic
        self.value = json.loads(value)["payload"]
        self.op = self.value.get("op")
        source = self.value.get("source") or {}
        self.source = source
        self.collection = source.get("collection")
        self.after, self.before = (json_util.loads(self.value[side]) if self.value.get(side) else None for side in ("after", "before"))
        self.key = json_util.loads(json.loads(key)["payload"]["id"]) if self.op else None

    def __repr__(self):
        return f"{self.collection} {self.op} {self.key}"


class Consumer:
    """A run of the engine; it continues at the offset that the one before it has left in the
    file."""

    def __init__(self, classes, home, log, uri):
        self.events = queue.Queue()
        wanted = {
            "name": "pinion", "connector.class": "io.debezium.connector.mongodb.MongoDbConnector", "topic.prefix": "p",
            "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore", "offset.storage.file.filename": home / "offsets",
            "offset.flush.interval.ms": 0, "mongodb.connection.string": uri, "database.include.list": "shop",
            "capture.mode": "change_streams_update_full_with_pre_image", "provide.transaction.metadata": "true",
            "tombstones.on.delete": "false", "signal.data.collection": "shop.signals", "signal.poll.interval.ms": 500, "poll.interval.ms": 50,
            "retriable.restart.connector.wait.ms": 500, "cursor.max.await.time.ms": 500,
        }
        path = home / "engine.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in wanted.items()))
        self.log = log.open("a")
        self.process = subprocess.Popen(["java", "-Xmx512m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=info", "-cp", classes, "pinion.Consumer", str(path)],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            if line.count("\t") >= 2:
                self.events.put(Event(line))

    def next(self, timeout_secs=EVENT_SECS):
        return self.events.get(timeout=timeout_secs)

    def take(self, count, timeout_secs=EVENT_SECS):
        """`count` changes of documents, fewer when they do not come in time."""
        found, end = [], time.monotonic() + timeout_secs
        with contextlib.suppress(queue.Empty):
            while len(found) < count:
                try:
                    event = self.next(min(1, max(0.01, end - time.monotonic())))
                except queue.Empty:
                    if time.monotonic() < end and self.process.poll() is None:
                        continue
                    raise
                if event.op and event.collection != "signals":
                    found.append(event)
        return found

    def rest(self):
        """What still comes within the time of quiet."""
        return self.take(1 << 30, QUIET_SECS)

    def close(self):
        self.process.stdin.close()
        status = self.process.wait(60)
        self.log.close()
        return status

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.log.close()


def documents():
    """One of each type that a document can have, and many like it."""
    types = {
        "double": 1.5, "int": 7, "long": bson.Int64(1 << 40), "decimal": bson.Decimal128("1.10"), "text": "süß", "yes": True, "nothing": None,
        "bytes": b"\0\1\2", "id": bson.ObjectId("64b000000000000000000001"), "list": [1, "a", {"x": 1}], "sub": {"a": {"b": 2}},
        "time": bson.timestamp.Timestamp(5, 6), "pattern": bson.Regex("^a", "i"), "least": bson.MinKey(), "most": bson.MaxKey(),
    }
    return [{"_id": at, "n": at % 10, **types} for at in range(SNAPSHOT_ORDERS)]


def described(events):
    return [f"{event.collection} {event.op} {event.key}" for event in events]


def snapshot(client, start, check):
    shop = client.shop
    client.drop_database("shop")
    shop.create_collection("items", changeStreamPreAndPostImages={"enabled": True})
    shop.create_collection("signals")
    wanted = documents()
    shop.orders.insert_many(wanted)
    shop.items.insert_many({"_id": f"i{at}", "stock": at} for at in range(10))
    consumer = start()
    events = consumer.take(SNAPSHOT_ORDERS + 10)
    orders = {event.key: event.after for event in events if event.collection == "orders"}
    check(len(events) == SNAPSHOT_ORDERS + 10 and {event.op for event in events} == {"r"}, f"the snapshot has {len(events)} documents")
    check([orders.get(one["_id"]) for one in wanted] == wanted, "the documents of the snapshot have every type as it was written")
    check(not consumer.rest(), "nothing comes after the snapshot until something is written")
    return consumer


def changes(client, consumer, check):
    orders, items = client.shop.orders, client.shop.items
    orders.insert_one({"_id": "new", "n": 1, "list": [1, 2, 3, 4], "filler": "x" * 200})
    orders.update_one({"_id": "new"}, {"$set": {"n": 2, "sub.deep": 3}, "$unset": {"gone": 1}})
    orders.update_one({"_id": "new"}, [{"$set": {"list": {"$slice": ["$list", 2]}}}])
    orders.update_one({"_id": "new"}, {"$unset": {"sub": 1}})
    orders.replace_one({"_id": "new"}, {"whole": True})
    orders.delete_one({"_id": "new"})
    items.update_one({"_id": "i3"}, {"$inc": {"stock": 10}})
    items.find_one_and_replace({"_id": "i4"}, {"stock": "none"})
    items.delete_one({"_id": "i5"})
    orders.update_many({"n": 9}, {"$inc": {"n": 100}})
    items.bulk_write([pymongo.InsertOne({"_id": "b"}), pymongo.UpdateOne({"_id": "b"}, {"$set": {"x": 1}}), pymongo.DeleteOne({"_id": "b"})])
    tens = SNAPSHOT_ORDERS // 10
    events = consumer.take(9 + tens + 3)
    first = ["orders c new", *["orders u new"] * 4, "orders d new", "items u i3", "items u i4", "items d i5"]
    check(described(events[:9]) == first, f"inserts, updates, replacements and deletes come in order: {described(events[:9])}")
    described = [event.value.get("updateDescription") or {} for event in events[:9]]
    check(json_util.loads(described[1].get("updatedFields") or "{}") == {"n": 2, "sub": {"deep": 3}} and described[3].get("removedFields") == ["sub"],
          f"updates tell which fields were changed and removed {described[1]} {described[3]}")
    truncated = described[2].get("truncatedArrays")
    check(truncated == [{"field": "list", "size": 2}], f"a shortened array is told as such {truncated}")
    check(events[6].before == {"_id": "i3", "stock": 3} and events[6].after == {"_id": "i3", "stock": 13} and events[7].before == {"_id": "i4", "stock": 4}
          and events[7].after == {"_id": "i4", "stock": "none"} and events[8].before == {"_id": "i5", "stock": 5}, "images from before are there where they are kept")
    check(events[0].before is None and events[5].before is None, "and nowhere else")
    check(sorted(event.after["_id"] for event in events[9 : 9 + tens]) == [at for at in range(SNAPSHOT_ORDERS) if at % 10 == 9],
          "an update of many gives an event for each")
    check(described(events[9 + tens :]) == ["items c b", "items u b", "items d b"], "a mixed bulk comes in its order")


def transactions(client, consumer, check):
    orders, items = client.shop.orders, client.shop.items
    with client.start_session() as session:
        with session.start_transaction():
            orders.insert_one({"_id": "t1"}, session=session)
            items.update_one({"_id": "i1"}, {"$inc": {"stock": -1}}, session=session)
            orders.delete_one({"_id": "t1"}, session=session)
            orders.insert_one({"_id": "t2"}, session=session)
        with contextlib.suppress(RuntimeError), session.start_transaction():
            orders.insert_one({"_id": "aborted"}, session=session)
            raise RuntimeError
        with session.start_transaction():
            orders.insert_many([{"_id": f"m{at}"} for at in range(2000)], session=session)
    orders.insert_one({"_id": "after"})
    seen, end = [], time.monotonic() + EVENT_SECS
    while time.monotonic() < end and not (seen and described(seen[-1:]) == ["orders c after"]):
        with contextlib.suppress(queue.Empty):
            seen.append(consumer.next(1))
    events = [event for event in seen if event.op]
    check(described(events[:4]) == ["orders c t1", "items u i1", "orders d t1", "orders c t2"], f"a transaction comes as a whole, in order {described(events[:4])}")
    check(events[1].before and events[1].before["stock"] == 1 and events[1].after["stock"] == 0, "its updates have their images")
    check([event.key for event in events[4:]] == [f"m{at}" for at in range(2000)] + ["after"], "one of 2,000 inserts too, and nothing of one that was aborted")
    ids = {(event.source.get("lsid"), event.source.get("txnNumber")) for event in events[:4]}
    check(len(ids) == 1 and None not in ids.pop(), "its events carry one session and number")
    bounds = [(event.value["status"], event.value.get("event_count")) for event in seen if event.topic == "p.transaction"]
    check(bounds[:4] == [("BEGIN", None), ("END", 4), ("BEGIN", None), ("END", 2000)], f"their bounds are told {bounds[:6]}")


def large(client, consumer, check):
    text = "x" * LARGE_BYTES
    client.shop.items.insert_one({"_id": "large", "text": text})
    client.shop.items.update_one({"_id": "large"}, {"$set": {"y": 1}})
    events = consumer.take(2)
    check(described(events) == ["items c large", "items u large"] and events[1].before["text"] == text and events[1].after["y"] == 1,
          f"a document of {LARGE_BYTES >> 20} MiB comes with both its images")


def restarts(client, consumer, start, check):
    check(consumer.close() == 0, "it ends in order")
    orders = client.shop.orders
    orders.insert_many({"_id": f"away{at}"} for at in range(50))
    orders.delete_many({"_id": {"$regex": "^away1"}})
    consumer = start()
    events = consumer.take(61)
    gone = sorted((f"away{at}" for at in range(50) if str(at).startswith("1")))
    check([event.key for event in events[:50]] == [f"away{at}" for at in range(50)] and sorted(event.key for event in events[50:]) == gone and not consumer.rest(),
          f"started again it goes on at its offset: {len(events)} events, none lost, none twice, no snapshot")
    return consumer


def streamed(client, prefix, each):
    """Writes one by one, and calls in the middle."""
    orders = client.shop.get_collection("orders", write_concern=pymongo.WriteConcern("majority"))
    for at in range(STREAMED):
        if at == STREAMED // 2:
            each()
        orders.insert_one({"_id": f"{prefix}{at}"})


def killed(client, consumer, start, check):
    kept = []

    def strike():
        kept.extend(consumer.take(20))
        consumer.kill()

    streamed(client, "killed", strike)
    # What was printed before the kill and not read yet.
    kept.extend(consumer.rest())
    consumer = start()
    wanted = [f"killed{at}" for at in range(STREAMED)]
    events = consumer.take(STREAMED - len(kept))
    events += consumer.rest()
    before, after = [event.key for event in kept], [event.key for event in events]
    # In order and without a gap; what was printed but not committed is delivered again.
    at = wanted.index(after[0]) if after and after[0] in wanted else -1
    check(before == wanted[: len(before)] and after == wanted[at:] and 0 <= at <= len(before),
          f"killed under writes it loses nothing ({len(before)} before, {len(after)} after, {len(before) - at} told again)")
    return consumer


def primary_killed(members, client, consumer, check):
    wanted = [f"moved{at}" for at in range(STREAMED)]
    node = members.primary()
    streamed(client, "moved", node.kill)
    events = consumer.take(STREAMED)
    keys = [event.key for event in events] + [event.key for event in consumer.rest()]
    check(keys == wanted, f"the primary is killed under writes: {len(keys)} of {STREAMED} events, none lost, none twice")
    node.start()


def by_signal(client, consumer, check):
    shop = client.shop
    # More than one chunk of such a snapshot. Keys of one type: it pages by comparisons, which find
    # those of their type alone.
    shop.parts.insert_many({"_id": at} for at in range(PARTS))
    check([event.key for event in consumer.take(PARTS)] == list(range(PARTS)), f"{PARTS} inserts of one command come in order")
    shop.signals.insert_one({"_id": "ask", "type": "execute-snapshot", "payload": json.dumps({"data-collections": ["shop.parts"], "type": "INCREMENTAL"})})
    events = consumer.take(PARTS)
    check({event.op for event in events} == {"r"} and sorted(event.key for event in events) == list(range(PARTS)) and not consumer.rest(),
          f"a snapshot asked for while it runs gives each document once: {len(events)} of {PARTS}")


def campaign(members, classes, log, check):
    """Everything in turn; `check` gets whether something holds, and what. The engine logs into a
    file of its own."""
    log.unlink(missing_ok=True)
    consumer = None
    with tempfile.TemporaryDirectory(prefix="pinion-debezium-") as home, members.client() as client:

        def start():
            return Consumer(classes, pathlib.Path(home), log, members.uri)

        try:
            consumer = snapshot(client, start, check)
            changes(client, consumer, check)
            transactions(client, consumer, check)
            large(client, consumer, check)
            by_signal(client, consumer, check)
            consumer = restarts(client, consumer, start, check)
            consumer = killed(client, consumer, start, check)
            if len(members.nodes) > 1:
                primary_killed(members, client, consumer, check)
            check(consumer.process.poll() is None, "it still runs")
        except (IndexError, KeyError, queue.Empty) as error:
            check(False, f"{error!r}; {log.read_text()[-3000:]}")
        finally:
            if consumer and consumer.process.poll() is None:
                consumer.kill()
