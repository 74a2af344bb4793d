//! What must hold of every plan.

use std::collections::HashSet;

use super::world::World;
use super::*;

impl World {
    /// First come, first served: whoever is admitted came before all that wait.
    pub(super) fn check_admits(&mut self, plan: &Plan) {
        let config = *self.scheduler.config();
        let ordered = self.first_come_first_served;
        let single = |admission: &&Admission| self.requests[&admission.sequence].beams.is_none();
        let admits: Vec<Admission> = plan.admits.iter().filter(single).copied().collect();
        assert!(!ordered || admits.is_sorted_by(|one, other| one.sequence < other.sequence));
        let first_waiting = self.requests.keys().copied().find(|&id| ordered && self.scheduler.is_waiting(id));
        for Admission { sequence: id, slot, cached_tokens } in admits {
            assert!(first_waiting.is_none_or(|waiting| id < waiting), "{id} was admitted before {first_waiting:?}");
            assert_eq!(self.scheduler.slot(id), Some(slot));
            assert_eq!(self.scheduler.occupant(slot), Some(id));
            let request = self.requests.get_mut(&id).unwrap();
            request.planned = cached_tokens;
            request.admitted = request.prompt_len + request.output.len() as u32;
            assert!(cached_tokens == 0 || cached_tokens >= request.whole, "a part of what is run at once is of no use");
            assert!(cached_tokens < request.admitted, "nothing is left to sample from");
            let scored = id.is_multiple_of(5) && request.output.is_empty();
            assert!(cached_tokens == 0 || ((config.prefix_caching || request.has_kin) && !scored));
            let first = plan.segments.iter().find(|segment| segment.slot == slot).unwrap();
            assert_eq!(first.start, cached_tokens);
        }
    }

    pub(super) fn check_plan(&mut self, plan: &Plan) {
        let config = *self.scheduler.config();
        assert!(plan.token_count() <= config.max_step_tokens as usize, "over the budget");
        let slots: HashSet<Slot> = plan.segments.iter().map(|segment| segment.slot).collect();
        assert_eq!(slots.len(), plan.segments.len(), "two segments in one slot");
        assert!(slots.iter().all(|&slot| slot < config.max_slots));
        let rank = |segment: &Segment| (!segment.last, segment.last.then(|| self.rank(segment.sequence)));
        let single = |segment: &&Segment| self.requests[&segment.sequence].beams.is_none();
        assert!(plan.segments.iter().filter(single).is_sorted_by_key(rank), "{:?}", shape(plan));
        let (mut tokens, mut blocks) = (0, 0);
        for segment in &plan.segments {
            assert_eq!((segment.tokens.start, segment.blocks.start), (tokens, blocks));
            (tokens, blocks) = (segment.tokens.end, segment.blocks.end);
            let request = self.requests.get_mut(&segment.sequence).expect("a segment of a sequence that ended");
            let end = segment.start + segment.length;
            assert!(segment.length > 0 && end < request.max_len, "runs beyond its length");
            let at_once = segment.start == 0 && end > request.whole && !segment.last;
            assert!(segment.start >= request.whole.max(1) || at_once, "what is run at once was cut");
            if request.beams.is_some() {
                assert!(!segment.last, "only the search knows what comes next");
                continue;
            }
            assert_eq!(segment.start, request.planned);
            assert_eq!(segment.last, segment.start >= request.admitted);
            assert_eq!(segment.sample, end >= request.admitted);
            let scored = segment.sequence.is_multiple_of(5) && !segment.last && request.output.is_empty();
            let forced = segment.last && segment.length > 1;
            assert_eq!(segment.prompt_logprobs, scored || (forced && !request.unscored));
            request.planned = end;
        }
        assert_eq!((tokens, blocks), (plan.tokens.len(), plan.blocks.len()));
        self.check_nobody_left_out(plan);
    }

    /// Whether prompts have all that the latest step has for them beside its streams.
    fn share_is_spent(&self) -> bool {
        let load = self.scheduler.flights.back().expect("a step was planned").load;
        load.streams > 0 && load.prompt_tokens() >= self.scheduler.config().beside(load.streams)
    }

    /// Whoever runs and has something to run is in the step; a prompt may be left out for want of budget or room.
    fn check_nobody_left_out(&self, plan: &Plan) {
        let planned: HashSet<SequenceId> = plan.segments.iter().map(|segment| segment.sequence).collect();
        let config = self.scheduler.config();
        let stats = self.scheduler.stats();
        let spent = config.target_itl.is_some()
            || self.share_is_spent()
            || plan.token_count() == config.max_step_tokens as usize
            || stats.blocks_total - stats.blocks_used < config.pages_per_block()
            || config.max_running_tokens.is_some_and(|cap| stats.running_tokens >= u64::from(cap));
        for id in self.running().into_iter().filter(|id| !planned.contains(id)) {
            let request = &self.requests[&id];
            if request.beams.is_some() {
                continue;
            }
            let in_prompt = request.planned < request.admitted;
            let all_planned = request.planned + 1 == request.max_len || self.is_paused(id);
            // What is run at once waits for a step with room for all of it.
            assert!(
                if in_prompt { spent || request.planned < request.whole } else { all_planned },
                "sequence {id} was left out"
            );
        }
    }
}
