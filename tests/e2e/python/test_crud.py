"""Documents through the driver: what is written is what is read, and wrong writes are refused."""

import datetime
import re
import time
import uuid

import bson
import pymongo
import pytest
from bson import decimal128
from pymongo.errors import BulkWriteError, DuplicateKeyError, OperationFailure


def test_write_read_update_delete(db):
    items = db.items
    assert items.insert_one({"_id": 1, "name": "a", "tags": ["x", "y"]}).inserted_id == 1
    items.insert_many([{"_id": n, "name": "b", "stock": {"count": n}} for n in range(2, 10)])
    assert items.count_documents({"name": "b", "stock.count": {"$gte": 5}}) == 5
    assert items.update_one({"_id": 1}, {"$addToSet": {"tags": "z"}, "$inc": {"seen": 2}}).modified_count == 1
    assert items.find_one({"tags": "z"}) == {"_id": 1, "name": "a", "tags": ["x", "y", "z"], "seen": 2}
    changed = items.update_many({"stock.count": {"$lt": 4}}, {"$set": {"stock.low": True}})
    assert (changed.matched_count, changed.modified_count) == (2, 2)
    assert items.delete_many({"stock.low": True}).deleted_count == 2
    assert sorted(items.distinct("name")) == ["a", "b"]


def test_upsert_and_find_and_modify(db):
    result = db.counters.update_one({"_id": "c"}, {"$inc": {"n": 1}, "$setOnInsert": {"born": True}}, upsert=True)
    assert result.upserted_id == "c"
    after = db.counters.find_one_and_update({"_id": "c"}, {"$inc": {"n": 5}}, return_document=True)
    assert after == {"_id": "c", "n": 6, "born": True}
    assert db.counters.find_one_and_replace({"_id": "c"}, {"n": 0}) == after
    assert db.counters.find_one_and_delete({"n": 0}) == {"_id": "c", "n": 0}
    assert db.counters.find_one_and_delete({"n": 0}) is None


def test_sort_skip_limit_projection(db):
    db.rows.insert_many([{"_id": n, "k": n % 3, "v": -n} for n in range(12)])
    found = list(db.rows.find({}, {"_id": 1, "k": 1}).sort([("k", -1), ("_id", 1)]).skip(2).limit(3))
    assert found == [{"_id": 8, "k": 2}, {"_id": 11, "k": 2}, {"_id": 1, "k": 1}]


def test_bulk_write_reports_each_failure(db):
    requests = [
        pymongo.InsertOne({"_id": 1}),
        pymongo.InsertOne({"_id": 1}),
        pymongo.UpdateOne({"_id": 1}, {"$set": {"x": 1}}),
        pymongo.DeleteOne({"_id": 9}),
        pymongo.InsertOne({"_id": 1}),
    ]
    with pytest.raises(BulkWriteError) as failure:
        db.bulk.bulk_write(requests, ordered=False)
    details = failure.value.details
    assert [error["index"] for error in details["writeErrors"]] == [1, 4]
    assert {error["code"] for error in details["writeErrors"]} == {11000}
    assert (details["nInserted"], details["nModified"], details["nRemoved"]) == (1, 1, 0)


def test_aggregate(db):
    db.orders.insert_many([{"customer": c, "total": t} for c, t in (("a", 5), ("b", 7), ("a", 11), ("c", 1))])
    pipeline = [
        {"$match": {"total": {"$gt": 1}}},
        {"$group": {"_id": "$customer", "sum": {"$sum": "$total"}, "orders": {"$sum": 1}}},
        {"$sort": {"sum": -1}},
    ]
    assert list(db.orders.aggregate(pipeline)) == [
        {"_id": "a", "sum": 16, "orders": 2},
        {"_id": "b", "sum": 7, "orders": 1},
    ]


def test_every_type_comes_back_as_it_was_sent(db):
    sent = {
        "_id": bson.ObjectId(),
        "z first": 1.5,
        "double": -0.0,
        "string": "κόσμε \U0001f54a",
        "document": {"b": 1, "a": {"deep": [1, [2, {"x": None}]]}},
        "binary": bson.Binary(b"\x00\xff", 128),
        "old binary": bson.Binary(b"abc", 2),
        "uuid": bson.Binary.from_uuid(uuid.UUID(int=7)),
        "true": True,
        "date": datetime.datetime(2026, 2, 3, 4, 5, 6, 789000),
        "regex": bson.Regex("^a.b$", "imsx"),
        "code": bson.Code("return 1"),
        "scoped": bson.Code("return x", {"x": 1}),
        "int32": 2**31 - 1,
        "int64": bson.Int64(5),
        "large": 2**63 - 1,
        "timestamp": bson.Timestamp(5, 6),
        "decimal": decimal128.Decimal128("1.10E+3"),
        "min": bson.MinKey(),
        "max": bson.MaxKey(),
        "a last": "kept in order",
    }
    raw = bson.encode(sent)
    collection = db.get_collection("types", bson.CodecOptions(document_class=bson.raw_bson.RawBSONDocument))
    collection.insert_one(bson.raw_bson.RawBSONDocument(raw))
    assert collection.find_one().raw == raw


def test_unique_index_refuses_the_second(db):
    db.users.create_index("mail", unique=True)
    db.users.insert_one({"mail": "a@example.com"})
    with pytest.raises(DuplicateKeyError) as refused:
        db.users.insert_one({"mail": "a@example.com"})
    assert refused.value.details["keyPattern"] == {"mail": 1}
    assert refused.value.details["keyValue"] == {"mail": "a@example.com"}
    db.users.insert_one({"mail": "b@example.com"})
    with pytest.raises(DuplicateKeyError):
        db.users.update_one({"mail": "b@example.com"}, {"$set": {"mail": "a@example.com"}})
    assert db.users.count_documents({}) == 2
    with pytest.raises(OperationFailure):
        db.users.insert_many([{"other": 1}, {"other": 2}])
    assert db.users.count_documents({"mail": None}) == 1


def test_expired_documents_go_within_a_second(db):
    db.lived.create_index("delete_at", expireAfterSeconds=0)
    lifetime = datetime.timedelta(seconds=1.5)
    expires = datetime.datetime.now(datetime.UTC) + lifetime
    db.lived.insert_many([{"_id": 1, "delete_at": expires}, {"_id": 2, "delete_at": None}, {"_id": 3}])
    with db.lived.watch([{"$match": {"operationType": "delete"}}], max_await_time_ms=200) as stream:
        while stream.try_next() is None:
            late = datetime.datetime.now(datetime.UTC) - expires
            assert late < datetime.timedelta(seconds=3), "the document never expired"
            if late < datetime.timedelta(seconds=-0.3):
                assert db.lived.count_documents({"_id": 1}) == 1, "the document went too early"
    late = datetime.datetime.now(datetime.UTC) - expires
    assert datetime.timedelta(0) <= late <= datetime.timedelta(seconds=1), f"{late} late"
    assert sorted(d["_id"] for d in db.lived.find()) == [2, 3]


def test_wrong_requests_are_named(db):
    cases = [
        (lambda: db.x.update_one({}, {"$nonsense": {"a": 1}}), 9, "nonsense"),
        (lambda: list(db.x.find({"a": {"$nonsense": 1}})), 2, "nonsense"),
        (lambda: list(db.x.aggregate([{"$nonsense": 1}])), 40324, "nonsense"),
        (lambda: db.command("nonsense"), 59, "nonsense"),
        (lambda: db.command({"find": 5}), 73, ""),
    ]
    for call, code, text in cases:
        with pytest.raises(OperationFailure) as refused:
            call()
        assert refused.value.code == code, refused.value
        assert re.search(text, str(refused.value))


def test_a_document_may_be_16_mb_and_no_more(db):
    full = b"x" * (16 * 1024 * 1024 - 100)
    db.large.insert_one({"_id": 1, "data": full})
    assert db.large.find_one()["data"] == full
    with pytest.raises((OperationFailure, pymongo.errors.DocumentTooLarge)):
        db.large.update_one({"_id": 1}, {"$set": {"more": b"x" * 200}})
    assert db.large.find_one({"more": {"$exists": True}}) is None


def test_max_time_ends_a_long_query(db):
    db.slow.insert_many([{"n": n} for n in range(3000)])
    every_pair = [{"$lookup": {"from": "slow", "pipeline": [], "as": "all"}}, {"$match": {"all.n": -1}}]
    begun = time.monotonic()
    with pytest.raises(pymongo.errors.ExecutionTimeout):
        list(db.slow.aggregate(every_pair, maxTimeMS=100))
    assert time.monotonic() - begun < 5
