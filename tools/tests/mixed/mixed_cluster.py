"""Clusters with config servers and routers of MongoDB 4.4, and shards of Pinion."""

import os
import pathlib

from mixed_set import Mongod
from pinion_cluster import NOT_READY
from pinion_node import Node, ReplicaSet, free_port, wait_until

import pymongo

# A mongos reads its routing table, and makes databases, by commands that wait for a majority.
PATIENCE_SECS = 120
OF_SHARDS = ("--clusterVersion", "4.4")


class Mongos(Node):
    """A router of MongoDB: `PINION_MONGOD` names the folder with the program."""

    def __init__(self, configdb, *options):
        binary = str(pathlib.Path(os.environ["PINION_MONGOD"]) / "mongos")
        super().__init__("--configdb", configdb, "--bind_ip", "127.0.0.1", *options, binary=binary)

    def place(self):
        return []

    def start(self, timeout_secs=PATIENCE_SECS):
        """It chooses no port."""
        self.port = self.port or free_port()
        return super().start(timeout_secs)


class MongodSet(ReplicaSet):
    """A set of one member of MongoDB, which is the config server or a shard."""

    def __init__(self, name, role):
        super().__init__(members=0, name=name, role=role)
        options = ("--replSet", name, f"--{role}", "--bind_ip", "127.0.0.1", "--wiredTigerCacheSizeGB", "0.3")
        self.nodes = [Mongod(*options)]


class MongoCluster:
    """A config server and a router of MongoDB 4.4; shards of Pinion `s0`, `s1`, ..., then such of
    MongoDB."""

    def __init__(self, shards=2, of_mongodb=0, members=1, routers=1):
        self.config = MongodSet("cfg", "configsvr")
        self.shards = [ReplicaSet(members, options=OF_SHARDS, name=f"s{at}", role="shardsvr") for at in range(shards)]
        self.shards += [MongodSet(f"s{at}", "shardsvr") for at in range(shards, shards + of_mongodb)]
        self.routers = [None] * routers

    def client(self, at=0, **options):
        return self.routers[at].client(**options)

    def __enter__(self):
        try:
            self._begin()
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return self

    def _begin(self):
        self.config.__enter__()
        for shard in self.shards:
            shard.__enter__()
        self.routers = [Mongos(self.config.connection_string) for _ in self.routers]
        for router in self.routers:
            router.start()
        with self.client() as client:
            for at in range(len(self.shards)):
                self.add_shard(at, client)
            # The tests say where data is; what moves it is not there yet.
            client.admin.command("balancerStop")

    def add_shard(self, at, client):
        def is_added():
            try:
                added = client.admin.command("addShard", self.shards[at].connection_string)
            except pymongo.errors.OperationFailure as error:
                assert error.code in NOT_READY, error.details
                return False
            assert added["shardAdded"] == f"s{at}", added
            return True

        wait_until(is_added, PATIENCE_SECS)

    def processes(self):
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
