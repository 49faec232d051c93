"""A handler of FastAPI: one worker at a time changes an order; a busy order is answered with 423."""

from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException, Request

import latchwork
from latchwork import aio


@asynccontextmanager
async def lifespan(app: FastAPI):
    # In each worker, after the server has forked it. Without an address: LATCHWORK_STORE.
    async with aio.connect(namespace="orders") as app.state.locks:
        yield


app = FastAPI(lifespan=lifespan)
shipped = {}


@app.post("/orders/{order}/ship")
async def ship(order: str, request: Request):
    lock = request.app.state.locks.lock(order, ttl=10)
    try:
        async with lock.acquire(timeout=0.5) as guard:
            shipped[order] = guard.ensure_held()
            return {"order": order, "token": str(guard.token)}  # as text: it exceeds 2^53
    except latchwork.TimedOut as error:
        raise HTTPException(423, str(error)) from None
