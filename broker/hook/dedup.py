"""Dedup: what a producer sends again is acknowledged and not routed again.

A PUBLISH with the user property `producer` = `<name>/<partition>:<batch>:<n>` is number n, counted from 0, of
a batch; batches grow. A producer is the part before the first colon, of one User Name: nobody can speak for
the producer of another user. Its mark is the (batch, n) that was routed last, written in the same commit as
the message, so that PUBACK stands for both.

At or below the mark: acknowledged, not routed. The next n of the batch, or n 0 of a later one: routed, and
the new mark. Anything else has a gap before it and is refused with 0x83: else a message that is refused, while
those behind it are on their way already, would be below the mark when it is repeated, and lost.
"""

from __future__ import annotations

import json
import logging
import re
from collections import OrderedDict
from typing import NamedTuple

from broker.errors import AcknowledgeOnly, ImplementationSpecificError
from broker.hook.base import BrokerApi, ClientInfo, HookBase, Notes
from broker.packet.message import Message

log = logging.getLogger("broker.hook")

PROPERTY = "producer"
SHAPE = re.compile(r"([^:]{1,256}/[0-9]{1,9}):([0-9]{1,18}):([0-9]{1,18})", re.DOTALL)


class Claim(NamedTuple):
    """What a message says of itself."""

    producer: str
    batch: int
    n: int


class Mark:
    """What of a producer was routed last; n -1: nothing of *batch* yet."""

    __slots__ = ("batch", "n", "turn")

    def __init__(self, batch: int, n: int, turn: int) -> None:
        self.batch = batch
        self.n = n
        self.turn = turn  # grows with every change of any mark: the order in which they are forgotten


def claim_of(message: Message) -> Claim | None:
    """None for a message that makes no claim. Raises ImplementationSpecificError for one that makes two."""
    values = [value for name, value in message.properties.get("user_property", ()) if name == PROPERTY]
    found = [match for value in values if (match := SHAPE.fullmatch(value))]
    if not found:
        return None
    if len(values) > 1:
        raise refusal(f"{len(values)} user properties {PROPERTY}")
    producer, batch, n = found[0].groups()
    return Claim(producer, int(batch), int(n))


def refusal(text: str) -> ImplementationSpecificError:
    return ImplementationSpecificError(text, reason_string=text)


class Dedup(HookBase):
    """See above. At most *maximum_producers* are remembered, beyond that the one heard of the longest ago is
    forgotten, of the user who has more than a fair share.

    Counts: *routed*, *duplicates*, *gaps*, *ignored* (a `producer` that makes no claim), *forgotten*.
    """

    id = "dedup"

    def __init__(self, maximum_producers: int = 10_000) -> None:
        self.maximum_producers = maximum_producers
        self.routed = self.duplicates = self.gaps = self.ignored = self.forgotten = 0
        self._notes: Notes | None = None
        self._users: dict[str | None, OrderedDict[str, Mark]] = {}
        self._count = self._turn = 0

    def __len__(self) -> int:
        """Producers that are remembered."""
        return self._count

    def init(self, broker: BrokerApi) -> None:  # type: ignore[override]  # (does not wait)
        """Take up what the store has."""
        self._users.clear()
        self._count = self._turn = 0
        self._notes = notes = broker.notes(self.id)
        found = []
        for key, value in notes.items():
            try:
                user, producer = json.loads(key)
                batch, n, turn = map(int, value.split())
            except (ValueError, TypeError):
                log.error("dedup: a note that makes no sense is left out: %.200r", key)
                notes.delete(key)
                continue
            found.append((turn, user, producer, batch, n))
        for turn, user, producer, batch, n in sorted(found, key=lambda each: each[0]):
            self._add(user, producer, Mark(batch, n, turn))
            self._turn = turn

    # ---- messages

    def on_accepted(self, client: ClientInfo, message: Message) -> None:
        """Route it, or not. Raises AcknowledgeOnly for a copy and ImplementationSpecificError for a gap."""
        if "user_property" not in message.properties:
            return
        claim = claim_of(message)
        if claim is None:
            self._ignore(client, message)
            return
        producer, batch, n = claim
        mark = self._mark(client.user_name, producer)
        if mark is not None and (batch, n) <= (mark.batch, mark.n):
            self.duplicates += 1
            raise AcknowledgeOnly(f"{producer}:{batch}:{n} was routed before")
        expected = mark.n + 1 if mark is not None and batch == mark.batch else 0
        if n != expected:
            self.gaps += 1
            raise refusal(f"{producer}:{batch}:{expected} must come before {n}; begin the batch again")
        if self._notes is not None:
            self._notes.check()
        if mark is None:
            mark = Mark(batch, n, 0)
            self._add(client.user_name, producer, mark)
        self._set(client.user_name, producer, mark, batch, n)
        self.routed += 1

    def on_taken_back(self, client: ClientInfo, message: Message) -> None:
        """It was not kept after all: the producer goes on from before it."""
        if "user_property" not in message.properties or (claim := claim_of(message)) is None:
            return
        mark = self._mark(client.user_name, claim.producer)
        if mark is not None and claim.batch == mark.batch and claim.n <= mark.n:
            self._set(client.user_name, claim.producer, mark, claim.batch, claim.n - 1)
            self.routed -= 1

    def _ignore(self, client: ClientInfo, message: Message) -> None:
        for name, value in message.properties["user_property"]:
            if name == PROPERTY:
                if not self.ignored:
                    text = "dedup: %.100r of %.100r is no producer/partition:batch:n, and is not looked at"
                    log.warning(text, value, client.client_id)
                self.ignored += 1
                return

    # ---- marks

    def _mark(self, user: str | None, producer: str) -> Mark | None:
        marks = self._users.get(user)
        return None if marks is None else marks.get(producer)

    def _set(self, user: str | None, producer: str, mark: Mark, batch: int, n: int) -> None:
        self._turn += 1
        mark.batch, mark.n, mark.turn = batch, n, self._turn
        self._users[user].move_to_end(producer)
        if self._notes is not None:
            self._notes.put(key_of(user, producer), b"%d %d %d" % (batch, n, self._turn))

    def _add(self, user: str | None, producer: str, mark: Mark) -> None:
        while self._count >= self.maximum_producers:
            self._forget(user)
        self._users.setdefault(user, OrderedDict())[producer] = mark
        self._count += 1

    def _forget(self, user: str | None) -> None:
        """Make room for a producer of *user*: who has a fair share already pays for it."""
        users = self._users
        mine = users.get(user, ())
        if len(mine) < self.maximum_producers // (len(users) + (user not in users)):
            user = max(users, key=lambda each: len(users[each]))  # a user comes here a fair share of times
        elif not mine:  # there are more users than producers may be: whoever was heard of the longest ago
            user = min(users, key=lambda each: next(iter(users[each].values())).turn)
        producer, _ = users[user].popitem(last=False)
        if not users[user]:
            del users[user]
        self._count -= 1
        if not self.forgotten:
            log.warning("dedup: more than %d producers: the oldest are forgotten", self.maximum_producers)
        self.forgotten += 1
        if self._notes is not None:
            self._notes.delete(key_of(user, producer))


def key_of(user: str | None, producer: str) -> str:
    return json.dumps([user, producer], ensure_ascii=False)
