"""The HTTP server of an ingress replica: listener, HTTP protocol, event streams and the ports of its routes."""
