//! Stored bodies: in their day's partition, beside it while it is being detached, or among those kept for a job.

use std::collections::{BTreeSet, HashMap};

use bytes::Bytes;
use sqlx::{AssertSqlSafe, PgConnection, Row};
use uuid::Uuid;

use super::super::Sql;
use super::super::days::Day;
use super::super::rows;
use crate::model::id::PayloadId;
use crate::model::receipt::Receipt;
use crate::store::{headers, part_of};

/// Whole bodies by id.
#[derive(Debug, Default)]
pub(in super::super) struct Bodies(HashMap<PayloadId, (String, Bytes)>);

impl Bodies {
    /// The receipt's own bytes, with the content type.
    pub(in super::super) fn of(&self, receipt: &Receipt) -> Option<(String, Bytes)> {
        let (content_type, body) = self.whole(receipt.payload_id?)?;
        Some((content_type, part_of(&body, receipt.part)))
    }

    /// The whole delivery's bytes.
    pub(in super::super) fn whole(&self, id: PayloadId) -> Option<(String, Bytes)> {
        self.0.get(&id).cloned()
    }
}

/// Loads whole bodies, each once.
pub(in super::super) async fn load(connection: &mut PgConnection, ids: &[PayloadId]) -> Sql<Bodies> {
    let mut bodies = Bodies::default();
    let look = Look { partitions: LOAD, kept: LOAD_KEPT, columns: "id, content_type, body" };
    let ids: BTreeSet<PayloadId> = ids.iter().copied().collect();
    look.find(connection, ids, &mut |row| {
        let body: Vec<u8> = row.try_get("body")?;
        bodies.0.insert(PayloadId(row.try_get("id")?), (row.try_get("content_type")?, Bytes::from(body)));
        Ok(())
    })
    .await?;
    Ok(bodies)
}

/// The sizes of those bodies that are there; reads no body.
pub(in super::super) async fn sizes(
    connection: &mut PgConnection,
    ids: &[PayloadId],
) -> Sql<HashMap<PayloadId, usize>> {
    let mut sizes = HashMap::new();
    let look = Look { partitions: SIZES, kept: SIZES_KEPT, columns: "id, octet_length(body) AS bytes" };
    look.find(connection, ids.iter().copied().collect(), &mut |row| {
        let bytes: i32 = row.try_get("bytes")?;
        sizes.insert(PayloadId(row.try_get("id")?), usize::try_from(bytes).unwrap_or(0));
        Ok(())
    })
    .await?;
    Ok(sizes)
}

/// What came along with a body.
#[derive(Debug, Clone)]
pub(in super::super) struct Envelope {
    pub content_type: String,
    pub url: String,
    pub headers: Vec<(String, Bytes)>,
}

/// What came along with these bodies; reads no body.
pub(in super::super) async fn envelopes(
    connection: &mut PgConnection,
    ids: &[PayloadId],
) -> Sql<HashMap<PayloadId, Envelope>> {
    let mut envelopes = HashMap::new();
    let look = Look { partitions: ENVELOPES, kept: ENVELOPES_KEPT, columns: "id, content_type, url, headers" };
    look.find(connection, ids.iter().copied().collect(), &mut |row| {
        let headers = rows::must(headers::parse(row.try_get("headers")?), "payloads.headers")?;
        let envelope = Envelope { content_type: row.try_get("content_type")?, url: row.try_get("url")?, headers };
        envelopes.insert(PayloadId(row.try_get("id")?), envelope);
        Ok(())
    })
    .await?;
    Ok(envelopes)
}

// The bounds say what the array says; but only by them does the planner leave out the other days' partitions.
const ENVELOPES: &str =
    "-- envelopes\nSELECT id, content_type, url, headers FROM payloads WHERE id = ANY($1) AND id BETWEEN $2 AND $3";
const ENVELOPES_KEPT: &str = "-- kept_envelopes\nSELECT id, content_type, url, headers FROM payloads_kept WHERE id = ANY($1) AND id BETWEEN $2 AND $3";
const LOAD: &str =
    "-- load_bodies\nSELECT id, content_type, body FROM payloads WHERE id = ANY($1) AND id BETWEEN $2 AND $3";
const LOAD_KEPT: &str =
    "-- load_kept_bodies\nSELECT id, content_type, body FROM payloads_kept WHERE id = ANY($1) AND id BETWEEN $2 AND $3";
const SIZES: &str =
    "-- body_sizes\nSELECT id, octet_length(body) AS bytes FROM payloads WHERE id = ANY($1) AND id BETWEEN $2 AND $3";
const SIZES_KEPT: &str = "-- kept_body_sizes\nSELECT id, octet_length(body) AS bytes FROM payloads_kept WHERE id = ANY($1) AND id BETWEEN $2 AND $3";

struct Look {
    partitions: &'static str,
    kept: &'static str,
    columns: &'static str,
}

impl Look {
    /// Looks where bodies may be, for those not found yet: one round trip if all are in their partitions.
    async fn find(
        &self,
        connection: &mut PgConnection,
        mut ids: BTreeSet<PayloadId>,
        take: &mut (dyn FnMut(&sqlx::postgres::PgRow) -> Sql<()> + Send),
    ) -> Sql<()> {
        self.look_in(connection, self.partitions, &mut ids, take).await?;
        self.look_in(connection, self.kept, &mut ids, take).await?;
        let days: BTreeSet<Day> = ids.iter().map(|id| Day::of(id.created_at())).collect();
        for day in days {
            self.look_in_detached(connection, day, &mut ids, take).await?;
        }
        // A day may have gone between the looks; what was needed of it is kept now.
        self.look_in(connection, self.kept, &mut ids, take).await
    }

    async fn look_in(
        &self,
        connection: &mut PgConnection,
        sql: &'static str,
        ids: &mut BTreeSet<PayloadId>,
        take: &mut (dyn FnMut(&sqlx::postgres::PgRow) -> Sql<()> + Send),
    ) -> Sql<()> {
        let (Some(first), Some(last)) = (ids.first(), ids.last()) else { return Ok(()) };
        let query = sqlx::query(sql).bind(wanted(ids)).bind(first.0).bind(last.0);
        for row in query.fetch_all(connection).await? {
            ids.remove(&PayloadId(row.try_get("id")?));
            take(&row)?;
        }
        Ok(())
    }

    /// A day's table that is no partition any more. It may be dropped under the look: that is no error, and undone.
    async fn look_in_detached(
        &self,
        connection: &mut PgConnection,
        day: Day,
        ids: &mut BTreeSet<PayloadId>,
        take: &mut (dyn FnMut(&sqlx::postgres::PgRow) -> Sql<()> + Send),
    ) -> Sql<()> {
        if !day_exists(connection, day).await? {
            return Ok(());
        }
        sqlx::raw_sql("SAVEPOINT detached_day").execute(&mut *connection).await?;
        // The table's name is made from a number; names cannot be parameters.
        let sql = AssertSqlSafe(format!(
            "-- look_in_detached_day\nSELECT {} FROM {} WHERE id = ANY($1)",
            self.columns,
            day.table()
        ));
        match sqlx::query(sql).persistent(false).bind(wanted(ids)).fetch_all(&mut *connection).await {
            Ok(found) => {
                for row in found {
                    ids.remove(&PayloadId(row.try_get("id")?));
                    take(&row)?;
                }
            }
            Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some("42P01") => {
                sqlx::raw_sql("ROLLBACK TO SAVEPOINT detached_day").execute(&mut *connection).await?;
            }
            Err(error) => return Err(error),
        }
        sqlx::raw_sql("RELEASE SAVEPOINT detached_day").execute(connection).await?;
        Ok(())
    }
}

/// Whether the day's table is still there, attached or not.
pub(in super::super) async fn day_exists(connection: &mut PgConnection, day: Day) -> Sql<bool> {
    sqlx::query("-- day_exists\nSELECT to_regclass($1) IS NOT NULL AS there")
        .bind(day.table())
        .fetch_one(connection)
        .await?
        .try_get("there")
}

fn wanted(ids: &BTreeSet<PayloadId>) -> Vec<Uuid> {
    ids.iter().map(|id| id.0).collect()
}
