"""Which KV blocks an engine keeps for a conversation that is likely to go on soon. It runs in the engine's core and in
the simulator, not in the Scheduler.
"""
