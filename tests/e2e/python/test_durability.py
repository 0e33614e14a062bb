"""What was acknowledged with j: true is there after a crash, and a retried write happens once across it."""

import signal
import threading
import time
import uuid

import bson
import pytest
from conftest import connect
from pymongo import WriteConcern
from pymongo.errors import PyMongoError
from wire import Connection

SYNCED = WriteConcern(w=1, j=True)


@pytest.mark.parametrize("round_number", range(3))
def test_synced_writes_survive_kill(start, round_number):
    server = start()
    acknowledged, lock = set(), threading.Lock()
    with connect(server, retryWrites=False, serverSelectionTimeoutMS=500) as client:
        items = client.e2e.get_collection("items", write_concern=SYNCED)

        def write(writer):
            n = 0
            while True:
                try:
                    items.insert_one({"_id": f"{writer}-{n}", "data": "x" * 500})
                    items.update_one({"_id": f"{writer}-{n}"}, {"$set": {"seen": True}})
                except PyMongoError:
                    return
                with lock:
                    acknowledged.add(f"{writer}-{n}")
                n += 1

        threads = [threading.Thread(target=write, args=(w,)) for w in range(6)]
        for thread in threads:
            thread.start()
        time.sleep(1.0 + 0.37 * round_number)
        server.kill()
        for thread in threads:
            thread.join(30)
    assert len(acknowledged) > 50
    with connect(start(port=server.port)) as client:
        kept = {d["_id"] for d in client.e2e.items.find({"seen": True})}
        assert acknowledged <= kept, f"{len(acknowledged - kept)} acknowledged writes are lost"
        assert client.e2e.items.count_documents({}) - len(acknowledged) <= 6


@pytest.mark.parametrize("end", ["SIGTERM", "SIGKILL"])
def test_collections_indexes_and_options_survive(start, end):
    server = start()
    with connect(server) as client:
        db = client.e2e
        db.create_collection("capped", capped=True, size=4096, max=3)
        db.users.create_index("mail", unique=True, name="by_mail")
        db.users.create_index([("a", 1), ("b", -1)], partialFilterExpression={"a": {"$gt": 1}})
        db.users.insert_many([{"_id": n, "mail": f"{n}@example.com"} for n in range(1000)])
        db.users.delete_many({"_id": {"$gte": 900}})
        indexes = db.users.index_information()
        db.command({"insert": "users", "documents": [{"_id": -1}], "writeConcern": {"j": True}})
    server.signal(getattr(signal, end))
    server.wait()
    with connect(start(port=server.port)) as client:
        db = client.e2e
        assert db.users.count_documents({}) == 901
        assert db.users.index_information() == indexes
        assert db.users.find_one({"mail": "77@example.com"})["_id"] == 77
        with pytest.raises(PyMongoError):
            db.users.insert_one({"mail": "77@example.com"})
        db.capped.insert_many([{"n": n} for n in range(5)])
        assert [d["n"] for d in db.capped.find()] == [2, 3, 4]


def test_a_write_retried_across_a_crash_happens_once(start):
    server = start()
    session = {"id": bson.Binary.from_uuid(uuid.uuid4())}
    write = {
        "update": "items",
        "updates": [{"q": {"_id": 1}, "u": {"$inc": {"n": 1}}, "upsert": True}],
        "$db": "e2e",
        "lsid": session,
        "txnNumber": bson.Int64(1),
        "writeConcern": {"w": 1, "j": True},
    }
    with Connection(server) as connection:
        first = connection.command(write)
        assert first["ok"] == 1 and first["upserted"] == [{"index": 0, "_id": 1}]
    server.kill()
    with Connection(start(port=server.port)) as connection:
        again = connection.command(write)
        assert again["ok"] == 1 and again["n"] == 1 and again["upserted"] == [{"index": 0, "_id": 1}]
        assert again["retriedStmtIds"] == [0]
        found = connection.command({"find": "items", "$db": "e2e"})["cursor"]["firstBatch"]
        assert found == [{"_id": 1, "n": 1}]
        assert connection.command({**write, "txnNumber": bson.Int64(0)})["code"] == 225


def test_many_restarts_keep_everything(start):
    server, expected = start(), 0
    for turn in range(5):
        with connect(server) as client:
            items = client.e2e.get_collection("items", write_concern=SYNCED)
            assert items.count_documents({}) == expected
            items.insert_many([{"turn": turn, "n": n} for n in range(100)])
            items.delete_many({"turn": turn, "n": {"$lt": 10}})
            expected += 90
        server.signal(signal.SIGKILL if turn % 2 else signal.SIGTERM)
        server.wait()
        server = start(port=server.port)
