//! Handshakes that are not over: a bounded number, in which one that stalls holds nobody up.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// Handshakes in flight. One more than there may be takes the place of the oldest: a handshake that goes on is over in the
/// time of a few round trips, so the oldest of many is one whose client has stopped.
#[derive(Debug, Clone)]
pub(super) struct Handshakes {
    most: usize,
    pending: Arc<Mutex<Pending>>,
}

#[derive(Debug, Default)]
struct Pending {
    last: u64,
    /// By age; what is dropped out of here gives way.
    places: BTreeMap<u64, oneshot::Sender<()>>,
}

impl Handshakes {
    /// Room for so many, one at least.
    pub(super) fn new(most: usize) -> Self {
        Self { most: most.max(1), pending: Arc::default() }
    }

    /// Runs a handshake to its end; `None` when it has to give way to a newer one. It has its age from this call, not from the
    /// first poll: which task runs first is chance.
    pub(super) fn run<T, F: Future<Output = T>>(&self, handshake: F) -> impl Future<Output = Option<T>> + use<T, F> {
        let (place, gives_way) = self.enter();
        async move {
            let over = tokio::select! {
                biased;
                over = handshake => Some(over),
                _ = gives_way => None,
            };
            drop(place);
            over
        }
    }

    fn enter(&self) -> (Place, oneshot::Receiver<()>) {
        let (sender, receiver) = oneshot::channel();
        let mut pending = self.lock();
        if pending.places.len() >= self.most {
            pending.places.pop_first();
        }
        pending.last += 1;
        let number = pending.last;
        pending.places.insert(number, sender);
        drop(pending);
        (Place { handshakes: self.clone(), number }, receiver)
    }

    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One handshake's, until it is over or given up.
struct Place {
    handshakes: Handshakes,
    number: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.handshakes.lock().places.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    #[test]
    fn the_oldest_gives_way_and_those_that_end_make_room() {
        let handshakes = Handshakes::new(2);
        let mut context = Context::from_waker(Waker::noop());
        let mut first = pin!(handshakes.run(pending::<()>()));
        let mut second = pin!(handshakes.run(pending::<()>()));
        assert!(first.as_mut().poll(&mut context).is_pending());
        assert!(second.as_mut().poll(&mut context).is_pending());
        assert_eq!(pin!(handshakes.run(ready(1))).poll(&mut context), Poll::Ready(Some(1)));
        assert_eq!(first.as_mut().poll(&mut context), Poll::Ready(None));
        // The third is over, so there is room for one more.
        assert_eq!(pin!(handshakes.run(ready(2))).poll(&mut context), Poll::Ready(Some(2)));
        assert!(second.as_mut().poll(&mut context).is_pending());
    }

    #[test]
    fn one_that_is_dropped_leaves_no_place() {
        let handshakes = Handshakes::new(1);
        let mut given_up = Box::pin(handshakes.run(pending::<()>()));
        assert!(given_up.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        drop(given_up);
        drop(handshakes.run(pending::<()>()));
        assert!(handshakes.lock().places.is_empty());
    }
}
