//! The step protocol, version 6: frames between router and shard. `docs/protocol.md` is the contract; the Python twin is
//! `python/textgen/shard/protocol.py`, and `tests/protocol/vectors.json` holds bytes that both must read and write.

use std::fmt;

use serde::de::{Deserializer, Error as _, IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};

use super::columns::Column;
use crate::scheduler::{MeasuredStep, Windows};

/// Version that both sides must speak.
pub const VERSION: u16 = 6;
/// Bytes before a payload: its length and the frame's kind.
pub const HEADER: usize = 5;
/// Largest payload either side accepts.
pub const MAX_PAYLOAD: usize = 64 << 20;

/// Sample after the segment's last token.
pub const FLAG_SAMPLE: u32 = 1;
/// The segment's first token is the one the shard sampled last for the slot.
pub const FLAG_LAST: u32 = 2;
/// Report log-probabilities of the segment's tokens.
pub const FLAG_PROMPT_LOGPROBS: u32 = 4;
/// Groups of layers that a model may have.
pub const MAX_GROUPS: usize = 64;
/// Columns of [`Step::segments`]: slot, start, length, draft, flags, new blocks.
pub const SEGMENT_COLUMNS: usize = 6;

/// What a frame could not be read or written for.
#[derive(Debug, thiserror::Error)]
pub enum ProtocolError {
    /// A payload over [`MAX_PAYLOAD`].
    #[error("a frame of {0} bytes is over the limit of {MAX_PAYLOAD}")]
    TooLarge(usize),
    /// A kind byte that means nothing.
    #[error("frame kind {0} is unknown")]
    UnknownKind(u8),
    /// The payload is not the msgpack array the kind wants.
    #[error("a frame of kind {kind} cannot be decoded: {source}")]
    Decode {
        /// Kind byte.
        kind: u8,
        /// What msgpack said.
        source: rmp_serde::decode::Error,
    },
    /// A value could not be written.
    #[error("a frame cannot be encoded: {0}")]
    Encode(#[from] rmp_serde::encode::Error),
    /// A hello of another version.
    #[error(
        "the shard speaks version {0} of the step protocol and the router version {VERSION}: they are of different releases; \
         install the package again (from its sources: `make build`), then start it anew"
    )]
    Version(u16),
    /// Well-formed, but not allowed.
    #[error("{0}")]
    Invalid(String),
}

/// The first frame of a shard: what it is and what it has.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    /// [`VERSION`].
    pub version: u16,
    /// Rank of the speaker.
    pub rank: u32,
    /// Ranks of the model.
    pub world_size: u32,
    /// Facts of the model.
    pub model: ModelFacts,
    /// Facts of the KV pool.
    pub kv: KvFacts,
    /// What one step may hold.
    pub limits: StepLimits,
    /// Parts of the shared memory.
    pub regions: Vec<Region>,
    /// Seconds that each phase of the start took.
    pub phases: Vec<(String, f64)>,
    /// What steps took that were run to be measured; none where nobody asked.
    pub measured: Vec<MeasuredStep>,
}

/// What the router must know of the model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelFacts {
    /// Size of the vocabulary.
    pub vocab_size: u32,
    /// Positions that the model can tell apart.
    pub max_positions: u32,
    /// Data type of the weights.
    pub dtype: String,
}

/// The KV pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvFacts {
    /// Pages in the pool.
    pub num_pages: u32,
    /// Positions in a page.
    pub block_size: u32,
    /// Bytes of one page over the layers of a group.
    pub bytes_per_page: u64,
    /// The groups of layers, each of which has a page of a block: its sliding window in positions, if it has one. Those
    /// without come first.
    pub groups: Vec<Option<u32>>,
}

impl KvFacts {
    /// How the scheduler is to share out blocks; `None` for one group without a window.
    ///
    /// # Errors
    /// When the groups are none, too many, or out of order.
    pub fn windows(&self) -> Result<Option<Windows>, ProtocolError> {
        if self.groups.is_empty() || self.groups.len() > MAX_GROUPS || !self.groups.is_sorted_by_key(Option::is_some) {
            let groups = &self.groups;
            return Err(ProtocolError::Invalid(format!(
                "{groups:?} are not groups of layers, those without window first"
            )));
        }
        let full = self.groups.iter().filter(|group| group.is_none()).count() as u32;
        let windowed = self.groups.len() as u32 - full;
        let span = self.groups.iter().flatten().max();
        match span {
            None if full > 1 => {
                Err(ProtocolError::Invalid(format!("{full} groups of layers without a window are one")))
            }
            span => Ok(span.map(|&span| Windows { span, full, windowed })),
        }
    }
}

/// Bounds of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepLimits {
    /// Sequences seated at once.
    pub max_slots: u32,
    /// Tokens of one step.
    pub max_batch_tokens: u32,
    /// Alternatives reported for a token.
    pub max_top_n: u32,
    /// Whether masks may come in part: it sends an [`Ask`] where it needs the rest.
    pub asks_for_masks: bool,
}

/// A named part of the shared memory, in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Region {
    /// What it holds.
    pub name: String,
    /// Where it begins.
    pub offset: u64,
    /// How long it is.
    pub length: u64,
}

/// Seats a sequence in a slot; whatever sat there is gone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)] // The fields of `SamplingParams`, under the same names.
pub struct Admit {
    pub slot: u32,
    pub temperature: f32,
    pub top_k: u32,
    pub top_p: f32,
    pub min_p: f32,
    pub typical_p: f32,
    pub repetition_penalty: f32,
    pub frequency_penalty: f32,
    pub presence_penalty: f32,
    pub penalty_window: u32,
    pub seed: u64,
    /// Tokens before this position are prompt, the others output.
    pub prompt_len: u32,
    pub top_n: u32,
    /// Alternatives to report with each token whose log-probability is reported.
    pub prompt_top_n: u32,
    pub adapter: Option<u32>,
    /// All tokens known so far, when a penalty or a rule needs them.
    pub history: Column<u32>,
    pub rules: Option<Rules>,
    pub source: Option<Source>,
}

/// What the encoder of an encoder-decoder model reads: the first tokens of the sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// How many.
    pub tokens: u32,
    /// Position of the decoder's first token: behind the last block of the input.
    pub positions: u32,
}

/// What a sequence may or may not draw whatever the model says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rules {
    /// Tokens with a bias.
    pub bias_ids: Column<u32>,
    /// What is added to their logits.
    pub biases: Column<f32>,
    /// Bits by token id of the only tokens that may be drawn; empty is all.
    pub allowed: Column<u32>,
    /// For each sequence that may not be completed its length and its tokens.
    pub banned: Column<u32>,
    /// Before so many tokens are generated, none of `endings` is drawn.
    pub min_tokens: u32,
    /// Tokens that end the sequence.
    pub endings: Column<u32>,
    /// Share of the vocabulary and its bias.
    pub watermark: Option<(f32, f32)>,
    /// A bound for the reasoning.
    pub thinking: Option<Thinking>,
}

/// Reasoning that is ended when it is too long; lists of sequences as in `Rules::banned`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Thinking {
    /// Tokens, those that open the reasoning not counted.
    pub budget: u32,
    /// The sequences that may begin it.
    pub openings: Column<u32>,
    /// What is forced to end it.
    pub end: Column<u32>,
    /// Other sequences that end it.
    pub closings: Column<u32>,
}

/// One step: a list of segments.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Step {
    /// Number of the step, rising by one.
    pub step: u64,
    /// [`SEGMENT_COLUMNS`] columns of equal length, one after the other.
    pub segments: Column<u32>,
    /// Explicit token ids of all segments.
    pub tokens: Column<u32>,
    /// Pages of the new blocks of all segments: for each block one for each group, or [`NO_PAGE`](crate::scheduler::NO_PAGE).
    pub blocks: Column<u32>,
    /// Pairs of pages: copy from, copy to.
    pub copies: Column<u32>,
    /// Slots whose sequence is gone.
    pub freed: Column<u32>,
    /// Pairs: index of a segment that samples, slot of its grammar mask.
    pub masks: Column<u32>,
}

/// Results of a step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Done {
    /// The step.
    pub step: u64,
    /// Slots of the sampled segments, in segment order.
    pub slots: Column<u32>,
    /// Tokens sampled for each.
    pub counts: Column<u32>,
    /// All sampled ids.
    pub tokens: Column<u32>,
    /// Their log-probabilities.
    pub logprobs: Column<f32>,
    /// Bytes of the shared memory with alternatives and prompt log-probabilities.
    pub wide: Option<(u64, u64)>,
    /// How long the parts took.
    pub times: Times,
}

/// Parts of a step, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Times {
    /// From when the shard read the frame to the forward pass.
    pub queue_ns: u64,
    /// The forward pass.
    pub forward_ns: u64,
    /// Sampling.
    pub sample_ns: u64,
}

/// Something in a step went wrong.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Failed {
    /// The step, when one was running.
    pub step: Option<u64>,
    /// Slots at fault; empty means all of the step.
    pub slots: Column<u32>,
    /// `protocol`, `limit`, `numerics` or `internal`.
    pub kind: String,
    /// One sentence.
    pub message: String,
}

/// Masks of a step, of which there are parts, are needed whole.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ask {
    /// The step.
    pub step: u64,
    /// Their slots.
    pub masks: Column<u32>,
}

/// Any frame.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)] // Named after what they carry.
pub enum Frame {
    Hello(Hello),
    Admit(Admit),
    Step(Step),
    Done(Done),
    Failed(Failed),
    Stop,
    Ask(Ask),
}

impl Frame {
    /// The kind byte.
    #[must_use]
    pub const fn kind(&self) -> u8 {
        match self {
            Self::Hello(_) => 1,
            Self::Admit(_) => 2,
            Self::Step(_) => 3,
            Self::Done(_) => 4,
            Self::Failed(_) => 5,
            Self::Stop => 6,
            Self::Ask(_) => 7,
        }
    }

    /// Appends the whole frame, header included.
    ///
    /// # Errors
    /// When the payload is over the limit.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), ProtocolError> {
        match self {
            Self::Hello(frame) => encode(self.kind(), frame, out),
            Self::Admit(frame) => encode(self.kind(), frame, out),
            Self::Step(frame) => encode(self.kind(), frame, out),
            Self::Done(frame) => encode(self.kind(), frame, out),
            Self::Failed(frame) => encode(self.kind(), frame, out),
            Self::Stop => encode(self.kind(), &[0_u8; 0], out),
            Self::Ask(frame) => encode(self.kind(), frame, out),
        }
    }

    /// Reads a payload.
    ///
    /// # Errors
    /// `UnknownKind`, `Decode` or `Version`.
    pub fn decode(kind: u8, payload: &[u8]) -> Result<Self, ProtocolError> {
        match kind {
            1 => hello(kind, payload).map(Self::Hello),
            2 => decode(kind, payload).map(Self::Admit),
            3 => decode(kind, payload).map(Self::Step),
            4 => decode(kind, payload).map(Self::Done),
            5 => decode(kind, payload).map(Self::Failed),
            6 => Ok(Self::Stop),
            7 => decode(kind, payload).map(Self::Ask),
            _ => Err(ProtocolError::UnknownKind(kind)),
        }
    }
}

fn encode<T: Serialize>(kind: u8, frame: &T, out: &mut Vec<u8>) -> Result<(), ProtocolError> {
    let begin = out.len();
    out.extend_from_slice(&[0, 0, 0, 0, kind]);
    rmp_serde::encode::write(out, frame)?;
    let length = out.len() - begin - HEADER;
    let header = u32::try_from(length).ok().filter(|_| length <= MAX_PAYLOAD);
    let header = header.ok_or(ProtocolError::TooLarge(length))?;
    out[begin..begin + 4].copy_from_slice(&header.to_le_bytes());
    Ok(())
}

/// A hello. One that cannot be read says at least which version it is of: behind its number each has what it likes.
fn hello(kind: u8, payload: &[u8]) -> Result<Hello, ProtocolError> {
    decode(kind, payload).map_err(|error| match decode(kind, payload) {
        Ok(Spoken(version)) if version != VERSION => ProtocolError::Version(version),
        _ => error,
    })
}

/// The version that a hello begins with.
struct Spoken(u16);

impl<'de> Deserialize<'de> for Spoken {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct First;

        impl<'de> Visitor<'de> for First {
            type Value = Spoken;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an array that begins with a version")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut fields: A) -> Result<Spoken, A::Error> {
                let version = fields.next_element()?.ok_or_else(|| A::Error::invalid_length(0, &self))?;
                while fields.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Spoken(version))
            }
        }

        deserializer.deserialize_seq(First)
    }
}

fn decode<'a, T: Deserialize<'a>>(kind: u8, payload: &'a [u8]) -> Result<T, ProtocolError> {
    rmp_serde::from_slice(payload).map_err(|source| ProtocolError::Decode { kind, source })
}
