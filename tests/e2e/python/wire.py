"""MongoDB's wire protocol by hand, for what a driver would never send.

Only messages and sockets; every wait is bounded by the socket's time-out.
"""

import itertools
import socket
import struct

import bson

OP_REPLY, OP_QUERY, OP_COMPRESSED, OP_MSG = 1, 2004, 2012, 2013
CHECKSUM_PRESENT, MORE_TO_COME, EXHAUST_ALLOWED = 1, 2, 1 << 16
REQUESTS = itertools.count(1)


def frame(opcode, body, length=None):
    """A whole message; `length` overrides the announced one."""
    return struct.pack("<iiii", 16 + len(body) if length is None else length, next(REQUESTS), 0, opcode) + body


def message(command, flags=0):
    """OP_MSG with one body section. `command` is a document or already encoded BSON."""
    encoded = command if isinstance(command, bytes) else bson.encode(command)
    return frame(OP_MSG, struct.pack("<I", flags) + b"\0" + encoded)


def compressed(original, compressor, packed, uncompressed_size=None):
    """OP_COMPRESSED around an already compressed body of `original`."""
    (opcode,) = struct.unpack_from("<i", original, 12)
    size = len(original) - 16 if uncompressed_size is None else uncompressed_size
    return frame(OP_COMPRESSED, struct.pack("<iiB", opcode, size, compressor) + packed)


def crc32c(data):
    """The checksum of OP_MSG (Castagnoli, reflected)."""
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    return value ^ 0xFFFFFFFF


class Connection:
    """One socket to the server."""

    def __init__(self, server, timeout=10.0, receive_buffer=None):
        self.socket = socket.socket()
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(timeout)
        self.socket.connect(("127.0.0.1", server.port))

    def send(self, data):
        self.socket.sendall(data)

    def command(self, command, flags=0):
        self.send(message(command, flags))
        return self.reply()

    def reply(self):
        """The next reply's document; None if the server closed."""
        received = self.receive()
        return None if received is None else received[2]

    def receive(self):
        """(opcode, flags, document) of the next message; None if the server closed."""
        header = self.exactly(16)
        if header is None:
            return None
        length, _, _, opcode = struct.unpack("<iiii", header)
        body = self.exactly(length - 16)
        if body is None:
            return None
        if opcode == OP_MSG:
            (flags,) = struct.unpack_from("<I", body)
            end = len(body) - (4 if flags & CHECKSUM_PRESENT else 0)
            return opcode, flags, bson.decode(body[5:end])
        if opcode == OP_REPLY:
            return opcode, 0, bson.decode(body[20:])
        return opcode, 0, body

    def exactly(self, count):
        data = bytearray()
        while len(data) < count:
            try:
                part = self.socket.recv(min(count - len(data), 1 << 20))
            except (ConnectionResetError, BrokenPipeError):
                return None
            if not part:
                return None
            data += part
        return bytes(data)

    def finish_sending(self):
        """Tells the server that nothing follows."""
        try:
            self.socket.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def close(self):
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
