//! What collections show of queues, for those that look at them from outside.

use crate::backend::{Backend, BackendResult};
use crate::error::LookError;
use rockdove_messages::{Layout, Names};

/// The layouts whose collections exist.
pub(crate) async fn layouts(backend: &dyn Backend, queue: &str) -> Result<Vec<Layout>, LookError> {
    let dual = Names::new(Layout::DualChannel, queue)?;
    let multi = Names::new(Layout::MultiCollection, queue)?;
    let mut layouts = Vec::new();
    if backend.collections(&dual.base()).await?.contains(&dual.base()) {
        // What a Standard queue has, a DualChannel queue has, too.
        let mailboxes = backend.collections(&dual.directed_prefix().unwrap_or_default()).await?;
        layouts.push(if mailboxes.is_empty() { Layout::Standard } else { Layout::DualChannel });
    }
    if !topics(backend, &multi).await?.is_empty() {
        layouts.push(Layout::MultiCollection);
    }
    Ok(layouts)
}

/// The collections that hold messages of the queue.
pub(crate) async fn message_collections(backend: &dyn Backend, names: &Names) -> BackendResult<Vec<String>> {
    let mut all = if names.layout() == Layout::MultiCollection {
        topics(backend, names).await?
    } else {
        let base = names.base();
        backend.collections(&base).await?.into_iter().filter(|name| *name == base).collect()
    };
    if let Some(prefix) = names.directed_prefix() {
        all.extend(backend.collections(&prefix).await?);
    }
    Ok(all)
}

/// The collections that hold locks of the queue.
pub(crate) async fn lock_collections(backend: &dyn Backend, names: &Names) -> BackendResult<Vec<String>> {
    let locks = names.locks("");
    let mut all = backend.collections(&locks).await?;
    if names.layout() != Layout::MultiCollection {
        // Those of topics are of another layout.
        all.retain(|name| *name == locks);
    }
    Ok(all)
}

/// The collections of topics in the MultiCollection layout. The default queue's begin like its collections in the
/// other layouts.
async fn topics(backend: &dyn Backend, names: &Names) -> BackendResult<Vec<String>> {
    let mut all = backend.collections(&names.broadcast("")).await?;
    let locks = names.locks("");
    let (one_lock, mailboxes) = (format!("{}_lck", names.base()), format!("{}_dm_", names.base()));
    all.retain(|name| {
        let is_lock = name.starts_with(&locks) || *name == one_lock;
        !is_lock && !name.starts_with(&mailboxes) && !name.ends_with("_participants")
    });
    Ok(all)
}

/// The queues of a database, by their collections of participants; the default one is empty.
pub(crate) async fn all(backend: &dyn Backend) -> BackendResult<Vec<String>> {
    let mut queues: Vec<String> = backend.collections("").await?.iter().filter_map(|name| of(name)).collect();
    queues.sort_unstable();
    Ok(queues)
}

/// The queue whose participants are in a collection.
fn of(participants: &str) -> Option<String> {
    let name = participants.strip_suffix("_participants")?;
    if name == "msg" {
        return Some(String::new());
    }
    let queue = name.strip_prefix("mmsg_")?;
    Names::new(Layout::Standard, queue).is_ok().then(|| queue.to_owned())
}

/// At most ten names.
pub(crate) fn list<'a>(names: impl Iterator<Item = impl AsRef<str> + 'a>) -> String {
    let mut names: Vec<_> = names.map(|name| name.as_ref().to_owned()).collect();
    let more = names.len().saturating_sub(10);
    names.truncate(10);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{more}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_are_known_by_their_participants() {
        for queue in ["", "orders", "a_b"] {
            let names = Names::new(Layout::MultiCollection, queue).unwrap();
            assert_eq!(of(&names.participants()).as_deref(), Some(queue));
        }
        for other in ["participants", "other_participants", "msg", "mmsg_system.a_participants"] {
            assert_eq!(of(other), None, "{other}");
        }
    }
}
