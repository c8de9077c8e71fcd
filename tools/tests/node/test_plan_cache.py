"""The plan cache and index filters: which plans are kept, when they are used, and what commands
change of them."""

import pytest
from pymongo.errors import OperationFailure


@pytest.fixture
def c(client, request):
    name = f"plans_{request.node.name}"[:60]
    client.drop_database(name)
    c = client[name].c
    c.insert_many([{"_id": i, "a": i % 2, "b": i, "s": f"x{i}"} for i in range(400)])
    c.create_index("a")
    c.create_index("b")
    return c


def cached(c):
    return list(c.aggregate([{"$planCacheStats": {}}]))


def plan(c, filter, **options):
    command = {"find": c.name, "filter": filter, **options}
    return c.database.command("explain", command, verbosity="queryPlanner")["queryPlanner"]


def index_of(plan):
    while "inputStage" in plan:
        plan = plan["inputStage"]
    return plan.get("indexName", plan["stage"])


def test_a_trial_finds_the_better_plan(c):
    query = {"a": 1, "b": 17}
    reported = plan(c, query)
    assert index_of(reported["winningPlan"]) == "b_1" and reported["winningPlan"]["isCached"] is False
    assert [index_of(rejected) for rejected in reported["rejectedPlans"]] == ["a_1"]
    assert cached(c) == [], "explain keeps nothing"
    assert [found["_id"] for found in c.find(query)] == [17]
    (entry,) = cached(c)
    assert not entry["isActive"] and entry["works"] > 0 and entry["version"] == "1"
    assert entry["createdFromQuery"] == {"query": query, "sort": {}, "projection": {}}
    assert index_of(entry["cachedPlan"]) == "b_1" and len(entry["creationExecStats"]) == 2
    assert entry["candidatePlanScores"] == sorted(entry["candidatePlanScores"], reverse=True)
    assert (entry["planCacheShapeHash"], entry["planCacheKey"]) == (reported["planCacheShapeHash"], reported["planCacheKey"])
    assert entry["queryHash"] == entry["planCacheShapeHash"] != entry["planCacheKey"]
    assert entry["estimatedSizeBytes"] > 0 and "host" in entry and entry["indexFilterSet"] is False


def test_the_second_trial_activates(c):
    for value in (17, 19, 21):
        assert [found["_id"] for found in c.find({"a": 1, "b": value})] == [value]
    (entry,) = cached(c)
    assert entry["isActive"] and entry["createdFromQuery"]["query"] == {"a": 1, "b": 19}
    assert [found["_id"] for found in c.find({"a": 1, "b": 3})] == [3]
    assert len(list(c.find({"a": 1, "b": {"$gt": 3}}))) == 198
    assert len(cached(c)) == 2, "another shape"


def test_what_has_no_choice_is_not_cached(c):
    list(c.find({"a": 1}))
    list(c.find({"_id": 1, "a": 1, "b": 1}))
    list(c.find({"a": 1, "b": 1}, hint="a_1"))
    list(c.find({"s": "x1"}))
    assert cached(c) == []


@pytest.mark.parametrize("change", ["create", "drop", "hide", "collection"])
def test_changes_of_indexes_forget_plans(c, change):
    list(c.find({"a": 1, "b": 17}))
    assert len(cached(c)) == 1
    if change == "create":
        c.create_index("s")
    elif change == "drop":
        c.drop_index("a_1")
    elif change == "hide":
        c.database.command("collMod", "c", index={"name": "a_1", "hidden": True})
    else:
        c.drop()
        c.insert_one({"_id": 1})
    assert cached(c) == []


def test_clear(c):
    for query in ({"a": 1, "b": 1}, {"a": 1, "b": {"$gt": 1}}):
        list(c.find(query))
    list(c.find({"a": 1, "b": 1}, sort=[("b", 1)]))
    assert len(cached(c)) == 3
    c.database.command("planCacheClear", "c", query={"a": 0, "b": 0})
    assert len(cached(c)) == 2
    with pytest.raises(OperationFailure, match="sort, projection, or collation provided without query"):
        c.database.command("planCacheClear", "c", sort={"a": 1})
    c.database.command("planCacheClear", "c", query={"a": 0, "b": 0}, sort={"b": 1})
    assert len(cached(c)) == 1
    c.database.command("planCacheClear", "c")
    assert cached(c) == []
    c.database.command("planCacheClear", "nothing", query=5)


def filters(c):
    return c.database.command("planCacheListFilters", c.name)["filters"]


def test_index_filters_restrict_and_win_over_hints(c):
    query = {"a": 1, "b": 17}
    list(c.find(query))
    c.database.command("planCacheSetFilter", "c", query={"a": 5, "b": 6}, indexes=["a_1"])
    assert cached(c) == []
    for options in ({}, {"hint": "b_1"}, {"hint": {"$natural": 1}}, {"hint": "none"}):
        reported = plan(c, query, **options)
        assert reported["indexFilterSet"] is True and reported["rejectedPlans"] == []
        assert index_of(reported["winningPlan"]) == "a_1"
        assert [found["_id"] for found in c.find(query, **options)] == [17]
    reported = plan(c, {"a": 1, "b": {"$gt": 17}})
    assert reported["indexFilterSet"] is False and len(reported["rejectedPlans"]) == 1
    assert filters(c) == [
        {"query": {"a": 5, "b": 6}, "sort": {}, "projection": {}, "indexes": ["a_1"]}]
    c.database.command("planCacheSetFilter", "c", query={"a": 5, "b": 6}, indexes=[{"s": 1}, {"b": 1}, "b_1", {"b": 1}])
    assert index_of(plan(c, query)["winningPlan"]) == "b_1"
    (set_,) = filters(c)
    assert set_["indexes"] == [{"b": 1}, {"s": 1}, "b_1"]
    c.database.command("planCacheSetFilter", "c", query={"a": 5, "b": 6}, indexes=["gone"])
    assert index_of(plan(c, query)["winningPlan"]) == "COLLSCAN"
    c.database.command("planCacheClearFilters", "c", query={"a": 0, "b": 0})
    assert filters(c) == [] and plan(c, query)["indexFilterSet"] is False


def test_index_filters_are_of_sort_projection_and_collation(c):
    command = c.database.command
    command("planCacheSetFilter", "c", query={"a": 1, "b": 1}, sort={"b": 1}, indexes=["a_1"])
    command("planCacheSetFilter", "c", query={"a": 1, "b": 1}, projection={"b": 1}, indexes=["a_1"])
    command("planCacheSetFilter", "c", query={"a": 1, "b": 1}, collation={"locale": "fr"}, indexes=["a_1"])
    assert len(filters(c)) == 3
    assert plan(c, {"a": 0, "b": 7})["indexFilterSet"] is False
    assert plan(c, {"a": 0, "b": 7}, sort={"b": 1})["indexFilterSet"] is True
    assert plan(c, {"a": 0, "b": 7}, sort={"b": -1})["indexFilterSet"] is False
    assert plan(c, {"a": 0, "b": 7}, projection={"b": 1})["indexFilterSet"] is True
    assert plan(c, {"a": 0, "b": 7}, collation={"locale": "fr"})["indexFilterSet"] is True
    c.rename("d", dropTarget=True)
    assert len(filters(c.database.d)) == 3, "they go with the collection"
    c.database.d.drop()
    c.database.create_collection("d")
    assert filters(c.database.d) == []


def test_writes_use_index_filters(c):
    c.database.command("planCacheSetFilter", "c", query={"a": 1, "b": 1}, indexes=["a_1"])
    reported = c.database.command("explain", {"update": "c", "updates": [{"q": {"a": 1, "b": 17}, "u": {"$set": {"t": 1}}}]})
    assert reported["queryPlanner"]["indexFilterSet"] is True
    assert c.update_one({"a": 1, "b": 17}, {"$set": {"t": 1}}).modified_count == 1


@pytest.mark.parametrize("fields,code", [
    ({"query": {"a": 1}}, 2), ({"indexes": ["a_1"]}, 2), ({"query": 1, "indexes": ["a_1"]}, 2),
    ({"query": {"a": 1}, "indexes": []}, 2), ({"query": {"a": 1}, "indexes": [{}]}, 2),
    ({"query": {"a": 1}, "indexes": [1]}, 2), ({"query": {"a": 1}, "indexes": ["a_1"], "sort": 1}, 2),
    ({"query": {"a": 1}, "indexes": ["a_1"], "collation": {}}, 2),
    ({"query": {"a": 1}, "indexes": ["a_1"], "collation": {"strength": 1}}, 40414),
    ({"query": {"$nope": 1}, "indexes": ["a_1"]}, 2),
])
def test_mistakes(c, fields, code):
    with pytest.raises(OperationFailure) as refused:
        c.database.command("planCacheSetFilter", "c", **fields)
    assert refused.value.code == code
    assert filters(c) == []


def test_views_and_absent_collections(c):
    db = c.database
    db.command("create", "v", viewOn="c", pipeline=[])
    for command in ("planCacheClear", "planCacheSetFilter", "planCacheClearFilters", "planCacheListFilters"):
        with pytest.raises(OperationFailure) as refused:
            db.command(command, "v", query={"a": 1}, indexes=["a_1"])
        assert refused.value.code == 166
    with pytest.raises(OperationFailure, match="no such collection"):
        db.command("planCacheSetFilter", "nothing", query={"a": 1}, indexes=["a_1"])
    assert db.command("planCacheListFilters", "nothing")["filters"] == []
    db.command("planCacheClearFilters", "nothing", query=1, sort=2)


def test_a_plan_that_disappoints_is_tried_again(c):
    """A plan that is cached for a rare value takes far more than it promised for a frequent one."""
    c.insert_many([{"_id": 1000 + i, "a": 7, "b": 1000 + i} for i in range(3000)])
    for _ in range(2):
        list(c.find({"a": 9, "b": {"$gte": 0}}))
    active = [entry["isActive"] for entry in cached(c)]
    assert active == [True]
    assert len(list(c.find({"a": 7, "b": {"$gte": 3999}}))) == 1
    assert [entry["isActive"] for entry in cached(c)] == [False]
    reported = plan(c, {"a": 7, "b": {"$gte": 3999}})
    assert index_of(reported["winningPlan"]) == "b_1"
