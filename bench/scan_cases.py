"""What `scans` measures: its documents, and of each case the command, what counts of its answer,
and the statement that a database of SQL gets in its place."""

import datetime
import random

import bson

DATABASE, COLLECTION = "scans", "documents"
WORDS = "alpha bravo charlie delta echo foxtrot golf hotel india juliet kilo lima mike november oscar papa".split()
FIRST_DAY = datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc)
# Indexes that are there from the beginning.
INDEXES = ["n", "many", "tags"]
# How many documents a case deletes, and inserts again.
REPLACED = 2000


def documents(count):
    """The documents: an indexed number, few and many groups, words, an array, a day of a year, and
    what fills them to 500 bytes."""
    rng = random.Random(1)
    for number in range(count):
        yield {"_id": number, "n": number, "few": rng.randrange(10), "many": rng.randrange(max(count // 10, 1)), "x": rng.random(),
               "key": rng.randrange(count), "day": FIRST_DAY + datetime.timedelta(days=rng.randrange(365)),
               "text": " ".join(rng.choices(WORDS, k=12)), "tags": rng.choices(WORDS, k=4), "fill": "f" * 230}


class Case:
    """A command with what is compared of its answer; a list of commands is one case. `sql` has the
    names of fields in braces, with their types, `{x:double}`, or with a pattern that they match,
    `{text:matches:a.*b}`."""

    def __init__(self, name, commands, answer, sql=None, undo=()):
        self.name, self.answer, self.sql, self.undo = name, answer, sql, list(undo)
        self.commands = commands if isinstance(commands, list) else [commands]
        # Whether its answer is one number, which a statement gives too.
        self.counts = answer is number and sql is not None


def aggregate(*stages):
    return {"aggregate": COLLECTION, "pipeline": list(stages), "cursor": {}}


def find(filter, **options):
    return {"find": COLLECTION, "filter": filter, **options}


def number(server, command):
    return server.ask(command)["n"]


def values(server, command):
    return len(server.ask(command)["values"])


def items(server, command):
    """How many bytes of documents come, in batches that servers make alike."""
    return server.drain(command)


def done(server, command):
    return bool(server.ask(command))


def first(name):
    def value(server, command):
        batch = server.ask(command)["cursor"]["firstBatch"]
        return batch[0][name] if batch else None

    return value


def of_scans(count):
    """Reads of every document."""
    return [
        Case("scan of all documents", find({}), items),
        Case("count by scan", {"count": COLLECTION, "query": {"x": {"$lt": 0.5}}}, number,
             "SELECT count(*) FROM documents WHERE {x:double} < 0.5"),
        Case("count by scan, as a pipeline", aggregate({"$match": {"x": {"$lt": 0.5}}}, {"$count": "c"}), first("c")),
        Case("all counted", aggregate({"$count": "c"}), first("c"), "SELECT count(*) FROM documents"),
        Case("distinct by scan", {"distinct": COLLECTION, "key": "few"}, values, "SELECT DISTINCT {few:bigint} FROM documents"),
        Case("unanchored regex", {"count": COLLECTION, "query": {"text": {"$regex": "oscar.*papa"}}}, number,
             "SELECT count(*) FROM documents WHERE {text:matches:oscar.*papa}"),
        Case("$match, $project", aggregate({"$match": {"few": 3}}, {"$project": {"y": {"$multiply": ["$x", 2]}}}), items,
             "SELECT {_id:bigint}, {x:double} * 2 FROM documents WHERE {few:bigint} = 3"),
        Case("$sort, $limit 10", aggregate({"$sort": {"key": 1, "_id": 1}}, {"$limit": 10}), items,
             "SELECT * FROM documents ORDER BY {key:bigint}, {_id:bigint} LIMIT 10"),
        Case("$sort of all, $project", aggregate({"$sort": {"key": 1}}, {"$skip": count - 10}, {"$project": {"key": 1}}), items,
             "SELECT {_id:bigint}, {key:bigint} FROM documents ORDER BY 2 OFFSET " + str(count - 10)),
    ]


def of_groups(_):
    month = {"year": {"$year": "$day"}, "month": {"$month": "$day"}}
    total = {"$sum": "$x"}
    return [
        Case("$group, sum and avg, 10 groups", aggregate({"$group": {"_id": "$few", "sum": total, "avg": {"$avg": "$x"}}}), items,
             "SELECT {few:bigint}, sum({x:double}), avg({x:double}) FROM documents GROUP BY 1"),
        Case("$group, a group for each ten", aggregate({"$group": {"_id": "$many", "sum": total, "most": {"$max": "$n"}}}), items,
             "SELECT {many:bigint}, sum({x:double}), max({n:bigint}) FROM documents GROUP BY 1"),
        Case("$match, $group", aggregate({"$match": {"x": {"$lt": 0.3}}}, {"$group": {"_id": "$few", "sum": {"$sum": "$n"}}}), items,
             "SELECT {few:bigint}, sum({n:bigint}) FROM documents WHERE {x:double} < 0.3 GROUP BY 1"),
        Case("$group by month", aggregate({"$group": {"_id": month, "count": {"$sum": 1}}}), items,
             "SELECT date_trunc('month', {day:timestamp}), count(*) FROM documents GROUP BY 1"),
        Case("$unwind, $group", aggregate({"$unwind": "$tags"}, {"$group": {"_id": "$tags", "count": {"$sum": 1}}}), items,
             "SELECT tag, count(*) FROM {tags:unwound} GROUP BY 1"),
        Case("$facet of two groups", aggregate({"$facet": {
            "few": [{"$group": {"_id": "$few", "sum": total}}], "tags": [{"$unwind": "$tags"}, {"$sortByCount": "$tags"}]}}), items),
    ]


def of_indexes(count):
    low, high = count // 10, count // 10 * 9
    rng = random.Random(2)
    some = sorted(rng.sample(range(max(count // 10, 1)), min(100, max(count // 10, 1))))
    return [
        Case("count from an index range", {"count": COLLECTION, "query": {"n": {"$gte": low, "$lt": high}}}, number),
        Case("covered count", {"count": COLLECTION, "query": {"n": {"$gte": low, "$lt": low + count // 10}}}, number),
        Case("distinct from an index", {"distinct": COLLECTION, "key": "many"}, values),
        Case("find by an index", find({"n": {"$gte": low, "$lt": low + count // 5}}), items),
        Case("find in 100 values", find({"many": {"$in": some}}), items),
        Case("find in an array's index", find({"tags": "golf", "few": {"$lt": 2}}), items),
        Case("range in order, limit 100", [find({"n": {"$gte": rng.randrange(count)}}, sort={"n": 1}, limit=100) for _ in range(100)], items),
        Case("$lookup by _id", aggregate({"$match": {"n": {"$lt": 1000}}}, {"$lookup": {
            "from": COLLECTION, "localField": "key", "foreignField": "_id", "as": "found"}}, {"$match": {"found.few": 3}}), items),
    ]


def writes(count):
    of_few = [{"q": {"few": {"$lt": 2}}, "u": {"$inc": {"counter": 1}}, "multi": True}]
    gone = list(range(0, min(REPLACED, count)))
    back = [document for document, _ in zip(documents(count), gone)]
    return [
        Case("update_many", {"update": COLLECTION, "updates": of_few}, number),
        Case(f"delete and insert {REPLACED:,}", [
            {"delete": COLLECTION, "deletes": [{"q": {"_id": {"$lt": len(gone)}}, "limit": 0}]}, {"insert": COLLECTION, "documents": back}], number),
        Case("index build", {"createIndexes": COLLECTION, "indexes": [{"key": {"key": 1, "few": 1}, "name": "built"}]}, done,
             undo=[{"dropIndexes": COLLECTION, "index": "built"}]),
    ]


def reads(count):
    """All that change nothing."""
    return [*of_scans(count), *of_groups(count), *of_indexes(count)]


def message_of_key(name):
    return {"key": {name: 1}, "name": name}


def as_json(document):
    """The document in the form that databases of SQL are loaded with."""
    return {**document, "day": document["day"].strftime("%Y-%m-%d %H:%M:%S")}


def encoded(command):
    # The command's name comes first.
    return bson.encode({**command, "$db": command.get("$db", DATABASE)})
