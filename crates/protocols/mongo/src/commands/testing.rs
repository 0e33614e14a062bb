//! Commands for tests, which exist where the server was started with test commands allowed.

use super::Spec;
use crate::dispatch::Call;
use crate::errors::{Failure, Result};
use rockdove_documents::DocBuilder;

/// The commands of this family.
pub const COMMANDS: &[Spec] = &[
    Spec::now("configureFailPoint", Spec::ADMIN | Spec::TEST, configure_fail_point),
    Spec::now("testDeprecation", Spec::API_V1 | Spec::TEST, deprecated),
    Spec::now("testVersion2", Spec::TEST, |_, _| Ok(())),
];

/// A command of the Stable API that is deprecated there.
fn deprecated(call: &Call<'_>, _: &mut DocBuilder) -> Result<()> {
    if call.command().get("apiDeprecationErrors").and_then(|errors| errors.as_bool()) != Some(true) {
        return Ok(());
    }
    let code = rockdove_documents::Code { number: 324, name: "APIDeprecationError" };
    let message =
        "Provided apiDeprecationErrors:true, but the command testDeprecation is deprecated in API Version 1";
    Err(Failure::new(code, message))
}

fn configure_fail_point(call: &Call<'_>, reply: &mut DocBuilder) -> Result<()> {
    let struck = call.shared.fail_points.configure(call.command())?;
    reply.append("count", i32::try_from(struck).unwrap_or(i32::MAX));
    Ok(())
}
