//! Signals, soft then hard stop, task tracking, exit code.
