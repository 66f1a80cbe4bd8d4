"""The options of condensing, declared once for the strategy and for what it drafts."""

# No postponed annotations: constructors made of these fields elsewhere must not have to know the names.
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Literal, TypeAlias

from msgspec import Meta

from chatstack.client.options import PositiveInt, Share, ShareOrZero, check_options
from chatstack.client.wiring import wrong
from chatstack.context.edits.handles import PLACEHOLDER, check_placeholder

ListShare: TypeAlias = Annotated[float, Meta(ge=0, lt=1)]


@dataclass(frozen=True, repr=False)
class CondensingOptions:
    """The moment for an edit, how deep it goes, and what takes the place of what goes."""

    max_tokens: PositiveInt | None = None
    _: KW_ONLY
    target: Share = 0.45
    keep_recent: ShareOrZero = 0.05
    newest_result: ShareOrZero = 0.2
    mentions: ListShare = 0.09
    placeholder: str = PLACEHOLDER
    before_limit: Literal["pays", "never"] = "pays"

    def __post_init__(self) -> None:
        """Check each option, and that a list fits beside what stays."""
        check_options(self)
        check_placeholder(type(self).__name__, self.placeholder)
        if not self.mentions < self.target:
            raise wrong(type(self).__name__, "target", self.target, f"more than mentions={self.mentions:g}")
