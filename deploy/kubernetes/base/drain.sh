#!/bin/bash
# What a router does before it ends: drain.sh PORT LEAST MOST, where PORT is that of Envoy's admin interface.
# Envoy cuts off every answer when it is told to end. So it first asks clients to open their next connection elsewhere, and this
# script returns when no request is under way any more: not before LEAST seconds, while new requests may still arrive, and after
# MOST seconds whatever is under way.
set -euo pipefail

readonly port=$1 least=$2 most=$3

ask() {  # METHOD PATH
  exec 3<>"/dev/tcp/127.0.0.1/$port"
  printf '%s %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n' "$1" "$2" >&3
  cat <&3
  exec 3>&-
}

under_way() {
  local figures
  figures=$(ask GET '/stats?filter=^http.(api|grpc).downstream_rq_active$')
  [[ "$figures" =~ downstream_rq_active:\ [1-9] ]]
}

[[ "$(ask POST '/drain_listeners?graceful&skip_exit')" == 'HTTP/1.1 200 '* ]]
sleep "$least"
while ((SECONDS < most)) && under_way; do
  sleep 1
done
