"""The stimulus log: every input of RouterState and every answer, so that the same decisions can be made again."""
