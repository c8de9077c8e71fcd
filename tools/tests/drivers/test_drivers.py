"""Each driver runs the life of a small application with its defaults; its packages are installed
below target/."""

import contextlib
import json
import os
import pathlib
import re
import shutil
import subprocess

import pymongo
import pytest
from pinion_cluster import Cluster, unharmed
from pinion_node import BINARY, STEADY, TEST_COMMANDS, Node, ReplicaSet, free_port

HERE = pathlib.Path(__file__).resolve().parent
HOME = pathlib.Path(os.environ.get("PINION_TARGET", "target")).resolve() / "drivers"

# What is fetched and compiled at first takes as long as the machine and its network need.
PATIENCE_SECS = 1800
pytestmark = pytest.mark.timeout(2 * PATIENCE_SECS)


def run(*command, cwd=None, env=None, timeout_secs=PATIENCE_SECS):
    done = subprocess.run([str(part) for part in command], cwd=cwd, env={**os.environ, **(env or {})}, timeout=timeout_secs,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def need(*tools):
    for tool in tools:
        if not shutil.which(tool):
            pytest.skip(f"{tool} is not installed")


def npm(name):
    """Installs the packages of a scenario below target/ and gives that folder."""
    home = HOME / name
    home.mkdir(parents=True, exist_ok=True)
    wanted = (HERE / name / "package.json").read_text()
    stamp = home / "package.json"
    if not stamp.exists() or stamp.read_text() != wanted or not (home / ".done").exists():
        stamp.write_text(wanted)
        run("npm", "install", "--no-audit", "--no-fund", "--silent", cwd=home)
        (home / ".done").touch()
    return home


@pytest.fixture(scope="module")
def three():
    with ReplicaSet(3, STEADY) as members:
        yield members


@pytest.fixture(scope="module")
def cluster():
    """Two shards in zones of their own, with a secondary each, behind two routers."""
    with unharmed(Cluster(shards=2, members=2, routers=2, options=TEST_COMMANDS)) as running:
        with running.client() as client:
            for shard, zone in (("s0", "low"), ("s1", "high")):
                client.admin.command("addShardToZone", shard, zone=zone)
        yield running


@pytest.fixture
def place(request):
    """What a scenario runs against: `node`, the set `three` or the `cluster`."""
    return request.getfixturevalue(request.param)


# The life of an application, what it does with a set, and with sharded collections. A cluster is a
# server and a set, too.
SCENARIOS = [
    ("scenario", "node"), ("scenario", "cluster"), ("set", "three"), ("set", "cluster"),
    ("cluster", "cluster"),
]
EVERY_SCENARIO = pytest.mark.parametrize(("scenario", "place"), SCENARIOS, indirect=["place"])
NODE_AND_CLUSTER = pytest.mark.parametrize("place", ["node", "cluster"], indirect=True)


@EVERY_SCENARIO
def test_node_driver(place, scenario):
    file, home = HERE / "node" / f"{scenario}.mjs", npm("node")
    output = run("node", file, place.uri, env={"DRIVER_HOME": str(home)})
    assert output.strip().endswith("ok")


def mongosh(uri, *options):
    home = npm("mongosh")
    program = home / "node_modules" / "mongosh" / "bin" / "mongosh.js"
    return run("node", program, uri, "--quiet", "--norc", *options, env={"HOME": str(home)})


def named(hosts):
    """What makes the addresses known to a scenario of mongosh."""
    return f"globalThis.hosts = {json.dumps(hosts)}"


@NODE_AND_CLUSTER
def test_mongosh(place):
    output = mongosh(place.uri, "--file", HERE / "mongosh" / "scenario.js")
    assert output.strip().splitlines()[-1] == "ok", output
    assert "Warning" not in output and "deprecat" not in output.lower(), output


def test_mongosh_shards_collections(cluster):
    hosts = [f"127.0.0.1:{router.port}" for router in cluster.routers]
    output = mongosh(cluster.uri, "--eval", named(hosts), "--file", HERE / "mongosh" / "cluster.js")
    assert output.strip().splitlines()[-1] == "ok", output
    assert "Warning" not in output and "deprecat" not in output.lower(), output


def test_mongosh_makes_a_set():
    nodes = [Node("--replSet", "rs0", "--cpus", "2") for _ in range(4)]
    try:
        for member in nodes:
            member.start()
        hosts = [f"127.0.0.1:{member.port}" for member in nodes]
        uri = f"{nodes[0].uri}/?directConnection=true"
        output = mongosh(uri, "--eval", named(hosts), "--file", HERE / "mongosh" / "set.js")
        assert output.strip().splitlines()[-1] == "ok", output
    finally:
        for member in nodes:
            member.__exit__()


# What is typed at the prompt, and what must be in the answers, in this order.
TYPED = [
    ("use typed", "switched to db typed"),
    ("db.c.insertMany(Array.from({length: 50}, (_, i) => ({_id: i, n: i % 7}))).acknowledged", "true"),
    ("show dbs", "typed "),
    ("show collections", "c\n"),
    ("db.c.find()", 'Type "it" for more'),
    ("it", "_id: 39"),
    ("it", "_id: 49"),
    ("it", "no cursor"),
    ("db.c.createIndex({n: 1})", "n_1"),
    ("db.c.getIndexes().length", "2"),
    ("db.c.find({n: 3}).explain().queryPlanner.winningPlan.inputStage.stage", "IXSCAN"),
    ("db.c.find({n: 3}).explain('executionStats').executionStats.nReturned", "7"),
    ("db.c.find({n: 3}).explain('allPlansExecution').executionStats.allPlansExecution", "[]"),
    ("db.stats().objects", "50"),
    ("db.c.stats().nindexes", "2"),
    ("db.serverStatus().opcounters.insert >= 50", "true"),
    ("db.currentOp().inprog.some(op => op.command.aggregate)", "true"),
    ("db.killOp(123456)", "attempting to kill op"),
    ("db.adminCommand({fsync: 1}).ok", "1"),
    ("db.fsyncLock()", "now locked against writes"),
    ("db.fsyncUnlock()", "fsyncUnlock completed"),
    ("show log startupWarnings", "no authentication"),
    ("db.version()", "8.0."),
    ("db.dropDatabase()", "ok: 1"),
]


def test_a_cluster_from_nothing(tmp_path):
    """The commands of docs/sharding.md, as they stand there but for the ports."""
    home = npm("mongosh")
    text = (HERE.parents[2] / "docs" / "sharding.md").read_text()
    commands = "\n".join(re.findall(r"^```sh\n(.*?)^```$", text, re.M | re.S)[:2])
    ports = {port: free_port() for port in re.findall(r"\b270\d\d\b", commands)}
    commands = re.sub(r"\b270\d\d\b", lambda port: str(ports[port.group()]), commands)
    programs = [pathlib.Path(BINARY).resolve().parent, home / "node_modules" / ".bin"]
    path = os.pathsep.join([*map(str, programs), os.environ["PATH"]])
    try:
        run("bash", "-ec", commands, cwd=tmp_path, env={"PATH": path, "HOME": str(home)}, timeout_secs=120)
        with pymongo.MongoClient(port=ports["27017"]) as client:
            orders = client.shop.orders
            orders.insert_many([{"customer": at} for at in range(100)])
            assert orders.count_documents({}) == 100
            assert set(client.shop.command("collStats", "orders")["shards"]) == {"s0", "s1"}
    finally:
        for port in ports.values():
            with contextlib.suppress(pymongo.errors.PyMongoError), pymongo.MongoClient(
                port=port, directConnection=True, serverSelectionTimeoutMS=2000
            ) as client:
                client.admin.command("shutdown", force=True)


def test_a_session_typed_into_mongosh():
    """Node that listens beyond localhost, so that there is a warning to be shown."""
    home = npm("mongosh")
    with Node("--bind_ip", "0.0.0.0") as node:
        typed = "".join(line + "\n" for line, _ in TYPED) + "exit\n"
        done = subprocess.run(["node", home / "node_modules" / "mongosh" / "bin" / "mongosh.js", node.uri, "--norc"], input=typed,
                              capture_output=True, text=True, timeout=PATIENCE_SECS, env={**os.environ, "HOME": str(home)})
        assert done.returncode == 0, done.stdout + done.stderr
        output = done.stdout
        assert "The server generated these startup warnings when booting" in output and "no authentication" in output
        at = output.index("test> ")
        for line, wanted in TYPED:
            found = output.find(wanted, at)
            assert found >= 0, f"{line}: {wanted!r} is not in what follows:\n{output[at:]}"
            at = found + len(wanted)
        assert "Uncaught" not in output, output
        assert node.alive()


@pytest.fixture(scope="module")
def go_driver():
    need("go")
    home = HOME / "go"
    shutil.copytree(HERE / "go", home, dirs_exist_ok=True)
    run("go", "mod", "tidy", cwd=home)
    run("go", "build", "-o", "driver", ".", cwd=home)
    return home / "driver"


@EVERY_SCENARIO
def test_go_driver(place, scenario, go_driver):
    assert run(go_driver, place.uri, scenario).strip() == "ok"


@pytest.fixture(scope="module")
def java_classes():
    need("mvn", "java")
    home = HOME / "java"
    run("mvn", "-q", "-B", "-f", HERE / "java" / "pom.xml", f"-Dtarget={home}", "compile", "dependency:build-classpath",
        f"-Dmdep.outputFile={home}/classpath")
    return f"{home}/classes:" + (home / "classpath").read_text().strip()


@EVERY_SCENARIO
def test_java_driver(place, scenario, java_classes):
    program = {"scenario": "Driver", "set": "OnSet", "cluster": "OnCluster"}[scenario]
    output = run("java", "-cp", java_classes, f"pinion.{program}", place.uri)
    assert output.strip().splitlines()[-1] == "ok", output


def test_rust_driver(node):
    home = HOME / "rust"
    env = {"CARGO_TARGET_DIR": str(home)}
    run("cargo", "build", "-q", "--manifest-path", HERE / "rust" / "Cargo.toml", env=env)
    assert run(home / "debug" / "pinion-driver-test", node.uri).strip() == "ok"


@NODE_AND_CLUSTER
def test_pymongo(place):
    """PyMongo with its defaults; the other tests use it with options."""
    with pymongo.MongoClient(place.uri) as client:
        collection = client.py_driver.c
        client.drop_database("py_driver")
        collection.insert_many({"_id": i, "n": i % 10} for i in range(500))
        assert sum(1 for _ in collection.find({"n": {"$lt": 10}}).batch_size(7)) == 500
        assert collection.update_many({"n": 2}, {"$set": {"x.y": 1}}).modified_count == 50
        assert collection.find_one_and_update({"_id": 1}, {"$inc": {"x": 5}}, return_document=True)["x"] == 5
        assert collection.delete_many({"n": 9}).deleted_count == 50
        collection.create_index("u", unique=True, sparse=True)
        collection.insert_one({"u": 1})
        with pytest.raises(pymongo.errors.DuplicateKeyError):
            collection.insert_one({"u": 1})
        with client.start_session() as session:
            assert collection.find_one({"_id": 1}, session=session)["_id"] == 1
        for compressor in ("zlib", "snappy", "zstd"):
            with pymongo.MongoClient(place.uri, compressors=compressor) as compressed:
                assert compressed.py_driver.c.count_documents({}) == 451
        assert client.py_driver.list_collection_names() == ["c"]
        kind = "Sharded" if isinstance(place, Cluster) else "Single"
        assert client.topology_description.topology_type_name == kind
        client.drop_database("py_driver")
