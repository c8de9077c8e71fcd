"""Random programs: lists of commands on one database, chosen so that both servers have one right
answer.

Natural order is `_id` order in Pinion and insertion order in MongoDB. Programs therefore insert in
ascending `_id` order, sort by `_id` last where a limit could choose, and let a single update or
delete pick among several documents only where no secondary index could offer them in another order.
"""

import random

from bson.son import SON

import server_commands
import spoil
import values
from definitions import Definitions
from reads import Reads
from writes import Writes

COLLECTION = "c"
WRONG = [1, "x", True, None, [], SON(), 1.5, values.Int64(7), [1], SON([("x", 1)]), -1]
SERVER_COMMANDS = server_commands.commands()
# Spoiled commands that change documents stand at the end of a program, where what only one server
# did hides nothing.
LATE = {"insert", "update", "delete", "findAndModify"}


class Generator(Reads, Writes, Definitions):
    """Makes the program of one seed."""

    def __init__(self, seed):
        self.seed = seed
        self.rng = random.Random(seed)
        self.collection = COLLECTION
        self.indexed = False
        self.next_id = 0
        self.numeric_ids = True

    def program(self):
        rng = self.rng
        count = rng.choice([1, 3, 6, 10])
        ids = values.ids(rng, count)
        self.numeric_ids = ids == list(range(count))
        self.next_id = count
        commands = []
        if rng.random() < 0.3:
            commands.append(self.indexes())
        documents = [SON([("_id", key), *values.document(rng, 3).items()]) for key in ids]
        for document in documents:
            if rng.random() < 0.5:
                document["a"] = values.value(rng, 2)
        commands.append(SON([("insert", COLLECTION), ("documents", documents), ("ordered", rng.random() < 0.7)]))
        if rng.random() < 0.3:
            commands.append(self.indexes())
        for _ in range(rng.choice([3, 6, 10])):
            commands += self.step()
        commands.append(SERVER_COMMANDS[self.seed % len(SERVER_COMMANDS)])
        for _, command in sorted(spoil.of_program(self.seed), key=lambda item: next(iter(item[1])) in LATE):
            commands.append(command)
        return commands

    def step(self):
        kind = self.rng.random()
        if kind < 0.03:
            return self.continued()
        return [self.command()]

    def command(self):
        kind = self.rng.random()
        if kind < 0.27:
            command = self.find()
        elif kind < 0.50:
            command = self.update()
        elif kind < 0.56:
            command = self.delete()
        elif kind < 0.62:
            command = self.insert()
        elif kind < 0.69:
            command = self.find_and_modify()
        elif kind < 0.73:
            command = self.count()
        elif kind < 0.77:
            command = self.distinct()
        elif kind < 0.86:
            command = self.aggregate()
        elif kind < 0.90:
            return self.explain()
        elif kind < 0.93:
            return self.indexes()
        elif kind < 0.95:
            return self.drop_indexes()
        else:
            return self.definition()
        return self.mixed_up(command) if self.rng.random() < 0.04 else command

    def mixed_up(self, command):
        """A random field taken away, given another value, or one that the command does not have."""
        rng = self.rng
        names = list(command)
        kind = rng.random()
        if kind < 0.25:
            command[rng.choice(["foo", "Filter", "limits"])] = 1
        elif kind < 0.35 and len(names) > 1:
            del command[rng.choice(names[1:])]
        elif kind < 0.8:
            command[rng.choice(names[1:] or names)] = rng.choice(WRONG)
        else:
            command[rng.choice(["batchSize", "limit", "skip", "hint", "ordered", "upsert", "sort", "let", "comment", "maxTimeMS"])] = rng.choice(WRONG)
        if command.get("maxTimeMS") in (1, 7) and not isinstance(command["maxTimeMS"], bool):
            # Whether so short a time is over is not for both servers alike.
            command["maxTimeMS"] = 60_000
        return command
