//! Collections of directed messages in the DualChannel layout: each is dropped when its node has gone, and never
//! with a message in it.
//!
//! Counting and dropping are two steps, and a message may arrive between them. A change stream opened before sees
//! it, so it is put back: the next sender or the next life of the node finds the collection as if it had not been
//! dropped.

use crate::backend::{BackendResult, Change, Durability, Feed, Scope, Watch};
use crate::node::Node;
use crate::participants;
use bson::Document;
use rockdove_messages::{Layout, camel, filter};
use std::collections::HashSet;
use std::time::Duration;

/// How long dropping the own collection at shutdown may take.
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
            return Ok(false);
        }
        drop_read(node, &node.mailbox, filter::unread(&node.me)).await
    };
    match tokio::time::timeout(RETIRE_LIMIT, retire).await {
        Ok(Ok(true)) => {}
        Ok(Ok(false)) => tracing::info!(node.me, "the collection of directed messages is kept: it is in use"),
        Ok(Err(error)) => tracing::warn!(node.me, %error, "the collection of directed messages is kept"),
        Err(_) => tracing::warn!(node.me, "the collection of directed messages was not dropped in time"),
    }
}

/// Drops the empty collections of nodes that are gone; returns their names.
pub(crate) async fn sweep(node: &Node) -> BackendResult<Vec<String>> {
    let Some(prefix) = node.names.directed_prefix() else { return Ok(Vec::new()) };
    let mut in_use = mailboxes_in_use(node).await?;
    in_use.insert(node.mailbox.clone());
    in_use.extend(node.registry.active().iter().filter_map(|id| node.names.directed(id).ok()));
    let mut dropped = Vec::new();
    for collection in node.backend.collections(&prefix).await? {
        if !in_use.contains(&collection) && drop_read(node, &collection, Document::new()).await? {
            tracing::info!(collection, "dropped: it was empty, and its node is gone");
            dropped.push(collection);
        }
    }
    Ok(dropped)
}

/// The collections of the other participants that may be alive. Ids are compared by the names they map to, which
/// cannot be mapped back.
async fn mailboxes_in_use(node: &Node) -> BackendResult<HashSet<String>> {
    let all = participants::list(node).await?;
    let others = all.iter().filter(|other| other.id != node.me && !participants::is_gone(node, other));
    Ok(others.filter_map(|other| node.names.directed(&other.id).ok()).collect())
}

/// Drops a collection in which nothing matches `unread`; false when something does.
async fn drop_read(node: &Node, collection: &str, unread: Document) -> BackendResult<bool> {
    let watch = Watch { pipeline: Vec::new(), resume_after: None, max_await: NEWS_LIMIT };
    let mut feed = node.backend.watch(Scope::Collection(collection), watch).await?;
    if node.backend.count(collection, unread).await? > 0 {
        return Ok(false);
    }
    node.backend.drop_collection(collection).await?;
    let mut late = Vec::new();
    if tokio::time::timeout(NEWS_LIMIT, arrivals(&mut *feed, &mut late)).await.is_err() {
        tracing::warn!(collection, "no news of the drop; what arrived meanwhile may be lost");
    }
    if !late.is_empty() {
        tracing::info!(
            collection,
            count = late.len(),
            "messages arrived while it was dropped; they are put back"
        );
        node.backend.insert(collection, late, Durability::Majority).await?;
    }
    Ok(true)
}

/// What was inserted until the collection was dropped.
async fn arrivals(feed: &mut dyn Feed, late: &mut Vec<Document>) {
    // The stream ends with its collection, on some servers without saying why.
    while let Ok(event) = feed.next().await {
        match event {
            Some(event) if event.change == Change::Insert => late.extend(event.document),
            Some(event) if event.change == Change::Dropped => return,
            _ => {}
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
