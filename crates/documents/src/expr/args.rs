//! The evaluated arguments of an operator, and what most operators ask of them.

use super::Val;
use crate::show::show;
use crate::{DocBuilder, Error, Owned, RawDoc, Result, Value, code};
use smallvec::SmallVec;

/// Arguments in their order; those not given are missing.
pub(crate) type Args<'v> = SmallVec<[Val<'v>; 3]>;

/// Bytes that one computed value may have: room for several documents of the largest size, so that no chain
/// of expressions grows without end.
const VALUE_MAX: usize = 64 << 20;

/// Refuses values that are too large.
pub(crate) fn check_size(bytes: usize) -> Result<()> {
    match bytes > VALUE_MAX {
        false => Ok(()),
        true => Err(Error::new(
            code::BSON_OBJECT_TOO_LARGE,
            format!("an expression's value of more than {VALUE_MAX} bytes is too large"),
        )),
    }
}

/// An array made of values.
pub(crate) fn array_of<'i>(values: impl IntoIterator<Item = Value<'i>>) -> Owned {
    let mut array = DocBuilder::new();
    for value in values {
        array.push_value(value);
    }
    Owned::Array(array.finish())
}

/// The argument as a view of the array that it must be.
pub(crate) fn array<'a>(
    arg: &'a Val<'_>,
    number: i32,
    message: impl FnOnce(&str) -> String,
) -> Result<RawDoc<'a>> {
    arg.value().as_array().ok_or_else(|| Error::location(number, message(arg.type_name())))
}

/// The argument as the string that it must be.
pub(crate) fn string<'a>(
    arg: &'a Val<'_>,
    number: i32,
    message: impl FnOnce(&str) -> String,
) -> Result<&'a str> {
    arg.value().as_str().ok_or_else(|| Error::location(number, message(arg.type_name())))
}

/// The argument as an integer of 32 bits.
pub(crate) fn int(arg: &Val<'_>, number: i32, message: impl FnOnce(&str) -> String) -> Result<i32> {
    let integral = crate::number::to_integral(arg.value()).and_then(|value| i32::try_from(value).ok());
    integral.ok_or_else(|| {
        Error::location(number, format!("{}, found: {}", message(arg.type_name()), show(arg.value())))
    })
}

/// Whether any argument is null, undefined or missing.
pub(crate) fn any_nullish(args: &[Val<'_>]) -> bool {
    args.iter().any(Val::is_nullish)
}

/// A part of an argument as a value of its own right: borrowed if the argument is, copied if it is computed.
pub(crate) fn part<'v>(arg: Val<'v>, find: impl for<'p> Fn(Value<'p>) -> Option<Value<'p>>) -> Val<'v> {
    match arg {
        Val::Missing => Val::Missing,
        Val::Ref(value) => find(value).map_or(Val::Missing, Val::Ref),
        Val::Own(value) => find(value.value()).map_or(Val::Missing, |found| Val::Own(found.to_owned())),
    }
}
