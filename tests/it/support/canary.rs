//! Values that may be seen nowhere, and a search for them in every spelling in which a program could let them slip.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE};

/// Values by name. ASCII, and long enough that a half of one is nobody else's.
pub struct Canaries(Vec<Spelling>);

/// One half of a value, as it would look in a text.
struct Spelling {
    name: &'static str,
    how: &'static str,
    text: String,
}

/// Shorter halves could be there by chance.
const HALF_BYTES_MIN: usize = 8;

impl Canaries {
    pub fn new(values: impl IntoIterator<Item = (&'static str, String)>) -> Self {
        let mut spellings = Vec::new();
        for (name, value) in values {
            assert!(value.is_ascii() && value.len() >= 2 * HALF_BYTES_MIN, "{name} is too short to be looked for");
            let (first, second) = value.as_bytes().split_at(value.len() / 2);
            for half in [first, second] {
                spellings.extend(spelled(half).map(|(how, text)| Spelling { name, how, text }));
            }
        }
        Self(spellings)
    }

    /// Fails the test if a value, or a half of it, is in `bytes`; or if `bytes` do not hold `control`, which must be in
    /// whatever this is: a place where nothing was written hides nothing.
    pub fn not_in(&self, place: &str, bytes: &[u8], control: &str) {
        let text = String::from_utf8_lossy(bytes);
        assert!(
            text.contains(control),
            "{place} should hold {control:?}: {}",
            text.chars().take(2000).collect::<String>()
        );
        let found: Vec<String> = self.0.iter().filter_map(|spelling| spelling.found(&text)).collect();
        assert!(found.is_empty(), "{place} shows\n{}", found.join("\n"));
    }
}

impl Spelling {
    fn found(&self, text: &str) -> Option<String> {
        let at = text.find(&self.text)?;
        let before: String = text[..at].chars().rev().take(120).collect();
        let before: String = before.chars().rev().collect();
        let after: String = text[at..].chars().take(120).collect();
        Some(format!("{} ({}): …{before}{after}…", self.name, self.how))
    }
}

/// As it is; as hex; as Base64, wherever in a longer text it stands; and as a list of numbers, as `Debug` prints bytes.
fn spelled(half: &[u8]) -> impl Iterator<Item = (&'static str, String)> {
    let numbers = |parted: &str| half.iter().map(ToString::to_string).collect::<Vec<_>>().join(parted);
    let plain = [
        ("plain", String::from_utf8_lossy(half).into_owned()),
        ("hex", hex::encode(half)),
        ("HEX", hex::encode_upper(half)),
        ("numbers", numbers(", ")),
        ("JSON numbers", numbers(",")),
    ];
    let shifted = (0..3).flat_map(|before| {
        let text = [&b"xx"[..before], half].concat();
        // Only what no neighbour can change.
        let (from, to) = ((before * 8).div_ceil(6), text.len() * 8 / 6);
        let cut = |text: String| text[from..to].to_owned();
        [("Base64", cut(STANDARD.encode(&text))), ("Base64url", cut(URL_SAFE.encode(&text)))]
    });
    plain.into_iter().chain(shifted.collect::<Vec<_>>())
}

#[test]
fn a_value_is_found_in_every_spelling() {
    let value = "cnry-A7>?kd2Vq9LmX4s~~";
    let canaries = Canaries::new([("value", value.to_owned())]);
    let found = |text: &str| canaries.0.iter().any(|spelling| spelling.found(text).is_some());
    for before in ["", "u", "us", "user:"] {
        let text = format!("{before}{value} and more");
        assert!(found(&STANDARD.encode(&text)) && found(&URL_SAFE.encode(&text)), "{text}");
        assert!(found(&text) && found(&hex::encode(&text)) && found(&hex::encode_upper(&text)));
        assert!(found(&format!("{:?}", text.as_bytes())) && found(&serde_json::json!(text.as_bytes()).to_string()));
    }
    assert!(found(&value[..value.len() / 2]) && found(&value[value.len() / 2..]), "half of it is too much");
    assert!(!found("cnry") && !found("user:password"));
}
