"""Random commands that make, list and drop collections and indexes."""

from bson.son import SON

import values

WRONG_KEYS = [SON(), 1, SON([("a", 0)]), SON([("a", "x")]), SON([("", 1)]), SON([("a.", 1)]), SON([("$a", 1)]), SON([("a", 1), ("_id", "hashed")]),
              SON([("_id", 1)]), SON([("_id", -1)]), SON([("a", True)]), SON([("a", 1.5)]), SON([("a", values.Int64(-3))]), SON([("a.$b", 1)])]
OTHER = "other"


class Definitions:
    """No index of version 1 is built over documents: 4.4 ends when one of them has a decimal.

    Needs `self.rng`, `self.collection`, `self.indexed` and the methods of Filters."""

    def indexes(self):
        rng = self.rng
        self.indexed = True
        specs = []
        for _ in range(rng.choice([1, 1, 1, 2])):
            paths = []
            for _ in range(rng.choice([1, 1, 2, 3])):
                found = values.path(rng)
                if found not in paths:
                    paths.append(found)
            key = SON((name, rng.choice([1, 1, -1])) for name in paths)
            spec = SON([("key", key), ("name", "_".join(f"{name}_{direction}" for name, direction in key.items()))])
            if rng.random() < 0.2:
                spec["unique"] = rng.choice([True, True, False, 1])
            if rng.random() < 0.2:
                spec["sparse"] = rng.choice([True, True, False, 1])
            if rng.random() < 0.04:
                spec["key"] = rng.choice(WRONG_KEYS)
            if rng.random() < 0.04:
                name, value = rng.choice([("v", 2), ("v", 0), ("v", 3), ("v", "x"), ("background", True), ("foo", 1), ("name", ""), ("name", "*"),
                                          ("name", "_id_"), ("name", 1), ("name", "a_1"), ("unique", "x"), ("sparse", "x")])
                spec[name] = value
            specs.append(spec)
        return SON([("createIndexes", self.collection), ("indexes", specs)])

    def drop_indexes(self):
        rng = self.rng
        return SON([("dropIndexes", self.collection),
                    ("index", rng.choice(["*", "a_1", "b_1", "nosuch", "_id_", SON([("a", 1)]), SON([("_id", 1)]), ["a_1", "nosuch"], ["a_1"], []]))])

    def definition(self):
        """Anything about collections; `other` is a second one beside that of the program."""
        rng = self.rng
        kind = rng.random()
        name = rng.choice([OTHER, OTHER, self.collection])
        if kind < 0.2:
            return SON([("create", name if rng.random() < 0.8 else rng.choice(["", "$x", "a..b", ".a", "a\0b", "system.x", 1, None]))])
        if kind < 0.3:
            return SON([("drop", OTHER if rng.random() < 0.8 else self.collection)])
        if kind < 0.34:
            return SON([("dropDatabase", rng.choice([1, 1, 1.0, 2, "x"]))])
        if kind < 0.5:
            command = SON([("listIndexes", name)])
            self.maybe(command, "cursor", self.cursor)
            return command
        if kind < 0.7:
            command = SON([("listCollections", rng.choice([1, 1, 1.0, "x"]))])
            self.maybe(command, "filter", lambda: rng.choice([SON([("name", name)]), SON([("type", "collection")]), SON([("name", SON([("$gt", "c")]))]),
                                                              SON([("options", SON())]), SON([("idIndex.name", "_id_")])]))
            self.maybe(command, "nameOnly", lambda: rng.choice([True, False, 1]))
            self.maybe(command, "cursor", self.cursor)
            self.maybe(command, "authorizedCollections", lambda: True, 0.1)
            return command
        if kind < 0.76:
            command = SON([("listDatabases", 1), ("filter", SON([("name", rng.choice(["differ", "nosuch"]))])), ("$db", "admin")])
            self.maybe(command, "nameOnly", lambda: True)
            return command
        if kind < 0.85:
            command = SON([("renameCollection", f"differ.{name}"), ("to", rng.choice(["differ.third", "differ.other", "differ.c", "nodot", "differ.$x"])), ("$db", "admin")])
            self.maybe(command, "dropTarget", lambda: rng.choice([True, False]))
            return command
        return self.statistics()

    def statistics(self):
        rng = self.rng
        command = rng.choice([SON([("dbStats", 1)]), SON([("collStats", self.collection)]), SON([("collStats", "nosuch")]),
                              SON([("dataSize", f"differ.{self.collection}")]), SON([("validate", self.collection)])])
        if next(iter(command)) in ("dbStats", "collStats"):
            self.maybe(command, "scale", lambda: rng.choice([1, 1024, 1.0]))
        return command
