# recipe: deploy-hold
#!/bin/sh
# Deploys the shop; one deployment runs at a time.
set -eu
held=$(latchwork hold --wait "${DEPLOY_WAIT:-10m}" --on-loss usr1 deploy/shop) && eval "$held" || exit

child=
stop() {
    trap '' TERM INT USR1
    echo "deploy: $2" >&2
    [ -z "$child" ] || { kill "$child" && wait "$child"; } || true
    exit "$1" # the keeper releases the lock when this shell has ended
}
trap 'stop 73 "the lock is lost, another deployment may begin soon"' USR1
trap 'stop 143 "cancelled"' TERM
trap 'stop 130 "cancelled"' INT

# A shell runs no trap while it waits for a command in the foreground; `wait` is interrupted.
step() {
    "$@" &
    child=$!
    wait "$child"
    child=
}
step ./build.sh
step ./migrate.sh "$LATCHWORK_TOKEN"
step ./switch.sh "$LATCHWORK_TOKEN"

latchwork release
# end
