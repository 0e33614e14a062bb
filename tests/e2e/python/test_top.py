"""`rockdove top` on a terminal: it draws, draws again, and gives the terminal back."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time

import pytest
from rockdove_server import binary

LIMIT = 20.0
ENTER, LEAVE = b"\x1b[?1049h", b"\x1b[?1049l"


@pytest.fixture
def terminal(server, db):
    """`top` on a terminal of 12 lines and 60 columns, over a database with one queue."""
    for n in range(20):
        topic = {"topic": f"t{n:02}", "name": f"t{n:02}", "sender": "x", "recipients": None, "processed_by": []}
        db.msg.insert_one({**topic, "timestamp": int(time.time() * 1000), "ttl": 60_000, "exclusive": False})
    db.msg_participants.insert_one({"_id": "n1", "implementation": "StandardMessaging", "last_seen": 0})
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 12, 60, 0, 0))
    before = termios.tcgetattr(ours)
    command = [str(binary()), "top", "--uri", f"{server.uri}{db.name}?directConnection=true", "--interval", "100ms"]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    yield process, ours, before
    process.kill()
    process.wait()
    os.close(ours)


def read_until(terminal, enough):
    """What is written, until that is enough, or the other end is closed."""
    written, end = b"", time.monotonic() + LIMIT
    while not enough(written):
        assert time.monotonic() < end, written
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                written += os.read(terminal, 65536)
            except OSError:  # nobody has it open any more
                return written
    return written


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_it_draws_and_gives_the_terminal_back(terminal, ending):
    process, ours, before = terminal
    screens = read_until(ours, lambda written: written.count(b"\x1b[H") >= 3)
    assert screens.startswith(ENTER) and LEAVE not in screens
    first = screens.split(b"\x1b[H")[1].decode()
    lines = [re.sub(r"\x1b\[[?0-9]*[A-Za-z]", "", line).rstrip("\r") for line in first.split("\r\n")]
    assert "queue msg: standard" in lines[0] and "TOPIC" in lines[1], lines
    assert len(lines) == 12 and "more lines" in lines[-1], lines
    assert max(map(len, lines)) <= 60, lines
    process.send_signal(ending)
    rest = read_until(ours, lambda written: LEAVE in written)
    assert rest.rstrip(b"\x00").endswith(LEAVE) and b"\x1b[?25h" in rest
    assert process.wait(LIMIT) == 128 + ending
    assert termios.tcgetattr(ours) == before
