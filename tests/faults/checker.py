"""What must hold for any history of clients and a broker that crashes: pure rules over a list of events.

Each rule gives one line for each breach. `check` runs them all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tests.faults.history import (
    Acknowledged,
    Arrived,
    Breach,
    Connected,
    Connecting,
    Drained,
    Event,
    Found,
    Freed,
    Gone,
    History,
    Killed,
    Leaving,
    Looking,
    Published,
    Started,
    Subscribed,
    Subscribing,
    Tag,
    Unsubscribed,
    Unsubscribing,
    Willed,
)

SLACK = 2.0  # seconds that the end of a session may come late
SETTLED = 0.6  # seconds of a broker's life after which it has stored who is gone

Rule = Callable[[History], Iterator[str]]
RULES: list[Rule] = []


def rule(function: Rule) -> Rule:
    RULES.append(function)
    return function


def check(history: History) -> list[str]:
    """Every breach of every rule."""
    return [f"{each.__name__}: {breach}" for each in RULES for breach in each(history)]


# ---- what several rules need


@dataclass(slots=True)
class Fate:
    """What the publisher knows of one message; positions in the history."""

    first: Published
    sent_at: int
    sendings: int = 1
    owned_at: int | None = None  # PUBACK or PUBREC below 0x80
    done_at: int | None = None  # PUBACK or PUBCOMP
    refused: bool = False
    void: bool = False  # the publisher's session ended before the flow did


def fates(history: History) -> dict[Tag, Fate]:
    found: dict[Tag, Fate] = {}
    running: dict[str, set[Tag]] = defaultdict(set)  # by publisher
    for at, event in enumerate(history):
        if isinstance(event, Published):
            if event.tag in found:
                found[event.tag].sendings += 1
            else:
                found[event.tag] = Fate(event, at)
                running[event.client].add(event.tag)
        elif isinstance(event, Acknowledged) and event.tag in found:
            _step(found[event.tag], event, at)
            if found[event.tag].done_at is not None:
                running[event.client].discard(event.tag)
        elif ends_session(event):
            for tag in running.pop(event.client, ()):
                found[tag].void = True
    return found


def _step(fate: Fate, event: Acknowledged, at: int) -> None:
    if event.code >= 0x80 and event.kind != "PUBCOMP":
        fate.refused = True
        return
    if fate.owned_at is None:
        fate.owned_at = at
    if event.kind in ("PUBACK", "PUBCOMP"):
        fate.done_at = at


def ends_session(event: Event) -> bool:
    """Whether the client has no session of before any more."""
    if isinstance(event, Connecting):
        return event.clean_start
    return isinstance(event, Connected) and not event.session_present


def share_of(topic_filter: str) -> str:
    return topic_filter if topic_filter.startswith("$share/") else ""


def matches(topic_filter: str, topic_name: str) -> bool:
    """Whether the filter, `$share/name/` before it or not, matches [MQTT5 4.7]."""
    if topic_filter.startswith("$share/"):
        topic_filter = topic_filter.split("/", 2)[2]
    levels, names = topic_filter.split("/"), topic_name.split("/")
    for at, level in enumerate(levels):
        if level == "#":
            return True
        if at >= len(names) or level not in ("+", names[at]):
            return False
    return len(levels) == len(names)


@dataclass(slots=True)
class Cover:
    """A subscription that was acknowledged and never given up."""

    receiver: str  # the client, or the full filter of a shared subscription
    topic_filter: str
    since: int


def covers(history: History) -> list[Cover]:
    """The subscriptions that are there at the end, each from its first SUBACK on."""
    since: dict[tuple[str, str], int] = {}
    for at, event in enumerate(history):
        note_subscriptions(since, event, at)
    return [Cover(share_of(topic_filter) or client, topic_filter, at)
            for (client, topic_filter), at in since.items()]  # fmt: skip


def receivers(history: History) -> Callable[[str, str], list[str]]:
    """(client, topic name) -> in whose place it gets such messages: itself, or shared filters."""
    filters: dict[str, set[str]] = defaultdict(set)
    for event in history:
        if isinstance(event, Subscribing):
            filters[event.client].add(event.topic_filter)
    known: dict[tuple[str, str], list[str]] = {}

    def find(client: str, topic_name: str) -> list[str]:
        if (client, topic_name) not in known:
            mine = [each for each in filters[client] if matches(each, topic_name)]
            known[client, topic_name] = sorted({share_of(each) or client for each in mine})
        return known[client, topic_name]

    return find


def note_subscriptions(since: dict[tuple[str, str], int], event: Event, at: int) -> None:
    """Keep in *since* when each (client, filter) was first acknowledged, of those that are there."""
    if isinstance(event, Subscribed):
        since.setdefault((event.client, event.topic_filter), at)
    elif isinstance(event, Unsubscribing):
        since.pop((event.client, event.topic_filter), None)
    elif ends_session(event):
        for key in [key for key in since if key[0] == event.client]:
            del since[key]


# ---- messages


@rule
def nothing_acknowledged_is_lost(history: History) -> Iterator[str]:
    """A subscription that was there before the message, and still is, has brought it."""
    if not any(isinstance(event, Drained) for event in history):
        return
    got: set[tuple[str, Tag]] = set()
    places = receivers(history)
    for event in history:
        if isinstance(event, Arrived):
            got.update((place, event.tag) for place in places(event.client, event.tag.topic_name))
    standing = covers(history)
    for tag, fate in fates(history).items():
        if not fate.first.qos or fate.owned_at is None or (fate.void and fate.done_at is None):
            continue
        for cover in standing:
            covered = cover.since < fate.sent_at and matches(cover.topic_filter, tag.topic_name)
            if covered and (cover.receiver, tag) not in got:
                yield f"{tag} was acknowledged and did not reach {cover.receiver}"


@rule
def acknowledged_flows_end(history: History) -> Iterator[str]:
    """Nothing is refused, and once all is drained nothing of a living session is open."""
    drained = any(isinstance(event, Drained) for event in history)
    for tag, fate in fates(history).items():
        if fate.refused:
            yield f"{tag} was refused"
        elif drained and fate.first.qos and fate.done_at is None and not fate.void:
            yield f"{tag} was never acknowledged"


@rule
def exactly_once(history: History) -> Iterator[str]:
    """QoS 2 from end to end: one arrival for each subscriber, and for each shared group as a whole."""
    twos = {each.tag for each in history if isinstance(each, Published | Willed) and each.qos == 2}
    times: dict[tuple[str, Tag], int] = defaultdict(int)
    places = receivers(history)
    for event in history:
        if isinstance(event, Arrived) and event.qos == 2 and not event.again and not event.retain:
            if event.tag not in twos:
                yield f"{event.client} got {event.tag} at QoS 2, which nobody published so"
            for place in places(event.client, event.tag.topic_name):
                times[place, event.tag] += 1
    for (place, tag), count in times.items():
        if count > 1:
            yield f"{place} got {tag} {count} times"


@rule
def nothing_is_invented(history: History) -> Iterator[str]:
    """What arrives was published before, and not at a higher QoS than that."""
    published: dict[Tag, int] = {}
    for event in history:
        if isinstance(event, Published | Willed):
            published.setdefault(event.tag, event.qos)
        elif isinstance(event, Arrived):
            if event.tag not in published:
                yield f"{event.client} got {event.tag} before it was published"
            elif event.qos > published[event.tag]:
                yield f"{event.client} got {event.tag} at QoS {event.qos}"


@rule
def order_is_kept(history: History) -> Iterator[str]:
    """For each topic, publisher and QoS: first arrivals come in the order of publishing [MQTT5 4.6].

    A message that its publisher has sent again comes in the place of that sending to who subscribed after
    the first one: later messages may have come before it.
    Nothing is asked for a publisher that does not tell its Packet Identifiers: paho sends out of order when
    something is published while it comes back.
    """
    known = fates(history)
    qos = {tag: fate.first.qos for tag, fate in known.items() if fate.first.packet_id}
    since: dict[tuple[str, str], int] = {}  # the first SUBACK of each client and filter
    seen: set[tuple[str, Tag]] = set()
    sent_at: dict[Tag, int] = {}  # the latest time
    last: dict[tuple[str, str, str, int], tuple[int, int]] = {}  # number, and when it was sent
    places = receivers(history)
    for at, event in enumerate(history):
        note_subscriptions(since, event, at)
        if isinstance(event, Published):
            sent_at[event.tag] = at
        if not isinstance(event, Arrived) or event.retain or (event.client, event.tag) in seen:
            continue
        if event.tag not in qos:
            continue
        seen.add((event.client, event.tag))
        if places(event.client, event.tag.topic_name) != [event.client]:
            continue  # a shared group makes no order among its members
        key = (event.client, event.tag.publisher, event.tag.topic_name, qos[event.tag])
        now, before = (event.tag.number, sent_at.get(event.tag, 0)), last.get(key, (0, 0))
        first_at = known[event.tag].sent_at
        was_there = any(
            client == event.client and at < first_at and matches(each, event.tag.topic_name)
            for (client, each), at in since.items()
        )
        if now[0] < before[0] and (was_there or now[1] <= before[1]):
            yield f"{event.client} got {event.tag} after number {before[0]}"
        else:
            last[key] = now


@dataclass(slots=True)
class Delivery:
    """The latest arrival of one message at one client."""

    event: Arrived
    sendings: int  # of the publisher, so far
    killed: int  # how often the broker was killed before it
    connection: int


@rule
def repetitions_have_a_reason(history: History) -> Iterator[str]:
    """A second arrival at QoS 1 follows a lost connection or a second sending; see `_repeated`."""
    latest: dict[tuple[str, Tag], Delivery] = {}
    sendings: dict[Tag, int] = defaultdict(int)
    connections: dict[str, int] = defaultdict(int)
    killed = 0
    for event in history:
        if isinstance(event, Published):
            sendings[event.tag] += 1 if event.packet_id else 2  # who tells no identifiers may send again
        elif isinstance(event, Killed):
            killed += 1
        elif isinstance(event, Connected):
            connections[event.client] += 1
        elif isinstance(event, Arrived) and event.qos == 1 and not event.retain:
            now = Delivery(event, sendings[event.tag], killed, connections[event.client])
            before = latest.get((event.client, event.tag))
            if before is not None:
                yield from _repeated(before, now)
            latest[event.client, event.tag] = now


def _repeated(before: Delivery, now: Delivery) -> Iterator[str]:
    event = now.event
    if now.sendings > 1:
        return  # the publisher sent it again: it may be another message to the broker
    if before.connection == now.connection:
        yield f"{event.client} got {event.tag} twice on one connection"
    elif event.dup and event.packet_id != before.event.packet_id:
        yield f"{event.client} got {event.tag} again as {event.packet_id}, not {before.event.packet_id}"
    elif not event.dup and before.killed == now.killed:
        yield f"{event.client} got {event.tag} again without DUP"


@rule
def dup_only_where_allowed(history: History) -> Iterator[str]:
    """DUP says: sent before, on an earlier connection of this session [MQTT-3.3.1-1, MQTT-4.4.0-1]."""
    sent_at = {tag: fate.sent_at for tag, fate in fates(history).items()}
    resumed: dict[str, int] = {}
    for at, event in enumerate(history):
        if isinstance(event, Connected):
            resumed.pop(event.client, None)
            if event.session_present:
                resumed[event.client] = at
        elif isinstance(event, Arrived) and event.dup:
            if not event.qos:
                yield f"{event.client} got {event.tag} with DUP at QoS 0"
            elif event.client not in resumed:
                yield f"{event.client} got {event.tag} with DUP in a new session"
            elif sent_at.get(event.tag, 0) > resumed[event.client]:
                yield f"{event.client} got {event.tag} with DUP, which was published on this connection"


@rule
def identifiers_stay(history: History) -> Iterator[str]:
    """A QoS 2 message keeps its Packet Identifier until PUBREL, and its repetition says DUP."""
    taken: dict[str, dict[int, Tag]] = defaultdict(dict)
    for event in history:
        if isinstance(event, Connecting) and event.clean_start:
            taken[event.client].clear()  # whether there is an answer or not
        elif isinstance(event, Connected) and not event.session_present:
            taken[event.client].clear()
        elif isinstance(event, Freed):
            taken[event.client].pop(event.packet_id, None)
        elif isinstance(event, Arrived) and event.qos == 2 and event.packet_id:
            mine = taken[event.client]
            held = mine.get(event.packet_id)
            if held is not None and held != event.tag:
                yield f"{event.client} got {event.tag} as {event.packet_id}, which {held} still has"
            elif held is not None and not event.dup:
                yield f"{event.client} got {event.tag} again without DUP"
            elif held is None and event.tag in mine.values():
                yield f"{event.client} got {event.tag} again under another identifier, {event.packet_id}"
            mine[event.packet_id] = event.tag


@rule
def acknowledgements_fit(history: History) -> Iterator[str]:
    """Every PUBACK, PUBREC and PUBCOMP is for something that waits for it."""
    for event in history:
        if isinstance(event, Acknowledged) and event.tag is None:
            yield f"{event.client} got {event.kind} {event.packet_id}, for which nothing waits"
        elif isinstance(event, Breach):
            yield f"{event.client}: {event.text}"


# ---- subscriptions


@rule
def what_is_unsubscribed_stays_away(history: History) -> Iterator[str]:
    """What was published after UNSUBACK, or after a session that is over, does not arrive."""
    sent_at = {tag: fate.sent_at for tag, fate in fates(history).items()}
    closed: dict[tuple[str, str], int | None] = {}  # None: it may be there
    for at, event in enumerate(history):
        if isinstance(event, Subscribing):
            closed[event.client, event.topic_filter] = None
        elif isinstance(event, Unsubscribed):
            closed[event.client, event.topic_filter] = at
        elif isinstance(event, Connected) and not event.session_present:
            for key in closed:
                if key[0] == event.client and closed[key] is None:
                    closed[key] = at
        elif isinstance(event, Arrived) and event.tag in sent_at:
            mine = [(key[1], end) for key, end in closed.items() if key[0] == event.client]
            mine = [pair for pair in mine if matches(pair[0], event.tag.topic_name)]
            if not any(end is None or end > sent_at[event.tag] for _, end in mine):
                yield f"{event.client} got {event.tag}, to which it is not subscribed"


# ---- sessions


@dataclass(slots=True)
class Standing:
    """What is known of the session of one client: there, not there, or None for not known.

    Its end counts from `gone_at`, when the client left. To a broker that is killed before it has stored that,
    all who were there have left when it starts again: the end counts from `counts_from` at the latest.
    """

    there: bool | None = False
    expiry: float = 0.0
    expected: bool | None = False  # of the CONNACK that is awaited
    asked: float = 0.0
    gone_at: float | None = None
    counts_from: float | None = None  # None: not known yet


@rule
def session_present_says_the_truth(history: History) -> Iterator[str]:
    """[MQTT-3.2.2-2, MQTT-3.2.2-3], over crashes as well."""
    standings: dict[str, Standing] = defaultdict(Standing)
    lives = 0.0  # since when
    for event in history:
        standing = standings[event.client]
        if isinstance(event, Started):
            lives = event.at
        elif isinstance(event, Killed):
            for each in standings.values():
                _life_is_over(each, lives, event.at)
            lives = float("inf")
        elif isinstance(event, Connecting):
            _life_is_over(standing, lives, event.at)
            _connecting(standing, event)
        elif isinstance(event, Connected):
            if standing.expected is not None and event.session_present != standing.expected:
                yield f"{event.client}: Session Present {int(event.session_present)} is not true"
            standing.there, standing.expiry, standing.gone_at = True, standing.asked, None
        elif isinstance(event, Leaving) and event.expiry is not None:
            standing.expiry, standing.there = event.expiry, None  # nobody says whether it was read
        elif isinstance(event, Gone) and standing.gone_at is None:
            standing.gone_at, standing.counts_from = event.at, None
            if standing.expiry == 0 and standing.there:
                standing.there = False


def _life_is_over(standing: Standing, began: float, ended: float) -> None:
    """The broker lived between these times: did it store that the client is gone?"""
    if standing.gone_at is not None and standing.counts_from is None:
        since = max(began, standing.gone_at)
        if ended - since > SETTLED:
            standing.counts_from = since


def _connecting(standing: Standing, event: Connecting) -> None:
    there = standing.there
    if there and standing.gone_at is not None:
        if standing.counts_from is not None and event.at - standing.counts_from > standing.expiry + SLACK:
            there = False
        elif event.at - standing.gone_at > standing.expiry - 0.1:
            there = None
    standing.expected = False if event.clean_start else there
    standing.asked = event.expiry
    # Until CONNACK says more: the broker may have read the CONNECT, or not.
    standing.there = True if there and not event.clean_start else None


# ---- retained messages


@dataclass(slots=True)
class Shelf:
    """What was retained under one topic name."""

    sent: dict[int, bool] = field(default_factory=dict)  # number -> whether it deletes
    acknowledged: int = 0
    least: int = 0  # what was acknowledged when somebody began to look


@rule
def retained_is_the_last_or_later(history: History) -> Iterator[str]:
    """The retained message is the last one acknowledged when the look began, or a later one."""
    shelves: dict[str, Shelf] = defaultdict(Shelf)
    for event in history:
        if isinstance(event, Published) and event.retain:
            shelves[event.tag.topic_name].sent[event.tag.number] = event.clears
        elif isinstance(event, Acknowledged) and event.tag is not None:
            shelf = shelves[event.tag.topic_name]
            if event.kind != "PUBREC" and event.code < 0x80 and event.tag.number in shelf.sent:
                shelf.acknowledged = max(shelf.acknowledged, event.tag.number)
        elif isinstance(event, Looking):
            shelves[event.topic_name].least = shelves[event.topic_name].acknowledged
        elif isinstance(event, Found):
            yield from _found(shelves[event.topic_name], event)


def _found(shelf: Shelf, event: Found) -> Iterator[str]:
    if event.tag is None:
        later = [number for number, deletes in shelf.sent.items() if number >= shelf.least and deletes]
        if shelf.least and not later:
            yield f"{event.topic_name}: nothing is retained, number {shelf.least} was acknowledged"
    elif event.tag.number < shelf.least or event.tag.number not in shelf.sent:
        yield f"{event.topic_name}: {event.tag.number} is retained, {shelf.least} was acknowledged"
