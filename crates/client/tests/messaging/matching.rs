//! As much of the query and update language as the library uses.

use bson::{Bson, Document};

pub fn matches(filter: &Document, document: &Document) -> bool {
    filter.iter().all(|(key, condition)| match (key.as_str(), condition) {
        // From the end: there polls ask for the marks, which rule out most documents.
        ("$and", Bson::Array(all)) => {
            all.iter().rev().all(|part| matches(part.as_document().unwrap(), document))
        }
        ("$or", Bson::Array(any)) => any.iter().any(|part| matches(part.as_document().unwrap(), document)),
        (_, Bson::Document(operators)) if operators.keys().next().is_some_and(|key| key.starts_with('$')) => {
            operators.iter().all(|(operator, operand)| test(operator, operand, &values(document, key)))
        }
        _ => equals(condition, &values(document, key)),
    })
}

fn test(operator: &str, operand: &Bson, found: &[&Bson]) -> bool {
    let list = || operand.as_array().expect("a list");
    match operator {
        "$ne" => !equals(operand, found),
        "$in" => list().iter().any(|item| equals(item, found)),
        "$nin" => !list().iter().any(|item| equals(item, found)),
        "$exists" => operand.as_bool().unwrap() != found.is_empty(),
        "$size" => found.iter().any(|value| {
            value.as_array().is_some_and(|array| array.len() as f64 == number(operand).unwrap())
        }),
        "$lt" => found.iter().any(|value| number(value) < number(operand)),
        other => panic!("the fake knows no {other}"),
    }
}

/// Equality as queries mean it: null matches absent, an array matches by itself or by an element.
fn equals(wanted: &Bson, found: &[&Bson]) -> bool {
    let one = |value: &Bson| value == wanted || value.as_array().is_some_and(|array| array.contains(wanted));
    (found.is_empty() && *wanted == Bson::Null) || found.iter().any(|value| one(value))
}

fn values<'a>(document: &'a Document, path: &str) -> Vec<&'a Bson> {
    let mut parts = path.split('.');
    let first = document.get(parts.next().unwrap());
    parts
        .fold(first, |value, part| match value? {
            Bson::Document(inner) => inner.get(part),
            Bson::Array(inner) => inner.get(part.parse::<usize>().ok()?),
            _ => None,
        })
        .into_iter()
        .collect()
}

/// Applies an update; the changed fields as a change event shows them.
pub fn apply(update: &Document, document: &mut Document) -> Result<Document, String> {
    let mut changed = Document::new();
    for (operator, fields) in update {
        for (field, operand) in fields.as_document().unwrap() {
            match (operator.as_str(), document.get_mut(field)) {
                ("$set", current) => {
                    if current.as_deref() != Some(operand) {
                        document.insert(field, operand.clone());
                        changed.insert(field, operand.clone());
                    }
                }
                ("$addToSet", Some(Bson::Array(array))) => {
                    let each = operand.as_document().and_then(|operand| operand.get_array("$each").ok());
                    for item in each.map_or(std::slice::from_ref(operand), Vec::as_slice) {
                        if !array.contains(item) {
                            changed.insert(format!("{field}.{}", array.len()), item.clone());
                            array.push(item.clone());
                        }
                    }
                }
                ("$addToSet", None) => {
                    document.insert(field, vec![operand.clone()]);
                    changed.insert(field, vec![operand.clone()]);
                }
                ("$addToSet", Some(_)) => return Err(format!("cannot apply $addToSet to {field}")),
                ("$pull", Some(Bson::Array(array))) => {
                    let before = array.len();
                    array.retain(|item| item != operand);
                    if array.len() < before {
                        changed.insert(field, array.clone());
                    }
                }
                ("$pull", _) => {}
                (other, _) => panic!("the fake knows no {other}"),
            }
        }
    }
    Ok(changed)
}

pub fn number(value: &Bson) -> Option<f64> {
    match value {
        Bson::Int32(value) => Some(f64::from(*value)),
        Bson::Int64(value) => Some(*value as f64),
        Bson::Double(value) => Some(*value),
        Bson::DateTime(value) => Some(value.timestamp_millis() as f64),
        _ => None,
    }
}
