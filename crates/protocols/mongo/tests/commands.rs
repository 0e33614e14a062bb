//! What the commands answer, over the wire.

mod support;

use rockdove_documents::{Doc, Owned, Value, doc};
use rockdove_engine::Namespace;
use rockdove_mongo::topology::{Identity, Role};
use std::time::Duration;
use support::{Peer, cursor, number, server, server_as, until_waits};

fn session(byte: u8) -> Doc {
    doc! { "id": Owned::Binary { subtype: 4, bytes: vec![byte; 16].into() } }
}

fn field<'d>(doc: &'d Doc, path: &str) -> Option<Value<'d>> {
    let mut parts = path.split('.');
    let first = doc.get(parts.next()?)?;
    parts.try_fold(first, |value, name| match value {
        Value::Document(doc) | Value::Array(doc) => doc.get(name),
        _ => None,
    })
}

fn integer(doc: &Doc, path: &str) -> i64 {
    field(doc, path).and_then(|value| value.as_integer()).unwrap_or_else(|| panic!("no {path} in {doc:?}"))
}

async fn fill(peer: &mut Peer, count: i32) {
    let mut insert = rockdove_documents::DocBuilder::new();
    insert.append("insert", "c").append("$db", "db").start_array("documents");
    for n in 0..count {
        insert.push(doc! { "_id": n, "n": (n % 10) });
    }
    insert.end();
    assert_eq!(number(&peer.good(&insert.finish()).await, "n"), i64::from(count));
}

#[tokio::test]
async fn an_insert_reports_each_failed_document() {
    let shared = server();
    let mut peer = Peer::connect(&shared);
    let documents = doc! { "d": [{ "_id": 1 }, { "_id": 1 }, { "_id": 2 }] };
    let insert = |ordered: bool| {
        doc! { "insert": "c", "documents": documents.get("d"), "ordered": ordered, "$db": "db" }
    };
    let reply = peer.good(&insert(true)).await;
    assert_eq!((number(&reply, "n"), integer(&reply, "writeErrors.0.index")), (1, 1));
    assert_eq!(integer(&reply, "writeErrors.0.code"), 11000);
    assert_eq!(integer(&reply, "writeErrors.0.keyPattern._id"), 1);
    assert_eq!(field(&reply, "writeErrors.1"), None);
    let reply = peer.good(&insert(false)).await;
    assert_eq!((number(&reply, "n"), integer(&reply, "writeErrors.1.index")), (1, 1));
    assert_eq!(peer.code(&doc! { "insert": "c", "documents": [], "$db": "db" }).await, 16);
    assert_eq!(peer.code(&doc! { "insert": "c", "$db": "db" }).await, 40414);
    assert_eq!(peer.code(&doc! { "insert": 1, "documents": [{}], "$db": "db" }).await, 73);
}

#[tokio::test]
async fn a_misspelt_field_is_refused_and_nothing_is_done() {
    let shared = server();
    let mut peer = Peer::connect(&shared);
    fill(&mut peer, 3).await;
    let bulk = |op: Doc, more: Doc| {
        let mut command = rockdove_documents::DocBuilder::new();
        command.append("bulkWrite", 1).start_array("ops").push(&op).end();
        command.start_array("nsInfo").push(doc! { "ns": "db.c" }).end();
        command.append_all(more.raw()).append("$db", "admin");
        command.finish()
    };
    for command in [
        doc! { "find": "c", "sot": { "n": 1 } },
        doc! { "insert": "c", "documents": [{}], "orderd": false },
        doc! { "update": "c", "updates": [{ "q": {}, "u": { "$set": { "x": 1 } } }], "upsert": true },
        doc! { "update": "c", "updates": [{ "q": {}, "u": { "$set": { "x": 1 } }, "mutli": true }] },
        doc! { "delete": "c", "deletes": [{ "q": {}, "limit": 0 }], "q": {} },
        doc! { "delete": "c", "deletes": [{ "q": {}, "limit": 0, "multi": true }] },
        doc! { "findAndModify": "c", "query": {}, "remove": true, "filter": { "n": 1 } },
        doc! { "aggregate": "c", "pipeline": [], "cursor": {}, "sort": { "n": 1 } },
        doc! { "createIndexes": "c", "indexes": [{ "key": { "n": 1 }, "name": "n" }], "unique": true },
        doc! { "count": "c", "filter": { "n": 1 } },
        doc! { "distinct": "c", "key": "n", "limit": 1 },
        doc! { "create": "d", "cappd": true },
        doc! { "collMod": "c", "validater": {} },
        doc! { "drop": "c", "dropTarget": true },
        doc! { "dropIndexes": "c", "index": "*", "name": "n" },
        doc! { "listIndexes": "c", "filter": {} },
        doc! { "listCollections": 1, "names": true },
        doc! { "listDatabases": 1, "names": true, "$db": "admin" },
        doc! { "renameCollection": "db.c", "to": "db.d", "droptarget": true, "$db": "admin" },
        doc! { "getMore": 1i64, "collection": "c", "limit": 1 },
        doc! { "killCursors": "c", "cursors": [], "all": true },
        bulk(doc! { "delete": 0, "filter": {} }, doc! { "order": false }),
        bulk(doc! { "delete": 0, "filter": {}, "limit": 1 }, doc! {}),
        bulk(doc! { "update": 0, "filter": {}, "u": {} }, doc! {}),
        bulk(doc! { "insert": 0, "document": {}, "upsert": true }, doc! {}),
    ] {
        let mut sent = rockdove_documents::DocBuilder::new();
        sent.append_all(command.raw());
        if command.get("$db").is_none() {
            sent.append("$db", "db");
        }
        assert_eq!(peer.code(&sent.finish()).await, 40415, "{command:?}");
    }
    let index = |ignores: bool| {
        doc! { "createIndexes": "c", "indexes": [{ "key": { "n": 1 }, "name": "n", "unqiue": true }],
        "ignoreUnknownIndexOptions": ignores, "$db": "db" }
    };
    assert_eq!(peer.code(&index(false)).await, 197);
    let all = peer.good(&doc! { "find": "c", "filter": { "x": { "$exists": false } }, "$db": "db" }).await;
    assert_eq!(cursor(&all).1.len(), 3);
    peer.good(&index(true)).await;
    let indexes = peer.good(&doc! { "listIndexes": "c", "$db": "db" }).await;
    let listed = &cursor(&indexes).1[1];
    assert_eq!((listed.get("name"), listed.get("unqiue")), (Some(Value::String("n")), None));
    // What every command may carry.
    let generic = doc! { "find": "c", "comment": 1, "maxTimeMS": 10_000, "$readPreference": { "mode": "primary" },
    "readConcern": {}, "lsid": (session(1)), "$db": "db" };
    peer.good(&generic).await;
    // What a router adds to statements.
    for (op, written) in [
        (
            doc! { "update": 0, "filter": {}, "updateMods": { "$set": { "y": 1 } }, "sampleId": 1 },
            "nModified",
        ),
        (doc! { "delete": 0, "filter": {}, "sampleId": 1 }, "nDeleted"),
    ] {
        assert_eq!(number(&peer.good(&bulk(op, doc! {})).await, written), 1);
    }
    for command in [
        doc! { "update": "c", "updates": [{ "q": {}, "u": { "$set": { "z": 1 } }, "sampleId": 1 }], "$db": "db" },
        doc! { "delete": "c", "deletes": [{ "q": {}, "limit": 1, "sampleId": 1 }], "$db": "db" },
    ] {
        assert_eq!(number(&peer.good(&command).await, "n"), 1);
    }
}

#[tokio::test]
async fn a_collection_that_only_has_the_name_of_another_is_left_alone() {
    let shared = server();
    let mut peer = Peer::connect(&shared);
    fill(&mut peer, 3).await;
    let listed = peer.good(&doc! { "listCollections": 1, "$db": "db" }).await;
    let own = field(&cursor(&listed).1[0], "info.uuid").expect("a UUID").to_owned();
    let other = Owned::Binary { subtype: 4, bytes: vec![7; 16].into() };
    for (uuid, code) in [(&own, None), (&other, Some(361)), (&Owned::Int32(1), Some(14))] {
        for command in [
            doc! { "find": "c", "collectionUUID": (uuid.clone()), "$db": "db" },
            doc! { "count": "c", "collectionUUID": (uuid.clone()), "$db": "db" },
            doc! { "insert": "c", "documents": [{}], "collectionUUID": (uuid.clone()), "$db": "db" },
            doc! { "delete": "c", "deletes": [{ "q": { "_id": 0 }, "limit": 0 }], "collectionUUID": (uuid.clone()), "$db": "db" },
            doc! { "bulkWrite": 1, "ops": [{ "insert": 0, "document": {} }],
            "nsInfo": [{ "ns": "db.c", "collectionUUID": (uuid.clone()) }], "$db": "admin" },
            doc! { "createIndexes": "c", "indexes": [{ "key": { "n": 1 }, "name": "n" }],
            "collectionUUID": (uuid.clone()), "$db": "db" },
            doc! { "collMod": "c", "collectionUUID": (uuid.clone()), "$db": "db" },
        ] {
            match code {
                None => drop(peer.good(&command).await),
                Some(code) => assert_eq!(peer.code(&command).await, code, "{command:?}"),
            }
        }
    }
    // Which one it is, if any of the database.
    peer.good(&doc! { "create": "d", "$db": "db" }).await;
    let refused = peer.run(&doc! { "find": "d", "collectionUUID": (own.clone()), "$db": "db" }).await;
    let text = |name: &str| refused.get(name).and_then(|value| value.as_str());
    let names = [text("db"), text("expectedCollection"), text("actualCollection")];
    assert_eq!(names, [Some("db"), Some("d"), Some("c")]);
    let refused = peer.run(&doc! { "find": "d", "collectionUUID": (other.clone()), "$db": "db" }).await;
    assert_eq!(refused.get("actualCollection"), Some(Value::Null));
    let rename = |from: &str, to: &str, uuid: &Owned, target: &Owned| {
        doc! { "renameCollection": from, "to": to, "collectionUUID": (uuid.clone()), "dropTarget": (target.clone()),
        "$db": "admin" }
    };
    assert_eq!(peer.code(&rename("db.d", "db.e", &own, &Owned::Bool(false))).await, 361);
    assert_eq!(peer.code(&rename("db.c", "db.d", &own, &other)).await, 361);
    peer.good(&rename("db.c", "db.e", &own, &Owned::Bool(false))).await;
    peer.good(&rename("db.e", "db.c", &own, &Owned::Bool(true))).await;
    assert_eq!(
        number(&peer.good(&doc! { "count": "c", "$db": "db" }).await, "n"),
        4,
        "what was refused was not done"
    );
}

#[tokio::test]
async fn a_collections_collation_counts_wherever_none_is_named() {
    let shared = server();
    let mut peer = Peer::connect(&shared);
    let create = doc! { "create": "c", "collation": { "locale": "en", "strength": 2 }, "$db": "db" };
    peer.good(&create).await;
    let documents =
        doc! { "d": [{ "_id": "k", "a": "x", "l": ["p"] }, { "_id": "K" }, { "_id": "m", "a": "X" }] };
    let insert = doc! { "insert": "c", "documents": documents.get("d"), "ordered": false, "$db": "db" };
    let reply = peer.good(&insert).await;
    assert_eq!((number(&reply, "n"), integer(&reply, "writeErrors.0.code")), (2, 11000), "k is K");
    let update = |q: Doc, u: Doc| {
        doc! { "update": "c", "updates": [{ "q": q, "u": u, "multi": true }], "$db": "db" }
    };
    let reply = peer.good(&update(doc! { "a": "X" }, doc! { "$set": { "b": 1 } })).await;
    assert_eq!(number(&reply, "nModified"), 2);
    let expression = doc! { "$expr": { "$eq": ["$a", "X"] } };
    let count = doc! { "count": "c", "query": (expression.clone()), "$db": "db" };
    assert_eq!(number(&peer.good(&count).await, "n"), 2);
    let pipeline = doc! { "p": [{ "$match": (expression) }, { "$set": { "same": { "$eq": ["$a", "X"] } } },
    { "$match": { "same": true } }, { "$group": { "_id": "$a" } }] };
    let aggregate = doc! { "aggregate": "c", "pipeline": pipeline.get("p"), "cursor": {}, "$db": "db" };
    assert_eq!(cursor(&peer.good(&aggregate).await).1.len(), 1);
    let reply = peer.good(&update(doc! { "_id": "K" }, doc! { "$addToSet": { "l": "P" } })).await;
    assert_eq!((number(&reply, "n"), number(&reply, "nModified")), (1, 0), "P is there");
    let group =
        doc! { "aggregate": "c", "pipeline": [{ "$group": { "_id": "$a" } }], "cursor": {}, "$db": "db" };
    assert_eq!(cursor(&peer.good(&group).await).1.len(), 1);
    let simple = doc! { "aggregate": "c", "pipeline": [{ "$group": { "_id": "$a" } }], "cursor": {},
    "collation": { "locale": "simple" }, "$db": "db" };
    assert_eq!(cursor(&peer.good(&simple).await).1.len(), 2);

    // Indexes take it over, unless they name one.
    let indexes = doc! { "createIndexes": "c", "indexes": [
        { "key": { "a": 1 }, "name": "a" }, { "key": { "b": 1 }, "name": "b", "collation": { "locale": "simple" } },
    ], "$db": "db" };
    peer.good(&indexes).await;
    let listed = cursor(&peer.good(&doc! { "listIndexes": "c", "$db": "db" }).await).1;
    let collated: Vec<bool> = listed.iter().map(|index| index.get("collation").is_some()).collect();
    assert_eq!(collated, [true, true, false]);
    let explain = doc! { "explain": { "find": "c", "filter": { "a": "X" } }, "$db": "db" };
    let plan = peer.good(&explain).await;
    assert_eq!(field(&plan, "queryPlanner.winningPlan.inputStage.indexName"), Some(Value::String("a")));

    let modify =
        doc! { "findAndModify": "c", "query": { "_id": "M" }, "update": { "$set": { "c": 1 } }, "$db": "db" };
    assert_eq!(field(&peer.good(&modify).await, "value._id"), Some(Value::String("m")));
    let delete = doc! { "delete": "c", "deletes": [{ "q": { "a": "x" }, "limit": 0 }], "$db": "db" };
    assert_eq!(number(&peer.good(&delete).await, "n"), 2);
    let wrong = doc! { "create": "d", "collation": { "locale": "nowhere" }, "$db": "db" };
    assert_eq!(peer.code(&wrong).await, 2);

    // Variables too.
    let find = |collation: Doc| {
        doc! { "find": "c", "filter": { "$expr": "$$same" }, "let": { "same": { "$eq": ["x", "X"] } },
        "collation": collation, "$db": "db" }
    };
    let found = async |peer: &mut Peer, collation| cursor(&peer.good(&find(collation)).await).1.len();
    peer.good(&doc! { "insert": "c", "documents": [{}], "$db": "db" }).await;
    assert_eq!(found(&mut peer, doc! {}).await, 1);
    assert_eq!(found(&mut peer, doc! { "locale": "simple" }).await, 0);
    let aggregate = doc! { "aggregate": 1, "pipeline": [{ "$documents": [{ "same": "$$same" }] }], "cursor": {},
    "let": { "same": { "$eq": ["x", "X"] } }, "collation": { "locale": "en", "strength": 1 }, "$db": "db" };
    assert_eq!(cursor(&peer.good(&aggregate).await).1, [doc! { "same": true }]);
}

/// As mongorestore sends what `listCollections` showed to mongodump.
#[tokio::test]
async fn a_collection_is_restored_with_its_id_index() {
    let shared = server();
    let mut peer = Peer::connect(&shared);
    let collation = doc! { "locale": "en", "strength": 2 };
    peer.good(&doc! { "create": "a", "$db": "db" }).await;
    peer.good(&doc! { "create": "b", "collation": (collation.clone()), "$db": "db" }).await;
    let listed = cursor(&peer.good(&doc! { "listCollections": 1, "$db": "db" }).await).1;
    for collection in &listed {
        let name = collection.get("name").unwrap().as_str().unwrap();
        let mut create = rockdove_documents::DocBuilder::new();
        create
            .append("create", name)
            .append_all(field(collection, "options").unwrap().as_document().unwrap());
        create.append("idIndex", collection.get("idIndex").unwrap()).append("$db", "restored");
        peer.good(&create.finish()).await;
        let indexes = peer.good(&doc! { "listIndexes": name, "$db": "restored" }).await;
        assert_eq!(cursor(&indexes).1[0].raw().get("collation"), field(collection, "idIndex.collation"));
    }
    assert_eq!(listed.len(), 2);
    let full =
        doc! { "locale": "en", "caseLevel": false, "caseFirst": "off", "strength": 2, "version": "57.1" };
    let create = doc! { "create": "full", "idIndex": { "key": { "_id": 1 }, "name": "_id_", "collation": full },
    "collation": (collation.clone()), "$db": "db" };
    peer.good(&create).await;
    peer.good(&doc! { "create": "c", "idIndex": { "key": { "_id": 1.0 }, "name": "x" }, "$db": "db" }).await;
    let mut code = async |index: Doc| {
        let create = doc! { "create": "d", "idIndex": index, "collation": (collation.clone()), "$db": "db" };
        peer.code(&create).await
    };
    assert_eq!(code(doc! { "key": { "_id": (-1) }, "name": "_id_" }).await, 2);
    assert_eq!(code(doc! { "key": { "_id": 1, "a": 1 }, "name": "_id_" }).await, 2);
    assert_eq!(code(doc! { "key": { "_id": 1 }, "name": "_id_", "collation": { "locale": "de" } }).await, 2);
    assert_eq!(code(doc! { "name": "_id_" }).await, 9);
    assert_eq!(code(doc! { "key": { "_id": 1 }, "name": "_id_", "sparse": true }).await, 197);
    let view = doc! { "create": "v", "viewOn": "a", "idIndex": { "key": { "_id": 1 } }, "$db": "db" };
    assert_eq!(peer.code(&view).await, 72);
    assert_eq!(peer.code(&doc! { "create": "d", "idIndex": 1, "$db": "db" }).await, 14);
    // As people write documents.
    let key = doc! { "key": { "_id": (-1), "b": "x" } };
    for (command, text) in [
        (doc! { "create": "d", "idIndex": key, "$db": "db" }, "but got { _id: -1, b: \"x\" }"),
        (
            doc! { "create": "b", "$db": "db" },
            "different options: { collation: { locale: \"en\", strength: 2 } }",
        ),
        (doc! { "dropIndexes": "b", "index": { "n": 1 }, "$db": "db" }, "with key: { n: 1 }"),
    ] {
        let reply = peer.run(&command).await;
        let message = reply.get("errmsg").unwrap().as_str().unwrap();
        assert!(message.ends_with(text), "{message}");
    }
}

#[tokio::test]
async fn what_old_clients_and_tools_send_is_accepted_or_refused_clearly() {
    let mut peer = Peer::connect(&server());
    peer.good(&doc! { "create": "c", "flags": 1, "$db": "db" }).await;
    let listed = peer.good(&doc! { "listCollections": 1, "$db": "db" }).await;
    assert_eq!(field(&cursor(&listed).1[0], "options"), Some(Value::Document(doc! {}.raw())));
    let reply = peer.run(&doc! { "top": 1, "$db": "admin" }).await;
    assert_eq!(number(&reply, "code"), 115);
    assert!(reply.get("errmsg").unwrap().as_str().unwrap().contains("'top'"));
}

#[tokio::test]
async fn a_moderate_validator_spares_what_was_invalid_before() {
    let shared = server();
    let mut peer = Peer::connect(&shared);
    let fill =
        doc! { "insert": "c", "documents": [{ "_id": 1, "n": "text" }, { "_id": 2, "n": 2 }], "$db": "db" };
    peer.good(&fill).await;
    let update = |id: i32| {
        doc! { "update": "c", "updates": [{ "q": { "_id": id }, "u": { "$set": { "n": "other" } } }], "$db": "db" }
    };
    for (level, first) in [("strict", Some(121)), ("moderate", None)] {
        let modify = doc! { "collMod": "c", "validator": { "n": { "$type": "number" } }, "validationLevel": level, "$db": "db" };
        peer.good(&modify).await;
        let code = |reply: &Doc| field(reply, "writeErrors.0.code").and_then(|code| code.as_integer());
        assert_eq!(code(&peer.good(&update(1)).await), first, "{level}");
        assert_eq!(code(&peer.good(&update(2)).await), Some(121), "{level}");
    }
    assert_eq!(
        integer(
            &peer.good(&doc! { "insert": "c", "documents": [{ "n": "x" }], "$db": "db" }).await,
            "writeErrors.0.code"
        ),
        121
    );
}

#[tokio::test]
async fn an_update_counts_matched_modified_and_upserted() {
    let shared = server();
    let mut peer = Peer::connect(&shared);
    fill(&mut peer, 10).await;
    let update = doc! { "update": "c", "$db": "db", "updates": [
        { "q": { "_id": 1 }, "u": { "$set": { "a": 1 } } },
        { "q": { "_id": 1 }, "u": { "$set": { "a": 1 } } },
        { "q": { "n": { "$lt": 3 } }, "u": { "$inc": { "k": 1 } }, "multi": true },
        { "q": { "_id": 99 }, "u": { "$set": { "a": 1 } }, "upsert": true }
    ] };
    let reply = peer.good(&update).await;
    assert_eq!((number(&reply, "n"), number(&reply, "nModified")), (6, 4));
    assert_eq!((integer(&reply, "upserted.0.index"), integer(&reply, "upserted.0._id")), (3, 99));
}

#[tokio::test]
async fn a_statement_that_cannot_be_parsed_is_a_failed_statement() {
    let shared = server();
    let mut peer = Peer::connect(&shared);
    fill(&mut peer, 3).await;
    let update = |ordered: bool| {
        doc! { "update": "c", "$db": "db", "ordered": ordered, "updates": [
            { "q": { "_id": 0 }, "u": { "$inc": { "n": 1 } } },
            { "q": { "_id": 1 }, "u": { "$nonsense": { "n": 1 } } },
            { "q": { "_id": 2 }, "u": { "$inc": { "n": 1 } } }
        ] }
    };
    let reply = peer.good(&update(true)).await;
    assert_eq!((number(&reply, "n"), integer(&reply, "writeErrors.0.index")), (1, 1));
    assert_eq!(integer(&reply, "writeErrors.0.code"), 9);
    let reply = peer.good(&update(false)).await;
    assert_eq!((number(&reply, "n"), integer(&reply, "writeErrors.0.index")), (2, 1));
}

#[tokio::test]
async fn a_delete_takes_one_or_all() {
    let shared = server();
    let mut peer = Peer::connect(&shared);
    fill(&mut peer, 30).await;
    let delete =
        |limit: i32| doc! { "delete": "c", "$db": "db", "deletes": [{ "q": { "n": 1 }, "limit": limit }] };
    assert_eq!(number(&peer.good(&delete(1)).await, "n"), 1);
    assert_eq!(number(&peer.good(&delete(0)).await, "n"), 2);
    assert_eq!(peer.code(&delete(5)).await, 9);
}

#[tokio::test]
async fn a_retried_write_is_carried_out_once() {
    let shared = server();
    let mut peer = Peer::connect(&shared);
    fill(&mut peer, 1).await;
    let update = doc! {
        "update": "c", "$db": "db", "lsid": session(1), "txnNumber": 1i64,
        "updates": [{ "q": { "_id": 0 }, "u": { "$inc": { "n": 1 } } }]
    };
    let first = peer.good(&update).await;
    assert_eq!(first.get("retriedStmtIds"), None);
    let again = peer.good(&update).await;
    assert_eq!((number(&again, "n"), number(&again, "nModified")), (1, 1));
    assert_eq!(integer(&again, "retriedStmtIds.0"), 0);
    let (_, docs) = cursor(&peer.good(&doc! { "find": "c", "$db": "db" }).await);
    assert_eq!(docs[0].get("n"), Some(Value::Int32(1)));
    let modify = doc! {
        "findAndModify": "c", "$db": "db", "lsid": session(1), "txnNumber": 2i64,
        "query": { "_id": 0 }, "update": { "$inc": { "n": 1 } }, "new": true
    };
    assert_eq!(integer(&peer.good(&modify).await, "value.n"), 2);
    let again = peer.good(&modify).await;
    assert_eq!((integer(&again, "value.n"), number(&again, "retriedStmtId")), (2, 0));
    assert_eq!(peer.code(&update).await, 225);
}

#[tokio::test]
async fn find_and_modify_tells_what_it_did() {
    let shared = server();
    let mut peer = Peer::connect(&shared);
    fill(&mut peer, 3).await;
    let run =
        doc! { "findAndModify": "c", "$db": "db", "query": { "_id": 1 }, "update": { "$set": { "a": 5 } } };
    let reply = peer.good(&run).await;
    assert_eq!(field(&reply, "lastErrorObject.updatedExisting"), Some(Value::Bool(true)));
    assert_eq!(field(&reply, "value.a"), None, "as it was before");
    let run = doc! {
        "findandmodify": "c", "$db": "db", "query": { "_id": 7 }, "update": { "$set": { "a": 5 } },
        "upsert": true, "new": true, "fields": { "a": 1 }
    };
    let reply = peer.good(&run).await;
    assert_eq!((integer(&reply, "lastErrorObject.upserted"), integer(&reply, "value.a")), (7, 5));
    let run = doc! { "findAndModify": "c", "$db": "db", "sort": { "_id": (-1) }, "remove": true };
    assert_eq!(integer(&peer.good(&run).await, "value._id"), 7);
    let run = doc! { "findAndModify": "c", "$db": "db", "query": { "_id": 50 }, "remove": true };
    let reply = peer.good(&run).await;
    assert_eq!((integer(&reply, "lastErrorObject.n"), reply.get("value")), (0, Some(Value::Null)));
    let run = doc! { "findAndModify": "c", "$db": "db", "remove": true, "new": true };
    assert_eq!(peer.code(&run).await, 9);
}

#[tokio::test]
async fn results_come_in_batches() {
    let shared = server();
    let mut peer = Peer::connect(&shared);
    fill(&mut peer, 250).await;
    let (id, docs) = cursor(&peer.good(&doc! { "find": "c", "$db": "db" }).await);
    assert_eq!(docs.len(), 101);
    let more = doc! { "getMore": id, "collection": "c", "batchSize": 100, "$db": "db" };
    let (same, docs) = cursor(&peer.good(&more).await);
    assert_eq!((same, docs.len()), (id, 100));
    let (end, docs) = cursor(&peer.good(&more).await);
    assert_eq!((end, docs.len()), (0, 49));
    assert_eq!(peer.code(&more).await, 43);
    let (id, docs) = cursor(&peer.good(&doc! { "find": "c", "batchSize": 0, "$db": "db" }).await);
    assert!(id != 0 && docs.is_empty());
    let (id, docs) = cursor(&peer.good(&doc! { "find": "c", "limit": 5, "$db": "db" }).await);
    assert_eq!((id, docs.len()), (0, 5));
    let one = doc! { "find": "c", "batchSize": 2, "singleBatch": true, "$db": "db" };
    let (id, docs) = cursor(&peer.good(&one).await);
    assert_eq!((id, docs.len()), (0, 2));
    assert_eq!(peer.code(&doc! { "find": "c", "limit": (-1), "$db": "db" }).await, 51024);
}

#[tokio::test]
async fn cursors_belong_to_their_session_and_can_be_killed() {
    let shared = server();
    let mut peer = Peer::connect(&shared);
    fill(&mut peer, 10).await;
    let find = doc! { "find": "c", "batchSize": 2, "lsid": session(1), "$db": "db" };
    let (id, _) = cursor(&peer.good(&find).await);
    let more = doc! { "getMore": id, "collection": "c", "$db": "db" };
    assert_eq!(peer.code(&more).await, 50737);
    let kill = doc! { "killCursors": "c", "cursors": [id, 12345i64], "$db": "db" };
    let reply = peer.good(&kill).await;
    assert_eq!((integer(&reply, "cursorsKilled.0"), integer(&reply, "cursorsNotFound.0")), (id, 12345));
    let (id, _) = cursor(&peer.good(&find).await);
    let session = session(1);
    peer.good(&doc! { "endSessions": [&session], "$db": "admin" }).await;
    let more = doc! { "getMore": id, "collection": "c", "lsid": &session, "$db": "db" };
    assert_eq!(peer.code(&more).await, 43);
}

#[tokio::test]
async fn killing_a_waiting_cursor_ends_the_wait() {
    let shared = server();
    let (mut peer, mut other) = (Peer::connect(&shared), Peer::connect(&shared));
    let watch = doc! { "aggregate": "c", "pipeline": [{ "$changeStream": {} }], "cursor": {}, "$db": "db" };
    let (id, _) = cursor(&peer.good(&watch).await);
    peer.send(&doc! { "getMore": id, "collection": "c", "maxTimeMS": 60_000, "$db": "db" }).await;
    until_waits(&shared, "getMore").await;
    other.good(&doc! { "killCursors": "c", "cursors": [id], "$db": "db" }).await;
    assert_eq!(number(&peer.receive().await.unwrap().doc, "code"), 237);
}

#[tokio::test]
async fn a_change_stream_delivers_and_resumes() {
    let shared = server();
    let mut peer = Peer::connect(&shared);
    let watch = doc! {
        "aggregate": "c", "cursor": {}, "$db": "db",
        "pipeline": [{ "$changeStream": {} }, { "$match": { "operationType": { "$in": ["insert", "delete"] } } }]
    };
    let reply = peer.good(&watch).await;
    assert!(field(&reply, "cursor.postBatchResumeToken._data").is_some());
    let (id, events) = cursor(&reply);
    assert!(events.is_empty());
    fill(&mut peer, 3).await;
    peer.good(&doc! { "update": "c", "updates": [{ "q": {}, "u": { "$set": { "x": 1 } } }], "$db": "db" })
        .await;
    peer.good(&doc! { "delete": "c", "deletes": [{ "q": { "_id": 0 }, "limit": 1 }], "$db": "db" }).await;
    let more = doc! { "getMore": id, "collection": "c", "maxTimeMS": 1000, "$db": "db" };
    let mut events = Vec::new();
    while events.len() < 4 {
        events.extend(cursor(&peer.good(&more).await).1);
    }
    let types: Vec<_> =
        events.iter().map(|event| event.get("operationType").unwrap().as_str().unwrap()).collect();
    assert_eq!(types, ["insert", "insert", "insert", "delete"]);
    let token = events[2].get("_id").unwrap();
    let resumed = doc! {
        "aggregate": "c", "cursor": {}, "$db": "db",
        "pipeline": [{ "$changeStream": { "resumeAfter": token } }]
    };
    let (_, events) = cursor(&peer.good(&resumed).await);
    let types: Vec<_> =
        events.iter().map(|event| event.get("operationType").unwrap().as_str().unwrap()).collect();
    assert_eq!(types, ["update", "delete"]);
}

#[tokio::test]
async fn a_quiet_change_stream_answers_when_its_time_is_over() {
    let shared = server();
    let mut peer = Peer::connect(&shared);
    let watch = doc! { "aggregate": 1, "pipeline": [{ "$changeStream": {} }], "cursor": {}, "$db": "db" };
    let reply = peer.good(&watch).await;
    assert_eq!(field(&reply, "cursor.ns"), Some(Value::String("db.$cmd.aggregate")));
    let (id, _) = cursor(&reply);
    let before = std::time::Instant::now();
    let more = doc! { "getMore": id, "collection": "$cmd.aggregate", "maxTimeMS": 60, "$db": "db" };
    let reply = peer.good(&more).await;
    assert!(before.elapsed() >= Duration::from_millis(60));
    assert!(field(&reply, "cursor.postBatchResumeToken._data").is_some());
}

#[tokio::test]
async fn wrong_change_streams_are_refused() {
    let shared = server();
    let mut peer = Peer::connect(&shared);
    for (stage, number) in [
        (doc! { "fullDocument": "sometimes" }, 2),
        (doc! { "unknownOption": 1 }, 40415),
        (doc! { "resumeAfter": { "_data": "zz" } }, 260),
        (doc! { "resumeAfter": {}, "startAfter": {} }, 50674),
        (doc! { "startAtOperationTime": 5 }, 14),
        (doc! { "allChangesForCluster": true }, 72),
    ] {
        let watch =
            doc! { "aggregate": "c", "pipeline": [{ "$changeStream": &stage }], "cursor": {}, "$db": "db" };
        assert_eq!(peer.code(&watch).await, number, "{stage:?}");
    }
}

#[tokio::test]
async fn a_tailable_cursor_waits_for_inserts() {
    let shared = server();
    let (mut peer, mut other) = (Peer::connect(&shared), Peer::connect(&shared));
    peer.good(&doc! { "create": "c", "capped": true, "size": 100_000, "$db": "db" }).await;
    fill(&mut peer, 3).await;
    let find = doc! { "find": "c", "filter": { "n": { "$gt": 0 } }, "tailable": true, "awaitData": true, "$db": "db" };
    let (id, docs) = cursor(&peer.good(&find).await);
    assert_eq!(docs.len(), 2);
    peer.send(&doc! { "getMore": id, "collection": "c", "maxTimeMS": 20_000, "$db": "db" }).await;
    until_waits(&shared, "getMore").await;
    let insert =
        doc! { "insert": "c", "documents": [{ "_id": 50, "n": 0 }, { "_id": 51, "n": 5 }], "$db": "db" };
    other.good(&insert).await;
    let (_, docs) = cursor(&peer.receive().await.unwrap().doc);
    assert_eq!(docs, [doc! { "_id": 51, "n": 5 }]);
    let find = doc! { "find": "plain", "tailable": true, "$db": "db" };
    other.good(&doc! { "create": "plain", "$db": "db" }).await;
    assert_eq!(peer.code(&find).await, 2);
}

#[tokio::test]
async fn a_tailable_cursor_compares_as_its_collection_does() {
    let strength = doc! { "locale": "en", "strength": 2 };
    let simple = doc! { "locale": "simple" };
    // The collation of the collection, of the query, and both.
    for (default, own) in [(Some(&strength), None), (None, Some(&strength)), (Some(&simple), Some(&strength))]
    {
        let shared = server();
        let (mut peer, mut other) = (Peer::connect(&shared), Peer::connect(&shared));
        let create =
            doc! { "create": "c", "capped": true, "size": 100_000, "collation": default, "$db": "db" };
        peer.good(&create).await;
        peer.good(&doc! { "insert": "c", "documents": [{ "_id": 1, "name": "Alice" }], "$db": "db" }).await;
        let find = doc! {
            "find": "c", "filter": { "name": "ALICE" }, "collation": own, "tailable": true, "awaitData": true,
            "$db": "db"
        };
        let (id, docs) = cursor(&peer.good(&find).await);
        assert_eq!(docs.len(), 1);
        peer.send(&doc! { "getMore": id, "collection": "c", "maxTimeMS": 20_000, "$db": "db" }).await;
        let waits = || {
            let mut running = shared.clients.list().into_iter().filter_map(|client| client.running());
            running.any(|operation| operation.command.get("getMore").is_some())
        };
        while !waits() {
            tokio::task::yield_now().await;
        }
        other.good(&doc! { "insert": "c", "documents": [{ "_id": 2, "name": "alice" }], "$db": "db" }).await;
        let (_, docs) = cursor(&peer.receive().await.unwrap().doc);
        assert_eq!(docs, [doc! { "_id": 2, "name": "alice" }]);
    }
}

#[tokio::test]
async fn a_wrong_form_fails_the_command_and_a_wrong_statement_itself() {
    let shared = server();
    let mut peer = Peer::connect(&shared);
    fill(&mut peer, 10).await;
    let commands = |statement: &Doc, ordered: bool| {
        let remove = |n: i32| doc! { "q": { "_id": n }, "limit": 1 };
        doc! { "delete": "c", "deletes": [remove(1), statement, remove(2)], "ordered": ordered, "$db": "db" }
    };
    let session = doc! { "id": Owned::Binary { subtype: 4, bytes: vec![1; 16].into() } };
    let whole = [
        (doc! { "limit": 1 }, 40414),
        (doc! { "q": 1, "limit": 1 }, 14),
        (doc! { "q": {} }, 40414),
        (doc! { "q": {}, "limit": 5 }, 9),
        (doc! { "q": {}, "limit": "1" }, 14),
    ];
    for (statement, number) in whole {
        for ordered in [true, false] {
            assert_eq!(peer.code(&commands(&statement, ordered)).await, number, "{statement:?}");
        }
    }
    let multi = doc! { "q": {}, "limit": 0 };
    let mut retried = rockdove_documents::DocBuilder::new();
    retried.append_all(commands(&multi, true).raw()).append("lsid", &session).append("txnNumber", 1i64);
    assert_eq!(peer.code(&retried.finish()).await, 72);
    let counted = peer.good(&doc! { "count": "c", "$db": "db" }).await;
    assert_eq!(number(&counted, "n"), 10, "nothing was carried out");
    // Whatever its words are, what is wrong with a query is its statement's matter.
    let statements = [
        doc! { "q": { "BSON field": { "$size": "x" } }, "limit": 1 },
        doc! { "q": { "The limit field": { "$bad": 1 } }, "limit": 1 },
        doc! { "q": {}, "limit": 1, "collation": { "locale": "nowhere" } },
        doc! { "q": {}, "limit": 1, "collation": { "locale": "en", "nonsense": 1 } },
    ];
    for statement in statements {
        for (ordered, n) in [(true, 1), (false, 2)] {
            let reply = peer.good(&commands(&statement, ordered)).await;
            assert_eq!(
                (number(&reply, "n"), integer(&reply, "writeErrors.0.index")),
                (n, 1),
                "{statement:?}"
            );
            assert_eq!(field(&reply, "writeErrors.1"), None);
            let back = doc! { "insert": "c", "documents": [{ "_id": 1 }, { "_id": 2 }], "ordered": false, "$db": "db" };
            peer.run(&back).await;
        }
    }
}

/// What is passed over here changes what is done: a write without protection, a retry that is carried out again.
#[tokio::test]
async fn what_every_command_may_have_is_of_its_type() {
    let shared = server();
    let mut peer = Peer::connect(&shared);
    let insert = |name: &str, value: Value<'_>, retried: bool| {
        let mut command = rockdove_documents::DocBuilder::new();
        command
            .append_all(doc! { "insert": "c", "documents": [{ "_id": 1 }, { "_id": 2 }], "$db": "db" }.raw());
        if retried {
            command.append("lsid", session(1)).append("txnNumber", 1i64);
        }
        if name.starts_with("apiD") || name.starts_with("apiS") {
            command.append("apiVersion", "1");
        }
        command.append_value(name, value);
        command.finish()
    };
    let text = Value::String("x");
    let number = Value::Int32(1);
    for (name, wrong) in [
        ("lsid", number),
        ("autocommit", number),
        ("startTransaction", number),
        ("apiVersion", number),
        ("apiStrict", text),
        ("apiDeprecationErrors", number),
        ("writeConcern", text),
        ("writeConcern", Value::Document(doc! { "wtimeout": "x" }.raw())),
        ("writeConcern", Value::Document(doc! { "j": "x" }.raw())),
    ] {
        assert_eq!(peer.code(&insert(name, wrong, false)).await, 14, "{name}: {wrong:?}");
    }
    let mut txn = rockdove_documents::DocBuilder::new();
    txn.append_all(insert("lsid", Value::Document(session(1).raw()), false).raw()).append("txnNumber", "1");
    assert_eq!(peer.code(&txn.finish()).await, 14);
    let mixed = doc! { "ids": [0, "1"] };
    let few = doc! { "ids": [0] };
    for (name, wrong, code) in [
        ("stmtId", text, 14),
        ("stmtIds", number, 14),
        ("stmtIds", mixed.get("ids").unwrap(), 14),
        ("stmtIds", few.get("ids").unwrap(), 16),
    ] {
        assert_eq!(peer.code(&insert(name, wrong, true)).await, code, "{name}: {wrong:?}");
    }
    let (_, docs) = cursor(&peer.good(&doc! { "find": "c", "$db": "db" }).await);
    assert!(docs.is_empty(), "nothing was carried out: {docs:?}");
    for name in ["lsid", "txnNumber", "autocommit", "writeConcern", "readConcern"] {
        peer.good(&doc! { "delete": "c", "deletes": [{ "q": {}, "limit": 0 }], "$db": "db" }).await;
        peer.good(&insert(name, Value::Null, false)).await;
    }
}

#[tokio::test]
async fn each_step_down_has_its_own_time() {
    let shared = server();
    let mut peer = Peer::connect(&shared);
    let step_down = |seconds: i32| doc! { "replSetStepDown": seconds, "force": true, "$db": "admin" };
    peer.good(&step_down(1)).await;
    peer.good(&doc! { "replSetStepUp": 1, "$db": "admin" }).await;
    peer.good(&step_down(3600)).await;
    tokio::time::sleep(Duration::from_millis(1200)).await;
    assert_eq!(shared.topology.state().role, Role::Secondary);
    peer.good(&doc! { "replSetStepUp": 1, "$db": "admin" }).await;
    peer.good(&step_down(1)).await;
    let mut states = shared.topology.watch();
    let again = states.wait_for(|state| state.role == Role::Primary);
    assert!(tokio::time::timeout(Duration::from_secs(10), again).await.is_ok());
}

#[tokio::test]
async fn collections_and_indexes_are_listed_as_made() {
    let shared = server();
    let mut peer = Peer::connect(&shared);
    let create =
        doc! { "createIndexes": "c", "$db": "db", "indexes": [{ "key": { "a": 1 }, "name": "a_1" }] };
    let reply = peer.good(&create).await;
    assert_eq!((number(&reply, "numIndexesBefore"), number(&reply, "numIndexesAfter")), (1, 2));
    assert_eq!(reply.get("createdCollectionAutomatically"), Some(Value::Bool(true)));
    assert!(peer.good(&create).await.get("note").is_some());
    let (_, indexes) = cursor(&peer.good(&doc! { "listIndexes": "c", "$db": "db" }).await);
    let names: Vec<_> = indexes.iter().map(|index| index.get("name").unwrap().as_str().unwrap()).collect();
    assert_eq!(names, ["_id_", "a_1"]);
    assert_eq!(peer.code(&doc! { "listIndexes": "nothing", "$db": "db" }).await, 26);
    let list = doc! { "listCollections": 1, "filter": { "name": "c" }, "$db": "db" };
    let (_, found) = cursor(&peer.good(&list).await);
    assert!(field(&found[0], "info.uuid").is_some() && field(&found[0], "idIndex.key._id").is_some());
    peer.good(&doc! { "renameCollection": "db.c", "to": "db.d", "$db": "admin" }).await;
    let reply = peer.good(&doc! { "listDatabases": "1", "nameOnly": true, "$db": "admin" }).await;
    let names: Vec<_> = ["0", "1", "2", "3"].map(|n| field(&reply, &format!("databases.{n}.name"))).into();
    assert_eq!(names, ["admin", "config", "db", "local"].map(|name| Some(Value::String(name))));
    let reply = peer.good(&doc! { "drop": "d", "$db": "db" }).await;
    assert_eq!(number(&reply, "nIndexesWas"), 2);
    peer.good(&doc! { "drop": "d", "$db": "db" }).await;
}

#[tokio::test]
async fn counting_and_distinct_values() {
    let shared = server();
    let mut peer = Peer::connect(&shared);
    fill(&mut peer, 30).await;
    let count = |more: Doc| {
        let mut command = rockdove_documents::DocBuilder::new();
        command.append("count", "c").append_all(more.raw()).append("$db", "db");
        command.finish()
    };
    for (more, expected) in [
        (doc! {}, 30),
        (doc! { "query": { "n": 3 } }, 3),
        (doc! { "limit": 7 }, 7),
        (doc! { "limit": (-7) }, 7),
        (doc! { "skip": 25, "limit": 7 }, 5),
    ] {
        assert_eq!(number(&peer.good(&count(more)).await, "n"), expected);
    }
    let insert =
        doc! { "insert": "c", "$db": "db", "documents": [{ "n": [1.0, 77, [5]] }, { "n": null }, {}] };
    peer.good(&insert).await;
    let reply = peer.good(&doc! { "distinct": "c", "key": "n", "$db": "db" }).await;
    let values = reply.get("values").unwrap().as_array().unwrap();
    assert_eq!(values.len(), 10 + 3, "{values:?}");
}

#[tokio::test]
async fn time_limits_and_transactions_are_answered_clearly() {
    let shared = server();
    let mut peer = Peer::connect(&shared);
    assert_eq!(peer.code(&doc! { "find": "c", "maxTimeMS": (-1), "$db": "db" }).await, 2);
    let start = doc! {
        "insert": "c", "documents": [{}], "lsid": session(1), "txnNumber": 1i64, "autocommit": false,
        "startTransaction": true, "$db": "db"
    };
    assert_eq!(peer.code(&start).await, 263);
    let commit = doc! { "commitTransaction": 1, "lsid": session(1), "txnNumber": 1i64, "autocommit": false, "$db": "admin" };
    assert_eq!(peer.code(&commit).await, 251);
    let unsatisfiable = doc! { "insert": "c", "documents": [{}], "writeConcern": { "w": 3 }, "$db": "db" };
    assert_eq!(integer(&peer.good(&unsatisfiable).await, "writeConcernError.code"), 100);
}

#[tokio::test]
async fn a_released_lock_is_told_in_the_poppydb_personality() {
    let shared =
        support::server_as(rockdove_mongo::topology::Identity { poppydb: true, ..Default::default() });
    let mut peer = Peer::connect(&shared);
    let watch = |coll: &str| {
        doc! {
            "aggregate": coll, "cursor": {}, "$db": "db", "pipeline": [
                { "$changeStream": {} },
                { "$match": { "operationType": { "$in": ["insert", "lock_released"] } } }
            ]
        }
    };
    let (single, _) = cursor(&peer.good(&watch("msg")).await);
    let (multi, _) = cursor(&peer.good(&watch("msg_orders")).await);
    for locks in ["msg_lck", "msg_lck_orders", "other_lck"] {
        peer.good(&doc! { "insert": locks, "documents": [{ "_id": 7 }], "$db": "db" }).await;
        peer.good(&doc! { "delete": locks, "deletes": [{ "q": { "_id": 7 }, "limit": 1 }], "$db": "db" })
            .await;
    }
    peer.good(&doc! { "insert": "msg", "documents": [{ "_id": 1 }], "$db": "db" }).await;
    for (id, coll, expected) in
        [(single, "msg", &["lock_released", "insert"][..]), (multi, "msg_orders", &["lock_released"])]
    {
        let more = doc! { "getMore": id, "collection": coll, "maxTimeMS": 500, "$db": "db" };
        let mut events = Vec::new();
        while events.len() < expected.len() {
            events.extend(cursor(&peer.good(&more).await).1);
        }
        let types: Vec<_> =
            events.iter().map(|event| event.get("operationType").unwrap().as_str().unwrap()).collect();
        assert_eq!(types, expected);
        assert_eq!(field(&events[0], "ns.coll"), Some(Value::String(coll)));
        assert_eq!(integer(&events[0], "documentKey._id"), 7);
        assert!(field(&events[0], "_id._data").is_some() && events[0].get("clusterTime").is_some());
    }
}

#[tokio::test]
async fn writes_that_must_be_durable_are_acknowledged() {
    let shared = server();
    let mut peer = Peer::connect(&shared);
    for concern in [doc! { "w": 1, "j": true }, doc! { "w": "majority", "j": true, "wtimeout": 5000 }] {
        let insert = doc! { "insert": "c", "documents": [{}], "writeConcern": concern, "$db": "db" };
        let reply = peer.good(&insert).await;
        assert_eq!((number(&reply, "n"), reply.get("writeConcernError")), (1, None));
    }
}

#[tokio::test]
async fn a_time_limit_does_not_end_a_cursor_that_waits_for_its_client() {
    let shared = server();
    let mut peer = Peer::connect(&shared);
    fill(&mut peer, 3000).await;
    let find =
        doc! { "find": "c", "sort": { "n": (-1) }, "skip": 7, "limit": 2900, "maxTimeMS": 2000, "$db": "db" };
    let aggregate = doc! {
        "aggregate": "c", "pipeline": [{ "$sort": { "n": (-1) } }, { "$skip": 7 }, { "$limit": 2900 }],
        "cursor": {}, "maxTimeMS": 2000, "$db": "db"
    };
    for command in [find, aggregate] {
        let (mut id, mut docs) = cursor(&peer.good(&command).await);
        tokio::time::sleep(Duration::from_millis(2100)).await;
        while id != 0 {
            let more = doc! { "getMore": id, "collection": "c", "batchSize": 1000, "$db": "db" };
            let (next, batch) = cursor(&peer.good(&more).await);
            id = next;
            docs.extend(batch);
        }
        let mut ids: Vec<i64> = docs.iter().map(|doc| number(doc, "_id")).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), 2900, "each document once");
    }
}

#[tokio::test]
async fn results_of_a_pipeline_can_be_written() {
    let shared = server();
    let mut peer = Peer::connect(&shared);
    fill(&mut peer, 20).await;
    let out = doc! { "aggregate": "c", "pipeline": [{ "$match": { "n": 3 } }, { "$out": "o" }], "cursor": {}, "$db": "db" };
    for _ in 0..2 {
        assert_eq!(cursor(&peer.good(&out).await), (0, vec![]));
        let (_, found) = cursor(&peer.good(&doc! { "find": "o", "$db": "db" }).await);
        assert_eq!(found, [doc! { "_id": 3, "n": 3 }, doc! { "_id": 13, "n": 3 }]);
    }
    let merge = |matched: &str, unmatched: &str| {
        let into = doc! { "into": "o", "whenMatched": matched, "whenNotMatched": unmatched };
        doc! {
            "aggregate": "c", "cursor": {}, "$db": "db",
            "pipeline": [
                { "$match": { "_id": { "$in": [3, 4] } } }, { "$set": { "x": { "$add": ["$_id", 1] } } },
                { "$merge": into }
            ]
        }
    };
    assert_eq!(peer.code(&merge("fail", "insert")).await, 11000);
    assert_eq!(peer.code(&merge("keepExisting", "fail")).await, 13113);
    peer.good(&merge("merge", "insert")).await;
    let (_, found) = cursor(&peer.good(&doc! { "find": "o", "sort": { "_id": 1 }, "$db": "db" }).await);
    let expected =
        [doc! { "_id": 3, "n": 3, "x": 4 }, doc! { "_id": 4, "n": 4, "x": 5 }, doc! { "_id": 13, "n": 3 }];
    assert_eq!(found, expected);
}

#[tokio::test]
async fn results_do_not_go_into_what_is_the_servers() {
    let mut peer = Peer::connect(&server());
    fill(&mut peer, 1).await;
    for (db, collection, codes) in [
        ("db", "system.views", (17385, 31319)),
        ("db", "system.x", (17385, 31319)),
        ("admin", "system.users", (17385, 31319)),
        ("admin", "x", (31321, 31320)),
        ("config", "x", (31321, 31320)),
        ("local", "x", (31321, 31320)),
    ] {
        let to = doc! { "db": db, "coll": collection };
        for (stage, code) in
            [(doc! { "$out": (&to) }, codes.0), (doc! { "$merge": { "into": (&to) } }, codes.1)]
        {
            let command = doc! { "aggregate": "c", "pipeline": [stage], "cursor": {}, "$db": "db" };
            assert_eq!(peer.code(&command).await, code, "{command:?}");
        }
        let own = doc! { "aggregate": 1, "pipeline": [{ "$documents": [{ "a": 1 }] }, { "$out": collection }],
        "cursor": {}, "$db": db };
        assert_eq!(peer.code(&own).await, codes.0);
        let listed = peer.good(&doc! { "listCollections": 1, "$db": db }).await;
        assert_eq!(cursor(&listed).1.len(), usize::from(db == "db"));
    }
    let out = doc! { "$out": "systematic" };
    peer.good(&doc! { "aggregate": "c", "pipeline": [out], "cursor": {}, "$db": "db" }).await;
}

#[tokio::test]
async fn nothing_is_stored_where_nobody_sees_it() {
    let mut peer = Peer::connect(&server());
    fill(&mut peer, 1).await;
    let index = doc! { "key": { "a": 1 }, "name": "a_1" };
    for name in ["system.views", "system.x"] {
        let update = doc! { "q": { "_id": 1 }, "u": { "a": 1 }, "upsert": true };
        let commands = [
            doc! { "create": name, "$db": "db" },
            doc! { "insert": name, "documents": [{ "_id": 1 }], "$db": "db" },
            doc! { "update": name, "updates": [update], "$db": "db" },
            doc! { "findAndModify": name, "query": { "_id": 1 }, "update": { "a": 1 }, "upsert": true, "$db": "db" },
            doc! { "createIndexes": name, "indexes": [&index], "$db": "db" },
            doc! { "renameCollection": "db.c", "to": format!("db.{name}"), "$db": "admin" },
        ];
        for command in commands {
            let reply = peer.run(&command).await;
            let wrong = reply.get("writeErrors").and_then(|all| all.as_array()?.get("0")?.as_document());
            let code = wrong.unwrap_or(reply.raw()).get("code").and_then(|code| code.as_integer());
            assert_eq!(code, Some(73), "{command:?}: {reply:?}");
        }
    }
    let listed = peer.good(&doc! { "listCollections": 1, "$db": "db" }).await;
    assert_eq!(cursor(&listed).1.len(), 1);
}

#[tokio::test]
async fn validators_may_have_expressions() {
    let mut peer = Peer::connect(&server());
    let create = |validator: Doc| doc! { "create": "v", "validator": validator, "$db": "db" };
    assert_eq!(peer.code(&create(doc! { "$expr": { "$lt": ["$at", "$$NOW"] } })).await, 115);
    peer.good(&create(doc! { "$expr": { "$lt": ["$from", "$to"] }, "text": { "$ne": "$$NOW" } })).await;
    let modify =
        doc! { "collMod": "v", "validator": { "$expr": { "$lt": ["$at", "$$CLUSTER_TIME"] } }, "$db": "db" };
    assert_eq!(peer.code(&modify).await, 115);
    for (from, code) in [(1, None), (3, Some(121))] {
        let insert = doc! { "insert": "v", "documents": [{ "from": from, "to": 2 }], "$db": "db" };
        let reply = peer.run(&insert).await;
        let wrong = reply.get("writeErrors").and_then(|all| all.as_array()?.get("0")?.as_document());
        assert_eq!(wrong.and_then(|wrong| wrong.get("code")?.as_integer()), code, "{reply:?}");
    }
}

/// Its own levels, whatever command it comes in.
#[tokio::test]
async fn a_document_may_have_a_hundred_levels() {
    let mut peer = Peer::connect(&server());
    let nested = |id: i32, levels: usize| {
        let inner = (2..levels).fold(doc! {}, |inner, _| doc! { "a": inner });
        doc! { "_id": id, "a": inner }
    };
    let bulk = |op: Doc| doc! { "bulkWrite": 1, "ops": [op], "nsInfo": [{ "ns": "db.c" }], "$db": "admin" };
    let set = |deep: &Doc| doc! { "$set": { "a": (deep.get("a").unwrap().to_owned()) } };
    for (levels, code) in [(100, None), (101, Some(15)), (110, Some(15))] {
        let deep = nested(1, levels);
        let stage = doc! { "$replaceWith": { "$literal": (&deep) } };
        let commands = [
            doc! { "insert": "c", "documents": [(&deep)], "$db": "db" },
            doc! { "update": "c", "updates": [{ "q": { "_id": 1 }, "u": (&deep), "upsert": true }], "$db": "db" },
            doc! { "update": "c", "updates": [{ "q": { "_id": 1 }, "u": (set(&deep)), "upsert": true }], "$db": "db" },
            doc! { "update": "c", "updates": [{ "q": (&deep), "u": { "$set": { "b": 1 } }, "upsert": true }], "$db": "db" },
            doc! { "findAndModify": "c", "query": { "_id": 1 }, "update": (&deep), "upsert": true, "new": true, "$db": "db" },
            doc! { "findAndModify": "c", "query": { "_id": 1 }, "update": (set(&deep)), "upsert": true, "$db": "db" },
            bulk(doc! { "insert": 0, "document": (&deep) }),
            bulk(doc! { "update": 0, "filter": { "_id": 1 }, "updateMods": (&deep), "upsert": true }),
            doc! { "aggregate": 1, "pipeline": [{ "$documents": [{ "_id": 1 }] }, stage, { "$out": "c" }], "cursor": {}, "$db": "db" },
        ];
        for is_there in [false, true] {
            for command in &commands {
                peer.good(&doc! { "delete": "c", "deletes": [{ "q": {}, "limit": 0 }], "$db": "db" }).await;
                let inserts = ["insert", "ops.0.insert", "updates.0.q.a"];
                if is_there && inserts.iter().all(|path| field(command, path).is_none()) {
                    peer.good(&doc! { "insert": "c", "documents": [{ "_id": 1 }], "$db": "db" }).await;
                }
                let reply = peer.run(command).await;
                let failed = ["code", "writeErrors.0.code", "cursor.firstBatch.0.code"]
                    .iter()
                    .find_map(|path| field(&reply, path)?.as_integer());
                assert_eq!(failed, code, "{levels}: {reply:?}");
                let found = cursor(&peer.good(&doc! { "find": "c", "$db": "db" }).await).1;
                let stored = found.first().and_then(|found| found.get("a").map(|value| value.to_owned()));
                let wanted = deep.get("a").map(|value| value.to_owned()).filter(|_| code.is_none());
                assert_eq!(stored, wanted, "{levels}");
            }
        }
    }
    // What a command puts around it has an end, too.
    let reply = peer.run(&doc! { "insert": "c", "documents": [(nested(1, 119))], "$db": "db" }).await;
    assert_eq!(number(&reply, "code"), 22);
}

#[tokio::test]
async fn a_view_is_read_like_a_collection() {
    let shared = server();
    let mut peer = Peer::connect(&shared);
    fill(&mut peer, 20).await;
    peer.good(&doc! { "create": "v", "viewOn": "c", "pipeline": [{ "$match": { "n": 3 } }], "$db": "db" })
        .await;
    let find = doc! { "find": "v", "filter": { "_id": { "$gt": 3 } }, "projection": { "n": 1 }, "$db": "db" };
    let (_, found) = cursor(&peer.good(&find).await);
    assert_eq!(found, [doc! { "_id": 13, "n": 3 }]);
    assert_eq!(number(&peer.good(&doc! { "count": "v", "$db": "db" }).await, "n"), 2);
    let reply = peer.good(&doc! { "distinct": "v", "key": "_id", "$db": "db" }).await;
    assert_eq!(reply.get("values").unwrap().as_array().unwrap().len(), 2);
    let reply = peer.good(&doc! { "insert": "v", "documents": [{}], "$db": "db" }).await;
    assert_eq!(integer(&reply, "writeErrors.0.code"), 166);
}

#[tokio::test]
async fn a_session_reads_one_moment() {
    let shared = server();
    let mut peer = Peer::connect(&shared);
    fill(&mut peer, 5).await;
    let first = doc! { "find": "c", "readConcern": { "level": "snapshot" }, "$db": "db" };
    let reply = peer.good(&first).await;
    let at = field(&reply, "cursor.atClusterTime").expect("the moment that was read");
    peer.good(&doc! { "delete": "c", "deletes": [{ "q": {}, "limit": 0 }], "$db": "db" }).await;
    let again =
        doc! { "find": "c", "readConcern": { "level": "snapshot", "atClusterTime": at }, "$db": "db" };
    assert_eq!(cursor(&peer.good(&again).await).1.len(), 5);
    let old = rockdove_documents::Timestamp { time: 1, increment: 1 };
    let unknown =
        doc! { "find": "c", "readConcern": { "level": "snapshot", "atClusterTime": old }, "$db": "db" };
    assert_eq!(peer.code(&unknown).await, 239);
}

#[tokio::test]
async fn a_failed_find_and_modify_tells_keys_and_write_concern() {
    let shared = server();
    let mut peer = Peer::connect(&shared);
    peer.good(
        &doc! { "insert": "c", "documents": [{ "_id": 1, "a": 1 }, { "_id": 2, "a": 2 }], "$db": "db" },
    )
    .await;
    peer.good(&doc! {
        "createIndexes": "c", "indexes": [{ "key": { "a": 1 }, "name": "a_1", "unique": true }], "$db": "db",
    })
    .await;
    let clash = doc! {
        "findAndModify": "c", "query": { "_id": 1 }, "update": { "$set": { "a": 2 } },
        "writeConcern": { "w": 3 }, "$db": "db",
    };
    let reply = peer.run(&clash).await;
    assert_eq!(integer(&reply, "code"), 11000);
    assert_eq!((integer(&reply, "keyPattern.a"), integer(&reply, "keyValue.a")), (1, 2));
    assert_eq!(integer(&reply, "writeConcernError.code"), 100);
}

#[tokio::test]
async fn names_that_start_with_a_dollar_are_stored_where_mongodb_does() {
    let shared = server();
    let mut peer = Peer::connect(&shared);
    let reply = peer
        .good(&doc! { "insert": "c", "documents": [{ "_id": { "$a": 1 } }, { "_id": 1 }], "$db": "db" })
        .await;
    assert_eq!(integer(&reply, "writeErrors.0.code"), 52);
    peer.good(&doc! { "insert": "c", "documents": [{ "_id": 1 }], "$db": "db" }).await;
    let update =
        |stage: Doc| doc! { "update": "c", "updates": [{ "q": { "_id": 1 }, "u": [stage] }], "$db": "db" };
    let reply = peer.good(&update(doc! { "$replaceWith": { "$literal": { "_id": 1, "$a": 1 } } })).await;
    assert_eq!(number(&reply, "nModified"), 1);
    let reply = peer.good(&update(doc! { "$replaceWith": { "$literal": { "_id": { "$a": 1 } } } })).await;
    assert_eq!(integer(&reply, "writeErrors.0.code"), 52);
}

#[tokio::test]
async fn update_and_bulk_write_read_a_sort_alike() {
    let single = |sort: &Doc, multi: bool| {
        let update = doc! { "q": {}, "u": { "$set": { "x": 1 } }, "sort": sort, "multi": multi };
        doc! { "update": "c", "updates": [update], "$db": "db" }
    };
    let bulk = |sort: &Doc, multi: bool| {
        let op = doc! {
            "update": 0, "filter": {}, "updateMods": { "$set": { "x": 1 } }, "sort": sort, "multi": multi,
        };
        doc! { "bulkWrite": 1, "ops": [op], "nsInfo": [{ "ns": "db.c" }], "$db": "admin" }
    };
    let sort = doc! { "n": (-1) };
    let mut old = Peer::connect(&server());
    assert_eq!(old.code(&single(&sort, false)).await, 40415);
    assert_eq!(old.code(&bulk(&sort, false)).await, 40415);
    let mut new = Peer::connect(&server_as(Identity { version: [8, 0, 0], ..Identity::default() }));
    fill(&mut new, 3).await;
    let reply = new.good(&single(&sort, true)).await;
    assert_eq!(integer(&reply, "writeErrors.0.code"), 9);
    let reply = new.good(&bulk(&sort, true)).await;
    assert_eq!(integer(&reply, "cursor.firstBatch.0.code"), 9);
    assert_eq!(number(&new.good(&bulk(&sort, false)).await, "nModified"), 1);
    let (_, found) = cursor(&new.good(&doc! { "find": "c", "filter": { "x": 1 }, "$db": "db" }).await);
    assert_eq!(found[0].get("_id"), Some(Value::Int32(2)));
}

#[tokio::test]
async fn a_bulk_delete_needs_a_filter() {
    let mut peer = Peer::connect(&server());
    fill(&mut peer, 1).await;
    let bulk =
        doc! { "bulkWrite": 1, "ops": [{ "delete": 0 }], "nsInfo": [{ "ns": "db.c" }], "$db": "admin" };
    assert_eq!(peer.code(&bulk).await, 40414);
}

#[tokio::test]
async fn a_bulk_of_a_wrong_form_does_nothing() {
    let mut peer = Peer::connect(&server());
    fill(&mut peer, 1).await;
    let insert = doc! { "insert": 0, "document": { "_id": 5 } };
    let refused = doc! { "update": 0, "filter": { "$bad": 1 }, "updateMods": { "$set": { "n": 1 } } };
    for (op, code) in [
        (doc! { "upsert": 0, "document": { "_id": 6 } }, 9),
        (doc! { "upsert": "x" }, 9),
        (doc! {}, 9),
        (doc! { "insert": 1, "document": { "_id": 6 } }, 2),
        (doc! { "insert": 0, "document": 1 }, 14),
        (doc! { "delete": 0, "filter": {}, "limit": 1 }, 40415),
    ] {
        for ordered in [true, false] {
            for before in [&insert, &refused] {
                let bulk = doc! { "bulkWrite": 1, "ops": [before, &op], "nsInfo": [{ "ns": "db.c" }],
                "ordered": ordered, "$db": "admin" };
                assert_eq!(peer.code(&bulk).await, code, "{op:?} after {before:?}");
            }
        }
    }
    assert_eq!(number(&peer.good(&doc! { "count": "c", "$db": "db" }).await, "n"), 1);
}

#[tokio::test]
async fn the_log_is_not_kept_for_clients() {
    let mut peer = Peer::connect(&server());
    for name in ["global", "startupWarnings"] {
        let reply = peer.good(&doc! { "getLog": name, "$db": "admin" }).await;
        assert_eq!((number(&reply, "totalLinesWritten"), field(&reply, "log.0")), (0, None));
    }
    assert_eq!(peer.code(&doc! { "getLog": "other", "$db": "admin" }).await, 96);
}

#[tokio::test]
async fn expanded_events_tell_more() {
    let shared = server();
    let mut peer = Peer::connect(&shared);
    for name in ["a", "b"] {
        peer.good(&doc! { "create": name, "$db": "db" }).await;
    }
    let doc = doc! { "_id": 1, "x": { "1": 1 }, "y": [{ "2": 1 }], "z": 1 };
    peer.good(&doc! { "insert": "a", "documents": [doc], "$db": "db" }).await;
    let stage = doc! { "$changeStream": { "showExpandedEvents": true } };
    let watch = doc! { "aggregate": "a", "pipeline": [stage], "cursor": {}, "$db": "db" };
    let (id, _) = cursor(&peer.good(&watch).await);
    for set in [doc! { "x.1": 2, "y.0.2": 2, "z": 2 }, doc! { "z": 3 }] {
        let update = doc! { "q": { "_id": 1 }, "u": { "$set": set } };
        peer.good(&doc! { "update": "a", "updates": [update], "$db": "db" }).await;
    }
    peer.good(&doc! { "collMod": "a", "$db": "db" }).await;
    let uuid = shared.engine.snapshot().collection(&Namespace::parse("db.b").unwrap()).unwrap().info.uuid;
    let rename = doc! { "renameCollection": "db.a", "to": "db.b", "dropTarget": true, "$db": "admin" };
    peer.good(&rename).await;
    let more = doc! { "getMore": id, "collection": "a", "maxTimeMS": 1000, "$db": "db" };
    let (_, events) = cursor(&peer.good(&more).await);
    let types: Vec<_> =
        events.iter().map(|event| event.get("operationType").unwrap().as_str().unwrap()).collect();
    assert_eq!(types, ["update", "update", "modify", "rename", "invalidate"]);
    let paths =
        field(&events[0], "updateDescription.disambiguatedPaths").and_then(|paths| paths.as_document());
    assert_eq!(paths.unwrap().to_doc(), doc! { "x.1": ["x", "1"], "y.0.2": ["y", 0, "2"] });
    assert_eq!(field(&events[1], "updateDescription.disambiguatedPaths"), None);
    assert_eq!(field(&events[3], "operationDescription.to.coll"), Some(Value::String("b")));
    let dropped = Value::Binary { subtype: 4, bytes: &uuid };
    assert_eq!(field(&events[3], "operationDescription.dropTarget"), Some(dropped));
}

#[tokio::test]
async fn no_result_is_larger_than_a_document_may_be() {
    let shared = server();
    let mut peer = Peer::connect(&shared);
    for n in 0..20 {
        let insert =
            doc! { "insert": "c", "documents": [{ "_id": n, "text": "x".repeat(1 << 20) }], "$db": "db" };
        peer.good(&insert).await;
    }
    let push = doc! { "$group": { "_id": null, "all": { "$push": "$text" } } };
    let join = doc! { "$lookup": { "from": "c", "pipeline": [], "as": "all" } };
    let facet = doc! { "$facet": { "a": [{ "$match": {} }] } };
    for stage in [push, join, facet] {
        let command = doc! { "aggregate": "c", "pipeline": [&stage], "cursor": {}, "$db": "db" };
        assert_eq!(peer.code(&command).await, 10334, "{stage:?}");
        let count =
            doc! { "aggregate": "c", "pipeline": [&stage, { "$count": "n" }], "cursor": {}, "$db": "db" };
        peer.good(&count).await; // what passes between stages may be larger
    }
    let fields = doc! { "x": { "$map": { "input": { "$range": [0, 20] }, "in": "$text" } } };
    let modify =
        doc! { "findAndModify": "c", "query": { "_id": 1 }, "remove": true, "fields": fields, "$db": "db" };
    assert_eq!(peer.code(&modify).await, 10334);
    assert_eq!(number(&peer.good(&doc! { "count": "c", "$db": "db" }).await, "n"), 20);
}

#[tokio::test]
async fn a_view_is_not_watched_and_does_not_read_itself() {
    let shared = server();
    let mut peer = Peer::connect(&shared);
    let view = |name: &str, on: &str| doc! { "create": name, "viewOn": on, "pipeline": [], "$db": "db" };
    assert_eq!(peer.code(&view("v", "v")).await, 5);
    peer.good(&view("v", "w")).await;
    peer.good(&view("w", "x")).await;
    assert_eq!(peer.code(&view("x", "v")).await, 5);
    assert_eq!(peer.code(&doc! { "collMod": "w", "viewOn": "v", "pipeline": [], "$db": "db" }).await, 5);
    let watch = doc! { "aggregate": "v", "pipeline": [{ "$changeStream": {} }], "cursor": {}, "$db": "db" };
    assert_eq!(peer.code(&watch).await, 166);
}
