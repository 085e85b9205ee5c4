"""What each benchmark is to reach, and how a run ends that does not reach it. A module per benchmark, all of them
pure.
"""
