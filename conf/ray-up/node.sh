#!/bin/bash
# Installs Baton on a node: the locked environment and the compiled modules. `setup_commands` of the cluster files runs this script on
# every node, as the SSH user. A node with an NVIDIA driver gets the GPU environment, another one the CPU environment (Makefile).
# Running it again installs only what has changed. `node.sh certificates` installs the certificate alone (copy-certificates.sh).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

install_certificate() {
  local tls=conf/ray-up/tls file
  grep -q '^ *tls:' conf/ray-up/serve.yaml || return 0
  for file in tls.crt tls.key ca.crt; do
    [ -s "$tls/$file" ] || {
      echo "$tls/$file is missing: conf/ray-up/serve.yaml has network.tls, which needs it (docs/clusters.md)" >&2
      exit 1
    }
  done
  chmod 600 "$tls"/*
  sudo install -d -o "$(id -u)" -m 700 /etc/baton/tls
  install -m 600 "$tls"/{tls.crt,tls.key,ca.crt} /etc/baton/tls
}

if [ "${1:-}" = certificates ]; then
  install_certificate
  exit
fi

environment="$HOME/cluster.env"
chmod 600 "$environment" conf/ray-up/cluster.env 2>/dev/null || true
(
  set -a
  . "$environment"
  for name in BATON_DATABASE_URL BATON_REDIS_URL BATON_MASTER_KEY BATON_CLUSTER_SECRET BATON_ADMIN_KEY RAY_AUTH_TOKEN; do
    [ -n "${!name:-}" ] || { echo "$name is empty: set it in conf/ray-up/cluster.env (docs/clusters.md)" >&2; exit 1; }
  done
)

install_certificate

# The kernel passes connections that begin while an ingress replica ends to its successor
sudo sysctl -qw net.ipv4.tcp_migrate_req=1 || echo "kernels before 5.14 lack net.ipv4.tcp_migrate_req (docs/clusters.md)" >&2

# make, a C compiler and Python's headers are for the compiled modules, libnuma1 for vLLM's CPU build
if ! { command -v python3.11 && command -v make && command -v g++; } >/dev/null; then
  export DEBIAN_FRONTEND=noninteractive
  sudo apt-get update -qq
  apt-cache show python3.11-venv >/dev/null 2>&1 || sudo add-apt-repository -y ppa:deadsnakes/ppa
  sudo -E apt-get install -qq -y python3.11-venv python3.11-dev build-essential libnuma1
fi
make setup PYTHON=python3.11

# Ray runs its commands in an interactive login shell, which reads this file
if ! grep -q "cluster.env" ~/.bashrc; then
  echo "set -a; . $environment; set +a; export PATH=$PWD/.venv/bin:\$PATH" >>~/.bashrc
fi
