//! Finds wanted values in JSON bytes: one pass for all pointers, no tree, no recursion, no panic.
//!
//! Numbers keep their digits, strings may hold what UTF-8 text cannot (lone surrogates) as long as nobody wants them,
//! and a key that stands twice on the way to a wanted value is told apart from one that stands once.

use std::ops::Range;

mod pointers;
mod text;

use pointers::Child;
pub use pointers::{PointerError, Pointers};
pub use text::{quote, unquote};

/// Deepest nesting that is followed; beyond it the document counts as unparsable.
pub const DEPTH_MAX: usize = 1024;

/// A place that nobody wants anything of.
const NONE: u32 = u32::MAX;

/// What stands at a pointer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Bytes of the value in the scanned text, quotes and brackets included.
    pub span: Range<usize>,
    pub kind: Kind,
}

/// Kind of a JSON value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    String,
    Number,
    Bool,
    Null,
    Object,
    Array,
}

/// Result of a look at one slot.
#[derive(Debug, PartialEq, Eq)]
pub enum Lookup<'a> {
    Absent,
    One(&'a Found),
    /// A key on the way, or the value itself, stands there more than once.
    Twice,
}

/// What one pass found.
#[derive(Debug)]
pub struct Scan {
    found: Vec<Option<Found>>,
    twice: Vec<bool>,
}

impl Scan {
    /// What stands at the pointer with this slot.
    pub fn get(&self, slot: usize) -> Lookup<'_> {
        match (self.twice.get(slot), self.found.get(slot)) {
            (Some(true), _) => Lookup::Twice,
            (_, Some(Some(found))) => Lookup::One(found),
            _ => Lookup::Absent,
        }
    }
}

/// Why bytes are not JSON that we can follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    #[error("not valid UTF-8")]
    NotUtf8,
    #[error("not valid JSON at byte {0}")]
    Syntax(usize),
    #[error("nested deeper than {DEPTH_MAX}")]
    TooDeep,
}

/// Reads the whole document once; spans count from the start of `bytes`, a byte order mark included.
pub fn scan(bytes: &[u8], pointers: &Pointers) -> Result<Scan, Fault> {
    if std::str::from_utf8(bytes).is_err() {
        return Err(Fault::NotUtf8);
    }
    let at = if bytes.starts_with(b"\xef\xbb\xbf") { 3 } else { 0 };
    let mut pass = Pass {
        bytes,
        at,
        pointers,
        found: vec![None; pointers.slots],
        visits: vec![0; pointers.nodes.len()],
        stack: Vec::with_capacity(16),
    };
    pass.document()?;
    Ok(pass.finish())
}

struct Frame {
    array: bool,
    node: u32,
    index: u32,
    start: usize,
}

struct Pass<'a> {
    bytes: &'a [u8],
    at: usize,
    pointers: &'a Pointers,
    found: Vec<Option<Found>>,
    visits: Vec<u8>,
    stack: Vec<Frame>,
}

impl Pass<'_> {
    fn document(&mut self) -> Result<(), Fault> {
        let mut node = 0_u32;
        loop {
            let Some(kind_and_start) = self.open_or_scalar(&mut node)? else { continue };
            let (mut kind, mut start) = kind_and_start;
            loop {
                self.record(node, start, kind);
                self.skip_space();
                let Some(frame) = self.stack.last_mut() else {
                    return if self.at == self.bytes.len() { Ok(()) } else { Err(Fault::Syntax(self.at)) };
                };
                match self.bytes.get(self.at) {
                    Some(b',') => {
                        self.at += 1;
                        frame.index += 1;
                        node = self.next_member()?;
                        break;
                    }
                    Some(b']') if frame.array => kind = Kind::Array,
                    Some(b'}') if !frame.array => kind = Kind::Object,
                    _ => return Err(Fault::Syntax(self.at)),
                }
                self.at += 1;
                if let Some(frame) = self.stack.pop() {
                    node = frame.node;
                    start = frame.start;
                }
            }
        }
    }

    /// Reads a scalar or an empty container, or enters a container and leaves `node` at its first member.
    fn open_or_scalar(&mut self, node: &mut u32) -> Result<Option<(Kind, usize)>, Fault> {
        self.skip_space();
        let start = self.at;
        let kind = match self.bytes.get(start) {
            Some(open @ (b'{' | b'[')) => {
                let array = *open == b'[';
                self.at += 1;
                self.skip_space();
                let close = if array { b']' } else { b'}' };
                if self.bytes.get(self.at) != Some(&close) {
                    if self.stack.len() >= DEPTH_MAX {
                        return Err(Fault::TooDeep);
                    }
                    self.stack.push(Frame { array, node: *node, index: 0, start });
                    *node = self.next_member()?;
                    return Ok(None);
                }
                self.at += 1;
                if array { Kind::Array } else { Kind::Object }
            }
            Some(b'"') => {
                self.string()?;
                Kind::String
            }
            Some(b'-' | b'0'..=b'9') => {
                self.number()?;
                Kind::Number
            }
            Some(b't') => self.word(b"true", Kind::Bool)?,
            Some(b'f') => self.word(b"false", Kind::Bool)?,
            Some(b'n') => self.word(b"null", Kind::Null)?,
            _ => return Err(Fault::Syntax(start)),
        };
        Ok(Some((kind, start)))
    }

    /// The node of the member that begins here; in an object its key and colon are read.
    fn next_member(&mut self) -> Result<u32, Fault> {
        let Some(&Frame { array, node, index, .. }) = self.stack.last() else { return Ok(NONE) };
        let child = if array {
            self.children(node).iter().find(|child| child.index == Some(index)).map(|child| child.node)
        } else {
            self.skip_space();
            let start = self.at;
            if self.bytes.get(start) != Some(&b'"') {
                return Err(Fault::Syntax(start));
            }
            let escaped = self.string()?;
            let raw = &self.bytes[start..self.at];
            self.skip_space();
            if self.bytes.get(self.at) != Some(&b':') {
                return Err(Fault::Syntax(self.at));
            }
            self.at += 1;
            self.find_child(node, raw, escaped)
        };
        if let Some(child) = child {
            let visits = &mut self.visits[child as usize];
            *visits = visits.saturating_add(1);
        }
        Ok(child.unwrap_or(NONE))
    }

    fn children(&self, node: u32) -> &[Child] {
        self.pointers.nodes.get(node as usize).map_or(&[], |node| &node.children)
    }

    fn find_child(&self, node: u32, quoted: &[u8], escaped: bool) -> Option<u32> {
        let children = self.children(node);
        if children.is_empty() {
            return None;
        }
        let same = |key: &[u8]| children.iter().find(|child| child.key.as_bytes() == key).map(|child| child.node);
        if escaped { unquote(quoted).and_then(|key| same(key.as_bytes())) } else { same(&quoted[1..quoted.len() - 1]) }
    }

    fn record(&mut self, node: u32, start: usize, kind: Kind) {
        if let Some(slot) = self.pointers.nodes.get(node as usize).and_then(|node| node.slot) {
            self.found[slot] = Some(Found { span: start..self.at, kind });
        }
    }

    fn finish(self) -> Scan {
        let mut twice = vec![false; self.found.len()];
        let mut bad = vec![false; self.pointers.nodes.len()];
        // A node's parent always stands before it.
        for (index, node) in self.pointers.nodes.iter().enumerate() {
            let above = bad.get(node.parent as usize).copied().unwrap_or(false);
            bad[index] = above || self.visits[index] > 1;
            if let Some(slot) = node.slot {
                twice[slot] = bad[index];
            }
        }
        Scan { found: self.found, twice }
    }

    fn skip_space(&mut self) {
        while matches!(self.bytes.get(self.at), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn word(&mut self, word: &[u8], kind: Kind) -> Result<Kind, Fault> {
        if !self.bytes[self.at..].starts_with(word) {
            return Err(Fault::Syntax(self.at));
        }
        self.at += word.len();
        Ok(kind)
    }

    /// Reads a string from its opening to past its closing quote; true if it holds an escape.
    fn string(&mut self) -> Result<bool, Fault> {
        let mut escaped = false;
        self.at += 1;
        loop {
            match self.bytes.get(self.at) {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(escaped);
                }
                Some(b'\\') => {
                    escaped = true;
                    let length = match self.bytes.get(self.at + 1) {
                        Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => 2,
                        Some(b'u') if self.bytes.get(self.at + 2..self.at + 6).is_some_and(all_hex) => 6,
                        _ => return Err(Fault::Syntax(self.at)),
                    };
                    self.at += length;
                }
                Some(0..0x20) | None => return Err(Fault::Syntax(self.at)),
                Some(_) => self.at += 1,
            }
        }
    }

    fn number(&mut self) -> Result<(), Fault> {
        if self.bytes.get(self.at) == Some(&b'-') {
            self.at += 1;
        }
        if self.bytes.get(self.at) == Some(&b'0') {
            self.at += 1;
        } else {
            self.digits()?;
        }
        if self.bytes.get(self.at) == Some(&b'.') {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.bytes.get(self.at), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.bytes.get(self.at), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(())
    }

    fn digits(&mut self) -> Result<(), Fault> {
        let start = self.at;
        while matches!(self.bytes.get(self.at), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        if self.at == start { Err(Fault::Syntax(start)) } else { Ok(()) }
    }
}

fn all_hex(bytes: &[u8]) -> bool {
    bytes.iter().all(u8::is_ascii_hexdigit)
}

/// Spans of the members of the array at `array` in a document that [`scan`] has read; at most `max` and one more.
pub fn elements(bytes: &[u8], array: Range<usize>, max: usize) -> Vec<Range<usize>> {
    let mut spans = Vec::new();
    let (mut at, end) = (array.start + 1, array.end.saturating_sub(1));
    while spans.len() <= max {
        while at < end && matches!(bytes[at], b' ' | b'\t' | b'\n' | b'\r' | b',') {
            at += 1;
        }
        if at >= end {
            break;
        }
        let stop = value_end(bytes, at, end);
        spans.push(at..stop);
        at = stop;
    }
    spans
}

/// Where the value that begins at `at` ends, in JSON known to be well formed.
fn value_end(bytes: &[u8], mut at: usize, end: usize) -> usize {
    let mut depth = 0_usize;
    let mut quoted = false;
    while at < end {
        match (quoted, bytes[at]) {
            (true, b'\\') => at += 1,
            (true, b'"') => {
                quoted = false;
                if depth == 0 {
                    return at + 1;
                }
            }
            (true, _) => {}
            (false, b'"') => quoted = true,
            (false, b'{' | b'[') => depth += 1,
            (false, b'}' | b']') => {
                depth -= 1;
                if depth == 0 {
                    return at + 1;
                }
            }
            (false, b',' | b' ' | b'\t' | b'\n' | b'\r') if depth == 0 => return at,
            (false, _) => {}
        }
        at += 1;
    }
    end
}

#[cfg(test)]
mod tests;
