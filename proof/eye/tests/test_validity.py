from tests.histories import TRY, RuleCase, hold

TRIED = f"9 w0.0 {TRY.format(1, 'k', 'exclusive', 'false')}\n"
GRANTED = TRIED + "10 w0.0 granted attempt=1 token=1024 ttl=1000 valid_until=990\n"


class Validity(RuleCase):
    rule = "validity"

    def test_less_the_drift(self):
        self.accepts(TRIED + "10 w0.0 granted attempt=1 token=1024 ttl=1000 valid_until=998\n")

    def test_without_the_drift(self):
        self.refuses(TRIED + "10 w0.0 granted attempt=1 token=1024 ttl=1000 valid_until=999\n", "more than its ttl")

    def test_a_renewal(self):
        self.accepts(GRANTED + "500 w0.0 renewed attempt=1 valid_until=1488\n")
        self.refuses(GRANTED + "500 w0.0 renewed attempt=1 valid_until=1489\n", "more than its ttl")

    def test_an_answer(self):
        self.refuses(GRANTED + "500 w0.0 held attempt=1 valid_until=1600\n501 w0.0 renewed attempt=1 valid_until=1400", "more than its ttl")

    def test_a_longer_ttl(self):
        self.refuses(TRIED + "10 w0.0 granted attempt=1 token=1024 ttl=1001 valid_until=990\n", "was asked for")

    def test_a_gap(self):
        self.refuses(GRANTED + "2500 w0.0 renewed attempt=1 valid_until=3000\n", "valid again")

    def test_a_gap_by_a_clock_that_stood_still(self):
        taken_back = GRANTED + "1400 w0.0 renewed attempt=1 valid_until=90\n"
        self.accepts(taken_back + "1500 w0.0 renewed attempt=1 valid_until=2000\n")
        late = taken_back + "2500 w0.0 renewed attempt=1 valid_until=3000\n"
        self.refuses(late, "valid again")
        self.accepts(late + "500 run stopped whom=w0.0\n2400 run continued whom=w0.0\n")


class Held(RuleCase):
    rule = "held"

    def test_within(self):
        self.accepts(GRANTED + "989 w0.0 held attempt=1 valid_until=990\n")

    def test_after(self):
        self.refuses(GRANTED + "990 w0.0 held attempt=1 valid_until=990\n", "after its validity")

    def test_after_the_loss(self):
        self.refuses(GRANTED + "500 w0.0 lost attempt=1 since=400 reason=taken\n401 w0.0 held attempt=1 valid_until=990\n", "after its loss")


class Final(RuleCase):
    rule = "lost-is-final"

    LOST = GRANTED + "991 w0.0 lost attempt=1 since=990.5 reason=expired\n"

    def test_nothing_after(self):
        self.accepts(self.LOST)

    def test_a_late_renewal(self):
        self.refuses(self.LOST + "992 w0.0 renewed attempt=1 valid_until=1500\n", "after its loss")

    def test_a_yes(self):
        self.refuses(self.LOST + "992 w0.0 releasing attempt=1 how=release\n993 w0.0 released attempt=1 answer=yes\n", "yes after its loss")


class Reason(RuleCase):
    rule = "loss-reason"

    def test_expired_at_the_end(self):
        self.accepts(GRANTED + "991 w0.0 lost attempt=1 since=990 reason=expired\n")

    def test_expired_before_the_end(self):
        self.refuses(GRANTED + "991 w0.0 lost attempt=1 since=989 reason=expired\n", "before its validity")

    def test_taken_by_an_eviction(self):
        self.accepts(GRANTED + "60 run evicted key=k grant=1 asked=59\n300 w0.0 lost attempt=1 since=299 reason=taken\n")

    def test_taken_with_what_it_waited_to_replace(self):
        heir = "".join(
            f"{at} w0.0 try attempt={n} key=k mode={mode} fair=false waits=true several=false{beside}\n"
            f"{at + 1} w0.0 granted attempt={n} token={n * 1024} ttl=1000 valid_until={at + 980}\n"
            for at, n, mode, beside in ((9, 1, "write", ""), (50, 2, "read", " beside=1"))
        )
        lost = "80 w0.0 lost attempt=2 since=79 reason=taken\n"
        self.accepts(heir + "60 run evicted key=k grant=1 asked=49\n" + lost)
        # Whoever asked later saw the heir; an answer that came earlier cannot have ended it.
        self.refuses(heir + "60 run evicted key=k grant=1 asked=55\n" + lost, "nobody has ended it")
        self.refuses(heir + "50.5 run evicted key=k grant=1 asked=49\n" + lost, "nobody has ended it")

    def test_taken_by_nobody(self):
        self.refuses(GRANTED + "300 w0.0 lost attempt=1 since=299 reason=taken\n", "nobody has ended it")
        self.refuses(GRANTED + "310 run evicted key=k grant=1 asked=305\n320 w0.0 lost attempt=1 since=299 reason=taken\n", "nobody")

    def test_in_the_future(self):
        self.refuses(GRANTED + "991 w0.0 lost attempt=1 since=992 reason=expired\n", "future")

    def test_several_are_lost_together(self):
        both = "".join(f"9 w0.0 try attempt={n} key=k{n} mode=exclusive fair=false waits=true several=true\n" for n in (1, 2))
        both += "".join(f"10 w0.0 granted attempt={n} token={n * 1024} ttl=1000 valid_until=990\n" for n in (1, 2))
        self.accepts(both + "60 run evicted key=k2 grant=2 asked=59\n300 w0.0 lost attempt=1 since=299 reason=taken\n")


class Told(RuleCase):
    rule = "told"

    def test_at_once(self):
        self.accepts(GRANTED + "1000 w0.0 lost attempt=1 since=991 reason=expired\n")

    def test_late(self):
        self.refuses(GRANTED + "1300 w0.0 lost attempt=1 since=991 reason=expired\n", "not told")

    def test_never(self):
        self.refuses(GRANTED + "1500 w1.0 ended\n", "not told")

    def test_a_stopped_holder(self):
        self.accepts("500 run stopped whom=w0.0\n1290 run continued whom=w0.0\n" + GRANTED + "1300 w0.0 lost attempt=1 since=1291 reason=expired\n")

    def test_a_stalled_holder(self):
        self.accepts(GRANTED + "1290 w0.0 stalled length=400\n1300 w0.0 lost attempt=1 since=1291 reason=expired\n")

    def test_a_machine_that_was_paused(self):
        stopped = "500 run stopped whom=w0.0\n1400 run continued whom=w0.0\n" + GRANTED
        learnt = stopped + "1401 w0.0 renewed attempt=1 valid_until=90\n1401 w0.0 renewed attempt=1 valid_until=90\n"
        lost = "{} w0.0 lost attempt=1 since={} reason=expired\n"
        self.accepts(learnt + lost.format(1500, 1500))
        self.refuses(learnt + lost.format(1700, 1700), "not told of its loss for 300")

    def test_a_machine_without_a_processor(self):
        late = GRANTED + "1300 w0.0 lost attempt=1 since=991 reason=expired\n"
        self.accepts(late + "1280 run starved length=200\n")
        self.refuses(late + "1280 run starved length=5\n", "not told")

    def test_an_eviction_is_told_by_the_next_renewal(self):
        evicted = GRANTED + "201 run evicted key=k grant=1 asked=200\n"
        self.accepts(evicted + "900 w0.0 lost attempt=1 since=900 reason=taken\n")
        renewed = evicted + "600 w0.0 renewed attempt=1 valid_until=1500\n1100 w0.0 lost attempt=1 since=1100 reason=taken\n"
        self.refuses(renewed, "ended by force")
        book = self.judge(renewed + "500 run struck fault=freeze\n700 run healed fault=freeze\n")
        self.assertEqual(book.findings, [])

    def test_a_killed_holder_learns_nothing(self):
        book = self.judge(GRANTED + "500 run killed whom=w0.0\n1500 w1.0 ended\n")
        self.assertEqual(book.findings, [])


class Release(RuleCase):
    rule = "release"

    def test_yes(self):
        self.accepts(hold("w0.0", 10, 20, 1))

    def test_not_held_without_a_reason(self):
        self.refuses(hold("w0.0", 10, 20, 1).replace("answer=yes", "answer=not_held"), "was valid")

    def test_several_are_released_together(self):
        both = "".join(f"9 w0.0 try attempt={n} key=k{n} mode=exclusive fair=false waits=true several=true\n" for n in (1, 2))
        both += "".join(f"{10 * n} w0.0 granted attempt={n} token={n * 1024} ttl=1000 valid_until={980 + 10 * n}\n" for n in (1, 2))
        ended = "".join("{0} w0.0 releasing attempt=%d how=release\n{0} w0.0 released attempt=%d answer=not_held\n" % (n, n) for n in (1, 2))
        self.accepts(both + ended.format(991))
        self.refuses(both + ended.format(989), "was valid")

    def test_not_held_after_an_eviction(self):
        self.accepts(hold("w0.0", 10, 20, 1).replace("answer=yes", "answer=not_held") + "15 run evicted key=k grant=1 asked=14\n")

    def test_yes_after_an_eviction(self):
        self.refuses(hold("w0.0", 10, 20, 1) + "15 run evicted key=k grant=1 asked=14\n", "ended by force")
        # What was replaced meanwhile was ended, and what replaced it was not.
        read = hold("w0.0", 10, 20, 1, mode="read").replace("how=release", "how=drop").replace("21 w0.0 released attempt=1 answer=yes", "")
        upgrade = hold("w0.0", 20, 40, 2, attempt=2, mode="write", beside=1)
        self.accepts(read + upgrade + "25 run evicted key=k grant=1 asked=15\n")
        self.refuses(read + upgrade + "25 run evicted key=k grant=2 asked=15\n", "ended by force")

    def test_yes_after_the_validity(self):
        self.refuses(GRANTED + "991 w0.0 releasing attempt=1 how=release\n992 w0.0 released attempt=1 answer=yes\n", "after its validity")

    def test_no_answer_without_a_fault(self):
        self.refuses(hold("w0.0", 10, 20, 1).replace("answer=yes", "answer=failed"), "no fault")
