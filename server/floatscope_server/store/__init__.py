"""The store: one thread writes, anybody reads."""

from floatscope_server.store.store import Store

__all__ = ["Store"]
