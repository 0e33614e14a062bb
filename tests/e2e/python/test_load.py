"""Many peers and slow peers: each costs little, and none holds up another."""

import resource
import socket
import time

import pytest
from conftest import connect
from rockdove_server import Server
from wire import Connection, message

IDLE = 10_000


def resident_mib(server):
    with open(f"/proc/{server.process.pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS:")) / 1024


@pytest.fixture
def fresh():
    """A server of its own, whose memory tells about this test only."""
    with Server() as server:
        yield server


def round_trips(client, count=200):
    """Sorted seconds of inserts and reads."""
    took = []
    for n in range(count):
        begun = time.monotonic()
        client.e2e.items.insert_one({"_id": n})
        client.e2e.items.find_one({"_id": n})
        took.append(time.monotonic() - begun)
    client.e2e.items.drop()
    return sorted(took)


@pytest.mark.timeout(180)
def test_ten_thousand_idle_connections(fresh):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert hard == resource.RLIM_INFINITY or hard > IDLE + 500, f"this machine allows {hard} open files"
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    before = resident_mib(fresh)
    hello = message({"hello": 1, "$db": "admin"})
    idle = []
    try:
        for _ in range(IDLE):
            connection = Connection(fresh, timeout=30)
            connection.send(hello)
            idle.append(connection)
        assert all(connection.reply()["ok"] == 1 for connection in idle)
        used = resident_mib(fresh) - before
        with connect(fresh) as client:
            took = round_trips(client)
            assert client.admin.command("serverStatus")["connections"]["current"] >= IDLE
        assert idle[0].command({"ping": 1, "$db": "admin"})["ok"] == 1
        assert idle[-1].command({"ping": 1, "$db": "admin"})["ok"] == 1
    finally:
        for connection in idle:
            connection.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    print(f"{used * 1024 / IDLE:.1f} KiB a connection, median round trip {took[len(took) // 2] * 1000:.2f} ms")
    assert used * 1024 / IDLE < 64, f"{used:.0f} MiB for {IDLE} connections"
    assert took[len(took) // 2] < 0.05
    deadline = time.monotonic() + 15
    with connect(fresh) as client:
        while client.admin.command("serverStatus")["connections"]["current"] > 100:
            assert time.monotonic() < deadline, "closed connections are still counted"
            time.sleep(0.2)


def test_a_client_that_never_reads_blocks_only_itself(fresh):
    with connect(fresh) as client, Connection(fresh, timeout=0.5, receive_buffer=4096) as deaf:
        client.e2e.large.insert_many([{"_id": n, "data": b"x" * (1 << 20)} for n in range(8)])
        before = resident_mib(fresh)
        request = message({"find": "large", "$db": "e2e"})
        sent = 0
        try:
            while sent < 20_000:
                deaf.send(request)
                sent += 1
        except (TimeoutError, OSError):
            pass
        took = round_trips(client)
        grown = resident_mib(fresh) - before
    assert grown < 200, f"{grown:.0f} MiB are kept for a client that does not read ({sent} requests)"
    assert took[-5] < 0.25, f"others waited {took[-1]:.3f} s"


def test_connections_that_come_and_go_leave_nothing(fresh):
    for _ in range(300):
        socket.create_connection(("127.0.0.1", fresh.port), 5).close()
    before = resident_mib(fresh)
    for turn in range(3000):
        with Connection(fresh) as connection:
            if turn % 3:
                connection.send(message({"ping": 1, "$db": "admin"}))
            if turn % 3 == 2:
                assert connection.reply()["ok"] == 1
    assert resident_mib(fresh) - before < 30
    with connect(fresh) as client:
        assert client.admin.command("serverStatus")["connections"]["current"] < 100
