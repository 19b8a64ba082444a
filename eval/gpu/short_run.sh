#!/usr/bin/env bash
# Measures adaspec on a GPU that is there for a quarter of an hour. README.md beside this file says
# what happens minute by minute.
#
# here:   prepare WHEEL RECORDINGS   make what is carried, in eval/gpu/carry
#         hold [MINUTES]             take out of the index what need not travel, until restored
#         restore                    put it back (a `hold` that ends does so itself)
#         size                       how many bytes travel while it is held, with what is carried
# there:  measure [OPTION...]        unpack, and run rounds.py with these options
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

CARRY=eval/gpu/carry
LEFT_BEHIND=(docs eval/reports eval/traces eval/prompts policies/reference-pair-cpu training)
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
  export PYTHONPATH=$PWD:$PWD/eval/gpu
  "$PYTHON" eval/gpu/pack.py "$1" "$CARRY/site.tar.xz"
  "$PYTHON" -m adaspec import specdecode-bench "$2" -o "$CARRY/llama" \
    --target meta-llama/Llama-3.1-8B-Instruct --drafter EAGLE --force
  "$PYTHON" -c "import engines, pathlib; engines.tiny_models(pathlib.Path('$CARRY/models'))"
  size
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
  { git ls-files -z --cached --others --exclude-standard -- . "${LEFT_BEHIND[@]/#/:(exclude)}"
    find "$CARRY" -type f -print0 2>/dev/null || true; } |
    { xargs -0 stat -c %s -- 2>/dev/null || true; } | awk '{ bytes += $1 } END { printf "%.1f MiB travel\n", bytes / 2^20 }'
}

# What the host decides by is compiled by one process, on a core of its own, as others import vLLM.
compile_host_code() {
  "$PYTHON" - <<END
from adaspec.cost.load import DEFAULT
from adaspec.cost import ASYNC
from adaspec.cost.load import load_cost
from adaspec.policy.protocol import load_policy
from adaspec.policy.protocol import Setup
from adaspec.vllm.session.decider import warm_up

warm_up(load_policy("llama-3.1-8b-instruct-h100"), Setup(load_cost(DEFAULT), 16, 16, 128, True, True, ASYNC))
END
}

measure() {
  [ -n "${OUT:-}" ] || fail 'OUT names no folder for what is measured: OUT=results bash eval/gpu/short_run.sh measure'
  export PYTHONPATH=$KIT/site:$PWD${PYTHONPATH:+:$PYTHONPATH}
  if [[ " $* " != *' --dry-run '* ]]; then
    nvidia-smi || fail 'there is no GPU'
    if [ ! -d "$KIT/site" ]; then
      "$PYTHON" -m tarfile -e "$CARRY/site.tar.xz" "$KIT/part" ||
        fail "vLLM did not come whole: call again with carry=[\"$CARRY\"]"
      mv "$KIT/part" "$KIT/site"
    fi
    echo "unpacked after $SECONDS s"
    compile_host_code &
  fi
  "$PYTHON" eval/gpu/rounds.py --out "$OUT" --cache "$KIT/cache" \
    --max-s $((LIMIT_S - SECONDS)) "$@"
}

case ${1:-} in
  prepare | hold | restore | size | measure) "$@" ;;
  *) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
