"""How each engine's instances and the router are started: from a resolved row to exact commands."""
