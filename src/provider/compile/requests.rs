//! What a request looks like, what is answered, and a realistic one for tests.

use std::time::Duration;

use http::{HeaderName, Method, StatusCode};

use super::super::Reply;
use super::super::definition::{ContentRule, Template};
use super::super::spec::{Spec, TemplateSpec};
use super::{Builder, given, is_credential};

impl Builder<'_> {
    pub(super) fn span(&mut self, key: &str, text: &str) -> Option<Duration> {
        let span = humantime::parse_duration(text).ok();
        if span.is_none() {
            self.error(key, format!("`{text}` is not a span such as `5s` or `10m`"));
        }
        span
    }

    pub(super) fn size(&mut self, key: &str, text: &str) -> Option<u64> {
        let units = [("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];
        let size = units
            .iter()
            .find_map(|(unit, bytes)| text.strip_suffix(unit)?.trim().parse::<u64>().ok()?.checked_mul(*bytes));
        if size.is_none() {
            self.error(key, format!("`{text}` is not a size such as `512KiB` or `25MiB`"));
        }
        size
    }

    pub(super) fn methods(&mut self, key: &str, names: &[String]) -> Vec<Method> {
        if names.is_empty() {
            return vec![Method::POST];
        }
        let known = [Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::PATCH, Method::DELETE];
        let mut methods = Vec::new();
        for name in names {
            match known.iter().find(|method| method.as_str() == name) {
                Some(method) => methods.push(method.clone()),
                None => self.error(key, format!("`{name}` is no method that events come with")),
            }
        }
        methods
    }

    pub(super) fn header_names(&mut self, key: &str, names: &[String]) -> Vec<HeaderName> {
        let mut headers = Vec::new();
        for name in names.iter().filter(|name| !name.is_empty()) {
            match name.parse::<HeaderName>() {
                Ok(name) if is_credential(&name) => {
                    self.error(key, format!("`{name}` holds credentials and is never kept"));
                }
                Ok(name) => headers.push(name),
                Err(_) => self.error(key, format!("`{name}` is not a header's name")),
            }
        }
        headers
    }

    pub(super) fn content(&mut self, spec: &Spec) -> ContentRule {
        match spec.request.content.as_deref() {
            None | Some("json") => ContentRule::Json,
            Some("form") => ContentRule::Form,
            Some("either") => ContentRule::Either,
            Some("opaque") => ContentRule::Opaque,
            Some(other) => {
                self.one_of("request.content", other, &["json", "form", "either", "opaque"]);
                ContentRule::Opaque
            }
        }
    }

    pub(super) fn any_root(&mut self, spec: &Spec) -> bool {
        let root = given(spec.request.root.as_ref()).unwrap_or("object");
        self.one_of("request.root", root, &["object", "any"]);
        root == "any"
    }

    pub(super) fn browser(&mut self, spec: &Spec) -> bool {
        let carrier = spec.request.carrier.as_deref().unwrap_or("server");
        self.one_of("request.carrier", carrier, &["server", "browser"]);
        carrier == "browser"
    }

    pub(super) fn replies(&mut self, spec: &Spec) -> (Reply, Reply) {
        let reply = &spec.reply;
        let accepted = Reply {
            status: self.status("reply.status", reply.status, 200),
            content_type: reply.content_type.clone(),
            body: reply.body.clone().unwrap_or_default().into(),
        };
        if !accepted.status.is_success() && spec.request.carrier.as_deref() != Some("browser") {
            self.error("reply.status", "the answer to an accepted delivery is a 2xx");
        }
        let refused = Reply {
            status: self.status("reply.refused_status", reply.refused_status, 401),
            content_type: reply.refused_content_type.clone(),
            body: reply.refused_body.clone().unwrap_or_default().into(),
        };
        if !refused.status.is_client_error() {
            self.error("reply.refused_status", "the answer to a refused delivery is a 4xx");
        }
        (accepted, refused)
    }

    pub(super) fn status(&mut self, key: &str, status: Option<u16>, default: u16) -> StatusCode {
        StatusCode::from_u16(status.unwrap_or(default)).unwrap_or_else(|_| {
            self.error(key, "is no HTTP status");
            StatusCode::OK
        })
    }

    pub(super) fn template(&mut self, at: usize, template: &TemplateSpec, methods: &[Method]) -> Template {
        let key = format!("template[{at}]");
        let names: Vec<_> = template.method.iter().cloned().collect();
        let method = match self.methods(&format!("{key}.method"), &names).into_iter().next() {
            Some(method) if template.method.is_some() => method,
            _ => methods.first().cloned().unwrap_or(Method::POST),
        };
        let mut headers = Vec::new();
        for (name, value) in &template.headers {
            match name.parse::<HeaderName>() {
                Ok(name) => headers.push((name, value.clone())),
                Err(_) => self.error(format!("{key}.headers.{name}"), "is not a header's name"),
            }
        }
        Template {
            event_type: self.required(&format!("{key}.type"), template.r#type.as_ref()),
            method,
            suffix: template.suffix.clone(),
            content_type: template.content_type.clone(),
            headers,
            body: template.body.clone().unwrap_or_default(),
        }
    }
}
