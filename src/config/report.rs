//! What is wrong with a configuration: every mistake, each with its place.

use std::cell::RefCell;
use std::fmt;
use std::ops::Range;

/// Where a value was written.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// The file as a whole (something that is absent has no line).
    File,
    /// Line of the file, from 1.
    Line(usize),
    /// A variable of the environment.
    Variable(String),
}

/// One mistake or warning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remark {
    pub place: Place,
    pub text: String,
}

/// All the mistakes of one configuration, in the order of their lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    pub file: String,
    pub mistakes: Vec<Remark>,
}

impl std::error::Error for ConfigError {}

impl ConfigError {
    /// Stable name of this kind of failure.
    pub fn code(&self) -> &'static str {
        "config"
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, remark) in self.mistakes.iter().enumerate() {
            if n > 0 {
                writeln!(f)?;
            }
            write!(f, "{}", remark.within(&self.file))?;
        }
        Ok(())
    }
}

impl Remark {
    /// The remark as one line: `makbuz.toml:12: …`.
    pub fn within(&self, file: &str) -> String {
        match &self.place {
            Place::File => format!("{file}: {}", self.text),
            Place::Line(line) => format!("{file}:{line}: {}", self.text),
            Place::Variable(name) => format!("{name}: {}", self.text),
        }
    }
}

/// Gathers remarks while a configuration is read, so that all are told at once.
pub(crate) struct Report {
    line_starts: Vec<usize>,
    mistakes: RefCell<Vec<Remark>>,
    warnings: RefCell<Vec<Remark>>,
}

impl Report {
    pub fn new(text: &str) -> Self {
        let starts = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at + 1);
        Self {
            line_starts: std::iter::once(0).chain(starts).collect(),
            mistakes: RefCell::default(),
            warnings: RefCell::default(),
        }
    }

    /// The line where `span` begins.
    pub fn place(&self, span: &Range<usize>) -> Place {
        Place::Line(self.line_starts.partition_point(|start| *start <= span.start))
    }

    pub fn mistake(&self, place: &Place, text: impl Into<String>) {
        self.mistakes.borrow_mut().push(Remark { place: place.clone(), text: text.into() });
    }

    pub fn warning(&self, place: &Place, text: impl Into<String>) {
        self.warnings.borrow_mut().push(Remark { place: place.clone(), text: text.into() });
    }

    /// The warnings, or every mistake.
    pub fn finish(self, file: &str) -> Result<Vec<Remark>, ConfigError> {
        let mut mistakes = self.mistakes.into_inner();
        if mistakes.is_empty() {
            return Ok(self.warnings.into_inner());
        }
        mistakes.sort_by(|a, b| a.place.cmp(&b.place));
        mistakes.dedup();
        Err(ConfigError { file: file.to_owned(), mistakes })
    }
}
