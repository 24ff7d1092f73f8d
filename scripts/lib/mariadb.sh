# MariaDB of the distribution.
# shellcheck shell=bash

mariadb_packages() { echo mariadb-server; }
mariadb_install() { :; }
# The distribution may keep it out of an ordinary user's PATH.
mariadb_version() { /usr/sbin/mariadbd --no-defaults --version 2>/dev/null | sed -nE 's/.* Ver ([0-9.]+).*/\1/p'; }

# Its program, and what every server of it is started with, a word each.
mariadb_server() {
    printf '%s\n' /usr/sbin/mariadbd --no-defaults
    ! is_root || echo --user=root
}

# Prepares the data of a new server, with the account of the URL: mariadb_prepare FOLDER OPTIONS…
mariadb_prepare() {
    local folder=$1 command user=()
    shift
    mapfile -t command < <(mariadb_server)
    ! is_root || user=(--user=root)
    cat >"$folder.sql" <<SQL
FLUSH PRIVILEGES;
ALTER USER 'root'@'localhost' IDENTIFIED BY '$PASSWORD';
CREATE OR REPLACE USER 'root'@'127.0.0.1' IDENTIFIED BY '$PASSWORD';
GRANT ALL ON *.* TO 'root'@'127.0.0.1' WITH GRANT OPTION;
SQL
    mariadb-install-db --no-defaults "--datadir=$folder" --auth-root-authentication-method=normal \
        --skip-test-db --skip-name-resolve --force "${user[@]}" "$@" </dev/null &&
        "${command[@]}" --bootstrap "--datadir=$folder" "$@" <"$folder.sql"
}

mariadb_start() {
    local dir=$STATE/mariadb port command
    port=$(port_of mariadb)
    mapfile -t command < <(mariadb_server)
    if [ ! -e "$dir/data" ]; then
        say "preparing mariadb"
        rm -rf "$dir/new"
        mkdir -p "$dir"
        mariadb_prepare "$dir/new" >"$dir/log" 2>&1 || { show_logs mariadb; die "could not prepare mariadb"; }
        # Now at once, so that nothing half prepared is ever taken for the data.
        mv "$dir/new" "$dir/data"
    fi
    background mariadb "${command[@]}" "--datadir=$dir/data" \
        --bind-address=127.0.0.1 "--port=$port" "--socket=$(socket_of mariadb)" "--pid-file=$dir/mariadbd.pid" \
        --skip-name-resolve --server-id=2 --log-bin=binlog --binlog-format=ROW --default-time-zone=+00:00 \
        --innodb-buffer-pool-size=256M --max-connections=500 --max-allowed-packet=1G --character-set-server=utf8mb4 \
        "--ssl-ca=$TLS_DIR/ca.pem" "--ssl-cert=$TLS_DIR/server.pem" "--ssl-key=$TLS_DIR/server-key.pem"
}

# What a server that a test starts for itself is started with besides: small, and quick to begin.
mariadb_private() { echo --innodb-log-file-size=8M --innodb-buffer-pool-size=32M --character-set-server=utf8mb4; }
mariadb_answers() { mariadb_client --connect-timeout=5 -e 'SELECT 1'; }

mariadb_client() { MYSQL_PWD=$PASSWORD mariadb --no-defaults --default-character-set=utf8mb4 -uroot -h127.0.0.1 "-P$(port_of mariadb)" "$@"; }

mariadb_url() { echo "mysql://root:$PASSWORD@127.0.0.1:$(port_of mariadb)"; }
