"""A layer for chatstack that waits, so that a provider's published rate limits are kept by a whole process."""

from chatstack_ratelimit.layer import RateLimiter
from chatstack_ratelimit.limits import RateLimits

__all__ = ["RateLimiter", "RateLimits"]
