# Shared by the scripts here: where things are, how to speak, how to install, how to run a server in the background.
# shellcheck shell=bash

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)
STATE=$ROOT/target/services
# shellcheck disable=SC2034 # used by the other parts
CACHE=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/outbox-relay
# Servers listen on 127.0.0.1 only, so their passwords need not be secret.
# shellcheck disable=SC2034 # used by the other parts
PASSWORD=outbox
START_TIMEOUT=120
STOP_TIMEOUT=60

say() { printf '%s\n' "$*" >&2; }
die() { say "services: $*"; exit 1; }
# Something a person has to do first.
ask() { say "services: $1"; say "  $2"; exit 2; }

is_root() { [ "$(id -u)" = 0 ]; }
MAY_BE_ROOT=
may_be_root() {
    if [ -z "$MAY_BE_ROOT" ]; then
        if is_root || sudo -n true 2>/dev/null; then MAY_BE_ROOT=yes; else MAY_BE_ROOT=no; fi
    fi
    [ "$MAY_BE_ROOT" = yes ]
}
# As root where that is possible, else as who we are.
as_root() { if is_root || ! may_be_root; then "$@"; else sudo -n "$@"; fi; }

# Functions of a server are named by it, with _ for -: call NAME WHAT ARGS…
call() {
    local name=$1 what=$2
    shift 2
    "${name//-/_}_$what" "$@"
}

# apt packages of the distribution, without their services being started, now or at the next boot.
install_packages() {
    local missing=() package
    for package in "$@"; do
        [[ " ${missing[*]} " != *" $package "* ]] || continue
        dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    local command="sudo apt-get install --no-install-recommends ${missing[*]}"
    command -v apt-get >/dev/null || ask "needs what Debian names ${missing[*]}, and knows only this to install it:" "$command"
    may_be_root || ask "needs ${missing[*]}; install with:" "$command"
    mkdir -p "$CACHE" "$STATE"
    say "installing ${missing[*]} by apt-get"
    (
        policy=/usr/sbin/policy-rc.d log=$STATE/apt.log made=no status=0 units=()
        # One at a time: two would take each other's policy away.
        exec 8>"$CACHE/apt.lock"
        flock 8
        for unit in mariadb.service mariadb.socket rabbitmq-server.service epmd.service epmd.socket; do
            [ -e "/lib/systemd/system/$unit" ] || units+=("$unit")
        done
        # Exit code 101 tells maintainer scripts to start no service.
        trap '[ "$made" = no ] || as_root rm -f "$policy"' EXIT
        trap 'exit 130' INT
        trap 'exit 143' TERM
        if [ ! -e "$policy" ]; then
            made=yes
            printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null
            as_root chmod 755 "$policy"
        fi
        {
            as_root apt-get -q update
            as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300 \
                install --no-install-recommends "${missing[@]}"
        } </dev/null >"$log" 2>&1 || status=$?
        if command -v systemctl >/dev/null; then
            for unit in ${units[@]+"${units[@]}"}; do
                [ -e "/lib/systemd/system/$unit" ] || continue
                as_root systemctl --quiet disable --now "$unit" >>"$log" 2>&1 ||
                    as_root systemctl --quiet disable "$unit" >>"$log" 2>&1 || true
            done
        fi
        if [ "$status" != 0 ]; then
            tail -n 30 "$log" >&2
            die "could not install ${missing[*]}; the whole log is in $log"
        fi
    )
}

# A Rust toolchain and what it links with.
need_rust() {
    command -v cargo >/dev/null || ask "needs Rust 1.95 or later; with rustup installed, run:" \
        "rustup toolchain install stable"
    command -v cc >/dev/null || install_packages gcc libc6-dev
}

listened_on() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# A port of 127.0.0.1 that nobody listens on, below the range that the kernel hands out.
free_port() {
    local port
    while :; do
        port=$((21000 + RANDOM % 11000))
        grep -qs "=$port\$" "$STATE/ports" && continue
        listened_on "$port" || { echo "$port"; return; }
    done
}

# Chooses ports, once a checkout; call it under the lock.
choose_ports() {
    local name
    for name in "$@"; do
        [ -n "$(port_of "$name")" ] || echo "$name=$(free_port)" >>"$STATE/ports"
    done
}
port_of() { sed -n "s/^$1=//p" "$STATE/ports" 2>/dev/null || true; }

# Fails if others took a port in the meantime: their answers would be mistaken for ours.
need_port() {
    local port
    port=$(port_of "$1")
    ! listened_on "$port" || die "another process has taken $1's port $port; end it, or remove target/services to start" \
        "afresh on other ports"
}

# Runs a server in the background, apart from this script and its file descriptors: background NAME COMMAND…
background() {
    local name=$1 _
    shift
    mkdir -p "$STATE/$name"
    (
        cd "$STATE/$name" || exit
        # Whatever the caller has open would stay open as long as the server lives, locks and pipes as well.
        for descriptor in "/proc/$BASHPID/fd/"*; do
            descriptor=${descriptor##*/}
            [ "$descriptor" -le 2 ] || eval "exec $descriptor>&-"
        done
        OUTBOX_SERVICE=$STATE/$name exec setsid nohup "$@"
    ) </dev/null >>"$STATE/$name/log" 2>&1 &
    echo $! >"$STATE/$name/pid"
    for _ in {1..250}; do
        # Until it has taken the place of the subshell, or is gone.
        if running "$name" || ! kill -0 $! 2>/dev/null; then break; fi
        sleep 0.02
    done
}

# Those processes that were started from a server's environment: processes_among NAME /proc/PID/environ…
processes_among() {
    local mark=OUTBOX_SERVICE=$STATE/$1
    shift
    { as_root grep -lszxF -e "$mark" "$@" || true; } | tr -dc '0-9\n'
}

# The process id of a server that runs, by its own pid file, if the process is the one we started.
pid_of() {
    local name=$1 pid
    pid=$(cat "$STATE/$name/pid" 2>/dev/null) || return 1
    [ -n "$pid" ] && [ -e "/proc/$pid/environ" ] && [ -n "$(processes_among "$name" "/proc/$pid/environ")" ] || return 1
    echo "$pid"
}

running() { pid_of "$1" >/dev/null; }

# The end of what a server has to say for itself.
show_logs() {
    local log
    for log in "$STATE/$1/log" "$STATE/$1"/logs/*.log; do
        [ ! -s "$log" ] || tail -n 30 "$log" >&2
    done
}

# Waits until a command succeeds: wait_until NAME WHAT COMMAND…
wait_until() {
    local name=$1 what=$2 begin=$SECONDS
    shift 2
    until sleep 0.2 && "$@" >/dev/null 2>&1; do
        if ! running "$name"; then
            show_logs "$name"
            die "$name ended before it $what; its logs, shown above, are in $STATE/$name"
        fi
        if [ $((SECONDS - begin)) -ge $START_TIMEOUT ]; then
            show_logs "$name"
            die "$name has not $what within $START_TIMEOUT s; its logs, shown above, are in $STATE/$name"
        fi
    done
    say "$name $(call "$name" version) $what ($((SECONDS - begin)) s)"
}

# Every process that was started from a server's environment: its wrapper, itself, its helpers.
processes_of() { processes_among "$1" /proc/[0-9]*/environ; }

# Ends a server with all that belongs to it: stop_process NAME SIGNAL
stop_process() {
    local name=$1 signal=$2 begin=$SECONDS main pids
    main=$(pid_of "$name") || main=
    if [ -n "$main" ] && [ "$signal" != KILL ]; then
        as_root kill "-$signal" "$main" 2>/dev/null || true
        while running "$name" && [ $((SECONDS - begin)) -lt $STOP_TIMEOUT ]; do sleep 0.1; done
    fi
    # What is left: Erlang's port mapper, or all of it.
    while pids=$(processes_of "$name") && [ -n "$pids" ]; do
        # shellcheck disable=SC2086
        as_root kill -KILL $pids 2>/dev/null || true
        [ $((SECONDS - begin)) -lt $((STOP_TIMEOUT + 30)) ] || die "could not end $name: processes ${pids//$'\n'/ }"
        sleep 0.1
    done
    rm -f "$STATE/$name/pid"
    [ -z "$main" ] || say "$name is stopped"
}
