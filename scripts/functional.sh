#!/usr/bin/env bash
# Runs the functional tests, PYTEST_PROCESSES at once, with the binary in WEIR.
# usage: functional.sh [PYTEST ARGUMENT...]
#
# With ONCE_MORE=yes, what failed beside others runs once more, alone, and decides. It is for machines that are slow and
# shared, where who waits for a daemon may have waited in vain; where a fault is sought, the first failure counts.
set -uo pipefail
cd "$(dirname "$0")/.."
failed=$(mktemp)
trap 'rm -f "$failed"' EXIT
.venv/bin/pytest tests -n "${PYTEST_PROCESSES:-3}" --dist loadgroup --failed-to "$failed" "$@"
status=$?
# 1: tests failed. All else is not about single tests.
[ "$status" = 1 ] && [ "${ONCE_MORE:-no}" = yes ] || exit "$status"
mapfile -t tests <"$failed"
echo "functional.sh: ${#tests[@]} of them run once more, alone:"
printf '    %s\n' "${tests[@]}"
timeout 900 .venv/bin/pytest -n 1 --dist loadfile "${tests[@]}"
