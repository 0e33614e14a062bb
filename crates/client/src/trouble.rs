//! What fails for now, told once: a server that is away for a minute is one line in the log when it goes, and one when
//! it is back, however many streams, polls and announcements miss it meanwhile.

use crate::backend::BackendError;
use crate::clock;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// The activities of a node that fail at present.
#[derive(Debug, Default)]
pub(crate) struct Troubles {
    /// What fails, and since when.
    failing: Mutex<BTreeMap<&'static str, Instant>>,
    /// Counts those that were long, and have ended.
    long: watch::Sender<u64>,
}

/// From here on a trouble is a long one.
pub(crate) const LONG: Duration = Duration::from_secs(10);

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
        let Some((time, last)) = self.remove(what) else { return };
        if last {
            tracing::warn!(me, "everything works again");
        }
        if time >= LONG {
            self.long.send_modify(|count| *count += 1);
        }
    }

    /// Tells of each end of a long trouble.
    pub(crate) fn long_ones(&self) -> watch::Receiver<u64> {
        self.long.subscribe()
    }

    /// Whether `what` fails at present.
    pub(crate) fn is_in(&self, what: &str) -> bool {
        self.failing.lock().contains_key(what)
    }

    /// Notes that `what` fails, without a word. Whether it is the first.
    pub(crate) fn add(&self, what: &'static str) -> bool {
        let mut failing = self.failing.lock();
        let first = failing.is_empty();
        failing.entry(what).or_insert_with(clock::now);
        first
    }

    /// How long it has failed, and whether it was the last; `None` if it did not.
    fn remove(&self, what: &'static str) -> Option<(Duration, bool)> {
        let mut failing = self.failing.lock();
        let since = failing.remove(what)?;
        Some((clock::since(since), failing.is_empty()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_and_the_last_are_told() {
        let troubles = Troubles::default();
        assert!(troubles.remove("a").is_none(), "nothing was wrong");
        assert_eq!(["a", "b", "a"].map(|what| troubles.add(what)), [true, false, false]);
        let last = ["a", "a", "b"].map(|what| troubles.remove(what).map(|(_, last)| last));
        assert_eq!(last, [Some(false), None, Some(true)]);
        assert!(troubles.add("b"), "it begins anew");
    }
}
