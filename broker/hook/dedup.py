"""Dedup: what a producer sends again is acknowledged and not routed again.

A PUBLISH with the user property `producer` = `<name>/<partition>:<batch>:<n>` is number n, counted from 0, of
a batch; batches grow. A producer is the part before the first colon, of one User Name: nobody can speak for
the producer of another user. Its mark is the (batch, n) that was routed last, written in the same commit as
the message, so that PUBACK stands for both.

At or below the mark: acknowledged, not routed. The next n of the batch, or n 0 of a later one: routed, and
the new mark. Anything else has a gap before it and is refused with 0x83: else a message that is refused while
those behind it are on their way already, would be below the mark when it is repeated, and lost.

A batch that is repeated must be the same: copies that come from n 0 on are compared with what was routed, by
a CRC over Topic Names and payloads at n 0, 1, 3, 7, 15 and so on, and at the mark. If it is another one, what
is below the mark would be lost in silence: it is refused with 0x83 until it begins again.
"""

from __future__ import annotations

import json
import logging
import re
from collections import OrderedDict
from typing import NamedTuple, NoReturn
from zlib import crc32

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

    __slots__ = ("again", "again_crc", "batch", "crc", "key", "n", "said", "trail", "turn")

    def __init__(
        self, batch: int, n: int, turn: int, crc: int = -1, trail: dict[int, int] | None = None
    ) -> None:
        self.batch = batch
        self.n = n
        self.turn = turn  # grows with every change of any mark: the order in which they are forgotten
        self.crc = crc  # over the batch up to n; -1: not known
        self.trail = trail or {}  # n -> what it was there
        self.key = ""  # of its note
        self.said = ""  # the trail, as the note says it; empty: to be made anew
        # Of the copies that come now: the n that is next (-1: they are none), and their CRC.
        self.again, self.again_crc = 0, 0

    def route(self, batch: int, n: int, message: Message) -> None:
        """(batch, n), which is next, is routed."""
        if n == 0:
            self.trail, before = {}, 0
        else:
            before = self.again_crc if self.again == n else self.crc
        self.batch, self.n, self.again = batch, n, 0
        self.crc = -1 if before < 0 else crc_of(message, before)
        if n & (n + 1) == 0:
            self.said = ""
            if self.crc >= 0:
                self.trail[n] = self.crc

    def back_to(self, n: int) -> None:
        """Nothing after *n* was routed."""
        self.n, self.crc, self.again = n, self.trail.get(n, -1), 0
        self.trail, self.said = {at: crc for at, crc in self.trail.items() if at <= n}, ""

    def is_copy(self, batch: int, n: int, message: Message) -> bool:
        """Whether *message*, at or below the mark, may be what was routed as (batch, n)."""
        if n and self.again < 0:
            return False
        if batch != self.batch or (n and n != self.again):
            self.again = 0  # not from the beginning: nothing can be said
            return True
        found = self.again_crc = crc_of(message, self.again_crc if n else 0)
        known = self.crc if n == self.n else self.trail.get(n, -1)
        same = known in (found, -1)
        self.again = n + 1 if same else -1
        return same

    def note(self) -> bytes:
        """All of it, as text."""
        if not self.said:
            self.said = "".join([f" {at}:{crc}" for at, crc in self.trail.items()])
        return f"{self.batch} {self.n} {self.turn} {self.crc}{self.said}".encode()


def mark_of(note: bytes) -> Mark:
    """What `Mark.note` made. Raises ValueError."""
    batch, n, turn, *rest = note.decode().split()
    crc, *trail = rest or ["-1"]
    pairs = (each.partition(":") for each in trail)
    return Mark(int(batch), int(n), int(turn), int(crc), {int(at): int(known) for at, _, known in pairs})


def crc_of(message: Message, before: int) -> int:
    return crc32(message.payload, crc32(message.topic_name.encode(), before))


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

    Counts: *routed*, *duplicates*, *gaps*, *changed* (batches that were not the same when they came again),
    *ignored* (a `producer` that makes no claim), *forgotten*.
    """

    id = "dedup"

    def __init__(self, maximum_producers: int = 10_000) -> None:
        self.maximum_producers = maximum_producers
        self.routed = self.duplicates = self.gaps = self.changed = self.ignored = self.forgotten = 0
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
        notes = broker.notes(self.id)
        self._notes = notes if notes.durable else None
        found = []
        for key, value in notes.items():
            try:
                user, producer = json.loads(key)
                mark = mark_of(value)
            except (ValueError, TypeError):
                log.error("dedup: a note that makes no sense is left out: %.200r", key)
                notes.delete(key)
                continue
            found.append((mark.turn, user, producer, mark))
        for turn, user, producer, mark in sorted(found, key=lambda each: each[0]):
            self._add(user, producer, mark)
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
            if not mark.is_copy(batch, n, message):
                self._refuse_changed(claim)
            self.duplicates += 1
            raise AcknowledgeOnly(f"{producer}:{batch}:{n} was routed before")
        if mark is not None and n and mark.again < 0:
            self._refuse_changed(claim)
        expected = mark.n + 1 if mark is not None and batch == mark.batch else 0
        if n != expected:
            self.gaps += 1
            raise refusal(f"{producer}:{batch}:{expected} must come before {n}; begin the batch again")
        if self._notes is not None:
            self._notes.check()
        if mark is None:
            mark = Mark(batch, -1, 0)
            self._add(client.user_name, producer, mark)
        mark.route(batch, n, message)
        self._changed(client.user_name, producer, mark)
        self.routed += 1

    def on_taken_back(self, client: ClientInfo, message: Message) -> None:
        """It was not kept after all: the producer goes on from before it."""
        if "user_property" not in message.properties or (claim := claim_of(message)) is None:
            return
        mark = self._mark(client.user_name, claim.producer)
        if mark is not None and claim.batch == mark.batch and claim.n <= mark.n:
            mark.back_to(claim.n - 1)
            self._changed(client.user_name, claim.producer, mark)
            self.routed -= 1

    def _refuse_changed(self, claim: Claim) -> NoReturn:
        self.changed += 1
        text = "does not repeat what was sent: rows, their order and their partitions must be the same"
        raise refusal(f"{claim.producer}:{claim.batch}:{claim.n} {text}")

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

    def _changed(self, user: str | None, producer: str, mark: Mark) -> None:
        self._turn += 1
        mark.turn = self._turn
        self._users[user].move_to_end(producer)
        if self._notes is not None:
            mark.key = mark.key or key_of(user, producer)
            self._notes.put(mark.key, mark.note())

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
