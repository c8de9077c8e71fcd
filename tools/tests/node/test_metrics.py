"""What exporters and agents read of a node and of a set: every number is read before and after the
event that moves it."""

import threading

import pymongo
import pytest
from pinion_elections import elected
from pinion_node import STEADY, Node, ReplicaSet, wait_until
from pymongo import WriteConcern
from pymongo.errors import BulkWriteError, OperationFailure
from pymongo.read_concern import ReadConcern

HASTY = ["--setParameter", "periodicNoopIntervalSecs=1", "--setParameter", "reportOpWriteConcernCountersInServerStatus=true"]


def at(document, path):
    for name in path.split("."):
        document = document[name]
    return document


def read(client, *paths):
    status = client.admin.command("serverStatus")
    return [at(status, path) for path in paths]


class Moves:
    """The metrics of a node that an event moves."""

    def __init__(self, client, *paths):
        self.client, self.paths = client, paths
        self.before = read(client, *paths)

    def have_moved(self):
        return all(after > before for before, after in zip(self.before, read(self.client, *self.paths)))

    def by(self):
        return [after - before for before, after in zip(self.before, read(self.client, *self.paths))]


@pytest.fixture(scope="module")
def three():
    with ReplicaSet(3, STEADY, options=HASTY) as members:
        # No member takes over by its priority either: elections are by order only.
        members.reconfigure(lambda config: [member.update(priority=1) for member in config["members"]])
        yield members


def kill(client, chosen):
    """Kills the one operation that is chosen."""
    (opid,) = [op["opid"] for op in client.admin.command("currentOp")["inprog"] if chosen(op)]
    client.admin.command("killOp", op=opid)


@pytest.fixture
def primary(three):
    with three.member(three.primary()) as client:
        yield client


@pytest.fixture
def secondary(three):
    with three.member(three.secondaries()[0]) as client:
        yield client


def test_a_standalone_shows_what_it_has_not_done():
    with Node() as node, node.client() as client:
        status = client.admin.command("serverStatus")
        batches = status["metrics"]["repl"]["apply"]["batches"]
        assert batches == {"num": 0, "totalMillis": 0}
        assert status["electionMetrics"]["stepUpCmd"] == {"called": 0, "successful": 0}
        assert "oplogTruncation" not in status and "repl" not in status
        assert "oldestTimestamp" not in status["metrics"]["repl"].get("timestamps", {})
        assert client.admin.command("connPoolStats")["hosts"] == {}
        assert "opWriteConcernCounters" not in status


def test_what_is_applied(primary, secondary):
    paths = [
        "metrics.repl.apply.ops", "metrics.repl.apply.batchSize", "metrics.repl.apply.batches.num",
        "metrics.repl.write.batchSize", "metrics.repl.write.batches.num",
        "metrics.repl.network.ops", "metrics.repl.network.bytes", "metrics.repl.network.getmores.num",
        "metrics.repl.network.replSetUpdatePosition.num",
    ]
    moves = Moves(secondary, *paths)
    processed = Moves(primary, "metrics.repl.network.oplogGetMoresProcessed.num")
    primary.test.get_collection("applied", write_concern=WriteConcern(w=3)).insert_many([{"_id": n} for n in range(100)])
    wait_until(moves.have_moved)
    wait_until(lambda: moves.by()[0] >= 100 and moves.by()[3] >= 100)
    wait_until(processed.have_moved)
    (readers,) = read(secondary, "metrics.repl.network.readersCreated")
    assert readers >= 1
    buffer = secondary.admin.command("serverStatus")["metrics"]["repl"]["buffer"]
    assert buffer["count"] <= buffer["apply"]["maxCount"] and 0 < buffer["apply"]["maxSizeBytes"] < buffer["maxSizeBytes"]


def test_what_waits_in_a_delayed_member():
    """What was fetched and is not logged is counted where it waits."""
    with ReplicaSet(3, STEADY, options=HASTY) as members:
        delayed = members.secondaries()[0]
        name = f"127.0.0.1:{delayed.port}"

        def delay(config):
            for member in config["members"]:
                if member["host"] == name:
                    member.update(priority=0, secondaryDelaySecs=3600)
        members.reconfigure(delay)
        with members.client() as client, members.member(delayed) as member:
            empty = Moves(member, "metrics.repl.buffer.count", "metrics.repl.buffer.sizeBytes", "metrics.repl.buffer.write.count")
            client.test.late.insert_many([{"_id": n, "x": "y" * 1000} for n in range(50)])
            path = "metrics.repl.waiters.opTime"
            assert read(member, path) == [0]
            wait_until(lambda: empty.by()[0] >= 50)
            last = client.test.command("ping")

            def look():
                with members.member(delayed) as other, other.start_session(causal_consistency=True) as session:
                    session.advance_cluster_time(last["$clusterTime"])
                    session.advance_operation_time(last["operationTime"])
                    try:
                        other.test.late.find_one({}, session=session, comment="looks")
                    except OperationFailure as error:
                        ended.append(error.code)
            ended = []
            looking = threading.Thread(target=look)
            looking.start()
            wait_until(lambda: read(member, path) == [1])
            kill(member, lambda op: op.get("command", {}).get("comment") == "looks")
            looking.join()
            assert ended == [11601] and read(member, path) == [0]
            assert empty.by()[1] > 50_000 and empty.by()[2] >= 50


def test_elections(three):
    old, new = three.primary(), three.secondaries()[0]
    with three.member(old) as loser, three.member(new) as winner:
        called = Moves(winner, "electionMetrics.stepUpCmd.called", "electionMetrics.stepUpCmd.successful")
        ended = Moves(loser, "electionMetrics.numStepDownsCausedByHigherTerm")
        caught_up = sum(read(winner, "electionMetrics.numCatchUpsAlreadyCaughtUp", "electionMetrics.numCatchUpsSucceeded"))
        became = Moves(loser, "metrics.repl.syncSource.numSelections")
        attempts = []

        def is_reported():
            attempts.append(new)
            return three.steps_up(new)
        wait_until(is_reported)
        # The last of them has found it to be primary already.
        assert called.by()[1] == 1 <= called.by()[0] < len(attempts)
        wait_until(lambda: ended.by() == [1])
        wait_until(lambda: sum(read(winner, "electionMetrics.numCatchUpsAlreadyCaughtUp", "electionMetrics.numCatchUpsSucceeded")) == caught_up + 1)
        wait_until(lambda: read(winner, "metrics.repl.stateTransition.lastStateTransition") == ["stepUp"])
        wait_until(lambda: read(loser, "metrics.repl.stateTransition.lastStateTransition") == ["stepDown"])
        wait_until(became.have_moved)
        average = read(winner, "electionMetrics.averageCatchUpOps")[0]
        assert isinstance(average, float)


def test_a_step_down_says_what_it_interrupted(three):
    old = three.primary()
    with three.member(old) as client:
        client.test.held.insert_one({"_id": 1})
        session = client.start_session()
        session.start_transaction()
        client.test.held.update_one({"_id": 1}, {"$set": {"x": 1}}, session=session)

        def write():
            with three.member(old) as other:
                try:
                    other.test.held.update_one({"_id": 1}, {"$set": {"x": 2}})
                except pymongo.errors.PyMongoError as error:
                    interrupted.append(error)
        interrupted = []
        writer = threading.Thread(target=write)
        writer.start()
        held = lambda: [op for op in client.admin.aggregate([{"$currentOp": {}}]) if op.get("op") == "update"]
        wait_until(held)
        client.admin.command("replSetStepDown", 600, secondaryCatchUpPeriodSecs=60)
        writer.join()
        assert interrupted
        transition = client.admin.command("serverStatus")["metrics"]["repl"]["stateTransition"]
        assert transition["lastStateTransition"] == "stepDown" and transition["totalOperationsKilled"] >= 1
    elected(three)


def test_a_set_of_one_elects_itself_and_skips_its_catch_up():
    with ReplicaSet(1) as members, members.client() as client:
        elections = client.admin.command("serverStatus")["electionMetrics"]
        assert elections["freezeTimeout"] == {"called": 1, "successful": 1}
        assert elections["numCatchUpsSkipped"] == 1 and elections["numCatchUps"] == 0
        (attempts,) = read(client, "metrics.repl.apply.attemptsToBecomeSecondary")
        assert attempts == 1


def test_members_that_get_their_vote_are_counted():
    with ReplicaSet(1, STEADY) as members, members.client() as client:
        paths = ["metrics.repl.reconfig.numAutoReconfigsForRemovalOfNewlyAddedFields"]
        moves = Moves(client, *paths)
        members.add()
        wait_until(lambda: moves.by() == [1])


def test_waits_for_other_members(primary):
    moves = Moves(primary, "metrics.getLastError.wtime.num", "metrics.getLastError.wtimeouts", "metrics.getLastError.default.unsatisfiable")
    primary.test.get_collection("waits", write_concern=WriteConcern(w=3)).insert_one({"_id": 1})
    assert moves.by() == [1, 0, 0]
    reply = primary.test.command({"insert": "waits", "documents": [{}], "writeConcern": {"w": 4}}, check=False)
    assert reply["writeConcernError"]["code"] == 100
    # It is the client's own.
    assert moves.by()[1:] == [0, 0]


def test_a_default_that_cannot_be_reached_in_time():
    # The primary stays one until its write was answered.
    with ReplicaSet(2, STEADY, options=HASTY) as members, members.client() as client:
        other = members.secondaries()[0]
        client.admin.command({"setDefaultRWConcern": 1, "defaultWriteConcern": {"w": 2, "wtimeout": 200}})
        moves = Moves(client, "metrics.getLastError.wtimeouts", "metrics.getLastError.default.wtimeouts")
        other.kill()
        reply = client.test.command({"insert": "late", "documents": [{"_id": 1}]}, check=False)
        assert reply["writeConcernError"]["code"] == 64
        assert moves.by() == [1, 1]


def test_who_waits_now():
    with ReplicaSet(3, STEADY, options=HASTY) as members:
        old = members.primary()
        others = members.secondaries()
        with members.member(old) as client:
            path = "metrics.repl.waiters.replication"
            assert read(client, path) == [0]
            for node in others:
                node.suspend()

            def write():
                with members.member(old) as other:
                    other.test.command({"insert": "c", "documents": [{}], "writeConcern": {"w": 3}})
            writing = threading.Thread(target=write)
            writing.start()
            wait_until(lambda: read(client, path) == [1])
            for node in others:
                node.resume()
            writing.join()
            wait_until(lambda: read(client, path) == [0])


def test_concerns_are_counted(primary):
    reads = "readConcernCounters.nonTransactionOps"
    moves = Moves(primary, f"{reads}.majority", f"{reads}.local", f"{reads}.linearizable", f"{reads}.none", f"{reads}.noneInfo.implicitDefault.local")
    collection = primary.test.concerns
    collection.with_options(write_concern=WriteConcern("majority")).insert_one({"_id": 1})
    for level in ("majority", "local", "linearizable"):
        assert collection.with_options(read_concern=ReadConcern(level)).count_documents({}) == 1
    primary.test.command({"count": "concerns"})
    assert moves.by() == [1, 1, 1, 1, 1]
    inserts = "opWriteConcernCounters.insert"
    moves = Moves(primary, f"{inserts}.wmajority", f"{inserts}.none", f"{inserts}.noneInfo.implicitDefault.wmajority")
    collection.with_options(write_concern=WriteConcern("majority")).insert_many([{}, {}])
    primary.test.command({"insert": "concerns", "documents": [{}, {}, {}]})
    assert moves.by() == [2, 3, 3]
    before = primary.admin.command("serverStatus")["opWriteConcernCounters"]
    collection.with_options(write_concern=WriteConcern(2)).update_one({"_id": 1}, {"$set": {"x": 1}})
    collection.with_options(write_concern=WriteConcern(3)).delete_one({"_id": 1})
    after = primary.admin.command("serverStatus")["opWriteConcernCounters"]
    assert after["update"]["wnum"]["2"] == before["update"]["wnum"].get("2", 0) + 1
    assert after["delete"]["wnum"]["3"] == before["delete"]["wnum"].get("3", 0) + 1


def test_transactions_have_a_latency(primary):
    moves = Moves(primary, "opLatencies.transactions.ops", "opLatencies.transactions.latency")
    transactions = "readConcernCounters.transactionOps"
    reads = Moves(primary, f"{transactions}.snapshot.withoutClusterTime")
    primary.test.moved.insert_one({"_id": 1})
    with primary.start_session() as session:
        with session.start_transaction(read_concern=ReadConcern("snapshot")):
            primary.test.moved.find_one({"_id": 1}, session=session)
            primary.test.moved.update_one({"_id": 1}, {"$set": {"x": 1}}, session=session)
        session.start_transaction()
        primary.test.moved.update_one({"_id": 1}, {"$set": {"x": 2}}, session=session)
        session.abort_transaction()
    ops, latency = moves.by()
    assert ops == 2 and latency > 0
    assert reads.by() == [1]


def test_stages_are_counted(primary):
    stages = "metrics.aggStageCounters"
    moves = Moves(primary, f"{stages}.$match", f"{stages}.$lookup", f"{stages}.$facet", f"{stages}.$count")
    primary.test.staged.insert_one({"_id": 1})
    pipeline = [{"$match": {}}, {"$lookup": {"from": "staged", "pipeline": [{"$match": {}}], "as": "l"}}, {"$facet": {"a": [{"$count": "n"}]}}]
    list(primary.test.staged.aggregate(pipeline))
    assert moves.by() == [2, 1, 1, 1]


def test_connections_to_members(three, primary):
    stats = primary.admin.command("connPoolStats")
    others = {f"127.0.0.1:{node.port}" for node in three.secondaries()}
    assert others <= set(stats["hosts"])
    for host in others:
        assert stats["hosts"][host]["created"] >= 1
    (pool,) = stats["pools"].values()
    assert pool["poolCreated"] == stats["totalCreated"] >= 2
    counts = lambda: [host["inUse"] + host["available"] for host in primary.admin.command("connPoolStats")["hosts"].values()]
    wait_until(lambda: all(count >= 1 for count in counts()))


def test_the_oplog_is_cut_off_and_counted():
    with ReplicaSet(1, options=("--oplogSize", "1", "--syncdelay", "1")) as members, members.client() as client:
        truncation = client.admin.command("serverStatus")["oplogTruncation"]
        assert truncation == {"totalTimeTruncatingMicros": 0, "truncateCount": 0, "oplogMinRetentionHours": 0.0}
        moves = Moves(client, "oplogTruncation.truncateCount", "oplogTruncation.totalTimeTruncatingMicros")
        text = "x" * 1_000_000

        def cut():
            for number in range(10):
                client.test.cut.replace_one({"_id": number}, {"x": text, "at": moves.by()}, upsert=True)
            return moves.have_moved()
        wait_until(cut)
        client.admin.command("replSetResizeOplog", 1, minRetentionHours=1.5)
        assert read(client, "oplogTruncation.oplogMinRetentionHours") == [1.5]


def test_what_a_collector_takes_of_a_member(primary):
    data = primary.admin.command("getDiagnosticData")["data"]
    assert data["replSetGetStatus"]["myState"] == 1 and len(data["replSetGetStatus"]["members"]) == 3
    assert data["local.oplog.rs.stats"]["storageStats"]["count"] > 0
    status = primary.admin.command("replSetGetStatus")
    primary.admin.command("fsync")
    first = primary.admin.command("replSetGetStatus")["lastStableRecoveryTimestamp"]
    primary.test.get_collection("later", write_concern=WriteConcern("majority")).insert_one({})

    def later():
        primary.admin.command("fsync")
        return primary.admin.command("replSetGetStatus")["lastStableRecoveryTimestamp"] > first
    wait_until(later)


def test_written_times_come_with_heartbeats(three, primary):
    primary.test.get_collection("beaten", write_concern=WriteConcern(w=3)).insert_one({})
    last = primary.admin.command("replSetGetStatus")["optimes"]["writtenOpTime"]["ts"]
    written = lambda: [m["optimeWritten"]["ts"] for m in primary.admin.command("replSetGetStatus")["members"]]
    wait_until(lambda: min(written()) >= last)


def test_the_oplog_as_a_collection(primary):
    oplog = primary.local["oplog.rs"]
    primary.test.get_collection("logged", write_concern=WriteConcern("majority")).insert_many([{"_id": n} for n in range(300)])
    alike = lambda: primary.local.command("count", "oplog.rs")["n"] == oplog.count_documents({}) == primary.local.command("collStats", "oplog.rs")["count"]
    wait_until(alike)
    entries = list(oplog.find({"ns": "test.logged"}).sort("$natural", 1))
    since = entries[-10]["ts"]
    explained = primary.local.command("explain", {"find": "oplog.rs", "filter": {"ts": {"$gte": since}}}, verbosity="executionStats")
    stage = explained["queryPlanner"]["winningPlan"]
    assert stage["stage"] == "COLLSCAN" and stage["minRecord"] == since.time << 32 | since.inc and "maxRecord" not in stage
    assert explained["executionStats"]["totalDocsExamined"] < 250 and explained["executionStats"]["nReturned"] >= 10
    until = entries[9]["ts"]
    explained = primary.local.command("explain", {"find": "oplog.rs", "filter": {"ts": {"$lte": until, "$gte": entries[0]["ts"]}}, "sort": {"$natural": -1}}, verbosity="executionStats")
    stage = explained["queryPlanner"]["winningPlan"]
    assert stage["direction"] == "backward" and stage["maxRecord"] == until.time << 32 | until.inc
    assert 10 <= explained["executionStats"]["totalDocsExamined"] <= 20
    explained = primary.local.command("explain", {"count": "oplog.rs", "query": {"ts": {"$gte": since}}}, verbosity="executionStats")
    assert explained["executionStats"]["totalDocsExamined"] < 250
    explained = primary.local.command("explain", {"find": "oplog.rs", "sort": {"$natural": -1}, "limit": 1}, verbosity="executionStats")
    assert explained["executionStats"]["totalDocsExamined"] == 1


def test_waits_for_a_gate_are_reported():
    with ReplicaSet(1) as members, members.client() as client:
        collection = client.test.gated
        collection.insert_one({"_id": 1})
        with client.start_session() as session:
            session.start_transaction()
            collection.update_one({"_id": 1}, {"$set": {"x": 1}}, session=session)

            def change():
                with members.client() as other:
                    other.test.command({"collMod": "gated", "validator": {}})
            changing = threading.Thread(target=change)
            changing.start()
            wait_until(lambda: any(lock["granted"] for lock in client.admin.command("lockInfo")["lockInfo"] if "gated" in lock["resourceId"]))
            waits = Moves(client, "locks.Collection.acquireWaitCount.w")

            def write():
                with members.client() as other, pytest.raises(OperationFailure):
                    other.test.command({"update": "gated", "updates": [{"q": {"_id": 1}, "u": {"$set": {"y": 1}}}]})
            writing = threading.Thread(target=write)
            writing.start()

            def waiting():
                ops = client.admin.command("currentOp")["inprog"]
                return [op for op in ops if op.get("waitingForLock") and op.get("op") == "update"]
            wait_until(waiting)
            (op,) = waiting()
            assert op["locks"] == {"Collection": "w"}
            closes = [op for op in client.admin.command("currentOp")["inprog"] if "collMod" in op.get("command", {})]
            assert [(op["waitingForLock"], op["locks"]["Collection"] in ("R", "W")) for op in closes] == [(True, True)]
            client.admin.command("killOp", op=op["opid"])
            writing.join()
            # The wait ended because it was killed.
            assert waits.by() == [1]
            session.abort_transaction()
            changing.join()


def test_starts_are_logged(tmp_path):
    with Node(directory=tmp_path) as node:
        # A client that is closed when its node is gone waits for it.
        with node.client() as client:
            assert client.list_database_names() == ["admin", "local"]
            (first,) = client.local.startup_log.find()
            assert first["pid"] == node.process.pid and first["buildinfo"]["version"] == client.server_info()["version"]
            assert first["cmdLine"] == client.admin.command("getCmdLineOpts")["parsed"]
            options = client.local["startup_log"].options()
            assert options["capped"] is True and options["size"] == 10 << 20
            assert client.server_info()["buildEnvironment"]["target_os"] == "linux"
        assert node.stop() == 0
    with Node(directory=tmp_path) as node, node.client() as client:
        starts = list(client.local.startup_log.find())
        assert len(starts) == 2 and starts[0] == first and starts[1]["startTime"] >= first["startTime"]
    with ReplicaSet(1) as members, members.client() as client:
        assert client.local.startup_log.count_documents({}) == 1
        assert client.local["oplog.rs"].count_documents({"ns": "local.startup_log"}) == 0


def test_space_that_is_free(tmp_path):
    with Node("--partitions", "1", "--syncdelay", "3600", directory=tmp_path) as node, node.client() as client:
        kept, gone = client.test.kept, client.test.gone
        for collection in (kept, gone):
            collection.insert_many([{"_id": n, "x": "y" * 2000} for n in range(1000)])
        client.admin.command("fsync")
        free = lambda: client.test.command("collStats", "kept")["freeStorageSize"]
        before = free()
        gone.drop()

        def freed():
            kept.update_one({"_id": 1}, {"$inc": {"n": 1}})
            client.admin.command("fsync")
            return free() > before
        wait_until(freed)
        stats = client.test.command("dbStats", freeStorage=1)
        assert stats["totalFreeStorageSize"] == stats["freeStorageSize"] + stats["indexFreeStorageSize"] > 0
        # What is deleted leaves pages that are larger than what is in them.
        kept.delete_many({"_id": {"$gte": 10}})
        estimate = client.test.command({"compact": "kept", "dryRun": True})["estimatedBytesFreed"]
        assert estimate > 1_000_000
        assert client.test.command({"compact": "kept", "freeSpaceTargetMB": 1000})["bytesFreed"] == 0
        assert client.test.command({"compact": "kept"})["bytesFreed"] > 1_000_000
        assert client.test.command({"compact": "kept", "dryRun": True})["estimatedBytesFreed"] < 100_000
        assert client.admin.command("fsync")["numFiles"] == 1
    with ReplicaSet(1) as members, members.client() as client:
        client.test.kept.insert_one({})
        with pytest.raises(OperationFailure) as refused:
            client.test.command("compact", "kept")
        assert refused.value.code == 20
        assert client.test.command({"compact": "kept", "force": True})["ok"] == 1


def test_settings_of_storage_take_effect(tmp_path):
    with Node("--syncdelay", "3600", "--wiredTigerCacheSizeGB", "0.25", directory=tmp_path) as node, node.client() as client:
        values = client.admin.command("getParameter", 1, syncdelay=1, journalCommitInterval=1)
        assert (values["syncdelay"], values["journalCommitInterval"]) == (3600.0, 100)
        assert client.admin.command("setParameter", 1, syncdelay=0.2)["was"] == 3600.0
        path = "wiredTiger.transaction.transaction checkpoints"

        def checkpoints():
            client.test.ticks.insert_one({})
            return read(client, path)[0]
        first = checkpoints()
        wait_until(lambda: checkpoints() > first + 2)
        client.admin.command("setParameter", 1, journalCommitInterval=2)
        assert client.admin.command("getParameter", 1, journalCommitInterval=1)["journalCommitInterval"] == 2
        for name, value in (("syncdelay", -1), ("journalCommitInterval", 501), ("transactionTooLargeForCacheThreshold", 1.1), ("temporarilyUnavailableMaxRetries", -1)):
            with pytest.raises(OperationFailure) as refused:
                client.admin.command("setParameter", 1, **{name: value})
            assert refused.value.code == 2


def test_large_transactions():
    options = ["--wiredTigerCacheSizeGB", "0.25", "--setParameter", "transactionTooLargeForCacheThreshold=0.01"]
    with ReplicaSet(1, options=options) as members, members.client() as client:
        client.test.create_collection("large")
        moves = Moves(client, "metrics.operation.transactionTooLargeForCacheErrors")
        documents = [{"x": "y" * 100_000} for _ in range(20)]

        def insert():
            with client.start_session() as session, session.start_transaction():
                client.test.large.insert_many(documents, session=session)
        with pytest.raises(BulkWriteError) as refused:
            insert()
        (error,) = refused.value.details["writeErrors"]
        assert error["code"] == 388 and moves.by() == [1]
        client.admin.command("setParameter", 1, transactionTooLargeForCacheThreshold=0.75)
        insert()
        assert client.test.large.count_documents({}) == 20


def test_options_without_effect_are_refused():
    with Node() as node, node.client() as client:
        configured = {"wiredTiger": {"configString": "block_compressor=zlib"}}
        for command in ({"create": "c", "storageEngine": configured}, {"create": "c", "indexOptionDefaults": {"storageEngine": configured}},
                        {"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a_1", "storageEngine": configured}]}):
            with pytest.raises(OperationFailure) as refused:
                client.test.command(command)
            assert refused.value.code == 72 and "configString" in refused.value.details["errmsg"]
        client.test.command({"create": "c", "storageEngine": {"wiredTiger": {"configString": ""}}})
