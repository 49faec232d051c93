from tests.histories import TRY, RuleCase, hold

BLOCKED = f"10 w0.0 {TRY.format(1, 'k', 'exclusive', 'true')}\n12 w0.0 blocked attempt=1\n"
WAITS = f"12 w0.0 {TRY.format(1, 'k', 'exclusive', 'false')}\n"


class Fair(RuleCase):
    rule = "fair"

    def test_in_order(self):
        later = f"20 w1.0 {TRY.format(1, 'k', 'exclusive', 'true')}\n"
        self.accepts(BLOCKED + later + "30 w0.0 granted attempt=1 token=1024 ttl=1000 valid_until=1000\n"
                     "40 w0.0 releasing attempt=1 how=drop\n50 w1.0 granted attempt=1 token=2048 ttl=1000 valid_until=1000\n")

    def test_overtaken(self):
        self.refuses(BLOCKED + hold("w1.0", 30, 40, 1, fair="true")
                     + "50 w0.0 granted attempt=1 token=2048 ttl=1000 valid_until=1000\n", "overtook")

    def test_tried_before_the_place(self):
        early = f"11 w1.0 {TRY.format(1, 'k', 'exclusive', 'true')}\n30 w1.0 granted attempt=1 token=1024 ttl=1000 valid_until=990\n"
        self.accepts(BLOCKED + early + "50 w0.0 granted attempt=1 token=2048 ttl=1000 valid_until=1000\n")

    def test_handed_over_inside_a_process(self):
        inside = hold("w1.0", 30, 40, 1, fair="true").replace("token=1024", "token=1025")
        book = self.judge(BLOCKED + inside + "50 w0.0 granted attempt=1 token=2048 ttl=1000 valid_until=1000\n")
        self.assertEqual(book.findings, [])

    def test_a_stopped_waiter_is_passed_by(self):
        self.accepts(BLOCKED + "13 run stopped whom=w0.0\n45 run continued whom=w0.0\n" + hold("w1.0", 30, 40, 1, fair="true")
                     + "50 w0.0 granted attempt=1 token=2048 ttl=1000 valid_until=1000\n")


class HandedOn(RuleCase):
    rule = "handed-on"

    def test_soon(self):
        self.accepts(hold("w1.0", 10, 20, 1) + WAITS + "40 w0.0 granted attempt=1 token=2048 ttl=1000 valid_until=1000\n")

    def test_never(self):
        self.refuses(hold("w1.0", 10, 20, 1) + WAITS + "9000 w1.0 ended\n", "nobody holds")

    def test_late(self):
        self.refuses(hold("w1.0", 10, 20, 1) + WAITS + "6000 w0.0 granted attempt=1 token=2048 ttl=1000 valid_until=6900\n", "nobody holds")

    def test_without_a_waiter(self):
        self.accepts(hold("w1.0", 10, 20, 1) + hold("w0.0", 8000, 8001, 2))

    def test_an_upgrade_waits_for_the_other_readers_alone(self):
        read = f"9 w0.0 {TRY.format(1, 'k', 'read', 'false')}\n10 w0.0 granted attempt=1 token=1024 ttl=1000 valid_until=990\n"
        goes_on = "".join(f"{time} w{n}.0 renewed attempt=1 valid_until={time + 980}\n"
                          for n, end in ((0, 7000), (1, 4000)) for time in range(500, end, 500))
        upgrade = f"12 w0.0 {TRY.format(2, 'k', 'write', 'false')} beside=1\n" + "{} w0.0 granted attempt=2 token=3072 ttl=1000 valid_until=7900\n"
        other = hold("w1.0", 11, 4000, 2, mode="read")
        self.accepts(read + goes_on + other + upgrade.format(4050))
        self.refuses(read + goes_on + other + upgrade.format(6950), "nobody holds")

    def test_a_fault_excuses_the_time_that_it_takes(self):
        self.accepts(hold("w1.0", 10, 20, 1) + WAITS + "25 run struck fault=freeze\n5900 run healed fault=freeze\n"
                     "6000 w0.0 granted attempt=1 token=2048 ttl=1000 valid_until=6900\n")

    def test_after_a_kill(self):
        dead = f"9 w1.0 {TRY.format(1, 'k', 'exclusive', 'false')}\n10 w1.0 granted attempt=1 token=1024 ttl=1000 valid_until=990\n20 run killed whom=w1.0\n"
        self.accepts(dead + WAITS + "1200 w0.0 granted attempt=1 token=2048 ttl=1000 valid_until=2100\n")
        self.refuses(dead + WAITS + "15000 w0.0 granted attempt=1 token=2048 ttl=1000 valid_until=15900\n", "nobody holds")


    def test_blocked_while_faults_go_on(self):
        faults = "".join(f"{time} run struck fault=cut\n{time + 50} run healed fault=cut\n" for time in range(100, 60_000, 1000))
        waits = hold("w1.0", 10, 20, 1) + WAITS + faults + "59000 w0.0 gave_up attempt=1 why=timed_out\n"
        self.accepts(waits)
        self.refuses(waits + hold("w0.0", 5000, 5010, 7, attempt=2, key="other"), "granted other keys")


class ReleaseCounts(RuleCase):
    rule = "release-counts"

    def test_soon(self):
        self.accepts(hold("w1.0", 10, 20, 1) + WAITS + "400 w0.0 granted attempt=1 token=2048 ttl=1000 valid_until=1000\n")

    def test_by_the_end_of_the_ttl(self):
        late = WAITS + "700 w0.0 granted attempt=1 token=2048 ttl=1000 valid_until=1600\n"
        self.refuses(hold("w1.0", 10, 20, 1) + late, "waited 679 ms longer")
        self.refuses(hold("w1.0", 10, 20, 1).replace("how=release", "how=drop").replace("21 w1.0 released attempt=1 answer=yes", "") + late, "longer")
        self.accepts(hold("w1.0", 10, 20, 1) + late + "600 w2.0 stalled length=300\n")
        self.accepts(hold("w1.0", 10, 20, 1) + late + "600 run starved length=300\n")
        book = self.judge(hold("w1.0", 10, 20, 1) + late + "50 run struck fault=cut\n60 run healed fault=cut\n")
        self.assertEqual(book.findings, [])

    def test_beside_others_it_frees_nothing(self):
        read = [hold(f"w{n}.0", 10, end, n, mode="read") for n, end in ((1, 20), (2, 600))]
        late = f"12 w0.0 {TRY.format(1, 'k', 'write', 'false')}\n700 w0.0 granted attempt=1 token=4096 ttl=1000 valid_until=1600\n"
        self.accepts(read[0] + read[1] + late)
        self.refuses(read[0] + late, "longer")


    def test_what_is_replaced_frees_nothing(self):
        write = hold("w1.0", 10, 20, 1, mode="write").replace("how=release", "how=drop").replace("21 w1.0 released attempt=1 answer=yes", "")
        late = f"12 w0.0 {TRY.format(1, 'k', 'write', 'false')}\n700 w0.0 granted attempt=1 token=4096 ttl=1000 valid_until=1600\n"
        self.accepts(write + hold("w1.0", 600, 680, 2, attempt=2, mode="read", beside=1).replace("599 ", "19 ") + late)
        self.refuses(write + late, "longer")


class Takeover(RuleCase):
    rule = "takeover"

    DEAD = f"9 w1.0 {TRY.format(1, 'k', 'exclusive', 'false')}\n10 w1.0 granted attempt=1 token=1024 ttl=1000 valid_until=990\n20 run killed whom=w1.0\n"

    def test_in_time(self):
        self.accepts(self.DEAD + WAITS + "1200 w0.0 granted attempt=1 token=2048 ttl=1000 valid_until=2100\n")

    def test_late(self):
        late = WAITS + "3000 w0.0 granted attempt=1 token=2048 ttl=1000 valid_until=3900\n"
        self.refuses(self.DEAD + late, "was killed with k")
        # It may have been the next.
        self.accepts(self.DEAD + late + "2000 run killed whom=w2.0\n")


class Unfairness(RuleCase):
    rule = "unfairness"

    def waits_until(self, time):
        """w1.0 hands over to itself, while w0.0 waits until then."""
        own = "".join(hold("w1.0", begin, begin + 10, 1, attempt=begin) for begin in range(20, time - 10, 20))
        return WAITS + "13 w0.0 waiting key=k\n" + own + f"{time} w0.0 granted attempt=1 token=2048 ttl=1000 valid_until={time + 900}\n{time + 5} w0.0 releasing attempt=1 how=drop\n"

    def test_a_slice_and_a_hold(self):
        self.accepts(self.waits_until(200))

    def test_longer(self):
        self.refuses(self.waits_until(500), "more than")

    def test_servers_without_a_processor(self):
        self.accepts(self.waits_until(500) + "490 run starved length=450\n")
        self.refuses(self.waits_until(500) + "490 run starved length=5\n", "more than")


class DoneOnce(RuleCase):
    rule = "done-once"

    def test_once(self):
        self.accepts(hold("w0.0", 10, 20, 1, key="t@1") + hold("w1.0", 30, 40, 2, key="t@2"))

    def test_twice(self):
        self.refuses(hold("w0.0", 10, 20, 1, key="t@1") + hold("w1.0", 30, 40, 2, key="t@1"), "had done")
        lost = hold("w0.0", 10, 20, 1, key="t@1").replace("answer=yes", "answer=not_held")
        self.accepts(lost + hold("w1.0", 30, 40, 2, key="t@1"))


class Ghost(RuleCase):
    rule = "ghost"

    def test_nothing(self):
        self.accepts(hold("w0.0", 10, 20, 1) + "1100 run inspected entries=0\n")

    def test_something(self):
        self.refuses(hold("w0.0", 10, 20, 1) + "1100 run inspected entries=1\n1100 run ghost name=k what=holder\n", "left over")

    def test_searched_too_early(self):
        self.refuses(hold("w0.0", 10, 20, 1) + "900 run inspected entries=0\n", "before a ttl")


class Calm(RuleCase):
    rule = "calm"

    def test_with_a_cause(self):
        self.accepts("10 run struck fault=freeze\n20 run healed fault=freeze\n900 w0.0 alarm key=k kind=expired\n")

    def test_without(self):
        self.refuses("900 w0.0 alarm key=k kind=expired\n", "without a cause")

    def test_servers_without_a_processor(self):
        starved = "{} run starved length={}\n900 w0.0 alarm key=k kind=expired\n"
        self.accepts(starved.format(850, 200))
        self.refuses(starved.format(850, 10), "without a cause")

    def test_max_hold_needs_none(self):
        self.accepts("900 w0.0 alarm key=k kind=max_hold\n")

    def test_what_is_lost_refused_or_unknown(self):
        tried = f"9 w0.0 {TRY.format(1, 'k', 'exclusive', 'false')}\n"
        granted = tried + "10 w0.0 granted attempt=1 token=1024 ttl=1000 valid_until=990\n"
        for story in (tried + "20 w0.0 gave_up attempt=1 why=failed\n", granted + "995 w0.0 lost attempt=1 since=991 reason=expired\n",
                      hold("w0.0", 10, 20, 1).replace("answer=yes", "answer=failed")):
            self.refuses(story, "without a cause")
            self.assertEqual(self.judge(story + "8 run struck fault=cut\n19 run healed fault=cut\n").findings, [])
