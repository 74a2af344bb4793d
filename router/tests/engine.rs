//! The engine loop against a mock shard: the same text alone and in a crowd, under a small pool, across deaths of the shard.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stderr, missing_debug_implementations)]
#![allow(clippy::cast_possible_truncation, clippy::cast_precision_loss)]

#[path = "engine/beams.rs"]
mod beams;
#[path = "engine/grammars.rs"]
mod grammars;
mod support;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rand::Rng;
use rand::rngs::StdRng;
use support::mock_shard::{self, MockConfig, continuation};
use support::seed::fresh_rng;
use textgen_router::request::{SamplingParams, Standing, ValidRequest};
use textgen_router::scheduler::{CacheKey, Plan, Stats};
use textgen_router::shard::engine::{Attachment, Control, Engine, EngineConfig, Lost, NoHello};
use textgen_router::shard::handle::{EngineError, EngineHandle, EngineStatus, Event, Finish, Generation, PromptScore};
use textgen_router::shard::observer::{EngineObserver, StepReport};
use textgen_router::shard::protocol::{Hello, VERSION};
use tokio::sync::{mpsc, oneshot, watch};

#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Recorded>>);

#[derive(Clone, Copy, Default)]
struct Recorded {
    stats: Stats,
    steps: usize,
    tokens_sent: usize,
    /// Steps that were over when somebody was last given a seat.
    steps_before_admission: usize,
    shards_lost: usize,
}

impl EngineObserver for Recorder {
    fn planned(&mut self, plan: &Plan) {
        let mut recorded = self.0.lock().unwrap();
        recorded.tokens_sent += plan.tokens.len();
        if !plan.admits.is_empty() {
            recorded.steps_before_admission = recorded.steps;
        }
    }
    fn stepped(&mut self, _: &StepReport) {
        self.0.lock().unwrap().steps += 1;
    }
    fn scheduled(&mut self, stats: &Stats) {
        self.0.lock().unwrap().stats = *stats;
    }
    fn step_failed(&mut self, _: bool) {}
    fn shard_ready(&mut self, _: u64) {}
    fn shard_lost(&mut self) {
        self.0.lock().unwrap().shards_lost += 1;
    }
}

struct House {
    handle: EngineHandle,
    control: mpsc::Sender<Control>,
    status: watch::Receiver<EngineStatus>,
    recorder: Recorder,
}

impl House {
    fn new(stream_buffer: usize) -> Self {
        Self::impatient(stream_buffer, None)
    }

    fn impatient(stream_buffer: usize, step_timeout: Option<Duration>) -> Self {
        let (control, commands) = mpsc::channel(4);
        let (published, status) = watch::channel(EngineStatus::Starting);
        let (handle, inbox) = EngineHandle::new(256, status.clone(), stream_buffer);
        let recorder = Recorder::default();
        let config = EngineConfig {
            max_step_tokens: 32,
            max_running_tokens: None,
            max_sequences: None,
            max_prefill_per_stream: None,
            prefix_caching: true,
            target_itl: None,
            ageing: Some(Duration::from_secs(5)),
            max_passes: 16,
            longest_prefix_first: false,
            max_shard_failures: 2,
            step_timeout,
        };
        let engine = Engine::new(config, inbox, commands, published, Box::new(recorder.clone()));
        tokio::spawn(engine.run());
        Self { handle, control, status, recorder }
    }

    fn submit(&self, request: ValidRequest) -> Result<Generation, EngineError> {
        Ok(self.submit_as(request, Standing::default(), 1)?.remove(0))
    }

    fn submit_as(
        &self,
        request: ValidRequest,
        standing: Standing,
        sequences: usize,
    ) -> Result<Vec<Generation>, EngineError> {
        self.handle.submit(request, standing, sequences)
    }

    async fn attach(&self, config: MockConfig) -> Result<Hello, NoHello> {
        self.attach_watched(config).await.0
    }

    /// Also what ends when the engine loses the shard.
    async fn attach_watched(&self, config: MockConfig) -> (Result<Hello, NoHello>, Lost) {
        let shard = mock_shard::start(config);
        let (greeted, hello) = oneshot::channel();
        let (held, lost) = oneshot::channel();
        let attachment = Attachment { socket: shard.socket, memory: shard.memory, greeted, held };
        self.control.send(Control::Attach(attachment)).await.unwrap();
        (hello.await.unwrap(), lost)
    }

    async fn reaches(&self, wanted: EngineStatus) {
        let mut status = self.status.clone();
        status.wait_for(|status| *status == wanted).await.unwrap();
    }

    fn stats(&self) -> Stats {
        self.recorder.0.lock().unwrap().stats
    }

    /// Waits until the engine says so of itself.
    async fn until(&self, wanted: impl Fn(&Stats) -> bool) -> Stats {
        for _ in 0..3000 {
            let stats = self.stats();
            if wanted(&stats) {
                return stats;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the engine never got there: {:?}", self.stats());
    }

    async fn empties(&self) {
        let stats = self.until(|stats| stats.running + stats.waiting == 0).await;
        assert_eq!(stats.blocks_used, 0);
    }

    async fn settles(&self) -> Stats {
        for _ in 0..500 {
            let Recorded { stats, steps, .. } = *self.recorder.0.lock().unwrap();
            if steps > 0 && stats.running + stats.waiting == 0 {
                return stats;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the engine never settled: {:?}", self.stats());
    }
}

fn request(prompt: Vec<u32>, max_new_tokens: u32) -> ValidRequest {
    ValidRequest {
        prompt,
        source: None,
        sampling: SamplingParams::greedy(),
        rules: None,
        max_new_tokens,
        stop_tokens: Arc::new([]),
        top_n_tokens: 0,
        prompt_top_n: None,
        unscored: false,
        grammar: None,
        beams: None,
    }
}

async fn collect(mut generation: Generation) -> Result<(Vec<u32>, Finish), EngineError> {
    let mut tokens = Vec::new();
    while let Some(event) = generation.next().await {
        match event {
            Event::Token { token, finish } => {
                tokens.push(token.id);
                if let Some(finish) = finish {
                    return Ok((tokens, finish));
                }
            }
            Event::Failed(error) => return Err(error),
            Event::Started { .. } | Event::Prompt(_) => {}
            Event::Answer(answer) => panic!("{answer:?}"),
        }
    }
    Err(EngineError::SlowReader)
}

fn random_prompt(random: &mut StdRng, longest: usize) -> Vec<u32> {
    (0..random.random_range(1..=longest)).map(|_| random.random_range(0..1000)).collect()
}

#[tokio::test]
async fn a_request_alone() {
    let house = House::new(64);
    let hello = house.attach(MockConfig::default()).await.unwrap();
    assert_eq!(hello.kv.num_pages, 64);
    house.reaches(EngineStatus::Ready).await;
    let prompt = vec![1, 2, 3];
    let generation = house.submit(request(prompt.clone(), 20)).unwrap();
    assert_eq!(collect(generation).await, Ok((continuation(&prompt, 20), Finish::Length)));
    assert_eq!(house.settles().await.blocks_used, 0);
}

#[tokio::test]
async fn a_stop_token_ends_it() {
    let house = House::new(64);
    house.attach(MockConfig::default()).await.unwrap();
    let prompt = vec![7, 8];
    let expected = continuation(&prompt, 5);
    let mut wanted = request(prompt, 100);
    wanted.stop_tokens = Arc::new([expected[4]]);
    let generation = house.submit(wanted).unwrap();
    assert_eq!(collect(generation).await, Ok((expected, Finish::StopToken)));
    assert_eq!(house.settles().await.blocks_used, 0);
}

#[tokio::test]
async fn a_crowd_in_a_small_pool_across_deaths() {
    let mut random = fresh_rng();
    let house = House::new(256);
    let tight = MockConfig { num_blocks: 40, ..MockConfig::default() };
    house.attach(MockConfig { dies_at_step: Some(25), ..tight }).await.unwrap();
    let mut tasks = Vec::new();
    for _ in 0..60 {
        let prompt = random_prompt(&mut random, 80);
        let length = random.random_range(1..60);
        let expected = continuation(&prompt, length);
        let generation = house.submit(request(prompt, length as u32)).unwrap();
        tasks.push((expected, tokio::spawn(collect(generation))));
    }
    house.reaches(EngineStatus::Recovering).await;
    house.attach(MockConfig { dies_at_step: Some(60), num_blocks: 50, ..tight }).await.unwrap();
    house.reaches(EngineStatus::Recovering).await;
    house.attach(tight).await.unwrap();
    for (expected, task) in tasks {
        assert_eq!(task.await.unwrap(), Ok((expected, Finish::Length)));
    }
    let stats = house.settles().await;
    assert_eq!((stats.blocks_used, stats.running), (0, 0));
    assert_eq!(house.recorder.0.lock().unwrap().shards_lost, 2);
}

#[tokio::test]
async fn a_request_that_kills_shards_is_failed() {
    let house = House::new(64);
    house.attach(MockConfig { dies_at_step: Some(1), ..MockConfig::default() }).await.unwrap();
    let generation = house.submit(request(vec![1], 5)).unwrap();
    for _ in 0..2 {
        house.reaches(EngineStatus::Recovering).await;
        house.attach(MockConfig { dies_at_step: Some(1), ..MockConfig::default() }).await.unwrap();
    }
    assert!(matches!(collect(generation).await, Err(EngineError::Shard(_))));
    house.reaches(EngineStatus::Recovering).await;
    house.attach(MockConfig::default()).await.unwrap();
    let generation = house.submit(request(vec![2], 5)).unwrap();
    assert_eq!(collect(generation).await, Ok((continuation(&[2], 5), Finish::Length)));
}

#[tokio::test]
async fn one_bad_request_does_not_fail_its_batch() {
    let house = House::new(64);
    house.attach(MockConfig { poison: Some(1_000_000 % mock_shard::VOCAB), ..MockConfig::default() }).await.unwrap();
    let poison = 1_000_000 % mock_shard::VOCAB;
    let good = house.submit(request(vec![1, 2], 30)).unwrap();
    let bad = house.submit(request(vec![3, poison], 30)).unwrap();
    assert!(matches!(collect(bad).await, Err(EngineError::Shard(message)) if message.contains("finite")));
    assert_eq!(collect(good).await, Ok((continuation(&[1, 2], 30), Finish::Length)));
}

#[tokio::test]
async fn a_client_that_leaves_frees_its_blocks() {
    let house = House::new(64);
    house.attach(MockConfig::default()).await.unwrap();
    let mut generation = house.submit(request(vec![1, 2, 3], 200)).unwrap();
    while !matches!(generation.next().await, Some(Event::Token { .. })) {}
    drop(generation);
    let stats = house.settles().await;
    assert_eq!((stats.blocks_used, stats.running), (0, 0));
    assert!(house.recorder.0.lock().unwrap().steps < 200);
}

#[tokio::test]
async fn a_reader_that_stalls_is_cut_off_and_others_go_on() {
    let house = House::new(8);
    house.attach(MockConfig::default()).await.unwrap();
    let stalled = house.submit(request(vec![9], 200)).unwrap();
    house.settles().await;
    assert_eq!(collect(stalled).await, Err(EngineError::SlowReader));
    let generation = house.submit(request(vec![5], 6)).unwrap();
    assert_eq!(collect(generation).await, Ok((continuation(&[5], 6), Finish::Length)));
}

#[tokio::test]
async fn alternatives_and_prompt_scores_come_through_shared_memory() {
    let house = House::new(64);
    house.attach(MockConfig::default()).await.unwrap();
    let prompt: Vec<u32> = (1..=70).collect();
    let mut wanted = request(prompt.clone(), 3);
    wanted.top_n_tokens = 2;
    wanted.prompt_top_n = Some(2);
    let mut generation = house.submit(wanted).unwrap();
    let (mut scores, mut tokens) = (Vec::new(), Vec::new());
    while let Some(event) = generation.next().await {
        match event {
            Event::Prompt(logprobs) => scores = logprobs,
            Event::Token { token, .. } => tokens.push(token),
            Event::Started { .. } => assert!(tokens.is_empty()),
            Event::Answer(_) | Event::Failed(_) => panic!("{event:?}"),
        }
    }
    assert_eq!(scores.len(), prompt.len());
    assert_eq!(scores[0], None);
    let top = vec![(69, -1.0), (70, -2.0)];
    assert_eq!(scores[69], Some(PromptScore { logprob: -69.0, rank: 69, top }));
    assert_eq!(tokens.len(), 3);
    for token in tokens {
        assert_eq!(token.top, vec![(token.id, 0.0), (token.id - 1, -1.0)]);
    }
}

#[tokio::test]
async fn too_long_for_the_pool_is_refused_in_words() {
    let house = House::new(64);
    house.attach(MockConfig { num_blocks: 4, ..MockConfig::default() }).await.unwrap();
    let generation = house.submit(request(vec![1; 10], 100)).unwrap();
    assert!(matches!(collect(generation).await, Err(EngineError::TooLong(_))));
}

/// One that has gone may be followed by a better one; one of another release will not.
#[tokio::test]
async fn a_shard_of_another_release_is_refused_for_good() {
    let house = House::new(64);
    let Err(NoHello::Refused(reason)) =
        house.attach(MockConfig { version: VERSION + 1, ..MockConfig::default() }).await
    else {
        panic!("it was taken")
    };
    for version in [VERSION, VERSION + 1] {
        assert!(reason.contains(&format!("version {version}")), "{reason}");
    }
    let shard = mock_shard::start(MockConfig::default());
    let (greeted, hello) = oneshot::channel();
    let (held, _) = oneshot::channel();
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    drop(theirs);
    let attachment = Attachment { socket: ours.into(), memory: shard.memory, greeted, held };
    house.control.send(Control::Attach(attachment)).await.unwrap();
    assert!(matches!(hello.await.unwrap(), Err(NoHello::Lost(_))));
    house.attach(MockConfig::default()).await.unwrap();
}

#[tokio::test]
async fn draining_refuses_and_stopping_ends() {
    let house = House::new(512);
    house.attach(MockConfig::default()).await.unwrap();
    let running = house.submit(request(vec![1, 2], 100)).unwrap();
    house.control.send(Control::Drain).await.unwrap();
    house.reaches(EngineStatus::Draining).await;
    assert_eq!(house.submit(request(vec![1], 1)).unwrap_err(), EngineError::Draining);
    assert_eq!(collect(running).await, Ok((continuation(&[1, 2], 100), Finish::Length)));
    house.control.send(Control::Stop).await.unwrap();
    house.reaches(EngineStatus::Stopped).await;
    assert_eq!(house.submit(request(vec![1], 1)).unwrap_err(), EngineError::Stopped);
}

#[tokio::test]
async fn choices_share_their_prompt() {
    let house = House::new(64);
    house.attach(MockConfig::default()).await.unwrap();
    let prompt: Vec<u32> = (1..=50).collect();
    let generations = house.submit_as(request(prompt.clone(), 20), Standing::default(), 4).unwrap();
    assert_eq!(generations.len(), 4);
    for generation in generations {
        assert_eq!(collect(generation).await, Ok((continuation(&prompt, 20), Finish::Length)));
    }
    assert_eq!(house.settles().await.blocks_used, 0);
    let sent = house.recorder.0.lock().unwrap().tokens_sent;
    assert!(sent < 2 * prompt.len(), "{sent} tokens were sent for one prompt of {}", prompt.len());
}

#[tokio::test]
async fn choices_survive_a_shard_and_a_smaller_pool() {
    let house = House::new(64);
    house.attach(MockConfig { dies_at_step: Some(8), ..MockConfig::default() }).await.unwrap();
    let prompt: Vec<u32> = (1..=30).collect();
    let generations = house.submit_as(request(prompt.clone(), 40), Standing::default(), 3).unwrap();
    house.reaches(EngineStatus::Recovering).await;
    house.attach(MockConfig { num_blocks: 20, max_slots: 2, ..MockConfig::default() }).await.unwrap();
    for generation in generations {
        assert_eq!(collect(generation).await, Ok((continuation(&prompt, 40), Finish::Length)));
    }
    assert_eq!(house.settles().await.blocks_used, 0);
}

#[tokio::test]
async fn what_no_longer_fits_another_shard_is_said() {
    let house = House::new(64);
    house.attach(MockConfig { dies_at_step: Some(2), ..MockConfig::default() }).await.unwrap();
    let long = house.submit(request(vec![1; 10], 100)).unwrap();
    house.reaches(EngineStatus::Recovering).await;
    house.attach(MockConfig { num_blocks: 4, ..MockConfig::default() }).await.unwrap();
    assert!(matches!(collect(long).await, Err(EngineError::TooLong(_))));
}

async fn cached_tokens(mut generation: Generation) -> u32 {
    match generation.next().await {
        Some(Event::Started { cached_tokens, .. }) => cached_tokens,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn cached_tokens_are_told_and_each_key_has_its_own() {
    let house = House::new(64);
    house.attach(MockConfig::default()).await.unwrap();
    let prompt: Vec<u32> = (1..=41).collect();
    let ask = |key: &[u8]| {
        let standing = Standing { cache_key: CacheKey::of(&[key]), ..Standing::default() };
        house.submit_as(request(prompt.clone(), 2), standing, 1).unwrap().remove(0)
    };
    assert_eq!(collect(ask(b"a")).await.unwrap().1, Finish::Length);
    assert_eq!(cached_tokens(ask(b"a")).await, 40);
    assert_eq!(cached_tokens(ask(b"b")).await, 0);
}

/// A shard that takes one sequence and says nothing: what runs, runs for ever.
const SILENT: MockConfig = MockConfig {
    version: VERSION,
    vocab: mock_shard::VOCAB,
    takes_masks: true,
    asks_for_masks: false,
    is_blind: false,
    forward_ns: 2,
    takes: Duration::ZERO,
    num_blocks: 64,
    block_size: 4,
    max_slots: 1,
    max_batch_tokens: 32,
    dies_at_step: None,
    silent_from_step: Some(1),
    poison: None,
};

#[tokio::test]
async fn a_deadline_ends_what_runs_and_what_waits() {
    let house = House::new(64);
    house.attach(SILENT).await.unwrap();
    let patient = house.submit(request(vec![1], 5)).unwrap();
    let standing = Standing { deadline: Some(Instant::now() + Duration::from_millis(20)), ..Standing::default() };
    let waiting = house.submit_as(request(vec![2], 5), standing, 2).unwrap();
    for generation in waiting {
        assert_eq!(collect(generation).await, Err(EngineError::Timeout));
    }
    drop(patient);
    let running = house.submit_as(request(vec![3], 5), standing, 1).unwrap().remove(0);
    assert_eq!(collect(running).await, Err(EngineError::Timeout));
    house.empties().await;
}

#[tokio::test]
async fn a_shard_that_hangs_is_given_up_and_its_requests_go_on() {
    let house = House::impatient(64, Some(Duration::from_millis(200)));
    let (hello, mut lost) =
        house.attach_watched(MockConfig { silent_from_step: Some(6), ..MockConfig::default() }).await;
    hello.unwrap();
    let prompt = vec![3, 1, 4];
    let running = house.submit(request(prompt.clone(), 30)).unwrap();
    assert!(lost.try_recv().is_err_and(|error| error == oneshot::error::TryRecvError::Empty), "it is held");
    lost.await.unwrap_err();
    house.reaches(EngineStatus::Recovering).await;
    house.attach(MockConfig::default()).await.unwrap();
    assert_eq!(collect(running).await, Ok((continuation(&prompt, 30), Finish::Length)));
    // One with nothing to do does not hang.
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(*house.status.borrow(), EngineStatus::Ready);
}

#[tokio::test]
async fn clients_that_leave_a_silent_shard_free_everything() {
    let house = House::new(64);
    house.attach(SILENT).await.unwrap();
    let running = house.submit_as(request(vec![1; 40], 5), Standing::default(), 2).unwrap();
    let waiting: Vec<_> = (2..30).map(|token| house.submit(request(vec![token], 5)).unwrap()).collect();
    house.until(|stats| stats.running + stats.waiting == 30).await;
    drop(waiting);
    house.until(|stats| stats.running + stats.waiting == 2).await;
    drop(running);
    house.empties().await;
}

#[tokio::test]
async fn a_crowd_that_comes_and_goes() {
    let mut random = fresh_rng();
    let house = House::new(256);
    house.attach(MockConfig { num_blocks: 40, ..MockConfig::default() }).await.unwrap();
    let mut tasks = Vec::new();
    for _ in 0..60 {
        let prompt = random_prompt(&mut random, 60);
        let length = random.random_range(1..40);
        let expected = continuation(&prompt, length);
        let choices = random.random_range(1..4);
        for generation in house.submit_as(request(prompt, length as u32), Standing::default(), choices).unwrap() {
            let patience = random.random_bool(0.4).then(|| random.random_range(0..length));
            tasks.push(tokio::spawn(stay(generation, expected.clone(), patience)));
        }
        if random.random_bool(0.2) {
            tokio::task::yield_now().await;
        }
    }
    for task in tasks {
        task.await.unwrap();
    }
    house.empties().await;
}

/// Reads a sequence to its end, or leaves after so many tokens; what was read must be right.
async fn stay(mut generation: Generation, expected: Vec<u32>, patience: Option<usize>) {
    let mut read = Vec::new();
    while patience.is_none_or(|most| read.len() < most) {
        match generation.next().await {
            Some(Event::Token { token, finish }) => {
                read.push(token.id);
                if finish.is_some() {
                    break;
                }
            }
            Some(Event::Started { .. } | Event::Prompt(_)) => {}
            other => panic!("{other:?}"),
        }
    }
    let whole = patience.unwrap_or(expected.len());
    assert_eq!(read, expected[..whole]);
}

#[tokio::test]
async fn who_comes_while_a_step_runs_has_part_in_the_next() {
    let in_the_next = in_the_next(Duration::from_millis(40)).await;
    assert!(in_the_next > 5, "{in_the_next} of 10 requests had part in the next step");
}

#[tokio::test]
async fn the_step_behind_a_short_one_is_planned_in_the_same_wake() {
    let in_the_next = in_the_next(Duration::from_millis(7)).await;
    assert!(in_the_next < 5, "{in_the_next} of 10 requests came before it was planned");
}

/// How many of ten requests had part in the step behind the one that ran when they came.
async fn in_the_next(takes: Duration) -> usize {
    let house = House::new(512);
    house.attach(MockConfig { takes, forward_ns: takes.as_nanos() as u64, ..MockConfig::default() }).await.unwrap();
    // Steps enough to know how long they take, and prompts among them.
    for start in 0..10 {
        collect(house.submit(request(vec![start, 7, 9], 4)).unwrap()).await.unwrap();
    }
    let mut stream = house.submit(request(vec![1, 2, 3], 60)).unwrap();
    let mut in_the_next = 0;
    for start in 0..10 {
        while !matches!(stream.next().await, Some(Event::Token { .. })) {}
        tokio::time::sleep(takes / 10).await;
        let over = house.recorder.0.lock().unwrap().steps;
        collect(house.submit(request(vec![50 + start, 8, 9], 1)).unwrap()).await.unwrap();
        // Planned two ahead, it would be let in when another step is over.
        in_the_next += usize::from(house.recorder.0.lock().unwrap().steps_before_admission == over);
    }
    drop(stream);
    house.empties().await;
    in_the_next
}
