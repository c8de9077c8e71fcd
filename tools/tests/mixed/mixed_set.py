"""Replica sets with members of MongoDB 4.4 and of Pinion."""

import os
import pathlib
import time

import pymongo
from bson import json_util

from pinion_node import Node, ReplicaSet, free_port, wait_until

DATABASES = ["test", "other"]
READ = pymongo.ReadPreference.SECONDARY_PREFERRED


class Mongod(Node):
    """A member of MongoDB: `PINION_MONGOD` names the folder with the program."""

    def __init__(self, *options, directory=None):
        binary = str(pathlib.Path(os.environ["PINION_MONGOD"]) / "mongod")
        super().__init__(*options, directory=directory, binary=binary)

    def start(self, timeout_secs=120):
        """It makes neither its data directory nor chooses a port."""
        (self.directory / "data").mkdir(parents=True, exist_ok=True)
        self.port = self.port or free_port()
        return super().start(timeout_secs)


class MixedSet(ReplicaSet):
    """A set of MongoDB's members, to which others are added."""

    def __init__(self, members=2):
        super().__init__(members=0, settings={"electionTimeoutMillis": 2000})
        self.nodes = [self.mongod() for _ in range(members)]

    @staticmethod
    def mongod(*options):
        return Mongod("--replSet", "rs0", "--bind_ip", "127.0.0.1", "--wiredTigerCacheSizeGB", "0.3", *options)

    @staticmethod
    def pinion():
        return Node("--replSet", "rs0", "--cpus", "2")

    def join(self, node, **member):
        """Puts a new member into the configuration, and waits until it has copied the data."""
        node.start()
        self.change(lambda config: config["members"].append(
            {"_id": max(old["_id"] for old in config["members"]) + 1, "host": f"127.0.0.1:{node.port}", **member}
        ))
        self.nodes.append(node)
        self.wait_for_state(node, (2,), 120)
        return node

    def wait_for_state(self, node, states, timeout_secs):
        end = time.monotonic() + timeout_secs
        while self.state(node) not in states:
            assert node.alive() and time.monotonic() < end, "".join(line for line in node.log if '"NETWORK"' not in line)[-4000:]
            time.sleep(0.05)

    def leave(self, node):
        """Takes a member out of the set, and ends it."""
        self.nodes.remove(node)
        host = f"127.0.0.1:{node.port}"
        self.change(lambda config: config.update(members=[member for member in config["members"] if member["host"] != host]))
        node.__exit__()

    def change(self, change):
        """Changes the configuration by the primary, again while that is another or the last change
        is not everywhere yet."""
        end = time.monotonic() + 60
        while True:
            try:
                with self.member(self.primary()) as client:
                    config = client.admin.command("replSetGetConfig")["config"]
                    change(config)
                    config["version"] += 1
                    client.admin.command("replSetReconfig", config)
                    return
            except pymongo.errors.PyMongoError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.3)

    def hand_over(self, node):
        """Has this member elected, by its priority."""
        host = f"127.0.0.1:{node.port}"

        def prefer(config):
            for member in config["members"]:
                member["priority"] = 5 if member["host"] == host else 1
                member["votes"] = 1

        self.change(prefer)
        wait_until(lambda: self.primary() is node, 90)

    def state(self, node):
        try:
            return super().state(node)
        except pymongo.errors.PyMongoError:
            # It closes its connections where its state changes.
            return 0

    def primary(self, timeout_secs=25):
        end = time.monotonic() + timeout_secs
        while True:
            try:
                return super().primary(timeout_secs)
            except pymongo.errors.PyMongoError:
                if time.monotonic() > end:
                    raise

    def shown(self, node):
        """What a member has: the hashes of all collections, their options and their indexes."""
        found = {}
        with self.member(node) as client:
            for name in DATABASES:
                database = client.get_database(name, read_preference=READ)
                for collection, md5 in database.command("dbHash", read_preference=READ)["collections"].items():
                    found[f"{name}.{collection}"] = md5
                for listed in database.list_collections():
                    place = f"{name}.{listed['name']}"
                    # Which of the defaults were written out is no difference.
                    options = {"validationLevel": "strict", "validationAction": "error", **listed["options"]}
                    found[place + " is"] = json_util.dumps([listed["type"], options, listed["info"].get("uuid")], sort_keys=True)
                    if listed["type"] == "collection":
                        indexes = [dict(index) for index in database[listed["name"]].list_indexes()]
                        for index in indexes:
                            index.pop("ns", None)
                        found[place + " indexes"] = json_util.dumps(sorted(indexes, key=lambda index: index["name"]), sort_keys=True)
        return found

    def wait_alike(self, timeout_secs=25):
        """Waits until every member has the same data, collections and indexes."""
        end = time.monotonic() + timeout_secs
        while True:
            try:
                first, *others = [self.shown(node) for node in self.nodes]
                differing = {
                    place: [one.get(place) for one in (first, *others)]
                    for place in {place for one in (first, *others) for place in one}
                    if any(one.get(place) != first.get(place) for one in others)
                }
                if not differing:
                    return
            except pymongo.errors.PyMongoError as error:
                differing = {"error": error}
            kinds = [type(node).__name__ for node in self.nodes]
            assert time.monotonic() < end, f"{kinds} differ: {differing}"
            time.sleep(0.2)

    def all_are_alive(self):
        assert all(node.alive() for node in self.nodes)
