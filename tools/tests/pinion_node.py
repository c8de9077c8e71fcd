"""Starts and stops a node for the tests."""

import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time

import pymongo
from pymongo.read_concern import ReadConcern

BINARY = os.environ.get("PINION_BIN", "target/release/pinion")
# Built beside the node.
ADMIN = str(pathlib.Path(BINARY).with_name("pinion-admin"))
# Of each member's log, when a test of a set failed.
LOG_LINES_SHOWN = 40
# For how long anything is waited for that is to come. It ends a wait that is in vain, so it is far
# longer than a slow machine takes.
PATIENCE_SECS = 120
PATIENCE_MS = PATIENCE_SECS * 1000
# For how long a driver looks for a server. Whatever asks a member that is gone for more of a cursor
# waits so long in vain.
SELECTION_MS = PATIENCE_MS // 2
# Options of a node that has fail points.
TEST_COMMANDS = ("--setParameter", "enableTestCommands=1")
# Settings of a set whose tests are not about elections: a member that is slow stays primary. Where
# the primary's process is gone, or it hands over, another is elected as soon as with any other
# settings.
STEADY = {"electionTimeoutMillis": 60_000}
# An election that was asked for is not won.
COMMAND_FAILED = 125
# Errors by which a change of a set's configuration says that the one before it has to come to an
# end first.
CONFIGURATION_IN_PROGRESS = 109
CURRENT_CONFIG_NOT_COMMITTED_YET = 308


def free_port():
    """A port without a listener, for servers that cannot choose one themselves."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run(*options, timeout_secs=PATIENCE_SECS):
    """Runs the server with options that stop it and returns its status and output."""
    done = subprocess.run([BINARY, *options], capture_output=True, text=True, timeout=timeout_secs)
    return done.returncode, (done.stdout + done.stderr).strip()


def wait_until(holds, timeout_secs=PATIENCE_SECS, pause_secs=0.01):
    """Looks until something holds; fails when it does not in time."""
    end = time.monotonic() + timeout_secs
    while not holds():
        assert time.monotonic() < end, "it did not come true in time"
        time.sleep(pause_secs)


def next_event(stream):
    """The next event of a change stream, once there is one."""
    found = []

    def is_there():
        found[:] = [stream.try_next()]
        return found[0] is not None

    wait_until(is_there)
    return found[0]


class Beside(threading.Thread):
    """A call that is made beside the test, and what became of it: its answer, or the driver's
    error."""

    def __init__(self, call):
        super().__init__(daemon=True)
        self.call = call
        self.answer, self.error = None, None
        self.start()

    def run(self):
        try:
            self.answer = self.call()
        except pymongo.errors.PyMongoError as error:
            self.error = error

    def ended(self):
        """This, once the call has come to its end."""
        self.join(PATIENCE_SECS)
        assert not self.is_alive(), "it did not end in time"
        return self


class FailPoint:
    """A fail point of a node with `TEST_COMMANDS`, which acts until it is off."""

    def __init__(self, client, name, mode="alwaysOn", **data):
        self.admin, self.name = client.admin, name
        self.before = self.set(mode, **data)

    def set(self, mode, **data):
        """Sets it, and returns how often it has acted."""
        return self.admin.command({"configureFailPoint": self.name, "mode": mode, "data": data})["count"]

    def wait(self, times=1):
        """Waits until it has acted `times` times."""
        self.admin.command({"waitForFailPoint": self.name, "timesEntered": self.before + times, "maxTimeMS": PATIENCE_MS})

    def off(self):
        return self.set("off")


class Node:
    """One process of the server with its own data directory. `log_file` is where it logs, if not to
    standard output."""

    def __init__(self, *options, directory=None, binary=None, env=None, log_file=None):
        self.directory = pathlib.Path(directory or tempfile.mkdtemp(prefix="pinion-test-"))
        self.own_directory = directory is None
        self.options = list(options)
        self.binary = binary or BINARY
        self.env = env
        self.log_file = log_file
        # Which user the process is, by number; that of the tests unless one is given.
        self.user = None
        self.process = None
        self.port = 0
        self.log = []

    @property
    def uri(self):
        return f"mongodb://127.0.0.1:{self.port}"

    def start(self, timeout_secs=PATIENCE_SECS):
        """Starts the process and waits until it says that it serves clients. Takes seconds it
        needed."""
        began = time.monotonic()
        self.process = subprocess.Popen(
            [self.binary, *self.place(), "--port", str(self.port), *self.options],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", env=self.env, user=self.user,
        )
        ready = threading.Event()
        self.log = []
        self.reader = threading.Thread(target=self._read, args=(self.process, ready), daemon=True)
        self.reader.start()
        if self.log_file:
            threading.Thread(target=self._read_file, args=(self.process, ready), daemon=True).start()
        while not ready.wait(0.02):
            if self.process.poll() is not None:
                # The last lines may not be read yet.
                self.reader.join(PATIENCE_SECS)
                raise RuntimeError(f"the node ended with {self.process.returncode}:\n" + "".join(self.log[-20:]))
            if time.monotonic() - began > timeout_secs:
                raise RuntimeError("the node does not serve:\n" + "".join(self.log[-20:]))
        return time.monotonic() - began

    def place(self):
        """The options that say where its data is."""
        return ["--dbpath", str(self.directory / "data")]

    def _read(self, process, ready):
        for line in process.stdout:
            self.log.append(line)
            self._look(line, ready)

    def _read_file(self, process, ready):
        while not ready.is_set() and process.poll() is None:
            if self.log_file.exists():
                for line in self.log_file.read_text().splitlines():
                    self._look(line, ready)
            time.sleep(0.02)

    def _look(self, line, ready):
        if "Waiting for connections" in line:
            self.port = int(re.search(r'"port":(\d+)', line).group(1))
            ready.set()

    def messages(self):
        """The log's lines as values, all of them once the process has ended; a line that is not
        JSON fails the test."""
        if not self.alive():
            self.reader.join(PATIENCE_SECS)
        return [json.loads(line) for line in self.log]

    def client(self, **options):
        return pymongo.MongoClient(self.uri, **{"serverSelectionTimeoutMS": SELECTION_MS, **options})

    def kill(self):
        """SIGKILL: nothing is flushed, nothing is closed."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def suspend(self):
        """SIGSTOP, until no thread runs any more: the signal takes effect once one of them has run,
        and on a busy machine the others do more than a test is ready for by then."""
        self.process.send_signal(signal.SIGSTOP)
        deadline = time.monotonic() + PATIENCE_SECS
        while not self._stands_still():
            assert time.monotonic() < deadline, "the process does not stop"
            time.sleep(0.001)

    def resume(self):
        """SIGCONT."""
        self.process.send_signal(signal.SIGCONT)

    def _stands_still(self):
        def is_stopped(task):
            # The state follows the name, which ends with a parenthesis.
            return (task / "stat").read_text().rpartition(")")[2].split()[0] in "TtZX"
        try:
            return all(map(is_stopped, pathlib.Path(f"/proc/{self.process.pid}/task").iterdir()))
        except FileNotFoundError:
            # A thread has ended meanwhile.
            return False

    def stop(self, timeout_secs=PATIENCE_SECS):
        """SIGTERM and the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout_secs)

    def alive(self):
        return self.process is not None and self.process.poll() is None

    def resident_bytes(self):
        """Resident memory of the process."""
        text = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+) kB", text).group(1)) * 1024

    def cpu_secs(self):
        """Processor time of the process, user and system."""
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        if self.alive():
            self.kill()
        self.clean()

    def clean(self):
        if self.own_directory:
            shutil.rmtree(self.directory, ignore_errors=True)


class ReplicaSet:
    """Nodes that are members of one replica set. The first is the first primary."""

    def __init__(self, members=3, settings=None, options=(), name="rs0", role=None, alike=False):
        """`role` is what the set is in a sharded cluster: "shardsvr" or "configsvr". The first
        member has the highest priority and takes over again, unless all are `alike`."""
        self.name, self.role, self.alike = name, role, alike
        options = [*options, f"--{role}"] if role else options
        self.nodes = [Node("--replSet", name, "--cpus", "2", *options) for _ in range(members)]
        # A short election timeout, which a busy machine still bears; tests of failover use the
        # default.
        self.settings = {"electionTimeoutMillis": 4000} if settings is None else settings

    @property
    def config(self):
        members = [
            {"_id": at, "host": f"127.0.0.1:{node.port}", "priority": 1 if self.alike else len(self.nodes) - at}
            for at, node in enumerate(self.nodes)
        ]
        config = {"_id": self.name, "members": members, "settings": self.settings}
        return config | {"configsvr": True} if self.role == "configsvr" else config

    @property
    def uri(self):
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)
        return f"mongodb://{hosts}/?replicaSet={self.name}"

    @property
    def connection_string(self):
        """As the config servers and the shards of a cluster name the set."""
        return f"{self.name}/" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    def client(self, **options):
        """A client of the whole set."""
        return pymongo.MongoClient(self.uri, **{"serverSelectionTimeoutMS": SELECTION_MS, **options})

    def member(self, node, **options):
        """A client of this member alone."""
        return node.client(directConnection=True, **options)

    def add(self, *options):
        """Starts one more member and puts it into the configuration; it copies the data by
        itself."""
        node = Node("--replSet", self.name, "--cpus", "2", *options)
        node.start()
        self.reconfigure(lambda config: config["members"].append(
            {"_id": len(self.nodes), "host": f"127.0.0.1:{node.port}", "priority": 0.5}
        ))
        self.nodes.append(node)
        return node

    def reconfigure(self, change, timeout_secs=PATIENCE_SECS, **options):
        """Changes the configuration in place. Tries again while the one before it is not committed,
        as with MongoDB one has to."""
        def changed():
            with self.client() as client:
                config = client.admin.command("replSetGetConfig")["config"]
                config["version"] += 1
                change(config)
                try:
                    client.admin.command("replSetReconfig", config, **options)
                except pymongo.errors.NotPrimaryError:
                    return False
                except pymongo.errors.OperationFailure as error:
                    if error.code not in (CONFIGURATION_IN_PROGRESS, CURRENT_CONFIG_NOT_COMMITTED_YET):
                        raise
                    return False
                return True

        wait_until(changed, timeout_secs)

    def state(self, node):
        """The number of the member's state; 0 while it has not read its configuration yet."""
        with self.member(node) as client:
            try:
                return client.admin.command("replSetGetStatus")["myState"]
            except pymongo.errors.OperationFailure as error:
                assert error.code == 94, error
                return 0

    def leads(self, node):
        """Whether it is primary and takes writes, which one that still applies what it has does
        not."""
        with self.member(node) as client:
            # Members of MongoDB 4.4.0 know it by this name alone.
            return client.admin.command("isMaster")["ismaster"]

    def primary(self, timeout_secs=PATIENCE_SECS):
        """The member that is primary and takes writes, once there is one."""
        found = []

        def is_there():
            found.extend(node for node in self.nodes if node.alive() and self.leads(node))
            return bool(found)

        wait_until(is_there, timeout_secs)
        return found[0]

    def secondaries(self):
        primary = self.primary()
        return [node for node in self.nodes if node is not primary]

    def hashes(self, node, database="test"):
        with self.member(node) as client:
            return client[database].command("dbHash", read_preference=pymongo.ReadPreference.SECONDARY_PREFERRED)["md5"]

    def wait_alike(self, database="test", timeout_secs=PATIENCE_SECS):
        """Waits until every member has the same data. One that rolls back meanwhile interrupts what
        reads it, and is read again."""

        def is_alike():
            try:
                return len({self.hashes(node, database) for node in self.nodes}) == 1
            except pymongo.errors.NotPrimaryError:
                return False

        wait_until(is_alike, timeout_secs)

    def wait_snapshots(self, session):
        """Waits until no member reads a snapshot from before what the session has seen: a member
        hears of the commit point later than who waited for the majority."""
        for node in self.nodes:
            with self.member(node) as client, client.start_session() as there:
                there.advance_cluster_time(session.cluster_time)
                there.advance_operation_time(session.operation_time)
                committed = client.test.get_collection(
                    "seen", read_preference=pymongo.ReadPreference.SECONDARY_PREFERRED, read_concern=ReadConcern("majority")
                )
                committed.find_one(session=there)

    def __enter__(self):
        try:
            self._begin()
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return self

    def _begin(self):
        for node in self.nodes:
            node.start()
        with self.member(self.nodes[0]) as client:
            client.admin.command("replSetInitiate", self.config)
        self.primary()
        for node in self.nodes:
            wait_until(lambda node=node: self.state(node) in (1, 2))
        # Where another has won the first election, this one would take over by its priority in the
        # middle of a test.
        wait_until(lambda: self.steps_up(self.nodes[0]))

    def steps_up(self, node):
        """Whether this member is the primary; if it is not, it is asked to stand for election."""
        with self.member(node) as client:
            # MongoDB 4.4 has no hello.
            if not client.admin.command("isMaster")["ismaster"]:
                try:
                    client.admin.command("replSetStepUp")
                except pymongo.errors.OperationFailure as error:
                    # Another election is under way, or it is not elected yet.
                    assert error.code == COMMAND_FAILED, error
                return False
        return True

    def __exit__(self, kind, *_):
        for at, node in enumerate(self.nodes):
            if kind is not None:
                # What the members said, for a reader of why a test failed.
                print(f"the log of member {at}:\n" + "".join(node.log[-LOG_LINES_SHOWN:]))
            node.__exit__()
