#!/bin/bash
# Copies the certificate for TLS between the nodes from the head to the workers that run, and installs it there. `ray up` copies files
# to the head and to nodes that are new, and not to workers that run. Run it after `ray up --no-restart` (docs/clusters.md):
#   conf/ray-up/copy-certificates.sh conf/ray-up/aws.yaml
set -uo pipefail
cluster=${1:?Name the cluster file, as conf/ray-up/aws.yaml}
workers=$(ray get-worker-ips "$cluster") || exit 1
failed=0
for worker in $workers; do
  # The head has the key with which Ray's autoscaler sets up workers
  ssh="ssh -i ~/ray_bootstrap_key.pem -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null $worker"
  unpack="tar -C ~/baton/conf/ray-up -xf - && bash ~/baton/conf/ray-up/node.sh certificates"
  if ray exec "$cluster" "tar -C ~/baton/conf/ray-up -cf - tls | $ssh '$unpack'"; then
    echo "$worker has the certificate"
  else
    echo "$worker does NOT have the certificate" >&2
    failed=1
  fi
done
exit $failed
