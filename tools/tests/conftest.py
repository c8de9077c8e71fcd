"""Fixtures shared by all tests that run against a real process."""

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

from pinion_cluster import Cluster, unharmed  # noqa: E402
from pinion_node import TEST_COMMANDS, Node  # noqa: E402


@pytest.fixture(scope="module")
def node():
    """A node that lives for the tests of one file and must survive them without a panic."""
    with Node("--cpus", "2", "--partitions", "2") as running:
        yield running
        assert running.alive(), "the node ended during the tests"
        assert not [line for line in running.log if "panic" in line.lower()]


@pytest.fixture
def client(node):
    with node.client() as connected:
        yield connected


@pytest.fixture
def collection(client, request):
    """A collection of the test's own, empty."""
    name = request.node.name.replace("[", "_").replace("]", "_").replace("$", "_")[:80]
    found = client["pinion_test"][name]
    found.drop()
    return found


@pytest.fixture(scope="module")
def cluster():
    """Two shards behind two routers, for the tests of one file, which they must survive."""
    with unharmed(Cluster(shards=2, routers=2, options=TEST_COMMANDS)) as running:
        yield running


@pytest.fixture
def other(cluster):
    """A client of the other router."""
    with cluster.client(1) as connected:
        yield connected
