use futures_util::FutureExt;

use super::*;
use crate::clock::MockClock;
use crate::model::attempt::Trigger;
use crate::model::id::PayloadId;
use crate::model::job::{Job, JobState, Lane};
use crate::model::receipt::{EventKey, Mode, Origin, Receipt};
use crate::process::fake::{FakeStore, job, report, subscriptions, token_key};

fn badge(n: u128) -> JobKey {
    JobKey { subscription: "badges".into(), ..job(n) }
}

fn claimed(n: u128) -> ClaimedJob {
    let key = badge(n);
    let receipt = Receipt {
        id: key.receipt,
        key: EventKey { provider: "stripe".into(), account: "acct_1".into(), event_id: "evt_1".into() },
        provider_ref: "evt_1".into(),
        mode: Mode::Live,
        source: "eu".into(),
        event_type: "invoice.paid".into(),
        occurred_at: None,
        received_at: 5,
        resource_key: None,
        resource_version: None,
        payload_id: Some(PayloadId(uuid::Uuid::nil())),
        pointer: None,
        part: None,
        item_sha256: None,
        signed_sha256: None,
        verified_by: None,
        origin: Origin::Delivery,
        flags: String::new(),
        hold_reason: None,
        duplicates: 0,
        last_delivered_at: None,
    };
    let job = Job {
        key,
        source: "eu".into(),
        state: JobState::Running,
        attempt: 2,
        series: 1,
        series_attempts: 2,
        first_attempt_at: Some(1),
        next_attempt_at: None,
        leased_until: Some(9),
        handed_at: None,
        lane: Lane::Fresh,
        resource_key: None,
        turn_key: None,
        reason: None,
        fingerprint: None,
        assignee: None,
        note: None,
        rearms: 0,
        created_at: 1,
        finished_at: None,
    };
    let body = bytes::Bytes::from_static(b"{\"id\": 1.0}\xff");
    ClaimedJob { job, trigger: Trigger::Retry, receipt, content_type: "application/json".into(), body, leased_until: 9 }
}

fn pull(store: &Arc<FakeStore>) -> Pull {
    let jobs: Arc<dyn Jobs> = store.clone();
    let clock = Arc::new(MockClock::at(0));
    Pull::new(PullConfig::default(), jobs, subscriptions(), token_key(), clock, CancellationToken::new())
}

fn queued(answers: Vec<Vec<ClaimedJob>>) -> Arc<FakeStore> {
    Arc::new(FakeStore { claims: std::sync::Mutex::new(answers.into()), ..FakeStore::default() })
}

#[tokio::test]
async fn a_claim_gives_the_exact_bytes_and_a_token_that_finishes_it() {
    let store = queued(vec![vec![claimed(1)]]);
    let pull = pull(&store);
    let answer = pull.claim("badges", &ClaimBody::default(), "worker").await.expect("claimed");
    let given = &answer.jobs[0];
    assert_eq!((given.attempt, given.attempts_max, given.trigger), (2, 7, "retry"));
    assert_eq!(given.body_base64, "eyJpZCI6IDEuMH3/");
    assert!(token_key().is_token(&given.token, &badge(1), 2));
    assert_eq!(given.operation_key, given.receipt);
    assert_eq!(store.asked(), ["claim badges 1 300s"]);

    let extended =
        pull.extend(&badge(1), &ExtendBody { attempt: 2, token: given.token.clone(), lease_s: Some(60) }).await;
    assert_eq!(extended.expect("extended").lease_s, 60);
    let done = pull.outcome(&badge(1), &report(&badge(1), 2, "completed", ""), "worker").await.expect("done");
    assert_eq!((done.verdict, done.state), ("applied", Some("completed")));
}

#[tokio::test]
async fn every_refusal_has_its_code_and_its_status() {
    let pull = pull(&queued(Vec::new()));
    let claim = async |name: &str, max, wait_s| {
        let refused = pull.claim(name, &ClaimBody { max, wait_s }, "w").await.expect_err("refused");
        (refused.code(), refused.status())
    };
    assert_eq!(claim("nobody", None, None).await, ("subscription_unknown", 404));
    assert_eq!(claim("billing", None, None).await, ("subscription_not_pull", 409));
    assert_eq!(claim("badges", Some(0), None).await, ("out_of_range", 400));
    assert_eq!(claim("badges", Some(101), None).await, ("out_of_range", 400));
    assert_eq!(claim("badges", None, Some(31)).await, ("out_of_range", 400));

    let extend = async |attempt, token: &str, lease_s| {
        let body = ExtendBody { attempt, token: token.to_owned(), lease_s };
        let refused = pull.extend(&badge(1), &body).await.expect_err("refused");
        (refused.code(), refused.status())
    };
    let token = token_key().token(&badge(1), 1);
    assert_eq!(extend(1, "", None).await, ("token_wrong", 403));
    assert_eq!(extend(2, &token, None).await, ("token_wrong", 403));
    assert_eq!(extend(1, &token, Some(0)).await, ("out_of_range", 400));
    assert_eq!(extend(1, &token, Some(86_401)).await, ("out_of_range", 400));

    let recorder = crate::metrics::builder().expect("buckets").build_recorder();
    let counting = ::metrics::set_default_local_recorder(&recorder);
    let outcome = async |of: &JobKey, body: Vec<u8>| {
        let refused = pull.outcome(of, &body, "w").await.expect_err("refused");
        (refused.code(), refused.status())
    };
    assert_eq!(outcome(&badge(1), b"{}".to_vec()).await, ("report_malformed", 400));
    assert_eq!(outcome(&badge(1), vec![b' '; 70_000]).await, ("report_too_large", 413));
    assert_eq!(outcome(&badge(2), report(&badge(1), 1, "failed", "")).await, ("path_mismatch", 400));
    assert_eq!(outcome(&badge(1), report(&badge(1), 1, "started", "")).await, ("no_such_job", 404));
    assert_eq!(outcome(&badge(1), report(&badge(1), 1, "rejected", "")).await, ("no_such_attempt", 409));
    drop(counting);
    let shown = recorder.handle().render();
    for code in ["report_malformed", "report_too_large", "path_mismatch", "no_such_job", "no_such_attempt"] {
        assert!(shown.contains(&format!("makbuz_bad_reports_total{{code=\"{code}\"}} 1")), "{code}: {shown}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_waits_for_work_and_no_longer_than_asked() {
    let store = queued(vec![Vec::new(), Vec::new(), vec![claimed(1)]]);
    let waiting = pull(&store);
    let began = Instant::now();
    let answer = waiting.claim("badges", &ClaimBody { max: None, wait_s: Some(20) }, "w").await.expect("claimed");
    assert_eq!(answer.jobs.len(), 1);
    assert_eq!(began.elapsed_ms(), 1000, "two looks in vain, half a second apart");

    let began = Instant::now();
    let answer = waiting.claim("badges", &ClaimBody { max: None, wait_s: Some(2) }, "w").await.expect("empty");
    assert!(answer.jobs.is_empty());
    assert_eq!(began.elapsed_ms(), 2000);
}

#[tokio::test(start_paused = true)]
async fn a_stop_does_not_wait_for_those_who_wait() {
    let config = PullConfig { look_every: Duration::from_secs(3600), ..PullConfig::default() };
    let stop = CancellationToken::new();
    let jobs: Arc<dyn Jobs> = queued(vec![Vec::new()]);
    let pull =
        Arc::new(Pull::new(config, jobs, subscriptions(), token_key(), Arc::new(MockClock::at(0)), stop.clone()));
    let body = ClaimBody { max: None, wait_s: Some(30) };

    let began = Instant::now();
    let (answer, ()) = tokio::join!(pull.claim("badges", &body, "w"), async { stop.cancel() });
    assert!(answer.expect("empty").jobs.is_empty());
    assert_eq!(began.elapsed_ms(), 0);
}

#[tokio::test(start_paused = true)]
async fn claims_past_the_bound_answer_at_once() {
    let config = PullConfig { waiting_max: 1, ..PullConfig::default() };
    let jobs: Arc<dyn Jobs> = queued(Vec::new());
    let pull =
        Pull::new(config, jobs, subscriptions(), token_key(), Arc::new(MockClock::at(0)), CancellationToken::new());
    let body = ClaimBody { max: None, wait_s: Some(10) };
    let began = Instant::now();
    tokio::select! {
        biased;
        _ = pull.claim("badges", &body, "first") => panic!("the first waits"),
        answer = pull.claim("badges", &body, "second") => assert!(answer.expect("empty").jobs.is_empty()),
    }
    assert_eq!(began.elapsed_ms(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_does_not_wait_takes_no_seat() {
    let config = PullConfig { waiting_max: 1, ..PullConfig::default() };
    let jobs: Arc<dyn Jobs> = queued(Vec::new());
    let pull =
        Pull::new(config, jobs, subscriptions(), token_key(), Arc::new(MockClock::at(0)), CancellationToken::new());
    let (quick, patient) = (ClaimBody { max: None, wait_s: None }, ClaimBody { max: None, wait_s: Some(10) });
    let mut looks = std::pin::pin!(pull.claim("badges", &quick, "first"));
    assert!((&mut looks).now_or_never().is_none(), "its look is under way");
    let began = Instant::now();
    assert!(pull.claim("badges", &patient, "second").await.expect("empty").jobs.is_empty());
    assert_eq!(began.elapsed_ms(), 10_000, "the second waits");
    assert!(looks.await.expect("empty").jobs.is_empty());
}

trait Elapsed {
    fn elapsed_ms(&self) -> u128;
}

impl Elapsed for Instant {
    fn elapsed_ms(&self) -> u128 {
        Instant::now().duration_since(*self).as_millis()
    }
}
