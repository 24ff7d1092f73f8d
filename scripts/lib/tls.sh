# Certificates for TLS, private to this checkout: a CA that signed the server's and a client's, and one that signed neither.
# shellcheck shell=bash

# shellcheck disable=SC2153 # STATE is set where this is sourced
TLS_DIR=$STATE/tls
TLS_DAYS=3650
# With less than this left, they are made anew: no test run should see one expire.
TLS_SECONDS_LEFT=$((7 * 24 * 3600))

tls_is_good() {
    local name
    for name in ca server client other-ca other-client; do
        [ -s "$TLS_DIR/$name-key.pem" ] || return 1
        openssl x509 -in "$TLS_DIR/$name.pem" -noout -checkend $TLS_SECONDS_LEFT >/dev/null 2>&1 || return 1
    done
}

# Makes what is missing or expires soon; call it under the lock.
tls_prepare() {
    command -v openssl >/dev/null || install_packages openssl
    ! tls_is_good || return 0
    say "making certificates in $TLS_DIR"
    rm -rf "$TLS_DIR.new"
    mkdir -p "$TLS_DIR.new"
    (
        cd "$TLS_DIR.new" || exit
        tls_ca ca "outbox-relay test CA"
        tls_ca other-ca "outbox-relay CA that signed no server"
        tls_signed server ca serverAuth "subjectAltName=DNS:localhost,IP:127.0.0.1"
        tls_signed client ca clientAuth
        tls_signed other-client other-ca clientAuth
        rm -f ./*.csr ./*.srl
        chmod 644 ./*.pem
        chmod 600 ./*-key.pem
    ) >"$STATE/tls.log" 2>&1 || { tail -n 30 "$STATE/tls.log" >&2; die "could not make certificates"; }
    # At once, so that nothing half made is ever taken for the certificates.
    rm -rf "$TLS_DIR"
    mv "$TLS_DIR.new" "$TLS_DIR"
}

tls_key=(-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes)

# tls_ca NAME SUBJECT
tls_ca() {
    openssl req -x509 "${tls_key[@]}" -config /dev/null -subj "/CN=$2" -days $TLS_DAYS -keyout "$1-key.pem" -out "$1.pem" \
        -addext "basicConstraints=critical,CA:TRUE" -addext "keyUsage=critical,keyCertSign,cRLSign"
}

# tls_signed NAME CA USAGE [EXTENSION…]
tls_signed() {
    local name=$1 ca=$2 usage=$3
    shift 3
    openssl req -new "${tls_key[@]}" -config /dev/null -subj "/CN=outbox-relay test $name" -keyout "$name-key.pem" -out "$name.csr"
    openssl x509 -req -in "$name.csr" -CA "$ca.pem" -CAkey "$ca-key.pem" -CAcreateserial -days $TLS_DAYS -out "$name.pem" \
        -extfile <(printf '%s\n' "basicConstraints=critical,CA:FALSE" "keyUsage=critical,digitalSignature" \
            "extendedKeyUsage=$usage" "$@")
}

# Whether a server that runs was started before the certificates there are now.
tls_is_newer_than() { [ "$TLS_DIR/ca.pem" -nt "$STATE/$1/pid" ]; }
