#!/usr/bin/env bash
# Finds or starts the PostgreSQL and the RabbitMQ that the tests need, and prints where they are as `export` lines:
#
#     eval "$(tests/services.sh)"
#
# In this order, for each: what DATABASE_URL or AMQP_URL names; what answers on the standard local port; an installed
# server, started; the distribution's packages, installed when this is root. Else it says exactly what is missing.
# Everything but the export lines goes to stderr. It never stops or reconfigures a server that it found running.
set -euo pipefail

PG_PORT=${PGPORT:-5432}
AMQP_PORT=${MAKBUZ_AMQP_PORT:-5672}
WAIT_S=${MAKBUZ_SERVICES_WAIT:-60}
# The role that is made where no login works; it may create databases and nothing else.
ROLE=makbuz_test

say() { echo "services: $*" >&2; }
die() { say "$*"; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }
root() { [ "${MAKBUZ_SERVICES_UID:-$(id -u)}" = 0 ]; }

# Does something accept connections there?
answers() { timeout 3 bash -c "exec 3<>/dev/tcp/$1/$2" 2>/dev/null; }

# wait_for WHAT COMMAND…: until the command succeeds, WAIT_S seconds at most.
wait_for() {
    local what=$1 until=$((SECONDS + WAIT_S))
    shift
    until "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$until" ] || die "$what did not become ready within $WAIT_S s"
        sleep 0.3
    done
}

# host_port URL DEFAULT_PORT: "host port" of a URL.
host_port() {
    local rest=${1#*://}
    rest=${rest%%\?*}
    rest=${rest%%/*}
    rest=${rest##*@}
    case $rest in
        *:*) echo "${rest%:*} ${rest##*:}" ;;
        *) echo "${rest:-127.0.0.1} $2" ;;
    esac
}

# install PACKAGE…: from the distribution, which only root may do.
install() {
    have apt-get || die "$* is not installed, and there is no apt-get: install it, or set DATABASE_URL and AMQP_URL"
    root || die "$* is not installed: run 'apt-get install $*' as root, or set DATABASE_URL and AMQP_URL"
    say "installing $*"
    DEBIAN_FRONTEND=noninteractive apt-get -qq update >&2 </dev/null
    DEBIAN_FRONTEND=noninteractive apt-get -qq -y install "$@" >&2 </dev/null
}

# --- PostgreSQL --------------------------------------------------------------------------------------------------

# Can this URL log in and create databases?
logs_in() {
    local allowed
    allowed=$(PGCONNECT_TIMEOUT=5 psql -w -X -At "$1" \
        -c "SELECT rolcreatedb OR rolsuper FROM pg_roles WHERE rolname = current_user" 2>/dev/null </dev/null) || return 1
    [ "$allowed" = t ]
}

as_postgres() {
    if [ "$(id -un)" = postgres ]; then "$@"
    elif root && have runuser; then runuser -u postgres -- "$@"
    elif have sudo; then sudo -n -u postgres "$@"
    else return 1; fi
}

# Prints the first URL that logs in; makes a role of our own, as the server's owner, if none does.
postgres_login() {
    local me url password
    have psql || die "PostgreSQL answers on port $PG_PORT but psql is missing to find a login: set DATABASE_URL"
    me=$(id -un)
    for url in "postgres://$me@127.0.0.1:$PG_PORT/postgres" "postgres://postgres@127.0.0.1:$PG_PORT/postgres"; do
        if logs_in "$url"; then echo "$url"; return; fi
    done
    say "no login without a password; making the role $ROLE"
    password=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
    as_postgres psql -X -q -v ON_ERROR_STOP=1 -p "$PG_PORT" -d postgres >&2 <<SQL ||
DO \$\$ BEGIN
    IF NOT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = '$ROLE') THEN CREATE ROLE $ROLE LOGIN CREATEDB; END IF;
END \$\$;
ALTER ROLE $ROLE LOGIN CREATEDB PASSWORD '$password';
SQL
        die "PostgreSQL answers on port $PG_PORT, but no login works and the role $ROLE could not be made: set DATABASE_URL to a role that may create databases"
    url="postgres://$ROLE:$password@127.0.0.1:$PG_PORT/postgres"
    logs_in "$url" || die "the role $ROLE was made but cannot log in over 127.0.0.1:$PG_PORT (see pg_hba.conf): set DATABASE_URL"
    echo "$url"
}

postgres_start() {
    local version name port status _
    have pg_lsclusters || return 1
    if [ -z "$(pg_lsclusters -h)" ]; then
        version=$(ls /usr/lib/postgresql 2>/dev/null | sort -n | tail -1)
        [ -n "$version" ] || return 1
        say "making the cluster $version main"
        pg_createcluster "$version" main >&2 || return 1
    fi
    read -r version name port status _ < <(pg_lsclusters -h | sort -rn | head -1)
    PG_PORT=$port
    case $status in
        online*) ;;
        *)
            say "starting PostgreSQL $version on port $port"
            pg_ctlcluster --skip-systemctl-redirect "$version" "$name" start >&2 || return 1
            ;;
    esac
    wait_for "PostgreSQL $version" answers 127.0.0.1 "$port"
}

postgres() {
    local host port
    if [ -n "${DATABASE_URL:-}" ]; then
        read -r host port < <(host_port "$DATABASE_URL" 5432)
        answers "$host" "$port" || die "DATABASE_URL is set, but nothing answers at $host:$port"
        URL=$DATABASE_URL
        return
    fi
    if ! answers 127.0.0.1 "$PG_PORT" && ! postgres_start; then
        install postgresql
        # A package's own scripts may have started it.
        answers 127.0.0.1 "$PG_PORT" || postgres_start || die "PostgreSQL was installed but does not start"
    fi
    URL=$(postgres_login)
}

# --- RabbitMQ ----------------------------------------------------------------------------------------------------

rabbitmq_start() {
    have rabbitmq-server || return 1
    say "starting RabbitMQ"
    rabbitmq-server -detached >&2 </dev/null || return 1
    wait_for RabbitMQ answers 127.0.0.1 "$AMQP_PORT"
    # The port opens before the node has booted.
    if have rabbitmqctl; then rabbitmqctl -q await_startup --timeout "$WAIT_S" >&2 </dev/null || return 1; fi
}

rabbitmq() {
    local host port
    if [ -n "${AMQP_URL:-}" ]; then
        read -r host port < <(host_port "$AMQP_URL" 5672)
        answers "$host" "$port" || die "AMQP_URL is set, but nothing answers at $host:$port"
        URL=$AMQP_URL
        return
    fi
    if ! answers 127.0.0.1 "$AMQP_PORT" && ! rabbitmq_start; then
        have rabbitmq-server && die "RabbitMQ is installed but does not start"
        install rabbitmq-server
        answers 127.0.0.1 "$AMQP_PORT" || rabbitmq_start || die "RabbitMQ was installed but does not start"
    fi
    URL="amqp://guest:guest@127.0.0.1:$AMQP_PORT/%2f"
}

postgres
echo "export DATABASE_URL='$URL'"
rabbitmq
echo "export AMQP_URL='$URL'"
