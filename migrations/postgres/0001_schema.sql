-- Receipts: one per authentic event, kept for ever. Not partitioned: the unique key must span time.
CREATE TABLE receipts (
    id                uuid PRIMARY KEY,
    provider          text COLLATE "C" NOT NULL CHECK (octet_length(provider) BETWEEN 1 AND 40),
    account           text COLLATE "C" NOT NULL CHECK (octet_length(account) <= 128),
    event_id          text COLLATE "C" NOT NULL CHECK (octet_length(event_id) BETWEEN 1 AND 320),
    provider_ref      text NOT NULL,
    mode              text NOT NULL CHECK (mode IN ('live', 'test', 'unknown')),
    source            text COLLATE "C" NOT NULL,
    event_type        text COLLATE "C" NOT NULL,
    occurred_at       bigint,
    received_at       bigint NOT NULL,
    resource_key      text COLLATE "C",
    resource_version  text COLLATE "C",
    payload_id        uuid,
    pointer           text,
    part_start        bigint,
    part_end          bigint,
    item_sha256       bytea CHECK (octet_length(item_sha256) = 32),
    signed_sha256     bytea CHECK (octet_length(signed_sha256) = 32),
    replay_guard      boolean NOT NULL DEFAULT false,
    verified_by       text,
    origin            text NOT NULL CHECK (origin IN ('delivery', 'reconcile', 'admitted', 'imported')),
    flags             text NOT NULL DEFAULT '',
    hold_reason       text,
    duplicates        bigint NOT NULL DEFAULT 0,
    last_delivered_at bigint,
    CONSTRAINT receipts_key UNIQUE (provider, account, event_id),
    CHECK ((part_start IS NULL) = (part_end IS NULL)),
    CHECK ((origin = 'imported') = (payload_id IS NULL))
);
CREATE INDEX receipts_signed ON receipts (signed_sha256, provider) WHERE replay_guard;

-- Bodies: a partition a day, by the time in their own id. No DEFAULT partition: a missing day is made on the spot.
CREATE TABLE payloads (
    id           uuid NOT NULL,
    body         bytea NOT NULL,
    headers      text NOT NULL,
    content_type text NOT NULL,
    url          text NOT NULL,
    codec        smallint NOT NULL DEFAULT 0,
    key_id       text,
    PRIMARY KEY (id)
) PARTITION BY RANGE (id);

-- Bodies that outlive their day because a job still needs them.
CREATE TABLE payloads_kept (
    id           uuid PRIMARY KEY,
    body         bytea NOT NULL,
    headers      text NOT NULL,
    content_type text NOT NULL,
    url          text NOT NULL,
    codec        smallint NOT NULL DEFAULT 0,
    key_id       text
);

-- Redeliveries: at most 32 kept for each receipt, all counted in receipts.duplicates.
CREATE TABLE deliveries (
    receipt_id    uuid NOT NULL,
    at            bigint NOT NULL,
    source        text NOT NULL,
    secret        text NOT NULL,
    peer          text NOT NULL,
    retry_headers text NOT NULL DEFAULT '[]',
    verdict       text NOT NULL
);
CREATE INDEX deliveries_receipt ON deliveries (receipt_id, at);

CREATE TABLE divergences (
    receipt_id  uuid NOT NULL,
    item_sha256 bytea NOT NULL CHECK (octet_length(item_sha256) = 32),
    at          bigint NOT NULL,
    source      text NOT NULL,
    payload_id  uuid NOT NULL,
    part_start  bigint,
    part_end    bigint,
    admitted_as text,
    PRIMARY KEY (receipt_id, item_sha256)
);

CREATE TABLE jobs (
    receipt_id       uuid NOT NULL,
    subscription     text COLLATE "C" NOT NULL,
    source           text COLLATE "C" NOT NULL,
    state            text COLLATE "C" NOT NULL,
    attempt          integer NOT NULL DEFAULT 0 CHECK (attempt >= 0),
    series           integer NOT NULL DEFAULT 1 CHECK (series >= 1),
    series_attempts  integer NOT NULL DEFAULT 0 CHECK (series_attempts BETWEEN 0 AND attempt),
    first_attempt_at bigint,
    next_attempt_at  bigint,
    leased_until     bigint,
    handed_at        bigint,
    lane             text NOT NULL DEFAULT 'fresh' CHECK (lane IN ('fresh', 'slow')),
    resource_key     text COLLATE "C",
    turn_key         text COLLATE "C",
    reason           text,
    fingerprint      text,
    assignee         text,
    note             text,
    rearms           integer NOT NULL DEFAULT 0,
    created_at       bigint NOT NULL,
    finished_at      bigint,
    PRIMARY KEY (receipt_id, subscription),
    CHECK (state IN ('pending', 'queued', 'running', 'retrying', 'completed', 'superseded', 'review', 'dismissed')),
    CHECK (leased_until IS NULL OR state = 'running'),
    CHECK ((state IN ('completed', 'superseded', 'dismissed')) = (finished_at IS NOT NULL)),
    CHECK (state <> 'retrying' OR next_attempt_at IS NOT NULL),
    CHECK (state <> 'review' OR reason IS NOT NULL),
    CHECK (state <> 'queued' OR handed_at IS NOT NULL)
) WITH (fillfactor = 85);
CREATE INDEX jobs_live ON jobs (subscription, receipt_id) WHERE state IN ('pending', 'queued', 'running', 'retrying');
-- Two short looks for what is due: fresh jobs by receipt, retries by their time.
CREATE INDEX jobs_pending ON jobs (subscription, receipt_id) WHERE state = 'pending';
CREATE INDEX jobs_retrying ON jobs (subscription, next_attempt_at) WHERE state = 'retrying';
CREATE INDEX jobs_leased ON jobs (leased_until) WHERE leased_until IS NOT NULL;
CREATE INDEX jobs_queued ON jobs (subscription, handed_at) WHERE state IN ('queued', 'running') AND leased_until IS NULL;
CREATE INDEX jobs_review ON jobs (subscription, receipt_id) WHERE state = 'review';
CREATE UNIQUE INDEX jobs_turn ON jobs (subscription, turn_key) WHERE turn_key IS NOT NULL;

CREATE TABLE attempts (
    receipt_id         uuid NOT NULL,
    subscription       text COLLATE "C" NOT NULL,
    attempt            integer NOT NULL CHECK (attempt >= 1),
    series             integer NOT NULL CHECK (series >= 1),
    fetched_payload_id uuid,
    trigger            text NOT NULL,
    target             text NOT NULL,
    signature          text,
    sent_at            bigint,
    started_at         bigint NOT NULL,
    ended_at           bigint,
    outcome            text CHECK (outcome IN ('started', 'completed', 'failed', 'rejected')),
    status             integer,
    answer             bytea CHECK (octet_length(answer) <= 2048),
    error_class        text,
    error_text         text,
    consumer           text,
    late               boolean NOT NULL DEFAULT false,
    next_at            bigint,
    PRIMARY KEY (receipt_id, subscription, attempt)
);

-- Hand-overs that wait for the broker: narrow, short-lived rows.
CREATE TABLE outbox (
    id           uuid PRIMARY KEY,
    receipt_id   uuid NOT NULL,
    subscription text COLLATE "C" NOT NULL,
    attempt      integer NOT NULL,
    lane         text NOT NULL CHECK (lane IN ('fresh', 'slow')),
    trigger      text NOT NULL,
    shard        smallint NOT NULL CHECK (shard BETWEEN 0 AND 31),
    next_at      bigint NOT NULL
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
        autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.02);
-- By lane: a subscription that stands still is stepped over, however many of its rows wait.
CREATE INDEX outbox_lane ON outbox (shard, subscription, next_at);
CREATE INDEX outbox_job ON outbox (receipt_id, subscription);

CREATE TABLE shards (
    shard smallint PRIMARY KEY CHECK (shard BETWEEN 0 AND 31),
    relay text COLLATE "C",
    until bigint NOT NULL DEFAULT 0
);
INSERT INTO shards (shard) SELECT generate_series(0, 31);

CREATE TABLE relays (
    name  text COLLATE "C" PRIMARY KEY,
    until bigint NOT NULL
);

-- Counters: a writer adds to a slot of its own, so that writers do not wait for one another.
CREATE TABLE job_counts (
    subscription text COLLATE "C" NOT NULL,
    state        text COLLATE "C" NOT NULL,
    slot         smallint NOT NULL CHECK (slot BETWEEN 0 AND 64),
    n            bigint NOT NULL,
    PRIMARY KEY (subscription, state, slot)
) WITH (fillfactor = 50);

CREATE TABLE rejections (
    id      uuid PRIMARY KEY,
    at      bigint NOT NULL,
    bytes   bigint NOT NULL,
    source  text NOT NULL,
    code    text NOT NULL,
    detail  text NOT NULL,
    peer    text NOT NULL,
    method  text NOT NULL,
    path    text NOT NULL,
    headers text NOT NULL,
    body    bytea NOT NULL
);
-- Holds all that trimming looks at.
CREATE INDEX rejections_at ON rejections (at, id, bytes);

CREATE TABLE operations (
    machine    text COLLATE "C" NOT NULL,
    key        text COLLATE "C" NOT NULL,
    seq        integer NOT NULL,
    move       text NOT NULL,
    result     text NOT NULL CHECK (result IN ('applied', 'already', 'refused')),
    state      text NOT NULL,
    receipt_id uuid,
    at         bigint NOT NULL,
    actor      text NOT NULL,
    reason     text,
    PRIMARY KEY (machine, key, seq)
);

CREATE TABLE subscriptions (
    name             text COLLATE "C" PRIMARY KEY,
    target           text NOT NULL,
    state            text NOT NULL DEFAULT 'active' CHECK (state IN ('active', 'paused', 'retired')),
    paused_at        bigint,
    paused_by        text,
    first_report_at  bigint,
    unroutable_since bigint,
    updated_at       bigint NOT NULL
);

CREATE TABLE secrets (
    id         uuid PRIMARY KEY,
    source     text COLLATE "C" NOT NULL,
    account    text COLLATE "C" NOT NULL DEFAULT '',
    label      text NOT NULL,
    key_id     text NOT NULL,
    sealed     bytea NOT NULL,
    not_before bigint,
    not_after  bigint,
    created_at bigint NOT NULL,
    removed_at bigint,
    last_match bigint
);
CREATE INDEX secrets_source ON secrets (source, account) WHERE removed_at IS NULL;

CREATE TABLE settings (
    name  text COLLATE "C" PRIMARY KEY,
    value bytea NOT NULL
);

CREATE TABLE audit (
    id      uuid PRIMARY KEY,
    at      bigint NOT NULL,
    actor   text NOT NULL,
    action  text NOT NULL,
    subject text NOT NULL,
    detail  text NOT NULL
);

CREATE TABLE reconcile_runs (
    id          uuid PRIMARY KEY,
    source      text NOT NULL,
    started_at  bigint NOT NULL,
    ended_at    bigint,
    window_from bigint NOT NULL,
    window_to   bigint NOT NULL,
    seen        bigint NOT NULL DEFAULT 0,
    missing     bigint NOT NULL DEFAULT 0,
    differing   bigint NOT NULL DEFAULT 0,
    error       text
);
