//! Waiting for the next request without sleeping, where that has just paid.
//!
//! A client that sends its next request as soon as it has read a reply finds the server asleep, and waking a
//! processor takes longer than most requests do. So a connection whose last request came within the window looks for the
//! next one that long before it sleeps.
//!
//! Invariants
//! * A look that was in vain costs at most one window of one processor; the connection sleeps from then on until a
//!   request comes within the window again.
//! * Whoever else has work goes first: other tasks between two looks; and after other programs had the processor for a
//!   while nobody looks for [`PAUSE_SHARE`] times as long.
//! * Only a runtime with one worker looks. Of several, one that sleeps is told by the system what has come, and a look
//!   would only be in its way.

use bytes::BufMut;
use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncReadExt};

/// The window if nothing is configured: about twice what waking two virtual processors takes.
pub const WINDOW: Duration = Duration::from_micros(100);
/// One look takes a microsecond. If it took this long, the processor was given to a program that is busy: those keep it for
/// milliseconds, what the system and its host do in between takes less.
const TAKEN_AWAY: Duration = Duration::from_micros(500);
/// So many times as long nobody looks then.
const PAUSE_SHARE: u32 = 8;

/// Whether connections may look, and for how long.
#[derive(Debug)]
pub struct BusyPoll {
    window: Duration,
    started: Instant,
    /// Microseconds after `started`.
    paused_until: AtomicU64,
}

impl BusyPoll {
    /// Looks for at most `window`; zero is never.
    pub fn new(window: Duration) -> BusyPoll {
        BusyPoll { window, started: Instant::now(), paused_until: AtomicU64::new(0) }
    }

    /// As [`new`](Self::new), where it helps: in the present runtime, on this machine.
    pub fn where_it_helps(window: Duration) -> BusyPoll {
        let one_worker = tokio::runtime::Handle::current().metrics().num_workers() == 1;
        let alone = std::thread::available_parallelism().is_ok_and(|processors| processors.get() == 1);
        BusyPoll::new(if one_worker && !alone { window } else { Duration::ZERO })
    }

    fn is_paused(&self, now: Instant) -> bool {
        micros(now - self.started) < self.paused_until.load(Ordering::Relaxed)
    }

    /// The processor was away for this long.
    fn pause(&self, now: Instant, away: Duration) {
        self.paused_until.store(micros(now - self.started + away * PAUSE_SHARE), Ordering::Relaxed);
    }
}

fn micros(time: Duration) -> u64 {
    time.as_micros().try_into().unwrap_or(u64::MAX)
}

/// What a connection knows of its client's pace.
#[derive(Debug)]
pub struct Pace {
    /// Whether its last request came within the window.
    quick: bool,
    /// When the wait for its next request began.
    waits_since: Instant,
}

impl Default for Pace {
    /// That of a client of which nothing is known.
    fn default() -> Pace {
        Pace { quick: false, waits_since: Instant::now() }
    }
}

impl Pace {
    /// Begins to wait for bytes from `stream`, and looks for them if that promises something; `None` if none came, and
    /// the caller should sleep and then say when it [`woke`](Self::woke).
    pub async fn look<S: AsyncRead + Unpin, B: BufMut>(
        &mut self,
        poll: &BusyPoll,
        stream: &mut S,
        room: &mut B,
    ) -> Option<io::Result<usize>> {
        let begun = Instant::now();
        self.waits_since = begun;
        if !self.quick {
            return None;
        }
        let (mut last, end) = (begun, begun + poll.window);
        while !poll.is_paused(last) {
            let mut read = pin!(stream.read_buf(room));
            if let Poll::Ready(read) = poll_fn(|context| Poll::Ready(read.as_mut().poll(context))).await {
                return Some(read);
            }
            tokio::task::yield_now().await; // the runtime does other work, and asks the system what has come
            let now = Instant::now();
            if now - last > TAKEN_AWAY {
                poll.pause(now, now - last);
            }
            if now > end {
                break;
            }
            last = now;
        }
        self.quick = false;
        None
    }

    /// Notes that the request came `at` last, after a sleep. What counts is the whole wait: a look that was in vain
    /// would be again.
    pub fn woke(&mut self, poll: &BusyPoll, at: Instant) {
        self.quick = at - self.waits_since < poll.window;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncWriteExt, duplex};

    /// Long enough for any machine.
    const LONG: Duration = Duration::from_secs(60);

    fn quick() -> Pace {
        Pace { quick: true, ..Pace::default() }
    }

    #[tokio::test]
    async fn finds_what_comes_while_it_looks() {
        let (poll, mut pace, mut room) = (BusyPoll::new(LONG), quick(), Vec::new());
        let (mut client, mut server) = duplex(64);
        // Written before the second poll of the look, however long the machine takes for it.
        let late = async { client.write_all(b"next").await.unwrap() };
        let (found, ()) = tokio::join!(biased; pace.look(&poll, &mut server, &mut room), late);
        match found {
            Some(read) => assert_eq!((read.unwrap(), &room[..], pace.quick), (4, &b"next"[..], true)),
            None => assert!(
                poll.paused_until.load(Ordering::Relaxed) > 0,
                "only a processor that was taken away stops the look"
            ),
        }
    }

    #[tokio::test]
    async fn a_look_in_vain_is_the_last_until_a_request_comes_quickly() {
        let (poll, mut pace, mut room) =
            (BusyPoll::new(Duration::from_micros(1)), Pace::default(), Vec::new());
        let (mut client, mut server) = duplex(64);
        client.write_all(b"here").await.unwrap();
        assert!(
            pace.look(&poll, &mut server, &mut room).await.is_none(),
            "nothing is known of the client yet"
        );
        server.read_buf(&mut room).await.unwrap();
        pace.woke(&poll, pace.waits_since);
        assert!(pace.quick);
        assert!(pace.look(&poll, &mut server, &mut room).await.is_none());
        assert!(!pace.quick);
        let looked = Instant::now();
        pace.woke(&poll, looked);
        assert!(!pace.quick, "it came right after the look, and so too late for it");
        pace.woke(&poll, pace.waits_since + poll.window);
        assert!(!pace.quick, "the window is over");
        pace.woke(&poll, pace.waits_since + poll.window / 2);
        assert!(pace.quick, "within the window, as when the look was cut short");
    }

    #[tokio::test]
    async fn nobody_looks_while_the_processor_is_wanted_elsewhere() {
        let (poll, mut room) = (BusyPoll::new(LONG), Vec::new());
        let (_client, mut server) = duplex(64);
        let now = Instant::now();
        poll.pause(now, LONG);
        assert!(quick().look(&poll, &mut server, &mut room).await.is_none());
        assert!(poll.is_paused(now + (PAUSE_SHARE - 1) * LONG));
        assert!(!poll.is_paused(now + (PAUSE_SHARE + 1) * LONG));
    }

    #[tokio::test]
    async fn zero_is_never() {
        let (poll, mut pace) = (BusyPoll::new(Duration::ZERO), Pace::default());
        pace.woke(&poll, pace.waits_since);
        assert!(!pace.quick);
    }
}
