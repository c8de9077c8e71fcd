"""A bare OP_MSG client: it sends a command exactly as it is, also one that a driver would refuse to
send."""

import socket
import struct

from bson.son import SON

import codec

OP_MSG = 2013


class Client:
    """One connection."""

    def __init__(self, uri, timeout_secs=30):
        host, port = uri.removeprefix("mongodb://").strip("/").rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=timeout_secs)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.request = 0
        self.uri = uri

    def command(self, database, command):
        """The reply document, whether ok or not. A command may name another database itself."""
        self.request += 1
        body = codec.encode(command if "$db" in command else SON([*command.items(), ("$db", database)]))
        message = struct.pack("<iiiiIB", 21 + len(body), self.request, 0, OP_MSG, 0, 0) + body
        self.socket.sendall(message)
        length, _, answers, opcode = struct.unpack("<iiii", self._read(16))
        rest = self._read(length - 16)
        if opcode != OP_MSG or answers != self.request or rest[4] != 0:
            raise OSError(f"not a reply to request {self.request}: opcode {opcode}, answers {answers}")
        return codec.decode(rest[5:])

    def _read(self, count):
        parts = []
        while count:
            try:
                part = self.socket.recv(count)
            except TimeoutError:
                raise TimeoutError(f"{self.uri} has not answered for {self.socket.gettimeout():.0f} s") from None
            if not part:
                raise OSError("the server closed the connection")
            parts.append(part)
            count -= len(part)
        return b"".join(parts)
