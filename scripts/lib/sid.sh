# Packages of Debian's sid suite, unpacked into a folder of their own: nothing of the system is touched.
# shellcheck shell=bash

# Addresses of the Debian archive that this machine's own apt sources name. Others that look like it may be among them;
# apt refuses those, as Debian has not signed them.
debian_archives() {
    local file
    {
        for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
            [ -e "$file" ] || continue
            sed -nE 's#^deb[[:space:]]+(\[[^]]*\][[:space:]]+)?([^[:space:]]+/debian/?)[[:space:]]+[^[:space:]]+[[:space:]](.*[[:space:]])?main([[:space:]].*)?$#\2#p' "$file"
        done
        for file in /etc/apt/sources.list.d/*.sources; do
            [ -e "$file" ] || continue
            awk '
                function paragraph() {
                    if (enabled && deb && main && suites !~ /-security/ && uri ~ /\/debian\/?$/) print uri
                    enabled = 1; deb = main = 0; uri = suites = ""
                }
                BEGIN { enabled = 1 }
                /^[[:space:]]*$/ { paragraph() }
                /^Enabled:[[:space:]]*no/ { enabled = 0 }
                /^Types:.*deb([[:space:]]|$)/ { deb = 1 }
                /^URIs:/ { uri = $2 }
                /^Suites:/ { suites = $0 }
                /^Components:.*[[:space:]]main([[:space:]]|$)/ { main = 1 }
                END { paragraph() }
            ' "$file"
        done
    } | awk '!seen[$0]++'
}

# Unpacks packages with all they depend on, once a machine: sid_prefix FOLDER FINISH PACKAGE…
# FINISH is called with the folder before it takes its place.
sid_prefix() {
    local name=$1 finish=$2 prefix=$CACHE/$1 work uri found=no package keyring=/usr/share/keyrings/debian-archive-keyring.gpg
    shift 2
    [ ! -e "$prefix/.complete" ] || return 0
    [ -e "$keyring" ] || install_packages debian-archive-keyring
    mkdir -p "$CACHE"
    exec 8>"$CACHE/lock"
    flock -n 8 || { say "waiting for another checkout that downloads"; flock 8; }
    [ ! -e "$prefix/.complete" ] || { exec 8>&-; return 0; }
    # What an interrupted run has left.
    rm -rf "$CACHE"/work.*
    work=$(mktemp -d "$CACHE/work.XXXXXX")
    mkdir -p "$CACHE/lists/partial" "$work/cache/archives/partial" "$work/root"
    local options=(
        -q -y
        -o "Dir::Etc::sourcelist=$work/sources.list" -o Dir::Etc::sourceparts=/dev/null
        -o "Dir::State::Lists=$CACHE/lists" -o "Dir::Cache=$work/cache"
        -o "Dir::Cache::archives=$work/cache/archives" -o Dir::State::status=/dev/null
        -o APT::Install-Recommends=false -o APT::Sandbox::User= -o Debug::NoLocking=1 -o APT::Update::Error-Mode=any
    )
    say "downloading $1 and what it needs from Debian sid (once a machine, kept in $CACHE)"
    for uri in $(debian_archives); do
        echo "deb [signed-by=$keyring] $uri sid main" >"$work/sources.list"
        if apt-get "${options[@]}" update </dev/null >>"$work/log" 2>&1; then
            found=yes
            break
        fi
    done
    [ -e "$work/sources.list" ] || die "found no Debian archive in /etc/apt/sources.list or /etc/apt/sources.list.d"
    if [ "$found" = no ] || ! apt-get "${options[@]}" --download-only install "$@" </dev/null >>"$work/log" 2>&1; then
        tail -n 30 "$work/log" >&2
        die "could not download $*; the whole log is in $work/log"
    fi
    for package in "$work"/cache/archives/*.deb; do
        dpkg -x "$package" "$work/root"
    done
    "$finish" "$work/root"
    touch "$work/root/.complete"
    rm -rf "$prefix"
    mv "$work/root" "$prefix"
    rm -rf "$work"
    # The package lists serve the next prefix, if there is one.
    if [ -e "$CACHE/mysql/.complete" ] && [ -e "$CACHE/rabbitmq/.complete" ]; then rm -rf "$CACHE/lists"; fi
    say "unpacked $name into $prefix"
    exec 8>&-
}
