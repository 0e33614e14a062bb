//! What each operator makes of its arguments, by example.

use super::{Context, Expr, Surroundings, Variables};
use crate::{Decimal128, Doc, ObjectId, Owned, Result, Timestamp, ToValue, array, doc};

const NOW: i64 = 1_000_000;

fn try_eval(expr: impl ToValue, root: &Doc) -> Result<Option<Owned>> {
    let expr = Expr::parse(expr.to_value(), &Variables::default())?;
    let context = Context::new(root.raw(), NOW, Timestamp { time: 5, increment: 6 }, &[]);
    let value = expr.eval(&context)?;
    Ok(value.get().map(|value| value.to_owned()))
}

/// A document that most examples look at.
fn root() -> Doc {
    doc! {
        "i": 7, "n": -3, "l": 5i64, "d": 2.5, "s": "Hello", "z": null, "t": true, "day": Owned::DateTime(DAY),
        "a": [3, 1, 2], "e": [], "o": { "x": 1, "y": { "z": 2 } }, "docs": [{ "k": "a", "v": 1 }, { "k": "b", "v": 2 }, 5],
        "u": "añb€", "ts": Timestamp { time: 9, increment: 4 }
    }
}

/// 2024-02-29T12:34:56.789Z, a Thursday.
const DAY: i64 = 1_709_210_096_789;

fn check(expr: impl ToValue, expected: impl ToValue) {
    let shown = format!("{:?}", expr.to_value());
    let value = try_eval(expr, &root()).unwrap_or_else(|error| panic!("{shown}: {error}"));
    assert_eq!(value, Some(expected.to_value().to_owned()), "{shown}");
}

fn check_missing(expr: impl ToValue) {
    let shown = format!("{:?}", expr.to_value());
    assert_eq!(try_eval(expr, &root()), Ok(None), "{shown}");
}

fn check_fails(expr: impl ToValue, code: i32) {
    let shown = format!("{:?}", expr.to_value());
    let error = try_eval(expr, &root()).expect_err(&shown);
    assert_eq!(error.code.number, code, "{shown}: {error}");
}

fn null() -> Owned {
    Owned::Null
}

fn decimal(text: &str) -> Decimal128 {
    Decimal128::parse(text).unwrap()
}

#[test]
fn paths_and_variables() {
    check("$i", 7);
    check("$o.y.z", 2);
    check_missing("$o.y.q");
    check_missing("$i.x");
    check("$docs.k", array!["a", "b"]);
    check("$a.0", array![]);
    check("$$ROOT.i", 7);
    check("$$CURRENT.i", 7);
    check("$$NOW", Owned::DateTime(NOW));
    check("$$CLUSTER_TIME", Timestamp { time: 5, increment: 6 });
    check_missing("$$REMOVE");
    check(doc! { "a": "$i", "b": "$nope", "c": ["$i", "$nope"] }, doc! { "a": 7, "c": [7, null] });
    check(doc! { "$literal": "$i" }, "$i");
    check(doc! { "$let": { "vars": { "x": "$i", "y": 2 }, "in": { "$add": ["$$x", "$$y"] } } }, 9);
    check_fails("$", 16872);
    check_fails("$a.", 40353);
    check_fails("$a..b", 15998);
    check_fails("$$nope", 17276);
    check_fails(doc! { "$nope": 1 }, 168);
    check_fails(doc! { "$abs": 1, "$ceil": 1 }, 15983);
    check_fails(doc! { "a.b": 1 }, 16412);
    check_fails(doc! { "$function": {} }, 115);
}

#[test]
fn arithmetic() {
    check(doc! { "$add": [1, 2, "$i"] }, 10);
    check(doc! { "$add": [i32::MAX, 1] }, 1i64 << 31);
    check(doc! { "$add": [i64::MAX, 1] }, 9_223_372_036_854_775_808.0);
    check(doc! { "$add": [1, 2.5] }, 3.5);
    check(doc! { "$add": [1, decimal("0.1")] }, decimal("1.1"));
    check(doc! { "$add": [1, null] }, null());
    check(doc! { "$add": [] }, 0);
    check(doc! { "$add": ["$day", 1000] }, Owned::DateTime(DAY + 1000));
    check(doc! { "$subtract": ["$day", "$day"] }, 0i64);
    check(doc! { "$subtract": ["$day", 1] }, Owned::DateTime(DAY - 1));
    check(doc! { "$subtract": [i32::MIN, 1] }, i64::from(i32::MIN) - 1);
    check(doc! { "$multiply": [3, "$l"] }, 15i64);
    check(doc! { "$divide": [7, 2] }, 3.5);
    check(doc! { "$divide": [6, 2] }, 3.0);
    check(doc! { "$mod": [7, 4] }, 3);
    check(doc! { "$mod": [-7, 4] }, -3);
    check(doc! { "$mod": [7.5, 2] }, 1.5);
    check(doc! { "$abs": "$n" }, 3);
    check(doc! { "$abs": i32::MIN }, 1i64 << 31);
    check(doc! { "$abs": ["$nope"] }, null());
    check(doc! { "$ceil": 1.2 }, 2.0);
    check(doc! { "$floor": -1.2 }, -2.0);
    check(doc! { "$floor": decimal("2.9") }, decimal("2"));
    check(doc! { "$round": [2.5] }, 2.0);
    check(doc! { "$round": [3.5] }, 4.0);
    check(doc! { "$round": [1.2345, 2] }, 1.23);
    check(doc! { "$round": [1255, -1] }, 1260);
    check(doc! { "$round": [1245, -1] }, 1240);
    check(doc! { "$trunc": [-1.789, 1] }, -1.7);
    check(doc! { "$trunc": 7.9 }, 7.0);
    check(doc! { "$pow": [2, 10] }, 1024);
    check(doc! { "$pow": [2, 40] }, 1i64 << 40);
    check(doc! { "$pow": [2, 64] }, 18_446_744_073_709_551_616.0);
    check(doc! { "$pow": [2, -1] }, 0.5);
    check(doc! { "$sqrt": 9 }, 3.0);
    check(doc! { "$ln": 1 }, 0.0);
    check(doc! { "$log10": 100 }, 2.0);
    check(doc! { "$log": [8, 2] }, 3.0);
    check(doc! { "$exp": 0 }, 1.0);
    check(doc! { "$bitAnd": [12, 10] }, 8);
    check(doc! { "$bitOr": [12, 3i64] }, 15i64);
    check(doc! { "$bitXor": [12, 10] }, 6);
    check(doc! { "$bitNot": 5 }, -6);
    check_fails(doc! { "$add": ["x"] }, 14);
    check_fails(doc! { "$add": ["$day", "$day"] }, 16612);
    check_fails(doc! { "$divide": [1, 0] }, 2);
    check_fails(doc! { "$mod": [1, 0] }, 16610);
    check_fails(doc! { "$sqrt": -1 }, 28714);
    check_fails(doc! { "$abs": "x" }, 28765);
    check_fails(doc! { "$subtract": [1] }, 16020);
    check_fails(doc! { "$round": [1, 1, 1] }, 28667);
    check_fails(doc! { "$pow": [0, -1] }, 28764);
    check_fails(doc! { "$ln": 0 }, 28766);
}

#[test]
fn totals() {
    check(doc! { "$sum": "$a" }, 6);
    check(doc! { "$sum": [1, "x", 2.5] }, 3.5);
    check(doc! { "$sum": ["$a", 1] }, 1);
    check(doc! { "$sum": [1e16, 1.0, -1e16] }, 1.0);
    check(doc! { "$sum": [i32::MAX, 1] }, 1i64 << 31);
    check(doc! { "$sum": [i64::MAX, 1i64] }, 9_223_372_036_854_775_808.0);
    check(doc! { "$sum": [1, decimal("1.5")] }, decimal("2.5"));
    check(doc! { "$avg": "$a" }, 2.0);
    check(doc! { "$avg": ["x"] }, null());
    check(doc! { "$min": "$a" }, 1);
    check(doc! { "$max": ["$a", null, 5] }, array![3, 1, 2]);
    check(doc! { "$max": [1, 2.0, null] }, 2.0);
    check(doc! { "$stdDevPop": [1, 3] }, 1.0);
    check(doc! { "$stdDevSamp": [1] }, null());
}

#[test]
fn comparison_and_logic() {
    check(doc! { "$cmp": [1, 2.0] }, -1);
    check(doc! { "$eq": ["$i", 7.0] }, true);
    check(doc! { "$eq": ["$nope", null] }, false);
    check(doc! { "$gt": ["$z", "$nope"] }, true);
    check(doc! { "$gt": ["x", 5] }, true);
    check(doc! { "$ne": [[1], [1]] }, false);
    check(doc! { "$lte": [2, 2] }, true);
    check(doc! { "$and": [1, "x", []] }, true);
    check(doc! { "$and": [] }, true);
    check(doc! { "$or": [0, null, "$nope"] }, false);
    check(doc! { "$or": [1, { "$divide": [1, 0] }] }, true);
    check(doc! { "$not": ["$z"] }, true);
    check(doc! { "$cond": ["$t", "yes", "no"] }, "yes");
    check(doc! { "$cond": { "if": false, "then": 1, "else": 2 } }, 2);
    check(doc! { "$ifNull": ["$z", "$nope", "d"] }, "d");
    let branches =
        doc! { "$switch": { "branches": [{ "case": { "$gt": ["$i", 9] }, "then": 1 }], "default": 2 } };
    check(branches, 2);
    check_fails(doc! { "$switch": { "branches": [{ "case": false, "then": 1 }] } }, 40066);
    check_fails(doc! { "$cond": { "if": 1, "then": 2 } }, 17082);
    check_fails(doc! { "$cond": [1, 2] }, 16020);
    check_fails(doc! { "$ifNull": [1] }, 1_257_300);
}

#[test]
fn strings() {
    check(doc! { "$concat": ["a", "$s"] }, "aHello");
    check(doc! { "$concat": ["a", null] }, null());
    check(doc! { "$toUpper": "$s" }, "HELLO");
    check(doc! { "$toLower": null }, "");
    check(doc! { "$strLenBytes": "$u" }, 7);
    check(doc! { "$strLenCP": "$u" }, 4);
    check(doc! { "$strcasecmp": ["a", "B"] }, -1);
    check(doc! { "$substrBytes": ["$s", 1, 3] }, "ell");
    check(doc! { "$substr": ["$s", 2, -1] }, "llo");
    check(doc! { "$substrBytes": ["$s", 9, 1] }, "");
    check(doc! { "$substrCP": ["$u", 1, 2] }, "ñb");
    check(doc! { "$split": ["a-b-", "-"] }, array!["a", "b", ""]);
    check(doc! { "$trim": { "input": "  x " } }, "x");
    check(doc! { "$ltrim": { "input": "xxay", "chars": "x" } }, "ay");
    check(doc! { "$rtrim": { "input": "ayx", "chars": "xy" } }, "a");
    check(doc! { "$indexOfBytes": ["$u", "b"] }, 3);
    check(doc! { "$indexOfCP": ["$u", "b"] }, 2);
    check(doc! { "$indexOfCP": ["hello", "l", 3, 9] }, 3);
    check(doc! { "$indexOfBytes": ["hello", "l", 4] }, -1);
    check(doc! { "$replaceOne": { "input": "aba", "find": "a", "replacement": "x" } }, "xba");
    check(doc! { "$replaceAll": { "input": "aba", "find": "a", "replacement": "x" } }, "xbx");
    check(doc! { "$replaceAll": { "input": null, "find": "a", "replacement": "x" } }, null());
    check_fails(doc! { "$concat": [1] }, 16702);
    check_fails(doc! { "$strLenBytes": "$nope" }, 34473);
    check_fails(doc! { "$substrBytes": ["$u", 2, 1] }, 28656);
    check_fails(doc! { "$substrBytes": ["$s", -1, 1] }, 50752);
    check_fails(doc! { "$split": ["a", ""] }, 40087);
    check_fails(doc! { "$trim": { "input": 1 } }, 50699);
    check_fails(doc! { "$trim": { "chars": "x" } }, 9);
    check_fails(doc! { "$trim": { "input": "x", "nope": 1 } }, 9);
}

#[test]
fn regular_expressions() {
    check(doc! { "$regexMatch": { "input": "Hello", "regex": "^h", "options": "i" } }, true);
    check(doc! { "$regexMatch": { "input": null, "regex": "x" } }, false);
    check(
        doc! { "$regexFind": { "input": "añbcb", "regex": "(b)(x)?" } },
        doc! { "match": "b", "idx": 2, "captures": ["b", null] },
    );
    check(doc! { "$regexFind": { "input": "a", "regex": "b" } }, null());
    check(
        doc! { "$regexFindAll": { "input": "aab", "regex": "a" } },
        array![{ "match": "a", "idx": 0, "captures": [] }, { "match": "a", "idx": 1, "captures": [] }],
    );
    let empty = try_eval(doc! { "$regexFindAll": { "input": "é", "regex": "" } }, &root()).unwrap().unwrap();
    assert_eq!(empty.value().as_array().unwrap().len(), 2);
    check_fails(doc! { "$regexMatch": { "input": 1, "regex": "x" } }, 51104);
    check_fails(doc! { "$regexMatch": { "input": "x", "regex": "(" } }, 51111);
}

#[test]
fn arrays() {
    check(doc! { "$arrayElemAt": ["$a", 0] }, 3);
    check(doc! { "$arrayElemAt": ["$a", -1] }, 2);
    check_missing(doc! { "$arrayElemAt": ["$a", 3] });
    check(doc! { "$arrayElemAt": [null, 3] }, null());
    check(doc! { "$first": "$a" }, 3);
    check(doc! { "$last": "$a" }, 2);
    check_missing(doc! { "$first": "$e" });
    check(doc! { "$concatArrays": ["$a", [9]] }, array![3, 1, 2, 9]);
    check(doc! { "$concatArrays": ["$a", null] }, null());
    check(doc! { "$filter": { "input": "$a", "cond": { "$gt": ["$$this", 1] } } }, array![3, 2]);
    check(doc! { "$filter": { "input": "$a", "as": "x", "cond": true, "limit": 1 } }, array![3]);
    check(doc! { "$map": { "input": "$a", "as": "x", "in": { "$add": ["$$x", "$i"] } } }, array![10, 8, 9]);
    check(doc! { "$map": { "input": null, "in": 1 } }, null());
    check(
        doc! { "$reduce": { "input": "$a", "initialValue": 0, "in": { "$add": ["$$value", "$$this"] } } },
        6,
    );
    let nested = doc! { "$map": { "input": [[1, 2], [3]], "as": "o", "in": { "$map": { "input": "$$o", "as": "p", "in": { "$multiply": ["$$p", { "$size": "$$o" }] } } } } };
    check(nested, array![[2, 4], [3]]);
    check(doc! { "$in": [1.0, "$a"] }, true);
    check(doc! { "$indexOfArray": ["$a", 2] }, 2);
    check(doc! { "$indexOfArray": ["$a", 3, 1] }, -1);
    check(doc! { "$isArray": ["$a"] }, true);
    check(doc! { "$range": [0, 5, 2] }, array![0, 2, 4]);
    check(doc! { "$range": [3, 0, -1] }, array![3, 2, 1]);
    check(doc! { "$reverseArray": "$a" }, array![2, 1, 3]);
    check(doc! { "$size": "$a" }, 3);
    check(doc! { "$slice": ["$a", 2] }, array![3, 1]);
    check(doc! { "$slice": ["$a", -2] }, array![1, 2]);
    check(doc! { "$slice": ["$a", 1, 9] }, array![1, 2]);
    check(doc! { "$slice": ["$a", -5, 1] }, array![3]);
    check(doc! { "$zip": { "inputs": [["a", "b"], [1]] } }, array![["a", 1]]);
    check(
        doc! { "$zip": { "inputs": [["a", "b"], [1]], "useLongestLength": true, "defaults": ["x", 0] } },
        array![["a", 1], ["b", 0]],
    );
    check(doc! { "$sortArray": { "input": "$a", "sortBy": -1 } }, array![3, 2, 1]);
    check(
        doc! { "$sortArray": { "input": [{ "v": 2 }, { "v": 1 }], "sortBy": { "v": 1 } } },
        array![{ "v": 1 }, { "v": 2 }],
    );
    check(doc! { "$firstN": { "n": 2, "input": "$a" } }, array![3, 1]);
    check(doc! { "$lastN": { "n": 2, "input": "$a" } }, array![1, 2]);
    check(doc! { "$minN": { "n": 2, "input": "$a" } }, array![1, 2]);
    check(doc! { "$maxN": { "n": 5, "input": [1, null, 3] } }, array![3, 1]);
    check_fails(doc! { "$size": "$i" }, 17124);
    check_fails(doc! { "$arrayElemAt": [1, 0] }, 28689);
    check_fails(doc! { "$range": [0, 1, 0] }, 34449);
    check_fails(doc! { "$range": [0, i32::MAX] }, 146);
    check_fails(doc! { "$map": { "input": 1, "in": 1 } }, 16883);
    check_fails(doc! { "$filter": { "input": "x", "cond": 1 } }, 28651);
    check_fails(doc! { "$in": [1, 2] }, 40081);
    check_fails(doc! { "$firstN": { "n": 0, "input": [] } }, 5_787_908);
}

#[test]
fn sets() {
    check(doc! { "$setUnion": [[2, 1], [1.0, 3]] }, array![1, 2, 3]);
    check(doc! { "$setIntersection": [[2, 1], [1.0, 3]] }, array![1]);
    check(doc! { "$setDifference": [[2, 1, 2], [1]] }, array![2]);
    check(doc! { "$setEquals": [[1, 2, 2], [2, 1]] }, true);
    check(doc! { "$setIsSubset": [[1], [2, 1]] }, true);
    check(doc! { "$anyElementTrue": [[0, null, 1]] }, true);
    check(doc! { "$allElementsTrue": [[]] }, true);
    check(doc! { "$allElementsTrue": [[1, 0]] }, false);
    check(doc! { "$setUnion": [[1], null] }, null());
    check_fails(doc! { "$setUnion": [1] }, 17043);
    check_fails(doc! { "$setIsSubset": [[1], 1] }, 17042);
}

#[test]
fn objects() {
    check(
        doc! { "$mergeObjects": ["$o", { "x": 5, "q": 1 }, null] },
        doc! { "x": 5, "y": { "z": 2 }, "q": 1 },
    );
    check(doc! { "$getField": "i" }, 7);
    check(doc! { "$getField": { "field": "x", "input": "$o" } }, 1);
    check_missing(doc! { "$getField": { "field": "x", "input": "$nope" } });
    check(
        doc! { "$setField": { "field": "a.b", "input": { "c": 1 }, "value": 2 } },
        doc! { "c": 1, "a.b": 2 },
    );
    check(doc! { "$setField": { "field": "c", "input": { "c": 1 }, "value": "$$REMOVE" } }, doc! {});
    check(doc! { "$unsetField": { "field": "x", "input": "$o" } }, doc! { "y": { "z": 2 } });
    check(doc! { "$objectToArray": { "a": "$i" } }, array![{ "k": "a", "v": 7 }]);
    check(doc! { "$arrayToObject": [[["a", 1], ["b", 2], ["a", 3]]] }, doc! { "a": 3, "b": 2 });
    check(doc! { "$arrayToObject": [[{ "k": "a", "v": 1 }]] }, doc! { "a": 1 });
    check(doc! { "$bsonSize": { "a": 1 } }, 12);
    check(doc! { "$binarySize": "$s" }, 5);
    check_fails(doc! { "$mergeObjects": [1] }, 40400);
    check_fails(doc! { "$arrayToObject": [[["a"]]] }, 40397);
    check_fails(doc! { "$objectToArray": "x" }, 40390);
}

#[test]
fn types() {
    check(doc! { "$type": "$nope" }, "missing");
    check(doc! { "$type": "$l" }, "long");
    check(doc! { "$isNumber": "$d" }, true);
    check(doc! { "$toInt": "12" }, 12);
    check(doc! { "$toInt": 1.9 }, 1);
    check(doc! { "$toInt": true }, 1);
    check(doc! { "$toInt": "$nope" }, null());
    check(doc! { "$toLong": "$day" }, DAY);
    check(doc! { "$toDouble": "1.5" }, 1.5);
    check(doc! { "$toDecimal": "1.50" }, decimal("1.50"));
    check(doc! { "$toDecimal": "$d" }, decimal("2.50000000000000"));
    check(doc! { "$toString": 1.0 }, "1");
    check(doc! { "$toString": 1e20 }, "1e+20");
    check(doc! { "$toString": "$day" }, "2024-02-29T12:34:56.789Z");
    check(doc! { "$toString": decimal("1.50") }, "1.50");
    check(doc! { "$toBool": "false" }, true);
    check(doc! { "$toBool": 0.0 }, false);
    check(doc! { "$toDate": DAY }, Owned::DateTime(DAY));
    check(doc! { "$toDate": "2024-02-29" }, Owned::DateTime(1_709_164_800_000));
    let id = ObjectId::parse("65e07c000000000000000000").unwrap();
    check(doc! { "$toObjectId": "65e07c000000000000000000" }, id);
    check(doc! { "$toString": id }, "65e07c000000000000000000");
    check(doc! { "$convert": { "input": "x", "to": "int", "onError": "bad" } }, "bad");
    check(doc! { "$convert": { "input": null, "to": "int", "onNull": 0 } }, 0);
    check(doc! { "$convert": { "input": 1, "to": 2 } }, "1");
    check_fails(doc! { "$toInt": "1.5" }, 241);
    check_fails(doc! { "$toInt": 3e9 }, 241);
    check_fails(doc! { "$toInt": "$o" }, 241);
    check_fails(doc! { "$toObjectId": "xyz" }, 241);
    check_fails(doc! { "$convert": { "input": 1, "to": "nope" } }, 2);
}

#[test]
fn date_parts() {
    for (part, expected) in [
        ("$year", 2024),
        ("$month", 2),
        ("$dayOfMonth", 29),
        ("$hour", 12),
        ("$minute", 34),
        ("$second", 56),
        ("$millisecond", 789),
        ("$dayOfYear", 60),
        ("$dayOfWeek", 5),
        ("$week", 8),
        ("$isoWeek", 9),
        ("$isoDayOfWeek", 4),
    ] {
        let mut expr = crate::DocBuilder::new();
        expr.append(part, "$day");
        check(expr.finish(), expected);
    }
    check(doc! { "$isoWeekYear": "$day" }, 2024i64);
    check(doc! { "$hour": { "date": "$day", "timezone": "+02:30" } }, 15);
    check(doc! { "$hour": { "date": "$day", "timezone": "America/New_York" } }, 7);
    check(doc! { "$year": { "date": "$nope" } }, null());
    check(doc! { "$year": [null] }, null());
    check(doc! { "$tsSecond": "$ts" }, 9i64);
    check(doc! { "$tsIncrement": "$ts" }, 4i64);
    check(
        doc! { "$dateToParts": { "date": "$day" } },
        doc! { "year": 2024, "month": 2, "day": 29, "hour": 12, "minute": 34, "second": 56, "millisecond": 789 },
    );
    check(
        doc! { "$dateFromParts": { "year": 2024, "month": 14, "day": 0, "hour": 25 } },
        Owned::DateTime(1_738_371_600_000),
    );
    check(
        doc! { "$dateFromParts": { "isoWeekYear": 2024, "isoWeek": 9, "isoDayOfWeek": 4 } },
        Owned::DateTime(1_709_164_800_000),
    );
    check_fails(doc! { "$year": "x" }, 16006);
    check_fails(doc! { "$year": { "date": "$day", "timezone": "Nowhere" } }, 40485);
}

#[test]
fn date_arithmetic() {
    let at =
        |text: &str| try_eval(doc! { "$dateFromString": { "dateString": text } }, &root()).unwrap().unwrap();
    let add = |start: &str, unit: &str, amount: i64, expected: &str| {
        check(doc! { "$dateAdd": { "startDate": at(start), "unit": unit, "amount": amount } }, at(expected));
    };
    add("2024-01-31", "month", 1, "2024-02-29");
    add("2024-02-29", "year", 1, "2025-02-28");
    add("2024-01-01", "quarter", -1, "2023-10-01");
    add("2024-02-28", "day", 2, "2024-03-01");
    add("2024-02-28", "week", 1, "2024-03-06");
    add("2024-02-28", "hour", 25, "2024-02-29T01:00:00Z");
    check(
        doc! { "$dateAdd": { "startDate": at("2026-03-28T12:00:00Z"), "unit": "day", "amount": 1, "timezone": "Europe/Berlin" } },
        at("2026-03-29T11:00:00Z"),
    );
    check(
        doc! { "$dateSubtract": { "startDate": at("2024-03-31"), "unit": "month", "amount": 1 } },
        at("2024-02-29"),
    );
    let diff = |start: &str, end: &str, unit: &str, expected: i64| {
        check(doc! { "$dateDiff": { "startDate": at(start), "endDate": at(end), "unit": unit } }, expected);
    };
    diff("2023-12-31", "2024-01-01", "year", 1);
    diff("2024-01-01", "2024-03-31", "month", 2);
    diff("2024-03-31", "2024-04-01", "quarter", 1);
    diff("2024-01-06", "2024-01-07", "week", 1);
    diff("2024-01-01T23:59:59Z", "2024-01-02", "day", 1);
    diff("2024-01-01T00:59:59Z", "2024-01-01T01:00:00Z", "hour", 1);
    diff("2024-01-02", "2024-01-01", "millisecond", -86_400_000);
    let trunc = |unit: &str, bin: i32, expected: &str| {
        check(doc! { "$dateTrunc": { "date": "$day", "unit": unit, "binSize": bin } }, at(expected));
    };
    trunc("year", 1, "2024-01-01");
    trunc("quarter", 1, "2024-01-01");
    trunc("month", 1, "2024-02-01");
    trunc("week", 1, "2024-02-25");
    trunc("day", 1, "2024-02-29");
    trunc("hour", 6, "2024-02-29T12:00:00Z");
    trunc("minute", 15, "2024-02-29T12:30:00Z");
    check_fails(doc! { "$dateAdd": { "startDate": "$day", "unit": "eon", "amount": 1 } }, 9);
    check_fails(doc! { "$dateAdd": { "startDate": "$day", "unit": "year", "amount": i64::MAX } }, 5_166_400);
}

#[test]
fn date_texts() {
    check(doc! { "$dateToString": { "date": "$day" } }, "2024-02-29T12:34:56.789Z");
    check(
        doc! { "$dateToString": { "date": "$day", "format": "%d/%m/%Y %H-%M-%S.%L %j %w %u %U %V %G %z %Z %b %B %%" } },
        "29/02/2024 12-34-56.789 060 5 4 08 09 2024 +0000 0 Feb February %",
    );
    check(doc! { "$dateToString": { "date": "$day", "format": "%H %z", "timezone": "-03:30" } }, "09 -0330");
    check(doc! { "$dateToString": { "date": null, "onNull": "-" } }, "-");
    let parse = |text: &str, expected: i64| {
        check(doc! { "$dateFromString": { "dateString": text } }, Owned::DateTime(expected));
    };
    parse("2024-02-29T12:34:56.789Z", DAY);
    parse("2024-02-29 12:34:56.789", DAY);
    parse("2024-02-29T14:34:56.789+02:00", DAY);
    parse("2024-02-29T12:34:56.789 UTC", DAY);
    parse("20240229T123456Z", DAY - 789);
    parse("2024-02", 1_706_745_600_000);
    check(
        doc! { "$dateFromString": { "dateString": "29.02.2024", "format": "%d.%m.%Y", "timezone": "Europe/Berlin" } },
        Owned::DateTime(1_709_161_200_000),
    );
    check(doc! { "$dateFromString": { "dateString": "x", "onError": "bad" } }, "bad");
    check(doc! { "$dateFromString": { "dateString": null, "onNull": 0 } }, 0);
    check_fails(doc! { "$dateFromString": { "dateString": "2023-02-29" } }, 241);
    check_fails(doc! { "$dateFromString": { "dateString": "2024-02-29T25:00:00Z" } }, 241);
    check_fails(doc! { "$dateFromString": { "dateString": "2024-02-29Z", "timezone": "UTC" } }, 241);
    check_fails(doc! { "$dateToString": { "date": "$day", "format": "%q" } }, 18536);
}

#[test]
fn a_commands_variables_are_known() {
    let mut around = Surroundings { now_ms: NOW, ..Surroundings::default() };
    let variables = around.parse_variables(doc! { "x": { "$add": [1, 2] }, "y": "$$NOW" }.raw()).unwrap();
    let expr = Expr::parse(array!["$$x", "$$y"].value(), &variables).unwrap();
    let root = root();
    let context = Context::new(root.raw(), NOW, Timestamp::default(), variables.values());
    assert_eq!(expr.eval(&context).unwrap().into_owned(), array![3, Owned::DateTime(NOW)]);
    for name in ["", "X", "1", "a-b"] {
        let mut spec = crate::DocBuilder::new();
        spec.append(name, 1);
        assert!(around.parse_variables(spec.finish().raw()).is_err(), "{name}");
    }
    let equal = doc! { "same": { "$eq": ["a", "A"] } };
    assert_eq!(around.parse_variables(equal.raw()).unwrap().values()[..], [Owned::Bool(false)]);
    let spec = doc! { "locale": "en", "strength": 2 };
    around.collation = crate::collation::Collation::parse(spec.raw()).unwrap();
    assert_eq!(around.parse_variables(equal.raw()).unwrap().values()[..], [Owned::Bool(true)]);
}

#[test]
fn random_numbers_stay_in_their_range() {
    for _ in 0..50 {
        let Some(Owned::Double(random)) = try_eval(doc! { "$rand": {} }, &root()).unwrap() else { panic!() };
        assert!((0.0..1.0).contains(&random));
    }
    check(doc! { "$sampleRate": 0.0 }, false);
}

/// A call of an operator with these arguments, as literals.
fn call(operator: &super::table::Operator, values: &[Owned]) -> Doc {
    let mut expr = crate::DocBuilder::new();
    match &operator.arguments {
        super::table::Arguments::List { .. } => {
            expr.start_array(operator.name);
            for value in values {
                expr.push_document().append("$literal", value).end();
            }
            expr.end();
        }
        super::table::Arguments::Named { names, .. } | super::table::Arguments::DateOr { names } => {
            expr.start_document(operator.name);
            for (name, value) in names.iter().zip(values) {
                expr.start_document(name).append("$literal", value).end();
            }
            expr.end();
        }
    }
    expr.finish()
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(1000))]

    #[test]
    fn whatever_the_values_there_is_a_value_or_an_error(
        place in 0usize..1000,
        values in proptest::collection::vec(crate::arbitrary::value(), 0..5),
    ) {
        let operators: Vec<_> = super::table::all().collect();
        let expr = call(operators[place % operators.len()], &values);
        // `$range` between extremes makes large arrays.
        if let Ok(Some(value)) = try_eval(&expr, &Doc::empty()) {
            let doc = doc! { "v": value };
            proptest::prop_assert_eq!(crate::check(doc.bytes()), Ok(()), "{:?}", expr);
        }
    }
}

#[cfg(feature = "collation")]
#[test]
fn strings_compare_as_the_collation_says() {
    let collation = crate::collation::Collation::parse(doc! { "locale": "en", "strength": 2 }.raw()).unwrap();
    let variables = Variables::default();
    let root = doc! { "a": "x", "l": ["b", "A", "a"] };
    let eval = |spec: Doc, collation| {
        let expr = Expr::parse(crate::Value::Document(spec.raw()), &variables).unwrap();
        let context = Context::new(root.raw(), NOW, Timestamp::default(), &[]).with_collation(collation);
        expr.eval(&context).unwrap().into_owned()
    };
    for (spec, with, without) in [
        (doc! { "$eq": ["$a", "X"] }, Owned::Bool(true), Owned::Bool(false)),
        (doc! { "$cmp": ["$a", "X"] }, Owned::Int32(0), Owned::Int32(1)),
        (doc! { "$lt": ["B", "$a"] }, Owned::Bool(true), Owned::Bool(true)),
        (doc! { "$lt": ["Y", "$a"] }, Owned::Bool(false), Owned::Bool(true)),
        (doc! { "$in": ["B", "$l"] }, Owned::Bool(true), Owned::Bool(false)),
        (doc! { "$indexOfArray": ["$l", "B"] }, Owned::Int32(0), Owned::Int32(-1)),
        (doc! { "$setIsSubset": [["B"], "$l"] }, Owned::Bool(true), Owned::Bool(false)),
        (doc! { "$setEquals": [["A", "B"], "$l"] }, Owned::Bool(true), Owned::Bool(false)),
        (doc! { "$size": { "$setUnion": ["$l", ["B"]] } }, Owned::Int32(2), Owned::Int32(4)),
        (doc! { "$size": { "$setIntersection": ["$l", ["B"]] } }, Owned::Int32(1), Owned::Int32(0)),
        (doc! { "$size": { "$setDifference": ["$l", ["B"]] } }, Owned::Int32(1), Owned::Int32(3)),
        (doc! { "$max": ["b", "Y", "X"] }, Owned::String("Y".into()), Owned::String("b".into())),
        (doc! { "$minN": { "n": 1, "input": ["b", "Y"] } }, array!["b"], array!["Y"]),
        (
            doc! { "$sortArray": { "input": ["b", "Y", "a"], "sortBy": 1 } },
            array!["a", "b", "Y"],
            array!["Y", "a", "b"],
        ),
        (
            doc! { "$first": { "$map": {
                "input": { "$sortArray": { "input": [{ "k": "b" }, { "k": "Y" }, { "k": "a" }], "sortBy": { "k": 1 } } },
                "in": "$$this.k",
            } } },
            Owned::String("a".into()),
            Owned::String("Y".into()),
        ),
        (doc! { "$filter": { "input": "$l", "cond": { "$eq": ["$$this", "B"] } } }, array!["b"], array![]),
    ] {
        assert_eq!(eval(spec.clone(), collation.as_ref()), with, "{spec:?} with the collation");
        assert_eq!(eval(spec.clone(), None), without, "{spec:?} without");
    }
}
