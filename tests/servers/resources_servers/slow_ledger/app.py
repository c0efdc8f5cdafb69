"""An account whose bookings take time, as in a database without locks: of two at the same time one is lost."""

import asyncio

from pydantic import PrivateAttr

from nemo_gym.base_resources_server import BaseVerifyRequest, SessionState, SimpleResourcesServer, tool


class Account(SessionState):
    balance: int = 0


class SlowLedgerVerifyRequest(BaseVerifyRequest):
    expected_balance: int


class SlowLedgerResourcesServer(SimpleResourcesServer):
    _num_bookings: int = PrivateAttr(default=0)

    @tool
    async def book(self, amount: int, account: Account, seconds: float = 0.0) -> int:
        """Add an amount to the balance."""
        balance = account.balance + amount
        await asyncio.sleep(seconds)
        account.balance = balance
        self._num_bookings += 1
        return balance

    @tool
    async def count_bookings(self) -> int:
        """How many bookings were completed, in all rollouts."""
        return self._num_bookings

    async def verify(self, body: SlowLedgerVerifyRequest, account: Account) -> float:
        return float(account.balance == body.expected_balance)


if __name__ == "__main__":
    SlowLedgerResourcesServer.run_webserver()
