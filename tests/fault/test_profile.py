"""A profile of some steps: tables of operations and phases, and one trace of all ranks, as parsers read it."""

import json

import harness
from harness import INVALID_ARGUMENT, FaultTest


class Profile(FaultTest):
    def profiled(self, steps, *arguments, **settings):
        job_file = self.write_job(**{"train__steps": 12, **settings})
        job = self.train(job_file, "--profile", steps, *arguments).done()
        self.assert_nothing_left()
        return job

    def test_a_table_and_a_trace_of_all_ranks(self):
        report = self.folder / "run.json"
        # Shares by speed could be 0, on a machine that is busy with something else.
        job = self.profiled("4:6", "--report", report, "--set", "parallel.balance=equal")
        self.assertIn("profile of steps 4 to 6, summed over 2 ranks", job.out)
        rows = {line.split()[0]: line.split() for line in job.out.splitlines() if line.strip()}
        for operation in ("aten::addmm", "aten::mm"):
            self.assertIn(operation, rows)
        # addmm: two or more layers forward on 2 ranks in 3 steps; self, unit, share, %, total, unit, calls
        calls = int(rows["aten::addmm"][7])
        self.assertGreater(calls, 0)
        self.assertEqual(calls % (2 * 3), 0, rows["aten::addmm"])
        for phase in ("data", "forward", "backward", "wait", "update", "exchange"):
            self.assertIn(phase, rows)

        events = json.loads((self.folder / "run_trace.json").read_text())["traceEvents"]
        spans = [event for event in events if event["ph"] == "X"]
        for rank in (0, 1):
            mine = [event for event in spans if event["pid"] == rank]
            names = [event["name"] for event in mine]
            self.assertEqual([n for n in names if n.startswith("step ")], ["step 4", "step 5", "step 6"])
            self.assertEqual(names.count("bimetal::update"), 2 * 3)  # gradients are inspected, then used
            self.assertIn("aten::addmm", names)
            self.assertTrue([e for e in mine if e["cat"] == "fabric" and e["name"] == "all_reduce"])
            # Events of a step are within it.
            steps = [e for e in mine if e["name"].startswith("step ")]
            for event in mine:
                if event["cat"] == "operation":
                    self.assertTrue(any(s["ts"] <= event["ts"] and
                                        event["ts"] + event["dur"] <= s["ts"] + s["dur"] + 1 for s in steps))
        self.assert_clocks_agree(spans)

    def assert_clocks_agree(self, spans):
        """An all-reduce ends nowhere before it has begun everywhere."""
        calls = [sorted((e for e in spans if e["pid"] == rank and e["name"] == "all_reduce"),
                        key=lambda e: e["ts"]) for rank in (0, 1)]
        self.assertEqual(len(calls[0]), len(calls[1]))
        slack = 2000  # microseconds; what the clocks may be apart, and the start's own rounding
        for one, other in zip(*calls):
            self.assertLess(max(one["ts"], other["ts"]),
                            min(one["ts"] + one["dur"], other["ts"] + other["dur"]) + slack)

    def test_nonsense_is_refused_and_what_was_not_made_is_told(self):
        trace = self.folder / "here.json"
        self.assertIn("profile of steps 11 to 12", self.profiled("11:50", "--profile-trace", trace).out)
        self.assertTrue(json.loads(trace.read_text())["traceEvents"])
        job = self.profiled("100:110")
        self.assertIn("none of the steps that were to be profiled was made", job.out + job.err)
        job_file = self.write_job(train__steps=2)
        for steps in ("0:3", "a:b"):
            self.assert_one_message(self.train(job_file, "--profile", steps), INVALID_ARGUMENT, "--profile", "10:20")
        servers = self.write_job("servers.toml", train__steps=2, parallel__mode="server")
        self.assert_one_message(self.train(servers, "--profile", "1:2"), INVALID_ARGUMENT, "--profile", "all_reduce")


if __name__ == "__main__":
    harness.main()
