//! The heart: a body read whole, verified, committed; and only then the answer. The commit runs in the store's own task:
//! a sender that leaves takes this future with it, and must not take a transaction.

use std::sync::Arc;

use bytes::{Buf, Bytes};
use http::Request;
use http_body::Body;
use tokio::time::timeout_at;
use tower::BoxError;

use super::ending::{Ending, Failure, Kept};
use super::exchange::Exchange;
use super::reply::{self, Answer};
use super::ticket::Ticket;
use super::{body, headers};
use crate::model::id::{PayloadId, ReceiptId};
use crate::model::receipt::Origin;
use crate::provider::{ExtractedEvent, Received, Verified};
use crate::store::{DeliveryVerdict, NewDelivery, NewEvent};

/// Receives one request at a known source.
pub(super) async fn receive<B>(mut request: Request<B>) -> Answer
where
    B: Body<Data: Buf>,
    B::Error: Into<BoxError>,
{
    let Some(exchange) = request.extensions_mut().remove::<Arc<Exchange>>() else { return reply::unavailable(1) };
    let mut read = None;
    let ending = run(&exchange, request.into_body(), &mut read).await;
    exchange.close(ending, read.as_ref())
}

async fn run<B>(exchange: &Arc<Exchange>, body: B, read: &mut Option<Bytes>) -> Result<Ending, Failure>
where
    B: Body<Data: Buf>,
    B::Error: Into<BoxError>,
{
    exchange.refuse_early()?;
    // Until the answer: a body may take long, and one client's bodies must not take all places for so long.
    let _place = exchange.enter()?;
    let max = usize::try_from(exchange.body_max()).unwrap_or(usize::MAX);
    let held = body::read(body, body::declared(&exchange.headers), max, exchange.purse()).await?;
    let body = read.insert(held.bytes).clone();
    match verify(exchange, &body).await? {
        Received::Handshake(reply) => Ok(Ending::Handshake(reply)),
        Received::Events(verified) => {
            let (delivery, mut kept) = delivery(exchange, verified, body);
            let heard = exchange.edge.intake.submit(delivery).map_err(Failure::Store)?;
            kept.verdict = Ticket::new(heard, held.share, &exchange.edge.orphans).wait(exchange.deadline()).await?;
            Ok(Ending::Kept(kept))
        }
    }
}

/// Verifies in place what is quick; large bodies and slow signatures on the blocking pool, a few at once.
async fn verify(exchange: &Arc<Exchange>, body: &Bytes) -> Result<Received, Failure> {
    let (edge, judged) = (&exchange.edge, Arc::clone(exchange));
    if body.len() < edge.config.heavy_body_bytes && !exchange.inlet().is_heavy() {
        return judge(exchange, body);
    }
    let place = timeout_at(exchange.deadline(), Arc::clone(&edge.heavy).acquire_owned()).await;
    let Ok(Ok(place)) = place else { return Err(Failure::Overloaded("verifications")) };
    let body = body.clone();
    let verified = tokio::task::spawn_blocking(move || {
        let _place = place;
        judge(&judged, &body)
    });
    verified.await.unwrap_or(Err(Failure::Panicked))
}

fn judge(exchange: &Exchange, body: &Bytes) -> Result<Received, Failure> {
    exchange.inlet().receive(&exchange.inbound(body)).map_err(Failure::Rejected)
}

/// A verified delivery as the store takes it.
fn delivery(exchange: &Exchange, verified: Verified, body: Bytes) -> (NewDelivery, Kept) {
    let (edge, source) = (&exchange.edge, &exchange.routed.source);
    let received_at = edge.clock.now();
    let kept = Kept {
        verdict: DeliveryVerdict { events: Vec::new() },
        refused_items: verified.refused_items,
        outside_window: verified.outside_window,
        secret: verified.verified_by.secret.clone(),
        received_at,
        occurred_at: verified.events.iter().filter_map(|event| event.occurred_at).collect(),
    };
    let stored = headers::keep(&exchange.headers, source.inlet.kept_headers());
    let events = verified.events.into_iter().map(|event| new_event(event, ReceiptId::new(received_at, &*edge.random)));
    let delivery = NewDelivery {
        source: Arc::clone(&source.name),
        provider: Arc::clone(&source.provider),
        received_at,
        payload_id: PayloadId::new(received_at, &*edge.random),
        body,
        headers: stored.values,
        dropped_headers: stored.names,
        content_type: exchange.content_type(),
        url: exchange.stored_url(),
        peer: exchange.peer.clone(),
        retry_headers: verified.retry_headers,
        signed_sha256: verified.signed_sha256,
        replay_guard: verified.replay_guard,
        guard_sources: Arc::clone(&source.guard_sources),
        every_delivery: verified.every_delivery,
        verified_by: verified.verified_by,
        origin: Origin::Delivery,
        events: events.collect(),
        subscriptions: Arc::clone(&exchange.setup.subscriptions),
    };
    (delivery, kept)
}

fn new_event(event: ExtractedEvent, receipt_id: ReceiptId) -> NewEvent {
    NewEvent {
        receipt_id,
        account: event.account,
        event_id: event.event_id,
        provider_ref: event.provider_ref,
        mode: event.mode,
        event_type: event.event_type,
        occurred_at: event.occurred_at,
        resource_key: event.resource_key,
        resource_version: event.resource_version,
        pointer: event.pointer,
        part: event.part.map(|part| (part.start as u64, part.end as u64)),
        item_sha256: event.item_sha256,
        flags: event.flags,
        hold: event.hold,
        proof: event.proof,
    }
}
