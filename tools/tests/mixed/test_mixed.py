"""A member of Pinion among members of MongoDB 4.4: it copies, follows, is elected, is followed and
copied, and steps down again, and the data are alike on all throughout."""

import os
import time

import pytest

from mixed_load import Load
from mixed_set import MixedSet
from pinion_node import wait_until

pytestmark = pytest.mark.skipif("PINION_MONGOD" not in os.environ, reason="PINION_MONGOD does not name the folder with mongod")


def nothing_is_lost(mixed, load):
    mixed.wait_alike()
    with mixed.client(readPreference="primary") as client:
        found = {document["_id"] for document in client.test.docs.find({"_id": {"$type": "number"}}, {"_id": 1})}
        assert load.acknowledged <= found, sorted(load.acknowledged - found)[:5]
        assert sum(document["balance"] for document in client.test.accounts.find()) == 0
    assert load.acknowledged, "nothing was written"


def under_load(mixed, what):
    with Load(mixed.uri) as load:
        time.sleep(2)
        result = what()
        time.sleep(2)
    nothing_is_lost(mixed, load)
    return result


def source_of(mixed, node):
    with mixed.member(node) as client:
        return client.admin.command("replSetGetStatus")["syncSourceHost"]


def test_a_set_is_moved_and_moved_back():
    with MixedSet() as mixed:
        pinion = under_load(mixed, lambda: mixed.join(mixed.pinion(), priority=0, votes=0))
        first = mixed.primary()

        mixed.hand_over(pinion)
        host = f"127.0.0.1:{pinion.port}"
        others = [node for node in mixed.nodes if node is not pinion]
        under_load(mixed, lambda: wait_until(lambda: host in {source_of(mixed, node) for node in others}, 60))

        # One that is new copies Pinion's data, and no other's.
        newest = mixed.mongod("--setParameter", "initialSyncSourceReadPreference=primary")
        under_load(mixed, lambda: mixed.join(newest, priority=0, votes=0))

        mixed.hand_over(first)
        under_load(mixed, lambda: None)
        mixed.all_are_alive()


def test_members_are_killed():
    with MixedSet() as mixed:
        pinion = mixed.join(mixed.pinion())

        def kill(victim):
            victim.kill()
            time.sleep(3)
            victim.start()
            mixed.wait_for_state(victim, (1, 2), 60)

        for primary in (pinion, mixed.nodes[0]):
            mixed.hand_over(primary)
            for victim in mixed.nodes:
                under_load(mixed, lambda: kill(victim))
        mixed.all_are_alive()
