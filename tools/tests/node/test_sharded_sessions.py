"""Sessions of a cluster: they are listed on the config servers, and what a retryable write left on
a shard stays there as long as its session is listed."""

import datetime
import os
import shutil
import subprocess

import pytest
from pinion_cluster import Cluster, fails, unharmed
from pinion_node import TEST_COMMANDS, FailPoint
from pymongo.write_concern import WriteConcern

OPERATION_FAILED = 96
# What a session has left is kept for half an hour, so it is written by a process whose clock is
# further behind.
KEPT = datetime.timedelta(minutes=30)
BEHIND_SECS = 40 * 60
CLOCK = r"""
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *time) {
    int result = syscall(SYS_clock_gettime, clock, time);
    if (result == 0 && clock == CLOCK_REALTIME)
        time->tv_sec -= BEHIND_SECS;
    return result;
}
"""


@pytest.fixture(scope="module")
def late(tmp_path_factory):
    """The environment of a process whose wall clock is behind."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    directory = tmp_path_factory.mktemp("clock")
    source, library = directory / "clock.c", directory / "clock.so"
    source.write_text(CLOCK)
    subprocess.run([compiler, "-shared", "-fPIC", f"-DBEHIND_SECS={BEHIND_SECS}", "-o", library, source], check=True)
    return {**os.environ, "LD_PRELOAD": str(library)}


@pytest.fixture(scope="module")
def cluster():
    with unharmed(Cluster(shards=2, options=TEST_COMMANDS)) as running:
        yield running


@pytest.fixture
def client(cluster):
    with cluster.client(retryWrites=True) as connected:
        yield connected


@pytest.fixture
def config(cluster):
    with cluster.config.member(cluster.config.nodes[0]) as connected:
        yield connected


def direct(cluster, at=0):
    """A client of a shard's primary."""
    return cluster.shards[at].member(cluster.shards[at].nodes[0])


def restart(shard, env):
    """Ends the one member of a shard and starts it again, in this environment."""
    node, = shard.nodes
    node.kill()
    node.env = env
    node.start()
    shard.primary()


def refresh(client):
    client.admin.command("refreshLogicalSessionCacheNow")


def reap(cluster):
    with direct(cluster) as shard:
        refresh(shard)
        shard.admin.command("reapLogicalSessionCacheNow")


def named(session):
    return {"_id.id": session.session_id["id"]}


def is_listed(config, session):
    return config.config["system.sessions"].find_one(named(session)) is not None


def record_of(cluster, session):
    """What the session's last write has left on the first shard."""
    with direct(cluster) as shard:
        return shard.config.transactions.find_one(named(session))


def test_what_a_session_left_goes_when_it_is_listed_no_more(cluster, client, config, late):
    cluster.make_database("d", 0, client)
    restart(cluster.shards[0], late)
    durable = client.d.get_collection("c", write_concern=WriteConcern("majority"))
    with client.start_session() as session:
        durable.insert_one({"_id": 1}, session=session)
        refresh(client)
        assert is_listed(config, session)
        restart(cluster.shards[0], None)
        left = record_of(cluster, session)
        now = datetime.datetime.now(datetime.timezone.utc).replace(tzinfo=None)
        assert left["lastWriteDate"] < now - KEPT, left
        reap(cluster)
        assert record_of(cluster, session) == left
        client.admin.command({"endSessions": [session.session_id]})
        refresh(client)
        assert not is_listed(config, session)
        # Where the config servers do not say which sessions are listed, nothing is removed.
        refused = FailPoint(config, "failCommand", failCommands=["find"], namespace="config.system.sessions",
                            errorCode=OPERATION_FAILED, failInternalCommands=True)
        fails(lambda: reap(cluster), OPERATION_FAILED)
        refused.off()
        assert record_of(cluster, session) == left
        reap(cluster)
        assert record_of(cluster, session) is None
    assert client.d.c.find_one() == {"_id": 1}


def test_a_recent_record_stays(cluster, client):
    """Whether its session is listed or not."""
    cluster.make_database("recent", 0, client)
    with client.start_session() as session:
        client.recent.c.insert_one({"_id": 1}, session=session)
        client.admin.command({"endSessions": [session.session_id]})
        refresh(client)
        left = record_of(cluster, session)
        reap(cluster)
        assert left is not None and record_of(cluster, session) == left


@pytest.mark.parametrize("at", [0, 1])
def test_sessions_of_clients_of_a_shard_are_listed(cluster, config, at):
    with direct(cluster, at) as shard, shard.start_session() as session:
        shard.admin.command("ping", session=session)
        refresh(shard)
        assert is_listed(config, session)
        shard.admin.command({"endSessions": [session.session_id]})
        refresh(shard)
        assert not is_listed(config, session)
        # The shard has no list of its own.
        assert "system.sessions" not in shard.config.list_collection_names()


def test_a_config_server_has_the_list(config):
    with config.start_session() as session:
        config.admin.command("ping", session=session)
        refresh(config)
        assert is_listed(config, session)
        index = config.config["system.sessions"].index_information()["lsidTTLIndex"]
        assert index["expireAfterSeconds"] == KEPT.total_seconds()
        config.admin.command("reapLogicalSessionCacheNow")
