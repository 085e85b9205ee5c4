"""What spawned processes import first (test_importing.py)."""

IS_FIRST = True
