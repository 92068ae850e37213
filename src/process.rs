//! Processing: outcomes, claims, retries, rescue.
