#!/usr/bin/env bash
# Measures adaspec on a GPU that is there for a quarter of an hour. README.md beside this file says
# what happens minute by minute.
#
# here:   prepare WHEEL RECORDINGS   make what is carried, in eval/gpu/carry
#         hold [MINUTES]             take out of the index what need not travel, until restored
#         restore                    put it back (a `hold` that ends does so itself)
#         size                       how many bytes travel with the checkout while it is held
# there:  first                      unpack the first piece
#         measure [OPTION...]        unpack the second, check, and run rounds.py with these options
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

CARRY=eval/gpu/carry
LEFT_BEHIND=(eval/reports docs/headline.png training/reference_pair)
KIT=${KIT:-/tmp/adaspec-kit}       # on the machine with the GPU; it stays there between calls
LIMIT_S=${LIMIT_S:-560}            # of a call, with what it takes to end
# The checkout's own environment, where there is one: `prepare` needs adaspec's packages.
PYTHON=${PYTHON:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)}
BEGIN='# eval/gpu/short_run.sh: left behind' END='# eval/gpu/short_run.sh: end'

fail() { echo "short_run: $*" >&2; exit 2; }

exclude() { git rev-parse --git-path info/exclude; }

# What was committed when it was held; of this worktree alone, while `exclude` is all worktrees'.
mark() { git rev-parse --git-path adaspec-held; }

is_held() { [ -e "$(mark)" ]; }

prepare() {
  [ $# = 2 ] || fail "prepare WHEEL RECORDINGS: vLLM's wheel for CUDA, and the folder of recordings"
  "$PYTHON" eval/gpu/pack.py make "$1" -o "$CARRY"
  "$PYTHON" -m adaspec import specdecode-bench "$2" -o "$CARRY/llama" \
    --target meta-llama/Llama-3.1-8B-Instruct --drafter EAGLE --force
}

hold() {
  local minutes=${1:-45}
  [[ $minutes =~ ^(0|[1-9][0-9]{0,3})$ ]] || fail "hold MINUTES: '$minutes' is no whole number of minutes"
  ! is_held || fail 'it is held already; commit nothing, and end it: bash eval/gpu/short_run.sh restore'
  git diff --cached --quiet || fail 'the index has staged changes: commit or unstage them first'
  local until_s=$((SECONDS + 60 * minutes))
  trap restore EXIT
  trap 'exit 143' INT TERM HUP
  mkdir -p "$(dirname "$(exclude)")"
  git rev-parse HEAD >"$(mark)"
  # A last line of somebody else's may lack its end.
  [ -z "$(tail -c 1 "$(exclude)" 2>/dev/null)" ] || echo >>"$(exclude)"
  { echo "$BEGIN"; printf '/%s\n' "${LEFT_BEHIND[@]}"; echo "$END"; } >>"$(exclude)"
  git rm -r -q --cached --ignore-unmatch -- "${LEFT_BEHIND[@]}"
  echo "held for $minutes minutes, or until: bash eval/gpu/short_run.sh restore"
  size
  while is_held && [ $SECONDS -lt $until_s ]; do sleep 1 & wait $!; done
}

restore() {
  is_held || return 0
  # From the commit at that time: one made meanwhile would lack them.
  git reset -q "$(cat "$(mark)")" -- "${LEFT_BEHIND[@]}"
  sed -i "\|^$BEGIN\$|,\|^$END\$|d" "$(exclude)"
  rm -f "$(mark)"
}

size() {
  git ls-files -z --cached --others --exclude-standard -- . "${LEFT_BEHIND[@]/#/:(exclude)}" |
    { xargs -0 stat -c %s -- 2>/dev/null || true; } | awk '{ bytes += $1 } END { print bytes, "bytes travel" }'
}

unpack() {
  "$PYTHON" eval/gpu/pack.py unpack "$CARRY/$1" -o "$KIT/site" ||
    fail "the piece '$1' did not come whole: call again with carry=[\"$CARRY/$1\"]"
}

first() {
  nvidia-smi || fail 'there is no GPU'
  rm -rf "$KIT"
  unpack first
}

measure() {
  [ -n "${OUT:-}" ] || fail 'OUT names no folder for what is measured: OUT=results bash eval/gpu/short_run.sh measure'
  export PYTHONPATH=$KIT/site:$PWD${PYTHONPATH:+:$PYTHONPATH}
  if [[ " $* " != *' --dry-run '* ]]; then
    [ -d "$KIT/site" ] || fail "the first piece is not on this machine: begin again with 'first'"
    [ ! -d "$CARRY/second" ] || unpack second
    "$PYTHON" eval/gpu/checks.py "$OUT/checks.json" || fail 'see above: no engine would start'
  fi
  "$PYTHON" eval/gpu/rounds.py --out "$OUT" --cache "$KIT/cache" \
    --max-s $((LIMIT_S - SECONDS)) "$@"
}

case ${1:-} in
  prepare | hold | restore | size | first | measure) "$@" ;;
  *) sed -n '2,11s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
