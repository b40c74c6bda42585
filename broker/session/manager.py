"""SessionManager: every session of the broker, by ClientID, their deadlines, and whose turn it is."""

from __future__ import annotations

import asyncio
import heapq
import secrets
import string
from collections import deque
from collections.abc import Callable, Collection, Iterator

from broker.packet.message import text_size
from broker.session.session import Session
from broker.session.terms import NEVER, Terms

AT_ONCE = 10_000  # queued messages that one look at their deadlines may go through
OVERHEAD = 900  # bytes that a session and its tables take in the budget, about: 250, and more with a store
ALPHABET = string.digits + string.ascii_letters


class Deadlines:
    """Sessions by the time at which something about them is due.

    An entry is only a reminder: *when* of the session itself decides, so moving a deadline needs no
    search. Reminders that were overtaken are skipped, and swept out before they outnumber the rest.
    """

    def __init__(self, when: Callable[[Session], float]) -> None:
        self._when = when
        self._heap: list[tuple[float, int, Session]] = []
        self._noted = 0

    def note(self, session: Session, sessions: Collection[Session]) -> None:
        """The deadline of *session* was set; *sessions* are all that exist."""
        when = self._when(session)
        if when != NEVER:
            self._noted += 1
            heapq.heappush(self._heap, (when, self._noted, session))
        if len(self._heap) > 2 * len(sessions) + 1000:
            self._heap = [(self._when(s), n, s) for n, s in enumerate(sessions) if self._when(s) != NEVER]
            heapq.heapify(self._heap)

    def pop_due(self, now: float) -> list[Session]:
        """The sessions that are due, each once. Costs only what is due, not what exists."""
        found: dict[Session, None] = {}  # several reminders of one session may be due
        while self._heap and self._heap[0][0] <= now:
            session = heapq.heappop(self._heap)[2]
            if self._when(session) <= now:
                found[session] = None
        return list(found)


class SessionManager:
    """All sessions. Deadlines wait in a heap, so that a look at them costs only what is due."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self._sessions: dict[str, Session] = {}
        self._ends = Deadlines(lambda session: session.ends_at)
        self._wills = Deadlines(lambda session: session.will_due)
        self._queues = Deadlines(lambda session: session.queue_expires_at)
        terms.expiring = lambda session: self._queues.note(session, self._sessions.values())

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(tuple(self._sessions.values()))

    def get(self, client_id: str) -> Session | None:
        """The session of *client_id*, if there is one."""
        return self._sessions.get(client_id)

    def get_or_create(self, client_id: str) -> tuple[Session, bool]:
        """The session of *client_id*, and whether it was there before."""
        session = self._sessions.get(client_id)
        if session is not None:
            return session, True
        return self.create(client_id), False

    def create(self, client_id: str) -> Session:
        """A new, empty session in the place of whatever was there."""
        session = self._sessions[client_id] = Session(client_id, self.terms)
        return session

    @staticmethod
    def cost(client_id: str, user_name: str | None) -> int:
        """The bytes that a session with nothing in it takes of the budget."""
        return text_size(client_id) + text_size(user_name or "") + OVERHEAD

    def delete(self, session: Session) -> bool:
        """Forget *session*, still full; False when it was gone or replaced already."""
        if self._sessions.get(session.client_id) is not session:
            return False
        del self._sessions[session.client_id]
        return True

    def new_client_id(self) -> str:
        """An unused ClientID of 23 characters with 130 random bits [MQTT5 3.1.3.1]."""
        while True:
            client_id = "a" + "".join(secrets.choice(ALPHABET) for _ in range(22))
            if client_id not in self._sessions:
                return client_id

    def note_deadlines(self, session: Session) -> None:
        """To be called after `ends_at` or `will_due` of *session* was set."""
        self._ends.note(session, self._sessions.values())
        self._wills.note(session, self._sessions.values())

    def due_wills(self, now: float) -> list[Session]:
        """The sessions whose will is due; each is returned once."""
        return [session for session in self._wills.pop_due(now) if session.will is not None]

    def drop_expired(self, now: float) -> None:
        """Drop queued messages that have expired by *now*. Costs only what is due, and not all at once."""
        left = AT_ONCE
        for session in self._queues.pop_due(now):
            if left > 0:
                left -= len(session.queue)
                session.drop_expired()
            else:  # the next time
                self.terms.expiring(session)

    def clean_expired(self, now: float) -> list[Session]:
        """The sessions whose life is over [MQTT-4.1.0-2], each returned once, for the caller to end.

        They stay until `delete`: whoever ends one takes the turn of its ClientID first.
        """
        due = self._ends.pop_due(now)
        return [session for session in due if self._sessions.get(session.client_id) is session]


# ---- one CONNECT at a time for each ClientID


class ClientTurns:
    """Serialises what may wait between "is there a session" and "it is mine now". Holds only ids in use."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # for ids whose turn somebody has

    def is_free(self, client_id: str) -> bool:
        """Whether nobody has the turn of *client_id*: who does not wait needs none then."""
        return client_id not in self._waiting

    def of(self, client_id: str) -> Turn:
        """Wait for the turn of *client_id*; turns are given in the order they were asked for."""
        return Turn(self._waiting, client_id)


class Turn:
    """`async with` it. Costs next to nothing while nobody else has it: every CONNECT takes one."""

    __slots__ = ("_client_id", "_waiting")

    def __init__(self, waiting: dict[str, deque[asyncio.Future[None]]], client_id: str) -> None:
        self._waiting = waiting
        self._client_id = client_id

    async def __aenter__(self) -> None:
        before = self._waiting.get(self._client_id)
        if before is None:
            self._waiting[self._client_id] = deque()
            return
        given = asyncio.get_running_loop().create_future()
        before.append(given)
        try:
            await given
        except BaseException:
            if given.done() and not given.cancelled():  # in this very moment
                self._give_on()
            given.cancel()
            raise

    async def __aexit__(self, *error: object) -> None:
        self._give_on()

    def _give_on(self) -> None:
        before = self._waiting[self._client_id]
        while before:
            given = before.popleft()
            if not given.done():
                given.set_result(None)
                return
        del self._waiting[self._client_id]
