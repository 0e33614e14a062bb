"""Fixtures of the end-to-end suite: a running server, a client, a database of one's own.

The program is $ROCKDOVE_BIN or the newest in target/ (see support/rockdove_server.py).
"""

import itertools
import os
import sys
from pathlib import Path

import pymongo
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "support"))

from rockdove_server import Server  # noqa: E402

NUMBERS = itertools.count(1)


@pytest.fixture(scope="session")
def server():
    """One server in memory for all tests that do not stop it."""
    with Server() as running:
        yield running


@pytest.fixture(scope="session")
def client(server):
    with connect(server) as client:
        yield client


@pytest.fixture
def db(client):
    """An empty database, dropped behind the test."""
    name = f"e2e_{os.getpid()}_{next(NUMBERS)}"
    yield client[name]
    client.drop_database(name)


@pytest.fixture
def start(tmp_path):
    """Starts servers that store in the test's folder; ends what is still running behind the test."""
    started = []

    def start_server(port=0, data=None, args=()):
        server = Server(data=data or tmp_path / "data", port=port, args=args, log=tmp_path / f"{len(started)}.log")
        started.append(server)
        return server.start()

    yield start_server
    for server in started:
        server.kill()


def connect(server, **options):
    """A client whose waits are all bounded."""
    limits = {"serverSelectionTimeoutMS": 10_000, "socketTimeoutMS": 20_000, "connectTimeoutMS": 10_000}
    return pymongo.MongoClient(server.uri, **{**limits, **options})
