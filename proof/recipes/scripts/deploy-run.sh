# recipe: deploy-run
#!/bin/sh
# Deploys the shop; one deployment runs at a time.
if [ "${1:-}" != --locked ]; then
    exec latchwork run --inherit --wait "${DEPLOY_WAIT:-10m}" --max-hold 1h deploy/shop -- sh "$0" --locked "$@"
fi
shift
set -eu

./build.sh
./migrate.sh "$LATCHWORK_TOKEN"
./switch.sh "$LATCHWORK_TOKEN"
# end
