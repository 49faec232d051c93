from tests.histories import TRY, RuleCase, hold


class Exclusion(RuleCase):
    rule = "exclusion"

    def test_one_after_the_other(self):
        self.accepts(hold("w0.0", 10, 20, 1) + hold("w1.0", 20, 30, 2))

    def test_two_at_once(self):
        self.refuses(hold("w0.0", 10, 20, 1) + hold("w1.0", 19, 30, 2), "believes beside")

    def test_other_keys_do_not_exclude(self):
        self.accepts(hold("w0.0", 10, 20, 1) + hold("w1.0", 15, 30, 2, key="other"))

    def test_readers_beside_readers(self):
        self.accepts(hold("w0.0", 10, 20, 1, mode="read") + hold("w1.0", 15, 30, 2, mode="read"))

    def test_reader_beside_writer(self):
        self.refuses(hold("w0.0", 10, 20, 1, mode="read") + hold("w1.0", 15, 30, 2, mode="write"), "believes beside")

    def test_permits_up_to_the_limit(self):
        two = hold("w0.0", 10, 20, 1, mode="permits:1/3") + hold("w1.0", 15, 30, 2, mode="permits:2/3")
        self.accepts(two)
        self.refuses(two + hold("w2.0", 16, 18, 3, mode="permits:1/3"), "believes beside|permits of k")

    def test_three_permits_that_fit_in_pairs(self):
        each = [hold(f"w{n}.0", 10 + n, 20 + n, n, mode="permits:1/2") for n in range(3)]
        self.refuses("".join(each), "3 of 2 permits")

    def test_permits_up_to_the_largest_limit(self):
        two = hold("w0.0", 10, 20, 1, mode="permits:1/2") + hold("w1.0", 15, 30, 2, mode="permits:1/2")
        third = hold("w2.0", 16, 18, 3, mode="permits:1/2")
        self.refuses(two + third, "3 of 2 permits")
        self.accepts(two + third + f"12 w3.0 {TRY.format(1, 'k', 'permits:1/3', 'false')}\n")
        # Nobody had asked with it yet.
        self.refuses(two + third + f"17 w3.0 {TRY.format(1, 'k', 'permits:1/3', 'false')}\n", "3 of 2 permits")

    def test_a_replaced_hold_excludes_all_others(self):
        reader = hold("w0.0", 10, 20, 1, mode="read")
        upgrade = hold("w0.0", 20, 40, 2, attempt=2, mode="write", beside=1).replace("19 w0.0", "15 w0.0")
        self.accepts(reader + upgrade)
        for begin, end, mode in ((12, 21, "read"), (30, 35, "read"), (12, 21, "write")):
            self.refuses(reader + upgrade + hold("w1.0", begin, end, 3, mode=mode), "believes beside")
        # Another process has attempts of the same numbers.
        self.refuses(hold("w1.0", 10, 21, 1, mode="read") + upgrade, "believes beside")

    def test_belief_ends_with_the_validity(self):
        dead = f"9 w0.0 {TRY.format(1, 'k', 'exclusive', 'false')}\n10 w0.0 granted attempt=1 token=1024 ttl=1000 valid_until=990\n"
        self.accepts(dead + hold("w1.0", 990, 999, 2))
        self.refuses(dead + hold("w1.0", 989, 999, 2), "believes beside")

    def test_belief_ends_with_the_kill(self):
        dead = f"9 w0.0 {TRY.format(1, 'k', 'exclusive', 'false')}\n10 w0.0 granted attempt=1 token=1024 ttl=1000 valid_until=990\n"
        self.accepts(dead + "50 run killed whom=w0.0\n" + hold("w1.0", 51, 60, 2))
        self.refuses(dead + "50 run killed whom=w0.0\n" + hold("w1.0", 49, 60, 2), "believes beside")

    def test_an_evicted_holder_learns_it_at_its_renewal(self):
        evicted = hold("w0.0", 10, 900, 1) + "20 run evicted key=k grant=1 asked=19\n"
        self.accepts(evicted + hold("w1.0", 21, 30, 2))
        self.refuses(evicted + hold("w1.0", 18, 30, 2), "believes beside")
        self.refuses(evicted + hold("w1.0", 880, 890, 2), "believes beside")


class Tokens(RuleCase):
    rule = "token-order"

    def test_later_is_larger(self):
        self.accepts(hold("w0.0", 10, 20, 1) + hold("w1.0", 45, 50, 2))

    def test_later_is_smaller(self):
        self.refuses(hold("w0.0", 10, 20, 2) + hold("w1.0", 45, 50, 1), "smaller token")

    def test_readers_side_by_side_have_no_order(self):
        book = self.judge(hold("w0.0", 10, 20, 2, mode="read") + hold("w1.0", 15, 30, 1, mode="read"))
        self.assertEqual(book.findings, [])

    def test_a_claim_that_the_store_forgot(self):
        between = hold("w1.0", 15, 20, 2)
        handed_over = hold("w0.0", 45, 50, 1, attempt=2).replace("token=1024", "token=1025")
        self.accepts(hold("w0.0", 10, 12, 1) + handed_over, "forgotten-claim")
        self.refuses(hold("w0.0", 10, 12, 1) + between + handed_over, "smaller token", "forgotten-claim")
        book = self.judge(hold("w0.0", 10, 12, 1) + between + handed_over)
        self.assertEqual(book.findings, [])

    def test_a_number_belongs_to_one_process(self):
        handed_over = hold("w0.0", 45, 50, 1).replace("token=1024", "token=1025")
        self.accepts(hold("w0.0", 10, 12, 1, attempt=2) + handed_over, "token-unique")
        self.refuses(hold("w1.0", 10, 12, 1) + handed_over, "within the hold", "token-unique")

    def test_readers_one_after_the_other_have(self):
        self.refuses(hold("w0.0", 10, 20, 2, mode="read") + hold("w1.0", 25, 30, 1, mode="read"), "smaller token")

    def test_a_writer_between_readers_hides_none(self):
        late = hold("w2.0", 22, 23, 3, mode="write").replace("valid_until=1002", "valid_until=21.5")
        self.refuses(hold("w0.0", 10, 20, 2, mode="read") + late + hold("w1.0", 25, 30, 1, mode="read"), "smaller token")

    def test_a_token_is_used_once(self):
        self.accepts(hold("w0.0", 10, 20, 1) + hold("w1.0", 25, 30, 2), "token-unique")
        self.refuses(hold("w0.0", 10, 20, 1) + hold("w1.0", 25, 30, 1), "has the token of", "token-unique")

    def test_readers_of_one_moment_may_share_it(self):
        self.accepts(hold("w0.0", 10, 20, 1, mode="read") + hold("w1.0", 10.5, 30, 1, mode="read"), "token-unique")
        self.refuses(hold("w0.0", 10, 20, 1, mode="read") + hold("w1.0", 15, 30, 1, mode="read"), "has the token", "token-unique")

    def test_another_client_may_have_no_number(self):
        unnumbered = hold("redsync2.0", 25, 30, 0) + hold("redsync2.0", 35, 40, 0, attempt=2)
        for rule in ("token-unique", "token-order"):
            self.accepts(hold("w0.0", 10, 20, 1) + unnumbered + hold("w1.0", 45, 50, 2), rule)
        self.refuses(hold("w0.0", 10, 20, 2) + unnumbered + hold("w1.0", 55, 60, 1), "smaller token")
        self.refuses(hold("w0.0", 10, 20, 2) + unnumbered + hold("w1.0", 45, 50, 2), "has the token of", "token-unique")

    def test_a_worker_has_a_number(self):
        self.refuses(hold("w0.0", 10, 20, 0), "has no token", "token-unique")

    def test_numbers_leave_room(self):
        self.refuses(hold("w0.0", 10, 20, 2**53), "below 2.53", "token-unique")


class Kept(RuleCase):
    rule = "kept"

    def test_as_long_as_the_holder_relies_on_it(self):
        self.accepts(hold("w0.0", 10, 500, 1) + "102 run kept key=k grant=1 asked=100 remaining=905\n")

    def test_shorter(self):
        self.refuses(hold("w0.0", 10, 500, 1) + "102 run kept key=k grant=1 asked=100 remaining=800\n", "longer than the store")

    def test_longer_than_a_ttl(self):
        self.refuses(hold("w0.0", 10, 500, 1) + "102 run kept key=k grant=1 asked=100 remaining=1100\n", "longer than its ttl")
