"""Random writes while the members of a mixed set change their roles, are killed, and come and go:
whenever it is quiet, all members have the same documents, collections and indexes.
`PINION_MIXED_SEEDS` says how many seeds, `PINION_MIXED_FIRST` from which one on."""

import os
import random
import time

import pymongo
import pytest

from mixed_load import RandomLoad
from mixed_set import MixedSet

pytestmark = pytest.mark.skipif("PINION_MONGOD" not in os.environ, reason="PINION_MONGOD does not name the folder with mongod")
FIRST = int(os.environ.get("PINION_MIXED_FIRST", 1))
SEEDS = range(FIRST, FIRST + int(os.environ.get("PINION_MIXED_SEEDS", 2)))
STEPS = 6


def kill(mixed, rng):
    victim = rng.choice(mixed.nodes)
    victim.kill()
    time.sleep(rng.choice([0.2, 3]))
    victim.start()
    mixed.wait_for_state(victim, (1, 2), 60)


def step_down(mixed, _):
    with mixed.member(mixed.primary()) as client:
        try:
            client.admin.command("replSetStepDown", 8, secondaryCatchUpPeriodSecs=5)
        except pymongo.errors.PyMongoError:
            # It closes the connection, or no member has caught up.
            pass


def join(mixed, rng):
    """Gives the new member, which is to leave again."""
    return mixed.join(rng.choice([mixed.pinion, mixed.mongod])(), priority=0, votes=0)


@pytest.mark.parametrize("seed", SEEDS)
def test_members_are_alike_whatever_their_roles(seed):
    rng = random.Random(seed)
    with MixedSet() as mixed:
        mixed.join(mixed.pinion())
        steps = [
            kill, step_down, join,
            lambda mixed, rng: mixed.hand_over(rng.choice(mixed.nodes)),
            lambda mixed, rng: mixed.hand_over(mixed.nodes[-1]),
        ]
        for _ in range(STEPS):
            with RandomLoad(mixed.uri, rng) as load:
                time.sleep(2)
                newest = rng.choice(steps)(mixed, rng)
                time.sleep(2)
            assert sum(load.done.values()) > 5, load.done
            mixed.wait_alike()
            if newest is not None:
                mixed.leave(newest)
        mixed.all_are_alive()
