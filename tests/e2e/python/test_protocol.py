"""The wire protocol beyond plain commands: compression, checksums, awaiting, sections, no reply where none is due."""

import struct
import sys
import time
import zlib

import bson
import pytest
import snappy
from conftest import connect
from wire import EXHAUST_ALLOWED, MORE_TO_COME, OP_COMPRESSED, OP_MSG, OP_QUERY, Connection, compressed, crc32c, frame, message

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

SNAPPY, ZLIB, ZSTD = 1, 2, 3
PACK = {0: bytes, SNAPPY: snappy.compress, ZLIB: zlib.compress, ZSTD: zstd.compress}
UNPACK = {0: bytes, SNAPPY: snappy.uncompress, ZLIB: zlib.decompress, ZSTD: zstd.decompress}


@pytest.mark.parametrize("name", ["snappy", "zlib", "zstd"])
def test_a_driver_with_each_compressor(server, db, name):
    with connect(server, compressors=name) as client:
        items = client[db.name].items
        items.insert_many([{"_id": n, "text": "compressible " * 50} for n in range(500)])
        assert sum(1 for _ in items.find()) == 500
        assert name in client.admin.command("hello", compression=[name])["compression"]


@pytest.mark.parametrize("compressor", [0, SNAPPY, ZLIB, ZSTD])
def test_a_compressed_request_gets_a_compressed_reply(server, compressor):
    with Connection(server) as connection:
        connection.command({"hello": 1, "compression": ["snappy", "zlib", "zstd"], "$db": "admin"})
        ping = message({"ping": 1, "$db": "admin"})
        connection.send(compressed(ping, compressor, PACK[compressor](ping[16:])))
        opcode, flags, body = connection.receive()
        if opcode == OP_COMPRESSED:
            original, size, used = struct.unpack_from("<iiB", body)
            plain = UNPACK[used](body[9:])
            assert original == OP_MSG and used == compressor and len(plain) == size
            answer = bson.decode(plain[5:])
        else:
            assert compressor == 0
            answer = body
        assert answer["ok"] == 1


def test_an_uncompressed_request_gets_an_uncompressed_reply(server):
    with Connection(server) as connection:
        connection.command({"hello": 1, "compression": ["zlib"], "$db": "admin"})
        connection.send(message({"ping": 1, "$db": "admin"}))
        assert connection.receive()[0] == OP_MSG


def test_an_awaited_hello_waits(server):
    with Connection(server) as connection:
        first = connection.command({"hello": 1, "$db": "admin"})
        version = first["topologyVersion"]
        begun = time.monotonic()
        again = connection.command({"hello": 1, "topologyVersion": version, "maxAwaitTimeMS": 600, "$db": "admin"})
        assert 0.5 < time.monotonic() - begun < 2
        assert again["topologyVersion"] == version
        other = {"processId": bson.ObjectId(), "counter": bson.Int64(0)}
        begun = time.monotonic()
        connection.command({"hello": 1, "topologyVersion": other, "maxAwaitTimeMS": 5000, "$db": "admin"})
        assert time.monotonic() - begun < 1, "another process's version is answered at once"


def test_an_exhaust_hello_streams(server):
    with Connection(server) as connection:
        version = connection.command({"hello": 1, "$db": "admin"})["topologyVersion"]
        awaiting = {"hello": 1, "topologyVersion": version, "maxAwaitTimeMS": 200, "$db": "admin"}
        connection.send(message(awaiting, EXHAUST_ALLOWED))
        times = []
        for _ in range(4):
            _, flags, answer = connection.receive()
            assert answer["ok"] == 1 and flags & MORE_TO_COME
            times.append(time.monotonic())
        assert all(0.1 < later - sooner < 1 for sooner, later in zip(times, times[1:]))


def test_no_reply_where_none_is_wanted(server, db):
    with Connection(server) as connection:
        insert = {"insert": "items", "documents": [{"_id": 1}], "writeConcern": {"w": 0}, "$db": db.name}
        connection.send(message(insert, MORE_TO_COME))
        answer = connection.command({"count": "items", "$db": db.name})
        assert answer == answer | {"n": 1, "ok": 1}


def test_sections_in_any_order(server, db):
    body = b"\0" + bson.encode({"insert": "items", "$db": db.name})
    documents = b"documents\0" + b"".join(bson.encode({"_id": n}) for n in range(3))
    sequence = b"\1" + struct.pack("<i", len(documents) + 4) + documents
    with Connection(server) as connection:
        connection.send(frame(OP_MSG, struct.pack("<I", 0) + sequence + body))
        assert connection.reply()["n"] == 3
    assert db.items.count_documents({}) == 3


def test_checksums_are_checked(server):
    plain = message({"ping": 1, "$db": "admin"}, flags=1)
    whole = struct.pack("<i", len(plain) + 4) + plain[4:]
    with Connection(server) as connection:
        connection.send(whole + struct.pack("<I", crc32c(whole)))
        assert connection.reply()["ok"] == 1
        connection.send(whole + struct.pack("<I", crc32c(whole) ^ 1))
        answer = connection.reply()
        assert answer is None or answer["ok"] == 0


def test_the_old_handshake(server):
    query = struct.pack("<i", 0) + b"admin.$cmd\0" + struct.pack("<ii", 0, -1)
    with Connection(server) as connection:
        connection.send(frame(OP_QUERY, query + bson.encode({"isMaster": 1, "helloOk": True})))
        answer = connection.reply()
        assert answer["ismaster"] and answer["helloOk"] and answer["maxWireVersion"] >= 21


def test_requests_in_a_row_are_answered_in_order(server, db):
    with Connection(server) as connection:
        count = 500
        for n in range(count):
            connection.send(message({"insert": "items", "documents": [{"_id": n}], "comment": n, "$db": db.name}))
        assert all(connection.reply()["n"] == 1 for _ in range(count))
        connection.send(message({"count": "items", "$db": db.name}))
        assert connection.reply()["n"] == count


def test_a_message_in_single_bytes(server):
    with Connection(server) as connection:
        for byte in message({"ping": 1, "$db": "admin"}):
            connection.send(bytes([byte]))
        assert connection.reply()["ok"] == 1
