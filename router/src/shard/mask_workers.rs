//! The threads that follow grammars: they take tokens into matchers and write masks, while the shard runs the step that the
//! masks belong to. What takes less time than to wake a thread and to be woken by it is done where it comes up, as far as a
//! small part of a step's time allows.

use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::{Duration, Instant};

use async_channel::{Receiver, Sender};
use tokio::sync::mpsc;

use super::masks::MaskTicket;
use crate::grammar::{Guide, MatchError, Matcher};
use crate::scheduler::{SequenceId, Token};

/// Threads at most: a step's masks are few, and jobs of one grammar wait for each other in any case.
const MOST_WORKERS: usize = 4;
/// Jobs that may wait for one thread. A sequence has at most one, so this is more than can be.
const QUEUE: usize = 1 << 16;
/// Reports that may wait for the engine; a worker waits for it when there are more.
const REPORTS: usize = 1 << 10;
/// A job that is expected to take longer is a thread's.
const SHORT_JOB: Duration = Duration::from_micros(60);
/// One in so many parts of a step's time may be spent on jobs without a thread.
const OWN_PART: u32 = 8;
/// A run of this many forced tokens saves a step.
const SHORTEST_RUN: usize = 2;

/// A sequence's state under its grammar: whoever works on it owns it.
#[derive(Debug)]
pub(super) enum Follower {
    /// It has seen no token yet.
    New(Guide),
    /// It has.
    Begun(Box<Matcher>),
}

/// Work on one sequence.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) id: SequenceId,
    /// Jobs of one number go to one thread.
    pub(super) key: usize,
    pub(super) follower: Follower,
    /// What was sampled since the last job.
    pub(super) tokens: Vec<Token>,
    /// Where the mask for the next token goes.
    pub(super) ticket: Option<MaskTicket>,
    /// `u32` words of a mask.
    pub(super) words: usize,
    /// Whether to find the next mask though there is no ticket for it yet.
    pub(super) looks_ahead: bool,
    /// Whether to look for forced tokens.
    pub(super) jumps: bool,
    /// Whether a part of the mask will do.
    pub(super) in_part: bool,
}

/// What became of a job.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) id: SequenceId,
    /// The job had a ticket.
    pub(super) had_ticket: bool,
    pub(super) outcome: Result<Followed, MatchError>,
}

/// A sequence that was followed.
#[derive(Debug)]
pub(super) struct Followed {
    pub(super) follower: Follower,
    /// How many of the job's tokens were taken. The others come after the end.
    pub(super) taken: usize,
    /// Forced tokens behind them, which the follower has taken too.
    pub(super) run: Vec<Token>,
    /// The answer is whole, after the run.
    pub(super) whole: bool,
    /// The mask behind the run, or the one that was wanted ahead.
    pub(super) mask: Option<Vec<u32>>,
    /// The ticket, if the mask was published in part.
    pub(super) open: Option<MaskTicket>,
    /// How long it took to find the mask.
    pub(super) took: Duration,
    /// How long all of it took.
    pub(super) spent: Duration,
}

/// The threads, started with the first job, and what they report. They end when this is dropped.
#[derive(Debug)]
pub(super) struct MaskWorkers {
    queues: Vec<Sender<Job>>,
    reporter: mpsc::Sender<Report>,
    reports: mpsc::Receiver<Report>,
    /// Masks that the shard may be waiting for.
    awaited: usize,
    /// Jobs that threads have.
    running: usize,
    /// Time that is left for jobs without a thread, until the next step is over.
    own_time: Duration,
}

impl Default for MaskWorkers {
    fn default() -> Self {
        let (reporter, reports) = mpsc::channel(REPORTS);
        Self { queues: Vec::new(), reporter, reports, awaited: 0, running: 0, own_time: Duration::ZERO }
    }
}

impl MaskWorkers {
    /// A step of this length is over: a part of the time that the next one takes is there for short jobs.
    pub(super) fn step_is_over(&mut self, length: Duration) {
        self.own_time = length / OWN_PART;
    }

    /// Does a job that is expected to be short, or hands it to a thread, which reports what came of it. While a thread has
    /// one, it gets all: two jobs of one grammar wait for each other.
    ///
    /// # Errors
    /// `Lost` when there is no thread for it; why the sequence cannot go on.
    pub(super) fn start(&mut self, job: Job, expected: Duration) -> Result<Option<Followed>, MatchError> {
        let begun = matches!(job.follower, Follower::Begun(_));
        if begun && self.running == 0 && expected < SHORT_JOB.min(self.own_time) {
            let followed = job.run_safely()?;
            self.own_time = self.own_time.saturating_sub(followed.spent);
            return Ok(Some(followed));
        }
        self.hand_over(job).map(|()| None)
    }

    fn hand_over(&mut self, job: Job) -> Result<(), MatchError> {
        if self.queues.is_empty() {
            self.spawn();
        }
        let queue = job.key.checked_rem(self.queues.len()).and_then(|place| self.queues.get(place));
        let queue = queue.ok_or(MatchError::Lost)?;
        let had_ticket = job.ticket.is_some();
        queue.try_send(job).map_err(|_| MatchError::Lost)?;
        self.awaited += usize::from(had_ticket);
        self.running += 1;
        Ok(())
    }

    /// Masks that the shard may be waiting for.
    pub(super) const fn awaited(&self) -> usize {
        self.awaited
    }

    /// Whether there is or was anything to do.
    pub(super) const fn is_in_use(&self) -> bool {
        !self.queues.is_empty()
    }

    /// The next report. Safe to cancel.
    pub(super) async fn report(&mut self) -> Option<Report> {
        let report = self.reports.recv().await;
        self.note(report)
    }

    /// A report that is there.
    pub(super) fn try_report(&mut self) -> Option<Report> {
        let report = self.reports.try_recv().ok();
        self.note(report)
    }

    fn note(&mut self, report: Option<Report>) -> Option<Report> {
        self.awaited -= usize::from(report.as_ref().is_some_and(|report| report.had_ticket));
        self.running -= usize::from(report.is_some());
        report
    }

    fn spawn(&mut self) {
        let cores = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        for number in 0..cores.min(MOST_WORKERS) {
            let (queue, jobs) = async_channel::bounded(QUEUE);
            let reporter = self.reporter.clone();
            let work = move || work(&jobs, &reporter);
            match thread::Builder::new().name(format!("mask-{number}")).spawn(work) {
                Ok(_) => self.queues.push(queue),
                Err(error) => tracing::error!(%error, "a mask thread could not be started"),
            }
        }
    }
}

fn work(jobs: &Receiver<Job>, reporter: &mpsc::Sender<Report>) {
    while let Ok(job) = jobs.recv_blocking() {
        let (id, had_ticket) = (job.id, job.ticket.is_some());
        let outcome = job.run_safely();
        if reporter.blocking_send(Report { id, had_ticket, outcome }).is_err() {
            return;
        }
    }
}

impl Job {
    /// The library's panics, if it has any, cost their sequence alone: those that it does not catch itself, too.
    fn run_safely(self) -> Result<Followed, MatchError> {
        catch_unwind(AssertUnwindSafe(|| self.run())).unwrap_or(Err(MatchError::Failed))
    }

    /// The mask comes before forced tokens are taken: the shard may be waiting for it. A ticket that is dropped lets it
    /// sample freely.
    fn run(self) -> Result<Followed, MatchError> {
        let Self { follower, tokens, ticket, words, looks_ahead, jumps, in_part, .. } = self;
        let mut matcher = match follower {
            Follower::New(guide) => Box::new(guide.matcher()),
            Follower::Begun(matcher) => matcher,
        };
        let began = Instant::now();
        let mut taken = 0;
        for &token in &tokens {
            matcher.advance(token)?;
            taken += 1;
            if matcher.must_stop() {
                break;
            }
        }
        let mut run = Vec::new();
        let (mut mask, mut open) = (None, None);
        let mut took = Duration::ZERO;
        // What is whole before its first token is ended by a sampled end: an answer has at least one token.
        if taken == 0 || !matcher.must_stop() {
            let asked = Instant::now();
            // A mask begins with what is forced, so who asks for that first has it found once for both.
            let due = if jumps { matcher.forced() } else { Vec::new() };
            if let Some(mut ticket) = ticket {
                let words = ticket.words();
                let partly =
                    if in_part { matcher.fill_part(words)? } else { matcher.fill_mask(words).map(|()| false)? };
                if partly {
                    ticket.publish_part();
                    open = Some(ticket);
                } else {
                    ticket.publish();
                }
            } else if looks_ahead {
                mask = Some(filled(&mut matcher, words)?);
            }
            took = asked.elapsed();
            if due.len() >= SHORTEST_RUN {
                due.iter().try_for_each(|&token| matcher.advance(token))?;
                run = due;
            }
        }
        let whole = taken + run.len() > 0 && matcher.must_stop();
        if !run.is_empty() {
            mask = if whole { None } else { Some(filled(&mut matcher, words)?) };
        }
        let spent = began.elapsed();
        Ok(Followed { follower: Follower::Begun(matcher), taken, run, whole, mask, open, took, spent })
    }
}

fn filled(matcher: &mut Matcher, words: usize) -> Result<Vec<u32>, MatchError> {
    let mut mask = vec![0; words];
    matcher.fill_mask(&mut mask)?;
    Ok(mask)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grammar::GrammarSource;
    use crate::grammar::tests::{DEMO, FAILING, UNSPEAKABLE, compile};
    use crate::shard::handle::EngineError;

    const LONG: Duration = Duration::from_secs(3600);

    fn job(follower: Follower, tokens: Vec<Token>) -> Job {
        Job {
            id: 1,
            key: 0,
            follower,
            tokens,
            ticket: None,
            words: DEMO.mask_words(),
            looks_ahead: true,
            jumps: true,
            in_part: false,
        }
    }

    fn matcher() -> Box<Matcher> {
        Box::new(compile(&GrammarSource::Regex("[a-f]{9}".to_owned()), &DEMO).unwrap().matcher())
    }

    fn begun() -> Job {
        job(Follower::Begun(matcher()), Vec::new())
    }

    /// Whether the job was done here; else waits until a thread has done it.
    fn is_done_here(workers: &mut MaskWorkers, job: Job, expected: Duration) -> bool {
        if workers.start(job, expected).unwrap().is_some() {
            return true;
        }
        awaited(workers).unwrap();
        false
    }

    fn awaited(workers: &mut MaskWorkers) -> Result<Followed, MatchError> {
        loop {
            if let Some(report) = workers.try_report() {
                return report.outcome;
            }
            thread::yield_now();
        }
    }

    #[test]
    fn short_jobs_are_done_here_and_others_by_threads() {
        let mut workers = MaskWorkers::default();
        assert!(!is_done_here(&mut workers, begun(), Duration::ZERO), "no step has given any time for it");
        workers.step_is_over(LONG);
        assert!(is_done_here(&mut workers, begun(), Duration::ZERO));
        assert!(!is_done_here(&mut workers, begun(), 2 * SHORT_JOB));
        let grammar = compile(&GrammarSource::Regex("a+".to_owned()), &DEMO).unwrap();
        let new = Follower::New(Guide::new(std::sync::Arc::new(grammar), None));
        assert!(!is_done_here(&mut workers, job(new, Vec::new()), Duration::ZERO), "it has to be made first");
        // Once the time is spent, the rest is for threads.
        workers.step_is_over(Duration::from_nanos(u64::from(OWN_PART)));
        assert!(!is_done_here(&mut workers, begun(), SHORT_JOB));
    }

    #[test]
    fn both_ways_come_to_the_same() {
        let mut masks = Vec::new();
        for time in [Duration::ZERO, LONG] {
            let mut workers = MaskWorkers::default();
            workers.step_is_over(time);
            let followed = match workers.start(begun(), Duration::from_nanos(1)).unwrap() {
                Some(followed) => followed,
                None => awaited(&mut workers).unwrap(),
            };
            masks.push(followed.mask.unwrap());
        }
        assert_eq!(masks[0], masks[1]);
        assert!(masks[0].iter().any(|&word| word != 0));
    }

    #[test]
    fn while_a_thread_has_a_job_it_gets_all() {
        let mut workers = MaskWorkers::default();
        workers.step_is_over(LONG);
        assert!(workers.start(begun(), LONG).unwrap().is_none());
        assert!(!is_done_here(&mut workers, begun(), Duration::ZERO));
    }

    #[test]
    fn a_panic_of_the_library_costs_its_sequence_alone() {
        let source = GrammarSource::Regex(format!("a[0-9]{{3}}|b{UNSPEAKABLE}[0-9]"));
        let grammar = compile(&source, &FAILING).unwrap();
        let token = |name: &str| FAILING.named(name).unwrap();
        let follow = |name| job(Follower::Begun(Box::new(grammar.matcher())), vec![token(name)]);
        let mut workers = MaskWorkers::default();
        // Here, and on a thread; each is asked again after it has failed.
        for time in [LONG, Duration::ZERO] {
            for _ in 0..2 {
                workers.step_is_over(time);
                let error = match workers.start(follow("b"), Duration::ZERO) {
                    Ok(_) => awaited(&mut workers).unwrap_err(),
                    Err(error) => error,
                };
                assert_eq!(error, MatchError::Failed);
                assert!(matches!(EngineError::from(error), EngineError::Shard(_)), "a fault of the server's");
                workers.step_is_over(time);
                is_done_here(&mut workers, follow("a"), Duration::ZERO);
                is_done_here(&mut workers, begun(), Duration::ZERO);
            }
        }
    }

    #[test]
    fn a_token_that_is_not_allowed_is_the_sequences_own_error() {
        let mut workers = MaskWorkers::default();
        workers.step_is_over(LONG);
        let wrong = DEMO.mask_words() as Token * 32;
        let error = workers.start(job(Follower::Begun(matcher()), vec![wrong]), Duration::ZERO).unwrap_err();
        assert_eq!(error, MatchError::Rejected(wrong));
    }
}
