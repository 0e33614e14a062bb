"""Cursors: batches, ends, tailing, and documents that appear once however much is written meanwhile."""

import threading
import time

import pymongo
import pytest
from pymongo.errors import CursorNotFound, OperationFailure


def test_batches_have_the_size_asked_for(db):
    db.rows.insert_many([{"_id": n} for n in range(250)])
    first = db.command({"find": "rows", "sort": {"_id": 1}})["cursor"]
    assert len(first["firstBatch"]) == 101 and first["id"] != 0
    more = db.command({"getMore": first["id"], "collection": "rows", "batchSize": 50})["cursor"]
    assert [d["_id"] for d in more["nextBatch"]] == list(range(101, 151))
    rest = db.command({"getMore": first["id"], "collection": "rows"})["cursor"]
    assert len(rest["nextBatch"]) == 99 and rest["id"] == 0


def test_empty_first_batch_and_single_batch(db):
    db.rows.insert_many([{"_id": n} for n in range(10)])
    cursor = db.command({"find": "rows", "batchSize": 0})["cursor"]
    assert cursor["firstBatch"] == [] and cursor["id"] != 0
    assert db.command({"killCursors": "rows", "cursors": [cursor["id"]]})["cursorsKilled"] == [cursor["id"]]
    single = db.command({"find": "rows", "batchSize": 3, "singleBatch": True})["cursor"]
    assert len(single["firstBatch"]) == 3 and single["id"] == 0


def test_a_killed_cursor_is_not_found(db):
    db.rows.insert_many([{"_id": n} for n in range(10)])
    cursor = db.rows.find(batch_size=2)
    next(cursor)
    db.command({"killCursors": "rows", "cursors": [cursor.cursor_id]})
    with pytest.raises(CursorNotFound):
        list(cursor)


def test_a_cursor_belongs_to_its_collection(db):
    db.rows.insert_many([{"_id": n} for n in range(10)])
    cursor = db.command({"find": "rows", "batchSize": 2})["cursor"]
    with pytest.raises(OperationFailure):
        db.command({"getMore": cursor["id"], "collection": "other"})


def test_large_results_come_in_batches_of_at_most_16_mb(db):
    db.large.insert_many([{"_id": n, "data": b"x" * (1 << 20)} for n in range(40)])
    assert [d["_id"] for d in db.large.find(batch_size=1000).sort("_id", 1)] == list(range(40))


def test_no_document_twice_under_writes(db):
    db.rows.create_index("v")
    db.rows.insert_many([{"_id": n, "v": n} for n in range(2000)])
    stop = threading.Event()

    def move():
        n = 0
        while not stop.is_set():
            db.rows.update_one({"_id": n % 2000}, {"$inc": {"v": 5000}})
            n += 7

    writer = threading.Thread(target=move)
    writer.start()
    try:
        seen = [d["_id"] for d in db.rows.find(batch_size=50).sort("v", 1)]
    finally:
        stop.set()
        writer.join(10)
    assert sorted(seen) == list(range(2000))


def test_a_tailing_cursor_waits_for_new_documents(db):
    db.create_collection("log", capped=True, size=1 << 20)
    db.log.insert_one({"n": 0})
    tail = db.log.find({"n": {"$ne": 2}}, cursor_type=pymongo.CursorType.TAILABLE_AWAIT).max_await_time_ms(3000)
    assert next(tail)["n"] == 0
    timer = threading.Timer(0.4, lambda: db.log.insert_many([{"n": 1}, {"n": 2}, {"n": 3}]))
    timer.start()
    begun = time.monotonic()
    assert next(tail)["n"] == 1
    assert 0.2 < time.monotonic() - begun < 2.5
    assert next(tail)["n"] == 3
    timer.join()
    tail.close()


def test_awaiting_needs_a_capped_collection(db):
    db.plain.insert_one({"n": 0})
    with pytest.raises(OperationFailure) as refused:
        next(db.plain.find(cursor_type=pymongo.CursorType.TAILABLE_AWAIT))
    assert refused.value.code == 2


def test_a_parked_get_more_does_not_hold_up_others(db):
    db.create_collection("log", capped=True, size=1 << 20)
    db.log.insert_one({"n": 0})
    tail = db.log.find(cursor_type=pymongo.CursorType.TAILABLE_AWAIT).max_await_time_ms(2000)
    next(tail)
    parked = threading.Thread(target=lambda: next(tail, None))
    parked.start()
    slowest = 0.0
    for n in range(200):
        begun = time.monotonic()
        db.other.insert_one({"n": n})
        slowest = max(slowest, time.monotonic() - begun)
    assert slowest < 1.0
    parked.join(10)
    assert not parked.is_alive()
    tail.close()
