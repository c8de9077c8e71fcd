"""Window functions, densified and filled sequences, buckets and samples, as a user meets them."""

import datetime
import itertools
import math
import random
import statistics

import pytest
from pymongo.errors import OperationFailure

DAY = datetime.timedelta(days=1)
START = datetime.datetime(2024, 1, 1)


@pytest.fixture
def sales(collection):
    """Sales of three shops, on days with gaps."""
    rng = random.Random(5)
    days = {shop: sorted(rng.sample(range(60), 40)) for shop in "abc"}
    documents = [
        {"shop": shop, "day": START + day * DAY, "n": rng.randrange(100)} for shop in days for day in days[shop]
    ]
    rng.shuffle(documents)
    collection.insert_many({"_id": i, **document} for i, document in enumerate(documents))
    return collection


def windows(collection, output, sort={"day": 1}, **more):
    stage = {"partitionBy": "$shop", "sortBy": sort, "output": output, **more}
    return list(collection.aggregate([{"$setWindowFields": stage}]))


def by_shop(documents):
    return {shop: list(group) for shop, group in itertools.groupby(documents, key=lambda d: d["shop"])}


def test_windows_of_documents_and_of_days(sales):
    found = windows(
        sales,
        {
            "running": {"$sum": "$n", "window": {"documents": ["unbounded", "current"]}},
            "around": {"$push": "$n", "window": {"documents": [-2, 1]}},
            "week": {"$max": "$n", "window": {"range": [-6, 0], "unit": "day"}},
            "median": {"$median": {"input": "$n", "method": "approximate"}},
            "number": {"$documentNumber": {}},
            "before": {"$shift": {"output": "$n", "by": -1, "default": "none"}},
        },
    )
    assert len(found) == 120
    shops = by_shop(found)
    assert list(shops) == ["a", "b", "c"]
    for documents in shops.values():
        numbers = [document["n"] for document in documents]
        assert [d["day"] for d in documents] == sorted(d["day"] for d in documents)
        for at, document in enumerate(documents):
            assert document["running"] == sum(numbers[: at + 1])
            assert document["around"] == numbers[max(at - 2, 0) : at + 2]
            week = [d["n"] for d in documents if document["day"] - 6 * DAY <= d["day"] <= document["day"]]
            assert document["week"] == max(week)
            assert document["median"] == statistics.median_low(numbers)
            assert document["number"] == at + 1
            assert document["before"] == (numbers[at - 1] if at else "none")


def test_ranks(collection):
    collection.insert_many({"_id": i, "shop": "a", "n": n} for i, n in enumerate([7, 9, 9, 10, None]))
    collection.insert_one({"_id": 5, "shop": "a"})
    found = windows(collection, {"rank": {"$rank": {}}, "dense": {"$denseRank": {}}}, {"n": 1})
    assert [(d["_id"], d["rank"], d["dense"]) for d in found] == [
        (4, 1, 1),
        (5, 1, 1),
        (0, 3, 2),
        (1, 4, 3),
        (2, 4, 3),
        (3, 6, 4),
    ]


def test_many_documents_in_one_partition(collection):
    """A window that moves costs as much for each document, however wide it is."""
    count = 20_000
    collection.insert_many({"_id": i, "v": i % 1000} for i in range(count))
    wide = {"documents": [-5000, 0]}
    output = {
        "sum": {"$sum": "$v", "window": wide},
        "min": {"$min": "$v", "window": wide},
        "deviation": {"$stdDevPop": "$v", "window": wide},
        "p": {"$percentile": {"input": "$v", "p": [0.9], "method": "approximate"}, "window": wide},
    }
    stage = {"$setWindowFields": {"sortBy": {"_id": 1}, "output": output}}
    last = list(collection.aggregate([stage, {"$match": {"_id": count - 1}}]))[0]
    held = [i % 1000 for i in range(count - 5001, count)]
    assert last["sum"] == sum(held) and last["min"] == 0
    assert math.isclose(last["deviation"], statistics.pstdev(held))
    assert last["p"] == [sorted(held)[math.ceil(0.9 * len(held)) - 1]]


def test_gaps_are_filled(sales):
    pipeline = [
        {"$match": {"shop": "a"}},
        {
            "$densify": {
                "field": "day",
                "partitionByFields": ["shop"],
                "range": {"step": 1, "unit": "day", "bounds": [START, START + 60 * DAY]},
            }
        },
        {"$fill": {"sortBy": {"day": 1}, "output": {"n": {"method": "locf"}, "_id": {"value": "made"}}}},
    ]
    found = list(sales.aggregate(pipeline))
    assert [d["day"] for d in found] == [START + day * DAY for day in range(60)]
    assert sum(d["_id"] == "made" for d in found) == 20
    given = {d["day"]: d["n"] for d in sales.find({"shop": "a"})}
    last = None
    for document in found:
        last = given.get(document["day"], last)
        assert document["n"] == last


def test_buckets(sales):
    found = list(sales.aggregate([{"$bucketAuto": {"groupBy": "$n", "buckets": 5}}]))
    numbers = sorted(d["n"] for d in sales.find())
    assert sum(bucket["count"] for bucket in found) == 120 and len(found) <= 5
    for bucket, after in itertools.pairwise(found):
        assert bucket["_id"]["max"] == after["_id"]["min"]
    for bucket in found[:-1]:
        limits = bucket["_id"]
        assert bucket["count"] == sum(limits["min"] <= n < limits["max"] for n in numbers)


def test_the_best_of_each_group(sales):
    best = {"n": 2, "sortBy": {"n": -1, "_id": 1}, "output": ["$n", "$_id"]}
    group = {"_id": "$shop", "best": {"$topN": best}, "last": {"$lastN": {"n": 3, "input": "$n"}}}
    found = {d["_id"]: d for d in sales.aggregate([{"$sort": {"day": 1}}, {"$group": group}])}
    for shop in "abc":
        documents = sorted(sales.find({"shop": shop}), key=lambda d: (-d["n"], d["_id"]))
        assert found[shop]["best"] == [[d["n"], d["_id"]] for d in documents[:2]]
        documents.sort(key=lambda d: d["day"])
        assert found[shop]["last"] == [d["n"] for d in documents[-3:]]


def test_random_numbers(sales):
    found = list(sales.aggregate([{"$project": {"a": {"$rand": {}}, "b": {"$rand": {}}}}]))
    numbers = {d[name] for d in found for name in "ab"}
    assert len(numbers) == 240 and all(0 <= number < 1 for number in numbers)
    sampled = sales.count_documents({"$sampleRate": 0.5})
    assert 20 < sampled < 100


def test_samples(sales):
    sampled = [[d["_id"] for d in sales.aggregate([{"$sample": {"size": 10}}])] for _ in range(2)]
    assert all(len(set(ids)) == 10 for ids in sampled)
    assert sampled[0] != sampled[1]
    both = {name: [{"$sample": {"size": 500}}, {"$project": {"_id": 1}}] for name in "ab"}
    [found] = sales.aggregate([{"$match": {"shop": "a"}}, {"$facet": both}])
    a, b = ([d["_id"] for d in found[name]] for name in "ab")
    assert sorted(a) == sorted(b) and len(set(a)) == 40 and a != b


def test_errors_name_what_is_wrong(sales):
    for output, code in [
        ({"r": {"$sum": "$n", "window": {"documents": [1, -1]}}}, 5339900),
        ({"r": {"$sum": "$n", "window": {"range": [-1, 1]}}}, 5429413),
        ({"r": {"$rank": {}, "window": {}}}, 5371601),
    ]:
        with pytest.raises(OperationFailure) as failed:
            windows(sales, output)
        assert failed.value.code == code
