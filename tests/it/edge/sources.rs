//! The sources that the tests post to.

use std::sync::Arc;

use http::Method;
use makbuz::edge::{EdgeSource, Redirects};
use makbuz::provider::Inlet;

pub fn inlet() -> Inlet {
    Inlet { methods: vec![Method::POST], ..Inlet::default() }
}

pub fn source(name: &str, inlet: Inlet) -> EdgeSource {
    EdgeSource {
        name: name.into(),
        provider: "token".into(),
        inlet: Arc::new(inlet),
        aliases: Vec::new(),
        paths: Vec::new(),
        account_in_path: false,
        body_max: None,
        url: None,
        redirects: None,
    }
}

/// `/in/shop`, by alias `/in/old-shop` and by path `/webhooks/shop`; `/in/seller/{account}`; `/in/depot/…` with PUT;
/// `/in/probe` with HEAD; `/in/bank`, whose forms a browser brings; `/in/hurry`, whose provider waits one second and a bit.
pub fn usual() -> Vec<Arc<EdgeSource>> {
    let shop = EdgeSource {
        aliases: vec!["old-shop".into()],
        paths: vec!["/webhooks/shop".to_owned()],
        ..source("shop", inlet())
    };
    let seller = EdgeSource { account_in_path: true, ..source("seller", inlet()) };
    let depot = source("depot", Inlet { methods: vec![Method::PUT], suffix: true, ..Inlet::default() });
    let probe = source("probe", Inlet { methods: vec![Method::POST, Method::HEAD], ..Inlet::default() });
    let redirects = Redirects {
        accepted: "https://shop.example/done?lang=tr".to_owned(),
        refused: "https://shop.example/failed".to_owned(),
        later: "https://shop.example/later?a=1&b=\"2\"".to_owned(),
    };
    let bank = EdgeSource { redirects: Some(redirects), ..source("bank", Inlet { browser: true, ..inlet() }) };
    let limit = Some(std::time::Duration::from_millis(1200));
    let hurry = source("hurry", Inlet { limit, ..inlet() });
    [shop, seller, depot, probe, bank, hurry].into_iter().map(Arc::new).collect()
}
