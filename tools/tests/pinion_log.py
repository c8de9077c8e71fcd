"""The lines of a node's log by what they say."""

import itertools

from pinion_node import wait_until

# Of a parameter that no other test changes at the same time: each value stands in one line of the
# log.
MARKS = itertools.count(201)


def lines(node, **wanted):
    """The lines with these values. A thread of its own writes the log, so a line is waited for that
    comes behind all there are."""
    mark = next(MARKS)
    with node.client() as client:
        client.admin.command("setParameter", 1, maxValidateMemoryUsageMB=mark)

    def is_mark(message):
        attributes = message.get("attr", {})
        return attributes.get("parameterName") == "maxValidateMemoryUsageMB" and str(attributes["newValue"]) == str(mark)

    wait_until(lambda: any(map(is_mark, node.messages())))
    return [message for message in node.messages() if all(message.get(key) == value for key, value in wanted.items())]
