"""Decisions of chatstack's layers in Redis, for the processes of many machines."""

from chatstack_redis.store import RedisStore

__all__ = ["RedisStore"]
