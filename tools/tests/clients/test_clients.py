"""MongoDB's own tools, as users run them, from the folder that PINION_CLIENTS names."""

import json
import os
import pathlib
import re
import subprocess

import pytest

@pytest.fixture(scope="session")
def tools():
    """The folder with mongodump and its family."""
    return pathlib.Path(os.environ["PINION_CLIENTS"])


def run(*command, timeout_secs=300):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=timeout_secs)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout + done.stderr


def fill(client):
    database = client.tools
    client.drop_database("tools")
    database.people.insert_many({"_id": i, "name": f"n{i}", "tags": ["a", i % 3], "u": i} for i in range(2_000))
    database.people.create_index([("name", 1), ("tags", -1)])
    database.people.create_index("u", unique=True, sparse=True)
    database.create_collection("empty")
    return database


def content(database):
    """Documents and index keys of every collection."""
    return {name: (list(database[name].find().sort("_id", 1)), {k: v["key"] for k, v in database[name].index_information().items()})
            for name in sorted(database.list_collection_names())}


def test_dump_and_restore(node, client, tools, tmp_path):
    database = fill(client)
    before = content(database)
    run(tools / "mongodump", "--uri", node.uri, "--db", "tools", "--out", tmp_path / "dump")
    bson = run(tools / "bsondump", "--quiet", tmp_path / "dump" / "tools" / "people.bson")
    assert len([line for line in bson.splitlines() if line.startswith("{")]) == 2_000
    client.drop_database("tools")
    run(tools / "mongorestore", "--uri", node.uri, tmp_path / "dump")
    assert content(database) == before
    with pytest.raises(Exception, match="E11000"):
        database.people.insert_one({"u": 5})


def test_archive_with_compression(node, client, tools, tmp_path):
    database = fill(client)
    before = content(database)
    run(tools / "mongodump", "--uri", node.uri, "--db", "tools", "--gzip", f"--archive={tmp_path}/a.gz")
    run(tools / "mongorestore", "--uri", node.uri, "--gzip", "--drop", f"--archive={tmp_path}/a.gz")
    assert content(database) == before


def test_export_and_import(node, client, tools, tmp_path):
    database = fill(client)
    run(tools / "mongoexport", "--uri", f"{node.uri}/tools", "--collection", "people", "--out", tmp_path / "people.json", "--sort", "{_id: 1}")
    assert len((tmp_path / "people.json").read_text().splitlines()) == 2_000
    run(tools / "mongoimport", "--uri", f"{node.uri}/tools", "--collection", "copy", "--file", tmp_path / "people.json")
    assert list(database["copy"].find().sort("_id", 1)) == list(database.people.find().sort("_id", 1))
    run(tools / "mongoimport", "--uri", f"{node.uri}/tools", "--collection", "copy", "--mode", "upsert", "--file", tmp_path / "people.json")
    assert database["copy"].count_documents({}) == 2_000


def test_mongostat_shows_the_rates_of_a_running_load(node, client, tools):
    import threading
    import time

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
    thread = threading.Thread(target=load)
    thread.start()
    try:
        output = run(tools / "mongostat", "--uri", node.uri, "--json", "--rowcount", "4", "1")
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


def test_mongotop(node, client, tools):
    fill(client)
    assert "tools.people" in run(tools / "mongotop", "--uri", node.uri, "--json", "--rowcount", "1", "1")
