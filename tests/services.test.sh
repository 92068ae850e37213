#!/usr/bin/env bash
# Tries the branches of services.sh that a machine with running servers never takes, with stand-ins for the commands.
# A stand-in server is a Python process that listens on a free port; nothing real is started, stopped or installed.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
passed=0
cleanup() {
    for pid in $(cat "$work"/*.pid 2>/dev/null); do kill "$pid" 2>/dev/null || true; done
    rm -rf "$work"
}
trap cleanup EXIT

free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

# fake NAME BODY: a command of that name in the stand-in folder.
fake() { printf '#!/bin/bash\n%s\n' "$2" >"$work/bin/$1"; chmod +x "$work/bin/$1"; }

# What a stand-in does to begin to listen on port $1.
listener() {
    echo "python3 -c 'import socket,time; s=socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); s.bind((\"127.0.0.1\", $1)); s.listen(); time.sleep(60)' >/dev/null 2>&1 & echo \$! > $work/$1.pid"
}

# begin: an empty stand-in folder, in front of nothing but the plain tools.
begin() {
    rm -rf "$work/bin"
    mkdir -p "$work/bin"
    ln -s "$(python3 -c 'import sys; print(sys.executable)')" "$work/bin/python3"
    for tool in bash env id timeout sleep od tr tail sort head cat ls runuser sed dirname touch; do
        ln -s "$(command -v "$tool")" "$work/bin/$tool"
    done
    pg=$(free_port)
    amqp=$(free_port)
}

# run VAR=VALUE…: services.sh with only the stand-ins on the PATH.
run() {
    env -i PATH="$work/bin" HOME="$work" PGPORT="$pg" MAKBUZ_AMQP_PORT="$amqp" MAKBUZ_SERVICES_WAIT=10 "$@" \
        bash "$here/services.sh" >"$work/out" 2>"$work/err"
}

# must COMMAND…: shows what services.sh said when it fails.
must() {
    if "$@"; then return; fi
    cat "$work/out" "$work/err" >&2
    exit 1
}

expect() {
    if grep -q -- "$2" "$work/$1"; then passed=$((passed + 1)); return; fi
    echo "services.test: '$3': $1 lacks: $2" >&2
    cat "$work/out" "$work/err" >&2
    exit 1
}

begin
eval "$(listener "$pg")"; eval "$(listener "$amqp")"; sleep 0.5
must run DATABASE_URL="postgres://u:p@127.0.0.1:$pg/x" AMQP_URL="amqp://127.0.0.1:$amqp"
expect out "export DATABASE_URL='postgres://u:p@127.0.0.1:$pg/x'" "named servers are used as they are"
expect out "export AMQP_URL='amqp://127.0.0.1:$amqp'" "named servers are used as they are"

begin
run DATABASE_URL="postgres://127.0.0.1:$pg/x" && exit 1
expect err "nothing answers at 127.0.0.1:$pg" "a named server that is away is an error, not a reason for another"

begin
fake pg_lsclusters "echo '15 main $pg down postgres /d /l'"
fake pg_ctlcluster "echo \"\$*\" >>$work/called; $(listener "$pg")"
fake psql "echo t"
fake rabbitmq-server "echo \"rabbitmq-server \$*\" >>$work/called; $(listener "$amqp")"
fake rabbitmqctl "echo \"rabbitmqctl \$*\" >>$work/called"
: >"$work/called"
must run
expect called "--skip-systemctl-redirect 15 main start" "an installed PostgreSQL is started"
expect called "rabbitmq-server -detached" "an installed RabbitMQ is started"
expect called "await_startup" "and waited for"
expect out "@127.0.0.1:$pg/postgres" "and its address is printed"

begin
eval "$(listener "$pg")"; sleep 0.5
fake psql "case \"\$*\" in *ON_ERROR_STOP*) cat >$work/sql; touch $work/made ;; *makbuz_test*) [ -e $work/made ] && echo t ;; *) exit 2 ;; esac"
rm "$work/bin/runuser"
fake runuser 'shift 3; exec "$@"'
fake rabbitmq-server "$(listener "$amqp")"
must run MAKBUZ_SERVICES_UID=0
expect sql "CREATE ROLE makbuz_test LOGIN CREATEDB" "where no login works a role is made"
expect out "export DATABASE_URL='postgres://makbuz_test:[0-9a-f]\{32\}@127.0.0.1:$pg/postgres'" "and used"

begin
fake apt-get "echo \"apt-get \$*\" >>$work/called; case \"\$*\" in *postgresql*) $(listener "$pg") ;; *rabbitmq*) $(listener "$amqp") ;; esac; sleep 0.5"
fake psql "echo t"
: >"$work/called"
must run MAKBUZ_SERVICES_UID=0
expect called "install postgresql" "root installs what is missing"
expect called "install rabbitmq-server" "root installs what is missing"

begin
fake apt-get "exit 1"
run MAKBUZ_SERVICES_UID=1000 && exit 1
expect err "run 'apt-get install postgresql' as root" "others are told what is missing"

echo "$passed passed, 0 failed"
