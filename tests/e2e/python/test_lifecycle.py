"""Starting and stopping: refused starts say why in one line, a stop tells the clients and loses nothing."""

import shutil
import signal
import socket
import subprocess
import threading
import time

import pytest
from conftest import connect
from pymongo.errors import OperationFailure
from rockdove_server import Server, ServerError
from wire import EXHAUST_ALLOWED, MORE_TO_COME, Connection, message

SHUTDOWN = 91


def refused(data, port=0):
    """Runs a server that must not start; returns what it says on standard error."""
    command = Server(data=data, port=port).command()
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20)
    assert done.returncode not in (0, 101, -6), f"exit code {done.returncode}: {done.stderr}"
    return done.stderr.strip()


def test_a_second_server_on_the_same_folder_is_refused(start, tmp_path):
    first = start()
    with connect(first) as client:
        client.e2e.items.insert_one({"_id": 1})
        said = refused(tmp_path / "data")
        assert len(said.splitlines()) == 1 and str(tmp_path / "data") in said, said
        assert client.e2e.items.count_documents({}) == 1


def test_a_second_server_on_the_same_port_is_refused(start, tmp_path):
    first = start()
    said = refused(tmp_path / "other", first.port)
    assert len(said.splitlines()) == 1 and str(first.port) in said, said
    with connect(first) as client:
        client.admin.command("ping")


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    said = refused(tmp_path / "file" / "data")
    assert len(said.splitlines()) == 1 and "file" in said, said


def test_a_folder_with_foreign_files_is_left_alone(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "notes.txt").write_text("mine")
    with Server(data=tmp_path / "data") as server, connect(server) as client:
        client.e2e.items.insert_one({"_id": 1})
        assert server.stop() == 0
    assert (tmp_path / "data" / "notes.txt").read_text() == "mine"


def test_terminate_answers_parked_clients_and_exits_with_zero(start):
    server = start()
    with connect(server) as client, Connection(server) as parked, Connection(server) as monitor:
        client.e2e.items.insert_one({"_id": 1})
        watch = {"aggregate": "items", "pipeline": [{"$changeStream": {}}], "cursor": {}, "$db": "e2e"}
        cursor = parked.command(watch)["cursor"]["id"]
        parked.send(message({"getMore": cursor, "collection": "items", "maxTimeMS": 15_000, "$db": "e2e"}))
        hello = monitor.command({"hello": 1, "$db": "admin"})
        awaiting = {"hello": 1, "topologyVersion": hello["topologyVersion"], "maxAwaitTimeMS": 15_000, "$db": "admin"}
        monitor.send(message(awaiting))
        time.sleep(0.3)
        server.signal(signal.SIGTERM)
        begun = time.monotonic()
        answer, told = parked.reply(), monitor.reply()
        assert answer is not None and answer["ok"] == 0 and answer["code"] == SHUTDOWN, answer
        assert told is not None and (told["ok"] == 0 and told["code"] == SHUTDOWN or not told["isWritablePrimary"]), told
        assert server.wait() == 0
        assert time.monotonic() - begun < 10


def test_terminate_under_load_loses_no_acknowledged_write(start):
    server = start()
    acknowledged, codes = [], set()
    with Connection(server, timeout=15) as one, Connection(server, timeout=15) as two:
        def write(connection, name):
            n = 0
            while True:
                insert = {"insert": "items", "documents": [{"_id": f"{name}-{n}"}], "$db": "e2e"}
                try:
                    answer = connection.command(insert)
                except OSError:
                    return
                if answer is None:
                    return
                if answer["ok"] != 1:
                    codes.add(answer["code"])
                    return
                acknowledged.append(f"{name}-{n}")
                n += 1

        threads = [threading.Thread(target=write, args=pair) for pair in ((one, "a"), (two, "b"))]
        for thread in threads:
            thread.start()
        time.sleep(0.5)
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        for thread in threads:
            thread.join(20)
    assert codes <= {SHUTDOWN}
    with connect(start(port=server.port)) as client:
        kept = {d["_id"] for d in client.e2e.items.find()}
        assert acknowledged and set(acknowledged) <= kept


def test_a_driver_survives_a_restart_without_an_error(start):
    server = start()
    with connect(server, serverSelectionTimeoutMS=20_000) as client:
        failures, stop, count = [], threading.Event(), [0]

        def work():
            while not stop.is_set():
                try:
                    client.e2e.items.insert_one({})
                    client.e2e.items.find_one()
                    count[0] += 1
                except Exception as error:
                    failures.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        time.sleep(0.5)
        assert server.stop() == 0
        start(port=server.port)
        before = count[0]
        deadline = time.monotonic() + 15
        while count[0] < before + 20 and time.monotonic() < deadline:
            time.sleep(0.1)
        stop.set()
        thread.join(30)
    assert count[0] >= before + 20 and not failures, failures[:3]


def test_a_removed_data_folder_is_told_once_and_reads_go_on(start, tmp_path):
    server = start()
    with connect(server) as client:
        items = client.e2e.items
        items.insert_one({"_id": 1})
        shutil.rmtree(tmp_path / "data")
        accepted, deadline = 1, time.monotonic() + 20
        with pytest.raises(OperationFailure) as refused:
            while time.monotonic() < deadline:
                items.insert_one({"text": "x" * 1000})
                accepted += 1
        assert "removed while the log is open" in str(refused.value)
        for _ in range(200):
            with pytest.raises(OperationFailure):
                items.insert_one({})
        assert items.count_documents({}) == accepted
        assert len(server.tail(1_000_000).splitlines()) < 30, server.tail()
    assert server.stop() == 1, "what was written is not kept, and the exit code says so"
    with connect(start()) as client:
        client.e2e.items.insert_one({"_id": 1})


def test_the_shutdown_command_ends_the_server(start):
    server = start()
    with Connection(server) as connection:
        connection.command({"shutdown": 1, "$db": "admin"})
    assert server.wait() == 0


def test_an_interrupt_ends_the_server(start):
    server = start()
    server.signal(signal.SIGINT)
    assert server.wait() == 0
    with pytest.raises(OSError), socket.create_connection(("127.0.0.1", server.port), 2):
        pass


def test_a_streamed_hello_reports_the_stop(start):
    server = start()
    with Connection(server, timeout=15) as monitor:
        version = monitor.command({"hello": 1, "$db": "admin"})["topologyVersion"]
        awaiting = {"hello": 1, "topologyVersion": version, "maxAwaitTimeMS": 300, "$db": "admin"}
        monitor.send(message(awaiting, EXHAUST_ALLOWED))
        for _ in range(3):
            _, flags, answer = monitor.receive()
            assert answer["ok"] == 1 and flags & MORE_TO_COME
            assert answer["topologyVersion"] == version
        server.signal(signal.SIGTERM)
        last = monitor.receive()
        while last is not None and last[2].get("isWritablePrimary"):
            last = monitor.receive()
    assert server.wait() == 0


def test_a_bad_argument_is_named():
    with pytest.raises(ServerError, match="nonsense"):
        Server(args=["--nonsense"]).start()
