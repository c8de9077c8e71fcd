"""What clusters have got wrong before, as public reports have it: chunks that change their owner
behind a router, databases that move and are made again, lost answers, and nodes that are away.

No chunk moves by itself yet: a test gives it to another shard by hand, as a move does."""

import datetime
import threading
import time

import pymongo
import pytest
from bson import Int64, MaxKey, MinKey, Timestamp
from pinion_cluster import Cluster, fails, unharmed
from pinion_node import TEST_COMMANDS, Beside, FailPoint, ReplicaSet, wait_until
from pinion_wire import Wire
from pymongo.errors import AutoReconnect, DuplicateKeyError, OperationFailure
from pymongo.read_concern import ReadConcern
from pymongo.read_preferences import ReadPreference
from test_sharded import chunks_of, ids, on_shard, shard, split_in_zones

TRANSIENT = "TransientTransactionError"
MAJORITY = pymongo.WriteConcern("majority")


@pytest.fixture(scope="module")
def cluster():
    with unharmed(Cluster(shards=2, members=2, routers=2, options=TEST_COMMANDS)) as running:
        for members in running.shards:
            for node in members.nodes:
                with members.member(node) as direct:
                    wait_until(lambda direct=direct: direct.admin.command("shardingState")["enabled"])
        yield running


@pytest.fixture
def client(cluster):
    with cluster.client() as connected:
        yield connected


@pytest.fixture
def db(cluster, client):
    """A database on the first shard, empty; `e` is on the second."""
    for at, name in enumerate(("d", "e")):
        client.drop_database(name)
        cluster.make_database(name, at, client)
    yield client.d
    for name in ("d", "e"):
        client.drop_database(name)


@pytest.fixture
def ranged(db):
    """A collection in three chunks: below 100 on the first shard, from 100 and from 150 on the
    second."""
    split_in_zones(db.client, "d.r", {"k": 1}, 100)
    db.client.admin.command("split", "d.r", middle={"k": 150})
    db.r.insert_many([{"_id": n, "k": n, "g": n % 5} for n in range(200)])
    return db.r


def learn(cluster, ns):
    """Has the primaries of all shards read the table."""
    for members in cluster.shards:
        with members.client() as direct:
            direct.admin.command("_flushRoutingTableCacheUpdates", ns)


def time_of(cluster):
    """A time behind all that shards and config servers know of."""
    known = []
    for members in (cluster.config, *cluster.shards):
        with members.client() as direct:
            known.append(direct.admin.command("ping")["$clusterTime"]["clusterTime"])
    last = max(known)
    return Timestamp(last.time, last.inc + 1)


def give(cluster, client, low, to, ns="d.r", learns=True):
    """Gives the chunk that begins at `low` to a shard, as a move does, and leaves its documents on
    the old one too."""
    chunks = chunks_of(client, ns)
    moved, = (chunk for chunk in chunks if chunk["min"]["k"] == low)
    name, old = ns.split(".", 1)[1], int(moved["shard"][1:])
    major = max(chunk["lastmod"] for chunk in chunks).time + 1
    rest = next((c for c in chunks if c["shard"] == moved["shard"] and c is not moved), None)
    since = time_of(cluster)
    with cluster.config.client() as config:
        catalog = config.config.get_collection("chunks", write_concern=MAJORITY)
        catalog.update_one({"_id": moved["_id"]}, {"$set": {
            "shard": f"s{to}", "lastmod": Timestamp(major, 0), "onCurrentShardSince": since,
            "history": [{"validAfter": since, "shard": f"s{to}"}, *moved["history"]],
        }})
        if rest:
            catalog.update_one({"_id": rest["_id"]}, {"$set": {"lastmod": Timestamp(major, 1)}})
    bounds = {"k": {"$gte": moved["min"]["k"], "$lt": moved["max"]["k"]}}
    with cluster.shards[old].client() as source, cluster.shards[to].client() as target:
        if found := list(source.d[name].find(bounds)):
            target.d[name].insert_many(found)
    if learns:
        learn(cluster, ns)


def move(client, to, db="d"):
    client.admin.command("movePrimary", db, to=to)


def fails_as_transient(call):
    """Runs what has to fail so that the client tries the whole transaction again."""
    with pytest.raises(OperationFailure) as caught:
        call()
    assert caught.value.has_error_label(TRANSIENT), caught.value.details


def numbered(first, count=10, of=""):
    return [{"_id": n, "k": n, "of": of} for n in range(first, first + count)]


# What becomes of collections behind a transaction: how they are made, what is done with them, and
# the name that is read then.


def moves_here(cluster, client):
    move(client, "s0", "e")
    return client.e.c


def is_made_again_here(cluster, client):
    client.drop_database("e")
    cluster.make_database("e", 0, client)
    client.e.c.insert_many(numbered(500))
    return client.e.c


def is_renamed(cluster, client):
    client.admin.command("renameCollection", "d.r", to="d.renamed")
    return client.d.renamed


def is_replaced_by_one_that_is_not_sharded(cluster, client):
    client.d.r.drop()
    client.d.r.insert_many(numbered(500))
    return client.d.r


def is_replaced_by_one_that_is_sharded_otherwise(cluster, client):
    client.d.r.drop()
    shard(client, "d.r", {"k": "hashed"})
    client.d.r.insert_many(numbered(500, 50))
    return client.d.r


def becomes_sharded_again(cluster, client):
    client.d.plain.drop()
    shard(client, "d.plain", {"k": "hashed"})
    client.d.plain.insert_many(numbered(500, 50))
    return client.d.plain


def is_sharded_as_it_is(cluster, client):
    client.d.plain.create_index("k")
    shard(client, "d.plain", {"k": 1})
    client.d.plain.insert_many(numbered(500))
    return client.d.plain


def gets_a_finer_key(cluster, client):
    client.d.r.create_index([("k", 1), ("g", 1)])
    client.admin.command("refineCollectionShardKey", "d.r", key={"k": 1, "g": 1})
    return client.d.r


def is_replaced_by_a_rename(cluster, client):
    for low, high in ((MinKey(), 100), (100, MaxKey())):
        client.admin.command("updateZoneKeyRange", "d.r", min={"k": low}, max={"k": high}, zone=None)
    client.admin.command("renameCollection", "d.plain", to="d.r", dropTarget=True)
    return client.d.r


def is_dropped(cluster, client):
    client.d.r.drop()
    return client.d.r


def has_another_name(cluster, client):
    client.admin.command("renameCollection", "d.r", to="d.renamed")
    return client.d.r


CHANGES = [
    moves_here, is_made_again_here, is_renamed, is_replaced_by_one_that_is_not_sharded,
    is_replaced_by_one_that_is_sharded_otherwise, becomes_sharded_again, is_sharded_as_it_is,
    gets_a_finer_key, is_replaced_by_a_rename,
]
# Behind these there is nothing of the name.
LOSSES = [is_dropped, has_another_name]


@pytest.fixture
def known(db, ranged, other):
    """What the other router knows of all collections, and times at which they are there."""
    db.begin.insert_one({"_id": 1})
    db.plain.insert_many(numbered(0))
    db.client.e.c.insert_many(numbered(0))
    return {"r": ids(other.d.r.find()), "plain": ids(other.d.plain.find()), "c": ids(other.e.c.find())}


@pytest.mark.parametrize("has_heard", [False, True], ids=["old", "new"])
@pytest.mark.parametrize("level", ["local", "snapshot"])
@pytest.mark.parametrize("change", CHANGES + LOSSES, ids=lambda change: change.__name__)
def test_what_has_another_place_than_at_the_snapshot(cluster, client, other, known, change, level, has_heard):
    """A collection whose place is newer than the snapshot of a transaction is neither empty in it
    nor shown in part: the statement fails with the label, and the next try sees what there is. So
    it is whether the router has heard of the new place or not."""
    with other.start_session() as session:
        session.start_transaction(read_concern=ReadConcern(level))
        assert other.d.begin.find_one(session=session) == {"_id": 1}
        changed = change(cluster, client)
        read = other[changed.database.name][changed.name]
        if has_heard:
            assert ids(read.find()) == ids(changed.find())
        try:
            found = ids(read.find(session=session))
        except OperationFailure as error:
            assert error.has_error_label(TRANSIENT), error.details
        else:
            # All of it as it was then.
            assert found == known.get(changed.name)
        session.abort_transaction()
        session.start_transaction(read_concern=ReadConcern(level))
        other.d.begin.find_one(session=session)
        assert ids(read.find(session=session)) == ids(changed.find())
        session.commit_transaction()


@pytest.mark.parametrize("level", ["local", "snapshot"])
@pytest.mark.parametrize("stage", ["$lookup", "$unionWith"])
def test_a_stage_that_reads_what_was_sharded_at_the_snapshot(cluster, client, other, known, stage, level):
    """Nor does a stage of a pipeline see a part of such a collection."""
    stages = [{"$lookup": {"from": "r", "pipeline": [], "as": "of"}}, {"$unwind": "$of"}]
    pipeline = [*(stages if stage == "$lookup" else [{"$unionWith": "r"}, {"$match": {"k": {"$gte": 0}}}]), {"$count": "n"}]
    with other.start_session() as session:
        session.start_transaction(read_concern=ReadConcern(level))
        assert other.d.begin.find_one(session=session) == {"_id": 1}
        is_replaced_by_one_that_is_not_sharded(cluster, client)
        assert other.d.r.count_documents({}) == 10
        try:
            found = list(other.d.begin.aggregate(pipeline, session=session))
        except OperationFailure as error:
            assert error.has_error_label(TRANSIENT), error.details
        else:
            assert found == [{"n": 200}]


@pytest.mark.parametrize("change", CHANGES + LOSSES, ids=lambda change: change.__name__)
def test_a_snapshot_of_an_earlier_place(cluster, client, other, known, change):
    """A read of a time before such a change gives all that there was then, or fails; at a router
    that has heard of the change, and at one that has not."""
    opened = other.d.command("find", "begin", readConcern={"level": "snapshot"})["cursor"]
    level = {"level": "snapshot", "atClusterTime": opened["atClusterTime"]}
    changed = change(cluster, client)
    for router in (other, client):
        try:
            reply = router[changed.database.name].command("find", changed.name, batchSize=1000, readConcern=level)
        except OperationFailure as error:
            assert error.code in (13388, 246, 250), error.details
        else:
            assert ids(reply["cursor"]["firstBatch"]) == known.get(changed.name)


@pytest.mark.parametrize("has_heard", [False, True], ids=["old", "new"])
@pytest.mark.parametrize("level", ["local", "snapshot"])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_what_is_written_in_another_place_than_at_the_snapshot(cluster, client, other, known, change, level, has_heard):
    """A document of such a collection that is there now is not missed by an update: this is
    executed, or fails with the label, and the next try is executed."""
    with other.start_session() as session:
        session.start_transaction(read_concern=ReadConcern(level))
        assert other.d.begin.find_one(session=session) == {"_id": 1}
        changed = change(cluster, client)
        # The newest document is on whichever shard has the collection now.
        key = max(changed.distinct("k", {"k": {"$ne": 550}}))
        written = other[changed.database.name][changed.name]
        if has_heard:
            assert ids(written.find()) == ids(changed.find())
        add = lambda: written.update_one({"k": key}, {"$inc": {"n": 1}}, session=session).modified_count
        try:
            assert add() == 1
        except OperationFailure as error:
            assert error.has_error_label(TRANSIENT), error.details
            session.abort_transaction()
            session.start_transaction(read_concern=ReadConcern(level))
            other.d.begin.find_one(session=session)
            assert add() == 1
        session.commit_transaction()
    assert changed.find_one({"k": key})["n"] == 1


def test_an_update_of_all_makes_no_orphan_ones_own(cluster, client, other, ranged):
    """An update of many that sets the shard key to one that the shard owns finds no document that
    the shard has beside what it owns."""
    assert len(ids(other.d.r.find())) == 200
    with cluster.shards[1].client() as direct:
        direct.d.r.insert_one({"_id": "stray", "k": 5.5, "mark": 1})
    give(cluster, client, 150, 0)
    before = sorted(on_shard(cluster, 1, "r"), key=str)
    assert len(before) == 101
    for of in (other.d.r, ranged):
        for update in ({"$set": {"k": 120}}, [{"$set": {"k": 120}}]):
            for filter in ({}, {"k": {"$gte": 150}}, {"_id": 170}):
                assert "shard key" in fails(lambda: of.update_many(filter, update), 72)
            # Those that match are none of a shard.
            for filter in ({"mark": 1}, {"_id": "stray"}, {"k": 5.5}):
                assert of.update_many(filter, update).matched_count == 0
    with client.start_session() as session, session.start_transaction():
        assert ranged.find_one_and_update({"mark": 1}, {"$set": {"k": 120}}, session=session) is None
    assert sorted(on_shard(cluster, 1, "r"), key=str) == before
    assert ids(ranged.find()) == list(range(200)) and ids(other.d.r.find({"k": 120})) == [120]


def test_a_secondary_does_not_answer_for_the_old_owner(client, other, db):
    """A client that has seen a write of after a move sees it on secondaries too, by whichever
    router: these wait for the end of the move, and for the write."""
    read = other.d.get_collection("c", read_preference=ReadPreference.SECONDARY)
    db.c.insert_many([{"_id": n, "n": 0} for n in range(20)])
    with other.start_session(causal_consistency=True) as session:
        other.d.c.find_one(session=session)
        assert len(list(read.find(session=session))) == 20
    for turn in range(1, 7):
        moving = Beside(lambda turn=turn: move(client, f"s{turn % 2}"))
        # Some come before the move, some behind it; none meets the half of it.
        while True:
            was_under_way = moving.is_alive()
            with client.start_session(causal_consistency=True) as wrote:
                db.c.update_many({}, {"$inc": {"n": 1}}, session=wrote)
                expected = db.c.find_one({"_id": 0}, session=wrote)["n"]
                with other.start_session(causal_consistency=True) as session:
                    session.advance_cluster_time(wrote.cluster_time)
                    session.advance_operation_time(wrote.operation_time)
                    found = [document["n"] for document in read.find(session=session)]
            assert found == [expected] * 20
            if not was_under_way:
                break
        assert moving.ended().error is None


@pytest.mark.parametrize("preference", [ReadPreference.PRIMARY, ReadPreference.SECONDARY], ids=["primary", "secondary"])
@pytest.mark.parametrize("level", ["local", "majority", "snapshot"])
def test_a_cursor_from_before_a_move(client, other, db, preference, level):
    """A cursor that was opened before all that it reads has moved gives all documents, or ends with
    an error."""
    db.get_collection("c", write_concern=MAJORITY).insert_many([{"_id": n} for n in range(500)])
    opened = other.d.get_collection("c", read_preference=preference, read_concern=ReadConcern(level))
    with client.start_session() as seen:
        # A secondary that is behind would have nothing to give.
        db.c.find_one(session=seen)
        with other.start_session(causal_consistency=level != "snapshot", snapshot=level == "snapshot") as session:
            if level != "snapshot":
                session.advance_cluster_time(seen.cluster_time)
                session.advance_operation_time(seen.operation_time)
            else:
                wait_until(lambda: len(list(opened.find())) == 500)
            cursor = opened.find({}, batch_size=50, session=session)
            found = [next(cursor)["_id"]]
            move(client, "s1")
            db.get_collection("c", write_concern=MAJORITY).insert_one({"_id": 1000})
            try:
                found += [document["_id"] for document in cursor]
            except OperationFailure as error:
                assert error.code in (43, 175, 239, 246), error.details
            else:
                assert sorted(found) == list(range(500))


def test_secondaries_pass_over_what_their_shard_does_not_own(cluster, client, other, ranged):
    """Reads of secondaries with a level see no document that their shard does not own, whether it
    was left there or has not become its own yet. With the level available they may."""
    with cluster.shards[0].client(w=2) as first, cluster.shards[1].client(w=2) as second:
        give(cluster, client, 150, 0)
        second.d.r.insert_one({"_id": "pending", "k": 7.5, "g": 1})
        first.d.r.insert_one({"_id": "pending too", "k": 120.5, "g": 1})
    for router in (client, other):
        for level in ("local", "majority", "snapshot"):
            read = router.d.get_collection("r", read_preference=ReadPreference.SECONDARY, read_concern=ReadConcern(level))
            wait_until(lambda read=read: len(list(read.find())) >= 200)
            assert ids(read.find()) == list(range(200))
            assert ids(read.find({"g": 1})) == list(range(1, 200, 5))
            assert list(read.aggregate([{"$count": "n"}])) == [{"n": 200}]
            assert sorted(read.distinct("k")) == list(range(200))
            assert read.find_one({"_id": "pending"}) is None
        read = router.d.get_collection("r", read_preference=ReadPreference.SECONDARY)
        assert read.count_documents({}) == 200
        shown = router.d.get_collection("r", read_preference=ReadPreference.SECONDARY, read_concern=ReadConcern("available"))
        assert len(list(shown.find())) >= 200


@pytest.mark.parametrize("name", ["insert", "update", "find", "findAndModify", "aggregate"])
@pytest.mark.parametrize("is_first", [True, False], ids=["first", "second"])
@pytest.mark.parametrize("is_sharded", [False, True], ids=["unsharded", "sharded"])
def test_a_statement_whose_connection_breaks(cluster, client, db, name, is_first, is_sharded):
    """A router does not send a statement of a transaction again when it has lost the connection to
    a shard: the client is to try the whole transaction again, and nothing of it is left."""
    if is_sharded:
        split_in_zones(client, "d.c", {"k": 1}, 100)
    db.c.insert_many([{"_id": 0, "k": 0, "n": 0}, {"_id": 100, "k": 100, "n": 0}])
    before = list(db.c.find().sort("_id", 1))
    statements = {
        "insert": lambda session: db.c.insert_one({"_id": 1, "k": 1}, session=session),
        "update": lambda session: db.c.update_one({"_id": 0}, {"$inc": {"n": 1}}, session=session),
        "find": lambda session: list(db.c.find(session=session)),
        "findAndModify": lambda session: db.c.find_one_and_update({"k": 0}, {"$inc": {"n": 1}}, session=session),
        "aggregate": lambda session: list(db.c.aggregate([{"$count": "n"}], session=session)),
    }
    with cluster.shards[0].client() as direct, client.start_session() as session:
        session.start_transaction()
        if not is_first:
            db.c.insert_one({"_id": 2, "k": 2}, session=session)
        broken = {"failCommands": [name], "closeConnection": True, "failInternalCommands": True}
        point = FailPoint(direct, "failCommand", {"times": 1}, **broken)
        fails_as_transient(lambda: statements[name](session))
        assert point.off() - point.before == 1
        session.abort_transaction()
        open_there = lambda: direct.admin.command("serverStatus")["transactions"]["currentOpen"]
        wait_until(lambda: open_there() == 0)
        assert list(db.c.find().sort("_id", 1)) == before
        with session.start_transaction():
            statements[name](session)
    assert db.c.count_documents({}) == (3 if name == "insert" else 2)
    assert db.c.find_one({"_id": 0})["n"] == (name in ("update", "findAndModify"))


def test_statements_that_are_sent_again_within_the_server(cluster, client, other, ranged):
    """A statement of a transaction that a router sends again, since its table was old, is executed
    once."""
    def by_an_old_table(statement, change):
        assert len(ids(other.d.r.find())) == 200
        change()
        with other.start_session() as session, session.start_transaction(write_concern=MAJORITY):
            statement(session)

    push = lambda value: {"$push": {"list": value}}
    there = iter([(150, 0), (100, 0), (150, 1), (100, 1)])
    change = lambda: give_back(cluster, client, *next(there))
    by_an_old_table(lambda session: other.d.r.update_one({"k": 160}, push(1), session=session), change)
    by_an_old_table(lambda session: other.d.r.update_one({"_id": 110}, push(1), session=session), change)
    by_an_old_table(lambda session: other.d.r.update_many({"k": {"$gt": 158, "$lt": 163}}, push(2), session=session), change)
    by_an_old_table(lambda session: other.d.r.find_one_and_update({"_id": 110}, push(2), session=session), change)
    lists = {document["_id"]: document["list"] for document in client.d.r.find({"list": {"$exists": True}})}
    assert lists == {160: [1, 2], 110: [1, 2], 159: [2], 161: [2], 162: [2]}


def give_back(cluster, client, low, to):
    """Gives a chunk to a shard that may have had it before, without what it has of it still."""
    with cluster.shards[to].client() as direct:
        chunk, = (chunk for chunk in chunks_of(client, "d.r") if chunk["min"]["k"] == low)
        direct.d.r.delete_many({"k": {"$gte": low, "$lt": chunk["max"]["k"]}})
    give(cluster, client, low, to)


def test_lists_that_are_appended_to_while_they_move(client, other, db):
    """Transactions that read all lists and append a number to two of them, with snapshots and
    majorities, while the database moves: a number that was acknowledged is once in both, no list is
    read as it never was, and no number is seen in one of its lists and missed in the other."""
    names = list("abcd")
    db.lists.insert_many([{"_id": name, "of": []} for name in names])
    stopped, seen, appended, failed = threading.Event(), [], {}, []

    def work(number, router):
        rounds = 0
        with router.start_session() as session:
            while not stopped.is_set():
                rounds += 1
                value = number * 100_000 + rounds
                to = [names[(number + rounds) % 4], names[(number + 2 * rounds + 1) % 4]]
                if to[0] == to[1]:
                    continue
                try:
                    with session.start_transaction(read_concern=ReadConcern("snapshot"), write_concern=MAJORITY):
                        found = {document["_id"]: document["of"] for document in router.d.lists.find(session=session)}
                        for name in to:
                            router.d.lists.update_one({"_id": name}, {"$push": {"of": value}}, session=session)
                    seen.append(found)
                    appended[value] = set(to)
                except (OperationFailure, AutoReconnect) as error:
                    if not error.has_error_label(TRANSIENT):
                        failed.append(error)
                        return

    threads = [threading.Thread(target=work, args=(at, (client, other)[at % 2])) for at in range(4)]
    for thread in threads:
        thread.start()
    try:
        for to in ("s1", "s0", "s1", "s0"):
            before = len(appended)
            move(client, to)
            wait_until(lambda: len(appended) > before + 5 or failed)
    finally:
        stopped.set()
        for thread in threads:
            thread.join()
    assert not failed, failed
    last = {document["_id"]: document["of"] for document in db.lists.find()}
    found_in = lambda lists, value: {name for name in names if value in lists[name]}
    assert all(len(set(of)) == len(of) for of in last.values())
    assert all(found_in(last, value) == to for value, to in appended.items())
    for lists in seen:
        assert all(of == last[name][:len(of)] for name, of in lists.items())
        for value in {value for of in lists.values() for value in of}:
            assert found_in(lists, value) == found_in(last, value)


def test_the_outcome_of_an_earlier_transaction(cluster, client, db):
    """A commit that is asked for at another router, with a token, of a transaction that is not the
    last one of its session says nothing of the last one, and does not end that."""
    db.c.insert_one({"_id": 0})
    with client.start_session() as session, Wire(cluster.routers[1].port) as elsewhere:
        session.start_transaction()
        reply = db.command("insert", "c", documents=[{"_id": 1}], session=session)
        ask = {
            "commitTransaction": 1, "lsid": session.session_id, "autocommit": False,
            "txnNumber": Int64(session._server_session.transaction_id), "recoveryToken": reply["recoveryToken"],
        }
        session.commit_transaction()
        assert elsewhere.command("admin", ask)["ok"] == 1
        session.start_transaction()
        db.c.insert_one({"_id": 2}, session=session)
        refused = elsewhere.command("admin", ask)
        assert refused["ok"] == 0 and refused["code"] == 225, refused
        assert TRANSIENT not in refused.get("errorLabels", []), refused
        db.c.insert_one({"_id": 3}, session=session)
        session.commit_transaction()
        assert elsewhere.command("admin", ask)["code"] == 225
    assert ids(db.c.find()) == [0, 1, 2, 3]


@pytest.mark.parametrize("key", [{"s": 1}, {"s": "hashed"}, {"n": 1, "s": 1}], ids=str)
def test_strings_that_are_equal_by_a_collation(db, key):
    """A query with a collation that is not simple finds all documents, wherever the strings that it
    takes for equal lie; so do the writes."""
    client, folded = db.client, {"locale": "en", "strength": 2}
    db.create_collection("words", collation=folded)
    with pytest.raises(OperationFailure):
        shard(client, "d.words", key)
    words = ["cat", "Cat", "CAT", "dog", "Dog", "DOG"]
    if key == {"s": 1}:
        for zone, (low, high) in (("low", (MinKey(), "a")), ("high", ("a", MaxKey()))):
            client.admin.command("addShardToZone", "s0" if zone == "low" else "s1", zone=zone)
            client.admin.command("updateZoneKeyRange", "d.words", min={"s": low}, max={"s": high}, zone=zone)
    shard(client, "d.words", key, collation={"locale": "simple"})
    db.words.insert_many([{"_id": 10 * at + n, "s": word, "n": n} for at, word in enumerate(words) for n in range(10)])
    assert db.words.count_documents({"s": "cAT"}) == 30
    assert len(list(db.words.find({"s": {"$in": ["cAT", "x"]}}))) == 30
    assert len(list(db.words.find({"s": {"$gte": "CAT", "$lt": "dOG"}}))) == 30
    assert list(db.words.aggregate([{"$match": {"s": "cat"}}, {"$count": "n"}])) == [{"n": 30}]
    assert len(list(db.words.find({"s": "cat"}).collation({"locale": "simple"}))) == 10
    assert db.words.find_one({"s": "DoG", "n": 3})["n"] == 3
    assert len(list(db.words.find({"s": "DoG", "n": 3}))) == 3
    assert db.words.update_many({"s": "caT"}, {"$set": {"x": 1}}).modified_count == 30
    assert db.words.update_one({"s": "doG"}, {"$set": {"x": 2}}).modified_count == 1
    assert db.words.find_one_and_delete({"s": "doG", "n": 5}) is not None
    assert db.words.delete_many({"s": "dOg"}).deleted_count == 29
    assert db.words.delete_one({"s": "CaT"}).deleted_count == 1 and db.words.count_documents({"s": "CAT"}) == 29


def test_a_snapshot_of_before_a_move(cluster, client, other, ranged):
    """A read of a time before a move goes to the shards that owned the documents then, at a router
    that knows of the move, and at one that does not."""
    level = {"level": "snapshot"}
    assert len(ids(other.d.r.find())) == 200
    reply = other.d.command("find", "r", filter={"k": {"$gte": 150}}, batchSize=10, readConcern=level)["cursor"]
    level["atClusterTime"] = reply["atClusterTime"]
    give(cluster, client, 150, 0)
    ranged.delete_many({"k": {"$gte": 160, "$lt": 190}})
    ranged.update_many({}, {"$set": {"new": True}})
    for router in (other, client):
        count = router.d.command("aggregate", "r", pipeline=[{"$count": "n"}], cursor={}, readConcern=level)["cursor"]
        assert count["firstBatch"] == [{"n": 200}]
        found = router.d.command("find", "r", batchSize=1000, readConcern=level)["cursor"]["firstBatch"]
        assert ids(found) == list(range(200)) and not any("new" in document for document in found)
        found = router.d.command("find", "r", filter={"k": 170}, readConcern=level)["cursor"]["firstBatch"]
        assert ids(found) == [170]
        values = router.d.command("distinct", "r", key="k", query={"k": {"$gte": 150}}, readConcern=level)["values"]
        assert sorted(values) == list(range(150, 200))
        assert router.d.r.count_documents({}) == 170
    more = other.d.command("getMore", reply["id"], collection="r", batchSize=1000)["cursor"]
    assert ids(reply["firstBatch"] + more["nextBatch"]) == list(range(150, 200))


@pytest.mark.parametrize("name", ["r", "plain"], ids=["sharded", "moved"])
def test_a_snapshot_at_a_router_that_has_heard_of_nothing(client, other, db, name):
    """A router that has not heard of the time at which a collection was sharded, or has moved,
    chooses a later one for a read of a snapshot, and does not say that there is none."""
    db.plain.insert_one({"_id": 1})
    split_in_zones(client, "d.r", {"k": 1}, 100)
    assert other.d.plain.find_one() == {"_id": 1} and other.d.r.find_one() is None
    if name == "r":
        db.r.drop()
        split_in_zones(client, "d.r", {"k": 1}, 50)
    else:
        move(client, "s1")
    for command in (
        {"find": name, "filter": {"_id": 1}}, {"find": name}, {"distinct": name, "key": "k"},
        {"aggregate": name, "pipeline": [{"$match": {"_id": 1}}], "cursor": {}},
        {"aggregate": name, "pipeline": [{"$group": {"_id": "$g"}}], "cursor": {}},
    ):
        other.d.command({**command, "readConcern": {"level": "snapshot"}})


def test_a_table_that_changes_while_it_is_read(cluster, client, db):
    """What changes of a table of many chunks while a router reads it for the first time, however
    long that takes, is not lost."""
    shard(client, "d.r", {"k": 1})
    db.r.insert_many([{"_id": n, "k": n} for n in range(100)])
    entry = client.config.collections.find_one({"_id": "d.r"})
    with cluster.shards[0].client() as direct:
        direct.admin.command({
            "splitChunk": "d.r", "from": "s0", "keyPattern": {"k": 1}, "epoch": entry["lastmodEpoch"],
            "min": {"k": MinKey()}, "max": {"k": MaxKey()}, "splitKeys": [{"k": n} for n in range(3000)],
        })
    with cluster.client(1) as late, cluster.config.client() as config:
        late.admin.command("flushRouterConfig", "d.r")
        block = {"blockConnection": True, "blockTimeMS": 3000, "failInternalCommands": True}
        point = FailPoint(config, "failCommand", {"times": 1}, failCommands=["getMore"], **block)
        reading = Beside(lambda: ids(late.d.r.find()))
        point.wait()
        # It moves, is changed at its new shard, and another one is split.
        give(cluster, client, 50, 1)
        client.d.r.update_one({"k": 50}, {"$set": {"x": 1}})
        client.admin.command("split", "d.r", middle={"k": 60.5})
        assert reading.ended().answer == list(range(100)), reading.error
        point.off()
        assert late.d.r.find_one({"k": 50})["x"] == 1
        assert late.d.r.update_one({"k": 50}, {"$set": {"y": 1}}).modified_count == 1
        late.d.r.insert_one({"_id": 60.7, "k": 60.7})
    assert client.d.r.find_one({"k": 50})["y"] == 1 and client.d.r.count_documents({}) == 101


def test_what_is_read_with_available_is_written_to_the_owners(cluster, client, other, ranged, db):
    """`$merge` and `$out` behind a read of the level available write to the shards that own the
    documents, by whichever table they begin."""
    split_in_zones(client, "d.t", {"k": 1}, 100)
    client.admin.command("split", "d.t", middle={"k": 150})
    assert other.d.t.count_documents({}) == 0 and len(ids(other.d.r.find())) == 200
    for ns in ("d.r", "d.t"):
        give(cluster, client, 150, 0, ns)
    for preference in (ReadPreference.PRIMARY, ReadPreference.SECONDARY):
        for router in (other, client):
            source = router.d.get_collection("r", read_preference=preference, read_concern=ReadConcern("available"))
            wait_until(lambda source=source: len(list(source.find())) >= 200)
            source.aggregate([{"$merge": "t"}])
            assert ids(router.d.t.find()) == list(range(200))
            assert ids(on_shard(cluster, 0, "t")) == [*range(100), *range(150, 200)]
            assert ids(on_shard(cluster, 1, "t")) == list(range(100, 150))
            source.aggregate([{"$group": {"_id": "$k"}}, {"$out": "o"}])
            assert ids(router.d.o.find()) == list(range(200))
            router.d.t.delete_many({})


def test_upserts_of_one_key_around_a_move(cluster, client, other, ranged, db):
    """Upserts of one key through two routers, one of which has slept through a move, make one
    document; so they do while the database moves."""
    assert len(ids(other.d.r.find())) == 200
    give(cluster, client, 150, 0)
    for key in (500, 501):
        first, second = (client, other) if key == 500 else (other, client)
        assert first.d.r.update_one({"k": key}, {"$inc": {"n": 1}}, upsert=True).upserted_id is not None
        assert second.d.r.update_one({"k": key}, {"$inc": {"n": 1}}, upsert=True).modified_count == 1
        assert [document["n"] for document in client.d.r.find({"k": key})] == [2]
    assert not [document for document in on_shard(cluster, 1, "r") if document["k"] >= 500]
    db.u.create_index("key", unique=True)
    stopped, done, failed = threading.Event(), [0, 0], []

    def upsert(at, router):
        while not stopped.is_set():
            try:
                router.d.u.update_one({"key": done[at] % 10}, {"$inc": {"n": 1}}, upsert=True)
                done[at] += 1
            except Exception as error:
                failed.append(error)
                return

    with cluster.client(retryWrites=False) as one, cluster.client(1, retryWrites=False) as two:
        threads = [threading.Thread(target=upsert, args=(at, router)) for at, router in enumerate((one, two))]
        for thread in threads:
            thread.start()
        try:
            for to in ("s1", "s0", "s1"):
                before = list(done)
                move(client, to)
                wait_until(lambda: failed or all(now > then for now, then in zip(done, before)))
        finally:
            stopped.set()
            for thread in threads:
                thread.join()
    assert not failed, failed
    found = {document["key"]: document["n"] for document in db.u.find()}
    assert len(found) == db.u.count_documents({}) and sum(found.values()) == sum(done)


def test_unique_indexes(cluster, client, other, ranged, db):
    """A unique index that does not begin with the shard key is refused, whichever comes first. With
    one that does, no two shards have the same key, and a router that has slept makes no second."""
    for key in ("u", [("u", 1), ("k", 1)], [("g", 1)]):
        fails(lambda: ranged.create_index(key, unique=True), 67)
    ranged.create_index([("k", 1), ("u", 1)], unique=True)
    client.d.plain.create_index("u", unique=True)
    client.d.plain.create_index("k")
    fails(lambda: shard(client, "d.plain", {"k": 1}), 72)
    fails(lambda: shard(client, "d.plain", {"k": "hashed"}), 72)
    assert len(ids(other.d.r.find())) == 200
    give(cluster, client, 150, 0)
    for router in (other, client):
        for k in (5, 120, 170):
            router.d.r.update_one({"_id": k, "k": k}, {"$set": {"u": k}})
            with pytest.raises(DuplicateKeyError):
                router.d.r.insert_one({"k": k, "u": k})
            with pytest.raises(DuplicateKeyError):
                router.d.r.update_one({"k": k, "u": -1}, {"$set": {"u": k}}, upsert=True)
    assert client.d.r.count_documents({}) == 200


def test_what_expires_while_the_database_moves(cluster, client, db):
    """Documents that expire during a move are deleted once in the change stream, and none comes
    back."""
    now = datetime.datetime.now(datetime.timezone.utc)
    db.c.create_index("at", expireAfterSeconds=0)
    db.c.insert_many([{"_id": n, "at": now + datetime.timedelta(milliseconds=400 + 20 * n)} for n in range(200)])
    db.c.insert_many([{"_id": n, "pad": "x" * 1000} for n in range(1000, 4000)])
    pause = lambda secs: [direct.admin.command("setParameter", 1, ttlMonitorSleepSecs=secs) for direct in directs]
    directs = [members.client() for members in cluster.shards]
    try:
        with db.watch(max_await_time_ms=300) as stream:
            pause(1)
            turn = 0
            while db.c.count_documents({"_id": {"$lt": 1000}}):
                turn += 1
                move(client, f"s{turn % 2}")
            move(client, f"s{(turn + 1) % 2}")
            assert turn > 1
            db.end.insert_one({"_id": 1})
            deleted = []
            while (change := stream.next())["operationType"] != "insert":
                assert change["operationType"] == "delete", change
                deleted.append(change["documentKey"]["_id"])
        assert sorted(deleted) == list(range(200))
        assert db.c.count_documents({}) == 3000
    finally:
        pause(60)
        for direct in directs:
            direct.close()


def test_a_shard_that_was_away_while_a_chunk_moved(cluster, client, other, ranged):
    """A shard that was down while the table changed does not go by the old one after its start,
    though a router still does, and what the shard keeps says so."""
    assert len(ids(other.d.r.find())) == 200
    for node in cluster.shards[1].nodes:
        assert node.stop() == 0
    with cluster.config.client() as config:
        moved, = (chunk for chunk in chunks_of(client, "d.r") if chunk["min"]["k"] == 150)
        rest, = (chunk for chunk in chunks_of(client, "d.r") if chunk["min"]["k"] == 100)
        with cluster.shards[0].client() as direct:
            last = direct.admin.command("ping")["$clusterTime"]["clusterTime"]
            direct.d.r.insert_many([{"_id": n, "k": n, "g": n % 5} for n in range(150, 200)])
        since = Timestamp(last.time + 1, 1)
        catalog = config.config.get_collection("chunks", write_concern=MAJORITY)
        catalog.update_one({"_id": moved["_id"]}, {"$set": {
            "shard": "s0", "lastmod": Timestamp(9, 0), "onCurrentShardSince": since,
            "history": [{"validAfter": since, "shard": "s0"}, *moved["history"]],
        }})
        catalog.update_one({"_id": rest["_id"]}, {"$set": {"lastmod": Timestamp(9, 1)}})
    for node in cluster.shards[1].nodes:
        node.start()
    wait_until(lambda: cluster.shards[1].steps_up(cluster.shards[1].nodes[0]))
    other.d.r.insert_one({"_id": 500, "k": 500})
    assert other.d.r.update_one({"k": 170}, {"$set": {"x": 1}}).modified_count == 1
    assert other.d.r.delete_one({"k": 171}).deleted_count == 1
    left = {document["_id"]: document for document in on_shard(cluster, 1, "r")}
    assert 500 not in left and "x" not in left[170] and 171 in left
    assert client.d.r.count_documents({}) == 200 and client.d.r.find_one({"k": 170})["x"] == 1


def test_a_client_has_no_say_in_the_clock(cluster, client, db):
    """A client cannot raise the config time or the topology time: not at a router, a shard or a
    config server. Definitions still find the catalog."""
    ahead = Timestamp(2_000_000_000, 1)
    nodes = [*cluster.routers, *(members.primary() for members in (cluster.config, *cluster.shards))]
    for node in nodes:
        with Wire(node.port) as direct:
            for command in ({"ping": 1}, {"find": "system.version"}):
                direct.command("admin", {**command, "$configTime": ahead, "$topologyTime": ahead})
    shard(client, "d.c", {"k": "hashed"})
    db.c.insert_many([{"_id": n, "k": n} for n in range(100)])
    for members in (cluster.config, *cluster.shards):
        with Wire(members.primary().port) as direct:
            direct.command("admin", {"hello": 1, "internalClient": {"minWireVersion": 0, "maxWireVersion": 25}})
            reply = direct.command("admin", {"ping": 1})
            assert reply["$configTime"] < ahead and reply["$topologyTime"] < ahead


def left_of(cluster):
    """Definitions that run, and gates that are closed."""
    found = []
    for members in cluster.shards:
        with members.client() as direct:
            for name in ("system.sharding_ddl_coordinators", "collectionCriticalSections"):
                found += direct.config[name].find()
    return found


def test_two_definitions_of_a_primary_that_ends(cluster, client, other, db):
    """A new primary that finds two definitions of the one before it brings both to their end."""
    commit = "_configsvrCommitRefineCollectionShardKey"
    for name in ("r", "t"):
        split_in_zones(client, f"d.{name}", {"k": 1}, 100)
        db[name].insert_many([{"_id": n, "k": n, "g": n % 5} for n in range(200)])
        db[name].create_index([("k", 1), ("g", 1)])
        assert len(ids(other.d[name].find())) == 200
    first = cluster.shards[0].nodes[0]
    with cluster.config.client() as config:
        point = FailPoint(config, "failCommand", failCommands=[commit], failInternalCommands=True, errorCode=91)
        running = [
            Beside(lambda name=name: client.admin.command("refineCollectionShardKey", f"d.{name}", key={"k": 1, "g": 1}))
            for name in ("r", "t")
        ]
        wait_until(lambda: len([found for found in left_of(cluster) if found.get("phase")]) == 2)
        first.kill()
        first.start()
        wait_until(lambda: cluster.shards[0].steps_up(first))
        point.off()
    for definition in running:
        definition.ended()
    wait_until(lambda: left_of(cluster) == [])
    for name in ("r", "t"):
        assert client.config.collections.find_one({"_id": f"d.{name}"})["key"] == {"k": 1, "g": 1}
        for router in (client, other):
            assert ids(router.d[name].find()) == list(range(200))
        other.d[name].insert_many([{"k": k, "g": 1} for k in (-1, 500)])


@pytest.mark.parametrize("at", [0, 1], ids=["donor", "recipient"])
def test_a_primary_that_steps_down_while_a_database_moves(cluster, client, other, db, at):
    """A shard whose primary steps down while a database moves ends no process and leaves no gate
    closed, on the old primary and on the new one."""
    db.c.insert_many([{"_id": n} for n in range(100)])
    assert other.d.c.count_documents({}) == 100
    members = cluster.shards[at]
    old, new = members.nodes
    with cluster.shards[1].client() as recipient:
        refused = {"failCommands": ["_shardsvrCloneCatalogData"], "errorCode": 91, "failInternalCommands": True}
        point = FailPoint(recipient, "failCommand", **refused)
        moving = Beside(lambda: move(client, "s1"))
        point.wait()
        writing = Beside(lambda: other.d.c.insert_one({"_id": 1000}))
        wait_until(lambda: members.steps_up(new))
        if at == 0:
            point.off()
        else:
            with members.member(old) as direct:
                direct.admin.command("configureFailPoint", "failCommand", mode="off")
    if moving.ended().error is not None:
        move(client, "s1")
    wait_until(lambda: left_of(cluster) == [])
    assert writing.ended().error is None
    for router in (client, other):
        assert router.d.c.count_documents({"_id": {"$lte": 1000}}) == 101
        router.d.c.insert_one({})
    wait_until(lambda: members.steps_up(old))
    # The one that was primary first takes part in all of it again.
    move(client, "s0")
    other.d.c.insert_one({})
    assert client.d.c.count_documents({}) == 104 and left_of(cluster) == []


def test_no_router_is_a_shard(cluster, client):
    """A router is not added as a shard, a set with the name of a shard is answered as that shard,
    and a request that is sent again is the same success."""
    before = list(client.config.shards.find())
    for router in cluster.routers:
        fails(lambda: client.admin.command("addShard", f"127.0.0.1:{router.port}"), 20)
        fails(lambda: client.admin.command("addShard", f"x/127.0.0.1:{router.port}"), 20)
    host = cluster.shards[0].nodes[1].port
    fails(lambda: client.admin.command("addShard", f"127.0.0.1:{host}"), 20)
    with ReplicaSet(1, name="s0", role="shardsvr") as namesake:
        added = client.admin.command("addShard", namesake.connection_string)
        assert added["shardAdded"] == "s0"
        fails(lambda: client.admin.command("addShard", namesake.connection_string, name="new"), 20)
        with namesake.client() as direct:
            assert direct.admin.command("shardingState")["enabled"] is False
    assert list(client.config.shards.find()) == before


def test_events_through_a_move_a_new_shard_and_a_drop():
    """Through the move of a database, a shard that comes, a move to that, and a drop, a stream
    gives each event once and in order, and can be resumed on another router behind each of them."""
    with Cluster(shards=2, routers=2, options=TEST_COMMANDS) as small, small.client() as client, small.client(1) as other:
        small.make_database("d", 0, client)
        split_in_zones(client, "d.r", {"k": 1}, 100)
        client.d.plain.insert_one({"_id": 0})
        expected, streams = [], []
        for router in (client, other):
            streams.append(router.d.watch(max_await_time_ms=200))

        def write():
            number = len(expected)
            client.d.plain.insert_one({"_id": number + 1})
            client.d.r.insert_many([{"_id": number + 1, "k": 5}, {"_id": number + 2, "k": 500}])
            expected.extend([("insert", "plain", number + 1), ("insert", "r", number + 1), ("insert", "r", number + 2)])

        write()
        move(client, "s1")
        write()
        with ReplicaSet(1, name="s2", role="shardsvr", settings={"electionTimeoutMillis": 60_000}) as third:
            client.admin.command("addShard", third.connection_string)
            move(client, "s2")
            write()
            client.d.r.drop()
            write_last = client.d.plain.insert_one({"_id": "last"})
            assert write_last.acknowledged
            expected.extend([("drop", "r", None), ("insert", "plain", "last")])

            def shown(change):
                return change["operationType"], change["ns"]["coll"], change.get("documentKey", {}).get("_id")

            def read(stream, count):
                found, until = [], time.monotonic() + 60
                while len(found) < count and time.monotonic() < until:
                    change = stream.try_next()
                    if change is not None:
                        found.append((shown(change), change["_id"]))
                assert stream.try_next() is None
                return found

            for stream, another in zip(streams, (other, client)):
                found = read(stream, len(expected))
                assert [change for change, _ in found] == expected
                stream.close()
                for at in range(0, len(found), 3):
                    with another.d.watch(resume_after=found[at][1], max_await_time_ms=200) as resumed:
                        rest = read(resumed, len(expected) - at - 1)
                    assert [change for change, _ in rest] == expected[at + 1:]


def test_without_a_primary_of_the_config_servers():
    """Without a primary of the config servers what is of known placement is read and written, and a
    definition waits or fails. Once there is one again, it comes to its end."""
    with Cluster(shards=2, config=3) as small, small.client(retryWrites=False) as client:
        small.make_database("d", 0, client)
        split_in_zones(client, "d.r", {"k": 1}, 100)
        client.d.r.insert_many([{"_id": n, "k": n} for n in range(200)])
        client.d.c.insert_one({"_id": 0})
        away = small.config.nodes[:2]
        for node in away:
            node.kill()
        assert client.d.r.count_documents({}) == 200
        client.d.r.insert_many([{"_id": n, "k": n} for n in (-1, 500)])
        assert client.d.r.update_many({}, {"$set": {"x": 1}}).modified_count == 202
        client.d.c.insert_one({"_id": 1})
        client.d.made.insert_one({"_id": 1})
        with client.start_session() as session, session.start_transaction():
            client.d.r.insert_one({"_id": 501, "k": 501}, session=session)
        definitions = [
            lambda: client.admin.command("shardCollection", "d.new", key={"k": "hashed"}, maxTimeMS=1500),
            lambda: client.admin.command("movePrimary", "d", to="s1", maxTimeMS=1500),
            lambda: client.admin.command("enableSharding", "new", maxTimeMS=1500),
            lambda: client.admin.command("split", "d.r", middle={"k": 150}, maxTimeMS=1500),
        ]
        began = time.monotonic()
        for running in [Beside(call) for call in definitions]:
            error = running.ended().error
            assert error is not None and (error.timeout or error.code in (50, 133)), error
        # In the time that they have.
        assert time.monotonic() - began < 8
        assert client.d.r.count_documents({}) == 203
        for node in away:
            node.start()
        wait_until(lambda: small.config.steps_up(away[0]))
        for call in definitions:
            def is_done(call=call):
                try:
                    call()
                except OperationFailure as error:
                    # The shard may have come to the end of a split whose client has gone.
                    is_split = "is a boundary key of existing chunk" in str(error)
                    assert is_split or error.timeout or error.code in (50, 117, 133), error.details
                    return is_split
                return True
            wait_until(is_done)
        assert client.config.databases.find_one({"_id": "d"})["primary"] == "s1"
        assert client.d.c.count_documents({}) == 2 and client.d.r.count_documents({}) == 203
        client.d.new.insert_many([{"k": n} for n in range(50)])
        assert len(chunks_of(client, "d.r")) == 3
