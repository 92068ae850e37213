#!/usr/bin/env bash
# Builds the gateway and the hand-written service of benches/baseline, both in release, and runs them against each other:
#
#     eval "$(tests/services.sh)"; benches/compare.sh
#
# ROUNDS, SPAN, CONNECTIONS, BODY and MODES are handed on; see benches/baseline/src/bin/compare.rs.
set -euo pipefail

cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
cargo build --locked --release --bin makbuz
# The same target folder, so that dependencies of the same version and features are built once.
cargo build --locked --release --manifest-path benches/baseline/Cargo.toml --target-dir "$target"
MAKBUZ="$target/release/makbuz" BASELINE="$target/release/baseline" exec "$target/release/compare"
