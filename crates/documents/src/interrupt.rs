//! Ending work that takes too long: what runs on a thread asks now and then whether it may go on.
//!
//! The caller says for a piece of work what to ask ([`Interrupt::during`]); everything that can repeat itself often
//! (expressions, filters, stages, scans) counts its steps with [`tick`] and fails with what the question answers.
//! Both meet in the thread, because all of a piece of work runs on one, and because passing a handle through every
//! comparison would cost more than counting does.
//!
//! Invariants
//! * Without an interrupt a step costs a subtraction, and nothing ever fails.
//! * An interrupt ends with the work it was given for, also if that panics.

use crate::{Result, Value};
use std::cell::{Cell, RefCell};
use std::sync::Arc;

/// Steps between two questions. A step is about as long as it takes to evaluate an operator on small values.
const STEPS: usize = 2048;
/// Bytes of a value that are looked at in one step.
pub(crate) const BYTES_PER_STEP: usize = 64;

thread_local! {
    static LEFT: Cell<usize> = const { Cell::new(STEPS) };
    static CURRENT: RefCell<Option<Interrupt>> = const { RefCell::new(None) };
}

/// What to ask: an error ends the work with it.
#[derive(Clone)]
pub struct Interrupt(Arc<dyn Fn() -> Result<()> + Send + Sync>);

impl std::fmt::Debug for Interrupt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Interrupt")
    }
}

impl Interrupt {
    /// Asks `may_go_on`, some thousand times a second.
    pub fn new(may_go_on: impl Fn() -> Result<()> + Send + Sync + 'static) -> Interrupt {
        Interrupt(Arc::new(may_go_on))
    }

    /// Asks now.
    ///
    /// # Errors
    /// The answer, if the work has to end.
    pub fn check(&self) -> Result<()> {
        (self.0)()
    }

    /// Does work that ends when the answer is an error. The interrupt of work around it waits meanwhile.
    pub fn during<T>(&self, work: impl FnOnce() -> T) -> T {
        struct Restore(Option<Interrupt>);
        impl Drop for Restore {
            fn drop(&mut self) {
                CURRENT.set(self.0.take());
            }
        }
        let _restore = Restore(CURRENT.replace(Some(self.clone())));
        work()
    }
}

/// Does work with an interrupt if there is one.
pub fn during<T>(interrupt: Option<&Interrupt>, work: impl FnOnce() -> T) -> T {
    match interrupt {
        Some(interrupt) => interrupt.during(work),
        None => work(),
    }
}

/// How many steps it counts to look at a value, or to copy it.
pub(crate) fn steps_of(value: Value<'_>) -> usize {
    let bytes = match value {
        Value::Document(inner) | Value::Array(inner) => inner.bytes().len(),
        Value::String(text) | Value::Symbol(text) => text.len(),
        Value::Binary { bytes, .. } => bytes.len(),
        _ => 0,
    };
    bytes / BYTES_PER_STEP
}

/// Counts steps of the work on this thread; once in a while asks whether it may go on.
///
/// # Errors
/// What the interrupt answers. Whoever calls must end with it.
#[inline]
pub fn tick(steps: usize) -> Result<()> {
    match LEFT.get().checked_sub(steps) {
        Some(left) => {
            LEFT.set(left);
            Ok(())
        }
        None => ask(),
    }
}

#[cold]
fn ask() -> Result<()> {
    LEFT.set(STEPS);
    // The question runs without the borrow: it may be any code.
    let current = CURRENT.with_borrow(Clone::clone);
    current.map_or(Ok(()), |interrupt| interrupt.check())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Error, code};
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn ends_after(questions: usize) -> (Interrupt, Arc<AtomicUsize>) {
        let asked = Arc::new(AtomicUsize::new(0));
        let counter = asked.clone();
        let interrupt = Interrupt::new(move || match counter.fetch_add(1, Ordering::Relaxed) < questions {
            true => Ok(()),
            false => Err(Error::new(code::INTERRUPTED, "enough")),
        });
        (interrupt, asked)
    }

    fn steps_until_the_end(limit: usize) -> usize {
        (0..limit).take_while(|_| tick(1).is_ok()).count()
    }

    #[test]
    fn work_ends_when_the_answer_is_an_error() {
        let (interrupt, asked) = ends_after(3);
        let steps = interrupt.during(|| steps_until_the_end(100 * STEPS));
        assert!((3 * STEPS..5 * STEPS).contains(&steps), "{steps}");
        assert_eq!(asked.load(Ordering::Relaxed), 4);
        assert_eq!(steps_until_the_end(10 * STEPS), 10 * STEPS, "nothing is left behind");
    }

    #[test]
    fn work_within_work_has_its_own_interrupt() {
        let (outer, _) = ends_after(0);
        let (inner, asked) = ends_after(usize::MAX);
        outer.during(|| {
            assert_eq!(inner.during(|| steps_until_the_end(10 * STEPS)), 10 * STEPS);
            assert!(asked.load(Ordering::Relaxed) >= 9);
            assert!(steps_until_the_end(10 * STEPS) <= STEPS);
        });
    }

    #[test]
    fn a_panic_takes_the_interrupt_along() {
        let (interrupt, asked) = ends_after(0);
        let panicked = std::thread::spawn(move || {
            let work =
                std::panic::AssertUnwindSafe(|| interrupt.during(|| std::panic::resume_unwind(Box::new(()))));
            assert!(std::panic::catch_unwind(work).is_err());
            assert_eq!(steps_until_the_end(10 * STEPS), 10 * STEPS);
        });
        panicked.join().unwrap();
        assert_eq!(asked.load(Ordering::Relaxed), 0);
    }
}
