"""Accounts between which clients move money in transactions, and auditors that watch that it never
becomes more or less."""

import random
import threading
import time

from pymongo import ReadPreference, WriteConcern
from pymongo.errors import PyMongoError
from pymongo.read_concern import ReadConcern

ACCOUNTS = 12
BALANCE = 100
MAJORITY = WriteConcern("majority")
# Longer than an election, or a client would never hear of its commit again.
SOCKET_TIMEOUT_MS = 30_000


def ignore(_):
    """What is done with errors unless a campaign looks at them."""


def accounts_of(group, groups):
    """The accounts of one group, which a transaction does not leave."""
    return range(group * ACCOUNTS // groups, (group + 1) * ACCOUNTS // groups)


class Teller(threading.Thread):
    """Moves money between two accounts of a group, and notes it in the ledger, all in one
    transaction. Where there are several groups it looks at an account of another one, too."""

    def __init__(self, members, number, groups=1):
        super().__init__(daemon=True)
        self.client = members.client(socketTimeoutMS=SOCKET_TIMEOUT_MS)
        self.number, self.groups = number, groups
        self.random = random.Random(number)
        self.acknowledged = []
        # When one was acknowledged: (seconds, how long it took).
        self.times = []
        self.attempts = 0
        # Called with each error.
        self.note = ignore
        self.ended = threading.Event()

    def run(self):
        bank = self.client.bank
        at = 0
        with self.client.start_session() as session:
            while not self.ended.is_set():
                began = time.monotonic()
                key = f"{self.number}-{at}"
                at += 1
                group = at % self.groups
                giver, taker = self.random.sample(accounts_of(group, self.groups), 2)
                amount = self.random.randint(1, 9)

                def move(session):
                    self.attempts += 1
                    if self.groups > 1:
                        other = accounts_of((group + 1) % self.groups, self.groups)[0]
                        if bank.accounts.find_one({"_id": other}, session=session) is None:
                            self.note(AssertionError(f"the account {other} is not there"))
                    bank.accounts.update_one({"_id": giver}, {"$inc": {"n": -amount}}, session=session)
                    bank.accounts.update_one({"_id": taker}, {"$inc": {"n": amount}}, session=session)
                    entry = {"_id": key, "group": group, "giver": giver, "taker": taker, "n": amount}
                    bank.ledger.insert_one(entry, session=session)

                try:
                    session.with_transaction(move, write_concern=MAJORITY)
                except PyMongoError as error:
                    # Whether it has taken place is unknown.
                    self.note(error)
                    continue
                self.acknowledged.append(key)
                now = time.monotonic()
                self.times.append((now, now - began))


class Auditor(threading.Thread):
    """Counts all money, in transactions and in snapshots of whatever member."""

    def __init__(self, members, number):
        super().__init__(daemon=True)
        self.client = members.client(socketTimeoutMS=SOCKET_TIMEOUT_MS)
        self.in_transaction = number % 2 == 0
        self.counted = 0
        self.problems = []
        # Called with what is wrong, and with each error.
        self.report, self.note = self.problems.append, ignore
        self.ended = threading.Event()

    def run(self):
        anywhere = self.client.bank.get_collection("accounts", read_preference=ReadPreference.NEAREST)
        while not self.ended.is_set():
            try:
                # A session of snapshots stays at the time of its first read.
                with self.client.start_session(snapshot=not self.in_transaction) as session:
                    if self.in_transaction:
                        session.with_transaction(self.count_twice, read_concern=ReadConcern("snapshot"))
                    else:
                        self.check(account["n"] for account in anywhere.find({}, batch_size=5, session=session))
                self.counted += 1
            except PyMongoError as error:
                self.note(error)
                time.sleep(0.05)

    def count_twice(self, session):
        accounts = self.client.bank.accounts
        self.check(account["n"] for account in accounts.find({}, batch_size=5, session=session))
        group = {"$group": {"_id": None, "n": {"$sum": "$n"}}}
        self.check(total["n"] for total in accounts.aggregate([group], session=session))

    def check(self, numbers):
        numbers = list(numbers)
        if sum(numbers) != ACCOUNTS * BALANCE:
            where = "a transaction" if self.in_transaction else "a snapshot"
            self.report(f"{where} counts {sum(numbers)} in {numbers} after {self.counted} counts")


class Bank:
    """While it is entered, money is moved and counted. `problems` is what was wrong, in the end."""

    def __init__(self, members, tellers=4, auditors=2, groups=1):
        """Money stays within each of the groups of accounts."""
        self.members = members
        with members.client() as client:
            bank = client.get_database("bank", write_concern=MAJORITY)
            self.make(bank)
            accounts = [{"_id": at, "n": BALANCE} for at in range(ACCOUNTS)]
            with client.start_session() as session:
                bank.accounts.insert_many(accounts, session=session)
                # When they were there.
                self.made = (session.operation_time, session.cluster_time)
                members.wait_snapshots(session)
        self.tellers = [Teller(members, number, groups) for number in range(tellers)]
        self.auditors = [Auditor(members, number) for number in range(auditors)]
        for thread in self.tellers + self.auditors:
            self.hear(thread.client)
        self.problems = []

    def make(self, bank):
        """Makes the collections."""
        bank.create_collection("accounts")
        bank.create_collection("ledger")

    def hear(self, client):
        """Has a client hear of the accounts: a router's snapshots are no older from then on."""
        operation_time, cluster_time = self.made
        with client.start_session(causal_consistency=True) as session:
            session.advance_cluster_time(cluster_time)
            session.advance_operation_time(operation_time)
            client.bank.accounts.find_one(session=session)

    def __enter__(self):
        for thread in self.tellers + self.auditors:
            thread.start()
        return self

    def __exit__(self, *_):
        for thread in self.tellers + self.auditors:
            thread.ended.set()
        for thread in self.tellers + self.auditors:
            thread.join(300)

    def verdict(self):
        """What is wrong, when no money is moved any more."""
        problems = [problem for auditor in self.auditors for problem in auditor.problems]
        problems += [f"{thread} goes on" for thread in self.tellers + self.auditors if thread.is_alive()]
        with self.members.client() as client:
            ledger = {entry["_id"]: entry for entry in client.bank.ledger.find()}
            found = {account["_id"]: account["n"] for account in client.bank.accounts.find()}
        expected = dict.fromkeys(range(ACCOUNTS), BALANCE)
        for entry in ledger.values():
            expected[entry["giver"]] -= entry["n"]
            expected[entry["taker"]] += entry["n"]
        if found != expected:
            problems.append(f"the accounts have {found}, by the ledger {expected}")
        for teller in self.tellers:
            lost = [key for key in teller.acknowledged if key not in ledger]
            if lost:
                problems.append(f"client {teller.number}: {len(lost)} acknowledged transactions are not there, {lost[:3]}")
        self.members.wait_alike("bank")
        return problems

    def acknowledged(self):
        return sum(len(teller.acknowledged) for teller in self.tellers)
