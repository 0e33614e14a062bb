//! What collections show of queues, for those that look at them from outside.
//!
//! Nothing but its name says whose a collection is, and the names of one queue may begin with the name of another:
//! `shop_eu_orders` is topic `orders` of the queue `shop_eu`, or topic `eu.orders` of `shop`. The collection of its locks
//! tells: `shop_eu_lck_orders`, or `shop_lck_eu_orders`. Without one a collection is taken for one of the queue that explains
//! most of its name, among those that the database shows. What even that leaves open, documents tell ([`is_lock`]).

use crate::backend::{Backend, BackendResult, Find};
use crate::error::LookError;
use bson::Document;
use rockdove_messages::{Layout, NameError, Names};
use std::collections::BTreeSet;

/// The collections of a database, and the queues they show.
pub(crate) struct Catalog {
    collections: BTreeSet<String>,
    /// The queues with a collection of participants, by name; the default one is empty.
    announced: Vec<String>,
    /// Those, and the ones that only locks of topics show.
    known: Vec<Shape>,
}

/// What the collections of a queue are called, in all layouts.
struct Shape {
    queue: String,
    /// The base, its locks, the participants.
    whole: [String; 3],
    /// What those of a node's directed messages begin with; what follows has no underscore.
    mailboxes: String,
    topics: String,
    locks: String,
}

impl Shape {
    fn of(queue: &str) -> Result<Self, NameError> {
        let dual = Names::new(Layout::DualChannel, queue)?;
        let multi = Names::new(Layout::MultiCollection, queue)?;
        Ok(Self {
            queue: dual.queue().to_owned(),
            whole: [dual.base(), dual.locks(""), dual.participants()],
            mailboxes: dual.directed_prefix().unwrap_or_default(),
            topics: multi.broadcast(""),
            locks: multi.locks(""),
        })
    }

    fn is_mailbox(&self, collection: &str) -> bool {
        collection.strip_prefix(&self.mailboxes).is_some_and(|node| !node.contains('_'))
    }

    /// Whether a collection is that of a topic, as that of the topic's locks shows.
    fn has_locks(&self, collection: &str, all: &BTreeSet<String>) -> bool {
        let topic = collection.strip_prefix(&self.topics);
        topic.is_some_and(|topic| all.contains(&format!("{}{topic}", self.locks)))
    }

    /// Whether a collection is that of the locks of a topic, as the topic's own shows.
    fn has_topic(&self, collection: &str, all: &BTreeSet<String>) -> bool {
        let topic = collection.strip_prefix(&self.locks);
        topic.is_some_and(|topic| all.contains(&format!("{}{topic}", self.topics)))
    }

    /// How many bytes of a collection's name this queue explains, among all there are.
    fn explains(&self, collection: &str, all: &BTreeSet<String>) -> Option<usize> {
        let is_whole = self.whole.iter().any(|name| name == collection);
        if is_whole || self.has_locks(collection, all) || self.has_topic(collection, all) {
            return Some(collection.len());
        }
        if is_shared(collection) {
            return None;
        }
        let begins = |prefix: &String| collection.starts_with(prefix).then_some(prefix.len());
        let mailbox = self.is_mailbox(collection).then_some(self.mailboxes.len());
        mailbox.max(begins(&self.topics)).max(begins(&self.locks))
    }
}

/// Whether a collection looks like one of directed messages in the MultiCollection layout, which all queues share.
fn is_shared(collection: &str) -> bool {
    collection.strip_prefix("dm_").is_some_and(|node| !node.contains('_'))
}

impl Catalog {
    pub(crate) async fn read(backend: &dyn Backend) -> BackendResult<Self> {
        Ok(Self::of(backend.collections("").await?.into_iter().collect()))
    }

    fn of(collections: BTreeSet<String>) -> Self {
        let mut announced: Vec<String> = collections.iter().filter_map(|name| announced(name)).collect();
        announced.sort_unstable();
        // A topic has its messages and its locks: queues whose nodes do not announce themselves are known by both.
        // Their names may have `_lck_` in them.
        let locked = collections.iter().flat_map(|name| {
            let parts =
                name.match_indices("_lck").map(|(at, infix)| (&name[..at], &name[at + infix.len()..]));
            parts.filter(|(queue, topic)| {
                topic.starts_with('_') && collections.contains(&format!("{queue}{topic}"))
            })
        });
        let locked = locked.map(|(queue, _)| queue);
        let queues: BTreeSet<&str> = announced.iter().map(String::as_str).chain(locked).collect();
        let known = queues.into_iter().filter_map(|queue| Shape::of(queue).ok()).collect();
        Self { collections, announced, known }
    }

    /// The queues whose nodes announce themselves, or did; the default one is empty.
    pub(crate) fn queues(&self) -> &[String] {
        &self.announced
    }

    /// Whether there is anything of a queue. What all queues share does not count.
    pub(crate) fn has(&self, queue: &str) -> Result<bool, NameError> {
        let shape = Shape::of(queue)?;
        Ok(self.collections.iter().any(|name| self.is_of(&shape, name)))
    }

    /// Whether there is anything of a queue in the Standard layout: its messages, locks or participants.
    pub(crate) fn has_standard(&self, queue: &str) -> Result<bool, NameError> {
        Ok(Shape::of(queue)?.whole.iter().any(|name| self.collections.contains(name)))
    }

    /// Whether a collection is one of this queue rather than of another.
    fn is_of(&self, shape: &Shape, collection: &str) -> bool {
        let Some(explained) = shape.explains(collection, &self.collections) else { return false };
        let others = self.known.iter().filter(|other| other.queue != shape.queue);
        let others = others.filter_map(|other| other.explains(collection, &self.collections));
        others.max().is_none_or(|other| other <= explained)
    }

    /// A note about the other queues whose topics in the MultiCollection layout have names that begin like this one's, if
    /// there are any.
    pub(crate) fn alike(&self, queue: &str) -> Result<Option<String>, NameError> {
        let own = Shape::of(queue)?;
        let mut alike = Vec::new();
        for other in &self.announced {
            let other = Shape::of(other)?;
            if other.queue != own.queue && other.topics.starts_with(&own.topics) {
                alike.push(other.queue);
            }
        }
        let note = || {
            format!(
                "what the collections of other queues begin with counts as theirs unless its locks are of this one: {}",
                list(alike.iter())
            )
        };
        Ok((!alike.is_empty()).then(note))
    }

    fn filter<'a>(
        &'a self,
        shape: &'a Shape,
        is: impl Fn(&str) -> bool + 'a,
    ) -> impl Iterator<Item = &'a String> {
        self.collections.iter().filter(move |name| is(name) && self.is_of(shape, name))
    }

    /// The layouts whose collections exist.
    pub(crate) fn layouts(&self, queue: &str) -> Result<Vec<Layout>, NameError> {
        let shape = Shape::of(queue)?;
        let mut layouts = Vec::new();
        if self.collections.contains(&shape.whole[0]) {
            // What a Standard queue has, a DualChannel queue has, too.
            let has_mailbox = self.filter(&shape, |name| shape.is_mailbox(name)).next().is_some();
            layouts.push(if has_mailbox { Layout::DualChannel } else { Layout::Standard });
        }
        if !self.topics(queue)?.is_empty() {
            layouts.push(Layout::MultiCollection);
        }
        Ok(layouts)
    }

    /// Those of them that are not empty beside another one: a drain leaves the old collections behind.
    pub(crate) async fn layouts_in_use(
        &self,
        backend: &dyn Backend,
        queue: &str,
    ) -> Result<Vec<Layout>, LookError> {
        let all = self.layouts(queue)?;
        let [old, Layout::MultiCollection] = all[..] else { return Ok(all) };
        for collection in self.messages(&Names::new(old, queue)?)? {
            if !backend.find(&collection, Find { limit: 1, ..Find::default() }).await?.is_empty() {
                return Ok(all);
            }
        }
        Ok(vec![Layout::MultiCollection])
    }

    /// The collections of topics in the MultiCollection layout. The default queue's begin like its collections in the
    /// other layouts. A collection of locks without that of their topic may be one of a topic `lck_…`, and counts as both.
    pub(crate) fn topics(&self, queue: &str) -> Result<Vec<String>, NameError> {
        let shape = Shape::of(queue)?;
        let is_topic = |name: &str| {
            let is_locks =
                shape.has_topic(name, &self.collections) && !shape.has_locks(name, &self.collections);
            let is_other = is_locks || shape.is_mailbox(name);
            name.starts_with(&shape.topics) && !is_other && !shape.whole.iter().any(|one| one == name)
        };
        Ok(self.filter(&shape, is_topic).cloned().collect())
    }

    /// The collections that hold messages of the queue.
    pub(crate) fn messages(&self, names: &Names) -> Result<Vec<String>, NameError> {
        let shape = Shape::of(names.queue())?;
        let mut all = match names.layout() {
            Layout::MultiCollection => self.topics(names.queue())?,
            Layout::Standard | Layout::DualChannel => {
                self.collections.get(&shape.whole[0]).cloned().into_iter().collect()
            }
        };
        match names.layout() {
            Layout::Standard => {}
            Layout::DualChannel => all.extend(self.filter(&shape, |name| shape.is_mailbox(name)).cloned()),
            Layout::MultiCollection => {
                let shared = self.collections.iter().filter(|name| is_shared(name) && !all.contains(name));
                all.extend(shared.cloned().collect::<Vec<_>>());
            }
        }
        Ok(all)
    }

    /// The collections that hold locks of the queue.
    pub(crate) fn locks(&self, names: &Names) -> Result<Vec<String>, NameError> {
        let shape = Shape::of(names.queue())?;
        let is_lock = |name: &str| match names.layout() {
            Layout::Standard | Layout::DualChannel => name == shape.whole[1],
            Layout::MultiCollection => name.starts_with(&shape.locks),
        };
        Ok(self.filter(&shape, is_lock).cloned().collect())
    }
}

/// Whether a document is a lock, in a collection that is one of locks by its name, or one of messages. A name may be both:
/// `shop_lck_eu` is where locks of the topic `eu` are, and messages on `lck.eu`; `mmsg_shop_lck` has the locks of the queue
/// `shop`, and the messages of `shop_lck`.
pub(crate) fn is_lock(document: &Document, among_locks: bool) -> bool {
    document.contains_key("lock_id") || among_locks && !document.contains_key("sender")
}

/// The queue whose participants are in a collection.
fn announced(participants: &str) -> Option<String> {
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
            assert_eq!(announced(&names.participants()).as_deref(), Some(queue));
        }
        for other in ["participants", "other_participants", "msg", "mmsg_system.a_participants"] {
            assert_eq!(announced(other), None, "{other}");
        }
    }

    /// What queues with a node `n` and a topic `t` have, each in all these layouts.
    fn database(queues: &[&str], layouts: &[Layout], announced: bool) -> BTreeSet<String> {
        let mut all = BTreeSet::new();
        for queue in queues {
            for layout in layouts {
                let names = Names::new(*layout, queue).unwrap();
                all.extend([names.broadcast("t"), names.locks("t"), names.directed("n").unwrap()]);
                all.extend(announced.then(|| names.participants()));
            }
        }
        all
    }

    /// Queues whose names begin with those of others, or with what the collections of others begin with.
    #[test]
    fn collections_that_begin_alike_are_told_apart() {
        let queues = [
            "",
            "shop",
            "shop_eu",
            "shop_eu_west",
            "shop_dm_x",
            "mmsg",
            "mmsg_shop",
            "msg_eu",
            "a-b",
            "ab_c",
        ];
        // Who is not announced is known in the MultiCollection layout only.
        for (layouts, announced) in [(&Layout::ALL[..], true), (&[Layout::MultiCollection], false)] {
            let catalog = Catalog::of(database(&queues, layouts, announced));
            for (queue, layout) in
                queues.iter().flat_map(|queue| layouts.iter().map(move |layout| (queue, *layout)))
            {
                let names = Names::new(layout, queue).unwrap();
                let mut expected = vec![names.broadcast("t")];
                expected.extend((layout != Layout::Standard).then(|| names.directed("n").unwrap()));
                assert_eq!(catalog.messages(&names).unwrap(), expected, "{queue} {layout:?} {announced}");
                assert_eq!(
                    catalog.locks(&names).unwrap(),
                    [names.locks("t")],
                    "{queue} {layout:?} {announced}"
                );
            }
        }
    }

    /// A topic that begins like another queue, which is longer.
    #[test]
    fn locks_tell_whose_a_topic_is() {
        let mut all = database(&["shop_eu"], &[Layout::Standard], true);
        let shop = Names::new(Layout::MultiCollection, "shop").unwrap();
        all.extend(["eu.orders", "us"].iter().flat_map(|topic| [shop.broadcast(topic), shop.locks(topic)]));
        all.insert("shop_eu_other".to_owned());
        let catalog = Catalog::of(all);
        assert_eq!(catalog.messages(&shop).unwrap(), ["shop_eu_orders", "shop_us"]);
        assert_eq!(catalog.locks(&shop).unwrap(), ["shop_lck_eu_orders", "shop_lck_us"]);
        let shop_eu = Names::new(Layout::MultiCollection, "shop_eu").unwrap();
        assert_eq!(catalog.messages(&shop_eu).unwrap(), ["shop_eu_other"]);
        assert!(catalog.has_standard("shop_eu").unwrap() && !catalog.has_standard("shop").unwrap());
        assert!(catalog.alike("shop").unwrap().is_some_and(|note| note.ends_with(": shop_eu")));
        assert_eq!(catalog.alike("shop_eu").unwrap(), None);
    }

    /// What is called like locks, of a topic or a queue.
    #[test]
    fn names_with_lck_are_those_of_messages_where_there_is_no_topic_to_lock() {
        let catalog = |names: &[&str]| Catalog::of(names.iter().map(|name| (*name).to_owned()).collect());
        let shop = Names::new(Layout::MultiCollection, "shop").unwrap();
        let check = |all: &[&str], messages: &[&str], locks: &[&str]| {
            let catalog = catalog(all);
            assert_eq!(catalog.messages(&shop).unwrap(), messages, "{all:?}");
            assert_eq!(catalog.locks(&shop).unwrap(), locks, "{all:?}");
        };
        check(&["shop_a", "shop_lck_a"], &["shop_a"], &["shop_lck_a"]);
        check(&["shop_lck_a"], &["shop_lck_a"], &["shop_lck_a"]);
        let both = ["shop_lck_a", "shop_lck_lck_a"];
        check(&both, &both[..1], &both);
        check(&[&both[..], &["mmsg_shop_lck_participants"]].concat(), &both[..1], &both);
        // A queue whose name has `_lck_` in it is known by its locks.
        let eu = catalog(&["shop_lck_eu_lck_a", "shop_lck_eu_a"]);
        assert!(eu.has("shop_lck_eu").unwrap() && !eu.has("shop").unwrap());
    }

    #[test]
    fn who_only_begins_alike_makes_no_queue() {
        let catalog = Catalog::of(database(&["shop_eu", "mmsg_shop", "shopping"], &Layout::ALL, true));
        for (queue, is_there) in
            [("shop_eu", true), ("shopping", true), ("shop", false), ("", false), ("sho", false)]
        {
            assert_eq!(catalog.has(queue).unwrap(), is_there, "{queue}");
            assert_eq!(catalog.layouts(queue).unwrap().is_empty(), !is_there, "{queue}");
        }
        // What all queues share makes none; a topic with locks does, and is not told twice.
        let shared = Catalog::of(BTreeSet::from(["dm_n1".to_owned()]));
        assert!(!shared.has("dm").unwrap() && shared.layouts("dm").unwrap().is_empty());
        let dm = Catalog::of(database(&["dm"], &[Layout::MultiCollection], false));
        assert!(dm.has("dm").unwrap() && !dm.has("shop").unwrap());
        let multi = Names::new(Layout::MultiCollection, "dm").unwrap();
        assert_eq!(dm.messages(&multi).unwrap(), ["dm_t", "dm_n"]);
        assert!(!dm.has_standard("dm").unwrap());
        let empty = Catalog::of(BTreeSet::from(["msg_participants".to_owned()]));
        assert!(empty.has("").unwrap() && empty.has("msg").unwrap() && empty.layouts("").unwrap().is_empty());
    }
}
