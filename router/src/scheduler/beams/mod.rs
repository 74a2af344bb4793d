//! Beam search: one request as `width` sequences that run as one.
//!
//! - Each live beam sits in a slot of its own. A step runs the last token of every beam and reports its most likely
//!   successors; the search (`search`) decides which continuations live on. So a group has one step in flight, and others run
//!   ahead beside it.
//! - The first continuation of a beam stays in its slot. Any other takes the slot of a beam that has died: it shares the full
//!   blocks of the beam that it continues, copies the one after them, and its slot is admitted anew.
//! - A group is seated, sent back, failed and finished as one. It waits as its first member, its leader. When it is seated
//!   again, the leader runs first and the others share the blocks of its prompt.
//! - While a step of a group is in flight, its next tokens count as running, one per beam.

mod integrity;
mod results;
mod search;
mod seating;

use std::ops;
use std::sync::Arc;

use super::sequence::{Index, Sequence};
use super::{NewSequence, Refusal, Scheduler, SequenceId, Token};
use search::{Rules, Search};

/// Place of a group.
pub(super) type GroupIndex = u32;

/// When a search is over, besides that nothing can go on. The names of Transformers' `early_stopping` are in parentheses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum EarlyStopping {
    /// As many have ended as there are beams (`True`).
    WhenFull,
    /// Then, when the best beam would not do better if it ended now (`False`).
    #[default]
    WhenUnlikely,
    /// Then, when no beam can do better at any length (`"never"`).
    Never,
}

/// A beam search to run.
#[derive(Debug, Clone, PartialEq)]
pub struct NewBeams {
    /// The request: its tokens are what the search starts from.
    pub sequence: NewSequence,
    /// Beams.
    pub width: u32,
    /// Answers that are wanted, at most `width`.
    pub returned: u32,
    /// Scores are divided by the number of generated tokens to this power: more than 0 favours long answers.
    pub length_penalty: f32,
    /// When the search is over.
    pub early_stopping: EarlyStopping,
    /// Tokens that end a beam, each once.
    pub stop_tokens: Arc<[Token]>,
}

impl NewBeams {
    /// Most likely tokens that the shard must report for each beam in each step (`top_n`).
    pub fn candidates(&self) -> usize {
        search::candidates(self.width as usize, self.stop_tokens.len())
    }
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishedBy {
    /// Its last token is a stop token.
    StopToken,
    /// It has reached the sequence's `max_len`.
    Length,
}

/// One answer of a beam search.
#[derive(Debug, Clone, PartialEq)]
pub struct Hypothesis {
    /// Generated tokens, with the stop token if it ended by one.
    pub tokens: Vec<Token>,
    /// Log-probability of each token.
    pub logprobs: Vec<f32>,
    /// Sum of the log-probabilities divided by the number of tokens to the power of the length penalty.
    pub score: f32,
    /// Why it ended.
    pub finished_by: FinishedBy,
}

/// A beam search that is over; its sequence is finished.
#[derive(Debug, Clone, PartialEq)]
pub struct FinishedBeams {
    /// Whose.
    pub sequence: SequenceId,
    /// As many answers as were wanted, the best first; fewer only where the shard knows fewer tokens than the search looks at.
    pub hypotheses: Vec<Hypothesis>,
}

/// The sequences of one beam search.
#[derive(Debug)]
pub(super) struct Group {
    /// All of them, as many as there are beams; the first is the leader.
    members: Vec<Index>,
    /// The member that each live beam of the search sits at.
    beams: Vec<Index>,
    search: Search,
    /// Tokens that the search started from.
    start: u32,
    /// What each live beam was told in this round.
    reports: Vec<Option<Vec<(Token, f32)>>>,
    /// Every live beam has run all but its last token.
    decoding: bool,
    /// Some live beam has sampled, or is in flight to, since the last selection.
    sampling: bool,
}

impl Group {
    fn leader(&self) -> Index {
        self.members[0]
    }

    fn width(&self) -> u32 {
        self.members.len() as u32
    }

    /// Known tokens of each live beam.
    fn known(&self) -> u32 {
        self.start + self.search.generated() as u32
    }

    /// Tokens that a seated group counts as running.
    pub(super) fn running_tokens(&self) -> u64 {
        u64::from(self.width()) * u64::from(self.known() + u32::from(self.sampling))
    }
}

/// All groups.
#[derive(Debug, Default)]
pub(super) struct Groups {
    entries: Vec<Option<Group>>,
    vacant: Vec<GroupIndex>,
}

impl Groups {
    fn insert(&mut self, group: Group) -> GroupIndex {
        if let Some(index) = self.vacant.pop() {
            self.entries[index as usize] = Some(group);
            return index;
        }
        self.entries.push(Some(group));
        (self.entries.len() - 1) as GroupIndex
    }

    fn remove(&mut self, index: GroupIndex) -> Option<Group> {
        self.vacant.push(index);
        self.entries[index as usize].take()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (GroupIndex, &Group)> {
        (0..).zip(&self.entries).filter_map(|(index, group)| Some((index, group.as_ref()?)))
    }
}

impl ops::Index<GroupIndex> for Groups {
    type Output = Group;
    #[allow(clippy::expect_used)] // A sequence names its group for as long as both are there.
    fn index(&self, index: GroupIndex) -> &Group {
        self.entries[index as usize].as_ref().expect("a group that is there")
    }
}

impl ops::IndexMut<GroupIndex> for Groups {
    #[allow(clippy::expect_used)] // As above.
    fn index_mut(&mut self, index: GroupIndex) -> &mut Group {
        self.entries[index as usize].as_mut().expect("a group that is there")
    }
}

/// What a sequence, or a group as one, takes to be seated.
#[derive(Debug, Clone, Copy)]
pub(super) struct Demand {
    pub(super) seats: u32,
    /// Blocks for the known tokens.
    pub(super) blocks: u64,
    /// The known tokens and one more for each beam.
    pub(super) tokens: u64,
}

impl Scheduler {
    /// Puts a beam search at the end of the queue, or says why it can never run. The answers come with the step that ends
    /// it ([`super::Completed::beams`]); [`Scheduler::finish`] cancels it.
    pub fn enqueue_beams(&mut self, new: NewBeams) -> Result<(), Refusal> {
        self.admissible_beams(&new)?;
        let NewBeams { sequence, width, returned, length_penalty, early_stopping, stop_tokens } = new;
        let start = sequence.tokens.len() as u32;
        let rules = Rules {
            width: width as usize,
            returned: returned as usize,
            length_penalty,
            early_stopping,
            stop_tokens,
            max_new: (sequence.max_len - start) as usize,
        };
        let group = self.groups.insert(Group {
            members: Vec::new(),
            beams: Vec::new(),
            search: Search::new(rules),
            start,
            reports: vec![None],
            decoding: false,
            sampling: false,
        });
        let follower = NewSequence { tokens: Vec::new(), prompt_logprobs: false, ..sequence.clone() };
        let leader = self.arrive(sequence, u64::from(width));
        let account = self.store[leader].account;
        self.store[leader].group = Some(group);
        let mut members = vec![leader];
        for _ in 1..width {
            self.last_arrival += 1;
            let mut member = Sequence::new(follower.clone(), self.last_arrival, account, self.now);
            (member.group, member.follows) = (Some(group), true);
            members.push(self.store.insert_follower(member));
        }
        (self.groups[group].members, self.groups[group].beams) = (members, vec![leader]);
        self.wait(leader);
        Ok(())
    }

    /// Whether a beam search could run, at least alone, before it is enqueued.
    pub fn admissible_beams(&self, new: &NewBeams) -> Result<(), Refusal> {
        let (width, returned) = (new.width, new.returned);
        self.well_formed(&new.sequence)?;
        if !(1..=width).contains(&returned) {
            return Err(Refusal::NotSoManyBeams { width, returned });
        }
        if !new.length_penalty.is_finite() {
            return Err(Refusal::LengthPenalty);
        }
        self.beams_fit_alone(width, new.sequence.tokens.len() as u32, new.sequence.max_len)
    }

    fn beams_fit_alone(&self, width: u32, start: u32, max_len: u32) -> Result<(), Refusal> {
        if width > self.config.max_slots {
            return Err(Refusal::TooManyBeams { width, slots: self.config.max_slots });
        }
        let needs_blocks = self.blocks_of_beams(width, start, max_len - 1);
        if needs_blocks > u64::from(self.config.num_blocks) {
            let needs_blocks = needs_blocks.try_into().unwrap_or(u32::MAX);
            return Err(Refusal::TooLong { needs_blocks, has_blocks: self.config.num_blocks });
        }
        let max_len = width.saturating_mul(max_len);
        match self.config.max_running_tokens.filter(|&limit| max_len > limit) {
            Some(limit) => Err(Refusal::OverTokenLimit { max_len, limit }),
            None => Ok(()),
        }
    }

    /// Blocks, or pages, of beams that share what they started from and nothing else.
    fn blocks_of_beams(&self, width: u32, start: u32, positions: u32) -> u64 {
        let shared = start / self.config.block_size;
        let blocks = u64::from(shared) + u64::from(width) * u64::from(self.config.blocks_for(positions) - shared);
        self.config.pages_of_all(blocks, u64::from(width))
    }

    /// Whether what waits as this sequence fits, when nothing else runs.
    pub(super) fn still_fits(&self, index: Index) -> Result<(), Refusal> {
        let sequence = &self.store[index];
        self.fits_step(sequence.whole)?;
        match sequence.group.map(|group| &self.groups[group]) {
            Some(group) => self.beams_fit_alone(group.width(), group.start, sequence.max_len),
            None => self.fits_alone(sequence.max_len),
        }
    }

    /// What it takes to seat what waits as this sequence.
    pub(super) fn demand(&self, index: Index) -> Demand {
        let sequence = &self.store[index];
        let known = sequence.known();
        let Some(group) = sequence.group.map(|group| &self.groups[group]) else {
            let blocks = self.config.pages_for(u64::from(self.config.blocks_for(known)));
            return Demand { seats: 1, blocks, tokens: u64::from(known) + 1 };
        };
        let blocks = self.blocks_of_beams(group.width(), group.start, known);
        Demand { seats: group.width(), blocks, tokens: u64::from(group.width()) * (u64::from(known) + 1) }
    }

    /// Tokens that what waits or runs as this sequence may reach.
    pub(super) fn max_tokens(&self, index: Index) -> u64 {
        let sequence = &self.store[index];
        u64::from(sequence.max_len) * sequence.group.map_or(1, |group| u64::from(self.groups[group].width()))
    }

    /// Tokens that the beams of a group have in common for certain.
    pub(super) fn start_of(&self, group: GroupIndex) -> u32 {
        self.groups[group].start
    }

    /// Sequences of a group.
    pub(super) fn beams_of(&self, group: GroupIndex) -> usize {
        self.groups[group].members.len()
    }

    /// Whether it is a beam that runs one token at a time.
    pub(super) fn is_decoding(&self, index: Index) -> bool {
        self.store[index].group.is_some_and(|group| self.groups[group].decoding)
    }

    /// Whether it, or one of its group, is in the step that is being planned.
    pub(super) fn is_planned(&self, index: Index) -> bool {
        let planned = |&index: &Index| self.store[index].seat.is_some_and(|seat| seat.step > self.last_step);
        match self.store[index].group {
            Some(group) => self.groups[group].members.iter().any(planned),
            None => planned(&index),
        }
    }

    /// Tokens that run more when a sequence samples: one, and for the first of the beams one for each.
    pub(super) fn tokens_to_sample(&self, index: Index) -> u64 {
        match self.store[index].group.map(|group| &self.groups[group]) {
            Some(group) if group.sampling => 0,
            Some(group) => u64::from(group.width()),
            None => 1,
        }
    }

    pub(super) fn note_sampling(&mut self, index: Index) {
        if let Some(group) = self.store[index].group {
            self.groups[group].sampling = true;
        }
    }

    /// The sequence that a sequence waits as: itself, or the leader of its group.
    pub(super) fn representative(&self, index: Index) -> Index {
        self.store[index].group.map_or(index, |group| self.groups[group].leader())
    }
}
