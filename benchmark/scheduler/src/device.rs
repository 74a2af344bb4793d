//! How long a step takes on a device, from published peak figures: a roofline, stated in the open.
//!
//! With *T* tokens in the step, *S* of them sampled after, *P* pairs of a prompt's token and a token that it attends to, and *C*
//! positions of KV read, a step takes the sum of
//!
//! - `max(W / B, 2 W' T / F)`: the layers' matrices, read once (*W* bytes) or computed with (*W'* parameters);
//! - `max(H / B, 2 H' S / F)`: the output head, likewise;
//! - `4 P d L / A`: attention of prompts, with *d* = heads x head size and *L* layers: two products, two operations each;
//! - `C k / B`: the KV cache that streams and prompts read, with *k* bytes per position;
//! - a fixed part per step (gaps between kernels, sampling) and one per device beyond the first (all-reduce).
//!
//! *F*, *A* and *B* are the device's peaks times the share of them that good kernels reach.

use std::ops::AddAssign;

use serde::Serialize;
use textgen_router::scheduler::Micros;

/// What a step computes, as far as its time depends on it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Work {
    /// Tokens in the step.
    pub tokens: u64,
    /// Tokens of prompts among them.
    pub prompt_tokens: u64,
    /// Tokens sampled.
    pub sampled: u64,
    /// Pairs of a prompt's token in the step and a token up to it.
    pub pairs: u64,
    /// Positions of KV read.
    pub context: u64,
    /// Those of them that prompts read.
    pub prompt_context: u64,
    /// Sequences in the step.
    pub sequences: u64,
}

impl Work {
    /// A stream's next token, at position `start`.
    pub fn add_stream(&mut self, start: u32) {
        self.tokens += 1;
        self.sampled += 1;
        self.sequences += 1;
        self.context += u64::from(start) + 1;
    }

    /// A run of a prompt's tokens.
    pub fn add_prompt(&mut self, start: u32, length: u32, samples: bool) {
        let (start, length) = (u64::from(start), u64::from(length));
        self.tokens += length;
        self.prompt_tokens += length;
        self.sampled += u64::from(samples);
        self.sequences += 1;
        self.pairs += length * start + length * (length + 1) / 2;
        self.context += start + length;
        self.prompt_context += start + length;
    }
}

/// The shape of a dense decoder.
#[derive(Debug, Clone, Copy)]
pub struct Model {
    /// For tables.
    pub name: &'static str,
    /// Decoder layers.
    pub layers: u64,
    /// Width of the residual stream.
    pub hidden: u64,
    /// Width of the MLP.
    pub intermediate: u64,
    /// Query heads.
    pub heads: u64,
    /// Key and value heads.
    pub kv_heads: u64,
    /// Size of a head.
    pub head_dim: u64,
    /// Tokens in the vocabulary.
    pub vocab: u64,
    /// Bytes of a number, in weights and cache.
    pub bytes: u64,
}

/// Llama 3.1 8B in bfloat16, by its published configuration.
pub const LLAMA_8B: Model = Model {
    name: "Llama 3.1 8B, bfloat16",
    layers: 32,
    hidden: 4_096,
    intermediate: 14_336,
    heads: 32,
    kv_heads: 8,
    head_dim: 128,
    vocab: 128_256,
    bytes: 2,
};

impl Model {
    /// Parameters of the layers' matrices.
    #[must_use]
    pub fn layer_parameters(&self) -> u64 {
        let attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads);
        self.layers * (attention + 3 * self.hidden * self.intermediate)
    }

    /// Parameters of the output head.
    #[must_use]
    pub fn head_parameters(&self) -> u64 {
        self.hidden * self.vocab
    }

    /// Bytes of keys and values per position.
    #[must_use]
    pub fn kv_bytes(&self) -> u64 {
        2 * self.layers * self.kv_heads * self.head_dim * self.bytes
    }

    /// Bytes of all weights, the input embedding included.
    #[must_use]
    pub fn weight_bytes(&self) -> u64 {
        self.bytes * (self.layer_parameters() + 2 * self.head_parameters())
    }
}

/// A device by its data sheet, and what of it kernels reach.
#[derive(Debug, Clone, Copy)]
pub struct Device {
    /// For tables.
    pub name: &'static str,
    /// Devices that hold one model together (tensor parallel).
    pub count: u64,
    /// Dense operations per second, in the model's number format.
    pub flops: f64,
    /// Bytes per second of its memory.
    pub bandwidth: f64,
    /// Bytes of its memory.
    pub memory: f64,
    /// Share of `flops` that matrix products reach.
    pub matmul_share: f64,
    /// Share of `flops` that attention reaches.
    pub attention_share: f64,
    /// Share of `bandwidth` that is reached.
    pub bandwidth_share: f64,
    /// Share of the memory that may be used, and bytes of it for activations.
    pub memory_share: f64,
    /// See `memory_share`.
    pub activations: f64,
    /// Microseconds of a step that are always there.
    pub fixed: f64,
    /// Microseconds of one all-reduce, apart from the bytes; there are two per layer where there are several devices.
    pub reduce: f64,
    /// Bytes per second of one device's links to the others.
    pub links: f64,
}

/// NVIDIA H100 SXM: 989 TFLOP/s dense bfloat16, 3.35 TB/s, 80 GB, 450 GB/s of links each way, by its data sheet. Matrix products
/// reach about 600 TFLOP/s, attention of prompts 400, and copies 80 % of the bandwidth. A step has about 7 kernels a layer with
/// 1.3 us between them even in a graph, and 0.3 ms for sampling and setting up.
pub const H100: Device = Device {
    name: "H100 SXM 80 GB",
    count: 1,
    flops: 989e12,
    bandwidth: 3.35e12,
    memory: 80e9,
    matmul_share: 0.607,
    attention_share: 0.404,
    bandwidth_share: 0.8,
    memory_share: 0.9,
    activations: 2e9,
    fixed: 32.0 * 7.0 * 1.3 + 300.0,
    reduce: 10.0,
    links: 450e9,
};

/// Eight of them.
pub const H100_X8: Device = Device { name: "8 x H100 SXM 80 GB", count: 8, ..H100 };

/// What the time of steps is spent on, in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Parts {
    /// The same for each step; all-reduces included.
    pub fixed: f64,
    /// Matrix products.
    pub products: f64,
    /// The layers' matrices, as far as they take longer to read than to compute with: steps with few tokens.
    pub layers_read: f64,
    /// The output head, likewise: steps with few tokens sampled.
    pub head_read: f64,
    /// Attention of prompts.
    pub attention: f64,
    /// KV that streams read.
    pub streams_read: f64,
    /// KV that chunks of prompts read: each reads all that is before it.
    pub prompts_read: f64,
}

impl Parts {
    /// All of it.
    #[must_use]
    pub fn total(&self) -> f64 {
        let Self { fixed, products, layers_read, head_read, attention, streams_read, prompts_read } = self;
        fixed + products + layers_read + head_read + attention + streams_read + prompts_read
    }
}

impl AddAssign for Parts {
    fn add_assign(&mut self, other: Self) {
        self.fixed += other.fixed;
        self.products += other.products;
        self.layers_read += other.layers_read;
        self.head_read += other.head_read;
        self.attention += other.attention;
        self.streams_read += other.streams_read;
        self.prompts_read += other.prompts_read;
    }
}

/// A model on a device.
#[derive(Debug, Clone, Copy)]
pub struct Profile {
    /// What runs.
    pub model: Model,
    /// Where.
    pub device: Device,
}

/// The profile that most traces run on.
pub const LLAMA_8B_H100: Profile = Profile { model: LLAMA_8B, device: H100 };

impl Profile {
    /// Blocks of `block_size` positions that the memory holds besides the weights.
    #[must_use]
    pub fn blocks(&self, block_size: u32) -> u32 {
        let Self { model, device } = self;
        let count = device.count as f64;
        let free = count * (device.memory * device.memory_share - device.activations) - model.weight_bytes() as f64;
        (free / (model.kv_bytes() * u64::from(block_size)) as f64).max(0.0) as u32
    }

    /// Microseconds of a step.
    #[must_use]
    pub fn step(&self, work: &Work) -> f64 {
        let Self { model, device } = self;
        let count = device.count as f64;
        let bandwidth = device.bandwidth * device.bandwidth_share * count;
        let flops = device.flops * device.matmul_share * count;
        let product = |parameters: u64, rows: u64| {
            let read = (parameters * model.bytes) as f64 / bandwidth;
            let compute = 2.0 * parameters as f64 * rows as f64 / flops;
            if rows == 0 { 0.0 } else { read.max(compute) }
        };
        let width = (model.heads * model.head_dim * model.layers) as f64;
        let attention = 4.0 * work.pairs as f64 * width / (device.flops * device.attention_share * count);
        let cache = (work.context * model.kv_bytes()) as f64 / bandwidth;
        let products = product(model.layer_parameters(), work.tokens) + product(model.head_parameters(), work.sampled);
        (products + attention + cache) * 1e6 + device.fixed + self.reduces(work)
    }

    /// The time of a step, told apart.
    #[must_use]
    pub fn parts(&self, work: &Work) -> Parts {
        let Self { model, device } = self;
        let count = device.count as f64;
        let bandwidth = device.bandwidth * device.bandwidth_share * count;
        let flops = device.flops * device.matmul_share * count;
        let computed = |parameters: u64, rows: u64| 2.0 * parameters as f64 * rows as f64 / flops;
        let read = |parameters: u64, rows: u64| {
            let read = if rows == 0 { 0.0 } else { (parameters * model.bytes) as f64 / bandwidth };
            (read - computed(parameters, rows)).max(0.0)
        };
        let (layers, head) = (model.layer_parameters(), model.head_parameters());
        let width = (model.heads * model.head_dim * model.layers) as f64;
        let cache = |positions: u64| (positions * model.kv_bytes()) as f64 / bandwidth;
        Parts {
            fixed: (device.fixed + self.reduces(work)) / 1e6,
            products: computed(layers, work.tokens) + computed(head, work.sampled),
            layers_read: read(layers, work.tokens),
            head_read: read(head, work.sampled),
            attention: 4.0 * work.pairs as f64 * width / (device.flops * device.attention_share * count),
            streams_read: cache(work.context - work.prompt_context),
            prompts_read: cache(work.prompt_context),
        }
    }

    /// Microseconds of all-reduces: two per layer, each of which moves twice a device's share of the activations.
    fn reduces(&self, work: &Work) -> f64 {
        let Self { model, device } = self;
        if device.count < 2 {
            return 0.0;
        }
        let share = (device.count - 1) as f64 / device.count as f64;
        let bytes = 2.0 * share * (work.tokens * model.hidden * model.bytes) as f64;
        2.0 * model.layers as f64 * (device.reduce + bytes / device.links * 1e6)
    }
}

/// How much a step as measured differs from the model: up to 2 % either way, and once in a thousand times 5 ms more.
#[derive(Debug)]
pub struct Noise(rand_chacha::ChaCha8Rng);

impl Noise {
    /// The same seed gives the same noise.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(rand::SeedableRng::seed_from_u64(seed))
    }

    /// A step that should take `time` microseconds takes this long.
    pub fn applied(&mut self, time: f64) -> Micros {
        use rand::Rng;
        let hiccup = if self.0.random_bool(1e-3) { 5_000.0 } else { 0.0 };
        (time * self.0.random_range(0.98..1.02) + hiccup).round() as Micros
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn streams(count: u32, context: u32) -> Work {
        let mut work = Work::default();
        (0..count).for_each(|_| work.add_stream(context));
        work
    }

    /// The figures that the published configuration gives by hand.
    #[test]
    fn the_model_has_its_published_size() {
        assert_eq!(LLAMA_8B.layer_parameters(), 6_979_321_856);
        assert_eq!(LLAMA_8B.layer_parameters() + 2 * LLAMA_8B.head_parameters(), 8_029_995_008);
        assert_eq!(LLAMA_8B.kv_bytes(), 131_072);
    }

    /// Alone, a stream waits for the weights: 15 GB at 2.68 TB/s are 5.6 ms, and 0.6 ms are fixed.
    #[test]
    fn one_stream_reads_the_weights() {
        let time = LLAMA_8B_H100.step(&streams(1, 0));
        assert!((time - 6_191.0).abs() < 10.0, "{time}");
    }

    /// A prompt of 8,192 tokens: 114 TFLOP of products at 600 TFLOP/s, 17.6 of attention at 400.
    #[test]
    fn a_long_prompt_computes() {
        let mut work = Work::default();
        work.add_prompt(0, 8_192, true);
        let time = LLAMA_8B_H100.step(&work);
        let by_hand = 190_500.0 + 44_000.0 + 392.0 + 401.0 + 591.0;
        assert!((time / by_hand - 1.0).abs() < 0.01, "{time} and {by_hand} by hand");
    }

    #[test]
    fn a_step_costs_what_is_added() {
        let few = LLAMA_8B_H100.step(&streams(16, 1_000));
        let long = LLAMA_8B_H100.step(&streams(16, 9_000));
        // 16 x 8,000 x 131,072 bytes more.
        assert!((long - few - 6_260.0).abs() < 10.0, "{few} and {long}");
        let eight = Profile { device: H100_X8, ..LLAMA_8B_H100 };
        assert!(eight.step(&streams(16, 9_000)) < long);
    }

    /// The parts are all of it, for many loads and few.
    #[test]
    fn the_parts_of_a_step_are_its_time() {
        for profile in [LLAMA_8B_H100, Profile { device: H100_X8, ..LLAMA_8B_H100 }] {
            for (count, context, start, length) in
                [(0, 0, 0, 8_192), (1, 10, 0, 0), (90, 1_000, 9_000, 250), (400, 50, 3, 7)]
            {
                let mut work = streams(count, context);
                if length > 0 {
                    work.add_prompt(start, length, length > 200);
                }
                let (parts, step) = (profile.parts(&work).total() * 1e6, profile.step(&work));
                assert!((parts / step - 1.0).abs() < 1e-9, "{parts} and {step}");
            }
        }
    }

    #[test]
    fn the_cache_holds_what_memory_is_left() {
        // 80 x 0.9 - 2 - 16.06 GB at 2 MiB a block of 16.
        assert_eq!(LLAMA_8B_H100.blocks(16), 25_720);
    }

    #[test]
    fn noise_is_the_same_each_time() {
        let times = |seed| {
            let mut noise = Noise::new(seed);
            (0..5_000).map(|_| noise.applied(10_000.0)).collect::<Vec<_>>()
        };
        assert_eq!(times(1), times(1));
        assert_ne!(times(1), times(2));
        assert!(times(1).iter().all(|&time| (9_800..=15_200).contains(&time)));
        assert!((1..20).contains(&times(1).iter().filter(|&&time| time > 12_000).count()));
    }
}
