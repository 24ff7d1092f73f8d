# MariaDB of the distribution.
# shellcheck shell=bash

# The distribution may keep it out of an ordinary user's PATH.
mariadb_install() { install_packages mariadb-server; }

mariadb_start() {
    local dir=$STATE/mariadb port options=()
    port=$(port_of mariadb)
    ! is_root || options+=(--user=root)
    if [ ! -e "$dir/data/mysql/global_priv.frm" ]; then
        say "preparing mariadb"
        rm -rf "$dir/data"
        mkdir -p "$dir"
        mariadb-install-db --no-defaults "--datadir=$dir/data" --auth-root-authentication-method=normal \
            --skip-test-db "${options[@]}" </dev/null >"$dir/log" 2>&1 ||
            { tail -n 20 "$dir/log" >&2; die "could not prepare mariadb"; }
        cat >"$dir/init.sql" <<SQL
CREATE USER IF NOT EXISTS 'root'@'127.0.0.1' IDENTIFIED BY '$PASSWORD';
ALTER USER 'root'@'127.0.0.1' IDENTIFIED BY '$PASSWORD';
GRANT ALL ON *.* TO 'root'@'127.0.0.1' WITH GRANT OPTION;
SQL
        options+=("--init-file=$dir/init.sql")
    fi
    background mariadb /usr/sbin/mariadbd --no-defaults "--datadir=$dir/data" "${options[@]}" \
        --bind-address=127.0.0.1 "--port=$port" "--socket=$(socket_of mariadb)" "--pid-file=$dir/mariadbd.pid" \
        --skip-name-resolve --server-id=2 --log-bin=binlog --binlog-format=ROW --default-time-zone=+00:00 \
        --innodb-buffer-pool-size=256M --max-connections=500 --max-allowed-packet=1G --character-set-server=utf8mb4
    wait_until mariadb "answers on 127.0.0.1:$port" mariadb_client -e 'SELECT 1'
}

mariadb_client() { MYSQL_PWD=$PASSWORD mariadb --no-defaults --default-character-set=utf8mb4 -uroot -h127.0.0.1 "-P$(port_of mariadb)" "$@"; }

mariadb_url() { echo "mysql://root:$PASSWORD@127.0.0.1:$(port_of mariadb)"; }
