"""Change streams: each change once, in order, filtered by the server, and resumed across a server's end."""

import contextlib
import signal
import threading
import time

import pytest
from bson.timestamp import Timestamp
from conftest import connect
from pymongo.errors import OperationFailure


def take(stream, count, limit=10.0):
    """The next `count` events."""
    events, deadline = [], time.monotonic() + limit
    while len(events) < count:
        event = stream.try_next()
        events += [event] if event else []
        assert time.monotonic() < deadline, f"{len(events)} of {count} events after {limit} s"
    return events


def test_each_kind_of_change_is_an_event(db):
    with db.items.watch(max_await_time_ms=200) as stream:
        db.items.insert_one({"_id": 1, "a": 1, "b": {"c": 1}})
        db.items.update_one({"_id": 1}, {"$set": {"b.c": 2}, "$unset": {"a": ""}})
        db.items.replace_one({"_id": 1}, {"x": 1})
        db.items.delete_one({"_id": 1})
        insert, update, replace, delete = take(stream, 4)
    assert insert["operationType"] == "insert" and insert["fullDocument"] == {"_id": 1, "a": 1, "b": {"c": 1}}
    assert insert["ns"] == {"db": db.name, "coll": "items"} and insert["documentKey"] == {"_id": 1}
    assert update["updateDescription"]["updatedFields"] == {"b.c": 2}
    assert update["updateDescription"]["removedFields"] == ["a"]
    assert replace["operationType"] == "replace" and replace["fullDocument"] == {"_id": 1, "x": 1}
    assert delete["operationType"] == "delete" and "fullDocument" not in delete
    times = [e["clusterTime"] for e in (insert, update, replace, delete)]
    assert all(isinstance(t, Timestamp) for t in times) and times == sorted(times) and len(set(times)) == 4


def test_a_write_that_changes_nothing_is_no_event(db):
    db.items.insert_one({"_id": 1, "set": [1]})
    with db.items.watch(max_await_time_ms=200) as stream:
        db.items.update_one({"_id": 1}, {"$addToSet": {"set": 1}})
        db.items.update_one({"_id": 2}, {"$set": {"x": 1}})
        db.items.insert_one({"_id": 3})
        assert take(stream, 1)[0]["documentKey"] == {"_id": 3}


def test_the_pipeline_filters_at_the_server(db):
    pipeline = [{"$match": {"operationType": {"$in": ["insert", "delete"]}, "fullDocument.topic": {"$in": ["a", None]}}}]
    with db.watch(pipeline, max_await_time_ms=200) as stream:
        db.one.insert_many([{"_id": n, "topic": "ab"[n % 2]} for n in range(6)])
        db.two.insert_one({"_id": 9})
        db.one.update_many({}, {"$set": {"x": 1}})
        db.one.delete_one({"_id": 1})
        events = take(stream, 5)
    assert [(e["ns"]["coll"], e["documentKey"]["_id"]) for e in events] == [
        ("one", 0), ("one", 2), ("one", 4), ("two", 9), ("one", 1),
    ]


def test_update_lookup_brings_the_document(db):
    db.items.insert_one({"_id": 1, "keep": "it", "n": 0})
    with db.items.watch(full_document="updateLookup", max_await_time_ms=200) as stream:
        db.items.update_one({"_id": 1}, {"$inc": {"n": 1}})
        assert take(stream, 1)[0]["fullDocument"] == {"_id": 1, "keep": "it", "n": 1}


def test_an_event_arrives_at_once(db):
    """A waiting stream is woken by the write, it does not poll."""
    waits = []
    with db.items.watch(max_await_time_ms=2000) as stream:
        for n in range(20):
            sent = []
            timer = threading.Timer(0.03, lambda n=n, sent=sent: (sent.append(time.monotonic()), db.items.insert_one({"n": n})))
            timer.start()
            take(stream, 1)
            waits.append(time.monotonic() - sent[0])
            timer.join()
    assert sorted(waits)[10] < 0.05, waits


def test_resume_after_and_start_at(db, client):
    with db.items.watch(max_await_time_ms=200) as stream:
        db.items.insert_many([{"_id": n} for n in range(5)])
        events = take(stream, 5)
    with db.items.watch(resume_after=events[1]["_id"], max_await_time_ms=200) as stream:
        assert [e["documentKey"]["_id"] for e in take(stream, 3)] == [2, 3, 4]
    with db.items.watch(start_at_operation_time=events[3]["clusterTime"], max_await_time_ms=200) as stream:
        assert [e["documentKey"]["_id"] for e in take(stream, 2)] == [3, 4]
    with pytest.raises(OperationFailure):
        db.items.watch(resume_after={"_data": "nonsense"}).try_next()


def test_dropping_the_collection_ends_the_stream(db):
    db.items.insert_one({"_id": 1})
    with db.items.watch(max_await_time_ms=200) as stream:
        db.items.drop()
        drop, invalidate = take(stream, 2)
        assert (drop["operationType"], invalidate["operationType"]) == ("drop", "invalidate")
        token = invalidate["_id"]
    db.items.insert_one({"_id": 2})
    with db.items.watch(start_after=token, max_await_time_ms=200) as stream:
        assert take(stream, 1)[0]["documentKey"] == {"_id": 2}


def test_many_writers_each_event_once_in_one_order(db):
    writers, each = 8, 200
    with db.items.watch(max_await_time_ms=200) as one, db.watch(max_await_time_ms=200) as two:
        def write(w):
            for n in range(each):
                db.items.insert_one({"_id": f"{w}-{n}", "w": w, "n": n})

        threads = [threading.Thread(target=write, args=(w,)) for w in range(writers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        first = [e["documentKey"]["_id"] for e in take(one, writers * each, 30)]
        second = [e["documentKey"]["_id"] for e in take(two, writers * each, 30)]
    assert first == second and len(set(first)) == writers * each
    for w in range(writers):
        assert [i for i in first if i.startswith(f"{w}-")] == [f"{w}-{n}" for n in range(each)]


@pytest.mark.parametrize("end", ["SIGTERM", "SIGKILL"])
def test_a_stream_resumes_across_the_servers_end(start, end):
    server = start()
    with connect(server) as client:
        items = client.e2e.items
        with items.watch(max_await_time_ms=200) as stream:
            items.insert_many([{"_id": n} for n in range(3)])
            assert [e["documentKey"]["_id"] for e in take(stream, 3)] == [0, 1, 2]
            client.e2e.command({"insert": "items", "documents": [{"_id": 3}], "writeConcern": {"j": True}})
            server.signal(getattr(signal, end))
            server.wait()
            start(port=server.port)
            items.insert_one({"_id": 4})
            assert [e["documentKey"]["_id"] for e in take(stream, 2, 30)] == [3, 4]


def test_a_thousand_streams_each_hear_their_own(db):
    with contextlib.ExitStack() as opened:
        watch = lambda n: db.items.watch([{"$match": {"fullDocument.to": n}}], max_await_time_ms=1000)  # noqa: E731
        streams = [opened.enter_context(watch(n)) for n in range(1000)]
        db.items.insert_many([{"to": n} for n in range(1000)])
        for n, stream in enumerate(streams):
            assert take(stream, 1)[0]["fullDocument"]["to"] == n
        db.items.insert_one({"to": 500})
        assert take(streams[500], 1)[0]["fullDocument"]["to"] == 500
        assert streams[499].try_next() is None
