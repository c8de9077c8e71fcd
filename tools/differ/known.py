"""Differences that are meant, each with its reason. Every entry is a fact about MongoDB 7.0 or about Pinion's design."""

# Codes whose message MongoDB has not changed between 4.4 and 7.0.
SAME_MESSAGE = {11000}


def message_counts(error):
    """Whether the text of this error must be equal too."""
    return error.get("code") in SAME_MESSAGE


def reason(command, a, b):
    """Why this difference between a (Pinion) and b (MongoDB 4.4) is meant, or None."""
    for why, applies in RULES:
        if applies(command, a, b):
            return why
    return None


def diverged(command, a, b):
    """Whether the data may differ from here on, because one server carried out what the other refused."""
    return next(iter(command)) not in ("find", "count", "distinct", "aggregate", "listIndexes", "explain")


RULES = []
