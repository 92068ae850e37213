//! Which events a subscription wants.

use std::fmt;
use std::str::FromStr;

use super::receipt::{Mode, Receipt};

/// What a filter looks at; borrowed from the event.
#[derive(Debug, Clone, Copy)]
pub struct EventFacts<'a> {
    pub source: &'a str,
    pub provider: &'a str,
    pub account: &'a str,
    pub mode: Mode,
    pub event_type: &'a str,
}

impl<'a> EventFacts<'a> {
    /// Those of a receipt whose event came through `source`.
    pub fn of(receipt: &'a Receipt, source: &'a str) -> Self {
        Self {
            source,
            provider: &receipt.key.provider,
            account: &receipt.key.account,
            mode: receipt.mode,
            event_type: &receipt.event_type,
        }
    }
}

/// A subscription's filter; an empty list takes everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    pub sources: Vec<String>,
    pub providers: Vec<String>,
    pub accounts: Vec<String>,
    pub modes: Vec<Mode>,
    /// Compiled once, when the configuration is read.
    pub types: Vec<Glob>,
}

impl Filter {
    /// Whether the event is wanted: each list that is not empty has to name it.
    pub fn takes(&self, facts: &EventFacts<'_>) -> bool {
        named(&self.sources, facts.source)
            && named(&self.providers, facts.provider)
            && named(&self.accounts, facts.account)
            && (self.modes.is_empty() || self.modes.contains(&facts.mode))
            && (self.types.is_empty() || self.types.iter().any(|glob| glob.matches(facts.event_type)))
    }

    /// Compiles the patterns over event types; says of every bad one what is wrong with it.
    pub fn compile_types<'a>(patterns: impl IntoIterator<Item = &'a str>) -> Result<Vec<Glob>, Vec<GlobError>> {
        let (mut globs, mut errors) = (Vec::new(), Vec::new());
        for pattern in patterns {
            match pattern.parse() {
                Ok(glob) => globs.push(glob),
                Err(error) => errors.push(error),
            }
        }
        if errors.is_empty() { Ok(globs) } else { Err(errors) }
    }
}

fn named(list: &[String], name: &str) -> bool {
    list.is_empty() || list.iter().any(|entry| entry == name)
}

/// A pattern over event types. `.` and `/` separate parts and count as the same; `*` is one part, `**` any number of parts,
/// none included. Everything else stands for itself, capitals and all.
#[derive(Clone, PartialEq, Eq)]
pub struct Glob {
    text: String,
    parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Literal(String),
    One,
    Any,
}

/// Longest pattern.
pub const GLOB_BYTES_MAX: usize = 255;
/// Most parts of a pattern; with the greedy match below it bounds the work for one event.
pub const GLOB_PARTS_MAX: usize = 32;

/// Why a pattern is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GlobError {
    #[error("a pattern may not be empty, or have an empty part: `{0}`")]
    Empty(String),
    #[error("`*` and `**` stand for whole parts, so `{0}` has to say the rest by parts too")]
    MixedPart(String),
    #[error("a pattern has at most {GLOB_BYTES_MAX} bytes and {GLOB_PARTS_MAX} parts")]
    TooLong,
}

impl GlobError {
    pub fn code(&self) -> &'static str {
        match self {
            Self::Empty(_) => "pattern_empty",
            Self::MixedPart(_) => "pattern_mixed_part",
            Self::TooLong => "pattern_too_long",
        }
    }
}

impl Glob {
    /// Whether the pattern takes an event type.
    pub fn matches(&self, event_type: &str) -> bool {
        let mut rest = event_type.split(SEPARATORS);
        let mut position = 0;
        // After a `**`: where the pattern goes on, and the parts from which it may be tried again.
        let mut retry: Option<(usize, std::str::Split<'_, [char; 2]>)> = None;
        loop {
            let before = rest.clone();
            let next = rest.next();
            match (self.parts.get(position), next) {
                (None, None) => return true,
                (Some(Part::Any), _) => {
                    position += 1;
                    rest = before;
                    retry = Some((position, rest.clone()));
                    continue;
                }
                (Some(Part::One), Some(_)) => {
                    position += 1;
                    continue;
                }
                (Some(Part::Literal(literal)), Some(part)) if literal == part => {
                    position += 1;
                    continue;
                }
                _ => {}
            }
            // A mismatch: let the last `**` take one part more.
            let Some((resume, from)) = &mut retry else { return false };
            if from.next().is_none() {
                return false;
            }
            position = *resume;
            rest = from.clone();
        }
    }

    /// The pattern as written.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

const SEPARATORS: [char; 2] = ['.', '/'];

impl FromStr for Glob {
    type Err = GlobError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.len() > GLOB_BYTES_MAX || text.split(SEPARATORS).count() > GLOB_PARTS_MAX {
            return Err(GlobError::TooLong);
        }
        let parts = text
            .split(SEPARATORS)
            .map(|part| match part {
                "" => Err(GlobError::Empty(text.to_owned())),
                "*" => Ok(Part::One),
                "**" => Ok(Part::Any),
                mixed if mixed.contains('*') => Err(GlobError::MixedPart(text.to_owned())),
                literal => Ok(Part::Literal(literal.to_owned())),
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { text: text.to_owned(), parts })
    }
}

impl fmt::Debug for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.text, f)
    }
}

impl fmt::Display for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests;
