"""Waits for elections in sets whose members stand by themselves only after long."""

from pinion_node import wait_until


def elected(members):
    """The member that leads, where the one before has just gone or stepped down. A candidate that
    stands at once may be refused by a member that has not noticed yet, so while there is no primary
    the members that are there are asked to stand."""
    alive = [node for node in members.nodes if node.alive()]
    wait_until(lambda: any(map(members.leads, alive)) or any(takes_over(members, node) for node in alive))
    return members.primary()


def takes_over(members, node):
    """Whether this member leads; once it can stand it is asked to."""
    return members.state(node) in (1, 2) and members.steps_up(node)
