"""The servers that `sets` measures: sets of Pinion and of MongoDB, a pair of Redis, PostgreSQL, and
what drives them."""

import contextlib
import json
import os
import pathlib
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

TESTS = pathlib.Path(__file__).resolve().parent.parent / "tools" / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "mixed")]

import pymongo
from mixed_set import Mongod
from pinion_node import Node, ReplicaSet, free_port, wait_until

CACHE_GB = "1"
# A server that uses less than this share of a core has come to rest; one that does not is measured
# all the same.
REST_SHARE = 0.05
REST_SECS = 10
# Beyond its own time a run may need so much for connecting, a load, or a backlog.
RUN_SLACK_SECS = 120
INVALID = 2


class Failed(Exception):
    """A case could not be measured."""


@contextlib.contextmanager
def on_processors(processors):
    """Whatever is started inside stays on these processors."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, processors)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def pinion_node(binary, *options):
    # All members share the processors with each other and with the client: what one spins, another
    # has not.
    return Node("--cpus", "1", "--spinMicros", "0", "--wiredTigerCacheSizeGB", CACHE_GB, *options, binary=binary)


class PinionSet(ReplicaSet):
    """Members of Pinion with one core and one partition each, none of them preferred."""

    name = "pinion"

    def __init__(self, binary, members, settings=None, options=()):
        super().__init__(members=0, settings=settings)
        self.binary = binary
        self.nodes = [self.another(*options) for _ in range(members)]

    def another(self, *options):
        return pinion_node(self.binary, "--replSet", "rs0", *options)

    @property
    def config(self):
        members = [{"_id": at, "host": f"127.0.0.1:{node.port}"} for at, node in enumerate(self.nodes)]
        return {"_id": "rs0", "members": members, "settings": self.settings}

    @property
    def pids(self):
        return [node.process.pid for node in self.nodes]

    @property
    def primary_uri(self):
        return self.primary().uri

    def __exit__(self, kind, *rest):
        # What members said goes where other diagnostics go, and of one whose end was asked for it
        # is not wanted.
        with contextlib.redirect_stdout(sys.stderr):
            super().__exit__(kind if kind and issubclass(kind, Exception) else None, *rest)

    def state(self, node):
        try:
            return super().state(node)
        except pymongo.errors.PyMongoError:
            # It closes its connections where its state changes.
            return 0

    def applied(self, node):
        """The timestamp up to which this member has applied."""
        with self.member(node) as client:
            return client.admin.command("replSetGetStatus")["optimes"]["appliedOpTime"]["ts"]

    def fail_point(self, node, name, mode):
        with self.member(node) as client:
            client.admin.command({"configureFailPoint": name, "mode": mode})


class MongodSet(PinionSet):
    """The same of MongoDB; `PINION_MONGOD` names the folder of its program."""

    name = "mongodb"

    def __init__(self, members, settings=None):
        super().__init__(None, members, settings)

    def another(self, *options):
        words = ["--bind_ip", "127.0.0.1", "--wiredTigerCacheSizeGB", CACHE_GB]
        return Mongod("--replSet", "rs0", *words, "--setParameter", "diagnosticDataCollectionEnabled=false", *options)


class Standalone:
    """A node of Pinion by itself."""

    def __init__(self, name, binary):
        self.name = name
        self.node = pinion_node(binary)

    def __enter__(self):
        self.node.start()
        return self

    def __exit__(self, *_):
        self.node.__exit__()

    @property
    def pids(self):
        return [self.node.process.pid]

    @property
    def primary_uri(self):
        return self.node.uri


class Program:
    """A server that is no node: its process, and its directory."""

    def __init__(self):
        self.port = free_port()
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix=f"{self.name}-"))
        self.processes = []

    def spawn(self, *words, **options):
        with open(self.directory.with_suffix(".log"), "ab") as log:
            process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, **options)
        self.processes.append(process)
        return process

    @property
    def pids(self):
        return [process.pid for process in self.processes]

    def wait(self, answers):
        def there():
            for process in self.processes:
                if process.poll() is not None:
                    raise Failed(f"{self.name} ended: {self.directory.with_suffix('.log').read_text()[-1000:]}")
            return answers()

        wait_until(there, 60)

    def __enter__(self):
        try:
            self._begin()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.send_signal(self.last_signal)
        for process in self.processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.with_suffix(".log").unlink(missing_ok=True)


class RedisPair(Program):
    """A Redis and one that follows it."""

    name = "redis"
    last_signal = signal.SIGKILL

    def _begin(self):
        second = free_port()
        for port, more in [(self.port, []), (second, ["--replicaof", "127.0.0.1", str(self.port)])]:
            data = self.directory / str(port)
            data.mkdir()
            words = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(data), "--save", "", "--appendonly", "yes"]
            self.spawn("redis-server", *words, "--appendfsync", "everysec", "--repl-diskless-sync-delay", "0", *more)
        self.wait(lambda: b"state=online" in self._replication())

    def _replication(self):
        try:
            with socket.create_connection(("127.0.0.1", self.port), 5) as link:
                link.sendall(b"INFO replication\r\n")
                return link.recv(1 << 16)
        except OSError:
            return b""

    @property
    def primary_uri(self):
        return f"redis://127.0.0.1:{self.port}"


class Postgres(Program):
    """PostgreSQL with its defaults but for the cache and how much log lies between two
    checkpoints."""

    name = "postgresql"
    # It ends its other processes itself.
    last_signal = signal.SIGINT
    SETTINGS = [f"shared_buffers={CACHE_GB}GB", "max_wal_size=8GB", "wal_writer_delay=100ms", "max_connections=200"]

    def _begin(self):
        programs = pathlib.Path(os.path.realpath(shutil.which("postgres"))).parent
        user = {}
        if os.geteuid() == 0:
            # It refuses to run as root.
            entry = pwd.getpwnam("postgres")
            user = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": [], "cwd": "/"}
            os.chown(self.directory, entry.pw_uid, entry.pw_gid)
        data = str(self.directory / "data")
        words = ["--auth=trust", "--username=postgres", "--locale=C", "--encoding=UTF8", "--pgdata", data]
        subprocess.run([str(programs / "initdb"), *words], check=True, capture_output=True, **user)
        settings = [word for setting in ["listen_addresses=127.0.0.1", *self.SETTINGS] for word in ("-c", setting)]
        self.spawn(str(programs / "postgres"), "-D", data, "-p", str(self.port), "-k", data, *settings, **user)
        self.wait(self._answers)

    def _answers(self):
        try:
            with socket.create_connection(("127.0.0.1", self.port), 5):
                pass
        except OSError:
            return False
        # It accepts connections before it lets clients in.
        return "ready to accept connections" in self.directory.with_suffix(".log").read_text()

    @property
    def primary_uri(self):
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"


def processor_secs(pids):
    """What these processes and their children, at any depth, have used."""
    parents = {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                stat = (entry / "stat").read_text().rsplit(")", 1)[1].split()
                parents[int(entry.name)] = (int(stat[1]), (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK"))
    found, more = set(), set(pids)
    while more:
        found |= more
        more = {pid for pid, (parent, _) in parents.items() if parent in found} - found
    return sum(parents[pid][1] for pid in found if pid in parents)


def rest(*servers):
    """Waits until these servers use next to no processor time."""
    pids = [pid for server in servers for pid in server.pids]
    end = time.monotonic() + REST_SECS
    before = processor_secs(pids)
    while time.monotonic() < end:
        time.sleep(0.5)
        now = processor_secs(pids)
        if (now - before) / 0.5 < REST_SHARE * max(1, len(servers)):
            return
        before = now


class Bench:
    """`pinion-bench`, the load generator."""

    def __init__(self, program, directory, processors=None):
        self.program = program
        self.directory = pathlib.Path(directory)
        self.processors = processors

    def anywhere(self):
        """The same on no processor of its own."""
        return Bench(self.program, self.directory)

    def start(self, command, uri, *words):
        """Begins a run; `finish` gives its result."""
        result = pathlib.Path(tempfile.mktemp(prefix="result-", suffix=".json", dir=self.directory))
        line = [self.program, command, "--uri", uri, "--json", str(result), *map(str, words)]
        with on_processors(self.processors) if self.processors else contextlib.nullcontext():
            process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return process, result

    def finish(self, started, timeout_secs):
        process, result = started
        try:
            output, _ = process.communicate(timeout=timeout_secs)
        except BaseException:
            process.kill()
            process.wait()
            raise
        if process.returncode not in (0, INVALID):
            raise Failed(f"{' '.join(process.args)}: {output.strip()[-1000:]}")
        found = json.loads(result.read_text())
        result.unlink()
        # Charts are not made of these.
        for name in ("series", "latency_curve_us", "machine", "events", "properties"):
            found.pop(name, None)
        return found

    def run(self, uri, workload, *words, duration=None, warm_up=1):
        if duration is None:
            words = ("--quiet", *words)
        else:
            words = ("--quiet", "--duration", duration, "--warm-up", warm_up, *words)
        return self.finish(self.start("run", uri, "--workload", workload, *words), (duration or 0) + RUN_SLACK_SECS)

    def load(self, uri, *words):
        """Drops what is there and loads; a load that is not right is a failure."""
        found = self.run(uri, "load", "--load", "-P", "batchsize=100", *words)
        if not found["valid"]:
            raise Failed(f"the load failed: {found['invalid']}")
        return found

    def streams(self, uri, *words, duration):
        started = self.start("streams", uri, "--duration", duration, "--warm-up", 1, *words)
        return self.finish(started, duration + RUN_SLACK_SECS)
