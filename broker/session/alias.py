"""Topic Aliases, both ways [MQTT5 3.3.2.3.4]. They belong to one connection and are never stored."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from broker.errors import ProtocolError, QuotaExceeded, TopicAliasInvalid
from broker.packet.packets import Publish
from broker.store.budget import ByteBudget

LONGEST_NAME: Final = 1024  # characters of a Topic Name that gets an alias from us: they are kept


class InboundAliases:
    """What the client has defined: alias -> Topic Name, at most *maximum* of them, counted in *budget*."""

    __slots__ = ("_budget", "_maximum", "names")

    def __init__(self, maximum: int, budget: ByteBudget) -> None:
        self._maximum = maximum
        self._budget = budget
        self.names: dict[int, str] = {}

    def resolve(self, packet: Publish) -> str:
        """The Topic Name of *packet*; a mapping it carries is set even if it is refused later.

        Raises TopicAliasInvalid out of range, ProtocolError for an alias that was never set, and
        QuotaExceeded when the byte budget of the process is spent.
        """
        alias = packet.properties.get("topic_alias")
        if alias is None:
            return packet.topic_name
        if not 1 <= alias <= self._maximum:
            raise TopicAliasInvalid(f"topic alias {alias} is not in 1..{self._maximum}")
        if packet.topic_name:
            self._set(alias, packet.topic_name)
            return packet.topic_name
        name = self.names.get(alias)
        if name is None:
            raise ProtocolError(f"topic alias {alias} has no mapping on this connection")
        return name

    def _set(self, alias: int, topic_name: str) -> None:
        growth = len(topic_name) - len(self.names.get(alias, ""))
        if growth > 0 and not self._budget.has(growth):
            raise QuotaExceeded("the byte budget of the broker is spent")
        self._budget.take_anyway(growth)
        self.names[alias] = topic_name

    def clear(self) -> None:
        """The connection is gone."""
        self._budget.give(sum(map(len, self.names.values())))
        self.names.clear()


class OutboundAliases:
    """What we define toward a client that allows *maximum*; the least recently used one is re-mapped.

    `find` proposes and `commit` defines, so that a packet that is not sent after all leaves no
    definition behind that the client never saw.
    """

    __slots__ = ("_aliases", "_maximum")

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self._aliases: OrderedDict[str, int] = OrderedDict()

    def find(self, topic_name: str) -> tuple[int, bool]:
        """The alias for *topic_name* (0: none), and whether the topic itself must be sent with it."""
        alias = self._aliases.get(topic_name)
        if alias is not None:
            return alias, False
        if len(topic_name) > LONGEST_NAME:
            return 0, True
        if len(self._aliases) < self._maximum:
            return len(self._aliases) + 1, True
        return next(iter(self._aliases.values())), True

    def commit(self, topic_name: str, alias: int) -> None:
        """The packet with *alias* is written."""
        if topic_name not in self._aliases and len(self._aliases) >= self._maximum:
            self._aliases.popitem(last=False)
        self._aliases[topic_name] = alias
        self._aliases.move_to_end(topic_name)


def encode_aliased(
    encode: Callable[..., bytes], topic_name: str, aliases: OutboundAliases | None, most: int | None
) -> bytes | None:
    """The PUBLISH that *encode* makes, with an alias if there is one; None: it has more than *most* bytes.

    *encode* takes `topic_alias` and `with_topic`.
    """
    alias, with_topic = (0, True) if aliases is None else aliases.find(topic_name)
    data = encode(topic_alias=alias, with_topic=with_topic)
    if alias and with_topic and most is not None and len(data) > most:
        alias, data = 0, encode()  # to define an alias is our choice, no reason to lose the message
    if most is not None and len(data) > most:
        return None
    if alias and aliases is not None:
        aliases.commit(topic_name, alias)
    return data
