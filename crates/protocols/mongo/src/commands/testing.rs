//! Commands for tests, which exist where the server was started with test commands allowed.

use super::Spec;
use crate::dispatch::Call;
use crate::errors::{Failure, Result};
use rockdove_documents::{DocBuilder, code};

/// The commands of this family.
pub const COMMANDS: &[Spec] = &[Spec::now("configureFailPoint", Spec::ADMIN, configure_fail_point)];

fn configure_fail_point(call: &Call<'_>, reply: &mut DocBuilder) -> Result<()> {
    if !call.shared.identity.test_commands {
        return Err(Failure::new(
            code::COMMAND_NOT_FOUND,
            "no such command: 'configureFailPoint' (the server was started without test commands)",
        ));
    }
    let struck = call.shared.fail_points.configure(call.command())?;
    reply.append("count", i32::try_from(struck).unwrap_or(i32::MAX));
    Ok(())
}
