"""Faults of the processes of a set or a cluster: killed, stopped, cut from others, stepped down."""

import os
import shutil
import subprocess
import threading
import time

# Processes are users of their own, by which packets are distinguished.
FIRST_USER = 41_000
FAULTS = ["kill", "stop", "cut", "step-down"]


def can_cut():
    """Whether links can be cut here, which needs root and iptables."""
    return os.geteuid() == 0 and shutil.which("iptables") is not None


def separate_user(node, at):
    """Makes a process that does not run yet a user of its own, by its number among all."""
    node.user = FIRST_USER + at
    os.chown(node.directory, node.user, -1)


class Links:
    """What processes send to each other, while it is cut for one of them."""

    def __init__(self, nodes):
        self.nodes = nodes
        self.rules = []

    def cut(self, struck):
        for node in self.nodes:
            if node is not struck:
                self.drop(struck, node)
                self.drop(node, struck)

    def drop(self, sender, receiver):
        """Drops what one sends to the port of the other."""
        packets = f"-p tcp -m owner --uid-owner {sender.user} --dport {receiver.port}"
        rule = ["OUTPUT", *packets.split(), "-j", "DROP"]
        subprocess.run(["iptables", "-w", "-I", *rule], check=True)
        self.rules.append(rule)

    def heal(self):
        while self.rules:
            subprocess.run(["iptables", "-w", "-D", *self.rules.pop()], check=True)


def strike(members, links, fault, node):
    """Does it, and returns what makes it good again."""
    if fault == "kill":
        node.kill()
        return node.start
    if fault == "stop":
        node.suspend()
        return lambda: node.resume()
    if fault == "cut":
        links.cut(node)
        return links.heal
    with members.member(node) as client:
        client.admin.command("replSetStepDown", 10, secondaryCatchUpPeriodSecs=5)
    return lambda: None


class Faults:
    """When processes were struck, and when they were good again."""

    # Packets and requests that waited for the end of a fault have arrived so long after it at the
    # earliest; a retransmission comes up to as late again as the link was cut.
    GRACE_SECS = 5

    def __init__(self):
        self.lock = threading.Lock()
        self.all = []

    def began(self):
        """Notes a fault, and returns what is called when it is over."""
        fault = [time.monotonic(), None]
        with self.lock:
            self.all.append(fault)

        def healed():
            fault[1] = time.monotonic()

        return healed

    def are_settled(self, since, until):
        """Whether nothing is on its way any more that was sent between two moments."""
        now = time.monotonic()
        with self.lock:
            of_time = [
                fault
                for fault in self.all
                if fault[0] <= until and (fault[1] is None or fault[1] >= since)
            ]
        return all(
            healed is not None and now >= healed + max(self.GRACE_SECS, healed - began)
            for began, healed in of_time
        )
