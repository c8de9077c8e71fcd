"""A member of Pinion among members of MongoDB 4.4: it copies, follows, is elected, is followed and copied, and steps down again,
and the data are alike on all throughout."""

import os
import threading
import time

import pymongo
import pytest
from bson import SON
from pymongo import DESCENDING, TEXT, IndexModel, InsertOne, ReplaceOne, UpdateOne, WriteConcern

from pinion_node import MixedSet, wait_until

pytestmark = pytest.mark.skipif("PINION_MONGOD" not in os.environ, reason="PINION_MONGOD does not name the folder with mongod")

DATABASES = ["test", "other"]


class Load:
    """Writes in every way over the whole set, and remembers what a majority has acknowledged."""

    rounds = 0

    def __init__(self, uri):
        Load.rounds += 1
        self.base = Load.rounds * 1_000_000
        self.client = pymongo.MongoClient(uri, serverSelectionTimeoutMS=60_000, w="majority")
        self.acknowledged = set()
        self.failed = []
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

    def _run(self, what):
        number = 0
        while not self.stopping.is_set():
            try:
                what(number)
            except (pymongo.errors.ConnectionFailure, pymongo.errors.WriteConcernError) as error:
                # What was not acknowledged may be there or not.
                self.failed.append(error)
            except pymongo.errors.OperationFailure as error:
                if not error.has_error_label("RetryableWriteError") and not error.has_error_label("TransientTransactionError") \
                        and error.code not in (91, 189, 11600, 11602, 10107, 13435, 26, 48, 68, 276, 211, 246):
                    self.failed.append(error)
                    raise
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
            IndexModel([("w", TEXT)], default_language="none"), IndexModel([("h", "hashed")]),
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


def wait_alike(mixed):
    for database in DATABASES:
        mixed.wait_alike(database, timeout_secs=120)


def nothing_is_lost(mixed, load):
    with mixed.client(readPreference="primary") as client:
        found = {document["_id"] for document in client.test.docs.find({"_id": {"$type": "number"}}, {"_id": 1})}
        assert load.acknowledged <= found, sorted(load.acknowledged - found)[:5]
        assert sum(document["balance"] for document in client.test.accounts.find()) == 0


def source_of(mixed, node):
    with mixed.member(node) as client:
        return client.admin.command("replSetGetStatus")["syncSourceHost"]


def test_a_set_is_moved_and_moved_back():
    with MixedSet() as mixed:
        with Load(mixed.uri) as load:
            time.sleep(3)
            pinion = mixed.join(mixed.pinion(), priority=0, votes=0)
            time.sleep(3)
        wait_alike(mixed)
        nothing_is_lost(mixed, load)
        first = mixed.primary()

        mixed.hand_over(pinion)
        with Load(mixed.uri) as load:
            time.sleep(5)
            host = f"127.0.0.1:{pinion.port}"
            others = [node for node in mixed.nodes if node is not pinion]
            wait_until(lambda: host in {source_of(mixed, node) for node in others}, 60)
        wait_alike(mixed)
        nothing_is_lost(mixed, load)

        # One that is new copies Pinion's data, and no other's.
        newest = mixed.mongod()
        newest.options += ["--setParameter", "initialSyncSourceReadPreference=primary"]
        with Load(mixed.uri) as load:
            mixed.join(newest, priority=0, votes=0)
        wait_alike(mixed)
        nothing_is_lost(mixed, load)

        mixed.hand_over(first)
        with Load(mixed.uri) as load:
            time.sleep(5)
        wait_alike(mixed)
        nothing_is_lost(mixed, load)
        assert all(node.alive() for node in mixed.nodes)
