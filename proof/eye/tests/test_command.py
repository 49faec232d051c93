import contextlib
import io
import os
import tempfile
import time
import unittest

import check
import corrupt
from eye.lies import LIES
from eye.lies.history import MS, Choice, History, NoMaterial
from eye.reading import Unreadable, read_folder, read_text
from eye.rules import RULES
from tests.histories import history, hold, recorded


def run(folder, *words):
    out = io.StringIO()
    return check.main([folder, *words], out), out.getvalue()


def written(folder, text):
    with open(os.path.join(folder, "a.log"), "w", encoding="utf-8") as file:
        file.writelines(event.text + "\n" for event in history(text))


class Reading(unittest.TestCase):
    def test_a_torn_last_line_is_left_out(self):
        self.assertEqual(len(read_text("1 w0.0 - ended\n2 w0.0 - en", "a.log")), 1)

    def test_a_bad_line_is_named(self):
        for line in ("1 w0.0 -", "x w0.0 - ended", "1 w0.0 - danced", "1 w0.0 1 blocked", "1 w0.0 1 blocked attempt=-1",
                     "1 w0.0 1 blocked attempt=1 attempt=1", f"{2**64} w0.0 - ended", "1 w0.0 - waiting key=%4"):
            with self.assertRaisesRegex(Unreadable, "a.log:1"):
                read_text(line + "\n", "a.log")

    def test_bytes_of_a_word(self):
        (event,) = read_text("1 w0.0 - waiting key=a%20b%3Dc\n", "a.log")
        self.assertEqual(event.values["key"], "a b=c")


class Command(unittest.TestCase):
    def test_exits(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(run(folder)[0], 2)
            written(folder, hold("w0.0", 10, 20, 1) + hold("w1.0", 30, 40, 2))
            self.assertEqual(run(folder)[0], 0)
            self.assertEqual(run(folder, "--require", "exclusion")[0], 0)
            self.assertEqual(run(folder, "--require", "kept")[0], 3)
            written(folder, hold("w0.0", 10, 20, 1) + hold("w1.0", 15, 40, 2))
            code, out = run(folder)
            self.assertEqual(code, 1)
            self.assertIn("a.log:", out)

    def test_what_a_fault_is_allowed(self):
        two = hold("w0.0", 10, 60, 1) + hold("w1.0", 50, 70, 2) + "40 run struck fault=lose-data\n45 run healed fault=lose-data\n"
        with tempfile.TemporaryDirectory() as folder:
            written(folder, two)
            self.assertEqual(run(folder)[0], 1)
            self.assertEqual(run(folder, "--allow", "exclusion:lose-data:0.01")[0], 0)
            self.assertEqual(run(folder, "--allow", "exclusion:*:0.01")[0], 0)
            self.assertEqual(run(folder, "--allow", "exclusion:lose-data:0.001")[0], 1)
            self.assertEqual(run(folder, "--allow", "exclusion:freeze:9")[0], 1)

    def test_what_another_client_is_allowed(self):
        fault = "40 run struck fault=stop\n45 run healed fault=stop\n"
        older, newer = "exclusion:stop:0.01:w0", "exclusion:stop:0.01:+w0"
        # A hold with a smaller number is the older one, whenever its holder was told.
        for first, second, allowed in ((("w0.0", 1), ("w1.0", 2), older), (("w1.0", 1), ("w0.0", 2), newer),
                                       (("w1.0", 2), ("w0.0", 1), older)):
            with tempfile.TemporaryDirectory() as folder:
                written(folder, hold(first[0], 10, 60, first[1]) + hold(second[0], 50, 70, second[1]) + fault)
                for word in (older, newer):
                    code, out = run(folder, "--without", "forgotten-claim", "--allow", word)
                    self.assertEqual(code, 0 if word == allowed else 1, out)


class Recorded(unittest.TestCase):
    def test_the_recorded_history_is_accepted_by_every_rule(self):
        with recorded() as folder:
            required = [word for rule in RULES for word in ("--require", rule)]
            code, out = run(folder, *required)
            self.assertEqual(code, 0, out)

    def test_lies_are_found_by_their_rules(self):
        """Some of them. The trial `both_judges_find_every_lie` of the nemesis tells all."""
        with recorded() as folder:
            events = read_folder(folder)
            for name, (_, rule) in list(LIES.items())[:: 1 if os.environ.get("LATCHWORK_LIES") == "all" else 5]:
                with self.subTest(lie=name):
                    lie = corrupt.corrupt(events, name, Choice(7)).in_order()
                    _, books = check.judge(lie, check.arguments([folder]), only=rule)
                    self.assertEqual([rule], [book.rule for book in books if book.findings])

    def test_lies_are_judged_where_nothing_excuses_them(self):
        lies = ["--lie", "eviction-not-told", "--lie", "granted-too-early", "--lie", "false-alarm", "--lie", "ghost"]
        excused = ["--without", "calm", "--allow", "loss-reason:evict:9"]
        with recorded() as folder, tempfile.TemporaryDirectory() as out:
            said = io.StringIO()
            with contextlib.redirect_stdout(said):
                code = corrupt.main([folder, out, *lies, "--settle", "2s", "--judge", "--ttl", "1s", *excused])
            self.assertEqual((code, said.getvalue().split()[2::3]), (0, ["no-place", "found", "no-place", "found"]))
            self.assertEqual(sorted(os.listdir(out)), ["ghost", "granted-too-early"])

    def test_no_lie_is_told_where_the_workers_lacked_a_processor(self):
        with recorded() as folder:
            events = History.read(folder)
            last = max(event.time for event in events.events)
            corrupt.corrupt(events.events, "failed-without-a-fault", Choice(7))
            run = next(event for event in events.events if event.process == "run")
            events.add(run, "starved", last, length=last)
            for name in ("false-alarm", "failed-without-a-fault"):
                self.assertRaises(NoMaterial, corrupt.corrupt, events.events, name, Choice(7))

    def test_no_attempt_fails_in_a_lie_where_its_process_did_not_run(self):
        with recorded() as folder:
            events = History.read(folder)
            for name in {event.process for event in events.events} - {"run"}:
                own = [event for event in events.events if event.process == name]
                for event in own[::10]:
                    # Not at the time of its failure, but within a renewal and its timeout before it.
                    events.add(event, "stalled", event.time - 200 * MS, length=300 * MS)
            self.assertRaises(NoMaterial, corrupt.corrupt, events.events, "failed-without-a-fault", Choice(7))

    def test_lies_are_many_and_of_every_rule(self):
        self.assertGreaterEqual(len(LIES), 30)
        self.assertEqual({rule for _, rule in LIES.values()}, set(RULES))

    def test_a_history_that_is_written_again_is_the_same(self):
        with recorded() as folder, tempfile.TemporaryDirectory() as copy:
            history_ = History.read(folder)
            history_.write(copy)
            for name in os.listdir(copy):
                with open(os.path.join(folder, name)) as one, open(os.path.join(copy, name)) as two:
                    self.assertEqual(sorted(one), sorted(two))

    def test_many_lines_are_judged_in_seconds(self):
        with recorded() as folder:
            events = read_folder(folder)
            began = time.process_time()
            check.judge(events, check.arguments([folder]))
            self.assertLess((time.process_time() - began) * 100_000 / len(events), 5)
