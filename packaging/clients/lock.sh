#!/bin/bash
# Holds a lock of `latchwork serve` while standard input is open, and prints held, lost or released.
#
#   lock.sh http://localhost:7117 nightly
#
# Exit code 73: the lock was lost, or nobody answered to its release: the work may have overlapped with that of another
# holder.
set -u
base=$1 name=$2 ttl=${TTL_MS:-15000}
ask() { curl -sS -H 'Content-Type: application/json' --max-time "$@"; } # seconds, then what curl is given
field() { sed -n "s/.*\"$1\":\"\{0,1\}\([^\",}]*\).*/\1/p"; }
# Every byte but letters, digits and -._~ becomes %XX.
encoded() {
  local LC_ALL=C rest=$1 byte code
  while [ -n "$rest" ]; do
    byte=${rest:0:1} rest=${rest:1}
    case $byte in
      [[:alnum:]._~-]) printf %s "$byte" ;;
      *) printf -v code %d "'$byte" && printf %%%02X $((code & 255)) ;; # some versions of bash sign it
    esac
  done
}
now() { cut -d' ' -f1 /proc/uptime | tr -d .; } # hundredths of a second, also while the machine sleeps

# Read the clock before each request: valid_for_ms counts from there.
sent=$(now)
# The same key is the same claim: a retry after a lost answer gets the same hold.
key=$(cat /proc/sys/kernel/random/uuid)
answer=$(ask $((ttl * 12 / 1000 + 1)) --retry 3 -H "Idempotency-Key: $key" -X POST "$base/v1/lock?name=$(encoded "$name")" \
  -d "{\"ttl_ms\": $ttl, \"wait_ms\": $((ttl * 10))}") || exit 69
hold=$(field hold <<<"$answer")
[ -n "$hold" ] || { echo "not acquired: $answer" >&2; exit 75; }
until=$((sent + $(field valid_for_ms <<<"$answer") / 10))
echo "held $(field token <<<"${answer%%\"locks\"*}")" # give the token to the resource

lost() {
  echo lost
  ask 1 -X DELETE "$base/v1/holds/$hold" >/dev/null 2>&1 # the work must have ended here: this releases what is left
  exit 73
}
while :; do
  # The work would be here: in steps, each after a check of the clock.
  [ "$(now)" -lt "$until" ] || lost
  read -r -t 0.2; [ $? -gt 128 ] || break # the end of standard input
  [ $((until - $(now))) -gt $((ttl * 2 / 30)) ] && continue # renew when a third has gone
  sent=$(now)
  answer=$(ask 1 -X POST "$base/v1/holds/$hold/renew") || continue
  case $answer in
    *'"valid_for_ms"'*) until=$((sent + $(field valid_for_ms <<<"$answer") / 10)) ;;
    *'"Lost"'* | *'"NotFound"'* | *'"Released"'*) lost ;;
  esac # anything else: try again, for as long as it is valid
done
case $(ask 10 -X DELETE "$base/v1/holds/$hold") in
  *'"released":true'*) echo released ;;
  *) lost ;; # also without an answer: nobody knows whether it was held until now
esac
