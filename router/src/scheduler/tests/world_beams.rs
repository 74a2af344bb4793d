//! Beam searches among the requests of the world.

use super::arrival::Arrival;
use super::model_shard::{key, seed};
use super::toy::{Toy, VOCABULARY, answers, assert_answers};
use super::world::{Request, World};
use super::*;

/// What a search asks for besides what any request does.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted {
    pub(super) width: u32,
    pub(super) returned: u32,
    pub(super) length_penalty: f32,
    pub(super) early_stopping: EarlyStopping,
    pub(super) stop_tokens: u32,
}

impl World {
    /// A beam search arrives. Returns whether it was taken.
    pub(super) fn search(&mut self, arrival: Arrival, wanted: Wanted) -> bool {
        self.last_id += 1;
        let id = self.last_id;
        let Arrival { prompt_len, new_tokens, tenant, priority, patience, .. } = arrival;
        let (whole, deadline) = (self.whole(arrival), patience.map(|patience| self.now + patience));
        self.first_come_first_served &= (priority, tenant) == (0, 0);
        let tokens = arrival.prompt(id).into_iter().map(|token| token % VOCABULARY).collect();
        let max_len = prompt_len + new_tokens;
        let (prompt_logprobs, unscored) = (id.is_multiple_of(5), false);
        let cache_key = key(id);
        let sequence = NewSequence {
            id,
            tokens,
            prompt_len,
            max_len,
            whole,
            prompt_logprobs,
            unscored,
            cache_key,
            tenant,
            priority,
            deadline,
        };
        let Wanted { width, returned, length_penalty, early_stopping, stop_tokens } = wanted;
        let stop_tokens: Arc<[Token]> = (0..stop_tokens).map(|token| token * 3).collect();
        let new = NewBeams { sequence, width, returned, length_penalty, early_stopping, stop_tokens };
        let taken = self.scheduler.enqueue_beams(new.clone());
        let config = self.scheduler.config();
        let fits =
            Self::fits(config, max_len, prompt_len, width) && Self::fits_step(config, whole) && whole < prompt_len;
        assert_eq!(taken.is_ok(), fits, "{taken:?}");
        if fits {
            let toy = Toy { stop_tokens: new.stop_tokens.clone(), stop_bias: 1.5 };
            let beams = Some((width, answers(&new, &toy, seed(id))));
            self.shard.reporting.insert(id, (new.candidates(), toy));
            let (planned, admitted, has_kin, expected, output) = (0, 0, false, vec![], vec![]);
            let request = Request {
                prompt_len,
                max_len,
                whole,
                expected,
                beams,
                output,
                planned,
                admitted,
                priority,
                deadline,
                has_kin,
                unscored,
            };
            self.requests.insert(id, request);
        }
        self.check();
        fits
    }

    pub(super) fn receive_answers(&mut self, finished: &FinishedBeams) {
        let (_, expected) = self.requests[&finished.sequence].beams.as_ref().expect("answers of no search");
        assert_answers(&finished.hypotheses, expected, &format!("{finished:?}"));
        self.forget(finished.sequence);
        self.ended += 1;
    }
}
