"""What stands between a connection and a route: who may ask, how much, how long, and what every answer says."""
