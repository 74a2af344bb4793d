//! Beam searches through the engine. The mock's log-probabilities are minus the rank, so many continuations are equal: of
//! these the one of the better beam goes first, then the lower token.

use std::time::Instant;

use textgen_router::request::BeamParams;
use textgen_router::scheduler::{EarlyStopping, FinishedBy, Hypothesis};

use super::support::mock_shard::next_token;
use super::*;

fn search(prompt: Vec<u32>, max_new_tokens: u32, width: u32, returned: u32) -> ValidRequest {
    let beams = BeamParams { width, returned, length_penalty: 1.0, early_stopping: EarlyStopping::WhenUnlikely };
    ValidRequest { beams: Some(beams), ..request(prompt, max_new_tokens) }
}

/// All beams with all their tokens, nothing shared: the answers and the sums of their log-probabilities.
fn expected(prompt: &[u32], length: usize, width: usize, returned: usize) -> Vec<(Vec<u32>, f32)> {
    let mut beams = vec![(Vec::new(), 0.0)];
    for _ in 0..length {
        let mut all: Vec<(usize, u32, f32)> = Vec::new();
        for (place, (tokens, score)) in beams.iter().enumerate() {
            let best = next_token(&[prompt, tokens].concat());
            all.extend((0..2 * width).map(|rank| (place, best.saturating_sub(rank as u32), score - rank as f32)));
        }
        all.sort_by(|one, other| other.2.total_cmp(&one.2).then((one.0, one.1).cmp(&(other.0, other.1))));
        all.truncate(width);
        let grown = |(place, token, score): (usize, u32, f32)| ([beams[place].0.as_slice(), &[token]].concat(), score);
        beams = all.into_iter().map(grown).collect();
    }
    beams.truncate(returned);
    beams
}

async fn answer(mut generation: Generation) -> Result<Hypothesis, EngineError> {
    while let Some(event) = generation.next().await {
        match event {
            Event::Answer(answer) => return Ok(answer),
            Event::Failed(error) => return Err(error),
            Event::Started { .. } => {}
            Event::Prompt(_) | Event::Token { .. } => panic!("a search says nothing before its end: {event:?}"),
        }
    }
    Err(EngineError::SlowReader)
}

fn submit(house: &House, request: ValidRequest, returned: usize) -> Vec<Generation> {
    house.submit_as(request, Standing::default(), returned).unwrap()
}

async fn assert_answers(generations: Vec<Generation>, expected: Vec<(Vec<u32>, f32)>) {
    assert_eq!(generations.len(), expected.len());
    for (generation, (tokens, sum)) in generations.into_iter().zip(expected) {
        let found = answer(generation).await.unwrap();
        assert_eq!((found.tokens, found.finished_by), (tokens, FinishedBy::Length));
        assert_eq!(found.logprobs.iter().sum::<f32>(), sum);
        assert!((found.score - sum / found.logprobs.len() as f32).abs() < 1e-5);
    }
}

#[tokio::test]
async fn a_search_alone() {
    // A stream's buffer of two: an answer is one event, whatever its length.
    let house = House::new(2);
    house.attach(MockConfig::default()).await.unwrap();
    let prompt = vec![4, 5, 6];
    let generations = submit(&house, search(prompt.clone(), 12, 4, 3), 3);
    assert_answers(generations, expected(&prompt, 12, 4, 3)).await;
    house.empties().await;
}

#[tokio::test]
async fn a_stop_token_ends_an_answer_and_is_in_it() {
    let house = House::new(64);
    house.attach(MockConfig::default()).await.unwrap();
    let prompt = vec![7, 8];
    let greedy = continuation(&prompt, 5);
    // The same token twice is one way to end.
    let wanted = ValidRequest { stop_tokens: Arc::new([greedy[4]; 20]), ..search(prompt, 100, 1, 1) };
    let found = answer(submit(&house, wanted, 1).remove(0)).await.unwrap();
    assert_eq!((found.tokens, found.finished_by), (greedy, FinishedBy::StopToken));
}

#[tokio::test]
async fn searches_in_a_crowd_in_a_small_pool_across_deaths() {
    let mut random = fresh_rng();
    let house = House::new(256);
    let tight = MockConfig { num_blocks: 60, ..MockConfig::default() };
    house.attach(MockConfig { dies_at_step: Some(20), ..tight }).await.unwrap();
    let (mut searches, mut singles) = (Vec::new(), Vec::new());
    for _ in 0..25 {
        let (prompt, length) = (random_prompt(&mut random, 30), random.random_range(1..20));
        let width = random.random_range(1..6);
        let returned = random.random_range(1..=width);
        let generations =
            submit(&house, search(prompt.clone(), length as u32, width as u32, returned as u32), returned);
        searches.push((expected(&prompt, length, width, returned), generations));
        let (prompt, length) = (random_prompt(&mut random, 60), random.random_range(1..40));
        let generation = house.submit(request(prompt.clone(), length as u32)).unwrap();
        singles.push((continuation(&prompt, length), tokio::spawn(collect(generation))));
    }
    house.reaches(EngineStatus::Recovering).await;
    house.attach(MockConfig { dies_at_step: Some(40), num_blocks: 70, ..tight }).await.unwrap();
    house.reaches(EngineStatus::Recovering).await;
    house.attach(tight).await.unwrap();
    for (expected, generations) in searches {
        assert_answers(generations, expected).await;
    }
    for (expected, task) in singles {
        assert_eq!(task.await.unwrap(), Ok((expected, Finish::Length)));
    }
    house.empties().await;
}

#[tokio::test]
async fn more_than_the_shard_reports_or_seats_is_refused() {
    let house = House::new(64);
    house.attach(MockConfig { max_slots: 8, ..MockConfig::default() }).await.unwrap();
    for (width, stops, sentence) in [(11, 0, "22 tokens in a step"), (7, 2, "`max_top_n`"), (9, 0, "9 beams")] {
        let stop_tokens = (1..=stops).collect();
        let wanted = ValidRequest { stop_tokens, ..search(vec![1, 2], 5, width, 2) };
        for generation in submit(&house, wanted, 2) {
            let Err(EngineError::TooLong(said)) = answer(generation).await else { panic!("{width} beams were taken") };
            assert!(said.contains(sentence), "{said}");
        }
    }
}

#[tokio::test]
async fn a_search_that_nobody_awaits_ends_as_one() {
    let house = House::new(64);
    house.attach(MockConfig { silent_from_step: Some(3), ..MockConfig::default() }).await.unwrap();
    let mut generations = submit(&house, search(vec![1, 2, 3], 20, 4, 2), 2);
    house.until(|stats| stats.running == 4).await;
    let further = generations.remove(1);
    drop(generations);
    house.until(|stats| stats.running + stats.waiting == 0).await;
    assert_eq!(answer(further).await, Err(EngineError::SlowReader));
}

#[tokio::test]
async fn a_deadline_ends_all_of_a_search() {
    let house = House::new(64);
    house.attach(MockConfig { silent_from_step: Some(3), ..MockConfig::default() }).await.unwrap();
    let standing = Standing { deadline: Some(Instant::now() + Duration::from_millis(300)), ..Standing::default() };
    let generations = house.submit_as(search(vec![1, 2, 3], 20, 4, 3), standing, 3).unwrap();
    for generation in generations {
        assert_eq!(answer(generation).await, Err(EngineError::Timeout));
    }
    house.until(|stats| stats.running + stats.waiting == 0).await;
}

#[tokio::test]
async fn one_beam_that_fails_fails_its_search_and_nobody_else() {
    let house = House::new(64);
    let prompt = vec![1, 2, 3];
    // The second best first token: only one of the beams holds it.
    let poison = next_token(&prompt) - 1;
    house.attach(MockConfig { poison: Some(poison), ..MockConfig::default() }).await.unwrap();
    let bad = submit(&house, search(prompt, 6, 3, 2), 2);
    let good = submit(&house, search(vec![9, 9], 6, 3, 2), 2);
    for generation in bad {
        assert!(matches!(answer(generation).await, Err(EngineError::Shard(message)) if message.contains("finite")));
    }
    assert_answers(good, expected(&[9, 9], 6, 3, 2)).await;
    house.empties().await;
}
