"""Clients that define collections over and over while processes of their cluster are struck:
sharded, indexed, changed, renamed, given finer keys, dropped, moved with their databases.

Each client knows what its names stand for. An operation is repeated until its outcome is known;
then the catalog, both routers and all shards have to show what it was to come to. Where an attempt
had no answer, a copy of it may still be on its way: the client waits until that has arrived, since
it would be executed behind what the client does next."""

import collections
import dataclasses
import datetime
import time

from pinion_excuses import DEFINITIONS, codes, is_excused
from pinion_load import DATABASE, Client
from pymongo import MongoClient, ReadPreference
from pymongo.errors import DuplicateKeyError, OperationFailure, PyMongoError
from pymongo.read_concern import ReadConcern

# An operation comes to its end within this, however often it is repeated.
OPERATION_SECS = 600
# How often an operation has little time, how often one is given up after an attempt without an
# answer, and how often after one that was refused.
IN_HASTE, GIVES_UP, TAKES_NO = 0.1, 0.2, 0.3
# What it has come to is seen everywhere within this.
SHOWN_SECS = 180
# Definitions wait for others; a client that gives one up sends it again.
DEFINITION_TIMEOUT_MS = 60_000
MAJORITY = {"w": "majority"}
REPEATED_NAMES = 3
MOST_NAMES = 6
SERIES = {"timeField": "t", "metaField": "m"}
# How collections are sharded: what it is called, a field and how it is taken.
WAYS = [
    ("ranged", "k", 1),
    ("hashed", "k", "hashed"),
    ("series", "m", 1),
    ("series", "m", "hashed"),
]
START = datetime.datetime(2024, 1, 1)
NAMESPACE_NOT_FOUND, INDEX_NOT_FOUND, NAMESPACE_EXISTS = 26, 27, 48
# How often each operation is chosen.
WEIGHTS = {
    "make": 6,
    "shard": 2,
    "insert": 4,
    "index": 3,
    "drop_index": 1,
    "modify": 2,
    "rename": 3,
    "refine": 2,
    "drop": 4,
    "move": 2,
    "move_data": 0.5,
    "drop_database": 0.7,
}


@dataclasses.dataclass(frozen=True)
class Shape:
    """What a name stands for."""

    # The shard key, if it is sharded.
    key: tuple = None
    is_series: bool = False
    # Those that are neither of `_id` nor of the shard key.
    indexes: frozenset = frozenset()
    # What collMod set last.
    modified: int = None
    documents: frozenset = frozenset()

    def options(self):
        """The options that show what collMod set."""
        if self.modified is None:
            return {}
        if self.is_series:
            return {"expireAfterSeconds": 10**8 + self.modified}
        return {"validator": {"v": {"$ne": self.modified}}}


@dataclasses.dataclass
class Change:
    """An operation: the call that is repeated, what becomes of names of a database, and the errors
    by which a repeated call says that an earlier one was executed."""

    kind: str
    database: str
    call: object
    after: dict
    repeated: tuple = ()
    primary: str = None
    drops_database: bool = False
    # Whether all of it is done or nothing when the client gives up after an attempt.
    is_atomic: bool = True

    def __str__(self):
        return f"{self.kind} of {self.database} {sorted(self.after)}"


class Look:
    """What the routers and the shards show of a name at one time."""

    def __init__(self, definer, database, name):
        self.definer, self.database, self.name = definer, database, name

    def differences(self, shape):
        """What differs from what the name is to stand for."""
        found = []
        for at, client in enumerate(self.definer.routers):
            with self.definer.after(client) as session:
                found += [f"router {at}: {each}" for each in self._router(client, session, shape)]
        return found + self._shards(shape)

    def _router(self, client, session, shape):
        db = client[self.database]
        listed = list(db.list_collections(filter={"name": self.name}, session=session))
        entry = self._entry(client, session)
        read = db[self.name].with_options(read_concern=ReadConcern("majority"))
        documents = {document["_id"] for document in read.find({}, {"_id": 1}, session=session)}
        if documents != (shape.documents if shape else frozenset()):
            yield f"the documents {sorted(documents)}"
        if shape is None:
            if listed or entry:
                yield f"{listed} in the list, {entry} in the catalog"
            return
        if len(listed) != 1:
            yield f"{listed} in the list"
            return
        (found,) = listed
        if (found["type"] == "timeseries") != shape.is_series:
            yield f"the type {found['type']}"
        for option, value in shape.options().items():
            if found["options"].get(option) != value:
                yield f"the options {found['options']}"
        indexes = {index["name"] for index in db[self.name].list_indexes(session=session)}
        if {name for name in indexes if name.startswith("x")} != shape.indexes:
            yield f"the indexes {sorted(indexes)}"
        yield from self._catalog(entry, found, shape)

    def _entry(self, client, session):
        names = [f"{self.database}.{self.name}", f"{self.database}.system.buckets.{self.name}"]
        catalog = client.config.get_collection("collections", read_concern=ReadConcern("majority"))
        return catalog.find_one({"_id": {"$in": names}}, session=session)

    def _catalog(self, entry, listed, shape):
        if shape.key is None:
            if entry:
                yield f"{entry} in the catalog"
        elif not entry:
            yield "nothing in the catalog"
        elif not shape.is_series:
            if tuple(entry["key"].items()) != shape.key:
                yield f"the shard key {entry['key']}"
            if entry["uuid"] != listed["info"]["uuid"]:
                yield f"the UUIDs {entry['uuid']} and {listed['info']['uuid']}"

    def _shards(self, shape):
        names = [self.name, f"system.buckets.{self.name}"]
        having = {}
        for at, client in enumerate(self.definer.shards):
            listed = list(client[self.database].list_collections(filter={"name": {"$in": names}}))
            if listed:
                having[f"s{at}"] = {
                    str(each["info"]["uuid"]) for each in listed if each["type"] == "collection"
                }
        if shape is None:
            return [f"{having} on the shards"] if having else []
        is_alone = shape.key is None and len(having) > 1
        # A series and its buckets are listed under one UUID or none.
        is_mixed = not shape.is_series and len(set().union(*having.values())) != 1
        return [f"{having} on the shards"] if not having or is_alone or is_mixed else []


class Definer(Client):
    """Defines collections in a database of its own, and under names of its own in a common one."""

    pause_secs = 0.1

    def __init__(self, cluster, record, faults, number, seed):
        super().__init__(cluster, record, f"definer {number}", seed)
        self.cluster, self.faults, self.number = cluster, faults, number
        options = {"serverSelectionTimeoutMS": 60_000, "socketTimeoutMS": DEFINITION_TIMEOUT_MS}
        self.client = cluster.client_of_all(w="majority", **options)
        self.routers = [cluster.client(at, **options) for at in range(len(cluster.routers))]
        self.shards = [shard.client(**options) for shard in cluster.shards]
        self.session = self.client.start_session(causal_consistency=True)
        self.own, self.common = f"own{number}", "common"
        self.names = {self.own: {}, self.common: {}, DATABASE: {}}
        self.outcomes = collections.Counter()
        # Names of which it is not known any more what they stand for.
        self.abandoned = set()
        # Whether an attempt at the operation under way had no answer.
        self.in_doubt = False
        self.last = 0

    def next(self):
        self.last += 1
        return self.last

    def step(self):
        database = self.random.choice((self.own, self.own, self.common))
        (kind,) = self.random.choices(list(WEIGHTS), list(WEIGHTS.values()))
        change = getattr(self, f"plan_{kind}")(database)
        if change is not None:
            self.perform(change)

    def command(self, database, command):
        """Executes a command; now and then it has so little time that it may not get ready."""
        if not self.in_doubt and self.random.random() < IN_HASTE:
            command = command | {"maxTimeMS": self.random.randint(20, 1_000)}
        return self.client[database].command(command, session=self.session)

    def one_of(self, database, fits):
        """A name that is there and fits, and its shape."""
        fitting = sorted(name for name, shape in self.names[database].items() if fits(shape))
        if not fitting:
            return None, None
        name = self.random.choice(fitting)
        return name, self.names[database][name]

    def free_name(self, database):
        """A name that stands for nothing: one that did, or a fresh one."""
        known = self.names[database]
        if len(known) >= MOST_NAMES:
            return None
        free = [
            name
            for name in (f"t{self.number}c{at}" for at in range(REPEATED_NAMES))
            if name not in known and (database, name) not in self.abandoned
        ]
        if free and self.random.random() < 0.8:
            return self.random.choice(free)
        return f"t{self.number}f{self.next()}"

    def plan_make(self, database):
        name = self.free_name(database)
        if name is None:
            return None
        if self.random.random() < 0.25:
            create = {"create": name, "writeConcern": MAJORITY}
            return Change(
                "create",
                database,
                lambda: self.command(database, create),
                {name: Shape()},
                (NAMESPACE_EXISTS,),
            )
        way, field, of = self.random.choice(WAYS)
        command = {"shardCollection": f"{database}.{name}", "key": {field: of}}
        if way == "series":
            command["timeseries"] = SERIES
        shape = Shape(key=((field, of),), is_series=way == "series")
        return Change(
            f"shardCollection {way}",
            database,
            lambda: self.command("admin", command),
            {name: shape},
        )

    def plan_shard(self, database):
        """Shards a collection that is there, perhaps with documents."""
        name, shape = self.one_of(database, lambda shape: shape.key is None)
        if name is None:
            return None
        key = {"k": self.random.choice((1, "hashed"))}
        command = {"shardCollection": f"{database}.{name}", "key": key}

        def call():
            self.index(database, name, key)
            return self.command("admin", command)

        after = dataclasses.replace(shape, key=tuple(key.items()))
        return Change(
            "shardCollection of documents", database, call, {name: after}, is_atomic=False
        )

    def index(self, database, name, key):
        index = {"key": key, "name": "_".join(f"{field}_{way}" for field, way in key.items())}
        command = {"createIndexes": name, "indexes": [index], "writeConcern": MAJORITY}
        self.refuse_doubt(self.command(database, command))

    def plan_insert(self, database):
        name, shape = self.one_of(database, lambda _: True)
        if name is None or len(shape.documents) > 200:
            return None
        waiting = []
        for _ in range(self.random.randint(1, 8)):
            n = self.next()
            at = START + datetime.timedelta(minutes=n)
            waiting.append({"_id": n, "k": n, "g": n % 3, "h": n % 7, "t": at, "m": n % 5})
        after = dataclasses.replace(
            shape, documents=shape.documents | {document["_id"] for document in waiting}
        )

        def call():
            while waiting:
                try:
                    self.client[database][name].insert_one(waiting[0], session=self.session)
                except DuplicateKeyError:
                    if not self.in_doubt:
                        raise
                waiting.pop(0)
            return {}

        return Change("insert", database, call, {name: after}, is_atomic=False)

    def plan_index(self, database):
        name, shape = self.one_of(database, lambda shape: len(shape.indexes) < 4)
        if name is None:
            return None
        number = self.next()
        index = {"key": {f"v{number}": 1}, "name": f"x{number}"}
        command = {"createIndexes": name, "indexes": [index], "writeConcern": MAJORITY}
        after = dataclasses.replace(shape, indexes=shape.indexes | {index["name"]})
        return Change(
            "createIndexes",
            database,
            lambda: self.command(database, command),
            {name: after},
            is_atomic=False,
        )

    def plan_drop_index(self, database):
        name, shape = self.one_of(database, lambda shape: bool(shape.indexes))
        if name is None:
            return None
        index = self.random.choice(sorted(shape.indexes))
        command = {"dropIndexes": name, "index": index, "writeConcern": MAJORITY}
        after = dataclasses.replace(shape, indexes=shape.indexes - {index})
        return Change(
            "dropIndexes",
            database,
            lambda: self.command(database, command),
            {name: after},
            (INDEX_NOT_FOUND,),
        )

    def plan_modify(self, database):
        name, shape = self.one_of(database, lambda _: True)
        if name is None:
            return None
        after = dataclasses.replace(shape, modified=self.next())
        command = {"collMod": name, **after.options(), "writeConcern": MAJORITY}
        return Change("collMod", database, lambda: self.command(database, command), {name: after})

    def plan_rename(self, database):
        name, shape = self.one_of(database, lambda shape: not shape.is_series)
        if name is None:
            return None
        other, _ = self.one_of(database, lambda shape: not shape.is_series)
        drops = other != name and self.random.random() < 0.3
        to = other if drops else self.free_name(database)
        if to is None:
            return None
        command = {
            "renameCollection": f"{database}.{name}",
            "to": f"{database}.{to}",
            "dropTarget": drops,
            "writeConcern": MAJORITY,
        }
        after = {name: None, to: shape}
        return Change(
            f"renameCollection{' onto' * drops}",
            database,
            lambda: self.command("admin", command),
            after,
            (NAMESPACE_NOT_FOUND,),
        )

    def plan_refine(self, database):
        name, shape = self.one_of(
            database, lambda shape: shape.key and not shape.is_series and len(shape.key) < 3
        )
        if name is None:
            return None
        key = dict(shape.key) | {"g" if len(shape.key) == 1 else "h": 1}
        command = {"refineCollectionShardKey": f"{database}.{name}", "key": key}

        def call():
            self.index(database, name, key)
            return self.command("admin", command)

        after = dataclasses.replace(shape, key=tuple(key.items()))
        return Change("refineCollectionShardKey", database, call, {name: after}, is_atomic=False)

    def plan_drop(self, database):
        name, shape = self.one_of(database, lambda _: True)
        if name is None:
            return None
        command = {"drop": name, "writeConcern": MAJORITY}
        kind = f"drop {'sharded' if shape.key else 'unsharded'}"
        return Change(
            kind,
            database,
            lambda: self.command(database, command),
            {name: None},
            (NAMESPACE_NOT_FOUND,),
        )

    def plan_move(self, database):
        names = self.names[database]
        if not names:
            return None
        to = self.random.choice([f"s{at}" for at in range(len(self.shards))])
        command = {"movePrimary": database, "to": to}
        # Others move the common database, too.
        primary = to if database == self.own else None
        return Change(
            "movePrimary",
            database,
            lambda: self.command("admin", command),
            dict(names),
            primary=primary,
        )

    def plan_move_data(self, _):
        """Moves the database of sharded collections that are written all the while."""
        command = {
            "movePrimary": DATABASE,
            "to": self.random.choice([f"s{at}" for at in range(len(self.shards))]),
        }
        return Change("movePrimary of data", DATABASE, lambda: self.command("admin", command), {})

    def plan_drop_database(self, database):
        names = self.names[self.own]
        command = {"dropDatabase": 1, "writeConcern": MAJORITY}
        after = dict.fromkeys(names)
        return Change(
            "dropDatabase",
            self.own,
            lambda: self.command(self.own, command),
            after,
            drops_database=True,
        )

    def refuse_doubt(self, reply):
        """A reply that says that a majority may not have it is no success."""
        if "writeConcernError" in reply:
            failure = reply["writeConcernError"]
            raise OperationFailure(f"write concern: {failure}", failure["code"], reply)

    def perform(self, change):
        """Executes an operation, and looks at what it has come to."""
        began = time.monotonic()
        self.in_doubt = False
        self.record.trace(f"{self.name}: {change}, to come to {change.after}")
        outcome = self.insist(change, began + OPERATION_SECS)
        if self.in_doubt:
            self.wait_for_copies(change, began, time.monotonic())
        before = {name: self.names[change.database].get(name) for name in change.after}
        accepted = [change.after] if outcome == "done" else [before]
        if outcome in ("given up", None):
            accepted.append(change.after)
        self.record.trace(f"{self.name}: {change}: {outcome}{', in doubt' * self.in_doubt}")
        if not self.verify(change, accepted):
            self.abandon(change)
        self.outcomes[change.kind, outcome or "unknown"] += 1
        self.record.did("definition", is_write=outcome == "done")

    def insist(self, change, deadline):
        """Repeats an operation until it is done, nothing of it was done, or it is given up. Gives
        None where the outcome is not known in time."""
        last = None
        while time.monotonic() < deadline:
            try:
                self.refuse_doubt(change.call())
                return "done"
            except PyMongoError as error:
                last = error
                found = codes(error)
                if self.in_doubt and found & set(change.repeated):
                    return "done"
                self.record.failed(change.kind, error, DEFINITIONS, f"{self.name}: {change}")
                if not is_excused(error, DEFINITIONS):
                    self.in_doubt = True
                    return None
                was_refused = bool(found) and found <= DEFINITIONS
                self.in_doubt |= not was_refused
                gives_up = GIVES_UP if self.in_doubt else TAKES_NO
                if change.is_atomic and self.random.random() < gives_up:
                    return "given up" if self.in_doubt else "undone"
            time.sleep(self.random.uniform(0.1, 1))
        self.record.problem(f"{self.name}: {change} has no outcome: {last}")
        return None

    def wait_for_copies(self, change, began, ended):
        """Waits until no request and no definition of the names is left anywhere."""
        deadline = time.monotonic() + OPERATION_SECS
        names = [""] if change.database == self.own else list(change.after)
        waiting = self.cluster.processes()
        last = None
        while not self.faults.are_settled(began, ended) or waiting:
            if time.monotonic() > deadline:
                self.record.problem(f"{self.name}: {change} is still in progress somewhere: {last}")
                return
            time.sleep(0.2)
            if self.faults.are_settled(began, ended):
                try:
                    while waiting and not self.runs(waiting[0], change.database, names):
                        waiting.pop(0)
                    last = f"on port {waiting[0].port}" if waiting else None
                except (PyMongoError, OSError) as error:
                    last = error
        while left := self.coordinators(change.database, names):
            if time.monotonic() > deadline:
                self.record.problem(f"{self.name}: {change} is still coordinated: {left}")
                return
            time.sleep(0.2)

    def runs(self, process, database, names):
        """Whether a process executes anything of the names."""
        with MongoClient(
            process.uri,
            directConnection=True,
            serverSelectionTimeoutMS=5_000,
            socketTimeoutMS=10_000,
        ) as client:
            admin = client.get_database("admin", read_preference=ReadPreference.SECONDARY_PREFERRED)
            is_router = client.admin.command("hello").get("msg") == "isdbgrid"
            stage = {"allUsers": True} | ({"localOps": True} if is_router else {})
            running = list(admin.aggregate([{"$currentOp": stage}]))
        return any(mentions(operation, database, names) for operation in running)

    def coordinators(self, database, names):
        """Definitions of the names that shards are about to finish."""
        try:
            found = [
                document
                for client in self.shards
                for document in client.config["system.sharding_ddl_coordinators"].find()
            ]
        except PyMongoError as error:
            return [error]
        return [document for document in found if mentions(document, database, names)]

    def after(self, client):
        """A session that sees what this one has done."""
        session = client.start_session(causal_consistency=True)
        if self.session.operation_time is not None:
            session.advance_cluster_time(self.session.cluster_time)
            session.advance_operation_time(self.session.operation_time)
        return session

    def verify(self, change, accepted):
        """Waits until all that is seen of an operation's names is as accepted, and goes by that."""
        looks, left_secs = 0, SHOWN_SECS
        while True:
            began = time.monotonic()
            try:
                seen = []
                for names in accepted:
                    differing = self.differences(change, names, names is change.after)
                    if not differing:
                        self.adopt(change.database, names)
                        return True
                    seen.append(differing)
                looks += 1
                if looks == 1 and len(accepted) == 1:
                    self.record.did("look that came too early")
                    self.record.trace(f"{self.name}: {change}: differs at first: {seen}")
            except PyMongoError as error:
                # What cannot be reached shows nothing, for as long as a fault takes.
                self.record.failed("look", error)
                began += (time.monotonic() - began) * 0.9
                seen = [str(error)]
            time.sleep(0.3)
            left_secs -= time.monotonic() - began
            if left_secs < 0:
                self.record.problem(f"{self.name}: {change}, expected {accepted}, differs: {seen}")
                return False

    def differences(self, change, names, is_done):
        found = []
        for name, shape in names.items():
            found += [
                f"{change.database}.{name}: {each}"
                for each in Look(self, change.database, name).differences(shape)
            ]
        if is_done and (change.primary or change.drops_database):
            for client in self.routers:
                with self.after(client) as session:
                    catalog = client.config.get_collection(
                        "databases", read_concern=ReadConcern("majority")
                    )
                    entry = catalog.find_one({"_id": change.database}, session=session)
                if (entry or {}).get("primary") != change.primary:
                    found.append(f"the database {entry}")
        return found

    def adopt(self, database, names):
        known = self.names[database]
        for name, shape in names.items():
            known.pop(name, None)
            if shape is not None:
                known[name] = shape

    def abandon(self, change):
        """Uses the names no more: what they stand for is not known."""
        for name in change.after:
            self.names[change.database].pop(name, None)
            self.abandoned.add((change.database, name))

    def verdict(self):
        """Looks at all names again when nothing is struck any more."""
        for database, names in self.names.items():
            self.verify(Change("the end", database, None, dict(names)), [dict(names)])


def mentions(value, database, names):
    """Whether a document is of one of the names; an empty one stands for the whole database."""
    text = str(value)
    return database in text and any(name in text for name in names)
