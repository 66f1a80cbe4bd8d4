"""Decisions of chatstack's layers in PostgreSQL, for the processes of many machines."""

from chatstack_postgres.store import PostgresStore

__all__ = ["PostgresStore"]
