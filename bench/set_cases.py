"""The cases of `sets`. Each starts its servers, measures in rounds that take the servers in turn,
and gives what it found."""

import contextlib
import mmap
import os
import pathlib
import shutil
import signal
import threading
import time

from set_found import Found
from set_servers import MongodSet, PinionSet, Postgres, RedisPair, Standalone, on_processors, rest

import pymongo
from pinion_arrivals import Arrivals
from pinion_node import wait_until

CONNECTIONS = 64
# One server on one processor and the client on the other.
SERVER_CPU, CLIENT_CPU = {0}, {1}
FOR_TESTS = ("--setParameter", "enableTestCommands=1")
# What only the primary has must not slow it down.
NO_FLOW_CONTROL = ("--setParameter", "enableFlowControl=false")
ACCOUNT = ("-P", "fieldcount=1", "-P", "fieldlength=100")
PROBE_EVERY_SECS = 0.02
# How much of the closed loop's rate the lag is measured at.
LAG_SHARE = 0.7
# Shared processors make the generator late as well; what counts in that case is not its latency.
MAX_LAG_MS = 1000
STREAMS = (1, 100, 1000)
DISK_BYTES = 1 << 30
DISK_BLOCK = 1 << 20
FOLLOW_SECS = 120
ALONE_SECS = 60
# InvalidOptions: the time that a read is to wait for lies beyond all that the member has heard of.
TIME_NOT_KNOWN = 72


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))]


def enter_sets(stack, options, members, settings=None):
    """A set of Pinion, and one of MongoDB where there is one."""
    servers = [stack.enter_context(PinionSet(options.pinion, members, settings))]
    if options.mongod:
        servers.append(stack.enter_context(MongodSet(members, settings)))
    for server in servers:
        # The first write makes the collection on every member, which takes some of them seconds.
        with server.client(w=members) as client:
            client.ycsb.usertable.insert_one({"_id": "first"})
    return servers


def in_turns(options, servers):
    """Each round, and each server of it once all are at rest. Every round begins with another
    server."""
    for number in range(options.rounds):
        at = number % len(servers)
        for server in servers[at:] + servers[:at]:
            rest(*servers)
            yield number, server


def measured(options, found, servers, measure):
    """What `measure(server)` gives for each server, by round."""
    results = {server.name: [] for server in servers}
    for number, server in in_turns(options, servers):
        results[server.name].append(found.run(server.name, number, measure(server)))
    return results


def each(results, value):
    return {name: [value(result) for result in of_server] for name, of_server in results.items()}


def rate_and_latency(found, results, what, ratio_to, **aims):
    """Rows of the rate and of the latencies."""
    found.row(f"{what} a second", "", each(results, lambda result: result["per_sec"]), ratio_to, **aims)
    for name in ("p50", "p99"):
        found.row(f"{what}: {name}", "ms", each(results, lambda result: result["latency"][f"{name}_us"] / 1e3))


def majority(options, found):
    """Inserts of 1 KB that wait for a majority of three, beside MongoDB's and a Redis that waits
    for its replica."""
    with contextlib.ExitStack() as stack:
        servers = enter_sets(stack, options, 3)
        if shutil.which("redis-server"):
            servers.append(stack.enter_context(RedisPair()))
        else:
            found.note("redis-server is not installed")

        def measure(server):
            concern = ("--redis-wait", 1) if server.name == "redis" else ("--w", "majority")
            words = ("--connections", CONNECTIONS, *concern)
            return options.bench.run(server.primary_uri, "insert", *words, duration=options.seconds)

        results = measured(options, found, servers, measure)
    rate_and_latency(found, results, "inserts", {"mongodb": 3.0, "redis": None})


def wait_alike(members, one, other, database="ycsb", collection="usertable"):
    """Both have as many documents; a lagging member has caught up before."""
    counts = []
    for node in (one, other):
        with members.member(node) as client:
            counts.append(client[database][collection].estimated_document_count())
    assert counts[0] == counts[1] > 0, f"members have {counts} documents"


def apply(options, found):
    """How fast a secondary applies what a primary has written while nothing was fetched, beside how
    fast it was written."""
    written, applied = [], []
    with PinionSet(options.pinion, 2, options=(*FOR_TESTS, *NO_FLOW_CONTROL)) as members:
        primary, secondary = members.primary(), members.secondaries()[0]
        for number in range(options.rounds):
            members.fail_point(secondary, "stopReplProducer", "alwaysOn")
            words = ("--connections", CONNECTIONS, "--w", 1)
            result = options.bench.run(primary.uri, "insert", *words, duration=options.seconds, warm_up=0)
            found.run("pinion", number, result)
            end = members.applied(primary)
            began = time.monotonic()
            behind = members.applied(secondary)
            assert behind < end, "nothing was held back"
            members.fail_point(secondary, "stopReplProducer", "off")
            with members.member(secondary) as client:
                status = lambda: client.admin.command("replSetGetStatus")["optimes"]["appliedOpTime"]["ts"]
                wait_until(lambda: status() >= end, 300)
            took = time.monotonic() - began
            wait_alike(members, primary, secondary)
            written.append(result["per_sec"])
            applied.append(result["operations"] / took)
            rest(members)
    values = {"applied": applied, "written": written}
    found.row("entries a second", "", values, {"written": 1.5}, base="applied")


class Probes(threading.Thread):
    """Writes a document to the primary every so often, and asks a secondary, the others in turn,
    for it as soon as it is acknowledged: a read that waits there until the write's time is
    applied."""

    def __init__(self, members):
        super().__init__(daemon=True)
        self.primary = members.member(members.primary())
        self.secondaries = [members.member(node) for node in members.secondaries()]
        self.lags = []
        self.ended = threading.Event()
        self.failure = None

    def run(self):
        try:
            self._probe()
        except Exception as error:
            self.failure = error

    def _probe(self):
        database = self.primary.probes
        number = 0
        while not self.ended.wait(PROBE_EVERY_SECS):
            key = time.monotonic_ns()
            reply = database.command({"insert": "c", "documents": [{"_id": key}], "writeConcern": {"w": 1}})
            acknowledged = time.monotonic()
            secondary = self.secondaries[number % len(self.secondaries)].get_database("probes")
            number += 1
            found = self._read(secondary, key, reply)
            self.lags.append(time.monotonic() - acknowledged)
            assert found["cursor"]["firstBatch"] == [{"_id": key}], f"a secondary does not have {key}: {found}"

    @staticmethod
    def _read(database, key, reply):
        concern = {"level": "local", "afterClusterTime": reply["operationTime"]}
        command = {"find": "c", "filter": {"_id": key}, "readConcern": concern, "$clusterTime": reply["$clusterTime"]}
        while True:
            try:
                return database.command(command, read_preference=pymongo.ReadPreference.SECONDARY_PREFERRED)
            except pymongo.errors.OperationFailure as error:
                # MongoDB's members take no time from a client without a signature, and refuse one
                # of which they have not heard.
                if error.code != TIME_NOT_KNOWN:
                    raise

    def finish(self):
        self.ended.set()
        self.join(60)
        for client in [self.primary, *self.secondaries]:
            client.close()
        if self.failure:
            raise self.failure
        assert self.lags, "nothing was probed"
        return self.lags


def lag(options, found):
    """How long after its acknowledgement by the primary a write is to be read at a secondary, at 70
    % of the closed loop's rate."""
    rates, middle, longest = {}, {}, {}
    with contextlib.ExitStack() as stack:
        servers = enter_sets(stack, options, 3)
        # As many as the whole set takes over: of a primary alone the others need not come after.
        words = ("--connections", CONNECTIONS, "--w", "majority")
        for server in servers:
            rest(*servers)
            closed = options.bench.run(server.primary_uri, "insert", *words, duration=options.seconds)
            rates[server.name] = max(1, found.run(server.name, 0, closed)["per_sec"] * LAG_SHARE)
        for number, server in in_turns(options, servers):
            target = round(rates[server.name], 1)
            words = ("--connections", CONNECTIONS, "--w", "majority", "--target", target, "--max-lag-ms", MAX_LAG_MS)
            words = ("--workload", "insert", "--quiet", "--duration", options.seconds, "--warm-up", 1, *words)
            started = options.bench.start("run", server.primary_uri, *words)
            time.sleep(1.5)
            probes = Probes(server)
            probes.start()
            time.sleep(options.seconds - 0.5)
            lags = probes.finish()
            result = options.bench.finish(started, options.seconds + FOLLOW_SECS)
            found.run(server.name, number, {**result, "lags_ms": [value * 1e3 for value in lags]})
            middle.setdefault(server.name, []).append(percentile(lags, 0.5) * 1e3)
            longest.setdefault(server.name, []).append(percentile(lags, 0.99) * 1e3)
    found.row("writes a second", "", {name: [rate] for name, rate in rates.items()})
    found.row("lag: p50", "ms", middle, {"mongodb": None})
    found.row("lag: p99", "ms", longest, {"mongodb": None}, most=20)


def disk_bytes_per_sec(directory, size):
    """The rate of one sequential write past the kernel's cache, durable at its end."""
    path = pathlib.Path(directory) / "raw-disk"
    buffer = mmap.mmap(-1, DISK_BLOCK)
    buffer.write(os.urandom(DISK_BLOCK))
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_DIRECT)
    try:
        began = time.monotonic()
        for _ in range(size // DISK_BLOCK):
            assert os.write(file, buffer) == DISK_BLOCK
        os.fsync(file)
        return size // DISK_BLOCK * DISK_BLOCK / (time.monotonic() - began)
    finally:
        os.close(file)
        path.unlink()


def take_away(members, node):
    host = f"127.0.0.1:{node.port}"
    members.reconfigure(lambda config: config.update(members=[one for one in config["members"] if one["host"] != host]))
    members.nodes.remove(node)


def one_sync(members, method, count):
    """Adds a member that copies in this way, and gives the time until it is a secondary."""
    node = members.another("--setParameter", f"initialSyncMethod={method}")
    try:
        node.start()
        number = 1 + max(member["_id"] for member in members.config["members"])
        member = {"_id": number, "host": f"127.0.0.1:{node.port}", "priority": 0, "votes": 0}
        # Its clock begins where it learns of the set.
        members.reconfigure(lambda config: config["members"].append(member))
        began = time.monotonic()
        wait_until(lambda: members.state(node) == 2, 600)
        took = time.monotonic() - began
        members.nodes.append(node)
        with members.member(node) as client:
            assert client.ycsb.usertable.estimated_document_count() == count, "the copy is not whole"
        copied = any("Copied files are taken over" in line for line in node.log)
        assert copied == (method == "fileCopyBased"), f"the member did not copy by {method}:\n" + "".join(node.log[-20:])
        take_away(members, node)
        return took
    finally:
        node.__exit__()


def initial_sync(options, found):
    """How fast an added member copies, by files and by documents, beside how fast its disk takes
    what is written in sequence."""
    times, rates = {}, {"disk": []}
    with PinionSet(options.pinion, 1) as members:
        primary = members.primary()
        options.bench.load(primary.uri, "-P", f"recordcount={options.documents}")
        with members.member(primary) as client:
            stats = client.ycsb.command("collStats", "usertable")
            assert stats["count"] == options.documents
            # A file copy is of the newest checkpoint.
            client.admin.command("fsync")
        for number in range(options.rounds):
            rest(members)
            rates["disk"].append(disk_bytes_per_sec(options.directory, min(max(stats["size"], 64 << 20), DISK_BYTES)) / 1e6)
            methods = {"files": "fileCopyBased", "documents": "logical"}
            for name, method in sorted(methods.items(), reverse=number % 2 == 1):
                took = one_sync(members, method, options.documents)
                times.setdefault(name, []).append(took)
                rates.setdefault(name, []).append(stats["size"] / took / 1e6)
    found.row(f"time for {options.documents} documents, {stats['size'] / 1e6:.0f} MB", "s", times)
    found.row("documents' bytes", "MB/s", rates, {"disk": 0.7}, base="files")
    found.row("by documents", "MB/s", rates, {"disk": None}, base="documents")


def follows(members):
    """Whether one member is primary and all others are secondaries."""
    states = sorted(members.state(node) for node in members.nodes)
    return states == [1] + [2] * (len(members.nodes) - 1)


def step_down(options, found):
    """For how long a client with retryable writes has none acknowledged when the primary is asked
    to step down."""
    taken = {}
    with contextlib.ExitStack() as stack:
        for members in enter_sets(stack, options, 3, settings={}):
            with members.client(w="majority") as client, Arrivals(client, every_secs=0.01) as arrivals:
                wait_until(lambda: arrivals.acknowledged, 60)
                # Ten times that of Pinion; the other's are ten times as long and vary less than
                # they differ.
                for _ in range(3 if options.quick or members.name != "pinion" else 10):
                    wait_until(lambda: follows(members), FOLLOW_SECS)
                    # A member that stepped down before must be able to stand again.
                    time.sleep(3)
                    with members.member(members.primary()) as direct:
                        began = time.monotonic()
                        direct.admin.command("replSetStepDown", 2, secondaryCatchUpPeriodSecs=1)
                    wait_until(lambda: arrivals.first_after(began), FOLLOW_SECS)
                    taken.setdefault(members.name, []).append((arrivals.first_after(began) - began) * 1e3)
                assert not arrivals.failures, f"a write failed: {arrivals.failures[:3]}"
            with members.client() as client:
                there = client.test.arrivals.count_documents({})
                assert there >= len(arrivals.acknowledged), f"{len(arrivals.acknowledged)} writes were acknowledged, {there} are there"
    found.row("without a write: p50", "ms", taken, {"mongodb": None}, most=200)
    found.row("without a write: worst", "ms", {name: [max(values)] for name, values in taken.items()})


def rollback(options, found):
    """How long a primary that was alone with its writes needs until it follows the next one, which
    has none of them."""
    took, refused = [], options.rollback
    # A primary that is alone stays primary for as long as the election timeout.
    settings = {"electionTimeoutMillis": ALONE_SECS * 1000}
    with PinionSet(options.pinion, 3, settings=settings, options=NO_FLOW_CONTROL) as members:
        with members.client(w=3) as client:
            client.ycsb.usertable.insert_one({"_id": "kept"})
        for number in range(options.rounds):
            wait_until(lambda: follows(members), FOLLOW_SECS)
            old, others = members.primary(), members.secondaries()
            for node in others:
                # What it was sent and has not read must go as well.
                node.kill()
            words = ("--connections", CONNECTIONS, "--w", 1, *ACCOUNT, "-P", f"operationcount={refused}")
            result = found.run("pinion", number, options.bench.run(old.uri, "insert", *words))
            with members.member(old) as client:
                before = client.admin.command("replSetGetRBID")["rbid"]
                assert client.ycsb.usertable.estimated_document_count() == refused + 1 + number
            old.process.send_signal(signal.SIGSTOP)
            try:
                for node in others:
                    node.start()
                new = others[0]
                wait_until(lambda: members.state(new) in (1, 2) and members.steps_up(new), FOLLOW_SECS)
                with members.member(new, w=2) as client:
                    client.ycsb.usertable.insert_one({"_id": f"kept {number}"})
                end = members.applied(new)
            finally:
                old.process.send_signal(signal.SIGCONT)
            began = time.monotonic()

            def back():
                with members.member(old) as client:
                    try:
                        status = client.admin.command("replSetGetStatus")
                        again = client.admin.command("replSetGetRBID")["rbid"]
                    except pymongo.errors.PyMongoError:
                        return False
                return again > before and status["myState"] == 2 and status["optimes"]["appliedOpTime"]["ts"] >= end

            wait_until(back, FOLLOW_SECS)
            took.append(time.monotonic() - began)
            with members.member(old) as client:
                left = client.get_database("ycsb", read_preference=pymongo.ReadPreference.SECONDARY_PREFERRED).usertable.count_documents({})
                assert left == 2 + number, f"{left} documents are left of {result['operations']} that were rolled back"
    found.row(f"rollback of {refused} entries until it follows", "s", {"pinion": took})


def transfers(options, found):
    """Transactions of two updates, beside PostgreSQL's and MongoDB's, all with 64 clients on one
    processor."""
    for count in options.transfer_members:
        with contextlib.ExitStack() as stack:
            with on_processors(SERVER_CPU) if count == 1 else contextlib.nullcontext():
                servers = enter_sets(stack, options, count)
                if count == 1 and shutil.which("postgres"):
                    servers.append(stack.enter_context(Postgres()))
            bench = options.bench if count == 1 else options.bench.anywhere()
            accounts = (*ACCOUNT, "-P", f"recordcount={options.accounts}")
            for server in servers:
                bench.load(server.primary_uri, *accounts)
            aims = {"postgresql": 1.0, "mongodb": 3.0}
            for what, keys, waits in [("uniform", "uniform", True), ("zipfian 0.99", "zipfian", True), ("uniform, not waited for the disk", "uniform", False)]:

                def measure(server):
                    if server.name == "postgresql":
                        durable = ("--journal", "true" if waits else "false")
                    else:
                        durable = ("--w", "majority" if waits else 1)
                    words = (*accounts, "--connections", CONNECTIONS, *durable, "-P", f"requestdistribution={keys}", "-P", "transactionorder=keys")
                    return bench.run(server.primary_uri, "transactions", *words, duration=options.seconds)

                results = measured(options, found, servers, measure)
                what = f"{what}, set of {count}"
                rate_and_latency(found, results, f"transfers, {what}", aims)
                found.row(f"conflicts for each commit, {what}", "", each(results, lambda result: result["conflicts"] / max(1, result["operations"])))


def one_statement(options, found):
    """A transaction of one update beside the same update as a retryable write."""
    with contextlib.ExitStack() as stack:
        with on_processors(SERVER_CPU):
            servers = [stack.enter_context(PinionSet(options.pinion, 1))]
        accounts = (*ACCOUNT, "-P", f"recordcount={options.accounts}")
        for server in servers:
            options.bench.load(server.primary_uri, *accounts)
        kinds = {
            "transactions": ("transactions", "-P", "transactionupdates=1"),
            "updates": ("update", "--retryable"),
        }
        rates = {(server.name, kind): [] for server in servers for kind in kinds}
        for number, server in in_turns(options, servers):
            for kind, (workload, *more) in kinds.items():
                words = (*accounts, "--connections", CONNECTIONS, "--w", 1, *more)
                result = options.bench.run(server.primary_uri, workload, *words, duration=options.seconds)
                rates[server.name, kind].append(found.run(server.name, number, result)["per_sec"])
                rest(*servers)
    for server in servers:
        values = {kind: rates[server.name, kind] for kind in kinds}
        found.row(f"{server.name}, one update, a second", "", values, {"updates": None}, base="transactions")


# An older server may be far behind when the writes end; that is known then.
STREAM_DRAIN_SECS = 10


def streams(options, found):
    """What 1, 100 and 1,000 change streams on one node deliver while writers write, and how soon at
    half of that rate of writes."""
    with contextlib.ExitStack() as stack:
        with on_processors(SERVER_CPU):
            servers = enter_sets(stack, options, 1)
        seconds = max(1, options.seconds / 2)
        for count in STREAMS:
            full, half = {}, {}
            for number, server in in_turns(options, servers):
                # One change stream after another is opened, which takes a thousand some seconds.
                result = options.bench.streams(server.primary_uri, "--streams", count, "--drain", STREAM_DRAIN_SECS, duration=seconds)
                full.setdefault(server.name, []).append(found.run(server.name, number, result))
                target = max(1, round(result["writes_per_sec"] / 2, 1))
                words = ("--streams", count, "--drain", STREAM_DRAIN_SECS, "--target", target)
                result = options.bench.streams(server.primary_uri, *words, duration=seconds)
                half.setdefault(server.name, []).append(found.run(server.name, number, result))
            found.row(f"{count} streams, events a second in all", "", each(full, lambda result: result["events_per_sec"]), {"mongodb": None})
            found.row(f"{count} streams, writes a second meanwhile", "", each(full, lambda result: result["writes_per_sec"]))
            for name in ("p50", "p99"):
                values = each(half, lambda result: result["latency"][f"{name}_us"] / 1e3)
                found.row(f"{count} streams, from acknowledgement to delivery at half of the writes, {name}", "ms", values)


def standalone(options, found):
    """Reads, inserts and journaled inserts of a standalone beside those of another build."""
    if not options.before:
        found.note("not measured: --before names the other build")
        return
    with contextlib.ExitStack() as stack:
        with on_processors(SERVER_CPU):
            servers = [stack.enter_context(Standalone(name, binary)) for name, binary in [("pinion", options.pinion), ("before", options.before)]]
        records = ("-P", f"recordcount={options.accounts}")
        for server in servers:
            options.bench.load(server.primary_uri, *records)
        for what, workload, more in [("reads", "read", ()), ("inserts", "insert", ()), ("journaled inserts", "insert", ("--journal", "true"))]:

            def measure(server):
                words = (*records, "--connections", CONNECTIONS, *more)
                return options.bench.run(server.primary_uri, workload, *words, duration=options.seconds)

            results = measured(options, found, servers, measure)
            rate_and_latency(found, results, what, {"before": 0.97})


CASES = {
    "majority": majority,
    "apply": apply,
    "lag": lag,
    "initial-sync": initial_sync,
    "step-down": step_down,
    "rollback": rollback,
    "transfers": transfers,
    "one-statement": one_statement,
    "streams": streams,
    "standalone": standalone,
}
# Their servers have one processor, and so has the client; members of a larger set and their client
# share all.
ON_ONE_PROCESSOR = {"transfers", "one-statement", "streams", "standalone"}


def measure(name, options):
    """Runs one case; `options.bench` is set for it."""
    found = Found(name)
    options.bench.processors = CLIENT_CPU if name in ON_ONE_PROCESSOR and options.pins else None
    began = time.monotonic()
    CASES[name](options, found)
    found.secs = time.monotonic() - began
    return found
