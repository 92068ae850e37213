use std::time::Duration;

use proptest::prelude::*;

use super::*;

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn preset(name: &str) -> RetryPolicy {
    RetryPolicy::preset(name).expect("a preset")
}

/// The waits of a whole series at one random fraction; each try fails at once.
fn series(policy: &RetryPolicy, fraction: f64) -> Vec<Duration> {
    let (mut now, mut waits) = (0_i64, Vec::new());
    for tries in 1.. {
        match policy.next(tries, 0, now, None, fraction) {
            Next::After(wait) => {
                now += i64::try_from(wait.as_micros()).expect("fits");
                waits.push(wait);
            }
            Next::Exhausted => return waits,
        }
    }
    unreachable!("a policy ends")
}

fn without_jitter(name: &str) -> RetryPolicy {
    RetryPolicy { jitter_min: 0.0, jitter_max: 0.0, ..preset(name) }
}

#[test]
fn standard_tries_seven_times_at_the_published_moments() {
    let waits = series(&without_jitter("standard"), 0.5);
    let moments: Vec<u64> = waits
        .iter()
        .scan(0, |at, wait| {
            *at += wait.as_secs();
            Some(*at)
        })
        .collect();
    assert_eq!(moments, [5, 35, 155, 755, 4355, 25_955]);
    assert_eq!(preset("standard").attempts(), 7);
    assert_eq!(preset("standard").total_max, seconds(86_400));
}

#[test]
fn standard_lengthens_each_wait_by_ten_to_twenty_percent() {
    let lowest = series(&preset("standard"), 0.0);
    let highest = series(&preset("standard"), 1.0);
    assert_eq!(lowest[..3], [5500, 33_000, 132_000].map(Duration::from_millis));
    assert_eq!(highest[..3], [6000, 36_000, 144_000].map(Duration::from_millis));
}

#[test]
fn short_has_six_tries_and_shortens_as_well_as_lengthens() {
    let policy = preset("short");
    assert_eq!(policy.attempts(), 6);
    let ranges: Vec<(u64, u64)> = policy
        .waits
        .iter()
        .map(|wait| {
            let (low, high) = policy.range(*wait);
            (low.as_secs(), high.as_secs())
        })
        .collect();
    assert_eq!(ranges, [(4, 6), (8, 12), (16, 24), (32, 48), (64, 96)]);
    assert_eq!(series(&policy, 0.0)[0], seconds(4));
    assert_eq!(series(&policy, 0.5)[0], seconds(5));
    assert_eq!(series(&policy, 1.0)[0], seconds(6));
}

#[test]
fn capped_doubles_from_a_second_and_never_passes_thirty_before_jitter() {
    let policy = preset("capped");
    assert_eq!(policy.waits, [1, 2, 4, 8, 16].map(seconds));
    assert_eq!(series(&policy, 1.0)[4], Duration::from_millis(19_200));
    let limits = RetryLimits { jitter: Jitter { min: 0.0, max: 0.0, both: false }, ..RetryLimits::default() };
    let longer = RetryPolicy::exponential(seconds(1), 2.0, seconds(30), 8, limits).expect("legal");
    assert_eq!(longer.waits, [1, 2, 4, 8, 16, 30, 30].map(seconds));
}

#[test]
fn day_has_ten_tries_within_twenty_six_hours_at_any_jitter() {
    let policy = preset("day");
    assert_eq!(policy.attempts(), 10);
    assert_eq!(policy.waits, [5, 30, 120, 600, 3600, 7200, 14_400, 21_600, 28_800].map(seconds));
    assert_eq!(series(&policy, 1.0).len(), 9, "the longest jitter still reaches the last try");
}

#[test]
fn two_seconds_doubled_and_eight_seconds_both_ways() {
    let limits = RetryLimits { jitter: Jitter { min: 0.0, max: 0.0, both: false }, ..RetryLimits::default() };
    let doubled = RetryPolicy::exponential(seconds(2), 2.0, seconds(60), 5, limits).expect("legal");
    assert_eq!(series(&doubled, 0.3), [2, 4, 8, 16].map(seconds));

    let limits = RetryLimits { jitter: Jitter { min: 0.0, max: 0.1875, both: true }, ..RetryLimits::default() };
    let both = RetryPolicy::schedule(vec![seconds(8)], limits).expect("legal");
    assert_eq!(both.range(seconds(8)), (Duration::from_millis(6500), Duration::from_millis(9500)));
}

#[test]
fn the_total_ends_a_series_before_its_tries_do() {
    let policy = RetryPolicy { total_max: seconds(100), ..without_jitter("standard") };
    assert_eq!(policy.next(2, 0, 70_000_000, None, 0.0), Next::After(seconds(30)));
    assert_eq!(policy.next(2, 0, 70_000_001, None, 0.0), Next::Exhausted);
}

#[test]
fn retry_after_lengthens_within_its_bound_and_never_shortens() {
    let policy = without_jitter("standard");
    let next = |asked| policy.next(1, 0, 0, Some(seconds(asked)), 0.0);
    assert_eq!(next(1), Next::After(seconds(5)));
    assert_eq!(next(60), Next::After(seconds(60)));
    assert_eq!(next(999_999), Next::After(seconds(3600)));
    let spread = preset("standard");
    assert_ne!(
        spread.next(1, 0, 0, Some(seconds(60)), 0.1),
        spread.next(1, 0, 0, Some(seconds(60)), 0.9),
        "one wish for many jobs still spreads them"
    );
}

#[test]
fn a_policy_without_an_end_is_refused() {
    let limits = RetryLimits::default();
    let refused = |made: Result<RetryPolicy, RetryError>| made.expect_err("refused").code();
    assert_eq!(refused(RetryPolicy::schedule(vec![seconds(1); 100], limits)), "retry_tries");
    assert_eq!(refused(RetryPolicy::exponential(seconds(1), 2.0, seconds(9), 101, limits)), "retry_tries");
    assert_eq!(refused(RetryPolicy::exponential(seconds(1), 2.0, seconds(9), 0, limits)), "retry_tries");
    assert_eq!(refused(RetryPolicy::exponential(seconds(1), 0.5, seconds(9), 5, limits)), "retry_factor");
    assert_eq!(refused(RetryPolicy::exponential(seconds(1), f64::NAN, seconds(9), 5, limits)), "retry_factor");
    assert_eq!(refused(RetryPolicy::schedule(vec![Duration::ZERO], limits)), "retry_wait");
    assert_eq!(refused(RetryPolicy::schedule(vec![Duration::MAX], limits)), "retry_wait");
    assert_eq!(refused(RetryPolicy::exponential(seconds(1), 2.0, Duration::MAX, 5, limits)), "retry_wait");
    let endless = RetryLimits { total_max: Duration::MAX, ..limits };
    assert_eq!(refused(RetryPolicy::schedule(vec![seconds(1)], endless)), "retry_total_max");
    let never = RetryLimits { total_max: Duration::ZERO, ..limits };
    assert_eq!(refused(RetryPolicy::schedule(vec![seconds(1)], never)), "retry_total_max");
    for jitter in [(-0.1, 0.2, false), (0.3, 0.2, false), (0.0, 1.1, false), (0.0, 1.0, true), (0.0, f64::NAN, false)] {
        let jitter = Jitter { min: jitter.0, max: jitter.1, both: jitter.2 };
        assert_eq!(refused(RetryPolicy::schedule(vec![seconds(1)], RetryLimits { jitter, ..limits })), "retry_jitter");
    }
}

#[test]
fn every_named_preset_loads_and_no_other() {
    for name in PRESETS {
        let policy = preset(name);
        assert!((5..=10).contains(&policy.attempts()), "{name}");
    }
    assert_eq!(RetryPolicy::preset("for-ever"), None);
}

#[test]
fn a_thousand_jobs_that_fail_together_do_not_come_back_together() {
    let policy = preset("standard");
    let mut waits: Vec<Duration> = (0..1000)
        .map(|n| match policy.next(5, 0, 0, None, f64::from(n) / 1000.0) {
            Next::After(wait) => wait,
            Next::Exhausted => panic!("not yet"),
        })
        .collect();
    waits.sort_unstable();
    let fullest = waits.iter().map(|wait| waits.iter().filter(|w| w.as_secs() == wait.as_secs()).count()).max();
    assert!(fullest.expect("some") <= 4, "an hour's wait spreads over six minutes: {fullest:?} in one second");
}

proptest! {
    #[test]
    fn waits_stay_in_their_range_and_series_end(
        base_ms in 1_u64..100_000,
        factor in 1.0_f64..10.0,
        tries in 1_usize..20,
        min in 0.0_f64..0.5,
        more in 0.0_f64..0.4,
        both: bool,
        fraction in 0.0_f64..1.0,
    ) {
        let jitter = Jitter { min, max: min + more, both };
        let limits = RetryLimits { jitter, total_max: TOTAL_MAX, ..RetryLimits::default() };
        let policy = RetryPolicy::exponential(Duration::from_millis(base_ms), factor, seconds(3600), tries, limits).expect("legal");
        let waits = series(&policy, fraction);
        prop_assert!(waits.len() < tries.max(1) + 1);
        for (wait, base) in waits.iter().zip(&policy.waits) {
            let (low, high) = policy.range(*base);
            let slack = Duration::from_micros(1);
            prop_assert!(*wait + slack >= low && *wait <= high + slack, "{wait:?} of {low:?}..{high:?}");
        }
        prop_assert!(policy.waits.windows(2).all(|pair| pair[0] <= pair[1]), "waits grow");
    }
}
