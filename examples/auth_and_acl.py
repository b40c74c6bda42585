"""Users, passwords and who may use which topics, by a hook.

Each user owns the topics below `users/<name>/`, and everybody may read `public/#`.

    python examples/auth_and_acl.py
    mosquitto_sub -u ada -P lovelace -t 'users/ada/#' -t 'public/#' -v
"""

import asyncio
import contextlib
import hmac

from broker import (
    BadUserNameOrPassword,
    Broker,
    ClientInfo,
    Connect,
    HookBase,
    NotAuthorized,
    SubscribeRequest,
)

PASSWORDS = {"ada": b"lovelace", "grace": b"hopper"}  # a real program keeps salted hashes


class Users(HookBase):
    async def on_connect(self, client: ClientInfo, packet: Connect) -> None:
        expected = PASSWORDS.get(packet.user_name or "", b"")
        if not expected or not hmac.compare_digest(expected, packet.password or b""):
            raise BadUserNameOrPassword(f"user {packet.user_name!r}")

    def may_publish(self, client: ClientInfo, topic_name: str) -> bool:
        """Asked once for each connection and topic: after a change of rules, `broker.ask_again()`."""
        return topic_name.startswith(f"users/{client.user_name}/")

    async def on_subscribe(self, client: ClientInfo, request: SubscribeRequest) -> SubscribeRequest:
        if not request.topic_filter.startswith((f"users/{client.user_name}/", "public/")):
            raise NotAuthorized(f"{client.user_name} subscribes to {request.topic_filter}")
        return request


async def main() -> None:
    async with Broker(hooks=[Users()], listen="tcp://127.0.0.1:1883") as broker:
        await broker.publish("public/notice", b"welcome", retain=True)
        await broker.serve()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())
