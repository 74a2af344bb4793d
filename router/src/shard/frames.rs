//! From what the scheduler decided to what the shard is sent.

use super::columns::Column;
use super::live::LiveRequest;
use super::protocol::{
    Admit, FLAG_LAST, FLAG_PROMPT_LOGPROBS, FLAG_SAMPLE, Frame, Rules, SEGMENT_COLUMNS, Step, Thinking,
};
use crate::request::TokenRules;
use crate::scheduler::{Plan, Segment};

/// Seats a request.
pub(super) fn admit(slot: u32, request: &LiveRequest, prompt_len: u32, history: &[u32]) -> Frame {
    // The shard counts from the decoder's first token.
    let before = request.source.map_or(0, |source| source.positions);
    let (prompt_len, history) = (prompt_len.saturating_sub(before), history.get(before as usize..).unwrap_or_default());
    let sampling = &request.sampling;
    Frame::Admit(Admit {
        slot,
        temperature: sampling.temperature,
        top_k: sampling.top_k,
        top_p: sampling.top_p,
        min_p: sampling.min_p,
        typical_p: sampling.typical_p,
        repetition_penalty: sampling.repetition_penalty,
        frequency_penalty: sampling.frequency_penalty,
        presence_penalty: sampling.presence_penalty,
        penalty_window: sampling.penalty_window,
        seed: sampling.seed,
        prompt_len,
        top_n: request.top_n,
        prompt_top_n: request.prompt_top_n,
        adapter: None,
        history: Column(history.to_vec()),
        rules: request.rules.as_deref().map(|rules| self::rules(rules, request.stop_tokens())),
        source: request.source,
    })
}

fn rules(rules: &TokenRules, stop_tokens: &[u32]) -> Rules {
    let (bias_ids, biases) = rules.bias.iter().copied().unzip();
    let endings = if rules.min_tokens > 0 { stop_tokens.to_vec() } else { Vec::new() };
    Rules {
        bias_ids: Column(bias_ids),
        biases: Column(biases),
        allowed: Column(rules.allowed.clone()),
        banned: sequences(&rules.banned),
        min_tokens: rules.min_tokens,
        endings: Column(endings),
        watermark: rules.watermark.map(|mark| (mark.gamma, mark.delta)),
        thinking: rules.thinking.as_ref().map(|thinking| Thinking {
            budget: thinking.budget,
            openings: sequences(&thinking.openings),
            end: Column(thinking.end.clone()),
            closings: sequences(&thinking.closings),
        }),
    }
}

/// Of each its length and its tokens.
fn sequences(of: &[Vec<u32>]) -> Column<u32> {
    let mut column = Vec::new();
    for tokens in of {
        column.extend(u32::try_from(tokens.len()));
        column.extend(tokens);
    }
    Column(column)
}

/// Runs a plan, under masks for some of its segments.
pub(super) fn step(plan: &Plan, masks: Vec<u32>) -> Frame {
    let columns: [fn(&Segment) -> u32; SEGMENT_COLUMNS] = [
        |segment| segment.slot,
        |segment| segment.start,
        |segment| segment.length,
        |_| 0,
        flags,
        #[allow(clippy::cast_possible_truncation)] // At most as many as there are pages, which are u32.
        |segment| segment.blocks.len() as u32,
    ];
    let mut segments = Vec::with_capacity(SEGMENT_COLUMNS * plan.segments.len());
    for column in columns {
        segments.extend(plan.segments.iter().map(column));
    }
    Frame::Step(Step {
        step: plan.step,
        segments: Column(segments),
        tokens: Column(plan.tokens.clone()),
        blocks: Column(plan.blocks.clone()),
        copies: Column(plan.copies.iter().flat_map(|&(from, to)| [from, to]).collect()),
        freed: Column(plan.freed.clone()),
        masks: Column(masks),
    })
}

fn flags(segment: &Segment) -> u32 {
    let flag = |on: bool, bit: u32| if on { bit } else { 0 };
    flag(segment.sample, FLAG_SAMPLE)
        | flag(segment.last, FLAG_LAST)
        | flag(segment.prompt_logprobs, FLAG_PROMPT_LOGPROBS)
}
