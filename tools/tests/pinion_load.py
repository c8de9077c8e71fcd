"""Clients of sharded collections that write, count and read while processes of their cluster are
struck, and what was acknowledged to them.

What is judged: an acknowledged insert is there exactly once, and found by every read that has to
find it; a counter is what its acknowledged increments come to, but for those with an unknown
outcome; clients see no errors but those of faults. What is not: how long anything takes."""

import collections
import functools
import random
import threading
import time
import traceback

from bson import MaxKey, MinKey
from pinion_bank import Bank, accounts_of
from pinion_excuses import codes, is_excused
from pymongo import ReadPreference
from pymongo.errors import DuplicateKeyError, PyMongoError
from pymongo.read_concern import ReadConcern

DATABASE = "storm"
RANGED, HASHED = "ranged", "hashed"
# Longer than an election and than a process is away.
SOCKET_TIMEOUT_MS = 30_000
SELECTION_MS = 60_000
READ_LIMIT_MS = 25_000
# Keys of the ranged collections that each shard owns.
KEYS_OF_SHARD = 100_000
# Spreads the numbers of documents over all keys; prime to the number of keys.
STRIDE = 7_919
# So long a client rests between two operations.
PAUSE_SECS = 0.02
COUNTERS_OF_CLIENT = 4
# Of the acknowledged inserts, as many are read again often.
RECENT = 20
# A transaction that has read alone cannot be committed at another router than it ran at.
NO_PARTICIPANTS = 50_940


class Record:
    """What clients did, what was wrong, and when the last write was acknowledged."""

    def __init__(self, folder=None):
        """`folder` is where it is noted what was defined when, and which errors clients had."""
        self.folder = folder
        self.began = time.monotonic()
        self.lock = threading.Lock()
        self.operations, self.errors = collections.Counter(), collections.Counter()
        self.problems = collections.Counter()
        self.acknowledged_at, self.longest_secs = self.began, 0.0

    def say(self, text):
        print(
            f"{time.strftime('%H:%M:%S')} {time.monotonic() - self.began:7.1f} s: {text}",
            flush=True,
        )

    def trace(self, text):
        """Notes what a reader of a problem may need to know."""
        if self.folder:
            with self.lock, open(self.folder / "clients.log", "a") as file:
                file.write(
                    f"{time.strftime('%H:%M:%S')} {time.monotonic() - self.began:7.1f} s: {text}\n"
                )

    def problem(self, text):
        """Notes what is wrong; the same is printed once."""
        with self.lock:
            self.problems[text] += 1
            is_first = self.problems[text] == 1
        if is_first:
            self.say(f"PROBLEM: {text}")

    def did(self, what, is_write=False):
        with self.lock:
            self.operations[what] += 1
            if is_write:
                now = time.monotonic()
                self.longest_secs = max(self.longest_secs, now - self.acknowledged_at)
                self.acknowledged_at = now

    def failed(self, what, error, others=(), details=None):
        """An operation had an error, which is a problem unless faults excuse it; `details` are for
        the trace."""
        if is_excused(error, others):
            name = ",".join(map(str, sorted(codes(error)))) or type(error).__name__
            with self.lock:
                self.errors[f"{what} {name}"] += 1
            self.trace(f"{details or what}: {type(error).__name__}: {str(error)[:400]}")
        else:
            text = (getattr(error, "details", None) or {}).get("errmsg", str(error))
            self.problem(f"{what}: {type(error).__name__} {sorted(codes(error))}: {text[:600]}")


class Client(threading.Thread):
    """Does one step after the other until it is ended."""

    pause_secs = PAUSE_SECS

    def __init__(self, cluster, record, name, seed):
        super().__init__(daemon=True, name=name)
        self.client = cluster.client_of_all(
            w="majority",
            retryWrites=True,
            socketTimeoutMS=SOCKET_TIMEOUT_MS,
            serverSelectionTimeoutMS=SELECTION_MS,
        )
        self.db = self.client[DATABASE]
        self.record = record
        self.random = random.Random(f"{seed} {name}")
        # What a step does, for the record.
        self.doing = type(self).__name__
        self.ended = threading.Event()

    def run(self):
        while not self.ended.is_set():
            try:
                self.step()
            except PyMongoError as error:
                self.record.failed(self.doing, error)
            except Exception:
                self.record.problem(f"{self.name}: {traceback.format_exc(limit=-3)}")
            self.ended.wait(self.pause_secs)

    def step(self):
        raise NotImplementedError


def key_of(number, shards):
    """The key of a numbered document: it is of any shard."""
    return number * STRIDE % (shards * KEYS_OF_SHARD)


class Inserter(Client):
    """Inserts documents of its own, one or several at once."""

    def __init__(self, cluster, record, collection, number, seed):
        super().__init__(cluster, record, f"inserter {number} of {collection}", seed)
        self.collection, self.number = collection, number
        self.shards = len(cluster.shards)
        # Keys by which documents are found: all that were sent, and the acknowledged ones.
        self.attempted, self.acknowledged = [], []
        # Operation time and cluster time behind the last acknowledged one.
        self.times = None
        self.session = self.client.start_session(causal_consistency=False)

    def step(self):
        size = self.random.choice((1, 1, 1, 1, 4))
        first = len(self.attempted)
        documents = [
            {
                "_id": f"{self.number}-{at}",
                "k": key_of(at + self.number, self.shards),
                "w": self.number,
            }
            for at in range(first, first + size)
        ]
        keys = [{"_id": document["_id"], "k": document["k"]} for document in documents]
        self.attempted.extend(keys)
        self.doing = f"insert of {size} into {self.collection}"
        try:
            if size == 1:
                self.db[self.collection].insert_one(documents[0], session=self.session)
            else:
                self.db[self.collection].insert_many(
                    documents, ordered=self.random.random() < 0.5, session=self.session
                )
        except DuplicateKeyError as error:
            self.record.problem(f"{self.name}: {keys} were inserted twice: {error}")
            return
        self.times = (self.session.operation_time, self.session.cluster_time)
        self.acknowledged.extend(keys)
        self.record.did(self.doing, is_write=True)


class Incrementer(Client):
    """Increments counters of its own: one by its key, or all of them without."""

    def __init__(self, cluster, record, number, seed):
        super().__init__(cluster, record, f"incrementer {number}", seed)
        self.number = number
        shards = len(cluster.shards)
        self.counters = [
            {"_id": f"{number}-{at}", "k": key_of(at * KEYS_OF_SHARD // STRIDE + number, shards)}
            for at in range(COUNTERS_OF_CLIENT)
        ]
        # Increments that were acknowledged, and those with an unknown outcome: of each counter, and
        # of all of them at once.
        self.by_key = [[0, 0] for _ in self.counters]
        self.of_all = [0, 0]

    def make(self):
        self.db.counters.insert_many(
            [{**counter, "of": self.number, "one": 0, "many": 0} for counter in self.counters]
        )

    def step(self):
        at = self.random.randrange(COUNTERS_OF_CLIENT)
        counted, change = self.by_key[at], {"$inc": {"one": 1}}
        way = self.random.choice(("update", "update", "modify", "all"))
        if way == "all":
            counted, change = self.of_all, {"$inc": {"many": 1}}
        counted[1] += 1
        self.doing = f"increment {way}"
        if way == "update":
            found = self.db.counters.update_one(self.counters[at], change).matched_count
        elif way == "all":
            found = self.db.counters.update_many({"of": self.number}, change).matched_count
        else:
            document = self.db.counters.find_one_and_update(
                self.counters[at], change, return_document=True
            )
            found = int(document is not None)
            self.check(document, self.counters[at], "one", counted, in_flight=1)
        if found != (COUNTERS_OF_CLIENT if way == "all" else 1):
            self.record.problem(f"{self.name}: {way} of {at} found {found} counters")
        counted[0] += 1
        counted[1] -= 1
        self.record.did(self.doing, is_write=True)

    def check(self, document, counter, field, counted, in_flight=0):
        """Looks at what a counter is; one increment in flight is among the unknown ones."""
        acknowledged, unknown = counted
        low = acknowledged + in_flight
        if document is None or not low <= document[field] <= acknowledged + unknown:
            self.record.problem(
                f"{self.name}: {acknowledged} increments of {field} were acknowledged "
                f"and {unknown} are unknown, "
                f"but {counter} is {document}"
            )

    def verdict(self, documents):
        """Compares the counters with what is there at the end, by `_id`."""
        for counter, counted in zip(self.counters, self.by_key):
            document = documents.get(counter["_id"])
            self.check(document, counter, "one", counted)
            self.check(document, counter, "many", self.of_all)


class Reader(Client):
    """Reads what was acknowledged, in ways that have to find it."""

    pause_secs = 0.05

    def __init__(self, cluster, record, inserters, number, seed):
        super().__init__(cluster, record, f"reader {number}", seed)
        self.inserters = inserters

    def step(self):
        inserter = self.random.choice(self.inserters)
        known = len(inserter.acknowledged)
        if known == 0:
            return
        recent = self.random.random() < 0.5
        key = inserter.acknowledged[
            self.random.randrange(max(0, known - RECENT) if recent else 0, known)
        ]
        way = self.random.choice(
            (self.linearizable, self.causal, self.causal, self.by_id, self.count)
        )
        self.doing = f"read {way.__name__}"
        way(inserter, key)
        self.record.did(self.doing)

    def linearizable(self, inserter, key):
        strict = self.db[inserter.collection].with_options(read_concern=ReadConcern("linearizable"))
        self.expect(strict.find_one(key, max_time_ms=READ_LIMIT_MS), inserter, key, "linearizable")

    def causal(self, inserter, key):
        self.find(inserter, key, key)

    def by_id(self, inserter, key):
        self.find(inserter, key, {"_id": key["_id"]})

    def find(self, inserter, key, filter):
        preference = self.random.choice(
            (ReadPreference.PRIMARY, ReadPreference.SECONDARY_PREFERRED, ReadPreference.NEAREST)
        )
        read = self.majority(inserter, preference)
        with self.after(inserter) as session:
            found = read.find_one(filter, session=session, max_time_ms=READ_LIMIT_MS)
        self.expect(found, inserter, key, f"{filter} of {preference.name}")

    def majority(self, inserter, preference=ReadPreference.PRIMARY):
        return self.db[inserter.collection].with_options(
            read_concern=ReadConcern("majority"), read_preference=preference
        )

    def after(self, inserter):
        """A session that sees what was acknowledged to an inserter."""
        operation_time, cluster_time = inserter.times
        session = self.client.start_session(causal_consistency=True)
        session.advance_cluster_time(cluster_time)
        session.advance_operation_time(operation_time)
        return session

    def expect(self, found, inserter, key, how):
        if found is None or found["_id"] != key["_id"]:
            self.record.problem(
                f"{self.name}: {inserter.collection} has {found} for the acknowledged {key}, "
                f"read {how}"
            )

    def count(self, inserter, _):
        """Counts the documents of one inserter."""
        low = len(inserter.acknowledged)
        with self.after(inserter) as session:
            read = self.majority(inserter)
            found = read.count_documents(
                {"w": inserter.number}, session=session, maxTimeMS=READ_LIMIT_MS
            )
        high = len(inserter.attempted)
        if not low <= found <= high:
            self.record.problem(
                f"{self.name}: {inserter.name} has {found} documents; {low} were acknowledged "
                f"before, {high} sent by now"
            )


class AllRouters:
    """A cluster as its clients see it, by all routers."""

    def __init__(self, cluster):
        self.cluster = cluster

    def client(self, **options):
        return self.cluster.client_of_all(**options)

    def wait_alike(self, database):
        for shard in self.cluster.shards:
            shard.wait_alike(database)

    def wait_snapshots(self, session):
        for shard in self.cluster.shards:
            shard.wait_snapshots(session)


def spread(client, ns, key, bounds):
    """Shards an empty collection by ranges, of which each shard has one: `bounds` are between
    them."""
    (field,) = key
    ends = [MinKey(), *bounds, MaxKey()]
    for at, (low, high) in enumerate(zip(ends, ends[1:])):
        client.admin.command("addShardToZone", f"s{at}", zone=f"zone{at}")
        client.admin.command(
            "updateZoneKeyRange", ns, min={field: low}, max={field: high}, zone=f"zone{at}"
        )
    client.admin.command("shardCollection", ns, key=key)


class SpreadBank(Bank):
    """A bank whose groups of accounts are on different shards."""

    def __init__(self, cluster, record, tellers=4, auditors=2):
        self.shards = len(cluster.shards)
        super().__init__(AllRouters(cluster), tellers, auditors, groups=self.shards)
        for thread in self.tellers:
            thread.note = functools.partial(record.failed, "transfer")
        for thread in self.auditors:
            thread.report = record.problem
            thread.note = functools.partial(
                record.failed, "count of the bank", others=(NO_PARTICIPANTS,)
            )

    def make(self, bank):
        groups = range(1, self.shards)
        spread(
            bank.client,
            "bank.accounts",
            {"_id": 1},
            [accounts_of(group, self.shards)[0] for group in groups],
        )
        spread(bank.client, "bank.ledger", {"group": 1}, list(groups))


class Load:
    """All clients of the sharded collections; while it is entered they work."""

    def __init__(self, cluster, record, seed, inserters=2, incrementers=3, readers=3):
        """`inserters` are for each collection."""
        self.record = record
        with cluster.client_of_all(w="majority") as client:
            shards = len(cluster.shards)
            bounds = [at * KEYS_OF_SHARD for at in range(1, shards)]
            for name in (RANGED, "counters"):
                spread(client, f"{DATABASE}.{name}", {"k": 1}, bounds)
            client.admin.command("shardCollection", f"{DATABASE}.{HASHED}", key={"_id": "hashed"})
            for name in (RANGED, HASHED):
                client[DATABASE][name].create_index("w")
        self.inserters = [
            Inserter(cluster, record, name, number, seed)
            for name in (RANGED, HASHED)
            for number in range(inserters)
        ]
        self.incrementers = [
            Incrementer(cluster, record, number, seed) for number in range(incrementers)
        ]
        for incrementer in self.incrementers:
            incrementer.make()
        self.readers = [
            Reader(cluster, record, self.inserters, number, seed) for number in range(readers)
        ]
        self.threads = [*self.inserters, *self.incrementers, *self.readers]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        for thread in self.threads:
            thread.ended.set()
        for thread in self.threads:
            thread.join(300)
            if thread.is_alive():
                self.record.problem(f"{thread.name} does not come to an end")

    def verdict(self, cluster):
        """Compares what is there with what was acknowledged: by each router, and on the shards."""
        for at in range(len(cluster.routers)):
            with cluster.client(at) as client:
                self._verdict(f"router {at}", [client[DATABASE]])
        clients = [shard.client() for shard in cluster.shards]
        self._verdict("the shards", [client[DATABASE] for client in clients])
        for client in clients:
            client.close()

    def _verdict(self, where, databases):
        for name in (RANGED, HASHED):
            found = collections.Counter(
                document["_id"] for db in databases for document in db[name].find({}, {"_id": 1})
            )
            of_name = [inserter for inserter in self.inserters if inserter.collection == name]
            attempted = {key["_id"] for inserter in of_name for key in inserter.attempted}
            acknowledged = {key["_id"] for inserter in of_name for key in inserter.acknowledged}
            wrong = {
                "acknowledged and lost": acknowledged - set(found),
                "there more than once": {key for key, times in found.items() if times > 1},
                "there, and never sent": set(found) - attempted,
            }
            for what, keys in wrong.items():
                if keys:
                    self.record.problem(
                        f"{where}: {len(keys)} documents of {name} are {what}: {sorted(keys)[:5]}"
                    )
        documents = {
            document["_id"]: document for db in databases for document in db.counters.find()
        }
        for incrementer in self.incrementers:
            incrementer.verdict(documents)
