# Packages of Debian's sid suite, unpacked into a folder of their own: nothing of the system is touched.
# shellcheck shell=bash

# The address of the Debian archive that this machine's own apt sources name.
debian_archive() {
    local file
    for file in /etc/apt/sources.list.d/*.sources; do
        [ -e "$file" ] || continue
        awk '
            /^[[:space:]]*$/ { uri = ""; suites = "" }
            /^URIs:/ { uri = $2 }
            /^Suites:/ { suites = $0 }
            uri != "" && suites != "" && suites !~ /-security/ && uri ~ /\/debian\/?$/ { print uri; exit }
        ' "$file"
    done
    for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
        [ -e "$file" ] || continue
        sed -nE 's#^deb[[:space:]]+(\[[^]]*\][[:space:]]+)?([^[:space:]]+/debian/?)[[:space:]]+[^[:space:]]+[[:space:]].*\bmain\b.*#\2#p' "$file"
    done
}

# Unpacks packages with all they depend on, once a machine: sid_prefix FOLDER PACKAGE…
sid_prefix() {
    local prefix=$CACHE/$1 work uri keyring=/usr/share/keyrings/debian-archive-keyring.gpg
    shift
    [ ! -e "$prefix/.complete" ] || return 0
    mkdir -p "$CACHE"
    exec 8>"$CACHE/lock"
    flock 8
    [ ! -e "$prefix/.complete" ] || { exec 8>&-; return 0; }
    command -v apt-get >/dev/null || die "needs apt-get to download $*"
    [ -e "$keyring" ] || install_packages debian-archive-keyring
    uri=$(debian_archive | head -n 1)
    [ -n "$uri" ] || die "found no Debian archive in /etc/apt/sources.list or /etc/apt/sources.list.d"
    work=$(mktemp -d "$CACHE/work.XXXXXX")
    mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/root"
    echo "deb [signed-by=$keyring] $uri sid main" >"$work/sources.list"
    local options=(
        -q -y
        -o "Dir::Etc::sourcelist=$work/sources.list" -o Dir::Etc::sourceparts=/dev/null
        -o "Dir::State::Lists=$work/lists" -o "Dir::Cache=$work/cache"
        -o "Dir::Cache::archives=$work/cache/archives" -o Dir::State::status=/dev/null
        -o APT::Install-Recommends=false -o APT::Sandbox::User=root -o Debug::NoLocking=1
    )
    say "downloading $1 and what it needs from Debian sid (once a machine, kept in $CACHE)"
    if ! {
        apt-get "${options[@]}" update &&
            apt-get "${options[@]}" --download-only install "$@"
    } </dev/null >"$work/log" 2>&1; then
        tail -n 20 "$work/log" >&2
        die "could not download $*; the whole log is in $work/log"
    fi
    local package
    for package in "$work"/cache/archives/*.deb; do
        dpkg -x "$package" "$work/root"
    done
    touch "$work/root/.complete"
    rm -rf "$prefix"
    mv "$work/root" "$prefix"
    rm -rf "$work"
    exec 8>&-
}
