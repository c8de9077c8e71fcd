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


class Teller(threading.Thread):
    """Moves money between two accounts, and notes it in the ledger, all in one transaction."""

    def __init__(self, members, number):
        super().__init__(daemon=True)
        self.client = members.client(socketTimeoutMS=SOCKET_TIMEOUT_MS)
        self.number = number
        self.random = random.Random(number)
        self.acknowledged = []
        # When one was acknowledged: (seconds, how long it took).
        self.times = []
        self.attempts = 0
        self.ended = threading.Event()

    def run(self):
        bank = self.client.bank
        at = 0
        with self.client.start_session() as session:
            while not self.ended.is_set():
                began = time.monotonic()
                key = f"{self.number}-{at}"
                at += 1
                giver, taker = self.random.sample(range(ACCOUNTS), 2)
                amount = self.random.randint(1, 9)

                def move(session):
                    self.attempts += 1
                    bank.accounts.update_one({"_id": giver}, {"$inc": {"n": -amount}}, session=session)
                    bank.accounts.update_one({"_id": taker}, {"$inc": {"n": amount}}, session=session)
                    bank.ledger.insert_one({"_id": key, "giver": giver, "taker": taker, "n": amount}, session=session)

                try:
                    session.with_transaction(move, write_concern=MAJORITY)
                except PyMongoError:
                    # Whether it has taken place is unknown.
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
            except PyMongoError:
                time.sleep(0.05)

    def count_twice(self, session):
        accounts = self.client.bank.accounts
        self.check(account["n"] for account in accounts.find({}, batch_size=5, session=session))
        group = {"$group": {"_id": None, "n": {"$sum": "$n"}}}
        self.check(total["n"] for total in accounts.aggregate([group], session=session))

    def check(self, numbers):
        numbers = list(numbers)
        if sum(numbers) != ACCOUNTS * BALANCE:
            self.problems.append(f"there is {sum(numbers)} in {numbers}")


class Bank:
    """While it is entered, money is moved and counted. `problems` is what was wrong, in the end."""

    def __init__(self, members, tellers=4, auditors=2):
        self.members = members
        with members.client() as client:
            bank = client.get_database("bank", write_concern=MAJORITY)
            bank.accounts.insert_many([{"_id": at, "n": BALANCE} for at in range(ACCOUNTS)])
            bank.create_collection("ledger")
        self.tellers = [Teller(members, number) for number in range(tellers)]
        self.auditors = [Auditor(members, number) for number in range(auditors)]
        self.problems = []

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
