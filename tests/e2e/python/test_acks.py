"""Write concerns, levels of acknowledgement and value at risk, as an unmodified driver meets them."""

import pymongo
import pytest
from bson import Int64
from conftest import connect
from pymongo import WriteConcern
from pymongo.errors import BulkWriteError, OperationFailure, WriteConcernError, WriteError

RISK = ["--sync", "never", "--risk-cap", "10", "--risk-field", "e2e.paid*=order.amount"]


@pytest.mark.parametrize(
    "concern",
    [WriteConcern(), WriteConcern(w=1, j=False), WriteConcern(w=1, j=True), WriteConcern("majority"),
     WriteConcern("majority", j=True, wtimeout=10_000), WriteConcern(w=1, wtimeout=10_000)],
    ids=str,
)
def test_write_concerns_of_one_node_are_satisfied(start, concern):
    with connect(start()) as client:
        items = client.e2e.get_collection("items", write_concern=concern)
        assert items.insert_one({"_id": 1}).acknowledged
        assert items.insert_many([{"_id": n} for n in range(2, 5)], ordered=False).inserted_ids == [2, 3, 4]
        assert items.update_many({}, {"$set": {"x": 1}}).modified_count == 4
        assert items.find_one_and_update({"_id": 1}, {"$set": {"x": 2}})["x"] == 1
        assert items.delete_one({"_id": 1}).deleted_count == 1
        with pytest.raises(BulkWriteError) as failure:
            items.insert_many([{"_id": 2}, {"_id": 9}], ordered=False)
        assert failure.value.details["nInserted"] == 1 and not failure.value.details["writeConcernErrors"]


def test_what_one_node_cannot_do_is_said_and_the_write_is_there(start):
    with connect(start()) as client:
        items = client.e2e.get_collection("items", write_concern=WriteConcern(w=2))
        with pytest.raises(WriteConcernError) as failure:
            items.insert_one({"_id": 1})
        assert failure.value.code == 100
        assert items.count_documents({}) == 1
        unacknowledged = client.e2e.get_collection("items", write_concern=WriteConcern(w=0))
        assert not unacknowledged.insert_one({"_id": 2}).acknowledged


def test_an_unmodified_driver_stays_within_the_cap(start):
    with connect(start(args=RISK)) as client:
        paid = client.e2e.paid_orders
        for n in range(50):
            paid.insert_one({"_id": n, "order": {"amount": n % 7}})
        paid.insert_many([{"order": {"amount": 2.5}} for _ in range(20)])
        paid.bulk_write([pymongo.UpdateOne({"_id": n}, {"$set": {"order.amount": 3}}) for n in range(20)])
        paid.update_one({"_id": "new"}, {"$set": {"order.amount": Int64(100)}}, upsert=True)
        risk = client.admin.command("serverStatus")["rockdove"]["risk"]
        assert 0 < risk["exposure"]["ackedMax"] <= 10
        assert risk["held"] > 0 and risk["fields"] == ["e2e.paid*=order.amount"]
        for wrong in [-1, float("nan"), "12", True, [1], 2**60]:
            with pytest.raises(WriteError) as failure:
                paid.insert_one({"order": {"amount": wrong}})
            assert failure.value.code == 2
        client.e2e.free.insert_one({"order": {"amount": "whatever"}})


def test_any_driver_can_ask_for_a_level_by_the_command(start):
    with connect(start(args=RISK)) as client:
        def insert(**more):
            return client.e2e.command({"insert": "items", "documents": [{}], **more}).get("rockdove")

        assert insert() is None
        assert insert(rockdove={}) == {"ack": "async", "degraded": False}
        assert insert(rockdove={"ack": "sync"}) == {"ack": "sync", "degraded": False}
        assert insert(rockdove={"value": 3}) == {"ack": "async", "degraded": True}
        assert insert(rockdove={"value": Int64(300)}) == {"ack": "sync", "degraded": False}
        assert insert(rockdove={"ack": "async"}, writeConcern={"j": True}) == {"ack": "sync", "degraded": False}
        assert client.admin.command("hello")["rockdove"] == {"acks": 1, "risk": True}
        for wrong, code in [({"ack": "best"}, 2), ({"value": -1}, 2), ({"x": 1}, 40415)]:
            with pytest.raises(OperationFailure) as failure:
                insert(rockdove=wrong)
            assert failure.value.code == code
        with pytest.raises(OperationFailure) as failure:
            client.e2e.command({"find": "items", "rockdove": {}})
        assert failure.value.code == 40415
