"""Commands as raw messages on a connection: with what PyMongo does not write, and nothing that it
adds."""

import socket
import struct

import bson
from bson.codec_options import CodecOptions, DatetimeConversion
from pinion_node import PATIENCE_SECS

OPTIONS = CodecOptions(datetime_conversion=DatetimeConversion.DATETIME_AUTO)
OP_MSG = 2013


class Undefined:
    """Stands for BSON's undefined."""


def element(name, value):
    """The bytes of a field."""
    key = name.encode() + b"\0"
    if value is Undefined:
        return b"\x06" + key
    if isinstance(value, dict):
        return b"\x03" + key + document(value)
    if isinstance(value, list):
        return b"\x04" + key + document({str(at): inner for at, inner in enumerate(value)})
    # Behind the length, the type and the name "x".
    encoded = bson.encode({"x": value})
    return encoded[4:5] + key + encoded[7:-1]


def document(fields):
    """The bytes of a document; those of one are it already."""
    if isinstance(fields, bytes):
        return fields
    body = b"".join(element(name, value) for name, value in fields.items())
    return struct.pack("<i", len(body) + 5) + body + b"\0"


class Wire:
    """One connection. It fails where the node closes it, or does not answer."""

    def __init__(self, port, timeout_secs=PATIENCE_SECS):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=timeout_secs)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def _read(self, size):
        parts = bytearray()
        while len(parts) < size:
            part = self.socket.recv(size - len(parts))
            assert part, "the node closed the connection"
            parts += part
        return bytes(parts)

    def command(self, database, fields):
        """The reply to a command, which is a document or its bytes."""
        body = document(fields)[4:-1] + element("$db", database) + b"\0"
        section = b"\0" + struct.pack("<i", len(body) + 4) + body
        self.socket.sendall(struct.pack("<iiiiI", 20 + len(section), 1, 0, OP_MSG, 0) + section)
        length, = struct.unpack("<i", self._read(4))
        return bson.decode(self._read(length - 4)[17:], OPTIONS)
