"""What happens to an order; served by `pyengine worker tests.examples.django_shop.workflows:app`."""

from __future__ import annotations

from pyengine import App

app = App()


@app.step
def pack(order: int) -> str:
    """Put the order into a parcel."""
    return f"parcel {order}"


@app.workflow
async def fulfil(order: int) -> str:
    """Pack the order."""
    return await pack(order)
