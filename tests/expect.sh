# Sourced by the tests of programs: a scratch folder that disappears, and checks that count. Ends with `conclude`.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
passed=0 failed=0
ok() { passed=$((passed + 1)); }
bad() { failed=$((failed + 1)); echo "FAILED: $*" >&2; }
# expect CODE TEXT COMMAND...: the command ends with CODE and prints TEXT.
expect() {
  local code=$1 text=$2; shift 2
  local out; out=$("$@" 2>&1); local rc=$?
  if [ $rc -ne "$code" ]; then bad "exit $rc, expected $code: $*"; echo "$out" | tail -5 >&2
  elif ! grep -qF -- "$text" <<<"$out"; then bad "no \"$text\" in the output of: $*"; echo "$out" | tail -5 >&2
  else ok; fi
}
# without CODE PATTERN COMMAND...: the command ends with CODE and prints nothing that matches PATTERN.
without() {
  local code=$1 pattern=$2; shift 2
  local out; out=$("$@" 2>&1); local rc=$?
  if [ $rc -ne "$code" ]; then bad "exit $rc, expected $code: $*"; echo "$out" | tail -5 >&2
  elif grep -q -- "$pattern" <<<"$out"; then bad "\"$pattern\" in the output of: $*"; grep -m 3 -- "$pattern" <<<"$out" >&2
  else ok; fi
}
same() { if cmp -s "$1" "$2"; then ok; else bad "$1 and $2 differ"; fi; }
# losses FOLDER: of the steps of a run.
losses() { grep -o '"loss":[^,]*' "$1/metrics.jsonl"; }
present() { for f in "$@"; do if [ -s "$f" ]; then ok; else bad "$f is missing or empty"; fi; done; }
conclude() { echo "$passed passed, $failed failed"; [ "$failed" -eq 0 ]; }
