//! Where a signature stands and how it is written: the candidates of a request, decoded strictly, bounded in number.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};

use super::context::{Context, Params, Problem, trim};
use super::expr::{Expr, Term};
use super::key::Mechanism;
use super::{Rejection, RejectionCode};

/// Longest header or field that carries signatures.
pub const CARRIER_BYTES_MAX: usize = 4096;
/// Most signatures that are looked at.
pub const CANDIDATES_MAX: usize = 8;

/// How a signature's bytes are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    Hex,
    Base64,
    Base64Url,
    /// Base64 of the hex text.
    Base64Hex,
    Text,
}

impl Encoding {
    /// The encoding of this name in a provider file.
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "hex" => Some(Self::Hex),
            "base64" => Some(Self::Base64),
            "base64url" => Some(Self::Base64Url),
            "base64-hex" => Some(Self::Base64Hex),
            "text" => Some(Self::Text),
            _ => None,
        }
    }

    /// Decodes the one spelling that counts; hex in either case.
    pub fn decode(self, text: &str) -> Option<Vec<u8>> {
        match self {
            Self::Hex => hex::decode(text).ok(),
            Self::Base64 => STANDARD.decode(text).ok(),
            Self::Base64Url => URL_SAFE_NO_PAD.decode(text).ok(),
            Self::Base64Hex => STANDARD.decode(text).ok().and_then(|text| hex::decode(text).ok()),
            Self::Text => Some(text.as_bytes().to_vec()),
        }
    }

    /// Writes a signature.
    pub fn encode(self, bytes: &[u8]) -> String {
        match self {
            Self::Hex => hex::encode(bytes),
            Self::Base64 => STANDARD.encode(bytes),
            Self::Base64Url => URL_SAFE_NO_PAD.encode(bytes),
            Self::Base64Hex => STANDARD.encode(hex::encode(bytes)),
            Self::Text => String::from_utf8_lossy(bytes).into_owned(),
        }
    }
}

/// Where and how.
#[derive(Debug, Clone)]
pub struct Carrier {
    pub from: Expr,
    /// Fixed text before the signature (`sha256=`).
    pub prefix: String,
    /// The prefix is a scheme word: its case does not count.
    pub prefix_any_case: bool,
    /// Entries of a list are parted by this.
    pub separator: Option<char>,
    /// Key and value of an entry are parted by this.
    pub assign: char,
    /// Key of the entries that are signatures; others are skipped.
    pub name: Option<String>,
    /// The same, where a param of the source says it.
    pub name_param: Option<String>,
    pub encoding: Encoding,
    pub repeated: bool,
}

/// What a request carries.
#[derive(Debug, Default)]
pub struct Candidates {
    pub signatures: Vec<Vec<u8>>,
    /// All entries of a `k=v` list.
    pub pairs: Vec<(String, String)>,
}

impl Carrier {
    /// The signatures in the request; at least one, or a refusal.
    pub fn candidates(&self, context: &Context<'_, '_>, mechanism: Mechanism) -> Result<Candidates, Rejection> {
        let mut found = Candidates::default();
        let mut seen = 0;
        for text in self.texts(context)? {
            if text.len() > CARRIER_BYTES_MAX {
                return Err(malformed("the signature's carrier is too long"));
            }
            let named = self.name_param.as_ref().and_then(|name| context.params.get(name));
            let wanted = named.map(String::from_utf8_lossy);
            // A param without a value names no entry, rather than every one.
            let nameless = self.name_param.as_ref().map(|_| "");
            let wanted = wanted.as_deref().or(nameless).or(self.name.as_deref());
            self.entries(&text, wanted, mechanism, &mut found, &mut seen)?;
        }
        match (seen, found.signatures.is_empty()) {
            (0, _) => Err(Rejection::new(RejectionCode::MissingSignature, "no signature of a known kind")),
            (_, true) => Err(malformed("no signature has the right form")),
            _ => Ok(found),
        }
    }

    fn texts(&self, context: &Context<'_, '_>) -> Result<Vec<String>, Rejection> {
        if let (true, Some(Term::Header(name))) = (self.repeated, self.from.plain()) {
            let values = context.inbound.headers.get_all(name).iter();
            let texts: Result<Vec<_>, _> =
                values.map(|value| value.to_str().map(|text| trim(text).to_owned())).collect();
            return texts.map_err(|_| malformed("the signature's header is not ASCII"));
        }
        match context.text(&self.from) {
            Ok(Some(text)) => Ok(vec![text.into_owned()]),
            Ok(None) => Err(Rejection::new(
                RejectionCode::MissingSignature,
                format!("nothing at {}", super::context::describe(&self.from)),
            )),
            Err(problem) => Err(refusal(problem)),
        }
    }

    fn entries(
        &self,
        text: &str,
        wanted: Option<&str>,
        mechanism: Mechanism,
        found: &mut Candidates,
        seen: &mut usize,
    ) -> Result<(), Rejection> {
        let Some(separator) = self.separator else {
            return self.signature(text, mechanism, found, seen);
        };
        for entry in text.split(separator).map(trim).filter(|entry| !entry.is_empty()) {
            let Some(wanted) = wanted else {
                self.signature(entry, mechanism, found, seen)?;
                continue;
            };
            let Some((key, value)) = entry.split_once(self.assign) else { continue };
            if found.pairs.len() >= 64 {
                return Err(malformed("too many entries beside the signature"));
            }
            found.pairs.push((key.to_owned(), value.to_owned()));
            if key == wanted {
                self.signature(value, mechanism, found, seen)?;
            }
        }
        Ok(())
    }

    fn signature(
        &self,
        text: &str,
        mechanism: Mechanism,
        found: &mut Candidates,
        seen: &mut usize,
    ) -> Result<(), Rejection> {
        *seen += 1;
        if *seen > CANDIDATES_MAX {
            return Err(malformed("too many signatures"));
        }
        let head = text.get(..self.prefix.len());
        let prefixed = head.is_some_and(|head| {
            head == self.prefix || (self.prefix_any_case && head.eq_ignore_ascii_case(&self.prefix))
        });
        if prefixed {
            let bytes = self.encoding.decode(&text[self.prefix.len()..]);
            found.signatures.extend(bytes.filter(|bytes| mechanism.fits(bytes.len())));
        }
        Ok(())
    }

    /// The same with the name that the source's param says.
    pub fn named(&self, params: &Params<'_>) -> Self {
        let named = self.name_param.as_ref().and_then(|name| params.get(name));
        let name = named.map(|name| String::from_utf8_lossy(name).into_owned()).or_else(|| self.name.clone());
        Self { name, ..self.clone() }
    }

    /// The carrier's text for a signature and the other entries of its list.
    pub fn write(&self, signature: &[u8], others: &[(String, String)]) -> String {
        let value = format!("{}{}", self.prefix, self.encoding.encode(signature));
        match (&self.name, self.separator) {
            (Some(name), Some(separator)) => {
                let entries = others.iter().map(|(key, value)| format!("{key}{}{value}", self.assign));
                let all: Vec<_> = entries.chain([format!("{name}{}{value}", self.assign)]).collect();
                all.join(separator.encode_utf8(&mut [0; 4]))
            }
            _ => value,
        }
    }
}

fn malformed(detail: &str) -> Rejection {
    Rejection::new(RejectionCode::MalformedSignature, detail)
}

/// A problem with something that verification needs, as a refusal.
pub fn refusal(problem: Problem) -> Rejection {
    match problem {
        Problem::Absent(what) => Rejection::new(RejectionCode::MissingSignature, format!("nothing at {what}")),
        Problem::HeaderTwice(what) => {
            Rejection::new(RejectionCode::DuplicateHeader, format!("{what} comes more than once"))
        }
        Problem::Twice(what) => {
            Rejection::new(RejectionCode::MalformedSignature, format!("{what} comes more than once"))
        }
        Problem::HeaderNotText(what) | Problem::NotText(what) => {
            Rejection::new(RejectionCode::MalformedSignature, format!("{what} is no plain text"))
        }
        Problem::WrongShape(what) => {
            Rejection::new(RejectionCode::MalformedSignature, format!("{what} is no text and no number"))
        }
        Problem::Unparsable(fault) => Rejection::new(RejectionCode::MalformedSignature, format!("the body is {fault}")),
    }
}
