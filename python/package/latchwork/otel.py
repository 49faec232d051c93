"""Spans and metrics for OpenTelemetry, if its API is installed: ``latchwork.otel.instrument()``, once, when the program
starts.

Each call that acquires is a span: ``latchwork acquire`` also for ``with lock:`` and ``async with lock:``, ``latchwork
try_acquire``, ``latchwork campaign``, ``latchwork begin``. Its attributes are ``latchwork.name``, and ``latchwork.key`` and
``latchwork.token`` if it has acquired, ``latchwork.outcome`` otherwise (``"not_free"``, ``"timed_out"`` ...).
"""

from __future__ import annotations

import functools
import importlib
import sys
from typing import Any, Callable, List, Optional, Tuple

from . import _aio_elections, _aio_locks, _aio_once, _elections, _errors, _locks, _native, _once, metrics
from ._contexts import ByTasks, ByThreads
from ._loops import Acquiring

__all__ = ["instrument", "uninstrument"]

_replaced: List[Tuple[type, str, Any]] = []
_is_observed = False


class _Span:
    """A span around one call."""

    def __init__(self, tracer: Any, what: str, thing: Any) -> None:
        self._current = tracer.start_as_current_span(f"latchwork {what}", attributes={"latchwork.name": thing.name})

    def __enter__(self) -> "_Span":
        self._span = self._current.__enter__()
        return self

    def ended(self, guard: Any) -> None:
        if isinstance(guard, _native.Hold):
            self._span.set_attribute("latchwork.key", guard.key)
            self._span.set_attribute("latchwork.token", guard.token)
        else:
            self._span.set_attribute("latchwork.outcome", getattr(guard, "why", "not_free"))

    def __exit__(self, kind: Any, raised: Any, trace: Any) -> Any:
        if isinstance(raised, _errors.LatchworkError):
            self._span.set_attribute("latchwork.outcome", raised.kind)
        return self._current.__exit__(kind, raised, trace)


def _blocking(tracer: Any, what: str, original: Any) -> Any:
    @functools.wraps(original)
    def traced(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _Span(tracer, what, self) as span:
            guard = original(self, *args, **kwargs)
            span.ended(guard)
            return guard

    return traced


def _awaited(tracer: Any, what: str, original: Any) -> Any:
    @functools.wraps(original)
    def traced(self: Any, *args: Any, **kwargs: Any) -> Any:
        operation = original(self, *args, **kwargs)

        async def awaits() -> Any:
            with _Span(tracer, what, self) as span:
                guard = await operation
                span.ended(guard)
                return guard

        return Acquiring(awaits()) if isinstance(operation, Acquiring) else awaits()

    return traced


def _entered(tracer: Any, what: str, original: Any) -> Any:
    @functools.wraps(original)
    def traced(self: Any) -> Any:
        operation = self._entering(_native.block(sys._getframe(1)))

        async def enters() -> Any:
            with _Span(tracer, what, self) as span:
                guard = await operation
                span.ended(guard)
                return guard

        return enters()

    return traced


def _entered_by_threads(tracer: Any, what: str, original: Any) -> Any:
    """By its `acquire`, which makes the span."""
    return ByThreads.__enter__


_CALLS: List[Tuple[type, str, str, Callable[[Any, str, Any], Any]]] = [
    (_locks.Lock, "acquire", "acquire", _blocking),
    (_locks.Lock, "try_acquire", "try_acquire", _blocking),
    (_locks.ReentrantLock, "acquire", "acquire", _blocking),
    (_locks.ReentrantLock, "try_acquire", "try_acquire", _blocking),
    (_elections.Election, "campaign", "campaign", _blocking),
    (_elections.Election, "try_campaign", "try_campaign", _blocking),
    (_once.Once, "begin", "begin", _blocking),
    (_aio_locks.Lock, "acquire", "acquire", _awaited),
    (_aio_locks.Lock, "try_acquire", "try_acquire", _awaited),
    (_aio_locks.ReentrantLock, "acquire", "acquire", _awaited),
    (_aio_locks.ReentrantLock, "try_acquire", "try_acquire", _awaited),
    (_aio_elections.Election, "campaign", "campaign", _awaited),
    (_aio_elections.Election, "try_campaign", "try_campaign", _awaited),
    (_aio_once.Once, "begin", "begin", _awaited),
    (_locks.Lock, "__enter__", "acquire", _entered_by_threads),
    (ByTasks, "__aenter__", "acquire", _entered),
]


def instrument(tracer_provider: Optional[Any] = None, meter_provider: Optional[Any] = None) -> None:
    """Has each acquire make a span, and gives the numbers of :mod:`latchwork.metrics` to OpenTelemetry.

    :param tracer_provider: Default: the one that the program has set for OpenTelemetry.
    :param meter_provider: The same for metrics.
    :raises ModuleNotFoundError: ``opentelemetry-api`` is not installed.
    """
    trace: Any = importlib.import_module("opentelemetry.trace")
    if _replaced:
        return
    tracer = trace.get_tracer("latchwork", _native.VERSION, tracer_provider=tracer_provider)
    for owner, name, what, wrapped in _CALLS:
        original = owner.__dict__[name]
        _replaced.append((owner, name, original))
        setattr(owner, name, wrapped(tracer, what, original))
    _observe(meter_provider)


def uninstrument() -> None:
    """Ends the spans. The metrics end with their provider."""
    while _replaced:
        owner, name, original = _replaced.pop()
        setattr(owner, name, original)


def _observe(meter_provider: Optional[Any]) -> None:
    global _is_observed
    if _is_observed:
        return
    _is_observed = True
    api: Any = importlib.import_module("opentelemetry.metrics")
    meter = api.get_meter("latchwork", _native.VERSION, meter_provider=meter_provider)

    def reads(name: str, number: Callable[[metrics.Sample], float]) -> Callable[[Any], Any]:
        def read(_: Any) -> Any:
            found = metrics.snapshot().get(name)
            return [api.Observation(number(it), it.labels) for it in (found.samples if found else ())]

        return read

    # OpenTelemetry reads no histogram from outside: their sums and their counts are counters.
    for name, help in metrics._HELP.items():
        dotted = name.replace("latchwork_", "latchwork.")
        if name.endswith("_seconds"):
            meter.create_observable_counter(f"{dotted}.sum", [reads(name, lambda it: it.value)], "s", help)
            meter.create_observable_counter(f"{dotted}.count", [reads(name, lambda it: it.count)], "1", help)
        elif name in ("latchwork_held", "latchwork_waiting"):
            meter.create_observable_up_down_counter(dotted, [reads(name, lambda it: it.value)], "1", help)
        else:
            meter.create_observable_counter(dotted, [reads(name, lambda it: it.value)], "1", help)
