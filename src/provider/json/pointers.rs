//! JSON pointers as a tree, so that one pass serves them all.

use super::NONE;

/// A set of JSON pointers, compiled once.
#[derive(Debug, Clone)]
pub struct Pointers {
    pub(super) nodes: Vec<Node>,
    pub(super) slots: usize,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Node {
    pub parent: u32,
    pub children: Vec<Child>,
    pub slot: Option<usize>,
}

#[derive(Debug, Clone)]
pub(super) struct Child {
    pub key: Box<str>,
    /// The key read as an array index.
    pub index: Option<u32>,
    pub node: u32,
}

impl Default for Pointers {
    fn default() -> Self {
        Self { nodes: vec![Node { parent: NONE, ..Node::default() }], slots: 0 }
    }
}

impl Pointers {
    /// Adds an RFC 6901 pointer (`""` is the whole document) and returns its slot; the same pointer has one slot.
    pub fn add(&mut self, pointer: &str) -> Result<usize, PointerError> {
        let mut at = 0_u32;
        if !pointer.is_empty() {
            let Some(rest) = pointer.strip_prefix('/') else { return Err(PointerError) };
            for segment in rest.split('/') {
                at = self.child(at, &unescape_segment(segment)?);
            }
        }
        let node = &mut self.nodes[at as usize];
        if node.slot.is_none() {
            node.slot = Some(self.slots);
            self.slots += 1;
        }
        node.slot.ok_or(PointerError)
    }

    /// How many slots there are.
    pub fn len(&self) -> usize {
        self.slots
    }

    /// Whether nothing is wanted.
    pub fn is_empty(&self) -> bool {
        self.slots == 0
    }

    fn child(&mut self, parent: u32, key: &str) -> u32 {
        if let Some(child) = self.nodes[parent as usize].children.iter().find(|child| &*child.key == key) {
            return child.node;
        }
        let node = u32::try_from(self.nodes.len()).unwrap_or(NONE);
        let index = if key == "0" || !key.starts_with('0') { key.parse().ok() } else { None };
        self.nodes.push(Node { parent, ..Node::default() });
        self.nodes[parent as usize].children.push(Child { key: key.into(), index, node });
        node
    }
}

/// A pointer that does not start with `/` or has a stray `~`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a JSON pointer: it is empty or starts with `/`, and `~` stands only in `~0` and `~1`")]
pub struct PointerError;

fn unescape_segment(segment: &str) -> Result<String, PointerError> {
    let mut text = String::with_capacity(segment.len());
    let mut rest = segment.chars();
    while let Some(next) = rest.next() {
        match next {
            '~' => match rest.next() {
                Some('0') => text.push('~'),
                Some('1') => text.push('/'),
                _ => return Err(PointerError),
            },
            other => text.push(other),
        }
    }
    Ok(text)
}
