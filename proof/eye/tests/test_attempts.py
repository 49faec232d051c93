from tests.histories import TRY, RuleCase, hold

WHOLE = hold("w0.0", 10, 20, 1)


class Attempts(RuleCase):
    rule = "attempts"

    def test_whole(self):
        self.accepts(WHOLE + "30 w0.0 ended\n")

    def test_granted_without_a_try(self):
        self.refuses("10 w0.0 granted attempt=1 token=1024 ttl=1000 valid_until=990\n", "before the try")

    def test_granted_twice(self):
        self.refuses(WHOLE + "11 w0.0 granted attempt=1 token=1024 ttl=1000 valid_until=990\n", "granted twice")

    def test_held_after_the_release(self):
        self.refuses(WHOLE + "22 w0.0 held attempt=1 valid_until=990\n", "after it was released")

    def test_granted_after_giving_up(self):
        gave_up = f"9 w0.0 {TRY.format(1, 'k', 'exclusive', 'false')}\n10 w0.0 gave_up attempt=1 why=timed_out\n"
        self.accepts(gave_up)
        self.refuses(gave_up + "11 w0.0 granted attempt=1 token=1024 ttl=1000 valid_until=990\n", "after it was given up")

    def test_an_answer_to_no_release(self):
        self.refuses(WHOLE.replace("releasing attempt=1 how=release", "held attempt=1 valid_until=990"), "answer to no release")

    def test_an_answer_to_a_drop(self):
        self.refuses(WHOLE.replace("how=release", "how=drop"), "dropped")

    def test_a_waiter_is_not_busy(self):
        self.refuses(f"9 w0.0 {TRY.format(1, 'k', 'exclusive', 'false')}\n10 w0.0 gave_up attempt=1 why=busy\n", "ends with busy")

    def test_blocked_without_being_fair(self):
        self.refuses(f"9 w0.0 {TRY.format(1, 'k', 'exclusive', 'false')}\n10 w0.0 blocked attempt=1\n", "not fair")

    def test_an_end_with_a_hold(self):
        self.refuses(WHOLE + "15 w0.0 ended\n", "after its end")
        open_hold = f"9 w0.0 {TRY.format(1, 'k', 'exclusive', 'false')}\n10 w0.0 granted attempt=1 token=1024 ttl=1000 valid_until=990\n"
        self.refuses(open_hold + "20 w0.0 ended\n", "has no end")

    def test_an_unknown_word(self):
        self.refuses(WHOLE.replace("how=release", "how=magic"), "is no how")


READ = f"9 w0.0 {TRY.format(1, 'k', 'read', 'false')}\n10 w0.0 granted attempt=1 token=1024 ttl=1000 valid_until=990\n"
UPGRADE = hold("w0.0", 20, 30, 2, attempt=2, mode="write", beside=1)
REPLACED = "20.1 w0.0 releasing attempt=1 how=drop\n"
CONFLICT = f"""
    18 w1.0 {TRY.format(1, 'k', 'read', 'false')}
    18.5 w1.0 granted attempt=1 token=3072 ttl=1000 valid_until=990
    19.2 w1.0 {TRY.format(2, 'k', 'write', 'false')} beside=1
    19.5 w1.0 gave_up attempt=2 why=conflict
"""


class Beside(RuleCase):
    rule = "beside"

    def test_a_read_hold_becomes_a_write_hold_and_back(self):
        downgrade = hold("w0.0", 25, 30, 3, attempt=3, mode="read", beside=2)
        upgrade = UPGRADE.replace("30 w0.0 releasing", "25.1 w0.0 releasing").replace("31 w0.0 released attempt=2 answer=yes", "")
        self.accepts(READ + REPLACED + upgrade + downgrade)

    def test_it_replaces_a_hold_of_its_task(self):
        self.refuses(UPGRADE, "that there is not")
        self.refuses(READ.replace("key=k", "key=l") + REPLACED + UPGRADE, "another lock")
        self.refuses(READ.replace("mode=read", "mode=write") + REPLACED + UPGRADE, "another lock")

    def test_it_replaces_a_hold_that_is_held(self):
        self.refuses(READ + REPLACED.replace("20.1", "15") + UPGRADE, "was not held")
        self.refuses(READ + REPLACED.replace("20.1", "19.5") + UPGRADE, "was over")

    def test_what_was_replaced_is_released_at_once(self):
        self.refuses(READ + REPLACED.replace("20.1", "22") + "21 w0.0 held attempt=1 valid_until=990\n" + UPGRADE, "went on")

    def test_a_conflict_needs_another_change(self):
        self.accepts(READ + REPLACED + UPGRADE + CONFLICT)
        self.refuses(CONFLICT, "there was none")
        self.refuses(READ + REPLACED + UPGRADE.replace("write", "read") + CONFLICT, "there was none")
        self.refuses(READ + REPLACED + UPGRADE + CONFLICT.replace("key=k", "key=l"), "there was none")
        downgraded = READ.replace("read", "write") + REPLACED + UPGRADE.replace("write", "read") + CONFLICT
        self.refuses(downgraded, "there was none")
        waiter = f"{{}} w2.0 {TRY.format(1, 'k', 'write', 'false')}\n"
        self.accepts(downgraded + waiter.format("9.5"))
        self.refuses(downgraded + waiter.format("19.2"), "there was none")


def judged(order, by, token, accepted, time=15):
    return f"{time} resource judged order={order} key=k by={by} attempt=1 token={token * 1024} accepted={accepted}\n"


class Fence(RuleCase):
    rule = "fence"

    def test_larger_tokens(self):
        self.accepts(judged(1, "w0.0", 1, "true") + judged(2, "w1.0", 2, "true"))

    def test_an_equal_token(self):
        self.accepts(judged(1, "w0.0", 1, "true") + judged(2, "w0.0", 1, "true"))

    def test_an_old_token(self):
        self.accepts(judged(1, "w1.0", 2, "true") + judged(2, "w0.0", 1, "false"))
        self.refuses(judged(1, "w1.0", 2, "true") + judged(2, "w0.0", 1, "true"), "was accepted on k")

    def test_a_good_token(self):
        self.refuses(judged(1, "w0.0", 1, "true") + judged(2, "w1.0", 2, "false"), "was refused on k")

    def test_the_resources_own_order(self):
        self.refuses(judged(2, "w1.0", 2, "true", 15) + judged(1, "w0.0", 1, "true", 16), "is earlier than")
        self.refuses(judged(1, "w0.0", 1, "true") + judged(1, "w1.0", 2, "true"), "twice")


class Writes(RuleCase):
    rule = "writes"

    WROTE = "17 w0.0 wrote attempt=1 token=1024 accepted=true\n"

    def test_as_judged(self):
        self.accepts(WHOLE + judged(1, "w0.0", 1, "true") + self.WROTE)

    def test_another_answer(self):
        self.refuses(WHOLE + judged(1, "w0.0", 1, "false") + self.WROTE, "none that was judged")

    def test_no_judgement(self):
        self.refuses(WHOLE + self.WROTE, "none that was judged")

    def test_another_token(self):
        self.refuses(WHOLE + judged(1, "w0.0", 2, "true"), "wrote with token")

    def test_a_stranger(self):
        self.refuses(WHOLE + judged(1, "w5.0", 1, "true"), "was granted nothing")
