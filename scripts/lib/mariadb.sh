# MariaDB of the distribution.
# shellcheck shell=bash

mariadb_packages() { echo mariadb-server; }
mariadb_install() { :; }
# The distribution may keep it out of an ordinary user's PATH.
mariadb_version() { /usr/sbin/mariadbd --no-defaults --version 2>/dev/null | sed -nE 's/.* Ver ([0-9.]+).*/\1/p'; }

mariadb_start() {
    local dir=$STATE/mariadb port options=()
    port=$(port_of mariadb)
    ! is_root || options+=(--user=root)
    if [ ! -e "$dir/data" ]; then
        say "preparing mariadb"
        rm -rf "$dir/new"
        mkdir -p "$dir"
        cat >"$dir/init.sql" <<SQL
FLUSH PRIVILEGES;
ALTER USER 'root'@'localhost' IDENTIFIED BY '$PASSWORD';
CREATE OR REPLACE USER 'root'@'127.0.0.1' IDENTIFIED BY '$PASSWORD';
GRANT ALL ON *.* TO 'root'@'127.0.0.1' WITH GRANT OPTION;
SQL
        {
            mariadb-install-db --no-defaults "--datadir=$dir/new" --auth-root-authentication-method=normal \
                --skip-test-db --skip-name-resolve --force "${options[@]}" </dev/null &&
                /usr/sbin/mariadbd --no-defaults --bootstrap "--datadir=$dir/new" "${options[@]}" <"$dir/init.sql"
        } >"$dir/log" 2>&1 || { show_logs mariadb; die "could not prepare mariadb"; }
        # Now at once, so that nothing half prepared is ever taken for the data.
        mv "$dir/new" "$dir/data"
    fi
    background mariadb /usr/sbin/mariadbd --no-defaults "--datadir=$dir/data" "${options[@]}" \
        --bind-address=127.0.0.1 "--port=$port" "--socket=$(socket_of mariadb)" "--pid-file=$dir/mariadbd.pid" \
        --skip-name-resolve --server-id=2 --log-bin=binlog --binlog-format=ROW --default-time-zone=+00:00 \
        --innodb-buffer-pool-size=256M --max-connections=500 --max-allowed-packet=1G --character-set-server=utf8mb4
}
mariadb_answers() { mariadb_client --connect-timeout=5 -e 'SELECT 1'; }

mariadb_client() { MYSQL_PWD=$PASSWORD mariadb --no-defaults --default-character-set=utf8mb4 -uroot -h127.0.0.1 "-P$(port_of mariadb)" "$@"; }

mariadb_url() { echo "mysql://root:$PASSWORD@127.0.0.1:$(port_of mariadb)"; }
