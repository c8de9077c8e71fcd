"""Starts and stops a cluster with shards for the tests: config servers, shards that are replica
sets, and routers."""

import contextlib
import pathlib

import pymongo
from pinion_node import BINARY, SELECTION_MS, STEADY, Node, ReplicaSet, wait_until

ROUTER = str(pathlib.Path(BINARY).with_name("pinion-router"))
# A router that cannot know yet what the config servers have, or no member that answers.
NOT_READY = (70, 133)


class Router(Node):
    """One process of a router, which keeps nothing on disk."""

    def __init__(self, configdb, *options, **settings):
        super().__init__("--configdb", configdb, "--cpus", "2", *options, **{"binary": ROUTER, **settings})

    def place(self):
        return []


class Cluster:
    """A config set, shards `s0`, `s1`, ..., and routers. `options` are those of all processes,
    `of_routers` and `of_nodes` of each kind; `prepare` is called with each process and its name
    before it is started first."""

    def __init__(
        self, shards=2, members=1, config=1, routers=1, options=(), of_routers=(), of_nodes=(),
        settings=None, prepare=None,
    ):
        settings = STEADY if settings is None else settings
        nodes = (*options, *of_nodes)
        self.config = ReplicaSet(config, settings, nodes, name="cfg", role="configsvr")
        self.shards = [
            ReplicaSet(members, settings, nodes, name=f"s{at}", role="shardsvr") for at in range(shards)
        ]
        self.prepare = prepare or (lambda process, name: None)
        self.router_options = (*options, *of_routers)
        self.routers = [None] * routers

    @property
    def uri(self):
        return "mongodb://" + ",".join(f"127.0.0.1:{router.port}" for router in self.routers) + "/"

    def client(self, at=0, **options):
        """A client of one router."""
        return self.routers[at].client(**options)

    def client_of_all(self, **options):
        """A client of all routers."""
        return pymongo.MongoClient(self.uri, **{"serverSelectionTimeoutMS": SELECTION_MS, **options})

    def add_shard(self, at, client):
        """Adds a shard by one of its names; the router may not know the config servers yet."""

        def is_added():
            try:
                added = client.admin.command("addShard", self.shards[at].connection_string)
            except pymongo.errors.OperationFailure as error:
                assert error.code in NOT_READY, error.details
                return False
            assert added["shardAdded"] == f"s{at}", added
            return True

        wait_until(is_added)

    def make_database(self, name, shard, client):
        """Makes a database on the shard of this number."""
        client.admin.command("enableSharding", name, primaryShard=f"s{shard}")

    def __enter__(self):
        try:
            self._begin()
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return self

    def _begin(self):
        for members in (self.config, *self.shards):
            for at, node in enumerate(members.nodes):
                self.prepare(node, f"{members.name}-{at}")
        self.config.__enter__()
        for shard in self.shards:
            shard.__enter__()
        self.routers = [Router(self.config.connection_string, *self.router_options) for _ in self.routers]
        for at, router in enumerate(self.routers):
            self.prepare(router, f"router-{at}")
            router.start()
        with self.client() as client:
            for at in range(len(self.shards)):
                self.add_shard(at, client)

    def processes(self):
        """All processes of the cluster."""
        sets = [self.config, *self.shards]
        return [node for members in sets for node in members.nodes] + [router for router in self.routers if router]

    def __exit__(self, kind, *_):
        for at, router in enumerate(self.routers):
            if router is None:
                continue
            if kind is not None:
                print(f"the log of router {at}:\n" + "".join(router.log[-40:]))
            router.__exit__()
        for shard in self.shards:
            shard.__exit__(kind)
        self.config.__exit__(kind)


def inconsistencies(client):
    """What shards and catalog disagree in."""
    return list(client.admin.cursor_command("checkMetadataConsistency", 1, checkIndexes=True))


def by_shard(collection):
    """How many documents of a collection each shard has that has any of its chunks."""
    parts = collection.aggregate([{"$collStats": {"count": {}}}])
    return {part["shard"]: part["count"] for part in parts}


@contextlib.contextmanager
def unharmed(cluster):
    """Runs a cluster, of which no process ends meanwhile, and whose shards have in the end what the
    catalog says."""
    with cluster as running:
        yield running
        with running.client() as client:
            assert inconsistencies(client) == []
        for process in running.processes():
            assert process.alive(), "a process ended during the tests"
            assert not [line for line in process.log if "panick" in line.lower()]


def fails(call, code):
    """Runs what is to be refused with this code, and gives the text of the error."""
    try:
        call()
    except pymongo.errors.OperationFailure as error:
        assert error.code == code, error.details
        return error.details["errmsg"]
    raise AssertionError("it was not refused")
