"""A loss that is NaN or infinite: the step and the rank are named, the last good checkpoint stays."""

import harness
from harness import FaultTest


class NotFinite(FaultTest):
    def test_divergence_keeps_the_last_good_checkpoint(self):
        good = self.write_job(train__steps=20)
        job = self.train(good).wait()
        self.assertEqual(job.status, 0, job.err)
        self.assertEqual(self.saved_steps()[-1], 20)
        before = (self.checkpoints / "step-00000020" / "model.safetensors").read_bytes()

        diverging = self.write_job("diverging.toml", train__learning_rate=1e30)
        job = self.train(diverging, "--resume", self.checkpoints).wait()
        self.assert_one_message(job, harness.NOT_FINITE, "step", "rank", "checkpoint")
        self.assertEqual((self.checkpoints / "step-00000020" / "model.safetensors").read_bytes(),
                         before)
        self.assert_no_half_checkpoint()
        self.assert_nothing_left()
        self.assert_can_resume(good)


if __name__ == "__main__":
    harness.main()
