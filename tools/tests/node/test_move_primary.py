"""The primary shard of a database changes: all that is in it is on the other shard, whatever is
written and read meanwhile, and whatever process ends."""

import contextlib
import threading
import time
import uuid

import pytest
from bson import Binary, Int64, ObjectId
from datetime import datetime, timedelta
from pinion_cluster import fails, inconsistencies
from pinion_node import wait_until
from pymongo.errors import AutoReconnect, OperationFailure
from pymongo.read_concern import ReadConcern


@pytest.fixture
def client(cluster):
    with cluster.client() as connected:
        yield connected


@pytest.fixture
def db(cluster, client):
    """A database on the first shard, empty."""
    client.drop_database("d")
    cluster.make_database("d", 0, client)
    return client.d


def move(client, to, db="d"):
    return client.admin.command("movePrimary", db, to=to)


def place(client, db="d"):
    return client.config.databases.find_one({"_id": db})


def on_shard(cluster, at, db="d"):
    """What a shard has of a database, by names."""
    with cluster.shards[at].client() as direct:
        found = {listed["name"]: listed for listed in direct[db].list_collections()}
        return {name: listed for name, listed in found.items() if name != "system.profile"}


def is_idle(cluster):
    """No shard has anything left of a definition."""
    for shard in cluster.shards:
        with shard.client() as direct:
            for name in ("system.sharding_ddl_coordinators", "collectionCriticalSections"):
                if list(direct.config[name].find()):
                    return False
    return True


def definitions(client, db="d"):
    """Options, UUIDs and indexes of all collections and views."""
    found = {}
    for listed in client[db].list_collections():
        name = listed["name"]
        indexes = None
        if listed["type"] != "view" and name != "system.views":
            indexes = sorted((dict(index) for index in client[db][name].list_indexes()), key=lambda index: index["name"])
        known = listed["info"].get("uuid") if name != "system.views" else None
        found[name] = (listed["type"], listed["options"], known, indexes)
    return found


def fill(db):
    """Collections of all kinds."""
    db.plain.insert_many([{"_id": n, "a": n % 7, "t": f"word{n}"} for n in range(500)])
    db.plain.create_index("a", name="of_a")
    db.plain.create_index([("t", "text")])
    db.unique.create_index("u", unique=True)
    db.unique.insert_many([{"u": n} for n in range(20)])
    db.expiring.create_index("at", expireAfterSeconds=3600)
    db.expiring.insert_one({"at": datetime(2099, 1, 1)})
    db.create_collection("capped", capped=True, size=65536, max=50)
    db.capped.insert_many([{"n": n} for n in range(120)])
    db.create_collection("german", collation={"locale": "de", "strength": 1})
    db.german.create_index("s")
    db.german.create_index("s", name="simple", collation={"locale": "simple"})
    db.german.insert_many([{"s": text} for text in ("a", "Ä", "b", "A")])
    db.create_collection("checked", validator={"n": {"$gte": 0}}, validationAction="error")
    db.checked.insert_one({"n": 1})
    db.command("collMod", "checked", validator={"n": {"$gte": 5}})
    db.create_collection("empty")
    db.create_collection("view", viewOn="plain", pipeline=[{"$match": {"a": 3}}])
    db.create_collection("series", timeseries={"timeField": "t", "metaField": "m"})
    began = datetime(2024, 1, 1)
    db.series.insert_many([{"t": began + timedelta(minutes=n), "m": n % 3, "v": n} for n in range(90)])
    db.series.create_index([("m", 1), ("v", 1)])
    db["system.js"].insert_one({"_id": "f", "value": "function() { return 1; }"})
    db.create_collection("images", changeStreamPreAndPostImages={"enabled": True})
    db.create_collection("clustered", clusteredIndex={"key": {"_id": 1}, "unique": True})
    db.clustered.insert_many([{"_id": n} for n in range(10)])
    mixed = [1, 2.5, "x", None, {"a": 1}, ObjectId(), Int64(7), b"bytes", True]
    db.mixed.insert_many([{"_id": value, "n": at} for at, value in enumerate(mixed)])


def contents(db):
    names = ["plain", "unique", "expiring", "german", "checked", "view", "series", "system.js", "clustered", "mixed"]
    found = {name: sorted(map(repr, db[name].find())) for name in names}
    return found | {"capped": list(db.capped.find())}


def test_all_kinds_of_collections(cluster, client, other, db):
    fill(db)
    db.client.admin.command("shardCollection", "d.sharded", key={"k": "hashed"})
    db.sharded.insert_many([{"k": n} for n in range(100)])
    db.client.admin.command("shardCollection", "d.ranged", key={"k": 1})
    db.ranged.insert_many([{"k": n} for n in range(50)])
    db.ranged.create_index("x")
    before, documents = definitions(client), contents(db)
    assert contents(other.d) == documents
    version = place(client)["version"]
    assert move(client, "s1")["ok"] == 1
    moved = place(client)
    assert moved["primary"] == "s1"
    assert moved["version"] == {**version, "lastMod": version["lastMod"] + 1}
    for reader in (client, other):
        assert contents(reader.d) == documents
        assert definitions(reader) == before
        assert reader.d.sharded.count_documents({}) == 100 and reader.d.ranged.count_documents({}) == 50
    # Only what is sharded is left on the old primary shard; the new one has it without documents.
    assert set(on_shard(cluster, 0)) == {"sharded", "ranged"}
    there = on_shard(cluster, 1)
    assert there["ranged"]["info"]["uuid"] == on_shard(cluster, 0)["ranged"]["info"]["uuid"]
    with cluster.shards[1].client() as direct:
        assert direct.d.ranged.count_documents({}) == 0
        assert {"k_1", "x_1"} <= set(direct.d.ranged.index_information())
        assert direct.d.command("validate", "plain", full=True)["valid"]
    # All of it works there.
    fails(lambda: db.unique.insert_one({"u": 3}), 11000)
    fails(lambda: db.checked.insert_one({"n": 1}), 121)
    assert db.plain.count_documents({"$text": {"$search": "word7"}}) == 1
    assert db.german.count_documents({"s": "a"}) == 4 - 1
    db.capped.insert_one({"n": 120})
    assert [document["n"] for document in db.capped.find()] == list(range(71, 121))
    db.series.insert_one({"t": datetime(2024, 1, 2), "m": 1, "v": 1000})
    assert db.series.count_documents({}) == 91
    assert is_idle(cluster)
    # And back, over what is left there.
    documents = contents(db)
    move(other, "s0")
    assert contents(db) == documents and contents(other.d) == documents
    client.admin.command("shardCollection", "d.later", key={"k": 1})
    client.drop_database("d")
    assert on_shard(cluster, 0) == {} and on_shard(cluster, 1) == {}


def test_what_is_refused(cluster, client, db):
    db.c.insert_one({"_id": 1})
    for name in ("admin", "config", "local"):
        assert "Can't move primary" in fails(lambda: move(client, "s1", name), 72)
    fails(lambda: move(client, "s9"), 70)
    fails(lambda: move(client, ""), 72)
    fails(lambda: client.admin.command("movePrimary", "d"), 72)
    fails(lambda: move(client, "s1", "absent"), 26)
    fails(lambda: move(client, "s1", "a b"), 73)
    fails(lambda: client.d.command("movePrimary", "d", to="s1"), 13)
    assert place(client)["primary"] == "s0"


def test_names_of_shards(cluster, client, db):
    db.c.insert_one({"_id": 1})
    version = place(client)["version"]
    move(client, "s0")
    assert place(client)["version"] == version
    move(client, cluster.shards[1].connection_string)
    assert place(client)["primary"] == "s1"
    host = cluster.shards[0].connection_string.partition("/")[2].split(",")[0]
    client.admin.command("moveprimary", "d", to=host)
    assert place(client)["primary"] == "s0" and db.c.count_documents({}) == 1


def test_a_shard_that_leaves_gets_nothing(cluster, client, db):
    db.c.insert_one({"_id": 1})
    with cluster.config.client() as config:
        config.config.shards.update_one({"_id": "s1"}, {"$set": {"draining": True}})
        try:
            assert "draining" in fails(lambda: move(client, "s1"), 70)
        finally:
            config.config.shards.update_one({"_id": "s1"}, {"$unset": {"draining": 1}})
    assert place(client)["primary"] == "s0" and is_idle(cluster)


def test_documents_in_the_way(cluster, client, db):
    db.c.insert_one({"_id": 1})
    with cluster.shards[1].client() as direct:
        direct.d.c.insert_one({"_id": "another"})
        direct.d.create_collection("nothing")
        assert "d.c is on this shard already" in fails(lambda: move(client, "s1"), 48)
        assert place(client)["primary"] == "s0" and db.c.find_one() == {"_id": 1}
        # What is in the way is left, and writes continue.
        assert direct.d.c.find_one() == {"_id": "another"}
        db.c.insert_one({"_id": 2})
        direct.d.c.drop()
    move(client, "s1")
    assert db.c.count_documents({}) == 2 and "nothing" not in on_shard(cluster, 1)
    assert is_idle(cluster)


def test_a_router_that_slept(cluster, client, other, db):
    db.c.insert_many([{"_id": n} for n in range(10)])
    assert other.d.c.count_documents({}) == 10
    move(client, "s1")
    other.d.c.insert_one({"_id": 10})
    assert client.d.c.count_documents({}) == 11
    move(client, "s0")
    move(client, "s1")
    other.d.other.insert_one({"_id": 1})
    assert set(on_shard(cluster, 1)) == {"c", "other"} and on_shard(cluster, 0) == {}
    # It may be dropped and made again elsewhere.
    client.drop_database("d")
    cluster.make_database("d", 0, client)
    other.d.c.insert_one({"_id": 1})
    assert set(on_shard(cluster, 0)) == {"c"} and on_shard(cluster, 1) == {}


class Writers:
    """Threads that insert and update until they are stopped, and what was acknowledged to them."""

    def __init__(self, clients, collection="written", excused=()):
        self.stopped = threading.Event()
        self.counts = [0] * len(clients)
        self.written = set()
        self.failed = []
        self.excused = excused
        self.threads = [
            threading.Thread(target=self.write, args=(at, client.d[collection])) for at, client in enumerate(clients)
        ]

    def write(self, at, collection):
        number = 0
        while not self.stopped.is_set():
            number += 1
            key = f"{at}-{number}"
            try:
                collection.insert_one({"_id": key, "n": 0})
                collection.update_one({"_id": key}, {"$set": {"n": 1}})
                self.written.add(key)
                self.counts[at] += 1
            except self.excused:
                pass
            except Exception as error:
                self.failed.append(error)
                return

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stopped.set()
        for thread in self.threads:
            thread.join()

    def check(self, collection):
        assert not self.failed, self.failed
        assert all(count > 0 for count in self.counts)
        found = {document["_id"]: document["n"] for document in collection.find()}
        assert [key for key in self.written if found.get(key) != 1] == []


def test_writers_lose_nothing(cluster, client, other, db):
    db.written.insert_one({"_id": "first", "n": 1})
    client.admin.command("shardCollection", "d.sharded", key={"_id": "hashed"})
    with Writers([client, other]) as writers, Writers([client, other], "sharded") as sharded:
        for to in ("s1", "s0", "s1"):
            before = list(writers.counts)
            move(client, to)
            wait_until(lambda: all(now > then for now, then in zip(writers.counts, before)))
    writers.check(db.written)
    sharded.check(db.sharded)
    assert set(on_shard(cluster, 0)) == {"sharded"} and is_idle(cluster)


def test_a_change_stream_sees_each_write_once(cluster, client, other, db):
    db.c.insert_many([{"_id": n} for n in range(50)])
    with db.c.watch(max_await_time_ms=500) as stream, db.watch(max_await_time_ms=500) as of_database:
        db.c.insert_one({"_id": 100})
        move(client, "s1")
        other.d.c.insert_one({"_id": 101})
        move(client, "s0")
        db.c.update_one({"_id": 3}, {"$set": {"x": 1}})
        db.c.delete_one({"_id": 100})
        expected = [("insert", 100), ("insert", 101), ("update", 3), ("delete", 100)]
        for opened in (stream, of_database):
            seen = []
            for _ in range(40):
                change = opened.try_next()
                if change is not None:
                    seen.append((change["operationType"], change.get("documentKey", {}).get("_id")))
                if len(seen) >= len(expected) and change is None:
                    break
            assert seen == expected


def test_a_transaction_on_the_database_ends_the_move(cluster, client, other, db):
    db.c.insert_one({"_id": 1})
    with client.start_session() as session:
        session.start_transaction()
        db.c.insert_one({"_id": 2}, session=session)
        assert "critical section" in fails(lambda: move(other, "s1"), 24)
        db.c.insert_one({"_id": 3}, session=session)
        session.commit_transaction()
    assert db.c.count_documents({}) == 3 and place(client)["primary"] == "s0"
    assert is_idle(cluster)
    move(other, "s1")
    assert db.c.count_documents({}) == 3


def test_an_older_snapshot(cluster, client, other, db):
    """What has moved since a snapshot is not missing in it."""
    db.c.insert_one({"_id": 1})
    cluster.make_database("e", 1, client)
    client.e.c.insert_one({"_id": 1})
    # So the other router has heard of a time at which both are there.
    assert other.e.c.count_documents({}) == other.d.c.count_documents({}) == 1
    with other.start_session() as session:
        session.start_transaction(read_concern=ReadConcern("snapshot"))
        assert other.e.c.find_one(session=session) == {"_id": 1}
        move(client, "s1")
        with pytest.raises(OperationFailure) as refused:
            other.d.c.find_one(session=session)
        assert refused.value.code == 246 and refused.value.has_error_label("TransientTransactionError")
    with other.start_session() as session:
        session.start_transaction(read_concern=ReadConcern("snapshot"))
        assert other.d.c.find_one(session=session) == {"_id": 1}
        session.commit_transaction()
    client.drop_database("e")


def test_definitions_wait(cluster, client, other, db):
    """A collection, view or index made meanwhile is on the new primary shard."""
    db.c.insert_many([{"_id": n, "x": n, "pad": "x" * 500} for n in range(20_000)])
    client.admin.command("shardCollection", "d.sharded", key={"k": 1})
    mover = threading.Thread(target=lambda: move(client, "s1"))
    mover.start()
    made = 0
    while mover.is_alive() or made == 0:
        other.d.create_collection(f"made{made}")
        other.d.create_collection(f"view{made}", viewOn="c", pipeline=[])
        other.d.c.create_index("x", name=f"index{made}", partialFilterExpression={"x": {"$gt": made}})
        other.d.sharded.create_index([("k", 1), (f"y{made}", 1)])
        made += 1
    mover.join()
    there = on_shard(cluster, 1)
    for number in range(made):
        assert {f"made{number}", f"view{number}"} <= set(there)
    with cluster.shards[1].client() as direct:
        assert {f"index{number}" for number in range(made)} <= set(direct.d.c.index_information())
        names = set(direct.d.sharded.index_information())
        assert {f"k_1_y{number}_1" for number in range(made)} <= names
    assert set(on_shard(cluster, 0)) == {"sharded"}
    assert db.c.count_documents({}) == 20_000


@contextlib.contextmanager
def moving(client, to):
    """Moves the database in a thread, as a client that tries again until it is there."""

    def insist():
        while place(client)["primary"] != to:
            with contextlib.suppress(OperationFailure, AutoReconnect):
                move(client, to)

    thread = threading.Thread(target=insist)
    thread.start()
    yield thread
    thread.join()


@pytest.mark.parametrize("ended", [0, 1], ids=["donor", "recipient"])
@pytest.mark.parametrize("after_ms", [20, 150, 400])
def test_a_shard_that_dies(cluster, client, other, db, ended, after_ms):
    db.c.insert_many([{"_id": n, "pad": "x" * 500} for n in range(20_000)])
    db.c.create_index("pad")
    db.create_collection("view", viewOn="c", pipeline=[])
    # A write whose answer was lost with the process may be executed twice.
    with Writers([other], "c2", (OperationFailure, AutoReconnect)) as writers:
        wait_until(lambda: writers.counts[0] > 0)
        with moving(client, "s1"):
            time.sleep(after_ms / 1000)
            node = cluster.shards[ended].nodes[0]
            node.kill()
            node.start()
    wait_until(lambda: is_idle(cluster))
    assert set(on_shard(cluster, 1)) == {"c", "c2", "view", "system.views"}
    assert on_shard(cluster, 0) == {}
    for reader in (client, other):
        assert reader.d.c.count_documents({}) == 20_000
        assert reader.d.view.count_documents({}) == 20_000
        writers.check(reader.d.c2)


def test_a_recipient_that_is_away(cluster, client, other, db):
    """Writes wait for a minute at most; what was copied is removed when the shard is back."""
    db.c.insert_many([{"_id": n, "pad": "x" * 500} for n in range(20_000)])
    # The other router knows where the database is: it could not ask a shard that is away.
    assert other.d.c.count_documents({}) == 20_000
    node = cluster.shards[1].nodes[0]
    codes = []

    def once():
        try:
            move(client, "s1")
            codes.append(0)
        except OperationFailure as error:
            codes.append(error.code)

    thread = threading.Thread(target=once)
    thread.start()
    time.sleep(0.1)
    node.kill()
    other.d.c.insert_one({"_id": "late"})
    node.start()
    thread.join()
    wait_until(lambda: is_idle(cluster))
    assert codes == [125] and place(client)["primary"] == "s0"
    assert on_shard(cluster, 1) == {} and db.c.count_documents({}) == 20_001
    move(client, "s1")
    assert other.d.c.count_documents({}) == 20_001


def test_repeated_messages_do_nothing(cluster, client, db):
    db.c.insert_one({"_id": 1})
    known = place(client)
    move(client, "s1")
    with cluster.config.client(uuidRepresentation="standard") as config:
        commit = {"_configsvrCommitMovePrimary": "d", "expectedDatabaseVersion": known["version"],
                  "writeConcern": {"w": "majority"}}
        config.admin.command({**commit, "to": "s1"})
        fails(lambda: config.admin.command({**commit, "to": "s0"}), 117)
    reason = {"namespace": "d", "operationType": "movePrimary"}
    late = {"reason": reason, "attempt": Binary.from_uuid(uuid.uuid4()), "copies": [], "phase": "clone", "from": "s0"}
    with cluster.shards[1].client(uuidRepresentation="standard") as direct:
        fails(lambda: direct.d.command("_shardsvrCloneCatalogData", 1, **late), 117)
        fails(lambda: direct.d.command("_shardsvrMovePrimaryAbort", 1, **{**late, "phase": "abort"}), 117)
    assert db.c.find_one() == {"_id": 1}


def test_definitions_that_changed_while_it_was_elsewhere(client, db):
    """A shard that was the primary has what was sharded as it was then, not as it is."""
    for name in ("one", "both", "series"):
        options = {"timeseries": {"timeField": "t", "metaField": "m"}} if name == "series" else {}
        key = {"one": {"k": 1}, "both": {"k": "hashed"}, "series": {"m": 1}}[name]
        client.admin.command("shardCollection", f"d.{name}", key=key, **options)
        client.d[name].create_index("y" if name != "series" else "m.y", name="y")
    client.d.one.insert_many([{"k": n, "v": n} for n in range(5)])
    move(client, "s1")
    move(client, "s0")
    for name in ("one", "both"):
        client.d.command("collMod", name, validator={"v": {"$ne": 7}})
    client.d.command("collMod", "series", expireAfterSeconds=86_400)
    for name in ("one", "both", "series"):
        client.d[name].create_index("x" if name != "series" else "m.x", name="x")
        client.d[name].drop_index("y")
    before = definitions(client)
    for to in ("s1", "s0", "s1"):
        move(client, to)
        assert definitions(client) == before
        assert inconsistencies(client) == []
    assert before["one"][1]["validator"] == before["both"][1]["validator"] == {"v": {"$ne": 7}}
    assert {index["name"] for index in before["one"][3]} == {"_id_", "k_1", "x"}
    assert sorted(found["v"] for found in client.d.one.find()) == list(range(5))
    fails(lambda: client.d.one.insert_one({"k": 1, "v": 7}), 121)
