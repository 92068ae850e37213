//! The shape of a provider file, as serde reads it. Every key is optional here; compiling says what is missing.
//! providers/README.md is the reference for authors.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;

mod watch;

pub use watch::{read, read_table};

/// One mistake in a file or in a source's settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpecError {
    /// File or source.
    pub place: String,
    /// Dotted path of the key; empty for the whole.
    pub key: String,
    pub reason: String,
}

impl SpecError {
    /// A mistake at `key`.
    pub fn new(place: &str, key: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { place: place.to_owned(), key: key.into(), reason: reason.into() }
    }

    /// Stable name for logs.
    pub fn code(&self) -> &'static str {
        "provider_spec"
    }
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.key.is_empty() {
            write!(f, "{}: {}", self.place, self.reason)
        } else {
            write!(f, "{}: {}: {}", self.place, self.key, self.reason)
        }
    }
}

impl std::error::Error for SpecError {}

macro_rules! section {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Default, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $type,)*
        }
    };
}

section!(
    /// A whole provider file.
    Spec {
        name: Option<String>,
        title: Option<String>,
        docs: Vec<String>,
        evidence: Option<String>,
        evidence_note: Option<String>,
        /// Strings hold `{{param}}`; the definition is made when a source is bound.
        generic: bool,
        notes: Vec<String>,
        request: RequestSpec,
        delivery: DeliverySpec,
        params: BTreeMap<String, ParamSpec>,
        scheme: Vec<SchemeSpec>,
        guard: Vec<GuardSpec>,
        window: WindowSpec,
        identity: IdentitySpec,
        account: AccountSpec,
        event: EventSpec,
        mode: ModeSpec,
        batch: Option<BatchSpec>,
        handshake: Vec<HandshakeSpec>,
        reply: ReplySpec,
        template: Vec<TemplateSpec>,
    }
);

section!(
    /// What a request looks like.
    RequestSpec {
        methods: Vec<String>,
        /// `json`, `form`, `either` (by content type) or `opaque`.
        content: Option<String>,
        /// Form field that holds the JSON document.
        payload_field: Option<String>,
        /// An empty body is an event all the same.
        empty_body: bool,
        /// `object`, or `any` JSON value.
        root: Option<String>,
        suffix: bool,
        carrier: Option<String>,
        body_max: Option<String>,
        headers: Vec<String>,
        retry_headers: Vec<String>,
    }
);

section!(
    /// How the provider delivers, for people and for time limits.
    DeliverySpec {
        time_limit: Option<String>,
        resends: Option<String>,
        switch_off: Option<String>,
    }
);

section!(
    /// Something that a scheme needs beside the secret.
    ParamSpec {
        about: Option<String>,
        required: Option<bool>,
        default: Option<String>,
        /// Stands in for a required value where the file is only looked at.
        example: Option<String>,
        choices: Vec<String>,
    }
);

section!(
    /// One way to prove a delivery.
    SchemeSpec {
        name: Option<String>,
        mechanism: Option<String>,
        key: Option<String>,
        key_prefix: Option<String>,
        /// Only secrets with the prefix belong to this scheme.
        key_prefix_required: bool,
        /// Used only where the source's param `scheme` names it.
        optional: bool,
        /// Left out, instead of refused, where a param of it is missing.
        optional_params: bool,
        when: Vec<String>,
        signed: Option<String>,
        coverage: Option<String>,
        /// The signed URL is tried with and without its port.
        url_ports: bool,
        per_item: bool,
        signature: SignatureSpec,
        timestamp: TimestampSpec,
        check: Vec<CheckSpec>,
        sorted: Option<SortedSpec>,
    }
);

section!(
    /// Where the signature stands.
    SignatureSpec {
        from: Option<String>,
        prefix: Option<String>,
        separator: Option<String>,
        assign: Option<String>,
        name: Option<String>,
        /// The param of the source that says the name.
        name_param: Option<String>,
        encoding: Option<String>,
        /// The header may come several times.
        repeated: bool,
    }
);

section!(
    /// Where the signed time stands.
    TimestampSpec {
        from: Option<String>,
        unit: Option<String>,
    }
);

section!(
    /// Two expressions that must be equal once the signature is right.
    CheckSpec {
        left: Option<String>,
        right: Option<String>,
    }
);

section!(
    /// How `sorted-form` writes the fields.
    SortedSpec {
        order: Option<String>,
        assign: String,
        join: String,
        unique: bool,
        names: Option<bool>,
        drop_empty: bool,
        prefix: Option<String>,
        exclude: Vec<String>,
        /// Names are sorted without regard to case.
        ignore_case: bool,
        /// Characters of values that get a backslash.
        escape: String,
        /// With `order = "named"`: the field that lists the signed ones, what parts its entries, which must be among them.
        named_by: Option<String>,
        separator: Option<String>,
        required: Vec<String>,
    }
);

section!(
    /// A second proof that must hold as well.
    GuardSpec {
        name: Option<String>,
        mechanism: Option<String>,
        from: Option<String>,
        param: Option<String>,
        required: bool,
    }
);

section!(
    /// How old and how early a signed time may be.
    WindowSpec {
        /// A span, or `none` where no time is signed.
        check: Option<String>,
        tolerance_reason: Option<String>,
        replay_guard: Option<bool>,
    }
);

section!(
    /// What makes an event the same event.
    IdentitySpec {
        provider_ref: Option<String>,
        key: Vec<String>,
        signed: Option<bool>,
        /// `once`, or `every-delivery`.
        mode: Option<String>,
        /// `account` or `global`.
        ids: Option<String>,
        /// Expressions whose values do not count as content.
        volatile: Vec<String>,
    }
);

section!(
    /// Whose event it is.
    AccountSpec {
        from: Option<String>,
        signed: Option<bool>,
    }
);

section!(
    /// The other facts of an event.
    EventSpec {
        r#type: Option<String>,
        known: Vec<String>,
        occurred: Option<String>,
        occurred_unit: Option<String>,
        resource: Option<String>,
        version: Option<String>,
    }
);

section!(
    /// Live or test.
    ModeSpec {
        from: Option<String>,
        live: Vec<String>,
        test: Vec<String>,
    }
);

section!(
    /// Several events in one delivery.
    BatchSpec {
        items: Option<String>,
        unwrap: Option<String>,
        mixed: Option<String>,
        /// No array there: the document is one event.
        optional: bool,
        max: Option<usize>,
    }
);

section!(
    /// A request that is answered and makes no receipt.
    HandshakeSpec {
        name: Option<String>,
        methods: Vec<String>,
        when: Vec<String>,
        signed: Option<String>,
        status: Option<u16>,
        content_type: Option<String>,
        body: Option<String>,
    }
);

section!(
    /// The exact answers.
    ReplySpec {
        status: Option<u16>,
        content_type: Option<String>,
        body: Option<String>,
        refused_status: Option<u16>,
        refused_content_type: Option<String>,
        refused_body: Option<String>,
    }
);

section!(
    /// A realistic event for test requests.
    TemplateSpec {
        r#type: Option<String>,
        method: Option<String>,
        suffix: Option<String>,
        content_type: Option<String>,
        headers: BTreeMap<String, String>,
        body: Option<String>,
    }
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_mistakes_at_once_with_the_nearest_known_key() {
        let text =
            "nmae = 'x'\ntitle = 5\n[request]\nmethod = ['POST']\nsuffix = 'yes'\n[[scheme]]\nmechansim = 'none'\n";
        let (_, errors) = read("x.toml", text);
        let all: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(errors.len(), 5, "{all:#?}");
        assert!(all.iter().any(|error| error.contains("nmae") && error.contains("did you mean `name`")), "{all:#?}");
        assert!(all.iter().any(|error| error.contains("request.method") && error.contains("`methods`")), "{all:#?}");
        assert!(
            all.iter().any(|error| error.contains("scheme[0].mechansim") && error.contains("`mechanism`")),
            "{all:#?}"
        );
        assert!(all.iter().any(|error| error.starts_with("x.toml: title: ")), "{all:#?}");
        assert!(all.iter().any(|error| error.starts_with("x.toml: request.suffix: ")), "{all:#?}");
    }

    #[test]
    fn broken_toml_is_one_mistake() {
        let (spec, errors) = read("x.toml", "name = ");
        assert!(spec.is_none());
        assert_eq!(errors.len(), 1);
    }
}
