//! Where results of calls arrive while their answer is still being written.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use futures::task::AtomicWaker;

use crate::http::errors::ApiError;
use crate::http::responses::store::Owner;
use crate::metrics::AsyncToolMetrics;

/// The answers that take results now, by their ids. Each holds a permit of its server, so there are only so many.
#[derive(Debug, Default)]
pub struct Boards(Mutex<HashMap<String, Arc<Board>>>);

impl Boards {
    /// Opens a board for an answer; results may have so many bytes in all. It is there until `Listed` is dropped.
    pub(super) fn open(
        self: &Arc<Self>,
        id: &str,
        owner: Owner,
        most_bytes: usize,
        metrics: AsyncToolMetrics,
    ) -> Listed {
        let calls = Mutex::default();
        let board = Arc::new(Board { owner, most_bytes, calls, waker: AtomicWaker::new(), metrics });
        lock(&self.0).insert(id.to_owned(), Arc::clone(&board));
        Listed { boards: Arc::clone(self), id: id.to_owned(), board }
    }

    /// Puts a result of so many tokens on an answer's board.
    ///
    /// # Errors
    /// `NoSuchAnswer`, also when it is another key's; those of `Board::post`.
    pub(super) fn post(
        &self,
        id: &str,
        owner: Owner,
        call: &str,
        (content, tokens): (String, usize),
    ) -> Result<(), ApiError> {
        let board = lock(&self.0).get(id).filter(|board| board.owner == owner).cloned();
        let gone = || ApiError::NoSuchAnswer(id.chars().take(100).collect());
        board.ok_or_else(gone)?.post(News { call: call.to_owned(), content, tokens }, gone)
    }

    /// Whether such an answer takes results.
    ///
    /// # Errors
    /// `NoSuchAnswer`, also when it is another key's.
    pub(super) fn check(&self, id: &str, owner: Owner) -> Result<(), ApiError> {
        let known = lock(&self.0).get(id).is_some_and(|board| board.owner == owner);
        known.then_some(()).ok_or_else(|| ApiError::NoSuchAnswer(id.chars().take(100).collect()))
    }

    /// How many answers take results.
    #[must_use]
    pub fn len(&self) -> usize {
        lock(&self.0).len()
    }

    /// Whether none does.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A board that can be found.
#[derive(Debug)]
pub(super) struct Listed {
    boards: Arc<Boards>,
    id: String,
    board: Arc<Board>,
}

impl std::ops::Deref for Listed {
    type Target = Board;

    fn deref(&self) -> &Board {
        &self.board
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        lock(&self.boards.0).remove(&self.id);
    }
}

/// The calls of one answer and their results.
pub(super) struct Board {
    owner: Owner,
    most_bytes: usize,
    calls: Mutex<Calls>,
    waker: AtomicWaker,
    metrics: AsyncToolMetrics,
}

/// A result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct News {
    pub(super) call: String,
    pub(super) content: String,
    pub(super) tokens: usize,
}

impl fmt::Debug for Board {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Neither whose it is nor what it holds.
        f.debug_struct("Board").finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Calls {
    /// Complete calls, and whether their result has come.
    answered: HashMap<String, bool>,
    /// Results that the answer has not taken yet, in the order in which they came.
    news: Vec<News>,
    /// Bytes of all results.
    bytes: usize,
    /// Tokens that results may have, those that lie here included.
    room: usize,
    closed: bool,
}

impl Board {
    /// A call is complete: from now on its result may come.
    pub(super) fn expect(&self, call: &str) {
        lock(&self.calls).answered.insert(call.to_owned(), false);
        self.metrics.opened();
    }

    /// So many tokens of results fit behind the conversation now.
    pub(super) fn set_room(&self, tokens: usize) {
        lock(&self.calls).room = tokens;
    }

    /// A token was written, which takes room from results.
    pub(super) fn written(&self) {
        let mut calls = lock(&self.calls);
        calls.room = calls.room.saturating_sub(1);
    }

    /// Puts a result on the board.
    ///
    /// # Errors
    /// `gone`'s when nothing is taken any more; `Validation` for a call that was not made, `AlreadyAnswered`, `TooLarge`,
    /// `TooLong`.
    fn post(&self, news: News, gone: impl Fn() -> ApiError) -> Result<(), ApiError> {
        let mut calls = lock(&self.calls);
        if calls.closed {
            return Err(gone());
        }
        let bytes = calls.bytes + news.content.len();
        let taken: usize = calls.news.iter().map(|news| news.tokens).sum();
        let room = calls.room.saturating_sub(taken);
        match calls.answered.get_mut(&news.call) {
            None => {
                return Err(ApiError::Validation(
                    "Input validation error: `tool_call_id` is not the id of a call that this answer has completed; send the \
                     `id` of one of its `tool_calls`"
                        .to_owned(),
                ));
            }
            Some(true) => return Err(ApiError::AlreadyAnswered(news.call)),
            Some(_) if bytes > self.most_bytes => return Err(ApiError::TooLarge { limit: self.most_bytes }),
            Some(_) if news.tokens > room => {
                return Err(ApiError::TooLong(format!(
                    "Input validation error: `content` must have at most {room} tokens, so that the conversation fits. Given: {}",
                    news.tokens
                )));
            }
            Some(answered) => *answered = true,
        }
        calls.bytes = bytes;
        calls.news.push(news);
        drop(calls);
        self.metrics.closed(1);
        self.waker.wake();
        Ok(())
    }

    /// Whether there are results to take.
    pub(super) fn has_news(&self) -> bool {
        !lock(&self.calls).news.is_empty()
    }

    /// Takes the results that came, in their order.
    pub(super) fn take_news(&self) -> Vec<News> {
        std::mem::take(&mut lock(&self.calls).news)
    }

    /// Results that were taken found no room: their calls may have others.
    pub(super) fn reopen(&self, news: &[News]) {
        let mut calls = lock(&self.calls);
        for one in news {
            calls.bytes = calls.bytes.saturating_sub(one.content.len());
            if let Some(answered) = calls.answered.get_mut(&one.call) {
                *answered = false;
                self.metrics.opened();
            }
        }
    }

    /// Calls without a result.
    pub(super) fn open_calls(&self) -> usize {
        lock(&self.calls).answered.values().filter(|answered| !**answered).count()
    }

    /// Takes no more results; false when one has come before.
    pub(super) fn close(&self) -> bool {
        let mut calls = lock(&self.calls);
        calls.closed = calls.news.is_empty();
        calls.closed
    }

    /// Takes no more results; gives those that came and were not taken.
    pub(super) fn shut(&self) -> Vec<News> {
        let mut calls = lock(&self.calls);
        calls.closed = true;
        std::mem::take(&mut calls.news)
    }

    /// Who is to be woken by the next result. Look for news after this, not before.
    pub(super) fn register(&self, waker: &Waker) {
        self.waker.register(waker);
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        self.metrics.closed(self.open_calls());
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Owner = Some([1; 32]);

    #[test]
    fn a_result_finds_its_call_once() {
        let boards = Arc::<Boards>::default();
        let board = boards.open("chatcmpl-1", ONE, 10, AsyncToolMetrics::unseen());
        board.set_room(4);
        board.expect("a");
        board.expect("b");
        let post = |owner, id: &str, call: &str, content: &str| {
            boards.post(id, owner, call, (content.to_owned(), content.len().div_ceil(2)))
        };
        let gone = Err(ApiError::NoSuchAnswer("chatcmpl-1".to_owned()));
        assert_eq!(post(None, "chatcmpl-1", "a", "1"), gone);
        assert_eq!(post(Some([2; 32]), "chatcmpl-1", "a", "1"), gone);
        assert!(matches!(post(ONE, "chatcmpl-2", "a", "1"), Err(ApiError::NoSuchAnswer(_))));
        assert_eq!((boards.check("chatcmpl-1", None), boards.check("chatcmpl-1", ONE)), (gone.clone(), Ok(())));
        assert!(matches!(post(ONE, "chatcmpl-1", "c", "1"), Err(ApiError::Validation(_))));
        assert!(!board.has_news() && board.open_calls() == 2);
        assert_eq!(post(ONE, "chatcmpl-1", "b", "22"), Ok(()));
        assert_eq!(post(ONE, "chatcmpl-1", "b", "22"), Err(ApiError::AlreadyAnswered("b".to_owned())));
        assert_eq!(post(ONE, "chatcmpl-1", "a", "123456789"), Err(ApiError::TooLarge { limit: 10 }));
        // Three tokens of four are left, and one is written.
        board.written();
        assert!(matches!(post(ONE, "chatcmpl-1", "a", "12345"), Err(ApiError::TooLong(_))));
        assert!(!board.close(), "a result has come");
        let news = board.take_news();
        assert_eq!(news, [News { call: "b".to_owned(), content: "22".to_owned(), tokens: 1 }]);
        assert_eq!(post(ONE, "chatcmpl-1", "b", "22"), Err(ApiError::AlreadyAnswered("b".to_owned())));
        board.reopen(&news);
        assert_eq!(board.open_calls(), 2);
        assert_eq!(post(ONE, "chatcmpl-1", "b", "2"), Ok(()));
        assert_eq!(board.shut().len(), 1);
        assert!(board.open_calls() == 1 && board.close());
        assert_eq!(post(ONE, "chatcmpl-1", "a", "1"), gone);
        assert_eq!(boards.len(), 1);
        drop(board);
        assert!(boards.is_empty());
    }
}
