"""TopicIndex: values by Topic Name, found by Topic Filter without looking at all of them."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, Sequence
from typing import Final, Generic, TypeVar

from broker.topic.match import match
from broker.topic.name import has_wildcard

V = TypeVar("V")
D = TypeVar("D")

# Names that share their first levels. Few of them are just a bunch; more are told apart by their next level,
# with None for the name that has none. So memory grows with the names and not with their levels, and a name
# of 65,536 levels costs no more than its bytes.
_Node = tuple[str, ...] | dict[str | None, "_Node"]

BUNCH: Final = 16


class TopicIndex(Generic[V]):
    """Values by Topic Name. One event loop owns it: no lock.

    It may change while a `find` is under way, see there.
    """

    __slots__ = ("_branch", "_root", "_values")

    def __init__(self) -> None:
        self._values: dict[str, V] = {}
        self._root: _Node = ()
        # Where the last new name went: a beginning of names that ends with "/", and what branches there.
        self._branch: tuple[str, dict[str | None, _Node] | None] = ("", None)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, topic_name: object) -> bool:
        return topic_name in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def items(self) -> ItemsView[str, V]:
        """All, in the order first set. As with a dictionary, not to be walked across a change."""
        return self._values.items()

    def get(self, topic_name: str, default: D | None = None) -> V | D | None:
        return self._values.get(topic_name, default)

    def set(self, topic_name: str, value: V) -> V | None:
        """Store *value*; gives the one that was there. Cost of a new name: the levels walked, at most."""
        old = self._values.get(topic_name)
        if old is None and topic_name not in self._values:
            self._add(topic_name)
        self._values[topic_name] = value
        return old

    def pop(self, topic_name: str, default: D | None = None) -> V | D | None:
        """Remove and return a value, or return *default*."""
        if topic_name not in self._values:
            return default
        self._discard(topic_name)
        return self._values.pop(topic_name)

    def find(self, topic_filter: str) -> Iterator[tuple[str, V]]:
        """The names that *topic_filter* matches, without a share prefix, each with its value at that moment.

        Lazy, and the index may change between two steps. A name that is there from the first step to the
        last comes exactly once, a removed one comes no more, one that is added meanwhile may come. The
        order is the same each time while nothing changes. A step takes as long as the next match is
        away: `slices` bounds it.
        """
        values = self._values
        for _, names in self._bunches(topic_filter, BUNCH):
            for topic_name in names:
                if topic_name in values:
                    yield topic_name, values[topic_name]

    def slices(self, topic_filter: str, size: int = 256) -> Iterator[list[V]]:
        """The values of `find`, in lists of what was seen in about *size* steps; a list may be empty."""
        values, left = self._values, size
        found: list[V] = []
        for looked_at, names in self._bunches(topic_filter, size):
            if looked_at > left < size:
                yield found
                found, left = [], size
            found += [value for value in map(values.get, names) if value is not None]
            left -= looked_at
        yield found

    def _bunches(self, topic_filter: str, most: int) -> Iterator[tuple[int, Sequence[str]]]:
        """The names that match, some perhaps gone already: how many were looked at for it, and which.

        At most *most* at a time, and 1 for a step down. One name a step took 190 ns, a bunch takes 60 of them
        (`#` over 30,000 names, each in a branch of its own; CPython 3.11, 2 cores).
        """
        if not has_wildcard(topic_filter):
            yield 1, (topic_filter,)
            return
        levels = topic_filter.split("/")
        # What is still to be seen, and the levels passed on the way to it: each a snapshot of children.
        stack: list[tuple[Iterator[_Node], int]] = [(iter((self._root,)), 0)]
        while stack:
            nodes, depth = stack[-1]
            wanted = _wanted(levels, depth)
            names, branch = _together(nodes, most)
            for at in range(0, len(names), most):
                part = names[at : at + most]
                if wanted == "#" and depth > 0:
                    yield len(part), part
                else:
                    yield len(part), [name for name in part if match(topic_filter, name)]
            if branch is not None:
                yield 1, ()
                stack.append((iter(_below(branch, depth, wanted)), depth + 1))
            elif not names:
                stack.pop()

    def _add(self, topic_name: str) -> None:
        parent: dict[str | None, _Node] | None = None
        level: str | None = None
        node, at, begin, size = self._root, 0, 0, len(topic_name)
        prefix, branch = self._branch
        if branch is not None and topic_name.startswith(prefix):  # new names come in flocks: 950 -> 550 ns
            node, at = branch, len(prefix)
        while isinstance(node, dict):  # `_level` in place: 1230 -> 950 ns for a name of three levels
            begin, end = at, topic_name.find("/", at)
            if end < 0:
                end = size
            parent, level = node, topic_name[at:end] if at <= size else None
            node, at = node.get(level, ()), end + 1
        node = (*node, topic_name)
        grown: _Node = node if len(node) <= BUNCH else _tell_apart(node, at)
        if parent is None:
            self._root = grown
        else:
            parent[level] = grown
            if parent is not branch and begin <= size:
                self._branch = topic_name[:begin], parent

    def _discard(self, topic_name: str) -> None:
        path: list[tuple[dict[str | None, _Node], str | None]] = []
        node, at = self._root, 0
        while isinstance(node, dict):
            level, at = _level(topic_name, at)
            path.append((node, level))
            node = node[level]
        left: _Node = tuple(name for name in node if name != topic_name)
        while path:
            parent, level = path.pop()
            if left:
                parent[level] = left
                return
            del parent[level]
            left = parent
            self._branch = "", None
        self._root = left or ()


def _together(nodes: Iterator[_Node], most: int) -> tuple[list[str], dict[str | None, _Node] | None]:
    """The names of the next *nodes*, about *most*, and the first that branches, which ends them."""
    names: list[str] = []
    for node in nodes:
        if not isinstance(node, tuple):
            return names, node
        names += node
        if len(names) >= most:
            break
    return names, None


def _level(topic_name: str, at: int) -> tuple[str | None, int]:
    """The level that starts at offset *at*, or None after the last, and the offset of the next."""
    if at > len(topic_name):
        return None, at
    end = topic_name.find("/", at)
    if end < 0:
        end = len(topic_name)
    return topic_name[at:end], end + 1


def _tell_apart(names: tuple[str, ...], at: int) -> _Node:
    """*names*, equal up to offset *at*, by their next level. One level only: the next name goes deeper."""
    apart: dict[str | None, _Node] = {}
    for topic_name in names:
        level, _ = _level(topic_name, at)
        apart[level] = (*apart.get(level, ()), topic_name)
    return apart


def _wanted(levels: list[str], depth: int) -> str | None:
    """The level of a filter that applies below *depth* others; None if names must end there."""
    if depth < len(levels):
        return levels[depth]
    return "#" if levels[-1] == "#" else None


def _below(node: dict[str | None, _Node], depth: int, wanted: str | None) -> list[_Node]:
    """The children of *node* in which names can match."""
    if wanted not in ("+", "#"):
        return [node[wanted]] if wanted in node else []
    if depth == 0:  # [MQTT-4.7.2-1]
        return [child for level, child in node.items() if not (level or "").startswith("$")]
    if wanted == "+" and None in node:
        return [child for level, child in node.items() if level is not None]
    return list(node.values())
