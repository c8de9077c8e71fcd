"""MongoDB's recorded answers in the place of a live server.

A recording is Zstandard around a sequence of `seed u32, exchanges u32, bytes u32`, then for each
exchange `length u32, command, length u32, reply`: raw BSON documents, little-endian lengths, `$db`
in the command. A program begins behind its `dropDatabase`, and the reads of `compare.state` follow
its own commands.
"""

import struct

import zstandard
from bson.son import SON

import codec
from made import RECORDED_SECS

HELLO = ("hello", "isMaster", "ismaster")


class Ended(Exception):
    """The recording of a program ends here: the server that it was held against then answered so
    otherwise that they parted."""


class NotRecorded(Exception):
    """The generator, or a rule, asks what the recorded server was not asked."""


class Recording:
    """The programs of a recording, by seed."""

    def __init__(self, path):
        with open(path, "rb") as file:
            self.data = zstandard.ZstdDecompressor().stream_reader(file).read()
        self.programs, at = {}, 0
        while at < len(self.data):
            seed, exchanges, size = struct.unpack_from("<III", self.data, at)
            self.programs[seed] = at + 12, exchanges
            at += 12 + size
        RECORDED_SECS.append(self.answered_secs())

    def answered_secs(self):
        """When the recorded server answered: the first time that it reported."""
        for seed in self.programs:
            for command, reply in self.exchanges(seed):
                # A reply that holds no such field need not be read.
                if b"\tlocalTime\0" in reply and next(iter(codec.decode(command))) in HELLO:
                    return int(codec.decode(reply)["localTime"]) / 1000
        raise NotRecorded("no reply of the recording tells the time")

    def exchanges(self, seed):
        """The commands and replies of one program, as bytes."""
        if seed not in self.programs:
            raise NotRecorded(f"program {seed} is not in the recording")
        at, exchanges = self.programs[seed]
        for _ in range(exchanges):
            command, at = self._document(at)
            reply, at = self._document(at)
            yield command, reply

    def _document(self, at):
        length, = struct.unpack_from("<I", self.data, at)
        return self.data[at + 4 : at + 4 + length], at + 4 + length


class Client:
    """Answers the commands of a program as the recorded server did, in their order."""

    def __init__(self, recording):
        self.recording = recording
        self.left = iter(())
        self.started = False

    def begin(self, seed):
        """What is sent from here on is the program of this seed."""
        self.left = self.recording.exchanges(seed)
        self.started = False

    def command(self, database, command):
        """The recorded reply."""
        if not self.started:
            # Each program begins with an empty database, which is not recorded.
            self.started = True
            if next(iter(command)) == "dropDatabase":
                return SON([("ok", 1.0)])
        sent = codec.encode(command if "$db" in command else SON([*command.items(), ("$db", database)]))
        recorded, reply = next(self.left, (None, None))
        if recorded is None:
            raise Ended
        if recorded != sent:
            raise NotRecorded(f"the recording goes on with {codec.decode(recorded)!r:.600}, and this was sent: {command!r:.600}")
        return codec.decode(reply)
