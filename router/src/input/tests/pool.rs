use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;

use super::*;
use crate::input::error::InputError;
use crate::input::pool::Pool;
use crate::input::{ChatPrompt, GenerationRequest, Parameters, Preparer, Prompt, SHORT_TEXT};

/// A job that says when it runs, then waits to be let go.
fn blocker(pool: &Pool) -> (tokio::task::JoinHandle<Result<(), InputError>>, mpsc::Receiver<()>, mpsc::Sender<()>) {
    let (started, has_started) = mpsc::channel();
    let (release, released) = mpsc::channel();
    let pool = pool.clone();
    let job = tokio::spawn(async move {
        pool.run(move || {
            started.send(()).unwrap();
            released.recv().unwrap();
            Ok(())
        })
        .await
    });
    (job, has_started, release)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_pool_refuses_at_once() {
    let pool = Pool::new(1, 1);
    let (job, has_started, release) = blocker(&pool);
    has_started.recv().unwrap();
    let mut waiting = Box::pin(pool.run(|| Ok(1)));
    // One poll submits the job, and it cannot be done.
    assert!(futures::poll!(waiting.as_mut()).is_pending());
    assert_eq!(pool.run(|| Ok(2)).await, Err(InputError::Overloaded));
    release.send(()).unwrap();
    assert_eq!(waiting.await, Ok(1));
    assert_eq!(job.await.unwrap(), Ok(()));
    assert_eq!(pool.run(|| Ok(3)).await, Ok(3));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_whose_caller_is_gone_is_skipped() {
    let pool = Pool::new(1, 2);
    let (job, has_started, release) = blocker(&pool);
    has_started.recv().unwrap();
    let ran = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&ran);
    let mut waiting = Box::pin(pool.run(move || {
        flag.store(true, Ordering::SeqCst);
        Ok(())
    }));
    assert!(futures::poll!(waiting.as_mut()).is_pending());
    drop(waiting);
    release.send(()).unwrap();
    job.await.unwrap().unwrap();
    // Jobs run in order: when this one is done, the other was passed over.
    assert_eq!(pool.run(|| Ok(())).await, Ok(()));
    assert!(!ran.load(Ordering::SeqCst));
}

#[tokio::test]
async fn a_panic_is_an_answer_and_the_thread_lives() {
    let pool = Pool::new(1, 1);
    let panicked: Result<(), _> = pool.run(|| panic!("this panic is part of a test")).await;
    assert!(matches!(panicked, Err(InputError::Internal(_))), "{panicked:?}");
    assert_eq!(pool.run(|| Ok(1)).await, Ok(1));
}

#[tokio::test]
async fn prepares_tokenizes_and_renders() {
    let preparer = Preparer::new(model(), limits());
    let message = object(&json!({"role": "user", "content": "hello"}));
    let chat = ChatPrompt { messages: vec![message.into()], ..ChatPrompt::default() };
    assert_eq!(preparer.render_chat(chat.clone()).await.unwrap(), "<s>hello");

    let request = GenerationRequest { prompt: Prompt::Chat(chat), parameters: Parameters::default() };
    let prepared = preparer.prepare(request).await.unwrap();
    let hello = model().tokenizer().token_to_id("hello").unwrap();
    assert_eq!(prepared.request.prompt, [266, hello], "special tokens are not added again");
    assert_eq!((prepared.prompt_text.as_deref(), prepared.prompt_characters), (Some("<s>hello"), 8));
    assert!(!prepared.text.continues_text);

    let spans = preparer.tokenize("hello é".to_owned(), true).await.unwrap();
    let texts: Vec<_> = spans.iter().map(|span| (span.text.as_str(), span.start, span.stop)).collect();
    assert_eq!(texts, [("", 0, 0), ("hello", 0, 5), (" ", 5, 6), ("é", 6, 7)]);
    assert!(matches!(preparer.tokenize(String::new(), true).await, Err(InputError::Validation(_))));
}

#[tokio::test]
async fn a_short_text_waits_for_nobody() {
    let preparer = Preparer::new(model(), Limits { validation_workers: 1, ..limits() });
    let (release, blocked) = mpsc::channel::<()>();
    let mut job = Box::pin(preparer.pool.run(move || {
        // An error means that the test is over.
        let _ = blocked.recv();
        Ok(())
    }));
    assert!(futures::poll!(job.as_mut()).is_pending());
    let text = |text: String| GenerationRequest {
        prompt: Prompt::Text { text, add_special_tokens: true },
        parameters: Parameters::default(),
    };
    let mut short = Box::pin(preparer.prepare(text("hello".to_owned())));
    assert!(futures::poll!(short.as_mut()).is_ready());
    let mut long = Box::pin(preparer.prepare(text("hello".repeat(SHORT_TEXT))));
    assert!(futures::poll!(long.as_mut()).is_pending());
    release.send(()).unwrap();
    job.await.unwrap();
    // What becomes of it is not what this test asks.
    let _ = long.await;
}
