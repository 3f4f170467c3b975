"""A receiver as first written: asyncio, one socket, and a line once it serves.

``asyncio_receiver.py PORT``: on SIGTERM it prints how many datagrams it has read.
"""

from __future__ import annotations

import asyncio
import signal
import sys


class Receiver(asyncio.DatagramProtocol):
    """Counts what it reads."""

    read = 0

    def datagram_received(self, _data: bytes, _address: object) -> None:
        """Count one."""
        self.read += 1


async def serve(port: int) -> None:
    """Receive until SIGTERM."""
    loop = asyncio.get_running_loop()
    _, receiver = await loop.create_datagram_endpoint(Receiver, local_addr=("::", port))
    ended = loop.create_future()
    loop.add_signal_handler(signal.SIGTERM, ended.set_result, None)
    print("listening", flush=True)
    await ended
    print("read", receiver.read)


asyncio.run(serve(int(sys.argv[1])))
