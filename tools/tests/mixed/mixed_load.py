"""Writes of all kinds over a whole set, while its members change."""

import datetime
import random
import threading
import time
from collections import Counter

import pymongo
from bson import SON, Decimal128, Int64
from pymongo import DESCENDING, TEXT, IndexModel, InsertOne, ReplaceOne, UpdateOne, WriteConcern
from pymongo.collation import Collation


class Load:
    """Writes in every way over the whole set, and remembers what a majority has acknowledged."""

    rounds = 0

    def __init__(self, uri):
        Load.rounds += 1
        self.base = Load.rounds * 1_000_000
        self.client = pymongo.MongoClient(uri, serverSelectionTimeoutMS=60_000, w="majority")
        self.acknowledged = set()
        self.failed = []
        self.broken = None
        self.stopping = threading.Event()
        self.threads = [threading.Thread(target=self._run, args=(what,)) for what in (self.documents, self.ddl, self.transactions)]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stopping.set()
        for thread in self.threads:
            thread.join()
        self.client.close()
        assert self.broken is None, self.broken

    def _run(self, what):
        number = 0
        while not self.stopping.is_set():
            try:
                what(number)
            except (pymongo.errors.ConnectionFailure, pymongo.errors.WriteConcernError) as error:
                # What was not acknowledged may be there or not.
                self.failed.append(error)
            except pymongo.errors.OperationFailure as error:
                # 217: a findAndModify that is tried again on another member than the one that has
                # executed it.
                if not error.has_error_label("RetryableWriteError") and not error.has_error_label("TransientTransactionError") \
                        and error.code not in (91, 189, 11600, 11602, 10107, 13435, 26, 27, 48, 68, 276, 211, 217, 246):
                    self.broken = error
                    return
            number += 1

    def documents(self, number):
        docs = self.client.test.docs
        number += self.base
        docs.insert_one({"_id": number, "n": number, "tags": [number % 7, "x"], "deep": {"a": [{"b": number}]}})
        self.acknowledged.add(number)
        docs.update_one({"_id": number}, {"$inc": {"n": 1}, "$push": {"tags": number}, "$set": {"deep.a.0.b": -number}})
        docs.update_one({"_id": number - 1}, [{"$set": {"sum": {"$add": ["$n", 1]}, "old": "$$REMOVE"}}])
        docs.find_one_and_update({"_id": number}, {"$unset": {"deep.a": 1}, "$rename": {"n": "m"}})
        docs.bulk_write([
            InsertOne({"_id": f"b{number}", "u": number}),
            UpdateOne({"_id": f"b{number}"}, {"$set": {"w": "some words"}}),
            ReplaceOne({"_id": f"b{number - 1}"}, {"replaced": number}, upsert=True),
        ])
        if number % 5 == 4:
            docs.delete_many({"_id": {"$in": [f"b{number - 4}", f"b{number - 3}"]}})

    def ddl(self, number):
        test, other = self.client.test, self.client.other
        name = f"made{number % 3}"
        test.drop_collection(name)
        test.create_collection(name, collation={"locale": "en", "strength": 2}, validator={"_id": {"$exists": True}})
        test[name].create_indexes([
            IndexModel("a"), IndexModel([("b", DESCENDING), ("c", 1)], unique=True, sparse=True),
            IndexModel([("w", TEXT)], default_language="none", collation=Collation("simple")), IndexModel([("h", "hashed")]),
            IndexModel([("p", "2dsphere")]), IndexModel([("$**", 1)]),
            IndexModel("e", expireAfterSeconds=100_000, partialFilterExpression={"e": {"$gt": 3}}),
        ])
        test[name].insert_many([{"_id": at, "a": [at, number], "b": at, "w": "words", "h": at, "p": [at, 1]} for at in range(20)])
        test.command("collMod", name, index={"name": "e_1", "expireAfterSeconds": 200_000})
        test.command("collMod", name, validator={"a": {"$exists": True}}, validationLevel="moderate")
        test[name].drop_index("a_1")
        other.short.insert_many([{"n": at} for at in range(5)])
        other.drop_collection("renamed")
        other.short.rename("renamed")
        # Built beside the writers.
        if number % 4 == 1:
            test.docs.create_index("tags", name="grown")
        if number % 4 == 3:
            test.docs.drop_index("grown")
        test.drop_collection("view")
        test.create_collection("view", viewOn="docs", pipeline=[{"$match": {"n": number}}])
        test.command(SON([("collMod", "view"), ("viewOn", name), ("pipeline", [])]))
        if "log" not in test.list_collection_names():
            test.create_collection("log", capped=True, size=1 << 20)
        test.log.insert_many([{"n": number, "at": at} for at in range(3)])
        time.sleep(0.3)

    def transactions(self, number):
        with self.client.start_session() as session:
            session.with_transaction(lambda session: self.transfer(session, number), write_concern=WriteConcern("majority"))
        time.sleep(0.02)

    def transfer(self, session, number):
        accounts = self.client.test.accounts
        for account, amount in ((number % 10, -1), ((number + 3) % 10, 1)):
            accounts.update_one({"_id": account}, {"$inc": {"balance": amount}}, upsert=True, session=session)


class RandomLoad:
    """Random writes and commands on collections, by several clients, most of which succeed. What
    fails is passed over, unless it says that a member has come to something that it does not
    understand."""

    # Internal errors, and those of entries that cannot be applied.
    NEVER = (1, 8, 4772604, 317)

    def __init__(self, uri, rng, threads=3):
        self.client = pymongo.MongoClient(uri, serverSelectionTimeoutMS=60_000)
        self.stopping = threading.Event()
        self.failures = []
        self.done = Counter()
        seeds = [rng.randrange(1 << 30) for _ in range(threads)]
        self.threads = [threading.Thread(target=self._run, args=(random.Random(seed),)) for seed in seeds]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stopping.set()
        for thread in self.threads:
            thread.join()
        self.client.close()
        assert not self.failures, self.failures[:3]

    def _run(self, rng):
        kinds = [self.insert] * 6 + [self.update] * 12 + [self.remove] * 2 + [self.modify] * 3 + [self.bulk] * 3 \
            + [self.transaction] * 3 + [self.catalog]
        while not self.stopping.is_set():
            kind = rng.choice(kinds)
            database = self.client.get_database(rng.choice(["test", "other"]), write_concern=WriteConcern(rng.choice([1, "majority"])))
            try:
                kind(rng, database)
                self.done[kind.__name__] += 1
            except pymongo.errors.OperationFailure as error:
                details = [write.get("code") for write in (error.details or {}).get("writeErrors", [])]
                if error.code in self.NEVER or set(details) & set(self.NEVER):
                    self.failures.append(error)
            except pymongo.errors.PyMongoError:
                # What was not acknowledged may be there or not.
                pass

    @staticmethod
    def collection(rng, database):
        return database[f"c{rng.randrange(6)}"]

    def value(self, rng, depth=0):
        kinds = [lambda: rng.randrange(-50, 50), lambda: rng.choice("abcxyz") * rng.randrange(4), lambda: rng.random() * 100,
                 lambda: None, lambda: bool(rng.randrange(2)), lambda: Int64(rng.randrange(1 << 40)),
                 lambda: datetime.datetime.fromtimestamp(rng.randrange(1 << 30), datetime.timezone.utc), lambda: Decimal128(str(rng.randrange(99)))]
        if depth < 3:
            kinds += [lambda: [self.value(rng, depth + 1) for _ in range(rng.randrange(4))],
                      lambda: {self.name(rng): self.value(rng, depth + 1) for _ in range(rng.randrange(4))}]
        return rng.choice(kinds)()

    @staticmethod
    def name(rng):
        # Numbers are names too, and have an order of their own.
        return rng.choice(["a", "b", "c", "d", "9", "10", "0", "1", "long name", "ü"])

    def path(self, rng):
        return ".".join(self.name(rng) for _ in range(rng.choice([1, 1, 1, 2, 2, 3])))

    def document(self, rng):
        return {"_id": rng.randrange(60), **{self.name(rng): self.value(rng) for _ in range(rng.randrange(6))}}

    def filter(self, rng):
        return rng.choice([{"_id": rng.randrange(60)}, {"_id": {"$gt": rng.randrange(60)}}, {self.path(rng): {"$exists": True}},
                           {"a": {"$type": "number"}}, {"b": {"$type": "array"}}])

    def operators(self, rng):
        made = {}
        for _ in range(rng.randrange(1, 4)):
            operator, value = rng.choice([
                ("$set", self.value(rng)), ("$set", self.value(rng)), ("$unset", ""), ("$inc", rng.randrange(-5, 5)), ("$mul", 2),
                ("$min", self.value(rng)), ("$max", self.value(rng)), ("$push", self.value(rng)), ("$addToSet", self.value(rng)),
                ("$push", {"$each": [self.value(rng) for _ in range(3)], "$slice": rng.choice([-4, 4]), "$position": 1}),
                ("$pop", rng.choice([-1, 1])), ("$pull", rng.randrange(-50, 50)), ("$rename", self.path(rng)),
                ("$currentDate", True), ("$bit", {"or": 5}), ("$setOnInsert", self.value(rng)),
            ])
            made.setdefault(operator, {})[self.path(rng)] = value
        return made

    def change(self, rng):
        if rng.random() < 0.2:
            return [{"$set": {self.name(rng): {"$ifNull": [f"${self.name(rng)}", self.value(rng)]} if rng.random() < 0.5 else {"$literal": self.value(rng)}}},
                    {"$unset": self.name(rng)}]
        return self.operators(rng)

    def insert(self, rng, database, **options):
        self.collection(rng, database).insert_many([self.document(rng) for _ in range(rng.randrange(1, 6))], ordered=False, **options)

    def update(self, rng, database, **options):
        collection, upsert = self.collection(rng, database), rng.random() < 0.3
        rng.choice([
            lambda: collection.update_one(self.filter(rng), self.change(rng), upsert=upsert, **options),
            lambda: collection.update_many(self.filter(rng), self.change(rng), **options),
            lambda: collection.replace_one({"_id": rng.randrange(60)}, {self.name(rng): self.value(rng)}, upsert=upsert, **options),
            lambda: collection.update_many({}, {"$inc": {"b.$[x]": 1}}, array_filters=[{"x": {"$type": "number"}}], **options),
        ])()

    def remove(self, rng, database, **options):
        collection = self.collection(rng, database)
        if rng.random() < 0.1:
            collection.delete_many(self.filter(rng), **options)
        else:
            collection.delete_one(self.filter(rng), **options)

    def modify(self, rng, database, **options):
        collection = self.collection(rng, database)
        rng.choice([
            lambda: collection.find_one_and_update(self.filter(rng), self.change(rng), upsert=rng.random() < 0.3,
                                                   return_document=rng.random() < 0.5, **options),
            lambda: collection.find_one_and_delete(self.filter(rng), **options),
            lambda: collection.find_one_and_replace(self.filter(rng), {self.name(rng): self.value(rng)}, **options),
        ])()

    def bulk(self, rng, database):
        self.collection(rng, database).bulk_write([
            rng.choice([
                lambda: InsertOne(self.document(rng)), lambda: UpdateOne(self.filter(rng), self.change(rng)),
                lambda: ReplaceOne({"_id": rng.randrange(60)}, {"r": self.value(rng)}, upsert=True),
            ])() for _ in range(rng.randrange(2, 8))
        ], ordered=False)

    def transaction(self, rng, database):
        with self.client.start_session() as session:
            session.start_transaction()
            for _ in range(rng.randrange(1, 5)):
                rng.choice([self.insert, self.update, self.remove, self.modify])(rng, database, session=session)
            if rng.random() < 0.2:
                # It may make a collection, with an index.
                database[f"c{rng.randrange(6)}"].create_index("made", session=session)
            if rng.random() < 0.15:
                session.abort_transaction()
            else:
                session.commit_transaction()

    def catalog(self, rng, database):
        time.sleep(0.05)
        collection = self.collection(rng, database)
        key = rng.choice([[("a", 1)], [("b", -1), ("c", 1)], [("$**", 1)], [("d", "hashed")], [("10", 1)], [("a.b", 1), ("9", 1)]])
        rng.choice([
            collection.drop,
            lambda: database.create_collection(collection.name, **rng.choice([
                {}, {"collation": {"locale": "fr"}}, {"validator": {"a": {"$ne": 13}}}, {"validator": {"b": {"$exists": True}}, "validationAction": "warn"},
            ])),
            lambda: database.client.admin.command("renameCollection", f"{database.name}.{collection.name}",
                                                  to=f"{database.name}.c{rng.randrange(6)}", dropTarget=rng.random() < 0.7),
            lambda: collection.create_index(key),
            lambda: collection.create_index(key, sparse=True, name="sparse"),
            lambda: collection.create_index("_id", name="late", unique=True, partialFilterExpression={"a": {"$gt": 3}}),
            lambda: collection.create_index("t", name="ttl", expireAfterSeconds=rng.randrange(10_000, 20_000)),
            lambda: database.command("collMod", collection.name, index={"name": "ttl", "expireAfterSeconds": rng.randrange(10_000, 20_000)}),
            lambda: database.command("collMod", collection.name, validator={"c": {"$ne": "no"}}),
            lambda: collection.drop_index(rng.choice([key, "sparse", "late", "ttl"])),
            collection.drop_indexes,
            lambda: database.create_collection(f"v{rng.randrange(3)}", viewOn=collection.name, pipeline=[{"$match": {"a": rng.randrange(9)}}]),
            lambda: database[f"v{rng.randrange(3)}"].drop(),
            lambda: database.command(SON([("collMod", f"v{rng.randrange(3)}"), ("viewOn", collection.name), ("pipeline", [])])),
        ])()
