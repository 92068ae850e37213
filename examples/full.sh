#!/usr/bin/env bash
# The gateway on PostgreSQL and RabbitMQ, in ./makbuz-dev-full/: sends one signed event, shows the message taken from the
# queue, then serves until Ctrl-C. `make run-full` calls it with the folder of the built programs; DATABASE_URL and
# AMQP_URL say where the services are. NAME (makbuz-dev) is the database's and the queues', EDGE_PORT (8080) and ADMIN_PORT
# (8081) where it listens.
set -euo pipefail

bin=${1:?usage: full.sh FOLDER_OF_THE_PROGRAMS}
: "${DATABASE_URL:?}" "${AMQP_URL:?}"
name=${NAME:-makbuz-dev}
edge=127.0.0.1:${EDGE_PORT:-8080}
admin=127.0.0.1:${ADMIN_PORT:-8081}
mkdir -p makbuz-dev-full
cd makbuz-dev-full
umask 077

random() { od -An -N24 -tx1 /dev/urandom | tr -d ' \n'; }
[ -s source-secret ] || printf 'whsec_%s' "$(head -c 32 /dev/urandom | base64 -w0)" >source-secret
[ -s operator-token ] || printf 'mkb_%s' "$(random)" >operator-token

# A database of its own where one can be made; else the one that was named.
database=${name//-/_}
if command -v psql >/dev/null; then
    psql -X -q -w "$DATABASE_URL" -Atc "SELECT 1 FROM pg_database WHERE datname = '$database'" | grep -q 1 ||
        psql -X -q -w "$DATABASE_URL" -c "CREATE DATABASE $database" >/dev/null
    base=${DATABASE_URL%%\?*}
    DATABASE_URL="${base%/*}/$database"
fi
export DATABASE_URL

cat >makbuz.toml <<TOML
[edge]
listen = "$edge"

[admin]
listen = "$admin"

[store]
url = "env:DATABASE_URL"

[amqp]
url = "env:AMQP_URL"
prefix = "$name"

[[token]]
name = "operator"
value = "file:operator-token"
role = "operator"

[[source]]
name = "dev"
provider = "standard-webhooks"
secrets = ["file:source-secret"]

[[subscription]]
name = "inbox"
target = "amqp"
TOML

"$bin/makbuz" migrate
"$bin/makbuz" serve &
server=$!
trap 'kill -TERM "$server" 2>/dev/null || true; wait "$server" || true' EXIT
trap 'exit 130' INT TERM

# ready: /readyz says 200.
ready() {
    exec 3<>"/dev/tcp/${admin/://}" || return 1
    printf 'GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n' >&3
    head -1 <&3 | grep -q ' 200 '
}
for _ in $(seq 150); do
    kill -0 "$server" 2>/dev/null || { echo "full.sh: the gateway has ended, see above" >&2; exit 1; }
    if (ready) 2>/dev/null; then break; fi
    sleep 0.2
done

echo
echo "== sends one event"
"$bin/makbuz" send standard-webhooks --to "http://$edge/in/dev" --secret file:source-secret
echo
echo "== the message, as a consumer of $name.inbox gets it; reported as completed"
timeout 30 "$bin/examples/consumer" "$AMQP_URL" "$name" inbox 1
cat <<TXT
== serving; Ctrl-C stops it
  post to   http://$edge/in/dev      signed as standard-webhooks, with makbuz-dev-full/source-secret
  look at   http://$admin/readyz      and /metrics
  try       cd makbuz-dev-full && $bin/makbuz receipts list && $bin/makbuz jobs list
TXT
wait "$server"
