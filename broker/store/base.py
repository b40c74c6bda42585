"""The contracts of the stores."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from broker.packet.message import Message


class RetainedStore(Protocol):
    """The last retained message of each Topic Name [MQTT5 3.3.1.3]."""

    def put(self, message: Message, *, owned: bool = False) -> None:
        """Store or replace. Raises QuotaExceeded when a limit is reached; then nothing changed.

        A message that is *owned* (its PUBREC was sent) is stored even above the limits.
        """

    def check(self, message: Message) -> int:
        """The bytes by which `put` would grow the store. Raises QuotaExceeded if that is too much."""

    def delete(self, topic_name: str) -> None:
        """Forget the message of *topic_name*, if there is one."""

    def find(self, topic_filter: str, now: float) -> Iterator[Message | None]:
        """Every message that matches and has not expired by *now*; None after a stretch without a match.

        A step costs little, whatever the filter, and it is safe against changes between two steps. A
        message that was put after the call is not given: it reaches a subscriber as a live one.
        """

    def clean_expired(self, now: float) -> int:
        """Delete what has expired by *now*; how many."""

    def __len__(self) -> int: ...

    @property
    def size(self) -> int:
        """Bytes held."""
