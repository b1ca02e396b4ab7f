exec 250>&1 251>&2
__bj_nonce=NONCE
# A context of bash: the shell reads these lines, and then a few for each call, from what was its standard input.
# What the code prints goes where it always goes; the end of a call is told by a marked frame on copies of both streams.
# Before each of the two the way out that an interrupt took is closed again: `trap - DEBUG; set +T`, outside of any
# function, because it leaves those.
__bj_begin() {
  # Leaves the code, and every function that it stands in, one command after the other.
  trap '__bj_stopped=1; printf "\x1e%s%se000e{\"heard\":true}" "$__bj_nonce" "$__bj_call" >&251; set -T; trap "return 130 2>/dev/null" DEBUG; return 130 2>/dev/null' INT
  __bj_stopped=
  __bj_call=$1
  printf '\x1e%s%se000e{"begin":true}' "$__bj_nonce" "$__bj_call" >&250
  { : 249>&1; } 2>/dev/null || exec 1>&250
  : 249>&2 || exec 2>&251
}
__bj_end() {
  local __bj_told='{"end":true,"status":'$1',"stopped":'${__bj_stopped:-0}'}'
  printf '\x1e%s%se%04x%s' "$__bj_nonce" "$__bj_call" "${#__bj_told}" "$__bj_told" >&250
  printf '\x1e%s%se%04x%s' "$__bj_nonce" "$__bj_call" 12 '{"end":true}' >&251
}
