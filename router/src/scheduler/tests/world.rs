//! The scheduler between a model shard and model clients; every step is checked against what must hold.

use std::collections::{BTreeMap, VecDeque};

use super::arrival::Arrival;
use super::model_shard::{ModelShard, context, continuation, key, seed};
use super::toy::Answer;
use super::*;

/// A request as its client sees it.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) prompt_len: u32,
    pub(super) max_len: u32,
    /// So many of its first tokens are run at once.
    pub(super) whole: u32,
    /// Everything it should end with.
    pub(super) expected: Vec<Token>,
    /// Or the answers of this many beams.
    pub(super) beams: Option<(u32, Vec<Answer>)>,
    /// What has arrived, with what it was resumed from.
    pub(super) output: Vec<Token>,
    /// The end of what is planned in its present seat.
    pub(super) planned: u32,
    /// Tokens known when it took its present seat.
    pub(super) admitted: u32,
    pub(super) priority: Priority,
    pub(super) deadline: Option<Micros>,
    /// Others go on from its prompt.
    pub(super) has_kin: bool,
    pub(super) unscored: bool,
}

/// One in eleven tokens ends a text.
fn is_end(token: Token) -> bool {
    token.is_multiple_of(11)
}

pub(super) struct World {
    pub(super) scheduler: Scheduler,
    pub(super) shard: ModelShard,
    /// Live requests by id; ids rise with arrival.
    pub(super) requests: BTreeMap<SequenceId, Request>,
    /// Plans, and the cached tokens of those they admit.
    in_flight: VecDeque<(Plan, Vec<Vec<Token>>)>,
    pub(super) last_id: SequenceId,
    pub(super) steps: usize,
    pub(super) ended: usize,
    /// Tokens that the shard has run.
    pub(super) computed: usize,
    pub(super) copies: usize,
    /// Tokens that were known before they were sampled.
    pub(super) forced: usize,
    pub(super) now: Micros,
    /// One tenant, one class, no passing.
    pub(super) first_come_first_served: bool,
}

impl World {
    pub(super) fn new(config: SchedulerConfig) -> Self {
        let scheduler = Scheduler::new(config).unwrap();
        Self {
            shard: ModelShard::new(*scheduler.config()),
            scheduler,
            requests: BTreeMap::new(),
            in_flight: VecDeque::new(),
            last_id: 0,
            steps: 0,
            ended: 0,
            computed: 0,
            copies: 0,
            forced: 0,
            now: 0,
            first_come_first_served: config.max_passes == 0,
        }
    }

    /// From now on digests keep so few bytes that they collide.
    pub(super) fn keep_of_digests(&mut self, kept: Option<usize>) {
        if let Some(kept) = kept {
            self.scheduler.hasher = ChainHasher::colliding(kept);
        }
    }

    /// A request arrives. Returns whether it was taken.
    pub(super) fn arrive(&mut self, arrival: Arrival) -> bool {
        self.last_id += 1;
        let id = self.last_id;
        let Arrival { prompt_len, resumed, .. } = arrival;
        let whole = self.whole(arrival);
        let max_len = prompt_len + arrival.new_tokens;
        let mut tokens = arrival.prompt(id);
        let mut expected = continuation(seed(id), &tokens, max_len);
        if let Some(end) = expected.iter().position(|&token| is_end(token)) {
            expected.truncate(end + 1);
        }
        let output = expected[..(resumed as usize).min(expected.len() - 1)].to_vec();
        tokens.extend(&output);
        let config = *self.scheduler.config();
        let fits = Self::fits(&config, max_len, prompt_len, 1) && Self::fits_step(&config, whole) && whole < prompt_len;
        let (prompt_logprobs, unscored) = (id.is_multiple_of(5), id.is_multiple_of(2));
        let (priority, deadline) = (arrival.priority, arrival.patience.map(|patience| self.now + patience));
        self.first_come_first_served &= (priority, arrival.tenant) == (0, 0);
        let new = NewSequence {
            id,
            tokens,
            prompt_len,
            max_len,
            whole,
            prompt_logprobs,
            unscored,
            cache_key: key(id),
            tenant: arrival.tenant,
            priority,
            deadline,
        };
        let taken = self.scheduler.enqueue(new);
        assert_eq!(taken.is_ok(), fits, "{taken:?}");
        if taken.is_ok() {
            let (planned, admitted) = (0, 0);
            let request = Request {
                prompt_len,
                max_len,
                whole,
                expected,
                beams: None,
                output,
                planned,
                admitted,
                priority,
                deadline,
                has_kin: false,
                unscored,
            };
            self.requests.insert(id, request);
        }
        self.check();
        fits
    }

    /// The scheduler is asked for a step; true when there is one.
    pub(super) fn plan(&mut self) -> bool {
        let before: Vec<(SequenceId, u32)> = self.running().into_iter().map(|id| (id, self.yielded(id))).collect();
        let most_urgent = self.waiting().map(|id| self.requests[&id].priority).min();
        let waiting = self.scheduler.stats().waiting;
        let preemptions = self.scheduler.stats().preemptions;
        let mut plan = Plan { tokens: vec![7; 3], ..Plan::default() };
        let planned = self.scheduler.plan_into(&mut plan);
        self.check();
        let running = before.len();
        let lost = before.iter().filter(|&&(id, _)| self.scheduler.is_waiting(id)).count();
        let (yielded, before): (Vec<_>, Vec<_>) = before.iter().partition(|&&(id, times)| self.yielded(id) > times);
        for (id, times) in yielded {
            assert!(self.scheduler.is_waiting(id) && times < self.scheduler.config().max_passes);
            assert!(most_urgent.is_some_and(|class| class < self.requests[&id].priority), "{id} yielded to its like");
        }
        let before: Vec<SequenceId> = before.into_iter().map(|(id, _)| id).collect();
        assert_eq!(self.scheduler.stats().preemptions - preemptions, lost as u64);
        let lost: Vec<SequenceId> = before.iter().copied().filter(|&id| self.scheduler.is_waiting(id)).collect();
        let rank = |id: &SequenceId| self.rank(*id);
        let outlasts = |kept: &&SequenceId| lost.iter().any(|lost| rank(lost) < rank(kept)) && !lost.contains(kept);
        for kept in before.iter().filter(outlasts) {
            let in_plan = plan.segments.iter().any(|segment| segment.sequence == *kept);
            assert!(in_plan, "{lost:?} gave way to the later {kept}");
        }
        assert!(
            lost.is_empty() || !lost.contains(before.iter().min_by_key(|id| rank(id)).unwrap()),
            "the first gave way"
        );
        if !planned {
            assert_eq!(plan, Plan::default(), "no step, but a plan");
            let idle = waiting + running == 0 || self.requests.keys().any(|&id| self.is_paused(id));
            assert!(idle || !self.in_flight.is_empty(), "nothing is in flight and nothing was planned");
            return false;
        }
        self.steps += 1;
        self.check_admits(&plan);
        self.check_plan(&plan);
        let prefix = |admission: &Admission| {
            let index = self.scheduler.seats.occupant(admission.slot).unwrap();
            self.scheduler.store[index].tokens[..admission.cached_tokens as usize].to_vec()
        };
        let prefixes = plan.admits.iter().map(prefix).collect();
        self.computed += plan.token_count();
        self.copies += plan.copies.len();
        self.in_flight.push_back((plan, prefixes));
        true
    }

    /// The shard completes a step; `failing` picks a segment that fails in it.
    pub(super) fn complete(&mut self, failing: Option<usize>) {
        let Some((plan, prefixes)) = self.in_flight.pop_front() else {
            return;
        };
        let failed: Vec<Slot> =
            failing.map(|pick| plan.segments[pick % plan.segments.len()].slot).into_iter().collect();
        let report = self.shard.run(&plan, &prefixes, &failed);
        let elapsed = Some(100 + 20 * plan.token_count() as Micros);
        let results = Results {
            slots: &report.slots,
            counts: &report.counts,
            tokens: &report.tokens,
            tops: &report.tops,
            failed: &failed,
            elapsed,
        };
        let mut completed = Completed::default();
        self.scheduler.complete(plan.step, &results, &mut completed).unwrap();
        self.check();
        for id in &completed.failed {
            assert!(plan.segments.iter().any(|segment| segment.sequence == *id && failed.contains(&segment.slot)));
            self.forget(*id);
        }
        for finished in completed.beams {
            self.receive_answers(&finished);
        }
        for output in &completed.outputs {
            let segment = plan.segments.iter().find(|segment| segment.slot == report.slots[output.row]).unwrap();
            assert_eq!(segment.sequence, output.sequence);
            if output.forced {
                assert!(segment.last && (segment.start + 1..segment.start + segment.length).contains(&output.position));
                self.forced += 1;
            } else {
                assert_eq!(output.token, report.tokens[output.place]);
                assert_eq!(segment.start + segment.length, output.position);
            }
            // The rest of a run may lie behind the end of the text.
            if segment.length == 1 || !segment.last || self.requests.contains_key(&output.sequence) {
                self.receive(*output);
            }
        }
        self.check_cached(plan.step);
    }

    /// The shard fails a step as a whole.
    pub(super) fn fail_step(&mut self) {
        let Some((plan, prefixes)) = self.in_flight.pop_front() else {
            return;
        };
        let failed: Vec<Slot> = plan.segments.iter().map(|segment| segment.slot).collect();
        self.shard.run(&plan, &prefixes, &failed);
        let mut completed = Completed::default();
        self.scheduler.fail(plan.step, &mut completed).unwrap();
        self.check();
        assert!(completed.outputs.is_empty());
        for id in completed.failed {
            self.forget(id);
        }
        self.check_cached(plan.step);
    }

    /// Time goes by: exactly those that wait too long are reported.
    pub(super) fn advance(&mut self, span: Micros) {
        self.now += span;
        let late = |id: &SequenceId| self.requests[id].deadline.is_some_and(|deadline| deadline <= self.now);
        let waiting = self.requests.keys().copied().filter(|&id| self.scheduler.is_waiting(id));
        let expected: Vec<SequenceId> = waiting.filter(late).collect();
        let mut overdue = vec![];
        self.scheduler.advance(self.now, &mut overdue);
        overdue.sort_unstable();
        assert_eq!(overdue, expected);
        for id in overdue {
            self.forget(id);
        }
    }

    /// A client wants one more answer to its prompt.
    pub(super) fn fork(&mut self, pick: usize) {
        let Some(origin) = self.requests.keys().copied().nth(pick % self.requests.len().max(1)) else { return };
        if self.requests[&origin].beams.is_some() {
            assert_eq!(self.scheduler.fork(origin, &[self.last_id + 1]), Err(Refusal::IsBeams { id: origin }));
            return;
        }
        // The fork has the same content, and is not scored.
        let id = (self.last_id + 1..).find(|&id| seed(id) == seed(origin) && !id.is_multiple_of(5)).unwrap();
        self.last_id = id;
        self.scheduler.fork(origin, &[id]).unwrap();
        let request = self.requests.get_mut(&origin).unwrap();
        request.has_kin = true;
        let (planned, admitted, output) = (0, 0, vec![]);
        let (expected, beams) = (request.expected.clone(), None);
        let fork = Request { planned, admitted, output, expected, beams, ..*request };
        self.requests.insert(id, fork);
        self.check();
    }

    /// The next tokens of a sequence become known.
    pub(super) fn offer(&mut self, pick: usize, count: usize) {
        let Some(id) = self.requests.keys().copied().nth(pick % self.requests.len().max(1)) else { return };
        let request = &self.requests[&id];
        let known = request.output.len();
        let next = &request.expected[known.min(request.expected.len())..];
        self.scheduler.offer(id, request.prompt_len + known as u32, &next[..count.min(next.len())]);
        self.check();
    }

    /// A sequence is not to be planned for a while, or is again.
    pub(super) fn pause(&mut self, pick: usize, paused: bool) {
        let Some(id) = self.requests.keys().copied().nth(pick % self.requests.len().max(1)) else { return };
        if self.requests[&id].beams.is_some() {
            return;
        }
        if paused {
            self.scheduler.pause(id);
        } else {
            self.scheduler.resume(id);
        }
        self.check();
    }

    pub(super) fn is_paused(&self, id: SequenceId) -> bool {
        self.scheduler.find(id).is_some_and(|sequence| sequence.paused)
    }

    /// A client goes away.
    pub(super) fn cancel(&mut self, pick: usize) {
        let id = self.requests.keys().copied().nth(pick % self.requests.len().max(1));
        if let Some(id) = id {
            assert!(self.scheduler.finish(id));
            self.forget(id);
        }
    }

    /// The shard dies and comes back empty.
    pub(super) fn reset(&mut self) {
        self.replace_shard();
        self.scheduler.reset();
        self.check_empty();
    }

    /// The shard dies and another one comes, with other limits: exactly those end that could never run there.
    pub(super) fn rebuild(&mut self, config: SchedulerConfig) {
        // The leader of a group may get other beams.
        let single = |id: &&SequenceId| self.requests[id].beams.is_none();
        let tokens = |&id: &SequenceId| (id, self.scheduler.tokens(id).unwrap().to_vec());
        let kept: BTreeMap<_, _> = self.requests.keys().filter(single).map(tokens).collect();
        let refused = self.scheduler.rebuild(config).unwrap();
        self.replace_shard();
        let fits = |request: &Request| {
            let width = request.beams.as_ref().map_or(1, |&(width, _)| width);
            let config = self.scheduler.config();
            Self::fits(config, request.max_len, request.prompt_len, width) && Self::fits_step(config, request.whole)
        };
        let expected: Vec<_> = self.requests.iter().filter(|(_, request)| !fits(request)).map(|(&id, _)| id).collect();
        let refused: Vec<_> = refused.into_iter().map(|(id, _)| id).collect();
        assert_eq!(refused, expected);
        for id in refused {
            self.forget(id);
        }
        for (id, tokens) in kept.into_iter().filter(|(id, _)| self.requests.contains_key(id)) {
            assert_eq!(self.scheduler.tokens(id).unwrap(), tokens);
        }
        self.check_empty();
    }

    fn replace_shard(&mut self) {
        let reporting = std::mem::take(&mut self.shard.reporting);
        self.shard = ModelShard::new(*self.scheduler.config());
        self.shard.reporting = reporting;
        self.in_flight.clear();
    }

    fn check_empty(&mut self) {
        self.check();
        assert!(self.running().is_empty());
        let stats = self.scheduler.stats();
        assert_eq!((stats.blocks_used, stats.blocks_cached), (0, 0));
    }

    /// Runs until every request has ended, and checks that nothing is left.
    pub(super) fn drain(&mut self) {
        while !self.requests.is_empty() {
            for id in self.requests.keys() {
                self.scheduler.resume(*id);
            }
            while self.plan() {}
            self.complete(None);
        }
        while !self.in_flight.is_empty() {
            self.complete(None);
        }
        assert!(!self.plan());
        let stats = self.scheduler.stats();
        assert_eq!((stats.waiting, stats.waiting_tokens, stats.running, stats.running_tokens), (0, 0, 0, 0));
        assert_eq!((stats.blocks_used, stats.steps_in_flight), (0, 0));
    }

    fn waiting(&self) -> impl Iterator<Item = SequenceId> + '_ {
        self.requests.keys().copied().filter(|&id| self.scheduler.is_waiting(id))
    }

    /// How often a sequence gave its seat to a more urgent one.
    fn yielded(&self, id: SequenceId) -> u32 {
        self.scheduler.find(id).unwrap().yielded
    }

    /// Who comes last gives way first.
    pub(super) fn rank(&self, id: SequenceId) -> (Priority, Micros, SequenceId) {
        let request = &self.requests[&id];
        (request.priority, request.deadline.unwrap_or(Micros::MAX), id)
    }

    /// Whether a sequence, or so many beams, could run alone.
    pub(super) fn fits(config: &SchedulerConfig, max_len: u32, prompt_len: u32, width: u32) -> bool {
        let shared = prompt_len / config.block_size;
        let each = (max_len - 1).div_ceil(config.block_size) - shared;
        let blocks = shared + width * each;
        let pages = config.windows.map_or(blocks, |windows| {
            let tail = 1 + (windows.span - 1).div_ceil(config.block_size);
            blocks * windows.full + blocks.min(width * tail) * windows.windowed
        });
        pages <= config.num_blocks
            && width <= config.max_slots
            && config.max_running_tokens.is_none_or(|cap| width * max_len <= cap)
    }

    /// What of an arrival is run at once. No model has both an encoder and windows: what is run at once finds all its blocks
    /// in a pool that holds the longest text, which a window's part of them does not say.
    pub(super) fn whole(&self, arrival: Arrival) -> u32 {
        if self.scheduler.config().windows.is_some() { 0 } else { arrival.whole }
    }

    /// Whether so many tokens find room in a step beside all that may run.
    pub(super) fn fits_step(config: &SchedulerConfig, whole: u32) -> bool {
        whole + config.max_slots <= config.max_step_tokens
    }

    pub(super) fn running(&self) -> Vec<SequenceId> {
        self.requests.keys().copied().filter(|&id| self.scheduler.is_running(id)).collect()
    }

    pub(super) fn check(&self) {
        self.scheduler.check_integrity().unwrap();
    }

    /// What the cache promises is what the shard holds, in every block that is written by now.
    fn check_cached(&self, step: StepId) {
        let size = self.scheduler.config().block_size;
        for (cache_key, tokens, written) in self.scheduler.cache.contents() {
            if written.step > step {
                continue;
            }
            let seed = (0..4).find(|&id| key(id) == cache_key).map(seed).unwrap();
            let pages = match &self.scheduler.pages {
                Some(pages) if pages.is_held(written.block) => self.scheduler.pages_to_copy(written.block),
                Some(pages) => pages.full(written.block).to_vec(),
                None => vec![written.block],
            };
            for (position, offset) in (tokens.len() as u32 - size..).zip(0..size) {
                let expected = context(seed, &tokens[..=position as usize]);
                for &page in &pages {
                    let found = self.shard.content(page, offset);
                    assert_eq!(found, Some(Some((expected, position))), "block {}, cached", written.block);
                }
            }
        }
    }

    pub(super) fn forget(&mut self, id: SequenceId) {
        assert!(self.requests.remove(&id).is_some(), "sequence {id} ended twice");
        assert!(self.scheduler.tokens(id).is_none());
        assert!(!self.scheduler.finish(id));
        self.check();
    }

    fn receive(&mut self, output: Output) {
        let request = self.requests.get_mut(&output.sequence).expect("a token for a sequence that ended");
        assert_eq!(output.position, request.prompt_len + request.output.len() as u32);
        request.output.push(output.token);
        assert_eq!(request.output, request.expected[..request.output.len()], "sequence {}", output.sequence);
        assert_eq!(output.length_reached, output.position + 1 == request.max_len);
        let known = self.scheduler.tokens(output.sequence).unwrap();
        assert!(known[request.prompt_len as usize..].starts_with(&request.output));
        if output.length_reached || is_end(output.token) {
            assert_eq!(request.output, request.expected);
            assert!(self.scheduler.finish(output.sequence));
            self.forget(output.sequence);
            self.ended += 1;
        }
    }
}
