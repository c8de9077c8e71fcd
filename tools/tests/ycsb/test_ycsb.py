"""YCSB's own workloads, from `site.ycsb:core`, over a small binding to MongoDB's Java driver."""

import os
import pathlib
import re
import shutil
import subprocess

import pytest
from pinion_cluster import Cluster, by_shard, unharmed

HERE = pathlib.Path(__file__).resolve().parent
HOME = pathlib.Path(os.environ.get("PINION_TARGET", "target")).resolve() / "ycsb"
RECORDS, OPERATIONS = 2000, 2000
# What is fetched and compiled at first takes as long as the machine and its network need.
PATIENCE_SECS = 1800
pytestmark = pytest.mark.timeout(2 * PATIENCE_SECS)

# The proportions and distributions of YCSB's files `workloads/workloada` to `workloadf`.
WORKLOADS = {
    "a": {"readproportion": 0.5, "updateproportion": 0.5, "requestdistribution": "zipfian"},
    "b": {"readproportion": 0.95, "updateproportion": 0.05, "requestdistribution": "zipfian"},
    "c": {"readproportion": 1, "updateproportion": 0, "requestdistribution": "zipfian"},
    "d": {"readproportion": 0.95, "updateproportion": 0, "insertproportion": 0.05, "requestdistribution": "latest"},
    "e": {"readproportion": 0, "updateproportion": 0, "scanproportion": 0.95, "insertproportion": 0.05, "requestdistribution": "zipfian",
          "maxscanlength": 100, "scanlengthdistribution": "uniform"},
    "f": {"readproportion": 0.5, "updateproportion": 0, "readmodifywriteproportion": 0.5, "requestdistribution": "zipfian"},
}


@pytest.fixture(scope="module")
def classpath():
    """Builds the binding; the paths that YCSB's client needs."""
    if not (shutil.which("mvn") and shutil.which("java")):
        pytest.skip("needs Java and Maven")
    run("mvn", "-q", "-B", "-f", HERE / "pom.xml", f"-Dtarget={HOME}", "compile", "dependency:build-classpath", f"-Dmdep.outputFile={HOME}/classpath")
    return f"{HOME}/classes:{(HOME / 'classpath').read_text().strip()}"


def run(*command, timeout_secs=PATIENCE_SECS):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=timeout_secs)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def ycsb(classpath, phase, properties):
    """Runs a phase of a workload: `{operation: how often it ended well}`; any other end fails."""
    options = [part for name, value in properties.items() for part in ("-p", f"{name}={value}")]
    output = run("java", "-cp", classpath, "site.ycsb.Client", phase, "-db", "pinion.Binding", "-threads", "8", *options)
    returns = re.findall(r"\[([A-Z-]+)\], Return=(\w+), (\d+)", output)
    assert returns and all(status == "OK" for _, status, _ in returns), output[-2000:]
    return {operation: int(count) for operation, _, count in returns}


@pytest.fixture(scope="module")
def cluster():
    with unharmed(Cluster(shards=2, routers=2)) as running:
        yield running


# Through routers those that differ most: updates, scans over both shards with inserts, and reads
# with an update behind each.
PLACES = [("node", name) for name in WORKLOADS] + [("cluster", name) for name in "aef"]


@pytest.mark.parametrize(("place", "name"), PLACES)
def test_workload(request, classpath, place, name):
    place = request.getfixturevalue(place)
    properties = {
        "workload": "site.ycsb.workloads.CoreWorkload", "recordcount": RECORDS,
        "operationcount": OPERATIONS, "readallfields": "true", "pinion.uri": place.uri,
        **WORKLOADS[name],
    }
    with place.client() as client:
        table = client.ycsb.usertable
        client.drop_database("ycsb")
        if isinstance(place, Cluster):
            client.admin.command("shardCollection", "ycsb.usertable", key={"_id": "hashed"})
        assert ycsb(classpath, "-load", properties) == {"INSERT": RECORDS}
        assert table.count_documents({}) == RECORDS
        done = ycsb(classpath, "-t", properties)
        # A read-modify-write counts as its parts too.
        done.pop("READ-MODIFY-WRITE", None)
        assert sum(done.values()) >= OPERATIONS, done
        assert table.count_documents({}) == RECORDS + done.get("INSERT", 0)
        if isinstance(place, Cluster):
            placed = by_shard(table)
            assert len(placed) == 2 and min(placed.values()) > RECORDS / 3, placed
