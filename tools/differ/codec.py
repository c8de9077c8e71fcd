"""BSON with every type, also those that PyMongo no longer writes or reads as another: undefined,
symbol, dbPointer."""

import struct

import bson
from bson import ObjectId
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.son import SON

OPTIONS = CodecOptions(document_class=SON, datetime_conversion=DatetimeConversion.DATETIME_MS)


class Undefined:
    """The deprecated value `undefined`."""

    def __repr__(self):
        return "Undefined()"

    def __eq__(self, other):
        return isinstance(other, Undefined)

    __hash__ = object.__hash__


class Symbol(str):
    """A string of the deprecated type symbol."""

    def __repr__(self):
        return f"Symbol({str(self)!r})"


class DBPointer:
    """A reference of the deprecated type dbPointer."""

    def __init__(self, namespace, id):
        self.namespace, self.id = namespace, id

    def __repr__(self):
        return f"DBPointer({self.namespace!r}, {self.id!r})"


def encode(document):
    """A document's bytes."""
    body = b"".join(_element(key, value) for key, value in document.items())
    return struct.pack("<i", len(body) + 5) + body + b"\0"


def _string(text):
    data = text.encode()
    return struct.pack("<i", len(data) + 1) + data + b"\0"


def _element(key, value):
    name = key.encode() + b"\0"
    if isinstance(value, dict):
        return b"\x03" + name + encode(value)
    if isinstance(value, list):
        return b"\x04" + name + encode({str(i): item for i, item in enumerate(value)})
    if isinstance(value, Undefined):
        return b"\x06" + name
    if isinstance(value, Symbol):
        return b"\x0e" + name + _string(value)
    if isinstance(value, DBPointer):
        return b"\x0c" + name + _string(value.namespace) + value.id.binary
    return bson.encode({key: value}, codec_options=OPTIONS)[4:-1]


def decode(data):
    """The document that some bytes hold."""
    return _document(data, 0)[0]


def _document(data, at):
    end = at + struct.unpack_from("<i", data, at)[0]
    at += 4
    out = SON()
    while data[at]:
        kind = data[at]
        name_end = data.index(0, at + 1)
        name = data[at + 1 : name_end].decode()
        at = name_end + 1
        if kind == 0x03:
            out[name], at = _document(data, at)
        elif kind == 0x04:
            items, at = _document(data, at)
            out[name] = list(items.values())
        elif kind == 0x06:
            out[name] = Undefined()
        elif kind == 0x0E:
            out[name], at = _text(data, at, Symbol)
        elif kind == 0x0C:
            namespace, at = _text(data, at, str)
            out[name] = DBPointer(namespace, ObjectId(data[at : at + 12]))
            at += 12
        else:
            length = _length(kind, data, at)
            body = bytes([kind]) + b"\0" + data[at : at + length]
            out[name] = bson.decode(struct.pack("<i", len(body) + 5) + body + b"\0", codec_options=OPTIONS)[""]
            at += length
    assert at + 1 == end, "a document of another length than it says"
    return out, end


def _text(data, at, kind):
    length = struct.unpack_from("<i", data, at)[0]
    return kind(data[at + 4 : at + 3 + length].decode()), at + 4 + length


FIXED = {0x01: 8, 0x07: 12, 0x08: 1, 0x09: 8, 0x0A: 0, 0x10: 4, 0x11: 8, 0x12: 8, 0x13: 16, 0x7F: 0, 0xFF: 0}


def _length(kind, data, at):
    """How many bytes a value takes."""
    if kind in FIXED:
        return FIXED[kind]
    first = struct.unpack_from("<i", data, at)[0] if kind != 0x0B else 0
    if kind in (0x02, 0x0D):
        return 4 + first
    if kind == 0x05:
        return 5 + first
    if kind == 0x0F:
        return first
    if kind == 0x0B:
        return data.index(0, data.index(0, at) + 1) + 1 - at
    raise ValueError(f"a value of the unknown BSON type {kind:#x}")
