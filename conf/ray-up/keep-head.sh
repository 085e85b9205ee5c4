#!/bin/bash
# Keeps Ray's head running: keep-head.sh ray start --head --block ...
# `ray start --block` ends when one of its processes has ended. This script then starts the head again, with the GCS's data. Until then
# the other nodes go on (RAY_gcs_rpc_server_reconnect_timeout_s). The script returns when the head answers.
set -u
keeper=~/.keep-head.pid
[ -f "$keeper" ] && ps -o args= -p "$(cat "$keeper")" | grep -q keep-head && kill -KILL -- "-$(cat "$keeper")" 2>/dev/null
ray stop --force
setsid bash -c 'while true; do "$@"; echo "$(date -Is) the head has ended; it starts again"; ray stop --force; sleep 1; done' \
  keep-head "$@" </dev/null >>~/keep-head.log 2>&1 &
echo $! >"$keeper"
timeout 120 bash -c 'until ray health-check 2>/dev/null; do sleep 1; done' || { tail ~/keep-head.log; exit 1; }
