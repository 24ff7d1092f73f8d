# shellcheck shell=bash
# Six orders and what becomes of them, for scripts/demo: a good one, one that is repeated, and four that go wrong.
# Uses APP_HTTP_ADDR, APP_PROVIDERS_ADDR, APP_MYSQL_URL, BIN, LOGS; fetch, say and die.

# A request with nothing but bash; the body of the answer, with the status before it: request METHOD ADDRESS PATH BODY [HEADER...]
request() {
    local method=$1 address=$2 path=$3 body=$4 header
    shift 4
    exec 7<>"/dev/tcp/${address%:*}/${address#*:}" || return 1
    {
        printf '%s %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n' "$method" "$path" "$address"
        printf 'Content-Type: application/json\r\nContent-Length: %s\r\n' "${#body}"
        for header in "$@"; do printf '%s\r\n' "$header"; done
        printf '\r\n%s' "$body"
    } >&7
    tr -d '\r' <&7
    exec 7>&-
} 2>/dev/null

# Switches what a simulated provider does: mode payment|shipment SIDES
mode() {
    request PUT "$APP_PROVIDERS_ADDR" "/modes/$1" "$2" >"$LOGS/mode" || die "the providers do not answer; see $LOGS/providers.log"
    head -n 1 "$LOGS/mode" | grep -q ' 200 ' || die "the providers refuse a mode: $(tail -n 1 "$LOGS/mode")"
}

# Places an order of one line: place KEY SKU QTY; the answer is in $LOGS/answer.
place() {
    request POST "$APP_HTTP_ADDR" /orders "{\"customer_id\":1,\"items\":[{\"sku\":\"$2\",\"qty\":$3,\"price_cents\":1500}]}" \
        "Idempotency-Key: $1" >"$LOGS/answer" || die "the API does not answer; see $LOGS/api.log"
    head -n 1 "$LOGS/answer" | grep -q ' 201 ' || die "the API refuses an order: $(tail -n 1 "$LOGS/answer")"
}

# The saga and its status, of an order: saga_of ID
saga_of() {
    fetch "http://$APP_HTTP_ADDR/orders/$1" | sed -n 's/.*"saga":{"id":"\([^"]*\)","status":"\([A-Z_]*\)".*/\1 \2/p'
}

# Waits for the saga of an order, and shows it: follow ID STATUS
follow() {
    local order=$1 wanted=$2 begin=$SECONDS saga='' status=''
    until [ "$status" = "$wanted" ]; do
        [ $((SECONDS - begin)) -lt 30 ] || die "the saga of order $order is ${status:-not there}, not $wanted; see $LOGS/worker.log"
        sleep 0.1
        read -r saga status < <(saga_of "$order") || true
    done
    "$BIN/app" saga show "$saga" | sed 's/^/    /'
    SAGA=$saga
}

# The final word on an order: outcome ID
outcome() {
    local status
    status=$(fetch "http://$APP_HTTP_ADDR/orders/$1" | sed -n 's/.*"customer_id":[0-9]*,"status":"\([A-Z]*\)".*/\1/p')
    echo "    ⇒ order $1 is $status; at the providers: $(fetch "http://$APP_PROVIDERS_ADDR/ledger?order_id=$1" | entries)"
}

# The entries of a ledger in words.
entries() {
    local found
    found=$(grep -o '"id":"[^"]*"[^}]*"status":"[A-Z]*"' | sed 's/"id":"\([^"]*\)".*"status":"\([A-Z]*\)"/\1 \2/' | paste -sd, - | sed 's/,/, /g')
    echo "${found:-nothing}"
}

# chapter TITLE KEY SKU QTY; sets ORDER
chapter() {
    say ""
    say "   $1"
    place "$2" "$3" "$4"
    ORDER=$(sed -n 's/.*"id":\([0-9]*\).*/\1/p' "$LOGS/answer" | tail -n 1)
}

story() {
    local key first
    key=story-$RUN
    "$BIN/app" stock set book 10 >/dev/null
    "$BIN/app" stock set rarity 1 >/dev/null

    chapter "1. A good order" "$key-1" book 1
    follow "$ORDER" COMPLETED
    outcome "$ORDER"

    say ""
    say "   2. The same request again, with the same Idempotency-Key"
    first=$ORDER
    chapter "   …sent again" "$key-1" book 1
    [ "$ORDER" = "$first" ] || die "a repeated request made another order: $ORDER after $first"
    echo "    ⇒ order $ORDER again, $(grep -i '^idempotent-replayed' "$LOGS/answer" | head -n 1): nothing new was made"

    chapter "3. Two rarities, of which there is one" "$key-3" rarity 2
    follow "$ORDER" COMPENSATED
    outcome "$ORDER"

    mode payment '{"do":{"fault":"decline"}}'
    chapter "4. The card is declined" "$key-4" book 1
    follow "$ORDER" COMPENSATED
    outcome "$ORDER"
    mode payment '{"do":{"fault":"none"}}'

    mode shipment '{"do":{"fault":"unavailable"}}'
    chapter "5. Nobody ships: the charge is refunded, the stock released" "$key-5" book 1
    follow "$ORDER" COMPENSATED
    outcome "$ORDER"

    mode payment '{"undo":{"fault":"unavailable"}}'
    chapter "6. Nobody ships, and nobody refunds" "$key-6" book 1
    follow "$ORDER" COMPENSATION_FAILED
    outcome "$ORDER"
    say "      …the payment provider is back; somebody on call runs: app saga retry $SAGA"
    mode payment '{"undo":{"fault":"none"}}'
    mode shipment '{"do":{"fault":"none"}}'
    "$BIN/app" saga retry "$SAGA" | sed 's/^/    /'
    follow "$ORDER" COMPENSATED
    outcome "$ORDER"

    say ""
    "$BIN/app" stock list | grep -E '^(SKU|book|rarity)' | sed 's/^/    /'
}
