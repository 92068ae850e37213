//! A load of signed requests.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use http::Uri;
use http::header::{CONTENT_TYPE, HeaderValue};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::link::{Connector, Link, connector};
use super::summary::{Answer, Summary};
use crate::clock::Clock;
use crate::provider::{Inlet, SignRequest, SignedRequest};
use crate::random::Random;

/// Requests that a duplicate may repeat: the latest ones.
const REPEATABLE_MAX: usize = 64;

/// Called with each request and its answer.
pub type OnAnswer = Arc<dyn Fn(&Sent) + Send + Sync>;

/// What to send.
#[derive(Clone)]
pub struct Load {
    /// The provider, bound to the secret that signs.
    pub inlet: Arc<Inlet>,
    /// The source's URL.
    pub to: String,
    /// The URL that URL-signed schemes sign.
    pub public_url: String,
    /// The provider's first template, if absent.
    pub event_type: Option<String>,
    /// Instead of the template's body.
    pub body: Option<Bytes>,
    pub private_key: Option<Vec<u8>>,
    pub count: u64,
    /// Requests a second, over all connections; as fast as answers come, if absent.
    pub rate: Option<f64>,
    pub connections: usize,
    /// Part of the requests that repeat an earlier one, byte for byte.
    pub duplicates: f64,
    /// Part of the requests that are changed after signing.
    pub tamper: f64,
    pub clock: Arc<dyn Clock>,
    pub random: Arc<dyn Random>,
    pub on_answer: Option<OnAnswer>,
}

/// One request and what came back; a history is a list of these.
#[derive(Debug, Clone)]
pub struct Sent {
    /// What the template's `{id}` became.
    pub id: String,
    pub tampered: bool,
    pub duplicate: bool,
    /// The answer, or why there is none: it may have been accepted or not.
    pub answer: Result<Answer, &'static str>,
    /// From the time it was due.
    pub took: Duration,
}

/// A request that is ready to go.
#[derive(Clone)]
struct Ready {
    signed: SignedRequest,
    id: String,
    tampered: bool,
    duplicate: bool,
}

struct Shared {
    load: Load,
    /// Makes the ids of this run its own.
    run: String,
    next: AtomicU64,
    recent: Mutex<VecDeque<Ready>>,
    begun: Instant,
}

/// Sends it all and says what came back. Fails only where nothing can be sent at all.
pub async fn run(load: Load) -> anyhow::Result<Summary> {
    let to: Uri = load.to.parse().with_context(|| format!("{:?} is no URL", load.to))?;
    if to.scheme().is_none() || to.authority().is_none() {
        bail!("{:?} needs a scheme and a host", load.to);
    }
    let connector = connector().context("the machine's certificates")?;
    let run = format!("{:016x}", load.random.next_u64());
    let shared =
        Arc::new(Shared { run, next: AtomicU64::new(0), recent: Mutex::default(), begun: Instant::now(), load });
    // One now, so that a wrong secret or template is an error and not a count.
    shared.ready(0)?;
    let mut workers = JoinSet::new();
    let connections = shared.load.connections.max(1).min(usize::try_from(shared.load.count).unwrap_or(usize::MAX));
    for _ in 0..connections {
        workers.spawn(Arc::clone(&shared).work(connector.clone(), to.clone()));
    }
    let mut summary = Summary::new();
    while let Some(part) = workers.join_next().await {
        summary.merge(&part.context("a sender died")??);
    }
    summary.took = Instant::now() - shared.begun;
    Ok(summary)
}

impl Shared {
    /// One connection's share.
    async fn work(self: Arc<Self>, connector: Connector, to: Uri) -> anyhow::Result<Summary> {
        let mut link = Link::new(connector, to);
        let mut summary = Summary::new();
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            if number >= self.load.count {
                return Ok(summary);
            }
            let ready = self.ready(number)?;
            let uri: Uri = ready.signed.url(&self.load.to).parse()?;
            let due = self.due(number).await;
            let answer = link.send(&ready.signed, &uri).await;
            let took = Instant::now() - due;
            summary.add(&answer, ready.tampered, took);
            if let Some(on_answer) = &self.load.on_answer {
                let Ready { id, tampered, duplicate, .. } = ready;
                on_answer(&Sent { id, tampered, duplicate, answer, took });
            }
        }
    }

    /// Waits for the turn of request `number`, and returns when it was.
    async fn due(&self, number: u64) -> Instant {
        let Some(rate) = self.load.rate else { return Instant::now() };
        #[expect(clippy::cast_precision_loss, reason = "a count of requests")]
        let due = self.begun + Duration::from_secs_f64(number as f64 / rate);
        sleep_until(due).await;
        due
    }

    fn ready(&self, number: u64) -> anyhow::Result<Ready> {
        let load = &self.load;
        if load.random.next_fraction() < load.duplicates
            && let Some(earlier) = self.earlier()
        {
            return Ok(earlier);
        }
        let id = format!("{}{number:08}", self.run);
        let mut signed = load.inlet.sign(&SignRequest {
            event_type: load.event_type.as_deref(),
            body: load.body.clone(),
            now: load.clock.now(),
            id: &id,
            n: number,
            private_key: load.private_key.as_deref(),
            url: &load.public_url,
            ..SignRequest::default()
        })?;
        let tampered = load.random.next_fraction() < load.tamper;
        if tampered {
            signed = self.tamper(&signed).context("nothing that can be changed is covered by the provider's proof")?;
        }
        let ready = Ready { signed, id, tampered, duplicate: false };
        if !tampered && load.duplicates > 0.0 {
            let mut recent = self.recent();
            if recent.len() >= REPEATABLE_MAX {
                recent.pop_front();
            }
            recent.push_back(Ready { duplicate: true, ..ready.clone() });
        }
        Ok(ready)
    }

    fn earlier(&self) -> Option<Ready> {
        let recent = self.recent();
        let len = u64::try_from(recent.len()).ok().filter(|len| *len > 0)?;
        usize::try_from(self.load.random.next_u64() % len).ok().and_then(|index| recent.get(index).cloned())
    }

    /// The request with one character changed where the provider's own rules notice it: in the body, else in a header,
    /// else in the query.
    fn tamper(&self, signed: &SignedRequest) -> Option<SignedRequest> {
        let mut changed = Vec::new();
        if !signed.body.is_empty() {
            let mut body = signed.body.to_vec();
            let place = usize::try_from(self.load.random.next_u64()).unwrap_or(0) % body.len();
            body[place] ^= 1;
            changed.push(SignedRequest { body: body.into(), ..signed.clone() });
        }
        for (name, value) in signed.headers.iter().filter(|(name, _)| *name != CONTENT_TYPE) {
            let mut value = value.as_bytes().to_vec();
            let Some(last) = value.iter_mut().rfind(|byte| byte.is_ascii_alphanumeric()) else { continue };
            *last = if *last == b'a' { b'b' } else { b'a' };
            let Ok(value) = HeaderValue::from_bytes(&value) else { continue };
            let mut other = signed.clone();
            other.headers.insert(name.clone(), value);
            changed.push(other);
        }
        if let Some(query) = &signed.query {
            changed.push(SignedRequest { query: Some(format!("{query}x")), ..signed.clone() });
        }
        let now = self.load.clock.now();
        changed.into_iter().find(|other| {
            let url = other.url(&self.load.public_url);
            self.load.inlet.receive(&other.inbound(&url, now)).is_err()
        })
    }

    fn recent(&self) -> std::sync::MutexGuard<'_, VecDeque<Ready>> {
        // Unwrap safety: nothing panics while it holds this lock.
        self.recent.lock().expect("not poisoned")
    }
}
