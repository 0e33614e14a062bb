//! What fails for now, told once: a server that is away for a minute is one line in the log when it goes, and one when
//! it is back, however many streams, polls and announcements miss it meanwhile.

use crate::backend::BackendError;
use parking_lot::Mutex;
use std::collections::BTreeSet;

/// The activities of a node that fail at present.
#[derive(Debug, Default)]
pub(crate) struct Troubles(Mutex<BTreeSet<&'static str>>);

impl Troubles {
    /// `what` failed, and will be tried again. Warns if everything worked until now.
    pub(crate) fn begin(&self, me: &str, what: &'static str, error: &BackendError) {
        if self.add(what) {
            tracing::warn!(me, %error, "{what} broke off; trying again until it works");
        } else {
            tracing::debug!(me, %error, "{what} failed; trying again");
        }
    }

    /// `what` works. Says so if it was the last that did not.
    pub(crate) fn end(&self, me: &str, what: &'static str) {
        if self.remove(what) {
            tracing::warn!(me, "everything works again");
        }
    }

    /// Whether `what` fails at present.
    pub(crate) fn is_in(&self, what: &str) -> bool {
        self.0.lock().contains(what)
    }

    /// Notes that `what` fails, without a word. Whether it is the first.
    pub(crate) fn add(&self, what: &'static str) -> bool {
        let mut failing = self.0.lock();
        let first = failing.is_empty();
        failing.insert(what);
        first
    }

    /// Whether it was the last.
    fn remove(&self, what: &'static str) -> bool {
        let mut failing = self.0.lock();
        failing.remove(what) && failing.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_and_the_last_are_told() {
        let troubles = Troubles::default();
        assert!(!troubles.remove("a"), "nothing was wrong");
        assert_eq!(["a", "b", "a"].map(|what| troubles.add(what)), [true, false, false]);
        assert_eq!(["a", "a", "b"].map(|what| troubles.remove(what)), [false, false, true]);
        assert!(troubles.add("b"), "it begins anew");
    }
}
