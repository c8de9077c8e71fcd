"""The servers that `scans` measures: any that speak the MongoDB protocol, PostgreSQL, and DuckDB in
this process."""

import json
import pathlib
import re
import socket
import struct
import subprocess
import tempfile
import time

import bson
from scan_cases import COLLECTION, INDEXES, as_json, documents, encoded, message_of_key

BATCH = 1000


def message_of(command):
    """The OP_MSG of a command."""
    body = encoded(command)
    return struct.pack("<iiiiIB", 21 + len(body), 1, 0, 2013, 0, 0) + body


class Mongo:
    """One connection, on which commands and replies are bytes."""

    def __init__(self, name, uri):
        host, port = uri.removeprefix("mongodb://").rstrip("/").rsplit(":", 1)
        self.name = name
        self.socket = socket.create_connection((host, int(port)), timeout=600)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, message):
        """The reply's document to a message of `message_of`."""
        self.socket.sendall(message)
        length, = struct.unpack("<i", self._read(4))
        return self._read(length - 4)[17:]

    def _read(self, size):
        data = bytearray(size)
        view, at = memoryview(data), 0
        while at < size:
            count = self.socket.recv_into(view[at:])
            if not count:
                raise OSError(f"{self.name} closed the connection")
            at += count
        return data

    def ask(self, command):
        """The decoded reply; a refusal ends the run."""
        reply = bson.decode(bytes(self.send(message_of(command))))
        if not reply.get("ok") or reply.get("writeErrors"):
            raise SystemExit(f"{self.name} refused {next(iter(command))}: {str(reply)[:500]}")
        return reply

    def checkpoint(self):
        self.ask({"fsync": 1, "$db": "admin"})

    def drain(self, command):
        """How many bytes a cursor gives, batch after batch. Documents are not even counted: that
        would take the client as long as the server."""
        message, key, size = message_of(command), "firstBatch", 0
        while True:
            reply = self.send(message)
            found = {name: at for name, at in fields(reply, 0)}
            if "cursor" not in found:
                raise SystemExit(f"{self.name} refused {next(iter(command))}: {str(bson.decode(bytes(reply)))[:500]}")
            cursor = dict(fields(reply, found["cursor"]))
            size += struct.unpack_from("<i", reply, cursor[key])[0]
            number, = struct.unpack_from("<q", reply, cursor["id"])
            if not number:
                return size
            message, key = message_of({"getMore": bson.Int64(number), "collection": COLLECTION}), "nextBatch"

    def load(self, count):
        """Fills it; seconds."""
        if self.ask({"listCollections": 1})["cursor"]["firstBatch"]:
            self.ask({"drop": COLLECTION})
        self.ask({"createIndexes": COLLECTION, "indexes": [message_of_key(name) for name in INDEXES]})
        batch, spent = [], 0.0
        for document in documents(count):
            batch.append(document)
            if len(batch) == BATCH or document["_id"] == count - 1:
                message, batch = message_of({"insert": COLLECTION, "documents": batch}), []
                began = time.perf_counter()
                reply = bson.decode(bytes(self.send(message)))
                spent += time.perf_counter() - began
                if not reply.get("ok") or reply.get("writeErrors"):
                    raise SystemExit(f"{self.name} refused documents: {str(reply)[:500]}")
        return spent

    def measure(self, case):
        """The answer, and seconds."""
        began = time.perf_counter()
        answers = [case.answer(self, command) for command in case.commands]
        spent = time.perf_counter() - began
        for command in case.undo:
            self.ask(command)
        return answers, spent

    def can(self, _):
        return True


# Lengths of values by their types; those that are not here begin with their own.
LENGTHS = {0x01: 8, 0x07: 12, 0x08: 1, 0x09: 8, 0x0A: 0, 0x10: 4, 0x11: 8, 0x12: 8, 0x13: 16}


def fields(data, start):
    """The names of a document's fields, and where their values begin."""
    size, = struct.unpack_from("<i", data, start)
    at, end = start + 4, start + size - 1
    while at < end:
        kind, zero = data[at], data.index(0, at + 1)
        value = zero + 1
        yield data[at + 1:zero].decode(), value
        if kind in LENGTHS:
            at = value + LENGTHS[kind]
        else:
            length, = struct.unpack_from("<i", data, value)
            at = value + length + {0x02: 4, 0x05: 5}.get(kind, 0)


FIELD = re.compile(r"\{(\w+):(\w+)(?::([^}]*))?\}")


class Sql:
    """A server that gets statements; what it has no statement for it leaves out."""

    def can(self, case):
        return case.sql is not None

    def statement(self, case):
        return FIELD.sub(lambda found: self.field(*found.groups()), case.sql)

    def measure(self, case):
        statement = self.statement(case)
        began = time.perf_counter()
        rows = self.run(statement)
        spent = time.perf_counter() - began
        return [int(rows[0])] if case.counts else [len(rows)], spent

    def lines(self, count):
        """A file with the documents, one line of JSON each."""
        file = tempfile.NamedTemporaryFile("w", suffix=".ndjson")
        for document in documents(count):
            file.write(json.dumps(as_json(document)) + "\n")
        file.flush()
        return file


class Postgres(Sql):
    """Documents as jsonb, by psql."""

    def __init__(self, name, uri):
        self.name = name
        words = ["psql", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", uri]
        self.psql = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, statement):
        self.psql.stdin.write(f"{statement};\n\\echo done of this\n")
        self.psql.stdin.flush()
        lines = []
        for line in self.psql.stdout:
            if line == "done of this\n":
                return lines
            lines.append(line)
        raise SystemExit(f"{self.name} refused {statement}")

    def load(self, count):
        self.run("DROP TABLE IF EXISTS documents")
        self.run("CREATE TABLE documents (doc jsonb)")
        with self.lines(count) as file:
            path = pathlib.Path(file.name)
            began = time.perf_counter()
            # Quotes and delimiters that no document has: each line is one value.
            self.run(f"\\copy documents FROM '{path}' WITH (FORMAT csv, QUOTE e'\\x01', DELIMITER e'\\x02')\nSELECT 1")
            spent = time.perf_counter() - began
        self.run("VACUUM ANALYZE documents")
        return spent

    def field(self, name, kind, pattern):
        if kind == "matches":
            return f"doc->>'{name}' ~ '{pattern}'"
        if kind == "unwound":
            return f"(SELECT jsonb_array_elements_text(doc->'{name}') AS tag FROM documents) AS unwound"
        return f"(doc->>'{name}')::{'float8' if kind == 'double' else kind}"


class Duck(Sql):
    """DuckDB in this process, with as many threads as there are processors: documents as JSON text,
    or their fields as columns."""

    def __init__(self, name, is_text):
        import duckdb

        self.name, self.is_text, self.connection = name, is_text, duckdb.connect()

    def run(self, statement):
        rows = self.connection.execute(statement).fetchall()
        return [row[0] for row in rows]

    def load(self, count):
        with self.lines(count) as file:
            began = time.perf_counter()
            what = f"json AS doc FROM read_ndjson_objects('{file.name}')" if self.is_text else f"* FROM read_ndjson('{file.name}')"
            self.run(f"CREATE OR REPLACE TABLE documents AS SELECT {what}")
            return time.perf_counter() - began

    def field(self, name, kind, pattern):
        text = f"doc->>'$.{name}'" if self.is_text else name
        if kind == "matches":
            return f"regexp_matches({text}, '{pattern}')"
        if kind == "unwound":
            array = f"CAST(doc->'$.{name}' AS VARCHAR[])" if self.is_text else name
            return f"(SELECT unnest({array}) AS tag FROM documents)"
        return f"CAST({text} AS {kind})" if self.is_text else f"{name}::{kind}"


def server(text):
    """The server of `NAME=URI`, `duckdb-json` or `duckdb-columns`."""
    name, _, uri = text.partition("=")
    if name in ("duckdb-json", "duckdb-columns"):
        return Duck(name, name == "duckdb-json")
    return Postgres(name, uri) if uri.startswith("postgres") else Mongo(name, uri)
