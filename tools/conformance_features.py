"""What a conformance test asks of a server beyond the first form of the query surface.

As a plugin of pytest it listens to the driver and notes on each test which features the server refused by name: Pinion never
accepts and ignores a field, option, stage, operator or command that it does not have. As a module it counts tests by folder.
"""

import re

# Codes of a refusal by name: NotImplemented, InvalidOptions-like refusals of operators and stages, CommandNotFound.
REFUSALS = {238, 115, 59}
# The words of a refusal, and what of them names the feature.
NAMES = [
    (re.compile(r"BSON field '[\w$.]*?\.?([\w$]+)' is not supported"), r"\1"),
    (re.compile(r"[Tt]he index option '([\w$]+)' is not supported"), r"index option \1"),
    (re.compile(r"[Tt]he index type '([\w$]+)' is not supported"), r"index type \1"),
    (re.compile(r"no such command: '(\w+)'"), r"command \1"),
    (re.compile(r"[Tt]he aggregation stage (\$\w+) is not supported"), r"stage \1"),
    (re.compile(r"[Tt]he (?:query operator|expression|accumulator|operator|update operator) '?(\$\w+)'? is not supported"), r"operator \1"),
    (re.compile(r"(.{1,60}?)(?: is| are) not supported"), r"\1"),
]
# Refused names that section 5 of the specification has all the same: a test that meets one counts as failed.
OWN = set()


def feature(message):
    """The feature that a refusal names, or None."""
    for pattern, name in NAMES:
        found = pattern.search(message)
        if found:
            return found.expand(name)
    return None


def refused(reply):
    """The features that a reply refuses: as a whole, or for single statements of a batch."""
    errors = [reply] if not reply.get("ok") else reply.get("writeErrors", [])
    names = (feature(str(e.get("errmsg", ""))) for e in errors if e.get("code") in REFUSALS)
    return [name for name in names if name]


def count(tests, folder_of):
    """Counts of tests by folder, the features that failed ones were refused, and the failed tests without such."""
    rows, features, inside = {}, {}, []
    for test in tests:
        if test["outcome"] not in ("passed", "failed", "error"):
            continue
        row = rows.setdefault(folder_of(test["nodeid"]), {"passed": 0, "passed beyond": 0, "beyond": 0, "failed": 0})
        beyond = {p["refused"] for p in test.get("user_properties", []) if "refused" in p} - OWN
        if test["outcome"] == "passed":
            row["passed beyond" if beyond else "passed"] += 1
        elif beyond:
            row["beyond"] += 1
            for name in beyond:
                features[name] = features.get(name, 0) + 1
        else:
            row["failed"] += 1
            inside.append(test["nodeid"])
    return rows, features, sorted(inside)


try:
    import pytest
    from pymongo import monitoring
except ImportError:
    # Read by tools/conformance, whose Python may not have the suite's packages.
    pass
else:
    _seen = []

    class _Listener(monitoring.CommandListener):
        def started(self, event):
            pass

        def succeeded(self, event):
            _seen.extend(refused(event.reply))

        def failed(self, event):
            _seen.extend(refused({"ok": 0, **event.failure}))

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(config):
        # Before the suite makes its clients: a listener hears only clients that are made after it.
        monitoring.register(_Listener())

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(item, nextitem):
        _seen.clear()
        yield

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(item, nextitem):
        item.user_properties += [("refused", name) for name in sorted(set(_seen))]
