# RabbitMQ: Debian sid's 4.x in a root folder of its own, and the distribution's 3.10.
# shellcheck shell=bash

RABBITMQ_PREFIX=$CACHE/rabbitmq
# The user that 4.x runs as, inside its root folder only.
RABBITMQ_ID=64055

# Without root, or in a container that may not mount, there is no other root folder: the distribution's version stands in.
RABBITMQ_IS_LEGACY=
rabbitmq_is_legacy() {
    if [ -z "$RABBITMQ_IS_LEGACY" ]; then
        RABBITMQ_IS_LEGACY=yes
        # shellcheck disable=SC2016
        ! may_be_root || ! as_root unshare --mount --propagation private \
            /bin/sh -c 'mount --bind /dev /mnt && chroot / true' >/dev/null 2>&1 || RABBITMQ_IS_LEGACY=no
    fi
    [ "$RABBITMQ_IS_LEGACY" = yes ]
}

rabbitmq_packages() { ! rabbitmq_is_legacy || rabbitmq_legacy_packages; }
rabbitmq_legacy_packages() { echo rabbitmq-server; }

rabbitmq_install() {
    if rabbitmq_is_legacy; then
        say "rabbitmq: 4.x needs root and the right to mount; the distribution's version stands in for it"
        return
    fi
    sid_prefix rabbitmq rabbitmq_finish \
        rabbitmq-server bash dash coreutils sed grep gawk procps hostname findutils util-linux
}
rabbitmq_legacy_install() { :; }

# Makes the folder of unpacked packages one that can be a root folder.
rabbitmq_finish() {
    local root=$1 link
    local bin=$root/usr/bin
    for link in bin sbin lib lib64; do
        # Debian's base folders are links into usr; a package that is unpacked by hand does not bring them.
        [ -e "$root/$link" ] || [ ! -d "$root/usr/$link" ] || ln -s "usr/$link" "$root/$link"
    done
    ln -sf dash "$bin/sh"
    ln -sf gawk "$bin/awk"
    mkdir -p "$root"/{etc,proc,dev,tmp,run,var/lib/rabbitmq,var/log/rabbitmq}
    chmod 1777 "$root/tmp"
    printf 'root:x:0:0::/root:/bin/sh\nrabbitmq:x:%s:%s::/var/lib/rabbitmq:/bin/sh\n' $RABBITMQ_ID $RABBITMQ_ID >"$root/etc/passwd"
    printf 'root:x:0:\nrabbitmq:x:%s:\n' $RABBITMQ_ID >"$root/etc/group"
    printf '127.0.0.1 localhost\n' >"$root/etc/hosts"
    printf 'hosts: files\n' >"$root/etc/nsswitch.conf"
}

# The version that is unpacked in a root folder: rabbitmq_version_in ROOT
rabbitmq_version_in() {
    local folder
    for folder in "$1"/usr/lib/rabbitmq/lib/rabbitmq_server-*; do
        [ ! -d "$folder" ] || echo "${folder##*-}"
    done
}
rabbitmq_version() { if rabbitmq_is_legacy; then rabbitmq_version_in ""; else rabbitmq_version_in "$RABBITMQ_PREFIX"; fi; }
rabbitmq_legacy_version() { rabbitmq_version_in ""; }

# Settings of an instance: rabbitmq_configure NAME FOLDER, where FOLDER is how the instance sees its own.
rabbitmq_configure() {
    local name=$1 home=$2 dir=$STATE/$1 port
    port=$(port_of "$name")
    mkdir -p "$dir/home/tls" "$dir/logs"
    # The instance may run as another user, in another root folder.
    cp "$TLS_DIR"/{ca,server,server-key}.pem "$dir/home/tls"
    cat >"$dir/home/rabbitmq.conf" <<CONF
listeners.tcp.1 = 127.0.0.1:$port
listeners.ssl.1 = 127.0.0.1:$(port_of "$name-tls")
ssl_options.cacertfile = $home/tls/ca.pem
ssl_options.certfile = $home/tls/server.pem
ssl_options.keyfile = $home/tls/server-key.pem
ssl_options.verify = verify_peer
ssl_options.fail_if_no_peer_cert = false
disk_free_limit.absolute = 50MB
vm_memory_high_watermark.absolute = 2GB
log.file.level = info
CONF
    echo '[].' >"$dir/home/enabled_plugins"
}

# The environment of an instance: rabbitmq_environment NAME HOME LOGS
rabbitmq_environment() {
    local name=$1 home=$2 logs=$3
    printf '%s\n' \
        "HOME=$home" "PATH=/usr/sbin:/usr/bin:/sbin:/bin" "LANG=C.UTF-8" \
        "OUTBOX_SERVICE=$STATE/$name" \
        "RABBITMQ_NODENAME=rabbit-$(port_of "$name")@localhost" "RABBITMQ_NODE_PORT=$(port_of "$name")" \
        "RABBITMQ_DIST_PORT=$(port_of "$name-dist")" "RABBITMQ_CONFIG_FILE=$home/rabbitmq.conf" \
        "RABBITMQ_MNESIA_BASE=$home/data" "RABBITMQ_LOG_BASE=$logs" \
        "RABBITMQ_ENABLED_PLUGINS_FILE=$home/enabled_plugins" "RABBITMQ_CONF_ENV_FILE=/dev/null" \
        "ERL_EPMD_ADDRESS=127.0.0.1" "ERL_EPMD_PORT=$(port_of "$name-epmd")" \
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=-kernel inet_dist_use_interface {127,0,0,1}"
}

# Runs a command of an instance in its own surroundings: rabbitmq_run NAME COMMAND…
rabbitmq_run() {
    local name=$1 variables
    shift
    if [ "$name" = rabbitmq ] && ! rabbitmq_is_legacy; then
        mapfile -t variables < <(rabbitmq_environment "$name" /var/lib/rabbitmq /var/log/rabbitmq)
        # The mounts live in a namespace of the command's own and end with it.
        # shellcheck disable=SC2016
        local inside='
            set -e
            mount --bind "$2/home" "$1/var/lib/rabbitmq"
            mount --bind "$2/logs" "$1/var/log/rabbitmq"
            mount --bind /proc "$1/proc"
            mount --bind /dev "$1/dev"
            root=$1; shift 2
            exec chroot --userspec='$RABBITMQ_ID:$RABBITMQ_ID' "$root" /usr/bin/env -i "$@"'
        exec_or_run as_root env "OUTBOX_SERVICE=$STATE/$name" unshare --mount --propagation private \
            /bin/sh -c "$inside" sh "$RABBITMQ_PREFIX" "$STATE/$name" "${variables[@]}" "$@"
    else
        mapfile -t variables < <(rabbitmq_environment "$name" "$STATE/$name/home" "$STATE/$name/logs")
        exec_or_run env -i "${variables[@]}" "$@"
    fi
}

# In the background the server has to take the place of this shell, so that its process id is the one we know.
exec_or_run() {
    if [ "$1" = as_root ]; then
        shift
        is_root || set -- sudo -n "$@"
    fi
    if [ "${RABBITMQ_EXEC:-}" = yes ]; then exec "$@"; else "$@"; fi
}

rabbitmq_start_instance() {
    local name=$1 dir=$STATE/$1
    need_port "$name-tls"
    need_port "$name-dist"
    need_port "$name-epmd"
    if [ "$name" = rabbitmq ] && ! rabbitmq_is_legacy; then
        # What an earlier run left is the server's already.
        is_root || [ ! -e "$dir/home" ] || as_root chown -R "$(id -u)" "$dir/home"
        rabbitmq_configure "$name" /var/lib/rabbitmq
        as_root chown -R $RABBITMQ_ID:$RABBITMQ_ID "$dir/home" "$dir/logs"
    else
        rabbitmq_configure "$name" "$dir/home"
    fi
    # shellcheck disable=SC2153 # ROOT is the checkout, root the folder of 4.x
    background "$name" "$ROOT/scripts/services" exec-rabbitmq "$name"
}

# A broker that is up answers a protocol header with Connection.Start.
amqp_answers() {
    local reply
    exec 7<>"/dev/tcp/127.0.0.1/$1" || return 1
    printf 'AMQP\x00\x00\x09\x01' >&7
    reply=$(timeout 2 head -c 7 <&7 | od -An -tx1 | tr -d ' \n')
    exec 7>&-
    [[ $reply == 010000* ]]
}

rabbitmq_answers() { amqp_answers "$(port_of rabbitmq)"; }
rabbitmq_legacy_answers() { amqp_answers "$(port_of rabbitmq-legacy)"; }
rabbitmq_start() { rabbitmq_start_instance rabbitmq; }
rabbitmq_legacy_start() { rabbitmq_start_instance rabbitmq-legacy; }
rabbitmq_client() { rabbitmq_run rabbitmq /usr/lib/rabbitmq/bin/rabbitmqctl "$@"; }
rabbitmq_legacy_client() { rabbitmq_run rabbitmq-legacy /usr/lib/rabbitmq/bin/rabbitmqctl "$@"; }

amqp_url() { echo "amqp://guest:guest@127.0.0.1:$(port_of "$1")/%2f"; }
amqps_url() { echo "amqps://guest:guest@127.0.0.1:$(port_of "$1-tls")/%2f"; }
