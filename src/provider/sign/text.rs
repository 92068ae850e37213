//! Fields and templates as text.

use super::super::form;
use super::SignRequest;

pub(super) fn append(to: &mut Option<String>, name: &str, value: &str) {
    let pair = format!("{}={}", form::encode(name.as_bytes()), form::encode(value.as_bytes()));
    match to {
        Some(text) => {
            text.push('&');
            text.push_str(&pair);
        }
        None => *to = Some(pair),
    }
}

pub(super) fn without_field(body: &[u8], name: &str) -> Vec<u8> {
    let form = form::Form::parse(body);
    let kept: Vec<&[u8]> =
        form.pairs.iter().filter(|pair| &*pair.name != name.as_bytes()).map(|pair| pair.raw).collect();
    kept.join(&b'&')
}

/// Puts the fresh values into a template's text.
pub(super) fn fill(text: &str, request: &SignRequest<'_>, event_type: &str) -> String {
    text.replace("{id}", request.id)
        .replace("{n}", &request.n.to_string())
        .replace("{now}", &(request.now / 1_000_000).to_string())
        .replace("{now_ms}", &(request.now / 1000).to_string())
        .replace("{now_iso}", &super::super::time::iso_text(request.now))
        .replace("{type}", event_type)
}
