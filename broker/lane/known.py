"""What is known of Topic Names: who gets their messages."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Final, TypeVar

from broker.core import Core
from broker.errors import MqttError
from broker.lane.audience import Audience, Audience1, Member, find_links
from broker.packet.wire import Seen, TopicNames
from broker.session.session import Session

KNOWN = 16_384  # Topic Names whose audience is remembered, for each version and QoS
LONGEST: Final = 256  # bytes of such a name
SEARCH: Final = 0.002  # seconds for Topic Names that were not matched before, for one read

A = TypeVar("A")


class Known:
    """Audiences by Topic Name, as raw bytes with their length, until somebody comes, goes or subscribes.

    None stands for a name that this lane does not serve.
    """

    def __init__(self, core: Core, names: TopicNames, check_topic: Callable[[Core, str], None]) -> None:
        """See Lane."""
        self._core = core
        self._names = names
        self._check_topic = check_topic
        self.generation = -1
        self.turnover = -1
        self.forgotten = 0  # how often
        self._searches_until = 0.0  # 0: nothing was searched for yet
        self._late = False  # that time is over
        self.now: Callable[[], float] = monotonic
        # For publishers of 3.x and of 5.0.
        self.qos_0: tuple[dict[bytes, Audience | None], ...] = ({}, {})
        self.qos_1: tuple[dict[bytes, Audience1 | None], ...] = ({}, {})
        self.qos_2: tuple[dict[bytes, Audience1 | None], ...] = ({}, {})
        self.retained: tuple[dict[bytes, Audience | None], ...] = ({}, {})  # QoS 0 with RETAIN
        self._members: dict[Session, Member] = {}
        self._nobody = Audience((), False)
        self._audiences: dict[tuple[int, tuple[tuple[Member, int], ...]], Audience1] = {}  # by QoS
        self._first: dict[tuple[int, Member], Audience1] = {}  # the first audience of each, by QoS
        self._seen = Seen()

    def begin(self) -> None:
        """A read begins: what is out of date is forgotten."""
        if not self.fresh:
            self.forget()
        self._searches_until, self._late = 0.0, False

    @property
    def fresh(self) -> bool:
        """Whether nothing of it is out of date."""
        generation, turnover = self._core.tree.generation, self._core.sessions.terms.turnover
        return generation == self.generation and turnover == self.turnover

    def forget(self) -> None:
        """Subscriptions or connections have changed, or too much is known."""
        self.generation = self._core.tree.generation
        self.turnover = self._core.sessions.terms.turnover
        self.qos_0 = ({}, {})
        self.qos_1 = ({}, {})
        self.qos_2 = ({}, {})
        self.retained = ({}, {})
        self.forgotten += 1
        self._members.clear()
        self._audiences.clear()
        self._first.clear()

    def _find(
        self, topic: bytes, five: bool, qos: int, retain: bool = False, once: bool = False
    ) -> list[tuple[Member, int]] | None:
        """Who gets messages of *topic*, length included, and the QoS; None: this lane is too narrow.

        *once*: nothing of it is remembered.
        """
        try:
            topic_name = self._names[topic[2:]]
            self._check_topic(self._core, topic_name or "$")
        except MqttError:
            return None
        tree = self._core.tree
        if topic_name not in tree.routes and not self._may_search():
            return None
        route = tree.match(topic_name)
        links = None if route.groups else find_links(route.direct, qos)
        if retain and any(subscription.retain_as_published for subscription in route.direct):
            return None
        if links is None or (qos and five and not links):  # then PUBACK says that nobody matched
            return None
        if len({session for session, _, _ in links}) < len(links):  # room and order are for one each
            return None
        members = []
        for session, link, granted in links:
            member = self._members.get(session)
            if member is None:
                member = Member(session, link)
                if not once:
                    self._members[session] = member
            members.append((member, granted))
        return members

    def _may_search(self) -> bool:
        """Whether there is time to match a Topic Name that is not known: it may take milliseconds."""
        now = self.now()
        self._searches_until = self._searches_until or now + SEARCH
        self._late = now > self._searches_until
        return not self._late

    def find_0(
        self, known: dict[bytes, Audience | None], topic: bytes, five: bool, retain: bool = False
    ) -> Audience | None:
        """The Audience of *topic*; None if it is not one of ours. *retain*: the messages have RETAIN."""
        if topic in known:
            return known[topic]
        members = self._find(topic, five, 0, retain)
        if self._late:
            return None
        audience = None if members is None else Audience((member for member, _ in members), five)
        self._remember(known, topic, audience)
        return audience

    def find_retained(
        self, known: dict[bytes, Audience | None], topic: bytes, topic_name: str, five: bool
    ) -> Audience | None:
        """The same for a message that is retained; *topic* is *topic_name*, which is accepted.

        Where nobody subscribes nothing is remembered: most of what is retained has a topic of its own.
        """
        tree = self._core.tree
        if topic not in known and topic_name not in tree.routes:
            if tree.count and not self._may_search():
                return None
            if not tree.count or not tree.is_heard(topic_name):
                return self._nobody
        return self.find_0(known, topic, five, True)

    def find_1(
        self, known: dict[bytes, Audience1 | None], topic: bytes, five: bool, qos: int = 1
    ) -> Audience1 | None:
        """The same for QoS 1 or 2. Topics with the same members share it.

        It is remembered from the second time on, see Seen.
        """
        if topic in known:
            return known[topic]
        once = not self._seen.add(topic)
        members = self._find(topic, five, qos, once=once)
        if self._late:
            return None
        if once:
            return None if members is None else Audience1(members, False, qos)
        audience = None
        if members is not None:
            key = qos, tuple(members)
            audience = self._audiences.get(key)
            if audience is None:
                audience = self._audiences[key] = Audience1(members, True, qos)
                for member, _ in members:
                    other = self._first.setdefault((qos, member), audience)
                    if other is not audience:
                        other.alone = audience.alone = False
        self._remember(known, topic, audience)
        return audience

    def _remember(self, known: dict[bytes, A | None], topic: bytes, audience: A | None) -> None:
        if len(topic) > LONGEST:
            return
        if len(known) < KNOWN:
            known[topic] = audience
        else:
            self.generation = -1  # begin anew with the next read
