//! Queue layouts: which collection holds which message, lock and participant.
//!
//! What differs between the layouts is data: the names made here, the lock lifetime (`lock_expiry`) and the
//! filters. One queue uses one layout; nodes of different layouts do not hear each other.

use std::str::FromStr;
use thiserror::Error;

/// The queue every node uses that names none.
const DEFAULT_QUEUE: &str = "msg";

/// How a queue is spread over collections.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Layout {
    /// One collection for everything, one for its locks.
    #[default]
    Standard,
    /// One collection per topic, one per recipient.
    MultiCollection,
    /// One collection for broadcasts, one per recipient of directed messages.
    DualChannel,
}

impl Layout {
    /// The name participants announce.
    pub fn implementation(self) -> &'static str {
        match self {
            Self::Standard => "StandardMessaging",
            Self::MultiCollection => "MultiCollectionMessaging",
            Self::DualChannel => "DualChannelMessaging",
        }
    }

    /// All layouts.
    pub const ALL: [Self; 3] = [Self::Standard, Self::MultiCollection, Self::DualChannel];

    /// The name used in settings and on command lines.
    pub fn name(self) -> &'static str {
        match self {
            Self::Standard => "standard",
            Self::MultiCollection => "multi-collection",
            Self::DualChannel => "dual-channel",
        }
    }

    /// The layout announced under `name`.
    pub fn from_implementation(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|layout| layout.implementation() == name)
    }

    /// Whether directed messages and answers have collections of their own, one per recipient.
    pub fn has_directed_lane(self) -> bool {
        self != Self::Standard
    }
}

impl FromStr for Layout {
    type Err = UnknownLayout;

    /// Reads a layout by either of its names, [`name`](Self::name) or [`implementation`](Self::implementation), the latter
    /// also without `Messaging`.
    fn from_str(name: &str) -> Result<Self, UnknownLayout> {
        let is_called = |layout: &Self| {
            let short = layout.implementation().strip_suffix("Messaging");
            layout.name() == name || layout.implementation() == name || short == Some(name)
        };
        Self::ALL.into_iter().find(is_called).ok_or_else(|| UnknownLayout(name.to_owned()))
    }
}

/// No layout has this name.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("no layout is called `{0}`; there are standard, multi-collection and dual-channel")]
pub struct UnknownLayout(pub String);

/// Why a queue or node cannot have a collection.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum NameError {
    /// Java nodes cannot map such an id to a collection: it is empty, starts with an underscore, or has two in a row.
    #[error("the id `{0}` has no collection: it is empty, starts with `_` or contains `__`")]
    Unmappable(String),
    /// MongoDB forbids it in collection names.
    #[error("the name `{0}` cannot be part of a collection name")]
    Forbidden(String),
}

/// The collection names of one queue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Names {
    layout: Layout,
    queue: String,
}

impl Names {
    /// The names of `queue`; an empty name is the default queue `msg`.
    pub fn new(layout: Layout, queue: &str) -> Result<Self, NameError> {
        let queue = if queue.is_empty() { DEFAULT_QUEUE } else { queue };
        if queue.contains(['$', '\0']) || queue.starts_with("system.") {
            return Err(NameError::Forbidden(queue.to_owned()));
        }
        Ok(Self { layout, queue: queue.to_owned() })
    }

    /// The layout these names follow.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// The name of the queue; the default one has its own.
    pub fn queue(&self) -> &str {
        &self.queue
    }

    /// The base collection: of everything (Standard), of broadcasts (DualChannel), or the prefix of all topics
    /// (MultiCollection).
    pub fn base(&self) -> String {
        if self.layout == Layout::MultiCollection { self.queue.clone() } else { self.prefixed() }
    }

    /// Where broadcasts on `topic` go.
    pub fn broadcast(&self, topic: &str) -> String {
        match self.layout {
            Layout::Standard | Layout::DualChannel => self.base(),
            Layout::MultiCollection => clean(&format!("{}_{topic}", self.queue)),
        }
    }

    /// Where messages for `recipient` and answers to it go. In the MultiCollection layout all queues of a
    /// database share that collection.
    pub fn directed(&self, recipient: &str) -> Result<String, NameError> {
        Ok(match self.layout {
            Layout::Standard => self.base(),
            Layout::MultiCollection => format!("dm_{}", camel(recipient)?),
            Layout::DualChannel => format!("{}_dm_{}", self.base(), camel(recipient)?),
        })
    }

    /// Where the locks of exclusive broadcasts on `topic` are.
    pub fn locks(&self, topic: &str) -> String {
        match self.layout {
            Layout::Standard | Layout::DualChannel => format!("{}_lck", self.base()),
            Layout::MultiCollection => clean(&format!("{}_lck_{topic}", self.queue)),
        }
    }

    /// What the names of all collections for directed messages begin with; `None` in the Standard layout.
    pub fn directed_prefix(&self) -> Option<String> {
        match self.layout {
            Layout::Standard => None,
            Layout::MultiCollection => Some("dm_".to_owned()),
            Layout::DualChannel => Some(format!("{}_dm_", self.base())),
        }
    }

    /// Where the nodes of the queue announce themselves; the same in every layout.
    pub fn participants(&self) -> String {
        format!("{}_participants", self.prefixed())
    }

    fn prefixed(&self) -> String {
        if self.queue == DEFAULT_QUEUE { self.queue.clone() } else { format!("mmsg_{}", self.queue) }
    }
}

/// Makes a topic usable in a collection name: drops white space, `-` and `/`, turns each `.` into `_`.
///
/// Different topics can meet in one collection (`a.b` and `a_b`): always compare a message's own topic.
pub fn clean(name: &str) -> String {
    name.chars()
        .filter(|c| !c.is_whitespace() && *c != '-' && *c != '/')
        .map(|c| if c == '.' { '_' } else { c })
        .collect()
}

/// Makes a sender id usable in a collection name: lower case, each `_x` becomes `X`, trailing underscores vanish.
///
/// Not reversible (`a_b` and `A_B` meet): never compare a collection's suffix with a raw id.
pub fn camel(id: &str) -> Result<String, NameError> {
    let lower = id.to_lowercase();
    let mut parts = lower.trim_end_matches('_').split('_');
    let mut name = parts.next().unwrap_or_default().to_owned();
    let unmappable = || NameError::Unmappable(id.to_owned());
    if name.is_empty() {
        return Err(unmappable());
    }
    for part in parts {
        let mut letters = part.chars();
        name.extend(letters.next().ok_or_else(unmappable)?.to_uppercase());
        name.push_str(letters.as_str());
    }
    if name.contains(['$', '\0']) {
        return Err(NameError::Forbidden(id.to_owned()));
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn names(layout: Layout, queue: &str) -> [String; 5] {
        let names = Names::new(layout, queue).unwrap();
        let directed = names.directed("Node_One").unwrap();
        [names.base(), names.broadcast("a.b-c"), directed, names.locks("a.b-c"), names.participants()]
    }

    #[test]
    fn collections_by_layout() {
        let check =
            |layout, queue, expected| assert_eq!(names(layout, queue), expected, "{layout:?} {queue}");
        check(Layout::Standard, "", ["msg", "msg", "msg", "msg_lck", "msg_participants"]);
        check(Layout::Standard, "msg", ["msg", "msg", "msg", "msg_lck", "msg_participants"]);
        let shop = ["mmsg_shop", "mmsg_shop", "mmsg_shop", "mmsg_shop_lck", "mmsg_shop_participants"];
        check(Layout::Standard, "shop", shop);
        let multi = ["shop", "shop_a_bc", "dm_nodeOne", "shop_lck_a_bc", "mmsg_shop_participants"];
        check(Layout::MultiCollection, "shop", multi);
        check(
            Layout::MultiCollection,
            "",
            ["msg", "msg_a_bc", "dm_nodeOne", "msg_lck_a_bc", "msg_participants"],
        );
        let dual =
            ["mmsg_shop", "mmsg_shop", "mmsg_shop_dm_nodeOne", "mmsg_shop_lck", "mmsg_shop_participants"];
        check(Layout::DualChannel, "shop", dual);
    }

    #[test]
    fn topics_are_cleaned_as_a_whole() {
        let check = |input, expected| assert_eq!(clean(input), expected);
        check("q_orders.created", "q_orders_created");
        check("my queue_a-b/c d", "myqueue_abcd");
        check("Case_Kept", "Case_Kept");
    }

    #[test]
    fn ids_become_camel_case() {
        let check = |input, expected| assert_eq!(camel(input).ok().as_deref(), expected, "{input}");
        check("Node_One", Some("nodeOne"));
        check("myNode", Some("mynode"));
        check("5f2c-77aa", Some("5f2c-77aa"));
        check("host:1/a.b", Some("host:1/a.b"));
        check("a_b__", Some("aB"));
        for unmappable in ["", "_a", "a__b", "_", "__"] {
            check(unmappable, None);
        }
    }

    #[test]
    fn implementations_have_the_names_java_knows() {
        for layout in Layout::ALL {
            assert_eq!(Layout::from_implementation(layout.implementation()), Some(layout));
        }
        assert_eq!(Layout::from_implementation("standardmessaging"), None);
        for layout in Layout::ALL {
            assert_eq!(layout.name().parse(), Ok(layout));
            assert_eq!(layout.implementation().parse(), Ok(layout));
        }
        for (short, layout) in [
            ("Standard", Layout::Standard),
            ("MultiCollection", Layout::MultiCollection),
            ("DualChannel", Layout::DualChannel),
        ] {
            assert_eq!(short.parse(), Ok(layout));
        }
        assert_eq!("Messaging".parse::<Layout>(), Err(UnknownLayout("Messaging".into())));
        assert!(Names::new(Layout::Standard, "a$b").is_err());
    }

    proptest! {
        #[test]
        fn cleaning_is_stable_and_mapping_never_panics(text in ".{0,40}") {
            prop_assert_eq!(clean(&clean(&text)), clean(&text));
            if let Ok(name) = camel(&text) {
                prop_assert!(!name.is_empty() && !name.contains('_'));
            }
        }
    }
}
