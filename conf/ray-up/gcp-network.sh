#!/bin/bash
# Makes the networks, the firewall rules, the service account and the load balancer of conf/ray-up/gcp.yaml, once per project:
#   PROJECT=my-project REGION=us-central1 ZONE=us-central1-b ADMIN_RANGE=10.0.9.0/24 HOST=baton.example.com conf/ray-up/gcp-network.sh
# ADMIN_RANGE: the addresses from which `ray up` runs. HOST: the name by which clients reach the load balancer.
# docs/network.md says why nothing but the ingress may be reached from outside: Ray and UCX do not ask who connects.
set -euo pipefail
: "${PROJECT:?}" "${REGION:?}" "${ZONE:?}" "${ADMIN_RANGE:?}" "${HOST:?}"
gcloud() { command gcloud --project="$PROJECT" --quiet "$@"; }

# Networks: TCP, a second one for the GPU nodes' second adapter, and RDMA with a subnet for each port. Nodes reach the internet by NAT.
for name in baton baton-second; do gcloud compute networks create $name --subnet-mode=custom --mtu=8896; done
gcloud compute networks create baton-rdma --subnet-mode=custom --mtu=8896 --network-profile="$ZONE-vpc-roce"
gcloud compute networks subnets create baton --network=baton --region="$REGION" --range=10.10.0.0/20
gcloud compute networks subnets create baton-second --network=baton-second --region="$REGION" --range=10.11.0.0/20
for i in 0 1 2 3 4 5 6 7; do
  gcloud compute networks subnets create baton-rdma-$i --network=baton-rdma --region="$REGION" --range=10.2$i.0.0/20
done
gcloud compute routers create baton --network=baton --region="$REGION"
gcloud compute routers nats create baton --router=baton --region="$REGION" --nat-all-subnet-ip-ranges --auto-allocate-nat-external-ips

# Firewall: a network of one's own denies what no rule allows. Nodes reach each other on all ports. From outside, the operator's
# addresses reach SSH, and the load balancer and its health checks reach the ingress.
gcloud compute firewall-rules create baton-nodes --network=baton --target-tags=baton --source-tags=baton --allow=all
gcloud compute firewall-rules create baton-second --network=baton-second --target-tags=baton --source-tags=baton --allow=all
gcloud compute firewall-rules create baton-ssh --network=baton --target-tags=baton --source-ranges="$ADMIN_RANGE" --allow=tcp:22
gcloud compute firewall-rules create baton-ingress --network=baton --target-tags=baton-ingress \
  --source-ranges=130.211.0.0/22,35.191.0.0/16 --allow=tcp:8000

# An ingress node adds itself to the load balancer's group.
gcloud iam service-accounts create baton-ingress
gcloud iam roles create batonIngress \
  --permissions=compute.instanceGroups.get,compute.instanceGroups.update,compute.instances.get,compute.instances.use
command gcloud projects add-iam-policy-binding "$PROJECT" --role="projects/$PROJECT/roles/batonIngress" --condition=None \
  --member="serviceAccount:baton-ingress@$PROJECT.iam.gserviceaccount.com"

# Load balancer: it ends TLS, passes /v1 and /healthz only, and does not reach the admin port. A stream may last for an hour.
gcloud compute instance-groups unmanaged create baton-ingress --zone="$ZONE"
gcloud compute instance-groups set-named-ports baton-ingress --zone="$ZONE" --named-ports=http:8000
gcloud compute health-checks create http baton --port=8000 --request-path=/healthz --check-interval=5s --timeout=3s
gcloud compute backend-services create baton --global --load-balancing-scheme=EXTERNAL_MANAGED --protocol=HTTP --port-name=http \
  --health-checks=baton --timeout=3600s
gcloud compute backend-services add-backend baton --global --instance-group=baton-ingress --instance-group-zone="$ZONE"
gcloud compute url-maps import baton --global <<MAP
name: baton
defaultUrlRedirect: {pathRedirect: /healthz, redirectResponseCode: FOUND}
hostRules: [{hosts: ["*"], pathMatcher: api}]
pathMatchers:
  - name: api
    defaultUrlRedirect: {pathRedirect: /healthz, redirectResponseCode: FOUND}
    pathRules:
      - {paths: [/v1/*, /healthz], service: https://www.googleapis.com/compute/v1/projects/$PROJECT/global/backendServices/baton}
MAP
gcloud compute ssl-certificates create baton --global --domains="$HOST"
gcloud compute target-https-proxies create baton --url-map=baton --ssl-certificates=baton
gcloud compute forwarding-rules create baton --global --load-balancing-scheme=EXTERNAL_MANAGED --target-https-proxy=baton --ports=443
