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

say() { printf '%s\n' "$*" >&2; }
die() { say "services: $*"; exit 1; }
# Something a person has to do first.
ask() { say "services: $1"; say "  $2"; exit 2; }

is_root() { [ "$(id -u)" = 0 ]; }
may_be_root() { is_root || sudo -n true 2>/dev/null; }
as_root() { if is_root; then "$@"; else sudo -n "$@"; fi; }

# apt packages of the distribution, without their services being started.
install_packages() {
    local missing=() package policy=/usr/sbin/policy-rc.d made=no
    for package in "$@"; do
        dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    command -v apt-get >/dev/null || die "needs ${missing[*]}, and knows only apt-get to install them"
    may_be_root || ask "needs ${missing[*]}; install with:" "sudo apt-get install --no-install-recommends ${missing[*]}"
    say "installing ${missing[*]}"
    # Exit code 101 tells maintainer scripts to start no service.
    if [ ! -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null
        as_root chmod 755 "$policy"
        made=yes
    fi
    local log=$STATE/apt.log status=0
    {
        as_root apt-get -q update
        as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300 install --no-install-recommends "${missing[@]}"
    } </dev/null >"$log" 2>&1 || status=$?
    [ "$made" = no ] || as_root rm -f "$policy"
    if [ "$status" != 0 ]; then
        tail -n 20 "$log" >&2
        die "could not install ${missing[*]}; the whole log is in $log"
    fi
}

# A Rust toolchain and what it links with.
need_rust() {
    command -v cargo >/dev/null || ask "needs Rust 1.95 or later; with rustup installed, run:" \
        "rustup toolchain install stable"
    command -v cc >/dev/null || install_packages gcc libc6-dev
}

# A port of 127.0.0.1 that nobody listens on, below the range that the kernel hands out.
free_port() {
    local port
    while :; do
        port=$((21000 + RANDOM % 11000))
        grep -qs "=$port\$" "$STATE/ports" && continue
        (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || { echo "$port"; return; }
    done
}

# The port of that name, chosen once a checkout.
port_of() {
    local name=$1 port
    port=$(sed -n "s/^$name=//p" "$STATE/ports" 2>/dev/null)
    if [ -z "$port" ]; then
        port=$(free_port)
        echo "$name=$port" >>"$STATE/ports"
    fi
    echo "$port"
}

# Runs a server in the background, apart from this script and its file descriptors: background NAME COMMAND…
background() {
    local name=$1
    shift
    mkdir -p "$STATE/$name"
    # Descriptor 9 is the lock of this script.
    OUTBOX_SERVICE=$STATE/$name setsid nohup "$@" </dev/null >>"$STATE/$name/log" 2>&1 9>&- &
    echo $! >"$STATE/$name/pid"
}

# Whether a process was started from a server's environment.
belongs() {
    local environ
    { environ=$(tr '\0' '\n' <"/proc/$1/environ"); } 2>/dev/null || return 1
    [[ $'\n'$environ$'\n' == *$'\n'"OUTBOX_SERVICE=$STATE/$2"$'\n'* ]]
}

# The process id of a server that runs, by its own pid file, if the process is the one we started.
pid_of() {
    local name=$1 pid
    pid=$(cat "$STATE/$name/pid" 2>/dev/null) || return 1
    [ -n "$pid" ] && belongs "$pid" "$name" || return 1
    echo "$pid"
}

running() { pid_of "$1" >/dev/null; }

# Waits until a command succeeds: wait_until NAME WHAT COMMAND…
wait_until() {
    local name=$1 what=$2 begin=$SECONDS
    shift 2
    until sleep 0.2 && "$@" >/dev/null 2>&1; do
        if ! running "$name"; then
            tail -n 30 "$STATE/$name/log" >&2
            die "$name ended before it $what; the lines above are the end of $STATE/$name/log"
        fi
        if [ $((SECONDS - begin)) -ge $START_TIMEOUT ]; then
            tail -n 30 "$STATE/$name/log" >&2
            die "$name has not $what within $START_TIMEOUT s; the lines above are the end of $STATE/$name/log"
        fi
    done
    say "$name $what ($((SECONDS - begin)) s)"
}

# Every process that was started from a server's environment: its wrapper, itself, its helpers.
processes_of() {
    local name=$1 process
    for process in /proc/[0-9]*; do
        ! belongs "${process#/proc/}" "$name" || echo "${process#/proc/}"
    done
}

# Ends a server with all that belongs to it: stop_process NAME SIGNAL
stop_process() {
    local name=$1 signal=$2 begin=$SECONDS main pids
    main=$(pid_of "$name") || main=
    [ -z "$main" ] || [ "$signal" = KILL ] || as_root kill "-$signal" "$main" 2>/dev/null || true
    while [ "$signal" != KILL ] && running "$name" && [ $((SECONDS - begin)) -lt 60 ]; do
        sleep 0.1
    done
    # What is left: Erlang's port mapper, or all of it.
    while pids=$(processes_of "$name") && [ -n "$pids" ]; do
        # shellcheck disable=SC2086
        as_root kill -KILL $pids 2>/dev/null || true
        sleep 0.1
    done
    rm -f "$STATE/$name/pid"
    [ -z "$main" ] || say "$name is stopped"
}
