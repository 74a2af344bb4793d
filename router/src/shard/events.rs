//! The way of a sequence's events from the engine to whoever reads them: a bounded queue for each sequence, and one wake for all
//! that a step has brought.
//!
//! Waking a reader on another thread costs more than the token that it is woken for. So the engine gathers the readers that
//! wait while it hands out the tokens of a step, and then rings once: a task on the readers' own threads wakes them there.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use tokio::sync::Notify;

use super::handle::Event;

/// Events that a queue has room for before it grows: a reader that keeps up has one at a time.
const USUAL: usize = 4;
/// Readers that are woken at once, before the others are: they fit into the queue of a thread of tokio's, and run while what was
/// touched to wake them is still in the cache.
const AT_ONCE: usize = 64;

/// An event that was not taken: the reader has gone, or its queue is full.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("nobody takes the event")]
pub struct NotTaken(pub Event);

/// A queue for at most `capacity` events, by its two ends.
#[must_use]
pub fn queue(capacity: usize) -> (EventSender, EventReceiver) {
    let state = State { events: VecDeque::with_capacity(USUAL.min(capacity)), ..State::default() };
    let shared = Arc::new(Shared { capacity, state: Mutex::new(state) });
    (EventSender(Arc::clone(&shared)), EventReceiver(shared))
}

#[derive(Debug)]
struct Shared {
    capacity: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    events: VecDeque<Event>,
    /// Waits for an event.
    reader: Option<Waker>,
    /// Waits for room, or for the reader to go.
    writer: Option<Waker>,
    reader_gone: bool,
    writer_gone: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts an event into the queue, and gives the reader that is to be woken if it waits.
    fn push(&self, event: Event) -> Result<Option<Waker>, NotTaken> {
        let mut state = self.lock();
        if state.reader_gone || state.events.len() >= self.capacity {
            return Err(NotTaken(event));
        }
        state.events.push_back(event);
        Ok(state.reader.take())
    }
}

/// The engine's end. What was sent before it is dropped is still read. One task at a time may wait on it.
#[derive(Debug)]
pub struct EventSender(Arc<Shared>);

impl EventSender {
    /// Sends an event at once and wakes the reader.
    ///
    /// # Errors
    /// The event, when the reader has gone or its queue is full.
    pub fn try_send(&self, event: Event) -> Result<(), NotTaken> {
        if let Some(reader) = self.0.push(event)? {
            reader.wake();
        }
        Ok(())
    }

    /// The same, but the reader is woken when `wakes` are rung.
    pub(super) fn send_for(&self, event: Event, wakes: &mut Wakes) -> Result<(), NotTaken> {
        wakes.0.extend(self.0.push(event)?);
        Ok(())
    }

    /// Sends an event when there is room.
    ///
    /// # Errors
    /// The event, when the reader has gone.
    pub async fn send(&self, event: Event) -> Result<(), NotTaken> {
        let mut event = Some(event);
        poll_fn(|context| {
            let mut state = self.0.lock();
            let Some(next) = event.take_if(|_| state.reader_gone || state.events.len() < self.0.capacity) else {
                state.writer = Some(context.waker().clone());
                return Poll::Pending;
            };
            drop(state);
            Poll::Ready(self.try_send(next))
        })
        .await
    }

    /// Whether the reader has gone.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.0.lock().reader_gone
    }

    /// Waits until the reader has gone.
    pub async fn closed(&self) {
        poll_fn(|context| {
            let mut state = self.0.lock();
            if state.reader_gone {
                return Poll::Ready(());
            }
            state.writer = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

impl Drop for EventSender {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.writer_gone = true;
        let reader = state.reader.take();
        drop(state);
        if let Some(reader) = reader {
            reader.wake();
        }
    }
}

/// The reader's end.
#[derive(Debug)]
pub struct EventReceiver(Arc<Shared>);

impl EventReceiver {
    /// The next event; `None` when the engine has said its last.
    pub(super) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        let mut state = self.0.lock();
        if let Some(event) = state.events.pop_front() {
            let writer = state.writer.take();
            drop(state);
            if let Some(writer) = writer {
                writer.wake();
            }
            return Poll::Ready(Some(event));
        }
        if state.writer_gone {
            return Poll::Ready(None);
        }
        if !state.reader.as_ref().is_some_and(|reader| reader.will_wake(context.waker())) {
            state.reader = Some(context.waker().clone());
        }
        Poll::Pending
    }

    /// Nothing more is taken.
    pub(super) fn close(&mut self) {
        let mut state = self.0.lock();
        state.reader_gone = true;
        let (events, writer) = (std::mem::take(&mut state.events), state.writer.take());
        state.reader = None;
        drop(state);
        // What an event holds is let go of outside of the lock.
        drop(events);
        if let Some(writer) = writer {
            writer.wake();
        }
    }
}

impl Drop for EventReceiver {
    fn drop(&mut self) {
        self.close();
    }
}

/// Readers that wait for what was sent to them, until they are woken together.
#[derive(Debug, Default)]
pub(super) struct Wakes(Vec<Waker>);

impl Drop for Wakes {
    /// Who is dropped with the engine has still something to read, and its end.
    fn drop(&mut self) {
        self.0.drain(..).for_each(Waker::wake);
    }
}

/// What the engine rings to have readers woken. Without an attendant it wakes them itself.
#[derive(Debug, Default)]
pub struct Bell {
    rung: Mutex<Rung>,
    rings: Notify,
}

#[derive(Debug, Default)]
struct Rung {
    attended: bool,
    readers: VecDeque<Waker>,
}

impl Bell {
    /// Has all of them woken. Each reader is among them once at most, and there are never more of them than sequences.
    pub(super) fn ring(&self, wakes: &mut Wakes) {
        if wakes.0.is_empty() {
            return;
        }
        let mut rung = self.lock();
        if rung.attended {
            rung.readers.extend(wakes.0.drain(..));
            drop(rung);
            self.rings.notify_one();
        } else {
            drop(rung);
            wakes.0.drain(..).for_each(Waker::wake);
        }
    }

    /// Wakes readers where this runs, for ever. For one task.
    pub async fn attend(self: Arc<Self>) {
        let mut attendance = Attendance { bell: &self, readers: VecDeque::new() };
        self.lock().attended = true;
        loop {
            self.rings.notified().await;
            std::mem::swap(&mut attendance.bell.lock().readers, &mut attendance.readers);
            loop {
                let some = attendance.readers.len().min(AT_ONCE);
                attendance.readers.drain(..some).for_each(Waker::wake);
                if attendance.readers.is_empty() {
                    break;
                }
                tokio::task::yield_now().await;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Rung> {
        self.rung.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// While it is there, somebody attends to the bell.
struct Attendance<'a> {
    bell: &'a Bell,
    /// Still to be woken.
    readers: VecDeque<Waker>,
}

impl Drop for Attendance<'_> {
    fn drop(&mut self) {
        let mut rung = self.bell.lock();
        rung.attended = false;
        let left = std::mem::take(&mut rung.readers);
        drop(rung);
        self.readers.drain(..).chain(left).for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;
    use crate::shard::handle::Token;

    fn token(id: u32) -> Event {
        Event::Token { token: Token { id, logprob: 0.0, top: Vec::new() }, finish: None }
    }

    #[derive(Debug, Default)]
    struct Counted(AtomicUsize);

    impl Wake for Counted {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    impl Counted {
        fn times(&self) -> usize {
            self.0.load(Ordering::Relaxed)
        }
    }

    fn reader() -> (Arc<Counted>, Waker) {
        let counted = Arc::<Counted>::default();
        (Arc::clone(&counted), Waker::from(counted))
    }

    #[test]
    fn events_come_in_order_and_no_more_than_there_is_room_for() {
        let (sender, mut receiver) = queue(2);
        let (woken, waker) = reader();
        let mut context = Context::from_waker(&waker);
        assert!(receiver.poll_next(&mut context).is_pending());
        sender.try_send(token(1)).unwrap();
        sender.try_send(token(2)).unwrap();
        assert_eq!(woken.times(), 1, "who was told once comes and looks");
        assert_eq!(sender.try_send(token(3)), Err(NotTaken(token(3))));
        assert_eq!(receiver.poll_next(&mut context), Poll::Ready(Some(token(1))));
        sender.try_send(token(3)).unwrap();
        drop(sender);
        assert_eq!(receiver.poll_next(&mut context), Poll::Ready(Some(token(2))));
        assert_eq!(receiver.poll_next(&mut context), Poll::Ready(Some(token(3))));
        assert_eq!(receiver.poll_next(&mut context), Poll::Ready(None));
    }

    #[test]
    fn each_end_learns_that_the_other_has_gone() {
        let (sender, mut receiver) = queue(1);
        let (woken, waker) = reader();
        assert!(receiver.poll_next(&mut Context::from_waker(&waker)).is_pending());
        drop(sender);
        assert_eq!(woken.times(), 1);

        let (sender, receiver) = queue(1);
        let (woken, waker) = reader();
        let mut closed = pin!(sender.closed());
        assert!(closed.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        drop(receiver);
        assert_eq!(woken.times(), 1);
        assert!(closed.as_mut().poll(&mut Context::from_waker(&waker)).is_ready());
        assert!(sender.is_closed());
        assert_eq!(sender.try_send(token(1)), Err(NotTaken(token(1))));
    }

    #[test]
    fn who_sends_too_much_waits_for_room() {
        let (sender, mut receiver) = queue(1);
        let (woken, waker) = reader();
        let mut context = Context::from_waker(&waker);
        sender.try_send(token(1)).unwrap();
        let mut sending = pin!(sender.send(token(2)));
        assert!(sending.as_mut().poll(&mut context).is_pending());
        assert_eq!(receiver.poll_next(&mut context), Poll::Ready(Some(token(1))));
        assert_eq!(woken.times(), 1);
        assert_eq!(sending.as_mut().poll(&mut context), Poll::Ready(Ok(())));
        assert_eq!(receiver.poll_next(&mut context), Poll::Ready(Some(token(2))));
    }

    /// Readers of a step are woken when it is rung for, by whoever attends, and by the engine when nobody does (any more).
    #[test]
    fn readers_are_woken_together() {
        let bell = Arc::<Bell>::default();
        let (told, waker) = reader();
        let step = |wakes: &mut Wakes| {
            let (sender, mut receiver) = queue(4);
            assert!(receiver.poll_next(&mut Context::from_waker(&waker)).is_pending());
            sender.send_for(token(1), wakes).unwrap();
            sender.send_for(token(2), wakes).unwrap();
            (sender, receiver)
        };
        let mut wakes = Wakes::default();
        let ends = [step(&mut wakes), step(&mut wakes)];
        assert_eq!(told.times(), 0);
        bell.ring(&mut wakes);
        assert_eq!(told.times(), 2);

        let (rung, attendant) = reader();
        let mut attending = Box::pin(Arc::clone(&bell).attend());
        assert!(attending.as_mut().poll(&mut Context::from_waker(&attendant)).is_pending());
        let more = [step(&mut wakes), step(&mut wakes)];
        bell.ring(&mut wakes);
        assert_eq!((told.times(), rung.times()), (2, 1));
        assert!(attending.as_mut().poll(&mut Context::from_waker(&attendant)).is_pending());
        assert_eq!(told.times(), 4);

        let last = step(&mut wakes);
        bell.ring(&mut wakes);
        assert_eq!(told.times(), 4);
        drop(attending);
        assert_eq!(told.times(), 5, "what was left is not forgotten");
        drop((ends, more, last));
    }
    /// Others have their turn between two lots of readers, and none is forgotten when nobody attends any more.
    #[test]
    fn many_readers_are_woken_lot_by_lot() {
        let bell = Arc::<Bell>::default();
        let ((told, waker), (rung, attendant)) = (reader(), reader());
        let mut context = Context::from_waker(&attendant);
        let mut attending = Box::pin(Arc::clone(&bell).attend());
        assert!(attending.as_mut().poll(&mut context).is_pending());
        bell.ring(&mut Wakes(vec![waker; 2 * AT_ONCE + 1]));
        for lot in 1..=2 {
            assert!(attending.as_mut().poll(&mut context).is_pending());
            assert_eq!((told.times(), rung.times()), (lot * AT_ONCE, 1 + lot), "it comes again by itself");
        }
        drop(attending);
        assert_eq!(told.times(), 2 * AT_ONCE + 1);
    }
}
