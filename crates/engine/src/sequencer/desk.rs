//! The desk at which the one sequencer works.

use super::{BATCH_REQUESTS_MAX, Request, Sequencer};
use parking_lot::Mutex;
use tokio::sync::mpsc;

/// Where the log has less room than this, the next batch may need a segment that is not there yet, and has to wait for the
/// disk. More than what small requests write, unless they keep images of large documents.
const ROOM_NOW: u64 = 256 << 10;

/// The place of the one sequencer. Its thread works there; a small request that finds it idle is carried out on
/// the spot, by the thread that asks, which saves two changes of threads. Whoever holds the lock is the sequencer. Who asks
/// serves connections, so that it is not to wait for the disk.
///
/// The place is empty once the sequencer has closed the log, or has panicked: what it had half done is in no log
/// and must not be seen, so it ends, whichever thread it was, and every later request is refused.
pub struct Desk(Mutex<Option<Sequencer>>);

/// The sequencer at work. If it panics, it is gone.
struct AtWork<'a> {
    place: &'a mut Option<Sequencer>,
    is_done: bool,
}

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        if self.is_done {
            return;
        }
        if let Some(sequencer) = self.place.take() {
            tracing::error!("the sequencer panicked: no request is carried out any more");
            let waiters = sequencer.waiters.clone();
            drop(sequencer); // stops the journal: after that nothing is synced
            waiters.fail("the sequencer panicked");
        }
    }
}

impl Desk {
    /// A desk with its sequencer.
    pub fn new(sequencer: Sequencer) -> Desk {
        Desk(Mutex::new(Some(sequencer)))
    }

    /// Carries a request out now if nothing else is being carried out and the disk is not needed; gives it back otherwise.
    pub fn try_now(&self, request: Request) -> Option<Request> {
        match self.0.try_lock() {
            Some(mut place) if place.as_ref().is_some_and(|it| it.log.room() >= ROOM_NOW) => {
                Desk::carry_out(&mut place, [request]);
                None
            }
            _ => Some(request),
        }
    }

    /// Carries out requests until told to stop, until nobody can ask any more, or until the sequencer is gone.
    pub fn run(&self, mut requests: mpsc::Receiver<Request>) {
        let mut waiting = Vec::with_capacity(BATCH_REQUESTS_MAX);
        while requests.blocking_recv_many(&mut waiting, BATCH_REQUESTS_MAX) > 0 {
            let stop = waiting.iter().position(|request| matches!(request, Request::Stop(_)));
            let after = stop.map(|at| waiting.split_off(at));
            let is_there = Desk::carry_out(&mut self.0.lock(), waiting.drain(..));
            if let Some(Request::Stop(reply)) = after.and_then(|after| after.into_iter().next()) {
                let _ = reply.send(self.close()); // whoever asked may have gone
                return;
            }
            if !is_there {
                return; // whoever asked is told by the end of the queue
            }
        }
        if let Err(reason) = self.close() {
            tracing::error!(reason, "the log was not closed cleanly");
        }
    }

    /// Carries out requests, if the sequencer is there.
    fn carry_out(place: &mut Option<Sequencer>, requests: impl IntoIterator<Item = Request>) -> bool {
        let mut work = AtWork { place, is_done: false };
        if let Some(sequencer) = work.place.as_mut() {
            sequencer.carry_out(requests);
        }
        work.is_done = true;
        work.place.is_some()
    }

    pub(super) fn close(&self) -> Result<(), String> {
        self.0.lock().take().map_or_else(|| Err("the sequencer panicked".into()), Sequencer::close)
    }
}
