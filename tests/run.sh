#!/usr/bin/env bash
# Runs the tests, with cargo-nextest if it is there and `cargo test` if not:
#
#     tests/run.sh normal     all but the long ones
#     tests/run.sh long       the long ones only (#[ignore = "long"])
#
# Its last line is `N passed, N failed[, N skipped]`; the line before says why tests were skipped. A test that cannot run
# here says so in the file MAKBUZ_SKIPS (see tests/it/support.rs) and counts as skipped; with CI=true that is a failure.
# With MAKBUZ_TOTALS=FILE the three numbers are appended to it.
set -uo pipefail

cd "$(dirname "$0")/.."
kind=${1:-normal}
log=$(mktemp)
MAKBUZ_SKIPS=$(mktemp)
export MAKBUZ_SKIPS
trap 'rm -f "$log" "$MAKBUZ_SKIPS"' EXIT
failed_steps=0

run() { "$@" 2>&1 </dev/null | tee -a "$log" || failed_steps=$((failed_steps + 1)); }

# sum WORD PATTERN: adds up "N WORD" over the summary lines that match PATTERN, colours removed.
sum() { sed 's/\x1b\[[0-9;]*m//g' "$log" | grep -E "$2" | grep -oE "[0-9]+ $1" | awk '{n += $1} END {print n + 0}'; }

case $kind in
    normal) nextest=() libtest=() ;;
    long) nextest=(--run-ignored only) libtest=(--ignored) ;;
    *) echo "usage: tests/run.sh normal|long" >&2; exit 2 ;;
esac

if cargo nextest --version >/dev/null 2>&1; then
    run cargo nextest run --locked --no-fail-fast --no-tests pass "${nextest[@]}"
    # nextest runs no examples in documentation.
    [ "$kind" = long ] || run cargo test --locked --quiet --doc
else
    run cargo test --locked --no-fail-fast -- "${libtest[@]}"
fi

nextest_line='^ *Summary \['
libtest_line='^test result:'
passed=$(($(sum passed "$nextest_line") + $(sum passed "$libtest_line")))
failed=$(($(sum failed "$nextest_line|$libtest_line") + $(sum 'timed out' "$nextest_line") + $(sum 'exec failed' "$nextest_line")))
long=0
[ "$kind" = long ] || long=$(($(sum skipped "$nextest_line") + $(sum ignored "$libtest_line")))
unable=$(sort -u "$MAKBUZ_SKIPS" | grep -c . || true)

# A test that said it could not run came back as passed.
passed=$((passed - unable))
# Something went wrong outside of a test: the build, or the runner itself.
if [ "$failed_steps" -gt 0 ] && [ "$failed" -eq 0 ]; then failed=$failed_steps; echo "the runner failed before or beside the tests"; fi
if [ "$kind" = normal ] && [ "$passed" -eq 0 ] && [ "$failed" -eq 0 ]; then failed=1; echo "no test ran"; fi
if [ "${CI:-}" = true ] && [ "$unable" -gt 0 ]; then failed=$((failed + unable)); unable=0; echo "CI=true: a test that cannot run here is a failure:"; sort -u "$MAKBUZ_SKIPS"; fi

skipped=$((long + unable))
[ -z "${MAKBUZ_TOTALS:-}" ] || echo "$passed $failed $skipped" >>"$MAKBUZ_TOTALS"
why=""
[ "$long" -eq 0 ] || why="$long long (make test-all runs them)"
[ "$unable" -eq 0 ] || why="${why:+$why; }$(sort -u "$MAKBUZ_SKIPS" | paste -sd ';' | sed 's/;/; /g')"
[ -z "$why" ] || echo "skipped: $why"
if [ "$skipped" -gt 0 ]; then echo "$passed passed, $failed failed, $skipped skipped"; else echo "$passed passed, $failed failed"; fi
[ "$failed" -eq 0 ]
