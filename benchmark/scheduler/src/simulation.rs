//! One or many replicas under a virtual clock.
//!
//! A replica's device runs the steps that its policy plans, in order, each for as long as the profile says. A policy plans as
//! soon as it can: when a request has come and when a step is done. Nothing takes time but steps.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use textgen_router::scheduler::Micros;

use crate::balance::Balance;
use crate::device::{Noise, Parts, Profile, Work};
use crate::policy::{Done, Policy};
use crate::trace::{Starts, Trace};

/// What became of one request.
#[derive(Debug, Clone, Default)]
pub struct Record {
    /// When it came.
    pub came: Micros,
    /// When each token of its answer was there.
    pub tokens: Vec<Micros>,
    /// Which replica it went to.
    pub replica: usize,
}

/// What became of a trace.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// In the order of the trace.
    pub records: Vec<Record>,
    /// What the policies have done.
    pub done: Vec<Done>,
    /// Steps run.
    pub steps: u64,
    /// Time that devices were busy, summed over them.
    pub busy: Micros,
    /// What steps would have spent it on without noise.
    pub parts: Parts,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    StepDone(usize),
    Arrival(usize),
}

#[derive(Debug)]
struct Replica<P> {
    policy: P,
    queued: VecDeque<Work>,
    /// How long the step takes that runs now.
    running: Option<Micros>,
    noise: Noise,
}

struct Simulation<'a, P> {
    trace: &'a Trace,
    profile: &'a Profile,
    replicas: Vec<Replica<P>>,
    balance: &'a mut dyn Balance,
    /// The next first; at one instant, in the order in which they were foreseen.
    events: BinaryHeap<Reverse<(Micros, u64, Event)>>,
    foreseen: u64,
    /// Those that come after each request.
    followers: Vec<Vec<(usize, Micros)>>,
    outcome: Outcome,
}

/// Runs a trace to its end on one replica for each policy.
pub fn run<P: Policy>(
    trace: &Trace,
    profile: &Profile,
    policies: Vec<P>,
    balance: &mut dyn Balance,
) -> (Outcome, Vec<P>) {
    let replicas = policies.into_iter().zip(0..).map(|(policy, place)| {
        let noise = Noise::new(trace.seed ^ place);
        Replica { policy, queued: VecDeque::new(), running: None, noise }
    });
    let mut simulation = Simulation {
        trace,
        profile,
        replicas: replicas.collect(),
        balance,
        events: BinaryHeap::new(),
        foreseen: 0,
        followers: vec![Vec::new(); trace.requests.len()],
        outcome: Outcome { records: vec![Record::default(); trace.requests.len()], ..Outcome::default() },
    };
    simulation.begin();
    simulation.go_on();
    let Simulation { mut outcome, replicas, .. } = simulation;
    outcome.done = replicas.iter().map(|replica| replica.policy.done()).collect();
    (outcome, replicas.into_iter().map(|replica| replica.policy).collect())
}

impl<P: Policy> Simulation<'_, P> {
    fn begin(&mut self) {
        for (place, request) in self.trace.requests.iter().enumerate() {
            match request.starts {
                Starts::At(at) => self.foresee(at, Event::Arrival(place)),
                Starts::After { request, pause } => self.followers[request].push((place, pause)),
            }
        }
    }

    fn foresee(&mut self, at: Micros, event: Event) {
        self.foreseen += 1;
        self.events.push(Reverse((at, self.foreseen, event)));
    }

    fn go_on(&mut self) {
        let mut tokens = Vec::new();
        while let Some(Reverse((now, _, event))) = self.events.pop() {
            let place = match event {
                Event::Arrival(request) => self.arrive(request, now),
                Event::StepDone(place) => {
                    let replica = &mut self.replicas[place];
                    if let Some(elapsed) = replica.running.take() {
                        replica.policy.complete(elapsed, &mut tokens);
                    }
                    for request in tokens.drain(..) {
                        self.receive(request, now);
                    }
                    place
                }
            };
            // Those that come at the same instant are planned for together.
            let more = self.events.peek().is_some_and(|Reverse((at, _, next))| {
                *at == now
                    && matches!((event, next), (Event::Arrival(_), Event::Arrival(_)))
                    && self.replicas.len() == 1
            });
            if !more {
                self.drive(place, now);
            }
        }
    }

    fn arrive(&mut self, request: usize, now: Micros) -> usize {
        let place = self.balance.pick(request, &self.trace.requests[request]);
        let record = &mut self.outcome.records[request];
        (record.came, record.replica) = (now, place);
        self.replicas[place].policy.submit(request, now);
        place
    }

    fn receive(&mut self, request: usize, now: Micros) {
        let record = &mut self.outcome.records[request];
        record.tokens.push(now);
        if record.tokens.len() == self.trace.requests[request].output.len() {
            self.balance.ended(request, record.replica);
            for (follower, pause) in std::mem::take(&mut self.followers[request]) {
                self.foresee(now + pause, Event::Arrival(follower));
            }
        }
    }

    /// Plans what can be planned and keeps the device busy.
    fn drive(&mut self, place: usize, now: Micros) {
        let replica = &mut self.replicas[place];
        while let Some(work) = replica.policy.plan(now) {
            replica.queued.push_back(work);
        }
        if replica.running.is_some() {
            return;
        }
        let Some(work) = replica.queued.pop_front() else { return };
        let time = replica.noise.applied(self.profile.step(&work));
        replica.running = Some(time);
        self.outcome.steps += 1;
        self.outcome.parts += self.profile.parts(&work);
        self.outcome.busy += time;
        self.foresee(now + time, Event::StepDone(place));
    }
}
