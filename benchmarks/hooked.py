"""The daemon's broker with two hooks installed, as users install them: who may publish what, and a log.

    python benchmarks/hooked.py each --listen tcp://127.0.0.1:1883     # or remembered; the flags of pybroker

A client may publish below the topics that were given to it when it came in. The log says who comes and goes,
and at level DEBUG, which is off, each message. The pair *each* looks at every message by itself. With
the pair *remembered* a verdict is kept for the connection and the topic, and the log hears of a whole read
at once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys

from broker import Broker, ClientInfo, Config, HookBase, Message, NotAuthorized
from broker.__main__ import arguments, loop_factory, on_signal, settings

log = logging.getLogger("hooked")


class Topics(HookBase):
    """Everybody is given what is below `load/`."""

    async def on_connected(self, client: ClientInfo) -> None:
        client.attributes["may_publish"] = ("load/",)


class PublishAcl(Topics):
    async def on_publish(self, client: ClientInfo, message: Message) -> None:
        if not message.topic_name.startswith(client.attributes.get("may_publish", ())):
            raise NotAuthorized(f"{client.client_id} publishes to {message.topic_name}")


class RememberedAcl(Topics):
    def may_publish(self, client: ClientInfo, topic_name: str) -> bool:
        return topic_name.startswith(client.attributes.get("may_publish", ()))


class ConnectionLog(HookBase):
    async def on_connected(self, client: ClientInfo) -> None:
        log.info("%s is here", client.client_id)

    async def on_disconnect(self, client: ClientInfo, reason: int, text: str) -> None:
        log.info("%s left: %s", client.client_id, text)


class MessageLog(ConnectionLog):
    async def on_publish_received(self, client: ClientInfo, message: Message) -> Message:
        log.debug("%s published %d bytes to %s", client.client_id, len(message.payload), message.topic_name)
        return message


class RunLog(ConnectionLog):
    holds = False

    def on_taken(self, client: ClientInfo | None, message: Message, dup: bool, origin: str) -> None:
        who = "" if client is None else client.client_id
        log.debug("%s published %d bytes to %s", who, len(message.payload), message.topic_name)

    def on_taken_run(self, client: ClientInfo, packets: bytes, count: int) -> None:
        log.debug("%s published %d messages, %d bytes", client.client_id, count, len(packets))


PAIRS: dict[str, tuple[type[HookBase], type[HookBase]]] = {
    "each": (PublishAcl, MessageLog),
    "remembered": (RememberedAcl, RunLog),
}


async def serve(config: Config, pair: str) -> None:
    async with Broker(config, hooks=[hook() for hook in PAIRS[pair]]) as broker:
        on_signal(broker.request_stop)
        await broker.serve()


def main() -> None:
    logging.basicConfig(level=logging.INFO)
    pair, *flags = sys.argv[1:] or [""]
    if pair not in PAIRS:
        sys.exit(f"the first word says which pair of hooks, {' or '.join(PAIRS)}; it is {pair!r}")
    config = settings(arguments().parse(flags), os.environ)
    with asyncio.Runner(loop_factory=loop_factory(config)) as runner:
        runner.run(serve(config, pair))


if __name__ == "__main__":
    main()
