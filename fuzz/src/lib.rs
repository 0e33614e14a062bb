//! Documents out of a fuzzer's bytes: well-formed BSON whose names and values are the ones decoders look for.
//!
//! Raw bytes rarely get past the length checks, so only the targets `bson`, `frame` and `effects` use
//! them, and `segment` and `checkpoint` as changes of a whole file; the others read what is made here.
#![forbid(unsafe_code)]

use arbitrary::{Result, Unstructured};
use rockdove_documents::{Decimal128, Doc, DocBuilder, ObjectId, Owned, Timestamp};

/// Nesting of a made document; deeper ones are the business of the target `bson`.
const DEPTH: usize = 6;
/// Fields of one level.
const FIELDS: usize = 6;

/// Names of fields as documents have them; few, so that paths meet.
pub const FIELD_NAMES: &[&str] = &["_id", "a", "b", "c", "a.b", "a.0", "a.b.c", "0", "1", ""];

/// The words of a language and the names that come with them.
#[derive(Clone, Copy)]
pub struct Words {
    /// Names at the outermost level, if they differ from the others.
    pub outer: &'static [&'static str],
    /// Operators.
    pub operators: &'static [&'static str],
    /// Strings that mean something.
    pub strings: &'static [&'static str],
}

/// No words: a plain document.
pub const PLAIN: Words = Words { outer: &[], operators: &[], strings: &["", "a", "b", "ab", "\u{e9}"] };

/// A document.
pub fn document(input: &mut Unstructured<'_>, words: Words) -> Result<Doc> {
    let mut out = DocBuilder::new();
    fields(input, words, &mut out, 0)?;
    Ok(out.finish())
}

/// Documents, in an array's form.
pub fn array(input: &mut Unstructured<'_>, words: Words) -> Result<Doc> {
    let mut out = DocBuilder::new();
    out.start_array("a");
    for _ in 0..input.int_in_range(0..=4)? {
        out.push_document();
        fields(input, words, &mut out, 1)?;
        out.end();
    }
    out.end();
    Ok(out.finish())
}

fn fields(input: &mut Unstructured<'_>, words: Words, out: &mut DocBuilder, depth: usize) -> Result<()> {
    for _ in 0..input.int_in_range(0..=FIELDS)? {
        let outer = if words.outer.is_empty() { words.operators } else { words.outer };
        let list = if depth <= 1 { outer } else { words.operators };
        let name = if list.is_empty() || input.ratio(1, 3)? {
            input.choose(FIELD_NAMES)?
        } else {
            input.choose(list)?
        };
        field(input, words, out, name, depth)?;
    }
    Ok(())
}

fn field(
    input: &mut Unstructured<'_>,
    words: Words,
    out: &mut DocBuilder,
    name: &str,
    depth: usize,
) -> Result<()> {
    match input.int_in_range(0..=9)? {
        0..=3 if depth < DEPTH => {
            out.start_document(name);
            fields(input, words, out, depth + 1)?;
            out.end();
        }
        4..=5 if depth < DEPTH => {
            out.start_array(name);
            for _ in 0..input.int_in_range(0..=3)? {
                if input.ratio(2, 3)? {
                    out.push_document();
                    fields(input, words, out, depth + 1)?;
                    out.end();
                } else {
                    out.push(scalar(input, words)?);
                }
            }
            out.end();
        }
        _ => {
            out.append(name, scalar(input, words)?);
        }
    }
    Ok(())
}

fn scalar(input: &mut Unstructured<'_>, words: Words) -> Result<Owned> {
    Ok(match input.int_in_range(0..=15)? {
        0 => Owned::Null,
        1 => Owned::Bool(input.arbitrary()?),
        2..=3 => Owned::Int32(i32::from(input.arbitrary::<i8>()?)),
        4 => Owned::Int64(input.arbitrary()?),
        5 => Owned::Double(input.arbitrary()?),
        6 => Owned::Decimal128(Decimal128(input.arbitrary()?)),
        7 => Owned::DateTime(input.arbitrary()?),
        8 => Owned::ObjectId(ObjectId(input.arbitrary()?)),
        9 => Owned::Timestamp(Timestamp::from_bits(input.arbitrary()?)),
        10 => {
            // Subtype 2 has a length of its own inside.
            let subtype = input.arbitrary::<u8>().map(|subtype| if subtype == 2 { 0 } else { subtype })?;
            Owned::Binary { subtype, bytes: input.arbitrary::<[u8; 16]>()?.to_vec().into() }
        }
        11 => Owned::Regex {
            pattern: (*input.choose(&["a", "^a", "(", "[ab]+$", "a{2}", ".*"])?).into(),
            options: (*input.choose(&["", "i", "x", "q"])?).into(),
        },
        12 => (*input.choose(&[Owned::MinKey, Owned::MaxKey, Owned::Undefined])?).clone(),
        13 => Owned::String((*input.choose(FIELD_NAMES)?).into()),
        14 if !words.operators.is_empty() => {
            Owned::String(format!("${}", input.choose(&["a", "b", "a.b", "$ROOT", "$NOW", "$this", "$$x"])?))
        }
        _ => Owned::String((*input.choose(words.strings)?).into()),
    })
}
