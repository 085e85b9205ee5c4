"""When a machine that does not answer counts as dead: for the connections between Baton's processes
(cluster/rpc/connection.py) and for UCX's connections between engines (kvtransfer/transport/topology.py). Pure.
"""

IDLE_S = 4
"""Seconds of silence after which a machine is asked for a sign of life. Fewer sends more packets over idle connections;
more finds a dead machine later.
"""
PROBE_INTERVAL_S = 2
"""Seconds between two such questions. Fewer gives up a machine after a shorter loss of packets; more finds a dead
machine later.
"""
PROBES = 3
"""Questions without an answer after which the connection ends. Fewer gives up machines that are only slow; more finds a
dead machine later.
"""
DEAD_PEER_S = IDLE_S + PROBES * PROBE_INTERVAL_S
"""Seconds without an answer after which a machine counts as dead. The same bounds the time for which sent data may stay
without an acknowledgement, where nothing is asked. Fewer gives up machines that are only slow; more lets pulls from
dead ones hang for longer.
"""
