# recipe: deploy-run
#!/bin/sh
# Deploys the shop; one deployment runs at a time.
[ "${LATCHWORK_KEY:-}" = deploy/shop ] ||
    exec latchwork run --wait "${DEPLOY_WAIT:-10m}" --max-hold 1h deploy/shop -- "$0" "$@"
set -eu

./build.sh
./migrate.sh "$LATCHWORK_TOKEN"
./switch.sh "$LATCHWORK_TOKEN"
# end
