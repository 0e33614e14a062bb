//! Collections of directed messages in the DualChannel layout: each is dropped when its node has gone, and never
//! with a message in it.
//!
//! Counting and dropping are two steps, and a message may arrive between them. A change stream opened before sees
//! it, so it is put back: the next sender or the next life of the node finds the collection as if it had not been
//! dropped. An error of the drop does not tell whether it took effect; the stream does. Once a drop was asked for,
//! nothing cuts short what puts back.

use crate::backend::{BackendError, BackendResult, Change, Durability, Feed, Scope, Watch};
use crate::node::{CALL_RETRIES, Node};
use crate::participants;
use bson::{Bson, Document};
use rockdove_messages::{Layout, MessageId, camel, filter};
use std::collections::HashSet;
use std::time::Duration;

/// How long finding out whether the own collection may be dropped at shutdown may take, and how long dropping it.
const RETIRE_LIMIT: Duration = Duration::from_secs(3);
/// How long the news of a drop may take.
const NEWS_LIMIT: Duration = Duration::from_secs(2);

/// Drops the own collection, unless it holds unread messages or another node with a similar id shares it.
pub(crate) async fn retire(node: &Node) {
    if node.names.layout() != Layout::DualChannel {
        return;
    }
    let retire = async {
        if mailboxes_in_use(node).await?.contains(&node.mailbox) {
            return Ok(None);
        }
        watch_unneeded(node, &node.mailbox, filter::needed(&node.me)).await
    };
    let result = match node.leaving(RETIRE_LIMIT, retire).await {
        Ok(Some(feed)) => drop_watched(node, &node.mailbox, feed).await,
        Ok(None) => {
            return tracing::info!(node.me, "the collection of directed messages is kept: it is in use");
        }
        Err(error) => Err(error),
    };
    if let Err(error) = result {
        tracing::warn!(node.me, %error, "the collection of directed messages was not dropped");
    }
}

/// Drops the empty collections of nodes that are gone, where they are those of one queue: in the MultiCollection layout
/// nobody knows the nodes of all queues.
pub(crate) async fn sweep(node: &Node) -> BackendResult<()> {
    let (Layout::DualChannel, Some(prefix)) = (node.names.layout(), node.names.directed_prefix()) else {
        return Ok(());
    };
    let mut in_use = mailboxes_in_use(node).await?;
    in_use.insert(node.mailbox.clone());
    in_use.extend(node.registry.active().iter().filter_map(|id| node.names.directed(id).ok()));
    let collections = node.backend.collections(&prefix).await?;
    for collection in &collections {
        if in_use.contains(collection) || !is_mailbox(collection, &prefix, &collections) {
            continue;
        }
        // The end of the bus is not to come between the drop and what puts back.
        let Some(_leave) = node.unfinished().await else { return Ok(()) };
        if let Some(feed) = watch_unneeded(node, collection, Document::new()).await? {
            drop_watched(node, collection, feed).await?;
            tracing::info!(collection, "dropped: it was empty, and its node is gone");
        }
    }
    Ok(())
}

/// Whether a collection is a mailbox, not one of a queue whose name only looks like it: names of mailboxes have no
/// underscore after the prefix, and beside the base of a queue there are its participants or locks.
fn is_mailbox(name: &str, prefix: &str, all: &[String]) -> bool {
    let has_more = |other: &String| other.strip_prefix(name).is_some_and(|rest| rest.starts_with('_'));
    name.strip_prefix(prefix).is_some_and(|node| !node.contains('_')) && !all.iter().any(has_more)
}

/// The collections of the other participants that may be alive. Ids are compared by the names they map to, which
/// cannot be mapped back.
async fn mailboxes_in_use(node: &Node) -> BackendResult<HashSet<String>> {
    let all = participants::list(node).await?;
    let others = all.iter().filter(|other| other.id != node.me && !participants::is_gone(node, other));
    Ok(others.filter_map(|other| node.names.directed(&other.id).ok()).collect())
}

/// A stream over a collection in which nothing matches `needed`; `None` when something does.
async fn watch_unneeded(
    node: &Node,
    collection: &str,
    needed: Document,
) -> BackendResult<Option<Box<dyn Feed>>> {
    let feed = watch(node, collection, None).await?;
    Ok((node.backend.count(collection, needed).await? == 0).then_some(feed))
}

async fn watch(node: &Node, collection: &str, resume_after: Option<Bson>) -> BackendResult<Box<dyn Feed>> {
    let watch = Watch { pipeline: Vec::new(), resume_after, max_await: NEWS_LIMIT };
    node.backend.watch(Scope::Collection(collection), watch).await
}

/// Drops a collection, and puts back what arrived there since the stream was opened.
async fn drop_watched(node: &Node, collection: &str, feed: Box<dyn Feed>) -> BackendResult<()> {
    let dropping = tokio::time::timeout(RETIRE_LIMIT, node.backend.drop_collection(collection));
    let result = dropping.await.unwrap_or_else(|_| Err(BackendError::late()));
    let mut arrived = Vec::new();
    let news = arrivals(node, collection, feed, &mut arrived);
    let heard = tokio::time::timeout(NEWS_LIMIT, news).await.is_ok();
    match &result {
        Err(_) if !heard => return result, // it was not dropped: what arrived is still there
        Ok(()) if !heard => {
            tracing::warn!(collection, "no news of the drop; what arrived meanwhile may be lost")
        }
        _ => {}
    }
    if !arrived.is_empty() {
        let count = arrived.len();
        tracing::info!(collection, count, "messages arrived while it was dropped; they are put back");
        // What is there after all, because the drop failed or an earlier try took effect, is refused as a duplicate.
        let insert = || node.backend.insert(collection, &arrived, Durability::Majority);
        node.retry(CALL_RETRIES, insert).await?;
    }
    result
}

/// What was inserted until the collection was dropped, and not removed.
async fn arrivals(node: &Node, collection: &str, mut feed: Box<dyn Feed>, arrived: &mut Vec<Document>) {
    loop {
        match feed.next().await {
            Ok(Some(event)) if event.change == Change::Insert => arrived.extend(event.document),
            Ok(Some(event)) if event.change == Change::Delete => {
                // Its node is there again, and done with it.
                let id_of = |document: &Document| document.get("_id").and_then(MessageId::from_bson);
                arrived.retain(|document| id_of(document) != event.id);
            }
            Ok(Some(event)) if event.change == Change::Dropped => return,
            Ok(_) => {}
            // The stream ends with its collection, on some servers without saying why; or it broke.
            Err(error) => {
                let (true, Some(token)) = (error.is_transient(), feed.resume_token()) else { return };
                match node.retry(NEWS_LIMIT, || watch(node, collection, Some(token.clone()))).await {
                    Ok(resumed) => feed = resumed,
                    Err(_) => return,
                }
            }
        }
    }
}

/// Warns of an id whose collection another id may share.
pub(crate) fn warn_about_id(node: &Node) {
    let name = camel(&node.me);
    if node.names.layout().has_directed_lane() && name.as_deref() != Ok(&node.me) {
        tracing::warn!(
            node.me,
            collection = node.mailbox,
            "the sender id has capitals or underscores: ids that differ only in those share a collection"
        );
    }
}
