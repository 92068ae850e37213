//! Forms that a customer's browser carries.

use makbuz::store::StoreError;

use super::rig::{Mood, Reply, Rig, post};

const FORM: &str = "content-type: application/x-www-form-urlencoded";

async fn bank(rig: &Rig, query: &str, headers: &[&str], body: &[u8]) -> Reply {
    rig.send(post(&format!("/in/bank{query}"), headers, body)).await
}

#[tokio::test]
async fn after_the_commit_the_browser_is_sent_on_with_the_receipt() {
    let rig = Rig::start().await;
    let reply = bank(&rig, "", &["x-token: good", FORM], b"order=1").await;
    let receipt = reply.header("makbuz-receipt").unwrap();
    assert_eq!(reply.status, 303);
    assert_eq!(reply.header("location"), Some(&*format!("https://shop.example/done?lang=tr&receipt={receipt}")));
    rig.end().await;
}

#[tokio::test]
async fn a_form_that_does_not_verify_is_sent_to_refused_without_a_reason() {
    let rig = Rig::start().await;
    let reply = bank(&rig, "", &["x-token: bad", FORM], b"order=1").await;
    assert_eq!((reply.status, reply.header("location")), (303, Some("https://shop.example/failed")));
    assert_eq!(rig.intake.rejections(1).await[0].code, "bad_signature");
    rig.end().await;
}

// W-157
#[tokio::test]
async fn our_own_fault_posts_the_same_fields_again_escaped() {
    let rig = Rig::start().await;
    rig.intake.set(Mood::Refuses(StoreError::Busy));
    let body = b"note=%22%3E%3Cscript%3Ealert(1)%3C%2Fscript%3E&%3Cb%3E=a+b%26c%0D%0A&empty=&name=%C5%9Fen";
    let reply = bank(&rig, "?lang=tr", &["x-token: good", FORM], body).await;
    let page = reply.text();
    assert_eq!(reply.status, 503);
    assert_eq!(reply.header("content-type"), Some("text/html; charset=utf-8"));
    assert!(reply.header("location").is_none());
    assert!(page.contains("action=\"/in/bank?lang=tr&amp;makbuz-try=1\""), "{page}");
    for field in [
        "name=\"note\" value=\"&quot;&gt;&lt;script&gt;alert(1)&lt;/script&gt;\"",
        "name=\"&lt;b&gt;\" value=\"a b&amp;c&#13;&#10;\"",
        "name=\"empty\" value=\"\"",
        "name=\"name\" value=\"şen\"",
    ] {
        assert!(page.contains(field), "{field} in {page}");
    }
    assert_eq!(page.matches("<script>").count(), 1, "our own, which the policy pins by its hash");
    let policy = reply.header("content-security-policy").unwrap();
    assert!(policy.starts_with("default-src 'none'; script-src 'sha256-") && !policy.contains("unsafe"));
    rig.end().await;
}

#[tokio::test]
async fn fields_that_are_no_utf8_come_back_as_the_same_bytes() {
    let rig = Rig::start().await;
    rig.intake.set(Mood::Refuses(StoreError::Busy));
    let reply = bank(&rig, "", &["x-token: good", FORM], b"name=%FEen%80").await;
    assert_eq!(reply.header("content-type"), Some("text/html; charset=windows-1252"));
    let expected = b"name=\"name\" value=\"\xfeen\x80\"";
    assert!(reply.body.windows(expected.len()).any(|window| window == expected));
    assert!(reply.text().contains("accept-charset=\"windows-1252\""));
    rig.end().await;
}

#[tokio::test]
async fn after_three_tries_there_is_a_link_to_later_and_never_refused() {
    let rig = Rig::start().await;
    rig.intake.set(Mood::Refuses(StoreError::Busy));
    for (tries, again) in [(1, true), (2, true), (3, false)] {
        let reply = bank(&rig, &format!("?makbuz-try={tries}"), &["x-token: good", FORM], b"order=1").await;
        let page = reply.text();
        assert_eq!((reply.status, page.contains("<form")), (503, again), "{tries}");
        assert_eq!(page.contains("href=\"https://shop.example/later?a=1&amp;b=&quot;2&quot;\""), !again);
        assert!(!page.contains("failed"));
    }
    rig.intake.set(Mood::Commits);
    let reply = bank(&rig, "?makbuz-try=3&lang=tr", &["x-token: good", FORM], b"order=1").await;
    assert_eq!(reply.status, 303);
    assert_eq!(
        rig.intake.last(|delivery| delivery.url.clone()),
        "/in/bank?lang=tr",
        "our counter is not the provider's"
    );
    rig.end().await;
}

#[tokio::test]
async fn a_form_that_was_shed_is_sent_to_later() {
    let rig = Rig::with(|config| config.requests_max = 1).await;
    rig.intake.set(Mood::Holds);
    let mut first = rig.connect().await;
    first.write(post("/in/shop", &["x-token: good"], b"{}")).await;
    rig.intake.submitted(1).await;
    let reply = bank(&rig, "", &["x-token: good", FORM], b"order=1").await;
    assert_eq!(reply.status, 503);
    assert!(reply.text().contains("https://shop.example/later"));
    rig.intake.release();
    assert_eq!(first.read().await.unwrap().status, 200);
    rig.end().await;
}
