//! The traces.

use std::f64::consts::TAU;

use super::author::{Author, Lengths};
use super::{Class, Request, SECOND, Starts, Trace};
use textgen_router::scheduler::{Micros, TenantId, Token};

/// What chat users send and get: a few hundred tokens each way.
const CHAT: Lengths = Lengths::new(300.0, 0.9, 16, 4_000);
const ANSWER: Lengths = Lengths::new(180.0, 0.7, 4, 1_000);
/// Documents, repositories, transcripts.
const DOCUMENT: Lengths = Lengths::new(16_000.0, 0.4, 8_000, 48_000);
/// What clients allow, whatever they get.
const ALLOWED: u32 = 1_024;

fn request(author: &mut Author, starts: Micros, class: Class, prompt: Vec<Token>, answer: Lengths) -> Request {
    let output = author.text_of(answer);
    Request { starts: Starts::At(starts), class, tenant: 0, prompt, output, max_new: ALLOWED }
}

fn chat(author: &mut Author, starts: Micros) -> Request {
    let prompt = author.text_of(CHAT);
    request(author, starts, Class::Chat, prompt, ANSWER)
}

fn trace(name: &str, seed: u64, mut requests: Vec<Request>) -> Trace {
    // Those that come after others are already behind them.
    if requests.iter().all(|request| matches!(request.starts, Starts::At(_))) {
        requests.sort_by_key(|request| if let Starts::At(at) = request.starts { at } else { Micros::MAX });
    }
    Trace { name: name.to_owned(), seed, requests }
}

/// Chats that come by a Poisson process of `rate` per second.
#[must_use]
pub fn chats(seed: u64, count: usize, rate: f64) -> Trace {
    let (mut author, mut now) = (Author::new(seed), 0);
    let requests = (0..count).map(|_| {
        now += author.gap(rate);
        chat(&mut author, now)
    });
    let requests = requests.collect();
    trace("chats", seed, requests)
}

/// `bursts` times `size` chats within a tenth of a second, and a pause of `pause` seconds.
#[must_use]
pub fn bursts(seed: u64, bursts: u32, size: u32, pause: f64) -> Trace {
    let mut author = Author::new(seed);
    let mut requests = Vec::new();
    for burst in 0..bursts {
        let begin = (f64::from(burst) * pause * SECOND as f64) as Micros;
        for _ in 0..size {
            let at = begin + Micros::from(author.below(SECOND as u32 / 10));
            requests.push(chat(&mut author, at));
        }
    }
    trace("bursts", seed, requests)
}

/// Chats by a Poisson process, one in `one_in` of them with a document of 8,000 to 48,000 tokens.
#[must_use]
pub fn long_among_chats(seed: u64, count: usize, rate: f64, one_in: f64) -> Trace {
    let (mut author, mut now) = (Author::new(seed), 0);
    let mut requests = Vec::with_capacity(count);
    for _ in 0..count {
        now += author.gap(rate);
        let long = author.chance(1.0 / one_in);
        requests.push(if long {
            let prompt = author.text_of(DOCUMENT);
            request(&mut author, now, Class::Long, prompt, ANSWER)
        } else {
            chat(&mut author, now)
        });
    }
    trace("long prompts among chats", seed, requests)
}

/// `prefixes` instructions of 500 to 6,000 tokens, some far more popular than others, each followed by a short question.
#[must_use]
pub fn shared_prefixes(seed: u64, count: usize, rate: f64, prefixes: usize) -> Trace {
    let (mut author, mut now) = (Author::new(seed), 0);
    let instructions = Lengths::new(2_000.0, 0.6, 500, 6_000);
    let question = Lengths::new(80.0, 0.6, 8, 500);
    let answer = Lengths::new(60.0, 0.7, 4, 400);
    let instructions: Vec<Vec<Token>> = (0..prefixes).map(|_| author.text_of(instructions)).collect();
    let requests = (0..count).map(|_| {
        now += author.gap(rate);
        let mut prompt = instructions[author.popular(prefixes)].clone();
        prompt.extend(author.text_of(question));
        request(&mut author, now, Class::Chat, prompt, answer)
    });
    let requests = requests.collect();
    trace("shared prefixes", seed, requests)
}

/// Conversations of one to eight turns, begun by a Poisson process, under one of a few system prompts; every turn repeats all
/// that was said and comes some seconds after the answer before.
#[must_use]
pub fn multi_turn(seed: u64, conversations: usize, rate: f64) -> Trace {
    let (mut author, mut now) = (Author::new(seed), 0);
    let system: Vec<Vec<Token>> = (0..8).map(|_| author.text_of(Lengths::new(600.0, 0.5, 100, 2_000))).collect();
    let mut requests: Vec<Request> = Vec::new();
    for conversation in 0..conversations {
        now += author.gap(rate);
        let mut said = system[author.popular(system.len())].clone();
        for turn in 0..1 + author.below(8) {
            said.extend(author.text_of(Lengths::new(120.0, 0.8, 8, 2_000)));
            let mut next = request(&mut author, now, Class::Chat, said.clone(), ANSWER);
            next.tenant = conversation as TenantId;
            if turn > 0 {
                next.starts = Starts::After { request: requests.len() - 1, pause: author.pause(8 * SECOND) };
            }
            said.extend_from_slice(&next.output);
            requests.push(next);
        }
    }
    trace("multi-turn chats", seed, requests)
}

/// Seven tenants chat, each within its share; the eighth sends `flood` requests within a second, after ten.
#[must_use]
pub fn flood(seed: u64, seconds: u32, rate: f64, flood: u32) -> Trace {
    let mut author = Author::new(seed);
    let mut requests = Vec::new();
    for tenant in 1..8 {
        let mut now = 0;
        while now < Micros::from(seconds) * SECOND {
            now += author.gap(rate / 7.0);
            requests.push(Request { tenant, ..chat(&mut author, now) });
        }
    }
    for _ in 0..flood {
        let at = 10 * SECOND + Micros::from(author.below(SECOND as u32));
        requests.push(Request { tenant: 8, class: Class::Batch, ..chat(&mut author, at) });
    }
    trace("one tenant floods", seed, requests)
}

/// A day, `hour` seconds to the hour: chats that follow the sun, agents that share instructions at all hours, documents during
/// office hours, and at night a batch of one tenant.
#[must_use]
pub fn day(seed: u64, hour: u32, rate: f64) -> Trace {
    let mut author = Author::new(seed);
    let hour = Micros::from(hour) * SECOND;
    let mut requests = Vec::new();
    let instructions: Vec<Vec<Token>> =
        (0..6).map(|_| author.text_of(Lengths::new(2_500.0, 0.4, 1_000, 6_000))).collect();
    let mut now = 0;
    while now < 24 * hour {
        now += author.gap(rate);
        // The rate is thinned: few at four in the morning, most at four in the afternoon.
        let time = (now % (24 * hour)) as f64 / hour as f64;
        let sun = 0.55 - 0.45 * ((time - 4.0) / 24.0 * TAU).cos();
        let tenant = 1 + author.popular(20) as TenantId;
        if author.chance(0.25) {
            let which = author.popular(instructions.len());
            let mut prompt = instructions[which].clone();
            prompt.extend(author.text_of(Lengths::new(200.0, 0.8, 16, 3_000)));
            let next = request(&mut author, now, Class::Chat, prompt, Lengths::new(120.0, 0.8, 4, 800));
            requests.push(Request { tenant: 100 + which as TenantId, ..next });
        } else if author.chance(sun.min(1.0)) {
            let office = (9.0..18.0).contains(&time) && author.chance(0.04);
            let next = if office {
                let prompt = author.text_of(DOCUMENT);
                request(&mut author, now, Class::Long, prompt, ANSWER)
            } else {
                chat(&mut author, now)
            };
            requests.push(Request { tenant, ..next });
        }
    }
    let batch = (rate * 40.0) as u32;
    for _ in 0..batch {
        let at = 2 * hour + Micros::from(author.below(SECOND as u32));
        let prompt = author.text_of(Lengths::new(1_500.0, 0.6, 200, 8_000));
        let next = request(&mut author, at, Class::Batch, prompt, Lengths::new(250.0, 0.6, 16, 1_000));
        requests.push(Request { tenant: 200, ..next });
    }
    trace("a day of mixed tenants", seed, requests)
}

/// Very many short requests at once, for the scheduler's own cost.
#[must_use]
pub fn short_many(seed: u64, count: usize, prompt: u32, output: u32) -> Trace {
    let mut author = Author::new(seed);
    let requests = (0..count).map(|_| {
        let length = output / 2 + author.below(output);
        let (prompt, output_tokens) = (author.text(prompt), author.text(length));
        let (starts, class, tenant) = (Starts::At(0), Class::Batch, 0);
        Request { starts, class, tenant, prompt, output: output_tokens, max_new: 2 * output }
    });
    let requests = requests.collect();
    trace("many short requests", seed, requests)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(seed: u64) -> Vec<Trace> {
        vec![
            chats(seed, 400, 20.0),
            bursts(seed, 4, 50, 10.0),
            long_among_chats(seed, 400, 10.0, 20.0),
            shared_prefixes(seed, 400, 20.0, 16),
            multi_turn(seed, 80, 4.0),
            flood(seed, 30, 10.0, 100),
            day(seed, 5, 10.0),
            short_many(seed, 50, 32, 16),
        ]
    }

    #[test]
    fn a_seed_gives_one_trace() {
        for (one, other) in all(1).iter().zip(all(1)) {
            let same = |(one, other): (&Request, &Request)| {
                (&one.prompt, &one.output, one.starts) == (&other.prompt, &other.output, other.starts)
            };
            assert!(one.requests.len() == other.requests.len(), "{}", one.name);
            assert!(one.requests.iter().zip(&other.requests).all(same), "{}", one.name);
        }
        assert_ne!(all(1)[0].requests[0].prompt, all(2)[0].requests[0].prompt);
    }

    #[test]
    fn every_request_can_be_asked() {
        for trace in all(7) {
            let mut last = 0;
            for (place, request) in trace.requests.iter().enumerate() {
                assert!(!request.prompt.is_empty() && !request.output.is_empty(), "{}", trace.name);
                assert!(request.output_len() <= request.max_new, "{}", trace.name);
                match request.starts {
                    Starts::At(at) => {
                        assert!(at >= last, "{}: {at} after {last}", trace.name);
                        last = at;
                    }
                    Starts::After { request, .. } => assert!(request < place, "{}", trace.name),
                }
            }
        }
    }

    #[test]
    fn chats_come_at_their_rate() {
        let trace = chats(3, 20_000, 50.0);
        let Starts::At(end) = trace.requests[19_999].starts else { panic!("it has no time") };
        assert!((end as f64 / SECOND as f64 / 400.0 - 1.0).abs() < 0.03, "{end}");
        let mut lengths: Vec<u32> = trace.requests.iter().map(Request::prompt_len).collect();
        lengths.sort_unstable();
        assert!((f64::from(lengths[10_000]) / CHAT.median - 1.0).abs() < 0.05, "{}", lengths[10_000]);
    }

    #[test]
    fn a_turn_repeats_what_was_said() {
        let trace = multi_turn(5, 50, 2.0);
        let mut turns = 0;
        for request in &trace.requests {
            if let Starts::After { request: before, .. } = request.starts {
                let before = &trace.requests[before];
                let said = [before.prompt.as_slice(), &before.output].concat();
                assert!(request.prompt.starts_with(&said) && request.prompt.len() > said.len());
                assert_eq!(request.tenant, before.tenant);
                turns += 1;
            }
        }
        assert!(turns > 50);
    }
}
