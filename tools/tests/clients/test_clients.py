"""MongoDB's own tools, as users run them, from the folder that PINION_CLIENTS names."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import threading
import time

import pytest
from bson import Timestamp, encode
from pinion_cluster import Cluster, by_shard, unharmed


@pytest.fixture(scope="module")
def cluster():
    with unharmed(Cluster(shards=2, routers=2)) as running:
        yield running


@pytest.fixture(params=["node", "cluster"])
def place(request):
    """What the tools connect to: a node, or the routers of a cluster."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def client(place):
    with place.client() as connected:
        yield connected


@pytest.fixture(scope="session")
def tools():
    """The folder with mongodump and its family."""
    return pathlib.Path(os.environ["PINION_CLIENTS"])


def run(*command, status=0, timeout_secs=300):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=timeout_secs)
    assert done.returncode == status, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout + done.stderr


def shard(client):
    """Shards the empty collection `people` of a cluster, over both shards."""
    client.admin.command("shardCollection", "tools.people", key={"u": "hashed"})


def fill(client, place):
    """Makes some collections; in a cluster one of them is sharded."""
    database = client.tools
    client.drop_database("tools")
    if isinstance(place, Cluster):
        shard(client)
    people = ({"_id": i, "name": f"n{i}", "tags": ["a", i % 3], "u": i} for i in range(2_000))
    # In order, each change of the shard would be a round trip.
    database.people.insert_many(people, ordered=False)
    database.people.create_index([("name", 1), ("tags", -1)])
    database.people.create_index("u", unique=True, sparse=True)
    database.create_collection("empty")
    return database


def content(database):
    """Documents and index keys of every collection."""
    return {name: (list(database[name].find().sort("_id", 1)), {k: v["key"] for k, v in database[name].index_information().items()})
            for name in sorted(database.list_collection_names())}


def test_dump_and_restore(place, client, tools, tmp_path):
    database = fill(client, place)
    before = content(database)
    run(tools / "mongodump", "--uri", place.uri, "--db", "tools", "--out", tmp_path / "dump")
    bson = run(tools / "bsondump", "--quiet", tmp_path / "dump" / "tools" / "people.bson")
    assert len([line for line in bson.splitlines() if line.startswith("{")]) == 2_000
    client.drop_database("tools")
    run(tools / "mongorestore", "--uri", place.uri, tmp_path / "dump")
    assert content(database) == before
    with pytest.raises(Exception, match="E11000"):
        database.people.insert_one({"u": 5})


def test_archive_with_compression(place, client, tools, tmp_path):
    database = fill(client, place)
    before = content(database)
    options = ["--uri", place.uri, "--gzip", f"--archive={tmp_path}/a.gz"]
    run(tools / "mongodump", *options, "--db", "tools")
    run(tools / "mongorestore", *options, "--drop")
    assert content(database) == before


def test_export_and_import(place, client, tools, tmp_path):
    database = fill(client, place)
    where, file = ["--uri", place.uri, "--db", "tools"], tmp_path / "people.json"
    whole = ["--collection", "people", "--sort", "{_id: 1}"]
    run(tools / "mongoexport", *where, *whole, "--out", file)
    assert len(file.read_text().splitlines()) == 2_000
    run(tools / "mongoimport", *where, "--collection", "copy", "--file", file)
    everything = list(database.people.find().sort("_id", 1))
    assert list(database["copy"].find().sort("_id", 1)) == everything
    run(tools / "mongoimport", *where, "--collection", "copy", "--mode", "upsert", "--file", file)
    assert database["copy"].count_documents({}) == 2_000


def test_mongostat_shows_the_rates_of_a_running_load(place, client, tools):
    stop, rates = threading.Event(), []

    def load():
        i, began = 0, time.monotonic()
        while not stop.is_set():
            client.tools.stat.insert_one({"_id": i})
            client.tools.stat.find_one({"_id": i})
            client.tools.stat.update_one({"_id": i}, {"$set": {"x": 1}})
            list(client.tools.stat.find({"_id": {"$gt": i - 6}}, batch_size=4))
            client.tools.stat.delete_one({"_id": i - 10})
            i += 1
        rates.append(i / (time.monotonic() - began))

    client.tools.stat.drop()
    server = place
    if isinstance(place, Cluster):
        # The router that has the load.
        server = place.routers[0]
        client.admin.command("shardCollection", "tools.stat", key={"_id": "hashed"})
    thread = threading.Thread(target=load)
    thread.start()
    try:
        output = run(tools / "mongostat", "--uri", server.uri, "--json", "--rowcount", "4", "1")
    finally:
        stop.set()
        thread.join()
    rows = [next(iter(json.loads(line).values())) for line in output.splitlines() if line.startswith("{")]
    number = lambda text: int(re.sub(r"\D", "", text) or 0)
    busiest = {column: max(number(row[column]) for row in rows[1:]) for column in rows[0] if column not in ("time", "command")}
    for column in ("insert", "query", "update", "delete", "getmore"):
        # Each turn of the load has one of each, or more.
        assert busiest[column] > rates[0] / 4, (rates, rows)
    # Each insert comes with two finds.
    assert 1.5 < busiest["query"] / busiest["insert"] < 2.5, rows
    for column in ("net_in", "net_out", "conn", "res", "vsize"):
        assert busiest[column] > 0, rows


def test_mongotop(node, tools):
    with node.client() as client:
        fill(client, node)
    assert "tools.people" in run(tools / "mongotop", "--uri", node.uri, "--json", "--rowcount", "1", "1")


def test_mongotop_is_of_nodes_alone(cluster, tools):
    output = run(tools / "mongotop", "--uri", cluster.uri, "--rowcount", "1", "1", status=1)
    assert "cannot run mongotop against a mongos" in output


def test_mongostat_finds_the_shards(cluster, tools):
    router = cluster.routers[0]
    options = ["--discover", "--json", "--rowcount", "4", "1"]
    output = run(tools / "mongostat", "--uri", router.uri, *options)
    found = {}
    for line in output.splitlines():
        rows = json.loads(line) if line.startswith("{") else {}
        # A host that is new has no rates yet.
        found |= {host: row for host, row in rows.items() if "repl" in row}
    assert found[f"127.0.0.1:{router.port}"]["repl"] == "RTR", found
    for members in cluster.shards:
        assert found[f"127.0.0.1:{members.nodes[0].port}"]["set"] == members.name, found


def test_a_whole_cluster_is_dumped_and_restored(cluster, tools, tmp_path):
    """All databases, into collections that are sharded before the documents come."""
    dump = tmp_path / "dump"
    with cluster.client() as client:
        database = fill(client, cluster)
        client.other.plain.insert_many({"_id": n} for n in range(10))
        before, placed = content(database), by_shard(database.people)
        assert len(placed) == 2 and sum(placed.values()) == 2_000, placed
        run(tools / "mongodump", "--uri", cluster.uri, "--out", dump)
        assert {"tools", "other", "config"} <= {folder.name for folder in dump.iterdir()}
        client.drop_database("tools")
        client.drop_database("other")
        # The catalog of the dump is of the cluster that it comes from.
        output = run(tools / "mongorestore", "--uri", cluster.uri, dump, status=1)
        assert "cannot do a full restore on a sharded system" in output
        shutil.rmtree(dump / "config")
        shard(client)
        run(tools / "mongorestore", "--uri", cluster.uri, dump)
        assert content(database) == before and by_shard(database.people) == placed
        assert client.other.plain.count_documents({}) == 10
        # The other router reads the same.
        with cluster.client(1) as other:
            assert content(other.tools) == before


def test_an_oplog_is_of_a_set_alone(cluster, tools, tmp_path):
    where, dump = ["--uri", cluster.uri], tmp_path / "dump"
    output = run(tools / "mongodump", *where, "--oplog", "--out", tmp_path / "none", status=1)
    assert "can't use --oplog option when dumping from a mongos" in output
    insert = {"op": "i", "ns": "tools.people", "o": {"_id": 1}, "ts": Timestamp(1, 1), "v": 2}
    dump.mkdir()
    (dump / "oplog.bson").write_bytes(encode(insert))
    output = run(tools / "mongorestore", *where, "--oplogReplay", dump, status=1)
    assert "applyOps" in output and "no such command" in output
