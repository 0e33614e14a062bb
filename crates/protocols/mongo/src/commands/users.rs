//! Users: there are none, and nobody can log in. Clients that try are told so in the terms they know.

use super::Spec;
use crate::dispatch::Call;
use crate::errors::{Failure, Result};
use rockdove_documents::{DocBuilder, code};

/// The commands of this family.
pub const COMMANDS: &[Spec] = &[
    Spec::now("saslStart", Spec::OPEN | Spec::API_V1, log_in),
    Spec::now("saslContinue", Spec::OPEN | Spec::API_V1, log_in),
    Spec::now("authenticate", Spec::OPEN | Spec::API_V1, log_in),
    Spec::now("logout", Spec::OPEN, |_, _| Ok(())),
    Spec::now("usersInfo", 0, users_info),
    Spec::now("createUser", Spec::WRITE, change),
    Spec::now("updateUser", Spec::WRITE, change),
    Spec::now("dropUser", Spec::WRITE, drop_user),
    Spec::now("dropAllUsersFromDatabase", Spec::WRITE, drop_all),
];

fn log_in(_: &Call<'_>, _: &mut DocBuilder) -> Result<()> {
    Err(Failure::new(code::AUTHENTICATION_FAILED, "Authentication failed."))
}

fn users_info(_: &Call<'_>, reply: &mut DocBuilder) -> Result<()> {
    reply.start_array("users").end();
    Ok(())
}

fn change(call: &Call<'_>, _: &mut DocBuilder) -> Result<()> {
    let message = format!("{}: users are not supported by this server", call.name);
    Err(Failure::new(code::COMMAND_NOT_SUPPORTED, message))
}

fn drop_user(call: &Call<'_>, _: &mut DocBuilder) -> Result<()> {
    let name = call.command().get("dropUser").and_then(|name| name.as_str()).unwrap_or_default();
    let message = format!("User '{name}@{}' not found", call.database);
    Err(Failure::new(code::USER_NOT_FOUND, message))
}

fn drop_all(_: &Call<'_>, reply: &mut DocBuilder) -> Result<()> {
    reply.append("n", 0);
    Ok(())
}
