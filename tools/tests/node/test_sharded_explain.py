"""`explain` through routers whose tables are old, and of shards whose are."""

import pytest
from pinion_node import wait_until
from pymongo.errors import OperationFailure
from test_sharded import split_in_zones
from test_sharded_traps import give


@pytest.fixture
def client(cluster):
    with cluster.client() as connected:
        yield connected


@pytest.fixture
def ranged(cluster, client):
    """A collection in three chunks: below 100 on the first shard, from 100 and from 150 on the
    second."""
    client.drop_database("d")
    cluster.make_database("d", 0, client)
    split_in_zones(client, "d.r", {"k": 1}, 100)
    client.admin.command("split", "d.r", middle={"k": 150})
    client.d.r.insert_many([{"_id": n, "k": n, "g": n % 5} for n in range(200)])
    return client.d.r


@pytest.mark.parametrize("name", ["find", "aggregate", "count", "distinct", "update", "delete", "findAndModify"])
def test_explain_by_an_old_table(cluster, client, other, ranged, name):
    """As other commands, explain has shards and routers learn what they do not know."""
    command = {
        "find": {"find": "r", "filter": {"k": {"$gte": 0}}},
        "aggregate": {"aggregate": "r", "pipeline": [{"$match": {"k": {"$gte": 0}}}], "cursor": {}},
        "count": {"count": "r", "query": {"k": {"$gte": 0}}},
        "distinct": {"distinct": "r", "key": "k"},
        "update": {"update": "r", "updates": [{"q": {"k": {"$gte": 0}}, "u": {"$set": {"x": 1}}, "multi": True}]},
        "delete": {"delete": "r", "deletes": [{"q": {"k": {"$gte": 0}}, "limit": 0}]},
        "findAndModify": {"findAndModify": "r", "query": {"k": 160}, "remove": True},
    }[name]

    def shards(router):
        explained = router.d.command("explain", command, verbosity="queryPlanner")
        if "shards" in explained:
            return sorted(explained["shards"])
        plan = explained.get("queryPlanner", {}).get("winningPlan", {})
        return sorted(shard["shardName"] for shard in plan.get("shards", ()))

    both = ["s1"] if name == "findAndModify" else ["s0", "s1"]
    assert shards(other) == shards(client) == both
    # The router is behind; then the shards are, of which no other command comes.
    give(cluster, client, 150, 0)
    assert shards(other) == (["s0"] if name == "findAndModify" else both)
    with cluster.shards[1].client() as direct:
        direct.d.r.delete_many({"k": {"$gte": 150}})
    give(cluster, client, 150, 1, learns=False)
    other.admin.command("flushRouterConfig", "d.r")
    assert shards(other) == both
    # Neither sharded nor of that shard any more, and then sharded again.
    ranged.drop()
    db = ranged.database
    db.r.insert_one({"k": 160})
    # A pipeline that was divided by the old table is explained in its parts.
    assert shards(other) in ([], ["s0"])
    db.r.drop()
    split_in_zones(client, "d.r", {"k": 1}, 100)
    assert shards(other) == both


def test_explain_after_a_restart(cluster, client, ranged):
    """A shard that does not know its tables yet learns them."""
    plan = client.d.r.find().explain()["queryPlanner"]["winningPlan"]
    assert len(plan["shards"]) == 2
    members = cluster.shards[1]
    with members.client() as direct:
        direct.admin.command("replSetStepDown", 2, force=True)
    wait_until(lambda: is_explained(client))


def is_explained(client):
    try:
        plan = client.d.r.find().explain()["queryPlanner"]["winningPlan"]
    except OperationFailure as error:
        assert error.code != 13388, error
        return False
    return len(plan["shards"]) == 2
