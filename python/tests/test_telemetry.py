"""Numbers and spans: for Prometheus and OpenTelemetry, with their own libraries."""

import asyncio
import os
import threading

import pytest

import latchwork
from latchwork import aio, metrics
from latchwork.testing import Store

from conftest import run, wait_until
from servers import redis


def number(name, store, **labels):
    found = metrics.snapshot().get(name)
    wanted = {"store": store, **labels}
    return sum(it.value for it in (found.samples if found else ()) if it.labels == wanted)


def test_what_happens_is_counted(tmp_path):
    # A server of its own: the numbers are those of a store.
    with redis(tmp_path) as (port, _), latchwork.connect(f"redis://127.0.0.1:{port}", ttl=1) as locks:
        store, lock = locks.store, locks.lock("stock")
        with lock:
            assert number("latchwork_held", store) == 1
            assert lock.try_acquire() is None
            waiting = threading.Thread(target=lambda: lock.acquire().release())
            waiting.start()
            wait_until(lambda: number("latchwork_waiting", store) == 1, "it waits")
            with pytest.raises(latchwork.TimedOut):
                lock.acquire(timeout=0.05)
        waiting.join(20)
        assert number("latchwork_waiting", store) == 0 and number("latchwork_abandoned_waits", store) == 1
        guard = lock.acquire()
        locks.force_release("stock")
        assert guard.lost.wait(20) == "taken"
        guard._forget()
        wait_until(lambda: number("latchwork_held", store) == 0, "nothing is held")
        assert number("latchwork_lost", store, reason="taken") == 1
        assert number("latchwork_acquired", store, contended="false") >= 2
        waits = next(it for it in metrics.snapshot()["latchwork_wait_seconds"].samples if it.labels == {"store": store})
        assert waits.count == 3 and waits.value > 0
        assert [n for _, n in waits.buckets] == sorted(n for _, n in waits.buckets) and waits.buckets[-1][1] == 3


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_counts_from_zero():
    with latchwork.connect("mem:") as locks, locks.lock("stock"):
        read, write = os.pipe()
        child = os.fork()
        if not child:
            found = [number("latchwork_held", "mem:"), number("latchwork_acquired", "mem:", contended="false")]
            os.write(write, repr(found).encode())
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert os.read(read, 100) == b"[0.0, 0.0]" and number("latchwork_held", "mem:") == 1
        os.close(read), os.close(write)


def test_prometheus_collects_the_numbers():
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.parser import text_string_to_metric_families

    registry = CollectorRegistry(auto_describe=True)
    registry.register(metrics.Collector())
    with latchwork.connect("mem:") as locks, locks.lock("stock"):
        text = generate_latest(registry).decode()
        assert registry.get_sample_value("latchwork_held", {"store": "mem:"}) == 1
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert set(families) == set(metrics._HELP)
    assert families["latchwork_lost"].type == "counter" and families["latchwork_wait_seconds"].type == "histogram"
    assert 'latchwork_acquired_total{contended="false",store="mem:"}' in text
    assert 'latchwork_wait_seconds_bucket{le="+Inf",store="mem:"}' in text


@pytest.fixture
def spans():
    """What OpenTelemetry has got of the calls of this test."""
    pytest.importorskip("opentelemetry.sdk", reason="it needs Python 3.10")
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from latchwork import otel

    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    otel.instrument(provider)
    try:
        yield lambda: [(span.name, dict(span.attributes), span) for span in exporter.get_finished_spans()], provider
    finally:
        otel.uninstrument()


def test_each_acquire_is_a_span(spans, redis_server):
    from opentelemetry import trace
    from opentelemetry.trace import StatusCode

    seen, provider = spans
    with latchwork.connect(redis_server, namespace="spans") as locks:
        lock = locks.lock("stock")
        with provider.get_tracer("test").start_as_current_span("request") as parent:
            with lock as guard:
                assert trace.get_current_span() is parent
                assert lock.try_acquire() is None
                with pytest.raises(latchwork.TimedOut):
                    lock.acquire(timeout=0.01)
        with locks.once("report", "1d") as begun, locks.once("report", "1d") as skipped:
            assert begun and not skipped
        with locks.election("scheduler", candidate="me").campaign():
            pass
    name = {"latchwork.name": "stock"}
    found = seen()
    assert [(what, attributes) for what, attributes, _ in found[:3]] == [
        ("latchwork acquire", {**name, "latchwork.key": "spans:stock", "latchwork.token": guard.token}),
        ("latchwork try_acquire", {**name, "latchwork.outcome": "not_free"}),
        ("latchwork acquire", {**name, "latchwork.outcome": "timed_out"}),
    ]
    assert all(span.parent.span_id == parent.get_span_context().span_id for _, _, span in found[:3])
    assert [span.status.status_code for _, _, span in found[:3]] == [StatusCode.UNSET, StatusCode.UNSET, StatusCode.ERROR]
    assert [(what, attributes.get("latchwork.outcome")) for what, attributes, _ in found[4:]] == [
        ("latchwork begin", None), ("latchwork begin", "running"), ("latchwork campaign", None),
    ]


def test_each_acquire_of_a_task_is_a_span(spans, runner):
    seen, provider = spans

    async def main():
        async with aio.connect("mem:") as locks:
            lock = locks.lock("stock")
            tracer = provider.get_tracer("test")

            async def request(n):
                with tracer.start_as_current_span(f"request {n}"):
                    async with lock:
                        await asyncio.sleep(0)
                    async with lock.acquire(timeout=20) as guard:
                        return guard.token

            await asyncio.gather(*(request(n) for n in range(5)))
            async with lock:
                assert await lock.try_acquire() is None
            assert (await locks.show("stock")).is_free
            with pytest.raises(TypeError, match="try_acquire"):
                lock.acquire(blocking=False)
        with latchwork.connect("mem:") as threads:
            async with threads.lock("stock"):
                pass

    runner(main())
    found = seen()
    requests = {span.context.span_id: name for name, _, span in found if name.startswith("request")}
    acquires = [span for name, _, span in found if name == "latchwork acquire"]
    assert len(acquires) == 12 and len(requests) == 5
    # Each belongs to the task that has asked, also where it went on in the turn of another one.
    parents = [requests[span.parent.span_id] for span in acquires if span.parent]
    assert sorted(parents) == sorted(2 * [f"request {n}" for n in range(5)])
    assert found[-1][0] == "latchwork acquire" and ("latchwork try_acquire" in [it[0] for it in found])


def test_opentelemetry_reads_the_numbers():
    pytest.importorskip("opentelemetry.sdk", reason="it needs Python 3.10")
    said = run(
        """
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader
        import latchwork
        from latchwork import otel
        reader = InMemoryMetricReader()
        otel.instrument(meter_provider=MeterProvider([reader]))
        with latchwork.connect("mem:") as locks, locks.lock("stock"):
            (of_resource,) = reader.get_metrics_data().resource_metrics
            (of_scope,) = of_resource.scope_metrics
            found = {it.name: it for it in of_scope.metrics}
            (held,) = found["latchwork.held"].data.data_points
            print(of_scope.scope.name, held.value, dict(held.attributes), found["latchwork.acquired"].data.is_monotonic)
        """
    )
    assert said.stdout == "latchwork 1.0 {'store': 'mem:'} True\n", said


def test_neither_library_is_needed():
    said = run(
        """
        import sys
        sys.modules["opentelemetry"] = sys.modules["prometheus_client"] = None
        import latchwork, latchwork.metrics
        from latchwork import otel
        with latchwork.connect("mem:") as locks, locks.lock("stock"):
            print(latchwork.metrics.snapshot()["latchwork_held"].samples[0].value)
        try:
            otel.instrument()
        except ModuleNotFoundError as error:
            print(error.name)
        """
    )
    assert said.stdout == "1.0\nopentelemetry.trace\n" or said.stdout == "1.0\nopentelemetry\n", said


def test_notebooks_show_tables():
    store = Store()
    locks = store.locks()
    with store.hold("<script>stock", holder="<b>me</b>"):
        views = locks.ls()
        page = views._repr_html_()
        assert "&lt;script&gt;stock" in page and "&lt;b&gt;me&lt;/b&gt;" in page and "<b>" not in page and "<script>" not in page
        assert page.startswith("<table>") and page.count("<tr>") == 2 and page.count("</table>") == 1
        assert "held" in views[0]._repr_html_() and views == list(views)
    assert locks.show("stock")._repr_html_().count("<td>free</td>") == 1
    report = latchwork.doctor("mem:")
    page = report._repr_html_()
    assert page.count("<tr>") == 1 + len(report.findings) and "fit for locks" in page
