//! Which slot of `job_counts` a transaction counts in. Two that share one wait for each other's COMMIT, so within a process
//! the writers keep apart from each other and from the commands; between processes chance does it.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::random::Random;

/// Slots in all; slot 64 is the hourly correction's.
const SLOTS: u32 = 64;
/// How many of them, from a random start, are the writers'.
const WRITERS: u32 = 16;

pub(super) struct Slots {
    start: u32,
    writers: AtomicU32,
}

impl Slots {
    pub(super) fn new(random: &dyn Random) -> Self {
        Self { start: below(random, SLOTS), writers: AtomicU32::new(0) }
    }

    /// For a writer that begins, for as long as it lives.
    pub(super) fn of_writer(&self) -> i16 {
        slot(self.start + self.writers.fetch_add(1, Ordering::Relaxed) % WRITERS)
    }

    /// For one command.
    pub(super) fn of_command(&self, random: &dyn Random) -> i16 {
        slot(self.start + WRITERS + below(random, SLOTS - WRITERS))
    }
}

fn below(random: &dyn Random, bound: u32) -> u32 {
    u32::try_from(super::below(random, u64::from(bound))).unwrap_or(0)
}

fn slot(number: u32) -> i16 {
    i16::try_from(number % SLOTS).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::random::SeededRandom;

    #[test]
    fn writers_and_commands_of_one_process_never_share_a_slot() {
        for seed in 0..200 {
            let random = SeededRandom::new(seed);
            let slots = Slots::new(&random);
            let writers: HashSet<i16> = (0..WRITERS).map(|_| slots.of_writer()).collect();
            let commands: HashSet<i16> = (0..500).map(|_| slots.of_command(&random)).collect();
            assert_eq!(writers.len(), 16, "seed {seed}");
            assert!(writers.is_disjoint(&commands), "seed {seed}");
            assert!(writers.union(&commands).all(|slot| (0..64).contains(slot)), "seed {seed}");
        }
    }
}
