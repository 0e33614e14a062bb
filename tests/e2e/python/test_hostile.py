"""Peers that lie, stall or send rubbish: each is answered with an error or closed, and nobody else notices.

Random cases are drawn from a fixed seed; a failure prints the bytes that caused it.
"""

import random
import struct
import time
import zlib

import bson
import pytest
from wire import OP_MSG, OP_QUERY, Connection, compressed, frame, message

LIMIT = 10.0
PING = message({"ping": 1, "$db": "admin"})


def nested(levels, kind=3):
    """A document (or array) of that depth, made without recursion."""
    document = b"\x05\0\0\0\0"
    for _ in range(levels):
        element = bytes([kind]) + b"0\0" + document
        document = struct.pack("<i", len(element) + 5) + element + b"\0"
    return document


def find(filter_bson):
    """A find whose filter is the given bytes."""
    fields = b"\x02find\0\x02\0\0\0x\0" + b"\x03filter\0" + filter_bson + b"\x02$db\0\x04\0\0\0e2e\0"
    return message(struct.pack("<i", len(fields) + 5) + fields + b"\0")


def insert(fields):
    """An insert of one document with the given bytes as elements."""
    document = struct.pack("<i", len(fields) + 5) + fields + b"\0"
    sequence = b"documents\0" + document
    body = b"\0" + bson.encode({"insert": "x", "$db": "e2e"})
    return frame(OP_MSG, struct.pack("<I", 0) + body + b"\1" + struct.pack("<i", len(sequence) + 4) + sequence)


def settles(server, data, close=True):
    """Sends the bytes and returns the answer (None: closed); fails if neither comes in time."""
    with Connection(server, timeout=LIMIT) as connection:
        try:
            connection.send(data)
        except (ConnectionResetError, BrokenPipeError):
            return None
        if close:
            connection.finish_sending()
        try:
            received = connection.receive()
        except TimeoutError:
            pytest.fail(f"neither answered nor closed within {LIMIT} s: {data[:200].hex()}")
        return received and received[2]


def unharmed(server):
    with Connection(server, timeout=LIMIT) as connection:
        assert connection.command({"ping": 1, "$db": "admin"})["ok"] == 1
    assert server.alive()


TWO_BODIES = struct.pack("<I", 0) + 2 * (b"\0" + bson.encode({"ping": 1, "$db": "admin"}))
BODY = bson.encode({"ping": 1, "$db": "admin"})

FRAMES = {
    "header cut": PING[:9],
    "body cut": PING[:-3],
    "length zero": frame(OP_MSG, b"", 0),
    "length below a header": frame(OP_MSG, b"", 15),
    "length negative": frame(OP_MSG, b"", -1),
    "length smallest": frame(OP_MSG, b"", -(2**31)),
    "length over the limit": frame(OP_MSG, b"", 48_000_001 + (1 << 20)),
    "length largest": frame(OP_MSG, b"", 2**31 - 1),
    "opcode unknown": frame(99, b"abcd"),
    "opcode reply": frame(1, b"\0" * 20),
    "opcode insert of old": frame(2002, b"\0\0\0\0e2e.x\0" + BODY),
    "opcode query, not a handshake": frame(OP_QUERY, struct.pack("<i", 0) + b"e2e.x\0" + struct.pack("<ii", 0, -1) + BODY),
    "opcode query, name not ended": frame(OP_QUERY, struct.pack("<i", 0) + b"e2e.x"),
    "flags missing": frame(OP_MSG, b"\0\0"),
    "flag required and unknown": message({"ping": 1, "$db": "admin"}, flags=1 << 7),
    "no section": frame(OP_MSG, struct.pack("<I", 0)),
    "no body section": frame(OP_MSG, struct.pack("<I", 0) + b"\1" + struct.pack("<i", 6) + b"a\0"),
    "two bodies": frame(OP_MSG, TWO_BODIES),
    "section of unknown kind": frame(OP_MSG, struct.pack("<I", 0) + b"\2" + BODY),
    "sequence too long": frame(OP_MSG, struct.pack("<I", 0) + b"\0" + BODY + b"\1" + struct.pack("<i", 9999) + b"a\0"),
    "sequence negative": frame(OP_MSG, struct.pack("<I", 0) + b"\0" + BODY + b"\1" + struct.pack("<i", -4) + b"a\0"),
    "document shorter than it says": message(struct.pack("<i", len(BODY) + 50) + BODY[4:]),
    "document longer than it says": message(struct.pack("<i", len(BODY) - 5) + BODY[4:]),
    "document of length zero": message(b"\0\0\0\0"),
    "document not ended": message(BODY[:-1] + b"\1"),
    "element type unknown": message(BODY.replace(b"\x10ping", b"\x42ping")),
    "command without a database": message({"ping": 1}),
    "empty command": message({}),
    "bytes behind the body": message(bson.encode({"ping": 1, "$db": "admin"}) + b"rest"),
    "string without its end": insert(b"\x02s\0\x03\0\0\0abc"),
    "string of length zero": insert(b"\x02s\0\0\0\0\0"),
    "string of negative length": insert(b"\x02s\0" + struct.pack("<i", -5) + b"a\0"),
    "string of largest length": insert(b"\x02s\0" + struct.pack("<i", 2**31 - 1) + b"a\0"),
    "string not UTF-8": insert(b"\x02s\0" + struct.pack("<i", 3) + b"\xc3\x28\0"),
    "name not UTF-8": insert(b"\x10\xff\xfe\0" + struct.pack("<i", 3)),
    "name not ended": insert(b"\x10nnnn"),
    "boolean of neither value": insert(b"\x08b\0\x07"),
    "binary too long": insert(b"\x05b\0" + struct.pack("<i", 1 << 30) + b"\0x"),
    "binary negative": insert(b"\x05b\0" + struct.pack("<i", -1) + b"\0x"),
    "array of wrong length": insert(b"\x04a\0" + struct.pack("<i", 1 << 20) + b"\0"),
    "scope of wrong length": insert(b"\x0fc\0" + struct.pack("<i", 14) + struct.pack("<i", 100) + b"a\0" + b"\x05\0\0\0\0"),
    "regex not ended": insert(b"\x0br\0abc"),
    "nested 500 deep, filter": find(nested(500)),
    "nested 100 000 deep, filter": find(nested(100_000)),
    "nested 100 000 deep, array": insert(b"\x04a\0" + nested(100_000, kind=4)),
    "nested 100 000 deep, command": message(nested(100_000)),
    "compressor unknown": compressed(PING, 77, b"abc"),
    "compressed rubbish, snappy": compressed(PING, 1, b"\xff" * 40),
    "compressed rubbish, zlib": compressed(PING, 2, b"\xff" * 40),
    "compressed rubbish, zstd": compressed(PING, 3, b"\xff" * 40),
    "compressed, size too large": compressed(PING, 2, zlib.compress(PING[16:]), 2**31 - 1),
    "compressed, size too small": compressed(PING, 2, zlib.compress(PING[16:]), 3),
    "compressed, size negative": compressed(PING, 2, zlib.compress(PING[16:]), -1),
    "compressed bomb": compressed(PING, 2, zlib.compress(b"\0" * (100 << 20), 9), 40_000_000),
    "compressed in compressed": compressed(compressed(PING, 0, PING[16:]), 0, compressed(PING, 0, PING[16:])[16:]),
    "compressed, header cut": frame(2012, b"\xdd\x07"),
}


@pytest.mark.parametrize("name", FRAMES)
def test_a_malformed_frame_is_refused(server, name):
    answer = settles(server, FRAMES[name])
    assert answer is None or answer.get("ok") == 0 or "writeErrors" in answer, answer
    unharmed(server)


@pytest.mark.parametrize("name", ["length over the limit", "length largest", "length negative", "length zero"])
def test_a_lying_header_is_closed_without_waiting_for_more(server, name):
    assert settles(server, FRAMES[name], close=False) is None


def test_random_bytes(server):
    source = random.Random(20261130)
    for _ in range(150):
        settles(server, source.randbytes(source.randrange(1, 400)))
    unharmed(server)


def test_random_bodies_behind_a_true_header(server):
    source = random.Random(7)
    for opcode in (OP_MSG, OP_QUERY, 2012):
        for _ in range(80):
            settles(server, frame(opcode, source.randbytes(source.randrange(0, 300))))
    unharmed(server)


def test_mutated_messages(server):
    source = random.Random(42)
    originals = [
        PING,
        insert(b"\x10_id\0" + struct.pack("<i", 5) + b"\x02s\0\x04\0\0\0abc\0"),
        message({"aggregate": "x", "pipeline": [{"$match": {"a": {"$in": [1, "b", None]}}}], "cursor": {}, "$db": "e2e"}),
        message({"update": "x", "updates": [{"q": {"a": 1}, "u": {"$set": {"b.0.c": 2}}, "multi": True}], "$db": "e2e"}),
        message({"find": "x", "filter": {"$or": [{"a": 1}, {"b": {"$gt": 2.5}}]}, "sort": {"a": -1}, "$db": "e2e"}),
    ]
    for _ in range(400):
        data = bytearray(source.choice(originals))
        for _ in range(source.randrange(1, 5)):
            data[source.randrange(16, len(data))] = source.randrange(256)
        settles(server, bytes(data))
    unharmed(server)


def test_a_peer_that_stalls_in_a_frame_holds_up_nobody(server):
    stalled = [Connection(server) for _ in range(50)]
    try:
        for connection in stalled:
            connection.send(frame(OP_MSG, b"", 40_000_000))
        begun = time.monotonic()
        for _ in range(20):
            unharmed(server)
        assert time.monotonic() - begun < 5
    finally:
        for connection in stalled:
            connection.close()
