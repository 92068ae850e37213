//! Sources whose form is carried by the customer's browser (3-D Secure returns): a redirect after the commit, and, when
//! the fault is ours, a page that posts the same fields again. Never *refused* for our own fault.

use std::fmt::Write;
use std::sync::LazyLock;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue, LOCATION, REFERRER_POLICY};
use http::{Response, StatusCode};
use http_body_util::Full;
use sha2::{Digest, Sha256};

use super::reply::Answer;

/// How often the page posts the fields again by itself.
const TRIES_MAX: u32 = 3;
/// The query field that counts these tries; it is ours, and cut before anyone else sees the query.
const TRY_FIELD: &str = "makbuz-try";
/// Larger forms are not echoed.
const FORM_BYTES_MAX: usize = 256 * 1024;
/// Posts the form by itself after its delay; pinned by its hash in the page's policy.
const SCRIPT: &str =
    "var f=document.getElementById('again');setTimeout(function(){f.submit()},1000*Number(f.dataset.delay));";

static POLICY: LazyLock<HeaderValue> = LazyLock::new(|| {
    let hash = STANDARD.encode(Sha256::digest(SCRIPT));
    // No `form-action`: browsers hold it against the redirect that follows the form, too.
    let policy = format!("default-src 'none'; script-src 'sha256-{hash}'; base-uri 'none'");
    // Unwrap safety: base64 and the text around it are visible ASCII.
    HeaderValue::from_str(&policy).expect("a header value")
});

/// Where the customer's browser goes next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Redirects {
    /// The form is authentic and kept; not: it was paid.
    pub accepted: String,
    /// The form did not verify.
    pub refused: String,
    /// We could not keep it, three times.
    pub later: String,
}

/// 303 to `accepted` with the receipt's id.
pub(super) fn accepted(redirects: &Redirects, receipt: &str) -> Answer {
    let (before, fragment) =
        redirects.accepted.split_once('#').map_or((&*redirects.accepted, ""), |(url, at)| (url, at));
    let joint = if before.contains('?') { '&' } else { '?' };
    let hash = if fragment.is_empty() { "" } else { "#" };
    see_other(&format!("{before}{joint}receipt={receipt}{hash}{fragment}"))
}

/// 303 to `refused`, without a reason.
pub(super) fn refused(redirects: &Redirects) -> Answer {
    see_other(&redirects.refused)
}

fn see_other(url: &str) -> Answer {
    let mut answer = Response::new(Full::default());
    *answer.status_mut() = StatusCode::SEE_OTHER;
    answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Ok(url) = HeaderValue::from_str(url) {
        answer.headers_mut().insert(LOCATION, url);
    }
    answer
}

/// The page for our own fault: posts the same fields again, or, after three tries, links to `later`.
pub(super) fn unavailable(redirects: &Redirects, request: &Form<'_>, delay_seconds: u64) -> Answer {
    let page = match request.fields() {
        Some(fields) if request.tries < TRIES_MAX => again(request, &fields, delay_seconds),
        _ => Page { html: later(redirects), utf8: true },
    };
    let mut answer = Response::new(Full::new(Bytes::from(page.html)));
    *answer.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    let charset = if page.utf8 { "text/html; charset=utf-8" } else { "text/html; charset=windows-1252" };
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(charset));
    headers.insert(CONTENT_SECURITY_POLICY, POLICY.clone());
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    answer
}

/// The form that a browser brought.
pub(super) struct Form<'a> {
    pub path: &'a str,
    /// Without our own field.
    pub query: Option<&'a str>,
    pub content_type: Option<&'a HeaderValue>,
    /// `None` when we shed the request before its body was read.
    pub body: Option<&'a Bytes>,
    pub tries: u32,
}

impl Form<'_> {
    /// The fields, decoded once, as bytes: forms of Turkish banks are often windows-1254.
    fn fields(&self) -> Option<Vec<(Vec<u8>, Vec<u8>)>> {
        let kind = self.content_type?.to_str().ok()?;
        let kind = kind.split(';').next().unwrap_or_default().trim();
        let body = self.body.filter(|body| body.len() <= FORM_BYTES_MAX)?;
        if !kind.eq_ignore_ascii_case("application/x-www-form-urlencoded") {
            return None;
        }
        let pairs = body.split(|byte| *byte == b'&').filter(|pair| !pair.is_empty());
        Some(
            pairs
                .map(|pair| {
                    let at = pair.iter().position(|byte| *byte == b'=').unwrap_or(pair.len());
                    (decode(&pair[..at]), decode(pair.get(at + 1..).unwrap_or_default()))
                })
                .collect(),
        )
    }
}

/// Cuts our own counter from a query: the number of tries so far, and the query as the provider knows it.
pub(super) fn split_tries(query: &str) -> (u32, Option<String>) {
    let mut tries = 0;
    let kept: Vec<&str> = query
        .split('&')
        .filter(|pair| match pair.strip_prefix(TRY_FIELD).and_then(|rest| rest.strip_prefix('=')) {
            Some(number) => {
                tries = number.parse().unwrap_or(TRIES_MAX);
                false
            }
            None => true,
        })
        .collect();
    let kept = kept.join("&");
    (tries, (!kept.is_empty()).then_some(kept))
}

struct Page {
    html: Vec<u8>,
    /// False: the values are no UTF-8. The page is then windows-1252, in which every byte is a character and comes back
    /// as the same byte.
    utf8: bool,
}

fn again(request: &Form<'_>, fields: &[(Vec<u8>, Vec<u8>)], delay_seconds: u64) -> Page {
    let utf8 =
        fields.iter().all(|(name, value)| std::str::from_utf8(name).is_ok() && std::str::from_utf8(value).is_ok());
    let mut head = String::from("<!doctype html><title>One moment</title><p>One moment, we try again.</p>");
    let charset = if utf8 { "utf-8" } else { "windows-1252" };
    // Writing to a String cannot fail.
    let _ = write!(
        head,
        "<form id=\"again\" method=\"post\" data-delay=\"{delay_seconds}\" accept-charset=\"{charset}\" action=\""
    );
    let mut html = head.into_bytes();
    escape(request.path.as_bytes(), &mut html);
    let query = request.query.map(|query| format!("{query}&")).unwrap_or_default();
    escape(format!("?{query}{TRY_FIELD}={}", request.tries + 1).as_bytes(), &mut html);
    html.extend_from_slice(b"\">");
    for (name, value) in fields {
        html.extend_from_slice(b"<input type=\"hidden\" name=\"");
        escape(name, &mut html);
        html.extend_from_slice(b"\" value=\"");
        escape(value, &mut html);
        html.extend_from_slice(b"\">");
    }
    html.extend_from_slice(b"<button>Try again</button></form><script>");
    html.extend_from_slice(SCRIPT.as_bytes());
    html.extend_from_slice(b"</script>");
    Page { html, utf8 }
}

fn later(redirects: &Redirects) -> Vec<u8> {
    let mut html =
        b"<!doctype html><title>Please go on</title><p>We could not finish this step just now.</p><a href=\"".to_vec();
    escape(redirects.later.as_bytes(), &mut html);
    html.extend_from_slice(b"\">Go on</a>");
    html
}

/// Escapes for text and for quoted attributes; line ends are kept from being rewritten.
fn escape(text: &[u8], html: &mut Vec<u8>) {
    for byte in text {
        match byte {
            b'&' => html.extend_from_slice(b"&amp;"),
            b'<' => html.extend_from_slice(b"&lt;"),
            b'>' => html.extend_from_slice(b"&gt;"),
            b'"' => html.extend_from_slice(b"&quot;"),
            b'\'' => html.extend_from_slice(b"&#39;"),
            b'`' => html.extend_from_slice(b"&#96;"),
            b'\r' => html.extend_from_slice(b"&#13;"),
            b'\n' => html.extend_from_slice(b"&#10;"),
            other => html.push(*other),
        }
    }
}

fn decode(text: &[u8]) -> Vec<u8> {
    let spaced: Vec<u8> = text.iter().map(|byte| if *byte == b'+' { b' ' } else { *byte }).collect();
    percent_encoding::percent_decode(&spaced).collect()
}
