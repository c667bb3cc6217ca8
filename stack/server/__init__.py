"""The HTTP process of one instance: the API that routers, benchmark clients and people speak.

Knows text, tokens, sockets and the messages of `stack.core`; never tensors, so importing it never imports torch. The
model runs in a worker process that this one starts, watches and ends.
"""
