-- Receipts: one per authentic event, kept for ever.
CREATE TABLE receipts (
    id                BLOB PRIMARY KEY NOT NULL CHECK (length(id) = 16),
    provider          TEXT NOT NULL CHECK (length(CAST(provider AS BLOB)) BETWEEN 1 AND 40),
    account           TEXT NOT NULL CHECK (length(CAST(account AS BLOB)) <= 128),
    event_id          TEXT NOT NULL CHECK (length(CAST(event_id AS BLOB)) BETWEEN 1 AND 320),
    provider_ref      TEXT NOT NULL,
    mode              TEXT NOT NULL CHECK (mode IN ('live', 'test', 'unknown')),
    source            TEXT NOT NULL,
    event_type        TEXT NOT NULL,
    occurred_at       INTEGER,
    received_at       INTEGER NOT NULL,
    resource_key      TEXT,
    resource_version  TEXT,
    payload_id        BLOB CHECK (length(payload_id) = 16),
    pointer           TEXT,
    part_start        INTEGER,
    part_end          INTEGER,
    item_sha256       BLOB CHECK (length(item_sha256) = 32),
    signed_sha256     BLOB CHECK (length(signed_sha256) = 32),
    replay_guard      INTEGER NOT NULL DEFAULT 0 CHECK (replay_guard IN (0, 1)),
    verified_by       TEXT,
    origin            TEXT NOT NULL CHECK (origin IN ('delivery', 'reconcile', 'admitted', 'imported')),
    flags             TEXT NOT NULL DEFAULT '',
    hold_reason       TEXT,
    duplicates        INTEGER NOT NULL DEFAULT 0,
    last_delivered_at INTEGER,
    CONSTRAINT receipts_key UNIQUE (provider, account, event_id),
    CHECK ((part_start IS NULL) = (part_end IS NULL)),
    CHECK ((origin = 'imported') = (payload_id IS NULL))
) STRICT;
CREATE INDEX receipts_signed ON receipts (signed_sha256, provider) WHERE replay_guard = 1;
-- For expiry: which receipts need a body. Ids grow with time, so the index only grows at its end.
CREATE INDEX receipts_payload ON receipts (payload_id) WHERE payload_id IS NOT NULL;

CREATE TABLE payloads (
    id           BLOB PRIMARY KEY NOT NULL CHECK (length(id) = 16),
    content_type TEXT NOT NULL,
    url          TEXT NOT NULL,
    headers      TEXT NOT NULL,
    codec        INTEGER NOT NULL DEFAULT 0,
    key_id       TEXT,
    body         BLOB NOT NULL
) STRICT;

-- Redeliveries: at most 32 kept for each receipt, all counted in receipts.duplicates.
CREATE TABLE deliveries (
    receipt_id    BLOB NOT NULL,
    at            INTEGER NOT NULL,
    source        TEXT NOT NULL,
    secret        TEXT NOT NULL,
    peer          TEXT NOT NULL,
    retry_headers TEXT NOT NULL DEFAULT '[]',
    verdict       TEXT NOT NULL
) STRICT;
CREATE INDEX deliveries_receipt ON deliveries (receipt_id, at);

CREATE TABLE divergences (
    receipt_id  BLOB NOT NULL,
    item_sha256 BLOB NOT NULL CHECK (length(item_sha256) = 32),
    at          INTEGER NOT NULL,
    source      TEXT NOT NULL,
    payload_id  BLOB NOT NULL,
    part_start  INTEGER,
    part_end    INTEGER,
    admitted_as TEXT,
    PRIMARY KEY (receipt_id, item_sha256)
) STRICT, WITHOUT ROWID;
CREATE INDEX divergences_payload ON divergences (payload_id);

CREATE TABLE jobs (
    receipt_id       BLOB NOT NULL CHECK (length(receipt_id) = 16),
    subscription     TEXT NOT NULL,
    source           TEXT NOT NULL,
    state            TEXT NOT NULL,
    attempt          INTEGER NOT NULL DEFAULT 0 CHECK (attempt >= 0),
    series           INTEGER NOT NULL DEFAULT 1 CHECK (series >= 1),
    series_attempts  INTEGER NOT NULL DEFAULT 0 CHECK (series_attempts BETWEEN 0 AND attempt),
    first_attempt_at INTEGER,
    next_attempt_at  INTEGER,
    leased_until     INTEGER,
    handed_at        INTEGER,
    lane             TEXT NOT NULL DEFAULT 'fresh' CHECK (lane IN ('fresh', 'slow')),
    resource_key     TEXT,
    turn_key         TEXT,
    reason           TEXT,
    fingerprint      TEXT,
    assignee         TEXT,
    note             TEXT,
    rearms           INTEGER NOT NULL DEFAULT 0,
    created_at       INTEGER NOT NULL,
    finished_at      INTEGER,
    PRIMARY KEY (receipt_id, subscription),
    CHECK (state IN ('pending', 'queued', 'running', 'retrying', 'completed', 'superseded', 'review', 'dismissed')),
    CHECK (leased_until IS NULL OR state = 'running'),
    CHECK ((state IN ('completed', 'superseded', 'dismissed')) = (finished_at IS NOT NULL)),
    CHECK (state <> 'retrying' OR next_attempt_at IS NOT NULL),
    CHECK (state <> 'review' OR reason IS NOT NULL),
    CHECK (state <> 'queued' OR handed_at IS NOT NULL)
) STRICT, WITHOUT ROWID;
CREATE INDEX jobs_live ON jobs (subscription, receipt_id) WHERE state IN ('pending', 'queued', 'running', 'retrying');
CREATE INDEX jobs_due ON jobs (subscription, next_attempt_at) WHERE state IN ('pending', 'retrying');
CREATE INDEX jobs_leased ON jobs (leased_until) WHERE leased_until IS NOT NULL;
CREATE INDEX jobs_queued ON jobs (subscription, handed_at) WHERE state IN ('queued', 'running') AND leased_until IS NULL;
CREATE INDEX jobs_review ON jobs (subscription, receipt_id) WHERE state = 'review';
CREATE UNIQUE INDEX jobs_turn ON jobs (subscription, turn_key) WHERE turn_key IS NOT NULL;

CREATE TABLE attempts (
    receipt_id         BLOB NOT NULL,
    subscription       TEXT NOT NULL,
    attempt            INTEGER NOT NULL CHECK (attempt >= 1),
    series             INTEGER NOT NULL CHECK (series >= 1),
    fetched_payload_id BLOB,
    "trigger"          TEXT NOT NULL,
    target             TEXT NOT NULL,
    signature          TEXT,
    sent_at            INTEGER,
    started_at         INTEGER NOT NULL,
    ended_at           INTEGER,
    outcome            TEXT CHECK (outcome IN ('started', 'completed', 'failed', 'rejected')),
    status             INTEGER,
    answer             BLOB CHECK (length(answer) <= 2048),
    error_class        TEXT,
    error_text         TEXT,
    consumer           TEXT,
    late               INTEGER NOT NULL DEFAULT 0 CHECK (late IN (0, 1)),
    next_at            INTEGER,
    PRIMARY KEY (receipt_id, subscription, attempt)
) STRICT, WITHOUT ROWID;

-- Hand-overs that wait for the broker: narrow, short-lived rows.
CREATE TABLE outbox (
    id           BLOB PRIMARY KEY NOT NULL CHECK (length(id) = 16),
    receipt_id   BLOB NOT NULL,
    subscription TEXT NOT NULL,
    attempt      INTEGER NOT NULL,
    lane         TEXT NOT NULL CHECK (lane IN ('fresh', 'slow')),
    "trigger"    TEXT NOT NULL,
    shard        INTEGER NOT NULL CHECK (shard BETWEEN 0 AND 31),
    next_at      INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX outbox_due ON outbox (subscription, next_at);
CREATE INDEX outbox_job ON outbox (receipt_id, subscription);

CREATE TABLE shards (
    shard INTEGER PRIMARY KEY CHECK (shard BETWEEN 0 AND 31),
    relay TEXT,
    until INTEGER NOT NULL DEFAULT 0
) STRICT;
WITH RECURSIVE numbers (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers WHERE n < 31)
INSERT INTO shards (shard) SELECT n FROM numbers;

CREATE TABLE relays (
    name  TEXT PRIMARY KEY NOT NULL,
    until INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Counters. There is one writer here, but the slots are those of PostgreSQL, where each writer adds to its own.
CREATE TABLE job_counts (
    subscription TEXT NOT NULL,
    state        TEXT NOT NULL,
    slot         INTEGER NOT NULL CHECK (slot BETWEEN 0 AND 64),
    n            INTEGER NOT NULL,
    PRIMARY KEY (subscription, state, slot)
) STRICT, WITHOUT ROWID;

CREATE TABLE rejections (
    id      BLOB PRIMARY KEY NOT NULL,
    at      INTEGER NOT NULL,
    bytes   INTEGER NOT NULL,
    source  TEXT NOT NULL,
    code    TEXT NOT NULL,
    detail  TEXT NOT NULL,
    peer    TEXT NOT NULL,
    method  TEXT NOT NULL,
    path    TEXT NOT NULL,
    headers TEXT NOT NULL,
    body    BLOB NOT NULL
) STRICT;
-- Holds all that trimming looks at.
CREATE INDEX rejections_at ON rejections (at, id, bytes);

CREATE TABLE operations (
    machine    TEXT NOT NULL,
    key        TEXT NOT NULL,
    seq        INTEGER NOT NULL,
    move       TEXT NOT NULL,
    result     TEXT NOT NULL CHECK (result IN ('applied', 'already', 'refused')),
    state      TEXT NOT NULL,
    receipt_id BLOB,
    at         INTEGER NOT NULL,
    actor      TEXT NOT NULL,
    reason     TEXT,
    PRIMARY KEY (machine, key, seq)
) STRICT, WITHOUT ROWID;

CREATE TABLE subscriptions (
    name             TEXT PRIMARY KEY NOT NULL,
    target           TEXT NOT NULL,
    state            TEXT NOT NULL DEFAULT 'active' CHECK (state IN ('active', 'paused', 'retired')),
    paused_at        INTEGER,
    paused_by        TEXT,
    first_report_at  INTEGER,
    unroutable_since INTEGER,
    updated_at       INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE secrets (
    id         BLOB PRIMARY KEY NOT NULL,
    source     TEXT NOT NULL,
    account    TEXT NOT NULL DEFAULT '',
    label      TEXT NOT NULL,
    key_id     TEXT NOT NULL,
    sealed     BLOB NOT NULL,
    not_before INTEGER,
    not_after  INTEGER,
    created_at INTEGER NOT NULL,
    removed_at INTEGER,
    last_match INTEGER
) STRICT;
CREATE INDEX secrets_source ON secrets (source, account) WHERE removed_at IS NULL;

CREATE TABLE settings (
    name  TEXT PRIMARY KEY NOT NULL,
    value BLOB NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE audit (
    id      BLOB PRIMARY KEY NOT NULL,
    at      INTEGER NOT NULL,
    actor   TEXT NOT NULL,
    action  TEXT NOT NULL,
    subject TEXT NOT NULL,
    detail  TEXT NOT NULL
) STRICT;

CREATE TABLE reconcile_runs (
    id          BLOB PRIMARY KEY NOT NULL,
    source      TEXT NOT NULL,
    started_at  INTEGER NOT NULL,
    ended_at    INTEGER,
    window_from INTEGER NOT NULL,
    window_to   INTEGER NOT NULL,
    seen        INTEGER NOT NULL DEFAULT 0,
    missing     INTEGER NOT NULL DEFAULT 0,
    differing   INTEGER NOT NULL DEFAULT 0,
    error       TEXT
) STRICT;
