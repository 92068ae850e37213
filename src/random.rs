//! The only source of randomness: ids, jitter and slots draw from a parameter, so that tests can repeat a run.

use std::sync::Mutex;

/// Source of random bytes.
pub trait Random: Send + Sync + 'static {
    /// Fills `bytes`.
    fn fill(&self, bytes: &mut [u8]);

    /// A number in `0..=u64::MAX`, every value as likely.
    fn next_u64(&self) -> u64 {
        let mut bytes = [0; 8];
        self.fill(&mut bytes);
        u64::from_le_bytes(bytes)
    }

    /// A fraction in `0.0..1.0`.
    #[expect(clippy::cast_precision_loss, reason = "53 bits fit a double exactly")]
    fn next_fraction(&self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// Bytes drawn from the operating system at once: an event needs four ids, and each draw is a system call.
#[cfg(feature = "server")]
const POOL_BYTES: usize = 1024;

/// The operating system's generator, drawn from in small lots. No byte is given out twice.
#[cfg(feature = "server")]
pub struct SystemRandom {
    system: ring::rand::SystemRandom,
    pool: Mutex<Pool>,
}

#[cfg(feature = "server")]
struct Pool {
    bytes: zeroize::Zeroizing<[u8; POOL_BYTES]>,
    /// How many of them are still unused; they are the first ones.
    left: usize,
}

#[cfg(feature = "server")]
impl std::fmt::Debug for SystemRandom {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SystemRandom")
    }
}

#[cfg(feature = "server")]
impl SystemRandom {
    /// The one generator of the process; hand it on as `&dyn Random`.
    #[expect(clippy::disallowed_methods, reason = "this is the one place that makes it")]
    pub fn new() -> Self {
        let pool = Pool { bytes: zeroize::Zeroizing::new([0; POOL_BYTES]), left: 0 };
        Self { system: ring::rand::SystemRandom::new(), pool: Mutex::new(pool) }
    }
}

#[cfg(feature = "server")]
impl Default for SystemRandom {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(feature = "server")]
impl Random for SystemRandom {
    fn fill(&self, bytes: &mut [u8]) {
        let draw = |bytes: &mut [u8]| {
            // Unwrap safety: ring fails only where the kernel has no random source, and then no id or key may be made at all.
            ring::rand::SecureRandom::fill(&self.system, bytes).expect("the operating system gives random bytes");
        };
        // What is long is most likely a key: it takes its own draw.
        if bytes.len() > 16 {
            return draw(bytes);
        }
        // Unwrap safety: a draw that panicked has left nothing to be taken.
        let mut pool = self.pool.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if pool.left < bytes.len() {
            pool.left = 0;
            draw(&mut *pool.bytes);
            pool.left = POOL_BYTES;
        }
        let from = pool.left - bytes.len();
        let taken = &mut pool.bytes[from..from + bytes.len()];
        bytes.copy_from_slice(taken);
        taken.fill(0);
        pool.left = from;
    }
}

/// A generator that repeats itself from its seed (SplitMix64); for tests and simulations only.
#[derive(Debug)]
pub struct SeededRandom(Mutex<u64>);

impl SeededRandom {
    /// Starts at `seed`; print it, so that a failure can be run again.
    pub fn new(seed: u64) -> Self {
        Self(Mutex::new(seed))
    }
}

impl Random for SeededRandom {
    fn fill(&self, bytes: &mut [u8]) {
        // Unwrap safety: nothing panics while it holds this lock.
        let mut state = self.0.lock().expect("not poisoned");
        for chunk in bytes.chunks_mut(8) {
            *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = *state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^= z >> 31;
            chunk.copy_from_slice(&z.to_le_bytes()[..chunk.len()]);
        }
    }
}
