"""The daemon's broker with two hooks installed, as users install them: who may publish what, and a log.

    python benchmarks/hooked.py --listen tcp://127.0.0.1:1883     # the flags of pybroker

A client may publish below the topics that were given to it when it came in. The log says who comes and goes,
and at level DEBUG, which is off, each message.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys

from broker import Broker, ClientInfo, Config, HookBase, Message, NotAuthorized
from broker.__main__ import arguments, loop_factory, on_signal, settings

log = logging.getLogger("hooked")


class PublishAcl(HookBase):
    """Everybody may publish below `load/`."""

    async def on_connected(self, client: ClientInfo) -> None:
        client.attributes["may_publish"] = ("load/",)

    async def on_publish(self, client: ClientInfo, message: Message) -> None:
        if not message.topic_name.startswith(client.attributes.get("may_publish", ())):
            raise NotAuthorized(f"{client.client_id} publishes to {message.topic_name}")


class MessageLog(HookBase):
    async def on_connected(self, client: ClientInfo) -> None:
        log.info("%s is here", client.client_id)

    async def on_publish_received(self, client: ClientInfo, message: Message) -> Message:
        log.debug("%s published %d bytes to %s", client.client_id, len(message.payload), message.topic_name)
        return message

    async def on_disconnect(self, client: ClientInfo, reason: int, text: str) -> None:
        log.info("%s left: %s", client.client_id, text)


async def serve(config: Config) -> None:
    async with Broker(config, hooks=[PublishAcl(), MessageLog()]) as broker:
        on_signal(broker.request_stop)
        await broker.serve()


def main() -> None:
    logging.basicConfig(level=logging.INFO)
    config = settings(arguments().parse(sys.argv[1:]), os.environ)
    with asyncio.Runner(loop_factory=loop_factory(config)) as runner:
        runner.run(serve(config))


if __name__ == "__main__":
    main()
