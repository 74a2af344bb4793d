//! The engine loop: joins the scheduler, which decides, and the shard, which executes. It runs alone on its own thread; text work
//! is never done here.

mod answers;
mod attachment;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::connection::Connection;
use super::frames;
use super::guided::Heard;
use super::handle::{EngineError, EngineStatus, Inbox, Submission};
use super::link::LinkError;
use super::live::{LiveRequests, Work};
use super::mask_workers::MaskWorkers;
use super::observer::EngineObserver;
use super::protocol::{Frame, Hello, ProtocolError};
use crate::scheduler::{Admission, Completed, Micros, NewBeams, Plan, Scheduler, SequenceId};

/// Steps sent and not yet answered: one runs, one is planned.
const STEPS_IN_FLIGHT: u32 = 2;

/// How long before a step ends the next one is planned: time to plan it, to send it, and for the shard to be ready for it.
const LEAD: Duration = Duration::from_millis(3);

/// A step that is no longer is followed by one that is planned in the same wake. Another wake is work with cold caches, on a core
/// that the step may want: some hundredths of it; and who comes meanwhile waits for so long once more.
const SHORT: Duration = Duration::from_millis(10);

/// Limits of the engine that are the user's, not the shard's.
#[derive(Debug, Clone, Copy)]
pub struct EngineConfig {
    /// Token budget of one step.
    pub max_step_tokens: u32,
    /// Tokens of context of all running sequences together.
    pub max_running_tokens: Option<u32>,
    /// Sequences that run at once.
    pub max_sequences: Option<u32>,
    /// Running streams should get a token at least this often, at the cost of prompts.
    pub target_itl: Option<Duration>,
    /// Tokens of prompts in a step for each stream in it, where there is no such target.
    pub max_prefill_per_stream: Option<u32>,
    /// Whether blocks are kept for prompts that begin alike.
    pub prefix_caching: bool,
    /// Who waits this long goes up a class; nobody does without it.
    pub ageing: Option<Duration>,
    /// How many may be seated before one that came first and finds no room.
    pub max_passes: u32,
    /// Whether of one tenant's requests those go first that find the most in the prefix cache.
    pub longest_prefix_first: bool,
    /// Shards that may die under a request before it is failed.
    pub max_shard_failures: u32,
    /// A step that takes longer has hung, and its shard with it; none does without it.
    pub step_timeout: Option<Duration>,
}

/// A shard to talk to.
#[derive(Debug)]
pub struct Attachment {
    /// Our end of the socket pair.
    pub socket: OwnedFd,
    /// The shared memory.
    pub memory: OwnedFd,
    /// Told what the shard said first, or why it said nothing.
    pub greeted: oneshot::Sender<Result<Hello, NoHello>>,
    /// Dropped as soon as the engine has no more use for the shard.
    pub held: oneshot::Sender<Infallible>,
}

/// What the shard said first, or why it said nothing.
pub type Greeting = oneshot::Receiver<Result<Hello, NoHello>>;

/// Ends, always with an error, when the engine has lost the shard.
pub type Lost = oneshot::Receiver<Infallible>;

/// Why no hello came that is of use.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoHello {
    /// The link is gone; with another shard it may go well.
    #[error("{0}")]
    Lost(String),
    /// The shard is not one for this router, and no other of its kind will be.
    #[error("{0}")]
    Refused(String),
}

impl From<&LinkError> for NoHello {
    fn from(error: &LinkError) -> Self {
        match error {
            LinkError::Protocol(error) => Self::Refused(error.to_string()),
            LinkError::Closed | LinkError::Io(_) | LinkError::Hung(_) => Self::Lost(error.to_string()),
        }
    }
}

/// What the owner of the engine may ask of it.
#[derive(Debug)]
pub enum Control {
    /// Use this shard from now on.
    Attach(Attachment),
    /// Take nothing new.
    Drain,
    /// End at once.
    Stop,
}

/// The engine. [`Engine::run`] is its life.
pub struct Engine {
    config: EngineConfig,
    /// When the engine's clock began.
    began: Instant,
    inbox: Inbox,
    control: mpsc::Receiver<Control>,
    status: watch::Sender<EngineStatus>,
    observer: Box<dyn EngineObserver>,
    draining: bool,
    shard: Option<Connection>,
    scheduler: Option<Scheduler>,
    live: LiveRequests,
    /// Most likely tokens that the shard can report for a sequence.
    max_top_n: u32,
    /// Follow grammars.
    workers: MaskWorkers,
    /// How long the last forward pass took.
    forward: Duration,
    plan: Plan,
    completed: Completed,
    /// Memory for use again.
    gone: Vec<SequenceId>,
    /// The same: tokens that matchers have taken.
    heard: Vec<Heard>,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Engine").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Engine {
    /// An engine that waits for its first shard.
    #[must_use]
    pub fn new(
        config: EngineConfig,
        inbox: Inbox,
        control: mpsc::Receiver<Control>,
        status: watch::Sender<EngineStatus>,
        observer: Box<dyn EngineObserver>,
    ) -> Self {
        Self {
            config,
            began: Instant::now(),
            inbox,
            control,
            status,
            observer,
            draining: false,
            shard: None,
            scheduler: None,
            live: LiveRequests::default(),
            max_top_n: 0,
            workers: MaskWorkers::default(),
            forward: Duration::ZERO,
            plan: Plan::default(),
            completed: Completed::default(),
            gone: Vec::new(),
            heard: Vec::new(),
        }
    }

    /// Runs until it is told to stop or its owner is gone. Every request that is left then fails with `Stopped`.
    pub async fn run(mut self) {
        let mut rounds = self.config.step_timeout.map(rounds);
        loop {
            self.forget_cancelled();
            self.expire();
            if let Err(error) = self.feed() {
                self.lose_shard(&error);
            }
            self.live.wake_readers(&self.inbox.bell);
            let deadline = self.live.next_deadline().map(|(at, _)| self.instant(at));
            let due = [deadline, self.too_early()].into_iter().flatten().min();
            tokio::select! {
                biased;
                control = self.control.recv() => match control {
                    Some(Control::Attach(attachment)) => self.attach(attachment),
                    Some(Control::Drain) => self.drain(),
                    Some(Control::Stop) | None => break,
                },
                Some(report) = self.workers.report(), if self.workers.is_in_use() => self.take_report(report),
                frame = receive(self.shard.as_mut()) => {
                    if let Err(error) = frame.and_then(|frame| self.take(frame)) {
                        self.lose_shard(&error);
                    }
                }
                Some(submission) = self.inbox.submissions.recv(), if self.scheduler.is_some() => {
                    self.admit(submission);
                    // Who comes at the same time is let in before the next step is planned, and shares it.
                    std::thread::yield_now();
                }
                () = self.inbox.cancelled.added() => {}
                () = reach(due) => {}
                () = next(rounds.as_mut()) => self.look_for_a_hung_step(),
            }
        }
        self.end().await;
    }

    /// Plans steps and sends them, until enough are in flight or nothing can run.
    fn feed(&mut self) -> Result<(), LinkError> {
        while let Ok(submission) = if self.scheduler.is_some() {
            self.inbox.submissions.try_recv()
        } else {
            Err(mpsc::error::TryRecvError::Empty)
        } {
            self.admit(submission);
        }
        self.follow_reports();
        // A plan waits for the masks of the step before, which that step waits for in any case: what the grammars say then
        // is known to it.
        while self.workers.awaited() == 0 && self.too_early().is_none() && self.send_step()? {}
        if let Some(scheduler) = &self.scheduler {
            self.observer.scheduled(&scheduler.stats());
        }
        Ok(())
    }

    /// Until when the next step need not be planned: one runs, and will not be over soon. Who comes meanwhile has part in the
    /// next one, and not in the one after it.
    fn too_early(&self) -> Option<Instant> {
        let began = self.shard.as_ref()?.began()?;
        let busy = Duration::from_micros(self.scheduler.as_ref()?.busy_for()?);
        if busy <= SHORT {
            return None;
        }
        Some(began + busy.checked_sub(LEAD)?).filter(|&at| at > Instant::now())
    }

    /// Plans a step and sends it; false when there is none to be sent now.
    fn send_step(&mut self) -> Result<bool, LinkError> {
        let Some((shard, scheduler)) = self.shard.as_mut().zip(self.scheduler.as_mut()) else { return Ok(false) };
        let began = Instant::now();
        if !shard.greeted() || !scheduler.plan_into(&mut self.plan) {
            return Ok(false);
        }
        for &Admission { sequence: id, slot, cached_tokens } in &self.plan.admits {
            let Some(request) = self.live.get_mut(id) else { continue };
            let history = if request.needs_history() { scheduler.tokens(id) } else { None };
            let prompt_len = scheduler.prompt_len(id).unwrap_or_default();
            shard.link.queue(&frames::admit(slot, request, prompt_len, history.unwrap_or_default()))?;
            request.start(cached_tokens);
        }
        let mut masks = Vec::new();
        let mut stuck = Vec::new();
        if self.live.has_guided() {
            (masks, stuck) = want_masks(&self.plan, shard, &mut self.live, scheduler);
        }
        shard.link.queue(&frames::step(&self.plan, masks))?;
        shard.sent(&self.plan, &self.live, began);
        self.observer.planned(&self.plan);
        if self.live.has_guided() {
            self.go_on_with_masks(&stuck);
        }
        if let Some(shard) = self.shard.as_mut() {
            shard.link.send()?;
        }
        Ok(true)
    }

    /// The masks that a step names are written, as far as they are known, or found.
    fn go_on_with_masks(&mut self, stuck: &[SequenceId]) {
        for place in 0..self.plan.segments.len() {
            let segment = &self.plan.segments[place];
            if segment.sample {
                self.follow(segment.sequence);
            }
        }
        for &id in stuck {
            let reason = "the shard has no place for the mask of its grammar".to_owned();
            self.live.fail(id, &EngineError::Shard(reason));
            if let Some(scheduler) = self.scheduler.as_mut() {
                scheduler.finish(id);
            }
        }
    }

    fn drain(&mut self) {
        self.draining = true;
        self.publish();
    }

    fn publish(&self) {
        let status = match (self.draining, self.shard.as_ref().is_some_and(Connection::greeted), &self.scheduler) {
            (true, _, _) => EngineStatus::Draining,
            (_, true, _) => EngineStatus::Ready,
            (_, false, Some(_)) => EngineStatus::Recovering,
            (_, false, None) => EngineStatus::Starting,
        };
        self.status.send_if_modified(|old| std::mem::replace(old, status) != status);
    }

    /// Puts the sequences of a request into the scheduler's queue, or tells it why they can never run.
    fn admit(&mut self, submission: Submission) {
        let deadline = submission.standing.deadline.map(|at| self.clock(at));
        let Some(scheduler) = self.scheduler.as_mut() else { return };
        if submission.events.is_closed() {
            return;
        }
        let id = submission.id;
        let forks: Vec<SequenceId> = (id + 1..).take(submission.forks.len()).collect();
        let prompt = self.live.insert(submission, deadline, scheduler.config().block_size);
        let Some(work) = self.live.get_mut(id).map(|request| request.work(id, prompt)) else { return };
        let taken = match work {
            Work::Sequence(first) => scheduler
                .enqueue(first)
                .and_then(|()| scheduler.fork(id, &forks))
                .map_err(|refusal| refusal.to_string()),
            Work::Search(search) => enqueue_search(scheduler, search, self.max_top_n),
        };
        if let Err(reason) = taken {
            for id in std::iter::once(id).chain(forks) {
                self.live.fail(id, &EngineError::TooLong(reason.clone()));
            }
        }
    }

    /// An instant by the engine's clock.
    fn clock(&self, at: Instant) -> Micros {
        micros(at.saturating_duration_since(self.began))
    }

    fn instant(&self, at: Micros) -> Instant {
        self.began + Duration::from_micros(at)
    }

    fn take(&mut self, frame: Frame) -> Result<(), LinkError> {
        match frame {
            Frame::Hello(hello) => self.greet(hello)?,
            Frame::Done(done) => self.complete(&done)?,
            Frame::Failed(failed) => self.fail(&failed)?,
            Frame::Ask(ask) => self.tell_rest(&ask),
            Frame::Admit(_) | Frame::Step(_) | Frame::Stop => {
                return Err(ProtocolError::Invalid("a shard sent a frame that only a router sends".to_owned()).into());
            }
        }
        Ok(())
    }

    /// Frees slot and blocks of every sequence that nobody waits for.
    fn forget_cancelled(&mut self) {
        self.inbox.cancelled.take(&mut self.gone);
        for id in self.gone.drain(..).filter(|&id| self.live.remove(id)) {
            if let Some(scheduler) = self.scheduler.as_mut() {
                scheduler.finish(id);
            }
        }
    }

    /// Ends what has run out of time, in the queue or in a seat, and tells the scheduler the time.
    fn expire(&mut self) {
        let now = self.clock(Instant::now());
        let Some(scheduler) = self.scheduler.as_mut() else { return };
        scheduler.advance(now, &mut self.gone);
        for id in self.gone.drain(..) {
            self.live.fail(id, &EngineError::Timeout);
        }
        while let Some((_, id)) = self.live.next_deadline().filter(|(at, _)| *at <= now) {
            scheduler.finish(id);
            self.live.fail(id, &EngineError::Timeout);
        }
    }

    async fn end(mut self) {
        self.inbox.submissions.close();
        let mut left = VecDeque::new();
        while let Ok(submission) = self.inbox.submissions.try_recv() {
            left.push_back(submission);
        }
        for submission in left {
            LiveRequests::refuse(&submission, &EngineError::Stopped);
        }
        for id in self.live.ids() {
            self.live.fail(id, &EngineError::Stopped);
        }
        if let Some(mut shard) = self.shard.take() {
            let farewell = async {
                shard.link.queue(&Frame::Stop)?;
                shard.link.flush().await
            };
            if let Ok(Err(error)) = tokio::time::timeout(Duration::from_secs(1), farewell).await {
                tracing::debug!(%error, "the shard was gone before it could be told to stop");
            }
        }
        self.status.send_replace(EngineStatus::Stopped);
    }
}

/// Names masks for the sequences of a plan that sample under a grammar: pairs of segment and mask slot, and the sequences
/// that no slot is left for.
fn want_masks(
    plan: &Plan,
    shard: &Connection,
    live: &mut LiveRequests,
    scheduler: &mut Scheduler,
) -> (Vec<u32>, Vec<SequenceId>) {
    let (mut masks, mut stuck) = (Vec::new(), Vec::new());
    for (place, segment) in (0..).zip(&plan.segments).filter(|(_, segment)| segment.sample) {
        let id = segment.sequence;
        let Some(guided) = live.guided_mut(id) else { continue };
        let Some(ticket) = shard.masks.as_ref().and_then(|board| board.ticket(plan.step)) else {
            stuck.push(id);
            continue;
        };
        masks.extend([place, ticket.slot()]);
        let position = segment.start + segment.length;
        guided.want(position, ticket, shard.asks_for_masks);
        if guided.pauses_after(position) {
            scheduler.pause(id);
        }
    }
    (masks, stuck)
}

/// Lets a beam search wait for its seats, if the shard reports as many tokens of a step as it looks at.
fn enqueue_search(scheduler: &mut Scheduler, search: NewBeams, max_top_n: u32) -> Result<(), String> {
    let wanted = search.candidates();
    if wanted > max_top_n as usize {
        return Err(format!(
            "a search of {} beams with {} stop tokens looks at {wanted} tokens in a step, and the shard reports {max_top_n} at \
             most (its `max_top_n`); ask for fewer beams or fewer stop tokens",
            search.width,
            search.stop_tokens.len()
        ));
    }
    scheduler.enqueue_beams(search).map_err(|refusal| refusal.to_string())
}

/// When to look whether a step has hung: often enough that it is seen in time, and no timer is set for each step.
fn rounds(timeout: Duration) -> Interval {
    let mut rounds = interval((timeout / 4).clamp(Duration::from_millis(20), Duration::from_secs(10)));
    rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    rounds
}

async fn next(rounds: Option<&mut Interval>) {
    match rounds {
        Some(rounds) => {
            rounds.tick().await;
        }
        None => std::future::pending().await,
    }
}

/// Waits for an instant; for ever when there is none.
async fn reach(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due.into()).await,
        None => std::future::pending().await,
    }
}

fn micros(span: Duration) -> Micros {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

async fn receive(shard: Option<&mut Connection>) -> Result<Frame, LinkError> {
    match shard {
        Some(shard) => shard.link.receive().await,
        None => std::future::pending().await,
    }
}
