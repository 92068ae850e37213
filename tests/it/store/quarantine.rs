//! Refused requests: kept within hard bounds.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use makbuz::store::{NewRejection, QuarantineBounds, Store};

use super::harness::Harness;

fn rejection(h: &Harness, n: usize, bytes: usize) -> NewRejection {
    NewRejection {
        at: h.now() + i64::try_from(n).unwrap(),
        source: "web".to_owned(),
        code: "bad_signature".to_owned(),
        detail: "no secret matches".to_owned(),
        peer: "192.0.2.9".to_owned(),
        method: "POST".to_owned(),
        path: format!("/in/web?n={n}"),
        headers: vec![("x-sig".to_owned(), Bytes::from_static(b"\xff\0"))],
        body: Bytes::from(vec![7; bytes]),
    }
}

pub async fn bounds_of_count_bytes_and_age_hold(store: Arc<dyn Store>, h: &Harness) {
    let wide = QuarantineBounds { count: 1000, bytes: 1 << 30, age: Duration::from_secs(3600) };
    let many: Vec<_> = (0..150).map(|n| rejection(h, n, 10)).collect();
    store.record_rejections(many.clone(), wide).await.unwrap();
    let kept = store.rejections(1000).await.unwrap();
    assert_eq!(kept.len(), 150);
    assert_eq!(kept[0], many[149], "newest first, as it was written");

    store.record_rejections(vec![rejection(h, 150, 10)], QuarantineBounds { count: 20, ..wide }).await.unwrap();
    let kept = store.rejections(1000).await.unwrap();
    assert_eq!((kept.len(), kept[0].path.as_str(), kept[19].path.as_str()), (20, "/in/web?n=150", "/in/web?n=131"));

    let small = QuarantineBounds { bytes: 10_000, ..wide };
    store.record_rejections((200..210).map(|n| rejection(h, n, 3000)).collect(), small).await.unwrap();
    let kept = store.rejections(1000).await.unwrap();
    assert_eq!(
        kept.iter().map(|kept| kept.path.as_str()).collect::<Vec<_>>(),
        ["/in/web?n=209", "/in/web?n=208", "/in/web?n=207"]
    );

    h.backend.pass(Duration::from_secs(3601)).await;
    store.record_rejections(vec![rejection(h, 0, 1)], wide).await.unwrap();
    assert_eq!(store.rejections(1000).await.unwrap().len(), 1);
    assert_eq!(h.count("SELECT count(*) FROM receipts").await, 0, "C2: no receipt");
}
