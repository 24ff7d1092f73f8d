# MySQL 9: the machine's own mysqld if it is one of version 8 or later, else Debian sid's in a prefix.
# shellcheck shell=bash

MYSQL_PREFIX=$CACHE/mysql

# Whether the machine has a mysqld of its own that is MySQL, not MariaDB under its old name.
mysql_is_installed() {
    local version
    version=$(mysqld --no-defaults --version 2>/dev/null) || return 1
    [[ $version != *MariaDB* && $version =~ Ver\ ([0-9]+)\. && ${BASH_REMATCH[1]} -ge 8 ]]
}

# A program of the prefix, through the prefix's own loader.
mysql_program() {
    local triplet loader
    triplet=$(basename "$(find "$MYSQL_PREFIX/usr/lib" -maxdepth 1 -name '*-linux-gnu' | head -n 1)")
    loader=$(find "$MYSQL_PREFIX/usr/lib/$triplet" "$MYSQL_PREFIX/usr/lib64" -name 'ld-linux*' 2>/dev/null | head -n 1)
    echo "$loader" --library-path "$MYSQL_PREFIX/usr/lib/$triplet" "$MYSQL_PREFIX/$1"
}

mysql_command() {
    if mysql_is_installed; then
        echo mysqld --no-defaults
        return
    fi
    local share=$MYSQL_PREFIX/usr/share/mysql
    mysql_program usr/sbin/mysqld
    echo "--no-defaults --basedir=$MYSQL_PREFIX/usr --lc-messages-dir=$share --character-sets-dir=$share/charsets"
    echo "--plugin-dir=$MYSQL_PREFIX/usr/lib/mysql/plugin"
}

mysql_packages() { :; }
mysql_install() { mysql_is_installed || sid_prefix mysql true mysql-server-core mysql-client-core; }

mysql_version() {
    local command
    mysql_is_installed || [ -e "$MYSQL_PREFIX/.complete" ] || return 0
    read -r -d '' -a command < <(mysql_command) || true
    "${command[@]}" --version 2>/dev/null | sed -nE 's/.* Ver ([0-9.]+).*/\1/p'
}

# Its program, and what every server of it is started with, a word each.
mysql_server() {
    local command
    # The words of the command hold no spaces but between them: paths with spaces are refused up front.
    read -r -d '' -a command < <(mysql_command) || true
    command+=(--secure-file-priv=NULL --mysqlx=OFF)
    ! is_root || command+=(--user=root)
    printf '%s\n' "${command[@]}"
}

# Prepares the data of a new server, with the account of the URL: mysql_prepare FOLDER OPTIONS…
mysql_prepare() {
    local folder=$1 command
    shift
    mapfile -t command < <(mysql_server)
    cat >"$folder.sql" <<SQL
CREATE USER 'root'@'127.0.0.1' IDENTIFIED BY '$PASSWORD';
GRANT ALL ON *.* TO 'root'@'127.0.0.1' WITH GRANT OPTION;
ALTER USER 'root'@'localhost' IDENTIFIED BY '$PASSWORD';
SQL
    "${command[@]}" "--datadir=$folder" --initialize-insecure "--init-file=$folder.sql" "$@" </dev/null
}

mysql_start() {
    local dir=$STATE/mysql port command
    port=$(port_of mysql)
    mapfile -t command < <(mysql_server)
    if [ ! -e "$dir/data" ]; then
        say "preparing mysql"
        rm -rf "$dir/new"
        mkdir -p "$dir"
        mysql_prepare "$dir/new" >"$dir/log" 2>&1 || { show_logs mysql; die "could not prepare mysql"; }
        # Now at once, so that nothing half prepared is ever taken for the data.
        mv "$dir/new" "$dir/data"
    fi
    background mysql "${command[@]}" "--datadir=$dir/data" \
        --bind-address=127.0.0.1 "--port=$port" "--socket=$(socket_of mysql)" "--pid-file=$dir/mysqld.pid" \
        --skip-name-resolve --server-id=1 --log-bin=binlog --binlog-format=ROW --gtid-mode=ON \
        --enforce-gtid-consistency=ON --default-time-zone=+00:00 --innodb-buffer-pool-size=256M \
        --innodb-redo-log-capacity=256M --max-connections=500 --max-allowed-packet=1G --performance-schema=OFF \
        "--ssl-ca=$TLS_DIR/ca.pem" "--ssl-cert=$TLS_DIR/server.pem" "--ssl-key=$TLS_DIR/server-key.pem"
}

# What a server that a test starts for itself is started with besides: small, and quick to begin.
mysql_private() { echo --innodb-redo-log-capacity=8M --performance-schema=OFF --innodb-buffer-pool-size=32M; }
mysql_answers() { mysql_client --connect-timeout=5 -e 'SELECT 1'; }

mysql_client() {
    local client
    if mysql_is_installed; then client=(mysql); else read -r -d '' -a client < <(mysql_program usr/bin/mysql) || true; fi
    MYSQL_PWD=$PASSWORD "${client[@]}" --no-defaults --default-character-set=utf8mb4 -uroot -h127.0.0.1 "-P$(port_of mysql)" "$@"
}

mysql_url() { echo "mysql://root:$PASSWORD@127.0.0.1:$(port_of mysql)"; }
