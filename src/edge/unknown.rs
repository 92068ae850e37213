//! The last distinct paths that led to no source, for the operator who mistyped one at the provider. In memory only.

use std::collections::VecDeque;
use std::sync::Mutex;

/// Distinct paths that are kept.
const PATHS_MAX: usize = 100;
/// Characters of a path that are kept, after escaping.
const PATH_CHARS_MAX: usize = 200;

/// A path that led nowhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownPath {
    /// Escaped to printable ASCII and cut to 200 characters; still a stranger's text.
    pub path: String,
    pub count: u64,
    /// UTC microseconds.
    pub last_at: i64,
}

/// Keeps what came last.
#[derive(Debug, Default)]
pub(super) struct UnknownPaths(Mutex<VecDeque<UnknownPath>>);

impl UnknownPaths {
    pub fn note(&self, path: &str, at: i64) {
        let path: String =
            path.chars().take(PATH_CHARS_MAX).flat_map(char::escape_default).take(PATH_CHARS_MAX).collect();
        // Unwrap safety: nothing panics while it holds this lock.
        let mut kept = self.0.lock().expect("not poisoned");
        let mut entry = match kept.iter().position(|known| known.path == path).and_then(|index| kept.remove(index)) {
            Some(known) => known,
            None => UnknownPath { path, count: 0, last_at: at },
        };
        entry.count += 1;
        entry.last_at = at;
        if kept.len() >= PATHS_MAX {
            kept.pop_back();
        }
        kept.push_front(entry);
    }

    /// The latest first.
    pub fn list(&self) -> Vec<UnknownPath> {
        // Unwrap safety: nothing panics while it holds this lock.
        self.0.lock().expect("not poisoned").iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_hundred_distinct_paths_are_kept_bounded_and_escaped() {
        let unknown = UnknownPaths::default();
        unknown.note("/in/first", 1);
        for index in 0..100 {
            unknown.note(&format!("/in/{index}"), 2);
            unknown.note("/in/again", 3);
        }
        unknown.note(&format!("/\u{1b}[31m\n{}", "x".repeat(5000)), 4);
        let kept = unknown.list();
        assert_eq!(kept.len(), PATHS_MAX);
        assert!(!kept.iter().any(|entry| entry.path == "/in/first"));
        assert_eq!(kept[1], UnknownPath { path: "/in/again".to_owned(), count: 100, last_at: 3 });
        assert!(kept[0].path.starts_with("/\\u{1b}[31m\\nxxx") && kept[0].path.len() == PATH_CHARS_MAX);
    }
}
