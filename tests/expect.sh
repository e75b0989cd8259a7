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
same() { if [ -s "$1" ] && cmp -s "$1" "$2"; then ok; else bad "$1 and $2 differ, or are missing"; fi; }
# unlike WHY FILE FILE: both are there, and are not the same.
unlike() { cmp -s "$2" "$3"; if [ $? -eq 1 ] && [ -s "$2" ] && [ -s "$3" ]; then ok; else bad "$1: expected other contents in $2 than in $3"; fi; }
# columns same|unlike FIELDS TABLE TABLE: so are these of both, and each table has lines below its head.
columns() {
  local left right found=same
  left=$(cut -d, -f"$2" "$3") right=$(cut -d, -f"$2" "$4")
  [ "$left" = "$right" ] || found=unlike
  if [[ $left == *$'\n'* && $right == *$'\n'* && $found == "$1" ]]; then ok; else bad "columns $2 of $3 and $4: expected $1, found ${left:0:300}, ${right:0:300}"; fi
}
# losses FOLDER: of the steps of a run.
losses() { grep -o '"loss":[^,]*' "$1/metrics.jsonl"; }
present() { for f in "$@"; do if [ -s "$f" ]; then ok; else bad "$f is missing or empty"; fi; done; }
# beside FUNCTION: runs its checks beside what follows; join_checks waits for all such, and counts theirs.
running=()
beside() {
  (
    passed=0 failed=0
    "$1"
    echo "$passed $failed" > "$1.counts"
  ) &
  running+=("$1")
}
join_checks() {
  trap 'kill $(jobs -p); exit 130' INT TERM  # those in the background do not hear of it
  wait
  trap - INT TERM
  local name right wrong
  for name in "${running[@]}"; do
    if read -r right wrong < "$name.counts"; then passed=$((passed + right)) failed=$((failed + wrong)); else bad "$name was broken off"; fi
  done
  running=()
}
conclude() { echo "$passed passed, $failed failed"; [ "$failed" -eq 0 ]; }
