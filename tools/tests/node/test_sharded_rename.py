"""Collections of a cluster that get another name: sharded and not, in the place of others, beside
routers that slept through it, and while nodes end."""

import threading
import uuid

import pymongo
import pytest
from bson import Binary, MaxKey, MinKey
from pinion_cluster import Cluster, fails, unharmed
from pinion_node import TEST_COMMANDS, wait_until
from pymongo.errors import OperationFailure
from pymongo.read_concern import ReadConcern


@pytest.fixture(scope="module")
def cluster():
    with unharmed(Cluster(shards=2, routers=2, options=TEST_COMMANDS)) as running:
        with running.client() as client:
            client.admin.command("addShardToZone", "s0", zone="low")
            client.admin.command("addShardToZone", "s1", zone="high")
        yield running


@pytest.fixture
def client(cluster):
    with cluster.client() as connected:
        yield connected


@pytest.fixture
def db(cluster, client):
    """A database on the first shard, empty, also of zones of collections that are not there."""
    client.drop_database("d")
    for found in list(client.config.tags.find({"ns": {"$regex": "^d\\."}})):
        client.admin.command("updateZoneKeyRange", found["ns"], min=found["min"], max=found["max"], zone=None)
    cluster.make_database("d", 0, client)
    return client.d


def zone(client, ns, name, low, high):
    client.admin.command("updateZoneKeyRange", ns, min={"k": low}, max={"k": high}, zone=name)


def sharded(db, name, count=100):
    """A collection whose documents below 50 are on the first shard, the others on the second."""
    ns = f"d.{name}"
    zone(db.client, ns, "low", MinKey(), 50)
    zone(db.client, ns, "high", 50, MaxKey())
    db.client.admin.command("shardCollection", ns, key={"k": 1})
    db[name].insert_many([{"_id": n, "k": n, "of": name} for n in range(count)])
    return db[name]


def unsharded(db, name, count=10):
    db[name].insert_many([{"_id": n, "k": n, "of": name} for n in range(count)])
    return db[name]


def without_zones(db, name):
    """MongoDB renames nothing onto a collection with zones."""
    zone(db.client, f"d.{name}", None, MinKey(), 50)
    zone(db.client, f"d.{name}", None, 50, MaxKey())


def entry(client, name):
    return client.config.collections.find_one({"_id": f"d.{name}"})


def chunks(client, found):
    return client.config.chunks.count_documents({"uuid": found["uuid"]})


def on_shards(cluster, name):
    """How many documents each shard has."""
    counts = []
    for at in (0, 1):
        with cluster.shards[at].client() as direct:
            counts.append(direct.d[name].count_documents({}))
    return counts


def names(cluster, at):
    with cluster.shards[at].client() as direct:
        return sorted(name for name in direct.d.list_collection_names() if not name.startswith("system."))


def rename(client, old, new, **options):
    return client.admin.command("renameCollection", f"d.{old}", to=f"d.{new}", **options)


def of(collection):
    """Whose documents these are, and how many."""
    found = list(collection.find())
    return {document["of"] for document in found}, len(found)


def test_to_a_name_that_is_free(cluster, db):
    client = db.client
    sharded(db, "a").create_index("of")
    before = entry(client, "a")
    rename(client, "a", "b")
    after = entry(client, "b")
    assert entry(client, "a") is None
    assert after["uuid"] == before["uuid"] and after["key"] == {"k": 1}
    assert after["lastmodEpoch"] != before["lastmodEpoch"] and after["timestamp"] > before["timestamp"]
    assert of(db.b) == ({"a"}, 100) and db.a.count_documents({}) == 0
    assert on_shards(cluster, "b") == [50, 50] and on_shards(cluster, "a") == [0, 0]
    assert names(cluster, 0) == names(cluster, 1) == ["b"]
    assert {"k_1", "of_1"} <= set(db.b.index_information())
    # The zones go with it.
    assert client.config.tags.count_documents({"ns": "d.b"}) == 2
    assert client.config.tags.count_documents({"ns": "d.a"}) == 0
    # Both shards take writes by the new name.
    db.b.insert_many([{"_id": n, "k": n, "of": "a"} for n in (-1, 1000)])
    assert db.b.update_many({}, {"$set": {"x": 1}}).modified_count == 102
    assert on_shards(cluster, "b") == [51, 51]
    logged = client.config.changelog.find({"ns": "d.a", "what": {"$regex": "^renameCollection"}})
    assert [found["what"] for found in logged] == ["renameCollection.start", "renameCollection.end"]
    with cluster.shards[0].client() as direct:
        assert direct.config["system.sharding_ddl_coordinators"].count_documents({}) == 0
    for shard in cluster.shards:
        with shard.client() as direct:
            assert direct.config.collectionCriticalSections.count_documents({}) == 0
            cached = [found["_id"] for found in direct.config["cache.collections"].find({"_id": {"$regex": "^d[.]"}})]
            assert cached == ["d.b"]


def test_there_and_back(cluster, db, other):
    sharded(db, "a")
    for _ in range(3):
        rename(db.client, "a", "b")
        assert other.d.b.count_documents({}) == 100
        rename(other, "b", "a")
        assert db.a.count_documents({}) == 100
    assert on_shards(cluster, "a") == [50, 50]


def test_sharded_onto_sharded(cluster, db):
    client = db.client
    sharded(db, "a")
    sharded(db, "b", 70)
    gone = entry(client, "b")
    fails(lambda: rename(client, "a", "b"), 48)
    assert "associated tags" in fails(lambda: rename(client, "a", "b", dropTarget=True), 125)
    without_zones(db, "b")
    kept = entry(client, "a")
    rename(client, "a", "b", dropTarget=True)
    assert entry(client, "b")["uuid"] == kept["uuid"] and chunks(client, kept) == 2
    assert chunks(client, gone) == 0
    assert of(db.b) == ({"a"}, 100) and on_shards(cluster, "b") == [50, 50]
    assert names(cluster, 0) == names(cluster, 1) == ["b"]


def test_sharded_onto_unsharded(cluster, db):
    sharded(db, "a")
    unsharded(db, "b")
    fails(lambda: rename(db.client, "a", "b"), 48)
    rename(db.client, "a", "b", dropTarget=True)
    assert of(db.b) == ({"a"}, 100) and on_shards(cluster, "b") == [50, 50]
    assert entry(db.client, "b")["key"] == {"k": 1}


def test_unsharded_onto_sharded(cluster, db, other):
    client = db.client
    unsharded(db, "a")
    sharded(db, "b")
    without_zones(db, "b")
    gone = entry(client, "b")
    assert other.d.b.count_documents({}) == 100 and other.d.a.count_documents({}) == 10
    fails(lambda: rename(client, "a", "b"), 48)
    rename(client, "a", "b", dropTarget=True)
    assert entry(client, "b") is None and chunks(client, gone) == 0
    assert of(db.b) == of(other.d.b) == ({"a"}, 10)
    assert on_shards(cluster, "b") == [10, 0] and names(cluster, 1) == []
    other.d.b.insert_one({"_id": 99, "k": 99, "of": "a"})
    assert on_shards(cluster, "b") == [11, 0]


def test_unsharded(cluster, db):
    client = db.client
    unsharded(db, "a")
    unsharded(db, "b", 20)
    fails(lambda: rename(client, "a", "b"), 48)
    rename(client, "a", "b", dropTarget=True)
    assert of(db.b) == ({"a"}, 10) and names(cluster, 0) == ["b"]
    fails(lambda: rename(client, "a", "b"), 26)
    fails(lambda: rename(client, "b", "b"), 20)
    with pytest.raises(OperationFailure):
        rename(client, "b", "system.x")


def test_what_is_refused(db):
    client = db.client
    sharded(db, "a")
    fails(lambda: rename(client, "none", "b"), 26)
    fails(lambda: client.admin.command("renameCollection", "nowhere.a", to="nowhere.b"), 26)
    fails(lambda: rename(client, "a", "a"), 20)
    fails(lambda: client.admin.command("renameCollection", "d.a", to="e.a"), 125)
    db.plain.insert_one({})
    db.command("create", "view", viewOn="plain", pipeline=[])
    fails(lambda: rename(client, "a", "view", dropTarget=True), 48)
    fails(lambda: rename(client, "view", "a", dropTarget=True), 166)
    fails(lambda: rename(client, "a", "system.x"), 20)
    fails(lambda: rename(client, "a", "b", dropTarget=1), 14)
    fails(lambda: rename(client, "a", "b" * 234), 73)
    zone(client, "d.b", "low", 0, 1)
    assert "associated tags" in fails(lambda: rename(client, "a", "b"), 125)
    assert of(db.a) == ({"a"}, 100)


def test_collections_by_their_uuids(db):
    client = db.client
    mine = entry_uuid(sharded(db, "a"))
    theirs = entry_uuid(sharded(db, "b"))
    without_zones(db, "b")
    none = Binary.from_uuid(uuid.uuid4())
    fails(lambda: rename(client, "a", "b", dropTarget=none), 361)
    fails(lambda: rename(client, "a", "c", dropTarget=theirs), 361)
    fails(lambda: rename(client, "a", "b", dropTarget=True, collectionUUID=theirs), 361)
    rename(client, "a", "b", dropTarget=theirs, collectionUUID=mine)
    assert of(db.b) == ({"a"}, 100) and entry_uuid(db.b) == mine


def entry_uuid(collection):
    return entry(collection.database.client, collection.name)["uuid"]


def test_one_event(db):
    sharded(db, "a")
    sharded(db, "b")
    without_zones(db, "b")
    with db.watch(max_await_time_ms=500) as stream, db.a.watch(max_await_time_ms=500) as of_source:
        rename(db.client, "a", "b", dropTarget=True)
        db.b.insert_one({"_id": 500, "k": 500})
        seen = []
        while not seen or seen[-1]["operationType"] != "insert":
            seen.append(stream.next())
        kinds = [change["operationType"] for change in seen]
        assert kinds.count("rename") == 1 and kinds.count("drop") <= 1, kinds
        renamed = seen[kinds.index("rename")]
        assert renamed["ns"] == {"db": "d", "coll": "a"} and renamed["to"] == {"db": "d", "coll": "b"}
        assert of_source.next()["operationType"] == "rename"
        assert of_source.next()["operationType"] == "invalidate"


@pytest.mark.parametrize("target", ["none", "unsharded", "sharded"])
def test_a_router_that_slept_through_it(cluster, db, other, target):
    """It writes nothing into the wrong incarnation."""
    sharded(db, "a")
    if target == "sharded":
        sharded(db, "b")
        without_zones(db, "b")
    elif target == "unsharded":
        unsharded(db, "b")
    # It knows both.
    other.d.a.find_one({"k": 1}), list(other.d.a.find()), list(other.d.b.find())
    rename(db.client, "a", "b", dropTarget=True)
    other.d.b.insert_many([{"_id": n, "k": n, "of": "a"} for n in (-7, 700)])
    assert on_shards(cluster, "b") == [51, 51]
    assert of(other.d.b) == ({"a"}, 102)
    assert other.d.b.update_many({"k": {"$in": [-7, 700]}}, {"$set": {"x": 1}}).modified_count == 2
    # The old name is free, and of one shard.
    other.d.a.insert_many([{"_id": n, "k": n, "of": "new"} for n in (-7, 700)])
    assert on_shards(cluster, "a") == [2, 0]
    assert of(db.a) == ({"new"}, 2) and of(db.b) == ({"a"}, 102)


def test_a_router_that_slept_through_two(cluster, db, other):
    """The same collection has its name again, in another incarnation."""
    sharded(db, "a")
    assert other.d.a.count_documents({}) == 100
    rename(db.client, "a", "b")
    rename(db.client, "b", "a")
    other.d.a.insert_many([{"_id": n, "k": n, "of": "a"} for n in (-7, 700)])
    assert on_shards(cluster, "a") == [51, 51] and of(other.d.a) == ({"a"}, 102)


def test_beside_writers(db, other):
    """What writers of the two names hear is what there is."""
    db.client.admin.command("shardCollection", "d.a", key={"k": "hashed"})
    done, written = threading.Event(), []

    def write():
        n = 0
        while not done.is_set():
            n += 1
            for name in ("a", "b"):
                try:
                    # An update makes nothing under a name that is free.
                    changed = other.d[name].update_one({"k": n % 20}, {"$inc": {"n": 1}})
                    written.append(changed.modified_count)
                except OperationFailure as error:
                    # Its collection has got another name while it waited.
                    assert error.code in (175, 13388), error.details
    db.a.insert_many([{"_id": n, "k": n, "n": 0} for n in range(20)])
    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(5):
            rename(db.client, "a", "b")
            rename(db.client, "b", "a")
    finally:
        done.set()
        writer.join()
    assert sum(written) == sum(document["n"] for document in db.a.find()) > 0


def begin(call):
    outcome = []

    def run():
        try:
            outcome.append(call())
        except pymongo.errors.PyMongoError as error:
            outcome.append(error)
    thread = threading.Thread(target=run)
    thread.start()
    return thread, outcome


def phase(cluster):
    with cluster.shards[0].client() as direct:
        found = direct.config["system.sharding_ddl_coordinators"].find_one()
        return found and found["phase"]


def test_the_coordinator_ends(cluster, db, client):
    """Another primary finishes what it has started."""
    sharded(db, "a")
    sharded(db, "b")
    without_zones(db, "b")
    first, second = cluster.shards[0].nodes[0], cluster.shards[1].nodes[0]
    second.suspend()
    try:
        thread, _ = begin(lambda: rename(client, "a", "b", dropTarget=True))
        wait_until(lambda: phase(cluster) == "blockCRUD")
        first.kill()
        first.start()
        wait_until(lambda: cluster.shards[0].leads(first))
    finally:
        second.resume()
    wait_until(lambda: phase(cluster) is None)
    thread.join()
    assert on_shards(cluster, "b") == [50, 50] and names(cluster, 0) == names(cluster, 1) == ["b"]
    with cluster.client() as again:
        assert of(again.d.b) == ({"a"}, 100) and again.d.a.count_documents({}) == 0
        again.d.b.insert_many([{"_id": n, "k": n, "of": "a"} for n in (-7, 700)])
    assert on_shards(cluster, "b") == [51, 51]


def stops_in_the_middle(cluster, thread):
    """Suspends the coordinator of a rename while the second shard keeps both names closed; whether
    that came in time."""
    with cluster.shards[1].client() as direct:
        sections = direct.config.collectionCriticalSections
        while thread.is_alive() and not sections.count_documents({}):
            pass
        cluster.shards[0].nodes[0].suspend()
        return sections.count_documents({}) == 1


def test_a_participant_ends(cluster, db, client):
    """Its gates are closed again before it serves, and it renames what it has."""
    sharded(db, "a")
    first, second = cluster.shards[0].nodes[0], cluster.shards[1].nodes[0]
    names_of = ["a", "b"]
    while True:
        thread, outcome = begin(lambda: rename(client, *names_of))
        if stops_in_the_middle(cluster, thread):
            break
        first.resume()
        thread.join()
        assert isinstance(outcome[0], dict), outcome
        names_of.reverse()
    try:
        second.kill()
        second.start()
        wait_until(lambda: cluster.shards[1].leads(second))
        with cluster.shards[1].client() as direct:
            for name in names_of:
                fails(lambda name=name: direct.d[name].find_one({}, max_time_ms=300), 50)
    finally:
        first.resume()
    wait_until(lambda: phase(cluster) is None)
    thread.join()
    old, new = names_of
    with cluster.client() as again:
        assert of(again.d[new]) == ({"a"}, 100) and again.d[old].count_documents({}) == 0
    assert on_shards(cluster, new) == [50, 50] and names(cluster, 0) == names(cluster, 1) == [new]


def test_to_capped(cluster, db, other):
    unsharded(db, "a")
    assert other.d.a.count_documents({}) == 10
    db.command("convertToCapped", "a", size=100_000)
    assert db.a.options()["capped"] is True and of(other.d.a) == ({"a"}, 10)
    fails(lambda: db.command("convertToCapped", "none", size=100_000), 26)
    fails(lambda: db.command("convertToCapped", "a"), 72)
    sharded(db, "s")
    assert "sharded collection" in fails(lambda: db.command("convertToCapped", "s", size=100_000), 20)
    fails(lambda: db.command("cloneCollectionAsCapped", "s", toCollection="x", size=100_000), 20)
    fails(lambda: db.command("cloneCollectionAsCapped", "a", toCollection="s", size=100_000), 20)
    db.command("cloneCollectionAsCapped", "a", toCollection="x", size=100_000)
    assert of(db.x) == ({"a"}, 10)


def test_a_transaction_of_before(db, client):
    """One that reads from before the rename does not find the new name empty."""
    sharded(db, "a")
    unsharded(db, "other")
    with client.start_session() as session, session.start_transaction(read_concern=ReadConcern("snapshot")):
        assert db.other.find_one({}, session=session) is not None
        rename(client, "a", "b")
        with pytest.raises(OperationFailure) as caught:
            list(db.b.find({}, session=session))
        assert caught.value.has_error_label("TransientTransactionError"), caught.value.details
        session.abort_transaction()
    with client.start_session() as session, session.start_transaction(read_concern=ReadConcern("snapshot")):
        assert len(list(db.b.find({}, session=session))) == 100
