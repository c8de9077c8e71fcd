"""Waits for elections in sets whose members stand by themselves only after long, and shows how
members stand to each other."""

import pymongo
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


def follows(members):
    """Whether one member is primary, and the others follow it: what they have is of its term, so
    none has anything to roll back."""
    states, terms = [], set()
    for node in members.nodes:
        try:
            with members.member(node) as client:
                status = client.admin.command("replSetGetStatus")
        except pymongo.errors.PyMongoError:
            return False
        states.append(status["myState"])
        terms.add(status["optimes"]["appliedOpTime"]["t"])
    return sorted(states) == [1] + [2] * (len(members.nodes) - 1) and len(terms) == 1


def print_members(members):
    """What each member knows of the set, and the end of its log."""
    for node in members.nodes:
        try:
            with members.member(node) as client:
                status = client.admin.command("replSetGetStatus")
            fields = ("name", "stateStr", "optime", "lastHeartbeatMessage")
            about = [[member.get(field) for field in fields] for member in status["members"]]
        except pymongo.errors.PyMongoError as error:
            about = error
        print(f"{node.port}: {about}\n" + "".join(node.log[-30:]))
