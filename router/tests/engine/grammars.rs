//! Sequences under grammars through the engine: the mock samples under the masks it is given, and the text is what a matcher
//! alone would let it write, whatever happens on the way.

use std::path::Path;
use std::sync::LazyLock;

use serde_json::{Map, json};
use textgen_router::grammar::{GrammarLimits, GrammarSource, Grammars, Guide};
use textgen_router::input::ModelText;

use super::support::mock_shard::next_allowed;
use super::*;

/// Rows of the built-in model's logits.
const ROWS: u32 = 2048;

static MODEL: LazyLock<Arc<ModelText>> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../python/textgen/demo/model");
    Arc::new(ModelText::load(&folder).unwrap())
});
static GRAMMARS: LazyLock<Grammars> =
    LazyLock::new(|| Grammars::of(Arc::clone(&MODEL), GrammarLimits { compile_timeout: PATIENCE, ..limits() }));
const PATIENCE: Duration = Duration::from_secs(60);

fn limits() -> GrammarLimits {
    GrammarLimits::default()
}

fn config() -> MockConfig {
    MockConfig { vocab: ROWS, forward_ns: 1_000_000_000, num_blocks: 256, ..MockConfig::default() }
}

async fn guide(source: GrammarSource) -> Guide {
    GRAMMARS.guide(source, None).await.unwrap()
}

fn regex(regex: &str) -> GrammarSource {
    GrammarSource::Regex(regex.to_owned())
}

/// Most of what it makes is forced: the keys.
fn long_keys() -> GrammarSource {
    let key = |name: &str| format!("a_rather_long_name_for_the_{name}_of_it");
    let (one, other) = (key("first part"), key("second part"));
    GrammarSource::JsonSchema(json!({
        "type": "object",
        "properties": {one.as_str(): {"enum": ["ab", "cd"]}, other.as_str(): {"type": "boolean"}},
        "required": [one, other],
        "additionalProperties": false,
    }))
}

/// The tokens that the mock writes under a guide, one at a time, and whether the answer is whole with the last.
fn expected(guide: &Guide, prompt: &[u32], length: usize) -> (Vec<u32>, bool) {
    let mut matcher = guide.matcher();
    let (mut tokens, mut words) = (prompt.to_vec(), vec![0_u32; ROWS.div_ceil(32) as usize]);
    while tokens.len() < prompt.len() + length {
        matcher.fill_mask(&mut words).unwrap();
        let allowed = |token: u32| words[token as usize / 32] >> (token % 32) & 1 == 1;
        tokens.push(next_allowed(&tokens, ROWS, allowed).unwrap());
        matcher.advance(*tokens.last().unwrap()).unwrap();
        if matcher.must_stop() {
            return (tokens.split_off(prompt.len()), true);
        }
    }
    (tokens.split_off(prompt.len()), false)
}

fn guided(guide: &Guide, prompt: Vec<u32>, length: u32) -> ValidRequest {
    let stop_tokens = Arc::clone(MODEL.eos_tokens());
    ValidRequest { grammar: Some(guide.clone()), stop_tokens, ..request(prompt, length) }
}

fn end(tokens: &[u32], whole: bool) -> Finish {
    match tokens.last() {
        Some(last) if MODEL.eos_tokens().contains(last) => Finish::StopToken,
        _ if whole => Finish::Whole,
        _ => Finish::Length,
    }
}

async fn assert_follows(house: &House, guide: &Guide, prompt: Vec<u32>, length: u32) -> usize {
    let (tokens, whole) = expected(guide, &prompt, length as usize);
    let generation = house.submit(guided(guide, prompt, length)).unwrap();
    let finish = end(&tokens, whole);
    assert_eq!(collect(generation).await, Ok((tokens.clone(), finish)));
    tokens.len()
}

#[tokio::test]
async fn an_answer_follows_its_grammar_and_ends_with_it() {
    let house = House::new(512);
    house.attach(config()).await.unwrap();
    for source in [regex("[a-f]{3,9}x+yz"), regex("abc"), GrammarSource::JsonObject, long_keys()] {
        let guide = guide(source).await;
        for start in 0..6 {
            assert_follows(&house, &guide, vec![start, 7, 9], 150).await;
        }
    }
    house.empties().await;
}

#[tokio::test]
async fn masks_in_part_lead_to_what_whole_ones_do() {
    for asks_for_masks in [true, false] {
        // Steps that are long leave time to find masks in the engine's own thread, and short ones leave none.
        for forward_ns in [2, 1_000_000_000] {
            let house = House::new(512);
            house.attach(MockConfig { asks_for_masks, forward_ns, ..config() }).await.unwrap();
            let guide = guide(regex(r#""[^"\\\x00-\x1f]{50,500}""#)).await;
            for start in 0..4 {
                assert_follows(&house, &guide, vec![start, 7, 9], 150).await;
            }
            house.empties().await;
        }
    }
}

#[tokio::test]
async fn a_part_outlives_what_is_told_of_the_run_before_it() {
    let property = json!({"type": "string", "minLength": 3, "maxLength": 60});
    let names = ["the_first_long_name", "another quite long name", "one that is long too"];
    let properties: Map<_, _> = names.iter().map(|name| ((*name).to_owned(), property.clone())).collect();
    let schema = json!({"type": "object", "properties": properties, "required": names, "additionalProperties": false});
    let guide = guide(GrammarSource::JsonSchema(schema)).await;
    // So few tokens in a step that runs are cut, and the masks behind them are found before all of them has come back.
    for max_batch_tokens in [4, 5, 6, 7, 9] {
        let house = House::new(512);
        house.attach(MockConfig { max_batch_tokens, ..config() }).await.unwrap();
        for start in 0..6 {
            assert_follows(&house, &guide, vec![start, 7, 9], 150).await;
        }
        house.empties().await;
    }
}

#[tokio::test]
async fn forced_text_takes_fewer_steps_than_tokens_and_is_scored() {
    let house = House::new(512);
    house.attach(config()).await.unwrap();
    let guide = guide(long_keys()).await;
    let prompt = vec![5, 6];
    let (tokens, whole) = expected(&guide, &prompt, 200);
    assert!(whole && tokens.len() > 30);
    let mut generation = house.submit(guided(&guide, prompt.clone(), 200)).unwrap();
    let mut heard = Vec::new();
    while let Some(event) = generation.next().await {
        if let Event::Token { token, .. } = event {
            // The mock says of known tokens where they stand, and of sampled ones always the same.
            let position = (prompt.len() + heard.len()) as f32;
            assert!([-0.5, -position].contains(&token.logprob), "{token:?}");
            heard.push(token);
        }
    }
    assert_eq!(heard.iter().map(|token| token.id).collect::<Vec<_>>(), tokens);
    let forced = heard.iter().filter(|token| token.logprob != -0.5).count();
    let steps = house.recorder.0.lock().unwrap().steps;
    assert!(
        forced * 2 > tokens.len() && steps + forced <= tokens.len() + 3,
        "{forced} and {steps} of {}",
        tokens.len()
    );
    house.empties().await;
}

#[tokio::test]
async fn forced_text_that_nobody_wants_scores_of_has_none() {
    let house = House::new(512);
    house.attach(config()).await.unwrap();
    let guide = guide(long_keys()).await;
    let (tokens, _) = expected(&guide, &[5, 6], 200);
    let wanted = ValidRequest { unscored: true, ..guided(&guide, vec![5, 6], 200) };
    let mut generation = house.submit(wanted).unwrap();
    let mut heard = Vec::new();
    while let Some(event) = generation.next().await {
        if let Event::Token { token, .. } = event {
            assert!(token.logprob.is_nan() || token.logprob == -0.5, "{token:?}");
            heard.push(token);
        }
    }
    assert_eq!(heard.iter().map(|token| token.id).collect::<Vec<_>>(), tokens);
    assert!(heard.iter().filter(|token| token.logprob.is_nan()).count() * 2 > tokens.len());
    house.empties().await;
}

#[tokio::test]
async fn alternatives_are_told_of_forced_tokens_too() {
    let house = House::new(512);
    house.attach(config()).await.unwrap();
    let guide = guide(long_keys()).await;
    let (tokens, _) = expected(&guide, &[3], 200);
    let wanted = ValidRequest { top_n_tokens: 2, ..guided(&guide, vec![3], 200) };
    let mut generation = house.submit(wanted).unwrap();
    let mut heard = Vec::new();
    while let Some(event) = generation.next().await {
        if let Event::Token { token, .. } = event {
            assert_eq!(token.top.len(), 2);
            heard.push(token.id);
        }
    }
    assert_eq!(heard, tokens);
}

#[tokio::test]
async fn a_run_is_cut_by_the_length_and_by_stop_tokens() {
    let house = House::new(512);
    house.attach(config()).await.unwrap();
    let guide = guide(long_keys()).await;
    let prompt = vec![11, 12, 13];
    let (tokens, _) = expected(&guide, &prompt, 200);
    for length in 1..=tokens.len() as u32 + 1 {
        assert_follows(&house, &guide, prompt.clone(), length).await;
    }
    for (place, &stop) in tokens.iter().enumerate() {
        let first = tokens.iter().position(|&token| token == stop).unwrap();
        let wanted = ValidRequest { stop_tokens: Arc::new([stop]), ..guided(&guide, prompt.clone(), 200) };
        let generation = house.submit(wanted).unwrap();
        let told = collect(generation).await;
        assert_eq!(told, Ok((tokens[..=first].to_vec(), Finish::StopToken)), "at {place}");
    }
    house.empties().await;
}

/// Guided and free requests at once; each writes what it would alone.
async fn crowd(house: &House, random: &mut StdRng, guides: &[Guide]) -> Vec<tokio::task::JoinHandle<()>> {
    let mut tasks = Vec::new();
    for number in 0..36 {
        let prompt = random_prompt(random, 40);
        let length = random.random_range(1..60);
        let (wanted, expected) = match guides.get(number % (guides.len() + 1)) {
            Some(guide) => {
                let (tokens, whole) = expected(guide, &prompt, length);
                let finish = end(&tokens, whole);
                (guided(guide, prompt, length as u32), (tokens, finish))
            }
            None => {
                let mut tokens = prompt.clone();
                (0..length).for_each(|_| tokens.push(next_allowed(&tokens, ROWS, |_| true).unwrap()));
                (request(prompt.clone(), length as u32), (tokens.split_off(prompt.len()), Finish::Length))
            }
        };
        let generation = house.submit(wanted).unwrap();
        tasks.push(tokio::spawn(async move { assert_eq!(collect(generation).await, Ok(expected)) }));
    }
    tasks
}

async fn some_guides() -> Vec<Guide> {
    let mut guides = Vec::new();
    for source in [regex("[a-z ]{5,40}"), GrammarSource::JsonObject, long_keys()] {
        guides.push(guide(source).await);
    }
    guides
}

#[tokio::test]
async fn a_crowd_under_grammars_in_a_small_pool_across_deaths() {
    let mut random = fresh_rng();
    let guides = some_guides().await;
    // Steps that take no time leave no mask in time: then sequences are planned only when their masks are there.
    for forward_ns in [1, 1_000_000_000] {
        let tight = MockConfig { num_blocks: 40, forward_ns, ..config() };
        let house = House::new(256);
        house.attach(MockConfig { dies_at_step: Some(20), ..tight }).await.unwrap();
        let tasks = crowd(&house, &mut random, &guides).await;
        for dies_at_step in [Some(30), None] {
            house.reaches(EngineStatus::Recovering).await;
            house.attach(MockConfig { dies_at_step, ..tight }).await.unwrap();
        }
        for task in tasks {
            task.await.unwrap();
        }
        house.empties().await;
    }
}

#[tokio::test]
async fn a_mask_that_never_comes_fails_its_own_request_alone() {
    let house = House::new(256);
    house.attach(MockConfig { is_blind: true, ..config() }).await.unwrap();
    let guide = guide(regex("[ab]+")).await;
    let free = house.submit(request(vec![1, 2], 30)).unwrap();
    let bound = house.submit(guided(&guide, vec![3], 30)).unwrap();
    assert!(matches!(collect(bound).await, Err(EngineError::Shard(_))));
    assert_eq!(collect(free).await.map(|(tokens, _)| tokens.len()), Ok(30));
    house.empties().await;
}

#[tokio::test]
async fn a_shard_without_masks_serves_the_others() {
    let house = House::new(256);
    house.attach(MockConfig { takes_masks: false, ..config() }).await.unwrap();
    let guide = guide(regex("[ab]+")).await;
    let bound = house.submit(guided(&guide, vec![3], 30)).unwrap();
    assert!(matches!(collect(bound).await, Err(EngineError::Shard(reason)) if reason.contains("mask")));
    let free = house.submit(request(vec![1, 2], 30)).unwrap();
    assert_eq!(collect(free).await.map(|(tokens, _)| tokens.len()), Ok(30));
}

#[tokio::test]
async fn clients_that_leave_hold_nobody_up() {
    let house = House::new(256);
    house.attach(config()).await.unwrap();
    let guides = some_guides().await;
    for round in 0..20 {
        let mut leaving = house.submit(guided(&guides[round % 3], vec![round as u32], 100)).unwrap();
        let staying = house.submit(request(vec![round as u32, 1], 12)).unwrap();
        for _ in 0..round % 7 {
            leaving.next().await;
        }
        drop(leaving);
        assert_eq!(collect(staying).await.map(|(tokens, _)| tokens.len()), Ok(12));
    }
    house.empties().await;
}

#[tokio::test]
async fn choices_follow_the_grammar_each() {
    let house = House::new(256);
    house.attach(config()).await.unwrap();
    let guide = guide(long_keys()).await;
    let (tokens, whole) = expected(&guide, &[8, 8], 100);
    let generations = house.submit_as(guided(&guide, vec![8, 8], 100), Standing::default(), 4).unwrap();
    assert_eq!(generations.len(), 4);
    for generation in generations {
        assert_eq!(collect(generation).await, Ok((tokens.clone(), end(&tokens, whole))));
    }
    house.empties().await;
}

/// Each `a` may end one of ever more parts: finding the next tokens takes longer and longer, unless the end comes before.
#[tokio::test]
async fn a_grammar_that_grows_too_complex_fails_its_own_request_alone() {
    let house = House::new(512);
    house.attach(config()).await.unwrap();
    let few = GrammarLimits { mask_items: 100, compile_timeout: PATIENCE, ..limits() };
    let source = GrammarSource::Lark("start: part \"~~~~\"\npart: part part | \"a\"".to_owned());
    let guide = Grammars::of(Arc::clone(&MODEL), few).guide(source, None).await.unwrap();
    let free = house.submit(request(vec![1, 2], 100)).unwrap();
    let mut errors = Vec::new();
    for start in 0..12 {
        let mut bound = house.submit(guided(&guide, vec![start], 400)).unwrap();
        let mut tokens = 0;
        while let Some(event) = bound.next().await {
            match event {
                Event::Token { .. } => tokens += 1,
                Event::Failed(error) => errors.push((error, tokens)),
                Event::Started { .. } => {}
                other => panic!("{other:?} after {tokens} tokens"),
            }
        }
    }
    assert!(!errors.is_empty(), "it is never too complex");
    for (error, tokens) in errors {
        assert!(matches!(&error, EngineError::Grammar(reason) if reason.contains("too complex")), "{error:?}");
        assert!(tokens > 0, "what came before is the client's");
    }
    assert_eq!(collect(free).await.map(|(tokens, _)| tokens.len()), Ok(100));
    house.empties().await;
}
