//! The operators' listener: API, metrics, health.
