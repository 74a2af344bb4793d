//! Everything that clients do, very often: answers whole and streamed, short and long, left early, read slowly, asked wrongly.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::LocalSet;

use crate::answer::Answer;
use crate::load::post;
use crate::options::Options;
use crate::{Outcome, process};

/// Answers that one request may want.
const MOST_CHOICES: u64 = 4;
/// Longest prompt, in words.
const LONG_PROMPT: u64 = 600;

/// Sends `--requests` over `--connections` and prints, every `--every` seconds, what has happened and the server's memory.
///
/// # Errors
/// When an answer is not what was asked for.
pub fn run(options: &Options) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, soak(options))
}

async fn soak(options: &Options) -> Outcome {
    let address: Rc<str> = options.required("address")?.into();
    let pid: u32 = options.required("pid")?.parse()?;
    let shared = Rc::new(RefCell::new(Shared { left: options.number("requests", 1_000_000)?, ..Shared::default() }));
    let mut clients = tokio::task::JoinSet::new();
    for seed in 0..options.number("connections", 96_u64)? {
        let client = Client { address: Rc::clone(&address), shared: Rc::clone(&shared), dice: Dice::new(seed) };
        clients.spawn_local(async move { client.run().await.map_err(|error| error.to_string()) });
    }
    let every = options.seconds("every", 1.0)?;
    let began = Instant::now();
    let mut interval = tokio::time::interval(every);
    loop {
        tokio::select! {
            ended = clients.join_next() => match ended {
                Some(ended) => ended??,
                None => break,
            },
            _ = interval.tick() => report(&shared.borrow(), began, pid)?,
        }
    }
    report(&shared.borrow(), began, pid)
}

fn report(shared: &Shared, began: Instant, pid: u32) -> Outcome {
    let seconds = began.elapsed().as_secs_f64();
    let resident_kib = process::resident_kib(pid)?;
    println!(
        "{}",
        json!({"seconds": seconds, "resident_kib": resident_kib, "done": shared.done, "kinds": shared.kinds})
    );
    Ok(())
}

#[derive(Default)]
struct Shared {
    left: u64,
    done: u64,
    /// How often each kind of request was made, and each status other than 200 was seen.
    kinds: BTreeMap<String, u64>,
}

impl Shared {
    fn count(&mut self, kind: &str) {
        if let Some(count) = self.kinds.get_mut(kind) {
            *count += 1;
        } else {
            self.kinds.insert(kind.to_owned(), 1);
        }
    }
}

/// Numbers in no order, the same for the same seed (splitmix).
struct Dice(u64);

impl Dice {
    fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number below `limit`.
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % limit
    }
}

/// How a client behaves once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Whole,
    Stream,
    Chat,
    /// Wants several answers to one prompt, as one document.
    Choices,
    /// The same as a stream.
    ChoiceStream,
    /// Reads some events and leaves.
    Leaves,
    /// Leaves before anything comes.
    Rushes,
    /// Reads nothing for a while, then leaves.
    Sleeps,
    /// Asks for what cannot be.
    Wrong,
}

impl Kind {
    fn draw(dice: &mut Dice) -> Self {
        match dice.below(1000) {
            0..460 => Self::Whole,
            460..480 => Self::Choices,
            480..500 => Self::ChoiceStream,
            500..700 => Self::Stream,
            700..850 => Self::Chat,
            850..930 => Self::Leaves,
            930..970 => Self::Rushes,
            970..972 => Self::Sleeps,
            _ => Self::Wrong,
        }
    }
}

struct Client {
    address: Rc<str>,
    shared: Rc<RefCell<Shared>>,
    dice: Dice,
}

impl Client {
    async fn run(mut self) -> Outcome {
        let mut connection = None;
        while self.take() {
            let kind = Kind::draw(&mut self.dice);
            self.shared.borrow_mut().count(&format!("{kind:?}").to_lowercase());
            let stream = match connection.take() {
                Some(stream) => stream,
                None => TcpStream::connect(&*self.address).await?,
            };
            connection = self.once(kind, stream).await?;
            self.shared.borrow_mut().done += 1;
        }
        Ok(())
    }

    fn take(&mut self) -> bool {
        let mut shared = self.shared.borrow_mut();
        shared.left = match shared.left.checked_sub(1) {
            Some(left) => left,
            None => return false,
        };
        true
    }

    /// One request; gives the connection back when it is of more use.
    async fn once(&mut self, kind: Kind, mut stream: TcpStream) -> Outcome<Option<TcpStream>> {
        let tokens = self.tokens(kind);
        let choices = 2 + self.dice.below(MOST_CHOICES - 1);
        let request = self.request(kind, tokens, choices);
        stream.write_all(&request).await?;
        match kind {
            Kind::Rushes => return Ok(None),
            Kind::Sleeps => {
                tokio::time::sleep(Duration::from_millis(200 + self.dice.below(800))).await;
                return Ok(None);
            }
            _ => {}
        }
        let enough = if kind == Kind::Leaves { 1 + self.dice.below(tokens) } else { u64::MAX };
        let mut answer = Answer::default();
        let mut buffer = [0; 4096];
        while !answer.done() {
            let read = stream.read(&mut buffer).await?;
            if read == 0 {
                return Err(format!("an answer to a {kind:?} broke off").into());
            }
            answer.feed(&buffer[..read])?;
            if answer.events() >= enough {
                return Ok(None);
            }
        }
        self.check(kind, tokens, choices, &answer)?;
        Ok(Some(stream))
    }

    fn check(&self, kind: Kind, tokens: u64, choices: u64, answer: &Answer) -> Outcome {
        let right = match (kind, answer.status) {
            (Kind::Stream, Some(200)) => answer.events() == tokens,
            (Kind::Chat, Some(200)) => answer.events() >= 3,
            // Each choice has its own events, and each ends with one; the last of all says that it is.
            (Kind::ChoiceStream, Some(200)) => answer.events() > choices,
            (Kind::Wrong, Some(status)) if status != 429 => status == 422,
            (_, Some(200)) => answer.body_bytes > 0,
            // There may be more clients than the server lets in: refused, and told when to come back.
            (_, Some(429)) => answer.retry_after,
            _ => false,
        };
        if answer.status != Some(200) {
            self.shared.borrow_mut().count(&answer.status.unwrap_or(0).to_string());
        }
        if right {
            return Ok(());
        }
        Err(format!("a {kind:?} of {tokens} tokens: status {:?}, {} events", answer.status, answer.events()).into())
    }

    /// Mostly few, now and then many.
    fn tokens(&mut self, kind: Kind) -> u64 {
        match (kind, self.dice.below(100)) {
            (Kind::Sleeps, _) => 2000,
            (_, 0) => 200 + self.dice.below(300),
            (_, 1..20) => 20 + self.dice.below(60),
            _ => 1 + self.dice.below(12),
        }
    }

    fn request(&mut self, kind: Kind, tokens: u64, choices: u64) -> Vec<u8> {
        let prompt = self.prompt();
        let parameters = match kind {
            Kind::Wrong => json!({"max_new_tokens": 0}),
            _ => json!({"max_new_tokens": tokens, "ignore_eos": true}),
        };
        let native = |path| post(path, &json!({"inputs": prompt, "parameters": parameters}));
        match kind {
            Kind::Whole | Kind::Wrong => native("/generate"),
            Kind::Chat => post("/v1/chat/completions", &self.chat(&prompt, tokens)),
            Kind::Choices | Kind::ChoiceStream => post(
                "/v1/completions",
                &json!({
                    "model": "m", "prompt": prompt, "max_tokens": tokens, "ignore_eos": true, "n": choices,
                    "stream": kind == Kind::ChoiceStream,
                }),
            ),
            Kind::Stream | Kind::Leaves | Kind::Rushes | Kind::Sleeps => native("/generate_stream"),
        }
    }

    fn chat(&mut self, prompt: &str, tokens: u64) -> Value {
        let messages = json!([{"role": "user", "content": prompt}]);
        let logprobs = self.dice.below(4) == 0;
        json!({"model": "m", "messages": messages, "max_tokens": tokens, "stream": true, "logprobs": logprobs})
    }

    fn prompt(&mut self) -> String {
        let words = match self.dice.below(50) {
            0 => 1 + self.dice.below(LONG_PROMPT),
            _ => 1 + self.dice.below(30),
        };
        let mut prompt = String::new();
        for _ in 0..words {
            prompt.push_str(["block ", "slot ", "step ", "plan ", "shard ", "token "][self.dice.below(6) as usize]);
        }
        prompt
    }
}
